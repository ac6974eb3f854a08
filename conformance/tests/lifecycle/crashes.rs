// SPDX-License-Identifier: BSD-2-Clause
//! Clients that crash or exit at any moment: their buffers, rings and locks are recovered, and other clients keep
//! working.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use conformance::home::{Guard, is_alive, summary};
use conformance::packet::Rng;
use conformance::snapshot::PIPE_BUFFERS;
use conformance::traffic::{exchange, expect, open, send};
use conformance::{LIMIT, isolated, program, until};
use rustix::process::{Pid, Signal, kill_process};
use unetmap::{BufIdx, Interest, Port};

/// Slots that a ring can hold at most, at its default size.
const RING: u64 = 1023;

fn client() -> Command {
    Command::new(env!("CARGO_BIN_EXE_traffic_client"))
}

fn forker() -> Command {
    Command::new(env!("CARGO_BIN_EXE_forker"))
}

/// Reads the next line of a child's output.
#[track_caller]
fn line(child: &mut Child) -> String {
    // One byte at a time: the bytes after the line stay in the pipe.
    let out = child.stdout.as_mut().expect("the child's output is piped");
    let mut bytes = Vec::new();
    let mut byte = [0];
    while out.read(&mut byte).expect("a pipe to read") == 1 && byte[0] != b'\n' {
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).expect("text")
}

fn start_and_wait_for_line(command: &mut Command) -> Guard {
    let mut guard = Guard::spawn(command.stdout(Stdio::piped()));
    assert_ne!(line(&mut guard.0), "", "{command:?} ended without a word");
    guard
}

fn words(path: &Path) -> [u64; 3] {
    let bytes = fs::read(path).unwrap_or_default();
    let word = |i: usize| bytes.get(8 * i..8 * i + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("8 bytes")));
    [word(0), word(1), word(2)]
}

/// The role of a process that is killed.
struct Victim {
    role: Role,
    guard: Guard,
    kills: u64,
}

#[derive(Clone, Copy)]
enum Role {
    /// Sends into `{id`; each start uses a new sender number.
    Send(&'static str),
    /// Receives from `}id`.
    Recv(&'static str),
    /// Forwards from `}` of one pipe to `{` of another.
    Bridge(&'static str, &'static str),
}

struct Play {
    folder: PathBuf,
    last_sender: u64,
    /// Pipe and sender number, in the order of their starts.
    senders: Vec<(&'static str, u64)>,
}

impl Play {
    fn start(&mut self, role: Role) -> Guard {
        match role {
            Role::Send(pipe) => {
                self.last_sender += 1;
                let sender = self.last_sender;
                self.senders.push((pipe, sender));
                let spec = format!("netmap:k{{{pipe}");
                let record = self.folder.join(format!("sent-{sender}"));
                Guard::spawn(client().args(["send", &spec, &sender.to_string()]).arg(record).stdout(Stdio::null()))
            }
            Role::Recv(pipe) => {
                let spec = format!("netmap:k}}{pipe}");
                let folder = self.folder.join(format!("got-{pipe}"));
                let _ = fs::create_dir(&folder);
                Guard::spawn(client().args(["recv", &spec]).arg(folder))
            }
            Role::Bridge(from, to) => Guard::spawn(
                Command::new(program("bridge"))
                    .args(["-w", "0", "-i", &format!("netmap:k}}{from}"), "-i", &format!("netmap:k{{{to}")])
                    .stdout(Stdio::null())
                    .stderr(Stdio::null()),
            ),
        }
    }

    /// The packets of all senders into `pipe`, received at `end`: how many arrived, are missing, and are duplicates.
    fn audit(&self, pipe: &str, end: &str) -> (u64, u64, u64) {
        let (mut arrived, mut missing, mut again) = (0, 0, 0);
        for &(_, sender) in self.senders.iter().filter(|(p, _)| *p == pipe) {
            let [perhaps, certain, _] = words(&self.folder.join(format!("sent-{sender}")));
            let [next, holes, twice] = words(&self.folder.join(format!("got-{end}")).join(sender.to_string()));
            assert!(next <= perhaps, "sender {sender} sent at most {perhaps}, but packet {} came", next - 1);
            // Packets that certainly were sent after the last one received are missing as well.
            missing += holes + certain.saturating_sub(next);
            arrived += next - holes;
            again += twice;
        }
        (arrived, missing, again)
    }
}

/// Pipes of one parent: one between two clients; two in a row with a bridge between them; the same two again without
/// kills, whose buffers move from ring to ring while the daemon recovers those of killed clients; and one idle client.
#[test]
fn two_hundred_kills_under_traffic() {
    isolated(|home| {
        let keeper = (open("netmap:k{9"), open("netmap:k}9"));
        let mut play = Play { folder: home.folder().to_owned(), last_sender: 0, senders: Vec::new() };
        let roles = [Role::Send("1"), Role::Recv("1"), Role::Send("2"), Role::Bridge("2", "3"), Role::Recv("3")];
        let mut victims: Vec<Victim> =
            roles.into_iter().map(|role| Victim { role, guard: play.start(role), kills: 0 }).collect();
        let innocent = [Role::Send("4"), Role::Bridge("4", "5"), Role::Recv("5")];
        let mut innocent = innocent.map(|role| play.start(role));
        let mut rng = Rng(0x5eed_0001);
        sleep(Duration::from_millis(300));
        for kill in 0..200 {
            sleep(Duration::from_micros(1000 + rng.below(25_000)));
            // A pipe and its packets are removed with its last session, so one of its ends stays open.
            let chosen = rng.below(roles.len() as u64) as usize;
            let others: Vec<u32> = (0..roles.len()).filter(|i| *i != chosen).map(|i| victims[i].guard.0.id()).collect();
            until("the others have their ports open", || {
                let sessions = home.snapshot().sessions;
                others.iter().all(|pid| sessions.iter().any(|session| session.pid == *pid))
            });
            let victim = &mut victims[chosen];
            if let Ok(Some(status)) = victim.guard.0.try_wait() {
                panic!("before kill {kill}: a client exited by itself, {status}");
            }
            for guard in &mut innocent {
                assert!(guard.0.try_wait().expect("our child").is_none(), "before kill {kill}: an innocent died");
            }
            victim.guard.kill();
            victim.kills += 1;
            victim.guard = play.start(victim.role);
            // The pipe of the idle client is never disturbed.
            exchange(&keeper.0, &keeper.1, 99, kill * 100, kill * 100 + 100);
        }
        sleep(Duration::from_millis(300));
        for i in [0, 2] {
            victims[i].guard.signal(Signal::TERM);
        }
        innocent[0].signal(Signal::TERM);
        assert!(innocent[0].wait().success(), "a sender failed");
        for i in [0, 2] {
            assert!(victims[i].guard.wait().success(), "a sender failed");
        }
        until("everything sent is taken", || {
            let ports = home.snapshot().ports;
            ports.iter().flat_map(|p| &p.rings).filter(|r| r.dir == "tx").all(|ring| ring.queued == 0)
        });
        for i in [3, 1, 4] {
            victims[i].guard.signal(Signal::TERM);
            assert!(victims[i].guard.wait().success(), "a receiver or the bridge failed");
        }
        for guard in &mut innocent[1..] {
            guard.signal(Signal::TERM);
            assert!(guard.wait().success(), "a client failed that was not killed");
        }
        let (undisturbed, lost, again) = play.audit("4", "5");
        assert_eq!((lost, again), (0, 0), "whom nobody killed, nothing is lost");
        let (direct, lost, again) = play.audit("1", "1");
        assert_eq!(lost, 0, "on a direct pipe a killed receiver's packets come again, and nothing else is lost");
        assert!(again <= RING * victims[1].kills, "{again} packets came again");
        let (bridged, lost, again) = play.audit("2", "3");
        assert!(lost <= RING * victims[3].kills, "{lost} packets lost to {} killed bridges", victims[3].kills);
        assert!(again <= RING * victims[4].kills, "{again} packets came again");
        until("only the keeper is left", || home.snapshot().sessions.len() == 2);
        let buffers = home.snapshot().buffers("k");
        summary(&format!(
            "kills 200, packets {}, lost to killed receivers {lost}, buffers unaccounted for: {}, in missing: {}",
            direct + bridged + undisturbed,
            buffers.unaccounted(),
            buffers.missing
        ));
        // A bridge killed during a buffer exchange loses one buffer.
        assert!(u64::from(buffers.missing) <= victims[3].kills, "{buffers:?}");
        assert_eq!((buffers.in_rings, buffers.extra), (PIPE_BUFFERS, 0), "{buffers:?}");
        assert!(direct > 0 && bridged > 0 && undisturbed > 0);
        drop(keeper);
        until("the region is closed, and its missing buffers with it", || home.snapshot().regions.is_empty());
        home.assert_serves();
    });
}

/// A client killed during a buffer exchange leaves one buffer in two slots and another in none. The daemon repairs
/// that, and must not treat buffers as lost that other clients are moving between rings at that moment.
#[test]
fn recovery_after_a_crash_loses_no_packet_of_other_clients() {
    isolated(|home| {
        let mut play = Play { folder: home.folder().to_owned(), last_sender: 0, senders: Vec::new() };
        // Opened before the others, so that a wrong choice is not the last one examined.
        let keeper = start_and_wait_for_line(client().args(["hold", "netmap:k}8"]));
        let living = [Role::Send("4"), Role::Bridge("4", "5"), Role::Recv("5")];
        let mut living = living.map(|role| play.start(role));
        until("packets flow", || words(&home.folder().join("sent-1"))[1] > 10_000);
        const TIMES: u32 = 1000;
        for _ in 0..TIMES {
            let torn = open("netmap:k{8");
            let ring = &torn.tx_rings()[0];
            // It writes to its own buffers: any other client that had one of them would detect the change.
            for slot in ring.available() {
                slot.frame().write(0, &[0xff; 60]);
            }
            let twice = BufIdx(ring.slot(ring.head()).buf_idx());
            ring.slot(ring.next(ring.head())).replace_buf(twice);
        }
        for guard in &mut living {
            guard.signal(Signal::TERM);
            assert!(guard.wait().success(), "a client failed that was not killed");
            until("it is gone", || !is_alive(guard.pid()));
            sleep(Duration::from_millis(200));
        }
        let (packets, lost, again) = play.audit("4", "5");
        assert_eq!((lost, again), (0, 0), "of {packets} packets");
        until("only the keeper is left", || home.snapshot().sessions.len() == 1);
        let buffers = home.snapshot().buffers("k");
        // Each killed client lost one buffer; these are missing until the region is closed.
        assert_eq!(buffers.in_rings, PIPE_BUFFERS, "{buffers:?}");
        assert!(buffers.missing <= TIMES, "{buffers:?}");
        summary(&format!(
            "mended {TIMES} times among {packets} packets, lost {lost}, missing buffers {}",
            buffers.missing
        ));
        drop(keeper);
        until("the region is closed", || home.snapshot().regions.is_empty());
    });
}

/// Sends packets in both directions. `near` is shared, so its syncs may be skipped while another client syncs: as
/// programs for netmap do, it syncs until the ring is drained.
#[track_caller]
fn both_ways(far: &Port, near: &Port, from: u64, to: u64) {
    exchange(far, near, 1, from, to);
    send(near, 2, from, to).expect("room for few");
    until("everything is sent", || {
        near.txsync().expect("the daemon runs");
        far.rxsync().expect("the daemon runs");
        u64::from(far.rx_rings()[0].space()) == to - from
    });
    expect(far, 2, from, to);
}

/// Two processes share both rings of one end; one of them only syncs, and is killed repeatedly.
#[test]
fn a_crash_inside_a_sync_leaves_the_ring_usable() {
    isolated(|_| {
        let (far, near) = (open("netmap:l{1"), open("netmap:l}1"));
        let mut victim = start_and_wait_for_line(client().args(["spin", "netmap:l}1"]));
        let (mut seq, mut longest) = (0, Duration::ZERO);
        let mut rng = Rng(0x5eed_0002);
        const KILLS: u64 = 150;
        for _ in 0..KILLS {
            let until = Instant::now() + Duration::from_micros(500 + rng.below(8000));
            while Instant::now() < until {
                let start = Instant::now();
                both_ways(&far, &near, seq, seq + 200);
                seq += 200;
                longest = longest.max(start.elapsed());
            }
            victim.kill();
            // No other process helps: any lock of the killed process must be released by now, or soon.
            let start = Instant::now();
            both_ways(&far, &near, seq, seq + 200);
            seq += 200;
            longest = longest.max(start.elapsed());
            victim = start_and_wait_for_line(client().args(["spin", "netmap:l}1"]));
        }
        summary(&format!("kills in a sync {KILLS}, packets {}, longest pause {longest:?}", 2 * seq));
    });
}

/// Rings that one thread owns are synced by another thread, by another process at the same time, and by the first
/// thread again.
#[test]
fn biased_rings_can_be_synced_by_other_threads_and_processes() {
    isolated(|_| {
        let (far, near) = (open("netmap:l{1"), open("netmap:l}1"));
        let mut seq = 0;
        // Enough syncs for the calling thread to have the rings' locks biased to it, if they can be.
        let mut often = || {
            for _ in 0..3000 {
                both_ways(&far, &near, seq, seq + 10);
                seq += 10;
            }
        };
        often();
        std::thread::scope(|scope| scope.spawn(&mut often).join().expect("the other thread's packets"));
        often();
        let mut stranger = start_and_wait_for_line(client().args(["spin", "netmap:l}1"]));
        often();
        stranger.kill();
        often();
    });
}

#[test]
fn a_port_closes_however_its_client_exits() {
    isolated(|home| {
        let keeper = open("netmap:c{9");
        let sessions = || home.snapshot().sessions.len();
        let before = home.snapshot().buffers("c");
        for way in ["drop", "exit", "kill", "abort"] {
            if way == "drop" {
                let port = open("netmap:c{1");
                assert_eq!(sessions(), 2);
                drop(port);
            } else {
                let mut child = start_and_wait_for_line(client().args(["hold", "netmap:c{1"]));
                assert_eq!(sessions(), 2);
                child.signal(match way {
                    "exit" => Signal::TERM,
                    "kill" => Signal::KILL,
                    _ => Signal::ABORT,
                });
                child.wait();
            }
            until("the session is over", || sessions() == 1);
            assert_eq!(home.snapshot().buffers("c"), before, "after {way}");
        }
        drop(keeper);
        until("the region is closed", || home.snapshot().regions.is_empty());
    });
}

#[test]
fn a_forked_child_keeps_the_port_after_its_parent_exits() {
    isolated(|home| {
        for way in ["exit", "kill"] {
            let far = open("netmap:f{1");
            let file = home.folder().join(way);
            File::create(&file).expect("a file");
            let mut parent = Guard::spawn(
                forker()
                    .args(["netmap:f}1"])
                    .arg(&file)
                    .args(["5000", "-"])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped()),
            );
            let printed = line(&mut parent.0);
            let child: i32 = printed.strip_prefix("child ").and_then(|n| n.parse().ok()).expect("the child's pid");
            let child = Pid::from_raw(child).expect("a pid");
            // Half of the packets while both run, so that the parent exits while the child syncs.
            send(&far, 1, 0, 2500).expect("the child takes them");
            if way == "exit" {
                drop(parent.0.stdin.take());
                assert!(parent.wait().success());
            } else {
                parent.kill();
            }
            assert!(is_alive(child), "the child died with its parent ({way})");
            send(&far, 1, 2500, 5000).expect("the child takes them");
            assert_eq!(line(&mut parent.0), "child took 5000");
            until("the child ends", || !is_alive(child));
            until("the session ends with the child", || home.snapshot().sessions.len() == 1);
        }
    });
}

#[test]
fn a_stopped_receiver_stops_only_its_sender() {
    isolated(|home| {
        let stopped = start_and_wait_for_line(client().args(["hold", "netmap:s}1"]));
        stopped.signal(Signal::STOP);
        let far = open("netmap:s{1");
        let mut sent = 0;
        while far.poll(Interest::TX, Some(Duration::from_millis(100))).expect("the daemon runs").tx() {
            sent += conformance::traffic::fill_some(&far.tx_rings()[0], 1, sent, 5000);
            far.txsync().expect("the daemon runs");
        }
        assert_eq!(sent, RING, "a ring takes all its slots but one");
        // Other pipes, of the same parent and of another one, work.
        conformance::traffic::assert_pipe_works("netmap:s{2", "netmap:s}2");
        home.assert_serves();
        stopped.signal(Signal::CONT);
        drop(stopped);
        // No packet was lost: the next receiver gets them all.
        expect(&open("netmap:s}1"), 1, 0, RING);
    });
}

#[test]
fn a_killed_daemon_is_detected_and_replaced() {
    isolated(|home| {
        let folder = home.folder().join("got");
        fs::create_dir(&folder).expect("a folder");
        let mut clients = [
            Guard::spawn(client().args(["recv", "netmap:d}1"]).arg(&folder).stderr(Stdio::piped())),
            Guard::spawn(
                client().args(["send", "netmap:d{1", "1"]).arg(home.folder().join("sent")).stderr(Stdio::piped()),
            ),
            // It sleeps: no packet ever arrives here.
            Guard::spawn(client().args(["recv", "netmap:d}2"]).arg(&folder).stderr(Stdio::piped())),
        ];
        until("packets flow", || words(&home.folder().join("sent"))[1] > 10_000);
        let daemon = home.daemon();
        let start = Instant::now();
        kill_process(daemon, Signal::KILL).expect("our own daemon");
        let mut times = Vec::new();
        for guard in &mut clients {
            let status = guard.wait();
            times.push(start.elapsed());
            let mut printed = String::new();
            guard.0.stderr.take().expect("piped").read_to_string(&mut printed).expect("text");
            assert_eq!(status.code(), Some(1), "{printed}");
            assert!(printed.contains("daemon that served this port has exited"), "{printed}");
        }
        let noticed = times.into_iter().max().expect("three");
        assert!(noticed < LIMIT);
        // The socket of the killed daemon still exists.
        assert!(home.socket().exists());
        home.assert_serves();
        assert_ne!(home.daemon(), daemon);
        summary(&format!("all clients noticed the daemon's death within {noticed:?}"));
    });
}

#[test]
fn every_call_on_a_port_of_a_killed_daemon_fails() {
    isolated(|home| {
        let (far, near) = (open("netmap:d{1"), open("netmap:d}1"));
        exchange(&far, &near, 1, 0, 100);
        kill_process(home.daemon(), Signal::KILL).expect("our own daemon");
        let fails = |call: &dyn Fn(&Port) -> Result<(), unetmap::Error>| {
            until("DaemonGone", || matches!(call(&far), Err(unetmap::Error::DaemonGone { .. })));
        };
        fails(&|p| p.txsync());
        fails(&|p| p.rxsync());
        fails(&|p| p.poll(Interest::RX, Some(Duration::from_secs(1))).map(|_| ()));
        fails(&|p| p.arm(Interest::RX).map(|_| ()));
        drop(far);
        drop(near);
        home.assert_serves();
    });
}

#[test]
fn a_single_packet_sender_detects_a_killed_daemon_while_the_ring_has_room() {
    isolated(|home| {
        let spec = |end: char| format!("netmap:d{end}1@conf:slots=4096");
        let (far, near) = (open(&spec('{')), open(&spec('}')));
        let (tx, rx) = (&far.tx_rings()[0], &near.rx_rings()[0]);
        let send_singly = |n: u32| {
            (0..n).try_for_each(|_| {
                tx.advance(1);
                far.poll(Interest::TX, None).map(drop)
            })
        };
        // Just enough syncs for the thread to own the ring: more of them would make checks on the daemon rarer.
        send_singly(1100).expect("a daemon");
        near.rxsync().expect("a daemon");
        rx.advance(rx.space());
        near.rxsync().expect("a daemon");
        far.txsync().expect("a daemon");
        assert_eq!(tx.space(), 4095);
        let daemon = home.daemon();
        kill_process(daemon, Signal::KILL).expect("our own daemon");
        until("it is gone", || !is_alive(daemon));
        sleep(Duration::from_millis(200));
        // No client receives them, and there is room for all.
        assert!(matches!(send_singly(4000), Err(unetmap::Error::DaemonGone { .. })));
        assert!(tx.space() > 0);
    });
}

/// Clients are killed while they open and close ports, in the middle of a request.
#[test]
fn clients_killed_while_opening_leave_nothing() {
    isolated(|home| {
        let keeper = open("netmap:o{9");
        let before = home.snapshot().buffers("o");
        let mut rng = Rng(0x5eed_0003);
        for _ in 0..60 {
            let mut child = Guard::spawn(client().args(["hold", "netmap:o{1"]).stdout(Stdio::piped()));
            sleep(Duration::from_micros(rng.below(4000)));
            child.kill();
        }
        until("only the keeper is left", || home.snapshot().sessions.len() == 1);
        assert_eq!(home.snapshot().buffers("o"), before);
        drop(keeper);
        home.assert_serves();
    });
}
