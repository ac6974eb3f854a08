// SPDX-License-Identifier: BSD-2-Clause
//! The state that the daemon hands to its successor.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use unetmap_sys::socket::MAX_FDS;

use crate::broker::{Handle, SavedBroker};
use crate::channel::send_while;
use crate::descriptors::FdIndex;
use crate::history::History;
use crate::node::SavedNodes;
use crate::ports::SavedRegistry;
use crate::ports::mediators::PausedThread;
use crate::ports::nic::SavedNics;
use crate::ports::vale::SavedSwitches;
use crate::service::SavedService;

/// A message with a part of a state, as [`Reply`](super::Reply) and the store's messages have it, too.
#[derive(Serialize)]
enum Part<'a> {
    Descriptors,
    State(&'a State),
}

impl State {
    /// Sends the state: its descriptors, in as many messages as they need, and what names them. `again` as for
    /// [`send_while`].
    pub(super) fn send(
        &self,
        connection: &OwnedFd,
        fds: &[BorrowedFd<'_>],
        mut again: impl FnMut() -> bool,
    ) -> io::Result<()> {
        fds.chunks(MAX_FDS).try_for_each(|some| send_while(connection, &Part::Descriptors, some, &mut again))?;
        // A long state is a file, and so brings a descriptor, too.
        send_while(connection, &Part::State(self), &[], again)
    }
}

/// Everything.
#[derive(Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) version: u32,
    /// The daemon's process.
    pub(crate) pid: u32,
    pub(crate) listener: FdIndex,
    pub(crate) service: SavedService,
    pub(crate) clients: Vec<SavedClient>,
    /// Connections that have ended, but for so many descriptors in flight.
    pub(crate) left: Vec<(FdIndex, u64)>,
    pub(crate) after_crash: Option<SavedForCrash>,
    /// The holder ID that was given out last.
    pub(crate) last_holder: u32,
    /// Knobs that were set since the daemon was started.
    pub(crate) knobs: Vec<(String, u64)>,
    /// The broker, if it keeps something for an interface or the node.
    pub(crate) broker: Option<SavedBroker>,
    pub(crate) registry: SavedRegistry,
    pub(crate) nics: SavedNics,
    pub(crate) nodes: SavedNodes,
    pub(crate) mediators: Vec<PausedThread>,
    /// The number of the monitor that was created last.
    pub(crate) last_monitor: u64,
    pub(crate) switches: SavedSwitches,
    /// Since version 18.
    #[serde(default = "History::new")]
    pub(crate) history: History,
}

/// The part of the state that is for a crash alone.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedForCrash {
    /// The file with the token of the connection whose message is being answered.
    pub(crate) mark: FdIndex,
    /// The handle that the broker gave out last, if the broker is in the state.
    pub(crate) last_handle: Option<Handle>,
    /// Where the node was on: its files end.
    pub(crate) node: Option<PathBuf>,
}

/// A connection.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedClient {
    pub(crate) fd: FdIndex,
    pub(crate) token: u64,
    pub(crate) session: Option<u64>,
    /// Its holder ID, and the pidfd of its process.
    pub(crate) holder: Option<(u32, Option<FdIndex>)>,
    pub(crate) has_spoken: bool,
    pub(crate) is_answered: bool,
    /// Descriptors of the last answer, if it may not have been received.
    pub(crate) in_flight: u64,
    /// A message that was read and waits until others were received: its kind, tag, and payload.
    pub(crate) held: Option<(u16, u32, Vec<u8>)>,
}
