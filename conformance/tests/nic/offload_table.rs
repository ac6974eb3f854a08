// SPDX-License-Identifier: BSD-2-Clause
//! The table of offloads by path, seen from outside: what a sender's stack leaves to its interface is complete when it
//! has crossed a port and a bridge to another interface, where tcpdump is the witness.
//!
//! ```text
//!   sender -- path under test -- port == bridge == va2 ------- vb2 tcpdump, the receiver's stack
//! ```
//! Each test is a row of the table in unetmap(7), and checks each cell: the tag (802.1Q, and QinQ, whose outer tag is
//! beside the frame), the checksum and the length of a stream's frames with TSO, and with segments that the stack below
//! has merged. `offloads.rs` compares each frame's bytes for the same paths.

use std::process::{Command, Stdio};

use conformance::home::{Guard, summary};
use conformance::host::{CABLE, stream};
use conformance::machine::{HEADER, Machine, unfinished};
use conformance::net::{DIRECT, MEDIATED, Net, Tap, frame};
use conformance::switch::host_on_switch;
use conformance::{Home, bpf, isolated_with_interfaces, program, until};
use lab::{Ns, output};
use rustix::process::Signal;

/// How a port gets its frames: the daemon's policy and argument, the sender's interface, the port, and the addresses
/// of sender and receiver.
#[derive(Clone, Copy)]
struct Path {
    name: &'static str,
    policy: &'static str,
    admode: &'static str,
    interface: &'static str,
    port: &'static str,
    addresses: [&'static str; 2],
}

const NETWORK: [&str; 2] = ["10.9.0.2", "10.9.0.3"];
const PATHS: [Path; 5] = [
    Path { name: "native", policy: DIRECT, admode: "native", interface: "vb", port: "netmap:va", addresses: NETWORK },
    Path { name: "generic", policy: DIRECT, admode: "generic", interface: "vb", port: "netmap:va", addresses: NETWORK },
    Path { name: "mediated", policy: MEDIATED, admode: "best", interface: "vb", port: "netmap:va", addresses: NETWORK },
    Path {
        name: "host rings",
        policy: DIRECT,
        admode: "native",
        interface: "va",
        port: "netmap:va^",
        addresses: ["10.9.0.1", "10.9.0.3"],
    },
    Path {
        name: "persistent port",
        policy: DIRECT,
        admode: "native",
        interface: "vi0",
        port: "vale0:p@1",
        addresses: ["10.8.0.1", "10.8.0.3"],
    },
];

/// Interfaces on top of `va`, which takes the tags and merges segments: how they are made, as arguments of ip(8).
const UPPER: [(&str, &[&[&str]]); 3] = [
    ("bridge", &[&["link", "add", "up0", "type", "bridge"], &["link", "set", "va", "master", "up0"]]),
    (
        "bond",
        &[
            &["link", "set", "va", "down"],
            &["link", "add", "up0", "type", "bond", "mode", "active-backup"],
            &["link", "set", "va", "master", "up0"],
        ],
    ),
    ("macvlan", &[&["link", "add", "up0", "link", "va", "type", "macvlan", "mode", "passthru"]]),
];

/// The longest frame of an MTU of 1500.
const LONGEST: usize = 1514;

/// A running tcpdump, which writes to a file.
struct Witness {
    guard: Guard,
    file: std::path::PathBuf,
}

impl Witness {
    fn start(home: &Home, ns: &Ns, name: &str) -> Witness {
        let file = home.folder().join(format!("{name}.pcap"));
        let log = std::fs::File::create(home.folder().join("tcpdump.log")).expect("a file");
        let mut command = ns.command("tcpdump");
        command.args(["-i", "vb2", "-Z", "root", "-U", "-s", "0", "-w"]).arg(&file);
        let guard = Guard::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log));
        let listens =
            || std::fs::read_to_string(home.folder().join("tcpdump.log")).is_ok_and(|t| t.contains("listening"));
        until("tcpdump listens", listens);
        Witness { guard, file }
    }

    /// Returns the frames so far that match the filter `expression`: each one's link level, lengths and checksums.
    fn read(&self, expression: &str) -> String {
        let mut command = Command::new("tcpdump");
        command.args(["-nn", "-e", "-vvv", "-r"]).arg(&self.file).arg(expression);
        output(&mut command).unwrap_or_default()
    }

    fn stop(mut self) {
        self.guard.signal(Signal::INT);
        self.guard.wait();
    }
}

/// The lengths of the frames in tcpdump's text.
fn lengths(text: &str) -> Vec<usize> {
    // The frame's own length stands before a colon, that of its payload at the end of a line.
    let lengths = text.split(", length ").skip(1).filter_map(|rest| rest.split_once(':')?.0.parse().ok());
    lengths.collect()
}

/// Checks that a TCP stream arrives as frames of at most the MTU with valid checksums.
fn stream_is_complete(home: &Home, name: &str, from: &Ns, to: &Ns, address: &str) {
    let witness = Witness::start(home, to, name);
    stream(from, to, address).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut seen = String::new();
    until("tcpdump has seen the stream", || {
        seen = witness.read(&format!("tcp and dst host {address}"));
        seen.contains("Flags [F")
            || seen.contains("Flags [P") && seen.matches(LONGEST.to_string().as_str()).count() > 50
    });
    witness.stop();
    let lengths = lengths(&seen);
    assert!(lengths.len() > 50, "{name}: {} frames", lengths.len());
    assert!(lengths.iter().all(|&length| length <= LONGEST), "{name}: a frame of {:?} bytes", lengths.iter().max());
    assert!(seen.contains("(correct)") && !seen.contains("incorrect"), "{name}: checksums");
}

fn row(home: &Home, path: &Path) {
    let name = path.name;
    if Command::new("tcpdump").arg("--version").output().is_err() {
        return summary("skipped: no tcpdump here (Debian: tcpdump)");
    }
    let Some(net) = Net::with(home, path.policy, CABLE, &["--admode", path.admode]) else { return };
    if let Some((_, commands)) = UPPER.iter().find(|(upper, _)| *upper == name) {
        let up: &[&[&str]] = &[&["link", "set", "va", "up"], &["link", "set", "up0", "up", "promisc", "on"]];
        for command in commands.iter().chain(up) {
            if let Err(why) = net.near.ip(command) {
                return summary(&format!("skipped: no {name} can be made here: {why}"));
            }
        }
    }
    if path.interface == "vi0" {
        host_on_switch(&net.near, "vi0", &["10.8.0.1/24"]);
    }
    let third = net.lab.namespace("third").expect("a namespace");
    let cable = lab::VethOptions { addresses: None, ..CABLE };
    net.lab.veth(&net.near, "va2", &third, "vb2", cable).expect("a cable");
    third.ip(&["addr", "add", &format!("{}/24", path.addresses[1]), "dev", "vb2"]).expect("an address");
    let (from, interface) = (if path.interface == "vb" { &net.far } else { &net.near }, path.interface);
    if interface == "vb" {
        net.near.ip(&["addr", "flush", "dev", "va"]).expect("addresses");
    }
    let bridge = || net.start(home, program("bridge"), &["-w", "0", "-i", path.port, "-i", "netmap:va2"], 2);

    // Tags, beside the frame (the outer one) and in it.
    for (tags, wanted) in [(&[0x8100_000a][..], "vlan 10,"), (&[0x88a8_0005, 0x8100_0007], "vlan 5,")] {
        let witness = Witness::start(home, &third, "tag");
        // Before the daemon's program, which is attached when the port is opened.
        let _pusher = from.run(|| bpf::push_tags(interface, tags)).expect("a namespace").expect("a program");
        let (_bridge, tap) = (bridge(), Tap::on(from, interface));
        until(&format!("{name}: a frame with {wanted}"), || {
            tap.send(&frame(100, 1));
            witness.read("").contains(wanted)
        });
        witness.stop();
    }
    let mut bridge = bridge();
    until("a bridge", || conformance::net::pings(from, path.addresses[1]));
    // Checksums and segmentation are left to the sender's interface, as they are by default.
    stream_is_complete(home, "TSO", from, &third, path.addresses[1]);
    // The sender's stack does both, and the receiving interface could merge the segments again.
    if interface != "vi0" {
        for (ns, interface, offload, state) in
            [(from, interface, "tso", "off"), (from, interface, "gso", "off"), (&net.near, "va", "gro", "on")]
        {
            ns.tool("ethtool", &["-K", interface, offload, state]).expect("ethtool");
        }
    }
    stream_is_complete(home, "LRO", from, &third, path.addresses[1]);
    bridge.signal(Signal::TERM);
    assert!(bridge.wait().success());
    summary(&format!("{name:<16} tag as sent   checksum valid   TSO cut   LRO, GRO not merged"));
}

#[test]
fn offloads_are_complete_native() {
    isolated_with_interfaces(|home| row(home, &PATHS[0]));
}

#[test]
fn offloads_are_complete_generic() {
    isolated_with_interfaces(|home| row(home, &PATHS[1]));
}

#[test]
fn offloads_are_complete_mediated() {
    isolated_with_interfaces(|home| row(home, &PATHS[2]));
}

#[test]
fn offloads_are_complete_host_rings() {
    isolated_with_interfaces(|home| row(home, &PATHS[3]));
}

#[test]
fn offloads_are_complete_persistent_port() {
    isolated_with_interfaces(|home| row(home, &PATHS[4]));
}

fn row_above(home: &Home, name: &'static str) {
    row(home, &Path { name, admode: "best", port: "netmap:up0", ..PATHS[0] });
}

#[test]
fn offloads_are_complete_bridge() {
    isolated_with_interfaces(|home| row_above(home, UPPER[0].0));
}

#[test]
fn offloads_are_complete_bond() {
    isolated_with_interfaces(|home| row_above(home, UPPER[1].0));
}

#[test]
fn offloads_are_complete_macvlan() {
    isolated_with_interfaces(|home| row_above(home, UPPER[2].0));
}

/// A virtual machine that relies on its host for checksums and segmentation.
#[test]
fn offloads_are_complete_tap() {
    isolated_with_interfaces(|home| {
        if Command::new("tcpdump").arg("--version").output().is_err() {
            return summary("skipped: no tcpdump here (Debian: tcpdump)");
        }
        for policy in [DIRECT, MEDIATED] {
            let Some(net) = Net::with(home, policy, CABLE, &[]) else { return };
            let machine = Machine::new(&net.near, "tap0");
            let cable = lab::VethOptions { addresses: None, ..CABLE };
            net.lab.veth(&net.near, "va2", &net.far, "vb2", cable).expect("a cable");
            let bridge = net.start(home, program("bridge"), &["-w", "0", "-i", "netmap:tap0", "-i", "netmap:va2"], 2);
            let witness = Witness::start(home, &net.far, "tap");
            let mut tagged = frame(600, 2);
            tagged.splice(12..12, [0x81, 0, 0, 10]);
            [unfinished(300), unfinished(20_000), [&[0; HEADER], &tagged[..]].concat()]
                .iter()
                .for_each(|f| machine.send(f));
            let mut seen = String::new();
            until("tcpdump has seen the frames", || {
                seen = witness.read("");
                seen.contains("vlan 10,") && seen.matches("(correct)").count() == 21
            });
            assert!(!seen.contains("incorrect") && lengths(&seen).iter().all(|&length| length <= LONGEST), "{seen}");
            witness.stop();
            drop((bridge, net));
            home.end_daemon();
        }
        summary("tap              tag as sent   checksum valid   TSO cut");
    });
}
