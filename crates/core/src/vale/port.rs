//! The switch's side of a port.
//!
//! A port's rings, lines and buffers lie in memory that its client writes, and the switch believes nothing of it: where the
//! lines stand is kept here, slots are copied before they are judged, and of a receive slot only the buffer's index is read,
//! once. An index that names no buffer is replaced.
//!
//! Between two ports of one region packets change sides with their buffers, as far as each goes to one port alone. Then
//! both slots are written while the sender's ring is locked: whoever counts buffers holds it [`Still`].

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{
    ADDRESSES, BufIdx, Consumer, CopyKind, Frame, LinePage, Nap, Offsets, Pos, Producer, Region, RingShape, RingView,
    Run, Side, SlotHead, SlotRing, Slots, Span, Window, copy_packet, copy_run, copy_some, swap_one, swap_run,
};
use unetmap_sys::nap::this_cpu;
use unetmap_sys::{Bell, Mapping, memfd};

use crate::watch::{self, Monitor, Watchers};

use super::forward::{Cutter, Lost, Memory, Packet};
use super::patience::Patience;
use super::rules::Ruled;

/// Slots ahead of which the buffers of packets that are copied one by one are fetched.
const AHEAD: u32 = 8;

mod ahead;
mod begin;
pub(super) mod held;
pub(super) mod place;
mod translate;
use ahead::Ahead;
use begin::Begin;
use translate::translate;

/// A ring, for [`Attached::new`].
pub struct Given<'a> {
    /// The ring.
    pub view: &'a RingView,
    /// Index of its line.
    pub line: usize,
    /// Wakes the client that sleeps on the ring.
    pub bell: Bell,
    /// Of a receive ring: what takes the place of a buffer that does not exist.
    pub spare: BufIdx,
}

/// A port as switch threads see it.
pub struct Attached {
    /// Its number in the switch, below [`super::learn::PORTS`].
    pub(super) index: u8,
    /// Rung by the client when it has sent and the switch sleeps.
    pub(super) bell: Bell,
    pub(super) region: Region,
    /// Bytes of the virtio-net header before each packet.
    header: AtomicU8,
    pub(super) tx: Vec<Outgoing>,
    pub(super) rx: Vec<Incoming>,
    /// What the switch's owner has set; threads have it in their views.
    ruled: Mutex<Option<Arc<Ruled>>>,
    /// Packets for the port that its filter refused, and that were beyond its limits.
    refused: [AtomicU64; 2],
    /// Where the client's positions stood when the processor was given to it for nothing else, and how often it was since.
    given: [AtomicU32; 2],
}

impl Attached {
    /// The switch's side of the port number `index`, whose rings lie in `region` and whose lines in `lines`; its
    /// transmit rings, then its receive rings. `bell` is rung by the client.
    ///
    /// # Errors
    /// No memory or descriptors; a ring has no line.
    pub fn new(
        index: u8,
        region: &Region,
        lines: &LinePage,
        (tx, rx): (Vec<Given<'_>>, Vec<Given<'_>>),
        bell: Bell,
    ) -> io::Result<Attached> {
        let tx = tx.into_iter().map(|given| Outgoing::new(region, lines, given)).collect::<io::Result<_>>()?;
        let rx = rx
            .into_iter()
            .map(|given| Incoming::new(lines, given, region.limits().buf_size))
            .collect::<io::Result<_>>()?;
        let (header, ruled, refused) = (AtomicU8::new(0), Mutex::default(), Default::default());
        let given = Default::default();
        Ok(Attached { index, bell, region: region.clone(), header, tx, rx, ruled, refused, given })
    }

    /// From now on its packets are shown to these monitors.
    pub fn watched_by(&self, monitors: Vec<Monitor>) {
        let mut all = watch::map_all(monitors, None);
        let tx = self.tx.iter().map(|ring| &ring.watchers).zip(0..).map(|(ring, id)| ((0, id), ring));
        let rx = self.rx.iter().map(|ring| &ring.watchers).zip(0..).map(|(ring, id)| ((1, id), ring));
        tx.chain(rx).for_each(|(which, ring)| watch::hand_out(&mut all, which, ring, 0));
    }

    /// Rings that its client sends on.
    pub fn sending_rings(&self) -> usize {
        self.tx.len()
    }

    /// Has the thread that looks after the port look at it once more, if it sleeps.
    pub fn look_again(&self) {
        self.bell.ring();
    }

    /// Its number in the switch.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Bytes of the virtio-net header that each packet of the port begins with: 0, 10 or 12.
    pub fn header(&self) -> u8 {
        self.header.load(Relaxed)
    }

    /// Changes that, for the packets to come.
    pub fn set_header(&self, bytes: u8) {
        self.header.store(bytes, Relaxed);
    }

    /// The rules by which views that are made from now on treat the port.
    pub fn set_ruled(&self, ruled: Option<Arc<Ruled>>) {
        *self.ruled.lock().unwrap_or_else(PoisonError::into_inner) = ruled;
    }

    /// These rules.
    pub fn ruled(&self) -> Option<Arc<Ruled>> {
        self.ruled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Packets for the port that its own filter refused, and those beyond its limits.
    pub fn refused(&self) -> [u64; 2] {
        [0, 1].map(|i: usize| self.refused[i].load(Relaxed))
    }

    /// Packets that transmit ring `ring` sent and that reached no port, in the order of [`Lost::ALL`].
    pub fn lost(&self, ring: usize) -> [u64; Lost::ALL.len()] {
        std::array::from_fn(|i| self.tx.get(ring).map_or(0, |tx| tx.lost[i].load(Relaxed)))
    }

    /// Packets that receive ring `ring` had no room for.
    pub fn dropped(&self, ring: usize) -> u64 {
        self.rx.get(ring).map_or(0, |rx| rx.dropped.load(Relaxed))
    }

    /// Packets that came to receive ring `ring` with their buffers.
    pub fn swapped(&self, ring: usize) -> u64 {
        self.rx.get(ring).map_or(0, |rx| rx.swapped.load(Relaxed))
    }

    /// As long as what is returned lives, nothing is taken from the port's transmit rings, and no buffer in them changes sides.
    /// Waits for the batches that are on their way.
    pub fn still(&self) -> Vec<Still<'_>> {
        let hold = |ring| {
            let Outgoing { state, wanted, .. }: &Outgoing = ring;
            wanted.fetch_add(1, Relaxed);
            Still { wanted, _state: state.lock().unwrap_or_else(PoisonError::into_inner) }
        };
        self.tx.iter().map(hold).collect()
    }

    /// The receive ring to which another port's transmit ring `ring` leads.
    #[inline]
    pub(super) fn incoming(&self, ring: usize) -> Option<&Incoming> {
        self.rx.get(ring % self.rx.len().max(1))
    }

    /// Copies the packets of a batch from slot `at` on that begin with `addresses` into a receive ring, as long as there is
    /// room; publishes them, and wakes the client if it sleeps. Returns how many.
    #[inline]
    pub(super) fn deliver_run(
        &self,
        from: &Attached,
        ring: usize,
        batch: &Batch<'_>,
        (addresses, at): ([u8; ADDRESSES], u32),
        patience: &Patience,
    ) -> u32 {
        let Some(rx) = self.incoming(ring) else { return 0 };
        patience.delivers_to(self.index);
        let mut done = 0;
        loop {
            let (packets, full) = rx.run((&self.region, &from.region), batch, addresses, at + done, patience);
            done += packets;
            if !full || !patience.give_way(rx) {
                return done;
            }
        }
    }

    /// Whether packets from transmit ring `ring` of another port can just be copied, as they are, into buffers of this one.
    #[inline]
    pub(super) fn takes_copies(&self, from: &Attached, ring: usize) -> bool {
        self.header() == 0
            && self.begins_at_start(ring)
            && !self.region.same(&from.region)
            && self.region.limits().buf_size >= from.region.limits().buf_size
    }

    /// Copies packets of one slot each of a port whose [copies it takes](Attached::takes_copies), as [`Attached::deliver`] does.
    #[inline]
    pub(super) fn deliver_some(&self, from: &Attached, ring: usize, mut packets: &[SlotHead], patience: &Patience) {
        let Some(rx) = self.incoming(ring) else { return };
        patience.delivers_to(self.index);
        loop {
            let done = rx.fill_some((&self.region, &from.region), packets, patience);
            packets = packets.get(done..).unwrap_or_default();
            if packets.is_empty() {
                return;
            }
            if !patience.give_way(rx) {
                break;
            }
        }
        rx.dropped.fetch_add(packets.len() as u64, Relaxed);
    }

    /// Copies packets of a batch of `from`'s into the receive ring that belongs to its transmit ring `ring`, as long as
    /// there is room; publishes them, and wakes the client if it sleeps. A client without room may be given a chance to make
    /// some. With `alone` the packets go to nobody else: in one region they need not be copied.
    #[inline]
    pub(super) fn deliver(
        &self,
        from: &Attached,
        ring: usize,
        batch: &Batch<'_>,
        (mut packets, alone): (impl Iterator<Item = Packet>, bool),
        patience: &Patience,
    ) {
        let Some(rx) = self.incoming(ring) else { return };
        patience.delivers_to(self.index);
        if self.header() != from.header() {
            return translate(rx, self, (from, ring), batch, packets, patience);
        }
        let start = batch.offsets.mask == 0 && rx.begin.get().mask == 0;
        let swap = alone && start && self.region.same(&from.region);
        let mut next = packets.next();
        while let Some(packet) = next {
            next = rx.fill((&self.region, &from.region), (batch, swap), packet, &mut packets, patience);
            if next.is_none() {
                return;
            }
            if !patience.give_way(rx) {
                break;
            }
        }
        let lost = usize::from(next.is_some()) + packets.count();
        rx.dropped.fetch_add(lost as u64, Relaxed);
    }
}

/// Slots that were taken from a source: the copies, and where they start.
///
/// A copy stays as it was taken when its buffer has changed sides; then the packet is the receiver's.
pub(super) struct Batch<'a> {
    line: &'a Consumer,
    pub(super) slots: &'a SlotRing,
    pub(super) start: Pos,
    pub(super) len: u32,
    /// Where in their buffers packets begin.
    pub(super) offsets: Offsets,
    /// Whether the source had no more.
    pub(super) all: bool,
    /// Whether some of them broke the limits: they name the reserved buffer 0 now.
    pub(super) bad: bool,
}

impl Batch<'_> {
    /// The position of the slot `i` slots after the first.
    #[inline(always)]
    pub(super) fn at(&self, i: u32) -> Pos {
        self.slots.slots().add(self.start, i)
    }

    /// What follows after `n` slots.
    pub(super) fn from(&self, n: u32) -> Batch<'_> {
        Batch { start: self.at(n), len: self.len - n, ..*self }
    }
}

/// A client's transmit ring.
pub(super) struct Outgoing {
    line: Consumer,
    /// Wakes the client that waits for slots.
    client: Arc<Bell>,
    pub(super) state: Mutex<Sent>,
    /// How many wait for the lock who are not a thread of the switch: these come first.
    wanted: AtomicU32,
    /// The client's word for which the next look is in vain.
    seen: AtomicU32,
    begin: Begin,
    lost: [AtomicU64; Lost::ALL.len()],
    pub(super) watchers: Watchers,
}

/// Holds a transmit ring as it is, see [`Attached::still`].
pub struct Still<'a> {
    wanted: &'a AtomicU32,
    _state: MutexGuard<'a, Sent>,
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.wanted.fetch_sub(1, Relaxed);
    }
}

/// How far a transmit ring was taken, and what its source remembers.
#[derive(Debug)]
pub(super) struct Sent {
    at: Pos,
    pub(super) cutter: Cutter,
    pub(super) memory: Memory,
}

impl Outgoing {
    fn new(region: &Region, lines: &LinePage, given: Given<'_>) -> io::Result<Outgoing> {
        let theirs = given.view.slots().clone();
        let mine = own_slots(theirs.slots())?;
        let line = Consumer::new(lines, given.line, theirs, mine, region.limits(), CopyKind::best());
        let line = line.ok_or(io::ErrorKind::InvalidInput)?;
        let state = Mutex::new(Sent { at: Pos::ZERO, cutter: Cutter::default(), memory: Memory::default() });
        Ok(Outgoing {
            line,
            client: Arc::new(given.bell),
            state,
            wanted: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            begin: Begin::default(),
            lost: Default::default(),
            watchers: Watchers::default(),
        })
    }

    /// A packet that was sent reaches no port.
    #[cold]
    pub(super) fn lose(&self, why: Lost) {
        self.lost[why as usize].fetch_add(1, Relaxed);
    }

    /// Without judging: whether the client has sent.
    #[inline(always)]
    pub(super) fn moved(&self) -> bool {
        self.line.words().sent_word() != self.seen.load(Relaxed)
    }

    /// Asks for a wake-up; [`unetmap_mem::fence_before_sleep`] and another glance must follow.
    pub(super) fn ask(&self) {
        self.line.words().consumer_ask();
    }

    /// The thread is about to nap until the client has sent, among other things; `false`: it cannot.
    pub(super) fn hear<'a>(&'a self, nap: &mut Nap<'a>) -> bool {
        nap.as_consumer(self.line.words())
    }

    /// The ring's state for a thread of the switch; `None`: somebody else holds the ring still, or is about to.
    #[inline]
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, Sent>> {
        let free = self.wanted.load(Relaxed) == 0;
        free.then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes up to `most` slots, copied and judged; `None` when there are none, or the client's word cannot be.
    #[inline]
    pub(super) fn take(&self, sent: &Sent, most: u32) -> Option<Batch<'_>> {
        let (slots, words) = (self.line.slots(), self.line.words());
        let word = words.sent_word();
        let there = words.sent(slots.slots(), sent.at, sent.at).map_or(0, |to| slots.slots().distance(sent.at, to));
        if there == 0 {
            self.seen.store(word, Relaxed);
            return None;
        }
        let len = there.min(most);
        let span = Span { from: sent.at, to: slots.slots().add(sent.at, len) };
        let mut bad = self.line.take(span, BufIdx(0)) > 0;
        let offsets = self.begin.get();
        if offsets.mask != 0 {
            bad |= self.judge_offsets(span, offsets, self.line.limits());
        }
        Some(Batch { line: &self.line, slots, start: sent.at, len, offsets, all: len == there, bad })
    }

    /// Drops what was sent until now, as something in it cannot be borne; counts the slots.
    pub(super) fn skip(&self, patience: &Patience) {
        let mut sent = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = self.line.slots().slots();
        let there = self.line.words().sent(slots, sent.at, sent.at).map_or(0, |to| slots.distance(sent.at, to));
        sent.cutter = Cutter::default();
        sent.memory = Memory::default();
        self.lost[Lost::Fault as usize].fetch_add(u64::from(there), Relaxed);
        self.release(&mut sent, there, patience);
    }

    /// The next `n` slots are the client's again, which is woken if it waits for that, or later if it naps on this processor.
    #[inline]
    pub(super) fn release(&self, sent: &mut Sent, n: u32, patience: &Patience) {
        sent.at = self.line.slots().slots().add(sent.at, n);
        self.seen.store(sent.at.raw(), Relaxed);
        let cpu = this_cpu();
        self.line.words().consumer_is_on(cpu);
        self.line.words().release(sent.at);
        if self.line.napper(cpu).is_some_and(|one| patience.owes(one, &self.client)) {
            return;
        }
        if self.line.words().producer_sleeps() {
            self.client.ring_now();
        }
    }
}

/// Slots that nobody else can see.
fn own_slots(slots: Slots) -> io::Result<SlotRing> {
    use std::os::fd::AsFd;
    let bytes = RingShape::bytes(slots);
    let fd = memfd::create_sealed("unetmap-switch", bytes as u64)?;
    let window = Window::whole(Arc::new(Mapping::new(fd.as_fd(), bytes)?));
    SlotRing::new(&window, 0, slots).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// A client's receive ring.
pub(super) struct Incoming {
    line: Producer,
    spare: BufIdx,
    /// Wakes the client that waits for packets.
    client: Arc<Bell>,
    state: Mutex<Filled>,
    /// Packets that there was no room for.
    dropped: AtomicU64,
    /// Packets that came with their buffers.
    swapped: AtomicU64,
    begin: Begin,
    copy: CopyKind,
    watchers: Watchers,
}

/// Has memory made for buffers that will be filled soon.
#[inline(always)]
fn prepare(region: &Region, ahead: Option<(BufIdx, u32)>, patience: &Patience) {
    if let Some((first, n)) = ahead {
        // It takes time, so whoever waits on this processor does not wait for that.
        patience.pay();
        region.prepare(first, n);
    }
}

/// How far a receive ring was filled.
#[derive(Clone, Copy, Debug)]
struct Filled {
    prod: Pos,
    /// Up to where the client had given slots back at the last look.
    cons: Pos,
    /// How often the client had a chance to read since it last did.
    chances: u32,
    /// The batch in which it had the last one.
    batch: u32,
    /// At the last look that followed no wait, it had read most of what it got.
    keeps_up: bool,
    ahead: Ahead,
}

impl Filled {
    #[inline(always)]
    fn room(self, n: Slots) -> u32 {
        n.get() - 1 - n.distance(self.cons, self.prod)
    }
}

impl Incoming {
    fn new(lines: &LinePage, given: Given<'_>, buf_size: u32) -> io::Result<Incoming> {
        let line = Producer::new(lines, given.line, given.view.slots().clone()).ok_or(io::ErrorKind::InvalidInput)?;
        let (ahead, keeps_up) = (Ahead::new(line.slots().slots(), buf_size), true);
        let state = Mutex::new(Filled { prod: Pos::ZERO, cons: Pos::ZERO, chances: 0, batch: 0, keeps_up, ahead });
        Ok(Incoming {
            line,
            spare: given.spare,
            client: Arc::new(given.bell),
            state,
            dropped: AtomicU64::new(0),
            swapped: AtomicU64::new(0),
            begin: Begin::default(),
            copy: CopyKind::best(),
            watchers: Watchers::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Filled> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over a run of packets of a batch, from slot `at` on; how many, and whether it ended for want of room.
    #[inline]
    fn run(
        &self,
        (mine, theirs): (&Region, &Region),
        batch: &Batch<'_>,
        addresses: [u8; ADDRESSES],
        at: u32,
        patience: &Patience,
    ) -> (u32, bool) {
        let n = self.line.slots().slots();
        let (source, target) =
            (Side { slots: batch.slots, region: theirs }, Side { slots: self.line.slots(), region: mine });
        let mut state = self.lock();
        let mut filled = *state;
        let (mut done, mut full, swap) = (0, false, mine.same(theirs));
        while at + done < batch.len {
            if filled.room(n) == 0 {
                self.look(&mut filled);
                full = filled.room(n) == 0;
                if full {
                    break;
                }
            }
            let most = filled.room(n).min(batch.len - at - done);
            let from = batch.at(at + done);
            // Up to the end of a ring in one go.
            let whole = most.min(n.get() - filled.prod.raw()).min(batch.slots.slots().get() - from.raw());
            let run = Run { addresses, flags: 1 << 8, most: whole };
            let moved = match swap {
                true => swap_run(batch.line, from, target.slots, filled.prod, mine, run),
                false => copy_run(self.copy, source, from, target, filled.prod, run),
            };
            done += moved;
            filled.prod = n.add(filled.prod, moved);
            if moved < whole {
                break;
            }
        }
        if swap && done > 0 {
            self.swapped.fetch_add(done.into(), Relaxed);
        }
        let ahead = self.publish(mine, &mut state, filled, patience);
        drop(state);
        prepare(mine, ahead, patience);
        (done, full)
    }

    /// Takes over copies of packets of one slot each, as far as there is room; how many.
    #[inline]
    fn fill_some(&self, (mine, theirs): (&Region, &Region), packets: &[SlotHead], patience: &Patience) -> usize {
        let (ring, n) = (self.line.slots(), self.line.slots().slots());
        let target = Side { slots: ring, region: mine };
        let mut state = self.lock();
        let (mut filled, mut done) = (*state, 0);
        while let [next, ..] = &packets[done..] {
            let left = packets.len() - done;
            if (filled.room(n) as usize) < left {
                self.look(&mut filled);
                if filled.room(n) == 0 {
                    break;
                }
            }
            // Up to the end of the ring in one go.
            let whole = left.min(filled.room(n).min(n.get() - filled.prod.raw()) as usize);
            let mut moved = copy_some(self.copy, theirs, &packets[done..done + whole], target, filled.prod, 1 << 8);
            if moved == 0 {
                let (to, from) = (self.buffer(mine, filled.prod), theirs.frame(next.buf_idx()));
                let len = copy_packet(self.copy, &to, &from, usize::from(next.len()));
                ring.set_len_flags(filled.prod, len as u16, 1 << 8);
                moved = 1;
            }
            filled.prod = n.add(filled.prod, moved);
            done += moved as usize;
        }
        let ahead = self.publish(mine, &mut state, filled, patience);
        drop(state);
        prepare(mine, ahead, patience);
        done
    }

    /// Takes over packet after packet, with `swap` without copying them; returns the first that there is no room for.
    #[inline]
    fn fill(
        &self,
        (mine, theirs): (&Region, &Region),
        (batch, swap): (&Batch<'_>, bool),
        first: Packet,
        packets: &mut impl Iterator<Item = Packet>,
        patience: &Patience,
    ) -> Option<Packet> {
        let (ring, n) = (self.line.slots(), self.line.slots().slots());
        let narrow = mine.limits().buf_size < theirs.limits().buf_size || self.begin.get().mask != 0;
        let mut state = self.lock();
        let mut filled = *state;
        let (mut next, mut swapped) = (Some(first), 0);
        while let Some(packet) = next {
            if filled.room(n) < u32::from(packet.frags) {
                self.look(&mut filled);
                if filled.room(n) < u32::from(packet.frags) {
                    break;
                }
            }
            next = packets.next();
            if !swap {
                // Written soon, unless there is no room; then it was asked for in vain.
                mine.fetch_to_write(ring.buf_idx(n.add(filled.prod, AHEAD.min(n.get()))));
            }
            if narrow && !self.fits(mine, batch, packet, filled.prod) {
                self.dropped.fetch_add(1, Relaxed);
                continue;
            }
            let mut copied = false;
            for i in 0..packet.frags {
                let from = batch.at(u32::from(packet.at + i));
                let more = if i + 1 == packet.frags { 0 } else { NS_MOREFRAG };
                let flags = packet.frags << 8 | more;
                if !swap || !swap_one(batch.line, from, ring, filled.prod, flags) {
                    let slot = batch.slots.load(from);
                    let to = self.buffer(mine, filled.prod);
                    let len = copy_packet(self.copy, &to, &batch.frame(theirs, slot), usize::from(slot.len));
                    ring.set_len_flags(filled.prod, len as u16, flags);
                    copied = true;
                }
                filled.prod = n.next(filled.prod);
            }
            swapped += u64::from(!copied);
        }
        if swapped > 0 {
            self.swapped.fetch_add(swapped, Relaxed);
        }
        let ahead = self.publish(mine, &mut state, filled, patience);
        drop(state);
        prepare(mine, ahead, patience);
        next
    }

    /// Ends a delivery: what was filled is the client's, which is woken if it sleeps, or later if that is soon enough; it
    /// lies in the buffers of `mine`. Returns which buffers, and how many, are to be [prepared](prepare) when the ring is
    /// others' again.
    #[inline(always)]
    fn publish(&self, mine: &Region, state: &mut Filled, filled: Filled, patience: &Patience) -> Option<(BufIdx, u32)> {
        let moved = filled.prod != state.prod;
        if moved && self.watchers.any() {
            let ring = (self.line.slots(), self.begin.get());
            self.watchers.show(mine, ring, Span { from: state.prod, to: filled.prod });
        }
        let before = state.prod;
        *state = filled;
        if moved {
            let cpu = this_cpu();
            self.line.words().producer_is_on(cpu);
            self.line.words().publish(filled.prod);
            self.wake(cpu, filled, patience);
            if filled.ahead.any() {
                return state.ahead.next(self.line.slots(), Span { from: before, to: filled.prod });
            }
        }
        None
    }

    /// The thread is about to sleep, and may be woken on any processor: the client's, perhaps.
    pub(super) fn sleeps(&self) {
        self.line.words().producer_is_anywhere();
    }

    /// The buffer in slot `p`, as the client left it there, from where the packet is to begin.
    #[inline(always)]
    fn buffer<'a>(&self, region: &'a Region, p: Pos) -> Frame<'a> {
        let mut idx = self.line.slots().buf_idx(p);
        if !region.limits().index_ok(idx) {
            self.line.slots().set_buf_idx(p, self.spare);
            idx = self.spare;
        }
        self.begin.get().within(region.frame(idx), || self.line.slots().ptr(p))
    }

    /// Where the client is now. A word that cannot be leaves everything as it is: its ring stays full.
    fn look(&self, filled: &mut Filled) {
        if let Some(cons) = self.line.words().released(self.line.slots().slots(), filled.cons, filled.prod) {
            if cons != filled.cons {
                filled.chances = 0;
            }
            filled.cons = cons;
            let n = self.line.slots().slots();
            filled.keeps_up = filled.room(n) >= n.get() / 4;
        }
    }
}
