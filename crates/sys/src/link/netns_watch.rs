// SPDX-License-Identifier: BSD-2-Clause
//! Notifications from other network namespaces, without keeping them alive.
//!
//! A socket of a namespace, as in a [`super::LinkWatch`], keeps that namespace and everything in it alive. Here the
//! socket is in this process's namespace: the other namespace gets a number in it (`RTM_NEWNSID`), with which the
//! kernel forwards its notifications (`NETLINK_LISTEN_ALL_NSID`), including that of its end. The number is valid until
//! that end.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::netlink::{DATAGRAM_MAX, Message, Socket, attributes, messages, number, push_attribute};
use super::{IFINFOMSG, LinkEvent, event_of, ifinfomsg, link_of};
use crate::netns::Netns;

/// Attributes of linux/net_namespace.h.
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// Bytes of a `struct rtgenmsg`, padded.
const RTGENMSG: usize = 4;
/// The namespace that a request for an interface refers to (linux/if_link.h).
pub(super) const IFLA_TARGET_NETNSID: u16 = 46;

/// A network namespace: that of the watch, or another one by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Nsid {
    /// The namespace that the watch was created in.
    Own,
    /// Another namespace.
    Other(i32),
}

/// A change in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetnsLinkEvent {
    /// A change of an interface there.
    Link(Nsid, LinkEvent),
    /// The namespace and all its interfaces no longer exist. Its number may be reused.
    Gone(Nsid),
    /// Events were lost, from any namespace.
    Lost,
}

/// Reports changes of the interfaces of several namespaces.
#[derive(Debug)]
pub struct NetnsLinkWatch {
    socket: Socket,
    own: u64,
}

impl NetnsLinkWatch {
    /// Creates a watch in the calling thread's namespace, whose own interfaces it also reports.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_BROADCAST`; `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<NetnsLinkWatch> {
        let socket = Socket::route(libc::RTMGRP_LINK as u32)?;
        set_option(&socket, libc::NETLINK_LISTEN_ALL_NSID, 1)?;
        set_option(&socket, libc::NETLINK_ADD_MEMBERSHIP, libc::RTNLGRP_NSID as libc::c_int)?;
        Ok(NetnsLinkWatch { socket, own: Netns::current()?.id() })
    }

    /// The watch of a socket that another process of the same namespace has created by [`NetnsLinkWatch::new`].
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn from_fd(fd: OwnedFd) -> io::Result<NetnsLinkWatch> {
        Ok(NetnsLinkWatch { socket: Socket::from_fd(fd), own: Netns::current()?.id() })
    }

    /// Starts to report changes in `netns`. The caller must be in the namespace that the watch was created in.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`; those of netlink sockets.
    pub fn add(&self, netns: &Netns) -> io::Result<Nsid> {
        if netns.id() == self.own {
            return Ok(Nsid::Own);
        }
        let socket = Socket::route(0)?;
        let mut new = nsid_request(netns);
        push_attribute(&mut new, NETNSA_NSID, &(-1i32).to_ne_bytes());
        match socket.request(libc::RTM_NEWNSID, &new, |_| ()) {
            // It already has a number.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        number_of(&socket, netns)?.map(Nsid::Other).ok_or_else(|| Errno::NOENT.into())
    }

    /// Returns whether an interface of this index exists; false if the namespace no longer exists.
    ///
    /// # Errors
    /// The errors of netlink sockets.
    pub fn exists(&self, nsid: Nsid, index: u32) -> io::Result<bool> {
        let mut body = ifinfomsg(index);
        if let Nsid::Other(nsid) = nsid {
            push_attribute(&mut body, IFLA_TARGET_NETNSID, &nsid.to_ne_bytes());
        }
        push_attribute(&mut body, libc::IFLA_EXT_MASK, &libc::RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        let mut found = false;
        match Socket::route(0)?.request(libc::RTM_GETLINK, &body, |message| found |= link_of(message).is_some()) {
            Err(Errno::NODEV | Errno::INVAL) => Ok(false),
            result => Ok(result.map(|()| found)?),
        }
    }

    /// Appends all events since the last call, in order. Never blocks.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn read(&mut self, events: &mut Vec<NetnsLinkEvent>) -> io::Result<()> {
        let before = events.len();
        let mut lost = false;
        loop {
            match receive(&self.socket, |nsid, message| events.extend(netns_event_of(nsid, message))) {
                Ok(()) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::NOBUFS | Errno::MSGSIZE) => lost = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if lost {
            events.truncate(before);
            events.push(NetnsLinkEvent::Lost);
        }
        Ok(())
    }
}

impl AsFd for NetnsLinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn set_option(socket: &Socket, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: K1, K5: the value of both options is an int, which outlives the call.
    let set = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_NETLINK, option, (&raw const value).cast(), bytes)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Builds a request about the number of a namespace.
fn nsid_request(netns: &Netns) -> Vec<u8> {
    let mut body = vec![0; RTGENMSG];
    push_attribute(&mut body, NETNSA_FD, &netns.as_fd().as_raw_fd().to_ne_bytes());
    body
}

/// Returns the number that `netns` has in the socket's namespace, if it has one.
pub(super) fn number_of(socket: &Socket, netns: &Netns) -> Result<Option<i32>, Errno> {
    let mut found = None;
    socket.request(libc::RTM_GETNSID, &nsid_request(netns), |message| found = nsid_of(message.body))?;
    Ok(found)
}

/// Decodes the number in a message about a namespace number.
fn nsid_of(body: &[u8]) -> Option<i32> {
    let (_, value) = attributes(body.get(RTGENMSG..)?).find(|&(kind, _)| kind == NETNSA_NSID)?;
    number(value).map(u32::cast_signed).filter(|&nsid| nsid >= 0)
}

fn netns_event_of(nsid: Nsid, message: Message) -> Option<NetnsLinkEvent> {
    match message.kind {
        libc::RTM_NEWNSID => None,
        // Numbers of this process's namespace; those in other namespaces are ignored.
        libc::RTM_DELNSID if nsid == Nsid::Own => {
            nsid_of(message.body).map(|gone| NetnsLinkEvent::Gone(Nsid::Other(gone)))
        }
        libc::RTM_DELNSID => None,
        _ if message.body.len() < IFINFOMSG => None,
        _ => event_of(message).map(|event| NetnsLinkEvent::Link(nsid, event)),
    }
}

/// Passes the messages of the next datagram to `each`, with the namespace that they refer to.
fn receive(socket: &Socket, mut each: impl FnMut(Nsid, Message)) -> Result<(), Errno> {
    let mut space = [MaybeUninit::<u8>::uninit(); DATAGRAM_MAX];
    let mut control = [0u64; 16];
    // SAFETY: K9: both structures consist of integers and pointers.
    let (mut sender, mut header): (libc::sockaddr_nl, libc::msghdr) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut part = libc::iovec { iov_base: space.as_mut_ptr().cast(), iov_len: space.len() };
    header.msg_name = (&raw mut sender).cast();
    header.msg_namelen = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: K1: the header contains addresses and sizes of local arrays.
    let got =
        unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT | libc::MSG_TRUNC) };
    let Ok(length) = usize::try_from(got) else {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    };
    // Other processes can also send here, see `netlink`: ignored.
    if sender.nl_pid != 0 {
        return Ok(());
    }
    if length > space.len() || header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return Err(Errno::MSGSIZE);
    }
    // SAFETY: K1: the kernel has written `length` bytes, at most the size of `space` (just checked).
    let bytes = unsafe { std::slice::from_raw_parts(space.as_ptr().cast::<u8>(), length) };
    let nsid = nsid_of_header(&header);
    messages(bytes, |message| each(nsid, Message { kind: message.message_type(), body: message.payload() }));
    Ok(())
}

/// Returns the namespace of a datagram from its control message; datagrams of the socket's own namespace have none.
fn nsid_of_header(header: &libc::msghdr) -> Nsid {
    // SAFETY: K1: `recvmsg` has written the header, and its control buffer is a local of the caller.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !at.is_null() {
        // SAFETY: K1, K5: the macros return headers that lie completely in the control buffer; the value is an int.
        let (head, value) = unsafe { (at.read_unaligned(), libc::CMSG_DATA(at).cast::<i32>().read_unaligned()) };
        if (head.cmsg_level, head.cmsg_type) == (libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID) {
            return Nsid::Other(value);
        }
        // SAFETY: K1: as above.
        at = unsafe { libc::CMSG_NXTHDR(header, at) };
    }
    Nsid::Own
}
