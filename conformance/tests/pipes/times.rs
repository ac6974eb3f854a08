// SPDX-License-Identifier: BSD-2-Clause
//! Times of packets, slot by slot, which a program requests when it opens a port.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conformance::{isolated, until};
use unetmap::{Interest, Port, Ring, SlotTime, TimeSource};

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_nanos() as u64
}

/// Sends `n` packets of 60 bytes.
fn send(port: &Port, n: u32) {
    let ring = &port.tx_rings()[0];
    ring.first(n).for_each(|slot| slot.set_len_flags(60, 0));
    assert_eq!(ring.advance(n), n);
    port.txsync().expect("the daemon runs");
}

/// Receives `n` packets and returns the times of their slots.
fn receive(port: &Port, n: u32) -> Vec<Option<SlotTime>> {
    let ring = &port.rx_rings()[0];
    until("packets arrive", || {
        port.poll(Interest::RX, Some(Duration::from_millis(10))).expect("the daemon runs");
        ring.space() >= n
    });
    let times = ring.first(n).map(|slot| ring.slot_time(slot.pos())).collect();
    ring.advance(n);
    times
}

/// Times of the first `n` slots from `first` of a ring.
fn times(ring: &Ring, first: unetmap::Pos, n: u32) -> Vec<Option<SlotTime>> {
    ring.run(first, n).map(|slot| ring.slot_time(slot.pos())).collect()
}

#[test]
fn each_slot_has_the_time_of_the_sync_that_moved_it() {
    isolated(|_| {
        let timed = || Port::options().slot_times(true);
        let (a, b) = (timed().open("netmap:t{1").expect("a pipe"), timed().open("netmap:t}1").expect("a pipe"));
        let mut last = now_ns();
        for n in [1, 7, 300, 1000] {
            let first = a.tx_rings()[0].head();
            send(&a, n);
            let between = now_ns();
            let received = receive(&b, n);
            let end = now_ns();
            let sent = times(&a.tx_rings()[0], first, n);
            assert_eq!((sent.len(), received.len()), (n as usize, n as usize));
            for (from, to, time) in
                sent.iter().map(|t| (last, between, t)).chain(received.iter().map(|t| (between, end, t)))
            {
                let time = time.expect("a time");
                assert!((from..=to).contains(&time.ns) && time.source == TimeSource::Sync, "{time:?}: {from}..{to}");
            }
            b.rxsync().expect("the daemon runs");
            a.txsync().expect("the daemon runs");
            last = end;
        }
    });
}

#[test]
fn a_port_has_no_times_without_the_option() {
    isolated(|_| {
        let (a, b) = (Port::open("netmap:t{1").expect("a pipe"), Port::open("netmap:t}1").expect("a pipe"));
        let first = a.tx_rings()[0].head();
        send(&a, 5);
        assert_eq!(receive(&b, 5), [None; 5]);
        assert_eq!(times(&a.tx_rings()[0], first, 5), [None; 5]);
    });
}

/// A monitor that reads late shows when the packets were sent.
#[test]
fn a_monitor_has_the_times_of_the_monitored_syncs() {
    isolated(|_| {
        let (a, b) = (Port::open("netmap:t{1").expect("a pipe"), Port::open("netmap:t}1").expect("a pipe"));
        let monitor = Port::options().slot_times(true).open("netmap:t{1/t").expect("a monitor");
        let mut spans = Vec::new();
        for _ in 0..3 {
            let begin = now_ns();
            send(&a, 2);
            spans.extend([(begin, now_ns()); 2]);
            receive(&b, 2);
            std::thread::sleep(Duration::from_millis(2));
        }
        for (time, (begin, end)) in receive(&monitor, 6).into_iter().zip(spans) {
            let SlotTime { ns, source, .. } = time.expect("a time");
            // The mirror has times of the monotonic clock, which the wall clock's adjustments do not follow.
            let slack = 1_000_000;
            assert!((begin - slack..=end + slack).contains(&ns), "{ns}: {begin}..{end}");
            assert_eq!(source, TimeSource::MonitoredSync);
        }
    });
}
