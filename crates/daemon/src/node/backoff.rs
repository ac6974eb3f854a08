// SPDX-License-Identifier: BSD-2-Clause
//! When a failed attempt is repeated: after twice as many polls as the last time.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::tuning::node::MAX_BACKOFF;

/// Decides whether to attempt something with polls that find nothing: to hold them, or to spin. Two threads that change
/// it at the same time may lose one change.
#[derive(Default)]
pub(super) struct Backoff {
    /// Polls that find nothing until the next attempt.
    wait: AtomicU32,
    /// Their number after the last attempt without success.
    waits: AtomicU32,
}

impl Backoff {
    /// Whether a poll that found nothing is to make an attempt.
    pub(super) fn is_due(&self) -> bool {
        let wait = self.wait.load(Ordering::Relaxed);
        self.wait.store(wait.saturating_sub(1), Ordering::Relaxed);
        wait == 0
    }

    /// The attempt succeeded: the peer made something ready.
    pub(super) fn succeeded(&self) {
        self.waits.store(0, Ordering::Relaxed);
    }

    /// The attempt failed.
    pub(super) fn failed(&self) {
        let waits = (self.waits.load(Ordering::Relaxed) * 2).clamp(1, MAX_BACKOFF);
        self.waits.store(waits, Ordering::Relaxed);
        self.wait.store(waits, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many polls are not held after each attempt without success.
    fn pauses(backoff: &Backoff, times: u32) -> Vec<u32> {
        let mut pauses = Vec::new();
        for _ in 0..times {
            backoff.failed();
            pauses.push((0..).take_while(|_| !backoff.is_due()).count() as u32);
        }
        pauses
    }

    #[test]
    fn polls_held_without_success_are_held_less_often() {
        let backoff = Backoff::default();
        assert!(backoff.is_due());
        assert_eq!(pauses(&backoff, 11), [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]);
        backoff.succeeded();
        assert!(backoff.is_due());
        assert_eq!(pauses(&backoff, 2), [1, 2]);
    }
}
