// SPDX-License-Identifier: BSD-2-Clause
//! Timers of the event loop.

use std::time::{Duration, Instant};

use super::{Server, open_log};
use crate::daemon::Daemon;
use crate::log;

impl Server {
    /// Does what is due; returns the time until more is.
    pub(super) fn do_due(&mut self, now: Instant) -> Option<Duration> {
        if log::is_over() {
            open_log();
        }
        let timers = [
            self.daemon.follow_tables(),
            self.daemon.vale.age_tables(),
            self.daemon.vale.free_retired(&mut self.daemon.registry),
            self.daemon.end_stopped_mediators(),
            self.serve_again(now),
            self.ask_for_abandoned(now),
            self.end_silent_newcomers(now),
            self.end_accept_pause(now),
            self.end_drain(now),
            self.resend(now),
            log::summarize(),
        ];
        timers.into_iter().flatten().min()
    }

    /// Has a thread ask whether the namespaces of attached interfaces are in use, if it is due.
    fn ask_for_abandoned(&mut self, now: Instant) -> Option<Duration> {
        let Daemon { registry, nics, vale, .. } = &mut self.daemon;
        let attached = registry.attached_interfaces().filter(|nic| !vale.persistent.is_hidden_namespace(nic.netns));
        nics.abandoned.ask(&nics.work, attached, now)
    }
}
