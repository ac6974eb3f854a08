// SPDX-License-Identifier: BSD-2-Clause
//! A doorbell is notified without a timer interrupt: the expirations that are set wake waiters like those of the timer.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use assume::{Failure, Outcome, becomes_ready, expect, fork, readable, run_check, state};
use unetmap_sys::Doorbell;
use unetmap_sys::event::PollFlags;

fn main() -> ExitCode {
    run_check("TFD_IOC_SET_TICKS makes a timerfd readable at once and wakes processes that poll it", || {
        let doorbell = Doorbell::new()?;
        if !doorbell.set_ticks() {
            return Err(Failure::Untestable("this kernel has no TFD_IOC_SET_TICKS (CHECKPOINT_RESTORE)".into()));
        }
        expect(readable(&doorbell)?, "not readable after the call")?;
        expect(readable(&doorbell)?, "poll consumed the expirations")?;
        doorbell.clear();
        expect(!readable(&doorbell)?, "setting the timer did not discard the expirations")?;

        let waiter = fork(|| u8::from(!becomes_ready(&doorbell, PollFlags::IN).unwrap_or(false)))?;
        // A waiter that has exited is a zombie (Z) and fails below.
        while !matches!(state(waiter.pid())?, 'S' | 'Z') {
            std::thread::yield_now();
        }
        doorbell.set_ticks();
        let outcome = waiter.wait()?;
        expect(outcome == Outcome::Exit(0), format_args!("the waiter was not woken: {outcome:?}"))?;

        // A timer that was set before still expires.
        doorbell.clear();
        doorbell.notify_after(Duration::from_millis(1));
        doorbell.set_ticks();
        expect(becomes_ready(&doorbell, PollFlags::IN)?, "the call disarmed the timer")
    })
}
