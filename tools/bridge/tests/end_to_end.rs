// SPDX-License-Identifier: BSD-2-Clause
//! Tests of the program: exit status, output and forwarded packets.

use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tool_common::testing::{TestDaemon, TestProcess};

const BRIDGE: &str = env!("CARGO_BIN_EXE_bridge");

fn start(daemon: &TestDaemon, args: &str) -> TestProcess {
    TestProcess::start(&mut daemon.command("bridge", args))
}

/// Reads the program's standard error until a line begins with `beginning`. Returns the earlier lines.
fn await_note(running: &mut TestProcess, beginning: &str) -> Vec<String> {
    let mut lines = BufReader::new(running.0.stderr.as_mut().expect("a pipe")).lines();
    let mut seen = Vec::new();
    while let Some(Ok(line)) = lines.next() {
        if line.starts_with(beginning) {
            return seen;
        }
        seen.push(line);
    }
    panic!("no `{beginning}` in {seen:?}");
}

fn interrupt(running: &TestProcess) {
    let pid = Pid::from_raw(running.0.id() as i32).expect("a pid");
    kill_process(pid, Signal::INT).expect("it runs");
}

#[test]
fn wrong_command_lines_exit_with_2_and_failures_with_1() {
    let Some(daemon) = TestDaemon::start_beside(BRIDGE) else { return };
    for (args, status, part) in [
        ("", 2, "no port given"),
        ("-i a{1 -i a}1 --nonsense", 2, "--nonsense"),
        ("-i a{1", 2, "give a second port"),
        ("a{1 a{2 x", 2, "the burst"),
        ("-i a{ -i b{1", 2, "netmap:a{"),
        ("-w 0 -i no_such_if0 -i b{1", 1, "no_such_if0"),
    ] {
        let (code, _, err) = start(&daemon, args).wait();
        assert_eq!(code, status, "{args}: {err}");
        assert!(err.contains(part), "{args}: {err}");
    }
}

#[test]
fn bridge_waits_for_the_link_and_reports_unmet_requests() {
    let Some(daemon) = TestDaemon::start_beside(BRIDGE) else { return };
    for (option, least) in [("", 2), ("-w 1", 1)] {
        let begin = Instant::now();
        let mut bridge = start(&daemon, &format!("{option} -i p}}1@conf:slots=100000 -i q{{1"));
        let before = await_note(&mut bridge, "Ready to go");
        assert!(begin.elapsed() >= Duration::from_secs(least));
        assert!(before.iter().any(|line| line.contains("tx slots in place of 100000")), "{before:?}");
        interrupt(&bridge);
        let (code, out, _) = bridge.wait();
        assert!(code == 0 && out.starts_with("Forwarded 0 packets"), "{out}");
    }
    // A signal also ends the wait.
    let bridge = start(&daemon, "-w 1000 -i p}1 -i q{1");
    std::thread::sleep(Duration::from_millis(300));
    interrupt(&bridge);
    // -1: the signal may have arrived before the handler was installed.
    assert!(matches!(bridge.wait().0, 0 | -1));
}

#[test]
fn all_packets_are_forwarded_in_order() {
    let Some(daemon) = TestDaemon::start_beside(BRIDGE) else { return };
    for (name, options) in [("swap", ""), ("copy", "-c")] {
        let mut bridge = start(&daemon, &format!("-w 0 {options} -i {name}}}1 -i {name}{{2 --json"));
        await_note(&mut bridge, "Ready to go");
        let mut rx =
            TestProcess::start(&mut daemon.command("pkt-gen", &format!("-i {name}}}2 -f rxseq -n 5000 -w 0 -T 0")));
        await_note(&mut rx, "Ready");
        let tx =
            TestProcess::start(&mut daemon.command("pkt-gen", &format!("-i {name}{{1 -f txseq -n 5000 -w 0 -T 0")));
        let (code, _, err) = tx.wait();
        assert_eq!(code, 0, "{err}");
        let (code, out, err) = rx.wait();
        assert!(code == 0 && out.contains("Received 5000 packets") && out.contains("0 gaps, 0 missing"), "{out}{err}");
        interrupt(&bridge);
        let (code, out, _) = bridge.wait();
        let summary: serde_json::Value = serde_json::from_str(out.trim()).expect("an object");
        assert_eq!((code, &summary["packets"], &summary["zero_copy"]), (0, &5000.into(), &(name == "swap").into()));
    }
}
