// SPDX-License-Identifier: BSD-2-Clause
//! The table of host rings: each way to attach an interface, with each kind of traffic through a bridge with one port.
//!
//! Each row runs in a process of its own, with a daemon of its own.

use std::path::Path;
use std::process::Command;

use conformance::home::{Failure, repeated_if_delayed, wait_within};
use conformance::host::{ATTACHMENTS, Attachment, TRAFFIC, bridge, left_over, net, until_clean, until_it_works};
use conformance::{Home, LIMIT, program};
use rustix::process::Signal;

/// Names the row for the process that runs it.
const ROW: &str = "UNETMAP_MATRIX_ROW";
/// Before each cell's result in that process's output.
const CELL: &str = "cell: ";
/// Minimum number of slots that all the traffic needs: with fewer it took another path.
const LEAST_MOVED: u64 = 10_000;

/// The names of the rows.
pub(crate) fn list() -> Vec<String> {
    ATTACHMENTS.map(|attachment| format!("{} x {}", attachment.name, attachment.queues)).into()
}

/// Runs the row that the environment names, if it does, in this process; returns whether it passed.
pub(crate) fn run_row_of_environment() -> Option<bool> {
    let row = std::env::var(ROW).ok()?.parse().ok()?;
    Some(run_row(row))
}

/// Runs all rows, whatever the filters say, and prints the table; returns whether all cells passed.
pub(crate) fn run(_filters: &[String]) -> bool {
    let mut failures = Vec::new();
    let heads: Vec<&str> = TRAFFIC.iter().map(|(name, _)| *name).chain(["clean after"]).collect();
    println!("{:16}queues  {}", "attachment", heads.iter().map(|head| format!("{head:12}")).collect::<String>());
    for (row, attachment) in ATTACHMENTS.into_iter().enumerate() {
        let cells = match row_of(row) {
            Ok(cells) => cells,
            Err(why) if why.starts_with("skipped") => {
                println!("{why}");
                return true;
            }
            Err(why) => vec![why],
        };
        let shown = |i: usize| match cells.get(i).map(String::as_str) {
            Some("ok") => "ok",
            Some(_) => "FAIL",
            None => "not reached",
        };
        let text: String = (0..heads.len()).map(|i| format!("{:12}", shown(i))).collect();
        println!("{:16}{:6}  {text}", attachment.name, attachment.queues);
        let bad = cells.iter().zip(&heads).filter(|(cell, _)| *cell != "ok");
        failures.extend(bad.map(|(why, head)| format!("{} x {}, {head}: {why}", attachment.name, attachment.queues)));
        if cells.len() < heads.len() && failures.is_empty() {
            failures.push(format!("{} x {}: cells are missing", attachment.name, attachment.queues));
        }
    }
    failures.iter().for_each(|failure| println!("FAIL {failure}"));
    failures.is_empty()
}

/// Runs a row in a process of its own; its cells, `ok` or why not.
fn row_of(row: usize) -> Result<Vec<String>, String> {
    repeated_if_delayed(&format!("host_matrix, row {row}"), || {
        let mut log = String::new();
        let result = row_once(row, &mut log);
        let passed = result.as_ref().is_ok_and(|cells| cells.iter().all(|cell| cell == "ok"));
        let failure = (!passed).then(|| Failure { text: format!("{result:?}"), log });
        (result, failure)
    })
}

/// The same, once; `log` becomes the daemon's log.
fn row_once(row: usize, log: &mut String) -> Result<Vec<String>, String> {
    let folder = tempfile::Builder::new().prefix("unetmap-").tempdir().map_err(|e| e.to_string())?;
    let output = folder.path().join("output");
    let to = std::fs::File::create(&output).map_err(|e| e.to_string())?;
    let home = folder.path().join("home");
    let mut inside = Command::new(std::env::current_exe().map_err(|e| e.to_string())?)
        .env(ROW, row.to_string())
        .env("UNETMAP_SOCKET", home.join("unetmapd.sock"))
        .env("UNETMAPD", program("unetmapd"))
        .stdout(to.try_clone().map_err(|e| e.to_string())?)
        .stderr(to)
        .spawn()
        .map_err(|e| e.to_string())?;
    let status = wait_within(&mut inside, 6 * LIMIT);
    if status.is_none() {
        let _ = inside.kill();
        let _ = inside.wait();
    }
    let text = std::fs::read_to_string(&output).unwrap_or_default();
    *log = std::fs::read_to_string(home.join("unetmapd.sock.log")).unwrap_or_default();
    let cells: Vec<String> = text.lines().filter_map(|line| line.strip_prefix(CELL)).map(str::to_owned).collect();
    match text.lines().find_map(|line| line.split_once("skipped")) {
        Some((_, why)) => Err(format!("skipped{why}")),
        None if status.is_some_and(|status| status.success()) || !cells.is_empty() => Ok(cells),
        None => Err(text),
    }
}

/// One row, in its own process.
fn run_row(row: usize) -> bool {
    let folder = std::env::var_os("UNETMAP_SOCKET").and_then(|path| Path::new(&path).parent().map(Path::to_owned));
    let (Some(attachment), Some(folder)) = (ATTACHMENTS.get(row), folder) else { return false };
    let home = Home::at(&folder).expect("a folder");
    let passed = cells(&home, *attachment);
    home.end_daemon();
    passed
}

fn cells(home: &Home, attachment: Attachment) -> bool {
    let Some(net) = net(home, attachment, 1500) else { return true };
    let mut bridge = bridge(&net, home, attachment.queues);
    let mut passed = true;
    for (_, works) in TRAFFIC {
        let result = works(&net);
        passed &= result.is_ok();
        println!("{CELL}{}", result.err().map_or("ok".into(), |why| why.replace('\n', " ")));
    }
    let moved: u64 = home.snapshot().ports.iter().flat_map(|port| &port.rings).map(|ring| ring.crossed).sum();
    bridge.signal(Signal::TERM);
    let ended = bridge.wait().success();
    until_it_works("the stack has the interface again", &net);
    until_clean(&net);
    let clean = match left_over(&net) {
        _ if !ended => "the bridge failed".into(),
        _ if moved < LEAST_MOVED => format!("only {moved} slots moved, so the traffic went another way"),
        left if left.is_empty() => "ok".into(),
        left => left,
    };
    println!("{CELL}{clean}");
    passed && clean == "ok"
}
