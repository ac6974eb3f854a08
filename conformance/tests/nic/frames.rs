// SPDX-License-Identifier: BSD-2-Clause
//! The frames that an interface receives add up, whatever happens: to programs, to the stack, refused by the filter,
//! bypassed, and each drop by reason.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use conformance::forwarder::{Forwarder, Line};
use conformance::home::Guard;
use conformance::kept::{kill, wait_until_kept};
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, Tap, frame, serve, start_daemon, take};
use conformance::replace::replace;
use conformance::snapshot::Frames;
use conformance::tool::done;
use conformance::{Home, isolated_with_interfaces, program, until};
use lab::{Ns, VethOptions};
use rustix::process::{Signal, kill_process};
use unetmap::Port;

/// Frames of a step: more than a receive ring has slots.
const MANY: u64 = 3000;
const FEW: u64 = 100;
/// How long a frame that was sent may take.
const SOON: Duration = Duration::from_millis(5);

/// A sender of numbered frames, at the other end of an interface, of which it counts all frames.
struct Sender<'a> {
    tap: Tap,
    ns: &'a Ns,
    interface: &'static str,
}

impl<'a> Sender<'a> {
    fn new(ns: &'a Ns, interface: &'static str) -> Sender<'a> {
        Sender { tap: Tap::on(ns, interface), ns, interface }
    }

    fn send(&self, frames: u64) {
        (0..frames).for_each(|number| self.tap.send(&frame(64, number)));
    }

    /// Frames that the interface has received of this end, of all senders.
    fn sent(&self) -> u64 {
        self.ns.counters(self.interface).expect("an interface").tx_packets
    }
}

/// The account of an interface, also of one that is not open.
fn frames_of(ns: &Ns, interface: &str) -> Frames {
    let reply: serde_json::Value = serde_json::from_str(&done(ns, &[interface, "--json"])).expect("JSON");
    serde_json::from_value(reply["frames"].clone()).unwrap_or_else(|e| panic!("{e}: {reply}"))
}

/// Waits until the account has all frames since `before` was sent; returns it. It adds up.
#[track_caller]
fn settled(ns: &Ns, interface: &str, (sender, before): (&Sender<'_>, u64)) -> Frames {
    let mut now = Frames::default();
    until("all frames are in the account", || {
        now = frames_of(ns, interface);
        now.received == sender.sent() - before && now.sum() == now.received
    });
    now
}

/// Takes all packets that are there; returns how many.
fn taken(port: &Port) -> u64 {
    port.rxsync().expect("an open port");
    let n = take(port, 0).len() as u64;
    port.rxsync().expect("an open port");
    n
}

fn each_fault(home: &Home, policy: &str) {
    let cable = VethOptions { addresses: None, ..CABLE };
    let Some(net) = Net::with(home, policy, cable, &["--keep-ports"]) else { return };
    let port = net.open("netmap:va");
    let sender = Sender::new(&net.far, "vb");
    let (before, got) = (sender.sent() - frames_of(&net.near, "va").received, AtomicU64::new(0));
    got.store(frames_of(&net.near, "va").to_programs, Relaxed);
    // All that is in the rings is what programs got, and has been taken.
    let assert_taken = |what: &str, interface: &str| {
        let mut now = Frames::default();
        until(&format!("all frames of {what} are taken"), || {
            got.fetch_add(taken(&port), Relaxed);
            now = settled(&net.near, interface, (&sender, before));
            let shown = home.snapshot().port(interface).frames.clone();
            now.to_programs == got.load(Relaxed) && shown.as_ref() == Some(&now)
        });
        now
    };
    sender.send(FEW);
    let first = assert_taken("a program that reads", "va");
    assert!(first.to_programs >= FEW && first.to_stack + first.refused == 0, "{first:?}");

    sender.send(MANY);
    let hung = assert_taken("a program that does not read", "va");
    assert!(hung.dropped["room"] + hung.dropped["buffer"] > 0, "{hung:?}");

    done(&net.near, &["va", "filter", "ip"]);
    sender.send(FEW);
    let refused = assert_taken("a filter", "va");
    assert_eq!((refused.to_programs, refused.dropped), (hung.to_programs, hung.dropped));
    assert!(refused.refused >= FEW, "{}", refused.refused);
    done(&net.near, &["va", "filter", "ether proto 0x88b5"]);
    sender.send(FEW);
    let accepted = assert_taken("another filter", "va");
    assert!(accepted.to_programs >= refused.to_programs + FEW, "{accepted:?}");
    done(&net.near, &["va", "filter", "off"]);

    net.near.ip(&["link", "set", "va", "name", "vx"]).expect("an interface");
    sender.send(FEW);
    assert!(assert_taken("another name", "vx").to_programs > accepted.to_programs);
    net.near.ip(&["link", "set", "vx", "name", "va"]).expect("an interface");

    let (stack, daemon) = (Tap::on(&net.near, "va"), home.daemon());
    kill_process(daemon, Signal::STOP).expect("our own daemon");
    until("frames pass by the program", || {
        sender.send(1);
        stack.next(SOON).is_some()
    });
    kill_process(daemon, Signal::CONT).expect("our own daemon");
    drop(stack);
    assert!(assert_taken("a daemon that was stopped", "va").to_stack > 0);

    for what in ["a crash", "a replacement"] {
        wait_until_kept(home);
        sender.send(FEW);
        if what == "a crash" {
            _ = kill(home)
        } else {
            _ = replace(home)
        }
        sender.send(FEW);
        assert_taken(what, "va");
    }
}

#[test]
fn the_frames_of_an_interface_add_up_direct() {
    isolated_with_interfaces(|home| each_fault(home, DIRECT));
}

#[test]
fn the_frames_of_an_interface_add_up_mediated() {
    isolated_with_interfaces(|home| each_fault(home, MEDIATED));
}

/// Kills a program under traffic, and starts it again.
#[test]
fn the_frames_of_closed_and_bypassed_interfaces_add_up() {
    isolated_with_interfaces(|home| {
        let Some(line) = Line::new() else { return };
        let mut daemon = serve(home);
        let (middle, sender) = (&line.middle, Sender::new(&line.left, "left0"));
        done(middle, &["left1", "failure", "closed"]);
        let before = sender.sent() - frames_of(middle, "left1").received;
        sender.send(FEW);
        let closed = settled(middle, "left1", (&sender, before));
        assert!(closed.dropped["closed"] >= FEW && closed.to_programs == 0, "{closed:?}");

        let output = middle.command(program("unetmap")).args(["bypass", "left1", "right1"]).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        sender.send(FEW);
        let bypassed = settled(middle, "left1", (&sender, before));
        assert!(bypassed.bypassed >= FEW && bypassed.dropped == closed.dropped, "{bypassed:?}");
        let bridge = || {
            let mut command = middle.command(program("bridge"));
            Forwarder::start(command.args(["-w", "0", "-i", "netmap:left1", "-i", "netmap:right1"]))
        };
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Relaxed) {
                    sender.send(1);
                    thread::yield_now();
                }
            });
            for _ in 0..3 {
                let mut bridge = bridge();
                let then = frames_of(middle, "left1").to_programs;
                until("frames go to the bridge", || frames_of(middle, "left1").to_programs > then + FEW);
                bridge.guard().kill();
                until("the port is closed", || home.snapshot().ports.is_empty());
            }
            ends.store(true, Relaxed);
        });
        let killed = settled(middle, "left1", (&sender, before));
        assert!(killed.bypassed > bypassed.bypassed, "{killed:?}");

        daemon.kill();
        sender.send(FEW);
        daemon = start_daemon(home, &[]);
        let after = settled(middle, "left1", (&sender, before));
        assert!(after.bypassed >= killed.bypassed + FEW && after.to_programs == killed.to_programs, "{after:?}");
        // A port whose sockets end with the daemon.
        let mut bridge = bridge();
        sender.send(FEW);
        settled(middle, "left1", (&sender, before));
        daemon.kill();
        bridge.guard().wait();
        let _daemon: Guard = start_daemon(home, &[]);
        settled(middle, "left1", (&sender, before));
    });
}
