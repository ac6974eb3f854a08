// SPDX-License-Identifier: BSD-2-Clause
//! Connections that were accepted, and are admitted at turns of their users.
//!
//! The kernel keeps all connections to a socket in one queue, in the order in which they come. The daemon empties it
//! fast and sorts them by user here, so that a user with a thousand connections a second delays another's by no more
//! than its turn. What is here takes no more than half of the descriptors that are reserved for root.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use unetmap_sys::socket::Peer;

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
    /// are too many: the last one of the user with most.
    pub(super) fn push(&mut self, connection: C, peer: Peer) -> (bool, Option<Waiting<C>>) {
        let own = self.by_user.entry(peer.uid).or_default();
        let is_first = own.is_empty();
        own.push_back((connection, peer));
        self.count += 1;
        let given_up = (self.count > self.limit).then(|| self.pop_of_most()).flatten();
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

    fn pop_of_most(&mut self) -> Option<Waiting<C>> {
        let most = self.by_user.values_mut().max_by_key(|own| own.len())?;
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
        assert!(waiting.push("a", peer(1)).0);
        assert!(!waiting.push("b", peer(1)).0);
        assert!(waiting.push("c", peer(2)).0);
        let mut take = |uid| waiting.pop(uid).map(|(connection, _)| connection);
        assert_eq!([take(1), take(1), take(1), take(2)], [Some("a"), Some("b"), None, Some("c")]);
        assert!(waiting.is_empty() && !waiting.has_any(1));
    }

    #[test]
    fn the_user_with_most_connections_loses_its_last() {
        let mut waiting = WaitingConnections::new(4);
        for (connection, uid) in [(0, 1), (1, 2), (2, 1), (3, 1)] {
            assert_eq!(waiting.push(connection, peer(uid)).1.map(|(given_up, _)| given_up), None);
        }
        assert_eq!(waiting.push(4, peer(3)).1.map(|(given_up, _)| given_up), Some(3));
        assert_eq!(waiting.push(5, peer(1)).1.map(|(given_up, _)| given_up), Some(5));
        assert_eq!(waiting.pop(3).map(|(connection, _)| connection), Some(4));
        assert!(waiting.has_any(2) && !waiting.has_any(3));
    }
}
