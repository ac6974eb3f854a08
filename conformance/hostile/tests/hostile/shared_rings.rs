// SPDX-License-Identifier: BSD-2-Clause
//! Rings whose lock another client holds.

use std::time::Duration;

use conformance::client::start_client;
use conformance::traffic::{open, send};
use conformance::{LIMIT, isolated, until};
use conformance_hostile::raw::{ControlConnection, RawPort};
use unetmap::Interest;

/// The same in an event loop: a client that finds nothing ready after `arm` is woken.
#[test]
fn an_event_loop_is_woken_after_another_client_held_the_ring_lock() {
    isolated(|home| {
        let (far, near) = (open("netmap:s{1"), open("netmap:s}1"));
        let raw_port = RawPort::open(&home.socket(), "s}1");
        let rx = raw_port.bound.rings.iter().position(|r| r.dir == 1).expect("a receive ring");
        let holder = ControlConnection::connect(&home.socket()).expect("a daemon");
        raw_port.write_state(rx, 0, holder.holder());
        send(&far, 1, 0, 1).expect("room");
        assert!(near.arm(Interest::RX).expect("the daemon runs").is_none());
        raw_port.write_state(rx, 0, 0);
        let fds = near.wait_fds(Interest::RX);
        let mut fds: Vec<_> =
            fds.iter().map(|fd| rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)).collect();
        let limit = rustix::event::Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
        assert!(rustix::event::poll(&mut fds, Some(&limit)).expect("poll") > 0, "nobody woke the event loop");
        assert!(near.arm(Interest::RX).expect("the daemon runs").rx());
    });
}

/// Somebody holds the ring's lock at the very moment when the bell rings: the sleeper finds the ring busy, and must not
/// sleep on when it is free again.
#[test]
fn a_waiter_is_woken_after_another_client_held_the_ring_lock() {
    isolated(|home| {
        let far = open("netmap:s{1");
        let mut sleeper = start_client(&["wait", "netmap:s}1"]);
        let raw_port = RawPort::open(&home.socket(), "s}1");
        let rx = raw_port.bound.rings.iter().position(|r| r.dir == 1).expect("a receive ring");
        let holder = ControlConnection::connect(&home.socket()).expect("a daemon");
        let holder = holder.holder();
        until("the sleeper sleeps", || raw_port.read_channel(rx, 3) != 0);
        raw_port.write_state(rx, 0, holder);
        send(&far, 1, 0, 1).expect("room");
        std::thread::sleep(Duration::from_millis(100));
        raw_port.write_state(rx, 0, 0);
        assert!(sleeper.wait().success(), "the client slept on");
    });
}
