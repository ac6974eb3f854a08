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

/// Frames that no program took, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Failed {
    /// The host's stack got them.
    pub to_stack: u64,
    /// They were dropped.
    pub dropped: u64,
    /// The partner sent them.
    pub bypassed: u64,
}

impl Failed {
    pub(super) fn of([to_stack, dropped, bypassed]: [u64; 3]) -> Failed {
        Failed { to_stack, dropped, bypassed }
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
