// SPDX-License-Identifier: BSD-2-Clause
//! The benchmark `pipe-rtt`: the mean round trip of one packet over a pipe, through the library.
//!
//! Neither side touches the payload, and the clock is read once for many round trips, so that the result can be
//! compared with the round trip of a word between the two cores. `pkt-gen -f ping` measures a median instead, which
//! includes writing and reading a timestamp in the packet, and two reads of the clock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use unetmap::{Interest, Port};

use crate::probe::{self, Cores};
use crate::seqpacket::{MeasureTimes, join, measure};

/// Time of one wait for the other side, after which the stop flag is checked.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// Sends one packet to the other core and back, with both sides busy-waiting. Returns the mean round trip in
/// nanoseconds.
pub(crate) fn round_trip(cores: Cores, times: MeasureTimes) -> Result<f64, String> {
    let open = |end: &str| Port::open(&format!("netmap:bench{}{end}rtt", std::process::id())).map_err(text);
    let (near, far) = (open("{")?, open("}")?);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<(), String> {
            probe::pin(cores.rx)?;
            while receive(&far, &stop)? {
                send(&far)?;
            }
            Ok(())
        });
        let pinger = scope.spawn(|| -> Result<f64, String> {
            probe::pin(cores.tx)?;
            let millions_per_second = measure(times, || {
                send(&near)?;
                Ok(u64::from(receive(&near, &stop)?))
            });
            stop.store(true, Ordering::Relaxed);
            // Converts to nanoseconds per round trip.
            millions_per_second.map(|rate| 1e3 / rate)
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

/// Queues one packet of 60 bytes; the next poll sends it.
fn send(port: &Port) -> Result<(), String> {
    let ring = &port.tx_rings()[0];
    while ring.is_empty() {
        port.poll(Interest::TX, Some(POLL_TIMEOUT)).map_err(text)?;
    }
    ring.slot(ring.head()).set_len_flags(60, 0);
    ring.advance(1);
    Ok(())
}

/// Waits for one packet and releases its slot; returns `false` if the other side has stopped.
fn receive(port: &Port, stop: &AtomicBool) -> Result<bool, String> {
    let ring = &port.rx_rings()[0];
    while port.poll(Interest::RX, Some(POLL_TIMEOUT)).map_err(text)?.is_none() {
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
    }
    ring.advance(1);
    Ok(true)
}
