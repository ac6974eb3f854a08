// SPDX-License-Identifier: BSD-2-Clause
//! The shape of an endpoint: how many rings it has in each direction, and how many slots each ring has.

use serde::{Deserialize, Serialize};
use unetmap_abi::NmreqRegister;
use unetmap_core::control::request::NR_AT;
use unetmap_core::errno::EINVAL;
use unetmap_mem::Slots;

use crate::refusal::{Refusal, refuse};

/// Ring pairs of a pipe or of a port without a data path.
pub(crate) const MAX_PIPE_RINGS: u16 = 256;
/// Slots of a ring that the request leaves at 0.
pub(crate) const DEFAULT_SLOTS: u32 = 1024;
/// Slots of a ring.
const MAX_SLOTS: u32 = 4096;

/// The number of rings of an endpoint, and their length.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct EndpointShape {
    pub(crate) tx_rings: u16,
    pub(crate) rx_rings: u16,
    /// Host rings, numbered after the others. Only interfaces have them.
    pub(crate) host_tx_rings: u16,
    pub(crate) host_rx_rings: u16,
    #[serde(with = "slots")]
    pub(crate) tx_slots: Slots,
    #[serde(with = "slots")]
    pub(crate) rx_slots: Slots,
    /// The number that its first ring is to have in its region, if it is free; the others follow. Of a pipe: that of
    /// the master's first ring.
    #[serde(skip)]
    pub(crate) first_ring: Option<u32>,
}

/// The numbers of the `netmap_if` and of the first ring that a request asks for ([`NR_AT`]).
pub(crate) fn wanted_place(request: &NmreqRegister) -> Option<(u32, u32)> {
    let number = |number: u64| u32::try_from(number).ok();
    (request.nr_flags & NR_AT != 0).then(|| number(request.nr_offset).zip(number(request.nr_memsize)))?
}

/// A number of slots, in a state that is handed over.
mod slots {
    use serde::de::Error;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use unetmap_mem::Slots;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(slots: &Slots, to: S) -> Result<S::Ok, S::Error> {
        slots.get().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Slots, D::Error> {
        Slots::new(u32::deserialize(from)?).ok_or_else(|| D::Error::custom("a ring of so many slots"))
    }
}

impl EndpointShape {
    /// Returns the shape that REGISTER requests, limited to `max_rings` rings and [`MAX_SLOTS`] slots. `EINVAL` for a
    /// ring of one slot.
    pub(crate) fn requested(register: &NmreqRegister, max_rings: u16) -> Result<EndpointShape, Refusal> {
        let slots = |requested: u32| {
            let n = if requested == 0 { DEFAULT_SLOTS } else { requested.min(MAX_SLOTS) };
            match Slots::new(n) {
                Some(slots) => Ok(slots),
                None => refuse(EINVAL, format!("a ring has 2 to {MAX_SLOTS} slots, not {n}")),
            }
        };
        let rings = |requested: u16| if requested == 0 { 1 } else { requested.min(max_rings) };
        Ok(EndpointShape {
            tx_rings: rings(register.nr_tx_rings),
            rx_rings: rings(register.nr_rx_rings),
            host_tx_rings: 0,
            host_rx_rings: 0,
            tx_slots: slots(register.nr_tx_slots)?,
            rx_slots: slots(register.nr_rx_slots)?,
            first_ring: wanted_place(register).map(|(_, ring)| ring),
        })
    }

    /// Returns the shape of the other endpoint of a pipe.
    pub(crate) fn mirrored(self) -> EndpointShape {
        EndpointShape {
            tx_rings: self.rx_rings,
            rx_rings: self.tx_rings,
            host_tx_rings: self.host_rx_rings,
            host_rx_rings: self.host_tx_rings,
            tx_slots: self.rx_slots,
            rx_slots: self.tx_slots,
            first_ring: self.first_ring,
        }
    }

    /// Transmit rings, including host rings.
    pub(crate) fn all_tx(self) -> u16 {
        self.tx_rings + self.host_tx_rings
    }

    /// Receive rings, including host rings.
    pub(crate) fn all_rx(self) -> u16 {
        self.rx_rings + self.host_rx_rings
    }

    /// Rings of both directions, including host rings.
    pub(crate) fn all_rings(self) -> u32 {
        u32::from(self.all_tx()) + u32::from(self.all_rx())
    }

    /// The slots of all rings together.
    pub(crate) fn all_slots(self) -> u32 {
        u32::from(self.all_tx()) * self.tx_slots.get() + u32::from(self.all_rx()) * self.rx_slots.get()
    }

    /// Most buffers that are allocated for an endpoint, or for both of a pipe: one for each slot, and a placeholder for
    /// each ring.
    pub(crate) fn most_buffers(self) -> u32 {
        self.all_slots() + self.all_rings()
    }

    /// Slots of the longest ring.
    pub(crate) fn longest(self) -> Slots {
        if self.tx_slots.get() > self.rx_slots.get() { self.tx_slots } else { self.rx_slots }
    }

    /// Ring pairs without the host's. A pair may lack one direction.
    pub(crate) fn nic_pairs(self) -> usize {
        usize::from(self.tx_rings.max(self.rx_rings))
    }

    /// Ring pairs, including the host's.
    pub(crate) fn pairs(self) -> usize {
        self.nic_pairs() + usize::from(self.host_tx_rings.max(self.host_rx_rings))
    }

    /// The pair that ring `id` belongs to. `nic_rings` is the number of rings of that direction that are not host
    /// rings.
    pub(crate) fn pair(self, id: u16, nic_rings: u16) -> usize {
        id.checked_sub(nic_rings).map_or(usize::from(id), |host| self.nic_pairs() + usize::from(host))
    }
}
