// SPDX-License-Identifier: BSD-2-Clause
//! The allocation of a region's objects, in the daemon's private memory, which no client can write.

use crate::pos::BufIdx;

/// The allocator of a pool of objects (interfaces, rings).
#[derive(Debug, Clone)]
pub struct ObjectPool {
    used: Vec<bool>,
    /// All objects below are allocated.
    maybe_free: usize,
    allocated: u32,
}

impl ObjectPool {
    /// `count` objects, all free.
    pub fn new(count: u32) -> ObjectPool {
        ObjectPool { used: vec![false; count as usize], maybe_free: 0, allocated: 0 }
    }

    /// Allocates the lowest free object, so that few pages are touched; `None` when none is free.
    pub fn alloc(&mut self) -> Option<u32> {
        let index = self.maybe_free + self.used[self.maybe_free..].iter().position(|used| !used)?;
        self.used[index] = true;
        self.maybe_free = index + 1;
        self.allocated += 1;
        u32::try_from(index).ok()
    }

    /// Allocates object `index`; `None` when it is not free.
    pub fn alloc_at(&mut self, index: u32) -> Option<u32> {
        let used = self.used.get_mut(index as usize).filter(|used| !**used)?;
        *used = true;
        self.allocated += 1;
        Some(index)
    }

    /// Frees object `index`; one that is not allocated is ignored.
    pub fn free(&mut self, index: u32) {
        if let Some(used) = self.used.get_mut(index as usize).filter(|used| **used) {
            *used = false;
            self.maybe_free = self.maybe_free.min(index as usize);
            self.allocated -= 1;
        }
    }

    /// The number of allocated objects.
    pub fn allocated(&self) -> u32 {
        self.allocated
    }

    /// The allocated objects.
    pub fn in_use(&self) -> Vec<u32> {
        (0..).zip(&self.used).filter(|(_, used)| **used).map(|(index, _)| index).collect()
    }

    /// A pool of `count` objects of which these are allocated; `None` if they are not in it.
    pub fn restore(count: u32, in_use: &[u32]) -> Option<ObjectPool> {
        let mut pool = ObjectPool::new(count);
        for index in in_use {
            let used = pool.used.get_mut(*index as usize)?;
            pool.allocated += u32::from(!*used);
            *used = true;
        }
        Some(pool)
    }
}

/// A set of buffer indexes.
#[derive(Debug, Clone, Default)]
pub struct IndexSet(Vec<u64>);

impl IndexSet {
    /// An empty set of indexes below `count`.
    pub fn new(count: u32) -> IndexSet {
        IndexSet(vec![0; (count as usize).div_ceil(64)])
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the indexes in the set, in order.
    fn iter(&self) -> impl Iterator<Item = BufIdx> {
        let bits = |word: u64| {
            // Each time without its lowest bit.
            let rest = |word: u64| Some(word).filter(|word| *word != 0);
            let rest = std::iter::successors(rest(word), move |word| rest(word & (word - 1)));
            rest.map(|rest| rest.trailing_zeros())
        };
        (0..).zip(&self.0).flat_map(move |(n, word)| bits(*word).map(move |bit| BufIdx(n * 64 + bit)))
    }

    fn contains(&self, idx: BufIdx) -> bool {
        self.0.get(idx.0 as usize / 64).is_some_and(|word| word >> (idx.0 % 64) & 1 == 1)
    }

    /// Inserts `idx`; returns whether it was not in the set. An index out of bounds is ignored, and `false`.
    pub fn insert(&mut self, idx: BufIdx) -> bool {
        let bit = 1u64 << (idx.0 % 64);
        self.0.get_mut(idx.0 as usize / 64).is_some_and(|word| {
            let new = *word & bit == 0;
            *word |= bit;
            new
        })
    }

    /// Returns the indexes in the set as ranges `(first, end)`, in order.
    fn ranges(&self) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        let mut add = |from: u32, to: u32| match ranges.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => ranges.push((from, to)),
        };
        for (n, word) in (0..).step_by(64).zip(&self.0) {
            match *word {
                0 => {}
                u64::MAX => add(n, n + 64),
                word => (0..64).filter(|bit| word >> bit & 1 == 1).for_each(|bit| add(n + bit, n + bit + 1)),
            }
        }
        ranges
    }

    /// The set of these indexes, all below `count`; `None` if they are not.
    fn of_ranges(count: u32, ranges: &[(u32, u32)]) -> Option<IndexSet> {
        let mut set = IndexSet::new(count);
        for &(from, to) in ranges {
            if to > count {
                return None;
            }
            (from..to).for_each(|idx| _ = set.insert(BufIdx(idx)));
        }
        Some(set)
    }

    fn remove(&mut self, idx: BufIdx) {
        if let Some(word) = self.0.get_mut(idx.0 as usize / 64) {
            *word &= !(1u64 << (idx.0 % 64));
        }
    }
}

/// How many buffers of a region are where. The four counts add up to the pool less its two reserved buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BufUsage {
    /// Not allocated.
    pub free: u32,
    /// In a slot of a bound ring.
    pub in_rings: u32,
    /// In no ring, but not more than the open sessions have as extra buffers: held by a program.
    pub extra: u32,
    /// Allocated but found nowhere: a program lost or duplicated an index. Free again when the region
    /// ends.
    pub missing: u32,
}

/// Allocations of a [`BufPool`], for another process that takes the pool over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedBufs {
    /// The first buffer that was never allocated.
    pub fresh: u32,
    /// Ranges `(first, end)` of allocated buffers, in order.
    pub allocated: Vec<(u32, u32)>,
    /// The same of those that [`BufPool::leave`] recorded.
    pub left: Vec<(u32, u32)>,
}

/// The allocator of a region's buffers. An index that a client left in a ring or list is only a hint: a buffer is freed
/// only if it is allocated and not in a ring that stays.
#[derive(Debug, Clone)]
pub struct BufPool {
    /// Buffers in the pool, the two reserved ones included.
    count: u32,
    /// `[fresh, count)` were never allocated. Not part of `returned`, so that a large pool costs little memory.
    fresh: u32,
    /// Buffers that were allocated before and are free again.
    returned: Vec<BufIdx>,
    allocated_set: IndexSet,
    allocated: u32,
    /// Buffers that [`BufPool::leave`] recorded. Empty: none.
    left: IndexSet,
}

impl BufPool {
    /// A pool of `count` buffers, of which 0 and 1 are reserved.
    pub fn new(count: u32) -> BufPool {
        BufPool {
            count,
            fresh: BufIdx::FIRST.0,
            returned: Vec::new(),
            allocated_set: IndexSet::new(count),
            allocated: 0,
            left: IndexSet::default(),
        }
    }

    /// Returns what is allocated.
    pub fn save(&self) -> SavedBufs {
        SavedBufs { fresh: self.fresh, allocated: self.allocated_set.ranges(), left: self.left.ranges() }
    }

    /// A pool of `count` buffers of which these are allocated; `None` if they do not fit the pool.
    pub fn restore(count: u32, saved: &SavedBufs) -> Option<BufPool> {
        let fresh = saved.fresh;
        let allocated_set = IndexSet::of_ranges(fresh, &saved.allocated).filter(|_| fresh <= count)?;
        let (first, mut pool) = (BufIdx::FIRST.0, BufPool::new(count));
        if fresh < first || saved.allocated.first().is_some_and(|(from, _)| *from < first) {
            return None;
        }
        pool.fresh = fresh;
        pool.returned = (first..fresh).rev().map(BufIdx).filter(|idx| !allocated_set.contains(*idx)).collect();
        pool.allocated = fresh - first - pool.returned.len() as u32;
        pool.allocated_set = allocated_set;
        pool.allocated_set.0.resize((count as usize).div_ceil(64), 0);
        if !saved.left.is_empty() {
            pool.left = IndexSet::of_ranges(count, &saved.left)?;
        }
        Some(pool)
    }

    /// The first buffer that was never allocated.
    pub fn fresh(&self) -> u32 {
        self.fresh
    }

    /// How many of `n` buffers that are allocated next never were before.
    pub fn fresh_of(&self, n: u32) -> u32 {
        n.saturating_sub(self.returned.len() as u32)
    }

    /// The number of free buffers.
    pub fn available(&self) -> u32 {
        self.returned.len() as u32 + (self.count - self.fresh)
    }

    /// The number of allocated buffers.
    pub fn allocated(&self) -> u32 {
        self.allocated
    }

    /// Allocates one buffer.
    pub fn alloc(&mut self) -> Option<BufIdx> {
        let idx = self.returned.pop().or_else(|| {
            let next = (self.fresh < self.count).then_some(BufIdx(self.fresh))?;
            self.fresh += 1;
            Some(next)
        })?;
        self.allocated_set.insert(idx);
        self.allocated += 1;
        Some(idx)
    }

    /// Allocates `n` buffers, or none when fewer are free.
    pub fn alloc_many(&mut self, n: u32) -> Option<Vec<BufIdx>> {
        (self.available() >= n).then(|| (0..n).filter_map(|_| self.alloc()).collect())
    }

    /// Records buffers (in closed rings, in a list of extra buffers) that [`BufPool::reclaim_left`] is to free. Indexes
    /// out of bounds or of free buffers are ignored.
    pub fn leave(&mut self, found: impl IntoIterator<Item = BufIdx>) {
        for idx in found {
            if self.allocated_set.contains(idx) {
                if self.left.is_empty() {
                    self.left = IndexSet::new(self.count);
                }
                self.left.insert(idx);
            }
        }
    }

    /// Frees the buffers that were left and are not in `in_use`, the slots of all rings that stay.
    pub fn reclaim_left(&mut self, in_use: impl IntoIterator<Item = BufIdx>) {
        if !self.left.is_empty() {
            let left = std::mem::take(&mut self.left);
            self.reclaim(left.iter(), in_use);
        }
    }

    /// Frees the buffers `found` (in closed rings, in a list of extra buffers) that are allocated and not in `in_use`,
    /// the slots of all rings that stay. Other indexes in `found` are ignored: out of bounds, free, or repeated.
    /// Returns how many were freed.
    pub fn reclaim(
        &mut self,
        found: impl IntoIterator<Item = BufIdx>,
        in_use: impl IntoIterator<Item = BufIdx>,
    ) -> u32 {
        let mut keep = IndexSet::new(self.count);
        for idx in in_use {
            keep.insert(idx);
        }
        let mut freed = 0;
        for idx in found {
            if self.allocated_set.contains(idx) && !keep.contains(idx) {
                self.allocated_set.remove(idx);
                self.returned.push(idx);
                freed += 1;
            }
        }
        self.allocated -= freed;
        freed
    }

    /// Counts every buffer. `in_use` are the slots of all bound rings, `extra` the extra buffers of all open sessions.
    /// Buffers that [`BufPool::reclaim_left`] would free are free.
    pub fn usage(&self, in_use: impl IntoIterator<Item = BufIdx>, extra: u32) -> BufUsage {
        let mut seen = IndexSet::new(self.count);
        let in_rings =
            in_use.into_iter().filter(|&idx| self.allocated_set.contains(idx) && seen.insert(idx)).count() as u32;
        let left =
            self.left.iter().filter(|idx| self.allocated_set.contains(*idx) && !seen.contains(*idx)).count() as u32;
        let elsewhere = self.allocated - in_rings - left;
        let extra = extra.min(elsewhere);
        BufUsage { free: self.available() + left, in_rings, extra, missing: elsewhere - extra }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn idx(raw: &[u32]) -> Vec<BufIdx> {
        raw.iter().copied().map(BufIdx).collect()
    }

    #[test]
    fn reserved_buffers_are_never_allocated() {
        let mut pool = BufPool::new(4);
        assert_eq!(pool.alloc_many(3), None);
        assert_eq!(pool.alloc_many(2), Some(idx(&[2, 3])));
        assert_eq!(pool.alloc(), None);
    }

    #[test]
    fn the_lowest_free_object_is_allocated() {
        let mut pool = ObjectPool::new(4);
        assert_eq!([(); 5].map(|()| pool.alloc()), [Some(0), Some(1), Some(2), Some(3), None]);
        [2, 0, 2, 9].into_iter().for_each(|index| pool.free(index));
        assert_eq!([(); 3].map(|()| pool.alloc()), [Some(0), Some(2), None]);
    }

    #[test]
    fn an_object_is_allocated_by_its_number_if_it_is_free() {
        let mut pool = ObjectPool::new(4);
        assert_eq!([2, 2, 4].map(|index| pool.alloc_at(index)), [Some(2), None, None]);
        assert_eq!([(); 4].map(|()| pool.alloc()), [Some(0), Some(1), Some(3), None]);
        pool.free(2);
        assert_eq!((pool.alloc_at(2), pool.allocated()), (Some(2), 4));
    }

    #[test]
    fn nothing_is_freed_twice_or_while_in_a_ring() {
        let mut pool = BufPool::new(10);
        pool.alloc_many(4);
        // 2 twice, 3 still in a ring, 9 never allocated, 0 reserved, one out of bounds.
        assert_eq!(pool.reclaim(idx(&[2, 2, 3, 9, 0, u32::MAX]), idx(&[3])), 1);
        assert_eq!(pool.usage(idx(&[3, 3, 9]), 1), BufUsage { free: 5, in_rings: 1, extra: 1, missing: 1 });
    }

    #[test]
    fn invalid_pools_are_not_restored() {
        let saved = |fresh, allocated: &[(u32, u32)]| SavedBufs { fresh, allocated: allocated.into(), left: vec![] };
        assert!(BufPool::restore(10, &saved(10, &[(2, 10)])).is_some());
        for (fresh, allocated) in [(11, &[(2, 3)]), (1, &[(2, 2)]), (5, &[(2, 6)]), (5, &[(1, 3)])] {
            assert!(BufPool::restore(10, &saved(fresh, allocated)).is_none(), "{fresh} {allocated:?}");
        }
        assert!(ObjectPool::restore(3, &[0, 3]).is_none());
        assert_eq!(ObjectPool::restore(3, &[0, 2, 2]).unwrap().in_use(), [0, 2]);
    }

    proptest! {
        /// Every buffer is counted exactly once, for any indexes that clients leave in rings and lists.
        #[test]
        fn every_buffer_stays_accounted_for(
            steps in proptest::collection::vec((0u32..12, proptest::collection::vec(0u32..40, 0..20)), 1..30),
        ) {
            let mut pool = BufPool::new(32);
            for (n, found) in steps {
                pool.alloc_many(n);
                let (gone, in_use) = found.split_at(found.len() / 2);
                pool.leave(idx(gone));
                let c = pool.usage(idx(in_use), 3);
                prop_assert_eq!(c.free + c.in_rings + c.extra + c.missing, 30);
                let restored = BufPool::restore(32, &pool.save()).unwrap();
                prop_assert_eq!(restored.usage(idx(in_use), 3), c);
                prop_assert_eq!(restored.save(), pool.save());
                pool = restored;
                pool.reclaim_left(idx(in_use));
                prop_assert_eq!(pool.usage(idx(in_use), 3), c);
                prop_assert_eq!(pool.available(), c.free);
                let mut all = pool.returned.clone();
                all.sort();
                all.dedup();
                prop_assert_eq!(all.len(), pool.returned.len());
            }
        }
    }
}
