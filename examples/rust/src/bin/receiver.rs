//! Receives packets from a port: `receiver [PORT [COUNT]]`, by default 1000 from `netmap:demo}1`.
//!
//! Start it before or after `sender`: whoever comes first makes the pipe.
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
        // Gives back what was read so far, and waits for packets: it spins for a moment, then it sleeps.
        port.poll(Interest::RX, None)?;
        for ring in port.rx_rings() {
            // The window is the received slots, [head, tail).
            let mut read = 0;
            for slot in ring.window() {
                bytes += u64::from(slot.len());
                // Others can write the buffer at any time: bytes are copied out of it, and then they are yours.
                slot.frame().read(0, &mut last);
                read += 1;
            }
            // Give the slots back; until then nobody else may use their buffers.
            ring.advance(read);
            packets += u64::from(read);
        }
    }
    // The loop's next poll would give the last slots back; there is none.
    port.rxsync()?;
    let number = u64::from_be_bytes(last[14..22].try_into()?);
    println!("{spec}: received {packets} packets, {bytes} bytes; the last one says {number}");
    Ok(())
}
