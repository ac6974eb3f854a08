//! What `unetmap bench` measures, and against what.
//!
//! A virtual machine moves its processors about, which changes every two-core figure several times over. So a figure
//! means something only beside another that was taken in the same moments: each benchmark takes turns with its peers
//! in one run, and each sample carries the distance of the cores, probed just before and just after it
//! ([`Class`]). Samples of different classes are never compared.
//!
//! ```text
//!   probe  pkt-gen tx -> rx, 60 ms  probe | probe  seqpacket, 60 ms  probe | --peer command | probe  pkt-gen ...
//! ```
#![forbid(unsafe_code)]

mod behind;
mod contest;
mod daemon;
mod host;
mod nic;
mod node;
mod one_core;
mod peer;
mod pkt_gen;
mod preload;
mod probe;
mod program;
mod report;
mod rtt;
mod seqpacket;
mod session;
mod stats;
mod vale;

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::rc::Rc;
use std::str::FromStr;
use std::time::{Duration, Instant};

use contest::{Goal, Outcome, RowName, Side, Tally, Turn};
use host::{Hosts, Way};
use nic::pcap::{Programs, Task};
use nic::{Nics, Who};
use node::Noded;
pub use peer::Peer;
use pkt_gen::Pair;
use preload::Preloaded;
use probe::Cores;
pub use report::align;
use seqpacket::Window;
pub use stats::Class;
use stats::Sample;
use unetmap::Port;
use vale::{Switch, Traffic};

/// What our own side is called in the results.
const US: &str = "unetmap";
/// What pkt-gen is called beside a program that is preloaded.
const NATIVE: &str = "native";
/// What the program is called that `unetmap run` runs, beside one on the node.
const PRELOAD: &str = "preload";
/// What a pipe is called beside a switch, and a switch without idle ports beside one with some.
const PIPE: &str = "pipe";
const ALONE: &str = "alone";
/// What the C library's own call is called.
const LIBC: &str = "libc";
/// The sender's batches that `pipe-batch` goes through, packets.
const BATCHES: [u32; 5] = [1, 8, 64, 256, 512];
/// Those of `preload-pipe`.
const FEW_BATCHES: [u32; 3] = [1, 64, 512];
/// How long the built-in peer runs for one sample; as long as pkt-gen does.
const PEER_WINDOW: Window = Window { warm_up: Duration::from_millis(20), measure: Duration::from_millis(60) };

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// Two processes, 60 B, 1024 slots, batches of 512, through pkt-gen.
    Pipe,
    /// The same with the sender's batch 1, 8, 64, 256 and 512: a row each.
    PipeBatch,
    /// Both ends in one thread, batches of 512, through the library: rate, and core cycles a packet.
    PipeOneCore,
    /// The mean round trip of one packet, two threads, through the library, payload untouched, both sides awake.
    PipeRtt,
    /// The median round trip between two pkt-gen processes, ping and pong, which write and read a time stamp.
    PipePing,
    /// Two processes of a C program that is preloaded, with batches of 1, 64 and 512, against pkt-gen: a row each.
    PreloadPipe,
    /// A `poll` of a file that is not netmap's, in such a program, and what it costs more than without the library.
    PreloadPoll,
    /// Two processes of that program, linked statically, on the node, with batches of 512, against pkt-gen.
    NodePipe,
    /// A `poll` there that finds something ready, with the daemon on the same core, against one with `unetmap run`.
    NodePoll,
    /// 60 B over a switch, from one pkt-gen to another; the part that was lost; and the highest rate without loss.
    Vale60Copy,
    /// The same with 512 B.
    Vale512Copy,
    /// The same with 1500 B.
    Vale1500Copy,
    /// 60 B between ports that share a region.
    Vale60Swap,
    /// Sender, switch and receiver on one core.
    Vale1Core,
    /// 60 B to 16 addresses behind four receivers.
    ValeFan,
    /// The median round trip over a switch, awake and asleep, beside a pipe's.
    ValeRtt,
    /// 60 B over a switch with 64 more ports that do nothing.
    ValeIdlePorts,
    /// 60 B out of one queue of an interface, through pkt-gen.
    NicTx,
    /// What pkt-gen receives at an interface whose other end sends as fast as it can.
    NicRx,
    /// What `bridge` moves from one interface to another.
    NicFwd,
    /// What TCP carries through `bridge` between an interface and the host's stack, each way.
    HostTcp,
    /// A ping's round trip there.
    HostRtt,
    /// A program of libpcap's on a switch, a pipe and an interface, and with the system's libpcap: a row for each task.
    Pcap,
    /// What `lb` moves from an interface to the reader of four pipes.
    Lb,
    /// What the example `scrubber` takes off an interface when nine packets of ten are bad.
    Scrub,
}

impl Bench {
    /// All there are.
    pub const ALL: [Bench; 25] = [
        Bench::Pipe,
        Bench::PipeBatch,
        Bench::PipeOneCore,
        Bench::PipeRtt,
        Bench::PipePing,
        Bench::PreloadPipe,
        Bench::PreloadPoll,
        Bench::NodePipe,
        Bench::NodePoll,
        Bench::Vale60Copy,
        Bench::Vale512Copy,
        Bench::Vale1500Copy,
        Bench::Vale60Swap,
        Bench::Vale1Core,
        Bench::ValeFan,
        Bench::ValeRtt,
        Bench::ValeIdlePorts,
        Bench::NicTx,
        Bench::NicRx,
        Bench::NicFwd,
        Bench::HostTcp,
        Bench::HostRtt,
        Bench::Pcap,
        Bench::Lb,
        Bench::Scrub,
    ];

    /// As the command line and the results call it.
    pub fn name(self) -> &'static str {
        match self {
            Bench::Pipe => "pipe",
            Bench::PipeBatch => "pipe-batch",
            Bench::PipeOneCore => "pipe-1core",
            Bench::PipeRtt => "pipe-rtt",
            Bench::PipePing => "pipe-ping",
            Bench::PreloadPipe => "preload-pipe",
            Bench::PreloadPoll => "preload-poll",
            Bench::NodePipe => "node-pipe",
            Bench::NodePoll => "node-poll",
            Bench::Vale60Copy => "vale-60-copy",
            Bench::Vale512Copy => "vale-512-copy",
            Bench::Vale1500Copy => "vale-1500-copy",
            Bench::Vale60Swap => "vale-60-swap",
            Bench::Vale1Core => "vale-1core",
            Bench::ValeFan => "vale-fan",
            Bench::ValeRtt => "vale-rtt",
            Bench::ValeIdlePorts => "vale-idle-ports",
            Bench::NicTx => "nic-tx",
            Bench::NicRx => "nic-rx",
            Bench::NicFwd => "nic-fwd",
            Bench::HostTcp => "host-tcp",
            Bench::HostRtt => "host-rtt",
            Bench::Pcap => "pcap",
            Bench::Lb => "lb",
            Bench::Scrub => "scrub",
        }
    }

    /// Whether it is about a switch, and brings its own daemon.
    fn is_vale(self) -> bool {
        self.traffic().is_some() || matches!(self, Bench::ValeFan | Bench::ValeRtt)
    }

    /// What goes over a switch, where that is one stream.
    fn traffic(self) -> Option<Traffic> {
        let len = match self {
            Bench::Vale512Copy => 512,
            Bench::Vale1500Copy => 1500,
            Bench::Vale60Copy | Bench::Vale60Swap | Bench::Vale1Core | Bench::ValeIdlePorts => 60,
            _ => return None,
        };
        let idle = if self == Bench::ValeIdlePorts { vale::IDLE } else { 0 };
        Some(Traffic { len, rate: None, share: self == Bench::Vale60Swap, idle })
    }

    /// Whether it is asked how fast packets may come that none is lost.
    fn may_lose(self) -> bool {
        matches!(self, Bench::Vale60Copy | Bench::Vale512Copy | Bench::Vale1500Copy)
    }

    /// Whether it needs interfaces, and so namespaces, and so root.
    fn is_nic(self) -> bool {
        self == Bench::Pcap || !Who::all(self).is_empty()
    }

    /// Whether it needs a daemon for pipes.
    fn is_pipe(self) -> bool {
        !self.is_nic() && !self.is_vale() && !host::is_host(self)
    }
}

impl FromStr for Bench {
    type Err = String;

    fn from_str(text: &str) -> Result<Bench, String> {
        Bench::ALL.into_iter().find(|b| b.name() == text).ok_or_else(|| {
            let names = Bench::ALL.map(Bench::name).join(", ");
            format!("no such benchmark (there are {names})")
        })
    }
}

/// What to run and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// In this order.
    pub benches: Vec<Bench>,
    /// Samples that each side needs in one class, 1 or more.
    pub samples: u32,
    /// No sample begins after this time; a limit for each benchmark; in `pipe-batch`, `preload-pipe` and `pcap` for each
    /// row.
    pub limit: Duration,
    /// Who else is measured in turns with us, beside the built-in peer.
    pub peers: Vec<Peer>,
    /// JSON lines instead of a table.
    pub json: bool,
}

/// Runs the benchmarks and prints what they find to standard output; returns the exit status: 0, or 1 when a peer
/// failed (the rest was printed).
///
/// # Errors
/// A sentence: bad options, no second processor, a port that cannot be opened, pkt-gen missing or failing; for `nic-*`
/// and `host-*` no right to make network namespaces; for `node-*` no node; no C compiler.
pub fn run(options: &Options) -> Result<u8, String> {
    check(options)?;
    let cores = Cores::first_two()?;
    if let Some(code) = session::leave_group() {
        return Ok(code);
    }
    let _keep = if !options.benches.iter().any(|bench| bench.is_pipe()) {
        None
    } else {
        // Starts the daemon, at normal priority, and keeps it: one that ends and comes again would disturb a sample.
        let spec = format!("netmap:bench{}-keep{{1", std::process::id());
        Some(Port::open(&spec).map_err(|e| e.to_string())?)
    };
    session::raise();
    // Before anything is measured that would be lost. These daemons move packets, so they have our priority.
    let networks = Networks::of(&options.benches, cores)?;
    let mut findings = Vec::new();
    let mut code = 0;
    for contest in options.benches.iter().flat_map(|&bench| contests(bench)) {
        let outcome = contest.hold(options, cores, &networks)?;
        for sentence in &outcome.missing {
            eprintln!("{}: {sentence}", contest.name);
        }
        for sentence in &outcome.failures {
            eprintln!("{sentence}");
            code = 1;
        }
        let found = report::findings(&outcome);
        if options.json {
            for finding in &found {
                print(&format!("{}\n", report::json(finding)?))?;
            }
        }
        findings.extend(found);
    }
    if !options.json {
        print(&report::table(&findings))?;
    }
    Ok(code)
}

/// What benchmarks about interfaces need.
struct Networks {
    nics: Option<Rc<Nics>>,
    hosts: Option<Rc<Hosts>>,
}

impl Networks {
    fn of(benches: &[Bench], cores: Cores) -> Result<Networks, String> {
        let first = |kind: fn(Bench) -> bool| benches.iter().copied().find(|bench| kind(*bench));
        let failed = |bench: Bench| move |e: String| format!("bench {}: {e}", bench.name());
        let nics =
            first(Bench::is_nic).map(|bench| Nics::new(cores).and_then(Nics::with_daemons).map_err(failed(bench)));
        let hosts = first(host::is_host).map(|bench| Hosts::new().map_err(failed(bench)));
        Ok(Networks { nics: nics.transpose()?.map(Rc::new), hosts: hosts.transpose()?.map(Rc::new) })
    }
}

fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| format!("bench: standard output: {e}"))
}

fn check(options: &Options) -> Result<(), String> {
    if options.samples == 0 {
        return Err("--samples 0: at least 1 is needed".into());
    }
    if options.limit.is_zero() {
        return Err("--seconds 0: at least 1 is needed".into());
    }
    let mut labels = BTreeSet::from([US, seqpacket::LABEL, NATIVE, PRELOAD, PIPE, ALONE, LIBC]);
    labels.extend(options.benches.iter().flat_map(|&bench| Who::all(bench)).map(|who| who.label()));
    labels.extend(options.benches.iter().filter(|bench| host::is_host(**bench)).map(|_| host::CABLE));
    if options.benches.contains(&Bench::Pcap) {
        labels.extend(Task::ALL.into_iter().flat_map(Task::sides).map(|(label, _)| *label));
    }
    match options.peers.iter().find(|p| !labels.insert(&p.label)) {
        Some(twice) => Err(format!("--peer {}: this label is taken; choose another", twice.label)),
        None => Ok(()),
    }
}

/// One row group measured against its peers.
struct Contest {
    bench: Bench,
    name: String,
    /// The sender's batch, packets.
    batch: u32,
    /// Ours, where it is about the host's stack.
    way: Way,
    /// Of a switch: the highest rate without loss is looked for.
    clean: bool,
    /// Of `pcap`.
    task: Option<Task>,
}

fn contests(bench: Bench) -> Vec<Contest> {
    let contest = |name: String, batch| Contest { bench, name, batch, way: Way::Native, clean: false, task: None };
    match bench {
        Bench::HostTcp | Bench::HostRtt => {
            let ours = Way::OURS.into_iter();
            ours.map(|(way, end)| Contest { way, ..contest(format!("{}{end}", bench.name()), 1024) }).collect()
        }
        _ if bench.may_lose() => {
            let clean = Contest { clean: true, ..contest(format!("{}-clean", bench.name()), 512) };
            vec![contest(bench.name().into(), 512), clean]
        }
        Bench::PipeBatch => BATCHES.map(|batch| contest(format!("{}-{batch}", bench.name()), batch)).into(),
        Bench::PreloadPipe => FEW_BATCHES.map(|batch| contest(format!("{}-{batch}", bench.name()), batch)).into(),
        Bench::PipeRtt | Bench::PipePing | Bench::ValeRtt => vec![contest(bench.name().into(), 1)],
        Bench::Pcap => {
            let of = |task: Task| Contest { task: Some(task), ..contest(task.name().into(), 512) };
            Task::ALL.map(of).into()
        }
        _ => vec![contest(bench.name().into(), 512)],
    }
}

impl Contest {
    fn rows(&self) -> Vec<RowName> {
        let row = |suffix: &str, unit| RowName { name: format!("{}{suffix}", self.name), unit };
        match self.bench {
            Bench::PipeOneCore => vec![row("", "Mpps"), row("-cycles", "cycles")],
            Bench::PipeRtt | Bench::PipePing | Bench::NodePoll => vec![row("", "ns")],
            Bench::PreloadPoll => vec![row("", "ns"), row("-added", "ns")],
            Bench::HostTcp | Bench::HostRtt => host::rows(self.bench, &self.name),
            Bench::ValeRtt => vec![row("", "ns"), row("-asleep", "ns")],
            _ if self.bench.may_lose() && !self.clean => vec![row("", "Mpps"), row("-lost", "%")],
            Bench::Pcap if self.task == Some(Task::Tcpdump) => vec![row("", "Mpps"), row("-arrived", "%")],
            _ => vec![row("", "Mpps")],
        }
    }

    fn hold(&self, options: &Options, cores: Cores, networks: &Networks) -> Result<Outcome, String> {
        let nics = networks.nics.as_ref();
        let (rows, environment) = (self.rows(), self.environment(networks));
        let mut sides = match (nics.filter(|_| self.bench.is_nic()), &networks.hosts) {
            (Some(nics), _) => match self.task {
                Some(task) => self.pcap_sides(task, cores, nics)?,
                None => self.nic_sides(cores, nics),
            },
            (None, Some(hosts)) if host::is_host(self.bench) => self.host_sides(cores, hosts),
            _ => std::iter::once(self.ours(cores)).chain(self.other(cores).transpose()).collect::<Result<_, _>>()?,
        };
        for peer in &options.peers {
            sides.push(Box::new(Outside { peer, contest: self, environment: &environment }));
        }
        let goal = Goal { samples: options.samples, limit: options.limit };
        let start = Instant::now();
        let terminal = std::io::stderr().is_terminal();
        let mut progress = |tallies: &[Tally], time: Duration| {
            if terminal {
                eprint!("\r\x1b[K{}", progress_line(&self.name, tallies, goal, time));
            }
        };
        let outcome = contest::hold(rows, &mut sides, goal, &mut || start.elapsed(), &mut progress);
        if terminal {
            eprint!("\r\x1b[K");
        }
        outcome
    }

    /// What the commands of others are told.
    fn environment(&self, networks: &Networks) -> Vec<(&'static str, String)> {
        let mut environment = vec![("BENCH", self.name.clone()), ("BATCH", self.batch.to_string())];
        environment.extend(self.bench.traffic().map(|traffic| ("LEN", traffic.len.to_string())));
        environment.extend(networks.nics.iter().flat_map(|nics| nics.environment()));
        environment.extend(networks.hosts.iter().flat_map(|hosts| hosts.environment()));
        environment
    }

    fn nic_sides(&self, cores: Cores, nics: &Rc<Nics>) -> Vec<Box<dyn Side>> {
        let mut sides = Vec::new();
        for &who in Who::all(self.bench) {
            if let Some(why) = nics.lacks(who) {
                eprintln!("{}: {} is left out: {why}", self.name, who.label());
                continue;
            }
            let (bench, nics) = (self.bench, Rc::clone(nics));
            sides.push(Inside::boxed(who.label(), cores, move || Ok(vec![nics.measure(bench, who)?])));
        }
        sides
    }

    fn host_sides(&self, cores: Cores, hosts: &Rc<Hosts>) -> Vec<Box<dyn Side>> {
        let side = |way: Way| {
            let (bench, hosts) = (self.bench, Rc::clone(hosts));
            Inside::boxed(way.label(), cores, move || hosts.measure(bench, way))
        };
        vec![side(self.way), side(Way::Cable)]
    }

    fn pcap_sides(&self, task: Task, cores: Cores, nics: &Rc<Nics>) -> Result<Vec<Box<dyn Side>>, String> {
        if let Some(why) = Programs::lacks(task) {
            return Err(format!("{}: {why}", self.name));
        }
        let programs = Programs::new(nics)?;
        let side = |&(label, seat)| {
            let programs = Rc::clone(&programs);
            Inside::boxed(label, cores, move || programs.measure(task, seat))
        };
        Ok(task.sides().iter().map(side).collect())
    }

    fn ours(&self, cores: Cores) -> Result<Box<dyn Side>, String> {
        let batch = self.batch;
        if let Some(traffic) = self.bench.traffic() {
            return self.crossing(US, cores, traffic);
        }
        Ok(match self.bench {
            Bench::ValeFan => {
                let switch = Switch::new(cores)?;
                Inside::boxed(US, cores, move || Ok(vec![switch.fan()?]))
            }
            Bench::ValeRtt => {
                let switch = Switch::new(cores)?;
                Inside::boxed(US, cores, move || {
                    [false, true].map(|asleep| switch.round_trip(asleep)).into_iter().collect()
                })
            }
            Bench::PipeRtt => Inside::boxed(US, cores, move || Ok(vec![rtt::round_trip(cores, PEER_WINDOW)?])),
            Bench::PipePing => {
                let pair = Pair { program: pkt_gen::find()?, cores };
                Inside::boxed(US, cores, move || Ok(vec![pair.round_trip()?]))
            }
            Bench::PipeOneCore => Inside::boxed(US, cores, move || {
                let rate = one_core::run(cores.tx, one_core::WINDOW)?;
                Ok(vec![rate.mpps, rate.cycles_per_packet])
            }),
            Bench::PreloadPipe => {
                let program = Preloaded::new(cores)?;
                Inside::boxed(US, cores, move || Ok(vec![program.rate(batch)?]))
            }
            Bench::PreloadPoll => {
                let program = Preloaded::new(cores)?;
                Inside::boxed(US, cores, move || program.other_poll().map(|[with, bare]| vec![with, with - bare]))
            }
            Bench::NodePipe => {
                let node = Noded::new(cores)?;
                Inside::boxed(US, cores, move || Ok(vec![node.rate(batch)?]))
            }
            Bench::NodePoll => {
                let node = Noded::new(cores)?;
                Inside::boxed(US, cores, move || Ok(vec![node.ready_poll()?]))
            }
            _ => self.pkt_gen(US, cores)?,
        })
    }

    fn pkt_gen(&self, label: &'static str, cores: Cores) -> Result<Box<dyn Side>, String> {
        let (pair, batch) = (Pair { program: pkt_gen::find()?, cores }, self.batch);
        Ok(Inside::boxed(label, cores, move || Ok(vec![pair.rate(batch)?])))
    }

    /// One sender, one receiver, and a switch between them.
    fn crossing(&self, label: &'static str, cores: Cores, traffic: Traffic) -> Result<Box<dyn Side>, String> {
        let one = Cores { rx: cores.tx, ..cores };
        let switch = Switch::new(if self.bench == Bench::Vale1Core { one } else { cores })?;
        let (clean, lossy) = (self.clean, self.bench.may_lose());
        Ok(Inside::boxed(label, cores, move || {
            if clean {
                return Ok(vec![switch.clean_rate(traffic)?]);
            }
            let crossed = switch.cross(traffic)?;
            Ok(if lossy { vec![crossed.mpps, 100.0 * crossed.lost] } else { vec![crossed.mpps] })
        }))
    }

    /// Who is measured beside us, if somebody is.
    fn other(&self, cores: Cores) -> Result<Option<Box<dyn Side>>, String> {
        Ok(Some(match self.bench {
            Bench::ValeIdlePorts => {
                let traffic = self.bench.traffic().map(|traffic| Traffic { idle: 0, ..traffic });
                return traffic.map(|traffic| self.crossing(ALONE, cores, traffic)).transpose();
            }
            Bench::ValeRtt => {
                let switch = Switch::new(cores)?;
                let both = move || [false, true].map(|asleep| switch.pipe_round_trip(asleep)).into_iter().collect();
                Inside::boxed(PIPE, cores, both)
            }
            bench if bench.is_vale() => return Ok(None),
            Bench::PreloadPipe | Bench::NodePipe => self.pkt_gen(NATIVE, cores)?,
            Bench::NodePoll => {
                let program = Preloaded::new(cores)?;
                Inside::boxed(PRELOAD, cores, move || Ok(vec![program.ready_poll()?]))
            }
            Bench::PreloadPoll => {
                let program = Preloaded::new(cores)?;
                Inside::boxed(LIBC, cores, move || program.other_poll().map(|[_, bare]| vec![bare]))
            }
            _ => self.seqpacket(cores),
        }))
    }

    fn seqpacket(&self, cores: Cores) -> Box<dyn Side> {
        let label = seqpacket::LABEL;
        match self.bench {
            Bench::PipeRtt => {
                Inside::boxed(label, cores, move || Ok(vec![seqpacket::mean_round_trip(cores, PEER_WINDOW)?]))
            }
            Bench::PipePing => {
                Inside::boxed(label, cores, move || Ok(vec![seqpacket::median_round_trip(cores, PEER_WINDOW)?]))
            }
            Bench::PipeOneCore => Inside::boxed(label, cores, move || {
                let ghz = seqpacket::on_core(cores.tx, || Ok(probe::core_ghz()))?;
                let mpps = seqpacket::rate_one_core(cores.tx, one_core::WINDOW)?;
                Ok(vec![mpps, ghz * 1e3 / mpps])
            }),
            _ => Inside::boxed(label, cores, move || Ok(vec![seqpacket::rate(cores, PEER_WINDOW)?])),
        }
    }
}

fn progress_line(name: &str, tallies: &[Tally], goal: Goal, time: Duration) -> String {
    let mut line = format!("{name} {:.0} s", time.as_secs_f64());
    for tally in tallies {
        let [near, far] = Class::ALL.map(|class| tally.count(class));
        line += &format!(", {} L {near} R {far}", tally.label);
    }
    line + &format!(" of {}", goal.samples)
}

/// A side that is measured in this program, or by programs that it starts: probed before and after.
struct Inside<F> {
    label: &'static str,
    cores: Cores,
    /// One value for each row.
    measure: F,
}

impl<F: FnMut() -> Result<Vec<f64>, String> + 'static> Inside<F> {
    fn boxed(label: &'static str, cores: Cores, measure: F) -> Box<dyn Side> {
        Box::new(Inside { label, cores, measure })
    }
}

impl<F: FnMut() -> Result<Vec<f64>, String>> Side for Inside<F> {
    fn turn(&mut self) -> Result<Turn, String> {
        session::check()?;
        let before = probe::core_distance(self.cores)?;
        let values = (self.measure)()?;
        if probe::core_distance(self.cores)? != before {
            return Ok(Turn::new());
        }
        Ok(values.into_iter().enumerate().map(|(row, value)| (row, before, Sample::one(value))).collect())
    }

    fn label(&self) -> &str {
        self.label
    }
}

/// A peer's command, which probes for itself.
struct Outside<'a> {
    peer: &'a Peer,
    contest: &'a Contest,
    environment: &'a [(&'static str, String)],
}

impl Side for Outside<'_> {
    fn turn(&mut self) -> Result<Turn, String> {
        session::check()?;
        let found = peer::run(self.peer, self.environment)?;
        found.into_iter().map(|row| self.place(row)).collect()
    }

    fn label(&self) -> &str {
        &self.peer.label
    }
}

impl Outside<'_> {
    /// Finds our row that a peer's row is to be compared with: the one of the same unit.
    fn place(&self, found: peer::Row) -> Result<(usize, Class, Sample), String> {
        let rows = self.contest.rows();
        match rows.iter().position(|row| row.unit == found.unit) {
            Some(row) => Ok((row, found.class, found.sample)),
            None => {
                let units: Vec<_> = rows.iter().map(|row| row.unit).collect();
                let (label, unit) = (&self.peer.label, found.unit);
                Err(format!("--peer {label}: its unit is {unit:?}, and here it must be {}", units.join(" or ")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options { benches: vec![], samples: 7, limit: Duration::from_secs(1), peers: vec![], json: true }
    }

    #[test]
    fn benches_have_names() {
        for bench in Bench::ALL {
            assert_eq!(bench.name().parse(), Ok(bench));
        }
        let message = "pipes".parse::<Bench>().unwrap_err();
        assert_eq!(
            message,
            "no such benchmark (there are pipe, pipe-batch, pipe-1core, pipe-rtt, pipe-ping, preload-pipe, preload-poll, \
             node-pipe, node-poll, vale-60-copy, vale-512-copy, vale-1500-copy, vale-60-swap, vale-1core, vale-fan, \
             vale-rtt, vale-idle-ports, nic-tx, nic-rx, nic-fwd, host-tcp, host-rtt, pcap, lb, scrub)"
        );
        let names: Vec<_> = contests(Bench::PipeBatch).into_iter().map(|c| (c.name, c.batch)).collect();
        assert_eq!(names[0], ("pipe-batch-1".into(), 1));
        assert_eq!(names[4], ("pipe-batch-512".into(), 512));
        let rows: Vec<_> = contests(Bench::HostTcp).iter().flat_map(Contest::rows).map(|row| row.name).collect();
        assert_eq!(rows, ["host-tcp-out", "host-tcp-in", "host-tcp-mark-out", "host-tcp-mark-in"]);
    }

    #[test]
    fn bad_options_are_refused() {
        let peer = |text: &str| text.parse::<Peer>().unwrap();
        let cases = [
            (Options { samples: 0, ..options() }, "--samples 0"),
            (Options { limit: Duration::ZERO, ..options() }, "--seconds 0"),
            (Options { peers: vec![peer("seqpacket=x")], ..options() }, "--peer seqpacket: this label is taken"),
            (Options { peers: vec![peer("a=x"), peer("a=y")], ..options() }, "--peer a: this label is taken"),
            (
                Options { benches: vec![Bench::NicTx], peers: vec![peer("afxdp=x")], ..options() },
                "--peer afxdp: this label is taken",
            ),
        ];
        for (options, part) in cases {
            let message = run(&options).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(check(&options()), Ok(()));
    }

    #[test]
    fn a_peer_is_compared_by_unit() {
        let peer: Peer = "p=x".parse().unwrap();
        let contest = &contests(Bench::PipeOneCore)[0];
        let side = Outside { peer: &peer, contest, environment: &[] };
        let row = |unit: &str| peer::Row { class: Class::R, unit: unit.into(), sample: Sample::one(2.0) };
        assert_eq!(side.place(row("Mpps")), Ok((0, Class::R, Sample::one(2.0))));
        assert_eq!(side.place(row("cycles")), Ok((1, Class::R, Sample::one(2.0))));
        assert_eq!(
            side.place(row("ns")).unwrap_err(),
            "--peer p: its unit is \"ns\", and here it must be Mpps or cycles"
        );
    }

    #[test]
    fn the_built_in_peer_holds_a_contest_of_its_own() {
        let Ok(cores) = Cores::first_two() else {
            eprintln!("skipped: this machine has one processor");
            return;
        };
        let tiny = Window { warm_up: Duration::from_millis(1), measure: Duration::from_millis(5) };
        let side = |label| Inside::boxed(label, cores, move || Ok(vec![seqpacket::mean_round_trip(cores, tiny)?]));
        let rows = contests(Bench::PipeRtt)[0].rows();
        let goal = Goal { samples: 1, limit: Duration::from_secs(60) };
        let start = Instant::now();
        let mut sides = [side("a"), side("b")];
        let outcome = contest::hold(rows, &mut sides, goal, &mut || start.elapsed(), &mut |_, _| {}).unwrap();
        let found = report::findings(&outcome);
        assert!(!found.is_empty() && outcome.failures.is_empty());
        assert!(report::json(&found[0]).unwrap().starts_with(r#"{"name":"pipe-rtt","class":""#));
    }
}
