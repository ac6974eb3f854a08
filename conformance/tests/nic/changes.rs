// SPDX-License-Identifier: BSD-2-Clause
//! Changes of an interface while programs poll it busily or sleep: each gets the right error, or all packets.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use conformance::bpf::{XdpMode, attach_xdp};
use conformance::home::summary;
use conformance::net::{
    BUFFER, CABLE, DIRECT, MEDIATED, Net, assert_same, assert_works, collect, drain, frame, frames, open_in, take,
    transmit,
};
use conformance::traffic::fill_some;
use conformance::{Home, LIMIT, isolated_with_interfaces, packet, program, until};
use lab::{Ns, VethOptions};
use unetmap::{Error, Interest, Port};

/// Packets on their way at most: fewer than a ring holds.
const WINDOW: u64 = 400;
/// The sender that the last packet names.
const LAST: u64 = 3;

fn ip(net: &Net, words: &str) {
    net.near.ip(&words.split(' ').collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{e}"));
}

/// Every call of the port fails, with a reason.
#[track_caller]
fn assert_ended(port: &Port) {
    type Call = fn(&Port) -> Result<(), Error>;
    let calls: [(bool, Call); 4] = [
        (!port.tx_rings().is_empty(), Port::txsync),
        (!port.rx_rings().is_empty(), Port::rxsync),
        (true, |port| port.poll(Interest::BOTH, None).map(drop)),
        (true, |port| port.arm(Interest::BOTH).map(drop)),
    ];
    let start = Instant::now();
    for (_, call) in calls.into_iter().filter(|(has_rings, _)| *has_rings) {
        // The rings of a port end one after the other.
        let error = loop {
            match call(port) {
                Err(error) => break error,
                Ok(()) => assert!(start.elapsed() < LIMIT, "a call on an interface that has gone"),
            }
        };
        assert!(
            error.errno() == unetmap::errno::ENXIO && error.to_string().contains("the interface is gone"),
            "{error}"
        );
    }
}

/// A thread that uses a port until a call fails; returns the error and its time.
fn watcher(port: Port, asleep: bool) -> JoinHandle<(String, Instant)> {
    thread::spawn(move || {
        loop {
            // Without a timeout: the check after a timeout would hide a lost wake-up.
            let result = if asleep {
                port.poll(Interest::RX, None).map(drop)
            } else {
                port.rxsync().and_then(|()| port.txsync())
            };
            if let Err(e) = result {
                let at = Instant::now();
                assert_ended(&port);
                return (e.to_string(), at);
            }
            (0..port.rx_rings().len()).for_each(|ring| drop(take(&port, ring)));
        }
    })
}

fn deleted(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, VethOptions { queues: 4, ..CABLE }) else { return };
    let mut slowest = Duration::ZERO;
    for round in 0..5 {
        // A sender at the other end, whose frames they receive and whose interface is deleted, too.
        let mut watchers = vec![watcher(open_in(&net.far, "netmap:vb"), false)];
        let specs = [("netmap:va-0", false), ("netmap:va-1", true), ("netmap:va-2/R", true), ("netmap:va-3/T", false)];
        watchers.extend(specs.map(|(spec, asleep)| watcher(net.open(spec), asleep)));
        let sender = open_in(&net.far, "netmap:vb/T");
        let noise = (round % 2 == 0).then(|| {
            thread::spawn(move || {
                while sender.txsync().is_ok() {
                    sender.tx_rings().iter().for_each(|ring| assert!(fill_some(ring, 1, 0, 64) <= 64));
                }
            })
        });
        thread::sleep(Duration::from_millis(30));
        ip(&net, "link del va");
        let gone = Instant::now();
        for watcher in watchers {
            let (why, at) = watcher.join().expect("the interface has gone");
            assert!(why.contains("the interface is gone: deleted, or moved to another network namespace"), "{why}");
            slowest = slowest.max(at.saturating_duration_since(gone));
        }
        noise.map(JoinHandle::join).transpose().expect("the noise ends, too");
        until("nothing is left of it", || home.snapshot().regions.is_empty());
        assert_eq!(net.refused("netmap:va").0, unetmap::errno::ENXIO);
        net.lab.veth(&net.near, "va", &net.far, "vb", VethOptions { queues: 4, ..CABLE }).expect("a cable");
        assert_works(&net.open("netmap:va"), &net.tap(), 0);
    }
    summary(&format!("5 times deleted, 5 programs each: error after at most {} ms", slowest.as_millis()));
}

#[test]
fn a_deleted_interface_ends_its_ports_direct() {
    isolated_with_interfaces(|home| deleted(home, DIRECT));
}

#[test]
fn a_deleted_interface_ends_its_ports_mediated() {
    isolated_with_interfaces(|home| deleted(home, MEDIATED));
}

/// Receives on one queue, spinning or sleeping, and counts.
fn counting(port: Port, asleep: bool, got: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    thread::spawn(move || {
        // A frame wakes the sleeping thread at the end.
        while !stop.load(Relaxed) {
            let timeout = if asleep { None } else { Some(Duration::ZERO) };
            port.poll(Interest::RX, timeout).unwrap_or_else(|e| panic!("{e}"));
            got.fetch_add(take(&port, 0).len() as u64, Relaxed);
        }
    })
}

/// The link goes down and up at either end: busy and sleeping receivers continue, and get each frame that is sent while
/// it is up.
fn down_and_up(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, VethOptions { queues: 2, ..CABLE }) else { return };
    let far = open_in(&net.far, "netmap:vb/T");
    let stop = Arc::new(AtomicBool::new(false));
    let got = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    let threads = [("netmap:va-0/R", false), ("netmap:va-1/R", true)]
        .map(|(spec, asleep)| counting(net.open(spec), asleep, got[usize::from(asleep)].clone(), stop.clone()));
    let mut slowest = Duration::ZERO;
    for round in 0..12u64 {
        // The first frames after the link is up may be lost; a later one arrives.
        let begin = Instant::now();
        for (queue, got) in got.iter().enumerate() {
            let before = got.load(Relaxed);
            until("the link carries frames", || {
                transmit(&far, queue, &frames(&[60], round), BUFFER);
                drain(&far);
                got.load(Relaxed) > before
            });
        }
        slowest = slowest.max(begin.elapsed());
        let counts = || [0, 1].map(|queue| got[queue].load(Relaxed));
        let mut before = counts();
        until("none is on its way", || {
            thread::sleep(Duration::from_millis(100));
            std::mem::replace(&mut before, counts()) == counts()
        });
        for queue in 0..2 {
            transmit(&far, queue, &frames(&[60; 300], round), BUFFER);
        }
        drain(&far);
        until("each frame comes, to the spinner and to the sleeper", || counts() == before.map(|n| n + 300));
        let (ns, name) = if round % 2 == 0 { (&net.near, "va") } else { (&net.far, "vb") };
        ns.ip(&["link", "set", name, "down"]).expect("an interface");
        thread::sleep(Duration::from_millis(5 * (round % 4)));
        ns.ip(&["link", "set", name, "up"]).expect("an interface");
        net.near.wait_up("va").expect("a cable");
        net.far.wait_up("vb").expect("a cable");
    }
    stop.store(true, Relaxed);
    transmit(&far, 1, &frames(&[60], 0), BUFFER);
    for thread in threads {
        thread.join().expect("neither failed");
    }
    summary(&format!(
        "link down and up 12 times: busy and sleeping receivers got every frame; carried again after {} ms at most",
        slowest.as_millis()
    ));
}

#[test]
fn a_link_can_go_down_and_up_direct() {
    isolated_with_interfaces(|home| down_and_up(home, DIRECT));
}

#[test]
fn a_link_can_go_down_and_up_mediated() {
    isolated_with_interfaces(|home| down_and_up(home, MEDIATED));
}

/// Packets handed to the kernel while the interface was down are sent when it is up, although the program sleeps and
/// waits for something else.
fn sent_when_up(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (port, tap) = (net.open("netmap:va"), net.tap());
    for round in 0..5u64 {
        ip(&net, "link set va down");
        let kept = frames(&[60; 30], round << 10);
        transmit(&port, 0, &kept, BUFFER);
        tap.assert_quiet();
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| port.poll(Interest::RX, None));
            thread::sleep(Duration::from_millis(20));
            ip(&net, "link set va up");
            assert_same(&tap.collect(kept.len()), &kept);
            until("it is woken by a frame", || {
                tap.send(&frame(60, 0));
                thread::sleep(Duration::from_millis(5));
                sleeper.is_finished()
            });
            assert!(sleeper.join().expect("no panic").is_ok_and(Interest::rx));
        });
        port.rxsync().expect("the daemon runs");
        take(&port, 0);
    }
    drain(&port);
    tap.assert_quiet();
}

#[test]
fn packets_queued_while_the_link_is_down_are_sent_later_direct() {
    isolated_with_interfaces(|home| sent_when_up(home, DIRECT));
}

#[test]
fn packets_queued_while_the_link_is_down_are_sent_later_mediated() {
    isolated_with_interfaces(|home| sent_when_up(home, MEDIATED));
}

/// An MTU beyond a buffer, and back, while a port is open: long frames come and go in several slots, or, where the
/// driver cannot, the kernel does not allow it.
fn longer_and_shorter(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (port, mut sent) = (net.open("netmap:va"), 0);
    for (round, mtu) in [1500, 9000, 1000, 3000, 68, 1500].into_iter().enumerate() {
        let set = |ns: &Ns, name: &str| ns.ip(&["link", "set", name, "mtu", &mtu.to_string()]);
        if let Err(why) = set(&net.near, "va").and_then(|_| set(&net.far, "vb")) {
            assert!(mtu > 1500, "{why}");
            summary(&format!("the kernel allows no MTU of {mtu} here: {why}"));
            continue;
        }
        let (tap, lens) = (net.tap(), [60.min(mtu + 14), mtu / 2 + 14, mtu + 14]);
        let all = frames(&lens, (round as u64) << 10);
        transmit(&port, 0, &all, BUFFER);
        assert_same(&tap.collect(all.len()), &all);
        tap.send_all(&all);
        assert_same(&collect(&port, all.len()), &all);
        sent += all.len();
    }
    summary(&format!("frames {sent} each way while the MTU changed"));
}

#[test]
fn the_mtu_can_change_under_an_open_port_direct() {
    isolated_with_interfaces(|home| longer_and_shorter(home, DIRECT));
}

#[test]
fn the_mtu_can_change_under_an_open_port_mediated() {
    isolated_with_interfaces(|home| longer_and_shorter(home, MEDIATED));
}

/// The receive queues of `va` that carry traffic, as ethtool prints them behind `Current hardware settings`.
#[track_caller]
fn rx_queues(net: &Net) -> u32 {
    let text = net.near.tool("ethtool", &["-l", "va"]).expect("ethtool");
    let now = text.split("Current").nth(1).unwrap_or_default();
    let line = now.lines().find_map(|line| line.strip_prefix("RX:"));
    line.and_then(|n| n.trim().parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// The number of queues is changed under an open port: the kernel refuses, or the port keeps the rings that it has;
/// closed, and opened again, it has as many as the interface.
fn other_queues(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, VethOptions { queues: 4, ..CABLE }) else { return };
    for queues in ["2", "4", "1", "3"] {
        let port = net.open("netmap:va");
        let rings = port.rx_rings().len();
        let set = net.near.tool("ethtool", &["-L", "va", "rx", queues, "tx", queues]);
        assert_eq!(port.rx_rings().len(), rings);
        assert_works(&port, &net.tap(), 0);
        drop(port);
        until("it is closed", || home.snapshot().regions.is_empty());
        net.assert_given_back();
        let now = rx_queues(&net);
        if set.is_ok() {
            assert_eq!(now.to_string(), queues);
        }
        let again = net.open("netmap:va");
        assert_eq!(again.rx_rings().len(), now as usize);
        assert_works(&again, &net.tap(), 0);
        drop(again);
        until("it is closed", || home.snapshot().regions.is_empty());
    }
}

#[test]
fn an_open_port_keeps_its_rings_when_the_number_of_queues_changes_direct() {
    isolated_with_interfaces(|home| other_queues(home, DIRECT));
}

#[test]
fn an_open_port_keeps_its_rings_when_the_number_of_queues_changes_mediated() {
    isolated_with_interfaces(|home| other_queues(home, MEDIATED));
}

/// A queue is closed and bound again, by programs that receive, send, or do neither, while another queue is
/// in use: that one loses nothing and its packets keep their order.
fn rebound(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, VethOptions { queues: 2, ..CABLE }) else { return };
    let (taken, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let receiver = {
        let (port, taken) = (net.open("netmap:va-0"), taken.clone());
        thread::spawn(move || {
            let mut next = 0;
            loop {
                port.poll(Interest::RX, Some(LIMIT)).unwrap_or_else(|e| panic!("{e}"));
                for bytes in take(&port, 0) {
                    match packet::check(&bytes) {
                        Ok((LAST, _)) => return next,
                        Ok((1, seq)) if seq == next => next += 1,
                        other => panic!("{other:?} instead of packet {next}"),
                    }
                }
                taken.store(next, Relaxed);
            }
        })
    };
    let sender = {
        let (port, taken, stop) = (open_in(&net.far, "netmap:vb"), taken.clone(), stop.clone());
        thread::spawn(move || {
            let (steady, other, mut sent) = (&port.tx_rings()[0], &port.tx_rings()[1], 0);
            while !stop.load(Relaxed) {
                sent += fill_some(steady, 1, sent, (taken.load(Relaxed) + WINDOW).saturating_sub(sent));
                // The current program or the kernel receives these.
                fill_some(other, 2, 0, 8);
                port.txsync().unwrap_or_else(|e| panic!("{e}"));
            }
            until("the last one has room", || {
                port.txsync().unwrap_or_else(|e| panic!("{e}"));
                fill_some(steady, LAST, 0, 1) == 1
            });
            drain(&port);
            sent
        })
    };
    let mut crossed = 0;
    for turn in 0..60 {
        let other = net.open(["netmap:va-1", "netmap:va-1/R", "netmap:va-1/T"][turn % 3]);
        if turn % 3 == 0 {
            crossed += collect(&other, 100).len();
        }
        drop(other);
    }
    stop.store(true, Relaxed);
    let sent = sender.join().expect("it sends");
    assert_eq!(receiver.join().expect("it receives"), sent);
    summary(&format!(
        "packets {sent}, each once and in order, while the other queue was bound 60 times, and took {crossed}"
    ));
}

#[test]
fn rebinding_one_queue_loses_no_packet_of_the_other_direct() {
    isolated_with_interfaces(|home| rebound(home, DIRECT));
}

#[test]
fn rebinding_one_queue_loses_no_packet_of_the_other_mediated() {
    isolated_with_interfaces(|home| rebound(home, MEDIATED));
}

/// An XDP program attached by netlink stays when the attaching process exits: the port is refused with the command that
/// removes the program, and opens after that command. No other program replaces that of the port.
#[test]
fn an_xdp_program_without_a_holder_is_removed_by_the_suggested_command() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        // Without sockets it passes all frames.
        let object = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("bpf").join("xdp.o");
        if let Err(why) = attach(&net, "xdp", &object) {
            return summary(&format!("skipped: no XDP program can be attached by ip here: {why}"));
        }
        for mode in ["xdpdrv", "xdpgeneric"] {
            net.near.ip(&["link", "set", "dev", "va", "xdp", "off"]).expect("it can be removed");
            attach(&net, mode, &object).expect("a program");
            let (errno, why) = net.refused("netmap:va");
            assert_eq!(errno, unetmap::errno::EBUSY, "{why}");
            let word = if mode == "xdpdrv" { "native" } else { "generic" };
            assert!(why.contains("another XDP program is attached (unetmap_") && why.contains(word), "{why}");
            let reported = why.split(", or if none does, ").nth(1).unwrap_or_else(|| panic!("{why}"));
            let printed = net.command(program("unetmap")).args(["doctor", "va"]).output().expect("it runs").stdout;
            let printed = String::from_utf8_lossy(&printed);
            let remedy =
                printed.split(['(', ')']).find(|part| part.starts_with("ip link set") && part.ends_with(" off"));
            let remedy = remedy.unwrap_or_else(|| panic!("{printed}"));
            assert_eq!(reported, remedy, "the refusal and the doctor name the same remedy");
            assert!(net.pings(), "the other program keeps working");
            net.near.tool("sh", &["-c", remedy]).expect("the remedy");
            let (port, tap) = (net.open("netmap:va"), net.tap());
            assert_works(&port, &tap, 0);
            // Now the port's XDP program is attached.
            for mode in ["xdpdrv", "xdpgeneric", "xdp"] {
                assert!(attach(&net, mode, &object).is_err(), "{mode}: the port's program was replaced");
            }
            let late = net.near.run(|| attach_xdp("va", XdpMode::Generic)).expect("a namespace");
            assert!(late.is_err(), "another one beside the port's");
            assert_works(&port, &tap, 1000);
            drop(port);
            until("it is closed", || home.snapshot().regions.is_empty());
            attach(&net, mode, &object).expect("now there is room");
        }
    });
}

fn attach(net: &Net, mode: &str, object: &Path) -> Result<(), String> {
    let path = object.display().to_string();
    net.near.ip(&["link", "set", "dev", "va", mode, "obj", &path, "sec", "xdp"]).map(drop)
}
