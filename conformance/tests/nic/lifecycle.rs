// SPDX-License-Identifier: BSD-2-Clause
//! Events of an interface while a program has it open: each leads to a clear error or a consistent state, never to a
//! hang.

use std::time::{Duration, Instant};

use conformance::bpf::{FOREIGN, XdpMode, attach_xdp};
use conformance::home::{Guard, summary};
use conformance::net::{BUFFER, CABLE, DIRECT, MEDIATED, Net, assert_works, collect, frames, open_in, transmit};
use conformance::request::control;
use conformance::thread::StoppedThread;
use conformance::{Home, isolated_with_interfaces, program, until};
use lab::VethOptions;
use rustix::process::Signal;
use unetmap::abi::{NETMAP_REQ_PORT_INFO_GET, NmreqPortInfoGet};
use unetmap::errno::EINVAL;
use unetmap::{Interest, Port};

fn ip(net: &Net, words: &str) {
    net.near.ip(&words.split(' ').collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{e}"));
}

/// More than the time after which the kernel's programs give an interface back if nobody renews their deadline.
const DEADLINE: Duration = Duration::from_secs(2);

/// Every call of the port fails with a reason.
#[track_caller]
fn assert_ended(port: &Port) {
    for call in [Port::txsync, Port::rxsync] {
        let error = call(port).expect_err("the interface has gone").to_string();
        assert!(error.contains("the interface is gone"), "{error}");
    }
    assert!(port.poll(Interest::RX, None).is_err(), "poll returned no error");
}

fn renamed(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (port, tap) = (net.open("netmap:va"), net.tap());
    assert_works(&port, &tap, 0);
    // The kernel renames an interface that is up from Linux 6.2 on.
    ip(&net, "link set dev va name renamed");
    until("the new name is shown", || home.snapshot().ports.iter().any(|port| port.name == "renamed"));
    assert_works(&port, &tap, 1000);
    let sharer = net.open("netmap:renamed-0/T");
    assert_eq!(sharer.mem_id(), port.mem_id(), "the same port by its new name");
    assert_eq!(net.refused("netmap:va").0, unetmap::errno::ENXIO);
}

#[test]
fn a_renamed_interface_keeps_working_direct() {
    isolated_with_interfaces(|home| renamed(home, DIRECT));
}

#[test]
fn a_renamed_interface_keeps_working_mediated() {
    isolated_with_interfaces(|home| renamed(home, MEDIATED));
}

fn moved(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let port = net.open("netmap:va");
    // One program sleeps; the other is stopped and cannot react.
    let pkt_gen = || Guard::spawn(net.command(program("pkt-gen")).args(["-i", "netmap:va", "-f", "rx", "-w", "0"]));
    let (mut asleep, stopped) = (pkt_gen(), pkt_gen());
    until("all have it open", || home.snapshot().sessions.iter().filter(|session| session.port == "va").count() >= 3);
    stopped.signal(Signal::STOP);
    let elsewhere = net.lab.namespace("elsewhere").expect("a namespace");
    ip(&net, &format!("link set dev va netns {}", elsewhere.name()));
    let start = Instant::now();
    assert_eq!(asleep.wait().code(), Some(1), "the sleeping program did not exit");
    let reported = start.elapsed();
    until("every program has an error", || port.rxsync().is_err());
    assert_ended(&port);
    // The kernel can use the interface, although a stopped program still has it open.
    elsewhere.ip(&["link", "set", "dev", "va", "up"]).expect("an interface");
    elsewhere.ip(&["addr", "add", "10.9.0.1/24", "dev", "va"]).expect("an interface");
    elsewhere.wait_up("va").expect("a cable");
    until("the kernel's stack has it", || conformance::net::pings(&elsewhere, "10.9.0.2"));
    // It can be opened in the new namespace, and here after it is moved back.
    assert_works(&open_in(&elsewhere, "netmap:va"), &net.tap(), 0);
    elsewhere.ip(&["link", "set", "dev", "va", "netns", net.near.name()]).expect("an interface");
    ip(&net, "link set dev va up");
    net.near.wait_up("va").expect("a cable");
    let anew = net.open("netmap:va");
    assert_works(&anew, &net.tap(), 0);
    assert_ended(&port);
    summary(&format!("a sleeping program got the error after {} ms", reported.as_millis()));
}

#[test]
fn an_interface_moved_to_another_namespace_ends_its_ports_direct() {
    isolated_with_interfaces(|home| moved(home, DIRECT));
}

#[test]
fn an_interface_moved_to_another_namespace_ends_its_ports_mediated() {
    isolated_with_interfaces(|home| moved(home, MEDIATED));
}

fn shaken(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, VethOptions { queues: 4, ..CABLE }) else { return };
    let (port, tap) = (net.open("netmap:va"), net.tap());
    assert_works(&port, &tap, 0);
    // The link goes down, and up again.
    net.far.ip(&["link", "set", "dev", "vb", "down"]).expect("an interface");
    net.far.ip(&["link", "set", "dev", "vb", "up"]).expect("an interface");
    net.near.wait_up("va").expect("a cable");
    assert_works(&port, &net.tap(), 1000);
    // A larger and a smaller MTU: whether or not the kernel allows it, the port keeps working.
    for mtu in ["9000", "1000", "1500"] {
        let _ = net.near.ip(&["link", "set", "dev", "va", "mtu", mtu]);
    }
    assert_works(&port, &net.tap(), 2000);
    // Fewer queues than are bound, then as many: refused by the kernel, or without harm.
    for queues in ["2", "4"] {
        let _ = net.near.tool("ethtool", &["-L", "va", "rx", queues, "tx", queues]);
    }
    assert_works(&port, &net.tap(), 3000);
    drop(port);
    net.assert_given_back();
}

#[test]
fn a_port_survives_changes_of_link_mtu_and_queues_direct() {
    isolated_with_interfaces(|home| shaken(home, DIRECT));
}

#[test]
fn a_port_survives_changes_of_link_mtu_and_queues_mediated() {
    isolated_with_interfaces(|home| shaken(home, MEDIATED));
}

#[test]
fn a_port_says_that_its_interface_has_other_queues() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, VethOptions { queues: 4, ..CABLE }) else { return };
        let set = |queues| net.near.tool("ethtool", &["-L", "va", "rx", queues, "tx", queues]).expect("ethtool");
        let of_port = || home.snapshot().ports.into_iter().find(|port| port.name == "va").expect("the port is open");
        set("2");
        let port = net.open("netmap:va");
        assert_eq!((port.rx_rings().len(), of_port().other_queues), (2, None));
        set("4");
        until("the added queues are noticed", || of_port().other_queues.is_some());
        let remark = of_port().other_queues.expect("a remark");
        assert!(remark.contains("4 receive and 4 transmit queues") && remark.contains("rings for 2 and 2"), "{remark}");
        drop(port);
        net.assert_given_back();
        assert_eq!(net.open("netmap:va").rx_rings().len(), 4);
    });
}

#[test]
fn a_port_says_why_packets_are_copied() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let _port = net.open("netmap:va");
        let port = home.snapshot().ports.into_iter().find(|port| port.name == "va").expect("the port is open");
        let expected = port.manner.as_deref() == Some("native, copy");
        assert_eq!(port.copied.is_some_and(|why| why == "the driver does not support zero copy"), expected);
    });
}

#[test]
fn another_xdp_program_is_not_replaced() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        for (mode, word) in [(XdpMode::Native, "native"), (XdpMode::Generic, "generic")] {
            let attached = net.near.run(|| attach_xdp("va", mode)).expect("a namespace").expect("a program");
            let (errno, why) = net.refused("netmap:va");
            assert_eq!(errno, unetmap::errno::EBUSY, "{why}");
            let link = net.near.ip(&["-d", "link", "show", "dev", "va"]).expect("an interface");
            let id = link.split("prog/xdp id ").nth(1).and_then(|rest| rest.split(' ').next()).expect("it is attached");
            let wanted = format!("program is attached ({FOREIGN}, id {id}, {word}): ");
            assert!(why.contains(&wanted) && why.contains("(unetmap doctor va "), "{why}");
            drop(attached);
        }
        let port = net.open("netmap:va");
        let late = net.near.run(|| attach_xdp("va", XdpMode::Native)).expect("a namespace");
        assert!(late.is_err(), "the port's program was replaced");
        assert_works(&port, &net.tap(), 0);
    });
}

#[test]
fn rebinding_a_queue_disturbs_no_other() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, VethOptions { queues: 2, ..CABLE }) else { return };
        // Frames from the far end's first queue arrive at our first queue.
        let (steady, feeder) = (net.open("netmap:va-0"), open_in(&net.far, "netmap:vb-0/T"));
        let all = frames(&[60; 2000], 0);
        let mut got = Vec::new();
        for (turn, some) in all.chunks(100).enumerate() {
            let other = (turn % 2 == 0).then(|| net.open("netmap:va-1"));
            transmit(&feeder, 0, some, BUFFER);
            got.extend(collect(&steady, some.len()));
            drop(other);
        }
        conformance::net::assert_same(&got, &all);
    });
}

#[test]
fn port_info_does_not_attach_the_interface() {
    isolated_with_interfaces(|home| {
        for policy in [DIRECT, MEDIATED] {
            let Some(net) = Net::new(home, policy, CABLE) else { return };
            let ask = || control(NETMAP_REQ_PORT_INFO_GET, "va", NmreqPortInfoGet::default());
            let (_, info) = net.near.run(ask).expect("a namespace").unwrap_or_else(|errno| panic!("errno {errno}"));
            assert_eq!((info.nr_tx_rings, info.nr_rx_rings, info.nr_tx_slots, info.nr_rx_slots), (1, 1, 512, 1024));
            assert!(!net.has_xdp() && net.pings());
            assert!(home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
            drop(net);
        }
    });
}

/// An interface can be opened in another region than the default one, and exchanges buffers with the ports there.
#[test]
fn an_interface_can_be_opened_in_a_chosen_region() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::with(home, DIRECT, CABLE, &["--buf-num", "8192"]) else { return };
        let pipe = net.open("netmap:p{1");
        let port = net.open(&format!("netmap:va@{}", pipe.mem_id()));
        assert!(port.same_region(&pipe));
        let tap = net.tap();
        assert_works(&port, &tap, 1);
        assert_eq!(net.refused("netmap:va@1").0, EINVAL);
        assert_eq!(net.refused("netmap:va@999").0, EINVAL);
        assert!(net.open("netmap:va").same_region(&pipe), "an open port stays in its region");
        drop(port);
        net.assert_given_back();
        assert!(!net.open("netmap:va").same_region(&pipe));
    });
}

/// A slow driver, or memory of a client, can hold up the thread of the daemon that answers requests.
#[test]
fn a_blocked_control_thread_keeps_its_interfaces() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va"), net.tap());
        let blocked = StoppedThread::main_of(home.daemon());
        let start = Instant::now();
        let mut seq = 0;
        while start.elapsed() < 2 * DEADLINE {
            assert_works(&port, &tap, seq);
            seq += 1000;
        }
        drop(blocked);
        assert_works(&port, &tap, seq);
    });
}
