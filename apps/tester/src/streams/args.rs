// SPDX-License-Identifier: BSD-2-Clause
//! The options of streams.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use tool_common::port::full_name;

use super::StreamOptions;

/// Options that choose or change what other functions do: streams have their own packets and rates.
const NOT_WITH_STREAMS: [&str; 21] = [
    "function",
    "len",
    "burst",
    "ipv4",
    "ipv6",
    "dst",
    "src",
    "dst_mac",
    "src_mac",
    "threads",
    "rate",
    "dump",
    "vnet_hdr",
    "pcap",
    "random_src",
    "random_dst",
    "frags",
    "indirect",
    "rubbish",
    "options",
    "write",
];

// No documentation comment: clap would take it for the program's.
#[derive(Debug, Args)]
pub(crate) struct StreamArgs {
    /// Send the streams that this TOML file describes (see STREAMS)
    #[arg(long, value_name = "FILE", conflicts_with_all = NOT_WITH_STREAMS)]
    streams: Option<PathBuf>,

    /// Send one more stream: KEY=VALUE[,KEY=VALUE...], as in rate=10kpps,size=60-1514,dst=10.1.0.1
    ///
    /// The keys are name, rate (needed), size, count, start, stop, burst, smac, dmac, vlan, src, dst, sport and dport.
    #[arg(long, value_name = "SPEC", action = ArgAction::Append, conflicts_with_all = NOT_WITH_STREAMS)]
    stream: Vec<String>,

    /// Measure the streams that arrive at the port, or with =PORT at another one
    ///
    /// Without --streams or --stream only receives. A receiver in the process of the sender knows how many packets
    /// were sent; another one does not see that the last packets are lost.
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, conflicts_with_all = NOT_WITH_STREAMS)]
    receive: Option<Option<String>>,

    /// Take the times of streams from the clock of date(1), for a sender and a receiver on two machines with
    /// synchronized clocks
    #[arg(long)]
    wall_clock: bool,

    /// Send and measure streams by one thread that never sleeps: no delay has a wake-up in it, and a processor is busy
    #[arg(long, requires = "receive")]
    one_thread: bool,

    /// Bits per second of the link, for rates in percent of it
    #[arg(long, value_name = "SPEED", default_value = "10G", value_parser = unetmap_streams::parse_link, allow_hyphen_values = true)]
    link: u64,
}

impl StreamArgs {
    /// Returns what streams and searches share; `None` if neither is wanted.
    pub(crate) fn options(&self) -> Option<StreamOptions> {
        let wanted = self.sends() || self.receive.is_some();
        wanted.then(|| StreamOptions {
            file: self.streams.clone(),
            specs: self.stream.clone(),
            receive: self.receive.clone().map(|port| port.map(|name| full_name(&name))),
            wall_clock: self.wall_clock,
            one_thread: self.one_thread,
            link: self.link,
        })
    }

    /// Whether there are streams to send.
    pub(crate) fn sends(&self) -> bool {
        self.streams.is_some() || !self.stream.is_empty()
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.wall_clock && self.options().is_none() {
            return Err("--wall-clock is the clock of streams: give --streams, --stream or --receive too".into());
        }
        Ok(())
    }
}
