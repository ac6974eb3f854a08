//! The program as scripts see it: exit status, output, and what it does to packets.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tool_common::testing::{House, LIMIT, Running};

const PKT_GEN: &str = env!("CARGO_BIN_EXE_pkt-gen");

fn house() -> Option<House> {
    House::beside(PKT_GEN)
}

fn start(house: &House, args: &str) -> Running {
    Running::start(&mut house.command("pkt-gen", args))
}

fn interrupt(running: &Running) {
    let pid = Pid::from_raw(running.0.id() as i32).expect("a pid");
    kill_process(pid, Signal::INT).expect("it runs");
}

/// Reads its standard error until a line begins so.
fn await_note(running: &mut Running, beginning: &str) {
    let mut lines = BufReader::new(running.0.stderr.as_mut().expect("a pipe")).lines();
    let mut seen = Vec::new();
    while let Some(Ok(line)) = lines.next() {
        if line.starts_with(beginning) {
            return;
        }
        seen.push(line);
    }
    panic!("no `{beginning}` in {seen:?}");
}

fn write_capture(path: &Path, packets: &[Vec<u8>]) {
    let mut writer = PcapWriter::new(File::create(path).expect("a file")).expect("a capture");
    for packet in packets {
        writer.write_packet(&PcapPacket::new(Duration::ZERO, packet.len() as u32, packet)).expect("room");
    }
}

fn read_capture(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(path).expect("a file")).expect("a capture");
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        packets.push(packet.expect("a whole packet").data.into_owned());
    }
    packets
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

#[test]
fn wrong_command_lines_end_with_2_and_failures_with_1() {
    let Some(house) = house() else { return };
    for (args, status, part) in [
        // What the parser finds, what takes two options to see, and names that are none.
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
        // What this machine, or the port, cannot do.
        ("-i no_such_if0 -f rx", 1, "no_such_if0"),
        ("-i p{1 -f tx -l 5000 -w 0", 1, "-l 5000"),
        ("-i p{1 -p 2 -w 0", 1, "-p 2"),
        ("-i p{1/T -f rx -w 0", 1, "leave out /T"),
        ("-i p{1 -f tx -P /nowhere/x.pcap", 1, "/nowhere/x.pcap"),
        ("-i p{1 -f rx --write /nowhere/x.pcap -w 0", 1, "/nowhere/x.pcap"),
    ] {
        let (code, _, err) = start(&house, args).end();
        assert_eq!(code, status, "{args}: {err}");
        assert!(err.contains(part), "{args}: {err}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_program_without_a_word() {
    let Some(house) = house() else { return };
    let _pong = start(&house, "-i p}9 -f pong -w 0 -T 0");
    for args in ["-i p{1 -f rx", "-i p{2 -f tx -R 100", "-i p{9 -f ping"] {
        let mut running = start(&house, &format!("{args} --json -T 20 -w 0"));
        let mut lines = BufReader::new(running.0.stdout.take().expect("a pipe")).lines();
        let first = lines.next().expect("a report").expect("text");
        assert_eq!(objects(&first)[0]["event"], "interval", "{args}");
        drop(lines);
        let begin = Instant::now();
        let (code, _, err) = running.end();
        assert_eq!(code, 0, "{args}: {err}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{args}");
        assert!(!err.contains("pipe") && !err.contains("panicked"), "{args}: {err}");
    }
}

#[test]
fn output_that_is_lost_is_told() {
    let Some(house) = house() else { return };
    if !std::path::Path::new("/dev/full").exists() {
        return eprintln!("skipped: no /dev/full here");
    }
    let mut command = house.command("pkt-gen", "-i p{1 -f rx -w 0 -T 0 --json");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let mut running = Running(command.stdout(full).stderr(std::process::Stdio::piped()).spawn().expect("it starts"));
    await_note(&mut running, "Ready");
    interrupt(&running);
    let (code, _, err) = running.end();
    assert_eq!(code, 1);
    assert!(err.contains("standard output") && err.contains("No space left"), "{err}");
}

#[test]
fn signals_interrupt_who_works() {
    let Some(house) = house() else { return };
    let mut running = start(&house, "-i p{1 -f rx -w 0 -T 0");
    await_note(&mut running, "Ready");
    let pid = running.0.id();
    // Of each thread whether it blocks SIGINT, the main one last.
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
    assert_eq!(running.end().0, 0);
}

#[test]
fn a_ping_without_any_answer_fails() {
    let Some(house) = house() else { return };
    let ping = start(&house, "-i p{1 -f ping -n 1 -w 0");
    let (code, out, err) = ping.end();
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("0 answers, 1 lost"), "{out}");
    assert!(err.contains("none of 1 pings was answered"), "{err}");
}

#[test]
fn pings_report_what_the_manual_says() {
    let Some(house) = house() else { return };
    let pong = start(&house, "-i p}1 -f pong -w 0 -T 0");
    let (code, out, err) = start(&house, "-i p{1 -f ping -n 300 -R 1000 -T 50 -w 0 --json").end();
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
    assert_eq!(pong.end().0, 0);
}

#[test]
fn pings_and_their_answers_are_dumped() {
    let Some(house) = house() else { return };
    let pong = start(&house, "-i p}1 -f pong -w 0 -T 0 -n 3 -X");
    let (code, out, err) = start(&house, "-i p{1 -f ping -n 3 -w 0 -T 0 -X -S 02:00:00:00:00:01").end();
    assert_eq!(code, 0, "{err}");
    let (pong_code, pong_out, pong_err) = pong.end();
    assert_eq!(pong_code, 0, "{pong_err}");
    // There and back, at each of the two: from broadcast's point of view the answer comes from it.
    let there = "    0: ff ff ff ff ff ff 02 00 00 00 00 01 08 00 45 00";
    let back = "    0: 02 00 00 00 00 01 ff ff ff ff ff ff 08 00 45 00";
    for text in [&out, &pong_out] {
        assert_eq!((text.matches(there).count(), text.matches(back).count()), (3, 3), "{text}");
        assert_eq!(text.matches(" len 60\n").count(), 6, "{text}");
    }
}

#[test]
fn a_capture_is_replayed_again_and_again() {
    let Some(house) = house() else { return };
    let (from, to) = (house.folder().join("from.pcap"), house.folder().join("to.pcap"));
    // To everybody, and of different lengths.
    let packet = |n: u8| [&[0xff; 6][..], &vec![n + 1; 54 + 100 * usize::from(n)][..]].concat();
    // Rings of 16 slots come round with the same packet, with another, and with none again. Between ports that share a region
    // the buffers change.
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
        // A switch drops nothing: everything finds room in the receiver's ring.
        let room = if here.starts_with("vale") { 1024 } else { 16 };
        let args = format!("-i {there} -f rx -n 300 -C 16,{room} -w 0 -T 0 --write {}", to.display());
        let mut rx = start(&house, &args);
        await_note(&mut rx, "Ready");
        let args = format!("-i {here} -f tx -n 300 -C 16,16 -w 0 -T 0 -P {}", from.display());
        let (code, out, err) = start(&house, &args).end();
        assert!(code == 0 && out.starts_with("Sent 300 packets"), "{here}: {out}{err}");
        assert_eq!(rx.end().0, 0, "{here}");
        let came = read_capture(&to);
        let sent = packets.iter().cycle().take(300);
        assert!(came.iter().eq(sent), "{here}: {} packets are not what was sent", came.len());
    }
}

#[test]
fn one_idle_ring_does_not_keep_a_receiver_from_ending() {
    let Some(house) = house() else { return };
    let mut rx = start(&house, "-i p}1@conf:rings=2 -f rxseq -p 2 -W -w 0 -T 0 --json");
    await_note(&mut rx, "Ready");
    // txseq uses the first ring only.
    let (code, _, err) = start(&house, "-i p{1@conf:rings=2 -f txseq -n 1000 -w 0 -T 0").end();
    assert_eq!(code, 0, "{err}");
    let (code, out, err) = rx.end();
    assert_eq!(code, 0, "{err}");
    let summary = &objects(&out)[0];
    assert_eq!((&summary["packets"], &summary["threads"]), (&1000.into(), &2.into()));
    assert_eq!((&summary["gaps"], &summary["missing"]), (&0.into(), &0.into()));
}

#[test]
fn wishes_that_were_not_granted_are_told() {
    let Some(house) = house() else { return };
    let told = |args: &str| {
        let mut running = start(&house, args);
        let mut lines = BufReader::new(running.0.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
        let told = lines.find(|line| line.contains("in place of") || line.starts_with("Ready")).expect("a line");
        interrupt(&running);
        told
    };
    let line = told("-i a{1@conf:slots=100000 -w 0");
    assert!(line.contains("tx slots in place of 100000") && line.contains("rx slots in place of 100000"), "{line}");
    let line = told("-i b{1 -C 100000,64 -w 0");
    assert!(line.contains("tx slots in place of 100000") && !line.contains("in place of 64"), "{line}");
    assert_eq!(told("-i c{1 -C 64,64,2,2 -w 0"), "Ready...");
    // Who comes second gets what there is.
    let mut first = start(&house, "-i d{1 -C 64 -w 0");
    await_note(&mut first, "Ready");
    let begin = Instant::now();
    while told("-i d}1 -C 64 -w 0") != "Ready..." {
        assert!(begin.elapsed() < LIMIT);
    }
    let line = told("-i d}1 -C 128 -p 1 -w 0");
    assert!(line.contains("64 tx slots in place of 128"), "{line}");
}

#[test]
fn the_wait_for_the_link_is_as_long_as_it_is_told() {
    let Some(house) = house() else { return };
    let _rx = start(&house, "-i w}1 -f rx -w 0 -T 0");
    for (option, least) in [("", 2), ("-w 1", 1), ("-w 0", 0)] {
        let begin = Instant::now();
        let (code, _, err) = start(&house, &format!("-i w{{1 -f tx -n 1 -T 0 {option}")).end();
        assert_eq!(code, 0, "{err}");
        assert!(begin.elapsed() >= Duration::from_secs(least), "{option}");
        assert_eq!(err.contains(&format!("Waiting {least} s for the link")), least > 0, "{err}");
    }
    // A signal ends the wait, too.
    let mut running = start(&house, "-i w{2 -f rx -w 1000");
    await_note(&mut running, "Waiting 1000 s");
    interrupt(&running);
    let (code, out, _) = running.end();
    assert_eq!((code, out.trim()), (0, "Received nothing."));
}

#[test]
fn the_manuals_examples_are_command_lines() {
    let Some(house) = house() else { return };
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
    assert!(!page.contains("vale0:"), "what is not served is no example");
    for args in commands {
        // With one more that is wrong: 2, and for that alone.
        let args = args.replace('\'', "");
        let mut command: Command = house.command("pkt-gen", &args);
        let (code, _, err) = Running::start(command.args(["-H", "11"])).end();
        assert!(code == 2 && err.contains("--vnet-hdr"), "{args}: {err}");
    }
}
