// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces on which frames arrive unfinished for a reason that none of their offloads changes: the frames of a port
//! are complete all the same, and everything else works as with other interfaces.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use conformance::home::summary;
use conformance::host::CABLE;
use conformance::machine::{self, HEADER, Machine, unfinished};
use conformance::net::{BUFFER, DIRECT, MEDIATED, Net, assert_same, collect, frame, frames, take, transmit};
use conformance::packet::assert_checksums;
use conformance::{Home, isolated_with_interfaces, program, tool, until};
use rustix::process::{Signal, kill_process};
use rustix::thread::gettid;
use unetmap::{Interest, Port};

/// The address of the machine, and that of its tap in the host.
const MACHINE: [u8; 4] = [10, 7, 0, 2];
const HOST: [u8; 4] = [10, 7, 0, 1];

/// A machine whose tap is called `tap0` in the host, where it has an address.
fn machine(net: &Net) -> Machine {
    let machine = Machine::new(&net.near, "tap0");
    net.near.ip(&["addr", "add", "10.7.0.1/24", "dev", "tap0"]).expect("an address");
    machine
}

fn with_header(frame: &[u8]) -> Vec<u8> {
    [&[0; HEADER], frame].concat()
}

/// A question for the host's MAC address, behind its header.
fn arp_request() -> Vec<u8> {
    let mut frame = [[0xff; 6], [2, 0, 0, 0, 0, 9]].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9]);
    frame.extend([&MACHINE[..], &[0; 6], &HOST[..]].concat());
    frame.resize(60, 0);
    with_header(&frame)
}

/// Whether a frame is the host's answer.
fn is_answer(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 6]) && frame.get(20..22) == Some(&[0, 2])
}

/// Asks until there is an answer: a question may be lost while a port closes.
fn host_answers(machine: &Machine, what: &str) {
    until(what, || {
        machine.send(&arp_request());
        machine.try_receive(is_answer).is_some()
    });
}

/// The TCP packets that arrive until there are `payload` bytes.
fn tcp(port: &Port, payload: usize) -> Vec<Vec<u8>> {
    let mut got: Vec<Vec<u8>> = Vec::new();
    until("all bytes arrive", || {
        port.poll(Interest::RX, Some(Duration::from_millis(20))).expect("the daemon runs");
        let arrived = (0..port.rx_rings().len()).flat_map(|ring| take(port, ring));
        got.extend(arrived.filter(|frame| frame[12..14] == [8, 0] && frame[23] == 6));
        got.iter().map(|frame| frame.len() - 54).sum::<usize>() >= payload
    });
    got
}

fn frames_of_a_tap(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let machine = machine(&net);
    let port = net.open("netmap:tap0");
    machine.send(&unfinished(300));
    machine.send(&unfinished(20_000));
    let got = tcp(&port, 20_300);
    assert_eq!(got.iter().map(Vec::len).max(), Some(1054), "segments are cut as the machine demands");
    got.iter().for_each(|frame| assert_checksums(frame));
    let (complete, mut tagged) = (frame(600, 1), frame(600, 2));
    tagged.splice(12..12, [0x81, 0, 0, 10]);
    machine.send(&with_header(&complete));
    machine.send(&with_header(&tagged));
    assert_same(&collect(&port, 2), &[complete, tagged]);
    // In the other direction, also what was sent while the link was down.
    let sent = frames(&[60; 40], 100);
    transmit(&port, 0, &sent[..20], BUFFER);
    for wanted in &sent[..20] {
        machine.receive("a frame of the port", |frame| frame == wanted);
    }
    net.near.ip(&["link", "set", "tap0", "down"]).expect("a tap");
    until("the port knows", || {
        let ports = home.snapshot().ports;
        ports.iter().any(|port| port.manner.as_deref().is_some_and(|m| m.starts_with("down")))
    });
    transmit(&port, 0, &sent[20..], BUFFER);
    net.near.ip(&["link", "set", "tap0", "up"]).expect("a tap");
    until("the rings are sent", || {
        port.txsync().expect("the daemon runs");
        !port.tx_rings().iter().any(unetmap::Ring::pending)
    });
    for wanted in &sent[20..] {
        machine.receive("a frame that waited", |frame| frame == wanted);
    }
    drop(port);
    until("the companion is removed", || !net.near.ip(&["-o", "link"]).expect("interfaces").contains("nmr"));
    host_answers(&machine, "the host has its tap again");
}

#[test]
fn frames_of_a_tap_are_complete_direct() {
    isolated_with_interfaces(|home| frames_of_a_tap(home, DIRECT));
}

#[test]
fn frames_of_a_tap_are_complete_mediated() {
    isolated_with_interfaces(|home| frames_of_a_tap(home, MEDIATED));
}

/// A veth whose peer is in a namespace that the daemon cannot find: no process is in it, only a thread is.
#[test]
fn frames_of_a_hidden_sender_are_complete() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (to_thread, of_test) = channel::<()>();
        let (to_test, of_thread) = channel();
        let thread = thread::spawn(move || {
            machine::enter_new_namespace().expect("a namespace");
            to_test.send(gettid().as_raw_nonzero().get()).expect("the test");
            of_test.recv().expect("the test");
            let ip =
                |args: &[&str]| assert!(Command::new("ip").args(args).status().is_ok_and(|s| s.success()), "{args:?}");
            ip(&["addr", "add", "10.9.0.2/24", "dev", "vb"]);
            ip(&["link", "set", "vb", "up"]);
            ip(&["neigh", "replace", "10.9.0.77", "lladdr", "02:00:00:00:00:77", "dev", "vb"]);
            to_test.send(0).expect("the test");
            of_test.recv().expect("the test");
            let socket = UdpSocket::bind("10.9.0.2:0").expect("a socket");
            // Not once only: until the kernel has noticed that the link is up, it drops what is sent. The namespace
            // ends with the thread.
            let again = Duration::from_millis(100);
            while of_test.recv_timeout(again) == Err(RecvTimeoutError::Timeout) {
                socket.send_to(&[7; 300], "10.9.0.77:9").expect("a route");
            }
        });
        let tid = of_thread.recv().expect("the thread");
        net.far.tool("ip", &["link", "set", "vb", "netns", &tid.to_string()]).expect("the peer moves");
        to_thread.send(()).expect("the thread");
        of_thread.recv().expect("the thread");
        let port = net.open("netmap:va");
        to_thread.send(()).expect("the thread");
        let datagram = loop {
            let frame = collect(&port, 1).remove(0);
            if frame[12..14] == [8, 0] && frame[23] == 17 {
                break frame;
            }
        };
        assert_eq!(datagram.len(), 342);
        assert_checksums(&datagram);
        drop(to_thread);
        thread.join().expect("the thread");
    });
}

#[test]
fn frames_of_the_loopback_interface_are_complete() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        net.near.ip(&["link", "set", "lo", "up"]).expect("lo");
        let port = net.open("netmap:lo/R");
        let sent = net.near.run(|| UdpSocket::bind("127.0.0.1:0")?.send_to(&[7; 300], "127.0.0.1:9"));
        sent.expect("a namespace").expect("a route");
        let datagram = collect(&port, 1).remove(0);
        assert_eq!(datagram.len(), 342);
        assert_checksums(&datagram);
    });
}

/// Frames that enter no port are the host's: those that a filter leaves, those of rings that nobody has open, those
/// that a program passes on to the host rings, and all after the daemon was killed.
#[test]
fn the_host_has_the_other_frames_of_a_tap() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let machine = machine(&net);
        let sender = net.open("netmap:tap0/T");
        host_answers(&machine, "an answer while a port only sends");
        drop(sender);
        tool::done(&net.near, &["tap0", "filter", "tcp"]);
        let port = net.open("netmap:tap0");
        host_answers(&machine, "an answer beside a filter");
        machine.send(&unfinished(300));
        assert_checksums(&tcp(&port, 300)[0]);
        drop(port);
        tool::done(&net.near, &["tap0", "filter", "off"]);
        let mut bridge = net.start(home, program("bridge"), &["-w", "0", "-i", "netmap:tap0", "-i", "netmap:tap0^"], 2);
        net.near.ip(&["neigh", "flush", "dev", "tap0"]).expect("neighbours");
        host_answers(&machine, "an answer by way of host rings");
        bridge.signal(Signal::TERM);
        assert!(bridge.wait().success());
        let _port = net.open("netmap:tap0");
        kill_process(home.daemon(), Signal::KILL).expect("our own daemon");
        host_answers(&machine, "an answer after the daemon was killed");
        summary("a tap's frames: filtered, unbound, host rings, killed daemon: the host has the rest");
    });
}
