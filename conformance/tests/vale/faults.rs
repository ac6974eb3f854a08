// SPDX-License-Identifier: BSD-2-Clause
//! Faults of switch ports and of their interfaces, by which other ports lose no packet.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use conformance::ether::{self, BROADCAST, drain, mac};
use conformance::home::{Guard, summary};
use conformance::net::{CABLE, DIRECT, Net, open_in};
use conformance::stop::Stop;
use conformance::traffic::open;
use conformance::{Home, isolated_with_interfaces, program, until};
use rustix::process::Signal;
use serde_json::Value;
use unetmap::Port;

fn shown(switch: &str) -> Value {
    let out = Command::new(program("unetmap")).args(["vale", "show", switch, "--json"]).output().expect("unetmap");
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)))
}

/// Sends frames from `a` (host 0) to `b` (host 1), and checks that all arrive.
#[track_caller]
fn exchange(a: &Port, b: &Port, sent: &mut u64, n: u64) {
    ether::send(a, mac(1), mac(0), 5, (*sent, *sent + n));
    ether::expect(b, 5, (*sent, *sent + n));
    *sent += n;
}

const FLOOD: u32 = 1_000_000;
const HOSTS: u32 = 200;

/// One port sends with a million source addresses: the MAC table stays bounded, and active addresses stay known.
#[test]
fn a_flood_of_source_addresses_displaces_no_active_one() {
    isolated_with_interfaces(|home| {
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        let (hosts, flood) = (open("vale0:hosts"), open("vale0:flood"));
        for n in 0..HOSTS {
            ether::send(&hosts, mac(1), mac(1000 + n), 1, (0, 1));
        }
        ether::send(&b, BROADCAST, mac(1), 1, (0, 1));
        ether::send(&a, BROADCAST, mac(0), 1, (0, 1));
        until("they are known", || shown("vale0")["addresses"] == HOSTS + 2);
        [&a, &b, &hosts, &flood].into_iter().for_each(|port| drop(drain(port)));
        let (mut sent, ring) = (0, &flood.tx_rings()[0]);
        let mut next = 0;
        while next < FLOOD {
            flood.poll(unetmap::Interest::TX, Some(conformance::LIMIT)).expect("a switch");
            let mut n = 0;
            for slot in ring.available().take((FLOOD - next) as usize) {
                slot.frame().write(0, &mac(0));
                slot.frame().write(6, &mac(1 << 24 | (next + n)));
                // Long enough to be learned from, too short to be a test packet; addressed to its own port.
                slot.set_len_flags(14, 3 << 8);
                n += 1;
            }
            ring.advance(n);
            next += n;
            flood.txsync().expect("a switch");
            if next % 50_000 < n {
                exchange(&a, &b, &mut sent, 50);
            }
        }
        until("all were looked at", || {
            flood.txsync().expect("a switch");
            !ring.pending()
        });
        let all = shown("vale0");
        let count = all["addresses"].as_u64().expect("a number");
        let most = all["most_addresses"].as_u64().expect("a number");
        assert!(count <= most && count > u64::from(HOSTS) + 2, "{count} of {most}");
        let table = all["table"].as_array().expect("a table");
        let of = |port: &str| table.iter().filter(|known| known["port"] == port).count() as u64;
        assert_eq!((of("hosts"), of("a"), of("b")), (HOSTS.into(), 1, 1));
        assert_eq!(of("flood") + u64::from(HOSTS) + 2, count);
        // A new address is still learned.
        ether::send(&a, mac(1), mac(77), 5, (sent, sent + 1));
        ether::expect(&b, 5, (sent, sent + 1));
        until("the newcomer is known", || {
            shown("vale0")["table"]
                .as_array()
                .is_some_and(|table| table.iter().filter(|known| known["port"] == "a").count() == 2)
        });
        assert!(drain(&hosts).is_empty(), "somebody was not known");
        summary(&format!(
            "addresses {FLOOD}, known afterwards {count} of {most}, hosts forgotten 0, frames of others {sent}"
        ));
        home.assert_serves();
    });
}

/// Receivers are stopped with full rings and then killed, while others exchange packets.
#[test]
fn a_port_killed_with_full_rings_stops_nobody() {
    isolated_with_interfaces(|home: &Home| {
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        ether::send(&b, BROADCAST, mac(1), 1, (0, 1));
        ether::expect(&a, 1, (0, 1));
        let mut sent = 0;
        for turn in 0..10u64 {
            let record = home.folder().join(format!("victim-{turn}"));
            std::fs::create_dir(&record).expect("a folder");
            let mut command = Command::new(env!("CARGO_BIN_EXE_traffic_client"));
            command.args(["recv", "vale0:victim"]).arg(&record).stdout(Stdio::null()).stderr(Stdio::null());
            let mut victim = Guard::spawn(&mut command);
            until("it has its port", || home.snapshot().ports.iter().any(|port| port.name == "vale0:victim"));
            victim.signal(Signal::STOP);
            // Twice as many packets as its ring has slots, addressed to its port by number.
            ether::send_flagged(&a, (mac(9), mac(0)), 2 << 8, 6, (0, 2200));
            until("its ring is full", || home.snapshot().ring("vale0:victim", "rx", 0).dropped > 0);
            (0..4).for_each(|_| exchange(&a, &b, &mut sent, 500));
            victim.kill();
            (0..4).for_each(|_| exchange(&a, &b, &mut sent, 500));
            until("it has gone", || home.snapshot().ports.len() == 2);
        }
        home.assert_serves();
        summary(&format!("killed with full rings 10, frames of others {sent}, lost 0"));
    });
}

/// `ip link del` on persistent ports that carry traffic, from both namespaces.
#[test]
fn persistent_ports_can_be_deleted_under_traffic() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let (a, b) = (open_in(&net.near, "vale0:a"), open_in(&net.near, "vale0:b"));
        ether::send(&b, BROADCAST, mac(1), 1, (0, 1));
        ether::expect(&a, 1, (0, 1));
        let ctl = |args: &str| {
            let status = net.near.command(program("vale-ctl")).args(args.split(' ')).status().expect("vale-ctl runs");
            assert!(status.success(), "vale-ctl {args}");
        };
        let stop = AtomicBool::new(false);
        let sent = std::thread::scope(|scope| {
            let end = Stop(&stop);
            let traffic = scope.spawn(|| {
                let mut sent = 0;
                while !stop.load(Relaxed) {
                    exchange(&a, &b, &mut sent, 100);
                    // Broadcasts also go into the interfaces; the ring that receives them is not read meanwhile.
                    ether::send_flagged(&b, (BROADCAST, mac(1)), 0, 7, (0, 4));
                    drain_now(&a);
                }
                sent
            });
            for turn in 0..10 {
                for name in ["vi0", "vi1"] {
                    ctl(&format!("-n {name}"));
                    ctl(&format!("-a vale0:{name}"));
                    net.near.ip(&["link", "set", name, "up"]).expect("an interface");
                }
                net.near.ip(&["link", "del", ["vi0", "vi1"][turn % 2]]).expect("an interface");
                net.near.ip(&["link", "del", ["vi1", "vi0"][turn % 2]]).expect("an interface");
                until("both ports are gone", || home.snapshot().ports.iter().filter(|p| p.kind == "vale").count() == 2);
            }
            drop(end);
            traffic.join().expect("the traffic goes on")
        });
        until("nothing is left of them", || home.snapshot().ports.len() == 2);
        net.assert_alive();
        summary(&format!("persistent ports deleted 20, frames of others {sent}, lost 0"));
    });
}

/// Discards received packets.
fn drain_now(port: &Port) {
    port.rxsync().expect("a switch");
    port.rx_rings()[0].advance(u32::MAX);
    port.rxsync().expect("a switch");
}
