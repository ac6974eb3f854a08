// SPDX-License-Identifier: BSD-2-Clause
//! Serving again what an earlier daemon has left ([`super::lasting`]), while requests are answered.
//!
//! ```text
//! waiting --> opening: a thread opens the sockets of the hidden end --> served, in a switch again
//!    ^           |
//!    '-----------'  an earlier daemon still has something of it, which the kernel releases later
//! ```
//! Threads open the hidden ends of some ports at the same time: each waits for the kernel most of the time. Attached
//! interfaces follow the ports. A request about a port that is not served yet waits for it
//! ([`crate::needs::Needs::Returning`]), and the port is the next.

use std::time::{Duration, Instant};

use unetmap_abi::{NR_REG_ALL_NIC, NmreqRegister};

use super::lasting_attached::poll_again;
use super::persistent_requests::{close_hidden_namespace_if_unused, open_hidden_end, serve};
use super::returning::{LastingAttachment, Left, LeftPort, Returning, take_due};
use crate::caller::Caller;
use crate::ports::nic::{self, NicKey};
use crate::ports::{Daemon, EndpointKey, PortKey};
use crate::privileged;
use crate::refusal::Refusal;
use crate::region::RegionMemory;
use crate::tuning::region::MAX_EXTRA;

impl Daemon {
    /// Begins to serve the next again; returns the time until another is to be begun.
    pub(crate) fn serve_again(&mut self, now: Instant) -> Option<Duration> {
        let due = self.vale.returning.due(now).is_some_and(|due| due.is_zero());
        if due && let Some(left) = take_due(&mut self.vale.returning.ports, now) {
            self.unsaved(|daemon| daemon.begin_port(left));
        } else if due && let Some(left) = take_due(&mut self.vale.returning.attachments, now) {
            self.unsaved(|daemon| daemon.attach_again(left));
        }
        self.vale.returning.due(now)
    }

    /// Serves something again, which the file has already: it is written anew when all of it was tried.
    fn unsaved(&mut self, serve: impl FnOnce(&mut Daemon)) {
        let has_unsaved = self.vale.has_unsaved;
        serve(self);
        self.vale.has_unsaved = has_unsaved;
        self.end_returning();
    }

    /// If nothing is left, the file is written anew.
    pub(super) fn end_returning(&mut self) {
        let Some(since) = self.vale.returning.since.filter(|_| self.vale.returning.is_empty()) else { return };
        let served = self.vale.returning.served;
        tracing::info!(served, took = ?since.elapsed(), "what an earlier daemon has left is served again");
        self.vale.returning = Returning::default();
        self.vale.former_numbers.clear();
        self.vale.has_unsaved = true;
        close_hidden_namespace_if_unused(&self.registry, &mut self.nics, &mut self.vale);
        self.learn_from_kernel();
    }

    fn begin_port(&mut self, left: Left<LeftPort>) {
        let record = &left.what.record;
        let begun = open_hidden_end(self, &left.what.link, &left.what.request, record.whole).and_then(|nic| {
            let at = EndpointKey::from(PortKey::Nic(nic));
            let all = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..Default::default() };
            let selection = self.registry.endpoint(&at)?.0.select(&all)?;
            Ok((nic, nic::begin_to_open(&mut self.registry, &mut self.nics.work, &at, &selection)))
        });
        match begun {
            Ok((_, Some(nic))) => _ = self.vale.returning.opening.insert(nic, left),
            Ok((nic, None)) => self.finish_port(nic, left, Ok(())),
            Err(refusal) => self.port_failed(left, &refusal),
        }
    }

    /// A thread has opened the sockets of an interface, or `result` says why not. Returns the result, unless it was the
    /// hidden end of a port that is served again, which is so now.
    pub(crate) fn opened_again(&mut self, nic: NicKey, result: Result<(), Refusal>) -> Option<Result<(), Refusal>> {
        let Some(left) = self.vale.returning.opening.remove(&nic) else { return Some(result) };
        self.unsaved(|daemon| daemon.finish_port(nic, left, result));
        None
    }

    fn finish_port(&mut self, nic: NicKey, left: Left<LeftPort>, result: Result<(), Refusal>) {
        self.nics.work.opening.remove(&PortKey::Nic(nic));
        match result.and_then(|()| self.serve_opened(nic, &left.what)) {
            Ok(()) => self.vale.returning.has_served(),
            Err(refusal) => {
                self.release_if_unused(&PortKey::Nic(nic));
                self.port_failed(left, &refusal);
            }
        }
    }

    fn serve_opened(&mut self, nic: NicKey, port: &LeftPort) -> Result<(), Refusal> {
        let LeftPort { record, request, shape, .. } = port;
        let sizes = self.knobs.private_sizes().for_switch_port(shape, MAX_EXTRA);
        let memory = &mut RegionMemory::AsUsed;
        let region = self.registry.regions.create_private(record.scope, &record.name, sizes, memory)?;
        let port = (&*record.name, *request, *shape, record.attached.as_ref());
        let served = serve(self, nic, port, region, &Caller::daemon());
        served.inspect_err(|_| self.registry.free_region_if_unused(region))?;
        let Some(served) = self.vale.persistent.get_mut(record.hidden) else { return Ok(()) };
        served.header = record.header;
        let host_end = served.host_end.clone();
        poll_again(self, &host_end, record.polling.as_ref());
        Ok(())
    }

    fn port_failed(&mut self, mut left: Left<LeftPort>, refusal: &Refusal) {
        if left.is_tried_again(refusal, self.vale.returning.progress, Instant::now()) {
            return self.vale.returning.ports.push_back(left);
        }
        let LeftPort { record, .. } = left.what;
        let hidden = self.vale.persistent.hidden_namespace.as_ref();
        let link = hidden.map(|hidden| privileged::link(hidden, record.hidden));
        if matches!(link, Some(Ok(None))) {
            tracing::info!(name = record.name, "a persistent port was removed with its namespace");
        } else {
            tracing::error!(name = record.name, "the persistent port is not served: {}", refusal.why);
            self.vale.persistent.unserved.push(record);
        }
    }

    fn attach_again(&mut self, mut left: Left<LastingAttachment>) {
        let namespaces = std::mem::take(&mut self.vale.returning.namespaces);
        let attached = left.what.attach_again(self, &namespaces);
        self.vale.returning.namespaces = namespaces;
        match attached {
            Ok(()) => self.vale.returning.has_served(),
            Err(refusal) if left.is_tried_again(&refusal, self.vale.returning.progress, Instant::now()) => {
                self.vale.returning.attachments.push_back(left);
            }
            Err(refusal) => {
                tracing::error!(port = left.what.key.name(), "it is not attached again: {}", refusal.why);
            }
        }
    }
}
