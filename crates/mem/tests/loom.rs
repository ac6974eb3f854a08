// SPDX-License-Identifier: BSD-2-Clause
//! The channel, its wake-ups and the ring's sync state in every interleaving of their atomics, up to a bound of
//! preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p unetmap-mem --release --test loom`. Slots are the checker's cells: it reports
//! an access that the positions do not order as a race, and a side that sleeps for ever as a deadlock.
#![cfg(loom)]

// Not the checker's Arc, which would panic a second time when it is dropped in a test that is expected to panic.
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use unetmap_mem::{BufIdx, ChannelWords, Pos, SlotValue, Slots, Span, SyncState};

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A producer's ring with its channel. A slot is the number of its packet, and how often it was claimed.
struct Channel<W> {
    words: W,
    slots: Slots,
    cells: Vec<UnsafeCell<(u32, u32)>>,
}

// SAFETY: the cells are what is tested: the checker reports every access that races (M8).
unsafe impl<W: Sync> Sync for Channel<W> {}
// SAFETY: as above (M8).
unsafe impl<W: Send> Send for Channel<W> {}

impl<W> Channel<W> {
    fn new(words: W, n: u32) -> Arc<Channel<W>> {
        let slots = Slots::new(n).unwrap();
        Arc::new(Channel { words, slots, cells: (0..n).map(|_| UnsafeCell::new((0, 0))).collect() })
    }

    fn write(&self, p: Pos, packet: u32) {
        // SAFETY: checked by the model (M8).
        self.cells[p.raw() as usize].with_mut(|cell| unsafe { *cell = (packet, 0) });
    }

    /// Copies the packet, then claims the slot by writing to it.
    fn receive(&self, p: Pos) -> u32 {
        let cell = &self.cells[p.raw() as usize];
        // SAFETY: checked by the model (M8).
        let (packet, _) = cell.with(|cell| unsafe { *cell });
        // SAFETY: checked by the model (M8).
        cell.with_mut(|cell| unsafe { (*cell).1 += 1 });
        packet
    }

    /// The consumer's write-back of an exchanged buffer, before the release.
    fn write_back(&self, p: Pos) {
        // SAFETY: checked by the model (M8).
        self.cells[p.raw() as usize].with_mut(|cell| unsafe { (*cell).1 += 1 });
    }
}

/// Sends `packets` packets, at most `batch` in one publish.
fn send_all(channel: &Channel<ChannelWords>, packets: u32, batch: u32) {
    let (mut known, mut sent, mut next) = (Pos::ZERO, Pos::ZERO, 0);
    while next < packets {
        known = channel.words.validated_cons(channel.slots, known, sent).expect("a correct consumer's position");
        let before = sent;
        while next < packets && sent != channel.slots.prev(known) && channel.slots.distance(before, sent) < batch {
            channel.write(sent, next);
            (sent, next) = (channel.slots.next(sent), next + 1);
        }
        if sent == before {
            thread::yield_now();
        } else if channel.slots.next(before) == sent {
            let slot = SlotValue { buf_idx: BufIdx(next), len: 1, flags: 0, ptr: u64::from(next - 1) };
            channel.words.publish_one(sent, slot);
        } else {
            channel.words.publish(sent);
        }
    }
}

/// Receives `packets` packets and releases all but the last `keep` of them after each check of `prod`.
fn receive_all(channel: &Channel<ChannelWords>, packets: u32, keep: u32) {
    let (mut held, mut received, mut next) = (Pos::ZERO, Pos::ZERO, 0);
    while next < packets {
        let to = channel.words.validated_prod(channel.slots, held, received).expect("a correct producer's position");
        if to == received {
            thread::yield_now();
        }
        let single = channel.slots.next(received) == to;
        if let Some(slot) = single.then(|| channel.words.inline_slot(to)).flatten() {
            assert_eq!(
                (slot.buf_idx, slot.ptr),
                (BufIdx(next + 1), u64::from(next)),
                "the inline slot is this packet's, and complete"
            );
            next += 1;
        } else {
            for p in channel.slots.walk(Span { from: received, to }) {
                assert_eq!(channel.receive(p), next, "each packet once, in order");
                next += 1;
            }
        }
        received = to;
        let before = held;
        while channel.slots.distance(held, received) > keep {
            channel.write_back(held);
            held = channel.slots.next(held);
        }
        if held != before {
            channel.words.release(held);
        }
    }
}

fn packets_cross(n: u32, packets: u32, batch: u32, keep: u32) {
    check(5, move || {
        let channel = Channel::new(ChannelWords::new(), n);
        let producer = {
            let channel = channel.clone();
            thread::spawn(move || send_all(&channel, packets, batch))
        };
        receive_all(&channel, packets, keep);
        producer.join().unwrap();
        let end = channel.words.positions(channel.slots).unwrap();
        assert_eq!(end.to.raw(), packets % n);
        assert_eq!(channel.slots.distance(end.from, end.to), keep.min(packets));
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

/// A reader of the inline slot, while the next one is written, gets a complete copy or none.
#[test]
fn an_inline_slot_is_complete_or_absent() {
    check(5, || {
        let (slots, words) = (Slots::new(3).unwrap(), Arc::new(ChannelWords::new()));
        let at = move |raw| slots.pos(raw).unwrap();
        let slot = |n: u32| SlotValue { buf_idx: BufIdx(n), len: n as u16, flags: 0, ptr: u64::from(n) };
        let producer = {
            let words = words.clone();
            thread::spawn(move || {
                words.publish_one(at(1), slot(1));
                words.publish_one(at(2), slot(2));
                // Around the ring, in a batch: the inline slot of position 1 is stale.
                words.publish(at(1));
            })
        };
        for raw in [1, 2] {
            if let Some(found) = words.inline_slot(at(raw)) {
                assert_eq!(found, slot(raw));
            }
        }
        producer.join().unwrap();
        assert_eq!(words.inline_slot(at(1)), None);
    });
}

#[test]
fn slots_cross_while_some_are_held() {
    packets_cross(3, 4, 2, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_access_after_release_is_detected() {
    check(3, || {
        let channel = Channel::new(ChannelWords::new(), 2);
        let producer = {
            let channel = channel.clone();
            thread::spawn(move || send_all(&channel, 3, 1))
        };
        let mut held = Pos::ZERO;
        for _ in 0..2 {
            while channel.words.validated_prod(channel.slots, held, held).unwrap() == held {
                thread::yield_now();
            }
            channel.receive(held);
            held = channel.slots.next(held);
            channel.words.release(held);
        }
        // Slot 0 is the producer's again, which writes the third packet there.
        channel.write_back(Pos::ZERO);
        let _ = producer.join();
    });
}

/// A doorbell: it counts notifications, and a wait clears all of them.
#[derive(Default)]
struct Doorbell(Mutex<u32>, Condvar);

impl Doorbell {
    fn notify(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_one();
    }

    fn wait(&self) {
        let mut notifications = self.0.lock().unwrap();
        while *notifications == 0 {
            notifications = self.1.wait(notifications).unwrap();
        }
        *notifications = 0;
    }
}

/// One position and the request to be woken when it moves.
trait Side: Send + Sync + 'static {
    fn moved(&self) -> bool;
    fn request_wakeup(&self);
    /// Moves the position; returns whether the peer's doorbell must be notified.
    fn advance(&self) -> bool;
}

/// The consumer waits for `prod`.
struct ForPackets(ChannelWords);
/// The consumer waits for `prod` on its futex, which the doorbell stands for.
struct ForPacketsOnFutex(ChannelWords);
/// The producer waits for `cons`; one packet is published.
struct ForSpace(ChannelWords);

fn pair() -> (Slots, Pos) {
    let slots = Slots::new(2).unwrap();
    (slots, slots.next(Pos::ZERO))
}

impl Side for ForPackets {
    fn moved(&self) -> bool {
        self.0.validated_prod(pair().0, Pos::ZERO, Pos::ZERO).unwrap() != Pos::ZERO
    }
    fn request_wakeup(&self) {
        self.0.consumer_request_wakeup();
        unetmap_mem::fence_before_sleep();
    }
    fn advance(&self) -> bool {
        self.0.publish(pair().1);
        self.0.take_consumer_wakeup()
    }
}

impl Side for ForPacketsOnFutex {
    fn moved(&self) -> bool {
        self.0.prod_if_moved(Pos::ZERO).is_some()
    }
    fn request_wakeup(&self) {
        assert!(self.0.consumer_begin_futex_wait(), "no other thread waits");
    }
    fn advance(&self) -> bool {
        self.0.publish(pair().1);
        self.0.take_consumer_wakeup()
    }
}

impl Side for ForSpace {
    fn moved(&self) -> bool {
        let (slots, one) = pair();
        self.0.validated_cons(slots, Pos::ZERO, one).unwrap() == one
    }
    fn request_wakeup(&self) {
        self.0.producer_request_wakeup();
        unetmap_mem::fence_before_sleep();
    }
    fn advance(&self) -> bool {
        self.0.release(pair().1);
        self.0.take_producer_wakeup()
    }
}

/// The same protocol without the fences, which must fail.
#[derive(Default)]
struct NoFence {
    position: AtomicU32,
    wakeup: AtomicU32,
}

impl Side for NoFence {
    fn moved(&self) -> bool {
        self.position.load(Ordering::Acquire) != 0
    }
    fn request_wakeup(&self) {
        self.wakeup.store(1, Ordering::Release);
    }
    fn advance(&self) -> bool {
        self.position.store(1, Ordering::Release);
        self.wakeup.load(Ordering::Acquire) != 0 && self.wakeup.swap(0, Ordering::AcqRel) != 0
    }
}

/// One side moves a position, the other sleeps until it has.
fn wakeup_is_delivered(side: impl Fn() -> Box<dyn Side> + Send + Sync + 'static, second_check: bool) {
    check(4, move || {
        let both = Arc::new((side(), Doorbell::default()));
        let advancing = {
            let both = both.clone();
            thread::spawn(move || {
                if both.0.advance() {
                    both.1.notify();
                }
            })
        };
        let (side, bell) = &*both;
        if !side.moved() {
            loop {
                side.request_wakeup();
                if second_check && side.moved() {
                    break;
                }
                bell.wait();
                if side.moved() {
                    break;
                }
            }
        }
        advancing.join().unwrap();
    });
}

#[test]
fn no_wake_up_of_a_consumer_is_lost() {
    wakeup_is_delivered(|| Box::new(ForPackets(ChannelWords::new())), true);
}

/// With a fence on both sides. A registered publisher leaves its fence out, and a wait whose wake-up is lost ends by
/// its time limit.
#[test]
fn no_wake_up_of_a_futex_waiter_is_lost() {
    wakeup_is_delivered(|| Box::new(ForPacketsOnFutex(ChannelWords::new())), true);
}

#[test]
fn no_wake_up_of_a_producer_is_lost() {
    wakeup_is_delivered(
        || {
            let words = ChannelWords::new();
            words.publish(pair().1);
            Box::new(ForSpace(words))
        },
        true,
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_second_check_a_wake_up_is_lost() {
    wakeup_is_delivered(|| Box::new(ForPackets(ChannelWords::new())), false);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_fences_a_wake_up_is_lost() {
    wakeup_is_delivered(|| Box::new(NoFence::default()), true);
}

/// Both sides sleep in turn: the consumer for packets, the producer for space in a channel with one free slot.
#[test]
fn two_sleepers_wake_each_other() {
    check(3, || {
        const PACKETS: u32 = 2;
        let all = Arc::new((Channel::new(ChannelWords::new(), 2), Doorbell::default(), Doorbell::default()));
        let producer = {
            let all = all.clone();
            thread::spawn(move || {
                let (channel, to_consumer, own_doorbell) = &*all;
                let (mut known, mut sent) = (Pos::ZERO, Pos::ZERO);
                for packet in 0..PACKETS {
                    let full = |known: &mut Pos| {
                        *known = channel.words.validated_cons(channel.slots, *known, sent).unwrap();
                        sent == channel.slots.prev(*known)
                    };
                    while full(&mut known) {
                        channel.words.producer_request_wakeup();
                        unetmap_mem::fence_before_sleep();
                        if !full(&mut known) {
                            break;
                        }
                        own_doorbell.wait();
                    }
                    channel.write(sent, packet);
                    sent = channel.slots.next(sent);
                    channel.words.publish(sent);
                    if channel.words.take_consumer_wakeup() {
                        to_consumer.notify();
                    }
                }
            })
        };
        let (channel, own_doorbell, to_producer) = &*all;
        let (mut at, mut next) = (Pos::ZERO, 0);
        while next < PACKETS {
            let sent = || channel.words.validated_prod(channel.slots, at, at).unwrap();
            if sent() == at {
                channel.words.consumer_request_wakeup();
                unetmap_mem::fence_before_sleep();
                if sent() == at {
                    own_doorbell.wait();
                    continue;
                }
            }
            assert_eq!(channel.receive(at), next);
            (at, next) = (channel.slots.next(at), next + 1);
            channel.words.release(at);
            if channel.words.take_producer_wakeup() {
                to_producer.notify();
            }
        }
        producer.join().unwrap();
    });
}

/// Of several threads that take the same wake-up request, one notifies the doorbell.
#[test]
fn a_sleeper_is_woken_once() {
    check(4, || {
        let words = Arc::new(ChannelWords::new());
        words.consumer_request_wakeup();
        unetmap_mem::fence_before_sleep();
        let other = {
            let words = words.clone();
            thread::spawn(move || words.take_consumer_wakeup())
        };
        let here = words.take_consumer_wakeup();
        assert!(here != other.join().unwrap());
    });
}

/// The data that a ring's sync state guards.
struct Guarded {
    state: SyncState,
    inside: UnsafeCell<u32>,
}

// SAFETY: the checker reports a race on the cell (M8); all other fields are atomics (M1).
unsafe impl Sync for Guarded {}
// SAFETY: as above (M8).
unsafe impl Send for Guarded {}

impl Guarded {
    fn new() -> Arc<Guarded> {
        Arc::new(Guarded { state: SyncState::new(), inside: UnsafeCell::new(0) })
    }

    /// The work of a sync: exclusive, or the checker reports it.
    fn work(&self) {
        // SAFETY: checked by the model (M8).
        self.inside.with_mut(|cell| unsafe { *cell += 1 });
    }

    /// One sync; `steps`: the number of its steps after which the process crashes. Returns whether it had the right to
    /// sync.
    fn sync(&self, holder: u32, steps: u32) -> bool {
        let thread = u64::from(holder);
        let Some(guard) = self.state.enter_biased(holder, thread).or_else(|| self.state.try_lock(holder, thread))
        else {
            return false;
        };
        if steps >= 1 {
            self.work();
        }
        if steps >= 2 {
            drop(guard);
        } else {
            std::mem::forget(guard);
        }
        true
    }

    /// Biases the ring's lock to the process.
    fn make_biased(&self, holder: u32) {
        let guard = self.state.try_lock(holder, u64::from(holder)).unwrap();
        self.state.set_bias(holder, u64::from(holder));
        drop(guard);
    }

    fn sum(&self) -> u32 {
        // SAFETY: checked by the model (M8).
        self.inside.with(|cell| unsafe { *cell })
    }
}

const CRASHED: u32 = 7;
const RUNNING: u32 = 8;
const COMPLETE: u32 = 2;

#[test]
fn a_ring_has_one_syncer_at_a_time() {
    check(4, || {
        let ring = Guarded::new();
        let other = {
            let ring = ring.clone();
            thread::spawn(move || u32::from(ring.sync(1, COMPLETE)) + u32::from(ring.sync(1, COMPLETE)))
        };
        let mine = u32::from(ring.sync(2, COMPLETE));
        let done = mine + other.join().unwrap();
        assert!(done >= 1, "at least one sync runs");
        assert_eq!(ring.sum(), done);
        assert!(ring.state.try_lock(3, 3).is_some(), "no thread is left inside");
    });
}

/// A process crashes with or without the lock, and the daemon breaks the lock; another process syncs meanwhile.
#[test]
fn the_lock_of_a_crashed_process_is_freed() {
    crash_in_sync_is_cleaned_up(5, false);
}

/// A process crashes after each of its steps, by the lock's bias or with the lock; another process syncs meanwhile.
fn crash_in_sync_is_cleaned_up(preemptions: usize, owns: bool) {
    for steps in 0..=COMPLETE {
        check(preemptions, move || {
            let ring = Guarded::new();
            if owns {
                ring.make_biased(CRASHED);
            }
            let crashing = {
                let ring = ring.clone();
                thread::spawn(move || u32::from(ring.sync(CRASHED, steps) && steps > 0))
            };
            let running = {
                let ring = ring.clone();
                thread::spawn(move || u32::from(ring.sync(RUNNING, COMPLETE)) + u32::from(ring.sync(RUNNING, COMPLETE)))
            };
            // The daemon, after it has seen that the process's connection is closed.
            let mut done = crashing.join().unwrap();
            let broken = ring.state.break_lock(CRASHED);
            assert!(!broken || steps < COMPLETE, "a sync that has ended holds nothing");
            assert!(!ring.state.break_lock(CRASHED), "the second call finds nothing");
            done += running.join().unwrap();
            assert!(ring.sync(RUNNING, COMPLETE), "the ring is free again");
            assert_eq!(ring.sum(), done + 1);
        });
    }
}

/// The daemon breaks the locks of a crashed process at any moment of another process's sync.
#[test]
fn a_break_with_another_holder_id_changes_nothing() {
    check(4, || {
        let ring = Guarded::new();
        let daemon = {
            let ring = ring.clone();
            thread::spawn(move || assert!(!ring.state.break_lock(CRASHED)))
        };
        let other = {
            let ring = ring.clone();
            thread::spawn(move || u32::from(ring.sync(9, COMPLETE)))
        };
        let mine = u32::from(ring.sync(RUNNING, COMPLETE));
        daemon.join().unwrap();
        let done = mine + other.join().unwrap();
        assert_eq!(ring.sum(), done);
    });
}

/// Breaking the lock of a running process lets two threads in: the checker reports it.
#[test]
#[should_panic(expected = "Causality violation")]
fn breaking_the_lock_of_a_running_process_is_detected() {
    check(4, || {
        let ring = Guarded::new();
        let other = {
            let ring = ring.clone();
            thread::spawn(move || ring.sync(RUNNING, COMPLETE))
        };
        ring.state.break_lock(RUNNING);
        ring.sync(CRASHED, COMPLETE);
        let _ = other.join();
    });
}

/// The biased thread takes no lock; another thread revokes the bias at any moment of the biased thread's syncs.
#[test]
fn a_biased_thread_and_another_never_sync_together() {
    check(4, || {
        let ring = Guarded::new();
        ring.make_biased(1);
        let biased = {
            let ring = ring.clone();
            thread::spawn(move || (0..3).map(|_| u32::from(ring.sync(1, COMPLETE))).sum::<u32>())
        };
        let other = u32::from(ring.sync(2, COMPLETE)) + u32::from(ring.sync(2, COMPLETE));
        // In the model the other thread does not wait, so both may skip the ring.
        let done = other + biased.join().unwrap();
        assert_eq!(ring.sum(), done);
        assert!(ring.sync(3, COMPLETE) && ring.sync(1, COMPLETE), "no thread is left inside");
    });
}

/// Two threads that both try to get the bias.
#[test]
fn a_ring_is_biased_to_one_thread_at_most() {
    check(3, || {
        let ring = Guarded::new();
        let thread_of = |holder: u32| {
            let ring = ring.clone();
            thread::spawn(move || {
                if let Some(guard) = ring.state.try_lock(holder, holder.into()) {
                    ring.state.set_bias(holder, holder.into());
                    drop(guard);
                }
                u32::from(ring.sync(holder, COMPLETE)) + u32::from(ring.sync(holder, COMPLETE))
            })
        };
        let others = [thread_of(1), thread_of(2)];
        let done: u32 = others.into_iter().map(|other| other.join().unwrap()).sum();
        assert_eq!(ring.sum(), done);
        assert!(ring.sync(3, COMPLETE), "no thread is left inside");
    });
}

/// A biased thread crashes inside or outside its sync, and the daemon cleans up; another process syncs meanwhile.
#[test]
fn a_crashed_biased_thread_does_not_stay_inside() {
    crash_in_sync_is_cleaned_up(4, true);
}

/// A biased thread is interrupted inside by a signal whose handler syncs: the handler skips the ring, like any other
/// thread.
#[test]
fn a_biased_thread_does_not_enter_twice() {
    check(2, || {
        let ring = Guarded::new();
        ring.make_biased(1);
        let guard = ring.state.enter_biased(1, 1).unwrap();
        assert!(!ring.sync(1, COMPLETE) && ring.state.is_locked_by(1));
        drop(guard);
        let guard = ring.state.try_lock(1, 1).unwrap();
        assert!(!ring.sync(1, COMPLETE));
        drop(guard);
        assert!(ring.state.enter_biased(1, 1).is_some());
        assert!(ring.state.enter_biased(1, 2).is_none() && ring.state.enter_biased(2, 1).is_none());
    });
}

/// A thread that enters without checking that the lock is still biased to it: the checker reports it.
#[test]
#[should_panic(expected = "Causality violation")]
fn entering_after_the_bias_was_revoked_is_detected() {
    check(4, || {
        let ring = Guarded::new();
        ring.make_biased(1);
        let biased = {
            let ring = ring.clone();
            thread::spawn(move || {
                ring.state.enter_biased(1, 1);
                ring.work();
            })
        };
        ring.sync(2, COMPLETE);
        let _ = biased.join();
    });
}
