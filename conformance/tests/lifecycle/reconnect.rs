// SPDX-License-Identifier: BSD-2-Clause
//! Ports that wait for the next daemon: theirs ends, and they go on with their rings at the same addresses.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use conformance::home::{Guard, summary};
use conformance::net::serve;
use conformance::traffic::{bytes_of, exchange, expect, fill_some, open, send};
use conformance::{Home, LIMIT, isolated, packet, program, until};
use rustix::event::epoll;
use rustix::net;
use rustix::process::Signal;
use unetmap::{Error, Interest, Port};

/// The longest wait of a thread for packets, after which it looks whether it is to end.
const WAIT: Duration = Duration::from_millis(50);

/// Slots that a ring can hold at most, at its default size.
const RING: u64 = 1023;

fn waiting(spec: &str) -> Port {
    Port::options().reconnect(None).open(spec).unwrap_or_else(|e| panic!("{spec}: {e}"))
}

/// Ends the daemon in this way, and waits until nothing of it is left.
fn end(daemon: &mut Guard, signal: Signal) {
    daemon.signal(signal);
    daemon.wait();
}

/// The packets that a thread has sent or received.
#[derive(Default)]
struct Count {
    stops: AtomicBool,
    /// The receiver reads nothing.
    pauses: AtomicBool,
    packets: AtomicU64,
    lost: AtomicU64,
    reconnects: AtomicU32,
}

struct Worker(Arc<Count>, JoinHandle<Port>);

impl Worker {
    fn start(port: Port, work: impl Fn(&Port, &Count) + Send + 'static) -> Worker {
        let count = Arc::new(Count::default());
        let of_thread = count.clone();
        let thread = spawn(move || {
            while !of_thread.stops.load(Relaxed) {
                work(&port, &of_thread);
                of_thread.lost.store(port.lost_slots(), Relaxed);
                of_thread.reconnects.store(port.reconnects(), Relaxed);
            }
            port
        });
        Worker(count, thread)
    }

    fn packets(&self) -> u64 {
        self.0.packets.load(Relaxed)
    }

    fn reconnects(&self) -> u32 {
        self.0.reconnects.load(Relaxed)
    }

    fn stop(self) -> (u64, Port) {
        self.0.stops.store(true, Relaxed);
        let port = self.1.join().expect("no panic");
        (self.0.packets.load(Relaxed), port)
    }
}

fn send_some(port: &Port, count: &Count) {
    port.poll(Interest::TX, Some(WAIT)).unwrap_or_else(|e| panic!("{e}"));
    let sent = fill_some(&port.tx_rings()[0], 1, count.packets.load(Relaxed), 32);
    count.packets.fetch_add(sent, Relaxed);
}

/// Reads what has arrived, which is in order.
fn read_all(port: &Port, count: &Count, next: &AtomicU64) {
    if count.pauses.load(Relaxed) {
        return;
    }
    let ring = &port.rx_rings()[0];
    for slot in ring.available() {
        let (sender, seq) = packet::check(&bytes_of(&slot)).expect("an unchanged packet");
        assert!(sender == 1 && seq >= next.load(Relaxed), "packet {seq} after {}", next.load(Relaxed));
        next.store(seq + 1, Relaxed);
        count.packets.fetch_add(1, Relaxed);
    }
    ring.advance(ring.space());
}

fn receiver(port: Port) -> Worker {
    let next = AtomicU64::new(0);
    Worker::start(port, move |port, count| {
        port.poll(Interest::RX, Some(WAIT)).unwrap_or_else(|e| panic!("{e}"));
        read_all(port, count, &next);
    })
}

/// Waits by a set of its own, to which the port's descriptors were added once.
fn receiver_by_epoll(port: Port) -> Worker {
    let (next, set) = (AtomicU64::new(0), epoll::create(epoll::CreateFlags::CLOEXEC).expect("a set"));
    for fd in port.wait_fds(Interest::RX) {
        epoll::add(&set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).expect("a member");
    }
    Worker::start(port, move |port, count| {
        if port.arm(Interest::RX).unwrap_or_else(|e| panic!("{e}")).is_none() {
            let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
            let _ = epoll::wait(&set, &mut events, Some(&WAIT.try_into().expect("short")));
        }
        read_all(port, count, &next);
    })
}

/// Has daemons end under numbered packets. Returns how many were sent, received and lost.
fn restarts(home: &Home, daemons: &mut Vec<Guard>, (sender, receiver): (Worker, Worker), ends: &[Signal]) -> [u64; 3] {
    for (done, signal) in (1..).zip(ends) {
        let before = receiver.packets();
        until("packets flow", || receiver.packets() > before + 5000);
        if *signal == Signal::KILL {
            // A full ring is lost.
            receiver.0.pauses.store(true, Relaxed);
            let has_read = || receiver.packets() + receiver.0.lost.load(Relaxed);
            until("the ring is full", || sender.packets() >= has_read() + RING);
        }
        let lost_before = receiver.0.lost.load(Relaxed);
        end(daemons.last_mut().expect("one serves"), *signal);
        if receiver.0.pauses.load(Relaxed) {
            until("the receiver has left", || receiver.0.lost.load(Relaxed) > lost_before);
            receiver.0.pauses.store(false, Relaxed);
        }
        daemons.push(serve(home));
        // A pipe goes on without a daemon until its ends look for that.
        until("both ends are back", || [&sender, &receiver].iter().all(|end| end.reconnects() == done));
        let before = receiver.packets();
        until("packets flow again", || receiver.packets() > before + 5000);
    }
    let (sent, from) = sender.stop();
    from.txsync().unwrap_or_else(|e| panic!("{e}"));
    let lost = || from.lost_slots() + receiver.0.lost.load(Relaxed);
    until("all that was not lost has arrived", || receiver.packets() + lost() >= sent);
    let (received, to) = receiver.stop();
    assert_eq!([from.reconnects(), to.reconnects()], [ends.len() as u32; 2]);
    [sent, received, from.lost_slots() + to.lost_slots()]
}

#[test]
fn pipes_go_on_with_the_next_daemon() {
    isolated(|home| {
        let mut daemons = vec![serve(home)];
        for receiver in [receiver, receiver_by_epoll] {
            let (from, to) = (waiting("netmap:p{1"), waiting("netmap:p}1"));
            let workers = (Worker::start(from, send_some), receiver(to));
            let [sent, received, lost] = restarts(home, &mut daemons, workers, &[Signal::TERM, Signal::KILL]);
            summary(&format!("2 restarts: {sent} sent, {received} received, {lost} lost"));
            assert!(sent == received + lost && lost >= RING, "{sent} sent, {received} received, {lost} lost");
        }
        home.assert_serves();
    });
}

#[test]
fn switch_ports_go_on_with_the_next_daemon() {
    isolated(|home| {
        let mut daemon = serve(home);
        let (from, to) = (waiting("vale0:a"), waiting("vale0:b"));
        let (from, to) = (Worker::start(from, send_some), receiver(to));
        let before = to.packets();
        until("packets flow", || to.packets() > before + 1000);
        end(&mut daemon, Signal::KILL);
        let _next = serve(home);
        until("both ports are back", || [&from, &to].iter().all(|end| end.reconnects() == 1));
        let before = to.packets();
        until("packets flow again", || to.packets() > before + 1000);
        let ((sent, from), (received, to)) = (from.stop(), to.stop());
        summary(&format!("{sent} sent, {received} received, {} lost", from.lost_slots() + to.lost_slots()));
        assert_eq!((from.reconnects(), to.reconnects()), (1, 1));
    });
}

/// Monitors that copy wait for the port that they watch, too.
#[test]
fn monitors_go_on_with_the_next_daemon() {
    isolated(|home| {
        let mut daemon = serve(home);
        let (from, to, monitor) = (waiting("netmap:p{1"), waiting("netmap:p}1"), waiting("netmap:p{1/t"));
        send(&from, 1, 0, 100).unwrap_or_else(|e| panic!("{e}"));
        expect(&to, 1, 0, 100);
        expect(&monitor, 1, 0, 100);
        // The monitor reads none of these.
        send(&from, 1, 100, 150).unwrap_or_else(|e| panic!("{e}"));
        end(&mut daemon, Signal::KILL);
        let _next = serve(home);
        let back = |port: &Port| port.rxsync().map(|()| port.reconnects() == 1).unwrap_or_else(|e| panic!("{e}"));
        let start = Instant::now();
        while start.elapsed() < 10 * WAIT {
            assert!(!back(&monitor), "the port that it watches is not back");
            let _ = monitor.poll(Interest::RX, Some(WAIT));
        }
        assert!(monitor.awaits_daemon());
        until("both ends serve, and the monitor", || [&from, &to, &monitor].map(back) == [true; 3]);
        assert_eq!(monitor.lost_slots(), 50);
        exchange(&from, &to, 2, 0, 50);
        expect(&monitor, 2, 0, 50);
    });
}

/// Its mirror is among the buffers of the port that it watches: it does not wait, and says so at once.
#[test]
fn a_monitor_without_copies_ends_with_its_daemon() {
    isolated(|home| {
        let mut daemon = serve(home);
        let ports = ["netmap:p{1", "netmap:p}1", "netmap:p{1/z"].map(waiting);
        end(&mut daemon, Signal::KILL);
        let _next = serve(home);
        let [from, to, monitor] = &ports;
        let error = monitor.poll(Interest::RX, Some(LIMIT)).expect_err("it has no daemon");
        assert!(matches!(error, Error::DaemonGone { .. }), "{error}");
        let back = |port: &Port| port.rxsync().map(|()| port.reconnects() == 1).unwrap_or_else(|e| panic!("{e}"));
        until("both ends serve", || [from, to].map(back) == [true; 2]);
        exchange(from, to, 1, 0, 3000);
    });
}

#[test]
fn ports_of_one_region_come_back_in_it() {
    isolated(|home| {
        let mut daemon = serve(home);
        // Another port is first, so that the region has another number and other places at the next daemon.
        let other = open("netmap:other{1");
        let source = waiting("netmap:a{1");
        let from = waiting("netmap:a}1");
        let to = waiting(&format!("netmap:b{{1@{}", from.mem_id()));
        let sink = waiting("netmap:b}1");
        assert!(from.same_region(&to) && from.mem_id() != 1);
        let number = from.mem_id();
        end(&mut daemon, Signal::KILL);
        drop((other, daemon));
        let _next = serve(home);
        for port in [&sink, &to, &from, &source] {
            // The ports that name their region come back after those that bring it.
            let _ = port.poll(Interest::RX, Some(WAIT));
        }
        let all = [&source, &from, &to, &sink];
        until("all ports are back", || {
            all.iter().for_each(|port| port.rxsync().unwrap_or_else(|e| panic!("{e}")));
            all.iter().all(|port| port.reconnects() == 1)
        });
        assert!(from.same_region(&to) && from.mem_id() == to.mem_id() && from.mem_id() < number);
        // Buffers are exchanged between the two ports.
        send(&source, 1, 0, 10).unwrap_or_else(|e| panic!("{e}"));
        assert!(from.poll(Interest::RX, Some(LIMIT)).unwrap_or_else(|e| panic!("{e}")).rx());
        let (received, free) = (&from.rx_rings()[0], &to.tx_rings()[0]);
        for (filled, empty) in received.available().zip(free.available()) {
            empty.swap_from(&filled);
        }
        received.advance(10);
        free.advance(10);
        to.txsync().unwrap_or_else(|e| panic!("{e}"));
        expect(&sink, 1, 0, 10);
        exchange(&sink, &to, 2, 0, 3000);
    });
}

#[test]
fn a_daemon_that_gives_another_shape_is_refused() {
    isolated(|home| {
        let mut daemon = serve(home);
        let port = waiting("netmap:p{1");
        end(&mut daemon, Signal::TERM);
        let _next = serve(home);
        let _other = open("netmap:p}1@conf:slots=64");
        let mut failed = None;
        until("the port fails", || {
            failed = port.rxsync().err();
            failed.is_some()
        });
        let failed = failed.expect("an error").to_string();
        assert!(
            failed.contains("another shape than the last: slots of transmit ring 0 64, which was 1024"),
            "{failed}"
        );
        // It fails from then on, and nothing of the former memory is gone.
        assert_eq!(port.rxsync().expect_err("an error").to_string(), failed);
        assert_eq!(port.tx_rings()[0].num_slots(), 1024);
    });
}

#[test]
fn a_daemon_that_never_answers_holds_up_no_call() {
    isolated(|home| {
        let mut daemon = serve(home);
        let (port, far) = (waiting("netmap:p{1"), waiting("netmap:p}1"));
        end(&mut daemon, Signal::KILL);
        std::fs::remove_file(home.socket()).expect("the socket that it left");
        let silent = net::socket(net::AddressFamily::UNIX, net::SocketType::SEQPACKET, None).expect("a socket");
        let address = net::SocketAddrUnix::new(home.socket()).expect("a short path");
        net::bind(&silent, &address).and_then(|()| net::listen(&silent, 8)).expect("a listener");
        let start = Instant::now();
        let mut calls = 0;
        while calls < 10 {
            assert!(port.poll(Interest::RX, Some(WAIT)).unwrap_or_else(|e| panic!("{e}")).is_none());
            calls += 1;
        }
        assert!(port.awaits_daemon() && start.elapsed() >= WAIT * (calls - 1));
        drop(silent);
        std::fs::remove_file(home.socket()).expect("the socket of the test");
        let _next = serve(home);
        let serves = |port: &Port| port.rxsync().is_ok() && port.reconnects() == 1;
        until("both ends serve", || [serves(&port), serves(&far)] == [true; 2]);
        exchange(&port, &far, 1, 0, 3000);
    });
}

#[test]
fn a_port_waits_no_longer_than_its_limit() {
    isolated(|home| {
        let mut daemon = serve(home);
        let limit = Duration::from_millis(200);
        let port = Port::options().reconnect(Some(limit)).open("netmap:p{1").unwrap_or_else(|e| panic!("{e}"));
        let start = Instant::now();
        end(&mut daemon, Signal::KILL);
        let error = port.poll(Interest::RX, Some(LIMIT)).expect_err("nobody comes");
        assert!(matches!(error, Error::DaemonGone { .. }) && start.elapsed() >= limit, "{error}");
    });
}

#[test]
fn programs_that_ask_for_it_go_on() {
    isolated(|home| {
        let mut daemon = serve(home);
        let start = |name: &str, args: &[&str]| {
            let mut command = Command::new(program(name));
            command.args(args).args(["-w", "0", "--wait-daemon"]).stdout(Stdio::null()).stderr(Stdio::piped());
            Guard::spawn(&mut command)
        };
        let mut programs = [
            start("pkt-gen", &["-f", "rx", "-i", "netmap:b}1"]),
            start("bridge", &["-i", "netmap:a}1", "-i", "netmap:b{1"]),
            start("pkt-gen", &["-f", "tx", "-i", "netmap:a{1"]),
        ];
        let cross = || {
            let snapshot = home.try_snapshot();
            let rings = snapshot.iter().flat_map(|all| &all.ports).filter(|port| port.name.contains("b}1"));
            rings.flat_map(|port| &port.rings).any(|ring| ring.crossed > 10_000)
        };
        until("packets cross the bridge", cross);
        end(&mut daemon, Signal::KILL);
        let _next = serve(home);
        until("packets cross it again", cross);
        programs.iter().for_each(|program| program.signal(Signal::INT));
        for program in &mut programs {
            let status = program.wait();
            let mut printed = String::new();
            program.0.stderr.take().expect("piped").read_to_string(&mut printed).expect("text");
            assert!(status.success() && printed.contains("goes on with another unetmapd after"), "{printed}");
        }
    });
}
