// SPDX-License-Identifier: BSD-2-Clause
//! Futex waits on a channel: a side without work waits on its own wake-up request word until the peer moves its
//! position.
#![cfg(not(loom))]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use unetmap_mem::{ChannelPage, FutexWaitSet, MappedRange, Pos, Producer, RingShape, SlotRing, Slots};
use unetmap_sys::{Mapping, memfd};

fn page() -> ChannelPage {
    let fd = memfd::create_sealed("test", 4096).unwrap();
    ChannelPage::new(MappedRange::whole(Arc::new(Mapping::new(fd.as_fd(), 4096).unwrap())))
}

#[test]
fn cpu_numbers_show_which_side_runs_where() {
    let page = page();
    let words = page.words(0).unwrap();
    assert!(!words.producer_runs_on(0) && !words.consumer_runs_on(0), "no CPU is recorded");
    assert!(!words.producer_cpu_is(0) && !words.consumer_runs_on_other_cpu(0), "no CPU is recorded");
    assert_eq!((words.producer_cpu(), words.consumer_cpu()), (None, None));
    words.set_producer_cpu(0);
    words.set_consumer_cpu(3);
    assert_eq!((words.producer_cpu(), words.consumer_cpu()), (Some(0), Some(3)));
    assert!(words.producer_runs_on(0) && !words.producer_runs_on(3));
    assert!(words.consumer_runs_on(3) && !words.consumer_runs_on(0));
    words.set_producer_cpu_any();
    assert!(words.producer_cpu_is_any() && !words.producer_runs_on(0) && words.producer_cpu().is_none());
    words.set_producer_cpu(0);
    assert!(!words.producer_cpu_is_any() && words.producer_runs_on(0));
    assert!(words.producer_cpu_is(0) && !words.producer_cpu_is(3));
    assert!(words.consumer_runs_on_other_cpu(0) && !words.consumer_runs_on_other_cpu(3));
    // A side that sleeps on its doorbell needs no CPU, and is woken once.
    words.consumer_request_wakeup();
    assert!(!words.consumer_runs_on(3) && !words.consumer_runs_on_other_cpu(0));
    assert_eq!([words.take_consumer_wakeup(), words.take_consumer_wakeup()], [true, false]);
    assert!(words.consumer_runs_on(3));
}

#[test]
fn no_futex_wait_when_the_position_has_moved_or_another_thread_sleeps() {
    let page = page();
    let words = page.words(0).unwrap();
    let slots = Slots::new(8).unwrap();
    words.publish(slots.next(Pos::ZERO));
    words.consumer_futex_wait(Pos::ZERO, true);
    assert!(!words.take_consumer_wakeup(), "the request was not withdrawn");
    words.producer_request_wakeup();
    words.producer_futex_wait(Pos::ZERO, false);
    assert!(words.take_producer_wakeup(), "the sleeper's doorbell is not notified");
}

/// Two peers take turns, each in a futex wait until the other has moved. A lost wake-up costs 5 ms and no more.
#[test]
fn a_futex_wait_ends_when_the_peer_moves() {
    const TURNS: u32 = 1000;
    let (page, slots) = (page(), Slots::new(8).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            let words = page.words(0).unwrap();
            let mut at = Pos::ZERO;
            for _ in 0..TURNS {
                let next = slots.next(at);
                words.publish(next);
                assert!(!words.take_consumer_wakeup(), "a futex waiter needs no doorbell");
                while words.cons_if_moved(at).is_none() {
                    words.producer_futex_wait(at, false);
                }
                at = next;
            }
        });
        let words = page.words(0).unwrap();
        let mut at = Pos::ZERO;
        for _ in 0..TURNS {
            while words.prod_if_moved(at).is_none() {
                words.consumer_futex_wait(at, false);
            }
            at = slots.next(at);
            words.release(at);
            assert!(!words.take_producer_wakeup(), "a futex waiter needs no doorbell");
        }
    });
}

/// A futex wait on several channels ends when the peer of one of them moves. A request of an earlier sleep is replaced.
#[test]
fn a_futex_wait_on_many_channels_ends_when_one_moves() {
    if !unetmap_sys::futex::can_wait_for_several() {
        eprintln!("skipped: this kernel, or its emulation, has no futex_waitv (Linux 5.16)");
        return;
    }
    let page = page();
    let channels: Vec<_> = (0..4).map(|i| page.words(i).unwrap()).collect();
    channels[0].consumer_request_wakeup();
    let mut set = FutexWaitSet::default();
    assert!(channels[..3].iter().all(|channel| set.add_consumer(channel)) && set.add_producer(channels[3]));
    assert!(!set.wait(|| false), "there was work");
    assert!(
        channels.iter().all(|channel| !channel.consumer_waits() && !channel.producer_waits()),
        "all requests were withdrawn"
    );
    for moves in 0..4 {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                // A wait ends by itself after 5 ms.
                while !set.wait(|| true) {}
            });
            while !waiting.is_finished() {
                let notify =
                    if moves < 3 { channels[moves].take_consumer_wakeup() } else { channels[3].take_producer_wakeup() };
                assert!(!notify, "a futex waiter needs no doorbell");
                thread::yield_now();
            }
        });
    }
    assert!(
        channels.iter().all(|channel| !channel.consumer_waits() && !channel.producer_waits()),
        "all requests were withdrawn"
    );
    let mut set = FutexWaitSet::default();
    let fit = (0..1000).take_while(|_| set.add_consumer(channels[0])).count();
    assert!((4..1000).contains(&fit), "{fit} channels fit");
}

/// A deferred wake-up reaches a side that is still in its futex wait. A side that sleeps on its doorbell is reported
/// once.
#[test]
fn a_deferred_wakeup_reaches_the_waiter() {
    let page = page();
    let slots = Slots::new(8).unwrap();
    let fd = memfd::create_sealed("test", 4096).unwrap();
    let ring = MappedRange::whole(Arc::new(Mapping::new(fd.as_fd(), 4096).unwrap()));
    assert!(RingShape::bytes(slots) <= 4096);
    let producer = Producer::new(&page, 0, SlotRing::new(&ring, 0, slots).unwrap()).unwrap();
    let words = producer.words();
    words.set_consumer_cpu(3);
    assert!(producer.futex_waiter(3).is_none(), "no futex waiter");
    let woken = thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            while words.prod_if_moved(Pos::ZERO).is_none() {
                words.consumer_futex_wait(Pos::ZERO, true);
            }
        });
        let waiter = loop {
            assert!(producer.futex_waiter(2).is_none(), "the waiter is on another CPU");
            match producer.futex_waiter(3) {
                Some(waiter) => break waiter,
                None => thread::yield_now(),
            }
        };
        assert!(waiter.is_same(&waiter));
        words.publish(slots.next(Pos::ZERO));
        assert!(!waiter.wake(), "a futex waiter needs no doorbell");
        waiting.join().unwrap();
        waiter
    });
    assert!(producer.doorbell_waiter().is_none() && !woken.wake(), "no waiter is left");
    words.consumer_request_wakeup();
    assert!(producer.futex_waiter(3).is_none(), "the consumer sleeps on its doorbell");
    let sleeper = producer.doorbell_waiter().unwrap();
    assert!(sleeper.is_same(&woken), "the same side");
    assert!(words.consumer_waits() && sleeper.wake(), "a sleeper needs its doorbell");
    assert!(!words.consumer_waits() && !sleeper.wake() && !words.take_consumer_wakeup());
}
