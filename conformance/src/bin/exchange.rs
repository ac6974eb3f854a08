// SPDX-License-Identifier: BSD-2-Clause
//! Two of these programs exchange frames over a wire or a bridge: `exchange SPEC COUNT`.
//!
//! Each sends COUNT numbered frames, and receives as many from the other. It sends at most [`WINDOW`] frames more than
//! it has received, so at most twice as many are on their way to either: fewer than any card has buffers for. However
//! slowly a busy machine runs the two, a frame that does not arrive was lost.
//!
//! `Ready` on standard error: the port is open. Then one line of JSON: the outcome. A program that has received all
//! holds its port until SIGTERM, or for a limited time, as the other may still need it. The exit status is 1 if frames
//! were lost, changed, repeated or, within one flow, reordered.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use conformance::traffic::bytes_of;
use serde_json::json;
use unetmap::{Error, Interest, Port};

const WINDOW: u64 = 96;
/// Flows, which the cards spread over their queues. The frames of one flow stay in order.
const FLOWS: u64 = 64;
/// Time without a frame after which the rest is lost.
const QUIET: Duration = Duration::from_secs(20);
/// Longest time for which a program that has received all waits for the other one.
const HOLD: Duration = Duration::from_secs(60);
/// Time after which an unanswered greeting is repeated, and the longest sleep.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes of the headers of Ethernet, IPv4 and UDP.
const HEADERS: usize = 42;
/// Begins each payload; its number follows.
const MAGIC: u64 = 0x756e_6574_6d61_7002;
/// The number of a greeting: this port is open.
const GREETING: u64 = u64::MAX;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match &args[..] {
        [spec, count] => count.parse::<usize>().map_err(Into::into).and_then(|count| run(spec, count)),
        _ => Err("usage: exchange SPEC COUNT".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("exchange: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every frame arrived once.
fn run(spec: &str, count: usize) -> Result<bool, Box<dyn std::error::Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop))?;
    let port = Port::open(spec)?;
    eprintln!("Ready");
    let mut exchange = Exchange::new(count);
    let (mut began, mut last) = (None, Instant::now());
    while !exchange.is_complete() && (began.is_none() || last.elapsed() < QUIET) && !stop.load(Relaxed) {
        exchange.send(&port)?;
        port.poll(Interest::RX, Some(PAUSE))?;
        if exchange.receive(&port)? {
            last = Instant::now();
            began.get_or_insert(last);
        }
    }
    let seconds = began.map_or(0.0, |began| began.elapsed().as_secs_f64());
    println!("{}", exchange.summary(seconds));
    let held = Instant::now();
    while exchange.is_complete() && !stop.load(Relaxed) && held.elapsed() < HOLD {
        port.txsync()?;
        port.poll(Interest::RX, Some(PAUSE))?;
        exchange.receive(&port)?;
    }
    Ok(exchange.is_complete() && exchange.repeated + exchange.changed + exchange.reordered == 0)
}

struct Exchange {
    count: u64,
    sent: u64,
    /// By number: whether it was received.
    received: Vec<bool>,
    /// Frames of `received`.
    arrived: u64,
    /// By flow: the number that is next in order.
    next: Vec<u64>,
    reordered: u64,
    repeated: u64,
    changed: u64,
    /// Whether the other program's port is open.
    greeted: bool,
    last_greeting: Option<Instant>,
}

impl Exchange {
    fn new(count: usize) -> Exchange {
        Exchange {
            count: count as u64,
            sent: 0,
            received: vec![false; count],
            arrived: 0,
            next: (0..FLOWS).collect(),
            reordered: 0,
            repeated: 0,
            changed: 0,
            greeted: false,
            last_greeting: None,
        }
    }

    fn is_complete(&self) -> bool {
        self.sent == self.count && self.arrived == self.count
    }

    /// Sends what the window allows, and greets until the other program answers.
    fn send(&mut self, port: &Port) -> Result<(), Error> {
        if !self.greeted {
            if self.last_greeting.is_none_or(|last| last.elapsed() >= PAUSE) && put(port, GREETING) {
                self.last_greeting = Some(Instant::now());
            }
            return port.txsync();
        }
        let end = self.count.min(self.arrived + WINDOW);
        while self.sent < end && put(port, self.sent) {
            self.sent += 1;
        }
        port.txsync()
    }

    /// Takes all frames that have arrived; returns whether any is the other program's.
    fn receive(&mut self, port: &Port) -> Result<bool, Error> {
        let mut any = false;
        for ring in port.rx_rings() {
            let n = ring.space();
            for slot in ring.first(n) {
                any |= self.take(&bytes_of(&slot));
            }
            ring.advance(n);
        }
        port.rxsync()?;
        Ok(any)
    }

    fn take(&mut self, bytes: &[u8]) -> bool {
        let word = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let (Some(MAGIC), Some(number)) = (word(HEADERS), word(HEADERS + 8)) else { return false };
        self.greeted = true;
        if number == GREETING {
            return true;
        }
        // Behind a short frame there may be padding.
        let intact = number < self.count && bytes.get(..length(number)) == Some(&frame(number)[..]);
        if !intact {
            self.changed += 1;
            return true;
        }
        if std::mem::replace(&mut self.received[number as usize], true) {
            self.repeated += 1;
            return true;
        }
        self.arrived += 1;
        let next = &mut self.next[(number % FLOWS) as usize];
        self.reordered += u64::from(number < *next);
        *next = (*next).max(number + FLOWS);
        true
    }

    fn summary(&self, seconds: f64) -> serde_json::Value {
        json!({
            "event": "summary",
            "sent": self.sent,
            "packets": self.arrived,
            "missing": self.count - self.arrived,
            "reordered": self.reordered,
            "repeated": self.repeated,
            "changed": self.changed,
            "seconds": seconds,
        })
    }
}

/// Puts a frame into the transmit ring of its flow; returns whether there was room.
fn put(port: &Port, number: u64) -> bool {
    let rings = port.tx_rings();
    let ring = &rings[(number % FLOWS) as usize % rings.len()];
    let Some(slot) = ring.available().next() else { return false };
    let bytes = frame(number);
    let n = slot.frame().write(0, &bytes);
    slot.set_len_flags(n as u16, 0);
    ring.advance(1);
    true
}

/// Bytes of a frame: 60 to 1514.
fn length(number: u64) -> usize {
    60 + (number.wrapping_mul(37) % 1455) as usize
}

/// A UDP packet to everybody, whose addresses depend on the flow.
fn frame(number: u64) -> Vec<u8> {
    let (length, flow) = (length(number), (number % FLOWS) as u8);
    let mut bytes = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 1, flow, 8, 0];
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 1, flow, 198, 18, 0, 2];
    ip[2..4].copy_from_slice(&((length - 14) as u16).to_be_bytes());
    let sum: u32 = ip.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    ip[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    bytes.extend(ip);
    for word in [1024 + u16::from(flow), 1234, (length - 34) as u16, 0] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(MAGIC.to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes.extend((bytes.len()..length).map(|i| (number as usize).wrapping_add(i) as u8));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_changed_repeated_and_reordered_frames_are_counted() {
        let mut exchange = Exchange::new(2 * FLOWS as usize);
        assert!(!exchange.take(&[0; 60]) && !exchange.greeted);
        assert!(exchange.take(&frame(GREETING)) && exchange.greeted);
        // Flow 0 in the wrong order, flow 1 in order, flow 2 twice.
        for number in [FLOWS, 0, 1, FLOWS + 1, 2, 2] {
            exchange.take(&frame(number));
        }
        let mut changed = frame(3);
        changed[length(3) - 1] ^= 1;
        exchange.take(&changed);
        let found = exchange.summary(0.0);
        let counts = ["packets", "missing", "reordered", "repeated", "changed"].map(|what| found[what].as_u64());
        assert_eq!(counts, [5, 2 * FLOWS - 5, 1, 1, 1].map(Some));
        assert!(!exchange.is_complete());
    }

    #[test]
    fn frames_of_all_lengths_have_valid_headers() {
        for number in 0..1455 {
            let bytes = frame(number);
            assert!(bytes.len() == length(number) && (60..=1514).contains(&bytes.len()));
            let header: u32 = bytes[14..34].chunks(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]]))).sum();
            assert_eq!((header & 0xffff) + (header >> 16), 0xffff, "frame {number}");
        }
    }
}
