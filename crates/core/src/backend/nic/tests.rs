// SPDX-License-Identifier: BSD-2-Clause
//! A receive ring with a simulated kernel that fills buffers in any order, which a real one hardly ever does.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;
use unetmap_mem::{Geometry, MappedRange, Region, RingShape, RingView, TxFramesPage, UmemLayout};
use unetmap_sys::xsk::RingMap;
use unetmap_sys::{Mapping, memfd};

use super::*;

const SLOTS: u32 = 8;
const BUFFER: u32 = 2048;
const ENTRIES_AT: u64 = 192;

/// One ring of the socket, and its file, through which the simulated kernel accesses it.
struct Memory {
    file: File,
    map: RingMap,
    entry: u64,
}

impl Memory {
    fn new(entry: u64) -> Memory {
        let fd = memfd::create_sealed("test", 4096).unwrap();
        let map = Arc::new(Mapping::new(fd.as_fd(), 4096).unwrap());
        let map =
            RingMap { map, producer: 0, consumer: 64, flags: 128, entries_at: ENTRIES_AT as usize, entries: SLOTS };
        Memory { file: fd.into(), map, entry }
    }

    fn word(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        u32::from_ne_bytes(bytes)
    }

    fn advance(&self, at: u64) -> u64 {
        let counted = self.word(at);
        self.file.write_all_at(&(counted.wrapping_add(1)).to_ne_bytes(), at).unwrap();
        ENTRIES_AT + u64::from(counted % SLOTS) * self.entry
    }

    /// The kernel consumes a descriptor.
    fn take(&self) -> Option<u64> {
        if self.word(0) == self.word(64) {
            return None;
        }
        let mut bytes = [0; 8];
        let at = self.advance(64);
        self.file.read_exact_at(&mut bytes, at).unwrap();
        Some(u64::from_ne_bytes(bytes))
    }

    /// The kernel produces one.
    fn give(&self, addr: u64, len: u32, continued: bool) {
        let at = ENTRIES_AT + u64::from(self.word(0) % SLOTS) * self.entry;
        self.file.write_all_at(&addr.to_ne_bytes(), at).unwrap();
        self.file.write_all_at(&(u64::from(len) | u64::from(continued) << 32).to_ne_bytes(), at + 8).unwrap();
        self.advance(0);
    }
}

struct Fixture {
    view: RingView,
    rx: NicRx,
    packets: Memory,
    offers: Memory,
    /// Buffers that the kernel holds.
    kernel: Vec<BufIdx>,
}

impl Fixture {
    fn new() -> Fixture {
        let slots = Slots::new(SLOTS).unwrap();
        let geometry = Geometry::new((1, 256), (2, 1024), (40, BUFFER)).unwrap();
        let (region, fd) = Region::create("test", geometry).unwrap();
        let shape = RingShape { offset: geometry.rings.offset, slots, id: 0, dir: 1 };
        let view = RingView::new(&region, shape).unwrap();
        view.format();
        let (packets, offers) = (Memory::new(16), Memory::new(8));
        let rings =
            XskRxRings::new(&packets.map, &offers.map, slots, UmemLayout { size: BUFFER, count: 40, headroom: 0 })
                .unwrap();
        for p in (0..SLOTS).map(|raw| slots.pos(raw).unwrap()) {
            view.slots().set_buf_idx(p, BufIdx(2 + p.raw()));
            rings.write_fill(p, Some((BufIdx(2 + p.raw()), 0)));
        }
        rings.submit(SLOTS);
        let half = Half {
            slots: view.slots().clone(),
            limits: region.limits(),
            max_packet: BUFFER,
            socket: Arc::new(fd),
            doorbell: Doorbell::new().unwrap(),
            frags: true,
            offsets: Offsets::NONE,
            busy: false,
            left: Mutex::default(),
        };
        Fixture { view, rx: NicRx { half, rings }, packets, offers, kernel: Vec::new() }
    }

    /// The kernel takes all offered buffers, and fills the `pick`th of those that it holds.
    fn receive(&mut self, pick: usize, len: u32) -> Option<BufIdx> {
        let offered = std::iter::from_fn(|| self.offers.take());
        self.kernel.extend(offered.map(|addr| BufIdx(((addr + 256) / u64::from(BUFFER)) as u32)));
        if self.kernel.is_empty() {
            return None;
        }
        let idx = self.kernel.remove(pick % self.kernel.len());
        self.packets.give((u64::from(idx.0) * u64::from(BUFFER) - 256) | 256 << 48, len, false);
        Some(idx)
    }

    /// Returns all buffers that the slots name.
    fn named(&self) -> BTreeSet<BufIdx> {
        let slots = self.view.slots();
        (0..SLOTS).map(|raw| slots.buf_idx(slots.slots().pos(raw).unwrap())).collect()
    }
}

/// Linux before 6.17 publishes the descriptors that it has read when it has read all that it knows of; their slots are
/// complete, and used again, before.
#[test]
fn packets_are_pending_until_the_kernel_publishes_that_it_has_read_them() {
    let slots = Slots::new(SLOTS).unwrap();
    let (packets, completions) = (Memory::new(16), Memory::new(8));
    let fd = memfd::create_sealed("test", 4096).unwrap();
    let frames = TxFramesPage::new(MappedRange::whole(Arc::new(Mapping::new(fd.as_fd(), 4096).unwrap())));
    let umem = UmemLayout { size: BUFFER, count: 40, headroom: 0 };
    let rings = XskTxRings::new(&packets.map, &completions.map, slots, umem, frames, 0).unwrap();
    rings.submit(SLOTS);
    rings.submit(SLOTS);
    assert_eq!(rings.tx_pending(), 2 * SLOTS);
    (0..SLOTS).for_each(|_| assert!(packets.take().is_some()));
    assert_eq!(rings.tx_pending(), SLOTS);
    rings.submit(2 * SLOTS);
    assert_eq!(rings.tx_pending(), 0, "invalid positions");
}

proptest! {
    /// Packets arrive in the kernel's order, and the slots of the ring name each of its buffers once, for any order and
    /// any exchange by the program.
    #[test]
    fn slots_name_all_buffers(steps in proptest::collection::vec((0u8..4, 0usize..16), 1..200)) {
        let mut f = Fixture::new();
        let slots = f.view.slots().slots();
        let (mut head, mut tail) = (Pos::ZERO, Pos::ZERO);
        let mut coming = std::collections::VecDeque::new();
        let mut all = f.named();
        let (mut spare, mut number) = (BufIdx(39), 0);
        for (step, n) in steps {
            match step {
                0 | 1 => {
                    number += 1;
                    coming.extend(f.receive(n, 60 + number % 1000).map(|idx| (idx, 60 + number % 1000)));
                }
                2 => {
                    let delivered = f.rx.deliver(head, tail).unwrap();
                    prop_assert_eq!(delivered.bad, 0);
                    for p in slots.walk(Span { from: tail, to: delivered.to }) {
                        let slot = f.view.slots().load(p);
                        prop_assert_eq!(Some((slot.buf_idx, u32::from(slot.len))), coming.pop_front());
                    }
                    tail = delivered.to;
                }
                _ => {
                    let held = slots.distance(head, tail);
                    let to = slots.add(head, (n as u32).min(held));
                    // The program takes a packet out by putting another buffer in its place.
                    if to != head && n % 2 == 0 {
                        let moved = f.view.slots().buf_idx(head);
                        f.view.slots().set_buf_idx(head, spare);
                        all.remove(&moved);
                        all.insert(spare);
                        spare = moved;
                    }
                    prop_assert_eq!(f.rx.release(Span { from: head, to }), 0);
                    head = to;
                }
            }
            prop_assert_eq!(f.named(), all.clone());
        }
    }
}

#[test]
fn invalid_descriptors_are_delivered_empty() {
    let f = Fixture::new();
    let slots = f.view.slots().slots();
    // No such buffer; not at its start; too long.
    f.packets.give(40 * u64::from(BUFFER), 60, false);
    f.packets.give(u64::from(BUFFER) + 1, 60, false);
    f.packets.give(2 * u64::from(BUFFER), BUFFER + 1, false);
    let delivered = f.rx.deliver(Pos::ZERO, Pos::ZERO).unwrap();
    assert_eq!((delivered.to.raw(), delivered.bad), (3, 3));
    assert!(slots.walk(Span { from: Pos::ZERO, to: delivered.to }).all(|p| f.view.slots().len(p) == 0));
    assert_eq!(f.named().len(), SLOTS as usize);
    // A position that is not that of the ring.
    assert_eq!(f.rx.deliver(Pos::ZERO, slots.pos(5).unwrap()), Err(InvalidPeerIndex));
}

#[test]
fn a_packet_of_several_slots_is_delivered_as_a_whole() {
    let mut f = Fixture::new();
    f.receive(0, 60);
    f.packets.give(3 * u64::from(BUFFER), BUFFER, true);
    assert_eq!(f.rx.deliver(Pos::ZERO, Pos::ZERO).unwrap().to.raw(), 1);
    f.packets.give(4 * u64::from(BUFFER), 100, false);
    let at = f.view.slots().slots().pos(1).unwrap();
    assert_eq!(f.rx.deliver(Pos::ZERO, at).unwrap().to.raw(), 3);
    let flags = |raw| f.view.slots().flags(f.view.slots().slots().pos(raw).unwrap());
    assert_eq!((flags(0), flags(1), flags(2)), (0, NS_MOREFRAG, 0));
}

#[test]
fn an_index_out_of_range_is_not_offered() {
    let mut f = Fixture::new();
    f.receive(0, 60);
    f.receive(0, 60);
    let to = f.rx.deliver(Pos::ZERO, Pos::ZERO).unwrap().to;
    f.view.slots().set_buf_idx(Pos::ZERO, BufIdx(40));
    assert_eq!(f.rx.release(Span { from: Pos::ZERO, to }), 1);
    assert!(f.offers.take().is_some_and(|addr| addr > 1 << 40), "an entry that the kernel skips");
    assert_eq!(f.offers.take(), Some(3 * u64::from(BUFFER) - 256));
}
