// SPDX-License-Identifier: BSD-2-Clause
//! Virtual machines as ports of a switch, by a front end without a guest; and front ends that break every rule: other
//! ports lose no packet.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::ether::{self, BROADCAST, mac};
use conformance::home::{Guard, summary, wait_within};
use conformance::packet::Rng;
use conformance::switch::vale;
use conformance::traffic::open;
use conformance::{Home, isolated, program, until};
use conformance_hostile::front_end::{EVENT_IDX, FrontEnd, MERGEABLE, OFFLOADS, PACKED, SIZE, VERSION_1, words32};
use unetmap::{Interest, Port};

/// A process that serves a guest.
struct Served {
    process: Guard,
    path: PathBuf,
}

impl Served {
    fn start(home: &Home, port: &str, more: &str) -> Served {
        let path = home.folder().join(format!("{}.sock", port.replace(':', "-")));
        let socket = format!("{}{more}", path.display());
        let mut command = Command::new(program("unetmap"));
        command.args(["vm", "serve", port, "--socket", &socket]).stdin(Stdio::null());
        let served = Served { process: Guard::spawn(&mut command), path };
        until("the port is served", || is_open(home, port));
        served
    }

    /// Connects a guest that has negotiated these features.
    fn guest(&self, features: u64) -> FrontEnd {
        let mut guest = None;
        until("the process listens", || {
            guest = FrontEnd::connect(&self.path).ok();
            guest.is_some()
        });
        let mut guest = guest.expect("just connected");
        guest.start(features | VERSION_1).expect("the messages are accepted");
        // Its answer follows those to all messages before.
        guest.ask(17).expect("the number of queues");
        guest
    }
}

/// Whether the port is open; there may be no daemon for a moment.
fn is_open(home: &Home, port: &str) -> bool {
    home.try_snapshot().is_some_and(|state| state.ports.iter().any(|other| other.name == port))
}

/// Sends the broadcast by which the switch learns the guest's address, and checks that the port receives it.
fn introduce(guest: &mut FrontEnd, port: &Port) {
    guest.transmit([0; 12], &ether::make(BROADCAST, mac(9), 9, 0));
    ether::expect(port, 9, (0, 1));
}

#[test]
fn a_guest_with_split_rings_is_a_port() {
    isolated(|home| exchange(home, MERGEABLE));
}

#[test]
fn a_guest_with_split_rings_and_event_indexes_is_a_port() {
    isolated(|home| exchange(home, EVENT_IDX));
}

#[test]
fn a_guest_with_packed_rings_is_a_port() {
    isolated(|home| exchange(home, PACKED | MERGEABLE));
}

#[test]
fn a_guest_with_packed_rings_and_event_indexes_is_a_port() {
    isolated(|home| exchange(home, PACKED | EVENT_IDX));
}

/// Frames go both ways, unchanged and in order, over several laps of the rings.
fn exchange(home: &Home, features: u64) {
    let port = open("vale0:a");
    let served = Served::start(home, "vale0:vm1", "");
    let mut guest = served.guest(features);
    introduce(&mut guest, &port);
    let frames = 3 * u64::from(SIZE) + 1;
    for seq in 1..=frames {
        guest.transmit([0; 12], &ether::make(BROADCAST, mac(9), 9, seq));
        ether::expect(&port, 9, (seq, seq + 1));
    }
    for from in (0..frames).step_by(50) {
        ether::send(&port, mac(9), mac(1), 5, (from, from + 50));
        for seq in from..from + 50 {
            let (header, frame) = guest.wait_packet();
            assert_eq!(header, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
            assert_eq!(ether::check(&frame), Ok((5, seq)));
        }
    }
    // The queues stop at a position, and go on there.
    let bases = [0, 1].map(|queue| guest.stop_queue(queue).expect("a base"));
    for (queue, base) in bases.into_iter().enumerate() {
        guest.start_queue(queue, base).expect("started again");
    }
    guest.transmit([0; 12], &ether::make(BROADCAST, mac(9), 9, frames + 1));
    ether::expect(&port, 9, (frames + 1, frames + 2));
    ether::send(&port, mac(9), mac(1), 5, (frames + 49, frames + 50));
    assert_eq!(ether::check(&guest.wait_packet().1), Ok((5, frames + 49)));
}

/// A TCP segment of `payload` bytes to be cut into frames of 1000, and its header.
fn large_packet(payload: usize) -> ([u8; 12], Vec<u8>) {
    let mut frame = vec![0; 14 + 20 + 20 + payload];
    frame[..6].copy_from_slice(&BROADCAST);
    frame[6..12].copy_from_slice(&mac(9));
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[46] = 0x50;
    frame.iter_mut().skip(54).enumerate().for_each(|(i, byte)| *byte = i as u8);
    // NEEDS_CSUM, TCPv4, headers of 54 bytes, segments of 1000, checksum at 34 + 16.
    (([1, 1, 54, 0, 232, 3, 34, 0, 16, 0, 0, 0]), frame)
}

/// A large packet stays whole between guests that have negotiated it, and is cut for others.
#[test]
fn large_packets_stay_whole_between_guests_and_are_cut_for_others() {
    isolated(|home| {
        let port = open("vale0:a");
        let [one, two, three] = ["vale0:vm1", "vale0:vm2", "vale0:vm3"].map(|port| Served::start(home, port, ""));
        let mut sender = one.guest(MERGEABLE | OFFLOADS);
        let mut whole = two.guest(MERGEABLE | OFFLOADS | PACKED);
        let mut cut = three.guest(0);
        let (header, frame) = large_packet(7500);
        sender.transmit(header, &frame);
        let (got_header, got) = whole.wait_packet();
        assert_eq!((&got_header[..10], &got), (&header[..10], &frame));
        // Without offloads: eight frames, with checksums.
        let received = (0..8).map(|_| cut.wait_packet()).collect::<Vec<_>>();
        let others = conformance::traffic::receive(&port, 8).unwrap_or_else(|e| panic!("{e}"));
        for ((header, frame), other) in received.into_iter().zip(others) {
            assert_eq!((&header[..10], &frame), (&[0; 10][..], &other));
            assert_eq!(tcp_sum(&frame), 0xffff, "the checksum of {} bytes", frame.len());
        }
    });
}

/// The sum of the TCP segment in an IPv4 frame with its pseudo header, 0xffff if its checksum is right.
fn tcp_sum(frame: &[u8]) -> u32 {
    let segment = &frame[34..];
    let pseudo = [&frame[26..34], &[0, 6], &(segment.len() as u16).to_be_bytes()].concat();
    let sum = |bytes: &[u8]| -> u32 {
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
    };
    let sum = sum(&pseudo) + sum(segment);
    (sum & 0xffff) + (sum >> 16)
}

/// `unetmap vale port` serves in the background; the guest's port is one like others, and ends with `off`.
#[test]
fn a_port_is_served_in_the_background_until_it_is_turned_off() {
    isolated(|home| {
        let path = home.folder().join("vm1.sock");
        let path = path.to_str().expect("UTF-8");
        let set = |value: &str| vale(&["port", "vale0:vm1", "--vhost-user", value]);
        let (status, out, err) = set(path);
        assert_eq!((status, err.as_str()), (0, ""), "{out}");
        assert!(set(path).1.contains("already"));
        assert!(set("/elsewhere").2.contains("end it first"));
        let mut guest = FrontEnd::connect(path.as_ref()).expect("it listens");
        guest.start(VERSION_1).expect("served");
        let port = open("vale0:a");
        introduce(&mut guest, &port);
        // It is a setting of the configuration file, from which it is made again.
        let file = home.folder().join("switches.toml");
        let config = |action: &str| {
            let out = Command::new(program("unetmap")).args(["config", action, "--file"]).arg(&file).output();
            let out = out.expect("unetmap runs");
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        };
        config("save");
        let text = std::fs::read_to_string(&file).expect("saved");
        assert!(text.contains(&format!("vhost-user = \"{path}\"")), "{text}");
        assert_eq!(set("off").0, 0);
        until("the port is gone", || !is_open(home, "vale0:vm1"));
        assert!(set("off").1.contains("no process"));
        config("apply");
        let mut guest = FrontEnd::connect(path.as_ref()).expect("it listens again");
        guest.start(VERSION_1).expect("served");
        guest.transmit([0; 12], &ether::make(BROADCAST, mac(9), 9, 1));
        ether::expect(&port, 9, (1, 2));
        assert_eq!(set("off").0, 0);
    });
}

/// The hypervisor may listen in its place: it is connected to again when it has closed the connection.
#[test]
fn a_hypervisor_that_listens_is_connected_to_again() {
    isolated(|home| {
        let port = open("vale0:a");
        let path = home.folder().join("hypervisor.sock");
        let mut command = Command::new(program("unetmap"));
        command.args(["vm", "serve", "vale0:vm1", "--client"]).arg(&path).stdin(Stdio::null());
        let _process = Guard::spawn(&mut command);
        until("the port is served", || is_open(home, "vale0:vm1"));
        let listener = UnixListener::bind(&path).expect("a socket");
        for seq in 0..3 {
            let (socket, _) = listener.accept().expect("a connection");
            let mut guest = FrontEnd::new(socket).expect("a guest");
            guest.start(VERSION_1 | PACKED).expect("served");
            guest.transmit([0; 12], &ether::make(BROADCAST, mac(9), 9, seq));
            ether::expect(&port, 9, (seq, seq + 1));
        }
    });
}

/// When the daemon is replaced the guest keeps its connection, and its port is opened again.
#[test]
fn a_guest_goes_on_when_the_daemon_is_replaced() {
    isolated(|home| {
        let served = Served::start(home, "vale0:vm1", "");
        let mut guest = served.guest(MERGEABLE);
        introduce(&mut guest, &open("vale0:a"));
        rustix::process::kill_process(home.daemon(), rustix::process::Signal::KILL).expect("killed");
        until("another daemon serves a port", || Port::open("vale0:a").is_ok());
        let port = open("vale0:a");
        until("the guest's port is open again", || is_open(home, "vale0:vm1"));
        until("its packets arrive", || {
            guest.transmit([0; 12], &ether::make(BROADCAST, mac(9), 9, 1));
            port.poll(Interest::RX, Some(Duration::from_millis(20))).expect("the daemon runs");
            !port.rx_rings()[0].is_empty()
        });
    });
}

/// The hypervisor shortens the guest's memory under traffic: its own process ends, no other port notices.
#[test]
fn memory_that_is_cut_short_ends_its_own_process_alone() {
    isolated(|home| {
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        let mut served = Served::start(home, "vale0:vm1", "");
        let mut guest = served.guest(MERGEABLE);
        introduce(&mut guest, &a);
        let other = Served::start(home, "vale0:vm2", "");
        let mut other = other.guest(MERGEABLE);
        guest.memory_file().and_then(|file| file.set_len(0)).expect("shortened");
        guest.kick(1);
        // No access of this test to the guest's memory from here on.
        let status = wait_within(&mut served.process.0, Duration::from_secs(20)).expect("the process ends");
        assert!(!status.success());
        until("its port is gone", || !is_open(home, "vale0:vm1"));
        ether::drain(&b);
        ether::send(&a, BROADCAST, mac(1), 3, (0, 500));
        ether::expect(&b, 3, (0, 500));
        for _ in 0..100 {
            assert_eq!(ether::check(&other.wait_packet().1).map(|got| got.0), Ok(3));
        }
        home.assert_serves();
    });
}

/// Random words in rings and memory, random messages, and a socket that is closed at any of them.
#[test]
fn random_front_ends_lose_no_frame_of_others() {
    isolated(|home| {
        let (a, b) = (open("vale1:a"), open("vale1:b"));
        let mut served: Vec<Served> = Vec::new();
        let (mut ended, mut messages, mut sent) = (0, 0, 0);
        for round in 0..120u64 {
            let mut rng = Rng(round + 1);
            if served.is_empty() {
                served.push(Served::start(home, "vale0:vm1", ""));
            }
            let features = [MERGEABLE, PACKED, EVENT_IDX, PACKED | EVENT_IDX | MERGEABLE][round as usize % 4];
            let mut guest = served[0].guest(features);
            for _ in 0..rng.below(60) {
                messages += 1;
                if disturb(&mut guest, &mut rng).is_err() {
                    ended += 1;
                    break;
                }
            }
            drop(guest);
            ether::send(&a, BROADCAST, mac(1), 3, (sent, sent + 50));
            ether::expect(&b, 3, (sent, sent + 50));
            sent += 50;
            // It ends by SIGBUS if its memory was shortened, and by nothing else.
            if let Ok(Some(status)) = served[0].process.0.try_wait() {
                use std::os::unix::process::ExitStatusExt as _;
                assert_eq!(status.signal(), Some(7), "round {round}: {status}");
                served.clear();
            }
        }
        // An honest guest is served afterwards.
        served.clear();
        until("the port is gone", || !is_open(home, "vale0:vm1"));
        let port = open("vale0:a");
        let last = Served::start(home, "vale0:vm1", "");
        introduce(&mut last.guest(MERGEABLE), &port);
        summary(&format!("rounds 120, steps {messages}, connections refused {ended}, frames of others {sent}, lost 0"));
    });
}

/// One step of a front end without rules.
fn disturb(guest: &mut FrontEnd, rng: &mut Rng) -> std::io::Result<()> {
    let word = |rng: &mut Rng| match rng.below(4) {
        0 => rng.below(4) as u32,
        1 => u32::MAX - rng.below(4) as u32,
        _ => rng.below(1 << 32) as u32,
    };
    match rng.below(30) {
        // Anything into the rings.
        0..=20 => {
            for _ in 0..rng.below(200) {
                let queue = rng.below(2) as usize;
                let part = [0, 0x4000, 0x8000][rng.below(3) as usize];
                let at = 0x10000 * queue + part + 4 * rng.below(512) as usize;
                let value = if rng.below(2) == 0 { word(rng) } else { 1 << rng.below(32) };
                guest.words.store_u32(at, value);
            }
            guest.kick(0);
            guest.kick(1);
            Ok(())
        }
        21..=22 => guest.start_queue(rng.below(2) as usize, word(rng)),
        23..=24 => guest.send_memory(4096 * rng.below(1100)),
        // A valid request with any numbers, any descriptors.
        25..=27 => {
            let request = [2, 4, 5, 8, 9, 10, 12, 13, 14, 16, 18, 20, 34, 37, 38][rng.below(15) as usize];
            let payload: Vec<u8> = (0..rng.below(18)).flat_map(|_| word(rng).to_ne_bytes()).collect();
            let file = guest.file.try_clone()?;
            let fds = vec![file.as_fd(); rng.below(3) as usize];
            guest.send_flagged(request, 1 | (8 * rng.below(2) as u32), &payload, &fds)
        }
        28 => {
            let queue = rng.below(2) as u32;
            guest.send(18, &words32([queue, rng.below(2) as u32]), &[])
        }
        // Half a message; the connection closes.
        _ => {
            guest.send(rng.below(50) as u32, &[0; 3], &[])?;
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
    }
}
