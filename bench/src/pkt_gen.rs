//! Two pkt-gen processes with a pipe between them.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::one_core::SLOTS;
use crate::probe::Cores;
use crate::session;

/// One interval of the receiver's report.
const INTERVAL: Duration = Duration::from_millis(20);
/// Intervals with traffic that are not counted: the first is partly empty, in the second caches still fill.
const SKIP: usize = 2;
/// Intervals that make one sample, 60 ms: the cores seldom move meanwhile.
const KEEP: usize = 3;
/// Round trips of one sample.
const PINGS: u32 = 50_000;
/// Nothing takes this long unless it is stuck.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a process has to end by itself.
const GRACE: Duration = Duration::from_secs(3);

/// Where pkt-gen is: beside this program, else one folder above (tests), else in the `PATH`.
pub(crate) fn find() -> Result<PathBuf, String> {
    let beside = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let above = beside.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = env::var_os("PATH").unwrap_or_default();
    beside
        .into_iter()
        .chain(above)
        .chain(env::split_paths(&path))
        .map(|folder| folder.join("pkt-gen"))
        .find(|program| program.is_file())
        .ok_or_else(|| "bench: pkt-gen is neither beside this program nor in the PATH (`make` builds it)".into())
}

/// The pair of programs that a benchmark runs.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) program: PathBuf,
    pub(crate) cores: Cores,
}

/// A pkt-gen that is running. Dropping it kills it.
struct Running {
    what: &'static str,
    child: Child,
    lines: Receiver<String>,
    errors: Option<thread::JoinHandle<String>>,
}

impl Pair {
    /// Packets of 60 B as fast as they go, in batches of `batch`; returns what the receiver counted, in Mpps.
    pub(crate) fn rate(&self, batch: u32) -> Result<f64, String> {
        let interval = INTERVAL.as_millis().to_string();
        let mut rx = self.start("rx", "}1", self.cores.rx, &["-T", &interval])?;
        let mut tx = self.start("tx", "{1", self.cores.tx, &["-T", "0", "-b", &batch.to_string()])?;
        let sample = steady_mpps(|| rx.line());
        // Which of the two broke is told by its own words; the other only noticed.
        let ends = [tx.end(), rx.end()];
        match sample {
            Ok(mpps) => ends.into_iter().collect::<Result<(), String>>().map(|()| mpps),
            Err(e) => Err(ends.into_iter().find_map(Result::err).unwrap_or(e)),
        }
    }

    /// One packet there and back, both sides awake; returns the median in nanoseconds.
    pub(crate) fn round_trip(&self) -> Result<f64, String> {
        let mut pong = self.start("pong", "}1", self.cores.rx, &["-T", "0"])?;
        let mut ping = self.start("ping", "{1", self.cores.tx, &["-T", "0", "-n", &PINGS.to_string()])?;
        let median = (|| {
            loop {
                if let Some(ns) = median_rtt(&ping.line()?)? {
                    return Ok(ns);
                }
            }
        })();
        let ends = [ping.end(), pong.end()];
        match median {
            Ok(ns) => ends.into_iter().collect::<Result<(), String>>().map(|()| ns),
            Err(e) => Err(ends.into_iter().find_map(Result::err).unwrap_or(e)),
        }
    }

    fn start(&self, what: &'static str, end: &str, cpu: usize, more: &[&str]) -> Result<Running, String> {
        let port = format!("netmap:bench{}{end}", std::process::id());
        let (slots, cpu) = (format!("{SLOTS},{SLOTS}"), cpu.to_string());
        let mut child = Command::new(&self.program)
            .args(["-i", &port, "-f", what, "-a", &cpu, "-C", &slots, "-w", "0", "--json"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("bench: starting {}: {e}", self.program.display()))?;
        let (send, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || {
                // Ends when the process has, or when nobody listens any more.
                BufReader::new(stdout).lines().map_while(Result::ok).all(|line| send.send(line).is_ok())
            });
        }
        let errors = child.stderr.take().map(|mut stderr| {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                // What was read up to an error is all there is to show.
                let _ = stderr.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            })
        });
        Ok(Running { what, child, lines, errors })
    }
}

impl Running {
    /// The next line of its output.
    fn line(&mut self) -> Result<String, String> {
        session::check()?;
        self.lines.recv_timeout(PATIENCE).map_err(|e| match e {
            RecvTimeoutError::Timeout => {
                format!("bench: pkt-gen -f {} said nothing for {} s", self.what, PATIENCE.as_secs())
            }
            RecvTimeoutError::Disconnected => {
                format!("bench: pkt-gen -f {} ended early", self.what)
            }
        })
    }

    /// Interrupts it and waits for it; an error if it failed before or then.
    fn end(&mut self) -> Result<(), String> {
        let failed = |e: String| format!("bench: pkt-gen -f {}: {e}", self.what);
        let pid = Pid::from_child(&self.child);
        let deadline = Instant::now() + GRACE;
        // Not yet waited for, so the id is still its own; it may have ended, which is as good.
        let _ = kill_process(pid, Signal::INT);
        let status = loop {
            match self.child.try_wait().map_err(|e| failed(e.to_string()))? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    return Err(failed("does not end when interrupted".into()));
                }
                None => thread::sleep(Duration::from_millis(1)),
            }
        };
        let said = self.errors.take().and_then(|e| e.join().ok()).unwrap_or_default();
        // A process that has only just started may die of the signal; then another one had a reason to end early.
        if status.success() || status.signal() == Some(Signal::INT.as_raw()) {
            return Ok(());
        }
        Err(failed(format!("{} ({status})", said.trim().lines().last().unwrap_or("no word why"))))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when `end` has already seen it end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rate over `KEEP` intervals after the first `SKIP` with traffic.
fn steady_mpps(mut line: impl FnMut() -> Result<String, String>) -> Result<f64, String> {
    let (mut seen, mut packets, mut seconds) = (0, 0.0, 0.0);
    while seen < SKIP + KEEP {
        let line = line()?;
        let Some(interval) = Interval::parse(&line)? else {
            continue;
        };
        if seen == 0 && interval.packets == 0.0 {
            continue;
        }
        seen += 1;
        if seen > SKIP {
            packets += interval.packets;
            seconds += interval.seconds;
        }
    }
    if packets > 0.0 && seconds > 0.0 {
        Ok(packets / seconds / 1e6)
    } else {
        Err("bench: the receiver got no packet in steady state".into())
    }
}

/// What the receiver counted in one interval.
struct Interval {
    packets: f64,
    seconds: f64,
}

fn object(line: &str) -> Result<Value, String> {
    serde_json::from_str(line).map_err(|e| format!("bench: pkt-gen wrote `{line}`, which is no JSON: {e}"))
}

impl Interval {
    /// `None` for lines about something else.
    fn parse(line: &str) -> Result<Option<Interval>, String> {
        let value = object(line)?;
        if value["event"] != "interval" {
            return Ok(None);
        }
        match (value["packets"].as_f64(), value["seconds"].as_f64()) {
            (Some(packets), Some(seconds)) => Ok(Some(Interval { packets, seconds })),
            _ => Err(format!("bench: pkt-gen wrote `{line}`, which lacks packets or seconds")),
        }
    }
}

/// The median of ping's summary, ns; `None` for lines about something else.
fn median_rtt(line: &str) -> Result<Option<f64>, String> {
    let value = object(line)?;
    if value["event"] != "summary" {
        return Ok(None);
    }
    match value["rtt_ns"]["p50"].as_f64() {
        Some(ns) if ns > 0.0 => Ok(Some(ns)),
        _ => Err(format!("bench: no ping was answered (pkt-gen wrote `{line}`)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(lines: &[&str]) -> Result<f64, String> {
        let mut lines = lines.iter();
        steady_mpps(|| lines.next().map(ToString::to_string).ok_or_else(|| "ended early".into()))
    }

    const NONE: &str = r#"{"event":"interval","packets":0,"seconds":0.02}"#;
    const SOME: &str = r#"{"event":"interval","packets":40000,"seconds":0.02}"#;
    const MORE: &str = r#"{"event":"interval","packets":100000,"seconds":0.04}"#;

    #[test]
    fn the_first_intervals_do_not_count() {
        assert_eq!(steady(&[NONE, NONE, SOME, SOME, MORE, MORE, MORE]), Ok(2.5));
        assert_eq!(steady(&[MORE, MORE, r#"{"event":"other"}"#, SOME, SOME, NONE]), Ok(80_000.0 / 0.06 / 1e6));
    }

    #[test]
    fn bad_reports_are_errors() {
        for (lines, part) in [
            (&[NONE, SOME, SOME, SOME][..], "ended early"),
            (&["x"], "`x`, which is no JSON"),
            (&[r#"{"event":"interval","packets":"1"}"#], "lacks packets or seconds"),
            (&[SOME, SOME, NONE, NONE, NONE], "no packet in steady state"),
        ] {
            let message = steady(lines).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn round_trips_come_from_the_summary() {
        assert_eq!(median_rtt(r#"{"event":"interval"}"#), Ok(None));
        assert_eq!(median_rtt(r#"{"event":"summary","rtt_ns":{"p50":431}}"#), Ok(Some(431.0)));
        assert!(median_rtt(r#"{"event":"summary","rtt_ns":null}"#).unwrap_err().contains("no ping was answered"));
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let pair = Pair { program: "/bin/false".into(), cores: Cores { tx: 0, rx: 0 } };
        let message = pair.rate(512).unwrap_err();
        assert!(message.contains("pkt-gen -f") && message.contains("exit status: 1"), "{message}");
        let pair = Pair { program: "/nowhere/pkt-gen".into(), ..pair };
        assert!(pair.round_trip().unwrap_err().contains("starting /nowhere/pkt-gen"));
    }
}
