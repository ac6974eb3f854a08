//! Busy polling: whether calls on the sockets of an interface look into its queues themselves.
//!
//! It is set as a filter is, by whom and for how long (`filter`), and goes by interface: sockets get it when they are bound,
//! so that all who share one find it the same.

use std::io;

use serde::Serialize;
use unetmap::errno::{EINVAL, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_sys::link::Link;
use unetmap_sys::xsk::{self, BusyPoll};

use crate::books::Books;
use crate::caller::Caller;
use crate::policy::Access;
use crate::refusal::{Refusal, refuse};

/// As it is told.
#[derive(Serialize)]
pub(crate) struct ShownBusy {
    usec: u16,
    budget: u16,
}

impl ShownBusy {
    pub(crate) fn of(busy: BusyPoll) -> ShownBusy {
        ShownBusy { usec: busy.usec(), budget: busy.budget() }
    }
}

impl Books {
    /// Microseconds and packets of sockets that are bound from now on; none: they do not poll busily.
    pub(crate) fn set_busy_poll(
        &mut self,
        link: &Link,
        busy: Option<(u32, u32)>,
        access: Option<Access>,
        caller: &Caller,
    ) -> Result<(), Refusal> {
        let (uid, netns_id, name) = (caller.peer.uid, caller.netns_id(), &link.name);
        let open = self.may_set("busy polling", link, access, caller)?;
        let busy = match busy {
            None => {
                self.filters.forget_busy(netns_id, link.index);
                tracing::info!(name, uid, "busy polling taken off");
                None
            }
            Some((usec, budget)) => {
                let Some(busy) = BusyPoll::new(usec, budget) else { return out_of_bounds(usec, budget) };
                let Some(netns) = &caller.netns else { return refuse(ENXIO, "no such interface (ip link shows them)") };
                // Also where no socket is bound yet: what cannot be used is not kept.
                let tried = netns.run(|| xsk::try_busy_poll(busy)).and_then(|tried| tried);
                tried.or_else(|e| refuse_busy(&e))?;
                self.filters.keep_busy(netns, link.index, busy)?;
                tracing::info!(name, uid, usec, budget, "busy polling set");
                Some(busy)
            }
        };
        if let Some(nic) = open.and_then(|key| self.nics.get_mut(&key)) {
            nic.busy = busy;
        }
        Ok(())
    }
}

fn out_of_bounds<T>(usec: u32, budget: u32) -> Result<T, Refusal> {
    let (usecs, budgets) = (BusyPoll::USEC, BusyPoll::BUDGET);
    refuse(
        EINVAL,
        format!(
            "busy polling of {usec} us with a budget of {budget}: give {} to {} us, and a budget of {} to {} packets",
            usecs.start(),
            usecs.end(),
            budgets.start(),
            budgets.end()
        ),
    )
}

/// What the kernel has against it.
pub(crate) fn refuse_busy<T>(e: &io::Error) -> Result<T, Refusal> {
    match e.raw_os_error() {
        Some(EPERM) => {
            refuse(EPERM, "the daemon may not have sockets poll busily: give it CAP_NET_ADMIN and CAP_NET_RAW")
        }
        _ => refuse(
            EOPNOTSUPP,
            format!("this kernel has no busy polling (it needs CONFIG_NET_RX_BUSY_POLL, Linux 5.11 or newer): {e}"),
        ),
    }
}
