// SPDX-License-Identifier: BSD-2-Clause
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;

use proptest::prelude::*;
use unetmap_sys::xdp::{ClassicInsn, Mode};
use unetmap_sys::xsk::BusyPoll;
use unetmap_sys::{memfd, socket};

use super::connection::{Failure, Lane, lane_here};
use super::objects::Broker;
use super::operations::Request;
use super::setup::{Handle, Setup, TcxId, XdpId};
use super::table::{Answer, Fd, Reply, With};
use super::*;
use crate::channel::{IN_FILE, INLINE, receive, send};
use crate::policy::Policy;
use crate::tuning::broker::{REPLY_BYTES, REQUEST_BYTES};

fn pair() -> (OwnedFd, OwnedFd) {
    socket::pair().expect("a pair of sockets")
}

fn refused(result: io::Result<Answer>) -> bool {
    result.is_err()
}

/// Returns the broker's answer to a message.
fn answer_to(bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Option<Result<serde_json::Value, Failure>> {
    let (daemon, broker) = pair();
    let server = thread::spawn(move || Broker::new(Setup::default()).serve_connection(&broker));
    socket::send(&daemon, bytes, fds).expect("it listens");
    let reply = receive(&daemon, REPLY_BYTES).expect("it answers, or has closed its end").map(|(reply, _)| reply);
    drop(daemon);
    server.join().expect("it does not panic");
    reply
}

#[test]
fn errors_keep_their_number_or_their_kind_and_text() {
    for e in [
        io::Error::from_raw_os_error(16),
        io::Error::new(io::ErrorKind::InvalidInput, "instruction 3: why"),
        io::Error::other("a sentence"),
    ] {
        let copy = io::Error::from(Failure::from(&e));
        assert_eq!((copy.raw_os_error(), copy.to_string()), (e.raw_os_error(), e.to_string()));
        assert_eq!(copy.kind() == io::ErrorKind::InvalidInput, e.kind() == io::ErrorKind::InvalidInput);
    }
}

#[test]
fn brokers_of_earlier_daemons_understand_requests() {
    let busy = BusyPoll::new(50, 16).expect("in bounds");
    for (request, sent) in [
        (Request::Links, r#""Links""#),
        (Request::Link(1), r#"{"Link":1}"#),
        (Request::XdpInsert(XdpId(Handle(7)), 2), r#"{"XdpInsert":[7,2]}"#),
        (Request::TryBusyPoll(busy), r#"{"TryBusyPoll":{"usec":50,"budget":16}}"#),
        (Request::CreateVeth { nic: 1, queues: 2, relay: true }, r#"{"CreateVeth":{"nic":1,"queues":2,"relay":true}}"#),
    ] {
        assert_eq!(serde_json::to_string(&request).expect("it can be sent"), sent);
    }
    let out_of_bounds = serde_json::from_str::<Request>(r#"{"TryBusyPoll":{"usec":50,"budget":65}}"#);
    assert!(out_of_bounds.expect_err("65 is too large").to_string().contains("1 to 64 packets"));
}

#[test]
fn a_policy_of_an_earlier_broker_can_be_read() {
    let of_earlier = r#"{"rules":[],"shares":[],"budgets":{"users":[],"total":TOTAL}}"#;
    let mut now = serde_json::to_value(Policy::default()).expect("it can be sent");
    let total = now["budgets"]["total"].to_string();
    let read: Policy = serde_json::from_str(&of_earlier.replace("TOTAL", &total)).expect("it can be read");
    // Members that it does not know are those that have a default.
    now["budgets"].as_object_mut().expect("an object").remove("subordinates");
    assert_eq!(serde_json::from_value::<Policy>(now).expect("it can be read").budgets(), read.budgets());
}

#[test]
fn one_thread_alone_takes_the_lane_of_deadlines() {
    let lanes = || [Lane::Deadlines, Lane::Control, Lane::Node].map(lane_here);
    assert_eq!(lanes(), [Lane::Control, Lane::Control, Lane::Node]);
    assert_eq!(beside_control(lanes), [Lane::Interfaces, Lane::Interfaces, Lane::Node]);
    let renewing = thread::spawn(move || {
        renew_deadlines();
        lanes()
    });
    assert_eq!(renewing.join().expect("it ends"), [Lane::Deadlines, Lane::Control, Lane::Node]);
}

#[test]
fn replies_are_the_same_on_both_sides() {
    type Pair = With<(u32, u32), (OwnedFd, OwnedFd)>;
    type Maybe = With<Result<(), String>, Option<OwnedFd>>;
    let (one, other) = pair();
    let (number, fds) = Pair::encode(((1, 2), (one, other))).expect("descriptors are left");
    assert_eq!(fds.len(), 2);
    let ((first, second), (one, other)) = Pair::decode((number.clone(), fds)).expect("it is whole");
    socket::send(&one, b"x", &[]).expect("it is the other's peer");
    let got = socket::recv(&other, &mut [0; 2], &mut Vec::new()).expect("it has arrived");
    assert_eq!((first, second, got.bytes), (1, 2, 1));
    assert!(Pair::decode((number, vec![one])).is_err() && Fd::<OwnedFd>::decode((().into(), vec![])).is_err());
    let refusal = || Maybe::encode((Err("no".into()), None)).expect("it needs none");
    assert!(matches!(Maybe::decode(refusal()), Ok((Err(why), None)) if why == "no"));
}

#[test]
fn long_messages_arrive() {
    let (one, other) = pair();
    let program = vec![ClassicInsn { code: 0x28, jt: 255, jf: 255, k: u32::MAX }; 4096];
    send(&one, &Request::TryFilter(program.clone()), &[]).expect("it is sent as a file");
    match receive(&other, REQUEST_BYTES).expect("it is valid") {
        Some((Request::TryFilter(got), fds)) => assert!(got == program && fds.is_empty()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn malformed_messages_are_refused() {
    let null = std::fs::File::open("/dev/null").expect("it is there");
    let long = memfd::create_sealed("test", REQUEST_BYTES + 1).expect("a memory file");
    let messages: [(&[u8], &[BorrowedFd<'_>]); 8] = [
        (&[INLINE], &[]),
        (&[IN_FILE], &[]),
        (&[IN_FILE], &[null.as_fd()]),
        (&[IN_FILE], &[long.as_fd()]),
        (&[7, b'1'], &[]),
        (b"\0{\"Link\":-1}", &[]),
        (b"\0\"RunProgram\"", &[]),
        (b"\0{\"LoadProgram\":[1,2]}", &[]),
    ];
    for (bytes, fds) in messages {
        let answer = answer_to(bytes, fds);
        assert!(matches!(&answer, Some(Err(_))), "{bytes:?}: {answer:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Neither bytes nor almost valid requests make it panic; each message is answered.
    #[test]
    fn any_message_is_answered(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 1..200),
            "\0\\{\"(XdpInsert|XdpRemove|TcxMark|Extend|Drop|OpenXsk|XdpFilter)\":\\[?[0-9,\\[\\]]{0,40}\\}".prop_map(String::into_bytes),
        ],
    ) {
        prop_assert!(answer_to(&bytes, &[]).is_some());
    }
}

#[test]
fn operations_on_what_the_daemon_has_not_are_refused() {
    let broker = Broker::new(Setup::default());
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").expect("it is there"));
    let none = Handle(77);
    for (request, fds) in [
        // Nothing has this handle.
        (Request::XdpRemove(XdpId(none), 0), vec![]),
        (Request::TcxDropped(TcxId(none)), vec![]),
        (Request::Extend(none, 1), vec![]),
        (Request::Drop(none), vec![]),
        (Request::KillMemoryHelper(none), vec![]),
        // The descriptor is missing, or is another thing.
        (Request::Link(1), vec![]),
        (Request::Link(1), vec![null()]),
        (Request::AttachXdp { index: 1, queues: 1, mode: Mode::Generic }, vec![null()]),
        (Request::SetBusyPoll(BusyPoll::new(1, 1).expect("in bounds")), vec![null()]),
        (Request::NamespaceOfPeer, vec![null()]),
        (Request::NamespaceOfThread(1), vec![null()]),
        (Request::OpenBacking, vec![null(), null()]),
        (Request::CloseBacking(1), vec![null()]),
        (Request::ForbidRemoval, vec![null()]),
        // It is another's: no interface that the broker made, no thread that uses the node.
        (
            Request::DeleteVeth(1),
            vec![
                unetmap_sys::netns::Netns::current().expect("proc").as_fd().try_clone_to_owned().expect("a descriptor"),
            ],
        ),
        (Request::UseMemoryHelper(none, 1), vec![null()]),
    ] {
        let name = format!("{request:?}");
        assert!(refused(broker.serve(request, fds)), "{name}");
    }
}

#[test]
fn the_link_to_the_node_is_made_nowhere_else() {
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let setup = Setup { socket: folder.path().join("socket"), ..Setup::default() };
    for path in
        ["/etc/cron.d/netmap", "/usr/bin/netmap", "/dev/../etc/netmap", "/root/netmap", "/netmap", "/run/netmap"]
    {
        assert!(mounts::check(&setup, Path::new(path)).is_err(), "{path}");
    }
    for path in [Path::new("/dev/netmap-test"), &folder.path().join("netmap")] {
        assert_eq!(mounts::check(&setup, path).ok(), Some(false), "{}", path.display());
    }
}
