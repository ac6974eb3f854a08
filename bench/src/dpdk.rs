// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks `memif` and `vhost`: DPDK's `testpmd` is at one end of shared memory, each way.
//!
//! ```text
//!   unetmap   testpmd == memif, vhost-user ==> unetmap memif|vm serve == switch ==> pkt-gen     and back
//!   dpdk      testpmd == memif, vhost-user ==> testpmd                                          and back
//!   ports     pkt-gen == switch ==> pkt-gen
//! ```
//! The rate is the one that the receiver counted. `testpmd` counts in seconds, so a sample takes some 10 s.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::benches::Bench;
use crate::pkt_gen::slots_of;
use crate::probe::Cores;
use crate::program::{self, Running, TIMEOUT, steady_mpps, stop_all};
use crate::vale::Switch;

/// The peers of the benchmarks.
pub(crate) const DPDK: &str = "dpdk";
pub(crate) const PORTS: &str = "ports";
/// Bytes of packets: a group of rows each.
pub(crate) const LENGTHS: [u16; 3] = [60, 1500, SEGMENTED];
/// Of a packet that a guest leaves to its card to cut into segments (TSO).
const SEGMENTED: u16 = 64_000;

const TESTPMD: &str = "dpdk-testpmd";
/// Seconds with traffic that are skipped, and that are measured.
const SKIPPED: usize = 1;
const MEASURED: usize = 2;
/// Fewer bytes in a second are not the measured stream.
const MIN_BYTES: f64 = 600_000.0;
/// Bytes of a buffer of `testpmd`, with its headroom; and the packet's, where it is longer.
const MBUF: u32 = 2176;
/// The address of `testpmd`, and of pkt-gen as the switch has learned it.
const ADDRESS: &str = "02:be:0c:00:02:00";
const PKT_GEN: &str = "02:be:0c:00:01:00";

/// How packets are shared with `testpmd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Memif,
    Vhost,
}

impl Link {
    /// The link of a benchmark.
    pub(crate) fn of(bench: Bench) -> Option<Link> {
        match bench {
            Bench::Memif => Some(Link::Memif),
            Bench::Vhost => Some(Link::Vhost),
            _ => None,
        }
    }

    /// The device of DPDK that connects to the socket, or listens there.
    fn device(self, socket: &Path, listens: bool) -> String {
        let at = socket.display();
        match (self, listens) {
            (Link::Memif, true) => format!("net_memif0,role=server,socket={at},socket-abstract=no,mac={ADDRESS}"),
            (Link::Memif, false) => format!("net_memif0,role=client,socket={at},socket-abstract=no,mac={ADDRESS}"),
            (Link::Vhost, true) => format!("net_vhost0,iface={at},queues=1"),
            (Link::Vhost, false) => format!("net_virtio_user0,path={at},queues=1,queue_size=1024,mac={ADDRESS}"),
        }
    }
}

/// What is measured, with packets of one length.
pub(crate) struct Dpdk {
    link: Link,
    len: u16,
    cores: Cores,
    switch: Rc<Switch>,
}

impl Dpdk {
    /// # Errors
    /// A sentence: `testpmd` is not installed.
    pub(crate) fn new(link: Link, len: u16, cores: Cores, switch: Rc<Switch>) -> Result<Rc<Dpdk>, String> {
        let missing = |_| format!("bench: {TESTPMD} is not installed (Debian: dpdk-dev, from Debian 13 dpdk)");
        program::find(TESTPMD).map_err(missing)?;
        Ok(Rc::new(Dpdk { link, len, cores, switch }))
    }

    fn folder(&self) -> PathBuf {
        self.switch.socket().parent().map(Path::to_owned).unwrap_or_default()
    }

    /// Starts `testpmd` on a processor, as a sender or a receiver.
    fn testpmd(&self, device: &str, cpu: usize, sends: bool) -> Result<Running, String> {
        let mut command = Command::new(TESTPMD);
        command.arg(format!("--lcores=0@{cpu},1@{cpu}"));
        command.args(["--no-huge", "-m", "512", "--no-shconf", "--no-pci", "--no-telemetry", "--vdev", device, "--"]);
        // Both rings are full of them at most, and the caches; 270 MB of the longest.
        let (mbufs, mbuf) = if self.len == SEGMENTED { (4096, u32::from(self.len) + 1000) } else { (16384, MBUF) };
        command.args([&format!("--total-num-mbufs={mbufs}"), &format!("--mbuf-size={mbuf}")]);
        command.args(["--stats-period", "1", "--txd=1024", "--rxd=1024"]);
        command.args(["--eth-peer", &format!("0,{PKT_GEN}"), &format!("--txpkts={}", self.len)]);
        command.arg(if sends { "--forward-mode=txonly" } else { "--forward-mode=rxonly" });
        Running::start(TESTPMD, &mut command)
    }

    /// From `testpmd` to `testpmd`, and back: Mpps.
    pub(crate) fn alone(&self) -> Result<Vec<f64>, String> {
        let run = |listener_sends: bool| {
            let path = self.folder().join(format!("{}-dpdk", self.switch.new_switch_name()));
            let [listens, connects] = [true, false].map(|listens| self.link.device(&path, listens));
            let Cores { tx, rx, .. } = self.cores;
            let listener = self.testpmd(&listens, if listener_sends { tx } else { rx }, listener_sends)?;
            let mut programs = vec![listener];
            let started = wait_for(&path, &mut programs[0])
                .and_then(|()| self.testpmd(&connects, if listener_sends { rx } else { tx }, !listener_sends));
            programs.push(started?);
            let mpps = self.testpmd_mpps(&mut programs[usize::from(listener_sends)]);
            // The one that connects first: the other one waits for it.
            programs.reverse();
            stop_all(mpps, &mut programs)
        };
        Ok(vec![run(false)?, run(true)?])
    }

    /// From `testpmd` through a switch to pkt-gen, and back: Mpps.
    pub(crate) fn through_switch(&self) -> Result<Vec<f64>, String> {
        let switch = self.switch.new_switch_name();
        let (path, port, other) = (self.folder().join(&switch), format!("{switch}:m"), format!("{switch}:b"));
        let socket = path.display().to_string();
        let words = match self.link {
            Link::Memif => ["memif", "serve", &port, "--memif", &socket],
            Link::Vhost => ["vm", "serve", &port, "--socket", &socket],
        };
        let mut command = Command::new(program::find("unetmap")?);
        let mut process =
            Running::start(words[..2].join(" "), command.args(words).env("UNETMAP_SOCKET", self.switch.socket()))?;
        wait_for(&path, &mut process)?;
        let device = self.link.device(&path, false);
        let receiver = self.switch.receiver(&other, 1)?;
        let mut programs = [self.testpmd(&device, self.cores.tx, true)?, receiver];
        let mpps = steady_mpps(|| programs[1].line());
        let forth = stop_all(mpps, &mut programs)?;

        let receiver = self.testpmd(&device, self.cores.rx, false)?;
        let len = self.len.to_string();
        let slots = slots_of(self.len);
        let more = ["-T", "0", "-b", "512", "-l", &len, "-F", &slots, "-D", ADDRESS];
        let mut programs = [self.switch.start("tx", &other, Some(self.cores.tx), &more)?, receiver];
        let mpps = self.testpmd_mpps(&mut programs[1]);
        let back = stop_all(mpps, &mut programs)?;
        process.stop()?;
        Ok(vec![forth, back])
    }

    /// Measures the rate at which a `testpmd` receives, Mpps.
    fn testpmd_mpps(&self, program: &mut Running) -> Result<f64, String> {
        let (mut rates, start, least) = (Vec::new(), Instant::now(), MIN_BYTES / f64::from(self.len));
        while rates.len() < SKIPPED + MEASURED {
            if start.elapsed() > TIMEOUT {
                return Err(format!("bench: {TESTPMD} received no packet in {} s", TIMEOUT.as_secs()));
            }
            rates.extend(received(&program.line()?).filter(|rate| *rate >= least));
        }
        Ok(rates[SKIPPED..].iter().sum::<f64>() / MEASURED as f64 / 1e6)
    }
}

/// Waits until a program listens at `path`.
pub(crate) fn wait_for(path: &Path, program: &mut Running) -> Result<(), String> {
    let start = Instant::now();
    while !path.exists() {
        program.check()?;
        if start.elapsed() > TIMEOUT {
            return Err(format!("bench: nothing listens at {} after {} s", path.display(), TIMEOUT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The packets per second in a line of the statistics.
fn received(line: &str) -> Option<f64> {
    line.trim_start().strip_prefix("Rx-pps:")?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_from_the_statistics() {
        assert_eq!(received("  Rx-pps:      1429862          Rx-bps:    732089736"), Some(1_429_862.0));
        assert_eq!(received("  Tx-pps:      1429862          Tx-bps:    732089736"), None);
    }
}
