//! An open port is a connection: it must end exactly when nobody holds it any more, however it was handed on.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use assume::{Verdict, comes, connection, expect, fork, judge, stay};
use unetmap_sys::event::{PollFlags, hung_up};
use unetmap_sys::socket;

fn main() -> ExitCode {
    judge("a seqpacket connection hangs up when the last duplicate of its other end is closed, not before", || {
        dup()?;
        forked()?;
        in_flight()?;
        received()
    })
}

fn alive(near: &OwnedFd, what: &str) -> Verdict {
    expect(!hung_up(near.as_fd()), format_args!("hung up although {what} was open"))
}

fn gone(near: &OwnedFd, what: &str) -> Verdict {
    let gone = comes(near, PollFlags::RDHUP)? && hung_up(near.as_fd());
    expect(gone, format_args!("no hang-up although {what} was the last and is closed"))
}

fn dup() -> Verdict {
    let (near, far) = connection(socket::connect)?;
    let duplicate = far.try_clone()?;
    drop(far);
    alive(&near, "a dup")?;
    drop(duplicate);
    gone(&near, "a dup")
}

fn forked() -> Verdict {
    let (near, far) = connection(socket::connect)?;
    let child = fork(stay)?;
    drop(far);
    alive(&near, "a forked child's copy")?;
    child.kill()?;
    // Before it is waited for: a zombie holds no files.
    gone(&near, "a forked child's copy")
}

fn in_flight() -> Verdict {
    let (near, far) = connection(socket::connect)?;
    let (receiver, sender) = connection(socket::connect)?;
    socket::send(&sender, b"x", &[far.as_fd()])?;
    drop((far, sender));
    alive(&near, "one in an unread message")?;
    drop(receiver);
    gone(&near, "one in an unread message")
}

fn received() -> Verdict {
    let (near, far) = connection(socket::connect)?;
    let (receiver, sender) = connection(socket::connect)?;
    socket::send(&sender, b"x", &[far.as_fd()])?;
    drop((far, sender));
    let mut fds = Vec::new();
    socket::recv(&receiver, &mut [0], &mut fds)?;
    drop(receiver);
    alive(&near, "one received from another process")?;
    drop(fds);
    gone(&near, "one received from another process")
}
