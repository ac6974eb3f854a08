// SPDX-License-Identifier: BSD-2-Clause
//! The messages of successor and predecessor.

use serde::{Deserialize, Serialize};

use super::state::State;
use crate::ports::vale::SwitchPositions;

/// From the successor.
#[derive(Serialize, Deserialize)]
pub(crate) enum Request {
    /// The successor reads these versions of the state. Until version 15 it named one alone.
    Begin {
        #[serde(rename = "version")]
        oldest: u32,
        #[serde(default)]
        newest: u32,
    },
    /// Which file the daemon runs. Nothing follows.
    WhichProgram,
    /// The successor has rebuilt everything, but for positions.
    Ready,
    /// The successor has everything.
    Commit,
}

/// From the daemon.
#[derive(Serialize, Deserialize)]
pub(crate) enum Reply {
    Refused(String),
    /// Something is in progress: begin again in a moment.
    Busy,
    /// The next descriptors, which come with the message.
    Descriptors,
    State(Box<State>),
    Positions(Box<SwitchPositions>),
    /// The daemon has crashed: the positions are those in the rings.
    Recover,
    Released,
    /// Device and inode.
    Program(u64, u64),
}
