// SPDX-License-Identifier: BSD-2-Clause
//! Turns of requests at interfaces that many users open and close.
//!
//! ```text
//! finds it away, or others before it --> waits --> has the turn, alone --> answered, or begins to open: the next one's
//!                                          '--> its client has left          '--> finds it away again: is the next
//! ```
//! Users wait in a queue, one who counts for another as that one. A user with several requests is the last again after
//! each: a request waits for one of each user before its own. One that comes while others wait, or while one has the
//! turn, waits as well, although the interface may be there for the moment.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use super::surveyed::Place;

/// The requests that wait for interfaces, by their numbers.
#[derive(Default)]
pub(crate) struct InterfaceTurns(BTreeMap<Place, Queue>);

/// An interface for which a request waits, or at which one has the turn.
#[derive(Default)]
struct Queue {
    current: Option<u64>,
    /// Whether the next request may have the turn.
    is_due: bool,
    /// The users, and the requests of each; the next ones first.
    users: VecDeque<(u32, VecDeque<u64>)>,
}

impl InterfaceTurns {
    /// Whether a request waits for the interface, or has the turn there.
    pub(super) fn is_wanted(&self, place: Place) -> bool {
        self.0.contains_key(&place)
    }

    /// Has a request wait, for the user for whom it counts: as the first, if it has lost its turn.
    pub(crate) fn wait(&mut self, place: Place, user: u32, number: u64, is_first: bool) {
        let users = &mut self.0.entry(place).or_default().users;
        let at = users.iter().position(|(of, _)| *of == user).unwrap_or(users.len());
        let (_, mut own) = users.remove(at).unwrap_or_default();
        if is_first {
            own.push_front(number);
        } else {
            own.push_back(number);
        }
        users.insert(if is_first { 0 } else { at }, (user, own));
    }

    /// A request does not wait any more.
    pub(crate) fn leave(&mut self, place: Place, number: u64) {
        let Some(queue) = self.0.get_mut(&place) else { return };
        queue.users.iter_mut().for_each(|(_, own)| own.retain(|of| *of != number));
        queue.users.retain(|(_, own)| !own.is_empty());
    }

    /// A thread has given an interface back.
    pub(super) fn is_back(&mut self, place: Place) {
        self.0.get_mut(&place).into_iter().for_each(|queue| queue.is_due = true);
    }

    /// Gives turns to requests, and returns these; `goes_on`: whether one that has the turn still does, `is_here`:
    /// whether no thread has the interface. Call it whenever something may have been answered or given back.
    pub(crate) fn next(&mut self, goes_on: impl Fn(u64) -> bool, is_here: impl Fn(Place) -> bool) -> Vec<u64> {
        let mut next = Vec::new();
        for (place, queue) in &mut self.0 {
            queue.is_due |= queue.current.take_if(|current| !goes_on(*current)).is_some();
            if queue.current.is_none() && mem::take(&mut queue.is_due) && is_here(*place) {
                queue.current = queue.pop();
                next.extend(queue.current);
            }
        }
        self.0.retain(|_, queue| queue.current.is_some() || !queue.users.is_empty());
        next
    }
}

impl Queue {
    fn pop(&mut self) -> Option<u64> {
        let (user, mut own) = self.users.pop_front()?;
        let number = own.pop_front();
        if !own.is_empty() {
            self.users.push_back((user, own));
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const HERE: Place = (1, 2);

    /// Has each request that has the turn be done with it; returns them in their order.
    fn all(turns: &mut InterfaceTurns) -> Vec<u64> {
        turns.is_back(HERE);
        let next = || Some(turns.next(|_| false, |_| true)).filter(|next| !next.is_empty());
        std::iter::from_fn(next).flatten().collect()
    }

    #[test]
    fn users_have_turns_in_the_order_in_which_they_came() {
        let mut turns = InterfaceTurns::default();
        for (user, number) in [(3, 30), (1, 10), (1, 12), (2, 20), (1, 14), (3, 32), (4, 40)] {
            turns.wait(HERE, user, number, false);
        }
        turns.leave(HERE, 40);
        assert_eq!(all(&mut turns), [30, 10, 20, 32, 12, 14]);
        assert!(!turns.is_wanted(HERE));
    }

    #[test]
    fn one_request_has_the_turn_and_the_others_wait() {
        let mut turns = InterfaceTurns::default();
        (1..4).for_each(|user| turns.wait(HERE, user, u64::from(user), false));
        assert!(turns.next(|_| true, |_| true).is_empty(), "it is away");
        turns.is_back(HERE);
        assert!(turns.next(|_| true, |_| false).is_empty(), "it is away again");
        turns.is_back(HERE);
        assert_eq!(turns.next(|_| true, |_| true), [1]);
        turns.is_back(HERE);
        assert!(turns.next(|_| true, |_| true).is_empty(), "the first has the turn");
        // It finds it away, and is the first again.
        turns.wait(HERE, 1, 1, true);
        assert!(turns.next(|_| false, |_| false).is_empty());
        assert_eq!(all(&mut turns), [1, 2, 3]);
        // The last one that waits leaves.
        turns.wait(HERE, 1, 1, false);
        turns.leave(HERE, 1);
        assert!(turns.next(|_| false, |_| true).is_empty() && !turns.is_wanted(HERE));
    }

    /// However many users come again as soon as they are served, and with however many requests.
    #[test]
    fn a_request_waits_for_one_of_each_other_user() {
        let mut turns = InterfaceTurns::default();
        (0..24).for_each(|user| (0..5).for_each(|_| turns.wait(HERE, user, u64::from(user), false)));
        turns.is_back(HERE);
        let serve = |turns: &mut InterfaceTurns| {
            let next = turns.next(|_| false, |_| true);
            let [number] = next[..] else { panic!("{next:?}") };
            turns.wait(HERE, number as u32, number, false);
            number
        };
        (0..100).for_each(|_| _ = serve(&mut turns));
        turns.wait(HERE, 1000, 1000, false);
        let mut served = BTreeSet::new();
        while !served.contains(&1000) {
            let number = serve(&mut turns);
            assert!(served.insert(number), "user {number} is served twice before it");
        }
    }
}
