// SPDX-License-Identifier: BSD-2-Clause
//! How a loop waits that finds nothing to move.
//!
//! | pause | ends | for |
//! |---|---|---|
//! | spin | at once | a peer on another CPU that moves something soon: a sleep and a wake-up cost as much as [`SPIN`] |
//! | nap | by the clock | a stream: a wake-up comes with the first packets, and costs as much as moving hundreds |
//! | sleep | when a peer has been asked to wake the loop, and does | all else |
//!
//! A loop that may share its CPU with its peer also yields it (`Port::yield_to_peer`, the switch's `yield_to_client`).

use std::time::{Duration, Instant};

/// How long a loop spins before it sleeps; about the cost of one sleep and wake-up between two cores.
pub const SPIN: Duration = Duration::from_micros(50);

/// The same for a program after a wait that ended with a large batch, not from an interface. A peer that serves several
/// receivers on one CPU may have to wake one after the other, and serves nobody meanwhile.
///
/// Measured with a switch thread that serves four receivers: wake-ups fell from 6,000 to 70 a second; with 1024 slots
/// the rate rose from 12.9 to 16.3 Mpps, with 4096 slots from 13.1 to 15.7. Costs a program that receives bursts 150 us
/// of polling.
pub const STREAM_SPIN: Duration = Duration::from_micros(200);

/// Length of a nap: the longest delay of a packet. The kernel adds its timer slack, of 50 us.
///
/// Measured for the receiver of a fast stream at an interface, on veth with 60-byte packets: 1.60 Mpps with spinning,
/// 1.85 to 1.95 with naps (decision 15). For a switch's thread: decision 72.
pub const NAP: Duration = Duration::from_micros(50);

/// The same for a process with a slack of 1 us ([`crate::thread::set_timer_slack`]): it takes longer where the
/// processor has to be woken for it, and a queue of a thousand packets takes 50 us at 20 Mpps.
pub const EXACT_NAP: Duration = Duration::from_micros(30);

/// How long a nap may take: the kernel ends it up to 60 us late (decision 15).
const NAP_MAX_NS: u64 = 110_000;

/// Packets that must be expected during a nap; with fewer it saves nothing.
const NAP_MIN_PACKETS: u64 = 32;

/// Packets between two pauses that are a stream.
pub const STREAM: u64 = 64;

/// Pauses without spinning after a time of spinning in which nothing came.
const PAUSES_PER_SPIN: u32 = 64;

const _: () = assert!(SPIN.as_nanos() <= STREAM_SPIN.as_nanos() && NAP.as_nanos() < NAP_MAX_NS as u128);

/// Whether to nap before an interface is polled again that has received `arrived` packets in `ns` nanoseconds, into
/// rings of `slots`: if packets arrive fast, but not so fast that the rings could overflow.
pub fn nap_pays(arrived: u64, ns: u64, slots: u64) -> bool {
    (NAP_MIN_PACKETS..slots / 2).contains(&(arrived.saturating_mul(NAP_MAX_NS) / ns.max(1)))
}

/// A pause of a loop that finds nothing to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// It looks again at once.
    Spin,
    /// It looks again after a nap. Nobody is asked to wake it.
    Nap,
    /// It sleeps until somebody wakes it.
    Sleep,
}

/// Decides how a loop waits.
#[derive(Default)]
pub struct Wait {
    /// Packets that were moved since the last nap or sleep.
    moved: u64,
    spinning_since: Option<Instant>,
    /// Pauses without spinning that are left.
    skips: u32,
}

impl Wait {
    /// Notes that so many packets were moved.
    #[inline]
    pub fn moved(&mut self, packets: u64) {
        self.moved += packets;
        self.restart();
    }

    /// Notes that something was found, or that the loop has slept: it spins again before it sleeps.
    #[inline]
    pub fn restart(&mut self) {
        self.spinning_since = None;
    }

    /// Whether to look again at once: for [`SPIN`] from the first call after it was moved or restarted.
    pub fn spins(&mut self) -> bool {
        self.spinning_since.get_or_insert_with(Instant::now).elapsed() < SPIN
    }

    /// Returns the next pause of a loop that may share a CPU with those that it waits for, where spinning keeps them
    /// from running: after a time of spinning in which nothing came it spins only now and then. In a stream it then
    /// naps.
    pub fn next_pause(&mut self) -> Pause {
        if self.skips > 0 {
            self.skips -= 1;
        } else if self.spins() {
            return Pause::Spin;
        } else {
            (self.spinning_since, self.skips) = (None, PAUSES_PER_SPIN);
        }
        if std::mem::take(&mut self.moved) >= STREAM { Pause::Nap } else { Pause::Sleep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_without_packets_is_seldom_and_a_stream_is_followed_by_a_nap() {
        let mut wait = Wait::default();
        let until_no_spin = |wait: &mut Wait| std::iter::repeat_with(|| wait.next_pause()).find(|p| *p != Pause::Spin);
        wait.moved(STREAM);
        assert_eq!(until_no_spin(&mut wait), Some(Pause::Nap));
        // Nothing has come: it sleeps, without spinning.
        for _ in 1..PAUSES_PER_SPIN {
            assert_eq!(wait.next_pause(), Pause::Sleep);
            wait.moved(STREAM - 1);
        }
        wait.moved(1);
        assert_eq!(wait.next_pause(), Pause::Nap);
        assert_eq!(wait.next_pause(), Pause::Spin);
        // Spinning was worth it.
        wait.moved(1);
        assert_eq!((wait.next_pause(), wait.skips), (Pause::Spin, 0));
    }

    #[test]
    fn a_nap_pays_in_a_stream_that_does_not_fill_the_rings() {
        let (second, slots) = (1_000_000_000, 1024);
        assert_eq!(
            [100_000, 1_000_000, 4_000_000, 5_000_000].map(|n| nap_pays(n, second, slots)),
            [false, true, true, false]
        );
        assert!(!nap_pays(u64::MAX, 0, u64::MAX));
    }
}
