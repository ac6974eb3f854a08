//! One ring of a bell wakes everyone who sleeps on it, in whatever process.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use assume::{Child, End, comes, expect, fork, judge, readable, state};
use unetmap_sys::Bell;
use unetmap_sys::event::PollFlags;

const SLEEPERS: usize = 4;

fn main() -> ExitCode {
    judge("a timer that goes off wakes all processes that poll it", || {
        let bell = Bell::new()?;
        let sleep = || fork(|| u8::from(!comes(&bell, PollFlags::IN).unwrap_or(false)));
        let sleepers = (0..SLEEPERS).map(|_| sleep()).collect::<Result<Vec<Child>, _>>()?;
        for sleeper in &sleepers {
            // One that gave up is a zombie (Z) and fails below.
            while !matches!(state(sleeper.pid())?, 'S' | 'Z') {
                std::thread::yield_now();
            }
        }
        bell.ring();
        for sleeper in sleepers {
            let end = sleeper.wait()?;
            expect(end == End::Exit(0), format_args!("one slept on: {end:?}"))?;
        }
        expect(readable(&bell)?, "waking consumed the ticks")?;
        bell.silence();
        expect(!readable(&bell)?, "setting the timer anew did not take them back")
    })
}
