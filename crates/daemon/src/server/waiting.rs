// SPDX-License-Identifier: BSD-2-Clause
//! Connections that were accepted, and are admitted at turns of their users.
//!
//! The kernel keeps all connections to a socket in one queue, in the order in which they come. The daemon empties it
//! fast and sorts them by user here, so that a user with a thousand connections a second delays another's by no more
//! than its turn. What is here takes no more than half of the descriptors that are reserved for root.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use unetmap_sys::socket::Peer;

use crate::subordinates::Subordinates;

/// A connection that waits.
pub(super) type Waiting<C> = (C, Peer);

/// Connections of all users, `C` being one.
pub(crate) struct WaitingConnections<C = OwnedFd> {
    by_user: BTreeMap<u32, VecDeque<Waiting<C>>>,
    count: usize,
    /// The most that wait.
    limit: usize,
}

impl<C> WaitingConnections<C> {
    pub(super) fn new(limit: usize) -> WaitingConnections<C> {
        WaitingConnections { by_user: BTreeMap::new(), count: 0, limit: limit.max(1) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a connection. Returns whether it is the first of its user; and the connection that is given up, if there
    /// are too many: the last one of the user with most, those who count for it included.
    pub(super) fn push(
        &mut self,
        connection: C,
        peer: Peer,
        subordinates: &Subordinates,
    ) -> (bool, Option<Waiting<C>>) {
        let own = self.by_user.entry(peer.uid).or_default();
        let is_first = own.is_empty();
        own.push_back((connection, peer));
        self.count += 1;
        let given_up = (self.count > self.limit).then(|| self.pop_of_most(subordinates)).flatten();
        (is_first, given_up)
    }

    /// Takes the oldest connection of a user.
    pub(super) fn pop(&mut self, uid: u32) -> Option<Waiting<C>> {
        let own = self.by_user.get_mut(&uid)?;
        let oldest = own.pop_front();
        if own.is_empty() {
            self.by_user.remove(&uid);
        }
        self.count -= usize::from(oldest.is_some());
        oldest
    }

    /// A user with a connection here.
    pub(crate) fn any_user(&self) -> Option<u32> {
        self.by_user.keys().next().copied()
    }

    /// Whether a user has any connection here.
    pub(super) fn has_any(&self, uid: u32) -> bool {
        self.by_user.contains_key(&uid)
    }

    fn pop_of_most(&mut self, subordinates: &Subordinates) -> Option<Waiting<C>> {
        let mut sums = BTreeMap::<u32, usize>::new();
        self.by_user.iter().for_each(|(uid, own)| *sums.entry(subordinates.owner(*uid)).or_default() += own.len());
        let all = self.by_user.iter_mut();
        let (_, most) = all.max_by_key(|(uid, own)| (sums.get(&subordinates.owner(**uid)), own.len()))?;
        let last = most.pop_back();
        self.by_user.retain(|_, own| !own.is_empty());
        self.count -= usize::from(last.is_some());
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32) -> Peer {
        Peer { pid: 1, uid, gid: uid }
    }

    #[test]
    fn each_user_has_a_queue() {
        let mut waiting = WaitingConnections::new(10);
        let mut push = |connection, uid| waiting.push(connection, peer(uid), &Subordinates::default()).0;
        assert!(push("a", 1) && !push("b", 1) && push("c", 2));
        let mut take = |uid| waiting.pop(uid).map(|(connection, _)| connection);
        assert_eq!([take(1), take(1), take(1), take(2)], [Some("a"), Some("b"), None, Some("c")]);
        assert!(waiting.is_empty() && !waiting.has_any(1));
    }

    #[test]
    fn the_user_with_most_connections_loses_its_last() {
        let (mut waiting, none) = (WaitingConnections::new(4), Subordinates::default());
        let mut push = |connection, uid| waiting.push(connection, peer(uid), &none).1.map(|(given_up, _)| given_up);
        for (connection, uid) in [(0, 1), (1, 2), (2, 1), (3, 1)] {
            assert_eq!(push(connection, uid), None);
        }
        assert_eq!((push(4, 3), push(5, 1)), (Some(3), Some(5)));
        assert_eq!(waiting.pop(3).map(|(connection, _)| connection), Some(4));
        assert!(waiting.has_any(2) && !waiting.has_any(3));
    }

    #[test]
    fn subordinate_users_lose_theirs_before_another_user() {
        let mut waiting = WaitingConnections::new(4);
        let subordinates = Subordinates::parse("1000:100000:10", |_| None);
        let mut push = |uid| waiting.push(uid, peer(uid), &subordinates).1.map(|(given_up, _)| given_up);
        let given_up = [1001, 1001, 100_000, 100_001, 100_002].map(&mut push);
        assert!(given_up[..4].iter().all(Option::is_none) && given_up[4].is_some_and(|uid| uid >= 100_000));
    }
}
