// SPDX-License-Identifier: BSD-2-Clause
//! A forked child must detect the fork before it accesses a ring of its parent.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use assume::{Outcome, expect, fork, run_check};
use unetmap_sys::process::{count_forks, fork_count};

fn main() -> ExitCode {
    run_check(
        "the pthread_atfork handler runs in a forked child, before fork returns there, and in no other process",
        || {
            count_forks()?;
            let before = fork_count();
            let end = fork(|| u8::from(fork_count() != before + 1))?.wait()?;
            expect(end == Outcome::Exit(0), format_args!("the child did not detect the fork: {end:?}"))?;
            expect(fork_count() == before, "the parent counted the fork")
        },
    )
}
