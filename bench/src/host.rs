//! The host's stack behind host rings: what TCP carries through `bridge IF`, and how long a ping takes.
//!
//! ```text
//!    namespace near                                             namespace far
//!    stack -- [va] == host rings == bridge == queue == [va] -------------- [vb] -- stack
//!
//!    host-tcp, host-rtt             our XDP program is in the driver
//!    host-tcp-mark, host-rtt-mark   it is before the stack: frames to the host carry a mark
//! ```
//! The peer is the same cable without us. For all who are measured both ends compute checksums themselves (`tx off`), as on
//! a wire that has nobody else to do it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use lab::{Lab, Ns, VethOptions};
use tempfile::TempDir;

use crate::contest::RowName;
use crate::daemon::Daemon;
use crate::nic::start_daemon;
use crate::program::{self, PATIENCE, Running, conclude};
use crate::{Bench, US, stats};

/// What the peer is called.
pub(crate) const CABLE: &str = "veth";
/// The addresses of the two stacks.
const NEAR: &str = "10.9.0.1";
const FAR: &str = "10.9.0.2";
/// One write or read of a stream, bytes.
const PIECE: usize = 128 << 10;
/// A stream is at its speed after this time, and is measured for the next one.
const WARM_UP: Duration = Duration::from_millis(150);
const MEASURE: Duration = Duration::from_millis(250);
/// Pings of one sample. Each leaves when the answer to the one before is there, so that nobody sleeps.
const PINGS: &str = "200";

/// Who is on the way between the stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A bridge of ours, the XDP program in the driver.
    Native,
    /// The same before the stack.
    Mark,
    /// Nobody.
    Cable,
}

impl Way {
    /// Our ways, a row group each: with what is put behind the benchmark's name.
    pub(crate) const OURS: [(Way, &'static str); 2] = [(Way::Native, ""), (Way::Mark, "-mark")];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Way::Native | Way::Mark => US,
            Way::Cable => CABLE,
        }
    }
}

/// Whether `bench` is about the host's stack.
pub(crate) fn is_host(bench: Bench) -> bool {
    matches!(bench, Bench::HostTcp | Bench::HostRtt)
}

/// What a sample has, in this order.
pub(crate) fn rows(bench: Bench, name: &str) -> Vec<RowName> {
    let row = |suffix: &str, unit| RowName { name: format!("{name}{suffix}"), unit };
    match bench {
        Bench::HostTcp => vec![row("-out", "Gbit/s"), row("-in", "Gbit/s")],
        _ => vec![row("", "us")],
    }
}

/// The cable, its stacks, and the daemons.
pub(crate) struct Hosts {
    /// By [`Way::OURS`]. Dropped before the interfaces that they have.
    daemons: [Daemon; 2],
    _lab: Lab,
    near: Ns,
    far: Ns,
    _folder: TempDir,
}

impl Hosts {
    pub(crate) fn new() -> Result<Hosts, String> {
        let lab = Lab::new()?;
        let (near, far) = (lab.namespace("near")?, lab.namespace("far")?);
        let addresses = Some(("10.9.0.1/24", "10.9.0.2/24"));
        lab.veth(&near, "va", &far, "vb", VethOptions { addresses, tx_checksum_off: true, ..Default::default() })?;
        let folder = tempfile::tempdir().map_err(|e| format!("a folder for the daemons: {e}"))?;
        let start = |admode: &str| start_daemon(folder.path(), "direct", admode);
        let daemons = [start("native")?, start("generic")?];
        Ok(Hosts { daemons, _lab: lab, near, far, _folder: folder })
    }

    /// What a peer of others needs to know, as variables of its environment.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        vec![("NETNS_NEAR", self.near.name().into()), ("NETNS_FAR", self.far.name().into())]
    }

    /// One sample: a value for each of the rows.
    pub(crate) fn measure(&self, bench: Bench, way: Way) -> Result<Vec<f64>, String> {
        let mut programs = Vec::new();
        if let Some(at) = Way::OURS.iter().position(|(ours, _)| *ours == way) {
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
        let found = conclude(found, &mut programs)?;
        self.settle(false)?;
        Ok(found)
    }

    /// Waits until the bridge has the interface and the host rings, or until neither is left.
    fn settle(&self, bridged: bool) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let links = self.near.ip(&["-j", "link", "show"])?;
            if links.contains("\"xdp\"") == bridged && links.contains("\"nmh") == bridged {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                let what = if bridged { "the bridge does not get its ports" } else { "something stays attached" };
                return Err(format!("bench: {what} ({})", self.near.name()));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What a stream carries, Gbit/s.
    fn stream(&self, from: &Ns, to: &Ns, address: &str) -> Result<f64, String> {
        let said = |e: io::Error| format!("bench: a stream to {address}: {e}");
        let listener = to.run(|| TcpListener::bind((address, 0)))?.map_err(said)?;
        let at = listener.local_addr().map_err(said)?;
        let source = from.run(|| TcpStream::connect_timeout(&at, PATIENCE))?.map_err(said)?;
        let (sink, _) = listener.accept().map_err(said)?;
        let arrived = AtomicU64::new(0);
        thread::scope(|scope| {
            // Both end when the connection does.
            scope.spawn(|| while (&source).write_all(&[0; PIECE]).is_ok() {});
            scope.spawn(|| {
                let mut piece = vec![0; PIECE];
                while let Ok(n @ 1..) = (&sink).read(&mut piece) {
                    arrived.fetch_add(n as u64, Relaxed);
                }
            });
            let rate = steady(&arrived);
            for end in [&source, &sink] {
                // The other one may have been faster.
                let _ = end.shutdown(Shutdown::Both);
            }
            rate.ok_or_else(|| format!("bench: a stream to {address} stands still"))
        })
    }

    /// The median round trip, in microseconds.
    fn ping(&self) -> Result<f64, String> {
        let text = self.near.tool("ping", &["-n", "-A", "-c", PINGS, "-w", "10", FAR])?;
        let times: Vec<f64> = text.lines().filter_map(round_trip_us).collect();
        if times.is_empty() {
            return Err(format!("bench: no ping to {FAR} was answered"));
        }
        Ok(stats::median(&times))
    }
}

/// Gbit/s of the bytes that are counted, once they flow; `None`: they do not.
fn steady(arrived: &AtomicU64) -> Option<f64> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
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

/// The microseconds in a line of ping's.
fn round_trip_us(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once("time=")?;
    rest.strip_suffix(" ms")?.parse().ok().map(|ms: f64| ms * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_found_in_the_text() {
        assert_eq!(round_trip_us("64 bytes from 10.9.0.2: icmp_seq=1 ttl=64 time=0.041 ms"), Some(41.0));
        assert_eq!(round_trip_us("PING 10.9.0.2 (10.9.0.2) 56(84) bytes of data."), None);
        assert_eq!(round_trip_us("rtt min/avg/max/mdev = 0.1/0.1/0.1/0.0 ms"), None);
    }

    #[test]
    fn the_cable_has_its_figures() {
        if let Err(why) = Lab::new() {
            eprintln!("skipped: {why}");
            return;
        }
        let Ok(hosts) = Hosts::new() else {
            eprintln!("skipped: there is no unetmapd yet (`make` builds it)");
            return;
        };
        for bench in [Bench::HostTcp, Bench::HostRtt] {
            let found = hosts.measure(bench, Way::Cable).unwrap();
            assert_eq!(found.len(), rows(bench, "x").len());
            assert!(found.iter().all(|value| *value > 0.001 && *value < 1e6), "{found:?}");
        }
    }
}
