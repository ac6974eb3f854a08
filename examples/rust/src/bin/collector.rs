//! Counts what comes from several ports in one thread: `collector MILLISECONDS PORT...`, with a report every so often.
//!
//! For instance `collector 1000 'netmap:eth1}0' 'netmap:eth1}1'`, behind `lb -i eth1`. It is in no hurry: it looks, takes what
//! has come, and sleeps for a moment, in which the rings fill. So it wakes nobody and nobody wakes it, however fast they are.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::{Duration, Instant};

use unetmap::Port;

/// Rings hold some milliseconds of the fastest traffic.
const NAP: Duration = Duration::from_micros(300);

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
            // Gives back what was read at the last look, and takes what has come since.
            port.rxsync()?;
            for ring in port.rx_rings() {
                bytes += ring.window().map(|slot| u64::from(slot.len())).sum::<u64>();
                packets += u64::from(ring.advance(ring.space()));
            }
        }
        let elapsed = begin.elapsed();
        if elapsed >= interval {
            let seconds = elapsed.as_secs_f64();
            println!("{{\"event\":\"interval\",\"packets\":{packets},\"bytes\":{bytes},\"seconds\":{seconds}}}");
            (begin, packets, bytes) = (Instant::now(), 0, 0);
        }
        std::thread::sleep(NAP);
    }
}
