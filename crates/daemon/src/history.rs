// SPDX-License-Identifier: BSD-2-Clause
//! Events of the daemon and its configuration, counted over replacements and crashes.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Counts since the first daemon was started from which this one has its ports, by replacements or after crashes; and
/// in JSON what metrics say of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct History {
    /// Daemons before this one that crashed, and that were replaced.
    pub(crate) crashes: u64,
    pub(crate) replacements: u64,
    /// How often configuration and policy were read again, and how often that failed.
    reloads: u64,
    failed_reloads: u64,
    /// When they were last read without an error: milliseconds since 1970.
    read_ms: u64,
    /// Requests and connections that were refused since the policy does not allow them.
    policy_refusals: u64,
}

impl History {
    /// The history of a daemon that has just read its configuration, and has taken over from none.
    pub(crate) fn new() -> History {
        History { crashes: 0, replacements: 0, reloads: 0, failed_reloads: 0, read_ms: now_ms(), policy_refusals: 0 }
    }

    /// Goes on with that of the daemon before, which crashed or was replaced. This one has read the configuration.
    pub(crate) fn go_on_after(&mut self, before: History, has_crashed: bool) {
        let (crashes, replacements) = (u64::from(has_crashed), u64::from(!has_crashed));
        *self = History {
            crashes: before.crashes + crashes,
            replacements: before.replacements + replacements,
            read_ms: self.read_ms,
            ..before
        };
    }

    /// Configuration and policy were read again.
    pub(crate) fn reloaded(&mut self) {
        (self.reloads, self.read_ms) = (self.reloads + 1, now_ms());
    }

    /// They could not be read.
    pub(crate) fn reload_failed(&mut self) {
        self.failed_reloads += 1;
    }

    /// The policy does not allow something.
    pub(crate) fn refused_by_policy(&mut self) {
        self.policy_refusals += 1;
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_goes_on_counting() {
        let mut first = History::new();
        first.reloaded();
        first.reload_failed();
        first.refused_by_policy();
        let (mut second, mut third) = (History::new(), History::new());
        second.go_on_after(first, true);
        third.go_on_after(second, false);
        let counts = (third.crashes, third.replacements, third.reloads, third.failed_reloads, third.policy_refusals);
        assert_eq!(counts, (1, 1, 1, 1, 1));
    }
}
