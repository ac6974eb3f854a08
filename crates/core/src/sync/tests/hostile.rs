// SPDX-License-Identifier: BSD-2-Clause
//! A hostile process writes any value to any word that programs map, or removes pages, while an honest program
//! continues: nothing panics, nothing outside the two rings is changed, every sync returns, and every value that the
//! API returns to the honest program is valid.
//!
//! The position type asserts its bounds in debug builds, so a position outside a ring is a panic here.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use unetmap_mem::Pos;

use super::cases;
use super::steps::{Step, copy, punch, surrounded, sync, work, write};
use super::test_pipe::BUF_SIZE;
use crate::port::Ring;
use crate::sync::Effort;

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

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn any_word_may_have_any_value(n in prop::sample::select(vec![2u32, 3, 5, 8, 17, 64]), steps in vec(step(), 1..150)) {
        let pipe = surrounded(n);
        steps.iter().for_each(|step| step.run(&pipe));
    }

    /// Every word of the state, the channel and the pointers at once: combinations that single steps rarely reach.
    #[test]
    fn all_positions_may_have_any_value_at_once(
        n in 2u32..9, words in vec(0u32..10, 14), slots in vec(any::<[u32; 4]>(), 16), efforts in any::<[bool; 4]>(),
    ) {
        let pipe = surrounded(n);
        let mut words = words.into_iter();
        for (file, ring) in [(1, &pipe.tx), (2, &pipe.rx)] {
            let at = ring.inner.view.shape().offset;
            for field in [super::test_pipe::Field::Head, super::test_pipe::Field::Cur, super::test_pipe::Field::Tail] {
                super::test_pipe::poke(&pipe.files[0], ring, field, words.next().unwrap());
            }
            // hwcur, hwtail
            write(&pipe, file, 1, words.next().unwrap());
            write(&pipe, file, 2, words.next().unwrap());
            for (i, slot) in slots.iter().enumerate().take(n as usize) {
                let slot = slot.map(u32::to_ne_bytes).concat();
                pipe.files[0].write_all_at(&slot, at + 256 + i as u64 * 16).unwrap();
            }
        }
        // prod, cons
        write(&pipe, 3, 0, words.next().unwrap());
        write(&pipe, 3, 32, words.next().unwrap());
        for (i, full) in efforts.into_iter().enumerate() {
            sync(&pipe, i % 2 == 0, if full { Effort::Full } else { Effort::IfNeeded });
        }
        work(&pipe.tx, 9, 1);
        work(&pipe.rx, 9, 2);
    }
}

/// Two honest programs work while a third process writes and removes pages concurrently.
#[test]
fn concurrent_writes_by_a_third_process_do_no_harm() {
    for n in [2u32, 8, 64] {
        let pipe = surrounded(n);
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
                        0 => punch(&pipe.files[file], word, noise & 64 == 0),
                        1..8 => copy(&pipe, file, word, noise as u32),
                        8..16 => write(&pipe, file, word, noise as u32),
                        // The locks stay free most of the time; otherwise no sync would work.
                        16..24 => (1..3).for_each(|file| write(&pipe, file, 0, 0)),
                        _ => write(&pipe, file, word, (noise >> 8) as u32 % (n + 1)),
                    }
                }
            });
            let honest = move |ring: &Ring, holder| {
                for round in 0..15_000u64 {
                    let effort = if round % 3 == 0 { Effort::IfNeeded } else { Effort::Full };
                    // An error is valid, too: a pointer may have been invalid at that moment.
                    let _ = ring.inner.sync(holder, effort, None);
                    let head = ring.head();
                    work_while_others_write(ring, (round % 9) as u32, head);
                }
            };
            let (tx, rx) = (&pipe.tx, &pipe.rx);
            let sender = scope.spawn(move || honest(tx, 1));
            honest(rx, 2);
            let sender = sender.join();
            stop.store(true, Ordering::Relaxed);
            sender.unwrap();
        });
    }
}

/// Does what [`work`] does, without the assertions that hold only while nothing else writes.
fn work_while_others_write(ring: &Ring, count: u32, head: Pos) {
    let mut data = [0; 2 * BUF_SIZE as usize];
    let mut last: Option<crate::SlotRef<'_>> = None;
    for slot in ring.available().take(count as usize) {
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
