// SPDX-License-Identifier: BSD-2-Clause
//! Events in the daemon: the request of `unetmap events`.
//!
//! ```text
//! request   8 bytes: the number of the last event that the program has seen; 0: none
//! reply     the events after it, as JSON: their number, how many the daemon has no longer, the daemon's process
//! ```
//! A program that follows asks again.

use std::os::fd::AsFd;

use crate::control::client;
use crate::control::wire::{ControlRequest, Kind};
use crate::error::{Error, errno};

/// Asks for the events after a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventsRequest {
    /// The number of the last event that was seen.
    pub after: u64,
}

impl ControlRequest for EventsRequest {
    const KIND: Kind = Kind(13);

    fn encode(&self) -> Vec<u8> {
        self.after.to_ne_bytes().to_vec()
    }

    /// # Errors
    /// `EINVAL` if it is not a number.
    fn decode(payload: &[u8]) -> Result<EventsRequest, i32> {
        let after = payload.try_into().map_err(|_| errno::EINVAL)?;
        Ok(EventsRequest { after: u64::from_ne_bytes(after) })
    }
}

/// Returns what has happened after these events, as JSON: in the system's daemon, as far as it concerns this user, and
/// in this user's own. Starts no daemon: `None` stands for one that does not run, or does not serve this user.
///
/// # Errors
/// A daemon's refusal, or the kernel's.
pub fn read(after: [u64; 2]) -> Result<[Option<String>; 2], Error> {
    let subject = "the daemon's events";
    let ask = |connection: client::Connection, after| {
        client::send(connection.fd.as_fd(), subject, &EventsRequest { after })?.into_text(subject)
    };
    let system = match client::connect_system().map(|connection| ask(connection, after[0])) {
        Some(Err(Error::Refused { errno: errno::EACCES, .. })) | None => None,
        Some(text) => Some(text?),
    };
    let own = client::running()?.map(|connection| ask(connection, after[1])).transpose()?;
    Ok([system, own])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_encoding_and_decoding_and_malformed_ones_are_rejected() {
        for after in [0, 1, u64::MAX] {
            let request = EventsRequest { after };
            assert_eq!(EventsRequest::decode(&request.encode()), Ok(request));
        }
        for bytes in [&b""[..], b"1234567", b"123456789"] {
            assert_eq!(EventsRequest::decode(bytes), Err(errno::EINVAL), "{bytes:?}");
        }
    }
}
