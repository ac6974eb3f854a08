// SPDX-License-Identifier: BSD-2-Clause
//! Ethernet frames around the numbered packets, for switches.

use std::time::{Duration, Instant};

use unetmap::{Interest, Port};

use crate::home::{LIMIT, own_snapshot};
use crate::packet;
use crate::traffic::bytes_of;

/// A MAC address.
pub type Mac = [u8; 6];
/// The broadcast address.
pub const BROADCAST: Mac = [0xff; 6];
/// Bytes of a frame.
pub const BYTES: usize = 14 + packet::BYTES;

/// The MAC address of host `n`.
pub fn mac(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    [2, 0, a, b, c, d]
}

/// A frame with packet number `seq` of sender `sender`.
pub fn make(to: Mac, from: Mac, sender: u64, seq: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes[14..].copy_from_slice(&packet::make(sender, seq));
    bytes
}

/// Sets the number of switch threads and their processors; returns what `unetmap vale threads` prints.
#[track_caller]
pub fn threads(n: usize, cpus: &str) -> serde_json::Value {
    let mut command = std::process::Command::new(crate::program("unetmap"));
    let out = command.args(["vale", "threads", &n.to_string(), "--cpus", cpus, "--json"]).output().expect("unetmap");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

/// The sender and number in a frame.
///
/// # Errors
/// A description of the fault.
pub fn check(bytes: &[u8]) -> Result<(u64, u64), String> {
    packet::check(bytes.get(14..).unwrap_or_default())
}

/// Sends frames `[from, to)` on transmit ring 0, with `flags`, waiting for room.
#[track_caller]
pub fn send_flagged(port: &Port, macs: (Mac, Mac), flags: u16, sender: u64, (mut seq, to): (u64, u64)) {
    let ring = &port.tx_rings()[0];
    while seq < to {
        let ready = port.poll(Interest::TX, Some(LIMIT)).unwrap_or_else(|e| panic!("{e}"));
        assert!(ready.tx(), "no room to send frame {seq} within {LIMIT:?}");
        let n = ring.available().take((to - seq) as usize).zip(seq..).map(|(slot, seq)| {
            let n = slot.frame().write(0, &make(macs.0, macs.1, sender, seq));
            slot.set_len_flags(n as u16, flags);
        });
        let n = n.count();
        ring.advance(n as u32);
        seq += n as u64;
        port.txsync().unwrap_or_else(|e| panic!("{e}"));
    }
}

/// Sends frames `[from, to)` on transmit ring 0, waiting for room.
#[track_caller]
pub fn send(port: &Port, to: Mac, from: Mac, sender: u64, seqs: (u64, u64)) {
    send_flagged(port, (to, from), 0, sender, seqs);
}

/// Receives all packets of ring 0 until none has arrived for 60 ms and the switches have processed everything that was
/// sent: a switch thread may wait for a processor longer than 60 ms.
#[track_caller]
pub fn drain(port: &Port) -> Vec<Vec<u8>> {
    let (ring, mut got, end) = (&port.rx_rings()[0], Vec::new(), Instant::now() + LIMIT);
    let mut over = false;
    loop {
        let pause = Duration::from_millis(if over { 0 } else { 60 });
        let more = port.poll(Interest::RX, Some(pause)).unwrap_or_else(|e| panic!("{e}")).rx();
        got.extend(ring.available().map(|slot| bytes_of(&slot)));
        ring.advance(ring.space());
        if over && !more {
            break;
        }
        over = !more && all_taken();
        assert!(Instant::now() < end, "packets keep arriving");
    }
    port.rxsync().unwrap_or_else(|e| panic!("{e}"));
    got
}

/// Whether the switches of the test's daemon have processed all that was sent, so that every delivery has been made.
fn all_taken() -> bool {
    let books = own_snapshot();
    let on_switches = books.ports.iter().filter(|port| port.kind == "vale");
    on_switches.flat_map(|port| &port.rings).all(|ring| ring.dir != "tx" || ring.queued == 0)
}

/// Senders and numbers of the packets that [`drain`] receives.
#[track_caller]
pub fn drained(port: &Port) -> Vec<(u64, u64)> {
    drain(port).iter().map(|bytes| check(bytes).unwrap_or_else(|e| panic!("{e}"))).collect()
}

/// Receives frames `[from, to)` of one sender, waiting for them; panics when one is missing, changed, or out of order.
#[track_caller]
pub fn expect(port: &Port, sender: u64, (from, to): (u64, u64)) {
    let got = crate::traffic::receive(port, (to - from) as usize).unwrap_or_else(|e| panic!("{e}"));
    for (seq, bytes) in (from..).zip(got) {
        assert_eq!(check(&bytes), Ok((sender, seq)), "on {}", port.spec());
    }
}
