// SPDX-License-Identifier: BSD-2-Clause
//! A process of an ordinary user that has the descriptor of a connection by which root's program has a port: one that
//! root's program has started, or this program itself, after it has become another user.

use std::os::fd::AsFd as _;

use conformance::{Home, isolated};
use conformance_hostile::raw::ControlConnection;
use unetmap::abi::NmreqRegister;
use unetmap::errno::EPERM;
use unetmap_core::control::{
    ControlRequest, HelloRequest, Kind, KnobRequest, LockHolderRequest, NodeRequest, StopRequest, wire,
};

use crate::budgets::{PIPES, daemon_with, register};

/// The first message of a process that is to replace the daemon.
const BEGIN: &[u8] = b"\0{\"Begin\":{\"version\":0,\"newest\":4294967295}}";

/// Sends a request; returns the errno and the text.
#[track_caller]
fn ask(raw: &ControlConnection, kind: Kind, payload: &[u8]) -> (i32, String) {
    raw.send(&wire::encode(kind, 0, 0, 0, payload)).expect("an open connection");
    let reply = raw.receive().expect("an answer");
    (reply.errno, reply.text())
}

/// The daemon answers requests about the port, and none about itself.
#[track_caller]
fn is_asked_nothing_about_the_daemon(home: &Home, raw: &ControlConnection) {
    let before = home.daemon();
    let stop = StopRequest { force: true, all: true };
    let all = [
        (StopRequest::KIND, stop.encode()),
        (KnobRequest::KIND, KnobRequest::Set("verbose".into(), 1).encode()),
        (KnobRequest::KIND, KnobRequest::Reload.encode()),
        (NodeRequest::KIND, NodeRequest::Off(None).encode()),
    ];
    for (kind, payload) in all {
        let (errno, why) = ask(raw, kind, &payload);
        assert!(errno == EPERM && why.contains("on a connection of its own"), "{kind:?}: {errno} {why}");
    }
    assert_eq!(home.daemon(), before);
}

#[test]
fn a_connection_with_a_port_gives_no_power_over_the_daemon() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, PIPES) else { return };
        let raw = ControlConnection::connect(&home.socket()).expect("a daemon");
        let (errno, reply, fds) = raw.request(&register("p{1", NmreqRegister::default()));
        assert!(errno == 0 && reply.is_some() && !fds.is_empty());
        is_asked_nothing_about_the_daemon(home, &raw);
        // It is no successor either, to whom all descriptors of all users are sent: nothing is answered.
        raw.send(BEGIN).expect("an open connection");
        assert_eq!(ask(&raw, HelloRequest::KIND, &[]), (0, String::new()));
        let holder = ControlConnection::connect(&home.socket()).expect("a daemon");
        assert_eq!(ask(&holder, LockHolderRequest::KIND, &[]).0, 0);
        is_asked_nothing_about_the_daemon(home, &holder);
        holder.send(BEGIN).expect("an open connection");
        let (mut bytes, mut descriptors) = ([0; 4096], Vec::new());
        let got = unetmap_sys::socket::recv(holder.as_fd(), &mut bytes, &mut descriptors).expect("an answer");
        assert!(descriptors.is_empty() && wire::decode(&bytes[..got.bytes]).is_ok(), "{:?}", &bytes[..got.bytes]);
        home.assert_serves();
    });
}
