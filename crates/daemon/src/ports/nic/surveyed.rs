// SPDX-License-Identifier: BSD-2-Clause
//! What was read about an interface for a request (`survey`).

use unetmap_sys::link::{Channels, DriverInfo, Link, XdpFeatures};

/// What was read for a request, and where.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// `None`: that of the caller, for whose request alone it is.
    pub(super) netns: Option<u64>,
    pub(super) name: String,
    /// The inner `None`: there is no such interface; the outer one: it could not be read. So are those below.
    pub(super) link: Option<Option<Link>>,
    pub(super) channels: Option<Channels>,
    pub(super) features: Option<Option<XdpFeatures>>,
    pub(super) driver: Option<Option<DriverInfo>>,
    pub(super) default_routes: Option<Vec<u32>>,
    pub(super) tx_dropped: Option<u64>,
}
