// SPDX-License-Identifier: BSD-2-Clause
//! Tests of the program: exit status, output, and the packets that it sends and receives.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tool_common::testing::{TIMEOUT, TestDaemon, TestProcess};
use unetmap_capture::testing::{Pcap, read_file};

const PKT_GEN: &str = env!("CARGO_BIN_EXE_pkt-gen");

fn daemon() -> Option<TestDaemon> {
    TestDaemon::start_beside(PKT_GEN)
}

fn start(daemon: &TestDaemon, args: &str) -> TestProcess {
    TestProcess::start(&mut daemon.command("pkt-gen", args))
}

fn interrupt(running: &TestProcess) {
    let pid = Pid::from_raw(running.0.id() as i32).expect("a pid");
    kill_process(pid, Signal::INT).expect("it runs");
}

fn write_capture(path: &Path, packets: &[Vec<u8>]) {
    fs::write(path, Pcap::usual().records(packets).bytes).expect("a file");
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

#[test]
fn wrong_command_lines_exit_with_2_and_failures_with_1() {
    let Some(daemon) = daemon() else { return };
    for (args, status, part) in [
        // Wrong for the parser, wrong in combination, and invalid port names.
        ("-f rx", 2, "--port"),
        ("-i p{1 --nonsense", 2, "--nonsense"),
        ("-i p{1 -f tx -l 41", 2, "-l 41"),
        ("-i p{1 -a 100000", 2, "-a 100000"),
        ("-i p{1 -I", 2, "-I"),
        ("-i p{1 -f ping -6", 2, "-6"),
        ("-i p{1 -f rx -P x", 2, "-P"),
        ("-i p{1 -M 7", 2, "-M"),
        ("-i tap:x", 2, "tap:"),
        ("-i netmap:p{", 2, "netmap:p{"),
        ("-i p{1@conf:slats=4", 2, "slats"),
        // Valid, but not possible on this machine or port.
        ("-i no_such_if0 -f rx", 1, "no_such_if0"),
        ("-i p{1 -f tx -l 5000 -w 0", 1, "-l 5000"),
        ("-i p{1 -p 2 -w 0", 1, "-p 2"),
        ("-i p{1/T -f rx -w 0", 1, "leave out /T"),
        ("-i p{1 -f tx -P /nowhere/x.pcap", 1, "/nowhere/x.pcap"),
        ("-i p{1 -f rx --write /nowhere/x.pcap -w 0", 1, "/nowhere/x.pcap"),
    ] {
        let (code, _, err) = start(&daemon, args).wait();
        assert_eq!(code, status, "{args}: {err}");
        assert!(err.contains(part), "{args}: {err}");
    }
}

#[test]
fn the_program_ends_without_a_message_when_its_output_is_closed() {
    let Some(daemon) = daemon() else { return };
    let _pong = start(&daemon, "-i p}9 -f pong -w 0 -T 0");
    for args in ["-i p{1 -f rx", "-i p{2 -f tx -R 100", "-i p{9 -f ping"] {
        let mut running = start(&daemon, &format!("{args} --json -T 20 -w 0"));
        let mut lines = BufReader::new(running.0.stdout.take().expect("a pipe")).lines();
        let first = lines.next().expect("a report").expect("text");
        assert_eq!(objects(&first)[0]["event"], "interval", "{args}");
        drop(lines);
        let begin = Instant::now();
        let (code, _, err) = running.wait();
        assert_eq!(code, 0, "{args}: {err}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{args}");
        assert!(!err.contains("pipe") && !err.contains("panicked"), "{args}: {err}");
    }
}

#[test]
fn lost_output_is_reported() {
    let Some(daemon) = daemon() else { return };
    if !std::path::Path::new("/dev/full").exists() {
        return eprintln!("skipped: no /dev/full here");
    }
    let mut command = daemon.command("pkt-gen", "-i p{1 -f rx -w 0 -T 0 --json");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let mut running =
        TestProcess(command.stdout(full).stderr(std::process::Stdio::piped()).spawn().expect("it starts"));
    running.await_note("Ready");
    interrupt(&running);
    let (code, _, err) = running.wait();
    assert_eq!(code, 1);
    assert!(err.contains("standard output") && err.contains("No space left"), "{err}");
}

#[test]
fn signals_are_blocked_in_the_reporting_thread_only() {
    let Some(daemon) = daemon() else { return };
    let mut running = start(&daemon, "-i p{1 -f rx -w 0 -T 0");
    running.await_note("Ready");
    let pid = running.0.id();
    // Whether each thread blocks SIGINT, the main thread last.
    let blocks = || {
        let blocks = |tid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).expect("a thread");
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a mask").trim();
            u64::from_str_radix(mask, 16).expect("a number") & 1 << (Signal::INT.as_raw() - 1) != 0
        };
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
        let tids = tasks.map(|task| task.expect("a thread").file_name().to_string_lossy().parse().expect("a number"));
        let mut all: Vec<_> = tids.filter(|tid| *tid != pid).map(blocks).collect();
        all.push(blocks(pid));
        all
    };
    let begin = Instant::now();
    while blocks() != [false, true] {
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", blocks());
        std::thread::sleep(Duration::from_millis(10));
    }
    interrupt(&running);
    assert_eq!(running.wait().0, 0);
}

#[test]
fn a_ping_without_any_answer_fails() {
    let Some(daemon) = daemon() else { return };
    let ping = start(&daemon, "-i p{1 -f ping -n 1 -w 0");
    let (code, out, err) = ping.wait();
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("0 answers, 1 lost"), "{out}");
    assert!(err.contains("none of 1 pings was answered"), "{err}");
}

#[test]
fn ping_measures_by_the_times_of_slots() {
    let Some(daemon) = daemon() else { return };
    let _pong = start(&daemon, "-i p}1 -f pong -w 0 -T 0");
    for burst in [1, 20] {
        let args = format!("-i p{{1 -f ping -n 200 -b {burst} -w 0 -T 0 --json");
        let (code, out, err) = start(&daemon, &format!("{args} --slot-times")).wait();
        assert_eq!(code, 0, "{err}");
        let summary = objects(&out).pop().expect("a summary");
        assert_eq!(summary["answers"], 200, "{summary}");
        let min = summary["rtt_ns"]["min"].as_u64().expect("a number");
        assert!((1..1_000_000_000).contains(&min), "{summary}");
    }
    let (code, _, err) = start(&daemon, "-i p{1 -f tx --slot-times -w 0").wait();
    assert!(code == 2 && err.contains("only with -f ping"), "{err}");
}

#[test]
fn ping_reports_have_the_documented_members() {
    let Some(daemon) = daemon() else { return };
    let pong = start(&daemon, "-i p}1 -f pong -w 0 -T 0");
    let (code, out, err) = start(&daemon, "-i p{1 -f ping -n 300 -R 1000 -T 50 -w 0 --json").wait();
    assert_eq!(code, 0, "{err}");
    let objects = objects(&out);
    let (summary, intervals) = objects.split_last().expect("a summary");
    assert!(!intervals.is_empty(), "{out}");
    let every = ["event", "function", "packets", "bytes", "seconds", "pps", "bps", "batches", "avg_batch", "min_space"];
    let mut answers = 0;
    for interval in intervals {
        for key in every.iter().chain(&["answers"]) {
            assert!(!interval[key].is_null(), "{key}: {interval}");
        }
        assert!(interval["event"] == "interval" && interval["function"] == "ping", "{interval}");
        let count = interval["answers"].as_u64().expect("a number");
        assert_eq!(interval["rtt_ns"]["avg"].is_u64() && interval["rtt_ns"]["min"].is_u64(), count > 0, "{interval}");
        answers += count;
    }
    assert!(answers > 0 && answers <= 300, "{out}");
    assert_eq!((&summary["event"], &summary["answers"], &summary["lost"]), (&"summary".into(), &300.into(), &0.into()));
    interrupt(&pong);
    assert_eq!(pong.wait().0, 0);
}

#[test]
fn pings_and_their_answers_are_dumped() {
    let Some(daemon) = daemon() else { return };
    let pong = start(&daemon, "-i p}1 -f pong -w 0 -T 0 -n 3 -X");
    let (code, out, err) = start(&daemon, "-i p{1 -f ping -n 3 -w 0 -T 0 -X -S 02:00:00:00:00:01").wait();
    assert_eq!(code, 0, "{err}");
    let (pong_code, pong_out, pong_err) = pong.wait();
    assert_eq!(pong_code, 0, "{pong_err}");
    // Both programs print each ping and each answer. The answer's source is the broadcast address.
    let there = "    0: ff ff ff ff ff ff 02 00 00 00 00 01 08 00 45 00";
    let back = "    0: 02 00 00 00 00 01 ff ff ff ff ff ff 08 00 45 00";
    for text in [&out, &pong_out] {
        assert_eq!((text.matches(there).count(), text.matches(back).count()), (3, 3), "{text}");
        assert_eq!(text.matches(" len 60\n").count(), 6, "{text}");
    }
}

#[test]
fn a_capture_is_replayed_repeatedly() {
    let Some(daemon) = daemon() else { return };
    let (from, to) = (daemon.folder().join("from.pcap"), daemon.folder().join("to.pcap"));
    // Broadcast packets of different lengths.
    let packet = |n: u8| [&[0xff; 6][..], &vec![n + 1; 54 + 100 * usize::from(n)][..]].concat();
    // With rings of 16 slots, each slot gets the same packet again, another one, or each packet only once. Between
    // ports of one region, buffers are exchanged.
    for (packets, [there, here]) in [
        (2, ["pr}1", "pr{1"]),
        (3, ["ps}1", "ps{1"]),
        (40, ["pt}1", "pt{1"]),
        (2, ["valer:b", "valer:a"]),
        (3, ["vales:b", "vales:a@share=vales:b"]),
        (8, ["valet:b", "valet:a@share=valet:b"]),
    ] {
        let packets: Vec<_> = (0..packets).map(packet).collect();
        write_capture(&from, &packets);
        // The receiver's ring has room for all packets, so that the switch drops none.
        let room = if here.starts_with("vale") { 1024 } else { 16 };
        let args = format!("-i {there} -f rx -n 300 -C 16,{room} -w 0 -T 0 --write {}", to.display());
        let mut rx = start(&daemon, &args);
        rx.await_note("Ready");
        let args = format!("-i {here} -f tx -n 300 -C 16,16 -w 0 -T 0 -P {}", from.display());
        let (code, out, err) = start(&daemon, &args).wait();
        assert!(code == 0 && out.starts_with("Sent 300 packets"), "{here}: {out}{err}");
        assert_eq!(rx.wait().0, 0, "{here}");
        let received = read_file(&to);
        let sent = packets.iter().cycle().take(300);
        assert!(received.iter().eq(sent), "{here}: {} packets differ from those sent", received.len());
    }
}

/// As the manual has it: a sender waits for its first receiver without limit, and 5 seconds for one that is gone.
#[test]
fn a_sender_ends_after_its_receiver() {
    let Some(daemon) = daemon() else { return };
    let mut early = start(&daemon, "-i e{1 -f tx -w 0 -T 0");
    early.await_note("Ready");
    early.await_note("pkt-gen: netmap:e{1: its ring is full: waiting for a receiver");
    let senders = [("p", ""), ("q", "-R 1M"), ("r", "-F 3")].map(|(pipe, args)| {
        let mut tx = start(&daemon, &format!("-i {pipe}{{1 -f tx -w 0 -T 0 {args}"));
        tx.await_note("Ready");
        let (code, _, err) = start(&daemon, &format!("-i {pipe}}}1 -f rx -n 10k -w 0 -T 0")).wait();
        assert_eq!(code, 0, "{err}");
        tx
    });
    for tx in senders {
        let (code, out, err) = tx.wait();
        assert!(code == 1 && out.starts_with("Sent ") && err.contains("the peer has not released"), "{out}{err}");
    }
    assert!(early.0.try_wait().expect("our child").is_none(), "a sender without a receiver ended");
    interrupt(&early);
    assert_eq!(early.wait().0, 0);
}

#[test]
fn a_receiver_with_an_idle_ring_ends() {
    let Some(daemon) = daemon() else { return };
    let mut rx = start(&daemon, "-i p}1@conf:rings=2 -f rxseq -p 2 -W -w 0 -T 0 --json");
    rx.await_note("Ready");
    // txseq uses the first ring only.
    let (code, _, err) = start(&daemon, "-i p{1@conf:rings=2 -f txseq -n 1000 -w 0 -T 0").wait();
    assert_eq!(code, 0, "{err}");
    let (code, out, err) = rx.wait();
    assert_eq!(code, 0, "{err}");
    let summary = &objects(&out)[0];
    assert_eq!((&summary["packets"], &summary["threads"]), (&1000.into(), &2.into()));
    assert_eq!((&summary["gaps"], &summary["missing"]), (&0.into(), &0.into()));
}

#[test]
fn unmet_requests_for_slots_and_rings_are_reported() {
    let Some(daemon) = daemon() else { return };
    let first_note = |args: &str| {
        let mut running = start(&daemon, args);
        let mut lines = BufReader::new(running.0.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
        let first_note = lines.find(|line| line.contains("in place of") || line.starts_with("Ready")).expect("a line");
        interrupt(&running);
        first_note
    };
    let line = first_note("-i a{1@conf:slots=100000 -w 0");
    assert!(line.contains("tx slots in place of 100000") && line.contains("rx slots in place of 100000"), "{line}");
    let line = first_note("-i b{1 -C 100000,64 -w 0");
    assert!(line.contains("tx slots in place of 100000") && !line.contains("in place of 64"), "{line}");
    assert_eq!(first_note("-i c{1 -C 64,64,2,2 -w 0"), "Ready...");
    // The second program to open the pipe gets the existing numbers.
    let mut first = start(&daemon, "-i d{1 -C 64 -w 0");
    first.await_note("Ready");
    let begin = Instant::now();
    while first_note("-i d}1 -C 64 -w 0") != "Ready..." {
        assert!(begin.elapsed() < TIMEOUT);
    }
    let line = first_note("-i d}1 -C 128 -p 1 -w 0");
    assert!(line.contains("64 tx slots in place of 128"), "{line}");
}

#[test]
fn the_wait_for_the_link_lasts_the_given_time() {
    let Some(daemon) = daemon() else { return };
    let _rx = start(&daemon, "-i w}1 -f rx -w 0 -T 0");
    for (option, least) in [("", 2), ("-w 1", 1), ("-w 0", 0)] {
        let begin = Instant::now();
        let (code, _, err) = start(&daemon, &format!("-i w{{1 -f tx -n 1 -T 0 {option}")).wait();
        assert_eq!(code, 0, "{err}");
        assert!(begin.elapsed() >= Duration::from_secs(least), "{option}");
        assert_eq!(err.contains(&format!("Waiting {least} s for the link")), least > 0, "{err}");
    }
    // A signal also ends the wait.
    let mut running = start(&daemon, "-i w{2 -f rx -w 1000");
    running.await_note("Waiting 1000 s");
    interrupt(&running);
    let (code, out, _) = running.wait();
    assert_eq!((code, out.trim()), (0, "Received nothing."));
}

#[test]
fn the_examples_of_the_man_page_are_valid_command_lines() {
    let Some(daemon) = daemon() else { return };
    let page = include_str!("../man.roff").replace("\\-", "-");
    let (_, examples) = page.split_once(".SH EXAMPLES").expect("a section");
    let (examples, _) = examples.split_once(".SH ").expect("a next section");
    let commands: Vec<&str> = examples
        .lines()
        .filter(|line| line.starts_with("    "))
        .filter_map(|l| l.split_once("pkt-gen "))
        .map(|(_, args)| args)
        .collect();
    assert!(commands.len() >= 5, "{commands:?}");
    assert!(!page.contains("vale0:"), "examples use pipes and interfaces only");
    for args in commands {
        // With an invalid option added, the status is 2, and the message is about that option only.
        let args = args.replace('\'', "");
        let mut command: Command = daemon.command("pkt-gen", &args);
        let (code, _, err) = TestProcess::start(command.args(["-H", "11"])).wait();
        assert!(code == 2 && err.contains("--vnet-hdr"), "{args}: {err}");
    }
}
