// SPDX-License-Identifier: BSD-2-Clause
//! The command line: each flag is defined once here, for the parser, `--help` and the man page.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};

use tool_common::daemon::WaitDaemon;
use tool_common::port::{RingConfig, full_name};
use unetmap_quantity::{bytes, count, milliseconds, seconds, whole_packet_rate, within};

use crate::addr::{Mac, Range};
use crate::packet;

/// Bytes of the longest packet: the maximum of an IP length field.
const MAX_LEN: usize = 65_535;
/// Maximum number of slots of one packet.
pub(crate) const MAX_FRAGS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Function {
    /// Send packets as fast as possible, or at the rate of -R
    Tx,
    /// Receive packets and count them
    Rx,
    /// Send packets and measure the round-trip time of their answers
    Ping,
    /// Answer pings: return each packet with its addresses swapped
    Pong,
    /// Send packets that carry sequence numbers
    Txseq,
    /// Receive packets and count the gaps in their sequence numbers
    Rxseq,
}

impl Function {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Function::Tx => "tx",
            Function::Rx => "rx",
            Function::Ping => "ping",
            Function::Pong => "pong",
            Function::Txseq => "txseq",
            Function::Rxseq => "rxseq",
        }
    }

    /// Returns the first word of the summary.
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Function::Tx | Function::Txseq | Function::Ping => "Sent",
            Function::Rx | Function::Rxseq | Function::Pong => "Received",
        }
    }

    /// Returns true if the function generates packets; pong only returns those that it receives.
    pub(crate) fn generates_packets(self) -> bool {
        self.verb() == "Sent"
    }
}

/// Packet generator and receiver for netmap ports.
#[derive(Debug, Parser)]
#[command(name = "pkt-gen", version = unetmap::version(), max_term_width = 100, args_override_self = true)]
pub(crate) struct Cli {
    /// Port to open, as in `netmap:eth0` or `netmap:p{1`; a bare NAME means `netmap:NAME`
    #[arg(short = 'i', long = "port", value_name = "PORT")]
    port: String,

    /// Function to run
    #[arg(short, long, value_enum, value_name = "FUNCTION", default_value = "rx")]
    function: Function,

    /// Number of packets to send or receive, over all threads; 0: no limit
    ///
    /// Without -n there is no limit, except that a file given with -P is sent once.
    #[arg(short = 'n', long, value_name = "PACKETS", value_parser = count, allow_hyphen_values = true)]
    count: Option<u64>,

    /// Packet length in bytes, from the Ethernet header to the end of the payload (without FCS); given twice, each
    /// packet gets a random length between the two
    ///
    /// The default is 60, or the minimum length for IPv6 (62) or for txseq over IPv6 (66).
    #[arg(short = 'l', long = "len", value_name = "BYTES", action = ArgAction::Append, value_parser = within::<u64, u16>(bytes, 0..=MAX_LEN as u64), allow_hyphen_values = true)]
    len: Vec<u16>,

    /// Maximum number of packets in a batch [default: 512; 1 for ping and pong; with -R at most 10 ms of packets]
    #[arg(short, long, value_name = "PACKETS", value_parser = within::<u64, u32>(count, 1..=65_536), allow_hyphen_values = true)]
    burst: Option<u32>,

    /// Send IPv4 packets (the default)
    #[arg(short = '4', long, overrides_with = "ipv6")]
    ipv4: bool,

    /// Send IPv6 packets
    #[arg(short = '6', long, overrides_with = "ipv4")]
    ipv6: bool,

    /// Destination, or a range of destinations: IP[:PORT[-IP:PORT]] [default: 10.1.0.1:1234, IPv6: fd00::2]
    ///
    /// With ranges, each packet has the next address: the source port changes first, then the source address, the
    /// destination port, and the destination address. IPv6 addresses with a port are written [IP]:PORT.
    #[arg(short, long, value_name = "RANGE")]
    dst: Option<Range>,

    /// Source, or a range of sources: IP[:PORT[-IP:PORT]] [default: 10.0.0.1:1234, IPv6: fd00::1]
    #[arg(short, long, value_name = "RANGE")]
    src: Option<Range>,

    /// Destination Ethernet address [default: ff:ff:ff:ff:ff:ff]
    #[arg(short = 'D', long, value_name = "MAC")]
    dst_mac: Option<Mac>,

    /// Source Ethernet address [default: the interface's; for other ports, derived from the port's name]
    #[arg(short = 'S', long, value_name = "MAC")]
    src_mac: Option<Mac>,

    /// Pin the threads to processors, the first thread to this one [default: do not pin]
    ///
    /// Each further thread is pinned to the next processor that the process may use (see taskset(1)). After the
    /// last of them, or after as many as -c allows, this processor follows again.
    #[arg(short = 'a', long, value_name = "CPU")]
    first_cpu: Option<usize>,

    /// Maximum number of processors for -a; 0: all that the process may use
    #[arg(short = 'c', long, value_name = "CPUS", default_value_t = 1)]
    max_cpus: usize,

    /// Number of threads; with more than one, each uses one ring (pair) of the port
    #[arg(short = 'p', long, value_name = "THREADS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,

    /// Milliseconds between two reports; 0: no reports
    #[arg(short = 'T', long, value_name = "MS", default_value = "1000", value_parser = milliseconds, allow_hyphen_values = true)]
    report_ms: Duration,

    /// Seconds to wait after the port was opened, because some links come up slowly
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = seconds, allow_hyphen_values = true)]
    wait: Duration,

    #[command(flatten)]
    pub(crate) daemon: WaitDaemon,

    /// Receiver: end when no packet has arrived for a second, after the first packet
    #[arg(short = 'W', long)]
    exit_when_idle: bool,

    /// Packets per second, over all threads; 0: as many as possible
    #[arg(short = 'R', long, value_name = "PPS", default_value = "0", value_parser = whole_packet_rate, allow_hyphen_values = true)]
    rate: u64,

    /// Print every packet in hexadecimal
    #[arg(short = 'X', long)]
    dump: bool,

    /// Bytes of the virtio-net header before each packet: 0, 10 or 12
    #[arg(short = 'H', long, value_name = "BYTES", default_value_t = 0, value_parser = vnet_hdr)]
    vnet_hdr: usize,

    /// Send the packets of this pcap or pcapng file, in order, as fast as -R allows
    ///
    /// Without -n the file is sent once; with -n it is repeated until the given number of packets is sent. The
    /// timestamps of the file are not used. unetmap-capture(1) says which files are read, and what of them is sent.
    #[arg(short = 'P', long, value_name = "FILE", conflicts_with_all = ["len", "src", "dst", "src_mac", "dst_mac", "ipv6", "random_src", "random_dst", "rubbish"])]
    pcap: Option<PathBuf>,

    /// Use a random source address and port for each packet
    #[arg(short = 'z', long)]
    random_src: bool,

    /// Use a random destination address and port for each packet
    #[arg(short = 'Z', long)]
    random_dst: bool,

    /// Print plain numbers, without the prefixes K, M and G
    #[arg(short = 'N', long)]
    raw_units: bool,

    /// Spread each packet over this many slots, 1 to 64 (NS_MOREFRAG)
    #[arg(short = 'F', long, value_name = "SLOTS", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=MAX_FRAGS as i64))]
    frags: u8,

    /// With -F: bytes in each slot except the last, if less than an equal share
    #[arg(short = 'M', long, value_name = "BYTES", value_parser = within::<u64, u16>(bytes, 1..=MAX_LEN as u64), allow_hyphen_values = true)]
    frag_size: Option<u16>,

    /// Leave the packet in pkt-gen's own memory, from which the port copies it (NS_INDIRECT): only with -f tx on VALE
    /// ports, for one constant packet in one slot
    #[arg(short = 'I', long)]
    indirect: bool,

    /// Print more details on standard error
    #[arg(short, long)]
    verbose: bool,

    /// Sender: do not write to the buffers, and send the bytes that they contain
    #[arg(short, long)]
    rubbish: bool,

    /// Add mean and standard deviation of the last 60 intervals to each report
    #[arg(short = 'A', long)]
    stats: bool,

    /// Include Ethernet framing (24 bytes per packet) in the reported bits per second
    #[arg(short = 'B', long)]
    framing: bool,

    /// Number of slots and rings to request: TX_SLOTS[,RX_SLOTS[,TX_RINGS[,RX_RINGS]]]
    #[arg(short = 'C', long, value_name = "CONFIG", value_parser = ring_config)]
    config: Option<RingConfig>,

    /// Sum of: 2 read each packet, 4 or 8 copy each packet, 64 dump (-X), 256 rubbish (-r), 512 random source (-z),
    /// 1024 random destination (-Z), 2048 statistics (-A)
    ///
    /// 1 (prefetch), 16 (timestamps) and 4096 (update checksums) are accepted and have no effect: checksums are
    /// always correct. 32 is -I.
    #[arg(short = 'o', long, value_name = "MASK", default_value_t = 0, value_parser = options_mask)]
    options: u32,

    /// Ping: measure round trips by the times that the port records for its slots, from sync to sync, without this
    /// program's own part
    #[arg(long)]
    slot_times: bool,

    #[cfg(feature = "apps")]
    #[command(flatten)]
    tester: unetmap_tester::TesterArgs,

    /// Print JSON objects instead of text, one per line on standard output: a report per interval, then a summary
    #[arg(long)]
    json: bool,

    /// Receiver: write the packets to this pcap file
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// Parses the value of -C.
fn ring_config(text: &str) -> Result<RingConfig, String> {
    let bad = |part: &str, what: &str| {
        format!("`{part}` is not a number of {what}; write TX_SLOTS[,RX_SLOTS[,TX_RINGS[,RX_RINGS]]]")
    };
    let slots = |part: &str| part.parse::<u32>().map_err(|_| bad(part, "slots"));
    let rings = |part: &str| part.parse::<u16>().map_err(|_| bad(part, "rings"));
    let mut parts = text.split(',');
    let tx_slots = slots(parts.next().unwrap_or(""))?;
    // An omitted receive value equals the transmit value; omitted rings are 0, the default.
    let rx_slots = parts.next().map_or(Ok(tx_slots), slots)?;
    let tx_rings = parts.next().map_or(Ok(0), rings)?;
    let rx_rings = parts.next().map_or(Ok(tx_rings), rings)?;
    match parts.next() {
        None => Ok(RingConfig { tx_slots, rx_slots, tx_rings, rx_rings }),
        Some(_) => Err("more than four numbers; write TX_SLOTS[,RX_SLOTS[,TX_RINGS[,RX_RINGS]]]".into()),
    }
}

fn vnet_hdr(text: &str) -> Result<usize, String> {
    match text {
        "0" => Ok(0),
        "10" => Ok(10),
        "12" => Ok(12),
        _ => Err("the length of a virtio-net header is 0, 10 or 12".into()),
    }
}

const OPT_ACCESS: u32 = 2;
const OPT_COPY: u32 = 4 | 8;
const OPT_INDIRECT: u32 = 32;
const OPT_DUMP: u32 = 64;
const OPT_RUBBISH: u32 = 256;
const OPT_RANDOM_SRC: u32 = 512;
const OPT_RANDOM_DST: u32 = 1024;
const OPT_STATS: u32 = 2048;
/// Prefetch, timestamps, update checksums: accepted without effect.
const OPT_IGNORED: u32 = 1 | 16 | 4096;
const OPT_ALL: u32 = OPT_ACCESS
    | OPT_COPY
    | OPT_INDIRECT
    | OPT_DUMP
    | OPT_RUBBISH
    | OPT_RANDOM_SRC
    | OPT_RANDOM_DST
    | OPT_STATS
    | OPT_IGNORED;

fn options_mask(text: &str) -> Result<u32, String> {
    let bad = || format!("a sum of 1 2 4 8 16 32 64 256 512 1024 2048 4096 (at most {OPT_ALL})");
    let mask = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .map_err(|_| bad())?;
    if mask & !OPT_ALL == 0 { Ok(mask) } else { Err(bad()) }
}

/// The validated command line.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) port: String,
    pub(crate) function: Function,
    /// None: no limit; with a file: send it once.
    pub(crate) count: Option<u64>,
    /// Minimum and maximum packet length in bytes, both inclusive.
    pub(crate) len: (usize, usize),
    pub(crate) burst: u32,
    pub(crate) src: Range,
    pub(crate) dst: Range,
    pub(crate) src_mac: Option<Mac>,
    pub(crate) dst_mac: Mac,
    pub(crate) random_src: bool,
    pub(crate) random_dst: bool,
    /// The processor of each thread, repeated if there are more threads. Empty: threads are not pinned.
    pub(crate) cpus: Vec<usize>,
    pub(crate) threads: u16,
    pub(crate) report: Option<Duration>,
    pub(crate) wait: Duration,
    pub(crate) exit_when_idle: bool,
    /// Packets per second over all threads.
    pub(crate) rate: Option<u64>,
    pub(crate) dump: bool,
    /// Bytes of the virtio-net header before the Ethernet header.
    pub(crate) vnet_hdr: usize,
    pub(crate) pcap: Option<PathBuf>,
    pub(crate) raw_units: bool,
    pub(crate) frags: usize,
    pub(crate) frag_size: Option<usize>,
    pub(crate) indirect: bool,
    pub(crate) verbose: bool,
    pub(crate) rubbish: bool,
    pub(crate) stats: bool,
    pub(crate) framing: bool,
    pub(crate) rings: RingConfig,
    pub(crate) access: bool,
    pub(crate) copy: bool,
    /// Round trips are measured by the times of slots.
    pub(crate) slot_times: bool,
    pub(crate) json: bool,
    pub(crate) write: Option<PathBuf>,
    /// In place of the function.
    #[cfg(feature = "apps")]
    pub(crate) task: Option<unetmap_tester::Task>,
}

#[cfg(feature = "apps")]
impl Config {
    /// The options that streams and searches have, too.
    pub(crate) fn common(&self) -> unetmap_tester::Common<'_> {
        unetmap_tester::Common {
            port: &self.port,
            rings: self.rings,
            wait: self.wait,
            interval: self.report,
            exit_when_idle: self.exit_when_idle,
            count: self.count,
            cpus: &self.cpus,
            json: self.json,
            packet_of_capture: crate::capture::packet,
        }
    }
}

impl Cli {
    /// Validates the flags together. `allowed` lists the processors that this process may use.
    pub(crate) fn check(self, allowed: &[usize]) -> Result<Config, String> {
        let function = self.function;
        let option = |bit: u32| self.options & bit != 0;
        self.check_combinations()?;
        let (src, dst) = self.ranges()?;
        let rubbish = self.rubbish || option(OPT_RUBBISH);
        let len = self.lengths(rubbish)?;
        let cpus = self.cpus(allowed)?;
        Ok(Config {
            port: port_spec(&self.port)?,
            function,
            count: match self.count {
                Some(0) => Some(u64::MAX),
                other => other,
            },
            len,
            burst: self.burst(),
            src,
            dst,
            src_mac: self.src_mac,
            dst_mac: self.dst_mac.unwrap_or(Mac::BROADCAST),
            random_src: self.random_src || option(OPT_RANDOM_SRC),
            random_dst: self.random_dst || option(OPT_RANDOM_DST),
            cpus,
            threads: self.threads,
            report: Some(self.report_ms).filter(|time| !time.is_zero()),
            wait: self.wait,
            exit_when_idle: self.exit_when_idle,
            rate: (self.rate > 0).then_some(self.rate),
            dump: self.dump || option(OPT_DUMP),
            vnet_hdr: self.vnet_hdr,
            raw_units: self.raw_units,
            frags: usize::from(self.frags),
            frag_size: self.frag_size.map(usize::from),
            indirect: self.indirect || option(OPT_INDIRECT),
            verbose: self.verbose,
            rubbish,
            stats: self.stats || option(OPT_STATS),
            framing: self.framing,
            rings: self.config.unwrap_or_default(),
            access: option(OPT_ACCESS),
            copy: option(OPT_COPY),
            slot_times: self.slot_times,
            json: self.json,
            #[cfg(feature = "apps")]
            task: self.tester.task(&port_spec(&self.port)?)?,
            pcap: self.pcap,
            write: self.write,
        })
    }

    /// Returns the processors that -a and -c select, in the order of the threads.
    fn cpus(&self, allowed: &[usize]) -> Result<Vec<usize>, String> {
        let Some(first) = self.first_cpu else {
            return Ok(Vec::new());
        };
        let Some(at) = allowed.iter().position(|&cpu| cpu == first) else {
            let list: Vec<_> = allowed.iter().map(usize::to_string).collect();
            return Err(format!(
                "-a {first}: this process may not use that processor; give one of {} (see taskset(1))",
                list.join(", ")
            ));
        };
        let most = if self.max_cpus == 0 { allowed.len() } else { self.max_cpus };
        let (before, from) = allowed.split_at(at);
        Ok(from.iter().chain(before).copied().take(most).collect())
    }

    /// Refuses flags that the function does not support, and flags that need another flag.
    fn check_combinations(&self) -> Result<(), String> {
        let name = self.function.name();
        let only = |flag: &str, allowed: &[Function]| {
            if allowed.contains(&self.function) {
                return Ok(());
            }
            let names: Vec<_> = allowed.iter().map(|f| f.name()).collect();
            Err(format!("{flag} cannot be used with -f {name}, only with -f {}", names.join(" and -f ")))
        };
        if self.pcap.is_some() {
            only("-P", &[Function::Tx])?;
        }
        if self.write.is_some() {
            only("--write", &[Function::Rx, Function::Rxseq])?;
            if self.threads > 1 {
                return Err("--write: a file can only be written by one thread; leave out -p".into());
            }
        }
        if self.threads > 1 {
            only("-p", &[Function::Tx, Function::Rx, Function::Rxseq])?;
        }
        if self.len.len() > 1 {
            only("-l twice", &[Function::Tx])?;
        }
        if self.indirect || self.options & OPT_INDIRECT != 0 {
            only("-I", &[Function::Tx])?;
            if !self.port.starts_with("vale") {
                return Err("-I: only ports of VALE switches support indirect buffers; leave it out".into());
            }
        }
        if self.slot_times {
            only("--slot-times", &[Function::Ping])?;
        }
        if self.frags > 1 {
            only("-F", &[Function::Tx, Function::Txseq])?;
        }
        if self.function == Function::Ping && self.ipv6 {
            return Err("-6: ping supports IPv4 only; leave it out".into());
        }
        #[cfg(feature = "apps")]
        self.tester.check(self.count.is_some())?;
        if self.frag_size.is_some() && self.frags == 1 {
            return Err("-M sets the slot size for -F; give -F too".into());
        }
        Ok(())
    }

    fn ranges(&self) -> Result<(Range, Range), String> {
        let single = |addr: &str| addr.parse::<SocketAddr>().map(|a| Range { first: a, last: a });
        let (src, dst) =
            if self.ipv6 { ("[fd00::1]:1234", "[fd00::2]:1234") } else { ("10.0.0.1:1234", "10.1.0.1:1234") };
        let mut ranges = Vec::with_capacity(2);
        for (flag, given, default) in [("-s", self.src, src), ("-d", self.dst, dst)] {
            let range = match given {
                Some(range) => range,
                None => single(default).map_err(|e| format!("{flag} {default}: {e}"))?,
            };
            if range.is_ipv6() != self.ipv6 {
                let (has, expected, hint) =
                    if self.ipv6 { ("IPv4", "IPv6", "leave out -6") } else { ("IPv6", "IPv4", "add -6") };
                return Err(format!(
                    "{flag} {}: this is an {has} address, but the packets are {expected} ({hint})",
                    range.first.ip()
                ));
            }
            ranges.push(range);
        }
        Ok((ranges[0], ranges[1]))
    }

    /// Returns the minimum and the maximum packet length.
    fn lengths(&self, rubbish: bool) -> Result<(usize, usize), String> {
        let headers = packet::payload_offset(self.ipv6);
        let shortest = match self.function {
            Function::Txseq => headers + 4,
            Function::Ping => headers + 12,
            _ if rubbish => 1,
            _ => headers,
        };
        let given: Vec<usize> = self.len.iter().map(|&l| usize::from(l)).collect();
        let (min, max) = match given[..] {
            [] => (shortest.max(60), shortest.max(60)),
            [one] => (one, one),
            [a, b] => (a.min(b), a.max(b)),
            _ => return Err("-l: give it once for one length, or twice for a range".into()),
        };
        if min < shortest && self.function.generates_packets() {
            let family = if self.ipv6 { "IPv6" } else { "IPv4" };
            return Err(format!(
                "-l {min} is too short: {} over {family} needs {shortest} to {MAX_LEN} bytes",
                self.function.name()
            ));
        }
        Ok((min, max))
    }

    fn burst(&self) -> u32 {
        let default = match self.function {
            Function::Ping | Function::Pong => 1,
            _ => 512,
        };
        let burst = self.burst.unwrap_or(default);
        if self.rate == 0 {
            return burst;
        }
        // At most 10 ms of packets per batch, so that a low rate is not sent in large bursts.
        burst.min(u32::try_from((self.rate / 100).max(1)).unwrap_or(u32::MAX))
    }
}

/// Returns the port name with its prefix. Refuses devices of netmap's pkt-gen that are not netmap ports.
fn port_spec(name: &str) -> Result<String, String> {
    for device in ["tap:", "pcap:"] {
        if name.starts_with(device) {
            let hint = if device == "pcap:" { "; -P FILE sends a capture" } else { "" };
            return Err(format!("-i {name}: {device} devices are not supported; give a netmap port{hint}"));
        }
    }
    Ok(full_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Config, String> {
        let all = ["pkt-gen", "-i", "netmap:p{1"].into_iter().chain(args.split_whitespace());
        Cli::try_parse_from(all).map_err(|e| e.to_string())?.check(&[1, 2, 5, 7])
    }

    #[test]
    fn a_repeated_option_overrides_the_first() {
        assert_eq!(parse("-n 1 -n 2").unwrap().count, Some(2));
    }

    #[test]
    fn defaults() {
        let c = parse("").unwrap();
        assert_eq!((c.function, c.count, c.len, c.burst), (Function::Rx, None, (60, 60), 512));
        assert_eq!((c.threads, c.wait, c.report), (1, Duration::from_secs(2), Some(Duration::from_secs(1))));
        assert_eq!(c.src.first, "10.0.0.1:1234".parse().unwrap());
        assert_eq!(c.dst.first, "10.1.0.1:1234".parse().unwrap());
        assert_eq!((c.dst_mac, c.rate, c.cpus), (Mac::BROADCAST, None, vec![]));
        assert_eq!(parse("-f ping").unwrap().burst, 1);
        assert_eq!(parse("-n 0").unwrap().count, Some(u64::MAX));
        assert_eq!(parse("-f tx -6").unwrap().len, (62, 62));
        assert_eq!(parse("-f txseq -6").unwrap().len, (66, 66));
        assert_eq!(parse("-T 0").unwrap().report, None);
    }

    #[test]
    fn every_short_flag_has_a_long_name_and_help() {
        use clap::CommandFactory;
        let command = Cli::command();
        let letters: Vec<char> = command.get_arguments().filter_map(|arg| arg.get_short()).collect();
        for letter in "ifnlb46dsDSacpTwWRXHPzZNFMIvrABCo".chars() {
            assert!(letters.contains(&letter), "-{letter} is missing");
        }
        tool_common::testing::check_flags(command);
    }

    #[test]
    fn lengths_and_bursts_are_derived() {
        assert_eq!(parse("-f tx -l 1500 -l 64").unwrap().len, (64, 1500));
        assert_eq!(parse("-f tx -l 20 -r").unwrap().len, (20, 20));
        assert_eq!(parse("-f tx -R 1000").unwrap().burst, 10);
        assert_eq!(parse("-f tx -R 10").unwrap().burst, 1);
        assert_eq!(parse("-f tx -R 1000000").unwrap().burst, 512);
        assert_eq!(parse("-f tx -R 10M -b 7").unwrap().burst, 7);
        assert_eq!(parse("-f tx -b 2k").unwrap().burst, 2000);
    }

    #[test]
    fn slots_and_rings_are_parsed() {
        let of = |t: &str| ring_config(t).unwrap();
        assert_eq!(of("256"), RingConfig { tx_slots: 256, rx_slots: 256, tx_rings: 0, rx_rings: 0 });
        assert_eq!(of("256,512,2"), RingConfig { tx_slots: 256, rx_slots: 512, tx_rings: 2, rx_rings: 2 });
        assert_eq!(of("1,2,3,4"), RingConfig { tx_slots: 1, rx_slots: 2, tx_rings: 3, rx_rings: 4 });
    }

    #[test]
    fn options_mask_sets_the_same_options_as_the_flags() {
        let c = parse("-o 3654").unwrap();
        assert!(c.access && c.copy && c.dump && c.random_src && c.random_dst && c.stats && !c.rubbish);
        assert!(parse("-f tx -o 256").unwrap().rubbish);
        assert!(parse("-o 0x1011").is_ok());
    }

    #[test]
    fn threads_are_pinned_to_allowed_processors_only() {
        for (args, cpus) in [
            ("-a 1", &[1][..]),
            ("-a 5 -c 2", &[5, 7]),
            ("-a 5 -c 3", &[5, 7, 1]),
            ("-a 2 -c 0", &[2, 5, 7, 1]),
            ("-a 7 -c 9", &[7, 1, 2, 5]),
            ("-c 0", &[]),
        ] {
            assert_eq!(parse(args).unwrap().cpus, cpus, "{args}");
        }
    }

    #[test]
    fn port_names_get_a_prefix() {
        assert_eq!(port_spec("eth0").unwrap(), "netmap:eth0");
        assert!(port_spec("tap:x").unwrap_err().contains("not supported"));
        assert!(port_spec("pcap:x").unwrap_err().contains("-P FILE"));
    }

    #[test]
    fn errors_name_the_option_its_value_and_the_valid_values() {
        for (args, parts) in [
            ("-f up", &["--function", "'up'", "txseq"][..]),
            ("-n x", &["--count", "'x'", "suffix k, M or G"]),
            ("-n -1", &["-1"]),
            ("-l 65536", &["--len", "65536", "0 to 65535"]),
            ("-f tx -l 41", &["-l 41", "42 to 65535"]),
            ("-f tx -6 -l 60", &["-l 60", "IPv6", "62 to 65535"]),
            ("-f ping -l 53", &["-l 53", "54 to 65535"]),
            ("-f tx -l 1 -l 2 -l 3", &["-l", "twice"]),
            ("-f txseq -l 64 -l 80", &["-l twice", "txseq", "-f tx"]),
            ("-b 0", &["--burst", "'0'", "1 to 65536"]),
            ("-d 1.2.3", &["--dst", "'1.2.3'", "IP[:PORT]"]),
            ("-s 10.0.0.2-10.0.0.1", &["--src", "before it begins"]),
            ("-s fd00::1", &["-s fd00::1", "add -6"]),
            ("-6 -d 10.0.0.1", &["-d 10.0.0.1", "leave out -6"]),
            ("-D 1:2", &["--dst-mac", "'1:2'", "six hexadecimal bytes"]),
            ("-S g", &["--src-mac", "'g'", "six hexadecimal bytes"]),
            ("-a 4", &["-a 4", "one of 1, 2, 5, 7"]),
            ("-c x", &["--max-cpus", "'x'"]),
            ("-p 0", &["--threads", "'0'", "1..=1024"]),
            ("-f ping -p 2", &["-p", "ping", "-f tx and -f rx"]),
            ("-T x", &["--report-ms", "'x'"]),
            ("-w x", &["--wait", "'x'"]),
            ("-R x", &["--rate", "'x'"]),
            ("-R 1T", &["--rate", "'1T'", "10kpps"]),
            ("-R -5", &["--rate", "'-5'", "10kpps"]),
            ("-R 100Mbit", &["--rate", "'100Mbit'", "give packets per second"]),
            ("-H 11", &["--vnet-hdr", "'11'", "0, 10 or 12"]),
            ("-F 0", &["--frags", "'0'", "1..=64"]),
            ("-F 65", &["--frags", "'65'", "1..=64"]),
            ("-f tx -M 100", &["-M", "-F"]),
            ("-f rx -F 2", &["-F", "rx", "-f tx and -f txseq"]),
            ("-f tx -F 2 -M 0", &["--frag-size", "'0'", "1 to 65535"]),
            ("-f tx -I", &["-I", "VALE", "leave it out"]),
            ("-f tx -o 32", &["-I", "VALE"]),
            ("-f rx -I", &["-I", "-f tx"]),
            ("-o 128", &["--options", "'128'", "sum of 1 2 4"]),
            ("-C x", &["--config", "'x'", "number of slots"]),
            ("-C 1,2,3,4,5", &["--config", "more than four"]),
            ("-C 1,2,70000", &["--config", "`70000`", "number of rings"]),
            ("-f rx -P f", &["-P", "rx", "-f tx"]),
            ("-f tx -P f -l 60", &["--pcap", "--len"]),
            ("-f tx --write f", &["--write", "tx", "-f rx and -f rxseq"]),
            ("-p 2 --write f", &["--write", "one thread"]),
            ("-f ping -6", &["-6", "IPv4"]),
            ("--nonsense", &["--nonsense"]),
            ("stray", &["stray"]),
        ] {
            let message = parse(args).expect_err(args);
            for part in parts {
                assert!(message.contains(part), "{args}: {message:?} lacks {part:?}");
            }
        }
    }

    #[cfg(feature = "apps")]
    #[test]
    fn wrong_options_of_streams_and_searches_are_refused() {
        for (args, parts) in [
            ("--streams f -f tx", &["--streams", "--function"][..]),
            ("--stream rate=1 -R 5", &["--stream", "--rate"]),
            ("--stream rate=1 -n 5", &["-n", "own count"]),
            ("--receive -l 60", &["--receive", "--len"]),
            ("--wall-clock", &["--wall-clock", "--receive"]),
            ("--one-thread", &["--one-thread", "--receive"]),
            ("--link x", &["--link", "`x`", "10G"]),
            ("--rfc2544", &["--rfc2544", "--receive"]),
            ("--rfc2544 --receive", &["--rfc2544", "two ports"]),
            ("--rfc2544 --receive=p{1", &["--rfc2544", "two ports"]),
            ("--rfc8219=sizes=64 --receive=q{1", &["--rfc8219", "84"]),
            ("--rfc2544 --rfc8219 --receive=q{1", &["give one"]),
            ("--rfc2544 --stream rate=1 --receive=q{1", &["--rfc2544", "--stream"]),
            ("--html f", &["--html", "--rfc2544"]),
        ] {
            let message = parse(args).expect_err(args);
            for part in parts {
                assert!(message.contains(part), "{args}: {message:?} lacks {part:?}");
            }
        }
    }

    #[cfg(feature = "apps")]
    const SYNOPSIS: &[u8] = b".SH SYNOPSIS\n\\fBpkt\\-gen\\fR \\fB\\-i\\fR \\fIPORT\\fR [\\fB\\-f\\fR \\fIFUNCTION\\fR] [\\fIOPTIONS\\fR]\n";

    /// `man/pkt-gen.8` is generated from the flags above and `man.roff`. After a change of either, run this test with
    /// `UPDATE_MAN=1` in the environment.
    #[cfg(feature = "apps")]
    #[test]
    fn the_man_page_is_up_to_date() {
        use clap::CommandFactory;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/pkt-gen.8");
        tool_common::testing::check_manual(Cli::command(), SYNOPSIS, include_bytes!("../man.roff"), path);
    }
}
