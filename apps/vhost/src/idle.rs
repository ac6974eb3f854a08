// SPDX-License-Identifier: BSD-2-Clause
//! How a process waits that finds nothing to move.

use std::time::Instant;

use crate::tuning::{PAUSES_PER_SPIN, SPIN, STREAM};

/// The pause of a process that finds nothing to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// It looks again at once.
    Poll,
    /// It looks again after [`crate::tuning::NAP`]. Nobody is asked to wake it.
    Nap,
    /// It sleeps until somebody wakes it.
    Sleep,
}

/// Decides how the process waits.
///
/// Polling is the fastest, but where the process shares a CPU with those that it waits for it keeps them from running.
/// So after a time of polling in which nothing came it polls only now and then. In a stream it then naps: a wake-up
/// comes with the first packets, or the first buffers, and costs as much as moving hundreds.
#[derive(Default)]
pub(crate) struct Idle {
    /// Packets that were moved since the last pause.
    moved: u64,
    polling_since: Option<Instant>,
    /// Pauses without polling that are left.
    skips: u32,
}

impl Idle {
    pub(crate) fn moved(&mut self, packets: u64) {
        self.moved += packets;
        if self.polling_since.take().is_some() {
            self.skips = 0;
        }
    }

    pub(crate) fn next_pause(&mut self) -> Pause {
        match self.polling_since {
            None if self.skips == 0 => {
                self.polling_since = Some(Instant::now());
                return Pause::Poll;
            }
            None => self.skips -= 1,
            Some(since) if since.elapsed() < SPIN => return Pause::Poll,
            Some(_) => (self.polling_since, self.skips) = (None, PAUSES_PER_SPIN),
        }
        if std::mem::take(&mut self.moved) >= STREAM { Pause::Nap } else { Pause::Sleep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_without_packets_is_seldom_and_a_stream_is_followed_by_a_nap() {
        let mut idle = Idle::default();
        let until_no_poll = |idle: &mut Idle| std::iter::repeat_with(|| idle.next_pause()).find(|p| *p != Pause::Poll);
        idle.moved(STREAM);
        assert_eq!(until_no_poll(&mut idle), Some(Pause::Nap));
        // Nothing has come: it sleeps, without polling.
        for _ in 1..PAUSES_PER_SPIN {
            assert_eq!(idle.next_pause(), Pause::Sleep);
            idle.moved(STREAM - 1);
        }
        idle.moved(1);
        assert_eq!(idle.next_pause(), Pause::Nap);
        assert_eq!(idle.next_pause(), Pause::Poll);
        // Polling was worth it.
        idle.moved(1);
        assert_eq!((idle.next_pause(), idle.skips), (Pause::Poll, 0));
    }
}
