// SPDX-License-Identifier: BSD-2-Clause
//! Zero copy: when it is tried, and why an interface copies its packets instead.

use std::io;

use unetmap_core::errno::EOPNOTSUPP;
use unetmap_sys::link::{DriverInfo, Link};
use unetmap_sys::xdp::Mode;
use unetmap_sys::xsk::{BindMode, Way, ZERO_COPY_BUFFER, ZeroCopyObstacle, obstacle_known};

use super::Nic;
use super::settings::InterfaceSettings;
use crate::caller::Caller;
use crate::privileged;
use crate::refusal::{Refusal, refuse};

/// Interfaces of a namespace that are asked whether they support zero copy.
const MAX_LINKS: usize = 64;

/// Whether an interface is to be opened with zero copy, as far as is known before it is tried: the sizes of buffers
/// depend on it.
pub(crate) fn is_expected(settings: &mut InterfaceSettings, link: &Link, caller: &Caller) -> bool {
    let Some(netns) = caller.netns() else { return false };
    let way = settings.of(caller.netns_id(), link.index).map_or(Way::Auto, |set| set.way);
    if way == Way::Auto && privileged::xdp_obstacle().is_some() {
        return false;
    }
    let surveyed = caller.surveyed(link.index);
    let features =
        surveyed.and_then(|survey| survey.features).map_or_else(|| privileged::xdp_features(netns, link.index), Ok);
    let driver =
        || surveyed.and_then(|survey| survey.driver.clone()).map_or_else(|| privileged::driver(netns, &link.name), Ok);
    // Kernels before Linux 6.3 say nothing.
    let may = features.is_ok_and(|known| known.map_or(way == Way::ZeroCopy, |features| features.zerocopy));
    may && obstacle_known(&link.name, way, driver().ok().flatten().as_ref(), None, is_proved).is_none()
}

/// Whether any interface in the caller's namespace is, of the first [`MAX_LINKS`]: a user can create any number in a
/// namespace of its own.
pub(crate) fn expects_any(settings: &mut InterfaceSettings, caller: &Caller) -> bool {
    let links = caller.netns().map(privileged::links);
    links
        .and_then(Result::ok)
        .is_some_and(|links| links.iter().take(MAX_LINKS).any(|link| is_expected(settings, link, caller)))
}

/// Whether zero copy was proved with a driver on this machine, by root's own file.
pub(super) fn is_proved(driver: &DriverInfo) -> bool {
    privileged::is_proved(driver.clone()).unwrap_or_else(|e| {
        tracing::warn!(driver = driver.name, "proofs of zero copy do not count: {e}");
        false
    })
}

impl Nic {
    /// Why zero copy is not tried, if it is not.
    pub(super) fn zero_copy_obstacle(&self, mode: Mode, headroom: u32) -> Option<String> {
        let ((netns, index), buffer) = (self.socket_place(), self.umem.buffer);
        let features = privileged::xdp_features(netns, index).ok().flatten();
        let driver = privileged::driver(netns, &self.name).ok().flatten();
        let known = obstacle_known(&self.name, self.way, driver.as_ref(), features, is_proved);
        let obstacle = match (known, features) {
            _ if mode != Mode::Native => ZeroCopyObstacle::NotNative,
            (Some(known), _) => known,
            _ if self.added_queues > 0 => ZeroCopyObstacle::AddedQueues(&self.name),
            _ if headroom > 0 => ZeroCopyObstacle::Offsets,
            (_, None) if buffer != ZERO_COPY_BUFFER => ZeroCopyObstacle::Unknown,
            _ if buffer != ZERO_COPY_BUFFER => ZeroCopyObstacle::Buffers(buffer),
            _ => return None,
        };
        Some(obstacle.to_string())
    }

    /// Refuses to open the interface in another way than the chosen one.
    pub(super) fn refuse_way<T>(&self, why: &str) -> Result<T, Refusal> {
        let (name, way) = (&self.name, self.way.as_str());
        refuse(EOPNOTSUPP, format!("its way is `{way}`, and {why} (another way: unetmap nic {name} way auto)"))
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
