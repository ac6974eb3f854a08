// SPDX-License-Identifier: BSD-2-Clause
//! Whose request is served next, whatever number of connections each user has: start-time fair queueing of users.
//!
//! Each piece of work gets a start on a virtual clock, which shows the start of the piece that was chosen last: the end
//! of its user's last piece, but at most [`HEAD_START`] before the clock, so that nobody saves up time. The piece with
//! the earliest start is chosen; its end is its start and the time that it took. Users with much work thus get equal
//! shares of the control thread's time, and a user with little work is served before them.
//!
//! Work that ends something starts earlier by another [`HEAD_START`]: what one user closes, the next one finds closed,
//! unless the former has a lot to close.
//!
//! A user who makes more requests in a second than its budget allows waits.
//!
//! Of one user's work, that which is to be done beside the rest (slices of a snapshot) comes last, but for one piece
//! after each [`BETWEEN_SLICES`] others.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::subordinates::Subordinates;
use crate::tuning::server::{BETWEEN_SLICES, HEAD_START, LONG_WORK, REMEMBERED_USERS};

/// Requests may arrive in bursts of as many as are allowed in this time.
const BURST: Duration = Duration::from_secs(1);

/// The work of each user, `W` being one piece.
pub(crate) struct Turns<W> {
    users: BTreeMap<u32, Waiting<W>>,
    /// Users with work: of those with equal starts, the next one first.
    order: VecDeque<u32>,
    /// The virtual clock. It begins late enough for all starts to lie after 0.
    clock: Duration,
    /// By user: the end of its last piece of work, by the virtual clock.
    ends: BTreeMap<u32, Duration>,
    /// When the requests that each user has made would all be due at its rate. In the past: it may make a whole burst.
    due: BTreeMap<u32, Instant>,
    /// Users who have part of the times and the rates of others.
    subordinates: Subordinates,
}

struct Waiting<W> {
    /// Done first, at any rate.
    urgent: VecDeque<W>,
    others: VecDeque<W>,
    /// Done beside the others.
    slices: VecDeque<W>,
    /// Others that were done since the last slice.
    since_slice: u32,
}

impl<W> Default for Waiting<W> {
    fn default() -> Waiting<W> {
        Waiting { urgent: VecDeque::new(), others: VecDeque::new(), slices: VecDeque::new(), since_slice: 0 }
    }
}

impl<W> Waiting<W> {
    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.others.is_empty() && self.slices.is_empty()
    }

    fn pop(&mut self) -> Option<W> {
        if let Some(urgent) = self.urgent.pop_front() {
            return Some(urgent);
        }
        if self.since_slice < BETWEEN_SLICES
            && let Some(other) = self.others.pop_front()
        {
            self.since_slice += 1;
            return Some(other);
        }
        self.since_slice = 0;
        self.slices.pop_front().or_else(|| self.others.pop_front())
    }
}

/// The result of [`Turns::next`].
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
        Turns {
            users: BTreeMap::new(),
            order: VecDeque::new(),
            clock: HEAD_START,
            ends: BTreeMap::new(),
            due: BTreeMap::new(),
            subordinates: Subordinates::default(),
        }
    }

    /// From now on these users have part of the times and the rates of others.
    pub(crate) fn set_subordinates(&mut self, subordinates: &Subordinates) {
        if !self.subordinates.is_same(subordinates) {
            self.subordinates = subordinates.clone();
        }
    }

    /// Adds work behind all other work of the user.
    pub(crate) fn push(&mut self, uid: u32, work: W) {
        self.waiting(uid).others.push_back(work);
    }

    /// Adds work that does not wait for the user's rate, as it ends something.
    pub(crate) fn push_urgent(&mut self, uid: u32, work: W) {
        self.waiting(uid).urgent.push_back(work);
    }

    /// Adds work that the user's other work does not wait for.
    pub(crate) fn push_slice(&mut self, uid: u32, work: W) {
        self.waiting(uid).slices.push_back(work);
    }

    fn waiting(&mut self, uid: u32) -> &mut Waiting<W> {
        let order = &mut self.order;
        self.users.entry(uid).or_insert_with(|| {
            order.push_back(uid);
            Waiting::default()
        })
    }

    /// Whether there is any work.
    pub(crate) fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Takes all work for which `is_taken` is true, whatever the rates allow.
    pub(crate) fn take_all(&mut self, is_taken: impl Fn(&W) -> bool) -> Vec<W> {
        let mut taken = Vec::new();
        for waiting in self.users.values_mut() {
            for queue in [&mut waiting.urgent, &mut waiting.others, &mut waiting.slices] {
                let (out, left) = std::mem::take(queue).into_iter().partition(&is_taken);
                taken.extend::<Vec<W>>(out);
                *queue = Vec::into(left);
            }
        }
        self.users.retain(|_, waiting| !waiting.is_empty());
        self.order.retain(|uid| self.users.contains_key(uid));
        taken
    }

    /// When the next piece of work of a user starts.
    fn start(&self, uid: u32, is_urgent: bool) -> Duration {
        let earliest = self.clock.saturating_sub(HEAD_START);
        let lead = if is_urgent { HEAD_START } else { Duration::ZERO };
        self.ends.get(&self.subordinates.owner(uid)).map_or(earliest, |end| earliest.max(end.saturating_sub(lead)))
    }

    /// Takes the next work: that with the earliest start, of the users whose rates allow any.
    pub(crate) fn next(&mut self, now: Instant) -> Next<W> {
        let (mut least_wait, mut next) = (None::<Duration>, None::<(usize, (Duration, bool))>);
        for (at, uid) in self.order.iter().enumerate() {
            let due = self.due.get(&self.subordinates.owner(*uid));
            let wait = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now + BURST));
            let is_urgent = self.users.get(uid).is_some_and(|waiting| !waiting.urgent.is_empty());
            if !wait.is_zero() && !is_urgent {
                least_wait = Some(least_wait.map_or(wait, |least| least.min(wait)));
                continue;
            }
            let start = (self.start(*uid, is_urgent), !is_urgent);
            if next.is_none_or(|(_, earliest)| start < earliest) {
                next = Some((at, start));
            }
        }
        let Some((uid, start)) = next.and_then(|(at, (start, _))| Some((self.order.remove(at)?, start))) else {
            return least_wait.map_or(Next::Idle, Next::Wait);
        };
        self.clock = self.clock.max(start);
        let Some(waiting) = self.users.get_mut(&uid) else { return Next::Idle };
        let work = waiting.pop();
        if waiting.is_empty() {
            self.users.remove(&uid);
        } else {
            self.order.push_back(uid);
        }
        work.map_or(Next::Idle, |work| Next::Work(uid, work))
    }

    /// Whether the user, after its turn, would still be served before users with much work, and may go on by its rate.
    pub(crate) fn has_head_start(&self, uid: u32, now: Instant) -> bool {
        let uid = self.subordinates.owner(uid);
        let is_over_rate = self.due.get(&uid).is_some_and(|due| *due > now + BURST);
        !is_over_rate && self.ends.get(&uid).is_none_or(|end| *end < self.clock)
    }

    /// Counts time that a piece of work of a user took: at most [`LONG_WORK`], as what took longer waited for something
    /// that is not the user's alone to cause.
    pub(crate) fn count_time(&mut self, uid: u32, time: Duration) {
        if self.ends.len() >= REMEMBERED_USERS {
            let earliest = self.clock.saturating_sub(HEAD_START);
            self.ends.retain(|_, end| *end > earliest);
        }
        let end = self.start(uid, false) + time.min(LONG_WORK);
        self.ends.insert(self.subordinates.owner(uid), end);
    }

    /// Counts a request of a user that may make `rate` in a second.
    pub(crate) fn count_request(&mut self, uid: u32, now: Instant, rate: u32) {
        if self.due.len() >= REMEMBERED_USERS {
            self.due.retain(|_, due| *due > now);
        }
        let due = self.due.entry(self.subordinates.owner(uid)).or_insert(now);
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

    const MS: Duration = Duration::from_millis(1);

    /// Has users with endless work, and so much for a piece, take turns; returns the pieces of each.
    fn shares(turns: &mut Turns<u32>, costs: &[(u32, Duration)], pieces: usize) -> BTreeMap<u32, u32> {
        let now = Instant::now();
        costs.iter().for_each(|(uid, _)| turns.push(*uid, 0));
        let mut shares = BTreeMap::new();
        for _ in 0..pieces {
            let Next::Work(uid, _) = turns.next(now) else { panic!("there is work") };
            let cost = costs.iter().find(|(of, _)| *of == uid).map_or(MS, |(_, cost)| *cost);
            turns.count_time(uid, cost);
            turns.push(uid, 0);
            *shares.entry(uid).or_default() += 1;
        }
        shares
    }

    #[test]
    fn users_with_much_work_get_equal_times() {
        let mut turns = Turns::new();
        let shares = shares(&mut turns, &[(1, MS), (2, 2 * MS), (3, 4 * MS)], 700);
        assert!(shares[&1].abs_diff(400) <= 6 && shares[&2].abs_diff(200) <= 6 && shares[&3].abs_diff(100) <= 6);
    }

    #[test]
    fn subordinate_users_have_the_time_and_the_rate_of_one() {
        let mut turns = Turns::new();
        turns.set_subordinates(&Subordinates::parse("1000:100000:10", |_| None));
        let users = [(1001, MS), (1000, MS), (100_000, MS), (100_001, MS)];
        let shares = shares(&mut turns, &users, 800);
        assert!(shares[&1001].abs_diff(400) <= 6, "{shares:?}");
        let (mut turns, now) = (Turns::new(), Instant::now());
        turns.set_subordinates(&Subordinates::parse("1000:100000:10", |_| None));
        (0..20).for_each(|_| turns.count_request(100_000, now, 10));
        turns.push(100_001, 1);
        assert!(matches!(turns.next(now), Next::Wait(_)) && !turns.has_head_start(1000, now));
    }

    #[test]
    fn a_user_with_little_work_is_next_and_cannot_save_up_time() {
        let mut turns = Turns::new();
        shares(&mut turns, &[(1, MS), (2, MS)], 1000);
        // It has the head start, and as much again before its next piece comes after those of the others.
        turns.push(3, 0);
        let (mut own, mut others) = (0, 0);
        while others == 0 {
            let Next::Work(uid, _) = turns.next(Instant::now()) else { panic!("there is work") };
            turns.count_time(uid, MS);
            turns.push(uid, 0);
            *(if uid == 3 { &mut own } else { &mut others }) += 1;
        }
        assert!(own >= 1 && MS * own <= HEAD_START + 2 * MS, "{own} pieces");
    }

    #[test]
    fn only_a_user_who_does_little_goes_on_at_its_turn() {
        let (mut turns, now) = (Turns::new(), Instant::now());
        shares(&mut turns, &[(1, MS), (2, MS)], 1000);
        turns.push(3, 0);
        while !matches!(turns.next(now), Next::Work(3, _)) {}
        turns.count_time(3, MS);
        assert!(turns.has_head_start(3, now) && turns.has_head_start(4, now));
        (0..2).for_each(|_| turns.count_time(3, LONG_WORK));
        assert!(!turns.has_head_start(3, now), "it has used its head start");
        (0..11).for_each(|_| turns.count_request(4, now, 10));
        assert!(!turns.has_head_start(4, now), "it is over its rate");
    }

    #[test]
    fn slices_are_done_beside_other_work_of_their_user() {
        let (mut turns, now) = (Turns::new(), Instant::now());
        let n = BETWEEN_SLICES;
        // A snapshot that goes on for ever, beside the user's own requests, and another user's.
        turns.push_slice(1, 1000);
        (0..2 * n + 1).for_each(|work| turns.push(1, work));
        turns.push(2, 2000);
        let mut order = Vec::new();
        while let Next::Work(uid, work) = turns.next(now) {
            order.push(work);
            if work == 1000 && order.len() < 2 * n as usize {
                turns.push_slice(uid, 1000);
            }
        }
        let own: Vec<u32> = order.iter().copied().filter(|work| *work != 2000).collect();
        assert_eq!(order.len() - own.len(), 1);
        let expected: Vec<u32> = (0..n).chain([1000]).chain(n..2 * n).chain([1000, 2 * n]).collect();
        assert_eq!(own, expected);
        assert!(turns.is_empty());
    }

    #[test]
    fn work_that_is_taken_is_not_done_again() {
        let mut turns = Turns::new();
        (0..6).for_each(|work| turns.push(work % 3, work));
        turns.push_urgent(1, 10);
        assert_eq!(turns.take_all(|work| work % 2 == 0 && *work != 2), [0, 10, 4]);
        assert_eq!(turns.take_all(|work| *work == 5), [5]);
        let mut left = take_all(&mut turns, Instant::now());
        left.sort_unstable();
        assert_eq!(left, [(0, 3), (1, 1), (2, 2)]);
        assert!(turns.is_empty());
    }

    #[test]
    fn what_ends_something_comes_before_what_begins() {
        let mut turns = Turns::new();
        shares(&mut turns, &[(1, MS), (2, 2 * MS)], 300);
        turns.push(3, 30);
        turns.push_urgent(2, 20);
        turns.push_urgent(4, 40);
        assert_eq!(turns.next(Instant::now()), Next::Work(4, 40));
        turns.count_time(4, MS);
        let order = take_all(&mut turns, Instant::now());
        let place = |work| order.iter().position(|(_, of)| *of == work);
        assert!(place(30) == Some(0) && place(20) == Some(1), "{order:?}");
    }

    #[test]
    fn a_long_piece_counts_as_a_shorter_one() {
        let mut turns = Turns::new();
        let shares = shares(&mut turns, &[(1, LONG_WORK), (2, 100 * LONG_WORK)], 100);
        assert_eq!((shares[&1], shares[&2]), (50, 50));
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
        (0..REMEMBERED_USERS as u32).for_each(|uid| turns.count_time(uid, MS));
        turns.clock += HEAD_START + MS;
        turns.count_time(u32::MAX, MS);
        assert_eq!(turns.ends.len(), 1);
    }
}
