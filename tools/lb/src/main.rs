// SPDX-License-Identifier: BSD-2-Clause
//! lb: distributes the packets that a netmap port receives over pipes, by flow.
#![forbid(unsafe_code)]

mod flow;
mod group;
mod options;
mod queue;
mod report;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tool_common::forward::Wait;
use tool_common::rule::Rule;
use tool_common::{Failure, link, note, port, stop_on_signals, wait_for_link};
use unetmap::{Interest, Port};

use group::{Groups, Packet, Pipe};
use options::{Cli, Config};
use report::{Reporter, Totals};

/// The shortest poll that is not a busy wait.
const POLL_TIMEOUT: Duration = Duration::from_micros(1);
/// Longest wait at the end for the readers to release the forwarded packets.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of rounds between two readings of the clock while packets arrive.
const ROUNDS_PER_CLOCK_READ: u32 = 64;

fn main() -> ExitCode {
    let cli = tool_common::parse::<Cli>();
    cli.daemon.apply();
    let config = cli.check().map_err(Failure::Usage);
    tool_common::exit_code("lb", config.and_then(|config| run(&config)))
}

fn run(config: &Config) -> Result<ExitCode, Failure> {
    let stop = stop_on_signals()?;
    let source = open_source(config)?;
    let extra = source.extra_bufs() as usize;
    if source.extra_bufs() < config.extra_bufs {
        note(&format!("{}: got {extra} extra buffers in place of {}", source.spec(), config.extra_bufs));
    }
    let pipes = open_pipes(config, &source)?;
    let free = std::iter::from_fn(|| source.take_extra_buf()).take(extra).collect();
    let poll_timeout = if config.busy_wait { Duration::ZERO } else { POLL_TIMEOUT };
    let mut lb =
        LoadBalancer { source, groups: Groups::new(pipes, free), received: 0, batch: config.batch, poll_timeout };
    wait_for_link(config.wait, stop);
    note(&format!("Ready to go, {} to {} pipes", lb.source.spec(), lb.groups.pipes().count()));

    let begin = Instant::now();
    let result = lb.forward(config, stop);
    let time = begin.elapsed();
    lb.drain();
    // Buffers that are not returned would stay allocated until the daemon removes the region.
    for buffer in lb.groups.take_all_buffers() {
        lb.source.give_extra_buf(buffer);
    }
    Totals::of(lb.received, &lb.groups).print_summary(time, config.json);
    result?;
    Ok(ExitCode::SUCCESS)
}

fn open_source(config: &Config) -> Result<Port, Failure> {
    let source = link::open(&config.port, &Port::options().extra_bufs(config.extra_bufs))?;
    if source.rx_rings().is_empty() {
        return Err(Failure::Usage(format!("-i {}: the port has no receive rings; leave out /T", config.port)));
    }
    Ok(source)
}

/// Opens the sending ends of all pipes, in the region of the port.
fn open_pipes(config: &Config, source: &Port) -> Result<Vec<Vec<Pipe>>, Failure> {
    let extra = source.extra_bufs() as usize;
    let open = |spec: String| -> Result<Pipe, Failure> { Ok(Pipe::new(Port::open(&spec)?, extra)?) };
    let group = |group: &options::GroupConfig| (0..group.pipes).map(|i| open(group.spec(i, source.mem_id()))).collect();
    config.groups.iter().map(group).collect()
}

/// The port, the pipes, and their state.
struct LoadBalancer {
    source: Port,
    groups: Groups,
    /// Number of received packets, including those dropped later.
    received: u64,
    /// Maximum number of slots taken from a ring per round.
    batch: u32,
    /// Timeout of the poll of the port. If it is not zero, the library pauses between polls of an interface, so that
    /// the kernel and readers on this core can run.
    poll_timeout: Duration,
}

impl LoadBalancer {
    /// Forwards packets until the stop flag is set.
    fn forward(&mut self, config: &Config, stop: &AtomicBool) -> Result<(), String> {
        let mut reporters: Vec<Reporter> = Vec::new();
        reporters.extend(config.stdout.map(|period| Reporter::stdout(period, config.json)));
        reporters.extend(config.syslog.map(|period| Reporter::syslog(period, config.json)));
        let (mut wait, mut rounds) = (Wait::default(), 0);
        while !stop.load(Relaxed) {
            let moved = self.round(&config.steer)?;
            rounds += 1;
            if moved && rounds < ROUNDS_PER_CLOCK_READ {
                wait.restart();
                continue;
            }
            rounds = 0;
            let now = Instant::now();
            for reporter in &mut reporters {
                reporter.tick(now, &|| Totals::of(self.received, &self.groups));
            }
            if moved {
                wait.restart();
            } else if config.busy_wait || wait.spins() {
                std::hint::spin_loop();
            } else {
                self.sleep()?;
                wait.restart();
            }
        }
        Ok(())
    }

    /// Syncs all ports once and moves packets, almost without waiting. Returns true if any packet moved.
    fn round(&mut self, rules: &[(Rule, usize)]) -> Result<bool, String> {
        // Releases the slots of the previous round, and receives new packets.
        self.source.poll(Interest::RX, Some(self.poll_timeout)).map_err(|e| e.to_string())?;
        let mut moved = false;
        for ring in self.source.rx_rings() {
            let (space, mut at, mut taken) = (ring.space(), ring.head(), 0);
            while taken < space.min(self.batch) {
                let packet = Packet::first(ring, at, space - taken, rules);
                at = packet.end();
                taken += packet.slots();
                self.received += 1;
                self.groups.first().deliver(packet);
            }
            moved |= taken > 0;
            ring.advance(taken);
        }
        Ok(self.groups.sync()? || moved)
    }

    /// Sleeps until packets arrive, or a reader releases packets while others wait for room or for the next group.
    fn sleep(&self) -> Result<(), String> {
        let blocked = || self.groups.pipes().filter(|pipe| pipe.needs_release());
        blocked().for_each(Pipe::wait_for_more_room);
        let interests: Vec<(&Port, Interest)> = std::iter::once((&self.source, Interest::RX))
            .chain(blocked().map(|pipe| (&pipe.port, Interest::TX)))
            .collect();
        port::wait_any(&interests, None)
    }

    /// Waits until the readers have released the forwarded packets and the queues are empty, at most [`DRAIN_TIMEOUT`].
    fn drain(&mut self) {
        let until = Instant::now() + DRAIN_TIMEOUT;
        // Errors only end the wait: a failed port no longer has a reader.
        while self.source.rxsync().is_ok() && self.groups.sync().is_ok() {
            let done = |pipe: &Pipe| !pipe.needs_release() && !pipe.port.tx_rings().iter().any(unetmap::Ring::pending);
            if self.groups.pipes().all(done) || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
