//! Naps on a line: who has nothing to do sleeps on its own word until the other party moves.
#![cfg(not(loom))]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use unetmap_mem::{LinePage, Pos, Slots, Window};
use unetmap_sys::{Mapping, memfd};

fn page() -> LinePage {
    let fd = memfd::create_sealed("test", 4096).unwrap();
    LinePage::new(Window::whole(Arc::new(Mapping::new(fd.as_fd(), 4096).unwrap())))
}

#[test]
fn a_processor_is_shared_or_not() {
    let page = page();
    let words = page.words(0).unwrap();
    assert!(!words.producer_shares(0) && !words.consumer_shares(0), "nobody has said where he is");
    words.producer_is_on(0);
    words.consumer_is_on(3);
    assert!(words.producer_shares(0) && !words.producer_shares(3));
    assert!(words.consumer_shares(3) && !words.consumer_shares(0));
    words.producer_is_anywhere();
    assert!(words.producer_is_just_up() && !words.producer_shares(0));
    words.producer_is_on(0);
    assert!(!words.producer_is_just_up() && words.producer_shares(0));
    // Who sleeps needs no processor, and is woken once.
    words.consumer_arm();
    assert!(!words.consumer_shares(3));
    assert_eq!([words.consumer_sleeps(), words.consumer_sleeps()], [true, false]);
    assert!(words.consumer_shares(3));
}

#[test]
fn nobody_naps_while_something_is_to_be_had_or_another_sleeps() {
    let page = page();
    let words = page.words(0).unwrap();
    let slots = Slots::new(8).unwrap();
    words.publish(slots.next(Pos::ZERO));
    words.consumer_nap(Pos::ZERO);
    assert!(!words.consumer_sleeps(), "the wish was not taken back");
    words.producer_arm();
    words.producer_nap(Pos::ZERO);
    assert!(words.producer_sleeps(), "the bell is not rung for the sleeper");
}

/// Two parties take turns, each napping until the other has moved; whoever is not woken goes on after 5 ms, and all ends.
#[test]
fn naps_end_when_the_other_moves() {
    const TURNS: u32 = 1000;
    let (page, slots) = (page(), Slots::new(8).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            let words = page.words(0).unwrap();
            let mut at = Pos::ZERO;
            for _ in 0..TURNS {
                let next = slots.next(at);
                words.publish(next);
                assert!(!words.consumer_sleeps(), "it naps, no bell");
                while words.released_beyond(at).is_none() {
                    words.producer_nap(at);
                }
                at = next;
            }
        });
        let words = page.words(0).unwrap();
        let mut at = Pos::ZERO;
        for _ in 0..TURNS {
            while words.sent_beyond(at).is_none() {
                words.consumer_nap(at);
            }
            at = slots.next(at);
            words.release(at);
            assert!(!words.producer_sleeps(), "it naps, no bell");
        }
    });
}
