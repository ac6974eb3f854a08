// SPDX-License-Identifier: BSD-2-Clause
//! An open port is a connection: it must end exactly when its last duplicate is closed, however it was passed on.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use assume::{CheckResult, becomes_ready, connection, expect, fork, run_check, wait_for_kill};
use unetmap_sys::event::{PollFlags, hung_up};
use unetmap_sys::socket;

fn main() -> ExitCode {
    run_check("a seqpacket connection hangs up when the last duplicate of its other end is closed, not before", || {
        after_dup()?;
        after_fork()?;
        in_flight()?;
        after_receive()
    })
}

fn expect_open(near: &OwnedFd, what: &str) -> CheckResult {
    expect(!hung_up(near.as_fd()), format_args!("hung up although {what} was still open"))
}

fn expect_hang_up(near: &OwnedFd, what: &str) -> CheckResult {
    let hung_up_now = becomes_ready(near, PollFlags::RDHUP)? && hung_up(near.as_fd());
    expect(hung_up_now, format_args!("no hang-up although {what}, the last one, was closed"))
}

fn after_dup() -> CheckResult {
    let (near, far) = connection(socket::connect)?;
    let duplicate = far.try_clone()?;
    drop(far);
    expect_open(&near, "a dup")?;
    drop(duplicate);
    expect_hang_up(&near, "a dup")
}

fn after_fork() -> CheckResult {
    let (near, far) = connection(socket::connect)?;
    let child = fork(wait_for_kill)?;
    drop(far);
    expect_open(&near, "a forked child's copy")?;
    child.kill()?;
    // Before it is waited for: a zombie has no open files.
    expect_hang_up(&near, "a forked child's copy")
}

fn in_flight() -> CheckResult {
    let (near, far) = connection(socket::connect)?;
    let (receiver, sender) = connection(socket::connect)?;
    socket::send(&sender, b"x", &[far.as_fd()])?;
    drop((far, sender));
    expect_open(&near, "one in an unread message")?;
    drop(receiver);
    expect_hang_up(&near, "one in an unread message")
}

fn after_receive() -> CheckResult {
    let (near, far) = connection(socket::connect)?;
    let (receiver, sender) = connection(socket::connect)?;
    socket::send(&sender, b"x", &[far.as_fd()])?;
    drop((far, sender));
    let mut fds = Vec::new();
    socket::recv(&receiver, &mut [0], &mut fds)?;
    drop(receiver);
    expect_open(&near, "one received from another process")?;
    drop(fds);
    expect_hang_up(&near, "one received from another process")
}
