// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap scrub`: stops attacks between an interface and its host, or between two ports.
//!
//! ```text
//! wire --> malformed? --> rules, lists --> rates --> handshakes --> GRE, VLAN --> inside      Scrubber, one thread
//!      <---------------------------- handshakes <-------------------- VLAN <---
//!              drops, by reason --> sums each second --> attacks: events        this thread
//!                               \-> one of N --> pcapng
//! ```
#![forbid(unsafe_code)]

mod attack;
mod options;
mod pack;
mod path;
mod rate;
mod reason;
mod record;
mod report;
mod rules;
mod scrubber;
mod shared;
mod top;
mod tunnel;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tool_common::failure;
use tool_common::forward::{Direction as Way, check_headers, check_sizes, drain, flush, forward};
use tool_common::{Failure, flag_on_hangup, note, port, source, stop_on_signals, wait_for_link};
use unetmap::Port;
use unetmap::abi::{NR_ACCEPT_VNET_HDR, NR_EXCLUSIVE};
use unetmap_capture::Frames;
use unetmap_filter::{Direction, HEADER_BYTES, MAX_REPLY, Now};

pub use options::ScrubArgs;

use options::{Input, Settings};
use path::{Path, Worker};
use record::{Recorder, Writer};
use report::Report;
use rules::Rules;
use scrubber::{Scrubber, secret};
use shared::Shared;
use tunnel::{ETHERNET, Returns, Tunnel};

/// MTU of the port, of which a file says nothing.
const USUAL_MTU: usize = 1500;
/// Least bytes of a buffer: the first one of a packet has room for each head, and for what was judged.
const LEAST_BUFFER: u32 = 256;
const _: () = assert!(LEAST_BUFFER as usize >= tunnel::MAX_HEAD + HEADER_BYTES && HEADER_BYTES >= MAX_REPLY);
/// Most slots of a batch.
const BURST: u32 = 512;
/// Time between two looks at files, signals and the end of a second.
const LOOK: Duration = Duration::from_millis(50);

/// Scrubs until a signal, or to the end of a file.
///
/// # Errors
/// The reason.
pub fn run(args: &ScrubArgs) -> Result<(), Failure> {
    let inner = || {
        let settings = args.check()?;
        let shared = Arc::new(Shared::new(Rules::new(settings.sources.clone())?));
        let (recorder, writer) = match settings.dropped {
            None => (None, None),
            Some((path, every, max)) => {
                let (recorder, writer) = Recorder::create(path, every, max)?;
                (Some(recorder), Some(writer))
            }
        };
        let mut scrubber = Scrubber::new(Arc::clone(&shared), settings.limits, settings.states, recorder);
        match &settings.input {
            Input::File(path) => {
                let of_file = |way: &Returns| Tunnel::new(way, way.mtu.unwrap_or(USUAL_MTU), secret());
                scrubber.tunnel = settings.returns.as_ref().map(of_file);
                read(&settings, path, scrubber, &shared, writer)
            }
            Input::Ports(ports) => scrub(&settings, ports, scrubber, &shared, writer),
        }
    };
    inner().map_err(|e: Failure| e.within("scrub"))
}

/// The latest time of a packet after the first one, in milliseconds: a file may have any.
const LAST: u64 = 1 << 53;
/// Seconds without packets after which all attacks have ended (`--quiet`).
const LONGEST_QUIET: u64 = 2 * 3600;

/// The seconds from one packet to the next one that have an end of their own: of a longer time without packets the
/// first and the last ones.
fn seconds(from: u64, to: u64) -> impl Iterator<Item = u64> {
    let rest = from.saturating_add(1).max(to.saturating_sub(LONGEST_QUIET));
    (from..to).take(1).chain(rest..to)
}

/// Judges the packets of a file.
fn read(
    settings: &Settings<'_>,
    path: &std::path::Path,
    mut scrubber: Scrubber,
    shared: &Arc<Shared>,
    writer: Option<Writer>,
) -> Result<(), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::Work(format!("{}: {e}", path.display()));
    let file = source::open(path).map_err(|e| failed(&tool_common::without_codes(&e.to_string())))?;
    let mut frames = Frames::new(file).map_err(|e| failed(&e))?;
    let mut report = Report::new(settings);
    let (mut first, mut now, mut result) = (None, Now { millis: 0, seconds: 0 }, Ok(()));
    loop {
        let frame = match frames.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(e) => {
                result = Err(failed(&e));
                break;
            }
        };
        // A packet that is before the last one, or has no time, is of its time.
        let since = frame.time.map_or(0, |time| time.saturating_sub(*first.get_or_insert(time)).as_millis());
        let millis = (since.min(LAST.into()) as u64).max(now.millis);
        for second in seconds(now.seconds, millis / 1000) {
            scrubber.begin(Now { millis: (second + 1) * 1000, seconds: second + 1 });
            report.second(second, shared);
        }
        now = Now { millis, seconds: millis / 1000 };
        let mut bytes = [0; HEADER_BYTES];
        let head = frame.bytes.len().min(HEADER_BYTES);
        bytes[..head].copy_from_slice(&frame.bytes[..head]);
        scrubber.judge(&mut bytes[..head], frame.bytes.len(), Direction::Out, now, |_, _, _| {});
    }
    scrubber.begin(Now { millis: now.millis + 1000, seconds: now.seconds + 1 });
    report.second(now.seconds, shared);
    drop(scrubber);
    writer.into_iter().for_each(|writer| drop(writer.join()));
    report.end(shared, now.millis as f64 / 1000.0);
    result
}

/// Scrubs what comes in at the first of two ports.
fn scrub(
    settings: &Settings<'_>,
    [first, second]: &[String; 2],
    mut scrubber: Scrubber,
    shared: &Arc<Shared>,
    writer: Option<Writer>,
) -> Result<(), Failure> {
    let (stop, again) = (stop_on_signals()?, flag_on_hangup()?);
    let closed = failure::set_between([first, second], settings.on_failure)?;
    let open = |spec: &str| port::open(spec, port::RingConfig::default(), NR_ACCEPT_VNET_HDR | NR_EXCLUSIVE);
    // A program that has host rings may also open the interface that carries the host's connections.
    let b = open(second)?;
    let a = open(first)?;
    let swap = a.same_region(&b);
    check_sizes(&a, &b, swap)?;
    let header = check_headers(&a, &b)? as usize;
    scrubber.tunnel = tunnel(settings, [&a, &b], header)?;
    let state = Arc::new((AtomicU64::new(0), AtomicBool::new(false)));
    let _served = settings.metrics.serve(&format!("unetmap scrub {first} {second}"), {
        let (shared, state) = (Arc::clone(shared), Arc::clone(&state));
        move || shared.metrics(state.0.load(Relaxed), state.1.load(Relaxed))
    })?;
    wait_for_link(settings.wait, stop);
    let mode = if swap { "zero copy" } else { "copy" };
    note(&format!("Ready to go, {first} <-> {second}, {mode}"));
    let begin = Instant::now();
    let mut report = Report::new(settings);
    let result = std::thread::scope(|scope| {
        let moving = scope.spawn(|| move_packets([&a, &b], scrubber, (swap, header), stop));
        let mut seconds = 0;
        while !moving.is_finished() {
            std::thread::sleep(settings.interval.unwrap_or(LOOK).min(LOOK));
            match shared.rules.reload(again.swap(false, Relaxed)) {
                Ok(true) => note("The rules were read again"),
                Ok(false) => {}
                Err(why) => note(&format!("{why}; the old rules stay")),
            }
            while seconds < begin.elapsed().as_secs() {
                report.second(seconds, shared);
                seconds += 1;
            }
            report.tick(begin.elapsed(), shared);
            state.0.store(report.attacks(), Relaxed);
            state.1.store(report.is_attacked(), Relaxed);
        }
        report.second(seconds, shared);
        moving.join().expect("no panic")
    });
    writer.into_iter().for_each(|writer| drop(writer.join()));
    report.end(shared, begin.elapsed().as_secs_f64());
    failure::note_closed(&closed);
    Ok(result?)
}

/// Returns the way on which packets leave by the second port, if the command line has one.
fn tunnel(settings: &Settings<'_>, [a, b]: [&Port; 2], header: usize) -> Result<Option<Tunnel>, String> {
    let Some(returns) = &settings.returns else { return Ok(None) };
    let name = b.spec();
    if header > 0 {
        return Err(format!("--return: {name} has virtio-net headers, which say nothing of a packet within a packet"));
    }
    let slot = b.tx_rings().iter().map(unetmap::Ring::slot_size).min().unwrap_or(0);
    if slot < LEAST_BUFFER {
        return Err(format!("--return: {name} has buffers of {slot} bytes; give it {LEAST_BUFFER} or more"));
    }
    // A host takes what its interface would receive.
    let sender = if name.contains('^') { a } else { b };
    let longest = port::longest_frame(sender).map_or(usize::MAX, |longest| longest as usize);
    Ok(Some(Tunnel::new(returns, longest.saturating_sub(ETHERNET), secret())))
}

/// Moves packets until a signal.
fn move_packets(
    [a, b]: [&Port; 2],
    scrubber: Scrubber,
    (swap, header): (bool, usize),
    stop: &AtomicBool,
) -> Result<(), String> {
    let worker = RefCell::new(Worker::new(scrubber));
    let path = |direction| Path { worker: &worker, direction, swap, header };
    let mut ways = [
        Way { from: a, to: b, burst: BURST, mover: path(Direction::Out) },
        Way { from: b, to: a, burst: BURST, mover: path(Direction::In) },
    ];
    let result = forward(&mut ways, &[a, b], stop);
    stop.store(true, Relaxed);
    flush(&mut ways);
    drain(&[a, b]);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_time_without_packets_has_few_seconds() {
        let all = |from, to| seconds(from, to).collect::<Vec<_>>();
        assert_eq!((all(3, 3), all(3, 4), all(3, 6)), (vec![], vec![3], vec![3, 4, 5]));
        let long = all(7, LAST / 1000);
        assert_eq!((long.len() as u64, long[0], *long.last().unwrap()), (1 + LONGEST_QUIET, 7, LAST / 1000 - 1));
        assert_eq!(all(7, 7 + LONGEST_QUIET).len() as u64, LONGEST_QUIET);
    }
}
