// SPDX-License-Identifier: BSD-2-Clause
//! Virtqueues, and rings of memif: chains of descriptors that the peer offers, each of which is returned once.
//!
//! ```text
//!   guest:    offers a chain ---> [available) ---> pop ---> (ours) ---> push_used, publish ---> guest
//!                                     ^                        |
//!                                     '-------- rewind --------'   if the packet does not fit yet
//! ```
//! Chains are returned in the order in which they were taken. Descriptors are the guest's: each is loaded once into a
//! [`Descriptor`], and a chain has at most as many as its queue or its indirect table. What is not a chain at all
//! (a loop, an index outside of the queue) is a [`Fault`], which stops the queue until the guest resets it.

mod inflight;
mod memif;
mod packed;
mod split;
#[cfg(test)]
mod tests;

use std::ops::Range;

use unetmap::Frame;
use unetmap::guest::{GuestMemory, GuestWords};

pub(crate) use inflight::part_bytes;
pub(crate) use memif::{Memif, OwnBuffers};
pub(crate) use packed::Packed;
pub(crate) use split::Split;

use crate::tuning::{MAX_CHAIN_BUFFERS, MAX_QUEUE_SIZE};

/// Flags of a descriptor: another one follows; the device writes the buffer; the buffer is a table of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;

/// The ring is broken; why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) &'static str);

/// Why a queue cannot be started, as a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotStarted(pub(crate) &'static str);

impl NotStarted {
    const NO_MEMORY: NotStarted = NotStarted("its addresses are not in guest memory");
    const DAMAGED: NotStarted = NotStarted("its region of in-flight descriptors is damaged");
}

/// A copy of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    /// Split rings: the index of the next one. Packed rings: not here.
    next: u16,
}

/// A buffer of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    addr: u64,
    len: u32,
}

/// A chain that was taken from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    id: u16,
    /// Descriptors in the ring.
    count: u16,
    /// Bytes of its buffers.
    capacity: u64,
}

/// The chains of one packet, and their buffers for one direction in order.
#[derive(Default)]
pub(crate) struct Chains {
    taken: Vec<Taken>,
    segments: Vec<Segment>,
    /// More than [`MAX_CHAIN_BUFFERS`] buffers, or a buffer of the other direction: the packet is dropped.
    unusable: bool,
}

impl Chains {
    pub(crate) fn clear(&mut self) {
        self.taken.clear();
        self.segments.clear();
        self.unusable = false;
    }

    /// The number of buffers, to return to it.
    fn mark(&self) -> (usize, bool) {
        (self.segments.len(), self.unusable)
    }

    /// Removes the buffers since `mark`, of a chain that was not taken.
    fn rewind(&mut self, mark: (usize, bool)) {
        self.segments.truncate(mark.0);
        self.unusable = mark.1;
    }

    /// The number of chains.
    pub(crate) fn count(&self) -> usize {
        self.taken.len()
    }

    /// Bytes of all buffers; 0 if they cannot be used.
    pub(crate) fn capacity(&self) -> u64 {
        if self.unusable { 0 } else { self.taken.iter().map(|taken| taken.capacity).sum() }
    }

    /// Returns the memory of the packet, if it is one buffer that lies in one region.
    #[inline]
    pub(crate) fn single<'m>(&self, memory: &'m GuestMemory) -> Option<Frame<'m>> {
        let [segment] = self.segments[..] else { return None };
        let frame = memory.frame(segment.addr, segment.len)?;
        (!self.unusable && frame.capacity() == segment.len as usize).then_some(frame)
    }

    pub(crate) fn is_unusable(&self) -> bool {
        self.unusable
    }

    /// Adds a buffer to the chain that is being taken; `writes`: the direction that the queue is for.
    fn push(&mut self, descriptor: Descriptor, writes: bool, capacity: &mut u64) {
        if self.segments.len() >= MAX_CHAIN_BUFFERS || (descriptor.flags & WRITE != 0) != writes {
            self.unusable = true;
            return;
        }
        *capacity += u64::from(descriptor.len);
        self.segments.push(Segment { addr: descriptor.addr, len: descriptor.len });
    }
}

/// A position in the bytes of [`Chains`]. Accesses that reach the end, or an address that is no guest memory, are cut
/// there.
pub(crate) struct Cursor<'a> {
    memory: &'a GuestMemory,
    segments: &'a [Segment],
    /// Bytes of the first segment that are behind the position.
    used: u32,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(memory: &'a GuestMemory, chains: &'a Chains) -> Cursor<'a> {
        Cursor { memory, segments: &chains.segments, used: 0 }
    }

    /// Returns the guest memory at the position, at most `bytes`, and moves behind it. `None` at the end.
    #[inline]
    fn next(&mut self, bytes: usize) -> Option<Frame<'a>> {
        let segment = loop {
            let (first, rest) = self.segments.split_first()?;
            if self.used < first.len {
                break *first;
            }
            (self.segments, self.used) = (rest, 0);
        };
        let bytes = (segment.len - self.used).min(bytes as u32);
        let addr = segment.addr.checked_add(u64::from(self.used))?;
        let frame = self.memory.frame(addr, bytes)?;
        self.used += frame.capacity() as u32;
        Some(frame)
    }

    /// Copies bytes out of guest memory; returns how many there were.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len()
            && let Some(frame) = self.next(out.len() - done)
        {
            done += frame.read(0, &mut out[done..]);
        }
        done
    }

    /// Copies up to `bytes` bytes into a frame; returns how many.
    #[inline]
    pub(crate) fn read_frame(&mut self, to: Frame<'_>, bytes: usize) -> usize {
        let (bytes, mut done) = (bytes.min(to.capacity()), 0);
        while done < bytes
            && let Some(frame) = self.next(bytes - done)
        {
            done += to.skip(done).copy_from(&frame, frame.capacity());
        }
        done
    }

    /// Copies bytes into guest memory; returns how many fitted.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len()
            && let Some(frame) = self.next(bytes.len() - done)
        {
            done += frame.write(0, &bytes[done..]);
        }
        done
    }

    /// Copies the first `bytes` bytes of a frame into guest memory; returns how many fitted.
    #[inline]
    pub(crate) fn write_frame(&mut self, from: Frame<'_>, bytes: usize) -> usize {
        let (bytes, mut done) = (bytes.min(from.capacity()), 0);
        while done < bytes
            && let Some(frame) = self.next(bytes - done)
        {
            done += frame.copy_from(&from.skip(done), frame.capacity());
        }
        done
    }
}

/// Adds the buffers of an indirect table, whose descriptors are linked (split rings) or in sequence (packed rings).
/// Returns false if it is no valid table: the chain is unusable then.
fn push_table(
    memory: &GuestMemory,
    table: Descriptor,
    linked: bool,
    writes: bool,
    chains: &mut Chains,
    capacity: &mut u64,
) -> bool {
    let count = table.len as usize / DESCRIPTOR;
    if count == 0 || count > MAX_CHAIN_BUFFERS || !(table.len as usize).is_multiple_of(DESCRIPTOR) {
        return false;
    }
    let mut index = 0;
    // A loop ends after as many steps as there are descriptors.
    for _ in 0..count {
        let mut bytes = [0; DESCRIPTOR];
        let Some(addr) = table.addr.checked_add((index * DESCRIPTOR) as u64) else { return false };
        if !memory.read(addr, &mut bytes) {
            return false;
        }
        let [low, high] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i])));
        let descriptor = Descriptor::from_words(low, high);
        if descriptor.flags & INDIRECT != 0 {
            return false;
        }
        chains.push(descriptor, writes, capacity);
        index = match linked {
            true if descriptor.flags & NEXT == 0 => return true,
            true => usize::from(descriptor.next),
            false => index + 1,
        };
        if linked && index >= count {
            return false;
        }
    }
    !linked
}

impl Descriptor {
    fn from_words(addr: u64, rest: u64) -> Descriptor {
        Descriptor { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }
}

/// Prefetches what begins `skipped` bytes behind these addresses: a cache line if it begins with one, else two, as a
/// frame mostly begins with a line and its header is in the one before.
#[inline(always)]
fn prefetch(memory: &GuestMemory, writes: bool, addresses: impl Iterator<Item = u64>, skipped: u64) {
    for addr in addresses.map(|addr| addr.wrapping_add(skipped)) {
        let Some(frame) = memory.frame(addr, 128) else { continue };
        let lines = if addr.is_multiple_of(64) { 1 } else { 2 };
        for line in 0..lines {
            let line = frame.skip(64 * line);
            if writes { line.prefetch_for_write() } else { line.prefetch() }
        }
    }
}

/// Where a queue is, to return to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u16, bool, usize);

/// A queue of one of the layouts.
pub(crate) enum Queue {
    Split(Split),
    Packed(Packed),
    Memif(Memif),
}

/// User addresses of the three parts of a ring. Packed rings: descriptors, driver's events, device's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RingAddresses {
    pub(crate) desc: u64,
    pub(crate) avail: u64,
    pub(crate) used: u64,
}

/// The addresses and sizes of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) size: u32,
    pub(crate) addresses: RingAddresses,
    /// The positions, as `GET_VRING_BASE` returned them.
    pub(crate) base: u32,
    pub(crate) packed: bool,
    pub(crate) event_idx: bool,
    /// Whether the device writes its buffers: the guest receives by them.
    pub(crate) writes: bool,
}

macro_rules! each {
    ($self:expr, $queue:ident => $call:expr) => {
        match $self {
            Queue::Split($queue) => $call,
            Queue::Packed($queue) => $call,
            Queue::Memif($queue) => $call,
        }
    };
}

impl Queue {
    /// `inflight` is the queue's part of the region of in-flight descriptors, at least [`part_bytes`].
    ///
    /// # Errors
    /// The size is invalid, the ring is not in guest memory, or the region makes no sense.
    pub(crate) fn new(memory: &GuestMemory, shape: &Shape, inflight: Option<GuestWords>) -> Result<Queue, NotStarted> {
        let size = u16::try_from(shape.size).unwrap_or(0);
        if size == 0 || size > MAX_QUEUE_SIZE || !shape.packed && !size.is_power_of_two() {
            return Err(NotStarted("its number of descriptors is invalid"));
        }
        match shape.packed {
            true => Packed::new(memory, size, shape, inflight).map(Queue::Packed),
            false => Split::new(memory, size, shape, inflight).map(Queue::Split),
        }
    }

    /// Adds the next chain to `chains`. Returns false if there is none.
    #[inline]
    pub(crate) fn pop(&mut self, memory: &GuestMemory, chains: &mut Chains) -> Result<bool, Fault> {
        match self {
            Queue::Split(queue) => queue.pop(memory, chains),
            Queue::Packed(queue) => queue.pop(memory, chains),
            Queue::Memif(queue) => queue.pop(chains),
        }
    }

    /// Whether the guest receives by the queue.
    #[inline]
    pub(crate) fn writes(&self) -> bool {
        each!(self, queue => queue.writes())
    }

    /// Prefetches the descriptors of the chains that are `ahead` behind the next one, of those that are known to be
    /// there.
    #[inline]
    pub(crate) fn prefetch_descriptors(&self, ahead: Range<u16>) {
        // Those of other layouts are in sequence, and the processor prefetches them itself.
        if let Queue::Split(queue) = self {
            queue.prefetch_descriptors(ahead);
        }
    }

    /// Prefetches the first buffers of the chains that are `ahead` behind the next one, of those that are known to be
    /// there. The processor waits for an address's translation, but translates several beside each other.
    #[inline]
    pub(crate) fn prefetch(&self, memory: &GuestMemory, ahead: Range<u16>, skipped: u64) {
        match self {
            Queue::Split(queue) => {
                prefetch(memory, queue.writes(), ahead.filter_map(|n| queue.address_ahead(n)), skipped)
            }
            Queue::Packed(queue) => prefetch(memory, queue.writes(), ahead.map(|n| queue.address_ahead(n)), skipped),
            Queue::Memif(queue) => {
                prefetch(memory, queue.writes(), ahead.filter_map(|n| queue.address_ahead(n)), skipped)
            }
        }
    }

    pub(crate) fn mark(&self) -> Mark {
        each!(self, queue => queue.mark())
    }

    /// Goes back: the chains since `mark` are taken again by the next [`Queue::pop`].
    pub(crate) fn rewind(&mut self, mark: Mark) {
        each!(self, queue => queue.rewind(mark));
    }

    /// Returns the chains, of which the first `bytes` bytes were written.
    pub(crate) fn push_used(&mut self, chains: &Chains, bytes: u64) {
        let mut left = bytes;
        for taken in &chains.taken {
            // Bytes of a packet: fewer than 2^32.
            let here = left.min(taken.capacity);
            left -= here;
            match self {
                Queue::Split(queue) => queue.push_used(taken.id, taken.count, here as u32),
                Queue::Packed(queue) => queue.push_used(taken.id, taken.count, here as u32),
                Queue::Memif(queue) => queue.push_used(taken.count, here as u32, left > 0),
            }
        }
    }

    /// Shows the guest what was returned since the last call. Returns whether it wants to be notified.
    pub(crate) fn publish(&mut self) -> bool {
        each!(self, queue => queue.publish())
    }

    /// Requests a kick for chains after those that [`Queue::pop`] has found. Returns false if there are some already.
    pub(crate) fn arm(&mut self) -> bool {
        each!(self, queue => queue.arm())
    }

    /// Tells the guest that kicks are not needed.
    pub(crate) fn disarm(&mut self) {
        each!(self, queue => queue.disarm());
    }

    /// The queue stops in order: positions say all about it, unless chains of a process before are left.
    pub(crate) fn close(&self) {
        match self {
            Queue::Split(queue) => queue.close(),
            Queue::Packed(queue) => queue.close(),
            Queue::Memif(_) => {}
        }
    }

    /// Returns the positions, for `GET_VRING_BASE`; there are none of memif.
    pub(crate) fn base(&self) -> u32 {
        match self {
            Queue::Split(queue) => queue.base(),
            Queue::Packed(queue) => queue.base(),
            Queue::Memif(_) => 0,
        }
    }
}
