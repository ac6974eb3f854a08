// SPDX-License-Identifier: BSD-2-Clause
use proptest::prelude::*;

use super::*;
use crate::channel::ChannelPage;
use crate::copy::tests::{Fault, fault};
use crate::mapped_range::MappedRange;
use crate::pos::{BufIdx, Slots, Span};
use crate::region::Geometry;
use crate::ring::{RingShape, RingView};
use crate::slot_copy::SimdLevel;
use unetmap_abi::NS_MOREFRAG;

const SLOTS: u32 = 64;
const LEN: u16 = 60;
const TO: [u8; MAC_PAIR_BYTES] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

/// A region with the rings of a sender and a receiver, the consumer of the sender's channel, and the region of its
/// copies.
struct Pair {
    region: Region,
    sender: SlotRing,
    receiver: SlotRing,
    consumer: Consumer,
    _copies: Region,
}

impl Pair {
    fn new(simd: SimdLevel) -> Pair {
        let geometry = || Geometry::new((1, 4096), (3, 2048), (2 + 2 * SLOTS, 512)).unwrap();
        let (region, _) = Region::create("test", geometry()).unwrap();
        let (copies, _) = Region::create("test", geometry()).unwrap();
        let slots = Slots::new(SLOTS).unwrap();
        let ring = |region: &Region, which: u32| {
            let offset = region.geometry().rings.object(which).unwrap();
            let view = RingView::new(region, RingShape { offset, slots, id: 0, dir: 0 }).unwrap();
            view.format();
            view.slots().clone()
        };
        let (sender, receiver, mine) = (ring(&region, 0), ring(&region, 1), ring(&copies, 0));
        for (raw, p) in (0..SLOTS).map(|raw| (raw, slots.pos(raw).unwrap())) {
            sender.store(p, SlotValue { buf_idx: BufIdx(2 + raw), len: LEN, flags: 0, ptr: 77 });
            receiver.store(p, SlotValue { buf_idx: BufIdx(2 + SLOTS + raw), len: 0xbbbb, flags: 0xcccc, ptr: 99 });
            region.frame(BufIdx(2 + raw)).write(0, &TO);
        }
        // The channel's words are put into the interface pool of the copies' region, which is not used otherwise.
        let channels = ChannelPage::new(MappedRange::clone(copies.range()));
        let limits = region.limits();
        let consumer = Consumer::new(&channels, 0, sender.clone(), mine, limits, simd).unwrap();
        Pair { region, sender, receiver, consumer, _copies: copies }
    }

    fn receive_all(&self) {
        let slots = self.sender.slots();
        let span = Span { from: Pos::ZERO, to: slots.pos(SLOTS - 1).unwrap() };
        self.consumer.receive(span, BufIdx(0));
    }

    /// All indexes in both rings, sorted.
    fn buffers(&self) -> Vec<u32> {
        let all = (0..SLOTS).filter_map(|raw| self.sender.slots().pos(raw));
        let mut all: Vec<u32> = all.flat_map(|p| [self.sender.buf_idx(p).0, self.receiver.buf_idx(p).0]).collect();
        all.sort_unstable();
        all
    }
}

proptest! {
    /// Every SIMD level stops at the first packet that is not of the run, each buffer is swapped for another, and the
    /// sender's writes after its slots were received have no effect.
    #[test]
    fn runs_are_swapped_up_to_the_first_packet_outside(
        faults in prop::collection::vec(prop_oneof![4 => Just(Fault::None), 1 => fault(2 + 2 * SLOTS)], SLOTS as usize),
        (from, to, max) in (0..SLOTS, 0..SLOTS, 0..2 * SLOTS), simd in prop::sample::select(SimdLevel::available()),
        late in prop::collection::vec((0..SLOTS, any::<u32>()), 0..4),
    ) {
        let pair = Pair::new(simd);
        let slots = pair.sender.slots();
        let pos = |raw| slots.pos(raw).unwrap();
        // The slot that was not sent is not part of the run.
        let max = max.min(SLOTS - 1 - from.min(SLOTS - 1));
        let mut expected = 0;
        for (i, fault) in (0..).zip(&faults) {
            let (at, into) = (slots.add(pos(from), i), slots.add(pos(to), i));
            match *fault {
                Fault::OtherAddress(byte) => {
                    pair.region.frame(pair.sender.buf_idx(at)).write(byte, &[TO[byte] ^ 0x10]);
                }
                Fault::Fragment => pair.sender.set_flags(at, NS_MOREFRAG),
                Fault::Port => pair.sender.set_flags(at, 0x0100),
                Fault::Short => pair.sender.set_len(at, 13),
                Fault::Long => pair.sender.set_len(at, 513),
                Fault::NoSource(idx) => pair.sender.set_buf_idx(at, BufIdx(idx)),
                Fault::NoTarget(idx) => pair.receiver.set_buf_idx(into, BufIdx(idx)),
                Fault::None => {}
            }
            if i < max.min(SLOTS - to) && expected == i && *fault == Fault::None {
                expected += 1;
            }
        }
        let before: Vec<_> = (0..SLOTS).map(|i| (pair.sender.load(pos(i)), pair.receiver.load(pos(i)))).collect();
        let whole = pair.buffers();
        pair.receive_all();
        for (raw, idx) in late {
            pair.sender.set_buf_idx(pos(raw), BufIdx(idx));
        }
        let run = Run { addresses: TO, flags: 0x0100, max };
        let lens = (0..expected).map(|i| u64::from(before[slots.add(pos(from), i).raw() as usize].0.len));
        let moved = Moved { packets: expected, bytes: lens.sum() };
        prop_assert_eq!(swap_run(&pair.consumer, pos(from), &pair.receiver, pos(to), &pair.region, run), moved);
        for i in 0..expected {
            let (at, into) = (slots.add(pos(from), i), slots.add(pos(to), i));
            let (theirs, free) = (before[at.raw() as usize].0, before[into.raw() as usize].1);
            let sent = SlotValue { buf_idx: free.buf_idx, flags: NS_BUF_CHANGED, ..theirs };
            let got = SlotValue { flags: 0x0100 | NS_BUF_CHANGED, ptr: 99, ..theirs };
            prop_assert_eq!((pair.sender.load(at), pair.receiver.load(into)), (sent, got));
        }
        for i in expected..SLOTS {
            let into = slots.add(pos(to), i);
            prop_assert_eq!(pair.receiver.load(into), before[into.raw() as usize].1);
        }
        // With the sender's late writes undone no buffer was lost or duplicated.
        for i in expected..SLOTS {
            let at = slots.add(pos(from), i);
            pair.sender.set_buf_idx(at, before[at.raw() as usize].0.buf_idx);
        }
        prop_assert_eq!(pair.buffers(), whole);
    }
}

#[test]
fn slots_that_were_not_swapped_are_unchanged() {
    let pair = Pair::new(SimdLevel::best());
    pair.receive_all();
    let bad = pair.sender.slots().next(Pos::ZERO);
    pair.receiver.set_buf_idx(bad, BufIdx(1));
    assert!(swap_one(&pair.consumer, Pos::ZERO, &pair.receiver, Pos::ZERO, NS_MOREFRAG));
    assert_eq!(pair.receiver.flags(Pos::ZERO), NS_MOREFRAG | NS_BUF_CHANGED);
    let before = (pair.sender.load(bad), pair.receiver.load(bad));
    assert!(!swap_one(&pair.consumer, bad, &pair.receiver, bad, 0));
    assert_eq!((pair.sender.load(bad), pair.receiver.load(bad)), before);
}
