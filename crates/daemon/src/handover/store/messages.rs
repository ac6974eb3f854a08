// SPDX-License-Identifier: BSD-2-Clause
//! The messages of daemon and store.

use serde::{Deserialize, Serialize};

use crate::handover::State;

/// A message to the store.
#[derive(Serialize, Deserialize)]
pub(super) enum Message {
    /// The next descriptors of a state, which come with the message.
    Descriptors,
    /// The state that is kept from now on. To be answered.
    State(Box<State>),
    /// No more comes of a state.
    Discard,
    /// Nothing is kept.
    Nothing,
    /// To be answered: all that is not kept any more is closed.
    Sync,
    /// Another store is to be started, whose connection comes with the message.
    Spare,
    /// The daemon exits as it should.
    Ended,
}

/// A message of the store.
#[derive(Serialize, Deserialize)]
pub(super) enum Answer {
    /// Its first: its process, how many descriptors it may have, and how many it keeps.
    Serves {
        pid: u32,
        files: u64,
        held: usize,
    },
    Kept,
    Failed(String),
    Synced,
}
