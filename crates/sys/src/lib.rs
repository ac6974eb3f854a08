// SPDX-License-Identifier: BSD-2-Clause
//! Linux system calls, one module per family: thin and typed, with the checks that make shared objects safe to accept
//! from an untrusted process.
//!
//! Every function returns [`std::io::Result`] with the kernel's own `errno`, so that callers can report what was
//! requested. The minimum is Linux 5.10; each newer feature has a fallback beside it.
//!
//! `SAFETY` comments cite rules K1 to K10 of ARCHITECTURE.md.

#![cfg(target_os = "linux")]

pub mod barrier;
#[cfg(feature = "bpf")]
mod bpf;
pub mod clock;
#[cfg(feature = "bpf")]
pub mod deadline;
pub mod doorbell;
pub mod event;
pub mod eventfd;
pub mod file_watch;
pub mod folder;
pub mod fuse;
pub mod futex;
pub mod in_place;
pub mod kernel;
#[cfg(feature = "bpf")]
pub mod kernel_path;
pub mod link;
pub mod log;
pub mod map;
pub mod memfd;
pub mod memory_helper;
pub mod netns;
pub mod numa;
mod once;
pub mod packet_socket;
mod piece;
pub mod place;
pub mod probe;
pub mod process;
pub mod sandbox;
pub mod socket;
#[cfg(feature = "bpf")]
pub mod tcx;
pub mod thread;
pub mod tuning;
pub mod user_memory;
pub mod wait;
pub mod xdp;
pub mod xsk;

pub use doorbell::Doorbell;
pub use map::Mapping;
pub use piece::Piece;
