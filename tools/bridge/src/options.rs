// SPDX-License-Identifier: BSD-2-Clause
//! The command line: each flag is defined once here, for the parser, `--help` and the man page.

use std::path::Path;
use std::time::Duration;

use clap::{ArgAction, Parser};
use tool_common::daemon::WaitDaemon;
use tool_common::failure::interface_of;
use tool_common::port::full_name;
use unetmap::abi::{PortKind, PortSpec, Rings};
use unetmap_quantity::{count, seconds, within};

/// Forwards packets between two netmap ports, without copying if both are in one region.
#[derive(Debug, Parser)]
#[command(name = "bridge", version = unetmap::version(), max_term_width = 100, args_override_self = true)]
pub(crate) struct Cli {
    /// Port to open: give two, or one interface to bridge it to the host's stack. A bare NAME means `netmap:NAME`
    #[arg(short = 'i', long = "port", value_name = "PORT", action = ArgAction::Append)]
    ports: Vec<String>,

    /// Maximum number of slots forwarded in a batch [default: 1024]
    #[arg(short, long, value_name = "SLOTS", value_parser = burst, allow_hyphen_values = true)]
    burst: Option<u32>,

    /// Seconds to wait after the ports were opened, because some links come up slowly
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = seconds, allow_hyphen_values = true)]
    wait: Duration,

    /// Copy packets even if buffers could be exchanged
    #[arg(short = 'c', long)]
    copy: bool,

    /// Send the packets of one port back through the same port
    #[arg(short = 'L', long)]
    loopback: bool,

    /// Have the kernel forward between the two interfaces while no program does: when this one is killed or stopped,
    /// after its end, and when the daemon has ended (unetmap bypass IF1 IF2 off ends it)
    #[arg(long)]
    bypass: bool,

    #[command(flatten)]
    pub(crate) daemon: WaitDaemon,

    /// Print more details on standard error
    #[arg(short, long)]
    verbose: bool,

    /// Print the summary as a JSON object on standard output
    #[arg(long)]
    json: bool,

    #[cfg(feature = "apps")]
    #[command(flatten)]
    flows: unetmap_flows::ObserverArgs,

    /// Ports and burst without flags: PORT_A [PORT_B [BURST]]
    #[arg(value_name = "PORT", num_args = 0..=3)]
    positional: Vec<String>,
}

/// Parses a number of slots.
fn burst(text: &str) -> Result<u32, String> {
    within(count, 1..=u32::MAX.into())(text)
}

/// The validated command line.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) a: String,
    /// None: packets are sent back through `a`.
    pub(crate) b: Option<String>,
    /// Maximum number of slots per batch.
    pub(crate) burst: u32,
    pub(crate) wait: Duration,
    pub(crate) copy: bool,
    pub(crate) bypass: bool,
    pub(crate) verbose: bool,
    pub(crate) json: bool,
    /// Records of the flows that pass.
    #[cfg(feature = "apps")]
    pub(crate) flows: unetmap_flows::ObserverArgs,
}

impl Cli {
    /// Validates the flags together.
    pub(crate) fn check(self) -> Result<Config, String> {
        let mut ports = self.ports;
        let mut burst = self.burst;
        if !ports.is_empty() && !self.positional.is_empty() {
            return Err(format!("`{}`: give ports with -i or without, not both", self.positional[0]));
        }
        if ports.is_empty() {
            let mut words = self.positional.into_iter();
            ports.extend(words.by_ref().take(2));
            if let Some(word) = words.next() {
                burst = Some(
                    self::burst(&word)
                        .map_err(|why| format!("`{word}`: the burst must be a number of slots: {why}"))?,
                );
            }
        }
        let mut ports = ports.into_iter();
        let Some(a) = ports.next() else {
            return Err("no port given; use bridge -i PORT_A -i PORT_B".into());
        };
        let b = ports.next();
        if let Some(third) = ports.next() {
            return Err(format!("-i {third}: bridge takes at most two ports; leave out the third"));
        }
        let twice = b.as_ref() == Some(&a);
        let b = match b {
            _ if self.loopback => b.filter(|b| *b != a),
            None => None,
            Some(b) if b == a => None,
            other => other,
        };
        if let (Some(b), true) = (&b, self.loopback) {
            return Err(format!("-i {b}: -L sends packets back through one port; leave out the second port"));
        }
        let a = full_name(&a);
        let (a, b) = match b {
            // The host rings come first: a program that holds them may also open the interface that carries the host's
            // connections.
            None if !self.loopback => (host_rings_of(&a, twice)?, Some(a)),
            b => (a, b.as_deref().map(full_name)),
        };
        if self.bypass && !b.as_deref().is_some_and(|b| [&*a, b].iter().all(|port| interface_of(port).is_some())) {
            return Err("--bypass: give two interfaces, each with all its rings (netmap:IF)".into());
        }
        Ok(Config {
            a,
            b,
            burst: burst.unwrap_or(1024),
            wait: self.wait,
            copy: self.copy,
            bypass: self.bypass,
            verbose: self.verbose,
            json: self.json,
            #[cfg(feature = "apps")]
            flows: self.flows,
        })
    }
}

/// Returns the name of the host rings of the interface `port`, which is given alone or `twice`.
fn host_rings_of(port: &str, twice: bool) -> Result<String, String> {
    let given = if twice { "the same port twice" } else { "a single port" };
    let refused = |why: &str| {
        format!(
            "-i {port}: {given} is bridged to the host's stack, but {why}; give {}, or -L to send packets back",
            if twice { "two different ports" } else { "a second port" }
        )
    };
    let parsed = PortSpec::parse_with(port, |name| Path::new("/sys/class/net").join(name).exists())
        .map_err(|e| e.to_string())?;
    if parsed.kind != PortKind::Netmap || parsed.pipe.is_some() {
        return Err(refused("only interfaces have host rings"));
    }
    let rings = match parsed.rings {
        Rings::AllNic => Rings::Sw,
        _ => return Err(refused("the name selects rings (give the interface's name alone)")),
    };
    Ok(PortSpec { rings, ..parsed }.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Config, String> {
        let all = ["bridge"].into_iter().chain(args.split_whitespace());
        Cli::try_parse_from(all).map_err(|e| e.to_string())?.check()
    }

    #[test]
    fn both_forms_of_the_command_line_are_equal() {
        for args in ["-i a -i vale0:b -b 7k", "a vale0:b 7k"] {
            let c = parse(args).unwrap();
            assert_eq!((&*c.a, c.b.as_deref(), c.burst), ("netmap:a", Some("vale0:b"), 7000), "{args}");
        }
        let c = parse("a b").unwrap();
        assert_eq!((c.burst, c.wait, c.copy), (1024, Duration::from_secs(2), false));
        for args in ["-i a", "a", "-i a -i a"] {
            let c = parse(args).unwrap();
            assert_eq!((&*c.a, c.b.as_deref()), ("netmap:a^", Some("netmap:a")), "{args}");
        }
        let c = parse("-i a/x@7@conf:host-rings=4").unwrap();
        assert_eq!(Some(&*c.a), Some("netmap:a^/x@7@conf:host-rings=4"));
        assert!(parse("-i a -L").unwrap().b.is_none());
        assert!(parse("a a -L").unwrap().b.is_none());
    }

    #[test]
    fn invalid_values_are_refused_with_a_reason() {
        for (args, part) in [
            ("", "no port given"),
            ("-i vale0:a", "only interfaces have host rings"),
            ("a{1", "only interfaces have host rings"),
            (
                "-i p{1 -i p{1",
                "the same port twice is bridged to the host's stack, but only interfaces have host rings",
            ),
            ("-i a-1 -i a-1", "give the interface's name alone"),
            ("-i a -i b -i c", "-i c: bridge takes at most two ports"),
            ("-i a b", "not both"),
            ("a b x", "`x`: the burst must be a number"),
            ("a b 0", "a number from 1"),
            ("a b 1 2", "'2'"),
            ("-i a -i b -b 0", "--burst"),
            ("-i a -i b -w x", "--wait"),
            ("-i a -i b -L", "leave out the second port"),
            ("-i a --bypass", "--bypass: give two interfaces"),
            ("-i a -i vale0:b --bypass", "--bypass: give two interfaces"),
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

    #[cfg(feature = "apps")]
    const SYNOPSIS: &[u8] = b".SH SYNOPSIS\n\\fBbridge\\fR [\\fIOPTIONS\\fR] \\fB\\-i\\fR \\fIPORT_A\\fR \\fB\\-i\\fR \\fIPORT_B\\fR\n.br\n\\fBbridge\\fR [\\fIOPTIONS\\fR] \\fIPORT_A\\fR [\\fIPORT_B\\fR [\\fIBURST\\fR]]\n";

    /// `man/bridge.8` is generated from the flags above and `man.roff`. After a change of either, run this test with
    /// `UPDATE_MAN=1` in the environment.
    #[cfg(feature = "apps")]
    #[test]
    fn the_man_page_is_up_to_date() {
        use clap::CommandFactory;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/bridge.8");
        tool_common::testing::check_manual(Cli::command(), SYNOPSIS, include_bytes!("../man.roff"), path);
    }
}
