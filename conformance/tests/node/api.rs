// SPDX-License-Identifier: BSD-2-Clause
//! The node: a `/dev/netmap` for programs that neither link nor load the library.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::c::{Running, compile};
use conformance::home::{Guard, is_alive, summary, wait_within};
use conformance::node::{STATIC, StartedProgram, Stopped, detach_once, is_unetmap_mount, node, unetmap_node};
use conformance::traffic::{expect, open, send};
use conformance::{LIMIT, Node, isolated, until};
use rustix::process::{Pid, Signal, kill_process};
use unetmap::Interest;

fn start(node: &Node, program: &Path, args: &[&str]) -> Running {
    let what = format!("{} {}", program.display(), args.join(" "));
    Running::spawn(&what, node.command(program).args(args))
}

#[test]
fn a_static_program_sends_to_another() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let pipe = compile(home, "pipe", &STATIC);
        let receiver = start(&node, &pipe, &["receive", "c}1", "20000"]);
        let sender = start(&node, &pipe, &["send", "c{1", "20000"]);
        assert_eq!(sender.output(), "20000\n");
        assert_eq!(receiver.output(), "20000\n");
        until("both sessions are over", || home.snapshot().sessions.is_empty());
    });
}

/// A command for a program whose first argument is the device's path.
fn with_device(node: &Node, program: &str, more: &[&Path], args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(more).arg(node.path()).args(args);
    command
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

#[test]
fn go_without_cgo_and_python_exchange_packets() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let python = source("python/pipe.py");
        if Command::new("python3").arg("--version").output().is_err() {
            return summary("skipped: no python3 (apt-get install python3)");
        }
        let run = |what: &[&str]| Running::spawn("python", &mut with_device(&node, "python3", &[&python], what));
        let (receiver, sender) = (run(&["receive", "y}1", "5000"]), run(&["send", "y{1", "5000"]));
        assert_eq!((sender.output(), receiver.output()), ("5000\n".into(), "5000\n".into()));

        let go = ["/usr/local/go/bin/go", "go"].into_iter().find(|go| Command::new(go).arg("version").output().is_ok());
        let Some(go) = go else { return summary("python alone; skipped: no go (apt-get install golang)") };
        let program = home.folder().join("go-pipe");
        let mut build = Command::new(go);
        build.args(["build", "-o"]).arg(&program).arg(source("go/pipe.go"));
        build.env("CGO_ENABLED", "0").env("GO111MODULE", "off").env("GOFLAGS", "");
        // Building Go's standard library takes a minute, once.
        build.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go")).env("GOPATH", home.folder().join("go"));
        assert!(build.status().expect("go starts").success(), "pipe.go does not compile");
        let program = program.display().to_string();
        let go = |what: &[&str]| Running::spawn("go", &mut with_device(&node, &program, &[], what));
        let (receiver, sender) = (go(&["receive", "g}1", "50000"]), go(&["send", "g{1", "50000"]));
        assert_eq!((sender.output(), receiver.output()), ("50000\n".into(), "50000\n".into()));
        let (receiver, sender) = (run(&["receive", "g}2", "5000"]), go(&["send", "g{2", "5000"]));
        assert_eq!((sender.output(), receiver.output()), ("5000\n".into(), "5000\n".into()));
    });
}

#[test]
fn io_uring_waits_for_packets() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let printed = start(&node, &compile(home, "uring", &STATIC), &["netmap:u}1", "netmap:u{1"]).output();
        match printed.as_str() {
            "ok\n" => {}
            why => summary(&format!("skipped: {why}")),
        }
    });
}

#[test]
fn netmap_files_support_all_file_operations() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let fds = compile(home, "fds", &STATIC);
        for what in [
            "dup",
            "fork",
            "exec",
            "scm-rights",
            "poll",
            "signals",
            "select",
            "epoll",
            "between-calls",
            "fork-while-polling",
            "many-opens",
        ] {
            assert_eq!(start(&node, &fds, &[what]).output(), "ok\n", "{what}");
            until("all is given back", || home.snapshot().sessions.is_empty());
        }
        let own = compile(home, "node", &STATIC);
        assert_eq!(start(&node, &own, &["file"]).output(), "ok\n");
    });
}

#[test]
fn the_node_interoperates_with_the_other_access_methods() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let pipe = compile(home, "pipe", &STATIC);
        // Opened first by the library, then by the node, and the other way around. It is the second region of the
        // user's file.
        let other = open("netmap:before{1");
        for first in [true, false] {
            let early = first.then(|| open("netmap:w}1"));
            let sender = start(&node, &pipe, &["send", "w{1", "3000"]);
            if !first {
                until("the program has its end", || home.snapshot().sessions.len() == 2);
            }
            let here = early.unwrap_or_else(|| open("netmap:w}1"));
            for done in 0..3000u64 {
                let ring = &here.rx_rings()[0];
                while ring.is_empty() {
                    assert!(here.poll(Interest::RX, Some(LIMIT)).expect("the daemon runs").rx(), "packet {done}");
                }
                let mut word = [0; 8];
                ring.available().next().expect("a packet").frame().read(0, &mut word);
                assert_eq!(u64::from_ne_bytes(word), done);
                ring.advance(1);
            }
            here.rxsync().expect("the daemon runs");
            assert_eq!(sender.output(), "3000\n");
            drop(here);
            until("both ends are closed", || home.snapshot().sessions.len() == 1);
        }
        drop(other);
        home.assert_serves();
    });
}

#[test]
fn open_files_are_spread_over_several_fuse_mounts() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let mount = home.folder().join("unetmapd.sock.node");
        let open = || fs::File::options().read(true).write(true).open(node.path()).expect("the node");
        let device = |file: &fs::File| file.metadata().expect("an open file").dev();
        let mut files: Vec<fs::File> = (0..4).map(|_| open()).collect();
        let ways: BTreeSet<u64> = files.iter().map(device).collect();
        assert_eq!(ways.len(), files.len(), "each has one to itself, while there are enough");
        // A process that sees only the topmost mount finds the file there.
        let first = fs::metadata(&mount).expect("it is mounted").dev();
        let script =
            "mkdir \"$1\" && mount --bind \"$0\" \"$1\" && stat -L -c %d \"$1/netmap\" && exec 3<>\"$1/netmap\"";
        let mut alone = Command::new("unshare");
        alone.args(["--mount", "--propagation", "private", "--", "sh", "-c", script]).arg(&mount);
        let output = alone.arg(home.folder().join("alone")).output().expect("unshare starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), first.to_string());
        // So does every process after one mount was detached.
        detach_once(&mount.join("1")).expect("a mount");
        files.extend((0..8).map(|_| open()));
        assert!(unetmap_node(home, &["status", "--json"]).1.contains("\"files\":12,"));
        files.truncate(2);
        until("closed ones are gone", || unetmap_node(home, &["status", "--json"]).1.contains("\"files\":2,"));
        assert!(unetmap_node(home, &["off"]).0);
        assert!(unetmap_node(home, &["status", "--json"]).1.contains("\"left\":2"));
        drop(files);
        until("nothing is left", || unetmap_node(home, &["status", "--json"]).1.contains("\"left\":0"));
        assert!(!mount.exists());
        home.assert_serves();
    });
}

#[test]
fn a_region_created_before_the_node_cannot_be_mapped() {
    isolated(|home| {
        let (tx, rx) = (open("netmap:old{1"), open("netmap:old}1"));
        let Some(node) = node(home) else { return };
        let own = compile(home, "node", &STATIC);
        let refused = node.command(&own).args(["sleeps", "old}1"]).output().expect("it starts");
        assert!(!refused.status.success());
        let printed = String::from_utf8_lossy(&refused.stderr);
        assert!(printed.contains("Device or resource busy"), "{printed}");
        send(&tx, 1, 0, 10).expect("room");
        expect(&rx, 1, 0, 10);
        drop((tx, rx));
        until("the region is closed", || home.snapshot().regions.is_empty());
        let mut asleep = StartedProgram::start(&node, &own, &["sleeps", "old}1"]);
        assert_eq!(asleep.line, "asleep");
        asleep.guard.kill();
    });
}

#[test]
fn requests_with_bad_or_changing_pointers_are_safe() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let own = compile(home, "node", &STATIC);
        for what in ["pointers", "options", "changing-arguments"] {
            assert_eq!(start(&node, &own, &[what]).output(), "ok\n", "{what}");
            until("all is given back", || home.snapshot().regions.is_empty());
        }
        home.assert_serves();
    });
}

#[test]
fn signals_interrupt_nothing() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        assert_eq!(start(&node, &compile(home, "node", &STATIC), &["signals"]).output(), "ok\n");
    });
}

#[test]
fn ten_thousand_opens_leak_nothing() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let own = compile(home, "node", &STATIC);
        assert_eq!(start(&node, &own, &["cycles"]).output(), "ok\n");
        until("all is given back", || home.snapshot().regions.is_empty());
        let before = (home.daemon_fds(), home.daemon_kib("VmRSS:"));
        // While other regions exist, so that the file stays.
        let kept = StartedProgram::start(&node, &own, &["sleeps", "kept{1"]);
        for _ in 0..3 {
            let three = ["t{1", "other{1", "third{1"].map(|name| start(&node, &own, &["cycles", name]));
            three.into_iter().for_each(|one| assert_eq!(one.output(), "ok\n"));
        }
        for region in home.snapshot().regions {
            assert_eq!(region.buffers.missing, 0, "{region:?}");
        }
        drop(kept);
        until("all is given back", || home.snapshot().regions.is_empty());
        home.until_fds(before.0);
        let after = home.daemon_kib("VmRSS:");
        assert!(after < before.1 + 8192, "{} KiB resident, then {after}", before.1);
        let (_, status) = unetmap_node(home, &["status", "--json"]);
        assert!(status.contains("\"files\":0,\"ports\":0,\"left\":0"), "{status}");
        summary(&format!("10000 opens and closes, {} files open before and no more after", before.0));
    });
}

#[test]
fn programs_killed_in_a_poll_or_a_request_leave_nothing() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let own = compile(home, "node", &STATIC);
        for round in 0..20 {
            let mut asleep = StartedProgram::start(&node, &own, &["sleeps", "k{1"]);
            assert_eq!(asleep.line, "asleep");
            std::thread::sleep(Duration::from_micros(round * 250));
            asleep.guard.signal(Signal::KILL);
            assert!(wait_within(&mut asleep.guard.0, LIMIT).is_some(), "killed in a poll, it lives on");
            until("its port is free", || home.snapshot().sessions.is_empty());
        }
        let mut stuck = StartedProgram::start(&node, &own, &["stuck", "k{2"]);
        let Some(keeper) = stuck.line.parse().ok().and_then(Pid::from_raw) else {
            return summary(&format!("skipped in part: {}", stuck.line));
        };
        std::thread::sleep(Duration::from_millis(100));
        // The daemon waits for memory that is never provided, and still serves others.
        home.assert_serves();
        let pipe = compile(home, "pipe", &STATIC);
        let receiver = start(&node, &pipe, &["receive", "c}1", "2000"]);
        assert_eq!(start(&node, &pipe, &["send", "c{1", "2000"]).output(), "2000\n");
        assert_eq!(receiver.output(), "2000\n");
        assert!(is_alive(stuck.guard.pid()));
        stuck.guard.signal(Signal::KILL);
        assert!(wait_within(&mut stuck.guard.0, LIMIT).is_some(), "killed in a request, it lives on");
        home.assert_serves();
        kill_process(keeper, Signal::KILL).expect("the test's own process");
        until("nothing is left of it", || home.snapshot().sessions.is_empty());
        until("no file is left of it", || unetmap_node(home, &["status"]).1.contains("; 0 open"));
    });
}

#[test]
fn calls_wait_for_a_stopped_daemon_and_fail_after_it_is_killed() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let (own, pipe) = (compile(home, "node", &STATIC), compile(home, "pipe", &STATIC));
        let daemon = home.daemon();
        let mut victim = StartedProgram::start(&node, &own, &["sleeps", "v{1"]);
        // A poll that the daemon has read waits as long as the daemon is stopped.
        std::thread::sleep(Duration::from_millis(500));
        let stopped = Stopped::new(daemon);
        let receiver = start(&node, &pipe, &["receive", "s}1", "3000"]);
        let sender = start(&node, &pipe, &["send", "s{1", "3000"]);
        // A poll or an open that the daemon has not read can be interrupted.
        let mut opening = Guard::spawn(&mut node.command(&pipe));
        opening.0.kill().expect("our child");
        victim.guard.signal(Signal::KILL);
        assert!(wait_within(&mut victim.guard.0, LIMIT).is_some() && wait_within(&mut opening.0, LIMIT).is_some());
        assert!(is_alive(receiver.pid()) && is_alive(sender.pid()));
        drop(stopped);
        assert_eq!((sender.output(), receiver.output()), ("3000\n".into(), "3000\n".into()));

        let asleep = StartedProgram::start(&node, &own, &["sleeps", "d{1"]);
        let bereaved = start(&node, &compile(home, "fds", &STATIC), &["daemon-killed"]);
        let mut traffic = ["receive", "send"].map(|what| {
            let name = if what == "send" { "s{2" } else { "s}2" };
            Guard::spawn(node.command(&pipe).args([what, name, "2000000000"]).stderr(Stdio::null()))
        });
        until("all have their ports", || home.snapshot().sessions.len() == 5);
        std::thread::sleep(Duration::from_millis(100));
        kill_process(daemon, Signal::KILL).expect("our daemon");
        asleep.exits_successfully();
        assert_eq!(bereaved.output(), "ok\n");
        for program in &mut traffic {
            let status = wait_within(&mut program.0, LIMIT).expect("no program hangs");
            assert!(!status.success(), "{status}");
        }
        // The mount of the killed daemon is replaced.
        assert!(fs::metadata(node.path()).is_err());
        let (on, printed) = unetmap_node(home, &["on", &node.path().display().to_string()]);
        assert!(on, "{printed}");
        let receiver = start(&node, &pipe, &["receive", "s}1", "3000"]);
        assert_eq!(start(&node, &pipe, &["send", "s{1", "3000"]).output(), "3000\n");
        assert_eq!(receiver.output(), "3000\n");
        assert!(home.daemon() != daemon);
    });
}

#[test]
fn node_on_and_off_leave_other_mounts_untouched() {
    isolated(|home| {
        let theirs = home.folder().join("theirs");
        fs::write(&theirs, "precious").expect("our folder");
        if let Err(why) = Node::mounted(home) {
            return summary(&format!("skipped: {why}"));
        }
        let (path, mount) = (home.folder().join("netmap"), home.folder().join("unetmapd.sock.node"));
        let run = |args: &[&str]| unetmap_node(home, args);
        let (at, theirs_) = (path.display().to_string(), theirs.display().to_string());
        let (on, printed) = run(&["on", &at]);
        assert!(on, "twice is once: {printed}");
        assert!(run(&["status"]).1.starts_with("on: "));
        let (on, printed) = run(&["on", &theirs_]);
        assert!(!on && printed.contains("unetmap node off"), "{printed}");
        assert!(!run(&["off", &theirs_]).0);
        // Its files stay usable until they are closed, and the daemon with them.
        let own = compile(home, "node", &STATIC);
        let mut command = Command::new(&own);
        command.args(["sleeps", "late{1"]).stdout(Stdio::piped());
        let device = Node::mounted(home).expect("it is on");
        let mut open_file = StartedProgram::start(&device, &own, &["sleeps", "late{1"]);
        assert!(run(&["off", &at]).0);
        assert!(!path.exists() && fs::symlink_metadata(&path).is_err() && !mount.exists());
        assert!(run(&["status", "--json"]).1.contains("\"left\":1"));
        let peer = open("netmap:late}1");
        assert_eq!(home.snapshot().sessions.len(), 2);
        open_file.guard.kill();
        until("the port is given back", || home.snapshot().sessions.len() == 1);
        until("nothing is left", || run(&["status", "--json"]).1.contains("\"left\":0"));
        drop(peer);
        // An existing file at the path is not removed.
        let (on, printed) = run(&["on", &theirs_]);
        assert!(!on && printed.contains("is not the daemon's"), "{printed}");
        assert_eq!(fs::read_to_string(&theirs).expect("it is there"), "precious");
        assert!(!mount.exists());
        fs::create_dir(&mount).expect("our folder");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "theirs"]).arg(&mount).status().expect("mount starts");
        assert!(mounted.success());
        fs::write(mount.join("file"), "precious").expect("our file system");
        let outcome = (run(&["on", &at]), run(&["off"]));
        let kept = fs::read_to_string(mount.join("file"));
        assert!(Command::new("umount").arg(&mount).status().expect("umount starts").success());
        assert!(outcome.0.0 && outcome.1.0, "{outcome:?}");
        assert_eq!(kept.expect("it is there"), "precious");
        assert!(!is_unetmap_mount(&mount));
        // A daemon that exits by itself leaves nothing.
        assert!(run(&["on", &at]).0);
        home.end_daemon();
        assert!(fs::symlink_metadata(&path).is_err() && !mount.exists());
        assert!(run(&["off"]).1.contains("no daemon is running"));
    });
}

/// A user that is not root.
const USER: u32 = 65_534;
const OTHER: u32 = 65_533;

#[test]
fn each_user_has_its_own_memory_and_the_access_of_the_policy() {
    isolated(|home| {
        let policy = format!("[[rule]]\npipes = true\nusers = [{USER}]\n");
        let node = match Node::by(home, &policy) {
            Ok(node) => node,
            Err(why) => return summary(&format!("skipped: {why}")),
        };
        for path in [home.folder(), &home.folder().join("unetmapd.sock.node")] {
            let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        }
        let pipe =
            compile(home, "pipe", &[&STATIC[..], &[&format!("-DDEVICE=\"{}\"", node.path().display())]].concat());
        let run = |uid: u32, args: &[&str]| {
            let mut command = Command::new(&pipe);
            command.args(args).uid(uid).gid(uid).stderr(Stdio::piped());
            command
        };
        // The same names at the same time mean different ports for each user.
        let both = [0, USER].map(|uid| {
            let receiver = Running::spawn("receiver", &mut run(uid, &["receive", "m}1", "20000"]));
            (receiver, Running::spawn("sender", &mut run(uid, &["send", "m{1", "20000"])))
        });
        for (receiver, sender) in both {
            assert_eq!((sender.output(), receiver.output()), ("20000\n".into(), "20000\n".into()));
        }
        let refused = run(OTHER, &["send", "m{1", "1"]).output().expect("it starts");
        let printed = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && printed.contains("Permission denied"), "{printed}");
        let mut on = Command::new(conformance::program("unetmap"));
        on.args(["node", "off"]).env("UNETMAP_SOCKET", home.socket()).uid(USER).gid(USER);
        let refused = on.output();
        if let Ok(refused) = refused {
            assert!(!refused.status.success(), "{}", String::from_utf8_lossy(&refused.stdout));
        }
        assert!(unetmap_node(home, &["status"]).1.starts_with("on: "));
    });
}
