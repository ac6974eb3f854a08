//! Whose request is served next. Users take turns, whatever number of connections each has, and a user who makes more
//! requests in a second than its budget allows waits.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::tuning::server::REMEMBERED_USERS;

/// Requests may arrive in bursts of as many as are allowed in this time.
const BURST: Duration = Duration::from_secs(1);

/// The work of each user, `W` being one piece.
pub(crate) struct Turns<W> {
    users: BTreeMap<u32, Waiting<W>>,
    /// Users with work, the next one first.
    order: VecDeque<u32>,
    /// When the requests that each user has made would all be due at its rate. In the past: it may make a whole burst.
    due: BTreeMap<u32, Instant>,
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
        Turns { users: BTreeMap::new(), order: VecDeque::new(), due: BTreeMap::new() }
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

    /// Takes the next work: of the user whose turn it is, if its rate allows.
    pub(crate) fn next(&mut self, now: Instant) -> Next<W> {
        let mut least_wait = None::<Duration>;
        for _ in 0..self.order.len() {
            let Some(uid) = self.order.pop_front() else { break };
            let Some(waiting) = self.users.get_mut(&uid) else { continue };
            let wait = self.due.get(&uid).map_or(Duration::ZERO, |due| due.saturating_duration_since(now + BURST));
            let work = match waiting.urgent.pop_front() {
                None if wait.is_zero() => waiting.others.pop_front(),
                urgent => urgent,
            };
            if waiting.urgent.is_empty() && waiting.others.is_empty() {
                self.users.remove(&uid);
            } else {
                self.order.push_back(uid);
            }
            match work {
                Some(work) => return Next::Work(uid, work),
                None => least_wait = Some(least_wait.map_or(wait, |least| least.min(wait))),
            }
        }
        least_wait.map_or(Next::Idle, Next::Wait)
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
    }
}
