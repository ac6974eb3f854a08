// SPDX-License-Identifier: BSD-2-Clause
//! bridge: forwards packets between two netmap ports in both directions.
#![forbid(unsafe_code)]

mod options;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;
use tool_common::forward::{
    Counts, Direction, Mover, check_headers, check_sizes, drain, forward, limit, move_all, move_short,
};
use tool_common::{Failure, failure, link, note, port, print, stop_on_signals, wait_for_link};
use unetmap::abi::NR_ACCEPT_VNET_HDR;
use unetmap::{Port, Ring};

use options::{Cli, Config};

/// Forwards all packets, and counts them.
struct All {
    /// True to exchange buffers, false to copy.
    swap: bool,
    /// Most bytes of a packet that the other port sends, if this one may have longer ones.
    most: Option<u32>,
    total: Counts,
    /// Packets that the other port cannot send.
    too_long: u64,
}

impl Mover for All {
    #[inline]
    fn move_slots(&mut self, from: &Ring, to: &Ring, n: u32) -> Result<u32, String> {
        let Some(most) = self.most else {
            self.total.add(move_all(from, to, n, self.swap));
            return Ok(n);
        };
        let moved = move_short(from, to, n, self.swap, most);
        self.total.add(moved.counts);
        self.too_long += moved.too_long;
        Ok(moved.slots)
    }
}

fn main() -> ExitCode {
    let config = tool_common::parse::<Cli>().check().map_err(Failure::Usage);
    tool_common::exit_code("bridge", config.and_then(|config| run(&config)))
}

fn run(config: &Config) -> Result<ExitCode, Failure> {
    let stop = stop_on_signals()?;
    let open = |spec: &str| port::open(spec, port::RingConfig::default(), NR_ACCEPT_VNET_HDR);
    if let Some(b) = config.b.as_deref().filter(|_| config.bypass) {
        failure::bypass([&config.a, b])?;
    }
    let a = open(&config.a)?;
    let b = config.b.as_deref().map(open).transpose()?;
    let other = b.as_ref().unwrap_or(&a);
    let swap = !config.copy && a.same_region(other);
    check_sizes(&a, other, swap)?;
    let header = check_headers(&a, other)?;
    if config.verbose {
        for port in std::iter::once(&a).chain(&b) {
            let (tx, rx) = (port.tx_rings().len(), port.rx_rings().len());
            note(&format!("{}: {tx} tx and {rx} rx rings, mem_id {}", port.spec(), port.mem_id()));
        }
    }
    wait_for_link(config.wait, stop);

    let direction = |from, to| {
        let mover = All { swap, most: limit(from, to, header), total: Counts::default(), too_long: 0 };
        Direction { from, to, burst: config.burst, mover }
    };
    let mut directions = vec![direction(&a, other)];
    if b.is_some() {
        directions.push(direction(other, &a));
    }
    let ports: Vec<&Port> = std::iter::once(&a).chain(&b).collect();
    let mode = if swap { "zero copy" } else { "copy" };
    note(&format!("Ready to go, {} <-> {}, {mode}, burst {}", config.a, other.spec(), config.burst));

    let (begin, before) = (Instant::now(), bad_slots(&ports));
    let result = forward(&mut directions, &ports, stop);
    let time = begin.elapsed();
    drain(&ports);
    let bad: Vec<u64> = bad_slots(&ports).iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect();
    print_summary(config, &directions, (swap, bad.iter().sum()), time);
    result?;
    let mut code = ExitCode::SUCCESS;
    for Direction { to, mover, .. } in directions.iter().filter(|direction| direction.mover.too_long > 0) {
        let (name, n, most) = (to.spec(), mover.too_long, mover.most.unwrap_or(0));
        note(&format!(
            "bridge: {name}: {n} packets were dropped: it sends frames of at most {most} bytes (ip link set dev IF mtu N)"
        ));
        code = ExitCode::FAILURE;
    }
    for (port, bad) in ports.iter().zip(bad).filter(|(_, bad)| *bad > 0) {
        note(&format!("bridge: {}", port::not_sent(port.spec(), bad)));
        code = ExitCode::FAILURE;
    }
    Ok(code)
}

/// Slots that each port did not send.
fn bad_slots(ports: &[&Port]) -> Vec<u64> {
    ports.iter().map(|port| port::bad_slots(port)).collect()
}

fn print_summary(config: &Config, directions: &[Direction<'_, All>], (swap, bad): (bool, u64), time: Duration) {
    let mut total = Counts::default();
    directions.iter().for_each(|direction| total.add(direction.mover.total));
    let seconds = time.as_secs_f64();
    let line = if config.json {
        let ways: Vec<_> = directions
            .iter()
            .map(|direction| {
                let All { total: Counts { packets, bytes }, too_long, .. } = direction.mover;
                let (from, to) = (direction.from.spec(), direction.to.spec());
                json!({"from": from, "to": to, "packets": packets, "bytes": bytes, "too_long": too_long})
            })
            .collect();
        let mut object = json!({
            "event": "summary", "packets": total.packets, "bytes": total.bytes, "seconds": seconds,
            "zero_copy": swap, "ways": ways, "bad_slots": bad,
        });
        link::add_down(&mut object);
        object.to_string()
    } else {
        let parts: Vec<_> = directions
            .iter()
            .map(|direction| {
                format!("{} -> {} {}", direction.from.spec(), direction.to.spec(), direction.mover.total.packets)
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
