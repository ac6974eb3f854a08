// SPDX-License-Identifier: BSD-2-Clause
//! Replacing the daemon while an interface is attached to a switch, or is a port of it: packets that were taken are
//! delivered.

use std::time::Duration;

use conformance::home::summary;
use conformance::host::during_a_stream;
use conformance::net::{CABLE, DIRECT, Net, Tap, assert_works, open_in};
use conformance::replace::{Stream, drops_of, refused, replace, rounds, try_replace};
use conformance::switch::{done, host_on_switch};
use conformance::traffic::open;
use conformance::{Home, isolated_with_interfaces, until};

#[test]
fn an_attached_interface_goes_on_while_the_daemon_is_replaced() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        done(&net.near, "-h vale0:va");
        let port = open_in(&net.near, "vale0:p");
        // Packets of a new source cross to an unknown destination, also by the host rings.
        let (tap, host) = (net.tap(), Tap::on(&net.near, "va"));
        rounds(&port, &tap, |go_on| {
            done(&net.near, "-p vale0:va -C 0,1");
            for _ in 0..5 {
                replace(home);
                go_on();
                assert_eq!(home.polled("vale0:va"), [(0, 1)], "the processor that polls it");
                refused(home, Some("successor"));
                go_on();
            }
            done(&net.near, "-P vale0:va");
            replace(home);
            go_on();
        });
        drop(host);
        let list = done(&net.near, "");
        assert!(list.contains("vale0:va bridge_idx ") && list.contains("vale0:va^ bridge_idx "), "{list}");
        done(&net.near, "-d vale0:va");
        net.assert_given_back();
        drop(port);
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
    });
}

/// Two stacks, each with a persistent port on a switch, and a persistent port that nobody uses.
pub(crate) fn hosts_on_switch(net: &Net) {
    host_on_switch(&net.near, "vi0", &["10.8.0.1/24"]);
    host_on_switch(&net.far, "vi1", &["10.8.0.2/24"]);
    done(&net.near, "-n idle0");
}

/// Programs open these ports as before, and they are removed as before.
pub(crate) fn remove_hosts(home: &Home, net: &Net) {
    drop(open_in(&net.near, "netmap:vi0"));
    for (ns, name) in [(&net.near, "vi0"), (&net.far, "vi1")] {
        done(ns, &format!("-d vale0:{name}"));
        done(ns, &format!("-r {name}"));
        ns.ip(&["link", "show", name]).expect_err("it is gone");
    }
    done(&net.near, "-r idle0");
    until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
}

/// Two stacks, each with a persistent port, and one connection.
#[test]
fn persistent_ports_go_on_while_the_daemon_is_replaced() {
    isolated_with_interfaces(|home| {
        const REPLACEMENTS: u32 = 5;
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        hosts_on_switch(&net);
        let bytes = during_a_stream([&net.near, &net.far], "10.8.0.1", |until_more| {
            until_more("the stream crosses the switch");
            for _ in 0..REPLACEMENTS {
                replace(home);
                until_more("the stream goes on");
                refused(home, Some("successor"));
                until_more("the stream goes on");
            }
        });
        summary(&format!("the daemon was replaced {REPLACEMENTS} times under one connection, {bytes} bytes"));
        remove_hosts(home, &net);
    });
}

/// A program has the port and its host rings: neither loses a packet that it does not count.
#[test]
fn a_persistent_port_that_a_program_has_open_goes_on() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        host_on_switch(&net.near, "v0", &[]);
        let names = ["vale0:v0", "vale0:other"];
        // They stay open for their counters, in both directions.
        let kept = names.map(open);
        let stack = open_in(&net.near, "netmap:v0^");
        let streams = [(0, 1), (1, 0)]
            .map(|(from, to)| Stream::start(names[from], names[to], from as u64 + 1, Duration::from_millis(1)));
        let shown = || done(&net.near, "");
        let before = shown();
        rounds(&stack, &Tap::on(&net.near, "v0"), |go_on| {
            for n in 0..5 {
                replace(home);
                streams.iter().for_each(Stream::go_on);
                go_on();
                refused(home, Some("successor"));
                let reason = try_replace(home, Some(&format!("mutate:{}", n * 41))).stderr;
                let reason = String::from_utf8_lossy(&reason).into_owned();
                assert!(!reason.contains("panicked"), "mutation {n}: {reason}");
                streams.iter().for_each(Stream::go_on);
                go_on();
            }
        });
        assert_eq!(shown(), before, "the same places");
        let counts = streams.map(Stream::stop);
        let (sent, received) = (counts[0].0 + counts[1].0, counts[0].1.received + counts[1].1.received);
        let dropped = drops_of(home, &names);
        summary(&format!("5 replacements: {sent} packets sent, {received} received, {dropped} dropped"));
        assert_eq!(received + dropped, sent, "{counts:?}");
        // The host has the port again.
        drop((kept, stack));
        until("they are closed", || home.snapshot().ports.iter().all(|port| port.name != "vale0:other"));
        let (other, host) = (open_in(&net.near, "vale0:other"), Tap::on(&net.near, "v0"));
        assert_works(&other, &host, 0);
        replace(home);
        assert_works(&other, &host, 1000);
        drop(other);
        done(&net.near, "-d vale0:v0");
        done(&net.near, "-r v0");
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
    });
}

/// The daemon has the port open: threads copy its packets to a second switch.
#[test]
fn a_persistent_port_of_two_switches_goes_on() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        ["-n v0", "-a vale0:v0", "-a vale1:v0"].iter().for_each(|args| drop(done(&net.near, args)));
        let kept = ["vale0:a", "vale1:b"].map(open);
        let stream = Stream::start("vale0:a", "vale1:b", 1, Duration::from_millis(1));
        stream.goes_on_while_replaced(home);
        let (sent, counts) = stream.stop();
        let dropped = drops_of(home, &["vale0:a", "vale0:v0", "vale1:v0", "vale1:b"]);
        summary(&format!("5 replacements: {sent} packets through two switches, {counts:?}, {dropped} dropped"));
        assert_eq!(counts.received + dropped, sent);
        unetmap::OpenOptions::default().open("vale0:v0").expect_err("the daemon has it open");
        drop(kept);
        ["-d vale1:v0", "-d vale0:v0", "-r v0"].iter().for_each(|args| drop(done(&net.near, args)));
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
    });
}
