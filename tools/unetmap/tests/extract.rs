// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap extract`: packets are found by the index as by reading all, little is read, and no fault of an index loses
//! any.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pcap::{Capture, Linktype, Precision};
use serde_json::Value;
use tool_common::testing::{TestDaemon, TestProcess};

/// Packets of a test's capture.
const PACKETS: usize = 16_000;
/// Their time of the first, in seconds, and nanoseconds between two.
const START: u64 = 1_700_000_000;
const GAP: u64 = 250_000;

/// Mixes the bits of a number (the finalizer of SplitMix64).
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns frame `i`: TCP, UDP, fragments and ARP among many hosts, some with VLAN tags, some of IPv6.
fn frame(i: usize) -> Vec<u8> {
    let random = mix(i as u64);
    let (host, peer) = ((random >> 8) as u8, (random >> 16) as u8 & 15);
    let [sport, dport] = [(random >> 24) as u16 | 1024, [53, 80, 443, 8080][(random >> 40) as usize & 3]];
    let kind = (random >> 48) & 15;
    let mut bytes = vec![2; 12];
    if kind == 1 {
        bytes.extend([0x81, 0, 0, 7]);
    }
    if kind == 2 {
        bytes
            .extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 2, 2, 2, 2, 2, 10, 0, 0, host, 0, 0, 0, 0, 0, 0, 10, 1, 0, peer]);
        return bytes;
    }
    let protocol = if random & 1 == 0 { 6 } else { 17 };
    let len = 100 + (random >> 52) as u16 % 900;
    let turned = random & 2 != 0;
    let (mut ends, mut ports) = ([[10, 0, 0, host], [10, 1, 0, peer]], [sport, dport]);
    if turned {
        ends.reverse();
        ports.reverse();
    }
    if kind == 3 {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend(len.to_be_bytes());
        bytes.extend([protocol, 64]);
        for end in ends {
            bytes.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0]);
            bytes.extend(end);
        }
    } else {
        let offset = if kind == 4 { 185 } else { 0_u16 };
        bytes.extend([8, 0, 0x45, 0]);
        bytes.extend((len + 20).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(offset.to_be_bytes());
        bytes.extend([64, protocol, 0, 0]);
        bytes.extend(ends.concat());
    }
    ports.iter().for_each(|port| bytes.extend(port.to_be_bytes()));
    let start = bytes.len();
    bytes.resize(start + usize::from(len) - 4, 0);
    // Half of the payload can be compressed.
    for (at, byte) in bytes[start..].iter_mut().enumerate().step_by(2) {
        *byte = mix(random + at as u64) as u8;
    }
    bytes
}

/// The frames of the flow that is looked for, of which there are few.
fn is_rare(i: usize) -> bool {
    i % 4000 == 2000
}

fn rare() -> Vec<u8> {
    let mut bytes = vec![2; 12];
    bytes.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 9, 9, 9, 10, 1, 0, 1, 0xab, 0xcd, 1, 187]);
    bytes.resize(500, 7);
    bytes
}

/// Writes a pcap file, without an index.
fn source(folder: &Path) -> PathBuf {
    let path = folder.join("source.pcap");
    let head = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 262_144, 1];
    let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
    for i in 0..PACKETS {
        let frame = if is_rare(i) { rare() } else { frame(i) };
        let nanos = i as u64 * GAP;
        let (seconds, nanos) = (START + nanos / 1_000_000_000, nanos % 1_000_000_000);
        let words = [seconds as u32, nanos as u32, frame.len() as u32, frame.len() as u32];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(frame);
    }
    fs::write(&path, bytes).unwrap();
    path
}

/// Returns the packets of a file for which a filter is true, by libpcap.
fn filtered(path: &Path, filter: &str) -> Vec<Vec<u8>> {
    let mut capture = Capture::from_file_with_precision(path, Precision::Nano).unwrap();
    capture.filter(filter, true).unwrap();
    let mut all = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        all.push(packet.data.to_vec());
    }
    all
}

/// Runs `unetmap extract --json`; returns its status and what it says.
fn extract(args: &[&str]) -> (i32, Value) {
    let out = Command::new(env!("CARGO_BIN_EXE_unetmap")).arg("extract").args(args).arg("--json").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    let said = serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"));
    (out.status.code().unwrap(), said)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes captures with an index, plain and compressed.
fn indexed(folder: &Path, source: &Path) -> [PathBuf; 2] {
    let [plain, packed] = ["plain.pcapng", "packed.pcapng.zst"].map(|name| folder.join(name));
    for (path, level) in [(&plain, None), (&packed, Some("--zstd"))] {
        let args: Vec<&str> = [text(source), "-w", text(path)].into_iter().chain(level).collect();
        let (status, said) = extract(&args);
        assert_eq!((status, &said["packets"], &said["unindexed"]), (0, &PACKETS.into(), &PACKETS.into()), "{said}");
    }
    [plain, packed]
}

const RARE: &str = "tcp and host 10.9.9.9 and host 10.1.0.1 and port 43981 and port 443";

/// The disk has 64 KiB, of which the index of these packets needs more.
#[test]
fn a_full_disk_has_packets_without_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let (source, disk, kept) = (source(folder.path()), folder.path().join("disk"), folder.path().join("kept.pcapng"));
    fs::create_dir(&disk).unwrap();
    let shell = |script: &str| {
        Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", script]).output().expect("util-linux")
    };
    let mount = format!("mount -t tmpfs -o size=64k none {}", disk.display());
    let tried = shell(&mount);
    if !tried.status.success() {
        return eprintln!("skipped: no file system of its own: {}", String::from_utf8_lossy(&tried.stderr));
    }
    let file = disk.join("full.pcapng");
    let [program, from, file, to] = [env!("CARGO_BIN_EXE_unetmap"), text(&source), text(&file), text(&kept)];
    let output =
        shell(&format!("{mount} && {program} extract {from} -w {file}; status=$?; cp {file} {to}; exit $status"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("No space left"), "{said}");
    let (all, written) = (filtered(&source, ""), filtered(&kept, ""));
    assert!(written.len() > 50 && written == all[..written.len()], "{}", written.len());
    let (status, said) = extract(&[to, "--check"]);
    assert_eq!((status, &said["packets"]), (0, &written.len().into()), "{said}");
}

#[test]
fn no_more_is_read_than_the_files_have() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path());
    let empty = folder.path().join("empty.pcap");
    fs::write(&empty, &fs::read(&source).unwrap()[..24]).unwrap();
    let none = folder.path().join("none.pcapng");
    assert_eq!(extract(&[text(&empty), "-w", text(&none)]).0, 0);
    let [plain, packed] = indexed(folder.path(), &source);
    for file in [&none, &plain, &packed] {
        let (_, said) = extract(&[text(file), "-w", text(&folder.path().join("out"))]);
        assert!(said["read"].as_u64() <= said["size"].as_u64() && said["read"].as_u64() > Some(0), "{said}");
    }
}

#[test]
fn the_index_finds_what_reading_all_finds() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path());
    let files = indexed(folder.path(), &source);
    assert!(fs::metadata(&files[1]).unwrap().len() < fs::metadata(&files[0]).unwrap().len() * 3 / 4);
    // Readers that do not know the index read the file.
    assert_eq!(filtered(&files[0], ""), filtered(&source, ""));
    let out = folder.path().join("out.pcapng");
    for filter in [
        RARE,
        "host 10.9.9.9",
        "udp and host 10.0.0.17 and host 10.1.0.3",
        "src host 10.0.0.17 and tcp and dst port 443",
        "arp and host 10.0.0.200",
        "vlan 7 and host 10.0.0.3",
        "vlan and udp port 53 and src 10.1.0.9",
        "host 2001:db8::a00:11",
        "ip6 and host 2001:db8::a01:5 and tcp port 80",
        "host 192.0.2.1",
        "host 10.0.0.1 or host 10.0.0.2",
        "not tcp and host 10.1.0.4",
        "icmp",
        "",
    ] {
        let wanted = filtered(&source, filter);
        for file in &files {
            let (status, said) = extract(&[text(file), "-w", text(&out), "-f", filter]);
            assert_eq!((status, &said["notes"], &said["unindexed"]), (0, &Value::Array(vec![]), &0.into()), "{said}");
            let got = filtered(&out, "");
            assert!(got == wanted, "{filter}: {} packets in place of {}: {said}", got.len(), wanted.len());
        }
    }
}

/// Of a flow in every chunk of a capture that is small; the larger the chunks' packets, the less is read.
#[test]
fn a_flow_is_found_by_reading_two_percent() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path());
    let [plain, packed] = indexed(folder.path(), &source);
    let out = folder.path().join("out.pcapng");
    for (file, most) in [(plain, 200), (packed, 50)] {
        let (status, said) = extract(&[text(&file), "-w", text(&out), "-f", RARE]);
        let [read, size] = ["read", "size"].map(|key| said[key].as_u64().unwrap());
        assert_eq!((status, &said["packets"]), (0, &4.into()), "{said}");
        assert_eq!(size, fs::metadata(&file).unwrap().len());
        assert!(read > 0 && read * most < size, "{said}");
    }
}

#[test]
fn times_choose_chunks_and_packets() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path());
    let out = folder.path().join("out.pcapng");
    for file in indexed(folder.path(), &source) {
        // A tenth of a second of four, by both ways to write a time.
        for (from, to) in [("1700000001", "1700000001.1"), ("2023-11-14T22:13:21Z", "2023-11-14T22:13:21.1Z")] {
            let (status, said) = extract(&[text(&file), "-w", text(&out), "--from", from, "--to", to]);
            assert_eq!((status, &said["packets"]), (0, &401.into()), "{said}");
            let [read, size] = ["read", "size"].map(|key| said[key].as_u64().unwrap());
            assert!(said["skipped"].as_u64() >= Some(2) && read * 2 < size, "{said}");
            assert_eq!(filtered(&out, ""), filtered(&source, "")[4000..=4400]);
        }
    }
}

/// Where the index of chunk `number` begins, after the framing.
fn index_of(bytes: &[u8], number: usize) -> usize {
    bytes.windows(8).enumerate().filter(|(_, window)| *window == b"unmapix1").nth(number).unwrap().0
}

#[test]
fn a_cut_damaged_or_stale_index_loses_nothing_and_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path());
    let out = folder.path().join("out.pcapng");
    let wanted = filtered(&source, RARE).len();
    for file in indexed(folder.path(), &source) {
        let is_packed = text(&file).ends_with("zst");
        let good = fs::read(&file).unwrap();
        let [first, second] = [0, 1].map(|number| index_of(&good, number));
        let changed = folder.path().join("changed");
        let try_with = |bytes: &[u8], more: &[&str]| {
            fs::write(&changed, bytes).unwrap();
            extract(&[&[text(&changed), "-w", text(&out), "-f", RARE], more].concat())
        };
        // The whole directory, as the bucket of the flow is not known here.
        for (name, at, len) in [("header", second + 20, 1), ("directory", second + 64, 2000)] {
            let mut bytes = good.clone();
            bytes[at..at + len].iter_mut().for_each(|byte| *byte ^= 0x55);
            let (status, said) = try_with(&bytes, &[]);
            assert_eq!((status, &said["packets"]), (1, &wanted.into()), "{name}: {said}");
            assert!(said["notes"][0].as_str().unwrap().contains("is damaged"), "{name}: {said}");
        }
        // The file ends in the last chunk, and in an index: what it has is found.
        let last = index_of(&good, good.windows(8).filter(|window| *window == b"unmapix1").count() - 1);
        for end in [good.len() - 5000, last + 30] {
            let (status, said) = try_with(&good[..end], &[]);
            assert!(status == 1 && said["packets"].as_u64() >= Some(wanted as u64 - 1), "{said}");
            assert!(!said["notes"].as_array().unwrap().is_empty(), "{said}");
        }
        // The index of one chunk with the packets of another one.
        let mut bytes = good.clone();
        let header: [u8; 64] = bytes[first..first + 64].try_into().unwrap();
        bytes[second..second + 64].copy_from_slice(&header);
        let (status, said) = try_with(&bytes, &[]);
        assert_eq!((status, &said["packets"]), (1, &wanted.into()), "{said}");
        if is_packed {
            continue;
        }
        // Packets that were changed in place, such as by a program that hides addresses: the flow is gone, and its
        // index says otherwise.
        let mut bytes = good.clone();
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(4).position(|window| window == [10, 9, 9, 9]) {
            bytes[at + found + 3] = 1;
            at += found + 4;
        }
        let (status, said) = try_with(&bytes, &[]);
        assert_eq!((status, &said["packets"]), (1, &0.into()), "{said}");
        assert!(said["notes"][0].as_str().unwrap().contains("is not that of the packets"), "{said}");
        // An index that leaves the packet out is found by comparing.
        let mut bytes = good.clone();
        let address = bytes.windows(4).position(|window| window == [10, 1, 0, 5]).unwrap();
        bytes[address..address + 4].copy_from_slice(&[10, 9, 9, 9]);
        assert_eq!(try_with(&bytes, &[]).0, 0);
        let (status, said) = try_with(&bytes, &["--check"]);
        assert_eq!((status, &said["packets"]), (1, &wanted.into()), "{said}");
        assert_eq!(try_with(&good, &["--check"]).0, 0);
    }
}

#[test]
fn wrong_arguments_and_files_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let none = folder.path().join("none");
    let file = folder.path().join("text");
    fs::write(&file, "no capture at all").unwrap();
    for (args, part) in [
        (vec![text(&none), "-w", "-"], "No such file"),
        (vec![text(&file), "-w", "-"], "not a pcap or pcapng file"),
        (vec![text(&file), "-w", "-", "-f", "udp port"], "does not compile"),
        (vec![text(&file), "-w", "-", "--from", "yesterday"], "give a time such as"),
        (vec![text(&file)], "--write"),
    ] {
        let out = Command::new(env!("CARGO_BIN_EXE_unetmap")).arg("extract").args(&args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains(part), "{args:?}: {said}");
    }
}

/// Packets from a pipe, by one writer and by three: each flow is in one file, and all are found.
#[test]
fn captures_have_an_index_and_writers_have_whole_flows() {
    let Some(daemon) = TestDaemon::start_beside(env!("CARGO_BIN_EXE_unetmap")) else { return };
    let folder = daemon.folder().to_owned();
    let source = source(&folder);
    let all = Capture::dead(Linktype::ETHERNET).is_ok().then(|| filtered(&source, "")).unwrap();
    for (port, args, names) in [
        ("a", "", vec!["out.pcapng"]),
        ("b", "--zstd=1", vec!["out.pcapng"]),
        ("c", "--writers 3", vec!["out_w1.pcapng", "out_w2.pcapng", "out_w3.pcapng"]),
    ] {
        let args =
            format!("capture netmap:{port}}}1 --json -c {PACKETS} {args} -w {}", folder.join("out.pcapng").display());
        let running = TestProcess::start(&mut daemon.command("unetmap", &args));
        let replay = format!("replay {} netmap:{port}{{1 --rate max --quiet", source.display());
        let (status, _, err) = TestProcess::start(&mut daemon.command("unetmap", &replay)).wait();
        assert_eq!(status, 0, "{err}");
        let (status, said, err) = running.wait();
        let said: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}{err}"));
        assert_eq!((status, &said["accepted"], &said["files"]), (0, &PACKETS.into(), &names.len().into()), "{err}");
        let files: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
        let out = folder.join("found.pcapng");
        let find = |files: &[PathBuf], filter: &str| {
            let args: Vec<&str> = files.iter().map(|file| text(file)).chain(["-w", text(&out), "-f", filter]).collect();
            let (status, said) = extract(&args);
            assert_eq!((status, &said["unindexed"]), (0, &0.into()), "{said}");
            filtered(&out, "")
        };
        let mut found = find(&files, "");
        let mut wanted = all.clone();
        found.sort();
        wanted.sort();
        assert!(found == wanted, "{args}");
        assert_eq!(find(&files, RARE).len(), 4);
        let with: Vec<_> = files.iter().filter(|file| !find(std::slice::from_ref(file), RARE).is_empty()).collect();
        assert_eq!(with.len(), 1, "{args}: {with:?}");
        assert!(files.iter().all(|file| find(std::slice::from_ref(file), "").len() > PACKETS / 10), "{args}");
    }
}
