//! Watching: what crosses a ring is shown to its monitors, by the sync that moves it.
//!
//! ```text
//! watched program                                      monitor
//!   sync --copy--> slots and buffers of a shelf, [ cons .... prod ) --copy--> own ring, in a region of its own
//! ```
//! A shelf is memory that the monitor and the watched programs share, and nothing else is: neither sees more of the other.
//! Each watched ring has a shelf ring, and a line, of its own in it, so that only who holds the lock of the watched ring
//! produces there. It never waits: what has no room is dropped, packet by packet, and counted on the shelf.
//!
//! A monitor without copies has its shelf in the region of the watched port, and gets the very buffers: when a slot has been
//! sent, or given back, its buffer goes onto the shelf, and the one that lay there takes its place (`NS_BUF_CHANGED`).
//!
//! Who watches is the daemon's to say. A word that each sync loads anyway, the notice, changes when that changes; then the
//! sync asks the daemon before it goes on. Ports that the daemon runs itself read it from a board instead.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use unetmap_abi::{NS_BUF_CHANGED, NS_MOREFRAG};
use unetmap_mem::{
    BY_LOOP, EndPage, LinePage, Offsets, Pos, Producer, Region, RingShape, RingView, SlotRing, SlotValue, Slots, Span,
    Window,
};
use unetmap_sys::{Doorbell, Mapping, clock};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::control::binding::{BoundPool, geometry};
use crate::port::Port;

/// How long to try for the list of watchers, which nobody holds for longer than it takes to copy a pointer. A child that was
/// forked by another thread in that moment finds it held for ever.
const TRY_LIMIT: Duration = Duration::from_millis(200);

/// What a program asks for: who watches a session of its own.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Asked {
    /// The session.
    pub session: u64,
    /// What only those know who were told of it.
    pub key: u64,
    /// The monitor that was told last, 0 at first: the next one is asked for.
    pub after: u64,
}

/// The answer's fixed part. With it come descriptors: the shelf's memory, its states, its lines, and for each ring the
/// monitor's bell.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ToldHead {
    /// Names the monitor; never 0.
    pub monitor: u64,
    /// The shelf's interfaces (none are used), rings, buffers.
    pub pools: [BoundPool; 3],
    /// Ring states, and lines.
    pub states: u32,
    /// Bytes of the lines' page.
    pub lines_bytes: u32,
}

/// A ring that is watched, and its ring on the shelf.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ToldRing {
    /// The shelf ring, bytes from the start of the shelf.
    pub offset: u64,
    /// Its slots.
    pub slots: u32,
    /// Index of its line and of its state.
    pub line: u32,
    /// The watched ring: its number within its direction.
    pub id: u16,
    /// The watched ring: 0 transmit, 1 receive.
    pub dir: u16,
    /// 1: the shelf lies in the watched ring's region, and buffers are exchanged; 0: packets are copied.
    pub trades: u32,
}

/// One monitor of a session's rings.
#[derive(Clone, Debug)]
pub struct Told {
    /// The fixed part.
    pub head: ToldHead,
    /// The rings that it watches.
    pub rings: Vec<ToldRing>,
}

/// Descriptors before those of the rings.
const FIXED_FDS: usize = 3;

impl Told {
    /// The bytes that cross the socket.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.head.as_bytes().to_vec();
        out.extend_from_slice(self.rings.as_bytes());
        out
    }

    /// Takes the bytes apart; `None` when the sizes do not fit.
    pub fn decode(bytes: &[u8]) -> Option<Told> {
        let (head, rest) = ToldHead::read_from_prefix(bytes).ok()?;
        Some(Told { head, rings: <[ToldRing]>::ref_from_bytes(rest).ok()?.to_vec() })
    }
}

/// A ring of a shelf, as the watched ring's sync sees it.
pub struct Watcher {
    /// The monitor.
    id: u64,
    trades: bool,
    shelf: Arc<Region>,
    line: Producer,
    states: EndPage,
    /// Index of the shelf ring's state; the constructor checked that it exists.
    state: usize,
    /// Wakes the monitor.
    bell: Doorbell,
    /// Slots behind `prod` that are filled: the beginning of a packet whose end is still to come.
    begun: AtomicU32,
    /// Whether the beginning of such a packet was dropped.
    dropping: AtomicBool,
}

impl Watcher {
    /// Maps what the daemon told, to a port in the region `own`; `None` when that does not fit together.
    fn map(told: &Told, fds: Vec<OwnedFd>, own: Option<&Arc<Region>>) -> Option<Vec<(ToldRing, Watcher)>> {
        let head = &told.head;
        if fds.len() != FIXED_FDS + told.rings.len() {
            return None;
        }
        let mut fds = fds.into_iter();
        let (memory, layout) = (fds.next()?, geometry(&head.pools));
        let shelf = match told.rings.first()?.trades {
            0 => Arc::new(Region::attach(memory.as_fd(), layout).ok()?),
            _ => own.filter(|own| *own.geometry() == layout)?.clone(),
        };
        let mut page = |bytes: usize| Some(Window::whole(Arc::new(Mapping::new(fds.next()?.as_fd(), bytes).ok()?)));
        let states = EndPage::new(page(EndPage::bytes(head.states as usize))?);
        let lines = LinePage::new(page(head.lines_bytes as usize)?);
        let rings = told.rings.iter().zip(fds).map(|(ring, bell)| {
            let shape = RingShape { offset: ring.offset, slots: Slots::new(ring.slots)?, id: ring.id, dir: 0 };
            let slots = RingView::new(&shelf, shape)?.slots().clone();
            let state = ring.line as usize;
            states.state(state)?;
            let watcher = Watcher {
                id: head.monitor,
                trades: ring.trades != 0,
                shelf: shelf.clone(),
                line: Producer::new(&lines, state, slots)?,
                states: states.clone(),
                state,
                bell: Doorbell::from_fd(bell).ok()?,
                begun: AtomicU32::new(0),
                dropping: AtomicBool::new(false),
            };
            Some((*ring, watcher))
        });
        rings.collect()
    }

    /// Copies the packets of `window`, and drops those that have no room. Only with the lock of the ring, `theirs`, whose
    /// buffers lie in `region`.
    fn show(&self, region: &Region, (theirs, offsets): (&SlotRing, Offsets), window: Span, stamp: u64) {
        let shelf = self.line.slots();
        self.put_all(theirs, window, |p, at| {
            let slot = theirs.load(p);
            let packet = region.frame(slot.buf_idx).behind(offsets.of(slot.ptr) as usize);
            let idx = shelf.buf_idx(at);
            // A slot that names no buffer is shown empty, one that is too long is cut.
            let len = self.shelf.frame(idx).copy_from(&packet, usize::from(slot.len));
            shelf.store(at, SlotValue { buf_idx: idx, len: len as u16, flags: slot.flags & NS_MOREFRAG, ptr: stamp });
            true
        });
    }

    /// Takes the buffers of `window`, whose packets nobody needs any more, and leaves others. Only with the lock of the
    /// ring, `theirs`. A buffer that was exchanged already has another packet, or none; an offset is not for everybody.
    fn trade(&self, (theirs, offsets): (&SlotRing, Offsets), window: Span, stamp: u64) {
        let (shelf, limits) = (self.line.slots(), self.shelf.limits());
        self.put_all(theirs, window, |p, at| {
            let slot = theirs.load(p);
            let other = shelf.buf_idx(at);
            if slot.flags & NS_BUF_CHANGED != 0
                || !limits.allow(slot)
                || !limits.index_ok(other)
                || offsets.of(slot.ptr) != 0
            {
                return false;
            }
            shelf.store(at, SlotValue { flags: slot.flags & NS_MOREFRAG, ptr: stamp, ..slot });
            theirs.store(p, SlotValue { buf_idx: other, flags: slot.flags | NS_BUF_CHANGED, ..slot });
            true
        });
    }

    /// Has `put` put the slots of `window` onto the shelf, as long as it can and there is room; else their packets are
    /// dropped.
    #[inline(always)]
    fn put_all(&self, theirs: &SlotRing, window: Span, mut put: impl FnMut(Pos, Pos) -> bool) {
        let (count, slots) = (theirs.slots(), self.line.slots().slots());
        // The monitor can write both positions; any two make a ring.
        let Some(line) = self.line.words().positions(slots) else {
            return self.count(0, count.distance(window.from, window.to));
        };
        let full = slots.prev(line.from);
        let (mut whole, mut shown, mut dropped) = (line.to, 0, 0);
        let begun = self.begun.load(Relaxed).min(slots.distance(line.to, full));
        let mut at = slots.add(line.to, begun);
        let mut dropping = self.dropping.load(Relaxed);
        for p in count.walk(window) {
            let continued = theirs.flags(p) & NS_MOREFRAG != 0;
            if !dropping && (at == full || !put(p, at)) {
                // What is there of this packet goes with its rest.
                dropped += slots.distance(whole, at);
                at = whole;
                dropping = true;
            }
            if dropping {
                dropped += 1;
                dropping = continued;
                continue;
            }
            at = slots.next(at);
            if !continued {
                shown += slots.distance(whole, at);
                whole = at;
            }
        }
        self.begun.store(slots.distance(whole, at), Relaxed);
        self.dropping.store(dropping, Relaxed);
        self.count(shown, dropped);
        if whole != line.to {
            self.line.words().publish(whole);
            if self.line.words().consumer_sleeps() {
                self.bell.notify();
            }
        }
    }

    fn count(&self, shown: u32, dropped: u32) {
        let Some(state) = self.states.state(self.state) else { return };
        if shown > 0 {
            state.count(shown);
        }
        if dropped > 0 {
            state.dropped.fetch_add(u64::from(dropped), Relaxed);
        }
    }
}

/// Who watches a ring, as far as its user knows.
#[derive(Default)]
pub struct Watchers {
    /// The notice that the list follows.
    known: AtomicU32,
    /// Whether there is anybody who gets copies, and anybody who gets buffers.
    copies: AtomicBool,
    trades: AtomicBool,
    /// Whether the list counts as what follows any notice.
    regardless: AtomicBool,
    /// Whether the list is held for ever.
    stuck: AtomicBool,
    list: Mutex<List>,
}

type List = Arc<Vec<Arc<Watcher>>>;

impl Watchers {
    /// Whether the list follows `notice`.
    #[inline(always)]
    pub fn follow(&self, notice: u32) -> bool {
        self.known.load(Relaxed) == notice || self.regardless.load(Relaxed) && !self.trade_any()
    }

    /// Meanwhile the list follows whatever notice there is, unless somebody gets buffers.
    pub fn regardless<T>(&self, sync: impl FnOnce() -> T) -> T {
        self.regardless.store(true, Relaxed);
        let result = sync();
        self.regardless.store(false, Relaxed);
        result
    }

    /// Whether anybody gets copies.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.copies.load(Relaxed)
    }

    /// Whether anybody gets buffers.
    #[inline(always)]
    pub fn trade_any(&self) -> bool {
        self.trades.load(Relaxed)
    }

    /// Shows the slots of `window` to everybody. Only with the lock of the ring, whose buffers lie in `region`.
    #[cold]
    pub fn show(&self, region: &Region, ring: (&SlotRing, Offsets), window: Span) {
        let Some(list) = self.lock().map(|list| list.clone()) else { return };
        let stamp = clock::now_ns();
        list.iter().filter(|watcher| !watcher.trades).for_each(|watcher| watcher.show(region, ring, window, stamp));
    }

    /// The slots of `window`, of which nobody needs the packets any more, get other buffers. Only with the lock of the ring.
    #[cold]
    pub fn trade(&self, ring: (&SlotRing, Offsets), window: Span) {
        let Some(list) = self.lock().map(|list| list.clone()) else { return };
        let stamp = clock::now_ns();
        list.iter().filter(|watcher| watcher.trades).for_each(|watcher| watcher.trade(ring, window, stamp));
    }

    fn lock(&self) -> Option<MutexGuard<'_, List>> {
        let mut since = None;
        while !self.stuck.load(Relaxed) {
            match self.list.try_lock() {
                Ok(list) => return Some(list),
                Err(TryLockError::Poisoned(list)) => return Some(list.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
            if since.get_or_insert_with(Instant::now).elapsed() > TRY_LIMIT {
                self.stuck.store(true, Relaxed);
            }
        }
        None
    }

    /// Puts another list in its place; a watcher that was there before stays, with what it knows.
    fn replace(&self, new: Vec<Watcher>, notice: u32) {
        let old = self.lock().map(|list| list.clone()).unwrap_or_default();
        let kept = |watcher: Watcher| {
            let known = old.iter().find(|known| known.id == watcher.id);
            known.cloned().unwrap_or_else(|| Arc::new(watcher))
        };
        let new: List = Arc::new(new.into_iter().map(kept).collect());
        self.copies.store(new.iter().any(|watcher| !watcher.trades), Relaxed);
        self.trades.store(new.iter().any(|watcher| watcher.trades), Relaxed);
        if let Some(mut list) = self.lock() {
            *list = new;
        }
        self.known.store(notice, Relaxed);
    }
}

/// What the daemon was told, or tells, of one monitor: with the descriptors that belong to it.
pub type Monitor = (Told, Vec<OwnedFd>);

/// Where the daemon tells a port that it runs itself who watches it.
#[derive(Default)]
pub struct Board(Mutex<Vec<Monitor>>);

impl Board {
    /// All monitors, from now on; the notices of the watched rings are to change after this.
    pub fn set(&self, monitors: Vec<Monitor>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = monitors;
    }

    fn copy(&self) -> Vec<Monitor> {
        let monitors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let dup = |(told, fds): &Monitor| {
            let fds = fds.iter().map(OwnedFd::try_clone).collect::<std::io::Result<_>>().ok()?;
            Some((told.clone(), fds))
        };
        monitors.iter().filter_map(dup).collect()
    }
}

/// Where a port asks who watches it.
pub struct Source {
    pub session: u64,
    pub key: u64,
    /// Of the daemon's own ports.
    pub board: Option<Arc<Board>>,
}

/// The rings of all these monitors of a port in the region `own`, mapped.
pub fn map_all(monitors: Vec<Monitor>, own: Option<&Arc<Region>>) -> Vec<(ToldRing, Watcher)> {
    monitors.into_iter().filter_map(|(told, fds)| Watcher::map(&told, fds, own)).flatten().collect()
}

/// Puts those who watch ring `id` of the direction `dir` (0 transmit, 1 receive) into its list, and takes them from `all`.
pub fn hand_out(all: &mut Vec<(ToldRing, Watcher)>, (dir, id): (u16, u16), to: &Watchers, notice: u32) {
    let mine = all.extract_if(.., |(told, _)| (told.dir, told.id) == (dir, id));
    let mine = mine.map(|(_, watcher)| watcher).collect();
    to.replace(mine, notice);
}

impl Port {
    /// The daemon has news of who watches this port. Without an answer nobody does: then the daemon has gone, which other
    /// calls tell.
    #[cold]
    pub fn renew_watchers(&self) {
        let rings = || self.tx.iter().map(|ring| (0, ring)).chain(self.rx.iter().map(|ring| (1, ring)));
        // Before the question: what changes after it is news again.
        let notices: Vec<u32> = rings().map(|(_, ring)| ring.inner.state().notice() & !BY_LOOP).collect();
        let mut all = map_all(self.monitors(), Some(self.shared_region()));
        for ((dir, ring), notice) in rings().zip(notices) {
            hand_out(&mut all, (dir, ring.id()), &ring.inner.watchers, notice);
        }
    }

    /// Who watches this port, as the daemon says.
    fn monitors(&self) -> Vec<Monitor> {
        let Source { session, key, board } = &self.source;
        if let Some(board) = board {
            return board.copy();
        }
        let mut monitors: Vec<Monitor> = Vec::new();
        loop {
            let after = monitors.last().map_or(0, |(told, _)| told.head.monitor);
            let asked = Asked { session: *session, key: *key, after };
            let answer = self.current_lease().ok().and_then(|lease| lease.watchers(self.spec(), &asked));
            match answer.and_then(|(bytes, fds)| Some((Told::decode(&bytes)?, fds))) {
                Some((told, fds)) if told.head.monitor > after => monitors.push((told, fds)),
                _ => return monitors,
            }
        }
    }
}
