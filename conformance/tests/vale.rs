//! Switches as the interface describes them.
#![forbid(unsafe_code)]

use conformance::traffic::{expect, open, send};
use conformance::{isolated, until};

#[test]
fn a_packet_crosses_a_switch() {
    isolated(|home| {
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        send(&a, 1, 0, 1).expect("room");
        expect(&b, 1, 0, 1);
        send(&b, 2, 0, 500).expect("room");
        expect(&a, 2, 0, 500);
        drop((a, b));
        until("the switch is gone", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
    });
}
