//! Somebody writes anything anywhere in what programs map, or takes the pages away, while an honest program goes on:
//! nothing panics, nothing outside the two rings is touched, every sync returns, and whatever reaches the honest
//! program through the API was judged.
//!
//! The position type asserts its bounds in debug builds, so a position out of a ring is a panic here.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use rustix::fs::{FallocateFlags, fallocate};
use unetmap_mem::{BufIdx, Pos, Span};

use super::cases;
use super::wire::{BUF_SIZE, House, Wire};
use crate::port::ring::Ring;
use crate::sync::Effort;

#[derive(Clone, Debug)]
enum Step {
    /// Writes a word: which of the four files, which word of it, what.
    Write {
        file: usize,
        word: u32,
        value: u32,
    },
    /// Copies a word of a file to another place, as one who guesses well would.
    Copy {
        file: usize,
        from: u32,
        to: u32,
    },
    /// Takes a page away, or all pages.
    Punch {
        file: usize,
        page: u32,
        all: bool,
    },
    Sync {
        tx: bool,
        effort: Effort,
    },
    /// The honest program works on one of its rings through the API.
    Work {
        tx: bool,
        count: u32,
        seed: u64,
    },
}

fn bytes(file: &File) -> u64 {
    file.metadata().unwrap().len()
}

/// Words where something matters come first: all of the control and line words, and in a region, the rings.
fn place(wire: &Wire, file: usize, word: u32) -> u64 {
    let (start, room) = match file {
        0 => {
            let rings = wire.tx.inner.view.region().geometry().rings;
            if word.is_multiple_of(8) { (0, bytes(&wire.files[0])) } else { (rings.offset, rings.bytes()) }
        }
        3 => (0, 512),
        _ => (0, 128),
    };
    start + u64::from(word) * 4 % room
}

fn write(wire: &Wire, file: usize, word: u32, value: u32) {
    wire.files[file].write_all_at(&value.to_ne_bytes(), place(wire, file, word)).unwrap();
}

fn copy(wire: &Wire, file: usize, from: u32, to: u32) {
    let mut value = [0; 4];
    wire.files[file].read_exact_at(&mut value, place(wire, file, from)).unwrap();
    wire.files[file].write_all_at(&value, place(wire, file, to)).unwrap();
}

/// What MADV_REMOVE on a mapping does, too.
fn punch(file: &File, page: u32, all: bool) {
    let (at, len) = if all { (0, bytes(file)) } else { (u64::from(page) * 4096 % bytes(file), 4096) };
    fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len).unwrap();
}

/// Everything that an honest program does with a ring.
fn work(ring: &Ring, count: u32, seed: u64) {
    let n = ring.num_slots();
    assert!([ring.head(), ring.cur(), ring.tail()].iter().all(|p| p.raw() < n));
    assert!(ring.space() < n);
    let (mut seen, mut data) = (0, [0; 2 * BUF_SIZE as usize]);
    let mut last: Option<crate::SlotRef<'_>> = None;
    for slot in ring.window().take(count as usize) {
        assert!(slot.pos().raw() < n);
        let frame = slot.frame();
        assert!([0, BUF_SIZE as usize].contains(&frame.capacity()));
        assert!(frame.read((seed % 100) as usize, &mut data) <= frame.capacity());
        assert!(frame.write((seed % 90) as usize, &data) <= frame.capacity());
        match seed >> (seen % 60) & 7 {
            0 => drop(slot.replace_buf(BufIdx(2 + seen))),
            1 => last.iter().for_each(|last| slot.swap_from(last)),
            2 => slot.set_len_flags(seed as u16, (seed >> 16) as u16),
            _ => slot.set_ptr(seed),
        }
        if let Some(last) = &last {
            assert!(frame.copy_from(&last.frame(), usize::MAX) <= BUF_SIZE as usize);
        }
        last = Some(slot);
        seen += 1;
    }
    assert!(seen < n);
    ring.advance(seen);
    ring.set_cur(ring.tail());
    ring.pending();
}

/// All bytes of the region but those of the wire's two rings.
fn surroundings(wire: &Wire) -> Vec<u8> {
    let mut all = vec![0; bytes(&wire.files[0]) as usize];
    wire.files[0].read_exact_at(&mut all, 0).unwrap();
    let size = wire.tx.inner.view.region().geometry().rings.size as usize;
    for ring in [&wire.tx, &wire.rx] {
        let at = ring.inner.view.shape().offset as usize;
        all[at..at + size].fill(0);
    }
    all
}

/// One sync, while nobody else writes.
fn sync(wire: &Wire, tx: bool, effort: Effort) {
    let ring = if tx { &wire.tx } else { &wire.rx };
    let slots = ring.inner.view.shape().slots;
    let before = surroundings(wire);
    let head = ring.inner.view.raw_head();
    let (state, batches) = (ring.inner.state(), |ring: &Ring| ring.inner.state().batches.load(Ordering::Relaxed));
    let (positions, done) = (state.positions(slots), batches(ring));
    let result = if tx { wire.txsync(effort) } else { wire.rxsync(effort) };
    assert!(surroundings(wire) == before, "a sync touches its two rings only");
    if result.is_err() {
        return;
    }
    if !tx && batches(ring) != done {
        // Something was delivered.
        let (from, to) = (positions.expect("judged").1, state.positions(slots).expect("written by us").1);
        assert_eq!(ring.inner.view.raw_tail(), to.raw());
        let limits = ring.inner.view.region().limits();
        let held = slots.pos(head).expect("judged");
        assert!(slots.between(from, to, slots.prev(held)), "nothing is delivered into slots that the program holds");
        for p in slots.walk(Span { from, to }) {
            let slot = ring.slot(p).get();
            assert!(limits.allow(slot), "{slot:?} was delivered");
        }
    }
}

fn value() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0u32..20,
        1 => any::<u32>(),
        1 => prop::sample::select(vec![63, 64, 65, 1 << 16, 65535, 0x0001_0040, 0x0021_0040, 1 << 31, u32::MAX]),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let effort = prop_oneof![Just(Effort::Full), Just(Effort::IfNeeded)];
    prop_oneof![
        8 => (0usize..4, any::<u32>(), value()).prop_map(|(file, word, value)| Step::Write { file, word, value }),
        2 => (0usize..4, any::<u32>(), any::<u32>()).prop_map(|(file, from, to)| Step::Copy { file, from, to }),
        1 => (0usize..4, any::<u32>(), any::<bool>()).prop_map(|(file, page, all)| Step::Punch { file, page, all }),
        8 => (any::<bool>(), effort).prop_map(|(tx, effort)| Step::Sync { tx, effort }),
        8 => (any::<bool>(), 0u32..20, any::<u64>()).prop_map(|(tx, count, seed)| Step::Work { tx, count, seed }),
    ]
}

/// A wire between two others, whose rings and buffers nobody may touch.
fn surrounded(n: u32) -> Wire {
    let mut house = House::new(3, n, 8);
    house.wire(n, 0);
    let wire = house.wire(n, n / 2);
    wire.own(1);
    house.wire(n, 0);
    wire
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn any_word_may_say_anything(n in prop::sample::select(vec![2u32, 3, 5, 8, 17, 64]), steps in vec(step(), 1..150)) {
        let wire = surrounded(n);
        for step in steps {
            match step {
                Step::Write { file, word, value } => write(&wire, file, word, value),
                Step::Copy { file, from, to } => copy(&wire, file, from, to),
                Step::Punch { file, page, all } => punch(&wire.files[file], page, all),
                Step::Sync { tx, effort } => sync(&wire, tx, effort),
                Step::Work { tx, count, seed } => work(if tx { &wire.tx } else { &wire.rx }, count, seed),
            }
        }
    }

    /// Every word of the state, the line and the pointers at once: what only luck brings together step by step.
    #[test]
    fn all_positions_may_be_anything_at_once(
        n in 2u32..9, words in vec(0u32..10, 14), slots in vec(any::<[u32; 4]>(), 16), efforts in any::<[bool; 4]>(),
    ) {
        let wire = surrounded(n);
        let mut words = words.into_iter();
        for (file, ring) in [(1, &wire.tx), (2, &wire.rx)] {
            let at = ring.inner.view.shape().offset;
            for field in [super::wire::Field::Head, super::wire::Field::Cur, super::wire::Field::Tail] {
                super::wire::poke(&wire.files[0], ring, field, words.next().unwrap());
            }
            // hwcur, hwtail
            write(&wire, file, 1, words.next().unwrap());
            write(&wire, file, 2, words.next().unwrap());
            for (i, slot) in slots.iter().enumerate().take(n as usize) {
                let slot = slot.map(u32::to_ne_bytes).concat();
                wire.files[0].write_all_at(&slot, at + 256 + i as u64 * 16).unwrap();
            }
        }
        // prod, cons
        write(&wire, 3, 0, words.next().unwrap());
        write(&wire, 3, 32, words.next().unwrap());
        for (i, full) in efforts.into_iter().enumerate() {
            sync(&wire, i % 2 == 0, if full { Effort::Full } else { Effort::IfNeeded });
        }
        work(&wire.tx, 9, 1);
        work(&wire.rx, 9, 2);
    }
}

/// The same, at the same time: two honest programs work while a third party scribbles and takes pages away.
#[test]
fn a_scribbler_disturbs_nobody() {
    for n in [2u32, 8, 64] {
        let wire = surrounded(n);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut noise = 0x9e37_79b9_7f4a_7c15u64;
                while !stop.load(Ordering::Relaxed) {
                    noise ^= noise << 13;
                    noise ^= noise >> 7;
                    noise ^= noise << 17;
                    let (file, word) = ((noise >> 60) as usize % 4, (noise >> 20) as u32);
                    match noise % 64 {
                        0 => punch(&wire.files[file], word, noise & 64 == 0),
                        1..8 => copy(&wire, file, word, noise as u32),
                        8..16 => write(&wire, file, word, noise as u32),
                        // The locks stay free most of the time, or nothing would happen.
                        16..24 => (1..3).for_each(|file| write(&wire, file, 0, 0)),
                        _ => write(&wire, file, word, (noise >> 8) as u32 % (n + 1)),
                    }
                }
            });
            let honest = move |ring: &Ring, lease| {
                for round in 0..15_000u64 {
                    let effort = if round % 3 == 0 { Effort::IfNeeded } else { Effort::Full };
                    // An error, where a pointer was nonsense at that moment, is as good.
                    let _ = ring.inner.sync(lease, effort, None);
                    let head = ring.head();
                    work_while_others_write(ring, (round % 9) as u32, head);
                }
            };
            let (tx, rx) = (&wire.tx, &wire.rx);
            let sender = scope.spawn(move || honest(tx, 1));
            honest(rx, 2);
            let sender = sender.join();
            stop.store(true, Ordering::Relaxed);
            sender.unwrap();
        });
    }
}

/// As [`work`], without what holds only while nobody else writes.
fn work_while_others_write(ring: &Ring, count: u32, head: Pos) {
    let mut data = [0; 2 * BUF_SIZE as usize];
    let mut last: Option<crate::SlotRef<'_>> = None;
    for slot in ring.window().take(count as usize) {
        let frame = slot.frame();
        assert!(frame.read(0, &mut data) <= BUF_SIZE as usize);
        assert!(frame.write(1, &data) <= BUF_SIZE as usize);
        if let Some(last) = &last {
            slot.swap_from(last);
        }
        last = Some(slot);
    }
    ring.advance(count);
    ring.slot(head).set_len_flags(60, 0);
    ring.set_cur(ring.tail());
}
