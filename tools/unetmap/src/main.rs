// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap`: the command-line front end. Each subcommand has a module.
#![forbid(unsafe_code)]

#[cfg(feature = "apps")]
mod apps;
mod capture;
mod config;
mod doctor;
mod events;
mod http;
mod knobs;
mod ls;
mod metrics;
mod nic;
mod node;
mod replay;
mod run;
mod stop;
mod top;
mod vale;

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use nic::args::{BypassArgs, NicArgs};
use tool_common::{Failure, note};
use unetmap_bench::{Bench, Options, Peer, Report};
use unetmap_quantity::{seconds, within};

/// netmap in user space: shows open ports, checks this machine, and measures performance.
#[derive(Debug, Parser)]
#[command(name = "unetmap", version = unetmap::version(), max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(LsArgs),
    Top(TopArgs),
    Events(events::EventsArgs),
    Nic(NicArgs),
    Bypass(BypassArgs),
    Vale(vale::ValeArgs),
    #[cfg(feature = "apps")]
    #[command(flatten)]
    App(apps::App),
    Node(node::NodeArgs),
    Get(GetArgs),
    Set(SetArgs),
    Reload(ReloadArgs),
    Stop(stop::StopArgs),
    Config(config::ConfigArgs),
    Metrics(MetricsArgs),
    Doctor(DoctorArgs),
    Bench(BenchArgs),
    Run(RunArgs),
    Capture(capture::CaptureArgs),
    Replay(replay::ReplayArgs),
}

/// Run a program that was written for netmap, or one that uses libpcap.
///
/// A program that uses libpcap, such as tcpdump or scapy, opens ports by their names (unetmap-pcap(7)).
///
/// A program that was written for netmap can open /dev/netmap, even if this machine has no such file. unetmap handles
/// the program's open, ioctl, mmap, poll, select and epoll calls on it; all other calls go to the system. The program
/// must be linked dynamically, and must not be setuid, because the loader preloads no library into such programs.
/// UNETMAP_VERBOSE=1 prints the reason for each refused request.
#[derive(Debug, Args)]
struct RunArgs {
    /// Allow the program to open the interface of the default route, which disconnects the host (UNETMAP_FORCE=1)
    #[arg(long)]
    force: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<std::ffi::OsString>,
}

/// Show the daemon's regions, ports, rings and sessions.
#[derive(Debug, Args)]
struct LsArgs {
    /// Show what each user has of the daemon, and its budget
    #[arg(long)]
    users: bool,
    /// Show all columns, however long the lines become
    #[arg(short, long)]
    wide: bool,
    /// Print the daemon's reply as JSON
    #[arg(long)]
    json: bool,
}

/// Show the packet rates of all rings, refreshed periodically.
///
/// Shows packets and lost packets per second, and packets per batch, the fastest ring first.
#[derive(Debug, Args)]
struct TopArgs {
    /// Time between two refreshes
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval, allow_hyphen_values = true)]
    interval: Duration,

    /// Number of refreshes (0 = unlimited)
    #[arg(short = 'n', long, value_name = "N", default_value_t = 0)]
    count: u64,

    /// Print one JSON object per ring and refresh
    #[arg(long)]
    json: bool,
}

/// Parses the time between two refreshes.
fn interval(text: &str) -> Result<Duration, String> {
    within(seconds, Duration::from_millis(50)..=Duration::from_secs(3600))(text)
}

/// Show the values of netmap's knobs in this user's daemon.
///
/// `applies` is when a new value takes effect: now; for ports opened afterwards (open); for regions created afterwards
/// (region); or never: the value is stored and has no effect here.
#[derive(Debug, Args)]
struct GetArgs {
    /// Print only the value of this knob
    #[arg(value_name = "KNOB")]
    knob: Option<String>,

    /// Print the daemon's reply as JSON
    #[arg(long)]
    json: bool,
}

/// Set one of netmap's knobs, until the daemon exits.
///
/// Sets the knob in this user's daemon. The daemon is started if none runs, and does not exit when idle while a knob
/// differs from its value at startup. Only the daemon's own user and root can set knobs. To set knobs permanently, see
/// --config in unetmapd(8).
#[derive(Debug, Args)]
struct SetArgs {
    /// Name of the knob; `unetmap get` lists all
    #[arg(value_name = "KNOB")]
    knob: String,

    /// A number, hexadecimal with 0x; a size, such as 4KiB, for knobs named _size; a time for sink_delay_ns
    #[arg(value_name = "VALUE", allow_negative_numbers = true)]
    value: String,

    /// Print the daemon's reply as JSON
    #[arg(long)]
    json: bool,
}

/// Have the daemon read its configuration and its policy again.
///
/// Prints what that changes. Open ports stay as they are. A file with an error changes nothing; the error is reported
/// with its line. SIGHUP does the same, with the result in the daemon's log.
#[derive(Debug, Args)]
struct ReloadArgs {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Print the daemons' counters for Prometheus, or serve them (unetmap-metrics(7)).
///
/// Shows what `unetmap ls` shows the same user, in Prometheus's text format; over HTTP in the format that the request's
/// Accept prefers.
#[derive(Debug, Args)]
struct MetricsArgs {
    /// Serve them over HTTP at /metrics instead, until a signal
    #[arg(short, long, value_name = "unix:PATH|ADDRESS:PORT", value_parser = metrics::place)]
    listen: Option<String>,

    /// Also answer requests whose Host is NAME, besides the address that they came to; may be given several times
    #[arg(long = "host", value_name = "NAME", requires = "listen")]
    hosts: Vec<String>,

    /// Print OpenMetrics text
    #[arg(long, conflicts_with = "listen")]
    openmetrics: bool,
}

/// Check what this machine and its interfaces support, and print how to fix what is missing.
///
/// Without an interface: checks the machine, and lists all interfaces in a table; changes nothing. With an interface
/// that nothing uses: also opens one of its queues as a port would, for a moment. The exit status is 0 if a port could
/// be opened, 1 if a requirement is missing. Checks that this user has no permission to make are reported as unknown.
#[derive(Debug, Args)]
struct DoctorArgs {
    /// An interface of this network namespace, or a port on one (netmap:IF)
    #[arg(value_name = "IF", value_parser = doctor::interface)]
    interface: Option<String>,

    /// Print the kernel version that each feature needs, as a Markdown table
    #[arg(long, conflicts_with_all = ["interface", "json", "report"])]
    kernels: bool,

    /// Print what to attach to a report of a bug: this machine, the daemon and IF, without private things
    #[arg(long)]
    report: bool,

    /// Print one JSON object: kernel, ok, checks, interfaces
    #[arg(long)]
    json: bool,
}

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
/// bridge forwards from one interface to another. `host-tcp`: TCP throughput each way between an interface and the host
/// stack through bridge. `host-rtt`: the median round trip of a ping there. Peer of both: the same veth pair without
/// unetmap. `lb`: lb forwards to the reader of four pipes. `scrub`: the example scrubber receives when nine packets of
/// ten are bad. Peer of both: a plain receiver.
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
struct BenchArgs {
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

fn main() -> ExitCode {
    let done = execute(tool_common::parse::<Cli>().command);
    tool_common::exit_code("unetmap", done.map(ExitCode::from))
}

/// Performs the command. Returns the exit status.
fn execute(command: Command) -> Result<u8, Failure> {
    let done = match command {
        Command::Ls(args) => ls::run(args.users, args.json, args.wide),
        Command::Top(args) => top::run(args.interval, args.count, args.json),
        Command::Events(args) => events::run(&args),
        Command::Nic(args) => {
            let text = nic::args::run(&args)?;
            if args.save {
                config::save(&args.interface, nic::args::keys(&args))?;
            }
            print("nic", &text)
        }
        Command::Bypass(BypassArgs { first, second, off, json, save }) => {
            let text = nic::failure::bypass([&first, &second], off.is_some(), json)?;
            for interface in [&first, &second].into_iter().filter(|_| save) {
                config::save(interface, &["failure"])?;
            }
            print("bypass", &text)
        }
        Command::Vale(args) => {
            let text = vale::run(&args)?;
            if let Some((subject, keys)) = vale::changed(&args).filter(|_| args.save) {
                config::save(subject, &keys)?;
            }
            print("vale", &text)
        }
        #[cfg(feature = "apps")]
        Command::App(app) => return apps::run(&app),
        Command::Config(args) => config::run(&args),
        Command::Metrics(args) => metrics::run(args.listen.as_deref(), &args.hosts, args.openmetrics),
        Command::Node(args) => node::run(args.action, args.json),
        Command::Get(args) => return knobs::get(args.knob.as_deref(), args.json),
        Command::Set(SetArgs { knob, value, json }) => {
            let number = unetmap_quantity::knob(&knob, &value).unwrap_or_else(|why| {
                let wrong = format!("invalid value '{value}' for '{knob}': {why}");
                Cli::command().error(ErrorKind::InvalidValue, wrong).exit()
            });
            return knobs::set(&knob, number, json);
        }
        Command::Reload(args) => knobs::reload(args.json),
        Command::Stop(args) => stop::run(&args),
        Command::Doctor(args) if args.kernels => print("doctor", &unetmap_sys::kernel::table()),
        Command::Doctor(args) => {
            doctor::run(args.interface.as_deref(), doctor::Output { json: args.json, report: args.report })
        }
        Command::Capture(args) => return capture::run(&args),
        Command::Replay(args) => return replay::run(&args),
        Command::Run(args) => Ok(run::run(&args.program, args.force)),
        Command::Bench(args) => return bench(args),
    };
    Ok(done?)
}

/// Performs `unetmap bench`. Returns the exit status.
fn bench(args: BenchArgs) -> Result<u8, Failure> {
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

/// Parses the words of a command of this program. The error is the first line of clap's.
fn command(words: &[String]) -> Result<Command, String> {
    let words = std::iter::once("unetmap").chain(words.iter().map(String::as_str));
    let parsed = Cli::try_parse_from(words).map_err(|e| {
        let text = e.to_string();
        text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
    });
    Ok(parsed?.command)
}

/// Performs a command of this program that changes something, without its output.
fn perform(words: &[String]) -> Result<(), String> {
    match command(words)? {
        Command::Vale(args) => vale::run(&args).map(drop).map_err(|failure| failure.to_string()),
        Command::Nic(args) => nic::args::run(&args).map(drop).map_err(|failure| failure.to_string()),
        _ => Err(format!("`unetmap {}` is no setting", words.join(" "))),
    }
}

/// Returns the value that such a command sets, as the daemon's state shows it.
fn normal_form(words: &[String]) -> Result<String, String> {
    match command(words)? {
        Command::Vale(args) => vale::normal_form(&args),
        Command::Nic(NicArgs { action: Some(action), .. }) => nic::args::normal_form(action),
        _ => Err(format!("`unetmap {}` is no setting", words.join(" "))),
    }
}

/// Writes `text` to standard output. An error begins with the name of the subcommand.
fn print(subcommand: &str, text: &str) -> Result<u8, String> {
    match tool_common::write(text) {
        // A reader such as `head` closes the pipe early.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        result => result.map(|()| 0).map_err(|e| format!("{subcommand}: standard output: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The sections OPTIONS are generated from the flags. After a change of these, run this test with `UPDATE_MAN=1` in
    /// the environment.
    #[cfg(feature = "apps")]
    #[test]
    fn the_man_pages_are_up_to_date() {
        let mut own = Vec::new();
        for command in Cli::command().get_subcommands() {
            let page = match command.get_name() {
                "run" => "unetmap-run.1",
                "capture" | "replay" => "unetmap-capture.1",
                "vm" => "unetmap-vm.7",
                "memif" => "unetmap-memif.7",
                _ => "unetmap.1",
            };
            own.push((page, command.clone()));
        }
        let path = |page: &str| format!("{}/../../man/{page}", env!("CARGO_MANIFEST_DIR"));
        for page in ["unetmap.1", "unetmap-capture.1", "unetmap-run.1", "unetmap-vm.7", "unetmap-memif.7"] {
            let commands: Vec<_> =
                own.iter().filter(|(of, _)| *of == page).map(|(_, command)| command.clone()).collect();
            tool_common::testing::check_options(&commands, &path(page));
        }
    }

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
