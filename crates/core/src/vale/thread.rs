//! The threads of the switches: each looks after some ports, and may deliver to all.
//!
//! A thread that finds nothing to do spins a little, lets others run, and then sleeps until a client rings. No timer runs
//! meanwhile.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use unetmap_mem::{Offsets, Span};
use unetmap_sys::Bell;
use unetmap_sys::event::{Epoll, EventFlags};

use super::forward::{BATCH, Cut, Lists, Lost, Packet, Target, decide};
use super::learn::Table;
use super::port::{Attached, Batch, Outgoing};

/// How long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long the end of a port may wait for a thread.
const LET_GO_LIMIT: Duration = Duration::from_secs(5);

/// The thread's own bell, among the numbers of its ports'.
const OWN_BELL: u64 = u64::MAX;

/// A switch as one thread sees it.
pub struct View {
    /// Where addresses are.
    pub table: Arc<Table>,
    /// Its ports, by number.
    pub members: Vec<Option<Arc<Attached>>>,
    /// The numbers of those that the thread looks after.
    pub own: Vec<u8>,
}

/// What a thread and those who give it work share.
pub struct Post {
    /// Moves with each order.
    ordered: AtomicU64,
    orders: Mutex<Orders>,
    done: Condvar,
    bell: Bell,
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
        })
    }

    /// Tells the thread what to look after from now on. Returns when it has let go of what it had before, so that what is in
    /// no view any more is used by nobody; `false` when it did not within seconds.
    pub fn order(&self, views: Vec<View>) -> bool {
        self.change(|orders| orders.views = Arc::new(views))
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.change(|orders| {
            orders.views = Arc::default();
            orders.end = true;
        });
    }

    fn change(&self, how: impl FnOnce(&mut Orders)) -> bool {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        how(&mut orders);
        let order = self.ordered.fetch_add(1, Release) + 1;
        self.bell.ring();
        let waited = self.done.wait_timeout_while(orders, LET_GO_LIMIT, |orders| orders.taken < order);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// Works until it is told to end.
pub fn run(post: &Post) {
    unetmap_mem::register_publisher();
    let mut worker = Worker { lists: Lists::new(), views: Arc::default(), wake: None, events: Vec::new() };
    let (mut taken, mut idle_since) = (0, Instant::now());
    loop {
        if post.ordered.load(Acquire) != taken {
            let mut orders = post.orders.lock().unwrap_or_else(PoisonError::into_inner);
            worker.drain();
            worker.wake = None;
            worker.views = orders.views.clone();
            taken = post.ordered.load(Acquire);
            orders.taken = taken;
            post.done.notify_all();
            post.bell.silence();
            if orders.end {
                return;
            }
        }
        if worker.pass() > 0 {
            idle_since = Instant::now();
            continue;
        }
        // The client that we wait for may wait for this very processor.
        std::thread::yield_now();
        if idle_since.elapsed() >= SPIN {
            if let Err(e) = worker.sleep(post) {
                debug_assert!(e.kind() == io::ErrorKind::Interrupted, "{e}");
            }
            idle_since = Instant::now();
        }
    }
}

struct Worker {
    lists: Lists,
    views: Arc<Vec<View>>,
    /// What wakes the thread, for the ports it has now.
    wake: Option<Epoll>,
    events: Vec<(u64, EventFlags)>,
}

impl View {
    fn own(&self) -> impl Iterator<Item = &Arc<Attached>> {
        self.own.iter().filter_map(|index| self.members.get(usize::from(*index))?.as_ref())
    }

    fn own_rings(&self) -> impl Iterator<Item = (&Attached, usize, &Outgoing)> {
        self.own().flat_map(|port| port.tx.iter().enumerate().map(|(i, ring)| (&**port, i, ring)))
    }

    fn member(&self, index: u8) -> Option<&Attached> {
        self.members.get(usize::from(index))?.as_deref()
    }
}

impl Worker {
    /// Looks once at all rings; returns how many slots were taken.
    fn pass(&mut self) -> u32 {
        let mut moved = 0;
        for view in self.views.iter() {
            for (port, number, ring) in view.own_rings() {
                if ring.moved() {
                    moved += serve(&mut self.lists, view, port, number, ring);
                }
            }
        }
        moved
    }

    /// Before ports leave: what they had sent until now still goes out. At most as many rounds as a ring has batches.
    fn drain(&mut self) {
        for _ in 0..unetmap_mem::Slots::MAX as usize / BATCH {
            if self.pass() == 0 {
                break;
            }
        }
    }

    fn sleep(&mut self, post: &Post) -> io::Result<()> {
        self.views.iter().flat_map(View::own_rings).for_each(|(_, _, ring)| ring.ask());
        unetmap_mem::fence_before_sleep();
        if self.views.iter().flat_map(View::own_rings).any(|(_, _, ring)| ring.moved()) {
            return Ok(());
        }
        let bells = || self.views.iter().flat_map(View::own).map(|port| &port.bell);
        let wake = match &self.wake {
            Some(wake) => wake,
            None => {
                let wake = Epoll::new()?;
                wake.add(&post.bell, OWN_BELL, true, false)?;
                for (token, bell) in bells().enumerate() {
                    wake.add(bell, token as u64, true, false)?;
                }
                self.wake.insert(wake)
            }
        };
        wake.wait(&mut self.events, None)?;
        // Only those that rang: a silence costs a system call.
        for &(token, _) in self.events.iter().filter(|(token, _)| *token != OWN_BELL) {
            if let Some(bell) = usize::try_from(token).ok().and_then(|n| bells().nth(n)) {
                bell.silence();
            }
        }
        Ok(())
    }
}

/// Moves a batch of one ring's; returns how many slots that were.
fn serve(lists: &mut Lists, view: &View, port: &Attached, number: usize, ring: &Outgoing) -> u32 {
    let mut state = ring.state.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(batch) = ring.take(&state, BATCH as u32) else { return 0 };
    lists.clear();
    let sent = &mut *state;
    let done = sent.cutter.cut(
        batch.len,
        batch.all,
        |i| batch.slots.flags(batch.at(i)),
        |cut| match cut {
            Cut::Packet(packet) => match target(view, port, &mut sent.memory, &batch, packet) {
                Target::Port(to) => lists.add(packet, Some(to)),
                Target::All => lists.add(packet, None),
                Target::Nowhere(why) => ring.lose(why),
            },
            Cut::Long { first } => {
                if first {
                    ring.lose(Lost::Long);
                }
            }
        },
    );
    if ring.watchers.any() {
        let to = batch.slots.slots().add(batch.start, done);
        ring.watchers.show(&port.region, (batch.slots, Offsets::NONE), Span { from: batch.start, to });
    }
    deliver(lists, view, port, number, &batch);
    ring.release(sent, done);
    done
}

/// Where a packet goes.
#[inline(always)]
fn target(
    view: &View,
    port: &Attached,
    memory: &mut super::forward::Memory,
    batch: &Batch<'_>,
    packet: Packet,
) -> Target {
    let first = batch.slots.load(batch.at(u32::from(packet.at)));
    if batch.bad {
        let mut all = (0..packet.frags).map(|i| batch.slots.buf_idx(batch.at(u32::from(packet.at + i))));
        if all.any(|idx| !port.region.limits().index_ok(idx)) {
            return Target::Nowhere(Lost::Bad);
        }
    }
    let (len, header) = match port.header() {
        0 => (first.len, port.region.frame(first.buf_idx).header()),
        bytes => port.behind_header(batch, packet, bytes),
    };
    match decide(&view.table, memory, port.index, len, first.flags, header) {
        Target::Port(to) if view.member(to).is_none() => Target::Nowhere(Lost::Nobody),
        target => target,
    }
}

/// Copies what is listed to where it goes.
fn deliver(lists: &Lists, view: &View, port: &Attached, number: usize, batch: &Batch<'_>) {
    if !lists.any_to_all() {
        for &to in lists.ports() {
            if let Some(to) = view.member(to) {
                to.deliver(port, number, batch, lists.of(to.index));
            }
        }
        return;
    }
    let mut others = 0;
    for to in view.members.iter().flatten().filter(|to| to.index != port.index) {
        to.deliver(port, number, batch, lists.of(to.index));
        others += 1;
    }
    if others == 0 {
        lists.to_all().for_each(|_| port.tx[number].lose(Lost::Nobody));
    }
}
