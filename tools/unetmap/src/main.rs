//! unetmap: the front command.
#![forbid(unsafe_code)]

mod capture;
mod doctor;
mod knobs;
mod ls;
mod nic;
mod node;
mod replay;
mod run;
mod top;
mod vale;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use tool_common::note;
use unetmap_bench::{Bench, Options, Peer};

/// netmap in user space: what is open, what this machine can do, and how fast it is.
#[derive(Debug, Parser)]
#[command(name = "unetmap", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(LsArgs),
    Top(TopArgs),
    Nic(NicArgs),
    Vale(vale::ValeArgs),
    Node(NodeArgs),
    Get(GetArgs),
    Set(SetArgs),
    Doctor(DoctorArgs),
    Bench(BenchArgs),
    Run(RunArgs),
    Capture(capture::CaptureArgs),
    Replay(replay::ReplayArgs),
}

/// Run a program that was written for netmap.
///
/// The program finds /dev/netmap, whatever this machine has there: its calls of open, ioctl, mmap, poll, select and epoll
/// on it are answered by unetmap, all others by the system. It must be linked dynamically; to programs that change their
/// user (setuid) the system does not let this happen. UNETMAP_VERBOSE=1 makes it say why a request was refused.
#[derive(Debug, Args)]
struct RunArgs {
    /// Let it open interfaces even if that cuts the host off: those that carry the default route (UNETMAP_FORCE=1)
    #[arg(long)]
    force: bool,

    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<std::ffi::OsString>,
}

/// Show the daemon's regions, ports, rings and sessions.
#[derive(Debug, Args)]
struct LsArgs {
    /// Print what the daemon says, as JSON
    #[arg(long)]
    json: bool,
}

/// Show what moves through all rings, again and again.
///
/// Packets and losses a second, and packets a batch, the fastest ring first.
#[derive(Debug, Args)]
struct TopArgs {
    /// Time between two looks
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,

    /// Looks, then it ends; 0: until it is stopped
    #[arg(short = 'n', long, value_name = "N", default_value_t = 0)]
    count: u64,

    /// One JSON object a ring and look
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a time is 0.05 to 3600 seconds".into()),
    }
}

/// Show an interface's port, or choose which frames enter it.
///
/// Frames that do not match the filter stay with the kernel's network stack, as if no port were open. The filter stays
/// until it is taken off or the interface is gone, whether a port is open or not. It is set by root, and by users who open
/// the interface directly (unetmap-policy(5)).
#[derive(Debug, Args)]
struct NicArgs {
    /// An interface of this network namespace, or a port on one (netmap:IF)
    #[arg(value_name = "IF", value_parser = doctor::interface)]
    interface: String,

    #[command(subcommand)]
    action: Option<NicAction>,

    /// Print what the daemon says, as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum NicAction {
    /// Let only these frames enter its port
    Filter {
        /// An expression as of tcpdump (pcap-filter(7)); off: all frames enter
        #[arg(required = true, value_name = "EXPRESSION|off")]
        expression: Vec<String>,
    },
    /// Have calls on its port look into its queues themselves, instead of waiting for interrupts
    BusyPoll {
        /// USEC: 1 to 1000 microseconds (SO_BUSY_POLL); BUDGET: packets that one look may take, 1 to 64 (default); off.
        /// Ports that are opened from then on have it
        #[arg(required = true, value_name = "USEC [BUDGET]|off", num_args = 1..=2)]
        words: Vec<String>,
    },
    /// How its driver spreads frames over its queues
    Rss {
        /// Nothing: show it; symmetric: both directions of a flow to one queue; equal N: over the first N queues;
        /// queues LIST: over these; key BYTES: hash with this key
        #[arg(value_name = "CHANGE")]
        change: Vec<String>,
    },
    /// Rules by which its hardware leads frames to queues
    Steer {
        /// Nothing: list them; RULE QUEUE: add one, for instance 'udp dst port 53' 2; off PLACE: remove one
        #[arg(value_name = "RULE QUEUE|off PLACE", num_args = 0..=2)]
        words: Vec<String>,
    },
}

/// Have a /dev/netmap that any program can open.
///
/// For programs that `unetmap run` cannot reach: linked statically, not written in C, waiting through io_uring, or changing
/// their user. The daemon serves it through FUSE, so each request and each poll goes through the daemon; programs that can
/// are faster with `unetmap run`. Needs Linux 6.9, and root to switch it.
#[derive(Debug, Args)]
struct NodeArgs {
    #[command(subcommand)]
    action: NodeAction,

    /// Print what the daemon says, as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum NodeAction {
    /// Make it, and start a daemon if none runs, which then stays
    On {
        /// Where [default: /dev/netmap]
        path: Option<std::path::PathBuf>,
    },
    /// Remove it; files that are open stay usable until they are closed
    Off {
        /// Only if it is there
        path: Option<std::path::PathBuf>,
    },
    /// Say whether it is there, and how many files of it are open
    Status,
}

/// Show netmap's knobs, as this user's daemon has them.
///
/// `applies` says when a value that is set counts: now, for ports that are opened (open), for regions that are made
/// (region); or never: it is kept, and changes nothing here.
#[derive(Debug, Args)]
struct GetArgs {
    /// Only the value of this one
    #[arg(value_name = "KNOB")]
    knob: Option<String>,

    /// Print what the daemon says, as JSON
    #[arg(long)]
    json: bool,
}

/// Set one of netmap's knobs, until the daemon ends.
///
/// The daemon of this user, which is started if none runs, and does not end by itself while a knob is other than it was at
/// its start. Only its own user and root may. To set knobs for good, see unetmapd(8), --config.
#[derive(Debug, Args)]
struct SetArgs {
    /// Its name; `unetmap get` shows all
    #[arg(value_name = "KNOB")]
    knob: String,

    /// A whole number, perhaps 0x and hexadecimal
    #[arg(value_name = "VALUE", value_parser = knobs::value)]
    value: u64,

    /// Print what the daemon says, as JSON
    #[arg(long)]
    json: bool,
}

/// Say what this machine and its interfaces can do, and what to change.
///
/// Opens no port and changes nothing. Without an interface: the machine, and all interfaces in a table. The exit status is
/// 0 when a port could be opened, 1 when something that it needs is missing. What this user may not try is unknown.
#[derive(Debug, Args)]
struct DoctorArgs {
    /// An interface of this network namespace, or a port on one (netmap:IF)
    #[arg(value_name = "IF", value_parser = doctor::interface)]
    interface: Option<String>,

    /// One JSON object: kernel, ok, checks, interfaces
    #[arg(long)]
    json: bool,
}

/// Measure, in turns with others, what this machine can do.
///
/// Benchmarks: `pipe` two processes, 60 B, 1024 slots, batches of 512, through pkt-gen; `pipe-batch` the same with the
/// sender's batch 1, 8, 64, 256 and 512; `pipe-1core` both ends in one thread, and core cycles a packet; `pipe-rtt` the
/// mean round trip of one packet between two threads, through the library, payload untouched; `pipe-ping` the median
/// round trip between two pkt-gen processes, which write and read a time stamp. In both, both sides stay awake.
///
/// `pipe-open` opening a pipe, and, in the row pipe-open-cold, starting a pkt-gen that has to start a daemon for it; `idle-100`
/// what the daemon takes while 100 open ports do nothing: of a core, and of memory beside the regions.
///
/// `preload-pipe` is `pipe` by a C program that was written for netmap, under `unetmap run`, with batches of 1, 64 and
/// 512, beside itself linked with the library, and pkt-gen; `preload-poll` a poll of another file in such a program,
/// beside the C library's own.
///
/// `node-pipe` is the same program, linked statically, on a /dev/netmap of the benchmark's own, with batches of 512, beside
/// pkt-gen; `node-poll` a poll there that finds something ready, with the daemon on the same core, beside one under
/// `unetmap run`. Both are for root.
///
/// Over a switch, whose daemon the first pkt-gen starts: `vale-60-copy`, `vale-512-copy`, `vale-1500-copy` one sender and one
/// receiver, the part of the packets that was lost, and the highest rate at which at most one in a thousand was; `vale-60-swap`
/// ports that share a region; `vale-1core` all on one core; `vale-fan` 16 addresses behind four receivers; `vale-rtt` the
/// median of pkt-gen's pings, awake and asleep, beside a pipe's; `vale-idle-ports` with 64 more ports, beside none. Streams go
/// through rings of 4096 slots, those of 1500 B and round trips of 1024; a row that ends in a number has rings of so many.
///
/// About interfaces, in network namespaces that are made for it, so for root only: `nic-tx` 60 B out of one queue through
/// pkt-gen; `nic-rx` what pkt-gen receives while the other end of the cable sends as fast as it can; `nic-fwd` what
/// bridge moves from one interface to another. `host-tcp` what TCP carries each way between an interface and the host's
/// stack through bridge, and `host-rtt` a ping's median round trip there, beside the same cable without us. `lb` and
/// `scrub` what lb moves to the reader of four pipes, and what the example scrubber takes when nine packets of ten are bad,
/// beside a plain receiver.
///
/// `pcap` is a C program of libpcap's and tcpdump, with our libpcap on a switch, a pipe and an interface, beside the system's
/// libpcap on the interface; for root only. Rows: pcap-dispatch (pcap_dispatch counts 60 B packets), pcap-filter (the same
/// behind a filter of 27 instructions), pcap-next-ex, pcap-inject, pcap-nic-rx, pcap-nic-tx, pcap-tcpdump (tcpdump -w
/// /dev/null on a pipe, and on the interface with the system's libpcap) and pcap-tcpdump-arrived (of a hundred packets).
///
/// The distance of the two cores is probed before and after each sample: class L if a cache line goes there and back
/// in less than 200 ns, else R. Figures of different classes are never compared. Turns end when every side has
/// enough samples of one class; a class that had too few is named on standard error.
///
/// ours/its, and `ratio` in JSON, is our median divided by the peer's: for rates (Mpps, Gbit/s) more is better, for
/// times (ns, us, cycles) less.
#[derive(Debug, Args)]
struct BenchArgs {
    /// What to measure
    #[arg(required = true, value_name = "NAME", value_parser = benches())]
    names: Vec<Bench>,

    /// Begin no sample after this time; for each benchmark, in pipe-batch, preload-pipe and pcap for each row
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// Samples that each side needs in one class
    #[arg(long, value_name = "SAMPLES", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    samples: u32,

    /// Compare with what COMMAND measures, too; may be given several times
    ///
    /// COMMAND is run by `sh -c` once a turn, with BENCH (the row's name), BATCH (the sender's batch) and, over a
    /// switch, LEN (bytes of a packet) in its environment. It prints a line for each class:
    /// {"name":"x","class":"L","unit":"Mpps","median":1.5,"min":1,"max":2,"n":9}. The unit tells which of our rows it
    /// is compared with. One that fails is left out from then on, and the exit status is 1.
    #[arg(long = "peer", value_name = "LABEL=COMMAND")]
    peers: Vec<Peer>,

    /// One JSON object a line: name, class, unit, median, min, max, n, peers {label: {median, ratio}}
    #[arg(long)]
    json: bool,
}

fn benches() -> impl TypedValueParser<Value = Bench> {
    PossibleValuesParser::new(Bench::ALL.map(Bench::name)).try_map(|name| name.parse::<Bench>())
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Ls(args) => ls::run(args.json),
        Command::Top(args) => top::run(Duration::from_secs_f64(args.interval), args.count, args.json),
        Command::Nic(NicArgs { interface, action, json }) => match action {
            None => nic::run(&interface, None, json),
            Some(NicAction::Filter { expression }) => nic::run(&interface, Some(&expression), json),
            Some(NicAction::BusyPoll { words }) => nic::busy::run(&interface, &words, json),
            Some(NicAction::Rss { change }) => nic::queues::rss(&interface, &change, json),
            Some(NicAction::Steer { words }) => nic::queues::steer(&interface, &words, json),
        },
        Command::Vale(args) => vale::run(&args),
        Command::Node(NodeArgs { action, json }) => {
            let action = match action {
                NodeAction::On { path } => node::Action::On(path),
                NodeAction::Off { path } => node::Action::Off(path),
                NodeAction::Status => node::Action::Status,
            };
            node::run(action, json)
        }
        Command::Get(args) => knobs::get(args.knob.as_deref(), args.json),
        Command::Set(args) => knobs::set(&args.knob, args.value, args.json),
        Command::Doctor(args) => doctor::run(args.interface.as_deref(), args.json),
        Command::Capture(args) => capture::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Run(args) => run::run(&args.program, args.force),
        Command::Bench(args) => unetmap_bench::run(&Options {
            benches: args.names,
            samples: args.samples,
            limit: Duration::from_secs(args.seconds),
            peers: args.peers,
            json: args.json,
        }),
    };
    match result {
        Ok(code) => code.into(),
        Err(message) => {
            note(&format!("unetmap: {message}"));
            ExitCode::FAILURE
        }
    }
}

/// A number above 0 as people write it: 1500, 2.5k, 10M, 4G.
fn scaled(text: &str) -> Result<u64, String> {
    let wrong = || "a number above 0, perhaps with k, M or G behind it".to_owned();
    let (digits, scale) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let number = digits.parse::<f64>().map_err(|_| wrong())? * scale;
    if (1.0..=1e15).contains(&number) { Ok(number as u64) } else { Err(wrong()) }
}

/// Writes `text` to standard output, for the subcommand `what`.
fn print(what: &str, text: &str) -> Result<u8, String> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // A reader such as `head` that has seen enough.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        result => result.map(|()| 0).map_err(|e| format!("{what}: standard output: {e}")),
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

    #[test]
    fn bench_options() {
        let parse = |words: &[&str]| Cli::try_parse_from(["unetmap", "bench"].iter().chain(words));
        let Command::Bench(args) = parse(&["pipe", "pipe-rtt", "--peer", "a=b", "--json"]).unwrap().command else {
            panic!("not bench");
        };
        assert_eq!(args.names, [Bench::Pipe, Bench::PipeRtt]);
        assert_eq!((args.seconds, args.samples, args.json), (120, 7, true));
        assert_eq!(args.peers[0].label, "a");
        for (words, part) in [
            (&[][..], "required"),
            (&["pips"], "possible values: pipe, pipe-batch, pipe-1core, pipe-rtt"),
            (&["pipe", "--peer", "x"], "write LABEL=COMMAND"),
            (&["pipe", "--samples", "0"], "0 is not in 1..=10000"),
            (&["pipe", "--seconds", "0"], "0 is not in 1..=86400"),
            (&["pipe", "--seconds", "x"], "invalid"),
        ] {
            let message = parse(words).unwrap_err().to_string();
            assert!(message.contains(part), "{words:?}: {message}");
        }
    }
}
