// SPDX-License-Identifier: BSD-2-Clause
//! Sends packets into a port: `sender [PORT [COUNT]]`, by default 1000 into `netmap:demo{1`.
//!
//! Start `receiver` in another terminal; the two ports are the ends of one pipe.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use unetmap::{Interest, Port};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let spec = args.next().unwrap_or("netmap:demo{1".into());
    let count: u64 = args.next().unwrap_or("1000".into()).parse()?;

    // An open port has rings in both directions. Their slots and buffers are in memory shared with the peer.
    let port = Port::open(&spec)?;
    let ring = &port.tx_rings()[0];

    let mut packet = [0_u8; 60];
    packet[..6].fill(0xff); // broadcast
    packet[12..14].copy_from_slice(&[0x88, 0xb5]); // the EtherType for experiments

    let mut sent = 0;
    while sent < count {
        // Sends the packets of the previous round, and waits for free slots (`None`: without a time limit).
        port.poll(Interest::TX, None)?;

        // The available slots are the free ones, [head, tail). Fills as many as needed ...
        let mut filled = 0;
        for slot in ring.available() {
            if sent == count {
                break;
            }
            packet[14..22].copy_from_slice(&sent.to_be_bytes());
            slot.frame().write(0, &packet);
            slot.set_len_flags(packet.len() as u16, 0);
            filled += 1;
            sent += 1;
        }
        // ... and passes all of them to the library. The next poll or sync sends them.
        ring.advance(filled);
    }

    // Closing the port would drop packets that the receiver has not released, so waits until it has released all.
    port.txsync()?;
    while ring.pending() {
        std::thread::sleep(Duration::from_millis(1));
        port.txsync()?;
    }
    println!("{spec}: sent {sent} packets");
    Ok(())
}
