// SPDX-License-Identifier: BSD-2-Clause
//! Queues in memory that a guest has filled, with sense or without.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use tool_common::host::memory;
use unetmap::guest::{self, GuestPlace, GuestWords};

use super::*;

const USER: u64 = 1 << 40;
const BYTES: u64 = 64 << 10;
const SIZE: u32 = 16;
/// User addresses of the ring's parts; guest addresses begin at 0.
const RING: RingAddresses = RingAddresses { desc: USER, avail: USER + 0x1000, used: USER + 0x2000 };
/// The guest address of an indirect table, and of buffers.
const TABLE: u64 = 0x3000;
const BUFFER: u64 = 0x8000;

fn memory() -> (GuestMemory, GuestWords) {
    let fd = memory::create_sealed("guest", BYTES).unwrap();
    let range = guest::map(fd.as_fd(), 0, BYTES as usize).unwrap();
    let mut memory = GuestMemory::default();
    assert!(memory.add(GuestPlace { guest: 0, user: USER, bytes: BYTES }, range));
    let words = memory.words(USER, BYTES as usize, 1).unwrap();
    (memory, words)
}

fn queue(memory: &GuestMemory, packed: bool) -> Queue {
    let base = if packed { 1 << 15 } else { 0 };
    open(memory, packed, base, None).unwrap_or_else(|why| panic!("{why:?}"))
}

fn open(memory: &GuestMemory, packed: bool, base: u32, inflight: Option<&GuestWords>) -> Result<Queue, NotStarted> {
    let shape = Shape { size: SIZE, addresses: RING, base, packed, event_idx: true, writes: false };
    Queue::new(memory, &shape, inflight.cloned())
}

/// A region of in-flight descriptors.
fn inflight() -> GuestWords {
    let bytes = part_bytes(true, SIZE as u16);
    let fd = memory::create_sealed("inflight", bytes as u64).unwrap();
    GuestWords::new(guest::map(fd.as_fd(), 0, bytes).unwrap())
}

/// Offers `count` chains of two descriptors each, the `n`th with the identifier (packed) or head (split) 2 n, and a
/// capacity of 100 + n; `from` such chains were offered before.
fn offer_pairs(words: &GuestWords, packed: bool, from: u16, count: u16) {
    for n in from..from + count {
        let first = 2 * n % SIZE as u16;
        let flag = if (2 * n / SIZE as u16).is_multiple_of(2) { 1 << 7 } else { 1 << 15 };
        let (at, parts) = (u64::from(first), [(60, NEXT), (40 + u32::from(n), 0)]);
        for (i, (len, next)) in parts.into_iter().enumerate() {
            let last = if packed { [first, next | flag] } else { [next, first + 1] };
            write(words, 16 * (at + i as u64), BUFFER, len, last);
        }
        if !packed {
            words.store_u16(0x1004 + 2 * usize::from(n % SIZE as u16), first, Relaxed);
            words.store_u16(0x1002, n + 1, Relaxed);
        }
    }
}

/// Takes a chain, and returns its number and capacity.
fn take(memory: &GuestMemory, queue: &mut Queue) -> Option<(u16, u64, Chains)> {
    let (found, chains) = pop(memory, queue).unwrap();
    found.then(|| (chains.taken[0].id, chains.capacity(), chains))
}

/// Writes a descriptor at a guest address; the last two fields in the layout's order.
fn write(words: &GuestWords, at: u64, addr: u64, len: u32, last: [u16; 2]) {
    let at = at as usize;
    words.store_u32(at, addr as u32);
    words.store_u32(at + 4, (addr >> 32) as u32);
    words.store_u32(at + 8, len);
    words.store_u16(at + 12, last[0], Relaxed);
    words.store_u16(at + 14, last[1], Relaxed);
}

/// Offers the chain that begins at descriptor 0 of a split ring.
fn offer_split(words: &GuestWords) {
    words.store_u16(0x1004, 0, Relaxed);
    words.store_u16(0x1002, 1, Relaxed);
}

fn pop(memory: &GuestMemory, queue: &mut Queue) -> Result<(bool, Chains), Fault> {
    let mut chains = Chains::default();
    queue.pop(memory, &mut chains).map(|found| (found, chains))
}

#[test]
fn the_buffers_of_an_indirect_table_are_those_of_the_chain() {
    for packed in [false, true] {
        let (memory, words) = memory();
        let mut queue = queue(&memory, packed);
        // Split: linked, 0 to 2 to 1. Packed: in sequence.
        let (links, flags) = if packed { ([0, 0, 0], [0, 0, 0]) } else { ([2, 0, 1], [NEXT, 0, NEXT]) };
        for i in 0..3 {
            let last = if packed { [0, 0] } else { [flags[i], links[i]] };
            write(&words, TABLE + 16 * i as u64, BUFFER + 256 * i as u64, 10 + i as u32, last);
        }
        write(&words, 0, TABLE, 48, if packed { [7, INDIRECT | 1 << 7] } else { [INDIRECT, 0] });
        if !packed {
            offer_split(&words);
        }
        memory.frame(BUFFER, 512).unwrap().write(0, b"0123456789");
        let (found, chains) = pop(&memory, &mut queue).unwrap();
        assert!(found && !chains.is_unusable());
        assert_eq!((chains.count(), chains.capacity(), chains.segments.len()), (1, 33, 3));
        let mut out = [0; 10];
        assert_eq!((Cursor::new(&memory, &chains).read(&mut out), &out), (10, b"0123456789"));
        assert!(!pop(&memory, &mut queue).unwrap().0);
        queue.push_used(&chains, 0);
        queue.publish();
        assert_eq!(queue.base(), if packed { 0x8001_8001 } else { 1 });
    }
}

#[test]
fn loops_and_indexes_outside_of_the_queue_are_faults() {
    for next in [0, SIZE as u16, u16::MAX] {
        let (memory, words) = memory();
        let mut queue = queue(&memory, false);
        write(&words, 0, BUFFER, 10, [NEXT, next]);
        offer_split(&words);
        assert!(pop(&memory, &mut queue).is_err(), "next {next}");
    }
    let (memory, words) = memory();
    let mut split = queue(&memory, false);
    words.store_u16(0x1002, SIZE as u16 + 1, Relaxed);
    assert!(pop(&memory, &mut split).is_err(), "more chains than the queue has");
    let mut packed = queue(&memory, true);
    for i in 0..u64::from(SIZE) {
        write(&words, 16 * i, BUFFER, 10, [0, NEXT | 1 << 7]);
    }
    assert!(pop(&memory, &mut packed).is_err(), "a chain without an end");
}

#[test]
fn tables_that_are_none_make_a_chain_unusable() {
    let wrong = [
        // Length, flags and next of the table's first descriptor, its address, its bytes.
        (10, [INDIRECT, 0], TABLE, 16),
        (10, [NEXT, 0], TABLE, 32),
        (10, [NEXT, 9], TABLE, 32),
        (10, [WRITE, 0], TABLE, 16),
        (10, [0, 0], TABLE, 0),
        (10, [0, 0], TABLE, 17),
        (10, [0, 0], BYTES - 8, 16),
        (10, [0, 0], u64::MAX - 8, 16),
    ];
    for (len, last, table, bytes) in wrong {
        let (memory, words) = memory();
        let mut queue = queue(&memory, false);
        write(&words, TABLE, BUFFER, len, last);
        write(&words, 0, table, bytes, [INDIRECT, 0]);
        offer_split(&words);
        let (found, chains) = pop(&memory, &mut queue).unwrap();
        assert!(found && chains.is_unusable(), "{last:?} {table:#x} {bytes}");
        assert_eq!((chains.count(), chains.capacity()), (1, 0), "it is returned, and nothing is read");
    }
}

/// A process ends between any two steps of a batch; the next one takes the chains that the guest does not see as used,
/// once each and in order, although their descriptors were overwritten; over several laps of the ring.
#[test]
fn chains_that_were_not_returned_are_taken_again() {
    for packed in [false, true] {
        let (memory, words) = memory();
        let region = inflight();
        let (mut offered, mut returned) = (0, 0);
        for step in 0..200u16 {
            let wrong_base = if packed { 0x8003_8003 } else { 77 };
            let base = if step > 0 {
                wrong_base
            } else if packed {
                1 << 15
            } else {
                0
            };
            let mut queue = open(&memory, packed, base, Some(&region)).unwrap_or_else(|why| panic!("{why:?}"));
            let new = (SIZE as u16 / 2 - (offered - returned)).min(step % 5);
            offer_pairs(&words, packed, offered, new);
            offered += new;
            let all: Vec<_> = std::iter::from_fn(|| take(&memory, &mut queue)).collect();
            let numbers: Vec<_> = all.iter().map(|(id, capacity, _)| (*id, *capacity)).collect();
            let expected: Vec<_> = (returned..offered).map(|n| (2 * n % SIZE as u16, 100 + u64::from(n))).collect();
            assert_eq!(numbers, expected, "packed {packed}, step {step}");
            let (shown, written) = (usize::from(step % 3), usize::from(step % 7));
            for (n, (.., chains)) in all.iter().enumerate().take(shown.max(written)) {
                queue.push_used(chains, 0);
                if n + 1 == shown {
                    queue.publish();
                    returned += shown as u16;
                }
            }
            if packed && shown > 0 {
                assert_eq!(first_not_returned(&words, returned), returned, "step {step}");
            }
        }
        assert!(returned > 60, "{returned}");
    }
}

/// The number of the first chain, of `returned` or more, whose descriptor in a packed ring is not marked as used.
fn first_not_returned(words: &GuestWords, returned: u16) -> u16 {
    let is_used = |n: &u16| {
        let lap = 2 * n / SIZE as u16 % 2;
        let flags = words.load_u16(16 * usize::from(2 * n % SIZE as u16) + 14, Relaxed) & (1 << 7 | 1 << 15);
        flags == if lap == 0 { 1 << 7 | 1 << 15 } else { 0 }
    };
    (returned..returned + SIZE as u16 / 2).find(|n| !is_used(n)).unwrap_or(u16::MAX)
}

/// A queue that was stopped goes on where the front end says: its region says nothing more.
#[test]
fn a_stopped_queue_starts_at_the_base_that_is_given() {
    for packed in [false, true] {
        let (memory, words) = memory();
        let region = inflight();
        let start = if packed { 1 << 15 } else { 0 };
        let mut queue = open(&memory, packed, start, Some(&region)).ok().unwrap();
        offer_pairs(&words, packed, 0, 1);
        let (_, _, chains) = take(&memory, &mut queue).unwrap();
        queue.push_used(&chains, 0);
        queue.publish();
        queue.close();
        assert_eq!(queue.base(), if packed { 0x8002_8002 } else { 1 });
        // The guest has reset its card.
        words.store_u16(0x2002, 0, Relaxed);
        offer_pairs(&words, packed, 0, 1);
        let mut queue = open(&memory, packed, start, Some(&region)).ok().unwrap();
        assert_eq!(take(&memory, &mut queue).map(|(id, ..)| id), Some(0));
    }
}

#[test]
fn copies_end_at_addresses_that_are_no_memory() {
    let (memory, words) = memory();
    let mut queue = queue(&memory, false);
    write(&words, 0, BYTES - 4, 10, [0, 0]);
    offer_split(&words);
    let (_, chains) = pop(&memory, &mut queue).unwrap();
    assert_eq!(Cursor::new(&memory, &chains).read(&mut [0; 10]), 4);
    assert_eq!(Cursor::new(&memory, &chains).write(&[0; 10]), 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the memory contains, each call ends, and a split queue has no more chains than it has
    /// descriptors (a packed one may find returned descriptors that look like offered ones).
    #[test]
    fn any_words_in_the_rings(seed in any::<u64>(), packed in any::<bool>(), small in any::<bool>()) {
        let (memory, words) = memory();
        let mut queue = queue(&memory, packed);
        let mut state = seed | 1;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for at in (0..0x4000).step_by(4) {
            let word = (random() >> 20) as u32;
            words.store_u32(at, if small { word & 0x0083_0fff } else { word });
        }
        words.store_u16(0x1002, (random() % 17) as u16, Relaxed);
        let mut taken = 0;
        for _ in 0..40 {
            let mark = queue.mark();
            let Ok((found, chains)) = pop(&memory, &mut queue) else { break };
            prop_assert!(chains.segments.len() <= MAX_CHAIN_BUFFERS);
            let mut out = [0; 100];
            Cursor::new(&memory, &chains).read(&mut out);
            if !found {
                queue.arm();
                break;
            }
            if random() % 4 == 0 {
                queue.rewind(mark);
            } else {
                taken += 1;
                prop_assert!(packed || taken <= SIZE, "chains of one offer");
                queue.push_used(&chains, 50);
                queue.publish();
            }
        }
    }

    /// Whatever a hypervisor has written into the region, it is refused or used, and no more chains are taken from it
    /// than the queue has descriptors.
    #[test]
    fn any_words_in_the_region_of_in_flight_descriptors(seed in any::<u64>(), packed in any::<bool>(), full in any::<bool>()) {
        let (memory, words) = memory();
        let region = inflight();
        offer_pairs(&words, packed, 0, 3);
        drop(open(&memory, packed, if packed { 1 << 15 } else { 0 }, Some(&region)).ok().unwrap());
        let mut state = seed | 1;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as u16
        };
        let header = if packed { 32 } else { 16 };
        let bytes = part_bytes(packed, SIZE as u16);
        let places: Vec<usize> = match full {
            true => (12..bytes).step_by(2).collect(),
            false => (0..4).map(|_| 12 + usize::from(random()) % (bytes - 12) / 2 * 2).collect(),
        };
        for at in places {
            let small = at < header || random() % 2 == 0;
            region.store_u16(at, if small { random() % (SIZE as u16 + 1) } else { random() }, Relaxed);
        }
        let Ok(mut queue) = open(&memory, packed, 0, Some(&region)) else { return Ok(()) };
        for taken in 0.. {
            prop_assert!(taken <= 2 * SIZE);
            match pop(&memory, &mut queue) {
                Ok((true, chains)) => queue.push_used(&chains, 0),
                _ => break,
            }
        }
        queue.publish();
    }
}
