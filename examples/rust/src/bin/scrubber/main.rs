//! Cleans the traffic of an interface before its host sees it: `scrubber IF [THREADS [RATE]]`.
//!
//! Each thread has a pair of the interface's rings and a pair of host rings for itself, so that threads share nothing:
//!
//! ```text
//!   wire --- IF-0 --> malformed? bogon? too fast? SYN proxy --> IF^0 --- host
//!        \-- IF-1 --> ...                                       IF^1 --/       one thread each
//! ```
//! A packet that passes goes up by an exchange of two buffer numbers; what the host sends goes out the same way. THREADS
//! (1) should be the number of the interface's queues, as other queues stay the kernel's. RATE (20000) is how many packets
//! a second one source may send to one queue. `INTERVAL_MS` in the environment asks for a report every so often.
//!
//! It is an example: a program to start from, not one to trust a network to.
#![forbid(unsafe_code)]

mod filters;
mod lane;
mod packet;
mod proxy;
mod table;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lane::{Counts, Lane};
use signal_hook::consts::{SIGINT, SIGTERM};
use unetmap::Port;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(interface) = args.first().filter(|_| args.len() <= 3) else {
        return Err("usage: scrubber IF [THREADS [RATE]]".into());
    };
    let threads: u16 = args.get(1).map_or(Ok(1), |n| n.parse())?;
    let rate: u32 = args.get(2).map_or(Ok(20_000), |n| n.parse())?;
    let interval = std::env::var("INTERVAL_MS").ok().map(|ms| ms.parse().map(Duration::from_millis)).transpose()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }

    let counts: Vec<Counts> = (0..threads).map(|_| Counts::default()).collect();
    let mut lanes = Vec::new();
    // The host's rings first: who has them may take the interface that the host is reached by.
    let hosts: Result<Vec<Port>, _> =
        (0..threads).map(|k| Port::open(&format!("netmap:{interface}^{k}@conf:host-rings={threads}"))).collect();
    for ((k, host), counts) in hosts?.into_iter().enumerate().zip(&counts) {
        let wire = Port::open(&format!("netmap:{interface}-{k}"))?;
        // Whoever does not know it can neither fill the tables nor make cookies.
        let secret = RandomState::new().hash_one(k);
        lanes.push(Lane { wire, host, filters: filters::chain(secret, rate), counts });
    }
    let names: Vec<&str> = filters::chain(0, rate).iter().map(|filter| filter.name()).collect();
    eprintln!("Ready to go, {interface} with {threads} threads");

    let (begin, stop) = (Instant::now(), &*stop);
    std::thread::scope(|scope| {
        let lanes: Vec<_> = lanes.iter_mut().map(|lane| scope.spawn(|| lane.run(stop))).collect();
        let mut before = (begin, 0);
        while !stop.load(Relaxed) && !lanes.iter().any(|lane| lane.is_finished()) {
            std::thread::sleep(interval.unwrap_or(Duration::from_millis(50)));
            if interval.is_some() {
                before = report(&counts, before);
            }
        }
        stop.store(true, Relaxed);
        lanes.into_iter().try_for_each(|lane| lane.join().unwrap_or(Ok(())))
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
    Ok(())
}

/// One line of JSON about what came since `before`: a time, and how many had been received then.
fn report(counts: &[Counts], before: (Instant, u64)) -> (Instant, u64) {
    let (now, received) = (Instant::now(), counts.iter().map(|counts| counts.received.load(Relaxed)).sum());
    let (packets, seconds) = (received - before.1, (now - before.0).as_secs_f64());
    println!("{{\"event\":\"interval\",\"packets\":{packets},\"seconds\":{seconds}}}");
    (now, received)
}
