// SPDX-License-Identifier: BSD-2-Clause
//! Memory of new ports in the event loop: messages wait until a thread has made it resident ([`Preparer`]).

use std::sync::Arc;

use unetmap_core::control::Kind;

use super::Server;
use super::work::{Task, Waited, Work};
use crate::ports::nic::surveyed::Survey;
use crate::region::Prepared;
use crate::region_preparer::Preparer;

impl Server {
    /// Has a thread prepare memory for a message, which is answered again then. Returns `true`: the connection stays.
    pub(super) fn prepare_memory(
        &mut self,
        token: u64,
        (kind, payload): (Kind, &[u8]),
        survey: Option<Arc<Survey>>,
        memory: Box<Prepared>,
    ) -> bool {
        if self.preparer.is_none() {
            self.preparer = self.start_preparer();
        }
        let Some(client) = self.clients.get_mut(&token) else { return true };
        let waited = Waited { survey, had_memory: true, ..Waited::default() };
        match &self.preparer {
            Some(preparer) => {
                let waited = Waited { is_prepared: true, ..waited };
                client.task = Some((kind, Task::Wait(waited, payload.to_vec())));
                preparer.prepare(token, memory);
            }
            // The control thread touches it.
            None => {
                let waited = Waited { memory: Some(memory), ..waited };
                client.task = Some((kind, Task::Wait(waited, payload.to_vec())));
                self.turns.push(client.peer.uid, Work::Continue(token));
            }
        }
        true
    }

    fn start_preparer(&self) -> Option<Preparer> {
        let started = Preparer::new(self.daemon.nics.work.shared_doorbell()?);
        started.inspect_err(|e| tracing::debug!("no thread that prepares memory: {e}")).ok()
    }

    /// Has the messages answered again whose memory is ready.
    pub(super) fn memory_is_ready(&mut self) {
        let Some(preparer) = &self.preparer else { return };
        for (token, memory) in preparer.take_done() {
            self.turns.count_time(memory.scope.uid, memory.time());
            let client = self.clients.get_mut(&token);
            let waiting = client.and_then(|client| match &mut client.task {
                Some((_, Task::Wait(waited, _))) if waited.is_prepared => Some((client.peer.uid, waited)),
                _ => None,
            });
            match waiting {
                Some((uid, waited)) => {
                    (waited.memory, waited.is_prepared) = (Some(memory), false);
                    self.turns.push(uid, Work::Continue(token));
                }
                None => preparer.free(memory),
            }
        }
    }

    /// Frees memory that was prepared for a client that has left.
    pub(super) fn free_prepared(&self, memory: Option<Box<Prepared>>) {
        if let (Some(preparer), Some(memory)) = (&self.preparer, memory) {
            preparer.free(memory);
        }
    }
}
