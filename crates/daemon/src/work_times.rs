// SPDX-License-Identifier: BSD-2-Clause
//! How long the control thread takes for the work of users, for `unetmap ls --json`.

use std::time::Duration;

use serde::Serialize;

use crate::tuning::server::LONG_WORK;

/// Since the daemon was started. One piece of work is a request, the end of a connection, or a job of the node.
#[derive(Clone, Copy, Default, Serialize)]
pub(crate) struct WorkTimes {
    pieces: u64,
    /// Pieces that took longer than [`LONG_WORK`].
    long: u64,
    /// The longest, in microseconds, and its user.
    longest_us: u64,
    longest_uid: u32,
}

impl WorkTimes {
    /// Records a piece of work of a user.
    pub(crate) fn add(&mut self, uid: u32, time: Duration) {
        self.pieces += 1;
        self.long += u64::from(time > LONG_WORK);
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if us > self.longest_us {
            (self.longest_us, self.longest_uid) = (us, uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_piece_is_kept_with_its_user() {
        let mut times = WorkTimes::default();
        for (uid, ms) in [(1, 3), (2, 7), (3, 6)] {
            times.add(uid, Duration::from_millis(ms));
        }
        let WorkTimes { pieces, long, longest_us, longest_uid } = times;
        assert_eq!((pieces, long, longest_us, longest_uid), (3, 2, 7000, 2));
    }
}
