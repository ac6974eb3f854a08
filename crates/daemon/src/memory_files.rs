// SPDX-License-Identifier: BSD-2-Clause
//! Memory files whose pages nobody can remove. Only the broker can make them so: a thread has it do that ahead, for
//! many files at once, so that the control thread, which needs some for each port, waits for it only if none are left.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, PoisonError};

use unetmap_sys::memfd;

use crate::broker::beside_control;
use crate::privileged;
use crate::threads::{self, lock};
use crate::tuning::memory_files::{AT_START, LEAST, MOST};

/// Files that are ready.
#[derive(Default)]
struct Stock {
    /// All empty.
    files: Mutex<Vec<OwnedFd>>,
    /// There are fewer than `LEAST`.
    is_low: Condvar,
}

static STOCK: Stock = Stock { files: Mutex::new(Vec::new()), is_low: Condvar::new() };

/// From now on, all memory files that this process creates are such ones. It makes a few, and the thread the rest: the
/// daemon serves sooner.
///
/// # Errors
/// Errors of [`memfd::forbid_removal`]; no thread can be started.
pub(crate) fn start() -> io::Result<()> {
    lock(&STOCK.files).extend(make(AT_START)?);
    threads::start("memory files", || beside_control(|| STOCK.refill()))?;
    memfd::keep_pages(|| STOCK.take());
    Ok(())
}

impl Stock {
    /// Returns a file: one that is ready, or a new one if there is none.
    fn take(&self) -> io::Result<OwnedFd> {
        let mut files = lock(&self.files);
        let file = files.pop();
        if files.len() < LEAST {
            self.is_low.notify_one();
        }
        drop(files);
        file.map_or_else(|| make(1)?.pop().ok_or_else(|| io::ErrorKind::NotFound.into()), Ok)
    }

    fn refill(&self) -> ! {
        // What is missing is tried again at the next take.
        let mut failed = false;
        loop {
            let mut files = lock(&self.files);
            while failed || files.len() >= LEAST {
                files = self.is_low.wait(files).unwrap_or_else(PoisonError::into_inner);
                failed = false;
            }
            let missing = MOST - files.len();
            drop(files);
            match make(missing) {
                Ok(made) => lock(&self.files).extend(made),
                Err(e) => {
                    tracing::debug!("no memory files ahead: {e}");
                    failed = true;
                }
            }
        }
    }
}

/// Makes `count` files.
fn make(count: usize) -> io::Result<Vec<OwnedFd>> {
    let files = (0..count).map(|_| memfd::create_unsealed("unetmap")).collect::<io::Result<Vec<_>>>()?;
    privileged::forbid_removal(&files.iter().map(AsFd::as_fd).collect::<Vec<BorrowedFd<'_>>>())?;
    Ok(files)
}
