//! Which benchmarks there are.

use std::str::FromStr;

use crate::host;
use crate::nic::Who;
use crate::vale::{self, MOST_SLOTS, Traffic, USUAL_SLOTS};

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
    /// Opening a pipe, and opening one where a daemon has to be started first.
    PipeOpen,
    /// What the daemon takes of a core, and of memory beside the regions, while 100 open ports do nothing.
    Idle,
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
    pub const ALL: [Bench; 27] = [
        Bench::Pipe,
        Bench::PipeBatch,
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
            Bench::PipeOpen => "pipe-open",
            Bench::Idle => "idle-100",
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
    pub(crate) fn is_vale(self) -> bool {
        self.traffic().is_some() || matches!(self, Bench::ValeFan | Bench::ValeRtt)
    }

    /// What goes over a switch, where that is one stream.
    pub(crate) fn traffic(self) -> Option<Traffic> {
        let len = match self {
            Bench::Vale512Copy => 512,
            Bench::Vale1500Copy => 1500,
            Bench::Vale60Copy | Bench::Vale60Swap | Bench::Vale1Core | Bench::ValeIdlePorts => 60,
            _ => return None,
        };
        let idle = if self == Bench::ValeIdlePorts { vale::IDLE } else { 0 };
        Some(Traffic { len, rate: None, share: self == Bench::Vale60Swap, idle })
    }

    /// Slots of a switch port's rings, and those of a second row, where there is one.
    pub(crate) fn slots(self) -> [u32; 2] {
        match self {
            Bench::ValeRtt | Bench::Vale1500Copy => [USUAL_SLOTS, MOST_SLOTS],
            _ => [MOST_SLOTS, USUAL_SLOTS],
        }
    }

    /// Whether it is asked how fast packets may come that none is lost.
    pub(crate) fn may_lose(self) -> bool {
        matches!(self, Bench::Vale60Copy | Bench::Vale512Copy | Bench::Vale1500Copy)
    }

    /// Whether it needs interfaces, and so namespaces, and so root.
    pub(crate) fn is_nic(self) -> bool {
        self == Bench::Pcap || !Who::all(self).is_empty()
    }

    /// Whether it needs a daemon for pipes.
    pub(crate) fn is_pipe(self) -> bool {
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
