// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap flows`: records of the flows that the packets of ports or of capture files belong to, for collectors
//! (IPFIX, NetFlow), for other programs (JSON, CSV), and for people (tables).
//!
//! ```text
//! input, observer --frames--> meter: packet --> cache --records--> export (UDP, TCP, TLS), report, top
//! ```
//! Programs that forward packets have an [`Observer`] count them. Packets cost no allocation and no system call;
//! records and reports do.
#![forbid(unsafe_code)]

mod cache;
mod clock;
mod export;
mod history;
mod input;
mod meter;
mod metrics;
mod observer;
mod options;
mod packet;
mod report;
mod sampler;
mod top;
mod tunnel;

use std::fs::File;
use std::io::{IsTerminal as _, Write as _, stdout};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crossterm::terminal::{Clear, ClearType};
use crossterm::{cursor, execute};
use tool_common::forward::{Wait, header_bytes};
use tool_common::host::place::Place;
use tool_common::{Failure, link, note, port, print, stop_on_hangup, stop_on_signals};
use unetmap::abi::NR_ACCEPT_VNET_HDR;
use unetmap::{Interest, Port};

use clock::Clock;
use export::{Domain, Exporter, Form, Second};
use history::History;
use meter::Meter;
use metrics::Published;
pub use observer::{Observer, ObserverArgs, Origin, Reported};
pub use options::FlowsArgs;
use options::{Settings, TopSettings};
use report::Lines;
pub use sampler::Choice;
use top::Top;

/// Longest wait for packets: what is due in this time is sent at once, and a collector has to have room for it.
const MAX_WAIT: Duration = Duration::from_millis(20);

/// Longest time in which the program counts what had arrived when it was to end.
const MAX_REST: Duration = Duration::from_secs(1);

/// Performs `unetmap flows`.
///
/// # Errors
/// A sentence that begins with `flows:`.
pub fn run(args: &FlowsArgs) -> Result<(), Failure> {
    flows(args).map_err(|failure| failure.within("flows"))
}

fn flows(args: &FlowsArgs) -> Result<(), Failure> {
    let settings = args.check()?;
    let stop = stop_on_signals()?;
    stop_on_hangup()?;
    let clock = Clock::new();
    let files = settings.files.iter().map(|file| file.display().to_string());
    let names: Vec<String> = settings.ports.iter().cloned().chain(files).collect();
    let mut meter = Meter::new(settings.flows, settings.timeouts, settings.sampling, settings.keys, names.len());
    if let Some((to, security)) = &settings.to {
        let second = if settings.keys.both { Second::Reverse } else { Second::None };
        let form = Form { second, inner: settings.keys.inner, nat: false };
        let domains: Vec<_> = (1..).zip(&names).map(|(number, name)| Domain { number, name: name.clone() }).collect();
        meter.outputs.exporter = Some(
            Exporter::new((to, security), settings.protocol, &domains, settings.sampling, form)
                .map_err(|why| format!("--to {why}"))?,
        );
    }
    let page = settings.html.map(create).transpose()?.map(|file| (file, names.join(", ")));
    meter.outputs.lines = settings.format.map(|format| Lines::new(format, names));
    meter.outputs.top = settings.top.map(|top| Top::new(meter.places(), top.rows));
    meter.outputs.history = page.as_ref().map(|_| History::new(settings.tables.interval, settings.tables.rows));
    let published = Published::default();
    meter.published = Some(published.clone());
    let program = format!("unetmap flows {}", settings.ports.join(" "));
    let _served = settings.metrics.serve(program.trim_end(), move || published.metrics())?;
    let result = if settings.files.is_empty() {
        observe(&open(&settings)?, &settings, &mut meter, &clock, stop)
    } else {
        read_files(&settings, &mut meter, stop)
    };
    meter.finish();
    summarize(&settings, &mut meter);
    if let Some(((mut file, path), names)) = page {
        let html = meter.page(&names).unwrap_or_default();
        file.write_all(html.as_bytes()).map_err(|e| format!("--html {}: {e}", path.display()))?;
    }
    result
}

/// Creates the file of the page, before packets are counted that may not get into it.
fn create(path: &Path) -> Result<(File, &Path), String> {
    let file = Place::of_target(path).and_then(|place| place.create(0o666));
    Ok((file.map_err(|e| format!("--html {}: {e}", path.display()))?, path))
}

/// Prints what came and what became of it.
fn summarize(settings: &Settings<'_>, meter: &mut Meter) {
    if !settings.files.is_empty() {
        meter.tables(None).iter().for_each(|tables| print(tables));
    }
    if settings.json {
        let mut summary = meter.summary();
        link::add_down(&mut summary);
        return print(&format!("{summary}\n"));
    }
    let down = settings.ports.iter().filter(|_| meter.seen().packets == 0).filter_map(|port| link::of(port));
    note(&down.fold(meter.summary_text(), |text, down| format!("{text}; {down}")));
}

fn read_files(settings: &Settings<'_>, meter: &mut Meter, stop: &AtomicBool) -> Result<(), Failure> {
    meter.wait_for_readers();
    for (source, file) in (0..).zip(settings.files) {
        let skipped = input::read_file(file, source, meter, stop)?;
        if skipped.other > 0 {
            note(&format!("{}: {} packets that are not Ethernet are not counted", file.display(), skipped.other));
        }
    }
    Ok(())
}

/// Opens the ports, each with the bytes of the virtio-net header before its packets.
fn open(settings: &Settings<'_>) -> Result<Vec<(Port, usize)>, Failure> {
    let mut ports = Vec::new();
    for spec in &settings.ports {
        let port = port::open(spec, port::RingConfig::default(), NR_ACCEPT_VNET_HDR)?;
        if port.rx_rings().is_empty() {
            return Err(Failure::Work(format!("{spec} has no receive rings")));
        }
        let header = header_bytes(&port) as usize;
        ports.push((port, header));
    }
    Ok(ports)
}

/// Counts the packets of ports until the stop flag is set.
fn observe(
    ports: &[(Port, usize)],
    settings: &Settings<'_>,
    meter: &mut Meter,
    clock: &Clock,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    meter.advance(clock.now());
    note(&format!("Ready to go, {}", settings.ports.join(", ")));
    let interests: Vec<(&Port, Interest)> = ports.iter().map(|(port, _)| (port, Interest::RX)).collect();
    let mut wait = Wait::default();
    let mut refresh = settings.top.map(Refresh::new);
    let mut ends: Option<Instant> = None;
    loop {
        if ends.is_none() && (stop.load(Relaxed) || refresh.as_mut().is_some_and(|refresh| refresh.is_last(meter))) {
            ends = Some(Instant::now());
        }
        meter.advance(clock.now());
        let mut any = false;
        for (source, (port, header)) in (0..).zip(ports) {
            port.poll(Interest::RX, Some(Duration::ZERO)).map_err(|e| e.to_string())?;
            any |= input::read_port(port, source, *header, meter);
        }
        // What had arrived when the program was to end is counted, too.
        if ends.is_some_and(|since| !any || since.elapsed() > MAX_REST) {
            break;
        }
        if any {
            wait.restart();
            continue;
        }
        if wait.spins() {
            std::hint::spin_loop();
            continue;
        }
        port::wait_any(&interests, Some(MAX_WAIT))?;
        wait.restart();
    }
    // Releases the slots. This fails if the daemon has exited, and then there is nothing to release.
    ports.iter().for_each(|(port, _)| drop(port.rxsync()));
    Ok(())
}

/// The tables of `--top`.
struct Refresh {
    top: TopSettings,
    last: Instant,
    shown: u64,
    is_terminal: bool,
}

impl Refresh {
    fn new(top: TopSettings) -> Refresh {
        Refresh { top, last: Instant::now(), shown: 0, is_terminal: stdout().is_terminal() }
    }

    /// Shows the tables if they are due; returns whether they were the last ones.
    fn is_last(&mut self, meter: &mut Meter) -> bool {
        let passed = self.last.elapsed();
        if passed < self.top.interval {
            return false;
        }
        self.last = Instant::now();
        if self.is_terminal {
            // Raw: clears the screen. An error is that of the tables, which are printed next.
            let _ = execute!(stdout(), Clear(ClearType::All), cursor::MoveTo(0, 0));
        }
        meter.tables(Some(passed)).iter().for_each(|tables| print(tables));
        self.shown += 1;
        self.shown == self.top.count
    }
}
