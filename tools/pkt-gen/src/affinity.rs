// SPDX-License-Identifier: BSD-2-Clause
//! The processors that threads may run on.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the processors that the calling thread may use, in ascending order. Empty if the kernel refuses.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Pins the calling thread, the one with this number, to its processor of `-a` and `-c`; not if there are none.
///
/// # Errors
/// A sentence.
pub(crate) fn pin(cpus: &[usize], number: usize) -> Result<(), String> {
    let Some(&cpu) = cpus.iter().cycle().nth(number) else { return Ok(()) };
    pin_thread(cpu).map_err(|e| format!("-a: cannot pin thread {number} to processor {cpu}: {e}"))
}

/// Pins the calling thread to one of [`allowed_cpus`].
fn pin_thread(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
