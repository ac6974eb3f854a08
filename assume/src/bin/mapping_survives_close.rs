//! A region needs a descriptor only to be mapped: programs may close what they do not know, or run out of numbers.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::process::ExitCode;

use assume::{End, expect, fork, judge, peek, poke};
use unetmap_sys::{Mapping, memfd};

const BYTES: usize = 1 << 20;

fn main() -> ExitCode {
    judge("a memfd stays mapped, and shared, after its last descriptor is closed", || {
        let fd = memfd::create_sealed("assume", BYTES as u64)?;
        let ours = Mapping::new(fd.as_fd(), BYTES)?;
        let other = Mapping::new(fd.as_fd(), BYTES)?;
        poke(&ours, 0, 1);
        drop(fd);
        // In a child that a SIGBUS or SIGSEGV may kill: old bytes, new pages, and what one mapping says to the other.
        let child = fork(|| {
            poke(&ours, BYTES - 1, 2);
            u8::from(peek(&other, 0) != 1 || peek(&other, BYTES - 1) != 2)
        })?;
        let end = child.wait()?;
        expect(end == End::Exit(0), format_args!("access through the mappings: {end:?}"))?;
        expect(peek(&ours, BYTES - 1) == 2, "what the child wrote is not seen by its parent")
    })
}
