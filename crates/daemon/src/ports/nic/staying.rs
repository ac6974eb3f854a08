// SPDX-License-Identifier: BSD-2-Clause
//! XDP programs that stay at their interfaces (`failure`).

use std::io;
use std::mem;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use unetmap_core::errno::{EBUSY, EEXIST, EOPNOTSUPP, EPERM};
use unetmap_sys::kernel;
use unetmap_sys::link::{ActiveOffload, Link};
use unetmap_sys::netns::Netns;
use unetmap_sys::tcx::HostTxAction;
use unetmap_sys::xdp::{Failure, Mode};

use super::bypass::BypassRecord;
use super::refusals::{MAY_NOT_ATTACH, conflicting_program};
use crate::broker::Handle;
use crate::privileged::{self, KeptXdp, TcxPrograms, Xdp};
use crate::refusal::{Refusal, refuse};
use crate::threads::lock;
use crate::tuning::nic::MAX_RINGS;

/// A program that stays at an interface.
pub(super) struct StayingProgram {
    pub(super) failure: Failure,
    pub(super) xdp: Arc<Xdp>,
    /// Drops the frames that the host sends while no program takes them, if the interface is closed (Linux 6.6).
    pub(super) tcx: Option<Arc<TcxPrograms>>,
    /// Queues that the driver has only since the program was attached.
    pub(super) added_queues: u32,
    /// With a bypass.
    pub(super) bypass: Option<Arc<BypassRecord>>,
    /// The interface's name when it was last looked up.
    name: Mutex<String>,
}

/// A program that stays as the daemon hands it to its successor.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedProgram {
    failure: Failure,
    xdp: KeptXdp,
    tcx: Option<Handle>,
    added_queues: u32,
    /// Missing in states of earlier daemons.
    #[serde(default)]
    name: String,
}

impl StayingProgram {
    pub(super) fn save(&self) -> SavedProgram {
        let tcx = self.tcx.as_deref().map(TcxPrograms::handle);
        let (xdp, added_queues) = (self.xdp.kept(), self.added_queues);
        SavedProgram { failure: self.failure, xdp, tcx, added_queues, name: self.name() }
    }

    pub(super) fn restore(saved: SavedProgram) -> Arc<StayingProgram> {
        let SavedProgram { failure, xdp, tcx, added_queues, name } = saved;
        let (xdp, tcx, name) = (Arc::new(Xdp::of(xdp)), tcx.map(TcxPrograms::of), Mutex::new(name));
        // It is looked at when the queues are known.
        let bypass = matches!(failure, Failure::Bypass(_)).then(Arc::default);
        Arc::new(StayingProgram { failure, xdp, tcx, added_queues, bypass, name })
    }

    pub(super) fn name(&self) -> String {
        lock(&self.name).clone()
    }

    /// The interface has this name now, which is closed in place of the former one. Returns that one.
    pub(super) fn is_named(&self, netns: &Netns, link: &Link) -> Option<String> {
        let former = mem::replace(&mut *lock(&self.name), link.name.clone());
        (former != link.name && self.is_closed()).then(|| {
            keep_name_closed(netns, link, self.failure);
            former
        })
    }

    /// Attaches it: in the driver if it supports XDP, else before the stack.
    pub(super) fn attach(
        netns: &Netns,
        link: &Link,
        failure: Failure,
        host_tx: HostTxAction,
    ) -> Result<StayingProgram, Refusal> {
        let tx_queues = || privileged::channels(netns, &link.name).map_or(0, |channels| channels.tx);
        let before = tx_queues();
        let generic = needs_generic(netns, (link.index, &link.name), Some(link));
        let attach = |mode| privileged::attach_to_stay(netns, link.index, MAX_RINGS, mode, failure).map(Xdp::of);
        let before_stack = || check_generic(netns, &link.name).map(|()| attach(Mode::Generic));
        let xdp = match generic {
            true => before_stack()?,
            false => match attach(Mode::Native) {
                Err(e) if e.raw_os_error() == Some(EOPNOTSUPP) => before_stack()?,
                attached => attached,
            },
        };
        let xdp = xdp.or_else(|e| refuse_program(&link.name, &e))?;
        let tcx = close_host(netns, link, failure, host_tx);
        let tcx = tcx.inspect_err(|_| _ = privileged::detach_left(netns, link.index))?;
        keep_name_closed(netns, link, failure);
        let added_queues = tx_queues().saturating_sub(before);
        let (bypass, name) = (record(failure, None), Mutex::new(link.name.clone()));
        Ok(StayingProgram { failure, xdp: Arc::new(xdp), tcx, added_queues, bypass, name })
    }

    /// Gives the program another failure.
    pub(super) fn with(
        &self,
        netns: &Netns,
        link: &Link,
        failure: Failure,
        host_tx: HostTxAction,
    ) -> Result<StayingProgram, Refusal> {
        let set = self.xdp.set_failure(netns, link.index, failure);
        set.or_else(|e| refuse_program(&link.name, &e))?;
        let tcx = match failure {
            Failure::Closed if self.tcx.is_some() => self.tcx.clone(),
            _ => close_host(netns, link, failure, host_tx)?,
        };
        keep_name_closed(netns, link, failure);
        let (bypass, name) = (record(failure, self.bypass.as_ref()), Mutex::new(link.name.clone()));
        Ok(StayingProgram { failure, xdp: self.xdp.clone(), tcx, added_queues: self.added_queues, bypass, name })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.failure == Failure::Closed
    }
}

/// The record of a bypass: of one that there was, or a new one of an interface that no program has open.
fn record(failure: Failure, former: Option<&Arc<BypassRecord>>) -> Option<Arc<BypassRecord>> {
    let record = matches!(failure, Failure::Bypass(_)).then(|| former.cloned().unwrap_or_default())?;
    record.look();
    Some(record)
}

/// Attaches the program for the host's frames to an interface that is closed.
fn close_host(
    netns: &Netns,
    link: &Link,
    failure: Failure,
    host_tx: HostTxAction,
) -> Result<Option<Arc<TcxPrograms>>, Refusal> {
    if failure != Failure::Closed {
        return Ok(None);
    }
    if kernel::HOST_RINGS.is_newer_than_kernel() {
        let least = kernel::HOST_RINGS.least;
        tracing::warn!(name = link.name, "before Linux {least} frames that the host sends are not dropped");
        return Ok(None);
    }
    let attached = privileged::attach_tcx_to_stay(netns, link.index, host_tx);
    attached.map(|id| Some(TcxPrograms::of(id.0))).or_else(|e| refuse_program(&link.name, &e))
}

/// Has the kernel drop the frames of an interface that gets this name in place of one that is closed and is deleted,
/// until it is closed itself: when it is opened, or looked at.
pub(super) fn keep_name_closed(netns: &Netns, link: &Link, failure: Failure) {
    let known = (failure == Failure::Closed).then_some(link.index);
    match privileged::set_closed_name(netns, link.name.clone(), known) {
        Ok(()) => {}
        // Without nftables no name was ever closed.
        Err(e) if known.is_none() => tracing::debug!(name = link.name, "its name stays as it is: {e}"),
        Err(e) => tracing::warn!(name = link.name, "another interface of this name will be open at first: {e}"),
    }
}

fn refuse_program<T>(name: &str, e: &io::Error) -> Result<T, Refusal> {
    match e.raw_os_error() {
        Some(EBUSY | EEXIST) => refuse(EBUSY, conflicting_program(name, None)),
        Some(EPERM) => refuse(EPERM, MAY_NOT_ATTACH),
        _ => {
            refuse(EOPNOTSUPP, format!("the kernel does not attach the program: {e} (unetmap doctor {name} says more)"))
        }
    }
}

/// Refuses an XDP program in generic mode at a device that goes on merging frames: the kernel fails to switch that off
/// as it attaches the program, and prints a warning.
pub(super) fn check_generic(netns: &Netns, name: &str) -> Result<(), Refusal> {
    let offloads = privileged::received_offloads(netns, name).unwrap_or_default();
    let merges = |offload: &&ActiveOffload| !offload.changeable && matches!(&*offload.name, "rx-lro" | "rx-gro-hw");
    match offloads.iter().find(merges) {
        None => Ok(()),
        Some(offload) => refuse(
            EOPNOTSUPP,
            format!(
                "no XDP program belongs before the stack, as its device merges frames, and {} cannot be switched off \
                 (unetmap nic {name} way packet)",
                offload.name
            ),
        ),
    }
}

/// Whether the driver cannot have the program: it redirects no frames to sockets, or loses the program.
pub(super) fn needs_generic(netns: &Netns, (index, name): (u32, &str), link: Option<&Link>) -> bool {
    let features = privileged::xdp_features(netns, index);
    features.is_ok_and(|known| known.is_some_and(|f| f.basic && !f.redirect))
        || link.is_some_and(|link| !link.redirects_natively())
        || privileged::driver(netns, name).ok().flatten().is_some_and(|driver| !driver.keeps_native_program())
}
