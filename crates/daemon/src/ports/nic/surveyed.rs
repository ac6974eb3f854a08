// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces as requests need them: what is asked about one, and what was read (`survey`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_sys::link::{Channels, DriverInfo, Link, XdpFeatures};
use unetmap_sys::netns::Netns;

/// Identifies an interface that is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct NicKey {
    /// Its network namespace.
    pub(crate) netns: u64,
    pub(crate) index: u32,
    /// Distinguishes it from an earlier interface of the same index.
    pub(crate) serial: u64,
}

/// An interface, open or not: the number of its network namespace, and its index.
pub(crate) type Place = (u64, u32);

impl NicKey {
    pub(crate) fn place(self) -> Place {
        (self.netns, self.index)
    }
}

/// An interface that is to be read about, for a user.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(super) uid: u32,
    pub(super) netns: Arc<Netns>,
    pub(super) name: String,
}

/// Facts that were read for a request, and where.
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
    /// Why frames arrive unfinished, if they do.
    pub(super) unfinished: Option<String>,
}
