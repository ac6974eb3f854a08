// SPDX-License-Identifier: BSD-2-Clause
//! `--metrics` of programs, and the page of `unetmap metrics` with their counters.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use conformance::collector::Collector;
use conformance::forwarder::{Forwarder, receive};
use conformance::home::summary;
use conformance::net::transmit;
use conformance::traffic::open;
use conformance::{isolated, program, until};
use rustix::process::Signal;

use crate::flows::flows;
use crate::fw::{packet, start};

/// The page, in both formats.
#[track_caller]
fn page(format: &str) -> String {
    let mut unetmap = Command::new(program("unetmap"));
    let output = unetmap.arg("metrics").args(format.split_whitespace()).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Whether the page has a sample of this name, with these labels among others, and this value.
fn has(page: &str, name: &str, labels: &str, value: u64) -> bool {
    page.lines().any(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))
            && line.contains(labels)
            && line.ends_with(&format!("}} {value}"))
    })
}

#[test]
fn programs_show_their_counters() {
    isolated(|home| {
        let (near, far) = (open("netmap:p{1"), open("netmap:q}1"));
        let rules = "add 100 deny udp from any to any 20 // not \"here\"\nadd 200 allow ip from any to any // rest\n";
        let mut command = Command::new(program("unetmap-fw"));
        command.arg("--metrics");
        let fw = start(home, command, "netmap:p}1 netmap:q{1", rules);
        let collector = Collector::start();
        let args = format!("netmap:p{{1/t --metrics --idle 0.2 --to {}", collector.address());
        let mut recorder = Forwarder::start(&mut flows(&args));
        let frames = [vec![packet((1, 2), 20, 0, 0); 7], vec![packet((1, 2), 30, 0, 0); 5]].concat();
        transmit(&near, 0, &frames, 2048);
        receive(&far, 5, |_| true);
        until("the records have ended", || has(&page(""), "unetmap_flows_records_total", "reason=\"idle\"", 2));
        let pid = recorder.guard().0.id();
        for format in ["", "--openmetrics"] {
            let page = page(format);
            for (name, labels, value) in [
                ("unetmap_fw_rule_packets_total", "rule=\"100\",comment=\"not \\\"here\\\"\"", 7),
                ("unetmap_fw_rule_packets_total", "rule=\"200\",comment=\"rest\"", 5),
                ("unetmap_fw_rule_bytes_total", "rule=\"200\"", 300),
                ("unetmap_fw_dropped_packets_total", "program=\"unetmap-fw netmap:p}1 netmap:q{1\"", 7),
                ("unetmap_fw_passed_packets_total", "dir=\"out\"", 5),
                ("unetmap_fw_states", "pid=", 0),
                ("unetmap_fw_nat_lost_events_total", "pid=", 0),
                ("unetmap_flows_packets_total", "program=\"unetmap flows netmap:p{1/t\"", 12),
                ("unetmap_flows_packets_total", &format!("pid=\"{pid}\""), 12),
                ("unetmap_flows_unsent_records_total", "", 0),
            ] {
                assert!(has(&page, name, labels, value), "{name} {labels} {value}\n{page}");
            }
            if let Some(wrong) = promtool(&page).filter(|_| format.is_empty()) {
                panic!("{wrong}\n{page}");
            }
        }
        // Programs that have ended, or were killed, show nothing.
        recorder.guard().signal(Signal::KILL);
        recorder.guard().wait();
        fw.summary();
        let page = page("");
        assert!(!page.contains("unetmap_fw_") && !page.contains("unetmap_flows_"), "{page}");
        let names = fs::read_dir(home.folder()).expect("a folder").map(|entry| entry.expect("a name").file_name());
        let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("metrics-")).collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

/// The pipes of a firewall, with and without queues, and both directions of an emulated link.
#[test]
fn pipes_and_emulated_links_show_their_counters() {
    isolated(|home| {
        let (near, far) = (open("netmap:p{1"), open("netmap:q}1"));
        let rules = "pipe 1 config delay 1\npipe 2 config plr 1\nqueue 1 config pipe 2\n\
                     add pipe 1 udp from any to any 20 out\nadd pipe 2 udp from any to any 30 out\n\
                     add queue 1 udp from any to any 40 out\n";
        let mut command = Command::new(program("unetmap-fw"));
        command.arg("--metrics");
        let fw = start(home, command, "netmap:p}1 netmap:q{1", rules);
        let (left, right) = (open("netmap:r{1"), open("netmap:s}1"));
        let mut command = Command::new(program("unetmap"));
        command.args(["emulate", "r}1", "s{1", "--metrics", "--direction", "out", "--loss", "100%", "-w", "0"]);
        let emulate = Forwarder::start(&mut command);

        let of = |port: u16, n: usize| vec![packet((1, 2), port, 0, 0); n];
        transmit(&near, 0, &[of(30, 4), of(40, 3), of(20, 7)].concat(), 2048);
        receive(&far, 7, |_| true);
        transmit(&right, 0, &of(20, 5), 2048);
        receive(&left, 5, |_| true);
        transmit(&left, 0, &of(20, 6), 2048);
        let lost = ("unetmap_emulate_dropped_packets_total", "dir=\"out\",reason=\"loss\"", 6);
        until("the link has lost packets", || has(&page(""), lost.0, lost.1, lost.2));
        let page = page("");
        for (name, labels, value) in [
            ("unetmap_fw_pipe_packets_total", "pipe=\"1\",of=\"own\"", 7),
            ("unetmap_fw_pipe_bytes_total", "pipe=\"1\",of=\"own\"", 420),
            ("unetmap_fw_pipe_dropped_packets_total", "pipe=\"1\",of=\"own\"", 0),
            ("unetmap_fw_pipe_held_packets", "pipe=\"1\",of=\"own\"", 0),
            ("unetmap_fw_pipe_dropped_packets_total", "pipe=\"2\",of=\"own\"", 4),
            ("unetmap_fw_pipe_packets_total", "pipe=\"2\",of=\"queues\"", 3),
            ("unetmap_emulate_packets_total", "program=\"unetmap emulate netmap:r}1 netmap:s{1\"", 6),
            ("unetmap_emulate_packets_total", "dir=\"in\"", 5),
            ("unetmap_emulate_arrived_packets_total", "dir=\"in\"", 5),
            ("unetmap_emulate_arrived_bytes_total", "dir=\"in\"", 300),
            ("unetmap_emulate_arrived_packets_total", "dir=\"out\"", 0),
            ("unetmap_emulate_dropped_packets_total", "dir=\"in\",reason=\"loss\"", 0),
            ("unetmap_emulate_held_packets", "dir=\"out\"", 0),
        ] {
            assert!(has(&page, name, labels, value), "{name} {labels} {value}\n{page}");
        }
        assert!(!page.contains("pipe=\"1\",of=\"queues\""), "a pipe without queues\n{page}");
        if let Some(wrong) = promtool(&page) {
            panic!("{wrong}\n{page}");
        }
        fw.summary();
        emulate.summary();
    });
}

/// Nobody connects to a socket of another user, who could let the connection wait.
#[test]
fn sockets_of_other_users_are_not_asked() {
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: only root can make a file of another user");
        }
        let foreign = home.folder().join("metrics-1.sock");
        let listener = UnixListener::bind(&foreign).expect("a socket");
        chown(&foreign, Some(65534), None).expect("our own file");
        listener.set_nonblocking(true).expect("our own socket");
        page("");
        assert!(listener.accept().is_err_and(|e| e.kind() == ErrorKind::WouldBlock), "it was asked");
        chown(&foreign, Some(0), None).expect("our own file");
        page("");
        assert!(listener.accept().is_ok(), "root's own is asked");
    });
}

/// The faults that `promtool` finds in a page. `None`: there are none, or it is not installed.
fn promtool(page: &str) -> Option<String> {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().ok()?;
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), page.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    (!output.status.success()).then(|| String::from_utf8_lossy(&said).into_owned())
}
