// SPDX-License-Identifier: BSD-2-Clause
//! An asymmetric memory barrier (`membarrier(2)`).
//!
//! A publisher that runs often and a waiter that rarely goes to sleep each store one word and load the other's; one of
//! the two must see the other's store. With plain fences both pay on every round. `membarrier` lets the waiter force a
//! barrier on every processor that runs a registered process, so that the publisher needs no fence.

use std::io;

use rustix::thread::{MembarrierCommand, membarrier};

/// Registers this process for [`all_cpus`]; a forked child registers itself again.
/// Returns `false` if the kernel refuses (older than 4.16, or a filter); this process must use fences then.
pub fn register() -> bool {
    membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
}

/// Executes a full memory barrier on every processor that runs a registered process at this moment; on the others a
/// context switch has been one already. Takes a few microseconds.
///
/// # Errors
/// `ENOSYS` or `EPERM` where the kernel or a filter refuses.
pub fn all_cpus() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::GlobalExpedited)?)
}

/// Waits until all that the kernel does at this moment under `rcu_read_lock` has ended, as the XDP program's run for a
/// frame with the redirection that follows: some milliseconds.
///
/// # Errors
/// `EINVAL`: the kernel has processors that it never interrupts (`nohz_full`). `ENOSYS` or `EPERM` as [`all_cpus`].
pub fn wait_for_readers() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::Global)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn registration_and_barrier_are_both_supported_or_neither() {
        assert_eq!(super::register(), super::all_cpus().is_ok());
    }
}
