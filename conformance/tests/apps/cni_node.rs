// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap-cni` and its node: the gateways' port, what pods reach through it, and what a runtime asks for by its
//! capabilities.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::thread;

use conformance::home::summary;
use conformance::net::{CABLE, DIRECT, Net, pings};
use conformance::switch::shown;
use conformance::{isolated_with_interfaces, until};
use lab::Ns;
use serde_json::{Value, json};

use crate::cni::{Runtime, ports};

/// The name of the node's interface in a result.
#[track_caller]
fn node_port(result: &Value) -> &str {
    let one = &result["interfaces"][1];
    assert!(one["sandbox"].is_null(), "{result}");
    one["name"].as_str().unwrap_or_else(|| panic!("the node has no port: {result}"))
}

fn has_nft() -> bool {
    let found = Command::new("nft").arg("--version").output().is_ok();
    if !found {
        summary("not tested: ipMasq, as nft (nftables) is not installed");
    }
    found
}

#[test]
fn pods_and_their_node_reach_each_other_and_others() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let node = net.near.clone();
        let runtime = Runtime::on(home, &node);
        let mut conf = runtime.with("isDefaultGateway", json!(true));
        let masquerades = has_nft();
        conf["ipMasq"] = json!(masquerades);
        let pods = ["a", "b"].map(|name| (name, net.lab.namespace(name).expect("a namespace")));
        // Two at once make one port.
        let results = thread::scope(|scope| {
            let adds = [&pods[0], &pods[1]].map(|(name, pod)| {
                let (runtime, conf) = (&runtime, &conf);
                scope.spawn(move || runtime.done("ADD", (name, pod), conf))
            });
            adds.map(|add| add.join().expect("it succeeds"))
        });
        let gateway = node_port(&results[0]).to_owned();
        assert_eq!(node_port(&results[1]), gateway);
        assert_eq!(ports(home).len(), 3, "{:?}", ports(home));
        // No other user can hold the plugin's lock.
        let folder = fs::metadata(home.folder().join("unetmapd.sock.pods")).expect("the plugin's folder");
        assert_eq!(folder.permissions().mode() & 0o777, 0o700);
        let reached = |what: &str| {
            for address in ["10.77.0.1", "10.77.0.2"] {
                until(what, || pings(&node, address));
            }
            // The far side has no route to the pods.
            until(what, || !masquerades || pings(&pods[0].1, "10.9.0.2"));
        };
        reached("the node reaches its pods, and they reach others");
        if masquerades {
            // A service's address, which leads a pod to another, and another to itself.
            let to = "add table ip services; add chain ip services to { type nat hook prerouting priority -100; }; \
                      add rule ip services to ip daddr 10.96.0.10 dnat to 10.77.0.2";
            node.tool("nft", &[to]).expect("nft");
            for pod in &pods {
                until("a service's address is reached", || pings(&pod.1, "10.96.0.10"));
            }
            node.tool("nft", &["delete table ip services"]).expect("nft");
        }
        assert!(pods[0].1.ip(&["route"]).expect("routes").contains("default via 10.77.0.254"));

        let mut checked = conf.clone();
        checked["prevResult"] = results[0].clone();
        runtime.done("CHECK", ("a", &pods[0].1), &checked);
        node.ip(&["address", "del", "10.77.0.254/24", "dev", &gateway]).expect("the gateway's address");
        let (status, printed) = runtime.call("CHECK", ("a", Some(&pods[0].1.path())), &checked);
        assert_eq!((status, printed["code"].as_u64()), (1, Some(100)), "{printed}");
        // An ADD mends it.
        runtime.done("DEL", ("b", &pods[1].1), &conf);
        runtime.done("ADD", ("b", &pods[1].1), &conf);
        runtime.done("CHECK", ("a", &pods[0].1), &checked);

        net.restart_daemon(home);
        reached("the same after a restart of the daemon");
        // The port ends with the last pod.
        runtime.done("DEL", ("a", &pods[0].1), &conf);
        until("the node reaches the other pod", || pings(&node, "10.77.0.2"));
        let valid = {
            let mut conf = conf.clone();
            conf["cni.dev/valid-attachments"] = json!([]);
            conf
        };
        runtime.done("GC", ("b", &pods[1].1), &valid);
        assert!(ports(home).is_empty(), "{:?}", ports(home));
        node.ip(&["link", "show", &gateway]).expect_err("the node's port is removed");
        if masquerades {
            assert_eq!(node.tool("nft", &["list", "tables"]).expect("nft"), "");
        }
    });
}

/// A network by default gets no second way to where the node is already, and a VLAN keeps the nodes' ports apart, too.
#[test]
fn the_node_has_a_port_only_where_it_is_wanted() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let runtime = Runtime::on(home, &net.near);
        let pods = ["a", "b"].map(|name| (name, net.lab.namespace(name).expect("a namespace")));
        let add = |pod: &(&str, Ns), network: &str, address: &str, keys: Value| {
            let mut conf = runtime.with("name", json!(network));
            conf["ipam"] = json!({});
            conf["runtimeConfig"] = json!({"ips": [address]});
            conf.as_object_mut().expect("an object").extend(keys.as_object().expect("an object").clone());
            (runtime.done("ADD", (pod.0, &pod.1), &conf), conf)
        };
        // No plugin of addresses, and nothing said.
        let (result, conf) = add(&pods[0], "none", "10.80.0.5/24", json!({}));
        assert_eq!(result["interfaces"].as_array().map(Vec::len), Some(1), "{result}");
        runtime.done("DEL", ("a", &pods[0].1), &conf);

        let vlan = |id: u16| json!({"vlan": id, "isGateway": true});
        let (one, conf_one) = add(&pods[0], "one", "10.81.0.5/24", vlan(10));
        let (two, conf_two) = add(&pods[1], "two", "10.82.0.5/24", vlan(20));
        assert_ne!(node_port(&one), node_port(&two));
        assert_eq!(one["ips"][0]["gateway"], "10.81.0.1", "the first address");
        until("the node reaches both", || pings(&net.near, "10.81.0.5") && pings(&net.near, "10.82.0.5"));
        runtime.done("DEL", ("a", &pods[0].1), &conf_one);
        until("the other network's port stays", || pings(&net.near, "10.82.0.5"));
        runtime.done("DEL", ("b", &pods[1].1), &conf_two);
        assert!(ports(home).is_empty(), "{:?}", ports(home));
        assert_eq!(shown(""), json!([]), "nothing of the switch is left");
    });
}

#[test]
fn a_runtime_chooses_addresses_rates_and_mtu() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let runtime = Runtime::on(home, &net.near);
        let pods = ["a", "b"].map(|name| (name, net.lab.namespace(name).expect("a namespace")));
        let conf = |number: u32| {
            let mut conf = runtime.with("ipam", json!({}));
            conf["isGateway"] = json!(true);
            conf["mtu"] = json!(9000);
            conf["ingressRate"] = json!(2_000_000_000_u64);
            conf["runtimeConfig"] = json!({
                "ips": [format!("10.77.0.{number}/24"), format!("fd77::{number}/64")],
                "mac": format!("02:00:00:00:77:0{number}"),
            });
            conf
        };
        let mut with_rates = conf(6);
        with_rates["runtimeConfig"]["bandwidth"] = json!({
            "ingressRate": 8_000_000_000_u64, "egressRate": 4_000_000_000_u64, "ingressBurst": 1000, "egressBurst": 1000,
        });
        let result = runtime.done("ADD", ("a", &pods[0].1), &conf(5));
        runtime.done("ADD", ("b", &pods[1].1), &with_rates);
        assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:77:05");
        assert_eq!(result["ips"][1]["gateway"], "fd77::1");
        // As long as the MTU allows, in one piece.
        for (from, to, size) in [
            (&net.near, "10.77.0.5", "8972"),
            (&pods[0].1, "10.77.0.6", "8972"),
            (&pods[0].1, "fd77::1", "8952"),
            (&pods[0].1, "fd77::6", "8952"),
        ] {
            let arguments = ["-n", "-c", "1", "-W", "1", "-M", "do", "-s", size, to];
            until(to, || from.tool("ping", &arguments).is_ok());
        }
        let switch = shown("show vale0");
        let mut rates: Vec<[Option<u64>; 2]> = switch["port"]
            .as_array()
            .expect("ports")
            .iter()
            .map(|port| ["limit_in", "limit_out"].map(|limit| port["rules"][limit]["bits"].as_u64()))
            .collect();
        rates.sort();
        let expected = [[None, None], [None, Some(2_000_000_000)], [Some(4_000_000_000), Some(2_000_000_000)]];
        assert_eq!(rates, expected, "{switch}");
        for (i, conf) in [conf(5), with_rates].iter().enumerate() {
            runtime.done("DEL", (pods[i].0, &pods[i].1), conf);
        }
        assert!(ports(home).is_empty(), "{:?}", ports(home));
    });
}
