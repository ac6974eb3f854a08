// SPDX-License-Identifier: BSD-2-Clause
//! The command line: each flag is defined once here, for the parser, `--help` and the man page.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use tool_common::daemon::WaitDaemon;
use tool_common::metrics::MetricsArgs;
use tool_common::port::full_name;
use unetmap_flows::ObserverArgs;
use unetmap_quantity::{count, mebibytes, seconds, within};

const MIB: u64 = 1 << 20;

/// A firewall between two ports, with rules in ipfw's language.
#[derive(Debug, Parser)]
#[command(name = "unetmap-fw", version = unetmap::version(), max_term_width = 100, args_override_self = true)]
pub(crate) struct Cli {
    /// The first port, that of the inside: packets from it to the second travel out, the others in. A bare NAME means
    /// `netmap:NAME`
    #[arg(value_name = "PORT1")]
    first: String,

    /// The second port
    #[arg(value_name = "PORT2")]
    second: String,

    /// File of commands, such as `add 100 allow ip from any to any`. An error in it ends the program
    #[arg(short, long, value_name = "FILE")]
    rules: Option<PathBuf>,

    /// Accept what no rule decides about, in place of denying it
    #[arg(long)]
    default_accept: bool,

    /// The fate of frames while this program does not take them, as it is killed or stopped or has ended, or the daemon
    /// has: closed (dropped; the default at host rings), open (passed to the host's stack), bypass (the kernel forwards
    /// between two interfaces). It stays until `unetmap nic IF failure open`
    #[arg(long, value_name = "closed|open|bypass", value_parser = fate)]
    on_failure: Option<String>,

    #[command(flatten)]
    pub(crate) daemon: WaitDaemon,

    /// Maximum number of states, and of connections that NAT translates
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = within::<u64, u32>(count, 1..=16_777_216), allow_hyphen_values = true)]
    states: u32,

    /// Number of threads; with more than one, each moves the packets of one ring (pair), and both ports have as many
    #[arg(short = 'p', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,

    /// Memory for packets in pipes and queues, in MiB. Packets that find none are dropped
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = within::<u64, usize>(mebibytes, MIB..=65_536 * MIB), allow_hyphen_values = true)]
    memory: usize,

    /// Path of the socket for `unetmap fw` [default: unetmap-fw.sock beside the daemon's socket]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    /// Write packets that rules log to this pcapng file, the first 128 bytes of each, with the rule as a comment, in
    /// place of lines to standard error
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Space for logged packets, in MiB: when half of it is used, FILE becomes FILE.1, and FILE begins anew
    #[arg(long, value_name = "MIB", default_value = "64", requires = "log", value_parser = within::<u64, u64>(mebibytes, MIB..=1_048_576 * MIB), allow_hyphen_values = true)]
    log_size: u64,

    /// Port that gets copies of the packets that rules `tee N` match; may be repeated. If its receiver is too slow,
    /// only copies are lost
    #[arg(long, value_name = "N=PORT")]
    tee: Vec<String>,

    #[command(flatten)]
    flows: ObserverArgs,

    /// --flows: send a record of each connection that NAT makes when it begins, and when it ends (RFC 8158)
    #[arg(long, requires = "to")]
    flows_nat: bool,

    #[command(flatten)]
    metrics: MetricsArgs,

    /// Maximum number of slots in a batch
    #[arg(short, long, value_name = "SLOTS", default_value_t = 512, value_parser = within::<u64, u32>(count, 1..=u32::MAX.into()), allow_hyphen_values = true)]
    burst: u32,

    /// Seconds to wait after the ports were opened, because some links come up slowly
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = seconds, allow_hyphen_values = true)]
    wait: Duration,

    /// Copy packets even if buffers could be exchanged
    #[arg(short = 'c', long)]
    copy: bool,

    /// Print the summary as a JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Parses the fate of frames that the program does not take.
fn fate(text: &str) -> Result<String, String> {
    if ["closed", "open", "bypass"].contains(&text) {
        Ok(text.into())
    } else {
        Err("give closed, open or bypass".into())
    }
}

/// The validated command line.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) ports: [String; 2],
    pub(crate) rules: Option<PathBuf>,
    pub(crate) default_accept: bool,
    pub(crate) on_failure: Option<String>,
    pub(crate) states: usize,
    pub(crate) threads: u16,
    pub(crate) memory: usize,
    pub(crate) control: Option<PathBuf>,
    /// Numbers and ports.
    pub(crate) tees: Vec<(u16, String)>,
    pub(crate) log: Option<PathBuf>,
    pub(crate) log_bytes: u64,
    /// Records of the flows that come.
    pub(crate) flows: ObserverArgs,
    /// And of connections that NAT makes.
    pub(crate) flows_nat: bool,
    pub(crate) metrics: MetricsArgs,
    pub(crate) burst: u32,
    pub(crate) wait: Duration,
    pub(crate) copy: bool,
    pub(crate) json: bool,
}

impl Cli {
    pub(crate) fn check(self) -> Result<Options, String> {
        let ports = [full_name(&self.first), full_name(&self.second)];
        if ports[0] == ports[1] {
            return Err(format!("{}: give two different ports", self.second));
        }
        let tees = self.tee.iter().map(|tee| parse_tee(tee)).collect::<Result<Vec<_>, _>>()?;
        for (i, (number, port)) in tees.iter().enumerate() {
            if tees[..i].iter().any(|(other, _)| other == number) {
                return Err(format!("--tee {number}={port}: the number {number} has a port already"));
            }
            if ports.contains(port) || tees[..i].iter().any(|(_, other)| other == port) {
                return Err(format!("--tee {number}={port}: the port is used already; give another one"));
            }
        }
        Ok(Options {
            ports,
            tees,
            rules: self.rules,
            default_accept: self.default_accept,
            on_failure: self.on_failure,
            states: self.states as usize,
            threads: self.threads,
            memory: self.memory,
            control: self.control,
            log: self.log,
            log_bytes: self.log_size,
            flows: self.flows,
            flows_nat: self.flows_nat,
            metrics: self.metrics,
            burst: self.burst,
            wait: self.wait,
            copy: self.copy,
            json: self.json,
        })
    }
}

fn parse_tee(text: &str) -> Result<(u16, String), String> {
    let (number, port) = text.split_once('=').unwrap_or((text, ""));
    match number.parse() {
        Ok(number) if number > 0 && !port.is_empty() => Ok((number, full_name(port))),
        _ => Err(format!("--tee {text}: give a number from 1 to 65535 and a port, such as 1=t{{1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(args: &str) -> Result<Options, String> {
        let all = ["unetmap-fw"].into_iter().chain(args.split_whitespace());
        Cli::try_parse_from(all).map_err(|e| e.to_string())?.check()
    }

    #[test]
    fn options_are_parsed_or_refused() {
        let options = parse("p}1 vale0:a --rules r --states 5 --tee 2=t{1 --tee 9=vale0:x").unwrap();
        assert_eq!(options.tees, [(2, "netmap:t{1".into()), (9, "vale0:x".into())]);
        assert_eq!((options.ports, options.states), (["netmap:p}1".into(), "vale0:a".into()], 5));
        for (args, part) in [
            ("a", "PORT2"),
            ("a a", "two different ports"),
            ("a b --states 0", "--states"),
            ("a b -b 0", "--burst"),
            ("a b -p 0", "1..=1024"),
            ("a b --tee x=c", "1 to 65535"),
            ("a b --tee 0=c", "1 to 65535"),
            ("a b --tee 1=", "1 to 65535"),
            ("a b --tee 1=c --tee 1=d", "the number 1 has a port already"),
            ("a b --tee 1=netmap:b", "used already"),
            ("a b --tee 1=c --tee 2=c", "used already"),
            ("a b --flows-nat", "--flows <HOST:PORT>"),
        ] {
            let message = parse(args).unwrap_err();
            assert!(message.contains(part), "{args}: {message}");
        }
    }

    #[test]
    fn every_short_flag_has_a_long_name_and_help() {
        tool_common::testing::check_flags(Cli::command());
    }

    const SYNOPSIS: &[u8] = b".SH SYNOPSIS\n\\fBunetmap\\-fw\\fR [\\fIOPTIONS\\fR] \\fIPORT1\\fR \\fIPORT2\\fR\n.br\n\\fBunetmap fw\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR|\\fB\\-\\-file\\fR \\fIFILE\\fR\n";

    /// `man/unetmap-fw.1` is generated from the flags above and `man.roff`. After a change of either, run this test
    /// with `UPDATE_MAN=1` in the environment.
    #[test]
    fn the_man_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/unetmap-fw.1");
        tool_common::testing::check_manual(Cli::command(), SYNOPSIS, include_bytes!("../man.roff"), path);
    }
}
