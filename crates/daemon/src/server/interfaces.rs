// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces in the event loop: what threads have done about them, and watches of changes.

use unetmap_core::control::Kind;

use super::work::{Task, WATCHES, Waited, Work};
use super::{Client, Server};
use crate::awaited::Awaited;
use crate::caller::Caller;
use crate::ports::nic::settle::Back;
use crate::ports::nic::survey::{self, Begun};
use crate::ports::nic::{self, settle};

impl Server {
    /// Has the messages answered again that have waited for interfaces, or for memory.
    pub(super) fn interfaces_are_back(&mut self) {
        let Back { nics, surveys } = settle::take_back(&mut self.daemon);
        for (token, survey) in surveys {
            if let Some(client) = self.clients.get_mut(&token)
                && let Some((_, Task::Wait(waited, _))) = &mut client.task
            {
                (waited.survey, waited.is_surveyed) = (Some(survey), false);
                self.turns.push(client.peer.uid, Work::Continue(token));
            }
        }
        for nic in nics {
            let waits = |client: &Client| {
                let Some((_, Task::Wait(waited, _))) = &client.task else { return false };
                waited.nic.is_some_and(|awaited| awaited.nic == nic)
            };
            for (token, client) in self.clients.iter().filter(|(_, client)| waits(client)) {
                self.turns.push(client.peer.uid, Work::Continue(*token));
            }
            for (uid, job) in self.nodes.take_waiting(nic) {
                self.turns.push(uid, Work::Job(job));
            }
        }
        self.add_watches();
        self.memory_is_ready();
    }

    /// Has a thread read about the interface that a message of `caller` names, which has waited for `nic`.
    pub(super) fn begin_survey(
        &mut self,
        (token, caller): (u64, &Caller),
        (kind, payload): (Kind, &[u8]),
        nic: Option<Awaited>,
    ) -> Begun {
        let Some(client) = self.clients.get_mut(&token) else { return Begun::Unneeded };
        let begun = survey::begin(&mut self.daemon, (kind, payload), caller, token);
        if matches!(begun, Begun::Waits) {
            client.task =
                Some((kind, Task::Wait(Waited { nic, is_surveyed: true, ..Waited::default() }, payload.to_vec())));
        }
        begun
    }

    /// Adds new watches of interfaces to the event loop. A watch that is closed leaves it.
    pub(crate) fn add_watches(&mut self) {
        let mut added = Ok(());
        let state = &mut self.daemon.nics;
        for (netns, watch) in state.watches.iter_mut().filter(|(_, watch)| !watch.in_event_loop) {
            watch.in_event_loop = true;
            added = added.and(self.epoll.add(&watch.watch, WATCHES | *netns, true, false));
        }
        if let Some(watch) = state.settings.watch()
            && !state.settings.in_event_loop
        {
            added = added.and(self.epoll.add(watch, WATCHES | nic::ALL_NAMESPACES, true, false));
            state.settings.in_event_loop = true;
        }
        if let Err(e) = added {
            tracing::warn!("changes of interfaces will not be noticed: {e}");
        }
    }
}
