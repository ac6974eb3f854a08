// SPDX-License-Identifier: BSD-2-Clause
//! A client that forks after it has opened a port.
//!
//! ```text
//! forker SPEC FILE COUNT     parent and child share the port: they receive in turns until COUNT packets have arrived
//! forker SPEC FILE COUNT -   the parent exits once its input is closed; the child receives all packets
//! ```
//! FILE holds the number of the next packet; its lock decides whose turn it is.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use conformance::LIMIT;
use conformance::packet;
use conformance::traffic::bytes_of;
use unetmap::{Interest, Port};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        [spec, file, count] => run(spec, file, count, false),
        [spec, file, count, "-"] => run(spec, file, count, true),
        _ => Err("usage: forker SPEC FILE COUNT [-]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("forker: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(spec: &str, file: &str, count: &str, leave: bool) -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = count.parse()?;
    let port = Port::open(spec)?;
    // SAFETY: this process has one thread, so the child may call any function.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    if child > 0 {
        println!("child {child}");
        if leave {
            let _ = std::io::stdin().read(&mut [0]);
            return Ok(());
        }
    }
    let who = if child > 0 { "parent" } else { "child" };
    let mine = take(&port, file, count)?;
    println!("{who} took {mine}");
    if child > 0 {
        let mut status = 0;
        // SAFETY: `status` is a valid local variable, and the child belongs to this process.
        unsafe { libc::waitpid(child, &mut status, 0) };
        if status != 0 {
            return Err("the child failed".into());
        }
    }
    Ok(())
}

fn take(port: &Port, path: &str, count: u64) -> Result<u32, Box<dyn std::error::Error>> {
    // Opened after the fork: the lock belongs to an open file description, which the two processes must not share.
    let file = File::options().read(true).write(true).open(path)?;
    let (ring, mut mine, end) = (&port.rx_rings()[0], 0, Instant::now() + LIMIT);
    loop {
        file.lock()?;
        let mut word = [0; 8];
        file.read_at(&mut word, 0)?;
        let mut next = u64::from_ne_bytes(word);
        port.rxsync()?;
        let mut n = 0;
        for slot in ring.available().take(32) {
            let (_, seq) = packet::check(&bytes_of(&slot))?;
            if seq != next {
                return Err(format!("packet {seq} came where {next} was due").into());
            }
            (next, n) = (next + 1, n + 1);
        }
        file.write_all_at(&next.to_ne_bytes(), 0)?;
        ring.advance(n);
        port.rxsync()?;
        file.unlock()?;
        mine += n;
        if next == count {
            return Ok(mine);
        }
        if Instant::now() > end {
            return Err(format!("only {next} of {count} packets came").into());
        }
        if n == 0 {
            port.poll(Interest::RX, Some(Duration::from_millis(20)))?;
        } else {
            // Gives the other process a turn.
            std::thread::yield_now();
        }
    }
}
