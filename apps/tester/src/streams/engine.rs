// SPDX-License-Identifier: BSD-2-Clause
//! The threads that send streams and measure them, or the one that does both.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tool_common::generator::{STALL_TIMEOUT, STOP_CHECK_INTERVAL, Stall, pin};
use tool_common::host::clock;
use unetmap::abi::{NS_MOREFRAG, NS_REPORT};
use unetmap::{Interest, Port, Pos, Ring};
use unetmap_streams::{BATCH, IntervalReport, Receiver, Sender, signature};

/// A sleep may end this much too late; the rest of a wait is spun.
const SLEEP_SLACK: u64 = 100_000;
/// Longest wait for the peer to release the sent slots, after a signal.
const RELEASE_TIMEOUT_STOPPED: Duration = Duration::from_millis(500);
/// After the last packet was sent, the receiver waits this long for one that is on its way.
pub(crate) const DRAIN: Duration = Duration::from_secs(1);

/// The clock of time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The same in all processes of a machine.
    Monotonic,
    /// For two machines, whose clocks are synchronized.
    Wall,
}

impl Clock {
    fn now(self) -> u64 {
        match self {
            Clock::Monotonic => clock::now_ns(),
            Clock::Wall => clock::wall_ns(),
        }
    }
}

/// The streams that are sent and measured.
pub(crate) struct Run<'a> {
    pub(crate) clock: Clock,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) tx: Option<(&'a Port, &'a Mutex<Sender>)>,
    pub(crate) rx: Option<&'a Port>,
    /// How often what arrived is reported.
    pub(crate) interval: Option<Duration>,
    /// A receiver without a sender ends when no packet arrives for a second, after the first.
    pub(crate) idle_exit: bool,
    /// A receiver without a sender ends after so many packets.
    pub(crate) count: u64,
    pub(crate) drain: Duration,
    /// The sender ends after this time, whatever is left to send.
    pub(crate) limit: Option<Duration>,
    /// Packets per second of the streams, if it is known that they are sent at even distances.
    pub(crate) pps: Option<f64>,
    /// One thread sends and receives, and never sleeps: no delay has a wake-up in it.
    pub(crate) one_thread: bool,
    /// The processor of the sender, then that of the receiver; empty: they are not pinned.
    pub(crate) cpus: &'a [usize],
}

/// Counts of the packets that arrived in an interval.
pub(crate) struct Interval {
    pub(crate) time: Duration,
    pub(crate) streams: Vec<IntervalReport>,
}

/// The result of a run.
#[derive(Default)]
pub(crate) struct Done {
    /// Time from the first packet's departure to the last one's.
    pub(crate) sending: Duration,
    /// The longest delay of a departure, in nanoseconds.
    pub(crate) late: u64,
    /// Sent slots that the peer has not released.
    pub(crate) unreleased: u64,
    pub(crate) receiver: Option<Receiver>,
}

/// State that both threads share.
#[derive(Default)]
struct Shared {
    /// Both threads end early: one has failed.
    failed: AtomicBool,
    /// The number of packets that were sent, once all are; `u64::MAX` before.
    sent: AtomicU64,
}

/// The next step of a sender.
enum Step {
    /// Go on.
    Sent,
    /// Wait so many nanoseconds for the next packet to be due.
    Early(u64),
    /// Wait for room in the ring.
    Full,
    /// End.
    Done,
}

/// The sending of streams.
struct Sending<'a> {
    run: &'a Run<'a>,
    port: &'a Port,
    ring: &'a Ring,
    sender: MutexGuard<'a, Sender>,
    begin: u64,
    /// Since `begin`: when the first packet left.
    first: Option<u64>,
    late: u64,
    sent: u64,
    stall: Stall,
    gave_up: bool,
    /// The ring's tail before the first packet.
    tail: Pos,
}

impl<'a> Sending<'a> {
    fn new(run: &'a Run<'a>, port: &'a Port, sender: &'a Mutex<Sender>) -> Result<Sending<'a>, String> {
        let ring = port.tx_rings().first().ok_or_else(|| format!("{}: it has no tx ring", port.spec()))?;
        Ok(Sending {
            run,
            port,
            ring,
            sender: lock(sender),
            begin: clock::now_ns(),
            first: None,
            late: 0,
            sent: 0,
            stall: Stall::default(),
            gave_up: false,
            tail: ring.tail(),
        })
    }

    /// Sends what is due.
    fn step(&mut self, shared: &Shared) -> Result<Step, String> {
        let Some(due) = self.sender.due() else { return Ok(Step::Done) };
        let now = clock::now_ns() - self.begin;
        let limit = self.run.limit.map_or(u64::MAX, |limit| limit.as_nanos() as u64); // below 584 years
        if self.run.ended(shared) || now > limit {
            return Ok(Step::Done);
        }
        if now < due {
            return Ok(Step::Early(due - now));
        }
        if self.ring.space() == 0 {
            let (slots, tail) = (u64::from(self.ring.num_slots()), self.ring.tail());
            self.gave_up = self.stall.full(self.port.spec(), || self.sent > slots || tail != self.tail);
            return Ok(if self.gave_up { Step::Done } else { Step::Full });
        }
        self.stall.sent();
        self.late = self.late.max(now - due);
        self.first.get_or_insert(now);
        self.sent += u64::from(self.run.fill(self.ring, &mut self.sender, now));
        self.port.txsync().map_err(|e| e.to_string())?;
        Ok(Step::Sent)
    }

    /// The result, and the wait for the peer to release the slots.
    fn end(&self, end: u64, shared: &Shared) -> Result<Done, String> {
        let limit = match self.gave_up {
            true => Duration::ZERO,
            false if self.run.ended(shared) => RELEASE_TIMEOUT_STOPPED,
            false => STALL_TIMEOUT,
        };
        let unreleased = release(self.port, self.ring, limit)?;
        let sending = Duration::from_nanos(end - self.begin - self.first.unwrap_or(end - self.begin));
        Ok(Done { sending, late: self.late, unreleased, receiver: None })
    }
}

/// The measuring of what arrives.
struct Receiving<'a> {
    run: &'a Run<'a>,
    port: &'a Port,
    reports: Option<mpsc::Sender<Interval>>,
    receiver: Receiver,
    /// Begin of the interval, and the time of the last packet.
    interval: Instant,
    last: Instant,
    /// By ring: bytes of the slots before the current one, of a packet with several.
    before: Vec<usize>,
}

impl<'a> Receiving<'a> {
    fn new(run: &'a Run<'a>, port: &'a Port, reports: Option<mpsc::Sender<Interval>>) -> Result<Receiving<'a>, String> {
        port.rxsync().map_err(|e| e.to_string())?;
        let now = Instant::now();
        Ok(Receiving {
            run,
            port,
            reports,
            receiver: run.pps.map_or_else(Receiver::default, Receiver::with_rate),
            interval: now,
            last: now,
            before: vec![0; port.rx_rings().len()],
        })
    }

    /// How long a wait for packets may be.
    fn wait(&self) -> Duration {
        let wait = self.run.interval.map_or(STOP_CHECK_INTERVAL, |every| every.saturating_sub(self.interval.elapsed()));
        wait.min(STOP_CHECK_INTERVAL).max(Duration::from_millis(1))
    }

    /// Measures what the last sync delivered. Returns true once all packets have arrived, or are lost.
    fn step(&mut self, shared: &Shared) -> bool {
        let mut got = false;
        for (ring, before) in self.port.rx_rings().iter().zip(&mut self.before) {
            got |= take(ring, before, &mut self.receiver, self.run.clock);
        }
        let now = Instant::now();
        if let (Some(every), Some(reports)) = (self.run.interval, &self.reports)
            && now - self.interval >= every
        {
            // The reader ends only after this thread.
            let _ = reports.send(Interval { time: now - self.interval, streams: self.receiver.end_interval() });
            self.interval = now;
        }
        if got {
            self.last = now;
        }
        self.run.all_arrived(&self.receiver, shared, now - self.last)
    }

    /// Releases the slots: the sender may be waiting for them.
    fn end(self) -> Result<Receiver, String> {
        self.port.rxsync().map_err(|e| e.to_string())?;
        Ok(self.receiver)
    }
}

impl Run<'_> {
    /// Runs until all packets were sent and have arrived, or are lost. Reports intervals to `reports`.
    pub(crate) fn run(&self, reports: Option<mpsc::Sender<Interval>>) -> Result<Done, String> {
        let shared = Shared { sent: AtomicU64::new(u64::MAX), ..Shared::default() };
        if let (true, Some((tx, sender)), Some(rx)) = (self.one_thread, self.tx, self.rx) {
            return self.by_one_thread(Sending::new(self, tx, sender)?, Receiving::new(self, rx, reports)?, &shared);
        }
        let or_fail = |result: Result<Done, String>| result.inspect_err(|_| shared.failed.store(true, Relaxed));
        std::thread::scope(|scope| {
            let receiving = self.rx.map(|port| {
                // The receiver must be ready before the first packet is sent.
                let (ready, is_ready) = mpsc::channel();
                let shared = &shared;
                let thread = scope.spawn(move || or_fail(self.receive(port, shared, reports, ready)));
                // Fails if the thread has already failed; its result says why.
                let _ = is_ready.recv();
                thread
            });
            let sent = self.tx.map(|(port, sender)| or_fail(self.send(port, sender, &shared)));
            let received =
                receiving.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            let sent = sent.transpose()?.unwrap_or_default();
            let received = received.transpose()?.unwrap_or_default();
            Ok(Done { receiver: received.receiver, ..sent })
        })
    }

    fn ended(&self, shared: &Shared) -> bool {
        self.stop.load(Relaxed) || shared.failed.load(Relaxed)
    }

    /// Sends and measures in turns, without a wait.
    fn by_one_thread(&self, mut tx: Sending<'_>, mut rx: Receiving<'_>, shared: &Shared) -> Result<Done, String> {
        pin(self.cpus, 0)?;
        let mut end = None;
        while !self.ended(shared) {
            if end.is_none() {
                match tx.step(shared)? {
                    Step::Sent | Step::Early(_) => {}
                    Step::Full => tx.port.txsync().map_err(|e| e.to_string())?,
                    Step::Done => {
                        end = Some(clock::now_ns());
                        shared.sent.store(tx.sent, Relaxed);
                    }
                }
            }
            rx.port.rxsync().map_err(|e| e.to_string())?;
            if rx.step(shared) {
                break;
            }
        }
        let receiver = rx.end()?;
        Ok(Done { receiver: Some(receiver), ..tx.end(end.unwrap_or_else(clock::now_ns), shared)? })
    }

    fn send(&self, port: &Port, sender: &Mutex<Sender>, shared: &Shared) -> Result<Done, String> {
        pin(self.cpus, 0)?;
        let mut sending = Sending::new(self, port, sender)?;
        loop {
            match sending.step(shared)? {
                Step::Sent => {}
                // What is in the ring has left before the wait.
                Step::Early(time) => wait(time),
                Step::Full => drop(port.poll(Interest::TX, Some(STOP_CHECK_INTERVAL)).map_err(|e| e.to_string())?),
                Step::Done => break,
            }
        }
        let done = sending.end(clock::now_ns(), shared)?;
        shared.sent.store(sending.sent, Relaxed);
        Ok(done)
    }

    /// Writes the packets that are due at `now` into free slots. Returns their number.
    fn fill(&self, ring: &Ring, sender: &mut Sender, now: u64) -> u32 {
        let mut n = 0;
        for slot in ring.available().take(BATCH as usize) {
            if sender.due().is_none_or(|due| due > now) {
                break;
            }
            let Some(packet) = sender.take(self.clock.now()) else { break };
            slot.frame().write(0, packet);
            slot.set_len_flags(packet.len() as u16, NS_REPORT); // checked to fit a buffer
            n += 1;
        }
        ring.advance(n);
        n
    }

    fn receive(
        &self,
        port: &Port,
        shared: &Shared,
        reports: Option<mpsc::Sender<Interval>>,
        ready: mpsc::Sender<()>,
    ) -> Result<Done, String> {
        // A receiver without a sender is the first thread.
        pin(self.cpus, usize::from(self.tx.is_some()))?;
        let mut receiving = Receiving::new(self, port, reports)?;
        drop(ready);
        while !self.ended(shared) {
            port.poll(Interest::RX, Some(receiving.wait())).map_err(|e| e.to_string())?;
            if receiving.step(shared) {
                break;
            }
        }
        Ok(Done { receiver: Some(receiving.end()?), ..Done::default() })
    }

    fn all_arrived(&self, receiver: &Receiver, shared: &Shared, idle: Duration) -> bool {
        if self.tx.is_none() {
            let packets = receiver.packets();
            return packets >= self.count || (self.idle_exit && packets > 0 && idle >= DRAIN);
        }
        // Duplicates may be on their way, too, so the number of packets does not tell.
        shared.sent.load(Relaxed) != u64::MAX && idle >= self.drain
    }
}

/// Measures the packets in a ring, and releases them. Returns whether there were any.
fn take(ring: &Ring, before: &mut usize, receiver: &mut Receiver, clock: Clock) -> bool {
    let space = ring.space();
    if space == 0 {
        return false;
    }
    // One time for all: that of the sync that delivered them.
    let now = clock.now();
    for slot in ring.first(space) {
        let (len, flags) = slot.len_flags();
        let len = usize::from(len);
        *before += len;
        if flags & NS_MOREFRAG != 0 {
            continue;
        }
        let mut tail = [0; signature::TAIL];
        let begin = len.saturating_sub(signature::TAIL);
        let got = slot.frame().read(begin, &mut tail[..len - begin]);
        receiver.packet(signature::find(&tail[..got]), std::mem::take(before), now);
    }
    ring.advance(space);
    true
}

/// Waits about `ns`, at most until the stop flag is to be checked.
fn wait(ns: u64) {
    if ns > SLEEP_SLACK {
        std::thread::sleep(Duration::from_nanos(ns - SLEEP_SLACK).min(STOP_CHECK_INTERVAL));
    } else {
        std::hint::spin_loop();
    }
}

/// Waits until the peer has released all slots. Returns the number of those that it has not.
fn release(port: &Port, ring: &Ring, limit: Duration) -> Result<u64, String> {
    let begin = Instant::now();
    loop {
        port.txsync().map_err(|e| e.to_string())?;
        if !ring.pending() {
            return Ok(0);
        }
        if begin.elapsed() > limit {
            return Ok(u64::from(ring.num_slots() - 1 - ring.space()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Locks a sender, which no thread leaves half changed.
pub(crate) fn lock(sender: &Mutex<Sender>) -> MutexGuard<'_, Sender> {
    sender.lock().unwrap_or_else(PoisonError::into_inner)
}
