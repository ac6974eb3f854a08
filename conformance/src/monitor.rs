//! What monitors see.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use unetmap::{Interest, Port};

use crate::books::Port as PortBooks;
use crate::home::Home;
use crate::packet;
use crate::traffic::bytes_of;

/// What one monitor saw of the packets of one sender.
#[derive(Debug)]
pub struct Seen {
    /// Packets.
    pub copies: u64,
    /// Packets that it was not shown, as the daemon counts.
    pub dropped: u64,
    /// Whether each came after all with smaller numbers, unchanged.
    pub in_order: bool,
}

/// The monitor in the daemon's books.
#[track_caller]
pub fn books(home: &Home, monitor: &Port) -> PortBooks {
    let found = home.snapshot().ports.into_iter().find(|port| port.mem_id == monitor.mem_id());
    found.unwrap_or_else(|| panic!("{} is not in the books", monitor.spec()))
}

/// The slots that a monitor was not shown, for want of room.
#[track_caller]
pub fn dropped(home: &Home, monitor: &Port) -> u64 {
    books(home, monitor).rings.iter().filter(|ring| ring.dir == "rx").map(|ring| ring.dropped).sum()
}

/// The same by the name that the daemon gave it.
#[track_caller]
pub fn dropped_of(home: &Home, name: &str) -> u64 {
    let books = home.snapshot();
    let port = books.ports.iter().find(|port| port.name == name).unwrap_or_else(|| panic!("no port {name}"));
    port.rings.iter().filter(|ring| ring.dir == "rx").map(|ring| ring.dropped).sum()
}

/// Takes copies from ring 0, a nap after each look, until `over` and nothing is left.
#[track_caller]
pub fn see_all(home: &Home, monitor: &Port, over: &AtomicBool, nap: Duration) -> Seen {
    let ring = &monitor.rx_rings()[0];
    let (mut copies, mut in_order, mut last) = (0, true, None);
    loop {
        let last_look = over.load(Relaxed);
        let ready = monitor.poll(Interest::RX, Some(Duration::from_millis(20))).unwrap_or_else(|e| panic!("{e}"));
        if ready.is_none() && last_look {
            return Seen { copies, dropped: dropped(home, monitor), in_order };
        }
        let n = ring.space();
        for slot in ring.window() {
            let seq = packet::check(&bytes_of(&slot)).ok().map(|(_, seq)| seq);
            in_order &= seq.is_some() && seq > last;
            last = seq;
            copies += 1;
        }
        ring.advance(n);
        std::thread::sleep(nap);
    }
}

/// Checks that there is nothing to see, because of `why`.
#[track_caller]
pub fn assert_nothing(monitor: &Port, why: &str) {
    let ready = monitor.poll(Interest::RX, Some(Duration::ZERO)).unwrap_or_else(|e| panic!("{e}"));
    assert!(ready.is_none(), "{} shows something: {why}", monitor.spec());
}
