// SPDX-License-Identifier: BSD-2-Clause
//! Netlink sockets: requests whose replies arrive before the call returns, and multicast notifications.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    NlasIterator,
};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto, socket_with,
};

/// Bytes of a netlink message's header; messages and attributes are aligned to 4.
const HEADER: usize = 16;
/// Bytes of an attribute's header: length and kind.
const ATTRIBUTE_HEADER: usize = 4;
/// Bytes of the largest datagram; the kernel sends lists in pieces of at most 32 KiB.
pub(super) const DATAGRAM_MAX: usize = 64 << 10;

/// A message from the kernel.
#[derive(Clone, Copy)]
pub(super) struct Message<'a> {
    /// `RTM_NEWLINK` and so on.
    pub(super) kind: u16,
    /// The payload after the netlink header.
    pub(super) body: &'a [u8],
}

/// A socket of the calling thread's network namespace.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl Socket {
    /// Opens a socket for interfaces and routes that receives notifications of `groups`.
    pub(super) fn route(groups: u32) -> io::Result<Socket> {
        // `None` is protocol 0, NETLINK_ROUTE.
        Socket::open(None, groups)
    }

    /// Opens a socket for generic netlink families.
    pub(super) fn generic() -> io::Result<Socket> {
        Socket::open(Some(netlink::GENERIC), 0)
    }

    /// Opens a socket for nftables.
    pub(super) fn netfilter() -> io::Result<Socket> {
        Socket::open(Some(netlink::NETFILTER), 0)
    }

    /// The descriptor.
    pub(super) fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// A socket that another process has opened.
    pub(super) fn from_fd(fd: OwnedFd) -> Socket {
        Socket(fd)
    }

    fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Socket> {
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Socket(fd))
    }

    /// Sends a request, and passes each message of the reply to `each`.
    pub(super) fn request(&self, kind: u16, body: &[u8], each: impl FnMut(Message)) -> Result<(), Errno> {
        self.transact(kind, NLM_F_ACK, body, each).map(|_| ())
    }

    /// Requests a change. `flags` are flags such as `NLM_F_CREATE`.
    pub(super) fn change(&self, kind: u16, flags: u16, body: &[u8]) -> Result<(), Errno> {
        self.transact(kind, NLM_F_ACK | flags, body, |_| ()).map(|_| ())
    }

    /// Requests a list. `false`: the list changed meanwhile; entries may be missing or duplicated.
    pub(super) fn list(&self, kind: u16, body: &[u8], each: impl FnMut(Message)) -> Result<bool, Errno> {
        self.transact(kind, NLM_F_DUMP, body, each)
    }

    /// Sends messages that are one transaction, each with its kind, and returns the first error.
    pub(super) fn transaction(&self, messages: &[(u16, Vec<u8>)]) -> Result<(), Errno> {
        let bytes: Vec<u8> =
            messages.iter().flat_map(|(kind, body)| request(*kind, NLM_F_ACK | NLM_F_CREATE, body)).collect();
        sendto(&self.0, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut result = Ok(());
        // The kernel answers within that call.
        loop {
            let received = self.datagram(|message| {
                if message.message_type() == NLMSG_ERROR {
                    result = result.and(status(message.payload()));
                }
            });
            match received {
                Ok(()) => {}
                Err(Errno::AGAIN) => return result,
                Err(e) => return Err(e),
            }
        }
    }

    fn transact(&self, kind: u16, flags: u16, body: &[u8], mut each: impl FnMut(Message)) -> Result<bool, Errno> {
        sendto(&self.0, &request(kind, flags, body), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let (mut end, mut consistent) = (None, true);
        while end.is_none() {
            // The kernel processes requests and lists within these calls: there is always a message to receive.
            self.datagram(|message| {
                consistent &= message.flags() & NLM_F_DUMP_INTR == 0;
                match message.message_type() {
                    NLMSG_ERROR | NLMSG_DONE => end = Some(status(message.payload())),
                    kind => each(Message { kind, body: message.payload() }),
                }
            })?;
        }
        end.unwrap_or(Ok(())).map(|()| consistent)
    }

    /// Passes the messages of the next datagram to `each`; `EAGAIN` if there is none, `ENOBUFS` if some were dropped.
    pub(super) fn receive(&self, mut each: impl FnMut(Message)) -> Result<(), Errno> {
        self.datagram(|message| each(Message { kind: message.message_type(), body: message.payload() }))
    }

    fn datagram(&self, mut each: impl FnMut(NetlinkBuffer<&[u8]>)) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); DATAGRAM_MAX];
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let ((bytes, _), length, sender) = recvfrom(&self.0, &mut space[..], flags)?;
        // Processes with the privilege in this namespace, which a client may own, can also send here: ignored.
        if sender.and_then(|s| SocketAddrNetlink::try_from(s).ok()).is_none_or(|s| s.pid() != 0) {
            return Ok(());
        }
        let bytes: &[u8] = bytes;
        if bytes.len() < length {
            return Err(Errno::MSGSIZE);
        }
        messages(bytes, &mut each);
        Ok(())
    }
}

/// A request, whose length is a multiple of 4.
fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = HEADER + body.len();
    let mut bytes = vec![0; length];
    let mut request = NetlinkBuffer::new(&mut bytes);
    request.set_length(length as u32);
    request.set_message_type(kind);
    request.set_flags(NLM_F_REQUEST | flags);
    request.payload_mut().copy_from_slice(body);
    bytes
}

/// Passes the messages of a datagram to `each`, up to the first malformed one.
pub(super) fn messages<'a>(mut bytes: &'a [u8], mut each: impl FnMut(NetlinkBuffer<&'a [u8]>)) {
    while let Ok(message) = NetlinkBuffer::new_checked(bytes) {
        let next = (message.length() as usize).next_multiple_of(4);
        each(message);
        bytes = bytes.get(next..).unwrap_or_default();
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Decodes the end of a reply: 0, or a negative errno.
fn status(payload: &[u8]) -> Result<(), Errno> {
    match payload.get(..4).and_then(number).unwrap_or(0).cast_signed() {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno.saturating_neg())),
    }
}

/// Returns the attributes in `bytes`, kind and value, up to the first malformed one.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).map(|attribute| {
        let length = usize::from(attribute.length());
        (attribute.kind(), &attribute.into_inner()[ATTRIBUTE_HEADER..length])
    })
}

/// Appends an attribute; `value` has less than 64 KiB.
pub(super) fn push_attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = ATTRIBUTE_HEADER + value.len();
    bytes.extend_from_slice(&(length as u16).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Decodes a value of four bytes.
pub(super) fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

/// Decodes a value that is NUL-terminated text.
pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_back() {
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, 3, b"eth0\0");
        push_attribute(&mut bytes, 4, &1500u32.to_ne_bytes());
        assert_eq!(bytes.len(), 12 + 8);
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read, [(3, &b"eth0\0"[..]), (4, &1500u32.to_ne_bytes()[..])]);
        assert_eq!((text(read[0].1), number(read[1].1), number(read[0].1)), ("eth0".into(), Some(1500), None));
        assert_eq!(text(b"abc"), "abc");
    }

    #[test]
    fn a_malformed_attribute_ends_the_list() {
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, 3, b"a\0");
        let good = bytes.len();
        for damage in [&[200, 0, 4, 0][..], &[3, 0, 4, 0], &[0, 0, 0, 0], &[8, 0, 1, 0, 9], &[9]] {
            bytes.truncate(good);
            bytes.extend_from_slice(damage);
            assert_eq!(attributes(&bytes).count(), 1, "{damage:?}");
        }
    }

    #[test]
    fn the_end_of_a_reply_is_decoded() {
        assert_eq!(status(&0i32.to_ne_bytes()), Ok(()));
        assert_eq!(status(&[]), Ok(()));
        assert_eq!(status(&[(-libc::ENODEV).to_ne_bytes(), [7; 4]].concat()), Err(Errno::NODEV));
    }
}
