// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap capture` and `unetmap replay`: replays a capture at one end of a pipe and captures it at the other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pcap::{Capture, Precision};
use serde_json::Value;
use tool_common::testing::{TIMEOUT, TestDaemon, TestProcess};

/// Returns frame `i` of a test: UDP to port 5000 + i % 2, 64 + i bytes.
fn frame(i: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; 12];
    bytes.extend([8, 0, 0x45, 0]);
    bytes.extend((50 + i as u16).to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9]);
    bytes.extend((5000 + (i % 2) as u16).to_be_bytes());
    bytes.extend((30 + i as u16).to_be_bytes());
    bytes.resize(64 + i, i as u8);
    bytes
}

/// Writes a pcap file of `frames` frames with timestamps `gap` apart.
fn file(folder: &Path, frames: usize, gap: Duration) -> PathBuf {
    let path = folder.join("in.pcap");
    let mut bytes: Vec<u8> =
        [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65535, 1].iter().flat_map(|w| w.to_le_bytes()).collect();
    for i in 0..frames {
        let (frame, time) = (frame(i), Duration::from_secs(1_700_000_000) + gap * i as u32);
        let words = [time.as_secs() as u32, time.subsec_nanos(), frame.len() as u32, frame.len() as u32];
        bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        bytes.extend(frame);
    }
    fs::write(&path, bytes).unwrap();
    path
}

/// Returns the timestamps and contents of a capture's packets.
fn packets(path: &Path) -> Vec<(Duration, Vec<u8>)> {
    let mut capture = Capture::from_file_with_precision(path, Precision::Nano).unwrap();
    let mut all = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        let ts = packet.header.ts;
        all.push((Duration::new(ts.tv_sec as u64, ts.tv_usec as u32), packet.data.to_vec()));
    }
    all
}

fn bytes(path: &Path) -> Vec<Vec<u8>> {
    packets(path).into_iter().map(|(_, bytes)| bytes).collect()
}

/// Starts a capture on `port`, and waits until the port is open.
fn capture(daemon: &TestDaemon, port: &str, args: &str) -> TestProcess {
    let running = TestProcess::start(&mut daemon.command("unetmap", &format!("capture {port} {args}")));
    wait_for_port(daemon, port.trim_start_matches("netmap:"));
    running
}

fn wait_for_port(daemon: &TestDaemon, name: &str) {
    let begin = Instant::now();
    // The daemon adds a number to the names of monitors.
    let is_ours = |session: &Value| session["port"].as_str().is_some_and(|port| port.split('#').next() == Some(name));
    loop {
        let all = daemon.command("unetmap", "ls --json").output().unwrap().stdout;
        let all: Value = serde_json::from_slice(&all).unwrap();
        if all["sessions"].as_array().unwrap().iter().any(is_ours) {
            return;
        }
        assert!(begin.elapsed() < TIMEOUT, "{name} is not opened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn replay(daemon: &TestDaemon, args: &str) -> Value {
    let (status, out, err) =
        TestProcess::start(&mut daemon.command("unetmap", &format!("replay --json {args}"))).wait();
    assert_eq!(status, 0, "{args}: {out}{err}");
    serde_json::from_str(&out).unwrap()
}

/// Returns an option of a pcapng file's last block, which has the interface's counters.
fn counter(path: &Path, code: u16) -> u64 {
    let bytes = fs::read(path).unwrap();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let block = bytes.len() - word(bytes.len() - 4) as usize;
    assert_eq!(word(block), 5, "the last block is the interface's statistics");
    let mut at = block + 20;
    while bytes[at..at + 2] != code.to_ne_bytes() {
        at += 4 + usize::from(u16::from_ne_bytes(bytes[at + 2..at + 4].try_into().unwrap())).next_multiple_of(4);
    }
    u64::from_ne_bytes(bytes[at + 4..at + 12].try_into().unwrap())
}

#[test]
fn replayed_packets_are_captured() {
    let Some(daemon) = TestDaemon::start_beside(env!("CARGO_BIN_EXE_unetmap")) else { return };
    let gap = Duration::from_millis(2);
    let input = file(daemon.folder(), 100, gap);
    let [ng, old] = ["out.pcapng", "out.pcap"].map(|name| daemon.folder().join(name));

    let running = capture(&daemon, "netmap:a}1", &format!("--json -c 50 -w {} udp port 5000", ng.display()));
    let reported = replay(&daemon, &format!("{} netmap:a{{1", input.display()));
    assert_eq!(reported["packets"], 100);
    assert!(reported["seconds"].as_f64().unwrap() >= (99 * gap).as_secs_f64(), "{reported}");
    let (status, out, err) = running.wait();
    let reported: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &reported["accepted"], &reported["dropped"]), (0, &50.into(), &0.into()), "{out}{err}");
    let got = packets(&ng);
    let even: Vec<_> = (0..100).step_by(2).map(frame).collect();
    assert_eq!(got.iter().map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>(), even);
    // The second to last packet was sent 98 gaps after the first. A packet is not captured before it is sent.
    let span = got.last().unwrap().0.saturating_sub(got[0].0);
    assert!(span > gap * 40, "{span:?}");
    assert_eq!([4, 5, 6].map(|code| counter(&ng, code)), [reported["received"].as_u64().unwrap(), 0, 50]);

    // Replays the captured file three times at a rate, and captures in the other format.
    let running = capture(&daemon, "netmap:b}1", &format!("-c 150 -s 70 -w {}", old.display()));
    assert_eq!(replay(&daemon, &format!("{} netmap:b{{1 --rate 10k --loop 3", ng.display()))["packets"], 150);
    assert_eq!(running.wait().0, 0);
    let cut: Vec<_> = even.iter().map(|frame| frame[..frame.len().min(70)].to_vec()).collect();
    assert_eq!(bytes(&old), [&cut[..], &cut, &cut].concat());
    assert_eq!(replay(&daemon, &format!("{} netmap:b{{1 --rate max", old.display()))["cut"], 138);
}

#[test]
fn a_size_limit_splits_the_capture_and_old_files_are_removed() {
    let Some(daemon) = TestDaemon::start_beside(env!("CARGO_BIN_EXE_unetmap")) else { return };
    let input = file(daemon.folder(), 100, Duration::ZERO);
    let out = daemon.folder().join("ring.pcapng");
    let args = format!("--json -c 100 --file-size 2k --files 3 -w {}", out.display());
    let running = capture(&daemon, "netmap:f}1", &args);
    assert_eq!(replay(&daemon, &format!("{} netmap:f{{1", input.display()))["packets"], 100);
    let (status, reported, err) = running.wait();
    assert_eq!(status, 0, "{err}");
    let reported: Value = serde_json::from_str(&reported).unwrap();
    let files = reported["files"].as_u64().unwrap();
    assert!(files > 6, "{reported}");
    let name = |number: u64| daemon.folder().join(format!("ring_{number:05}.pcapng"));
    let kept: Vec<_> = (1..=files).filter(|number| name(*number).exists()).collect();
    assert_eq!(kept, [files - 2, files - 1, files]);
    let last: Vec<_> = kept.iter().flat_map(|number| bytes(&name(*number))).collect();
    let all: Vec<_> = (0..100).map(frame).collect();
    assert_eq!(last, all[100 - last.len()..], "the last packets, in order, none twice");
    assert!(kept.iter().all(|number| fs::metadata(name(*number)).unwrap().len() <= 2000));
    assert_eq!(counter(&name(files), 4), 100);
}

/// In a file system of 256 KiB.
#[test]
fn a_capture_on_a_full_disk_reports_its_packets_and_leaves_a_readable_file() {
    let Some(daemon) = TestDaemon::start_beside(env!("CARGO_BIN_EXE_unetmap")) else { return };
    let disk = daemon.folder().join("disk");
    fs::create_dir(&disk).unwrap();
    let namespace = ["--map-root-user", "--mount"];
    let mount = format!("mount -t tmpfs -o size=256k none {}", disk.display());
    let tried = Command::new("unshare").args(namespace).args(["sh", "-c", &mount]).output().expect("util-linux");
    if !tried.status.success() {
        return eprintln!("skipped: no file system of its own: {}", String::from_utf8_lossy(&tried.stderr));
    }
    let input = file(daemon.folder(), 900, Duration::ZERO);
    for (name, port) in [("full.pcap", "y"), ("full.pcapng", "z")] {
        let (on_disk, kept) = (disk.join(name), daemon.folder().join(name));
        let script = format!(
            "{mount} && {} capture 'netmap:{port}}}1' --json -w {1}; status=$?; cp {1} {2}; exit $status",
            env!("CARGO_BIN_EXE_unetmap"),
            on_disk.display(),
            kept.display()
        );
        let mut command = Command::new("unshare");
        let running = TestProcess::start(daemon.set_environment(command.args(namespace).args(["sh", "-c", &script])));
        replay(&daemon, &format!("{} netmap:{port}{{1 --rate max", input.display()));
        let (status, out, err) = running.wait();
        let reported: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
        let written = bytes(&kept);
        let in_files =
            format!("; {} packets are in the files, the last {} are not", written.len(), 900 - written.len());
        assert!(status == 1 && err.contains("No space left") && err.contains(&in_files), "{err}");
        assert!(written.len() > 500 && written.len() < 900, "{}", written.len());
        assert!(written.iter().enumerate().all(|(i, bytes)| *bytes == frame(i)));
        let all: usize = written.iter().map(Vec::len).sum();
        assert_eq!((&reported["accepted"], &reported["bytes"]), (&written.len().into(), &all.into()), "{err}");
    }
}

/// `--loop 0` sends until a signal.
#[test]
fn an_endless_replay_ends_at_a_signal_and_needs_packets() {
    let Some(daemon) = TestDaemon::start_beside(env!("CARGO_BIN_EXE_unetmap")) else { return };
    let input = file(daemon.folder(), 10, Duration::ZERO);
    let out = daemon.folder().join("out.pcap");
    let capturing = capture(&daemon, "netmap:l}1", &format!("-c 1k -w {}", out.display()));
    let args = format!("replay --json {} netmap:l{{1 --rate 1M --loop 0", input.display());
    let running = TestProcess::start(&mut daemon.command("unetmap", &args));
    assert_eq!(capturing.wait().0, 0);
    let pid = rustix::process::Pid::from_raw(running.0.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let (status, reported, err) = running.wait();
    let reported: Value = serde_json::from_str(&reported).unwrap_or_else(|e| panic!("{e}: {reported}{err}"));
    assert!(status == 0 && reported["packets"].as_u64() >= Some(1000), "{reported}{err}");
    assert_eq!(bytes(&out), (0..1000).map(|i| frame(i % 10)).collect::<Vec<_>>());

    let empty = file(daemon.folder(), 0, Duration::ZERO);
    let args = format!("replay {} netmap:l{{1 --loop 0", empty.display());
    let (status, _, err) = TestProcess::start(&mut daemon.command("unetmap", &args)).wait();
    assert!(status == 1 && err.contains("it contains no packet"), "{status}: {err}");
}

#[test]
fn the_duration_ends_a_capture_without_packets() {
    let Some(daemon) = TestDaemon::start_beside(env!("CARGO_BIN_EXE_unetmap")) else { return };
    let out = daemon.folder().join("none.pcapng");
    let begin = Instant::now();
    let running = capture(&daemon, "netmap:t}1", &format!("--duration 0.7 -w {}", out.display()));
    let (status, _, err) = running.wait();
    assert_eq!(status, 0);
    assert!(begin.elapsed() >= Duration::from_millis(700));
    assert!(err.contains("0 packets captured, 0 received, 0 dropped"), "{err}");
    assert!(packets(&out).is_empty());
    assert_eq!(counter(&out, 4), 0);
}

#[test]
fn invalid_arguments_and_files_are_refused_with_a_reason() {
    let Some(daemon) = TestDaemon::start_beside(env!("CARGO_BIN_EXE_unetmap")) else { return };
    let folder = daemon.folder().display();
    let text = daemon.folder().join("text");
    fs::write(&text, "no capture").unwrap();
    let mut raw = fs::read(file(daemon.folder(), 1, Duration::ZERO)).unwrap();
    raw[20] = 101;
    fs::write(daemon.folder().join("raw.pcap"), raw).unwrap();
    for (args, part) in [
        (format!("capture netmap:x}}1 -w {folder}/a udp port"), "does not compile: can't parse filter"),
        (format!("capture netmap:x}}1 -w {folder}/no/a"), "No such file or directory"),
        (format!("capture netmap:nowhere -w {folder}/a"), "nowhere"),
        (format!("capture netmap:x}}1/T -w {folder}/a"), "no receive rings"),
        (format!("capture netmap:x}}1 -w {folder}/a --files 2"), "--file-size"),
        ("capture netmap:x}1 -w - --file-size 1k".into(), "standard output"),
        (format!("capture netmap:x}}1 -w {folder}/a -s 0"), "give a number from 1 to 262144"),
        (format!("replay {folder}/text netmap:x{{1"), "not a pcap or pcapng file"),
        (format!("replay {folder}/none netmap:x{{1"), "No such file"),
        (format!("replay {folder}/raw.pcap netmap:x{{1"), "link type RAW (101); only Ethernet packets can be sent"),
        (format!("replay {folder}/in.pcap netmap:x{{1/R"), "no transmit rings"),
        (format!("replay {folder}/in.pcap netmap:x{{1 --rate 0"), "a number above 0"),
        ("replay - netmap:x{1 --loop 2".into(), "only once"),
    ] {
        let (status, out, err) = TestProcess::start(&mut daemon.command("unetmap", &args)).wait();
        assert!(status != 0 && err.contains(part), "{args}: {status}: {out}{err}");
    }
}

/// The times of a capture are those of the syncs that moved the packets, and the file says so.
#[test]
fn a_capture_has_the_times_of_syncs_and_their_source() {
    let Some(daemon) = TestDaemon::start_beside(env!("CARGO_BIN_EXE_unetmap")) else { return };
    let folder = tempfile::tempdir().unwrap();
    let input = file(folder.path(), 20, Duration::from_micros(1));
    let epoch = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    for (port, source) in [("netmap:p}1", "port's sync delivered"), ("netmap:p{1/t", "monitored port's sync moved")] {
        let out = folder.path().join("times.pcapng");
        // The port that is monitored, and its other end.
        let _ends = [TestProcess::start(&mut daemon.command("pkt-gen", "-i p{1 -f rx -w 0 -T 0"))];
        wait_for_port(&daemon, "p{1");
        let begin = epoch();
        let running = capture(&daemon, port, &format!("-w {} -c 20", out.display()));
        replay(&daemon, &format!("{} netmap:p{{1 --rate max", input.display()));
        let (status, _, err) = running.wait();
        assert_eq!(status, 0, "{err}");
        let (all, slack) = (packets(&out), Duration::from_millis(1));
        assert_eq!(all.len(), 20, "{port}");
        let span = begin - slack..=epoch() + slack;
        assert!(all.iter().all(|(time, _)| span.contains(time)), "{port}: {all:?}");
        assert!(all.is_sorted_by_key(|(time, _)| *time), "{port}");
        assert!(String::from_utf8_lossy(&fs::read(&out).unwrap()).contains(source), "{port}");
    }
}
