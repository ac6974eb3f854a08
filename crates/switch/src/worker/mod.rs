//! The threads of the switches: each looks after some ports, and may deliver to all.
//!
//! ```text
//! what                        whose                          with several threads
//! transmit ring, its memory   the thread that has its port   two for a moment, when a port moves: one at a time (`Sent`)
//! receive ring                whoever delivers               locked once for each list or run of a batch (`Filled`)
//! learning table, rules       all                            see there; no lock where nothing changes
//! naps, lists, what is asked  each its own
//! ```
//! A receive ring is locked while a batch is copied, and never while anybody waits: whoever naps, yields or has memory made lets
//! go of it first. A thread that loses its processor meanwhile keeps the others from this one ring until it goes on; they sleep,
//! and so leave it a processor. What one source sends is delivered under the lock of its ring, in order.
//!
//! A thread that finds nothing to do spins a little, lets others run, and then sleeps until a client rings. No timer runs
//! meanwhile.
//!
//! A thread that panics goes on at once, with what it was told last. What the ring had sent that it was serving is dropped,
//! and counted: it would fail at the same packet again.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use unetmap_mem::Nap;
use unetmap_sys::clock::{now_ns, spin_hint};
use unetmap_sys::event::{Epoll, EventFlags};
use unetmap_sys::thread::current_cpu;
use unetmap_sys::process;

use crate::forward::{BATCH, Lists};
use crate::worker::backpressure::Patience;
use crate::port::{Attached, Incoming, Outgoing};

mod idle_listener;
mod commands;
mod poll_set;
mod policed;
pub(crate) mod backpressure;
mod batch;
mod fanout;
mod sched_batch;
mod snapshot;

pub use commands::Post;
pub use snapshot::View;

use idle_listener::Ear;
use poll_set::{Ring, Rounds};
use batch::serve;
use fanout::Spread;
use sched_batch::Turns;

/// How long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long it rests where it cannot be woken; what comes waits no longer than this.
const BLIND_NAP: Duration = Duration::from_millis(1);
/// Looks at all rings before a client may have the processor.
const LOOKS: u32 = 4;
/// Further ones, each after a spin hint, before anybody may: a microsecond or more.
const MORE_LOOKS: u32 = 32;
/// Rings that are heard in a nap whether or not they are quiet: they are few.
const HEARD_AT_ONCE: usize = 8;
/// The thread's own bell, among the numbers of its ports'.
const OWN_BELL: u64 = u64::MAX;

/// Works until it is told to end.
pub fn run(post: &Post) {
    unetmap_mem::register_publisher();
    post.tid.store(process::tid(), Relaxed);
    let (mut worker, mut taken) = (Worker::default(), 0);
    // What a panic leaves half done is made anew, or was not begun: a ring's state changes when its packets are done.
    while catch_unwind(AssertUnwindSafe(|| work(&mut worker, &mut taken, post))).is_err() {
        worker.recover();
    }
}

fn work(worker: &mut Worker, taken: &mut u64, post: &Post) {
    let mut idle_since = Instant::now();
    loop {
        if post.ordered.load(Acquire) != *taken {
            let mut orders = post.orders.lock().unwrap_or_else(PoisonError::into_inner);
            worker.drain();
            (worker.wake, worker.serving) = (None, None);
            worker.patience.pay();
            worker.patience.forget();
            worker.turns.forget();
            worker.listens_no_more();
            worker.views = orders.views.clone();
            worker.rounds = rounds(&worker.views);
            *taken = post.ordered.load(Acquire);
            orders.taken = *taken;
            post.done.notify_all();
            post.bell.clear();
            if orders.end {
                return;
            }
        }
        if (0..LOOKS).any(|_| worker.pass() > 0) || worker.awaits_answer() {
            idle_since = Instant::now();
            continue;
        }
        if worker.patience.pay() {
            idle_since = Instant::now();
            continue;
        }
        let given = worker.give_way();
        match given {
            Given::Woken => idle_since = Instant::now(),
            Given::ToNobody => {
                // What comes soon need not wait for a system call.
                if worker.looks_longer() {
                    idle_since = Instant::now();
                    continue;
                }
                // Programs that are no clients may wait for this very processor.
                std::thread::yield_now();
            }
            Given::InVain | Given::OnlyBySleep => {}
        }
        if matches!(given, Given::OnlyBySleep) || idle_since.elapsed() >= SPIN {
            if let Err(e) = worker.sleep(post)
                && e.kind() != io::ErrorKind::Interrupted
            {
                // No descriptor or memory is left to sleep with; others may give some back.
                std::thread::sleep(BLIND_NAP);
            }
            idle_since = Instant::now();
        }
    }
}

/// What became of the processor that a thread without anything to do has.
enum Given {
    /// No client needs it.
    ToNobody,
    /// One got it, until something moved.
    Woken,
    /// One got it, and nothing moved.
    InVain,
    /// One needs it, and too many rings have sent lately to nap.
    OnlyBySleep,
}

#[derive(Default)]
struct Worker {
    lists: Lists,
    spread: Spread,
    patience: Patience,
    turns: Turns,
    rounds: Rounds,
    /// The ring that is being served.
    serving: Option<Ring>,
    views: Arc<Vec<View>>,
    /// What wakes the thread, for the ports it has now.
    wake: Option<Epoll>,
    /// What wakes it from naps, since it had quiet rings.
    ear: Option<Ear>,
    events: Vec<(u64, EventFlags)>,
}

impl Worker {
    /// Looks once at the rings that it is time for; returns how many slots were taken.
    fn pass(&mut self) -> u32 {
        let moved = self.rounds.pass(now_ns, |at| {
            let (view, port, ring) = ring_of(&self.views, at).filter(|(_, _, ring)| ring.moved())?;
            self.patience.begin(at.0, port.index);
            self.serving = Some(at);
            let moved = serve((&mut self.lists, &mut self.spread), view, (port, at.2, ring), &self.patience);
            self.serving = None;
            Some(moved)
        });
        self.turns.took(moved);
        moved
    }

    /// Looks on, for what comes soon; whether anything did.
    fn looks_longer(&mut self) -> bool {
        (0..MORE_LOOKS).inspect(|_| spin_hint()).any(|_| self.pass() > 0)
    }

    /// A few packets went to a client that is awake on another processor: looks whether it answers before this one is given to
    /// anybody, who is likely to wait for that answer.
    fn awaits_answer(&mut self) -> bool {
        let Some((view, port)) = self.patience.delivered_to() else { return false };
        let receiver = self.views.get(view).and_then(|view| view.member(port));
        let due = self.turns.is_small()
            && receiver.is_some_and(|port| port.may_answer(current_cpu()))
            && self.patience.awaits_answer();
        let came = due && self.looks_longer();
        if came {
            self.patience.was_answered();
        }
        came
    }

    /// After a panic: goes on with what it was told, without what it failed at.
    #[cold]
    fn recover(&mut self) {
        let views = std::mem::take(&mut self.views);
        if let Some(at) = self.serving
            && let Some((_, _, ring)) = ring_of(&views, at)
        {
            ring.skip(&self.patience);
        }
        self.patience.pay();
        self.turns.forget();
        *self = Worker { rounds: rounds(&views), views, ..Worker::default() };
    }

    /// The ports that took part last.
    fn recent(&self) -> impl Iterator<Item = &Attached> {
        self.patience.recent().filter_map(|(view, port)| self.views.get(view)?.member(port))
    }

    /// There is nothing to do: a client that needs this processor gets it until somebody has sent. Unlike a sleep, a nap needs
    /// no barrier, and its end no bell.
    fn give_way(&mut self) -> Given {
        let cpu = current_cpu();
        // Each is asked: what it was given in vain is counted.
        if self.recent().filter(|port| port.needs(cpu)).count() == 0 {
            return Given::ToNobody;
        }
        self.turns.end();
        // Without an ear all are heard one by one, if they are not too many.
        let asked = self.rounds.len() > HEARD_AT_ONCE && self.ask_quiet().unwrap_or(false);
        let mut nap = Nap::default();
        let mut rings = self.rounds.heard().filter_map(|at| ring_of(&self.views, at));
        // The ear last: where a nap can have only one word, it is a ring's.
        let all = rings.all(|(_, _, ring)| ring.hear(&mut nap));
        if !all || !self.ear.iter().all(|ear| nap.as_consumer(ear.line())) {
            return Given::OnlyBySleep;
        }
        drop(rings);
        let moved = |at| ring_of(&self.views, at).is_some_and(|(_, _, ring)| ring.moved());
        let heard_nothing = || self.ear.iter().all(Ear::heard_nothing);
        // Who was to ring a bell before has rung it, or has not sent; who is to since now may have sent before it knew.
        let woken = nap.take(|| heard_nothing() && !self.rounds.stirs(asked, moved));
        let all = asked || !heard_nothing();
        self.rounds.rests(all);
        if woken { Given::Woken } else { Given::InVain }
    }

    /// Before a nap: rings that have been quiet for long need not be heard one by one. They are to ring their bells.
    /// Whether any were asked now.
    fn ask_quiet(&mut self) -> io::Result<bool> {
        let ear = match &self.ear {
            Some(ear) => ear,
            None => self.ear.insert(Ear::new()?),
        };
        ear.heard().into_iter().for_each(|which| self.rounds.rang(which));
        let asked = self.rounds.ask_quiet(|at, first| {
            let Some((_, port, ring)) = ring_of(&self.views, at) else { return false };
            if first {
                // It may have gone off for another ring: the look that follows sees that one.
                port.bell.clear();
                if ear.listen((at.0, at.1), &port.bell).is_err() {
                    return false;
                }
            }
            ring.ask();
            true
        });
        if asked {
            unetmap_mem::fence_before_sleep();
        }
        Ok(asked)
    }

    /// Before the views change: the ear lets go of their bells.
    fn listens_no_more(&mut self) {
        if let Some(ear) = &self.ear {
            self.views.iter().flat_map(View::own).for_each(|port| ear.forget(&port.bell));
        }
    }

    /// Before ports leave: what they had sent until now still goes out. At most as many rounds as a ring has batches.
    fn drain(&mut self) {
        for _ in 0..unetmap_mem::Slots::MAX as usize / BATCH {
            self.rounds.rests(true);
            if self.pass() == 0 {
                break;
            }
        }
    }

    fn sleep(&mut self, post: &Post) -> io::Result<()> {
        self.turns.forget();
        self.rounds.rests(true);
        self.views.iter().flat_map(View::own_rings).for_each(|(_, _, ring)| ring.ask());
        self.views.iter().flat_map(View::own).flat_map(|port| &port.rx).for_each(Incoming::sleeps);
        unetmap_mem::fence_before_sleep();
        if self.views.iter().flat_map(View::own_rings).any(|(_, _, ring)| ring.moved()) {
            return Ok(());
        }
        let ports = || self.views.iter().zip(0..).flat_map(|(view, n)| view.own().map(move |port| (n, port)));
        let wake = match &self.wake {
            Some(wake) => wake,
            None => {
                let wake = Epoll::new()?;
                wake.add(&post.bell, OWN_BELL, true, false)?;
                for (token, (_, port)) in ports().enumerate() {
                    wake.add(&port.bell, token as u64, true, false)?;
                }
                self.wake.insert(wake)
            }
        };
        wake.wait(&mut self.events, None)?;
        // Only those that rang: a silence costs a system call.
        for &(token, _) in self.events.iter().filter(|(token, _)| *token != OWN_BELL) {
            if let Some((view, port)) = usize::try_from(token).ok().and_then(|n| ports().nth(n)) {
                port.bell.clear();
                // Who rang may have taken back the wish that it rings the next time.
                self.rounds.rang((view, port.index));
            }
        }
        Ok(())
    }
}

/// For the rings that the thread looks after.
fn rounds(views: &[View]) -> Rounds {
    let of =
        |(n, view)| View::own_rings(view).map(move |(port, number, ring)| ((n, port.index, number), ring.sent_word()));
    Rounds::of(views.iter().enumerate().flat_map(of))
}

#[inline(always)]
fn ring_of(views: &[View], (view, port, number): Ring) -> Option<(&View, &Attached, &Outgoing)> {
    let view = views.get(view)?;
    let port = view.member(port)?;
    Some((view, port, port.tx.get(number)?))
}
