// SPDX-License-Identifier: BSD-2-Clause
//! memif 2.0: packets between two processes by shared memory, as DPDK and VPP have it.
//!
//! ```text
//!   server   listens on a UNIX socket; HELLO says what it has            maps the client's regions
//!   client   connects; INIT, ADD_REGION.., ADD_RING.., CONNECT           makes memory, rings and buffers
//!            each is answered by ACK, the last one by CONNECTED; then packets move
//! ```
//! `message.rs` has the messages, `session.rs` one connection of either role. The rings are queues as those of virtual
//! machines ([`crate::queue::memif`]), and the peer is no better trusted.

mod candidates;
mod message;
mod session;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

pub(crate) use candidates::Candidates;
pub use message::{MAX_NAME, MAX_SECRET};
pub(crate) use session::Session;
use tool_common::host::socket::{self, SocketFile};

use crate::queue::Memif;
use crate::tuning::MAX_CLIENT_REGION;

/// The most slots of a ring, as a power of two.
pub const MAX_LOG2_RING: u8 = 14;
/// Bytes that a client's buffers can have.
pub const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 64..=65536;

/// Parameters that are agreed with the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// We are the client, and make the memory.
    pub is_client: bool,
    /// The interface, by its number on the socket.
    pub id: u32,
    /// The secret that the client must know; empty: none. At most [`MAX_SECRET`] bytes.
    pub secret: String,
    /// Of a client's rings: slots, as a power of two, 0 to [`MAX_LOG2_RING`].
    pub log2_ring: u8,
    /// Bytes of a client's buffers, in [`BUFFER_BYTES`].
    pub buffer_bytes: u32,
    /// Our interface's name, at most [`MAX_NAME`] bytes.
    pub name: String,
    /// Users that are admitted as peers, beside root and the process's own.
    pub users: Vec<u32>,
}

impl Config {
    /// Checks the size of a client's memory.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self, pairs: u16) -> Result<(), String> {
        if self.region_bytes(2 * pairs) > MAX_CLIENT_REGION {
            return Err(format!("rings and buffers exceed {} MiB: give fewer of them", MAX_CLIENT_REGION >> 20));
        }
        Ok(())
    }

    /// Checks a peer's user. Clients with a secret may be of any, unless users are named; a server is always checked,
    /// as the client's memory and its secret are for it alone.
    ///
    /// # Errors
    /// A sentence: the user is not admitted.
    pub(crate) fn check_user(&self, uid: u32) -> Result<(), String> {
        let is_told_by_secret = !self.is_client && !self.secret.is_empty() && self.users.is_empty();
        let own = rustix::process::geteuid().as_raw();
        match is_told_by_secret || [0, own].contains(&uid) || self.users.contains(&uid) {
            true => Ok(()),
            false => Err(format!(
                "user {uid} is not admitted: peers are of user {own} or root, or named by peer=USER (unetmap-memif(7))"
            )),
        }
    }

    /// Slots of a client's rings.
    fn slots(&self) -> u16 {
        1 << self.log2_ring
    }

    /// The offset of a client's ring, of `rings`, in its region. Behind the last one the buffers begin.
    fn ring_offset(&self, ring: u16) -> u64 {
        u64::from(ring) * Memif::bytes(self.slots()).next_multiple_of(128) as u64
    }

    /// The offset of the buffers of a client's ring.
    fn buffer_offset(&self, ring: u16, rings: u16) -> u64 {
        let first = self.ring_offset(rings).next_multiple_of(4096);
        first + u64::from(ring) * u64::from(self.slots()) * u64::from(self.buffer_bytes)
    }

    /// Bytes of a client's region.
    fn region_bytes(&self, rings: u16) -> u64 {
        self.buffer_offset(rings, rings).next_multiple_of(4096)
    }
}

/// Listens for clients at a path, for its owner alone and in place of a socket at which nobody listens any more; or by
/// an abstract name (`@NAME`), which has no file.
///
/// # Errors
/// The kernel's, and those of [`socket::listen`].
pub fn listen(path: &Path, mode: u32) -> io::Result<(OwnedFd, Option<SocketFile>)> {
    match abstract_name(path) {
        Some(name) => socket::listen_abstract(name).map(|fd| (fd, None)),
        None => socket::listen_again(path, mode).map(|(fd, file)| (fd, Some(file))),
    }
}

/// Connects to a server whose user is admitted.
pub(crate) fn connect_checked(path: &Path, config: &Config) -> io::Result<OwnedFd> {
    let server = connect(path)?;
    config.check_user(socket::peer(server.as_fd())?.uid).map_err(io::Error::other)?;
    Ok(server)
}

/// Connects to the server at a path or abstract name.
fn connect(path: &Path) -> io::Result<OwnedFd> {
    match abstract_name(path) {
        Some(name) => socket::connect_abstract(name),
        None => socket::connect(path),
    }
}

/// The name after `@`.
pub fn abstract_name(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix('@')
}
