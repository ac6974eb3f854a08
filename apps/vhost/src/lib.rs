// SPDX-License-Identifier: BSD-2-Clause
//! A peer's shared memory as a netmap port, in a process for each: a virtual machine's network card (the back end of
//! vhost-user), or an interface of a packet processor (memif).
//!
//! # Theory of operation
//! ```text
//!   guest              hypervisor                       this process                           unetmapd
//!   virtio-net driver                                   device.rs
//!     | descriptors        |                              |
//!     v                    |     UNIX socket              v
//!   [virtqueues in    <----+---- messages ------> vhost, memif - offers, checks, starts and stops queues
//!    guest memory] <-------- mapped --------> queue/*.rs -- transfer.rs -- [rings of the port] == channel == switch
//! ```
//! * `vhost` and `memif`, beside each other: `message.rs` decodes the messages of the socket; `session.rs` is one
//!   connection, and carries them out.
//! * `queue` walks the queues of both: `split.rs`, `packed.rs` and `memif.rs` find chains of descriptors and return
//!   them. A `vring.rs` is a queue with its eventfds.
//! * `transfer.rs` copies packets between chains and the slots of the port, with a virtio-net header of 12 bytes, or
//!   none.
//! * `peers.rs` accepts peers, or connects to them; `descriptors.rs` tells why a descriptor cannot be sent to one.
//! * `device.rs` is the loop: the port, the queues and the socket, and sleeping when nothing moves.
//!
//! # Trust
//! The guest writes its memory at any time, and the hypervisor may send any message. Each word of guest memory is
//! loaded once and checked; chains, tables and lengths are bounded. A hypervisor can shorten the files that it has
//! sent, which ends this process by SIGBUS. Therefore it serves one guest alone, and is an ordinary client of the
//! daemon: its end closes one port. Peers of memif are trusted as little.
#![forbid(unsafe_code)]

mod confinement;
mod descriptors;
mod device;
mod features;
pub mod memif;
mod peers;
mod placement;
mod queue;
#[cfg(any(test, fuzzing))]
pub mod steps;
mod transfer;
mod tuning;
mod vhost;
mod vring;

pub use descriptors::{is_passing, why_unsent};
pub use device::{Config, Protocol, Socket, serve};
pub use tuning::{ANSWER_LIMIT, MAX_QUEUE_PAIRS};
