//! The rings against a kernel of the test's own: one that keeps the rules, in any order, and one that writes anything.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use proptest::prelude::*;
use unetmap_sys::{Mapping, memfd};

use super::*;

const SLOTS: u32 = 8;
const BUFFERS: Buffers = Buffers { size: 2048, count: 40, headroom: 0 };
/// Where the words are in a ring's memory, and its bytes.
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
        self.0.waiting().unwrap()
    }

    /// Takes the next entry's first word, and the second of entries that have one.
    fn take(&self, words: usize) -> [u64; 2] {
        let at = self.0.at(self.0.pos(self.0.word(CONSUMER).load(Ordering::Relaxed)));
        let entry = std::array::from_fn(|word| match word < words {
            true => self.0.entry(words * at + word).load(Ordering::Relaxed),
            false => 0,
        });
        self.0.advance(CONSUMER, 1);
        entry
    }

    fn give(&self, entry: &[u64]) {
        let at = self.0.at(self.0.pos(self.0.word(PRODUCER).load(Ordering::Relaxed)));
        for (word, value) in entry.iter().enumerate() {
            self.0.entry(entry.len() * at + word).store(*value, Ordering::Relaxed);
        }
        self.0.advance(PRODUCER, 1);
    }
}

fn slots() -> Slots {
    Slots::new(SLOTS).unwrap()
}

fn sending() -> (SendRings, Kernel, Kernel) {
    let (tx, done) = (ring(), ring());
    let sent = SentPage::new(Window::whole(memory(SentPage::bytes(2 * SLOTS as usize))));
    let rings = SendRings::new(&tx, &done, slots(), BUFFERS, sent, SLOTS as usize).unwrap();
    (rings, Kernel::new(&tx, PACKET_ENTRY), Kernel::new(&done, BUFFER_ENTRY))
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
fn an_address_is_a_buffer_or_nothing() {
    assert_eq!(BUFFERS.place(BUFFERS.address(BufIdx(7), 0)), Some((BufIdx(7), 0)));
    // As the kernel tells received packets: base, and offset in the upper bits.
    assert_eq!(BUFFERS.place((7 * 2048 - 256) | 256 << 48), Some((BufIdx(7), 0)));
    assert_eq!(BUFFERS.place(7 * 2048 + 1), None);
    assert_eq!(BUFFERS.place(40 * 2048), None);
    assert_eq!(BUFFERS.place(u64::MAX), None);
    let behind = Buffers { headroom: 100, ..BUFFERS };
    assert_eq!(behind.place(behind.address(BufIdx(7), 30)), Some((BufIdx(7), 30)));
    assert_eq!(behind.place(behind.address(BufIdx(7), 3000)), Some((BufIdx(7), 100)));
    assert_eq!(behind.place(7 * 2048 + 101), None);
}

#[test]
fn what_is_offered_has_room_for_the_headroom_before_it() {
    let (rx, fill) = (ring(), ring());
    let rings = ReceiveRings::new(&rx, &fill, slots(), BUFFERS).unwrap();
    rings.offer(Pos::ZERO, Some((BufIdx(3), 0)));
    rings.offer(slots().next(Pos::ZERO), None);
    rings.publish(2);
    let kernel = Kernel::new(&fill, BUFFER_ENTRY);
    assert_eq!((kernel.take(1)[0], kernel.take(1)[0]), (3 * 2048 - 256, NOWHERE));
    let rings = ReceiveRings::new(&rx, &fill, slots(), Buffers { headroom: 100, ..BUFFERS }).unwrap();
    rings.offer(rings.next_offer(), Some((BufIdx(3), 30)));
    rings.publish(1);
    assert_eq!(kernel.take(1)[0], 3 * 2048 + 30 - 256 - 100);
}

proptest! {
    /// Whatever is sent, refused and completed, in whatever order: a slot is finished when its buffer is back and those
    /// before it are finished, and not before.
    #[test]
    fn slots_finish_in_order(steps in proptest::collection::vec((0u8..3, 0usize..8), 1..200)) {
        let (rings, tx, done) = sending();
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
                    let packet = Packet { buf_idx: BufIdx(2 + sent % 30), offset: 0, len: 60, continued: false };
                    rings.put(rings.next(), good.then_some(packet));
                    rings.publish(1);
                    out.push_back(!good);
                    let [addr, rest] = tx.take(2);
                    prop_assert_eq!(tx.count(), 0);
                    if good {
                        prop_assert_eq!((addr, rest), (u64::from(2 + sent % 30) * 2048, 60));
                        kernel.push((addr, sent));
                    } else {
                        prop_assert_eq!(addr, NOWHERE);
                    }
                    sent += 1;
                }
                1 if !kernel.is_empty() => {
                    let (addr, number) = kernel.remove(n % kernel.len());
                    done.give(&[addr]);
                    out[(number - finished) as usize] = true;
                }
                _ => {
                    let from = slots.pos(finished % SLOTS).unwrap();
                    let to = rings.finished(from, rings.next());
                    while out.front() == Some(&true) {
                        out.pop_front();
                        finished += 1;
                    }
                    prop_assert_eq!(to.raw(), finished % SLOTS);
                    prop_assert_eq!(rings.unread(), 0);
                }
            }
            let unfinished = out.iter().position(|back| !back).map_or(sent, |at| finished + at as u32);
            if rings.unread() == 0 {
                let since = slots.pos(finished % SLOTS).unwrap();
                prop_assert_eq!(rings.first_unfinished(since).raw(), unfinished % SLOTS);
                // Who dies while it writes entries leaves them written down, and not handed over.
                let next = rings.next();
                if out.len() + 2 < SLOTS as usize {
                    let before = rings.recorded(rings.tx.at(next));
                    rings.record(rings.tx.at(next), 7);
                    prop_assert_eq!(rings.first_unfinished(since).raw(), unfinished % SLOTS);
                    rings.record(rings.tx.at(next), before);
                }
            }
        }
    }

    /// A holder of the socket may write anything into its memory: nothing is out of bounds, and nothing goes on for ever.
    #[test]
    fn any_words_in_the_sockets_memory(
        writes in proptest::collection::vec((0usize..5, 0usize..BYTES / 4, any::<u32>()), 0..60),
        at in 0..SLOTS,
    ) {
        let maps: [RingMap; 4] = std::array::from_fn(|_| ring());
        let page = memory(SentPage::bytes(SLOTS as usize));
        let sent = SentPage::new(Window::whole(page.clone()));
        let send = SendRings::new(&maps[0], &maps[1], slots(), BUFFERS, sent.clone(), 0).unwrap();
        let receive = ReceiveRings::new(&maps[2], &maps[3], slots(), BUFFERS).unwrap();
        let at = slots().pos(at).unwrap();
        for (which, word, value) in writes {
            let map = maps.get(which).map_or(&page, |map| &map.map);
            let window = Window::whole(map.clone());
            // SAFETY: an atomic in bounds, aligned.
            unsafe { &*window.at::<AtomicU32>(4 * word).unwrap() }.store(value, Ordering::Relaxed);
            let to = send.finished(at, send.next());
            prop_assert!(to.raw() < SLOTS && send.next().raw() < SLOTS && send.first_unfinished(at).raw() < SLOTS);
            prop_assert!(send.unseen() <= SLOTS && send.unread() <= SLOTS && receive.waiting() <= SLOTS);
            let (place, _, _) = receive.packet(value);
            prop_assert!(place.is_none_or(|(idx, offset)| idx.0 < BUFFERS.count && offset == 0));
            receive.take(1);
            send.publish(1);
            sent.forget(0, SLOTS as usize);
        }
    }
}
