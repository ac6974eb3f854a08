// SPDX-License-Identifier: BSD-2-Clause
//! Whose a pipe is, what a process says that it serves, and names that a terminal would obey: what one user claims
//! neither reaches another user's packets and settings nor moves its cursor.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use conformance::home::summary;
use conformance::net::set_policy;
use conformance::node::Node;
use conformance::traffic::{exchange, open};
use conformance::{Home, isolated, kept, program, replace, until};
use conformance_hostile::raw::ControlConnection;
use rustix::fs::fstat;
use rustix::process::{geteuid, getpid};
use unetmap::abi::printable::is_printable;
use unetmap::abi::*;
use unetmap::errno::{EACCES, EDQUOT, EINVAL};
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::control::serves::Service;
use unetmap_core::control::vale::{ValeAction, ValeRequest};
use unetmap_core::control::{ControlRequest, ServesRequest, wire};
use zerocopy::IntoBytes as _;

use super::budgets::{daemon_with, daemon_with_args};

const ALICE: u32 = 4001;
const BOB: u32 = 4002;
const CAROL: u32 = 4003;
const PIPES: &str = "[[rule]]\npipes = true\nusers = [4001, 4002, 4003]\n";
const SHARE: &str = "[[share]]\npipes = [\"bus*\"]\nowner = 4001\nusers = [4002]\n";

/// A container's processes are in a PID namespace of their own, and its root may be root's number.
#[test]
fn root_of_a_container_is_refused_if_the_policy_says_so() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, "") else { return };
        let unetmap = program("unetmap");
        let list = |before: &[&str]| {
            let words = [before, &[unetmap.to_str().expect("UTF-8"), "ls"]].concat();
            let output = Command::new(words[0]).args(&words[1..]).output().expect("it runs");
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let contained = ["unshare", "--pid", "--fork"];
        let (is_served, why) = list(&contained);
        assert!(is_served, "{why}");
        for policy in ["refuse_contained_root = true", "refuse_contained_root = 7"] {
            set_policy(home, policy);
            for container in [&contained[..], &["unshare", "--pid", "--user", "--map-root-user", "--fork"]] {
                let (is_served, why) = list(container);
                assert!(!is_served && why.contains("root of a container is not admitted"), "{policy}: {why}");
            }
            let (is_served, why) = list(&[]);
            assert!(is_served, "{policy}: {why}");
        }
    });
}

/// Opens a port as a user; `Err`: the errno and the reason.
#[track_caller]
fn open_as(home: &Home, uid: u32, name: &str, flags: u64) -> Result<ControlConnection, (i32, String)> {
    let raw = ControlConnection::connect_as(&home.socket(), uid).expect("a daemon that listens");
    let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, nr_flags: flags, ..Default::default() };
    let request = NetmapRequest::new(NETMAP_REQ_REGISTER, name, body.as_bytes()).expect("a short name");
    match raw.request(&request) {
        (0, ..) => Ok(raw),
        (errno, reply, _) => Err((errno, reply.map_or_else(String::new, |reply| reply.reason))),
    }
}

#[track_caller]
fn opened(home: &Home, uid: u32, name: &str) -> ControlConnection {
    open_as(home, uid, name, 0).unwrap_or_else(|refusal| panic!("user {uid}, {name}: {refusal:?}"))
}

/// The ends of pipes of this name, as a user sees them: the user to whom each belongs, and whether it is open.
fn ends(home: &Home, uid: u32, name: &str) -> Vec<(u32, bool)> {
    let raw = ControlConnection::connect_as(&home.socket(), uid).expect("a daemon that listens");
    let all = raw.snapshot().expect("a snapshot").ports;
    let found = all.iter().filter(|port| port.name == name);
    found.map(|port| (port.uid.expect("a pipe has a user"), port.open)).collect()
}

#[test]
fn a_pipe_of_one_name_is_another_for_each_user() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        let _alice = opened(home, ALICE, "p{1");
        // Neither the other end, nor the same one, nor one that is taken alone, is the other user's.
        let _other = opened(home, BOB, "p}1");
        let _same = open_as(home, CAROL, "p{1", NR_EXCLUSIVE).expect("its own");
        assert_eq!(ends(home, 0, "p{1"), [(ALICE, true), (BOB, false), (CAROL, true)]);
        assert_eq!(ends(home, 0, "p}1"), [(ALICE, false), (BOB, true), (CAROL, false)]);
        let regions: BTreeSet<u16> = home.snapshot().ports.iter().map(|port| port.mem_id).collect();
        assert_eq!(regions.len(), 3, "no memory in common, and so no packet");
        assert_eq!((ends(home, BOB, "p{1"), ends(home, BOB, "p}1")), (vec![(BOB, false)], vec![(BOB, true)]));
        let (errno, _) = open_as(home, BOB, "p{1", NR_MONITOR_TX).map(drop).expect_err("not its own");
        assert_eq!(errno, EINVAL, "no program of its own has it open");
        // Root sees whose each is.
        let said = String::from_utf8(unetmap(&["ls"]).stdout).expect("text");
        assert!([ALICE, BOB, CAROL].iter().all(|uid| said.contains(&format!("pipe of user {uid}"))), "{said}");
    });
}

#[test]
fn a_shared_pipe_belongs_to_the_user_whom_the_policy_names() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, &format!("{PIPES}{SHARE}")) else { return };
        // The other user comes first, and does not take the name.
        let bob = opened(home, BOB, "bus1}1");
        let alice = opened(home, ALICE, "bus1{1");
        assert_eq!((ends(home, 0, "bus1{1"), ends(home, 0, "bus1}1")), (vec![(ALICE, true)], vec![(ALICE, true)]));
        assert_eq!(ends(home, BOB, "bus1{1"), [(ALICE, true)], "it has it open");
        for (name, flags) in [("bus1{1", 0), ("bus1}1", 0), ("bus2{x", 0), ("bus1{1", NR_MONITOR_TX)] {
            let (errno, why) = open_as(home, CAROL, name, flags).map(drop).expect_err("refused");
            let parts = ["user 4003", &name[..4], "user 4001", "choose another name", "[[share]]"];
            assert!(errno == EACCES && parts.iter().all(|part| why.contains(part)), "{name}: {errno} {why}");
        }
        assert!(ends(home, CAROL, "bus1{1").is_empty());
        drop(opened(home, 0, "bus1{1"));
        drop(open_as(home, BOB, "bus1{1", NR_MONITOR_TX).expect("a monitor"));
        // Other names, and ports of switches, are each user's own.
        let _others = [BOB, CAROL].map(|uid| [opened(home, uid, "b{1"), opened(home, uid, "vale0:bus1")]);
        assert_eq!(ends(home, 0, "b{1"), [(BOB, true), (CAROL, true)]);
        // A region of one of the users would be open to all.
        let (errno, why) = {
            let raw = ControlConnection::connect_as(&home.socket(), BOB).expect("a daemon that listens");
            let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, nr_mem_id: 1, ..Default::default() };
            let request = NetmapRequest::new(NETMAP_REQ_REGISTER, "bus3{1", body.as_bytes()).expect("a name");
            let (errno, reply, _) = raw.request(&request);
            (errno, reply.map_or_else(String::new, |reply| reply.reason))
        };
        assert!(errno == EINVAL && why.contains("without @N"), "{errno} {why}");
        // Once it is closed, and the policy gives it to nobody, it is anybody's.
        drop((alice, bob));
        until("it is closed", || ends(home, 0, "bus1{1").is_empty());
        set_policy(home, PIPES);
        let _carol = opened(home, CAROL, "bus1{1");
        assert_eq!(ends(home, 0, "bus1{1"), [(CAROL, true)]);
    });
}

/// Bytes that a user is charged.
fn memory(home: &Home, uid: u32) -> u64 {
    home.snapshot().users.into_iter().find(|user| user.uid == Some(uid)).map_or(0, |user| user.memory.used)
}

fn inode(file: &OwnedFd) -> u64 {
    fstat(file).expect("a file").st_ino
}

/// Opens a port as a user; returns its connection and descriptors, or the errno and the reason.
fn open_with_files(home: &Home, uid: u32, name: &str) -> Result<(ControlConnection, Vec<OwnedFd>), (i32, String)> {
    let raw = ControlConnection::connect_as(&home.socket(), uid).expect("a daemon that listens");
    let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..Default::default() };
    let request = NetmapRequest::new(NETMAP_REQ_REGISTER, name, body.as_bytes()).expect("a short name");
    let (errno, reply, files) = raw.request(&request);
    if errno == 0 { Ok((raw, files)) } else { Err((errno, reply.map_or_else(String::new, |reply| reply.reason))) }
}

/// A member that opens pipes and keeps their memory uses up its own budget, whichever end comes first.
#[test]
fn what_members_of_a_share_open_counts_for_them() {
    isolated(|home| {
        let policy = format!("{PIPES}{SHARE}[[budget]]\nusers = [4001, 4002]\nmemory = 4\n");
        let Some(_daemon) = daemon_with_args(home, &policy, &["--keep-ports"]) else { return };
        let _other = open("netmap:other{1");
        let bob = |name: &str| open_with_files(home, BOB, name);
        let alice = opened(home, ALICE, "bus0{1");
        assert!(memory(home, ALICE) > 0 && memory(home, BOB) == 0, "it pays until a member has it open");
        // Two pipes of a parent have nothing in common, as several members may have them.
        let both = ["bus0}1", "bus0{2"].map(|name| bob(name).expect("within its budget"));
        assert_ne!(inode(&both[0].1[0]), inode(&both[1].1[0]), "regions of their own");
        let before = memory(home, BOB);
        assert!(memory(home, ALICE) == 0 && before > 0);
        kept::wait_until_kept(home);
        kept::kill(home);
        replace::replace(home);
        assert_eq!((memory(home, ALICE), memory(home, BOB)), (0, before), "after a crash and a replacement");
        let mut files = Vec::new();
        let more = |n| bob(&format!("bus{n}{{1")).map(|(_, more)| files.push(more)).err();
        let (errno, why) = (1..300).find_map(more).expect("a refusal");
        assert!(errno == EDQUOT && why.contains("user 4002 has"), "{errno} {why}");
        assert_eq!(memory(home, ALICE), 0);
        drop(opened(home, ALICE, "bus1{1"));
        drop((alice, both, files));
        until("nothing is charged", || memory(home, BOB) == 0);
    });
}

/// With the node, a user's regions are in one file, which no other user may have.
#[test]
fn a_member_of_a_share_does_not_get_the_owners_other_memory() {
    isolated(|home| {
        let node = match Node::by(home, &format!("{PIPES}{SHARE}")) {
            Ok(node) => node,
            Err(why) => return summary(&format!("skipped: {why}")),
        };
        fs::set_permissions(home.folder(), Permissions::from_mode(0o755)).expect("our own folder");
        let region = |uid: u32, name: &str| {
            let (raw, files) = open_with_files(home, uid, name).expect("within its budget");
            (inode(&files[0]), raw, files)
        };
        let alice = ["own{1", "own2{1", "bus{1"].map(|name| region(ALICE, name));
        assert_eq!(alice[0].0, alice[1].0, "of a user");
        let bob = region(BOB, "bus}1");
        assert!(bob.0 == alice[2].0 && bob.0 != alice[0].0, "the pipe's own");
        drop(node);
    });
}

#[test]
fn a_user_may_have_shared_pipes_and_no_others() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, SHARE) else { return };
        let _pipe = [opened(home, BOB, "bus1}1"), opened(home, ALICE, "bus1{1")];
        let (errno, why) = open_as(home, BOB, "own{1", 0).map(drop).expect_err("no rule");
        assert!(errno == EACCES && why.contains("policy"), "{errno} {why}");
    });
}

#[test]
fn pipes_keep_their_owners_over_a_replacement_and_a_crash() {
    isolated(|home| {
        let policy = format!("{PIPES}{SHARE}");
        let Some(_daemon) = daemon_with_args(home, &policy, &["--keep-ports"]) else { return };
        let _open = [opened(home, BOB, "bus1}1"), opened(home, CAROL, "p{1")];
        let check = || {
            assert_eq!(ends(home, 0, "bus1}1"), [(ALICE, true)]);
            assert_eq!(ends(home, 0, "p{1"), [(CAROL, true)]);
            assert_eq!(open_as(home, CAROL, "bus1{1", 0).map(drop).expect_err("refused").0, EACCES);
            drop(opened(home, ALICE, "bus1{1"));
        };
        check();
        kept::wait_until_kept(home);
        kept::kill(home);
        check();
        // The one that takes over keeps nothing for a crash.
        replace::replace(home);
        check();
    });
}

fn unetmap(args: &[&str]) -> Output {
    Command::new(program("unetmap")).args(args).output().expect("unetmap runs")
}

/// Tells the daemon as a user what it serves with the port of this connection; returns the answer's errno.
#[track_caller]
fn declare(raw: &ControlConnection, socket: &str) -> i32 {
    let request = ServesRequest { service: Service::Memif, socket: socket.into() };
    raw.send(&wire::encode(ServesRequest::KIND, 0, 0, 0, &request.encode())).expect("it is sent");
    raw.receive().expect("an answer").errno
}

/// The user of a claim is the one that the kernel reports, and other users do not see it.
#[test]
fn what_a_user_says_that_it_serves_is_its_own_claim() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        let alice = opened(home, ALICE, "vale0:a");
        assert_eq!(declare(&alice, "/forged\u{1b}[2J\n"), 0);
        let show = |uid: u32| {
            let raw = ControlConnection::connect_as(&home.socket(), uid).expect("a daemon that listens");
            let request = ValeRequest { name: "vale0".into(), action: ValeAction::Show };
            raw.send(&wire::encode(ValeRequest::KIND, 0, 0, 0, &request.encode())).expect("it is sent");
            raw.receive().expect("an answer").text()
        };
        let state: serde_json::Value = serde_json::from_str(&show(ALICE)).expect("JSON");
        let served = &state["port"][0]["served"][0];
        assert_eq!((&served["uid"], &served["socket"]), (&ALICE.into(), &"/forged\u{1b}[2J\n".into()), "{state}");
        assert!(!show(BOB).contains("forged") && !show(0).contains("forged"));
        // Without a port there is nothing to serve.
        let raw = ControlConnection::connect_as(&home.socket(), BOB).expect("a daemon that listens");
        assert_ne!(declare(&raw, "/x"), 0);
    });
}

#[test]
fn what_clients_choose_reaches_no_terminal_unescaped() {
    isolated(|home| {
        let _daemon = kept::start(home, None);
        // The name of this process's program, while it opens ports.
        let comm = format!("/proc/self/task/{}/comm", getpid().as_raw_nonzero());
        let own = fs::read(&comm).expect("its own name");
        fs::write(&comm, b"a\x1b[2J\xe2\x80\xae\xc2\x9b\xff").expect("its own name");
        let (tx, rx) = (open("netmap:p{1"), open("netmap:p}1"));
        exchange(&tx, &rx, 0, 0, 10);
        let uid = geteuid().as_raw();
        let raw = if uid == 0 {
            opened(home, 0, "vale0:a")
        } else {
            ControlConnection::connect(&home.socket()).expect("it listens")
        };
        let name = "p\u{202e}q{1";
        let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..Default::default() };
        let request = NetmapRequest::new(NETMAP_REQ_REGISTER, name, body.as_bytes()).expect("a short name");
        let other = ControlConnection::connect(&home.socket()).expect("it listens");
        assert_eq!(other.request(&request).0, EINVAL, "such a name is refused");
        if uid == 0 {
            assert_eq!(declare(&raw, "/run/\u{1b}]0;x\u{7}\n\u{2066}\u{200b}forged"), 0);
        }
        fs::write(&comm, own).expect("its own name");
        for args in [
            &["ls"][..],
            &["ls", "--wide"],
            &["ls", "--users"],
            &["ls", "--json"],
            &["top", "-n", "1", "-i", "0.1"],
            &["top", "-n", "1", "-i", "0.1", "--json"],
            &["events"],
            &["events", "--json"],
            &["metrics"],
            &["metrics", "--openmetrics"],
            &["vale", "show", "vale0"],
            &["vale", "show", "vale0", "--json"],
            &["config", "show"],
            &["doctor"],
            &["nic", "p\u{1b}\u{202e}"],
            &["vale", "show", "vale\u{1b}\u{202e}"],
            &["capture", "netmap:p\u{1b}\u{202e}{1", "-w", "/x\u{1b}\u{202e}"],
        ] {
            let out = unetmap(args);
            for said in [out.stdout, out.stderr] {
                let said = String::from_utf8(said).unwrap_or_else(|e| panic!("{args:?}: {e}"));
                let wrong = said.chars().find(|c| !is_printable(*c) && !matches!(c, '\n' | '\t'));
                assert_eq!(wrong, None, "{args:?}: {said:?}");
                assert!(
                    !args.contains(&"--json")
                        || said.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok())
                        || serde_json::from_str::<serde_json::Value>(&said).is_ok(),
                    "{args:?}: {said}"
                );
            }
        }
        let ls = String::from_utf8(unetmap(&["ls"]).stdout).expect("text");
        assert!(ls.contains(r"a\u001b[2J\u202e\u009b"), "{ls}");
        let log = String::from_utf8(fs::read(home.log()).expect("a log")).expect("text");
        assert!(log.chars().all(|c| is_printable(c) || matches!(c, '\n' | '\t')), "{log:?}");
    });
}
