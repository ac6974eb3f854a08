// SPDX-License-Identifier: BSD-2-Clause
//! Several switch threads: the distribution of ports over them, and behaviour that does not depend on their number.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use conformance::ether::{self, BROADCAST, mac};
use conformance::home::{Guard, cpus_allowed, summary};
use conformance::stop::Stop;
use conformance::traffic::{bytes_of, open};
use conformance::{Home, isolated, isolated_alone, program, until};
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};
use unetmap::{Interest, Port};

/// Runs `unetmap vale threads` with these arguments; returns its status and error output.
fn refused(args: &str) -> (i32, String) {
    let out = Command::new(program("unetmap")).args(["vale", "threads"]).args(args.split(' ')).output();
    let out = out.expect("unetmap runs");
    (out.status.code().unwrap_or(-1), String::from_utf8_lossy(&out.stderr).into_owned())
}

/// The number of ports of each thread.
fn spread(home: &Home) -> Vec<usize> {
    home.snapshot().threads.iter().map(|thread| thread.ports).collect()
}

/// Every port sends to all others, and all packets arrive.
#[track_caller]
fn everybody_hears_everybody(ports: &[Port], round: u64) {
    for (n, from) in ports.iter().enumerate() {
        ether::send(from, BROADCAST, mac(n as u32), round, (0, 5));
        for (_, to) in ports.iter().enumerate().filter(|(to, _)| *to != n) {
            ether::expect(to, round, (0, 5));
        }
    }
}

#[test]
fn ports_are_distributed_over_threads_and_can_move() {
    isolated(|home| {
        let reported = ether::threads(3, "any");
        assert_eq!((&reported["threads"], reported["running"].as_array().map(Vec::len)), (&3.into(), Some(0)));
        let mut ports: Vec<Port> = (0..6).map(|n| open(&format!("vale{}:p{n}", n / 4))).collect();
        assert_eq!(spread(home), [2, 2, 2]);
        everybody_hears_everybody(&ports[..4], 0);
        // A port with many rings counts with the number of its rings.
        let wide = Port::options().tx_rings(4).open("vale2:wide").expect("a port");
        let rings: Vec<usize> = home.snapshot().threads.iter().map(|thread| thread.rings).collect();
        assert_eq!((rings.iter().sum::<usize>(), rings.iter().max(), rings.iter().min()), (10, Some(&4), Some(&3)));
        drop(wide);
        // Fewer threads, more threads, other processors: the ports keep working.
        for (round, n) in (1..).zip([1, 4, 2, 64, 3]) {
            let reported = ether::threads(n, "any");
            assert_eq!(reported["running"].as_array().map(Vec::len), Some(n));
            let spread = spread(home);
            assert_eq!(spread.iter().sum::<usize>(), 6);
            assert!(spread.iter().max().unwrap() - spread.iter().min().unwrap() <= 1, "{spread:?}");
            everybody_hears_everybody(&ports[..4], round);
            everybody_hears_everybody(&ports[4..], round);
        }
        let cpu = *cpus_allowed().last().expect("a processor");
        ether::threads(2, &cpu.to_string());
        assert_eq!(home.threads_kept_on("switch", cpu as u32), 2);
        let books = home.snapshot();
        assert!(books.threads.iter().all(|thread| thread.pinned == Some(cpu as u16) && thread.tid > 0));
        until("each is there", || home.snapshot().threads.iter().all(|thread| thread.cpu == Some(cpu as u32)));
        everybody_hears_everybody(&ports[..4], 9);
        ether::threads(2, "any");
        if cpus_allowed().len() > 1 {
            assert_eq!(home.threads_kept_on("switch", cpu as u32), 0);
        }
        // When ports are closed, other ports move to that thread.
        let books = home.snapshot();
        let thread_of = |name: &str| books.ports.iter().find(|port| port.name == name).and_then(|port| port.thread);
        let first = (0..6).find(|n| thread_of(&format!("vale{}:p{n}", n / 4)) == Some(0)).expect("one");
        let of_first = |n: usize| thread_of(&format!("vale{}:p{n}", n / 4)) == Some(0);
        assert!(of_first(first));
        let keep: Vec<bool> = (0..6).map(|n| !of_first(n)).collect();
        let mut keep = keep.into_iter();
        ports.retain(|_| keep.next().expect("six"));
        until("three are left", || home.snapshot().ports.len() == 3);
        assert!(spread(home).iter().all(|ports| *ports > 0), "{:?}", spread(home));
        drop(ports);
        until("the threads end with the last switch", || home.snapshot().threads.is_empty());
    });
}

#[test]
fn impossible_thread_settings_are_refused() {
    isolated(|home| {
        let _keeper = open("vale0:keeper");
        for (args, status, part) in [
            ("0", 2, "1..=64"),
            ("65", 2, "1..=64"),
            ("2 --cpus x", 2, "0,2-3"),
            ("2 --cpus 1024", 2, "below 1024"),
            ("--cpus 0", 2, "required"),
            ("2 --cpus 1023", 1, "no processor 1023"),
            ("2 --cpus 0-64", 2, "at most 64"),
        ] {
            let (code, err) = refused(args);
            assert_eq!(code, status, "{args}: {err}");
            assert!(err.contains(part), "{args}: {err}");
        }
        assert_eq!(spread(home), [1]);
    });
}

/// A daemon starts with the settings of its file.
#[test]
fn the_settings_file_sets_the_number_of_threads() {
    isolated(|home| {
        let file = home.folder().join("unetmapd.toml");
        std::fs::write(&file, "[vale]\nthreads = 2\ncpus = [0]\n").expect("a file");
        let mut daemon = Command::new(program("unetmapd"));
        daemon.args(["--foreground", "--socket"]).arg(home.socket()).arg("--config").arg(file);
        let _daemon = Guard::spawn(daemon.stderr(Stdio::null()));
        until("it serves", || home.try_snapshot().is_some());
        let _ports = (open("vale0:a"), open("vale0:b"));
        assert_eq!(spread(home), [1, 1]);
        assert_eq!(home.threads_kept_on("switch", 0), 2);
    });
}

/// The frames of a receiver: the number received from each sender, in order.
#[derive(Default)]
struct InOrder {
    last: BTreeMap<u64, u64>,
    came: u64,
}

impl InOrder {
    #[track_caller]
    fn take(&mut self, port: &Port) {
        for ring in port.rx_rings() {
            for slot in ring.available() {
                let (sender, seq) = ether::check(&bytes_of(&slot)).unwrap_or_else(|e| panic!("{e}"));
                let before = self.last.insert(sender, seq);
                assert!(before.is_none_or(|before| before < seq), "{sender}: {seq} after {before:?}");
                self.came += 1;
            }
            ring.advance(u32::MAX);
        }
    }
}

const SENDERS: u64 = 4;
const EACH: u64 = 30_000;

/// Several senders on several threads and one destination, while the number of threads changes and ports move.
fn many_to_one(home: &Home, plans: &[usize], share: &str) {
    let to = open("vale0:to");
    ether::send(&to, BROADCAST, mac(99), 99, (0, 1));
    until("it is gone", || home.snapshot().ring("vale0:to", "tx", 0).queued == 0);
    let senders: Vec<Port> = (0..SENDERS).map(|n| open(&format!("vale0:s{n}{share}"))).collect();
    let (over, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let came = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut all = InOrder::default();
            loop {
                // Everything sent before the flag was set has been delivered or dropped.
                let last = over.load(Relaxed);
                to.poll(Interest::RX, Some(Duration::from_millis(5))).expect("the daemon runs");
                let before = all.came;
                all.take(&to);
                received.store(all.came, Relaxed);
                if last && all.came == before {
                    return all;
                }
            }
        });
        let sending: Vec<_> = (0u32..)
            .zip(&senders)
            .map(|(n, port)| scope.spawn(move || ether::send(port, mac(99), mac(n), n.into(), (0, EACH))))
            .collect();
        for plan in plans.iter().cycle().take_while(|_| sending.iter().any(|thread| !thread.is_finished())) {
            ether::threads(*plan, "any");
            sleep(Duration::from_millis(5));
        }
        sending.into_iter().for_each(|thread| thread.join().expect("it sends all"));
        until("all was taken", || {
            let books = home.snapshot();
            (0..SENDERS).all(|n| books.ring(&format!("vale0:s{n}"), "tx", 0).queued == 0)
        });
        // A receiver that gets no processor time may lose all packets of a sender; with room some of each arrive.
        let dropped = || home.snapshot().ring("vale0:to", "rx", 0).dropped;
        until("the receiver has read", || received.load(Relaxed) + dropped() == SENDERS * EACH);
        for (n, port) in (0u32..).zip(&senders) {
            ether::send(port, mac(99), mac(n), n.into(), (EACH, EACH + 1));
            until("the last one comes", || received.load(Relaxed) + dropped() == SENDERS * EACH + u64::from(n) + 1);
        }
        over.store(true, Relaxed);
        receiver.join().expect("it receives in order")
    });
    let books = home.snapshot();
    for region in &books.regions {
        assert_eq!((region.buffers.unaccounted(), region.buffers.missing), (0, 0), "{}", region.name);
    }
    let (dropped, swapped) = (books.ring("vale0:to", "rx", 0).dropped, books.ring("vale0:to", "rx", 0).swapped);
    assert_eq!(swapped > 0, !share.is_empty(), "{swapped} packets changed places");
    let lost: u64 = (0..SENDERS).map(|n| books.ring(&format!("vale0:s{n}"), "tx", 0).dropped).sum();
    let sent = SENDERS * (EACH + 1);
    assert_eq!((lost, came.came + dropped), (0, sent));
    assert!((0..SENDERS).all(|n| came.last.get(&n) == Some(&EACH)), "the last of each sender: {:?}", came.last);
    summary(&format!("sent {sent}, delivered {}, dropped {dropped}, each sender's in order", came.came));
}

#[test]
fn several_sources_and_threads_to_one_destination() {
    isolated(|home| {
        ether::threads(3, "any");
        many_to_one(home, &[3], "");
    });
}

/// In one region, where buffers are exchanged instead of copied: each is still in exactly one place.
#[test]
fn several_threads_serve_one_region() {
    isolated(|home| {
        many_to_one(home, &[3, 4, 2], "@share=vale0:to");
    });
}

#[test]
fn ports_that_move_under_traffic_keep_their_order() {
    isolated(|home| many_to_one(home, &[1, 3, 2, 4], ""));
}

/// Sleeping receivers are woken by any delivering thread, and a thread by any port that it serves now.
#[test]
fn moving_a_port_loses_no_wakeup() {
    isolated(|_| {
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        // The thread that a port moves to may have no other source of wake-ups.
        for (seq, n) in (0..120).zip([2, 1, 3, 2, 4, 1].into_iter().cycle()) {
            ether::threads(n, "any");
            if seq % 3 == 0 {
                sleep(Duration::from_millis(2));
            }
            for (from, to, sender) in [(&a, &b, 1), (&b, &a, 2)] {
                ether::send(from, BROADCAST, mac(sender as u32), sender, (2 * seq, 2 * seq + 1));
                ether::expect(to, sender, (2 * seq, 2 * seq + 1));
                sleep(Duration::from_micros(seq * 7 % 300));
                ether::send(from, BROADCAST, mac(sender as u32), sender, (2 * seq + 1, 2 * seq + 2));
                ether::expect(to, sender, (2 * seq + 1, 2 * seq + 2));
            }
        }
    });
}

/// A receiver that never reads and one that is stopped delay neither other threads nor other ports of their own thread.
#[test]
fn a_port_that_never_reads_delays_no_thread() {
    isolated(|home| {
        ether::threads(3, "any");
        let (a, b, lazy) = (open("vale0:a"), open("vale0:b"), open("vale0:lazy"));
        let record = home.folder().join("victim");
        std::fs::create_dir(&record).expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_traffic_client"));
        command.args(["recv", "vale0:stopped"]).arg(&record).stdout(Stdio::null()).stderr(Stdio::null());
        let mut stopped = Guard::spawn(&mut command);
        until("it has its port", || home.snapshot().ports.len() == 4);
        stopped.signal(Signal::STOP);
        let number = 3 << 8;
        ether::send(&b, BROADCAST, mac(1), 1, (0, 1));
        ether::expect(&a, 1, (0, 1));
        let flooders: Vec<Port> = (0..2).map(|n| open(&format!("vale0:f{n}"))).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let end = Stop(&stop);
            for (n, port) in (50..).zip(&flooders) {
                let stop = &stop;
                // To the stopped receiver, and to the one that does not read.
                scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        ether::send_flagged(port, (mac(9), mac(n)), number, n.into(), (0, 300));
                        ether::send_flagged(port, (mac(9), mac(n)), 2 << 8, n.into(), (0, 300));
                    }
                });
            }
            for round in 0..100 {
                ether::send(&a, mac(1), mac(0), 5, (200 * round, 200 * round + 200));
                ether::expect(&b, 5, (200 * round, 200 * round + 200));
            }
            drop(end);
        });
        let books = home.snapshot();
        let dropped = |name: &str| books.ring(name, "rx", 0).dropped;
        assert_eq!((dropped("vale0:a"), dropped("vale0:b")), (0, 0));
        assert!(dropped("vale0:lazy") > 0 && dropped("vale0:stopped") > 0);
        stopped.kill();
        drop(lazy);
        home.assert_serves();
    });
}

/// Tests of [`isolated_alone`].
mod alone {
    use super::*;

    #[test]
    fn idle_threads_use_no_processor_time() {
        isolated_alone(|home| {
            ether::threads(4, "any");
            let ports: Vec<Port> = (0..8).map(|n| open(&format!("vale0:p{n}"))).collect();
            everybody_hears_everybody(&ports, 0);
            let (ran, waits) = home.daemon_effort(Duration::from_secs(2));
            assert!(ran < Duration::from_millis(2) && waits <= 5, "idle, it ran for {ran:?} and waited {waits} times");
            everybody_hears_everybody(&ports, 1);
            summary(&format!("4 threads idle for 2 s: ran for {ran:?}, {waits} wake-ups"));
        });
    }

    /// Sender, receiver and switch threads that are all busy on two processors, or on one, all make progress.
    #[test]
    fn busy_threads_share_the_processors() {
        isolated_alone(|home| {
            let cpus = cpus_allowed();
            let (one, other) = (cpus[0], *cpus.last().expect("a processor"));
            let pkt_gen = |args: String| {
                let mut command = Command::new(program("pkt-gen"));
                Guard::spawn(command.args(args.split(' ')).stdout(Stdio::null()).stderr(Stdio::null()))
            };
            for (threads, at, rx_at) in [(1, one, other), (3, one, other), (3, one, one)] {
                ether::threads(threads, &at.to_string());
                let _rx = pkt_gen(format!("-i vale0:rx -f rx -w 0 -a {rx_at}"));
                until("the receiver is there", || home.try_snapshot().is_some_and(|books| books.ports.len() == 1));
                let _tx = pkt_gen(format!("-i vale0:tx -f tx -w 0 -a {one}"));
                until("the sender is there", || home.snapshot().ports.len() == 2);
                let crossed = || {
                    let books = home.snapshot();
                    (books.ring("vale0:tx", "tx", 0).crossed, books.ring("vale0:rx", "rx", 0).crossed)
                };
                let begin = crossed();
                for _ in 0..10 {
                    let before = crossed();
                    until("both have got on", || {
                        let now = crossed();
                        now.0 >= before.0 + 5000 && now.1 >= before.1 + 5000
                    });
                }
                let end = crossed();
                summary(&format!(
                    "{threads} threads on processor {at}, receiver on {rx_at}: sent {}, received {}",
                    end.0 - begin.0,
                    end.1 - begin.1
                ));
                drop((_rx, _tx));
                until("both are gone", || home.snapshot().ports.is_empty());
            }
        });
    }

    /// A sender whose packets have all been taken does not wait for the thread, which has nothing more to move for it.
    #[test]
    fn a_sender_yields_no_processor_to_a_thread_that_took_everything() {
        isolated_alone(|_| {
            let cpu = cpus_allowed()[0];
            ether::threads(1, &cpu.to_string());
            let [port, from, to] = ["vale0:a", "vale0:b", "vale0:c"].map(open);
            ether::send(&to, BROADCAST, mac(3), 3, (0, 1));
            let (stop, mut shared) = (AtomicBool::new(false), 0);
            std::thread::scope(|scope| {
                let end = Stop(&stop);
                // Keeps the thread awake.
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        ether::send(&from, mac(3), mac(2), 2, (0, 100));
                    }
                });
                let mut here = CpuSet::new();
                here.set(cpu);
                sched_setaffinity(None, &here).expect("a processor that is allowed");
                for seq in 0..500 {
                    ether::send(&port, mac(3), mac(1), 1, (seq, seq + 1));
                    let ring = &port.tx_rings()[0];
                    while ring.pending() {
                        port.txsync().expect("the daemon runs");
                        std::thread::yield_now();
                    }
                    shared += u32::from(port.peer_cpu(Interest::TX) == Some(cpu as u32));
                    assert!(!port.yield_to_peer(Interest::TX), "packet {seq}");
                }
                drop(end);
            });
            assert!(shared > 0, "the thread was never seen on processor {cpu}");
        });
    }
}
