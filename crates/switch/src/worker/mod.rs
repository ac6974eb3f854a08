// SPDX-License-Identifier: BSD-2-Clause
//! The switch threads: each serves the transmit rings of some ports, and may deliver to all ports.
//!
//! ```text
//! state                          used by                     with several threads
//! transmit ring, its flow cache  the thread of its port      two for a moment, when a port moves: locked (`TxState`)
//! receive ring                   each thread that delivers   locked for each list or run of a batch (`RxState`)
//! MAC table, policies            all                         see `fdb`, `policy`; no lock while nothing changes
//! backpressure, lists, poll set, full ports: one thread each
//! ```
//! A receive ring is locked while packets are copied into it, never during a wait: a thread that waits on a futex,
//! yields or prefaults releases it first. A thread that is preempted meanwhile keeps the others from this one ring
//! until it runs again; they sleep on the lock, which leaves their CPU to it. Packets of one source are delivered
//! under the lock of its ring, in order.
//!
//! A thread without work polls for a short time, yields the CPU, and then sleeps until a client notifies it. No timer
//! runs meanwhile. As soon as it wakes up it takes its other wake-up requests back, so that clients that send then
//! notify nothing. Many slow senders would wake it for a few packets each: after a short sleep with many busy rings it
//! sleeps by the clock, until it then finds nothing.
//!
//! A pass takes from each ring that it polls what the ring has, at most a batch ([`BATCH_SLOTS`]): round robin by
//! slots. A slot holds at most one buffer, so nothing is carried over from a round to the next.
//!
//! A thread that panics continues at once with its last configuration. What the ring that it was serving had sent is
//! dropped and counted, as it would cause the same panic again.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use unetmap_mem::FutexWaitSet;
use unetmap_sys::clock::{now_ns, spin_hint};
use unetmap_sys::event::{Epoll, EventFlags};
use unetmap_sys::process;
use unetmap_sys::thread::current_cpu;
use unetmap_sys::wait::{NAP, Wait};

use crate::backpressure::Backpressure;
use crate::forward::DestinationLists;
use crate::port::{PortTx, SwitchPort};
use crate::tuning::{
    BATCH_SLOTS, EXTRA_PASSES, FALLBACK_SLEEP, FUTEX_WAIT_RINGS, NAP_RINGS, PASSES_BEFORE_YIELD, SHORT_SLEEP,
};

mod batch;
mod config;
mod fanout;
mod full_ports;
mod idle_listener;
pub mod latency;
mod mailbox;
mod policed;
mod poll_set;
mod resolve;
mod sched_batch;

pub use config::SwitchConfig;
pub use mailbox::Mailbox;

use fanout::FanoutLists;
use full_ports::FullPorts;
use idle_listener::IdleListener;
use latency::Sampler;
use poll_set::{PollSet, RingId};
use sched_batch::SchedBatch;

/// Token of the thread's own doorbell, among those of its ports.
const OWN_DOORBELL: u64 = u64::MAX;

/// Runs a switch thread until the mailbox stops it.
pub fn run(mailbox: &Mailbox) {
    unetmap_mem::register_publisher();
    mailbox.tid.store(process::tid(), Relaxed);
    let (mut worker, mut applied) = (Worker::default(), 0);
    // State that a panic leaves incomplete is rebuilt: a ring's state changes only when its packets are forwarded.
    while catch_unwind(AssertUnwindSafe(|| work(&mut worker, &mut applied, mailbox))).is_err() {
        worker.recover();
    }
}

fn work(worker: &mut Worker, applied: &mut u64, mailbox: &Mailbox) {
    let mut wait = Wait::default();
    loop {
        if mailbox.published.load(Acquire) != *applied && worker.apply_config(applied, mailbox) {
            return;
        }
        let moved = (0..PASSES_BEFORE_YIELD).any(|_| worker.pass() > 0);
        if moved || worker.poll_for_reply() || worker.backpressure.flush_wakeups() || worker.nap() {
            wait.restart();
            continue;
        }
        // The time of a yield counts.
        wait.spins();
        let outcome = worker.yield_to_client();
        let not_needed = matches!(outcome, Yield::NotNeeded);
        // Packets that arrive soon need not wait for a system call.
        if matches!(outcome, Yield::Woken) || not_needed && worker.poll_longer() {
            wait.restart();
            continue;
        }
        if not_needed {
            // Programs other than clients may wait for this CPU.
            std::thread::yield_now();
        }
        if matches!(outcome, Yield::MustSleep) || !wait.spins() {
            if let Err(e) = worker.sleep(mailbox)
                && e.kind() != io::ErrorKind::Interrupted
            {
                // No descriptor or memory is left to wait with; other programs may release some.
                std::thread::sleep(FALLBACK_SLEEP);
            }
            wait.restart();
        }
    }
}

/// The outcome of [`Worker::yield_to_client`].
enum Yield {
    /// No client needs the CPU.
    NotNeeded,
    /// A client got it, and some ring has new slots.
    Woken,
    /// A client got it, and no ring has new slots.
    TimedOut,
    /// A client needs it, but too many rings sent lately for one futex wait.
    MustSleep,
}

#[derive(Default)]
struct Worker {
    lists: DestinationLists,
    fanout_lists: FanoutLists,
    full_ports: FullPorts,
    backpressure: Backpressure,
    sched: SchedBatch,
    sampler: Sampler,
    poll_set: PollSet,
    /// Many clients send now and then: the next sleep is a nap.
    naps: bool,
    /// The ring that is being served.
    serving: Option<RingId>,
    switches: Arc<Vec<SwitchConfig>>,
    /// The doorbells of the present ports, and the thread's own, for sleeping.
    doorbells: Option<Epoll>,
    /// Started by the first futex wait with idle rings.
    idle_listener: Option<IdleListener>,
    events: Vec<(u64, EventFlags)>,
}

impl Worker {
    /// Applies the last published configuration, after forwarding what the present ports have sent; true if the
    /// thread is to stop.
    fn apply_config(&mut self, applied: &mut u64, mailbox: &Mailbox) -> bool {
        // The lock is not held meanwhile: the daemon's main thread takes it. What clients sent before a configuration
        // that is published meanwhile is forwarded, too.
        let mut config = loop {
            let published = mailbox.published.load(Acquire);
            self.drain();
            self.full_ports.flush();
            let config = mailbox.config.lock().unwrap_or_else(PoisonError::into_inner);
            if mailbox.published.load(Acquire) == published {
                break config;
            }
        };
        (self.doorbells, self.serving, self.naps) = (None, None, false);
        self.backpressure.flush_wakeups();
        self.backpressure.forget_ports();
        self.sched.reset();
        self.sampler.reset();
        self.disarm_doorbells();
        let before = std::mem::replace(&mut self.switches, config.switches.clone());
        self.poll_set = poll_set(&self.switches);
        wake_other_threads(&before, if config.stop { &[] } else { &self.switches });
        *applied = mailbox.published.load(Acquire);
        config.applied = *applied;
        mailbox.applied.notify_all();
        mailbox.doorbell.clear();
        config.stop
    }

    /// Polls once the rings that are due; returns how many slots were taken.
    fn pass(&mut self) -> u32 {
        let moved = self.poll_set.pass(now_ns, |id| {
            let (switch, port, ring) = ring_of(&self.switches, id).filter(|(_, _, ring)| ring.may_have_slots())?;
            self.backpressure.begin_batch(id.0, port.index());
            self.serving = Some(id);
            self.sampler.before(id, || ring.queued(), now_ns);
            let lists = (&mut self.lists, &mut self.fanout_lists, &mut self.full_ports);
            let moved = batch::serve(lists, switch, (port, id.2, ring), &self.backpressure);
            self.sampler.after(id, moved, &switch.latency, now_ns);
            self.serving = None;
            Some(moved)
        });
        self.sched.add_slots(moved);
        moved
    }

    /// Polls some more, for packets that arrive soon; true if any did.
    fn poll_longer(&mut self) -> bool {
        (0..EXTRA_PASSES).inspect(|_| spin_hint()).any(|_| self.pass() > 0)
    }

    /// If a few packets went to a client that is awake on another CPU, polls for its reply before the CPU is yielded
    /// to a client, which probably waits for that reply. True if packets came.
    fn poll_for_reply(&mut self) -> bool {
        let Some((switch, port)) = self.backpressure.take_last_receiver() else { return false };
        let receiver = self.switches.get(switch).and_then(|switch| switch.member(port));
        let due = self.sched.is_small_turn()
            && receiver.is_some_and(|port| port.may_reply(current_cpu()))
            && self.backpressure.should_poll_for_reply();
        let came = due && self.poll_longer();
        if came {
            self.backpressure.reply_arrived();
        }
        came
    }

    /// After a panic: continues with the same configuration, without the packets that caused the panic.
    #[cold]
    fn recover(&mut self) {
        let switches = std::mem::take(&mut self.switches);
        if let Some(id) = self.serving
            && let Some((_, _, ring)) = ring_of(&switches, id)
        {
            ring.drop_sent(&self.backpressure);
        }
        self.full_ports.flush();
        self.backpressure.flush_wakeups();
        self.sched.reset();
        *self = Worker { poll_set: poll_set(&switches), switches, ..Worker::default() };
    }

    /// Returns the ports that sent or received last.
    fn recent(&self) -> impl Iterator<Item = &SwitchPort> {
        self.backpressure.recent().filter_map(|(switch, port)| self.switches.get(switch)?.member(port))
    }

    /// Without work: if a client needs this CPU, yields it by a futex wait until some ring has new slots. Unlike a
    /// sleep, a futex wait needs no barrier, and ends without a doorbell.
    fn yield_to_client(&mut self) -> Yield {
        let cpu = current_cpu();
        // Calls `needs_cpu` for each port, as it counts yields without progress.
        if self.recent().filter(|port| port.needs_cpu(cpu)).count() == 0 {
            return Yield::NotNeeded;
        }
        self.sched.end_turn();
        // If idle rings cannot be armed, all rings end the wait by their words, if they are not too many.
        let armed_now = self.poll_set.len() > FUTEX_WAIT_RINGS && self.arm_idle_doorbells().unwrap_or(false);
        let mut wait = FutexWaitSet::default();
        let mut rings = self.poll_set.futex_waited().filter_map(|id| ring_of(&self.switches, id));
        // The idle listener is added last: a kernel that supports one word only waits for a ring.
        let all_added = rings.all(|(_, _, ring)| ring.add_to_wait(&mut wait));
        if !all_added || !self.idle_listener.iter().all(|listener| wait.add_consumer(listener.words())) {
            return Yield::MustSleep;
        }
        drop(rings);
        let has_slots = |id| ring_of(&self.switches, id).is_some_and(|(_, _, ring)| ring.may_have_slots());
        let any_fired = || self.idle_listener.iter().any(IdleListener::any_fired);
        // Clients with doorbells armed earlier have notified if they sent. Clients armed just now may have sent
        // before they saw it, so their rings are polled again.
        let woken = wait.wait(|| !any_fired() && !self.poll_set.any_sent(armed_now, has_slots));
        let all = armed_now || any_fired();
        self.poll_set.include_idle(all);
        if woken { Yield::Woken } else { Yield::TimedOut }
    }

    /// Before a futex wait: arms the doorbells of rings that have been idle for long, so that their words need not be
    /// part of the wait. True if any was armed now.
    fn arm_idle_doorbells(&mut self) -> io::Result<bool> {
        let listener = match &self.idle_listener {
            Some(listener) => listener,
            None => self.idle_listener.insert(IdleListener::new()?),
        };
        listener.take_fired().into_iter().for_each(|port| self.poll_set.doorbell_fired(port));
        let any_armed = self.poll_set.arm_idle(now_ns(), |id, first_of_port| {
            let Some((_, port, ring)) = ring_of(&self.switches, id) else { return false };
            if first_of_port {
                // Another ring of the port may have notified it: the poll that follows finds its slots.
                port.doorbell.clear();
                if listener.arm((id.0, id.1), &port.doorbell).is_err() {
                    return false;
                }
            }
            ring.request_wakeup();
            true
        });
        if any_armed {
            unetmap_mem::fence_before_sleep();
        }
        Ok(any_armed)
    }

    /// Before the configuration changes: disarms the doorbells of their ports.
    fn disarm_doorbells(&mut self) {
        if let Some(listener) = &self.idle_listener {
            self.switches.iter().flat_map(SwitchConfig::own).for_each(|port| listener.disarm(&port.doorbell));
        }
    }

    /// Before ports leave: forwards what they have sent until now, in at most as many passes as a ring has batches.
    fn drain(&mut self) {
        for _ in 0..unetmap_mem::Slots::MAX as usize / BATCH_SLOTS {
            self.poll_set.include_idle(true);
            if self.pass() == 0 {
                break;
            }
        }
    }

    /// If a nap is due, naps, then polls all rings; true if so. The next sleep is of the same kind if any had slots.
    fn nap(&mut self) -> bool {
        if !self.naps {
            return false;
        }
        self.full_ports.settle();
        std::thread::sleep(NAP);
        self.poll_set.include_idle(true);
        self.naps = self.pass() > 0 && self.poll_set.busy() > NAP_RINGS;
        true
    }

    /// Sleeps until a doorbell is notified.
    fn sleep(&mut self, mailbox: &Mailbox) -> io::Result<()> {
        self.full_ports.settle();
        self.sched.reset();
        self.poll_set.include_idle(true);
        self.switches.iter().flat_map(SwitchConfig::own_rings).for_each(|(_, _, ring)| ring.request_wakeup());
        self.switches.iter().flat_map(SwitchConfig::own).for_each(|port| port.unset_cpu());
        unetmap_mem::fence_before_sleep();
        let start = Instant::now();
        let any_sent = self.switches.iter().flat_map(SwitchConfig::own_rings).any(|(.., ring)| ring.may_have_slots());
        let result = if any_sent { Ok(()) } else { self.wait_for_doorbells(mailbox) };
        // Rings with an armed doorbell keep their requests: they are polled only when it fires.
        let polled = self.poll_set.futex_waited().filter_map(|id| ring_of(&self.switches, id));
        polled.for_each(|(_, _, ring)| ring.withdraw_wakeup());
        self.naps = self.poll_set.busy() > NAP_RINGS && start.elapsed() < SHORT_SLEEP;
        result
    }

    fn wait_for_doorbells(&mut self, mailbox: &Mailbox) -> io::Result<()> {
        let doorbells = match &self.doorbells {
            Some(doorbells) => doorbells,
            None => {
                let doorbells = Epoll::new()?;
                doorbells.add(&mailbox.doorbell, OWN_DOORBELL, true, false)?;
                for (n, switch) in self.switches.iter().enumerate() {
                    for port in switch.own() {
                        let token = (n as u64) << 8 | u64::from(port.index());
                        doorbells.add(&port.doorbell, token, true, false)?;
                    }
                }
                self.doorbells.insert(doorbells)
            }
        };
        doorbells.wait(&mut self.events, None)?;
        // Clears only those that fired: clearing one costs a system call.
        for &(token, _) in self.events.iter().filter(|(token, _)| *token != OWN_DOORBELL) {
            let (switch, port) = ((token >> 8) as usize, token as u8);
            if let Some(port) = self.switches.get(switch).and_then(|switch| switch.member(port)) {
                port.doorbell.clear();
            }
            // The client may have cleared the request for the next notification.
            self.poll_set.doorbell_fired((switch, port));
        }
        Ok(())
    }
}

/// Notifies the doorbells of ports that the thread no longer serves. It may have been held up while another thread was
/// given them, and have taken back that thread's requests, or cleared a doorbell that both waited for.
fn wake_other_threads(before: &[SwitchConfig], now: &[SwitchConfig]) {
    let mut own: Vec<_> = now.iter().flat_map(SwitchConfig::own).map(Arc::as_ptr).collect();
    own.sort_unstable();
    let left = before.iter().flat_map(SwitchConfig::own).filter(|port| own.binary_search(&Arc::as_ptr(port)).is_err());
    left.for_each(|port| port.wake_worker());
}

/// Returns the poll set of the rings that the thread serves.
fn poll_set(switches: &[SwitchConfig]) -> PollSet {
    let rings_of = |(n, switch)| {
        SwitchConfig::own_rings(switch).map(move |(port, number, ring)| ((n, port.index(), number), ring.prod_word()))
    };
    PollSet::new(switches.iter().enumerate().flat_map(rings_of))
}

#[inline(always)]
fn ring_of(switches: &[SwitchConfig], (switch, port, number): RingId) -> Option<(&SwitchConfig, &SwitchPort, &PortTx)> {
    let switch = switches.get(switch)?;
    let port = switch.member(port)?;
    Some((switch, port, port.tx.get(number)?))
}
