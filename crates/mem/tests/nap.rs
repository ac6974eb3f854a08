//! Naps on a line: who has nothing to do sleeps on its own word until the other party moves.
#![cfg(not(loom))]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use unetmap_mem::{LinePage, Nap, Pos, Producer, RingShape, SlotRing, Slots, Window};
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
    assert!(!words.producer_is_near(0) && !words.consumer_is_awake_elsewhere(0), "nobody has said where he is");
    words.producer_is_on(0);
    words.consumer_is_on(3);
    assert!(words.producer_shares(0) && !words.producer_shares(3));
    assert!(words.consumer_shares(3) && !words.consumer_shares(0));
    words.producer_is_anywhere();
    assert!(words.producer_is_just_up() && !words.producer_shares(0));
    words.producer_is_on(0);
    assert!(!words.producer_is_just_up() && words.producer_shares(0));
    assert!(words.producer_is_near(0) && !words.producer_is_near(3));
    assert!(words.consumer_is_awake_elsewhere(0) && !words.consumer_is_awake_elsewhere(3));
    // Who sleeps needs no processor, and is woken once.
    words.consumer_arm();
    assert!(!words.consumer_shares(3) && !words.consumer_is_awake_elsewhere(0));
    assert_eq!([words.consumer_sleeps(), words.consumer_sleeps()], [true, false]);
    assert!(words.consumer_shares(3));
}

#[test]
fn nobody_naps_while_something_is_to_be_had_or_another_sleeps() {
    let page = page();
    let words = page.words(0).unwrap();
    let slots = Slots::new(8).unwrap();
    words.publish(slots.next(Pos::ZERO));
    words.consumer_nap(Pos::ZERO, true);
    assert!(!words.consumer_sleeps(), "the wish was not taken back");
    words.producer_arm();
    words.producer_nap(Pos::ZERO, false);
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
                    words.producer_nap(at, false);
                }
                at = next;
            }
        });
        let words = page.words(0).unwrap();
        let mut at = Pos::ZERO;
        for _ in 0..TURNS {
            while words.sent_beyond(at).is_none() {
                words.consumer_nap(at, false);
            }
            at = slots.next(at);
            words.release(at);
            assert!(!words.producer_sleeps(), "it naps, no bell");
        }
    });
}

/// Who naps on several lines is woken by whoever moves on one of them; what is left of an earlier sleep is none of it.
#[test]
fn a_nap_on_many_lines_ends_when_one_moves() {
    let page = page();
    let lines: Vec<_> = (0..4).map(|i| page.words(i).unwrap()).collect();
    lines[0].consumer_arm();
    let mut nap = Nap::default();
    assert!(lines[..3].iter().all(|line| nap.as_consumer(line)) && nap.as_producer(lines[3]));
    assert!(!nap.take(|| false), "there was something to do");
    assert!(lines.iter().all(|line| !line.consumer_waits() && !line.producer_waits()), "all wishes were taken back");
    for moves in 0..4 {
        thread::scope(|scope| {
            let napping = scope.spawn(|| {
                // A nap ends by itself after 5 ms.
                while !nap.take(|| true) {}
            });
            while !napping.is_finished() {
                let bell = if moves < 3 { lines[moves].consumer_sleeps() } else { lines[3].producer_sleeps() };
                assert!(!bell, "it naps, no bell");
                thread::yield_now();
            }
        });
    }
    assert!(lines.iter().all(|line| !line.consumer_waits() && !line.producer_waits()), "all wishes were taken back");
    let mut nap = Nap::default();
    let fit = (0..1000).take_while(|_| nap.as_consumer(lines[0])).count();
    assert!((4..1000).contains(&fit), "{fit} lines fit");
}

/// A wake-up that is owed reaches who naps still; who sleeps is to be woken by his bell, once, and nobody else.
#[test]
fn who_waits_is_woken_later() {
    let page = page();
    let slots = Slots::new(8).unwrap();
    let fd = memfd::create_sealed("test", 4096).unwrap();
    let ring = Window::whole(Arc::new(Mapping::new(fd.as_fd(), 4096).unwrap()));
    assert!(RingShape::bytes(slots) <= 4096);
    let producer = Producer::new(&page, 0, SlotRing::new(&ring, 0, slots).unwrap()).unwrap();
    let words = producer.words();
    words.consumer_is_on(3);
    assert!(producer.napper(3).is_none(), "nobody naps");
    let woken = thread::scope(|scope| {
        let napping = scope.spawn(|| {
            while words.sent_beyond(Pos::ZERO).is_none() {
                words.consumer_nap(Pos::ZERO, true);
            }
        });
        let napper = loop {
            assert!(producer.napper(2).is_none(), "it naps elsewhere");
            match producer.napper(3) {
                Some(napper) => break napper,
                None => thread::yield_now(),
            }
        };
        assert!(napper.is(&napper));
        words.publish(slots.next(Pos::ZERO));
        assert!(!napper.wake(), "it naps, no bell");
        napping.join().unwrap();
        napper
    });
    assert!(producer.sleeper().is_none() && !woken.wake(), "nobody waits");
    words.consumer_arm();
    assert!(producer.napper(3).is_none(), "it sleeps");
    let sleeper = producer.sleeper().unwrap();
    assert!(sleeper.is(&woken), "the same party");
    assert!(words.consumer_waits() && sleeper.wake(), "who sleeps is to be woken by a bell");
    assert!(!words.consumer_waits() && !sleeper.wake() && !words.consumer_sleeps());
}
