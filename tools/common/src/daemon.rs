// SPDX-License-Identifier: BSD-2-Clause
//! The option of programs that wait for the next daemon.

use clap::Args;

use crate::note;

#[expect(missing_docs, reason = "clap would take it for the program's")]
#[derive(Debug, Default, Args)]
pub struct WaitDaemon {
    /// When the daemon has ended, wait for the next one and go on with the same ports. What their rings had is lost,
    /// and counted on standard error
    #[arg(long)]
    wait_daemon: bool,
}

impl WaitDaemon {
    /// Whether it was given.
    pub fn is_given(&self) -> bool {
        self.wait_daemon
    }

    /// Has all ports that are opened from now on wait, if it was given; they say so on standard error.
    pub fn apply(&self) {
        if self.wait_daemon {
            unetmap::reconnect_by_default();
        }
        // The environment can have them wait, too.
        unetmap::observe_daemons(|port, change| note(&format!("{port}: {change}")));
    }
}
