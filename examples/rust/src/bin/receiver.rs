// SPDX-License-Identifier: BSD-2-Clause
//! Receives packets from a port: `receiver [PORT [COUNT]]`, by default 1000 from `netmap:demo}1`.
//!
//! Start it before or after `sender`: the first of them creates the pipe.
#![forbid(unsafe_code)]

use std::error::Error;

use unetmap::{Interest, Port};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let spec = args.next().unwrap_or("netmap:demo}1".into());
    let count: u64 = args.next().unwrap_or("1000".into()).parse()?;

    let port = Port::open(&spec)?;
    let (mut packets, mut bytes) = (0, 0);
    let mut last = [0_u8; 60];
    while packets < count {
        // Releases the slots that were read before, and waits for packets: spins shortly, then sleeps.
        port.poll(Interest::RX, None)?;
        for ring in port.rx_rings() {
            // The available slots are the received ones, [head, tail).
            let mut read = 0;
            for slot in ring.available() {
                bytes += u64::from(slot.len());
                // The peer can write the buffer at any time, so the program works on a copy of the bytes.
                slot.frame().read(0, &mut last);
                read += 1;
            }
            // Releases the slots. Until then their buffers belong to this program.
            ring.advance(read);
            packets += u64::from(read);
        }
    }
    // Publishes the release of the last slots, which no further poll does.
    port.rxsync()?;
    let number = u64::from_be_bytes(last[14..22].try_into()?);
    println!("{spec}: received {packets} packets, {bytes} bytes; the last one has number {number}");
    Ok(())
}
