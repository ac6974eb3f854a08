// SPDX-License-Identifier: BSD-2-Clause
//! A user of the system's daemon takes as much of it as it can get: it is told which budget it has used up, and all
//! other users are served.

use std::fs::{self, File, Permissions, set_permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use conformance::home::{Guard, raise_fd_limit, summary};
use conformance::net::{policy_file, set_policy, start_daemon};
use conformance::snapshot::User;
use conformance::traffic::open;
use conformance::{Home, isolated, program, until};
use conformance_hostile::raw::ControlConnection;
use rustix::process::geteuid;
use serde_json::Value;
use unetmap::abi::*;
use unetmap::errno::*;
use unetmap_core::control::request::{NetmapReply, NetmapRequest};
use unetmap_core::control::vale::ValeAction;
use unetmap_core::control::{ControlRequest, EventsRequest, HelloRequest, SnapshotRequest, ValeRequest, wire};
use unetmap_sys::tuning::log::LINES_OF_USER;
use zerocopy::IntoBytes as _;

pub(crate) const ALICE: u32 = 4001;
pub(crate) const BOB: u32 = 4002;
/// The policy gives nothing to this user.
const MALLORY: u32 = 4003;
pub(crate) const PIPES: &str = "[[rule]]\npipes = true\nusers = [4001, 4002]\n";

/// Starts root's daemon with this policy. Prints why and returns `None` if this process cannot be several users.
pub(crate) fn daemon_with(home: &Home, policy: &str) -> Option<Guard> {
    daemon_with_args(home, policy, &[])
}

/// The same, with further arguments.
pub(crate) fn daemon_with_args(home: &Home, policy: &str, args: &[&str]) -> Option<Guard> {
    if !geteuid().is_root() {
        summary("skipped: only root can connect as several users");
        return None;
    }
    set_permissions(home.folder(), Permissions::from_mode(0o755)).expect("our own folder");
    set_policy(home, policy);
    Some(start_daemon(home, args))
}

#[track_caller]
pub(crate) fn connect_as(home: &Home, uid: u32) -> ControlConnection {
    ControlConnection::connect_as(&home.socket(), uid).expect("a daemon that listens")
}

/// A connection of a user that is served; `Err`: the errno and the reason why it is not.
#[track_caller]
fn greet(home: &Home, uid: u32) -> Result<ControlConnection, (i32, String)> {
    let raw = connect_as(home, uid);
    // If the daemon has closed the connection, what it sent can still be received.
    let _ = raw.send(&wire::encode(HelloRequest::KIND, 0, 0, 0, &[]));
    let reply = raw.receive_after_reset().expect("an answer");
    if reply.errno == 0 { Ok(raw) } else { Err((reply.errno, reply.text())) }
}

fn request(reqtype: u16, name: &str, body: &[u8]) -> NetmapRequest {
    NetmapRequest::new(reqtype, name, body).expect("a short name")
}

pub(crate) fn register(name: &str, fields: NmreqRegister) -> NetmapRequest {
    let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..fields };
    request(NETMAP_REQ_REGISTER, name, body.as_bytes())
}

/// Sends a request; returns the errno and the reason.
#[track_caller]
fn ask(raw: &ControlConnection, request: &NetmapRequest) -> (i32, String) {
    let (errno, reply, _) = raw.request(request);
    (errno, reply.map_or_else(String::new, |NetmapReply { reason, .. }| reason))
}

/// Opens ports as a user, one on each connection, until one is refused; returns the connections, and the refusal.
#[track_caller]
fn open_until_refused(
    home: &Home,
    uid: u32,
    fields: NmreqRegister,
    extmem: Option<&NmreqOptExtmem>,
) -> (Vec<ControlConnection>, (i32, String)) {
    let mut opened = Vec::new();
    for n in 0..100 {
        let raw = connect_as(home, uid);
        let mut register = register(&format!("p{n}{{1"), fields);
        register.options.extend(extmem.map(|option| option.as_bytes().to_vec()));
        match ask(&raw, &register) {
            (0, _) => opened.push(raw),
            refusal => return (opened, refusal),
        }
    }
    panic!("user {uid} has opened 100 ports, and none was refused");
}

/// Opens a pipe as a user, which must be served.
#[track_caller]
pub(crate) fn assert_served(home: &Home, uid: u32) {
    let raw = greet(home, uid).unwrap_or_else(|refusal| panic!("user {uid}: {refusal:?}"));
    let answer = ask(&raw, &register("honest{1", NmreqRegister::default()));
    assert_eq!(answer, (0, String::new()), "user {uid}");
}

#[track_caller]
fn users(home: &Home, uid: Option<u32>) -> User {
    home.snapshot().users.into_iter().find(|user| user.uid == uid).expect("a row of the table")
}

#[test]
fn a_user_without_a_rule_is_turned_away_before_anything_is_read() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        let _port = open("netmap:g{1");
        let fds = home.daemon_fds();
        for _ in 0..600 {
            let raw = connect_as(home, MALLORY);
            let reply = raw.receive().expect("a reason, though nothing was sent");
            assert_eq!(reply.errno, EACCES);
            let why = reply.text();
            assert!(why.contains("user 4003") && why.contains("unetmap-policy(5)"), "{why}");
            assert!(raw.receive().is_none(), "the connection stays open");
        }
        home.until_fds(fds);
        set_policy(home, "[[rule]]\npipes = true\nusers = [4003]\n");
        assert_served(home, MALLORY);
        assert_eq!(greet(home, ALICE).err().expect("a refusal").0, EACCES);
    });
}

/// A process of ALICE in a user namespace, in which it is user 5, connects to the daemon, and prints what it is told.
const IN_A_USER_NAMESPACE: &str = r#"
import ctypes, os, socket, sys
(inside, begun), (mapped, go_on) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.setresgid(4001, 4001, 4001)
    os.setresuid(4001, 4001, 4001)
    assert ctypes.CDLL(None, use_errno=True).unshare(0x10000000) == 0, os.strerror(ctypes.get_errno())
    # The files of a process that has changed its user are root's until it is dumpable again.
    ctypes.CDLL(None).prctl(4, 1)
    os.write(begun, b"x")
    os.read(mapped, 1)
    os.setresuid(5, 5, 5)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(sys.argv[1])
    print(connection.recv(4096))
    sys.exit()
os.read(inside, 1)
with open(f"/proc/{child}/uid_map", "w") as file:
    file.write("0 4001 1\n1 200000 100\n")
os.write(go_on, b"x")
sys.exit(os.waitpid(child, 0)[1] != 0)
"#;

/// Starts root's daemon with this policy, for which a file beside its socket is `/etc/subuid`: the numbers from 200,000
/// to 200,099 are ALICE's. Prints why and returns `None` if that cannot be here.
fn daemon_with_subordinates(home: &Home, policy: &str) -> Option<(Guard, PathBuf)> {
    if !geteuid().is_root() || !Path::new("/etc/subuid").exists() {
        summary("skipped: needs root, and /etc/subuid, in whose place a file is mounted");
        return None;
    }
    set_permissions(home.folder(), Permissions::from_mode(0o755)).expect("our own folder");
    set_policy(home, policy);
    let file = home.folder().join("subuid");
    fs::write(&file, "4001:200000:100\n").expect("a file");
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/subuid && exec \"$@\""]).arg(&file);
    unshare.arg(program("unetmapd")).args(["--foreground", "--idle-exit", "0", "--socket"]).arg(home.socket());
    unshare.arg("--policy").arg(policy_file(home)).stdin(Stdio::null()).stdout(Stdio::null());
    let log = File::options().append(true).create(true).open(home.log()).expect("the daemon's log");
    let daemon = Guard::spawn(unshare.stderr(log));
    until("the daemon serves", || home.serves());
    Some((daemon, file))
}

/// The numbers that a user has for its user namespaces are this user, where something is paid for.
#[test]
fn subordinate_users_have_one_budget_with_their_owner() {
    isolated(|home| {
        let policy = "[[rule]]\npipes = true\nusers = [\"*\"]\n[[budget]]\nconnections = 4\n";
        let Some((_daemon, file)) = daemon_with_subordinates(home, policy) else { return };
        let mut open: Vec<_> = [ALICE, 200_000, 200_050, 200_099].map(|uid| greet(home, uid).expect("served")).into();
        for (uid, who) in
            [(ALICE, "user 4001 has 4"), (200_001, "user 4001, whose subordinate user (subuid(5)) 200001")]
        {
            let (errno, why) = greet(home, uid).err().expect("refused");
            assert!(errno == EMFILE && why.contains(who), "{errno}: {why}");
        }
        let inside = Command::new("python3").args(["-c", IN_A_USER_NAMESPACE]).arg(home.socket()).output();
        let inside = inside.expect("python3");
        let told = String::from_utf8_lossy(&inside.stdout);
        assert!(told.contains("subordinate user (subuid(5)) 200004 is, has 4"), "{inside:?}");
        // Others are not concerned.
        open.extend([199_999, 200_100, BOB].map(|uid| greet(home, uid).expect("served")));
        let row = |uid| users(home, Some(uid)).counts_for;
        assert_eq!((row(200_050), row(ALICE), row(200_100)), (Some(ALICE), None, None));
        // One of the numbers is the account of someone else, and root says so.
        set_policy(home, &format!("separate_users = [200001]\n{policy}"));
        open.extend((0..4).map(|_| greet(home, 200_001).expect("it has a budget of its own")));
        let (errno, why) = greet(home, 200_001).err().expect("refused");
        assert!(errno == EMFILE && why.contains("user 200001 has 4"), "{errno}: {why}");
        assert_eq!((row(200_001), row(200_050)), (None, Some(ALICE)));
        assert!(greet(home, 200_002).is_err(), "the next number is still ALICE's");
        set_policy(home, policy);
        assert!(greet(home, 200_001).is_err_and(|(_, why)| why.contains("user 4001, whose")));
        fs::write(&file, "").expect("a file");
        until("the numbers are users of their own", || greet(home, 200_002).is_ok());
    });
}

/// A tenant, as many users, has lines logged, sets what it can, and causes events: of another user a line is logged,
/// settings are accepted, and events are kept.
#[test]
fn subordinate_users_take_no_settings_events_and_lines_of_others() {
    isolated(|home| {
        let policy = "[[rule]]\npipes = true\nusers = [\"*\"]\n";
        let Some(_daemon) = daemon_with_subordinates(home, policy) else { return };
        let set = |uid, name: &str, action| {
            let raw = connect_as(home, uid);
            let request = ValeRequest { name: name.into(), action };
            raw.send(&wire::encode(ValeRequest::KIND, 0, 0, 0, &request.encode())).expect("an open connection");
            let reply = raw.receive().expect("an answer");
            (reply.errno, reply.text())
        };
        for uid in 200_000..200_010 {
            (1..=20).for_each(|seconds| assert_eq!(set(uid, "vale7", ValeAction::Age(seconds)).0, 0));
        }
        assert_eq!(set(BOB, "vale8", ValeAction::Age(1)).0, 0);
        let log = fs::read_to_string(home.log()).expect("the log");
        let lines = |switch: &str| log.matches(&format!("ageing set switch=\"{switch}\"")).count();
        assert_eq!((lines("vale7"), lines("vale8")), (LINES_OF_USER as usize, 1), "{log}");
        assert_served(home, BOB);
        let settings = (200_000..200_100).map(|uid| set(uid, "vale7:p", ValeAction::Storm(1)));
        let (granted, refused): (Vec<_>, Vec<_>) = settings.partition(|(errno, _)| *errno == 0);
        assert_eq!((granted.len(), refused.len()), (64, 36), "a page of 256 KiB for each user");
        let why = "the settings of user 4001, whose subordinate user (subuid(5)) ";
        assert!(refused.iter().all(|(errno, text)| *errno == ENOMEM && text.contains(why)), "{refused:?}");
        assert_eq!(set(BOB, "vale7:p", ValeAction::Storm(1)).0, 0);
        (200_000..200_100).for_each(|uid| assert_served(home, uid));
        let root = ControlConnection::connect(&home.socket()).expect("a daemon that listens");
        let request = EventsRequest { after: 0 }.encode();
        root.send(&wire::encode(EventsRequest::KIND, 0, 0, 0, &request)).expect("a daemon that listens");
        let events: Value = serde_json::from_str(&root.receive().expect("an answer").text()).expect("JSON");
        let is_kept = |event: &Value| event["uid"] == BOB && event["event"] == "session-opened";
        assert!(events["events"].as_array().expect("a list").iter().any(is_kept), "{events}");
    });
}

#[test]
fn a_connection_without_a_request_is_closed() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        let (silent, greeted) = (connect_as(home, ALICE), greet(home, ALICE).expect("a user that is served"));
        let root = ControlConnection::connect(&home.socket()).expect("a daemon that listens");
        assert!(silent.receive().is_none(), "an answer to nothing");
        for kept in [&greeted, &root] {
            kept.send(&wire::encode(HelloRequest::KIND, 0, 0, 0, &[])).expect("an open connection");
            assert_eq!(kept.receive().expect("an answer").errno, 0);
        }
    });
}

#[test]
fn a_user_has_as_many_connections_as_its_budget() {
    isolated(|home| {
        let budget = "[[budget]]\nusers = [4001]\nconnections = 20\n";
        let Some(_daemon) = daemon_with(home, &format!("{PIPES}{budget}")) else { return };
        let mut all: Vec<_> = (0..20).map(|_| greet(home, ALICE).expect("a connection in the budget")).collect();
        let (errno, why) = greet(home, ALICE).err().expect("a refusal");
        assert_eq!(errno, EMFILE);
        assert!(why.contains("user 4001 has 20 connections") && why.contains("`connections` in [[budget]]"), "{why}");
        assert_served(home, BOB);
        let alice = users(home, Some(ALICE));
        assert_eq!((alice.connections.used, alice.connections.limit), (20, Some(20)));
        assert!(alice.refused > 0 && users(home, None).connections.used >= 20);
        drop(all.pop());
        until("another takes its place", || greet(home, ALICE).map(|raw| all.push(raw)).is_ok());
    });
}

/// More connections than there are descriptors for them, from users of which each is within its budget.
#[test]
fn connections_of_many_users_leave_descriptors_for_root() {
    isolated(|home| {
        let anybody = "[[rule]]\npipes = true\nusers = [\"*\"]\n[total]\ndescriptors = 500\n";
        let Some(_daemon) = daemon_with(home, anybody) else { return };
        raise_fd_limit();
        let mut connected = Vec::new();
        let mut refused = 0;
        for uid in 5000..5020 {
            for _ in 0..40 {
                match greet(home, uid) {
                    Ok(raw) => connected.push(raw),
                    Err((errno, why)) => {
                        assert_eq!(errno, EMFILE, "{why}");
                        assert!(why.contains("all users but root") && why.contains("[total]"), "{why}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(refused > 0 && connected.len() > 200, "{} connections, {refused} refused", connected.len());
        home.assert_serves();
        let root: Vec<_> = (0..20).map(|_| greet(home, 0).expect("root is served")).collect();
        drop((connected, root));
        assert_served(home, 5000);
        summary(&format!("of 800 connections of 20 users {refused} refused; root was served"));
    });
}

#[test]
fn rings_of_one_user_leave_descriptors_for_others() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        raise_fd_limit();
        let fields =
            NmreqRegister { nr_tx_rings: 64, nr_rx_rings: 64, nr_tx_slots: 2, nr_rx_slots: 2, ..Default::default() };
        let fds = home.daemon_fds();
        let (opened, (errno, why)) = open_until_refused(home, ALICE, fields, None);
        assert!([EDQUOT, EMFILE].contains(&errno) && why.contains("user 4001 has"), "{errno}: {why}");
        let alice = users(home, Some(ALICE));
        for share in [alice.rings, alice.descriptors, alice.memory] {
            assert!(share.limit.is_some_and(|limit| share.used <= limit), "{alice:?}");
        }
        // What is shown is what the daemon has.
        let has = (home.daemon_fds() - fds) as u64;
        assert!(alice.descriptors.used >= has, "{has} descriptors, {alice:?}");
        assert_served(home, BOB);
        home.assert_serves();
        let count = opened.len();
        drop(opened);
        home.until_fds(fds);
        summary(&format!("pipes of 64 ring pairs {count}, descriptors {has}, then: {why}"));
    });
}

/// The table shows for each kind of port at least what the daemon has for it.
#[test]
fn descriptors_of_all_kinds_of_ports_are_counted() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        let rings = NmreqRegister { nr_tx_rings: 4, nr_rx_rings: 2, ..Default::default() };
        let monitor = NmreqRegister { nr_flags: NR_MONITOR_TX | NR_MONITOR_RX, ..Default::default() };
        let (_root, fds) = (open("netmap:g{1"), home.daemon_fds());
        let mut open = Vec::new();
        for (name, fields) in [("p{1", rings), ("p{1", monitor), ("vale7:a", rings), ("vale7:b", rings), ("q{1", rings)]
        {
            let raw = connect_as(home, ALICE);
            assert_eq!(ask(&raw, &register(name, fields)), (0, String::new()), "{name}");
            open.push(raw);
            let (has, counted) =
                (home.daemon_fds().saturating_sub(fds) as u64, users(home, Some(ALICE)).descriptors.used);
            // The threads of a first switch are everybody's.
            let threads = if name.starts_with("vale") || name == "q{1" { 16 } else { 0 };
            assert!(counted + threads >= has && counted <= has + 30, "{name}: counted {counted}, in fact {has}");
        }
    });
}

#[test]
fn large_requests_of_one_user_do_not_delay_another() {
    isolated(|home| {
        // A budget with which they are served, in any number.
        let budget = "[[budget]]\nusers = [4001]\nslots = 1000000000\nrings = 100000\nmemory = 100000\n\
                      descriptors = 100000\nrequests = 1000000\n[total]\nslots = 1000000000\nmemory = 100000\n";
        let Some(_daemon) = daemon_with(home, &format!("{PIPES}{budget}")) else { return };
        let large = NmreqPortInfoGet {
            nr_tx_rings: 32,
            nr_rx_rings: 32,
            nr_tx_slots: 4096,
            nr_rx_slots: 4096,
            ..Default::default()
        };
        // Of a switch port, for which the daemon makes the rings.
        let info = request(NETMAP_REQ_PORT_INFO_GET, "vale0:large", large.as_bytes());
        let message = wire::encode(NetmapRequest::KIND, 0, 0, 0, &info.encode());
        let all: Vec<_> = (0..400).map(|_| greet(home, ALICE).expect("a connection in the budget")).collect();
        all.iter().for_each(|raw| raw.send(&message).expect("an open connection"));
        assert_served(home, BOB);
        let answered = all.iter().filter(|raw| raw.waiting_bytes() > 0).count();
        assert!(answered < 200, "another user's pipe was open after {answered} of 400 large requests");
        summary(&format!("another user's pipe was open after {answered} of 400 large requests"));
    });
}

#[test]
fn ports_that_are_too_large_are_refused() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        let raw = greet(home, ALICE).expect("a user that is served");
        let large = NmreqRegister { nr_tx_rings: 256, nr_tx_slots: 4096, nr_rx_slots: 4096, ..Default::default() };
        for name in ["large{1", "vale0:large"] {
            let fields = NmreqRegister { nr_rx_rings: 256, ..large };
            let (errno, why) = ask(&raw, &register(name, fields));
            let switch = name.starts_with("vale");
            assert_eq!(errno, if switch { 0 } else { EDQUOT }, "{why}");
            assert!(switch || why.contains("`slots` in [[budget]]"), "{why}");
        }
        home.assert_serves();
    });
}

/// Extra buffers, which the daemon links into a list, in regions of the daemon's and in memory of the program's.
#[test]
fn memory_that_the_daemon_touches_is_the_users() {
    isolated(|home| {
        let budget = "[[budget]]\nmemory = 32\n";
        let Some(_daemon) = daemon_with(home, &format!("{PIPES}{budget}")) else { return };
        let fields = NmreqRegister { nr_extra_bufs: 16_384, ..Default::default() };
        let info = NmreqPoolsInfo {
            nr_memsize: 1 << 30,
            nr_buf_pool_objtotal: 20_000,
            nr_buf_pool_objsize: 8192,
            nr_if_pool_objtotal: 10,
            nr_if_pool_objsize: 4096,
            nr_ring_pool_objtotal: 10,
            nr_ring_pool_objsize: 69_632,
            ..Default::default()
        };
        let nro_opt = NmreqOption { nro_reqtype: NETMAP_REQ_OPT_EXTMEM, ..Default::default() };
        let extmem = NmreqOptExtmem { nro_opt, nro_info: info, ..Default::default() };
        for option in [None, Some(&extmem)] {
            let kib = home.daemon_kib("RssShmem:");
            let (opened, (errno, why)) = open_until_refused(home, ALICE, fields, option);
            assert_eq!(errno, EDQUOT, "{why}");
            assert!(why.contains("`memory` in [[budget]]"), "{why}");
            let grown = home.daemon_kib("RssShmem:").saturating_sub(kib);
            assert!(!opened.is_empty() && grown < 40 << 10, "{} ports, {grown} KiB", opened.len());
            assert_served(home, BOB);
            summary(&format!("ports with extra buffers {}, memory {grown} KiB, then: {why}", opened.len()));
            drop(opened);
            until("all are closed", || home.snapshot().sessions.is_empty());
        }
    });
}

/// Settings of switches, pipes of a parent and monitors of a port are in no budget, as each is small, but bounded.
#[test]
fn settings_pipes_and_monitors_of_a_user_are_bounded() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        let set = |uid, n: usize| {
            let raw = connect_as(home, uid);
            let request = ValeRequest { name: format!("vale7:p{n}"), action: ValeAction::Storm(1) };
            raw.send(&wire::encode(ValeRequest::KIND, 0, 0, 0, &request.encode())).expect("an open connection");
            let reply = raw.receive().expect("an answer");
            (reply.errno, reply.text())
        };
        let settings = (0..2000).map(|n| set(ALICE, n)).position(|(errno, why)| {
            assert!(errno == 0 || errno == ENOMEM && why.contains("have settings already"), "{errno}: {why}");
            errno != 0
        });
        assert_eq!(set(BOB, 0).0, 0, "another user has its own");
        let mut open = Vec::new();
        let mut register_until_refused = |of: &dyn Fn(usize) -> NetmapRequest, part: &str| {
            for n in 0.. {
                let raw = connect_as(home, ALICE);
                match ask(&raw, &of(n)) {
                    (0, _) => open.push(raw),
                    (_, why) if why.contains(part) => return n,
                    (errno, why) => panic!("{errno}: {why}"),
                }
            }
            unreachable!("a number that ends");
        };
        let small = NmreqRegister { nr_tx_slots: 2, nr_rx_slots: 2, ..Default::default() };
        let pipes = register_until_refused(&|n| register(&format!("p{{{n}"), small), "pipes already");
        let monitor = NmreqRegister { nr_flags: NR_MONITOR_TX, ..small };
        let monitors = register_until_refused(&|_| register("p{1", monitor), "monitors already");
        assert_eq!((settings, pipes, monitors), (Some(511), 64, 16));
    });
}

/// The daemon touches a page for each buffer, or for several: 4 MiB in a session.
#[test]
fn extra_buffers_of_a_session_are_bounded_by_their_bytes() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        let fields = NmreqRegister { nr_extra_bufs: 16_384, ..Default::default() };
        for (uid, granted) in [(ALICE, 2048), (0, 16_384)] {
            let raw = connect_as(home, uid);
            let (errno, reply, _) = raw.request(&register("p{1", fields));
            let reply = reply.map(|reply| reply.request.body_as::<NmreqRegister>().expect("a whole body"));
            assert_eq!((errno, reply.map(|reply| reply.nr_extra_bufs)), (0, Some(granted)), "user {uid}");
        }
    });
}

/// A port with many pages that the daemon touches: another thread makes them resident, and others are served meanwhile.
#[test]
fn the_memory_of_a_large_port_is_prepared_beside_the_control_thread() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        assert_served(home, BOB);
        until("it is closed", || home.snapshot().sessions.is_empty());
        let fds = home.daemon_fds();
        let pid = home.daemon().as_raw_nonzero();
        // Of the control thread: page faults without input or output, the eighth field after the name.
        let faults = || {
            let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")).expect("it runs");
            let fields = text.rsplit_once(')').expect("a name").1.split_whitespace();
            fields.skip(7).find_map(|field| field.parse::<u64>().ok()).expect("a number")
        };
        let (nr_tx_rings, nr_rx_rings, nr_tx_slots, nr_rx_slots) = (8, 8, 4096, 4096);
        let rings = NmreqRegister { nr_tx_rings, nr_rx_rings, nr_tx_slots, nr_rx_slots, ..Default::default() };
        let extra = NmreqRegister { nr_extra_bufs: 2048, ..Default::default() };
        // 32 rings of 16 pages; two extra buffers in a page.
        for (fields, pages) in [(rings, 32 * 16), (extra, 1024)] {
            let before = faults();
            let raw = connect_as(home, ALICE);
            let (errno, reply, files) = raw.request(&register("large{1", fields));
            assert_eq!(errno, 0, "{reply:?}");
            let faulted = faults() - before;
            assert!(faulted < pages / 2, "{faulted} page faults of the control thread for {pages} pages");
            summary(&format!("{faulted} page faults of the control thread for a port with {pages} pages"));
            assert!(users(home, Some(ALICE)).memory.used >= pages << 12, "it is charged");
            drop((raw, reply, files));
            until("it is closed", || home.snapshot().sessions.is_empty());
        }
        // Clients that leave while it is prepared.
        for n in 0..40 {
            let raw = connect_as(home, ALICE);
            let message = register(&format!("left{n}{{1"), if n % 2 == 0 { rings } else { extra }).encode();
            raw.send(&wire::encode(NetmapRequest::KIND, 0, 0, 0, &message)).expect("room for a message");
        }
        assert_served(home, BOB);
        until("nothing is left of them", || {
            let now = home.snapshot();
            now.sessions.is_empty() && now.regions.is_empty()
        });
        home.until_fds(fds);
        until("nothing is charged", || home.snapshot().users.iter().all(|user| user.uid != Some(ALICE)));
    });
}

/// All pages of a region are written to, so that freeing them takes long.
#[test]
fn a_full_region_is_freed_by_a_thread_of_its_own() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        assert_served(home, BOB);
        until("it is closed", || home.snapshot().sessions.is_empty());
        let fds = home.daemon_fds();
        let process = format!("/proc/{}/task", home.daemon().as_raw_nonzero());
        let freers = || {
            let tasks = fs::read_dir(&process).expect("it runs").flatten();
            let names = tasks.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
            names.filter(|name| name.trim() == "region freer").count()
        };
        for round in 0..3 {
            let raw = connect_as(home, ALICE);
            let (errno, reply, files) = raw.request(&register("full{1", NmreqRegister::default()));
            assert_eq!(errno, 0, "{reply:?}");
            assert_eq!(freers(), usize::from(round > 0), "a thread that nothing needs");
            let region = File::from(files.into_iter().next().expect("the region"));
            for mib in 0..8 {
                region.write_all_at(&[1; 1 << 20], (32 + mib) << 20).expect("room");
            }
            drop((raw, region));
            home.until_fds(fds);
        }
        assert_eq!(freers(), 1);
        assert_served(home, BOB);
    });
}

/// A user keeps the files of long lists: it pays for their memory, until it may have no more.
#[test]
fn a_user_cannot_keep_the_memory_of_long_lists() {
    isolated(|home| {
        let budget = "[[budget]]\nusers = [4001]\nmemory = 16\n";
        let Some(_daemon) = daemon_with(home, &format!("{PIPES}{budget}")) else { return };
        raise_fd_limit();
        let small = NmreqRegister { nr_tx_slots: 64, nr_rx_slots: 64, ..Default::default() };
        let open = |n: u32| {
            let raw = connect_as(home, ALICE);
            assert_eq!(ask(&raw, &register(&format!("long{n}{{1"), small)), (0, String::new()));
            raw
        };
        let ports: Vec<_> = (0..100).map(open).collect();
        let raw = connect_as(home, ALICE);
        let list = || {
            raw.send(&wire::encode(SnapshotRequest::KIND, 0, 0, 0, &[])).expect("a daemon that listens");
            let reply = raw.receive().expect("an answer");
            if reply.errno == 0 { Ok(File::from(reply.fds.into_iter().next().expect("a file"))) } else { Err(reply) }
        };
        let bytes = |file: &File| file.metadata().expect("a file").len();
        let mut kept = Vec::new();
        let refusal = loop {
            match list() {
                Ok(file) => kept.push(file),
                Err(refusal) => break refusal,
            }
        };
        assert!(kept.iter().map(bytes).all(|bytes| bytes > 65536), "lists can be read as long as they are kept");
        let (errno, lists) = (refusal.errno, kept.len());
        assert_eq!(errno, EDQUOT);
        let why = refusal.text();
        assert!(why.contains("is that of ports which are closed"), "{why}");
        let used = users(home, Some(ALICE)).memory.used;
        assert!(used > kept.iter().map(bytes).sum() && lists < 200, "{used}, {lists}");
        drop(kept);
        assert!(list().is_ok());
        drop((ports, raw));
        until("nothing is charged", || home.snapshot().users.iter().all(|user| user.uid != Some(ALICE)));
        summary(&format!("a user could keep {lists} lists"));
    });
}
