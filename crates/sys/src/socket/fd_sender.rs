// SPDX-License-Identifier: BSD-2-Clause
//! A bound of the descriptors that a process has in flight to peers that need not receive them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::fcntl_dupfd_cloexec;

use super::{all_received, send, shut_down};

/// Sends messages with descriptors, of which one at most is in flight, over all connections of the process.
///
/// The kernel counts descriptors that were sent and not received yet against the sender's *user*. Once they are as many
/// as a process of that user may have open, no process of the user can send any (`ETOOMANYREFS`), unless it has
/// CAP_SYS_RESOURCE or CAP_SYS_ADMIN. They count until the peer receives the message or closes its end; that the
/// sender closes the connection changes nothing (`unread_descriptors_count_for_the_sender` in `assume`). Therefore the
/// connection of the last such message is kept here, also when its owner has ended it.
#[derive(Debug, Default)]
pub struct FdSender {
    /// The connection of the last message, if it was not received yet.
    last: Option<OwnedFd>,
}

impl FdSender {
    /// Returns whether the peer has received the last message, or has closed its end.
    pub fn is_free(&mut self) -> bool {
        self.last = self.last.take().filter(|last| !all_received(last).unwrap_or(true));
        self.last.is_none()
    }

    /// Sends one message, as [`send`] does.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] while the last message is in flight; `EMFILE`; and those of [`send`].
    pub fn send(&mut self, socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        if !self.is_free() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // Before it is sent: afterwards it could not be taken back.
        let connection = fcntl_dupfd_cloexec(&socket, 0)?;
        let sent = send(&socket, bytes, fds)?;
        self.last = Some(connection);
        Ok(sent)
    }

    /// Ends the connection of the last message, if that was not received yet. Its owner must have closed it: the peer
    /// would not notice that before.
    pub fn end_last(&mut self) {
        if !self.is_free() {
            self.last.iter().for_each(shut_down);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::socket::recv;

    const KINDS: [SocketType; 2] = [SocketType::STREAM, SocketType::SEQPACKET];

    fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, kind, flags, None).unwrap()
    }

    #[test]
    fn descriptors_count_until_the_peer_takes_them_or_ends() {
        let null = File::open("/dev/null").unwrap();
        for kind in KINDS {
            let mut sender = FdSender::default();
            let ((first, first_peer), (second, second_peer)) = (pair(kind), pair(kind));
            assert!(sender.is_free());
            sender.send(&first, b"a", &[null.as_fd()]).unwrap();
            // On this connection and another, also when the sender has ended it.
            for _ in 0..2 {
                for socket in [&first, &second] {
                    let refused = sender.send(socket, b"b", &[null.as_fd()]).unwrap_err();
                    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "{kind:?}");
                }
                sender.end_last();
            }
            drop(first);
            assert!(!sender.is_free(), "{kind:?}");
            let (mut bytes, mut fds) = ([0; 8], Vec::new());
            assert_eq!(recv(&first_peer, &mut bytes, &mut fds).unwrap().bytes, 1);
            assert_eq!((fds.len(), sender.is_free()), (1, true), "{kind:?}");
            assert_eq!(recv(&first_peer, &mut bytes, &mut fds).unwrap().bytes, 0, "the peer notices the end");
            // A peer that closes its end without a look.
            sender.send(&second, b"c", &[null.as_fd()]).unwrap();
            assert!(!sender.is_free());
            drop(second_peer);
            assert!(sender.is_free(), "{kind:?}");
            assert!(sender.send(&second, b"d", &[null.as_fd()]).is_err() && sender.is_free());
        }
    }
}
