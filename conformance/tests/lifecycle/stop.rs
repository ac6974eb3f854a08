// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap stop`.

use std::fs::{File, Permissions, set_permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

use conformance::home::{Guard, is_alive, summary};
use conformance::net::public_copy;
use conformance::traffic::open;
use conformance::{Home, isolated, program, until};
use rustix::process::{Pid, geteuid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

fn stop(args: &[&str]) -> Output {
    let mut command = Command::new(program("unetmap"));
    command.arg("stop").args(args).stdin(Stdio::null()).output().expect("it starts")
}

#[track_caller]
fn stopped(args: &[&str]) -> String {
    let output = stop(args);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The daemon's processes.
fn processes(home: &Home) -> Vec<Pid> {
    let daemon = home.snapshot().daemon;
    let pids = [daemon.pid, daemon.privileged_pid].map(|pid| Pid::from_raw(pid.cast_signed()));
    pids.into_iter().flatten().collect()
}

#[track_caller]
fn assert_ended(home: &Home, processes: &[Pid]) {
    assert!(!home.serves() && !home.socket().exists(), "it has left its socket");
    // Their descriptors are closed; the kernel ends them and init takes their status a moment later.
    until("its processes have ended", || !processes.iter().any(|pid| is_alive(*pid)));
}

/// A program that has this port open.
fn receiver(home: &Home, port: &str) -> Guard {
    let mut command = Command::new(program("pkt-gen"));
    command.args(["-f", "rx", "-w", "0", "-i", &format!("netmap:{port}")]);
    let receiver = Guard::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
    until("it has the port open", || home.serves() && home.snapshot().ports.iter().any(|open| open.name == port));
    receiver
}

#[test]
fn a_daemon_without_ports_is_stopped_and_none_is_no_error() {
    isolated(|home| {
        assert_eq!(stopped(&[]), "no daemon is running\n");
        drop(open("netmap:p{1"));
        let processes = processes(home);
        let text = stopped(&[]);
        assert!(text.starts_with(&format!("the daemon at {} (process ", home.socket().display())), "{text}");
        assert!(text.ends_with("has ended, and closed no ports\n"), "{text}");
        assert_ended(home, &processes);
        // With another process that would go on after a crash.
        let mut daemon = Command::new(program("unetmapd"));
        assert!(daemon.args(["--keep-ports", "--idle-exit", "0"]).output().expect("it starts").status.success());
        let processes = self::processes(home);
        assert_eq!(serde_json::from_str::<Value>(&stopped(&["--json"])).expect("JSON")["ends"], true);
        assert_ended(home, &processes);
        home.assert_serves();
    });
}

#[test]
fn open_ports_are_closed_only_if_that_is_wanted() {
    isolated(|home| {
        let mut receiver = receiver(home, "p}1");
        let (processes, pid) = (processes(home), receiver.0.id());
        let refused = stop(&[]);
        let why = format!("this would close p}}1 of pkt-gen ({pid}) (end the programs first, or --force)\n");
        assert_eq!(String::from_utf8_lossy(&refused.stderr), format!("unetmap: stop: {why}"));
        assert_eq!((refused.status.code(), home.serves()), (Some(1), true));
        let reply: Value = serde_json::from_str(&stopped(&["--force", "--json"])).expect("JSON");
        let port = &reply["ports"][0];
        assert_eq!(
            (&port["kind"], &port["port"], &port["program"]),
            (&"open".into(), &"p}1".into(), &"pkt-gen".into())
        );
        assert_eq!((port["pid"].as_u64(), reply["ports"].as_array().map(Vec::len)), (Some(pid.into()), Some(1)));
        assert_eq!(reply["socket"], home.socket().to_str().expect("text"));
        assert_ended(home, &processes);
        assert!(!receiver.wait().success(), "its port has ended");
    });
}

#[test]
fn a_terminal_is_asked() {
    isolated(|home| {
        let _receiver = receiver(home, "p}1");
        let processes = processes(home);
        for (answer, ends) in [("\n", false), ("n\n", false), ("y\n", true)] {
            let mut main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).map(File::from).expect("a terminal");
            grantpt(&main).and_then(|()| unlockpt(&main)).expect("our own terminal");
            let name = ptsname(&main, Vec::new()).expect("a name").into_string().expect("text");
            let terminal = || File::options().read(true).write(true).open(&name).expect("our own terminal");
            let mut command = Command::new(program("unetmap"));
            let command = command.arg("stop").stdin(terminal()).stdout(Stdio::null()).stderr(terminal());
            let mut stop = Guard::spawn(command);
            let (mut text, mut byte) = (Vec::new(), [0]);
            while !text.ends_with(b"Stop the daemon? [y/N] ") {
                main.read_exact(&mut byte).expect("a question");
                text.push(byte[0]);
            }
            main.write_all(answer.as_bytes()).expect("a terminal");
            assert_eq!((stop.wait().success(), home.serves()), (ends, !ends), "{answer:?}");
            assert!(String::from_utf8_lossy(&text).contains("p}1 of pkt-gen ("));
        }
        assert_ended(home, &processes);
    });
}

#[test]
fn another_users_daemon_is_not_stopped() {
    isolated(|home| {
        if !geteuid().is_root() {
            return summary("skipped: only root can be several users");
        }
        set_permissions(home.folder(), Permissions::from_mode(0o755)).expect("our own folder");
        let _port = open("netmap:p{1");
        let unetmap = public_copy(home.folder(), &program("unetmap").display().to_string());
        let mut command = Command::new(unetmap);
        let output = command.uid(4001).gid(4001).args(["stop", "--force"]).output().expect("it starts");
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && why.contains("user 4001"), "{why}");
        home.assert_serves();
    });
}
