// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks `fw` and `emulate`: the programs between two pipes and between two interfaces, against `bridge`
//! there, and against the kernel's bridge with its own rules and queues.
//!
//! ```text
//!    pkt-gen ==pipe== [unetmap-fw, unetmap emulate, bridge] ==pipe== pkt-gen
//!    [va] ---- [vb]   [the same, or the kernel's bridge]     [vc] ---- [vd]
//! ```
//! The measured program has the second core for itself; both pkt-gen share the first one.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use lab::Ns;
use tempfile::TempDir;
use unetmap_sys::clock;

use crate::Bench;
use crate::one_core::SLOTS;
use crate::probe::Cores;
use crate::program::{self, INTERVAL, Running, parse_json, steady_mpps, stop_all};
use crate::seqpacket::{join, on_core};

/// `bridge` between the same ports.
pub(crate) const BRIDGE: &str = "bridge";
/// A thread that looks at the clock.
pub(crate) const CLOCK: &str = "clock";
/// The kernel's bridge with rules of nftables.
pub(crate) const NFTABLES: &str = "nftables";
/// The kernel's bridge with filters of tc.
pub(crate) const TC: &str = "tc";
/// The kernel's bridge with netem.
pub(crate) const NETEM: &str = "netem";

/// Sources of one flow, of 1024, and of about a million.
const ONE: &str = "10.0.0.1:1024-10.0.0.1:1024";
const THOUSAND: &str = "10.0.0.1:1-10.0.0.1:1024";
const MILLION: &str = "10.0.0.1:1-10.0.0.16:65535";
/// Time until all flows of a row are known.
const WARM_UP: Duration = Duration::from_millis(800);
/// Delay of the emulated links.
const DELAY: &str = "1ms";
/// Time that the clock is looked at.
const CLOCK_TIME: Duration = Duration::from_secs(2);
/// The packets whose delays are measured: a million per second, for two seconds.
const LATE_STREAM: &str = "[[stream]]\nname = \"late\"\nsize = 60\nrate = \"1Mpps\"\ncount = 2_000_000\n";

/// The subject of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// So many rules, of which the last one admits all packets.
    Rules(u32),
    /// A state for each of a million flows.
    States,
    /// Translation of 1024 flows.
    Nat,
    /// A link with a delay.
    Delay,
    /// How late packets of such a link are.
    Late,
    /// FQ-CoDel with 1024 flows.
    FqCodel,
}

impl Case {
    /// Returns the rows of a benchmark.
    pub(crate) fn of(bench: Bench) -> &'static [Case] {
        match bench {
            Bench::Fw => {
                &[Case::Rules(1), Case::Rules(10), Case::Rules(100), Case::Rules(1000), Case::States, Case::Nat]
            }
            Bench::FwNic => &[Case::Rules(1), Case::Rules(100), Case::Rules(1000)],
            Bench::Emulate => &[Case::Delay, Case::Late, Case::FqCodel],
            Bench::EmulateNic => &[Case::Delay],
            _ => &[],
        }
    }

    /// Returns the end of the row's name.
    pub(crate) fn name(self) -> String {
        match self {
            Case::Rules(n) => n.to_string(),
            Case::States => "states".into(),
            Case::Nat => "nat".into(),
            Case::Delay => "delay".into(),
            Case::Late => "delay-late".into(),
            Case::FqCodel => "fq-codel".into(),
        }
    }

    fn sources(self) -> &'static str {
        match self {
            Case::States => MILLION,
            Case::Nat | Case::FqCodel => THOUSAND,
            Case::Rules(_) | Case::Delay | Case::Late => ONE,
        }
    }

    /// Returns the rules of `unetmap-fw`; none for an emulated link.
    fn rules(self) -> Option<String> {
        let refused = |n: u32| {
            (1..n).fold(String::new(), |mut text, i| {
                let _ = writeln!(text, "add deny udp from 172.16.{}.{} to any {}", i >> 8, i & 255, 2000 + i);
                text
            })
        };
        match self {
            Case::Rules(n) => Some(refused(n) + "add allow ip from any to any\n"),
            Case::States => Some("add allow udp from any to any keep-state\n".into()),
            Case::Nat => Some("nat 1 config ip 203.0.113.1\nadd nat 1 ip from any to any\n".into()),
            Case::Delay | Case::Late | Case::FqCodel => None,
        }
    }

    /// Returns a command that moves packets between two ports as the row asks.
    pub(crate) fn command(self, folder: &TempDir, ports: [&str; 2], ns: Option<&Ns>) -> Result<Command, String> {
        let of = |name: &str| {
            let path = program::find(name)?;
            Ok::<_, String>(ns.map_or_else(|| Command::new(&path), |ns| ns.command(&path)))
        };
        let Some(rules) = self.rules() else {
            let mut command = of("unetmap")?;
            command.arg("emulate").args(ports).args(["-w", "0", "--json"]);
            match self {
                Case::FqCodel => command.args(["--aqm", "fq-codel"]),
                _ => command.args(["--delay", DELAY, "--queue", "100000"]),
            };
            return Ok(command);
        };
        let path = folder.path().join("rules");
        fs::write(&path, rules).map_err(|e| format!("bench: {}: {e}", path.display()))?;
        let mut command = of("unetmap-fw")?;
        command.args(ports).args(["-w", "0", "--states", "1200000", "--rules"]).arg(path);
        command.arg("--control").arg(folder.path().join("control"));
        Ok(command)
    }

    /// Returns the kernel's peers of the row.
    pub(crate) fn kernel(self) -> &'static [&'static str] {
        match self {
            Case::Rules(_) => &[NFTABLES, TC],
            Case::Delay => &[NETEM],
            Case::States | Case::Nat | Case::Late | Case::FqCodel => &[],
        }
    }

    /// Sets the kernel up to do the same between the ports of a bridge.
    ///
    /// # Errors
    /// Why the kernel cannot, and what brings what is missing.
    pub(crate) fn set_kernel_up(self, peer: &str, folder: &TempDir, ns: &Ns) -> Result<(), String> {
        self.try_set_kernel_up(peer, folder, ns).map_err(|why| match what_brings(peer, &why) {
            Some(what) => format!("{what} ({why})"),
            None => why,
        })
    }

    fn try_set_kernel_up(self, peer: &str, folder: &TempDir, ns: &Ns) -> Result<(), String> {
        let Case::Rules(n) = self else {
            return ns
                .tool("tc", &["qdisc", "add", "dev", "vc", "root", "netem", "delay", DELAY, "limit", "100000"])
                .map(drop);
        };
        let sources = (1..n).map(|i| (format!("172.16.{}.{}", i >> 8, i & 255), 2000 + i));
        let path = folder.path().join("kernel");
        let mut text = String::new();
        if peer == NFTABLES {
            text += "table bridge bench {\nchain forward {\ntype filter hook forward priority 0;\n";
            for (source, port) in sources {
                let _ = writeln!(text, "ip saddr {source} udp dport {port} drop");
            }
            text += "accept\n}\n}\n";
        } else {
            text += "qdisc add dev vb clsact\n";
            for (source, port) in sources {
                let key = format!("match ip src {source}/32 match ip dport {port} 0xffff");
                let _ = writeln!(text, "filter add dev vb ingress protocol ip u32 {key} action drop");
            }
        }
        fs::write(&path, text).map_err(|e| format!("bench: {}: {e}", path.display()))?;
        let path = path.display().to_string();
        let args = if peer == NFTABLES { ["-f", &path] } else { ["-batch", &path] };
        ns.tool(if peer == NFTABLES { "nft" } else { "tc" }, &args).map(drop)
    }

    /// Removes what [`Case::set_kernel_up`] made, as far as it was.
    pub(crate) fn set_kernel_down(ns: &Ns) {
        for (tool, args) in [
            ("nft", &["delete", "table", "bridge", "bench"][..]),
            ("tc", &["qdisc", "del", "dev", "vb", "clsact"]),
            ("tc", &["qdisc", "del", "dev", "vc", "root"]),
        ] {
            // What was not made cannot be removed.
            let _ = ns.tool(tool, args);
        }
    }
}

/// Returns what a machine lacks, and what brings it, by the error of the tool that sets a peer up.
fn what_brings(peer: &str, why: &str) -> Option<&'static str> {
    let is_missing = why.contains("(os error 2)");
    let names = |texts: &[&str]| texts.iter().any(|text| why.contains(text));
    Some(match peer {
        NFTABLES if is_missing => "nft is not installed: apt-get install nftables",
        _ if is_missing => "tc is not installed: apt-get install iproute2",
        NFTABLES if names(&["Could not process rule", "not supported", "No such file"]) => {
            "the kernel has no rules for bridges: CONFIG_NF_TABLES and CONFIG_NF_TABLES_BRIDGE (module nf_tables)"
        }
        NETEM if names(&["qdisc kind is unknown", "No such file"]) => {
            "the kernel has no netem: CONFIG_NET_SCH_NETEM (module sch_netem; on cloud images linux-modules-extra or a \
             generic kernel)"
        }
        TC if names(&["qdisc kind is unknown"]) => {
            "the kernel has no clsact: CONFIG_NET_SCH_INGRESS (module sch_ingress)"
        }
        TC if names(&["classifier"]) => "the kernel has no u32: CONFIG_NET_CLS_U32 (module cls_u32)",
        TC if names(&["action module", "act_gact"]) => {
            "the kernel has no action `drop`: CONFIG_NET_ACT_GACT (module act_gact)"
        }
        _ => return None,
    })
}

/// The rows between pipes.
pub(crate) struct Pipes {
    case: Case,
    cores: Cores,
    folder: TempDir,
    pkt_gen: PathBuf,
}

impl Pipes {
    pub(crate) fn new(case: Case, cores: Cores) -> Result<Pipes, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("bench: a folder for rules: {e}"))?;
        Ok(Pipes { case, cores, folder, pkt_gen: program::find("pkt-gen")? })
    }

    fn port(end: &str) -> String {
        format!("netmap:bench{}fw{end}", std::process::id())
    }

    /// Measures the rate through the program or through `bridge`, in Mpps; for [`Case::Late`] by how many us the 99th
    /// of 100 packets is late, or would be if a thread only looked at the clock.
    pub(crate) fn measure(&self, is_peer: bool) -> Result<Vec<f64>, String> {
        let value = match (self.case, is_peer) {
            (Case::Late, false) => self.late(),
            (Case::Late, true) => late_by_clock(self.cores),
            _ => self.rate(is_peer),
        };
        value.map(|value| vec![value])
    }

    fn ports() -> [String; 2] {
        [Self::port("}1"), Self::port("{2")]
    }

    fn rate(&self, bridge: bool) -> Result<f64, String> {
        let ports = Self::ports();
        let mut middle = match bridge {
            false => self.case.command(&self.folder, [&ports[0], &ports[1]], None)?,
            true => {
                let mut command = Command::new(program::find("bridge")?);
                command.args(["-w", "0", "-i", &ports[0], "-i", &ports[1]]);
                command
            }
        };
        let interval = INTERVAL.as_millis().to_string();
        let sender = ["-T", "0", "-l", "60", "-s", self.case.sources()];
        let mut programs = [
            on_core(self.cores.rx, || Running::start("the program between the pipes", &mut middle))?,
            self.pkt_gen("rx", "}2", &["-T", &interval])?,
            self.pkt_gen("tx", "{1", &sender)?,
        ];
        let warm_up = if self.case == Case::States { WARM_UP } else { Duration::ZERO };
        let begin = Instant::now();
        let mpps = (|| {
            while begin.elapsed() < warm_up {
                programs[1].line()?;
            }
            steady_mpps(|| programs[1].line())
        })();
        programs.reverse();
        stop_all(mpps, &mut programs)
    }

    /// Measures how late packets are. One thread, which never sleeps, sends and receives: of two on one core the
    /// receiver would wait for its turn, and packets for the receiver.
    fn late(&self) -> Result<f64, String> {
        let [from, to] = Self::ports();
        let mut link = self.case.command(&self.folder, [&from, &to], None)?;
        let streams = self.folder.path().join("streams.toml");
        fs::write(&streams, LATE_STREAM).map_err(|e| format!("bench: {}: {e}", streams.display()))?;
        let mut generator = Command::new(&self.pkt_gen);
        generator.args(["-i", &Self::port("{1"), &format!("--receive={}", Self::port("}2")), "--one-thread"]);
        generator.args(["-w", "0", "--json", "--streams"]).arg(&streams);
        let mut link = on_core(self.cores.rx, || Running::start("the program between the pipes", &mut link))?;
        // Its first line means that its ports are open: the sender would catch up afterwards, with all that waits.
        link.line()?;
        let generator = on_core(self.cores.tx, || Running::start("pkt-gen --streams", &mut generator))?;
        let mut programs = [generator, link];
        while programs[0].line().is_ok() {}
        stop_all(Ok(()), &mut programs)?;
        let mut late = None;
        while let Ok(line) = programs[1].line().and_then(|line| parse_json(&line)) {
            late = line["ways"]["out"]["late_us"]["p99"].as_f64().or(late);
        }
        late.ok_or_else(|| "bench: unetmap emulate did not say how late packets were".into())
    }

    fn pkt_gen(&self, what: &str, end: &str, more: &[&str]) -> Result<Running, String> {
        let (slots, cpu) = (format!("{SLOTS},{SLOTS}"), self.cores.tx.to_string());
        let mut command = Command::new(&self.pkt_gen);
        command.args(["-i", &Self::port(end), "-f", what, "-a", &cpu, "-C", &slots, "-w", "0", "--json"]).args(more);
        Running::start(format!("pkt-gen -f {what}"), &mut command)
    }
}

/// Measures by how many us the 99th of 100 events is late, of which one is due each us, if a thread on the core of the
/// program only looks at the clock, and another one on the core of the sender: that is how long the machine takes the
/// processor for.
fn late_by_clock(cores: Cores) -> Result<f64, String> {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            on_core(cores.tx, || {
                while !ends.load(Relaxed) {
                    std::hint::spin_loop();
                }
                Ok(())
            })
        });
        let late = on_core(cores.rx, || Ok(percentile_late(clock::now_ns, CLOCK_TIME.as_nanos() as u64)));
        ends.store(true, Relaxed);
        join(other.join()).and(late)
    })
}

/// Looks at the clock for `time` ns; returns by how many us the 99th of 100 events is late that are due at each us and
/// seen at the next look.
fn percentile_late(mut clock: impl FnMut() -> u64, time: u64) -> f64 {
    let begin = clock();
    let (mut last, mut late) = (0, Vec::new());
    while last < time {
        let now = clock() - begin;
        late.extend((last / 1000 + 1..=now / 1000).map(|us| now - us * 1000));
        last = now;
    }
    late.sort_unstable();
    late.get(late.len() * 99 / 100).map_or(0.0, |&ns| ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_wait_for_the_next_look_at_the_clock() {
        // A look each 100 ns, but for one of 100 that comes 50 us later.
        let mut looks = 0u64;
        let clock = || {
            looks += 1;
            looks * 100 + looks / 100 * 50_000
        };
        let late = percentile_late(clock, 10_000_000);
        assert!((48.0..50.1).contains(&late), "{late}");
        let mut time = 0;
        let late = percentile_late(
            || {
                time += 100;
                time
            },
            10_000_000,
        );
        assert!(late <= 0.1, "{late}");
    }

    #[test]
    fn what_a_machine_lacks_is_named_with_what_brings_it() {
        for (peer, why, part) in [
            (
                NETEM,
                "tc qdisc add dev vc root netem: exit status: 2 (Error: Specified qdisc kind is unknown.)",
                "SCH_NETEM",
            ),
            (
                TC,
                "tc -batch x: exit status: 1 (Error: Failed to load TC action module.; We have)",
                "CONFIG_NET_ACT_GACT",
            ),
            (TC, "tc -batch x: exit status: 1 (Error: TC classifier not found.; We have)", "CONFIG_NET_CLS_U32"),
            (TC, "tc -batch x: exit status: 1 (Error: Specified qdisc kind is unknown.)", "CONFIG_NET_SCH_INGRESS"),
            (TC, "tc -batch x: No such file or directory (os error 2)", "apt-get install iproute2"),
            (NFTABLES, "nft -f x: No such file or directory (os error 2)", "apt-get install nftables"),
            (
                NFTABLES,
                "nft -f x: exit status: 1 (x:1:1-5: Error: Could not process rule: Operation not supported)",
                "BRIDGE",
            ),
        ] {
            let what = what_brings(peer, why).unwrap_or_default();
            assert!(what.contains(part), "{peer}: {why}: {what}");
        }
        assert_eq!(what_brings(TC, "tc -batch x: exit status: 1 (Error: Exclusivity flag on.)"), None);
    }

    #[test]
    fn a_kernel_without_netem_is_told_what_brings_it() {
        let Ok(lab) = lab::Lab::new().inspect_err(|why| eprintln!("skipped: {why}")) else { return };
        let (ns, folder) = (lab.namespace("bench").unwrap(), tempfile::tempdir().unwrap());
        lab.veth(&ns, "vb", &ns, "vc", lab::VethOptions::default()).unwrap();
        for (case, peer) in [(Case::Delay, NETEM), (Case::Rules(2), TC), (Case::Rules(2), NFTABLES)] {
            if let Err(why) = case.set_kernel_up(peer, &folder, &ns) {
                eprintln!("{peer}: {why}");
                assert!(why.contains("CONFIG_") || why.contains("apt-get install"), "{peer}: {why}");
            }
            Case::set_kernel_down(&ns);
        }
    }

    #[test]
    fn a_row_has_so_many_rules() {
        for n in [1, 10, 1000] {
            let rules = Case::Rules(n).rules().unwrap();
            assert_eq!(rules.lines().count(), n as usize);
            assert!(rules.ends_with("add allow ip from any to any\n"));
        }
        assert!(Case::Delay.rules().is_none());
    }
}
