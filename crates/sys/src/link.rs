// SPDX-License-Identifier: BSD-2-Clause
//! Network interfaces: their properties, and notifications of changes.
//!
//! Every function uses the calling thread's network namespace at the time of the call; a [`LinkWatch`] stays with the
//! namespace that it was created in. Only [`veth`], [`set_rss`], [`ntuple`] and [`set_offloads`] change an interface or
//! need a privilege. Unknown attributes are skipped, so that interfaces of newer kernels can be read.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::tuning::LINK_LIST_TRIES;

mod ethtool;
mod hardware;
mod netlink;
mod netns_watch;
mod nft;
pub mod ntuple;
mod offloads;
mod route;
mod rss;
mod usage;
pub mod veth;
#[cfg(feature = "bpf")]
mod xdp;

pub use ethtool::{ChannelSettings, Channels, DriverInfo, channel_settings, channels, driver, set_combined_channels};
pub use hardware::{RingSizes, Timestamping, numa_node, renegotiate, ring_sizes, set_ring_sizes, timestamping};
use netlink::{Message, Socket, attributes, number, push_attribute, text};
pub use netns_watch::{NetnsLinkEvent, NetnsLinkWatch, Nsid};
pub use nft::{disconnect, disconnect_until_undone, is_closed_name, set_closed_name, undo_disconnect};
pub use offloads::{
    ActiveOffload, OffloadKind, Offloads, active_of, active_offloads, changeable_offloads, disable_offloads,
    set_offloads, still_active,
};
pub use route::default_routes;
pub use rss::{Rss, rss, set_rss};
pub use usage::{Usage, usage};
#[cfg(feature = "bpf")]
pub(crate) use xdp::{XdpChange, change_xdp};

/// Bytes of `struct ifinfomsg`, the header of every message about an interface.
const IFINFOMSG: usize = 16;
/// Most bytes of an interface's name; longer ones are alternative names.
const NAME_MAX: usize = libc::IFNAMSIZ - 1;
/// Most bytes of an alternative name (`ALTIFNAMSIZ - 1`).
const ALT_NAME_MAX: usize = 127;

/// Offsets of `rx_packets`, `tx_packets` and `tx_dropped` in `struct rtnl_link_stats64` (linux/if_link.h).
const STATS64_RX_PACKETS: usize = 0;
const STATS64_TX_PACKETS: usize = size_of::<u64>();
const STATS64_TX_DROPPED: usize = 7 * size_of::<u64>();

/// `IFLA_TUN_VNET_HDR` of linux/if_link.h: one byte.
const TUN_VNET_HDR: u16 = 5;

/// Attributes in `IFLA_XDP` (linux/if_link.h).
const XDP_ATTACHED: u16 = 2;
const XDP_PROG_ID: u16 = 4;
const XDP_DRV_PROG_ID: u16 = 5;
const XDP_HW_PROG_ID: u16 = 7;

/// The generic netlink family of interface features, its request, and its attributes (linux/netdev.h).
const NETDEV_FAMILY: &str = "netdev";
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
/// Bytes of `struct genlmsghdr`: command, version, two reserved.
const GENLMSGHDR: usize = 4;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Link {
    /// The kernel's index, unique in the network namespace while the interface exists.
    pub index: u32,
    /// 1 to 15 bytes; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// Most bytes of a packet, the Ethernet header excluded.
    pub mtu: u32,
    /// Whether it is up (`IFF_UP`).
    pub up: bool,
    /// Whether it is up and has a carrier (`IFF_LOWER_UP`).
    pub carrier: bool,
    /// Its MAC address, all zero for `lo`; `None` for an interface that is not Ethernet.
    pub mac: Option<[u8; 6]>,
    /// `veth`, `tun`, `bridge` and so on; `None` for hardware and for `lo`.
    pub kind: Option<String>,
    /// Whether its frames come with a virtio-net header (a tap, of a virtual machine for instance), which may leave
    /// checksums and segmentation to the receiver.
    pub has_vnet_header: bool,
    /// The XDP program that is attached.
    pub xdp: Option<AttachedXdp>,
}

impl Link {
    /// Whether XDP programs may see frames of which a part is beside the bytes, for a reason that no offload of this
    /// interface changes: the writer of a tap has left checksums or segmentation, as the stack does on `lo`, or an
    /// interface below (of a bridge, a bond, a macvlan, a tunnel) has taken the VLAN tag out or merged segments.
    pub fn receives_unfinished_frames(&self) -> bool {
        let is_loopback = self.mac == Some([0; 6]);
        is_loopback || self.has_vnet_header || !matches!(self.kind.as_deref(), None | Some("veth" | "tun" | "dummy"))
    }

    /// Whether frames that a native XDP program redirects can reach AF_XDP sockets of this interface. The program of a
    /// bond or team runs at its members, and a socket accepts only frames from queues of its own interface.
    pub fn redirects_natively(&self) -> bool {
        !matches!(self.kind.as_deref(), Some("bond" | "team"))
    }
}

/// An XDP program that is attached to an interface, by any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AttachedXdp {
    /// Mode in which it runs.
    pub mode: AttachedMode,
    /// The kernel's program id, as `bpftool prog` shows it; with several programs that of the fastest mode.
    pub prog_id: u32,
}

/// Mode in which an attached XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AttachedMode {
    /// In the driver.
    Native,
    /// Before the network stack.
    Generic,
    /// In the hardware.
    Hardware,
    /// Several programs, in different modes.
    Several,
}

impl AttachedMode {
    /// Returns the mode's name.
    pub fn as_str(self) -> &'static str {
        match self {
            AttachedMode::Native => "native",
            AttachedMode::Generic => "generic",
            AttachedMode::Hardware => "hardware",
            AttachedMode::Several => "several",
        }
    }

    /// Returns the option of `ip link set dev IF` for this mode, for instance to detach such a program.
    pub fn ip_option(self) -> &'static str {
        match self {
            AttachedMode::Native | AttachedMode::Several => "xdp",
            AttachedMode::Generic => "xdpgeneric",
            AttachedMode::Hardware => "xdpoffload",
        }
    }
}

/// XDP features of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct XdpFeatures {
    /// Programs run in the driver: pass, drop, transmit back.
    pub basic: bool,
    /// They may redirect frames to other interfaces and to sockets.
    pub redirect: bool,
    /// It accepts frames that are redirected to it (`ndo_xdp_xmit`).
    pub xmit: bool,
    /// AF_XDP sockets may exchange buffers with the device without a copy.
    pub zerocopy: bool,
    /// Programs may run in the hardware.
    pub hw_offload: bool,
    /// Received frames may span several buffers.
    pub rx_sg: bool,
    /// Frames that are redirected to it may span several buffers.
    pub xmit_sg: bool,
    /// Most buffers of a zero-copy frame; 1 if the kernel does not report it.
    pub zc_max_segs: u32,
}

/// Returns the interface of this name, which may be an alternative name.
///
/// # Errors
/// No netlink socket can be created.
pub fn by_name(name: &str) -> io::Result<Option<Link>> {
    if name.is_empty() || name.len() > ALT_NAME_MAX || name.contains('\0') {
        return Ok(None);
    }
    if is_absent(name) {
        return Ok(None);
    }
    let kind = if name.len() > NAME_MAX { libc::IFLA_ALT_IFNAME } else { libc::IFLA_IFNAME };
    let mut body = ifinfomsg(0);
    push_attribute(&mut body, kind, &[name.as_bytes(), &[0]].concat());
    one(body)
}

/// Whether the calling thread's network namespace surely has no interface of this name. One of more than 15 bytes may
/// be an alternative name of any. Most names that are looked up are a pipe's parent, and of no interface. A netlink
/// request takes the kernel's lock of all interfaces of all namespaces, which any user who makes some may hold for
/// long: while six processes made and removed pairs of veth, it took 50 ms at the 99th percentile, and this 4 ms.
pub fn is_absent(name: &str) -> bool {
    if name.is_empty() || name.len() > NAME_MAX {
        return name.is_empty();
    }
    let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None) else {
        return false;
    };
    let mut field = [0_u8; NAME_MAX + 1];
    field[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: K1, K5: SO_BINDTODEVICE reads at most `field.len()` bytes of `field`, which outlives the call.
    let bound = unsafe {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
        libc::setsockopt(socket.as_raw_fd(), level, option, field.as_ptr().cast(), field.len() as libc::socklen_t)
    };
    // Other errors say nothing about the interface.
    bound != 0 && Errno::from_io_error(&io::Error::last_os_error()) == Some(Errno::NODEV)
}

/// Whether the network namespace of a socket has an interface of this name, or of this alternative name. Needs no
/// privilege, and not the kernel's lock of all interfaces. `None`: the kernel does not tell: the name has more than 15
/// bytes, or a colon, from which on the kernel ignores it.
pub fn exists_at(socket: impl AsFd, name: &str) -> Option<bool> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains([':', '\0']) {
        return None;
    }
    // SAFETY: K9.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    // SAFETY: K1, K5: SIOCGIFINDEX reads and writes one `ifreq`, which outlives the call.
    let status = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCGIFINDEX, &raw mut request) };
    match Errno::from_io_error(&io::Error::last_os_error()) {
        _ if status == 0 => Some(true),
        Some(Errno::NODEV) => Some(false),
        _ => None,
    }
}

/// Returns the interface of this index.
///
/// # Errors
/// As [`by_name`].
pub fn by_index(index: u32) -> io::Result<Option<Link>> {
    if index == 0 || i32::try_from(index).is_err() {
        return Ok(None);
    }
    one(ifinfomsg(index))
}

/// The kernel's counts of an interface's frames since it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FrameCounts {
    /// Frames that it received.
    pub received: u64,
    /// Frames that it was given to send and dropped, for want of a carrier for instance.
    pub tx_dropped: u64,
    /// Its MTU at this moment.
    pub mtu: u32,
}

/// Returns the counts of interface `index`; `None` if there is no such interface.
///
/// # Errors
/// As [`by_name`].
pub fn frame_counts(index: u32) -> io::Result<Option<FrameCounts>> {
    let mut counts = FrameCounts::default();
    let result = Socket::route(0)?.request(libc::RTM_GETLINK, &ifinfomsg(index), |message| {
        for (attribute, value) in attributes(message.body.get(IFINFOMSG..).unwrap_or_default()) {
            match attribute {
                libc::IFLA_STATS64 => {
                    counts.received = stats64(value, STATS64_RX_PACKETS);
                    counts.tx_dropped = stats64(value, STATS64_TX_DROPPED);
                }
                libc::IFLA_MTU => counts.mtu = number(value).unwrap_or(0),
                _ => {}
            }
        }
    });
    match result {
        Err(Errno::NODEV) => Ok(None),
        result => Ok(result.map(|()| Some(counts))?),
    }
}

/// Returns a count of `IFLA_STATS64`, by its offset.
fn stats64(value: &[u8], at: usize) -> u64 {
    value.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_ne_bytes)
}

/// Returns all interfaces, in unspecified order.
///
/// # Errors
/// As [`by_name`].
pub fn all() -> io::Result<Vec<Link>> {
    list(libc::RTEXT_FILTER_SKIP_STATS, link_of)
}

/// Returns what `read` finds in the messages about all interfaces of the calling thread's namespace, without what
/// `filter` leaves out (`IFLA_EXT_MASK`).
fn list<T>(filter: libc::c_int, mut read: impl FnMut(Message) -> Option<T>) -> io::Result<Vec<T>> {
    let socket = Socket::route(0)?;
    let mut found = Vec::new();
    for _ in 0..LINK_LIST_TRIES {
        found.clear();
        let mut body = ifinfomsg(0);
        push_attribute(&mut body, libc::IFLA_EXT_MASK, &filter.to_ne_bytes());
        if socket.list(libc::RTM_GETLINK, &body, |message| found.extend(read(message)))? {
            break;
        }
    }
    Ok(found)
}

/// Sends `RTM_GETLINK` with `body` and returns the interface of the reply.
fn one(mut body: Vec<u8>) -> io::Result<Option<Link>> {
    push_attribute(&mut body, libc::IFLA_EXT_MASK, &libc::RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
    let mut found = None;
    match Socket::route(0)?.request(libc::RTM_GETLINK, &body, |message| found = link_of(message)) {
        Err(Errno::NODEV) => Ok(None),
        result => Ok(result.map(|()| found)?),
    }
}

/// Builds a `struct ifinfomsg` that selects an interface.
fn ifinfomsg(index: u32) -> Vec<u8> {
    let mut header = vec![0; IFINFOMSG];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header
}

/// As [`ifinfomsg`], with flags to change: those in `mask` are set to their values in `flags`.
fn ifinfomsg_with_flags(index: u32, flags: u32, mask: u32) -> Vec<u8> {
    let mut header = ifinfomsg(index);
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&mask.to_ne_bytes());
    header
}

/// Returns index and flags of the interface in a message; `None` if the message describes the interface as a bridge
/// port.
fn header_of(body: &[u8]) -> Option<(u32, u32)> {
    let family = *body.first()?;
    let word = |at: usize| number(body.get(at..at + 4)?);
    (i32::from(family) == libc::AF_UNSPEC).then_some((word(4)?, word(8)?))
}

/// Returns the interface that a message describes; `None` for another kind of message, or for an event of a wireless
/// driver, which contains no description.
fn link_of(message: Message) -> Option<Link> {
    if message.kind != libc::RTM_NEWLINK {
        return None;
    }
    let (index, flags) = header_of(message.body)?;
    let has = |flag: libc::c_int| flags & flag as u32 != 0;
    let (up, carrier) = (has(libc::IFF_UP), has(libc::IFF_LOWER_UP));
    let (mut name, mut mtu, mut mac, mut kind, mut xdp) = (None, None, None, None, None);
    let mut has_vnet_header = false;
    for (attribute, value) in attributes(message.body.get(IFINFOMSG..)?) {
        match attribute {
            libc::IFLA_IFNAME => name = Some(text(value)),
            libc::IFLA_MTU => mtu = number(value),
            libc::IFLA_ADDRESS => mac = value.try_into().ok(),
            libc::IFLA_LINKINFO => {
                let info = |wanted| attributes(value).find(|&(a, _)| a == wanted).map(|(_, value)| value);
                kind = info(libc::IFLA_INFO_KIND).map(text);
                let of_tun = info(libc::IFLA_INFO_DATA).filter(|_| kind.as_deref() == Some("tun")).unwrap_or_default();
                has_vnet_header = attributes(of_tun).any(|(a, value)| a == TUN_VNET_HDR && value == [1]);
            }
            libc::IFLA_XDP => xdp = attached_xdp(value),
            libc::IFLA_WIRELESS => return None,
            _ => {}
        }
    }
    Some(Link { index, name: name?, mtu: mtu?, up, carrier, mac, kind, has_vnet_header, xdp })
}

/// Decodes `IFLA_XDP`.
fn attached_xdp(value: &[u8]) -> Option<AttachedXdp> {
    let (mut mode, mut prog_id, mut others) = (None, None, [None; 3]);
    for (attribute, value) in attributes(value) {
        match attribute {
            XDP_ATTACHED => {
                mode = match value.first()? {
                    1 => Some(AttachedMode::Native),
                    2 => Some(AttachedMode::Generic),
                    3 => Some(AttachedMode::Hardware),
                    4 => Some(AttachedMode::Several),
                    _ => None,
                }
            }
            XDP_PROG_ID => prog_id = number(value),
            XDP_DRV_PROG_ID..=XDP_HW_PROG_ID => others[usize::from(attribute - XDP_DRV_PROG_ID)] = number(value),
            _ => {}
        }
    }
    let [driver, stack, hardware] = others;
    Some(AttachedXdp { mode: mode?, prog_id: prog_id.or(hardware).or(driver).or(stack)? })
}

/// Returns the XDP features of interface `index`; `None` if the kernel does not report them (before 6.3).
///
/// # Errors
/// `ENODEV`: no such interface.
pub fn xdp_features(index: u32) -> io::Result<Option<XdpFeatures>> {
    let socket = Socket::generic()?;
    let Some(family) = family(&socket, NETDEV_FAMILY)? else { return Ok(None) };
    let mut body = vec![NETDEV_CMD_DEV_GET, 1, 0, 0];
    push_attribute(&mut body, NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
    let mut features = None;
    let reply = socket.request(family, &body, |message| {
        features = message.body.get(GENLMSGHDR..).map(features_of);
    });
    match reply {
        // The kernel answers index 0 with ERANGE.
        Err(Errno::RANGE | Errno::INVAL) => Err(Errno::NODEV.into()),
        reply => Ok(reply.map(|()| features)?),
    }
}

/// Returns the message type of a generic netlink family; `None` if there is no such family.
fn family(socket: &Socket, name: &str) -> io::Result<Option<u16>> {
    let mut body = vec![libc::CTRL_CMD_GETFAMILY as u8, 1, 0, 0];
    push_attribute(&mut body, libc::CTRL_ATTR_FAMILY_NAME as u16, &[name.as_bytes(), &[0]].concat());
    let mut id = None;
    let reply = socket.request(libc::GENL_ID_CTRL as u16, &body, |message| {
        let found = attributes(message.body.get(GENLMSGHDR..).unwrap_or_default())
            .find(|&(attribute, _)| attribute == libc::CTRL_ATTR_FAMILY_ID as u16);
        id = found.and_then(|(_, value)| value.try_into().ok()).map(u16::from_ne_bytes);
    });
    match reply {
        Err(Errno::NOENT) => Ok(None),
        reply => Ok(reply.map(|()| id)?),
    }
}

fn features_of(dev: &[u8]) -> XdpFeatures {
    let (mut bits, mut zc_max_segs) = (0, 1);
    for (attribute, value) in attributes(dev) {
        match attribute {
            NETDEV_A_DEV_XDP_FEATURES => bits = value.try_into().map_or(0, u64::from_ne_bytes),
            NETDEV_A_DEV_XDP_ZC_MAX_SEGS => zc_max_segs = number(value).unwrap_or(1),
            _ => {}
        }
    }
    let has = |bit: u32| bits & (1 << bit) != 0;
    XdpFeatures {
        basic: has(0),
        redirect: has(1),
        xmit: has(2),
        zerocopy: has(3),
        hw_offload: has(4),
        rx_sg: has(5),
        xmit_sg: has(6),
        zc_max_segs,
    }
}

/// A change of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The interface is new, or a property may have changed; these are its properties at that time.
    Changed(Link),
    /// The interface was deleted, or moved to another network namespace. Its index may be reused.
    Gone {
        /// Its index, in the watched namespace.
        index: u32,
    },
    /// Events were lost: list all interfaces again. Later changes are reported as usual.
    Lost,
}

/// Reports changes of interfaces. Its socket is for an event loop: readable when there are events.
///
/// The kernel does not report that an XDP program is attached or detached as a BPF link (Linux 6.18).
#[derive(Debug)]
pub struct LinkWatch(Socket);

impl LinkWatch {
    /// Starts to watch the interfaces of the calling thread's network namespace.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<LinkWatch> {
        Ok(LinkWatch(Socket::route(libc::RTMGRP_LINK as u32)?))
    }

    /// The watch of a socket that another process has created by [`LinkWatch::new`].
    pub fn from_fd(fd: OwnedFd) -> LinkWatch {
        LinkWatch(Socket::from_fd(fd))
    }

    /// Appends all events since the last call, in order. Never blocks.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn read(&mut self, events: &mut Vec<LinkEvent>) -> io::Result<()> {
        let before = events.len();
        let mut lost = false;
        loop {
            match self.0.receive(|message| events.extend(event_of(message))) {
                Ok(()) => {}
                Err(Errno::AGAIN) => break,
                // The kernel drops events until the queued ones, which are older, have been read.
                Err(Errno::NOBUFS | Errno::MSGSIZE) => lost = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if lost {
            events.truncate(before);
            events.push(LinkEvent::Lost);
        }
        Ok(())
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn event_of(message: Message) -> Option<LinkEvent> {
    match message.kind {
        libc::RTM_DELLINK => header_of(message.body).map(|(index, _)| LinkEvent::Gone { index }),
        _ => link_of(message).map(LinkEvent::Changed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_without_an_interface_are_absent() {
        assert!(!is_absent("lo") && by_name("lo").unwrap().is_some());
        for name in ["no-interface", "fifteen-letters"] {
            assert!(is_absent(name) && by_name(name).unwrap().is_none(), "{name}");
        }
    }
}
