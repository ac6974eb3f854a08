// SPDX-License-Identifier: BSD-2-Clause
//! One interface shared by several sessions, processes and a forked child; and its buffers, which are exchanged with
//! pipes and other interfaces without a copy.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::Duration;

use conformance::home::{Guard, summary};
use conformance::net::{
    BUFFER, CABLE, DIRECT, MEDIATED, Net, Tap, assert_same, assert_works, collect, drain, frame, frames, open_in,
    set_policy, take, transmit,
};
use conformance::packet;
use conformance::snapshot::PIPE_BUFFERS;
use conformance::traffic::fill_some;
use conformance::{Home, LIMIT, isolated_with_interfaces, program, until};
use rustix::process::Signal;
use unetmap::{Interest, Port};

const PACKETS: u64 = 20_000;
/// Packets on their way at most: fewer than any ring holds.
const WINDOW: u64 = 400;

/// A file that holds a number, 0 at first.
fn counter(home: &Home) -> String {
    let path = home.folder().join("next");
    File::create(&path).expect("a file").write_all(&0u64.to_ne_bytes()).expect("a file to write");
    path.display().to_string()
}

fn number(path: &str) -> u64 {
    let bytes = std::fs::read(path).expect("a file");
    bytes.get(..8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("8 bytes")))
}

/// Sends numbered packets, never more ahead of `taken` than fit.
fn send_in_step(port: &Port, taken: impl Fn() -> u64) {
    let (ring, mut sent) = (&port.tx_rings()[0], 0);
    until("all packets are taken", || {
        let taken = taken();
        sent += fill_some(ring, 1, sent, (taken + WINDOW - sent).min(PACKETS - sent));
        port.txsync().expect("the daemon runs");
        taken == PACKETS
    });
}

fn output(guard: &mut Guard) -> String {
    let mut text = String::new();
    guard.0.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    assert!(guard.wait().success(), "{text}");
    text
}

/// The number that follows `before` on its line.
#[track_caller]
fn number_after(text: &str, before: &str) -> u64 {
    let found = text.lines().find_map(|line| line.strip_prefix(before)?.parse().ok());
    found.unwrap_or_else(|| panic!("no `{before}` in {text}"))
}

fn sessions_of(home: &Home, port: &str, dir: &str) -> u32 {
    let ports = home.snapshot().ports;
    let mine = ports.iter().filter(|p| p.name == port && p.kind != "pipe").flat_map(|p| &p.rings);
    mine.filter(|ring| ring.dir == dir && ring.id == 0).map(|ring| ring.sessions).max().unwrap_or(0)
}

fn receive_ring_of_processes(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    // The tap at the far end sends: a sender that is no port.
    let (tap, file) = (net.tap(), counter(home));
    let client = || {
        let mut command = net.command(env!("CARGO_BIN_EXE_traffic_client"));
        Guard::spawn(command.args(["share", "netmap:va", &file, &PACKETS.to_string()]).stdout(Stdio::piped()))
    };
    let mut clients = [client(), client(), client()];
    until("all three have the port", || sessions_of(home, "va", "rx") == 3);
    let mut sent = 0;
    until("all packets are taken", || {
        let taken = number(&file);
        let end = PACKETS.min(taken + WINDOW);
        (sent..end).for_each(|seq| tap.send(&packet::make(1, seq)));
        sent = sent.max(end);
        taken == PACKETS
    });
    let took: Vec<u64> = clients.iter_mut().map(|p| number_after(&output(p), "took ")).collect();
    assert_eq!(took.iter().sum::<u64>(), PACKETS);
    net.assert_given_back();
    summary(&format!("packets {PACKETS}, each once: {took:?}"));
}

#[test]
fn three_processes_share_a_receive_ring_direct() {
    isolated_with_interfaces(|home| receive_ring_of_processes(home, DIRECT));
}

#[test]
fn three_processes_share_a_receive_ring_mediated() {
    isolated_with_interfaces(|home| receive_ring_of_processes(home, MEDIATED));
}

fn transmit_ring_of_processes(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (tap, file) = (net.tap(), counter(home));
    let start = || {
        let mut command = net.command(env!("CARGO_BIN_EXE_shared_sender"));
        Guard::spawn(command.args(["netmap:va", &file, &PACKETS.to_string()]).stdout(Stdio::piped()))
    };
    let hold = File::open(&file).expect("a file");
    hold.lock().expect("a lock");
    let mut both = [start(), start()];
    until("both have the port", || sessions_of(home, "va", "tx") == 2);
    hold.unlock().expect("our own lock");
    for seq in 0..PACKETS {
        let got = tap.next(LIMIT).unwrap_or_else(|| panic!("packet {seq} did not arrive"));
        assert_eq!(packet::check(&got), Ok((1, seq)));
    }
    let sent: Vec<u64> = both.iter_mut().map(|p| number_after(&output(p), "sent ")).collect();
    assert_eq!(sent.iter().sum::<u64>(), PACKETS);
    tap.assert_quiet();
    summary(&format!("packets {PACKETS}, each once and in order: {sent:?}"));
}

#[test]
fn two_processes_share_a_transmit_ring_direct() {
    isolated_with_interfaces(|home| transmit_ring_of_processes(home, DIRECT));
}

#[test]
fn two_processes_share_a_transmit_ring_mediated() {
    isolated_with_interfaces(|home| transmit_ring_of_processes(home, MEDIATED));
}

fn forked_child(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (far, file) = (open_in(&net.far, "netmap:vb"), counter(home));
    let mut command = net.command(env!("CARGO_BIN_EXE_forker"));
    let mut forker = Guard::spawn(command.args(["netmap:va", &file, &PACKETS.to_string()]).stdout(Stdio::piped()));
    until("the port is open", || sessions_of(home, "va", "rx") == 1);
    send_in_step(&far, || number(&file));
    let text = output(&mut forker);
    let (parent, child) = (number_after(&text, "parent took "), number_after(&text, "child took "));
    assert_eq!(parent + child, PACKETS);
    drop(far);
    until("the last port is closed", || home.snapshot().regions.is_empty());
    net.assert_given_back();
    summary(&format!("packets {PACKETS}, each once: parent {parent}, child {child}"));
}

#[test]
fn a_parent_and_its_forked_child_share_an_interface_direct() {
    isolated_with_interfaces(|home| forked_child(home, DIRECT));
}

#[test]
fn a_parent_and_its_forked_child_share_an_interface_mediated() {
    isolated_with_interfaces(|home| forked_child(home, MEDIATED));
}

#[test]
fn a_forked_child_keeps_the_interface_after_its_parent_is_killed() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        for policy in [DIRECT, MEDIATED] {
            set_policy(home, policy);
            let (tap, file) = (net.tap(), counter(home));
            let mut command = net.command(env!("CARGO_BIN_EXE_forker"));
            let mut parent = Guard::spawn(
                command.args(["netmap:va", &file, "2000", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()),
            );
            until("the port is open", || sessions_of(home, "va", "rx") == 1);
            let send_some = |from: u64| {
                (from..from + 1000).for_each(|seq| {
                    until("the child takes them", || number(&file) + WINDOW > seq);
                    tap.send(&packet::make(1, seq));
                })
            };
            send_some(0);
            parent.kill();
            send_some(1000);
            let mut text = String::new();
            parent.0.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
            assert!(text.contains("child took 2000"), "{text}");
            until("the port ends with the child", || home.snapshot().regions.is_empty());
            net.assert_given_back();
        }
    });
}

/// Opens and closes of an interface disturb no other client that has it open.
fn comings_and_goings(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (sender, tap) = (net.open("netmap:va/T"), net.tap());
    let mut seq = 0;
    for round in 0..25 {
        let spec = ["netmap:va", "netmap:va/R", "netmap:va-0/T", "netmap:va/x"][round % 4];
        let guest = if spec == "netmap:va/x" { None } else { Some(net.open(spec)) };
        if spec == "netmap:va/x" {
            let (errno, why) = net.refused(spec);
            assert!(errno == 16 && why.contains("in use"), "{why}");
        }
        let send_some = |seq: u64| transmit(&sender, 0, &frames(&[60; 20], seq), BUFFER);
        send_some(seq);
        if let Some(guest) = &guest
            && guest.rx_rings().len() == 1
        {
            tap.send(&frame(99, seq));
            assert_same(&collect(guest, 1), &[frame(99, seq)]);
        }
        drop(guest);
        send_some(seq + 20);
        seq += 40;
        assert_same(&tap.collect(40), &frames(&[60; 40], seq - 40));
    }
    drain(&sender);
    tap.assert_quiet();
    drop(sender);
    // The same for a receiver.
    let receiver = net.open("netmap:va/R");
    for round in 0..25 {
        tap.send_all(&frames(&[60; 20], seq));
        let guest = net.open(["netmap:va", "netmap:va/T", "netmap:va-0/R"][round % 3]);
        tap.send_all(&frames(&[60; 20], seq + 20));
        drop(guest);
        tap.send_all(&frames(&[60; 20], seq + 40));
        assert_same(&collect(&receiver, 60), &frames(&[60; 60], seq));
        seq += 60;
    }
    summary(&format!("frames {seq}, each once and in order, while others opened and closed the interface 50 times"));
}

#[test]
fn repeated_opens_and_closes_disturb_no_other_client_direct() {
    isolated_with_interfaces(|home| comings_and_goings(home, DIRECT));
}

#[test]
fn repeated_opens_and_closes_disturb_no_other_client_mediated() {
    isolated_with_interfaces(|home| comings_and_goings(home, MEDIATED));
}

/// A queue that is closed at any moment and opened again, while another stays open, sends nothing twice.
fn again_and_again(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, lab::VethOptions { queues: 2, ..CABLE }) else { return };
    let (_other, tap) = (net.open("netmap:va-1"), net.tap());
    let mut rng = packet::Rng(0x5eed_0040);
    let (mut sent, mut got) = (0, Vec::new());
    for _ in 0..40 {
        let port = net.open("netmap:va-0");
        for _ in 0..20 {
            transmit(&port, 0, &[packet::make(1, sent).to_vec()], BUFFER);
            sent += 1;
            std::thread::sleep(Duration::from_micros(rng.below(60)));
        }
        drop(port);
        got.extend(std::iter::from_fn(|| tap.next(Duration::from_millis(2))));
    }
    let numbers: Vec<u64> = got.iter().map(|bytes| packet::check(bytes).expect("a whole packet").1).collect();
    let wrong = numbers.windows(2).find(|pair| pair[1] <= pair[0]);
    assert_eq!(wrong, None, "a packet arrived twice");
    // Packets that were in the ring when the port was closed may be lost, and few others.
    assert!(numbers.len() as u64 > sent / 2, "{} of {sent} packets came", numbers.len());
    summary(&format!("packets {sent} before 40 closes, came {}, each once", numbers.len()));
}

#[test]
fn a_reopened_queue_sends_no_packet_twice_direct() {
    isolated_with_interfaces(|home| again_and_again(home, DIRECT));
}

#[test]
fn a_reopened_queue_sends_no_packet_twice_mediated() {
    isolated_with_interfaces(|home| again_and_again(home, MEDIATED));
}

/// Frames that a program has released, and did not sync any more, do not come again to the next one, while another
/// keeps the queue open.
fn released(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (_other, tap) = (net.open("netmap:va-0/T"), net.tap());
    for part in frames(&[60; 90], 0).chunks(30) {
        let port = net.open("netmap:va-0/R");
        tap.send_all(part);
        until("the frames are in the ring", || {
            port.rxsync().expect("the daemon runs");
            port.rx_rings()[0].available().count() >= part.len()
        });
        assert_same(&take(&port, 0), part);
    }
}

#[test]
fn released_frames_do_not_come_again_direct() {
    isolated_with_interfaces(|home| released(home, DIRECT));
}

#[test]
fn released_frames_do_not_come_again_mediated() {
    isolated_with_interfaces(|home| released(home, MEDIATED));
}

/// A refused open leaves nothing behind that blocks the next one.
#[test]
fn a_refused_open_leaves_nothing_behind() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        for policy in [DIRECT, MEDIATED] {
            set_policy(home, policy);
            for spec in ["netmap:va-1", "netmap:va^1", "netmap:va/RT", "netmap:va/r"] {
                let (errno, why) = net.refused(spec);
                assert!([22, 95].contains(&errno), "{spec}: {errno} {why}");
                let left = home.snapshot();
                assert!(left.ports.is_empty() && left.regions.is_empty(), "after {spec}: {left:?}");
                assert!(!net.has_xdp());
                let (port, tap) = (net.open("netmap:va"), net.tap());
                assert_works(&port, &tap, 0);
                drop(port);
                until("it is closed", || home.snapshot().regions.is_empty());
            }
        }
    });
}

/// An exclusive open excludes others.
#[test]
fn an_exclusive_port_cannot_be_opened_again() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        for policy in [DIRECT, MEDIATED] {
            set_policy(home, policy);
            let alone = net.open("netmap:va/x");
            for spec in ["netmap:va", "netmap:va-0", "netmap:va/R", "netmap:va/T", "netmap:va/x"] {
                let (errno, why) = net.refused(spec);
                assert!(errno == 16 && why.contains("in use"), "{spec}: {why}");
            }
            assert_works(&alone, &net.tap(), 0);
            drop(alone);
            until("it is closed", || home.snapshot().regions.is_empty());
        }
    });
}

/// Two cables: `va` to `vb`, and `vc` to `vd`, whose far ends are in the same namespace.
fn second_cable(net: &Net) -> Tap {
    let cable = lab::VethOptions { addresses: None, ..CABLE };
    net.lab.veth(&net.near, "vc", &net.far, "vd", cable).expect("a cable");
    Tap::on(&net.far, "vd")
}

/// All indexes in the slots of a port's receive rings, and in those of its transmit rings.
fn indexes(port: &Port) -> (HashSet<u32>, HashSet<u32>) {
    let of = |rings: &[unetmap::Ring]| {
        let slots = rings.iter().flat_map(|ring| {
            (0..ring.num_slots()).scan(ring.head(), |at, _| {
                let here = *at;
                *at = ring.next(here);
                Some(ring.slot(here).buf_idx())
            })
        });
        slots.collect::<HashSet<u32>>()
    };
    (of(port.rx_rings()), of(port.tx_rings()))
}

/// The buffers of the interfaces' region once only the keeper, with a pipe, is left: each in one of its places, none of
/// them lost.
#[track_caller]
fn assert_all_buffers_back(home: &Home, before: conformance::snapshot::Buffers) {
    home.until_left(1);
    let now = home.snapshot().buffers("interfaces");
    assert_eq!(now, before);
    assert_eq!((now.in_rings, now.missing), (PIPE_BUFFERS, 0));
}

/// A frame that is exchanged from one interface to another leaves from the very buffer that it came into.
#[test]
fn a_swapped_frame_leaves_from_the_buffer_that_it_came_into() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let out = second_cable(&net);
        let keeper = net.open("netmap:va{9");
        assert_eq!(keeper.mem_id(), 1, "pipes of an interface are in its region");
        let before = home.snapshot().buffers("interfaces");
        let (a, c, tap) = (net.open("netmap:va"), net.open("netmap:vc"), net.tap());
        assert!(a.mem_id() == 1 && c.mem_id() == 1 && a.same_region(&c) && a.same_region(&keeper));
        let (mut of_rx, mut of_tx) = (indexes(&a).0, indexes(&c).1);
        assert!(of_rx.is_disjoint(&of_tx));
        let (from, to) = (&a.rx_rings()[0], &c.tx_rings()[0]);
        let mut swapped = 0;
        for round in 0..40 {
            let sent = frames(&[60, 61, 500, 1514].repeat(25), round << 20);
            tap.send_all(&sent);
            let mut left = sent.len() as u32;
            until("all frames are moved", || {
                a.poll(Interest::BOTH, Some(Duration::from_millis(10))).expect("the daemon runs");
                c.txsync().expect("the daemon runs");
                let n = from.space().min(to.space());
                for (source, target) in from.first(n).zip(to.first(n)) {
                    let (came, went) = (source.buf_idx(), target.buf_idx());
                    assert!(of_rx.contains(&came) && of_tx.contains(&went), "a buffer of neither ring: {came}, {went}");
                    target.swap_from(&source);
                    target.set_flags(target.flags() & !unetmap::abi::NS_MOREFRAG);
                    assert_eq!((source.buf_idx(), target.buf_idx()), (went, came));
                    of_rx.remove(&came);
                    of_rx.insert(went);
                    of_tx.remove(&went);
                    of_tx.insert(came);
                }
                to.advance(n);
                from.advance(n);
                c.txsync().expect("the daemon runs");
                left -= n;
                left == 0
            });
            swapped += sent.len();
            assert_same(&out.collect(sent.len()), &sent);
        }
        drain(&c);
        a.rxsync().expect("the daemon runs");
        assert_eq!((indexes(&a).0, indexes(&c).1), (of_rx, of_tx), "the rings' slots name all their buffers");
        drop((a, c));
        assert_all_buffers_back(home, before);
        drop(keeper);
        until("the region is closed", || home.snapshot().regions.is_empty());
        summary(&format!(
            "frames {swapped} from interface to interface, each sent from the buffer it came into; all buffers back"
        ));
    });
}

fn start_bridge(net: &Net, a: &str, b: &str, more: &[&str]) -> Guard {
    let mut command = net.command(program("bridge"));
    let args = ["--json", "-w", "0", "-i", a, "-i", b];
    Guard::spawn(command.args(args).args(more).stdout(Stdio::piped()).stderr(Stdio::null()))
}

fn bridge_summary(bridge: &mut Guard) -> serde_json::Value {
    bridge.signal(Signal::INT);
    let text = output(bridge);
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

/// bridge between an interface and a pipe. The reader at the other end of the pipe finds the frames in the interface's
/// own receive buffers: nothing was copied.
#[test]
fn bridge_moves_frames_to_a_pipe_and_back_without_a_copy() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let keeper = net.open("netmap:va{9");
        let before = home.snapshot().buffers("interfaces");
        let (pipe, tap) = (net.open("netmap:va}1"), net.tap());
        assert_eq!(pipe.mem_id(), 1);
        // Opened only to read its rings.
        let watcher = net.open("netmap:va");
        let of_interface = indexes(&watcher).0;
        let of_pipe = indexes(&pipe).1;
        let mut bridge = start_bridge(&net, "netmap:va", "netmap:va{1", &[]);
        until("the bridge has both", || home.snapshot().sessions.len() == 5);
        // Fewer frames than the ring has slots: each arrives in a buffer that was in one of its slots from the start.
        let sent = frames(&(100..1000).step_by(2).collect::<Vec<usize>>(), 0);
        tap.send_all(&sent);
        let ring = &pipe.rx_rings()[0];
        let mut got = Vec::new();
        while got.len() < sent.len() {
            assert!(pipe.poll(Interest::RX, Some(LIMIT)).expect("the daemon runs").rx(), "{} frames came", got.len());
            let strange = ring.available().filter(|slot| !of_interface.contains(&slot.buf_idx())).count();
            assert_eq!(strange, 0, "frames after the first {} that were copied", got.len());
            got.extend(take(&pipe, 0));
        }
        assert_same(&got, &sent);
        pipe.rxsync().expect("the daemon runs");
        // In the other direction: packets from the pipe are sent by the interface.
        transmit(&pipe, 0, &sent, BUFFER);
        assert_same(&tap.collect(sent.len()), &sent);
        drain(&pipe);
        let moved_on: HashSet<u32> = indexes(&pipe).1;
        let fresh = moved_on.difference(&of_pipe).count();
        assert!(fresh >= sent.len().min(500), "buffers of the pipe's sender were exchanged: {fresh}");
        let number_after = bridge_summary(&mut bridge);
        assert_eq!(
            (&number_after["zero_copy"], number_after["packets"].as_u64()),
            (&true.into(), Some(2 * sent.len() as u64))
        );
        drop((pipe, watcher));
        assert_all_buffers_back(home, before);
        drop(keeper);
        summary(&format!("frames {} each way, in the interface's own buffers; all buffers back", sent.len()));
    });
}

fn bridge_between_interfaces(home: &Home, policy: &str, zero_copy: bool) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (tap, out) = (net.tap(), second_cable(&net));
    // With direct access in the interfaces' region, otherwise in another one.
    let keeper = net.open("netmap:va{9");
    let region = home.snapshot().regions[0].name.clone();
    let before = home.snapshot().buffers(&region);
    let mut moved = 0;
    for more in [&[][..], &["-c"], &["-b", "1"]] {
        let mut bridge = start_bridge(&net, "netmap:va", "netmap:vc", more);
        until("the bridge has both", || {
            let ports = home.snapshot().ports;
            ["va", "vc"].iter().all(|name| ports.iter().any(|p| p.name == *name && p.rings[0].sessions > 0))
        });
        for round in 0..10 {
            let sent = frames(&(14..1514).step_by(5).collect::<Vec<usize>>(), round << 20);
            tap.send_all(&sent);
            assert_same(&out.collect(sent.len()), &sent);
            out.send_all(&sent);
            assert_same(&tap.collect(sent.len()), &sent);
            moved += 2 * sent.len();
        }
        let number_after = bridge_summary(&mut bridge);
        assert_eq!(number_after["zero_copy"], zero_copy && more != ["-c"], "{more:?}");
        home.until_left(1);
        let now = home.snapshot().buffers(&region);
        assert_eq!((now, now.missing), (before, 0), "{more:?}");
    }
    tap.assert_quiet();
    out.assert_quiet();
    drop(keeper);
    until("the region is closed", || home.snapshot().regions.is_empty());
    net.assert_given_back();
    summary(&format!("frames {moved} between two interfaces, zero copy {zero_copy}, all buffers back"));
}

#[test]
fn bridge_between_two_interfaces_direct() {
    isolated_with_interfaces(|home| bridge_between_interfaces(home, DIRECT, true));
}

/// Each has a region of its own, so that this is a copy.
#[test]
fn bridge_between_two_interfaces_mediated() {
    isolated_with_interfaces(|home| bridge_between_interfaces(home, MEDIATED, false));
}

/// Extra buffers, sent from an interface's slots, are accounted for again.
#[test]
fn extra_buffers_go_through_an_interface_and_come_back() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let keeper = net.open("netmap:va{9");
        let before = home.snapshot().buffers("interfaces");
        let tap = net.tap();
        let port = net.near.run(|| Port::options().extra_bufs(300).open("netmap:va")).expect("a namespace");
        let port = port.expect("a port");
        assert_eq!(port.extra_bufs(), 300);
        for seq in 0..3000 {
            until("room", || {
                port.txsync().expect("the daemon runs");
                port.tx_rings()[0].space() > 0
            });
            let fresh = port.take_extra_buf().expect("an extra buffer");
            let slot = port.tx_rings()[0].available().next().expect("room");
            port.give_extra_buf(slot.replace_buf(fresh));
            let one = frame(60, seq);
            slot.frame().write(0, &one);
            slot.set_len_flags(60, 0);
            port.tx_rings()[0].advance(1);
            port.txsync().expect("the daemon runs");
            assert_same(&tap.collect(1), &[one]);
        }
        assert_eq!(home.snapshot().buffers("interfaces").extra, 300);
        drain(&port);
        drop(port);
        assert_all_buffers_back(home, before);
        drop(keeper);
    });
}

/// The pipe of an interface whose owner may not touch it is a pipe like others.
#[test]
fn a_mediated_interface_and_its_pipe_share_a_region() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, MEDIATED, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va"), net.tap());
        let (one, two) = (net.open("netmap:va{1"), net.open("netmap:va}1"));
        assert!(port.same_region(&one) && one.same_region(&two) && port.mem_id() != 1);
        conformance::traffic::exchange(&one, &two, 1, 0, 5000);
        assert_works(&port, &tap, 0);
        drop((one, two));
        assert_works(&port, &tap, 1000);
        drop(port);
        until("the regions are closed", || home.snapshot().regions.is_empty());
    });
}
