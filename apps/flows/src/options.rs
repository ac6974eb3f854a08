// SPDX-License-Identifier: BSD-2-Clause
//! The command line of `unetmap flows`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use tool_common::Failure;
use tool_common::metrics::MetricsArgs;
use tool_common::port::full_name;
use unetmap_quantity::{count, seconds, within};

use crate::cache::{MAX_IDLE, SWEEP, Timeouts};
use crate::export::{Destination, Protocol, Security, Transport};
use crate::packet::Keys;
use crate::report::Format;
use crate::sampler::{Choice, Sampling};

const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);
/// Most flows: 32 GiB of records.
const MAX_FLOWS: u64 = 1 << 28;

/// Tell a collector, a file or a terminal which flows the packets of ports belong to.
///
/// A flow is the packets of one VLAN with the same addresses, protocol and ports. Its record has their number and their
/// bytes, and is sent when no packet came for the idle time-out, at the latest at the first packet after the active
/// time-out. A port on an interface receives the interface's frames in place of the network stack; to observe a port
/// that other programs use, give a monitor of it (NAME/r, NAME/t). SIGINT and SIGTERM end the program after all records
/// were sent, with a summary.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("tables").args(["top", "html"]).multiple(true)))]
pub struct FlowsArgs {
    /// Ports, each an observation domain, numbered from 1: netmap:IF, netmap:NAME}ID/t, vale0:NAME, ...
    #[arg(value_name = "PORT")]
    ports: Vec<String>,

    /// Read these capture files in place of ports, each an observation domain, with the times in them
    #[arg(short, long, value_name = "FILE", conflicts_with = "ports")]
    read: Vec<PathBuf>,

    /// Send the records, or for sFlow the chosen packets, to this collector: by UDP, or by tcp:HOST:PORT, tls:HOST:PORT
    #[arg(long, value_name = "HOST:PORT", value_parser = Destination::parse)]
    to: Option<Destination>,

    /// TLS: certificates of authorities that the collector's must descend from (PEM) [default: the system's]
    #[arg(long, value_name = "FILE", requires = "to")]
    ca: Option<PathBuf>,

    /// TLS: this program's certificate for the collector, and those of its issuers (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,

    /// TLS: the key of --certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,

    /// Protocol of --to
    #[arg(long, value_enum, default_value_t = ProtocolArg::Ipfix)]
    protocol: ProtocolArg,

    /// Print each record as a JSON object, and the summary
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print each record as a line of CSV, after a line with titles
    #[arg(long)]
    csv: bool,

    /// Print the addresses, ports, protocols and flows of most bytes: of ports at each refresh, of files once
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    top: bool,

    /// At the end write a page to this file: the rates over time, and the addresses, ports, protocols and flows of most
    /// bytes of the whole time
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Rows of each table of --top and --html
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000), requires = "tables")]
    rows: u16,

    /// Time between two refreshes of --top, and between two points in the charts of --html
    #[arg(short, long, value_name = "SECONDS", default_value = "1", requires = "tables",
          value_parser = within::<Duration, Duration>(seconds, Duration::from_millis(50)..=Duration::from_secs(3600)), allow_hyphen_values = true)]
    interval: Duration,

    /// End after so many refreshes of --top (0 = unlimited)
    #[arg(short = 'n', long, value_name = "N", default_value_t = 0, requires = "top")]
    count: u64,

    /// Count one packet of N; records say so, and have the counts of the chosen packets
    #[arg(long, value_name = "N", default_value = "1", value_parser = within::<u64, u32>(count, 1..=u64::from(u32::MAX)), allow_hyphen_values = true)]
    sample: u32,

    /// How the packets are chosen that are counted
    #[arg(long, value_enum, default_value_t = Choice::Random)]
    sample_by: Choice,

    #[command(flatten)]
    metrics: MetricsArgs,

    /// Make both directions one record (RFC 5103), which begins with the first packet's; needs IPFIX
    #[arg(short, long)]
    both_directions: bool,

    /// The flow of a packet in a tunnel (VXLAN, GENEVE, GRE, IP in IP, GTP-U) is that of the inner packet
    #[arg(long)]
    inner: bool,

    /// Time without packets after which a record ends
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = within::<Duration, Duration>(seconds, MILLISECOND..=Duration::from_millis(MAX_IDLE / 2)), allow_hyphen_values = true)]
    idle: Duration,

    /// Age of a record after which the next packet begins another one
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = within::<Duration, Duration>(seconds, MILLISECOND..=DAY), allow_hyphen_values = true)]
    active: Duration,

    /// Flows that have a place at once; 176 bytes for each. More make records end early, which is counted
    #[arg(long, value_name = "N", default_value = "256k", value_parser = within::<u64, usize>(count, 1..=MAX_FLOWS), allow_hyphen_values = true)]
    flows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProtocolArg {
    /// RFC 7011
    Ipfix,
    /// NetFlow version 9 (RFC 3954)
    Netflow9,
    /// sFlow version 5: the first 128 bytes of the chosen packets, and no records
    Sflow5,
}

/// The validated command line.
pub(crate) struct Settings<'a> {
    pub(crate) ports: Vec<String>,
    pub(crate) files: &'a [PathBuf],
    pub(crate) to: Option<(&'a Destination, Security)>,
    pub(crate) protocol: Protocol,
    /// Records on standard output.
    pub(crate) format: Option<Format>,
    pub(crate) json: bool,
    /// Of the tables, and whether they are printed.
    pub(crate) tables: TopSettings,
    pub(crate) top: Option<TopSettings>,
    /// The file of the page.
    pub(crate) html: Option<&'a Path>,
    pub(crate) sampling: Sampling,
    pub(crate) keys: Keys,
    pub(crate) timeouts: Timeouts,
    pub(crate) flows: usize,
    pub(crate) metrics: &'a MetricsArgs,
}

/// Of `--top` and `--html`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopSettings {
    pub(crate) rows: usize,
    pub(crate) interval: Duration,
    /// 0: unlimited.
    pub(crate) count: u64,
}

impl FlowsArgs {
    /// Checks what clap does not.
    ///
    /// # Errors
    /// [`Failure::Usage`].
    pub(crate) fn check(&self) -> Result<Settings<'_>, Failure> {
        let wrong = |why: &str| Err(Failure::Usage(why.into()));
        if self.ports.is_empty() && self.read.is_empty() {
            return wrong("give the ports whose packets are observed, or capture files (--read)");
        }
        if self.ports.len() + self.read.len() > usize::from(u16::MAX) {
            return wrong("give at most 65535 ports and files");
        }
        if self.to.is_none() && !self.json && !self.csv && !self.top && self.html.is_none() {
            return wrong("say where the records go: --to HOST:PORT, --json, --csv, --top, or --html FILE");
        }
        if self.both_directions && self.to.is_some() && self.protocol != ProtocolArg::Ipfix {
            return wrong("--both-directions: only IPFIX has fields for it; use --protocol ipfix");
        }
        let transport = self.to.as_ref().map_or(Transport::Udp, |to| to.transport);
        if transport != Transport::Udp && self.protocol != ProtocolArg::Ipfix {
            return wrong("--to: only IPFIX is sent by TCP and TLS; use --protocol ipfix, or UDP");
        }
        if transport != Transport::Tls && (self.ca.is_some() || self.certificate.is_some()) {
            return wrong("--ca, --certificate and --key are for --to tls:HOST:PORT");
        }
        let identity = self.certificate.clone().zip(self.key.clone());
        let security = Security { authorities: self.ca.clone(), identity };
        let millis = |time: Duration| time.as_millis() as u64;
        let tables = TopSettings { rows: self.rows.into(), interval: self.interval, count: self.count };
        let top = self.top.then_some(tables);
        let sweep = top.map_or(SWEEP, |top| millis(top.interval).clamp(1, SWEEP));
        Ok(Settings {
            ports: self.ports.iter().map(|port| full_name(port)).collect(),
            files: &self.read,
            to: self.to.as_ref().map(|to| (to, security)),
            protocol: match self.protocol {
                ProtocolArg::Ipfix => Protocol::Ipfix,
                ProtocolArg::Netflow9 => Protocol::Netflow9,
                ProtocolArg::Sflow5 => Protocol::Sflow,
            },
            format: match (self.json, self.csv) {
                (true, _) => Some(Format::Json),
                (_, true) => Some(Format::Csv),
                _ => None,
            },
            json: self.json,
            tables,
            top,
            html: self.html.as_deref(),
            sampling: Sampling { n: self.sample, by: self.sample_by },
            keys: Keys { both: self.both_directions, inner: self.inner },
            timeouts: Timeouts { idle: millis(self.idle), active: millis(self.active), sweep },
            flows: self.flows,
            metrics: &self.metrics,
        })
    }
}
