// SPDX-License-Identifier: BSD-2-Clause
//! `txsync` and `rxsync` of one ring: between netmap's `head`, `cur` and `tail`, and a back end.
//!
//! ```text
//! hwcur ...... head ...... cur ...... hwtail        in ring order; any of them may be equal
//!   |            |           |           |
//!   |            |           |           the tail set by the last sync
//!   |            |           the wake-up point of the program
//!   |            [head, tail) is the program's
//!   the head that the last sync processed: [hwcur, head) is new
//! ```
//! The same rule holds in both directions. A sync loads the program's pointers once, validates the copy, and uses only
//! the copy.

use std::num::NonZeroI64;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use unetmap_abi::{NR_FORWARD, NR_TIMESTAMP, NS_BUF_CHANGED};
use unetmap_mem::{
    BufIdx, MirrorSet, OWNED_BY_SYNC_LOOP, PORT_REMOVED, Pos, RingView, Slots, Span, SyncState, SyncStateRef,
};
use unetmap_sys::{clock, process};

use crate::backend::{RingBackend, Rx, Tx};

/// Why a sync did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncError {
    /// The program's pointers are out of bounds; the ring was reset.
    BadPointers,
    /// The port has ended while in use.
    Ended,
    /// Only the sync loop may sync the ring.
    OwnedBySyncLoop,
    /// The port is a monitor, which cannot send.
    ReadOnly,
    /// The list of the ring's monitors is out of date; the caller renews it and tries again.
    MonitorsChanged,
}

/// Which packets that a program releases are forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ForwardPolicy {
    /// None: there is no ring to forward to.
    #[default]
    Never,
    /// Packets with `NS_FORWARD`, if the ring has `NR_FORWARD`.
    Marked,
    /// All.
    All,
}

/// Called by a sync with the slots that the program released, before they return to the peer.
pub(crate) type OnRelease<'a> = &'a dyn Fn(Span);

/// How much work a sync does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// An ioctl: always calls the back end.
    Full,
    /// A poll: calls it only if the program has nothing beyond its wake-up point.
    IfNeeded,
}

/// Where a sync gets the program's pointers from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PointerSource {
    /// From the ring.
    Ring,
    /// A `head` and `cur` in control blocks. The ring's own are not read, and its tail is not written.
    ControlBlocks(u32, u32),
    /// They are those of the last sync: nothing is released.
    LastSync,
}

/// A time of the wall clock: microseconds since 1970, in one word, so that an `Option` of it is passed in a register.
/// In memory it would be copied by a load wider than the stores that wrote it; such a load waits until the CPU has
/// completed every earlier store, including that of a position whose cache line the peer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WallTime(NonZeroI64);

const _: () = assert!(size_of::<Option<WallTime>>() == size_of::<u64>());

impl WallTime {
    /// Returns the current time.
    #[inline]
    pub(crate) fn now() -> WallTime {
        let (sec, usec) = clock::wall_us();
        // Zero, which is not representable, was the start of 1970.
        WallTime(NonZeroI64::new(sec * 1_000_000 + usec).unwrap_or(NonZeroI64::MIN))
    }

    /// Returns seconds since 1970, and microseconds, as in a `struct timeval`.
    #[inline(always)]
    pub(crate) fn parts(self) -> (i64, i64) {
        (self.0.get().div_euclid(1_000_000), self.0.get().rem_euclid(1_000_000))
    }
}

/// The program's pointers, validated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProgramPointers {
    pub(crate) head: Pos,
    pub(crate) cur: Pos,
}

/// Validates the program's pointers: `hwcur <= head <= hwtail` and `head <= cur <= hwtail` in ring order.
#[inline(always)]
pub(crate) fn validate(slots: Slots, hwcur: Pos, hwtail: Pos, head: u32, cur: u32) -> Option<ProgramPointers> {
    let pointers = ProgramPointers { head: slots.pos(head)?, cur: slots.pos(cur)? };
    let valid = slots.between(hwcur, pointers.head, hwtail)
        && (pointers.cur == pointers.head || slots.between(pointers.head, pointers.cur, hwtail));
    valid.then_some(pointers)
}

/// A ring and everything that a sync of it needs.
pub(crate) struct SyncRing {
    pub(crate) view: RingView,
    /// The ring's state in the endpoint state page.
    pub(crate) state: SyncStateRef,
    pub(crate) backend: RingBackend,
    /// The peer's last invalid position: it is not checked again until the peer writes another one.
    pub(crate) invalid_index: AtomicU32,
    /// The mirror rings of the ring's monitors.
    pub(crate) mirrors: MirrorSet,
    /// Of a receive ring: which released packets are forwarded to another ring.
    pub(crate) forward_policy: ForwardPolicy,
    /// The threads that took the lock.
    pub(crate) lock_history: LockHistory,
    /// Whether the ring gets a timestamp only if the program requests it.
    pub(crate) timestamp_on_request: bool,
}

/// The thread of this process that took the lock of a ring last, and how often in a row. Written under the lock.
#[derive(Default)]
pub(crate) struct LockHistory {
    thread: AtomicU64,
    in_a_row: AtomicU32,
}

/// Not a position of any ring.
pub(crate) const NO_INDEX: u32 = u32::MAX;

impl SyncRing {
    /// Returns the sync state.
    #[inline(always)]
    pub(crate) fn state(&self) -> &SyncState {
        &self.state
    }

    /// Whether slots that the program releases may be forwarded to another ring.
    #[inline(always)]
    pub(crate) fn forwards(&self) -> bool {
        match self.forward_policy {
            ForwardPolicy::Never => false,
            ForwardPolicy::Marked => self.view.flags() & NR_FORWARD != 0,
            ForwardPolicy::All => true,
        }
    }

    /// Whether `cur != tail`: the program has something beyond its wake-up point.
    #[inline(always)]
    pub(crate) fn ready(&self) -> bool {
        self.view.raw_cur() != self.view.raw_tail()
    }

    /// Whether the peer's position has changed since the last sync. One load, for polling.
    #[inline(always)]
    pub(crate) fn peer_moved(&self) -> bool {
        let slots = self.view.shape().slots;
        let Some((_, hwtail)) = self.state().positions(slots) else { return true };
        self.backend.peer_moved(slots, hwtail).is_some()
    }

    /// Whether a poll has a reason to sync the ring: the program moved `head`, or set `cur` out of bounds, or has
    /// nothing beyond its wake-up point while the peer moved. `wanted`: the poll waits for this ring. Takes no lock, so
    /// that a polling thread does not delay a working one.
    #[inline(always)]
    pub(crate) fn needs_sync(&self, wanted: bool) -> bool {
        let slots = self.view.shape().slots;
        let state = self.state();
        let Some((hwcur, hwtail)) = state.positions(slots) else { return true };
        // The daemon waits for the first sync, also if nothing is there.
        let is_first = matches!(self.backend, RingBackend::Rx(_)) && !state.was_synced();
        if is_first || state.is_closed() || hwcur.raw() != self.view.raw_head() {
            return true;
        }
        if matches!(&self.backend, RingBackend::Tx(tx) if tx.has_unsent()) {
            return true;
        }
        // A program that overwrote tail, or moved cur beyond it, is corrected by the next sync.
        if !wanted {
            return false;
        }
        if self.view.raw_cur() != hwtail.raw() && self.ready() {
            // The program has slots and needs no sync, unless one would report its pointers as invalid.
            return validate(slots, hwcur, hwtail, self.view.raw_head(), self.view.raw_cur()).is_none();
        }
        let is_read_only = matches!(self.backend, RingBackend::ReadOnly);
        is_read_only
            || self.backend.peer_moved(slots, hwtail).is_some_and(|raw| raw != self.invalid_index.load(Relaxed))
    }

    /// Returns the addresses and lengths of the data in the program's memory that slots of the next sync refer to.
    pub(crate) fn indirect_data(&self) -> Vec<(u64, u16)> {
        let (slots, positions) = (self.view.shape().slots, self.state().positions(self.view.shape().slots));
        let (RingBackend::Tx(tx), Some((hwcur, hwtail))) = (&self.backend, positions) else { return Vec::new() };
        let program = validate(slots, hwcur, hwtail, self.view.raw_head(), self.view.raw_cur());
        program.map_or_else(Vec::new, |program| tx.indirect_data(Span { from: hwcur, to: program.head }))
    }

    /// Counts an invalid position of the peer, which is ignored and not checked again until it changes.
    #[cold]
    fn ignore_index(&self, state: &SyncState, moved: Option<u32>) {
        state.count_bad_pointer();
        self.invalid_index.store(moved.unwrap_or(NO_INDEX), Relaxed);
    }

    /// Returns what prevents a normal sync, according to the status word that the daemon set.
    #[cold]
    fn check_status(&self, status: u32, by_loop: bool) -> Option<SyncError> {
        if status & PORT_REMOVED != 0 {
            let packets_left = self.backend.rx().is_some_and(|rx| rx.has_packets_left(self.ready()));
            return (!packets_left).then_some(SyncError::Ended);
        }
        if status & OWNED_BY_SYNC_LOOP != 0 && !by_loop {
            return Some(SyncError::OwnedBySyncLoop);
        }
        (!self.mirrors.is_current(status & !OWNED_BY_SYNC_LOOP)).then_some(SyncError::MonitorsChanged)
    }

    /// Syncs the ring for the process with the holder ID `holder`. Skips a ring that another thread or process is
    /// syncing. `now` is the time if the caller knows it; otherwise the clock is read when packets were delivered.
    #[inline]
    pub(crate) fn sync(&self, holder: u32, effort: Effort, now: Option<WallTime>) -> Result<(), SyncError> {
        self.sync_by(holder, effort, now, PointerSource::Ring, None)
    }

    /// Syncs the ring as [`SyncRing::sync`] does, and passes released slots to `on_release` before they return to the
    /// peer.
    pub(crate) fn sync_with_hook(
        &self,
        holder: u32,
        effort: Effort,
        now: Option<WallTime>,
        on_release: OnRelease<'_>,
    ) -> Result<(), SyncError> {
        self.sync_by(holder, effort, now, PointerSource::Ring, Some(on_release))
    }

    /// Syncs the ring by `pointers`, a `head` and `cur` in control blocks, for the sync loop. Does not read the ring's
    /// own pointers and does not write its tail.
    pub(crate) fn sync_by_csb(&self, holder: u32, pointers: (u32, u32)) -> Result<(), SyncError> {
        self.sync_by(holder, Effort::Full, None, PointerSource::ControlBlocks(pointers.0, pointers.1), None)
    }

    /// Shows the program what its peer did, for a process that shares the ring with the program. Releases and sends
    /// nothing, and does not read the program's pointers, one of which it may just have written.
    pub(crate) fn advance_tail(&self, holder: u32) -> Result<(), SyncError> {
        self.sync_by(holder, Effort::Full, None, PointerSource::LastSync, None)
    }

    /// Whether the program moved `head` since the last sync.
    pub(crate) fn has_released(&self) -> bool {
        let positions = self.state().positions(self.view.shape().slots);
        positions.is_none_or(|(hwcur, _)| hwcur.raw() != self.view.raw_head())
    }

    #[inline(always)]
    fn sync_by(
        &self,
        holder: u32,
        effort: Effort,
        now: Option<WallTime>,
        source: PointerSource,
        on_release: Option<OnRelease<'_>>,
    ) -> Result<(), SyncError> {
        let state = self.state();
        let status = state.status();
        if status != 0
            && let Some(error) = self.check_status(status, matches!(source, PointerSource::ControlBlocks(..)))
        {
            return Err(error);
        }
        let guard = match status {
            0 => self.begin_sync(state, holder),
            // The daemon waits for the lock after it changed the status, not for a biased thread.
            _ => state.try_lock(holder, process::this_thread()),
        };
        let Some(_guard) = guard else { return Ok(()) };
        let status = status & !OWNED_BY_SYNC_LOOP;
        // If a zero-copy monitor has closed, its buffers will soon belong to other ports: the list must be renewed
        // first.
        if status != 0 && self.mirrors.any_zero_copy() && !state.is_status_current(status) {
            return Err(SyncError::MonitorsChanged);
        }
        let slots = self.view.shape().slots;
        let Some((hwcur, hwtail)) = state.positions(slots) else {
            state.count_bad_pointer();
            return Err(SyncError::BadPointers);
        };
        let (head, cur) = match source {
            PointerSource::Ring => (self.view.raw_head(), self.view.raw_cur()),
            PointerSource::ControlBlocks(head, cur) => (head, cur),
            PointerSource::LastSync => (hwcur.raw(), hwcur.raw()),
        };
        let Some(program) = validate(slots, hwcur, hwtail, head, cur) else {
            state.count_bad_pointer();
            self.reinit(hwcur, hwtail);
            return Err(SyncError::BadPointers);
        };
        if let Some(on_release) = on_release.filter(|_| program.head != hwcur) {
            on_release(Span { from: hwcur, to: program.head });
        }
        let tail = match &self.backend {
            RingBackend::PipeTx(tx) => self.tx(tx.as_ref(), state, program, (hwcur, hwtail), effort, status != 0),
            RingBackend::PipeRx(rx) => {
                self.rx(rx.as_ref(), state, program, (hwcur, hwtail), (effort, now), status != 0)
            }
            RingBackend::Tx(tx) => self.tx(tx.as_ref(), state, program, (hwcur, hwtail), effort, status != 0),
            RingBackend::Rx(rx) => {
                state.record_sync();
                self.rx(rx.as_ref(), state, program, (hwcur, hwtail), (effort, now), status != 0)
            }
            RingBackend::ReadOnly => return Err(SyncError::ReadOnly),
        };
        if status != 0 && tail != hwtail && self.mirrors.any_copy() && self.backend.rx().is_some() {
            // Before the program can release the slots.
            self.mirrors.copy(
                self.view.region(),
                (self.view.slots(), self.view.offsets()),
                Span { from: hwtail, to: tail },
            );
        }
        if tail != hwtail {
            state.set_hwtail(tail);
            // The peer's position is valid again; the one that was invalid may become valid, too.
            if self.invalid_index.load(Relaxed) != NO_INDEX {
                self.invalid_index.store(NO_INDEX, Relaxed);
            }
        }
        // Restores a tail that the program overwrote.
        if !matches!(source, PointerSource::ControlBlocks(..)) && self.view.raw_tail() != tail.raw() {
            self.view.set_tail(tail);
        }
        Ok(())
    }

    #[inline(always)]
    fn tx(
        &self,
        tx: &(impl Tx + ?Sized),
        state: &SyncState,
        program: ProgramPointers,
        (hwcur, hwtail): (Pos, Pos),
        effort: Effort,
        monitored: bool,
    ) -> Pos {
        let slots = self.view.shape().slots;
        let head = if program.head == hwcur { hwcur } else { tx.sendable(Span { from: hwcur, to: program.head }) };
        if head != hwcur {
            if monitored && self.mirrors.any_zero_copy() {
                // NS_BUF_CHANGED set by the program was for this sync.
                self.clear_buf_changed(Span { from: hwcur, to: head });
            }
            if monitored && self.mirrors.any_copy() {
                self.mirrors.copy(
                    self.view.region(),
                    (self.view.slots(), self.view.offsets()),
                    Span { from: hwcur, to: head },
                );
            }
            let bad = tx.send(Span { from: hwcur, to: head });
            state.set_hwcur(head);
            if bad > 0 {
                state.count_bad_slots(bad);
            }
            let sent = slots.distance(hwcur, head);
            state.count_batch(sent);
            self.prefetch_free_slots(sent, Span { from: head, to: hwtail });
        }
        if effort == Effort::IfNeeded && program.cur != hwtail && !tx.has_unsent() {
            return hwtail;
        }
        // tail is one before the first unfinished slot, so that a full ring and an empty one differ.
        match tx.completed(slots.next(hwtail), head) {
            Ok(finished) => {
                if monitored && self.mirrors.any_zero_copy() {
                    let sent = Span { from: slots.next(hwtail), to: finished };
                    self.mirrors.exchange((self.view.slots(), self.view.offsets()), sent);
                }
                slots.prev(finished)
            }
            Err(_) => {
                self.ignore_index(state, tx.peer_moved(slots.next(hwtail)));
                hwtail
            }
        }
    }

    #[inline(always)]
    fn rx(
        &self,
        rx: &(impl Rx + ?Sized),
        state: &SyncState,
        program: ProgramPointers,
        (hwcur, hwtail): (Pos, Pos),
        (effort, now): (Effort, Option<WallTime>),
        monitored: bool,
    ) -> Pos {
        if program.head != hwcur {
            // A process that is killed between the two steps leaves hwcur behind. The next sync releases the span
            // again, which changes nothing, because the first release cleared the marks of exchanged buffers.
            if monitored && self.mirrors.any_zero_copy() {
                let released = Span { from: hwcur, to: program.head };
                self.mirrors.exchange((self.view.slots(), self.view.offsets()), released);
            }
            let bad = rx.release(Span { from: hwcur, to: program.head });
            state.set_hwcur(program.head);
            if bad > 0 {
                state.count_bad_slots(bad);
            }
        }
        if effort == Effort::IfNeeded && program.cur != hwtail {
            return hwtail;
        }
        match rx.deliver(program.head, hwtail) {
            Ok(delivered) if delivered.to != hwtail => {
                state.count_batch(self.view.shape().slots.distance(hwtail, delivered.to));
                state.count_bytes(delivered.bytes);
                if delivered.bad > 0 {
                    state.count_bad_slots(delivered.bad);
                }
                self.write_timestamp(now);
                delivered.to
            }
            Ok(_) => {
                // A poll that finds nothing leaves the timestamp; an ioctl updates it, as the program may use it.
                if effort == Effort::Full {
                    self.write_timestamp(now);
                }
                hwtail
            }
            Err(_) => {
                self.ignore_index(state, rx.peer_moved(hwtail));
                hwtail
            }
        }
    }

    /// Writes the time of a receive sync into the ring.
    #[inline(always)]
    fn write_timestamp(&self, now: Option<WallTime>) {
        if !self.timestamp_on_request || self.view.flags() & NR_TIMESTAMP != 0 {
            self.view.set_time(now.unwrap_or_else(WallTime::now).parts());
        }
    }

    /// Clears `NS_BUF_CHANGED` in the slots of `span`.
    #[cold]
    fn clear_buf_changed(&self, span: Span) {
        let ring = self.view.slots();
        for p in ring.slots().walk(span) {
            let flags = ring.flags(p);
            if flags & NS_BUF_CHANGED != 0 {
                ring.set_flags(p, flags & !NS_BUF_CHANGED);
            }
        }
    }

    /// Resets a ring to its state after the last sync, as netmap does: pointers, and slots whose buffer index or length
    /// is invalid.
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

pub(crate) mod fast;
// Below the tests; the fuzz targets need them without the rest.
#[cfg(any(test, fuzzing))]
#[path = "tests/steps.rs"]
pub mod steps;
#[cfg(any(test, fuzzing))]
#[path = "tests/test_pipe.rs"]
mod test_pipe;
#[cfg(test)]
mod tests;
