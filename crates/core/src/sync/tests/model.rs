// SPDX-License-Identifier: BSD-2-Clause
//! Sequences of syncs compared with a model of a pipe, and packets through several rings and threads.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;
use unetmap_abi::{NS_BUF_CHANGED, NS_MOREFRAG};
use unetmap_mem::{BufIdx, Pos, SlotValue};

use super::test_pipe::{BUF_SIZE, Field, TestPipe, TestRegion, any_pos, each_once, poke, slots};
use super::{cases, valid_by_walking};
use crate::port::Ring;
use crate::sync::{Effort, SyncError};

/// An action of a program or the system. Numbers are limited to what is possible.
#[derive(Clone, Debug)]
enum Step {
    /// The sender fills so many slots, each as one of the numbers says, and moves head.
    Fill(Vec<Packet>),
    SetCur {
        tx: bool,
        ahead: u32,
    },
    Sync {
        tx: bool,
        effort: Effort,
    },
    /// The receiver reads so many slots, and puts another buffer into some.
    Read {
        slots: u32,
        exchange: u64,
    },
    /// A program writes invalid pointers, then calls a sync.
    InvalidPointers {
        tx: bool,
        head: u32,
        cur: u32,
    },
    /// The program of one side exits, and another one opens the port.
    Reopen {
        tx: bool,
    },
    /// A program overwrites tail, then calls a sync.
    Tail {
        tx: bool,
        tail: u32,
    },
}

#[derive(Clone, Debug)]
struct Packet {
    len: u16,
    flags: u16,
    ptr: u64,
    exchange: bool,
}

/// A received slot that the program has not released.
#[derive(Clone, Debug)]
struct Held {
    value: SlotValue,
    /// Number of the packet in the buffer; `None`: delivered empty, or exchanged.
    number: Option<u64>,
}

/// A pipe in counters that never wrap: slot `c` is at `(start + c) % n`.
struct Model {
    n: u64,
    start: u64,
    /// Sender: head, cur, the head of the last sync, what was sent, tail.
    tx: Side,
    sent: u64,
    /// Receiver: the head of the last sync is what was released, tail is what was delivered.
    rx: Side,
    /// The sender's ring.
    ring: Vec<SlotValue>,
    channel: VecDeque<SlotValue>,
    held: VecDeque<Held>,
    placeholder: BufIdx,
    bad: u64,
}

#[derive(Default)]
struct Side {
    head: u64,
    cur: u64,
    synced: u64,
    tail: u64,
}

impl Model {
    fn new(pipe: &TestPipe, start: u32) -> Model {
        let ring: Vec<SlotValue> =
            pipe.tx_indexes().into_iter().map(|buf_idx| SlotValue { buf_idx, len: 0, flags: 0, ptr: 0 }).collect();
        let n = ring.len() as u64;
        Model {
            n,
            start: u64::from(start),
            tx: Side { tail: n - 1, ..Side::default() },
            sent: 0,
            rx: Side::default(),
            ring,
            channel: VecDeque::new(),
            held: VecDeque::new(),
            placeholder: pipe.placeholder,
            bad: 0,
        }
    }

    fn raw(&self, count: u64) -> u32 {
        ((self.start + count) % self.n) as u32
    }

    fn slot(&mut self, count: u64) -> &mut SlotValue {
        let raw = self.raw(count) as usize;
        &mut self.ring[raw]
    }

    fn txsync(&mut self, effort: Effort) {
        let ends = |m: &mut Model, c: u64| m.slot(c).flags & NS_MOREFRAG == 0;
        if let Some(last) = (self.tx.synced..self.tx.head).rev().find(|&c| ends(self, c)) {
            for c in self.sent..=last {
                let slot = *self.slot(c);
                self.channel.push_back(slot);
            }
            self.sent = last + 1;
        }
        self.tx.synced = self.tx.head;
        if effort == Effort::Full || self.tx.cur == self.tx.tail {
            self.tx.tail = self.rx.synced + self.n - 1;
        }
    }

    fn rxsync(&mut self, effort: Effort) {
        for c in self.rx.synced..self.rx.head {
            let Held { value, .. } = self.held.pop_front().unwrap();
            if value.flags & NS_BUF_CHANGED != 0 {
                self.slot(c).buf_idx = value.buf_idx;
            }
        }
        self.rx.synced = self.rx.head;
        if effort == Effort::Full || self.rx.cur == self.rx.tail {
            for (number, mut value) in (self.rx.tail..).zip(std::mem::take(&mut self.channel)) {
                value.flags &= !NS_BUF_CHANGED;
                let good = u32::from(value.len) <= BUF_SIZE;
                if !good {
                    self.bad += 1;
                    value = SlotValue { buf_idx: self.placeholder, len: 0, flags: value.flags & NS_MOREFRAG, ptr: 0 };
                }
                self.held.push_back(Held { value, number: good.then_some(number) });
            }
            self.rx.tail = self.sent;
        }
    }

    /// Slot values from the first not released to the last sent.
    fn in_transit(&self) -> impl Iterator<Item = SlotValue> + '_ {
        (self.rx.synced..self.sent).map(|c| self.ring[self.raw(c) as usize])
    }

    fn side(&mut self, tx: bool) -> &mut Side {
        if tx { &mut self.tx } else { &mut self.rx }
    }
}

/// The real thing and its model, walking together.
struct Pair {
    pipe: TestPipe,
    model: Model,
    /// Buffers in the hands of the two programs.
    own: [Vec<BufIdx>; 2],
    all: Vec<BufIdx>,
}

impl Pair {
    fn new(n: u32, start: u32) -> Pair {
        let mut region = TestRegion::new(1, n, 10);
        let pipe = region.pipe(n, start);
        if start.is_multiple_of(2) {
            pipe.bias(1);
        }
        let own = [region.extra(5), region.extra(5)];
        let all = [pipe.tx_indexes(), own.concat()].concat();
        Pair { model: Model::new(&pipe, start), pipe, own, all }
    }

    fn ring(&self, tx: bool) -> &Ring {
        if tx { &self.pipe.tx } else { &self.pipe.rx }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Fill(packets) => self.fill(packets),
            &Step::SetCur { tx, ahead } => {
                let side = self.model.side(tx);
                side.cur = side.head + u64::from(ahead) % (side.tail - side.head + 1);
                let cur = self.model.raw(if tx { self.model.tx.cur } else { self.model.rx.cur });
                self.ring(tx).set_cur(any_pos(cur));
            }
            &Step::Sync { tx, effort } => assert_eq!(self.sync(tx, effort), Ok(())),
            &Step::Read { slots, exchange } => self.read(slots, exchange),
            &Step::InvalidPointers { tx, head, cur } => self.invalid_pointers(tx, head, cur),
            &Step::Reopen { tx } => self.reopen(tx),
            &Step::Tail { tx, tail } => {
                poke(&self.pipe.files[0], self.ring(tx), Field::Tail, tail);
                assert_eq!(self.sync(tx, Effort::Full), Ok(()));
            }
        }
        self.check();
    }

    fn fill(&mut self, packets: &[Packet]) {
        let ring = &self.pipe.tx;
        assert_eq!(u64::from(ring.space()), self.model.tx.tail - self.model.tx.head);
        let mut filled = 0;
        for (slot, packet) in ring.available().zip(packets) {
            let number = self.model.tx.head + filled;
            assert_eq!(slot.pos().raw(), self.model.raw(number));
            slot.set_len_flags(packet.len, packet.flags);
            slot.set_ptr(packet.ptr);
            if packet.exchange
                && let Some(idx) = self.own[0].pop()
            {
                self.own[0].insert(0, slot.replace_buf(idx));
            }
            slot.frame().write(0, &number.to_ne_bytes());
            *self.model.slot(number) = slot.get();
            filled += 1;
        }
        assert_eq!(u64::from(ring.advance(filled as u32)), filled);
        self.model.tx.head += filled;
        self.model.tx.cur = self.model.tx.head;
    }

    fn read(&mut self, count: u32, exchange: u64) {
        let ring = &self.pipe.rx;
        assert_eq!(u64::from(ring.space()), self.model.rx.tail - self.model.rx.head);
        let first = (self.model.rx.head - self.model.rx.synced) as usize;
        let mut read = 0;
        for (slot, held) in ring.available().zip(self.model.held.iter_mut().skip(first)).take(count as usize) {
            assert_eq!(slot.get(), held.value);
            if let Some(number) = held.number {
                let mut bytes = [0; 8];
                slot.frame().read(0, &mut bytes);
                assert_eq!(u64::from_ne_bytes(bytes), number);
                if exchange >> (read % 64) & 1 == 1
                    && let Some(idx) = self.own[1].pop()
                {
                    self.own[1].insert(0, slot.replace_buf(idx));
                    *held = Held { value: slot.get(), number: None };
                }
            }
            read += 1;
        }
        assert_eq!(u64::from(ring.advance(read as u32)), read);
        self.model.rx.head += read;
        self.model.rx.cur = self.model.rx.head;
    }

    fn sync(&mut self, tx: bool, effort: Effort) -> Result<(), SyncError> {
        if tx {
            self.pipe.txsync(effort)?;
            self.model.txsync(effort);
        } else {
            self.pipe.rxsync(effort)?;
            self.model.rxsync(effort);
        }
        Ok(())
    }

    fn invalid_pointers(&mut self, tx: bool, head: u32, cur: u32) {
        // The reset truncates slots that are too long; whether that affects one in transit is unspecified.
        if tx && self.model.in_transit().any(|slot| u32::from(slot.len) > BUF_SIZE) {
            return;
        }
        let n = self.model.n as u32;
        let side = self.model.side(tx);
        let (synced, tail) = (side.synced, side.tail);
        let (hwcur, hwtail) = (self.model.raw(synced), self.model.raw(tail));
        if valid_by_walking(n, hwcur, hwtail, head, cur) {
            return;
        }
        let bad = || self.ring(tx).inner.state().bad_pointers.load(std::sync::atomic::Ordering::Relaxed);
        let before = bad();
        for (field, value) in [(Field::Head, head), (Field::Cur, cur)] {
            poke(&self.pipe.files[0], self.ring(tx), field, value);
        }
        let result = if tx { self.pipe.txsync(Effort::Full) } else { self.pipe.rxsync(Effort::IfNeeded) };
        assert_eq!(result, Err(SyncError::BadPointers));
        assert_eq!(bad(), before + 1);
        if tx {
            self.model.ring.iter_mut().filter(|slot| u32::from(slot.len) > BUF_SIZE).for_each(|slot| slot.len = 0);
        }
        // Back to where the last sync left the ring.
        let side = self.model.side(tx);
        (side.head, side.cur) = (synced, synced);
    }

    /// Slots that were sent and not released are delivered again; those that were not sent are forgotten.
    fn reopen(&mut self, tx: bool) {
        let m = &mut self.model;
        if tx {
            (m.tx.head, m.tx.cur, m.tx.synced, m.tx.tail) = (m.sent, m.sent, m.sent, m.rx.synced + m.n - 1);
        } else {
            // The daemon would restore the buffers that the last program exchanged: not implemented here.
            if m.held.iter().any(|held| held.value.flags & NS_BUF_CHANGED != 0) {
                return;
            }
            m.held.clear();
            m.channel = m.in_transit().collect();
            (m.rx.head, m.rx.cur, m.rx.tail) = (m.rx.synced, m.rx.synced, m.rx.synced);
        }
        self.pipe.reopen(tx);
    }

    /// Checks that pointers, slots and indexes are those of the model.
    fn check(&self) {
        let m = &self.model;
        for (tx, side) in [(true, &m.tx), (false, &m.rx)] {
            let ring = self.ring(tx);
            let got = [ring.head(), ring.cur(), ring.tail()].map(Pos::raw);
            assert_eq!(got, [side.head, side.cur, side.tail].map(|c| m.raw(c)), "head, cur, tail of tx {tx}");
            let hw = ring.inner.state().positions(slots(m.n as u32)).unwrap();
            assert_eq!([hw.0.raw(), hw.1.raw()], [side.synced, side.tail].map(|c| m.raw(c)), "hwcur, hwtail");
        }
        let expected: Vec<BufIdx> = m.ring.iter().map(|slot| slot.buf_idx).collect();
        assert_eq!(self.pipe.tx_indexes(), expected);
        let pending = m.tx.head != m.tx.tail + 1 - m.n;
        assert_eq!(self.pipe.tx.pending(), pending);
        let bad = self.pipe.rx.inner.state().bad_slots.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(bad, m.bad);
        // Only whole packets arrive.
        let good = m.held.back().is_none_or(|last| last.value.flags & NS_MOREFRAG == 0);
        assert!(good, "the last slot taken ends a packet");
    }

    /// Sends and reads what is left, and checks that every buffer is in one place.
    fn drain(&mut self) {
        let last = Packet { len: 1, flags: 0, ptr: 0, exchange: false };
        self.step(&Step::Sync { tx: true, effort: Effort::Full });
        self.step(&Step::Fill(vec![last]));
        for _ in 0..2 {
            self.step(&Step::Sync { tx: true, effort: Effort::Full });
            self.step(&Step::Sync { tx: false, effort: Effort::Full });
            self.step(&Step::Read { slots: u32::MAX, exchange: 0 });
            self.step(&Step::Sync { tx: false, effort: Effort::Full });
        }
        self.step(&Step::Sync { tx: true, effort: Effort::Full });
        assert_eq!(self.model.rx.synced, self.model.sent, "everything sent was read and released");
        // A ring full of the fragments of one packet cannot move on; all others can.
        if self.model.tx.synced - self.model.sent < self.model.n - 1 {
            assert!(!self.pipe.tx.pending() || self.model.sent < self.model.tx.synced);
        }
        let everywhere = each_once(&[&self.pipe.tx_indexes(), &self.own[0], &self.own[1]]);
        assert_eq!(everywhere, each_once(&[&self.all]), "every buffer is in one place");
    }
}

fn packet() -> impl Strategy<Value = Packet> {
    let len = prop_oneof![20 => 0..=BUF_SIZE as u16, 1 => Just(BUF_SIZE as u16 + 1), 1 => any::<u16>()];
    let more = prop_oneof![3 => Just(0), 1 => Just(NS_MOREFRAG)];
    let rest = any::<u16>().prop_map(|flags| flags & !NS_MOREFRAG);
    (len, more, rest, any::<u64>(), prop::bool::weighted(0.2)).prop_map(|(len, more, rest, ptr, exchange)| Packet {
        len,
        flags: more | rest,
        ptr,
        exchange,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let effort = || prop_oneof![Just(Effort::Full), Just(Effort::IfNeeded)];
    let wild = || prop_oneof![0u32..20, 0..1100u32, any::<u32>(), Just(u32::MAX)];
    prop_oneof![
        3 => vec(packet(), 0..40).prop_map(Step::Fill),
        3 => vec(packet(), 1..3).prop_map(Step::Fill),
        1 => (any::<bool>(), any::<u32>()).prop_map(|(tx, ahead)| Step::SetCur { tx, ahead }),
        10 => (any::<bool>(), effort()).prop_map(|(tx, effort)| Step::Sync { tx, effort }),
        5 => (0u32..40, any::<u64>()).prop_map(|(slots, exchange)| Step::Read { slots, exchange: exchange & exchange >> 7 }),
        1 => (any::<bool>(), wild(), wild()).prop_map(|(tx, head, cur)| Step::InvalidPointers { tx, head, cur }),
        1 => any::<bool>().prop_map(|tx| Step::Reopen { tx }),
        1 => (any::<bool>(), wild()).prop_map(|(tx, tail)| Step::Tail { tx, tail }),
    ]
}

fn ring_size() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![2u32, 3, 5, 8, 17, 64, 1024])
}

proptest! {
    #![proptest_config(cases(200))]

    /// For any actions of two programs each packet arrives once, whole, in order, unchanged; every pointer is that of
    /// the model; every buffer is in one place.
    #[test]
    fn a_pipe_behaves_as_two_queues(n in ring_size(), start in any::<u32>(), steps in vec(step(), 0..120)) {
        let mut pair = Pair::new(n, start % n);
        steps.iter().for_each(|step| pair.step(step));
        pair.drain();
    }

    /// Zero copy over two pipes of one region: a forwarder exchanges buffers between a receive and a transmit ring.
    #[test]
    fn a_forwarder_moves_packets_by_exchanging_buffers(
        n in ring_size(), m in ring_size(), start in any::<u32>(), steps in vec((0u8..5, 0u32..50), 0..150),
    ) {
        let mut region = TestRegion::new(2, n.max(m), 0);
        let (first, second) = (region.pipe(n, start % n), region.pipe(m, start % m));
        let before = [first.tx_indexes(), second.tx_indexes()].concat();
        let (mut sent, mut received) = (0u64, 0u64);
        let mut act = |kind: u8, count: u32| match kind {
            0 => {
                let filled = first.tx.available().take(count as usize).fold(0, |filled, slot| {
                    slot.frame().write(0, &sent.to_ne_bytes());
                    slot.set_len_flags(8, 0);
                    slot.set_ptr(!sent);
                    sent += 1;
                    filled + 1
                });
                first.tx.advance(filled);
                first.txsync(Effort::Full).unwrap();
            }
            1 => {
                let moved = first.rx.available().zip(second.tx.available()).take(count as usize).fold(0, |moved, (from, to)| {
                    to.swap_from(&from);
                    moved + 1
                });
                first.rx.advance(moved);
                second.tx.advance(moved);
            }
            2 => first.rxsync(Effort::Full).unwrap(),
            3 => second.txsync(Effort::Full).unwrap(),
            _ => {
                second.rxsync(Effort::IfNeeded).unwrap();
                let read = second.rx.available().take(count as usize).fold(0, |read, slot| {
                    let mut bytes = [0; 8];
                    slot.frame().read(0, &mut bytes);
                    assert_eq!((u64::from_ne_bytes(bytes), slot.get().ptr, slot.len()), (received, !received, 8));
                    received += 1;
                    read + 1
                });
                second.rx.advance(read);
            }
        };
        steps.into_iter().for_each(|(kind, count)| act(kind, count));
        // Each round moves at least one packet over each hop.
        for _ in 0..n + m {
            for (kind, count) in [(2, 0), (1, u32::MAX), (3, 0), (2, 0), (4, u32::MAX), (4, 0), (3, 0)] {
                act(kind, count);
            }
        }
        second.rxsync(Effort::Full).unwrap();
        prop_assert_eq!(received, sent);
        let after = each_once(&[&first.tx_indexes(), &second.tx_indexes()]);
        prop_assert_eq!(after, each_once(&[&before]));
    }
}

/// All ways in which the last slots before any position were sent and then taken by two receivers, one after another:
/// the second one gets the current packets, not older ones.
#[test]
fn a_second_receiver_gets_the_packets_sent_last() {
    let packet = |len| Packet { len, flags: 0, ptr: u64::from(len), exchange: false };
    for (n, start) in [2u32, 3, 5].into_iter().flat_map(|n| (0..n).map(move |start| (n, start))) {
        for (single, batch, read) in (0..2 * n).flat_map(|s| (1..n).flat_map(move |b| (0..=b).map(move |r| (s, b, r))))
        {
            let mut pair = Pair::new(n, start);
            let (tx, rx) =
                (Step::Sync { tx: true, effort: Effort::Full }, Step::Sync { tx: false, effort: Effort::Full });
            let send = |pair: &mut Pair, count: u32, len: u16| {
                let fill = Step::Fill((0..count).map(|i| packet(len + i as u16)).collect());
                [fill, tx.clone(), rx.clone()].iter().for_each(|step| pair.step(step));
            };
            for i in 0..single {
                send(&mut pair, 1, i as u16);
                [Step::Read { slots: 1, exchange: 0 }, rx.clone(), tx.clone()].iter().for_each(|step| pair.step(step));
            }
            send(&mut pair, batch, 40);
            let rest = [Step::Read { slots: read, exchange: 0 }, rx.clone(), Step::Reopen { tx: false }, rx.clone()];
            rest.iter().for_each(|step| pair.step(step));
            pair.step(&Step::Read { slots: n, exchange: 0 });
            pair.drain();
        }
    }
}

/// Two threads in the place of two processes, and two more that sync the same rings all the time, as netmap allows.
#[test]
fn threads_share_a_pipe() {
    use std::sync::atomic::{AtomicBool, Ordering};
    const PACKETS: u64 = 20_000;
    for n in [2u32, 5, 64, 1024] {
        let mut region = TestRegion::new(1, n, 1);
        let mut own = region.extra(1)[0];
        let pipe = region.pipe(n, n - 1);
        let before = [pipe.tx_indexes(), vec![own]].concat();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sent = 0;
                while sent < PACKETS {
                    let mut filled = 0;
                    for slot in pipe.tx.available().take(1 + sent as usize % 61).take((PACKETS - sent) as usize) {
                        slot.frame().write(0, &sent.to_ne_bytes());
                        slot.set_len_flags((sent % 60) as u16, 0);
                        (sent, filled) = (sent + 1, filled + 1);
                    }
                    pipe.tx.advance(filled);
                    pipe.txsync(Effort::IfNeeded).unwrap();
                    if filled == 0 {
                        std::thread::yield_now();
                    }
                }
                while pipe.tx.pending() {
                    pipe.txsync(Effort::Full).unwrap();
                    std::thread::yield_now();
                }
            });
            for holder in [3, 4] {
                let (ring, done) = (if holder == 3 { &pipe.tx } else { &pipe.rx }, &done);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        ring.inner.sync(holder, Effort::Full, None).unwrap();
                        std::thread::yield_now();
                    }
                });
            }
            let mut received = 0;
            while received < PACKETS {
                pipe.rxsync(Effort::Full).unwrap();
                let mut read = 0;
                for slot in pipe.rx.available().take(1 + received as usize % 53) {
                    let mut bytes = [0; 8];
                    slot.frame().read(0, &mut bytes);
                    assert_eq!((u64::from_ne_bytes(bytes), u64::from(slot.len())), (received, received % 60));
                    if received % 7 == 0 {
                        own = slot.replace_buf(own);
                    }
                    (received, read) = (received + 1, read + 1);
                }
                pipe.rx.advance(read);
                if read == 0 {
                    std::thread::yield_now();
                }
            }
            // Skipped while another thread syncs the ring.
            let synced = || pipe.rx.inner.state().positions(slots(n)).unwrap().0;
            while synced() != pipe.rx.head() {
                pipe.rxsync(Effort::Full).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(each_once(&[&pipe.tx_indexes(), &[own]]), each_once(&[&before]), "ring of {n}");
    }
}
