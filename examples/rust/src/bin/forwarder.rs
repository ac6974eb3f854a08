// SPDX-License-Identifier: BSD-2-Clause
//! Forwards packets from one port to another without copying them: `forwarder FROM TO`.
//!
//! For instance `forwarder 'netmap:demo}1' 'netmap:demo{2'`, between `sender 'netmap:demo{1'` and
//! `receiver 'netmap:demo}2'`. Both ports must be in one region, as pipes of one parent are.
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
        return Err(
            "the two ports are in different regions; this example needs one region, because it does not copy packets"
                .into(),
        );
    }
    loop {
        // Waits for packets, then for free transmit slots.
        from.poll(Interest::RX, None)?;
        to.poll(Interest::TX, None)?;
        for (rx, tx) in from.rx_rings().iter().zip(to.tx_rings()) {
            let n = rx.space().min(tx.space());
            for (received, free) in rx.available().zip(tx.available()).take(n as usize) {
                // The two slots exchange their buffers: the packet moves to the transmit ring with its buffer, and the
                // free buffer moves to the receive ring.
                free.swap_from(&received);
            }
            tx.advance(n);
            rx.advance(n);
        }
        // Sends now, because the next poll of `to` happens only after the next packet.
        to.txsync()?;
    }
}
