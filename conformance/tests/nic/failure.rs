// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap nic IF failure`, `unetmap bypass` and `--bypass`: what becomes of frames that a program should get and none
//! takes, because it was killed or stopped, or because the daemon has ended.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use conformance::forwarder::{Forwarder, Line};
use conformance::home::{Guard, processes_of};
use conformance::net::{CABLE, DIRECT, Net, pings, public_copy, serve, start_daemon};
use conformance::tool::{done, lacks, nic, refused};
use conformance::{Home, isolated_with_interfaces, program, until};
use lab::Ns;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Two hosts with a program between them: the interfaces `left1` and `right1` of the namespace `middle`.
struct Wire {
    line: Line,
    daemon: Guard,
}

impl Wire {
    fn new(home: &Home, queues: u32) -> Option<Wire> {
        let line = Line::with_queues(queues)?;
        Some(Wire { line, daemon: serve(home) })
    }

    fn bridge(&self) -> Forwarder {
        let mut command = self.line.middle.command(program("bridge"));
        Forwarder::start(command.args(["-w", "0", "--bypass", "-i", "netmap:left1", "-i", "netmap:right1"]))
    }

    /// Whether the two hosts reach each other.
    fn carries(&self) -> bool {
        pings(&self.line.left, "10.9.0.2")
    }

    fn bypass(&self, args: &[&str]) {
        let output = command(&self.line.middle).args(["bypass", "left1", "right1"]).args(args).output();
        let output = output.expect("the program runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The setting of `left1`, with the counts.
    fn failure(&self) -> Value {
        let reply: Value = serde_json::from_str(&done(&self.line.middle, &["left1", "--json"])).expect("JSON");
        reply["failure"].clone()
    }

    /// Frames that the hosts have sent, and those that a host has received or that are counted as lost.
    fn frames(&self, home: &Home) -> [u64; 2] {
        let (mut sent, mut found) = (0, 0);
        for (ns, host) in [(&self.line.left, "left0"), (&self.line.right, "right0")] {
            let counters = ns.counters(host).expect("a namespace");
            (sent, found) = (sent + counters.tx_packets, found + counters.rx_packets);
        }
        for interface in ["left1", "right1"] {
            let reply: Value = serde_json::from_str(&done(&self.line.middle, &[interface, "--json"])).expect("JSON");
            let counts = ["to_stack", "dropped", "left_in_rings", "no_room"].map(|key| reply["failure"][key].as_u64());
            found += counts.iter().map(|count| count.expect("a count")).sum::<u64>();
        }
        let rings = home.snapshot().ports.into_iter().flat_map(|port| port.rings);
        [sent, found + rings.map(|ring| ring.dropped).sum::<u64>()]
    }

    /// Events of a kind at `left1`.
    fn events(&self, kind: &str) -> Vec<Value> {
        let output = command(&self.line.middle).args(["events", "--json"]).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        events.filter(|event| event["event"] == kind && event["port"] == "left1").collect()
    }

    fn bypassed(&self) -> u64 {
        self.failure()["bypassed"].as_u64().expect("a count")
    }

    /// Everything that may be left at the interfaces of `middle`.
    fn programs(&self) -> String {
        let text = self.line.middle.ip(&["-d", "link"]).expect("a namespace");
        text.lines().filter(|line| line.contains("xdp")).collect()
    }
}

fn command(ns: &Ns) -> Command {
    ns.command(program("unetmap"))
}

/// Frames that crossed the receive rings of `left1`.
fn received(home: &Home) -> u64 {
    let ports = home.snapshot().ports;
    let rings = ports.iter().filter(|port| port.name == "left1").flat_map(|port| &port.rings);
    rings.filter(|ring| ring.dir == "rx").map(|ring| ring.crossed).sum()
}

#[test]
fn the_kernel_forwards_while_the_program_does_not() {
    isolated_with_interfaces(|home| {
        let Some(mut wire) = Wire::new(home, 1) else { return };
        let mut bridge = wire.bridge();
        until("the bridge forwards", || wire.carries() && received(home) > 0);
        assert_eq!(
            (wire.failure()["action"].clone(), wire.failure()["partner"].clone()),
            (json!("bypass"), json!("right1"))
        );
        bridge.guard().kill();
        until("the kernel forwards", || wire.carries());
        until("the port is closed", || home.snapshot().ports.is_empty());
        let before = wire.bypassed();
        assert!(wire.carries() && wire.bypassed() > before, "by the program that stays");

        let mut bridge = wire.bridge();
        let (before, crossed) = (wire.bypassed(), received(home));
        until("the bridge forwards again", || wire.carries() && received(home) > crossed);
        bridge.guard().signal(Signal::STOP);
        until("the kernel forwards for a stopped program", || wire.carries());
        assert!(wire.bypassed() > before);
        bridge.guard().signal(Signal::CONT);
        let crossed = received(home);
        until("the bridge forwards once it goes on", || wire.carries() && received(home) > crossed + 8);
        drop(bridge);

        wire.daemon.kill();
        until("the kernel forwards without any process", || wire.carries());
        wire.bypass(&["off"]);
        assert!(!wire.programs().contains("prog/xdp"), "{}", wire.programs());
    });
}

#[test]
fn frames_in_the_rings_of_a_killed_program_are_counted() {
    isolated_with_interfaces(|home| {
        let Some(wire) = Wire::new(home, 2) else { return };
        let left_in_rings = || wire.failure()["left_in_rings"].as_u64().expect("a count");
        // While the daemon is late, the kernel forwards, and nothing is left.
        let mut rounds = 0;
        while rounds < 3 || left_in_rings() == 0 && rounds < 20 {
            rounds += 1;
            let mut bridge = wire.bridge();
            let crossed = received(home);
            until("the bridge forwards", || wire.carries() && received(home) > crossed);
            bridge.guard().signal(Signal::STOP);
            let flood = "for _ in {1..50}; do echo > /dev/udp/10.9.0.2/9; done";
            wire.line.left.tool("bash", &["-c", flood]).expect("datagrams are sent");
            bridge.guard().kill();
            until("the port is closed", || home.snapshot().ports.is_empty());
            until("each frame is counted", || {
                let [sent, found] = wire.frames(home);
                sent == found
            });
        }
        assert!(left_in_rings() > 0, "{}", wire.failure());
        let lost = wire.events("frames-lost");
        let sum: u64 = lost.iter().map(|event| event["frames"].as_u64().expect("a count")).sum();
        assert_eq!(json!(sum), wire.failure()["left_in_rings"]);
    });
}

#[test]
fn the_times_of_a_bypass_are_shown_with_their_causes() {
    isolated_with_interfaces(|home| {
        let Some(wire) = Wire::new(home, 1) else { return };
        let mut bridge = wire.bridge();
        let cause = || wire.failure()["bypass"]["cause"].clone();
        until("the bridge forwards", || wire.carries() && received(home) > 0 && cause().is_null());
        let set = command(&wire.line.middle).args(["set", "bypass_stall", "100"]).output().expect("it runs");
        assert!(set.status.success(), "{set:?}");
        bridge.guard().signal(Signal::STOP);
        until("the kernel forwards", || {
            // A late daemon may have had the kernel forward the first ones.
            let _ = wire.line.left.tool("bash", &["-c", "echo > /dev/udp/10.9.0.2/9"]);
            cause() == "stalled"
        });
        bridge.guard().signal(Signal::CONT);
        until("the bridge forwards again", || cause().is_null());
        assert!(wire.failure()["overtaken"].as_u64() > Some(0), "{}", wire.failure());
        drop(bridge);
        until("no program forwards", || cause() == "no-program");
        let seconds = wire.failure()["bypass"]["seconds"].as_f64().expect("a time");
        let of = |kind| wire.events(kind);
        let is_there = |kind, cause| of(kind).iter().any(|event: &Value| event["cause"] == cause);
        for cause in ["no-program", "stalled"] {
            assert!(is_there("bypass-began", cause) && is_there("bypass-ended", cause), "{cause}");
        }
        let lasted: f64 = of("bypass-ended").iter().map(|event| event["seconds"].as_f64().expect("a time")).sum();
        assert!(lasted > 0.0 && lasted <= seconds + 0.1, "{lasted} s and {seconds} s");
        let metrics = command(&wire.line.middle).arg("metrics").output().expect("it runs");
        let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
        let active = metrics.lines().find(|line| line.contains("bypass_active{") && line.contains("\"left1\""));
        assert!(active.is_some_and(|line| line.ends_with("cause=\"no-program\"} 1")), "{metrics}");
    });
}

/// A process of the daemon that still ends has programs at the interface, by links that end with it.
#[test]
fn what_stays_is_detached_before_all_processes_have_ended() {
    isolated_with_interfaces(|home| {
        let Some(mut wire) = Wire::new(home, 1) else { return };
        let _bridge = wire.bridge();
        until("the bridge forwards", || wire.carries() && received(home) > 0);
        let broker = processes_of(home, b"--privileged").pop().expect("root's daemon has one");
        let broker = Pid::from_raw(broker.file_name().expect("a number").to_string_lossy().parse().expect("a number"));
        let broker = broker.expect("a process");
        kill_process(broker, Signal::STOP).expect("our own");
        wire.daemon.kill();
        wire.bypass(&["off"]);
        kill_process(broker, Signal::CONT).expect("our own");
        until("nothing is left", || !wire.programs().contains("prog/xdp"));
    });
}

#[test]
fn a_setting_outlives_its_daemon() {
    isolated_with_interfaces(|home| {
        let Some(mut wire) = Wire::new(home, 1) else { return };
        wire.bypass(&[]);
        until("the kernel forwards", || wire.carries());
        let counted = wire.bypassed();
        wire.daemon.kill();
        assert!(wire.carries());
        wire.daemon = start_daemon(home, &[]);
        assert_eq!(wire.failure()["action"], json!("bypass"), "the next daemon takes it over");
        assert!(wire.carries() && wire.bypassed() > counted, "and goes on counting");
        let bridge = wire.bridge();
        until("a bridge forwards", || wire.carries() && received(home) > 0);
        let open = refused(&nic(&wire.line.middle, &["left1", "failure", "open"]));
        assert!(open.contains("close it everywhere first"), "{open}");
        drop(bridge);
        until("the port is closed", || home.snapshot().ports.is_empty());
        wire.bypass(&["off"]);
        assert_eq!(wire.failure(), Value::Null);
        assert!(!wire.programs().contains("prog/xdp"), "{}", wire.programs());
    });
}

#[test]
fn closed_is_closed_also_without_a_daemon() {
    isolated_with_interfaces(|home| {
        let Some(mut wire) = Wire::new(home, 1) else { return };
        let middle = &wire.line.middle;
        middle.ip(&["address", "add", "10.9.0.3/24", "dev", "left1"]).expect("an address");
        let reaches = || pings(&wire.line.left, "10.9.0.3");
        until("the stack answers", reaches);
        assert_eq!(done(middle, &["left1", "failure", "closed"]), "left1: frames that no program takes are dropped\n");
        assert!(!reaches() && wire.failure()["dropped"].as_u64() > Some(0));
        kill_process(home.daemon(), Signal::STOP).expect("our daemon");
        assert!(!reaches());
        wire.daemon.kill();
        assert!(!pings(&wire.line.left, "10.9.0.3"));
        let output = command(&wire.line.middle).args(["nic", "left1", "failure", "open"]).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        until("the stack answers again", || pings(&wire.line.left, "10.9.0.3"));
    });
}

/// A firewall at a host's rings closes the interface, which stays so: it says so when it ends, and so does what is
/// asked later, also without a daemon.
#[test]
fn what_stays_closed_is_said() {
    isolated_with_interfaces(|home| {
        let Some(wire) = Wire::new(home, 1) else { return };
        let ns = &wire.line.middle;
        let mut firewall = ns.command(program("unetmap-fw"));
        firewall.args(["-w", "0", "left1^", "left1"]).stderr(Stdio::piped());
        let firewall = firewall.spawn().expect("it runs");
        until("the firewall has the interface, which is closed", || {
            wire.failure()["action"] == "closed" && done(ns, &["left1"]).contains("left1: open, ")
        });
        kill_process(Pid::from_child(&firewall), Signal::INT).expect("our child");
        let output = firewall.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains("left1 stays closed"), "{said}");
        let unetmap = |args: &[&str]| {
            let output = command(ns).args(args).output().expect("the program runs");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let stopped = unetmap(&["stop", "--force"]);
        assert!(stopped.contains("failure open): left1 (closed)\n"), "{stopped}");
        let shown = unetmap(&["nic", "left1"]);
        assert!(shown.contains("no daemon is running\n") && shown.contains("dropped: failure closed"), "{shown}");
        done(ns, &["left1", "failure", "open"]);
        assert!(!unetmap(&["nic", "left1"]).contains("failure"));
        drop(wire.daemon);
    });
}

/// Another interface gets the name, which nobody of ours looks at.
#[test]
fn a_name_that_is_closed_stays_closed() {
    isolated_with_interfaces(|home| {
        if let Some(why) = lacks("kernel: closed names") {
            return eprintln!("skipped: {why}");
        }
        let Some(mut wire) = Wire::new(home, 1) else { return };
        let reaches = |wire: &Wire| pings(&wire.line.left, "10.9.0.3") || pings(&wire.line.middle, "10.9.0.1");
        let make_again = |wire: &Wire| {
            wire.line.middle.ip(&["link", "delete", "left1"]).expect("it was there");
            wire.line.connect_left();
            wire.line.middle.ip(&["address", "add", "10.9.0.3/24", "dev", "left1"]).expect("an address");
        };
        make_again(&wire);
        until("the stack answers", || reaches(&wire));
        done(&wire.line.middle, &["left1", "failure", "closed"]);
        make_again(&wire);
        assert!(!reaches(&wire) && !wire.programs().contains("prog/xdp"), "{}", wire.programs());
        assert_eq!(wire.failure()["action"], "closed", "the daemon has attached the program by now");
        until("the program drops what comes", || !reaches(&wire) && wire.failure()["dropped"].as_u64() > Some(0));
        wire.daemon.kill();
        make_again(&wire);
        assert!(!reaches(&wire));
        // Renamed, it is another interface's name.
        wire.line.middle.ip(&["link", "set", "left1", "down"]).expect("it is there");
        wire.line.middle.ip(&["link", "set", "left1", "name", "other", "up"]).expect("it is down");
        wire.line.middle.ip(&["address", "replace", "10.9.0.3/24", "dev", "other"]).expect("an address");
        until("it has another name", || reaches(&wire));
        wire.line.middle.ip(&["link", "delete", "other"]).expect("it was there");
        let open = done(&wire.line.middle, &["left1", "failure", "open"]);
        assert_eq!(open, "left1: frames that no program takes go to the host's stack\n");
        wire.line.connect_left();
        wire.line.middle.ip(&["address", "add", "10.9.0.3/24", "dev", "left1"]).expect("an address");
        until("the stack answers", || reaches(&wire));
    });
}

/// Two closed interfaces exchange their names: both names stay closed, for whatever interface has them next.
#[test]
fn closed_interfaces_that_exchange_their_names_stay_closed() {
    isolated_with_interfaces(|home| {
        if let Some(why) = lacks("kernel: closed names") {
            return eprintln!("skipped: {why}");
        }
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let ip = |args: &str| net.near.ip(&args.split(' ').collect::<Vec<_>>()).expect("an interface");
        ip("link add vb type veth peer name vz");
        let close = |name| done(&net.near, &[name, "failure", "closed"]);
        let _ = ["va", "vb"].map(close);
        for (from, to) in [("va", "other"), ("vb", "va"), ("other", "vb")] {
            ip(&format!("link set {from} down"));
            ip(&format!("link set {from} name {to}"));
        }
        // The daemon learns the names one after the other.
        for name in ["vb", "va"] {
            assert!(done(&net.near, &[name]).contains("dropped"), "{name} is closed");
        }
        for name in ["vb", "va"] {
            ip(&format!("link delete {name}"));
            ip(&format!("link add {name} type veth peer name w{name}"));
            assert!(done(&net.near, &[name]).contains("dropped"), "another {name} is closed as well");
        }
    });
}

/// Who owns a namespace can close names there. The daemon attaches nothing because of that, until root asks.
#[test]
fn a_closed_name_is_a_setting_when_root_asks() {
    const USER: u32 = 4711;
    isolated_with_interfaces(|home| {
        if let Some(why) = lacks("kernel: closed names") {
            return eprintln!("skipped: {why}");
        }
        let policy = format!("[[rule]]\nports = [\"v*\"]\nusers = [\"root\", {USER}]\naccess = \"direct\"\n");
        let Some(net) = Net::new(home, &policy, CABLE) else { return };
        std::fs::set_permissions(home.folder(), std::fs::Permissions::from_mode(0o755)).expect("our own folder");
        let tool = public_copy(home.folder(), &program("unetmap").display().to_string());
        done(&net.near, &["va", "failure", "closed"]);
        net.near.ip(&["link", "delete", "va"]).expect("it was there");
        net.near.ip(&["link", "add", "va", "type", "veth", "peer", "name", "vz"]).expect("an interface");
        let is_attached = || net.near.ip(&["link", "show", "va"]).expect("it is there").contains("prog/xdp");
        let run = || Command::new(&tool).args(["nic", "va", "--json"]).uid(USER).gid(USER).output();
        let output = net.near.run(run).expect("a namespace").expect("it runs");
        assert!(output.status.success(), "{output:?}");
        assert!(!is_attached(), "{output:?}");
        assert!(done(&net.near, &["va"]).contains("dropped"), "root's look finds it");
        assert!(is_attached());
    });
}

#[test]
fn a_filter_decides_before_the_failure() {
    isolated_with_interfaces(|home| {
        let Some(wire) = Wire::new(home, 1) else { return };
        let middle = &wire.line.middle;
        middle.ip(&["address", "add", "10.9.0.3/24", "dev", "left1"]).expect("an address");
        done(middle, &["left1", "failure", "closed"]);
        assert!(!pings(middle, "10.9.0.1"), "the host's frames are dropped");
        done(middle, &["left1", "filter", "udp"]);
        until("the stack has what the filter refuses", || pings(&wire.line.left, "10.9.0.3"));
        let dropped = || wire.failure()["dropped"].as_u64().expect("a count");
        let before = dropped();
        until("no program takes what it accepts", || {
            wire.line.left.tool("bash", &["-c", "echo > /dev/udp/10.9.0.3/9"]).is_ok() && dropped() > before
        });
        done(middle, &["left1", "filter", "off"]);
        assert!(!pings(&wire.line.left, "10.9.0.3"));
    });
}

/// Sends pings for longer than any deadline; returns how many are answered.
fn answered(ns: &Ns) -> u64 {
    let mut command = ns.command("ping");
    let output = command.args(["-n", "-q", "-c", "25", "-i", "0.1", "-W", "1", "10.9.0.3"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = text.split([' ', ',']).collect();
    let at = words.iter().position(|word| *word == "received").unwrap_or_else(|| panic!("{output:?}"));
    words[at - 1].parse().expect("a number")
}

#[test]
fn a_firewall_on_host_rings_is_closed_while_processes_are_stopped() {
    isolated_with_interfaces(|home| {
        let Some(wire) = Wire::new(home, 1) else { return };
        let (left, middle) = (&wire.line.left, &wire.line.middle);
        middle.ip(&["address", "add", "10.9.0.3/24", "dev", "left1"]).expect("an address");
        let rules = home.folder().join("rules");
        std::fs::write(&rules, "add 10 deny icmp from any to any\nadd 20 allow all from any to any\n").expect("a file");
        let mut fw = middle.command(program("unetmap-fw"));
        let mut fw = Forwarder::start(fw.args(["-w", "0", "netmap:left1^", "netmap:left1", "-r"]).arg(&rules));
        let listens = || left.tool("ip", &["neighbour", "show", "10.9.0.3"]).is_ok_and(|text| text.contains("lladdr"));
        until("the firewall passes ARP", || answered(left) == 0 && listens());
        let daemon = home.daemon();
        let processes = [daemon, fw.guard().pid()];
        for process in processes {
            kill_process(process, Signal::STOP).expect("our own");
            assert_eq!(answered(left), 0);
            kill_process(process, Signal::CONT).expect("our own");
        }
        fw.guard().kill();
        assert_eq!(answered(left), 0);
        done(middle, &["left1", "failure", "open"]);
        until("the stack answers", || pings(left, "10.9.0.3"));
    });
}
