// SPDX-License-Identifier: BSD-2-Clause
//! The honest tenants: processes of ordinary users that move numbered packets at a steady rate, and one that opens and
//! closes pipes. They run in the middle of all that the hostile tenants do.
//!
//! A record is a file of three numbers: packets sent and 0s, or packets received, packets received twice or out of
//! order, and packets of others.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use conformance::packet;
use conformance::traffic::{bytes_of, fill_some};
use unetmap::{Interest, Port};

/// The user that sends and receives.
pub(crate) const USER: u32 = 3001;
/// The user that opens and closes pipes.
pub(crate) const PROBE_USER: u32 = 3002;

/// Packets that are sent at once, and the pause after them: 6,400 packets in a second, or fewer on a busy CPU.
const BATCH: u64 = 32;
const PAUSE: Duration = Duration::from_millis(5);
/// Longest wait for packets or for room.
const NAP: Option<Duration> = Some(Duration::from_millis(50));
/// How long a sender that ends waits until everything has been taken.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);
/// Between two opens.
const PROBE_PAUSE: Duration = Duration::from_millis(25);

pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Runs one of the tenants until SIGTERM; returns `None` if the arguments name none.
pub(crate) fn run(args: &[&str]) -> Option<Outcome> {
    Some(match *args {
        ["send", spec, sender, record] => send(spec, sender, Path::new(record)),
        ["receive", spec, sender, record] => receive(spec, sender, Path::new(record)),
        ["reflect", spec] => reflect(spec),
        ["probe"] => probe(),
        _ => return None,
    })
}

fn stop_flag() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop))?;
    Ok(stop)
}

fn write_record(file: &File, words: [u64; 3]) -> std::io::Result<()> {
    file.write_all_at(&words.map(u64::to_ne_bytes).concat(), 0)
}

fn send(spec: &str, sender: &str, path: &Path) -> Outcome {
    let (stop, sender) = (stop_flag()?, sender.parse()?);
    let (port, file) = (Port::open(spec)?, File::create(path)?);
    let (ring, mut sent) = (&port.tx_rings()[0], 0);
    println!("ready");
    while !stop.load(Relaxed) {
        if !port.poll(Interest::TX, NAP)?.tx() {
            continue;
        }
        sent += fill_some(ring, sender, sent, BATCH);
        port.txsync()?;
        write_record(&file, [sent, 0, 0])?;
        sleep(PAUSE);
    }
    let end = Instant::now() + DRAIN_LIMIT;
    while ring.pending() && Instant::now() < end {
        port.txsync()?;
        sleep(PAUSE);
    }
    if ring.pending() { Err("not all packets were taken".into()) } else { Ok(()) }
}

fn receive(spec: &str, sender: &str, path: &Path) -> Outcome {
    let (stop, sender) = (stop_flag()?, sender.parse::<u64>()?);
    let (port, file) = (Port::open(spec)?, File::create(path)?);
    let (ring, mut next, mut words) = (&port.rx_rings()[0], 0, [0; 3]);
    write_record(&file, words)?;
    println!("ready");
    while !stop.load(Relaxed) {
        if !port.poll(Interest::RX, NAP)?.rx() {
            continue;
        }
        let space = ring.space();
        for slot in ring.first(space) {
            match packet::check(&bytes_of(&slot)) {
                Ok((from, seq)) if from == sender && seq >= next => (next, words[0]) = (seq + 1, words[0] + 1),
                Ok((from, _)) if from == sender => words[1] += 1,
                _ => words[2] += 1,
            }
        }
        ring.advance(space);
        port.rxsync()?;
        write_record(&file, words)?;
    }
    Ok(())
}

/// Sends back what an interface receives.
fn reflect(spec: &str) -> Outcome {
    let (stop, port) = (stop_flag()?, Port::open(spec)?);
    let (rx, tx) = (&port.rx_rings()[0], &port.tx_rings()[0]);
    println!("ready");
    while !stop.load(Relaxed) {
        port.poll(if rx.is_empty() { Interest::RX } else { Interest::TX }, NAP)?;
        let n = rx.space().min(tx.space());
        for (from, to) in rx.first(n).zip(tx.first(n)) {
            let bytes = bytes_of(&from);
            let written = to.frame().write(0, &bytes);
            to.set_len_flags(written as u16, 0);
        }
        rx.advance(n);
        tx.advance(n);
        port.txsync()?;
        port.rxsync()?;
    }
    Ok(())
}

/// Prints how long each open took, in microseconds, or why it was refused.
fn probe() -> Outcome {
    let stop = stop_flag()?;
    println!("ready");
    while !stop.load(Relaxed) {
        sleep(PROBE_PAUSE);
        let start = Instant::now();
        match Port::open("netmap:probe{1") {
            Ok(_port) => println!("{}", start.elapsed().as_micros()),
            Err(e) => println!("refused: {e}"),
        }
    }
    Ok(())
}
