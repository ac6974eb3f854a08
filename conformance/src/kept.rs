// SPDX-License-Identifier: BSD-2-Clause
//! Daemons that go on after a crash (`--keep-ports`).

use std::fs::File;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::home::{Guard, Home, program, until};
use crate::net::{CABLE, Net};

/// Starts a daemon that keeps its ports, with this fault injected, if any.
#[track_caller]
pub fn start(home: &Home, fault: Option<&str>) -> Guard {
    let mut daemon = Command::new(program("unetmapd"));
    daemon.args(["--foreground", "--idle-exit", "0", "--keep-ports", "--socket"]).arg(home.socket());
    daemon.envs(fault.map(|fault| ("UNETMAP_FAULT", fault)));
    let log = File::options().append(true).create(true).open(home.log()).expect("a file");
    let daemon = Guard::spawn(daemon.stdin(Stdio::null()).stderr(log));
    until("the daemon serves", || home.serves());
    daemon
}

/// Waits until all ports that are open are kept, or, if none is, until those would be that are opened.
#[track_caller]
pub fn wait_until_kept(home: &Home) {
    let is_kept = || {
        let now = home.try_snapshot();
        now.is_some_and(|now| now.daemon.crash_protection.on && now.daemon.kept_sessions == now.sessions.len())
    };
    until("the ports are kept", is_kept);
}

/// A daemon that keeps its ports, with interfaces.
#[track_caller]
pub fn net(home: &Home, policy: &str) -> Option<Net> {
    Net::with(home, policy, CABLE, &["--keep-ports"])
}

/// Kills the daemon; returns the process that serves afterwards.
#[track_caller]
pub fn kill(home: &Home) -> Pid {
    let before = home.daemon();
    kill_process(before, Signal::KILL).expect("our own daemon");
    successor(home, before)
}

/// Waits for the process that serves after one that has crashed.
#[track_caller]
pub fn successor(home: &Home, before: Pid) -> Pid {
    let serving = || home.try_snapshot().and_then(|snapshot| Pid::from_raw(snapshot.daemon.pid as i32));
    until("another process serves", || serving().is_some_and(|now| now != before));
    home.daemon()
}
