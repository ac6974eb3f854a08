//! What a thread does for clients before it drops their packets: it lets them run.
//!
//! A client that has no room, on a machine with few processors, often waits for the very one that the thread is on. A nap
//! hands it over. A client on another processor that has read all until now was held up there, and is waited for.
//!
//! Meanwhile the thread serves nobody. So it waits on account: each nanosecond of work is worth one of a nap, as if the
//! scheduler had divided the processor between the two, or a seventh of waiting for a client elsewhere. Who says it is on the
//! thread's processor, and never wakes the thread, gains no more than that, nor does who never says where it is, for which the
//! thread yields.
//!
//! Who naps on the thread's processor, and has something to do again, could do it only when the thread has done its own; but
//! the kernel would let it run as soon as it is woken, for a few packets. So it is woken when the thread has nothing to do, or
//! needs room, or after [`OWED_FOR`].
//!
//! To wake a receiver that sleeps on another processor takes as long as to move a thousand packets, so in a stream it is
//! owed as well: until the same, or until a quarter of the receiver's ring has been filled. What comes in small batches is no
//! stream: then whoever sleeps is woken at once.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use unetmap_mem::Waiter;
use unetmap_sys::Doorbell;
use unetmap_sys::clock::now_ns;
use unetmap_sys::futex::WAIT_LIMIT;
use unetmap_sys::thread::current_cpu;

use crate::port::Incoming;
use crate::port::cpu::Place;

/// What a nanosecond of a nap costs, in nanoseconds of work.
const NAP: i64 = 1;
/// The same for a wait: an eighth of the time at most.
const WAIT: i64 = 7;
/// How long a wake-up may be owed, nanoseconds: what filling a ring takes, and more.
const OWED_FOR: u64 = 50_000;
/// Wake-ups that may be owed.
const DEBTS: usize = 16;
/// Slots of a batch that is part of a stream.
const STREAM: u32 = 256;
/// Work beyond this is not saved up, nanoseconds.
const MOST_SAVED: i64 = WAIT_LIMIT.as_nanos() as i64;

/// Answers that may fail to come in a row; then only one chance of [`SELDOM`] is worth a look.
const UNANSWERED: u32 = 4;
const SELDOM: u32 = 16;

/// A port of a view, by the numbers of both.
pub(crate) type Which = (usize, u8);

/// Ports that are remembered.
const RECENT: usize = 8;

/// See the module. Of one thread.
pub(crate) struct Patience {
    /// The number of the batch that is being served.
    batch: Cell<u32>,
    /// The view whose batch it is.
    view: Cell<usize>,
    /// Nanoseconds of work that naps and waits have not used up, and when that was.
    saved: Cell<(i64, u64)>,
    /// The ports that took part last.
    recent: [Cell<Option<Which>>; RECENT],
    /// The one of them that will be forgotten next.
    oldest: Cell<usize>,
    /// Whether it is part of a stream.
    streams: Cell<bool>,
    /// Whom a wake-up is owed, with his bell, and since when.
    owed: RefCell<Vec<(Waiter, Arc<Doorbell>)>>,
    owed_since: Cell<u64>,
    /// To whom was delivered last, until it is asked for.
    delivered: Cell<Option<Which>>,
    /// Looks for an answer since one came.
    unanswered: Cell<u32>,
}

impl Default for Patience {
    fn default() -> Patience {
        let recent = [const { Cell::new(None) }; RECENT];
        Patience {
            batch: Cell::new(0),
            view: Cell::new(0),
            saved: Cell::new((MOST_SAVED, now_ns())),
            recent,
            oldest: Cell::new(0),
            streams: Cell::new(false),
            owed: RefCell::new(Vec::with_capacity(DEBTS)),
            owed_since: Cell::new(0),
            delivered: Cell::new(None),
            unanswered: Cell::new(0),
        }
    }
}

impl Patience {
    /// A batch begins, of a port of view `view`: once in each, a receiver that is full may be let run.
    #[inline]
    pub(crate) fn begin(&self, view: usize, port: u8) {
        self.batch.set(self.batch.get().wrapping_add(1));
        self.view.set(view);
        self.takes_part(port);
        if !self.owed.borrow().is_empty() && now_ns() - self.owed_since.get() > OWED_FOR {
            self.pay_some();
        }
    }

    /// The batch has so many slots.
    #[inline]
    pub(crate) fn takes(&self, slots: u32) {
        self.streams.set(slots >= STREAM);
    }

    /// Whether the batch is part of a stream, so that who sleeps need not be woken at once.
    #[inline]
    pub(crate) fn streams(&self) -> bool {
        self.streams.get()
    }

    /// Somebody is to be woken later; `false`: it must be now.
    #[cold]
    pub(crate) fn owes(&self, waiter: Waiter, bell: &Arc<Doorbell>) -> bool {
        let mut owed = self.owed.borrow_mut();
        if owed.iter().any(|(one, _)| one.is(&waiter)) {
            return true;
        }
        if owed.len() == DEBTS {
            return false;
        }
        if owed.is_empty() {
            self.owed_since.set(now_ns());
        }
        owed.push((waiter, bell.clone()));
        true
    }

    /// Wakes whoever is to be woken; whether there was anybody.
    pub(crate) fn pay(&self) -> bool {
        let any = !self.owed.borrow().is_empty();
        if any {
            self.owed.borrow_mut().drain(..).filter(|(one, _)| one.wake()).for_each(|(_, bell)| bell.notify_now());
        }
        any
    }

    /// Wakes who naps, and one who sleeps: the others must not starve meanwhile.
    #[cold]
    fn pay_some(&self) {
        let mut bell_rung = false;
        self.owed.borrow_mut().retain(|(one, bell)| {
            if bell_rung && one.sleeps() {
                return true;
            }
            if one.wake() {
                bell.notify_now();
                bell_rung = true;
            }
            false
        });
    }

    /// A port of the view receives.
    #[inline]
    pub(crate) fn delivers_to(&self, port: u8) {
        self.delivered.set(Some((self.view.get(), port)));
        self.takes_part(port);
    }

    /// Who received last. Once for each delivery.
    pub(crate) fn delivered_to(&self) -> Option<Which> {
        self.delivered.take()
    }

    /// Somebody may answer: whether that is worth a look; seldom where none ever comes.
    pub(crate) fn awaits_answer(&self) -> bool {
        let unanswered = self.unanswered.get();
        self.unanswered.set(unanswered.wrapping_add(1));
        unanswered < UNANSWERED || unanswered.is_multiple_of(SELDOM)
    }

    /// The answer has come.
    pub(crate) fn was_answered(&self) {
        self.unanswered.set(0);
    }

    /// A port of the view sent or receives.
    #[inline]
    pub(crate) fn takes_part(&self, port: u8) {
        let which = Some((self.view.get(), port));
        if self.recent.iter().any(|one| one.get() == which) {
            return;
        }
        let at = self.oldest.get();
        self.recent[at].set(which);
        self.oldest.set((at + 1) % RECENT);
    }

    /// The ports that took part last.
    pub(crate) fn recent(&self) -> impl Iterator<Item = Which> {
        self.recent.iter().filter_map(Cell::get)
    }

    /// The numbers of views and ports have no meaning any more.
    pub(crate) fn forget(&self) {
        self.recent.iter().for_each(|one| one.set(None));
        self.delivered.set(None);
    }

    /// A receiver has no room: whether it was given a chance to make some, so that it is worth another look.
    #[cold]
    pub(crate) fn give_way(&self, rx: &Incoming) -> bool {
        if !rx.worth_waiting(self.batch.get()) {
            return false;
        }
        if self.pay() && rx.has_much_room() {
            return true;
        }
        match rx.place(current_cpu()) {
            Place::Here => self.spend(Place::Here, || rx.nap()),
            Place::Elsewhere => rx.keeps_up() && self.spend(Place::Elsewhere, || rx.wait()),
            Place::Unknown => self.spend(Place::Unknown, std::thread::yield_now),
        }
    }

    /// Waits for a client that is there, for the price of that, if something is saved up; whether it did.
    fn spend(&self, place: Place, wait: impl FnOnce()) -> bool {
        let price = match place {
            Place::Here | Place::Unknown => NAP,
            Place::Elsewhere => WAIT,
        };
        let start = now_ns();
        let (saved, since) = self.saved.get();
        let worked = i64::try_from(start.saturating_sub(since)).unwrap_or(MOST_SAVED);
        let saved = saved.saturating_add(worked).min(MOST_SAVED);
        if saved < 0 {
            self.saved.set((saved, start));
            return false;
        }
        wait();
        let end = now_ns();
        let waited = i64::try_from(end.saturating_sub(start)).unwrap_or(i64::MAX);
        self.saved.set((saved.saturating_sub(waited.saturating_mul(price)), end));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Of 60 ms that somebody would like to wait all the time for a client that is there, how many nanoseconds are waited: a
    /// part that its price leaves.
    fn waited_of_60(place: Place, price: i64) -> u64 {
        let patience = Patience::default();
        let start = now_ns();
        let mut waited = 0;
        while now_ns() < start + 60_000_000 {
            patience.spend(place, || {
                let begin = now_ns();
                std::thread::sleep(Duration::from_millis(1));
                waited += now_ns() - begin;
            });
        }
        assert!(waited > 0);
        // What the last wait owes may be paid after the end.
        let owed = patience.saved.get().0.min(0).unsigned_abs();
        let all = now_ns() - start + owed;
        let share = all / (price.unsigned_abs() + 1);
        assert!(waited <= share + WAIT_LIMIT.as_nanos() as u64, "{waited} of {all} ns");
        waited
    }

    #[test]
    fn naps_take_half_of_the_time_at_most_and_waits_an_eighth() {
        waited_of_60(Place::Here, 1);
        waited_of_60(Place::Unknown, 1);
        waited_of_60(Place::Elsewhere, 7);
    }

    #[test]
    fn answers_are_awaited_seldom_where_none_comes() {
        let patience = Patience::default();
        assert_eq!((0..160).filter(|_| patience.awaits_answer()).count(), 4 + 9);
        assert!((0..SELDOM).any(|_| patience.awaits_answer()), "one may come again");
        patience.was_answered();
        assert!((0..UNANSWERED).all(|_| patience.awaits_answer()));
    }

    #[test]
    fn who_received_last_is_told_once() {
        let patience = Patience::default();
        patience.begin(1, 5);
        assert_eq!(patience.delivered_to(), None, "it sent");
        patience.delivers_to(6);
        patience.delivers_to(7);
        assert_eq!([patience.delivered_to(), patience.delivered_to()], [Some((1, 7)), None]);
        assert_eq!(patience.recent().count(), 3);
        patience.delivers_to(6);
        patience.forget();
        assert_eq!(patience.delivered_to(), None);
    }

    #[test]
    fn the_last_ports_are_remembered() {
        let patience = Patience::default();
        for n in 0..RECENT as u8 {
            patience.begin(1, n);
            patience.takes_part(0);
        }
        let recent = || patience.recent().map(|(_, port)| port).collect::<Vec<_>>();
        assert_eq!(recent(), (0..RECENT as u8).collect::<Vec<_>>());
        patience.takes_part(200);
        assert!(!recent().contains(&0) && recent().contains(&200) && recent().contains(&1));
        patience.forget();
        assert!(recent().is_empty());
    }
}
