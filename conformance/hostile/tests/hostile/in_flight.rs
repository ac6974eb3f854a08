// SPDX-License-Identifier: BSD-2-Clause
//! A user does not receive the daemon's answers, whose descriptors the kernel counts against the daemon: its own
//! requests wait, and nobody else's.

use std::fs;
use std::os::fd::AsFd as _;

use conformance::home::{limit_daemon, summary};
use conformance::kept;
use conformance::replace::replace;
use conformance::{Home, isolated, until};
use conformance_hostile::raw::ControlConnection;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use unetmap::Port;
use unetmap::abi::NmreqRegister;
use unetmap::errno::ETOOMANYREFS;
use unetmap_core::control::wire;
use unetmap_core::control::{ControlRequest as _, NetmapRequest};
use unetmap_sys::socket;

use super::budgets::{ALICE, BOB, PIPES, assert_served, connect_as, daemon_with, daemon_with_args, register};

/// Opens that must succeed beside the attack.
const HONEST: usize = 20;
/// Descriptors of the answer for a pipe with 16 ring pairs.
const ANSWER: u64 = 67;

/// A connection on which a pipe of so many ring pairs was requested, and whose answer is not received.
#[track_caller]
fn ask(home: &Home, uid: u32, rings: u16) -> ControlConnection {
    let raw = connect_as(home, uid);
    send(&raw, "unread{1", rings, 64);
    raw
}

#[track_caller]
fn send(raw: &ControlConnection, name: &str, pairs: u16, slots: u32) {
    let (nr_tx_rings, nr_rx_rings, nr_tx_slots, nr_rx_slots) = (pairs, pairs, slots, slots);
    let fields = NmreqRegister { nr_tx_rings, nr_rx_rings, nr_tx_slots, nr_rx_slots, ..Default::default() };
    let request = register(name, fields).encode();
    raw.send(&wire::encode(NetmapRequest::KIND, 0, 0, 0, &request)).expect("a daemon that listens");
}

/// Descriptors in flight to a user, and as many as it may have.
#[track_caller]
fn in_flight(home: &Home, uid: u32) -> (u64, u64) {
    let users = home.snapshot().users;
    let share = users.iter().find(|user| user.uid == Some(uid)).map(|user| user.in_flight);
    share.map_or((0, 1), |share| (share.used, share.limit.unwrap_or(u64::MAX)))
}

#[track_caller]
fn until_held(home: &Home, uid: u32) {
    until("the user has its share", || {
        let (used, limit) = in_flight(home, uid);
        used >= limit
    });
}

/// Opens a pipe as another user, and as root.
#[track_caller]
fn assert_others_are_served(home: &Home) {
    for _ in 0..HONEST {
        assert_served(home, BOB);
        assert_served(home, 0);
    }
}

/// Receives all answers, of which each must be that a pipe was opened.
#[track_caller]
fn receive_all(mut connections: Vec<ControlConnection>) {
    while !connections.is_empty() {
        until("an answer comes", || connections.iter().any(ControlConnection::has_reply));
        connections.retain(|raw| {
            let is_answered = raw.has_reply();
            if is_answered {
                let reply = raw.receive().expect("an answer");
                assert_eq!(reply.errno, 0, "{}", String::from_utf8_lossy(&reply.payload));
            }
            !is_answered
        });
    }
}

/// Lowers this process's limit of open files, and that of its daemon; returns it.
#[track_caller]
fn limit_files(limit: Option<u64>) -> Option<u64> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = limit.map(|limit| limit.min(maximum.unwrap_or(limit))).or(maximum);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("a lower limit");
    limit
}

/// Asks for many pipes of so many ring pairs, with this limit of the daemon's open files, and receives no answer.
#[track_caller]
fn the_user_alone_waits(home: &Home, limit: Option<u64>, rings: u16) {
    let limit = limit_files(limit);
    let Some(_daemon) = daemon_with(home, PIPES) else { return };
    // As many would be in flight at a time that the kernel refused all answers.
    let unread: Vec<_> = (0..42).map(|_| ask(home, ALICE, rings)).collect();
    until_held(home, ALICE);
    assert_others_are_served(home);
    let (used, share) = in_flight(home, ALICE);
    let answer = 3 + 4 * u64::from(rings);
    let answered = unread.iter().filter(|raw| raw.has_reply()).count();
    assert!(used < share + answer && answered as u64 == used / answer, "{used} of {share}, {answered} answers");
    receive_all(unread);
    until("all was received", || in_flight(home, ALICE).0 == 0);
    summary(&format!("limit {limit:?}: {answered} of 42 answers sent, {used} descriptors in flight of {share}"));
}

#[test]
fn a_user_who_receives_no_answers_waits_alone_at_a_limit_of_1024() {
    isolated(|home| the_user_alone_waits(home, Some(1024), 16));
}

#[test]
fn a_user_who_receives_no_answers_waits_alone_at_a_limit_of_20000() {
    isolated(|home| the_user_alone_waits(home, Some(20_000), 128));
}

#[test]
fn a_user_who_receives_no_answers_waits_alone_at_the_highest_limit() {
    isolated(|home| the_user_alone_waits(home, None, 128));
}

/// The connections have ended for the daemon, by three ways, and the kernel counts on what was sent there.
#[test]
fn what_was_sent_on_a_connection_that_has_ended_counts_until_it_is_received() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        assert_served(home, ALICE);
        until("its connection is closed", || home.snapshot().sessions.is_empty());
        let fds = home.daemon_fds();
        let (passed, receiver) = socket::pair().expect("two sockets");
        let mut ended = Vec::new();
        for n in 0.. {
            assert!(n < 60, "nothing holds the user's requests");
            let raw = ask(home, ALICE, 16);
            until("an answer comes, or is held", || {
                let (used, share) = in_flight(home, ALICE);
                raw.has_reply() || used >= share
            });
            if !raw.has_reply() {
                ended.push(raw);
                break;
            }
            if n % 3 == 0 {
                // The answer is in a socket that is itself in flight.
                socket::send(&passed, b"x", &[raw.as_fd()]).expect("room");
                rustix::net::shutdown(raw.as_fd(), rustix::net::Shutdown::Both).expect("a connection");
            } else {
                let how = if n % 3 == 1 { rustix::net::Shutdown::Write } else { rustix::net::Shutdown::Both };
                rustix::net::shutdown(raw.as_fd(), how).expect("a connection");
                ended.push(raw);
            }
        }
        let held = ended.pop().expect("a connection");
        until("the ports are closed", || home.snapshot().sessions.is_empty());
        until_held(home, ALICE);
        assert_others_are_served(home);
        assert!(!held.has_reply());
        let (used, share) = in_flight(home, ALICE);
        assert!(used >= share && used < share + ANSWER, "{used} of {share}");
        // What was sent can be received though the connection has ended.
        let reply = ended.pop().expect("a connection").receive().expect("the answer");
        assert_eq!((reply.errno, reply.fds.len() as u64), (0, ANSWER));
        assert_eq!(held.receive().expect("the answer").errno, 0);
        drop((ended, held, passed, receiver));
        until("nothing is in flight", || in_flight(home, ALICE).0 == 0);
        home.until_fds(fds);
    });
}

/// Requests wait while the daemon is replaced: the successor answers them.
#[test]
fn requests_that_wait_are_answered_by_the_daemon_that_replaces_theirs() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        let unread: Vec<_> = (0..20).map(|_| ask(home, ALICE, 16)).collect();
        until_held(home, ALICE);
        let before = in_flight(home, ALICE);
        replace(home);
        assert_eq!(in_flight(home, ALICE), before);
        assert_others_are_served(home);
        receive_all(unread);
        until("all was received", || in_flight(home, ALICE).0 == 0);
    });
}

/// So are requests that have waited for the memory of large pipes before.
#[test]
fn requests_that_waited_for_memory_are_answered_by_the_daemon_that_replaces_theirs() {
    isolated(|home| {
        limit_files(Some(1024));
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        let open_large = |n: u32| {
            let raw = connect_as(home, ALICE);
            send(&raw, &format!("large{n}{{1"), 4, 4096);
            raw
        };
        let unread: Vec<_> = (0..8).map(open_large).collect();
        until_held(home, ALICE);
        replace(home);
        assert_others_are_served(home);
        assert!(unread.iter().filter(|raw| raw.has_reply()).count() < unread.len());
        receive_all(unread);
    });
}

/// The daemon crashes while requests wait: these end with it, and all else goes on.
#[test]
fn a_crash_while_requests_wait_ends_these_alone() {
    isolated(|home| {
        let Some(_daemon) = daemon_with_args(home, PIPES, &["--keep-ports"]) else { return };
        let unread: Vec<_> = (0..20).map(|_| ask(home, ALICE, 16)).collect();
        until_held(home, ALICE);
        let answered = unread.iter().filter(|raw| raw.has_reply()).count();
        kept::wait_until_kept(home);
        kept::kill(home);
        assert_others_are_served(home);
        let replies = unread.iter().filter_map(|raw| raw.receive_after_reset()).filter(|reply| reply.errno == 0);
        assert_eq!(replies.count(), answered);
        assert_eq!(home.snapshot().sessions.len(), answered);
        until("all was received", || in_flight(home, ALICE).0 == 0);
    });
}

/// The user that a process is.
#[track_caller]
fn user_of(process: Pid) -> u32 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("a line of status");
    line.split_whitespace().next().and_then(|uid| uid.parse().ok()).expect("a number")
}

/// Root's own programs receive no answers, which nothing bounds, until the kernel sends none: answers wait for a while
/// and then fail with the reason. Another daemon of root is another user, and notices nothing.
#[test]
fn an_answer_that_the_kernel_refuses_is_sent_later_or_fails_with_the_reason() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        let other = Home::at(&home.folder().join("other")).expect("a folder");
        let Some(_other_daemon) = daemon_with(&other, PIPES) else { return };
        let mut unread: Vec<_> = (0..10).map(|_| ask(home, 0, 16)).collect();
        until("all are answered", || unread.iter().all(ControlConnection::has_reply));
        let limit = 8 * ANSWER;
        for home in [home, &other] {
            limit_daemon(home.daemon(), Resource::Nofile, Some(limit));
        }
        assert_others_are_served(&other);
        let asked = ask(home, BOB, 1);
        // Another request was answered meanwhile.
        assert!(connect_as(home, BOB).holder() != 0 && !asked.has_reply());
        for raw in unread.drain(..5) {
            raw.receive().expect("an answer");
        }
        assert_eq!(asked.receive().expect("an answer").errno, 0);
        unread.extend((0..4).map(|_| ask(home, 0, 16)));
        until("all are answered", || unread.iter().all(ControlConnection::has_reply));
        let failing = ask(home, BOB, 1);
        let Err(refused) = Port::open("netmap:refused{1") else { panic!("the port is open") };
        let refused = refused.to_string();
        let user = user_of(home.daemon());
        for part in ["netmap:refused{1", "cannot pass the answer's file descriptors", "limit", &user.to_string()] {
            assert!(refused.contains(part), "{refused}");
        }
        let reply = failing.receive().expect("an answer");
        assert_eq!((reply.errno, reply.fds.len()), (ETOOMANYREFS, 0));
        until("the ports of failed requests are closed", || home.snapshot().sessions.len() == unread.len() + 1);
        receive_all(std::mem::take(&mut unread));
        // The connection can be used again.
        send(&failing, "unread{1", 1, 64);
        assert_eq!(failing.receive().expect("an answer").errno, 0);
        assert_others_are_served(home);
    });
}
