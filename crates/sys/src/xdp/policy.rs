// SPDX-License-Identifier: BSD-2-Clause
//! The policy of an XDP program about frames that no program takes, and the counts of such frames.

use std::io;
use std::os::fd::OwnedFd;

use crate::bpf::{self, FoundMaps, MapShape, REDIRECT_MARK};

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

impl Failed {
    pub(super) fn of([to_stack, dropped, bypassed, _]: [u64; COUNTS], policy: &Policy) -> Failed {
        Failed { to_stack, dropped, bypassed, noted: policy.noted }
    }
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

/// Number of counts in the map `failed` of xdp.c: one for each action, and that of refused frames.
pub(super) const COUNTS: usize = 4;

/// Frames that were given to sockets, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(C)]
pub struct SocketFrames {
    /// They went into the receive ring of a socket.
    pub to_programs: u64,
    /// The receive ring was full.
    pub ring_full: u64,
    /// There was no free buffer.
    pub no_buffer: u64,
    /// They did not fit the buffers.
    pub too_long: u64,
}

impl SocketFrames {
    /// The sums of both.
    #[must_use]
    pub fn and(self, other: SocketFrames) -> SocketFrames {
        SocketFrames {
            to_programs: self.to_programs.wrapping_add(other.to_programs),
            ring_full: self.ring_full.wrapping_add(other.ring_full),
            no_buffer: self.no_buffer.wrapping_add(other.no_buffer),
            too_long: self.too_long.wrapping_add(other.too_long),
        }
    }

    /// All of them.
    pub fn sum(&self) -> u64 {
        self.to_programs.wrapping_add(self.ring_full).wrapping_add(self.no_buffer).wrapping_add(self.too_long)
    }
}

/// The account of an interface's frames since a program was attached, but for those of open sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Account {
    /// The interface's own count of received frames when the program was attached.
    pub received_before: u64,
    /// Frames that no program took.
    pub failed: Failed,
    /// Frames that the filter refused, which the host's stack got.
    pub refused: u64,
    /// Frames of sockets that were closed.
    pub closed_sockets: SocketFrames,
    /// Whether other programs of a dispatcher take frames of the interface, too.
    pub is_shared: bool,
}

/// `struct policy` of xdp.c.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Policy {
    pub(super) failure: u32,
    pub(super) partner: u32,
    pub(super) mark: u32,
    pub(super) unused: u32,
    /// As [`Account`] has it.
    pub(super) received_before: u64,
    /// Counts of programs that this one has replaced.
    pub(super) before: [u64; COUNTS],
    /// Counts that no program keeps.
    pub(super) noted: Noted,
    pub(super) closed_sockets: SocketFrames,
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

/// Takes the map of policies, and reads its policy; `None`: the program is another version's.
pub(super) fn take_policy(maps: &mut FoundMaps) -> io::Result<Option<(OwnedFd, Policy)>> {
    let Some(policies) = maps.take("policies", MapShape::array::<Policy>(1)) else { return Ok(None) };
    let mut policy = Policy::default();
    // SAFETY: K5: an array with elements of this size, all of whose values are valid.
    unsafe { bpf::array_read(&policies, &mut policy) }?;
    Ok(Some((policies, policy)))
}
