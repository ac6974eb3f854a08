// SPDX-License-Identifier: BSD-2-Clause
//! The thread that renews the deadlines of the programs that are attached to interfaces.
//!
//! The control thread cannot: a driver may hold it up for seconds while a program is attached or a socket is bound, and
//! so may memory that a client gave. This thread accesses no such memory. Its one lock is held by others for a few
//! instructions. Of root's daemon it runs before all other threads of the machine, as does the broker's that it asks: a
//! machine that is busy is no reason to give interfaces to the kernel.
//!
//! ```text
//! state of the daemon               the deadlines
//! it runs                           are renewed
//! the whole process is stopped      pass, as this thread is stopped, too
//! the control thread hangs          pass after MAX_CONTROL_DELAY
//! ```
//! A queue of a program that stays at its interface has a deadline of its own. It is renewed while the queue is served:
//! from the first sync of its receive ring on, as long as its socket has no frames, or someone takes them. Until then
//! the kernel does without a program what the setting says: one that has just been started may take long to begin.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use unetmap_mem::{RxProgress, SyncStateRef, XskRxRings};
use unetmap_sys::thread::{Precedence, set_precedence};

use super::bypass::{BypassRecord, Service};
use super::faults::{FrameWatch, Report};
use crate::broker;
use crate::privileged::Deadline;
use crate::threads::lock;
use crate::tuning::nic::{
    FIRST_SYNC_LIMIT, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, MAX_CONTROL_DELAY, QUEUE_STALL, QUEUE_TIMEOUT,
};

/// The deadlines that are renewed.
#[derive(Clone, Default)]
pub(crate) struct Heartbeat(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Dropped with the programs.
    deadlines: Vec<Weak<Deadline>>,
    /// Dropped with the sockets.
    queues: Vec<Weak<ServedQueue>>,
    /// Dropped with the programs.
    watches: Vec<Weak<FrameWatch>>,
    /// Where the faults of frames are told; `None`: nowhere.
    report: Option<Report>,
    /// Time for which a program may leave frames in them; `None`: [`QUEUE_STALL`].
    stall: Option<Duration>,
    /// Whether the thread renews them: while there are some.
    running: bool,
    control: ControlThread,
}

/// State of the control thread.
#[derive(Default)]
struct ControlThread {
    /// When it began to handle events; `None`: it waits for some.
    busy_since: Option<Instant>,
}

impl ControlThread {
    fn hangs(&self, now: Instant) -> bool {
        self.busy_since.is_some_and(|since| now.saturating_duration_since(since) > MAX_CONTROL_DELAY)
    }
}

/// A queue of a program that stays, with its socket.
pub(super) struct ServedQueue {
    deadline: Arc<Deadline>,
    /// The interface's name, for the log.
    name: String,
    queue: u32,
    rings: XskRxRings,
    /// Of the receive ring.
    sync: SyncStateRef,
    zero_copy: bool,
    /// If the partner gets its frames otherwise, the record, and the queue's place there.
    bypass: Option<(Arc<BypassRecord>, u64)>,
    state: Mutex<QueueState>,
}

impl Drop for ServedQueue {
    fn drop(&mut self) {
        self.bypass.iter().for_each(|(record, place)| record.remove(*place));
    }
}

/// A queue that is to be watched.
pub(super) struct NewQueue<'a> {
    pub(super) name: &'a str,
    pub(super) queue: u32,
    pub(super) rings: XskRxRings,
    pub(super) sync: SyncStateRef,
    pub(super) zero_copy: bool,
    pub(super) bypass: Option<Arc<BypassRecord>>,
}

struct QueueState {
    /// Up to when the first sync of the receive ring is waited for.
    begins_by: Option<Instant>,
    progress: RxProgress,
    /// When the progress was another one.
    since: Instant,
    is_served: bool,
    /// Frames that wait for a program that takes none.
    waiting: u32,
}

impl QueueState {
    /// Whether a program still has to begin.
    fn is_early(&mut self, was_synced: bool, now: Instant) -> bool {
        self.begins_by = self.begins_by.filter(|limit| !was_synced && now < *limit);
        if self.begins_by.is_some() {
            self.since = now;
        }
        self.begins_by.is_some()
    }

    /// Looks at the progress; returns whether the queue is served: not by a program that takes nothing for `stall`.
    fn look(&mut self, progress: RxProgress, zero_copy: bool, stall: Duration, now: Instant) -> bool {
        let waits = progress.has_frames || !progress.has_buffers && !zero_copy;
        if !waits || (progress.taken, progress.offered) != (self.progress.taken, self.progress.offered) {
            self.since = now;
        }
        self.progress = progress;
        now.saturating_duration_since(self.since) < stall
    }
}

impl ServedQueue {
    /// Renews the deadline, or lets it pass at once.
    fn renew(&self, stall: Duration) {
        // Until the deadline is set, so that `begin_again` does not come between.
        let (now, mut state) = (Instant::now(), lock(&self.state));
        if state.is_early(self.sync.was_synced(), now) {
            return;
        }
        let is_served = state.look(self.rings.progress(), self.zero_copy, stall, now);
        let switched = std::mem::replace(&mut state.is_served, is_served) != is_served;
        let (name, queue) = (&self.name, self.queue);
        if switched && is_served {
            tracing::info!(name, queue, "a program takes the frames of the queue");
        } else if switched {
            tracing::warn!(name, queue, "no frame is taken from the queue: no program gets its frames");
        }
        if is_served || switched {
            self.extend(if is_served { QUEUE_TIMEOUT } else { Duration::ZERO });
        }
        let overtaken = if is_served { std::mem::take(&mut state.waiting) } else { 0 };
        if !is_served {
            // No more are added from now on.
            state.waiting = self.rings.packets_unreleased();
        }
        drop(state);
        if let Some((record, place)) = self.bypass.as_ref().filter(|_| switched) {
            record.were_overtaken(overtaken.into());
            record.set(*place, if is_served { Service::Served } else { Service::Stalled });
        }
    }

    /// A session that had the queue has closed. If another one gets the socket, or has it, that has to begin first.
    pub(super) fn begin_again(&self) {
        let mut state = lock(&self.state);
        (state.begins_by, state.is_served) = (Some(Instant::now() + FIRST_SYNC_LIMIT), false);
        self.extend(Duration::ZERO);
        state.waiting = self.rings.packets_unreleased();
        drop(state);
        self.bypass.iter().for_each(|(record, place)| record.set(*place, Service::Early));
    }

    fn extend(&self, time: Duration) {
        if let Err(e) = self.deadline.extend_queue(self.queue, time) {
            tracing::error!(name = self.name, queue = self.queue, "the deadline of the queue cannot be set: {e}");
        }
    }
}

/// Records that the deadlines of all queues were over for `late`.
fn record_delay(queues: &[Arc<ServedQueue>], late: Duration) {
    let mut records: Vec<_> = queues.iter().filter_map(|queue| Some(&queue.bypass.as_ref()?.0)).collect();
    records.sort_by_key(|record| Arc::as_ptr(record));
    records.dedup_by_key(|record| Arc::as_ptr(record));
    records.into_iter().for_each(|record| record.daemon_was_late(late));
}

/// Where the thread gets what it is to renew.
static THREAD: OnceLock<Sender<Heartbeat>> = OnceLock::new();

/// Starts the thread, with the precedence of the calling one, which the daemon cannot give it later.
///
/// # Errors
/// There are too many threads.
pub(crate) fn start_heartbeat() -> io::Result<()> {
    let (sender, heartbeats) = mpsc::channel::<Heartbeat>();
    let renew = move || {
        // If the calling one has none, it has said so.
        let _ = set_precedence(Precedence::Own);
        broker::renew_deadlines();
        heartbeats.iter().for_each(|heartbeat| heartbeat.run());
    };
    thread::Builder::new().name("heartbeat".into()).spawn(renew)?;
    let _ = THREAD.set(sender);
    Ok(())
}

impl Heartbeat {
    /// Renews the deadline of a queue from its first sync on, until the result is dropped.
    pub(super) fn add_queue(&self, deadline: &Arc<Deadline>, new: NewQueue<'_>) -> io::Result<Arc<ServedQueue>> {
        let NewQueue { name, queue, rings, sync, zero_copy, bypass } = new;
        let (is_served, now) = (sync.was_synced(), Instant::now());
        deadline.extend_queue(queue, if is_served { QUEUE_TIMEOUT } else { Duration::ZERO })?;
        let begins_by = (!is_served).then_some(now + FIRST_SYNC_LIMIT);
        let state = QueueState { begins_by, progress: rings.progress(), since: now, is_served, waiting: 0 };
        let (deadline, name, state) = (deadline.clone(), name.to_owned(), Mutex::new(state));
        let service = if is_served { Service::Served } else { Service::Early };
        let bypass = bypass.map(|record| (record.clone(), record.add(service)));
        let served = Arc::new(ServedQueue { deadline, name, queue, rings, sync, zero_copy, bypass, state });
        lock(&self.0).queues.push(Arc::downgrade(&served));
        Ok(served)
    }

    /// Sets a deadline for the first time, and renews it until it is dropped.
    pub(super) fn add(&self, deadline: &Arc<Deadline>) -> io::Result<()> {
        self.go_on(deadline).map(drop)
    }

    /// Goes on with a deadline that an earlier daemon has set, in the same way. Returns for how long it was over.
    pub(super) fn go_on(&self, deadline: &Arc<Deadline>) -> io::Result<Duration> {
        let over = deadline.extend(HEARTBEAT_TIMEOUT)?;
        let mut state = lock(&self.0);
        state.deadlines.push(Arc::downgrade(deadline));
        if !state.running {
            let thread = THREAD.get().ok_or(io::ErrorKind::NotConnected)?;
            thread.send(self.clone()).map_err(|_| io::ErrorKind::BrokenPipe)?;
            state.running = true;
        }
        Ok(over)
    }

    /// Has the frames of an interface looked at, until this is dropped.
    pub(super) fn watch(&self, frames: &Arc<FrameWatch>) {
        lock(&self.0).watches.push(Arc::downgrade(frames));
    }

    /// Tells the faults of frames there.
    pub(super) fn report_to(&self, report: Option<Report>) {
        lock(&self.0).report = report;
    }

    /// Looks at the frames of all interfaces.
    fn look_at_frames(&self) {
        let mut state = lock(&self.0);
        state.watches.retain(|watch| watch.strong_count() > 0);
        let watches: Vec<_> = state.watches.iter().filter_map(Weak::upgrade).collect();
        let Some(report) = state.report.clone().filter(|_| !watches.is_empty()) else { return };
        drop(state);
        for watch in watches {
            if let Some(fault) = watch.look() {
                report(watch.key, fault);
            }
        }
    }

    /// The control thread begins to handle an event.
    pub(crate) fn control_begins(&self) {
        lock(&self.0).control.busy_since = Some(Instant::now());
    }

    /// The control thread waits for events.
    pub(crate) fn control_waits(&self) {
        lock(&self.0).control.busy_since = None;
    }

    /// Renews the deadlines until none is left.
    fn run(&self) {
        let (mut looked, mut reported) = (Instant::now(), false);
        while let Some((deadlines, hangs)) = self.due() {
            let (queues, stall) = self.queues();
            if let Some(late) = looked.elapsed().checked_sub(QUEUE_TIMEOUT) {
                record_delay(&queues, late);
            }
            looked = Instant::now();
            queues.iter().for_each(|queue| queue.renew(stall));
            drop(queues);
            if !hangs {
                report_delay(deadlines.iter().map(renew).max().unwrap_or_default());
            } else if !reported {
                tracing::error!(
                    "a request has taken {MAX_CONTROL_DELAY:?}: until it ends, open interfaces are the kernel's"
                );
            }
            reported = hangs;
            drop(deadlines);
            self.look_at_frames();
            thread::sleep(HEARTBEAT_INTERVAL);
        }
    }

    /// Sets for how long a program may leave frames in a queue.
    pub(super) fn set_stall(&self, stall: Duration) {
        lock(&self.0).stall = Some(stall);
    }

    /// The queues of programs that stay, and for how long frames may be left there.
    fn queues(&self) -> (Vec<Arc<ServedQueue>>, Duration) {
        let mut state = lock(&self.0);
        state.queues.retain(|queue| queue.strong_count() > 0);
        (state.queues.iter().filter_map(Weak::upgrade).collect(), state.stall.unwrap_or(QUEUE_STALL))
    }

    /// The deadlines, and whether the control thread hangs; `None`: no deadline is left, and the thread ends.
    fn due(&self) -> Option<(Vec<Arc<Deadline>>, bool)> {
        let mut state = lock(&self.0);
        let deadlines: Vec<_> = state.deadlines.iter().filter_map(Weak::upgrade).collect();
        state.deadlines.retain(|deadline| deadline.strong_count() > 0);
        state.running = !deadlines.is_empty();
        state.running.then(|| (deadlines, state.control.hangs(Instant::now())))
    }
}

/// Returns for how long the deadline was over.
fn renew(deadline: &Arc<Deadline>) -> Duration {
    deadline.extend(HEARTBEAT_TIMEOUT).unwrap_or_else(|e| {
        tracing::error!("the deadline of an interface's programs cannot be renewed: {e}");
        Duration::ZERO
    })
}

/// Reports that deadlines were over for so long.
pub(super) fn report_delay(over: Duration) {
    if !over.is_zero() {
        let late = over.as_millis();
        tracing::warn!("the daemon was delayed: open interfaces were the kernel's for {late} ms");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_request_counts_as_a_hang() {
        let now = Instant::now();
        let after = |time| now + time;
        let busy = ControlThread { busy_since: Some(now) };
        assert!(!busy.hangs(now) && !busy.hangs(after(MAX_CONTROL_DELAY)));
        assert!(busy.hangs(after(MAX_CONTROL_DELAY + Duration::from_millis(1))));
        assert!(!ControlThread::default().hangs(after(2 * MAX_CONTROL_DELAY)));
    }

    #[test]
    fn a_queue_with_frames_is_served_while_some_are_taken() {
        let now = Instant::now();
        let quiet = RxProgress { taken: 5, offered: 9, has_frames: false, has_buffers: true };
        let frames = RxProgress { has_frames: true, ..quiet };
        let mut state = QueueState { begins_by: None, progress: quiet, since: now, is_served: true, waiting: 0 };
        let mut look = |progress, zero_copy, then| state.look(progress, zero_copy, QUEUE_STALL, then);
        assert!(look(quiet, false, now + 9 * QUEUE_STALL), "it has no frames");
        let then = now + 9 * QUEUE_STALL;
        assert!(look(frames, false, then + QUEUE_STALL / 2) && !look(frames, false, then + QUEUE_STALL));
        let one_more = RxProgress { taken: 6, ..frames };
        assert!(look(one_more, false, then + 2 * QUEUE_STALL), "one was taken");
        let then = then + 2 * QUEUE_STALL;
        assert!(state.look(one_more, false, 3 * QUEUE_STALL, then + 2 * QUEUE_STALL), "it may take longer");
        let mut look = |progress, zero_copy, then| state.look(progress, zero_copy, QUEUE_STALL, then);
        let holds_all = RxProgress { has_buffers: false, ..quiet };
        let then = then + 3 * QUEUE_STALL;
        assert!(look(holds_all, true, then), "the driver may have all buffers");
        assert!(!look(holds_all, false, then + QUEUE_STALL), "the program has them");
    }

    #[test]
    fn a_queue_is_served_from_its_first_sync_on() {
        let (now, step) = (Instant::now(), Duration::from_millis(1));
        let progress = RxProgress { taken: 0, offered: 9, has_frames: true, has_buffers: true };
        let begins_by = Some(now + FIRST_SYNC_LIMIT);
        let new = || QueueState { begins_by, progress, since: now, is_served: false, waiting: 0 };
        let (mut waits, mut syncs) = (new(), new());
        let last = now + FIRST_SYNC_LIMIT - step;
        assert!(waits.is_early(false, last) && !waits.is_early(false, last + step), "a program that only sends");
        assert!(syncs.is_early(false, last) && !syncs.is_early(true, last) && !syncs.is_early(false, last));
        assert!(
            syncs.look(progress, false, QUEUE_STALL, last + QUEUE_STALL - step),
            "its time to take frames begins then"
        );
    }

    #[test]
    fn the_thread_waits_without_deadlines() {
        let heartbeat = Heartbeat::default();
        lock(&heartbeat.0).running = true;
        assert!(heartbeat.due().is_none() && !lock(&heartbeat.0).running);
    }
}
