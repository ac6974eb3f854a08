//! Ports of a switch whose programs write anything anywhere, or die at any moment: nobody else loses anything.

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use conformance::ether::{self, BROADCAST, mac};
use conformance::home::{Guard, summary};
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
/// In a slot's flags: to the port that was opened after a pair.
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
        // The switch learns where both are, and each hears of it.
        ether::send(&pair.to, BROADCAST, mac(2 * n as u32 + 1), 1, (0, 1));
        until("the one hears the other", || {
            pair.from.rxsync().expect("a living daemon");
            !pair.from.rx_rings()[0].is_empty()
        });
        pair
    }

    /// Sends frames and checks that all come, whole and in order; what others send into the switch is passed over.
    #[track_caller]
    fn exchange(&mut self, frames: u64) {
        let host = |side: u64| mac((2 * (self.sender - 77) + side) as u32);
        ether::send(&self.from, host(1), host(0), self.sender, (self.sent, self.sent + frames));
        let (ring, mut next, end) = (&self.to.rx_rings()[0], self.sent, Instant::now() + LIMIT);
        while next < self.sent + frames {
            self.to.poll(Interest::RX, Some(Duration::from_millis(100))).expect("a living daemon");
            for slot in ring.window() {
                match ether::check(&conformance::traffic::bytes_of(&slot)) {
                    Ok((sender, seq)) if sender == self.sender => {
                        assert_eq!(seq, next, "of sender {sender}");
                        next += 1;
                    }
                    _ => {}
                }
            }
            ring.advance(u32::MAX);
            assert!(Instant::now() < end, "frame {next} of {} does not come", self.sender);
        }
        self.to.rxsync().expect("a living daemon");
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

/// Everything that a port's program maps, while four pairs exchange packets on another switch of the same threads: these
/// lose nothing.
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

/// The same on the very switch: what a scribbler sends may reach the others, as anybody's packets may, but theirs come whole
/// and in order.
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

/// Two programs that send as much as they can, and change slots, packets and their virtio-net headers while the switch looks at
/// them; meanwhile the length of headers changes, rules come and go, and monitors look on. Pairs on another switch of the same
/// threads lose nothing.
#[test]
fn slots_and_packets_can_change_while_the_switch_reads_them() {
    isolated(|home| {
        let mut pairs: Vec<Pair> = (0..2).map(|n| Pair::open("vale9", n)).collect();
        let (victim, _lazy) = (open("vale0:victim"), open("vale0:lazy"));
        let names = ["vale0:x", "vale0:y"];
        let mut rng = Rng(0x5eed_1234);
        for (shares, offsets) in [(false, 0), (true, 0), (false, 512), (true, 512)] {
            // What they lose of its buffers comes back with its end.
            let near = open("vale0:near");
            let region = if shares { near.mem_id() } else { 0 };
            let mut racers = names.map(|name| racer(name, rng.next(), region, offsets));
            until("they are there", || home.snapshot().ports.len() == 9);
            let (mut monitors, mut heard) = (Vec::new(), 0);
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
                    // What another of the region says of its own rings is between the two.
                    let _ = port.rxsync();
                    for ring in port.rx_rings() {
                        heard += ring.window().filter(|slot| !conformance::traffic::bytes_of(slot).is_empty()).count();
                        ring.advance(u32::MAX);
                    }
                    let _ = port.rxsync();
                }
            }
            assert!(racers.iter_mut().all(|guard| guard.0.try_wait().expect("our child").is_none()));
            assert!(heard > 0, "nothing of what they send arrives");
            let books = home.snapshot();
            assert_eq!(books.ports.iter().filter_map(|port| port.lost.get("fault")).sum::<u64>(), 0);
            let unaccounted = |home: &Home| home.snapshot().regions.iter().any(|one| one.buffers.unaccounted() != 0);
            assert!(!unaccounted(home));
            drop((racers, monitors));
            until("they have gone", || home.snapshot().ports.len() == 7);
            assert!(!unaccounted(home));
            drop(near);
            until("their region has gone", || home.snapshot().ports.len() == 6);
            summary(&format!("shared region {shares}, offsets to {offsets}: {heard} packets of theirs arrived"));
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

/// Each kind of lie for itself.
#[test]
fn invalid_slots_and_positions_affect_only_their_writer() {
    isolated(|home| {
        let mut pair = Pair::open("vale0", 0);
        let raw_port = RawPort::open(&home.socket(), "vale0:x");
        let (tx, rx) = (0, 1);
        let bufs = raw_port.bound.head.pools[2].count;
        // Positions that cannot be, of both lines.
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
        // The region's pages taken away.
        raw_port.punch_hole();
        raw_port.write_channel(tx, 0, 0);
        ether::send_flagged(&pair.from, (BROADCAST, mac(0)), X, 5, (0, 2000));
        pair.exchange(1000);
        drop(raw_port);
        until("it is closed", || home.snapshot().sessions.len() == 2);
        pair.exchange(1000);
        home.assert_serves();
    });
}

/// A program that sends chains without an end, and data that lies elsewhere, through the library.
#[test]
fn endless_multi_slot_packets_stop_nobody() {
    isolated(|_| {
        let mut pair = Pair::open("vale0", 0);
        let x = open("vale0:x");
        let mut rng = Rng(7);
        for _ in 0..200 {
            let ring = &x.tx_rings()[0];
            let n = rng.below(700) as usize;
            for slot in ring.window().take(n) {
                let flags = [NS_MOREFRAG, NS_MOREFRAG, 0, NS_INDIRECT][rng.below(4) as usize];
                slot.set_len_flags(rng.below(2049) as u16, flags);
                slot.set_ptr(rng.next());
            }
            ring.advance(n as u32);
            x.txsync().expect("a living daemon");
            pair.exchange(5);
        }
    });
}

/// Buffers of one's own that the program uses twice, or for the port's other direction, are nobody else's affair.
#[test]
fn a_buffer_in_two_slots_affects_only_its_writer() {
    isolated(|home| {
        let mut pair = Pair::open("vale0", 0);
        let x = open("vale0:x");
        let idx = BufIdx(x.rx_rings()[0].slot(x.rx_rings()[0].head()).buf_idx());
        for slot in x.tx_rings()[0].window().take(500) {
            slot.replace_buf(idx);
            slot.set_len(60);
        }
        x.tx_rings()[0].advance(500);
        x.txsync().expect("a living daemon");
        ether::send_flagged(&pair.from, (BROADCAST, mac(0)), X, 5, (0, 500));
        pair.exchange(200);
        drop(x);
        until("it is closed", || home.snapshot().ports.len() == 2);
        pair.exchange(200);
        home.snapshot().buffers("vale0:good0a");
    });
}

/// A switch's thread that panics goes on; whoever did not send what it failed at never notices.
#[test]
fn a_switch_thread_that_panics_is_restarted() {
    // Asks a daemon that was built for debugging to panic at frames for this station.
    const FAULT: [u8; 6] = [2, 0xfa, 0x17, 0xfa, 0x17, 0xfa];
    if !cfg!(debug_assertions) {
        eprintln!("skipped: only daemons built for debugging fail when they are told to");
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
        let asked = environment.split(|byte| *byte == 0).any(|entry| entry == b"UNETMAP_FAULT=switch");
        assert!(asked, "somebody else has started the daemon");
        // The second half with several threads.
        let mut pairs: Vec<Pair> = (0..2).map(|n| Pair::open("vale0", n)).collect();
        let (bad, good) = (open("vale1:bad"), open("vale1:good"));
        for round in 0..20 {
            if round == 10 {
                ether::threads(3, "any");
            }
            ether::send(&bad, FAULT, mac(0), 1, (round, round + 1));
            pairs.iter_mut().for_each(|pair| pair.exchange(200));
            // Whose packet it was goes on as well.
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

/// Slots that a port lost by faults of the switch's.
fn faults(home: &Home, name: &str) -> u64 {
    home.snapshot().ports.iter().find(|port| port.name == name).map_or(0, |port| port.lost["fault"])
}

/// How long ports are opened and killed: as many seconds as `UNETMAP_CHURN` says, else 15.
fn churn() -> Duration {
    let seconds = std::env::var("UNETMAP_CHURN").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(15))
}

/// What a program asks of ports that are not its own, and why it gets nothing: others have them open, or they are no
/// interfaces.
fn ask_for_others(home: &Home, rng: &mut Rng) -> i32 {
    let other = ["vale0:good0a", "vale0:good1b", "vale0:x", "vale0:", "vale0:good0a/t"][rng.below(5) as usize];
    let attach =
        |mode| NmreqValeAttach { reg: NmreqRegister { nr_mode: mode, ..Default::default() }, ..Default::default() };
    let polling = NmreqValePolling { nr_num_polling_cpus: rng.next() as u32, ..Default::default() };
    let request = match rng.below(7) {
        0 => NetmapRequest::new(NETMAP_REQ_VALE_DETACH, other, NmreqValeDetach::default().as_bytes()),
        1 => NetmapRequest::new(NETMAP_REQ_VALE_ATTACH, other, attach(rng.below(9) as u32).as_bytes()),
        2 => NetmapRequest::new(NETMAP_REQ_VALE_DELIF, other, &[]),
        3 => NetmapRequest::new(NETMAP_REQ_VALE_NEWIF, other, NmreqValeNewif::default().as_bytes()),
        4 => NetmapRequest::new(NETMAP_REQ_VALE_POLLING_ENABLE, other, polling.as_bytes()),
        5 => NetmapRequest::new(NETMAP_REQ_VALE_POLLING_DISABLE, other, polling.as_bytes()),
        _ => {
            let wish = NmreqRegister { nr_mode: 1, nr_flags: NR_EXCLUSIVE, ..Default::default() };
            NetmapRequest::new(NETMAP_REQ_REGISTER, "vale0:good0a", wish.as_bytes())
        }
    };
    let (errno, answer, _) =
        ControlConnection::connect(&home.socket()).expect("a daemon").request(&request.expect("a short name"));
    if errno != 0 {
        assert_ne!(answer.expect("an answer").reason, "", "errno {errno} without a reason");
    }
    errno
}

/// Programs on the very switch that write anything anywhere and are killed, while the length of their headers changes, rules
/// come and go, monitors watch them, and somebody asks for what is not his.
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
                    scribblers[which] = scribbler(name, rng.next());
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

/// Ports that open and die at random under traffic, a hundred and more of them; the others lose nothing.
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
        // On a switch of their own, whose thread is the same: their packets would fill the others' rings.
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
