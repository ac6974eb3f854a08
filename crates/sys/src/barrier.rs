//! A barrier that only one of two parties pays for.
//!
//! Who publishes often and who rarely goes to sleep each store one word and load the other's; one of the two must see
//! the other's store. With plain fences both pay each time. The kernel's `membarrier` lets the sleeper force a barrier
//! on every processor that runs a registered process, so that the publisher needs none.

use std::io;

use rustix::thread::{MembarrierCommand, membarrier};

/// Registers this process as one whose processors take part in [`everywhere`]; a forked child registers by itself.
/// `false`: the kernel refuses (older than 4.16, or a filter), and this process must fence.
pub fn register() -> bool {
    membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
}

/// A full memory barrier on every processor that runs a registered process at this moment; on the others a switch of
/// processes has been one already. A few microseconds.
///
/// # Errors
/// `ENOSYS` or `EPERM` where the kernel or a filter refuses.
pub fn everywhere() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::GlobalExpedited)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_registered_process_can_use_it() {
        // Both or neither: a kernel that registers also serves.
        assert_eq!(super::register(), super::everywhere().is_ok());
    }
}
