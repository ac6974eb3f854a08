// SPDX-License-Identifier: BSD-2-Clause
//! The daemon's knobs, under the names of netmap's sysctls: the request of `unetmap get`, `set` and `reload`.
//!
//! ```text
//! request   one byte: the action; then, to set a knob, the value (8 bytes); then the knob's name, none for all
//! reply     the knob, or all, or what was changed, as JSON; or an errno and the reason
//! ```

use std::os::fd::AsFd;

use crate::control::client;
use crate::control::wire::{ControlRequest, Kind};
use crate::error::{Error, errno};

/// Bytes of a knob's name at most.
pub const MAX_NAME: usize = 32;

/// A request about knobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnobRequest {
    /// Returns this knob, or all.
    Get(Option<String>),
    /// Sets this knob.
    Set(String, u64),
    /// Reads the daemon's configuration and policy again; returns what that changed.
    Reload,
}

const GET: u8 = 0;
const SET: u8 = 1;
const RELOAD: u8 = 2;

impl ControlRequest for KnobRequest {
    const KIND: Kind = Kind(10);

    fn encode(&self) -> Vec<u8> {
        match self {
            KnobRequest::Get(name) => [&[GET], name.as_deref().unwrap_or_default().as_bytes()].concat(),
            KnobRequest::Set(name, value) => [&[SET][..], &value.to_ne_bytes(), name.as_bytes()].concat(),
            KnobRequest::Reload => vec![RELOAD],
        }
    }

    /// # Errors
    /// `EINVAL` if the action does not exist, or a part is missing or too long.
    fn decode(payload: &[u8]) -> Result<KnobRequest, i32> {
        let (&action, rest) = payload.split_first().ok_or(errno::EINVAL)?;
        let name = |name: &[u8]| match name.len() {
            1..=MAX_NAME => std::str::from_utf8(name).map(str::to_owned).map_err(|_| errno::EINVAL),
            _ => Err(errno::EINVAL),
        };
        match (action, rest.len()) {
            (GET, 0) => Ok(KnobRequest::Get(None)),
            (RELOAD, 0) => Ok(KnobRequest::Reload),
            (GET, _) => Ok(KnobRequest::Get(Some(name(rest)?))),
            (SET, _) => {
                let (value, rest) = rest.split_first_chunk().ok_or(errno::EINVAL)?;
                Ok(KnobRequest::Set(name(rest)?, u64::from_ne_bytes(*value)))
            }
            _ => Err(errno::EINVAL),
        }
    }
}

/// Sends the request to this user's own daemon, which is started if none runs, and returns the knobs after it, as JSON.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
pub fn send_request(request: &KnobRequest) -> Result<String, Error> {
    let connection = client::connect()?;
    let subject = match request {
        KnobRequest::Get(None) => "knobs".into(),
        KnobRequest::Get(Some(name)) => format!("knob {name}"),
        KnobRequest::Set(name, value) => format!("knob {name}, {value}"),
        KnobRequest::Reload => RELOADED.into(),
    };
    client::send(connection.fd.as_fd(), &subject, request)?.into_text(&subject)
}

/// The subject of a reload in error texts.
const RELOADED: &str = "the daemon's configuration and policy";

/// Has this user's own daemon read its configuration and policy again. Returns what that changed, as JSON; `None` if no
/// daemon runs.
///
/// # Errors
/// The daemon's refusal, with the file and line of an error in them: it goes on with what it had.
pub fn reload() -> Result<Option<String>, Error> {
    let Some(connection) = client::running()? else { return Ok(None) };
    client::send(connection.fd.as_fd(), RELOADED, &KnobRequest::Reload)?.into_text(RELOADED).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_encoding_and_decoding() {
        for request in [
            KnobRequest::Get(None),
            KnobRequest::Get(Some("fwd".into())),
            KnobRequest::Set("buf_size".into(), u64::MAX),
            KnobRequest::Reload,
        ] {
            assert_eq!(KnobRequest::decode(&request.encode()), Ok(request));
        }
    }

    #[test]
    fn malformed_requests_are_rejected() {
        let long = [&[GET], &[b'x'; MAX_NAME + 1][..]].concat();
        for bytes in [&b""[..], b"\x03", b"\x02x", b"\x01", b"\x011234567", b"\x0112345678", b"\x00\xff", &long] {
            assert_eq!(KnobRequest::decode(bytes), Err(errno::EINVAL), "{bytes:?}");
        }
    }
}
