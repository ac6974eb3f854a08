// SPDX-License-Identifier: BSD-2-Clause
//! Replacing the daemon while a program has an interface open: its sockets go on, and no packet is lost.

use std::fs;
use std::thread;
use std::time::Duration;

use conformance::net::{CABLE, DIRECT, MEDIATED, Net, assert_works, policy_file};
use conformance::replace::{refused, replace, replace_with, rounds, try_replace};
use conformance::thread::StoppedThread;
use conformance::tool::{done, nic};
use conformance::{Home, isolated_with_interfaces, until};
use serde_json::Value;

use crate::headers;

/// More than the time after which the kernel's programs give an interface back if nobody renews their deadline.
const DEADLINE: Duration = Duration::from_secs(2);
#[track_caller]
fn rename(net: &Net, home: &Home, from: &str, to: &str) {
    net.near.ip(&["link", "set", "dev", from, "name", to]).unwrap_or_else(|e| panic!("{e}"));
    until("the new name is shown", || home.snapshot().ports.iter().any(|port| port.name == to));
}

#[test]
fn an_interface_goes_on_while_the_daemon_is_replaced() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va"), net.tap());
        rounds(&port, &tap, |go_on| {
            for _ in 0..5 {
                replace(home);
                go_on();
            }
        });
        // The deadline of the XDP program is renewed, and changes of the interface are noticed.
        thread::sleep(DEADLINE);
        assert_works(&port, &tap, 0);
        rename(&net, home, "va", "renamed");
        rename(&net, home, "renamed", "va");
        let sharer = net.open("netmap:va-0/T");
        assert_eq!(sharer.mem_id(), port.mem_id(), "the same port");
        assert_works(&port, &tap, 0);
        for region in home.snapshot().regions {
            let buffers = region.buffers;
            assert_eq!(buffers.free + buffers.in_rings + buffers.extra, buffers.total, "{}: {buffers:?}", region.name);
        }
        drop((port, sharer));
        net.assert_given_back();
        // With nothing open the successor's own broker serves.
        until("the port is closed", || home.snapshot().ports.is_empty());
        let broker = home.snapshot().daemon.privileged_pid;
        replace(home);
        assert_ne!(home.snapshot().daemon.privileged_pid, broker, "another broker");
        let port = net.open("netmap:va");
        assert_works(&port, &tap, 0);
        drop(port);
        net.assert_given_back();
    });
}

#[test]
fn a_mediated_interface_goes_on_while_the_daemon_is_replaced() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, MEDIATED, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va"), net.tap());
        rounds(&port, &tap, |go_on| {
            for _ in 0..5 {
                replace(home);
                go_on();
                refused(home, Some("successor"));
                go_on();
            }
            // The thread that copies its packets is held up, and goes on afterwards.
            let held = StoppedThread::named(home.daemon(), "va 0");
            let reason = refused(home, None);
            assert!(reason.contains("a thread that copies packets waits for memory of a program"), "{reason}");
            drop(held);
            go_on();
            replace(home);
            go_on();
        });
        // The deadline of the XDP program is renewed.
        thread::sleep(DEADLINE);
        assert_works(&port, &tap, 0);
        let sharer = net.open("netmap:va/T");
        assert_eq!(sharer.mem_id(), port.mem_id(), "the same port");
        let bytes = |home: &Home| home.snapshot().ports[0].rings.iter().map(|ring| ring.bytes).collect::<Vec<_>>();
        let before = bytes(home);
        replace(home);
        assert_eq!(bytes(home), before, "the counters go on");
        drop((port, sharer));
        net.assert_given_back();
        until("all regions are freed", || home.snapshot().regions.is_empty());
    });
}

#[test]
fn an_interface_goes_on_when_a_successor_fails() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va"), net.tap());
        let other = home.folder().join("other.toml");
        fs::copy(policy_file(home), &other).expect("a file to write");
        rounds(&port, &tap, |go_on| {
            let before = home.daemon();
            for fault in ["successor", "abort", "version"] {
                refused(home, Some(fault));
                go_on();
            }
            // The broker reads the files that it was started with.
            let reason = replace_with(home, Some(&other), None).stderr;
            let reason = String::from_utf8_lossy(&reason);
            assert!(reason.contains("another --policy or --config"), "{reason}");
            for n in 0..40 {
                let output = try_replace(home, Some(&format!("mutate:{}", n * 5)));
                let reason = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(!output.status.success() && !reason.contains("panicked"), "mutation {n}: {reason}");
            }
            assert_eq!(home.daemon(), before, "the same process");
            go_on();
        });
        drop(port);
        net.assert_given_back();
    });
}

/// Filter, busy polling and header: what is set stays, is in force without a gap, and ends with its interface.
#[test]
fn settings_of_interfaces_go_on_while_the_daemon_is_replaced() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let ns = &net.near;
        for name in ["v1", "v2"] {
            ns.ip(&["link", "add", name, "type", "veth"]).expect("a cable");
        }
        let has_busy_poll = nic(ns, &["v1", "busy-poll", "30"]).status.success();
        headers::set(&net, "v2", 12).expect("an interface that is not open");
        done(ns, &["v2", "filter", "tcp"]);
        done(ns, &["va", "filter", "not icmp and not arp"]);
        let shown = |name: &str| {
            let mut shown: Value = serde_json::from_str(&done(ns, &[name, "--json"])).expect("JSON");
            // Its counters go on.
            let all = shown.as_object_mut().expect("an object");
            ["port", "frames"].iter().for_each(|counted| _ = all.remove(*counted));
            shown
        };
        let all = || ["va", "v1", "v2"].map(shown);
        let (port, tap) = (net.open("netmap:va"), net.tap());
        let before = all();
        assert_eq!((&before[0]["filter"]["in_force"], &before[2]["header"]), (&true.into(), &12.into()));
        rounds(&port, &tap, |go_on| {
            for n in 0..5 {
                replace(home);
                assert!(net.pings(), "ICMP and ARP stay with the kernel");
                go_on();
                refused(home, Some("successor"));
                for mutation in 0..8 {
                    let reason = try_replace(home, Some(&format!("mutate:{}", n * 80 + mutation * 11))).stderr;
                    let reason = String::from_utf8_lossy(&reason).into_owned();
                    assert!(!reason.contains("panicked"), "mutation {n}: {reason}");
                }
                assert_eq!(all(), before);
            }
        });
        // A change reaches the program that is attached, and sockets that are opened later.
        done(ns, &["va", "filter", "off"]);
        assert!(!net.pings(), "all frames enter the port");
        drop(port);
        net.assert_given_back();
        until("the port is closed", || home.snapshot().ports.is_empty());
        if has_busy_poll {
            done(ns, &["va", "busy-poll", "50"]);
            replace(home);
            let port = net.open("netmap:va");
            let shown: Value = serde_json::from_str(&done(ns, &["va", "--json"])).expect("JSON");
            assert_eq!(shown["port"]["queues"][0]["busy_usec"], 50);
            replace(home);
            assert_works(&port, &tap, 1000);
            drop(port);
            done(ns, &["va", "busy-poll", "off"]);
            done(ns, &["v1", "busy-poll", "off"]);
        }
        // The end of an interface is noticed, and with it the last setting goes: the next broker is another one.
        let broker = home.snapshot().daemon.privileged_pid;
        replace(home);
        assert_eq!(home.snapshot().daemon.privileged_pid, broker, "the numbers of namespaces are the broker's");
        ns.ip(&["link", "del", "v2"]).expect("an interface");
        until("the setting is gone", || {
            replace(home);
            home.snapshot().daemon.privileged_pid != broker
        });
    });
}
