// SPDX-License-Identifier: BSD-2-Clause
//! Pipes of which one end was never open: the daemon makes what the other end needs when it is opened.

use std::time::{Duration, Instant};

use conformance::home::summary;
use conformance::traffic::{expect, fill_some, open, send};
use conformance::{LIMIT, isolated};
use unetmap::{Interest, Port};

/// Less than a sleeper needs that nobody wakes, which looks at its rings every 500 ms.
const SOON: Duration = Duration::from_millis(200);

/// How long to wait until a thread sleeps.
const ASLEEP: Duration = Duration::from_millis(100);

/// Returns the time from `wake` until `sleeper` is ready for `want`.
fn time_to_wake(sleeper: &Port, want: Interest, wake: impl FnOnce()) -> Duration {
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            assert_eq!(sleeper.poll(want, Some(LIMIT)).expect("the daemon runs"), want);
            Instant::now()
        });
        std::thread::sleep(ASLEEP);
        let start = Instant::now();
        wake();
        sleeper.join().expect("no panic").saturating_duration_since(start)
    })
}

#[test]
fn a_pipe_with_one_end_open_takes_six_descriptors_of_the_daemon() {
    isolated(|home| {
        const PIPES: usize = 40;
        let _first = open("netmap:first{1");
        let before = home.daemon_fds();
        let masters: Vec<Port> = (0..PIPES).map(|n| open(&format!("netmap:p{n}{{1"))).collect();
        let one_open = home.daemon_fds() - before;
        let slaves: Vec<Port> = (0..PIPES).map(|n| open(&format!("netmap:p{n}}}1"))).collect();
        let both_open = home.daemon_fds() - before;
        summary(&format!("{PIPES} pipes: {one_open} descriptors with one end open, {both_open} with both"));
        // Region, channels, the end's states, two doorbells, the connection; of the other end the last four. A little
        // for what the daemon does besides.
        assert!(one_open <= 6 * PIPES + 8 && both_open <= 10 * PIPES + 8, "{one_open} {both_open}");
        drop((masters, slaves));
    });
}

/// It has no doorbell of the other end until it asks for it. The fastest of three pipes counts, for busy machines.
#[test]
fn an_end_wakes_one_that_was_opened_later() {
    isolated(|_| {
        let (mut for_rx, mut for_tx) = (LIMIT, LIMIT);
        for n in 0..3 {
            let (first, later) = (open(&format!("netmap:p{n}{{1")), open(&format!("netmap:p{n}}}1")));
            for_rx = for_rx.min(time_to_wake(&later, Interest::RX, || send(&first, 1, 0, 1).expect("room")));
            expect(&later, 1, 0, 1);
            // The same for an end that waits for room, which the first one makes.
            let slots = u64::from(later.tx_rings()[0].num_slots()) - 1;
            assert_eq!(fill_some(&later.tx_rings()[0], 2, 0, slots), slots);
            later.txsync().expect("the daemon runs");
            let read = || expect(&first, 2, 0, slots);
            for_tx = for_tx.min(time_to_wake(&later, Interest::TX, read));
        }
        summary(&format!("an end that was opened later woke after {for_rx:?} and {for_tx:?}"));
        assert!(for_rx < SOON && for_tx < SOON, "{for_rx:?} {for_tx:?}");
    });
}

/// As above, where the first packet is for the last ring.
#[test]
fn an_end_wakes_each_ring_of_one_that_was_opened_later() {
    isolated(|_| {
        const RINGS: usize = 4;
        let with_rings = |name: &str| Port::options().tx_rings(4).rx_rings(4).open(name).expect("a pipe");
        let (first, later) = (with_rings("netmap:p{1"), with_rings("netmap:p}1"));
        let mut all = Vec::new();
        for ring in (0..RINGS).rev() {
            let wake = || {
                assert_eq!(fill_some(&first.tx_rings()[ring], ring as u64, 0, 1), 1);
                first.txsync().expect("the daemon runs");
            };
            all.push(time_to_wake(&later, Interest::RX, wake));
            assert_eq!(later.rx_rings()[ring].advance(1), 1);
        }
        all.sort_unstable();
        assert!(all[RINGS / 2] < SOON, "{all:?}");
    });
}

/// The sender, whose sync copies the packets, opens its end after the monitor.
#[test]
fn a_monitor_sees_what_an_end_sends_that_was_opened_later() {
    isolated(|_| {
        let receiver = open("netmap:p}1");
        let monitor = open("netmap:p}1/r");
        let sender = open("netmap:p{1");
        send(&sender, 1, 0, 100).expect("room");
        expect(&monitor, 1, 0, 100);
        expect(&receiver, 1, 0, 100);
    });
}
