// SPDX-License-Identifier: BSD-2-Clause
//! Programs with an interface that wait for the next daemon.

use std::time::Duration;

use conformance::net::{CABLE, DIRECT, MEDIATED, Net, assert_works};
use conformance::{Home, isolated_with_interfaces, until};
use unetmap::{Interest, Port};

/// Waits, in the interface's namespace, until the port has gone on `times` times.
fn until_back(net: &Net, port: &Port, times: u32) {
    let back = || {
        port.poll(Interest::RX, Some(Duration::from_millis(50))).unwrap_or_else(|e| panic!("{e}"));
        port.reconnects() == times
    };
    net.near.run(|| until("the port is back", back)).expect("a namespace");
}

fn open(net: &Net, spec: &str) -> Port {
    let open = || Port::options().reconnect(None).open(spec).unwrap_or_else(|e| panic!("{e}"));
    net.near.run(open).expect("a namespace")
}

fn assert_goes_on(home: &Home, policy: &str) {
    let Some(mut net) = Net::new(home, policy, CABLE) else { return };
    let (port, tap) = (open(&net, "netmap:va"), net.tap());
    assert_works(&port, &tap, 0);
    for times in 1..=2 {
        net.restart_daemon(home);
        until_back(&net, &port, times);
        assert_works(&port, &tap, u64::from(times) * 10_000);
    }
    drop(port);
    home.until_left(0);
    net.assert_given_back();
}

#[test]
fn a_direct_port_goes_on_with_the_next_daemon() {
    isolated_with_interfaces(|home| assert_goes_on(home, DIRECT));
}

#[test]
fn a_mediated_port_goes_on_with_the_next_daemon() {
    isolated_with_interfaces(|home| assert_goes_on(home, MEDIATED));
}

#[test]
fn host_rings_go_on_with_the_next_daemon() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let host = open(&net, "netmap:va^");
        net.restart_daemon(home);
        until_back(&net, &host, 1);
        // What the host sends arrives here.
        let ring = &host.rx_rings()[0];
        until("a packet of the host", || {
            let _ = net.near.tool("ping", &["-n", "-q", "-c", "1", "-w", "1", "10.9.0.2"]);
            host.poll(Interest::RX, Some(Duration::ZERO)).unwrap_or_else(|e| panic!("{e}"));
            ring.space() > 0
        });
    });
}
