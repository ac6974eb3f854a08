// SPDX-License-Identifier: BSD-2-Clause
//! Instructions per packet of the hot loops, counted by valgrind, against the budgets in `budgets.toml`.
//!
//! Instructions do not depend on the speed of the machine or on what else it does. A loop is run by this program again,
//! under valgrind, with few packets and with many: the difference is without what is made before. The loops of ports
//! are not among them: rustix finds the kernel's vDSO by a call that valgrind 3.19 passes on, but valgrind does not map
//! the vDSO, and the program ends.
//!
//! Not a test of the harness, whose threads would be counted, too. `UPDATE_BUDGETS=1` writes the file.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use unetmap_budgets::LOOPS;

/// The task of this program under valgrind: NAME PACKETS.
const TASK: &str = "UNETMAP_BUDGET_TASK";
/// Packets of the two runs of a loop.
const FEW: u64 = 1024;
const MANY: u64 = 5 * FEW;
/// A count may be this part above its budget: compilers and libraries change between machines.
const ABOVE: f64 = 0.10;
/// A count that is this part below its budget is to be written down, so that the gain is kept.
const BELOW: f64 = 0.25;

fn main() -> ExitCode {
    if let Ok(task) = std::env::var(TASK) {
        run(&task);
        return ExitCode::SUCCESS;
    }
    // The harness's options for other tests.
    if std::env::args().skip(1).any(|arg| arg == "--list") {
        return ExitCode::SUCCESS;
    }
    match check() {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &str) {
    let (name, packets) = task.split_once(' ').expect("NAME PACKETS");
    let packets = packets.parse().expect("a number");
    let (series, n) = name.rsplit_once('-').expect("NAME-N");
    let (.., work) = LOOPS.iter().find(|(of, ..)| *of == series).expect("a loop of this name");
    work(n.parse().expect("a number"), packets);
}

fn check() -> Result<String, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    if let Err(e) = Command::new("valgrind").arg("--version").output() {
        return Ok(format!("budgets: skipped: valgrind: {e} (apt-get install valgrind)"));
    }
    let folder = tempfile::tempdir().map_err(|e| format!("budgets: a folder for valgrind: {e}"))?;
    let names = LOOPS.iter().flat_map(|(name, all, ..)| all.iter().map(move |n| format!("{name}-{n}")));
    let mut counts = Vec::new();
    for name in names {
        let [few, many] = [FEW, MANY].map(|packets| count(folder.path(), &program, &name, packets));
        counts.push((name, many?.saturating_sub(few?) as f64 / (MANY - FEW) as f64));
    }
    let build = if cfg!(debug_assertions) { "dev" } else { "release" };
    if std::env::var_os("UPDATE_BUDGETS").is_some() {
        return update(build, &counts);
    }
    judge(build, &counts, &read()?)
}

/// Returns the instructions of a run.
fn count(folder: &Path, program: &Path, name: &str, packets: u64) -> Result<u64, String> {
    let out = folder.join("callgrind.out");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", &format!("--callgrind-out-file={}", out.display())]).arg(program);
    command.env(TASK, format!("{name} {packets}"));
    let output = command.output().map_err(|e| format!("budgets: valgrind: {e}"))?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("budgets: {name} fails under valgrind: {errors}"));
    }
    let text = fs::read_to_string(&out).map_err(|e| format!("budgets: {}: {e}", out.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
    total.ok_or_else(|| format!("budgets: valgrind counted nothing in {name}: {errors}"))
}

fn judge(build: &str, counts: &[(String, f64)], budgets: &toml::Table) -> Result<String, String> {
    let mut text =
        format!("{:<20} {:>12} {:>12}  ({build} build, instructions per packet)\n", "loop", "count", "budget");
    let mut faults = Vec::new();
    for (name, count) in counts {
        let budget = budgets.get(build).and_then(|of| of.get(name)).and_then(toml::Value::as_integer);
        let Some(budget) = budget.map(|budget| budget as f64) else {
            faults.push(format!("{name} takes {count:.0} instructions per packet and has no budget for this build"));
            continue;
        };
        let _ = writeln!(text, "{name:<20} {count:>12.1} {budget:>12.0}");
        if *count > budget * (1.0 + ABOVE) + 1.0 {
            faults.push(format!(
                "{name} takes {count:.0} instructions per packet, and its budget is {budget:.0}: find what was added to the loop"
            ));
        } else if *count < budget * (1.0 - BELOW) - 1.0 {
            faults
                .push(format!("{name} takes {count:.0} instructions per packet, less than its budget of {budget:.0}"));
        }
    }
    for (series, factor) in LOOPS.iter().filter_map(|(name, _, flat, _)| Some((*name, (*flat)?))) {
        let of_series = counts.iter().filter(|(name, _)| name.rsplit_once('-').is_some_and(|(of, _)| of == series));
        let all: Vec<f64> = of_series.map(|(_, count)| *count).collect();
        let (least, most) = all.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), n| (a.min(*n), b.max(*n)));
        if most > least * factor + 1.0 {
            faults.push(format!("{series}: the cost grows from {least:.0} to {most:.0} instructions with the number"));
        }
    }
    if faults.is_empty() {
        return Ok(text);
    }
    Err(format!(
        "{text}budgets: {}\nIf the change is wanted: UPDATE_BUDGETS=1 cargo test -p unetmap-budgets, and say \
         why in the commit.",
        faults.join("\nbudgets: ")
    ))
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("budgets.toml")
}

fn read() -> Result<toml::Table, String> {
    let text = fs::read_to_string(path()).map_err(|e| format!("budgets: {}: {e}", path().display()))?;
    text.parse().map_err(|e| format!("budgets: {}: {e}", path().display()))
}

fn update(build: &str, counts: &[(String, f64)]) -> Result<String, String> {
    let mut all = read().unwrap_or_default();
    let counted = counts.iter().map(|(name, count)| (name.clone(), toml::Value::Integer(count.ceil() as i64)));
    all.insert(build.into(), toml::Value::Table(counted.collect()));
    let mut text =
        "# Instructions per packet of the hot loops, by build: tests/budgets.rs counts and compares them.\n".to_owned();
    for (build, budgets) in &all {
        let _ = writeln!(text, "\n[{build}]");
        for (name, budget) in budgets.as_table().into_iter().flatten() {
            let _ = writeln!(text, "{name} = {}", budget.as_integer().unwrap_or(0));
        }
    }
    fs::write(path(), &text).map_err(|e| format!("budgets: {}: {e}", path().display()))?;
    Ok(text)
}
