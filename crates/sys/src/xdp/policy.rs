// SPDX-License-Identifier: BSD-2-Clause
//! The policy of an XDP program about frames that no program takes, and the counts of such frames.

use crate::bpf::REDIRECT_MARK;

/// The fate of the frames that a program should get and none takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Failure {
    /// The host's stack gets them.
    #[default]
    Open,
    /// They are dropped.
    Closed,
    /// The interface of this index, in the same network namespace, sends them (Linux 6.6).
    Bypass(u32),
}

/// Frames that no program took, or none has finished with, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Failed {
    /// The host's stack got them.
    pub to_stack: u64,
    /// They were dropped.
    pub dropped: u64,
    /// The partner sent them.
    pub bypassed: u64,
    /// Frames that were lost elsewhere.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub noted: Noted,
}

/// Counts that the XDP program cannot keep: the daemon adds to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(C)]
pub struct Noted {
    /// They were in the rings of sockets that were closed: received and not released by the program, or to be sent.
    pub left_in_rings: u64,
    /// There was no room for them in the rings of sockets that have been closed since.
    pub no_room: u64,
    /// They were not lost: a program that had hung took them after the partner had sent later ones.
    pub overtaken: u64,
    /// No frames: milliseconds for which the partner has sent the frames of a queue, up to the last end of such a time.
    pub bypass_ms: u64,
}

impl Noted {
    /// Returns the sums.
    pub fn plus(self, other: Noted) -> Noted {
        Noted {
            left_in_rings: self.left_in_rings.saturating_add(other.left_in_rings),
            no_room: self.no_room.saturating_add(other.no_room),
            overtaken: self.overtaken.saturating_add(other.overtaken),
            bypass_ms: self.bypass_ms.saturating_add(other.bypass_ms),
        }
    }
}

/// `struct policy` of xdp.c.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Policy {
    pub(super) failure: u32,
    pub(super) partner: u32,
    pub(super) mark: u32,
    pub(super) unused: u32,
    /// Counts of programs that this one has replaced.
    pub(super) before: [u64; 3],
    /// Counts that no program keeps.
    pub(super) noted: Noted,
}

impl Policy {
    pub(super) fn of(failure: Failure) -> Policy {
        let (failure, partner) = match failure {
            Failure::Open => (0, 0),
            Failure::Closed => (1, 0),
            Failure::Bypass(partner) => (2, partner),
        };
        Policy { failure, partner, mark: REDIRECT_MARK, ..Policy::default() }
    }

    pub(super) fn failure(&self) -> Failure {
        match self.failure {
            1 => Failure::Closed,
            2 => Failure::Bypass(self.partner),
            _ => Failure::Open,
        }
    }
}
