// SPDX-License-Identifier: BSD-2-Clause
//! Positions in a ring and indexes of buffers. They are types of their own so that they are never confused with each
//! other and positions, which wrap, are never compared with a bare `<`.

use std::fmt;

/// The number of slots of a ring, 2..=[`Slots::MAX`], and the arithmetic of its positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots(u32);

/// The position of a slot in a ring, below the ring's number of slots (M3). Positions wrap, so they have no order; use
/// [`Slots::distance`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pos(u32);

/// The half-open interval `[from, to)` of positions in ring order; empty when both are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// First position inside.
    pub from: Pos,
    /// First position past the end.
    pub to: Pos,
}

/// The index of a buffer in its region. A slot can hold any value; [`crate::Region::frame`] checks whether the buffer
/// exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BufIdx(pub u32);

impl BufIdx {
    /// The first index that is allocated: 0 and 1 are reserved in every region.
    pub const FIRST: BufIdx = BufIdx(2);
}

impl fmt::Display for BufIdx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Pos {
    /// Position 0, which every ring has.
    pub const ZERO: Pos = Pos(0);

    /// The number, for a word in shared memory or for printing.
    #[inline(always)]
    pub fn raw(self) -> u32 {
        self.0
    }
}

impl Slots {
    /// The largest ring.
    pub const MAX: u32 = 16384;

    /// A ring of `n` slots; `None` unless `n` is 2..=[`Slots::MAX`].
    pub const fn new(n: u32) -> Option<Slots> {
        if n >= 2 && n <= Self::MAX { Some(Slots(n)) } else { None }
    }

    /// The number of slots.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Validates a number from shared memory: the position, or `None` when this ring has no such slot.
    #[inline(always)]
    pub fn pos(self, raw: u32) -> Option<Pos> {
        (raw < self.0).then_some(Pos(raw))
    }

    /// The position after `p`.
    #[inline(always)]
    pub fn next(self, p: Pos) -> Pos {
        if p.0 + 1 >= self.0 { Pos(0) } else { Pos(p.0 + 1) }
    }

    /// The position before `p`.
    #[inline(always)]
    pub fn prev(self, p: Pos) -> Pos {
        if p.0 == 0 { Pos(self.0 - 1) } else { Pos(p.0 - 1) }
    }

    /// The position `n` steps after `p`; `n` is at most the number of slots.
    #[inline(always)]
    pub fn add(self, p: Pos, n: u32) -> Pos {
        debug_assert!(n <= self.0);
        let sum = p.0 + n;
        // The remainder too, so that even an `n` out of bounds (a bug of the caller) cannot make a position out of
        // range (M3).
        if sum < self.0 { Pos(sum) } else { Pos((sum - self.0) % self.0) }
    }

    /// Steps from `from` forward to `to`: 0 when equal, else 1..n.
    #[inline(always)]
    pub fn distance(self, from: Pos, to: Pos) -> u32 {
        if to.0 >= from.0 { to.0 - from.0 } else { to.0 + self.0 - from.0 }
    }

    /// Whether `p` lies in the closed walk from `from` to `last`, as netmap's rules for `head` and `cur` require.
    #[inline(always)]
    pub fn between(self, from: Pos, p: Pos, last: Pos) -> bool {
        self.distance(from, p) <= self.distance(from, last)
    }

    /// The one or two contiguous runs `(first slot, slots)` of `span`; the second may be empty.
    #[inline(always)]
    pub fn runs(self, span: Span) -> [(Pos, u32); 2] {
        let Span { from, to } = span;
        if to.0 >= from.0 { [(from, to.0 - from.0), (Pos(0), 0)] } else { [(from, self.0 - from.0), (Pos(0), to.0)] }
    }

    /// The positions of a run from [`Slots::runs`], without a wrap test at each.
    #[inline(always)]
    pub fn run(self, (start, count): (Pos, u32)) -> impl Iterator<Item = Pos> {
        (start.0..start.0.saturating_add(count).min(self.0)).map(Pos)
    }

    /// All positions of `span` in order.
    pub fn walk(self, span: Span) -> impl Iterator<Item = Pos> {
        let mut p = span.from;
        (0..self.distance(span.from, span.to)).map(move |_| {
            let here = p;
            p = self.next(p);
            here
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All methods, against plain modular arithmetic.
    #[test]
    fn arithmetic_agrees_with_modulo_on_all_small_rings() {
        for n in 2..=9u32 {
            let s = Slots::new(n).unwrap();
            for a in 0..n {
                let pa = s.pos(a).unwrap();
                assert_eq!(s.next(pa).raw(), (a + 1) % n);
                assert_eq!(s.prev(pa).raw(), (a + n - 1) % n);
                for b in 0..n {
                    let pb = s.pos(b).unwrap();
                    assert_eq!(s.distance(pa, pb), (b + n - a) % n);
                    assert_eq!(s.add(pa, b).raw(), (a + b) % n);
                    let span = Span { from: pa, to: pb };
                    let walked: Vec<u32> = s.walk(span).map(Pos::raw).collect();
                    let expected: Vec<u32> = (0..(b + n - a) % n).map(|k| (a + k) % n).collect();
                    assert_eq!(walked, expected);
                    let by_runs: Vec<u32> = s.runs(span).iter().flat_map(|&(p, len)| p.raw()..p.raw() + len).collect();
                    assert_eq!(by_runs, expected);
                    for c in 0..n {
                        let pc = s.pos(c).unwrap();
                        let mut on_the_way = vec![b];
                        on_the_way.extend(s.walk(Span { from: pa, to: pb }).map(Pos::raw));
                        assert_eq!(s.between(pa, pc, pb), on_the_way.contains(&c));
                    }
                }
            }
            assert_eq!(s.pos(n), None);
            assert_eq!(s.pos(u32::MAX), None);
        }
    }

    #[test]
    fn sizes_out_of_bounds_are_refused() {
        assert!(Slots::new(0).is_none());
        assert!(Slots::new(1).is_none());
        assert!(Slots::new(Slots::MAX).is_some());
        assert!(Slots::new(Slots::MAX + 1).is_none());
    }
}
