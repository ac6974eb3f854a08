//! Which rings a thread looks at, and which wake it from a nap.
//!
//! ```text
//! a ring sends   is looked at                        wakes a nap
//! often          in each pass                        by its word
//! seldom         now and then, and after a nap       by its word
//! hardly ever    now and then                        by its port's bell (see `ear`): it is asked to ring that
//! ```
//! To look at a ring that has nothing takes cache lines that the packets of others have driven out by then. So a pass leaves
//! out rings that are quiet, for [`EVERY`] by the clock. Whoever sends first waits for that, and not while the thread has
//! nothing else to do. Who is to ring a bell need not be looked at before a nap or after, unless a bell rang; should it ring
//! none, it waits until it is time.
//!
//! The words by which rings tell that something was sent stand in one list, so that their cache lines come all at once. On
//! the way through port and ring each would have to be waited for.

use unetmap_mem::SentWord;

use crate::worker::backpressure::Which;

/// A ring, by the number of its view, of its port, and its own.
pub(crate) type Ring = (usize, u8, usize);

/// How long quiet rings are not looked at where others are busy, nanoseconds.
const EVERY: u64 = 50_000;
/// Slots that are moved before the clock is read: some 10 us with small packets.
const SLOTS: u32 = 1024;
/// Passes that are made before, and passes without anything before all rings are looked at.
const PASSES: u32 = 8;
/// Quiet rings that cost no more than the clock.
const FEW: usize = 4;
/// Looks in a row in vain, those at busy rings alone not counted, that make a ring quiet.
const LOOKS: u32 = 16;
/// Naps without anything that make a ring one that is to ring a bell: some 10 ms, in which it costs less to hear it.
const NAPS: u32 = 64;

/// What a client writes when it has sent.
pub(crate) trait Word {
    fn word(&self) -> u32;
}

impl Word for SentWord {
    #[inline(always)]
    fn word(&self) -> u32 {
        self.get()
    }
}

/// See the module. Of one thread.
pub(crate) struct Rounds<W = SentWord> {
    all: Vec<Known>,
    /// Theirs, in the same order.
    words: Vec<Glance<W>>,
    /// Those that are not quiet.
    busy: Vec<usize>,
    /// Those that were not asked to ring a bell, in order.
    heard: Vec<usize>,
    /// When all were looked at.
    looked: u64,
    /// Slots and passes since the clock was read.
    slots: u32,
    passes: u32,
    /// Passes in a row in which nothing came.
    vain: u32,
    /// What the next pass is to look at, at least.
    next: Scope,
}

/// What is known of a ring.
struct Known {
    ring: Ring,
    /// Looks, and naps, since it had something.
    looks: u32,
    naps: u32,
    /// Whether it is among those.
    busy: bool,
    /// Whether it was asked to ring its bell.
    asked: bool,
}

struct Glance<W> {
    word: W,
    /// For which a look is in vain.
    seen: Option<u32>,
}

/// Rings that a pass looks at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    Busy,
    Heard,
    All,
}

impl<W> Default for Rounds<W> {
    fn default() -> Rounds<W> {
        Rounds {
            all: Vec::new(),
            words: Vec::new(),
            busy: Vec::new(),
            heard: Vec::new(),
            looked: 0,
            slots: 0,
            passes: 0,
            vain: 0,
            next: Scope::All,
        }
    }
}

impl<W: Word> Rounds<W> {
    /// Begins with these rings and their words, those of a port in a row. The first pass looks at all.
    pub(crate) fn of(rings: impl Iterator<Item = (Ring, W)>) -> Rounds<W> {
        let known = |ring| Known { ring, looks: LOOKS, naps: NAPS, busy: false, asked: false };
        let rings = rings.map(|(ring, word)| (known(ring), Glance { word, seen: None }));
        let (all, words): (Vec<_>, Vec<_>) = rings.unzip();
        Rounds { heard: (0..all.len()).collect(), all, words, ..Rounds::default() }
    }

    /// How many rings there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The thread rests, or did: a quiet ring may be why there is a next pass. `all`: one that was asked to ring its bell, too.
    pub(crate) fn rests(&mut self, all: bool) {
        self.next = self.next.max(if all { Scope::All } else { Scope::Heard });
    }

    /// One pass. `look` takes what a ring has, and says how many slots that were; `None`: it has nothing. Returns their sum.
    pub(crate) fn pass(&mut self, now: impl FnOnce() -> u64, mut look: impl FnMut(Ring) -> Option<u32>) -> u32 {
        let mut sum = 0;
        let scope = self.scope(now);
        match scope {
            Scope::Busy => (0..self.busy.len()).for_each(|n| sum += self.look(self.busy[n], &mut look)),
            Scope::Heard => (0..self.heard.len()).for_each(|n| sum += self.look(self.heard[n], &mut look)),
            Scope::All => (0..self.all.len()).for_each(|i| sum += self.look(i, &mut look)),
        }
        if scope > Scope::Busy {
            self.busy.retain(|&i| {
                let known = &mut self.all[i];
                known.looks += 1;
                // Not counted was the look that found something.
                known.busy = known.looks <= LOOKS;
                known.busy
            });
        }
        self.slots = self.slots.saturating_add(sum);
        self.passes += 1;
        self.vain = if sum == 0 { self.vain + 1 } else { 0 };
        sum
    }

    #[inline]
    fn scope(&mut self, now: impl FnOnce() -> u64) -> Scope {
        let mut scope = std::mem::replace(&mut self.next, Scope::Busy);
        if self.vain >= PASSES || self.all.len() - self.busy.len() <= FEW && self.is_time() {
            scope = Scope::All;
        }
        if scope == Scope::Busy && !self.is_time() {
            return scope;
        }
        if self.all.len() - self.busy.len() > FEW {
            let now = now();
            if scope == Scope::All || now.saturating_sub(self.looked) >= EVERY {
                (scope, self.looked) = (Scope::All, now);
            }
        }
        (self.slots, self.passes) = (0, 0);
        if scope == Scope::All {
            self.vain = 0;
        }
        scope
    }

    /// Whether it is time for a look at the clock.
    fn is_time(&self) -> bool {
        self.slots >= SLOTS || self.passes >= PASSES
    }

    #[inline(always)]
    fn look(&mut self, i: usize, look: &mut impl FnMut(Ring) -> Option<u32>) -> u32 {
        let glance = &mut self.words[i];
        let word = glance.word.word();
        if glance.seen == Some(word) {
            return 0;
        }
        let Some(slots) = look(self.all[i].ring) else {
            glance.seen = Some(word);
            return 0;
        };
        // A ring comes round: the same word may mean more the next time.
        glance.seen = None;
        let known = &mut self.all[i];
        (known.looks, known.naps) = (0, 0);
        if !known.busy {
            known.busy = true;
            self.busy.push(i);
        }
        if known.asked {
            self.hear_again(i);
        }
        slots
    }

    /// It was asked to ring its bell, and has done so or sent.
    #[cold]
    fn hear_again(&mut self, i: usize) {
        self.all[i].asked = false;
        self.heard.push(i);
        self.heard.sort_unstable();
    }

    /// Whether one of the rings that are heard has something, of which `moved` is sure; `all`: or any ring.
    pub(crate) fn stirs(&self, all: bool, moved: impl Fn(Ring) -> bool) -> bool {
        let stirs = |i: usize| {
            let glance = &self.words[i];
            glance.seen != Some(glance.word.word()) && moved(self.all[i].ring)
        };
        if all { (0..self.all.len()).any(stirs) } else { self.heard.iter().copied().any(stirs) }
    }

    /// A port's bell rang: all its rings are to be heard themselves.
    pub(crate) fn rang(&mut self, which: Which) {
        for i in 0..self.all.len() {
            let known = &mut self.all[i];
            if (known.ring.0, known.ring.1) == which {
                known.naps = 0;
                if known.asked {
                    self.hear_again(i);
                }
            }
        }
    }

    /// The thread is about to nap: `ask` is for each ring that from now on is to ring its bell, and says whether it can; with
    /// `true` until one of the port's could. Whether any could.
    pub(crate) fn ask_quiet(&mut self, mut ask: impl FnMut(Ring, bool) -> bool) -> bool {
        let mut last = None;
        self.heard.retain(|&i| {
            let known = &mut self.all[i];
            known.naps = known.naps.saturating_add(1);
            let (view, port, _) = known.ring;
            if known.naps > NAPS {
                known.asked = ask(known.ring, last != Some((view, port)));
                last = if known.asked { Some((view, port)) } else { last };
            }
            !known.asked
        });
        last.is_some()
    }

    /// The rings that are to be heard in a nap.
    pub(crate) fn heard(&self) -> impl Iterator<Item = Ring> {
        self.heard.iter().map(|&i| self.all[i].ring)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    impl Word for Rc<Cell<u32>> {
        fn word(&self) -> u32 {
            self.get()
        }
    }

    /// A ring that no other has, of a port of its own but for the second and the third.
    const RINGS: [Ring; 8] = [(0, 1, 0), (0, 2, 0), (0, 2, 1), (1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 0), (1, 5, 0)];

    /// Rings, their words, and a clock.
    struct Bench {
        rounds: Rounds<Rc<Cell<u32>>>,
        words: Vec<Rc<Cell<u32>>>,
        now: u64,
    }

    impl Bench {
        fn new(rings: &[Ring]) -> Bench {
            let words: Vec<_> = rings.iter().map(|_| Rc::new(Cell::new(0))).collect();
            let rounds = Rounds::of(rings.iter().copied().zip(words.iter().cloned()));
            assert_eq!(rounds.len(), rings.len());
            Bench { rounds, words, now: 0 }
        }

        /// A pass in which each of these rings has sent so many slots; which rings had something.
        fn pass(&mut self, sent: &[Ring], slots: u32) -> Vec<Ring> {
            sent.iter().for_each(|ring| self.send(*ring, slots));
            self.look(slots)
        }

        fn send(&self, ring: Ring, slots: u32) {
            let at = RINGS.iter().position(|one| *one == ring).unwrap();
            self.words[at].set(self.words[at].get() + slots);
        }

        fn look(&mut self, slots: u32) -> Vec<Ring> {
            let mut took = Vec::new();
            // A word that was not seen before is worth one look, if there is nothing as well.
            let (words, now) = (&self.words, self.now);
            let sum = self.rounds.pass(
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

        /// Passes until rings that never send again are quiet.
        fn settle(&mut self) {
            for _ in 0..=LOOKS {
                self.rounds.rests(true);
                assert_eq!(self.pass(&[], 0), []);
            }
        }
    }

    #[test]
    fn quiet_rings_are_looked_at_now_and_then() {
        let (busy, late) = (RINGS[1], RINGS[3]);
        let mut bench = Bench::new(&RINGS);
        assert_eq!(bench.pass(&[busy], 1), [busy], "the first pass looks at all");
        bench.send(late, 1);
        for _ in 0..10 * PASSES {
            assert_eq!(bench.pass(&[busy], SLOTS), [busy]);
            bench.now += EVERY / 100 / u64::from(PASSES);
        }
        bench.now += EVERY;
        assert_eq!(bench.pass(&[busy], SLOTS), [busy, late], "it is time");
        assert_eq!(bench.pass(&[busy, late], 1), [busy, late], "it has sent");
    }

    #[test]
    fn small_batches_do_not_put_off_the_clock() {
        let (busy, late) = (RINGS[1], RINGS[3]);
        let mut bench = Bench::new(&RINGS);
        bench.pass(&[busy], 1);
        bench.now += EVERY;
        bench.send(late, 1);
        let passes = (0..).find(|_| bench.pass(&[busy], 1).contains(&late)).unwrap();
        assert!(passes <= PASSES, "{passes}");
    }

    #[test]
    fn a_few_quiet_rings_need_no_clock() {
        let mut bench = Bench::new(&RINGS[..3]);
        let (busy, late) = (RINGS[0], RINGS[2]);
        bench.pass(&[busy], 1);
        bench.send(late, 1);
        let passes = (0..).find(|_| bench.pass(&[busy], SLOTS).contains(&late)).unwrap();
        assert_eq!(passes, 1);
    }

    #[test]
    fn who_has_nothing_else_to_do_looks_at_all() {
        let mut bench = Bench::new(&RINGS);
        bench.pass(&[RINGS[0]], 1);
        bench.settle();
        bench.rounds.ask_quiet(|_, _| true);
        bench.pass(&[], 0);
        bench.send(RINGS[3], 1);
        let passes = (0..).find(|_| bench.look(1) == [RINGS[3]]).unwrap();
        assert!(passes <= PASSES, "{passes}");
    }

    #[test]
    fn a_ring_becomes_quiet_when_it_has_nothing_for_long() {
        let mut bench = Bench::new(&RINGS);
        bench.pass(&RINGS, 1);
        for _ in 1..LOOKS {
            bench.rounds.rests(true);
            bench.look(0);
        }
        assert_eq!(bench.pass(&RINGS, 1), RINGS, "it has sent all the time, or so");
        bench.settle();
        bench.send(RINGS[0], 1);
        assert_eq!(bench.look(1), []);
    }

    #[test]
    fn a_word_that_was_looked_at_in_vain_is_worth_no_further_look() {
        let word = Rc::new(Cell::new(7));
        let mut rounds = Rounds::of([(RINGS[0], word.clone())].into_iter());
        let looks = |rounds: &mut Rounds<_>, there: Option<u32>| {
            let mut looks = 0;
            rounds.rests(true);
            rounds.pass(
                || 0,
                |_| {
                    looks += 1;
                    there
                },
            );
            looks
        };
        assert_eq!(looks(&mut rounds, Some(1)), 1);
        assert_eq!(looks(&mut rounds, Some(0)), 1, "the word stays, and more may be there");
        assert_eq!(looks(&mut rounds, None), 1);
        assert_eq!(looks(&mut rounds, None), 0);
        assert!(!rounds.stirs(true, |_| true));
        word.set(8);
        assert!(rounds.stirs(true, |_| true));
        assert!(!rounds.stirs(true, |_| false));
        assert_eq!(looks(&mut rounds, None), 1);
        word.set(9);
        assert_eq!(looks(&mut rounds, Some(1)), 1);
        // The ring came round, to where nothing was once.
        word.set(8);
        assert!(rounds.stirs(true, |_| true));
        assert_eq!(looks(&mut rounds, Some(1)), 1);
    }

    #[test]
    fn who_is_to_ring_a_bell_is_left_alone() {
        let mut bench = Bench::new(&RINGS);
        bench.pass(&[RINGS[0]], 1);
        assert!(bench.rounds.ask_quiet(|ring, _| ring != RINGS[1]));
        bench.settle();
        let (heard, asked) = (RINGS[1], RINGS[3]);
        bench.send(asked, 1);
        bench.rounds.rests(false);
        assert_eq!(bench.look(1), []);
        assert!(!bench.rounds.stirs(false, |_| true));
        assert!(bench.rounds.stirs(true, |_| true));
        bench.send(heard, 1);
        assert!(bench.rounds.stirs(false, |_| true));
        bench.rounds.rests(false);
        assert_eq!(bench.look(1), [heard]);
        // Its bell rang.
        bench.rounds.rang((1, 1));
        bench.rounds.rests(false);
        assert_eq!(bench.look(1), [asked]);
        // It never rings, but it is time.
        bench.send(RINGS[4], 1);
        bench.now += EVERY;
        bench.rounds.rests(false);
        assert_eq!(bench.look(1), [RINGS[4]]);
    }

    #[test]
    fn who_has_not_sent_for_many_naps_is_to_ring_a_bell() {
        let rings = &RINGS[..4];
        let mut bench = Bench::new(rings);
        bench.pass(&RINGS[..1], 1);
        let rounds = &mut bench.rounds;
        let mut asked = Vec::new();
        assert!(!rounds.ask_quiet(|ring, first| {
            asked.push((ring, first));
            false
        }));
        assert_eq!(asked, [(RINGS[1], true), (RINGS[2], true), (RINGS[3], true)], "none could be asked");
        asked.clear();
        assert!(rounds.ask_quiet(|ring, first| {
            asked.push((ring, first));
            ring != RINGS[3]
        }));
        assert_eq!(asked, [(RINGS[1], true), (RINGS[2], false), (RINGS[3], true)]);
        assert!(rounds.heard().eq([RINGS[0], RINGS[3]]), "one could not be asked");
        assert!(rounds.ask_quiet(|ring, first| ring == RINGS[3] && first));
        // In three naps nothing came of the first.
        for _ in 3..NAPS {
            assert!(!rounds.ask_quiet(|_, _| false));
        }
        assert!(rounds.heard().eq([RINGS[0]]));
        assert!(rounds.ask_quiet(|_, _| true));
        assert!(rounds.heard().eq([]));
        rounds.rang((0, 2));
        assert!(rounds.heard().eq([RINGS[1], RINGS[2]]));
        rounds.rests(true);
        bench.pass(&RINGS[3..4], 1);
        assert!(bench.rounds.heard().eq(RINGS[1..4].iter().copied()));
    }
}
