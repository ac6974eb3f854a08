//! lb: spreads what a netmap port receives over pipes, flow by flow.
#![forbid(unsafe_code)]

mod flow;
mod group;
mod options;
mod overflow;
mod report;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Parser as _;
use tool_common::rule::Rule;
use tool_common::{Failure, note, port, stop_on_signals, wait_for_link};
use unetmap::{Interest, Port};

use group::{Groups, Packet, Pipe};
use options::{Cli, Config};
use report::{Reporter, Totals};

/// How long everything may be idle before the process sleeps: about what a sleep and a wake-up cost.
const SPIN: Duration = Duration::from_micros(50);
/// The shortest time that is one.
const LOOK: Duration = Duration::from_micros(1);
/// How long the end waits for the readers to take what was forwarded.
const DRAIN: Duration = Duration::from_millis(500);
/// Rounds between two looks at the clock while packets come.
const ROUNDS: u32 = 64;

fn main() -> ExitCode {
    let config = Cli::parse().check().map_err(Failure::Usage);
    tool_common::end("lb", config.and_then(|config| run(&config)))
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
    let patience = if config.busy_wait { Duration::ZERO } else { LOOK };
    let mut lb = Lb { source, groups: Groups::new(pipes, free), received: 0, batch: config.batch, patience };
    wait_for_link(config.wait, stop);
    note(&format!("Ready to go, {} to {} pipes", lb.source.spec(), lb.groups.pipes().count()));

    let begin = Instant::now();
    let result = lb.spread(config, stop);
    let time = begin.elapsed();
    lb.drain();
    // Else the daemon would hold them back until the region ends.
    for buffer in lb.groups.give_up() {
        lb.source.give_extra_buf(buffer);
    }
    Totals::of(lb.received, &lb.groups).summary(time, config.json);
    result?;
    Ok(ExitCode::SUCCESS)
}

fn open_source(config: &Config) -> Result<Port, Failure> {
    let source = Port::options().extra_bufs(config.extra_bufs).open(&config.port)?;
    if source.rx_rings().is_empty() {
        return Err(Failure::Usage(format!("-i {}: it has no receive rings; leave out /T", config.port)));
    }
    Ok(source)
}

/// The sending ends of all pipes, in the region of the port.
fn open_pipes(config: &Config, source: &Port) -> Result<Vec<Vec<Pipe>>, Failure> {
    let extra = source.extra_bufs() as usize;
    let open = |spec: String| -> Result<Pipe, Failure> {
        let port = Port::open(&spec)?;
        if !port.same_region(source) {
            return Err(Failure::Work(format!(
                "{spec} is not in the region of {}: whoever opened the other end first chose another one; open it later",
                source.spec()
            )));
        }
        Ok(Pipe::new(port, extra)?)
    };
    let group = |group: &options::GroupConfig| (0..group.pipes).map(|i| open(group.spec(i, source.mem_id()))).collect();
    config.groups.iter().map(group).collect()
}

/// The work.
struct Lb {
    source: Port,
    groups: Groups,
    /// Packets, those that were dropped among them.
    received: u64,
    /// Slots.
    batch: u32,
    /// How long a look at the port may take. If it may at all, the library rests between looks at an interface, and the
    /// kernel, and readers on this core, get on.
    patience: Duration,
}

impl Lb {
    /// Works until the flag is raised.
    fn spread(&mut self, config: &Config, stop: &AtomicBool) -> Result<(), String> {
        let mut reporters: Vec<Reporter> = Vec::new();
        reporters.extend(config.stdout.map(|every| Reporter::stdout(every, config.json)));
        reporters.extend(config.syslog.map(|every| Reporter::syslog(every, config.json)));
        let (mut idle_since, mut rounds) = (None, 0);
        while !stop.load(Relaxed) {
            let moved = self.round(&config.steer)?;
            rounds += 1;
            if moved && rounds < ROUNDS {
                idle_since = None;
                continue;
            }
            rounds = 0;
            let now = Instant::now();
            for reporter in &mut reporters {
                reporter.tick(now, &|| Totals::of(self.received, &self.groups));
            }
            let since = *idle_since.get_or_insert(now);
            if moved {
                idle_since = None;
            } else if config.busy_wait || now.saturating_duration_since(since) < SPIN {
                std::hint::spin_loop();
            } else {
                self.sleep()?;
                idle_since = None;
            }
        }
        Ok(())
    }

    /// One look at all ports, which hardly waits. Returns whether anything moved.
    fn round(&mut self, rules: &[(Rule, usize)]) -> Result<bool, String> {
        // Gives back the slots that were read, and takes what has come.
        self.source.poll(Interest::RX, Some(self.patience)).map_err(|e| e.to_string())?;
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
        Ok(self.groups.work()? || moved)
    }

    /// Sleeps until packets come, or a reader makes room for those that wait or are to go on.
    fn sleep(&self) -> Result<(), String> {
        let waiting = || self.groups.pipes().filter(|pipe| pipe.wants_room());
        waiting().for_each(Pipe::wait_for_more_room);
        let wants: Vec<(&Port, Interest)> = std::iter::once((&self.source, Interest::RX))
            .chain(waiting().map(|pipe| (&pipe.port, Interest::TX)))
            .collect();
        port::sleep(&wants)
    }

    /// Gives the readers a moment to take what was forwarded, and the queues to empty.
    fn drain(&mut self) {
        let until = Instant::now() + DRAIN;
        // A port that fails here is gone, and with it whoever would have received.
        while self.source.rxsync().is_ok() && self.groups.work().is_ok() {
            let done = |pipe: &Pipe| !pipe.wants_room() && !pipe.port.tx_rings().iter().any(unetmap::Ring::pending);
            if self.groups.pipes().all(done) || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
