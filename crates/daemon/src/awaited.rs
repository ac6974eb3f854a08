// SPDX-License-Identifier: BSD-2-Clause
//! What a request waits for: an interface that a thread opens or closes.

use serde::{Deserialize, Serialize};

/// Identifies an interface that is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct NicKey {
    /// Its network namespace.
    pub(crate) netns: u64,
    pub(crate) index: u32,
    /// Distinguishes it from an earlier interface of the same index.
    pub(crate) serial: u64,
}

/// What a request waits for, after which it is answered again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Awaited {
    /// The interface that is away.
    pub(crate) nic: NicKey,
    /// The work that was begun for this request; `None`: it was begun for another one.
    pub(crate) work: Option<u64>,
    /// How often the request has waited before.
    pub(crate) rounds: u32,
}
