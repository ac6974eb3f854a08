//! Memory of a region can be given back to the kernel while others have it mapped.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::process::ExitCode;

use assume::{End, expect, fork, judge, peek, poke};
use rustix::fs::{FallocateFlags, fallocate};
use unetmap_sys::{Mapping, memfd};

const PAGES: usize = 64;
const PAGE: usize = 4096;
/// The hole: pages [8, 40).
const HOLE: std::ops::Range<usize> = 8..40;

fn main() -> ExitCode {
    judge("a hole punched into a sealed memfd gives zeros, no SIGBUS, to those who have it mapped", || {
        let fd = memfd::create_sealed("assume", (PAGES * PAGE) as u64)?;
        let map = Mapping::new(fd.as_fd(), PAGES * PAGE)?;
        (0..PAGES).for_each(|page| poke(&map, page * PAGE + 7, 0xa5));
        let full = memfd::resident_bytes(&fd)?;

        // Somebody else punches.
        let punch = fork(|| {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let (start, len) = (HOLE.start * PAGE, HOLE.len() * PAGE);
            fallocate(&fd, how, start as u64, len as u64).is_err().into()
        })?;
        let end = punch.wait()?;
        expect(end == End::Exit(0), format_args!("punching failed: {end:?}"))?;
        let left = memfd::resident_bytes(&fd)?;
        expect(left < full, format_args!("no memory was given back: {full} bytes before, {left} after"))?;

        // We look, in a child that a SIGBUS may kill, through the mapping from before the hole.
        let look = fork(|| {
            let wrong = (0..PAGES).any(|page| {
                let want = if HOLE.contains(&page) { 0 } else { 0xa5 };
                peek(&map, page * PAGE + 7) != want
            });
            HOLE.for_each(|page| poke(&map, page * PAGE, 0x5a));
            let lost = HOLE.clone().any(|page| peek(&map, page * PAGE) != 0x5a);
            u8::from(wrong) + 2 * u8::from(lost)
        })?;
        match look.wait()? {
            End::Exit(0) => Ok(()),
            End::Exit(code) => expect(false, format_args!("wrong bytes (1: read, 2: written after): {code}")),
            End::Signal(signal) => expect(false, format_args!("signal {signal} on access")),
        }
    })
}
