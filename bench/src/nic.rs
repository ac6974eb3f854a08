// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks of interfaces: sending, receiving, and forwarding from one interface to another.
//!
//! ```text
//!    namespace a        namespace b        namespace c
//!    [va] ------------- [vb]    [vc] ------------- [vd]
//!
//!    nic-tx   sends from va; vb counts
//!    nic-rx   the traffic source sends from va; the receiver at vb counts
//!    nic-fwd  the traffic source sends from va; a forwarder between vb and vc; vd counts
//! ```
//!
//! The links are veth pairs with one queue, which copy each packet. With veth the kernel's part of receiving runs on
//! the sender's core, for all implementations. All send 60 bytes, IPv4 and UDP, to an unused Ethernet address, so that
//! a stack drops the packets at once. No interface has an IP address, so no other packet is counted.

pub(crate) mod forwarders;
pub(crate) mod pcap;
mod pktgen;

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use lab::{Lab, Ns, VethOptions};
use tempfile::TempDir;

use crate::c_peers::{self, DpdkPeers};
use crate::daemon::Daemon;
use crate::firewall::{self, Case};
use crate::nic::forwarders::{KernelBridge, OpenVswitch};
pub(crate) use crate::nic::forwarders::{no_openvswitch, no_openvswitch_dpdk};
use crate::nic::pktgen::Pktgen;
pub(crate) use crate::nic::pktgen::no_pktgen;
use crate::probe::Cores;
use crate::program::{self, INTERVAL, MEASURED_INTERVALS, Running, SKIPPED_INTERVALS, TIMEOUT, steady_mpps, stop_all};
use crate::seqpacket::on_core;
use crate::{Bench, labels};

/// The code of the packet, which the peers with DPDK's libraries have, too.
pub(crate) const PACKET_HEADER: (&str, &str) = ("packet.h", include_str!("../peers/packet.h"));
/// The program of the peers and of the traffic source. The first file includes the others.
const SOURCES: [(&str, &str); 6] = [
    ("nic.c", include_str!("../peers/nic.c")),
    ("nic_common.h", include_str!("../peers/nic_common.h")),
    PACKET_HEADER,
    ("nic_afxdp.h", include_str!("../peers/nic_afxdp.h")),
    ("nic_af_packet.h", include_str!("../peers/nic_af_packet.h")),
    ("nic_libpcap.h", include_str!("../peers/nic_libpcap.h")),
];
/// The sender for receivers and forwarders: the fastest of the peers.
const TRAFFIC_SOURCE: Implementation = Implementation::Peer("afxdp");
/// The destination address of all packets, which no interface has. The peers have it in `packet`.
pub(crate) const UNUSED_MAC: &str = "02:00:00:00:00:99";
/// Time until the kernel has detached the XDP program of a process that exited.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// An implementation that sends, receives or forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implementation {
    /// unetmap's tools with direct access: the socket is in their process.
    Direct,
    /// unetmap's tools with mediated access: the daemon owns the socket, and copies.
    Mediated,
    /// pkt-gen as a plain receiver.
    Plain,
    /// An implementation in the program of the peers.
    Peer(&'static str),
    /// The kernel's bridge; forwards only.
    KernelBridge,
    /// DPDK's driver for AF_XDP.
    Dpdk,
    /// Open vSwitch in user space, on AF_PACKET; forwards only.
    OpenVswitch,
    /// Open vSwitch with DPDK's driver for AF_XDP; forwards only.
    OpenVswitchDpdk,
    /// The kernel's packet generator; sends only.
    Pktgen,
}

impl Implementation {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Implementation::Direct => labels::UNETMAP,
            Implementation::Mediated => "mediated",
            Implementation::Plain => "plain",
            Implementation::Peer(label) => label,
            Implementation::KernelBridge => "kernel-bridge",
            Implementation::Dpdk => "dpdk-af_xdp",
            Implementation::OpenVswitch => "openvswitch",
            Implementation::OpenVswitchDpdk => "openvswitch-dpdk",
            Implementation::Pktgen => "pktgen",
        }
    }

    /// Returns true if it takes a second and more to start: too long for a quick report.
    pub(crate) fn is_slow(self) -> bool {
        matches!(self, Implementation::OpenVswitch | Implementation::OpenVswitchDpdk)
    }

    /// Returns the contestants of a benchmark, unetmap first; none if the benchmark does not measure interfaces.
    pub(crate) fn of(bench: Bench) -> &'static [Implementation] {
        use Implementation::{Direct, Dpdk, KernelBridge, Mediated, OpenVswitch, OpenVswitchDpdk, Peer, Pktgen, Plain};
        match bench {
            Bench::NicTx => &[
                Direct,
                Mediated,
                Peer("afxdp"),
                Peer("af_packet"),
                Peer("sendmmsg"),
                Peer("tx_ring"),
                Peer("libpcap"),
                Dpdk,
                Pktgen,
            ],
            Bench::NicRx => &[
                Direct,
                Mediated,
                Peer("afxdp"),
                Peer("af_packet"),
                Peer("recvmmsg"),
                Peer("tpacket_v3"),
                Peer("libpcap"),
                Dpdk,
            ],
            Bench::NicTxBatch | Bench::NicTxSize => &[Direct, Peer("afxdp"), Peer("sendmmsg")],
            Bench::NicRxSize => &[Direct, Peer("afxdp"), Peer("recvmmsg")],
            Bench::NicFwd => {
                &[Direct, Mediated, Peer("afxdp"), KernelBridge, Peer("libpcap"), Dpdk, OpenVswitch, OpenVswitchDpdk]
            }
            Bench::Lb | Bench::Scrub => &[Direct, Plain],
            _ => &[],
        }
    }
}

/// The traffic that is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Bytes of a packet.
    pub(crate) len: u16,
    /// Packets of a batch; `None`: the implementation's own.
    pub(crate) batch: Option<u32>,
}

impl Load {
    /// The packets of most benchmarks.
    pub(crate) const SMALL: Load = Load { len: 60, batch: None };

    /// Returns the options, which all programs have in common.
    fn options(self) -> Vec<String> {
        let mut options = vec!["-l".to_owned(), self.len.to_string()];
        options.extend(self.batch.iter().flat_map(|batch| ["-b".to_owned(), batch.to_string()]));
        options
    }
}

/// The role of the measured implementation.
#[derive(Clone, Copy, Debug)]
enum Role {
    Tx,
    Rx,
    Fwd,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Tx => "tx",
            Role::Rx => "rx",
            Role::Fwd => "fwd",
        }
    }

    fn interfaces(self) -> &'static [&'static str] {
        match self {
            Role::Tx => &["va"],
            Role::Rx => &["vb"],
            Role::Fwd => &["vb", "vc"],
        }
    }
}

/// The network and the programs.
pub(crate) struct NicLab {
    /// The daemons with direct and with mediated access, once they are started. Dropped before the interfaces that they
    /// use.
    pub(crate) daemons: Option<[Daemon; 2]>,
    _lab: Lab,
    pub(crate) a: Ns,
    pub(crate) b: Ns,
    c: Ns,
    at_b: RxCounter,
    at_d: RxCounter,
    pub(crate) cores: Cores,
    peers: PathBuf,
    dpdk: Rc<DpdkPeers>,
    /// Error of the peers' program if this machine has no libpcap.
    no_libpcap: Option<String>,
    folder: TempDir,
}

impl NicLab {
    /// Creates the network and compiles the peers. Starts no daemons.
    pub(crate) fn new(cores: Cores, dpdk: Rc<DpdkPeers>) -> Result<NicLab, String> {
        let lab = Lab::new()?;
        let [a, b, c] = [lab.namespace("a")?, lab.namespace("b")?, lab.namespace("c")?];
        lab.veth(&a, "va", &b, "vb", VethOptions::default())?;
        lab.veth(&b, "vc", &c, "vd", VethOptions::default())?;
        let folder = tempfile::tempdir().map_err(|e| format!("a folder for the program of peers: {e}"))?;
        let peers = compile(folder.path())?;
        let has =
            Command::new(&peers).args(["has", "libpcap"]).output().map_err(|e| format!("nic has libpcap: {e}"))?;
        let message = String::from_utf8_lossy(&has.stderr).trim().to_string();
        Ok(NicLab {
            at_b: RxCounter::new(&b, "vb")?,
            at_d: RxCounter::new(&c, "vd")?,
            no_libpcap: (!has.status.success()).then_some(message),
            daemons: None,
            _lab: lab,
            a,
            b,
            c,
            cores,
            peers,
            dpdk,
            folder,
        })
    }

    /// Starts the daemons, which the unetmap contestants need.
    pub(crate) fn with_daemons(mut self) -> Result<NicLab, String> {
        let start = |access| start_daemon(self.folder.path(), access, "best");
        self.daemons = Some([start("direct")?, start("mediated")?]);
        Ok(self)
    }

    /// Returns why `implementation` cannot run on this machine, if so.
    pub(crate) fn unavailable(&self, implementation: Implementation) -> Option<String> {
        match implementation {
            Implementation::Peer("libpcap") => self.no_libpcap.clone(),
            Implementation::Dpdk => self.dpdk.devices().err(),
            Implementation::OpenVswitch => forwarders::no_openvswitch(),
            Implementation::OpenVswitchDpdk => forwarders::no_openvswitch_dpdk(),
            Implementation::Pktgen => pktgen::no_pktgen(),
            _ => None,
        }
    }

    /// Returns the environment variables for `--peer` commands.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let namespace = |ns: &Ns| ns.name().to_string();
        vec![("NETNS_A", namespace(&self.a)), ("NETNS_B", namespace(&self.b)), ("NETNS_C", namespace(&self.c))]
    }

    /// Measures one sample, in Mpps.
    pub(crate) fn measure(&self, bench: Bench, implementation: Implementation, load: Load) -> Result<f64, String> {
        self.settle()?;
        match bench {
            Bench::NicTx | Bench::NicTxBatch | Bench::NicTxSize => self.tx(implementation, load),
            Bench::NicRx | Bench::NicRxSize => self.rx(implementation, load),
            Bench::Lb | Bench::Scrub => self.measure_lb_scrub(bench, implementation),
            _ => self.fwd(implementation),
        }
    }

    fn tx(&self, implementation: Implementation, load: Load) -> Result<f64, String> {
        let pktgen = (implementation == Implementation::Pktgen).then(|| Pktgen::new(&self.a, "va", self.cores.tx));
        let mut programs = [match &pktgen {
            Some(pktgen) => pktgen.start(load)?,
            None => self.start(Role::Tx, implementation, load)?,
        }];
        let rate = self.at_b.rate(&mut programs);
        stop_all(rate, &mut programs)
    }

    fn rx(&self, implementation: Implementation, load: Load) -> Result<f64, String> {
        let receiver = self.start(Role::Rx, implementation, Load::SMALL)?;
        let mut programs = [receiver, self.start(Role::Tx, TRAFFIC_SOURCE, load)?];
        let rate = steady_mpps(|| {
            programs[1].check()?;
            programs[0].line()
        });
        stop_all(rate, &mut programs)
    }

    fn fwd(&self, implementation: Implementation) -> Result<f64, String> {
        let mut programs = Vec::new();
        let (mut bridge, mut openvswitch) = (None, None);
        match implementation {
            Implementation::KernelBridge => bridge = Some(KernelBridge::make(&self.b)?),
            Implementation::OpenVswitch | Implementation::OpenVswitchDpdk => {
                let dpdk = implementation == Implementation::OpenVswitchDpdk;
                openvswitch = Some(OpenVswitch::start(&self.b, self.cores.rx, dpdk)?);
            }
            _ => programs.push(self.start(Role::Fwd, implementation, Load::SMALL)?),
        }
        programs.push(self.start(Role::Tx, TRAFFIC_SOURCE, Load::SMALL)?);
        let rate = self.at_d.rate(&mut programs);
        let rate = stop_all(rate, &mut programs);
        openvswitch.map_or(Ok(()), OpenVswitch::stop).and(bridge.map_or(Ok(()), KernelBridge::remove)).and(rate)
    }

    /// Measures `unetmap-fw` or `unetmap emulate`, `bridge`, or the kernel's bridge between the interfaces, in Mpps.
    pub(crate) fn forward(&self, case: Case, label: &str) -> Result<f64, String> {
        self.settle()?;
        if label == firewall::BRIDGE {
            return self.fwd(Implementation::Direct);
        }
        let mut programs = Vec::new();
        let mut bridge = None;
        if label == labels::UNETMAP {
            let mut command = case.command(&self.folder, ["netmap:vb", "netmap:vc"], Some(&self.b))?;
            command.env("UNETMAP_SOCKET", self.socket(Implementation::Direct)?);
            programs
                .push(on_core(self.cores.rx, || Running::start("the program between the interfaces", &mut command))?);
        } else {
            bridge = Some(KernelBridge::make(&self.b)?);
            if let Err(why) = case.set_kernel_up(label, &self.folder, &self.b) {
                Case::set_kernel_down(&self.b);
                return Err(why);
            }
        }
        programs.push(self.start(Role::Tx, TRAFFIC_SOURCE, Load::SMALL)?);
        let rate = self.at_d.rate(&mut programs);
        let rate = stop_all(rate, &mut programs);
        if bridge.is_some() {
            Case::set_kernel_down(&self.b);
        }
        bridge.map_or(Ok(()), KernelBridge::remove).and(rate)
    }

    /// Returns why the kernel cannot do what a row of `fw` or `emulate` asks, if so.
    pub(crate) fn kernel_can(&self, case: Case, peer: &str) -> Result<(), String> {
        let can = case.set_kernel_up(peer, &self.folder, &self.b);
        Case::set_kernel_down(&self.b);
        can
    }

    /// Returns the socket of the daemon with mediated access for `Mediated`, else of the one with direct access.
    fn socket(&self, implementation: Implementation) -> Result<&Path, String> {
        let daemons = self.daemons.as_ref().ok_or("bench: the daemons are not started")?;
        Ok(&daemons[usize::from(implementation == Implementation::Mediated)].socket)
    }

    /// Waits until no XDP program is attached: the kernel detaches it a little after its owner has exited.
    fn settle(&self) -> Result<(), String> {
        let deadline = Instant::now() + SETTLE_LIMIT;
        for ns in [&self.a, &self.b] {
            while ns.ip(&["-j", "link", "show"])?.contains("\"xdp\"") {
                if Instant::now() > deadline {
                    let name = ns.name();
                    return Err(format!("bench: an XDP program remains attached in the namespace {name}"));
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Starts a program. Senders run on the first core, receivers and forwarders on the second.
    fn start(&self, role: Role, implementation: Implementation, load: Load) -> Result<Running, String> {
        let (ns, cpu) = match role {
            Role::Tx => (&self.a, self.cores.tx),
            Role::Rx | Role::Fwd => (&self.b, self.cores.rx),
        };
        let (processor, interval) = (cpu.to_string(), INTERVAL.as_millis().to_string());
        let ports: Vec<String> = role.interfaces().iter().map(|name| format!("netmap:{name}")).collect();
        // Only receivers print reports.
        let every = if matches!(role, Role::Rx) { &*interval } else { "0" };
        let unetmap_tool = |tool: &str| -> Result<Command, String> {
            let mut command = ns.command(program::find(tool)?);
            command.env("UNETMAP_SOCKET", self.socket(implementation)?);
            Ok(command)
        };
        match (implementation, role) {
            (Implementation::Direct | Implementation::Mediated, Role::Fwd) => {
                let mut command = unetmap_tool("bridge")?;
                command.args(["-w", "0", "-i", &ports[0], "-i", &ports[1]]);
                // bridge has no option for the processor, but inherits it from this thread.
                on_core(cpu, || Running::start("bridge", &mut command))
            }
            (Implementation::Direct | Implementation::Mediated, _) => {
                let mut command = unetmap_tool("pkt-gen")?;
                command.args(["-i", &ports[0], "-f", role.name(), "-a", &processor, "-w", "0", "--json", "-T", every]);
                command.args(["-D", UNUSED_MAC]);
                if matches!(role, Role::Tx) {
                    command.args(load.options());
                }
                Running::start(format!("pkt-gen -f {}", role.name()), &mut command)
            }
            (Implementation::Dpdk, _) => {
                let devices = role.interfaces().iter().enumerate();
                let devices = devices.map(|(i, interface)| format!("net_af_xdp{i},iface={interface}"));
                let mut command = ns.command(self.dpdk.devices()?);
                command.args([role.name(), "-a", &processor, "-T", every]).args(load.options()).args(devices);
                Running::start(format!("dpdk {}", role.name()), &mut command)
            }
            _ => {
                let mut command = ns.command(&self.peers);
                command
                    .args([role.name(), implementation.label(), "-a", &processor, "-T", every])
                    .args(load.options())
                    .args(role.interfaces());
                Running::start(format!("nic {} {}", role.name(), implementation.label()), &mut command)
            }
        }
    }
}

/// Starts a daemon that grants only the given access to interfaces, independent of this machine's policy.
pub(crate) fn start_daemon(folder: &Path, access: &str, admode: &str) -> Result<Daemon, String> {
    let [socket, policy] = ["sock", "toml"].map(|end| folder.join(format!("{access}-{admode}.{end}")));
    let rule = format!("[[rule]]\nports = [\"*\"]\npipes = true\nusers = [\"*\"]\naccess = \"{access}\"\n");
    fs::write(&policy, rule).map_err(|e| format!("{}: {e}", policy.display()))?;
    let more = ["--policy".as_ref(), policy.as_ref(), "--admode".as_ref(), admode.as_ref()];
    Daemon::start(&format!("unetmapd --policy {access}.toml --admode {admode}"), socket, &more)
}

/// Compiles the peers into `folder`.
fn compile(folder: &Path) -> Result<PathBuf, String> {
    c_peers::compile(folder, "nic", &SOURCES, &["-ldl".into()])
}

/// Reads the number of packets that an interface has received, without starting a program.
struct RxCounter {
    interface: String,
    /// `/proc/net/dev` of the interface's namespace: the namespace of the opener, not of the reader.
    counters: File,
}

impl RxCounter {
    fn new(ns: &Ns, interface: &str) -> Result<RxCounter, String> {
        let path = "/proc/thread-self/net/dev";
        let counters = ns.run(|| File::open(path))?.map_err(|e| format!("{path}: {e}"))?;
        Ok(RxCounter { interface: interface.into(), counters })
    }

    fn packets(&self) -> Result<u64, String> {
        let failed = |e: String| format!("bench: the counters of {}: {e}", self.interface);
        let mut text = String::new();
        let mut file = &self.counters;
        file.rewind().and_then(|()| file.read_to_string(&mut text)).map_err(|e| failed(e.to_string()))?;
        received(&text, &self.interface).ok_or_else(|| failed("there are none".into()))
    }

    /// Measures the packets that arrive in 60 ms, after 40 ms in which the caches fill, in Mpps. Measures again if none
    /// arrive, because another process had the processor. Fails if a sender has exited.
    fn rate(&self, senders: &mut [Running]) -> Result<f64, String> {
        let start = Instant::now();
        let mut before = self.packets()?;
        while start.elapsed() < TIMEOUT {
            senders.iter_mut().try_for_each(Running::check)?;
            if self.packets()? == before {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            thread::sleep(INTERVAL * SKIPPED_INTERVALS as u32);
            let start = Instant::now();
            before = self.packets()?;
            thread::sleep(INTERVAL * MEASURED_INTERVALS as u32);
            let (time, packets) = (start.elapsed(), self.packets()? - before);
            if packets > 0 {
                return Ok(packets as f64 / time.as_secs_f64() / 1e6);
            }
        }
        Err(format!("bench: no packet arrived at {} in {} s", self.interface, TIMEOUT.as_secs()))
    }
}

/// Parses `/proc/net/dev`: the packets that `interface` has received.
fn received(text: &str, interface: &str) -> Option<u64> {
    let counters = |line: &str| line.trim_start().strip_prefix(interface)?.strip_prefix(':').map(String::from);
    text.lines().find_map(counters)?.split_whitespace().nth(1)?.parse().ok()
}

/// Returns interfaces for a test that sends as fast as it can; holds a lock so that only one such test runs. Prints the
/// reason and returns `None` if this machine does not allow it.
#[cfg(test)]
fn lab_for_test() -> Option<(std::sync::MutexGuard<'static, ()>, NicLab)> {
    static EXCLUSIVE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let Ok(cores) = Cores::first_two() else {
        eprintln!("skipped: this machine has one processor");
        return None;
    };
    if let Err(why) = Lab::new() {
        eprintln!("skipped: {why}");
        return None;
    }
    // A test that panicked has reported its failure itself.
    let alone = EXCLUSIVE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Some((alone, NicLab::new(cores, Rc::default()).unwrap()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BENCHES: [Bench; 3] = [Bench::NicTx, Bench::NicRx, Bench::NicFwd];

    #[test]
    fn unetmap_is_first_and_labels_are_unique() {
        for bench in BENCHES {
            let found: Vec<_> = Implementation::of(bench).iter().map(|i| i.label()).collect();
            assert_eq!(found[0], labels::UNETMAP);
            assert!(found.iter().enumerate().all(|(i, label)| !found[..i].contains(label)), "{found:?}");
        }
        assert_eq!(Implementation::of(Bench::Pipe), []);
    }

    #[test]
    fn counters_are_parsed() {
        let text = "Inter-|   Receive\n face |bytes    packets errs\n    lo:       1       2    3\n   va1: 9 8 7\n    va:   50      6    0 0\n";
        assert_eq!(received(text, "lo"), Some(2));
        assert_eq!(received(text, "va"), Some(6));
        assert_eq!(received(text, "va1"), Some(8));
        assert_eq!(received(text, "v"), None);
        assert_eq!(received("", "lo"), None);
    }

    #[test]
    fn the_peers_compile_without_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let program = compile(folder.path()).unwrap();
        let mut strict = Command::new("cc");
        strict.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]).arg(folder.path().join("nic.c"));
        assert!(strict.status().unwrap().success());
        for wrong in [
            &["tx", "nothing", "lo"][..],
            &["tx", "afxdp", "-l", "9", "lo"],
            &["tx", "afxdp", "-b", "0", "lo"],
            &["rx", "afxdp"],
            &["fwd", "afxdp", "lo"],
            &["tx", "-x"],
            &[],
        ] {
            assert_eq!(Command::new(&program).args(wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
        }
    }

    #[test]
    fn every_peer_has_a_rate_and_leaves_nothing_attached() {
        let Some((_alone, nics)) = lab_for_test() else { return };
        for bench in BENCHES {
            let is_unetmap = |i: &Implementation| matches!(i, Implementation::Direct | Implementation::Mediated);
            for &implementation in Implementation::of(bench).iter().filter(|i| !is_unetmap(i)) {
                if let Some(why) = nics.unavailable(implementation) {
                    eprintln!("skipped {}: {why}", implementation.label());
                    continue;
                }
                let mpps = nics
                    .measure(bench, implementation, Load::SMALL)
                    .unwrap_or_else(|e| panic!("{}: {e}", implementation.label()));
                assert!(mpps > 0.001 && mpps < 1000.0, "{} {}: {mpps}", bench.name(), implementation.label());
            }
        }
        nics.settle().unwrap();
        assert!(!nics.b.ip(&["link", "show"]).unwrap().contains("br0"));
    }
}
