// SPDX-License-Identifier: BSD-2-Clause
//! The honest traffic, and what was lost of it.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use conformance::client::record;
use conformance::home::{Guard, LIMIT};
use conformance::net::{Net, Tap};
use conformance::node::StartedProgram;
use conformance::snapshot::Snapshot;
use conformance::{Home, packet, program};
use lab::Ns;
use rustix::process::Signal;

use crate::honest::USER;
use crate::{start_ready, tenant};

/// Frames that are sent at once through the interface, and the pause after them: 1,600 in a second.
const BATCH: u64 = 16;
const PAUSE: Duration = Duration::from_millis(10);
/// Sender of these frames.
const TAP_SENDER: u64 = 90;
/// Seconds that `ping` waits if nothing is answered.
const PING_LIMIT: &str = "10";

/// A pipe, or two ports of a switch, between a sender's and a receiver's process.
struct Pair {
    name: &'static str,
    sender: StartedProgram,
    receiver: StartedProgram,
    sent: PathBuf,
    got: PathBuf,
    /// The ports whose counters count what is dropped; none: nothing may be.
    ports: &'static [&'static str],
}

/// Packets that a thread sends and gets back.
#[derive(Default)]
struct Returned {
    stop: AtomicBool,
    sent: AtomicU64,
    returned: AtomicU64,
    /// Twice, out of order, or changed.
    wrong: AtomicU64,
}

/// All honest traffic.
pub(crate) struct Flows {
    pairs: Vec<Pair>,
    reflector: StartedProgram,
    bridge: Guard,
    frames: (Arc<Returned>, JoinHandle<()>),
    pings: (Arc<Returned>, JoinHandle<()>),
}

impl Flows {
    #[track_caller]
    pub(crate) fn start(home: &Home, net: &Net, this: &Path) -> Flows {
        // The hosts need not ask for each other's addresses, which would lose packets that no port has seen.
        for (from, at, to, end) in [(&net.near, "va", &net.far, "vb"), (&net.far, "vb", &net.near, "va")] {
            let address = if end == "vb" { "10.9.0.2" } else { "10.9.0.1" };
            let mac = to.mac(end).expect("an interface").map(|byte| format!("{byte:02x}")).join(":");
            from.ip(&["neigh", "replace", address, "lladdr", &mac, "nud", "permanent", "dev", at])
                .expect("a neighbour");
        }
        let bridge = net.start(home, program("bridge"), &["-w", "0", "-i", "netmap:va@conf:host-rings=1"], 2);
        let uid = USER.to_string();
        let mut reflect = net.near.command("setpriv");
        reflect.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "--"]).arg(this);
        let reflector = start_ready(reflect.args(["tenant", "reflect", "netmap:vc"]));
        let pairs = [
            ("pipe", "netmap:honest{1", "netmap:honest}1", "1", &[][..]),
            ("switch", "vale0:h1", "vale0:h2", "2", &["vale0:h1", "vale0:h2"]),
            ("switch of its own", "vale1:h1", "vale1:h2", "3", &["vale1:h1", "vale1:h2"]),
        ];
        let folder = home.folder().join("records");
        std::fs::create_dir(&folder).expect("a folder");
        std::os::unix::fs::chown(&folder, Some(USER), Some(USER)).expect("root");
        let pairs = pairs.map(|(name, from, to, sender, ports)| {
            let (sent, got) = (folder.join(format!("sent{sender}")), folder.join(format!("got{sender}")));
            let path = |path: &Path| path.display().to_string();
            let receiver = start_ready(&mut tenant(this, USER, &["receive", to, sender, &path(&got)]));
            let sender = start_ready(&mut tenant(this, USER, &["send", from, sender, &path(&sent)]));
            Pair { name, sender, receiver, sent, got, ports }
        });
        let (frames, pings) = (Arc::new(Returned::default()), Arc::new(Returned::default()));
        let tap = Tap::on(&net.far, "vd");
        let thread = |body: Box<dyn FnOnce() + Send>| std::thread::spawn(body);
        let (of_frames, of_pings, far) = (Arc::clone(&frames), Arc::clone(&pings), net.far.clone());
        let frames = (frames, thread(Box::new(move || send_frames(&tap, &of_frames))));
        let pings = (pings, thread(Box::new(move || ping(&far, &of_pings))));
        Flows { pairs: pairs.into(), reflector, bridge, frames, pings }
    }

    /// The name and the exit status of an honest program that has ended.
    pub(crate) fn ended(&mut self) -> Option<(&'static str, ExitStatus)> {
        let pairs = self.pairs.iter_mut();
        let pairs = pairs.flat_map(|p| [(p.name, &mut p.sender.guard), (p.name, &mut p.receiver.guard)]);
        let others = [("interface", &mut self.reflector.guard), ("host rings", &mut self.bridge)];
        pairs.chain(others).find_map(|(name, guard)| Some((name, guard.0.try_wait().expect("our child")?)))
    }

    /// Packets so far.
    pub(crate) fn progress(&self) -> String {
        let pairs = self.pairs.iter().map(|pair| {
            // Received first: what is sent meanwhile is not lost.
            let got = record(&pair.got)[0];
            format!("{} {got} of {}", pair.name, record(&pair.sent)[0])
        });
        let loops = [("interface", &self.frames.0), ("host rings", &self.pings.0)].map(|(name, returned)| {
            format!("{name} {} of {}", returned.returned.load(Relaxed), returned.sent.load(Relaxed))
        });
        pairs.chain(loops).collect::<Vec<_>>().join(", ")
    }

    /// Ends all of it, prints what was lost, and returns whether all of that was counted.
    pub(crate) fn finish(mut self, home: &Home) -> bool {
        for pair in &mut self.pairs {
            pair.sender.guard.signal(Signal::TERM);
            println!("  {}: sender ended: {}", pair.name, pair.sender.guard.wait());
        }
        self.frames.0.stop.store(true, Relaxed);
        self.pings.0.stop.store(true, Relaxed);
        // A panic of a thread has been printed.
        let joined = [self.frames.1.join().is_ok(), self.pings.1.join().is_ok()];
        let mut passed = joined == [true, true];
        let end = Instant::now() + LIMIT;
        let missing = |pair: &Pair, snapshot: &Snapshot| {
            let [got, wrong, others] = record(&pair.got);
            let lost = record(&pair.sent)[0].saturating_sub(got);
            let counted = dropped(snapshot, pair.ports);
            // Others send to a switch; whose packets were dropped is not counted.
            let others_wrong = if pair.ports.is_empty() { others } else { 0 };
            (lost, counted, wrong + others_wrong)
        };
        for pair in &self.pairs {
            // What was sent last is still on its way.
            let snapshot = loop {
                let snapshot = home.snapshot();
                let (lost, counted, _) = missing(pair, &snapshot);
                if lost <= counted || Instant::now() > end {
                    break snapshot;
                }
                std::thread::sleep(Duration::from_millis(50));
            };
            let (lost, counted, wrong) = missing(pair, &snapshot);
            passed &= report(pair.name, record(&pair.sent)[0], lost, counted, wrong);
        }
        let snapshot = home.snapshot();
        for (name, returned, ports) in
            [("interface, mediated", &self.frames.0, &["vc"][..]), ("host rings", &self.pings.0, &["va", "va^"])]
        {
            let (sent, got) = (returned.sent.load(Relaxed), returned.returned.load(Relaxed));
            let counted = dropped(&snapshot, ports);
            passed &= report(name, sent, sent.saturating_sub(got), counted, returned.wrong.load(Relaxed));
        }
        passed
    }
}

/// Prints a line; returns whether nothing was lost but what was counted.
fn report(name: &str, sent: u64, lost: u64, counted: u64, wrong: u64) -> bool {
    let passed = sent > 0 && lost <= counted && wrong == 0;
    let verdict = if passed { "ok  " } else { "FAIL" };
    println!("{verdict} {name:20} packets {sent:10}, lost {lost:6} of {counted} counted drops, wrong {wrong}");
    passed
}

/// Packets that the daemon has counted as dropped at these ports, from any sender.
fn dropped(snapshot: &Snapshot, ports: &[&str]) -> u64 {
    let ports = snapshot.ports.iter().filter(|port| ports.contains(&port.name.as_str()));
    ports.flat_map(|port| &port.rings).map(|ring| ring.dropped).sum()
}

/// Sends numbered frames from the far end of an interface, and checks those that come back.
fn send_frames(tap: &Tap, counts: &Returned) {
    let (mut sent, mut next, mut idle) = (0, 0, Instant::now());
    // At the end, until nothing has come for a while.
    while !counts.stop.load(Relaxed) || (next < sent && idle.elapsed() < Duration::from_secs(2)) {
        if !counts.stop.load(Relaxed) {
            (sent..sent + BATCH).for_each(|seq| tap.send(&packet::make(TAP_SENDER, seq)));
            sent += BATCH;
            counts.sent.store(sent, Relaxed);
        }
        let pause = Instant::now() + PAUSE;
        while let Some(frame) = tap.next(pause.saturating_duration_since(Instant::now())) {
            match packet::check(&frame) {
                Ok((TAP_SENDER, seq)) if seq >= next => {
                    next = seq + 1;
                    counts.returned.fetch_add(1, Relaxed);
                }
                _ => {
                    counts.wrong.fetch_add(1, Relaxed);
                }
            }
            idle = Instant::now();
        }
    }
}

/// Pings the near host, one after the other. What was sent and answered is the kernel's count: `ping` itself gives up
/// what is answered later than 20 ms, or twice the longest round trip, after the last packet.
fn ping(far: &Ns, counts: &Returned) {
    let before = echoes(far);
    while !counts.stop.load(Relaxed) {
        let pinged =
            far.command("ping").args(["-n", "-q", "-c", "50", "-i", "0.02", "-W", PING_LIMIT, "10.9.0.1"]).output();
        let text = String::from_utf8(pinged.expect("ping").stdout).expect("text");
        // "50 packets transmitted, 50 received, +2 duplicates, 0% packet loss, time 998ms"
        let duplicates = text.split(", ").find_map(|part| part.strip_prefix('+')?.strip_suffix(" duplicates"));
        counts.wrong.fetch_add(duplicates.map_or(0, |number| number.parse().unwrap_or(1)), Relaxed);
        count_echoes(far, before, counts);
    }
    let end = Instant::now() + LIMIT;
    while count_echoes(far, before, counts) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Stores how many pings were sent and answered since `before`; returns whether any was not answered.
fn count_echoes(far: &Ns, before: [u64; 2], counts: &Returned) -> bool {
    let now = echoes(far);
    let [sent, answered] = [now[0] - before[0], now[1] - before[1]];
    counts.sent.store(sent, Relaxed);
    counts.returned.store(answered, Relaxed);
    answered < sent
}

/// ICMP echo requests that a namespace has sent, and replies that it has received.
fn echoes(ns: &Ns) -> [u64; 2] {
    let text = ns.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).expect("a namespace").expect("a file");
    // A line of names, and a line of numbers.
    let mut lines = text.lines().filter(|line| line.starts_with("Icmp:")).map(str::split_whitespace);
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else { panic!("{text}") };
    let all: Vec<_> = names.zip(numbers).collect();
    ["OutEchos", "InEchoReps"].map(|wanted| {
        let number = all.iter().find(|(name, _)| *name == wanted).and_then(|(_, number)| number.parse().ok());
        number.unwrap_or_else(|| panic!("{wanted}: {text}"))
    })
}
