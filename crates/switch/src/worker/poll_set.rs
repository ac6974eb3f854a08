// SPDX-License-Identifier: BSD-2-Clause
//! Which transmit rings a thread polls, and which end its futex wait.
//!
//! ```text
//! a ring sends   a pass polls it                         ends a futex wait
//! often          always (busy)                           by its position word
//! seldom         now and then, and after a wait (idle)   by its position word
//! hardly ever    now and then                            by its port's doorbell (see `idle_listener`), once armed
//! ```
//! Polling a ring without new slots costs cache lines that the packets of other ports have evicted by then. So while
//! other rings are busy a pass leaves out idle rings, for [`FULL_PASS_INTERVAL_NS`] by the clock. The first packet of
//! an idle ring waits that long at most, and not at all while the thread has no other work. A ring whose client
//! notifies the doorbell need not be polled before or after a futex wait, unless a doorbell fired; a client that does
//! not notify although it should waits for the next full pass.
//!
//! The position words of all rings are referenced from one list, so that their cache lines are fetched in parallel.
//! On the way through port, ring and channel each load would wait for the one before.

use unetmap_mem::ProdWord;

use crate::backpressure::PortId;
use crate::tuning::{
    CLOCK_READ_PASSES, CLOCK_READ_SLOTS, DOORBELL_AFTER_NS, FEW_IDLE_RINGS, FULL_PASS_INTERVAL_NS, IDLE_AFTER_NS,
};

/// A transmit ring: the index of its switch, the index of its port, and its number.
pub(crate) type RingId = (usize, u8, usize);

/// The position word of a ring, which its client writes when it has sent.
pub(crate) trait IndexWord {
    fn load(&self) -> u32;
}

impl IndexWord for ProdWord {
    #[inline(always)]
    fn load(&self) -> u32 {
        self.get()
    }
}

/// The transmit rings of one thread.
pub(crate) struct PollSet<W = ProdWord> {
    rings: Vec<PolledRing>,
    /// Their position words, in the same order.
    indexes: Vec<CachedIndex<W>>,
    /// Rings that are not idle.
    busy: Vec<usize>,
    /// Rings whose words end a futex wait, in order: all but those with an armed doorbell.
    futex_waited: Vec<usize>,
    /// The time when the clock was read last, and of the last full pass.
    now: u64,
    last_full_pass: u64,
    /// Slots and passes since the clock was read.
    slots: u32,
    passes: u32,
    /// Passes in a row without a slot.
    empty_passes: u32,
    /// The least that the next pass polls.
    next_scope: Scope,
}

/// The state of a ring in the set.
struct PolledRing {
    id: RingId,
    /// The time when the ring last had a slot.
    last_slot: u64,
    /// It is in `busy`.
    busy: bool,
    /// Its client was requested to notify the doorbell.
    doorbell_armed: bool,
}

struct CachedIndex<W> {
    word: W,
    /// The value at which the ring was found empty.
    empty_at: Option<u32>,
}

/// The rings that a pass polls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    Busy,
    FutexWaited,
    All,
}

impl<W> Default for PollSet<W> {
    fn default() -> PollSet<W> {
        PollSet {
            rings: Vec::new(),
            indexes: Vec::new(),
            busy: Vec::new(),
            futex_waited: Vec::new(),
            now: 0,
            last_full_pass: 0,
            slots: 0,
            passes: 0,
            empty_passes: 0,
            next_scope: Scope::All,
        }
    }
}

impl<W: IndexWord> PollSet<W> {
    /// The set of these rings with their position words; rings of one port must be adjacent. The first pass polls all.
    pub(crate) fn new(rings: impl Iterator<Item = (RingId, W)>) -> PollSet<W> {
        let idle = |id| PolledRing { id, last_slot: 0, busy: false, doorbell_armed: false };
        let rings = rings.map(|(id, word)| (idle(id), CachedIndex { word, empty_at: None }));
        let (rings, indexes): (Vec<_>, Vec<_>) = rings.unzip();
        PollSet { futex_waited: (0..rings.len()).collect(), rings, indexes, ..PollSet::default() }
    }

    /// Returns the number of rings.
    pub(crate) fn len(&self) -> usize {
        self.rings.len()
    }

    /// Returns the number of rings that sent lately.
    pub(crate) fn busy(&self) -> usize {
        self.busy.len()
    }

    /// Makes the next pass poll idle rings too, as after a wait; with `all` also those with an armed doorbell.
    pub(crate) fn include_idle(&mut self, all: bool) {
        self.next_scope = self.next_scope.max(if all { Scope::All } else { Scope::FutexWaited });
    }

    /// Does one pass. `serve` takes the slots of a ring and returns how many; `None`: the ring is empty. Returns
    /// their sum.
    pub(crate) fn pass(&mut self, now: impl FnOnce() -> u64, mut serve: impl FnMut(RingId) -> Option<u32>) -> u32 {
        let mut sum = 0;
        let scope = self.scope(now);
        match scope {
            Scope::Busy => (0..self.busy.len()).for_each(|n| sum += self.poll(self.busy[n], &mut serve)),
            Scope::FutexWaited => {
                (0..self.futex_waited.len()).for_each(|n| sum += self.poll(self.futex_waited[n], &mut serve));
            }
            Scope::All => (0..self.rings.len()).for_each(|i| sum += self.poll(i, &mut serve)),
        }
        if scope > Scope::Busy {
            self.busy.retain(|&i| {
                let ring = &mut self.rings[i];
                ring.busy = self.now.saturating_sub(ring.last_slot) < IDLE_AFTER_NS;
                ring.busy
            });
        }
        self.slots = self.slots.saturating_add(sum);
        self.passes += 1;
        self.empty_passes = if sum == 0 { self.empty_passes + 1 } else { 0 };
        sum
    }

    #[inline]
    fn scope(&mut self, now: impl FnOnce() -> u64) -> Scope {
        let mut scope = std::mem::replace(&mut self.next_scope, Scope::Busy);
        if scope == Scope::Busy && !self.is_clock_due() {
            return scope;
        }
        self.now = now();
        (self.slots, self.passes) = (0, 0);
        let few_idle = self.rings.len() - self.busy.len() <= FEW_IDLE_RINGS;
        let is_due = self.now.saturating_sub(self.last_full_pass) >= FULL_PASS_INTERVAL_NS;
        if few_idle || is_due || self.empty_passes >= CLOCK_READ_PASSES {
            scope = Scope::All;
        }
        if scope == Scope::All {
            (self.last_full_pass, self.empty_passes) = (self.now, 0);
        }
        scope
    }

    /// True if the clock is to be read.
    fn is_clock_due(&self) -> bool {
        self.slots >= CLOCK_READ_SLOTS || self.passes >= CLOCK_READ_PASSES
    }

    #[inline(always)]
    fn poll(&mut self, i: usize, serve: &mut impl FnMut(RingId) -> Option<u32>) -> u32 {
        let index = &mut self.indexes[i];
        let value = index.word.load();
        if index.empty_at == Some(value) {
            return 0;
        }
        let Some(slots) = serve(self.rings[i].id) else {
            index.empty_at = Some(value);
            return 0;
        };
        // Positions wrap: the same value may mean new slots the next time.
        index.empty_at = None;
        let ring = &mut self.rings[i];
        ring.last_slot = self.now;
        if !ring.busy {
            ring.busy = true;
            self.busy.push(i);
        }
        if ring.doorbell_armed {
            self.return_to_futex(i);
        }
        slots
    }

    /// The ring has sent or notified its doorbell: its word ends futex waits again.
    #[cold]
    fn return_to_futex(&mut self, i: usize) {
        self.rings[i].doorbell_armed = false;
        self.futex_waited.push(i);
        self.futex_waited.sort_unstable();
    }

    /// True if the position of a ring in the futex wait, or with `all` of any ring, changed and `has_slots` confirms
    /// it.
    pub(crate) fn any_sent(&self, all: bool, has_slots: impl Fn(RingId) -> bool) -> bool {
        let sent = |i: usize| {
            let index = &self.indexes[i];
            index.empty_at != Some(index.word.load()) && has_slots(self.rings[i].id)
        };
        if all { (0..self.rings.len()).any(sent) } else { self.futex_waited.iter().copied().any(sent) }
    }

    /// Notes that a port's doorbell fired: all rings of the port end futex waits by their words again.
    pub(crate) fn doorbell_fired(&mut self, port: PortId) {
        for i in 0..self.rings.len() {
            let ring = &mut self.rings[i];
            if (ring.id.0, ring.id.1) == port {
                ring.last_slot = self.now;
                if ring.doorbell_armed {
                    self.return_to_futex(i);
                }
            }
        }
    }

    /// Before a futex wait: calls `arm` for each ring that becomes one with a doorbell; `arm` returns whether that
    /// worked, and is called with `true` until it did for one ring of the port. True if any ring changed.
    pub(crate) fn arm_idle(&mut self, now: u64, mut arm: impl FnMut(RingId, bool) -> bool) -> bool {
        let mut last = None;
        self.futex_waited.retain(|&i| {
            let ring = &mut self.rings[i];
            let (switch, port, _) = ring.id;
            if now.saturating_sub(ring.last_slot) >= DOORBELL_AFTER_NS {
                ring.doorbell_armed = arm(ring.id, last != Some((switch, port)));
                last = if ring.doorbell_armed { Some((switch, port)) } else { last };
            }
            !ring.doorbell_armed
        });
        last.is_some()
    }

    /// Returns the rings whose words end a futex wait.
    pub(crate) fn futex_waited(&self) -> impl Iterator<Item = RingId> {
        self.futex_waited.iter().map(|&i| self.rings[i].id)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    impl IndexWord for Rc<Cell<u32>> {
        fn load(&self) -> u32 {
            self.get()
        }
    }

    /// Each ring has a port of its own, except the second and the third, which share one.
    const RINGS: [RingId; 8] = [(0, 1, 0), (0, 2, 0), (0, 2, 1), (1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 0), (1, 5, 0)];

    /// Rings, their words, and a clock.
    struct Bench {
        set: PollSet<Rc<Cell<u32>>>,
        words: Vec<Rc<Cell<u32>>>,
        now: u64,
    }

    impl Bench {
        fn new(rings: &[RingId]) -> Bench {
            let words: Vec<_> = rings.iter().map(|_| Rc::new(Cell::new(0))).collect();
            let set = PollSet::new(rings.iter().copied().zip(words.iter().cloned()));
            assert_eq!(set.len(), rings.len());
            Bench { set, words, now: 1 << 40 }
        }

        /// Lets each of these rings send `slots` slots, then does a pass; returns the rings that were served.
        fn pass(&mut self, sent: &[RingId], slots: u32) -> Vec<RingId> {
            sent.iter().for_each(|ring| self.send(*ring, slots));
            self.poll(slots)
        }

        fn send(&self, ring: RingId, slots: u32) {
            let at = RINGS.iter().position(|one| *one == ring).unwrap();
            self.words[at].set(self.words[at].get() + slots);
        }

        fn poll(&mut self, slots: u32) -> Vec<RingId> {
            let mut took = Vec::new();
            // A ring whose word changed is polled once, even if it is empty.
            let (words, now) = (&self.words, self.now);
            let sum = self.set.pass(
                || now,
                |ring| {
                    let word = &words[RINGS.iter().position(|one| *one == ring).unwrap()];
                    (word.get() > 0).then(|| {
                        word.set(0);
                        took.push(ring);
                        slots
                    })
                },
            );
            assert_eq!(sum, slots * took.len() as u32);
            took
        }

        /// Does passes until rings that do not send are idle.
        fn settle(&mut self) {
            self.now += IDLE_AFTER_NS;
            self.set.include_idle(true);
            assert_eq!(self.pass(&[], 0), []);
        }
    }

    #[test]
    fn idle_rings_are_polled_by_the_clock() {
        let (busy, late) = (RINGS[1], RINGS[3]);
        let mut bench = Bench::new(&RINGS);
        assert_eq!(bench.pass(&[busy], 1), [busy], "the first pass polls all rings");
        bench.send(late, 1);
        for _ in 0..10 * CLOCK_READ_PASSES {
            assert_eq!(bench.pass(&[busy], CLOCK_READ_SLOTS), [busy]);
            bench.now += FULL_PASS_INTERVAL_NS / 100 / u64::from(CLOCK_READ_PASSES);
        }
        bench.now += FULL_PASS_INTERVAL_NS;
        assert_eq!(bench.pass(&[busy], CLOCK_READ_SLOTS), [busy, late], "a full pass is due");
        assert_eq!(bench.pass(&[busy, late], 1), [busy, late], "it is busy now");
    }

    #[test]
    fn small_batches_do_not_delay_the_clock() {
        let (busy, late) = (RINGS[1], RINGS[3]);
        let mut bench = Bench::new(&RINGS);
        bench.pass(&[busy], 1);
        bench.now += FULL_PASS_INTERVAL_NS;
        bench.send(late, 1);
        let passes = (0..).find(|_| bench.pass(&[busy], 1).contains(&late)).unwrap();
        assert!(passes <= CLOCK_READ_PASSES, "{passes}");
    }

    #[test]
    fn few_idle_rings_are_polled_without_the_clock() {
        let mut bench = Bench::new(&RINGS[..3]);
        let (busy, late) = (RINGS[0], RINGS[2]);
        bench.pass(&[busy], 1);
        bench.send(late, 1);
        let passes = (0..).find(|_| bench.pass(&[busy], CLOCK_READ_SLOTS).contains(&late)).unwrap();
        assert_eq!(passes, 1);
    }

    #[test]
    fn a_thread_without_work_polls_all_rings() {
        let mut bench = Bench::new(&RINGS);
        bench.pass(&[RINGS[0]], 1);
        bench.settle();
        bench.set.arm_idle(bench.now + DOORBELL_AFTER_NS, |_, _| true);
        bench.pass(&[], 0);
        bench.send(RINGS[3], 1);
        let passes = (0..).find(|_| bench.poll(1) == [RINGS[3]]).unwrap();
        assert!(passes <= CLOCK_READ_PASSES, "{passes}");
    }

    #[test]
    fn a_ring_becomes_idle_by_time_and_not_by_polls() {
        let mut bench = Bench::new(&RINGS);
        bench.pass(&RINGS, 1);
        bench.now += IDLE_AFTER_NS - 1;
        for _ in 0..1000 {
            bench.set.include_idle(true);
            bench.poll(0);
        }
        assert_eq!(bench.set.busy(), RINGS.len());
        assert_eq!(bench.pass(&RINGS, 1), RINGS);
        bench.settle();
        assert_eq!(bench.set.busy(), 0);
        bench.send(RINGS[0], 1);
        assert_eq!(bench.poll(1), []);
    }

    #[test]
    fn full_rings_take_turns_of_one_batch_and_a_single_packet_waits_for_one_turn_of_each() {
        let mut bench = Bench::new(&RINGS);
        let mut served = [0; RINGS.len()];
        for pass in 0..100 {
            // The last ring has one packet in each tenth pass, the others always have more than a batch.
            let few = pass % 10 == 0;
            RINGS[..7].iter().for_each(|ring| bench.send(*ring, 512));
            few.then(|| bench.send(RINGS[7], 1));
            let order = bench.poll(512);
            order.iter().for_each(|ring| served[RINGS.iter().position(|one| one == ring).unwrap()] += 1);
            assert_eq!(order.contains(&RINGS[7]), few, "served in the pass after it has sent");
            assert!(order.len() <= RINGS.len(), "each once");
        }
        assert_eq!(served[..7], [100; 7]);
        assert_eq!(served[7], 10);
    }

    #[test]
    fn an_empty_ring_is_not_polled_until_its_word_changes() {
        let word = Rc::new(Cell::new(7));
        let mut set = PollSet::new([(RINGS[0], word.clone())].into_iter());
        let polls = |set: &mut PollSet<_>, slots: Option<u32>| {
            let mut polls = 0;
            set.include_idle(true);
            set.pass(
                || 0,
                |_| {
                    polls += 1;
                    slots
                },
            );
            polls
        };
        assert_eq!(polls(&mut set, Some(1)), 1);
        assert_eq!(polls(&mut set, Some(0)), 1, "the word is unchanged, but there may be more slots");
        assert_eq!(polls(&mut set, None), 1);
        assert_eq!(polls(&mut set, None), 0);
        assert!(!set.any_sent(true, |_| true));
        word.set(8);
        assert!(set.any_sent(true, |_| true));
        assert!(!set.any_sent(true, |_| false));
        assert_eq!(polls(&mut set, None), 1);
        word.set(9);
        assert_eq!(polls(&mut set, Some(1)), 1);
        // The position wrapped to a value at which the ring was empty before.
        word.set(8);
        assert!(set.any_sent(true, |_| true));
        assert_eq!(polls(&mut set, Some(1)), 1);
    }

    #[test]
    fn rings_with_an_armed_doorbell_are_not_polled_until_it_fires() {
        let mut bench = Bench::new(&RINGS);
        bench.pass(&[RINGS[0]], 1);
        bench.settle();
        assert!(bench.set.arm_idle(bench.now + DOORBELL_AFTER_NS, |ring, _| ring != RINGS[1]));
        let (waited, armed) = (RINGS[1], RINGS[3]);
        bench.send(armed, 1);
        bench.set.include_idle(false);
        assert_eq!(bench.poll(1), []);
        assert!(!bench.set.any_sent(false, |_| true));
        assert!(bench.set.any_sent(true, |_| true));
        bench.send(waited, 1);
        assert!(bench.set.any_sent(false, |_| true));
        bench.set.include_idle(false);
        assert_eq!(bench.poll(1), [waited]);
        // Its doorbell fired.
        bench.set.doorbell_fired((1, 1));
        bench.set.include_idle(false);
        assert_eq!(bench.poll(1), [armed]);
        // Its doorbell never fires, but a full pass is due.
        bench.send(RINGS[4], 1);
        bench.now += FULL_PASS_INTERVAL_NS;
        bench.set.include_idle(false);
        assert_eq!(bench.poll(1), [RINGS[4]]);
    }

    #[test]
    fn doorbells_are_armed_after_a_long_time_without_slots() {
        let rings = &RINGS[..4];
        let mut bench = Bench::new(rings);
        bench.pass(&RINGS[..1], 1);
        let set = &mut bench.set;
        let mut armed = Vec::new();
        let now = bench.now;
        assert!(!set.arm_idle(now, |ring, first| {
            armed.push((ring, first));
            false
        }));
        assert_eq!(armed, [(RINGS[1], true), (RINGS[2], true), (RINGS[3], true)], "none could be armed");
        armed.clear();
        assert!(set.arm_idle(now, |ring, first| {
            armed.push((ring, first));
            ring != RINGS[3]
        }));
        assert_eq!(armed, [(RINGS[1], true), (RINGS[2], false), (RINGS[3], true)]);
        assert!(set.futex_waited().eq([RINGS[0], RINGS[3]]), "one could not be armed");
        assert!(set.arm_idle(now, |ring, first| ring == RINGS[3] && first));
        assert!(!set.arm_idle(now + DOORBELL_AFTER_NS - 1, |_, _| true));
        assert!(set.futex_waited().eq([RINGS[0]]));
        assert!(set.arm_idle(now + DOORBELL_AFTER_NS, |_, _| true));
        assert!(set.futex_waited().eq([]));
        set.doorbell_fired((0, 2));
        assert!(set.futex_waited().eq([RINGS[1], RINGS[2]]));
        set.include_idle(true);
        bench.pass(&RINGS[3..4], 1);
        assert!(bench.set.futex_waited().eq(RINGS[1..4].iter().copied()));
    }
}
