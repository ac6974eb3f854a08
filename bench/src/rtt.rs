//! The round trip of one packet over a pipe, through the library: what the pipe itself costs.
//!
//! Neither side looks at the payload, and the clock is read once for many round trips, so that the figure can be
//! compared with the bare round trip of a word between the two cores: a mean. What `pkt-gen -f ping` tells is a median,
//! and includes writing and reading a time stamp in the packet, and two readings of the clock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use unetmap::{Interest, Port};

use crate::probe::{self, Cores};
use crate::seqpacket::{Window, join, measure};

/// How long one side waits for the other before it looks whether that has given up.
const PATIENCE: Duration = Duration::from_millis(100);

/// One packet goes to the other core and back, both sides awake. Returns the mean round trip in nanoseconds.
pub(crate) fn round_trip(cores: Cores, window: Window) -> Result<f64, String> {
    let open = |end: &str| Port::open(&format!("netmap:bench{}{end}rtt", std::process::id())).map_err(text);
    let (near, far) = (open("{")?, open("}")?);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<(), String> {
            probe::pin(cores.rx)?;
            while take(&far, &stop)? {
                give(&far)?;
            }
            Ok(())
        });
        let pinger = scope.spawn(|| -> Result<f64, String> {
            probe::pin(cores.tx)?;
            let mega = measure(window, || {
                give(&near)?;
                Ok(u64::from(take(&near, &stop)?))
            });
            stop.store(true, Ordering::Relaxed);
            // From millions of round trips a second to nanoseconds for one.
            mega.map(|rate| 1e3 / rate)
        });
        let mean = join(pinger.join());
        stop.store(true, Ordering::Relaxed);
        join(echo.join())?;
        mean
    })
}

fn text(e: unetmap::Error) -> String {
    format!("bench: {e}")
}

/// Hands over one packet of 60 bytes; it leaves with the next poll.
fn give(port: &Port) -> Result<(), String> {
    let ring = &port.tx_rings()[0];
    while ring.is_empty() {
        port.poll(Interest::TX, Some(PATIENCE)).map_err(text)?;
    }
    ring.slot(ring.head()).set_len_flags(60, 0);
    ring.advance(1);
    Ok(())
}

/// Waits for one packet and gives its slot back; `false` when the other side has stopped.
fn take(port: &Port, stop: &AtomicBool) -> Result<bool, String> {
    let ring = &port.rx_rings()[0];
    while port.poll(Interest::RX, Some(PATIENCE)).map_err(text)?.is_none() {
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
    }
    ring.advance(1);
    Ok(true)
}
