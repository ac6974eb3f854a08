// SPDX-License-Identifier: BSD-2-Clause
//! Virtual machines as ports of a switch, by a front end without a guest; and front ends that break every rule: other
//! ports lose no packet.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::ether::{self, BROADCAST, mac};
use conformance::home::{Guard, summary, wait_within};
use conformance::net::{CABLE, DIRECT, Net};
use conformance::packet::Rng;
use conformance::switch::vale;
use conformance::traffic::{bytes_of, open, receive};
use conformance::{Home, isolated, isolated_with_interfaces, program, until};
use conformance_hostile::front_end::{
    EVENT_IDX, FrontEnd, MEMORY, MERGEABLE, OFFLOADS, PACKED, SIZE, VERSION_1, words32,
};
use conformance_hostile::served::{self, Served, config, cpu_time, is_open, unreceived, word};
use rustix::event::{EventfdFlags, eventfd};
use unetmap::{Interest, Port};

fn serve(home: &Home, port: &str) -> Served {
    Served::start(home, ["vm", "--socket"], port, "")
}

/// Connects a guest that has negotiated these features.
fn connect_guest(served: &Served, features: u64) -> FrontEnd {
    let mut guest = served.peer(|path| connect(path, features));
    // No frame: it is dropped. When the buffer has returned, what arrived before the guest is discarded.
    guest.transmit([0; 12], &[]);
    guest
}

fn connect(path: &Path, features: u64) -> io::Result<FrontEnd> {
    let mut guest = FrontEnd::connect(path)?;
    guest.start(features | VERSION_1)?;
    // Its answer, the number of queues, follows those to all messages before.
    guest.ask(17)?;
    Ok(guest)
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
    let served = serve(home, "vale0:vm1");
    let mut guest = connect_guest(&served, features);
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

/// Many frames of several cache lines, which are copied into the buffers that the switch returned last: each arrives
/// whole and once, over several laps of the port's rings, and each buffer stays in one slot.
#[test]
fn large_frames_arrive_whole_and_in_order() {
    isolated(|home| {
        let port = open("vale0:a");
        let served = serve(home, "vale0:vm1");
        let mut guest = connect_guest(&served, MERGEABLE);
        introduce(&mut guest, &port);
        let frame = |seq: u64| large_frame(seq, 1460);
        // As many as the guest has buffers, at most, offered together.
        let batches = [1, 5, 64, 100, 3].into_iter().cycle().take(100);
        let (mut sent, mut returned) = (0, 0);
        for batch in batches {
            transmit_together(&mut guest, (sent..sent + batch).map(frame));
            let got = receive(&port, batch as usize).unwrap_or_else(|e| panic!("{e}"));
            got.iter().zip(sent..).for_each(|(got, seq)| assert_eq!(got, &frame(seq), "packet {seq} of {batch}"));
            sent += batch;
            // And back.
            for _ in 0..batch.min(20) {
                let mut frame = frame(returned);
                frame[..6].copy_from_slice(&mac(9));
                frame[6..12].copy_from_slice(&mac(1));
                let slot = port.tx_rings()[0].slot(port.tx_rings()[0].head());
                slot.frame().write(0, &frame);
                slot.set_len_flags(frame.len() as u16, 0);
                port.tx_rings()[0].advance(1);
                port.txsync().expect("a switch");
                assert_eq!(guest.wait_packet().1, frame, "packet {returned} to the guest");
                returned += 1;
            }
        }
        assert!(sent > 3 * u64::from(port.rx_rings()[0].num_slots()), "{sent} packets");
        let slots =
            |ring: &unetmap::Ring| ring.run(ring.head(), ring.num_slots()).map(|s| s.buf_idx()).collect::<Vec<_>>();
        let mut buffers = slots(&port.rx_rings()[0]);
        let all = buffers.len();
        let exchanged = buffers.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        assert!(exchanged > 1, "buffers were exchanged: {exchanged}");
        buffers.sort_unstable();
        buffers.dedup();
        assert_eq!(buffers.len(), all, "each buffer is in one slot");
    });
}

/// Frames of several slots, more at a time than may be in flight to the switch, arrive whole and in order.
#[test]
fn more_large_frames_than_may_be_in_flight_arrive() {
    isolated(|home| {
        const FRAMES: u64 = 100;
        const FRAME: usize = 8000;
        let port = open("vale0:a");
        let served = serve(home, "vale0:vm1");
        let mut guest = connect_guest(&served, MERGEABLE);
        introduce(&mut guest, &port);
        let frame = |seq: u64| large_frame(seq, FRAME);
        let slots = FRAME.div_ceil(port.rx_rings()[0].buf_size() as usize) * FRAMES as usize;
        for lap in 0..10 {
            let seqs = lap * FRAMES..(lap + 1) * FRAMES;
            transmit_together(&mut guest, seqs.clone().map(frame));
            let got = receive(&port, slots).unwrap_or_else(|e| panic!("{e}")).concat();
            assert_eq!(got.len(), FRAMES as usize * FRAME);
            got.chunks(FRAME).zip(seqs).for_each(|(got, seq)| assert!(got == frame(seq), "packet {seq}"));
        }
    });
}

/// A broadcast of `bytes` bytes whose contents tell its number.
fn large_frame(seq: u64, bytes: usize) -> Vec<u8> {
    let mut frame = ether::make(BROADCAST, mac(9), 9, seq).to_vec();
    frame.extend((frame.len()..bytes).map(|i| (seq * 31 + i as u64) as u8));
    frame
}

/// Offers all frames, at most as many as the guest has buffers, then waits until the back end has returned them.
fn transmit_together(guest: &mut FrontEnd, frames: impl Iterator<Item = Vec<u8>>) {
    let count = frames.map(|frame| guest.offer_packet([0; 12], &frame)).count();
    (0..count).for_each(|_| until("a sent buffer returns", || guest.take_used(1).is_some()));
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
        let [one, two, three] = ["vale0:vm1", "vale0:vm2", "vale0:vm3"].map(|port| serve(home, port));
        let mut sender = connect_guest(&one, MERGEABLE | OFFLOADS);
        let mut whole = connect_guest(&two, MERGEABLE | OFFLOADS | PACKED);
        let mut cut = connect_guest(&three, 0);
        let (header, frame) = large_packet(7500);
        sender.transmit(header, &frame);
        let (got_header, got) = whole.wait_packet();
        assert_eq!((&got_header[..10], &got), (&header[..10], &frame));
        // Without offloads: eight frames, with checksums.
        let received = (0..8).map(|_| cut.wait_packet()).collect::<Vec<_>>();
        let others = receive(&port, 8).unwrap_or_else(|e| panic!("{e}"));
        for ((header, frame), other) in received.into_iter().zip(others) {
            assert_eq!((&header[..10], &frame), (&[0; 10][..], &other));
            assert_eq!(tcp_sum(&frame), 0xffff, "the checksum of {} bytes", frame.len());
        }
    });
}

/// The port's packets have a virtio-net header while the guest has offloads, whatever the guest before had.
#[test]
fn the_port_has_a_header_for_guests_with_offloads() {
    isolated(|home| {
        let port = open("vale0:a");
        let served = serve(home, "vale0:vm1");
        for features in [MERGEABLE, MERGEABLE | OFFLOADS, PACKED, PACKED | OFFLOADS | MERGEABLE, 0] {
            let mut guest = connect_guest(&served, features);
            introduce(&mut guest, &port);
            let bytes = unetmap::switch::vnet_header("vale0:vm1").unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(bytes, if features & OFFLOADS != 0 { 12 } else { 0 }, "features {features:#x}");
            let (header, frame) = large_packet(7500);
            if features & OFFLOADS != 0 {
                guest.transmit(header, &frame);
                let cut = receive(&port, 8).unwrap_or_else(|e| panic!("{e}"));
                assert!(cut.iter().all(|frame| tcp_sum(frame) == 0xffff));
            } else {
                // A request that was not negotiated is no request.
                guest.transmit(header, &frame[..1000]);
                let got = receive(&port, 1).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(got, [&frame[..1000]]);
            }
            guest.transmit([0; 12], &ether::make(BROADCAST, mac(9), 9, 1));
            ether::expect(&port, 9, (1, 2));
            ether::send(&port, mac(9), mac(1), 5, (0, 50));
            for seq in 0..50 {
                let (header, frame) = guest.wait_packet();
                assert_eq!(header, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
                assert_eq!(ether::check(&frame), Ok((5, seq)));
            }
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
        config("save", &file);
        let text = std::fs::read_to_string(&file).expect("saved");
        assert!(text.contains(&format!("vhost-user = \"{path}\"")), "{text}");
        assert_eq!(set("off").0, 0);
        until("the port is gone", || !is_open(home, "vale0:vm1"));
        let (status, _, err) = set("off");
        assert!(status == 1 && err.contains("there is no such port"), "{err}");
        config("apply", &file);
        let mut guest = FrontEnd::connect(path.as_ref()).expect("it listens again");
        guest.start(VERSION_1).expect("served");
        guest.transmit([0; 12], &ether::make(BROADCAST, mac(9), 9, 1));
        ether::expect(&port, 9, (1, 2));
        assert_eq!(set("off").0, 0);
    });
}

/// The log of a process in the background is added to, and no file of others is written in its place.
#[test]
fn a_log_is_added_to_and_a_link_is_not_followed() {
    isolated(|home| {
        let path = |name: &str| home.folder().join(name).to_str().expect("UTF-8").to_owned();
        let read = |name: &str| std::fs::read_to_string(path(name)).expect("a file");
        let set = |port: &str, option: &str, socket: &str| vale(&["port", port, option, socket]);
        std::fs::write(path("a.log"), "before\n").expect("written");
        let (status, out, _) = set("vale0:a", "--vhost-user", &path("a"));
        assert!(status == 0 && out.contains("a.log"), "{out}");
        // Another port at its socket: the error is that port's own, and the log stays.
        let (status, _, err) = set("vale0:b", "--vhost-user", &path("a"));
        assert!(status == 1 && err.contains("another process listens") && !err.contains("vale0:a"), "{err}");
        assert!(read("a.log").starts_with("before\nunetmap vm: vale0:a: ready\n"), "{}", read("a.log"));
        // Both ends of a memif may be here.
        for (port, socket) in [("vale0:m", path("m")), ("vale0:n", format!("{},role=client", path("m")))] {
            assert_eq!(set(port, "--memif", &socket).0, 0);
        }
        until("the other end is noted", || read("m.log").contains("a peer has connected"));
        assert!(read("m.client.log").contains("vale0:n: ready") && !read("m.log").contains("vale0:n"));
        std::fs::write(path("victim"), "untouched").expect("written");
        std::os::unix::fs::symlink(path("victim"), path("l.log")).expect("linked");
        let (status, _, err) = set("vale0:l", "--vhost-user", &path("l"));
        assert!(status == 1 && err.contains("symbolic link"), "{err}");
        std::fs::hard_link(path("victim"), path("h.log")).expect("linked");
        let (status, _, err) = set("vale0:h", "--vhost-user", &path("h"));
        assert!(status == 1 && err.contains("has other names"), "{err}");
        assert_eq!(read("victim"), "untouched");
        // A start that fails leaves no log.
        std::fs::create_dir(path("folder")).expect("a folder");
        assert_eq!(set("vale0:f", "--vhost-user", &path("folder")).0, 1);
        assert!(!std::fs::exists(path("folder.log")).expect("known"));
        for (port, option) in [("vale0:a", "--vhost-user"), ("vale0:m", "--memif"), ("vale0:n", "--memif")] {
            assert_eq!(set(port, option, "off").0, 0);
        }
    });
}

/// A port is served by one process, and a command that would leave out a setting is refused.
#[test]
fn a_port_has_one_process_and_a_command_one_change() {
    isolated(|home| {
        let served = serve(home, "vale0:vm1");
        let mut command = Command::new(program("unetmap"));
        command.args(["vm", "serve", "vale0:vm1", "--socket"]).arg(home.folder().join("second"));
        let second = command.stdin(Stdio::null()).output().expect("unetmap");
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(!second.status.success() && said.contains("vale0:vm1") && said.contains("in use"), "{said}");
        drop(served);
        let path = home.folder().join("vm2");
        let (status, _, err) =
            vale(&["port", "vale0:vm2", "--vhost-user", path.to_str().expect("UTF-8"), "access", "10"]);
        assert!(status == 2 && err.contains("two commands"), "{err}");
        assert!(!is_open(home, "vale0:vm2"));
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

/// When the daemon is killed the guest keeps its connection, and its port is opened again.
#[test]
fn a_guest_goes_on_when_the_daemon_is_killed() {
    isolated(|home| {
        let served = serve(home, "vale0:vm1");
        let mut guest = connect_guest(&served, MERGEABLE);
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
        // Without a guest as well.
        drop(guest);
        rustix::process::kill_process(home.daemon(), rustix::process::Signal::KILL).expect("killed");
        until("another daemon serves a port", || Port::open("vale0:a").is_ok());
        until("the port without a guest is open again", || is_open(home, "vale0:vm1"));
    });
}

#[test]
fn a_guest_with_split_rings_goes_on_with_the_next_process() {
    isolated(|home| kill_under_traffic(home, MERGEABLE));
}

#[test]
fn a_guest_with_packed_rings_goes_on_with_the_next_process() {
    isolated(|home| kill_under_traffic(home, PACKED | MERGEABLE));
}

/// The port's process is killed again and again while both sides send. With the region of in-flight descriptors the
/// guest goes on: each frame that it sends arrives, and none of its buffers is lost.
fn kill_under_traffic(home: &Home, features: u64) {
    const KILLS: u64 = 40;
    const FRAMES: u64 = 60;
    let features = features | VERSION_1;
    let port = open("vale0:a");
    let path = home.folder().join("vm1.sock");
    let serve = || {
        let mut command = Command::new(program("unetmap"));
        command.args(["vm", "serve", "vale0:vm1", "--socket"]).arg(&path).stdin(Stdio::null());
        let process = Guard::spawn(&mut command);
        until("the port is served", || is_open(home, "vale0:vm1"));
        process
    };
    let mut process = serve();
    let mut guest = FrontEnd::connect(&path).expect("it listens");
    guest.start_kept(features).expect("served");
    introduce(&mut guest, &port);
    let (mut arrived, mut returned, mut received) = (vec![0u8; (1 + KILLS * FRAMES) as usize], 0, 0);
    let mut look = |guest: &mut FrontEnd| {
        while guest.take_used(1).is_some() {
            returned += 1;
        }
        while let Some((_, frame)) = guest.receive() {
            received += u64::from(ether::check(&frame).expect("a whole frame").0 == 5);
        }
        port.poll(Interest::RX, Some(Duration::ZERO)).expect("the daemon runs");
        let ring = &port.rx_rings()[0];
        for slot in ring.available() {
            let (sender, seq) = ether::check(&bytes_of(&slot)).expect("a whole frame");
            assert_eq!(sender, 9);
            arrived[seq as usize] += 1;
        }
        ring.advance(ring.space());
        let missing = arrived[1..].iter().filter(|count| **count == 0).count();
        let twice = arrived.iter().filter(|count| **count > 1).count();
        (returned, missing, twice, received)
    };
    let mut rng = Rng(1);
    for kill in 0..KILLS {
        for n in 1..=FRAMES {
            guest.offer_packet([0; 12], &ether::make(BROADCAST, mac(9), 9, kill * FRAMES + n));
        }
        ether::send(&port, mac(9), mac(1), 5, (0, 100));
        let early = rng.below(FRAMES);
        until("some buffers return", || look(&mut guest).0 >= kill * FRAMES + early);
        if kill % 2 == 0 {
            ether::send(&port, mac(9), mac(1), 5, (100, 200));
        }
        process.0.kill().and_then(|()| process.0.wait()).expect("killed");
        until("its port is gone", || !is_open(home, "vale0:vm1"));
        process = serve();
        guest.reconnect(&path, features).expect("served again");
        until("all buffers return", || look(&mut guest).0 == (kill + 1) * FRAMES);
    }
    until("all frames arrive", || look(&mut guest).1 == 0);
    let (.., twice, received) = look(&mut guest);
    // No buffer of the guest is lost: as many frames arrive at once.
    // What arrives before the process has seen the guest is discarded.
    until("a frame arrives", || {
        ether::send(&port, mac(9), mac(1), 6, (0, 1));
        std::iter::from_fn(|| guest.receive()).any(|(_, frame)| matches!(ether::check(&frame), Ok((6, _))))
    });
    while guest.receive().is_some() {}
    ether::send(&port, mac(9), mac(1), 7, (0, SIZE.into()));
    let mut filled = 0;
    until("all buffers are filled", || {
        filled += std::iter::from_fn(|| guest.take_used(0)).count();
        filled == usize::from(SIZE)
    });
    summary(&format!("kills {KILLS}, frames {}, lost 0, twice {twice}, received {received}", KILLS * FRAMES));
}

/// Requests for regions of in-flight descriptors that are invalid, too many, or too small end the connection or fail;
/// the process goes on.
#[test]
fn regions_of_in_flight_descriptors_are_checked() {
    isolated(|home| {
        let served = serve(home, "vale0:vm1");
        for wrong in [[0, SIZE], [3, SIZE], [u16::MAX, SIZE], [2, 0], [2, 40000]] {
            let guest = FrontEnd::connect(&served.path).expect("it listens");
            assert!(guest.ask_inflight(wrong).is_err(), "{wrong:?}");
        }
        let guest = FrontEnd::connect(&served.path).expect("it listens");
        for _ in 0..2000 {
            // Its files are closed here, and there.
            guest.ask_inflight([2, SIZE]).expect("a region");
        }
        drop(guest);
        let describe = |bytes: u64, offset: u64, sizes: [u16; 4]| -> Vec<u8> {
            let sizes = sizes.into_iter().flat_map(u16::to_ne_bytes);
            [bytes, offset].into_iter().flat_map(u64::to_ne_bytes).chain(sizes).collect()
        };
        for wrong in [
            describe(0, 0, [2, SIZE, 0, 0]),
            describe(1 << 20, u64::MAX - 4095, [2, SIZE, 0, 0]),
            describe(1 << 20, 1, [2, SIZE, 0, 0]),
            describe(1 << 20, MEMORY, [2, SIZE, 0, 0]),
            // Large enough, but not for the queues that are started afterwards.
            describe(1 << 20, 0, [2, SIZE / 2, 0, 0]),
            describe(1 << 20, 0, [1, SIZE, 0, 0]),
        ] {
            let mut guest = FrontEnd::connect(&served.path).expect("it listens");
            let file = guest.file.try_clone().expect("the file");
            guest.send(32, &wrong, &[file.as_fd()]).expect("sent");
            let started = guest.start(VERSION_1).and_then(|()| guest.ask(17).map(drop));
            assert!(started.is_err(), "{wrong:?}");
        }
        let port = open("vale0:a");
        introduce(&mut connect_guest(&served, MERGEABLE), &port);
    });
}

/// Front ends that ask for regions of in-flight descriptors and receive nothing have one descriptor in flight, on
/// whatever number of connections: the kernel counts them against all processes of the user.
#[test]
fn a_front_end_that_receives_nothing_has_one_descriptor_in_flight() {
    isolated(|home| {
        let (served, other) = (serve(home, "vale0:vm1"), serve(home, "vale0:vm2"));
        let get_inflight = || [[0; 16].as_slice(), &[2, 0, 128, 0, 0, 0, 0, 0]].concat();
        let first = served.peer(FrontEnd::connect);
        (0..20).for_each(|_| first.send(31, &get_inflight(), &[]).expect("sent"));
        until("an answer is there", || unreceived(&first.socket) > 0);
        first.socket.shutdown(Shutdown::Write).expect("a connection");
        // Each has ended its side, so that the next one is accepted.
        let more: Vec<_> = (0..10).map(|_| FrontEnd::connect(&served.path).expect("it listens")).collect();
        for guest in &more {
            guest.send(31, &get_inflight(), &[]).expect("sent");
            guest.socket.shutdown(Shutdown::Write).expect("a connection");
        }
        let honest = other.peer(FrontEnd::connect);
        (0..300).for_each(|_| drop(honest.ask_inflight([2, SIZE]).expect("a region")));
        let in_flight: u32 = more.iter().chain([&first]).map(|guest| unreceived(&guest.socket)).sum();
        assert_eq!(in_flight, 1);
        drop((first, more));
        let mut guest = served.peer(FrontEnd::connect);
        guest.start_kept(MERGEABLE | VERSION_1).expect("served");
        introduce(&mut guest, &open("vale0:a"));
    });
}

/// A kick that is readable for ever takes no CPU: it is an eventfd, and one whose reads change little is looked at
/// every millisecond. Packets move nevertheless.
#[test]
fn a_kick_that_is_always_readable_takes_little_of_a_cpu() {
    const WATCHED: Duration = Duration::from_secs(2);
    isolated(|home| {
        let port = open("vale0:a");
        let served = serve(home, "vale0:vm1");
        let (pipe, other_end) = rustix::pipe::pipe().expect("a pipe");
        drop(other_end);
        let zero = std::fs::File::open("/dev/zero").expect("a file");
        for (request, fd) in [(12, pipe.as_fd()), (13, pipe.as_fd()), (12, zero.as_fd())] {
            let mut guest = served.peer(|path| connect(path, MERGEABLE));
            guest.send(request, &1u64.to_ne_bytes(), &[fd]).expect("sent");
            assert!(guest.ask(17).is_err(), "request {request} is accepted");
        }
        let mut guest = connect_guest(&served, MERGEABLE);
        let kick = eventfd(0, EventfdFlags::SEMAPHORE).expect("an eventfd");
        rustix::io::write(&kick, &(1u64 << 62).to_ne_bytes()).expect("it counts");
        for queue in 0..2u64 {
            guest.send(12, &queue.to_ne_bytes(), &[kick.as_fd()]).expect("sent");
        }
        guest.ask(17).expect("accepted");
        introduce(&mut guest, &port);
        let before = cpu_time(&served.process);
        std::thread::sleep(WATCHED);
        let used = cpu_time(&served.process) - before;
        summary(&format!("CPU time in {} ms: {used} ticks of 10 ms", WATCHED.as_millis()));
        assert!(used < 40, "{used} ticks of 10 ms");
        introduce(&mut guest, &port);
        ether::send(&port, mac(9), mac(1), 5, (0, 20));
        for seq in 0..20 {
            assert_eq!(ether::check(&guest.wait_packet().1), Ok((5, seq)));
        }
    });
}

/// The header of a persistent port while a guest has it is that of the guest: afterwards it is that of before.
#[test]
fn a_persistent_port_has_its_header_again_after_a_guest() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let path = home.folder().join("vm1.sock");
        let ctl = program("vale-ctl").display().to_string();
        let in_namespace = || {
            let header = || unetmap::switch::vnet_header("vale0:v0").unwrap_or_else(|e| panic!("{e}"));
            let set = |value: &str| {
                let (status, _, err) = vale(&["port", "vale0:v0", "--vhost-user", value]);
                assert_eq!((status, err.as_str()), (0, ""));
            };
            for arguments in [["-n", "v0"], ["-a", "vale0:v0"]] {
                let out = Command::new(&ctl).args(arguments).output().expect("vale-ctl");
                assert!(out.status.success(), "{out:?}");
            }
            for before in [0, 10] {
                unetmap::switch::set_vnet_header("v0", before).unwrap_or_else(|e| panic!("{e}"));
                set(path.to_str().expect("UTF-8"));
                let _guest = connect(&path, MERGEABLE | OFFLOADS).expect("served");
                until("the guest's header", || header() == 12);
                set("off");
                until("the header of before", || header() == before);
            }
        };
        net.near.run(in_namespace).expect("a namespace");
        net.assert_alive();
    });
}

/// The log of written pages is not offered, and what needs it is refused: hypervisors do not begin a migration then.
#[test]
fn live_migration_is_refused_by_name() {
    const LOG_ALL: u64 = 1 << 26;
    const LOG_SHMFD: u64 = 1 << 1;
    isolated(|home| {
        let served = serve(home, "vale0:vm1");
        let mut guest = connect_guest(&served, 0);
        assert_eq!(guest.ask(1).expect("features") & LOG_ALL, 0);
        let protocol = guest.ask(15).expect("features of the protocol");
        assert_eq!(protocol & LOG_SHMFD, 0);
        // With a reply to each message: SET_LOG_BASE, and features with the log.
        for (request, payload) in [(6, vec![0; 16]), (2, (VERSION_1 | LOG_ALL).to_ne_bytes().to_vec())] {
            guest.send_flagged(request, 1 | 8, &payload, &[]).expect("sent");
            assert_ne!(guest.reply(request).expect("a reply"), [0; 8], "request {request}");
        }
        introduce(&mut guest, &open("vale0:a"));
    });
}

/// The hypervisor shortens the guest's memory under traffic: its own process ends, no other port notices.
#[test]
fn memory_that_is_cut_short_ends_its_own_process_alone() {
    isolated(|home| {
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        let mut served = serve(home, "vale0:vm1");
        let mut guest = connect_guest(&served, MERGEABLE);
        introduce(&mut guest, &a);
        let other = serve(home, "vale0:vm2");
        let mut other = connect_guest(&other, MERGEABLE);
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
    let features = [MERGEABLE, PACKED, EVENT_IDX, PACKED | EVENT_IDX | MERGEABLE];
    isolated(|home| {
        let by_round = |path: &Path, round: u64| connect(path, features[round as usize % features.len()]);
        served::disturb(|| serve(home, "vale0:vm1"), by_round, 60, disturb);
        // An honest guest is served afterwards.
        until("the port is gone", || !is_open(home, "vale0:vm1"));
        let port = open("vale0:a");
        let last = serve(home, "vale0:vm1");
        introduce(&mut connect_guest(&last, MERGEABLE), &port);
    });
}

/// One step of a front end without rules.
fn disturb(guest: &mut FrontEnd, rng: &mut Rng) -> io::Result<()> {
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
            let request = [2, 4, 5, 8, 9, 10, 12, 13, 14, 16, 18, 20, 31, 32, 34, 37, 38][rng.below(17) as usize];
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
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
}
