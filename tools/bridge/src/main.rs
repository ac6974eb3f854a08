// SPDX-License-Identifier: BSD-2-Clause
//! bridge: forwards packets between two netmap ports in both directions.
#![forbid(unsafe_code)]

#[cfg(feature = "apps")]
mod flows;
mod options;

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tool_common::forward::{
    Counts, Direction, Mover, check_headers, check_sizes, drain, forward, limit, move_all, move_short,
};
use tool_common::{Failure, failure, link, note, port, print, stop_on_signals, wait_for_link};
use unetmap::abi::NR_ACCEPT_VNET_HDR;
use unetmap::{Port, Ring};

use options::{Cli, Config};

/// Forwards all packets, and counts them.
#[derive(Clone, Copy)]
struct All {
    /// True to exchange buffers, false to copy.
    swap: bool,
    /// Most bytes of a packet that the other port sends, if this one may have longer ones.
    most: Option<u32>,
    total: Counts,
    /// Packets that the other port cannot send.
    too_long: u64,
}

impl All {
    /// Moves the first `n` slots; returns how many the other port has now, and the packets in them.
    #[inline]
    fn move_packets(&mut self, from: &Ring, to: &Ring, n: u32) -> (u32, Counts) {
        let (slots, counts) = match self.most {
            None => (n, move_all(from, to, n, self.swap)),
            Some(most) => {
                let moved = move_short(from, to, n, self.swap, most);
                self.too_long += moved.too_long;
                (moved.slots, moved.counts)
            }
        };
        self.total.add(counts);
        (slots, counts)
    }
}

impl Mover for All {
    #[inline]
    fn move_slots(&mut self, from: &Ring, to: &Ring, n: u32) -> Result<u32, String> {
        Ok(self.move_packets(from, to, n).0)
    }
}

/// Movers that forward all packets, and may do more.
trait Forwards: Mover {
    fn all(&self) -> All;
}

impl Forwards for All {
    fn all(&self) -> All {
        *self
    }
}

fn main() -> ExitCode {
    let cli = tool_common::parse::<Cli>();
    cli.daemon.apply();
    let config = cli.check().map_err(Failure::Usage);
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

    let bridge = Bridge { config, ports: std::iter::once(&a).chain(&b).collect(), swap, header };
    #[cfg(feature = "apps")]
    {
        let names: Vec<&str> = bridge.ports.iter().map(|port| port.spec()).collect();
        if let Some(observer) = config.flows.start(&names, 1, header as usize, unetmap_flows::Reported::default())? {
            let observer = std::cell::RefCell::new(observer);
            let done = bridge.forward(stop, |all, source| flows::Observed { all, observer: &observer, source });
            return bridge.end(&done, Some(observer.into_inner().finish()));
        }
    }
    bridge.end(&bridge.forward(stop, |all, _| all), None)
}

/// The ports, and how packets move between them.
struct Bridge<'a> {
    config: &'a Config,
    /// Packets return to a single one.
    ports: Vec<&'a Port>,
    swap: bool,
    /// Bytes of the packets' virtio-net headers.
    header: u32,
}

/// A direction, and what was forwarded.
struct Way<'a> {
    from: &'a Port,
    to: &'a Port,
    all: All,
}

/// The packets of a run.
struct Done<'a> {
    result: Result<(), String>,
    ways: Vec<Way<'a>>,
    time: Duration,
    /// Slots that each port did not send.
    bad: Vec<u64>,
}

impl<'a> Bridge<'a> {
    /// Forwards until the stop flag is set, by movers for packets of the first port (0) and of the second (1).
    fn forward<M: Forwards>(&self, stop: &AtomicBool, mover: impl Fn(All, u16) -> M) -> Done<'a> {
        let Bridge { config, ports, swap, header } = self;
        let (a, other) = (ports[0], ports[ports.len() - 1]);
        let direction = |from, to, source| {
            let all = All { swap: *swap, most: limit(from, to, *header), total: Counts::default(), too_long: 0 };
            Direction { from, to, burst: config.burst, mover: mover(all, source) }
        };
        let mut directions = vec![direction(a, other, 0)];
        if ports.len() > 1 {
            directions.push(direction(other, a, 1));
        }
        let mode = if *swap { "zero copy" } else { "copy" };
        note(&format!("Ready to go, {} <-> {}, {mode}, burst {}", config.a, other.spec(), config.burst));

        let (begin, before) = (Instant::now(), bad_slots(ports));
        let result = forward(&mut directions, ports, stop);
        let time = begin.elapsed();
        drain(ports);
        let bad = bad_slots(ports).iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect();
        let ways = directions.into_iter().map(|Direction { from, to, mover, .. }| Way { from, to, all: mover.all() });
        Done { result, ways: ways.collect(), time, bad }
    }

    /// Prints the summary, with that of the flows, and what was not sent.
    fn end(&self, done: &Done<'_>, flows: Option<(Value, String)>) -> Result<ExitCode, Failure> {
        self.print_summary(done, flows);
        done.result.clone()?;
        let mut code = ExitCode::SUCCESS;
        for Way { to, all, .. } in done.ways.iter().filter(|way| way.all.too_long > 0) {
            let (name, n, most) = (to.spec(), all.too_long, all.most.unwrap_or(0));
            note(&format!(
                "bridge: {name}: {n} packets were dropped: it sends frames of at most {most} bytes (ip link set dev IF mtu N)"
            ));
            code = ExitCode::FAILURE;
        }
        for (port, bad) in self.ports.iter().zip(&done.bad).filter(|(_, bad)| **bad > 0) {
            note(&format!("bridge: {}", port::not_sent(port.spec(), *bad)));
            code = ExitCode::FAILURE;
        }
        Ok(code)
    }

    fn print_summary(&self, Done { ways, time, bad, .. }: &Done<'_>, flows: Option<(Value, String)>) {
        let mut total = Counts::default();
        ways.iter().for_each(|way| total.add(way.all.total));
        let seconds = time.as_secs_f64();
        let line = if self.config.json {
            let ways: Vec<_> = ways
                .iter()
                .map(|Way { from, to, all }| {
                    let Counts { packets, bytes } = all.total;
                    json!({"from": from.spec(), "to": to.spec(), "packets": packets, "bytes": bytes, "too_long": all.too_long})
                })
                .collect();
            let mut object = json!({
                "event": "summary", "packets": total.packets, "bytes": total.bytes, "seconds": seconds,
                "zero_copy": self.swap, "ways": ways, "bad_slots": bad.iter().sum::<u64>(),
            });
            link::add_down(&mut object);
            if let Some((flows, _)) = flows {
                object["flows"] = flows;
            }
            object.to_string()
        } else {
            let parts = ways
                .iter()
                .map(|Way { from, to, all }| format!("{} -> {} {}", from.spec(), to.spec(), all.total.packets));
            let parts: Vec<_> = parts.collect();
            if let Some((_, text)) = flows {
                note(&text);
            }
            let Counts { packets, bytes } = total;
            format!("Forwarded {packets} packets {bytes} bytes in {seconds:.2} seconds: {}", parts.join(", "))
        };
        print(&format!("{line}\n"));
    }
}

/// Slots that each port did not send.
fn bad_slots(ports: &[&Port]) -> Vec<u64> {
    ports.iter().map(|port| port::bad_slots(port)).collect()
}
