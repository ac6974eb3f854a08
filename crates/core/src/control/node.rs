//! The node, a `/dev/netmap` that any program can open: what `unetmap node` asks of the daemon.
//!
//! ```text
//! request   one byte: a wish; then, to have it, the path
//! answer    a memfd with how the node is, as JSON; or an errno and why
//! ```

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::control::client;
use crate::error::Error;
use crate::control::nic::text_of;
use crate::control::wire::Kind;

/// Where programs look for it.
pub const USUAL_PATH: &str = "/dev/netmap";
/// Bytes of its path at most: the kernel's `PATH_MAX`, less the zero.
pub const MOST_PATH: usize = 4095;

/// What is asked of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Only how it is.
    Show,
    /// It is to be at this path, which is absolute.
    On(PathBuf),
    /// It is to be nowhere, or, with a path, not there.
    Off(Option<PathBuf>),
}

const SHOW: u8 = 0;
const ON: u8 = 1;
const OFF: u8 = 2;

impl Wish {
    /// The bytes that cross the socket.
    pub fn encode(&self) -> Vec<u8> {
        let (wish, path) = match self {
            Wish::Show => (SHOW, None),
            Wish::On(path) => (ON, Some(path)),
            Wish::Off(path) => (OFF, path.as_ref()),
        };
        let mut out = vec![wish];
        out.extend_from_slice(path.map_or(&[][..], |path| path.as_os_str().as_bytes()));
        out
    }

    /// Takes the bytes apart; `None` when they are no wish, or the path is none, or not absolute.
    pub fn decode(bytes: &[u8]) -> Option<Wish> {
        let (&wish, path) = bytes.split_first()?;
        let good = path.len() <= MOST_PATH && path.first() == Some(&b'/') && !path.contains(&0);
        let path = || good.then(|| PathBuf::from(OsStr::from_bytes(path)));
        match (wish, bytes.len()) {
            (SHOW, 1) => Some(Wish::Show),
            (OFF, 1) => Some(Wish::Off(None)),
            (OFF, _) => Some(Wish::Off(Some(path()?))),
            (ON, _) => Some(Wish::On(path()?)),
            _ => None,
        }
    }
}

/// Asks the daemon, and returns how the node then is, as JSON. One is started only to have the node; without one there is
/// no node: `None`.
///
/// # Errors
/// The daemon's refusal, or none could be started or answers.
pub fn ask(wish: &Wish) -> Result<Option<String>, Error> {
    let connection = match (client::connect_system(), wish) {
        (Some(connection), _) => connection,
        (None, Wish::On(_)) => client::connect()?,
        (None, Wish::Show | Wish::Off(_)) => match client::running()? {
            Some(connection) => connection,
            None => return Ok(None),
        },
    };
    let asked = match wish {
        Wish::On(path) | Wish::Off(Some(path)) => path.as_path(),
        Wish::Show | Wish::Off(None) => Path::new("the node"),
    };
    let asked = asked.display().to_string();
    let reply = client::call(connection.fd.as_fd(), &asked, Kind::Node, &wish.encode())?;
    text_of(reply, &asked).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_comes_back_as_it_was() {
        let path = || PathBuf::from("/dev/netmap");
        for wish in [Wish::Show, Wish::On(path()), Wish::Off(None), Wish::Off(Some(path()))] {
            assert_eq!(Wish::decode(&wish.encode()), Some(wish));
        }
    }

    #[test]
    fn what_is_no_wish() {
        let long = [b"\x01/".as_slice(), &[b'x'; MOST_PATH]].concat();
        for bytes in [&b""[..], b"\x03", b"\0x", b"\x01", b"\x01dev", b"\x02dev", b"\x01/a\0b", &long] {
            assert_eq!(Wish::decode(bytes), None, "{bytes:?}");
        }
    }
}
