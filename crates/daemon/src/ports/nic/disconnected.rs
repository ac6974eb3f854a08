// SPDX-License-Identifier: BSD-2-Clause
//! Programs that ask for an interface from which the host's stack is disconnected (`NR_DISCONNECTED`, `/d` in a port's
//! name). Once its rings are bound the open is refused if the stack has frames of the interface, or can send:
//!
//! ```text
//! AF_XDP          a ring of the interface that no session has bound; a filter; the knob `fwd`; a kernel without tcx
//! packet sockets  no receive ring is bound; no table of nftables, or one by which the stack can send
//! ```
//! Later changes are as for all programs: nothing is refused, and `unetmap ls` shows them.

use unetmap_abi::{NR_DISCONNECTED, NR_MONITOR_RX, NR_MONITOR_TX, NR_ZCOPY_MON, NmreqRegister};
use unetmap_core::errno::{EINVAL, EOPNOTSUPP};
use unetmap_sys::kernel;

use super::Nic;
use super::lookup::behind;
use super::refusals::refuse_away;
use crate::ports::{EndpointKey, PortKey, Registry};
use crate::refusal::{Refusal, refuse};

const MONITOR: u64 = NR_MONITOR_TX | NR_MONITOR_RX | NR_ZCOPY_MON;

/// Refuses an interface that is not disconnected from the host's stack to a program that asks for that. Other ports
/// have no part in that stack.
pub(in crate::ports) fn check_disconnected(
    registry: &Registry,
    at: &EndpointKey,
    request: &NmreqRegister,
) -> Result<(), Refusal> {
    if request.nr_flags & NR_DISCONNECTED == 0 {
        return Ok(());
    }
    if request.nr_flags & MONITOR != 0 {
        return refuse(EINVAL, "a monitor takes no frames from the host's stack: ask for it with the port itself (/d)");
    }
    let Some(key) = behind(registry, at) else { return Ok(()) };
    let Some(nic) = registry.nic(&PortKey::Nic(key)) else { return refuse_away() };
    let Some(why) = nic.why_connected() else { return Ok(()) };
    refuse(
        EOPNOTSUPP,
        format!(
            "it cannot be disconnected from the host's stack, which the program asks for (/d, NR_DISCONNECTED): {why}; \
             without that it can be opened"
        ),
    )
}

impl Nic {
    /// Why the host's stack receives frames of it, or can send, with the remedy; `None`: it does neither.
    fn why_connected(&self) -> Option<String> {
        if let Some(packets) = &self.packets {
            return packets.why_connected();
        }
        let (shape, tx, rx) = (self.endpoint.shape, &self.endpoint.tx, &self.endpoint.rx);
        let mut own = tx.iter().take(shape.tx_rings.into()).chain(rx.iter().take(shape.rx_rings.into()));
        let is_closed = self.stays.as_ref().is_some_and(|stays| stays.is_closed());
        if self.filter.is_some() {
            return Some(format!("its filter leaves frames to the stack (unetmap nic {} filter off)", self.name));
        }
        if self.forwards {
            return Some("what programs release is forwarded to the stack (unetmap set fwd 0)".into());
        }
        if !is_closed && !own.all(|ring| ring.binders() > 0) {
            return Some("the stack has the rings that no program has open (open all of them)".into());
        }
        let sends = !self.host.takes_host_frames();
        sends.then(|| format!("what the stack sends goes to the wire, as {}", kernel::HOST_RINGS.refusal()))
    }
}
