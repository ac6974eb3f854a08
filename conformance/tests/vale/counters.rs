// SPDX-License-Identifier: BSD-2-Clause
//! The counters of a switch add up, whatever happens: what it takes from ports is what it delivers and what it drops,
//! by reason.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use conformance::ether::{BROADCAST, mac, make};
use conformance::home::summary;
use conformance::kept::{kill, start, wait_until_kept};
use conformance::net::{BUFFER, empty, take, transmit};
use conformance::replace::replace;
use conformance::switch::set;
use conformance::traffic::open;
use conformance::{Home, isolated, until};
use unetmap::Port;

/// The addresses of the ports.
const A: u32 = 1;
const B: u32 = 2;
const C: u32 = 3;

/// A fault, which is given what waits for more packets.
type Fault<'a> = dyn Fn(&dyn Fn()) + Sync + 'a;

/// The frames that were sent, in all and of each kind.
#[derive(Default)]
struct Sent {
    all: u64,
    runts: u64,
    home: u64,
}

/// Sends a batch of all kinds: to one port, to another, to all, too short, and to the port's own address.
fn send(port: &Port, sent: &mut Sent) {
    let to = |to| make(to, mac(A), 1, sent.all).to_vec();
    let batch = [to(mac(B)), to(mac(B)), to(mac(C)), to(BROADCAST), vec![0; 10], to(mac(A)), to(mac(B))];
    transmit(port, 0, &batch, BUFFER);
    *sent = Sent { all: sent.all + batch.len() as u64, runts: sent.runts + 1, home: sent.home + 1 };
}

/// Takes what has arrived; returns how many frames.
fn receive(port: &Port) -> u64 {
    port.rxsync().expect("an open port");
    take(port, 0).len() as u64
}

/// Sends from `a` to the others, of which `b` and `c` read, until `work` is done, and then until all have what was
/// sent. `work` is given a function that waits for more. Adds to what was sent and received.
fn during_traffic(
    [a, b, c]: [&Port; 3],
    (sent, received): (&mut Sent, &mut [u64; 2]),
    work: impl FnOnce(&dyn Fn()) + Send,
) {
    let (rounds, done) = (std::sync::atomic::AtomicU64::new(0), AtomicBool::new(false));
    let go_on = || {
        let before = rounds.load(Relaxed);
        until("more is sent", || rounds.load(Relaxed) > before + 50);
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            work(&go_on);
            done.store(true, Relaxed);
        });
        while !done.load(Relaxed) {
            send(a, sent);
            received.iter_mut().zip([b, c]).for_each(|(n, port)| *n += receive(port));
            rounds.fetch_add(1, Relaxed);
        }
    });
    conformance::net::drain(a);
}

/// Waits until the sums of the switch are equal, and what it has delivered to `b` and `c` is what they received.
#[track_caller]
fn assert_adds_up(home: &Home, what: &str, (sent, received): (&Sent, &mut [u64; 2]), ports: [&Port; 2]) {
    let mut now = home.snapshot();
    until(&format!("the counters add up after {what}"), || {
        received.iter_mut().zip(ports).for_each(|(n, port)| *n += receive(port));
        now = home.snapshot();
        let of = |name: &str| now.port(name).packets.expect("packets of a port of a switch");
        now.switches.iter().all(|switch| switch.difference().is_none())
            && [of("vale0:b").received, of("vale0:c").received] == *received
            && of("vale0:a").sent == sent.all
    });
    let (a, switch) = (now.port("vale0:a"), &now.switches[0]);
    assert_eq!([a.lost["short"], a.lost["home"]], [sent.runts, sent.home], "after {what}: {a:?}");
    assert_eq!(switch.lost.values().sum::<u64>(), now.ports.iter().flat_map(|port| port.lost.values()).sum::<u64>());
}

#[test]
fn the_counters_of_a_switch_add_up_after_each_fault() {
    isolated(|home| {
        let mut daemon = start(home, None);
        let [a, b, c] = ["a", "b", "c"].map(|name| open(&format!("vale0:{name}")));
        // It never reads: its ring is full soon.
        let full = open("vale0:full");
        for (port, address) in [(&b, B), (&c, C)] {
            transmit(port, 0, &[make(mac(99), mac(address), 1, 0).to_vec()], BUFFER);
            conformance::net::drain(port);
        }
        // The first frames, from which the switch has learned.
        until("the addresses are known", || conformance::switch::shown("show vale0")["addresses"] == 2);
        let (mut sent, mut received) = (Sent::default(), [0, 0]);
        [&a, &b, &c].iter().for_each(|port| empty(port));
        let before = home.snapshot();
        received[0] = before.port("vale0:b").packets.expect("packets").received;
        received[1] = before.port("vale0:c").packets.expect("packets").received;
        let faults: [(&str, &Fault<'_>); 8] = [
            ("nothing", &|go_on| go_on()),
            ("a filter of the receiver", &|go_on| {
                set("port vale0:b filter out ether[30] & 3 = 1");
                go_on();
            }),
            ("a rate of the receiver", &|go_on| {
                set("port vale0:c rate out 100pps");
                go_on();
            }),
            ("rules that end", &|go_on| {
                set("port vale0:b filter out off");
                set("port vale0:c rate out off");
                go_on();
            }),
            ("a monitor", &|go_on| {
                let monitor = open("vale0:b/r");
                go_on();
                drop(monitor);
                go_on();
            }),
            ("a crash", &|go_on| {
                wait_until_kept(home);
                kill(home);
                go_on();
            }),
            ("a replacement", &|go_on| {
                replace(home);
                go_on();
            }),
            ("a port that closes", &|go_on| {
                let other = open("vale0:other");
                go_on();
                drop(other);
                go_on();
            }),
        ];
        for (what, fault) in faults {
            during_traffic([&a, &b, &c], (&mut sent, &mut received), |go_on| fault(go_on));
            assert_adds_up(home, what, (&sent, &mut received), [&b, &c]);
        }
        let now = home.snapshot();
        let missed = |port: &str, why: &str| now.port(port).not_received[why];
        assert!(missed("vale0:b", "filter") > 0 && missed("vale0:c", "rate") > 0 && missed("vale0:full", "room") > 0);
        summary(&format!("a switch after {} frames: {:?}", sent.all, now.switches[0]));
        drop((a, b, c, full));
        daemon.kill();
    });
}
