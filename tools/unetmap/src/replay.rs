// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap replay`: sends the packets of a capture file through a port.

mod pace;
mod progress;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Args;
use pcap::{Capture, Linktype, Offline, Precision};
use serde_json::json;
use tool_common::{Failure, link, note, port, stop_on_signals};
use unetmap::abi::NS_MOREFRAG;
use unetmap::{Interest, Port, Ring};

use pace::{Pace, Rate};
use progress::Progress;

/// Longest wait before signals are checked.
const MAX_WAIT: Duration = Duration::from_millis(100);
/// Time that the receiver has to release the sent slots at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Packets per sync when packets are sent without pauses.
const BATCH: u32 = 256;

/// Send the packets of a capture file through a port.
///
/// Reads pcap and pcapng files of Ethernet frames. Without --rate packets are sent at the intervals at which they were
/// captured. If the transmit ring stays full, as for a pipe without a reader, replay waits.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Capture file to read, - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// A port: netmap:IF, netmap:NAME{ID, vale0:NAME, ...
    #[arg(value_name = "PORT")]
    port: String,

    /// Packets per second, or max; ignores the timestamps of the capture
    #[arg(short, long, value_name = "PACKETS|max", value_parser = pace::rate, allow_hyphen_values = true)]
    rate: Option<Rate>,

    /// Divide the intervals of the capture by this factor
    #[arg(long, value_name = "FACTOR", conflicts_with = "rate", value_parser = pace::factor, allow_hyphen_values = true)]
    speed: Option<f64>,

    /// Number of times to send the capture (0 = until a signal)
    #[arg(short, long = "loop", value_name = "TIMES", default_value_t = 1)]
    times: u64,

    /// Show no progress
    #[arg(short, long)]
    quiet: bool,

    /// Print one JSON object at the end: port, packets, bytes, cut, seconds
    #[arg(long)]
    json: bool,
}

/// Counters of sent packets.
#[derive(Default)]
struct Sent {
    packets: u64,
    bytes: u64,
    /// Packets that are truncated in the capture.
    truncated: u64,
}

/// Writes packets into the slots of a transmit ring.
struct Sender<'a> {
    port: &'a Port,
    ring: &'a Ring,
    /// Slots filled since the last sync.
    unsent: u32,
    stop: &'a AtomicBool,
}

impl Sender<'_> {
    fn flush(&mut self) -> Result<(), String> {
        self.unsent = 0;
        self.port.txsync().map_err(|e| e.to_string())
    }

    /// Writes a packet into as many slots as it needs, once they are free. Returns `false` if a signal arrived first.
    fn put(&mut self, packet: &[u8]) -> Result<bool, String> {
        let size = self.ring.buf_size() as usize;
        let slots = u32::try_from(packet.len().div_ceil(size)).unwrap_or(u32::MAX);
        if slots >= self.ring.num_slots() {
            let (bytes, most) = (packet.len(), (self.ring.num_slots() as usize - 1) * size);
            return Err(format!(
                "a packet of {bytes} bytes exceeds the {most} bytes of the ring; open it with more slots"
            ));
        }
        while self.ring.space() < slots {
            if self.stop.load(Relaxed) {
                return Ok(false);
            }
            // With `cur` at `head`, poll would return at once if the ring has some free slots but too few.
            if self.ring.space() > 0 {
                self.ring.set_cur(self.ring.tail());
            }
            self.port.poll(Interest::TX, Some(MAX_WAIT)).map_err(|e| e.to_string())?;
        }
        let mut left = slots;
        for (slot, part) in self.ring.first(slots).zip(packet.chunks(size)) {
            left -= 1;
            let n = slot.frame().write(0, part);
            slot.set_len_flags(n as u16, if left > 0 { NS_MOREFRAG } else { 0 });
        }
        self.ring.advance(slots);
        self.unsent += slots;
        if self.unsent >= BATCH {
            self.flush()?;
        }
        Ok(true)
    }

    /// Waits until the receiver has released all slots, for at most [`DRAIN_TIMEOUT`].
    fn drain(&mut self) -> Result<(), String> {
        self.flush()?;
        let begin = Instant::now();
        while self.ring.pending() && begin.elapsed() < DRAIN_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
            self.flush()?;
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<Capture<Offline>, String> {
    // Some of libpcap's messages begin with the file name.
    let name = format!("{}: ", path.display());
    let message = |e: pcap::Error| match e {
        pcap::Error::PcapError(message) => message.strip_prefix(&name).map(str::to_owned).unwrap_or(message),
        other => other.to_string(),
    };
    let capture = Capture::from_file_with_precision(path, Precision::Nano);
    let capture = capture.map_err(|e| format!("{name}{}", message(e)))?;
    let link = capture.get_datalink();
    if link != Linktype::ETHERNET {
        let name = link.get_name().unwrap_or_else(|_| link.0.to_string());
        return Err(format!("{}: link type {name}; only Ethernet can be sent", path.display()));
    }
    Ok(capture)
}

/// Sends the capture once. Returns `false` if a signal arrived.
fn send_once(
    args: &ReplayArgs,
    sender: &mut Sender<'_>,
    pace: &mut Pace,
    progress: &mut Progress,
    sent: &mut Sent,
) -> Result<bool, String> {
    let mut capture = open(&args.file)?;
    pace.begin();
    loop {
        let packet = match capture.next_packet() {
            Ok(packet) => packet,
            Err(pcap::Error::NoMorePackets) => return Ok(true),
            Err(e) => return Err(format!("{}: after packet {}: {e}", args.file.display(), sent.packets)),
        };
        let stamp = packet.header.ts;
        // With Precision::Nano `tv_usec` is in nanoseconds.
        let time = Duration::new(stamp.tv_sec.try_into().unwrap_or(0), stamp.tv_usec.try_into().unwrap_or(0));
        while let Some(wait) = pace.wait(time) {
            if sender.unsent > 0 {
                sender.flush()?;
            }
            if sender.stop.load(Relaxed) {
                return Ok(false);
            }
            pace::pause(wait.min(MAX_WAIT));
        }
        if packet.data.is_empty() {
            continue;
        }
        if !sender.put(packet.data)? {
            return Ok(false);
        }
        pace.sent();
        sent.packets += 1;
        sent.bytes += packet.data.len() as u64;
        sent.truncated += u64::from(packet.header.caplen < packet.header.len);
        if sent.packets.is_multiple_of(64) && sender.stop.load(Relaxed) {
            return Ok(false);
        }
        progress.sent(packet.data.len() as u64);
    }
}

/// Sends the capture as often as requested, or until a signal arrives.
pub(crate) fn run(args: &ReplayArgs) -> Result<u8, Failure> {
    let failed = |why: String| Failure::Work(why).within("replay");
    let stop = stop_on_signals().map_err(failed)?;
    let standard_input = args.file.as_os_str() == "-";
    if standard_input && args.times != 1 {
        return Err(Failure::Usage("replay: standard input can be read only once (--loop)".into()));
    }
    if !standard_input {
        // Detects a bad file before the port is opened.
        drop(open(&args.file).map_err(failed)?);
    }
    let name = port::full_name(&args.port);
    let port = link::open(&name, &Port::options()).map_err(|e| Failure::from(e).within("replay"))?;
    let ring = port.tx_rings().first().ok_or_else(|| failed(format!("{name} has no transmit rings")))?;
    let mut sender = Sender { port: &port, ring, unsent: 0, stop };
    let mut pace = Pace::new(args.rate, args.speed.unwrap_or(1.0));
    let bytes = std::fs::metadata(&args.file).map_or(0, |meta| meta.len());
    let mut progress = Progress::new(bytes, args.times, args.quiet || args.json);
    let (mut sent, begin) = (Sent::default(), Instant::now());
    let mut rounds = 0;
    let mut result = Ok(true);
    while matches!(result, Ok(true)) && (args.times == 0 || rounds < args.times) && !stop.load(Relaxed) {
        let before = sent.packets;
        result = send_once(args, &mut sender, &mut pace, &mut progress, &mut sent);
        if sent.packets == before && matches!(result, Ok(true)) {
            result = Err(format!("{}: it contains no packet", args.file.display()));
        }
        progress.round();
        rounds += 1;
    }
    let time = begin.elapsed();
    let drained = sender.drain();
    progress.end();
    let Sent { packets, bytes, truncated } = sent;
    if args.json {
        let seconds = time.as_secs_f64();
        let mut line = json!({"port": name, "packets": packets, "bytes": bytes, "cut": truncated, "seconds": seconds});
        link::add_down(&mut line);
        crate::print("replay", &format!("{line}\n"))?;
    } else {
        let rate = packets as f64 / time.as_secs_f64().max(1e-9);
        let truncated = if truncated > 0 { format!("; {truncated} truncated in the capture") } else { String::new() };
        note(&format!(
            "{name}: {packets} packets, {bytes} bytes in {:.3} s, {rate:.0} per second{truncated}",
            time.as_secs_f64()
        ));
    }
    if let Some(down) = link::of(&name) {
        note(&format!("replay: {name}: packets may be lost: {down}"));
    }
    result.and(drained.map(|()| true)).map(|_| 0).map_err(failed)
}
