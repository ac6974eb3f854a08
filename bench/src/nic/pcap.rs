// SPDX-License-Identifier: BSD-2-Clause
//! The benchmark `pcap`: libpcap programs with unetmap's libpcap on a switch, a pipe and an interface, and with the
//! system's libpcap on the interface.
//!
//! ```text
//!    switch, pipe   pkt-gen ----> [the program]        [the program] ----> pkt-gen counts
//!    interface      the traffic source -- va ---- vb [the program]    [the program] va ---- vb counts
//! ```
//!
//! All setups run the same program (`programs/pcap.c`): `unetmap run` puts unetmap's libpcap ahead of the system's. In
//! `pcap-tcpdump` the program is tcpdump, which writes to /dev/null, and prints the number of captured and lost packets
//! on SIGUSR1.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::{Implementation, Load, NicLab, Role, TRAFFIC_SOURCE};
use crate::c_peers;
use crate::labels;
use crate::one_core::SLOTS;
use crate::program::{self, INTERVAL, MEASURED_INTERVALS, Running, SKIPPED_INTERVALS, TIMEOUT, steady_mpps, stop_all};
use crate::seqpacket::on_core;

const SOURCE: &str = include_str!("../../programs/pcap.c");
/// A filter that libpcap compiles to 27 instructions, and that the packets match.
const FILTER: &str = "port 80 or port 1234";
/// The switch. It floods frames to unknown addresses, so they reach the program.
const SWITCH: &str = "vale97:";

/// A measured task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PcapTask {
    /// Packets that `pcap_dispatch` hands to a function that counts them.
    Dispatch,
    /// The same with a filter of 27 instructions.
    Filter,
    /// Packets that `pcap_next_ex` returns.
    NextEx,
    /// Packets that `pcap_inject` sends.
    Inject,
    /// `Dispatch` on an interface, with unetmap's and with the system's libpcap.
    NicRx,
    /// `Inject` on an interface.
    NicTx,
    /// Packets that `tcpdump -w /dev/null` captures, also as a percentage of the packets that arrived.
    Tcpdump,
}

/// The port or interface of a contestant's program, and its libpcap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PcapSetup {
    /// unetmap's libpcap on a switch port.
    Switch,
    /// unetmap's libpcap on an end of a pipe.
    Pipe,
    /// unetmap's libpcap on an interface.
    Interface,
    /// The system's libpcap on an interface.
    System,
}

impl PcapTask {
    pub(crate) const ALL: [PcapTask; 7] = [
        PcapTask::Dispatch,
        PcapTask::Filter,
        PcapTask::NextEx,
        PcapTask::Inject,
        PcapTask::NicRx,
        PcapTask::NicTx,
        PcapTask::Tcpdump,
    ];

    /// Returns the row's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            PcapTask::Dispatch => "pcap-dispatch",
            PcapTask::Filter => "pcap-filter",
            PcapTask::NextEx => "pcap-next-ex",
            PcapTask::Inject => "pcap-inject",
            PcapTask::NicRx => "pcap-nic-rx",
            PcapTask::NicTx => "pcap-nic-tx",
            PcapTask::Tcpdump => "pcap-tcpdump",
        }
    }

    /// Returns the contestants, unetmap first.
    pub(crate) fn contestants(self) -> &'static [(&'static str, PcapSetup)] {
        match self {
            PcapTask::NicRx | PcapTask::NicTx => {
                &[(labels::UNETMAP, PcapSetup::Interface), ("libpcap", PcapSetup::System)]
            }
            PcapTask::Tcpdump => &[(labels::UNETMAP, PcapSetup::Pipe), ("libpcap", PcapSetup::System)],
            _ => &[(labels::UNETMAP, PcapSetup::Switch), ("pipe", PcapSetup::Pipe), ("libpcap", PcapSetup::System)],
        }
    }

    /// Returns the program's arguments before and after the device name.
    fn args(self) -> (&'static str, &'static [&'static str]) {
        match self {
            PcapTask::NextEx => ("next_ex", &[]),
            PcapTask::Inject | PcapTask::NicTx => ("inject", &[]),
            PcapTask::Filter => ("dispatch", &[FILTER]),
            PcapTask::Dispatch | PcapTask::NicRx | PcapTask::Tcpdump => ("dispatch", &[]),
        }
    }
}

impl PcapSetup {
    /// Returns the program's port and that of pkt-gen, or the program's interface.
    fn ports(self, role: Role) -> (String, String) {
        let id = std::process::id();
        match self {
            PcapSetup::Switch => (format!("{SWITCH}program"), format!("{SWITCH}far")),
            PcapSetup::Pipe => (format!("netmap:bench{id}}}4"), format!("netmap:bench{id}{{4")),
            PcapSetup::Interface => (format!("netmap:{}", role.interfaces()[0]), String::new()),
            PcapSetup::System => (role.interfaces()[0].into(), String::new()),
        }
    }

    fn has_cable(self) -> bool {
        matches!(self, PcapSetup::Interface | PcapSetup::System)
    }
}

/// The program, and the network in which it runs.
pub(crate) struct Programs {
    nics: Rc<NicLab>,
    pcap: PathBuf,
    unetmap: PathBuf,
}

impl Programs {
    /// Compiles the program.
    pub(crate) fn new(nics: &Rc<NicLab>) -> Result<Rc<Programs>, String> {
        let pcap = compile(nics.folder.path())?;
        Ok(Rc::new(Programs { nics: Rc::clone(nics), pcap, unetmap: program::find("unetmap")? }))
    }

    /// Returns why the task cannot run on this machine, if so.
    pub(crate) fn unavailable(task: PcapTask) -> Option<String> {
        (task == PcapTask::Tcpdump
            && !Command::new("tcpdump").arg("--version").output().is_ok_and(|o| o.status.success()))
        .then(|| "tcpdump is not installed (apt-get install tcpdump)".into())
    }

    /// Measures one sample: Mpps, and for `Tcpdump` the percentage of captured packets.
    pub(crate) fn measure(&self, task: PcapTask, setup: PcapSetup) -> Result<Vec<f64>, String> {
        self.nics.settle()?;
        match task {
            PcapTask::Tcpdump => self.tcpdump(setup),
            PcapTask::Inject | PcapTask::NicTx => self.inject(task, setup).map(|mpps| vec![mpps]),
            _ => self.receive(task, setup).map(|mpps| vec![mpps]),
        }
    }

    fn receive(&self, task: PcapTask, setup: PcapSetup) -> Result<f64, String> {
        let receiver = self.start(task, Role::Rx, setup)?;
        let mut programs = [receiver, self.start_sender(setup)?];
        let rate = steady_mpps(|| {
            programs[1].check()?;
            programs[0].line()
        });
        stop_all(rate, &mut programs)
    }

    fn inject(&self, task: PcapTask, setup: PcapSetup) -> Result<f64, String> {
        if setup.has_cable() {
            let mut programs = [self.start(task, Role::Tx, setup)?];
            let rate = self.nics.at_b.rate(&mut programs);
            return stop_all(rate, &mut programs);
        }
        let receiver = self.pkt_gen(Role::Rx, setup)?;
        let mut programs = [receiver, self.start(task, Role::Tx, setup)?];
        let rate = steady_mpps(|| {
            programs[1].check()?;
            programs[0].line()
        });
        stop_all(rate, &mut programs)
    }

    fn tcpdump(&self, setup: PcapSetup) -> Result<Vec<f64>, String> {
        let mut command = self.command(Role::Rx, setup, Path::new("sh"));
        // tcpdump prints its counters to standard error.
        command.args(["-c", "exec tcpdump \"$@\" 2>&1", "sh", "-n", "-w", "/dev/null", "-i", &setup.ports(Role::Rx).0]);
        let tcpdump = on_core(self.nics.cores.rx, || Running::start("tcpdump", &mut command))?;
        let mut programs = [tcpdump, self.start_sender(setup)?];
        let found = measure_tcpdump(&mut programs);
        stop_all(found, &mut programs)
    }

    /// Starts the sender of the packets that the program receives.
    fn start_sender(&self, setup: PcapSetup) -> Result<Running, String> {
        if setup.has_cable() {
            self.nics.start(Role::Tx, TRAFFIC_SOURCE, Load::SMALL)
        } else {
            self.pkt_gen(Role::Tx, setup)
        }
    }

    fn pkt_gen(&self, role: Role, setup: PcapSetup) -> Result<Running, String> {
        let (cpu, every) = match role {
            Role::Tx => (self.nics.cores.tx, "0".into()),
            _ => (self.nics.cores.rx, INTERVAL.as_millis().to_string()),
        };
        let (slots, cpu) = (format!("{SLOTS},{SLOTS}"), cpu.to_string());
        let mut command = Command::new(program::find("pkt-gen")?);
        command.args(["-i", &setup.ports(role).1, "-f", role.name(), "-C", &slots, "-a", &cpu, "-w", "0", "--json"]);
        command.args(["-T", &every]).env("UNETMAP_SOCKET", self.nics.socket(Implementation::Direct)?);
        Running::start(format!("pkt-gen -f {}", role.name()), &mut command)
    }

    fn start(&self, task: PcapTask, role: Role, setup: PcapSetup) -> Result<Running, String> {
        let (how, more) = task.args();
        let mut command = self.command(role, setup, &self.pcap);
        command.arg(how).arg(setup.ports(role).0).args(more);
        let cpu = if matches!(role, Role::Tx) { self.nics.cores.tx } else { self.nics.cores.rx };
        on_core(cpu, || Running::start(format!("the libpcap program ({how})"), &mut command))
    }

    /// Returns a command for a program in the namespace of the role's interface, with the setup's libpcap.
    fn command(&self, role: Role, setup: PcapSetup, program: &Path) -> Command {
        let ns = if matches!(role, Role::Tx) { &self.nics.a } else { &self.nics.b };
        if setup == PcapSetup::System {
            return ns.command(program);
        }
        let mut command = ns.command(&self.unetmap);
        if let Ok(socket) = self.nics.socket(Implementation::Direct) {
            command.env("UNETMAP_SOCKET", socket);
        }
        command.args(["run", "--"]).arg(program);
        command
    }
}

/// Measures tcpdump, the first of the programs: reads its counters twice, and computes the rate and the percentage of
/// captured packets.
fn measure_tcpdump(programs: &mut [Running; 2]) -> Result<Vec<f64>, String> {
    // tcpdump handles SIGUSR1 once it has printed this line.
    while !programs[0].line()?.contains("listening on") {}
    let mut read_counters = || -> Result<(Instant, f64, f64), String> {
        programs[1].check()?;
        let pid = i32::try_from(programs[0].id()).ok().and_then(Pid::from_raw).ok_or("bench: tcpdump has no id")?;
        kill_process(pid, Signal::USR1).map_err(|e| format!("bench: cannot send SIGUSR1 to tcpdump: {e}"))?;
        loop {
            if let Some([captured, dropped]) = parse_counters(&programs[0].line()?) {
                return Ok((Instant::now(), captured, dropped));
            }
        }
    };
    // tcpdump has installed its filter and allocated its buffers once it has captured a packet.
    while read_counters()?.1 == 0.0 {
        thread::sleep(INTERVAL);
    }
    thread::sleep(INTERVAL * SKIPPED_INTERVALS as u32);
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        let before = read_counters()?;
        thread::sleep(INTERVAL * MEASURED_INTERVALS as u32);
        let after = read_counters()?;
        let [captured, dropped] = [after.1 - before.1, after.2 - before.2];
        // Measures again if no packet was captured, because another process had the processor.
        if captured > 0.0 {
            let seconds = after.0.duration_since(before.0).as_secs_f64();
            return Ok(vec![captured / seconds / 1e6, 100.0 * captured / (captured + dropped)]);
        }
    }
    Err(format!("bench: tcpdump captured no packet in {} s", TIMEOUT.as_secs()))
}

/// Parses tcpdump's counters: captured and dropped packets; `None` for other lines.
fn parse_counters(line: &str) -> Option<[f64; 2]> {
    let number = |word: &str| {
        let before = line.split(',').find(|part| part.contains(word))?;
        before.split_whitespace().find_map(|word| word.parse().ok())
    };
    Some([number("captured")?, number("dropped by kernel")?])
}

/// Compiles the program into `folder`.
fn compile(folder: &Path) -> Result<PathBuf, String> {
    c_peers::compile(folder, "pcap", &[("pcap.c", SOURCE)], &["-lpcap".into()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::lab_for_test;

    #[test]
    fn the_program_compiles_without_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let program = compile(folder.path()).unwrap();
        let mut strict = Command::new("cc");
        strict.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]).arg(folder.path().join("pcap.c"));
        assert!(strict.status().unwrap().success());
        for wrong in [&["inject"][..], &["dispatch"], &["what", "lo"], &["next_ex", "lo", "udp", "more"], &[]] {
            assert_eq!(Command::new(&program).args(wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
        }
    }

    #[test]
    fn the_filter_has_27_instructions() {
        let text = Command::new("tcpdump").args(["-y", "EN10MB", "-ddd", FILTER]).output();
        match text {
            Ok(output) if output.status.success() => {
                assert_eq!(String::from_utf8_lossy(&output.stdout).lines().next(), Some("27"));
            }
            _ => eprintln!("skipped: tcpdump is not installed"),
        }
    }

    #[test]
    fn tcpdump_counters_are_parsed() {
        let line = "tcpdump: 5 packets captured, 17 packets received by filter, 12 packets dropped by kernel";
        assert_eq!(parse_counters(line), Some([5.0, 12.0]));
        let line = "tcpdump: 1 packet captured, 1 packet received by filter, 0 packets dropped by kernel, \
             3 packets dropped by interface";
        assert_eq!(parse_counters(line), Some([1.0, 0.0]));
        let line = "tcpdump: listening on vb, link-type EN10MB (Ethernet), snapshot length 262144 bytes";
        assert_eq!(parse_counters(line), None);
    }

    #[test]
    fn the_systems_libpcap_has_a_rate_in_each_task() {
        let Some((_alone, nics)) = lab_for_test() else { return };
        let nics = Rc::new(nics);
        let programs = Programs::new(&nics).unwrap();
        for task in PcapTask::ALL {
            if let Some(why) = Programs::unavailable(task) {
                eprintln!("skipped {}: {why}", task.name());
                continue;
            }
            let found = programs.measure(task, PcapSetup::System).unwrap_or_else(|e| panic!("{}: {e}", task.name()));
            assert!(found[0] > 0.001 && found[0] < 1000.0, "{}: {found:?}", task.name());
        }
    }
}
