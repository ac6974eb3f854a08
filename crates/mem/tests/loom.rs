//! The line, its wake-ups and the ring's try-lock in every interleaving of their atomics, up to a bound of preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p unetmap-mem --release --test loom`. Slots are the checker's cells: an access
//! that the positions do not order is reported as a race, and a side that sleeps for ever as a deadlock.
#![cfg(loom)]

// Not the checker's Arc: dropped in a test that is to fail, that one would panic again.
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use unetmap_mem::{BufIdx, LineWords, Pos, RingState, SlotValue, Slots, Span};

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A producer's ring with its line. A slot is the number of the packet in it, and the claims that it saw.
struct Line<W> {
    words: W,
    slots: Slots,
    cells: Vec<UnsafeCell<(u32, u32)>>,
}

// SAFETY: the cells are what the test is about: the checker reports every access that races.
unsafe impl<W: Sync> Sync for Line<W> {}
// SAFETY: as above.
unsafe impl<W: Send> Send for Line<W> {}

impl<W> Line<W> {
    fn new(words: W, n: u32) -> Arc<Line<W>> {
        let slots = Slots::new(n).unwrap();
        Arc::new(Line { words, slots, cells: (0..n).map(|_| UnsafeCell::new((0, 0))).collect() })
    }

    fn put(&self, p: Pos, packet: u32) {
        // SAFETY: checked by the model.
        self.cells[p.raw() as usize].with_mut(|cell| unsafe { *cell = (packet, 0) });
    }

    /// Copies the packet, then claims the slot by writing to it.
    fn take(&self, p: Pos) -> u32 {
        let cell = &self.cells[p.raw() as usize];
        // SAFETY: checked by the model.
        let (packet, _) = cell.with(|cell| unsafe { *cell });
        // SAFETY: checked by the model.
        cell.with_mut(|cell| unsafe { (*cell).1 += 1 });
        packet
    }

    /// What the consumer exchanged, it writes back before the release.
    fn write_back(&self, p: Pos) {
        // SAFETY: checked by the model.
        self.cells[p.raw() as usize].with_mut(|cell| unsafe { (*cell).1 += 1 });
    }
}

/// Sends `packets` packets, at most `batch` with one publish.
fn send_all(line: &Line<LineWords>, packets: u32, batch: u32) {
    let (mut known, mut sent, mut next) = (Pos::ZERO, Pos::ZERO, 0);
    while next < packets {
        known = line.words.released(line.slots, known, sent).expect("an honest consumer's position");
        let before = sent;
        while next < packets && sent != line.slots.prev(known) && line.slots.distance(before, sent) < batch {
            line.put(sent, next);
            (sent, next) = (line.slots.next(sent), next + 1);
        }
        if sent == before {
            thread::yield_now();
        } else if line.slots.next(before) == sent {
            let slot = SlotValue { buf_idx: BufIdx(next), len: 1, flags: 0, ptr: u64::from(next - 1) };
            line.words.publish_one(sent, slot);
        } else {
            line.words.publish(sent);
        }
    }
}

/// Receives `packets` packets and releases all but the last `keep` of them at each look.
fn receive_all(line: &Line<LineWords>, packets: u32, keep: u32) {
    let (mut held, mut taken, mut next) = (Pos::ZERO, Pos::ZERO, 0);
    while next < packets {
        let to = line.words.sent(line.slots, held, taken).expect("an honest producer's position");
        if to == taken {
            thread::yield_now();
        }
        let alone = line.slots.next(taken) == to;
        if let Some(slot) = alone.then(|| line.words.express(to)).flatten() {
            assert_eq!((slot.buf_idx, slot.ptr), (BufIdx(next + 1), u64::from(next)), "its own copy, and whole");
            next += 1;
        } else {
            for p in line.slots.walk(Span { from: taken, to }) {
                assert_eq!(line.take(p), next, "each packet once, in order");
                next += 1;
            }
        }
        taken = to;
        let before = held;
        while line.slots.distance(held, taken) > keep {
            line.write_back(held);
            held = line.slots.next(held);
        }
        if held != before {
            line.words.release(held);
        }
    }
}

fn packets_cross(n: u32, packets: u32, batch: u32, keep: u32) {
    check(5, move || {
        let line = Line::new(LineWords::new(), n);
        let producer = {
            let line = line.clone();
            thread::spawn(move || send_all(&line, packets, batch))
        };
        receive_all(&line, packets, keep);
        producer.join().unwrap();
        let end = line.words.positions(line.slots).unwrap();
        assert_eq!(end.to.raw(), packets % n);
        assert_eq!(line.slots.distance(end.from, end.to), keep.min(packets));
    });
}

#[test]
fn slots_cross_one_at_a_time() {
    packets_cross(2, 3, 1, 0);
}

#[test]
fn slots_cross_in_batches_and_around_the_end() {
    packets_cross(3, 4, 2, 0);
}

/// One who looks at the copy beside a position while the next is written: it finds a whole one, or none.
#[test]
fn a_copy_is_whole_or_not_there() {
    check(5, || {
        let (slots, words) = (Slots::new(3).unwrap(), Arc::new(LineWords::new()));
        let at = move |raw| slots.pos(raw).unwrap();
        let slot = |n: u32| SlotValue { buf_idx: BufIdx(n), len: n as u16, flags: 0, ptr: u64::from(n) };
        let producer = {
            let words = words.clone();
            thread::spawn(move || {
                words.publish_one(at(1), slot(1));
                words.publish_one(at(2), slot(2));
                // Round the ring, in a batch: what was beside position 1 is old.
                words.publish(at(1));
            })
        };
        for raw in [1, 2] {
            if let Some(found) = words.express(at(raw)) {
                assert_eq!(found, slot(raw));
            }
        }
        producer.join().unwrap();
        assert_eq!(words.express(at(1)), None);
    });
}

#[test]
fn slots_cross_while_some_are_held() {
    packets_cross(3, 4, 2, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_slot_touched_after_its_release_is_found() {
    check(3, || {
        let line = Line::new(LineWords::new(), 2);
        let producer = {
            let line = line.clone();
            thread::spawn(move || send_all(&line, 3, 1))
        };
        let mut held = Pos::ZERO;
        for _ in 0..2 {
            while line.words.sent(line.slots, held, held).unwrap() == held {
                thread::yield_now();
            }
            line.take(held);
            held = line.slots.next(held);
            line.words.release(held);
        }
        // Slot 0 is the producer's, who puts the third packet there.
        line.write_back(Pos::ZERO);
        let _ = producer.join();
    });
}

/// An event file descriptor: it counts rings, and a wait takes all of them.
#[derive(Default)]
struct Bell(Mutex<u32>, Condvar);

impl Bell {
    fn ring(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_one();
    }

    fn wait(&self) {
        let mut rings = self.0.lock().unwrap();
        while *rings == 0 {
            rings = self.1.wait(rings).unwrap();
        }
        *rings = 0;
    }
}

/// One position and the wish to be woken when it moves.
trait Side: Send + Sync + 'static {
    fn moved(&self) -> bool;
    fn arm(&self);
    /// Moves the position; whether the other side is to be woken.
    fn act(&self) -> bool;
}

/// The consumer waits for `prod`.
struct ForPackets(LineWords);
/// The producer waits for `cons`; one packet is out.
struct ForSpace(LineWords);

fn pair() -> (Slots, Pos) {
    let slots = Slots::new(2).unwrap();
    (slots, slots.next(Pos::ZERO))
}

impl Side for ForPackets {
    fn moved(&self) -> bool {
        self.0.sent(pair().0, Pos::ZERO, Pos::ZERO).unwrap() != Pos::ZERO
    }
    fn arm(&self) {
        self.0.consumer_arm();
    }
    fn act(&self) -> bool {
        self.0.publish(pair().1);
        self.0.consumer_sleeps()
    }
}

impl Side for ForSpace {
    fn moved(&self) -> bool {
        let (slots, one) = pair();
        self.0.released(slots, Pos::ZERO, one).unwrap() == one
    }
    fn arm(&self) {
        self.0.producer_arm();
    }
    fn act(&self) -> bool {
        self.0.release(pair().1);
        self.0.producer_sleeps()
    }
}

/// The same protocol without the fences: it must be found wanting.
#[derive(Default)]
struct NoFence {
    position: AtomicU32,
    wants: AtomicU32,
}

impl Side for NoFence {
    fn moved(&self) -> bool {
        self.position.load(Ordering::Acquire) != 0
    }
    fn arm(&self) {
        self.wants.store(1, Ordering::Release);
    }
    fn act(&self) -> bool {
        self.position.store(1, Ordering::Release);
        self.wants.load(Ordering::Acquire) != 0 && self.wants.swap(0, Ordering::AcqRel) != 0
    }
}

/// One side moves a position, the other sleeps until it did.
fn wakes(side: impl Fn() -> Box<dyn Side> + Send + Sync + 'static, second_look: bool) {
    check(4, move || {
        let both = Arc::new((side(), Bell::default()));
        let actor = {
            let both = both.clone();
            thread::spawn(move || {
                if both.0.act() {
                    both.1.ring();
                }
            })
        };
        let (side, bell) = &*both;
        if !side.moved() {
            loop {
                side.arm();
                if second_look && side.moved() {
                    break;
                }
                bell.wait();
                if side.moved() {
                    break;
                }
            }
        }
        actor.join().unwrap();
    });
}

#[test]
fn no_wake_up_of_a_consumer_is_lost() {
    wakes(|| Box::new(ForPackets(LineWords::new())), true);
}

#[test]
fn no_wake_up_of_a_producer_is_lost() {
    wakes(
        || {
            let words = LineWords::new();
            words.publish(pair().1);
            Box::new(ForSpace(words))
        },
        true,
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_second_look_a_wake_up_is_lost() {
    wakes(|| Box::new(ForPackets(LineWords::new())), false);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_fences_a_wake_up_is_lost() {
    wakes(|| Box::new(NoFence::default()), true);
}

/// Both sleep, in turn: the consumer for packets, the producer for space in a line of one free slot.
#[test]
fn two_sleepers_wake_each_other() {
    check(3, || {
        const PACKETS: u32 = 2;
        let all = Arc::new((Line::new(LineWords::new(), 2), Bell::default(), Bell::default()));
        let producer = {
            let all = all.clone();
            thread::spawn(move || {
                let (line, to_consumer, mine) = &*all;
                let (mut known, mut sent) = (Pos::ZERO, Pos::ZERO);
                for packet in 0..PACKETS {
                    let full = |known: &mut Pos| {
                        *known = line.words.released(line.slots, *known, sent).unwrap();
                        sent == line.slots.prev(*known)
                    };
                    while full(&mut known) {
                        line.words.producer_arm();
                        if !full(&mut known) {
                            break;
                        }
                        mine.wait();
                    }
                    line.put(sent, packet);
                    sent = line.slots.next(sent);
                    line.words.publish(sent);
                    if line.words.consumer_sleeps() {
                        to_consumer.ring();
                    }
                }
            })
        };
        let (line, mine, to_producer) = &*all;
        let (mut at, mut next) = (Pos::ZERO, 0);
        while next < PACKETS {
            let sent = || line.words.sent(line.slots, at, at).unwrap();
            if sent() == at {
                line.words.consumer_arm();
                if sent() == at {
                    mine.wait();
                    continue;
                }
            }
            assert_eq!(line.take(at), next);
            (at, next) = (line.slots.next(at), next + 1);
            line.words.release(at);
            if line.words.producer_sleeps() {
                to_producer.ring();
            }
        }
        producer.join().unwrap();
    });
}

/// Of several who moved positions on behalf of one producer, one rings.
#[test]
fn a_sleeper_is_woken_once() {
    check(4, || {
        let words = Arc::new(LineWords::new());
        words.consumer_arm();
        let other = {
            let words = words.clone();
            thread::spawn(move || words.consumer_sleeps())
        };
        let here = words.consumer_sleeps();
        assert!(here != other.join().unwrap());
    });
}

/// What a ring's lock guards.
struct Guarded {
    state: RingState,
    inside: UnsafeCell<u32>,
}

// SAFETY: the checker reports a race on the cell; everything else is atomics.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new() -> Arc<Guarded> {
        Arc::new(Guarded { state: RingState::new(), inside: UnsafeCell::new(0) })
    }

    /// The work of a sync: exclusive, or the checker complains.
    fn work(&self) {
        // SAFETY: checked by the model.
        self.inside.with_mut(|cell| unsafe { *cell += 1 });
    }

    /// One sync; `die`: after how many of its steps the process dies. Returns whether it had the lock.
    fn sync(&self, lease: u32, die: u32) -> bool {
        let thread = u64::from(lease);
        let Some(guard) = self.state.enter(lease, thread).or_else(|| self.state.try_lock(lease, thread)) else {
            return false;
        };
        if die >= 1 {
            self.work();
        }
        if die >= 2 {
            drop(guard);
        } else {
            std::mem::forget(guard);
        }
        true
    }

    /// The same; it is the process's own ring from then on.
    fn own(&self, lease: u32) {
        let guard = self.state.try_lock(lease, u64::from(lease)).unwrap();
        self.state.own(lease, u64::from(lease));
        drop(guard);
    }

    fn sum(&self) -> u32 {
        // SAFETY: checked by the model.
        self.inside.with(|cell| unsafe { *cell })
    }
}

const DEAD: u32 = 7;
const LIVING: u32 = 8;
const WHOLE: u32 = 2;

#[test]
fn a_ring_has_one_syncer_at_a_time() {
    check(4, || {
        let ring = Guarded::new();
        let other = {
            let ring = ring.clone();
            thread::spawn(move || u32::from(ring.sync(1, WHOLE)) + u32::from(ring.sync(1, WHOLE)))
        };
        let mine = u32::from(ring.sync(2, WHOLE));
        let done = mine + other.join().unwrap();
        assert!(done >= 1, "somebody gets in");
        assert_eq!(ring.sum(), done);
        assert!(ring.state.try_lock(3, 3).is_some(), "nobody is left inside");
    });
}

/// One dies with or without the lock, the daemon learns of it and breaks the lock; another syncs all the time.
#[test]
fn the_lock_of_a_dead_owner_is_freed() {
    who_dies_is_let_out(5, false);
}

/// One dies after each of its steps, as the ring's owner or with the lock; another syncs all the time.
fn who_dies_is_let_out(preemptions: usize, owns: bool) {
    for die in 0..=WHOLE {
        check(preemptions, move || {
            let ring = Guarded::new();
            if owns {
                ring.own(DEAD);
            }
            let dying = {
                let ring = ring.clone();
                thread::spawn(move || u32::from(ring.sync(DEAD, die) && die > 0))
            };
            let living = {
                let ring = ring.clone();
                thread::spawn(move || u32::from(ring.sync(LIVING, WHOLE)) + u32::from(ring.sync(LIVING, WHOLE)))
            };
            // The daemon: the end of the connection says that the process is dead.
            let mut done = dying.join().unwrap();
            let broken = ring.state.break_lock(DEAD);
            assert!(!broken || die < WHOLE, "who has left is not inside");
            assert!(!ring.state.break_lock(DEAD), "once is enough");
            done += living.join().unwrap();
            assert!(ring.sync(LIVING, WHOLE), "the ring is free again");
            assert_eq!(ring.sum(), done + 1);
        });
    }
}

/// The daemon breaks the locks of one process after another, at any moment of an innocent's sync.
#[test]
fn a_break_with_another_lease_changes_nothing() {
    check(4, || {
        let ring = Guarded::new();
        let daemon = {
            let ring = ring.clone();
            thread::spawn(move || assert!(!ring.state.break_lock(DEAD)))
        };
        let other = {
            let ring = ring.clone();
            thread::spawn(move || u32::from(ring.sync(9, WHOLE)))
        };
        let mine = u32::from(ring.sync(LIVING, WHOLE));
        daemon.join().unwrap();
        let done = mine + other.join().unwrap();
        assert_eq!(ring.sum(), done);
    });
}

/// Breaking the lock of one who lives lets two in: the checker sees it.
#[test]
#[should_panic(expected = "Causality violation")]
fn breaking_the_lock_of_the_living_is_found() {
    check(4, || {
        let ring = Guarded::new();
        let other = {
            let ring = ring.clone();
            thread::spawn(move || ring.sync(LIVING, WHOLE))
        };
        ring.state.break_lock(LIVING);
        ring.sync(DEAD, WHOLE);
        let _ = other.join();
    });
}

/// The owner of a ring takes no lock; whoever else comes ends that, at any moment of the owner's syncs.
#[test]
fn an_owner_and_a_stranger_are_never_inside_together() {
    check(4, || {
        let ring = Guarded::new();
        ring.own(1);
        let owner = {
            let ring = ring.clone();
            thread::spawn(move || (0..3).map(|_| u32::from(ring.sync(1, WHOLE))).sum::<u32>())
        };
        let strange = u32::from(ring.sync(2, WHOLE)) + u32::from(ring.sync(2, WHOLE));
        // Here, where a stranger does not wait, it may be that both skip the ring.
        let done = strange + owner.join().unwrap();
        assert_eq!(ring.sum(), done);
        assert!(ring.sync(3, WHOLE) && ring.sync(1, WHOLE), "nobody is left inside");
    });
}

/// Two strangers, one of whom wants to own the ring as well.
#[test]
fn a_ring_has_one_owner_at_most() {
    check(3, || {
        let ring = Guarded::new();
        let party = |lease: u32| {
            let ring = ring.clone();
            thread::spawn(move || {
                if let Some(guard) = ring.state.try_lock(lease, lease.into()) {
                    ring.state.own(lease, lease.into());
                    drop(guard);
                }
                u32::from(ring.sync(lease, WHOLE)) + u32::from(ring.sync(lease, WHOLE))
            })
        };
        let others = [party(1), party(2)];
        let done: u32 = others.into_iter().map(|other| other.join().unwrap()).sum();
        assert_eq!(ring.sum(), done);
        assert!(ring.sync(3, WHOLE), "nobody is left inside");
    });
}

/// An owner dies inside or outside, the daemon learns of it; another syncs all the time.
#[test]
fn a_dead_owner_is_not_inside_for_ever() {
    who_dies_is_let_out(4, true);
}

/// An owner that is interrupted inside, by a signal whose handler syncs: the ring is skipped, as by anybody.
#[test]
fn an_owner_does_not_go_inside_twice() {
    check(2, || {
        let ring = Guarded::new();
        ring.own(1);
        let guard = ring.state.enter(1, 1).unwrap();
        assert!(!ring.sync(1, WHOLE) && ring.state.is_locked_by(1));
        drop(guard);
        let guard = ring.state.try_lock(1, 1).unwrap();
        assert!(!ring.sync(1, WHOLE));
        drop(guard);
        assert!(ring.state.enter(1, 1).is_some());
        assert!(ring.state.enter(1, 2).is_none() && ring.state.enter(2, 1).is_none());
    });
}

/// One who goes inside without having looked whether the ring is still its own: the checker sees it.
#[test]
#[should_panic(expected = "Causality violation")]
fn an_owner_that_was_driven_out_and_goes_inside_is_found() {
    check(4, || {
        let ring = Guarded::new();
        ring.own(1);
        let owner = {
            let ring = ring.clone();
            thread::spawn(move || {
                ring.state.enter(1, 1);
                ring.work();
            })
        };
        ring.sync(2, WHOLE);
        let _ = owner.join();
    });
}
