// SPDX-License-Identifier: BSD-2-Clause
//! Rings of memif: descriptors in a ring, and a position of each side.
//!
//! ```text
//!     0: u32 cookie | u16 flags | u16 head      64: u16 tail      128: descriptors, 16 bytes each
//!     u16 flags | u16 region | u32 bytes | u32 offset in the region | u32 of no meaning here
//!
//!   client sends:    client fills [head, ..), stores head      server empties [tail, head), stores tail
//!   server sends:    client offers buffers, stores head        server fills [tail, head), stores tail
//! ```
//! The client has all buffers, so it always stores `head`, and the server `tail`. Both count without bound. The
//! receiver of packets sets `flags` if it does not want to be notified; nobody is notified of free buffers.
//!
//! A server takes addresses from descriptors, and each is an address of [`GuestMemory`] that is checked at its use. A
//! client never does: slot `n` of a ring has buffer `n` of its own region.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use unetmap::guest::{GuestMemory, GuestWords};

use super::{Chains, DESCRIPTOR, Descriptor, Fault, Mark, NEXT, Taken, WRITE};

const COOKIE: usize = 0;
const FLAGS: usize = 4;
const HEAD: usize = 6;
const TAIL: usize = 64;
const DESCRIPTORS: usize = 128;
/// The first word of a ring.
const MAGIC: u32 = 0x03e3_1f20;
/// In the ring's flags: the receiver polls.
const NO_NOTIFICATION: u16 = 1;

/// The buffers of a client's ring: one for each slot, one behind the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnBuffers {
    /// The address of slot 0's.
    pub(crate) first: u64,
    /// Bytes of each.
    pub(crate) bytes: u32,
}

pub(crate) struct Memif {
    words: GuestWords,
    size: u16,
    /// We fill the buffers: the peer receives by them.
    writes: bool,
    /// `None`: we are the server, and descriptors have addresses.
    own: Option<OwnBuffers>,
    /// Where our position and the peer's are.
    position: usize,
    peer_position: usize,
    /// The next slot to take, and the end of the slots that are ours, as it was last loaded.
    next: u16,
    seen: u16,
    /// The next slot to return; the peer sees those before `published`.
    done: u16,
    published: u16,
}

impl Memif {
    /// Bytes of a ring of `size` slots, a power of two.
    pub(crate) fn bytes(size: u16) -> usize {
        DESCRIPTORS + DESCRIPTOR * usize::from(size)
    }

    /// A ring of a client's, at this address. `None` if it is not in the memory, not aligned, or no ring.
    pub(crate) fn of_server(memory: &GuestMemory, at: u64, size: u16, writes: bool) -> Option<Memif> {
        let words = memory.words(at, Memif::bytes(size), 8)?;
        if words.load_u64(COOKIE) as u32 != MAGIC {
            return None;
        }
        let tail = words.load_u16(TAIL, Acquire);
        Some(Memif::new(words, size, writes, None, tail))
    }

    /// Makes memory that is zero a ring.
    pub(crate) fn prepare(memory: &GuestMemory, at: u64) -> Option<()> {
        memory.words(at, DESCRIPTORS, 8)?.store_u32(COOKIE, MAGIC);
        Some(())
    }

    /// A ring of our own, which [`Memif::prepare`] has made; its buffers are `own`.
    pub(crate) fn of_client(memory: &GuestMemory, at: u64, size: u16, writes: bool, own: OwnBuffers) -> Option<Memif> {
        let words = memory.words(at, Memif::bytes(size), 8)?;
        [HEAD, TAIL].into_iter().for_each(|position| words.store_u16(position, 0, Relaxed));
        let ring = Memif::new(words, size, writes, Some(own), 0);
        if !writes {
            (0..size).for_each(|slot| ring.describe(slot, 0, own.bytes));
            ring.words.store_u16(HEAD, size, Release);
        }
        Some(ring)
    }

    fn new(words: GuestWords, size: u16, writes: bool, own: Option<OwnBuffers>, at: u16) -> Memif {
        let (position, peer_position) = if own.is_some() { (HEAD, TAIL) } else { (TAIL, HEAD) };
        let mut ring =
            Memif { words, size, writes, own, position, peer_position, next: at, seen: at, done: at, published: at };
        ring.disarm();
        ring
    }

    fn at(&self, slot: u16) -> usize {
        DESCRIPTORS + DESCRIPTOR * usize::from(slot & (self.size - 1))
    }

    /// The end of the slots that are ours. A client's free slots are those that the server has emptied.
    fn end(&self) -> u16 {
        let bias = if self.own.is_some() && self.writes { self.size } else { 0 };
        self.words.load_u16(self.peer_position, Acquire).wrapping_add(bias)
    }

    /// Writes a descriptor of ours whole: the peer may have changed each word of it.
    fn describe(&self, slot: u16, flags: u16, bytes: u32) {
        let at = self.at(slot);
        if let Some(own) = self.own {
            let addr = own.address(slot & (self.size - 1));
            self.words.store_u16(at + 2, (addr >> 32) as u16, Relaxed);
            self.words.store_u32(at + 8, addr as u32);
        }
        self.words.store_u16(at, flags, Relaxed);
        self.words.store_u32(at + 4, bytes);
    }

    /// A copy of the descriptor: its buffer is at a guest address, of the region in the upper half.
    fn load(&self, slot: u16) -> Descriptor {
        let at = self.at(slot);
        let (low, high) = (self.words.load_u64(at), self.words.load_u64(at + 8));
        let (flags, len) = (low as u16 & NEXT, (low >> 32) as u32);
        let flags = flags | if self.writes { WRITE } else { 0 };
        match self.own {
            None => Descriptor { addr: (low >> 16 & 0xffff) << 32 | high & 0xffff_ffff, len, flags, next: 0 },
            Some(own) => {
                let len = if self.writes { own.bytes } else { len.min(own.bytes) };
                Descriptor { addr: own.address(slot & (self.size - 1)), len, flags, next: 0 }
            }
        }
    }

    /// Loads the end again; returns whether there are more slots than before `at`.
    fn look(&mut self, at: u16) -> Result<bool, Fault> {
        self.seen = self.end();
        let [ours, taken] = [self.seen, at].map(|position| position.wrapping_sub(self.done));
        if ours > self.size || ours < taken {
            return Err(Fault("the peer's position is outside of the ring"));
        }
        Ok(at != self.seen)
    }

    /// Takes a packet, or a free buffer. A packet whose end is not there yet is not taken.
    #[inline]
    pub(super) fn pop(&mut self, chains: &mut Chains) -> Result<bool, Fault> {
        let (mut at, mut capacity) = (self.next, 0);
        let before = chains.mark();
        loop {
            if at == self.seen && !self.look(at)? {
                if at.wrapping_sub(self.done) == self.size && at != self.next && self.next == self.done {
                    return Err(Fault("a chain of descriptors has no end"));
                }
                chains.rewind(before);
                return Ok(false);
            }
            let descriptor = self.load(at);
            at = at.wrapping_add(1);
            chains.push(descriptor, self.writes, &mut capacity);
            if self.writes || descriptor.flags & NEXT == 0 {
                break;
            }
        }
        chains.taken.push(Taken { id: self.next, count: at.wrapping_sub(self.next), capacity });
        self.next = at;
        Ok(true)
    }

    pub(super) fn writes(&self) -> bool {
        self.writes
    }

    /// The address of a buffer that is ours.
    #[inline]
    pub(super) fn address_ahead(&self, ahead: u16) -> Option<u64> {
        let is_there = self.seen.wrapping_sub(self.next) > ahead;
        is_there.then(|| self.load(self.next.wrapping_add(ahead)).addr)
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.next, false, 0)
    }

    pub(super) fn rewind(&mut self, mark: Mark) {
        self.next = mark.0;
    }

    /// Returns the next `count` slots; of a buffer that was filled, its bytes and whether the packet goes on.
    pub(super) fn push_used(&mut self, count: u16, bytes: u32, more: bool) {
        match (self.writes, self.own) {
            (true, _) => self.describe(self.done, if more { NEXT } else { 0 }, bytes),
            (false, Some(own)) => {
                (0..count).for_each(|n| self.describe(self.done.wrapping_add(n), 0, own.bytes));
            }
            (false, None) => {}
        }
        self.done = self.done.wrapping_add(count);
    }

    pub(super) fn publish(&mut self) -> bool {
        if self.done == self.published {
            return false;
        }
        self.published = self.done;
        let bias = if self.own.is_some() && !self.writes { self.size } else { 0 };
        self.words.store_u16(self.position, self.done.wrapping_add(bias), Release);
        if !self.writes {
            return false;
        }
        // O6: the receiver stores its flags, then loads our position.
        fence(SeqCst);
        self.words.load_u16(FLAGS, Relaxed) & NO_NOTIFICATION == 0
    }

    pub(super) fn arm(&mut self) -> bool {
        if !self.writes {
            self.words.store_u16(FLAGS, 0, Relaxed);
            // O6: the sender stores its position, then loads what was just stored.
            fence(SeqCst);
        }
        self.end() == self.seen
    }

    pub(super) fn disarm(&mut self) {
        if !self.writes {
            self.words.store_u16(FLAGS, NO_NOTIFICATION, Relaxed);
        }
    }
}

impl OwnBuffers {
    fn address(&self, slot: u16) -> u64 {
        self.first + u64::from(self.bytes) * u64::from(slot)
    }
}
