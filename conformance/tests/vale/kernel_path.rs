// SPDX-License-Identifier: BSD-2-Clause
//! Packets between two persistent ports of a switch stay in the kernel, while nothing needs to see them.

use std::process::Command;
use std::time::Duration;

use conformance::home::{kill_daemon, program, summary};
use conformance::host::during_a_stream;
use conformance::net::{CABLE, DIRECT, Net, Tap, open_in, pings, start_daemon, take};
use conformance::replace::replace;
use conformance::switch::{bring_up, done, host_on_switch, set, shown, tcp};
use conformance::{Home, isolated_with_interfaces, until};
use serde_json::Value;

/// Bytes of a transfer.
const BYTES: usize = 4 << 20;
const ADDRESSES: [&str; 2] = ["10.8.0.1", "10.8.0.2"];
const V6: [&str; 2] = ["fd08::1", "fd08::2"];
const TAGGED: [&str; 2] = ["10.8.7.1", "10.8.7.2"];
const BOTH: [&str; 2] = ["vi0", "vi1"];

/// Two stacks, each with a persistent port of `vale0`; `None`, with a message, if this kernel has no such path.
fn hosts(home: &Home) -> Option<Net> {
    let net = Net::new(home, DIRECT, CABLE)?;
    knob("1");
    for (ns, name, at) in [(&net.near, "vi0", 0), (&net.far, "vi1", 1)] {
        host_on_switch(ns, name, &[&format!("{}/24", ADDRESSES[at]), &format!("{}/64", V6[at])]);
    }
    let doctor = Command::new(program("unetmap")).arg("doctor").output().expect("unetmap runs");
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let line = text.lines().find(|line| line.contains("kernel: persistent ports")).expect("doctor has a line");
    if line.contains("missing") {
        summary(&format!("skipped: {line}"));
        return None;
    }
    Some(net)
}

fn knob(value: &str) {
    let out = Command::new(program("unetmap")).args(["set", "vale_kernel", value]).output().expect("unetmap runs");
    assert!(out.status.success(), "{out:?}");
}

fn port(name: &str) -> Value {
    shown(&format!("port vale0:{name}"))
}

/// Whether the kernel forwards what it can of a port.
fn forwards(name: &str) -> bool {
    port(name)["kernel"]["forwards"] == true
}

/// The packets that the kernel has forwarded for a port, both ways.
fn by_kernel(name: &str) -> u64 {
    let kernel = &port(name)["kernel"];
    kernel["sent"].as_u64().expect("a count") + kernel["received"].as_u64().expect("a count")
}

/// Waits until the kernel forwards to both stacks, which have just talked.
#[track_caller]
fn until_known(net: &Net) {
    until("the kernel knows both addresses", || {
        let reached = pings(&net.near, ADDRESSES[1]);
        let table = shown("show vale0")["table"].clone();
        let known = table.as_array().expect("a list").iter().filter(|address| address["kernel"] == true).count();
        reached && known >= 2
    });
}

/// The sums of the switch's counts are equal.
#[track_caller]
fn assert_adds_up(home: &Home) {
    let mut difference = None;
    until("the sums are equal", || {
        difference = home.snapshot().switches.iter().find_map(|switch| switch.difference());
        difference.is_none()
    });
}

/// Streams in both directions arrive as they were sent, by IPv4, IPv6 and in a VLAN, with offloads and without, with
/// the usual MTU and a large one; almost none of their packets goes through the switch's threads.
#[test]
fn streams_stay_in_the_kernel_and_arrive_as_they_were_sent() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = hosts(home) else { return };
        let pairs = pairs(&net);
        for (mtu, offloads) in [("1500", "on"), ("9000", "off")] {
            configure(&net, mtu, offloads);
            until_known(&net);
            let before = by_kernel("vi0");
            let bytes = streams(&net, &pairs);
            let packets = by_kernel("vi0") - before;
            summary(&format!("MTU {mtu}, offloads {offloads}: {packets} packets for {} MB", bytes >> 20));
            // With segmentation offload a packet has up to 64 KB.
            let (least, most) = if offloads == "on" { (65536, 3000) } else { (9000, 100) };
            let bounds = (bytes / least) as u64..(bytes / most) as u64;
            assert!(bounds.contains(&packets), "MTU {mtu}, offloads {offloads}: {packets} packets");
        }
        assert_adds_up(home);
        let shown = set("show vale0");
        assert!(shown.contains("kernel; ") && shown.contains("vi0, kernel"), "{shown}");
        net.assert_alive();
    });
}

/// The addresses of the two stacks, by IPv4, IPv6 and in a VLAN.
fn pairs(net: &Net) -> Vec<[&'static str; 2]> {
    let mut pairs = vec![ADDRESSES, V6];
    for (ns, name, address) in [(&net.near, "vi0", TAGGED[0]), (&net.far, "vi1", TAGGED[1])] {
        match ns.ip(&["link", "add", "link", name, "name", "tagged", "type", "vlan", "id", "7"]) {
            Ok(_) => bring_up(ns, "tagged", &[&format!("{address}/24")]),
            Err(why) => summary(&format!("no VLAN: {why}")),
        }
    }
    if net.near.mac("tagged").is_ok() {
        pairs.push(TAGGED);
    }
    pairs
}

fn configure(net: &Net, mtu: &str, offloads: &str) {
    for (ns, name) in [(&net.near, "vi0"), (&net.far, "vi1")] {
        ns.ip(&["link", "set", name, "mtu", mtu]).expect("an interface");
        ns.tool("ethtool", &["-K", name, "tx", offloads, "tso", offloads, "txvlan", offloads]).expect("ethtool");
    }
}

/// Sends a stream each way between each pair; returns their bytes.
#[track_caller]
fn streams(net: &Net, pairs: &[[&str; 2]]) -> usize {
    for addresses in pairs {
        tcp(&net.near, &net.far, addresses[1], BYTES);
        tcp(&net.far, &net.near, addresses[0], BYTES);
    }
    2 * pairs.len() * BYTES
}

/// Streams that go through the switch's threads, because of a rate, arrive as they were sent, and in packets of up to
/// 64 KB.
#[test]
fn what_the_threads_carry_stays_whole() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = hosts(home) else { return };
        set("port vale0:vi0 rate in 100Gbps");
        let pairs = pairs(&net);
        let received = || {
            let count = |ns: &lab::Ns, name| ns.counters(name).expect("an interface").rx_packets;
            count(&net.near, "vi0") + count(&net.far, "vi1")
        };
        for (mtu, offloads) in [("1500", "on"), ("9000", "on"), ("1500", "off")] {
            configure(&net, mtu, offloads);
            let before = received();
            let bytes = streams(&net, &pairs);
            let packets = received() - before;
            summary(&format!("MTU {mtu}, offloads {offloads}: {packets} packets for {} MB", bytes >> 20));
            // Acknowledgements are half of them.
            assert!(offloads == "off" || packets < bytes as u64 / 5000, "MTU {mtu}: {packets} packets");
        }
        assert_eq!(by_kernel("vi0"), 0);
        assert_adds_up(home);
        net.assert_alive();
    });
}

/// A setting and the knob take a port out at once, and without them it takes part again; one connection goes on
/// meanwhile.
#[test]
fn what_needs_to_see_packets_sees_them() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = hosts(home) else { return };
        until_known(&net);
        during_a_stream([&net.near, &net.far], ADDRESSES[0], |until_more| {
            until_more("the stream crosses");
            assert_eq!(BOTH.map(forwards), [true; 2]);
            for (on, off) in [
                ("port vale0:vi0 rate in 1Gbps", "port vale0:vi0 off"),
                ("port vale0:vi1 filter out ip or arp", "port vale0:vi1 off"),
                ("port vale0:vi0 storm 1000", "port vale0:vi0 off"),
            ] {
                until("both take part again", || BOTH.map(forwards) == [true; 2]);
                until_more("the stream goes on");
                set(on);
                assert_eq!(BOTH.map(forwards), [false; 2], "{on}: one alone has nobody to forward to");
                let before = BOTH.map(by_kernel);
                until_more("the stream goes on through the thread");
                assert_eq!(BOTH.map(by_kernel), before, "{on}");
                set(off);
            }
            // A name for people is no rule.
            set("port vale0:vi0 label default/web");
            assert_eq!(BOTH.map(forwards), [true; 2]);
            set("port vale0:vi0 off");
            knob("0");
            assert_eq!(BOTH.map(forwards), [false; 2]);
            until_more("the stream goes on through the thread");
            knob("1");
            let before = by_kernel("vi0");
            until("the kernel forwards again", || by_kernel("vi0") > before);
            until_more("the stream goes on");
        });
        assert_adds_up(home);
        net.assert_alive();
    });
}

/// A program that has the port open has its place, and other switches and addresses that have moved are not reached.
#[test]
fn the_kernel_forwards_only_where_the_switch_would() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = hosts(home) else { return };
        let [third, fourth] = ["third", "fourth"].map(|name| net.lab.namespace(name).expect("a namespace"));
        for (ns, name, address) in [(&third, "vi2", "10.8.0.3/24"), (&fourth, "vi3", "10.8.0.4/24")] {
            done(ns, &format!("-n {name}"));
            done(ns, &format!("-a vale1:{name}"));
            bring_up(ns, name, &[address]);
        }
        until_known(&net);
        until("the kernel forwards in the other switch", || {
            pings(&third, "10.8.0.4") && shown("port vale1:vi2")["kernel"]["sent"].as_u64() > Some(0)
        });
        let macs = [(&net.near, "vi0"), (&third, "vi2")].map(|(ns, name)| ns.mac(name).expect("an interface"));
        let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        // It knows the address, and is in another switch.
        third.ip(&["neigh", "add", ADDRESSES[0], "lladdr", &text(macs[0]), "dev", "vi2"]).expect("a neighbour");
        assert!(!pings(&third, ADDRESSES[0]));
        done(&third, "-d vale1:vi2");
        done(&third, "-a vale0:vi2");
        until("it is in their switch", || pings(&third, ADDRESSES[0]) && forwards("vi2"));
        // The address of the first moves to the third: frames to it follow.
        let (tap, from) = (Tap::on(&third, "vi2"), Tap::on(&net.far, "vi1"));
        let frame = |to: [u8; 6], by: [u8; 6]| [&to[..], &by, &[0x88, 0xb5], &[0; 46]].concat();
        let sender = net.far.mac("vi1").expect("an interface");
        let to_moved = frame(macs[0], sender);
        until("frames follow the address", || {
            tap.send(&frame([2, 0, 0, 0, 0, 9], macs[0]));
            from.send(&to_moved);
            std::iter::from_fn(|| tap.next(Duration::from_millis(300))).any(|got| got == to_moved)
        });
        // A program takes the place of a stack.
        let program = open_in(&net.far, "vale0:vi1");
        assert!(!forwards("vi1") && forwards("vi0"));
        let to_program = frame(sender, macs[1]);
        tap.send(&to_program);
        until("the program has the frame", || {
            program.rxsync().expect("an open port");
            take(&program, 0).contains(&to_program)
        });
        drop(program);
        until("the stack has its place again", || forwards("vi1"));
        net.assert_alive();
    });
}

/// A connection goes on while no daemon runs, and while one is replaced by another.
#[test]
fn a_connection_needs_no_daemon() {
    isolated_with_interfaces(|home| {
        let Some(net) = hosts(home) else { return };
        let mut next = None;
        until_known(&net);
        during_a_stream([&net.near, &net.far], ADDRESSES[0], |until_more| {
            until_more("the stream crosses");
            replace(home);
            until("the successor's kernel path", || BOTH.map(forwards) == [true; 2]);
            until_more("the stream goes on");
            until_known(&net);
            kill_daemon(home);
            until_more("the stream goes on without a daemon");
            until_more("and on");
            next = Some(start_daemon(home, &[]));
            until("the ports are served again", || {
                let now = home.try_snapshot();
                now.is_some_and(|now| now.ports.iter().any(|port| port.name == "vale0:vi0"))
            });
            knob("1");
            until("the next daemon's kernel path", || BOTH.map(forwards) == [true; 2]);
            until_more("the stream goes on");
            let before = by_kernel("vi0");
            until("the kernel forwards", || by_kernel("vi0") > before);
        });
        drop(next);
    });
}
