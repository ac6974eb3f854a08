//! Monitors as the interface describes them.
#![forbid(unsafe_code)]

use conformance::traffic::{expect, open, send};
use conformance::{isolated, until};
use std::time::Duration;
use unetmap::Interest;
use unetmap::abi::NS_TXMON;

#[test]
fn a_monitor_sees_what_a_pipe_receives() {
    isolated(|home| {
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        let monitor = open("netmap:p}1/r");
        send(&a, 1, 0, 300).expect("room");
        assert!(
            monitor.poll(Interest::RX, Some(Duration::ZERO)).expect("a living port").is_none(),
            "nobody received yet"
        );
        expect(&b, 1, 0, 300);
        expect(&monitor, 1, 0, 300);
        send(&b, 2, 0, 10).expect("room");
        expect(&a, 2, 0, 10);
        assert!(monitor.poll(Interest::RX, Some(Duration::ZERO)).expect("a living port").is_none(), "that was sent");
        drop(monitor);
        until("nothing is left of it", || home.snapshot().ports.len() == 2 && home.snapshot().regions.len() == 1);
        conformance::traffic::exchange(&a, &b, 1, 0, 2000);
        let _ = NS_TXMON;
    });
}
