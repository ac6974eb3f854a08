//! Which rings a thread looks at, and which wake it from a nap.
//!
//! ```text
//! a ring sends   is looked at                        wakes a nap
//! often          in each pass                        by its word
//! seldom         now and then                        by its word
//! hardly ever    now and then                        by its port's bell (see `ear`): it is asked to ring that
//! ```
//! To look at a ring that has nothing takes four cache lines, and the packets of others have driven them out by then: of a
//! stream beside 64 idle ports that is a fifteenth. So a pass leaves out rings that are quiet, until a few thousand slots
//! were moved, or a few passes made, or the thread has rested. Whoever sends first waits for that, and not while the
//! thread has nothing else to do. Before a thread rests it looks at all.

use super::super::patience::Which;

/// A ring, by the number of its view, of its port, and its own.
pub(super) type Ring = (usize, u8, usize);

/// Slots that are moved before quiet rings get a look again: some 50 us with packets of usual size.
const SLOTS: u32 = 2048;
/// Passes that are made before: they are short where little comes.
const PASSES: u32 = 8;
/// Looks in a row in vain, all rings being looked at, that make a ring quiet.
const LOOKS: u32 = 16;
/// Naps without anything that make a ring one that is to ring a bell: some 10 ms, in which it costs less to hear it.
const NAPS: u32 = 64;

/// See the module. Of one thread.
#[derive(Default)]
pub(super) struct Rounds {
    all: Vec<Known>,
    /// Those of them that are not quiet.
    busy: Vec<usize>,
    /// Slots and passes since all were looked at.
    slots: u32,
    passes: u32,
}

/// What is known of a ring.
struct Known {
    ring: Ring,
    /// Looks at all rings, and naps, since it had something.
    looks: u32,
    naps: u32,
    /// Whether it was asked to ring its bell.
    asked: bool,
}

impl Known {
    fn sent(&mut self) {
        (self.looks, self.naps, self.asked) = (0, 0, false);
    }
}

impl Rounds {
    /// Begins with these rings, those of a port in a row. The first pass looks at all.
    pub(super) fn of(rings: impl Iterator<Item = Ring>) -> Rounds {
        let known = |ring| Known { ring, looks: LOOKS, naps: NAPS, asked: false };
        Rounds { all: rings.map(known).collect(), passes: PASSES, ..Rounds::default() }
    }

    /// How many rings there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The thread rests, or did: the next pass looks at all, as a quiet ring may be why there is one.
    pub(super) fn rests(&mut self) {
        self.passes = PASSES;
    }

    /// One pass. `look` takes what a ring has, and says how many slots that were; `None`: it has nothing. Returns their sum.
    pub(super) fn pass(&mut self, mut look: impl FnMut(Ring) -> Option<u32>) -> u32 {
        let mut sum = 0;
        if self.passes < PASSES && self.slots < SLOTS {
            for &i in &self.busy {
                let known = &mut self.all[i];
                if let Some(slots) = look(known.ring) {
                    known.sent();
                    sum += slots;
                }
            }
            self.passes += 1;
            self.slots += sum;
            return sum;
        }
        self.busy.clear();
        for (i, known) in self.all.iter_mut().enumerate() {
            match look(known.ring) {
                Some(slots) => {
                    known.sent();
                    sum += slots;
                }
                None => known.looks = known.looks.saturating_add(1),
            }
            if known.looks < LOOKS {
                self.busy.push(i);
            }
        }
        (self.slots, self.passes) = (sum, 0);
        sum
    }

    /// A port's bell rang: all its rings are to be heard themselves.
    pub(super) fn rang(&mut self, which: Which) {
        self.all.iter_mut().filter(|known| (known.ring.0, known.ring.1) == which).for_each(|known| {
            (known.naps, known.asked) = (0, false);
        });
    }

    /// The thread is about to nap: `ask` is for each ring that from now on is to ring its bell, and says whether it can; with
    /// `true` until one of the port's could. Whether any could.
    pub(super) fn ask_quiet(&mut self, mut ask: impl FnMut(Ring, bool) -> bool) -> bool {
        let mut last = None;
        for known in self.all.iter_mut().filter(|known| !known.asked) {
            known.naps = known.naps.saturating_add(1);
            let (view, port, _) = known.ring;
            if known.naps > NAPS {
                known.asked = ask(known.ring, last != Some((view, port)));
                last = if known.asked { Some((view, port)) } else { last };
            }
        }
        last.is_some()
    }

    /// The rings that are to be heard in a nap.
    pub(super) fn heard(&self) -> impl Iterator<Item = Ring> {
        self.all.iter().filter(|known| !known.asked).map(|known| known.ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RINGS: [Ring; 4] = [(0, 1, 0), (0, 2, 0), (0, 2, 1), (1, 1, 0)];

    /// A pass in which these rings have `slots`; which were looked at.
    fn pass(rounds: &mut Rounds, have: &[Ring], slots: u32) -> Vec<Ring> {
        let mut looked = Vec::new();
        let sum = rounds.pass(|ring| {
            looked.push(ring);
            have.contains(&ring).then_some(slots)
        });
        assert_eq!(sum, slots * looked.iter().filter(|ring| have.contains(ring)).count() as u32);
        looked
    }

    #[test]
    fn quiet_rings_are_looked_at_now_and_then() {
        let mut rounds = Rounds::of(RINGS.into_iter());
        assert_eq!(rounds.len(), RINGS.len());
        let (busy, late) = (RINGS[1], RINGS[3]);
        assert_eq!(pass(&mut rounds, &[busy], 1), RINGS);
        for _ in 0..PASSES {
            assert_eq!(pass(&mut rounds, &[busy, late], 1), [busy]);
        }
        assert_eq!(pass(&mut rounds, &[busy, late], 1), RINGS, "the passes are over");
        assert_eq!(pass(&mut rounds, &[busy, late], SLOTS / 2), [busy, late], "it has sent");
        assert_eq!(pass(&mut rounds, &[busy, late], SLOTS), RINGS, "many slots were moved");
        rounds.rests();
        assert_eq!(pass(&mut rounds, &[], 0), RINGS, "it rested");
    }

    #[test]
    fn a_ring_becomes_quiet_when_it_has_nothing_for_long() {
        let mut rounds = Rounds::of(RINGS.into_iter());
        pass(&mut rounds, &RINGS, 1);
        for _ in 1..LOOKS {
            rounds.rests();
            assert_eq!(pass(&mut rounds, &[], 0), RINGS);
            assert_eq!(pass(&mut rounds, &[], 0), RINGS);
        }
        rounds.rests();
        pass(&mut rounds, &[], 0);
        assert_eq!(pass(&mut rounds, &[], 0), []);
    }

    #[test]
    fn who_has_not_sent_for_many_naps_is_to_ring_a_bell() {
        let mut rounds = Rounds::of(RINGS.into_iter());
        pass(&mut rounds, &RINGS[..1], 1);
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
        rounds.rests();
        pass(&mut rounds, &RINGS[3..], 1);
        assert!(rounds.heard().eq(RINGS[1..].iter().copied()));
    }
}
