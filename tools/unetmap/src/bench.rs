// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap bench`: measurements, which are not of the core.

use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tool_common::Failure;
use unetmap_bench::{Bench, Options, Peer, Report};
use unetmap_quantity::{seconds, within};

/// Measure the performance of unetmap on this machine, alternating with peers.
///
/// Pipes: `pipe` measures two pkt-gen processes, 60 B, 1024 slots, batches of 512. `pipe-batch`: the same with sender
/// batches of 1, 8, 64, 256 and 512. `pipe-1core`: both ends in one thread; also core cycles per packet. `pipe-rtt`:
/// the mean round trip of one packet between two threads, through the library, payload untouched. `pipe-ping`: the
/// median round trip between two pkt-gen processes, which write and read a timestamp. In pipe-rtt and pipe-ping both
/// sides busy-wait. Peers: a UNIX seqpacket socket; of pipe, pipe-batch and pipe-rtt also an rte_ring of DPDK.
///
/// `pipe-size`: `pipe` with packets of 60 to 1514 bytes. `pipe-cycles`: threads of this process, of which the sender
/// spends 0 to 1000 cycles on each packet, also with 2 and 4 ring pairs (2q, 4q). `ports`: the time to open each of 1
/// to 500 ports, and CPU time and memory (without the regions) of the daemon while they are idle.
///
/// `pipe-open`: the time to open a pipe, and to close it (-close), medians and 99th percentiles (-p99) of 100; and, in
/// the row pipe-open-cold, to start a pkt-gen that also starts the daemon.
/// `idle-100`: CPU time and memory (without the regions) that the daemon uses while 100 ports are open and idle.
///
/// `preload-pipe`: `pipe` with a C program written for netmap, under `unetmap run`, with batches of 1, 64 and 512.
/// Peers: the same program linked with the library, and pkt-gen. `preload-poll`: a poll of a file that is not netmap's,
/// in such a program. Peer: poll of the C library alone.
///
/// `node-pipe`: the same program, statically linked, on a /dev/netmap that the benchmark creates, with batches of 512.
/// Peer: pkt-gen. `node-poll`: a poll there of a port that is ready, with the daemon on the same core. Peer: the same
/// program under `unetmap run`. Both need root.
///
/// VALE switches, with a daemon that the first pkt-gen starts: `vale-60-copy`, `vale-512-copy`, `vale-1500-copy`: one
/// sender and one receiver; also the share of lost packets, and the highest rate at which at most one packet in a
/// thousand is lost. `vale-60-swap`: ports that share a region. `vale-1core`: all on one core. `vale-fan`: 16 addresses
/// behind four receivers. `vale-batch` and `vale-size`: 60 B with batches of 1 to 512, and packets of 60 to 1514 bytes.
/// `vale-overload`: the share of its best rate that a slow C program gets from a sender at full speed, with batches of
/// 1, 8, 64 and 512. `vale-rtt`: the median and the 99th percentile (-p99) of pkt-gen's pings, busy-waiting and
/// sleeping. Peer: a pipe. `vale-idle-ports`: with 64 more ports. Peer: no additional ports. `vale-steady`: one stream,
/// which goes on for ten minutes (five times --seconds) without a pause, in samples of a minute: the rate, that of the
/// worst second in percent of it, and the memory of the daemon without the regions. Streams use rings of 4096 slots;
/// overload, streams of 1500 B, and round trips, rings of 1024 slots. A row name that ends in a number uses rings of
/// that many slots.
///
/// Interfaces, in network namespaces that the benchmark creates (needs root): `nic-tx`: pkt-gen sends 60 B frames from
/// one queue; `nic-tx-batch` and `nic-tx-size` with batches of 1 to 512, and with packets of 60 to 1514 bytes. `nic-rx`
/// (`nic-rx-size`): pkt-gen receives while the other end of the veth pair sends as fast as it can. `nic-fwd`:
/// bridge forwards from one interface to another. `tcp`: iperf3 between two stacks, joined by persistent ports of a
/// switch (tcp-switch; -kernel with the knob `vale_kernel`; -worker: whole packets through the switch's threads), by
/// bridge, and by unetmap-fw with one rule, with packet sockets and virtio-net headers; also processor time (-cpu) and
/// packets that were sent again (-repeated). Peer: the kernel's bridge between two veth pairs. `host-tcp`: TCP
/// throughput each way between an interface and the host stack through bridge. `host-rtt`: the median round trip of a
/// ping there. Peer of both: the same veth pair without unetmap. `lb`: lb forwards to the reader of four pipes.
/// `scrub`: `unetmap scrub` receives when nine packets of ten are bad. Peer of both: a plain receiver.
///
/// `pcap`: a C program that uses libpcap, and tcpdump, with unetmap's libpcap on a switch, a pipe and an interface.
/// Peer: the system's libpcap on the interface. Needs root. Rows: pcap-dispatch (pcap_dispatch counts 60 B packets),
/// pcap-filter (the same with a filter of 27 instructions), pcap-next-ex, pcap-inject, pcap-nic-rx, pcap-nic-tx,
/// pcap-tcpdump (tcpdump -w /dev/null on a pipe, and on the interface with the system's libpcap) and
/// pcap-tcpdump-arrived (percentage of the packets).
///
/// `fw`: unetmap-fw between two pipes, with 1, 10, 100 and 1000 rules, with a state for each of a million flows,
/// and with NAT of 1024. `emulate`: a link with a delay of 1 ms, and with FQ-CoDel and 1024 flows; the row
/// emulate-delay-late is how much later than asked the 99th of 100 packets arrives, at a million a second, which one
/// thread sends and receives. Peer: a thread that only looks at the clock. Sender and receiver share a core, the
/// program has the other one. `fw-nic`, `emulate-nic`: the same between two interfaces (needs root). Peers: bridge;
/// between interfaces also the kernel's bridge with nftables, tc or netem, where the kernel has them.
///
/// `memif`, `vhost`: a program with DPDK's drivers sends packets of 60 to 64000 B by memif, or by vhost-user with its
/// virtio-user in place of a guest, to a port of a switch, and pkt-gen receives them; in rows NAME-back the other way.
/// Peers: that program at both ends (`dpdk`), and pkt-gen at both ends of the switch (`ports`). They need DPDK's
/// libraries (Debian: libdpdk-dev, pkg-config).
///
/// `scale`: how a figure changes with a number, in rows NAME-N, with daemons that the benchmark starts; also one by
/// one: `scale-ports` (time to open a port of a switch that has N), `scale-senders` (N ports send 1000 packets per
/// second each to a neighbour: CPU time of the daemon in percent of a core, packets per second delivered to each port,
/// and to the one that gets the fewest, in percent of the mean; also in 8 and 64 processes), `scale-load` (the same
/// with 10,000), `scale-addresses` (rate of a sender with N source addresses, all of which the switch can learn),
/// `scale-flood` (rate of packets to an unknown address beside N ports with full rings, and of broadcasts to N ports
/// that read, delivered in all), `scale-policies` (time for a packet to one of N ports without a policy, and with a
/// VLAN, a filter or a rate limit each), `scale-threads` (rate of N threads of the daemon while the programs sleep),
/// `scale-rings` (a poll over N rings, the time to wake it, and a sync that notifies although nobody waits),
/// `scale-pairs` (sum of the rates of N pipes, and the smallest in percent of the mean), `scale-ls` (a snapshot of N
/// ports, and the 99th percentile of the time to open one meanwhile), `scale-close` (time for each of N pipes of a
/// region that close together), `scale-pipes` (time to open, and to close, each of N pipes with regions of their own,
/// and descriptors of the daemon for each; 10,000 only where the limit of open files allows it).
/// `growth` is that of the cost: flat, sublinear, linear or superlinear. To compare with another build: --peer
/// 'before=OLD/unetmap bench "$BENCH" --samples 1 --json'.
///
/// The distance of the two cores is probed before and after each sample: class L if the round trip of a cache line
/// takes less than 200 ns, else R. Figures of different classes are never compared. A benchmark ends when each
/// contestant has enough samples of one class; standard error says which class has too few, and which did not occur:
/// most machines have one class only.
///
/// ours/its, and `ratio` in JSON, is unetmap's median divided by the peer's: for rates (Mpps, Gbit/s) higher is better,
/// for times (ns, us, cycles) lower.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Benchmarks to run
    #[arg(required_unless_present = "report", value_name = "NAME", value_parser = bench_names())]
    names: Vec<Bench>,

    /// Start no sample after this time; per benchmark, and per row in pipe-batch, preload-pipe, pcap and scale
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = within::<Duration, Duration>(seconds, Duration::from_secs(1)..=Duration::from_secs(86_400)), allow_hyphen_values = true)]
    seconds: Duration,

    /// Samples that each contestant needs in one class
    #[arg(long, value_name = "SAMPLES", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    samples: u32,

    /// Add COMMAND as a peer; may be given several times
    ///
    /// COMMAND is run by `sh -c` once a turn, with BENCH (the row's name), BATCH (the sender's batch) and, for a
    /// switch, LEN (bytes of a packet) in its environment. It prints a line for each class:
    /// {"name":"x","class":"L","unit":"Mpps","median":1.5,"min":1,"max":2,"n":9}. It is compared with the row that has
    /// the same name and unit, else the same unit. A command that fails is not run again, and the exit status is 1.
    #[arg(long = "peer", value_name = "LABEL=COMMAND")]
    peers: Vec<Peer>,

    /// Print JSON, one object per line: name, class, unit, median, min, max, low, high (the interval of the median), n,
    /// repeated (disturbed samples), growth (of scale), peers {label: {median, low, high, n, ratio, growth}}
    #[arg(long)]
    json: bool,

    /// Measure what a report needs (less than 15 minutes), and write DIR/index.html, a page with charts,
    /// DIR/report.json, and DIR/report.md, tables
    #[arg(long, value_name = "DIR", conflicts_with_all = ["names", "seconds", "json"])]
    report: Option<std::path::PathBuf>,

    /// With --report: fewer benchmarks and points, in less than 3 minutes
    #[arg(long, requires = "report", conflicts_with = "names")]
    quick: bool,

    /// With --report: also the row vale-steady, ten minutes of load without a pause, which takes ten minutes more
    #[arg(long, requires = "report", conflicts_with = "names")]
    steady: bool,

    /// With --report: mark what moved beyond noise since the report whose report.json this is
    #[arg(long, value_name = "OLD", requires = "report", conflicts_with = "names")]
    compare: Option<std::path::PathBuf>,
}

fn bench_names() -> impl TypedValueParser<Value = Bench> {
    PossibleValuesParser::new(Bench::ALL.map(Bench::name)).try_map(|name| name.parse::<Bench>())
}

/// Performs `unetmap bench`. Returns the exit status.
pub(crate) fn run(args: BenchArgs) -> Result<u8, Failure> {
    let options = Options {
        benches: args.names,
        samples: args.samples,
        limit: args.seconds,
        peers: args.peers,
        json: args.json,
        report: args.report.map(|folder| Report {
            folder,
            quick: args.quick,
            steady: args.steady,
            compare: args.compare,
        }),
    };
    unetmap_bench::check(&options).map_err(Failure::Usage)?;
    Ok(unetmap_bench::run(&options)?)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::{Cli, Command};

    #[test]
    fn bench_options_are_parsed_or_refused() {
        let parse = |words: &[&str]| Cli::try_parse_from(["unetmap", "bench"].iter().chain(words));
        let Command::Bench(args) = parse(&["pipe", "pipe-rtt", "--peer", "a=b", "--json"]).unwrap().command else {
            panic!("not bench");
        };
        assert_eq!(args.names, [Bench::Pipe, Bench::PipeRtt]);
        assert_eq!((args.seconds, args.samples, args.json), (Duration::from_secs(120), 7, true));
        assert_eq!(args.peers[0].label, "a");
        for (words, part) in [
            (&[][..], "required"),
            (&["pips"], "possible values: pipe, pipe-batch, pipe-size, pipe-cycles"),
            (&["pipe", "--peer", "x"], "give LABEL=COMMAND"),
            (&["pipe", "--samples", "0"], "0 is not in 1..=10000"),
            (&["pipe", "--seconds", "0"], "from 1s to 86400s"),
            (&["pipe", "--seconds", "x"], "invalid"),
            (&["pipe", "--report", "r"], "--report"),
            (&["pipe", "--quick"], "--quick"),
            (&["--compare", "x", "--quick"], "required"),
        ] {
            let message = parse(words).unwrap_err().to_string();
            assert!(message.contains(part), "{words:?}: {message}");
        }
    }
}
