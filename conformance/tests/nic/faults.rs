// SPDX-License-Identifier: BSD-2-Clause
//! Frames that are not those on the wire although all settings were made: the sender of a veth is told again to leave
//! out checksums and segmentation while a port is open, as a driver does that says it does neither. Such frames are
//! found in operation, the reason is told, and the interface is opened in another way.

use std::time::Duration;

use conformance::home::summary;
use conformance::host::CABLE;
use conformance::machine::{Machine, unfinished};
use conformance::net::{DIRECT, MEDIATED, Net, take};
use conformance::packet::assert_checksums;
use conformance::tool::done;
use conformance::{Home, isolated_with_interfaces, program, until};
use serde_json::Value;
use unetmap::{Interest, Port};

/// The sender leaves out what its settings say again.
fn lie(net: &Net) -> Machine {
    net.far.tool("ethtool", &["-K", "vb", "tx", "on", "tso", "on"]).expect("ethtool");
    Machine::on(&net.far, "vb")
}

/// The state of the port of `va`, and why its packets are copied.
fn state(home: &Home) -> (String, String) {
    let ports = home.snapshot().ports;
    let port = ports.iter().find(|port| port.manner.is_some()).expect("the port");
    (port.manner.clone().unwrap_or_default(), port.copied.clone().unwrap_or_default())
}

/// Sends until the daemon has found this.
fn is_found(home: &Home, port: &Port, send: impl Fn(), what: &str) {
    until(what, || {
        send();
        port.poll(Interest::RX, Some(Duration::from_millis(20))).expect("the daemon runs");
        (0..port.rx_rings().len()).for_each(|ring| drop(take(port, ring)));
        state(home).1.contains(what)
    });
}

/// Frames that arrive until there are `payload` bytes of TCP are complete.
fn are_complete(port: &Port, machine: &Machine) {
    machine.send(&unfinished(300));
    machine.send(&unfinished(20_000));
    let mut got: Vec<Vec<u8>> = Vec::new();
    until("all bytes arrive", || {
        port.poll(Interest::RX, Some(Duration::from_millis(20))).expect("the daemon runs");
        let arrived = (0..port.rx_rings().len()).flat_map(|ring| take(port, ring));
        got.extend(arrived.filter(|frame| frame[12..14] == [8, 0] && frame[23] == 6));
        got.iter().map(|frame| frame.len() - 54).sum::<usize>() >= 20_300
    });
    got.iter().for_each(|frame| assert_checksums(frame));
    assert!(got.iter().all(|frame| frame.len() <= 1514), "{:?}", got.iter().map(Vec::len).max());
}

/// The reasons in the log of events.
fn events(net: &Net) -> Vec<String> {
    let output = net.command(program("unetmap")).args(["events", "--json"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let events = events.filter(|event| event["event"] == "frames-faulty" && event["port"] == "va");
    events.map(|event| event["reason"].as_str().unwrap_or_default().to_owned()).collect()
}

fn is_opened_in_another_way(home: &Home, policy: &str, way: &str, send: &[u8], what: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    done(&net.near, &["va", "way", way]);
    let port = net.open("netmap:va");
    let (before, why) = state(home);
    assert!(!why.contains("arrived"), "{why}");
    let machine = lie(&net);
    is_found(home, &port, || machine.send(send), what);
    assert_eq!(state(home).0, before, "the port goes on as it is");
    drop(port);
    let port = net.open("netmap:va");
    let (manner, why) = state(home);
    assert!(manner == "by way of a veth, copy" && why.contains(what), "{manner}: {why}");
    let reasons = events(&net);
    assert!(
        matches!(&reasons[..], [reason] if reason.contains(what) && reason.contains("way of a veth")),
        "{reasons:?}"
    );
    let doctor = net.command(program("unetmap")).args(["doctor", "va"]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&doctor.stdout).contains(what), "{doctor:?}");
    are_complete(&port, &lie(&net));
    drop(port);
    // Root knows better.
    done(&net.near, &["va", "way", way]);
    let _port = net.open("netmap:va");
    assert_eq!(state(home).0, before);
    summary(&format!("{what}, by way {way}: opened by way of a veth"));
}

#[test]
fn merged_frames_are_found_and_the_interface_is_opened_in_another_way() {
    isolated_with_interfaces(|home| {
        is_opened_in_another_way(home, DIRECT, "generic", &unfinished(20_000), "frames arrived merged");
    });
}

#[test]
fn unfinished_frames_are_found_and_the_interface_is_opened_in_another_way() {
    isolated_with_interfaces(|home| {
        is_opened_in_another_way(home, MEDIATED, "auto", &unfinished(300), "frames arrived with unfinished checksums");
    });
}
