// SPDX-License-Identifier: BSD-2-Clause
//! No page of a shared region can be removed: no process can shrink a sealed memory file, by any call.

#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd;
use std::process::ExitCode;

use assume::{CheckResult, expect, proc_path, run_check};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate};
use rustix::io::Errno;
use unetmap_sys::memfd;

const BYTES: u64 = 1 << 20;

fn main() -> ExitCode {
    run_check("the size and the seals of a sealed memfd cannot be changed", || {
        let fd = memfd::create_sealed("assume", BYTES)?;
        for size in [0, 1, BYTES - 1, BYTES + 1] {
            let outcome = ftruncate(&fd, size);
            expect(outcome == Err(Errno::PERM), format_args!("ftruncate to {size}: {outcome:?}"))?;
        }
        let again = proc_path(fd.as_fd());
        // A new open file of the same memory, truncated by open.
        let truncated = File::options().write(true).truncate(true).open(&again);
        expect(truncated.is_err(), "open with O_TRUNC worked")?;
        let outcome = fallocate(&fd, FallocateFlags::empty(), BYTES, 4096);
        expect(outcome.is_err(), "fallocate beyond the end worked")?;
        let outcome = fallocate(&fd, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
        expect(outcome.is_err(), "a range could be removed")?;
        let outcome = rustix::io::pwrite(&fd, b"x", BYTES);
        expect(outcome.is_err(), "a write beyond the end worked")?;
        let outcome = fcntl_add_seals(&fd, SealFlags::WRITE);
        expect(outcome == Err(Errno::PERM), format_args!("another seal: {outcome:?}"))?;
        size_is(fstat(&fd)?.st_size)
    })
}

fn size_is(size: i64) -> CheckResult {
    expect(u64::try_from(size) == Ok(BYTES), format_args!("the size is now {size} bytes, not {BYTES}"))
}
