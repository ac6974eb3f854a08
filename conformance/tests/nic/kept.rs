// SPDX-License-Identifier: BSD-2-Clause
//! `unetmapd --keep-ports`: the daemon is killed while programs have interfaces open, and starts again: no packet is
//! lost.

use std::thread;
use std::time::Duration;

use conformance::kept::{kill, net, wait_until_kept};
use conformance::net::{DIRECT, MEDIATED, Net, assert_works};
use conformance::replace::{replace, rounds};
use conformance::tool::done;
use conformance::{Home, isolated_with_interfaces, until};

/// Fewer than those after which the daemon is not started again, if they come as fast as they can.
const CRASHES: usize = 4;
/// More than the time after which the kernel's programs give an interface back if nobody renews their deadline.
const DEADLINE: Duration = Duration::from_secs(2);

/// Kills the daemon while packets cross `va`, and uses the interface in all ways afterwards.
fn goes_on(home: &Home, net: &Net) {
    done(&net.near, &["va", "filter", "not icmp and not arp"]);
    let (port, tap) = (net.open("netmap:va"), net.tap());
    let broker = home.snapshot().daemon.privileged_pid;
    rounds(&port, &tap, |go_on| {
        for _ in 0..CRASHES {
            wait_until_kept(home);
            kill(home);
            go_on();
            assert!(net.pings(), "the filter is in force");
        }
    });
    assert_eq!(home.snapshot().daemon.privileged_pid, broker, "the process that has the programs");
    // The deadline of the XDP program is renewed.
    thread::sleep(DEADLINE);
    assert_works(&port, &tap, 0);
    let sharer = net.open("netmap:va-0/T");
    assert_eq!(sharer.mem_id(), port.mem_id(), "the same port");
    replace(home);
    assert_works(&port, &tap, 0);
    done(&net.near, &["va", "filter", "off"]);
    drop((port, sharer));
    net.assert_given_back();
    until("all regions are freed", || home.snapshot().regions.is_empty());
}

#[test]
fn an_interface_goes_on_after_a_crash() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home, DIRECT) else { return };
        goes_on(home, &net);
    });
}

#[test]
fn a_mediated_interface_goes_on_after_a_crash() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home, MEDIATED) else { return };
        goes_on(home, &net);
    });
}

/// The store has duplicates of the sockets of queues; a queue that was closed can be opened at once all the same.
#[test]
fn a_queue_is_free_when_its_port_is_closed() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home, DIRECT) else { return };
        let other = net.open("netmap:p{1");
        for _ in 0..20 {
            let port = net.near.run(|| unetmap::Port::open("netmap:va")).expect("a namespace");
            drop(port.unwrap_or_else(|e| panic!("{e}")));
            wait_until_kept(home);
        }
        kill(home);
        drop(other);
        net.assert_given_back();
    });
}
