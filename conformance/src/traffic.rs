// SPDX-License-Identifier: BSD-2-Clause
//! Sending and receiving numbered packets through the library.

use std::time::{Duration, Instant};

use unetmap::{Error, Interest, Port, Ring, SlotRef};

use crate::home::LIMIT;
use crate::packet;

/// Opens a port; panics if it is refused.
#[track_caller]
pub fn open(spec: &str) -> Port {
    Port::open(spec).unwrap_or_else(|e| panic!("{spec}: {e}"))
}

/// The bytes of a slot's packet.
pub fn bytes_of(slot: &SlotRef<'_>) -> Vec<u8> {
    let mut bytes = vec![0; usize::from(slot.len())];
    let n = slot.frame().read(0, &mut bytes);
    bytes.truncate(n);
    bytes
}

/// Puts packet `seq` into a slot.
pub fn fill(slot: &SlotRef<'_>, sender: u64, seq: u64) {
    let n = slot.frame().write(0, &packet::make(sender, seq));
    slot.set_len_flags(n as u16, 0);
}

/// Puts up to `max` packets into the ring, numbered from `seq`, without a sync; returns their number.
pub fn fill_some(ring: &Ring, sender: u64, seq: u64, max: u64) -> u64 {
    let n = ring.available().take(max as usize).zip(seq..).map(|(slot, seq)| fill(&slot, sender, seq)).count();
    ring.advance(n as u32);
    n as u64
}

/// Sends packets `[from, to)` on transmit ring 0, waiting for room.
///
/// # Errors
/// The errors of the library. Panics if there is no room within [`LIMIT`].
pub fn send(port: &Port, sender: u64, from: u64, to: u64) -> Result<(), Error> {
    let (ring, mut seq) = (&port.tx_rings()[0], from);
    while seq < to {
        let ready = port.poll(Interest::TX, Some(LIMIT))?;
        assert!(ready.tx(), "no room to send packet {seq} within {LIMIT:?}");
        seq += fill_some(ring, sender, seq, to - seq);
        port.txsync()?;
    }
    Ok(())
}

/// Receives `n` slots of ring 0, waiting for them; returns the packets, including empty ones.
///
/// # Errors
/// The errors of the library.
#[track_caller]
pub fn receive(port: &Port, n: usize) -> Result<Vec<Vec<u8>>, Error> {
    let ring = &port.rx_rings()[0];
    let mut got = Vec::new();
    let end = Instant::now() + LIMIT;
    while got.len() < n {
        port.poll(Interest::RX, Some(Duration::from_millis(200)))?;
        let before = got.len();
        got.extend(ring.available().take(n - before).map(|slot| bytes_of(&slot)));
        ring.advance((got.len() - before) as u32);
        assert!(Instant::now() < end, "{} of {n} packets arrived within {LIMIT:?}", got.len());
    }
    port.rxsync()?;
    Ok(got)
}

/// Receives packets `[from, to)` of one sender; panics when one is missing, changed or out of order.
#[track_caller]
pub fn expect(port: &Port, sender: u64, from: u64, to: u64) {
    let got = receive(port, (to - from) as usize).unwrap_or_else(|e| panic!("{e}"));
    for (seq, bytes) in (from..).zip(got) {
        assert_eq!(packet::check(&bytes), Ok((sender, seq)), "on {}", port.spec());
    }
}

/// Sends packets `[from, to)` through a pipe, half a ring at a time, and checks them at the other end.
#[track_caller]
pub fn exchange(tx: &Port, rx: &Port, sender: u64, from: u64, to: u64) {
    let step = u64::from(tx.tx_rings()[0].num_slots()) / 2;
    let mut seq = from;
    while seq < to {
        let next = to.min(seq + step);
        send(tx, sender, seq, next).unwrap_or_else(|e| panic!("{e}"));
        expect(rx, sender, seq, next);
        seq = next;
    }
}

/// Opens both ends of a pipe and checks that more packets than a ring holds cross it in both directions.
#[track_caller]
pub fn assert_pipe_works(a: &str, b: &str) {
    let (a, b) = (open(a), open(b));
    exchange(&a, &b, 1, 0, 3000);
    exchange(&b, &a, 2, 0, 3000);
}
