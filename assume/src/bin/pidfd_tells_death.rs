//! The death of a process that holds a lock or a lease is noticed, also when nobody has waited for it yet.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use assume::{comes, connection, expect, fork, judge, readable, stay};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use unetmap_sys::event::PollFlags;
use unetmap_sys::socket;

fn main() -> ExitCode {
    judge("a pidfd, opened by number or taken from a connection, becomes readable when the process is killed", || {
        let (server, child) = connection(|path| {
            fork(|| match socket::connect(path) {
                Ok(_connection) => stay(),
                Err(_) => 1,
            })
        })?;
        let pid = Pid::from_raw(child.pid()).ok_or(rustix::io::Errno::SRCH)?;
        let pidfds = [pidfd_open(pid, PidfdFlags::empty())?, socket::peer_pidfd(&server)?];
        for pidfd in &pidfds {
            expect(!readable(pidfd)?, "readable although the process lives")?;
        }
        child.kill()?;
        for pidfd in &pidfds {
            expect(comes(pidfd, PollFlags::IN)?, "not readable although the process was killed")?;
        }
        Ok(())
    })
}
