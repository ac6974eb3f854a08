// SPDX-License-Identifier: BSD-2-Clause
//! Copied ends of pipes: an end that is opened in another region than the pipe lies in, as a program does that opens a
//! pipe in the region of its interface after the pipe's reader has opened the other end without one.
//!
//! ```text
//! program == endpoint, in the region that it names == [thread for each ring pair] == that end of the pipe == reader
//! ```
//! A region is mapped once and its rings refer to it, so an open end cannot move; packets are copied between the two
//! regions. The port is a pipe of its own whose other endpoint the daemon has open, as a mediated port is, and the
//! threads are the same.

use unetmap_abi::PipeRole;

use super::key::{CopiedEndKey, EndpointKey, PortKey};
use super::mediated::thread_usage;
use super::mediator::Prepared;
use super::snapshot::PortSnapshot;
use crate::descriptors::invalid;
use crate::endpoint::Endpoint;
use crate::refusal::Refusal;
use crate::registry::{Port, Record};

/// An end of a pipe in another region than the pipe.
pub(crate) struct CopiedEnd {
    key: CopiedEndKey,
}

impl CopiedEndKey {
    /// The pipe's own end, which the daemon has open.
    pub(super) fn original(&self) -> EndpointKey {
        EndpointKey { port: PortKey::Pipe(self.pipe.clone()), index: self.index }
    }

    /// The endpoint that programs open.
    pub(super) fn copied(&self) -> EndpointKey {
        EndpointKey { port: PortKey::CopiedEnd(self.clone()), index: self.index }
    }

    pub(super) fn role(&self) -> PipeRole {
        if self.index == 0 { PipeRole::Master } else { PipeRole::Slave }
    }

    pub(super) fn name(&self) -> String {
        let sign = if self.index == 0 { '{' } else { '}' };
        format!("{}{sign}{}", self.pipe.parent, self.pipe.id)
    }
}

impl CopiedEnd {
    /// Its kind's part of the record.
    pub(super) fn new(record: Record, key: CopiedEndKey) -> Port<CopiedEnd> {
        let other_usage = thread_usage(record.endpoints[key.index].shape.pairs());
        Port { record: Record { other_usage, ..record }, kind: CopiedEnd { key } }
    }

    /// Rebuilds an end that another daemon has handed over. Its threads follow.
    pub(super) fn restore(record: Record, key: &CopiedEndKey) -> Result<Port<CopiedEnd>, Refusal> {
        if key.index >= record.endpoints.len() {
            return invalid("an end of a pipe");
        }
        Ok(CopiedEnd::new(record, key.clone()))
    }
}

impl Port<CopiedEnd> {
    /// The endpoint that programs open.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.record.endpoints[self.key.index]
    }

    /// Adds what a thread counts with.
    pub(super) fn equip(&self, prepared: Prepared) -> Prepared {
        let states = self.endpoint().states_of(prepared.pair.1.into());
        prepared.counted_in(None, states)
    }

    pub(super) fn snapshot(&self, mem_id: u16) -> PortSnapshot {
        PortSnapshot::new(self.key.name(), "copied", mem_id, (&self.record, self.key.index))
    }
}
