//! Programs of libpcap's: with our libpcap on a switch, on a pipe and on an interface; with the system's on the latter.
//!
//! ```text
//!    switch, pipe   pkt-gen ----> [the program]        [the program] ----> pkt-gen counts
//!    interface      the feeder -- va ---- vb [the program]    [the program] va ---- vb counts
//! ```
//!
//! The program (`programs/pcap.c`) is one and the same file for all of them: `unetmap run` puts our libpcap before the
//! system's. In `pcap-tcpdump` it is tcpdump, which writes to /dev/null, and tells when it is asked to how many packets
//! it had and how many it lost.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::{FEEDER, Nics, Role, Who, compile_with};
use crate::US;
use crate::one_core::SLOTS;
use crate::program::{self, INTERVAL, KEEP, PATIENCE, Running, SKIP, conclude, steady_mpps};
use crate::seqpacket::on_core;

const SOURCE: &str = include_str!("../../programs/pcap.c");
/// What libpcap compiles to 27 instructions; the packets match.
const FILTER: &str = "port 80 or port 1234";
/// Frames that a switch's port sends and nobody has asked for reach all others.
const SWITCH: &str = "vale97:";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Packets that `pcap_dispatch` hands to a function that counts them.
    Dispatch,
    /// The same behind a filter of 27 instructions.
    Filter,
    /// Packets that `pcap_next_ex` returns.
    NextEx,
    /// Packets that `pcap_inject` sends.
    Inject,
    /// `Dispatch` on an interface, for us and for the system's libpcap.
    NicRx,
    /// `Inject` there.
    NicTx,
    /// What `tcpdump -w /dev/null` gets; and of what came, in hundredths.
    Tcpdump,
}

/// Where a side's program is, and whose libpcap it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    /// Ours, on a port of a switch.
    Switch,
    /// Ours, at an end of a pipe.
    Pipe,
    /// Ours, on an interface.
    Interface,
    /// The system's, on an interface.
    System,
}

impl Task {
    pub(crate) const ALL: [Task; 7] =
        [Task::Dispatch, Task::Filter, Task::NextEx, Task::Inject, Task::NicRx, Task::NicTx, Task::Tcpdump];

    /// The row's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Task::Dispatch => "pcap-dispatch",
            Task::Filter => "pcap-filter",
            Task::NextEx => "pcap-next-ex",
            Task::Inject => "pcap-inject",
            Task::NicRx => "pcap-nic-rx",
            Task::NicTx => "pcap-nic-tx",
            Task::Tcpdump => "pcap-tcpdump",
        }
    }

    /// Who competes, ours first.
    pub(crate) fn sides(self) -> &'static [(&'static str, Seat)] {
        match self {
            Task::NicRx | Task::NicTx => &[(US, Seat::Interface), ("libpcap", Seat::System)],
            Task::Tcpdump => &[(US, Seat::Pipe), ("libpcap", Seat::System)],
            _ => &[(US, Seat::Switch), ("pipe", Seat::Pipe), ("libpcap", Seat::System)],
        }
    }

    /// What the program is told before its device's name, and behind it.
    fn args(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Task::NextEx => ("next_ex", &[]),
            Task::Inject | Task::NicTx => ("inject", &[]),
            Task::Filter => ("dispatch", &[FILTER]),
            Task::Dispatch | Task::NicRx | Task::Tcpdump => ("dispatch", &[]),
        }
    }
}

impl Seat {
    /// The program's port and that of pkt-gen, or the program's interface.
    fn ports(self, role: Role) -> (String, String) {
        let id = std::process::id();
        match self {
            Seat::Switch => (format!("{SWITCH}program"), format!("{SWITCH}far")),
            Seat::Pipe => (format!("netmap:bench{id}}}4"), format!("netmap:bench{id}{{4")),
            Seat::Interface => (format!("netmap:{}", role.interfaces()[0]), String::new()),
            Seat::System => (role.interfaces()[0].into(), String::new()),
        }
    }

    fn has_cable(self) -> bool {
        matches!(self, Seat::Interface | Seat::System)
    }
}

/// The program, and where it runs.
pub(crate) struct Programs {
    nics: Rc<Nics>,
    pcap: PathBuf,
    unetmap: PathBuf,
}

impl Programs {
    /// Compiles the program.
    pub(crate) fn new(nics: &Rc<Nics>) -> Result<Rc<Programs>, String> {
        let pcap = compile(nics.folder.path())?;
        Ok(Rc::new(Programs { nics: Rc::clone(nics), pcap, unetmap: program::find("unetmap")? }))
    }

    /// A sentence if the task cannot be done on this machine.
    pub(crate) fn lacks(task: Task) -> Option<String> {
        (task == Task::Tcpdump && !Command::new("tcpdump").arg("--version").output().is_ok_and(|o| o.status.success()))
            .then(|| "there is no tcpdump (apt-get install tcpdump)".into())
    }

    /// One sample: Mpps, and for `Tcpdump` how many of a hundred packets it had.
    pub(crate) fn measure(&self, task: Task, seat: Seat) -> Result<Vec<f64>, String> {
        self.nics.settle()?;
        match task {
            Task::Tcpdump => self.tcpdump(seat),
            Task::Inject | Task::NicTx => self.inject(task, seat).map(|mpps| vec![mpps]),
            _ => self.receive(task, seat).map(|mpps| vec![mpps]),
        }
    }

    fn receive(&self, task: Task, seat: Seat) -> Result<f64, String> {
        let receiver = self.start(task, Role::Rx, seat)?;
        let mut programs = [receiver, self.feed(seat)?];
        let rate = steady_mpps(|| {
            programs[1].check()?;
            programs[0].line()
        });
        conclude(rate, &mut programs)
    }

    fn inject(&self, task: Task, seat: Seat) -> Result<f64, String> {
        if seat.has_cable() {
            let mut programs = [self.start(task, Role::Tx, seat)?];
            let rate = self.nics.at_b.rate(&mut programs);
            return conclude(rate, &mut programs);
        }
        let receiver = self.pkt_gen(Role::Rx, seat)?;
        let mut programs = [receiver, self.start(task, Role::Tx, seat)?];
        let rate = steady_mpps(|| {
            programs[1].check()?;
            programs[0].line()
        });
        conclude(rate, &mut programs)
    }

    fn tcpdump(&self, seat: Seat) -> Result<Vec<f64>, String> {
        let mut command = self.command(Role::Rx, seat, Path::new("sh"));
        // What it tells goes to standard error.
        command.args(["-c", "exec tcpdump \"$@\" 2>&1", "sh", "-n", "-w", "/dev/null", "-i", &seat.ports(Role::Rx).0]);
        let tcpdump = on_core(self.nics.cores.rx, || Running::start("tcpdump", &mut command))?;
        let mut programs = [tcpdump, self.feed(seat)?];
        let found = asked(&mut programs);
        conclude(found, &mut programs)
    }

    /// Whoever sends to the program as fast as it can.
    fn feed(&self, seat: Seat) -> Result<Running, String> {
        if seat.has_cable() { self.nics.start(Role::Tx, FEEDER) } else { self.pkt_gen(Role::Tx, seat) }
    }

    fn pkt_gen(&self, role: Role, seat: Seat) -> Result<Running, String> {
        let (cpu, every) = match role {
            Role::Tx => (self.nics.cores.tx, "0".into()),
            _ => (self.nics.cores.rx, INTERVAL.as_millis().to_string()),
        };
        let (slots, cpu) = (format!("{SLOTS},{SLOTS}"), cpu.to_string());
        let mut command = Command::new(program::find("pkt-gen")?);
        command.args(["-i", &seat.ports(role).1, "-f", role.name(), "-C", &slots, "-a", &cpu, "-w", "0", "--json"]);
        command.args(["-T", &every]).env("UNETMAP_SOCKET", self.nics.socket(Who::Ours)?);
        Running::start(format!("pkt-gen -f {}", role.name()), &mut command)
    }

    fn start(&self, task: Task, role: Role, seat: Seat) -> Result<Running, String> {
        let (how, more) = task.args();
        let mut command = self.command(role, seat, &self.pcap);
        command.arg(how).arg(seat.ports(role).0).args(more);
        let cpu = if matches!(role, Role::Tx) { self.nics.cores.tx } else { self.nics.cores.rx };
        on_core(cpu, || Running::start(format!("the libpcap program ({how})"), &mut command))
    }

    /// A program in the namespace that has the role's interface, with the seat's libpcap.
    fn command(&self, role: Role, seat: Seat, program: &Path) -> Command {
        let ns = if matches!(role, Role::Tx) { &self.nics.a } else { &self.nics.b };
        if seat == Seat::System {
            return ns.command(program);
        }
        let mut command = ns.command(&self.unetmap);
        if let Ok(socket) = self.nics.socket(Who::Ours) {
            command.env("UNETMAP_SOCKET", socket);
        }
        command.args(["run", "--"]).arg(program);
        command
    }
}

/// Asks tcpdump, the first of the programs, twice how many packets it has had; it tells by a line.
fn asked(programs: &mut [Running; 2]) -> Result<Vec<f64>, String> {
    // From this line on it can be.
    while !programs[0].line()?.contains("listening on") {}
    let mut ask = || -> Result<(Instant, f64, f64), String> {
        programs[1].check()?;
        let pid = i32::try_from(programs[0].id()).ok().and_then(Pid::from_raw).ok_or("bench: tcpdump has no id")?;
        kill_process(pid, Signal::USR1).map_err(|e| format!("bench: asking tcpdump: {e}"))?;
        loop {
            if let Some([captured, dropped]) = told(&programs[0].line()?) {
                return Ok((Instant::now(), captured, dropped));
            }
        }
    };
    // It has its filter and its buffers once it has a packet.
    while ask()?.1 == 0.0 {
        thread::sleep(INTERVAL);
    }
    thread::sleep(INTERVAL * SKIP as u32);
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let before = ask()?;
        thread::sleep(INTERVAL * KEEP as u32);
        let after = ask()?;
        let [captured, dropped] = [after.1 - before.1, after.2 - before.2];
        // None at all, as when somebody else had the processor: it begins again.
        if captured > 0.0 {
            let seconds = after.0.duration_since(before.0).as_secs_f64();
            return Ok(vec![captured / seconds / 1e6, 100.0 * captured / (captured + dropped)]);
        }
    }
    Err(format!("bench: tcpdump had no packet in {} s", PATIENCE.as_secs()))
}

/// The packets of tcpdump's line that were captured, and those that were dropped; `None` of other lines.
fn told(line: &str) -> Option<[f64; 2]> {
    let number = |word: &str| {
        let before = line.split(',').find(|part| part.contains(word))?;
        before.split_whitespace().find_map(|word| word.parse().ok())
    };
    Some([number("captured")?, number("dropped by kernel")?])
}

/// Compiles the program into `folder`.
fn compile(folder: &Path) -> Result<PathBuf, String> {
    compile_with(folder, "pcap", SOURCE, &["-lpcap"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::for_a_test;

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
            _ => eprintln!("skipped: there is no tcpdump"),
        }
    }

    #[test]
    fn what_tcpdump_tells() {
        let line = "tcpdump: 5 packets captured, 17 packets received by filter, 12 packets dropped by kernel";
        assert_eq!(told(line), Some([5.0, 12.0]));
        let line = "tcpdump: 1 packet captured, 1 packet received by filter, 0 packets dropped by kernel, \
             3 packets dropped by interface";
        assert_eq!(told(line), Some([1.0, 0.0]));
        assert_eq!(told("tcpdump: listening on vb, link-type EN10MB (Ethernet), snapshot length 262144 bytes"), None);
    }

    #[test]
    fn the_systems_libpcap_has_a_rate_everywhere() {
        let Some((_alone, nics)) = for_a_test() else { return };
        let nics = Rc::new(nics);
        let programs = Programs::new(&nics).unwrap();
        for task in Task::ALL {
            if let Some(why) = Programs::lacks(task) {
                eprintln!("left out {}: {why}", task.name());
                continue;
            }
            let found = programs.measure(task, Seat::System).unwrap_or_else(|e| panic!("{}: {e}", task.name()));
            assert!(found[0] > 0.001 && found[0] < 1000.0, "{}: {found:?}", task.name());
        }
    }
}
