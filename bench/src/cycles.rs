// SPDX-License-Identifier: BSD-2-Clause
//! The benchmark `pipe-cycles-N`: the rate of a sender that spends N cycles of its own on each packet; with several
//! ring pairs of the pipe, `pipe-cycles-2q-N`, which it fills in turn.
//!
//! netmap's figure 5 lowers the clock of the processor instead. What a packet costs the library is the same in both:
//! the rate stays flat until the program itself takes longer than the slower end.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use unetmap::{Interest, Port};

use crate::one_core::SLOTS;
use crate::probe::{self, Cores};
use crate::seqpacket::MeasureTimes;

/// Packets of a batch, at most.
const BATCH: u32 = 512;
/// Bytes of a packet.
const BYTES: u16 = 60;
/// Longest wait for the other end.
const WAIT: Duration = Duration::from_millis(10);

/// Measures the rate of the receiver, in Mpps.
pub(crate) fn rate(cores: Cores, cycles: u32, rings: u16, times: MeasureTimes) -> Result<f64, String> {
    let open = |end: &str| {
        let spec = format!("netmap:bench{}-cycles{end}1", std::process::id());
        let options = Port::options().tx_slots(SLOTS).rx_slots(SLOTS).tx_rings(rings).rx_rings(rings);
        options.open(&spec).map_err(|e| e.to_string())
    };
    let (tx, rx) = (open("{")?, open("}")?);
    let granted = tx.tx_rings().len().min(rx.rx_rings().len());
    if granted < usize::from(rings) {
        return Err(format!("bench pipe-cycles: the pipe has {granted} ring pairs in place of {rings}"));
    }
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let sender = scope.spawn(|| until(&stop, cores.tx, || send(&tx, cycles)));
        let receiver = scope.spawn(|| until(&stop, cores.rx, || receive(&rx, &received)));
        thread::sleep(times.warm_up);
        let (before, start) = (received.load(Relaxed), Instant::now());
        thread::sleep(times.measure);
        let (packets, time) = (received.load(Relaxed) - before, start.elapsed());
        stop.store(true, Relaxed);
        for end in [sender, receiver] {
            end.join().map_err(|_| "bench pipe-cycles: a thread failed".to_owned())??;
        }
        Ok(packets as f64 / time.as_secs_f64() / 1e6)
    })
}

fn until(stop: &AtomicBool, cpu: usize, mut work: impl FnMut() -> Result<(), unetmap::Error>) -> Result<(), String> {
    probe::pin(cpu)?;
    while !stop.load(Relaxed) {
        work().map_err(|e| format!("bench pipe-cycles: {e}"))?;
    }
    Ok(())
}

fn send(port: &Port, cycles: u32) -> Result<(), unetmap::Error> {
    let mut sent = 0;
    for ring in port.tx_rings() {
        let n = ring.space().min(BATCH);
        for slot in ring.available().take(n as usize) {
            spend(cycles);
            slot.set_len_flags(BYTES, 0);
        }
        ring.advance(n);
        sent += n;
    }
    if sent == 0 {
        return port.poll(Interest::TX, Some(WAIT)).map(drop);
    }
    port.txsync()
}

fn receive(port: &Port, received: &AtomicU64) -> Result<(), unetmap::Error> {
    port.poll(Interest::RX, Some(WAIT))?;
    for ring in port.rx_rings() {
        let n = ring.space();
        ring.advance(n);
        // Only this thread writes it.
        received.store(received.load(Relaxed) + u64::from(n), Relaxed);
    }
    Ok(())
}

/// Spends about so many cycles: a chain of operations of one cycle each, which the compiler cannot compute.
fn spend(cycles: u32) {
    let (a, b) = hint::black_box((0x9e37_79b9_u64, 0x7f4a_7c15_u64));
    let mut x = hint::black_box(1_u64);
    for _ in 0..cycles / 2 {
        x = x.wrapping_add(a) ^ b;
    }
    hint::black_box(x);
}
