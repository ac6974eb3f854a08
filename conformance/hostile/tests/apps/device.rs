// SPDX-License-Identifier: BSD-2-Clause
//! Pass-through: programs that have a pipe's end in the memory of a device, as in a guest, without a daemon; and guests
//! that write anything into that memory, or vanish.

use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use conformance::home::{Guard, summary, wait_within};
use conformance::packet::{self, Rng};
use conformance::replace::replace;
use conformance::traffic::{assert_pipe_works, bytes_of, expect, open, send};
use conformance::{Home, isolated, program, until};
use conformance_hostile::served::unreceived;
use rustix::process::Signal;
use unetmap::{Interest, Port};
use unetmap_mem::{GuestWords, MappedRange};
use unetmap_sys::event::hung_up;
use unetmap_sys::{Mapping, socket::recv};

const GUEST_PORT: &str = "netmap:vm1{1";
const HOST_PORT: &str = "netmap:vm1}1";

fn serve(home: &Home) -> (Guard, PathBuf) {
    let path = home.folder().join("vm1.sock");
    let mut command = Command::new(program("unetmap"));
    command.args(["vm", "device", GUEST_PORT, "--socket"]).arg(&path).stdin(Stdio::null());
    let process = Guard::spawn(&mut command);
    until("the device is served", || UnixStream::connect(&path).is_ok());
    (process, path)
}

fn refused(home: &Home, port: &str) -> Output {
    let path = home.folder().join("other.sock");
    let mut command = Command::new(program("unetmap"));
    command.args(["vm", "device", port, "--socket"]).arg(&path).stdin(Stdio::null()).output().expect("unetmap runs")
}

/// A program that finds the device, and no daemon.
fn guest(socket: &Path, args: &[&str]) -> Guard {
    let mut command = Command::new(program("traffic_client"));
    let nowhere = socket.with_extension("none");
    command.env("UNETMAP_DEVICE", socket).env("UNETMAP_SOCKET", &nowhere).env("UNETMAPD", "/nonexistent");
    Guard::spawn(command.args(args).stdin(Stdio::null()))
}

#[test]
fn packets_cross_both_ways_without_a_daemon_in_the_guest() {
    isolated(|home| {
        let (_process, socket) = serve(home);
        let port = open(HOST_PORT);
        let folder = home.folder().join("records");
        std::fs::create_dir(&folder).expect("a folder");
        let record = folder.join("sent");
        let mut sender = guest(&socket, &["send", GUEST_PORT, "7", record.to_str().expect("UTF-8")]);
        expect(&port, 7, 0, 50_000);
        // Asleep for a while: the guest's next packets wake it, and its release wakes the guest.
        std::thread::sleep(Duration::from_millis(300));
        expect(&port, 7, 50_000, 60_000);
        sender.kill();
        while port.poll(Interest::RX, Some(Duration::from_millis(300))).expect("the daemon runs").rx() {
            port.rx_rings()[0].advance(u32::MAX);
        }
        let mut receiver = guest(&socket, &["recv", GUEST_PORT, folder.to_str().expect("UTF-8")]);
        send(&port, 8, 0, 50_000).expect("sent");
        let record = folder.join("8");
        until("all packets arrive in the guest", || {
            std::fs::read(&record).is_ok_and(|bytes| bytes.get(..8) == Some(&50_000u64.to_ne_bytes()[..]))
        });
        receiver.signal(Signal::TERM);
        assert!(receiver.wait().success());
        let words = std::fs::read(&record).expect("a record");
        assert_eq!(words[8..], [0; 16], "missing and repeated packets");
    });
}

#[test]
fn a_guests_program_that_is_killed_is_succeeded_by_the_next() {
    const KILLS: u64 = 20;
    isolated(|home| {
        let (_process, socket) = serve(home);
        let port = open(HOST_PORT);
        let record = home.folder().join("sent");
        let (mut rng, mut all) = (Rng(1), 0);
        for sender in 0..KILLS {
            let mut process =
                guest(&socket, &["send", GUEST_PORT, &sender.to_string(), record.to_str().expect("UTF-8")]);
            let (enough, mut next) = (1 + rng.below(5000), 0);
            until("its packets arrive", || {
                port.poll(Interest::RX, Some(Duration::from_millis(20))).expect("the daemon runs");
                let ring = &port.rx_rings()[0];
                for slot in ring.available() {
                    let (from, seq) = packet::check(&bytes_of(&slot)).expect("a whole packet");
                    if from == sender {
                        assert_eq!(seq, next, "of sender {sender}");
                        next += 1;
                    }
                }
                ring.advance(u32::MAX);
                next >= enough
            });
            process.kill();
            all += next;
        }
        summary(&format!("kills {KILLS}, packets {all}, lost 0"));
    });
}

/// Maps the device's memory as a guest does.
fn map(socket: &Path) -> (GuestWords, usize) {
    let stream = UnixStream::connect(socket).expect("it listens");
    let (mut bytes, mut fds) = ([0; 24], Vec::new());
    until("the memory comes", || {
        recv(&stream, &mut bytes, &mut fds).expect("a message");
        !fds.is_empty()
    });
    let file = std::fs::File::from(fds.pop().expect("a descriptor"));
    let len = file.metadata().expect("a file").len() as usize;
    assert!(len.is_power_of_two(), "{len} bytes are no PCI device's");
    let map = Mapping::of_guest(file.as_fd(), 0, len).expect("mapped");
    (GuestWords::new(MappedRange::whole(Arc::new(map))), len)
}

/// A guest writes random words everywhere in its device. Nobody crashes, and another pipe loses nothing.
#[test]
fn a_guest_that_writes_anything_harms_only_its_device() {
    isolated(|home| {
        let (mut process, socket) = serve(home);
        let port = open(HOST_PORT);
        let (a, b) = (open("netmap:other{1"), open("netmap:other}1"));
        let (words, len) = map(&socket);
        let mut rng = Rng(3);
        for round in 0..300u64 {
            for _ in 0..200 {
                // Often at the rings and the pages behind the region, and its header.
                let span = if rng.below(2) == 0 { (0, 12 << 20) } else { (len - (4 << 20), 4 << 20) };
                let at = span.0 + 4 * rng.below(span.1 as u64 / 4) as usize;
                let value = if rng.below(2) == 0 { rng.below(1 << 32) as u32 } else { rng.below(2048) as u32 };
                words.store_u32(at, value);
            }
            // It may fail, and may not crash.
            let ring = &port.tx_rings()[0];
            let n = ring.available().take(20).map(|slot| slot.set_len_flags(60, 0)).count();
            ring.advance(n as u32);
            let _ = port.txsync().and_then(|()| port.rxsync());
            port.rx_rings()[0].advance(u32::MAX);
            send(&a, 5, 50 * round, 50 * round + 50).expect("sent");
            expect(&b, 5, 50 * round, 50 * round + 50);
        }
        assert!(process.0.try_wait().expect("a state").is_none(), "the device's process runs");
        process.kill();
        drop((port, a, b));
        home.assert_serves();
        assert_pipe_works("netmap:third{1", "netmap:third}1");
        summary("rounds 300, words 60000, packets of another pipe 15000, lost 0");
    });
}

/// The daemon is replaced while the guest sends, and a later program of the guest finds the device as it was.
/// Clients that connect one after the other and receive nothing have one descriptor in flight: the kernel counts them
/// against all processes of the user.
#[test]
fn clients_that_receive_nothing_have_one_descriptor_in_flight() {
    isolated(|home| {
        let (_process, socket) = serve(home);
        let connect = |_| {
            let client = UnixStream::connect(&socket).expect("it listens");
            client.shutdown(Shutdown::Write).expect("a connection");
            client
        };
        let clients: Vec<_> = (0..8).map(connect).collect();
        let in_flight = || clients.iter().map(unreceived).sum::<u32>();
        until("the first is given the memory", || in_flight() > 0);
        until("its connection is ended", || hung_up(clients[0].as_fd()));
        // Time for the next ones.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(in_flight(), 1);
        drop(clients);
        map(&socket);
    });
}

#[test]
fn a_guest_goes_on_while_the_daemon_is_replaced() {
    isolated(|home| {
        let (_process, socket) = serve(home);
        let port = open(HOST_PORT);
        let record = home.folder().join("sent");
        let send_as = |sender: &str| guest(&socket, &["send", GUEST_PORT, sender, record.to_str().expect("UTF-8")]);
        let mut first = send_as("1");
        let mut seq = 0;
        for _ in 0..3 {
            replace(home);
            expect(&port, 1, seq, seq + 20_000);
            seq += 20_000;
        }
        first.kill();
        while port.poll(Interest::RX, Some(Duration::from_millis(300))).expect("the daemon runs").rx() {
            port.rx_rings()[0].advance(u32::MAX);
        }
        let _second = send_as("2");
        expect(&port, 2, 0, 20_000);
    });
}

#[test]
fn a_guest_notices_that_the_daemon_or_its_devices_process_has_ended() {
    isolated(|home| {
        let (mut process, socket) = serve(home);
        let folder = home.folder().to_str().expect("UTF-8").to_owned();
        let mut receiver = guest(&socket, &["recv", GUEST_PORT, &folder]);
        std::thread::sleep(Duration::from_millis(500));
        assert!(receiver.0.try_wait().expect("a state").is_none(), "it runs");
        process.kill();
        let status = wait_within(&mut receiver.0, Duration::from_secs(30)).expect("it ends");
        assert!(!status.success());
        let (mut process, socket) = serve(home);
        let mut receiver = guest(&socket, &["recv", GUEST_PORT, &folder]);
        std::thread::sleep(Duration::from_millis(500));
        rustix::process::kill_process(home.daemon(), Signal::KILL).expect("killed");
        let status = wait_within(&mut receiver.0, Duration::from_secs(30)).expect("it ends");
        assert!(!status.success());
        let status = wait_within(&mut process.0, Duration::from_secs(30)).expect("it ends, too");
        assert!(!status.success());
    });
}

#[test]
fn what_is_no_pipe_or_is_open_already_is_refused() {
    isolated(|home| {
        let error = |out: Output| {
            assert!(!out.status.success());
            String::from_utf8(out.stderr).expect("UTF-8")
        };
        let why = error(refused(home, "vale0:a"));
        assert!(why.contains("only ends of pipes"), "{why}");
        let pipe = Port::open("netmap:p{1").expect("opened");
        let why = error(refused(home, "netmap:p{1"));
        assert!(why.contains("exists already"), "{why}");
        let why = error(refused(home, "netmap:p{2"));
        assert!(why.contains("outside of a virtual machine's device"), "{why}");
        drop(pipe);
    });
}
