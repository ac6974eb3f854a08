// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks `memif` and `vhost`: a program with DPDK's drivers is at one end of shared memory, each way.
//!
//! ```text
//!   unetmap   dpdk == memif, vhost-user ==> unetmap memif|vm serve == switch ==> pkt-gen     and back
//!   dpdk      dpdk == memif, vhost-user ==> dpdk                                             and back
//!   ports     pkt-gen == switch ==> pkt-gen
//! ```
//! The rate is the one that the receiver counted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::benches::Bench;
use crate::c_peers::DpdkPeers;
use crate::pkt_gen::slots_of;
use crate::probe::Cores;
use crate::program::{self, INTERVAL, Running, TIMEOUT, steady_mpps, stop_all};
use crate::vale::Switch;

/// The peers of the benchmarks.
pub(crate) const DPDK: &str = "dpdk";
pub(crate) const PORTS: &str = "ports";
/// Bytes of packets: a group of rows each.
pub(crate) const LENGTHS: [u16; 3] = [60, 1500, SEGMENTED];
/// Of a packet that a guest leaves to its card to cut into segments (TSO).
const SEGMENTED: u16 = 64_000;

/// The address of the program with DPDK, and of pkt-gen as the switch has learned it.
const ADDRESS: &str = "02:be:0c:00:02:00";
const PKT_GEN: &str = "02:be:0c:00:01:00";

/// How packets are shared with a program with DPDK.
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

/// The measurement, with packets of one length.
pub(crate) struct Dpdk {
    link: Link,
    len: u16,
    cores: Cores,
    switch: Rc<Switch>,
    program: PathBuf,
}

impl Dpdk {
    /// # Errors
    /// A sentence: DPDK's libraries are not installed.
    pub(crate) fn new(
        link: Link,
        len: u16,
        cores: Cores,
        switch: Rc<Switch>,
        peers: &DpdkPeers,
    ) -> Result<Rc<Dpdk>, String> {
        Ok(Rc::new(Dpdk { link, len, cores, switch, program: peers.devices()? }))
    }

    fn folder(&self) -> PathBuf {
        self.switch.socket().parent().map(Path::to_owned).unwrap_or_default()
    }

    fn start(&self, device: &str, cpu: usize, sends: bool) -> Result<Running, String> {
        start(&self.program, self.len, device, cpu, sends)
    }

    /// From one program with DPDK to another, and back: Mpps.
    pub(crate) fn alone(&self) -> Result<Vec<f64>, String> {
        let run = |listener_sends: bool| {
            let path = self.folder().join(format!("{}-dpdk", self.switch.new_switch_name()));
            let devices = [true, false].map(|listens| self.link.device(&path, listens));
            between(&self.program, self.len, self.cores, devices.each_ref(), &path, listener_sends)
        };
        Ok(vec![run(false)?, run(true)?])
    }

    /// From a program with DPDK through a switch to pkt-gen, and back: Mpps.
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
        let mut programs = [self.start(&device, self.cores.tx, true)?, receiver];
        let mpps = steady_mpps(|| programs[1].line());
        let forth = stop_all(mpps, &mut programs)?;

        let receiver = self.start(&device, self.cores.rx, false)?;
        let len = self.len.to_string();
        let slots = slots_of(self.len);
        let more = ["-T", "0", "-b", "512", "-l", &len, "-F", &slots, "-D", ADDRESS];
        let mut programs = [self.switch.start("tx", &other, Some(self.cores.tx), &more)?, receiver];
        let mpps = steady_mpps(|| programs[1].line());
        let back = stop_all(mpps, &mut programs)?;
        process.stop()?;
        Ok(vec![forth, back])
    }
}

/// Starts a program with DPDK on a processor, as a sender or a receiver.
fn start(program: &Path, len: u16, device: &str, cpu: usize, sends: bool) -> Result<Running, String> {
    let (role, every) = if sends { ("tx", "0".into()) } else { ("rx", INTERVAL.as_millis().to_string()) };
    let (cpu, len) = (cpu.to_string(), len.to_string());
    let mut command = Command::new(program);
    command.args([role, "-a", &cpu, "-l", &len, "-D", PKT_GEN, "-T", &every, device]);
    Running::start(format!("dpdk {role}"), &mut command)
}

/// Measures packets between two programs with DPDK, the first of whose devices listens at `path`: Mpps.
fn between(
    program: &Path,
    len: u16,
    Cores { tx, rx, .. }: Cores,
    [listens, connects]: [&String; 2],
    path: &Path,
    listener_sends: bool,
) -> Result<f64, String> {
    let [first, second] = if listener_sends { [tx, rx] } else { [rx, tx] };
    let mut listener = start(program, len, listens, first, listener_sends)?;
    wait_for(path, &mut listener)?;
    let mut programs = [start(program, len, connects, second, !listener_sends)?, listener];
    let receiver = usize::from(!listener_sends);
    match steady_mpps(|| programs[receiver].line()) {
        // Both are killed: DPDK's memif may fault in one that sends while its peer ends.
        Ok(mpps) => Ok(mpps),
        Err(e) => stop_all(Err(e), &mut programs),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_dpdk_exchange_packets_without_unetmap() {
        let (Ok(cores), peers) = (Cores::first_two(), DpdkPeers::default()) else {
            return eprintln!("skipped: this machine has one processor");
        };
        if let Err(why) = peers.devices() {
            return eprintln!("skipped: {why}");
        }
        let folder = tempfile::tempdir().unwrap();
        let exchange = |link: Link, len, number: usize| {
            let devices = [true, false].map(|listens| link.device(&folder.path().join(number.to_string()), listens));
            let program = peers.devices().unwrap();
            between(
                &program,
                len,
                cores,
                [&devices[0], &devices[1]],
                &folder.path().join(number.to_string()),
                number == 1,
            )
        };
        for (number, (link, len)) in
            [(Link::Memif, 60), (Link::Memif, SEGMENTED), (Link::Vhost, 60), (Link::Vhost, SEGMENTED)]
                .into_iter()
                .enumerate()
        {
            let mpps = exchange(link, len, number).unwrap_or_else(|e| panic!("{link:?} {len}: {e}"));
            assert!(mpps > 0.0001 && mpps < 10_000.0, "{link:?} {len}: {mpps}");
        }
    }
}
