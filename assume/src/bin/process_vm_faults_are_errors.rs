// SPDX-License-Identifier: BSD-2-Clause
//! An invalid pointer of a program is an error of the call that copies its memory, never a signal.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use assume::{Outcome, expect, fork, run_check};
use rustix::io::Errno;
use unetmap_sys::user_memory;

fn main() -> ExitCode {
    run_check("a copy from an unmapped address (process_vm_readv) returns EFAULT", || {
        let bytes = [1_u8, 2, 3, 4];
        let mut copy = [0; 4];
        user_memory::read(bytes.as_ptr().expose_provenance() as u64, &mut copy)?;
        expect(copy == bytes, "mapped memory was not copied")?;
        // In a child, which a signal may kill.
        let child = fork(|| {
            let faults = |at| {
                let error = user_memory::read(at, &mut [0; 4]).err().and_then(|e| e.raw_os_error());
                error == Some(Errno::FAULT.raw_os_error())
            };
            u8::from(![0, 8, 1 << 63, u64::MAX - 3, u64::MAX].into_iter().all(faults))
        })?;
        let outcome = child.wait()?;
        expect(outcome == Outcome::Exit(0), format_args!("a copy from an unmapped address: {outcome:?}"))
    })
}
