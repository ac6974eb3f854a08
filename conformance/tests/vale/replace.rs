// SPDX-License-Identifier: BSD-2-Clause
//! Replacing the daemon while an interface is attached to a switch, or is a port of it: packets that were taken are
//! delivered.

use conformance::home::summary;
use conformance::host::during_a_stream;
use conformance::net::{CABLE, DIRECT, Net, Tap, open_in};
use conformance::replace::{refused, replace, rounds};
use conformance::switch::{done, host_on_switch};
use conformance::{isolated, until};

#[test]
fn an_attached_interface_goes_on_while_the_daemon_is_replaced() {
    isolated(|home| {
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

/// Two stacks, each with a persistent port, and one connection.
#[test]
fn persistent_ports_go_on_while_the_daemon_is_replaced() {
    isolated(|home| {
        const REPLACEMENTS: u32 = 5;
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        host_on_switch(&net.near, "vi0", &["10.8.0.1/24"]);
        host_on_switch(&net.far, "vi1", &["10.8.0.2/24"]);
        done(&net.near, "-n idle0");
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
        // Programs open them as before, and they are removed as before.
        let port = open_in(&net.near, "netmap:vi0");
        let reason = refused(home, None);
        assert!(reason.contains("a persistent port that a program has open cannot be handed"), "{reason}");
        drop(port);
        for (ns, name) in [(&net.near, "vi0"), (&net.far, "vi1")] {
            done(ns, &format!("-d vale0:{name}"));
            done(ns, &format!("-r {name}"));
            ns.ip(&["link", "show", name]).expect_err("it is gone");
        }
        done(&net.near, "-r idle0");
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
    });
}
