// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks `scale-*`: how a figure changes with the number of ports, senders, addresses, rings or pipes.
//!
//! Each row is measured by programs of its own on a daemon of its own, so that no row inherits the ports of another.
//! The program is this one, started again with its task in an environment variable ([`client`]).
//!
//! ```text
//! bench -- daemon (one per row)
//!   |--- client: opens the ports, prints "ready", waits for the file `go`, measures, prints its values
//!   '--- further clients, if the ports are divided among several processes
//! ```

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::daemon::Daemon;
use crate::program::Running;
use crate::turns::RowName;

mod client;

pub(crate) use client::run as client;

/// Environment variable with the task of a client: words, separated by spaces.
pub(crate) const TASK: &str = "UNETMAP_BENCH_SCALE";
/// Line that a client prints when its ports are open.
const READY: &str = "ready";
/// Packets per second of each port of `scale-senders` and `scale-load`.
const RATE: u32 = 1000;
const LOAD_RATE: u32 = 10_000;
/// Addresses that the switch of `scale-addresses` can learn, at least.
const LEAST_TABLE: u32 = 131_072;
/// Descriptors of the daemon, or of a client, for a pipe of which one end is open, at most.
const FDS_PER_PIPE: u64 = 8;
/// Time after the start in which ports announce their addresses.
const ANNOUNCE: Duration = Duration::from_millis(300);
/// Time in which each sender sends.
const SEND: Duration = Duration::from_millis(2400);
/// Time until a sender with [`RATE`] has filled a receive ring of 1024 slots once: the first packet in a page costs a
/// page fault of the daemon.
const FIRST_ROUND: Duration = Duration::from_millis(1200);
/// Time after that in which the daemon's CPU time is measured.
const MEASURE: Duration = Duration::from_millis(1000);

/// The number that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Open ports of a switch: time to open one more.
    Ports,
    /// Ports of a switch that send 1000 packets per second each: CPU time of the daemon, packets delivered.
    Senders,
    /// The same with 10,000 packets per second each.
    Load,
    /// Source addresses of one sender: its rate.
    Addresses,
    /// Ports with full rings: the rate of packets to an unknown address. Ports that read: the rate of broadcasts,
    /// delivered in all.
    Flood,
    /// Ports with a policy of a kind, and without: time for a packet.
    Policies,
    /// Threads of the daemon: the rate of a switch whose programs sleep; the rate at which as many threads copy packets
    /// between as many buffers and do nothing else.
    Threads,
    /// Rings of a port of which one is active: time of a poll, time to wake a sleeping poll, time of a sync that
    /// notifies although nobody waits.
    Rings,
    /// Pairs of threads, each with a pipe: the sum of their rates, and the smallest.
    Pairs,
    /// Open ports: time of a snapshot; time to open a port while snapshots are taken.
    Ls,
    /// Pipes of one region that close together: time for each.
    Close,
    /// Pipes, each with a region of its own: time to open one, time to close one, descriptors of the daemon for each.
    Pipes,
}

/// A row: its name, its unit, and what it measures.
#[derive(Clone, Copy, Debug)]
struct Row {
    suffix: &'static str,
    unit: &'static str,
    n: u32,
    /// Processes among which the ports are divided.
    processes: u32,
}

impl Subject {
    /// All subjects.
    pub const ALL: [Subject; 12] = [
        Subject::Ports,
        Subject::Senders,
        Subject::Load,
        Subject::Addresses,
        Subject::Flood,
        Subject::Policies,
        Subject::Threads,
        Subject::Rings,
        Subject::Pairs,
        Subject::Ls,
        Subject::Close,
        Subject::Pipes,
    ];

    /// Returns the name of its benchmark.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Subject::Ports => "scale-ports",
            Subject::Senders => "scale-senders",
            Subject::Load => "scale-load",
            Subject::Addresses => "scale-addresses",
            Subject::Flood => "scale-flood",
            Subject::Policies => "scale-policies",
            Subject::Threads => "scale-threads",
            Subject::Rings => "scale-rings",
            Subject::Pairs => "scale-pairs",
            Subject::Ls => "scale-ls",
            Subject::Close => "scale-close",
            Subject::Pipes => "scale-pipes",
        }
    }

    /// Returns the numbers that are measured.
    fn sizes(self) -> &'static [u32] {
        match self {
            Subject::Ports => &[1, 16, 64, 250],
            Subject::Senders => &[8, 16, 64, 254],
            Subject::Load => &[8, 64, 254],
            Subject::Addresses => &[100, 1000, 4000, 10_000, 100_000, 1_000_000],
            Subject::Flood => &[0, 2, 6, 126, 252],
            // One more port sends.
            Subject::Policies => &[1, 16, 253],
            Subject::Threads => &[1, 2, 4, 8],
            Subject::Rings => &[1, 8, 64],
            Subject::Pairs => &[1, 4, 16, 64],
            Subject::Ls => &[10, 100, 500, 1000],
            Subject::Close => &[1, 16, 64],
            Subject::Pipes if may_open(10_000) => &[100, 1000, 10_000],
            Subject::Pipes => &[100, 1000],
        }
    }

    /// Returns suffix and unit of the values that a measurement yields.
    fn values(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Subject::Ports | Subject::Close => &[("", "us")],
            Subject::Senders | Subject::Load => &[("", "%"), ("-rate", "pps"), ("-least", "%")],
            Subject::Addresses => &[("", "Mpps")],
            Subject::Threads => &[("", "Mpps"), ("-copy", "Mpps")],
            Subject::Flood => &[("", "Mpps"), ("-all", "Mpps")],
            Subject::Policies => &[("-none", "ns"), ("-vlan", "ns"), ("-filter", "ns"), ("-limit", "ns")],
            Subject::Rings => &[("", "ns"), ("-asleep", "us"), ("-notify", "ns")],
            Subject::Pairs => &[("", "Mpps"), ("-least", "%")],
            Subject::Ls => &[("", "ms"), ("-open", "us")],
            Subject::Pipes => &[("", "us"), ("-close", "us"), ("-descriptors", "each")],
        }
    }

    /// Returns true if many ports send, from one process or several, and the daemon's CPU time is measured.
    fn has_senders(self) -> bool {
        matches!(self, Subject::Senders | Subject::Load)
    }

    /// Returns the measurements, each a number and the processes among which the ports are divided.
    fn measurements(self) -> impl Iterator<Item = (u32, u32)> {
        let spread: &[(u32, u32)] = if self.has_senders() { &[(254, 8), (254, 64)] } else { &[] };
        self.sizes().iter().map(|&n| (n, 1)).chain(spread.iter().copied())
    }

    fn table(self) -> Vec<Row> {
        let rows = self.measurements().flat_map(|(n, processes)| {
            self.values().iter().map(move |&(suffix, unit)| Row { suffix, unit, n, processes })
        });
        rows.collect()
    }

    /// Returns the rows of the results.
    pub(crate) fn rows(self) -> Vec<RowName> {
        let name = |row: &Row| match row.processes {
            1 => format!("{}{}-{}", self.name(), row.suffix, row.n),
            processes => format!("{}{}-{}-of-{processes}", self.name(), row.suffix, row.n),
        };
        self.table().iter().map(|row| RowName { name: name(row), unit: row.unit }).collect()
    }

    /// Returns for each row what grows, and the series that it belongs to; `None`: it belongs to none.
    pub(crate) fn series(self) -> Vec<Option<(u32, &'static str)>> {
        self.table().iter().map(|row| (row.processes == 1).then_some((row.n, row.suffix))).collect()
    }

    /// Measures each row once.
    pub(crate) fn measure(self) -> Result<Vec<f64>, String> {
        let mut values = Vec::new();
        for (n, processes) in self.measurements() {
            values.extend(self.measure_one(n, processes)?);
        }
        Ok(values)
    }

    fn measure_one(self, n: u32, processes: u32) -> Result<Vec<f64>, String> {
        let failed = |e: std::io::Error| format!("bench {}: {e}", self.name());
        let folder = tempfile::tempdir().map_err(failed)?;
        let mut arguments: Vec<OsString> = Vec::new();
        if self == Subject::Addresses {
            let config = folder.path().join("config.toml");
            let addresses = n.next_power_of_two().max(LEAST_TABLE);
            fs::write(&config, format!("[vale]\naddresses = {addresses}\n")).map_err(failed)?;
            arguments.extend(["--config".into(), config.into()]);
        }
        if self == Subject::Pipes {
            unetmap_sys::process::raise_fd_limit_to(u64::from(n) * FDS_PER_PIPE);
        }
        let arguments: Vec<&OsStr> = arguments.iter().map(OsString::as_os_str).collect();
        let mut daemon = Daemon::start("unetmapd", folder.path().join("socket"), &arguments)?;
        let descriptors_before = descriptors(daemon.id())?;
        let start = |first: u32, ports: u32| {
            let task = format!("{} {n} {first} {ports}", self.name());
            self.start_client(&task, (&daemon.socket, folder.path()))
        };
        let bounds: Vec<u32> = (0..=processes).map(|i| n * i / processes).collect();
        let mut clients = bounds.windows(2).map(|two| start(two[0], two[1] - two[0])).collect::<Result<Vec<_>, _>>()?;
        for client in &mut clients {
            let line = client.line().map_err(|e| client.stop().err().unwrap_or(e))?;
            if line != READY {
                return Err(format!("bench {}: a client printed {line}", self.name()));
            }
        }
        let per_port = descriptors(daemon.id())?.saturating_sub(descriptors_before) as f64 / f64::from(n.max(1));
        fs::write(folder.path().join("go"), []).map_err(failed)?;
        let busy = self.has_senders().then(|| busy_share(daemon.id())).transpose()?;
        let mut outputs = Vec::new();
        for client in &mut clients {
            // Prefers the error that the client printed.
            let line = client.line().map_err(|e| client.stop().err().unwrap_or(e))?;
            let values: Vec<f64> = serde_json::from_str(&line)
                .map_err(|e| client.stop().err().unwrap_or_else(|| format!("bench {}: {line}: {e}", self.name())))?;
            outputs.push(values);
        }
        clients.iter_mut().try_for_each(Running::stop)?;
        daemon.stop()?;
        if self == Subject::Pipes {
            outputs.push(vec![per_port]);
            return Ok(outputs.concat());
        }
        match busy {
            // Each client prints the rates of its ports.
            Some(busy) => {
                let rates: Vec<f64> = outputs.concat();
                Ok(vec![busy, rates.iter().sum::<f64>() / f64::from(n), least(&rates)])
            }
            None => outputs.pop().ok_or_else(|| format!("bench {}: no result", self.name())),
        }
    }

    fn start_client(self, task: &str, (socket, folder): (&Path, &Path)) -> Result<Running, String> {
        let program = env::current_exe().map_err(|e| format!("bench {}: {e}", self.name()))?;
        let mut command = Command::new(program);
        command.args(["bench", self.name()]).env(TASK, task).env("UNETMAP_SOCKET", socket).current_dir(folder);
        Running::start(format!("bench {task}"), &mut command)
    }
}

/// Returns the smallest of shares, in percent of their mean.
fn least(shares: &[f64]) -> f64 {
    let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    100.0 * shares.iter().copied().fold(f64::INFINITY, f64::min) / mean
}

/// Returns the CPU time of all threads of a process while the clients send, in percent of one core.
fn busy_share(pid: u32) -> Result<f64, String> {
    thread::sleep(ANNOUNCE + FIRST_ROUND);
    let before = busy_ns(pid)?;
    thread::sleep(MEASURE);
    Ok(100.0 * busy_ns(pid)?.saturating_sub(before) as f64 / MEASURE.as_nanos() as f64)
}

/// Returns the number of descriptors that a process has open.
fn descriptors(pid: u32) -> Result<usize, String> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd")).map_err(|e| format!("bench: process {pid}: {e}"))?.count())
}

/// Returns true if this user may have as many descriptors as `n` pipes need.
fn may_open(n: u32) -> bool {
    let needed = u64::from(n) * FDS_PER_PIPE;
    unetmap_sys::process::raise_fd_limit_to(needed) >= needed
}

/// Returns the nanoseconds that all threads of a process have run.
fn busy_ns(pid: u32) -> Result<u64, String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|e| format!("bench: process {pid}: {e}"))?;
    let of_one = |task: fs::DirEntry| fs::read_to_string(task.path().join("schedstat")).ok();
    let texts = tasks.filter_map(Result::ok).filter_map(of_one);
    Ok(texts.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum())
}

/// Returns how the cost behind figures grows with n, by the exponent of the power of n that fits best: of the figure
/// itself if it is a time or a share, of its inverse if it is a rate.
pub(crate) fn growth(unit: &str, figures: &[(u32, f64)]) -> Option<&'static str> {
    let cost = |value: f64| if matches!(unit, "Mpps" | "pps") { -value.ln() } else { value.ln() };
    let points: Vec<(f64, f64)> = figures
        .iter()
        .filter(|(n, value)| *n > 0 && *value > 0.0)
        .map(|&(n, value)| (f64::from(n).ln(), cost(value)))
        .collect();
    if points.len() < 2 {
        return None;
    }
    let mean = |part: fn(&(f64, f64)) -> f64| points.iter().map(part).sum::<f64>() / points.len() as f64;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let slope = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>()
        / points.iter().map(|p| (p.0 - x).powi(2)).sum::<f64>();
    Some(match slope {
        ..0.1 => "flat",
        ..0.6 => "sublinear",
        ..1.3 => "linear",
        _ => "superlinear",
    })
}

/// Formats the values of a client.
fn line(values: &[f64]) -> String {
    Value::from(values).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_cost() {
        let figures = |f: fn(f64) -> f64| [8, 16, 64, 254].map(|n| (n, f(f64::from(n))));
        assert_eq!(growth("us", &figures(|_| 3.0)), Some("flat"));
        assert_eq!(growth("us", &figures(f64::sqrt)), Some("sublinear"));
        assert_eq!(growth("%", &figures(|n| 2.0 * n)), Some("linear"));
        assert_eq!(growth("ms", &figures(|n| n * n)), Some("superlinear"));
        assert_eq!(growth("Mpps", &figures(|n| 60.0 / n)), Some("linear"));
        assert_eq!(growth("pps", &figures(|_| 1000.0)), Some("flat"));
        assert_eq!(growth("us", &[(1, 1.0)]), None);
    }

    #[test]
    fn rows_name_the_number_and_the_processes() {
        let names: Vec<_> = Subject::Senders.rows().into_iter().map(|row| row.name).collect();
        assert_eq!(names[..2], ["scale-senders-8", "scale-senders-rate-8"]);
        assert_eq!(names[15..17], ["scale-senders-254-of-64", "scale-senders-rate-254-of-64"]);
        for subject in Subject::ALL {
            assert_eq!(subject.rows().len(), subject.series().len());
        }
    }
}
