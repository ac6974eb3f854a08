//! The end page, one for each end of a port: what the syncs of all processes that share the end must agree on.
//!
//! Only processes that opened this end map it, and the daemon. Any of them can scribble on it, so whatever is read here
//! is judged before use.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence, fence_light_publisher, fence_sleeper, publishes_lightly};
use crate::pos::{Pos, Slots};
use crate::window::{Found, Window};

/// The sync state of one ring.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct RingState {
    /// 0, or the lease of the process that syncs the ring at this moment.
    lock: AtomicU32,
    /// Up to where the last sync has followed the program's `head`.
    hwcur: AtomicU32,
    /// The tail that the last sync gave to the program.
    hwtail: AtomicU32,
    /// How many sessions have the ring bound; kept by the daemon.
    sharers: AtomicU32,
    /// Packet slots that crossed this ring since it was made.
    pub slots: AtomicU64,
    /// Syncs that moved at least one slot.
    pub batches: AtomicU64,
    /// Slots delivered empty or not handed back, because index or length was out of bounds.
    pub bad_slots: AtomicU64,
    /// Times that a pointer of the program, or a position of the other party, was out of bounds.
    pub bad_pointers: AtomicU64,
    /// Of a ring of a shelf, where monitors get their copies from: slots that a watched ring had no room for here. Of a
    /// receive ring of an interface: slots that were to go on to another ring, and could not.
    pub dropped: AtomicU64,
    /// What there is to say to the ring's users: [`ENDED`], [`BY_LOOP`], and above them a number that changes with who
    /// watches.
    notice: AtomicU32,
    /// Of the first ring of a session: 0, or the lease of the process that runs a sync loop for all of them.
    looping: AtomicU32,
    /// Not 0: that loop, or the next, is to end.
    loop_ends: AtomicU32,
    /// 0, or the thread that owns the ring: it goes inside without the lock. Written by who has the lock.
    owner: AtomicU64,
    /// The lease of the process that this thread is of.
    owner_lease: AtomicU32,
    /// 0, or the lease of the owner's process while the owner is inside. Written by the owner.
    inside: AtomicU32,
    /// Not 0: the ring has, or had, an owner, and gets no other.
    owned: AtomicU32,
}

/// In a [`RingState::notice`]: the port has ended under its users. Written by the daemon.
pub const ENDED: u32 = 1;
/// In a [`RingState::notice`]: the ring is synced by a loop alone, by positions that lie elsewhere. Written by who has it
/// bound, exclusively.
pub const BY_LOOP: u32 = 2;
/// Added to a [`RingState::notice`] with each change of who watches.
const WATCHERS: u32 = 4;

/// Bytes of one ring's state.
const STATE_BYTES: usize = 128;
#[cfg(not(loom))]
const _: () = assert!(size_of::<RingState>() == STATE_BYTES);

/// The right to sync a ring: the word that says who has it, cleared on drop.
#[derive(Debug)]
pub struct SyncGuard<'a>(&'a AtomicU32);

impl RingState {
    /// The state of a ring that nobody used yet.
    #[allow(clippy::new_without_default)]
    pub fn new() -> RingState {
        let word = || AtomicU32::new(0);
        let long = || AtomicU64::new(0);
        RingState {
            lock: word(),
            hwcur: word(),
            hwtail: word(),
            sharers: word(),
            slots: long(),
            batches: long(),
            bad_slots: long(),
            bad_pointers: long(),
            dropped: long(),
            notice: word(),
            looping: word(),
            loop_ends: word(),
            owner: long(),
            owner_lease: word(),
            inside: word(),
            owned: word(),
        }
    }

    /// Takes the right to sync for a thread (not 0) of the process with `lease` (not 0), or `None` when somebody has it:
    /// then the ring is skipped. Ends the ownership of another thread.
    #[inline(always)]
    pub fn try_lock(&self, lease: u32, thread: u64) -> Option<SyncGuard<'_>> {
        debug_assert!(lease != 0 && thread != 0);
        self.lock.compare_exchange(0, lease, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let guard = SyncGuard(&self.lock);
        (self.owned.load(Ordering::Relaxed) == 0 || self.is_left(lease, thread)).then_some(guard)
    }

    /// With the lock: whether the owner, who is another's no longer after this, is outside.
    #[cold]
    fn is_left(&self, lease: u32, thread: u64) -> bool {
        if self.owner.load(Ordering::Relaxed) != 0 && !self.is_owned_by(lease, thread) {
            self.owner.store(0, Ordering::SeqCst);
            // From now on the owner sees that, or is seen inside. An owner that sees it leaves at once and finds the lock
            // taken: not to wait for that would be to skip the ring both.
            fence_sleeper();
            wait_until(|| self.inside.load(Ordering::Relaxed) == 0);
        }
        self.inside.load(Ordering::Acquire) == 0
    }

    #[inline(always)]
    fn is_owned_by(&self, lease: u32, thread: u64) -> bool {
        self.owner.load(Ordering::Acquire) == thread && self.owner_lease.load(Ordering::Relaxed) == lease
    }

    /// With the lock: makes the ring that thread's, unless it is, or was, another's already.
    pub fn own(&self, lease: u32, thread: u64) {
        if self.owned.load(Ordering::Relaxed) == 0 && publishes_lightly() {
            self.owned.store(1, Ordering::Relaxed);
            self.owner_lease.store(lease, Ordering::Relaxed);
            self.owner.store(thread, Ordering::Release);
        }
    }

    /// The same right for the thread that owns the ring, without the lock, which makes a processor wait until all its earlier
    /// stores have reached the cache. `None`: it does not own it, or is inside already (it may be in a signal's handler).
    #[inline(always)]
    pub fn enter(&self, lease: u32, thread: u64) -> Option<SyncGuard<'_>> {
        if !self.is_owned_by(lease, thread)
            || self.inside.load(Ordering::Relaxed) | self.lock.load(Ordering::Relaxed) != 0
        {
            return None;
        }
        self.inside.store(lease, Ordering::Relaxed);
        // Only a registered process has ever made a ring its thread's own.
        fence_light_publisher();
        let guard = SyncGuard(&self.inside);
        // Nobody becomes the owner after another, so the lease is the same still.
        (self.owner.load(Ordering::Acquire) == thread).then_some(guard)
    }

    /// The daemon, after the process with `lease` is known to be dead: frees the ring if that process was syncing it.
    /// Returns whether it was.
    pub fn break_lock(&self, lease: u32) -> bool {
        self.end_loop(lease);
        let free = |word: &AtomicU32| word.compare_exchange(lease, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        free(&self.inside) | free(&self.lock)
    }

    /// The daemon, after the process with `lease` is known to be dead: whether that process was syncing the ring.
    pub fn is_locked_by(&self, lease: u32) -> bool {
        self.lock.load(Ordering::Acquire) == lease || self.inside.load(Ordering::Acquire) == lease
    }

    /// The daemon, when the first session binds the ring: nobody else uses it. Sets both positions and frees the lock.
    pub fn start(&self, hwcur: Pos, hwtail: Pos) {
        self.hwcur.store(hwcur.raw(), Ordering::Relaxed);
        self.hwtail.store(hwtail.raw(), Ordering::Relaxed);
        self.notice.fetch_and(!BY_LOOP, Ordering::Relaxed);
        self.looping.store(0, Ordering::Relaxed);
        self.loop_ends.store(0, Ordering::Relaxed);
        self.owner.store(0, Ordering::Relaxed);
        self.inside.store(0, Ordering::Relaxed);
        self.owned.store(0, Ordering::Relaxed);
        self.lock.store(0, Ordering::Release);
    }

    /// From now on, and until somebody binds the ring anew, it is synced by a loop alone.
    pub fn leave_to_loop(&self) {
        self.notice.fetch_or(BY_LOOP, Ordering::Release);
    }

    /// Begins a sync loop for `lease`; `false` when one runs.
    pub fn begin_loop(&self, lease: u32) -> bool {
        self.looping.compare_exchange(0, lease, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether the loop of `lease` is to go on: nobody asked it to end, and the ring is its session's still.
    #[inline]
    pub fn loop_goes_on(&self, lease: u32) -> bool {
        self.loop_ends.load(Ordering::Acquire) == 0 && self.looping.load(Ordering::Relaxed) == lease
    }

    /// The loop of `lease` is over.
    pub fn end_loop(&self, lease: u32) {
        if self.looping.load(Ordering::Relaxed) == lease {
            self.loop_ends.store(0, Ordering::Relaxed);
            self.looping.store(0, Ordering::Release);
        }
    }

    /// Asks the loop to end; one that begins later will end at once.
    pub fn ask_loop_to_end(&self) {
        self.loop_ends.store(1, Ordering::Release);
    }

    /// Whether a loop runs.
    pub fn has_loop(&self) -> bool {
        self.looping.load(Ordering::Acquire) != 0
    }

    /// Where the last sync left the ring: `(hwcur, hwtail)`; `None` when somebody wrote nonsense.
    #[inline(always)]
    pub fn positions(&self, slots: Slots) -> Option<(Pos, Pos)> {
        Some((slots.pos(self.hwcur.load(Ordering::Relaxed))?, slots.pos(self.hwtail.load(Ordering::Relaxed))?))
    }

    /// Whether the last sync followed `head` up to the position `raw`: a glance.
    #[inline(always)]
    pub fn hwcur_is(&self, raw: u32) -> bool {
        self.hwcur.load(Ordering::Relaxed) == raw
    }

    /// Whether the program was given the tail `raw`.
    #[inline(always)]
    pub fn hwtail_is(&self, raw: u32) -> bool {
        self.hwtail.load(Ordering::Relaxed) == raw
    }

    /// Records that the program's `head` was followed up to `p`. Only with the lock.
    #[inline(always)]
    pub fn set_hwcur(&self, p: Pos) {
        self.hwcur.store(p.raw(), Ordering::Relaxed);
    }

    /// Records the tail that the program is given. Only with the lock.
    #[inline(always)]
    pub fn set_hwtail(&self, p: Pos) {
        self.hwtail.store(p.raw(), Ordering::Relaxed);
    }

    /// Counts one sync that moved `n` slots. Only with the lock.
    #[inline(always)]
    pub fn count(&self, n: u32) {
        // Plain loads and stores: the lock makes this the only writer, and a hostile one spoils only its own figures.
        self.slots.store(self.slots.load(Ordering::Relaxed).wrapping_add(u64::from(n)), Ordering::Relaxed);
        self.batches.store(self.batches.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

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

    /// What there is to say, in one load for each sync: 0 as long as the port lives, syncs are its users' own, and nobody
    /// ever watched the ring.
    #[inline(always)]
    pub fn notice(&self) -> u32 {
        self.notice.load(Ordering::Relaxed)
    }

    /// With the lock: whether that is still so. What the daemon says later it says before it finds the lock free.
    pub fn still_says(&self, notice: u32) -> bool {
        fence(Ordering::SeqCst);
        self.notice() & !BY_LOOP == notice
    }

    /// The daemon: whether nobody is syncing the ring who has not seen what it said before this call.
    pub fn has_been_heard(&self) -> bool {
        // An owner goes inside without the lock only where it has seen nothing said, and then does what was done before.
        fence(Ordering::SeqCst);
        self.lock.load(Ordering::Acquire) == 0
    }

    /// Whether its users' syncs are to fail: it has ended, or is left to a loop.
    #[inline(always)]
    pub fn is_closed(&self) -> bool {
        self.notice() & (ENDED | BY_LOOP) != 0
    }

    /// The daemon: tells the ring's users that the port has ended.
    pub fn end(&self) {
        self.notice.fetch_or(ENDED, Ordering::Release);
    }

    /// The daemon: tells the ring's users that others watch it from now on.
    pub fn watchers_changed(&self) {
        self.notice.fetch_add(WATCHERS, Ordering::Release);
    }

    /// How many sessions share the ring.
    pub fn sharers(&self) -> u32 {
        self.sharers.load(Ordering::Relaxed)
    }

    /// The daemon: tells the ring's users how many they are.
    pub fn set_sharers(&self, n: u32) {
        self.sharers.store(n, Ordering::Relaxed);
    }
}

/// Spin hints in which an owner has left, unless it has lost its processor: some 50 us.
#[cfg(not(loom))]
const LEAVING: u32 = 1500;

#[cfg(not(loom))]
fn wait_until(left: impl Fn() -> bool) {
    (0..LEAVING).take_while(|_| !left()).for_each(|_| unetmap_sys::clock::spin_hint());
}

/// The model checker's owner may always have lost its processor.
#[cfg(loom)]
fn wait_until(_: impl Fn() -> bool) {}

impl Drop for SyncGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// The states of all rings of one port end: transmit rings first, then receive rings.
#[derive(Clone)]
pub struct EndPage {
    window: Window,
}

impl EndPage {
    /// A view of a mapping that holds `window.len() / 128` states.
    pub fn new(window: Window) -> EndPage {
        EndPage { window }
    }

    /// Bytes to map for `rings` rings.
    pub fn bytes(rings: usize) -> usize {
        (rings * STATE_BYTES).next_multiple_of(4096)
    }

    /// The state of ring `index`, or `None` when the page has no such ring.
    #[inline(always)]
    pub fn state(&self, index: usize) -> Option<&RingState> {
        let offset = index.checked_mul(STATE_BYTES)?;
        // SAFETY: RingState is made of atomics only.
        let ptr = unsafe { self.window.at::<RingState>(offset) }?;
        // SAFETY: in bounds and aligned (`at`), mapped while `self` lives (M2), atomics only (M1).
        Some(unsafe { &*ptr })
    }

    /// The same for many uses.
    pub fn joined(&self, index: usize) -> Option<JoinedState> {
        // SAFETY: RingState is made of atomics only.
        Some(JoinedState(unsafe { self.window.found(index.checked_mul(STATE_BYTES)?) }?))
    }
}

/// The state of one ring, found once.
#[derive(Clone)]
pub struct JoinedState(Found<RingState>);

impl std::ops::Deref for JoinedState {
    type Target = RingState;

    #[inline(always)]
    fn deref(&self) -> &RingState {
        &self.0
    }
}
