// SPDX-License-Identifier: BSD-2-Clause
//! A process that is killed while it has locked a shared connection does not block the other processes.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use assume::{becomes_ready, expect, fork, run_check, wait_for_kill};
use unetmap_sys::event::PollFlags;
use unetmap_sys::{Doorbell, socket};

fn main() -> ExitCode {
    run_check(
        "a record lock (fcntl) on a socket excludes other processes until its holder unlocks or is killed",
        || {
            let (near, _far) = socket::pair()?;
            let locked = Doorbell::new()?;
            expect(socket::try_lock(&near)?, "a free lock was refused")?;
            let child = fork(|| u8::from(socket::try_lock(&near).unwrap_or(true)))?;
            expect(child.wait()? == assume::Outcome::Exit(0), "two processes hold the lock")?;
            socket::unlock(&near);
            let child = fork(|| match socket::try_lock(&near) {
                Ok(true) => {
                    locked.notify();
                    wait_for_kill()
                }
                _ => 1,
            })?;
            if !becomes_ready(&locked, PollFlags::IN)? {
                return Err(io::Error::other("the child could not lock the socket").into());
            }
            expect(!socket::try_lock(&near)?, "two processes hold the lock")?;
            child.kill()?;
            child.wait()?;
            expect(socket::try_lock(&near)?, "the lock outlived its process")
        },
    )
}
