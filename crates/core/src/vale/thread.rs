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
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use unetmap_mem::{Nap, Span};
use unetmap_sys::Bell;
use unetmap_sys::clock::spin_hint;
use unetmap_sys::event::{Epoll, EventFlags};
use unetmap_sys::nap::this_cpu;
use unetmap_sys::process;

use super::forward::{BATCH, Cut, Lists, Lost, MAX_FRAGS, Memory, Packet, SHORT_RUN, Target, decide};
use super::learn::Table;
use super::patience::Patience;
use super::port::{Attached, Batch, Incoming, Outgoing, Sent};
use super::rules::Book;

mod ear;
mod rounds;
mod ruled;
mod spread;
mod turns;

use ear::Ear;
use rounds::{Ring, Rounds};
use spread::Spread;
use turns::Turns;

/// How long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long it rests where it cannot be woken; what comes waits no longer than this.
const BLIND_NAP: Duration = Duration::from_millis(1);
/// Looks at all rings before a client may have the processor.
const LOOKS: u32 = 4;
/// Further ones, each after a spin hint, before anybody may: a microsecond or more.
const MORE_LOOKS: u32 = 32;
/// Slots ahead of which the headers of packets that are decided one by one are fetched.
const AHEAD: u32 = 8;
/// Rings that are heard in a nap whether or not they are quiet: they are few.
const HEARD_AT_ONCE: usize = 8;
/// How long the end of a port may wait for a thread.
const LET_GO_LIMIT: Duration = Duration::from_secs(5);

/// The thread's own bell, among the numbers of its ports'.
const OWN_BELL: u64 = u64::MAX;

/// A switch as one thread sees it.
pub struct View {
    table: Arc<Table>,
    members: Vec<Option<Arc<Attached>>>,
    own: Vec<u8>,
    /// The numbers of the only two members, where there are two.
    pair: Option<[u8; 2]>,
    rules: Book,
}

/// What a thread and those who give it work share.
pub struct Post {
    /// Moves with each order.
    ordered: AtomicU64,
    orders: Mutex<Orders>,
    done: Condvar,
    bell: Bell,
    /// What the kernel calls the thread; 0: it did not begin yet.
    tid: AtomicU32,
}

struct Orders {
    views: Arc<Vec<View>>,
    /// The order that the thread works by.
    taken: u64,
    end: bool,
}

impl Post {
    /// For a thread that has nothing to do yet.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Post> {
        Ok(Post {
            ordered: AtomicU64::new(0),
            orders: Mutex::new(Orders { views: Arc::default(), taken: 0, end: false }),
            done: Condvar::new(),
            bell: Bell::new()?,
            tid: AtomicU32::new(0),
        })
    }

    /// Tells the thread what to look after from now on, which it does when [`Post::let_go`] says so of the number returned.
    pub fn order(&self, views: Vec<View>) -> u64 {
        self.change(|orders| orders.views = Arc::new(views))
    }

    /// Waits until the thread has taken the order, which was given at `since`, so that it uses nothing any more that is not
    /// in its views; `false` when it did not within seconds.
    pub fn let_go(&self, order: u64, since: Instant) -> bool {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = LET_GO_LIMIT.saturating_sub(since.elapsed());
        let waited = self.done.wait_timeout_while(orders, limit, |orders| orders.taken < order);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Ends the thread, which has let go of everything when it is joined.
    pub fn end(&self) {
        self.change(|orders| {
            orders.views = Arc::default();
            orders.end = true;
        });
    }

    /// What the kernel calls the thread, which has taken an order.
    pub fn tid(&self) -> u32 {
        self.tid.load(Relaxed)
    }

    fn change(&self, how: impl FnOnce(&mut Orders)) -> u64 {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        how(&mut orders);
        let order = self.ordered.fetch_add(1, Release) + 1;
        self.bell.ring();
        order
    }
}

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
            post.bell.silence();
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

impl View {
    /// The switch with these addresses and, by number, these ports; the thread looks after those whose numbers are `own`.
    pub fn new(table: Arc<Table>, members: Vec<Option<Arc<Attached>>>, own: Vec<u8>) -> View {
        let all: Vec<u8> = members.iter().flatten().map(|port| port.index).collect();
        // A batch must hold a packet that is too long.
        let rules = Book::new(&members, (MAX_FRAGS + 1, BATCH as u32));
        View { table, members, own, pair: all.try_into().ok(), rules }
    }

    fn own(&self) -> impl Iterator<Item = &Arc<Attached>> {
        self.own.iter().filter_map(|index| self.members.get(usize::from(*index))?.as_ref())
    }

    fn own_rings(&self) -> impl Iterator<Item = (&Attached, usize, &Outgoing)> {
        self.own().flat_map(|port| port.tx.iter().enumerate().map(|(i, ring)| (&**port, i, ring)))
    }

    /// The port that a packet of `me` comes to if it goes to all, where that is one.
    #[inline]
    fn only_other(&self, me: u8) -> Option<&Attached> {
        let [a, b] = self.pair?;
        self.member(if a == me { b } else { a })
    }

    fn member(&self, index: u8) -> Option<&Attached> {
        self.members.get(usize::from(index))?.as_deref()
    }
}

impl Worker {
    /// Looks once at the rings that it is time for; returns how many slots were taken.
    fn pass(&mut self) -> u32 {
        let moved = self.rounds.pass(|at| {
            let (view, port, ring) = ring_of(&self.views, at).filter(|(_, _, ring)| ring.moved())?;
            self.patience.begin(at.0, port.index);
            self.serving = Some(at);
            let moved = serve((&mut self.lists, &mut self.spread), view, port, at.2, ring, &self.patience);
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
            && receiver.is_some_and(|port| port.may_answer(this_cpu()))
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
        let cpu = this_cpu();
        // Each is asked: what it was given in vain is counted.
        if self.recent().filter(|port| port.needs(cpu)).count() == 0 {
            return Given::ToNobody;
        }
        self.turns.end();
        if self.rounds.len() > HEARD_AT_ONCE {
            // Without an ear all are heard one by one, if they are not too many.
            let _ = self.ask_quiet();
        }
        let mut nap = Nap::default();
        let mut rings = self.rounds.heard().filter_map(|at| ring_of(&self.views, at));
        // The ear last: where a nap can have only one word, it is a ring's.
        let all = rings.all(|(_, _, ring)| ring.hear(&mut nap));
        if !all || !self.ear.iter().all(|ear| nap.as_consumer(ear.line())) {
            return Given::OnlyBySleep;
        }
        drop(rings);
        let idle = || {
            let moved = self.views.iter().flat_map(View::own_rings).any(|(_, _, ring)| ring.moved());
            !moved && self.ear.iter().all(Ear::heard_nothing)
        };
        self.rounds.rests();
        if nap.take(idle) { Given::Woken } else { Given::InVain }
    }

    /// Before a nap: rings that have been quiet for long need not be heard one by one. They are to ring their bells.
    fn ask_quiet(&mut self) -> io::Result<()> {
        let ear = match &self.ear {
            Some(ear) => ear,
            None => self.ear.insert(Ear::new()?),
        };
        ear.heard().into_iter().for_each(|which| self.rounds.rang(which));
        let asked = self.rounds.ask_quiet(|at, first| {
            let Some((_, port, ring)) = ring_of(&self.views, at) else { return false };
            if first {
                // It may have gone off for another ring: the look that follows sees that one.
                port.bell.silence();
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
        Ok(())
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
            self.rounds.rests();
            if self.pass() == 0 {
                break;
            }
        }
    }

    fn sleep(&mut self, post: &Post) -> io::Result<()> {
        self.turns.forget();
        self.rounds.rests();
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
                port.bell.silence();
                // Who rang may have taken back the wish that it rings the next time.
                self.rounds.rang((view, port.index));
            }
        }
        Ok(())
    }
}

/// For the rings that the thread looks after.
fn rounds(views: &[View]) -> Rounds {
    let of = |(n, view)| View::own_rings(view).map(move |(port, number, _)| (n, port.index, number));
    Rounds::of(views.iter().enumerate().flat_map(of))
}

#[inline(always)]
fn ring_of(views: &[View], (view, port, number): Ring) -> Option<(&View, &Attached, &Outgoing)> {
    let view = views.get(view)?;
    let port = view.member(port)?;
    Some((view, port, port.tx.get(number)?))
}

/// Moves a batch of one ring's; returns how many slots that were.
fn serve(
    (lists, spread): (&mut Lists, &mut Spread),
    view: &View,
    port: &Attached,
    number: usize,
    ring: &Outgoing,
    patience: &Patience,
) -> u32 {
    let Some(mut state) = ring.lock() else { return 0 };
    let Some(batch) = ring.take(&state, view.rules.turn()) else { return 0 };
    patience.takes(batch.len);
    let sent = &mut *state;
    if view.rules.concerns(port.index) {
        let done = ruled::serve(lists, view, port, (number, ring), sent, &batch, patience);
        ring.release(sent, done, patience);
        return done;
    }
    // What precedes the addresses, wherever, or who watches, is not for runs.
    let plain = port.header() == 0 && batch.offsets.mask == 0 && !ring.watchers.any();
    let mut done = if plain { runs(view, port, number, sent, &batch, patience) } else { 0 };
    if plain && done < batch.len && !batch.bad && sent.cutter.at_start() {
        done += spread::serve(spread, view, port, (number, ring), sent, &batch.from(done), patience);
    }
    if done < batch.len {
        let rest = batch.from(done);
        done += one_by_one(lists, view, port, (number, ring), sent, &rest, patience);
    }
    ring.release(sent, done, patience);
    done
}

/// Moves the packets of a batch that follow each other from one station to another. Returns how many slots that were; the
/// next packet is one of its own.
fn runs(view: &View, port: &Attached, number: usize, sent: &mut Sent, batch: &Batch<'_>, patience: &Patience) -> u32 {
    let (mut done, mut fresh) = (0, false);
    while done < batch.len && sent.cutter.at_start() {
        if let Some((addresses, to)) = sent.memory.run(&view.table) {
            let to = match to {
                Target::Port(to) => view.member(to),
                _ => view.only_other(port.index),
            };
            let Some(to) = to.filter(|to| to.header() == 0 && to.begins_at_start(number)) else { break };
            let packets = to.deliver_run(port, number, batch, (addresses, done), patience);
            done += packets;
            if fresh && packets < SHORT_RUN {
                break;
            }
        } else if fresh {
            break;
        }
        // What ended the run may begin another.
        fresh = true;
        if done < batch.len {
            target(view, port, &mut sent.memory, batch, Packet { at: done as u16, frags: 1 });
        }
    }
    done
}

/// Moves the packets of a batch, wherever each goes. Returns how many slots that were: what is left is the beginning of a
/// packet.
fn one_by_one(
    lists: &mut Lists,
    view: &View,
    port: &Attached,
    (number, ring): (usize, &Outgoing),
    sent: &mut Sent,
    batch: &Batch<'_>,
    patience: &Patience,
) -> u32 {
    lists.clear();
    let done = sent.cutter.cut(
        batch.len,
        batch.all,
        |i| batch.slots.flags(batch.at(i)),
        |cut| match cut {
            Cut::Packet(packet) => {
                port.region.fetch(batch.slots.buf_idx(batch.at((u32::from(packet.at) + AHEAD).min(batch.len))));
                match target(view, port, &mut sent.memory, batch, packet) {
                    Target::Port(to) => lists.add(packet, Some(to)),
                    Target::All => lists.add(packet, None),
                    Target::Nowhere(why) => ring.lose(why),
                }
            }
            Cut::Long { first } => {
                if first {
                    ring.lose(Lost::Long);
                }
            }
        },
    );
    if ring.watchers.any() {
        let to = batch.at(done);
        ring.watchers.show(&port.region, (batch.slots, batch.offsets), Span { from: batch.start, to });
    }
    deliver(lists, view, port, (number, ring), batch, patience);
    done
}

/// Where a packet goes.
#[inline(always)]
fn target(view: &View, port: &Attached, memory: &mut Memory, batch: &Batch<'_>, packet: Packet) -> Target {
    let first = batch.slots.load(batch.at(u32::from(packet.at)));
    if batch.bad {
        let mut all = (0..packet.frags).map(|i| batch.slots.buf_idx(batch.at(u32::from(packet.at + i))));
        if all.any(|idx| !port.region.limits().index_ok(idx)) {
            return Target::Nowhere(Lost::Bad);
        }
    }
    let (len, header) = match port.header() {
        0 => (first.len, batch.frame(&port.region, first).header()),
        bytes => port.behind_header(batch, packet, bytes),
    };
    #[cfg(debug_assertions)]
    fault::inject(header);
    match decide(&view.table, memory, port.index, (len, first.flags), (header, 0)) {
        Target::Port(to) if view.member(to).is_none() => Target::Nowhere(Lost::Nobody),
        target => target,
    }
}

/// Delivers what is listed to where it goes. What goes to several is copied, and with it the rest of its batch.
fn deliver(
    lists: &Lists,
    view: &View,
    port: &Attached,
    (number, ring): (usize, &Outgoing),
    batch: &Batch<'_>,
    patience: &Patience,
) {
    if !lists.any_to_all() {
        for &to in lists.ports() {
            if let Some(to) = view.member(to) {
                to.deliver(port, number, batch, (lists.of(to.index), true), patience);
            }
        }
        return;
    }
    let mut others = 0;
    for to in view.members.iter().flatten().filter(|to| to.index != port.index) {
        to.deliver(port, number, batch, (lists.of(to.index), view.pair.is_some()), patience);
        others += 1;
    }
    if others == 0 {
        lists.to_all().for_each(|_| ring.lose(Lost::Nobody));
    }
}

/// In debug builds: a fault that tests can ask for.
#[cfg(debug_assertions)]
mod fault {
    use std::sync::LazyLock;

    /// Frames to this station make the thread panic.
    const TO: [u8; 6] = [2, 0xfa, 0x17, 0xfa, 0x17, 0xfa];

    /// The daemon was started with `UNETMAP_FAULT=switch`.
    static ASKED: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("UNETMAP_FAULT").is_some_and(|what| what == "switch"));

    pub(super) fn inject(header: [u8; 16]) {
        if *ASKED && header[..6] == TO {
            // A panic of which no hook is told: tests look for others in the daemon's log.
            std::panic::resume_unwind(Box::new("a fault that a test asked for"));
        }
    }
}
