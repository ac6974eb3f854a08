// SPDX-License-Identifier: BSD-2-Clause
//! Packed rings: one table of descriptors, which the guest offers and the device returns in place.
//!
//! ```text
//!   descriptor: u64 addr | u32 len | u16 id | u16 flags        AVAIL and USED in the flags, against a lap's wrap bit:
//!     AVAIL == wrap, USED != wrap: offered         AVAIL == USED == wrap: returned
//!   events: u16 position, wrap in bit 15 | u16 flags           0 always, 1 never, 2 at that position
//! ```
//! The wrap bit begins at 1 and flips with each lap. A returned chain takes one descriptor, and the positions move by
//! as many as it had.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use unetmap::guest::{GuestMemory, GuestWords};

use super::inflight::{PackedInflight, Place};
use super::{Chains, DESCRIPTOR, Descriptor, Fault, INDIRECT, Mark, NEXT, NotStarted, Shape, Taken, WRITE, push_table};

const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;
const LEN: usize = 8;
const ID: usize = 12;
const FLAGS: usize = 14;
/// Bytes of an event structure, and its second word.
const EVENT: usize = 4;
const EVENT_FLAGS: usize = 2;
const ALWAYS: u16 = 0;
const NEVER: u16 = 1;
const AT_POSITION: u16 = 2;
/// In event structures and bases.
const WRAP: u16 = 1 << 15;

/// A position, and the wrap bit of its lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    at: u16,
    wrap: bool,
}

impl Position {
    fn from_word(word: u16) -> Position {
        Position { at: word & !WRAP, wrap: word & WRAP != 0 }
    }

    fn word(self) -> u16 {
        self.at | if self.wrap { WRAP } else { 0 }
    }

    fn place(self) -> Place {
        (self.at, self.wrap)
    }

    fn advance(&mut self, count: u16, size: u16) {
        // Both are at most 32768.
        let at = u32::from(self.at) + u32::from(count);
        match at.checked_sub(size.into()) {
            Some(at) => *self = Position { at: at as u16, wrap: !self.wrap },
            None => self.at = at as u16,
        }
    }

    /// Whether flags say that the descriptor at this position is offered.
    fn is_offered(self, flags: u16) -> bool {
        (flags & AVAIL != 0) == self.wrap && (flags & USED != 0) != self.wrap
    }
}

pub(crate) struct Packed {
    desc: GuestWords,
    driver: GuestWords,
    device: GuestWords,
    size: u16,
    event_idx: bool,
    writes: bool,
    next_avail: Position,
    /// The first position at which no chain was found.
    seen_avail: Position,
    next_used: Position,
    /// The first descriptor of those that the guest does not see yet: where, and its flags.
    first: Option<(u16, u16)>,
    /// Descriptors from it to `next_used`.
    unpublished: u16,
    inflight: Option<PackedInflight>,
}

impl Packed {
    pub(super) fn new(
        memory: &GuestMemory,
        size: u16,
        shape: &Shape,
        inflight: Option<GuestWords>,
    ) -> Result<Packed, NotStarted> {
        let at = shape.addresses;
        let mut avail = Position::from_word(shape.base as u16);
        // Front ends that know one position send 0 as the other.
        let mut used = match (shape.base >> 16) as u16 {
            0 => avail,
            word => Position::from_word(word),
        };
        if avail.at >= size || used.at >= size {
            return Err(NotStarted::NO_MEMORY);
        }
        let words = |at, bytes, align| memory.words(at, bytes, align).ok_or(NotStarted::NO_MEMORY);
        let desc = words(at.desc, DESCRIPTOR * usize::from(size), DESCRIPTOR as u64)?;
        let mut kept = None;
        if let Some(words) = inflight {
            let is_offered = |(at, wrap)| {
                let flags = desc.load_u16(DESCRIPTOR * usize::from(at) + FLAGS, Acquire);
                Position { at, wrap }.is_offered(flags)
            };
            let opened = PackedInflight::open(words, size, used.place(), is_offered);
            let (inflight, left) = opened.ok_or(NotStarted::DAMAGED)?;
            kept = Some(inflight);
            if let Some(left) = left {
                used = Position { at: left.used.0, wrap: left.used.1 };
                avail = used;
                let mut at = used;
                for offered in left.offered {
                    restore(&desc, at.at, offered);
                    at.advance(1, size);
                }
            }
        }
        Ok(Packed {
            desc,
            driver: words(at.avail, EVENT, 4)?,
            device: words(at.used, EVENT, 4)?,
            size,
            event_idx: shape.event_idx,
            writes: shape.writes,
            next_avail: avail,
            seen_avail: avail,
            next_used: used,
            first: None,
            unpublished: 0,
            inflight: kept,
        })
    }

    #[inline]
    pub(super) fn pop(&mut self, memory: &GuestMemory, chains: &mut Chains) -> Result<bool, Fault> {
        let mut at = self.next_avail;
        if !at.is_offered(self.desc.load_u16(DESCRIPTOR * usize::from(at.at) + FLAGS, Acquire)) {
            self.seen_avail = at;
            return Ok(false);
        }
        let mut capacity = 0;
        for count in 1..=self.size {
            let (descriptor, id) = load(&self.desc, at.at);
            let last = descriptor.flags & NEXT == 0;
            if descriptor.flags & INDIRECT == 0 {
                chains.push(descriptor, self.writes, &mut capacity);
            } else if !last || count > 1 || !push_table(memory, descriptor, false, self.writes, chains, &mut capacity) {
                chains.unusable = true;
            }
            at.advance(1, self.size);
            if last {
                chains.taken.push(Taken { id, count, capacity });
                self.next_avail = at;
                return Ok(true);
            }
        }
        Err(Fault("a chain of descriptors has no end"))
    }

    pub(super) fn writes(&self) -> bool {
        self.writes
    }

    /// The address in a descriptor, offered or not.
    #[inline]
    pub(super) fn address_ahead(&self, ahead: u16) -> u64 {
        let at = u32::from(self.next_avail.at) + u32::from(ahead);
        let at = if at >= self.size.into() { at - u32::from(self.size) } else { at };
        self.desc.load_u64(DESCRIPTOR * (at as usize).min(usize::from(self.size) - 1))
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.next_avail.at, self.next_avail.wrap, 0)
    }

    pub(super) fn rewind(&mut self, mark: Mark) {
        self.next_avail = Position { at: mark.0, wrap: mark.1 };
    }

    pub(super) fn push_used(&mut self, id: u16, count: u16, bytes: u32) {
        if let Some(inflight) = &mut self.inflight {
            let (desc, used, size) = (&self.desc, self.next_used, self.size);
            inflight.mark(count, |n| {
                let mut at = used;
                at.advance(n, size);
                load(desc, at.at)
            });
        }
        let at = DESCRIPTOR * usize::from(self.next_used.at);
        self.desc.store_u32(at + LEN, bytes);
        self.desc.store_u16(at + ID, id, Relaxed);
        let wrap = if self.next_used.wrap { AVAIL | USED } else { 0 };
        let flags = wrap | if bytes > 0 { WRITE } else { 0 };
        match self.first {
            None => self.first = Some((self.next_used.at, flags)),
            // O1: the guest looks at it after the first one, whose flags are stored last.
            Some(_) => self.desc.store_u16(at + FLAGS, flags, Relaxed),
        }
        self.next_used.advance(count, self.size);
        self.unpublished = self.unpublished.saturating_add(count);
    }

    pub(super) fn publish(&mut self) -> bool {
        let Some((first, flags)) = self.first.take() else { return false };
        let used = self.next_used.place();
        if let Some(inflight) = &mut self.inflight {
            inflight.prepare(used);
        }
        self.desc.store_u16(DESCRIPTOR * usize::from(first) + FLAGS, flags, Release);
        let count = std::mem::take(&mut self.unpublished);
        // O6: the guest stores its event structure, then loads the flags.
        fence(SeqCst);
        if let Some(inflight) = &mut self.inflight {
            inflight.clear(used);
        }
        match self.driver.load_u16(EVENT_FLAGS, Relaxed) {
            NEVER => false,
            AT_POSITION if self.event_idx => {
                let event = Position::from_word(self.driver.load_u16(0, Relaxed));
                let new = self.next_used.at;
                let lap = if event.wrap == self.next_used.wrap { 0 } else { self.size };
                let event = event.at.wrapping_sub(lap);
                new.wrapping_sub(event).wrapping_sub(1) < count
            }
            _ => true,
        }
    }

    pub(super) fn arm(&mut self) -> bool {
        let seen = self.seen_avail;
        if self.event_idx {
            self.device.store_u16(0, seen.word(), Relaxed);
            self.device.store_u16(EVENT_FLAGS, AT_POSITION, Release);
        } else {
            self.device.store_u16(EVENT_FLAGS, ALWAYS, Relaxed);
        }
        // O6: the guest stores flags, then loads the event structure.
        fence(SeqCst);
        !seen.is_offered(self.desc.load_u16(DESCRIPTOR * usize::from(seen.at) + FLAGS, Acquire))
    }

    pub(super) fn disarm(&mut self) {
        self.device.store_u16(EVENT_FLAGS, NEVER, Relaxed);
    }

    pub(super) fn close(&self) {
        if let Some(inflight) = &self.inflight {
            inflight.close();
        }
    }

    pub(super) fn base(&self) -> u32 {
        u32::from(self.next_avail.word()) | u32::from(self.next_used.word()) << 16
    }
}

/// Loads the descriptor at a position, and its identifier.
fn load(desc: &GuestWords, at: u16) -> (Descriptor, u16) {
    let at = DESCRIPTOR * usize::from(at);
    let mut descriptor = Descriptor::from_words(desc.load_u64(at), desc.load_u64(at + 8));
    // The upper halves of the second word are the other way round than in a split ring.
    let id = descriptor.flags;
    descriptor.flags = descriptor.next;
    (descriptor, id)
}

/// Stores a descriptor as the guest had offered it.
fn restore(desc: &GuestWords, at: u16, (descriptor, id): (Descriptor, u16)) {
    let at = DESCRIPTOR * usize::from(at);
    desc.store_u64(at, descriptor.addr, Relaxed);
    desc.store_u32(at + LEN, descriptor.len);
    desc.store_u16(at + ID, id, Relaxed);
    desc.store_u16(at + FLAGS, descriptor.flags, Release);
}
