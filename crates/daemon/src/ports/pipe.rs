// SPDX-License-Identifier: BSD-2-Clause
//! Pipes: two endpoints in one region, joined by a channel for each ring pair and direction.
//!
//! ```text
//! channel i             master tx i --> slave rx i
//! channel tx_rings + i  slave tx i  --> master rx i
//! ```

use unetmap_abi::PipeRole;

use super::key::PipeKey;
use super::snapshot::PortSnapshot;
use crate::registry::Port;

/// A pipe between two programs. It exists as long as one of its endpoints is open.
pub(crate) struct Pipe {
    pub(super) key: PipeKey,
}

/// The index of an endpoint.
pub(super) fn endpoint_index(role: PipeRole) -> usize {
    match role {
        PipeRole::Master => 0,
        PipeRole::Slave => 1,
    }
}

impl Port<Pipe> {
    /// Both ends, which people see as two ports.
    pub(super) fn snapshots(&self, mem_id: u16) -> Vec<PortSnapshot> {
        let PipeKey { scope, parent, id } = &self.key;
        let names = [format!("{parent}{{{id}"), format!("{parent}}}{id}")];
        let snapshot = |(index, name)| PortSnapshot {
            uid: Some(scope.uid),
            ..PortSnapshot::new(name, "pipe", mem_id, (&self.record, index))
        };
        names.into_iter().enumerate().map(snapshot).collect()
    }
}
