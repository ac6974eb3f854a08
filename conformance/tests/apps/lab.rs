// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap lab`: labs are built, repeated and removed in a mount namespace with a `/run` of its own, so that their
//! names are in no folder of the machine's.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use conformance::home::{Guard, summary};
use conformance::pcap::{pcap_file, read_pcap};
use conformance::{Home, isolated_with_interfaces, program, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A switch, a link with a delay that is captured, and a plain one.
const OFFICE: &str = r#"
[host.pc]
routes = ["default via 10.1.0.254"]
[host.gate]
forward = true
[host.server]
routes = ["default via 10.2.0.254"]
[switch.lan]
[[link]]
ends = ["pc 10.1.0.1/24", "lan"]
[[link]]
ends = ["gate 10.1.0.254/24", "lan"]
[[link]]
ends = ["gate 10.2.0.254/24", "server 10.2.0.1/24"]
delay = "20ms"
[[link]]
ends = ["pc:direct 10.3.0.1/24", "server:direct 10.3.0.2/24"]
[[capture]]
at = "server:eth0"
file = "server.pcap"
"#;

/// A mount namespace with an empty `/run`, as long as this lives.
struct Site<'a> {
    home: &'a Home,
    holder: Guard,
    /// Mounts of namespaces that it has of the machine's.
    mounts: BTreeSet<String>,
}

impl Site<'_> {
    /// `None`, with the reason, where none can be made.
    fn new(home: &Home) -> Option<Site<'_>> {
        let inside = "mount -t tmpfs none /run && mkdir /run/netns && echo ready && exec sleep infinity";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", inside]);
        let mut holder = Guard::spawn(command.stdout(Stdio::piped()).stderr(Stdio::null()));
        let mut line = String::new();
        BufReader::new(holder.0.stdout.take().expect("piped")).read_line(&mut line).expect("a pipe");
        if line != "ready\n" {
            summary("skipped: no mount namespace can be made here");
            return None;
        }
        let mut site = Site { home, holder, mounts: BTreeSet::new() };
        site.mounts = site.mounts();
        Some(site)
    }

    /// The mounts of network namespaces.
    fn mounts(&self) -> BTreeSet<String> {
        let all = fs::read_to_string(format!("/proc/{}/mountinfo", self.holder.0.id())).expect("proc");
        all.lines().filter(|line| line.contains(" - nsfs ")).map(str::to_owned).collect()
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.folder().join(name);
        fs::write(&path, text).expect("our own folder");
        path
    }

    /// A command in the namespace.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.holder.0.id();
        command.arg(format!("--mount=/proc/{pid}/ns/mnt")).arg("--").args(words).stdin(Stdio::null());
        command
    }

    fn lab(&self, words: &[&str]) -> Output {
        let program = program("unetmap");
        let all = [&[program.to_str().expect("text"), "lab"], words].concat();
        self.command(&all).output().expect("nsenter")
    }

    /// The object that a command prints, which succeeds.
    #[track_caller]
    fn done(&self, words: &[&str]) -> Value {
        let output = self.lab(&[words, &["--json"]].concat());
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("an object")
    }

    /// The error of a command, which fails.
    #[track_caller]
    fn refused(&self, words: &[&str]) -> String {
        let output = self.lab(words);
        let text = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{words:?}: {text}");
        text
    }

    /// Runs a program in a namespace of a lab; returns what it printed.
    #[track_caller]
    fn run(&self, namespace: &str, words: &[&str]) -> String {
        let all = [&["ip", "netns", "exec", namespace], words].concat();
        let output = self.command(&all).output().expect("nsenter");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{all:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Pings; returns the shortest time in milliseconds.
    #[track_caller]
    fn ping(&self, namespace: &str, to: &str) -> f64 {
        let text = self.run(namespace, &["ping", "-c", "3", "-i", "0.2", "-w", "100", to]);
        let times = text.lines().find_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "));
        let shortest = times.and_then(|times| times.split('/').next()?.parse().ok());
        shortest.unwrap_or_else(|| panic!("{text}"))
    }

    /// A path in the namespace, as this process sees it.
    fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.0.id()))
    }

    /// The names in a folder of the namespace.
    fn names(&self, folder: &str) -> Vec<String> {
        let all = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// The processes in the mount namespace, besides the one that keeps it; each with its command line.
    fn processes(&self) -> BTreeSet<(i32, String)> {
        let of = |pid: i32| fs::metadata(format!("/proc/{pid}/ns/mnt")).map(|ns| ns.ino()).ok();
        let holder = self.holder.0.id() as i32;
        let ours = of(holder);
        let all = fs::read_dir("/proc").expect("proc").flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let inside = pids.filter(|pid| *pid != holder && of(*pid) == ours);
        let named = inside.map(|pid| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            (pid, String::from_utf8_lossy(&words).replace('\0', " "))
        });
        // One that is ending has no command line any more.
        named.filter(|(_, words)| !words.is_empty()).collect()
    }

    #[track_caller]
    fn assert_nothing_is_left(&self) {
        assert_eq!(self.names("/run/netns"), Vec::<String>::new());
        assert_eq!(self.names("/run/unetmap-labs"), [".lock"]);
        until("all processes have ended", || self.processes().is_empty());
        // Those of the machine's may have gone.
        assert_eq!(self.mounts().difference(&self.mounts).collect::<Vec<_>>(), Vec::<&String>::new());
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn a_lab_is_built_used_repeated_and_removed() {
    isolated_with_interfaces(|home| {
        let Some(site) = Site::new(home) else { return };
        let file = site.write("office.toml", OFFICE);
        let file = text(&file);
        let built = site.done(&["up", file]);
        assert_eq!((&built["lab"], &built["changed"]), (&"office".into(), &true.into()), "{built}");
        assert_eq!(built["hosts"][1]["namespace"], "office.gate", "{built}");
        assert_eq!(built["links"][2]["emulation"]["delay"], "20ms", "{built}");
        assert!(site.ping("office.pc", "10.2.0.1") >= 40.0, "through the switch, and the link with its delay, twice");
        site.ping("office.pc", "10.3.0.2");

        // Again: nothing happens.
        let before = site.processes();
        assert_eq!(site.done(&["up", file])["changed"], false);
        assert_eq!(site.processes(), before);
        // What has ended is started again, and nothing else.
        let ended = before.iter().find(|(_, words)| words.contains("emulate")).expect("it runs");
        kill_process(Pid::from_raw(ended.0).expect("a number"), Signal::KILL).expect("it runs");
        until("the monitor notices that its port has gone", || {
            !site.processes().iter().any(|(_, words)| words.contains("emulate") || words.contains("capture"))
        });
        assert_eq!(site.done(&["up", file])["changed"], true);
        assert!(site.ping("office.pc", "10.2.0.1") >= 40.0);

        site.write("office.toml", &OFFICE.replace("20ms", "10ms"));
        assert!(site.refused(&["up", file]).contains("office is up, by an earlier text of this file"));
        let all = site.done(&["ls"]);
        assert_eq!((&all[0]["lab"], &all[0]["complete"]), (&"office".into(), &true.into()), "{all}");

        assert_eq!(site.done(&["down", "office"])["removed"], true);
        site.assert_nothing_is_left();
        assert_eq!(site.done(&["down", file])["removed"], false);
        // ICMP between the two.
        let frames = read_pcap(&home.folder().join("server.pcap"));
        let is_ping = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == 1 && frame[26..30] == [10, 1, 0, 1];
        assert!(
            frames.iter().any(|packet| packet.bytes.len() > 34 && is_ping(&packet.bytes)),
            "{} frames",
            frames.len()
        );
    });
}

#[test]
fn a_lab_that_cannot_be_built_leaves_nothing_and_removes_nothing_of_others() {
    isolated_with_interfaces(|home| {
        let Some(site) = Site::new(home) else { return };
        // The kernel refuses a route; a program of the lab refuses its file, after all else was built.
        for (from, to, line, part) in [
            ("via 10.2.0.254", "via 10.9.0.1", 6, "ip route add default via 10.9.0.1: "),
            ("server.pcap", "no/such/folder.pcap", 18, "no/such/folder.pcap"),
        ] {
            let file = site.write("office.toml", &OFFICE.replace(from, to));
            let why = site.refused(&["up", text(&file)]);
            assert!(why.contains(&format!("office.toml:{line}: ")) && why.contains(part), "{why}");
            site.assert_nothing_is_left();
        }
        // A namespace of this name that somebody else has made.
        let file = site.write("office.toml", OFFICE);
        let made = site.command(&["ip", "netns", "add", "office.gate"]).status().expect("nsenter");
        assert!(made.success());
        let id = || fs::metadata(site.path("/run/netns/office.gate")).expect("it is there").ino();
        let before = id();
        let why = site.refused(&["up", text(&file)]);
        assert!(why.contains("office.toml:4: ") && why.contains("which is not this lab's"), "{why}");
        assert_eq!((site.names("/run/netns"), id()), (vec!["office.gate".into()], before));
        assert_eq!(site.names("/run/unetmap-labs"), [".lock"]);
    });
}

/// The kernel has given the number of a lab's namespace, which has ended, to another one, whose name is the same.
#[test]
fn a_namespace_with_the_number_of_a_labs_one_is_not_removed() {
    isolated_with_interfaces(|home| {
        let Some(site) = Site::new(home) else { return };
        let file = site.write("two.toml", "[host.a]\n[host.b]\n[[link]]\nends = [\"a\", \"b\"]\n");
        site.done(&["up", text(&file)]);
        // As if its own one had another cookie.
        let path = site.path("/run/unetmap-labs/two/state.json");
        let mut state: Value = serde_json::from_slice(&fs::read(&path).expect("the lab's state")).expect("JSON");
        let Some(cookie) = state["namespaces"]["two.a"]["cookie"].as_u64() else {
            site.done(&["down", "two"]);
            return summary("skipped: cookies of network namespaces need Linux 5.14");
        };
        state["namespaces"]["two.a"]["cookie"] = (cookie + (1 << 40)).into();
        fs::write(&path, state.to_string()).expect("the lab's state");
        let why = site.refused(&["up", text(&file)]);
        assert!(why.contains("the namespace two.a is no longer there"), "{why}");
        site.done(&["down", "two"]);
        assert_eq!(site.names("/run/netns"), ["two.a"]);
        assert!(site.command(&["ip", "netns", "del", "two.a"]).status().expect("nsenter").success());
        site.assert_nothing_is_left();
    });
}

/// A name has nothing mounted at it when a program was killed between making or removing the two. `ip netns add` begins
/// with a file without permissions.
#[test]
fn names_without_a_namespace_are_removed_with_their_lab() {
    isolated_with_interfaces(|home| {
        let Some(site) = Site::new(home) else { return };
        let file = site.write("two.toml", "[host.a]\n[host.b]\n[[link]]\nends = [\"a\", \"b\"]\n");
        let done = |words: &[&str]| assert!(site.command(words).status().expect("nsenter").success(), "{words:?}");
        for others in [false, true] {
            site.done(&["up", text(&file)]);
            done(&["umount", "/run/netns/two.a"]);
            if others {
                done(&["chmod", "0", "/run/netns/two.a"]);
            }
            site.done(&["down", "two"]);
            assert_eq!(site.names("/run/netns"), ["two.a"][..usize::from(others)]);
        }
        done(&["rm", "/run/netns/two.a"]);
        site.assert_nothing_is_left();
    });
}

#[test]
fn a_lab_whose_building_was_killed_is_removed_and_built() {
    isolated_with_interfaces(|home| {
        let Some(site) = Site::new(home) else { return };
        let hosts: String = (0..40).map(|i| format!("[host.h{i}]\n")).collect();
        let links: String = (1..40).map(|i| format!("[[link]]\nends = [\"h0\", \"h{i} 10.0.0.{i}/32\"]\n")).collect();
        let file = site.write("star.toml", &format!("{hosts}{links}"));
        let all = [text(&program("unetmap")), "lab", "up", text(&file)].map(str::to_owned);
        let words: Vec<&str> = all.iter().map(String::as_str).collect();
        for names in [1, 40] {
            let mut building = Guard::spawn(site.command(&words).stdout(Stdio::null()));
            until("it is being built", || {
                site.names("/run/netns").len() >= names || building.0.try_wait().expect("our child").is_some()
            });
            // nsenter has become the program.
            building.kill();
            until("its programs have ended", || site.processes().is_empty());
        }
        site.done(&["up", text(&file)]);
        site.done(&["down", "star"]);
        site.assert_nothing_is_left();
    });
}

/// Frames to the addresses that bridges keep for themselves: spanning tree, LACP, LLDP.
#[test]
fn frames_that_bridges_keep_pass_links_and_switches() {
    isolated_with_interfaces(|home| {
        let Some(site) = Site::new(home) else { return };
        let lab = "[host.a]\n[host.b]\n[switch.s]\n[[link]]\nends = [\"a\", \"s\"]\ndelay = \"1ms\"\n\
                   [[link]]\nends = [\"b\", \"s\"]\nqueue = 500\n[[capture]]\nat = \"b\"\nfile = \"b.pcap\"\n";
        let file = site.write("l.toml", lab);
        let frame = |last: u8, kind: [u8; 2]| {
            [&[1, 0x80, 0xc2, 0, 0, last, 2, 0, 0, 0, 0, 1][..], &kind, &[last; 1386]].concat()
        };
        let sent = [frame(0, [5, 0x6a]), frame(2, [0x88, 9]), frame(14, [0x88, 0xcc])];
        fs::write(home.folder().join("in.pcap"), pcap_file(&sent)).expect("our own folder");
        site.done(&["up", text(&file)]);
        let (unetmap, capture) = (program("unetmap"), home.folder().join("in.pcap"));
        site.run("l.a", &[text(&unetmap), "replay", text(&capture), "netmap:eth0", "--quiet"]);
        until("all have come", || {
            let counters = site.run("l.b", &["cat", "/proc/net/dev"]);
            let line = counters.lines().find_map(|line| line.trim().strip_prefix("eth0:").map(str::to_owned));
            let bytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            // What the hosts' stacks say is less.
            bytes.expect("a number") >= 3 * 1400
        });
        site.done(&["down", "l"]);
        let came: Vec<Vec<u8>> =
            read_pcap(&home.folder().join("b.pcap")).into_iter().map(|packet| packet.bytes).collect();
        for frame in &sent {
            assert!(came.contains(frame), "{:02x?} is not among {} frames", &frame[..14], came.len());
        }
        site.assert_nothing_is_left();
    });
}

/// Runs a script as root of a user namespace, with networks and a `/run` of its own.
fn in_user_namespace(home: &Home, script: &str) -> Output {
    let bin = program("unetmap").parent().expect("a file in a folder").to_owned();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("unshare");
    shell.args(["--user", "--map-root-user", "--net", "--mount", "bash", "-euo", "pipefail", "-c"]);
    shell.arg(format!("mount -t tmpfs none /run\n{script}")).env("PATH", path).stdin(Stdio::null());
    shell.current_dir(home.folder()).output().expect("unshare")
}

#[test]
fn a_user_namespace_is_enough() {
    isolated_with_interfaces(|home| {
        let possible = in_user_namespace(home, "ip link add name v0 type veth peer name v1");
        if !possible.status.success() {
            return summary("skipped: no user namespace can be made here");
        }
        let script = format!(
            "cat >/run/office.toml <<'EOF'\n{OFFICE}EOF\ncd /run\nunetmap lab up office.toml --json >/dev/null\n\
             ip netns exec office.pc ping -c 3 -i 0.2 -w 100 10.2.0.1 >/dev/null\nunetmap lab down office\nls netns"
        );
        let output = in_user_namespace(home, &script);
        let said = String::from_utf8_lossy(&output.stdout);
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said == "office is removed\n", "{said}{why}");
    });
}

/// The commands of docs/lab.md, each block with a `/run` of its own.
#[test]
fn the_commands_of_the_document_run() {
    isolated_with_interfaces(|home| {
        let Some(site) = Site::new(home) else { return };
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/lab.md");
        let document = fs::read_to_string(document).expect("a document");
        let blocks: Vec<_> = document.split("```sh\n").skip(1).filter_map(|block| block.split("```").next()).collect();
        assert!(blocks.len() > 1, "{}", blocks.len());
        let bin = program("unetmap").parent().expect("a file in a folder").to_owned();
        let path = format!("PATH={}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        for block in blocks {
            let script = format!("cd '{}'\n{block}", home.folder().display());
            let output = site.command(&["env", &path, "bash", "-euo", "pipefail", "-c", &script]).output();
            let output = output.expect("nsenter");
            assert!(output.status.success(), "{block}: {}", String::from_utf8_lossy(&output.stderr));
        }
        site.assert_nothing_is_left();
    });
}
