//! An ordinary client, in a process of its own: what tests kill, stop and start again.
//!
//! ```text
//! party send  SPEC SENDER RECORD     sends numbered packets until SIGTERM, then waits until all are taken
//! party recv  SPEC FOLDER            receives and checks until SIGTERM, keeps a record for each sender in FOLDER
//! party share SPEC FILE COUNT        takes turns at a shared ring with others until COUNT packets came in all
//! party spin  SPEC                   syncs as fast as it can, and moves nothing
//! party wait  SPEC                   sleeps until there is something to read, and says so
//! party see   SPEC FILE              takes copies at a monitor until SIGTERM or its end; the record: good ones, others, and 1
//!                                    if it was told that what it watched was closed
//! party hold  SPEC                   opens the port and does nothing until SIGTERM
//! ```
//! A record is 24 bytes, written in one go: before and after each batch what has been done for sure.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use conformance::packet::{self, Dice};
use conformance::traffic::{bytes_of, fill_some};
use rustix::process::{Signal, set_parent_process_death_signal};
use unetmap::{Interest, Port};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const NAP: Option<Duration> = Some(Duration::from_millis(50));
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    // Nobody is left when the test dies.
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
        _ => Err("usage: party send|recv|share|spin|wait|see|hold SPEC ...".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("party: {e}");
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

/// The record: how many packets may have been sent, how many were for sure, and 0.
fn send(spec: &str, sender: &str, path: &Path) -> Outcome {
    let (stop, sender) = (stop_flag()?, sender.parse()?);
    let port = Port::open(spec)?;
    let file = File::create(path)?;
    let (ring, mut dice, mut sent) = (&port.tx_rings()[0], Dice(sender | 1), 0);
    while !stop.load(Relaxed) {
        if !port.poll(Interest::TX, NAP)?.tx() {
            continue;
        }
        let n = fill_some(ring, sender, sent, 1 + dice.below(300));
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

/// What is known of one sender; the record: next number, missing, seen again.
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
        for slot in ring.window().take(700) {
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
        // First on record, then given back: who dies in between leaves packets that come again, never a hole.
        for sender in touched {
            if let Some(known) = senders.get(&sender) {
                record(&known.file, known.words)?;
            }
        }
        ring.advance(n);
        port.rxsync()?;
    }
}

/// The file holds the number of the next packet, so that those who share the ring prove together that each came once.
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
        for slot in ring.window().take(64) {
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
    // Without a limit: the look at its end would hide that nobody woke us.
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
            // Somebody wrote into its memory; the ring was set back.
            Err(unetmap::Error::BadPointers { .. }) => continue,
            Err(unetmap::Error::WatchedGone { .. }) => {
                words[2] = 1;
                record(&file, words)?;
                return Ok(());
            }
            Err(e) => return Err(e.into()),
        }
        let n = ring.space();
        for slot in ring.window() {
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
