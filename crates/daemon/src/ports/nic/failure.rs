// SPDX-License-Identifier: BSD-2-Clause
//! The setting `failure` of an interface: what becomes of frames that a program should get and none takes.
//!
//! ```text
//! open                the host's stack gets them; the daemon's program is attached while a port is open
//! closed, bypass IF   the kernel drops them, or has IF send them: by a program that stays, from the setting on,
//!                     whether a port is open or not, and when every process of the daemon has ended
//! ```
//! A port that is opened uses the program that stays. A daemon that finds one which it has not attached, since an
//! earlier one has, takes its setting over: the setting is in the kernel.

use std::sync::Arc;

use serde::Serialize;
use unetmap_core::control::nic::OnFailure;
use unetmap_core::errno::{EBUSY, EINVAL, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_sys::kernel;
use unetmap_sys::link::Link;
use unetmap_sys::netns::Netns;
use unetmap_sys::xdp::{Failed, Failure};

use super::Nic;
use super::bypass::BypassSnapshot;
use super::lookup::find;
use super::settings::InterfaceSettings;
use super::staying::{StayingProgram, keep_name_closed};
use crate::caller::Caller;
use crate::ports::Daemon;
use crate::privileged::{self, Xdp};
use crate::refusal::{Refusal, refuse};

/// The setting and what was counted, in JSON.
#[derive(Serialize)]
pub(super) struct FailureSnapshot {
    /// `open`, `closed` or `bypass`.
    action: &'static str,
    /// `bypass`: the interface that sends the frames; null if it has gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    partner: Option<String>,
    /// Frames that no program took.
    #[serde(flatten)]
    frames: Failed,
    /// With `bypass`.
    #[serde(skip_serializing_if = "Option::is_none")]
    bypass: Option<BypassSnapshot>,
}

/// The setting of an interface, in the snapshot of everything.
#[derive(Serialize)]
pub(crate) struct SettingSnapshot {
    interface: String,
    /// The inode number of its network namespace, and its index there.
    netns: u64,
    index: u32,
    #[serde(flatten)]
    failure: FailureSnapshot,
}

/// All settings but `open`.
pub(crate) fn setting_snapshots(daemon: &Daemon) -> Vec<SettingSnapshot> {
    let settings = &daemon.nics.settings;
    let all = settings.staying_programs().map(|(&(netns, index), stays)| {
        let open = find(&daemon.registry, netns, index).ok().flatten();
        let name_of = |index| settings.staying_programs().find(|(key, _)| **key == (netns, index));
        let partner = match stays.failure {
            Failure::Bypass(partner) => name_of(partner).map(|(_, partner)| partner.name()),
            Failure::Open | Failure::Closed => None,
        };
        let failure = FailureSnapshot::new(Some(stays), &stays.xdp, open, partner);
        SettingSnapshot { interface: stays.name(), netns, index, failure }
    });
    all.collect()
}

impl FailureSnapshot {
    /// `None`: no program is attached.
    pub(super) fn of(netns: &Netns, stays: Option<&StayingProgram>, open: Option<&Nic>) -> Option<FailureSnapshot> {
        let xdp = stays.map(|stays| &*stays.xdp).or(open.and_then(|nic| nic.xdp.as_deref()))?;
        let partner = match stays.map(|stays| stays.failure) {
            Some(Failure::Bypass(index)) => privileged::link(netns, index).ok().flatten().map(|link| link.name),
            _ => None,
        };
        Some(FailureSnapshot::new(stays, xdp, open, partner))
    }

    fn new(stays: Option<&StayingProgram>, xdp: &Xdp, open: Option<&Nic>, partner: Option<String>) -> FailureSnapshot {
        let frames = xdp.failed().inspect_err(|e| tracing::debug!("the frames of a program: {e}")).unwrap_or_default();
        let record = stays.and_then(|stays| stays.bypass.as_deref());
        let bypass = record.map(|record| record.snapshot(frames.noted.bypass_ms));
        // What is still to be added to the counts.
        let noted = open.map_or(frames.noted, |nic| frames.noted.plus(nic.lost));
        let noted = record.map_or(noted, |record| noted.plus(record.noted()));
        let action = match stays.map_or(Failure::Open, |stays| stays.failure) {
            Failure::Open => "open",
            Failure::Closed => "closed",
            Failure::Bypass(_) => "bypass",
        };
        FailureSnapshot { action, partner, frames: Failed { noted, ..frames }, bypass }
    }
}

/// Sets what becomes of frames that no program takes at an interface, at which an open port has a program or none.
/// Returns the program that stays from now on.
pub(super) fn set_failure(
    settings: &mut InterfaceSettings,
    has_program: bool,
    (link, partner): (&Link, Option<Link>),
    requested: &OnFailure,
    caller: &Caller,
) -> Result<Option<Arc<StayingProgram>>, Refusal> {
    let uid = caller.peer.uid;
    let Some(netns) = caller.netns() else { return refuse(ENXIO, "no such interface (ip link shows them)") };
    let failure = match requested {
        OnFailure::Open => Failure::Open,
        OnFailure::Closed => Failure::Closed,
        OnFailure::Bypass(name) => Failure::Bypass(partner_index(link, name, partner)?),
    };
    let stays = settings.failure_at(link, caller)?;
    if stays.as_ref().map_or(Failure::Open, |stays| stays.failure) == failure {
        return Ok(stays);
    }
    if uid != 0 {
        return refuse(EPERM, "root alone changes what becomes of frames that no program takes");
    }
    // The program that stays is another one than that of open ports, and has another one beside it if it is closed.
    let keeps_program = stays
        .as_ref()
        .is_some_and(|stays| failure != Failure::Open && stays.is_closed() == (failure == Failure::Closed));
    if has_program && !keeps_program {
        return refuse(EBUSY, "it is open: close it everywhere first, as another program has to be attached");
    }
    let program = match (stays, failure) {
        (_, Failure::Open) => {
            let detached = privileged::detach_left(netns, link.index);
            detached.or_else(|e| refuse(EOPNOTSUPP, format!("the program that stays cannot be detached: {e}")))?;
            settings.remove_failure(netns.id(), link.index);
            keep_name_closed(netns, link, Failure::Open);
            None
        }
        (None, _) if link.receives_unfinished_frames() => {
            return refuse(
                EOPNOTSUPP,
                "the kernel completes its frames on their way to a program (a tap, a VLAN): only open is possible",
            );
        }
        (stays, _) => Some(settings.set_failure(netns, link, stays, failure)?),
    };
    tracing::info!(name = link.name, uid, ?failure, "failure set");
    Ok(program)
}

/// The index of the interface that is to send the frames of another one.
fn partner_index(link: &Link, name: &str, partner: Option<Link>) -> Result<u32, Refusal> {
    if kernel::HOST_RINGS.is_newer_than_kernel() {
        return refuse(EOPNOTSUPP, format!("a bypass needs Linux {} or newer", kernel::HOST_RINGS.least));
    }
    match partner {
        None => refuse(ENXIO, format!("there is no interface {name} (ip link shows them)")),
        Some(partner) if partner.index == link.index || partner.mac.is_none() => {
            refuse(EINVAL, format!("{name} cannot send its frames: give another interface of Ethernet"))
        }
        Some(partner) => Ok(partner.index),
    }
}
