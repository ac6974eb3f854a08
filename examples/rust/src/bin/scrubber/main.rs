// SPDX-License-Identifier: BSD-2-Clause
//! Filters the traffic of an interface before it reaches the host's stack: `scrubber IF [THREADS [RATE [RULES]]]`.
//!
//! Each thread uses one pair of the interface's rings and one pair of host rings, so that threads share nothing:
//!
//! ```text
//!   wire --- IF-0 --> malformed? denied? too fast? SYN proxy --> IF^0 --- host
//!        \-- IF-1 --> ...                                       IF^1 --/       one thread each
//! ```
//! A packet that passes all filters moves to the host ring by an exchange of buffers; packets from the host move to the
//! interface in the same way. THREADS (default 1) should be the number of the interface's queues, because the kernel
//! keeps the other queues. RATE (default 20000) is the number of packets per second that one source may send to one
//! queue. RULES is a file of rules and lists in ipfw's language (unetmap-fw(1)), read again on SIGHUP; invalid sources
//! are denied without it. The environment variable `INTERVAL_MS` requests a report at that interval, in milliseconds.
//!
//! This program is an example to start from, not a product that protects a network.
#![forbid(unsafe_code)]

mod filters;
mod packet;
mod proxy;
mod queue_pair;
mod rules;
mod table;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use queue_pair::{Counts, QueuePair};
use rules::Rules;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use unetmap::Port;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(interface) = args.first().filter(|_| args.len() <= 4) else {
        return Err("usage: scrubber IF [THREADS [RATE [RULES]]]".into());
    };
    let threads: u16 = args.get(1).map_or(Ok(1), |n| n.parse())?;
    let rate: u32 = args.get(2).map_or(Ok(20_000), |n| n.parse())?;
    let rules = Arc::new(Rules::new(threads.into(), args.get(3).map(Into::into))?);
    let interval = std::env::var("INTERVAL_MS").ok().map(|ms| ms.parse().map(Duration::from_millis)).transpose()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }

    let hangup = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGHUP, Arc::clone(&hangup))?;

    let counts: Vec<Counts> = (0..threads).map(|_| Counts::default()).collect();
    let mut pairs = Vec::new();
    // The host rings come first: a program that holds them may also open the interface that carries the host's
    // connections.
    let hosts: Result<Vec<Port>, _> =
        (0..threads).map(|k| Port::open(&format!("netmap:{interface}^{k}@conf:host-rings={threads}"))).collect();
    for ((k, host), counts) in hosts?.into_iter().enumerate().zip(&counts) {
        let wire = Port::open(&format!("netmap:{interface}-{k}"))?;
        // Without this secret, an attacker can neither fill the tables nor forge cookies.
        let secret = RandomState::new().hash_one(k);
        pairs.push(QueuePair { wire, host, filters: filters::chain(&rules, k, secret, rate), counts });
    }
    let names: Vec<&str> = filters::chain(&rules, 0, 0, rate).iter().map(|filter| filter.name()).collect();
    eprintln!("Ready to go, {interface} with {threads} threads");

    let (begin, stop) = (Instant::now(), &*stop);
    std::thread::scope(|scope| {
        let threads: Vec<_> = pairs.iter_mut().map(|pair| scope.spawn(|| pair.run(stop))).collect();
        let mut before = (begin, 0);
        while !stop.load(Relaxed) && !threads.iter().any(|thread| thread.is_finished()) {
            std::thread::sleep(interval.unwrap_or(Duration::from_millis(50)));
            if hangup.swap(false, Relaxed) {
                match rules.reload() {
                    Ok(()) => eprintln!("The rules were read again"),
                    Err(why) => eprintln!("the old rules stay: {why}"),
                }
            }
            if interval.is_some() {
                before = report(&counts, before);
            }
        }
        stop.store(true, Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })?;
    let sum = |of: &dyn Fn(&Counts) -> &AtomicU64| counts.iter().map(|counts| of(counts).load(Relaxed)).sum::<u64>();
    let stopped: Vec<String> =
        names.iter().enumerate().map(|(i, name)| format!("{name} {}", sum(&|c| &c.stopped[i]))).collect();
    println!(
        "received {}, passed {}, lost {}, stopped: {}, in {:.2} seconds",
        sum(&|c| &c.received),
        sum(&|c| &c.passed),
        sum(&|c| &c.lost),
        stopped.join(", "),
        begin.elapsed().as_secs_f64()
    );
    for (reason, (packets, bytes)) in rules.denied() {
        println!("denied: {reason} {packets} packets, {bytes} bytes");
    }
    Ok(())
}

/// Prints a line of JSON about the packets received since `before`, a time and the number of packets received until
/// then. Returns the new values.
fn report(counts: &[Counts], before: (Instant, u64)) -> (Instant, u64) {
    let (now, received) = (Instant::now(), counts.iter().map(|counts| counts.received.load(Relaxed)).sum());
    let (packets, seconds) = (received - before.1, (now - before.0).as_secs_f64());
    println!("{{\"event\":\"interval\",\"packets\":{packets},\"seconds\":{seconds}}}");
    (now, received)
}
