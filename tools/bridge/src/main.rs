// SPDX-License-Identifier: BSD-2-Clause
//! bridge: forwards packets between two netmap ports in both directions.
#![forbid(unsafe_code)]

mod forward;
mod options;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::json;
use tool_common::{Failure, note, port, print, stop_on_signals, wait_for_link};
use unetmap::abi::{NR_ACCEPT_VNET_HDR, PortSpec};
use unetmap::{Interest, Port};

use forward::{Counts, Direction};
use options::{Cli, Config};

/// Idle time after which the process sleeps. About the cost of a sleep and a wake-up.
const SPIN: Duration = Duration::from_micros(50);
/// Longest wait at the end for the receivers to release the forwarded packets.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let config = tool_common::parse::<Cli>().check().map_err(Failure::Usage);
    tool_common::exit_code("bridge", config.and_then(|config| run(&config)))
}

fn run(config: &Config) -> Result<ExitCode, Failure> {
    let stop = stop_on_signals()?;
    let open = |spec: &str| port::open(spec, port::RingConfig::default(), NR_ACCEPT_VNET_HDR);
    let a = open(&config.a)?;
    let b = config.b.as_deref().map(open).transpose()?;
    let other = b.as_ref().unwrap_or(&a);
    let swap = !config.copy && a.same_region(other);
    check_sizes(&a, other, swap)?;
    check_headers(&a, other)?;
    if config.verbose {
        for port in std::iter::once(&a).chain(&b) {
            let (tx, rx) = (port.tx_rings().len(), port.rx_rings().len());
            note(&format!("{}: {tx} tx and {rx} rx rings, mem_id {}", port.spec(), port.mem_id()));
        }
    }
    wait_for_link(config.wait, stop);

    let direction = |from, to| Direction { from, to, swap, burst: config.burst, total: Counts::default() };
    let mut directions = vec![direction(&a, other)];
    if b.is_some() {
        directions.push(direction(other, &a));
    }
    let ports: Vec<&Port> = std::iter::once(&a).chain(&b).collect();
    let mode = if swap { "zero copy" } else { "copy" };
    note(&format!("Ready to go, {} <-> {}, {mode}, burst {}", config.a, other.spec(), config.burst));

    let begin = Instant::now();
    let result = forward(&mut directions, &ports, stop);
    let time = begin.elapsed();
    drain(&ports);
    print_summary(config, &directions, swap, time);
    result?;
    Ok(ExitCode::SUCCESS)
}

/// Returns an error if packets are copied between buffers of different sizes.
fn check_sizes(a: &Port, b: &Port, swap: bool) -> Result<(), String> {
    if swap || a.buf_size() == b.buf_size() {
        return Ok(());
    }
    Err(format!(
        "{} has buffers of {} bytes, and {} of {}, so packets may not fit; open both ports in one region (@MEM_ID)",
        a.spec(),
        a.buf_size(),
        b.spec(),
        b.buf_size()
    ))
}

/// Returns an error if the packets of only one port, or of both with different lengths, have virtio-net headers: they
/// would become part of the frames.
fn check_headers(a: &Port, b: &Port) -> Result<(), String> {
    let header = |port: &Port| {
        let spec = PortSpec::parse(port.spec()).ok();
        spec.and_then(|spec| unetmap::switch::vnet_header(&spec.name).ok()).unwrap_or(0)
    };
    let (of_a, of_b) = (header(a), header(b));
    if of_a == of_b {
        return Ok(());
    }
    Err(format!(
        "{} has virtio-net headers of {of_a} bytes, and {} of {of_b}; set the same for both (unetmap nic IF header N, \
         pkt-gen -H)",
        a.spec(),
        b.spec()
    ))
}

/// Forwards packets until the stop flag is set.
fn forward(directions: &mut [Direction<'_>], ports: &[&Port], stop: &AtomicBool) -> Result<(), String> {
    let mut idle_since = None;
    while !stop.load(Relaxed) {
        for port in ports {
            // Publishes sent packets, releases forwarded slots and receives new packets. Does not wait.
            port.poll(Interest::BOTH, Some(Duration::ZERO)).map_err(|e| e.to_string())?;
        }
        let mut moved = false;
        for direction in &mut *directions {
            moved |= direction.forward()?;
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
        sleep(directions, ports)?;
        idle_since = None;
    }
    Ok(())
}

/// Sleeps until a port receives packets, or has room for packets that wait.
fn sleep(directions: &[Direction<'_>], ports: &[&Port]) -> Result<(), String> {
    let interest = |port: &Port| {
        directions.iter().fold(Interest::NONE, |interest, direction| match direction.is_blocked() {
            false if std::ptr::eq(direction.from, port) => interest | Interest::RX,
            true if std::ptr::eq(direction.to, port) => interest | Interest::TX,
            _ => interest,
        })
    };
    for direction in directions.iter().filter(|direction| direction.is_blocked()) {
        direction.wait_for_more_room();
    }
    let interests: Vec<(&Port, Interest)> = ports.iter().map(|port| (*port, interest(port))).collect();
    port::wait_any(&interests)
}

/// Waits until the receivers have released the forwarded packets, at most [`DRAIN_TIMEOUT`].
fn drain(ports: &[&Port]) {
    let until = Instant::now() + DRAIN_TIMEOUT;
    loop {
        // Errors are ignored: a failed port no longer has a receiver.
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

fn print_summary(config: &Config, directions: &[Direction<'_>], swap: bool, time: Duration) {
    let mut total = Counts::default();
    directions.iter().for_each(|direction| total.add(direction.total));
    let seconds = time.as_secs_f64();
    let line = if config.json {
        let ways: Vec<_> = directions
            .iter()
            .map(|direction| {
                let Counts { packets, bytes } = direction.total;
                json!({"from": direction.from.spec(), "to": direction.to.spec(), "packets": packets, "bytes": bytes})
            })
            .collect();
        json!({
            "event": "summary", "packets": total.packets, "bytes": total.bytes, "seconds": seconds,
            "zero_copy": swap, "ways": ways,
        })
        .to_string()
    } else {
        let parts: Vec<_> = directions
            .iter()
            .map(|direction| {
                format!("{} -> {} {}", direction.from.spec(), direction.to.spec(), direction.total.packets)
            })
            .collect();
        format!(
            "Forwarded {} packets {} bytes in {seconds:.2} seconds: {}",
            total.packets,
            total.bytes,
            parts.join(", ")
        )
    };
    print(&format!("{line}\n"));
}
