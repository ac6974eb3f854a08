// SPDX-License-Identifier: BSD-2-Clause
//! Counters of programs that run, for `unetmap metrics`: a program with `--metrics` tells them at a socket of its own,
//! beside the daemon's.
//!
//! ```text
//! program: metrics-PID.sock <--connects-- unetmap metrics
//!                           --JSON, end-->
//! ```
//! A user's programs are asked by that user's `unetmap metrics`, as the folder is the user's; the kernel tells whose
//! process answers.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::host::socket::{SocketFile, listen_for_streams, peer, remove_dead};

/// Name of a program's socket, around the number of its process.
const NAME: [&str; 2] = ["metrics-", ".sock"];
/// Only the program's user, and root.
const MODE: u32 = 0o600;
/// Longest wait for an answer, and for a reader.
const LIMIT: Duration = Duration::from_secs(1);
/// After this time no more programs are asked.
const LIMIT_OF_ALL: Duration = Duration::from_secs(5);
/// Most bytes of an answer, and most programs that are asked.
const MAX_ANSWER: usize = 4 << 20;
const MAX_PROGRAMS: usize = 256;

/// The option of programs that have counters.
#[derive(Clone, Debug, Args)]
pub struct MetricsArgs {
    /// Show the counters in `unetmap metrics` of this user while the program runs
    #[arg(long)]
    metrics: bool,
}

/// A counter, or a value that goes up and down, and its samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Without `unetmap_` and `_total`.
    pub name: String,
    /// A sentence about it, without a full stop.
    pub help: String,
    /// It only goes up.
    pub is_counter: bool,
    /// Labels, and the value.
    pub samples: Vec<(Vec<(String, String)>, f64)>,
}

impl Metric {
    /// A counter.
    pub fn counter(name: &str, help: &str) -> Metric {
        Metric { name: name.into(), help: help.into(), is_counter: true, samples: Vec::new() }
    }

    /// A value that goes up and down.
    pub fn gauge(name: &str, help: &str) -> Metric {
        Metric { is_counter: false, ..Metric::counter(name, help) }
    }

    /// Adds a sample.
    pub fn add(&mut self, labels: &[(&str, &str)], value: u64) {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.samples.push((labels.collect(), value as f64));
    }

    /// Returns it with another sample.
    #[must_use]
    pub fn with(mut self, labels: &[(&str, &str)], value: u64) -> Metric {
        self.add(labels, value);
        self
    }

    /// Whether its names are of letters, digits and `_`, as Prometheus wants them.
    fn is_valid(&self) -> bool {
        let is_name = |name: &str| {
            let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(is_part)
        };
        let labels = self.samples.iter().flat_map(|(labels, _)| labels);
        is_name(&self.name) && !self.help.contains(['\n', '\\']) && labels.into_iter().all(|(name, _)| is_name(name))
    }
}

/// The answers of a program; dropped, it gives none any more.
#[derive(Debug)]
pub struct Served(SocketFile);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.remove();
    }
}

impl MetricsArgs {
    /// Answers with what `metrics` returns, by a thread, if that is asked for. `name`: of the program, and its ports;
    /// it becomes the label `program`.
    ///
    /// # Errors
    /// A sentence: there is no folder for the socket.
    pub fn serve(
        &self,
        name: &str,
        metrics: impl Fn() -> Vec<Metric> + Send + 'static,
    ) -> Result<Option<Served>, String> {
        if !self.metrics {
            return Ok(None);
        }
        let failed = |e: &dyn std::fmt::Display| format!("--metrics: {e}");
        let daemon = unetmap::daemon::own_socket().map_err(|e| failed(&e))?;
        let path = daemon.with_file_name(format!("{}{}{}", NAME[0], std::process::id(), NAME[1]));
        let (listener, file) = listen_for_streams(&path, MODE).map_err(|e| failed(&e))?;
        let own = [("program".to_owned(), name.to_owned()), ("pid".to_owned(), std::process::id().to_string())];
        thread::spawn(move || answer(&listener, &own, metrics));
        Ok(Some(Served(file)))
    }
}

/// Answers each connection, one after the other.
fn answer(listener: &UnixListener, own: &[(String, String)], metrics: impl Fn() -> Vec<Metric>) {
    loop {
        let Ok((mut stream, _)) = listener.accept() else {
            // The process has too many open files, for now.
            thread::sleep(LIMIT);
            continue;
        };
        let mut all = metrics();
        for (labels, _) in all.iter_mut().flat_map(|metric| &mut metric.samples) {
            labels.splice(0..0, own.iter().cloned());
        }
        let text = serde_json::to_vec(&all).unwrap_or_default();
        // A reader that has gone away gets no answer.
        let _ = stream.set_write_timeout(Some(LIMIT)).and_then(|()| stream.write_all(&text));
    }
}

/// Returns the metrics of this user's programs. Those of one name are one.
pub fn read() -> Vec<Metric> {
    let Ok(daemon) = unetmap::daemon::own_socket() else { return Vec::new() };
    let (end, mut all) = (Instant::now() + LIMIT_OF_ALL, Vec::<Metric>::new());
    for path in sockets(&daemon).into_iter().take(MAX_PROGRAMS).take_while(|_| Instant::now() < end) {
        for metric in ask(&path).unwrap_or_default() {
            match all.iter_mut().find(|known| known.name == metric.name) {
                Some(known) if known.is_counter == metric.is_counter => known.samples.extend(metric.samples),
                // Of a program of another version.
                Some(_) => {}
                None => all.push(metric),
            }
        }
    }
    all
}

/// The sockets of programs beside the daemon's, in an order that stays.
fn sockets(daemon: &Path) -> Vec<PathBuf> {
    let names = daemon.parent().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten();
    let names = names.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<_> = names.filter(|path| pid_of(path).is_some()).collect();
    paths.sort_unstable();
    paths
}

/// Returns the process that a socket of a program is named after. `None`: another file.
fn pid_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix(NAME[0])?.strip_suffix(NAME[1])?.parse().ok()
}

/// Whether a program is this user's or root's.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// Asks a program. `None`: it does not answer, or is of another user.
fn ask(path: &Path) -> Option<Vec<Metric>> {
    if !is_trusted(fs::symlink_metadata(path).ok()?.uid()) {
        return None;
    }
    let mut stream = match connect(path) {
        Err(Errno::CONNREFUSED) => {
            remove_of_killed(path);
            return None;
        }
        stream => stream.ok()?,
    };
    if !is_trusted(peer(&stream).ok()?.uid) {
        return None;
    }
    stream.set_nonblocking(false).ok()?;
    let (end, mut text, mut chunk) = (Instant::now() + LIMIT, Vec::new(), [0; 1 << 16]);
    while text.len() < MAX_ANSWER {
        let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut chunk).ok()? {
            0 => break,
            n => text.extend_from_slice(&chunk[..n]),
        }
    }
    let metrics: Vec<Metric> = serde_json::from_slice(&text).ok()?;
    metrics.iter().all(Metric::is_valid).then_some(metrics)
}

/// Connects without waiting for room in a queue that nobody empties.
fn connect(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd.into())
}

/// Removes the socket of a program that was killed. One that has just been started does not listen yet.
fn remove_of_killed(path: &Path) {
    if !pid_of(path).is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists()) {
        let _ = remove_dead(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_are_those_of_the_format() {
        let labelled = |label: &str| Metric::counter("a", "b").with(&[(label, "\"any\n")], 1);
        assert!(labelled("rule").is_valid() && Metric::gauge("fw_2", "States").is_valid());
        for wrong in ["", "1", "A", "a-b", "a{b", "a\nb", "_a"] {
            assert!(!Metric::counter(wrong, "b").is_valid() && !labelled(wrong).is_valid(), "{wrong}");
        }
        assert!(!Metric::counter("a", "b\n# TYPE").is_valid());
        let metrics = vec![labelled("rule")];
        let text = serde_json::to_string(&metrics).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Metric>>(&text).unwrap(), metrics);
    }
}
