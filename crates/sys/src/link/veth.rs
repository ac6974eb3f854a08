//! Cables: pairs of interfaces where what one sends the other receives.
//!
//! The only part of this module that changes interfaces: it makes those that the daemon needs of its own, and removes
//! them. Needs `CAP_NET_ADMIN` in the namespaces that are touched.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rustix::io::Errno;

use super::far::number_of;
use super::netlink::{Socket, attributes, number, push_attribute};
use super::{IFINFOMSG, NAME_MOST, finish_checksums, ifinfomsg, in_flags, keep_tags};
use crate::netns::Netns;

/// `VETH_INFO_PEER` of linux/veth.h.
const VETH_INFO_PEER: u16 = 1;

/// A cable to be laid.
#[derive(Clone, Copy, Debug)]
pub struct Veth<'a> {
    /// The near end, in the calling thread's namespace: 1 to 15 bytes.
    pub name: &'a str,
    /// The far end.
    pub peer: &'a str,
    /// Where the far end is; `None`: in the same namespace.
    pub peer_netns: Option<BorrowedFd<'a>>,
    /// Queues of each end and direction, at least 1.
    pub queues: u32,
}

/// `IFLA_INET6_ADDR_GEN_MODE`, and its value `IN6_ADDR_GEN_MODE_NONE`, of linux/if_link.h.
const INET6_ADDR_GEN_MODE: u16 = 8;
const NO_ADDRESSES: u8 = 1;

/// Lays a cable. Both ends are down.
///
/// # Errors
/// `EEXIST`: a name is taken; `EPERM`: needs `CAP_NET_ADMIN`; `EINVAL`: a name that no interface can have;
/// `EOPNOTSUPP`: the kernel has no veth.
pub fn lay(veth: Veth<'_>) -> io::Result<()> {
    let name = |name: &str| match name.len() {
        1..=NAME_MOST if !name.contains('\0') => Ok([name.as_bytes(), &[0]].concat()),
        _ => Err(io::Error::from(Errno::INVAL)),
    };
    let end = |body: &mut Vec<u8>, its: &str| -> io::Result<()> {
        push_attribute(body, libc::IFLA_IFNAME, &name(its)?);
        push_attribute(body, libc::IFLA_NUM_TX_QUEUES, &veth.queues.max(1).to_ne_bytes());
        push_attribute(body, libc::IFLA_NUM_RX_QUEUES, &veth.queues.max(1).to_ne_bytes());
        Ok(())
    };
    let mut peer = ifinfomsg(0);
    end(&mut peer, veth.peer)?;
    if let Some(netns) = veth.peer_netns {
        push_attribute(&mut peer, libc::IFLA_NET_NS_FD, &netns.as_raw_fd().to_ne_bytes());
    }
    let (mut data, mut info, mut body) = (Vec::new(), Vec::new(), ifinfomsg(0));
    push_attribute(&mut data, VETH_INFO_PEER, &peer);
    push_attribute(&mut info, libc::IFLA_INFO_KIND, b"veth\0");
    push_attribute(&mut info, libc::IFLA_INFO_DATA, &data);
    end(&mut body, veth.name)?;
    push_attribute(&mut body, libc::IFLA_LINKINFO, &info);
    Ok(Socket::route(0)?.change(libc::RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &body)?)
}

/// The number that the other end of cable `index` has in `there`, another namespace than the calling thread's; `None`: no
/// such interface, or it leads elsewhere. Either end may have been moved since the cable was laid.
///
/// # Errors
/// The kernel's.
pub fn end_in(index: u32, there: &Netns) -> io::Result<Option<u32>> {
    let socket = Socket::route(0)?;
    let mut body = ifinfomsg(index);
    push_attribute(&mut body, libc::IFLA_EXT_MASK, &libc::RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
    let (mut end, mut nsid) = (None, None);
    let asked = socket.ask(libc::RTM_GETLINK, &body, |message| {
        for (attribute, value) in attributes(message.body.get(IFINFOMSG..).unwrap_or_default()) {
            match attribute {
                libc::IFLA_LINK => end = number(value),
                libc::IFLA_LINK_NETNSID => nsid = number(value).map(u32::cast_signed),
                _ => {}
            }
        }
    });
    match asked {
        Err(Errno::NODEV) => return Ok(None),
        result => result?,
    }
    // To have told the number of the other namespace the kernel has given it one.
    let leads_there = nsid.is_some() && nsid == number_of(&socket, there)?;
    Ok(end.filter(|_| leads_there))
}

/// Removes interface `index`, of a kind that can be removed; the other end of a cable goes with it.
///
/// # Errors
/// `ENODEV`: no such interface; `EOPNOTSUPP`: not of such a kind; `EPERM`: needs `CAP_NET_ADMIN`.
pub fn remove(index: u32) -> io::Result<()> {
    Ok(Socket::route(0)?.change(libc::RTM_DELLINK, 0, &ifinfomsg(index))?)
}

/// Switches interface `index` on.
///
/// # Errors
/// `ENODEV`: no such interface; `EPERM`: needs `CAP_NET_ADMIN`.
pub fn set_up(index: u32) -> io::Result<()> {
    let up = libc::IFF_UP as u32;
    Ok(Socket::route(0)?.change(libc::RTM_NEWLINK, 0, &in_flags(index, up, up))?)
}

/// Makes interface `index`, which is called `name`, carry what others put there, and nothing else: frames of any length,
/// whole, with their checksums and VLAN tags in them. The stack does not talk there by itself: no addresses, no ARP.
///
/// # Errors
/// `ENODEV`: no such interface; `EPERM`: needs `CAP_NET_ADMIN`; `EINVAL`: not an end of a cable.
pub fn make_bare(index: u32, name: &str) -> io::Result<()> {
    finish_checksums(name)?;
    keep_tags(name)?;
    let no_arp = libc::IFF_NOARP as u32;
    let mut body = in_flags(index, no_arp, no_arp);
    push_attribute(&mut body, libc::IFLA_MTU, &u32::from(u16::MAX).to_ne_bytes());
    let socket = Socket::route(0)?;
    socket.change(libc::RTM_NEWLINK, 0, &body)?;
    let (mut inet6, mut families, mut body) = (Vec::new(), Vec::new(), ifinfomsg(index));
    push_attribute(&mut inet6, INET6_ADDR_GEN_MODE, &[NO_ADDRESSES]);
    push_attribute(&mut families, libc::AF_INET6 as u16, &inet6);
    push_attribute(&mut body, libc::IFLA_AF_SPEC, &families);
    match socket.change(libc::RTM_NEWLINK, 0, &body) {
        // A kernel without IPv6, or one that was told to do without.
        Err(Errno::AFNOSUPPORT | Errno::OPNOTSUPP) => Ok(()),
        other => Ok(other?),
    }
}
