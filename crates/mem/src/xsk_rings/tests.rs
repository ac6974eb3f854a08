// SPDX-License-Identifier: BSD-2-Clause
//! The rings against a model of the kernel: one that follows the rules, in any order, and one that writes anything.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use proptest::prelude::*;
use unetmap_sys::{Mapping, memfd};

use super::*;

const SLOTS: u32 = 8;
const UMEM: UmemLayout = UmemLayout { size: 2048, count: 40, headroom: 0 };
/// Offsets of the words in a ring's memory, and its size, bytes.
const PRODUCER: usize = 0;
const CONSUMER: usize = 64;
const FLAGS: usize = 128;
const ENTRIES: usize = 192;
const BYTES: usize = 4096;

fn memory(bytes: usize) -> Arc<Mapping> {
    let fd = memfd::create_sealed("test", bytes as u64).unwrap();
    Arc::new(Mapping::new(fd.as_fd(), bytes).unwrap())
}

fn ring() -> RingMap {
    RingMap {
        map: memory(BYTES),
        producer: PRODUCER,
        consumer: CONSUMER,
        flags: FLAGS,
        entries_at: ENTRIES,
        entries: SLOTS,
    }
}

/// The kernel's side of a ring.
struct Kernel(Ring);

impl Kernel {
    fn new(map: &RingMap, entry: usize) -> Kernel {
        Kernel(Ring::new(map, slots(), entry).unwrap())
    }

    fn count(&self) -> u32 {
        self.0.pending(1).unwrap()
    }

    /// Consumes the next entry; returns its first word, and the second of entries that have one.
    fn consume(&self, words: usize) -> [u64; 2] {
        let at = self.0.index(self.0.pos(self.0.word(CONSUMER).load(Ordering::Relaxed)));
        let entry = std::array::from_fn(|word| match word < words {
            true => self.0.entry(words * at + word).load(Ordering::Relaxed),
            false => 0,
        });
        self.0.advance(CONSUMER, 1);
        entry
    }

    fn produce(&self, entry: &[u64]) {
        let at = self.0.index(self.0.pos(self.0.word(PRODUCER).load(Ordering::Relaxed)));
        for (word, value) in entry.iter().enumerate() {
            self.0.entry(entry.len() * at + word).store(*value, Ordering::Relaxed);
        }
        self.0.advance(PRODUCER, 1);
    }
}

fn slots() -> Slots {
    Slots::new(SLOTS).unwrap()
}

fn tx_rings() -> (XskTxRings, Kernel, Kernel) {
    let (tx, completion) = (ring(), ring());
    let frames = TxFramesPage::new(MappedRange::whole(memory(TxFramesPage::bytes(2 * SLOTS as usize))));
    let rings = XskTxRings::new(&tx, &completion, slots(), UMEM, frames, SLOTS as usize).unwrap();
    (rings, Kernel::new(&tx, PACKET_ENTRY), Kernel::new(&completion, BUFFER_ENTRY))
}

#[test]
fn rings_that_do_not_fit_are_refused() {
    let other = |change: fn(&mut RingMap)| {
        let mut map = ring();
        change(&mut map);
        Ring::new(&map, slots(), PACKET_ENTRY).is_none()
    };
    assert!(!other(|_| ()));
    assert!(other(|map| map.entries = 16));
    assert!(other(|map| map.producer = BYTES - 2));
    assert!(other(|map| map.consumer = 2));
    assert!(other(|map| map.entries_at = BYTES - 8 * PACKET_ENTRY + 8));
    assert!(other(|map| map.entries_at = usize::MAX - 7));
    assert!(Ring::new(&ring(), Slots::new(6).unwrap(), PACKET_ENTRY).is_none(), "not a power of two");
}

#[test]
fn an_address_is_a_buffer_or_none() {
    assert_eq!(UMEM.locate(UMEM.address(BufIdx(7), 0)), Some((BufIdx(7), 0)));
    // As in the kernel's rx entries: base, and offset in the upper bits.
    assert_eq!(UMEM.locate((7 * 2048 - 256) | 256 << 48), Some((BufIdx(7), 0)));
    assert_eq!(UMEM.locate(7 * 2048 + 1), None);
    assert_eq!(UMEM.locate(40 * 2048), None);
    assert_eq!(UMEM.locate(u64::MAX), None);
    // Larger buffers begin after the headroom of the first page.
    let large = UmemLayout { size: 4096, ..UMEM };
    assert_eq!((large.address(BufIdx(0), 0), large.address(BufIdx(7), 0)), (256, 7 * 4096 + 256));
    assert_eq!(large.locate((7 * 4096) | 256 << 48), Some((BufIdx(7), 0)));
    assert_eq!((large.locate(255), large.locate(40 * 4096 + 256)), (None, None));
    let with_headroom = UmemLayout { headroom: 100, ..UMEM };
    assert_eq!(with_headroom.locate(with_headroom.address(BufIdx(7), 30)), Some((BufIdx(7), 30)));
    assert_eq!(with_headroom.locate(with_headroom.address(BufIdx(7), 3000)), Some((BufIdx(7), 100)));
    assert_eq!(with_headroom.locate(7 * 2048 + 101), None);
}

#[test]
fn fill_addresses_leave_room_for_the_headroom() {
    let (rx, fill) = (ring(), ring());
    let rings = XskRxRings::new(&rx, &fill, slots(), UMEM).unwrap();
    rings.write_fill(Pos::ZERO, Some((BufIdx(3), 0)));
    rings.write_fill(slots().next(Pos::ZERO), None);
    rings.submit(2);
    let kernel = Kernel::new(&fill, BUFFER_ENTRY);
    assert_eq!((kernel.consume(1)[0], kernel.consume(1)[0]), (3 * 2048 - 256, INVALID_ADDR));
    let rings = XskRxRings::new(&rx, &fill, slots(), UmemLayout { headroom: 100, ..UMEM }).unwrap();
    rings.write_fill(rings.next_fill(), Some((BufIdx(3), 30)));
    rings.submit(1);
    assert_eq!(kernel.consume(1)[0], 3 * 2048 + 30 - 256 - 100);
}

#[test]
fn buffers_that_a_driver_missed_are_noticed() {
    let (rx, fill) = (ring(), ring());
    let rings = XskRxRings::new(&rx, &fill, slots(), UMEM).unwrap();
    let kernel = Kernel::new(&fill, BUFFER_ENTRY);
    // It finds the ring empty; the program submits, and is asked for no call yet; then the driver says so.
    assert_eq!(kernel.count(), 0);
    rings.write_fill(rings.next_fill(), Some((BufIdx(3), 0)));
    rings.submit(1);
    assert!(!rings.needs_wakeup() && !rings.is_left());
    kernel.0.word(FLAGS).store(NEED_WAKEUP, Ordering::Relaxed);
    assert!(rings.is_left());
    // Without an entry a call is of no use.
    kernel.consume(1);
    assert!(rings.needs_wakeup() && !rings.is_left());
}

proptest! {
    /// Slots that are submitted, skipped and completed in any order: a slot is complete once its buffer was returned
    /// and all slots before it are complete, and not before.
    #[test]
    fn slots_complete_in_order(steps in proptest::collection::vec((0u8..3, 0usize..8), 1..200)) {
        let (rings, tx, completion) = tx_rings();
        let slots = slots();
        // Slots handed over: whether each is known to be back.
        let mut out: VecDeque<bool> = VecDeque::new();
        // In the kernel, with the number of the slot counted from the start.
        let mut kernel: Vec<(u64, u32)> = Vec::new();
        let (mut sent, mut finished) = (0u32, 0u32);
        for (step, n) in steps {
            match step {
                0 if out.len() < SLOTS as usize - 1 => {
                    let good = n != 0;
                    let packet = XskDesc { buf_idx: BufIdx(2 + sent % 30), offset: 0, len: 60, continued: false };
                    rings.write_tx(rings.next_tx(), good.then_some(packet));
                    rings.submit(1);
                    out.push_back(!good);
                    let [addr, rest] = tx.consume(2);
                    prop_assert_eq!(tx.count(), 0);
                    if good {
                        prop_assert_eq!((addr, rest), (u64::from(2 + sent % 30) * 2048, 60));
                        kernel.push((addr, sent));
                    } else {
                        prop_assert_eq!(addr, INVALID_ADDR);
                    }
                    sent += 1;
                }
                1 if !kernel.is_empty() => {
                    let (addr, number) = kernel.remove(n % kernel.len());
                    completion.produce(&[addr]);
                    out[(number - finished) as usize] = true;
                }
                _ => {
                    let from = slots.pos(finished % SLOTS).unwrap();
                    let to = rings.reap_completions(from, rings.next_tx());
                    while out.front() == Some(&true) {
                        out.pop_front();
                        finished += 1;
                    }
                    prop_assert_eq!(to.raw(), finished % SLOTS);
                    prop_assert_eq!(rings.completions_pending(), 0);
                }
            }
            let unfinished = out.iter().position(|back| !back).map_or(sent, |at| finished + at as u32);
            if rings.completions_pending() == 0 {
                let since = slots.pos(finished % SLOTS).unwrap();
                prop_assert_eq!(rings.first_incomplete(since).raw(), unfinished % SLOTS);
                // A process that crashes while it writes entries leaves them recorded, but not submitted.
                let next = rings.next_tx();
                if out.len() + 2 < SLOTS as usize {
                    let before = rings.recorded(rings.tx.index(next));
                    rings.record(rings.tx.index(next), 7);
                    prop_assert_eq!(rings.first_incomplete(since).raw(), unfinished % SLOTS);
                    rings.record(rings.tx.index(next), before);
                }
            }
        }
    }

    /// A process that holds the socket may write anything into the rings: nothing is out of bounds, and every loop
    /// ends.
    #[test]
    fn any_words_in_the_socket_rings(
        writes in proptest::collection::vec((0usize..5, 0usize..BYTES / 4, any::<u32>()), 0..60),
        at in 0..SLOTS,
    ) {
        let maps: [RingMap; 4] = std::array::from_fn(|_| ring());
        let page = memory(TxFramesPage::bytes(SLOTS as usize));
        let frames = TxFramesPage::new(MappedRange::whole(page.clone()));
        let send = XskTxRings::new(&maps[0], &maps[1], slots(), UMEM, frames.clone(), 0).unwrap();
        let receive = XskRxRings::new(&maps[2], &maps[3], slots(), UMEM).unwrap();
        let at = slots().pos(at).unwrap();
        for (which, word, value) in writes {
            let map = maps.get(which).map_or(&page, |map| &map.map);
            let range = MappedRange::whole(map.clone());
            // SAFETY: an atomic (M1), in bounds and aligned (M2).
            unsafe { &*range.at::<AtomicU32>(4 * word).unwrap() }.store(value, Ordering::Relaxed);
            let to = send.reap_completions(at, send.next_tx());
            prop_assert!(to.raw() < SLOTS && send.next_tx().raw() < SLOTS && send.first_incomplete(at).raw() < SLOTS);
            prop_assert!(send.tx_pending() <= 2 * SLOTS && send.completions_pending() <= SLOTS);
            prop_assert!(receive.rx_available() <= SLOTS);
            let (place, _, _) = receive.peek_rx(value);
            prop_assert!(place.is_none_or(|(idx, offset)| idx.0 < UMEM.count && offset == 0));
            receive.release_rx(1);
            send.submit(1);
            frames.clear(0, SLOTS as usize);
        }
    }
}
