// SPDX-License-Identifier: BSD-2-Clause
//! A killed daemon leaves no lock that would prevent the next one from starting.

#![forbid(unsafe_code)]

use std::fs::{File, TryLockError};
use std::io;
use std::process::ExitCode;

use assume::{becomes_ready, expect, fork, run_check, wait_for_kill};
use unetmap_sys::Doorbell;
use unetmap_sys::event::PollFlags;

fn main() -> ExitCode {
    run_check("a file lock (flock) is released when the process that holds it is killed", || {
        let path = std::env::temp_dir().join(format!("unetmap-assume-{}.lock", std::process::id()));
        let own = File::create(&path)?;
        let locked = Doorbell::new()?;
        let child = fork(|| {
            let Ok(other) = File::open(&path) else { return 1 };
            match other.try_lock() {
                Ok(()) => {
                    locked.notify();
                    wait_for_kill()
                }
                Err(_) => 1,
            }
        })?;
        let ready = becomes_ready(&locked, PollFlags::IN);
        std::fs::remove_file(&path)?;
        if !ready? {
            return Err(io::Error::other("the child could not lock the file").into());
        }
        expect(matches!(own.try_lock(), Err(TryLockError::WouldBlock)), "two processes hold the lock")?;
        child.kill()?;
        child.wait()?;
        expect(own.try_lock().is_ok(), "the lock outlived its process")
    })
}
