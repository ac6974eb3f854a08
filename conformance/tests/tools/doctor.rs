// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap doctor`: its report on an interface agrees with the result of opening a port.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use conformance::bpf::{XdpMode, attach_xdp};
use conformance::cgroup::Group;
use conformance::home::{Guard, daemon_processes, own_snapshot, program, summary};
use conformance::net::{BUFFER, CABLE, DIRECT, Net, frames, public_copy, set_policy, start_daemon, transmit};
use conformance::{Home, isolated_with_interfaces, kept, traffic, until};
use lab::{Lab, Ns, VethOptions};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use unetmap::{Error, Port};

/// Another cable in the same namespaces.
const CABLE_AWAY: VethOptions<'_> = VethOptions { addresses: None, ..CABLE };

/// A user that owns nothing.
const NOBODY: u32 = 65534;

/// Runs `body` with a namespace in which a cable leads from `va` to `vb`.
fn with_cable(body: impl FnOnce(&Ns)) {
    match Lab::new() {
        Err(why) => summary(&format!("skipped: {why}")),
        Ok(lab) => {
            let ns = lab.namespace("a").expect("a namespace");
            lab.veth(&ns, "va", &ns, "vb", VethOptions::default()).expect("a cable");
            body(&ns);
        }
    }
}

fn doctor(ns: &Ns, args: &[&str]) -> Output {
    ns.command(program("unetmap")).arg("doctor").args(args).output().expect("it runs")
}

/// The doctor's opinion of an interface; the exit status is the same opinion.
#[track_caller]
fn opinion(ns: &Ns, name: &str) -> Value {
    let output = doctor(ns, &[name, "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    assert_eq!(output.status.code(), Some(i32::from(report["ok"] != true)), "{report}");
    report
}

/// The missing requirements of a port, according to the report: what is missing, and its remedy.
fn blocking(report: &Value) -> Vec<(String, String)> {
    let nic = report["interfaces"].as_array().into_iter().flatten().flat_map(|nic| nic["checks"].as_array());
    let checks = report["checks"].as_array().into_iter().chain(nic).flatten();
    let blocks = checks.filter(|check| check["needed"] == true && check["state"] == "missing");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    blocks.map(|check| (text(&check["what"]), text(&check["fix"]))).collect()
}

fn open(ns: &Ns, name: &str) -> Result<Port, Error> {
    ns.run(|| Port::open(&format!("netmap:{name}"))).expect("the namespace is there")
}

/// The data path of an open port, from the daemon's snapshot.
#[track_caller]
fn manner(name: &str) -> String {
    let all = own_snapshot().ports;
    let port = all.iter().find(|port| port.name == name).unwrap_or_else(|| panic!("{all:?}"));
    let manner = port.manner.clone().unwrap_or_default();
    // The doctor reports that an interface is down by another check.
    manner.strip_prefix("down (").and_then(|up| up.strip_suffix(')')).unwrap_or(&manner).to_owned()
}

/// A port can be opened exactly if the doctor thinks so, and then packets go the way that it named. Returns what is in
/// the way.
#[track_caller]
fn agree(ns: &Ns, name: &str) -> Vec<(String, String)> {
    let report = opinion(ns, name);
    match open(ns, name) {
        Ok(port) => {
            assert_eq!(report["ok"], true, "it can be opened: {report}");
            let way = &report["interfaces"][0]["way"];
            if *way != Value::Null {
                assert_eq!(*way, manner(name), "{report}");
            }
            let again = opinion(ns, name);
            assert!(again["ok"] == true && again["interfaces"][0]["way"] == manner(name), "while it is open: {again}");
            drop(port);
            until("the port is closed", || opinion(ns, name)["interfaces"][0]["program"] == Value::Null);
        }
        Err(error) => assert_eq!(report["ok"], false, "{error}: {report}"),
    }
    blocking(&report)
}

/// Applies the reported remedy for the only missing requirement, and checks that none is missing then.
#[track_caller]
fn cure(ns: &Ns, name: &str, what: &str) {
    let found = agree(ns, name);
    let [(is, fix)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(is, what);
    ns.tool("sh", &["-c", fix]).unwrap();
    assert_eq!(agree(ns, name), []);
}

/// Checks that an interface that is down can be opened and is reported to be down, and applies the reported remedy.
#[track_caller]
fn set_up(ns: &Ns, name: &str) {
    assert_eq!(agree(ns, name), []);
    let state = |report: &Value| {
        let checks = report["interfaces"][0]["checks"].as_array().cloned().unwrap_or_default();
        checks.into_iter().find(|check| check["what"] == "state").unwrap_or_else(|| panic!("{report}"))
    };
    let down = state(&opinion(ns, name));
    assert_eq!((&down["state"], &down["needed"]), (&"missing".into(), &false.into()), "{down}");
    ns.tool("sh", &["-c", down["fix"].as_str().unwrap()]).unwrap();
    assert_eq!(state(&opinion(ns, name))["state"], "ok");
    assert_eq!(agree(ns, name), []);
}

#[test]
fn the_report_agrees_with_opening_veth_loopback_and_tunnels() {
    isolated_with_interfaces(|_| {
        with_cable(|ns| {
            for name in ["va", "vb", "lo"] {
                assert_eq!(agree(ns, name), []);
            }
            let report = opinion(ns, "netmap:va-0/R");
            let nic = &report["interfaces"][0];
            assert_eq!(
                (&nic["name"], &nic["driver"]["name"], &nic["mtu"]),
                (&"va".into(), &"veth".into(), &1500.into())
            );
            assert_eq!(opinion(ns, "lo")["interfaces"][0]["way"], "by way of a veth, copy");
            // The kernel reports the XDP features of this interface.
            let reported = nic["features"].is_object();
            assert!(!reported || nic["way"] == "native, copy", "{nic}");

            ns.ip(&["link", "set", "va", "down"]).unwrap();
            set_up(ns, "va");
            assert_eq!(opinion(ns, "va")["interfaces"][0]["carrier"], true);
            for mtu in ["2030", "2031", "9000"] {
                ns.ip(&["link", "set", "va", "mtu", mtu]).unwrap();
                for (what, fix) in agree(ns, "va") {
                    assert_eq!((what.as_str(), fix.as_str()), ("MTU", "ip link set dev va mtu 2030"));
                }
            }
            if Path::new("/dev/net/tun").exists() {
                ns.ip(&["tuntap", "add", "tap0", "mode", "tap"]).unwrap();
                set_up(ns, "tap0");
                ns.ip(&["link", "del", "tap0"]).unwrap();
                ns.ip(&["tuntap", "add", "tun0", "mode", "tun"]).unwrap();
                ns.ip(&["link", "set", "tun0", "up"]).unwrap();
                let (what, fix) = &agree(ns, "tun0")[0];
                assert_eq!((what.as_str(), fix.as_str()), ("interface", "open the interface that carries its packets"));
                ns.ip(&["link", "del", "tun0"]).unwrap();
            }
        });
    });
}

/// The state of the interface by `ip` and the kernel.
fn condition(ns: &Ns, name: &str) -> String {
    let link = ns.ip(&["-d", "link", "show", name]).expect("it is there");
    let queues =
        ns.tool("sh", &["-c", &format!("ls /sys/class/net/{name}/queues 2>/dev/null; true")]).expect("a shell");
    link + &queues
}

#[test]
fn an_unused_interface_is_tried_and_left_as_it_was() {
    isolated_with_interfaces(|_| {
        with_cable(|ns| {
            let before = condition(ns, "va");
            let tried = opinion(ns, "va")["interfaces"][0]["tried"].clone();
            assert_eq!(tried["copy"], "ok", "{tried}");
            assert_eq!(condition(ns, "va"), before);
            // Not where it could disturb somebody.
            let untested = |why: &str| {
                let report = opinion(ns, "va");
                let nic = &report["interfaces"][0];
                let text = nic["checks"].to_string();
                assert!(nic["tried"].is_null() && text.contains("untested") && text.contains(why), "{why}: {report}");
            };
            ns.ip(&["addr", "add", "10.7.0.1/24", "dev", "va"]).unwrap();
            untested("carries an address");
            ns.ip(&["route", "add", "default", "dev", "va"]).unwrap();
            untested("carries the default route");
            ns.ip(&["addr", "flush", "dev", "va"]).unwrap();
            match ns.ip(&["link", "add", "link", "va", "name", "va.7", "type", "vlan", "id", "7"]) {
                Ok(_) => {
                    untested("va.7 is on top of it");
                    ns.ip(&["link", "del", "va.7"]).unwrap();
                }
                Err(why) => summary(&format!("skipped in part: {why}")),
            }
            ns.ip(&["link", "add", "br0", "type", "bridge"]).unwrap();
            ns.ip(&["link", "set", "va", "master", "br0"]).unwrap();
            untested("belongs to a bridge or a bond");
            ns.ip(&["link", "set", "va", "nomaster"]).unwrap();
            assert_eq!(opinion(ns, "va")["interfaces"][0]["tried"]["copy"], "ok");
            let port = open(ns, "va").expect("nothing uses it");
            assert!(opinion(ns, "va")["interfaces"][0]["tried"].is_null(), "a port is open");
            drop(port);
        });
    });
}

#[test]
fn a_report_names_what_a_developer_needs_and_nothing_private() {
    isolated_with_interfaces(|_| {
        with_cable(|ns| {
            ns.ip(&["link", "set", "va", "address", "02:aa:bb:cc:dd:ee"]).unwrap();
            let port = open(ns, "vb").expect("nothing uses it");
            let output = doctor(ns, &["--report", "va"]);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{output:?}");
            for part in
                ["kernel: ", "driver: veth", "mac: 02:aa:bb:...", "vb, nic, ", "bus: ", "offloads: ", "left_out: "]
            {
                assert!(text.contains(part), "{part}: {text}");
            }
            let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("it has a name");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert!(!text.contains("cc:dd:ee") && !words(&text).contains(&host.trim().to_owned()), "{text}");
            let report: Value =
                serde_json::from_slice(&doctor(ns, &["--report", "va", "--json"]).stdout).expect("JSON");
            assert_eq!(report["interface"]["tried"]["copy"], "ok", "{report}");
            assert_eq!(report["daemons"].as_array().map(Vec::len), Some(1), "{report}");
            // Without an interface nothing is said about any.
            let report: Value = serde_json::from_slice(&doctor(ns, &["--report", "--json"]).stdout).expect("JSON");
            assert!(report["interface"].is_null() && report["machine"]["kernel"].is_string(), "{report}");
            drop(port);
        });
    });
}

/// Waits until a report has these words among the likely causes.
#[track_caller]
fn until_told(ns: &Ns, words: &str) {
    let mut causes = Value::Null;
    until(&format!("{words}: {causes}"), || {
        let report: Value = serde_json::from_slice(&doctor(ns, &["--report", "--json"]).stdout).expect("JSON");
        causes = report["likely_causes"].clone();
        causes.as_array().expect("a list").iter().any(|cause| cause.as_str().is_some_and(|text| text.contains(words)))
    });
}

#[test]
fn a_report_names_the_likely_cause_of_each_fault() {
    isolated_with_interfaces(|home| {
        with_cable(|ns| {
            let policy = "[[rule]]\npipes = true\nusers = [65534]\n[[budget]]\nusers = [65534]\nrings = 2\n";
            set_policy(home, policy);
            let mut daemon = start_daemon(home, &[]);
            let port = open(ns, "vb").expect("nothing uses it");
            ns.ip(&["link", "set", "vb", "down"]).unwrap();
            until_told(ns, "vb is down");
            let (a, _full) = (traffic::open("vale0:a"), traffic::open("vale0:full"));
            transmit(&a, 0, &frames(&[60; 3000], 0), BUFFER);
            until_told(ns, "of vale0:full is full");
            let receiver = Guard::spawn(
                Command::new(program("pkt-gen")).args(["-i", "vale0:c", "-f", "rx", "-w", "0"]).stdout(Stdio::null()),
            );
            until("it is open", || home.snapshot().sessions.iter().any(|session| session.port == "vale0:c"));
            receiver.signal(Signal::STOP);
            until_told(ns, "which has vale0:c open, is stopped (kill -CONT ");
            receiver.signal(Signal::CONT);
            // Of a user, what the policy does not allow, and more than its budget.
            fs::set_permissions(home.folder(), fs::Permissions::from_mode(0o755)).expect("our own folder");
            let pkt_gen = public_copy(home.folder(), &program("pkt-gen").display().to_string());
            for (spec, words) in
                [("netmap:vb", "was refused by the policy: "), ("netmap:x}1", "was refused for lack of budget: ")]
            {
                let mut command = Command::new(&pkt_gen);
                command.args(["-i", spec, "-f", "rx", "-w", "0"]).uid(NOBODY).gid(NOBODY);
                let output = ns.run(|| command.output()).expect("a namespace").expect("it runs");
                assert!(!output.status.success(), "{output:?}");
                until_told(ns, words);
            }
            drop((port, a));
            daemon.kill();
        });
    });
}

#[test]
fn a_report_names_what_has_happened_to_interfaces_daemons_and_programs() {
    isolated_with_interfaces(|home| {
        let Some(net) = kept::net(home, DIRECT) else { return };
        let (near, far) = (&net.near, &net.far);
        let mut receiver = net.start(home, program("pkt-gen"), &["-i", "netmap:va", "-f", "rx", "-w", "0"], 1);
        kept::wait_until_kept(home);
        far.ip(&["link", "set", "vb", "down"]).unwrap();
        until_told(near, "va has no carrier");
        far.ip(&["link", "set", "vb", "up"]).unwrap();
        match far.tool("ethtool", &["-K", "vb", "tx", "on"]) {
            Ok(_) => until_told(near, "offloads were switched on at va"),
            Err(why) => summary(&format!("skipped in part: {why}")),
        }
        for name in ["unetmapd-broker", "unetmapd-store"] {
            let of_home = daemon_processes(home).into_iter();
            let mut named = of_home.filter(|pid| {
                fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid())).is_ok_and(|comm| comm.trim_end() == name)
            });
            let pid = named.next().unwrap_or_else(|| panic!("{name} runs"));
            kill_process(pid, Signal::STOP).expect("our own process");
            until_told(near, &format!("({name}) is stopped (kill -CONT {})", pid.as_raw_pid()));
            kill_process(pid, Signal::CONT).expect("our own process");
        }
        kept::kill(home);
        until_told(near, "crashed, and goes on with its ports");
        kept::wait_until_kept(home);
        match Group::of_cpu(2) {
            Err(why) => summary(&format!("skipped in part: {why}")),
            Ok(group) => {
                let mut busy = net.start(home, program("pkt-gen"), &["-i", "vale0:busy", "-f", "tx", "-w", "0"], 1);
                group.add(busy.0.id()).expect("it runs");
                // Not why: ip(8) hides the control groups from a program that it runs in a namespace.
                until_told(near, &format!("pkt-gen ({}) waits for a processor", busy.0.id()));
                let report = Command::new(program("unetmap")).args(["doctor", "--report"]).output().expect("it runs");
                let told = String::from_utf8_lossy(&report.stdout).into_owned();
                let words = format!("pkt-gen ({}) waits, as its control group's share", busy.0.id());
                assert!(told.contains(&words), "{told}");
                busy.kill();
            }
        }
        receiver.kill();
        until_told(near, "had va open, and ended or closed it");
        let port = net.open("netmap:va");
        near.ip(&["link", "del", "va"]).unwrap();
        drop(port);
        until_told(near, "the interface va was deleted or moved");
    });
}

#[test]
fn a_report_names_the_program_in_whose_place_the_kernel_forwards() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        net.lab.veth(&net.near, "vc", &net.far, "vd", CABLE_AWAY).expect("another cable");
        let bridge = net.start(home, program("bridge"), &["--bypass", "-i", "netmap:va", "-i", "netmap:vc"], 2);
        net.near.ip(&["link", "set", "va", "mtu", "1400"]).unwrap();
        until_told(&net.near, "has an MTU of 1400, and");
        net.near.ip(&["link", "set", "va", "mtu", "1500"]).unwrap();
        bridge.signal(Signal::STOP);
        let tap = net.far.clone();
        until("the kernel forwards", || {
            // The kernel notices it by a frame that nobody takes.
            let _ = tap.tool("ping", &["-n", "-c", "1", "-W", "1", "10.9.0.1"]);
            let report: Value =
                serde_json::from_slice(&doctor(&net.near, &["--report", "--json"]).stdout).expect("JSON");
            report["likely_causes"].to_string().contains("the program that has it open takes no frames")
        });
        bridge.signal(Signal::CONT);
    });
}

#[test]
fn a_bond_receives_by_way_of_a_veth() {
    isolated_with_interfaces(|_| {
        with_cable(|ns| {
            if let Err(why) = ns.ip(&["link", "add", "bond7", "type", "bond", "mode", "active-backup"]) {
                return summary(&format!("skipped: no bond can be made here: {why}"));
            }
            ns.ip(&["link", "set", "va", "down"]).unwrap();
            ns.ip(&["link", "set", "va", "master", "bond7"]).unwrap();
            ns.ip(&["link", "set", "bond7", "up"]).unwrap();
            assert_eq!(agree(ns, "bond7"), []);
            assert_eq!(opinion(ns, "bond7")["interfaces"][0]["way"], "by way of a veth, copy");
        });
    });
}

#[test]
fn the_report_names_the_data_path_of_a_veth_with_few_or_many_queues() {
    isolated_with_interfaces(|_| {
        with_cable(|ns| {
            // Fewer receive queues than the other end sends on.
            let queues = ["numrxqueues", "1", "numtxqueues", "1", "type", "veth", "peer", "name", "vd"];
            let peer = ["numrxqueues", "4", "numtxqueues", "4"];
            ns.ip(&[&["link", "add", "vc"], &queues[..], &peer[..]].concat()).unwrap();
            for name in ["vc", "vd"] {
                ns.ip(&["link", "set", name, "up"]).unwrap();
                assert_eq!(agree(ns, name), []);
            }
            let [vc, vd] = ["vc", "vd"].map(|name| opinion(ns, name)["interfaces"][0].clone());
            assert_eq!((&vc["queues"]["rx"], &vd["queues"]["rx"]), (&1.into(), &4.into()));
            let reported = vc["features"].is_object();
            assert!(!reported || (vc["way"] == "generic, copy" && vd["way"] == "native, copy"), "{vc} {vd}");
        });
    });
}

#[test]
fn another_xdp_program_is_reported_with_its_remedy() {
    isolated_with_interfaces(|_| {
        with_cable(|ns| {
            for mode in [XdpMode::Native, XdpMode::Generic] {
                let attach = || attach_xdp("va", mode).expect("nothing else is attached");
                let held = ns.run(attach).expect("the namespace is there");
                let found = agree(ns, "va");
                assert_eq!(found.len(), 1, "{found:?}");
                assert!(found[0].0 == "XDP program" && found[0].1.starts_with("end that process"), "{found:?}");
                let report = opinion(ns, "va");
                assert_eq!(report["interfaces"][0]["program"]["holder"]["pid"], std::process::id(), "{report}");
                drop(held);
                assert_eq!(agree(ns, "va"), []);
            }
            // By netlink, as programs do that come with `ip`.
            let object = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/sys/bpf/xdp.o");
            for option in ["xdpdrv", "xdpgeneric"] {
                let object = object.to_str().expect("text");
                let section = ["link", "set", "va", option, "obj", object, "program", "unetmap_plain"];
                if let Err(why) = ns.ip(&section) {
                    return summary(&format!("skipped in part: {why}"));
                }
                cure(ns, "va", "XDP program");
            }
        });
    });
}

#[test]
fn a_missing_capability_of_the_daemon_is_reported() {
    isolated_with_interfaces(|home| {
        with_cable(|ns| {
            for (lacks, what) in [
                ("+all", ""),
                ("-net_raw", "capabilities"),
                ("-net_admin", "capabilities"),
                ("-sys_admin", ""),
                // Packet sockets need neither.
                ("-bpf,-sys_admin", ""),
                ("-bpf", ""),
                ("-ipc_lock", "locked memory"),
            ] {
                let daemon = start_without(home, ns, lacks);
                let found: Vec<String> = agree(ns, "va").into_iter().map(|(what, _)| what).collect();
                assert_eq!(found, if what.is_empty() { vec![] } else { vec![what] }, "{lacks}");
                home.end_daemon();
                drop(daemon);
            }
        });
    });
}

/// Starts the test's daemon without one capability, and with a limit of 8 MiB locked memory.
fn start_without(home: &Home, ns: &Ns, lacks: &str) -> Guard {
    let mut command = ns.command("prlimit");
    command.args(["--memlock=8388608", "setpriv", "--inh-caps=-all", "--bounding-set", lacks]);
    command.arg(program("unetmapd")).args(["--foreground", "--socket"]).arg(home.socket());
    let daemon = Guard::spawn(command.stderr(Stdio::null()));
    until("the daemon serves", || home.try_snapshot().is_some());
    daemon
}

#[test]
fn an_unprivileged_user_gets_a_report() {
    isolated_with_interfaces(|home| {
        with_cable(|ns| {
            // Where everybody may run it.
            let unetmap = home.folder().join("unetmap");
            fs::copy(program("unetmap"), &unetmap).expect("a copy");
            fs::set_permissions(home.folder(), fs::Permissions::from_mode(0o755)).expect("our own folder");
            let ask = |arg: &str| {
                let mut command = Command::new(&unetmap);
                command.args(["doctor", arg]).uid(NOBODY).gid(NOBODY).env("UNETMAP_SOCKET", home.folder().join("none"));
                ns.run(|| command.output()).expect("the namespace is there").expect("it runs")
            };
            let output = ask("va");
            let text = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            for part in ["unknown  AF_XDP sockets", "unknown  BPF programs", "unknown  XDP links", "missing  unetmapd"]
            {
                assert!(text.contains(part), "{part}: {text}");
            }
            assert!(text.contains("ok       state") && text.contains("netmap:va cannot be opened: see unetmapd above"));
            let report: Value = serde_json::from_slice(&ask("--json").stdout).expect("JSON");
            assert_eq!(report["interfaces"].as_array().map(Vec::len), Some(3), "{report}");
        });
    });
}

#[test]
fn all_interfaces_are_listed_in_a_table() {
    isolated_with_interfaces(|_| {
        with_cable(|ns| {
            ns.ip(&["link", "set", "vb", "down"]).unwrap();
            let output = doctor(ns, &[]);
            let text = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(0), "an interface that is down is no fault of the machine: {text}");
            let row = |name: &str| text.lines().find(|line| line.starts_with(&format!("{name} "))).map(str::to_owned);
            let vb = row("vb").unwrap_or_else(|| panic!("{text}"));
            assert!(vb.contains("down") && vb.contains("(ip link set dev vb up)"), "{text}");
            assert!(row("lo").is_some() && row("va").is_some_and(|va| va.contains("no carrier")), "{text}");
            for (args, status, part) in [
                (&["eth7"][..], 1, "unetmap: netmap:eth7: no such interface ("),
                (&["vale0:1"], 2, "is on no interface"),
                (&[""], 2, "no name"),
                (&["va", "vb"], 2, "unexpected argument"),
            ] {
                let output = doctor(ns, args);
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.code() == Some(status) && text.contains(part), "{args:?}: {output:?}");
            }
        });
    });
}

/// `make test-nic`, with a veth pair for the cable.
#[test]
fn the_check_of_real_interfaces_passes_on_unused_ones_and_refuses_others() {
    isolated_with_interfaces(|_| {
        with_cable(|ns| {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/test-nic");
            let folder = program("unetmap").parent().expect("it is in a folder").to_owned();
            let check = || {
                let mut command = ns.command(&script);
                command.args(["va", "vb"]).env("BIN", &folder).env("WAIT", "1").env("PACKETS", "500");
                command.output().expect("it runs")
            };
            let output = check();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.matches("\nok      ").count() == 4, "{output:?}");
            ns.ip(&["addr", "add", "10.7.0.1/24", "dev", "vb"]).unwrap();
            let output = check();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(2) && text.contains("it carries an address"), "{output:?}");
        });
    });
}

/// README's table is printed by the program; after a change of the table, copy it from there.
#[test]
fn the_readme_has_the_table_of_kernels() {
    let output = Command::new(program("unetmap")).args(["doctor", "--kernels"]).output().expect("it runs");
    let table = String::from_utf8(output.stdout).expect("text");
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).expect("the README");
    assert!(table.lines().count() > 4 && readme.contains(&table), "README.md lacks:\n{table}");
}

/// The effect of each offload of a veth's peer on a port, before it is opened and while it is open.
#[test]
fn each_offload_has_a_line() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, conformance::host::CABLE) else { return };
        let lines = || {
            let report = opinion(&net.near, "va");
            let checks = report["interfaces"][0]["checks"].as_array().cloned().unwrap_or_default();
            let of =
                |what: &str| checks.iter().find(|check| check["what"] == what).map(|check| check["text"].to_string());
            ["VLAN tags", "checksums", "TSO, GSO", "LRO, GRO"].map(|what| of(what).unwrap_or_default())
        };
        let closed = lines();
        assert!(closed[..3].iter().all(|line| line.contains("switched off there while a port is open")), "{closed:?}");
        let port = net.open("netmap:va");
        let open = lines();
        assert!(open[..2].iter().all(|line| line.contains("in the frames")), "{open:?}");
        assert_eq!(open[3], closed[3]);
        drop(port);
        until("the offloads are restored", || lines() == closed);
    });
}
