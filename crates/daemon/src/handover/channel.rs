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
    let mut bytes = vec![INLINE];
    serde_json::to_writer(&mut bytes, message)?;
    if bytes.len() <= MESSAGE_BYTES {
        return socket::send(connection, &bytes, fds).map(drop);
    }
    let mut file = File::from(memfd::create_unsealed("unetmap-message")?);
    file.write_all(&bytes[1..])?;
    let fds: Vec<BorrowedFd<'_>> = fds.iter().copied().chain([file.as_fd()]).collect();
    socket::send(connection, &[IN_FILE], &fds).map(drop)
}

/// Sends a message as [`send`] does, and again until `end` while too many descriptors of this process's user are in
/// flight: those that the store, a successor or others are about to receive.
pub(crate) fn send_until(
    end: Instant,
    connection: impl AsFd,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    loop {
        match send(&connection, message, fds) {
            Err(e) if e.raw_os_error() == Some(ETOOMANYREFS) && Instant::now() < end => sleep(SEND_POLL),
            sent => return sent,
        }
    }
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
