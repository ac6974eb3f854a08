// SPDX-License-Identifier: BSD-2-Clause
//! The list of benchmarks.

use std::str::FromStr;

use crate::host;
use crate::nic::Implementation;
use crate::scale::Subject;
use crate::vale::{self, DEFAULT_SLOTS, MAX_SLOTS, Traffic};

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// Two processes, 60 B, 1024 slots, batches of 512, through pkt-gen.
    Pipe,
    /// The same with the sender's batch 1, 8, 64, 256 and 512: a row each.
    PipeBatch,
    /// The same with packets of several sizes: a row each.
    PipeSize,
    /// Both ends in threads of this process; the sender spends 0 to 1000 cycles on each packet: a row each.
    PipeCycles,
    /// Time to open each of N ports, and CPU time and memory of the daemon while they are idle.
    Ports,
    /// Both ends in one thread, batches of 512, through the library: rate, and core cycles per packet.
    PipeOneCore,
    /// The mean round trip of one packet, two threads, through the library, payload untouched, both sides busy-waiting.
    PipeRtt,
    /// The median round trip between two pkt-gen processes, ping and pong, which write and read a timestamp.
    PipePing,
    /// Time to open a pipe, and time to open one if the daemon has to be started first.
    PipeOpen,
    /// CPU time and memory (without the regions) of the daemon while 100 ports are open and idle.
    Idle,
    /// Two processes of a preloaded C program, with batches of 1, 64 and 512, against pkt-gen: a row each.
    PreloadPipe,
    /// A `poll` of a file that is not netmap's, in such a program, and the cost that the library adds.
    PreloadPoll,
    /// Two processes of that program, statically linked, on the node, with batches of 512, against pkt-gen.
    NodePipe,
    /// A `poll` there of a port that is ready, with the daemon on the same core, against one with `unetmap run`.
    NodePoll,
    /// 60 B over a switch, from one pkt-gen to another; the share of lost packets; and the highest rate without loss.
    Vale60Copy,
    /// The same with 512 B.
    Vale512Copy,
    /// The same with 1500 B.
    Vale1500Copy,
    /// 60 B over a switch with the sender's batch 1, 8, 64 and 512: a row each.
    ValeBatch,
    /// Packets of several sizes over a switch: a row each.
    ValeSize,
    /// 60 B between ports that share a region.
    Vale60Swap,
    /// Sender, switch and receiver on one core.
    Vale1Core,
    /// 60 B to 16 addresses behind four receivers.
    ValeFan,
    /// The share of its best rate that a slow reader gets from a sender at full speed, with batches of 1, 8, 64 and
    /// 512: a row each.
    ValeOverload,
    /// The median round trip over a switch, busy-waiting and sleeping, against a pipe.
    ValeRtt,
    /// 60 B over a switch with 64 additional idle ports.
    ValeIdlePorts,
    /// 60 B over a switch for ten minutes without a pause: rate, the worst second, and memory of the daemon.
    ValeSteady,
    /// 60 B sent from one queue of an interface, through pkt-gen.
    NicTx,
    /// pkt-gen receives at an interface whose other end sends as fast as it can.
    NicRx,
    /// The same as `NicTx` with batches of 1, 8, 64 and 512: a row each.
    NicTxBatch,
    /// The same as `NicTx` with packets of several sizes: a row each.
    NicTxSize,
    /// The same as `NicRx` with packets of several sizes: a row each.
    NicRxSize,
    /// `bridge` forwards from one interface to another.
    NicFwd,
    /// TCP between two stacks, as iperf3 measures it, over a switch, `bridge` and `unetmap-fw`: a row for each way.
    Tcp,
    /// TCP throughput through `bridge` between an interface and the host stack, each way.
    HostTcp,
    /// The round trip of a ping there.
    HostRtt,
    /// A libpcap program on a switch, a pipe and an interface, and with the system's libpcap: a row for each task.
    Pcap,
    /// `lb` forwards from an interface to the reader of four pipes.
    Lb,
    /// `unetmap scrub` receives at an interface when nine packets of ten are bad.
    Scrub,
    /// `unetmap-fw` between two pipes: a row for each number of rules, for states and for NAT.
    Fw,
    /// `unetmap emulate` between two pipes: a row for a delay and one for FQ-CoDel.
    Emulate,
    /// `unetmap-fw` between two interfaces.
    FwNic,
    /// `unetmap emulate` between two interfaces.
    EmulateNic,
    /// Packets from DPDK's `testpmd` over a switch by memif to pkt-gen, and back, against two `testpmd`.
    Memif,
    /// The same by vhost-user, with the virtio-user of DPDK as the guest.
    Vhost,
    /// A pipe whose one end is the memory of a device, as in a guest, each way, against an ordinary pipe.
    Ivshmem,
    /// How a figure changes with a number; `None`: all subjects.
    Scale(Option<Subject>),
}

impl Bench {
    /// All benchmarks.
    pub const ALL: [Bench; 58] = [
        Bench::Pipe,
        Bench::PipeBatch,
        Bench::PipeSize,
        Bench::PipeCycles,
        Bench::Ports,
        Bench::PipeOneCore,
        Bench::PipeRtt,
        Bench::PipePing,
        Bench::PipeOpen,
        Bench::Idle,
        Bench::PreloadPipe,
        Bench::PreloadPoll,
        Bench::NodePipe,
        Bench::NodePoll,
        Bench::Vale60Copy,
        Bench::Vale512Copy,
        Bench::Vale1500Copy,
        Bench::ValeBatch,
        Bench::ValeSize,
        Bench::Vale60Swap,
        Bench::Vale1Core,
        Bench::ValeFan,
        Bench::ValeOverload,
        Bench::ValeRtt,
        Bench::ValeIdlePorts,
        Bench::ValeSteady,
        Bench::NicTx,
        Bench::NicRx,
        Bench::NicTxBatch,
        Bench::NicTxSize,
        Bench::NicRxSize,
        Bench::NicFwd,
        Bench::Tcp,
        Bench::HostTcp,
        Bench::HostRtt,
        Bench::Pcap,
        Bench::Lb,
        Bench::Scrub,
        Bench::Fw,
        Bench::Emulate,
        Bench::FwNic,
        Bench::EmulateNic,
        Bench::Memif,
        Bench::Vhost,
        Bench::Ivshmem,
        Bench::Scale(None),
        Bench::Scale(Some(Subject::Ports)),
        Bench::Scale(Some(Subject::Senders)),
        Bench::Scale(Some(Subject::Load)),
        Bench::Scale(Some(Subject::Addresses)),
        Bench::Scale(Some(Subject::Flood)),
        Bench::Scale(Some(Subject::Policies)),
        Bench::Scale(Some(Subject::Threads)),
        Bench::Scale(Some(Subject::Rings)),
        Bench::Scale(Some(Subject::Pairs)),
        Bench::Scale(Some(Subject::Ls)),
        Bench::Scale(Some(Subject::Close)),
        Bench::Scale(Some(Subject::Pipes)),
    ];

    /// Returns the name on the command line and in the results.
    pub fn name(self) -> &'static str {
        match self {
            Bench::Pipe => "pipe",
            Bench::PipeBatch => "pipe-batch",
            Bench::PipeSize => "pipe-size",
            Bench::PipeCycles => "pipe-cycles",
            Bench::Ports => "ports",
            Bench::PipeOneCore => "pipe-1core",
            Bench::PipeRtt => "pipe-rtt",
            Bench::PipePing => "pipe-ping",
            Bench::PipeOpen => "pipe-open",
            Bench::Idle => "idle-100",
            Bench::PreloadPipe => "preload-pipe",
            Bench::PreloadPoll => "preload-poll",
            Bench::NodePipe => "node-pipe",
            Bench::NodePoll => "node-poll",
            Bench::Vale60Copy => "vale-60-copy",
            Bench::Vale512Copy => "vale-512-copy",
            Bench::Vale1500Copy => "vale-1500-copy",
            Bench::ValeBatch => "vale-batch",
            Bench::ValeSize => "vale-size",
            Bench::Vale60Swap => "vale-60-swap",
            Bench::Vale1Core => "vale-1core",
            Bench::ValeFan => "vale-fan",
            Bench::ValeOverload => "vale-overload",
            Bench::ValeRtt => "vale-rtt",
            Bench::ValeIdlePorts => "vale-idle-ports",
            Bench::ValeSteady => "vale-steady",
            Bench::NicTx => "nic-tx",
            Bench::NicRx => "nic-rx",
            Bench::NicTxBatch => "nic-tx-batch",
            Bench::NicTxSize => "nic-tx-size",
            Bench::NicRxSize => "nic-rx-size",
            Bench::NicFwd => "nic-fwd",
            Bench::Tcp => "tcp",
            Bench::HostTcp => "host-tcp",
            Bench::HostRtt => "host-rtt",
            Bench::Pcap => "pcap",
            Bench::Lb => "lb",
            Bench::Scrub => "scrub",
            Bench::Fw => "fw",
            Bench::Emulate => "emulate",
            Bench::FwNic => "fw-nic",
            Bench::EmulateNic => "emulate-nic",
            Bench::Memif => "memif",
            Bench::Vhost => "vhost",
            Bench::Ivshmem => "ivshmem",
            Bench::Scale(None) => "scale",
            Bench::Scale(Some(subject)) => subject.name(),
        }
    }

    /// Returns true if the benchmark uses a switch, with a daemon of its own.
    pub(crate) fn is_vale(self) -> bool {
        self.traffic().is_some()
            || matches!(self, Bench::ValeFan | Bench::ValeOverload | Bench::ValeRtt | Bench::Memif | Bench::Vhost)
    }

    /// Returns the stream over a switch, for the benchmarks that measure one stream.
    pub(crate) fn traffic(self) -> Option<Traffic> {
        let len = match self {
            Bench::Vale512Copy => 512,
            Bench::Vale1500Copy => 1500,
            Bench::ValeBatch
            | Bench::ValeSize
            | Bench::Vale60Copy
            | Bench::Vale60Swap
            | Bench::Vale1Core
            | Bench::ValeIdlePorts
            | Bench::ValeSteady => 60,
            _ => return None,
        };
        let idle = if self == Bench::ValeIdlePorts { vale::IDLE } else { 0 };
        Some(Traffic { len, batch: 512, rate: None, share: self == Bench::Vale60Swap, idle })
    }

    /// Returns the slots of a switch port's rings, and of the second row with other rings, if there is one.
    pub(crate) fn slots(self) -> [u32; 2] {
        match self {
            Bench::ValeOverload | Bench::ValeRtt | Bench::Vale1500Copy => [DEFAULT_SLOTS, MAX_SLOTS],
            _ => [MAX_SLOTS, DEFAULT_SLOTS],
        }
    }

    /// Returns true if the benchmark measures losses and the highest rate without loss.
    pub(crate) fn may_lose(self) -> bool {
        matches!(self, Bench::Vale60Copy | Bench::Vale512Copy | Bench::Vale1500Copy)
    }

    /// Returns true if the benchmark needs interfaces, hence network namespaces, hence root.
    pub(crate) fn is_nic(self) -> bool {
        matches!(self, Bench::Pcap | Bench::FwNic | Bench::EmulateNic) || !Implementation::of(self).is_empty()
    }

    /// Returns true if the benchmark needs a daemon for pipes.
    pub(crate) fn is_pipe(self) -> bool {
        !self.is_nic() && !self.is_vale() && !host::is_host(self) && !matches!(self, Bench::Scale(_) | Bench::Tcp)
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
