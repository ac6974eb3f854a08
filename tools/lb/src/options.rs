//! The command line: each flag is defined once here, for the parser, `--help` and the manual page.

use std::path::Path;
use std::time::Duration;

use clap::{ArgAction, Parser};
use tool_common::port::full_name;
use tool_common::rule::{self, Rule};
use unetmap_abi::{PortKind, PortSpec};

/// Pipes of one parent at most.
const MAX_PIPES: u32 = 64;
/// Slots taken from a ring in one go where the command line does not say.
const BATCH: u32 = 2048;

/// Spreads what a netmap port receives over pipes, flow by flow, without copying.
#[derive(Debug, Parser)]
#[command(name = "lb", version, max_term_width = 100, args_override_self = true)]
pub(crate) struct Cli {
    /// The port to receive from. A bare NAME means `netmap:NAME`
    #[arg(short = 'i', long = "port", value_name = "PORT")]
    port: String,

    /// A group of N pipes, NAME{0 and so on; NAME is the port's if none is given [default: 2]
    #[arg(short = 'p', long = "pipes", value_name = "[NAME:]N", action = ArgAction::Append)]
    pipes: Vec<String>,

    /// Buffers for packets that wait for room in their pipes, for all pipes together
    #[arg(short = 'B', long, value_name = "BUFFERS", default_value_t = 0)]
    extra_bufs: u32,

    /// Packets of this rule go to this pipe of the first group, whatever their flow; the first rule that fits counts
    #[arg(long, value_names = ["RULE", "PIPE"], num_args = 2, action = ArgAction::Append)]
    steer: Vec<String>,

    /// Slots taken from a ring in one go, at most
    #[arg(short, long, value_name = "SLOTS", default_value_t = BATCH, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,

    /// Seconds to wait after the port was opened, for links that come up slowly
    #[arg(short, long, value_name = "SECONDS", default_value_t = 2)]
    wait: u64,

    /// Never sleep: spin when there is nothing to do
    #[arg(short = 'W', long)]
    busy_wait: bool,

    /// Seconds between two reports to the system's log, 0 for none
    #[arg(short = 's', long, value_name = "SECONDS", default_value_t = 0)]
    syslog: u64,

    /// Seconds between two reports on standard output, 0 for none
    #[arg(short = 'o', long, value_name = "SECONDS", default_value_t = 0)]
    stdout: u64,

    /// Reports and the summary as JSON objects, one in a line
    #[arg(long)]
    json: bool,
}

/// Pipes that share the flows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GroupConfig {
    /// The pipes' parent.
    pub(crate) parent: String,
    /// The number of the first pipe.
    pub(crate) first: u32,
    /// 1..=64
    pub(crate) pipes: u32,
}

impl GroupConfig {
    /// The name under which a pipe is opened, in region `mem_id`: for sending, by nobody else.
    pub(crate) fn spec(&self, pipe: u32, mem_id: u16) -> String {
        format!("{}/xT@{mem_id}", full_name(&format!("{}{{{}", self.parent, self.first + pipe)))
    }
}

/// The command line, checked.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) port: String,
    /// At least one; packets go from one to the next.
    pub(crate) groups: Vec<GroupConfig>,
    pub(crate) extra_bufs: u32,
    /// Each with a pipe that the first group has.
    pub(crate) steer: Vec<(Rule, usize)>,
    /// Slots.
    pub(crate) batch: u32,
    pub(crate) wait: Duration,
    pub(crate) busy_wait: bool,
    /// Time between reports.
    pub(crate) syslog: Option<Duration>,
    pub(crate) stdout: Option<Duration>,
    pub(crate) json: bool,
}

impl Cli {
    /// Checks what one flag alone cannot.
    pub(crate) fn check(self) -> Result<Config, String> {
        let port = full_name(&self.port);
        let parsed = PortSpec::parse_with(&port, |name| Path::new("/sys/class/net").join(name).exists())
            .map_err(|e| e.to_string())?;
        let own = match parsed.kind {
            PortKind::Netmap => parsed.parent,
            PortKind::Vale => full_name(&parsed.parent),
        };
        let wishes = if self.pipes.is_empty() { vec!["2".into()] } else { self.pipes };
        let mut groups: Vec<GroupConfig> = Vec::new();
        for wish in wishes {
            let (parent, n) = wish.rsplit_once(':').unwrap_or((&own, &wish));
            let pipes = n.parse().ok().filter(|n| (1..=MAX_PIPES).contains(n) && !parent.is_empty());
            let pipes = pipes.ok_or_else(|| format!("-p {wish}: it is [NAME:]N, with 1 to {MAX_PIPES} pipes"))?;
            let first = groups.iter().filter(|group| group.parent == parent).map(|group| group.pipes).sum();
            if first + pipes > MAX_PIPES {
                return Err(format!("-p {wish}: {parent} cannot have more than {MAX_PIPES} pipes; give another name"));
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
        let interval = |seconds| Some(Duration::from_secs(seconds)).filter(|time| !time.is_zero());
        Ok(Config {
            port,
            groups,
            extra_bufs: self.extra_bufs,
            steer,
            batch: self.batch,
            wait: Duration::from_secs(self.wait),
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
    fn pipes_are_named_as_netmaps() {
        assert_eq!(specs("-i a"), [["netmap:a{0/xT@1", "netmap:a{1/xT@1"]]);
        assert_eq!(specs("-i netmap:a-3/R -p 1"), [["netmap:a{0/xT@1"]]);
        assert_eq!(specs("-i vale1:x -p 1"), [["vale1:x{0/xT@1"]]);
        // Groups of one name go on counting.
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
    fn rules_lead_to_pipes_that_there_are() {
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
    fn what_is_not_given_is_netmaps_default() {
        let c = parse("-i a").unwrap();
        assert_eq!((c.extra_bufs, c.batch, c.wait, c.busy_wait), (0, 2048, Duration::from_secs(2), false));
        assert_eq!((c.syslog, c.stdout), (None, None));
        let c = parse("-i a -B 100 -b 7 -w 0 -W -s 3 -o 4").unwrap();
        assert_eq!((c.extra_bufs, c.batch, c.wait, c.busy_wait), (100, 7, Duration::ZERO, true));
        assert_eq!((c.syslog, c.stdout), (Some(Duration::from_secs(3)), Some(Duration::from_secs(4))));
    }

    #[test]
    fn bad_values_say_what_is_allowed() {
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

    /// `man/lb.8` is made of the flags above and of `man.roff`. After a change of either, run this test with
    /// `UPDATE_MAN=1` in the environment.
    #[test]
    fn the_manual_page_is_up_to_date() {
        use clap::CommandFactory;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/lb.8");
        tool_common::testing::check_manual(Cli::command(), SYNOPSIS, include_bytes!("../man.roff"), path);
    }
}
