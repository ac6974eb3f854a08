// SPDX-License-Identifier: BSD-2-Clause
//! Zero copy: when it is tried, and why an interface copies its packets instead.

use std::io;

use unetmap_sys::link::Link;
use unetmap_sys::xdp::Mode;
use unetmap_sys::xsk::{BindMode, ZERO_COPY_BUFFER, ZeroCopyObstacle};

use super::Nic;
use crate::caller::Caller;
use crate::privileged;

/// Whether the driver of an interface says that it supports zero copy. Kernels before Linux 6.3 say nothing.
pub(crate) fn driver_offers_it(link: &Link, caller: &Caller) -> bool {
    let Some(netns) = &caller.netns else { return false };
    let features = privileged::xdp_features(netns, link.index);
    features.is_ok_and(|known| known.is_some_and(|features| features.zerocopy))
}

/// Whether the driver of any interface in the caller's namespace does.
pub(crate) fn any_driver_offers_it(caller: &Caller) -> bool {
    let links = caller.netns.as_ref().map(|netns| privileged::links(netns));
    links.and_then(Result::ok).is_some_and(|links| links.iter().any(|link| driver_offers_it(link, caller)))
}

impl Nic {
    /// Why zero copy is not tried, if it is not.
    pub(super) fn zero_copy_obstacle(&self, mode: Mode, headroom: u32) -> Option<String> {
        let ((netns, index), buffer) = (self.socket_place(), self.umem.buffer);
        let features = privileged::xdp_features(netns, index).ok().flatten();
        let obstacle = match features {
            _ if mode != Mode::Native => ZeroCopyObstacle::NotNative,
            Some(features) if !features.zerocopy => ZeroCopyObstacle::Unsupported,
            _ if self.added_queues > 0 => ZeroCopyObstacle::AddedQueues(&self.name),
            _ if headroom > 0 => ZeroCopyObstacle::Offsets,
            None if buffer != ZERO_COPY_BUFFER => ZeroCopyObstacle::Unknown,
            _ if buffer != ZERO_COPY_BUFFER => ZeroCopyObstacle::Buffers(buffer),
            _ => return None,
        };
        Some(obstacle.to_string())
    }

    /// What it means that a socket could not be bound with zero copy.
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
