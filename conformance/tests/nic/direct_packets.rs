// SPDX-License-Identifier: BSD-2-Clause
//! Packet sockets that a program has itself, as its packets begin with virtio-net headers: which programs have them,
//! and that the port goes on with another daemon.

use std::os::unix::fs::PermissionsExt as _;

use conformance::home::{Guard, program, summary};
use conformance::kept;
use conformance::net::{BUFFER, CABLE, DIRECT, Net, Tap, assert_same, collect, frames, public_copy, transmit};
use conformance::replace::replace;
use conformance::{Home, isolated_with_interfaces, until};
use rustix::process::Signal;
use unetmap::abi::NR_ACCEPT_VNET_HDR;
use unetmap::{Interest, Port};

use crate::segments::{accepting, with_headers};

/// Bytes of the header.
const HEADER: usize = 12;

/// The kinds of the ports of `va` that are open.
fn kinds(home: &Home) -> Vec<String> {
    let ports = home.snapshot().ports.into_iter().filter(|port| port.name == "va");
    let mut kinds: Vec<String> = ports.map(|port| port.kind).collect();
    kinds.sort();
    kinds
}

/// Frames of all lengths that need no finishing, numbered from `seq`, each way.
#[track_caller]
fn assert_passes(port: &Port, tap: &Tap, seq: u64) {
    let all = frames(&(0..300).map(|i| 60 + i * 4).collect::<Vec<_>>(), seq);
    let with_header: Vec<Vec<u8>> = all.iter().map(|frame| [&[0; HEADER], &frame[..]].concat()).collect();
    transmit(port, 0, &with_header, BUFFER);
    assert_same(&tap.collect(all.len()), &all);
    tap.send_all(&all);
    let mut got = collect(port, all.len());
    got.iter_mut().for_each(|packet| drop(packet.drain(..HEADER)));
    assert_same(&got, &all);
}

/// A packet socket sends and listens at each interface of its namespace, whatever it was bound to. So a program has it
/// only if it could make it: root without `CAP_NET_RAW`, and root of another user namespace, have theirs by the daemon.
/// So has another user with the capability: other processes may have the connection of one that has become privileged.
#[test]
fn only_programs_that_could_make_a_packet_socket_have_one() {
    isolated_with_interfaces(|home| {
        let policy = "[[rule]]\nports = [\"va\"]\nusers = [\"root\", 4001]\naccess = \"direct\"\n";
        let Some(net) = Net::new(home, policy, CABLE) else { return };
        std::fs::set_permissions(home.folder(), std::fs::Permissions::from_mode(0o755)).expect("our own folder");
        with_headers(&net.near, "va", "12");
        let bridge = public_copy(home.folder(), &program("bridge").display().to_string()).display().to_string();
        let own_namespace: &[&str] = &["unshare", "--user", "--map-root-user"];
        let privileged = "setpriv --reuid=4001 --regid=4001 --clear-groups --inh-caps=+net_raw --ambient-caps=+net_raw";
        let privileged: Vec<_> = privileged.split(' ').collect();
        for without in [&["setpriv", "--bounding-set", "-net_raw"][..], own_namespace, &privileged, &[]] {
            let all: Vec<&str> =
                without.iter().copied().chain([&*bridge, "-w", "0", "-L", "-i", "netmap:va"]).collect();
            let can_run = |words: &[&str]| net.command(words[0]).args(&words[1..]).arg("true").status();
            if !without.is_empty() && !can_run(without).is_ok_and(|status| status.success()) {
                summary(&format!("skipped: {without:?} does not run here"));
                continue;
            }
            let mut bridge: Guard = net.start(home, all[0], &all[1..], 1);
            let wanted: &[&str] = if without.is_empty() { &["nic"] } else { &["mediated", "nic"] };
            assert_eq!(kinds(home), wanted, "{without:?}");
            bridge.signal(Signal::TERM);
            assert!(bridge.wait().success());
            until("it is closed", || home.snapshot().regions.is_empty());
        }
    });
}

#[test]
fn a_program_without_headers_is_refused() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        with_headers(&net.near, "va", "12");
        let why = net.refused("netmap:va").1;
        assert!(why.contains("virtio-net header of 12 bytes"), "{why}");
    });
}

/// Whichever session syncs goes on where the other was.
#[test]
fn sessions_share_the_sockets() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        with_headers(&net.near, "va", "12");
        let (first, second) = (accepting(&net.near, "netmap:va"), accepting(&net.near, "netmap:va"));
        assert_eq!(kinds(home), ["nic"]);
        let manner = home.snapshot().ports.into_iter().find_map(|port| port.manner);
        assert_eq!(manner.as_deref(), Some("packet socket"));
        let tap = net.tap();
        for turn in 0..4 {
            assert_passes(if turn % 2 == 0 { &first } else { &second }, &tap, turn * 1000);
        }
        drop((first, second));
        until("the stack has the interface again", || net.pings());
    });
}

/// The sockets and the frames that wait in the ring are those of the next daemon, after a crash and a replacement.
#[test]
fn the_port_outlives_daemons() {
    isolated_with_interfaces(|home| {
        let Some(net) = kept::net(home, DIRECT) else { return };
        with_headers(&net.near, "va", "12");
        let (port, tap) = (accepting(&net.near, "netmap:va"), net.tap());
        kept::wait_until_kept(home);
        assert_passes(&port, &tap, 500);
        kept::kill(home);
        assert_passes(&port, &tap, 1000);
        replace(home);
        assert_passes(&port, &tap, 2000);
        assert_eq!(kinds(home), ["nic"]);
        assert!(!net.pings(), "the stack stays disconnected");
        drop(port);
        until("the stack has the interface again", || net.pings());
    });
}

/// Another daemon's sockets take the place of those of before.
#[test]
fn a_program_goes_on_with_the_next_daemon() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        with_headers(&net.near, "va", "12");
        let open = || Port::options().flags(NR_ACCEPT_VNET_HDR).reconnect(None).open("netmap:va");
        let port = net.near.run(open).expect("a namespace").expect("a port");
        let tap = net.tap();
        assert_passes(&port, &tap, 0);
        for times in 1..=2 {
            net.restart_daemon(home);
            with_headers(&net.near, "va", "12");
            let back = || {
                port.poll(Interest::RX, Some(std::time::Duration::from_millis(50))).unwrap_or_else(|e| panic!("{e}"));
                port.reconnects() == times
            };
            net.near.run(|| until("the port is back", back)).expect("a namespace");
            assert_passes(&port, &tap, u64::from(times) * 10_000);
            assert_eq!(kinds(home), ["nic"]);
        }
    });
}
