// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks `pipe-open`, the time to open a pipe, and `idle-100`, the cost of idle ports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use unetmap::Port;
use unetmap_sys::socket;

use crate::pkt_gen;
use crate::program::{self, Running, TIMEOUT};
use crate::stats;

/// Pipes opened in sequence for one sample.
const OPENS: usize = 100;
/// Number of idle ports of `idle-100`.
pub(crate) const PORTS: usize = 100;
/// Time of an idle measurement.
const IDLE: Duration = Duration::from_secs(1);

/// Measures the time to open one end of a new pipe, including the creation of its region, and to close it, until the
/// call returns: the median and the 99th percentile of each, in microseconds.
pub(crate) fn warm() -> Result<Vec<f64>, String> {
    let (mut opening, mut closing) = ([0.0; OPENS], [0.0; OPENS]);
    for (i, (opening, closing)) in opening.iter_mut().zip(&mut closing).enumerate() {
        let spec = format!("netmap:bench{}-open{i}{{1", std::process::id());
        let start = Instant::now();
        let port = open(&spec)?;
        *opening = start.elapsed().as_secs_f64() * 1e6;
        let start = Instant::now();
        drop(port);
        *closing = start.elapsed().as_secs_f64() * 1e6;
    }
    Ok([&opening, &closing].into_iter().flat_map(|times| [stats::median(times), stats::p99(times)]).collect())
}

/// A socket path without a daemon, for the measurement of an open that starts one.
pub(crate) struct ColdOpen {
    program: PathBuf,
    folder: TempDir,
}

impl ColdOpen {
    pub(crate) fn new() -> Result<ColdOpen, String> {
        let folder = tempfile::Builder::new().prefix("unetmap-bench-").tempdir();
        let folder = folder.map_err(|e| format!("bench pipe-open: a folder for the daemon: {e}"))?;
        Ok(ColdOpen { program: pkt_gen::find()?, folder })
    }

    /// Measures the time from the start of a pkt-gen that has to start a daemon to its first report, which it prints a
    /// millisecond after its port is open; in microseconds.
    pub(crate) fn open(&self) -> Result<f64, String> {
        let at = self.folder.path().join("sock");
        let mut command = Command::new(&self.program);
        command.args(["-i", "netmap:cold}1", "-f", "rx", "-w", "0", "--json", "-T", "1"]).env("UNETMAP_SOCKET", &at);
        let start = Instant::now();
        let mut program = Running::start("pkt-gen -f rx", &mut command)?;
        let first = program.line();
        let time = start.elapsed();
        let stopped = program.stop();
        // Also if the program has failed: it may have started a daemon first.
        let daemon_stopped = stop_daemon(&at);
        first.and(stopped).and(daemon_stopped).map(|()| time.as_secs_f64() * 1e6)
    }
}

impl Drop for ColdOpen {
    fn drop(&mut self) {
        // Needed only if a sample was interrupted.
        let _ = stop_daemon(&self.folder.path().join("sock"));
    }
}

/// Stops the daemon that listens at `at`, if there is one.
fn stop_daemon(at: &Path) -> Result<(), String> {
    // Peer credentials of the socket name the process that called listen: the program that started the daemon.
    let output = Command::new(program::find("unetmap")?).args(["ls", "--json"]).env("UNETMAP_SOCKET", at).output();
    let output = output.map_err(|e| format!("bench pipe-open: starting unetmap ls: {e}"))?;
    let daemons = String::from_utf8_lossy(&output.stdout).into_owned();
    let Some(pid) = daemons.lines().find_map(|daemon| pid_of(daemon, None)) else { return Ok(()) };
    let begin = Instant::now();
    // Fails if the daemon has just exited by itself.
    let _ = kill_process(pid, Signal::TERM);
    while socket::connect(at).is_ok() {
        if begin.elapsed() > TIMEOUT {
            return Err(format!("bench pipe-open: the daemon {} does not exit", pid.as_raw_nonzero()));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Parses a daemon's snapshot: its process id. `None` if `client` is given and has no session with this daemon.
fn pid_of(daemon: &str, client: Option<u32>) -> Option<Pid> {
    let all: Value = serde_json::from_str(daemon).ok()?;
    let serves = |client| all["sessions"].as_array().is_some_and(|all| all.iter().any(|one| one["pid"] == client));
    let pid = all["daemon"]["pid"].as_i64().filter(|_| client.is_none_or(serves))?;
    Pid::from_raw(pid.try_into().ok()?)
}

/// Opens `n` ports; returns the time for each in microseconds, and what the daemon uses while they are idle.
pub(crate) fn ports(n: usize) -> Result<Vec<f64>, String> {
    unetmap_sys::process::raise_fd_limit();
    let start = Instant::now();
    let idle = Idle::new(n)?;
    let each = start.elapsed().as_secs_f64() * 1e6 / n as f64;
    Ok([vec![each], idle.measure()?].concat())
}

/// Open ports that are idle.
pub(crate) struct Idle {
    _ports: Vec<Port>,
    daemon: i32,
}

impl Idle {
    /// Opens so many ports.
    pub(crate) fn new(n: usize) -> Result<Idle, String> {
        let id = std::process::id();
        let end = |i: usize| format!("netmap:bench{id}-idle{}{}{}", i / 20, ['{', '}'][i % 2], i % 20 / 2);
        let ports = (0..n).map(|i| open(&end(i))).collect::<Result<_, _>>()?;
        let daemons = unetmap::snapshots().map_err(|e| format!("bench idle-100: {e}"))?;
        let daemon = daemons.iter().find_map(|daemon| pid_of(daemon, Some(id)));
        let daemon = daemon.ok_or("bench idle-100: no daemon has a session of this process")?;
        Ok(Idle { _ports: ports, daemon: daemon.as_raw_nonzero().get() })
    }

    /// Measures what an idle daemon uses: CPU time in percent of a core, and memory without the regions in MiB.
    pub(crate) fn measure(&self) -> Result<Vec<f64>, String> {
        let (before, start) = (self.busy_ns()?, Instant::now());
        thread::sleep(IDLE);
        let (busy, time) = (self.busy_ns()?.saturating_sub(before), start.elapsed());
        let memory = memory(self.daemon).map_err(|e| self.failed(e))?;
        Ok(vec![100.0 * busy as f64 / time.as_nanos() as f64, memory])
    }

    /// Returns the nanoseconds that all threads of the daemon have run.
    fn busy_ns(&self) -> Result<u64, String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.daemon)).map_err(|e| self.failed(e))?;
        // Ignores threads that exit meanwhile.
        let of_one = |task: fs::DirEntry| fs::read_to_string(task.path().join("schedstat")).ok();
        let texts = tasks.filter_map(Result::ok).filter_map(of_one);
        Ok(texts.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum())
    }

    fn failed(&self, e: std::io::Error) -> String {
        format!("bench idle-100: the daemon, process {}: {e}", self.daemon)
    }
}

/// Returns the resident memory of a process in MiB. Mapped regions count as shared memory, which is not included.
pub(crate) fn memory(pid: impl std::fmt::Display) -> std::io::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(kib_of(&status) as f64 / 1024.0)
}

fn kib_of(status: &str) -> u64 {
    let fields = status.lines().filter_map(|line| line.split_once(':'));
    let resident = fields.filter(|(name, _)| matches!(*name, "RssAnon" | "RssFile"));
    resident.filter_map(|(_, value)| value.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

fn open(spec: &str) -> Result<Port, String> {
    Port::open(spec).map_err(|e| format!("bench: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_excludes_shared_memory() {
        let status =
            "Name:\tunetmapd\nVmRSS:\t  9000 kB\nRssAnon:\t     300 kB\nRssFile:\t    4000 kB\nRssShmem:\t 4700 kB\n";
        assert_eq!(kib_of(status), 4300);
        let own = Idle { _ports: vec![], daemon: std::process::id() as i32 };
        let values = own.measure().unwrap();
        assert!(values[0] >= 0.0 && values[1] > 0.0, "{values:?}");
    }

    #[test]
    fn the_daemon_of_a_client_is_the_one_with_its_session() {
        let daemon = r#"{"daemon":{"pid":7},"sessions":[{"pid":8}]}"#;
        assert_eq!(pid_of(daemon, None), Pid::from_raw(7));
        assert_eq!(pid_of(daemon, Some(8)), Pid::from_raw(7));
        assert_eq!(pid_of(daemon, Some(9)), None);
        assert_eq!(pid_of("null", None), None);
    }
}
