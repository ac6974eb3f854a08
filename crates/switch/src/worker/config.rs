// SPDX-License-Identifier: BSD-2-Clause
//! A switch as one thread sees it.

use std::sync::Arc;

use super::latency::Latency;
use crate::fdb::MacTable;
use crate::forward::MAX_FRAGS;
use crate::policy::PolicySet;
use crate::port::{PortTx, SwitchPort};
use crate::tuning::BATCH_SLOTS;

/// The ports, the MAC table and the policies of a switch as one thread uses them until the next configuration.
pub struct SwitchConfig {
    pub(crate) table: Arc<MacTable>,
    pub(crate) latency: Arc<Latency>,
    /// The ports by index.
    pub(crate) members: Vec<Option<Arc<SwitchPort>>>,
    /// Indexes of the ports whose transmit rings the thread serves.
    own: Vec<u8>,
    /// Number of members.
    pub(crate) ports: usize,
    /// The indexes of both members, if there are exactly two.
    pub(crate) pair: Option<[u8; 2]>,
    pub(crate) policies: PolicySet,
}

impl SwitchConfig {
    /// The switch with this MAC table, these samples of its latency and, by index, these ports; the thread serves those
    /// with the indexes `own`.
    pub fn new(
        (table, latency): (Arc<MacTable>, Arc<Latency>),
        members: Vec<Option<Arc<SwitchPort>>>,
        own: Vec<u8>,
    ) -> SwitchConfig {
        let all: Vec<u8> = members.iter().flatten().map(|port| port.index()).collect();
        let policies = members.iter().map(|port| port.as_ref().and_then(|port| port.policy())).collect();
        // A batch must hold a packet with too many fragments.
        let policies = PolicySet::new(policies, (MAX_FRAGS + 1, BATCH_SLOTS as u32));
        SwitchConfig { table, latency, members, own, ports: all.len(), pair: all.try_into().ok(), policies }
    }

    pub(crate) fn own(&self) -> impl Iterator<Item = &Arc<SwitchPort>> {
        self.own.iter().filter_map(|index| self.members.get(usize::from(*index))?.as_ref())
    }

    pub(crate) fn own_rings(&self) -> impl Iterator<Item = (&SwitchPort, usize, &PortTx)> {
        self.own().flat_map(|port| port.tx.iter().enumerate().map(|(i, ring)| (&**port, i, ring)))
    }

    /// Returns the port that flooded packets of port `source` go to, if that is exactly one.
    #[inline]
    pub(crate) fn only_other(&self, source: u8) -> Option<&SwitchPort> {
        let [a, b] = self.pair?;
        self.member(if a == source { b } else { a })
    }

    pub(crate) fn member(&self, index: u8) -> Option<&SwitchPort> {
        self.members.get(usize::from(index))?.as_deref()
    }
}
