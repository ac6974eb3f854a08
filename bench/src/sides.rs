//! Who takes turns with whom in each benchmark, and what each of them measures.

use std::io::IsTerminal;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::benches::Bench;
use crate::contest::{self, Goal, Outcome, RowName, Side, Tally, Turn};
use crate::host::{self, Hosts, Way};
use crate::nic::pcap::{Programs, Task};
use crate::nic::{Nics, Who};
use crate::node::Noded;
use crate::open::{self, Cold, Idle};
use crate::peer::{self, Peer};
use crate::pkt_gen::{self, Pair};
use crate::preload::Preloaded;
use crate::probe::{self, Cores};
use crate::seqpacket::{self, Window};
use crate::stats::{Class, Sample};
use crate::vale::{Switch, Traffic};
use crate::{Networks, Options, note, one_core, rtt, session};

/// What our own side is called in the results.
pub(crate) const US: &str = "unetmap";
/// What pkt-gen is called beside a program that is preloaded.
pub(crate) const NATIVE: &str = "native";
/// What the same program is called where it is linked with the library.
pub(crate) const LINKED: &str = "linked";
/// What the program is called that `unetmap run` runs, beside one on the node.
pub(crate) const PRELOAD: &str = "preload";
/// What a pipe is called beside a switch, and a switch without idle ports beside one with some.
pub(crate) const PIPE: &str = "pipe";
pub(crate) const ALONE: &str = "alone";
/// What the C library's own call is called.
pub(crate) const LIBC: &str = "libc";
/// The sender's batches that `pipe-batch` goes through, packets.
const BATCHES: [u32; 5] = [1, 8, 64, 256, 512];
/// Those of `preload-pipe`.
const FEW_BATCHES: [u32; 3] = [1, 64, 512];
/// How long the built-in peer runs for one sample; as long as pkt-gen does.
const PEER_WINDOW: Window = Window { warm_up: Duration::from_millis(20), measure: Duration::from_millis(60) };

/// One row group measured against its peers.
pub(crate) struct Contest {
    bench: Bench,
    pub(crate) name: String,
    /// The sender's batch, packets.
    batch: u32,
    /// Ours, where it is about the host's stack.
    way: Way,
    /// Of a switch: the highest rate without loss is looked for.
    clean: bool,
    /// Of a switch: slots of the rings.
    slots: u32,
    /// Of `pcap`.
    task: Option<Task>,
}

pub(crate) fn contests(bench: Bench) -> Vec<Contest> {
    let [slots, others] = bench.slots();
    let contest =
        |name: String, batch| Contest { bench, name, batch, way: Way::Native, clean: false, slots, task: None };
    let other = || Contest { slots: others, ..contest(format!("{}-{others}", bench.name()), 512) };
    match bench {
        Bench::HostTcp | Bench::HostRtt => {
            let ours = Way::OURS.into_iter();
            ours.map(|(way, end)| Contest { way, ..contest(format!("{}{end}", bench.name()), 1024) }).collect()
        }
        _ if bench.may_lose() => {
            let clean = Contest { clean: true, ..contest(format!("{}-clean", bench.name()), 512) };
            vec![contest(bench.name().into(), 512), clean, other()]
        }
        Bench::Vale60Swap | Bench::Vale1Core | Bench::ValeFan | Bench::ValeIdlePorts => {
            vec![contest(bench.name().into(), 512), other()]
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
            Bench::PipeOpen => vec![row("", "us"), row("-cold", "us")],
            Bench::Idle => vec![row("", "%"), row("-memory", "MiB")],
            Bench::PreloadPoll => vec![row("", "ns"), row("-added", "ns")],
            Bench::HostTcp | Bench::HostRtt => host::rows(self.bench, &self.name),
            Bench::ValeRtt => vec![row("", "ns"), row("-asleep", "ns")],
            _ if self.loses() => vec![row("", "Mpps"), row("-lost", "%")],
            Bench::Pcap if self.task == Some(Task::Tcpdump) => vec![row("", "Mpps"), row("-arrived", "%")],
            _ => vec![row("", "Mpps")],
        }
    }

    /// Whether a row says what part of the packets was lost.
    fn loses(&self) -> bool {
        self.bench.may_lose() && !self.clean && self.slots == self.bench.slots()[0]
    }

    pub(crate) fn hold(&self, options: &Options, cores: Cores, networks: &Networks) -> Result<Outcome, String> {
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
        if self.bench == Bench::PreloadPipe {
            let (program, batch) = (Preloaded::linked(cores)?, self.batch);
            sides.push(Inside::boxed(LINKED, cores, move || Ok(vec![program.rate(batch)?])));
        }
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
                note(&format!("{}: {} is left out: {why}", self.name, who.label()));
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
                let switch = Switch::new(cores, self.slots)?;
                Inside::boxed(US, cores, move || Ok(vec![switch.fan()?]))
            }
            Bench::ValeRtt => {
                let switch = Switch::new(cores, self.slots)?;
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
            Bench::PipeOpen => {
                let cold = Cold::new()?;
                Inside::boxed(US, cores, move || Ok(vec![open::warm()?, cold.open()?]))
            }
            Bench::Idle => {
                let idle = Idle::new()?;
                Inside::boxed(US, cores, move || idle.measure())
            }
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
        let switch = Switch::new(if self.bench == Bench::Vale1Core { one } else { cores }, self.slots)?;
        let (clean, lossy) = (self.clean, self.loses());
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
                let switch = Switch::new(cores, self.slots)?;
                let both = move || [false, true].map(|asleep| switch.pipe_round_trip(asleep)).into_iter().collect();
                Inside::boxed(PIPE, cores, both)
            }
            Bench::PipeOpen | Bench::Idle => return Ok(None),
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
    use crate::report;

    #[test]
    fn benches_have_names() {
        for bench in Bench::ALL {
            assert_eq!(bench.name().parse(), Ok(bench));
        }
        let message = "pipes".parse::<Bench>().unwrap_err();
        assert_eq!(
            message,
            "no such benchmark (there are pipe, pipe-batch, pipe-1core, pipe-rtt, pipe-ping, pipe-open, idle-100, \
             preload-pipe, preload-poll, \
             node-pipe, node-poll, vale-60-copy, vale-512-copy, vale-1500-copy, vale-60-swap, vale-1core, vale-fan, \
             vale-rtt, vale-idle-ports, nic-tx, nic-rx, nic-fwd, host-tcp, host-rtt, pcap, lb, scrub)"
        );
        let names: Vec<_> = contests(Bench::PipeBatch).into_iter().map(|c| (c.name, c.batch)).collect();
        assert_eq!(names[0], ("pipe-batch-1".into(), 1));
        assert_eq!(names[4], ("pipe-batch-512".into(), 512));
        let rows: Vec<_> = contests(Bench::Vale60Copy).iter().flat_map(Contest::rows).map(|row| row.name).collect();
        assert_eq!(rows, ["vale-60-copy", "vale-60-copy-lost", "vale-60-copy-clean", "vale-60-copy-1024"]);
        let rows: Vec<_> = contests(Bench::Vale1500Copy).iter().flat_map(Contest::rows).map(|row| row.name).collect();
        assert_eq!(rows, ["vale-1500-copy", "vale-1500-copy-lost", "vale-1500-copy-clean", "vale-1500-copy-4096"]);
        let rows: Vec<_> = contests(Bench::HostTcp).iter().flat_map(Contest::rows).map(|row| row.name).collect();
        assert_eq!(rows, ["host-tcp-out", "host-tcp-in", "host-tcp-mark-out", "host-tcp-mark-in"]);
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
