// SPDX-License-Identifier: BSD-2-Clause
//! The peer of pipes: an `rte_ring` of DPDK between two processes, each on one core, which poll and never sleep.

use std::path::PathBuf;
use std::process::Command;

use crate::c_peers::DpdkPeers;
use crate::probe::Cores;
use crate::program::{INTERVAL, Running, parse_json, steady_mpps, stop_all};

/// The peer's label in the results.
pub(crate) const LABEL: &str = "dpdk-ring";
/// Time of a measured round trip, of which the first half warms up.
const ROUND_TRIPS: &str = "80";

/// The program, and the cores of its two processes.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    program: PathBuf,
    cores: Cores,
}

impl Ring {
    /// # Errors
    /// A sentence: DPDK's libraries are not installed.
    pub(crate) fn new(peers: &DpdkPeers, cores: Cores) -> Result<Ring, String> {
        Ok(Ring { program: peers.ring()?, cores })
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args([what, "-a", &format!("{},{}", self.cores.tx, self.cores.rx)]);
        command
    }

    /// Returns the rate at which packets of `len` bytes arrive that are sent in batches of `batch`, in Mpps.
    pub(crate) fn rate(&self, batch: u32, len: u16) -> Result<f64, String> {
        let (batch, len, interval) = (batch.to_string(), len.to_string(), INTERVAL.as_millis().to_string());
        let mut command = self.command("rate");
        command.args(["-b", &batch, "-l", &len, "-T", &interval]);
        let mut program = Running::start("ring rate", &mut command)?;
        let rate = steady_mpps(|| program.line());
        stop_all(rate, &mut [program])
    }

    /// Returns the mean round trip of one packet, in nanoseconds.
    pub(crate) fn round_trip(&self) -> Result<f64, String> {
        let mut program = Running::start("ring rtt", self.command("rtt").args(["-T", ROUND_TRIPS]))?;
        let mean = program.line().and_then(|line| {
            let mean = parse_json(&line)?["mean_ns"].as_f64();
            mean.ok_or_else(|| format!("bench: ring wrote `{line}`, which has no mean_ns"))
        });
        stop_all(mean, &mut [program])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_a_rate_and_a_round_trip() {
        let (Ok(cores), Ok(_)) = (Cores::first_two(), DpdkPeers::default().ring()) else {
            eprintln!("skipped: one processor, or no DPDK");
            return;
        };
        let peers = DpdkPeers::default();
        let ring = Ring::new(&peers, cores).unwrap();
        for (batch, len) in [(512, 60), (1, 1500)] {
            let mpps = ring.rate(batch, len).unwrap();
            assert!(mpps > 0.01 && mpps < 10_000.0, "{mpps}");
        }
        let ns = ring.round_trip().unwrap();
        assert!(ns > 10.0 && ns < 1e9, "{ns}");
    }
}
