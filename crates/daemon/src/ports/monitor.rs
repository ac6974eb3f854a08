// SPDX-License-Identifier: BSD-2-Clause
//! Monitors ([`port`]).

mod port;
mod saved;
mod shape;

pub(crate) use port::{Monitor, MonitorState, list_for_session, next_monitor};
pub(super) use port::{
    Mover, close_if_unused, copied_receive_rings, create, end_monitors, notify_watched, release_closed, watched_port,
};
pub(crate) use saved::{SavedMonitor, check_restored};
