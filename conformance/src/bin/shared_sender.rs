// SPDX-License-Identifier: BSD-2-Clause
//! A sender that shares its transmit ring: `shared_sender SPEC FILE COUNT` sends in turns with other processes until
//! COUNT numbered packets are sent in total. FILE holds the number of the next packet; its lock decides whose turn it
//! is.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::ExitCode;
use std::time::Instant;

use conformance::LIMIT;
use conformance::traffic::fill_some;
use unetmap::Port;

/// Packets of one turn.
const TURN: u64 = 32;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match &args[..] {
        [spec, file, count] => run(spec, file, count),
        _ => Err("usage: shared_sender SPEC FILE COUNT".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("shared_sender: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(spec: &str, path: &str, count: &str) -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = count.parse()?;
    let port = Port::open(spec)?;
    println!("opened");
    let file = File::options().read(true).write(true).open(path)?;
    let (ring, mut mine, end) = (&port.tx_rings()[0], 0, Instant::now() + LIMIT);
    loop {
        file.lock()?;
        let mut word = [0; 8];
        file.read_at(&mut word, 0)?;
        let next = u64::from_ne_bytes(word);
        port.txsync()?;
        let n = fill_some(ring, 1, next, TURN.min(count - next));
        port.txsync()?;
        file.write_all_at(&(next + n).to_ne_bytes(), 0)?;
        file.unlock()?;
        mine += n;
        if next + n == count {
            break;
        }
        if Instant::now() > end {
            return Err(format!("only {} of {count} packets could be sent", next + n).into());
        }
        std::thread::yield_now();
    }
    // A sync is skipped while another process syncs the ring.
    while ring.pending() && Instant::now() < end {
        port.txsync()?;
    }
    println!("sent {mine}");
    Ok(())
}
