// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks of the host stack behind host rings: TCP throughput through `bridge IF`, and the round trip of a
//! ping.
//!
//! ```text
//!    namespace near                                             namespace far
//!    stack -- [va] == host rings == bridge == queue == [va] -------------- [vb] -- stack
//!
//!    host-tcp, host-rtt             native XDP: unetmap's program runs in the driver
//!    host-tcp-mark, host-rtt-mark   generic XDP: the program runs before the stack; frames to the host have a mark
//! ```
//! The peer is the same veth pair without unetmap. In all measurements both ends compute checksums in software (`tx
//! off`), as for a link without checksum offload.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use lab::{Lab, Ns, VethOptions};
use tempfile::TempDir;

use crate::daemon::Daemon;
use crate::nic::start_daemon;
use crate::program::{self, Running, TIMEOUT, stop_all};
use crate::turns::RowName;
use crate::{Bench, labels, stats};

/// Label of the peer.
pub(crate) const VETH: &str = "veth";
/// The addresses of the two stacks.
const NEAR: &str = "10.9.0.1";
const FAR: &str = "10.9.0.2";
/// One write or read of a stream, bytes.
const PIECE: usize = 128 << 10;
/// Time until a stream has reached its speed, and time of the measurement after that.
const WARM_UP: Duration = Duration::from_millis(150);
const MEASURE: Duration = Duration::from_millis(250);
/// Pings of one sample. Each is sent when the reply to the one before has arrived, so that no side sleeps.
const PINGS: &str = "200";

/// The path between the two stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostPath {
    /// unetmap's bridge, with the XDP program in the driver.
    NativeXdp,
    /// unetmap's bridge, with the XDP program before the stack.
    GenericXdp,
    /// Only the veth pair.
    NoBridge,
}

impl HostPath {
    /// unetmap's paths, a row group each, and the suffix of the row names.
    pub(crate) const UNETMAP: [(HostPath, &'static str); 2] =
        [(HostPath::NativeXdp, ""), (HostPath::GenericXdp, "-mark")];

    pub(crate) fn label(self) -> &'static str {
        match self {
            HostPath::NativeXdp | HostPath::GenericXdp => labels::UNETMAP,
            HostPath::NoBridge => VETH,
        }
    }
}

/// Returns true if `bench` measures the host stack.
pub(crate) fn is_host(bench: Bench) -> bool {
    matches!(bench, Bench::HostTcp | Bench::HostRtt)
}

/// Returns the rows of a sample, in order.
pub(crate) fn rows(bench: Bench, name: &str) -> Vec<RowName> {
    let row = |suffix: &str, unit| RowName { name: format!("{name}{suffix}"), unit };
    match bench {
        Bench::HostTcp => vec![row("-out", "Gbit/s"), row("-in", "Gbit/s")],
        _ => vec![row("", "us")],
    }
}

/// The veth pair, the namespaces of its ends, and the daemons.
pub(crate) struct HostLab {
    /// In the order of [`HostPath::UNETMAP`]. Dropped before the interfaces that they use.
    daemons: [Daemon; 2],
    _lab: Lab,
    near: Ns,
    far: Ns,
    _folder: TempDir,
}

impl HostLab {
    pub(crate) fn new() -> Result<HostLab, String> {
        let lab = Lab::new()?;
        let (near, far) = (lab.namespace("near")?, lab.namespace("far")?);
        let addresses = Some(("10.9.0.1/24", "10.9.0.2/24"));
        lab.veth(&near, "va", &far, "vb", VethOptions { addresses, tx_checksum_off: true, ..Default::default() })?;
        let folder = tempfile::tempdir().map_err(|e| format!("a folder for the daemons: {e}"))?;
        let start = |admode: &str| start_daemon(folder.path(), "direct", admode);
        let daemons = [start("native")?, start("generic")?];
        Ok(HostLab { daemons, _lab: lab, near, far, _folder: folder })
    }

    /// Returns the environment variables for `--peer` commands.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        vec![("NETNS_NEAR", self.near.name().into()), ("NETNS_FAR", self.far.name().into())]
    }

    /// Measures one sample: a value for each of the rows.
    pub(crate) fn measure(&self, bench: Bench, path: HostPath) -> Result<Vec<f64>, String> {
        let mut programs = Vec::new();
        if let Some(at) = HostPath::UNETMAP.iter().position(|(ours, _)| *ours == path) {
            let mut command = self.near.command(program::find("bridge")?);
            command.env("UNETMAP_SOCKET", &self.daemons[at].socket).args(["-w", "0", "-i", "netmap:va"]);
            programs.push(Running::start("bridge", &mut command)?);
        }
        let found = self.settle(!programs.is_empty()).and_then(|()| match bench {
            Bench::HostTcp => {
                Ok(vec![self.stream(&self.near, &self.far, FAR)?, self.stream(&self.far, &self.near, NEAR)?])
            }
            _ => Ok(vec![self.ping()?]),
        });
        let found = stop_all(found, &mut programs)?;
        self.settle(false)?;
        Ok(found)
    }

    /// Waits until the bridge has the interface and the host rings, or until neither is attached any more.
    fn settle(&self, bridged: bool) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let links = self.near.ip(&["-j", "link", "show"])?;
            if links.contains("\"xdp\"") == bridged && links.contains("\"nmh") == bridged {
                return Ok(());
            }
            if start.elapsed() > TIMEOUT {
                let what = if bridged { "the bridge has not opened its ports" } else { "a port remains attached" };
                let (seconds, namespace) = (TIMEOUT.as_secs(), self.near.name());
                return Err(format!("bench: {what} after {seconds} s (namespace {namespace})"));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Measures the throughput of a TCP stream, in Gbit/s.
    fn stream(&self, from: &Ns, to: &Ns, address: &str) -> Result<f64, String> {
        let failed = |e: io::Error| format!("bench: a stream to {address}: {e}");
        let listener = to.run(|| TcpListener::bind((address, 0)))?.map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        let source = from.run(|| TcpStream::connect_timeout(&at, TIMEOUT))?.map_err(failed)?;
        let (sink, _) = listener.accept().map_err(failed)?;
        let arrived = AtomicU64::new(0);
        thread::scope(|scope| {
            // Both threads end when the connection is shut down.
            scope.spawn(|| while (&source).write_all(&[0; PIECE]).is_ok() {});
            scope.spawn(|| {
                let mut piece = vec![0; PIECE];
                while let Ok(n @ 1..) = (&sink).read(&mut piece) {
                    arrived.fetch_add(n as u64, Relaxed);
                }
            });
            let rate = steady_gbit_per_s(&arrived);
            for end in [&source, &sink] {
                // Fails if the other end was shut down first.
                let _ = end.shutdown(Shutdown::Both);
            }
            rate.ok_or_else(|| format!("bench: no data arrived on a stream to {address} in {} s", TIMEOUT.as_secs()))
        })
    }

    /// Measures the median round trip, in microseconds.
    fn ping(&self) -> Result<f64, String> {
        let text = self.near.tool("ping", &["-n", "-A", "-c", PINGS, "-w", "10", FAR])?;
        let times: Vec<f64> = text.lines().filter_map(round_trip_us).collect();
        if times.is_empty() {
            return Err(format!("bench: no ping to {FAR} was answered"));
        }
        Ok(stats::median(&times))
    }
}

/// Returns the rate of the counted bytes in Gbit/s, once some arrive; `None` if none arrive.
fn steady_gbit_per_s(arrived: &AtomicU64) -> Option<f64> {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        thread::sleep(WARM_UP);
        let (before, start) = (arrived.load(Relaxed), Instant::now());
        thread::sleep(MEASURE);
        let (bytes, time) = (arrived.load(Relaxed) - before, start.elapsed());
        if bytes > 0 {
            return Some(bytes as f64 * 8.0 / time.as_secs_f64() / 1e9);
        }
    }
    None
}

/// Parses a line of ping: the round trip in microseconds.
fn round_trip_us(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once("time=")?;
    rest.strip_suffix(" ms")?.parse().ok().map(|ms: f64| ms * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_parsed() {
        assert_eq!(round_trip_us("64 bytes from 10.9.0.2: icmp_seq=1 ttl=64 time=0.041 ms"), Some(41.0));
        assert_eq!(round_trip_us("PING 10.9.0.2 (10.9.0.2) 56(84) bytes of data."), None);
        assert_eq!(round_trip_us("rtt min/avg/max/mdev = 0.1/0.1/0.1/0.0 ms"), None);
    }

    #[test]
    fn the_veth_pair_without_bridge_can_be_measured() {
        if let Err(why) = Lab::new() {
            eprintln!("skipped: {why}");
            return;
        }
        let Ok(hosts) = HostLab::new() else {
            eprintln!("skipped: unetmapd is not built (`make` builds it)");
            return;
        };
        for bench in [Bench::HostTcp, Bench::HostRtt] {
            let found = hosts.measure(bench, HostPath::NoBridge).unwrap();
            assert_eq!(found.len(), rows(bench, "x").len());
            assert!(found.iter().all(|value| *value > 0.001 && *value < 1e6), "{found:?}");
        }
    }
}
