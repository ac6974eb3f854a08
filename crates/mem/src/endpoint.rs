// SPDX-License-Identifier: BSD-2-Clause
//! The endpoint state page, one for each endpoint of a port: the sync state that all processes which share the endpoint
//! must agree on.
//!
//! It is mapped by the processes that opened the endpoint and by the daemon. Any of them can write anything into it, so
//! every value read here is validated before use (M4).

use crate::atomic::{
    AtomicU32, AtomicU64, Ordering, fence, fence_registered_publisher, fence_sleeper, publisher_is_registered,
};
use crate::mapped_range::{MappedRange, SharedRef};
use crate::pos::{Pos, Slots};

/// The sync state of one ring.
///
/// A thread syncs the ring either under the try-lock, or, if the lock is *biased* to it, without it (biased locking):
/// see [`SyncState::enter_biased`].
#[repr(C, align(128))]
#[derive(Debug)]
pub struct SyncState {
    /// 0, or the holder ID of the process that syncs the ring under the lock.
    lock: AtomicU32,
    /// The program's `head` as of the last sync.
    hwcur: AtomicU32,
    /// The `tail` that the last sync gave to the program.
    hwtail: AtomicU32,
    /// Sessions that have the ring bound. Written by the daemon.
    session_count: AtomicU32,
    /// Packet slots that crossed this ring since it was made.
    pub slots: AtomicU64,
    /// Syncs that moved at least one slot.
    pub batches: AtomicU64,
    /// Slots delivered empty or not returned, because index or length was out of bounds.
    pub bad_slots: AtomicU64,
    /// How often a pointer of the program, or a position of the peer, was out of bounds.
    pub bad_pointers: AtomicU64,
    /// Of a mirror ring, from which a monitor gets its copies: slots of monitored rings that found no room here. Of a
    /// receive ring of an interface: slots that were to be forwarded to another ring, and could not.
    pub dropped: AtomicU64,
    /// The status word: [`PORT_REMOVED`], [`OWNED_BY_SYNC_LOOP`], and above them the monitor generation.
    status: AtomicU32,
    /// Of the first ring of a session: 0, or the holder ID of the process that runs a sync loop for all its rings.
    sync_loop: AtomicU32,
    /// Not 0: the running sync loop, or the next one, must stop.
    sync_loop_stop: AtomicU32,
    /// 0, or the thread that the lock is biased to, which syncs the ring without it. Written under the lock.
    biased_thread: AtomicU64,
    /// The holder ID of the biased thread's process.
    bias_holder: AtomicU32,
    /// 0, or the holder ID of the biased thread's process while the biased thread syncs. Written by the biased thread.
    inside: AtomicU32,
    /// Not 0: the lock is, or was, biased to a thread, and will be to no other.
    was_biased: AtomicU32,
    /// Of the receive ring of a pipe: bytes of the packets that crossed it.
    pub bytes: AtomicU64,
    /// Not 0: the ring was synced, see [`SyncState::was_synced`].
    was_synced: AtomicU32,
}

/// Bit of [`SyncState::status`]: the port was removed while in use. Written by the daemon.
pub const PORT_REMOVED: u32 = 1;
/// Bit of [`SyncState::status`]: only a sync loop syncs the ring, by positions in other memory. Written by the process
/// that has the ring bound, exclusively.
pub const OWNED_BY_SYNC_LOOP: u32 = 2;
/// Added to [`SyncState::status`] with each change of the ring's monitors.
const MONITOR_GENERATION: u32 = 4;

/// Bytes of one ring's state.
const STATE_BYTES: usize = 128;
#[cfg(not(loom))]
const _: () = assert!(size_of::<SyncState>() == STATE_BYTES);

/// The right to sync a ring: the word that says which process has it, cleared on drop.
#[derive(Debug)]
pub struct SyncGuard<'a>(&'a AtomicU32);

// Words that only the holder of the lock (or the biased thread inside) writes are accessed relaxed: the acquire that
// takes the right to sync and the release that returns it order them (O2).
impl SyncState {
    /// The state of a ring that was never used.
    #[allow(clippy::new_without_default)]
    pub fn new() -> SyncState {
        let word = || AtomicU32::new(0);
        let long = || AtomicU64::new(0);
        SyncState {
            lock: word(),
            hwcur: word(),
            hwtail: word(),
            session_count: word(),
            slots: long(),
            batches: long(),
            bad_slots: long(),
            bad_pointers: long(),
            dropped: long(),
            status: word(),
            sync_loop: word(),
            sync_loop_stop: word(),
            biased_thread: long(),
            bias_holder: word(),
            inside: word(),
            was_biased: word(),
            bytes: long(),
            was_synced: word(),
        }
    }

    /// Takes the try-lock for a thread (not 0) of the process with the ID `holder` (not 0). `None`: another thread
    /// syncs the ring, which is skipped then. Revokes the bias to another thread.
    #[inline(always)]
    pub fn try_lock(&self, holder: u32, thread: u64) -> Option<SyncGuard<'_>> {
        debug_assert!(holder != 0 && thread != 0);
        // Acquire: pairs with the release in `SyncGuard::drop` and `break_lock`.
        self.lock.compare_exchange(0, holder, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let guard = SyncGuard(&self.lock);
        (self.was_biased.load(Ordering::Relaxed) == 0 || self.revoke_bias(holder, thread)).then_some(guard)
    }

    /// Records that the ring was synced. The daemon waits for that at the receive rings of interfaces.
    #[inline(always)]
    pub fn record_sync(&self) {
        if !self.was_synced() {
            self.was_synced.store(1, Ordering::Relaxed);
        }
    }

    /// Whether the ring was synced since a session bound it first, or another one closed it. Relaxed: a hint (O3).
    #[inline(always)]
    pub fn was_synced(&self) -> bool {
        self.was_synced.load(Ordering::Relaxed) != 0
    }

    /// Daemon, when a session that had the ring bound has closed: perhaps no other one syncs it.
    pub fn forget_syncs(&self) {
        self.was_synced.store(0, Ordering::Relaxed);
    }

    /// With the lock: revokes the bias to another thread; returns whether that thread is not inside.
    #[cold]
    fn revoke_bias(&self, holder: u32, thread: u64) -> bool {
        if self.biased_thread.load(Ordering::Relaxed) != 0 && !self.is_biased_to(holder, thread) {
            self.biased_thread.store(0, Ordering::SeqCst);
            // O6: after this barrier the biased thread sees that the bias was revoked, or this thread sees it inside. A
            // biased thread that sees it leaves at once and then finds the lock taken; without the wait both would skip
            // the ring.
            fence_sleeper();
            wait_until(|| self.inside.load(Ordering::Relaxed) == 0);
        }
        // Acquire: pairs with the biased thread's release of `inside`.
        self.inside.load(Ordering::Acquire) == 0
    }

    #[inline(always)]
    fn is_biased_to(&self, holder: u32, thread: u64) -> bool {
        // Acquire: pairs with the release in `set_bias`, so that the holder ID is that of this biased thread.
        self.biased_thread.load(Ordering::Acquire) == thread && self.bias_holder.load(Ordering::Relaxed) == holder
    }

    /// With the lock: biases the lock to the thread, unless it is or was biased, or the process is not
    /// registered for `membarrier`.
    pub fn set_bias(&self, holder: u32, thread: u64) {
        if self.was_biased.load(Ordering::Relaxed) == 0 && publisher_is_registered() {
            self.was_biased.store(1, Ordering::Relaxed);
            self.bias_holder.store(holder, Ordering::Relaxed);
            // Release: a thread that reads the biased thread also reads its holder ID.
            self.biased_thread.store(thread, Ordering::Release);
        }
    }

    /// The right to sync without the lock, for the thread that it is biased to. An atomic exchange of the lock would
    /// stall a core until all its earlier stores have reached the cache. `None`: the lock is not biased to the thread,
    /// or the thread is inside already (it may be in a signal handler), or the lock is taken.
    #[inline(always)]
    pub fn enter_biased(&self, holder: u32, thread: u64) -> Option<SyncGuard<'_>> {
        if !self.is_biased_to(holder, thread)
            || self.inside.load(Ordering::Relaxed) | self.lock.load(Ordering::Relaxed) != 0
        {
            return None;
        }
        self.inside.store(holder, Ordering::Relaxed);
        // O6: orders the store of `inside` before the load of `biased_thread`. The lock is biased only to threads of a
        // registered process.
        fence_registered_publisher();
        let guard = SyncGuard(&self.inside);
        // The lock is never biased to a second thread, so the holder ID is still the same. Acquire: as in
        // `is_biased_to`.
        (self.biased_thread.load(Ordering::Acquire) == thread).then_some(guard)
    }

    /// Daemon, after the process with this holder ID has exited: releases the ring if that process was syncing it, and
    /// ends its sync loop. Returns whether it was syncing.
    pub fn break_lock(&self, holder: u32) -> bool {
        self.end_sync_loop(holder);
        // AcqRel: acquires what the process wrote, hands it to the next sync.
        let free = |word: &AtomicU32| word.compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        free(&self.inside) | free(&self.lock)
    }

    /// Daemon, after the process with this holder ID has exited: whether that process was syncing the ring.
    pub fn is_locked_by(&self, holder: u32) -> bool {
        // Acquire: the daemon then reads what the process wrote before.
        self.lock.load(Ordering::Acquire) == holder || self.inside.load(Ordering::Acquire) == holder
    }

    /// Daemon, when the first session binds the ring and no other process uses it: sets both positions, clears the bias
    /// and sync loop, and frees the lock.
    pub fn reset(&self, hwcur: Pos, hwtail: Pos) {
        self.hwcur.store(hwcur.raw(), Ordering::Relaxed);
        self.hwtail.store(hwtail.raw(), Ordering::Relaxed);
        self.status.fetch_and(!OWNED_BY_SYNC_LOOP, Ordering::Relaxed);
        self.sync_loop.store(0, Ordering::Relaxed);
        self.sync_loop_stop.store(0, Ordering::Relaxed);
        self.biased_thread.store(0, Ordering::Relaxed);
        self.inside.store(0, Ordering::Relaxed);
        self.was_biased.store(0, Ordering::Relaxed);
        self.was_synced.store(0, Ordering::Relaxed);
        // Release: the first sync sees all of the above.
        self.lock.store(0, Ordering::Release);
    }

    /// From now on, and until the ring is bound anew, only a sync loop syncs it.
    pub fn hand_to_sync_loop(&self) {
        // Release: the loop's positions were written before.
        self.status.fetch_or(OWNED_BY_SYNC_LOOP, Ordering::Release);
    }

    /// Begins a sync loop of the process with this holder ID; `false` when one runs.
    pub fn begin_sync_loop(&self, holder: u32) -> bool {
        // AcqRel: pairs with the release in `end_sync_loop`.
        self.sync_loop.compare_exchange(0, holder, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether the loop of that process may go on: no stop was requested, and the ring is still bound by its session.
    #[inline]
    pub fn sync_loop_may_continue(&self, holder: u32) -> bool {
        // Acquire: pairs with the release in `request_sync_loop_stop`. The holder ID is the whole message (O4).
        self.sync_loop_stop.load(Ordering::Acquire) == 0 && self.sync_loop.load(Ordering::Relaxed) == holder
    }

    /// Ends the loop of that process.
    pub fn end_sync_loop(&self, holder: u32) {
        // Relaxed (O2): the word has this ID until its loop, or the daemon after the process has exited, clears it.
        if self.sync_loop.load(Ordering::Relaxed) == holder {
            self.sync_loop_stop.store(0, Ordering::Relaxed);
            // Release: pairs with the acquire in `begin_sync_loop` and `has_sync_loop`.
            self.sync_loop.store(0, Ordering::Release);
        }
    }

    /// Requests the loop to stop; a loop that begins later stops at once.
    pub fn request_sync_loop_stop(&self) {
        self.sync_loop_stop.store(1, Ordering::Release);
    }

    /// Whether a loop runs.
    pub fn has_sync_loop(&self) -> bool {
        self.sync_loop.load(Ordering::Acquire) != 0
    }

    /// Where the last sync left the ring: `(hwcur, hwtail)`; `None` when they are not positions of the ring.
    #[inline(always)]
    pub fn positions(&self, slots: Slots) -> Option<(Pos, Pos)> {
        Some((slots.pos(self.hwcur.load(Ordering::Relaxed))?, slots.pos(self.hwtail.load(Ordering::Relaxed))?))
    }

    /// Whether the last sync read `raw` as the program's `head`. Relaxed: without the lock a hint (O3).
    #[inline(always)]
    pub fn hwcur_is(&self, raw: u32) -> bool {
        self.hwcur.load(Ordering::Relaxed) == raw
    }

    /// Whether the last sync gave the program the tail `raw`. Relaxed: without the lock a hint (O3).
    #[inline(always)]
    pub fn hwtail_is(&self, raw: u32) -> bool {
        self.hwtail.load(Ordering::Relaxed) == raw
    }

    /// Records the `head` that this sync has processed. Only with the right to sync.
    #[inline(always)]
    pub fn set_hwcur(&self, p: Pos) {
        self.hwcur.store(p.raw(), Ordering::Relaxed);
    }

    /// Records the tail that the program is given. Only with the right to sync.
    #[inline(always)]
    pub fn set_hwtail(&self, p: Pos) {
        self.hwtail.store(p.raw(), Ordering::Relaxed);
    }

    /// Counts one sync that moved `n` slots. Only with the right to sync.
    #[inline(always)]
    pub fn count_batch(&self, n: u32) {
        // Plain loads and stores (O2): there is one writer at a time, and a hostile one corrupts only its own figures.
        self.slots.store(self.slots.load(Ordering::Relaxed).wrapping_add(u64::from(n)), Ordering::Relaxed);
        self.batches.store(self.batches.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Counts the bytes of what a sync moved. Only with the right to sync.
    #[inline(always)]
    pub fn count_bytes(&self, n: u64) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    // Counters (O4).

    /// Counts `n` slots that were out of bounds.
    #[cold]
    pub fn count_bad_slots(&self, n: u32) {
        self.bad_slots.fetch_add(u64::from(n), Ordering::Relaxed);
    }

    /// Counts a pointer or position that was out of bounds.
    #[cold]
    pub fn count_bad_pointer(&self) {
        self.bad_pointers.fetch_add(1, Ordering::Relaxed);
    }

    /// The status word, in one load for each sync: 0 as long as the port exists, programs sync the ring themselves, and
    /// it was never monitored. Relaxed (O4): [`SyncState::is_status_current`] confirms it where that matters.
    #[inline(always)]
    pub fn status(&self) -> u32 {
        self.status.load(Ordering::Relaxed)
    }

    /// With the lock: whether the status, apart from [`OWNED_BY_SYNC_LOOP`], is still `status`. A later change by the
    /// daemon comes before the daemon finds the lock free ([`SyncState::status_was_observed`]).
    pub fn is_status_current(&self, status: u32) -> bool {
        // O6: orders the lock's store before the load of the status; pairs with the fence in `status_was_observed`.
        fence(Ordering::SeqCst);
        self.status() & !OWNED_BY_SYNC_LOOP == status
    }

    /// Daemon, after it changed the status: true once every sync in flight has observed the change.
    pub fn status_was_observed(&self) -> bool {
        // O6. The biased thread enters without the lock only while it reads the status as 0, and then does as it did
        // before the change.
        fence(Ordering::SeqCst);
        // Acquire: the syncs that have ended come before.
        self.lock.load(Ordering::Acquire) == 0
    }

    /// Whether syncs of programs must fail: the port was removed, or a sync loop owns the ring.
    #[inline(always)]
    pub fn is_closed(&self) -> bool {
        self.status() & (PORT_REMOVED | OWNED_BY_SYNC_LOOP) != 0
    }

    /// Daemon: marks the port as removed.
    pub fn mark_removed(&self) {
        self.status.fetch_or(PORT_REMOVED, Ordering::Release);
    }

    /// Daemon: starts a new monitor generation; each process then requests the new list of monitors.
    pub fn monitors_changed(&self) {
        // Release: the mirror rings of the new generation exist.
        self.status.fetch_add(MONITOR_GENERATION, Ordering::Release);
    }

    /// Sessions that have the ring bound. Relaxed: a hint (O3).
    pub fn session_count(&self) -> u32 {
        self.session_count.load(Ordering::Relaxed)
    }

    /// Daemon: records how many sessions have the ring bound.
    pub fn set_session_count(&self, n: u32) {
        self.session_count.store(n, Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
fn wait_until(left: impl Fn() -> bool) {
    (0..crate::tuning::BIAS_EXIT_SPINS).take_while(|_| !left()).for_each(|_| unetmap_sys::clock::spin_hint());
}

/// In the model the biased thread may always have lost its CPU, so there is no wait.
#[cfg(loom)]
fn wait_until(_: impl Fn() -> bool) {}

impl Drop for SyncGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: the next sync of the ring sees the stores of this one.
        self.0.store(0, Ordering::Release);
    }
}

/// The states of all rings of one endpoint: transmit rings first, then receive rings.
#[derive(Clone)]
pub struct EndpointPage {
    range: MappedRange,
}

impl EndpointPage {
    /// A view of a mapping that holds `range.len() / 128` states.
    pub fn new(range: MappedRange) -> EndpointPage {
        EndpointPage { range }
    }

    /// Bytes to map for `rings` rings.
    pub fn bytes(rings: usize) -> usize {
        (rings * STATE_BYTES).next_multiple_of(4096)
    }

    /// The state of ring `index`, or `None` when the page has no such ring.
    #[inline(always)]
    pub fn state(&self, index: usize) -> Option<&SyncState> {
        let offset = index.checked_mul(STATE_BYTES)?;
        // SAFETY: SyncState is made of atomics only (M1).
        let ptr = unsafe { self.range.at::<SyncState>(offset) }?;
        // SAFETY: in bounds and aligned (`at`), mapped while `self` lives (M2), atomics only (M1).
        Some(unsafe { &*ptr })
    }

    /// As [`EndpointPage::state`], as a handle that keeps the page mapped and is looked up once.
    pub fn state_ref(&self, index: usize) -> Option<SyncStateRef> {
        // SAFETY: SyncState is made of atomics only (M1).
        Some(SyncStateRef(unsafe { self.range.shared_ref(index.checked_mul(STATE_BYTES)?) }?))
    }
}

/// A handle to the state of one ring.
#[derive(Clone)]
pub struct SyncStateRef(SharedRef<SyncState>);

impl std::ops::Deref for SyncStateRef {
    type Target = SyncState;

    #[inline(always)]
    fn deref(&self) -> &SyncState {
        &self.0
    }
}
