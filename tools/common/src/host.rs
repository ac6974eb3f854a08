// SPDX-License-Identifier: BSD-2-Clause
//! The machine, for programs that run for long, as root, and serve others: the parts of `unetmap_sys` that the programs
//! in `apps` need. Each item says there what it guarantees.

/// Clocks.
pub mod clock {
    pub use unetmap_sys::clock::{now_ns, wall_ns};
}

/// Waiting for descriptors.
pub mod event {
    pub use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
}

/// Doorbells of hypervisors.
pub mod eventfd {
    pub use unetmap_sys::eventfd::{clear, is_eventfd, signal};
}

/// Files that decide what a program of root's does.
pub mod file {
    use std::path::Path;

    /// Returns the bytes of a file, a `what`, that only root or this user can write; `None` if there is no file. `path`
    /// is absolute.
    ///
    /// # Errors
    /// A sentence without the path: as of [`unetmap_core::control::trusted_file::read`].
    pub fn read_trusted(path: &Path, what: &str) -> Result<Option<Vec<u8>>, String> {
        unetmap_core::control::trusted_file::read(path, unetmap_sys::process::uid(), what)
    }
}

/// Interfaces of the calling thread's network namespace.
pub mod link {
    pub use unetmap_sys::link::{Link, by_name};
}

/// Logs that are bounded and begin anew.
pub mod log {
    pub use unetmap_sys::log::{Bounds, Log, LogFile, begin, set_stderr};
    pub use unetmap_sys::tuning::log::MAX_SERVER_LOG;
}

/// Memory.
pub mod memory {
    pub use unetmap_sys::map::prefer_huge_pages;
    pub use unetmap_sys::memfd::{create_sealed, create_unsealed};
}

/// Network namespaces.
pub mod netns {
    pub use unetmap_sys::netns::Netns;
}

/// Files in folders of other users.
pub mod place {
    pub use unetmap_sys::place::{Identity, NewFile, Place, create, open};
}

/// Processes, and the processors on which they run.
pub mod process {
    pub use unetmap_sys::process::{cpus_allowed, program_name, run_on_cpus, set_program_name, spawn_detached};
    pub use unetmap_sys::thread::{current_cpu, run_delay, set_time_slice, set_timer_slack};
}

/// The confinement of a process that a peer may take over.
pub mod sandbox {
    pub use unetmap_sys::sandbox::{
        Access, MAIN, allow_calls, allow_files, is_missing, keep_capabilities, no_new_privileges,
    };
}

/// UNIX sockets: listening at paths of other users' folders, and messages with descriptors.
pub mod socket {
    pub use unetmap_sys::socket::{
        FdSender, SocketFile, connect, connect_abstract, listen, listen_abstract, listen_again, listen_for_streams,
        pair, peer, recv, remove_dead, send, set_nonblocking,
    };
}

/// How loops wait.
pub mod wait {
    pub use unetmap_sys::wait::{EXACT_NAP, Pause, STREAM, Wait};
}
