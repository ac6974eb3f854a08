// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap bench --report DIR`: the benchmarks of a report, one after the other, and DIR/report.json, DIR/index.html
//! and DIR/report.md with what they found.

mod compare;
mod figures;
mod machine;
mod markdown;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use unetmap_sys::place;

use crate::probe::Cores;
use crate::report::{self, RowResult};
use crate::row_group::{RowGroup, row_groups};
use crate::{Bench, Options, Setup, note};
use machine::{Absent, Machine};

/// The parts of a report, the most important first: a report that runs out of time lacks the last ones.
const BENCHES: [Bench; 23] = [
    Bench::Tcp,
    Bench::Pipe,
    Bench::PipeRtt,
    Bench::PipePing,
    Bench::NicTx,
    Bench::NicRx,
    Bench::NicFwd,
    Bench::PipeBatch,
    Bench::ValeBatch,
    Bench::NicTxBatch,
    Bench::PipeSize,
    Bench::ValeSize,
    Bench::NicTxSize,
    Bench::NicRxSize,
    Bench::PipeCycles,
    Bench::PipeOneCore,
    Bench::ValeRtt,
    Bench::PipeOpen,
    Bench::Ports,
    Bench::Vale60Swap,
    Bench::Lb,
    Bench::HostTcp,
    Bench::PreloadPipe,
];
/// Points of the figures that a quick report has.
const QUICK_POINTS: [u32; 7] = [1, 8, 60, 100, 512, 1000, 1514];
/// Benchmarks that a quick report leaves out.
const NOT_QUICK: [Bench; 7] =
    [Bench::Tcp, Bench::PipeOneCore, Bench::Vale60Swap, Bench::Lb, Bench::HostTcp, Bench::PreloadPipe, Bench::PipePing];
/// Benchmarks that follow in a report that is not quick.
const MORE: [Bench; 12] = [
    Bench::Fw,
    Bench::Emulate,
    Bench::Memif,
    Bench::Vhost,
    Bench::Vale60Copy,
    Bench::Vale1500Copy,
    Bench::ValeFan,
    Bench::ValeOverload,
    Bench::HostRtt,
    Bench::Scrub,
    Bench::NodePipe,
    Bench::Pcap,
];
/// Time for all samples, and for those of one row.
const LIMIT: Duration = Duration::from_secs(13 * 60);
const ROW_LIMIT: Duration = Duration::from_secs(25);
/// The same for forwarding, two of whose peers take seconds to start.
const SLOW_ROW_LIMIT: Duration = Duration::from_secs(60);
/// The time of `vale-steady`, which takes five times as long: its samples are minutes.
const STEADY_LIMIT: Duration = Duration::from_secs(120);
const QUICK_LIMIT: Duration = Duration::from_secs(155);
const QUICK_ROW_LIMIT: Duration = Duration::from_secs(10);

/// A report on disk.
#[derive(Clone, Debug)]
pub struct Report {
    /// The folder of its files, which is created.
    pub folder: PathBuf,
    /// Fewer points, in less than three minutes.
    pub quick: bool,
    /// Also ten minutes of steady load.
    pub steady: bool,
    /// The report.json of an earlier report.
    pub compare: Option<PathBuf>,
}

/// Everything that a report shows.
struct Findings {
    machine: Machine,
    rows: Vec<RowResult>,
    absent: Vec<Absent>,
    /// Sentences about what is missing or was disturbed.
    notes: Vec<String>,
    seconds: u64,
    quick: bool,
}

impl Report {
    /// Returns the benchmarks, for the networks that they need.
    pub(crate) fn benches(&self) -> Vec<Bench> {
        let mut benches: Vec<Bench> = match self.quick {
            true => BENCHES.into_iter().filter(|bench| !NOT_QUICK.contains(bench)).collect(),
            false => BENCHES.into_iter().chain(MORE).collect(),
        };
        benches.extend(self.steady.then_some(Bench::ValeSteady));
        benches
    }

    /// Reads the earlier report, and makes the folder: both fail before the first sample.
    pub(crate) fn prepare(&self) -> Result<Option<Value>, String> {
        fs::create_dir_all(&self.folder).map_err(|e| format!("--report {}: {e}", self.folder.display()))?;
        let Some(path) = &self.compare else { return Ok(None) };
        let failed = |e: String| format!("--compare {}: {e}", path.display());
        let text = fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
        let old = serde_json::from_str(&text).map_err(|e| failed(e.to_string()))?;
        compare::moved(&old, &[]).map_err(failed)?;
        Ok(Some(old))
    }

    /// Measures, and writes the files.
    pub(crate) fn run(
        &self,
        options: &Options,
        cores: Cores,
        setup: &Setup,
        old: Option<&Value>,
    ) -> Result<u8, String> {
        let (machine, start) = (Machine::read(), Instant::now());
        let (limit, row_limit) = if self.quick { (QUICK_LIMIT, QUICK_ROW_LIMIT) } else { (LIMIT, ROW_LIMIT) };
        let lacking: Vec<(Bench, String)> =
            self.benches().into_iter().filter_map(|bench| Some((bench, setup.lacks(bench)?))).collect();
        let can = |bench: &Bench| !lacking.iter().any(|(lacks, _)| lacks == bench);
        let benches = self.benches().into_iter().filter(can);
        let groups: Vec<RowGroup> = benches.flat_map(row_groups).filter(|g| self.has(g)).collect();
        let (mut rows, mut notes, mut code) = (Vec::new(), Vec::new(), 0);
        for group in &groups {
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() && group.bench != Bench::ValeSteady {
                notes.push(format!("{}: not measured, because the time was over", group.name));
                continue;
            }
            let is_slow = !self.quick && group.bench == Bench::NicFwd;
            let row_limit = if is_slow { SLOW_ROW_LIMIT } else { row_limit };
            // Steady load is measured after all else, in a time of its own.
            let time = if group.bench == Bench::ValeSteady { STEADY_LIMIT } else { row_limit.min(left) };
            let of_row = Options { limit: time, ..options.clone() };
            match group.run(&of_row, cores, setup) {
                Ok(outcome) => {
                    notes.extend(outcome.failures.iter().map(|why| format!("{}: {why}", group.name)));
                    let few = outcome.missing.iter().filter(|_| outcome.is_short(options.samples));
                    notes.extend(few.map(|what| format!("{}: {what}", group.name)));
                    rows.extend(report::row_results(&outcome));
                }
                Err(why) => {
                    // An interrupt ends the report; what one benchmark lacks does not.
                    crate::session::check()?;
                    notes.push(format!("{}: {why}", group.name));
                    code = 1;
                }
            }
        }
        let missing = without(&lacking);
        notes.iter().for_each(|sentence| note(sentence));
        missing.iter().for_each(|absent| note(&format!("not measured: {}: {}", absent.peer, absent.why)));
        let (mut absent, seconds) = (machine::absent(), start.elapsed().as_secs());
        absent.extend(self.left_out());
        absent.extend(missing);
        let findings = Findings { machine, rows, absent, notes, seconds, quick: self.quick };
        self.write(&findings, old)?;
        Ok(code)
    }

    /// Returns the parts that this report leaves out, and how each is had.
    fn left_out(&self) -> Vec<Absent> {
        let of = |peer: &str, why: &str| Absent { peer: peer.into(), why: why.into() };
        let mut all = Vec::new();
        if self.quick {
            all.push(of("Open vSwitch", "not in a quick report, as it takes a second to start"));
            all.push(of("rows tcp-*", "not in a quick report, as a sample takes a second"));
        }
        if !self.steady {
            all.push(of("row vale-steady: ten minutes of load", "--steady adds it, and ten minutes"));
        }
        all
    }

    /// Returns true if the report has this row group.
    fn has(&self, group: &RowGroup) -> bool {
        // Longer packets by `unetmap bench memif vhost`.
        if matches!(group.bench, Bench::Memif | Bench::Vhost) {
            return group.len == 60;
        }
        let point = group.name.rsplit_once('-').and_then(|(_, n)| n.parse::<u32>().ok());
        !self.quick || point.is_none_or(|n| QUICK_POINTS.contains(&n)) && group.bench.slots()[1] != group.slots
    }

    fn write(&self, findings: &Findings, old: Option<&Value>) -> Result<(), String> {
        let all = json!({
            "machine": &findings.machine, "rows": &findings.rows, "absent": &findings.absent, "notes": &findings.notes,
            "seconds": findings.seconds, "quick": findings.quick,
        });
        let text = serde_json::to_string_pretty(&all).map_err(|e| format!("bench: formatting JSON: {e}"))?;
        write(&self.folder.join("report.json"), &text)?;
        write(&self.folder.join("report.md"), &markdown::text(findings))?;
        let moved = old.map(|old| compare::moved(old, &findings.rows)).transpose()?;
        write(&self.folder.join("index.html"), &figures::page(findings, moved.as_ref()))
    }
}

/// Names the rows that cannot be measured here, by the reason.
fn without(lacking: &[(Bench, String)]) -> Vec<Absent> {
    let mut all: Vec<Absent> = Vec::new();
    for (bench, why) in lacking {
        match all.iter_mut().find(|absent| absent.why == *why) {
            Some(absent) => absent.peer = format!("{}, {}", absent.peer, bench.name()),
            None => all.push(Absent { peer: format!("rows {}", bench.name()), why: why.clone() }),
        }
    }
    all
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let written = place::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|e| format!("bench: {}: {e}", path.display()))
}

/// Returns true if more of this unit is better: for rates and shares; not for times, memory and CPU time.
fn higher_is_better(unit: &str) -> bool {
    matches!(unit, "Mpps" | "Gbit/s" | "pps")
}

#[cfg(test)]
mod tests;
