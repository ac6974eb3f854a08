// SPDX-License-Identifier: BSD-2-Clause
//! Processes that send descriptors to peers that may not receive them have one in flight, so that others of their user
//! can send theirs: it is in flight until the peer receives it or closes its end, whatever the sender does.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use assume::{CheckResult, Failure, expect, run_check};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Uid, geteuid, getrlimit, setrlimit};
use rustix::thread::set_thread_res_uid;
use unetmap_sys::socket;

/// A user without processes.
const NOBODY: u32 = 54_321;
const LIMIT: u64 = 200;
const SENT: usize = 50;

fn main() -> ExitCode {
    run_check("descriptors count for their sender's user until they are received or the receiver has ended", || {
        if !geteuid().is_root() {
            return Err(Failure::Untestable("only root can be a user without other processes".into()));
        }
        setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum: getrlimit(Resource::Nofile).maximum })?;
        // The kernel counts for the real user, and does not limit a privileged one.
        let nobody = Uid::from_raw(NOBODY);
        set_thread_res_uid(Some(nobody), nobody, Some(nobody))?;
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty())?;
        received(&null)?;
        receiver_ended(&null)
    })
}

/// Returns how many descriptors the user can send now.
fn room(null: &OwnedFd) -> io::Result<usize> {
    let (near, _far) = socket::pair()?;
    for sent in 0.. {
        match socket::send(&near, b"x", &[null.as_fd()]) {
            Ok(_) => {}
            Err(e) if Errno::from_io_error(&e) == Some(Errno::TOOMANYREFS) => return Ok(sent),
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn received(null: &OwnedFd) -> CheckResult {
    let (before, (near, far)) = (room(null)?, socket::pair()?);
    socket::send(&near, b"x", &[null.as_fd(); SENT])?;
    let expect_sent = |when: &str| expect(room(null)? + SENT == before, format_args!("not in flight {when}"));
    expect_sent("after they were sent")?;
    expect(!socket::all_received(&near)?, "an unread message is not seen by its sender")?;
    let duplicate = near.try_clone()?;
    socket::shut_down(&near);
    expect_sent("after the connection was shut down")?;
    drop(near);
    expect(!socket::all_received(&duplicate)?, "an unread message is not seen after a shutdown")?;
    let mut fds = Vec::new();
    socket::recv(&far, &mut [0], &mut fds)?;
    expect(fds.len() == SENT && socket::all_received(&duplicate)?, "a message that was read counts as unread")?;
    drop(fds);
    expect(room(null)? == before, "still in flight after they were received")
}

fn receiver_ended(null: &OwnedFd) -> CheckResult {
    let (before, (near, far)) = (room(null)?, socket::pair()?);
    socket::send(&near, b"x", &[null.as_fd(); SENT])?;
    drop(near);
    expect(room(null)? + SENT == before, "not in flight after the sender has closed the connection")?;
    drop(far);
    expect(room(null)? == before, "still in flight after the receiver has closed the connection")
}
