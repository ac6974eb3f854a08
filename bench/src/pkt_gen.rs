// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks of two pkt-gen processes with a pipe between them, of which one may have its end as a guest has it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dpdk::wait_for;
use crate::one_core::SLOTS;
use crate::probe::Cores;
use crate::program::{self, INTERVAL, Running, parse_json, steady_mpps, stop_all};

/// Round trips of one sample.
const PINGS: u32 = 50_000;

/// Bytes of a slot's buffer.
const BUFFER: u16 = 2048;

/// The slots of a packet, for pkt-gen's option `-F`.
pub(crate) fn slots_of(len: u16) -> String {
    len.div_ceil(BUFFER).to_string()
}

/// Returns the path of pkt-gen.
pub(crate) fn find() -> Result<PathBuf, String> {
    program::find("pkt-gen")
}

/// The pair of programs of a benchmark.
#[derive(Clone, Debug)]
pub(crate) struct PktGenPair {
    pub(crate) program: PathBuf,
    pub(crate) cores: Cores,
}

impl PktGenPair {
    /// Sends packets of `len` bytes as fast as possible, in batches of `batch`; returns the receiver's rate in Mpps.
    pub(crate) fn rate(&self, batch: u32, len: u16) -> Result<f64, String> {
        self.rate_between([&self.port("{1"), &self.port("}1")], None, batch, len)
    }

    /// The same from the first of these ends to the second one; `device`: the number of the one that is the memory of
    /// a device, at a socket, whose program finds no daemon.
    fn rate_between(
        &self,
        ports: [&str; 2],
        device: Option<(usize, &Path)>,
        batch: u32,
        len: u16,
    ) -> Result<f64, String> {
        let start = |number: usize, what, cpu, more: &[&str]| {
            let mut command = self.command(what, ports[number], cpu, more);
            if let Some((_, socket)) = device.filter(|(end, _)| *end == number) {
                command.env("UNETMAP_DEVICE", socket).env("UNETMAP_SOCKET", socket.with_extension("none"));
            }
            Running::start(format!("pkt-gen -f {what}"), &mut command)
        };
        let (slots, interval) = (slots_of(len), INTERVAL.as_millis().to_string());
        let (batch, len) = (batch.to_string(), len.to_string());
        let rx = start(1, "rx", self.cores.rx, &["-T", &interval])?;
        let tx = start(0, "tx", self.cores.tx, &["-T", "0", "-b", &batch, "-l", &len, "-F", &slots])?;
        let mut programs = [tx, rx];
        let sample = steady_mpps(|| programs[1].line());
        stop_all(sample, &mut programs)
    }

    /// The rates by pass-through, from an end that is the memory of a device, as a guest has it, and to it.
    pub(crate) fn device_rates(&self, batch: u32, len: u16) -> Result<Vec<f64>, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("bench: a folder for the device: {e}"))?;
        let run = |guest_sends: bool| {
            // Another parent each time: a device's memory has one pipe.
            let parent = format!("bench{}d{}", std::process::id(), usize::from(guest_sends));
            let [guest, host] = ["{1", "}1"].map(|end| format!("netmap:{parent}{end}"));
            let socket = folder.path().join(&parent);
            let mut command = Command::new(program::find("unetmap")?);
            command.args(["vm", "device", &guest, "--socket"]).arg(&socket);
            let mut server = Running::start("unetmap vm device", &mut command)?;
            wait_for(&socket, &mut server)?;
            let rate = match guest_sends {
                true => self.rate_between([&guest, &host], Some((0, &socket)), batch, len),
                false => self.rate_between([&host, &guest], Some((1, &socket)), batch, len),
            };
            stop_all(rate, &mut [server])
        };
        Ok(vec![run(true)?, run(false)?])
    }

    /// Sends one packet there and back, with both sides busy-waiting; returns the median and the 99th percentile in
    /// nanoseconds.
    pub(crate) fn round_trip(&self) -> Result<Vec<f64>, String> {
        let start = |what, end, cpu, more: &[&str]| {
            Running::start(format!("pkt-gen -f {what}"), &mut self.command(what, &self.port(end), cpu, more))
        };
        let pong = start("pong", "}1", self.cores.rx, &["-T", "0"])?;
        let ping = start("ping", "{1", self.cores.tx, &["-T", "0", "-n", &PINGS.to_string()])?;
        let mut programs = [ping, pong];
        let median = (|| {
            loop {
                if let Some(ns) = round_trips(&programs[0].line()?)? {
                    return Ok(ns);
                }
            }
        })();
        stop_all(median, &mut programs)
    }

    fn port(&self, end: &str) -> String {
        format!("netmap:bench{}{end}", std::process::id())
    }

    fn command(&self, what: &str, port: &str, cpu: usize, more: &[&str]) -> Command {
        let (slots, cpu) = (format!("{SLOTS},{SLOTS}"), cpu.to_string());
        let mut command = Command::new(&self.program);
        command.args(["-i", port, "-f", what, "-a", &cpu, "-C", &slots, "-w", "0", "--json"]).args(more);
        command
    }
}

/// Parses the median and the 99th percentile of ping's summary, ns; `None` for other lines.
pub(crate) fn round_trips(line: &str) -> Result<Option<Vec<f64>>, String> {
    let value = parse_json(line)?;
    if value["event"] != "summary" {
        return Ok(None);
    }
    let of = |key: &str| value["rtt_ns"][key].as_f64().filter(|ns| *ns > 0.0);
    match (of("p50"), of("p99")) {
        (Some(median), Some(p99)) => Ok(Some(vec![median, p99])),
        _ => Err(format!("bench: no ping was answered (pkt-gen wrote `{line}`)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_parsed_from_the_summary() {
        assert_eq!(round_trips(r#"{"event":"interval"}"#), Ok(None));
        let summary = r#"{"event":"summary","rtt_ns":{"p50":431,"p99":500}}"#;
        assert_eq!(round_trips(summary), Ok(Some(vec![431.0, 500.0])));
        assert!(round_trips(r#"{"event":"summary","rtt_ns":null}"#).unwrap_err().contains("no ping was answered"));
    }

    #[test]
    fn the_error_names_the_failed_program() {
        let pair = PktGenPair { program: "/bin/false".into(), cores: Cores { tx: 0, rx: 0 } };
        let message = pair.rate(512, 60).unwrap_err();
        assert!(message.contains("pkt-gen -f") && message.contains("exit status: 1"), "{message}");
        let pair = PktGenPair { program: "/nowhere/pkt-gen".into(), ..pair };
        assert!(pair.round_trip().unwrap_err().contains("starting pkt-gen -f pong (/nowhere/pkt-gen)"));
    }
}
