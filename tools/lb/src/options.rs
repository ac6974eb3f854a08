// SPDX-License-Identifier: BSD-2-Clause
//! The command line: each flag is defined once here, for the parser, `--help` and the man page.

use std::path::Path;
use std::time::Duration;

use clap::{ArgAction, Parser};
use tool_common::daemon::WaitDaemon;
use tool_common::port::full_name;
use tool_common::rule::{self, Rule};
use unetmap::abi::{PortKind, PortSpec};
use unetmap_quantity::{count, seconds, within};

/// Maximum number of pipes of one parent.
const MAX_PIPES: u32 = 64;
/// Default of `--batch`.
const BATCH: u32 = 2048;

/// Distributes the packets that a netmap port receives over pipes, by flow, without copying.
#[derive(Debug, Parser)]
#[command(name = "lb", version = unetmap::version(), max_term_width = 100, args_override_self = true)]
pub(crate) struct Cli {
    /// Port to receive from. A bare NAME means `netmap:NAME`
    #[arg(short = 'i', long = "port", value_name = "PORT")]
    port: String,

    /// Group of N pipes, NAME{0 and so on; without NAME, the port's name is used [default: 2]
    #[arg(short = 'p', long = "pipes", value_name = "[NAME:]N", action = ArgAction::Append)]
    pipes: Vec<String>,

    /// Number of extra buffers, for all pipes together, for packets that wait for room in their pipes
    #[arg(short = 'B', long, value_name = "BUFFERS", default_value = "0", value_parser = within::<u64, u32>(count, 0..=u32::MAX.into()), allow_hyphen_values = true)]
    extra_bufs: u32,

    /// Send packets that match the rule to this pipe of the first group, regardless of their flow; the first matching
    /// rule applies
    #[arg(long, value_names = ["RULE", "PIPE"], num_args = 2, action = ArgAction::Append)]
    steer: Vec<String>,

    /// Maximum number of slots taken from a ring in a batch
    #[arg(short, long, value_name = "SLOTS", default_value_t = BATCH, value_parser = within::<u64, u32>(count, 1..=u32::MAX.into()), allow_hyphen_values = true)]
    batch: u32,

    /// Seconds to wait after the port was opened, because some links come up slowly
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = seconds, allow_hyphen_values = true)]
    wait: Duration,

    #[command(flatten)]
    pub(crate) daemon: WaitDaemon,

    /// Never sleep: spin while no packets arrive
    #[arg(short = 'W', long)]
    busy_wait: bool,

    /// Seconds between two reports to the system log; 0: no reports
    #[arg(short = 's', long, value_name = "SECONDS", default_value = "0", value_parser = seconds, allow_hyphen_values = true)]
    syslog: Duration,

    /// Seconds between two reports on standard output; 0: no reports
    #[arg(short = 'o', long, value_name = "SECONDS", default_value = "0", value_parser = seconds, allow_hyphen_values = true)]
    stdout: Duration,

    /// Print reports and the summary as JSON objects, one per line
    #[arg(long)]
    json: bool,
}

/// Pipes over which flows are distributed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GroupConfig {
    /// Parent of the pipes.
    pub(crate) parent: String,
    /// Number of the first pipe.
    pub(crate) first: u32,
    /// Number of pipes, 1..=64.
    pub(crate) pipes: u32,
}

impl GroupConfig {
    /// Returns the name for opening a pipe in region `mem_id`, exclusively and for transmission.
    pub(crate) fn spec(&self, pipe: u32, mem_id: u16) -> String {
        format!("{}/xT@{mem_id}", full_name(&format!("{}{{{}", self.parent, self.first + pipe)))
    }
}

/// The validated command line.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) port: String,
    /// At least one. Packets pass the groups in this order.
    pub(crate) groups: Vec<GroupConfig>,
    pub(crate) extra_bufs: u32,
    /// Rules, each with the number of a pipe of the first group.
    pub(crate) steer: Vec<(Rule, usize)>,
    /// Maximum number of slots taken from a ring in a batch.
    pub(crate) batch: u32,
    pub(crate) wait: Duration,
    pub(crate) busy_wait: bool,
    /// Time between reports to the system log.
    pub(crate) syslog: Option<Duration>,
    pub(crate) stdout: Option<Duration>,
    pub(crate) json: bool,
}

impl Cli {
    /// Validates the flags together.
    pub(crate) fn check(self) -> Result<Config, String> {
        if self.daemon.is_given() && self.extra_bufs > 0 {
            return Err("--wait-daemon: extra buffers (-B) end with the daemon: leave out one of the two".into());
        }
        let port = full_name(&self.port);
        let parsed = PortSpec::parse_with(&port, |name| Path::new("/sys/class/net").join(name).exists())
            .map_err(|e| e.to_string())?;
        let own = match parsed.kind {
            PortKind::Netmap => parsed.parent,
            PortKind::Vale => full_name(&parsed.parent),
        };
        let arguments = if self.pipes.is_empty() { vec!["2".into()] } else { self.pipes };
        let mut groups: Vec<GroupConfig> = Vec::new();
        for argument in arguments {
            let (parent, n) = argument.rsplit_once(':').unwrap_or((&own, &argument));
            let pipes = n.parse().ok().filter(|n| (1..=MAX_PIPES).contains(n) && !parent.is_empty());
            let pipes = pipes.ok_or_else(|| format!("-p {argument}: give [NAME:]N, with 1 to {MAX_PIPES} pipes"))?;
            let first = groups.iter().filter(|group| group.parent == parent).map(|group| group.pipes).sum();
            if first + pipes > MAX_PIPES {
                return Err(format!(
                    "-p {argument}: {parent} cannot have more than {MAX_PIPES} pipes; give another name"
                ));
            }
            groups.push(GroupConfig { parent: parent.into(), first, pipes });
        }
        let mut steer = Vec::new();
        for pair in self.steer.chunks_exact(2) {
            let pipe = pair[1].parse().ok().filter(|pipe| *pipe < groups[0].pipes as usize);
            let pipe = pipe.ok_or_else(|| {
                format!("--steer '{}' {}: the pipes are 0 to {}", pair[0], pair[1], groups[0].pipes - 1)
            })?;
            steer.push((rule::parse(&pair[0]).map_err(|why| format!("--steer: {why}"))?, pipe));
        }
        let interval = |time: Duration| Some(time).filter(|time| !time.is_zero());
        Ok(Config {
            port,
            groups,
            extra_bufs: self.extra_bufs,
            steer,
            batch: self.batch,
            wait: self.wait,
            busy_wait: self.busy_wait,
            syslog: interval(self.syslog),
            stdout: interval(self.stdout),
            json: self.json,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Config, String> {
        let all = ["lb"].into_iter().chain(args.split_whitespace());
        Cli::try_parse_from(all).map_err(|e| e.to_string())?.check()
    }

    fn specs(args: &str) -> Vec<Vec<String>> {
        let all = |group: &GroupConfig| (0..group.pipes).map(|pipe| group.spec(pipe, 1)).collect();
        parse(args).unwrap().groups.iter().map(all).collect()
    }

    #[test]
    fn pipes_have_netmaps_names() {
        assert_eq!(specs("-i a"), [["netmap:a{0/xT@1", "netmap:a{1/xT@1"]]);
        assert_eq!(specs("-i netmap:a-3/R -p 1"), [["netmap:a{0/xT@1"]]);
        assert_eq!(specs("-i vale1:x -p 1"), [["vale1:x{0/xT@1"]]);
        // Groups of the same name number their pipes consecutively.
        assert_eq!(
            specs("-i a -p 2 -p b:1 -p 1 -p vale0:c:1"),
            [
                vec!["netmap:a{0/xT@1", "netmap:a{1/xT@1"],
                vec!["netmap:b{0/xT@1"],
                vec!["netmap:a{2/xT@1"],
                vec!["vale0:c{0/xT@1"]
            ]
        );
    }

    #[test]
    fn rules_refer_to_existing_pipes() {
        let parse = |rule: &str, pipe: &str| {
            let words = ["lb", "-i", "a", "-p", "3", "-p", "9", "--steer", rule, pipe, "--steer", "ip6", "0"];
            Cli::try_parse_from(words).map_err(|e| e.to_string())?.check()
        };
        let steer = parse("udp dst port 53", "2").unwrap().steer;
        assert_eq!(steer.iter().map(|(_, pipe)| *pipe).collect::<Vec<_>>(), [2, 0]);
        assert!(parse("udp dst port 53", "3").unwrap_err().contains("the pipes are 0 to 2"));
        assert!(parse("udp port 53", "2").unwrap_err().contains("`src` or `dst`"));
    }

    #[test]
    fn defaults_are_those_of_netmap() {
        let c = parse("-i a").unwrap();
        assert_eq!((c.extra_bufs, c.batch, c.wait, c.busy_wait), (0, 2048, Duration::from_secs(2), false));
        assert_eq!((c.syslog, c.stdout), (None, None));
        let c = parse("-i a -B 100 -b 7 -w 0 -W -s 3 -o 4").unwrap();
        assert_eq!((c.extra_bufs, c.batch, c.wait, c.busy_wait), (100, 7, Duration::ZERO, true));
        assert_eq!((c.syslog, c.stdout), (Some(Duration::from_secs(3)), Some(Duration::from_secs(4))));
    }

    #[test]
    fn invalid_values_are_refused_with_a_reason() {
        for (args, part) in [
            ("", "--port"),
            ("-i a{", "netmap:a{"),
            ("-i a -p 0", "1 to 64"),
            ("-i a -p 65", "1 to 64"),
            ("-i a -p :4", "[NAME:]N"),
            ("-i a -p x", "[NAME:]N"),
            ("-i a -p 40 -p b:40 -p 40", "more than 64"),
            ("-i a -b 0", "--batch"),
            ("-i a b", "'b'"),
        ] {
            let message = parse(args).unwrap_err();
            assert!(message.contains(part), "{args}: {message}");
        }
    }

    #[test]
    fn every_short_flag_has_a_long_name_and_help() {
        use clap::CommandFactory;
        tool_common::testing::check_flags(Cli::command());
    }

    const SYNOPSIS: &[u8] =
        b".SH SYNOPSIS\n\\fBlb\\fR [\\fIOPTIONS\\fR] \\fB\\-i\\fR \\fIPORT\\fR [\\fB\\-p\\fR [\\fINAME\\fB:\\fR]\\fIN\\fR] ...\n";

    /// `man/lb.8` is generated from the flags above and `man.roff`. After a change of either, run this test with
    /// `UPDATE_MAN=1` in the environment.
    #[test]
    fn the_man_page_is_up_to_date() {
        use clap::CommandFactory;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/lb.8");
        tool_common::testing::check_manual(Cli::command(), SYNOPSIS, include_bytes!("../man.roff"), path);
    }
}
