// SPDX-License-Identifier: BSD-2-Clause
//! Answers with descriptors that nobody receives: the daemon counts them as the kernel does, by its own socket.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use assume::{CheckResult, Failure, Outcome, becomes_ready, expect, fork, run_check, wait_for_kill};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
use unetmap_sys::event::PollFlags;
use unetmap_sys::sandbox::{self, Capability};
use unetmap_sys::socket;

/// The sender's limit of open files, and descriptors of a message.
const LIMIT: usize = 64;
const MESSAGE: usize = 20;
/// Users of no account.
const USERS: [u32; 2] = [0x7fff_fff0, 0x7fff_fff1];

fn main() -> ExitCode {
    run_check(
        "descriptors in messages count for the user who sent them until they are received or the receiving socket is \
         closed, and the sending socket tells whether they were",
        || {
            let mut limit = getrlimit(Resource::Nofile);
            limit.current = Some(LIMIT as u64);
            setrlimit(Resource::Nofile, limit)?;
            if rustix::process::geteuid().is_root() {
                users_do_not_share_the_count()?;
                become_user(USERS[0])?;
            }
            closed_by_the_sender()?;
            shut_down_and_received()
        },
    )
}

/// Without CAP_SYS_RESOURCE and CAP_SYS_ADMIN, for which no limit applies.
fn become_user(id: u32) -> io::Result<()> {
    sandbox::keep_capabilities(&[Capability::SetGid, Capability::SetUid])?;
    sandbox::become_user(id)
}

fn is_refused(sent: io::Result<usize>) -> io::Result<bool> {
    match sent {
        Err(e) if e.raw_os_error() == Some(Errno::TOOMANYREFS.raw_os_error()) => Ok(true),
        sent => sent.map(|_| false),
    }
}

fn send(near: &OwnedFd) -> io::Result<bool> {
    is_refused(socket::send(near, b"x", &[near.as_fd(); MESSAGE]))
}

/// Sends until the kernel refuses it; returns the messages.
fn fill(near: &OwnedFd) -> Result<usize, Failure> {
    let mut sent = 0;
    while !send(near)? {
        sent += 1;
        expect(sent <= LIMIT, "descriptors in flight are not limited")?;
    }
    Ok(sent)
}

/// The sender's end is closed, and the receiver holds the messages.
fn closed_by_the_sender() -> CheckResult {
    let (near, far) = socket::pair()?;
    let sent = fill(&near)?;
    expect(sent == LIMIT / MESSAGE + 1, format_args!("{sent} messages were sent: the limit is another one"))?;
    drop(near);
    let (other, _its) = socket::pair()?;
    expect(send(&other)?, "closing the sending socket discards what was not received")?;
    drop(far);
    // What a closed socket had is freed before close returns, if nothing else has the socket.
    expect(!send(&other)?, "closing the receiving socket leaves what it had")
}

/// Either end is shut down: the messages can still be received, and count until then.
fn shut_down_and_received() -> CheckResult {
    let (near, far) = socket::pair()?;
    let (other, _its) = socket::pair()?;
    fill(&near)?;
    for end in [&far, &near] {
        socket::shut_down(end);
        expect(!socket::all_received(&near)?, "a connection that is shut down counts as received")?;
        expect(send(&other)?, "shutting down discards what was not received")?;
    }
    for _ in 0..=LIMIT / MESSAGE {
        let mut fds = Vec::new();
        socket::recv(&far, &mut [0], &mut fds)?;
        expect(fds.len() == MESSAGE, "a message before the end is incomplete")?;
    }
    expect(socket::all_received(&near)?, "messages that were received count as not received")?;
    expect(!send(&other)?, "messages that were received count as in flight")
}

/// Another user's unread messages.
fn users_do_not_share_the_count() -> CheckResult {
    let (full, ready) = socket::pair()?;
    let other = fork(|| {
        let Ok((near, _far)) = socket::pair() else { return 1 };
        if become_user(USERS[1]).is_err() || fill(&near).is_err() || socket::send(&ready, b"x", &[]).is_err() {
            return 1;
        }
        wait_for_kill()
    })?;
    drop(ready);
    let filled = becomes_ready(&full, PollFlags::IN)? && socket::has_input(&full);
    expect(filled, "another user's messages could not be sent")?;
    let own = fork(|| {
        let sent = become_user(USERS[0]).and_then(|()| {
            let (near, _far) = socket::pair()?;
            send(&near)
        });
        u8::from(!matches!(sent, Ok(false)))
    })?;
    expect(own.wait()? == Outcome::Exit(0), "another user's messages count")?;
    drop(other);
    Ok(())
}
