//! The daemon's knobs, netmap's names for what can be turned: what `unetmap get` and `unetmap set` ask of the daemon.
//!
//! ```text
//! request   one byte: a wish; then, to set it, the value (8 bytes); then the knob's name, none for all
//! answer    a memfd with the knob, or all, as JSON; or an errno and why
//! ```

use std::os::fd::AsFd;

use crate::control::client;
use crate::error::Error;
use crate::control::nic::text_of;
use crate::control::wire::Kind;

/// Bytes of a knob's name at most.
pub const MOST_NAME: usize = 32;

/// What is asked of the knobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// What this one is, or all are.
    Get(Option<String>),
    /// This one is to be so.
    Set(String, u64),
}

const GET: u8 = 0;
const SET: u8 = 1;

impl Wish {
    /// The bytes that cross the socket.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Wish::Get(name) => [&[GET], name.as_deref().unwrap_or_default().as_bytes()].concat(),
            Wish::Set(name, value) => [&[SET][..], &value.to_ne_bytes(), name.as_bytes()].concat(),
        }
    }

    /// Takes the bytes apart; `None` when they are no wish.
    pub fn decode(bytes: &[u8]) -> Option<Wish> {
        let (&wish, rest) = bytes.split_first()?;
        let name = |name: &[u8]| match name.len() {
            1..=MOST_NAME => std::str::from_utf8(name).ok().map(str::to_owned),
            _ => None,
        };
        match (wish, rest.len()) {
            (GET, 0) => Some(Wish::Get(None)),
            (GET, _) => Some(Wish::Get(Some(name(rest)?))),
            (SET, _) => {
                let (value, rest) = rest.split_first_chunk()?;
                Some(Wish::Set(name(rest)?, u64::from_ne_bytes(*value)))
            }
            _ => None,
        }
    }
}

/// Asks this user's own daemon, and returns what the knobs then are, as JSON. One is started if none runs.
///
/// # Errors
/// The daemon's refusal, or none could be started or answers.
pub fn ask(wish: &Wish) -> Result<String, Error> {
    let connection = client::connect()?;
    let asked = match wish {
        Wish::Get(None) => "knobs".into(),
        Wish::Get(Some(name)) => format!("knob {name}"),
        Wish::Set(name, value) => format!("knob {name}, {value}"),
    };
    let reply = client::call(connection.fd.as_fd(), &asked, Kind::Knobs, &wish.encode())?;
    text_of(reply, &asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_comes_back_as_it_was() {
        for wish in [Wish::Get(None), Wish::Get(Some("fwd".into())), Wish::Set("buf_size".into(), u64::MAX)] {
            assert_eq!(Wish::decode(&wish.encode()), Some(wish));
        }
    }

    #[test]
    fn what_is_no_wish() {
        let long = [&[GET], &[b'x'; MOST_NAME + 1][..]].concat();
        for bytes in [&b""[..], b"\x02", b"\x01", b"\x011234567", b"\x0112345678", b"\x00\xff", &long] {
            assert_eq!(Wish::decode(bytes), None, "{bytes:?}");
        }
    }
}
