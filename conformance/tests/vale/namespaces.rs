// SPDX-License-Identifier: BSD-2-Clause
//! The end of a namespace whose interfaces are attached to a switch, or that has persistent ports.

use std::process::{Command, Stdio};

use conformance::home::Guard;
use conformance::net::{CABLE, DIRECT, Net};
use conformance::replace::replace;
use conformance::switch::{done, host_on_switch};
use conformance::{Home, isolated_with_interfaces, program, until};
use lab::Ns;
use serde_json::Value;

/// Kinds of the events of a port.
fn events_of(port: &str) -> Vec<String> {
    let output = Command::new(program("unetmap")).args(["events", "--json"]).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let events: Vec<Value> = events.collect();
    for event in &events {
        let port = event["port"].as_str().unwrap_or_default();
        assert!(!port.starts_with('#') && event["uid"] != u32::MAX, "known to the daemon only: {event}");
    }
    let of_port = events.iter().filter(|event| event["port"] == port);
    of_port.filter_map(|event| event["event"].as_str()).map(str::to_owned).collect()
}

fn is_gone(ns: &Ns, name: &str) -> bool {
    ns.ip(&["link", "show", name]).is_err()
}

/// Two namespaces lose their names; one has a process, and stays until that ends.
fn ends_with_its_last_name_and_process(home: &Home, how: &str) {
    let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
    let busy = net.lab.namespace("busy").unwrap_or_else(|e| panic!("{e}"));
    net.lab.veth(&busy, "vc", &net.far, "vd", CABLE).unwrap_or_else(|e| panic!("{e}"));
    done(&net.near, &format!("{how} vale1:va"));
    done(&busy, &format!("{how} vale1:vc"));
    let mut process = Guard::spawn(busy.command("sleep").arg("600").stdout(Stdio::null()));
    until("it is in the namespace", || {
        let link = std::fs::read_link(format!("/proc/{}/ns/net", process.0.id()));
        link.is_ok_and(|link| link.to_str() == Some(&format!("net:[{}]", busy.id())))
    });
    // A successor knows what its predecessor has seen.
    replace(home);
    [&busy, &net.near].iter().for_each(|ns| ns.remove_name().unwrap_or_else(|e| panic!("{e}")));
    until("one namespace ends", || is_gone(&net.far, "vb"));
    assert!(!is_gone(&net.far, "vd"));
    let list = done(&net.far, "");
    assert!(list.contains("vale1:vc ") && !list.contains("vale1:va"), "{list}");
    process.kill();
    until("so does the other", || is_gone(&net.far, "vd"));
    until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
    assert_eq!(done(&net.far, ""), "");
    for name in ["va", "vc"] {
        assert!(events_of(name).ends_with(&["link-gone".into()]), "{:?}", events_of(name));
        let port = format!("vale1:{name}");
        assert_eq!(events_of(&port).last().map(String::as_str), Some("detached"), "{port}");
    }
}

#[test]
fn a_namespace_ends_with_its_attached_interfaces() {
    isolated_with_interfaces(|home| ends_with_its_last_name_and_process(home, "-a"));
}

#[test]
fn a_namespace_ends_with_its_attached_interfaces_and_host_stacks() {
    isolated_with_interfaces(|home| ends_with_its_last_name_and_process(home, "-h"));
}

#[test]
fn a_namespace_ends_with_its_persistent_ports() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        host_on_switch(&net.near, "vi0", &["10.8.0.1/24"]);
        done(&net.near, "-n idle0");
        host_on_switch(&net.far, "vi1", &["10.8.0.2/24"]);
        net.near.remove_name().unwrap_or_else(|e| panic!("{e}"));
        until("the namespace ends", || is_gone(&net.far, "vb"));
        until("its port leaves the switch", || !done(&net.far, "").contains("vale0:vi0"));
        assert!(done(&net.far, "").contains("vale0:vi1 "));
        until("its ports end", || {
            ["vi0", "idle0"].iter().all(|name| events_of(name).last().is_some_and(|last| last == "link-gone"))
        });
        assert_eq!(events_of("vale0:vi0"), ["attached", "detached"]);
        assert_eq!(events_of("vale0:vi1"), ["attached"]);
        // The same again.
        let again = net.lab.namespace("again").unwrap_or_else(|e| panic!("{e}"));
        host_on_switch(&again, "vi0", &["10.8.0.1/24"]);
        until("it reaches the other", || again.tool("ping", &["-c", "1", "-W", "1", "10.8.0.2"]).is_ok());
    });
}
