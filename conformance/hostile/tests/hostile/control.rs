// SPDX-License-Identifier: BSD-2-Clause
//! Invalid and excessive use of the control socket: the daemon replies with an errno or closes the connection, and
//! serves others.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

use conformance::home::{highest_file, limit_daemon, raise_fd_limit, summary};
use conformance::packet::Rng;
use conformance::traffic::{exchange, open};
use conformance::{Home, isolated, until};
use conformance_hostile::raw::ControlConnection;
use unetmap::Port;
use unetmap::abi::*;
use unetmap::errno::*;
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::control::wire::{self, Kind};
use unetmap_core::control::{ControlRequest, HelloRequest, KnobRequest, LockHolderRequest, SnapshotRequest};
use unetmap_sys::socket;
use zerocopy::IntoBytes as _;

fn connect(home: &Home) -> ControlConnection {
    ControlConnection::connect(&home.socket()).expect("a daemon that listens")
}

fn register(name: &str) -> NetmapRequest {
    let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..Default::default() };
    NetmapRequest::new(NETMAP_REQ_REGISTER, name, body.as_bytes()).expect("a short name")
}

fn ctrl(payload: &[u8]) -> Vec<u8> {
    wire::encode(NetmapRequest::KIND, 0, 0, 0, payload)
}

fn with_u16(mut bytes: Vec<u8>, at: usize, value: u16) -> Vec<u8> {
    bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    bytes
}

fn with_u32(mut bytes: Vec<u8>, at: usize, value: u32) -> Vec<u8> {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    bytes
}

/// A malformed message: an errno, then the connection is closed.
#[test]
fn a_malformed_message_ends_the_connection() {
    isolated(|home| {
        let (far, near) = (open("netmap:g{1"), open("netmap:g}1"));
        let fds = home.daemon_fds();
        let good = ctrl(&register("g{2").encode());
        let n = good.len();
        let cases: Vec<(&str, Vec<u8>, i32)> = vec![
            ("one byte", good[..1].to_vec(), EPROTO),
            ("half a head", good[..wire::HEAD_BYTES / 2].to_vec(), EPROTO),
            ("a head with a longer payload than sent", good[..wire::HEAD_BYTES].to_vec(), EPROTO),
            ("one byte short", good[..n - 1].to_vec(), EPROTO),
            ("one byte long", [&good[..], &[0]].concat(), EPROTO),
            ("a length of 0", with_u32(good.clone(), 8, 0), EPROTO),
            ("a length of 4 GiB", with_u32(good.clone(), 8, u32::MAX), EPROTO),
            ("longer than allowed", ctrl(&vec![0; wire::MAX_REQUEST]), EMSGSIZE),
            ("much longer than allowed", ctrl(&vec![0; 100_000]), EMSGSIZE),
            ("another protocol", with_u32(good.clone(), 0, 0x1234_5678), EPROTO),
            ("an older version", with_u16(good.clone(), 4, wire::VERSION - 1), EPROTONOSUPPORT),
            ("a newer version", with_u16(good.clone(), 4, wire::VERSION + 1), EPROTONOSUPPORT),
            ("the last version", with_u16(good.clone(), 4, u16::MAX), EPROTONOSUPPORT),
            ("no kind", with_u16(good.clone(), 6, 0), EPROTO),
            ("an unknown kind", with_u16(good.clone(), 6, 99), EPROTO),
            ("a kind that only the daemon sends", with_u16(good.clone(), 6, Kind::MORE_FDS.0), EPROTO),
        ];
        for (what, bytes, errno) in &cases {
            let raw = connect(home);
            raw.send(bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
            let reply = raw.receive().unwrap_or_else(|| panic!("{what}: the connection was closed without an answer"));
            assert_eq!(reply.errno, *errno, "{what}");
            assert!(raw.receive().is_none(), "{what}: the connection stays open");
            exchange(&far, &near, 1, 0, 10);
        }
        assert_eq!(home.snapshot().sessions.len(), 2);
        home.until_fds(fds);
        summary(&format!("malformed messages {}, each answered, each connection closed", cases.len()));
    });
}

#[test]
fn unexpected_file_descriptors_are_closed() {
    isolated(|home| {
        let _port = open("netmap:g{1");
        let fds = home.daemon_fds();
        let file = File::open("/dev/null").expect("a file");
        for n in [1, 5, 253] {
            for message in
                [ctrl(&register("g{2").encode()), wire::encode(LockHolderRequest::KIND, 0, 0, 0, &[]), vec![0; 3]]
            {
                let raw = connect(home);
                match raw.send_with(&message, &vec![file.as_fd(); n]) {
                    // Linux 6.16 and newer refuse descriptors that the receiver does not accept.
                    Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::PermissionDenied, "{e}"),
                    Ok(()) => {
                        assert_eq!(raw.receive().expect("an answer").errno, EINVAL);
                        assert!(raw.receive().is_none());
                    }
                }
            }
        }
        home.until_fds(fds);
        home.assert_serves();
    });
}

/// A well-formed message with an invalid request: an errno, and the connection stays open.
#[test]
fn an_invalid_request_is_refused_and_the_connection_stays_open() {
    isolated(|home| {
        let _port = open("netmap:g{1");
        let raw = connect(home);
        let refused = |payload: &[u8]| {
            raw.send(&ctrl(payload)).expect("an open connection");
            raw.receive().expect("an answer").errno
        };
        let good = register("g{2").encode();
        for n in 0..good.len() {
            assert_eq!(refused(&good[..n]), EINVAL, "cut to {n} bytes");
        }
        assert_eq!(refused(&[&good[..], &[0]].concat()), EINVAL, "a byte too much");
        assert_eq!(refused(&vec![0xff; 4000]), EINVAL);
        let changed = |change: &dyn Fn(&mut NetmapRequest)| {
            let mut request = register("g{2");
            change(&mut request);
            refused(&request.encode())
        };
        for version in [0, 13, 16, u16::MAX] {
            assert_eq!(changed(&|r| r.header.nr_version = version), EINVAL, "version {version}");
        }
        assert_eq!(changed(&|r| r.header.nr_reqtype = 0), EINVAL);
        assert_eq!(changed(&|r| r.header.nr_reqtype = 999), EINVAL);
        assert_eq!(changed(&|r| r.header.nr_reserved = 1), EINVAL);
        assert_eq!(changed(&|r| r.body.truncate(7)), EINVAL);
        assert_eq!(changed(&|r| r.body.clear()), EINVAL);
        assert_eq!(changed(&|r| r.header.nr_name = [b'a'; 64]), EINVAL, "a name without an end");
        assert_eq!(changed(&|r| r.header.nr_name[0] = 0xff), EINVAL, "a name that is no text");
        let option = |kind: u32| NmreqOption { nro_reqtype: kind, ..Default::default() }.as_bytes().to_vec();
        assert_eq!(changed(&|r| r.options = vec![option(0)]), EINVAL);
        let csb = NETMAP_REQ_OPT_CSB;
        assert_eq!(changed(&|r| r.options = vec![option(csb), option(csb)]), EINVAL);
        assert_eq!(changed(&|r| r.options = vec![option(77)]), EOPNOTSUPP);
        assert_eq!(changed(&|r| r.options = vec![vec![0; 5000]]), EMSGSIZE);
        // netmap requests for objects that cannot exist. Only root may attach something.
        let absent = if rustix::process::geteuid().is_root() { ENXIO } else { EPERM };
        for (reqtype, body, errno) in [
            (NETMAP_REQ_VALE_ATTACH, size_of::<NmreqValeAttach>(), absent),
            (NETMAP_REQ_VALE_DETACH, size_of::<NmreqValeDetach>(), ENXIO),
            (NETMAP_REQ_VALE_POLLING_ENABLE, size_of::<NmreqValePolling>(), ENXIO),
            (NETMAP_REQ_VALE_LIST, size_of::<NmreqValeList>(), ENOENT),
            (NETMAP_REQ_CSB_ENABLE, 0, EINVAL),
        ] {
            let request = NetmapRequest::new(reqtype, "vale0:a", &vec![0; body]).expect("a short name");
            assert_eq!(refused(&request.encode()), errno, "request {reqtype}");
        }
        assert_eq!(home.snapshot().sessions.len(), 1, "a wrong request opened something");
        // And the very same connection opens a port, once.
        assert_eq!(refused(&good), 0);
        assert_eq!(refused(&good), EBUSY);
        assert_eq!(home.snapshot().sessions.len(), 2);
    });
}

#[test]
fn random_bytes_of_every_length_are_rejected() {
    isolated(|home| {
        let (far, near) = (open("netmap:g{1"), open("netmap:g}1"));
        let fds = home.daemon_fds();
        let mut rng = Rng(0x5eed_0020);
        let good = ctrl(&register("g{2").encode());
        for round in 0..1500u64 {
            let raw = connect(home);
            let bytes: Vec<u8> = if round % 2 == 0 {
                (0..1 + rng.below(9000)).map(|_| rng.next_u64() as u8).collect()
            } else {
                // A good one with three bytes changed.
                let mut bytes = good.clone();
                for _ in 0..3 {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] = rng.next_u64() as u8;
                }
                bytes
            };
            raw.send(&bytes).expect("a message");
            if let Some(reply) = raw.receive() {
                assert!((0..200).contains(&reply.errno), "{}", reply.errno);
            }
            if round % 100 == 0 {
                exchange(&far, &near, 1, round, round + 10);
            }
        }
        until("all of them are gone", || home.snapshot().sessions.len() == 2);
        home.until_fds(fds);
        home.assert_serves();
    });
}

#[test]
fn silent_connections_delay_no_other_client() {
    isolated(|home| {
        let _port = open("netmap:g{1");
        // No request; half a request; a request whose reply is not read.
        let silent: Vec<ControlConnection> = (0..100).map(|_| connect(home)).collect();
        let good = ctrl(&register("g{2").encode());
        let half: Vec<ControlConnection> = (0..100).map(|_| connect(home)).collect();
        half.iter().for_each(|raw| raw.send(&good[..good.len() / 2]).expect("a message"));
        let deaf: Vec<ControlConnection> = (0..100).map(|_| connect(home)).collect();
        deaf.iter().for_each(|raw| raw.send(&good).expect("a message"));
        home.assert_serves();
        until("the deaf are served too", || home.snapshot().sessions.len() == 101);
        drop((silent, half, deaf));
        until("all of them are gone", || home.snapshot().sessions.len() == 1);
    });
}

#[test]
fn a_client_that_never_reads_its_replies_has_one_of_them() {
    isolated(|home| {
        let (far, near) = (open("netmap:g{1"), open("netmap:g}1"));
        let (fds, many) = (home.daemon_fds(), 40);
        for kind in [SnapshotRequest::KIND, KnobRequest::KIND, NetmapRequest::KIND, LockHolderRequest::KIND] {
            let (raw, other) = (connect(home), connect(home));
            let payload: &[u8] = match kind {
                NetmapRequest::KIND => b"nonsense",
                KnobRequest::KIND => &[0],
                _ => b"",
            };
            let request = wire::encode(kind, 0, 0, 0, payload);
            (0..many).for_each(|_| raw.send(&request).expect("an open connection"));
            // Users take turns, and so do the connections of one: meanwhile each could have been answered.
            for _ in 0..2 * many {
                other.send(&wire::encode(HelloRequest::KIND, 0, 0, 0, &[])).expect("an open connection");
                assert_eq!(other.receive().expect("an answer").errno, 0);
            }
            exchange(&far, &near, 1, 0, 10);
            let waiting = raw.waiting_bytes();
            let first = raw.receive().expect("an answer");
            let bytes = (wire::HEAD_BYTES + first.payload.len()) as u64;
            assert_eq!(waiting, bytes, "more than one answer of {kind:?} waits");
            // All are answered, one after the other; only a second holder ID ends the connection.
            if kind != LockHolderRequest::KIND {
                assert!((1..many).all(|_| raw.receive().is_some()), "{kind:?}");
            }
        }
        home.assert_serves();
        home.until_fds(fds);
    });
}

#[test]
fn each_connection_gets_one_unique_holder_id() {
    isolated(|home| {
        let _port = open("netmap:g{1");
        let mut numbers: Vec<u32> = Vec::new();
        let all: Vec<ControlConnection> = (0..200).map(|_| connect(home)).collect();
        for raw in &all {
            numbers.push(raw.holder());
        }
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 200);
        assert!(!numbers.contains(&0));
        let again = wire::encode(LockHolderRequest::KIND, 0, 0, 0, &[]);
        all[0].send(&again).expect("an open connection");
        assert_eq!(all[0].receive().expect("an answer").errno, EINVAL);
        assert!(all[0].receive().is_none());
    });
}

#[test]
fn a_thousand_connections_opened_and_dropped() {
    isolated(|home| {
        raise_fd_limit();
        let (far, near) = (open("netmap:g{1"), open("netmap:g}1"));
        let fds = home.daemon_fds();
        for _ in 0..1000 {
            drop(connect(home));
        }
        let all: Vec<ControlConnection> = (0..1000).map(|_| connect(home)).collect();
        until("all are accepted", || home.snapshot().daemon.connections > 1000);
        exchange(&far, &near, 1, 0, 100);
        home.assert_serves();
        drop(all);
        let good = ctrl(&register("g{2").encode());
        for i in 0..1000 {
            let raw = connect(home);
            raw.send(&good[..good.len() - i % 2]).expect("a message");
        }
        until("all are gone", || home.snapshot().daemon.connections <= 4 && home.snapshot().sessions.len() == 2);
        home.until_fds(fds);
        home.assert_serves();
        summary(&format!("connections 3000, files of the daemon {fds} before and after"));
    });
}

#[test]
fn a_thousand_ports_opened_and_closed() {
    isolated(|home| {
        let keeper = open("netmap:g{9");
        let before = home.snapshot().buffers("g");
        let cycle = |n: u32| {
            for i in 0..n {
                // Of the same parent, and of its own parent, whose region is created and removed.
                let port = open(if i % 4 == 0 { "netmap:other{1" } else { "netmap:g{1" });
                drop(port);
            }
        };
        let own_fds = || std::fs::read_dir("/proc/self/fd").expect("proc").count();
        cycle(200);
        until("all are closed", || home.snapshot().sessions.len() == 1);
        let (fds, kib, own) = (home.daemon_fds(), home.daemon_kib("RssAnon:"), own_fds());
        cycle(1000);
        until("all are closed", || home.snapshot().sessions.len() == 1);
        let grown = home.daemon_kib("RssAnon:").saturating_sub(kib);
        home.until_fds(fds);
        assert_eq!(own_fds(), own, "the library leaks files");
        assert!(grown < 4096, "the daemon grew by {grown} KiB");
        assert_eq!(home.snapshot().buffers("g"), before);
        summary(&format!("opened and closed 1000, files of the daemon {fds} before and after, grown by {grown} KiB"));
        drop(keeper);
    });
}

#[test]
fn a_daemon_without_file_descriptors_refuses_clients_and_keeps_running() {
    isolated(|home| {
        use rustix::process::Resource;
        raise_fd_limit();
        let (far, near) = (open("netmap:g{1"), open("netmap:g}1"));
        let daemon = home.daemon();
        // The files that it has, and a few more.
        let highest = highest_file(daemon);
        limit_daemon(daemon, Resource::Nofile, Some(u64::from(highest) + 10));
        let all: Vec<ControlConnection> = (0..100).map(|_| connect(home)).collect();
        // Each is answered or its connection is closed, none waits; and of 100 at least 60 find no file free, whenever
        // the daemon has one free for a moment. All do if memory files that it makes ahead have taken the few.
        let disconnected = all.iter().filter(|raw| {
            let _ = raw.send(&wire::encode(LockHolderRequest::KIND, 0, 0, 0, &[]));
            raw.receive().is_none()
        });
        let disconnected = disconnected.count();
        assert!(disconnected >= 60, "{disconnected} of 100 connections were closed");
        exchange(&far, &near, 1, 0, 100);
        drop(all);
        limit_daemon(daemon, Resource::Nofile, None);
        sleep(Duration::from_millis(50));
        home.assert_serves();
    });
}

/// A snapshot of many ports is made in slices: what follows it on the connection is answered after it, and others are
/// answered between.
#[test]
fn a_snapshot_of_many_ports_is_made_in_order_beside_other_requests() {
    isolated(|home| {
        raise_fd_limit();
        let ports: Vec<_> = (0..300).map(|n| open(&format!("netmap:p{n}{{1"))).collect();
        until("all are open", || home.snapshot().sessions.len() == ports.len());
        let fds = home.daemon_fds();
        let [snapshot, hello] =
            [SnapshotRequest::KIND, HelloRequest::KIND].map(|kind| wire::encode(kind, 0, 0, 0, &[]));
        for round in 0..20 {
            let (raw, other) = (connect(home), connect(home));
            raw.send(&snapshot).and_then(|()| raw.send(&hello)).expect("an open connection");
            if round % 2 == 1 {
                // The snapshot has nobody any more who wants it.
                drop(raw);
                continue;
            }
            other.send(&hello).expect("an open connection");
            assert_eq!(other.receive().map(|reply| reply.errno), Some(0));
            let json = raw.receive().expect("a snapshot").text();
            let all: serde_json::Value = serde_json::from_str(&json).expect("JSON");
            let count = |list: &str| all[list].as_array().expect("a list").len();
            assert_eq!((count("regions"), count("ports"), count("sessions")), (300, 600, 300));
            assert!(raw.receive().is_some_and(|reply| reply.payload.is_empty() && reply.fds.is_empty()));
        }
        home.until_fds(fds);
        home.assert_serves();
    });
}

/// Opening a port takes two connections, whose answers a program waits for at once: beside busy users it waits for one
/// turn and not for two. The test is the daemon here, and answers nothing.
#[test]
fn a_program_asks_for_its_holder_id_while_its_port_is_opened() {
    isolated(|home| {
        let listener = socket::listen(&home.socket(), 0o600).expect("nobody listens");
        let program = std::thread::spawn(|| Port::open("netmap:g{1").map(drop));
        let mut asked: Vec<(OwnedFd, Option<Kind>)> = Vec::new();
        until("both requests are there", || {
            asked.extend(socket::accept(&listener).ok().map(|fd| (fd, None)));
            for (fd, kind) in asked.iter_mut().filter(|(_, kind)| kind.is_none()) {
                let mut buf = [0; wire::MAX_REQUEST];
                let got = socket::recv(&*fd, &mut buf, &mut Vec::new());
                *kind = got.ok().map(|got| wire::decode(&buf[..got.bytes]).expect("a message").0);
            }
            asked.iter().filter(|(_, kind)| kind.is_some()).count() == 2
        });
        let kinds: Vec<_> = asked.iter().map(|(_, kind)| *kind).collect();
        assert_eq!(kinds, [Some(NetmapRequest::KIND), Some(LockHolderRequest::KIND)]);
        // The program starts a daemon, which serves it.
        drop(listener);
        drop(asked);
        program.join().expect("no panic").expect("an open port");
    });
}
