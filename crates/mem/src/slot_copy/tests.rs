// SPDX-License-Identifier: BSD-2-Clause
//! Every slot copy that this CPU can run, against a naive one that works on bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use unetmap_abi::NS_BUF_CHANGED;
use unetmap_sys::{Mapping, memfd};

use super::*;
use crate::mapped_range::MappedRange;
use crate::pos::{BufIdx, Slots};
use crate::slot::SlotValue;

/// Bytes before and after each ring, which no copy may change.
const GUARD: usize = 256;

/// Two rings of `n` slots with guards around them.
struct Rings {
    range: MappedRange,
    from: SlotRing,
    to: SlotRing,
}

impl Rings {
    fn new(n: u32) -> Rings {
        let slots = Slots::new(n).unwrap();
        let room = (n as usize * SLOT_BYTES).next_multiple_of(64) + GUARD;
        let bytes = (GUARD + 2 * room).next_multiple_of(4096);
        let fd = memfd::create_sealed("test", bytes as u64).unwrap();
        let range = MappedRange::whole(Arc::new(Mapping::new(std::os::fd::AsFd::as_fd(&fd), bytes).unwrap()));
        let from = SlotRing::new(&range, GUARD, slots).unwrap();
        let to = SlotRing::new(&range, GUARD + room, slots).unwrap();
        Rings { range, from, to }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.range.len()];
        // SAFETY: the range has that many bytes (M2).
        unsafe { std::ptr::copy_nonoverlapping(self.range.base(), out.as_mut_ptr(), out.len()) };
        out
    }

    fn set_bytes(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.range.len());
        // SAFETY: the range has that many bytes (M2).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.range.base(), bytes.len()) };
    }

    /// Byte offsets of slot `raw` of the two rings.
    fn slot_offsets(&self, raw: usize) -> (usize, usize) {
        let base = self.range.base() as usize;
        (self.from.at(Pos::ZERO) as usize - base + raw * 16, self.to.at(Pos::ZERO) as usize - base + raw * 16)
    }

    /// All of memory after a copy, and its result, computed byte by byte.
    fn oracle(&self, before: &[u8], from: u32, to: u32, limits: Limits) -> (Vec<u8>, Copied) {
        let mut after = before.to_vec();
        let mut copied = Copied { valid: true, bytes: 0 };
        let n = self.from.slots().get();
        let mut raw = from;
        while raw != to {
            let (src, dst) = self.slot_offsets(raw as usize);
            let index = u32::from_le_bytes(before[src..src + 4].try_into().unwrap());
            let len = u16::from_le_bytes(before[src + 4..src + 6].try_into().unwrap());
            copied.valid &= (2..limits.bufs).contains(&index) && u32::from(len) <= limits.buf_size;
            copied.bytes += u64::from(len);
            after[src + 6] &= !(NS_BUF_CHANGED as u8);
            for i in 0..16 {
                after[dst + i] = after[src + i];
            }
            raw = (raw + 1) % n;
        }
        (after, copied)
    }

    /// Copies `[from, to)` at every SIMD level and compares all of memory with the oracle's.
    fn compare(&self, before: &[u8], from: u32, to: u32, limits: Limits) {
        let (after, expected) = self.oracle(before, from, to, limits);
        let pos = |raw| self.from.slots().pos(raw).unwrap();
        for simd in SimdLevel::available() {
            self.set_bytes(before);
            let result = copy_slots(simd, &self.from, &self.to, Span { from: pos(from), to: pos(to) }, limits);
            let n = self.from.slots().get();
            assert_eq!(result, expected, "{simd:?}: result for [{from}, {to}) of {n}, {limits:?}");
            assert!(self.bytes() == after, "{simd:?}: memory after [{from}, {to}) of {n}");
        }
    }
}

/// Pseudo-random numbers, the same in each run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.next() >> 33) as usize % of.len()]
    }
}

fn indexes(limits: Limits) -> [u32; 8] {
    [0, 1, 2, limits.bufs - 1, limits.bufs, limits.bufs.wrapping_add(1), 0x8000_0000, u32::MAX]
}

fn lengths(limits: Limits) -> [u16; 5] {
    let cut = |n: u32| n.min(65535) as u16;
    [0, 60, cut(limits.buf_size), cut(limits.buf_size + 1), u16::MAX]
}

/// A slot within the limits, with arbitrary flags and pointer.
fn valid_slot(noise: &mut Noise, limits: Limits) -> SlotValue {
    SlotValue {
        buf_idx: BufIdx(2 + (noise.next() as u32) % (limits.bufs - 2)),
        len: ((noise.next() as u32) % (limits.buf_size + 1)).min(65535) as u16,
        flags: noise.next() as u16,
        ptr: noise.next(),
    }
}

const LIMITS: [Limits; 5] = [
    Limits { bufs: 4, buf_size: 64 },
    Limits { bufs: 3000, buf_size: 2048 },
    Limits { bufs: 1_000_000, buf_size: 65536 },
    Limits { bufs: 0x8000_0001, buf_size: 65535 },
    Limits { bufs: u32::MAX, buf_size: 1 },
];

#[test]
fn all_levels_copy_every_span_of_small_rings_alike() {
    let mut noise = Noise(1);
    for n in (2..=13).chain([16, 17]) {
        let rings = Rings::new(n);
        let slots = rings.from.slots();
        for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (from, to))) {
            for limits in LIMITS {
                // Round 0: all valid. Round 1: the index of one slot is out of bounds, round 2: the length of one slot.
                for round in 0..3 {
                    rings.set_bytes(&(0..rings.range.len()).map(|_| noise.next() as u8).collect::<Vec<_>>());
                    for raw in 0..n {
                        rings.from.store(slots.pos(raw).unwrap(), valid_slot(&mut noise, limits));
                    }
                    let victim = slots.pos((noise.next() >> 33) as u32 % n).unwrap();
                    match round {
                        0 => {}
                        1 => rings.from.set_buf_idx(victim, BufIdx(noise.one_of(&indexes(limits)))),
                        _ => rings.from.set_len(victim, noise.one_of(&lengths(limits))),
                    }
                    rings.compare(&rings.bytes(), from, to, limits);
                }
            }
        }
    }
}

/// Each boundary value in each lane of a line, alone.
#[test]
fn every_lane_validates_every_boundary() {
    let mut noise = Noise(2);
    let rings = Rings::new(12);
    let slots = rings.from.slots();
    for limits in LIMITS {
        for victim in 0..12 {
            let victim = slots.pos(victim).unwrap();
            for (index, len) in indexes(limits).into_iter().flat_map(|i| lengths(limits).map(|l| (i, l))) {
                for raw in 0..12 {
                    rings.from.store(slots.pos(raw).unwrap(), valid_slot(&mut noise, limits));
                }
                rings.from.set_buf_idx(victim, BufIdx(index));
                rings.from.set_len(victim, len);
                rings.compare(&rings.bytes(), 0, 11, limits);
                rings.compare(&rings.bytes(), 3, 2, limits);
            }
        }
    }
}

#[test]
fn buf_changed_is_found_in_every_slot_of_every_span() {
    for n in (2..=13).chain([16, 17]) {
        let rings = Rings::new(n);
        let slots = rings.from.slots();
        let pos = |raw| slots.pos(raw).unwrap();
        let all_but = SlotValue { buf_idx: BufIdx(u32::MAX), len: u16::MAX, flags: !NS_BUF_CHANGED, ptr: u64::MAX };
        rings.set_bytes(&vec![0xff; rings.range.len()]);
        (0..n).for_each(|raw| rings.from.store(pos(raw), all_but));
        for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (from, to))) {
            let span = Span { from: pos(from), to: pos(to) };
            for simd in SimdLevel::available() {
                assert!(!any_buf_changed(simd, &rings.from, span), "{simd:?}: found in [{from}, {to}) of {n}");
                for marked in 0..n {
                    let mut inside = false;
                    let mut raw = from;
                    while raw != to {
                        inside |= raw == marked;
                        raw = (raw + 1) % n;
                    }
                    rings.from.set_flags(pos(marked), NS_BUF_CHANGED);
                    let found = any_buf_changed(simd, &rings.from, span);
                    rings.from.set_flags(pos(marked), !NS_BUF_CHANGED);
                    assert_eq!(found, inside, "{simd:?}: slot {marked} for [{from}, {to}) of {n}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn all_levels_copy_spans_of_large_rings_alike(
        n in prop_oneof![Just(64u32), Just(1024), Just(4095), 2u32..1500],
        at in any::<(u32, u32)>(), which in 0usize..LIMITS.len(), seed in 1u64..,
        bad in proptest::option::of(any::<u32>()),
    ) {
        let (rings, limits, mut noise) = (Rings::new(n), LIMITS[which], Noise(seed));
        let slots = rings.from.slots();
        rings.set_bytes(&(0..rings.range.len()).map(|_| noise.next() as u8).collect::<Vec<_>>());
        for raw in 0..n {
            rings.from.store(slots.pos(raw).unwrap(), valid_slot(&mut noise, limits));
        }
        if let Some(bad) = bad {
            rings.from.set_buf_idx(slots.pos(bad % n).unwrap(), BufIdx(noise.one_of(&indexes(limits))));
        }
        rings.compare(&rings.bytes(), at.0 % n, at.1 % n, limits);
    }
}

/// A claim writes only flags, and only of slots inside the span: all other words that the producer writes at the same
/// time keep its values.
#[test]
fn a_claim_overwrites_nothing_else() {
    let limits = Limits { bufs: 1000, buf_size: 2048 };
    for simd in SimdLevel::available() {
        let rings = Rings::new(12);
        let slots = rings.from.slots();
        let pos = |raw| slots.pos(raw).unwrap();
        // Lead, whole lines and tail: slots 3..10; the producer owns 0..3 and 10..12.
        let span = Span { from: pos(3), to: pos(10) };
        let stop = AtomicBool::new(false);
        let overwritten = std::thread::scope(|scope| {
            let producer = scope.spawn(|| {
                let mut round = 0u32;
                let mut overwritten = 0;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    for raw in 0..12 {
                        let (p, own) = (pos(raw), !(3..10).contains(&raw));
                        let v = SlotValue {
                            buf_idx: BufIdx(2 + round % 900),
                            len: (round % 2000) as u16,
                            flags: if own { round as u16 } else { 0 },
                            ptr: u64::from(round),
                        };
                        rings.from.store(p, v);
                        // Long enough for a copy to run in between.
                        (0..round % 40).for_each(|_| std::hint::spin_loop());
                        let got = rings.from.load(p);
                        overwritten += u32::from(got != v);
                    }
                }
                overwritten
            });
            for _ in 0..30_000 {
                copy_slots(simd, &rings.from, &rings.to, span, limits);
            }
            stop.store(true, Ordering::Relaxed);
            producer.join().unwrap()
        });
        assert_eq!(overwritten, 0, "{simd:?}");
    }
}
