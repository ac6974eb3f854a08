// SPDX-License-Identifier: BSD-2-Clause
//! The tests of RFC 2544 and RFC 8219 between two ports: trials, their reports, and the results.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};
use tool_common::generator::{not_released, note_down, print_report};
use tool_common::host::place;
use tool_common::{Failure, link, note, port, print, stop_on_signals};
use unetmap::Port;
use unetmap_streams::search::{self, Offer, Plan, SizeReport, Test, Tester, Trial};
use unetmap_streams::{BATCH, Pace, Sender, StreamReport};

use crate::Common;
use crate::streams::engine::{Clock, Run, lock};
use crate::streams::{check_size, percentiles};

mod args;
mod page;

pub(crate) use args::SearchArgs;

/// A sender that does not hold its rate ends a trial when it has taken this much longer.
const OVERTIME: Duration = Duration::from_millis(10);
/// Time for a switch to learn the receiver's address.
const LEARNING: Duration = Duration::from_millis(20);
/// Bytes that reports add to a packet, because the RFCs count the FCS.
const FCS: usize = 4;

/// A search between two ports.
#[derive(Clone, Debug)]
pub struct SearchOptions {
    pub(crate) plan: Plan,
    /// The port that receives.
    pub(crate) receive: String,
    pub(crate) wall_clock: bool,
    /// One thread sends and measures, and never sleeps.
    pub(crate) one_thread: bool,
    /// The file for the report.
    pub(crate) html: Option<PathBuf>,
}

/// Performs the search, as the command line has it.
pub(crate) fn run(config: &Common<'_>, options: &SearchOptions) -> Result<ExitCode, Failure> {
    let stop = stop_on_signals()?;
    let near = port::open(config.port, config.rings, 0)?;
    let far = port::open(&options.receive, config.rings, 0)?;
    let plan = &options.plan;
    check_size(&near, plan.sizes.iter().max().copied().unwrap_or(0))?;
    // Fails before hours of trials, not after them.
    let create = |path| place::create(path).map(|file| (path, file)).map_err(|e| no_page(path, &e));
    let page = options.html.as_deref().map(create).transpose()?;
    tool_common::wait_for_link(config.wait, stop);
    note("Ready...");
    let clock = if options.wall_clock { Clock::Wall } else { Clock::Monotonic };
    let mut tester = Ports {
        near: &near,
        far: &far,
        plan,
        clock,
        stop,
        json: config.json,
        one_thread: options.one_thread,
        cpus: config.cpus,
        trials: 0,
        down: BTreeMap::new(),
    };
    let mut reports = Vec::new();
    for size in &plan.sizes {
        match search::run(plan, *size, &mut tester) {
            Ok(report) => reports.push(report),
            // The results until then are printed.
            Err(_) if stop.load(Relaxed) => break,
            Err(e) => return Err(e.into()),
        }
    }
    let (from_to, down) = (format!("{} to {}", config.port, options.receive), tester.links_down());
    if config.json {
        reports.iter().for_each(|report| print(&format!("{}\n", result_json(report))));
        print(&format!("{}\n", summary_json(config, options, reports.len() == plan.sizes.len())));
    } else {
        print(&table(plan, &reports));
        down.iter().for_each(|sentence| print(&format!("{sentence}\n")));
    }
    if reports.iter().all(|report| report.throughput.is_none_or(|found| found.pps == 0.0)) {
        [config.port, &options.receive].into_iter().for_each(|port| note_down(port, "packets may be lost"));
    }
    if let Some((path, mut file)) = page {
        let html = page::html(plan, &from_to, &reports, &down);
        file.write_all(html.as_bytes()).map_err(|e| no_page(path, &e))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn no_page(path: &Path, e: &io::Error) -> Failure {
    Failure::Work(format!("--html {}: {e}", path.display()))
}

/// The two ports of the search.
struct Ports<'a> {
    near: &'a Port,
    far: &'a Port,
    plan: &'a Plan,
    clock: Clock,
    stop: &'a AtomicBool,
    json: bool,
    one_thread: bool,
    cpus: &'a [usize],
    trials: u32,
    /// Why the link of a port was down, and after how many trials.
    down: BTreeMap<String, (String, u32)>,
}

impl Tester for Ports<'_> {
    fn trial(&mut self, test: Test, offer: Offer) -> Result<Trial, String> {
        let stream = self.plan.stream(&offer)?;
        self.announce(&mut Sender::new(vec![stream.clone()]))?;
        let sender = Mutex::new(Sender::new(vec![stream]));
        let whole = Duration::from_nanos(self.plan.trial);
        let run = Run {
            clock: self.clock,
            stop: self.stop,
            tx: Some((self.near, &sender)),
            rx: Some(self.far),
            interval: None,
            idle_exit: false,
            count: u64::MAX,
            drain: Duration::from_nanos(self.plan.settle),
            limit: Some(whole + whole / 100 + OVERTIME),
            pps: Some(offer.pps),
            one_thread: self.one_thread,
            cpus: self.cpus,
        };
        let done = run.run(None)?;
        if self.stop.load(Relaxed) {
            return Err("ended by a signal".into());
        }
        if done.unreleased > 0 {
            return Err(not_released(self.near.spec(), done.unreleased));
        }
        let sent = lock(&sender).streams().map(|(_, sent)| sent.packets).sum::<u64>();
        let seconds = done.sending.as_secs_f64();
        let sent_pps = if sent > 1 && seconds > 0.0 { (sent - 1) as f64 / seconds } else { offer.pps };
        let stream = done.receiver.as_ref().and_then(|receiver| receiver.stream(1));
        let trial = Trial {
            offer,
            sent,
            sent_pps,
            received: stream.map_or(0, |s| s.packets - s.duplicates),
            duplicates: stream.map_or(0, |s| s.duplicates),
            reordered: stream.map_or(0, |s| s.reordered),
            jitter: stream.map_or(0.0, |s| s.jitter),
            latency: stream.map(|s| s.latency.summary()),
            pace: stream.and_then(StreamReport::pace),
        };
        print_report(&trial_line(test, &trial, self.json), self.json);
        self.see_links();
        Ok(trial)
    }
}

impl Ports<'_> {
    /// Counts a trial, and the links that are down at its end.
    fn see_links(&mut self) {
        self.trials += 1;
        for port in [self.near, self.far] {
            if let Some(why) = link::of(port.spec()) {
                self.down.entry(port.spec().into()).or_insert_with(|| (why.to_string(), 0)).1 += 1;
            }
        }
    }

    /// A sentence for each port whose link was down.
    fn links_down(&self) -> Vec<String> {
        let sentence = |(spec, (why, n)): (&String, &(String, u32))| {
            format!("{spec}, after {n} of {} trials: {why}.", self.trials)
        };
        self.down.iter().map(sentence).collect()
    }

    /// Sends a packet from the receiver's address, so that switches learn where it is.
    fn announce(&self, sender: &mut Sender) -> Result<(), String> {
        let Some(packet) = sender.take(0) else { return Ok(()) };
        if packet[0] & 1 != 0 {
            return Ok(()); // to all, or to a group
        }
        let mut answer = [&packet[6..12], &packet[..6], &packet[12..]].concat();
        // Without a signature it is counted nowhere.
        answer.truncate(packet.len() - unetmap_streams::signature::BYTES);
        answer.resize(packet.len(), 0);
        // A full ring means that nothing learns from this port's packets.
        self.far.send(&answer, Some(LEARNING)).map_err(|e| e.to_string())?;
        std::thread::sleep(LEARNING);
        // What arrived before belongs to an earlier trial.
        self.far.rxsync().map_err(|e| e.to_string())?;
        for ring in self.far.rx_rings() {
            ring.advance(ring.space());
        }
        self.far.rxsync().map_err(|e| e.to_string())
    }
}

fn trial_line(test: Test, trial: &Trial, as_json: bool) -> String {
    if as_json {
        return trial_json(test, trial).to_string();
    }
    let offer = &trial.offer;
    let held = if trial.held() { "" } else { ", not held" };
    let bunch = trial.pace.filter(|_| trial.disturbed());
    let disturbed = bunch.map_or(String::new(), |pace| format!(", DISTURBED by a bunch of {}", pace.burst));
    let loss = 100.0 * trial.loss();
    let times = trial.latency.as_ref().map_or(String::new(), |times| {
        format!(", latency {:.1} us, at most {:.1}", times.mean / 1e3, times.max as f64 / 1e3)
    });
    format!(
        "{} {} B: {} of {} pps sent{held}, {loss:.4} % of {} packets lost{times}{disturbed}",
        test.name(),
        offer.size + FCS,
        unetmap_page::number(trial.sent_pps),
        unetmap_page::number(offer.pps),
        trial.sent,
    )
}

fn trial_json(test: Test, trial: &Trial) -> Value {
    let mut object = json!({
        "event": "trial",
        "test": test.name(),
        "frame": trial.offer.size + FCS,
        "offered_pps": trial.offer.pps,
        "sent": trial.sent,
        "sent_pps": trial.sent_pps,
        "held": trial.held(),
        "disturbed": trial.disturbed(),
        "received": trial.received,
        "lost": trial.sent.saturating_sub(trial.received),
        "duplicates": trial.duplicates,
        "reordered": trial.reordered,
        "jitter_ns": trial.jitter,
    });
    if let Some(times) = trial.latency.as_ref().filter(|times| times.len > 0) {
        object["latency_ns"] = percentiles(times);
    }
    if let Some(pace) = &trial.pace {
        object["seen"] = pace_json(pace);
    }
    object
}

/// The receiver's view of the departures.
fn pace_json(pace: &Pace) -> Value {
    json!({"pps": pace.pps, "burst": pace.burst, "in_step": pace.in_step})
}

fn result_json(report: &SizeReport) -> Value {
    let mut object = json!({"event": "result", "frame": report.size + FCS, "link_pps": report.link_pps});
    object["repeated"] = json!(report.repeated);
    object["disturbed"] = json!(report.disturbed);
    if let Some(found) = report.throughput {
        object["throughput"] = json!({"pps": found.pps, "limit": found.limit.name()});
        if let Some(pace) = &found.pace {
            object["throughput"]["seen"] = pace_json(pace);
            object["throughput"]["seen"]["deviation"] = json!(found.deviation());
        }
    }
    if !report.delays.is_empty() {
        let value = |f: fn(&search::Delay) -> f64| json!(report.median_delay(f));
        object["latency_ns"] = json!({
            "min": value(|d| d.min as f64), "typical": value(|d| d.median as f64), "mean": value(|d| d.mean),
            "worst_case": value(|d| d.p999 as f64), "max": value(|d| d.max as f64),
            "variation": value(|d| d.variation() as f64), "jitter": value(|d| d.jitter),
            "repetitions": report.delays.len(),
        });
    }
    if !report.loss.is_empty() {
        object["loss"] = report.loss.iter().map(|trial| trial_json(Test::Loss, trial)).collect();
    }
    if let Some(bursts) = report.back_to_back {
        let (least, most) = bursts.range;
        object["back_to_back"] = json!({"packets": bursts.packets, "min": least, "max": most, "pps": bursts.pps});
    }
    object
}

fn summary_json(config: &Common<'_>, options: &SearchOptions, whole: bool) -> Value {
    let plan = &options.plan;
    let mut object = json!({
        "event": "summary", "function": plan.rfc.name(), "port": config.port, "receive": options.receive,
        "link": plan.link, "trial_seconds": plan.trial as f64 / 1e9, "tolerance": plan.tolerance,
        "resolution": plan.resolution, "complete": whole,
    });
    link::add_down(&mut object);
    object
}

/// The results as a table of text; the page has the same rows.
fn table(plan: &Plan, reports: &[SizeReport]) -> String {
    let (header, rows) = rows(plan, reports);
    let line = |cells: &[String]| cells.iter().map(|cell| format!("{cell:>14}")).collect::<String>() + "\n";
    let mut text = line(&header);
    text.extend(rows.iter().map(|row| line(row)));
    text += &format!("{}\n", as_seen(reports));
    for trial in reports.iter().flat_map(|report| &report.loss) {
        text += &trial_line(Test::Loss, trial, false);
        text.push('\n');
    }
    text
}

/// The columns of the tests that were made, and a row for each size.
fn rows(plan: &Plan, reports: &[SizeReport]) -> (Vec<String>, Vec<Vec<String>>) {
    let has = |test| plan.tests.contains(&test);
    let mut header = vec!["frame B".to_owned()];
    let mut add = |wanted: bool, names: &[&str]| {
        header.extend(names.iter().filter(|_| wanted).map(|name| (*name).to_owned()));
    };
    let throughput = has(Test::Throughput) || has(Test::Latency);
    add(throughput, &["pps", "% of link", "limit", "seen pps", "off by %", "in step %", "bunch"]);
    add(has(Test::Latency), &["min us", "typical us", "worst us", "variation us"]);
    add(has(Test::BackToBack), &["burst", "burst pps"]);
    add(true, &["made again", "disturbed"]);
    let row = |report: &SizeReport| {
        let mut cells = vec![(report.size + FCS).to_string()];
        if let Some(found) = report.throughput.filter(|_| throughput) {
            let share = 100.0 * found.pps / report.link_pps;
            cells.extend([format!("{:.0}", found.pps), format!("{share:.2}"), found.limit.name().into()]);
            cells.extend(found.pace.map_or(["-", "-", "-", "-"].map(String::from), |pace| {
                let deviation = found.deviation().map_or("-".into(), |part| format!("{:.4}", 100.0 * part));
                let in_step = format!("{:.3}", 100.0 * pace.in_step);
                [format!("{:.0}", pace.pps), deviation, in_step, pace.burst.to_string()]
            }));
        }
        if has(Test::Latency) {
            let values: [fn(&search::Delay) -> f64; 4] =
                [|d| d.min as f64, |d| d.median as f64, |d| d.p999 as f64, |d| d.variation() as f64];
            let cell = |ns: Option<f64>| ns.map_or("-".into(), |ns| format!("{:.1}", ns / 1e3));
            cells.extend(values.map(|value| cell(report.median_delay(value))));
        }
        if let Some(bursts) = report.back_to_back {
            cells.extend([format!("{:.0}", bursts.packets), format!("{:.0}", bursts.pps)]);
        }
        cells.extend([report.repeated.to_string(), report.disturbed.to_string()]);
        cells
    };
    (header, reports.iter().map(row).collect())
}

/// A sentence about how the receiver saw the rates that were found, and about disturbed trials.
fn as_seen(reports: &[SizeReport]) -> String {
    let found = || reports.iter().filter_map(|report| report.throughput.filter(|found| found.pps > 0.0));
    let deviation = found().filter_map(|found| found.deviation()).fold(0.0, f64::max);
    let bunch = found().filter_map(|found| found.pace).map(|pace| pace.burst).max();
    let (repeated, disturbed) = reports.iter().fold((0, 0), |(a, b), of| (a + of.repeated, b + of.disturbed));
    let seen = bunch.map_or(String::new(), |bunch| {
        format!(
            "The receiver saw the rates within {:.4} % (a rate is held within 0.1 %), and at most {bunch} packets at \
             once beyond what the rate allows (a batch is {BATCH}). ",
            100.0 * deviation
        )
    });
    format!(
        "{seen}Trials that were disturbed by more packets at once, and made again: {repeated}; that count because each \
         attempt was disturbed: {disturbed}."
    )
}
