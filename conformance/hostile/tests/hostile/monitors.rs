// SPDX-License-Identifier: BSD-2-Clause
//! Monitors and monitored programs that crash, write random words to shared memory, or claim another identity.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use conformance::client::{Flow, record, start_client, start_ready_client};
use conformance::home::{is_alive, summary};
use conformance::monitor::dropped;
use conformance::net::start_faulty_daemon;
use conformance::packet::{self, Rng};
use conformance::traffic::{bytes_of, exchange, expect, fill_some, open, send};
use conformance::{LIMIT, isolated, until};
use conformance_hostile::raw::{ControlConnection, RawPort};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::Signal;
use unetmap::Port;
use unetmap::abi::{NR_MONITOR_RX, NR_MONITOR_TX, NR_ZCOPY_MON};
use unetmap::errno::EINVAL;
use unetmap_core::control::monitor::{MonitorReply, NextMonitorRequest};

/// A number near a bound, or a random one.
fn value(rng: &mut Rng) -> u32 {
    let all = [0, 1, 1023, 1024, rng.below(2048) as u32, rng.next_u64() as u32, u32::MAX];
    all[rng.below(7) as usize]
}

/// Writes a random word at a random offset of the part of a file that holds data.
fn scribble(file: &File, rng: &mut Rng) {
    let bytes = file.metadata().expect("a file").len().min(1 << 20);
    let at = match rng.below(4) {
        0 => rng.below(bytes / 4) * 4,
        // Where positions, slots and states are.
        _ => rng.below(bytes.min(24 << 10) / 4) * 4,
    };
    file.write_all_at(&value(rng).to_ne_bytes(), at).expect("inside the file");
}

/// Monitors are killed at any moment, while packets flow that none of them may lose.
#[test]
fn killed_monitors_affect_no_other_client() {
    isolated(|home| {
        let (flow, seen) = (Flow::start(home), home.folder().join("seen"));
        let mut rng = Rng(0x5eed_0031);
        const KILLS: u64 = 60;
        let mut copies = 0;
        for round in 0..KILLS {
            let spec = ["netmap:p}1/r", "netmap:p{1/t", "netmap:p}1/rt", "netmap:p{1/rt"][round as usize % 4];
            let mut monitor = start_ready_client(&["see", spec, &seen.display().to_string()]);
            sleep(Duration::from_micros(rng.below(20_000)));
            monitor.kill();
            copies += record(&seen)[0];
            assert_eq!(record(&seen)[1], 0, "copies of packets that were never sent");
        }
        // The last monitor is not killed but stopped.
        let stopped = start_ready_client(&["see", "netmap:p{1/t", &seen.display().to_string()]);
        stopped.signal(Signal::STOP);
        let before = flow.sent();
        until("packets flow on", || flow.sent() > before + 10_000);
        drop(stopped);
        let sent = flow.finish(home);
        summary(&format!("monitors killed {KILLS}, packets {sent}, none lost; copies before the kills {copies}"));
        home.assert_serves();
    });
}

/// Monitored programs are killed at any moment: their monitors receive valid packets and then the end.
#[test]
fn a_killed_monitored_program_ends_its_monitors() {
    isolated(|home| {
        let (sent, seen) = (home.folder().join("sent"), home.folder().join("seen"));
        let _folder = fs::create_dir(home.folder().join("got"));
        let got = home.folder().join("got").display().to_string();
        let receiver = start_client(&["recv", "netmap:p}1", &got]);
        until("the receiver is there", || home.try_snapshot().is_some_and(|books| books.sessions.len() == 1));
        let mut rng = Rng(0x5eed_0032);
        const KILLS: u64 = 40;
        let mut copies = 0;
        for round in 0..KILLS {
            let mut sender =
                start_client(&["send", "netmap:p{1", &(round + 1).to_string(), &sent.display().to_string()]);
            until("it has its port open", || home.snapshot().sessions.iter().any(|s| s.port == "p{1"));
            let mut monitor = start_ready_client(&["see", "netmap:p{1/t", &seen.display().to_string()]);
            sleep(Duration::from_micros(rng.below(20_000)));
            sender.kill();
            assert!(monitor.wait().success(), "the monitor did not survive");
            let [good, bad, reported] = record(&seen);
            assert_eq!((bad, reported), (0, 1), "copies of packets that were never sent, or the end was not reported");
            copies += good;
        }
        assert!(is_alive(receiver.pid()), "the receiver did not survive");
        summary(&format!("watched programs killed {KILLS}, copies seen {copies}"));
        drop(receiver);
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
        home.assert_serves();
    });
}

/// A monitor writes random values to everything it maps: its region, endpoint states, channels, mirror ring. Neither
/// the monitored port nor another monitor is affected.
#[test]
fn random_writes_of_a_monitor_affect_only_itself() {
    isolated(|home| {
        let _daemon = start_faulty_daemon(home, "", "removable");
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        let honest = Port::options().rx_slots(4096).open("netmap:p}1/r").expect("a monitor");
        let mut rng = Rng(0x5eed_0033);
        let (mut seq, mut words) = (0, 0u64);
        for _ in 0..10 {
            let raw_port = RawPort::open_with(&home.socket(), "p}1", NR_MONITOR_RX | NR_MONITOR_TX);
            // The second of the receive ring's two descriptors is the mirror ring.
            let mirror = raw_port.bound.rings.iter().position(|ring| ring.dir == 1).expect("a receive ring");
            let mirror = File::from(raw_port.doorbells[2 * mirror + 1].try_clone().expect("a file"));
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let scribbler = scope.spawn(|| {
                    let mut n = 0u64;
                    while !over.load(Relaxed) {
                        for file in [&mirror, &raw_port.channels, &raw_port.endpoint_states, &raw_port.region] {
                            scribble(file, &mut rng);
                        }
                        // The channel claims that the monitor sleeps, and that its position is a random one.
                        raw_port.channels.write_all_at(&1u32.to_ne_bytes(), 3 * 128).expect("a channel page");
                        raw_port.channels.write_all_at(&value(&mut rng).to_ne_bytes(), 128).expect("a channel page");
                        n += 6;
                    }
                    let all = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    let bytes = mirror.metadata().expect("a file").len();
                    let removed = fallocate(mirror.as_fd(), all, 0, bytes);
                    assert!(removed.is_ok() || !cfg!(debug_assertions), "{removed:?}");
                    assert!(mirror.set_len(4096).is_err(), "the mirror ring can be truncated");
                    n
                });
                exchange(&a, &b, 1, seq, seq + 2000);
                over.store(true, Relaxed);
                words += scribbler.join().expect("no panic");
            });
            exchange(&a, &b, 1, seq + 2000, seq + 3000);
            expect(&honest, 1, seq, seq + 3000);
            seq += 3000;
        }
        assert_eq!(dropped(home, &honest), 0);
        assert_eq!(home.snapshot().faults("p}1"), (0, 0));
        drop(honest);
        until("the monitors are closed", || home.snapshot().ports.len() == 2);
        summary(&format!("words scribbled {words}, packets {seq}, each seen by the receiver and by another monitor"));
        home.assert_serves();
    });
}

/// All files behind descriptors.
fn files(fds: &[OwnedFd]) -> BTreeSet<u64> {
    let inode = |fd: &OwnedFd| File::from(fd.try_clone().expect("a descriptor")).metadata().expect("a file").ino();
    fds.iter().map(inode).collect()
}

/// A monitored program requests the mirror rings of its monitors and writes random values there. The monitor may read
/// anything, but keeps running; the descriptors give the program access to nothing else.
#[test]
fn random_writes_of_a_monitored_program_corrupt_only_its_own_copies() {
    isolated(|home| {
        let (_b, raw_port) = (open("netmap:p}1"), RawPort::open(&home.socket(), "p{1"));
        let connection = ControlConnection::connect(&home.socket()).expect("a daemon");
        let request =
            NextMonitorRequest { session: raw_port.bound.head.session, key: raw_port.bound.head.key, after: 0 };
        assert!(matches!(connection.next_monitor(&request), (0, None, _)), "nobody watches");
        // A session number without its key is refused, even for the client's own session.
        for wrong in [
            NextMonitorRequest { key: request.key ^ 1, ..request },
            NextMonitorRequest { session: 1, ..request },
            NextMonitorRequest { key: 0, ..request },
        ] {
            assert_eq!(connection.next_monitor(&wrong).0, EINVAL);
        }
        let seen = home.folder().join("seen");
        let mut monitor = start_ready_client(&["see", "netmap:p{1/rt", &seen.display().to_string()]);
        let other = RawPort::open_with(&home.socket(), "p{1", NR_MONITOR_TX);
        let (errno, reply, fds) = connection.next_monitor(&request);
        assert_eq!(errno, 0);
        let MonitorReply { head, rings } = reply.expect("a monitor");
        // What it receives is copied by its peer.
        assert_eq!(
            (rings.len(), fds.len()),
            (1, 4),
            "mirror ring, endpoint states, channels, and a doorbell for each ring"
        );
        // The next reply is for the other monitor; after it there is none.
        let (_, second, others) = connection.next_monitor(&NextMonitorRequest { after: head.monitor, ..request });
        let second = second.expect("the other monitor").head.monitor;
        assert!(matches!(connection.next_monitor(&NextMonitorRequest { after: second, ..request }), (0, None, _)));
        let private = [&other.region, &other.endpoint_states].map(|file| file.metadata().expect("a file").ino());
        assert!(private.iter().all(|inode| !files(&others).contains(inode)), "it got the monitor's own memory");
        let shared: Vec<File> = fds.into_iter().take(3).map(File::from).collect();
        let mut rng = Rng(0x5eed_0034);
        const WORDS: u64 = 60_000;
        for n in 0..WORDS {
            scribble(&shared[rng.below(3) as usize], &mut rng);
            // The positions of both channels, so that the monitor always finds packets.
            if n % 8 == 0 {
                let line = 512 * rng.below(2);
                shared[2].write_all_at(&(rng.below(1024) as u32).to_ne_bytes(), line).expect("a channel page");
            }
            if n % 1000 == 0 {
                sleep(Duration::from_millis(5));
            }
        }
        assert!(is_alive(monitor.pid()), "the monitor did not survive");
        assert!(record(&seen).iter().sum::<u64>() > 0, "the monitor received nothing");
        assert!(shared[0].set_len(4096).is_err(), "the mirror ring can be truncated");
        // The exit of the program is reported to the monitor like that of any monitored program.
        drop(raw_port);
        assert!(monitor.wait().success());
        assert_eq!(record(&seen)[2], 1);
        let [good, bad, _] = record(&seen);
        summary(&format!("words scribbled {WORDS}, copies {good}, nonsense {bad}, crashes 0"));
        drop(other);
        home.assert_serves();
    });
}

/// Only the switch writes to the mirror rings of its ports.
#[test]
fn a_client_cannot_post_copies_to_monitors_of_a_switch_port() {
    isolated(|home| {
        let (b, raw_port) = (open("vale0:b"), RawPort::open(&home.socket(), "vale0:a"));
        let monitor = open("vale0:a/rt");
        let connection = ControlConnection::connect(&home.socket()).expect("a daemon");
        let request =
            NextMonitorRequest { session: raw_port.bound.head.session, key: raw_port.bound.head.key, after: 0 };
        assert!(matches!(connection.next_monitor(&request), (0, None, _)), "the client got the mirror ring");
        conformance::traffic::send(&b, 1, 0, 200).expect("room");
        // The monitor gets the packet although the monitored program never syncs.
        expect(&monitor, 1, 0, 200);
    });
}

/// A zero-copy monitor of a switch port writes random values into all memory that it maps, where the switch exchanges
/// buffers with it: the thread continues to serve other ports.
#[test]
fn random_writes_of_a_zero_copy_monitor_do_not_stop_its_switch() {
    isolated(|home| {
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        let (c, d) = (open("vale1:c"), open("vale1:d"));
        let monitor = RawPort::open_with(&home.socket(), "vale0:a", NR_ZCOPY_MON);
        let mut rng = Rng(0x5eed_0075);
        let drain = |port: &Port| {
            let _ = port.rxsync();
            port.rx_rings()[0].advance(port.rx_rings()[0].space());
        };
        for round in 0..200 {
            for _ in 0..20 {
                for file in [&monitor.region, &monitor.channels, &monitor.endpoint_states] {
                    scribble(file, &mut rng);
                }
                // The position of the monitor, so that the switch always finds room.
                let position = rng.below(1024) as u32;
                monitor.channels.write_all_at(&position.to_ne_bytes(), 128).expect("a channel page");
            }
            fill_some(&a.tx_rings()[0], 1, round, 50);
            let _ = a.txsync();
            [&a, &b].into_iter().for_each(drain);
            // The thread serves another switch, too.
            send(&c, 2, round, round + 1).expect("room");
            until("it arrives", || {
                d.rxsync().expect("an open port");
                let seen = d.rx_rings()[0].available().any(|slot| packet::check(&bytes_of(&slot)) == Ok((2, round)));
                d.rx_rings()[0].advance(d.rx_rings()[0].space());
                seen
            });
        }
        home.assert_serves();
    });
}

/// A client that shares the endpoint state page changes the monitor generation all the time.
#[test]
fn a_false_monitor_generation_stops_nobody() {
    isolated(|home| {
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        let monitor = Port::options().rx_slots(4096).open("netmap:p}1/r").expect("a monitor");
        // The sender makes the copies.
        let raw_port = RawPort::open(&home.socket(), "p{1");
        let over = AtomicBool::new(false);
        let tx = raw_port.bound.rings.iter().find(|ring| ring.dir == 0).expect("a transmit ring");
        let (mut reported, mut word) = (0u32, [0; 4]);
        raw_port
            .endpoint_states
            .read_exact_at(&mut word, u64::from(tx.state) * 128 + NOTICE * 4)
            .expect("an endpoint state page");
        assert_eq!(u32::from_ne_bytes(word), 4, "the monitor generation is at another offset");
        std::thread::scope(|scope| {
            let forger = scope.spawn(|| {
                let end = Instant::now() + LIMIT * 2;
                while !over.load(Relaxed) && Instant::now() < end {
                    reported += 4;
                    for ring in 0..raw_port.bound.rings.len() {
                        // The lowest bits are flags with another meaning and stay 0.
                        raw_port.write_state(ring, NOTICE, reported);
                    }
                    sleep(Duration::from_micros(200));
                }
            });
            exchange(&a, &b, 1, 0, 1500);
            over.store(true, Relaxed);
            forger.join().expect("no panic");
        });
        expect(&monitor, 1, 0, 1500);
        assert_eq!(dropped(home, &monitor), 0);
    });
}

/// The word of the monitor generation in a ring's state.
const NOTICE: u64 = 14;
