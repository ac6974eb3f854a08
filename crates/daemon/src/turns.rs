// SPDX-License-Identifier: BSD-2-Clause
//! Whose request is served next: that of the user for whom the control thread has worked least of late, whatever number
//! of connections each has. A user who makes more requests in a second than its budget allows waits.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::tuning::server::{REMEMBERED_USERS, TIME_HALVES_IN};

/// Requests may arrive in bursts of as many as are allowed in this time.
const BURST: Duration = Duration::from_secs(1);

/// Seconds of the past that no longer count when users are many.
const FORGOTTEN: f64 = 1e-4;

/// The work of each user, `W` being one piece.
pub(crate) struct Turns<W> {
    users: BTreeMap<u32, Waiting<W>>,
    /// Users with work: of those with equal times, the next one first.
    order: VecDeque<u32>,
    /// The time that was spent on each user.
    spent: BTreeMap<u32, Spent>,
    /// When the requests that each user has made would all be due at its rate. In the past: it may make a whole burst.
    due: BTreeMap<u32, Instant>,
}

/// Time spent on a user, up to an instant; it halves every [`TIME_HALVES_IN`] from then on.
struct Spent {
    seconds: f64,
    at: Instant,
}

impl Spent {
    fn now(&self, now: Instant) -> f64 {
        let halvings = now.saturating_duration_since(self.at).as_secs_f64() / TIME_HALVES_IN.as_secs_f64();
        self.seconds * (-halvings).exp2()
    }
}

struct Waiting<W> {
    /// Done first, at any rate.
    urgent: VecDeque<W>,
    others: VecDeque<W>,
}

/// What [`Turns::next`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<W> {
    /// The work of a user.
    Work(u32, W),
    /// All users with work must wait for so long.
    Wait(Duration),
    /// There is no work.
    Idle,
}

impl<W> Turns<W> {
    pub(crate) fn new() -> Turns<W> {
        Turns { users: BTreeMap::new(), order: VecDeque::new(), spent: BTreeMap::new(), due: BTreeMap::new() }
    }

    /// Adds work behind all other work of the user.
    pub(crate) fn push(&mut self, uid: u32, work: W) {
        self.waiting(uid).others.push_back(work);
    }

    /// Adds work that does not wait for the user's rate, as it ends something.
    pub(crate) fn push_urgent(&mut self, uid: u32, work: W) {
        self.waiting(uid).urgent.push_back(work);
    }

    fn waiting(&mut self, uid: u32) -> &mut Waiting<W> {
        let order = &mut self.order;
        self.users.entry(uid).or_insert_with(|| {
            order.push_back(uid);
            Waiting { urgent: VecDeque::new(), others: VecDeque::new() }
        })
    }

    /// Whether there is any work.
    pub(crate) fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Takes the next work: of the user on whom least time was spent, of those whose rates allow.
    pub(crate) fn next(&mut self, now: Instant) -> Next<W> {
        let (mut least_wait, mut next) = (None::<Duration>, None::<(usize, f64)>);
        for (at, uid) in self.order.iter().enumerate() {
            let wait = self.due.get(uid).map_or(Duration::ZERO, |due| due.saturating_duration_since(now + BURST));
            if !wait.is_zero() && self.users.get(uid).is_none_or(|waiting| waiting.urgent.is_empty()) {
                least_wait = Some(least_wait.map_or(wait, |least| least.min(wait)));
                continue;
            }
            let spent = self.spent.get(uid).map_or(0.0, |spent| spent.now(now));
            if next.is_none_or(|(_, least)| spent < least) {
                next = Some((at, spent));
            }
        }
        let Some(uid) = next.and_then(|(at, _)| self.order.remove(at)) else {
            return least_wait.map_or(Next::Idle, Next::Wait);
        };
        let Some(waiting) = self.users.get_mut(&uid) else { return Next::Idle };
        let work = waiting.urgent.pop_front().or_else(|| waiting.others.pop_front());
        if waiting.urgent.is_empty() && waiting.others.is_empty() {
            self.users.remove(&uid);
        } else {
            self.order.push_back(uid);
        }
        work.map_or(Next::Idle, |work| Next::Work(uid, work))
    }

    /// Counts time that was spent on work of a user.
    pub(crate) fn count_time(&mut self, uid: u32, time: Duration, now: Instant) {
        if self.spent.len() >= REMEMBERED_USERS {
            self.spent.retain(|_, spent| spent.now(now) > FORGOTTEN);
        }
        let spent = self.spent.entry(uid).or_insert(Spent { seconds: 0.0, at: now });
        *spent = Spent { seconds: spent.now(now) + time.as_secs_f64(), at: now };
    }

    /// Counts a request of a user that may make `rate` in a second.
    pub(crate) fn count_request(&mut self, uid: u32, now: Instant, rate: u32) {
        if self.due.len() >= REMEMBERED_USERS {
            self.due.retain(|_, due| *due > now);
        }
        let due = self.due.entry(uid).or_insert(now);
        *due = (*due).max(now) + Duration::from_secs(1) / rate.max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all work that may be done now: (user, work).
    fn take_all(turns: &mut Turns<u32>, now: Instant) -> Vec<(u32, u32)> {
        let next = || match turns.next(now) {
            Next::Work(uid, work) => Some((uid, work)),
            _ => None,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn users_take_turns_whatever_each_wants() {
        let (mut turns, now) = (Turns::new(), Instant::now());
        (0..400).for_each(|work| turns.push(1, work));
        turns.push(2, 0);
        turns.push(3, 0);
        turns.push(2, 1);
        let order = take_all(&mut turns, now);
        assert_eq!(order[..6], [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2)]);
        assert!(order.len() == 403 && turns.is_empty() && turns.next(now) == Next::Idle);
    }

    #[test]
    fn the_user_on_whom_least_time_was_spent_is_next() {
        let (mut turns, now) = (Turns::new(), Instant::now());
        for (uid, ms) in [(1, 20), (2, 1), (3, 30)] {
            turns.count_time(uid, Duration::from_millis(ms), now);
            (0..2).for_each(|work| turns.push(uid, work));
        }
        turns.push(4, 0);
        assert_eq!(take_all(&mut turns, now), [(4, 0), (2, 0), (2, 1), (1, 0), (1, 1), (3, 0), (3, 1)]);
        // Later, what was spent last counts more.
        let later = now + 6 * TIME_HALVES_IN;
        turns.count_time(2, Duration::from_millis(3), later);
        (1..=3).for_each(|uid| turns.push(uid, 0));
        assert_eq!(take_all(&mut turns, later), [(1, 0), (3, 0), (2, 0)]);
    }

    #[test]
    fn a_user_over_its_rate_waits_and_delays_nobody() {
        let (mut turns, now) = (Turns::new(), Instant::now());
        // A burst, and one request more.
        for _ in 0..11 {
            turns.count_request(1, now, 10);
        }
        turns.push(1, 0);
        turns.push(2, 0);
        assert_eq!(take_all(&mut turns, now), [(2, 0)]);
        assert_eq!(turns.next(now), Next::Wait(Duration::from_millis(100)));
        turns.push_urgent(1, 7);
        assert_eq!(take_all(&mut turns, now), [(1, 7)]);
        assert_eq!(take_all(&mut turns, now + Duration::from_millis(100)), [(1, 0)]);
        assert!(turns.is_empty());
    }

    #[test]
    fn users_of_the_past_are_forgotten() {
        let (mut turns, now) = (Turns::<u32>::new(), Instant::now());
        (0..REMEMBERED_USERS as u32).for_each(|uid| turns.count_request(uid, now, 1000));
        turns.count_request(u32::MAX, now + Duration::from_secs(1), 1000);
        assert_eq!(turns.due.len(), 1);
        (0..REMEMBERED_USERS as u32).for_each(|uid| turns.count_time(uid, Duration::from_millis(1), now));
        turns.count_time(u32::MAX, Duration::from_millis(1), now + 10 * TIME_HALVES_IN);
        assert_eq!(turns.spent.len(), 1);
    }
}
