// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap replay`: sends the packets of a capture file through a port.

mod pace;
mod progress;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tool_common::{Failure, link, note, port, source, stop_on_signals};
use unetmap::abi::NS_MOREFRAG;
use unetmap::{Interest, Port, Ring};
use unetmap_capture::{Counts, Error, Frames};

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
/// Reads pcap and pcapng files, and sends their Ethernet frames. Without --rate packets are sent at the intervals at
/// which they were captured. If the transmit ring stays full, as for a pipe without a reader, replay waits.
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

    /// Print one JSON object at the end: port, packets, bytes, cut, skipped, left, seconds
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
    /// Packets of other link types, and without bytes.
    skipped: u64,
    /// Packets that the receiver has not released at the end.
    left: u64,
    /// Counts of the last round.
    counts: Counts,
}

impl Sent {
    /// Takes over what a round has read.
    fn round(&mut self, counts: &Counts) {
        self.truncated += counts.truncated;
        self.skipped += counts.skipped();
        self.counts = counts.clone();
    }
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
        let size = self.ring.slot_size() as usize;
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

    /// Returns the number of packets in the ring that the receiver has not released.
    fn unreleased(&mut self) -> u64 {
        // A failure is an error of the next sync.
        let _ = self.flush();
        let ring = self.ring;
        let slots = ring.num_slots() - 1 - ring.space();
        let last = ring.run(ring.next(ring.tail()), slots).filter(|slot| slot.flags() & NS_MOREFRAG == 0);
        last.count() as u64
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

/// Opens a capture; `-` is standard input.
fn open(path: &Path) -> Result<Frames<Box<dyn Read>>, String> {
    let file: Result<Box<dyn Read>, Error> = match path.as_os_str() == "-" {
        true => Ok(Box::new(io::stdin())),
        false => source::open(path).map(|file| Box::new(file) as _).map_err(Error::Io),
    };
    file.and_then(Frames::new).map_err(|e| format!("{}: {e}", path.display()))
}

/// Refuses a capture that begins with no packet that could be sent.
fn check(path: &Path) -> Result<(), String> {
    let mut capture = open(path)?;
    match capture.next_frame() {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(format!("{}: {}", path.display(), capture.counts().nothing())),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
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
    let result = send_frames(args, &mut capture, sender, pace, progress, sent);
    sent.round(capture.counts());
    if capture.counts().frames == 0 && matches!(result, Ok(true)) {
        return Err(format!("{}: {}", args.file.display(), capture.counts().nothing()));
    }
    result
}

fn send_frames(
    args: &ReplayArgs,
    capture: &mut Frames<Box<dyn Read>>,
    sender: &mut Sender<'_>,
    pace: &mut Pace,
    progress: &mut Progress,
    sent: &mut Sent,
) -> Result<bool, String> {
    pace.begin();
    loop {
        let frame = capture.next_frame().map_err(|e| format!("{}: {e}", args.file.display()))?;
        let Some(frame) = frame else { return Ok(true) };
        while let Some(wait) = pace.wait(frame.time) {
            if sender.unsent > 0 {
                sender.flush()?;
            }
            if sender.stop.load(Relaxed) {
                return Ok(false);
            }
            progress.pause(|| sender.unreleased());
            pace::pause(wait.min(MAX_WAIT));
        }
        if !sender.put(frame.bytes)? {
            return Ok(false);
        }
        pace.sent();
        sent.packets += 1;
        sent.bytes += frame.bytes.len() as u64;
        if sent.packets.is_multiple_of(64) && sender.stop.load(Relaxed) {
            return Ok(false);
        }
        progress.packet(capture.position(), || sender.unreleased());
    }
}

/// Sends the capture as often as requested, or until a signal arrives.
pub(crate) fn run(args: &ReplayArgs) -> Result<u8, Failure> {
    let failed = |why: String| Failure::Work(why).within("replay");
    let stop = stop_on_signals().map_err(failed)?;
    let standard_input = args.file.as_os_str() == "-";
    // A pipe, as of standard input, cannot be read again.
    let once = standard_input || std::fs::metadata(&args.file).is_ok_and(|meta| !meta.is_file());
    if once && args.times != 1 {
        let what = if standard_input { "standard input".into() } else { args.file.display().to_string() };
        return Err(Failure::Usage(format!("replay: {what} can be read only once (--loop)")));
    }
    if !once {
        // Detects a bad file before the port is opened.
        check(&args.file).map_err(failed)?;
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
        result = send_once(args, &mut sender, &mut pace, &mut progress, &mut sent);
        if matches!(result, Ok(true)) {
            progress.round();
        }
        rounds += 1;
    }
    let time = begin.elapsed();
    let drained = sender.drain();
    sent.left = sender.unreleased();
    progress.end(sent.left);
    print_end(args, &name, &sent, time)?;
    result.and(drained.map(|()| true)).map(|_| 0).map_err(failed)
}

/// Prints what was sent, and what is not whole or was not sent.
fn print_end(args: &ReplayArgs, port: &str, sent: &Sent, time: Duration) -> Result<(), String> {
    let Sent { packets, bytes, truncated, skipped, left, counts } = sent;
    let seconds = time.as_secs_f64();
    if args.json {
        let mut members = json!({
            "port": port, "packets": packets, "bytes": bytes, "cut": truncated, "skipped": skipped, "left": left,
            "seconds": seconds
        });
        link::add_down(&mut members);
        crate::print("replay", &format!("{members}\n"))?;
    } else {
        let rate = *packets as f64 / seconds.max(1e-9);
        let left = if *left > 0 { format!("; the peer has not released {left} of them") } else { String::new() };
        note(&format!("{port}: {packets} packets, {bytes} bytes in {seconds:.3} s, {rate:.0} per second{left}"));
    }
    if let Some(down) = link::of(port) {
        note(&format!("replay: {port}: packets may be lost: {down}"));
    }
    for what in counts.notes() {
        note(&format!("{}: {what}", args.file.display()));
    }
    Ok(())
}
