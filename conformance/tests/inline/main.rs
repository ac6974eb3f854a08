// SPDX-License-Identifier: BSD-2-Clause
//! Faults of programs in the wire, and of all that is behind them, under running TCP connections and numbered datagrams
//! in both directions: how long the wire was closed, what passed unseen, what was lost, what broke. A program without
//! the test harness, as it prints its table when it passes, too.
//!
//! ```text
//! cargo test -p conformance --test inline                                the short form, as `make test` runs it
//! cargo test -p conformance --test inline -- --whole                     all faults, each of which lasts longer
//! cargo test -p conformance --test inline -- fw-host stopped             one program, faults whose names have a word
//! cargo test -p conformance --test inline -- --whole suricata            Suricata, of PATH or of the variable SURICATA
//! cargo test -p conformance --test inline -- --kills=1000 --hangs=200    kills and hangs of programs with a bypass
//! cargo test -p conformance --test inline -- --cards=MAC,MAC,MAC,MAC     cards in place of veth pairs (cards.rs)
//! ```
//! `make test-inline` runs the whole form, and writes the tables into `docs/inline.md`.
#![forbid(unsafe_code)]

mod cards;
mod faults;
mod ledger;
mod place;
mod repeated;
mod report;
mod scene;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use conformance::tool::lacks;
use serde::Serialize;

use cards::Cards;
use faults::{FAULTS, Fault};
use place::{OnFailure, WAYS, Way};
use repeated::{REPEATED, Repeated, Results, repeat};
use scene::{Row, Scene};

/// How long a fault lasts in the short form, and in the whole one.
const SHORT: Duration = Duration::from_millis(700);
const WHOLE: Duration = Duration::from_secs(3);

/// The command line.
#[derive(Default)]
struct Options {
    is_whole: bool,
    /// The folder of the tables, in Markdown and JSON.
    out: Option<PathBuf>,
    /// The document whose tables are written anew.
    document: Option<PathBuf>,
    /// Cards that the wire consists of.
    cards: Option<Cards>,
    /// Faults that happen many times, and how often.
    repeated: Vec<(&'static Repeated, usize)>,
    /// Names of programs, and words of names of faults.
    words: Vec<String>,
}

impl Options {
    fn of_command_line() -> Result<Options, String> {
        let mut options = Options::default();
        for arg in std::env::args().skip(1) {
            match arg.split_once('=') {
                Some(("--out", path)) => options.out = Some(path.into()),
                Some(("--document", path)) => options.document = Some(path.into()),
                Some(("--cards", macs)) => options.cards = Some(Cards::parse(macs)?),
                Some((option, times)) => {
                    let found = REPEATED.iter().find(|repeated| repeated.option == option).zip(times.parse().ok());
                    options.repeated.push(found.ok_or_else(|| format!("{arg} is no option"))?);
                }
                _ if arg == "--whole" => options.is_whole = true,
                // Those of the runner are for programs with the test harness.
                _ if arg.starts_with('-') => {}
                _ => options.words.push(arg),
            }
        }
        Ok(options)
    }

    fn has_way(&self, way: &Way) -> bool {
        let mut names = self.words.iter().filter(|word| WAYS.iter().any(|way| way.name == **word)).peekable();
        match names.peek() {
            None => !way.is_foreign() && (self.is_whole || !self.words.is_empty() || way.is_short),
            Some(_) => names.any(|name| name == way.name),
        }
    }

    fn has_fault(&self, fault: &Fault) -> bool {
        let mut words = self.words.iter().filter(|word| WAYS.iter().all(|way| way.name != **word)).peekable();
        match words.peek() {
            None => self.is_whole || fault.is_short,
            Some(_) => words.any(|word| fault.name.contains(&**word)),
        }
    }
}

fn main() -> ExitCode {
    let options = match Options::of_command_line() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("inline: {why}");
            return ExitCode::from(2);
        }
    };
    if std::env::args().any(|arg| arg == "--list") {
        let names = WAYS.iter().flat_map(|way| FAULTS.iter().map(move |fault| (way.name, fault.name)));
        names.for_each(|(way, fault)| println!("{way}::{fault}: test"));
        return ExitCode::SUCCESS;
    }
    let begin = Instant::now();
    let mut all = All::default();
    if let Err(why) = place::check_machine() {
        println!("inline: skipped: {why}");
        return ExitCode::SUCCESS;
    }
    let mut failures = Vec::new();
    for way in WAYS.iter().filter(|way| options.has_way(way)) {
        failures.extend(run_way(way, &options, &mut all).err().map(|why| format!("{}: {why}", way.name)));
    }
    println!("inline: {} rows in {:.0} s\n", all.rows.len(), begin.elapsed().as_secs_f64());
    println!("{}", report::tables(&all));
    if let Err(why) = report::write(&all, options.out.as_deref(), options.document.as_deref()) {
        println!("inline: {why}");
        return ExitCode::FAILURE;
    }
    let rows = all.rows.iter().chain(all.repeated.iter().map(|results| &results.row));
    failures.extend(rows.filter_map(|row| failure(row, options.cards.is_some())));
    failures.iter().for_each(|failure| println!("FAIL {failure}"));
    ExitCode::from(u8::from(!failures.is_empty()))
}

/// All results.
#[derive(Default, Serialize)]
struct All {
    rows: Vec<Row>,
    repeated: Vec<Results>,
}

/// Runs the faults of a program, and adds their rows. An error: the program does not work without a fault.
fn run_way(way: &'static Way, options: &Options, all: &mut All) -> Result<(), String> {
    if let Err(why) = way.check() {
        println!("inline: {:8} skipped: {why}", way.name);
        return Ok(());
    }
    let hold = if options.is_whole { WHOLE } else { SHORT };
    let mut scene = None;
    let is_single = |fault: &&Fault| options.repeated.is_empty() && options.has_fault(fault);
    for fault in FAULTS.iter().filter(is_single) {
        let mut running = match scene.take() {
            Some(scene) => scene,
            None => Scene::new(way, hold, options.cards.clone())?,
        };
        let row = running.run(fault);
        println!("inline: {:8} {:36} {}", way.name, fault.name, report::line(&row));
        // What follows begins anew if something is broken.
        scene = (row.failure.is_none() && row.broken.is_empty()).then_some(running);
        all.rows.push(row);
    }
    drop(scene);
    for (repeated, times) in &options.repeated {
        let mut scene = Scene::new(way, repeated.hold, options.cards.clone())?;
        all.repeated.push(repeat(&mut scene, repeated, *times));
    }
    Ok(())
}

/// Why a row fails: all connections go on after each fault, and where the wire is closed, nothing passes that the rules
/// deny. With a bypass each lost frame is counted.
fn failure(row: &Row, has_cards: bool) -> Option<String> {
    let has = |on_failure| WAYS.iter().any(|way| way.name == row.way && way.on_failure == on_failure);
    let fault = FAULTS.iter().find(|fault| fault.name == row.fault);
    // Without nftables another interface has no setting before the program makes it.
    let is_closed = has(OnFailure::Closed)
        && (fault.is_none_or(|fault| fault.keeps_interfaces) || lacks("kernel: closed names").is_none());
    // A card drops frames for which it has no buffer, too.
    let is_counted = !has_cards && has(OnFailure::Bypass) && fault.is_some_and(|fault| fault.keeps_counts);
    let uncounted = row.frames.as_ref().filter(|frames| is_counted && frames.lost != frames.sum());
    let why = match (&row.failure, row.broken.first()) {
        (Some(why), _) => why.clone(),
        (None, Some(why)) => format!("{} broken connections: {why}", row.broken.len()),
        (None, None) if is_closed && row.denied_seen != [0, 0] => {
            let [out, into] = row.denied_seen;
            format!("{out} denied packets came in, and {into} went out")
        }
        (None, None) => match uncounted {
            Some(frames) => format!("{} frames were lost, and {} are counted", frames.lost, frames.sum()),
            None => return None,
        },
    };
    Some(format!("{}, {}: {why}", row.way, row.fault))
}
