// SPDX-License-Identifier: BSD-2-Clause
//! One notification of a doorbell wakes all waiters, in every process.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use assume::{Child, Outcome, becomes_ready, expect, fork, readable, run_check, state};
use unetmap_sys::Doorbell;
use unetmap_sys::event::PollFlags;

const WAITERS: usize = 4;

fn main() -> ExitCode {
    run_check("a timer that expires wakes all processes that poll it", || {
        let doorbell = Doorbell::new()?;
        let start_waiter = || fork(|| u8::from(!becomes_ready(&doorbell, PollFlags::IN).unwrap_or(false)));
        let waiters = (0..WAITERS).map(|_| start_waiter()).collect::<Result<Vec<Child>, _>>()?;
        for waiter in &waiters {
            // A waiter that has exited is a zombie (Z) and fails below.
            while !matches!(state(waiter.pid())?, 'S' | 'Z') {
                std::thread::yield_now();
            }
        }
        doorbell.notify();
        for waiter in waiters {
            let end = waiter.wait()?;
            expect(end == Outcome::Exit(0), format_args!("a waiter was not woken: {end:?}"))?;
        }
        expect(readable(&doorbell)?, "waking consumed the expirations")?;
        doorbell.clear();
        expect(!readable(&doorbell)?, "setting the timer again did not discard the expirations")
    })
}
