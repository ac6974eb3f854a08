// SPDX-License-Identifier: BSD-2-Clause
//! Replacing the test's daemon by another process while ports are open.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use unetmap::{Interest, Port};

use crate::home::{Home, LIMIT, count_repeat, is_alive, program, summary, until};
use crate::net::{Tap, assert_works, policy_file};
use crate::packet;
use crate::traffic::{bytes_of, fill_some, open};

/// Packets of a round, in both directions.
const ROUND: u64 = 600;

/// A daemon says this that has waited too long for its successor, as it does on a machine with much else to do.
const TOO_LONG: &str = "took too long to take over: try again";

/// Runs `unetmapd --replace` with the test's policy, if it has one, and with this fault injected, if any: again while
/// that takes too long.
pub fn try_replace(home: &Home, fault: Option<&str>) -> Output {
    let policy = Some(policy_file(home)).filter(|policy| policy.exists());
    let end = Instant::now() + LIMIT;
    loop {
        let output = replace_with(home, policy.as_deref(), fault);
        let took_too_long = String::from_utf8_lossy(&output.stderr).contains(TOO_LONG);
        if !took_too_long || Instant::now() > end {
            return output;
        }
        count_repeat("a replacement of the daemon");
    }
}

/// The same with this policy.
pub fn replace_with(home: &Home, policy: Option<&Path>, fault: Option<&str>) -> Output {
    let mut command = Command::new(program("unetmapd"));
    command.arg("--replace").arg("--socket").arg(home.socket()).stdin(Stdio::null());
    policy.into_iter().for_each(|policy| _ = command.arg("--policy").arg(policy));
    command.env("LIBXDP_BPFFS", home.folder().join("bpf"));
    command.envs(fault.map(|fault| ("UNETMAP_FAULT", fault)));
    command.output().expect("the daemon's program")
}

/// Replaces the daemon; returns the process that serves now. The other one has exited.
#[track_caller]
pub fn replace(home: &Home) -> Pid {
    let before = home.daemon();
    let output = try_replace(home, None);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    until("the daemon that was replaced exits", || !is_alive(before));
    let after = home.daemon();
    assert_ne!(before, after, "another process");
    after
}

/// Runs `unetmapd --replace`, which is refused: the same process goes on. Returns the reason.
#[track_caller]
pub fn refused(home: &Home, fault: Option<&str>) -> String {
    let before = home.daemon();
    let output = try_replace(home, fault);
    let reason = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && is_alive(before), "{reason}");
    assert_eq!(home.daemon(), before, "the same process: {reason}");
    reason
}

/// Packets that the ports dropped, as senders or receivers.
pub fn drops_of(home: &Home, ports: &[&str]) -> u64 {
    let snapshot = home.snapshot();
    let rings = snapshot.ports.iter().filter(|port| ports.contains(&&*port.name)).flat_map(|port| &port.rings);
    rings.map(|ring| ring.dropped).sum()
}

/// Rounds of packets between a port and a tap, each of which has to arrive, until `work` is done. `work` is given a
/// function that waits for more.
#[track_caller]
pub fn rounds(port: &Port, tap: &Tap, work: impl FnOnce(&dyn Fn()) + Send) {
    let (done, mut slowest) = (AtomicU64::new(0), Duration::ZERO);
    let go_on = || {
        let before = done.load(Relaxed);
        until("more packets arrive", || done.load(Relaxed) > before + 1);
    };
    thread::scope(|scope| {
        let work = scope.spawn(|| work(&go_on));
        while !work.is_finished() {
            let start = Instant::now();
            assert_works(port, tap, done.load(Relaxed) * ROUND);
            slowest = slowest.max(start.elapsed());
            done.fetch_add(1, Relaxed);
        }
    });
    let packets = done.into_inner() * ROUND;
    summary(&format!(
        "{packets} packets sent and received, none missing; the slowest round of {ROUND} took {slowest:?}"
    ));
}

/// Numbered packets that a thread sends and another receives all the time, each as fast as the other allows.
pub struct Stream {
    name: String,
    stops: Arc<AtomicBool>,
    progress: Arc<Progress>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<Counts>,
}

/// Progress of a receiver while it runs.
#[derive(Default)]
struct Progress {
    /// Packets received so far.
    received: AtomicU64,
    /// The longest time without packets since this was last read, in nanoseconds.
    gap: AtomicU64,
    /// Packets that were sent in all, once that is known, plus one.
    end: AtomicU64,
}

/// Counts of a receiver.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Packets that arrived, in order.
    pub received: u64,
    /// Packets between these that did not.
    pub missing: u64,
    /// Packets that arrived again.
    pub repeated: u64,
    /// The longest time without packets.
    pub longest_gap: Duration,
}

impl Stream {
    /// Opens the two ports and starts sending from one to the other; `pause` follows each batch.
    #[track_caller]
    pub fn start(from: &str, to: &str, sender: u64, pause: Duration) -> Stream {
        let (tx, rx) = (open(from), open(to));
        let (stops, progress) = (Arc::new(AtomicBool::new(false)), Arc::new(Progress::default()));
        let (sender_stops, receiver_stops, counter) = (stops.clone(), stops.clone(), progress.clone());
        let stream = Stream {
            name: format!("{from} to {to}"),
            stops,
            progress,
            sender: thread::spawn(move || send_all_the_time(&tx, sender, &sender_stops, pause)),
            receiver: thread::spawn(move || receive_all_the_time(&rx, sender, &receiver_stops, &counter)),
        };
        stream.go_on();
        stream
    }

    /// Waits until more packets have arrived.
    #[track_caller]
    pub fn go_on(&self) {
        let received = || self.progress.received.load(Relaxed);
        let before = received();
        until(&format!("more packets from {}", self.name), || received() > before + 2000);
    }

    /// The longest time without packets since this was last called.
    fn take_gap(&self) -> Duration {
        Duration::from_nanos(self.progress.gap.swap(0, Relaxed))
    }

    /// Replaces the daemon five times, and has a replacement refused after each; more packets arrive after each.
    #[track_caller]
    pub fn goes_on_while_replaced(&self, home: &Home) {
        for _ in 0..5 {
            replace(home);
            self.go_on();
            refused(home, Some("successor"));
            self.go_on();
        }
    }

    /// Stops sending, and returns how many packets were sent, and what was received until nothing came any more.
    #[track_caller]
    pub fn stop(self) -> (u64, Counts) {
        let (sent, counts) = self.stop_after_crashes();
        assert_eq!(counts.repeated, 0, "{counts:?}");
        (sent, counts)
    }

    /// The same after crashes of the daemon, which may have delivered packets without having said so.
    #[track_caller]
    pub fn stop_after_crashes(self) -> (u64, Counts) {
        self.stops.store(true, Relaxed);
        let sent = self.sender.join().expect("a sender that ends");
        self.progress.end.store(sent + 1, Relaxed);
        (sent, self.receiver.join().expect("a receiver that ends"))
    }
}

fn send_all_the_time(port: &Port, sender: u64, stops: &AtomicBool, pause: Duration) -> u64 {
    let mut seq = 0;
    while !stops.load(Relaxed) {
        let ready = port.poll(Interest::TX, Some(LIMIT)).unwrap_or_else(|e| panic!("packet {seq}: {e}"));
        assert!(ready.tx(), "{}: no room for packet {seq} within {LIMIT:?}", port.spec());
        seq += fill_some(&port.tx_rings()[0], sender, seq, 256);
        port.txsync().unwrap_or_else(|e| panic!("packet {seq}: {e}"));
        if !pause.is_zero() {
            thread::sleep(pause);
        }
    }
    seq
}

/// Seconds without packets after which the last ones are lost: threads of the daemon wait for a processor, too.
const QUIET_SECONDS: u32 = 5;

fn receive_all_the_time(port: &Port, sender: u64, stops: &AtomicBool, progress: &Progress) -> Counts {
    let (ring, mut counts, mut next, mut last) = (&port.rx_rings()[0], Counts::default(), 0, None::<Instant>);
    let mut quiet = 0;
    while progress.end.load(Relaxed) != next + 1 {
        let stopped = stops.load(Relaxed);
        let ready = port.poll(Interest::RX, Some(Duration::from_secs(1))).unwrap_or_else(|e| panic!("{counts:?}: {e}"));
        quiet = if ready.rx() || !stopped { 0 } else { quiet + 1 };
        if quiet == QUIET_SECONDS {
            break;
        }
        let mut n = 0;
        for slot in ring.available() {
            n += 1;
            match packet::check(&bytes_of(&slot)) {
                Ok((of, seq)) if of == sender && seq >= next => {
                    (counts.missing, next) = (counts.missing + seq - next, seq + 1);
                    counts.received += 1;
                }
                Ok((of, _)) if of == sender => counts.repeated += 1,
                // Of another sender on the switch, or of the host.
                Ok(_) => {}
                Err(why) => panic!("{why:?} after packet {next}"),
            }
        }
        // The end of what was sent is no gap.
        if n > 0
            && let Some(last) = last.replace(Instant::now()).filter(|_| !stopped)
        {
            counts.longest_gap = counts.longest_gap.max(last.elapsed());
            progress.gap.fetch_max(last.elapsed().as_nanos() as u64, Relaxed);
        }
        ring.advance(n);
        progress.received.store(counts.received, Relaxed);
    }
    // The sender gets the last buffers back.
    port.rxsync().unwrap_or_else(|e| panic!("{counts:?}: {e}"));
    counts
}

/// Longest times without packets, for each of some events: of a switch, which the event stops, and of a pipe beside it,
/// which it does not touch. What both have is the machine's: the threads of either waited for a processor.
#[derive(Default)]
pub struct Gaps {
    switch: Vec<Duration>,
    pipe: Vec<Duration>,
}

impl Gaps {
    /// Performs an event, and notes the gaps until both have gone on.
    #[track_caller]
    pub fn during(&mut self, switch: &Stream, pipe: &Stream, event: impl FnOnce()) {
        let _ = (switch.take_gap(), pipe.take_gap());
        event();
        switch.go_on();
        pipe.go_on();
        self.switch.push(switch.take_gap());
        self.pipe.push(pipe.take_gap());
    }

    /// A line about them, and about those of the switch that are longer than `bound`.
    pub fn line(&self, bound: Duration) -> String {
        let both = || self.switch.iter().zip(&self.pipe);
        let more: Vec<_> = both().map(|(switch, pipe)| switch.saturating_sub(*pipe)).collect();
        let above = self.switch.iter().filter(|gap| **gap > bound).count();
        // Of these, those that would be above it without the machine's pause.
        let own = more.iter().filter(|gap| **gap > bound).count();
        format!(
            "gaps, median and longest: the switch {}, the pipe beside it {}, the difference at the same moment {}; \
             above {bound:?}: {above} of {}, by more than the pipe's gap {own}",
            spread(&self.switch),
            spread(&self.pipe),
            spread(&more),
            more.len(),
        )
    }
}

/// Median and maximum.
fn spread(times: &[Duration]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let of = |at: usize| sorted.get(at).copied().unwrap_or_default().as_secs_f64() * 1e3;
    format!("{:.1} and {:.1} ms", of(sorted.len() / 2), of(sorted.len().saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_of_the_machine_are_told_apart() {
        let times = |list: [u64; 4]| list.map(Duration::from_millis).to_vec();
        let gaps = Gaps { switch: times([3, 90, 70, 5]), pipe: times([1, 80, 2, 9]) };
        assert_eq!(
            gaps.line(Duration::from_millis(50)),
            "gaps, median and longest: the switch 70.0 and 90.0 ms, the pipe beside it 9.0 and 80.0 ms, the difference \
             at the same moment 10.0 and 68.0 ms; above 50ms: 2 of 4, by more than the pipe's gap 1"
        );
        assert!(Gaps::default().line(Duration::ZERO).contains("0 of 0"));
    }
}
