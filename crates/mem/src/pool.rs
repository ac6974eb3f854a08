//! Who holds which object of a region: the daemon's private books, which no client can write.

use crate::pos::BufIdx;

/// Which of a pool's objects (interfaces, rings) are handed out.
#[derive(Debug, Clone)]
pub struct ObjectPool {
    used: Vec<bool>,
    taken: u32,
}

impl ObjectPool {
    /// `count` objects, all free.
    pub fn new(count: u32) -> ObjectPool {
        ObjectPool { used: vec![false; count as usize], taken: 0 }
    }

    /// Takes the lowest free object, so that few pages are touched; `None` when all are out.
    pub fn take(&mut self) -> Option<u32> {
        let index = self.used.iter().position(|used| !used)?;
        self.used[index] = true;
        self.taken += 1;
        u32::try_from(index).ok()
    }

    /// Gives object `index` back; one that was not taken is ignored.
    pub fn give(&mut self, index: u32) {
        if let Some(used) = self.used.get_mut(index as usize).filter(|used| **used) {
            *used = false;
            self.taken -= 1;
        }
    }

    /// Objects that are handed out.
    pub fn taken(&self) -> u32 {
        self.taken
    }
}

/// A set of buffer indexes.
#[derive(Debug, Clone)]
pub struct IndexSet(Vec<u64>);

impl IndexSet {
    /// An empty set of indexes below `count`.
    pub fn new(count: u32) -> IndexSet {
        IndexSet(vec![0; (count as usize).div_ceil(64)])
    }

    fn contains(&self, idx: BufIdx) -> bool {
        self.0.get(idx.0 as usize / 64).is_some_and(|word| word >> (idx.0 % 64) & 1 == 1)
    }

    /// Returns whether it was new; an index out of bounds is not.
    pub fn insert(&mut self, idx: BufIdx) -> bool {
        let bit = 1u64 << (idx.0 % 64);
        self.0.get_mut(idx.0 as usize / 64).is_some_and(|word| {
            let new = *word & bit == 0;
            *word |= bit;
            new
        })
    }

    fn remove(&mut self, idx: BufIdx) {
        if let Some(word) = self.0.get_mut(idx.0 as usize / 64) {
            *word &= !(1u64 << (idx.0 % 64));
        }
    }
}

/// Where all buffers of a region are. The four counts add up to the pool less its two reserved buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// In the pool.
    pub free: u32,
    /// In a slot of a living ring.
    pub in_rings: u32,
    /// In no ring, but not more than the living sessions took as extra buffers: in a program's hands.
    pub extra: u32,
    /// Found nowhere: some program lost or duplicated an index. Free again when the region's last session closes.
    pub quarantined: u32,
}

/// Which buffers of a region are handed out. An index that a client left somewhere is only ever a hint: what is freed
/// must be handed out, and must not be in a living ring.
#[derive(Debug, Clone)]
pub struct BufPool {
    /// Buffers, the two reserved ones included.
    count: u32,
    /// Never handed out yet: `[fresh, count)`. Kept apart from `returned` so that a large pool costs little memory.
    fresh: u32,
    /// Handed out before, and back.
    returned: Vec<BufIdx>,
    out: IndexSet,
    taken: u32,
}

impl BufPool {
    /// A pool of `count` buffers, of which 0 and 1 are reserved.
    pub fn new(count: u32) -> BufPool {
        BufPool { count, fresh: BufIdx::FIRST.0, returned: Vec::new(), out: IndexSet::new(count), taken: 0 }
    }

    /// Buffers that can be handed out now.
    pub fn free(&self) -> u32 {
        self.returned.len() as u32 + (self.count - self.fresh)
    }

    /// Buffers that are handed out.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Takes one buffer.
    pub fn take(&mut self) -> Option<BufIdx> {
        let idx = self.returned.pop().or_else(|| {
            let next = (self.fresh < self.count).then_some(BufIdx(self.fresh))?;
            self.fresh += 1;
            Some(next)
        })?;
        self.out.insert(idx);
        self.taken += 1;
        Some(idx)
    }

    /// Takes `n` buffers, or none when there are fewer.
    pub fn take_many(&mut self, n: u32) -> Option<Vec<BufIdx>> {
        (self.free() >= n).then(|| (0..n).filter_map(|_| self.take()).collect())
    }

    /// Frees the buffers `found` (in closed rings, in a list of extra buffers) that are handed out and not in `living`,
    /// the slots of all rings that stay. Anything else in `found` is ignored: out of bounds, free, twice. Returns how
    /// many were freed.
    pub fn reclaim(
        &mut self,
        found: impl IntoIterator<Item = BufIdx>,
        living: impl IntoIterator<Item = BufIdx>,
    ) -> u32 {
        let mut keep = IndexSet::new(self.count);
        for idx in living {
            keep.insert(idx);
        }
        let mut freed = 0;
        for idx in found {
            if self.out.contains(idx) && !keep.contains(idx) {
                self.out.remove(idx);
                self.returned.push(idx);
                freed += 1;
            }
        }
        self.taken -= freed;
        freed
    }

    /// Counts every buffer: `living` are the slots of all living rings, `extra` what the living sessions took besides.
    pub fn census(&self, living: impl IntoIterator<Item = BufIdx>, extra: u32) -> Census {
        let mut seen = IndexSet::new(self.count);
        let in_rings = living.into_iter().filter(|&idx| self.out.contains(idx) && seen.insert(idx)).count() as u32;
        let elsewhere = self.taken - in_rings;
        let extra = extra.min(elsewhere);
        Census { free: self.free(), in_rings, extra, quarantined: elsewhere - extra }
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
    fn reserved_buffers_are_never_handed_out() {
        let mut pool = BufPool::new(4);
        assert_eq!(pool.take_many(3), None);
        assert_eq!(pool.take_many(2), Some(idx(&[2, 3])));
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn nothing_is_freed_twice_or_under_a_living_ring() {
        let mut pool = BufPool::new(10);
        pool.take_many(4);
        // 2 twice, 3 still in a ring, 9 never handed out, 0 reserved, one out of bounds.
        assert_eq!(pool.reclaim(idx(&[2, 2, 3, 9, 0, u32::MAX]), idx(&[3])), 1);
        assert_eq!(pool.census(idx(&[3, 3, 9]), 1), Census { free: 5, in_rings: 1, extra: 1, quarantined: 1 });
    }

    proptest! {
        /// Whatever clients leave in rings and lists, every buffer stays counted exactly once.
        #[test]
        fn every_buffer_stays_accounted_for(
            steps in proptest::collection::vec((0u32..12, proptest::collection::vec(0u32..40, 0..20)), 1..30),
        ) {
            let mut pool = BufPool::new(32);
            for (n, found) in steps {
                pool.take_many(n);
                let (gone, living) = found.split_at(found.len() / 2);
                pool.reclaim(idx(gone), idx(living));
                let c = pool.census(idx(living), 3);
                prop_assert_eq!(c.free + c.in_rings + c.extra + c.quarantined, 30);
                let mut all = pool.returned.clone();
                all.sort();
                all.dedup();
                prop_assert_eq!(all.len(), pool.returned.len());
            }
        }
    }
}
