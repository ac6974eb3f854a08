// SPDX-License-Identifier: BSD-2-Clause
//! Reads files as any program may have written them, and compares what is read with libpcap.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap::{Capture, Linktype, Precision};
use unetmap_capture::testing::{END, Libpcap, Pcap, Pcapng, frame, samples};
use unetmap_capture::{Error, Frames, MAX_INTERFACES};

/// The result of a reading: frames, notes, and the error at the end.
#[derive(Debug, Default, PartialEq)]
struct Read {
    frames: Vec<Vec<u8>>,
    notes: Vec<String>,
    error: String,
}

fn read(bytes: &[u8]) -> Read {
    let mut read = Read::default();
    let mut file = match Frames::new(bytes) {
        Ok(file) => file,
        Err(error) => return Read { error: error.to_string(), ..read },
    };
    loop {
        match file.next_frame() {
            Ok(Some(frame)) => read.frames.push(frame.bytes.to_vec()),
            Ok(None) => break,
            Err(error) => read.error = error.to_string(),
        }
    }
    read.notes = file.counts().notes();
    assert_eq!(file.counts().frames, read.frames.len() as u64);
    if read.error.is_empty() {
        assert_eq!(file.position(), bytes.len() as u64);
        if read.frames.is_empty() {
            read.error = file.counts().nothing();
        }
    }
    read
}

/// Reads by libpcap: `None` if the file is not Ethernet; the error is empty at the end of the file.
fn libpcap(path: &Path) -> Option<Read> {
    let mut read = Read::default();
    let mut file = match Capture::from_file_with_precision(path, Precision::Nano) {
        Ok(file) => file,
        Err(error) => return Some(Read { error: error.to_string(), ..read }),
    };
    if file.get_datalink() != Linktype::ETHERNET {
        return None;
    }
    loop {
        match file.next_packet() {
            Ok(packet) => read.frames.push(packet.data.to_vec()),
            Err(pcap::Error::NoMorePackets) => return Some(read),
            Err(error) => return Some(Read { error: error.to_string(), ..read }),
        }
    }
}

#[test]
fn samples_are_read_as_expected_and_as_by_libpcap() {
    let folder = tempfile::tempdir().unwrap();
    for sample in samples() {
        let (name, found) = (&sample.name, read(&sample.bytes));
        assert!(found.error.contains(sample.damage), "{name}: {}", found.error);
        assert_eq!(found.error.is_empty(), sample.damage.is_empty(), "{name}: {}", found.error);
        assert_eq!(found.frames, sample.frames, "{name}");
        assert_eq!(found.notes.len(), sample.notes.len(), "{name}: {:?}", found.notes);
        for part in sample.notes {
            assert!(found.notes.iter().any(|note| note.contains(part)), "{name}: {:?}", found.notes);
        }
        let path = folder.path().join(name);
        fs::write(&path, &sample.bytes).unwrap();
        let mut theirs = libpcap(&path).unwrap();
        theirs.frames.retain(|frame| !frame.is_empty());
        let end = |fcs: &'static [u8], most: usize| {
            let frames = found.frames.iter().map(move |frame| [&frame[..frame.len().min(most)], fcs].concat());
            frames.collect::<Vec<_>>()
        };
        match sample.libpcap {
            Libpcap::Same => assert_eq!((theirs.frames, theirs.error), (end(&[], usize::MAX), String::new()), "{name}"),
            Libpcap::WithFcs => assert_eq!(theirs.frames, end(&[0xde, 0xad, 0xbe, 0xef], usize::MAX), "{name}"),
            Libpcap::First(most) => assert_eq!(theirs.frames, end(&[], most), "{name}"),
            Libpcap::Refuses => assert!(theirs.frames != found.frames || !theirs.error.is_empty(), "{name}"),
        }
    }
}

/// Times since 1970 of all frames.
fn times(bytes: &[u8]) -> Vec<Option<u64>> {
    let mut file = Frames::new(bytes).unwrap();
    let mut times = Vec::new();
    while let Some(frame) = file.next_frame().unwrap() {
        times.push(frame.time.map(|time| u64::try_from(time.as_nanos()).unwrap()));
    }
    times
}

#[test]
fn times_have_the_unit_of_the_file_or_the_interface() {
    let packet = frame(0);
    for big in [false, true] {
        for (magic, unit) in [(0xa1b2_c3d4, 1000), (0xa1b2_3c4d, 1), (0xa1b2_cd34, 1000)] {
            let file = Pcap::new(big, magic, (2, 4), 0, 1).record(17, &packet, 100);
            assert_eq!(times(&file.bytes), [Some(1_000_000_000 + 17 * unit)]);
        }
    }
    let second = 1_000_000_000;
    let offset = |seconds: i64| seconds.to_be_bytes();
    let (after, before, far) = (offset(5), offset(-2), offset(i64::MIN));
    let file = Pcapng::default()
        .section(true)
        .interface(1, 0, &[])
        .interface(1, 0, &[(9, &[9]), END])
        .interface(1, 0, &[(9, &[0x8a])])
        .interface(1, 0, &[(9, &[0]), (14, &after)])
        .interface(1, 0, &[(14, &before)])
        .interface(1, 0, &[(14, &far)])
        .interface(1, 0, &[(9, &[0xff])]);
    let file = (0..7).fold(file, |file, i| file.packet(i, 3 << 20, &packet, 100, &[])).simple_packet(&packet, 100);
    let ns = |ns: u64| Some(ns);
    assert_eq!(
        times(&file.bytes),
        [
            ns((3 << 20) * 1000),
            ns(3 << 20),
            ns(3 * 1024 * second),
            ns(((3 << 20) + 5) * second),
            ns((3 << 20) * 1000 - 2 * second),
            ns(0),
            ns(0),
            None
        ]
    );
    assert_eq!(times(&Pcapng::usual(false).packet(0, u64::MAX, &packet, 100, &[]).bytes), [ns(u64::MAX)]);
    assert_eq!(
        Frames::new(&Pcap::usual().record(u32::MAX, &packet, 100).bytes[..])
            .unwrap()
            .next_frame()
            .unwrap()
            .unwrap()
            .time,
        Some(Duration::from_secs(1) + Duration::from_micros(u32::MAX.into()))
    );
}

#[test]
fn files_without_frames_are_refused_with_a_reason() {
    let packet = frame(0);
    let empty = Pcap::usual().record(1, &[], 0).record(2, &[], 60);
    let raw = |link| Pcap::new(true, 0xa1b2_c3d4, (2, 4), 0, link).record(1, &packet, 100).bytes;
    let cooked = Pcapng::default().section(false).interface(113, 0, &[]).packet(0, 1, &packet, 100, &[]);
    let mut no_order = Pcapng::usual(false).bytes;
    no_order[8] = 0;
    let many = (0..=MAX_INTERFACES).fold(Pcapng::default().section(true), |file, _| file.interface(1, 0, &[]));
    for (bytes, part) in [
        (vec![], "it is empty"),
        (b"hello".to_vec(), "it is not a pcap or pcapng file"),
        (b"\xa1".to_vec(), "it ends within the header"),
        (Pcap::usual().bytes[..20].to_vec(), "it ends within the header"),
        (Pcapng::usual(false).bytes[..20].to_vec(), "it ends within the header"),
        (no_order, "unknown byte order"),
        (b"\n\r\r\n\n\r\r\n".repeat(9), "unknown byte order"),
        (Pcap::new(true, 0xa1b2_c3d4, (3, 0), 0, 1).bytes, "version 3.0"),
        (vec![0x1f, 0x8b, 8, 0], "compressed by gzip"),
        (vec![0x28, 0xb5, 0x2f, 0xfd], "compressed by zstd"),
        (Pcap::usual().bytes, "it contains no packet"),
        (Pcapng::usual(true).bytes, "it contains no packet"),
        (empty.bytes, "it contains 2 packets without bytes; only Ethernet packets can be sent"),
        (raw(101), "link type RAW (101); only Ethernet packets can be sent"),
        (raw(0x0001_0001), "link type 65537, which has no name"),
        (cooked.bytes, "it contains 1 packet of link type LINUX_SLL (113); only Ethernet packets can be sent"),
        (many.bytes, "more than 65536 interfaces"),
    ] {
        let found = read(&bytes);
        assert!(found.error.contains(part) && found.frames.is_empty(), "{part}: {}", found.error);
    }
}

/// Lengths up to 4 GiB in the file take no memory: the file ends before.
#[test]
fn lengths_of_hostile_files_are_bounded() {
    let huge = [0xffff_fffc_u32, 0x8000_0000, 262_144];
    for len in huge {
        let mut pcap = Pcap::usual().record(1, &[], 0).bytes;
        pcap[32..36].copy_from_slice(&len.to_le_bytes());
        let mut packet = Pcapng::usual(false).packet(0, 1, &[0; 4], 4, &[]).bytes;
        let at = packet.len() - 36;
        packet[at + 4..at + 8].copy_from_slice(&0xffff_fffc_u32.to_le_bytes());
        packet[at + 20..at + 24].copy_from_slice(&len.to_le_bytes());
        let mut unknown = Pcapng::usual(false).block(0xbad, &[]).bytes;
        let at = unknown.len() - 8;
        unknown[at..at + 4].copy_from_slice(&(len & !3).to_le_bytes());
        for bytes in [pcap, packet, unknown] {
            let found = read(&bytes);
            assert!(
                found.error.contains("ends within a record") || found.error.contains("at most 262144"),
                "{found:?}"
            );
        }
    }
}

/// Whatever the bytes are, reading them ends, with frames or a sentence.
#[test]
fn damaged_files_are_read_to_their_damage() {
    let mut seed = 1_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    for sample in samples() {
        for _ in 0..200 {
            let mut bytes = sample.bytes.clone();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                bytes[at] = [0, 1, 0x7f, 0xff, bytes[at] ^ 1 << random(8)][random(5)];
            }
            read(&bytes);
        }
    }
}

/// Holds the reader against libpcap: `UNETMAP_CAPTURES=FOLDER cargo test -p unetmap-capture -- --ignored --nocapture`.
#[test]
#[ignore = "needs a folder of captures in UNETMAP_CAPTURES"]
fn captures_of_a_folder_are_read_as_by_libpcap() {
    let folder = std::env::var_os("UNETMAP_CAPTURES").expect("UNETMAP_CAPTURES, a folder");
    let mut counts = BTreeMap::<&str, u32>::new();
    let mut bad = Vec::new();
    for path in files(Path::new(&folder)) {
        let file = fs::File::open(&path).unwrap();
        let Some(theirs) = libpcap(&path) else {
            let first = Frames::new(file).and_then(|mut file| {
                let first = file.next_frame()?.map(|frame| frame.bytes.len());
                first.map(|_| ()).ok_or_else(|| Error::Format(file.counts().nothing()))
            });
            let kind = if first.is_ok() { "other link type first, Ethernet found" } else { "other link type, refused" };
            println!("{kind}: {}: {}", path.display(), first.err().map(|e| e.to_string()).unwrap_or_default());
            *counts.entry(kind).or_default() += 1;
            continue;
        };
        let ours = read(&fs::read(&path).unwrap());
        let kind = comparison(&ours, &theirs);
        *counts.entry(kind).or_default() += 1;
        if kind != "equal" {
            let lens = (ours.frames.len(), theirs.frames.len());
            println!(
                "{kind}: {}: {lens:?} ours: {} {:?}; libpcap: {}",
                path.display(),
                ours.error,
                ours.notes,
                theirs.error
            );
        }
        if ["different bytes", "fewer frames than libpcap", "equal, ours ends with an error"].contains(&kind) {
            bad.push((kind, path));
        }
    }
    println!("{counts:#?}");
    assert!(bad.is_empty(), "{bad:#?}");
}

/// How what was read here compares with what libpcap read.
fn comparison(ours: &Read, theirs: &Read) -> &'static str {
    let their_frames: Vec<_> = theirs.frames.iter().filter(|frame| !frame.is_empty()).collect();
    let pairs = || ours.frames.iter().zip(&their_frames);
    // libpcap cuts packets that exceed the snap length.
    let cut: BTreeSet<_> = pairs().filter(|(a, b)| a.len() > b.len()).map(|(_, b)| b.len()).collect();
    if !pairs().all(|(a, b)| a.starts_with(b)) || cut.len() > 1 {
        return "different bytes";
    }
    match (ours.frames.len().cmp(&their_frames.len()), ours.error.is_empty(), theirs.error.is_empty()) {
        (Ordering::Less, ..) => "fewer frames than libpcap",
        (Ordering::Greater, ..) => "more frames than libpcap, which ends with an error",
        _ if !cut.is_empty() => "equal up to the snap length, where libpcap cuts",
        (_, true, true) => "equal",
        (_, true, false) => "equal, libpcap ends with an error",
        (_, false, true) if ours.frames.is_empty() => "no packet in both",
        (_, false, true) => "equal, ours ends with an error",
        _ if ours.frames.is_empty() => "refused by both",
        _ => "equal up to the damage",
    }
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all.into_iter().flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
