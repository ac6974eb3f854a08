// SPDX-License-Identifier: BSD-2-Clause
//! Timers of the event loop.

use std::time::{Duration, Instant};

use super::{Server, open_log};
use crate::log;
use crate::ports::nic::abandoned;
use crate::ports::vale;

impl Server {
    /// Does what is due; returns the time until more is.
    pub(super) fn do_due(&mut self, now: Instant) -> Option<Duration> {
        if log::is_over() {
            open_log();
        }
        let timers = [
            vale::age_tables(&mut self.daemon),
            vale::free_retired(&mut self.daemon),
            self.daemon.end_stopped_mediators(),
            abandoned::ask(&mut self.daemon, now),
            self.end_silent_newcomers(now),
            self.end_accept_pause(now),
            self.end_drain(now),
            self.resend(now),
            log::summarize(),
        ];
        timers.into_iter().flatten().min()
    }
}
