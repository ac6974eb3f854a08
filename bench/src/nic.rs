//! Interfaces: what leaves one, what arrives at one, what crosses from one to another.
//!
//! ```text
//!    namespace a        namespace b        namespace c
//!    [va] ------------- [vb]    [vc] ------------- [vd]
//!
//!    nic-tx   sends from va; vb counts
//!    nic-rx   the feeder sends from va; the receiver at vb counts
//!    nic-fwd  the feeder sends from va; a forwarder between vb and vc; vd counts
//! ```
//!
//! The cables are veth with one queue, everything is copied. Here the kernel's part of receiving is done on the
//! sender's core, for all alike. All send 60 bytes, IPv4 and UDP, to an Ethernet address that nobody has: what a stack
//! receives it drops at once. No interface has an address, so no other packet is counted.

pub(crate) mod pcap;

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lab::{Lab, Ns, VethOptions};
use tempfile::TempDir;

use crate::daemon::Daemon;
use crate::probe::Cores;
use crate::program::{self, INTERVAL, KEEP, PATIENCE, Running, SKIP, conclude, steady_mpps};
use crate::seqpacket::on_core;
use crate::{Bench, US};

/// The peers, and the feeder: one program.
const SOURCE: &str = include_str!("../peers/nic.c");
/// Who feeds receivers and forwarders: the fastest sender there is.
const FEEDER: Who = Who::Peer("afxdp");
/// Where ours sends to, as `SOURCE` does.
pub(crate) const NOBODY: &str = "02:00:00:00:00:99";
/// A program that was attached to an interface is gone after this time.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// Who sends, receives or forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Our tools, which run the interface's socket themselves.
    Ours,
    /// Our tools, for which the daemon runs it, and copies.
    Mediated,
    /// pkt-gen, which does nothing but receive.
    Plain,
    /// A way of the program of peers.
    Peer(&'static str),
    /// The bridge that the kernel has; it forwards only.
    KernelBridge,
}

impl Who {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Who::Ours => US,
            Who::Mediated => "mediated",
            Who::Plain => "plain",
            Who::Peer(label) => label,
            Who::KernelBridge => "kernel-bridge",
        }
    }

    /// Who competes, ours first; nobody where the benchmark is not about interfaces.
    pub(crate) fn all(bench: Bench) -> &'static [Who] {
        use Who::{KernelBridge, Mediated, Ours, Peer, Plain};
        match bench {
            Bench::NicTx => {
                &[Ours, Mediated, Peer("afxdp"), Peer("af_packet"), Peer("sendmmsg"), Peer("tx_ring"), Peer("libpcap")]
            }
            Bench::NicRx => &[
                Ours,
                Mediated,
                Peer("afxdp"),
                Peer("af_packet"),
                Peer("recvmmsg"),
                Peer("tpacket_v3"),
                Peer("libpcap"),
            ],
            Bench::NicFwd => &[Ours, Mediated, Peer("afxdp"), KernelBridge, Peer("libpcap")],
            Bench::Lb | Bench::Scrub => &[Ours, Plain],
            _ => &[],
        }
    }
}

/// What one does who is measured.
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

/// The network, and the programs.
pub(crate) struct Nics {
    /// For ours and for mediated, once they are started. Dropped before the interfaces that they have.
    pub(crate) daemons: Option<[Daemon; 2]>,
    _lab: Lab,
    pub(crate) a: Ns,
    pub(crate) b: Ns,
    c: Ns,
    at_b: Meter,
    at_d: Meter,
    pub(crate) cores: Cores,
    peers: PathBuf,
    /// Why this machine has no libpcap.
    no_libpcap: Option<String>,
    folder: TempDir,
}

impl Nics {
    /// Lays the cables and compiles the peers: all that is needed but our own daemons.
    pub(crate) fn new(cores: Cores) -> Result<Nics, String> {
        let lab = Lab::new()?;
        let [a, b, c] = [lab.namespace("a")?, lab.namespace("b")?, lab.namespace("c")?];
        lab.veth(&a, "va", &b, "vb", VethOptions::default())?;
        lab.veth(&b, "vc", &c, "vd", VethOptions::default())?;
        let folder = tempfile::tempdir().map_err(|e| format!("a folder for the program of peers: {e}"))?;
        let peers = compile(folder.path())?;
        let has =
            Command::new(&peers).args(["has", "libpcap"]).output().map_err(|e| format!("nic has libpcap: {e}"))?;
        let said = String::from_utf8_lossy(&has.stderr).trim().to_string();
        Ok(Nics {
            at_b: Meter::new(&b, "vb")?,
            at_d: Meter::new(&c, "vd")?,
            no_libpcap: (!has.status.success()).then_some(said),
            daemons: None,
            _lab: lab,
            a,
            b,
            c,
            cores,
            peers,
            folder,
        })
    }

    /// Starts the daemons, so that ours can compete.
    pub(crate) fn with_daemons(mut self) -> Result<Nics, String> {
        let start = |access| start_daemon(self.folder.path(), access, "best");
        self.daemons = Some([start("direct")?, start("mediated")?]);
        Ok(self)
    }

    /// A sentence if `who` cannot compete on this machine.
    pub(crate) fn lacks(&self, who: Who) -> Option<&str> {
        if who == Who::Peer("libpcap") { self.no_libpcap.as_deref() } else { None }
    }

    /// What a peer of others needs to know, as variables of its environment.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let namespace = |ns: &Ns| ns.name().to_string();
        vec![("NETNS_A", namespace(&self.a)), ("NETNS_B", namespace(&self.b)), ("NETNS_C", namespace(&self.c))]
    }

    /// One sample, in Mpps.
    pub(crate) fn measure(&self, bench: Bench, who: Who) -> Result<f64, String> {
        self.settle()?;
        match bench {
            Bench::NicTx => self.tx(who),
            Bench::NicRx => self.rx(who),
            Bench::Lb | Bench::Scrub => self.behind(bench, who),
            _ => self.fwd(who),
        }
    }

    fn tx(&self, who: Who) -> Result<f64, String> {
        let mut programs = [self.start(Role::Tx, who)?];
        let rate = self.at_b.rate(&mut programs);
        conclude(rate, &mut programs)
    }

    fn rx(&self, who: Who) -> Result<f64, String> {
        let receiver = self.start(Role::Rx, who)?;
        let mut programs = [receiver, self.start(Role::Tx, FEEDER)?];
        let rate = steady_mpps(|| {
            programs[1].check()?;
            programs[0].line()
        });
        conclude(rate, &mut programs)
    }

    fn fwd(&self, who: Who) -> Result<f64, String> {
        let mut programs = Vec::new();
        let mut bridge = None;
        if who == Who::KernelBridge {
            bridge = Some(KernelBridge::make(&self.b)?);
        } else {
            programs.push(self.start(Role::Fwd, who)?);
        }
        programs.push(self.start(Role::Tx, FEEDER)?);
        let rate = self.at_d.rate(&mut programs);
        let rate = conclude(rate, &mut programs);
        bridge.map_or(Ok(()), KernelBridge::remove).and(rate)
    }

    /// Where the daemon of ours, or of the mediated, listens.
    fn socket(&self, who: Who) -> Result<&Path, String> {
        let daemons = self.daemons.as_ref().ok_or("bench: the daemons are not started")?;
        Ok(&daemons[usize::from(who == Who::Mediated)].socket)
    }

    /// Waits until no XDP program is attached any more: that is undone a little after its owner's end.
    fn settle(&self) -> Result<(), String> {
        let deadline = Instant::now() + SETTLE_LIMIT;
        for ns in [&self.a, &self.b] {
            while ns.ip(&["-j", "link", "show"])?.contains("\"xdp\"") {
                if Instant::now() > deadline {
                    let name = ns.name();
                    return Err(format!("bench: an XDP program stays attached in the namespace {name}"));
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Senders run on the first core, receivers and forwarders on the second.
    fn start(&self, role: Role, who: Who) -> Result<Running, String> {
        let (ns, cpu) = match role {
            Role::Tx => (&self.a, self.cores.tx),
            Role::Rx | Role::Fwd => (&self.b, self.cores.rx),
        };
        let (processor, interval) = (cpu.to_string(), INTERVAL.as_millis().to_string());
        let ports: Vec<String> = role.interfaces().iter().map(|name| format!("netmap:{name}")).collect();
        // Only what a receiver counts is asked for.
        let every = if matches!(role, Role::Rx) { &*interval } else { "0" };
        let ours = |tool: &str| -> Result<Command, String> {
            let mut command = ns.command(program::find(tool)?);
            command.env("UNETMAP_SOCKET", self.socket(who)?);
            Ok(command)
        };
        match (who, role) {
            (Who::Ours | Who::Mediated, Role::Fwd) => {
                let mut command = ours("bridge")?;
                command.args(["-w", "0", "-i", &ports[0], "-i", &ports[1]]);
                // It has no option for the processor, but it inherits ours.
                on_core(cpu, || Running::start("bridge", &mut command))
            }
            (Who::Ours | Who::Mediated, _) => {
                let mut command = ours("pkt-gen")?;
                command.args(["-i", &ports[0], "-f", role.name(), "-a", &processor, "-w", "0", "--json", "-T", every]);
                command.args(["-D", NOBODY]);
                Running::start(format!("pkt-gen -f {}", role.name()), &mut command)
            }
            _ => {
                let mut command = ns.command(&self.peers);
                command.args([role.name(), who.label(), "-a", &processor, "-T", every]).args(role.interfaces());
                Running::start(format!("nic {} {}", role.name(), who.label()), &mut command)
            }
        }
    }
}

/// A daemon of our own that hands out interfaces in one way only, whatever this machine's policy says.
pub(crate) fn start_daemon(folder: &Path, access: &str, admode: &str) -> Result<Daemon, String> {
    let [socket, policy] = ["sock", "toml"].map(|end| folder.join(format!("{access}-{admode}.{end}")));
    let rule = format!("[[rule]]\nports = [\"*\"]\npipes = true\nusers = [\"*\"]\naccess = \"{access}\"\n");
    fs::write(&policy, rule).map_err(|e| format!("{}: {e}", policy.display()))?;
    let more = ["--policy".as_ref(), policy.as_ref(), "--admode".as_ref(), admode.as_ref()];
    Daemon::start(&format!("unetmapd --policy {access}.toml --admode {admode}"), socket, &more)
}

/// A bridge of the kernel between `vb` and `vc`.
struct KernelBridge<'a>(&'a Ns);

impl KernelBridge<'_> {
    fn make(ns: &Ns) -> Result<KernelBridge<'_>, String> {
        // It must not speak by itself.
        ns.ip(&["link", "add", "name", "br0", "type", "bridge", "mcast_snooping", "0"])?;
        let made = KernelBridge(ns);
        // Where a firewall looks at bridges it would look here, too, with no rule to obey, and cost time.
        ns.run(|| fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "0"))?
            .or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
            .map_err(|e| format!("bench: bridge-nf-call-iptables: {e}"))?;
        for name in ["vb", "vc"] {
            ns.ip(&["link", "set", name, "master", "br0"])?;
        }
        ns.ip(&["link", "set", "br0", "up"])?;
        Ok(made)
    }

    /// Removes it, and tells if it could not.
    fn remove(self) -> Result<(), String> {
        self.0.ip(&["link", "del", "br0"]).map(|_| std::mem::forget(self))
    }
}

impl Drop for KernelBridge<'_> {
    fn drop(&mut self) {
        // Something else has failed and is told.
        let _ = self.0.ip(&["link", "del", "br0"]);
    }
}

/// Compiles the peers into `folder`.
fn compile(folder: &Path) -> Result<PathBuf, String> {
    compile_with(folder, "nic", SOURCE, &["-ldl"])
}

/// Compiles a program into `folder`, with `more` arguments.
fn compile_with(folder: &Path, name: &str, text: &str, more: &[&str]) -> Result<PathBuf, String> {
    let failed = |e: String| format!("bench: compiling {name}.c: {e}");
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&source, text).map_err(|e| failed(e.to_string()))?;
    let flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread"];
    let mut cc = Command::new("cc");
    cc.args(flags).arg("-o").arg(&program).arg(&source).args(more);
    let output = cc.output().map_err(|e| failed(format!("cc: {e} (apt-get install gcc)")))?;
    if output.status.success() {
        return Ok(program);
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(failed(said.lines().find(|line| line.contains("error")).unwrap_or("cc failed").to_string()))
}

/// Reads how many packets an interface has received, without starting a program.
struct Meter {
    interface: String,
    /// The counters of all interfaces of a namespace, whoever reads them.
    counters: File,
}

impl Meter {
    fn new(ns: &Ns, interface: &str) -> Result<Meter, String> {
        let path = "/proc/thread-self/net/dev";
        let counters = ns.run(|| File::open(path))?.map_err(|e| format!("{path}: {e}"))?;
        Ok(Meter { interface: interface.into(), counters })
    }

    fn packets(&self) -> Result<u64, String> {
        let failed = |e: String| format!("bench: the counters of {}: {e}", self.interface);
        let mut text = String::new();
        let mut file = &self.counters;
        file.rewind().and_then(|()| file.read_to_string(&mut text)).map_err(|e| failed(e.to_string()))?;
        received(&text, &self.interface).ok_or_else(|| failed("there are none".into()))
    }

    /// Packets that arrive in 60 ms, after 40 ms in which caches fill, in Mpps; an error once one of those who send
    /// has ended. Where none arrives, as when somebody else had the processor, it begins again.
    fn rate(&self, senders: &mut [Running]) -> Result<f64, String> {
        let start = Instant::now();
        let mut before = self.packets()?;
        while start.elapsed() < PATIENCE {
            senders.iter_mut().try_for_each(Running::check)?;
            if self.packets()? == before {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            thread::sleep(INTERVAL * SKIP as u32);
            let start = Instant::now();
            before = self.packets()?;
            thread::sleep(INTERVAL * KEEP as u32);
            let (time, packets) = (start.elapsed(), self.packets()? - before);
            if packets > 0 {
                return Ok(packets as f64 / time.as_secs_f64() / 1e6);
            }
        }
        Err(format!("bench: no packet came to {} in {} s", self.interface, PATIENCE.as_secs()))
    }
}

/// The received packets of `interface`, from the text of `/proc/net/dev`.
fn received(text: &str, interface: &str) -> Option<u64> {
    let counters = |line: &str| line.trim_start().strip_prefix(interface)?.strip_prefix(':').map(String::from);
    text.lines().find_map(counters)?.split_whitespace().nth(1)?.parse().ok()
}

/// Interfaces for a test that sends as fast as it can, as long as no other does; `None`, and why, where there can be none.
#[cfg(test)]
fn for_a_test() -> Option<(std::sync::MutexGuard<'static, ()>, Nics)> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let Ok(cores) = Cores::first_two() else {
        eprintln!("skipped: this machine has one processor");
        return None;
    };
    if let Err(why) = Lab::new() {
        eprintln!("skipped: {why}");
        return None;
    }
    // One that failed has told so itself.
    let alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Some((alone, Nics::new(cores).unwrap()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BENCHES: [Bench; 3] = [Bench::NicTx, Bench::NicRx, Bench::NicFwd];

    #[test]
    fn ours_is_first_and_each_label_is_there_once() {
        for bench in BENCHES {
            let labels: Vec<_> = Who::all(bench).iter().map(|who| who.label()).collect();
            assert_eq!(labels[0], US);
            assert!(labels.iter().enumerate().all(|(i, label)| !labels[..i].contains(label)), "{labels:?}");
        }
        assert_eq!(Who::all(Bench::Pipe), []);
    }

    #[test]
    fn counters_are_found_in_the_text() {
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
        for wrong in [&["tx", "nothing", "lo"][..], &["rx", "afxdp"], &["fwd", "afxdp", "lo"], &["tx", "-x"], &[]] {
            assert_eq!(Command::new(&program).args(wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
        }
    }

    #[test]
    fn every_peer_has_a_rate_and_leaves_nothing_attached() {
        let Some((_alone, nics)) = for_a_test() else { return };
        for bench in BENCHES {
            for &who in Who::all(bench).iter().filter(|who| !matches!(who, Who::Ours | Who::Mediated)) {
                if let Some(why) = nics.lacks(who) {
                    eprintln!("left out {}: {why}", who.label());
                    continue;
                }
                let mpps = nics.measure(bench, who).unwrap_or_else(|e| panic!("{}: {e}", who.label()));
                assert!(mpps > 0.001 && mpps < 1000.0, "{} {}: {mpps}", bench.name(), who.label());
            }
        }
        nics.settle().unwrap();
        assert!(!nics.b.ip(&["link", "show"]).unwrap().contains("br0"));
    }
}
