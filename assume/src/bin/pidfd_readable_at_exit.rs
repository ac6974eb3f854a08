// SPDX-License-Identifier: BSD-2-Clause
//! The exit of a process that holds a lock is detected, also before its parent has waited for it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use assume::{becomes_ready, connection, expect, fork, readable, run_check, wait_for_kill};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use unetmap_sys::event::PollFlags;
use unetmap_sys::socket;

fn main() -> ExitCode {
    run_check(
        "a pidfd, opened by number or taken from a connection, becomes readable when the process is killed",
        || {
            let (server, child) = connection(|path| {
                fork(|| match socket::connect(path) {
                    Ok(_connection) => wait_for_kill(),
                    Err(_) => 1,
                })
            })?;
            let pid = Pid::from_raw(child.pid()).ok_or(rustix::io::Errno::SRCH)?;
            let pidfds = [pidfd_open(pid, PidfdFlags::empty())?, socket::peer_pidfd(&server)?];
            for pidfd in &pidfds {
                expect(!readable(pidfd)?, "readable although the process is running")?;
            }
            child.kill()?;
            for pidfd in &pidfds {
                expect(becomes_ready(pidfd, PollFlags::IN)?, "not readable although the process was killed")?;
            }
            Ok(())
        },
    )
}
