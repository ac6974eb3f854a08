// SPDX-License-Identifier: BSD-2-Clause
//! Persistent ports, and the settings of switches, outlast the daemon.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use conformance::home::{
    Guard, Home, daemon_processes, is_alive, kill_daemon, processes_of, program, summary, until_ended,
};
use conformance::net::{CABLE, DIRECT, Held, Net, open_in, pings, policy_file, start_daemon};
use conformance::switch::{bring_up, done, host_on_switch, refused, set, shown};
use conformance::{isolated_with_interfaces, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::replace::{hosts_on_switch, remove_hosts};

/// How the daemon ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Term,
    /// All its processes at once, as when a whole control group is killed.
    Killed,
    /// The one that serves, alone.
    Server,
    /// The one that keeps root's rights, alone.
    Broker,
}

const ENDS: [End; 4] = [End::Term, End::Killed, End::Server, End::Broker];

fn end(home: &Home, how: End) {
    let all = daemon_processes(home);
    assert!(all.len() > 1, "the daemon and its broker");
    match how {
        End::Term => home.end_daemon(),
        End::Killed => kill_daemon(home),
        End::Server => kill_process(home.daemon(), Signal::KILL).expect("our own daemon"),
        End::Broker => {
            let broker = processes_of(home, b"--privileged").pop().expect("root's daemon has one");
            let pid = broker.file_name().and_then(|name| name.to_str()?.parse().ok()).and_then(Pid::from_raw);
            kill_process(pid.expect("a process"), Signal::KILL).expect("our own broker");
        }
    }
    until_ended(home, &all);
}

/// The names of the persistent ports.
fn persistent() -> Vec<String> {
    let mut names = persistent_as_listed();
    names.sort();
    names
}

/// The names of the persistent ports as `unetmap ls` lists them: served ones, then those that are opened, then those
/// that wait for their turn.
fn persistent_as_listed() -> Vec<String> {
    let output = Command::new(program("unetmap")).args(["ls", "--json"]).output().expect("it runs");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let ports = all["persistent"].as_array().expect("a list");
    ports.iter().map(|port| port["name"].as_str().expect("a name").to_owned()).collect()
}

/// Names and indexes of a namespace's interfaces, with addresses and routes.
fn state(net: &Net) -> [String; 2] {
    let brief = |args: &[&str]| net.near.ip(args).expect("interfaces");
    [brief(&["-o", "address", "show", "dev", "vi0"]), brief(&["route"])]
}

/// The slots of the rings of each port.
fn slots(home: &Home) -> BTreeMap<String, Vec<u32>> {
    let ports = home.snapshot().ports.into_iter();
    ports.map(|port| (port.name, port.rings.iter().map(|ring| ring.slots).collect())).collect()
}

#[test]
fn persistent_ports_are_served_by_the_next_daemon() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        hosts_on_switch(&net);
        assert!(pings(&net.near, "10.8.0.2"));
        let (before, rings) = (state(&net), slots(home));
        for how in [End::Term, End::Killed] {
            end(home, how);
            assert_eq!(state(&net)[1], before[1], "{how:?}: the kernel keeps interface and route");
            assert!(!pings(&net.near, "10.8.0.2"), "nobody serves it");
            net.restart_daemon(home);
            until("the next daemon serves both ports", || pings(&net.near, "10.8.0.2"));
            assert_eq!(state(&net), before, "{how:?}");
            // It waits until all are served.
            settings();
            assert_eq!(slots(home), rings, "{how:?}");
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

/// An interface with its host rings, and processors that poll it: its frames are the host's while no daemon runs.
#[test]
fn attached_interfaces_are_attached_again() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        host_on_switch(&net.near, "vi0", &["10.8.0.1/24"]);
        done(&net.near, "-h vale0:va");
        done(&net.near, "-p vale0:va -C 0,1");
        // Ports of two switches, and a sink.
        done(&net.near, "-n vi1");
        for port in ["vale0:vi1", "vale1:vi1", "vale1:nmsink0"] {
            done(&net.near, &format!("-a {port}"));
        }
        bring_up(&net.far, "vb", &["10.8.0.2/24"]);
        until("it is a port of the switch", || pings(&net.far, "10.8.0.1"));
        let before = done(&net.near, "");
        for how in ENDS {
            end(home, how);
            net.assert_given_back();
            net.restart_daemon(home);
            until("it is a port of the switch again", || pings(&net.far, "10.8.0.1"));
            assert_eq!(done(&net.near, ""), before, "{how:?}: the numbers of ports, too");
            assert_eq!(home.polled("vale0:va"), [(0, 1)], "the processor that polls it");
        }
        done(&net.near, "-P vale0:va");
        for port in ["vale0:va", "vale1:nmsink0", "vale1:vi1", "vale0:vi1", "vale0:vi0"] {
            done(&net.near, &format!("-d {port}"));
        }
        end(home, End::Killed);
        net.restart_daemon(home);
        assert_eq!(persistent(), ["vi0", "vi1"]);
        assert_eq!(done(&net.near, ""), "", "what was detached stays so");
        for name in ["vi0", "vi1"] {
            done(&net.near, &format!("-r {name}"));
        }
        assert_nothing_left(home);
    });
}

/// The kernel has given the number of a namespace that has ended to another one, with an interface of the same index
/// and address.
#[test]
fn an_interface_in_a_namespace_with_a_former_ones_number_is_not_attached() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        done(&net.near, "-a vale0:va");
        end(home, End::Killed);
        let path = home.folder().join("unetmapd.sock.ports/state");
        let mut state: Value = serde_json::from_slice(&fs::read(&path).expect("the file")).expect("JSON");
        let cookies = state["cookies"].as_object_mut().expect("the namespaces' cookies");
        if cookies.is_empty() {
            return summary("skipped: cookies of network namespaces need Linux 5.14");
        }
        // As if its own one had another cookie.
        cookies.values_mut().for_each(|cookie| *cookie = (cookie.as_u64().expect("a number") + (1 << 40)).into());
        fs::write(&path, state.to_string()).expect("our own file");
        net.restart_daemon(home);
        assert_eq!(done(&net.near, ""), "", "it is attached to nothing");
        let log = fs::read_to_string(home.log()).expect("the log");
        assert!(log.contains("its network namespace has ended"), "{log}");
    });
}

/// A setting that a daemon has left is removed by the command that removes one, though no daemon runs.
#[test]
fn what_a_daemon_has_left_is_removed_without_one() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        set("port vale0:a storm 9");
        end(home, End::Term);
        set("port vale0:a off");
        end(home, End::Term);
        net.restart_daemon(home);
        assert!(refused("port vale0:a").contains("it has no settings"));
        assert_nothing_left(home);
    });
}

/// A file that is damaged costs what it says, and no port.
#[test]
fn a_damaged_file_is_set_aside() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        host_on_switch(&net.near, "vi0", &["10.8.0.1/24"]);
        set("port vale0:vi0 access 7");
        end(home, End::Term);
        let state = home.folder().join("unetmapd.sock.ports/state");
        let whole = fs::read_to_string(&state).expect("the file");
        fs::write(&state, &whole[..whole.len() / 2]).expect("our own file");
        net.restart_daemon(home);
        // It answers when it has read the file.
        assert_eq!(persistent(), ["vi0"]);
        let log = fs::read_to_string(home.log()).expect("the log");
        assert!(log.contains("the file state cannot be used: EOF") && log.contains("it is state.1 now"), "{log}");
        assert!(!done(&net.near, "").contains("vale0"), "it is attached to nothing");
        done(&net.near, "-a vale0:vi0");
        end(home, End::Killed);
        net.restart_daemon(home);
        assert!(done(&net.near, "").contains("vale0:vi0"), "the file is written anew");
        // Daemons that end because of it do not try for ever.
        end(home, End::Killed);
        let whole = fs::read_to_string(&state).expect("the file").replace("\"tries\":0", "\"tries\":3");
        fs::write(&state, whole).expect("our own file");
        net.restart_daemon(home);
        assert_eq!(persistent(), ["vi0"]);
        let log = fs::read_to_string(home.log()).expect("the log");
        assert!(log.contains("3 daemons have ended while they did what it says"), "{log}");
        done(&net.near, "-a vale0:vi0");
        fs::remove_file(home.folder().join("unetmapd.sock.ports/state.1")).expect("the former file");
        done(&net.near, "-d vale0:vi0");
        done(&net.near, "-r vi0");
        assert_nothing_left(home);
    });
}

/// Runs ip(8) in the namespace of the hidden ends.
fn hidden_ip(home: &Home, args: &[&str]) -> String {
    let namespace = home.folder().join("unetmapd.sock.ports/namespace");
    let at = format!("--net={}", namespace.display());
    let output = Command::new("nsenter").arg(at).arg("ip").args(args).output().expect("nsenter runs");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Name, index, and XDP program of each interface there that has one.
fn hidden_programs(home: &Home) -> Vec<(String, u64, u64)> {
    let all: Value = serde_json::from_str(&hidden_ip(home, &["-json", "link"])).expect("JSON");
    let of = |link: &Value| Some((link["ifname"].as_str()?.to_owned(), link["ifindex"].as_u64()?, program_of(link)?));
    all.as_array().expect("a list").iter().filter_map(of).collect()
}

fn program_of(link: &Value) -> Option<u64> {
    link["xdp"]["prog"]["id"].as_u64()
}

/// Programs stay at the hidden ends, but for those whose visible ends have their offloads: these have companions, which
/// stay, too. The next daemon uses them as they are, and replaces others.
#[test]
fn programs_stay_at_hidden_ends() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        for (kernel, ports) in [("0", ["10.8.0.1/24", "10.8.0.2/24"]), ("1", ["10.7.0.1/24", "10.7.0.2/24"])] {
            unetmap(&["set", "vale_kernel", kernel]);
            for (ns, at) in [(&net.near, 0), (&net.far, 1)] {
                host_on_switch(ns, &format!("vi{kernel}{at}"), &[ports[at]]);
            }
        }
        // Through the threads.
        set("port vale0:vi10 storm 9000");
        let reached = |net: &Net| ["10.8.0.2", "10.7.0.2"].iter().all(|address| pings(&net.near, address));
        until("both are reached", || reached(&net));
        let before = hidden_programs(home);
        assert_eq!(before.len(), 2, "{before:?}");
        let links = || hidden_ip(home, &["-brief", "link"]).lines().count();
        let all = links();
        for how in [End::Term, End::Killed] {
            end(home, how);
            assert_eq!(hidden_programs(home), before, "{how:?}: they stay");
            net.restart_daemon(home);
            until("both are reached again", || reached(&net));
            assert_eq!((hidden_programs(home), links()), (before.clone(), all), "{how:?}: the same serve");
        }
        end(home, End::Term);
        let name = |of: usize| before[of].0.as_str();
        hidden_ip(home, &["link", "set", "dev", name(0), "xdp", "off"]);
        net.restart_daemon(home);
        until("both are reached again", || reached(&net));
        let after = hidden_programs(home);
        assert_eq!((after.len(), after[1..] == before[1..]), (2, true), "{after:?}");
        assert_ne!(after[0], before[0], "one was attached anew");
        // A port that is removed takes its companion along, whether by command or with its namespace.
        done(&net.near, "-d vale0:vi10");
        done(&net.near, "-r vi10");
        assert_eq!(links(), all - 3, "a hidden end, and both ends of its companion");
        end(home, End::Term);
        net.far.ip(&["link", "delete", "vi11"]).expect("it is deleted");
        net.restart_daemon(home);
        assert_eq!(persistent(), ["vi00", "vi01"]);
        assert_eq!(links(), all - 6);
        home.stop_all();
        assert_nothing_left(home);
    });
}

fn unetmap(args: &[&str]) -> String {
    let output = Command::new(program("unetmap")).args(args).output().expect("it runs");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// A daemon answers before it serves the ports again; a request about one of them waits.
#[test]
fn requests_wait_for_ports_that_are_served_again() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        hosts_on_switch(&net);
        set("port vale0:vi0 access 7");
        let before = (done(&net.near, ""), shown("port vale0:vi0")["rules"].clone());
        end(home, End::Killed);
        let held = Held::new(home);
        net.restart_faulty_daemon(home, "interfaces");
        held.until_reached();
        assert_eq!(persistent(), ["idle0", "vi0", "vi1"]);
        let text = unetmap(&["ls"]);
        assert!(text.contains("\nbeing served again: idle0, vi0, vi1\n"), "{text}");
        let after = thread::scope(|scope| {
            let opened = scope.spawn(|| drop(open_in(&net.near, "netmap:vi0")));
            let at_switch = scope.spawn(|| drop(open_in(&net.near, "vale0:vi1")));
            let list = scope.spawn(|| done(&net.near, ""));
            let rules = scope.spawn(|| shown("port vale0:vi0")["rules"].clone());
            until("all have asked", || home.snapshot().daemon.connections > 4);
            drop(held);
            opened.join().expect("the port of the interface is opened");
            at_switch.join().expect("the port of the switch is opened");
            (list.join().expect("a list"), rules.join().expect("rules"))
        });
        assert_eq!(after, before, "no request was answered too early");
        assert!(!unetmap(&["ls"]).contains("being served again"));
        home.stop_all();
        assert_nothing_left(home);
    });
}

/// A daemon first opens the ports that have had frames, though others were made before them.
#[test]
fn ports_with_traffic_are_served_first() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        for name in (0..8).map(|n| format!("quiet{n}")) {
            done(&net.near, &format!("-n {name}"));
            done(&net.near, &format!("-a vale0:{name}"));
        }
        hosts_on_switch(&net);
        until("packets cross the switch", || pings(&net.near, "10.8.0.2"));
        end(home, End::Term);
        let held = Held::new(home);
        net.restart_faulty_daemon(home, "interfaces");
        held.until_reached();
        // It opens three at the same time, and none is complete.
        let first = persistent_as_listed()[..3].to_vec();
        assert!(["vi0", "vi1"].iter().all(|name| first.iter().any(|of| of == name)), "{first:?}");
        drop(held);
        until("packets cross the switch again", || pings(&net.near, "10.8.0.2"));
        home.stop_all();
        assert_nothing_left(home);
    });
}

/// `PREVIOUS`: the daemon's program of an earlier build (`make test-long STEPS=previous`). This build serves what that
/// one has left, with its settings, and that one what this build has left.
#[test]
fn ports_of_an_earlier_build_are_served() {
    isolated_with_interfaces(|home| {
        let Some(previous) = std::env::var_os("PREVIOUS") else { return summary("skipped: PREVIOUS names no program") };
        // It starts the earlier one.
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        hosts_on_switch(&net);
        for setting in ["set vale0 age 300", "port vale0:vi0 access 7", "port vale0:vi1 access 7"] {
            set(setting);
        }
        let shown = || (settings(), shown("show vale0")["age"].clone(), persistent());
        let before = shown();
        until("ports of the VLAN reach each other", || pings(&net.near, "10.8.0.2"));
        let (current, mut daemons) = (program("unetmapd"), Vec::new());
        for (how, next) in [(End::Killed, &current), (End::Term, &previous.into()), (End::Term, &current)] {
            end(home, how);
            let mut daemon = Command::new(next);
            daemon.args(["--foreground", "--idle-exit", "0", "--socket"]).arg(home.socket());
            let daemon = Guard::spawn(daemon.arg("--policy").arg(policy_file(home)).stdin(Stdio::null()));
            until("the next daemon serves both ports", || pings(&net.near, "10.8.0.2"));
            assert_eq!(shown(), before, "{}", next.display());
            daemons.push(daemon);
        }
        home.stop_all();
        assert_nothing_left(home);
    });
}

/// Ports that are not served yet are removed as others are.
#[test]
fn all_is_removed_before_it_is_served_again() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        hosts_on_switch(&net);
        (0..4).for_each(|n| _ = done(&net.near, &format!("-n more{n}")));
        end(home, End::Term);
        let held = Held::new(home);
        net.restart_faulty_daemon(home, "interfaces");
        held.until_reached();
        thread::scope(|scope| {
            let stopped = scope.spawn(|| home.stop_all());
            until("the interfaces are gone", || net.near.ip(&["link", "show", "vi0"]).is_err());
            drop(held);
            stopped.join().expect("it ends");
        });
        for name in ["vi0", "idle0", "more0", "more3"] {
            net.near.ip(&["link", "show", name]).expect_err("it is gone");
        }
        assert_nothing_left(home);
    });
}

/// The number of interfaces of each namespace.
fn links(net: &Net) -> [usize; 2] {
    [&net.near, &net.far].map(|ns| ns.ip(&["-br", "link"]).expect("interfaces").lines().count())
}

/// Each port of a switch, with its number and its settings.
fn settings() -> Vec<[Value; 3]> {
    let shown = shown("show vale0");
    let ports = shown["port"].as_array().expect("a list");
    ports.iter().map(|port| ["name", "index", "rules"].map(|of| port[of].clone())).collect()
}

/// The kernel closes the sockets of a daemon that was killed one after the other; the next one serves meanwhile.
#[test]
fn the_next_daemon_does_not_wait_for_the_end_of_the_former() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        hosts_on_switch(&net);
        for name in (0..16).map(|n| format!("port{n:02}")) {
            done(&net.near, &format!("-n {name}"));
            done(&net.near, &format!("-a vale0:{name}"));
        }
        let before = (persistent(), settings());
        let former = daemon_processes(home);
        former.iter().for_each(|pid| _ = kill_process(*pid, Signal::KILL));
        until("it listens no more", || !home.serves());
        let next = start_daemon(home, &[]);
        let left = former.iter().filter(|pid| is_alive(**pid)).count();
        summary(&format!("{left} processes of the former daemon had not ended when the next one served"));
        assert_eq!((settings(), persistent()), (before.1, before.0));
        until("packets cross the switch", || pings(&net.near, "10.8.0.2"));
        drop(open_in(&net.near, "netmap:va"));
        home.stop_all();
        assert_nothing_left(home);
        drop(next);
    });
}

/// The time, in milliseconds, of which `share` of 100 were at most as long.
fn share_of(times: &mut [Duration], share: usize) -> String {
    times.sort();
    format!("{:.0} ms", times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3)
}

/// `RESTARTS` of each sort (1), `PORTS` (2): `make test-long STEPS=restarts` has more.
#[test]
fn many_restarts_lose_no_port() {
    isolated_with_interfaces(|home| {
        let number = |name: &str, usual: usize| std::env::var(name).map_or(usual, |n| n.parse().expect("a number"));
        let (restarts, ports) = (number("RESTARTS", 1), number("PORTS", 2));
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let links_before = links(&net);
        hosts_on_switch(&net);
        for name in (0..ports).map(|n| format!("port{n:03}")) {
            done(&net.near, &format!("-n {name}"));
            done(&net.near, &format!("-a vale0:{name}"));
        }
        set("port vale0:port000 access 7");
        set("port vale0:vi0 storm 9000");
        let before = (persistent(), settings());
        let (mut ended, mut answered, mut served) = (Vec::new(), Vec::new(), Vec::new());
        for how in (0..restarts).flat_map(|_| ENDS) {
            let ends = Instant::now();
            end(home, how);
            ended.push(ends.elapsed());
            let began = Instant::now();
            net.restart_daemon(home);
            answered.push(began.elapsed());
            // It waits until all are served.
            let after = settings();
            served.push(began.elapsed());
            assert_eq!((persistent(), after), before, "{how:?}");
            until("packets cross the switch", || pings(&net.near, "10.8.0.2"));
        }
        let restarts = served.len();
        let [[end, slow_end], [answer, slow_answer], [all, slow]] =
            [&mut ended, &mut answered, &mut served].map(|times| [50, 99].map(|share| share_of(times, share)));
        summary(&format!(
            "{restarts} restarts with {} ports: the former daemon had ended after {end} in the median, {slow_end} in 99 \
             of 100; the next one answered after {answer}, {slow_answer}, and all ports were served again after {all}, \
             {slow}",
            before.0.len()
        ));
        home.stop_all();
        assert_nothing_left(home);
        assert_eq!(links(&net), links_before);
    });
}
