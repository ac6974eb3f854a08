// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap-cni`: called as a container runtime does, by the specification, and by the specification's own `cnitool`.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use conformance::home::summary;
use conformance::net::{BUFFER, CABLE, DIRECT, Net, collect, frames, open_in, pings, transmit};
use conformance::{Home, isolated_with_interfaces, program, until};
use lab::Ns;
use serde_json::{Value, json};

/// A plugin of addresses: gives the address that the configuration has for the container, and logs each command.
const ADDRESSES: &str = r#"#!/usr/bin/env python3
import json, os, sys
conf = json.load(sys.stdin)
command, container = os.environ["CNI_COMMAND"], os.environ.get("CNI_CONTAINERID")
open(conf["ipam"]["log"], "a").write(f"{command} {container}\n")
if command == "ADD":
    address = conf["ipam"]["addresses"].get(container)
    if not address:
        print(json.dumps({"cniVersion": conf["cniVersion"], "code": 123, "msg": "no address is left"}))
        sys.exit(1)
    print(json.dumps({"cniVersion": conf["cniVersion"], "ips": [{"address": address, "gateway": "10.77.0.254"}],
                      "routes": [{"dst": "10.99.0.0/16"}], "dns": {"nameservers": ["10.77.0.254"]}}))
"#;

/// Where the plugin runs: its folder of plugins, the log of addresses, and the node's namespace, if it is not that of
/// the test.
pub(crate) struct Runtime<'a> {
    home: &'a Home,
    pub(crate) conf: Value,
    node: Option<Ns>,
}

impl<'a> Runtime<'a> {
    /// On a node of which the test has to make nothing.
    pub(crate) fn on(home: &'a Home, node: &Ns) -> Runtime<'a> {
        Runtime { node: Some(node.clone()), ..Runtime::new(home) }
    }

    fn new(home: &'a Home) -> Runtime<'a> {
        let addresses = home.folder().join("addresses");
        fs::write(&addresses, ADDRESSES).expect("a file");
        fs::set_permissions(&addresses, fs::Permissions::from_mode(0o755)).expect("our own file");
        let conf = json!({
            "cniVersion": "1.1.0", "name": "lab", "type": "unetmap-cni", "switch": "vale0", "mtu": 1450,
            "ipam": {
                "type": "addresses", "log": home.folder().join("addresses.log"),
                "addresses": {"a": "10.77.0.1/24", "b": "10.77.0.2/24", "c": "10.77.0.3/24"},
            },
        });
        Runtime { home, conf, node: None }
    }

    /// Runs the plugin; returns its exit status and what it printed.
    pub(crate) fn call(&self, command: &str, (container, netns): (&str, Option<&Path>), conf: &Value) -> (i32, Value) {
        let plugin = program("unetmap-cni");
        let mut process = self.node.as_ref().map_or_else(|| Command::new(&plugin), |node| node.command(&plugin));
        process.env("CNI_COMMAND", command).env("CNI_PATH", self.home.folder()).env("CNI_IFNAME", "eth0");
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={container}");
        process.env("CNI_ARGS", args).env("CNI_CONTAINERID", container).stdin(Stdio::piped()).stdout(Stdio::piped());
        netns.map(|path| process.env("CNI_NETNS", path));
        let mut child = process.spawn().expect("the plugin runs");
        let written = child.stdin.take().expect("a pipe").write_all(conf.to_string().as_bytes());
        written.expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        let printed = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.code().unwrap_or(-1), printed)
    }

    /// The same, for the container with the name of the pod, which must succeed.
    #[track_caller]
    pub(crate) fn done(&self, command: &str, (container, pod): (&str, &Ns), conf: &Value) -> Value {
        let (status, printed) = self.call(command, (container, Some(&pod.path())), conf);
        assert_eq!(status, 0, "{command} {container}: {printed}");
        printed
    }

    /// The requests that the plugin of addresses got.
    fn log(&self) -> String {
        fs::read_to_string(self.home.folder().join("addresses.log")).unwrap_or_default()
    }

    pub(crate) fn with(&self, key: &str, value: Value) -> Value {
        let mut conf = self.conf.clone();
        conf[key] = value;
        conf
    }
}

/// The names of the switches' ports.
pub(crate) fn ports(home: &Home) -> Vec<String> {
    home.snapshot().ports.iter().map(|port| port.name.clone()).filter(|name| name.starts_with("vale")).collect()
}

#[test]
fn pods_get_ports_of_a_switch() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let runtime = Runtime::new(home);
        let conf = &runtime.conf;
        let (a, b) = (net.lab.namespace("a").expect("a namespace"), net.lab.namespace("b").expect("a namespace"));
        assert_eq!(runtime.done("VERSION", ("a", &a), conf)["supportedVersions"], json!(["0.4.0", "1.0.0", "1.1.0"]));
        runtime.done("STATUS", ("a", &a), conf);
        let result = runtime.done("ADD", ("a", &a), conf);
        assert_eq!(result["interfaces"][0]["name"], "eth0");
        assert_eq!(result["interfaces"][0]["mtu"], 1450);
        assert_eq!(result["ips"], json!([{"address": "10.77.0.1/24", "gateway": "10.77.0.254", "interface": 0}]));
        assert_eq!(result["dns"]["nameservers"][0], "10.77.0.254");
        runtime.done("ADD", ("b", &b), conf);
        assert!(pings(&a, "10.77.0.2") && pings(&b, "10.77.0.1"), "the pods reach each other");
        assert!(a.ip(&["route"]).expect("routes").contains("10.99.0.0/16 via 10.77.0.254"));

        // A program in the pod has the port itself.
        let (near, far) = (open_in(&a, "netmap:eth0"), open_in(&b, "netmap:eth0"));
        let sent = frames(&[60, 1000, 1464], 1);
        transmit(&near, 0, &sent, BUFFER);
        assert_eq!(collect(&far, sent.len()), sent);
        drop((near, far));
        until("the hosts have the ports again", || pings(&a, "10.77.0.2"));

        // What CHECK sees.
        let checked = runtime.with("prevResult", result.clone());
        runtime.done("CHECK", ("a", &a), &checked);
        a.ip(&["addr", "del", "10.77.0.1/24", "dev", "eth0"]).expect("an address");
        let (status, printed) = runtime.call("CHECK", ("a", Some(&a.path())), &checked);
        assert_eq!((status, printed["code"].as_u64()), (1, Some(100)), "{printed}");
        assert!(printed["msg"].as_str().is_some_and(|msg| msg.contains("no address 10.77.0.1/24")), "{printed}");

        // GC leaves what is valid; DEL may be repeated.
        let valid = runtime.with("cni.dev/valid-attachments", json!([{"containerID": "a", "ifname": "eth0"}]));
        runtime.done("GC", ("a", &a), &valid);
        assert_eq!(ports(home).len(), 1, "{:?}", ports(home));
        assert!(b.ip(&["link", "show", "eth0"]).is_err() && a.ip(&["link", "show", "eth0"]).is_ok());
        for _ in 0..2 {
            runtime.done("DEL", ("a", &a), conf);
        }
        assert!(ports(home).is_empty(), "{:?}", ports(home));
        assert!(runtime.log().ends_with("GC a\nDEL a\nDEL a\n"), "{}", runtime.log());

        // A pod that is gone: its port has gone with it.
        runtime.done("ADD", ("c", &a), conf);
        drop((a, b));
        for name in ["a", "b"] {
            let full = format!("{}{name}", net.near.name().trim_end_matches("near"));
            assert!(Command::new("ip").args(["netns", "del", &full]).status().expect("ip").success());
        }
        assert_eq!(runtime.call("DEL", ("c", None), conf).0, 0);
        until("the port is gone", || ports(home).is_empty());
    });
}

/// The output of `unetmap` with these words.
#[track_caller]
fn shown(words: &str) -> String {
    let output = Command::new(program("unetmap")).args(words.split(' ')).output().expect("it runs");
    assert!(output.status.success(), "{words}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn pods_are_called_by_their_names() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let runtime = Runtime::new(home);
        let conf = &runtime.conf;
        let pods = ["a", "b"].map(|name| (name, net.lab.namespace(name).expect("a namespace")));
        for (name, pod) in &pods {
            runtime.done("ADD", (name, pod), conf);
        }
        let port = ports(home).into_iter().find(|port| shown("ls").contains(&format!("{port}: default/a\n")));
        let port = port.expect("ls says whose port it is");
        assert!(shown("top --count 1 --interval 0.1").contains(&format!("{port} (default/a)")));
        let info = |page: &str| {
            let named =
                |line: &&str| line.contains(&format!("port=\"{port}\"")) && line.contains("label=\"default/a\"");
            page.lines().filter(named).any(|line| line.starts_with("unetmap_port_info{") && line.ends_with(" 1"))
        };
        assert!(info(&shown("metrics")), "{}", shown("metrics"));
        assert!(shown("events").contains("attached: default/a\n"), "{}", shown("events"));
        assert!(shown(&format!("vale port {port}")).contains("label default/a"));
        runtime.done("DEL", ("b", &pods[1].1), conf);
        assert!(shown("events").contains("detached: default/b\n"), "{}", shown("events"));
        home.end_daemon();
        net.restart_daemon(home);
        until("the next daemon knows it", || info(&shown("metrics")));
        runtime.done("DEL", ("a", &pods[0].1), conf);
        assert_eq!(conformance::switch::shown(""), json!([]), "no settings are left");
    });
}

/// Pods' interfaces stay when the daemon ends, and one is removed meanwhile.
#[test]
fn pods_go_on_after_a_restart_of_the_daemon() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let runtime = Runtime::new(home);
        let conf = &runtime.with("vlan", json!(10));
        let (a, b) = (net.lab.namespace("a").expect("a namespace"), net.lab.namespace("b").expect("a namespace"));
        let result = runtime.done("ADD", ("a", &a), conf);
        runtime.done("ADD", ("b", &b), conf);
        home.end_daemon();
        a.ip(&["link", "show", "eth0"]).expect("the pod's interface is there");
        for _ in 0..2 {
            runtime.done("DEL", ("b", &b), conf);
        }
        b.ip(&["link", "show", "eth0"]).expect_err("it is removed without a daemon");
        net.restart_daemon(home);
        let mut checked = conf.clone();
        checked["prevResult"] = result;
        runtime.done("CHECK", ("a", &a), &checked);
        assert_eq!(ports(home).len(), 1, "{:?}", ports(home));
        runtime.done("ADD", ("b", &b), conf);
        until("the pods reach each other, in their VLAN", || pings(&a, "10.77.0.2"));
        home.end_daemon();
        for (name, pod) in [("a", &a), ("b", &b)] {
            runtime.done("DEL", (name, pod), conf);
        }
        net.restart_daemon(home);
        let valid = runtime.with("cni.dev/valid-attachments", json!([]));
        runtime.done("GC", ("a", &a), &valid);
        assert!(ports(home).is_empty(), "{:?}", ports(home));
        assert_eq!(conformance::switch::shown(""), json!([]), "no settings are left");
    });
}

#[test]
fn networks_of_one_switch_are_apart_by_their_vlans() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let runtime = Runtime::new(home);
        let pods = ["a", "b", "c"].map(|name| (name, net.lab.namespace(name).expect("a namespace")));
        let networks = [("blue", 10), ("blue", 10), ("red", 20)].map(|(name, vlan)| {
            let mut conf = runtime.with("vlan", json!(vlan));
            conf["name"] = json!(name);
            conf
        });
        for ((name, pod), conf) in pods.iter().zip(&networks) {
            runtime.done("ADD", (name, pod), conf);
        }
        assert!(pings(&pods[0].1, "10.77.0.2"), "one network");
        assert!(pods[0].1.tool("ping", &["-n", "-c", "1", "-W", "1", "10.77.0.3"]).is_err(), "two networks");
        // GC of one network concerns no other.
        runtime.done("GC", ("c", &pods[2].1), &networks[2]);
        assert_eq!(ports(home).len(), 2, "{:?}", ports(home));
        for ((name, pod), conf) in pods.iter().zip(&networks) {
            runtime.done("DEL", (name, pod), conf);
        }
        assert!(ports(home).is_empty(), "{:?}", ports(home));
        assert_eq!(conformance::switch::shown(""), json!([]), "no settings are left");
    });
}

#[test]
fn what_is_wrong_is_said_and_leaves_nothing() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let runtime = Runtime::new(home);
        let (pod, conf) = (&net.near, &runtime.conf);
        let refused = |command: &str, container: &str, netns: &Path, conf: &Value, code: u64, part: &str| {
            let (status, printed) = runtime.call(command, (container, Some(netns)), conf);
            assert_eq!((status, printed["code"].as_u64()), (1, Some(code)), "{command}: {printed}");
            assert!(printed["msg"].as_str().is_some_and(|msg| msg.contains(part)), "{command}: {printed}");
        };
        let path = pod.path();
        refused("ADD", "a", Path::new("/nowhere"), conf, 4, "no such namespace");
        refused("ADD", "a", Path::new("/proc/self/ns/net"), conf, 4, "the host's own namespace");
        refused("ADD", "../a", &path, conf, 4, "CNI_CONTAINERID");
        refused("WORK", "a", &path, conf, 4, "known are");
        refused("CHECK", "a", &path, conf, 7, "prevResult");
        refused("ADD", "a", &path, &runtime.with("cniVersion", json!("0.1.0")), 1, "known are");
        refused("ADD", "a", &path, &runtime.with("ipam", json!({"type": "none"})), 7, "no such plugin");
        // The error of the plugin of addresses is the answer.
        refused("ADD", "z", &path, conf, 123, "no address is left");
        // Something fails late: interface and address are given back.
        let mac = runtime.with("runtimeConfig", json!({"mac": "01:00:00:00:00:01"}));
        refused("ADD", "a", &path, &mac, 101, "ip -batch");
        assert!(runtime.log().ends_with("ADD a\nDEL a\n"), "{}", runtime.log());
        assert!(ports(home).is_empty(), "{:?}", ports(home));
        assert!(!pod.ip(&["link"]).expect("links").contains("eth0"));
        // No daemon.
        let mut process = Command::new(program("unetmap-cni"));
        process.env("UNETMAP_SOCKET", home.folder().join("none")).env("CNI_COMMAND", "STATUS").env("CNI_PATH", "/");
        process.env("CNI_CONTAINERID", "a").env("CNI_NETNS", &path).env("CNI_IFNAME", "eth0").stdin(Stdio::piped());
        let mut child = process.stdout(Stdio::piped()).spawn().expect("it runs");
        child.stdin.take().expect("a pipe").write_all(conf.to_string().as_bytes()).expect("it reads");
        let printed = String::from_utf8(child.wait_with_output().expect("it ends").stdout).expect("text");
        assert!(printed.contains("\"code\":50") && printed.contains("systemctl"), "{printed}");
        assert!(!home.folder().join("none").exists(), "no daemon was started");
    });
}

/// With the reference tool, and the reference plugin of addresses.
#[test]
fn cnitool_and_host_local_use_the_plugin() {
    isolated_with_interfaces(|home| {
        let host_local = Path::new("/usr/lib/cni/host-local");
        if Command::new("cnitool").output().is_err() || !host_local.exists() {
            return summary(
                "skipped: cnitool (a Go module) or host-local (containernetworking-plugins) is not installed",
            );
        }
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let node = net.lab.namespace("node").expect("a namespace");
        let folder = home.folder().join("net.d");
        fs::create_dir(&folder).expect("a folder");
        let ipam = json!({
            "type": "host-local", "dataDir": home.folder().join("addresses"),
            "ranges": [[{"subnet": "10.78.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
        });
        let conf = json!({
            "cniVersion": "1.0.0", "name": "tool",
            "plugins": [{"type": "unetmap-cni", "switch": "vale1", "ipam": ipam}],
        });
        fs::write(folder.join("10-tool.conflist"), conf.to_string()).expect("a file");
        let plugin = program("unetmap-cni");
        let folders = [plugin.parent().expect("a folder"), Path::new("/usr/lib/cni")];
        let plugins = std::env::join_paths(folders).expect("paths");
        let tool = |command: &str, pod: &Ns| {
            let mut tool = node.command("cnitool");
            tool.env("NETCONFPATH", &folder).env("CNI_PATH", &plugins).args([command, "tool"]).arg(pod.path());
            let output = tool.output().expect("cnitool runs");
            let printed = [output.stdout, output.stderr].concat();
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&printed));
            String::from_utf8(printed).expect("text")
        };
        for pod in [&net.near, &net.far] {
            assert!(tool("add", pod).contains("10.78.0."));
            tool("check", pod);
        }
        assert!(pings(&net.near, "10.78.0.3"), "the pods reach each other");
        until("the node reaches them, though nothing is said of it", || pings(&node, "10.78.0.2"));
        for pod in [&net.near, &net.far] {
            tool("del", pod);
        }
        assert!(ports(home).is_empty(), "{:?}", ports(home));
    });
}
