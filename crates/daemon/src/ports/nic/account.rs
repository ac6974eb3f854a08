// SPDX-License-Identifier: BSD-2-Clause
//! The account of the frames that an interface received since the XDP program was attached.
//!
//! ```text
//! received = to_programs + to_stack + refused + bypassed + the sum of dropped
//! ```
//! Each term is counted where it happens: by the interface, by the kernel in the receive rings of sockets, and by the
//! XDP program, which does not count what goes to a socket. What is known of sockets that were closed is kept in a map
//! of that program, also while the daemon is replaced or has ended.

use std::collections::BTreeMap;

use serde::Serialize;
use unetmap_core::control::drops::DropReason;
use unetmap_sys::link::FrameCounts;
use unetmap_sys::xdp::{Account, SocketFrames};

/// Bytes of an Ethernet header with one VLAN tag.
const MOST_HEADER: u32 = 18;

/// The frames of an interface, by what became of them.
#[derive(Serialize, Debug, PartialEq, Eq)]
pub(crate) struct FramesSnapshot {
    received: u64,
    /// They went into the receive rings of sockets. Programs see them, unless they end before.
    to_programs: u64,
    /// No program took them, and the host's stack got them.
    to_stack: u64,
    /// The filter refused them, and the host's stack got them.
    refused: u64,
    /// No program took them, and the partner of the bypass sent them.
    bypassed: u64,
    /// By reason.
    dropped: BTreeMap<&'static str, u64>,
    /// Besides: frames that the host sent, and that went to the wire because the deadline was over.
    host_passed: u64,
}

/// Counts besides the account that the XDP program has.
#[derive(Default)]
pub(super) struct Known {
    /// Frames of open sockets, `to_programs` modulo 2^32.
    pub(super) open: SocketFrames,
    /// Frames that were lost on their way to the companion, and that passed it.
    pub(super) companion: [u64; 2],
    /// Bytes of a frame that a buffer holds.
    pub(super) buffer: u32,
    pub(super) host_passed: u64,
}

impl FramesSnapshot {
    /// `None`: other programs take frames of the interface, too, or its counts have begun anew.
    pub(super) fn of(account: &Account, counts: FrameCounts, known: &Known) -> Option<FramesSnapshot> {
        let came = counts.received.checked_sub(account.received_before).filter(|_| !account.is_shared)?;
        let sockets = account.closed_sockets.and(known.open);
        let (failed, [lost, passed]) = (account.failed, known.companion);
        let others = failed.to_stack + failed.dropped + failed.bypassed + account.refused;
        let rest = came.saturating_sub(others + sockets.ring_full + sockets.no_buffer + sockets.too_long);
        // A ring counts buffers. Its position has 32 bits; the others are those of the number that is next to the rest.
        let to_programs =
            if counts.mtu + MOST_HEADER > known.buffer { rest } else { nearest(rest, sockets.to_programs) };
        let dropped = [
            (DropReason::Closed, failed.dropped),
            (DropReason::NoRoom, sockets.ring_full),
            (DropReason::NoBuffer, sockets.no_buffer),
            (DropReason::TooManyFragments, sockets.too_long),
            (DropReason::Companion, lost),
        ];
        Some(FramesSnapshot {
            received: came + lost + passed,
            to_programs,
            to_stack: failed.to_stack + passed,
            refused: account.refused,
            bypassed: failed.bypassed,
            dropped: dropped.into_iter().map(|(reason, frames)| (reason.name(), frames)).collect(),
            host_passed: known.host_passed,
        })
    }
}

/// The number next to `about` that is equal to `count` modulo 2^32.
fn nearest(about: u64, count: u64) -> u64 {
    about.saturating_add_signed((count as u32).wrapping_sub(about as u32).cast_signed().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use unetmap_sys::xdp::Failed;

    /// An account of `came` frames, of which sockets got `to_programs`.
    fn frames(came: u64, to_programs: u64, mtu: u32) -> FramesSnapshot {
        let failed = Failed { to_stack: 1, dropped: 2, bypassed: 3, ..Failed::default() };
        let closed_sockets = SocketFrames { to_programs: 10, ring_full: 5, no_buffer: 6, too_long: 7 };
        let account = Account { received_before: 100, failed, refused: 4, closed_sockets, is_shared: false };
        let counts = FrameCounts { received: 100 + came, tx_dropped: 0, mtu };
        let open = SocketFrames { to_programs: to_programs - 10, ..SocketFrames::default() };
        let known = Known { open, companion: [8, 9], buffer: 2048, host_passed: 0 };
        FramesSnapshot::of(&account, counts, &known).expect("no other program")
    }

    fn sum(frames: &FramesSnapshot) -> u64 {
        let FramesSnapshot { to_programs, to_stack, refused, bypassed, dropped, .. } = frames;
        to_programs + to_stack + refused + bypassed + dropped.values().sum::<u64>()
    }

    #[test]
    fn the_account_adds_up() {
        let all = frames(128, 100, 1500);
        assert_eq!((all.received, all.to_programs, sum(&all)), (128 + 17, 100, all.received));
        let lacks = frames(128, 99, 1500);
        assert_eq!(lacks.received - sum(&lacks), 1, "a frame that nobody counted is not hidden");
    }

    #[test]
    fn a_ring_position_of_32_bits_is_enough() {
        let many = (5 << 32) + 70;
        let all = frames(many + 28, (many as u32).into(), 1500);
        assert_eq!((all.to_programs, sum(&all)), (many, all.received));
        assert_eq!(nearest(1 << 32, u64::from(u32::MAX)), u64::from(u32::MAX));
        assert_eq!(nearest(u64::from(u32::MAX), 0), 1 << 32);
        assert_eq!(nearest(3, 5), 5);
    }

    #[test]
    fn frames_of_several_buffers_count_once() {
        assert_eq!(frames(128, 300, 9000).to_programs, 100);
    }
}
