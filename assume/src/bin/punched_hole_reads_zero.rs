// SPDX-License-Identifier: BSD-2-Clause
//! Memory of a region can be returned to the kernel while other processes have it mapped.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::process::ExitCode;

use assume::{Outcome, expect, fork, read_byte, run_check, write_byte};
use rustix::fs::{FallocateFlags, fallocate};
use unetmap_sys::{Mapping, memfd};

const PAGES: usize = 64;
const PAGE: usize = 4096;
/// The hole: pages [8, 40).
const HOLE: std::ops::Range<usize> = 8..40;

fn main() -> ExitCode {
    run_check("a hole punched into a sealed memfd reads as zeros, without SIGBUS, through existing mappings", || {
        let fd = memfd::create_sealed("assume", (PAGES * PAGE) as u64)?;
        let map = Mapping::new(fd.as_fd(), PAGES * PAGE)?;
        (0..PAGES).for_each(|page| write_byte(&map, page * PAGE + 7, 0xa5));
        let full = memfd::resident_bytes(&fd)?;

        // Another process punches the hole.
        let punch = fork(|| {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let (start, len) = (HOLE.start * PAGE, HOLE.len() * PAGE);
            fallocate(&fd, how, start as u64, len as u64).is_err().into()
        })?;
        let end = punch.wait()?;
        expect(end == Outcome::Exit(0), format_args!("punching failed: {end:?}"))?;
        let left = memfd::resident_bytes(&fd)?;
        expect(left < full, format_args!("no memory was returned: {full} bytes before, {left} after"))?;

        // A child, which a SIGBUS may kill, reads through the mapping that existed before.
        let reader = fork(|| {
            let wrong = (0..PAGES).any(|page| {
                let want = if HOLE.contains(&page) { 0 } else { 0xa5 };
                read_byte(&map, page * PAGE + 7) != want
            });
            HOLE.for_each(|page| write_byte(&map, page * PAGE, 0x5a));
            let lost = HOLE.clone().any(|page| read_byte(&map, page * PAGE) != 0x5a);
            u8::from(wrong) + 2 * u8::from(lost)
        })?;
        match reader.wait()? {
            Outcome::Exit(0) => Ok(()),
            Outcome::Exit(code) => expect(false, format_args!("wrong bytes (1: read, 2: written after): {code}")),
            Outcome::Signal(signal) => expect(false, format_args!("signal {signal} on access")),
        }
    })
}
