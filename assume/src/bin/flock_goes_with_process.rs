//! A daemon that was killed leaves no lock behind that would keep the next one from starting.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::process::ExitCode;

use assume::{comes, expect, fork, judge, stay};
use unetmap_sys::Bell;
use unetmap_sys::event::PollFlags;
use unetmap_sys::process::flock_exclusive;

fn main() -> ExitCode {
    judge(
        "a file lock (flock) goes when the process that holds it is killed",
        || {
            let path =
                std::env::temp_dir().join(format!("unetmap-assume-{}.lock", std::process::id()));
            let ours = File::create(&path)?;
            let locked = Bell::new()?;
            let child = fork(|| {
                match File::open(&path).and_then(|file| flock_exclusive(&file).map(|()| file)) {
                    Ok(_file) => {
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
            let refused =
                flock_exclusive(&ours).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
            expect(refused, "two processes hold the lock")?;
            child.kill()?;
            child.wait()?;
            expect(
                flock_exclusive(&ours).is_ok(),
                "the lock outlived its process",
            )
        },
    )
}
