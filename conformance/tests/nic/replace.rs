// SPDX-License-Identifier: BSD-2-Clause
//! Replacing the daemon while a program has an interface open: its sockets go on, and no packet is lost.

use std::fs;
use std::thread;
use std::time::Duration;

use conformance::net::{CABLE, DIRECT, MEDIATED, Net, assert_works, policy_file};
use conformance::replace::{refused, replace, replace_with, rounds, try_replace};
use conformance::thread::StoppedThread;
use conformance::{Home, isolated, until};

/// More than the time after which the kernel's programs give an interface back if nobody renews their deadline.
const DEADLINE: Duration = Duration::from_secs(2);
#[track_caller]
fn rename(net: &Net, home: &Home, from: &str, to: &str) {
    net.near.ip(&["link", "set", "dev", from, "name", to]).unwrap_or_else(|e| panic!("{e}"));
    until("the new name is shown", || home.snapshot().ports.iter().any(|port| port.name == to));
}

#[test]
fn an_interface_goes_on_while_the_daemon_is_replaced() {
    isolated(|home| {
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
    isolated(|home| {
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
    isolated(|home| {
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
