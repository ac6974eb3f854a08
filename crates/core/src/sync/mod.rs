//! `txsync` and `rxsync` of one ring: between netmap's `head`, `cur` and `tail`, and a back end.
//!
//! ```text
//! hwcur ...... head ...... cur ...... hwtail        in ring order, all inclusive
//!   |            |           |           |
//!   |            |           |           the tail that the last sync gave
//!   |            |           where the program wants to be woken
//!   |            [head, tail) is the program's
//!   up to where the last sync has followed head: [hwcur, head) is new
//! ```
//! The same rule holds in both directions. What the program wrote is loaded once, judged, and only the copy is used.

use std::num::NonZeroI64;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use unetmap_abi::{NR_TIMESTAMP, NS_BUF_CHANGED};
use unetmap_mem::{BY_LOOP, BufIdx, ENDED, JoinedState, Pos, RingState, RingView, Slots, Span};
use unetmap_sys::{clock, process};

use crate::backend::pipe::{PipeRx, PipeTx};
use crate::backend::{Rx, Tx};
use crate::port::forward::{Onward, Pass};
use crate::sync::mirror::Watchers;

/// Why a sync did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The program's pointers are out of bounds; the ring was set back.
    BadPointers,
    /// The port has ended under its users.
    Ended,
    /// A loop syncs the ring, and nobody else.
    ByLoop,
    /// Nothing can be sent here: the port is a monitor.
    Mute,
    /// Who watches the ring is to be asked first.
    News,
}

/// How much a sync is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// An ioctl: always asks the back end.
    Full,
    /// A poll: asks only when the program has nothing beyond its wake-up point.
    IfNeeded,
}

/// A time of the wall clock: microseconds since 1970, in one word, so that an `Option` of it is passed in a register. One
/// that lies in memory is copied by a load wider than the stores that wrote it, and such a load waits until the processor
/// has made every earlier store, above all that of a position whose cache line the other party has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WallTime(NonZeroI64);

const _: () = assert!(size_of::<Option<WallTime>>() == size_of::<u64>());

impl WallTime {
    /// Now.
    #[inline]
    pub(crate) fn now() -> WallTime {
        let (sec, usec) = clock::wall_us();
        // The one time that is no other number was 1970.
        WallTime(NonZeroI64::new(sec * 1_000_000 + usec).unwrap_or(NonZeroI64::MIN))
    }

    /// Seconds since 1970, and microseconds: what a `struct timeval` holds.
    #[inline(always)]
    pub(crate) fn parts(self) -> (i64, i64) {
        (self.0.get().div_euclid(1_000_000), self.0.get().rem_euclid(1_000_000))
    }
}

/// The program's pointers, judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    pub(crate) head: Pos,
    pub(crate) cur: Pos,
}

/// Judges pointers as the program wrote them: `hwcur <= head <= hwtail` and `head <= cur <= hwtail` in ring order.
#[inline(always)]
pub(crate) fn judge(slots: Slots, hwcur: Pos, hwtail: Pos, head: u32, cur: u32) -> Option<Asked> {
    let asked = Asked { head: slots.pos(head)?, cur: slots.pos(cur)? };
    let good = slots.between(hwcur, asked.head, hwtail)
        && (asked.cur == asked.head || slots.between(asked.head, asked.cur, hwtail));
    good.then_some(asked)
}

/// Which way a ring's slots go, and by what. Pipes are named, because a call that the compiler can see into costs a
/// small batch half as much.
pub(crate) enum Path {
    PipeTx(Box<PipeTx>),
    PipeRx(Box<PipeRx>),
    Tx(Box<dyn Tx>),
    Rx(Box<dyn Rx>),
    /// A transmit ring on which nothing can be sent.
    Mute,
}

impl Path {
    /// What sends, if anything does.
    #[inline(always)]
    pub(crate) fn tx(&self) -> Option<&dyn Tx> {
        match self {
            Path::PipeTx(tx) => Some(&**tx),
            Path::Tx(tx) => Some(&**tx),
            Path::PipeRx(_) | Path::Rx(_) | Path::Mute => None,
        }
    }

    /// What receives, if anything does.
    #[inline(always)]
    pub(crate) fn rx(&self) -> Option<&dyn Rx> {
        match self {
            Path::PipeRx(rx) => Some(&**rx),
            Path::Rx(rx) => Some(&**rx),
            Path::PipeTx(_) | Path::Tx(_) | Path::Mute => None,
        }
    }

    /// Without the lock, and not judged: where the other party says it is, if that is not where it was when the last sync
    /// gave `hwtail`.
    #[inline(always)]
    fn moved(&self, slots: Slots, hwtail: Pos) -> Option<u32> {
        match self {
            Path::PipeTx(tx) => tx.moved(slots.next(hwtail)),
            Path::PipeRx(rx) => rx.moved(hwtail),
            Path::Tx(tx) => tx.moved(slots.next(hwtail)),
            Path::Rx(rx) => rx.moved(hwtail),
            Path::Mute => None,
        }
    }
}

/// A ring and everything that a sync of it needs.
pub(crate) struct SyncRing {
    pub(crate) view: RingView,
    /// The ring's state in the end page.
    pub(crate) state: JoinedState,
    pub(crate) path: Path,
    /// What the other party wrote when it last wrote nonsense: not worth another look until it writes something else.
    pub(crate) nonsense: AtomicU32,
    /// Who watches the ring.
    pub(crate) watchers: Watchers,
    /// Of a receive ring: which packets go on to another one when they are given back.
    pub(crate) onward: Onward,
    /// Who syncs it.
    pub(crate) habit: quick::Habit,
    /// Whether the ring gets the time only if the program asks for it.
    pub(crate) time_if_asked: bool,
}

/// No position of any ring.
pub(crate) const NO_NONSENSE: u32 = u32::MAX;

impl SyncRing {
    /// The sync state.
    #[inline(always)]
    pub(crate) fn state(&self) -> &RingState {
        &self.state
    }

    /// Whether `cur != tail`: the program has something beyond its wake-up point.
    #[inline(always)]
    pub(crate) fn ready(&self) -> bool {
        self.view.raw_cur() != self.view.raw_tail()
    }

    /// Whether the other party's position is not where the last sync found it: a glance, for who spins.
    #[inline(always)]
    pub(crate) fn stirs(&self) -> bool {
        let slots = self.view.shape().slots;
        let Some((_, hwtail)) = self.state().positions(slots) else { return true };
        self.path.moved(slots, hwtail).is_some()
    }

    /// Whether a poll that waits for this ring, or does not (`wanted`), has a reason to sync it: the program moved `head`,
    /// or set `cur` where it cannot be, or has nothing beyond its wake-up point while the other party moved. Takes no lock, so that who spins does not
    /// disturb who works.
    #[inline(always)]
    pub(crate) fn due(&self, wanted: bool) -> bool {
        let slots = self.view.shape().slots;
        let state = self.state();
        let Some((hwcur, hwtail)) = state.positions(slots) else { return true };
        if state.is_closed() || hwcur.raw() != self.view.raw_head() {
            return true;
        }
        if matches!(&self.path, Path::Tx(tx) if tx.waits()) {
            return true;
        }
        // A program that overwrote tail, or moved cur beyond it, is set right by the sync.
        if !wanted {
            return false;
        }
        if self.view.raw_cur() != hwtail.raw() && self.ready() {
            // What is ready needs no sync, but one that would refuse the pointers is to say so.
            return judge(slots, hwcur, hwtail, self.view.raw_head(), self.view.raw_cur()).is_none();
        }
        let is_mute = matches!(self.path, Path::Mute);
        is_mute || self.path.moved(slots, hwtail).is_some_and(|raw| raw != self.nonsense.load(Relaxed))
    }

    /// The other party's position cannot be. It is ignored, counted, and not looked at again as it is.
    #[cold]
    fn ignore(&self, state: &RingState, moved: Option<u32>) {
        state.count_bad_pointer();
        self.nonsense.store(moved.unwrap_or(NO_NONSENSE), Relaxed);
    }

    /// What keeps the ring from being synced as usual, according to the daemon.
    #[cold]
    fn noticed(&self, notice: u32, by_loop: bool) -> Option<Trouble> {
        if notice & ENDED != 0 {
            let left = self.path.rx().is_some_and(|rx| rx.left(self.ready()));
            return (!left).then_some(Trouble::Ended);
        }
        if notice & BY_LOOP != 0 && !by_loop {
            return Some(Trouble::ByLoop);
        }
        (!self.watchers.follow(notice & !BY_LOOP)).then_some(Trouble::News)
    }

    /// Syncs the ring for the process that holds `lease`. A ring that somebody else is syncing is skipped. `now` is the
    /// time if the caller knows it; else the clock is read when something was delivered.
    #[inline]
    pub(crate) fn sync(&self, lease: u32, effort: Effort, now: Option<WallTime>) -> Result<(), Trouble> {
        self.sync_by(lease, effort, now, None, None)
    }

    /// The same; what is given back goes on by `pass` before.
    pub(crate) fn sync_passing(
        &self,
        lease: u32,
        effort: Effort,
        now: Option<WallTime>,
        pass: Pass<'_>,
    ) -> Result<(), Trouble> {
        self.sync_by(lease, effort, now, None, Some(pass))
    }

    /// The same by `head` and `cur` as they stand elsewhere, for the loop that alone may sync the ring; its own pointers are
    /// not looked at, and its tail stays as it is.
    pub(crate) fn sync_elsewhere(&self, lease: u32, pointers: (u32, u32)) -> Result<(), Trouble> {
        self.sync_by(lease, Effort::Full, None, Some(pointers), None)
    }

    #[inline(always)]
    fn sync_by(
        &self,
        lease: u32,
        effort: Effort,
        now: Option<WallTime>,
        elsewhere: Option<(u32, u32)>,
        pass: Option<Pass<'_>>,
    ) -> Result<(), Trouble> {
        let state = self.state();
        let notice = state.notice();
        if notice != 0
            && let Some(trouble) = self.noticed(notice, elsewhere.is_some())
        {
            return Err(trouble);
        }
        let guard = match notice {
            0 => self.go_inside(state, lease),
            // Who waits for a ring to be left after something was said looks at the lock.
            _ => state.try_lock(lease, process::this_thread()),
        };
        let Some(_guard) = guard else { return Ok(()) };
        let notice = notice & !BY_LOOP;
        // Those who get buffers are to be asked for again if one of them has gone: his are others' soon.
        if notice != 0 && self.watchers.trade_any() && !state.still_says(notice) {
            return Err(Trouble::News);
        }
        let slots = self.view.shape().slots;
        let Some((hwcur, hwtail)) = state.positions(slots) else {
            state.count_bad_pointer();
            return Err(Trouble::BadPointers);
        };
        let (head, cur) = elsewhere.unwrap_or_else(|| (self.view.raw_head(), self.view.raw_cur()));
        let Some(asked) = judge(slots, hwcur, hwtail, head, cur) else {
            state.count_bad_pointer();
            self.reinit(hwcur, hwtail);
            return Err(Trouble::BadPointers);
        };
        if let Some(pass) = pass.filter(|_| asked.head != hwcur) {
            pass(Span { from: hwcur, to: asked.head });
        }
        let tail = match &self.path {
            Path::PipeTx(tx) => self.tx(tx.as_ref(), state, asked, (hwcur, hwtail), effort, notice != 0),
            Path::PipeRx(rx) => self.rx(rx.as_ref(), state, asked, (hwcur, hwtail), (effort, now), notice != 0),
            Path::Tx(tx) => self.tx(tx.as_ref(), state, asked, (hwcur, hwtail), effort, notice != 0),
            Path::Rx(rx) => self.rx(rx.as_ref(), state, asked, (hwcur, hwtail), (effort, now), notice != 0),
            Path::Mute => return Err(Trouble::Mute),
        };
        if notice != 0 && tail != hwtail && self.watchers.any() && self.path.rx().is_some() {
            // Before the program is told of it.
            self.watchers.show(
                self.view.region(),
                (self.view.slots(), self.view.offsets()),
                Span { from: hwtail, to: tail },
            );
        }
        if tail != hwtail {
            state.set_hwtail(tail);
            // The other party makes sense again, and may come to be where it could not be before.
            if self.nonsense.load(Relaxed) != NO_NONSENSE {
                self.nonsense.store(NO_NONSENSE, Relaxed);
            }
        }
        // A program that overwrote tail gets it back.
        if elsewhere.is_none() && self.view.raw_tail() != tail.raw() {
            self.view.set_tail(tail);
        }
        Ok(())
    }

    #[inline(always)]
    fn tx(
        &self,
        tx: &(impl Tx + ?Sized),
        state: &RingState,
        asked: Asked,
        (hwcur, hwtail): (Pos, Pos),
        effort: Effort,
        watched: bool,
    ) -> Pos {
        let slots = self.view.shape().slots;
        if asked.head != hwcur {
            if watched && self.watchers.trade_any() {
                // The program's own word about its buffers was for this sync.
                self.forget_changes(Span { from: hwcur, to: asked.head });
            }
            if watched && self.watchers.any() {
                self.watchers.show(
                    self.view.region(),
                    (self.view.slots(), self.view.offsets()),
                    Span { from: hwcur, to: asked.head },
                );
            }
            let bad = tx.send(Span { from: hwcur, to: asked.head });
            state.set_hwcur(asked.head);
            if bad > 0 {
                state.count_bad_slots(bad);
            }
            state.count(slots.distance(hwcur, asked.head));
        }
        if effort == Effort::IfNeeded && asked.cur != hwtail && !tx.waits() {
            return hwtail;
        }
        // tail is one before the first unfinished slot, so that a full ring and an empty one differ.
        match tx.finished(slots.next(hwtail), asked.head) {
            Ok(finished) => {
                if watched && self.watchers.trade_any() {
                    let sent = Span { from: slots.next(hwtail), to: finished };
                    self.watchers.trade((self.view.slots(), self.view.offsets()), sent);
                }
                slots.prev(finished)
            }
            Err(_) => {
                self.ignore(state, tx.moved(slots.next(hwtail)));
                hwtail
            }
        }
    }

    #[inline(always)]
    fn rx(
        &self,
        rx: &(impl Rx + ?Sized),
        state: &RingState,
        asked: Asked,
        (hwcur, hwtail): (Pos, Pos),
        (effort, now): (Effort, Option<WallTime>),
        watched: bool,
    ) -> Pos {
        if asked.head != hwcur {
            // Who dies between the two steps leaves hwcur behind: its successor releases the window again, which
            // changes nothing, because the marks of exchanged buffers went with the first time.
            if watched && self.watchers.trade_any() {
                let read = Span { from: hwcur, to: asked.head };
                self.watchers.trade((self.view.slots(), self.view.offsets()), read);
            }
            let bad = rx.release(Span { from: hwcur, to: asked.head });
            state.set_hwcur(asked.head);
            if bad > 0 {
                state.count_bad_slots(bad);
            }
        }
        if effort == Effort::IfNeeded && asked.cur != hwtail {
            return hwtail;
        }
        match rx.fill(asked.head, hwtail) {
            Ok(filled) if filled.to != hwtail => {
                state.count(self.view.shape().slots.distance(hwtail, filled.to));
                if filled.bad > 0 {
                    state.count_bad_slots(filled.bad);
                }
                self.stamp(now);
                filled.to
            }
            Ok(_) => {
                // A poll that finds nothing tells the program nothing; who asks by an ioctl may want to know when.
                if effort == Effort::Full {
                    self.stamp(now);
                }
                hwtail
            }
            Err(_) => {
                self.ignore(state, rx.moved(hwtail));
                hwtail
            }
        }
    }

    /// Writes the time of a receive sync into the ring.
    #[inline(always)]
    fn stamp(&self, now: Option<WallTime>) {
        if !self.time_if_asked || self.view.flags() & NR_TIMESTAMP != 0 {
            self.view.set_time(now.unwrap_or_else(WallTime::now).parts());
        }
    }

    /// Clears `NS_BUF_CHANGED` in the slots of `window`.
    #[cold]
    fn forget_changes(&self, window: Span) {
        let ring = self.view.slots();
        for p in ring.slots().walk(window) {
            let flags = ring.flags(p);
            if flags & NS_BUF_CHANGED != 0 {
                ring.set_flags(p, flags & !NS_BUF_CHANGED);
            }
        }
    }

    /// Sets a ring back to where the last sync left it, as netmap does: pointers, and slots that name no buffer or are
    /// too long.
    #[cold]
    fn reinit(&self, hwcur: Pos, hwtail: Pos) {
        let (ring, limits) = (self.view.slots(), self.view.region().limits());
        for raw in 0..ring.slots().get() {
            let Some(p) = ring.slots().pos(raw) else { continue };
            let slot = ring.load(p);
            if !limits.index_ok(slot.buf_idx) {
                ring.set_buf_idx(p, BufIdx(0));
                ring.set_len(p, 0);
            } else if !limits.allow(slot) {
                ring.set_len(p, 0);
            }
        }
        self.view.set_pointers(hwcur, hwtail);
    }
}

pub mod mirror;
mod quick;
#[cfg(test)]
mod tests;
