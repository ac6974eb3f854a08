//! Programs that are measured: started, listened to, and ended.

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

/// One interval of a receiver's report.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);
/// Intervals with traffic that are not counted: the first is partly empty, in the second caches still fill.
pub(crate) const SKIP: usize = 2;
/// Intervals that make one sample, 60 ms: the cores seldom move meanwhile.
pub(crate) const KEEP: usize = 3;
/// Fewer packets than this are no traffic: stations that said where they are.
const FEW: f64 = 64.0;
/// Nothing takes this long unless it is stuck.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);
/// How long a process has to end by itself.
const GRACE: Duration = Duration::from_secs(3);

/// Where `make install` puts what only we run, from where this program is then.
const HELPERS: &str = "../lib/unetmap";

/// Where a program of ours is: beside this one, else one folder above (tests), else where it was installed for us, else in
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
                "bench: {name} is neither beside this program, nor in {HELPERS} from there, nor in the PATH \
                 (`make` builds it, `make install` installs it)"
            )
        })
}

/// A program that is running. Dropping it kills it.
pub(crate) struct Running {
    /// As it is called in messages.
    what: String,
    child: Child,
    lines: Receiver<String>,
    errors: Option<thread::JoinHandle<String>>,
}

impl Running {
    /// Starts a program. It is ended, or killed, before this one ends.
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

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line of its output.
    pub(crate) fn line(&mut self) -> Result<String, String> {
        session::check()?;
        self.lines.recv_timeout(PATIENCE).map_err(|e| match e {
            RecvTimeoutError::Timeout => {
                format!("bench: {} said nothing for {} s", self.what, PATIENCE.as_secs())
            }
            RecvTimeoutError::Disconnected => {
                format!("bench: {} ended early", self.what)
            }
        })
    }

    /// An error once it has ended, which it never does unasked.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        session::check()?;
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(format!("bench: {} ended early", self.what)),
            Err(e) => Err(format!("bench: {}: {e}", self.what)),
        }
    }

    /// Interrupts it and waits for it; an error if it failed before or then.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        let failed = |e: String| format!("bench: {}: {e}", self.what);
        let pid = Pid::from_child(&self.child);
        let deadline = Instant::now() + GRACE;
        // Not yet waited for, so the id is still its own; it may have ended, which is as good.
        let _ = kill_process(pid, Signal::TERM);
        let status = loop {
            match self.child.try_wait().map_err(|e| failed(e.to_string()))? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    return Err(failed("does not end when it is told to".into()));
                }
                None => thread::sleep(Duration::from_millis(1)),
            }
        };
        let said = self.errors.take().and_then(|e| e.join().ok()).unwrap_or_default();
        // A process that has only just started may die of the signal; then another one had a reason to end early.
        if status.success() || status.signal() == Some(Signal::TERM.as_raw()) {
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

/// Ends the programs of a measurement, in this order, and returns its result. If it failed, the words of the first one
/// that broke say why; the others only noticed.
pub(crate) fn conclude<T>(result: Result<T, String>, programs: &mut [Running]) -> Result<T, String> {
    let ends: Vec<_> = programs.iter_mut().map(Running::end).collect();
    match result {
        Ok(value) => ends.into_iter().collect::<Result<(), String>>().map(|()| value),
        Err(e) => Err(ends.into_iter().find_map(Result::err).unwrap_or(e)),
    }
}

/// The rate over `KEEP` intervals after the first `SKIP` with traffic. Where all of them are empty, as when somebody
/// else had the processor, it begins again.
pub(crate) fn steady_mpps(mut line: impl FnMut() -> Result<String, String>) -> Result<f64, String> {
    let (mut seen, mut packets, mut seconds) = (0, 0.0, 0.0);
    let mut empty = Duration::ZERO;
    while empty < PATIENCE {
        let Some(interval) = Interval::parse(&line()?)? else {
            continue;
        };
        if interval.packets == 0.0 || seen == 0 && interval.packets < FEW {
            empty += INTERVAL;
            if seen == 0 {
                continue;
            }
        }
        seen += 1;
        if seen > SKIP {
            packets += interval.packets;
            seconds += interval.seconds;
        }
        if seen == SKIP + KEEP {
            if packets > 0.0 && seconds > 0.0 {
                return Ok(packets / seconds / 1e6);
            }
            (seen, seconds) = (0, 0.0);
        }
    }
    Err(format!("bench: the receiver got no packet in {} s", PATIENCE.as_secs()))
}

/// What the receiver counted in one interval.
struct Interval {
    packets: f64,
    seconds: f64,
}

pub(crate) fn object(line: &str) -> Result<Value, String> {
    serde_json::from_str(line).map_err(|e| format!("bench: a program wrote `{line}`, which is no JSON: {e}"))
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
            _ => Err(format!("bench: a program wrote `{line}`, which lacks packets or seconds")),
        }
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
    const HEARD: &str = r#"{"event":"interval","packets":16,"seconds":0.02}"#;
    const SOME: &str = r#"{"event":"interval","packets":40000,"seconds":0.02}"#;
    const MORE: &str = r#"{"event":"interval","packets":100000,"seconds":0.04}"#;

    #[test]
    fn the_first_intervals_do_not_count() {
        assert_eq!(steady(&[NONE, NONE, SOME, SOME, MORE, MORE, MORE]), Ok(2.5));
        assert_eq!(steady(&[HEARD, NONE, HEARD, SOME, SOME, MORE, HEARD, MORE]), Ok(200_016.0 / 0.1 / 1e6));
        assert_eq!(steady(&[NONE, SOME, SOME, NONE, NONE, NONE, NONE, MORE, MORE, MORE, MORE, SOME]), Ok(2.4));
        assert_eq!(steady(&[MORE, MORE, r#"{"event":"other"}"#, SOME, SOME, NONE]), Ok(80_000.0 / 0.06 / 1e6));
    }

    #[test]
    fn bad_reports_are_errors() {
        for (lines, part) in [
            (&[NONE, SOME, SOME, SOME][..], "ended early"),
            (&["x"], "`x`, which is no JSON"),
            (&[r#"{"event":"interval","packets":"1"}"#], "lacks packets or seconds"),
            (&[NONE; 1000], "the receiver got no packet in 15 s"),
            (&[SOME, NONE, NONE, NONE, NONE].repeat(1000), "the receiver got no packet in 15 s"),
        ] {
            let message = steady(lines).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_program_is_listened_to_and_ended() {
        let start = |script: &str| Running::start("it", Command::new("sh").args(["-c", script])).unwrap();
        let mut good = start("echo one; exec sleep 100");
        assert_eq!(good.line().as_deref(), Ok("one"));
        assert_eq!(good.check(), Ok(()));
        assert_eq!(good.end(), Ok(()));
        let mut bad = start("echo why >&2; exit 3");
        assert_eq!(bad.line(), Err("bench: it ended early".into()));
        while bad.check().is_ok() {}
        assert_eq!(bad.end(), Err("bench: it: why (exit status: 3)".into()));
        let message = Running::start("it", &mut Command::new("/nowhere/it")).err().unwrap();
        assert!(message.starts_with("bench: starting it (/nowhere/it): "), "{message}");
        assert!(find("no-such-program").unwrap_err().contains("no-such-program is neither"));
    }
}
