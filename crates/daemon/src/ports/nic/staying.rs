// SPDX-License-Identifier: BSD-2-Clause
//! XDP programs that stay at their interfaces (`failure`).

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_core::errno::{EBUSY, EEXIST, EOPNOTSUPP, EPERM};
use unetmap_sys::link::Link;
use unetmap_sys::netns::Netns;
use unetmap_sys::xdp::{Failure, Mode};

use crate::privileged::{self, KeptXdp, Xdp};
use crate::refusal::{Refusal, refuse};
use crate::tuning::nic::MAX_RINGS;

/// A program that stays at an interface.
pub(super) struct StayingProgram {
    pub(super) failure: Failure,
    pub(super) xdp: Arc<Xdp>,
    /// Queues that the driver has only since the program was attached.
    pub(super) added_queues: u32,
}

/// A program that stays as the daemon hands it to its successor.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedProgram {
    failure: Failure,
    xdp: KeptXdp,
    added_queues: u32,
}

impl StayingProgram {
    pub(super) fn save(&self) -> SavedProgram {
        SavedProgram { failure: self.failure, xdp: self.xdp.kept(), added_queues: self.added_queues }
    }

    pub(super) fn restore(saved: SavedProgram) -> Arc<StayingProgram> {
        let SavedProgram { failure, xdp, added_queues } = saved;
        Arc::new(StayingProgram { failure, xdp: Arc::new(Xdp::of(xdp)), added_queues })
    }

    /// Attaches it: in the driver if it supports XDP, else before the stack.
    pub(super) fn attach(netns: &Netns, link: &Link, failure: Failure) -> Result<StayingProgram, Refusal> {
        let tx_queues = || privileged::channels(netns, &link.name).map_or(0, |channels| channels.tx);
        let before = tx_queues();
        let driver = privileged::driver(netns, &link.name).ok().flatten();
        let generic = !link.redirects_natively() || driver.is_some_and(|driver| !driver.keeps_native_program());
        let attach = |mode| privileged::attach_to_stay(netns, link.index, MAX_RINGS, mode, failure).map(Xdp::of);
        let xdp = match attach(if generic { Mode::Generic } else { Mode::Native }) {
            Err(e) if e.raw_os_error() == Some(EOPNOTSUPP) && !generic => attach(Mode::Generic),
            attached => attached,
        };
        let xdp = xdp.or_else(|e| refuse_program(&link.name, &e))?;
        Ok(StayingProgram { failure, xdp: Arc::new(xdp), added_queues: tx_queues().saturating_sub(before) })
    }

    /// The same program, with another failure.
    pub(super) fn with(&self, netns: &Netns, link: &Link, failure: Failure) -> Result<StayingProgram, Refusal> {
        let set = self.xdp.set_failure(netns, link.index, failure);
        set.or_else(|e| refuse_program(&link.name, &e))?;
        Ok(StayingProgram { failure, xdp: self.xdp.clone(), added_queues: self.added_queues })
    }
}

fn refuse_program<T>(name: &str, e: &io::Error) -> Result<T, Refusal> {
    match e.raw_os_error() {
        Some(EBUSY | EEXIST) => {
            refuse(EBUSY, format!("another XDP program is attached (unetmap doctor {name} shows whose)"))
        }
        Some(EPERM) => refuse(EPERM, "the daemon may not attach XDP programs: it needs CAP_NET_ADMIN and CAP_BPF"),
        _ => {
            refuse(EOPNOTSUPP, format!("the kernel does not attach the program: {e} (unetmap doctor {name} says more)"))
        }
    }
}
