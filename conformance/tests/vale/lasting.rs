// SPDX-License-Identifier: BSD-2-Clause
//! Persistent ports, and the settings of switches, outlast the daemon.

use std::fs;
use std::process::Command;

use conformance::home::{Home, daemon_processes, program};
use conformance::net::{CABLE, DIRECT, Net, pings};
use conformance::switch::{done, host_on_switch, set, shown};
use conformance::{isolated_with_interfaces, until};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::replace::{hosts_on_switch, remove_hosts};

/// How the daemon ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Term,
    /// All its processes at once, as if the machine's memory were given to others, or a whole control group killed.
    Killed,
}

fn end(home: &Home, how: End) {
    match how {
        End::Term => home.end_daemon(),
        End::Killed => {
            let all = daemon_processes(home);
            assert!(all.len() > 1, "the daemon and its broker");
            all.iter().for_each(|pid| _ = kill_process(*pid, Signal::KILL));
        }
    }
    until("all processes of the daemon have ended", || daemon_processes(home).is_empty());
}

/// The names of the persistent ports.
fn persistent() -> Vec<String> {
    let output = Command::new(program("unetmap")).args(["ls", "--json"]).output().expect("it runs");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let ports = all["persistent"].as_array().expect("a list");
    let mut names: Vec<String> = ports.iter().map(|port| port["name"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names
}

/// Names and indexes of a namespace's interfaces, with addresses and routes.
fn state(net: &Net) -> [String; 2] {
    let brief = |args: &[&str]| net.near.ip(args).expect("interfaces");
    [brief(&["-o", "address", "show", "dev", "vi0"]), brief(&["route"])]
}

#[test]
fn persistent_ports_are_served_by_the_next_daemon() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        hosts_on_switch(&net);
        assert!(pings(&net.near, "10.8.0.2"));
        let before = state(&net);
        for how in [End::Term, End::Killed, End::Term] {
            end(home, how);
            assert_eq!(state(&net)[1], before[1], "{how:?}: the kernel keeps interface and route");
            assert!(!pings(&net.near, "10.8.0.2"), "nobody serves it");
            net.restart_daemon(home);
            until("the next daemon serves both ports", || pings(&net.near, "10.8.0.2"));
            assert_eq!(state(&net), before, "{how:?}");
        }
        remove_hosts(home, &net);
        assert_nothing_left(home);
        // What was removed does not come back.
        end(home, End::Term);
        net.restart_daemon(home);
        assert!(home.snapshot().ports.is_empty());
    });
}

#[track_caller]
fn assert_nothing_left(home: &Home) {
    let left: Vec<_> =
        fs::read_dir(home.folder()).expect("the test's folder").flatten().map(|e| e.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".ports")), "{left:?}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc");
    assert!(!mounts.contains(&*home.folder().to_string_lossy()), "{mounts}");
}

/// VLANs, rates, headers and ageing, and the threads; a port of a namespace that ends meanwhile is removed with it.
#[test]
fn settings_last_and_a_port_ends_with_its_namespace() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        hosts_on_switch(&net);
        let pod = net.lab.namespace("pod").expect("a namespace");
        // Made here, and moved into the namespace, as containers' interfaces are.
        done(&net.near, "-n moved");
        done(&net.near, "-a vale0:moved");
        net.near.ip(&["link", "set", "moved", "netns", pod.name(), "name", "eth0"]).expect("it is moved");
        host_on_switch(&pod, "own", &["10.8.0.3/24"]);
        for setting in
            ["set vale0 age 300", "port vale0:vi0 access 7", "port vale0:vi1 access 7", "port vale0:own storm 9"]
        {
            set(setting);
        }
        set("port vale0:vi0 rate in 5kpps");
        let rules = || ["vi0", "vi1", "own"].map(|port| shown(&format!("port vale0:{port}"))["rules"].clone());
        let before = rules();
        end(home, End::Killed);
        net.restart_daemon(home);
        until("ports of the VLAN reach each other", || pings(&net.near, "10.8.0.2"));
        assert_eq!(rules(), before);
        assert_eq!(shown("show vale0")["age"], 300);
        assert!(!pings(&net.near, "10.8.0.3"), "it is in another VLAN");
        end(home, End::Term);
        pod.remove_name().expect("its name");
        net.restart_daemon(home);
        until("ports of the VLAN reach each other", || pings(&net.near, "10.8.0.2"));
        until("those of the namespace end with it", || persistent() == ["idle0", "vi0", "vi1"]);
        // All is removed by one command.
        let stop = |args: &[&str]| Command::new(program("unetmap")).arg("stop").args(args).output().expect("it runs");
        let text = String::from_utf8_lossy(&stop(&["--force"]).stdout).into_owned();
        assert!(text.contains("left to the next daemon") && text.contains("vi0 (persistent port)"), "{text}");
        net.near.ip(&["link", "show", "vi0"]).expect("it lasts");
        let text = String::from_utf8_lossy(&stop(&["--force", "--all"]).stdout).into_owned();
        assert!(text.contains("removed: vi0"), "a daemon is started for it: {text}");
        net.near.ip(&["link", "show", "vi0"]).expect_err("it is gone");
        assert_nothing_left(home);
    });
}
