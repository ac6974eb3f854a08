// SPDX-License-Identifier: BSD-2-Clause
//! Packet sockets in the place of AF_XDP: chosen by `unetmap nic IF way packet`, or by the daemon where it has no
//! bpf(2), for instance as an ordinary user's in a user namespace. All frames cross unchanged, the host's stack sees
//! none of them, and what is lost is counted.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::home::{Guard, summary, wait_within};
use conformance::host::CABLE;
use conformance::kept;
use conformance::machine::{HEADER, Machine, unfinished};
use conformance::net::{
    BUFFER, DIRECT, MEDIATED, Net, Tap, assert_same, assert_works, collect, drain, frame, frames, pings, public_copy,
    take, transmit,
};
use conformance::packet::assert_checksums;
use conformance::replace::replace;
use conformance::tool::done;
use conformance::{Home, LIMIT, isolated_with_interfaces, program, until};
use lab::VethOptions;
use serde_json::Value;
use unetmap::{Interest, Port};

/// The user `nobody` on every system, or at least a user without privileges.
const NOBODY: u32 = 65534;
/// Frames that `pkt-gen` sends and receives in a user namespace: fewer than a socket's ring has room for.
const COUNT: u64 = 1500;
/// Lengths of frames: all from the shortest to the MTU, without a tag.
const LENGTHS: std::ops::RangeInclusive<usize> = 14..=1514;

/// A cable whose near end has packet sockets.
fn net(home: &Home) -> Option<Net> {
    let net = Net::new(home, DIRECT, VethOptions { queues: 4, ..CABLE })?;
    done(&net.near, &["va", "way", "packet"]);
    Some(net)
}

/// A frame with a VLAN tag of this kind.
fn tagged(kind: u16, frame: &[u8]) -> Vec<u8> {
    let ([a, b], mut frame) = (kind.to_be_bytes(), frame.to_vec());
    frame.splice(12..12, [a, b, 0x60, 7]);
    frame
}

/// Sends frames from one side after the other, and compares all.
#[track_caller]
fn assert_unchanged(port: &Port, tap: &Tap, all: &[Vec<u8>]) {
    for some in all.chunks(200) {
        transmit(port, 0, some, BUFFER);
        assert_same(&tap.collect(some.len()), some);
        tap.send_all(some);
        assert_same(&collect(port, some.len()), some);
    }
}

#[test]
fn frames_of_all_lengths_cross_and_the_stack_sees_none() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home) else { return };
        let (port, tap) = (net.open("netmap:va"), net.tap());
        assert_eq!((port.tx_rings().len(), port.rx_rings().len()), (1, 1), "all queues are one pair of rings");
        let listed = home.snapshot().ports.into_iter().find(|port| port.kind == "mediated").expect("the port");
        assert_eq!(listed.manner.as_deref(), Some("packet socket"));
        assert!(!net.has_xdp());
        assert_unchanged(&port, &tap, &frames(&LENGTHS.collect::<Vec<_>>(), 0));
        let shown: Value = serde_json::from_str(&done(&net.near, &["va", "--json"])).expect("JSON");
        let shown = &shown["port"];
        assert_eq!(shown["copied"], "its way is `packet` (unetmap nic va way auto) (packet sockets)");
        let crossed = |dir: &str| shown["queues"][0][dir]["crossed"].as_u64() >= Some(LENGTHS.count() as u64);
        assert!(crossed("tx") && crossed("rx"), "{shown}");
        // The kernel takes a tag out of a frame that it receives, also out of those of the tap; it drops those that
        // have nothing behind the tag.
        for (kind, longest) in [(0x8100, 1514), (0x88a8, 1510)] {
            let plain = frames(&[16, 60, 1500, longest], 5000);
            let with_tag: Vec<_> = plain.iter().map(|frame| tagged(kind, frame)).collect();
            transmit(&port, 0, &with_tag, BUFFER);
            assert_same(&tap.collect(plain.len()), &plain);
            tap.send_all(&with_tag);
            assert_same(&collect(&port, plain.len()), &with_tag);
        }
        // A frame that is too long is counted, and those behind it are sent.
        let mut sent = frames(&[60, 1600, 61], 6000);
        transmit(&port, 0, &sent, BUFFER);
        sent.remove(1);
        assert_same(&tap.collect(2), &sent);
        drain(&port);
        assert_eq!(dropped(home, "tx"), 1);
        assert!(!net.pings() && !pings(&net.far, "10.9.0.1"), "the stack neither asks nor answers");
        drop(port);
        until("the stack has the interface again", || net.pings());
        summary(&format!("{} lengths each way by packet sockets, with and without tags", LENGTHS.count()));
    });
}

/// Frames that the program's port lost in this direction.
fn dropped(home: &Home, direction: &str) -> u64 {
    let ports = home.snapshot().ports;
    let port = ports.iter().find(|port| port.kind == "mediated").expect("the port");
    port.rings.iter().filter(|ring| ring.dir == direction).map(|ring| ring.dropped).sum()
}

#[test]
fn each_frame_that_arrives_is_delivered_or_counted() {
    const SENT: usize = 12_000;
    isolated_with_interfaces(|home| {
        let Some(net) = net(home) else { return };
        let (port, tap) = (net.open("netmap:va"), net.tap());
        let (one, mut got) = (frame(60, 0), 0);
        // More than the rings have room for, and the program takes nothing.
        (0..SENT).for_each(|_| tap.send(&one));
        until("each frame is delivered or counted", || {
            port.poll(Interest::RX, Some(Duration::from_millis(20))).expect("the daemon runs");
            got += take(&port, 0).len();
            got as u64 + dropped(home, "rx") >= SENT as u64
        });
        assert_eq!(got as u64 + dropped(home, "rx"), SENT as u64);
        assert!(got > 1000 && got < SENT, "{got} of {SENT} found room");
        assert_works(&port, &tap, 1);
    });
}

/// A machine sends segments of 20 KB and frames without checksum by a tap that is not to be finished by others.
#[test]
fn frames_arrive_finished() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let machine = Machine::new(&net.near, "tap0");
        done(&net.near, &["tap0", "way", "packet"]);
        let port = net.open("netmap:tap0");
        let (complete, mut got, mut bytes) = (frame(600, 1), Vec::new(), 0);
        let with_header = |frame: &[u8]| [&[0; HEADER], frame].concat();
        [unfinished(300), unfinished(20_000)].iter().for_each(|packet| machine.send(packet));
        until("all bytes arrive", || {
            port.poll(Interest::RX, Some(Duration::from_millis(20))).expect("the daemon runs");
            let tcp = take(&port, 0).into_iter().filter(|frame| frame[12..14] == [8, 0] && frame[23] == 6);
            got.extend(tcp);
            bytes = got.iter().map(|frame: &Vec<u8>| frame.len() - 54).sum::<usize>();
            bytes >= 20_300
        });
        got.iter().for_each(|frame| assert_checksums(frame));
        assert_eq!((bytes, got.iter().map(Vec::len).max()), (20_300, Some(1054)));
        machine.send(&with_header(&complete));
        machine.send(&with_header(&tagged(0x8100, &complete)));
        let wanted = [complete.clone(), tagged(0x8100, &complete)];
        assert_same(&collect(&port, 2), &wanted);
        transmit(&port, 0, &wanted[..1], BUFFER);
        machine.receive("a frame of the port", |frame| *frame == complete);
    });
}

#[test]
fn packets_wait_while_the_link_is_down_and_the_port_ends_with_the_interface() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home) else { return };
        let (port, tap) = (net.open("netmap:va"), net.tap());
        assert_works(&port, &tap, 0);
        net.near.ip(&["link", "set", "va", "down"]).expect("an interface");
        until("it is seen", || {
            home.snapshot().ports.iter().any(|port| port.manner.as_deref() == Some("down (packet socket)"))
        });
        let kept = frames(&[60; 30], 500);
        transmit(&port, 0, &kept, BUFFER);
        net.near.ip(&["link", "set", "va", "up"]).expect("an interface");
        net.near.wait_up("va").expect("a cable");
        net.far.wait_up("vb").expect("a cable");
        assert_same(&tap.collect(kept.len()), &kept);
        assert_works(&port, &tap, 1000);
        net.near.ip(&["link", "del", "va"]).expect("an interface");
        until("the port ends", || port.poll(Interest::RX, Some(Duration::from_millis(20))).is_err());
        drop(port);
        until("nothing is left", || home.snapshot().regions.is_empty());
        home.assert_serves();
    });
}

/// The sockets, the table and the frames that wait in a ring are those of the next daemon.
#[test]
fn packet_sockets_outlive_a_daemon() {
    isolated_with_interfaces(|home| {
        let Some(net) = kept::net(home, DIRECT) else { return };
        done(&net.near, &["va", "way", "packet"]);
        let (port, tap) = (net.open("netmap:va"), net.tap());
        assert_works(&port, &tap, 0);
        kept::wait_until_kept(home);
        // No request to the daemon is between these frames and the crash, so it has nothing kept of them.
        assert_works(&port, &tap, 500);
        kept::kill(home);
        assert_works(&port, &tap, 1000);
        replace(home);
        assert_works(&port, &tap, 2000);
        assert!(!net.pings(), "the stack stays disconnected");
        drop(port);
        until("the stack has the interface again", || net.pings());
    });
}

#[test]
fn a_monitor_sees_both_directions() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home) else { return };
        let (port, monitor, tap) = (net.open("netmap:va"), net.open("netmap:va/rt"), net.tap());
        let all = frames(&[60; 40], 0);
        transmit(&port, 0, &all[..20], BUFFER);
        assert_same(&tap.collect(20), &all[..20]);
        tap.send_all(&all[20..]);
        assert_same(&collect(&port, 20), &all[20..]);
        assert_eq!(collect(&monitor, 40).len(), 40);
    });
}

/// As nobody, in namespaces of its own: a daemon that would be killed by any call of bpf(2), an exact number of frames
/// each way, and through a switch to a persistent port.
#[test]
fn an_ordinary_user_has_interfaces_in_a_user_namespace() {
    isolated_with_interfaces(|home| {
        let public = home.folder().join("public");
        fs::create_dir_all(&public).expect("a folder");
        for path in [home.folder(), &public] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("our own folder");
        }
        for name in ["pkt-gen", "unetmapd", "unetmap", "vale-ctl"] {
            public_copy(&public, &program(name).display().to_string());
        }
        public_copy(&public, env!("CARGO_BIN_EXE_without_kernel_feature"));
        let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        let in_namespaces = || {
            let mut command = Command::new("setpriv");
            command.args(&ids).args(["--clear-groups", "--inh-caps=-all", "unshare", "-Urn"]);
            command
        };
        if !in_namespaces().arg("true").status().is_ok_and(|status| status.success()) {
            return summary("skipped: a user without privileges cannot make namespaces here (or there is no setpriv)");
        }
        let mut command = in_namespaces();
        command.args(["sh", "-c"]).arg(include_str!("packets.sh")).arg(&public).arg(COUNT.to_string());
        command.env("UNETMAP_SOCKET", public.join("daemon.sock"));
        let log = fs::File::create(public.join("log")).expect("a file");
        let mut script = Guard::spawn(command.stdout(Stdio::null()).stderr(log));
        let status = wait_within(&mut script.0, LIMIT);
        let log = fs::read_to_string(public.join("log")).unwrap_or_default();
        assert!(status.is_some_and(|status| status.success()), "{status:?}: {log}");
    });
}

/// The table that keeps frames from the stack ends with the daemon, however that ends.
#[test]
fn the_stack_has_the_interface_again_when_the_daemon_is_killed() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = net(home) else { return };
        let port = net.open("netmap:va");
        assert!(!net.pings());
        net.restart_daemon(home);
        until("the stack has the interface again", || net.pings());
        drop(port);
    });
}

/// Before Linux 5.12 no socket can own the table: the broker removes it, and the undo process if both are killed.
#[test]
fn the_stack_has_the_interface_again_where_tables_have_no_owners() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::with_fault(home, DIRECT, CABLE, "no-table-owners") else { return };
        done(&net.near, &["va", "way", "packet"]);
        let again = |net: &Net| until("the stack has the interface again", || net.pings());
        let open = |net: &Net| {
            let port = net.open("netmap:va/d");
            assert!(!net.pings());
            port
        };
        let port = net.open("netmap:va/d");
        assert_works(&port, &net.tap(), 0);
        assert!(!net.pings());
        drop(port);
        again(&net);
        let port = open(&net);
        net.restart_faulty_daemon(home, "no-table-owners");
        again(&net);
        drop(port);
        done(&net.near, &["va", "way", "packet"]);
        let port = open(&net);
        replace(home);
        assert!(!net.pings(), "the stack stays disconnected");
        drop(port);
        again(&net);
    });
}

/// Its memory is charged as the socket's buffers are: the ring, and the queue of long frames.
#[test]
fn the_ring_of_a_packet_socket_is_its_users() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, MEDIATED, CABLE) else { return };
        let used = || {
            let _port = net.open("netmap:va");
            let users = home.snapshot().users;
            users.iter().find(|user| user.uid == Some(0)).map_or(0, |user| user.memory.used)
        };
        let by_xdp = used();
        until("it is closed", || home.snapshot().regions.is_empty());
        done(&net.near, &["va", "way", "packet"]);
        assert_eq!(used() - by_xdp, (4 << 20) + (8 << 20));
    });
}
