// SPDX-License-Identifier: BSD-2-Clause
//! Switch ports that share a region: packets are delivered by exchange of buffers, and each buffer stays accounted for.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use conformance::ether::{self, BROADCAST, drained, mac};
use conformance::home::{Guard, summary};
use conformance::packet::Rng;
use conformance::pcap::pcap_file;
use conformance::traffic::{bytes_of, open};
use conformance::{Home, LIMIT, isolated, program, until};
use unetmap::abi::{NS_BUF_CHANGED, NS_MOREFRAG};
use unetmap::errno::{EINVAL, ENXIO};
use unetmap::{BufIdx, Interest, Port, Pos, Ring};

const SLOTS: u64 = 1024;

/// A port of vale0 in the region of another.
#[track_caller]
fn beside(name: &str, other: &Port) -> Port {
    let port = open(&format!("vale0:{name}@share={}", other.spec()));
    assert_eq!(port.mem_id(), other.mem_id());
    port
}

/// All indexes in a ring.
fn indexes(ring: &Ring) -> Vec<u32> {
    positions(ring).map(|p| ring.slot(p).buf_idx()).collect()
}

/// All positions of a ring, in order.
fn positions(ring: &Ring) -> impl Iterator<Item = Pos> {
    std::iter::successors(Some(Pos::ZERO), |p| Some(ring.next(*p))).take(ring.num_slots() as usize)
}

/// All indexes in the rings of these ports, in order.
fn all_indexes(ports: &[&Port]) -> Vec<u32> {
    let rings = ports.iter().flat_map(|port| port.tx_rings().iter().chain(port.rx_rings()));
    let mut all: Vec<u32> = rings.flat_map(indexes).collect();
    all.sort_unstable();
    all
}

/// Number of packets that a port received by exchange of buffers.
fn swapped(home: &Home, port: &str) -> u64 {
    home.snapshot().ring(port, "rx", 0).swapped
}

/// Waits until the switch has processed all that a port sent.
#[track_caller]
fn taken(port: &Port) {
    until("all that was sent is taken", || {
        port.txsync().expect("the daemon runs");
        !port.tx_rings()[0].pending()
    });
}

/// Checks that each buffer of the region is in exactly one place.
#[track_caller]
fn whole(home: &Home, mem_id: u16) {
    let books = home.snapshot();
    let region = books.regions.iter().find(|region| region.mem_id == mem_id).expect("a region");
    assert_eq!((region.buffers.unaccounted(), region.buffers.missing), (0, 0), "{:?}", region.buffers);
}

#[test]
fn packets_are_swapped_within_a_region() {
    isolated(|home| {
        let a = open("vale0:a");
        let b = beside("b", &a);
        let before = all_indexes(&[&a, &b]);
        let (sent, free) = (indexes(&a.tx_rings()[0]), indexes(&b.rx_rings()[0]));
        ether::send(&a, mac(1), mac(0), 1, (0, 100));
        let mut got = 0;
        until("all have come", || {
            b.poll(Interest::RX, Some(LIMIT)).expect("the daemon runs");
            for (slot, seq) in b.rx_rings()[0].available().zip(got..) {
                assert_eq!(ether::check(&bytes_of(&slot)), Ok((1, seq)));
                assert_eq!(slot.buf_idx(), sent[seq as usize]);
                assert_ne!(slot.flags() & NS_BUF_CHANGED, 0);
            }
            got += u64::from(b.rx_rings()[0].space());
            b.rx_rings()[0].advance(u32::MAX);
            got == 100
        });
        taken(&a);
        for (p, free) in positions(&a.tx_rings()[0]).zip(free).take(100) {
            let slot = a.tx_rings()[0].slot(p);
            assert_eq!((slot.buf_idx(), slot.flags()), (free, NS_BUF_CHANGED));
        }
        assert_eq!(swapped(home, "vale0:b"), 100);
        // Many times around both rings, in both directions, in batches of all lengths.
        let mut seqs = [100, 0];
        for n in 0..60 {
            let (way, count) = (n % 2, 1 + (n as u64 * 37) % 900);
            let (from, to) = if way == 0 { (&a, &b) } else { (&b, &a) };
            ether::send(from, mac(1 - way as u32), mac(way as u32), 1, (seqs[way], seqs[way] + count));
            ether::expect(to, 1, (seqs[way], seqs[way] + count));
            seqs[way] += count;
        }
        [&a, &b].into_iter().for_each(taken);
        assert_eq!(swapped(home, "vale0:b") + swapped(home, "vale0:a"), seqs[0] + seqs[1]);
        assert_eq!(all_indexes(&[&a, &b]), before);
        whole(home, a.mem_id());
    });
}

/// Bytes of the packets below: more than a cache line, and no multiple of one.
const LEN: usize = 150;

/// pkt-gen, which sends on `near` with these options, rewrites a buffer only if it no longer contains the packet: every
/// packet arrives unchanged, even if the receiver writes to the buffers that it returns.
#[track_caller]
fn arrives_unspoiled(receiver: &Port, near: &str, options: &[&str]) {
    let mut sender = Command::new(program("pkt-gen"));
    sender.args(["-i", near, "-f", "tx", "-b", "100", "-w", "0"]).args(options);
    let _sender = Guard::spawn(sender.stdout(Stdio::null()).stderr(Stdio::null()));
    let (mut rng, mut first, mut got) = (Rng(7), None, 0);
    until("many have come", || {
        receiver.poll(Interest::RX, Some(LIMIT)).expect("the daemon runs");
        for slot in receiver.rx_rings()[0].available() {
            let packet = first.get_or_insert_with(|| bytes_of(&slot)).as_slice();
            assert_eq!((packet.len(), bytes_of(&slot).as_slice()), (LEN, packet), "packet {got}");
            // Every third buffer is not written.
            if rng.below(3) > 0 {
                let at = rng.below(LEN as u64) as usize;
                slot.frame().write(at, &[!packet[at]]);
            }
            got += 1;
        }
        receiver.rx_rings()[0].advance(u32::MAX);
        got >= 20 * SLOTS
    });
}

#[test]
fn pkt_gen_rewrites_swapped_buffers() {
    isolated(|home| {
        let b = open("vale0:b");
        let near = format!("vale0:a@share={}", b.spec());
        arrives_unspoiled(&b, &near, &["-l", &LEN.to_string()]);
        assert_ne!(swapped(home, "vale0:b"), 0);
    });
}

/// A pipe delivers the buffers of the sender themselves, which return to it without a flag.
#[test]
fn pkt_gen_replays_into_modified_buffers() {
    isolated(|home| {
        let file = home.folder().join("two.pcap");
        fs::write(&file, pcap_file(&[vec![0x5a; LEN], vec![0x5a; LEN]])).expect("a folder to write in");
        arrives_unspoiled(&open("netmap:s}1"), "netmap:s{1", &["-n", "0", "-P", &file.to_string_lossy()]);
    });
}

/// Packets to several ports or to another region are copied, in batches with exchanged ones.
#[test]
fn packets_to_several_ports_or_regions_are_copied() {
    isolated(|home| {
        let a = open("vale0:a");
        let b = beside("b", &a);
        let c = open("vale0:c");
        assert_ne!(c.mem_id(), a.mem_id());
        let (before, apart) = (all_indexes(&[&a, &b]), all_indexes(&[&c]));
        for (n, port) in (0..).zip([&a, &b, &c]) {
            ether::send(port, BROADCAST, mac(n), 9, (0, 1));
            [&a, &b, &c].iter().filter(|other| !std::ptr::eq(**other, port)).for_each(|p| ether::expect(p, 9, (0, 1)));
        }
        assert_eq!(swapped(home, "vale0:b"), 0);
        for seq in 0..600 {
            let to = [mac(1), mac(2), BROADCAST][seq as usize % 7 % 3];
            ether::send(&a, to, mac(0), 1, (seq, seq + 1));
        }
        let of = |wanted: &[usize]| -> Vec<(u64, u64)> {
            (0..600).filter(|seq| wanted.contains(&(*seq as usize % 7 % 3))).map(|seq| (1, seq)).collect()
        };
        taken(&a);
        assert_eq!((drained(&b), drained(&c)), (of(&[0, 2]), of(&[1, 2])));
        // Some packets for b may have been in one batch with broadcasts.
        let swapped_to_b = swapped(home, "vale0:b");
        assert!(swapped_to_b <= of(&[0]).len() as u64 && swapped(home, "vale0:c") == 0, "{swapped_to_b}");
        // Without broadcasts none is copied.
        ether::send(&a, mac(1), mac(0), 2, (0, 300));
        ether::expect(&b, 2, (0, 300));
        assert_eq!(swapped(home, "vale0:b"), swapped_to_b + 300);
        taken(&a);
        assert_eq!((all_indexes(&[&a, &b]), all_indexes(&[&c])), (before, apart));
    });
}

/// Packets of several slots are exchanged slot by slot.
#[test]
fn packets_of_several_slots_are_swapped() {
    isolated(|home| {
        let a = open("vale0:a");
        let b = beside("b", &a);
        let before = all_indexes(&[&a, &b]);
        let (mut rng, ring) = (Rng(99), &a.tx_rings()[0]);
        for _ in 0..300 {
            let frame = ether::make(mac(1), mac(0), 1, rng.below(1000));
            let parts = 1 + rng.below(5) as usize;
            let size = ether::BYTES.div_ceil(parts).max(14);
            let pieces: Vec<&[u8]> = frame.chunks(size).collect();
            for (i, (slot, piece)) in ring.available().zip(&pieces).enumerate() {
                slot.frame().write(0, piece);
                slot.set_len_flags(piece.len() as u16, if i + 1 < pieces.len() { NS_MOREFRAG } else { 0 });
            }
            ring.advance(pieces.len() as u32);
            a.txsync().expect("the daemon runs");
            let rx = &b.rx_rings()[0];
            until("it has come", || {
                b.poll(Interest::RX, Some(LIMIT)).expect("the daemon runs");
                rx.space() as usize == pieces.len()
            });
            let got: Vec<u8> = rx.available().flat_map(|slot| bytes_of(&slot)).collect();
            assert_eq!(got, frame);
            for (i, slot) in rx.available().enumerate() {
                let more = if i + 1 < pieces.len() { NS_MOREFRAG } else { 0 };
                assert_eq!(slot.flags(), (pieces.len() as u16) << 8 | more | NS_BUF_CHANGED);
            }
            rx.advance(u32::MAX);
            taken(&a);
        }
        assert_eq!(swapped(home, "vale0:b"), 300);
        assert_eq!(all_indexes(&[&a, &b]), before);
    });
}

/// A receiver that does not read: dropped packets leave all buffers in place.
#[test]
fn dropped_packets_keep_their_buffers() {
    isolated(|home| {
        let a = open("vale0:a");
        let b = beside("b", &a);
        let before = all_indexes(&[&a, &b]);
        ether::send(&a, mac(1), mac(0), 1, (0, 5 * SLOTS));
        taken(&a);
        let books = home.snapshot();
        let ring = books.ring("vale0:b", "rx", 0);
        assert_eq!((ring.swapped, ring.dropped), (SLOTS - 1, 4 * SLOTS + 1));
        assert_eq!(all_indexes(&[&a, &b]), before);
        ether::expect(&b, 1, (0, SLOTS - 1));
        whole(home, a.mem_id());
    });
}

/// Monitors see exchanged packets on the sending and on the receiving side.
#[test]
fn monitors_see_swapped_packets() {
    isolated(|home| {
        let a = open("vale0:a");
        let b = beside("b", &a);
        for (spec, watched) in [("vale0:a/t", &a), ("vale0:b/r", &b)] {
            let monitor = open(spec);
            ether::send(&a, mac(1), mac(0), 1, (0, 200));
            ether::expect(&b, 1, (0, 200));
            ether::expect(&monitor, 1, (0, 200));
            assert_eq!(watched.mem_id(), a.mem_id());
        }
        assert_eq!(swapped(home, "vale0:b"), 400);
    });
}

/// From one switch to another by a program that exchanges buffers as well, all in one region.
#[test]
fn a_bridge_between_two_switches_swaps_buffers() {
    isolated(|home| {
        let a = open("vale0:a");
        let far = open(&format!("vale1:far@{}", a.mem_id()));
        let (near_end, far_end) = (format!("vale0:x@{}", a.mem_id()), format!("vale1:x@{}", a.mem_id()));
        let bridge = Command::new(program("bridge"))
            .args(["-w", "0", "-i", &near_end, "-i", &far_end])
            .stdout(Stdio::null())
            .spawn();
        let mut bridge = Guard(bridge.expect("bridge runs"));
        until("it is there", || home.snapshot().ports.len() == 4);
        let mut seq = 0;
        for _ in 0..100 {
            ether::send(&a, mac(1), mac(0), 1, (seq, seq + 500));
            ether::expect(&far, 1, (seq, seq + 500));
            ether::send(&far, mac(0), mac(1), 2, (seq, seq + 500));
            ether::expect(&a, 2, (seq, seq + 500));
            seq += 500;
        }
        let books = home.snapshot();
        let all = ["vale0:x", "vale1:x", "vale0:a", "vale1:far"].map(|port| books.ring(port, "rx", 0).swapped);
        assert_eq!(all, [seq; 4]);
        bridge.signal(rustix::process::Signal::TERM);
        bridge.wait();
        until("it has gone", || home.snapshot().ports.len() == 2);
        whole(home, a.mem_id());
        summary(&format!("{} packets over two switches and a bridge, none copied", 2 * seq));
    });
}

fn start_client(args: &[&str]) -> Guard {
    let mut command = Command::new(env!("CARGO_BIN_EXE_traffic_client"));
    Guard::spawn(command.args(args).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Sender and receiver in one region are killed at any moment, while two other ports in it lose nothing; all buffers
/// are accounted for.
#[test]
fn a_hundred_crashes_lose_no_buffer() {
    isolated(|home| {
        let a = open("vale0:a");
        let b = beside("b", &a);
        let [s, r] = ["s", "r"].map(|port| format!("vale1:{port}@{}", a.mem_id()));
        let got = home.folder().join("got");
        std::fs::create_dir(&got).expect("a folder");
        let (record, got) = (home.folder().join("record").display().to_string(), got.display().to_string());
        let mut sender = 1;
        let mut start = |sends| {
            sender += 1;
            if sends {
                start_client(&["send", &s, &sender.to_string(), &record])
            } else {
                start_client(&["recv", &r, &got])
            }
        };
        let mut victims = [start(true), start(false)];
        let (mut rng, mut seq, mut crossed) = (Rng(0x5eed), 0, 0);
        for kill in 0..100 {
            sleep(Duration::from_micros(5000 + rng.below(30_000)));
            // Mostly while both are transferring packets.
            whole(home, a.mem_id());
            let books = home.snapshot();
            let of = |name: &str| books.ports.iter().find(|port| port.name == name);
            crossed += of("vale1:r").map_or(0, |port| port.rings[1].swapped);
            let (which, both) = (rng.below(2) as usize, rng.below(4) == 0);
            victims[which].kill();
            if both {
                victims[1 - which].kill();
            }
            whole(home, a.mem_id());
            victims[which] = start(which == 0);
            if both {
                victims[1 - which] = start(which == 1);
            }
            ether::send(&a, mac(1), mac(0), 1, (seq, seq + 300));
            ether::expect(&b, 1, (seq, seq + 300));
            seq += 300;
            assert!(kill < 20 || crossed > 0, "nothing crosses");
        }
        drop(victims);
        until("they have gone", || home.snapshot().sessions.len() == 2);
        whole(home, a.mem_id());
        assert_eq!(swapped(home, "vale0:b"), seq);
        summary(&format!("100 kills, {crossed} packets of theirs and {seq} of others, no buffer lost"));
    });
}

fn scribbler(name: &str, mem_id: u16, seed: u64) -> Guard {
    let mut command = Command::new(program("scribbler"));
    command.args([name, &seed.to_string(), &mem_id.to_string()]);
    Guard::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Two clients write random words to a region that they share with a sender: other regions lose nothing, and the
/// region's buffers are accounted for.
#[test]
fn random_writes_corrupt_only_the_shared_region() {
    isolated(|home| {
        let (good, far) = (open("vale0:good"), open("vale0:far"));
        ether::send(&far, BROADCAST, mac(1), 9, (0, 1));
        ether::expect(&good, 9, (0, 1));
        let mut seq = 0;
        for seed in 0..12 {
            let victim = open("vale1:victim");
            let mem_id = victim.mem_id();
            let mut both = [("vale1:x", 0), ("vale1:y", 1)].map(|(name, n)| scribbler(name, mem_id, 2 * seed + n));
            until("they are there", || home.snapshot().sessions.len() == 5);
            let end = Instant::now() + Duration::from_millis(300);
            while Instant::now() < end {
                // Its ring may be reset or its pointers overwritten: only the three clients of the region are affected.
                let ring = &victim.tx_rings()[0];
                for slot in ring.available().take(64) {
                    slot.set_len_flags(60, 0);
                }
                ring.advance(64);
                let _ = victim.txsync();
                victim.rx_rings()[0].advance(u32::MAX);
                let _ = victim.rxsync();
                ether::send(&good, mac(1), mac(0), 1, (seq, seq + 100));
                ether::expect(&far, 1, (seq, seq + 100));
                seq += 100;
            }
            let books = home.snapshot();
            let region = books.regions.iter().find(|region| region.mem_id == mem_id).expect("a region");
            assert_eq!(region.buffers.unaccounted(), 0, "{:?}", region.buffers);
            assert!(both.iter_mut().all(|guard| guard.0.try_wait().expect("our child").is_none()));
            drop((both, victim));
            until("they have gone", || home.snapshot().sessions.len() == 2);
        }
        assert_eq!(home.snapshot().ring("vale0:far", "rx", 0).dropped, 0);
        home.assert_serves();
        summary(&format!("12 pairs of scribblers, {seq} packets of others all whole"));
    });
}

/// A buffer in two slots of its sender, or of a third port, is delivered and not lost.
#[test]
fn a_buffer_in_two_places_is_delivered_and_not_lost() {
    isolated(|home| {
        let a = open("vale0:a");
        let (b, c) = (beside("b", &a), beside("c", &a));
        ether::send(&b, BROADCAST, mac(1), 9, (0, 1));
        [&a, &c].into_iter().for_each(|port| ether::expect(port, 9, (0, 1)));
        let tx = &a.tx_rings()[0];
        let frame = ether::make(mac(1), mac(0), 1, 7);
        let (twice, third) = (indexes(tx)[0], indexes(&c.tx_rings()[0])[5]);
        let hands = tx.available().zip([twice, twice, third]).map(|(slot, idx)| {
            let old = slot.replace_buf(BufIdx(idx));
            slot.frame().write(0, &frame);
            slot.set_len(frame.len() as u16);
            old.0
        });
        let [_, lost, kept] = hands.collect::<Vec<_>>()[..] else { panic!("three slots are free") };
        tx.advance(3);
        a.txsync().expect("the daemon runs");
        for _ in 0..3 {
            ether::expect(&b, 1, (7, 8));
        }
        taken(&a);
        // The program has taken two buffers out of its slots.
        let of = |port: &Port| port.rx_rings().iter().chain(port.tx_rings()).flat_map(indexes).collect::<BTreeSet<_>>();
        let all = of(&a).into_iter().chain(of(&b)).chain(of(&c)).collect::<BTreeSet<_>>();
        assert!(!all.contains(&lost) && !all.contains(&kept) && of(&b).contains(&third) && of(&c).contains(&third));
        let books = home.snapshot();
        let buffers = books.regions.iter().find(|region| region.mem_id == a.mem_id()).expect("a region").buffers;
        assert_eq!((buffers.unaccounted(), buffers.missing), (0, 2), "{buffers:?}");
        drop((a, c));
        until("two have gone", || home.snapshot().sessions.len() == 1);
        let books = home.snapshot();
        assert_eq!(books.regions.len(), 1);
        assert_eq!((books.regions[0].buffers.unaccounted(), books.regions[0].buffers.missing), (0, 2));
        drop(b);
        until("the region ends with them", || home.snapshot().regions.is_empty());
    });
}

/// A program that keeps what it received, by putting another buffer into the slot.
#[test]
fn a_receiver_can_keep_received_buffers() {
    isolated(|home| {
        let a = open("vale0:a");
        let b =
            unetmap::OpenOptions::default().extra_bufs(64).open(&format!("vale0:b@{}", a.mem_id())).expect("a port");
        let mut hands: Vec<u32> = std::iter::from_fn(|| b.take_extra_buf()).map(|idx| idx.0).collect();
        assert_eq!(hands.len(), 64);
        let before: BTreeSet<u32> = all_indexes(&[&a, &b]).into_iter().chain(hands.iter().copied()).collect();
        for round in 0..100 {
            let seqs = (round * 64, round * 64 + 64);
            ether::send(&a, mac(1), mac(0), 1, seqs);
            let ring = &b.rx_rings()[0];
            until("all have come", || {
                b.poll(Interest::RX, Some(LIMIT)).expect("the daemon runs");
                ring.space() == 64
            });
            for ((slot, hand), seq) in ring.available().zip(&mut hands).zip(seqs.0..) {
                assert_eq!(ether::check(&bytes_of(&slot)), Ok((1, seq)));
                *hand = slot.replace_buf(BufIdx(*hand)).0;
            }
            ring.advance(64);
            b.rxsync().expect("the daemon runs");
        }
        taken(&a);
        let after: BTreeSet<u32> = all_indexes(&[&a, &b]).into_iter().chain(hands).collect();
        assert_eq!(after, before);
        assert_eq!(swapped(home, "vale0:b"), 6400);
        whole(home, a.mem_id());
    });
}

#[test]
fn the_share_option_chooses_the_region() {
    isolated(|home| {
        let a = open("vale0:a");
        // Across switches, and with pipes in both directions.
        let other = open("vale1:b@share=vale0:a");
        let pipe = open("netmap:p{1@share=vale1:b");
        let by_pipe = open("vale1:c@share=netmap:p{1");
        let both = open(&format!("vale2:b@{}@share=vale0:a", a.mem_id()));
        assert!([&other, &pipe, &by_pipe, &both].iter().all(|port| port.same_region(&a)));
        let refused = |spec: &str, errno: i32, what: &str| {
            let Err(e) = Port::open(spec) else { panic!("{spec} was opened") };
            assert_eq!(e.errno(), errno, "{spec}: {e}");
            assert!(e.to_string().contains(what), "{spec}: {e}");
        };
        let apart = open("vale0:apart");
        refused(&format!("vale3:a@{}@share=vale0:a", apart.mem_id()), EINVAL, "vale0:a is in region");
        refused("vale3:a@share=vale3:none", EINVAL, "vale3:none, whose region is to be shared, must be open");
        refused("vale3:a@share=netmap:nosuch0", ENXIO, "nosuch0");
        // A port that is already open stays in its region.
        refused("vale0:apart@share=vale0:a", EINVAL, "the port lies in region");
        assert_eq!(home.snapshot().sessions.len(), 6);
    });
}
