// SPDX-License-Identifier: BSD-2-Clause
//! Users with open connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::budget::{Amounts, Bounds, Budgets};
use crate::in_flight::InFlight;
use crate::ledger::{Charge, Ledger};
use crate::subordinates::Subordinates;

/// The daemon's records about users, besides their ports.
#[derive(Default)]
pub(crate) struct Users {
    /// Another process keeps the ports for the case of a crash (`--keep-ports`), and needs as much as this one.
    pub(crate) keeps_ports: bool,
    /// The users' bounds by the machine's limits.
    pub(crate) bounds: Arc<Bounds>,
    /// The budgets that were last compared with it.
    pub(crate) compared: Option<Budgets>,
    pub(crate) ledger: Ledger,
    /// Users who count for others, as the ledger has them.
    pub(crate) subordinates: Subordinates,
    /// Answers that were sent to them and may not have been received.
    pub(crate) in_flight: InFlight,
    /// By user: open connections, and refused requests since the first of these was opened.
    pub(crate) connected: BTreeMap<u32, Connected>,
}

/// A user with open connections.
#[derive(Default)]
pub(crate) struct Connected {
    pub(crate) connections: u64,
    /// Requests that exceeded a budget.
    pub(crate) refused: u64,
    charge: Option<Charge>,
}

impl Connected {
    fn set(&mut self, connections: u64, uid: u32, ledger: &Ledger) {
        self.connections = connections;
        let Amounts(one) = Amounts::connection();
        let charge = self.charge.get_or_insert_with(|| ledger.charge(uid, Amounts::default()));
        charge.set(Amounts(one.map(|amount| amount * connections)));
    }
}

impl Users {
    pub(crate) fn add_connection(&mut self, uid: u32) {
        let user = self.connected.entry(uid).or_default();
        user.set(user.connections + 1, uid, &self.ledger);
    }

    pub(crate) fn count_refusal(&mut self, uid: u32) {
        if let Some(user) = self.connected.get_mut(&uid) {
            user.refused += 1;
        }
    }

    pub(crate) fn remove_connection(&mut self, uid: u32) {
        if let Some(user) = self.connected.get_mut(&uid) {
            user.set(user.connections.saturating_sub(1), uid, &self.ledger);
            if user.connections == 0 {
                self.connected.remove(&uid);
            }
        }
    }
}
