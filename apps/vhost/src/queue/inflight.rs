// SPDX-License-Identifier: BSD-2-Clause
//! The region of in-flight descriptors: the next process finds in it which chains this one had not returned when it was
//! killed, and where the queue was.
//!
//! ```text
//!   split   | u64 features | u16 version | u16 size | u16 last_batch_head | u16 used_idx |
//!           then by descriptor  | u8 inflight, 5 unused | u16 next | u64 counter |
//!   packed  | u64 features | u16 version | u16 size | u16 free_head | u16 old_free_head |
//!           | u16 used_idx | u16 old_used_idx | u8 used_wrap | u8 old_used_wrap | 10 unused |
//!           then by entry       | u8 inflight | u8 | u16 next | u16 last | u16 num | u64 counter |
//!                               | u16 id | u16 flags | u32 len | u64 addr |
//! ```
//! Each queue has such a part, as the specification of vhost-user defines it. The hypervisor keeps the file between two
//! processes, and can write it at any time: what is found is checked, and a region that makes no sense is refused.
//!
//! Chains are returned in the order in which they were taken, a batch at a time, so they are marked when they are about
//! to be returned: until then the ring itself has them. A process may be killed between any two stores; those that
//! decide are single words, and stored last (`Release`).

use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use unetmap::guest::GuestWords;

use super::Descriptor;

const VERSION: usize = 8;
const DESC_NUM: usize = 10;
/// The version of both layouts; 0: nothing was written yet.
const VERSION_1: u16 = 1;
/// Bytes to which the part of a queue is rounded up.
const ALIGN: usize = 64;

/// Bytes of the part of a queue with `size` descriptors.
pub(crate) fn part_bytes(packed: bool, size: u16) -> usize {
    let (header, entry) = if packed { (PACKED_HEADER, PACKED_ENTRY) } else { (SPLIT_HEADER, SPLIT_ENTRY) };
    (header + entry * usize::from(size)).next_multiple_of(ALIGN)
}

/// Returns whether the part has been written for a queue of `size` descriptors.
fn is_written(words: &GuestWords, size: u16) -> bool {
    words.load_u16(VERSION, Relaxed) == VERSION_1 && words.load_u16(DESC_NUM, Relaxed) == size
}

const SPLIT_HEADER: usize = 16;
const SPLIT_ENTRY: usize = 16;
const LAST_BATCH_HEAD: usize = 12;
const SPLIT_USED_IDX: usize = 14;
const SPLIT_NEXT: usize = 6;
const COUNTER: usize = 8;

/// The part of a split ring.
pub(super) struct SplitInflight {
    words: GuestWords,
    counter: u64,
    /// Heads that were written to the used ring, and not shown yet.
    batch: Vec<u16>,
    /// Chains that were marked by the process before, and not returned again yet.
    again: usize,
}

impl SplitInflight {
    /// Goes on where the process before has ended: returns the heads to be processed again, in order. `None` as them if
    /// the part is new; `used_idx` is the ring's.
    pub(super) fn open(words: GuestWords, size: u16, used_idx: u16) -> Option<(SplitInflight, Option<Vec<u16>>)> {
        let mut inflight = SplitInflight { words, counter: 0, batch: Vec::with_capacity(size.into()), again: 0 };
        let words = &inflight.words;
        if !is_written(words, size) {
            for head in 0..size {
                words.store_u16(entry(head), 0, Relaxed);
            }
            words.store_u16(SPLIT_USED_IDX, used_idx, Relaxed);
            words.store_u16(DESC_NUM, size, Relaxed);
            words.store_u16(VERSION, VERSION_1, Release);
            return Some((inflight, None));
        }
        // Chains that the guest had seen as used, and that were still marked.
        let unmarked = used_idx.wrapping_sub(words.load_u16(SPLIT_USED_IDX, Relaxed));
        let mut head = words.load_u16(LAST_BATCH_HEAD, Relaxed);
        if unmarked > size {
            return None;
        }
        for _ in 0..unmarked {
            if head >= size {
                return None;
            }
            words.store_u16(entry(head), 0, Relaxed);
            head = words.load_u16(entry(head) + SPLIT_NEXT, Relaxed);
        }
        words.store_u16(SPLIT_USED_IDX, used_idx, Release);
        let mut marked: Vec<(u64, u16)> = (0..size)
            .filter(|head| words.load_u16(entry(*head), Relaxed) & 0xff != 0)
            .map(|head| (words.load_u64(entry(head) + COUNTER), head))
            .collect();
        marked.sort_unstable();
        inflight.counter = marked.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        inflight.again = marked.len();
        Some((inflight, Some(marked.into_iter().map(|(_, head)| head).collect())))
    }

    /// The chain is about to be written to the used ring.
    pub(super) fn mark(&mut self, head: u16) {
        if self.again > 0 {
            self.again -= 1;
        } else {
            self.words.store_u64(entry(head) + COUNTER, self.counter, Relaxed);
            self.counter = self.counter.wrapping_add(1);
            self.words.store_u16(entry(head), 1, Release);
        }
        self.words.store_u16(entry(head) + SPLIT_NEXT, self.words.load_u16(LAST_BATCH_HEAD, Relaxed), Release);
        self.words.store_u16(LAST_BATCH_HEAD, head, Release);
        self.batch.push(head);
    }

    /// The guest sees the used ring up to `used_idx`.
    pub(super) fn clear(&mut self, used_idx: u16) {
        for head in self.batch.drain(..) {
            self.words.store_u16(entry(head), 0, Relaxed);
        }
        self.words.store_u16(SPLIT_USED_IDX, used_idx, Release);
    }

    /// The queue has stopped, and its positions are known: the next start is told them, if no chain is marked.
    pub(super) fn close(&self) {
        if self.again == 0 {
            self.words.store_u16(VERSION, 0, Release);
        }
    }
}

/// Where the entry of a descriptor is.
fn entry(head: u16) -> usize {
    SPLIT_HEADER + SPLIT_ENTRY * usize::from(head)
}

const PACKED_HEADER: usize = 32;
const PACKED_ENTRY: usize = 32;
/// `free_head` and `old_free_head`, which are stored together; `used_idx` to `old_used_wrap` likewise.
const FREE_HEADS: usize = 12;
const POSITIONS: usize = 16;
const PACKED_NEXT: usize = 2;
const LAST: usize = 4;
const NUM: usize = 6;
const ID: usize = 16;

/// A position of a packed ring, and the wrap bit of its lap.
pub(super) type Place = (u16, bool);

/// A descriptor of a packed ring, and its identifier.
pub(super) type WithId = (Descriptor, u16);

/// The queue's state that the process before left behind.
pub(super) struct Recovered {
    /// The next descriptor to be returned.
    pub(super) used: Place,
    /// The descriptors of marked chains, as they were offered, from there on. Some were overwritten in the ring by a
    /// batch that the guest has not seen: it would see them with the next one.
    pub(super) offered: Vec<WithId>,
}

/// The part of a packed ring. The lists of entries are kept here, too: the region is only written.
pub(super) struct PackedInflight {
    words: GuestWords,
    counter: u64,
    /// By entry, the next one of its list; `size` at the end.
    next: Vec<u16>,
    free_head: u16,
    /// Entries of the chains that the guest does not see as used yet: the first and the last of each.
    batch: Vec<(u16, u16)>,
    /// First and last entries of chains that were marked by the process before, the next one at the end.
    again: Vec<(u16, u16)>,
    shown: Place,
}

impl PackedInflight {
    /// Goes on where the process before has ended, or, in a part that is new, at `used`. `None` if the part makes no
    /// sense. `is_offered` is asked whether the descriptor at a position is still that of the guest.
    pub(super) fn open(
        words: GuestWords,
        size: u16,
        used: Place,
        is_offered: impl FnOnce(Place) -> bool,
    ) -> Option<(PackedInflight, Option<Recovered>)> {
        let mut inflight = PackedInflight {
            words,
            counter: 0,
            next: (1..=size).collect(),
            free_head: 0,
            batch: Vec::with_capacity(size.into()),
            again: Vec::new(),
            shown: used,
        };
        if is_written(&inflight.words, size) {
            let recovered = inflight.recover(size, is_offered)?;
            return Some((inflight, Some(recovered)));
        }
        for (n, next) in inflight.next.iter().enumerate() {
            inflight.words.store_u16(packed_entry(n as u16), 0, Relaxed);
            inflight.words.store_u16(packed_entry(n as u16) + PACKED_NEXT, *next, Relaxed);
        }
        inflight.store_free_heads(0, 0);
        inflight.store_positions(used, used);
        inflight.words.store_u16(DESC_NUM, size, Relaxed);
        inflight.words.store_u16(VERSION, VERSION_1, Release);
        Some((inflight, None))
    }

    fn recover(&mut self, size: u16, is_offered: impl FnOnce(Place) -> bool) -> Option<Recovered> {
        let heads = self.words.load_u64(VERSION);
        let (free_head, old_free_head) = ((heads >> 32) as u16, (heads >> 48) as u16);
        let positions = self.words.load_u64(POSITIONS);
        let new = (positions as u16, positions >> 32 & 0xff != 0);
        let old = ((positions >> 16) as u16, positions >> 40 & 0xff != 0);
        if new.0 >= size || old.0 >= size {
            return None;
        }
        // A batch was being returned: the guest sees all of it, or nothing.
        let is_shown = new != old && !is_offered(old);
        (self.free_head, self.shown) = if is_shown { (free_head, new) } else { (old_free_head, old) };
        for (n, next) in self.next.iter_mut().enumerate() {
            *next = self.words.load_u16(packed_entry(n as u16) + PACKED_NEXT, Relaxed);
        }
        let mut is_free = vec![false; size.into()];
        let mut at = self.free_head;
        while let Some(is_free) = is_free.get_mut(usize::from(at)) {
            if std::mem::replace(is_free, true) {
                return None;
            }
            self.words.store_u16(packed_entry(at), 0, Relaxed);
            at = self.next[usize::from(at)];
        }
        self.store_free_heads(self.free_head, self.free_head);
        self.store_positions(self.shown, self.shown);
        let mut marked = Vec::new();
        let mut left = is_free.iter().filter(|is_free| !**is_free).count();
        for head in 0..size {
            let is_marked = self.words.load_u16(packed_entry(head), Relaxed) & 0xff != 0;
            if is_marked && !is_free[usize::from(head)] {
                let (last, chain) = self.chain(head, &mut is_free)?;
                left = left.checked_sub(chain.len())?;
                marked.push((self.words.load_u64(packed_entry(head) + COUNTER), head, last, chain));
            }
        }
        // Each entry is free, or that of a marked chain.
        if left > 0 {
            return None;
        }
        marked.sort_unstable_by_key(|(counter, ..)| *counter);
        self.counter = marked.last().map_or(0, |(counter, ..)| counter.wrapping_add(1));
        self.again = marked.iter().rev().map(|(_, head, last, _)| (*head, *last)).collect();
        let offered = marked.into_iter().flat_map(|(.., chain)| chain).collect();
        Some(Recovered { used: self.shown, offered })
    }

    /// Returns the last entry and the copied descriptors of a chain. Its entries belong to no other.
    fn chain(&self, head: u16, is_taken: &mut [bool]) -> Option<(u16, Vec<WithId>)> {
        let num = self.words.load_u16(packed_entry(head) + NUM, Relaxed);
        let (mut at, mut last, mut chain) = (head, head, Vec::new());
        for _ in 0..num {
            if std::mem::replace(is_taken.get_mut(usize::from(at))?, true) {
                return None;
            }
            let [low, addr] = [0, 8].map(|more| self.words.load_u64(packed_entry(at) + ID + more));
            chain.push((Descriptor { addr, len: (low >> 32) as u32, flags: (low >> 16) as u16, next: 0 }, low as u16));
            last = at;
            at = self.next[usize::from(at)];
        }
        (num > 0).then_some((last, chain))
    }

    /// The next chain is about to be returned; `load` copies its `count` descriptors, by number, from the ring.
    pub(super) fn mark(&mut self, count: u16, load: impl Fn(u16) -> WithId) {
        if let Some(chain) = self.again.pop() {
            self.batch.push(chain);
            return;
        }
        let first = self.free_head;
        let (mut at, mut last) = (first, first);
        for n in 0..count {
            // A queue has as many entries as descriptors.
            let Some(next) = self.next.get(usize::from(at)) else { return };
            let (Descriptor { addr, len, flags, .. }, id) = load(n);
            let low = u64::from(id) | u64::from(flags) << 16 | u64::from(len) << 32;
            self.words.store_u64(packed_entry(at) + ID, low, Relaxed);
            self.words.store_u64(packed_entry(at) + ID + 8, addr, Relaxed);
            (last, at) = (at, *next);
        }
        self.words.store_u16(packed_entry(first) + LAST, last, Relaxed);
        self.words.store_u16(packed_entry(first) + NUM, count, Relaxed);
        self.words.store_u64(packed_entry(first) + COUNTER, self.counter, Relaxed);
        self.counter = self.counter.wrapping_add(1);
        self.words.store_u16(packed_entry(first), 1, Release);
        // From here on it is marked: it is no longer in the list of free entries.
        self.free_head = at;
        self.store_free_heads(at, at);
        self.batch.push((first, last));
    }

    /// The guest is about to see the ring as returned up to `used`.
    pub(super) fn prepare(&mut self, used: Place) {
        let old = self.free_head;
        for (first, last) in &self.batch {
            self.next[usize::from(*last)] = self.free_head;
            self.words.store_u16(packed_entry(*last) + PACKED_NEXT, self.free_head, Relaxed);
            self.free_head = *first;
        }
        self.store_free_heads(self.free_head, old);
        self.store_positions(used, self.shown);
    }

    /// The guest sees it.
    pub(super) fn clear(&mut self, used: Place) {
        for (first, _) in self.batch.drain(..) {
            self.words.store_u16(packed_entry(first), 0, Relaxed);
        }
        self.store_free_heads(self.free_head, self.free_head);
        self.store_positions(used, used);
        self.shown = used;
    }

    /// The queue has stopped, and its positions are known: the next start is told them.
    pub(super) fn close(&self) {
        self.words.store_u16(VERSION, 0, Release);
    }

    fn store_free_heads(&self, new: u16, old: u16) {
        fence(Release);
        self.words.store_u32(FREE_HEADS, u32::from(new) | u32::from(old) << 16);
        fence(SeqCst);
    }

    fn store_positions(&self, new: Place, old: Place) {
        let words = u64::from(new.0) | u64::from(old.0) << 16 | u64::from(new.1) << 32 | u64::from(old.1) << 40;
        self.words.store_u64(POSITIONS, words, Release);
    }
}

/// Where an entry is.
fn packed_entry(n: u16) -> usize {
    PACKED_HEADER + PACKED_ENTRY * usize::from(n)
}
