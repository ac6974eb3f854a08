// SPDX-License-Identifier: BSD-2-Clause
//! The service that a process offers with the port that its connection has open: the request of `unetmap vm serve` and
//! `unetmap memif serve`.
//!
//! ```text
//! request   1 byte: the service; then the socket and its options, as text
//! reply     nothing; or an errno and the reason
//! ```
//! The daemon repeats it in the state of the switch (`vale`), with the process and its user as the kernel reports them:
//! it is what that user says, and no more.

use std::os::fd::BorrowedFd;

use crate::control::client;
use crate::control::wire::{ControlRequest, Kind};
use crate::error::{Error, errno};

/// How a peer reaches a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// A hypervisor connects to the process.
    VhostUser,
    /// The process connects to a hypervisor.
    VhostUserClient,
    /// By memif, in either role.
    Memif,
}

impl Service {
    /// All, by their numbers from 1.
    pub const ALL: [Service; 3] = [Service::VhostUser, Service::VhostUserClient, Service::Memif];

    /// Its name, in JSON, and as a setting of a port.
    pub const fn name(self) -> &'static str {
        match self {
            Service::VhostUser => "vhost-user",
            Service::VhostUserClient => "vhost-user-client",
            Service::Memif => "memif",
        }
    }
}

/// Tells the daemon what the process serves with the port of this connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServesRequest {
    /// How it is reached.
    pub service: Service,
    /// The socket's path and its options, as the command has them: 1 to [`ServesRequest::MAX_SOCKET`] bytes.
    pub socket: String,
}

impl ServesRequest {
    /// Most bytes of a socket with its options.
    pub const MAX_SOCKET: usize = 256;
}

impl ControlRequest for ServesRequest {
    const KIND: Kind = Kind(16);

    fn encode(&self) -> Vec<u8> {
        let number = Service::ALL.iter().position(|service| *service == self.service).map_or(0, |at| at as u8 + 1);
        [&[number], self.socket.as_bytes()].concat()
    }

    /// # Errors
    /// `EINVAL` if there is no such service, or the socket is too long or no text.
    fn decode(payload: &[u8]) -> Result<ServesRequest, i32> {
        let [number, socket @ ..] = payload else { return Err(errno::EINVAL) };
        let service = usize::from(*number).checked_sub(1).and_then(|at| Service::ALL.get(at));
        let socket = std::str::from_utf8(socket).ok().filter(|text| (1..=Self::MAX_SOCKET).contains(&text.len()));
        match (service, socket) {
            (Some(&service), Some(socket)) => Ok(ServesRequest { service, socket: socket.into() }),
            _ => Err(errno::EINVAL),
        }
    }
}

/// Tells the daemon at the other end of a port's connection.
///
/// # Errors
/// The daemon's refusal, or the kernel's.
pub fn declare(port: BorrowedFd<'_>, request: &ServesRequest) -> Result<(), Error> {
    let subject = "what the port serves";
    client::send(port, subject, request)?.refused(subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_encoding_and_decoding_and_malformed_ones_are_rejected() {
        for service in Service::ALL {
            let request = ServesRequest { service, socket: "/run/a\n,id=1".into() };
            assert_eq!(ServesRequest::decode(&request.encode()), Ok(request));
        }
        let long = [&[1][..], &[b'a'; ServesRequest::MAX_SOCKET + 1]].concat();
        for bytes in [&b""[..], b"\x01", b"\x00a", b"\x04a", b"\x01\xff", &long] {
            assert_eq!(ServesRequest::decode(bytes), Err(errno::EINVAL), "{bytes:?}");
        }
        assert!(ServesRequest::decode(&long[..long.len() - 1]).is_ok());
    }
}
