// SPDX-License-Identifier: BSD-2-Clause
//! Queues in memory that a guest has filled, with sense or without.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use unetmap_mem::{GuestPlace, GuestWords, MappedRange};
use unetmap_sys::{Mapping, memfd};

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
    let fd = memfd::create_sealed("guest", BYTES).unwrap();
    let range = MappedRange::whole(Arc::new(Mapping::of_guest(fd.as_fd(), 0, BYTES as usize).unwrap()));
    let mut memory = GuestMemory::default();
    assert!(memory.add(GuestPlace { guest: 0, user: USER, bytes: BYTES }, range));
    let words = memory.words(USER, BYTES as usize, 1).unwrap();
    (memory, words)
}

fn queue(memory: &GuestMemory, packed: bool) -> Queue {
    let base = if packed { 1 << 15 } else { 0 };
    let shape = Shape { size: SIZE, addresses: RING, base, packed, event_idx: true, writes: false };
    Queue::new(memory, &shape).unwrap_or_else(|why| panic!("{why}"))
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

    /// Whatever the memory contains, each call ends, and no more chains are found than the queue has.
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
        for _ in 0..40 {
            let mark = queue.mark();
            let Ok((found, chains)) = pop(&memory, &mut queue) else { break };
            prop_assert!(chains.segments.len() <= MAX_SEGMENTS);
            let mut out = [0; 100];
            Cursor::new(&memory, &chains).read(&mut out);
            if !found {
                queue.arm();
                break;
            }
            if random() % 4 == 0 {
                queue.rewind(mark);
            } else {
                queue.push_used(&chains, 50);
                queue.publish();
            }
        }
    }
}
