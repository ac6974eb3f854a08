// SPDX-License-Identifier: BSD-2-Clause
//! The command line of `unetmap emulate`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Command, FromArgMatches as _, ValueEnum};
use tool_common::Failure;
use tool_common::metrics::MetricsArgs;
use tool_common::port::full_name;
use tool_common::source::{self, MAX_RULES};
use unetmap_quantity::{bit_rate, bytes, mebibytes, seconds, share, within};
use unetmap_shape::aqm::{Aqm, Codel, Pie};
use unetmap_shape::{Class, Delay, Fq, Kind, Limit, Loss, PipeConfig, Rate, Trace, value};

const MIB: u64 = 1 << 20;
/// Most bits per second, and bytes of a burst.
const MAX: u64 = 1_000_000_000_000_000;

/// Emulate a link between two ports: bandwidth, delay, loss and other faults.
///
/// Packets that one port receives are sent through the other when the link would have delivered them. Both directions
/// are links of their own with the same options. Each second a line for each direction says how much arrived, its delay
/// and its loss; SIGINT, SIGTERM and SIGHUP end the program with a summary, after all packets that it holds were sent.
#[derive(Debug, Args)]
pub struct EmulateArgs {
    /// The first port: packets from it to the second travel out, the others in. A bare NAME means `netmap:NAME`
    #[arg(value_name = "PORT1")]
    first: String,

    /// The second port
    #[arg(value_name = "PORT2")]
    second: String,

    /// Directions that have the link's properties; the other one only forwards
    #[arg(long, value_enum, default_value_t = Ways::Both)]
    direction: Ways,

    /// Bits per second of frames, without the preamble and the checksum
    #[arg(long, value_name = "BITS", value_parser = within::<u64, u64>(bit_rate, 1..=MAX), allow_hyphen_values = true)]
    rate: Option<u64>,

    /// Bytes that the link sends at once after idle time
    #[arg(long, value_name = "BYTES", value_parser = within::<u64, u64>(bytes, 1..=MAX), allow_hyphen_values = true, requires = "rate")]
    burst: Option<u64>,

    /// Mahimahi's trace of the direction out, in place of a rate: a line for each 1504 bytes, with its time in
    /// milliseconds
    #[arg(long, value_name = "FILE", conflicts_with = "rate")]
    trace: Option<PathBuf>,

    /// The same of the direction in; without it, that of --trace
    #[arg(long, value_name = "FILE", requires = "trace")]
    trace_in: Option<PathBuf>,

    /// One-way delay: TIME (20ms), uniform FROM..TO (10ms..30ms), normal MEAN~DEVIATION (20ms~2ms), or @FILE of a
    /// distribution, a probability and a time on each line (0.5 20ms)
    #[arg(long, value_name = "DELAY", value_parser = delay, allow_hyphen_values = true)]
    delay: Option<Delay>,

    /// Let packets with a shorter delay overtake others; otherwise they wait for them
    #[arg(long, requires = "delay")]
    overtake: bool,

    /// Packets that are lost: a probability (1% or 0.01), ber:RATE of wrong bits, or ge:P,R[,BAD[,GOOD]] by Gilbert and
    /// Elliott (good to bad, bad to good, loss when bad, loss when good)
    #[arg(long, value_name = "LOSS", value_parser = value::loss, allow_hyphen_values = true)]
    loss: Option<Loss>,

    /// Probability that a packet has no delay, and so overtakes others
    #[arg(long, value_name = "P", value_parser = share, allow_hyphen_values = true, requires = "delay")]
    reorder: Option<f64>,

    /// Probability that a packet comes twice
    #[arg(long, value_name = "P", value_parser = share, allow_hyphen_values = true)]
    duplicate: Option<f64>,

    /// Probability that one bit of a packet is inverted
    #[arg(long, value_name = "P", value_parser = share, allow_hyphen_values = true)]
    corrupt: Option<f64>,

    /// Size of the queue in front of the link: packets, or bytes with their unit, as in 64kB
    #[arg(long, value_name = "SIZE", value_parser = value::queue, allow_hyphen_values = true, default_value = "1000")]
    queue: Limit,

    /// Manager of the queue
    #[arg(long, value_enum, default_value_t = Manager::None)]
    aqm: Manager,

    /// Memory for the packets that the link holds, in MiB. Packets that find none are dropped
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = within::<u64, usize>(mebibytes, MIB..=65_536 * MIB), allow_hyphen_values = true)]
    memory: usize,

    /// Equal seeds draw equal losses and delays
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Seconds to wait after the ports were opened, because some links come up slowly
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = seconds, allow_hyphen_values = true)]
    wait: Duration,

    #[command(flatten)]
    pub(super) metrics: MetricsArgs,

    /// Print the lines and the summary as JSON objects
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ways {
    Both,
    Out,
    In,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Manager {
    /// Packets are dropped when the queue is full
    None,
    /// CoDel (RFC 8289), which marks packets of senders that understand it
    Codel,
    /// PIE (RFC 8033), which marks likewise
    Pie,
    /// FQ-CoDel (RFC 8290): a queue for each flow; --queue is the number of packets in all
    FqCodel,
    /// The same with PIE
    FqPie,
}

/// Slots of a batch.
const BURST: u32 = 512;

/// The validated command line.
pub(super) struct Settings {
    pub(super) ports: [String; 2],
    pub(super) links: [PipeConfig; 2],
    /// The link, for people.
    pub(super) text: String,
    pub(super) memory: usize,
    pub(super) burst: u32,
    pub(super) wait: Duration,
    pub(super) json: bool,
}

impl EmulateArgs {
    pub(super) fn check(&self) -> Result<Settings, Failure> {
        let ports = [full_name(&self.first), full_name(&self.second)];
        if ports[0] == ports[1] {
            return Err(Failure::Usage(format!("{}: give two different ports", self.second)));
        }
        let traces = [&self.trace, &self.trace_in].map(|path| path.as_deref().map(read_trace).transpose());
        let [out, back] = traces;
        let out = out?;
        let back = back?.or_else(|| out.clone());
        let has = |way| self.direction == Ways::Both || self.direction == way;
        let plain =
            || PipeConfig { classes: vec![Class { limit: self.queue, ..Class::default() }], ..PipeConfig::default() };
        let link = |way, trace, seed| if has(way) { self.link(trace, seed) } else { Ok(plain()) };
        Ok(Settings {
            ports,
            links: [link(Ways::Out, out, self.seed)?, link(Ways::In, back, self.seed.wrapping_add(1))?],
            text: self.text(),
            memory: self.memory,
            burst: BURST,
            wait: self.wait,
            json: self.json,
        })
    }

    fn link(&self, trace: Option<Trace>, seed: u64) -> Result<PipeConfig, Failure> {
        let rate = match (trace, self.rate) {
            (Some(trace), _) => Rate::Trace(trace.into()),
            (None, Some(bits)) => Rate::Bits(bits),
            (None, None) => Rate::Unlimited,
        };
        let codel = Codel { ecn: true, ..Codel::default() };
        let pie = Pie { ecn: true, ..Pie::default() };
        let fq = || match self.queue {
            Limit::Packets(limit) => Ok(Fq { limit, ..Fq::default() }),
            Limit::Bytes(_) => {
                Err(Failure::Usage("--queue: give packets, not bytes, with --aqm fq-codel and fq-pie".into()))
            }
        };
        let (kind, aqm) = match self.aqm {
            Manager::None => (Kind::Fifo, Aqm::None),
            Manager::Codel => (Kind::Fifo, Aqm::Codel(codel)),
            Manager::Pie => (Kind::Fifo, Aqm::Pie(pie)),
            Manager::FqCodel => (Kind::FqCodel(fq()?, codel), Aqm::None),
            Manager::FqPie => (Kind::FqPie(fq()?, pie), Aqm::None),
        };
        Ok(PipeConfig {
            rate,
            burst: self.burst.unwrap_or(0),
            delay: self.delay.clone().unwrap_or_default(),
            overtake: self.overtake,
            loss: self.loss.unwrap_or_default(),
            reorder: self.reorder.unwrap_or(0.0),
            duplicate: self.duplicate.unwrap_or(0.0),
            corrupt: self.corrupt.unwrap_or(0.0),
            kind,
            classes: vec![Class { limit: self.queue, aqm, ..Class::default() }],
            max_flows: 1,
            seed,
        })
    }

    fn text(&self) -> String {
        let rate = match (&self.trace, self.rate) {
            (Some(path), _) => format!("the trace {}", path.display()),
            (None, Some(bits)) => format!("{:.3} Mbit/s", bits as f64 / 1e6),
            (None, None) => "unlimited".into(),
        };
        let delay = match &self.delay {
            None => "no delay".into(),
            Some(Delay::Constant(nanos)) => format!("{:.3} ms", *nanos as f64 / 1e6),
            Some(_) => "a delay that varies".to_owned(),
        };
        format!("{rate}, {delay}")
    }
}

/// Options that say what a link does, each with whether it takes a value: of `unetmap emulate`, for programs that start
/// it.
pub fn options() -> Vec<(String, bool)> {
    let command = EmulateArgs::augment_args(Command::new("emulate"));
    let all = command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg.get_action().takes_values())));
    let of_link = all.filter(|(name, _)| !["wait", "metrics", "json"].contains(name));
    of_link.map(|(name, takes_value)| (name.to_owned(), takes_value)).collect()
}

/// Checks words of a command line that are [`options`] and their values.
///
/// # Errors
/// A sentence with the name of the option, as `--delay`.
pub fn check_options(words: &[String]) -> Result<(), String> {
    let line = ["emulate", "a", "b"].into_iter().chain(words.iter().map(String::as_str));
    let matches = EmulateArgs::augment_args(Command::new("emulate")).try_get_matches_from(line);
    let args = matches.and_then(|matches| EmulateArgs::from_arg_matches(&matches)).map_err(|e| {
        let text = e.to_string();
        let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
        lines.join(" ").trim_start_matches("error: ").to_owned()
    })?;
    args.check().map(drop).map_err(|failure| failure.to_string())
}

fn read_trace(path: &Path) -> Result<Trace, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("the trace {}: {why}", path.display());
    let text = source::read_text(path, MAX_RULES).map_err(|why| wrong(&why))?;
    Trace::parse(&text).map_err(|e| wrong(&e))
}

/// Parses a delay, or reads a distribution: `@FILE`.
fn delay(text: &str) -> Result<Delay, String> {
    let Some(path) = text.strip_prefix('@') else { return value::delay(text) };
    let found = source::read_text(Path::new(path), MAX_RULES).and_then(|text| value::distribution(&text));
    found.map_err(|why| format!("{path}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: EmulateArgs,
    }

    fn parse(args: &str) -> Result<Settings, String> {
        let all = ["emulate"].into_iter().chain(args.split_whitespace());
        Program::try_parse_from(all).map_err(|e| e.to_string())?.args.check().map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_link_is_described_or_refused() {
        let settings = parse("a}1 vale0:b --rate 80M --delay 20ms --loss 1% --queue 64KB --aqm codel").unwrap();
        let [out, back] = &settings.links;
        assert_eq!((&out.rate, &out.delay), (&Rate::Bits(80_000_000), &Delay::Constant(20_000_000)));
        assert_eq!((out.loss, out.classes[0].limit), (Loss::Random(0.01), Limit::Bytes(64_000)));
        assert_ne!(out.seed, back.seed, "the directions lose other packets");
        let settings = parse("a b --direction in --rate 1M --aqm fq-codel").unwrap();
        assert_eq!(settings.links[0].rate, Rate::Unlimited);
        assert!(matches!(settings.links[1].kind, Kind::FqCodel(Fq { limit: 1000, .. }, _)));
        for (args, part) in [
            ("a", "PORT2"),
            ("a a", "two different ports"),
            ("a b --rate x", "bits per second"),
            ("a b --delay 5", "give a time with its unit, as in 5ms, 5s"),
            ("a b --rate 10kpps", "bits per second"),
            ("a b --rate -1", "--rate <BITS>"),
            ("a b --queue 5k", "give 5kB"),
            ("a b --rate 1M --trace t", "--trace"),
            ("a b --trace /nonexistent", "the trace /nonexistent: "),
            ("a b --delay @/nonexistent", "/nonexistent: No such file"),
            ("a b --delay @/dev/zero", "/dev/zero: it is longer"),
            ("a b --reorder 1%", "--delay"),
            ("a b --queue 5KB --aqm fq-pie", "packets, not bytes"),
            ("a b --memory 0", "--memory"),
        ] {
            let message = parse(args).err().expect("refused");
            assert!(message.contains(part), "{args}: {message}");
        }
    }
}
