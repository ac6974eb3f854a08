// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap nic IF filter ...`: only matching frames enter the port, all others stay with the kernel; which users may
//! set a filter, how long it lasts, and which expressions are refused.

use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use conformance::home::{Guard, LIMIT, snapshot_by, summary};
use conformance::net::{
    BUFFER, CABLE, DIRECT, MEDIATED, Net, Tap, assert_same, assert_works, collect, empty, frame, frames, open_in,
    pings, policy_file, public_copy, set_policy, take, transmit,
};
use conformance::tool::{done, nic, refused, wrong};
use conformance::{Home, isolated_with_interfaces, program, until};
use lab::{Lab, Ns};
use serde_json::Value;
use unetmap::{Interest, Port};

/// Users of these tests: two with direct access by the policy, one with mediated access, one without access.
const OWNER: u32 = 61_001;
const OTHER: u32 = 61_002;
const GUEST: u32 = 61_003;
const NOBODY: u32 = 61_004;

#[track_caller]
fn reported(ns: &Ns, interface: &str) -> Value {
    serde_json::from_str(&done(ns, &[interface, "--json"])).expect("JSON")
}

/// The expression that is active, or will be once the interface is open.
#[track_caller]
fn filter_of(ns: &Ns, interface: &str) -> Value {
    reported(ns, interface)["filter"]["expression"].clone()
}

/// Sends datagrams from the far end and checks whether they reach a port; the near stack's own socket gets the others.
struct Datagrams {
    near: UdpSocket,
    far: UdpSocket,
}

impl Datagrams {
    fn new(net: &Net) -> Datagrams {
        let socket = |ns: &Ns, at: &str| {
            let socket = ns.run(|| UdpSocket::bind(at)).expect("a namespace").expect("a socket");
            socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a time-out");
            socket
        };
        Datagrams { near: socket(&net.near, "10.9.0.1:7777"), far: socket(&net.far, "10.9.0.2:7777") }
    }

    /// Sends one; returns whether the stack of the near end received it.
    fn reaches_stack(&self, n: u8) -> bool {
        self.far.send_to(&[n; 30], "10.9.0.1:7777").expect("a route");
        let mut bytes = [0; 100];
        self.near.recv(&mut bytes).is_ok_and(|len| bytes[..len] == [n; 30])
    }

    /// Sends one; returns whether the port received it.
    fn reaches_port(&self, port: &Port, n: u8) -> bool {
        self.far.send_to(&[n; 30], "10.9.0.1:7777").expect("a route");
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            port.poll(Interest::RX, Some(Duration::from_millis(20))).unwrap_or_else(|e| panic!("{e}"));
            if take(port, 0).iter().any(|frame| frame.len() == 72 && frame[42..] == [n; 30]) {
                return true;
            }
        }
        false
    }
}

fn only_matching_frames(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let stays = done(&net.near, &["va", "filter", "udp"]);
    assert!(stays.contains("frames of `udp` enter its port"), "{stays}");
    assert!(!net.has_xdp(), "nothing is attached before a port is open");
    let datagrams = Datagrams::new(&net);
    assert!(datagrams.reaches_stack(1) && net.pings());
    let (port, tap) = (net.open("netmap:va"), net.tap());
    // From the first frame on: the filter was there before the port.
    for n in 2..12 {
        assert!(datagrams.reaches_port(&port, n), "datagram {n}");
        assert!(net.pings(), "ARP and ICMP stay with the kernel");
        assert!(!take(&port, 0).iter().any(|frame| frame[23] != 17), "the port received something else than UDP");
    }
    assert!(!datagrams.reaches_stack(20), "a frame that enters the port does not reach the stack as well");
    // Sent frames are not filtered.
    let sent = frames(&[60, 100, 1514], 7);
    transmit(&port, 0, &sent, BUFFER);
    assert_same(&tap.collect(sent.len()), &sent);
    // Another filter, and none, at once.
    done(&net.near, &["va", "filter", "ether", "proto", "0x88b5"]);
    assert!(datagrams.reaches_stack(21));
    empty(&port);
    tap.send_all(&sent);
    assert_same(&collect(&port, sent.len()), &sent);
    assert!(net.pings());
    done(&net.near, &["va", "filter", "off"]);
    assert!(datagrams.reaches_port(&port, 22) && !datagrams.reaches_stack(23));
    assert!(!net.pings(), "all frames enter the port");
    drop(port);
    net.assert_given_back();
    summary("datagrams to the port, pings through the stack: 10 each; filter changed and taken off while open");
}

/// Of 100 flows with four frames each, one of four enters: all frames of some flows, or some frames.
#[test]
fn a_sample_enters_the_port() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va"), net.tap());
        let sent: Vec<Vec<u8>> = (0..400u64)
            .map(|i| {
                let mut bytes = frame(60, i);
                bytes[11] = (i % 100) as u8;
                bytes
            })
            .collect();
        let mark = frame(60, 1000);
        let sampled = |words: &[&str]| {
            done(&net.near, &[&["va", "filter"][..], words].concat());
            tap.send_all(&sent);
            // It follows the others.
            done(&net.near, &["va", "filter", "ether proto 0x88b5"]);
            tap.send_all(std::slice::from_ref(&mark));
            let mut got = Vec::new();
            until("the last frame enters", || {
                port.rxsync().unwrap_or_else(|e| panic!("{e}"));
                got.extend(take(&port, 0).into_iter().filter(|frame| frame[12..14] == [0x88, 0xb5]));
                got.last() == Some(&mark)
            });
            got.pop();
            got
        };
        let flows = sampled(&["--sample", "4", "--by-flow", "ether proto 0x88b5"]);
        let wanted: Vec<Vec<u8>> =
            sent.iter().filter(|frame| flows.iter().any(|got| got[11] == frame[11])).cloned().collect();
        assert_same(&flows, &wanted);
        assert!((40..=180).contains(&flows.len()), "{} of 400", flows.len());
        let some = sampled(&["--sample", "4"]);
        assert!((40..=180).contains(&some.len()), "{} of 400", some.len());
        assert!(some.iter().all(|frame| sent.contains(frame)));
        assert_eq!(sampled(&["--sample", "1"]).len(), 400);
        done(&net.near, &["va", "filter", "--sample", "9", "udp", "port", "53"]);
        assert_eq!(filter_of(&net.near, "va"), "sample=9 udp port 53");
        let error = wrong(&nic(&net.near, &["va", "filter", "sample=0 udp"]));
        assert!(error.contains("sample: `0`: give a number from 1"), "{error}");
    });
}

#[test]
fn only_matching_frames_enter_direct() {
    isolated_with_interfaces(|home| only_matching_frames(home, DIRECT));
}

#[test]
fn only_matching_frames_enter_mediated() {
    isolated_with_interfaces(|home| only_matching_frames(home, MEDIATED));
}

/// The filter belongs to the interface: it stays when ports are closed and opened.
#[test]
fn a_filter_survives_closed_ports_and_interface_changes() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        assert_eq!(filter_of(&net.near, "va"), Value::Null);
        done(&net.near, &["va", "filter", "udp port 7777"]);
        for round in 0..10 {
            set_policy(home, [DIRECT, MEDIATED][round % 2]);
            assert_eq!(reported(&net.near, "va")["filter"]["in_force"], false);
            let port = net.open("netmap:va");
            let reported = reported(&net.near, "va");
            assert_eq!(
                (&reported["filter"]["in_force"], &reported["port"]["kind"]),
                (&true.into(), &["direct", "mediated"][round % 2].into())
            );
            assert!(net.pings(), "round {round}");
            drop(port);
            until("it is closed", || home.snapshot().regions.is_empty());
        }
        for change in [&["down"][..], &["name", "vx"], &["up"], &["mtu", "1400"], &["name", "va"]] {
            let name = if filter_known(&net.near, "va") { "va" } else { "vx" };
            net.near.ip(&[&["link", "set", name], change].concat()).expect("an interface");
        }
        assert_eq!(filter_of(&net.near, "va"), "udp port 7777");
        until("it works again", || net.pings());
        let port = net.open("netmap:va");
        assert!(net.pings());
        drop(port);
    });
}

fn filter_known(ns: &Ns, name: &str) -> bool {
    ns.ip(&["link", "show", "dev", name]).is_ok()
}

/// A filter is removed with its interface: a new interface of the same name and index has none.
#[test]
fn a_filter_is_removed_with_its_interface() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let index = reported(&net.near, "va")["index"].clone();
        for open in [false, true] {
            for way in ["deleted", "moved", "moved and back at once"] {
                done(&net.near, &["va", "filter", "udp"]);
                let port = open.then(|| net.open("netmap:va"));
                match way {
                    "deleted" => {
                        net.near.ip(&["link", "del", "va"]).expect("an interface");
                        let number = index.to_string();
                        let add = ["link", "add", "va", "index", &number, "type", "veth", "peer", "name", "vb"];
                        net.near.ip(&[&add[..], &["netns", net.far.name()]].concat()).expect("a cable");
                    }
                    _ => {
                        net.near.ip(&["link", "set", "va", "netns", net.far.name()]).expect("an interface");
                        if way == "moved" {
                            assert_eq!(filter_of(&net.far, "va"), Value::Null);
                        }
                        net.far.ip(&["link", "set", "va", "netns", net.near.name()]).expect("an interface");
                    }
                }
                assert_eq!(reported(&net.near, "va")["index"], index);
                assert_eq!(filter_of(&net.near, "va"), Value::Null, "{way}");
                drop(port);
                net.near.ip(&["link", "set", "va", "up"]).expect("an interface");
                net.far.ip(&["link", "set", "vb", "up"]).expect("an interface");
                net.near.wait_up("va").expect("a cable");
                let (port, tap) = (net.open("netmap:va"), net.tap());
                assert_works(&port, &tap, 0);
                drop(port);
                until("it is closed", || home.snapshot().regions.is_empty());
            }
        }
        net.assert_alive();
    });
}

/// A filter does not keep a network namespace alive.
#[test]
fn a_filter_is_removed_with_its_namespace() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        for round in 0..5 {
            let label = format!("guest{round}");
            let guest = net.lab.namespace(&label).expect("a namespace");
            net.lab.veth(&guest, "va", &net.far, "vz", lab::VethOptions { addresses: None, ..CABLE }).expect("a cable");
            assert_eq!(filter_of(&guest, "va"), Value::Null, "a number that was used before: round {round}");
            done(&guest, &["va", "filter", "udp"]);
            done(&net.near, &["va", "filter", "icmp"]);
            // Nothing else refers to the namespace: it is removed, and so is the other end of the veth pair.
            let path = guest.path();
            Command::new("ip").args(["netns", "del", guest.name()]).status().expect("ip");
            assert!(!path.exists());
            until("the namespace is gone", || !filter_known(&net.far, "vz"));
            assert_eq!(filter_of(&net.near, "va"), "icmp");
        }
    });
}

/// A daemon with a filter does not exit when idle; without one it does.
#[test]
fn a_daemon_with_filters_does_not_exit_when_idle() {
    isolated_with_interfaces(|home| {
        let lab = match Lab::new() {
            Ok(lab) => lab,
            Err(why) => return summary(&format!("skipped: {why}")),
        };
        let (near, far) = (lab.namespace("near").expect("a namespace"), lab.namespace("far").expect("a namespace"));
        lab.veth(&near, "va", &far, "vb", CABLE).expect("a cable");
        set_policy(home, DIRECT);
        assert_eq!(done(&near, &["va"]), "va: not open, no filter: no daemon is running\n");
        assert_eq!(done(&near, &["va", "--json"]), "null\n");
        let start = || {
            let mut command = Command::new(program("unetmapd"));
            command.args(["--foreground", "--idle-exit", "2", "--policy"]).arg(policy_file(home));
            let daemon = Guard::spawn(command.stderr(Stdio::null()));
            (daemon, home.connected())
        };
        // The filter is lost with a killed daemon.
        let (mut daemon, _connection) = start();
        done(&near, &["va", "filter", "udp"]);
        daemon.kill();
        for end in ["off", "deleted"] {
            let (mut daemon, connection) = start();
            assert_eq!(filter_of(&near, "va"), Value::Null);
            done(&near, &["va", "filter", "udp"]);
            drop(connection);
            std::thread::sleep(Duration::from_millis(3500));
            assert!(matches!(daemon.0.try_wait(), Ok(None)), "a daemon with a filter does not exit");
            assert_eq!(filter_of(&near, "va"), "udp");
            match end {
                "off" => drop(done(&near, &["va", "filter", "off"])),
                _ => drop(near.ip(&["link", "del", "va"]).expect("an interface")),
            }
            assert!(daemon.wait().success(), "{end}");
        }
    });
}

/// A daemon without the capability reports that.
#[test]
fn a_daemon_without_the_capability_refuses_filters() {
    isolated_with_interfaces(|home| {
        let lab = match Lab::new() {
            Ok(lab) => lab,
            Err(why) => return summary(&format!("skipped: {why}")),
        };
        let (near, far) = (lab.namespace("near").expect("a namespace"), lab.namespace("far").expect("a namespace"));
        lab.veth(&near, "va", &far, "vb", CABLE).expect("a cable");
        set_policy(home, DIRECT);
        for (lacks, part) in [
            ("-net_broadcast", "changes in network namespaces, which such a setting needs: give it CAP_NET_BROADCAST"),
            ("-sys_admin", "the daemon may not enter your network namespace: give it CAP_SYS_ADMIN"),
        ] {
            let mut command = Command::new("setpriv");
            command.args(["--inh-caps=-all", "--bounding-set", lacks]).arg(program("unetmapd"));
            command.args(["--foreground", "--policy"]).arg(policy_file(home));
            let daemon = Guard::spawn(command.stderr(Stdio::null()));
            until("it serves", || home.serves());
            let printed = refused(&nic(&near, &["va", "filter", "udp"]));
            assert!(printed.contains(part), "{printed}");
            home.end_daemon();
            drop(daemon);
        }
    });
}

/// Runs `unetmap nic` as another user, in `near`.
fn nic_as(net: &Net, tool: &std::path::Path, uid: u32, args: &[&str]) -> Output {
    let run = || Command::new(tool).arg("nic").args(args).uid(uid).gid(uid).output();
    net.near.run(run).expect("a namespace").expect("it runs")
}

#[test]
fn only_permitted_users_can_set_a_filter() {
    isolated_with_interfaces(|home| {
        let policy = format!(
            "[[rule]]\nports = [\"v*\"]\nusers = [\"root\", {OWNER}, {OTHER}]\naccess = \"direct\"\n\
             [[rule]]\nports = [\"v*\"]\nusers = [{GUEST}]\naccess = \"mediated\"\n"
        );
        let Some(net) = Net::new(home, &policy, CABLE) else { return };
        std::fs::set_permissions(home.folder(), std::fs::Permissions::from_mode(0o755)).expect("our own folder");
        let tool = public_copy(home.folder(), &program("unetmap").display().to_string());
        let client = public_copy(home.folder(), env!("CARGO_BIN_EXE_traffic_client"));
        let ask = |uid, args: &[&str]| nic_as(&net, &tool, uid, args);
        let set = |uid, expression| ask(uid, &["va", "filter", expression]);
        assert!(set(OWNER, "udp").status.success());
        assert!(set(OTHER, "tcp").status.success(), "no program has it open");
        assert_eq!(filter_of(&net.near, "va"), "tcp");
        for words in ["udp", "off"] {
            assert!(refused(&set(GUEST, words)).contains("gets it through the daemon; its filter is set by root"));
            let why = refused(&set(NOBODY, words));
            assert!(
                why.contains("no rule of this daemon's policy lets user") && why.contains("root adds one to /"),
                "{why}"
            );
        }
        // Showing the settings is refused as well.
        assert!(refused(&ask(NOBODY, &["va"])).contains("no rule of this daemon's policy lets user"));
        assert_eq!(filter_of(&net.near, "va"), "tcp");
        let shown: Value = serde_json::from_slice(&ask(GUEST, &["va", "--json"]).stdout).expect("JSON");
        assert_eq!((&shown["access"], &shown["filter"]["expression"]), (&"mediated".into(), &"tcp".into()));

        // While a user has it open, only that user and root may set its filter.
        let hold = || {
            let mut command = net.near.command("setpriv");
            let (uid, gid) = (format!("--reuid={OWNER}"), format!("--regid={OWNER}"));
            command.args([&uid, &gid, "--clear-groups"]).arg(&client).args(["hold", "netmap:va"]);
            Guard::spawn(command.stdout(Stdio::piped()))
        };
        let mut holder = hold();
        until("it is open", || home.snapshot().sessions.len() == 1);
        assert!(refused(&set(OTHER, "udp")).contains(&format!("user {OWNER} has it open")));
        assert!(set(OWNER, "udp").status.success());
        assert_eq!(filter_of(&net.near, "va"), "udp");
        assert!(set(0, "icmp").status.success());
        let shown = reported(&net.near, "va");
        assert_eq!(shown["port"]["sessions"][0]["uid"], OWNER);
        let others: Value = serde_json::from_slice(&ask(OTHER, &["va", "--json"]).stdout).expect("JSON");
        assert_eq!(others["port"]["sessions"], Value::Array(Vec::new()), "sessions of other users are hidden");
        holder.kill();
        until("it is closed", || home.snapshot().sessions.is_empty());

        // While it is open through the daemon, only root may set its filter.
        set_policy(
            home,
            &policy
                .replace(&format!("\"root\", {OWNER}"), "\"root\"")
                .replace("v*\"]\nusers = [61003", &format!("v*\"]\nusers = [{OWNER}, 61003")),
        );
        let _holder = hold();
        until("it is open", || home.snapshot().sessions.iter().any(|s| s.port == "va"));
        assert_eq!(reported(&net.near, "va")["port"]["kind"], "mediated");
        assert!(refused(&set(OWNER, "udp")).contains("gets it through the daemon"));
        assert!(refused(&set(OTHER, "udp")).contains("has it open, through the daemon"));
        assert!(set(0, "off").status.success());

        // The daemon of a user has no interfaces.
        let mut own = Command::new(&tool);
        own.args(["nic", "va", "filter", "udp"]).uid(NOBODY).gid(NOBODY);
        let folder = home.folder().join("own");
        std::fs::create_dir(&folder).expect("a folder");
        std::os::unix::fs::chown(&folder, Some(NOBODY), Some(NOBODY)).expect("our own folder");
        let daemon = public_copy(home.folder(), &program("unetmapd").display().to_string());
        own.env("UNETMAP_SOCKET", folder.join("sock")).env("UNETMAPD", &daemon);
        let output = net.near.run(|| own.output()).expect("a namespace").expect("it runs");
        assert!(refused(&output).contains("interfaces are opened by the system's daemon"));
        let mut ls = Command::new(&tool);
        let own = snapshot_by(ls.uid(NOBODY).gid(NOBODY).env("UNETMAP_SOCKET", folder.join("sock"))).expect("it runs");
        let pid = rustix::process::Pid::from_raw(own.daemon.pid as i32).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("our own process");
    });
}

#[test]
fn an_invalid_filter_is_refused_with_the_position_of_the_error() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        done(&net.near, &["va", "filter", "udp"]);
        for (words, wanted) in [
            (&["udp", "andd", "port", "53"][..], "the filter does not compile: syntax error, at character 5: `andd`"),
            (&["(udp"], "syntax error, at its end, character 5"),
            (&["port nosuchservice"], "unknown port 'nosuchservice', at character 6: `nosuchservice`"),
            (&["udp and inbound"], "not in the frame, at character 9: `inbound`"),
            (&[" "], "no filter; give an expression"),
        ] {
            let printed = wrong(&nic(&net.near, &[&["va", "filter"], words].concat()));
            assert!(printed.starts_with("unetmap: nic va: ") && printed.contains(wanted), "{words:?}: {printed}");
        }
        assert!(refused(&nic(&net.near, &["nope", "filter", "udp"])).contains("no such interface"));
        assert_eq!(nic(&net.near, &["va", "filter"]).status.code(), Some(2));
        assert_eq!(filter_of(&net.near, "va"), "udp", "a refused setting changes nothing");
    });
}

/// A filter is replaced atomically: no frame is matched against parts of both, and no frame that both accept is lost.
fn changed_under_traffic(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let expressions = ["ether proto 0x88b5", "ether proto 0x88b5 or udp", "not ip and not arp", "len > 14"];
    done(&net.near, &["va", "filter", expressions[0]]);
    let (port, tap) = (net.open("netmap:va"), net.tap());
    let mut seq = 0;
    for round in 0..12 {
        let change = net
            .near
            .command(program("unetmap"))
            .args(["nic", "va", "filter", expressions[round % 4]])
            .stdout(Stdio::null())
            .spawn();
        let mut change = Guard(change.expect("it runs"));
        while matches!(change.0.try_wait(), Ok(None)) {
            tap.send_all(&frames(&[60; 50], seq));
            let got: Vec<Vec<u8>> = collect(&port, 50);
            assert_same(&got, &frames(&[60; 50], seq));
            seq += 50;
        }
        assert!(change.wait().success());
    }
    summary(&format!("frames {seq}, each once and in order, while the filter was changed 12 times"));
}

#[test]
fn changing_a_filter_loses_no_packet_direct() {
    isolated_with_interfaces(|home| changed_under_traffic(home, DIRECT));
}

#[test]
fn changing_a_filter_loses_no_packet_mediated() {
    isolated_with_interfaces(|home| changed_under_traffic(home, MEDIATED));
}

/// Each interface in each namespace has its own filter, and `unetmap nic` lists open interfaces.
#[test]
fn each_interface_has_its_own_filter() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, lab::VethOptions { queues: 2, ..CABLE }) else { return };
        net.lab.veth(&net.near, "vc", &net.far, "va", lab::VethOptions { addresses: None, ..CABLE }).expect("a cable");
        done(&net.near, &["va", "filter", "udp"]);
        done(&net.near, &["vc", "filter", "tcp"]);
        done(&net.far, &["va", "filter", "icmp"]);
        for (ns, name, wanted) in [(&net.near, "va", "udp"), (&net.near, "vc", "tcp"), (&net.far, "va", "icmp")] {
            assert_eq!(filter_of(ns, name), wanted);
        }
        assert_eq!(filter_of(&net.far, "vb"), Value::Null);
        let text = done(&net.near, &["va"]);
        assert_eq!(
            text,
            "va: not open; queues: 2 tx, 2 rx; your access: direct\n\
             filter: udp (6 instructions, set by user 0, active once a port is open)\n"
                .replace("(6 ", &format!("({} ", reported(&net.near, "va")["filter"]["instructions"]))
        );
        let (one, two) = (net.open("netmap:va-1"), open_in(&net.far, "netmap:va"));
        let reported = reported(&net.near, "va");
        let port = &reported["port"];
        assert_eq!((&port["kind"], &port["manner"]), (&"direct".into(), &"native, copy".into()));
        let sessions = |queue: usize| &port["queues"][queue]["rx"]["sessions"];
        assert_eq!((sessions(0), sessions(1)), (&0.into(), &1.into()));
        assert_eq!(port["sessions"][0]["pid"], std::process::id());
        let text = done(&net.near, &["netmap:va"]);
        for part in ["va: open, direct: native, copy; region 1\n", "active)\n", "\nQueues\n", "\nSessions\n"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(net.pings() && pings(&net.far, "10.9.0.1"));
        drop((one, two));
        // Frames dropped for lack of room are counted.
        done(&net.near, &["vc", "filter", "off"]);
        let (port, tap) = (net.open("netmap:vc/R"), Tap::on(&net.far, "va"));
        tap.send_all(&frames(&[60; 1500], 0));
        until("they are counted", || {
            let reported = self::reported(&net.near, "vc");
            reported["port"]["queues"][0]["rx"]["dropped"].as_u64() >= Some(1500 - 1024)
        });
        drop(port);
    });
}
