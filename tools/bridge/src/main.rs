//! bridge: forwards packets between two netmap ports, both ways.
#![forbid(unsafe_code)]

mod forward;
mod options;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Parser as _;
use serde_json::json;
use tool_common::{Failure, note, port, print, stop_on_signals, wait_for_link};
use unetmap::{Interest, Port};

use forward::{Moved, Way};
use options::{Cli, Config};

/// How long both sides may be idle before the process sleeps: about what a sleep and a wake-up cost.
const SPIN: Duration = Duration::from_micros(50);
/// How long the end waits for the receivers to take what was forwarded.
const DRAIN: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let config = Cli::parse().check().map_err(Failure::Usage);
    tool_common::end("bridge", config.and_then(|config| run(&config)))
}

fn run(config: &Config) -> Result<ExitCode, Failure> {
    let stop = stop_on_signals()?;
    let open = |spec: &str| port::open(spec, port::Wishes::default(), 0);
    let a = open(&config.a)?;
    let b = config.b.as_deref().map(open).transpose()?;
    let other = b.as_ref().unwrap_or(&a);
    let swap = !config.copy && a.same_region(other);
    check_sizes(&a, other, swap)?;
    if config.verbose {
        for port in std::iter::once(&a).chain(&b) {
            let (tx, rx) = (port.tx_rings().len(), port.rx_rings().len());
            note(&format!("{}: {tx} tx and {rx} rx rings, mem_id {}", port.spec(), port.mem_id()));
        }
    }
    wait_for_link(config.wait, stop);

    let way = |from, to| Way { from, to, swap, burst: config.burst, total: Moved::default() };
    let mut ways = vec![way(&a, other)];
    if b.is_some() {
        ways.push(way(other, &a));
    }
    let ports: Vec<&Port> = std::iter::once(&a).chain(&b).collect();
    let how = if swap { "zero copy" } else { "copy" };
    note(&format!("Ready to go, {} <-> {}, {how}, burst {}", config.a, other.spec(), config.burst));

    let begin = Instant::now();
    let result = forward(&mut ways, &ports, stop);
    let time = begin.elapsed();
    drain(&ports);
    summary(config, &ways, swap, time);
    result?;
    Ok(ExitCode::SUCCESS)
}

/// A copied packet must fit its new buffer; an exchanged one brings its buffer along.
fn check_sizes(a: &Port, b: &Port, swap: bool) -> Result<(), String> {
    if swap || a.buf_size() == b.buf_size() {
        return Ok(());
    }
    Err(format!(
        "{} has buffers of {} bytes and {} of {}: packets would not fit; open both in one region (@MEM_ID)",
        a.spec(),
        a.buf_size(),
        b.spec(),
        b.buf_size()
    ))
}

/// Forwards until the flag is raised.
fn forward(ways: &mut [Way<'_>], ports: &[&Port], stop: &AtomicBool) -> Result<(), String> {
    let mut idle_since = None;
    while !stop.load(Relaxed) {
        for port in ports {
            // Publishes what was moved, gives back what was read, takes what has come; never waits.
            port.poll(Interest::BOTH, Some(Duration::ZERO)).map_err(|e| e.to_string())?;
        }
        let mut moved = false;
        for way in &mut *ways {
            moved |= way.go()?;
        }
        if moved {
            idle_since = None;
            continue;
        }
        let since = *idle_since.get_or_insert_with(Instant::now);
        if since.elapsed() < SPIN {
            std::hint::spin_loop();
            continue;
        }
        sleep(ways, ports)?;
        idle_since = None;
    }
    Ok(())
}

/// Sleeps until a port has what a direction lacks: packets, or room for those it has.
fn sleep(ways: &[Way<'_>], ports: &[&Port]) -> Result<(), String> {
    let wants = |port: &Port| {
        ways.iter().fold(Interest::NONE, |want, way| match way.is_blocked() {
            false if std::ptr::eq(way.from, port) => want | Interest::RX,
            true if std::ptr::eq(way.to, port) => want | Interest::TX,
            _ => want,
        })
    };
    for way in ways.iter().filter(|way| way.is_blocked()) {
        way.wait_for_more_room();
    }
    let wants: Vec<(&Port, Interest)> = ports.iter().map(|port| (*port, wants(port))).collect();
    port::sleep(&wants)
}

/// Gives the receivers a moment to take what was forwarded, and the senders back their buffers.
fn drain(ports: &[&Port]) {
    let until = Instant::now() + DRAIN;
    loop {
        // A port that fails here is gone, and with it whoever would have received.
        let pending = ports.iter().any(|port| {
            let synced = port.rxsync().and_then(|()| port.txsync());
            synced.is_ok() && port.tx_rings().iter().any(unetmap::Ring::pending)
        });
        if !pending || Instant::now() >= until {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn summary(config: &Config, ways: &[Way<'_>], swap: bool, time: Duration) {
    let mut all = Moved::default();
    ways.iter().for_each(|way| all.add(way.total));
    let seconds = time.as_secs_f64();
    let line = if config.json {
        let ways: Vec<_> = ways
            .iter()
            .map(|way| {
                let Moved { packets, bytes } = way.total;
                json!({"from": way.from.spec(), "to": way.to.spec(), "packets": packets, "bytes": bytes})
            })
            .collect();
        json!({
            "event": "summary", "packets": all.packets, "bytes": all.bytes, "seconds": seconds,
            "zero_copy": swap, "ways": ways,
        })
        .to_string()
    } else {
        let parts: Vec<_> =
            ways.iter().map(|way| format!("{} -> {} {}", way.from.spec(), way.to.spec(), way.total.packets)).collect();
        format!("Forwarded {} packets {} bytes in {seconds:.2} seconds: {}", all.packets, all.bytes, parts.join(", "))
    };
    print(&format!("{line}\n"));
}
