// SPDX-License-Identifier: BSD-2-Clause
//! An ordinary client in a process of its own, which tests kill, stop and restart.
//!
//! ```text
//! traffic_client send  SPEC SENDER RECORD  sends numbered packets until SIGTERM, then waits until the ring is drained
//! traffic_client recv  SPEC FOLDER         receives and checks until SIGTERM; writes a record for each sender
//! traffic_client share SPEC FILE COUNT     receives from a shared ring in turns with others until COUNT have arrived
//! traffic_client spin  SPEC                syncs as fast as it can, and moves no packet
//! traffic_client wait  SPEC                sleeps until a packet arrives, and prints `awake`
//! traffic_client see   SPEC FILE           receives from a monitor until SIGTERM or until the monitored port ends;
//!                                          the record: valid packets, invalid packets, and 1 if the port ended
//! traffic_client hold  SPEC                opens the port and does nothing until SIGTERM
//! ```
//! A record is 24 bytes, written by one call before and after each batch.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use conformance::LIMIT;
use conformance::packet::{self, Rng};
use conformance::traffic::{bytes_of, fill_some};
use rustix::process::{Signal, set_parent_process_death_signal};
use unetmap::{Interest, Port};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const NAP: Option<Duration> = Some(Duration::from_millis(50));

fn main() -> ExitCode {
    // The program is killed when the test exits.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["send", spec, sender, record] => send(spec, sender, Path::new(record)),
        ["recv", spec, folder] => recv(spec, Path::new(folder)),
        ["share", spec, file, count] => share(spec, Path::new(file), count),
        ["spin", spec] => spin(spec),
        ["wait", spec] => wait(spec),
        ["see", spec, file] => see(spec, Path::new(file)),
        ["hold", spec] => hold(spec),
        _ => Err("usage: traffic_client send|recv|share|spin|wait|see|hold SPEC ...".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("traffic_client: {e}");
            ExitCode::FAILURE
        }
    }
}

fn stop_flag() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop))?;
    Ok(stop)
}

fn record(file: &File, words: [u64; 3]) -> std::io::Result<()> {
    let mut bytes = [0; 24];
    bytes.chunks_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
    file.write_all_at(&bytes, 0)
}

fn read_record(path: &Path) -> [u64; 3] {
    let bytes = fs::read(path).unwrap_or_default();
    let word = |i: usize| bytes.get(8 * i..8 * i + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes);
    [word(0), word(1), word(2)]
}

/// The record: the number of packets that may have been sent, the number that certainly were, and 0.
fn send(spec: &str, sender: &str, path: &Path) -> Outcome {
    let (stop, sender) = (stop_flag()?, sender.parse()?);
    let port = Port::open(spec)?;
    let file = File::create(path)?;
    let (ring, mut rng, mut sent) = (&port.tx_rings()[0], Rng(sender | 1), 0);
    while !stop.load(Relaxed) {
        if !port.poll(Interest::TX, NAP)?.tx() {
            continue;
        }
        let n = fill_some(ring, sender, sent, 1 + rng.below(300));
        record(&file, [sent + n, sent, 0])?;
        port.txsync()?;
        sent += n;
        record(&file, [sent, sent, 0])?;
    }
    let end = Instant::now() + LIMIT;
    while ring.pending() && Instant::now() < end {
        ring.set_cur(ring.tail());
        port.poll(Interest::TX, NAP)?;
        port.txsync()?;
    }
    println!("sent {sent}");
    Ok(())
}

/// The packets of one sender; the record: the next number, missing packets, duplicates.
struct Known {
    file: File,
    words: [u64; 3],
}

fn known(folder: &Path, sender: u64) -> std::io::Result<Known> {
    let path: PathBuf = folder.join(sender.to_string());
    let words = read_record(&path);
    Ok(Known { file: File::options().write(true).create(true).truncate(false).open(path)?, words })
}

fn recv(spec: &str, folder: &Path) -> Outcome {
    let stop = stop_flag()?;
    let port = Port::open(spec)?;
    let ring = &port.rx_rings()[0];
    let mut senders: HashMap<u64, Known> = HashMap::new();
    loop {
        let over = stop.load(Relaxed);
        port.poll(Interest::RX, NAP)?;
        if over && ring.is_empty() {
            return Ok(());
        }
        let mut n = 0;
        let mut touched = Vec::new();
        for slot in ring.available().take(700) {
            let (sender, seq) = packet::check(&bytes_of(&slot))?;
            let known = match senders.entry(sender) {
                std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
                std::collections::hash_map::Entry::Vacant(e) => e.insert(known(folder, sender)?),
            };
            let [next, missing, again] = &mut known.words;
            match seq.checked_sub(*next) {
                Some(gap) => (*next, *missing) = (seq + 1, *missing + gap),
                None => *again += 1,
            }
            if touched.last() != Some(&sender) {
                touched.push(sender);
            }
            n += 1;
        }
        // Recorded before the slots are released: a crash in between causes duplicates, never a gap.
        for sender in touched {
            if let Some(known) = senders.get(&sender) {
                record(&known.file, known.words)?;
            }
        }
        ring.advance(n);
        port.rxsync()?;
    }
}

/// The file holds the number of the next packet: together the sharing processes show that each packet arrives once.
fn share(spec: &str, path: &Path, count: &str) -> Outcome {
    let count: u64 = count.parse()?;
    let port = Port::open(spec)?;
    let file = File::options().read(true).write(true).open(path)?;
    let (mut mine, end) = (0, Instant::now() + LIMIT);
    loop {
        file.lock()?;
        let [mut next, ..] = read_record(path);
        port.rxsync()?;
        let ring = &port.rx_rings()[0];
        let mut n = 0;
        for slot in ring.available().take(64) {
            let (_, seq) = packet::check(&bytes_of(&slot))?;
            if seq != next {
                return Err(format!("packet {seq} came where {next} was due").into());
            }
            (next, n) = (next + 1, n + 1);
        }
        record(&file, [next, 0, 0])?;
        ring.advance(n);
        port.rxsync()?;
        file.unlock()?;
        mine += n;
        if next == count {
            println!("took {mine}");
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("only {next} of {count} packets came").into());
        }
        if n == 0 {
            port.poll(Interest::RX, NAP)?;
        }
    }
}

fn spin(spec: &str) -> Outcome {
    let port = Port::open(spec)?;
    println!("spinning");
    loop {
        port.rxsync()?;
        port.txsync()?;
    }
}

fn wait(spec: &str) -> Outcome {
    let port = Port::open(spec)?;
    println!("waiting");
    // Without a timeout: the check after a timeout would hide a lost wake-up.
    while !port.poll(Interest::RX, None)?.rx() {}
    println!("awake");
    Ok(())
}

fn see(spec: &str, path: &Path) -> Outcome {
    let stop = stop_flag()?;
    let port = Port::open(spec)?;
    let file = File::create(path)?;
    let ring = &port.rx_rings()[0];
    let mut words = [0; 3];
    record(&file, words)?;
    println!("seeing");
    while !stop.load(Relaxed) {
        match port.poll(Interest::RX, NAP) {
            Ok(_) => {}
            // Another client wrote into its memory; the ring was reset.
            Err(unetmap::Error::BadPointers { .. }) => continue,
            Err(unetmap::Error::MonitoredPortClosed { .. }) => {
                words[2] = 1;
                record(&file, words)?;
                return Ok(());
            }
            Err(e) => return Err(e.into()),
        }
        let n = ring.space();
        for slot in ring.available() {
            words[usize::from(packet::check(&bytes_of(&slot)).is_err())] += 1;
        }
        ring.advance(n);
        record(&file, words)?;
    }
    Ok(())
}

fn hold(spec: &str) -> Outcome {
    let stop = stop_flag()?;
    let _port = Port::open(spec)?;
    println!("holding");
    while !stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
