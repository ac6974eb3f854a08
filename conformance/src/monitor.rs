// SPDX-License-Identifier: BSD-2-Clause
//! Monitors and the packets they receive.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use unetmap::{Interest, Port};

use crate::home::Home;
use crate::packet;
use crate::snapshot::Port as PortBooks;
use crate::traffic::bytes_of;

/// The packets of one sender that a monitor received.
#[derive(Debug)]
pub struct Seen {
    /// Number of packets received.
    pub copies: u64,
    /// Packets dropped for lack of room, as the daemon counts them.
    pub dropped: u64,
    /// Whether all packets were unchanged and in order.
    pub in_order: bool,
}

/// The monitor's port in the daemon's snapshot.
#[track_caller]
pub fn books(home: &Home, monitor: &Port) -> PortBooks {
    let found = home.snapshot().ports.into_iter().find(|port| port.mem_id == monitor.mem_id());
    found.unwrap_or_else(|| panic!("{} is not in the snapshot", monitor.spec()))
}

/// Number of slots that the monitor lost for lack of room.
#[track_caller]
pub fn dropped(home: &Home, monitor: &Port) -> u64 {
    books(home, monitor).rings.iter().filter(|ring| ring.dir == "rx").map(|ring| ring.dropped).sum()
}

/// Number of slots that the monitor of this name lost for lack of room.
#[track_caller]
pub fn dropped_of(home: &Home, name: &str) -> u64 {
    let books = home.snapshot();
    let port = books.ports.iter().find(|port| port.name == name).unwrap_or_else(|| panic!("no port {name}"));
    port.rings.iter().filter(|ring| ring.dir == "rx").map(|ring| ring.dropped).sum()
}

/// Receives from ring 0, sleeping for `pause` after each batch, until `over` is set and the ring is empty.
#[track_caller]
pub fn see_all(home: &Home, monitor: &Port, over: &AtomicBool, pause: Duration) -> Seen {
    let ring = &monitor.rx_rings()[0];
    let (mut copies, mut in_order, mut last) = (0, true, None);
    loop {
        let last_look = over.load(Relaxed);
        let ready = monitor.poll(Interest::RX, Some(Duration::from_millis(20))).unwrap_or_else(|e| panic!("{e}"));
        if ready.is_none() && last_look {
            return Seen { copies, dropped: dropped(home, monitor), in_order };
        }
        let n = ring.space();
        for slot in ring.available() {
            let seq = packet::check(&bytes_of(&slot)).ok().map(|(_, seq)| seq);
            in_order &= seq.is_some() && seq > last;
            last = seq;
            copies += 1;
        }
        ring.advance(n);
        std::thread::sleep(pause);
    }
}

/// Checks that the monitor's rings are empty; `why` is the reason they must be.
#[track_caller]
pub fn assert_nothing(monitor: &Port, why: &str) {
    let ready = monitor.poll(Interest::RX, Some(Duration::ZERO)).unwrap_or_else(|e| panic!("{e}"));
    assert!(ready.is_none(), "{} received something: {why}", monitor.spec());
}
