// SPDX-License-Identifier: BSD-2-Clause
//! How long the control thread takes for its work, for `unetmap ls --json`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::tuning::server::LONG_WORK;

/// Since the daemon was started. One piece of work is a request, the end of a connection, a job of the node, or an
/// event that concerns no user's connection.
#[derive(Clone, Default, Serialize)]
pub(crate) struct WorkTimes {
    pieces: u64,
    /// Pieces that took longer than [`LONG_WORK`].
    long: u64,
    /// The longest, in microseconds, and its user.
    longest_us: u64,
    longest_uid: u32,
    /// The same of each kind.
    kinds: BTreeMap<&'static str, KindTimes>,
}

#[derive(Clone, Copy, Default, Serialize)]
struct KindTimes {
    pieces: u64,
    total_us: u64,
    long: u64,
    longest_us: u64,
}

impl WorkTimes {
    /// Records a piece of work of a user.
    pub(crate) fn add(&mut self, uid: u32, kind: &'static str, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let long = u64::from(time > LONG_WORK);
        self.pieces += 1;
        self.long += long;
        if us > self.longest_us {
            (self.longest_us, self.longest_uid) = (us, uid);
        }
        let of_kind = self.kinds.entry(kind).or_default();
        of_kind.pieces += 1;
        of_kind.total_us = of_kind.total_us.saturating_add(us);
        of_kind.long += long;
        of_kind.longest_us = of_kind.longest_us.max(us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_piece_is_kept_with_its_user_and_its_kind() {
        let mut times = WorkTimes::default();
        for (uid, kind, ms) in [(1, "a", 3), (2, "b", 7), (3, "a", 6)] {
            times.add(uid, kind, Duration::from_millis(ms));
        }
        let WorkTimes { pieces, long, longest_us, longest_uid, kinds } = times;
        assert_eq!((pieces, long, longest_us, longest_uid), (3, 2, 7000, 2));
        let of = |kind| {
            let KindTimes { pieces, total_us, long, longest_us } = kinds[kind];
            (pieces, total_us, long, longest_us)
        };
        assert_eq!((of("a"), of("b")), ((2, 9000, 1, 6000), (1, 7000, 1, 7000)));
    }
}
