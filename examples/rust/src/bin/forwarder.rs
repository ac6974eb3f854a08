//! Forwards packets from one port to another without copying them: `forwarder FROM TO`.
//!
//! For instance `forwarder 'netmap:demo}1' 'netmap:demo{2'`, between `sender 'netmap:demo{1'` and
//! `receiver 'netmap:demo}2'`. Both ports must be in one region: pipes of one parent are.
#![forbid(unsafe_code)]

use std::error::Error;

use unetmap::{Interest, Port};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(from), Some(to)) = (args.next(), args.next()) else {
        return Err("usage: forwarder FROM TO".into());
    };
    let (from, to) = (Port::open(&from)?, Port::open(&to)?);
    if !from.same_region(&to) {
        return Err("the two ports are in different regions: packets would have to be copied".into());
    }
    loop {
        // Wait for packets, then for room for them.
        from.poll(Interest::RX, None)?;
        to.poll(Interest::TX, None)?;
        for (rx, tx) in from.rx_rings().iter().zip(to.tx_rings()) {
            let n = rx.space().min(tx.space());
            for (received, free) in rx.window().zip(tx.window()).take(n as usize) {
                // The two slots exchange their buffers. The packet moves on with its buffer; the free buffer goes
                // back to where the packet came from.
                free.swap_from(&received);
            }
            tx.advance(n);
            rx.advance(n);
        }
        // Send now: the next poll of `to` comes only after the next packet.
        to.txsync()?;
    }
}
