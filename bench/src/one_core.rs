// SPDX-License-Identifier: BSD-2-Clause
//! The benchmark `pipe-1core`: both ends of a pipe in one thread, through the library.

use std::time::Duration;

use unetmap::Port;

use crate::probe;
use crate::seqpacket::{MeasureTimes, measure, on_core};

/// Slots of each ring.
pub(crate) const SLOTS: u32 = 1024;
/// Packets between two syncs.
const BATCH: u32 = 512;
/// Bytes of a packet.
const BYTES: u16 = 60;

/// A rate, also in core cycles per packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) mpps: f64,
    pub(crate) cycles_per_packet: f64,
}

/// Opens a pipe and moves packets through it on processor `cpu`.
pub(crate) fn run(cpu: usize, times: MeasureTimes) -> Result<Rate, String> {
    let name = format!("netmap:bench{}", std::process::id());
    let open = |end: &str| {
        let spec = format!("{name}{end}");
        Port::options().tx_slots(SLOTS).rx_slots(SLOTS).open(&spec).map_err(|e| e.to_string())
    };
    let (tx, rx) = (open("{1")?, open("}1")?);
    on_core(cpu, || {
        let ghz = probe::core_ghz();
        let mpps = measure(times, || batch(&tx, &rx))?;
        Ok(Rate { mpps, cycles_per_packet: ghz * 1e3 / mpps })
    })
}

/// Sends one batch and receives it; returns how many packets were received.
fn batch(tx: &Port, rx: &Port) -> Result<u64, String> {
    let failed = |e: unetmap::Error| e.to_string();
    let mut packets = 0;
    for ring in tx.tx_rings() {
        let n = ring.space().min(BATCH);
        for slot in ring.available().take(n as usize) {
            slot.set_len_flags(BYTES, 0);
        }
        ring.advance(n);
    }
    tx.txsync().map_err(failed)?;
    rx.rxsync().map_err(failed)?;
    for ring in rx.rx_rings() {
        let n = ring.space();
        let mut bytes = 0;
        for slot in ring.available() {
            bytes += u64::from(slot.len());
        }
        if bytes != u64::from(n) * u64::from(BYTES) {
            return Err(format!("{}: {n} packets of {BYTES} B arrived with {bytes} B", rx.spec()));
        }
        ring.advance(n);
        packets += u64::from(n);
    }
    Ok(packets)
}

/// Time to warm up, and time to measure, long compared with the resolution of the clock.
pub(crate) const MEASURE_TIMES: MeasureTimes =
    MeasureTimes { warm_up: Duration::from_millis(5), measure: Duration::from_millis(20) };
