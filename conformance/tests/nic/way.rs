// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap nic IF way ...`: packets take the chosen way once the interface is opened again; a way that cannot be is
//! refused; the choice lasts as long as the interface, and outlives replacements and crashes of the daemon.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use conformance::kept::{self, kill, wait_until_kept};
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, assert_works, public_copy};
use conformance::replace::replace;
use conformance::tool::{done, nic, refused};
use conformance::traffic::open;
use conformance::{Home, isolated_with_interfaces, program, until};
use lab::Ns;
use serde_json::Value;

#[track_caller]
fn reported(ns: &Ns) -> Value {
    serde_json::from_str(&done(ns, &["va", "--json"])).expect("JSON")
}

/// How the open port's packets move, and why they are copied.
#[track_caller]
fn manner(ns: &Ns) -> (String, String) {
    let port = &reported(ns)["port"];
    let text = |key: &str| port[key].as_str().unwrap_or_default().to_owned();
    (text("manner"), text("copied"))
}

fn chosen(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (ns, tap) = (&net.near, net.tap());
    let closed = || until("it is closed", || home.snapshot().regions.is_empty());
    assert_eq!(reported(ns)["way"], "auto");
    let (best, _) = {
        let _port = net.open("netmap:va");
        manner(ns)
    };
    closed();
    let printed = done(ns, &["va", "way", "generic"]);
    assert_eq!(printed, "va: its way is `generic` from when it is opened again, after all programs have closed it\n");
    {
        let port = net.open("netmap:va");
        assert_eq!(manner(ns).0, "generic, copy");
        assert_works(&port, &tap, 0);
        // Another way changes nothing while the port is open, for its second program neither.
        done(ns, &["va", "way", "copy"]);
        let second = net.open("netmap:va");
        assert_eq!((manner(ns).0.as_str(), &reported(ns)["way"]), ("generic, copy", &Value::from("copy")));
        drop(port);
        assert_works(&second, &tap, 1000);
    }
    closed();
    {
        let port = net.open("netmap:va");
        let (manner, copied) = manner(ns);
        assert_eq!(manner, best, "veth has no zero copy");
        if manner == "native, copy" {
            assert_eq!(copied, "its way is `copy` (unetmap nic va way auto)");
            let listed = home.snapshot().ports.into_iter().find(|port| port.name == "va").expect("the port is open");
            assert_eq!(listed.copied, Some(copied));
        }
        assert_works(&port, &tap, 2000);
    }
    closed();
    assert!(done(ns, &["va"]).contains("\nway: copy\n"));
    done(ns, &["va", "way", "auto"]);
    assert!(!done(ns, &["va"]).contains("way:"));
    let _port = net.open("netmap:va");
    assert_eq!(manner(ns).0, best);
}

#[test]
fn packets_take_the_chosen_way_direct() {
    isolated_with_interfaces(|home| chosen(home, DIRECT));
}

#[test]
fn packets_take_the_chosen_way_mediated() {
    isolated_with_interfaces(|home| chosen(home, MEDIATED));
}

/// A driver without zero copy is refused when it is chosen; the file of switches says so, too.
#[test]
fn a_way_that_cannot_be_is_refused() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let printed = refused(&nic(&net.near, &["va", "way", "zero-copy"]));
        assert!(printed.contains("its way cannot be `zero-copy`: the driver does not support zero copy"), "{printed}");
        let fast = nic(&net.near, &["va", "way", "fast"]);
        let printed = String::from_utf8_lossy(&fast.stderr);
        assert_eq!(fast.status.code(), Some(2), "{printed}");
        assert!(printed.contains("give auto, copy, zero-copy, generic, packet"), "{printed}");
        assert!(refused(&nic(&net.near, &["nope", "way", "copy"])).contains("no such interface"));
        assert_eq!(reported(&net.near)["way"], "auto", "a refused setting changes nothing");
    });
}

#[test]
fn only_root_chooses_the_way() {
    const OWNER: u32 = 61_001;
    isolated_with_interfaces(|home| {
        let policy = format!("[[rule]]\nports = [\"v*\"]\nusers = [\"root\", {OWNER}]\naccess = \"direct\"\n");
        let Some(net) = Net::new(home, &policy, CABLE) else { return };
        std::fs::set_permissions(home.folder(), std::fs::Permissions::from_mode(0o755)).expect("our own folder");
        let tool = public_copy(home.folder(), &program("unetmap").display().to_string());
        let run = || Command::new(&tool).args(["nic", "va", "way", "copy"]).uid(OWNER).gid(OWNER).output();
        let printed = refused(&net.near.run(run).expect("a namespace").expect("it runs"));
        assert!(printed.contains("user 61001 may not choose the way of its packets: root does"), "{printed}");
        assert_eq!(reported(&net.near)["way"], "auto");
    });
}

#[test]
fn a_way_lasts_as_long_as_the_interface_and_outlives_the_daemon() {
    isolated_with_interfaces(|home| {
        let Some(net) = kept::net(home, DIRECT) else { return };
        let (ns, tap) = (&net.near, net.tap());
        done(ns, &["va", "way", "generic"]);
        // What is kept with this port was saved after the choice.
        let later = open("netmap:later{1");
        wait_until_kept(home);
        kill(home);
        drop(later);
        let port = net.open("netmap:va");
        done(ns, &["va", "way", "copy"]);
        replace(home);
        // The port stays as it was opened; its filter attaches the program again, if it must, in the same way.
        assert_eq!((manner(ns).0.as_str(), &reported(ns)["way"]), ("generic, copy", &Value::from("copy")));
        done(ns, &["va", "filter", "udp or arp or ip or ip6 or ether proto 0x88b5"]);
        assert_eq!(manner(ns).0, "generic, copy");
        done(ns, &["va", "filter", "off"]);
        assert_works(&port, &tap, 0);
        drop(port);
        until("it is closed", || home.snapshot().regions.is_empty());
        let index = reported(ns)["index"].as_u64().expect("a number").to_string();
        ns.ip(&["link", "del", "va"]).expect("an interface");
        ns.ip(&["link", "add", "va", "index", &index, "type", "veth", "peer", "name", "vz"]).expect("an interface");
        assert_eq!(reported(ns)["way"], "auto");
    });
}
