// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap replay`, `pkt-gen -P` and streams of `pkt-gen` send the same packets of a capture.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use tool_common::testing::{TestDaemon, TestProcess};
use unetmap_capture::testing::{Sample, read_file, samples};

/// Bytes at a packet's end that streams replace by their signature.
const SIGNATURE: usize = 18;
/// Most bytes of a packet in these tests.
const BUFFER: usize = 2048;

/// Runs `program args` at one end of a pipe until it ends. Returns its exit status and output, and the packets that
/// arrived, of which `count` are awaited.
fn sent(daemon: &TestDaemon, program: &str, args: &str, count: usize) -> (i32, String, String, Vec<Vec<u8>>) {
    let to = daemon.folder().join("to.pcap");
    let mut receiver = TestProcess::start(
        &mut daemon.command("pkt-gen", &format!("-i s}}1 -f rx -n {count} -w 0 -T 0 --write {}", to.display())),
    );
    receiver.await_note("Ready");
    let (status, out, err) = TestProcess::start(&mut daemon.command(program, args)).wait();
    let (received, _, note) = receiver.wait();
    assert_eq!(received, 0, "{program} {args}: {note}");
    (status, out, err, read_file(&to))
}

/// Sends a sample by all three, and compares.
fn check(daemon: &TestDaemon, sample: &Sample) {
    let (name, count, damaged) = (&sample.name, sample.frames.len(), !sample.damage.is_empty());
    let path = daemon.folder().join(name);
    fs::write(&path, &sample.bytes).unwrap();
    let file = path.display();
    for (program, args) in [
        ("unetmap", format!("replay --json --rate max {file} netmap:s{{1")),
        ("pkt-gen", format!("-i s{{1 -f tx -w 0 -T 0 -P {file}")),
    ] {
        let (status, out, err, got) = sent(daemon, program, &args, count);
        assert_eq!(status, i32::from(damaged), "{name}: {args}: {out}{err}");
        assert_eq!(got, sample.frames, "{name}: {args}");
        for part in sample.notes.iter().chain([&sample.damage]) {
            assert!(err.contains(part), "{name}: {args}: no `{part}` in {err}");
        }
        if program == "unetmap" {
            let line: Value = serde_json::from_str(&out).unwrap();
            let bytes: usize = sample.frames.iter().map(Vec::len).sum();
            assert_eq!((&line["packets"], &line["bytes"]), (&count.into(), &bytes.into()), "{name}: {line}");
        }
    }
    let streams = daemon.folder().join("streams.toml");
    let stream = |i| format!("[[stream]]\nrate = 1\ncount = 1\nstart = \"{i}ms\"\npcap = \"{name}\"\npacket = {i}\n");
    fs::write(&streams, (1..=count).map(stream).collect::<String>()).unwrap();
    let args = format!("-i s{{1 -w 0 --streams {}", streams.display());
    let (status, _, err, got) = sent(daemon, "pkt-gen", &args, count);
    assert_eq!(status, 0, "{name}: {err}");
    let kept = |frames: &[Vec<u8>]| {
        frames.iter().map(|frame| (frame.len(), frame[..frame.len() - SIGNATURE].to_vec())).collect::<Vec<_>>()
    };
    assert_eq!(kept(&got), kept(&sample.frames), "{name}: streams");
}

#[test]
fn all_programs_send_the_same_packets_of_a_capture() {
    let Some(daemon) = TestDaemon::start_beside(env!("CARGO_BIN_EXE_unetmap")) else { return };
    for sample in samples() {
        assert!(sample.frames.iter().all(|frame| frame.len() < BUFFER));
        check(&daemon, &sample);
    }
}

/// A pipe has no second beginning.
#[test]
fn replay_reads_standard_input_and_pipes_once() {
    let Some(daemon) = TestDaemon::start_beside(env!("CARGO_BIN_EXE_unetmap")) else { return };
    let sample = samples().into_iter().find(|sample| sample.name == "link-types.pcapng").unwrap();
    let path = daemon.folder().join("in.pcapng");
    fs::write(&path, &sample.bytes).unwrap();
    for (name, args) in [("-", ""), ("/dev/stdin", ""), ("-", "--loop 2"), ("/dev/stdin", "--loop 0")] {
        let mut cat = Command::new("cat").arg(&path).stdout(Stdio::piped()).spawn().unwrap();
        let mut command = daemon.command("unetmap", &format!("replay --json --rate max {name} netmap:s{{1 {args}"));
        let (status, out, err) = TestProcess::start(command.stdin(cat.stdout.take().unwrap())).wait();
        // Its end of the pipe, so that cat does not wait for a reader.
        drop(command);
        cat.wait().unwrap();
        if !args.is_empty() {
            assert!(status == 2 && err.contains("can be read only once"), "{name}: {status}: {err}");
            continue;
        }
        let line: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
        assert_eq!((status, &line["packets"], &line["skipped"]), (0, &3.into(), &3.into()), "{err}");
        assert_eq!(line["left"], 3, "nobody receives");
        assert!(err.contains("2 packets of link type LINUX_SLL (113)"), "{err}");
    }
}

/// On a terminal, for a pipe without a receiver, and with one.
#[test]
fn the_progress_bar_counts_packets_that_were_sent() {
    let Some(daemon) = TestDaemon::start_beside(env!("CARGO_BIN_EXE_unetmap")) else { return };
    if Command::new("script").arg("--version").stdout(Stdio::null()).status().is_err() {
        return eprintln!("skipped: script (package bsdutils) provides the terminal");
    }
    let path = daemon.folder().join("in.pcapng");
    let sample = samples().into_iter().find(|sample| sample.name == "link-types.pcapng").unwrap();
    fs::write(&path, &sample.bytes).unwrap();
    let bar = |pipe: &str, part: &str| {
        let replay =
            format!("{} replay {} 'netmap:{pipe}{{1' --rate max", env!("CARGO_BIN_EXE_unetmap"), path.display());
        let mut command = Command::new("script");
        daemon.set_environment(command.args(["-qec", &replay, "/dev/null"]).stdin(Stdio::null()));
        let (status, out, err) = TestProcess::start(&mut command).wait();
        let last = out.lines().find(|line| line.contains('[')).and_then(|line| line.trim_end().rsplit('\r').next());
        assert!(status == 0 && last.is_some_and(|line| line.contains(part)), "{part}: {out}{err}");
        out
    };
    let printed = bar("nobody", "]   0 %, 0 packets");
    assert!(printed.contains("3 packets, 303 bytes") && printed.contains("not released 3 of them"), "{printed}");
    let mut receiver = TestProcess::start(&mut daemon.command("pkt-gen", "-i all}1 -f rx -n 3 -w 0 -T 0"));
    receiver.await_note("Ready");
    let printed = bar("all", "] 100 %, 3 packets");
    assert!(!printed.contains("not released"), "{printed}");
    assert_eq!(receiver.wait().0, 0);
}
