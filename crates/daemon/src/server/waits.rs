// SPDX-License-Identifier: BSD-2-Clause
//! Requests that wait ([`crate::needs`]): which request needs what, and what becomes of it.
//!
//! ```text
//! answered --> needs something --> waits --> it is there --> [turn of its user] --> answered, or needs something else
//!                                       '--> its client has left: gives back what it had
//! ```
//! An open whose interface is back goes on before all else: nobody else may use the sockets that were opened for it.

use std::collections::BTreeMap;

use crate::caller::Caller;
use crate::netmap_requests::{Got, Needs};
use crate::node::PortRequest;
use crate::region_preparer::Preparer;

/// Whose request waits.
pub(super) enum Waiter {
    /// The message of a connection.
    Connection(Vec<u8>, Option<Caller>),
    Node(Box<PortRequest>),
}

/// A request that waits, or can go on.
pub(super) struct Waiting {
    pub(super) uid: u32,
    pub(super) waiter: Waiter,
    pub(super) state: Result<Got, Needs>,
}

/// All requests that wait: those of connections by their tokens, which are even, those of the node by odd numbers.
#[derive(Default)]
pub(crate) struct Waits {
    pub(super) all: BTreeMap<u64, Waiting>,
    /// Requests of the node that have waited, twice.
    pub(super) of_node: u64,
    /// `None`: it was not needed yet.
    pub(super) preparer: Option<Preparer>,
}

impl Waits {
    /// Takes a request, if it can go on.
    pub(super) fn take_ready(&mut self, number: u64) -> Option<(Waiter, Got)> {
        self.all.get(&number).filter(|waiting| waiting.state.is_ok())?;
        let Waiting { waiter, state, .. } = self.all.remove(&number)?;
        Some((waiter, state.ok()?))
    }

    /// Whether any request of the node waits.
    pub(crate) fn any_of_node(&self) -> bool {
        self.all.keys().any(|number| number % 2 == 1)
    }

    /// Whether a request that has its turn at an interface still does: it has taken nothing, and was not refused.
    pub(super) fn keeps_turn(&self, number: u64) -> bool {
        let state = self.all.get(&number).map(|waiting| &waiting.state);
        state.is_some_and(|state| match state {
            Ok(got) => !matches!(got, Got::Sockets(..)),
            Err(needs) => matches!(needs, Needs::Survey(..) | Needs::Memory(..)),
        })
    }

    /// Whether a request can go on that has waited for its turn at an interface.
    pub(super) fn has_waited(&self, number: u64) -> bool {
        self.all.get(&number).is_some_and(|waiting| waiting.state.as_ref().is_ok_and(|got| got.rounds() > 0))
    }

    /// The requests that need something.
    pub(super) fn that_need(&self, is_it: impl Fn(&Needs) -> bool) -> Vec<u64> {
        let waiting = self.all.iter().filter(|(_, waiting)| waiting.state.as_ref().is_err_and(&is_it));
        waiting.map(|(number, _)| *number).collect()
    }

    /// Gives a request what it needs; returns its user if it can go on.
    pub(super) fn provide(&mut self, number: u64, give: impl FnOnce(Needs) -> Result<Got, Needs>) -> Option<u32> {
        let waiting = self.all.remove(&number)?;
        let waiting = Waiting { state: waiting.state.or_else(give), ..waiting };
        let ready = waiting.state.is_ok().then_some(waiting.uid);
        self.all.insert(number, waiting);
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_on_once_and_with_what_it_needs() {
        let mut waits = Waits::default();
        let waiter = Waiter::Connection(b"message".to_vec(), None);
        waits.all.insert(2, Waiting { uid: 7, waiter, state: Err(Needs::Interface((1, 2), 3)) });
        let needs =
            |waits: &Waits, place| waits.that_need(|needs| matches!(needs, Needs::Interface(of, _) if *of == place));
        assert_eq!((needs(&waits, (1, 2)), needs(&waits, (1, 3))), (vec![2], vec![]));
        // Something else.
        assert_eq!((waits.provide(2, Err), waits.provide(4, Err)), (None, None));
        assert!(waits.take_ready(2).is_none());
        let give = |needs| match needs {
            Needs::Interface(_, rounds) => Ok(Got::Interface(rounds)),
            other => Err(other),
        };
        assert_eq!(waits.provide(2, give), Some(7));
        assert!(needs(&waits, (1, 2)).is_empty() && waits.keeps_turn(2) && waits.has_waited(2));
        let ready = waits.take_ready(2);
        assert!(matches!(ready, Some((Waiter::Connection(message, None), Got::Interface(3))) if message == b"message"));
        assert!(waits.take_ready(2).is_none() && !waits.any_of_node() && !waits.keeps_turn(2));
    }
}
