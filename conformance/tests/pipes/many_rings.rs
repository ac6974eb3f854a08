// SPDX-License-Identifier: BSD-2-Clause
//! Ports with many rings, whose polls look at all rings' words side by side and sleep on one descriptor a direction.

use std::time::Duration;

use conformance::home::summary;
use conformance::packet;
use conformance::traffic::{bytes_of, fill_some};
use conformance::{LIMIT, isolated};
use rustix::event::{PollFd, PollFlags, Timespec, poll as wait};
use unetmap::{Error, Interest, Port};

const RINGS: usize = 32;
const SLOTS: u32 = 64;

fn open(spec: &str) -> Port {
    let options = Port::options().tx_rings(RINGS as u16).rx_rings(RINGS as u16).tx_slots(SLOTS).rx_slots(SLOTS);
    options.open(spec).expect("a pipe")
}

/// Sends `n` packets on one ring.
fn send(port: &Port, ring: usize, seq: u64, n: u64) {
    assert_eq!(fill_some(&port.tx_rings()[ring], ring as u64, seq, n), n);
    port.txsync().expect("the daemon runs");
}

/// Checks that this ring alone has these packets, and releases them.
#[track_caller]
fn take(port: &Port, ring: usize, seq: u64, n: u64) {
    for (number, one) in port.rx_rings().iter().enumerate() {
        let got: Vec<_> = one.available().map(|slot| packet::check(&bytes_of(&slot))).collect();
        let due: Vec<_> = (seq..seq + n).filter(|_| number == ring).map(|seq| Ok((ring as u64, seq))).collect();
        assert_eq!(got, due, "ring {number}");
        one.advance(one.space());
    }
}

fn poll(port: &Port, want: Interest, timeout: Duration) -> Interest {
    port.poll(want, Some(timeout)).expect("the daemon runs")
}

#[test]
fn a_poll_finds_packets_of_each_ring_and_sends_and_releases_at_all() {
    isolated(|_| {
        let (from, to) = (open("netmap:p{1"), open("netmap:p}1"));
        let room = SLOTS - 1;
        for ring in 0..RINGS {
            send(&from, ring, 0, 3);
            assert_eq!(poll(&to, Interest::RX, Duration::ZERO), Interest::RX);
            take(&to, ring, 0, 3);
            // This poll releases them, and only the sender's next sync knows.
            assert!(poll(&to, Interest::RX, Duration::ZERO).is_none());
            assert_eq!(from.tx_rings()[ring].space(), room - 3);
            from.txsync().expect("the daemon runs");
            assert_eq!(from.tx_rings()[ring].space(), room);
        }
        // A poll for packets also sends, on each ring.
        for (number, ring) in from.tx_rings().iter().enumerate() {
            assert_eq!(fill_some(ring, number as u64, 0, 2), 2);
        }
        assert!(poll(&from, Interest::RX, Duration::ZERO).is_none());
        assert_eq!(poll(&to, Interest::RX, Duration::ZERO), Interest::RX);
        assert!(to.rx_rings().iter().all(|ring| ring.space() == 2));
        // A program that keeps its packets and waits for more is not ready until they come.
        to.rx_rings().iter().for_each(|ring| ring.set_cur(ring.tail()));
        assert!(poll(&to, Interest::RX, Duration::ZERO).is_none());
        send(&from, 7, 2, 1);
        assert_eq!(poll(&to, Interest::RX, LIMIT), Interest::RX);
        assert_eq!(to.rx_rings()[7].space(), 3);
    });
}

#[test]
fn a_sleeper_wakes_for_each_ring_and_direction() {
    isolated(|_| {
        let (from, to) = (open("netmap:p{1"), open("netmap:p}1"));
        for ring in 0..RINGS {
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| poll(&to, Interest::RX, LIMIT));
                // Most probably it is asleep now; the assertions hold either way.
                std::thread::sleep(Duration::from_millis(2));
                send(&from, ring, 0, 1);
                assert_eq!(sleeper.join().expect("no panic"), Interest::RX, "ring {ring}");
            });
            take(&to, ring, 0, 1);
        }
        to.rxsync().expect("the daemon runs");
        from.txsync().expect("the daemon runs");
        (0..RINGS).for_each(|ring| send(&from, ring, 0, u64::from(SLOTS) - 1));
        to.rxsync().expect("the daemon runs");
        for ring in (0..RINGS).rev() {
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| poll(&from, Interest::BOTH, LIMIT));
                std::thread::sleep(Duration::from_millis(2));
                assert_eq!(to.rx_rings()[ring].advance(1), 1);
                to.rxsync().expect("the daemon runs");
                assert_eq!(sleeper.join().expect("no panic"), Interest::TX, "ring {ring}");
            });
            assert_eq!(fill_some(&from.tx_rings()[ring], ring as u64, 0, 1), 1);
            from.txsync().expect("the daemon runs");
        }
        summary(&format!("a sleeper woke for each of {RINGS} rings, in both directions"));
    });
}

#[test]
fn event_loops_wake_for_each_ring() {
    isolated(|_| {
        let (from, to) = (open("netmap:p{1"), open("netmap:p}1"));
        for ring in [0, 5, RINGS - 1] {
            assert!(to.arm(Interest::RX).expect("the daemon runs").is_none());
            let fds = to.wait_fds(Interest::RX);
            let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            let timeout = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
            assert_eq!(wait(&mut fds, Some(&timeout(0))).expect("descriptors"), 0);
            send(&from, ring, 0, 1);
            assert_eq!(wait(&mut fds, Some(&timeout(LIMIT.as_secs() as i64))).expect("descriptors"), 1);
            assert_eq!(to.arm(Interest::RX).expect("the daemon runs"), Interest::RX);
            take(&to, ring, 0, 1);
        }
    });
}

#[test]
fn pointers_out_of_range_are_reported_for_each_ring() {
    isolated(|_| {
        let (from, to) = (open("netmap:p{1"), open("netmap:p}1"));
        for ring in [0, 9, RINGS - 1] {
            // Nothing has arrived: no slot can be released.
            let beyond = to.rx_rings()[ring].next(to.rx_rings()[ring].head());
            to.rx_rings()[ring].set_cur(beyond);
            let polled = to.poll(Interest::RX, Some(Duration::ZERO));
            assert!(matches!(polled, Err(Error::BadPointers { .. })), "ring {ring}: {polled:?}");
            assert!(poll(&to, Interest::RX, Duration::ZERO).is_none(), "the ring was reset");
            send(&from, ring, 0, 1);
            assert_eq!(poll(&to, Interest::RX, LIMIT), Interest::RX);
            take(&to, ring, 0, 1);
            assert!(poll(&to, Interest::RX, Duration::ZERO).is_none());
        }
    });
}
