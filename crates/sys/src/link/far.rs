//! News from other network namespaces, without keeping them alive.
//!
//! A socket of a namespace, as a [`super::Watch`] has, is a reason for that namespace, and all that is in it, to stay. Here
//! the socket is our own namespace's: the other one gets a number in ours (`RTM_NEWNSID`), by which the kernel hands us its
//! news (`NETLINK_LISTEN_ALL_NSID`), the news of its end among them. The number stays until that end.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::netlink::{DATAGRAM_MOST, Message, Socket, attributes, messages, number, push_attribute};
use super::{IFINFOMSG, LinkEvent, event_of, ifinfomsg, link_of};
use crate::netns::Netns;

/// Of linux/net_namespace.h.
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// Bytes of a `struct rtgenmsg`, padded.
const RTGENMSG: usize = 4;
/// The namespace that an interface's message is to be about (linux/if_link.h).
const IFLA_TARGET_NETNSID: u16 = 46;

/// A network namespace, as seen from ours: our own, or another by the number that it has here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nsid {
    /// The one that the watch was made in.
    Own,
    /// Another one.
    Other(i32),
}

/// What happened in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FarEvent {
    /// Something about an interface there.
    Link(Nsid, LinkEvent),
    /// The namespace is gone, and all its interfaces. Its number may be used again.
    Gone(Nsid),
    /// Events were lost, of any namespace.
    Lost,
}

/// Reports changes of the interfaces of several namespaces.
#[derive(Debug)]
pub struct FarWatch {
    socket: Socket,
    own: u64,
}

impl FarWatch {
    /// Made in the calling thread's namespace, whose own interfaces it reports, too.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_BROADCAST`; or the kernel's.
    pub fn new() -> io::Result<FarWatch> {
        let socket = Socket::route(libc::RTMGRP_LINK as u32)?;
        set_option(&socket, libc::NETLINK_LISTEN_ALL_NSID, 1)?;
        set_option(&socket, libc::NETLINK_ADD_MEMBERSHIP, libc::RTNLGRP_NSID as libc::c_int)?;
        Ok(FarWatch { socket, own: Netns::current()?.id() })
    }

    /// Reports what happens in `netns` from now on, too. To be called from the namespace that the watch was made in.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`; or the kernel's.
    pub fn add(&self, netns: &Netns) -> io::Result<Nsid> {
        if netns.id() == self.own {
            return Ok(Nsid::Own);
        }
        let asking = Socket::route(0)?;
        let mut new = naming(netns);
        push_attribute(&mut new, NETNSA_NSID, &(-1i32).to_ne_bytes());
        match asking.ask(libc::RTM_NEWNSID, &new, |_| ()) {
            // It has one.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        number_of(&asking, netns)?.map(Nsid::Other).ok_or_else(|| Errno::NOENT.into())
    }

    /// Whether there is an interface of this index. A namespace that is gone has none.
    ///
    /// # Errors
    /// The kernel's.
    pub fn exists(&self, nsid: Nsid, index: u32) -> io::Result<bool> {
        let mut body = ifinfomsg(index);
        if let Nsid::Other(nsid) = nsid {
            push_attribute(&mut body, IFLA_TARGET_NETNSID, &nsid.to_ne_bytes());
        }
        push_attribute(&mut body, libc::IFLA_EXT_MASK, &libc::RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        let mut found = false;
        match Socket::route(0)?.ask(libc::RTM_GETLINK, &body, |message| found |= link_of(message).is_some()) {
            Err(Errno::NODEV | Errno::INVAL) => Ok(false),
            result => Ok(result.map(|()| found)?),
        }
    }

    /// Appends all that has happened since the last call, in order. Never waits.
    ///
    /// # Errors
    /// None that is not the kernel's fault.
    pub fn read(&mut self, events: &mut Vec<FarEvent>) -> io::Result<()> {
        let before = events.len();
        let mut lost = false;
        loop {
            match receive(&self.socket, |nsid, message| events.extend(far_event_of(nsid, message))) {
                Ok(()) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::NOBUFS | Errno::MSGSIZE) => lost = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if lost {
            events.truncate(before);
            events.push(FarEvent::Lost);
        }
        Ok(())
    }
}

impl AsFd for FarWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn set_option(socket: &Socket, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both options' value is an int, which lives during the call.
    let set = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_NETLINK, option, (&raw const value).cast(), bytes)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A message about the number of a namespace.
fn naming(netns: &Netns) -> Vec<u8> {
    let mut body = vec![0; RTGENMSG];
    push_attribute(&mut body, NETNSA_FD, &netns.as_fd().as_raw_fd().to_ne_bytes());
    body
}

/// The number that a namespace has in that of the socket, if it has one.
pub(super) fn number_of(socket: &Socket, netns: &Netns) -> Result<Option<i32>, Errno> {
    let mut found = None;
    socket.ask(libc::RTM_GETNSID, &naming(netns), |message| found = nsid_of(message.body))?;
    Ok(found)
}

/// The number in a message about the numbers of namespaces.
fn nsid_of(body: &[u8]) -> Option<i32> {
    let (_, value) = attributes(body.get(RTGENMSG..)?).find(|&(kind, _)| kind == NETNSA_NSID)?;
    number(value).map(u32::cast_signed).filter(|&nsid| nsid >= 0)
}

fn far_event_of(nsid: Nsid, message: Message) -> Option<FarEvent> {
    match message.kind {
        libc::RTM_NEWNSID => None,
        // Ours are about the numbers that we gave; what others gave is nothing to us.
        libc::RTM_DELNSID if nsid == Nsid::Own => nsid_of(message.body).map(|gone| FarEvent::Gone(Nsid::Other(gone))),
        libc::RTM_DELNSID => None,
        _ if message.body.len() < IFINFOMSG => None,
        _ => event_of(message).map(|event| FarEvent::Link(nsid, event)),
    }
}

/// Hands the messages of the next datagram to `each`, with the namespace that they are about.
fn receive(socket: &Socket, mut each: impl FnMut(Nsid, Message)) -> Result<(), Errno> {
    let mut space = [MaybeUninit::<u8>::uninit(); DATAGRAM_MOST];
    let mut control = [0u64; 16];
    // SAFETY: all of these are structures for which zero is a value.
    let (mut sender, mut header): (libc::sockaddr_nl, libc::msghdr) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut part = libc::iovec { iov_base: space.as_mut_ptr().cast(), iov_len: space.len() };
    header.msg_name = (&raw mut sender).cast();
    header.msg_namelen = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header names memory of ours and how much of it there is.
    let got =
        unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT | libc::MSG_TRUNC) };
    let Ok(length) = usize::try_from(got) else {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    };
    // As in `netlink`: other processes may write here.
    if sender.nl_pid != 0 {
        return Ok(());
    }
    if length > space.len() || header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return Err(Errno::MSGSIZE);
    }
    // SAFETY: the kernel wrote `length` bytes, which is at most what there is.
    let bytes = unsafe { std::slice::from_raw_parts(space.as_ptr().cast::<u8>(), length) };
    let nsid = told_nsid(&header);
    messages(bytes, |message| each(nsid, Message { kind: message.message_type(), body: message.payload() }));
    Ok(())
}

/// The number that came beside a datagram; none does with what is about our own namespace.
fn told_nsid(header: &libc::msghdr) -> Nsid {
    // SAFETY: the header is as `recvmsg` left it, and its control memory lives in the caller.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !at.is_null() {
        // SAFETY: the macros return what lies, whole, within the control memory; a number of this kind is an int.
        let (head, value) = unsafe { (at.read_unaligned(), libc::CMSG_DATA(at).cast::<i32>().read_unaligned()) };
        if (head.cmsg_level, head.cmsg_type) == (libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID) {
            return Nsid::Other(value);
        }
        // SAFETY: as above.
        at = unsafe { libc::CMSG_NXTHDR(header, at) };
    }
    Nsid::Own
}
