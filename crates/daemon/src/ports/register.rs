// SPDX-License-Identifier: BSD-2-Clause
//! REGISTER, on its way from the request to its answer.

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use unetmap_abi::{NmreqOptOffsets, NmreqRegister};
use unetmap_core::control::binding::Binding;
use unetmap_core::control::monitor::MonitorList;
use unetmap_mem::Region;

use super::key::EndpointKey;
use crate::endpoint::RingSelection;
use crate::offsets::OffsetLayout;
use crate::region::RegionMemory;

/// A port as a request asks for it, and the memory of a region that is created for it.
pub(crate) struct Asked<'a> {
    pub(crate) register: NmreqRegister,
    pub(crate) memory: &'a mut RegionMemory,
}

impl Deref for Asked<'_> {
    type Target = NmreqRegister;

    fn deref(&self) -> &NmreqRegister {
        &self.register
    }
}

/// The part of a port that the daemon runs itself which it has besides the answer to REGISTER.
#[derive(Default)]
pub(crate) struct OwnPort {
    pub(crate) monitors: Arc<MonitorList>,
    /// The region, in which the daemon allows buffers (`RegionRecord::fill`).
    pub(crate) region: Option<Region>,
}

/// The options of REGISTER.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) offsets: Option<NmreqOptOffsets>,
}

/// A session that is being opened: its port exists, and its rings are chosen.
pub(crate) struct Opening {
    pub(crate) at: EndpointKey,
    pub(super) name: String,
    pub(super) request: NmreqRegister,
    pub(crate) selection: RingSelection,
    pub(super) offsets: Option<OffsetLayout>,
}

/// The answer to REGISTER.
pub(crate) struct Registered {
    pub(crate) session: u64,
    pub(crate) register: NmreqRegister,
    pub(crate) bound: Binding,
    pub(crate) fds: Vec<OwnedFd>,
    /// The grant of the option OFFSETS, if it was requested.
    pub(crate) offsets: Option<OffsetLayout>,
}
