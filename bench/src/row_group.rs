// SPDX-License-Identifier: BSD-2-Clause
//! The row groups of each benchmark, and the contestants of each row group.

use std::io::IsTerminal;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::benches::Bench;
use crate::builtin::Builtin;
use crate::c_peers::DpdkPeers;
use crate::dpdk::{self, Dpdk, Link};
use crate::firewall::{self, Case, Pipes};
use crate::host::{self, HostLab, HostPath};
use crate::nic::pcap::{PcapTask, Programs};
use crate::nic::{Implementation, Load, NicLab};
use crate::node::NodeProgram;
use crate::open::{self, ColdOpen, Idle};
use crate::peer::{self, Peer};
use crate::pkt_gen::{self, PktGenPair};
use crate::preload::NetmapProgram;
use crate::probe::{self, Cores};
use crate::ring::{self, Ring};
use crate::scale::Subject;
use crate::seqpacket::{self, MeasureTimes};
use crate::stats::{PlacementClass, Sample};
use crate::tcp::{Stacks, Way};
use crate::turns::{self, Contestant, ContestantSamples, Outcome, RowName, StopCondition, TurnSamples};
use crate::vale::{Steady, Switch, Traffic};
use crate::{Options, Setup, cycles, labels, note, one_core, rtt, session};

/// The sender's batches of `pipe-batch`, packets.
const BATCHES: [u32; 5] = [1, 8, 64, 256, 512];
/// The sender's batches of `vale-batch` and `nic-tx-batch`, packets.
const BATCHES_OF_FIGURES: [u32; 6] = [1, 4, 8, 32, 128, 512];
/// The sizes of packets of `pipe-size`, `vale-size`, `nic-tx-size` and `nic-rx-size`, bytes: some are no multiples of
/// 64.
const SIZES: [u16; 9] = [60, 65, 100, 128, 250, 512, 777, 1024, 1514];
/// Cycles that the sender of `pipe-cycles` spends on a packet.
const CYCLES: [u32; 7] = [0, 10, 30, 100, 200, 500, 1000];
/// Ring pairs of its pipe.
const RING_PAIRS: [u16; 3] = [1, 2, 4];
/// The ports of `ports`.
const PORTS: [u32; 5] = [1, 10, 50, 100, 500];
/// The sender's batches of `preload-pipe`, packets.
const FEW_BATCHES: [u32; 3] = [1, 64, 512];
/// The sender's batches of `vale-overload`, packets.
const OVERLOAD_BATCHES: [u32; 4] = [1, 8, 64, 512];
/// How many times as long as others `vale-steady` may take.
const STEADY_LIMIT: u32 = 5;
/// Its samples, a minute each, in place of so many as are enough for other rows, or more.
const STEADY_SAMPLES: u32 = 10;
const ENOUGH: u32 = 7;
/// Time that the built-in peer runs for one sample, the same as pkt-gen's.
const PEER_TIMES: MeasureTimes =
    MeasureTimes { warm_up: Duration::from_millis(20), measure: Duration::from_millis(60) };

/// Rows that are measured together, by the same contestants.
pub(crate) struct RowGroup {
    pub(crate) bench: Bench,
    pub(crate) name: String,
    /// The sender's batch, packets.
    batch: u32,
    /// Bytes of a packet.
    pub(crate) len: u16,
    /// For `pipe-cycles`: the ring pairs of the pipe.
    ring_pairs: u16,
    /// For `pipe-cycles` and `ports`: the number of the row.
    n: u32,
    /// For `host-*`: unetmap's path.
    path: HostPath,
    /// For `vale-*`: measures the highest rate without loss.
    clean: bool,
    /// For `vale-*`: slots of the rings.
    pub(crate) slots: u32,
    /// For `pcap`.
    task: Option<PcapTask>,
    /// For `scale`.
    subject: Option<Subject>,
    /// For `fw` and `emulate`.
    case: Option<Case>,
    /// For `tcp`.
    way: Option<Way>,
}

pub(crate) fn row_groups(bench: Bench) -> Vec<RowGroup> {
    let [slots, second_slots] = bench.slots();
    let group = |name: String, batch| RowGroup {
        bench,
        name,
        batch,
        len: 60,
        ring_pairs: 1,
        n: 0,
        path: HostPath::NativeXdp,
        clean: false,
        slots,
        task: None,
        subject: None,
        case: None,
        way: None,
    };
    let second = || RowGroup { slots: second_slots, ..group(format!("{}-{second_slots}", bench.name()), 512) };
    match bench {
        Bench::HostTcp | Bench::HostRtt => {
            let ours = HostPath::UNETMAP.into_iter();
            ours.map(|(path, end)| RowGroup { path, ..group(format!("{}{end}", bench.name()), 1024) }).collect()
        }
        _ if bench.may_lose() => {
            let clean = RowGroup { clean: true, ..group(format!("{}-clean", bench.name()), 512) };
            vec![group(bench.name().into(), 512), clean, second()]
        }
        Bench::Vale60Swap | Bench::Vale1Core | Bench::ValeFan | Bench::ValeIdlePorts => {
            vec![group(bench.name().into(), 512), second()]
        }
        Bench::PipeBatch => BATCHES.map(|batch| group(format!("{}-{batch}", bench.name()), batch)).into(),
        Bench::Memif | Bench::Vhost | Bench::Ivshmem => {
            dpdk::LENGTHS.map(|len| RowGroup { len, ..group(format!("{}-{len}", bench.name()), 512) }).into()
        }
        Bench::ValeBatch | Bench::NicTxBatch => {
            BATCHES_OF_FIGURES.map(|batch| group(format!("{}-{batch}", bench.name()), batch)).into()
        }
        Bench::PipeSize | Bench::ValeSize | Bench::NicTxSize | Bench::NicRxSize => {
            SIZES.map(|len| RowGroup { len, ..group(format!("{}-{len}", bench.name()), 512) }).into()
        }
        Bench::PipeCycles => {
            let of = |ring_pairs: u16| {
                let pairs = if ring_pairs == 1 { String::new() } else { format!("{ring_pairs}q-") };
                CYCLES.map(|n| RowGroup { n, ring_pairs, ..group(format!("{}-{pairs}{n}", bench.name()), 512) })
            };
            RING_PAIRS.into_iter().flat_map(of).collect()
        }
        Bench::Ports => PORTS.map(|n| RowGroup { n, ..group(format!("{}-{n}", bench.name()), 512) }).into(),
        Bench::PreloadPipe => FEW_BATCHES.map(|batch| group(format!("{}-{batch}", bench.name()), batch)).into(),
        Bench::ValeOverload => OVERLOAD_BATCHES.map(|batch| group(format!("{}-{batch}", bench.name()), batch)).into(),
        Bench::PipeRtt | Bench::PipePing | Bench::ValeRtt => vec![group(bench.name().into(), 1)],
        Bench::Pcap => {
            let of = |task: PcapTask| RowGroup { task: Some(task), ..group(task.name().into(), 512) };
            PcapTask::ALL.map(of).into()
        }
        Bench::Fw | Bench::Emulate | Bench::FwNic | Bench::EmulateNic => {
            let of =
                |&case: &Case| RowGroup { case: Some(case), ..group(format!("{}-{}", bench.name(), case.name()), 512) };
            Case::of(bench).iter().map(of).collect()
        }
        Bench::Tcp => Way::UNETMAP.map(|way| RowGroup { way: Some(way), ..group(way.name().into(), 512) }).into(),
        Bench::Scale(subject) => {
            let of = |subject: Subject| RowGroup { subject: Some(subject), ..group(subject.name().into(), 512) };
            subject.map_or(Subject::ALL.to_vec(), |one| vec![one]).into_iter().map(of).collect()
        }
        _ => vec![group(bench.name().into(), 512)],
    }
}

impl RowGroup {
    fn rows(&self) -> Vec<RowName> {
        if let Some(subject) = self.subject {
            return subject.rows();
        }
        if let Some(way) = self.way {
            return way.rows();
        }
        let row = |suffix: &str, unit| RowName { name: format!("{}{suffix}", self.name), unit };
        match self.bench {
            Bench::PipeOneCore => vec![row("", "Mpps"), row("-cycles", "cycles")],
            Bench::PipeRtt | Bench::NodePoll => vec![row("", "ns")],
            Bench::PipePing => vec![row("", "ns"), row("-p99", "ns")],
            Bench::PipeOpen => ["", "-p99", "-close", "-close-p99", "-cold"].map(|what| row(what, "us")).into(),
            Bench::Idle => vec![row("", "%"), row("-memory", "MiB")],
            Bench::Ports => ["", "-idle", "-memory"]
                .into_iter()
                .zip(["us", "%", "MiB"])
                .map(|(what, unit)| RowName { name: format!("{}{what}-{}", self.bench.name(), self.n), unit })
                .collect(),
            Bench::PreloadPoll => vec![row("", "ns"), row("-added", "ns")],
            Bench::HostTcp | Bench::HostRtt => host::rows(self.bench, &self.name),
            Bench::ValeRtt => ["", "-p99", "-asleep", "-asleep-p99"].map(|what| row(what, "ns")).into(),
            Bench::ValeOverload => vec![row("", "%")],
            Bench::ValeSteady => vec![row("", "Mpps"), row("-worst", "%"), row("-memory", "MiB")],
            Bench::Emulate if self.case == Some(Case::Late) => vec![row("", "us")],
            Bench::Memif | Bench::Vhost | Bench::Ivshmem => vec![row("", "Mpps"), row("-back", "Mpps")],
            _ if self.measures_loss() => vec![row("", "Mpps"), row("-lost", "%")],
            Bench::Pcap if self.task == Some(PcapTask::Tcpdump) => vec![row("", "Mpps"), row("-arrived", "%")],
            _ => vec![row("", "Mpps")],
        }
    }

    /// Returns the stream over a switch, for the benchmarks that measure one stream.
    fn traffic(&self) -> Option<Traffic> {
        let traffic = self.bench.traffic()?;
        let len = if self.bench == Bench::ValeSize { self.len } else { traffic.len };
        Some(Traffic { len, batch: self.batch, ..traffic })
    }

    /// Returns true if a row has the share of lost packets.
    fn measures_loss(&self) -> bool {
        self.bench.may_lose() && !self.clean && self.slots == self.bench.slots()[0]
    }

    /// Measures the contestants in turns.
    pub(crate) fn run(&self, options: &Options, cores: Cores, setup: &Setup) -> Result<Outcome, String> {
        let nics = setup.nics.as_ref();
        let (rows, environment) = (self.rows(), self.environment(setup));
        let mut contestants = match (nics.filter(|_| self.bench.is_nic()), &setup.hosts) {
            (Some(nics), _) => match (self.task, self.case) {
                (Some(task), _) => self.pcap_contestants(task, cores, nics)?,
                (None, Some(case)) => self.forwarders(case, cores, nics),
                (None, None) => self.nic_contestants(cores, nics, options),
            },
            _ if let Some(case) = self.case => {
                let (ours, peer) = (Rc::new(Pipes::new(case, cores)?), Pipes::new(case, cores)?);
                let label = if case == Case::Late { firewall::CLOCK } else { firewall::BRIDGE };
                vec![
                    Builtin::slow(labels::UNETMAP, cores, move || ours.measure(false)),
                    Builtin::slow(label, cores, move || peer.measure(true)),
                ]
            }
            _ if let Some(way) = self.way => {
                let (mut ours, mut peer) = (Stacks::joined_by(way)?, Stacks::joined_by(Way::KernelBridge)?);
                vec![
                    Builtin::slow(labels::UNETMAP, cores, move || ours.measure()),
                    Builtin::slow(Way::KernelBridge.name(), cores, move || peer.measure()),
                ]
            }
            (None, Some(hosts)) if host::is_host(self.bench) => self.host_contestants(cores, hosts),
            _ => match Link::of(self.bench) {
                Some(link) => self.dpdk_contestants(link, cores, &setup.dpdk)?,
                None => {
                    let (unetmap, peer) = (self.unetmap(cores), self.built_in_peer(cores).transpose());
                    std::iter::once(unetmap).chain(peer).collect::<Result<_, _>>()?
                }
            },
        };
        if self.bench == Bench::PreloadPipe {
            let (program, batch) = (NetmapProgram::linked(cores)?, self.batch);
            contestants.push(Builtin::boxed(labels::LINKED, cores, move || Ok(vec![program.rate(batch)?])));
        }
        contestants.extend(self.ring(setup, cores));
        for peer in &options.peers {
            contestants.push(Box::new(CommandPeer { peer, group: self, environment: &environment }));
        }
        let steady = self.bench == Bench::ValeSteady;
        let times = if steady { STEADY_LIMIT } else { 1 };
        let samples = if steady && options.samples >= ENOUGH { STEADY_SAMPLES } else { options.samples };
        let goal = StopCondition { samples, limit: options.limit * times };
        let start = Instant::now();
        let terminal = std::io::stderr().is_terminal();
        let mut progress = |all_samples: &[ContestantSamples], time: Duration| {
            if terminal {
                eprint!("\r\x1b[K{}", progress_line(&self.name, all_samples, goal, time));
            }
        };
        let outcome = turns::run_turns(rows, &mut contestants, goal, &mut || start.elapsed(), &mut progress);
        if terminal {
            eprint!("\r\x1b[K");
        }
        outcome.map(|outcome| Outcome { series: self.subject.map_or(vec![], Subject::series), ..outcome })
    }

    /// Returns the environment variables for `--peer` commands.
    fn environment(&self, setup: &Setup) -> Vec<(&'static str, String)> {
        let mut environment = vec![("BENCH", self.name.clone()), ("BATCH", self.batch.to_string())];
        environment.extend(self.traffic().map(|traffic| ("LEN", traffic.len.to_string())));
        environment.extend(setup.nics.iter().flat_map(|nics| nics.environment()));
        environment.extend(setup.hosts.iter().flat_map(|hosts| hosts.environment()));
        environment
    }

    fn nic_contestants(&self, cores: Cores, nics: &Rc<NicLab>, options: &Options) -> Vec<Box<dyn Contestant>> {
        let mut contestants = Vec::new();
        let quick = options.report.as_ref().is_some_and(|report| report.quick);
        for &implementation in Implementation::of(self.bench) {
            if quick && implementation.is_slow() {
                continue;
            }
            if let Some(why) = nics.unavailable(implementation) {
                note(&format!("{}: skipping peer {}: {why}", self.name, implementation.label()));
                continue;
            }
            let batch = (self.bench == Bench::NicTxBatch).then_some(self.batch);
            let (bench, nics, load) = (self.bench, Rc::clone(nics), Load { len: self.len, batch });
            let measure = move || Ok(vec![nics.measure(bench, implementation, load)?]);
            contestants.push(match implementation.is_slow() {
                true => Builtin::slow(implementation.label(), cores, measure),
                false => Builtin::boxed(implementation.label(), cores, measure),
            });
        }
        contestants
    }

    /// Returns the programs between two interfaces, and what the kernel has for the same.
    fn forwarders(&self, case: Case, cores: Cores, nics: &Rc<NicLab>) -> Vec<Box<dyn Contestant>> {
        let mut contestants = Vec::new();
        let mut add = |label: &'static str| {
            let nics = Rc::clone(nics);
            contestants.push(Builtin::slow(label, cores, move || Ok(vec![nics.forward(case, label)?])));
        };
        add(labels::UNETMAP);
        add(firewall::BRIDGE);
        for &peer in case.kernel() {
            match nics.kernel_can(case, peer) {
                Ok(()) => add(peer),
                Err(why) => note(&format!("{}: skipping peer {peer}: {why}", self.name)),
            }
        }
        contestants
    }

    fn host_contestants(&self, cores: Cores, hosts: &Rc<HostLab>) -> Vec<Box<dyn Contestant>> {
        let contestant = |path: HostPath| {
            let (bench, hosts) = (self.bench, Rc::clone(hosts));
            Builtin::boxed(path.label(), cores, move || hosts.measure(bench, path))
        };
        vec![contestant(self.path), contestant(HostPath::NoBridge)]
    }

    fn dpdk_contestants(
        &self,
        link: Link,
        cores: Cores,
        peers: &DpdkPeers,
    ) -> Result<Vec<Box<dyn Contestant>>, String> {
        let switch = Switch::new(cores, self.slots)?;
        let dpdk = Dpdk::new(link, self.len, cores, Rc::clone(&switch), peers)?;
        let (alone, traffic) =
            (Rc::clone(&dpdk), Traffic { len: self.len, batch: self.batch, rate: None, share: false, idle: 0 });
        Ok(vec![
            Builtin::slow(labels::UNETMAP, cores, move || dpdk.through_switch()),
            Builtin::slow(dpdk::DPDK, cores, move || alone.alone()),
            Builtin::slow(dpdk::PORTS, cores, move || Ok(vec![switch.measure_stream(traffic)?.mpps; 2])),
        ])
    }

    fn pcap_contestants(
        &self,
        task: PcapTask,
        cores: Cores,
        nics: &Rc<NicLab>,
    ) -> Result<Vec<Box<dyn Contestant>>, String> {
        if let Some(why) = Programs::unavailable(task) {
            return Err(format!("{}: {why}", self.name));
        }
        let programs = Programs::new(nics)?;
        let contestant = |&(label, setup)| {
            let programs = Rc::clone(&programs);
            Builtin::boxed(label, cores, move || programs.measure(task, setup))
        };
        Ok(task.contestants().iter().map(contestant).collect())
    }

    /// Returns unetmap's contestant.
    fn unetmap(&self, cores: Cores) -> Result<Box<dyn Contestant>, String> {
        let batch = self.batch;
        if let Some(subject) = self.subject {
            return Ok(Builtin::slow(labels::UNETMAP, cores, move || subject.measure()));
        }
        if let Some(traffic) = self.traffic() {
            return self.switch_stream(labels::UNETMAP, cores, traffic);
        }
        Ok(match self.bench {
            Bench::ValeFan => {
                let switch = Switch::new(cores, self.slots)?;
                Builtin::boxed(labels::UNETMAP, cores, move || Ok(vec![switch.fan()?]))
            }
            Bench::ValeOverload => {
                let (switch, reader) = (Switch::new(cores, self.slots)?, NetmapProgram::new(cores)?);
                Builtin::boxed(labels::UNETMAP, cores, move || Ok(vec![switch.overload(&reader, batch)?]))
            }
            Bench::ValeRtt => {
                let switch = Switch::new(cores, self.slots)?;
                Builtin::boxed(labels::UNETMAP, cores, move || {
                    Ok([switch.round_trip(false)?, switch.round_trip(true)?].concat())
                })
            }
            Bench::PipeRtt => {
                Builtin::boxed(labels::UNETMAP, cores, move || Ok(vec![rtt::round_trip(cores, PEER_TIMES)?]))
            }
            Bench::PipePing => {
                let pair = PktGenPair { program: pkt_gen::find()?, cores };
                Builtin::boxed(labels::UNETMAP, cores, move || pair.round_trip())
            }
            Bench::Ivshmem => {
                let (pair, len) = (PktGenPair { program: pkt_gen::find()?, cores }, self.len);
                Builtin::boxed(labels::UNETMAP, cores, move || pair.device_rates(batch, len))
            }
            Bench::PipeOneCore => Builtin::boxed(labels::UNETMAP, cores, move || {
                let rate = one_core::run(cores.tx, one_core::MEASURE_TIMES)?;
                Ok(vec![rate.mpps, rate.cycles_per_packet])
            }),
            Bench::PipeOpen => {
                let cold = ColdOpen::new()?;
                Builtin::boxed(labels::UNETMAP, cores, move || Ok([open::warm()?, vec![cold.open()?]].concat()))
            }
            Bench::PipeCycles => {
                let (n, pairs) = (self.n, self.ring_pairs);
                Builtin::boxed(labels::UNETMAP, cores, move || Ok(vec![cycles::rate(cores, n, pairs, PEER_TIMES)?]))
            }
            Bench::Ports => {
                let n = self.n as usize;
                Builtin::boxed(labels::UNETMAP, cores, move || open::ports(n))
            }
            Bench::Idle => {
                let idle = Idle::new(open::PORTS)?;
                Builtin::boxed(labels::UNETMAP, cores, move || idle.measure())
            }
            Bench::PreloadPipe => {
                let program = NetmapProgram::new(cores)?;
                Builtin::boxed(labels::UNETMAP, cores, move || Ok(vec![program.rate(batch)?]))
            }
            Bench::PreloadPoll => {
                let program = NetmapProgram::new(cores)?;
                Builtin::boxed(labels::UNETMAP, cores, move || {
                    program.foreign_poll().map(|[with, bare]| vec![with, with - bare])
                })
            }
            Bench::NodePipe => {
                let node = NodeProgram::new(cores)?;
                Builtin::boxed(labels::UNETMAP, cores, move || Ok(vec![node.rate(batch)?]))
            }
            Bench::NodePoll => {
                let node = NodeProgram::new(cores)?;
                Builtin::boxed(labels::UNETMAP, cores, move || Ok(vec![node.ready_poll()?]))
            }
            _ => self.pkt_gen(labels::UNETMAP, cores)?,
        })
    }

    fn pkt_gen(&self, label: &'static str, cores: Cores) -> Result<Box<dyn Contestant>, String> {
        let (pair, batch, len) = (PktGenPair { program: pkt_gen::find()?, cores }, self.batch, self.len);
        Ok(Builtin::boxed(label, cores, move || Ok(vec![pair.rate(batch, len)?])))
    }

    /// Returns a contestant that measures a stream from one port of a switch to another.
    fn switch_stream(
        &self,
        label: &'static str,
        cores: Cores,
        traffic: Traffic,
    ) -> Result<Box<dyn Contestant>, String> {
        if self.bench == Bench::ValeSteady {
            let mut steady = Steady::new(Switch::new(cores, self.slots)?, traffic)?;
            return Ok(Builtin::slow(label, cores, move || steady.measure()));
        }
        let one = Cores { rx: cores.tx, ..cores };
        let switch = Switch::new(if self.bench == Bench::Vale1Core { one } else { cores }, self.slots)?;
        let (clean, with_loss) = (self.clean, self.measures_loss());
        Ok(Builtin::boxed(label, cores, move || {
            if clean {
                return Ok(vec![switch.clean_rate(traffic)?]);
            }
            let throughput = switch.measure_stream(traffic)?;
            Ok(if with_loss { vec![throughput.mpps, 100.0 * throughput.lost] } else { vec![throughput.mpps] })
        }))
    }

    /// Returns the built-in peer of the benchmark, if it has one.
    fn built_in_peer(&self, cores: Cores) -> Result<Option<Box<dyn Contestant>>, String> {
        Ok(Some(match self.bench {
            Bench::ValeIdlePorts => {
                let traffic = self.traffic().map(|traffic| Traffic { idle: 0, ..traffic });
                return traffic.map(|traffic| self.switch_stream(labels::NO_IDLE_PORTS, cores, traffic)).transpose();
            }
            Bench::ValeRtt => {
                let switch = Switch::new(cores, self.slots)?;
                let both = move || Ok([switch.pipe_round_trip(false)?, switch.pipe_round_trip(true)?].concat());
                Builtin::boxed(labels::PIPE, cores, both)
            }
            Bench::PipeOpen | Bench::Idle | Bench::Ports | Bench::PipeCycles | Bench::PipeSize | Bench::Scale(_) => {
                return Ok(None);
            }
            bench if bench.is_vale() => return Ok(None),
            Bench::PreloadPipe | Bench::NodePipe => self.pkt_gen(labels::NATIVE, cores)?,
            Bench::Ivshmem => {
                let (pair, batch, len) = (PktGenPair { program: pkt_gen::find()?, cores }, self.batch, self.len);
                Builtin::boxed(labels::PIPE, cores, move || {
                    [(); 2].map(|()| pair.rate(batch, len)).into_iter().collect()
                })
            }
            Bench::NodePoll => {
                let program = NetmapProgram::new(cores)?;
                Builtin::boxed(labels::PRELOAD, cores, move || Ok(vec![program.ready_poll()?]))
            }
            Bench::PreloadPoll => {
                let program = NetmapProgram::new(cores)?;
                Builtin::boxed(labels::LIBC, cores, move || program.foreign_poll().map(|[_, bare]| vec![bare]))
            }
            _ => self.seqpacket(cores),
        }))
    }

    /// Returns the `rte_ring` of DPDK, the peer of pipes, if it can be compiled.
    fn ring(&self, setup: &Setup, cores: Cores) -> Option<Box<dyn Contestant>> {
        let (batch, len) = (self.batch, self.len);
        if !matches!(self.bench, Bench::Pipe | Bench::PipeBatch | Bench::PipeRtt) {
            return None;
        }
        let skipped = |why| note(&format!("{}: skipping peer {}: {why}", self.name, ring::LABEL));
        let ring = Ring::new(&setup.dpdk, cores).map_err(skipped).ok()?;
        Some(match self.bench {
            Bench::PipeRtt => Builtin::boxed(ring::LABEL, cores, move || Ok(vec![ring.round_trip()?])),
            _ => Builtin::boxed(ring::LABEL, cores, move || Ok(vec![ring.rate(batch, len)?])),
        })
    }

    fn seqpacket(&self, cores: Cores) -> Box<dyn Contestant> {
        let label = seqpacket::LABEL;
        match self.bench {
            Bench::PipeRtt => {
                Builtin::boxed(label, cores, move || Ok(vec![seqpacket::mean_round_trip(cores, PEER_TIMES)?]))
            }
            Bench::PipePing => Builtin::boxed(label, cores, move || seqpacket::round_trips(cores, PEER_TIMES)),
            Bench::PipeOneCore => Builtin::boxed(label, cores, move || {
                let ghz = seqpacket::on_core(cores.tx, || Ok(probe::core_ghz()))?;
                let mpps = seqpacket::rate_one_core(cores.tx, one_core::MEASURE_TIMES)?;
                Ok(vec![mpps, ghz * 1e3 / mpps])
            }),
            _ => Builtin::boxed(label, cores, move || Ok(vec![seqpacket::rate(cores, PEER_TIMES)?])),
        }
    }
}

fn progress_line(name: &str, all_samples: &[ContestantSamples], goal: StopCondition, time: Duration) -> String {
    let mut line = format!("{name} {:.0} s", time.as_secs_f64());
    for samples in all_samples {
        let [near, far] = PlacementClass::ALL.map(|class| samples.count(class));
        line += &format!(", {} L {near} R {far}", samples.label);
    }
    line + &format!(" of {}", goal.samples)
}

/// A `--peer` command, which probes the distance of the cores by itself.
struct CommandPeer<'a> {
    peer: &'a Peer,
    group: &'a RowGroup,
    environment: &'a [(&'static str, String)],
}

impl Contestant for CommandPeer<'_> {
    fn turn(&mut self) -> Result<TurnSamples, String> {
        session::check()?;
        let names: Vec<String> = self.group.rows().into_iter().map(|row| row.name).collect();
        let found = peer::run(self.peer, self.environment, &names)?;
        found.into_iter().map(|row| self.match_row(row)).collect()
    }

    fn label(&self) -> &str {
        &self.peer.label
    }
}

impl CommandPeer<'_> {
    /// Finds the row with which a peer's row is compared: the one with the same name, else with the same unit.
    fn match_row(&self, found: peer::Row) -> Result<(usize, PlacementClass, Sample), String> {
        let rows = self.group.rows();
        let named = rows.iter().position(|row| row.name == found.name && row.unit == found.unit);
        match named.or_else(|| rows.iter().position(|row| row.unit == found.unit)) {
            Some(row) => Ok((row, found.class, found.sample)),
            None => {
                let units: Vec<_> = rows.iter().map(|row| row.unit).collect();
                let (label, unit) = (&self.peer.label, found.unit);
                Err(format!("--peer {label}: its unit is {unit:?}; it must be {}", units.join(" or ")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report;

    #[test]
    fn benchmarks_and_rows_have_their_names() {
        for bench in Bench::ALL {
            assert_eq!(bench.name().parse(), Ok(bench));
        }
        let message = "pipes".parse::<Bench>().unwrap_err();
        assert_eq!(
            message,
            "no such benchmark (there are pipe, pipe-batch, pipe-size, pipe-cycles, ports, pipe-1core, pipe-rtt, \
             pipe-ping, pipe-open, idle-100, \
             preload-pipe, preload-poll, \
             node-pipe, node-poll, vale-60-copy, vale-512-copy, vale-1500-copy, vale-batch, vale-size, vale-60-swap, \
             vale-1core, vale-fan, vale-overload, vale-rtt, vale-idle-ports, vale-steady, nic-tx, nic-rx, nic-tx-batch, \
             nic-tx-size, nic-rx-size, nic-fwd, tcp, host-tcp, host-rtt, pcap, lb, scrub, fw, emulate, fw-nic, emulate-nic, \
             memif, vhost, ivshmem, scale, scale-ports, scale-senders, scale-load, scale-addresses, scale-flood, scale-policies, \
             scale-threads, scale-rings, scale-pairs, scale-ls, scale-close, scale-pipes)"
        );
        let names: Vec<_> = row_groups(Bench::PipeBatch).into_iter().map(|c| (c.name, c.batch)).collect();
        assert_eq!(names[0], ("pipe-batch-1".into(), 1));
        assert_eq!(names[4], ("pipe-batch-512".into(), 512));
        let rows: Vec<_> = row_groups(Bench::Vale60Copy).iter().flat_map(RowGroup::rows).map(|row| row.name).collect();
        assert_eq!(rows, ["vale-60-copy", "vale-60-copy-lost", "vale-60-copy-clean", "vale-60-copy-1024"]);
        let rows: Vec<_> =
            row_groups(Bench::Vale1500Copy).iter().flat_map(RowGroup::rows).map(|row| row.name).collect();
        assert_eq!(rows, ["vale-1500-copy", "vale-1500-copy-lost", "vale-1500-copy-clean", "vale-1500-copy-4096"]);
        let rows: Vec<_> = row_groups(Bench::HostTcp).iter().flat_map(RowGroup::rows).map(|row| row.name).collect();
        assert_eq!(rows, ["host-tcp-out", "host-tcp-in", "host-tcp-mark-out", "host-tcp-mark-in"]);
    }

    #[test]
    fn a_peer_is_compared_with_the_row_of_its_unit() {
        let peer: Peer = "p=x".parse().unwrap();
        let group = &row_groups(Bench::PipeOneCore)[0];
        let contestant = CommandPeer { peer: &peer, group, environment: &[] };
        let row = |unit: &str| peer::Row {
            name: "p".into(),
            class: PlacementClass::R,
            unit: unit.into(),
            sample: Sample::one(2.0),
        };
        assert_eq!(contestant.match_row(row("Mpps")), Ok((0, PlacementClass::R, Sample::one(2.0))));
        assert_eq!(contestant.match_row(row("cycles")), Ok((1, PlacementClass::R, Sample::one(2.0))));
        assert_eq!(
            contestant.match_row(row("ns")).unwrap_err(),
            "--peer p: its unit is \"ns\"; it must be Mpps or cycles"
        );
    }

    #[test]
    fn the_built_in_peer_can_be_measured_against_itself() {
        let Ok(cores) = Cores::first_two() else {
            eprintln!("skipped: this machine has one processor");
            return;
        };
        let tiny = MeasureTimes { warm_up: Duration::from_millis(1), measure: Duration::from_millis(5) };
        let contestant =
            |label| Builtin::boxed(label, cores, move || Ok(vec![seqpacket::mean_round_trip(cores, tiny)?]));
        let rows = row_groups(Bench::PipeRtt)[0].rows();
        let goal = StopCondition { samples: 1, limit: Duration::from_secs(60) };
        let start = Instant::now();
        let mut contestants = [contestant("a"), contestant("b")];
        let outcome = turns::run_turns(rows, &mut contestants, goal, &mut || start.elapsed(), &mut |_, _| {}).unwrap();
        let found = report::row_results(&outcome);
        assert!(!found.is_empty() && outcome.failures.is_empty());
        assert!(report::json(&found[0]).unwrap().starts_with(r#"{"name":"pipe-rtt","class":""#));
    }
}
