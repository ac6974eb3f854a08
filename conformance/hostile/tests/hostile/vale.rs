// SPDX-License-Identifier: BSD-2-Clause
//! Ports of a switch whose programs write random values to shared memory, or are killed at any moment: other ports lose
//! no packet.

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use conformance::ether::{self, BROADCAST, mac};
use conformance::home::{Guard, summary};
use conformance::net::start_faulty_daemon;
use conformance::packet::Rng;
use conformance::request::control;
use conformance::traffic::open;
use conformance::{Home, LIMIT, isolated, program, switch, until};
use conformance_hostile::raw::{ControlConnection, RawPort};
use unetmap::abi::*;
use unetmap::{BufIdx, Interest, Port};
use unetmap_core::control::request::NetmapRequest;
use zerocopy::IntoBytes;

const SLOTS: u32 = 1024;
/// Slot flags that address the port that was opened after a pair, by its number.
const X: u16 = 2 << 8;

/// Two ports of a switch, and how many frames went from the one to the other.
struct Pair {
    from: Port,
    to: Port,
    sender: u64,
    sent: u64,
}

impl Pair {
    fn open(switch: &str, n: u64) -> Pair {
        let port = |side: &str| open(&format!("{switch}:good{n}{side}"));
        let pair = Pair { from: port("a"), to: port("b"), sender: 77 + n, sent: 0 };
        // The switch learns the address of `to` by this broadcast, and that of `from` by the first exchange.
        ether::send(&pair.to, BROADCAST, mac(2 * n as u32 + 1), 1, (0, 1));
        until("the broadcast arrives", || {
            pair.from.rxsync().expect("the daemon runs");
            !pair.from.rx_rings()[0].is_empty()
        });
        pair
    }

    /// Sends frames and checks that all come, whole and in order; packets of other senders are ignored.
    #[track_caller]
    fn exchange(&mut self, frames: u64) {
        let host = |side: u64| mac((2 * (self.sender - 77) + side) as u32);
        ether::send(&self.from, host(1), host(0), self.sender, (self.sent, self.sent + frames));
        let (ring, mut next, end) = (&self.to.rx_rings()[0], self.sent, Instant::now() + LIMIT);
        while next < self.sent + frames {
            self.to.poll(Interest::RX, Some(Duration::from_millis(100))).expect("the daemon runs");
            for slot in ring.available() {
                match ether::check(&conformance::traffic::bytes_of(&slot)) {
                    Ok((sender, seq)) if sender == self.sender => {
                        assert_eq!(seq, next, "of sender {sender}");
                        next += 1;
                    }
                    _ => {}
                }
            }
            ring.advance(u32::MAX);
            assert!(Instant::now() < end, "frame {next} of {} does not arrive", self.sender);
        }
        self.to.rxsync().expect("the daemon runs");
        self.sent += frames;
    }
}

fn scribbler(name: &str, seed: u64) -> Guard {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scribbler"));
    Guard::spawn(command.args([name, &seed.to_string()]).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Drops at the ports of good pairs.
fn dropped(home: &Home) -> u64 {
    let books = home.snapshot();
    let good = books.ports.iter().filter(|port| port.name.contains("good") && port.name.ends_with('b'));
    good.flat_map(|port| &port.rings).filter(|ring| ring.dir == "rx").map(|ring| ring.dropped).sum()
}

/// A port's program writes to everything it maps, while four pairs exchange packets on another switch served by the
/// same threads: the pairs lose nothing.
#[test]
fn random_writes_lose_no_frame_of_another_switch() {
    isolated(|home| a_scribbler(home, 1));
}

#[test]
fn random_writes_lose_no_frame_of_another_switch_on_three_threads() {
    isolated(|home| a_scribbler(home, 3));
}

fn a_scribbler(home: &Home, threads: usize) {
    ether::threads(threads, "any");
    let mut pairs: Vec<Pair> = (0..4).map(|n| Pair::open("vale0", n)).collect();
    let end = Instant::now() + Duration::from_secs(6);
    let mut rounds = 0;
    while Instant::now() < end {
        let mut scribblers = [scribbler("vale1:x", 2 * rounds), scribbler("vale1:y", 2 * rounds + 1)];
        for _ in 0..50 {
            pairs.iter_mut().for_each(|pair| pair.exchange(300));
        }
        assert!(scribblers.iter_mut().all(|guard| guard.0.try_wait().expect("our child").is_none()));
        rounds += 1;
    }
    assert_eq!(dropped(home), 0);
    let sent: u64 = pairs.iter().map(|pair| pair.sent).sum();
    drop(pairs);
    until("the scribblers' ports are gone as well", || home.snapshot().ports.is_empty());
    home.assert_serves();
    summary(&format!("scribblers {}, frames of others {sent}, lost 0", 2 * rounds));
}

/// The same on one switch: packets of a scribbler may reach the other ports, whose own packets arrive unchanged and in
/// order.
#[test]
fn random_writes_corrupt_no_frame_on_the_same_switch() {
    isolated(|home| {
        let mut pairs: Vec<Pair> = (0..2).map(|n| Pair::open("vale0", n)).collect();
        let mut sent = 0;
        for seed in 0..8 {
            let mut guard = scribbler("vale0:x", 100 + seed);
            for _ in 0..20 {
                pairs.iter_mut().for_each(|pair| pair.exchange(20));
                sent += 40;
            }
            assert!(guard.0.try_wait().expect("our child").is_none());
        }
        home.assert_serves();
        summary(&format!("frames {sent} beside scribblers, all whole and in order"));
    });
}

/// Two programs that send as much as they can, and change slots, packets and their virtio-net headers while the switch
/// reads them; meanwhile the header length changes, rules are set and removed, and monitors are open. Pairs on another
/// switch of the same threads lose nothing.
#[test]
fn slots_and_packets_can_change_while_the_switch_reads_them() {
    isolated(|home| {
        let mut pairs: Vec<Pair> = (0..2).map(|n| Pair::open("vale9", n)).collect();
        let (victim, _lazy) = (open("vale0:victim"), open("vale0:lazy"));
        let names = ["vale0:x", "vale0:y"];
        let mut rng = Rng(0x5eed_1234);
        for (shares, offsets) in [(false, 0), (true, 0), (false, 512), (true, 512)] {
            // The buffers of its region that they lose are freed when the region is removed.
            let near = open("vale0:near");
            let region = if shares { near.mem_id() } else { 0 };
            let mut racers = names.map(|name| racer(name, rng.next_u64(), region, offsets));
            until("they are there", || home.snapshot().ports.len() == 9);
            let (mut monitors, mut arrived) = (Vec::new(), 0);
            let end = Instant::now() + Duration::from_millis(2500);
            while Instant::now() < end {
                let name = [names[0], names[1], "vale0:victim"][rng.below(3) as usize];
                match rng.below(6) {
                    0 | 1 => {
                        let nr_hdr_len = [0, 10, 12][rng.below(3) as usize];
                        let _ =
                            control(NETMAP_REQ_PORT_HDR_SET, name, NmreqPortHdr { nr_hdr_len, ..Default::default() });
                    }
                    2 => {
                        let rule = ["filter in len > 100", "filter out ip", "storm 1000", "trunk 1-9", "off", "off"];
                        switch::set(&format!("port {name} {}", rule[rng.below(6) as usize]));
                    }
                    3 => monitors.extend(Port::open(&format!("{name}/rt")).ok()),
                    4 => monitors.clear(),
                    _ => {}
                }
                pairs.iter_mut().for_each(|pair| pair.exchange(20));
                for port in [&near, &victim].into_iter().chain(&monitors) {
                    // An error is permitted: a client of the same region may have overwritten this port's rings.
                    let _ = port.rxsync();
                    for ring in port.rx_rings() {
                        arrived +=
                            ring.available().filter(|slot| !conformance::traffic::bytes_of(slot).is_empty()).count();
                        ring.advance(u32::MAX);
                    }
                    let _ = port.rxsync();
                }
            }
            assert!(racers.iter_mut().all(|guard| guard.0.try_wait().expect("our child").is_none()));
            assert!(arrived > 0, "no packet of theirs arrives");
            let books = home.snapshot();
            assert_eq!(books.ports.iter().filter_map(|port| port.lost.get("fault")).sum::<u64>(), 0);
            let unaccounted = |home: &Home| home.snapshot().regions.iter().any(|one| one.buffers.unaccounted() != 0);
            assert!(!unaccounted(home));
            drop((racers, monitors));
            until("they have gone", || home.snapshot().ports.len() == 7);
            assert!(!unaccounted(home));
            drop(near);
            until("their region has gone", || home.snapshot().ports.len() == 6);
            summary(&format!("shared region {shares}, offsets to {offsets}: {arrived} packets of theirs arrived"));
        }
        assert_eq!(dropped(home), 0);
        let sent: u64 = pairs.iter().map(|pair| pair.sent).sum();
        home.assert_serves();
        summary(&format!("frames of others {sent}, lost 0"));
    });
}

fn racer(name: &str, seed: u64, region: u16, offsets: u32) -> Guard {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slot_racer"));
    command.args([name, &seed.to_string(), &region.to_string(), &offsets.to_string()]);
    Guard::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Each kind of invalid value, one after the other.
#[test]
fn invalid_slots_and_positions_affect_only_their_writer() {
    isolated(|home| {
        let _daemon = start_faulty_daemon(home, "", "removable");
        let mut pair = Pair::open("vale0", 0);
        let raw_port = RawPort::open(&home.socket(), "vale0:x");
        let (tx, rx) = (0, 1);
        let bufs = raw_port.bound.head.pools[2].count;
        // Invalid positions in both channels.
        for value in [SLOTS, SLOTS + 1, 5000, u32::MAX] {
            raw_port.write_channel(tx, 0, value);
            raw_port.write_channel(rx, 1, value);
            pair.exchange(100);
        }
        raw_port.write_channel(tx, 0, 0);
        // Indexes and lengths out of bounds; every flag.
        let indexes = [0, 1, bufs, u32::MAX];
        for slot in 0..SLOTS - 1 {
            let idx = indexes.get(slot as usize % 8).copied().unwrap_or(2 + slot);
            let len = [60, 2049, u16::MAX, 13, 0][slot as usize % 5];
            raw_port.write_slot(tx, slot, idx, len, 1 << (slot % 16));
        }
        raw_port.write_channel(tx, 0, SLOTS - 1);
        raw_port.write_channel(tx, 3, 1);
        pair.exchange(100);
        // Buffers of the receive ring that do not exist.
        for slot in 0..SLOTS {
            raw_port.write_slot(rx, slot, indexes[slot as usize % 4], 0, 0);
        }
        raw_port.write_channel(rx, 1, 0);
        ether::send_flagged(&pair.from, (BROADCAST, mac(0)), X, 5, (0, 2000));
        pair.exchange(100);
        let books = home.snapshot();
        let lost = &books.ports.iter().find(|port| port.name == "vale0:x").expect("open").lost;
        assert!(lost["bad"] > 0 && lost["short"] > 0, "{lost:?}");
        // The region's pages are removed.
        assert!(raw_port.punch_hole() || !cfg!(debug_assertions));
        raw_port.write_channel(tx, 0, 0);
        ether::send_flagged(&pair.from, (BROADCAST, mac(0)), X, 5, (0, 2000));
        pair.exchange(1000);
        drop(raw_port);
        until("it is closed", || home.snapshot().sessions.len() == 2);
        pair.exchange(1000);
        home.assert_serves();
    });
}

/// A program sends unterminated chains and NS_INDIRECT slots with random addresses, through the library.
#[test]
fn endless_multi_slot_packets_stop_nobody() {
    isolated(|_| {
        let mut pair = Pair::open("vale0", 0);
        let x = open("vale0:x");
        let mut rng = Rng(7);
        for _ in 0..200 {
            let ring = &x.tx_rings()[0];
            let n = rng.below(700) as usize;
            for slot in ring.available().take(n) {
                let flags = [NS_MOREFRAG, NS_MOREFRAG, 0, NS_INDIRECT][rng.below(4) as usize];
                slot.set_len_flags(rng.below(2049) as u16, flags);
                slot.set_ptr(rng.next_u64());
            }
            ring.advance(n as u32);
            x.txsync().expect("the daemon runs");
            pair.exchange(5);
        }
    });
}

/// A program that uses its own buffers twice, or for the port's other direction, affects no other port.
#[test]
fn a_buffer_in_two_slots_affects_only_its_writer() {
    isolated(|home| {
        let mut pair = Pair::open("vale0", 0);
        let x = open("vale0:x");
        let idx = BufIdx(x.rx_rings()[0].slot(x.rx_rings()[0].head()).buf_idx());
        for slot in x.tx_rings()[0].available().take(500) {
            slot.replace_buf(idx);
            slot.set_len(60);
        }
        x.tx_rings()[0].advance(500);
        x.txsync().expect("the daemon runs");
        ether::send_flagged(&pair.from, (BROADCAST, mac(0)), X, 5, (0, 500));
        pair.exchange(200);
        drop(x);
        until("it is closed", || home.snapshot().ports.len() == 2);
        pair.exchange(200);
        home.snapshot().buffers("vale0:good0a");
    });
}

/// A switch thread that panics is restarted; ports that did not send the packet at which it failed lose nothing.
#[test]
fn a_switch_thread_that_panics_is_restarted() {
    // A daemon that was built for debugging panics at frames to this address if UNETMAP_FAULT=switch.
    const FAULT: [u8; 6] = [2, 0xfa, 0x17, 0xfa, 0x17, 0xfa];
    if !cfg!(debug_assertions) {
        eprintln!("skipped: only daemons built for debugging fail on request");
        return;
    }
    isolated(|home| {
        // Starts the daemon.
        let mut keeper = Command::new(program("pkt-gen"));
        keeper.args(["-i", "vale9:keeper", "-f", "rx", "-w", "0"]).env("UNETMAP_FAULT", "switch");
        let _keeper = Guard::spawn(keeper.stdout(Stdio::null()).stderr(Stdio::null()));
        until("there is a daemon", || home.try_snapshot().is_some_and(|books| books.ports.len() == 1));
        let daemon = home.daemon();
        let environment = std::fs::read(format!("/proc/{}/environ", daemon.as_raw_pid())).expect("its environment");
        let injected = environment.split(|byte| *byte == 0).any(|entry| entry == b"UNETMAP_FAULT=switch");
        assert!(injected, "the daemon was started by another program");
        // The second half with several threads.
        let mut pairs: Vec<Pair> = (0..2).map(|n| Pair::open("vale0", n)).collect();
        let (bad, good) = (open("vale1:bad"), open("vale1:good"));
        for round in 0..20 {
            if round == 10 {
                ether::threads(3, "any");
            }
            ether::send(&bad, FAULT, mac(0), 1, (round, round + 1));
            pairs.iter_mut().for_each(|pair| pair.exchange(200));
            // The port that sent the packet keeps working, too.
            until("it is dropped", || {
                let found = faults(home, "vale1:bad");
                assert!(found <= round + 1, "round {round}: {found} slots were dropped");
                found == round + 1
            });
            ether::send(&bad, BROADCAST, mac(0), 1, (round, round + 1));
            ether::expect(&good, 1, (round, round + 1));
        }
        assert_eq!((home.daemon(), dropped(home)), (daemon, 0));
        let sent: u64 = pairs.iter().map(|pair| pair.sent).sum();
        summary(&format!("panics 20, frames of others {sent}, lost 0"));
    });
}

/// Number of slots of a port that were dropped because of faults of the switch.
fn faults(home: &Home, name: &str) -> u64 {
    home.snapshot().ports.iter().find(|port| port.name == name).map_or(0, |port| port.lost["fault"])
}

/// How long ports are opened and killed: the number of seconds in `UNETMAP_CHURN`, by default 15.
fn churn() -> Duration {
    let seconds = std::env::var("UNETMAP_CHURN").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(15))
}

/// Sends a request about a port that the program has not opened; it is refused because another program has the port
/// open, or because it is no interface. Returns the errno.
fn ask_for_others(home: &Home, rng: &mut Rng) -> i32 {
    let other = ["vale0:good0a", "vale0:good1b", "vale0:x", "vale0:", "vale0:good0a/t"][rng.below(5) as usize];
    let attach =
        |mode| NmreqValeAttach { reg: NmreqRegister { nr_mode: mode, ..Default::default() }, ..Default::default() };
    let polling = NmreqValePolling { nr_num_polling_cpus: rng.next_u64() as u32, ..Default::default() };
    let request = match rng.below(7) {
        0 => NetmapRequest::new(NETMAP_REQ_VALE_DETACH, other, NmreqValeDetach::default().as_bytes()),
        1 => NetmapRequest::new(NETMAP_REQ_VALE_ATTACH, other, attach(rng.below(9) as u32).as_bytes()),
        2 => NetmapRequest::new(NETMAP_REQ_VALE_DELIF, other, &[]),
        3 => NetmapRequest::new(NETMAP_REQ_VALE_NEWIF, other, NmreqValeNewif::default().as_bytes()),
        4 => NetmapRequest::new(NETMAP_REQ_VALE_POLLING_ENABLE, other, polling.as_bytes()),
        5 => NetmapRequest::new(NETMAP_REQ_VALE_POLLING_DISABLE, other, polling.as_bytes()),
        _ => {
            let register_body = NmreqRegister { nr_mode: 1, nr_flags: NR_EXCLUSIVE, ..Default::default() };
            NetmapRequest::new(NETMAP_REQ_REGISTER, "vale0:good0a", register_body.as_bytes())
        }
    };
    let (errno, answer, _) =
        ControlConnection::connect(&home.socket()).expect("a daemon").request(&request.expect("a short name"));
    if errno != 0 {
        assert_ne!(answer.expect("an answer").reason, "", "errno {errno} without a reason");
    }
    errno
}

/// Programs on the same switch write random values to shared memory and are killed, while the length of their headers
/// changes, rules are set and removed, monitors are open on them, and another client sends requests that must be
/// refused.
#[test]
fn random_writes_crashes_and_requests_together_lose_no_frame_of_others() {
    isolated(|home| {
        let mut pairs: Vec<Pair> = (0..4).map(|n| Pair::open("vale0", n)).collect();
        let mut rng = Rng(0x51e6_e001);
        let [mut killed, mut refused, mut sent] = [0; 3];
        let names = ["vale0:x", "vale0:y"];
        let mut scribblers = names.map(|name| scribbler(name, 1));
        let mut monitors = Vec::new();
        let start = Instant::now();
        while start.elapsed() < churn() {
            let which = rng.below(2) as usize;
            let name = names[which];
            match rng.below(12) {
                0 => {
                    scribblers[which].kill();
                    scribblers[which] = scribbler(name, rng.next_u64());
                    killed += 1;
                }
                1..=4 => {
                    let bytes = [0, 10, 12, 11, u32::MAX][rng.below(5) as usize];
                    let _ = control(
                        NETMAP_REQ_PORT_HDR_SET,
                        name,
                        NmreqPortHdr { nr_hdr_len: bytes, ..Default::default() },
                    );
                }
                5 => {
                    let rule = ["filter in len > 100", "storm 1000", "access 7", "trunk 1-9", "filter in off", "off"];
                    switch::set(&format!("port {name} {}", rule[rng.below(6) as usize]));
                }
                6 => monitors.extend(Port::open(&format!("{name}/rt")).ok()),
                7 => monitors.clear(),
                _ => {
                    assert_ne!(ask_for_others(home, &mut rng), 0, "something was granted");
                    refused += 1;
                }
            }
            for pair in &mut pairs {
                pair.exchange(20);
                sent += 20;
            }
        }
        let faults: u64 = home.snapshot().ports.iter().filter_map(|port| port.lost.get("fault")).sum();
        assert_eq!(faults, 0);
        drop((scribblers, monitors));
        until("only the others are left", || home.snapshot().ports.len() == 8);
        home.assert_serves();
        summary(&format!("scribblers killed {killed}, requests refused {refused}, frames of others {sent}, lost 0"));
    });
}

/// More than a hundred ports are opened, and their programs killed, at random under traffic; other ports lose nothing.
#[test]
fn ports_killed_under_traffic_lose_no_frame_of_others() {
    isolated(|home| killed_under_traffic(home, 1));
}

#[test]
fn ports_killed_under_traffic_lose_no_frame_of_others_on_three_threads() {
    isolated(|home| killed_under_traffic(home, 3));
}

fn killed_under_traffic(home: &Home, threads: usize) {
    ether::threads(threads, "any");
    let mut pairs: Vec<Pair> = (0..2).map(|n| Pair::open("vale0", n)).collect();
    let start_client = |role: &str, n: u64| {
        let mut command = Command::new(program("traffic_client"));
        // On a separate switch, served by the same threads: their packets would fill the rings of the pairs.
        let spec = format!("vale1:p{}", n % 5);
        let record = home.folder().join(format!("{role}-{n}"));
        match role {
            "send" => command.args([role, &spec, &n.to_string()]).arg(record),
            _ => {
                let _ = std::fs::create_dir(&record);
                command.args([role, &spec]).arg(record)
            }
        };
        Guard::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))
    };
    let mut rng = Rng(0x5eed_0042);
    let mut victims: HashMap<u64, Guard> = HashMap::new();
    let mut kills = 0;
    let start = Instant::now();
    for n in (0..).take_while(|n| *n < 100 || start.elapsed() < churn()) {
        victims.insert(n, start_client(["send", "recv"][rng.below(2) as usize], n));
        sleep(Duration::from_micros(rng.below(20_000)));
        pairs.iter_mut().for_each(|pair| pair.exchange(200));
        if victims.len() > 6 {
            let chosen = *victims.keys().nth(rng.below(victims.len() as u64) as usize).expect("several");
            victims.remove(&chosen).expect("chosen from them").kill();
            kills += 1;
        }
    }
    drop(victims);
    assert_eq!(dropped(home), 0);
    until("only the others are left", || home.snapshot().ports.len() == 4);
    for region in &home.snapshot().regions {
        assert_eq!(region.buffers.unaccounted(), 0);
    }
    let idle = home.snapshot().threads.iter().filter(|thread| thread.ports == 0).count();
    assert_eq!(idle, 0, "threads without a port");
    let sent: u64 = pairs.iter().map(|pair| pair.sent).sum();
    summary(&format!("ports killed {kills}, frames of others {sent}, lost 0"));
}
