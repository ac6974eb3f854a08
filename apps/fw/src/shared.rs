// SPDX-License-Identifier: BSD-2-Clause
//! State that the threads that move packets share with the others: rules, counts, packets that are logged.

use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use unetmap_filter::{
    Direction, Engine, HEADER_BYTES, Headers, NatCounts, ProxyCounts, Ruleset, SharedTables, StateCounts, StateInfo,
    States,
};

/// The rules that packets are evaluated with, which another thread replaces.
pub(crate) struct Shared {
    set: Mutex<Arc<Ruleset>>,
    /// Number of the set.
    generation: AtomicU64,
    /// Counts of each worker, for the other threads.
    pub(crate) totals: Box<[Totals]>,
    /// The tables that workers share, if there are several.
    pub(crate) tables: Option<SharedTables>,
    /// When the workers begin: the time of states.
    pub(crate) begin: Instant,
    /// A list of states that was asked for, of the only worker, which adds to it between two batches.
    listing: Mutex<Option<Listing>>,
    is_listing: AtomicBool,
    /// Workers that have ended.
    ended: AtomicUsize,
}

/// States that are listed.
struct Listing {
    at: usize,
    parts: SyncSender<Vec<StateInfo>>,
}

/// States that are listed between two batches, at most.
const LISTED: usize = 1024;
/// Parts of a list that wait.
const LIST_QUEUE: usize = 16;
/// Longest wait for the next part.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Counts that another thread reads.
#[derive(Default)]
pub(crate) struct Totals {
    /// By direction.
    pub(crate) passed: [AtomicU64; 2],
    pub(crate) dropped: [AtomicU64; 2],
    pub(crate) malformed: AtomicU64,
    pub(crate) replies: AtomicU64,
    /// Replies for which there was no room.
    pub(crate) lost_replies: AtomicU64,
    /// Log lines that were not written because too many waited.
    pub(crate) lost_logs: AtomicU64,
    /// Copies by rules `tee`.
    pub(crate) copies: AtomicU64,
    /// Copies for which a port had no room.
    pub(crate) lost_copies: AtomicU64,
    /// Records of flows and of NAT that the collector did not get.
    pub(crate) unsent_records: AtomicU64,
    pub(crate) states: Mutex<StateCounts>,
    pub(crate) nat: Mutex<NatCounts>,
    pub(crate) handshakes: Mutex<ProxyCounts>,
}

impl Shared {
    /// Makes the rules of several workers, whose tables are those of `engines`.
    pub(crate) fn new(set: Ruleset, engines: &[Engine]) -> Shared {
        Shared {
            set: Mutex::new(Arc::new(set)),
            generation: AtomicU64::new(1),
            totals: engines.iter().map(|_| Totals::default()).collect(),
            tables: engines.first().and_then(Engine::shared_tables),
            begin: Instant::now(),
            listing: Mutex::new(None),
            is_listing: AtomicBool::new(false),
            ended: AtomicUsize::new(0),
        }
    }

    /// Returns milliseconds since the workers began.
    pub(crate) fn millis(&self) -> u64 {
        self.begin.elapsed().as_millis() as u64
    }

    /// Notes that a worker has ended; returns whether it was the last one.
    pub(crate) fn end_worker(&self) -> bool {
        self.ended.fetch_add(1, AcqRel) + 1 == self.totals.len()
    }

    /// Returns all states that have not expired. One thread calls it at a time.
    ///
    /// # Errors
    /// The worker does not answer.
    pub(crate) fn states(&self) -> Result<Vec<StateInfo>, String> {
        if let Some(tables) = &self.tables {
            return Ok(tables.states(self.millis()));
        }
        let (parts, all) = sync_channel(LIST_QUEUE);
        *self.listing.lock().unwrap_or_else(PoisonError::into_inner) = Some(Listing { at: 0, parts });
        self.is_listing.store(true, Release);
        let mut states = Vec::new();
        loop {
            match all.recv_timeout(LIST_TIMEOUT) {
                Ok(part) => states.extend(part),
                Err(RecvTimeoutError::Disconnected) => return Ok(states),
                Err(RecvTimeoutError::Timeout) => return Err("the firewall does not answer".into()),
            }
        }
    }

    /// Whether states are being listed.
    #[inline]
    pub(crate) fn is_listing(&self) -> bool {
        self.is_listing.load(Relaxed)
    }

    /// Lists the next states of the only worker.
    #[cold]
    pub(crate) fn list(&self, states: &States) {
        let Ok(mut listing) = self.listing.try_lock() else { return };
        let Some(Listing { at, parts }) = &mut *listing else {
            self.is_listing.store(false, Relaxed);
            return;
        };
        let mut next = *at;
        let part = states.list_part(&mut next, LISTED, self.millis());
        let is_over = match part.map(|part| parts.try_send(part)) {
            Some(Ok(())) => {
                *at = next;
                false
            }
            // The receiver is slower.
            Some(Err(TrySendError::Full(_))) => false,
            None | Some(Err(TrySendError::Disconnected(_))) => true,
        };
        if is_over {
            *listing = None;
            self.is_listing.store(false, Relaxed);
        }
    }

    /// Returns the rules, which may be newer than [`Shared::generation`] said.
    pub(crate) fn set(&self) -> Arc<Ruleset> {
        Arc::clone(&self.set.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of the rules: a change is noticed without the lock.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Replaces the rules: each batch of packets is evaluated with the old ones or with the new ones.
    pub(crate) fn replace(&self, set: Ruleset) {
        let old = std::mem::replace(&mut *self.set.lock().unwrap_or_else(PoisonError::into_inner), Arc::new(set));
        self.generation.fetch_add(1, Release);
        drop(old);
    }
}

/// A packet that a rule logs.
pub(crate) struct LogEntry {
    /// Since 1970.
    pub(crate) time: Duration,
    /// The first bytes of the frame.
    pub(crate) bytes: [u8; HEADER_BYTES],
    /// Length of the frame.
    pub(crate) len: u32,
    pub(crate) number: u16,
    pub(crate) action: &'static str,
    pub(crate) headers: Headers,
    pub(crate) direction: Direction,
}

/// Adds to a counter that only this thread writes.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}
