//! The kernel, one file per family of system calls; thin, typed, and with the checks that make shared objects safe to
//! accept from somebody who is not trusted.
//!
//! Everything returns [`std::io::Result`] with the kernel's own `errno`, so that callers can say what was asked. The
//! minimum is Linux 5.10; what is newer has a fallback beside it.

#![cfg(target_os = "linux")]

pub mod barrier;
mod bpf;
pub mod clock;
pub mod event;
pub mod eventfd;
pub mod fuse;
pub mod link;
pub mod map;
pub mod memfd;
pub mod nap;
pub mod netns;
pub mod probe;
pub mod process;
pub mod program;
pub mod socket;
pub mod tcx;
pub mod thread;
pub mod xdp;
pub mod xsk;

pub use event::Bell;
pub use map::Mapping;
