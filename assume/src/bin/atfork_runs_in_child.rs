//! A forked child must know that it is one before it touches a ring of its parent's.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use assume::{End, expect, fork, judge};
use unetmap_sys::process::{fork_count, watch_forks};

fn main() -> ExitCode {
    judge(
        "the pthread_atfork handler runs in a forked child, before fork returns there, and in no other process",
        || {
            watch_forks()?;
            let before = fork_count();
            let end = fork(|| u8::from(fork_count() != before + 1))?.wait()?;
            expect(end == End::Exit(0), format_args!("the child did not notice: {end:?}"))?;
            expect(fork_count() == before, "the parent takes itself for a child")
        },
    )
}
