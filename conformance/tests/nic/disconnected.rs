// SPDX-License-Identifier: BSD-2-Clause
//! `/d` in a port's name: the open is refused unless the host's stack is disconnected from the interface, and says why.

use std::time::Duration;

use conformance::home::summary;
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, frame, pings, take};
use conformance::tool::{done, lacks};
use conformance::{Home, isolated_with_interfaces, until};
use lab::VethOptions;
use unetmap::Interest;

/// `EINVAL` and `EOPNOTSUPP`.
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
/// Part of the reason why a port without all rings is refused.
const OTHERS: &str = "the stack has the rings that no program has open";

#[track_caller]
fn net(home: &Home, policy: &str) -> Option<Net> {
    Net::new(home, policy, VethOptions { queues: 2, ..CABLE })
}

/// The port opens, and the stacks of the two ends do not reach each other.
#[track_caller]
fn disconnects(home: &Home, net: &Net, spec: &str) {
    let port = net.open(spec);
    let sent = frame(60, 7);
    net.tap().send(&sent);
    until("the frame arrives", || {
        port.poll(Interest::RX, Some(Duration::from_millis(20))).expect("the daemon runs");
        (0..port.rx_rings().len()).any(|ring| take(&port, ring).contains(&sent))
    });
    assert!(!net.pings() && !pings(&net.far, "10.9.0.1"), "{spec}: the stack neither asks nor answers");
    drop(port);
    until("it is closed", || home.snapshot().regions.is_empty());
}

/// The port does not open, for this reason, and nothing is left of it.
#[track_caller]
fn refuses(home: &Home, net: &Net, spec: &str, why: &str) {
    let (errno, said) = net.refused(spec);
    assert!(said.contains(why) && said.contains("/d"), "{spec}: {said}");
    assert_eq!(errno, EOPNOTSUPP, "{said}");
    until("nothing is left", || home.snapshot().regions.is_empty());
    until("the stack has the interface again", || net.pings());
}

fn by_xdp(home: &Home, policy: &str) {
    if let Some(why) = lacks("kernel: host rings") {
        return summary(&format!("skipped: {why}"));
    }
    let Some(net) = net(home, policy) else { return };
    disconnects(home, &net, "netmap:va/d");
    disconnects(home, &net, "netmap:va*/xd");
    for spec in ["netmap:va-0/d", "netmap:va/dR", "netmap:va/Td", "netmap:va^/d"] {
        refuses(home, &net, spec, OTHERS);
    }
    done(&net.near, &["va", "filter", "udp"]);
    refuses(home, &net, "netmap:va/d", "its filter leaves frames to the stack (unetmap nic va filter off)");
    done(&net.near, &["va", "filter", "off"]);
    disconnects(home, &net, "netmap:va/d");
}

#[test]
fn a_direct_interface_is_disconnected_or_refused() {
    isolated_with_interfaces(|home| by_xdp(home, DIRECT));
}

#[test]
fn a_mediated_interface_is_disconnected_or_refused() {
    isolated_with_interfaces(|home| by_xdp(home, MEDIATED));
}

#[test]
fn an_interface_by_packet_sockets_is_disconnected_or_refused() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home, DIRECT) else { return };
        done(&net.near, &["va", "way", "packet"]);
        disconnects(home, &net, "netmap:va/d");
        disconnects(home, &net, "netmap:va-0/d");
        refuses(home, &net, "netmap:va/Td", "as no program receives");
    });
}

/// Monitors take nothing from the stack; pipes and ports of switches have nothing to do with it.
#[test]
fn other_ports_are_open_or_refused_for_what_they_are() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home, DIRECT) else { return };
        let _port = net.open("netmap:va");
        let (errno, said) = net.refused("netmap:va/rd");
        assert!(errno == EINVAL && said.contains("a monitor takes no frames from the host's stack"), "{said}");
        let _others = ["netmap:p{1/d", "vale0:a/d", "netmap:nmsink0/d"].map(|spec| net.open(spec));
    });
}
