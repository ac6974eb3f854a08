// SPDX-License-Identifier: BSD-2-Clause
//! Split rings: a table of descriptors, a ring of heads that the guest offers, and a ring of heads that were used.
//!
//! ```text
//!   avail: u16 flags | u16 idx | u16 head[size] | u16 used_event         the guest writes it
//!   used:  u16 flags | u16 idx | { u32 head, u32 bytes }[size] | u16 avail_event      we write it
//! ```
//! `idx` counts without bound; `idx % size` is the place in the ring.

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use unetmap::guest::{GuestMemory, GuestWords};

use super::inflight::SplitInflight;
use super::{Chains, DESCRIPTOR, Descriptor, Fault, INDIRECT, Mark, NEXT, NotStarted, Shape, Taken, push_table};

const FLAGS: usize = 0;
const IDX: usize = 2;
const RING: usize = 4;
/// Bytes of an element of the used ring.
const USED: usize = 8;
/// `VRING_AVAIL_F_NO_INTERRUPT`, `VRING_USED_F_NO_NOTIFY`.
const NO_NOTIFICATION: u16 = 1;

pub(crate) struct Split {
    desc: GuestWords,
    avail: GuestWords,
    used: GuestWords,
    size: u16,
    event_idx: bool,
    writes: bool,
    /// The next chain to take, and the guest's `idx` as it was last loaded.
    next_avail: u16,
    seen_avail: u16,
    /// The next element to write; the guest sees those before `published`.
    next_used: u16,
    published: u16,
    inflight: Option<SplitInflight>,
    /// Chains that a process before has taken and not returned, and how many of them were taken again.
    again: Vec<u16>,
    again_taken: usize,
}

impl Split {
    pub(super) fn new(
        memory: &GuestMemory,
        size: u16,
        shape: &Shape,
        inflight: Option<GuestWords>,
    ) -> Result<Split, NotStarted> {
        let (n, at) = (usize::from(size), shape.addresses);
        let words = |at, bytes, align| memory.words(at, bytes, align).ok_or(NotStarted::NO_MEMORY);
        let used = words(at.used, RING + USED * n + 2, 4)?;
        let (mut next_avail, next_used) = (shape.base as u16, used.load_u16(IDX, Acquire));
        let (mut again, mut kept) = (Vec::new(), None);
        if let Some(words) = inflight {
            let (inflight, left) = SplitInflight::open(words, size, next_used).ok_or(NotStarted::DAMAGED)?;
            kept = Some(inflight);
            if let Some(left) = left {
                // Those of the region are the first ones that the ring does not have as used.
                next_avail = next_used.wrapping_add(left.len() as u16);
                again = left;
            }
        }
        Ok(Split {
            desc: words(at.desc, DESCRIPTOR * n, DESCRIPTOR as u64)?,
            avail: words(at.avail, RING + 2 * n + 2, 2)?,
            used,
            size,
            event_idx: shape.event_idx,
            writes: shape.writes,
            next_avail,
            seen_avail: next_avail,
            next_used,
            published: next_used,
            inflight: kept,
            again,
            again_taken: 0,
        })
    }

    fn place(&self, idx: u16) -> usize {
        usize::from(idx & (self.size - 1))
    }

    #[inline]
    pub(super) fn pop(&mut self, memory: &GuestMemory, chains: &mut Chains) -> Result<bool, Fault> {
        let again = self.again.get(self.again_taken).copied();
        let head = match again {
            Some(head) => head,
            None if !self.any_offered()? => return Ok(false),
            None => self.avail.load_u16(RING + 2 * self.place(self.next_avail), Relaxed),
        };
        let mut capacity = 0;
        self.walk(memory, head, chains, &mut capacity)?;
        chains.taken.push(Taken { id: head, count: 1, capacity });
        match again {
            Some(_) => self.again_taken += 1,
            None => self.next_avail = self.next_avail.wrapping_add(1),
        }
        Ok(true)
    }

    /// Whether the guest offers a chain that was not taken.
    #[inline]
    fn any_offered(&mut self) -> Result<bool, Fault> {
        if self.next_avail == self.seen_avail {
            self.seen_avail = self.avail.load_u16(IDX, Acquire);
            if self.seen_avail.wrapping_sub(self.next_avail) > self.size {
                return Err(Fault("the guest offers more chains than the queue has"));
            }
        }
        Ok(self.next_avail != self.seen_avail)
    }

    #[inline]
    fn walk(&self, memory: &GuestMemory, head: u16, chains: &mut Chains, capacity: &mut u64) -> Result<(), Fault> {
        let mut index = head;
        for _ in 0..self.size {
            if index >= self.size {
                return Err(Fault("a descriptor's index is outside of the queue"));
            }
            let at = DESCRIPTOR * usize::from(index);
            let descriptor = Descriptor::from_words(self.desc.load_u64(at), self.desc.load_u64(at + 8));
            if descriptor.flags & INDIRECT != 0 {
                let last = descriptor.flags & NEXT == 0;
                if !last || !push_table(memory, descriptor, true, self.writes, chains, capacity) {
                    chains.unusable = true;
                }
                return Ok(());
            }
            chains.push(descriptor, self.writes, capacity);
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
        }
        Err(Fault("a chain of descriptors is a loop"))
    }

    pub(super) fn writes(&self) -> bool {
        self.writes
    }

    /// Prefetches the first descriptors of chains that are offered, and the elements in which they will be returned.
    #[inline]
    pub(super) fn prefetch_descriptors(&self, ahead: Range<u16>) {
        for ahead in ahead {
            let Some(head) = self.head_ahead(ahead) else { break };
            self.desc.prefetch(DESCRIPTOR * usize::from(head));
            if ahead.is_multiple_of(8) {
                self.used.prefetch_for_write(RING + USED * self.place(self.next_used.wrapping_add(ahead)));
            }
        }
    }

    /// The first descriptor of a chain that is offered.
    #[inline]
    fn head_ahead(&self, ahead: u16) -> Option<u16> {
        if self.seen_avail.wrapping_sub(self.next_avail) <= ahead {
            return None;
        }
        let place = self.place(self.next_avail.wrapping_add(ahead));
        Some(self.avail.load_u16(RING + 2 * place, Relaxed)).filter(|head| *head < self.size)
    }

    /// The address of the first buffer of a chain that is offered.
    #[inline]
    pub(super) fn address_ahead(&self, ahead: u16) -> Option<u64> {
        self.head_ahead(ahead).map(|head| self.desc.load_u64(DESCRIPTOR * usize::from(head)))
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.next_avail, false, self.again_taken)
    }

    pub(super) fn rewind(&mut self, mark: Mark) {
        (self.next_avail, self.again_taken) = (mark.0, mark.2);
    }

    pub(super) fn push_used(&mut self, head: u16, _count: u16, bytes: u32) {
        if let Some(inflight) = &mut self.inflight {
            inflight.mark(head);
        }
        let at = RING + USED * self.place(self.next_used);
        self.used.store_u32(at, head.into());
        self.used.store_u32(at + 4, bytes);
        self.next_used = self.next_used.wrapping_add(1);
    }

    pub(super) fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_used);
        if old == new {
            return false;
        }
        self.used.store_u16(IDX, new, Release);
        self.published = new;
        // O6: the guest stores its event index, then loads `idx`.
        fence(SeqCst);
        if let Some(inflight) = &mut self.inflight {
            inflight.clear(new);
        }
        if self.event_idx {
            let event = self.avail.load_u16(RING + 2 * usize::from(self.size), Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.avail.load_u16(FLAGS, Relaxed) & NO_NOTIFICATION == 0
        }
    }

    pub(super) fn arm(&mut self) -> bool {
        if self.event_idx {
            self.used.store_u16(RING + USED * usize::from(self.size), self.seen_avail, Relaxed);
        } else {
            self.used.store_u16(FLAGS, 0, Relaxed);
        }
        // O6: the guest stores `idx`, then loads what was just stored.
        fence(SeqCst);
        self.avail.load_u16(IDX, Acquire) == self.seen_avail
    }

    pub(super) fn disarm(&mut self) {
        // An event index that is behind requests nothing.
        if !self.event_idx {
            self.used.store_u16(FLAGS, NO_NOTIFICATION, Relaxed);
        }
    }

    pub(super) fn close(&self) {
        if let Some(inflight) = &self.inflight {
            inflight.close();
        }
    }

    pub(super) fn base(&self) -> u32 {
        self.next_avail.into()
    }
}
