// SPDX-License-Identifier: BSD-2-Clause
use proptest::prelude::*;

use super::*;
use crate::pos::Slots;
use crate::region::Geometry;
use crate::ring::{RingShape, RingView};

const SLOTS: u32 = 16;
const TO: [u8; MAC_PAIR_BYTES] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

/// A region with one ring, whose slots name the buffers from 2 on.
fn region(buf_size: u32) -> (Region, SlotRing) {
    let g = Geometry::new((1, 256), (2, 512), (2 + SLOTS, buf_size)).unwrap();
    let (region, _fd) = Region::create("test", g).unwrap();
    let slots = Slots::new(SLOTS).unwrap();
    let view = RingView::new(&region, RingShape { offset: g.rings.offset, slots, id: 0, dir: 0 }).unwrap();
    view.format();
    for raw in 0..SLOTS {
        view.slots().set_buf_idx(slots.pos(raw).unwrap(), BufIdx(2 + raw));
    }
    let slots = view.slots().clone();
    (region, slots)
}

fn bytes(region: &Region, idx: BufIdx) -> Vec<u8> {
    let mut out = vec![0; region.limits().buf_size as usize];
    region.frame(idx).read(0, &mut out);
    out
}

/// A fault of a packet of a run, or of its receiving slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    None,
    /// Another address, in this byte.
    OtherAddress(usize),
    Fragment,
    Port,
    Short,
    Long,
    NoSource(u32),
    NoTarget(u32),
}

/// Mostly none. An index out of bounds is a reserved one, `beyond`, or `u32::MAX`.
pub(crate) fn fault(beyond: u32) -> impl Strategy<Value = Fault> {
    let idx = prop_oneof![0..2u32, Just(beyond), Just(u32::MAX)];
    prop_oneof![
        40 => Just(Fault::None),
        1 => (0..MAC_PAIR_BYTES).prop_map(Fault::OtherAddress),
        1 => Just(Fault::Fragment),
        1 => Just(Fault::Port),
        1 => Just(Fault::Short),
        1 => Just(Fault::Long),
        1 => idx.clone().prop_map(Fault::NoSource),
        1 => idx.prop_map(Fault::NoTarget),
    ]
}

proptest! {
    /// Every SIMD level stops at the first packet that is not of the run, copies exactly the packets before it, and
    /// changes nothing else.
    #[test]
    fn runs_are_copied_up_to_the_first_packet_outside(
        packets in prop::collection::vec((14..600u16, fault(2 + SLOTS)), SLOTS as usize),
        from in 0..SLOTS, to in 0..SLOTS, max in 0..40u32, wide: bool,
    ) {
        for simd in SimdLevel::available() {
            let (source, source_slots) = region(if wide { 1024 } else { 512 });
            let (target, target_slots) = region(512);
            let slots = target_slots.slots();
            let mut expected = 0;
            for (i, (len, fault)) in (0..).zip(&packets) {
                let at = slots.add(slots.pos(from).unwrap(), i);
                let into = slots.add(slots.pos(to).unwrap(), i);
                let idx = source_slots.buf_idx(at);
                let len = match fault {
                    Fault::Short => 13,
                    Fault::Long => 513,
                    _ => (*len).min(512),
                };
                let noise: Vec<u8> = (0..512).map(|b| (b * 7 + i as usize) as u8).collect();
                source.frame(idx).write(0, &noise);
                source.frame(idx).write(0, &TO);
                source_slots.set_len_flags(at, len, 0x0009);
                target.frame(target_slots.buf_idx(into)).write(0, &[0xaa; 512]);
                target_slots.set_len_flags(into, 0xbbbb, 0xcccc);
                match *fault {
                    Fault::OtherAddress(byte) => { source.frame(idx).write(byte, &[TO[byte] ^ 0x10]); }
                    Fault::Fragment => source_slots.set_flags(at, NS_MOREFRAG),
                    Fault::Port => source_slots.set_flags(at, 0x0100),
                    Fault::NoSource(idx) => source_slots.set_buf_idx(at, BufIdx(idx)),
                    Fault::NoTarget(idx) => target_slots.set_buf_idx(into, BufIdx(idx)),
                    _ => {}
                }
                let room = i < max.min(SLOTS - from).min(SLOTS - to);
                if room && expected == i && *fault == Fault::None {
                    expected += 1;
                }
            }
            let run = Run { addresses: TO, flags: 0x0100, max };
            let pos = |raw| slots.pos(raw).unwrap();
            let read = RingRef { slots: &source_slots, region: &source };
            let write = RingRef { slots: &target_slots, region: &target };
            let lens = (0..expected).map(|i| u64::from(source_slots.len(slots.add(pos(from), i))));
            let moved = Moved { packets: expected, bytes: lens.sum() };
            prop_assert_eq!(copy_run(simd, read, pos(from), write, pos(to), run), moved, "{:?}", simd);
            for i in 0..SLOTS {
                let (at, into) = (slots.add(pos(from), i), slots.add(pos(to), i));
                if i >= expected {
                    prop_assert_eq!(target_slots.len_flags(into), (0xbbbb, 0xcccc));
                    continue;
                }
                let len = source_slots.len(at);
                prop_assert_eq!(target_slots.len_flags(into), (len, 0x0100));
                let sent = bytes(&source, source_slots.buf_idx(at));
                let got = bytes(&target, target_slots.buf_idx(into));
                let (len, padded) = (usize::from(len), usize::from(len).next_multiple_of(64));
                prop_assert_eq!(&got[..len], &sent[..len]);
                prop_assert!(got[len..padded].iter().all(|b| *b == 0) || got[len..padded].iter().all(|b| *b == 0xaa));
                prop_assert!(got[padded..].iter().all(|b| *b == 0xaa), "beyond the packet");
            }
        }
    }

    /// The same for a list of packets in any order: each is copied unchanged to the slot of its rank.
    #[test]
    fn listed_packets_are_copied_up_to_the_first_that_does_not_fit(
        packets in prop::collection::vec((0..600u16, fault(2 + SLOTS)), 0..40usize),
        to in 0..SLOTS, wide: bool,
    ) {
        for simd in SimdLevel::available() {
            let (source, source_slots) = region(if wide { 1024 } else { 512 });
            let (target, target_slots) = region(512);
            let slots = target_slots.slots();
            let pos = |raw| slots.pos(raw).unwrap();
            for raw in 0..SLOTS {
                let noise: Vec<u8> = (0..512).map(|b| (b * 7 + raw as usize) as u8).collect();
                source.frame(BufIdx(2 + raw)).write(0, &noise);
                target.frame(BufIdx(2 + raw)).write(0, &[0xaa; 512]);
                target_slots.set_len_flags(pos(raw), 0xbbbb, 0xcccc);
            }
            // Slot 0 is used to make all the slot heads.
            let (mut heads, mut expected, mut good) = (Vec::new(), 0, true);
            for (i, (len, fault)) in (0..).zip(&packets) {
                let (mut idx, mut len) = (BufIdx(2 + (i * 5) % SLOTS), (*len).min(512));
                match *fault {
                    Fault::Long => len = 513,
                    Fault::NoSource(bad) => idx = BufIdx(bad),
                    Fault::NoTarget(bad) if to + i < SLOTS => target_slots.set_buf_idx(pos(to + i), BufIdx(bad)),
                    _ => {}
                }
                source_slots.store(pos(0), SlotValue { buf_idx: idx, len, flags: 9, ptr: 7 });
                heads.push(source_slots.head(pos(0)));
                good &= to + i < SLOTS && !matches!(fault, Fault::Long | Fault::NoSource(_) | Fault::NoTarget(_));
                expected += u32::from(good);
            }
            let write = RingRef { slots: &target_slots, region: &target };
            let lens = heads.iter().take(expected as usize).map(|head| u64::from(head.len()));
            let moved = Moved { packets: expected, bytes: lens.sum() };
            prop_assert_eq!(copy_list(simd, &source, &heads, write, pos(to), 0x0100), moved, "{:?}", simd);
            for (i, head) in (0..).zip(&heads) {
                let into = slots.add(pos(to), i % SLOTS);
                if i >= expected {
                    // Past the end of the ring `add` wraps to its start, which is not checked here.
                    prop_assert!(i >= SLOTS || target_slots.len_flags(into) == (0xbbbb, 0xcccc));
                    continue;
                }
                prop_assert_eq!(target_slots.len_flags(into), (head.len(), 0x0100));
                let (sent, got) = (bytes(&source, head.buf_idx()), bytes(&target, target_slots.buf_idx(into)));
                let (len, padded) = (usize::from(head.len()), usize::from(head.len()).next_multiple_of(64));
                prop_assert_eq!(&got[..len], &sent[..len]);
                prop_assert!(got[len..padded].iter().all(|b| *b == 0) || got[len..padded].iter().all(|b| *b == 0xaa));
                prop_assert!(got[padded..].iter().all(|b| *b == 0xaa), "beyond the packet");
            }
        }
    }

    #[test]
    fn packets_are_cut_to_the_smaller_buffer(len in 0..1000usize, wide: bool) {
        for simd in SimdLevel::available() {
            let (source, _) = region(if wide { 1024 } else { 256 });
            let (target, _) = region(512);
            let noise: Vec<u8> = (0..1024).map(|b| (b * 7) as u8 | 1).collect();
            source.frame(BufIdx(2)).write(0, &noise);
            target.frame(BufIdx(3)).write(0, &[0xaa; 512]);
            let expected = len.min(512).min(if wide { 1024 } else { 256 });
            let copied = copy_packet(simd, &target.frame(BufIdx(3)), &source.frame(BufIdx(2)), len);
            prop_assert_eq!(copied, expected);
            let got = bytes(&target, BufIdx(3));
            let padded = expected.next_multiple_of(64);
            prop_assert_eq!(&got[..expected], &noise[..expected]);
            prop_assert!(got[expected..padded].iter().all(|b| *b == 0 || *b == 0xaa));
            prop_assert!(got[padded..].iter().all(|b| *b == 0xaa));
            prop_assert_eq!(copy_packet(simd, &Frame::EMPTY, &source.frame(BufIdx(2)), len), 0);
        }
    }
}
