//! Programs of libpcap's, as Debian has them, on netmap ports, each as a user would run it. A test is a row of the matrix
//! of programs and kinds of ports, and prints it.

use std::fs;

use conformance::isolated;
use conformance::net::{assert_same, frames};
use conformance::pcap::{Far, Place, pcap_file, read_pcap, row, udp};

/// Frames to port 7777, from ports 1000, 1002, ...; and as many others between them.
fn mixed(n: u16) -> Vec<Vec<u8>> {
    (0..2 * n).map(|i| udp(1000 + i, 7777 + i % 2, format!("needle {i:3}, and hay behind it").as_bytes())).collect()
}

/// Those of them to port 7777.
fn wanted(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    frames.iter().step_by(2).cloned().collect()
}

#[test]
fn tcpdump() {
    isolated(|home| {
        row(home, "tcpdump", "tcpdump", |place| {
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
        });
    });
}

#[test]
fn dumpcap() {
    isolated(|home| {
        row(home, "dumpcap", "wireshark-common", |place| {
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
        });
    });
}

#[test]
fn tshark() {
    isolated(|home| {
        row(home, "tshark", "tshark", |place| {
            let filter = ["-f", "udp port 7777", "-T", "fields", "-e", "udp.srcport"];
            let tshark = place.start("tshark", &[&["-n", "-i", &place.name, "-c", "3"][..], &filter].concat());
            place.opened();
            place.far.send(&mixed(3));
            assert_eq!(tshark.output().0, "1000\n1002\n1004\n");
        });
    });
}

#[test]
fn ngrep() {
    isolated(|home| {
        row(home, "ngrep", "ngrep", |place| {
            let ngrep = place.start("ngrep", &["-q", "-d", &place.name, "-n", "2", "needle +[24],", "udp port 7777"]);
            place.opened();
            place.far.send(&mixed(3));
            let (out, _) = ngrep.output();
            for (port, text) in [(1002, "needle   2, and hay"), (1004, "needle   4, and hay")] {
                assert!(out.contains(&format!("10.9.0.2:{port} -> 10.9.0.1:7777")), "{out}");
                assert!(out.contains(text), "{out}");
            }
            assert!(!out.contains("needle   0"), "{out}");
        });
    });
}

#[test]
fn tcpreplay() {
    isolated(|home| {
        row(home, "tcpreplay", "tcpreplay", |place| {
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
        });
    });
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

#[test]
fn arping() {
    isolated(|home| {
        row(home, "arping", "arping", |place| {
            let args = ["-c", "2", "-I", &place.name, "-S", "10.9.0.77", "-s", "02:00:00:00:00:77", "10.9.0.2"];
            let arping = place.start("arping", &args);
            if matches!(place.far, Far::Port(_)) {
                answer_arp(place, 2);
            }
            let (out, _) = arping.output();
            assert!(out.contains("2 packets transmitted, 2 packets received,   0% unanswered"), "{out}");
        });
    });
}

/// What a user of scapy writes: receives three packets and sends them back, payload first.
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

#[test]
fn scapy() {
    isolated(|home| {
        row(home, "scapy3", "python3-scapy", |place| {
            let sent = mixed(3);
            let scapy = place.start("/usr/bin/python3", &["-c", SCAPY, &place.name]);
            place.opened();
            place.far.send(&sent);
            let back: Vec<_> = place.far.collect(3).into_iter().map(|frame| frame[14..].to_vec()).collect();
            assert_same(&back, &wanted(&sent).into_iter().map(|frame| frame[14..].to_vec()).collect::<Vec<_>>());
            assert_eq!(scapy.output().0, "ready\n1000\n1002\n1004\n");
        });
    });
}
