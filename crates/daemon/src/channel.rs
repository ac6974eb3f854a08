// SPDX-License-Identifier: BSD-2-Clause
//! Messages between the processes of the daemon, with descriptors: to the broker, the store and a successor.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;
use unetmap_core::errno::{EMFILE, ETOOMANYREFS};
use unetmap_sys::{memfd, socket};

use crate::tuning::broker::MESSAGE_BYTES;
use crate::tuning::handover::SEND_POLL;

/// Sends a message. One that is too long for the socket is sent as a file, the last descriptor; its first byte says so.
pub(crate) fn send(connection: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_while(connection, message, fds, || false)
}

/// The same, and again until `end`, as [`send_while`] does.
pub(crate) fn send_until(
    end: Instant,
    connection: impl AsFd,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_while(connection, message, fds, || Instant::now() < end)
}

/// Sends a message as [`send`] does, and again if the kernel has no room for it ([`has_no_room`]) and `again` has said
/// just before that it may be sent later.
pub(crate) fn send_while(
    connection: impl AsFd,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
    mut again: impl FnMut() -> bool,
) -> io::Result<()> {
    let mut bytes = vec![INLINE];
    serde_json::to_writer(&mut bytes, message)?;
    let mut file = None;
    if bytes.len() > MESSAGE_BYTES {
        let mut long = File::from(memfd::create_unsealed("unetmap-message")?);
        long.write_all(&bytes[1..])?;
        (file, bytes) = (Some(long), vec![IN_FILE]);
    }
    let fds: Vec<BorrowedFd<'_>> = fds.iter().copied().chain(file.as_ref().map(AsFd::as_fd)).collect();
    loop {
        let may_wait = again();
        match socket::send(&connection, &bytes, &fds) {
            Err(e) if may_wait && has_no_room(&e) => sleep(SEND_POLL),
            sent => return sent.map(drop),
        }
    }
}

/// Whether a message was not sent as messages before it were not received: too many on the connection or, of all
/// processes of this user, too many descriptors.
fn has_no_room(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::WouldBlock || e.raw_os_error() == Some(ETOOMANYREFS)
}

/// Decodes a message that is here and not in a file; `None` if it is another one.
pub(crate) fn decode_inline<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let rest = bytes.strip_prefix(&[INLINE])?;
    serde_json::from_slice(rest).ok()
}

/// First byte of a message: the rest of it is here, or in a file.
pub(crate) const INLINE: u8 = 0;
pub(crate) const IN_FILE: u8 = 1;

/// Receives a message of at most `limit` bytes; `None`: the other end is closed.
///
/// # Errors
/// `InvalidData` for a message that is malformed or too long, `EMFILE` for one whose descriptors this process cannot
/// have; its descriptors are closed.
pub(crate) fn receive<T: DeserializeOwned>(connection: impl AsFd, limit: u64) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("a message {what}"));
    let (mut buf, mut fds) = (vec![0; MESSAGE_BYTES], Vec::new());
    let got = socket::recv(connection, &mut buf, &mut fds)?;
    if got.bytes == 0 {
        return Ok(None);
    }
    if got.fds_truncated {
        return Err(io::Error::from_raw_os_error(EMFILE));
    }
    if got.truncated {
        return Err(invalid("does not fit"));
    }
    let (first, rest) = (buf[0], &buf[1..got.bytes]);
    let message = match first {
        INLINE => serde_json::from_slice(rest),
        IN_FILE => {
            let mut file = File::from(fds.pop().ok_or_else(|| invalid("lacks its file"))?);
            // Of the kernel's memory: reading another kind of file may wait.
            if !memfd::is_memory_file(&file) {
                return Err(invalid("is in a file of another kind"));
            }
            file.rewind()?;
            let mut bytes = Vec::new();
            file.take(limit + 1).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > limit {
                return Err(invalid("is too long"));
            }
            serde_json::from_slice(&bytes)
        }
        _ => return Err(invalid("is of an unknown kind")),
    };
    message.map(|message| Some((message, fds))).map_err(|e| invalid(&format!("cannot be decoded: {e}")))
}
