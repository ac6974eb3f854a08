// SPDX-License-Identifier: BSD-2-Clause
//! Constants that were chosen by measurement or judgement, not given by an interface of the kernel.

use std::time::Duration;

/// Longest futex wait: 5 ms; below a second (the `timespec` holds nanoseconds only).
///
/// Measured: a timeout later than the next timer tick needs no programming of the timer hardware, which costs some 8 us
/// in a virtual machine.
pub const WAIT_LIMIT: Duration = Duration::from_millis(5);

/// Words that one [`crate::futex::wait_any`] waits on: 32; at most 128, the kernel's `FUTEX_WAITV_MAX`. Not measured.
pub const MAX_WORDS: usize = 32;

/// Events that one [`crate::event::Epoll::wait`] returns: 64; the next call returns the rest. Not measured.
pub const EPOLL_EVENTS: usize = 64;

/// Connections that wait to be accepted: 1024; the kernel lowers it to `net.core.somaxconn`. Not measured.
pub const LISTEN_BACKLOG: i32 = 1024;

/// Longest time that a connection waits to be accepted: 10 s; not 0, which means no limit. Not measured.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Supplementary groups of a peer that the first request has room for: 32; the kernel reports how many there are if
/// there are more. Most users have fewer.
pub const PEER_GROUPS: usize = 32;

/// Pieces of memory that one system call copies: 64; at most 64, as results are bits of a `u64`. Not measured.
pub const MAX_PIECES: usize = 64;

/// Bytes that cross a pipe at once: 4096; at most one page, which an empty pipe always accepts whole.
pub const PIPE_BYTES: usize = 4096;

/// Bytes of another process's memory in one message to a memory helper: 65536; at least 65535, the longest packet. A
/// message must fit the socket's queue (212992 bytes by default). Not measured.
pub const HELPER_BYTES: usize = 1 << 16;

/// Pieces in one message to a memory helper: 512. Not measured.
pub const HELPER_PIECES: usize = 512;

/// Descriptors that one `sendto` sends on an AF_XDP socket in copy mode: 256 (`XDP_MAX_TX_SKB_BUDGET`, Linux 6.17); the
/// kernel's default is 32. Fewer need more calls. Not measured.
pub const XSK_TX_BUDGET: libc::c_int = 256;

/// Longest time to wait for the kernel to release a queue whose socket was just closed: 20 ms.
/// Measured: 1 to 7 ms on veth.
pub const QUEUE_RELEASE_LIMIT: Duration = Duration::from_millis(20);

/// The same for a queue that this process has just had itself, in a trial: 1 s. In an emulated machine the kernel can
/// take longer than [`QUEUE_RELEASE_LIMIT`].
pub const TRIAL_RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// Time between two tries to bind a queue that is being released: 1 ms. Not measured.
pub const QUEUE_RELEASE_POLL: Duration = Duration::from_millis(1);

/// Longest time to wait for an interface's carrier after a program was detached: 10 s.
/// Measured: 3 to 4 s with igb, 0 with virtio-net and veth.
pub const CARRIER_LIMIT: Duration = Duration::from_secs(10);

/// Time between two looks at the carrier: 50 ms. Not measured.
pub const CARRIER_POLL: Duration = Duration::from_millis(50);

/// Tries to list interfaces without a change during the list: 10; at least 1. Not measured.
pub const LINK_LIST_TRIES: u32 = 10;

/// Tries to load a BPF program: 5; at least 1. The kernel answers `EAGAIN` if a signal arrives. Not measured.
pub const BPF_LOAD_TRIES: u32 = 5;

/// Longest time to wait for the lock of the dispatchers' pins: 2 s. libxdp holds it while it loads programs.
pub const PINS_LOCK_LIMIT: Duration = Duration::from_secs(2);

/// Time between two tries to take that lock: 2 ms. Not measured.
pub const PINS_LOCK_POLL: Duration = Duration::from_millis(2);

/// FUSE requests without a reply that may be pending: 65535, the most that the field holds; file closes are such
/// requests.
pub const FUSE_MAX_BACKGROUND: u16 = u16::MAX;

/// Seconds for which the kernel may cache a directory entry: 34 years, in effect for ever.
pub const FUSE_ENTRY_VALID_S: u64 = 1 << 30;

const _: () = assert!(WAIT_LIMIT.as_secs() == 0 && MAX_WORDS <= 128 && MAX_PIECES <= 64 && PIPE_BYTES <= 4096);
const _: () = assert!(!CONNECT_LIMIT.is_zero() && LINK_LIST_TRIES > 0 && BPF_LOAD_TRIES > 0);

/// Logs.
pub mod log {
    use std::time::Duration;

    /// Time in which messages are counted: 60 s; at least some seconds, as there is a line of each kind and user at its
    /// end.
    pub const PERIOD: Duration = Duration::from_secs(60);
    /// Messages of a kind that one user can have logged in a period: 20; and all users: 100. At 200 bytes and 100 kinds
    /// these are 48 GB a year of all users together, of which [`MAX_DAEMON_LOG`] are kept. Not measured.
    pub const LINES_OF_USER: u32 = 20;
    /// See [`LINES_OF_USER`].
    pub const LINES_OF_KIND: u32 = 100;
    /// Users whose messages of a kind are counted apart: 64.
    pub const MAX_USERS: usize = 64;
    /// Bytes of a daemon's log, and as many of the one before: 8 MiB. Days of an ordinary daemon.
    pub const MAX_DAEMON_LOG: u64 = 8 << 20;
    /// The same of a process that serves a port: 1 MiB.
    pub const MAX_SERVER_LOG: u64 = 1 << 20;
}
