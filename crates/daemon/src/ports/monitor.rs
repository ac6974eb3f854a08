// SPDX-License-Identifier: BSD-2-Clause
//! Monitors ([`port`]).

mod port;
mod saved;
mod shape;
mod watching;

pub(crate) use port::{Monitor, MonitorState};
pub(crate) use saved::SavedMonitor;
pub(super) use watching::{
    check_request, close_if_unused, closed_and_unused, copied_receive_rings, create, end_monitors, notify_watched,
    watched_port,
};
pub(crate) use watching::{check_restored, list_for_session, next_monitor};
