// SPDX-License-Identifier: BSD-2-Clause
//! Zero copy: when it is tried, and why an interface copies its packets instead.

use std::io;

use unetmap_sys::link::{DriverInfo, Link};
use unetmap_sys::xdp::Mode;
use unetmap_sys::xsk::{BindMode, ZERO_COPY_BUFFER, ZeroCopyObstacle};

use super::Nic;
use crate::caller::Caller;
use crate::privileged;

/// Interfaces of a namespace that are asked whether they support zero copy.
const MAX_LINKS: usize = 64;

/// Whether the driver of an interface says that it supports zero copy, and its frames arrive. Kernels before Linux 6.3
/// say nothing.
pub(crate) fn driver_offers_it(link: &Link, caller: &Caller) -> bool {
    let Some(netns) = caller.netns() else { return false };
    let surveyed = caller.surveyed(link.index);
    let features =
        surveyed.and_then(|survey| survey.features).map_or_else(|| privileged::xdp_features(netns, link.index), Ok);
    let driver =
        || surveyed.and_then(|survey| survey.driver.clone()).map_or_else(|| privileged::driver(netns, &link.name), Ok);
    features.is_ok_and(|known| known.is_some_and(|features| features.zerocopy)) && sends_frames(driver())
}

/// Whether frames that are sent by zero copy arrive, as far as is known of the driver.
fn sends_frames(driver: io::Result<Option<DriverInfo>>) -> bool {
    driver.ok().flatten().is_none_or(|driver| driver.sends_zero_copy_frames())
}

/// Whether the driver of any interface in the caller's namespace does, of the first [`MAX_LINKS`]: a user can create
/// any number in a namespace of its own.
pub(crate) fn any_driver_offers_it(caller: &Caller) -> bool {
    let links = caller.netns().map(privileged::links);
    links
        .and_then(Result::ok)
        .is_some_and(|links| links.iter().take(MAX_LINKS).any(|link| driver_offers_it(link, caller)))
}

impl Nic {
    /// Why zero copy is not tried, if it is not.
    pub(super) fn zero_copy_obstacle(&self, mode: Mode, headroom: u32) -> Option<String> {
        let ((netns, index), buffer) = (self.socket_place(), self.umem.buffer);
        let features = privileged::xdp_features(netns, index).ok().flatten();
        let obstacle = match features {
            _ if mode != Mode::Native => ZeroCopyObstacle::NotNative,
            Some(features) if !features.zerocopy => ZeroCopyObstacle::Unsupported,
            _ if !sends_frames(privileged::driver(netns, &self.name)) => ZeroCopyObstacle::WrongHeader,
            _ if self.added_queues > 0 => ZeroCopyObstacle::AddedQueues(&self.name),
            _ if headroom > 0 => ZeroCopyObstacle::Offsets,
            None if buffer != ZERO_COPY_BUFFER => ZeroCopyObstacle::Unknown,
            _ if buffer != ZERO_COPY_BUFFER => ZeroCopyObstacle::Buffers(buffer),
            _ => return None,
        };
        Some(obstacle.to_string())
    }

    /// Returns a sentence for a socket that could not be bound with zero copy.
    pub(super) fn zero_copy_refusal(&self, error: &io::Error) -> String {
        let driver = privileged::driver(&self.netns, &self.name).ok().flatten();
        ZeroCopyObstacle::Refused { driver: driver.as_ref().map(|driver| &*driver.name), error }.to_string()
    }

    /// Why packets are copied, if they are and the driver runs the XDP program.
    pub(crate) fn copy_reason(&self) -> Option<&str> {
        let copies = self.xdp_config.is_some_and(|c| c.mode == Mode::Native && c.bind_mode == BindMode::Copy);
        self.copy_reason.as_deref().filter(|_| copies)
    }
}
