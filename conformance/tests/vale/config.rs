// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap config`: what a switch was told is in a file, from which another daemon makes it again.

use std::fs;
use std::process::Command;

use conformance::ether::{BROADCAST, drain, mac, make};
use conformance::net::{BUFFER, CABLE, DIRECT, Net, collect, open_in, transmit};
use conformance::{isolated_with_interfaces, program, until};
use lab::Ns;
use unetmap::Port;

const FILE: &str = "\
# Two customers and their uplink.
[[persistent]]
name = \"v0\"
config = \"256,128\"

[switch.vale0]
age = 300
attach = [\"v0\", \"va\"]

[port.\"vale0:a\"]
access = 10
rate-in = \"0.5Mpps\"

[port.\"vale0:b\"]
access = 20

[port.\"vale0:va\"]
trunk = \"10,20\"

[interface.va]
busy-poll = \"50 64\"
way = \"generic\"
";

/// Runs `unetmap`; returns its status, and what it printed.
fn unetmap(ns: &Ns, args: &[&str]) -> (i32, String, String) {
    let mut command: Command = ns.command(program("unetmap"));
    let output = command.args(args).output().expect("the front command");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("an exit"), text(&output.stdout), text(&output.stderr))
}

/// Packets from `a` reach the uplink with the tag of its VLAN, and do not reach `b`.
#[track_caller]
fn assert_separated(net: &Net, seq: u64) {
    let [a, b]: [Port; 2] = ["vale0:a", "vale0:b"].map(|name| open_in(&net.near, name));
    let mirror = open_in(&net.near, "vale0:c");
    let sent = make(BROADCAST, mac(1), 1, seq).to_vec();
    transmit(&a, 0, std::slice::from_ref(&sent), BUFFER);
    let tagged = [&sent[..12], &[0x81, 0, 0, 10], &sent[12..]].concat();
    assert_eq!(collect(&mirror, 1), [tagged]);
    assert!(drain(&b).is_empty());
}

#[test]
fn a_daemon_that_starts_gets_what_the_one_before_it_had() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let path = home.folder().join("switches.toml");
        fs::write(&path, FILE).expect("a file");
        let file = path.to_str().expect("a path");
        let config = |net: &Net, action: &str| unetmap(&net.near, &["config", action, "--file", file]);
        assert!(config(&net, "check").1.ends_with("10 settings, no fault\n"), "{:?}", config(&net, "check"));
        let (status, diff, _) = config(&net, "diff");
        assert!(status == 1 && diff.contains("+ unetmap vale port vale0:a rate in 500kpps\n"), "{diff}");
        for round in 0..3 {
            if round > 0 {
                // Persistent ports and settings of switches would outlast it.
                assert_eq!(unetmap(&net.near, &["stop", "--force", "--all"]).0, 0);
                net.restart_daemon(home);
            }
            let (status, made, why) = config(&net, "apply");
            assert!(status == 0 && made.ends_with("made 10, was so 0, failed 0\n"), "{made}\n{why}");
            assert_eq!(config(&net, "diff"), (0, String::new(), String::new()));
            // It is no fault to apply it again.
            assert!(config(&net, "apply").1.ends_with("made 0, was so 10, failed 0\n"));
            assert_separated(&net, round);
        }
        // The state of the daemon, written as a file, is the same.
        let (status, _, why) = config(&net, "save");
        assert_eq!((status, &*why), (0, ""));
        let after = fs::read_to_string(&path).expect("the file");
        assert!(after.starts_with("# Two customers and their uplink.\n[[persistent]]\nname = \"v0\""), "{after}");
        assert!(after.contains("trunk = \"10,20\"") && after.contains("attach = [\"v0\", \"va\"]"), "{after}");
        assert_eq!(config(&net, "diff"), (0, String::new(), String::new()), "{after}");
        // What it says and cannot be is reported, and the rest is made.
        fs::write(&path, format!("{FILE}\n[switch.vale3]\nattach = [\"none9\"]\n[port.\"vale0:d\"]\naccess = 5\n"))
            .expect("a file");
        let (status, made, why) = config(&net, "apply");
        assert!(status == 1 && made.contains("vale port vale0:d access 5\n") && made.ends_with("failed 1\n"), "{made}");
        assert!(why.contains("vale-ctl -a vale3:none9: "), "{why}");
        fs::write(&path, "[switch.vale0]\nage = 0\n").expect("a file");
        assert!(config(&net, "apply").2.contains("switches.toml:2: "), "{:?}", config(&net, "apply"));
        net.assert_alive();
    });
}

#[test]
fn interfaces_of_other_namespaces_are_not_in_the_file_of_this_one() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        for (ns, name) in [(&net.near, "v0"), (&net.far, "v1")] {
            let attach = format!("vale0:{}", ["va", "vb"][usize::from(name == "v1")]);
            for args in [["-n", name], ["-a", &attach]] {
                assert!(ns.command(program("vale-ctl")).args(args).status().expect("vale-ctl").success(), "{args:?}");
            }
        }
        let shown = [&net.near, &net.far].map(|ns| unetmap(ns, &["config", "show"]).1);
        for (text, own, other) in [(&shown[0], ["v0", "va"], ["v1", "vb"]), (&shown[1], ["v1", "vb"], ["v0", "va"])] {
            let has = |name: &str| text.contains(&format!("\"{name}\""));
            assert!(own.iter().all(|name| has(name)) && !other.iter().any(|name| has(name)), "{text}");
        }
    });
}

#[test]
fn a_setting_that_is_saved_is_made_again() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let run = |net: &Net, args: &[&str]| {
            let mut command: Command = net.near.command(program("unetmap"));
            command.args(args).env("UNETMAP_SWITCHES", home.folder().join("saved.toml"));
            let output = command.output().expect("the front command");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        run(&net, &["vale", "port", "vale0:a", "trunk", "10,20-30", "--save"]);
        run(&net, &["vale", "port", "vale0:a", "filter", "in", "udp port 53", "--save"]);
        run(&net, &["vale", "set", "vale0", "age", "60", "--save"]);
        run(&net, &["vale", "port", "vale0:b", "storm", "1000", "--save"]);
        run(&net, &["nic", "va", "filter", "arp", "--save"]);
        run(&net, &["nic", "va", "way", "copy", "--save"]);
        run(&net, &["vale", "port", "vale0:b", "off", "--save"]);
        run(&net, &["vale", "port", "vale0:c", "storm", "1000"]);
        let saved = fs::read_to_string(home.folder().join("saved.toml")).expect("the file");
        assert!(!saved.contains("vale0:b") && !saved.contains("vale0:c"), "{saved}");
        run(&net, &["stop", "--force", "--all"]);
        net.restart_daemon(home);
        assert!(run(&net, &["config", "apply"]).ends_with("made 5, was so 0, failed 0\n"));
        until("the settings are back", || {
            run(&net, &["vale", "port", "vale0:a"]) == "vale0:a: trunk 10,20-30; filter in udp port 53\n"
        });
        assert!(run(&net, &["nic", "va"]).contains("filter: arp "));
        // Shown without a port on the interface, and without a file that names it.
        assert!(run(&net, &["config", "show"]).contains("[interface.va]\nfilter = \"arp\"\nway = \"copy\"\n"));
        assert!(run(&net, &["vale", "show", "vale0"]).contains("aging 60 s"));
        net.assert_alive();
    });
}
