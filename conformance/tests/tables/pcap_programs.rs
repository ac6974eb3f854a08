// SPDX-License-Identifier: BSD-2-Clause
//! The matrix of programs of libpcap's, as Debian has them, and kinds of ports, each program as a user would run it.
//!
//! Each row runs in a process of its own, with a daemon of its own. `cargo test -p conformance --test tables --
//! pcap_programs tcpdump ngrep` runs the rows that begin so.

use std::fs;
use std::path::Path;
use std::process::Command;

use conformance::home::{Failure, repeated_if_delayed, wait_within};
use conformance::net::{assert_same, frames};
use conformance::pcap::{Far, KINDS, Place, Row, cells, pcap_file, read_pcap, udp};
use conformance::{Home, LIMIT, program};

/// Names the row for the process that runs it.
const ROW: &str = "UNETMAP_PCAP_ROW";
/// Before each cell's result in that process's output: the kind of port, and behind a tab why it was left out.
const CELL: &str = "cell: ";

/// The rows.
const ROWS: [Row; 7] = [
    row("tcpdump", "tcpdump", tcpdump),
    row("dumpcap", "wireshark-common", dumpcap),
    row("tshark", "tshark", tshark),
    row("ngrep", "ngrep", ngrep),
    sender("tcpreplay", "tcpreplay", tcpreplay),
    sender("arping", "arping", arping),
    sender("scapy3", "python3-scapy", scapy),
];

const fn row(program: &'static str, package: &'static str, cell: fn(&Place<'_>)) -> Row {
    Row { program, package, sends: false, cell }
}

const fn sender(program: &'static str, package: &'static str, cell: fn(&Place<'_>)) -> Row {
    Row { program, package, sends: true, cell }
}

/// The names of the rows.
pub(crate) fn list() -> Vec<String> {
    ROWS.iter().map(|row| row.program.to_owned()).collect()
}

/// Runs the row that the environment names, if it does, in this process; returns whether it passed.
pub(crate) fn run_row_of_environment() -> Option<bool> {
    let name = std::env::var(ROW).ok()?;
    ROWS.iter().find(|row| row.program == name).map(run_row)
}

/// Runs the rows whose programs' names begin with one of the filters, or all, and prints the table; returns whether all
/// of them passed.
pub(crate) fn run(filters: &[String]) -> bool {
    let chosen = |row: &&Row| filters.is_empty() || filters.iter().any(|filter| row.program.starts_with(&**filter));
    let (mut failures, mut reasons) = (Vec::new(), Vec::new());
    println!("\n{:10}{}", "program", KINDS.map(|kind| format!("  {kind:9}")).concat());
    for row in ROWS.iter().filter(chosen) {
        let (cells, failure) = row_of(row);
        let shown = KINDS.map(|kind| match cells.iter().find(|(of, _)| of == kind) {
            Some((_, why)) if why.is_empty() => "yes",
            Some((_, why)) => {
                reasons.push(format!("{} on a {kind} port is left out: {why}", row.program));
                "left out"
            }
            None => "FAIL",
        });
        println!("{:10}{}", row.program, shown.map(|cell| format!("  {cell:9}")).concat());
        failures.extend(failure.map(|why| format!("{}: {why}", row.program)));
        if cells.len() < KINDS.len() && failures.is_empty() {
            failures.push(format!("{}: cells are missing", row.program));
        }
    }
    reasons.iter().for_each(|reason| println!("{reason}"));
    failures.iter().for_each(|failure| println!("FAIL {failure}"));
    failures.is_empty()
}

/// The cells of a row, each with why it was left out, and why the rest failed.
type Cells = (Vec<(String, String)>, Option<String>);

/// Runs a row in a process of its own.
fn row_of(row: &Row) -> Cells {
    repeated_if_delayed(row.program, || {
        let (cells, log) = row_once(row);
        let failure = cells.1.clone().map(|text| Failure { text, log });
        (cells, failure)
    })
}

/// The same, once; and the daemon's log.
fn row_once(row: &Row) -> (Cells, String) {
    let folder = tempfile::Builder::new().prefix("unetmap-").tempdir().expect("a folder");
    let (output, home) = (folder.path().join("output"), folder.path().join("home"));
    let to = fs::File::create(&output).expect("a file for the row's output");
    let mut inside = Command::new(std::env::current_exe().expect("this program has a name"))
        .env(ROW, row.program)
        .env("UNETMAP_SOCKET", home.join("unetmapd.sock"))
        .env("UNETMAPD", program("unetmapd"))
        .stdout(to.try_clone().expect("a second handle of a file"))
        .stderr(to)
        .spawn()
        .expect("the test runs itself");
    let status = wait_within(&mut inside, 8 * LIMIT);
    if status.is_none() {
        let _ = inside.kill();
        let _ = inside.wait();
    }
    let text = fs::read_to_string(&output).unwrap_or_default();
    let log = fs::read_to_string(home.join("unetmapd.sock.log")).unwrap_or_default();
    let cells = text.lines().filter_map(|line| line.strip_prefix(CELL)?.split_once('\t'));
    let cells = cells.map(|(kind, why)| (kind.to_owned(), why.to_owned())).collect();
    let passed = status.is_some_and(|status| status.success()) && !log.contains("panicked");
    let failure = (!passed).then(|| format!("{status:?}:\n{text}\nthe daemon's log:\n{log}"));
    ((cells, failure), log)
}

/// One row, in its own process.
fn run_row(row: &Row) -> bool {
    let socket = std::env::var_os("UNETMAP_SOCKET").expect("set by the outer process");
    let home = Home::at(Path::new(&socket).parent().expect("a file in a folder")).expect("a folder");
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cells(&home, row, |kind, why| println!("{CELL}{kind}\t{}", why.unwrap_or_default()));
    }));
    home.end_daemon();
    ended.is_ok()
}

/// Frames to port 7777, from ports 1000, 1002, ...; and as many others between them.
fn mixed(n: u16) -> Vec<Vec<u8>> {
    (0..2 * n).map(|i| udp(1000 + i, 7777 + i % 2, format!("needle {i:3}, and hay behind it").as_bytes())).collect()
}

/// Returns the frames to port 7777.
fn wanted(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    frames.iter().step_by(2).cloned().collect()
}

fn tcpdump(place: &Place<'_>) {
    let file = place.folder().join("tcpdump.pcap");
    let path = file.display().to_string();
    let sent = mixed(3);
    let tcpdump = place.start("tcpdump", &["-n", "-i", &place.name, "-c", "3", "-w", &path, "udp port 7777"]);
    place.opened();
    place.far.send(&sent);
    let (_, err) = tcpdump.output();
    assert!(err.contains("3 packets captured"), "{err}");
    assert!(err.contains("0 packets dropped by kernel"), "{err}");
    let got: Vec<_> = read_pcap(&file).into_iter().map(|packet| packet.bytes).collect();
    assert_same(&got, &wanted(&sent));
    let (out, _) = place.start("tcpdump", &["-n", "-t", "-r", &path, "src port 1002"]).output();
    assert_eq!(out, "IP 10.9.0.2.1002 > 10.9.0.1.7777: UDP, length 29\n");
}

fn dumpcap(place: &Place<'_>) {
    let [ng, file] = ["dumpcap.pcapng", "dumpcap.pcap"].map(|name| place.folder().join(name));
    let [ng, path] = [&ng, &file].map(|path| path.display().to_string());
    let sent = mixed(4);
    let dumpcap = place.start("dumpcap", &["-i", &place.name, "-c", "4", "-f", "udp port 7777", "-w", &ng]);
    place.opened();
    place.far.send(&sent);
    let (_, err) = dumpcap.output();
    assert!(err.contains("Packets captured: 4"), "{err}");
    // The system's own tcpdump reads what it wrote.
    place.start("tcpdump", &["-r", &ng, "-w", &path]).output();
    let got: Vec<_> = read_pcap(&file).into_iter().map(|packet| packet.bytes).collect();
    assert_same(&got, &wanted(&sent));
}

fn tshark(place: &Place<'_>) {
    let filter = ["-f", "udp port 7777", "-T", "fields", "-e", "udp.srcport"];
    let tshark = place.start("tshark", &[&["-n", "-i", &place.name, "-c", "3"][..], &filter].concat());
    place.opened();
    place.far.send(&mixed(3));
    assert_eq!(tshark.output().0, "1000\n1002\n1004\n");
}

fn ngrep(place: &Place<'_>) {
    let ngrep = place.start("ngrep", &["-q", "-d", &place.name, "-n", "2", "needle +[24],", "udp port 7777"]);
    place.opened();
    place.far.send(&mixed(3));
    let (out, _) = ngrep.output();
    for (port, text) in [(1002, "needle   2, and hay"), (1004, "needle   4, and hay")] {
        assert!(out.contains(&format!("10.9.0.2:{port} -> 10.9.0.1:7777")), "{out}");
        assert!(out.contains(text), "{out}");
    }
    assert!(!out.contains("needle   0"), "{out}");
}

fn tcpreplay(place: &Place<'_>) {
    let sent = frames(&(60..160).collect::<Vec<_>>(), 5);
    let file = place.folder().join("tcpreplay.pcap");
    fs::write(&file, pcap_file(&sent)).expect("a file");
    // It is built without netmap, and refuses the names that it would know if it were not.
    let name = format!("unetmap:{}", place.name.trim_start_matches("netmap:"));
    let tcpreplay = place.start("tcpreplay", &["-i", &name, &file.display().to_string()]);
    assert_same(&place.far.collect(sent.len()), &sent);
    let (out, err) = tcpreplay.output();
    assert!(out.contains("Successful packets:        100"), "{out}{err}");
    assert!(out.contains("Failed packets:            0"), "{out}{err}");
}

/// Answers requests for the address of 10.9.0.2, as a kernel's stack does at the other end of a cable.
fn answer_arp(place: &Place<'_>, n: usize) {
    for _ in 0..n {
        let request = place.far.collect(1).remove(0);
        assert_eq!(request[12..22], [8, 6, 0, 1, 8, 0, 6, 4, 0, 1], "an ARP request");
        assert_eq!(request[38..42], [10, 9, 0, 2], "for this address");
        let mut reply = request.clone();
        let here = [2, 0, 0, 0, 0, 0x0b];
        reply[0..6].copy_from_slice(&request[6..12]);
        reply[6..12].copy_from_slice(&here);
        reply[21] = 2;
        reply[22..28].copy_from_slice(&here);
        reply[28..32].copy_from_slice(&request[38..42]);
        reply[32..42].copy_from_slice(&request[22..32]);
        place.far.send(&[reply]);
    }
}

fn arping(place: &Place<'_>) {
    let args = ["-c", "2", "-I", &place.name, "-S", "10.9.0.77", "-s", "02:00:00:00:00:77", "10.9.0.2"];
    let arping = place.start("arping", &args);
    if matches!(place.far, Far::Port(_)) {
        answer_arp(place, 2);
    }
    let (out, _) = arping.output();
    assert!(out.contains("2 packets transmitted, 2 packets received,   0% unanswered"), "{out}");
}

/// A typical scapy script: receives three packets and sends their payloads back.
const SCAPY: &str = "
import sys
from scapy.all import conf, sniff, sendp, Ether, UDP, Raw
conf.use_pcap = True
port = sys.argv[1]
got = sniff(iface=port, count=3, timeout=25, filter='udp port 7777', started_callback=lambda: print('ready', flush=True))
for packet in got:
    assert packet[UDP].dport == 7777, packet
    print(packet[UDP].sport)
sendp([Ether(src=p.dst, dst=p.src, type=0x88b5) / Raw(bytes(p)[14:]) for p in got], iface=port, verbose=False)
";

fn scapy(place: &Place<'_>) {
    let sent = mixed(3);
    let scapy = place.start("/usr/bin/python3", &["-c", SCAPY, &place.name]);
    place.opened();
    place.far.send(&sent);
    let back: Vec<_> = place.far.collect(3).into_iter().map(|frame| frame[14..].to_vec()).collect();
    assert_same(&back, &wanted(&sent).into_iter().map(|frame| frame[14..].to_vec()).collect::<Vec<_>>());
    assert_eq!(scapy.output().0, "ready\n1000\n1002\n1004\n");
}
