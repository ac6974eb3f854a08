// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap capture`: writes the packets that a port receives into files.

pub(crate) mod files;
mod packer;
mod writers;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use pcap::{BpfProgram, Capture, Linktype};
use serde_json::{Value, json};
use tool_common::daemon::WaitDaemon;
use tool_common::{Failure, link, note, note_part, port, stop_on_signals};
use unetmap::abi::{NR_MONITOR_RX, NR_MONITOR_TX, NR_ZCOPY_MON, NS_MOREFRAG};
use unetmap::{Interest, Port};
use unetmap_capture::MAX_PACKET;
use unetmap_capture::write::{CaptureInfo, Counters, Format};
use unetmap_quantity::{bytes, count, seconds, within};

use files::{Limits, Style};
use writers::{Output, Written};

/// Longest wait for packets before signals and limits are checked.
const MAX_WAIT: Duration = Duration::from_millis(100);
/// Interval at which buffered packets are written and, on a terminal, the progress is printed.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Write the packets that a port receives into a file.
///
/// A port on an interface receives the interface's frames in place of the network stack. To observe a port that other
/// programs use, capture from a monitor of it (NAME/r, NAME/t). Stops after --count packets or --duration, or at a
/// signal, and prints the number of received and lost packets.
#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    /// A port: netmap:IF, netmap:NAME}ID, vale0:NAME, ...
    #[arg(value_name = "PORT")]
    port: String,

    /// The letter of other programs, which is explained.
    #[arg(short = 'i', long = "port", hide = true, value_name = "PORT", value_parser = no_letter)]
    _letter: Option<String>,

    /// File to write, - for standard output
    ///
    /// With --file-size or --file-seconds there are several files, with a number before the extension:
    /// FILE_00001.pcapng.
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,

    /// File format; the default is pcap if FILE ends in .pcap, else pcapng
    ///
    /// Both have times in nanoseconds; pcapng also says what took them, and how many packets were received and lost.
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<FormatArg>,

    /// Bytes of each packet to keep
    #[arg(short, long, value_name = "BYTES", default_value_t = MAX_PACKET, value_parser = within::<u64, u32>(bytes, 1..=MAX_PACKET.into()), allow_hyphen_values = true)]
    snaplen: u32,

    /// Stop after this number of packets
    #[arg(short, long, value_name = "PACKETS", value_parser = within::<u64, u64>(count, 1..=u64::MAX), allow_hyphen_values = true)]
    count: Option<u64>,

    /// Stop after this time
    #[arg(long, value_name = "SECONDS", value_parser = above_zero, allow_hyphen_values = true)]
    duration: Option<Duration>,

    #[command(flatten)]
    pub(crate) daemon: WaitDaemon,

    /// Start another file before a file exceeds this size
    #[arg(long, value_name = "BYTES", value_parser = within::<u64, u64>(bytes, 1..=u64::MAX), allow_hyphen_values = true)]
    file_size: Option<u64>,

    /// Start another file when a file is this old
    #[arg(long, value_name = "SECONDS", value_parser = above_zero, allow_hyphen_values = true)]
    file_seconds: Option<Duration>,

    /// Keep this number of files, and remove older ones
    #[arg(long, value_name = "FILES", value_parser = clap::value_parser!(u64).range(1..))]
    files: Option<u64>,

    /// Write no index of times, flows and addresses, by which `unetmap extract` finds packets (pcapng only)
    #[arg(long)]
    no_index: bool,

    /// Compress by zstd, at this level (pcapng only): 1 is the fastest, 19 the smallest
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, default_missing_value = "3", require_equals = true, value_parser = clap::value_parser!(i32).range(1..=19))]
    zstd: Option<i32>,

    /// Write by several threads, each into files of its own (FILE_w1.pcapng), which have all packets of their flows
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    writers: u16,

    /// Print one JSON object at the end: port, received, accepted, bytes, dropped, files, seconds
    #[arg(long)]
    json: bool,

    /// Capture only packets that match this tcpdump expression (pcap-filter(7))
    #[arg(value_name = "FILTER", trailing_var_arg = true, allow_hyphen_values = true)]
    filter: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatArg {
    Pcap,
    Pcapng,
}

/// Says how the port is given.
fn no_letter(port: &str) -> Result<String, String> {
    Err(format!("the port is given without -i: unetmap capture '{port}' -w FILE"))
}

/// Parses a time above 0.
fn above_zero(text: &str) -> Result<Duration, String> {
    let time = seconds(text)?;
    if time.is_zero() { Err("give a time above 0".into()) } else { Ok(time) }
}

impl CaptureArgs {
    /// # Errors
    /// A sentence: options that do not go together.
    fn style(&self) -> Result<Style, String> {
        let format = match self.format {
            Some(FormatArg::Pcap) => Format::Pcap,
            None if self.write.extension().is_some_and(|e| e == "pcap") => Format::Pcap,
            Some(FormatArg::Pcapng) | None => Format::Pcapng,
        };
        if format == Format::Pcap && self.zstd.is_some() {
            return Err("--zstd: only pcapng is compressed; use --format pcapng".into());
        }
        // A program that reads from a pipe cannot skip.
        let has_index = format == Format::Pcapng && !self.no_index && self.write.as_os_str() != "-";
        Ok(Style { format, has_index, level: self.zstd })
    }

    /// The limits of a file.
    ///
    /// # Errors
    /// A sentence: options that do not go together.
    fn limits(&self) -> Result<Limits, String> {
        let limits = Limits {
            bytes: self.file_size,
            time: self.file_seconds,
            files: self.files.and_then(|n| usize::try_from(n).ok()),
        };
        if limits.files.is_some() && limits.bytes.is_none() && limits.time.is_none() {
            return Err("--files: also give the size or age of a file (--file-size, --file-seconds)".into());
        }
        if self.write.as_os_str() == "-" && (limits.bytes.is_some() || limits.time.is_some()) {
            return Err("-w -: standard output cannot be split into files; give a file name".into());
        }
        if self.write.as_os_str() == "-" && self.writers > 1 {
            return Err("--writers: standard output is one file; give a file name".into());
        }
        Ok(limits)
    }
}

/// Compiles the filter expression; `None` if it is empty.
pub(crate) fn compile(expression: &str) -> Result<Option<BpfProgram>, String> {
    if expression.is_empty() {
        return Ok(None);
    }
    let compiled = Capture::dead(Linktype::ETHERNET).and_then(|dead| dead.compile(expression, true));
    let message = |e: pcap::Error| match e {
        pcap::Error::PcapError(message) => message,
        other => other.to_string(),
    };
    let wrong = |e| format!("the filter \"{expression}\" does not compile: {} (pcap-filter(7))", message(e));
    compiled.map(Some).map_err(wrong)
}

/// Returns the number of packets dropped because the port's rings were full, since the port was created.
fn total_dropped(port: &Port) -> u64 {
    let name = port.spec().trim_start_matches("netmap:");
    let snapshots = unetmap::snapshots().unwrap_or_default();
    let all = snapshots.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
    let dropped = |daemon: Value| {
        let ports = crate::ls::members(&daemon["ports"]);
        // The daemon generates the names of monitors, but a monitor has a region of its own.
        let ours = ports.filter(|p| p["mem_id"] == port.mem_id() && (p["name"] == name || p["kind"] == "monitor"));
        let rings = ours.flat_map(|p| crate::ls::members(&p["rings"])).filter(|ring| ring["dir"] == "rx");
        rings.filter_map(|ring| ring["dropped"].as_u64()).sum::<u64>()
    };
    all.map(dropped).sum()
}

/// Returns the number of drops since there were `before`; 0 if the daemon has exited.
fn dropped_since(port: &Port, before: u64) -> u64 {
    total_dropped(port).saturating_sub(before)
}

/// Returns the time since 1970.
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A running capture.
struct Running<'a> {
    args: &'a CaptureArgs,
    port: &'a Port,
    filter: Option<BpfProgram>,
    files: Output,
    counters: Counters,
    /// The port's drops before the capture started.
    dropped_before: u64,
    bytes: u64,
    /// The packet that is being assembled from its slots.
    packet: Vec<u8>,
}

impl Running<'_> {
    fn dropped(&self) -> u64 {
        dropped_since(self.port, self.dropped_before)
    }

    fn finished(&self) -> bool {
        self.args.count.is_some_and(|limit| self.counters.accepted >= limit)
    }

    /// Writes all packets that are in the rings.
    fn read_rings(&mut self) -> Result<(), String> {
        let now = wall_clock();
        for ring in self.port.rx_rings() {
            let mut done = 0;
            for (i, slot) in (1..).zip(ring.available()) {
                let start = self.packet.len();
                self.packet.resize(start + usize::from(slot.len()), 0);
                let n = slot.frame().read(0, &mut self.packet[start..]);
                self.packet.truncate(start + n);
                // Truncates a packet whose slots all have NS_MOREFRAG.
                if slot.flags() & NS_MOREFRAG != 0 && self.packet.len() < MAX_PACKET as usize {
                    continue;
                }
                let time = ring.slot_time(slot.pos()).map_or(now, |time| Duration::from_nanos(time.ns));
                self.write_packet(time)?;
                self.packet.clear();
                done = i;
                if self.finished() {
                    break;
                }
            }
            self.packet.clear();
            ring.advance(done);
            if self.finished() {
                break;
            }
        }
        Ok(())
    }

    #[inline]
    fn write_packet(&mut self, now: Duration) -> Result<(), String> {
        self.counters.received += 1;
        if self.filter.as_ref().is_some_and(|filter| !filter.filter(&self.packet)) {
            return Ok(());
        }
        self.counters.accepted += 1;
        let kept = &self.packet[..self.packet.len().min(self.args.snaplen as usize)];
        self.bytes += self.packet.len() as u64;
        let (port, before) = (self.port, self.dropped_before);
        self.files.packet(now, kept, self.packet.len() as u32, self.counters, || dropped_since(port, before))
    }

    fn run(&mut self, stop: &AtomicBool) -> Result<(), String> {
        let begin = Instant::now();
        let mut reported = (begin, 0);
        let show_progress = std::io::stderr().is_terminal() && !self.args.json;
        while !stop.load(Relaxed) && !self.finished() {
            let left = match self.args.duration {
                Some(limit) if begin.elapsed() >= limit => break,
                Some(limit) => limit - begin.elapsed(),
                None => MAX_WAIT,
            };
            if self.port.poll(Interest::RX, Some(left.min(MAX_WAIT))).map_err(|e| e.to_string())?.rx() {
                self.read_rings()?;
            }
            if reported.0.elapsed() >= REPORT_INTERVAL {
                let (port, before) = (self.port, self.dropped_before);
                self.files.flush(self.counters, || dropped_since(port, before))?;
                if show_progress {
                    let rate = (self.counters.received - reported.1) as f64 / reported.0.elapsed().as_secs_f64();
                    let Counters { accepted, .. } = self.counters;
                    let dropped = self.dropped();
                    note_part(&format!("\r{accepted} packets, {rate:.0} per second, {dropped} dropped   "));
                }
                reported = (Instant::now(), self.counters.received);
            }
        }
        if show_progress {
            note("");
        }
        // Releases the slots. This fails if the daemon has exited, and then there is nothing to release.
        let _ = self.port.rxsync();
        Ok(())
    }
}

/// Captures until a limit is reached or a signal arrives.
pub(crate) fn run(args: &CaptureArgs) -> Result<u8, Failure> {
    let failed = |why: String| Failure::Work(why).within("capture");
    let wrong = |why: String| Failure::Usage(why).within("capture");
    args.daemon.apply();
    let stop = stop_on_signals().map_err(failed)?;
    let expression = args.filter.join(" ");
    let filter = compile(&expression).map_err(wrong)?;
    let (limits, style) = (args.limits().map_err(wrong)?, args.style().map_err(wrong)?);
    let name = port::full_name(&args.port);
    let port = link::open(&name, &Port::options().slot_times(true)).map_err(|e| Failure::from(e).within("capture"))?;
    if port.rx_rings().is_empty() {
        return Err(failed(format!("{name} has no receive rings")));
    }
    let monitors = port.register().nr_flags & (NR_MONITOR_TX | NR_MONITOR_RX | NR_ZCOPY_MON) != 0;
    let times = match monitors {
        true => "times: software, when the monitored port's sync moved the packet",
        false => "times: software, when the port's sync delivered the packet",
    };
    let info = CaptureInfo { port: name.clone(), filter: expression, snaplen: args.snaplen, times };
    let files = Output::create(&args.write, style, &info, limits, args.writers).map_err(failed)?;
    let begin = Instant::now();
    let mut running = Running {
        args,
        port: &port,
        filter,
        files,
        counters: Counters::default(),
        dropped_before: total_dropped(&port),
        bytes: 0,
        packet: Vec::with_capacity(MAX_PACKET as usize),
    };
    let result = running.run(stop);
    let mut counters = Counters { dropped: running.dropped(), ..running.counters };
    let Running { files, bytes, .. } = running;
    let Written { files, unwritten, result: ended } = files.finish(wall_clock(), counters);
    counters.accepted -= unwritten.packets;
    print_summary(args, &name, counters, (bytes - unwritten.bytes, files), begin.elapsed())?;
    let result = result.and(ended);
    result.map(|()| 0).map_err(|why| match unwritten.packets {
        0 => failed(why),
        lost => failed(format!("{why}; {} packets are in the files, the last {lost} are not", counters.accepted)),
    })
}

/// Why packets were dropped, for the summary. The kernel counts frames without a free buffer and those that do not fit
/// as one: no ring need have been full.
fn why_dropped(dropped: u64) -> &'static str {
    if dropped == 0 { "" } else { " (no buffer was free, or they did not fit)" }
}

fn print_summary(
    args: &CaptureArgs,
    name: &str,
    counters: Counters,
    (bytes, files): (u64, u32),
    time: Duration,
) -> Result<(), String> {
    let Counters { received, accepted, dropped } = counters;
    if !args.json {
        let down = link::of(name).filter(|_| received == 0).map_or(String::new(), |down| format!("; {down}"));
        let why = why_dropped(dropped);
        note(&format!("{name}: {accepted} packets captured, {received} received, {dropped} dropped{why}{down}"));
        return Ok(());
    }
    let mut line = json!({"port": name, "received": received, "accepted": accepted, "bytes": bytes,
        "dropped": dropped, "files": files, "seconds": time.as_secs_f64()});
    link::add_down(&mut line);
    // The capture itself may be on standard output.
    if args.write.as_os_str() == "-" {
        note(&line.to_string());
        return Ok(());
    }
    crate::print("capture", &format!("{line}\n")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_given_for_dropped_packets_alone() {
        assert_eq!(why_dropped(0), "");
        assert!(why_dropped(1).contains("no buffer was free") && !why_dropped(1).contains("ring full"));
    }
}
