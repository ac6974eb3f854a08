// SPDX-License-Identifier: BSD-2-Clause
//! The command lines of `unetmap nic` and `unetmap bypass`.

use clap::{Args, Subcommand};
use tool_common::Failure;
use unetmap_core::control::nic::OnFailure;

use crate::doctor;

/// Show an interface's port, or change its filter, busy polling, way, failure, RSS or steering rules.
///
/// Frames that do not match the filter stay with the kernel's network stack, as if no port were open. The filter
/// remains set until it is removed or the interface is deleted, whether a port is open or not. Root can set it, and
/// users to whom the policy grants direct access to the interface (unetmap-policy(5)).
#[derive(Debug, Args)]
pub(crate) struct NicArgs {
    /// An interface of this network namespace, or a port on one (netmap:IF)
    #[arg(value_name = "IF", value_parser = doctor::interface)]
    pub(crate) interface: String,

    #[command(subcommand)]
    pub(crate) action: Option<NicAction>,

    /// Print the daemon's reply as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Also write the interface's filter, busy polling, way, failure and header to the file of switches
    /// (unetmap-switches(5))
    #[arg(long, global = true)]
    pub(crate) save: bool,
}

/// Have the kernel forward between two interfaces while no program does.
///
/// Sets for each interface what `unetmap nic IF failure bypass PARTNER` does: the kernel sends the frames of one by the
/// other from now on, except while programs take them from open ports; also when a program is killed or stopped, and
/// when the daemon has ended. Only root can set it.
#[derive(Debug, Args)]
pub(crate) struct BypassArgs {
    /// An interface of this network namespace
    #[arg(value_name = "IF1", value_parser = doctor::interface)]
    pub(crate) first: String,

    /// The other one
    #[arg(value_name = "IF2", value_parser = doctor::interface)]
    pub(crate) second: String,

    /// Frames that no program takes go to the host's stack again; needs no daemon
    #[arg(value_name = "off", value_parser = ["off"])]
    pub(crate) off: Option<String>,

    /// Print the pair as a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// Also write both settings to the configuration file (unetmap-switches(5))
    #[arg(long)]
    pub(crate) save: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NicAction {
    /// Set the filter that selects the frames that enter the port
    Filter {
        /// Of the frames that match, only one of N enters, by chance
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        sample: Option<u32>,

        /// Take all frames of one of N flows instead, in both directions
        #[arg(long, requires = "sample")]
        by_flow: bool,

        /// A tcpdump expression (pcap-filter(7)); off: all frames enter
        #[arg(required_unless_present = "sample", value_name = "EXPRESSION|off")]
        expression: Vec<String>,
    },
    /// Set busy polling: syncs process the interface's queues themselves instead of waiting for interrupts
    BusyPoll {
        /// USEC: 1 to 1000 microseconds (SO_BUSY_POLL); BUDGET: packets per busy poll, 1 to 64 (default 64); off.
        /// Applies to ports that are opened afterwards
        #[arg(required = true, value_name = "USEC [BUDGET]|off", num_args = 1..=2)]
        words: Vec<String>,
    },
    /// Set what becomes of frames that a program should get and none takes: no port is open, it was killed or stopped,
    /// or the daemon has ended
    Failure {
        /// open: the host's stack gets them; closed: they are dropped; bypass PARTNER: the interface PARTNER sends them
        #[arg(required = true, value_name = "open|closed|bypass PARTNER", num_args = 1..=2)]
        words: Vec<String>,
    },
    /// Choose how packets get into the buffers of programs that open the interface afterwards
    Way {
        /// auto: zero copy where the driver is known to do it right on this kernel; copy: never zero copy; zero-copy:
        /// nothing else; generic: the XDP program is not in the driver; packet: packet sockets. Root chooses
        #[arg(value_name = "auto|copy|zero-copy|generic|packet", value_parser = super::way)]
        way: super::Way,
    },
    /// Set the bytes of virtio-net header before each packet of the port, of programs that open it afterwards
    Header {
        /// 0: none; 10 or 12: received frames have an empty header, and of sent ones the daemon computes the checksum
        /// and makes the segments that the header requests
        #[arg(value_name = "0|10|12", value_parser = super::header)]
        bytes: u32,
    },
    /// Show or change how the driver distributes frames over the receive queues
    Rss {
        /// Nothing: show the distribution; symmetric: both directions of a flow to one queue; equal N: the first N
        /// queues; queues LIST: these queues; key BYTES: the hash key
        #[arg(value_name = "CHANGE")]
        change: Vec<String>,
    },
    /// Show or change the hardware's rules that steer frames to receive queues
    Steer {
        /// Nothing: list the rules; RULE QUEUE: add a rule, for instance 'udp dst port 53' 2; off PLACE: remove a rule
        #[arg(value_name = "RULE QUEUE|off PLACE", num_args = 0..=2)]
        words: Vec<String>,
    },
}

/// Performs `unetmap nic`; returns what it prints.
pub(crate) fn run(args: &NicArgs) -> Result<String, Failure> {
    let (interface, json) = (&args.interface, args.json);
    match &args.action {
        None => super::run(interface, None, json),
        Some(NicAction::Filter { sample, by_flow, expression }) => {
            super::run(interface, Some(&super::words(*sample, *by_flow, expression)), json)
        }
        Some(NicAction::BusyPoll { words }) => super::busy::run(interface, words, json),
        Some(NicAction::Way { way }) => super::send(interface, Ok(super::Action::Way(*way)), json),
        Some(NicAction::Failure { words }) => super::failure::run(interface, words, json),
        Some(NicAction::Header { bytes }) => super::set_header(interface, *bytes, json),
        Some(NicAction::Rss { change }) => super::queues::rss(interface, change, json),
        Some(NicAction::Steer { words }) => super::queues::steer(interface, words, json),
    }
}

/// The keys in the configuration's file of what `unetmap nic` changes.
pub(crate) fn keys(args: &NicArgs) -> &'static [&'static str] {
    match args.action {
        Some(NicAction::Filter { .. }) => &["filter"],
        Some(NicAction::BusyPoll { .. }) => &["busy-poll"],
        Some(NicAction::Way { .. }) => &["way"],
        Some(NicAction::Failure { .. }) => &["failure"],
        Some(NicAction::Header { .. }) => &["header"],
        _ => &[],
    }
}

/// Returns the value that the action sets, as the daemon's state shows it.
pub(crate) fn normal_form(action: NicAction) -> Result<String, String> {
    match action {
        NicAction::Filter { sample, by_flow, expression } => {
            Ok(super::compile(&super::words(sample, by_flow, &expression))?.expression)
        }
        NicAction::BusyPoll { words } => match super::busy::action(&words)? {
            super::Action::BusyPoll { usec, budget } => Ok(format!("{usec} {budget}")),
            _ => Err("give microseconds, and packets".into()),
        },
        NicAction::Way { way: super::Way::Auto } => Err("without this key it is auto".into()),
        NicAction::Way { way } => Ok(way.as_str().into()),
        NicAction::Failure { words } => match super::failure::action(&words)? {
            super::Action::OnFailure(OnFailure::Open) => Err("open is what is not in the file: remove the line".into()),
            _ => Ok(words.join(" ")),
        },
        NicAction::Header { bytes: bytes @ (10 | 12) } => Ok(bytes.to_string()),
        NicAction::Header { .. } => Err("a header has 10 or 12 bytes".into()),
        NicAction::Rss { .. } | NicAction::Steer { .. } => Err("this is not stored".into()),
    }
}
