// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks of two pkt-gen processes with a pipe between them.

use std::path::PathBuf;
use std::process::Command;

use crate::one_core::SLOTS;
use crate::probe::Cores;
use crate::program::{self, INTERVAL, Running, parse_json, steady_mpps, stop_all};

/// Round trips of one sample.
const PINGS: u32 = 50_000;

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
    /// Sends packets of 60 B as fast as possible, in batches of `batch`; returns the receiver's rate in Mpps.
    pub(crate) fn rate(&self, batch: u32) -> Result<f64, String> {
        let interval = INTERVAL.as_millis().to_string();
        let rx = self.start("rx", "}1", self.cores.rx, &["-T", &interval])?;
        let tx = self.start("tx", "{1", self.cores.tx, &["-T", "0", "-b", &batch.to_string()])?;
        let mut programs = [tx, rx];
        let sample = steady_mpps(|| programs[1].line());
        stop_all(sample, &mut programs)
    }

    /// Sends one packet there and back, with both sides busy-waiting; returns the median in nanoseconds.
    pub(crate) fn round_trip(&self) -> Result<f64, String> {
        let pong = self.start("pong", "}1", self.cores.rx, &["-T", "0"])?;
        let ping = self.start("ping", "{1", self.cores.tx, &["-T", "0", "-n", &PINGS.to_string()])?;
        let mut programs = [ping, pong];
        let median = (|| {
            loop {
                if let Some(ns) = median_rtt(&programs[0].line()?)? {
                    return Ok(ns);
                }
            }
        })();
        stop_all(median, &mut programs)
    }

    fn start(&self, what: &str, end: &str, cpu: usize, more: &[&str]) -> Result<Running, String> {
        let port = format!("netmap:bench{}{end}", std::process::id());
        let (slots, cpu) = (format!("{SLOTS},{SLOTS}"), cpu.to_string());
        let mut command = Command::new(&self.program);
        command.args(["-i", &port, "-f", what, "-a", &cpu, "-C", &slots, "-w", "0", "--json"]).args(more);
        Running::start(format!("pkt-gen -f {what}"), &mut command)
    }
}

/// Parses the median of ping's summary, ns; `None` for other lines.
pub(crate) fn median_rtt(line: &str) -> Result<Option<f64>, String> {
    let value = parse_json(line)?;
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

    #[test]
    fn the_median_is_parsed_from_the_summary() {
        assert_eq!(median_rtt(r#"{"event":"interval"}"#), Ok(None));
        assert_eq!(median_rtt(r#"{"event":"summary","rtt_ns":{"p50":431}}"#), Ok(Some(431.0)));
        assert!(median_rtt(r#"{"event":"summary","rtt_ns":null}"#).unwrap_err().contains("no ping was answered"));
    }

    #[test]
    fn the_error_names_the_failed_program() {
        let pair = PktGenPair { program: "/bin/false".into(), cores: Cores { tx: 0, rx: 0 } };
        let message = pair.rate(512).unwrap_err();
        assert!(message.contains("pkt-gen -f") && message.contains("exit status: 1"), "{message}");
        let pair = PktGenPair { program: "/nowhere/pkt-gen".into(), ..pair };
        assert!(pair.round_trip().unwrap_err().contains("starting pkt-gen -f pong (/nowhere/pkt-gen)"));
    }
}
