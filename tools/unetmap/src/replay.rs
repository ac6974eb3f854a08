//! `unetmap replay`: the packets of a capture, out of a port.

mod pace;
mod progress;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Args;
use pcap::{Capture, Linktype, Offline, Precision};
use serde_json::json;
use tool_common::{note, port, stop_on_signals};
use unetmap::abi::NS_MOREFRAG;
use unetmap::{Interest, Port, Ring};

use pace::{Pace, Rate};
use progress::Progress;

/// How long a wait lasts before it looks at signals.
const NAP: Duration = Duration::from_millis(100);
/// How long the end waits for the other side to take what was sent.
const DRAIN: Duration = Duration::from_secs(1);
/// Packets that are handed over at once, when there is no time between them.
const BATCH: u32 = 256;

/// Send the packets of a capture file out of a port.
///
/// Reads pcap and pcapng, of Ethernet. Without --rate each packet is sent as long after the first as it was captured.
/// Where the other side makes no room, as behind a pipe that nobody reads, it waits.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The capture, - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// A port: netmap:IF, netmap:NAME{ID, vale0:NAME, ...
    #[arg(value_name = "PORT")]
    port: String,

    /// Send so many packets a second, whatever the capture's times, or max; k and M are 1000 and a million
    #[arg(short, long, value_name = "PACKETS|max", value_parser = pace::rate)]
    rate: Option<Rate>,

    /// Let the capture's time pass so many times as fast
    #[arg(long, value_name = "FACTOR", conflicts_with = "rate", value_parser = pace::factor)]
    speed: Option<f64>,

    /// Send the capture so often; 0: until a signal comes
    #[arg(short, long = "loop", value_name = "TIMES", default_value_t = 1)]
    times: u64,

    /// Show no progress
    #[arg(short, long)]
    quiet: bool,

    /// Tell at the end in one JSON object: port, packets, bytes, cut, seconds
    #[arg(long)]
    json: bool,
}

/// What was sent.
#[derive(Default)]
struct Sent {
    packets: u64,
    bytes: u64,
    /// Packets of which the capture holds only a part.
    cut: u64,
}

/// Packets in, slots out.
struct Sender<'a> {
    port: &'a Port,
    ring: &'a Ring,
    /// Handed over since the last sync.
    unsent: u32,
    stop: &'a AtomicBool,
}

impl Sender<'_> {
    fn flush(&mut self) -> Result<(), String> {
        self.unsent = 0;
        self.port.txsync().map_err(|e| e.to_string())
    }

    /// Puts a packet into as many slots as it needs, once they are free. `false`: a signal came before.
    fn put(&mut self, packet: &[u8]) -> Result<bool, String> {
        let size = self.ring.buf_size() as usize;
        let slots = u32::try_from(packet.len().div_ceil(size)).unwrap_or(u32::MAX);
        if slots >= self.ring.num_slots() {
            return Err(format!("a packet of {} bytes does not fit the ring", packet.len()));
        }
        while self.ring.space() < slots {
            if self.stop.load(Relaxed) {
                return Ok(false);
            }
            // A ring with some room but too little for this packet is ready, and would not be waited for.
            if self.ring.space() > 0 {
                self.ring.set_cur(self.ring.tail());
            }
            self.port.poll(Interest::TX, Some(NAP)).map_err(|e| e.to_string())?;
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

    /// Waits until the other side has taken everything, for a while.
    fn drain(&mut self) -> Result<(), String> {
        self.flush()?;
        let begin = Instant::now();
        while self.ring.pending() && begin.elapsed() < DRAIN {
            std::thread::sleep(Duration::from_millis(1));
            self.flush()?;
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<Capture<Offline>, String> {
    // Some of libpcap's words begin with the file's name.
    let name = format!("{}: ", path.display());
    let said = |e: pcap::Error| match e {
        pcap::Error::PcapError(words) => words.strip_prefix(&name).map(str::to_owned).unwrap_or(words),
        other => other.to_string(),
    };
    let capture = Capture::from_file_with_precision(path, Precision::Nano);
    let capture = capture.map_err(|e| format!("{name}{}", said(e)))?;
    let link = capture.get_datalink();
    if link != Linktype::ETHERNET {
        let name = link.get_name().unwrap_or_else(|_| link.0.to_string());
        return Err(format!("{}: holds packets of {name}; only Ethernet can be sent", path.display()));
    }
    Ok(capture)
}

/// Sends the capture once. `false`: a signal came.
fn once(
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
        // With Precision::Nano the second field has nanoseconds.
        let time = Duration::new(stamp.tv_sec.try_into().unwrap_or(0), stamp.tv_usec.try_into().unwrap_or(0));
        while let Some(wait) = pace.wait(time) {
            if sender.unsent > 0 {
                sender.flush()?;
            }
            if sender.stop.load(Relaxed) {
                return Ok(false);
            }
            pace::pause(wait.min(NAP));
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
        sent.cut += u64::from(packet.header.caplen < packet.header.len);
        if sent.packets.is_multiple_of(64) && sender.stop.load(Relaxed) {
            return Ok(false);
        }
        progress.sent(packet.data.len() as u64);
    }
}

pub(crate) fn run(args: &ReplayArgs) -> Result<u8, String> {
    let failed = |why: String| format!("replay: {why}");
    let stop = stop_on_signals().map_err(failed)?;
    let standard_input = args.file.as_os_str() == "-";
    if standard_input && args.times != 1 {
        return Err(failed("standard input can be read only once (--loop)".into()));
    }
    if !standard_input {
        // Before a port is opened for nothing.
        drop(open(&args.file).map_err(failed)?);
    }
    let name = port::full_name(&args.port);
    let port = Port::open(&name).map_err(|e| failed(e.to_string()))?;
    let ring = port.tx_rings().first().ok_or_else(|| failed(format!("{name} has no transmit rings")))?;
    let mut sender = Sender { port: &port, ring, unsent: 0, stop };
    let mut pace = Pace::new(args.rate, args.speed.unwrap_or(1.0));
    let bytes = std::fs::metadata(&args.file).map_or(0, |meta| meta.len());
    let mut progress = Progress::new(bytes, args.times, args.quiet || args.json);
    let (mut sent, begin) = (Sent::default(), Instant::now());
    let mut rounds = 0;
    let mut ended = Ok(true);
    while matches!(ended, Ok(true)) && (args.times == 0 || rounds < args.times) && !stop.load(Relaxed) {
        ended = once(args, &mut sender, &mut pace, &mut progress, &mut sent);
        progress.round();
        rounds += 1;
    }
    let time = begin.elapsed();
    let drained = sender.drain();
    progress.end();
    let Sent { packets, bytes, cut } = sent;
    if args.json {
        let seconds = time.as_secs_f64();
        let line = json!({"port": name, "packets": packets, "bytes": bytes, "cut": cut, "seconds": seconds});
        crate::print("replay", &format!("{line}\n"))?;
    } else {
        let rate = packets as f64 / time.as_secs_f64().max(1e-9);
        let cut = if cut > 0 { format!("; of {cut} the capture holds only a part") } else { String::new() };
        note(&format!(
            "{name}: {packets} packets, {bytes} bytes in {:.3} s, {rate:.0} a second{cut}",
            time.as_secs_f64()
        ));
    }
    ended.and(drained.map(|()| true)).map(|_| 0).map_err(failed)
}
