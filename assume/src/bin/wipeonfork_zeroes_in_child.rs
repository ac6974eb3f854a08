// SPDX-License-Identifier: BSD-2-Clause
//! libunetmap distinguishes a vfork child, which still runs in its parent's memory, from a forked child by a page that
//! the kernel zeroes on fork.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use assume::{Outcome, expect, fork, run_check, vfork, wiped_word};

fn main() -> ExitCode {
    run_check(
        "memory with MADV_WIPEONFORK is zero in a forked child, and unchanged in the parent and a vfork child",
        || {
            let word = wiped_word()?;
            word.store(7, Relaxed);
            let child = fork(|| {
                if word.load(Relaxed) != 0 {
                    return 1;
                }
                // The advice is inherited.
                word.store(9, Relaxed);
                match fork(|| u8::from(word.load(Relaxed) != 0)).and_then(|grandchild| grandchild.wait()) {
                    Ok(Outcome::Exit(0)) => 0,
                    _ => 2,
                }
            })?;
            let outcome = child.wait()?;
            expect(outcome == Outcome::Exit(0), format_args!("not zero in a child (1) or its child (2): {outcome:?}"))?;
            expect(word.load(Relaxed) == 7, "the parent's memory was changed")?;
            let outcome = vfork(|word| u8::from(word.load(Relaxed) != 7), word)?;
            expect(outcome == Outcome::Exit(0), format_args!("not the parent's value in a vfork child: {outcome:?}"))
        },
    )
}
