// SPDX-License-Identifier: BSD-2-Clause
//! Counts the packets of several ports in one thread, and prints a report every MILLISECONDS:
//! `collector MILLISECONDS PORT...`.
//!
//! For instance `collector 1000 'netmap:eth1}0' 'netmap:eth1}1'`, with `lb -i eth1`. The program syncs all ports,
//! counts the received packets, and sleeps for a fixed time while the rings fill. It uses no wake-ups, so their cost
//! does not depend on the packet rate.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::{Duration, Instant};

use unetmap::Port;

/// Time between two syncs. Shorter than the time in which the fastest traffic fills a ring, which is some milliseconds.
const SYNC_INTERVAL: Duration = Duration::from_micros(300);

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: collector MILLISECONDS PORT...";
    let interval = Duration::from_millis(args.next().ok_or(usage)?.parse()?);
    let ports: Vec<Port> = args.map(|spec| Port::open(&spec)).collect::<Result<_, _>>()?;
    if ports.is_empty() {
        return Err(usage.into());
    }
    let (mut begin, mut packets, mut bytes) = (Instant::now(), 0_u64, 0_u64);
    loop {
        for port in &ports {
            // Releases the slots that were read before, and receives new packets.
            port.rxsync()?;
            for ring in port.rx_rings() {
                bytes += ring.available().map(|slot| u64::from(slot.len())).sum::<u64>();
                packets += u64::from(ring.advance(ring.space()));
            }
        }
        let elapsed = begin.elapsed();
        if elapsed >= interval {
            let seconds = elapsed.as_secs_f64();
            println!("{{\"event\":\"interval\",\"packets\":{packets},\"bytes\":{bytes},\"seconds\":{seconds}}}");
            (begin, packets, bytes) = (Instant::now(), 0, 0);
        }
        std::thread::sleep(SYNC_INTERVAL);
    }
}
