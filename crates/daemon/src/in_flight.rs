// SPDX-License-Identifier: BSD-2-Clause
//! Descriptors in flight: in answers that clients have not received.
//!
//! The kernel counts them for the user who sent them, the daemon's, and lets it send none beyond its limit of open
//! files: a client that receives no answers would stop those to everybody. So they are charged to the user to whom
//! they were sent, for as long as the kernel counts them: until they were received, or the receiving socket is freed.
//! Closing the daemon's end would not end that, so it stays open, which is the only way to know (decision 145).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use unetmap_sys::socket;

use crate::budget::{Amounts, Resource};
use crate::ledger::{Charge, Ledger};

/// Answers that were sent and may not have been received, by the tokens of the connections: the last answer of each.
#[derive(Default)]
pub(crate) struct InFlight(BTreeMap<u64, Sent>);

struct Sent {
    uid: u32,
    connection: Arc<OwnedFd>,
    charge: Charge,
    /// Whether the connection has ended, and only this has its descriptor.
    is_left: bool,
}

/// A connection on which all was received.
pub(crate) struct Received {
    pub(crate) uid: u32,
    /// Its descriptor, if the daemon has ended it.
    pub(crate) ended: Option<Arc<OwnedFd>>,
}

impl Sent {
    /// An error is one of the connection, which cannot have anything in flight then.
    fn is_received(&self) -> bool {
        socket::all_received(&self.connection).unwrap_or(true)
    }
}

impl From<Sent> for Received {
    fn from(sent: Sent) -> Received {
        Received { uid: sent.uid, ended: sent.is_left.then_some(sent.connection) }
    }
}

impl InFlight {
    /// `count` descriptors are sent on a connection of a user.
    pub(crate) fn add(&mut self, token: u64, uid: u32, connection: &Arc<OwnedFd>, count: u64, ledger: &Ledger) {
        let charge = ledger.charge(uid, Amounts::of(Resource::InFlight, count));
        self.0.insert(token, Sent { uid, connection: connection.clone(), charge, is_left: false });
    }

    /// The daemon has ended a connection. Returns whether something is in flight there: it stays open, and its
    /// descriptor is charged as well.
    pub(crate) fn leave(&mut self, token: u64) -> bool {
        let Some(sent) = self.0.get_mut(&token) else { return false };
        sent.is_left = true;
        sent.charge.set(sent.charge.amounts().and(Amounts::of(Resource::Descriptors, 1)));
        true
    }

    /// Removes a connection if all was received there.
    pub(crate) fn remove_if_received(&mut self, token: u64) -> Option<Received> {
        let is_received = self.0.get(&token)?.is_received();
        is_received.then(|| self.0.remove(&token)).flatten().map(Received::from)
    }

    /// Removes all connections on which all was received, and returns them.
    pub(crate) fn remove_received(&mut self) -> Vec<Received> {
        self.0.extract_if(.., |_, sent| sent.is_received()).map(|(_, sent)| sent.into()).collect()
    }

    /// All connections.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }

    /// Descriptors in flight on a connection.
    pub(crate) fn count(&self, token: u64) -> u64 {
        self.0.get(&token).map_or(0, |sent| sent.charge.amounts()[Resource::InFlight])
    }

    /// Connections that have ended, and the descriptors in flight there.
    pub(crate) fn left(&self) -> impl Iterator<Item = (&OwnedFd, u64)> {
        let left = self.0.values().filter(|sent| sent.is_left);
        left.map(|sent| (&*sent.connection, sent.charge.amounts()[Resource::InFlight]))
    }

    /// Returns the amounts that users are charged.
    pub(crate) fn amounts(&self) -> impl Iterator<Item = (u32, Amounts)> {
        self.0.values().map(|sent| (sent.uid, sent.charge.amounts()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn what_is_in_flight_is_charged_until_it_was_received() {
        let (ledger, mut in_flight) = (Ledger::default(), InFlight::default());
        let used = || {
            let (own, _) = ledger.of(7);
            (own[Resource::InFlight], own[Resource::Descriptors])
        };
        let send = |near: &OwnedFd| socket::send(near, b"x", &[near.as_fd(); 3]).unwrap();
        let pairs = [(); 3].map(|()| socket::pair().unwrap());
        let [(a, read), (b, closed), (c, kept)] = pairs.map(|(near, far)| (Arc::new(near), far));
        for (token, near) in [(2, &a), (4, &b), (6, &c)] {
            send(near);
            in_flight.add(token, 7, near, 3, &ledger);
        }
        assert_eq!(used(), (9, 0));
        assert!(in_flight.remove_received().is_empty() && in_flight.remove_if_received(2).is_none());
        socket::recv(&read, &mut [0], &mut Vec::new()).unwrap();
        assert!(in_flight.remove_if_received(2).is_some() && in_flight.remove_if_received(2).is_none());
        assert!(!in_flight.leave(2));
        // The daemon ends the others: one is in flight until the client closes its end.
        assert!(in_flight.leave(4) && in_flight.leave(6));
        drop((b, c));
        assert_eq!(used(), (6, 2));
        assert_eq!(in_flight.left().map(|(_, count)| count).collect::<Vec<_>>(), [3, 3]);
        drop(closed);
        assert_eq!(in_flight.remove_received().len(), 1);
        assert_eq!((used(), in_flight.tokens().collect::<Vec<_>>()), ((3, 1), vec![6]));
        drop(kept);
        assert_eq!(in_flight.remove_received().len(), 1);
        assert!(ledger.all().is_empty());
    }
}
