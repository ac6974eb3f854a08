// SPDX-License-Identifier: BSD-2-Clause
//! Veth pairs: two interfaces, each of which receives the frames that the other one sends.
//!
//! Creates and deletes the interfaces that the daemon needs for itself. Needs `CAP_NET_ADMIN` in the namespaces
//! involved.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rustix::io::Errno;

use super::netlink::{Socket, attributes, number, push_attribute, text};
use super::netns_watch::{IFLA_TARGET_NETNSID, number_of};
use super::{
    IFINFOMSG, NAME_MAX, OffloadKind, STATS64_RX_PACKETS, STATS64_TX_PACKETS, disable_offloads, header_of, ifinfomsg,
    ifinfomsg_with_flags, list, stats64,
};
use crate::netns::Netns;

/// `VETH_INFO_PEER` of linux/veth.h.
const VETH_INFO_PEER: u16 = 1;

/// Parameters of a new veth pair.
#[derive(Clone, Copy, Debug)]
pub struct Veth<'a> {
    /// Name of the end in the calling thread's namespace: 1 to 15 bytes.
    pub name: &'a str,
    /// Name of its peer.
    pub peer: &'a str,
    /// Namespace of the peer; `None`: the same namespace.
    pub peer_netns: Option<BorrowedFd<'a>>,
    /// Queues of each end and direction, at least 1.
    pub queues: u32,
}

/// `IFLA_INET6_ADDR_GEN_MODE`, and its value `IN6_ADDR_GEN_MODE_NONE`, of linux/if_link.h.
const INET6_ADDR_GEN_MODE: u16 = 8;
const NO_ADDRESSES: u8 = 1;

/// Creates a veth pair. Both ends are down.
///
/// # Errors
/// `EEXIST`: a name is taken; `EPERM`: needs `CAP_NET_ADMIN`; `EINVAL`: a name that no interface can have;
/// `EOPNOTSUPP`: the kernel has no veth.
pub fn create(veth: Veth<'_>) -> io::Result<()> {
    let name = |name: &str| match name.len() {
        1..=NAME_MAX if !name.contains('\0') => Ok([name.as_bytes(), &[0]].concat()),
        _ => Err(io::Error::from(Errno::INVAL)),
    };
    let push_end = |body: &mut Vec<u8>, end: &str| -> io::Result<()> {
        push_attribute(body, libc::IFLA_IFNAME, &name(end)?);
        push_attribute(body, libc::IFLA_NUM_TX_QUEUES, &veth.queues.max(1).to_ne_bytes());
        push_attribute(body, libc::IFLA_NUM_RX_QUEUES, &veth.queues.max(1).to_ne_bytes());
        Ok(())
    };
    let mut peer = ifinfomsg(0);
    push_end(&mut peer, veth.peer)?;
    if let Some(netns) = veth.peer_netns {
        push_attribute(&mut peer, libc::IFLA_NET_NS_FD, &netns.as_raw_fd().to_ne_bytes());
    }
    let (mut data, mut info, mut body) = (Vec::new(), Vec::new(), ifinfomsg(0));
    push_attribute(&mut data, VETH_INFO_PEER, &peer);
    push_attribute(&mut info, libc::IFLA_INFO_KIND, b"veth\0");
    push_attribute(&mut info, libc::IFLA_INFO_DATA, &data);
    push_end(&mut body, veth.name)?;
    push_attribute(&mut body, libc::IFLA_LINKINFO, &info);
    Ok(Socket::route(0)?.change(libc::RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &body)?)
}

/// The other end of a veth pair, as seen from one end's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its interface index, in its own namespace.
    pub index: u32,
    /// The number of that namespace; `None`: the same namespace.
    nsid: Option<i32>,
}

impl Peer {
    /// Whether its namespace is that of the calling thread, which must be that of the other end.
    pub fn is_here(self) -> bool {
        self.nsid.is_none()
    }

    /// Whether its namespace is `netns`, another than the calling thread's, which must be that of the other end.
    ///
    /// # Errors
    /// The errors of netlink sockets.
    pub fn is_in(self, netns: &Netns) -> io::Result<bool> {
        // The kernel has assigned a number to the other namespace in order to report it.
        Ok(self.nsid.is_some() && self.nsid == number_of(&Socket::route(0)?, netns)?)
    }
}

/// Returns the peer of veth `index`; `None`: no such interface, or it has no peer. Either end may have been moved since
/// the pair was created.
///
/// # Errors
/// The errors of netlink sockets.
pub fn peer(index: u32) -> io::Result<Option<Peer>> {
    let mut body = ifinfomsg(index);
    push_attribute(&mut body, libc::IFLA_EXT_MASK, &libc::RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
    let (mut peer, mut nsid) = (None, None);
    let outcome = Socket::route(0)?.request(libc::RTM_GETLINK, &body, |message| {
        for (attribute, value) in attributes(message.body.get(IFINFOMSG..).unwrap_or_default()) {
            match attribute {
                libc::IFLA_LINK => peer = number(value),
                libc::IFLA_LINK_NETNSID => nsid = number(value).map(u32::cast_signed),
                _ => {}
            }
        }
    });
    match outcome {
        Err(Errno::NODEV) => Ok(None),
        result => Ok(result.map(|()| peer.map(|index| Peer { index, nsid }))?),
    }
}

/// Returns the index in `netns`, another namespace than the calling thread's, of the peer of veth `index`; `None`: no
/// such interface, or its peer is elsewhere.
///
/// # Errors
/// The errors of netlink sockets.
pub fn peer_index_in(index: u32, netns: &Netns) -> io::Result<Option<u32>> {
    match peer(index)? {
        Some(peer) if peer.is_in(netns)? => Ok(Some(peer.index)),
        _ => Ok(None),
    }
}

/// Deletes veth `index` of the calling thread's namespace, and its peer.
///
/// The request names the peer and the peer's namespace, which the kernel then keeps until both ends are deleted. If
/// that namespace ended meanwhile, Linux 6.18 would dereference a null pointer (`netdev_genl_dev_notify`, called by
/// `netdev_run_todo`) with its lock of all interfaces held. If it ends already the kernel deletes the pair by itself;
/// this waits for that, up to [`END_OF_PEER`].
///
/// # Errors
/// `ENODEV`: no such interface; `EOPNOTSUPP`: its kind cannot be deleted; `EPERM`: needs `CAP_NET_ADMIN`; `ETIMEDOUT`:
/// the peer's namespace has begun to end and the interface still exists.
pub fn delete(index: u32) -> io::Result<()> {
    let socket = Socket::route(0)?;
    let by_index = || socket.change(libc::RTM_DELLINK, 0, &ifinfomsg(index));
    let Some(mut found) = peer(index)? else { return Ok(by_index()?) };
    let began = Instant::now();
    loop {
        let Some(nsid) = found.nsid else { return Ok(by_index()?) };
        let mut body = ifinfomsg(found.index);
        push_attribute(&mut body, IFLA_TARGET_NETNSID, &nsid.to_ne_bytes());
        match socket.change(libc::RTM_DELLINK, 0, &body) {
            // The peer's namespace ends, or has another number since; or the peer moved.
            Err(Errno::INVAL | Errno::NODEV) => {}
            // No capability in the peer's namespace, which belongs to another user namespace.
            Err(Errno::ACCESS) => return Ok(by_index()?),
            result => return Ok(result?),
        }
        if began.elapsed() > END_OF_PEER {
            return Err(Errno::TIMEDOUT.into());
        }
        thread::sleep(Duration::from_millis(2));
        match peer(index)? {
            Some(again) => found = again,
            None => return Ok(()),
        }
    }
}

/// How long [`delete`] waits for the end of a namespace that has begun to end; milliseconds, if the kernel is not busy.
const END_OF_PEER: Duration = Duration::from_secs(5);

/// Gives interface `index` an alias: at most 255 bytes, which only people and programs like this one read.
///
/// # Errors
/// `ENODEV`: no such interface; `EINVAL`: a longer one; `EPERM`: needs `CAP_NET_ADMIN`.
pub fn set_alias(index: u32, alias: &str) -> io::Result<()> {
    let mut body = ifinfomsg(index);
    push_attribute(&mut body, libc::IFLA_IFALIAS, alias.as_bytes());
    Ok(Socket::route(0)?.change(libc::RTM_NEWLINK, 0, &body)?)
}

/// A veth among all of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aliased {
    /// Its index.
    pub index: u32,
    /// Its alias; may be empty.
    pub alias: String,
    /// Frames that it has received and sent since it exists.
    pub frames: u64,
}

/// Returns all veths of the calling thread's namespace.
///
/// # Errors
/// The errors of netlink sockets.
pub fn all_with_aliases() -> io::Result<Vec<Aliased>> {
    list(0, |message| aliased(message.body))
}

/// Returns the interface in a message, if it is a veth.
fn aliased(body: &[u8]) -> Option<Aliased> {
    let (index, _) = header_of(body)?;
    let (mut alias, mut frames, mut is_veth) = (String::new(), 0, false);
    for (attribute, value) in attributes(body.get(IFINFOMSG..)?) {
        match attribute {
            libc::IFLA_IFALIAS => alias = text(value),
            libc::IFLA_STATS64 => {
                frames = stats64(value, STATS64_RX_PACKETS).saturating_add(stats64(value, STATS64_TX_PACKETS));
            }
            libc::IFLA_LINKINFO => {
                is_veth = attributes(value).any(|(a, value)| a == libc::IFLA_INFO_KIND && text(value) == "veth");
            }
            _ => {}
        }
    }
    is_veth.then_some(Aliased { index, alias, frames })
}

/// Sets the MTU of interface `index`: its peer's longer frames are dropped.
///
/// # Errors
/// As [`set_up`]; `EINVAL`: more than it can have.
pub fn set_mtu(index: u32, mtu: u32) -> io::Result<()> {
    let mut body = ifinfomsg(index);
    push_attribute(&mut body, libc::IFLA_MTU, &mtu.to_ne_bytes());
    Ok(Socket::route(0)?.change(libc::RTM_NEWLINK, 0, &body)?)
}

/// Sets interface `index` up.
///
/// # Errors
/// `ENODEV`: no such interface; `EPERM`: needs `CAP_NET_ADMIN`.
pub fn set_up(index: u32) -> io::Result<()> {
    set_state(index, true)
}

/// Sets interface `index` up or down.
///
/// # Errors
/// As [`set_up`].
pub fn set_state(index: u32, up: bool) -> io::Result<()> {
    let flag = libc::IFF_UP as u32;
    let value = if up { flag } else { 0 };
    Ok(Socket::route(0)?.change(libc::RTM_NEWLINK, 0, &ifinfomsg_with_flags(index, value, flag))?)
}

/// Configures interface `index`, named `name`, to carry only frames that are sent to it, unchanged: any length, with
/// their checksums and VLAN tags. The network stack sends no frames of its own there: no addresses, no ARP.
///
/// # Errors
/// `ENODEV`: no such interface; `EPERM`: needs `CAP_NET_ADMIN`; `EINVAL`: not a veth.
pub fn configure_passthrough(index: u32, name: &str) -> io::Result<()> {
    disable_offloads(name, OffloadKind::Transmit)?;
    silence(index)
}

/// Has an end of a pair pass frames of every length, and its stack send none of its own.
///
/// # Errors
/// As [`configure_passthrough`].
pub fn silence(index: u32) -> io::Result<()> {
    let no_arp = libc::IFF_NOARP as u32;
    let socket = Socket::route(0)?;
    socket.change(libc::RTM_NEWLINK, 0, &ifinfomsg_with_flags(index, no_arp, no_arp))?;
    set_mtu(index, u16::MAX.into())?;
    let (mut inet6, mut families, mut body) = (Vec::new(), Vec::new(), ifinfomsg(index));
    push_attribute(&mut inet6, INET6_ADDR_GEN_MODE, &[NO_ADDRESSES]);
    push_attribute(&mut families, libc::AF_INET6 as u16, &inet6);
    push_attribute(&mut body, libc::IFLA_AF_SPEC, &families);
    match socket.change(libc::RTM_NEWLINK, 0, &body) {
        // A kernel without IPv6, or with IPv6 disabled.
        Err(Errno::AFNOSUPPORT | Errno::OPNOTSUPP) => Ok(()),
        other => Ok(other?),
    }
}
