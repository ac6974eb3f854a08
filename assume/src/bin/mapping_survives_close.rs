// SPDX-License-Identifier: BSD-2-Clause
//! A region needs its descriptor only to be mapped: programs may close unknown descriptors, or reach the limit.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::process::ExitCode;

use assume::{Outcome, expect, fork, read_byte, run_check, write_byte};
use unetmap_sys::{Mapping, memfd};

const BYTES: usize = 1 << 20;

fn main() -> ExitCode {
    run_check("a memfd stays mapped, and shared, after its last descriptor is closed", || {
        let fd = memfd::create_sealed("assume", BYTES as u64)?;
        let first = Mapping::new(fd.as_fd(), BYTES)?;
        let second = Mapping::new(fd.as_fd(), BYTES)?;
        write_byte(&first, 0, 1);
        drop(fd);
        // In a child, which a SIGBUS or SIGSEGV may kill: old bytes, new pages, and both mappings of one page.
        let child = fork(|| {
            write_byte(&first, BYTES - 1, 2);
            u8::from(read_byte(&second, 0) != 1 || read_byte(&second, BYTES - 1) != 2)
        })?;
        let end = child.wait()?;
        expect(end == Outcome::Exit(0), format_args!("access through the mappings: {end:?}"))?;
        expect(read_byte(&first, BYTES - 1) == 2, "the parent does not see the child's writes")
    })
}
