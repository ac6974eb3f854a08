// SPDX-License-Identifier: BSD-2-Clause
//! Settings of a switch: VLANs, rate limits, filters, MAC ageing; and the output of `unetmap vale`.

use std::time::{Duration, Instant};

use conformance::ether::{self, BROADCAST, drain, drained, mac, make};
use conformance::home::summary;
use conformance::net::{BUFFER, collect, transmit};
use conformance::request::control;
use conformance::stop::Stop;
use conformance::switch::{refused, set, shown, vale};
use conformance::traffic::{open, receive};
use conformance::{Home, isolated, until};
use rustix::process::Signal;
use serde_json::Value;
use unetmap::Port;
use unetmap::abi::{NETMAP_REQ_PORT_HDR_SET, NS_MOREFRAG, NmreqPortHdr};

/// Number of packets sent by a port or to it that were dropped for this reason.
fn count(port: &str, of: &str, why: &str) -> u64 {
    let all = shown("show vale0");
    let found = all["port"].as_array().unwrap().iter().find(|p| p["name"] == port).cloned();
    found.unwrap_or_else(|| panic!("no {port} in {all}"))[of][why].as_u64().unwrap()
}

/// A frame with a tag.
fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &tag.to_be_bytes(), &frame[12..]].concat()
}

fn frame(to: u32, from: u32, seq: u64) -> Vec<u8> {
    make(mac(to), mac(from), u64::from(from), seq).to_vec()
}

fn to_all(from: u32, seq: u64) -> Vec<u8> {
    make(BROADCAST, mac(from), u64::from(from), seq).to_vec()
}

fn send(port: &Port, frames: &[Vec<u8>]) {
    transmit(port, 0, frames, BUFFER);
}

#[test]
fn ports_receive_only_their_vlans() {
    isolated(|_| {
        // Before and after the switch is created: settings belong to the name.
        set("port vale0:a access 10");
        set("port vale0:b access 20");
        let [a, b, c] = ["a", "b", "c"].map(|name| open(&format!("vale0:{name}")));
        let (trunk, plain) = (open("vale0:trunk"), open("vale0:plain"));
        set("port vale0:c access 10");
        assert_eq!(set("port vale0:trunk trunk 10,30-40"), "vale0:trunk: trunk 10,30-40\n");
        send(&a, &[to_all(1, 0)]);
        // An access port of the VLAN, a trunk port with it, and a port without a VLAN setting.
        assert_eq!(collect(&c, 1), [to_all(1, 0)]);
        assert_eq!(collect(&trunk, 1), [tagged(&to_all(1, 0), 10)]);
        assert_eq!(collect(&plain, 1), [tagged(&to_all(1, 0), 10)]);
        assert!(drain(&b).is_empty());
        // The trunk keeps the priority, and drops untagged packets and those of other VLANs.
        let out = [tagged(&to_all(2, 1), 0x600a), tagged(&to_all(2, 2), 20), to_all(2, 3), tagged(&to_all(2, 4), 35)];
        send(&trunk, &out);
        assert_eq!(collect(&a, 1), [to_all(2, 1)]);
        assert_eq!(collect(&plain, 2), [out[0].clone(), out[3].clone()]);
        assert_eq!(collect(&c, 1), [to_all(2, 1)]);
        assert!(drain(&b).is_empty());
        assert_eq!(count("vale0:trunk", "lost", "vlan"), 2);
        // A tag on an access port, and a priority tag (VLAN id 0).
        send(&a, &[tagged(&to_all(1, 5), 20), tagged(&to_all(1, 6), 10), tagged(&to_all(1, 7), 0xe000)]);
        assert_eq!(collect(&trunk, 1), [tagged(&to_all(1, 7), 0xe00a)]);
        assert_eq!(
            (drain(&c), drain(&plain), drain(&b).len()),
            (vec![to_all(1, 7)], vec![tagged(&to_all(1, 7), 0xe00a)], 0)
        );
        assert_eq!(count("vale0:a", "lost", "vlan"), 2);
        // A packet without a VLAN does not enter one.
        send(&plain, &[to_all(3, 8), tagged(&to_all(3, 9), 20)]);
        assert_eq!(collect(&b, 1), [to_all(3, 9)]);
        assert!(drain(&a).is_empty() && drain(&c).is_empty() && drain(&trunk).is_empty());
        // VLAN 20 has no other member than the unrestricted port.
        drop(plain);
        until("it has gone", || shown("show vale0")["ports"] == 4);
        send(&b, &[to_all(4, 10)]);
        until("it is counted", || count("vale0:b", "lost", "nobody") == 1);
        // Off: as without the setting.
        for port in ["a", "b", "c", "trunk"] {
            assert_eq!(set(&format!("port vale0:{port} off")), format!("vale0:{port}: -\n"));
        }
        send(&a, &[to_all(1, 11), tagged(&to_all(1, 12), 99)]);
        for other in [&b, &c, &trunk] {
            assert_eq!(collect(other, 2), [to_all(1, 11), tagged(&to_all(1, 12), 99)]);
        }
    });
}

#[test]
fn addresses_are_learned_per_vlan() {
    isolated(|_| {
        let [a, b, thief] = ["a", "b", "thief"].map(|name| open(&format!("vale0:{name}")));
        for (port, vlan) in [("a", 10), ("b", 10), ("thief", 20)] {
            set(&format!("port vale0:{port} access {vlan}"));
        }
        send(&a, &[to_all(1, 0)]);
        assert_eq!(collect(&b, 1), [to_all(1, 0)]);
        // Sends with the address of host 1, and to ports by number.
        send(&thief, &[to_all(1, 1), frame(2, 1, 2)]);
        for index in 1..3u16 {
            let seq = u64::from(index) + 2;
            ether::send_flagged(&thief, (mac(2), mac(1)), index << 8, 1, (seq, seq + 1));
        }
        send(&b, &[frame(1, 2, 9)]);
        assert_eq!(collect(&a, 1), [frame(1, 2, 9)]);
        assert!(drain(&a).is_empty() && drain(&b).is_empty() && drain(&thief).is_empty());
        let table = shown("show vale0")["table"].clone();
        let known: Vec<(u64, &str)> = table
            .as_array()
            .unwrap()
            .iter()
            .map(|known| (known["vlan"].as_u64().unwrap(), known["port"].as_str().unwrap()))
            .collect();
        assert_eq!(known, [(10, "a"), (20, "thief"), (10, "b")], "{table}");
    });
}

#[test]
fn filters_apply_to_sent_and_received_packets() {
    isolated(|_| {
        let [a, b, c] = ["a", "b", "c"].map(|name| open(&format!("vale0:{name}")));
        // A source address of no other host.
        set("port vale0:a filter in ether src 02:00:00:00:00:01");
        set("port vale0:c filter out ether proto 0x88b5 and ether[14] != 9");
        let numbers = |from: u32, n: u64| (0..n).map(|seq| (u64::from(from), seq)).collect::<Vec<_>>();
        for seq in 0..600 {
            send(&a, &[to_all(1, seq), to_all(2, seq)]);
            if seq % 100 == 99 {
                assert_eq!(drained(&b), (seq - 99..=seq).map(|seq| (1, seq)).collect::<Vec<_>>());
                drain(&c);
            }
        }
        assert_eq!(count("vale0:a", "lost", "filter"), 600);
        // The switch did not learn from refused packets.
        assert_eq!(shown("show vale0")["addresses"], 1);
        let strange = [&to_all(3, 0)[..12], &[8, 0], &[0; 46][..]].concat();
        send(&b, &[strange.clone(), to_all(3, 0)]);
        assert_eq!(collect(&a, 2), [strange, to_all(3, 0)]);
        assert_eq!(drained(&c), numbers(3, 1));
        assert_eq!(count("vale0:c", "dropped", "filter"), 1);
        // A packet of several slots is filtered as a whole.
        set("port vale0:b filter in len > 100");
        let long = [to_all(4, 0), vec![7; 2000]].concat();
        let ring = &b.tx_rings()[0];
        for (i, piece) in long.chunks(500).enumerate() {
            let slot = ring.available().nth(i).expect("room");
            slot.frame().write(0, piece);
            slot.set_len_flags(piece.len() as u16, if (i + 1) * 500 < long.len() { NS_MOREFRAG } else { 0 });
        }
        ring.advance(long.len().div_ceil(500) as u32);
        b.txsync().expect("a switch");
        send(&b, &[to_all(4, 1)]);
        let got = receive(&a, 1).expect("a switch");
        assert_eq!(got.concat()[..], long[..got.concat().len()], "as far as the first slot goes");
        until("the short one is counted", || count("vale0:b", "lost", "filter") == 1);
        // An invalid expression, or one above the limit, changes nothing.
        assert!(refused("port vale0:b filter in udp andd").contains("andd"));
        let huge: Vec<String> = (0..250).map(|n| format!("ether[{n}]=1")).collect();
        let huge = huge.join(" or ");
        let mut tried = 0;
        let why = loop {
            let (status, _, err) = vale(&["port", &format!("vale0:x{tried}"), "filter", "in", &huge]);
            if status != 0 {
                break err;
            }
            tried += 1;
            assert!(tried < 100, "there is no end");
        };
        assert!(tried > 0 && why.contains("instructions"), "{tried}: {why}");
        for n in 0..tried {
            set(&format!("port vale0:x{n} filter in off"));
        }
    });
}

#[test]
fn rate_and_storm_limits_are_enforced() {
    isolated(|_| {
        let [a, b] = ["a", "b"].map(|name| open(&format!("vale0:{name}")));
        ether::send(&b, BROADCAST, mac(1), 1, (0, 1));
        ether::expect(&a, 1, (0, 1));
        set("port vale0:a rate in 1000pps 1Gbit");
        let (start, mut sent, mut got) = (Instant::now(), 0, 0);
        while start.elapsed() < Duration::from_secs(2) {
            ether::send(&a, mac(1), mac(0), 0, (sent, sent + 50));
            sent += 50;
            b.rxsync().expect("a switch");
            got += u64::from(b.rx_rings()[0].space());
            b.rx_rings()[0].advance(u32::MAX);
            std::thread::sleep(Duration::from_millis(5));
        }
        got += drain(&b).len() as u64;
        let allowed = (start.elapsed().as_secs_f64() * 1000.0) as u64 + 110;
        // On any machine: fewer packets than sent, not more than the limit, and all others are counted.
        assert!(got >= 100.min(sent) && got <= allowed, "{got} of {sent}, {allowed} allowed");
        assert_eq!(got + count("vale0:a", "lost", "rate"), sent);
        set("port vale0:a rate in off");
        // Broadcasts: ten per second; unicast: unlimited.
        set("port vale0:a storm 10");
        let (start, count_before) = (Instant::now(), 1000u64);
        for seq in 0..count_before {
            send(&a, &[to_all(0, seq)]);
        }
        let arrived = drain(&b).len() as u64;
        let allowed = start.elapsed().as_secs() * 10 + 12;
        assert!((1..=allowed).contains(&arrived), "{arrived} of {allowed}");
        assert_eq!(arrived + count("vale0:a", "lost", "storm"), count_before);
        ether::send(&a, mac(1), mac(0), 0, (0, 200));
        ether::expect(&b, 0, (0, 200));
        set("port vale0:a off");
        // A receive limit applies to that port only.
        let c = open("vale0:c");
        set("port vale0:c rate out 1kbit");
        for seq in 0..100 {
            send(&a, &[to_all(0, seq)]);
        }
        assert_eq!(drained(&b).len(), 100);
        let arrived = drain(&c).len() as u64;
        assert!((1..100).contains(&arrived), "{arrived}");
        assert_eq!(arrived + count("vale0:c", "dropped", "rate"), 100);
    });
}

#[test]
fn addresses_age_out_after_the_set_time() {
    isolated(|_| {
        let [a, b, c] = ["a", "b", "c"].map(|name| open(&format!("vale0:{name}")));
        send(&a, &[to_all(0, 0)]);
        send(&b, &[to_all(1, 0)]);
        assert_eq!((drain(&c).len(), drain(&a).len(), drain(&b).len()), (2, 1, 1));
        assert!(shown("show vale0")["table"][0]["age"].is_null());
        assert!(set("set vale0 age 2").contains("aging 2 s"));
        // Host 0 sends all the time, host 1 does not.
        let (mut seq, start) = (1, Instant::now());
        until("the silent address is forgotten", || {
            send(&a, &[frame(1, 0, seq)]);
            seq += 1;
            b.rxsync().expect("a switch");
            b.rx_rings()[0].advance(u32::MAX);
            shown("show vale0")["addresses"] == 1
        });
        assert!(start.elapsed() >= Duration::from_millis(1800), "{:?}", start.elapsed());
        assert_eq!(shown("show vale0")["table"][0]["port"], "a");
        drain(&c);
        // So packets to it are flooded.
        send(&a, &[frame(1, 0, 9999)]);
        assert_eq!(collect(&c, 1), [frame(1, 0, 9999)]);
        assert!(set("set vale0 age off").contains("no aging"));
        send(&b, &[frame(0, 1, 0)]);
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(shown("show vale0")["addresses"], 2);
    });
}

/// Settings are stored by name: they survive the port, a kill of its program, and the whole switch.
#[test]
fn settings_survive_closed_ports() {
    isolated(|home: &Home| {
        let a = open("vale0:a");
        set("port vale0:a access 7");
        set("port vale0:b access 8");
        drop(a);
        until("no port is left", || home.snapshot().ports.is_empty());
        let all = shown("show vale0");
        assert_eq!((&all["ports"], &all["port"][0]["rules"]["access"]), (&0.into(), &7.into()));
        let [a, b] = ["a", "b"].map(|name| open(&format!("vale0:{name}")));
        send(&a, &[to_all(0, 0)]);
        assert!(drain(&b).is_empty());
        // They do not apply to another switch with the same port names.
        let [x, y] = ["a", "b"].map(|name| open(&format!("vale1:{name}")));
        send(&x, &[to_all(0, 0)]);
        assert_eq!(collect(&y, 1), [to_all(0, 0)]);
        drop((a, b, x, y));
        set("port vale0:a off");
        set("port vale0:b off");
        assert!(refused("show vale0").contains("no switch vale0"));
        assert_eq!(shown(""), Value::Array(vec![]));
    });
}

#[test]
fn invalid_switches_and_rules_are_refused() {
    isolated(|_| {
        assert_eq!(set("show vale0"), "No daemon is running; there are no switches.\n");
        let _a = open("vale0:a");
        for (args, part) in [
            ("show vale1", "no switch vale1"),
            ("show vale0:a", "without a port"),
            ("show eth0", "a switch is named"),
            ("port vale0", "valeS:P"),
            ("port vale0:nobody", "no such port"),
            ("port vale0:a{1 access 3", "valeS:P"),
            ("port vale0:a access 0", "1 to 4094"),
            ("port vale0:a trunk 9-2", "10,20-30"),
            ("port vale0:a rate in fast", "10kpps"),
            ("port vale0:a rate sideways 1pps", "in, out"),
            ("set vale0 age 0", "off"),
        ] {
            let why = refused(args);
            assert!(why.contains(part), "{args}: {why}");
        }
        assert_eq!(set("port vale0:a"), "vale0:a: -\n");
        let list = set("");
        assert!(list.contains("vale0") && list.contains("off"), "{list}");
        let whole = set("show vale0 -i 0.05");
        assert!(whole.starts_with("vale0: user 0, 1 ports, 0 of 4096 addresses") && !whole.contains('\x1b'), "{whole}");
        // Bounds: names cost memory.
        let mut last = String::new();
        for n in 0..600 {
            let (status, _, err) = vale(&["port", &format!("vale{n}:p"), "storm", "5"]);
            if status != 0 {
                last = err;
                break;
            }
        }
        assert!(last.contains("already"), "{last}");
        // Existing settings can still be changed and removed.
        assert_eq!(set("port vale0:p storm 6"), "vale0:p: storm 6\n");
        assert!(set("set vale0 age 9").contains("aging 9 s"));
        set("port vale0:p off");
    });
}

/// A program that rewrites sent packets as fast as it can gets none past a filter or into another VLAN.
#[test]
fn the_validated_bytes_are_the_delivered_bytes() {
    isolated(|home| {
        let (hostile, victim, other) = (open("vale0:hostile"), open("vale0:victim"), open("vale0:other"));
        set("port vale0:hostile filter in ether[12] = 0x88");
        set("port vale0:victim access 5");
        set("port vale0:other trunk 5,6");
        set("port vale0:hostile access 6");
        let stop = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        let mut arrived = 0u64;
        let ring = &hostile.tx_rings()[0];
        let all: Vec<_> =
            std::iter::successors(Some(ring.head()), |p| Some(ring.next(*p))).take(ring.num_slots() as usize).collect();
        // Another thread writes to the same buffers: it changes EtherTypes into tags and back.
        std::thread::scope(|scope| {
            let end = Stop(&stop);
            let scribbler = scope.spawn(|| {
                let mut n = 0u64;
                while !stop.load(relaxed) {
                    for slot in all.iter().map(|p| ring.slot(*p)) {
                        slot.frame().write(12, [[0x88, 0xb5, 0, 5], [0x81, 0, 0, 5]][n as usize % 2].as_slice());
                        n += 1;
                    }
                }
                n
            });
            for seq in 0..20_000 {
                send(&hostile, &[to_all(6, seq)]);
                for bytes in conformance::net::take(&other, 0) {
                    // It has exactly one tag, of the VLAN of its port.
                    assert_eq!(bytes[12..16], [0x81, 0, 0, 6]);
                    assert_eq!(bytes[16], 0x88, "the filter let nothing else pass");
                    arrived += 1;
                }
                if seq % 64 == 0 {
                    other.rxsync().expect("a switch");
                }
            }
            drop(end);
            assert!(scribbler.join().expect("it ends") > 0);
        });
        assert!(drain(&victim).is_empty());
        assert!(arrived > 0);
        summary(&format!("frames rewritten while they were judged: {arrived} arrived, none wrong"));
        home.assert_serves();
    });
}

/// Sets the length of the virtio-net header of a port.
fn set_header(port: &str, bytes: u32) {
    let port_header = NmreqPortHdr { nr_hdr_len: bytes, ..Default::default() };
    control(NETMAP_REQ_PORT_HDR_SET, port, port_header).expect("a port");
}

/// A virtio-net header can let the switch write a checksum anywhere into a packet: that happens before the filter runs.
#[test]
fn a_deferred_checksum_cannot_bypass_a_filter() {
    isolated(|home| {
        let [a, b, c] = ["a", "b", "c"].map(|name| open(&format!("vale0:{name}")));
        set_header("vale0:a", 12);
        set_header("vale0:c", 12);
        set("port vale0:a filter in ether src 02:00:00:00:00:01");
        let deferred = |start: u8, offset: u8, frame: Vec<u8>| {
            [&[1, 0, 0, 0, 0, 0, start, 0, offset, 0, 0, 0][..], &frame].concat()
        };
        // Onto the source address; the filter refuses its value before and after.
        send(&a, &[deferred(0, 6, to_all(1, 1)), deferred(0, 6, to_all(2, 2)), deferred(0, 10, to_all(1, 3))]);
        // A valid checksum request is executed for ports without headers and for ports with them.
        send(&a, &[deferred(14, 20, to_all(1, 4))]);
        let got = collect(&b, 1).remove(0);
        let mut finished = to_all(1, 4);
        finished[34..36].copy_from_slice(&got[34..36]);
        assert_eq!(got, finished);
        assert_ne!(got, to_all(1, 4));
        assert_eq!(collect(&c, 1), [[&[0; 12], &got[..]].concat()]);
        // A checksum after the end of the packet, and a packet shorter than the header.
        send(&a, &[deferred(70, 20, to_all(1, 5)), vec![1; 9]]);
        until("all are counted", || ["filter", "bad", "short"].map(|why| count("vale0:a", "lost", why)) == [3, 1, 1]);
        assert!(drain(&b).is_empty() && drain(&c).is_empty());
        home.assert_serves();
    });
}

/// A program that changes the length of its headers while its packets are validated.
#[test]
fn a_changing_vnet_header_cannot_bypass_a_filter() {
    isolated(|home| {
        let [a, b] = ["a", "b"].map(|name| open(&format!("vale0:{name}")));
        set("port vale0:a filter in ether src 02:00:00:00:00:01");
        // After 12 bytes there is another valid frame, from another source address.
        let good = make(mac(2), mac(1), 1, 1);
        let evil = make(BROADCAST, mac(66), 66, 6);
        let packet = [&good[..14], &evil[2..]].concat();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        let (mut whole, mut cut) = (0u64, 0u64);
        std::thread::scope(|scope| {
            let end = Stop(&stop);
            let changer = scope.spawn(|| {
                let mut changes = 0u64;
                while !stop.load(relaxed) {
                    set_header("vale0:a", [0, 12][changes as usize % 2]);
                    changes += 1;
                }
                changes
            });
            let (packets, limit) = (vec![packet.clone(); 500], Instant::now() + Duration::from_secs(5));
            while Instant::now() < limit {
                send(&a, &packets);
                for got in drain(&b) {
                    // As it was sent, or without the header: then from a permitted source address.
                    if got == packet { whole += 1 } else { cut += 1 }
                }
            }
            drop(end);
            let changes = changer.join().expect("it ends");
            summary(&format!(
                "headers changed {changes} times under traffic: {whole} arrived as they were judged, {cut} not"
            ));
        });
        assert!(whole > 0 && count("vale0:a", "lost", "filter") > 0, "it did change under way");
        assert_eq!(cut, 0, "packets past the filter");
        home.assert_serves();
    });
}

/// Settings outlast a daemon that was killed, and end by `unetmap stop --all`.
#[test]
fn a_daemon_has_no_settings_after_stop_all() {
    isolated(|home| {
        set("port vale0:a access 7");
        rustix::process::kill_process(home.daemon(), Signal::KILL).expect("it runs");
        until("it is gone", || vale(&["show", "vale0"]).1.contains("No daemon"));
        home.stop_all();
        let [a, b] = ["a", "b"].map(|name| open(&format!("vale0:{name}")));
        send(&a, &[to_all(0, 0)]);
        assert_eq!(collect(&b, 1), [to_all(0, 0)]);
    });
}
