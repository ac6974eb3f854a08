//! A daemon that was killed leaves no lock behind that would keep the next one from starting.

#![forbid(unsafe_code)]

use std::fs::{File, TryLockError};
use std::io;
use std::process::ExitCode;

use assume::{comes, expect, fork, judge, stay};
use unetmap_sys::Bell;
use unetmap_sys::event::PollFlags;

fn main() -> ExitCode {
    judge("a file lock (flock) goes when the process that holds it is killed", || {
        let path = std::env::temp_dir().join(format!("unetmap-assume-{}.lock", std::process::id()));
        let ours = File::create(&path)?;
        let locked = Bell::new()?;
        let child = fork(|| {
            let Ok(theirs) = File::open(&path) else { return 1 };
            match theirs.try_lock() {
                Ok(()) => {
                    locked.ring();
                    stay()
                }
                Err(_) => 1,
            }
        })?;
        let ready = comes(&locked, PollFlags::IN);
        std::fs::remove_file(&path)?;
        if !ready? {
            return Err(io::Error::other("the child could not lock its file").into());
        }
        expect(matches!(ours.try_lock(), Err(TryLockError::WouldBlock)), "two processes hold the lock")?;
        child.kill()?;
        child.wait()?;
        expect(ours.try_lock().is_ok(), "the lock outlived its process")
    })
}
