// SPDX-License-Identifier: BSD-2-Clause
//! Child programs of a measurement: start, read output, stop.

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

use crate::session;

/// Interval of a receiver's reports.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);
/// Intervals with traffic that are skipped: the first is partly empty, and in the second the caches still fill.
pub(crate) const SKIPPED_INTERVALS: usize = 2;
/// Intervals of one sample, 60 ms: the distance of the cores seldom changes in this time.
pub(crate) const MEASURED_INTERVALS: usize = 3;
/// Fewer packets per interval than this are not the measured stream, but packets that announce addresses to a switch.
const MIN_PACKETS: f64 = 64.0;
/// Time limit of each step. A step that takes longer hangs.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit for a process to exit after a signal.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// The folder in which `make install` installs the programs that only benchmarks use, relative to this program's
/// folder.
const HELPERS: &str = "../lib/unetmap";

/// Finds a unetmap program: in this program's folder, else in its parent folder (tests), else in [`HELPERS`], else in
/// the `PATH`.
pub(crate) fn find(name: &str) -> Result<PathBuf, String> {
    let beside = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let above = beside.as_deref().and_then(Path::parent).map(Path::to_owned);
    let helpers = beside.as_deref().map(|beside| beside.join(HELPERS));
    let path = env::var_os("PATH").unwrap_or_default();
    beside
        .into_iter()
        .chain(above)
        .chain(helpers)
        .chain(env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
        .ok_or_else(|| {
            format!(
                "bench: {name} is neither in the folder of this program, nor in {HELPERS} from there, nor in the PATH \
                 (`make` builds it, `make install` installs it)"
            )
        })
}

/// A running program. Killed on drop.
pub(crate) struct Running {
    /// Name in error messages.
    what: String,
    child: Child,
    lines: Receiver<String>,
    errors: Option<thread::JoinHandle<String>>,
}

impl Running {
    /// Starts a program. It is stopped or killed before this process exits.
    pub(crate) fn start(what: impl Into<String>, command: &mut Command) -> Result<Running, String> {
        let what = what.into();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("bench: starting {what} ({}): {e}", command.get_program().to_string_lossy()))?;
        let (send, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || {
                // Ends when the process has exited, or when the receiver is dropped.
                BufReader::new(stdout).lines().map_while(Result::ok).all(|line| send.send(line).is_ok())
            });
        }
        let errors = child.stderr.take().map(|mut stderr| {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                // On an error, shows what was read so far.
                let _ = stderr.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            })
        });
        Ok(Running { what, child, lines, errors })
    }

    /// Returns its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Reads the next line of its output.
    pub(crate) fn line(&mut self) -> Result<String, String> {
        session::check()?;
        self.lines.recv_timeout(TIMEOUT).map_err(|e| match e {
            RecvTimeoutError::Timeout => {
                format!("bench: {} printed nothing for {} s", self.what, TIMEOUT.as_secs())
            }
            RecvTimeoutError::Disconnected => {
                format!("bench: {} exited early", self.what)
            }
        })
    }

    /// Forgets the lines that it has printed.
    pub(crate) fn skip_lines(&mut self) {
        while self.lines.try_recv().is_ok() {}
    }

    /// Fails if the program has exited, because it should run until it is stopped.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        session::check()?;
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(format!("bench: {} exited early", self.what)),
            Err(e) => Err(format!("bench: {}: {e}", self.what)),
        }
    }

    /// Stops the program with SIGTERM and waits for its exit; an error if it failed before or then.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        let failed = |e: String| format!("bench: {}: {e}", self.what);
        let pid = Pid::from_child(&self.child);
        let deadline = Instant::now() + EXIT_TIMEOUT;
        // The process was not waited for, so its id is not reused. The call fails if it has exited.
        let _ = kill_process(pid, Signal::TERM);
        let status = loop {
            match self.child.try_wait().map_err(|e| failed(e.to_string()))? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    return Err(failed(format!("did not exit within {} s of SIGTERM", EXIT_TIMEOUT.as_secs())));
                }
                None => thread::sleep(Duration::from_millis(1)),
            }
        };
        let errors = self.errors.take().and_then(|e| e.join().ok()).unwrap_or_default();
        // A process that has just started may be killed by the signal, before it installs its handler.
        if status.success() || status.signal() == Some(Signal::TERM.as_raw()) {
            return Ok(());
        }
        Err(failed(format!("{} ({status})", errors.trim().lines().last().unwrap_or("no error message"))))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process has exited and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stops the programs of a measurement, in this order, and returns its result. If it failed, returns the error of the
/// first program that failed, because the other failures are consequences.
pub(crate) fn stop_all<T>(result: Result<T, String>, programs: &mut [Running]) -> Result<T, String> {
    let stopped: Vec<_> = programs.iter_mut().map(Running::stop).collect();
    match result {
        Ok(value) => stopped.into_iter().collect::<Result<(), String>>().map(|()| value),
        Err(e) => Err(stopped.into_iter().find_map(Result::err).unwrap_or(e)),
    }
}

/// Measures the rate over `MEASURED_INTERVALS` intervals after the first `SKIPPED_INTERVALS` with traffic. Measures
/// again if all of them are empty, because another process had the processor.
pub(crate) fn steady_mpps(mut line: impl FnMut() -> Result<String, String>) -> Result<f64, String> {
    let (mut seen, mut packets, mut seconds) = (0, 0.0, 0.0);
    let mut empty = Duration::ZERO;
    while empty < TIMEOUT {
        let Some(interval) = Interval::parse(&line()?)? else {
            continue;
        };
        if interval.packets == 0.0 || seen == 0 && interval.packets < MIN_PACKETS {
            empty += INTERVAL;
            if seen == 0 {
                continue;
            }
        }
        seen += 1;
        if seen > SKIPPED_INTERVALS {
            packets += interval.packets;
            seconds += interval.seconds;
        }
        if seen == SKIPPED_INTERVALS + MEASURED_INTERVALS {
            if packets > 0.0 && seconds > 0.0 {
                return Ok(packets / seconds / 1e6);
            }
            (seen, seconds) = (0, 0.0);
        }
    }
    Err(format!("bench: the receiver got no packet in {} s", TIMEOUT.as_secs()))
}

/// A receiver's report of one interval.
pub(crate) struct Interval {
    pub(crate) packets: f64,
    pub(crate) seconds: f64,
}

/// Parses a line of JSON.
pub(crate) fn parse_json(line: &str) -> Result<Value, String> {
    serde_json::from_str(line).map_err(|e| format!("bench: a program wrote `{line}`, which is not JSON: {e}"))
}

impl Interval {
    /// Parses a report; `None` for other lines.
    pub(crate) fn parse(line: &str) -> Result<Option<Interval>, String> {
        let value = parse_json(line)?;
        if value["event"] != "interval" {
            return Ok(None);
        }
        match (value["packets"].as_f64(), value["seconds"].as_f64()) {
            (Some(packets), Some(seconds)) => Ok(Some(Interval { packets, seconds })),
            _ => Err(format!("bench: a program wrote `{line}`, which lacks packets or seconds")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(lines: &[&str]) -> Result<f64, String> {
        let mut lines = lines.iter();
        steady_mpps(|| lines.next().map(ToString::to_string).ok_or_else(|| "exited early".into()))
    }

    const NONE: &str = r#"{"event":"interval","packets":0,"seconds":0.02}"#;
    const FEW_PACKETS: &str = r#"{"event":"interval","packets":16,"seconds":0.02}"#;
    const SOME: &str = r#"{"event":"interval","packets":40000,"seconds":0.02}"#;
    const MORE: &str = r#"{"event":"interval","packets":100000,"seconds":0.04}"#;

    #[test]
    fn the_first_intervals_with_traffic_are_skipped() {
        assert_eq!(steady(&[NONE, NONE, SOME, SOME, MORE, MORE, MORE]), Ok(2.5));
        assert_eq!(
            steady(&[FEW_PACKETS, NONE, FEW_PACKETS, SOME, SOME, MORE, FEW_PACKETS, MORE]),
            Ok(200_016.0 / 0.1 / 1e6)
        );
        assert_eq!(steady(&[NONE, SOME, SOME, NONE, NONE, NONE, NONE, MORE, MORE, MORE, MORE, SOME]), Ok(2.4));
        assert_eq!(steady(&[MORE, MORE, r#"{"event":"other"}"#, SOME, SOME, NONE]), Ok(80_000.0 / 0.06 / 1e6));
    }

    #[test]
    fn bad_reports_are_errors() {
        for (lines, part) in [
            (&[NONE, SOME, SOME, SOME][..], "exited early"),
            (&["x"], "`x`, which is not JSON"),
            (&[r#"{"event":"interval","packets":"1"}"#], "lacks packets or seconds"),
            (&[NONE; 1000], "the receiver got no packet in 15 s"),
            (&[SOME, NONE, NONE, NONE, NONE].repeat(1000), "the receiver got no packet in 15 s"),
        ] {
            let message = steady(lines).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn output_and_exit_of_a_program_are_reported() {
        let start = |script: &str| Running::start("it", Command::new("sh").args(["-c", script])).unwrap();
        let mut good = start("echo one; exec sleep 100");
        assert_eq!(good.line().as_deref(), Ok("one"));
        assert_eq!(good.check(), Ok(()));
        assert_eq!(good.stop(), Ok(()));
        let mut bad = start("echo why >&2; exit 3");
        assert_eq!(bad.line(), Err("bench: it exited early".into()));
        while bad.check().is_ok() {}
        assert_eq!(bad.stop(), Err("bench: it: why (exit status: 3)".into()));
        let message = Running::start("it", &mut Command::new("/nowhere/it")).err().unwrap();
        assert!(message.starts_with("bench: starting it (/nowhere/it): "), "{message}");
        assert!(find("no-such-program").unwrap_err().contains("no-such-program is neither"));
    }
}
