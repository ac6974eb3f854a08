//! `unetmap capture`: what a port receives, into files.

mod files;
mod format;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use pcap::{BpfProgram, Capture, Linktype};
use serde_json::{Value, json};
use tool_common::{note, port, stop_on_signals};
use unetmap::abi::NS_MOREFRAG;
use unetmap::{Interest, Port};

use files::{Files, Limits};
use format::{About, Counters, Format};

/// How long to wait for packets before looking at signals and limits.
const NAP: Duration = Duration::from_millis(100);
/// How often what came is written out and, on a terminal, told.
const REPORT: Duration = Duration::from_secs(1);
/// Bytes of a packet at most.
const MOST: u32 = 262_144;

/// Write what a port receives into a file.
///
/// On a port of an interface that is what the interface receives, and its network stack does not; to watch a port that
/// others use, capture from a monitor of it (NAME/r, NAME/t). Ends after --count packets or --duration, or with a signal,
/// and tells what was received and what was lost.
#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    /// A port: netmap:IF, netmap:NAME}ID, vale0:NAME, ...
    #[arg(value_name = "PORT")]
    port: String,

    /// The file, - for standard output
    ///
    /// With --file-size or --file-seconds there are several, with a number before the extension: FILE_00001.pcapng.
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,

    /// What to write; default is pcap where FILE ends in .pcap, else pcapng
    ///
    /// pcap has time stamps in nanoseconds; pcapng tells, too, what was received and lost.
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<FormatArg>,

    /// Bytes of a packet that are kept
    #[arg(short, long, value_name = "BYTES", default_value_t = MOST, value_parser = clap::value_parser!(u32).range(1..=MOST as i64))]
    snaplen: u32,

    /// End after so many packets
    #[arg(short, long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// End after this time
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,

    /// Begin another file before one is larger than this; k, M and G are 1000, a million, a thousand millions
    #[arg(long, value_name = "BYTES", value_parser = crate::scaled)]
    file_size: Option<u64>,

    /// Begin another file when one is so old
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    file_seconds: Option<Duration>,

    /// Keep so many files, and remove older ones
    #[arg(long, value_name = "FILES", value_parser = clap::value_parser!(u64).range(1..))]
    files: Option<u64>,

    /// Tell at the end in one JSON object: port, received, accepted, bytes, dropped, files, seconds
    #[arg(long)]
    json: bool,

    /// Only packets that match, an expression as of tcpdump (pcap-filter(7))
    #[arg(value_name = "FILTER", trailing_var_arg = true, allow_hyphen_values = true)]
    filter: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatArg {
    Pcap,
    Pcapng,
}

/// A time in seconds, also in parts of one.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse::<f64>().ok().filter(|s| *s > 0.0).and_then(|s| Duration::try_from_secs_f64(s).ok());
    time.ok_or_else(|| "a number of seconds above 0".into())
}

impl CaptureArgs {
    fn format(&self) -> Format {
        match self.format {
            Some(FormatArg::Pcap) => Format::Pcap,
            None if self.write.extension().is_some_and(|e| e == "pcap") => Format::Pcap,
            Some(FormatArg::Pcapng) | None => Format::Pcapng,
        }
    }

    fn files(&self, about: About) -> Result<Files, String> {
        let limits = Limits {
            bytes: self.file_size,
            time: self.file_seconds,
            files: self.files.and_then(|n| usize::try_from(n).ok()),
        };
        if limits.files.is_some() && limits.bytes.is_none() && limits.time.is_none() {
            return Err("--files: say when a file is full, too (--file-size, --file-seconds)".into());
        }
        if self.write.as_os_str() == "-" && (limits.bytes.is_some() || limits.time.is_some()) {
            return Err("-w -: standard output cannot be several files".into());
        }
        Files::create(&self.write, self.format(), about, limits)
    }
}

/// What libpcap makes of the expression; `None` for none.
fn compile(expression: &str) -> Result<Option<BpfProgram>, String> {
    if expression.is_empty() {
        return Ok(None);
    }
    let compiled = Capture::dead(Linktype::ETHERNET).and_then(|dead| dead.compile(expression, true));
    let said = |e: pcap::Error| match e {
        pcap::Error::PcapError(words) => words,
        other => other.to_string(),
    };
    let wrong = |e| format!("the filter \"{expression}\" does not compile: {} (pcap-filter(7))", said(e));
    compiled.map(Some).map_err(wrong)
}

/// Packets for the port that found no room, since it was made.
fn dropped(port: &Port) -> u64 {
    let name = port.spec().trim_start_matches("netmap:");
    let answers = unetmap::client::snapshots().unwrap_or_default();
    let all = answers.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
    let dropped = |daemon: Value| {
        let ports = crate::ls::members(&daemon["ports"]);
        // A monitor has a region of its own, and a name that nobody asks for.
        let ours = ports.filter(|p| p["mem_id"] == port.mem_id() && (p["name"] == name || p["kind"] == "monitor"));
        let rings = ours.flat_map(|p| crate::ls::members(&p["rings"])).filter(|ring| ring["dir"] == "rx");
        rings.filter_map(|ring| ring["dropped"].as_u64()).sum::<u64>()
    };
    all.map(dropped).sum()
}

/// Drops since there were `before`; a daemon that is gone tells of none.
fn lost(port: &Port, before: u64) -> u64 {
    dropped(port).saturating_sub(before)
}

fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A capture under way.
struct Running<'a> {
    args: &'a CaptureArgs,
    port: &'a Port,
    filter: Option<BpfProgram>,
    files: Files,
    counters: Counters,
    /// The port's drops before it began.
    dropped_before: u64,
    bytes: u64,
    /// The packet that is being put together.
    packet: Vec<u8>,
}

impl Running<'_> {
    fn lost(&self) -> u64 {
        lost(self.port, self.dropped_before)
    }

    fn finished(&self) -> bool {
        self.args.count.is_some_and(|most| self.counters.accepted >= most)
    }

    /// Takes what the rings have.
    fn take(&mut self) -> Result<(), String> {
        let now = wall();
        for ring in self.port.rx_rings() {
            let mut done = 0;
            for (i, slot) in (1..).zip(ring.window()) {
                let start = self.packet.len();
                self.packet.resize(start + usize::from(slot.len()), 0);
                let n = slot.frame().read(0, &mut self.packet[start..]);
                self.packet.truncate(start + n);
                // A packet that never ends is cut.
                if slot.flags() & NS_MOREFRAG != 0 && self.packet.len() < MOST as usize {
                    continue;
                }
                self.one(now)?;
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
    fn one(&mut self, now: Duration) -> Result<(), String> {
        self.counters.received += 1;
        if self.filter.as_ref().is_some_and(|filter| !filter.filter(&self.packet)) {
            return Ok(());
        }
        self.counters.accepted += 1;
        let kept = &self.packet[..self.packet.len().min(self.args.snaplen as usize)];
        self.bytes += self.packet.len() as u64;
        let (port, before, counters) = (self.port, self.dropped_before, self.counters);
        let counters = || Counters { dropped: lost(port, before), ..counters };
        self.files.packet(now, kept, self.packet.len() as u32, counters)
    }

    fn run(&mut self, stop: &AtomicBool) -> Result<(), String> {
        let begin = Instant::now();
        let mut reported = (begin, 0);
        let tells = std::io::stderr().is_terminal() && !self.args.json;
        while !stop.load(Relaxed) && !self.finished() {
            let left = match self.args.duration {
                Some(most) if begin.elapsed() >= most => break,
                Some(most) => most - begin.elapsed(),
                None => NAP,
            };
            if self.port.poll(Interest::RX, Some(left.min(NAP))).map_err(|e| e.to_string())?.rx() {
                self.take()?;
            }
            if reported.0.elapsed() >= REPORT {
                self.files.flush()?;
                if tells {
                    let rate = (self.counters.received - reported.1) as f64 / reported.0.elapsed().as_secs_f64();
                    let Counters { accepted, .. } = self.counters;
                    eprint!("\r{accepted} packets, {rate:.0} a second, {} dropped   ", self.lost());
                }
                reported = (Instant::now(), self.counters.received);
            }
        }
        if tells {
            eprintln!();
        }
        // What was read is given back; the daemon may be gone, and then nobody wants it.
        let _ = self.port.rxsync();
        Ok(())
    }
}

pub(crate) fn run(args: &CaptureArgs) -> Result<u8, String> {
    let failed = |why: String| format!("capture: {why}");
    let stop = stop_on_signals().map_err(failed)?;
    let expression = args.filter.join(" ");
    let filter = compile(&expression).map_err(failed)?;
    let name = port::full_name(&args.port);
    let port = Port::open(&name).map_err(|e| failed(e.to_string()))?;
    if port.rx_rings().is_empty() {
        return Err(failed(format!("{name} has no receive rings")));
    }
    let files = args.files(About { port: name.clone(), filter: expression, snaplen: args.snaplen }).map_err(failed)?;
    let begin = Instant::now();
    let mut running = Running {
        args,
        port: &port,
        filter,
        files,
        counters: Counters::default(),
        dropped_before: dropped(&port),
        bytes: 0,
        packet: Vec::with_capacity(MOST as usize),
    };
    let ended = running.run(stop).map_err(failed);
    let counters = Counters { dropped: running.lost(), ..running.counters };
    let bytes = running.bytes;
    let files = running.files.finish(wall(), counters).map_err(failed)?;
    let Counters { received, accepted, dropped } = counters;
    if args.json {
        let seconds = begin.elapsed().as_secs_f64();
        let line = json!({"port": name, "received": received, "accepted": accepted, "bytes": bytes, "dropped": dropped,
            "files": files, "seconds": seconds});
        // Standard output may be the capture.
        if args.write.as_os_str() == "-" {
            note(&line.to_string());
        } else {
            crate::print("capture", &format!("{line}\n"))?;
        }
    } else {
        note(&format!("{name}: {accepted} packets captured, {received} received, {dropped} dropped for want of room"));
    }
    ended.map(|()| 0)
}
