// SPDX-License-Identifier: BSD-2-Clause
//! The command line of `unetmap scrub`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tool_common::Failure;
use tool_common::daemon::WaitDaemon;
use tool_common::failure::interface_of;
use tool_common::metrics::MetricsArgs;
use tool_common::port::full_name;
use unetmap_filter::Prefix;
use unetmap_quantity::{count, mebibytes, seconds, whole_packet_rate, within};

use crate::rules::{AMPLIFIERS, Sources};
use crate::scrubber::Limits;
use crate::tunnel::{Returns, Way};

const MIB: u64 = 1 << 20;

/// Stop attacks between an interface and its host, or between two ports.
///
/// Packets that come in at the first port are dropped if they are malformed, from a source that no host may have or
/// that a list names, answers of services that amplify, or more than a source, a prefix or a destination may have; TCP
/// handshakes are completed by cookies if that is asked for. All others go to the second port, and what comes from
/// there goes back. Each dropped packet is counted with its reason; an attack is an event when it begins and when it
/// ends.
#[derive(Debug, Args)]
pub struct ScrubArgs {
    /// An interface, which is scrubbed before its host; or the port of the wire, netmap:IF
    #[arg(value_name = "IF|PORT", required_unless_present = "read")]
    first: Option<String>,

    /// The port of what is protected [default: the host rings of IF]
    #[arg(value_name = "PORT", requires = "first")]
    second: Option<String>,

    /// Judge the packets of this capture file, with the times in it, and report; nothing is sent
    #[arg(long, value_name = "FILE", conflicts_with_all = ["first", "second"])]
    read: Option<PathBuf>,

    /// Rules in the language of unetmap-fw(1), numbered from 100 to 59999; read again when the file changes, or at
    /// SIGHUP
    #[arg(short, long, value_name = "FILE")]
    rules: Option<PathBuf>,

    /// Drop packets from the addresses and prefixes in this file, one a line; read again when it changes. May be
    /// repeated
    #[arg(long, value_name = "FILE")]
    deny_list: Vec<PathBuf>,

    /// Packets from these addresses are neither looked up nor limited; as --deny-list
    #[arg(long, value_name = "FILE")]
    allow_list: Vec<PathBuf>,

    /// Let packets pass from sources that no host may have, such as 127.0.0.1, or 192.0.2.1 of documentation
    #[arg(long)]
    allow_bogons: bool,

    /// UDP source ports whose services answer more than they are asked: dropped (none: no port)
    #[arg(long, value_name = "PORTS", default_value = AMPLIFIERS)]
    amplification: String,

    /// Packets a second from one address (of IPv6, its /64), with a burst of one second
    #[arg(long, value_name = "PACKETS", value_parser = rate(), allow_hyphen_values = true)]
    source_rate: Option<u32>,

    /// Packets a second from one prefix: /24, of IPv6 /48
    #[arg(long, value_name = "PACKETS", value_parser = rate(), allow_hyphen_values = true)]
    prefix_rate: Option<u32>,

    /// Packets a second to one address
    #[arg(long, value_name = "PACKETS", value_parser = rate(), allow_hyphen_values = true)]
    destination_rate: Option<u32>,

    /// Complete TCP handshakes by cookies for these destinations, as rules have them after `to`: any, or '10.0.0.80
    /// 80,443'
    #[arg(long, value_name = "TO")]
    syn_cookies: Option<String>,

    /// Send packets that pass to the second port within GRE, or with a VLAN tag, and not as they came
    #[arg(long = "return", value_name = "gre:LOCAL,REMOTE|vlan:ID", value_parser = Way::parse)]
    way: Option<Way>,

    /// Of packets that pass those to these addresses and prefixes alone; all others leave as they came
    #[arg(long, value_name = "PREFIX,...", requires = "way", value_delimiter = ',', value_parser = prefix)]
    return_to: Vec<Prefix>,

    /// Most bytes of an IP packet there [default: the MTU of the second port]
    #[arg(long, value_name = "BYTES", requires = "way", value_parser = within::<u64, u64>(count, 576..=65_535), allow_hyphen_values = true)]
    return_mtu: Option<u64>,

    /// Connections of --syn-cookies and of rules that keep state
    #[arg(long, value_name = "N", default_value_t = 65536, value_parser = within::<u64, u32>(count, 1..=16_777_216), allow_hyphen_values = true)]
    states: u32,

    /// More dropped packets in a second than this are an attack
    #[arg(long, value_name = "PACKETS", default_value = "1000", value_parser = within::<u64, u64>(whole_packet_rate, 0..=u64::MAX), allow_hyphen_values = true)]
    attack: u64,

    /// An attack ends when this many seconds had no more drops than --attack
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    quiet: u64,

    /// Write dropped packets to this pcapng file, the first 128 bytes of each, with the reason as a comment
    #[arg(long, value_name = "FILE")]
    dropped: Option<PathBuf>,

    /// Write one of N dropped packets
    #[arg(long, value_name = "N", default_value = "1000", requires = "dropped", value_parser = within::<u64, u64>(count, 1..=u64::MAX), allow_hyphen_values = true)]
    dropped_sample: u64,

    /// Largest size of that file, in MiB
    #[arg(long, value_name = "MIB", default_value = "64", requires = "dropped", value_parser = within::<u64, u64>(mebibytes, MIB..=1_048_576 * MIB), allow_hyphen_values = true)]
    dropped_size: u64,

    /// The fate of frames while this program does not take them: closed (dropped; the default at host rings), open
    /// (passed to the host's stack), bypass (the kernel forwards between two interfaces). It stays until
    /// `unetmap nic IF failure open`
    #[arg(long, value_name = "closed|open|bypass", value_parser = ["closed", "open", "bypass"])]
    on_failure: Option<String>,

    #[command(flatten)]
    daemon: WaitDaemon,

    #[command(flatten)]
    metrics: MetricsArgs,

    /// Seconds to wait after the ports were opened, because some links come up slowly
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = seconds, allow_hyphen_values = true)]
    wait: Duration,

    /// Print the rates at this interval
    #[arg(short, long, value_name = "SECONDS", conflicts_with = "read",
          value_parser = within::<Duration, Duration>(seconds, Duration::from_millis(10)..=Duration::from_secs(3600)), allow_hyphen_values = true)]
    interval: Option<Duration>,

    /// Print events and the summary as JSON objects, one a line
    #[arg(long)]
    json: bool,
}

/// Parses an address, or a prefix.
fn prefix(text: &str) -> Result<Prefix, String> {
    Prefix::parse(text).ok_or_else(|| "give an address or a prefix, such as 10.2.0.0/16".into())
}

/// Parses packets a second.
fn rate() -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync {
    within::<u64, u32>(whole_packet_rate, 1..=1_000_000_000)
}

/// Where the packets are.
#[derive(Debug)]
pub(crate) enum Input {
    Ports([String; 2]),
    File(PathBuf),
}

/// The validated command line.
pub(crate) struct Settings<'a> {
    pub(crate) input: Input,
    pub(crate) sources: Sources,
    pub(crate) limits: Limits,
    /// How packets leave that pass.
    pub(crate) returns: Option<Returns>,
    pub(crate) states: usize,
    pub(crate) attack: u64,
    pub(crate) quiet: u64,
    /// File, one of so many packets, most bytes.
    pub(crate) dropped: Option<(&'a PathBuf, u64, u64)>,
    pub(crate) on_failure: Option<&'a str>,
    pub(crate) metrics: &'a MetricsArgs,
    pub(crate) wait: Duration,
    pub(crate) interval: Option<Duration>,
    pub(crate) json: bool,
}

impl ScrubArgs {
    /// Checks what clap does not.
    ///
    /// # Errors
    /// [`Failure::Usage`].
    pub(crate) fn check(&self) -> Result<Settings<'_>, Failure> {
        self.daemon.apply();
        let input = match (&self.first, &self.second, &self.read) {
            (_, _, Some(file)) => Input::File(file.clone()),
            (Some(first), Some(second), _) => Input::Ports([full_name(first), full_name(second)]),
            (Some(first), None, _) => {
                let first = full_name(first);
                let Some(interface) = interface_of(&first) else {
                    return Err(Failure::Usage(format!("{first} is not an interface; give the second port, too")));
                };
                Input::Ports([first, format!("netmap:{interface}^")])
            }
            (None, ..) => return Err(Failure::Usage("give an interface, two ports, or --read FILE".into())),
        };
        Ok(Settings {
            input,
            sources: Sources {
                rules: self.rules.clone(),
                deny: self.deny_list.clone(),
                allow: self.allow_list.clone(),
                bogons: !self.allow_bogons,
                amplifiers: if self.amplification == "none" { String::new() } else { self.amplification.clone() },
                proxy: self.syn_cookies.clone(),
            },
            limits: Limits { source: self.source_rate, prefix: self.prefix_rate, destination: self.destination_rate },
            returns: self.way.map(|way| Returns {
                way,
                to: self.return_to.clone(),
                mtu: self.return_mtu.map(|bytes| bytes as usize),
            }),
            states: self.states as usize,
            attack: self.attack,
            quiet: self.quiet,
            dropped: self.dropped.as_ref().map(|path| (path, self.dropped_sample, self.dropped_size)),
            on_failure: self.on_failure.as_deref(),
            metrics: &self.metrics,
            wait: self.wait,
            interval: self.interval,
            json: self.json,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: ScrubArgs,
    }

    fn parsed(line: &str) -> Result<ScrubArgs, clap::Error> {
        Cli::try_parse_from(["scrub", "--read", "a.pcap"].into_iter().chain(line.split(' '))).map(|cli| cli.args)
    }

    #[test]
    fn rates_are_packets_per_second_with_or_without_a_unit() {
        for text in ["10kpps", "10k", "10000"] {
            let args = parsed(&format!("--source-rate {text} --prefix-rate {text} --destination-rate {text}")).unwrap();
            let rates = [args.source_rate, args.prefix_rate, args.destination_rate];
            assert_eq!(rates, [Some(10_000); 3], "{text}");
            assert_eq!(parsed(&format!("--attack {text}")).unwrap().attack, 10_000, "{text}");
        }
        for option in ["--source-rate", "--prefix-rate", "--destination-rate", "--attack"] {
            let said = parsed(&format!("{option} 5Mbit")).unwrap_err().to_string();
            assert!(said.contains("give packets per second, as in 10kpps"), "{option}: {said}");
        }
    }
}
