// SPDX-License-Identifier: BSD-2-Clause
//! A client of a `scale-*` benchmark: opens its ports, waits for the start, measures, prints its values.

use std::io::{Write, stdout};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use unetmap::{Interest, Port};
use unetmap_core::control::nic::Filter;
use unetmap_core::control::vale::{
    Direction, RateLimit, ThreadConfig, ValeAction, ValeRequest, VlanMode, send_request,
};
use unetmap_sys::clock::now_ns;
use unetmap_sys::xdp::ClassicInsn;

use super::{ANNOUNCE, LOAD_RATE, RATE, READY, SEND, Subject, least, line};
use crate::program::TIMEOUT;

/// Time of a measurement, after [`WARM_UP`].
const TIME: Duration = Duration::from_millis(800);
const WARM_UP: Duration = Duration::from_millis(200);
/// Packets between two syncs.
const BATCH: u32 = 512;
/// Repetitions of what is measured one by one.
const OPENS: usize = 50;
const OPENS_BESIDE_SNAPSHOTS: usize = 200;
const SNAPSHOTS: usize = 9;
const WAKES: usize = 200;
const POLLS: u64 = 20_000;
/// Ticks of a second at which senders send.
const TICKS: u32 = 1000;
const TICK: Duration = Duration::from_millis(1);
/// Ports, slots of their rings, and repetitions of `scale-threads`.
const PORTS: u32 = 16;
const SLOTS: u32 = 4096;
/// Bytes of a packet and of a buffer in the copies that `scale-threads` compares itself with. Buffers of switch ports
/// have a cache line more than 2048 bytes.
const PACKET: usize = 60;
const BUFFER: usize = 2112;
const FILLS: usize = 30;
/// How often a program that sleeps looks whether its packets were taken.
const LOOK: Duration = Duration::from_micros(100);
/// Time in which a peer falls asleep.
const FALL_ASLEEP: Duration = Duration::from_micros(400);
/// Waits for the other side end after this time.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

const BROADCAST: [u8; 6] = [0xff; 6];

/// Does the task: the name of the benchmark, the number that grows, the first port of this process, and its ports.
pub(crate) fn run(task: &str) -> Result<u8, String> {
    let unclear = || format!("bench: {task:?} is no task of a client");
    let (name, numbers) = task.split_once(' ').ok_or_else(unclear)?;
    let subject = Subject::ALL.into_iter().find(|subject| subject.name() == name).ok_or_else(unclear)?;
    let numbers: Vec<u32> = numbers.split(' ').map(str::parse).collect::<Result<_, _>>().map_err(|_| unclear())?;
    let [n, first, count] = numbers[..] else { return Err(unclear()) };
    unetmap_sys::process::raise_fd_limit();
    let values = match subject {
        Subject::Ports => ports(n),
        Subject::Senders => senders((n, first, count), RATE),
        Subject::Load => senders((n, first, count), LOAD_RATE),
        Subject::Addresses => addresses(n),
        Subject::Flood => flood(n),
        Subject::Policies => policies(n),
        Subject::Threads => threads(n),
        Subject::Rings => rings(n),
        Subject::Pairs => pairs(n),
        Subject::Ls => ls(n),
        Subject::Close => close(n),
        Subject::Pipes => pipes(n),
    }?;
    print(&line(&values))?;
    Ok(0)
}

fn print(text: &str) -> Result<(), String> {
    let mut out = stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|e| format!("bench: standard output: {e}"))
}

fn text(e: unetmap::Error) -> String {
    format!("bench: {e}")
}

fn open(spec: &str) -> Result<Port, String> {
    Port::open(spec).map_err(text)
}

/// Tells that the ports are open, and waits until those of all processes are.
fn start() -> Result<(), String> {
    print(READY)?;
    let begin = Instant::now();
    while !Path::new("go").exists() {
        if begin.elapsed() > 4 * TIMEOUT {
            return Err("bench: the start was never given".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Returns a unicast address.
fn address(n: u32) -> [u8; 6] {
    let [a, b, c, d] = n.to_be_bytes();
    [2, 0xbe, a, b, c, d]
}

/// Queues one packet of 60 bytes; `false` if the ring has no room.
fn put(port: &Port, (to, from): ([u8; 6], [u8; 6])) -> bool {
    let ring = &port.tx_rings()[0];
    let free = !ring.is_empty();
    if free {
        let slot = ring.slot(ring.head());
        let mut addresses = [0; 12];
        addresses[..6].copy_from_slice(&to);
        addresses[6..].copy_from_slice(&from);
        slot.frame().write(0, &addresses);
        slot.set_len_flags(60, 0);
        ring.advance(1);
    }
    free
}

/// Queues `n` packets, as far as there is room: those that the slots were filled with in an earlier round. A sender
/// that writes each packet again is slower than the switch.
fn put_again(port: &Port, n: u32) {
    port.tx_rings()[0].advance(n);
}

/// Releases what has arrived; returns how many packets that were.
fn drain(port: &Port) -> Result<u64, String> {
    port.rxsync().map_err(text)?;
    let mut packets = 0;
    for ring in port.rx_rings() {
        packets += u64::from(ring.advance(ring.space()));
    }
    Ok(packets)
}

/// Sends one packet from each of two ports, so that the switch knows their addresses.
fn introduce(all: [(&Port, u32); 2]) -> Result<(), String> {
    for (port, number) in all {
        put(port, (BROADCAST, address(number)));
        port.txsync().map_err(text)?;
    }
    thread::sleep(Duration::from_millis(20));
    all.iter().try_for_each(|(port, _)| drain(port).map(drop))
}

/// Calls `round` during the warm-up and the measurement; returns the sum of what it returned in the latter, in
/// millions per second.
fn rate(mut round: impl FnMut() -> Result<u64, String>) -> Result<f64, String> {
    let mut run_for = |time: Duration| -> Result<f64, String> {
        let (begin, mut sum) = (Instant::now(), 0);
        while begin.elapsed() < time {
            sum += round()?;
        }
        Ok(sum as f64 / begin.elapsed().as_secs_f64() / 1e6)
    };
    run_for(WARM_UP)?;
    run_for(TIME)
}

fn percentile(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get((values.len() as f64 * part) as usize).copied().unwrap_or(0.0)
}

/// Time to open a port of a switch that has `n`, us.
fn ports(n: u32) -> Result<Vec<f64>, String> {
    let _all = (0..n).map(|i| open(&format!("vale0:p{i}"))).collect::<Result<Vec<_>, _>>()?;
    start()?;
    let times = (0..OPENS).map(|i| {
        let begin = Instant::now();
        let port = open(&format!("vale0:more{i}"))?;
        let time = begin.elapsed().as_secs_f64() * 1e6;
        drop(port);
        Ok(time)
    });
    Ok(vec![percentile(times.collect::<Result<_, String>>()?, 0.5)])
}

/// Each of `n` ports sends packets to the next one; this process has `count` of them. Returns for each the packets per
/// second that arrived.
fn senders((n, first, count): (u32, u32, u32), pps: u32) -> Result<Vec<f64>, String> {
    let mine: Vec<_> =
        (first..first + count).map(|i| Ok((i, open(&format!("vale0:p{i}"))?))).collect::<Result<_, String>>()?;
    start()?;
    let begin = Instant::now();
    for (i, port) in &mine {
        put(port, (BROADCAST, address(*i)));
        port.txsync().map_err(text)?;
    }
    while begin.elapsed() < ANNOUNCE {
        thread::sleep(Duration::from_millis(5));
        mine.iter().try_for_each(|(_, port)| drain(port).map(drop))?;
    }
    let (begin, mut sent, mut arrived) = (Instant::now(), 0, vec![0; mine.len()]);
    loop {
        let due = (begin.elapsed().as_nanos() / TICK.as_nanos()) as u32 * pps / TICKS;
        let sends = begin.elapsed() < SEND;
        for ((i, port), arrived) in mine.iter().zip(&mut arrived) {
            if sends && sent < due {
                // After a delay several packets are due.
                let fits = |_: &u32| put(port, (address((i + 1) % n), address(*i)));
                (sent..due).take_while(fits).for_each(drop);
                port.txsync().map_err(text)?;
            }
            *arrived += drain(port)?;
        }
        sent = sent.max(due);
        if !sends && begin.elapsed() > SEND + ANNOUNCE {
            break;
        }
        let next = TICK.as_nanos() - begin.elapsed().as_nanos() % TICK.as_nanos();
        thread::sleep(Duration::from_nanos(next as u64));
    }
    Ok(arrived.iter().map(|&packets| packets as f64 / SEND.as_secs_f64()).collect())
}

/// One sender uses `n` source addresses in turn. Returns the rate of its receiver.
fn addresses(n: u32) -> Result<Vec<f64>, String> {
    let (from, to) = (open("vale0:a")?, open("vale0:b")?);
    start()?;
    introduce([(&from, 0), (&to, u32::MAX)])?;
    let mut next = 0;
    let mpps = rate(|| {
        for _ in 0..BATCH {
            if !put(&from, (address(u32::MAX), address(next))) {
                break;
            }
            next = (next + 1) % n;
        }
        from.txsync().map_err(text)?;
        drain(&to)
    })?;
    Ok(vec![mpps])
}

/// A sender floods packets to a receiver that reads, and to `n` ports whose rings are full. Returns the rate of the
/// receiver.
fn flood(n: u32) -> Result<Vec<f64>, String> {
    let (from, to) = (open("vale0:a")?, open("vale0:b")?);
    let idle = (0..n).map(|i| open(&format!("vale0:idle{i}"))).collect::<Result<Vec<_>, _>>()?;
    start()?;
    introduce([(&from, 0), (&to, 1)])?;
    let slots = idle.first().map_or(0, |port| port.rx_rings()[0].num_slots());
    // Until all slots of the sender contain such a packet, and the other rings are full.
    let fill = |to_address| -> Result<(), String> {
        let mut sent = 0;
        while sent < 2 * from.tx_rings()[0].num_slots().max(slots) {
            sent += (0..BATCH).take_while(|_| put(&from, (to_address, address(0)))).count() as u32;
            from.txsync().map_err(text)?;
            drain(&to)?;
        }
        Ok(())
    };
    fill(address(2))?;
    let unknown = rate(|| {
        put_again(&from, BATCH);
        from.txsync().map_err(text)?;
        drain(&to)
    })?;
    fill(BROADCAST)?;
    let all = rate(|| {
        put_again(&from, BATCH);
        from.txsync().map_err(text)?;
        idle.iter().chain([&to]).try_fold(0, |delivered, port| Ok::<_, String>(delivered + drain(port)?))
    })?;
    Ok(vec![unknown, all])
}

/// Time for a packet from one port to one of `n` others in turn, ns: without a policy, and with each kind of policy at
/// all ports.
fn policies(n: u32) -> Result<Vec<f64>, String> {
    let from = open("vale0:from")?;
    let to = (0..n).map(|i| open(&format!("vale0:p{i}"))).collect::<Result<Vec<_>, _>>()?;
    start()?;
    // Frames of IPv6 do not pass.
    let insn = |code, jt, k| ClassicInsn { code, jt, jf: 0, k };
    let program = vec![insn(0x28, 0, 12), insn(0x15, 1, 0x86dd), insn(0x06, 0, 0x40000), insn(0x06, 0, 0)];
    let filter = Filter { expression: "not ip6".into(), program };
    let limit = RateLimit { packets: 1_000_000_000, bits: 0 };
    let kinds = [
        ("no policy", None),
        ("VLAN", Some(ValeAction::Vlan(Some(VlanMode::Access(10))))),
        ("filter", Some(ValeAction::Filter(Direction::Out, Some(filter)))),
        ("rate", Some(ValeAction::Limit(Direction::Out, limit))),
    ];
    let names: Vec<String> = to.iter().chain([&from]).map(|port| port.spec().to_string()).collect();
    let set = |action: &ValeAction| {
        let mut requests = names.iter().map(|name| ValeRequest { name: name.clone(), action: action.clone() });
        requests.try_for_each(|request| send_request(&request).map(drop).map_err(text))
    };
    let (mut times, mut next) = (Vec::new(), 0);
    for (kind, action) in &kinds {
        drain(&from)?;
        if let Some(action) = action {
            set(action)?;
        }
        for (i, port) in to.iter().enumerate() {
            put(port, (BROADCAST, address(i as u32)));
            port.txsync().map_err(text)?;
            if i % 128 == 0 {
                to.iter().try_for_each(|port| drain(port).map(drop))?;
            }
        }
        thread::sleep(FALL_ASLEEP);
        // Reading one packet at a time from each of many rings would take longer than the switch.
        let turn = BATCH.max(n * BATCH / 2);
        let mpps = rate(|| {
            let mut sent = 0;
            let begin = Instant::now();
            while sent < turn && begin.elapsed() < POLL_TIMEOUT {
                let queued = (0..BATCH).take_while(|_| {
                    let fits = put(&from, (address(next % n), address(u32::MAX)));
                    next += u32::from(fits);
                    fits
                });
                sent += queued.count() as u32;
                from.txsync().map_err(text)?;
            }
            to.iter().try_fold(0, |arrived, port| Ok::<_, String>(arrived + drain(port)?))
        })?;
        if mpps == 0.0 {
            return Err(format!("bench scale-policies: no packet arrived ({n} ports, {kind})"));
        }
        times.push(1e3 / mpps);
        set(&ValeAction::Clear)?;
    }
    Ok(times)
}

/// Rate at which `n` threads forward what [`PORTS`] ports sent to each other before they sleep; rate at which `n`
/// threads copy as many packets between as many buffers.
fn threads(n: u32) -> Result<Vec<f64>, String> {
    let config = ThreadConfig { threads: n as u16, cpus: Vec::new() };
    send_request(&ValeRequest { name: String::new(), action: ValeAction::SetThreads(config) }).map_err(text)?;
    let options = Port::options().tx_slots(SLOTS).rx_slots(SLOTS);
    let all: Vec<_> =
        (0..PORTS).map(|i| options.open(&format!("vale0:p{i}")).map_err(text)).collect::<Result<_, _>>()?;
    start()?;
    for (i, port) in all.iter().enumerate() {
        put(port, (BROADCAST, address(i as u32)));
        port.txsync().map_err(text)?;
    }
    // All have arrived, so that none is counted among the packets below.
    let (begin, mut introduced) = (Instant::now(), 0);
    while introduced < u64::from(PORTS * (PORTS - 1)) {
        if begin.elapsed() > TIMEOUT {
            return Err("bench scale-threads: the ports' first packets did not arrive".into());
        }
        thread::sleep(LOOK);
        introduced += all.iter().map(drain).sum::<Result<u64, String>>()?;
    }
    let mut rates = Vec::new();
    for _ in 0..FILLS {
        // The second time it tells the switch what was read the first time.
        (0..2).try_for_each(|_| all.iter().try_for_each(|port| drain(port).map(drop)))?;
        let mut packets = 0_u32;
        for (port, i) in all.iter().zip(0..) {
            while put(port, (address((i + 1) % PORTS), address(i))) {
                packets += 1;
            }
        }
        // The threads sleep, too.
        thread::sleep(10 * LOOK);
        let begin = Instant::now();
        loop {
            all.iter().try_for_each(|port| port.txsync().map_err(text))?;
            if all.iter().all(|port| port.tx_rings()[0].space() + 1 == SLOTS) {
                break;
            }
            thread::sleep(LOOK);
        }
        let seconds = begin.elapsed().as_secs_f64();
        let arrived = all.iter().map(drain).sum::<Result<u64, String>>()?;
        if arrived != u64::from(packets) {
            return Err(format!("bench scale-threads: {arrived} of {packets} packets arrived"));
        }
        rates.push(f64::from(packets) / seconds / 1e6);
    }
    drop(all);
    Ok(vec![percentile(rates, 0.5), copy_rate(n as usize)])
}

/// Mpps at which `n` threads copy the packets of the rings of [`PORTS`] ports: what the machine gives so many threads.
fn copy_rate(n: usize) -> f64 {
    const PACKETS: usize = (PORTS * SLOTS) as usize;
    let (from, mut to) = (vec![1_u8; PACKETS * BUFFER], vec![1_u8; PACKETS * BUFFER]);
    let part = PACKETS.div_ceil(n) * BUFFER;
    let mut fill = || {
        let begin = Instant::now();
        thread::scope(|scope| {
            for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                scope.spawn(move || {
                    for (from, to) in from.chunks(BUFFER).zip(to.chunks_mut(BUFFER)) {
                        to[..PACKET].copy_from_slice(&from[..PACKET]);
                    }
                });
            }
        });
        PACKETS as f64 / begin.elapsed().as_secs_f64() / 1e6
    };
    percentile((0..FILLS).map(|_| fill()).collect(), 0.5)
}

/// Time of a poll over `n` rings that finds a packet in one, ns; time until a sleeping one returns, us; time of a sync
/// that notifies a doorbell for which nobody waits, ns.
fn rings(n: u32) -> Result<Vec<f64>, String> {
    let pipe = |end: &str| {
        let options = Port::options().tx_rings(n as u16).rx_rings(n as u16).tx_slots(64).rx_slots(64);
        options.open(&format!("netmap:rings{end}")).map_err(text)
    };
    let (from, to) = (pipe("{1")?, pipe("}1")?);
    start()?;
    let send = || {
        put(&from, (BROADCAST, BROADCAST));
        from.txsync().map_err(text)
    };
    let mut polling = 0;
    for _ in 0..POLLS {
        send()?;
        let begin = now_ns();
        let ready = to.poll(Interest::RX, Some(Duration::ZERO)).map_err(text)?;
        polling += now_ns() - begin;
        if ready.is_none() {
            return Err("bench scale-rings: a packet did not arrive".into());
        }
        drain(&to)?;
    }
    let (sent_at, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let times = thread::scope(|scope| {
        let sleeper = scope.spawn(|| -> Result<Vec<f64>, String> {
            let mut times = Vec::new();
            while !stop.load(Relaxed) {
                if !to.poll(Interest::RX, Some(POLL_TIMEOUT)).map_err(text)?.is_none() {
                    times.push(now_ns().saturating_sub(sent_at.load(Relaxed)) as f64 / 1e3);
                    drain(&to)?;
                }
            }
            Ok(times)
        });
        let sent = (0..WAKES).try_for_each(|_| {
            thread::sleep(FALL_ASLEEP);
            sent_at.store(now_ns(), Relaxed);
            send()
        });
        stop.store(true, Relaxed);
        let times = sleeper.join().map_err(|_| "bench scale-rings: the receiver failed".to_string())?;
        sent.and(times)
    })?;
    let notify = (0..WAKES).map(|_| {
        drain(&to)?;
        if !to.arm(Interest::RX).map_err(text)?.is_none() {
            return Err("bench scale-rings: a packet arrived that was not sent".into());
        }
        put(&from, (BROADCAST, BROADCAST));
        let begin = now_ns();
        from.txsync().map_err(text)?;
        Ok((now_ns() - begin) as f64)
    });
    let notify = notify.collect::<Result<Vec<_>, String>>()?;
    Ok(vec![polling as f64 / POLLS as f64, percentile(times, 0.5), percentile(notify, 0.5)])
}

/// Each of `n` pairs of threads moves packets through a pipe. Returns the sum of their rates, and the smallest in
/// percent of their mean.
fn pairs(n: u32) -> Result<Vec<f64>, String> {
    let pipe = |i| Ok((open(&format!("netmap:pair{i}{{1"))?, open(&format!("netmap:pair{i}}}1"))?));
    let pipes = (0..n).map(pipe).collect::<Result<Vec<_>, String>>()?;
    start()?;
    let arrived: Vec<AtomicU64> = pipes.iter().map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let send = |port: &Port| -> Result<(), String> {
        let ring = &port.tx_rings()[0];
        while !stop.load(Relaxed) {
            port.poll(Interest::TX, Some(POLL_TIMEOUT)).map_err(text)?;
            for slot in ring.first(BATCH) {
                slot.set_len_flags(60, 0);
            }
            ring.advance(BATCH);
        }
        Ok(())
    };
    let receive = |port: &Port, arrived: &AtomicU64| -> Result<(), String> {
        let ring = &port.rx_rings()[0];
        while !stop.load(Relaxed) {
            port.poll(Interest::RX, Some(POLL_TIMEOUT)).map_err(text)?;
            arrived.fetch_add(u64::from(ring.advance(ring.space())), Relaxed);
        }
        Ok(())
    };
    let counts = || arrived.iter().map(|one| one.load(Relaxed)).collect::<Vec<_>>();
    let rates: Vec<f64> = thread::scope(|scope| {
        for ((from, to), arrived) in pipes.iter().zip(&arrived) {
            scope.spawn(|| send(from));
            scope.spawn(|| receive(to, arrived));
        }
        thread::sleep(WARM_UP);
        let (begin, before) = (Instant::now(), counts());
        thread::sleep(TIME);
        let (seconds, after) = (begin.elapsed().as_secs_f64(), counts());
        stop.store(true, Relaxed);
        after.iter().zip(before).map(|(after, before)| (after - before) as f64 / seconds / 1e6).collect()
    });
    Ok(vec![rates.iter().sum(), least(&rates)])
}

/// Time of a snapshot of `n` ports, ms, and time of an open while snapshots are taken, 99th percentile, us.
fn ls(n: u32) -> Result<Vec<f64>, String> {
    let end = |i: u32| open(&format!("netmap:ls{}{}1", i / 2, ['{', '}'][(i % 2) as usize]));
    let _all = (0..n).map(end).collect::<Result<Vec<_>, _>>()?;
    start()?;
    let snapshot = || unetmap::snapshots().map(drop).map_err(text);
    let timed = |what: &dyn Fn() -> Result<(), String>| -> Result<f64, String> {
        let begin = Instant::now();
        what().map(|()| begin.elapsed().as_secs_f64())
    };
    let times = (0..SNAPSHOTS).map(|_| timed(&snapshot)).collect::<Result<Vec<_>, _>>()?;
    let stop = AtomicBool::new(false);
    let opens = thread::scope(|scope| {
        let beside = scope.spawn(|| -> Result<(), String> {
            while !stop.load(Relaxed) {
                snapshot()?;
            }
            Ok(())
        });
        let opens = (0..OPENS_BESIDE_SNAPSHOTS)
            .map(|i| timed(&|| open(&format!("netmap:beside{i}{{1")).map(drop)))
            .collect::<Result<Vec<_>, _>>();
        stop.store(true, Relaxed);
        beside.join().map_err(|_| "bench scale-ls: the snapshots failed".to_string())??;
        opens
    })?;
    Ok(vec![1e3 * percentile(times, 0.5), 1e6 * percentile(opens, 0.99)])
}

/// Time until each of `n` pipes of one region is closed, us, when all close together.
fn close(n: u32) -> Result<Vec<f64>, String> {
    // A region has room for 64 pipes with rings of 200 slots.
    let pipe = |spec: &str| Port::options().tx_slots(128).rx_slots(128).open(spec).map_err(text);
    let first = pipe("netmap:close0{1")?;
    let id = first.mem_id();
    let more = (1..n).map(|i| pipe(&format!("netmap:close{i}{{1@{id}")));
    let all = std::iter::once(Ok(first)).chain(more).collect::<Result<Vec<_>, _>>()?;
    start()?;
    Ok(vec![closed(all, "netmap:close")? / f64::from(n)])
}

/// Closes ports whose names begin with `names`; returns the time until all are closed, us.
fn closed(all: Vec<Port>, names: &str) -> Result<f64, String> {
    let begin = Instant::now();
    drop(all);
    while unetmap::snapshots().map_err(text)?.iter().any(|snapshot| snapshot.contains(names)) {
        if begin.elapsed() > TIMEOUT {
            return Err(format!("bench: {names} and others are not closed after {} s", TIMEOUT.as_secs()));
        }
        thread::sleep(Duration::from_micros(100));
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6)
}

/// Time to open, and to close, each of `n` pipes with regions of their own, of each of which one end is open, us.
fn pipes(n: u32) -> Result<Vec<f64>, String> {
    let begin = Instant::now();
    let all = (0..n).map(|i| open(&format!("netmap:many{i}{{1"))).collect::<Result<Vec<_>, _>>()?;
    let opening = begin.elapsed().as_secs_f64() * 1e6 / f64::from(n);
    start()?;
    Ok(vec![opening, closed(all, "netmap:many")? / f64::from(n)])
}
