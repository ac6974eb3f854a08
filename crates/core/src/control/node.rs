// SPDX-License-Identifier: BSD-2-Clause
//! The node, a `/dev/netmap` that any program can open: the request of `unetmap node`.
//!
//! ```text
//! request   one byte: the action; then, to create it, the path
//! reply     the state of the node, as JSON; or an errno and the reason
//! ```

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::control::client;
use crate::control::wire::{ControlRequest, Kind};
use crate::error::{Error, errno};

/// Where programs expect it.
pub const USUAL_PATH: &str = "/dev/netmap";
/// Bytes of its path at most: the kernel's `PATH_MAX`, less the zero.
pub const MAX_PATH: usize = 4095;

/// A request about the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRequest {
    /// Returns its state.
    Show,
    /// Creates it at this path, which is absolute.
    On(PathBuf),
    /// Removes it; with a path, only if it is there.
    Off(Option<PathBuf>),
}

const SHOW: u8 = 0;
const ON: u8 = 1;
const OFF: u8 = 2;

impl ControlRequest for NodeRequest {
    const KIND: Kind = Kind(7);

    fn encode(&self) -> Vec<u8> {
        let (action, path) = match self {
            NodeRequest::Show => (SHOW, None),
            NodeRequest::On(path) => (ON, Some(path)),
            NodeRequest::Off(path) => (OFF, path.as_ref()),
        };
        let mut out = vec![action];
        out.extend_from_slice(path.map_or(&[][..], |path| path.as_os_str().as_bytes()));
        out
    }

    /// # Errors
    /// `EINVAL` if the action does not exist, or the path is missing or not absolute.
    fn decode(payload: &[u8]) -> Result<NodeRequest, i32> {
        let (&action, path) = payload.split_first().ok_or(errno::EINVAL)?;
        let valid = path.len() <= MAX_PATH && path.first() == Some(&b'/') && !path.contains(&0);
        let path = || if valid { Ok(PathBuf::from(OsStr::from_bytes(path))) } else { Err(errno::EINVAL) };
        match (action, payload.len()) {
            (SHOW, 1) => Ok(NodeRequest::Show),
            (OFF, 1) => Ok(NodeRequest::Off(None)),
            (OFF, _) => Ok(NodeRequest::Off(Some(path()?))),
            (ON, _) => Ok(NodeRequest::On(path()?)),
            _ => Err(errno::EINVAL),
        }
    }
}

/// Sends the request and returns the state of the node after it, as JSON. Starts a daemon only to create the node;
/// `None` if no daemon runs, and so there is no node.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
pub fn send_request(request: &NodeRequest) -> Result<Option<String>, Error> {
    let subject = match request {
        NodeRequest::On(path) | NodeRequest::Off(Some(path)) => path.as_path(),
        NodeRequest::Show | NodeRequest::Off(None) => Path::new("the node"),
    };
    client::send_for_text(request, &subject.display().to_string(), matches!(request, NodeRequest::On(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_encoding_and_decoding() {
        let path = || PathBuf::from("/dev/netmap");
        for request in
            [NodeRequest::Show, NodeRequest::On(path()), NodeRequest::Off(None), NodeRequest::Off(Some(path()))]
        {
            assert_eq!(NodeRequest::decode(&request.encode()), Ok(request));
        }
    }

    #[test]
    fn malformed_requests_are_rejected() {
        let long = [b"\x01/".as_slice(), &[b'x'; MAX_PATH]].concat();
        for bytes in [&b""[..], b"\x03", b"\0x", b"\x01", b"\x01dev", b"\x02dev", b"\x01/a\0b", &long] {
            assert_eq!(NodeRequest::decode(bytes), Err(errno::EINVAL), "{bytes:?}");
        }
    }
}
