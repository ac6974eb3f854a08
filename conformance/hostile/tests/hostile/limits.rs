// SPDX-License-Identifier: BSD-2-Clause
//! A daemon that can have little: few descriptors, or a control group with little memory and few processes. It refuses
//! to start, or users take as much as they can get and it serves on.

use std::fs::{self, File, Permissions, set_permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use conformance::home::{Guard, LIMIT, limit_daemon, program, raise_fd_limit, summary};
use conformance::net::{policy_file, set_policy, start_daemon};
use conformance::snapshot::Total;
use conformance::stop::Stop;
use conformance::{Home, isolated, until};
use conformance_hostile::raw::{ControlConnection, RawPort};
use rustix::fs::{SeekFrom, seek};
use rustix::pipe::{SpliceFlags, pipe, splice};
use rustix::process::{Pid, Resource, Signal, geteuid, kill_process};
use unetmap::abi::*;
use unetmap_core::control::request::{NetmapReply, NetmapRequest};
use unetmap_core::control::{ControlRequest, SnapshotRequest, wire};
use unetmap_sys::Doorbell;
use zerocopy::IntoBytes as _;

const USERS: std::ops::Range<u32> = 4001..4007;
const ANYBODY: &str = "[[rule]]\npipes = true\nusers = [\"*\"]\n";
/// The exit status of a daemon that cannot have what it needs.
const LACKS: i32 = 78;

/// A command that runs a daemon after `shell`, commands of a shell that limit it.
fn daemon(home: &Home, shell: &str, args: &[&str]) -> Command {
    let log = File::options().append(true).create(true).open(home.log()).expect("a file for the daemon's log");
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{shell}\nexec \"$0\" \"$@\"")])
        .arg(program("unetmapd"))
        .args(["--foreground", "--idle-exit", "0", "--socket"])
        .arg(home.socket())
        .arg("--policy")
        .arg(policy_file(home))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    command
}

/// Starts such a daemon, which must serve.
#[track_caller]
fn start(home: &Home, shell: &str, args: &[&str]) -> Guard {
    let daemon = Guard::spawn(&mut daemon(home, shell, args));
    until("the daemon serves", || home.serves());
    daemon
}

/// Starts such a daemon, which must refuse that; returns why it does.
#[track_caller]
fn refusal(home: &Home, shell: &str, args: &[&str]) -> String {
    let output = daemon(home, shell, args).stderr(Stdio::piped()).output().expect("a shell");
    assert_eq!(output.status.code(), Some(LACKS), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Several users are needed. Prints why and returns `false` if this process cannot be them.
fn prepare(home: &Home, policy: &str) -> bool {
    if !geteuid().is_root() {
        summary("skipped: only root can connect as several users");
        return false;
    }
    set_permissions(home.folder(), Permissions::from_mode(0o755)).expect("our own folder");
    set_policy(home, policy);
    raise_fd_limit();
    true
}

/// Opens pipes of three shapes as a user, each until one is refused; returns them, and the last reason.
fn take_all(home: &Home, uid: u32) -> (Vec<ControlConnection>, String) {
    let (mut opened, mut last) = (Vec::new(), String::new());
    for (rings, slots) in [(64, 2), (4, 4096), (1, 1024)] {
        for n in 0.. {
            let body = NmreqRegister {
                nr_mode: NR_REG_ALL_NIC,
                nr_tx_rings: rings,
                nr_rx_rings: rings,
                nr_tx_slots: slots,
                nr_rx_slots: slots,
                ..Default::default()
            };
            let request = NetmapRequest::new(NETMAP_REQ_REGISTER, &format!("r{rings}n{n}{{1"), body.as_bytes());
            let request = request.expect("a short name");
            let raw = ControlConnection::connect_as(&home.socket(), uid).expect("a daemon that listens");
            // A connection that is turned away is closed.
            let _ = raw.send(&wire::encode(NetmapRequest::KIND, 0, 0, 0, &request.encode()));
            let reply = raw.receive_after_reset().expect("an answer");
            if reply.errno != 0 {
                // A connection that is turned away has the reason alone.
                let whole = NetmapReply::decode(&reply.payload);
                last = whole.map_or_else(|| String::from_utf8_lossy(&reply.payload).into(), |reply| reply.reason);
                break;
            }
            opened.push(raw);
        }
    }
    (opened, last)
}

/// Users take all that they can get, and read no answer to further requests; then root does. The daemon serves on,
/// and everything is given back. Returns how many ports users had, and root; and why root had no more.
#[track_caller]
fn exhaust(home: &Home) -> (usize, usize, String) {
    let daemon = home.daemon();
    let users: Vec<ControlConnection> = USERS.flat_map(|uid| take_all(home, uid).0).collect();
    let idle =
        USERS.flat_map(|uid| (0..200).filter_map(move |_| ControlConnection::connect_as(&home.socket(), uid).ok()));
    let idle: Vec<ControlConnection> = idle.collect();
    for raw in users.iter().chain(&idle) {
        let _ = raw.send(&wire::encode(SnapshotRequest::KIND, 0, 0, 0, &[]));
    }
    home.assert_serves();
    let (root, why) = take_all(home, 0);
    assert_eq!(home.daemon(), daemon, "it is the same process");
    let had = (users.len(), root.len(), why);
    drop((users, idle, root));
    until("everything is given back", || home.snapshot().sessions.is_empty());
    home.assert_serves();
    assert_eq!(home.daemon(), daemon, "it is the same process");
    had
}

#[track_caller]
fn total(home: &Home, resource: &str) -> Total {
    home.snapshot().totals.into_iter().find(|total| total.resource == resource).expect("a row")
}

/// Ends a daemon, and the process that keeps its ports.
#[track_caller]
fn end(home: &Home, mut daemon: Guard) {
    daemon.signal(Signal::TERM);
    daemon.wait();
    until("nobody listens", || !home.serves());
}

#[test]
fn a_daemon_with_few_descriptors_refuses_to_start_or_serves_within_them() {
    isolated(|home| {
        if !prepare(home, ANYBODY) {
            return;
        }
        for (files, args, needed) in [(64, &[][..], 128), (127, &[], 128), (128, &["--keep-ports"], 256)] {
            let why = refusal(home, &format!("ulimit -n {files}"), args);
            assert!(why.contains(&format!("the daemon needs {needed} file descriptors")), "{why}");
            assert!(why.contains(&format!("the limit of {files} open files")) && why.contains("raise it"), "{why}");
        }
        for (files, args) in [(128, &[][..]), (256, &["--keep-ports"]), (1024, &["--keep-ports"])] {
            let daemon = start(home, &format!("ulimit -n {files}"), args);
            let descriptors = total(home, "descriptors");
            assert!(descriptors.limited_by.contains(&format!("the limit of {files} open files")), "{descriptors:?}");
            let (of_users, of_root, why) = exhaust(home);
            assert!(of_users > 0 && of_root > 0, "{files} {args:?}: {of_users}, {of_root}: {why}");
            assert!(why.contains("the daemon can give them") && why.contains("ulimit -n"), "{why}");
            let log = fs::read_to_string(home.log()).unwrap_or_default();
            assert!(!log.contains("has crashed"), "{log}");
            summary(&format!("descriptors {files}{}: users had {of_users} ports, then root {of_root}", args.join(" ")));
            end(home, daemon);
        }
    });
}

/// The daemon reads its limits again with its configuration.
#[test]
fn limits_are_read_again_with_the_configuration() {
    isolated(|home| {
        if !prepare(home, ANYBODY) {
            return;
        }
        let daemon = start_daemon(home, &[]);
        let before = total(home, "descriptors");
        limit_daemon(home.daemon(), Resource::Nofile, Some(300));
        daemon.signal(Signal::HUP);
        until("users can have less", || total(home, "descriptors").total < before.total);
        assert!(total(home, "descriptors").limited_by.contains("the limit of 300 open files"));
    });
}

/// Control groups of a test, with its own limits.
struct Groups(Vec<PathBuf>);

impl Groups {
    /// Makes them; `None`: that is not possible here.
    fn new(memory: u64, tasks: u64) -> Option<Groups> {
        let name = format!("unetmap-test-{}", std::process::id());
        let new = vec![("/sys/fs/cgroup", vec![("memory.max", memory), ("pids.max", tasks)])];
        let old = vec![
            ("/sys/fs/cgroup/memory", vec![("memory.limit_in_bytes", memory)]),
            ("/sys/fs/cgroup/pids", vec![("pids.max", tasks)]),
        ];
        [new, old].into_iter().find_map(|hierarchies| {
            let mut groups = Groups(Vec::new());
            for (hierarchy, limits) in hierarchies {
                let group = Path::new(hierarchy).join(&name);
                // Elsewhere it is a folder like any other, or there is none.
                fs::metadata(Path::new(hierarchy).join("cgroup.procs")).ok()?;
                fs::create_dir(&group).ok()?;
                groups.0.push(group);
                for (file, amount) in limits {
                    groups.set(file, amount)?;
                }
            }
            Some(groups)
        })
    }

    /// Sets a limit of the group that was made last.
    fn set(&self, file: &str, amount: u64) -> Option<()> {
        fs::write(self.0.last()?.join(file), amount.to_string()).ok()
    }

    /// Commands that put a shell in.
    fn enter(&self) -> String {
        self.0.iter().map(|group| format!("echo $$ >{}/cgroup.procs || exit 1\n", group.display())).collect()
    }

    /// How many processes the kernel has killed as there was no memory.
    #[track_caller]
    fn killed(&self) -> u64 {
        let texts = ["memory.events", "memory.oom_control"].map(|file| fs::read_to_string(self.0[0].join(file)));
        let text = texts.into_iter().find_map(Result::ok).expect("a file of the group");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")).expect("a count");
        count.parse().expect("a number")
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.0 {
            let end = Instant::now() + LIMIT;
            // A process that has just ended is in it for a moment. If the test has failed, the daemon runs.
            while fs::remove_dir(group).is_err() && group.exists() && Instant::now() < end {
                let left = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
                let left = left.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
                left.for_each(|pid| _ = kill_process(pid, Signal::KILL));
                sleep(Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn a_daemon_in_a_small_control_group_refuses_to_start_or_serves_within_it() {
    isolated(|home| {
        let more = "[[budget]]\nusers = [4001]\nmemory = 4096\n";
        if !prepare(home, &format!("{ANYBODY}{more}")) {
            return;
        }
        let Some(groups) = Groups::new(64 << 20, 20) else {
            summary("skipped: no control group can be made here");
            return;
        };
        let daemon = start(home, &groups.enter(), &["--keep-ports"]);
        let (memory, threads) = (total(home, "memory"), total(home, "threads"));
        assert!(memory.total < 48 << 20 && memory.limited_by.contains("of 64 MiB"), "{memory:?}");
        assert!(threads.limited_by.contains("the cgroup's pids.max of 20"), "{threads:?}");
        let log = || fs::read_to_string(home.log()).unwrap_or_default();
        assert!(log().contains("`memory` in [[budget]] is 4096 MiB of memory, and counts as"), "{}", log());
        let (of_users, of_root, why) = exhaust(home);
        assert!(of_users > 0 && of_root > 0 && groups.killed() == 0, "{of_users}, {of_root}: {why}");
        assert!(!log().contains("has crashed"), "{}", log());
        summary(&format!("64 MiB, 20 tasks: users had {of_users} ports, then root {of_root}; {why}"));
        end(home, daemon);
        drop(groups);
        for (memory, tasks, part) in [(16, 20, "needs 32 MiB of memory"), (64, 8, "needs 16 processes and threads")] {
            let groups = Groups::new(memory << 20, tasks).expect("as before");
            let why = refusal(home, &groups.enter(), &[]);
            assert!(why.contains(part) && why.contains("the cgroup's") && why.contains("raise it"), "{why}");
        }
    });
}

/// Puts the pages of a file that are there into a socket, a byte of each. Returns what keeps them.
fn pin(file: &OwnedFd) -> Vec<OwnedFd> {
    let (from, to) = pipe().expect("a pipe");
    let (end, other) = UnixStream::pair().expect("sockets");
    let mut at = 0;
    while let Ok(data) = seek(file, SeekFrom::Data(at)) {
        let hole = seek(file, SeekFrom::Hole(data)).expect("the end");
        for page in (data..hole).step_by(4096) {
            let moved = splice(file, Some(&mut { page }), &to, None, 1, SpliceFlags::empty());
            assert_eq!(moved, Ok(1), "a page at {page}");
            assert_eq!(splice(&from, None, &end, None, 1, SpliceFlags::empty()), Ok(1));
        }
        at = hole;
    }
    vec![end.into(), other.into()]
}

/// Opens an end of pipe `n` with many buffers, as a user: its files, or why not; `None`: no daemon listens.
fn open_large_pipe(home: &Home, uid: u32, n: u32) -> Option<Result<Vec<OwnedFd>, String>> {
    let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, nr_extra_bufs: 500, ..Default::default() };
    let request = NetmapRequest::new(NETMAP_REQ_REGISTER, &format!("p{n}{{1"), body.as_bytes());
    let raw = ControlConnection::connect_as(&home.socket(), uid).ok()?;
    let (errno, reply, files) = raw.request(&request.expect("a short name"));
    Some(if errno == 0 { Ok(files) } else { Err(reply.map_or_else(String::new, |reply| reply.reason)) })
}

/// A user puts the pages of its ports into sockets, and closes the ports, their files and the pipes.
#[test]
fn pages_that_are_pinned_do_not_fill_a_small_control_group() {
    isolated(|home| {
        if !prepare(home, ANYBODY) {
            return;
        }
        let Some(groups) = Groups::new(128 << 20, 200) else {
            summary("skipped: no control group can be made here");
            return;
        };
        let daemon = start(home, &groups.enter(), &["--keep-ports"]);
        let process = home.daemon();
        let open_pipe = |uid, n| open_large_pipe(home, uid, n).expect("a daemon that listens");
        let (mut pinned, mut why) = (Vec::new(), None);
        for n in 0..200 {
            match open_pipe(USERS.start, n) {
                Ok(files) => pinned.push(pin(&files[0])),
                Err(reason) => {
                    why = Some(reason);
                    break;
                }
            }
        }
        assert!(groups.killed() == 0 && home.daemon() == process, "{}: {why:?}", groups.killed());
        let why = why.expect("its user is refused more");
        assert!(why.contains("in pipes and sockets") && why.contains("have them unmap and close it"), "{why}");
        for uid in [0, USERS.start + 1] {
            (0..50).for_each(|n| drop(open_pipe(uid, n).expect("others are served")));
        }
        summary(&format!("128 MiB: {} closed ports with pinned pages, then: {why}", pinned.len()));
        drop(pinned);
        until("its user is served again", || open_pipe(USERS.start, 0).is_ok());
        end(home, daemon);
    });
}

/// Six users open pipes, keep their descriptors and close them, as fast as they can, beside one who closes all.
#[test]
fn memory_of_closed_ports_does_not_fill_a_small_control_group() {
    isolated(|home| {
        if !prepare(home, ANYBODY) {
            return;
        }
        let Some(groups) = Groups::new(128 << 20, 200) else {
            summary("skipped: no control group can be made here");
            return;
        };
        let daemon = start(home, &groups.enter(), &["--keep-ports"]);
        let (process, stop) = (home.daemon(), AtomicBool::new(false));
        let open_pipe = |uid, n| open_large_pipe(home, uid, n)?.ok();
        let (kept, honest) = thread::scope(|scope| {
            let end = Stop(&stop);
            let (open_pipe, stop) = (&open_pipe, &stop);
            let keep = move |uid: u32| {
                let mut kept = Vec::new();
                for n in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    kept.extend(open_pipe(uid, n));
                }
                kept
            };
            let hostile: Vec<_> = USERS.map(|uid| scope.spawn(move || keep(uid))).collect();
            let until = Instant::now() + Duration::from_secs(8);
            let honest = (0..).take_while(|_| Instant::now() < until).filter(|n| open_pipe(0, *n).is_some()).count();
            drop(end);
            let kept: Vec<_> = hostile.into_iter().map(|thread| thread.join().expect("a thread").len()).collect();
            (kept, honest)
        });
        let log = fs::read_to_string(home.log()).unwrap_or_default();
        assert!(groups.killed() == 0 && !log.contains("has crashed"), "{}: {log}", groups.killed());
        assert_eq!(home.daemon(), process, "the same process");
        assert!(honest > 20 && kept.iter().sum::<usize>() > 20, "{honest}, {kept:?}");
        home.assert_serves();
        summary(&format!("128 MiB: users kept {kept:?} closed pipes beside {honest} of root"));
        end(home, daemon);
    });
}

/// A port of a switch of the user's own; `None`: it is refused.
fn open_switch_port(home: &Home, uid: u32, name: &str, fields: NmreqRegister) -> Option<RawPort> {
    let raw = ControlConnection::connect_as(&home.socket(), uid).ok()?;
    RawPort::try_open_on(raw, name, fields).ok()
}

/// Sends a packet from each buffer of the sender's region that there is, all without contents, and lets the switch fill
/// each buffer of the receiver's: both say in their slots which buffer it is.
fn name_all_buffers(sender: &RawPort, receiver: &RawPort) {
    let (tx, rx) = (0, receiver.bound.rings.iter().position(|ring| ring.dir == 1).expect("a receive ring"));
    let [of_sender, of_receiver] = [sender, receiver].map(|port| port.bound.head.pools[2].count);
    let (slots, length) = (sender.bound.rings[tx].slots, 1500);
    let doorbell = sender.doorbells[1].try_clone().and_then(Doorbell::from_fd).expect("the switch's doorbell");
    let (mut sent, mut next) = (0, 2);
    while next < of_sender.max(of_receiver) {
        for n in 0..slots / 2 {
            sender.write_slot(tx, (sent + n) % slots, (next + n).min(of_sender - 1), length, 0);
            let at = (receiver.read_channel(rx, 0) + n) % receiver.bound.rings[rx].slots;
            receiver.write_slot(rx, at, (next + n).min(of_receiver - 1), 0, 0);
        }
        (sent, next) = ((sent + slots / 2) % slots, next + slots / 2);
        sender.write_channel(tx, 0, sent);
        doorbell.notify();
        until("the switch has taken them", || sender.read_channel(tx, 1) == sent);
        receiver.write_channel(rx, 1, receiver.read_channel(rx, 0));
    }
}

/// Six users open switch ports, the largest first, and have the switch fill all buffers that their slots can name.
#[test]
fn buffers_that_a_switch_fills_do_not_fill_a_small_control_group() {
    isolated(|home| {
        if !prepare(home, ANYBODY) {
            return;
        }
        for mib in [128, 64] {
            let Some(groups) = Groups::new(mib << 20, 200) else {
                summary("skipped: no control group can be made here");
                return;
            };
            let daemon = start(home, &groups.enter(), &["--keep-ports"]);
            let process = home.daemon();
            let ports_of = |uid: u32| {
                let mut ports = Vec::new();
                for (nr_rx_rings, slots) in [(16, 4096), (1, 4096), (1, 1024), (1, 256)] {
                    let fields =
                        NmreqRegister { nr_rx_rings, nr_rx_slots: slots, nr_tx_slots: slots, ..Default::default() };
                    let name = |n| format!("vale{uid}:{nr_rx_rings}x{slots}n{n}");
                    ports.extend((0..4).map_while(|n| open_switch_port(home, uid, &name(n), fields)));
                }
                ports
            };
            let ports: Vec<Vec<RawPort>> = USERS.map(ports_of).collect();
            for ports in &ports {
                if let [receiver, .., sender] = &ports[..] {
                    name_all_buffers(sender, receiver);
                }
            }
            // Within the memory that is reserved for root.
            let small = NmreqRegister { nr_tx_slots: 256, nr_rx_slots: 256, ..Default::default() };
            let honest = open_switch_port(home, 0, "vale9:honest", small);
            assert!(honest.is_some() && groups.killed() == 0, "{mib} MiB: {} were killed", groups.killed());
            assert_eq!(home.daemon(), process, "the same process");
            let had: Vec<usize> = ports.iter().map(Vec::len).collect();
            assert!(had.iter().sum::<usize>() >= USERS.len(), "{had:?}");
            summary(&format!("{mib} MiB: users had {had:?} switch ports, all of whose buffers were filled"));
            drop((ports, honest));
            end(home, daemon);
        }
    });
}
