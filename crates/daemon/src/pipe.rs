//! Pipes: two ends in one region, joined by a line for each ring pair and direction.
//!
//! ```text
//! line i             master tx i --> slave rx i
//! line tx_rings + i  slave tx i  --> master rx i
//! ```

use std::os::fd::OwnedFd;

use unetmap::errno::EINVAL;
use unetmap_abi::{NmreqRegister, PipeRole};
use unetmap_mem::{LinePage, Slots};

use crate::end::{End, EndShape, Way, shared_page};
use crate::refusal::{Refusal, refuse};
use crate::region::{House, HouseId};

/// Pipes of one parent.
pub(crate) const MAX_PIPES: usize = 64;
/// Ring pairs of a pipe.
const MAX_RINGS: u16 = 256;
/// Slots of a ring.
const MAX_SLOTS: u32 = 4096;
const DEFAULT_SLOTS: u32 = 1024;

/// A pipe; it exists as long as one of its ends is open.
pub(crate) struct Pipe {
    pub(crate) house: HouseId,
    pub(crate) lines: LinePage,
    pub(crate) lines_fd: OwnedFd,
    pub(crate) lines_bytes: usize,
    /// Master, slave.
    pub(crate) ends: [End; 2],
}

/// The index of an end.
pub(crate) fn end_index(role: PipeRole) -> usize {
    match role {
        PipeRole::Master => 0,
        PipeRole::Slave => 1,
    }
}

/// What the first opener wishes, cut to what a pipe can have. `EINVAL` for a ring of one slot.
pub(crate) fn wished_shape(register: &NmreqRegister) -> Result<EndShape, Refusal> {
    wished(register, MAX_RINGS)
}

/// The same with another limit of rings.
pub(crate) fn wished(register: &NmreqRegister, max_rings: u16) -> Result<EndShape, Refusal> {
    let slots = |wish: u32| {
        let n = if wish == 0 { DEFAULT_SLOTS } else { wish.min(MAX_SLOTS) };
        match Slots::new(n) {
            Some(slots) => Ok(slots),
            None => refuse(EINVAL, format!("a ring has 2 to {MAX_SLOTS} slots, not {n}")),
        }
    };
    let rings = |wish: u16| if wish == 0 { 1 } else { wish.min(max_rings) };
    Ok(EndShape {
        tx_rings: rings(register.nr_tx_rings),
        rx_rings: rings(register.nr_rx_rings),
        host_tx_rings: 0,
        host_rx_rings: 0,
        tx_slots: slots(register.nr_tx_slots)?,
        rx_slots: slots(register.nr_rx_slots)?,
    })
}

impl Pipe {
    /// Makes both ends; `shape` is as the opener of the end `role` sees it.
    pub(crate) fn make(house: &mut House, shape: EndShape, role: PipeRole) -> Result<Pipe, Refusal> {
        let master = if role == PipeRole::Master { shape } else { shape.mirrored() };
        let line_count = usize::from(master.all_tx()) + usize::from(master.all_rx());
        let lines_bytes = LinePage::bytes(line_count);
        let (window, lines_fd) = shared_page("unetmap-lines", lines_bytes)?;
        let down = usize::from(master.all_tx());
        let mut first = End::make(house, master, Way::Lines { tx: 0, rx: down })?;
        match End::make(house, master.mirrored(), Way::Lines { tx: down, rx: 0 }) {
            Ok(second) => {
                Ok(Pipe { house: house.id, lines: LinePage::new(window), lines_fd, lines_bytes, ends: [first, second] })
            }
            Err(e) => {
                let found = first.buffers();
                first.drop_rings(house);
                house.reclaim(&found, &[]);
                Err(e)
            }
        }
    }

    /// Whether an end is open.
    pub(crate) fn in_use(&self) -> bool {
        self.ends.iter().any(End::in_use)
    }
}
