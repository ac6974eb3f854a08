// SPDX-License-Identifier: BSD-2-Clause
//! Requests about a connection itself, which have no payload, and about a session.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::control::wire::{ControlRequest, Kind};
use crate::error::errno;

macro_rules! without_payload {
    ($(#[$doc:meta])* $name:ident = $number:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name;

        impl ControlRequest for $name {
            const KIND: Kind = Kind($number);

            fn encode(&self) -> Vec<u8> {
                Vec::new()
            }

            /// Ignores a payload.
            fn decode(_payload: &[u8]) -> Result<$name, i32> {
                Ok($name)
            }
        }
    };
}

without_payload! {
    /// Requests a holder ID: the number that identifies the process in the locks of rings. The connection stays open
    /// while the process uses the holder ID.
    LockHolderRequest = 1
}

without_payload! {
    /// Asks for the state of everything that the daemon serves.
    SnapshotRequest = 3
}

without_payload! {
    /// Asks whether the daemon serves this user, and keeps the connection open: one without a request is closed after a
    /// while.
    HelloRequest = 12
}

without_payload! {
    /// Asks for the binding of the port that REGISTER bound on this connection, for a process that received the
    /// connection with the port already bound.
    AttachRequest = 5
}

without_payload! {
    /// Releases the port that REGISTER bound on this connection; the connection stays open.
    UnbindRequest = 9
}

/// Asks for the doorbells of the rings at the other end of a pipe, one for each ring of the session, in the order of
/// its binding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PeerDoorbellsRequest {
    /// The session.
    pub session: u64,
    /// The session's key, known only to processes that received its binding.
    pub key: u64,
}

impl ControlRequest for PeerDoorbellsRequest {
    const KIND: Kind = Kind(14);

    fn encode(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    fn decode(payload: &[u8]) -> Result<PeerDoorbellsRequest, i32> {
        PeerDoorbellsRequest::read_from_bytes(payload).map_err(|_| errno::EPROTO)
    }
}
