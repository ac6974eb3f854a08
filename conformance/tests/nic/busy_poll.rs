// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap nic IF busy-poll ...`: sockets bound from then on use busy polling and transfer packets as before; which
//! users may set it, how long it lasts, and which values are refused.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use conformance::home::summary;
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, assert_works, public_copy};
use conformance::tool::{done, nic, refused, wrong};
use conformance::{Home, isolated_with_interfaces, program, until};
use lab::{Ns, VethOptions};
use serde_json::{Value, json};

/// Users of these tests: one with direct access by the policy, one with mediated access.
const OWNER: u32 = 61_001;
const GUEST: u32 = 61_002;

#[track_caller]
fn reported(ns: &Ns) -> Value {
    serde_json::from_str(&done(ns, &["va", "--json"])).expect("JSON")
}

/// The busy-poll setting of each queue's socket, as the daemon reads it from the kernel.
#[track_caller]
fn of_queues(ns: &Ns) -> Vec<Value> {
    let reported = reported(ns);
    reported["port"]["queues"].as_array().expect("queues").iter().map(|queue| queue["busy_usec"].clone()).collect()
}

/// Whether this kernel supports it; prints a line if it does not.
fn can(net: &Net) -> bool {
    let output = nic(&net.near, &["va", "busy-poll", "1"]);
    if output.status.success() {
        done(&net.near, &["va", "busy-poll", "off"]);
        return true;
    }
    let printed = refused(&output);
    assert!(printed.contains("busy-polling sockets need Linux 5.11 or newer"), "{printed}");
    summary(&format!("skipped: {printed}"));
    false
}

fn polled(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, VethOptions { queues: 2, ..CABLE }) else { return };
    if !can(&net) {
        return;
    }
    let ns = &net.near;
    let closed = || until("it is closed", || home.snapshot().regions.is_empty());
    assert_eq!(reported(ns)["busy_poll"], Value::Null, "off, unless set");
    let printed = done(ns, &["va", "busy-poll", "50"]);
    assert_eq!(printed, "va: ports opened from now on use busy polling, 50 us, 64 packets per poll\n");
    let fifty = json!({"usec": 50, "budget": 64});
    assert_eq!((&reported(ns)["busy_poll"], &reported(ns)["port"]), (&fifty, &Value::Null));
    let tap = net.tap();
    let port = net.open("netmap:va");
    assert_eq!(of_queues(ns), [50, 50]);
    assert_works(&port, &tap, 0);
    // A change applies to ports that are opened afterwards.
    done(ns, &["va", "busy-poll", "20", "8"]);
    assert_eq!(of_queues(ns), [50, 50]);
    done(ns, &["va", "busy-poll", "off"]);
    assert_eq!((reported(ns)["busy_poll"].clone(), of_queues(ns)), (Value::Null, vec![50.into(), 50.into()]));
    let text = done(ns, &["va"]);
    assert!(text.contains("busy polling: off for ports opened from now on; queues that still use it: 2\n"), "{text}");
    assert_works(&port, &tap, 1000);
    drop(port);
    closed();
    let port = net.open("netmap:va");
    assert_eq!(of_queues(ns), [Value::Null, Value::Null]);
    done(ns, &["va", "busy-poll", "20", "8"]);
    assert_eq!(of_queues(ns), [Value::Null, Value::Null]);
    assert_works(&port, &tap, 2000);
    drop(port);
    closed();
    let port = net.open("netmap:va-1/T");
    assert_eq!(of_queues(ns), [Value::Null, 20.into()]);
    let text = done(ns, &["va"]);
    let wanted = "busy polling: 20 us, 8 packets per poll, for ports opened from now on; queues that use it: 1\n";
    assert!(text.contains(wanted), "{text}");
    drop(port);
    net.assert_given_back();
}

#[test]
fn busy_poll_is_set_on_new_sockets_direct() {
    isolated_with_interfaces(|home| polled(home, DIRECT));
}

#[test]
fn busy_poll_is_set_on_new_sockets_mediated() {
    isolated_with_interfaces(|home| polled(home, MEDIATED));
}

/// The setting belongs to the interface, like its filter: each stays without the other, both are removed with the
/// interface.
#[test]
fn busy_poll_lasts_as_long_as_the_interface() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        if !can(&net) {
            return;
        }
        let ns = &net.near;
        let both = || (reported(ns)["filter"]["expression"].clone(), reported(ns)["busy_poll"]["usec"].clone());
        done(ns, &["va", "filter", "udp"]);
        done(ns, &["va", "busy-poll", "50"]);
        assert_eq!(both(), ("udp".into(), 50.into()));
        done(ns, &["va", "filter", "off"]);
        assert_eq!(both(), (Value::Null, 50.into()));
        done(ns, &["va", "filter", "udp"]);
        done(ns, &["va", "busy-poll", "off"]);
        assert_eq!(both(), ("udp".into(), Value::Null));
        done(ns, &["va", "busy-poll", "60", "1"]);
        let index = reported(ns)["index"].as_u64().expect("a number").to_string();
        ns.ip(&["link", "del", "va"]).expect("an interface");
        ns.ip(&["link", "add", "va", "index", &index, "type", "veth", "peer", "name", "vz"]).expect("an interface");
        assert_eq!(both(), (Value::Null, Value::Null));
    });
}

#[test]
fn invalid_values_are_refused_with_the_allowed_ones() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        if !can(&net) {
            return;
        }
        done(&net.near, &["va", "busy-poll", "50"]);
        for words in [&["0"][..], &["1001"], &["50", "0"], &["50", "65"], &["4294967295", "4294967295"], &["65537"]] {
            let printed = wrong(&nic(&net.near, &[&["va", "busy-poll"], words].concat()));
            assert!(printed.contains("give 1 to 1000 us, and a budget of 1 to 64 packets"), "{words:?}: {printed}");
        }
        for words in [&["on"][..], &["4294967296"], &["50", "x"], &["off", "8"]] {
            let printed = wrong(&nic(&net.near, &[&["va", "busy-poll"], words].concat()));
            assert!(printed.contains("use `busy-poll USEC [BUDGET]`, or `busy-poll off`"), "{words:?}: {printed}");
        }
        assert!(refused(&nic(&net.near, &["nope", "busy-poll", "50"])).contains("no such interface"));
        assert_eq!(reported(&net.near)["busy_poll"]["usec"], 50, "a refused setting changes nothing");
    });
}

/// The same users as for filters may set it: root, and users with the interface open directly.
#[test]
fn only_permitted_users_can_set_busy_poll() {
    isolated_with_interfaces(|home| {
        let policy = format!(
            "[[rule]]\nports = [\"v*\"]\nusers = [\"root\", {OWNER}]\naccess = \"direct\"\n\
             [[rule]]\nports = [\"v*\"]\nusers = [{GUEST}]\naccess = \"mediated\"\n"
        );
        let Some(net) = Net::new(home, &policy, CABLE) else { return };
        if !can(&net) {
            return;
        }
        std::fs::set_permissions(home.folder(), std::fs::Permissions::from_mode(0o755)).expect("our own folder");
        let tool = public_copy(home.folder(), &program("unetmap").display().to_string());
        let set = |uid: u32, word: &str| {
            let run = || Command::new(&tool).args(["nic", "va", "busy-poll", word]).uid(uid).gid(uid).output();
            net.near.run(run).expect("a namespace").expect("it runs")
        };
        assert!(set(OWNER, "50").status.success());
        for word in ["60", "off"] {
            let printed = refused(&set(GUEST, word));
            assert!(printed.contains("gets it through the daemon; its busy polling is set by root"), "{printed}");
        }
        assert_eq!(reported(&net.near)["busy_poll"]["usec"], 50);
        let port = net.open("netmap:va");
        let printed = refused(&set(OWNER, "off"));
        assert!(printed.contains("user 0 has it open"), "{printed}");
        drop(port);
        until("it is closed", || home.snapshot().regions.is_empty());
        assert!(set(OWNER, "off").status.success());
        assert_eq!(reported(&net.near)["busy_poll"], Value::Null);
    });
}
