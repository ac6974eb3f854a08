// SPDX-License-Identifier: BSD-2-Clause
//! The programs of a lab: `unetmap emulate` and `unetmap capture`, which run in its wire, and its daemon.
//!
//! A process is the lab's if it is in the wire and its standard error is a log in the lab's folder: no number of a
//! process is kept, which another one may have later, and a process of somebody who looks into the wire is left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use tool_common::host::event::{PollFd, PollFlags, wait_readable};
use tool_common::host::netns::Netns;
use tool_common::host::process::program_name;
use tool_common::reply::members;

use crate::file::words;
use crate::model::{End, Lab};
use crate::network::at;
use crate::state::{Folder, Identity};

/// Longest time until all programs have their ports.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time that a program has to end after a signal, before it is killed.
const END_LIMIT: Duration = Duration::from_secs(10);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Beginnings of the names of logs.
const CAPTURE: &str = "capture-";
const LINK: &str = "link-";

/// A program that a lab needs.
pub(crate) struct Program {
    /// The name of its log, and its own.
    log: String,
    args: Vec<String>,
    /// Sessions that it has when it is ready.
    sessions: usize,
    /// In the lab's file.
    line: usize,
}

/// Returns the programs that carry packets.
pub(crate) fn emulators(lab: &Lab) -> Vec<Program> {
    let of_link = |link: &crate::model::Link| {
        let ports = [0, 1].map(|end| link.port(end, &lab.switches));
        let fixed = ["emulate", &ports[0], &ports[1], "--wait", "0"].map(str::to_owned).to_vec();
        let args = [fixed, words(&link.emulation)].concat();
        Program { log: format!("{LINK}{}.log", link.index), args, sessions: 2, line: link.line }
    };
    lab.links.iter().filter(|link| link.is_emulated()).map(of_link).collect()
}

/// Returns the programs that write captures, which monitor the ports of the others.
pub(crate) fn captures(lab: &Lab) -> Vec<Program> {
    let of_capture = |(i, capture): (usize, &crate::model::Capture)| {
        let port = format!("{}/rt", lab.links[capture.link].port(capture.end, &lab.switches));
        let mut args = ["capture", &port, "--write"].map(str::to_owned).to_vec();
        args.push(capture.file.to_string_lossy().into_owned());
        args.extend(capture.snaplen.iter().flat_map(|bytes| ["--snaplen".to_owned(), bytes.clone()]));
        args.extend(capture.filter.clone());
        Program { log: format!("{CAPTURE}{i}.log"), args, sessions: 1, line: capture.line }
    };
    lab.captures.iter().enumerate().map(of_capture).collect()
}

/// The command `unetmap` for the lab's daemon.
fn unetmap(folder: &Folder, args: &[String]) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args).env("UNETMAP_SOCKET", folder.socket()).stdin(Stdio::null());
    Ok(command)
}

/// Runs `unetmap` in the wire; returns what it printed.
fn run(folder: &Folder, wire: &Netns, args: &[&str]) -> Result<Vec<u8>, String> {
    let args: Vec<String> = args.iter().map(|word| (*word).to_owned()).collect();
    let failed = |e: io::Error| format!("unetmap {}: {e}", args.join(" "));
    let mut command = unetmap(folder, &args).map_err(failed)?;
    let output = wire.run(|| command.output()).and_then(|done| done).map_err(failed)?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(said(&String::from_utf8_lossy(&output.stderr))),
    }
}

/// An error of `unetmap` as a part of a sentence.
fn said(text: &str) -> String {
    text.trim().trim_start_matches("unetmap: ").replace('\n', "; ")
}

/// Attaches interfaces of the wire to switches.
///
/// # Errors
/// A sentence.
pub(crate) fn attach(lab: &Lab, folder: &Folder, wire: &Netns) -> Result<(), String> {
    let mut attached: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for link in lab.links.iter().filter(|link| !link.is_emulated()) {
        for (end, of) in link.ends.iter().enumerate() {
            if let End::Switch(switch) = of {
                attached.entry(*switch).or_default().push(format!("\"{}\"", link.wire_interface(1 - end)));
            }
        }
    }
    if attached.is_empty() {
        return Ok(());
    }
    let of_switch = |(switch, interfaces): (&usize, &Vec<String>)| {
        format!("[switch.{}]\nattach = [{}]\n", lab.switches[*switch].vale(), interfaces.join(", "))
    };
    let text: String = attached.iter().map(of_switch).collect();
    let name = "switches.toml";
    let write = || io::Write::write_all(&mut folder.file(name)?.create(0o600)?, text.as_bytes());
    write().map_err(|e| format!("{}: {e}", folder.path().display()))?;
    let path = folder.path().join(name);
    run(folder, wire, &["config", "--file", &path.to_string_lossy(), "apply"]).map(drop)
}

/// Starts those of the programs that do not run, and waits until they have their ports. Returns their number.
///
/// # Errors
/// A sentence with the line of the file: one of them ends, with what it says, or has no ports after a long time.
pub(crate) fn start(
    lab: &Lab,
    folder: &Folder,
    wire: &Netns,
    programs: &[Program],
    stop: &AtomicBool,
) -> Result<usize, String> {
    let there: BTreeSet<String> = running(folder, wire).into_iter().map(|process| process.log).collect();
    let mut started = Vec::new();
    for program in programs.iter().filter(|program| !there.contains(&program.log)) {
        let child = spawn(folder, wire, program).map_err(|e| at(lab, program.line, &format!("unetmap: {e}")))?;
        started.push((program, child));
    }
    let (count, until) = (started.len(), Instant::now() + START_LIMIT);
    while !started.is_empty() {
        sleep(CHECK_INTERVAL);
        for (program, child) in &mut started {
            if !matches!(child.try_wait(), Ok(None)) {
                // Path: in the lab's folder, which this user alone can use.
                let log = fs::read_to_string(folder.path().join(&program.log)).unwrap_or_default();
                return Err(at(lab, program.line, &said(&log)));
            }
        }
        let sessions = sessions(folder, wire)?;
        started.retain(|(program, child)| sessions.get(&child.id()).is_none_or(|has| *has < program.sessions));
        if stop.load(Relaxed) {
            return Err("interrupted".into());
        }
        if let Some((program, _)) = started.first().filter(|_| Instant::now() >= until) {
            return Err(at(lab, program.line, &format!("`unetmap {}` does not become ready", program.args.join(" "))));
        }
    }
    Ok(count)
}

fn spawn(folder: &Folder, wire: &Netns, program: &Program) -> io::Result<Child> {
    let log = folder.file(&program.log)?.create(0o600)?;
    let mut command = unetmap(folder, &program.args)?;
    // The terminal's signals are for this program alone.
    command.process_group(0).current_dir("/").stdout(Stdio::null()).stderr(log);
    wire.run(|| command.spawn())?
}

/// The number of sessions of each process at the lab's daemon.
fn sessions(folder: &Folder, wire: &Netns) -> Result<BTreeMap<u32, usize>, String> {
    let mut all = BTreeMap::new();
    for reply in serde_json::Deserializer::from_slice(&run(folder, wire, &["ls", "--json"])?).into_iter::<Value>() {
        let reply = reply.map_err(|e| format!("unetmap ls: {e}"))?;
        for pid in members(&reply["sessions"]).filter_map(|session| session["pid"].as_u64()) {
            *all.entry(u32::try_from(pid).unwrap_or(0)).or_default() += 1;
        }
    }
    Ok(all)
}

/// A process, by a descriptor: its number may be another's after its end.
struct Process {
    log: String,
    fd: OwnedFd,
}

/// Finds the processes of the lab.
fn running(folder: &Folder, wire: &Netns) -> Vec<Process> {
    let identity = |path: PathBuf| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let logs = fs::read_dir(folder.path()).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let is_log = name.starts_with(LINK) || name.starts_with(CAPTURE);
        Some((identity(entry.path())?, name)).filter(|_| is_log)
    });
    let logs: BTreeMap<(u64, u64), String> = logs.collect();
    let log_of = |pid: u32| {
        let inside = fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|ns| ns.ino() == wire.id());
        inside.then(|| logs.get(&identity(format!("/proc/{pid}/fd/2").into())?)).flatten()
    };
    let found = pids().filter_map(|pid| {
        log_of(pid)?;
        let fd = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        // Only now is it sure that the descriptor is that process's.
        Some(Process { log: log_of(pid)?.clone(), fd })
    });
    found.collect()
}

fn pids() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Ends the programs and the daemon of a lab.
///
/// # Errors
/// A sentence: one of them does not end.
pub(crate) fn end(folder: &Folder, wire: &Netns) -> Result<(), String> {
    // Monitors before what they monitor.
    for kind in [CAPTURE, LINK] {
        let mut all = running(folder, wire);
        all.retain(|process| process.log.starts_with(kind));
        for signal in [Signal::INT, Signal::KILL] {
            for process in &all {
                // It may have ended.
                let _ = pidfd_send_signal(&process.fd, signal);
            }
            let until = Instant::now() + END_LIMIT;
            all.retain(|process| !ends_until(process, until));
        }
        if let Some(process) = all.first() {
            return Err(format!("the program of {} does not end", process.log));
        }
    }
    match folder.socket().exists() {
        true => run(folder, wire, &["stop", "--all", "--force"]).map(drop),
        false => Ok(()),
    }
}

fn ends_until(process: &Process, until: Instant) -> bool {
    let mut end = [PollFd::new(&process.fd, PollFlags::IN)];
    let left = until.saturating_duration_since(Instant::now());
    wait_readable(&mut end, Some(left)).is_ok() && !end[0].revents().is_empty()
}

/// Returns the processes that are in one of these namespaces: its name, and the process as text.
pub(crate) fn inside(namespaces: &BTreeMap<String, Identity>) -> Vec<(String, String)> {
    let all = pids().filter_map(|pid| {
        let inode = fs::metadata(format!("/proc/{pid}/ns/net")).ok()?.ino();
        let (name, _) = namespaces.iter().find(|(_, found)| found.inode == inode)?;
        Some((name.clone(), format!("process {pid} ({})", program_name(pid).unwrap_or_default())))
    });
    all.collect()
}
