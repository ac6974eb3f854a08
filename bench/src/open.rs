//! What it costs to open a pipe, and what ports cost that nobody uses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use unetmap::{Port, client};
use unetmap_sys::socket;

use crate::pkt_gen;
use crate::program::{self, PATIENCE, Running};

/// Pipes opened one after the other for one sample.
const OPENS: usize = 15;
/// Ports that are open while nothing happens.
const PORTS: usize = 100;
/// How long nothing happens.
const IDLE: Duration = Duration::from_secs(1);

/// The median time to open one end of a pipe that was not there, and the region that it lies in, in microseconds.
pub(crate) fn warm() -> Result<f64, String> {
    let mut times = [0.0; OPENS];
    for (i, time) in times.iter_mut().enumerate() {
        let spec = format!("netmap:bench{}-open{i}{{1", std::process::id());
        let start = Instant::now();
        let port = open(&spec)?;
        *time = start.elapsed().as_secs_f64() * 1e6;
        drop(port);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[OPENS / 2])
}

/// Where a program finds no daemon.
pub(crate) struct Cold {
    program: PathBuf,
    folder: TempDir,
}

impl Cold {
    pub(crate) fn new() -> Result<Cold, String> {
        let folder = tempfile::Builder::new().prefix("unetmap-bench-").tempdir();
        let folder = folder.map_err(|e| format!("bench pipe-open: a folder for the daemon: {e}"))?;
        Ok(Cold { program: pkt_gen::find()?, folder })
    }

    /// From the start of a pkt-gen that has to start a daemon to its first report, which comes a millisecond after its port
    /// is open; in microseconds.
    pub(crate) fn open(&self) -> Result<f64, String> {
        let at = self.folder.path().join("sock");
        let mut command = Command::new(&self.program);
        command.args(["-i", "netmap:cold}1", "-f", "rx", "-w", "0", "--json", "-T", "1"]).env("UNETMAP_SOCKET", &at);
        let start = Instant::now();
        let mut program = Running::start("pkt-gen -f rx", &mut command)?;
        let first = program.line();
        let time = start.elapsed();
        let ended = program.end();
        // Also when the program has failed: it may have started a daemon first.
        let gone = end_daemon(&at);
        first.and(ended).and(gone).map(|()| time.as_secs_f64() * 1e6)
    }
}

impl Drop for Cold {
    fn drop(&mut self) {
        // None is left, unless a sample was broken off.
        let _ = end_daemon(&self.folder.path().join("sock"));
    }
}

/// Ends the daemon that listens at `at`, if one does.
fn end_daemon(at: &Path) -> Result<(), String> {
    // Whom the kernel names is who began to listen: the program that started it.
    let told = Command::new(program::find("unetmap")?).args(["ls", "--json"]).env("UNETMAP_SOCKET", at).output();
    let told = told.map_err(|e| format!("bench pipe-open: starting unetmap ls: {e}"))?;
    let daemons = String::from_utf8_lossy(&told.stdout).into_owned();
    let Some(pid) = daemons.lines().find_map(|daemon| pid_of(daemon, None)) else { return Ok(()) };
    let begin = Instant::now();
    // It may end of itself just now.
    let _ = kill_process(pid, Signal::TERM);
    while socket::connect(at).is_ok() {
        if begin.elapsed() > PATIENCE {
            return Err(format!("bench pipe-open: the daemon {} does not end", pid.as_raw_nonzero()));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The process of the daemon that says this of itself; only if it serves `client`, where one is named.
fn pid_of(daemon: &str, client: Option<u32>) -> Option<Pid> {
    let all: Value = serde_json::from_str(daemon).ok()?;
    let serves = |client| all["sessions"].as_array().is_some_and(|all| all.iter().any(|one| one["pid"] == client));
    let pid = all["daemon"]["pid"].as_i64().filter(|_| client.is_none_or(serves))?;
    Pid::from_raw(pid.try_into().ok()?)
}

/// Open ports that nobody uses.
pub(crate) struct Idle {
    _ports: Vec<Port>,
    daemon: i32,
}

impl Idle {
    pub(crate) fn new() -> Result<Idle, String> {
        let id = std::process::id();
        let end = |i: usize| format!("netmap:bench{id}-idle{}{}{}", i / 50, ['{', '}'][i % 2], i % 50 / 2);
        let ports = (0..PORTS).map(|i| open(&end(i))).collect::<Result<_, _>>()?;
        let daemons = client::snapshots().map_err(|e| format!("bench idle-100: {e}"))?;
        let ours = daemons.iter().find_map(|daemon| pid_of(daemon, Some(id)));
        let ours = ours.ok_or("bench idle-100: no daemon says that it serves this process")?;
        Ok(Idle { _ports: ports, daemon: ours.as_raw_nonzero().get() })
    }

    /// What the daemon takes meanwhile: the part of a core, in percent, and memory beside the regions, in MiB.
    pub(crate) fn measure(&self) -> Result<Vec<f64>, String> {
        let (before, start) = (self.busy_ns()?, Instant::now());
        thread::sleep(IDLE);
        let (busy, time) = (self.busy_ns()?.saturating_sub(before), start.elapsed());
        Ok(vec![100.0 * busy as f64 / time.as_nanos() as f64, self.kib()? as f64 / 1024.0])
    }

    /// Nanoseconds that all threads of the daemon have run.
    fn busy_ns(&self) -> Result<u64, String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.daemon)).map_err(|e| self.failed(e))?;
        // A thread may end while it is looked at.
        let of_one = |task: fs::DirEntry| fs::read_to_string(task.path().join("schedstat")).ok();
        let texts = tasks.filter_map(Result::ok).filter_map(of_one);
        Ok(texts.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum())
    }

    /// Resident memory. What is mapped of regions counts as shared memory, and so is not in this.
    fn kib(&self) -> Result<u64, String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon)).map_err(|e| self.failed(e))?;
        Ok(kib_of(&status))
    }

    fn failed(&self, e: std::io::Error) -> String {
        format!("bench idle-100: the daemon, process {}: {e}", self.daemon)
    }
}

fn kib_of(status: &str) -> u64 {
    let fields = status.lines().filter_map(|line| line.split_once(':'));
    let ours = fields.filter(|(name, _)| matches!(*name, "RssAnon" | "RssFile"));
    ours.filter_map(|(_, value)| value.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

fn open(spec: &str) -> Result<Port, String> {
    Port::open(spec).map_err(|e| format!("bench: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_without_what_is_shared() {
        let status =
            "Name:\tunetmapd\nVmRSS:\t  9000 kB\nRssAnon:\t     300 kB\nRssFile:\t    4000 kB\nRssShmem:\t 4700 kB\n";
        assert_eq!(kib_of(status), 4300);
        let own = Idle { _ports: vec![], daemon: std::process::id() as i32 };
        let values = own.measure().unwrap();
        assert!(values[0] >= 0.0 && values[1] > 0.0, "{values:?}");
    }

    #[test]
    fn the_daemon_is_the_one_that_serves_us() {
        let daemon = r#"{"daemon":{"pid":7},"sessions":[{"pid":8}]}"#;
        assert_eq!(pid_of(daemon, None), Pid::from_raw(7));
        assert_eq!(pid_of(daemon, Some(8)), Pid::from_raw(7));
        assert_eq!(pid_of(daemon, Some(9)), None);
        assert_eq!(pid_of("null", None), None);
    }
}
