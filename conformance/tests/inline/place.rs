// SPDX-License-Identifier: BSD-2-Clause
//! Where the faults happen: namespaces, a daemon that keeps its ports, and a program in the wire between two hosts.
//!
//! ```text
//!   client                      middle                      server
//!   [c0 10.9.0.1/24] -------- [m0] program [m1] -------- [s0 10.9.0.2/24]
//!
//!   client                      server
//!   [c0 10.9.0.1/24] -------- [m0 10.9.0.2/24] program [m0^, its stack]
//! ```

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use conformance::bpf;
use conformance::c::compile;
use conformance::home::{Guard, Home, LIMIT, is_alive};
use conformance::program;
use lab::{Lab, Ns, VethOptions};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal};

use crate::cards::Cards;

/// Addresses of the two hosts.
pub(crate) const CLIENT: &str = "10.9.0.1";
pub(crate) const SERVER: &str = "10.9.0.2";
/// The UDP port whose datagrams the firewall's rules deny.
pub(crate) const DENIED: u16 = 9999;
/// Queues of each interface.
pub(crate) const QUEUES: u32 = 2;
/// Ethernet addresses of `c0` and of the server's interface.
const MACS: [&str; 2] = ["02:00:00:00:09:01", "02:00:00:00:09:02"];
/// After this long a program that goes on without its ports is started again.
const BY_HAND_AFTER: Duration = Duration::from_secs(10);
/// How long a condition is waited for between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// Size of the file system that has the daemon's files.
const DISK: &CStr = c"size=16m";

/// The operator's choice for frames that a program should get and none takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// They go to the host's stack.
    Open,
    /// They are dropped: nothing that the rules deny is ever seen.
    Closed,
    /// The kernel forwards them: the wire is open during each fault of a program or of a daemon.
    Bypass,
}

/// A program in the wire.
pub(crate) struct Way {
    /// Its name in the table, and on the command line.
    pub name: &'static str,
    /// The unit of systemd that starts the program.
    unit: &'static str,
    /// The ports, and more options, as a drop-in of the unit names them.
    ports: &'static str,
    options: &'static str,
    /// Arguments of `unetmap`, run before the program.
    before: &'static str,
    /// Whether it is between an interface and the host's stack.
    is_host: bool,
    /// The choice that program and options make.
    pub on_failure: OnFailure,
    /// Whether `make test` has it.
    pub is_short: bool,
    /// Whether it denies the datagrams of [`DENIED`].
    pub denies: bool,
    /// How often it opens a port.
    sessions: usize,
    /// The signal of the unit's reload, and what the program says in its log when it has read its rules.
    pub reload: (Signal, &'static str),
    /// A program that is not this project's, for which it looks in PATH.
    needs: Option<Foreign>,
    /// About the program and its place, for the document.
    pub about: &'static str,
}

/// A program of others.
struct Foreign {
    name: &'static str,
    /// A variable of the environment with its path.
    variable: &'static str,
    /// Its option that says how it was built, and what it says then if it was built for netmap.
    build: [&'static str; 2],
}

impl Foreign {
    fn path(&self) -> PathBuf {
        std::env::var_os(self.variable).map_or_else(|| self.name.into(), PathBuf::from)
    }

    /// Why it cannot be run here.
    fn check(&self) -> Result<(), String> {
        let [option, netmap] = self.build;
        let text = run(Command::new(self.path()).arg(option))?;
        let says = text.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == netmap);
        if says { Ok(()) } else { Err(format!("{} was built without netmap", self.path().display())) }
    }
}

/// A bridge between two interfaces.
const BRIDGE: Way = Way {
    name: "bridge",
    unit: "unetmap-bridge@.service",
    ports: "m0 m1",
    options: "",
    before: "",
    is_host: false,
    on_failure: OnFailure::Open,
    is_short: false,
    denies: false,
    sessions: 2,
    reload: (Signal::HUP, "were read again"),
    needs: None,
    about: "`bridge m0 m1`, between two interfaces",
};

/// A firewall between two interfaces.
const FIREWALL: Way = Way {
    name: "fw",
    unit: "unetmap-fw@.service",
    denies: true,
    about: "`unetmap-fw m0 m1 --rules FILE`, between two interfaces",
    ..BRIDGE
};

/// A firewall between an interface and the host's stack.
const HOST_FIREWALL: Way = Way {
    name: "fw-host",
    ports: "m0 m0^",
    options: "--on-failure open",
    is_host: true,
    about: "`unetmap-fw m0 m0^ --rules FILE --on-failure open`, between an interface and the host's stack",
    ..FIREWALL
};

/// Suricata between two interfaces. It opens each to receive and to send.
const SURICATA: Way = Way {
    name: "suricata",
    unit: "unetmap-suricata@.service",
    before: "bypass m0 m1",
    on_failure: OnFailure::Bypass,
    denies: true,
    sessions: 4,
    reload: (Signal::USR2, "rule reload complete"),
    needs: Some(Foreign {
        name: "suricata",
        variable: "SURICATA",
        build: ["--build-info", "Netmap support: yes v14+"],
    }),
    about: "`unetmap bypass m0 m1`, `unetmap run suricata -c lan.yaml --netmap`, between two interfaces",
    ..BRIDGE
};

/// The programs that are tested.
pub(crate) const WAYS: [Way; 7] = [
    BRIDGE,
    Way {
        name: "bridge-bypass",
        options: "--bypass",
        on_failure: OnFailure::Bypass,
        is_short: true,
        about: "`bridge --bypass m0 m1`, between two interfaces",
        ..BRIDGE
    },
    FIREWALL,
    Way {
        name: "fw-bypass",
        before: "bypass m0 m1",
        on_failure: OnFailure::Bypass,
        about: "`unetmap bypass m0 m1`, `unetmap-fw m0 m1 --rules FILE`, between two interfaces",
        ..FIREWALL
    },
    HOST_FIREWALL,
    Way {
        name: "fw-host-closed",
        options: "",
        on_failure: OnFailure::Closed,
        is_short: true,
        about: "`unetmap-fw m0 m0^ --rules FILE`, between an interface and the host's stack",
        ..HOST_FIREWALL
    },
    SURICATA,
];

impl Way {
    /// Whether it is tested only by name, as another machine lacks the program.
    pub(crate) fn is_foreign(&self) -> bool {
        self.needs.is_some()
    }

    /// Why its program cannot be run here.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.needs.as_ref().map_or(Ok(()), Foreign::check)
    }
}

/// The network, and what runs in it.
pub(crate) struct Place {
    // Dropped in this order.
    program: Option<Guard>,
    daemon: Option<Guard>,
    disk: Disk,
    /// The library that steps the clock of programs; a guest with cards has no compiler.
    clock: Option<PathBuf>,
    /// In place of veth pairs.
    cards: Option<Cards>,
    pub home: Home,
    pub way: &'static Way,
    pub client: Ns,
    pub middle: Ns,
    pub server: Ns,
    lab: Lab,
    _folder: tempfile::TempDir,
}

/// A small file system, for the daemon's files.
pub(crate) struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path) -> Result<Disk, String> {
        mount("tmpfs", at, "tmpfs", MountFlags::empty(), DISK).map_err(|e| format!("{}: {e}", at.display()))?;
        Ok(Disk(at.to_owned()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// The folder of the project. A guest has it in another place than the machine that built this.
fn sources() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&own).join("..")
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Waits until `done`; says what did not happen within [`LIMIT`].
pub(crate) fn wait_for(what: &str, done: impl FnMut() -> bool) -> Result<(), String> {
    wait_within(what, LIMIT, done)
}

/// Waits for a condition within `limit`.
pub(crate) fn wait_within(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<(), String> {
    let end = Instant::now() + limit;
    while !done() {
        if Instant::now() > end {
            return Err(format!("not within {limit:?}: {what}"));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Whether this machine can have namespaces and AF_XDP sockets; else why not.
pub(crate) fn check_machine() -> Result<(), String> {
    Lab::new()?;
    bpf::check_xdp_socket().map_err(|e| format!("no AF_XDP sockets can be made here: {e}"))?;
    bpf::check_xdp_program().map_err(|e| format!("no XDP programs can be loaded here: {e}"))
}

impl Place {
    /// Makes the network, and starts the daemon and the program.
    pub(crate) fn new(way: &'static Way, cards: Option<Cards>) -> Result<Place, String> {
        let lab = Lab::new()?;
        let folder = tempfile::Builder::new().prefix("unetmap-").tempdir().map_err(|e| e.to_string())?;
        let home = Home::at(&folder.path().join("home")).map_err(|e| e.to_string())?;
        let disk = Disk::mount(home.folder())?;
        let [client, server] = [lab.namespace("client")?, lab.namespace("server")?];
        let middle = if way.is_host { server.clone() } else { lab.namespace("middle")? };
        let clock = cards.is_none().then(|| compile(&home, "clock", &["-shared", "-fPIC"]));
        let (program, daemon, _folder) = (None, None, folder);
        let mut place = Place { program, daemon, disk, clock, cards, home, way, client, middle, server, lab, _folder };
        if place.clock.is_some() {
            place.step_clock(0)?;
        }
        place.connect_client()?;
        if !way.is_host {
            place.connect("s0", "m1")?;
        }
        for (ns, interface, address, mac) in place.hosts() {
            ns.ip(&["link", "set", interface, "address", mac])?;
            ns.ip(&["address", "add", &format!("{address}/24"), "dev", interface])?;
            // TCP sends again within a second also after seconds, so that the run takes less time.
            let _ = ns.tool("sysctl", &["-q", "-w", "net.ipv4.tcp_rto_max_ms=1000", "net.ipv4.tcp_retries2=200"]);
        }
        place.know_each_other()?;
        fs::write(
            place.rules(),
            "add deny udp from any to any 9999\nadd deny icmp from any to any\nadd allow ip from any to any\n",
        )
        .map_err(|e| e.to_string())?;
        place.configure_suricata()?;
        place.mend_daemon()?;
        place.set_up()?;
        place.wait_until_it_works()?;
        Ok(place)
    }

    /// Writes Suricata's configuration and rules, as the document has them.
    fn configure_suricata(&self) -> Result<(), String> {
        if !self.way.is_foreign() {
            return Ok(());
        }
        let path = sources().join("docs/suricata.md");
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let folder = self.home.folder().display().to_string();
        for (language, file) in [("yaml", self.yaml()), ("suricata", self.home.folder().join("lan.rules"))] {
            let block = text.split_once(&format!("```{language}\n")).and_then(|(_, rest)| rest.split_once("```"));
            let (block, _) = block.ok_or_else(|| format!("{} has no {language}", path.display()))?;
            let block = block.replace("eth1", "m0").replace("eth2", "m1").replace("/var/log/suricata", &folder);
            let block = block.replace("suricata.log", "program.log").replace("/etc/suricata", &folder);
            // The disk is small, and each denied datagram is a line.
            let block = block.replace("fast.log", "/dev/null");
            fs::write(file, block).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn yaml(&self) -> PathBuf {
        self.home.folder().join("lan.yaml")
    }

    /// The hosts: namespace, interface, IPv4 and Ethernet address.
    fn hosts(&self) -> [(&Ns, &'static str, &'static str, &str); 2] {
        let served = if self.way.is_host { "m0" } else { "s0" };
        // Cards keep their own addresses.
        let macs = match &self.cards {
            Some(cards) => ["c0", served].map(|interface| cards.mac(interface)),
            None => MACS,
        };
        [(&self.client, "c0", CLIENT, macs[0]), (&self.server, served, SERVER, macs[1])]
    }

    /// Sets by how much the clock of the daemon and the program differs from the machine's.
    pub(crate) fn step_clock(&self, seconds: i64) -> Result<(), String> {
        if self.clock.is_none() {
            return Err("skipped: there is no compiler for the library".into());
        }
        let file = File::options().write(true).create(true).truncate(false).open(self.home.folder().join("step"));
        file.and_then(|file| file.write_all_at(&seconds.to_ne_bytes(), 0)).map_err(|e| e.to_string())
    }

    /// A command whose clock can be stepped, and which logs to a file.
    fn command_with_log(&self, mut command: Command, log: &str) -> Result<Command, String> {
        if let Some(clock) = &self.clock {
            command.env("LD_PRELOAD", clock).env("CLOCK_STEP", self.home.folder().join("step"));
        }
        command.env("LIBXDP_BPFFS", self.home.folder().join("bpf"));
        let log = File::options().append(true).create(true).open(self.home.folder().join(log));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.map_err(|e| e.to_string())?);
        Ok(command)
    }

    /// Makes the pair of `c0` and `m0`.
    fn connect_client(&self) -> Result<(), String> {
        self.connect("c0", "m0")
    }

    fn connect(&self, host: &str, middle: &str) -> Result<(), String> {
        let end = if host == "c0" { &self.client } else { &self.server };
        if let Some(cards) = &self.cards {
            return cards.connect([(end, host), (&self.middle, middle)]);
        }
        let options = VethOptions { queues: QUEUES, tx_checksum_off: true, ..VethOptions::default() };
        self.lab.veth(end, host, &self.middle, middle, options)
    }

    /// The hosts know the Ethernet address of each other, so that no lost frame of theirs is missing in the counts.
    fn know_each_other(&self) -> Result<(), String> {
        let [client, server] = self.hosts();
        for ((ns, interface, ..), (.., address, mac)) in [(client, server), (server, client)] {
            ns.ip(&["neighbour", "replace", address, "lladdr", mac, "dev", interface, "nud", "permanent"])?;
        }
        Ok(())
    }

    /// Deletes the pair of `c0` and `m0`, and makes it again with the same addresses.
    pub(crate) fn delete(&self) -> Result<(), String> {
        if self.cards.is_some() {
            return Err("skipped: a card cannot be deleted".into());
        }
        self.middle.ip(&["link", "delete", "m0"]).map(drop)
    }

    /// Makes it again.
    pub(crate) fn make_again(&self) -> Result<(), String> {
        self.connect_client()?;
        self.set_up()?;
        let [client, server] = self.hosts();
        let lost = if self.way.is_host { &[client, server][..] } else { &[client][..] };
        for (ns, interface, address, mac) in lost {
            ns.ip(&["link", "set", interface, "address", mac])?;
            ns.ip(&["address", "add", &format!("{address}/24"), "dev", interface])?;
        }
        self.know_each_other()
    }

    fn rules(&self) -> PathBuf {
        self.home.folder().join("rules")
    }

    /// Starts what has ended, as a service manager does: first the daemon, if its store does not. Returns the names.
    pub(crate) fn mend(&mut self) -> Result<Vec<&'static str>, String> {
        let mut started = Vec::from_iter(self.mend_daemon()?.then_some("daemon"));
        if self.program_has_ended() {
            self.program = None;
            self.start_program()?;
            started.push("program");
        }
        Ok(started)
    }

    /// Whether there is no process of the program.
    pub(crate) fn program_has_ended(&mut self) -> bool {
        self.program.as_mut().is_none_or(|program| program.0.try_wait().is_ok_and(|end| end.is_some()))
    }

    /// Starts the daemon, if none serves, and its store does not start one.
    fn mend_daemon(&mut self) -> Result<bool, String> {
        wait_for("a daemon that serves, or none", || self.home.serves() || self.processes().is_empty())?;
        let is_missing = !self.home.serves();
        if is_missing {
            self.daemon = None;
            self.start_daemon()?;
        }
        Ok(is_missing)
    }

    /// Makes the operator's choice, if no option of the program does.
    fn set_up(&self) -> Result<(), String> {
        if self.way.before.is_empty() {
            return Ok(());
        }
        let mut command = self.middle.command(program("unetmap"));
        run(command.args(self.way.before.split(' ')).env("UNETMAP_SOCKET", self.home.socket())).map(drop)
    }

    fn start_daemon(&mut self) -> Result<(), String> {
        let mut command = Command::new(program("unetmapd"));
        command.args(["--foreground", "--keep-ports", "--idle-exit", "0", "--socket"]).arg(self.home.socket());
        let mut command = self.command_with_log(command, "unetmapd.sock.log")?;
        self.daemon = Some(Guard(command.spawn().map_err(|e| e.to_string())?));
        wait_for("the daemon serves", || self.home.serves())
    }

    fn start_program(&mut self) -> Result<(), String> {
        if self.way.is_foreign() {
            // It may have filled the disk, as long as it had no ports.
            let log = File::create(self.home.folder().join("program.log"));
            log.map_err(|e| e.to_string())?;
        }
        let words = self.command()?;
        let (file, args) = words.split_first().ok_or("a unit without a command")?;
        let mut command = self.middle.command(file);
        command.args(args).env("UNETMAP_SOCKET", self.home.socket()).env("UNETMAPD", program("unetmapd"));
        let mut command = self.command_with_log(command, "program.log")?;
        self.program = Some(Guard(command.spawn().map_err(|e| e.to_string())?));
        Ok(())
    }

    /// The command of the program's unit, with what its drop-in says.
    fn command(&self) -> Result<Vec<PathBuf>, String> {
        let path = sources().join("service").join(self.way.unit);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).ok_or("a unit without a command")?;
        let of_word = |word: &str| match word {
            "$PORTS" => self.way.ports.split_whitespace().map(PathBuf::from).collect(),
            "$OPTIONS" => self.way.options.split_whitespace().map(PathBuf::from).collect(),
            "/etc/unetmap/%i.rules" => vec![self.rules()],
            "/etc/suricata/%i.yaml" => vec![self.yaml()],
            _ if self.way.needs.as_ref().is_some_and(|needs| needs.name == word) => {
                self.way.needs.iter().map(Foreign::path).collect()
            }
            _ => vec![word.strip_prefix("@BINDIR@/").map_or_else(|| word.into(), program)],
        };
        Ok(line.split_whitespace().flat_map(of_word).collect())
    }

    /// Kills the program, and starts it again.
    pub(crate) fn restart_program(&mut self) -> Result<(), String> {
        self.program = None;
        self.mend().map(drop)
    }

    /// Waits until the program has its ports, and the ports are kept; mends meanwhile. One that goes on without its
    /// ports, and opens them no more, is started again.
    pub(crate) fn wait_until_it_works(&mut self) -> Result<(), String> {
        let (end, mut by_hand) =
            (Instant::now() + LIMIT, self.way.is_foreign().then(|| Instant::now() + BY_HAND_AFTER));
        loop {
            if by_hand.is_some_and(|at| Instant::now() > at) {
                by_hand = None;
                self.restart_program()?;
            }
            self.mend()?;
            let pid = self.program().as_raw_pid().cast_unsigned();
            let now = self.home.try_snapshot();
            if now.is_some_and(|now| {
                let open = now.sessions.iter().filter(|session| session.pid == pid).count();
                open == self.way.sessions && now.daemon.kept_sessions == now.sessions.len()
            }) {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("the program did not open its ports within {LIMIT:?}: {}", self.last_words()));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until the program moves frames in both directions, which the kernel may have forwarded for it until then.
    pub(crate) fn wait_until_it_moves_frames(&self) -> Result<(), String> {
        let crossed = || {
            let ports = self.home.try_snapshot().map_or(Vec::new(), |now| now.ports);
            let of = |port: &conformance::snapshot::Port| -> u64 {
                port.rings.iter().filter(|ring| ring.dir == "rx").map(|ring| ring.crossed).sum()
            };
            ports.iter().map(|port| (port.name.clone(), of(port))).collect::<BTreeMap<_, _>>()
        };
        let before = crossed();
        wait_for("the program moves frames", || {
            let now = crossed();
            before.iter().all(|(port, before)| now.get(port).is_some_and(|now| now > before))
        })
    }

    /// The ends of the two logs.
    pub(crate) fn last_words(&self) -> String {
        let end = |name: &str| {
            let text = fs::read_to_string(self.home.folder().join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().rev().take(3).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
        };
        format!("program: {}; daemon: {}", end("program.log"), end("unetmapd.sock.log"))
    }

    /// How often the program has read its rules again, as it says.
    pub(crate) fn times_rules_were_read(&self) -> usize {
        let text = fs::read_to_string(self.home.folder().join("program.log")).unwrap_or_default();
        text.matches(self.way.reload.1).count()
    }

    /// The program's process.
    pub(crate) fn program(&self) -> Pid {
        self.program.as_ref().expect("mended").pid()
    }

    /// The daemon's processes: the daemon itself, broker, store and others, by the socket that their titles name.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let socket = self.home.socket().display().to_string();
        let is_ours = |pid: &Pid| {
            let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.split_whitespace().next().is_some_and(|word| word.contains("unetmapd"))
                && line.contains(&socket)
                && is_alive(*pid)
        };
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        pids.filter(is_ours).collect()
    }

    /// The daemon, the broker and the store.
    pub(crate) fn daemons(&self) -> Result<[Pid; 3], String> {
        let now = self.home.try_snapshot().ok_or("no daemon answers")?.daemon;
        let pids = [Some(now.pid as i32), Some(now.privileged_pid as i32), now.crash_protection.pid];
        let pids: Option<Vec<Pid>> = pids.into_iter().map(|pid| Pid::from_raw(pid?)).collect();
        pids.and_then(|pids| pids.try_into().ok()).ok_or_else(|| "the daemon has no store".into())
    }

    /// The file system of the daemon's files.
    pub(crate) fn disk(&self) -> &Path {
        &self.disk.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.program = None;
        for pid in self.processes() {
            let _ = rustix::process::kill_process(pid, Signal::CONT);
        }
        for pid in self.processes() {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        let _ = wait_for("the daemon ends", || self.processes().is_empty());
        for pid in self.processes() {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}
