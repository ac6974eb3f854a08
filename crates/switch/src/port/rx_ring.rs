//! A receive ring of a port's, as it is filled: with runs of packets, with lists of them, or one by one.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{
    ADDRESSES, BufIdx, CopyKind, Frame, LinePage, Pos, Producer, Region, Run, Side, SlotHead, Slots, Span, copy_packet,
    copy_run, copy_some, swap_one, swap_run,
};
use unetmap_sys::Doorbell;
use unetmap_sys::thread::current_cpu;

use crate::forward::Packet;
use crate::worker::backpressure::Patience;
use super::Given;
use super::prefault::Ahead;
use super::batch::Served;
use super::offsets::Begin;
use unetmap_core::sync::mirror::Watchers;

/// Slots ahead of which the buffers of packets that are copied one by one are fetched.
const AHEAD: u32 = 8;

/// A client's receive ring.
pub(in super::super) struct Incoming {
    pub(crate) line: Producer,
    spare: BufIdx,
    /// Wakes the client that waits for packets.
    pub(crate) client: Arc<Doorbell>,
    state: Mutex<Filled>,
    /// Packets that there was no room for.
    pub(crate) dropped: AtomicU64,
    /// Packets that came with their buffers.
    pub(crate) swapped: AtomicU64,
    pub(crate) begin: Begin,
    copy: CopyKind,
    pub(crate) watchers: Watchers,
}

/// Has memory made for buffers that will be filled soon.
#[inline(always)]
fn prepare(region: &Region, ahead: Option<(BufIdx, u32)>, patience: &Patience) {
    if let Some((first, n)) = ahead {
        // It takes time, so whoever waits on this processor does not wait for that.
        patience.pay();
        region.prepare(first, n);
    }
}

/// How far a receive ring was filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filled {
    pub(crate) prod: Pos,
    /// Up to where the client had given slots back at the last look.
    pub(crate) cons: Pos,
    /// How often the client had a chance to read since it last did.
    pub(crate) chances: u32,
    /// The batch in which it had the last one.
    pub(crate) batch: u32,
    /// At the last look that followed no wait, it had read most of what it got.
    pub(crate) keeps_up: bool,
    ahead: Ahead,
}

impl Filled {
    #[inline(always)]
    pub(crate) fn room(self, n: Slots) -> u32 {
        n.get() - 1 - n.distance(self.cons, self.prod)
    }
}

impl Incoming {
    pub(crate) fn new(lines: &LinePage, given: Given<'_>, buf_size: u32) -> io::Result<Incoming> {
        let line = Producer::new(lines, given.line, given.view.slots().clone()).ok_or(io::ErrorKind::InvalidInput)?;
        let (ahead, keeps_up) = (Ahead::new(line.slots().slots(), buf_size), true);
        let state = Mutex::new(Filled { prod: Pos::ZERO, cons: Pos::ZERO, chances: 0, batch: 0, keeps_up, ahead });
        Ok(Incoming {
            line,
            spare: given.spare,
            client: Arc::new(given.bell),
            state,
            dropped: AtomicU64::new(0),
            swapped: AtomicU64::new(0),
            begin: Begin::default(),
            copy: CopyKind::best(),
            watchers: Watchers::default(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Filled> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over a run of packets of a batch, from slot `at` on; how many, and whether it ended for want of room.
    #[inline]
    pub(crate) fn run(
        &self,
        mine: &Region,
        &Served { port, ref batch, patience, .. }: &Served<'_>,
        addresses: [u8; ADDRESSES],
        at: u32,
    ) -> (u32, bool) {
        let theirs = &port.region;
        let n = self.line.slots().slots();
        let (source, target) =
            (Side { slots: batch.slots, region: theirs }, Side { slots: self.line.slots(), region: mine });
        let mut state = self.lock();
        let mut filled = *state;
        let (mut done, mut full, swap) = (0, false, mine.same(theirs));
        while at + done < batch.len {
            if filled.room(n) == 0 {
                self.look(&mut filled);
                full = filled.room(n) == 0;
                if full {
                    break;
                }
            }
            let most = filled.room(n).min(batch.len - at - done);
            let from = batch.at(at + done);
            // Up to the end of a ring in one go.
            let whole = most.min(n.get() - filled.prod.raw()).min(batch.slots.slots().get() - from.raw());
            let run = Run { addresses, flags: 1 << 8, most: whole };
            let moved = match swap {
                true => swap_run(batch.line, from, target.slots, filled.prod, mine, run),
                false => copy_run(self.copy, source, from, target, filled.prod, run),
            };
            done += moved;
            filled.prod = n.add(filled.prod, moved);
            if moved < whole {
                break;
            }
        }
        if swap && done > 0 {
            self.swapped.fetch_add(done.into(), Relaxed);
        }
        let ahead = self.publish(mine, &mut state, filled, patience);
        drop(state);
        prepare(mine, ahead, patience);
        (done, full)
    }

    /// Takes over copies of packets of one slot each, as far as there is room; how many.
    #[inline]
    pub(crate) fn fill_some(&self, mine: &Region, served: &Served<'_>, packets: &[SlotHead]) -> usize {
        let (theirs, patience) = (&served.port.region, served.patience);
        let (ring, n) = (self.line.slots(), self.line.slots().slots());
        let target = Side { slots: ring, region: mine };
        let mut state = self.lock();
        let (mut filled, mut done) = (*state, 0);
        while let [next, ..] = &packets[done..] {
            let left = packets.len() - done;
            if (filled.room(n) as usize) < left {
                self.look(&mut filled);
                if filled.room(n) == 0 {
                    break;
                }
            }
            // Up to the end of the ring in one go.
            let whole = left.min(filled.room(n).min(n.get() - filled.prod.raw()) as usize);
            let mut moved = copy_some(self.copy, theirs, &packets[done..done + whole], target, filled.prod, 1 << 8);
            if moved == 0 {
                let (to, from) = (self.buffer(mine, filled.prod), theirs.frame(next.buf_idx()));
                let len = copy_packet(self.copy, &to, &from, usize::from(next.len()));
                ring.set_len_flags(filled.prod, len as u16, 1 << 8);
                moved = 1;
            }
            filled.prod = n.add(filled.prod, moved);
            done += moved as usize;
        }
        let ahead = self.publish(mine, &mut state, filled, patience);
        drop(state);
        prepare(mine, ahead, patience);
        done
    }

    /// Takes over packet after packet, with `swap` without copying them; returns the first that there is no room for.
    #[inline]
    pub(crate) fn fill(
        &self,
        mine: &Region,
        (&Served { port, ref batch, patience, .. }, swap): (&Served<'_>, bool),
        first: Packet,
        packets: &mut impl Iterator<Item = Packet>,
    ) -> Option<Packet> {
        let theirs = &port.region;
        let (ring, n) = (self.line.slots(), self.line.slots().slots());
        let narrow = mine.limits().buf_size < theirs.limits().buf_size || self.begin.get().mask != 0;
        let mut state = self.lock();
        let mut filled = *state;
        let (mut next, mut swapped) = (Some(first), 0);
        while let Some(packet) = next {
            if filled.room(n) < u32::from(packet.frags) {
                self.look(&mut filled);
                if filled.room(n) < u32::from(packet.frags) {
                    break;
                }
            }
            next = packets.next();
            if !swap {
                // Written soon, unless there is no room; then it was asked for in vain.
                mine.fetch_to_write(ring.buf_idx(n.add(filled.prod, AHEAD.min(n.get()))));
            }
            if narrow && !self.fits(mine, batch, packet, filled.prod) {
                self.dropped.fetch_add(1, Relaxed);
                continue;
            }
            let mut copied = false;
            for i in 0..packet.frags {
                let from = batch.at(u32::from(packet.at + i));
                let more = if i + 1 == packet.frags { 0 } else { NS_MOREFRAG };
                let flags = packet.frags << 8 | more;
                if !swap || !swap_one(batch.line, from, ring, filled.prod, flags) {
                    let slot = batch.slots.load(from);
                    let to = self.buffer(mine, filled.prod);
                    let len = copy_packet(self.copy, &to, &batch.frame(theirs, slot), usize::from(slot.len));
                    ring.set_len_flags(filled.prod, len as u16, flags);
                    copied = true;
                }
                filled.prod = n.next(filled.prod);
            }
            swapped += u64::from(!copied);
        }
        if swapped > 0 {
            self.swapped.fetch_add(swapped, Relaxed);
        }
        let ahead = self.publish(mine, &mut state, filled, patience);
        drop(state);
        prepare(mine, ahead, patience);
        next
    }

    /// Ends a delivery: what was filled is the client's, which is woken if it sleeps, or later if that is soon enough; it
    /// lies in the buffers of `mine`. Returns which buffers, and how many, are to be [prepared](prepare) when the ring is
    /// others' again.
    #[inline(always)]
    pub(crate) fn publish(
        &self,
        mine: &Region,
        state: &mut Filled,
        filled: Filled,
        patience: &Patience,
    ) -> Option<(BufIdx, u32)> {
        let moved = filled.prod != state.prod;
        if moved && self.watchers.any() {
            let ring = (self.line.slots(), self.begin.get());
            self.watchers.show(mine, ring, Span { from: state.prod, to: filled.prod });
        }
        let before = state.prod;
        *state = filled;
        if moved {
            let cpu = current_cpu();
            self.line.words().producer_is_on(cpu);
            self.line.words().publish(filled.prod);
            self.wake(cpu, filled, patience);
            if filled.ahead.any() {
                return state.ahead.next(self.line.slots(), Span { from: before, to: filled.prod });
            }
        }
        None
    }

    /// The thread is about to sleep, and may be woken on any processor: the client's, perhaps.
    pub(in super::super) fn sleeps(&self) {
        self.line.words().producer_is_anywhere();
    }

    /// The buffer in slot `p`, as the client left it there, from where the packet is to begin.
    #[inline(always)]
    pub(crate) fn buffer<'a>(&self, region: &'a Region, p: Pos) -> Frame<'a> {
        let mut idx = self.line.slots().buf_idx(p);
        if !region.limits().index_ok(idx) {
            self.line.slots().set_buf_idx(p, self.spare);
            idx = self.spare;
        }
        self.begin.get().within(region.frame(idx), || self.line.slots().ptr(p))
    }

    /// Where the client is now. A word that cannot be leaves everything as it is: its ring stays full.
    pub(crate) fn look(&self, filled: &mut Filled) {
        if let Some(cons) = self.line.words().released(self.line.slots().slots(), filled.cons, filled.prod) {
            if cons != filled.cons {
                filled.chances = 0;
            }
            filled.cons = cons;
            let n = self.line.slots().slots();
            filled.keeps_up = filled.room(n) >= n.get() / 4;
        }
    }
}
