// SPDX-License-Identifier: BSD-2-Clause
//! The daemon's knobs, under the names of netmap's sysctls: the request of `unetmap get`, `set` and `reload`, and of
//! programs that look for `/sys/module/netmap/parameters`.
//!
//! ```text
//! request   one byte: the action; then, to set a knob, the value (8 bytes); then the knob's name, none for all
//! reply     the knob, or all, or what was changed, as JSON; nothing, if they are shown; or an errno and the reason
//! ```

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

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
    /// Writes the values of all knobs into files, see [`module_path`].
    Show,
}

const GET: u8 = 0;
const SET: u8 = 1;
const RELOAD: u8 = 2;
const SHOW: u8 = 3;

impl ControlRequest for KnobRequest {
    const KIND: Kind = Kind(10);

    fn encode(&self) -> Vec<u8> {
        match self {
            KnobRequest::Get(name) => [&[GET], name.as_deref().unwrap_or_default().as_bytes()].concat(),
            KnobRequest::Set(name, value) => [&[SET][..], &value.to_ne_bytes(), name.as_bytes()].concat(),
            KnobRequest::Reload => vec![RELOAD],
            KnobRequest::Show => vec![SHOW],
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
            (SHOW, 0) => Ok(KnobRequest::Show),
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
        KnobRequest::Show => SHOWN.into(),
    };
    client::send(connection.fd.as_fd(), &subject, request)?.into_text(&subject)
}

/// The subject of error texts about the files.
const SHOWN: &str = "netmap's parameters as files";

/// The folder that stands for `/sys/module/netmap`, of the daemon that listens at `socket`: in it `parameters/NAME` has
/// the value of each knob.
pub fn module_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".module");
    path.into()
}

/// Has this user's own daemon, which is started if none runs, write its knobs into files. Returns their folder, see
/// [`module_path`].
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
pub fn show_files() -> Result<PathBuf, Error> {
    let connection = client::connect()?;
    client::send(connection.fd.as_fd(), SHOWN, &KnobRequest::Show)?.refused(SHOWN)?;
    Ok(module_path(&connection.socket))
}

/// Returns the number that is written to a parameter's file, as the kernel reads an `int` there: decimal, hexadecimal
/// after `0x`, octal after `0`, with a sign, and at most one newline after it.
///
/// # Errors
/// `EINVAL` if it is none, or is negative, which no knob is; `ERANGE` if an `int` cannot hold it.
pub fn parse_parameter(text: &[u8]) -> Result<u64, i32> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let text = std::str::from_utf8(text).map_err(|_| errno::EINVAL)?;
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let text = text.strip_prefix('+').unwrap_or(text);
    let (digits, base) = match text.as_bytes() {
        [b'0', b'x' | b'X', first, ..] if first.is_ascii_hexdigit() => (&text[2..], 16),
        [b'0', ..] => (text, 8),
        _ => (text, 10),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(base)) {
        return Err(errno::EINVAL);
    }
    match i32::from_str_radix(digits, base) {
        Ok(0) => Ok(0),
        Ok(_) if is_negative => Err(errno::EINVAL),
        Ok(value) => Ok(u64::from(value.unsigned_abs())),
        Err(_) => Err(errno::ERANGE),
    }
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
            KnobRequest::Show,
        ] {
            assert_eq!(KnobRequest::decode(&request.encode()), Ok(request));
        }
    }

    #[test]
    fn malformed_requests_are_rejected() {
        let long = [&[GET], &[b'x'; MAX_NAME + 1][..]].concat();
        for bytes in
            [&b""[..], b"\x04", b"\x03x", b"\x02x", b"\x01", b"\x011234567", b"\x0112345678", b"\x00\xff", &long]
        {
            assert_eq!(KnobRequest::decode(bytes), Err(errno::EINVAL), "{bytes:?}");
        }
    }

    #[test]
    fn parameters_are_read_as_by_the_kernel() {
        for (text, value) in [
            ("0", Ok(0)),
            ("2048\n", Ok(2048)),
            ("+7", Ok(7)),
            ("0x800", Ok(2048)),
            ("0X1f\n", Ok(31)),
            ("017", Ok(15)),
            ("-0", Ok(0)),
            ("5\0junk", Ok(5)),
            ("2147483647", Ok(2_147_483_647)),
            ("2147483648", Err(errno::ERANGE)),
            ("99999999999999999999999", Err(errno::ERANGE)),
        ] {
            assert_eq!(parse_parameter(text.as_bytes()), value, "{text}");
        }
        for text in
            ["", "\n", "x", " 1", "1 ", "1\n\n", "1\n2\n", "-1", "0x", "08", "++1", "+-1", "1.0", "\u{661}", "\0"]
        {
            assert_eq!(parse_parameter(text.as_bytes()), Err(errno::EINVAL), "{text:?}");
        }
    }
}
