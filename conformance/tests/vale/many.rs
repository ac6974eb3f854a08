// SPDX-License-Identifier: BSD-2-Clause
//! Many ports of one switch: senders that say a little, and full ports beside a stream of flooded packets.

use conformance::ether::{self, BROADCAST, mac, make};
use conformance::home::{raise_fd_limit, summary};
use conformance::net::{BUFFER, take, transmit};
use conformance::traffic::open;
use conformance::{isolated, until};
use unetmap::Port;

/// Ports of a switch, at most.
const PORTS: usize = 254;
const BURSTS: u64 = 40;
/// Packets that the switch takes at once and treats as a stream. Two batches fit a ring: a reader returns slots late.
const BATCH: u64 = 500;

/// Receives until `due` packets have arrived at a port since the start.
#[track_caller]
fn receive(port: &Port, arrived: &mut u64, due: u64) {
    until("all packets arrive", || {
        port.rxsync().expect("a switch");
        *arrived += take(port, 0).len() as u64;
        *arrived >= due
    });
    assert_eq!(*arrived, due, "{}", port.spec());
    // The switch may use the slots again: without it the next batch may come before there is room for it.
    port.rxsync().expect("a switch");
}

#[test]
fn all_packets_of_254_senders_arrive_and_a_burst_wakes_the_switch_a_few_times() {
    isolated(|home| {
        raise_fd_limit();
        let ports: Vec<Port> = (0..PORTS).map(|n| open(&format!("vale0:p{n}"))).collect();
        for (n, port) in ports.iter().enumerate() {
            transmit(port, 0, &[make(BROADCAST, mac(n as u32), n as u64, 0).to_vec()], BUFFER);
        }
        let mut arrived = [0; PORTS];
        ports.iter().zip(&mut arrived).for_each(|(port, arrived)| receive(port, arrived, PORTS as u64 - 1));
        // Of each burst: how many there are depends on the other programs of the machine.
        let mut fewest = u64::MAX;
        for burst in 0..BURSTS {
            let before = home.daemon_switches();
            for (n, port) in ports.iter().enumerate() {
                let to = mac(((n + 1) % PORTS) as u32);
                transmit(port, 0, &[make(to, mac(n as u32), n as u64, burst).to_vec()], BUFFER);
            }
            let due = PORTS as u64 + burst;
            ports.iter().zip(&mut arrived).for_each(|(port, arrived)| receive(port, arrived, due));
            fewest = fewest.min(home.daemon_switches() - before);
        }
        // A wake-up for each packet would be one or more.
        assert!(fewest < PORTS as u64 / 2, "{fewest} context switches of the daemon for {PORTS} packets, or more");
        let lost: u64 = home.snapshot().ports.iter().flat_map(|port| port.lost.values()).sum();
        assert_eq!(lost, 0);
        let packets = BURSTS * PORTS as u64;
        summary(&format!(
            "{packets} packets of {PORTS} senders arrived, {fewest} context switches of the daemon for a burst"
        ));
    });
}

#[test]
fn full_ports_beside_a_flooded_stream_count_each_packet_and_receive_again_once_they_read() {
    isolated(|home| {
        let (from, reader) = (open("vale0:from"), open("vale0:reader"));
        let idle: Vec<Port> = (0..8).map(|n| open(&format!("vale0:idle{n}"))).collect();
        let (mut sent, mut arrived) = (0, 0);
        let mut batches = |n: u64| {
            for _ in 0..n {
                let packets: Vec<_> = (0..BATCH).map(|seq| make(mac(99), mac(0), 0, sent + seq).to_vec()).collect();
                transmit(&from, 0, &packets, BUFFER);
                sent += BATCH;
                receive(&reader, &mut arrived, sent);
            }
            sent
        };
        let dropped = |n: usize| home.snapshot().ring(&format!("vale0:idle{n}"), "rx", 0).dropped;
        let all = batches(100);
        let room = u64::from(idle[0].rx_rings()[0].num_slots()) - 1;
        for n in 0..idle.len() {
            until("the drops are counted", || dropped(n) == all - room);
        }
        // One port reads: it gets packets again, and the others still lose each.
        assert_eq!(ether::drain(&idle[0]).len() as u64, room);
        batches(1);
        assert_eq!(ether::drain(&idle[0]).len() as u64, BATCH, "the switch has waited: the next batch reaches it");
        let all = batches(100);
        let got = ether::drain(&idle[0]).len() as u64;
        assert_eq!(got, room, "it is full again");
        until("the drops are counted", || dropped(0) == all - 2 * room - BATCH && dropped(1) == all - room);
        summary(&format!("{all} packets flooded to {} full ports, each counted", idle.len()));
    });
}

#[test]
fn full_ports_that_send_themselves_miss_the_packets_of_others_only() {
    isolated(|home| {
        let reader = open("vale0:reader");
        let senders: Vec<Port> = (0..3).map(|n| open(&format!("vale0:p{n}"))).collect();
        let (mut sent, mut arrived) = (0, 0);
        // In turn, so that each is full while the others send.
        for round in 0..150 {
            let n = round % senders.len();
            let packets: Vec<_> = (0..BATCH).map(|seq| make(mac(99), mac(n as u32), 0, sent + seq).to_vec()).collect();
            transmit(&senders[n], 0, &packets, BUFFER);
            sent += BATCH;
            receive(&reader, &mut arrived, sent);
        }
        for (n, port) in senders.iter().enumerate() {
            let room = u64::from(port.rx_rings()[0].num_slots()) - 1;
            let missed = sent / 3 * 2 - room;
            let dropped = || home.snapshot().ring(&format!("vale0:p{n}"), "rx", 0).dropped;
            until("the drops are counted", || dropped() == missed);
            assert_eq!(ether::drain(port).len() as u64, room);
        }
        summary(&format!("{sent} packets flooded by {} full ports in turn, each drop counted", senders.len()));
    });
}
