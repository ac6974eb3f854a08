// SPDX-License-Identifier: BSD-2-Clause
//! The time since 1970 by a clock that does not go back.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) struct Clock {
    began: Instant,
    since: Duration,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock { began: Instant::now(), since: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
    }

    /// Milliseconds.
    pub(crate) fn now(&self) -> u64 {
        (self.since + self.began.elapsed()).as_millis() as u64
    }
}
