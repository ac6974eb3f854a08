// SPDX-License-Identifier: BSD-2-Clause
//! Clients that crash inside a sync: the locks, and biases of locks, that they leave in a ring's shared state block no
//! other client.

use conformance::client::start_ready_client;
use conformance::traffic::{expect, open, send};
use conformance::{Home, isolated, until};
use conformance_hostile::raw::{ControlConnection, RawPort};

/// A ring lock whose holder's connection is closed.
#[test]
fn the_ring_lock_of_a_closed_holder_is_released() {
    const LOCK: u64 = 0;
    isolated(|home| {
        a_ring_is_released_after_a_crash(home, |holder| vec![(LOCK, holder)], "the lock was not respected")
    });
}

/// A client crashed inside a sync that it entered by the bias of the lock.
#[test]
fn the_ring_bias_of_a_closed_holder_is_released() {
    const BIASED_THREAD: u64 = 18;
    const BIAS_HOLDER: u64 = 20;
    const INSIDE: u64 = 21;
    const WAS_BIASED: u64 = 22;
    let words = |holder| vec![(INSIDE, holder), (BIAS_HOLDER, holder), (BIASED_THREAD, 0x1000), (WAS_BIASED, 1)];
    isolated(|home| a_ring_is_released_after_a_crash(home, words, "two threads were inside"));
}

/// Writes these words into a ring's state, in the name of another client; the ring is skipped until that is gone.
#[track_caller]
fn a_ring_is_released_after_a_crash(home: &Home, words: impl Fn(u32) -> Vec<(u64, u32)>, otherwise: &str) {
    let (far, near) = (open("netmap:l{1"), open("netmap:l}1"));
    let raw_port = RawPort::open(&home.socket(), "l}1");
    let client = ControlConnection::connect(&home.socket()).expect("a daemon");
    let rx = raw_port.bound.rings.iter().position(|r| r.dir == 1).expect("a receive ring");
    for (word, value) in words(client.holder()) {
        raw_port.write_state(rx, word, value);
    }
    send(&far, 1, 0, 10).expect("room for ten");
    near.rxsync().expect("a ring that another client syncs is skipped");
    assert!(near.rx_rings()[0].is_empty(), "{otherwise}");
    drop(client);
    expect(&near, 1, 0, 10);
}

/// A sender publishes a packet and crashes before it wakes the sleeping receiver.
#[test]
fn a_crash_between_publishing_and_notifying_still_wakes_the_receiver() {
    isolated(|home| {
        let mut sleeper = start_ready_client(&["wait", "netmap:w}1"]);
        let raw_port = RawPort::open(&home.socket(), "w{1");
        until("the receiver sleeps", || raw_port.read_channel(0, 3) != 0);
        raw_port.write_slot(0, 0, raw_port.slot_index(0, 0), 60, 0);
        raw_port.write_channel(0, 3, 0);
        raw_port.write_channel(0, 0, 1);
        drop(raw_port);
        assert!(sleeper.wait().success(), "the receiver slept on");
    });
}
