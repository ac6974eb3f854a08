//! Network interfaces: what the kernel knows about them, and when that changes.
//!
//! All of it is about the calling thread's network namespace, at the moment of the call; a [`Watch`] stays with the
//! namespace that it was made in. Nothing here but [`veth`], [`set_rss`], [`ntuple`], [`finish_checksums`] and [`keep_tags`] changes an interface
//! or needs a privilege. Attributes that this module does not know are passed over, so that a newer kernel's interfaces are read as
//! well.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

mod ethtool;
mod far;
mod netlink;
pub mod ntuple;
mod route;
mod rss;
pub mod veth;

pub use ethtool::{
    ChannelSettings, Channels, DriverInfo, channel_settings, channels, driver, finish_checksums, keep_tags,
};
pub use far::{FarEvent, FarWatch, Nsid};
use netlink::{Message, Socket, attributes, number, push_attribute, text};
pub use route::default_routes;
pub use rss::{Rss, rss, set_rss};

/// Bytes of `struct ifinfomsg`, with which every message about an interface begins.
const IFINFOMSG: usize = 16;
/// Bytes of an interface's name at most; longer ones are alternative names.
const NAME_MOST: usize = libc::IFNAMSIZ - 1;
/// Bytes of an alternative name at most (`ALTIFNAMSIZ - 1`).
const ALT_NAME_MOST: usize = 127;
/// Tries at a list of interfaces that do not change meanwhile.
const TRIES: u32 = 10;

/// Members of `IFLA_XDP`, of linux/if_link.h.
const XDP_ATTACHED: u16 = 2;
const XDP_PROG_ID: u16 = 4;
const XDP_DRV_PROG_ID: u16 = 5;
const XDP_HW_PROG_ID: u16 = 7;

/// The generic netlink family of interfaces' abilities, its one request, and its attributes (linux/netdev.h).
const NETDEV_FAMILY: &str = "netdev";
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
/// Bytes of `struct genlmsghdr`: command, version, two reserved.
const GENLMSGHDR: usize = 4;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number for it, unique in its network namespace while it exists.
    pub index: u32,
    /// 1 to 15 bytes; others than UTF-8 are replaced.
    pub name: String,
    /// Bytes of the largest packet, the Ethernet header excluded.
    pub mtu: u32,
    /// Whether it is switched on (`IFF_UP`).
    pub up: bool,
    /// Whether it is switched on and the cable leads to somebody (`IFF_LOWER_UP`).
    pub carrier: bool,
    /// Its Ethernet address, all zero for `lo`; `None` for an interface that carries no Ethernet.
    pub mac: Option<[u8; 6]>,
    /// `veth`, `tun`, `bridge` and so on; `None` for hardware and for `lo`.
    pub kind: Option<String>,
    /// The XDP program that is attached.
    pub xdp: Option<AttachedXdp>,
}

/// An XDP program on an interface, whoever attached it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachedXdp {
    /// Where it runs.
    pub mode: AttachedMode,
    /// The kernel's number for it, as `bpftool prog` shows it; with several programs that of the fastest.
    pub prog_id: u32,
}

/// Where an attached XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachedMode {
    /// In the driver.
    Native,
    /// At the entrance of the network stack.
    Generic,
    /// In the hardware.
    Hardware,
    /// Several, in different modes.
    Several,
}

impl AttachedMode {
    /// One word for people.
    pub fn word(self) -> &'static str {
        match self {
            AttachedMode::Native => "native",
            AttachedMode::Generic => "generic",
            AttachedMode::Hardware => "hardware",
            AttachedMode::Several => "several",
        }
    }

    /// What `ip link set dev IF` calls it, for instance to take such a program off.
    pub fn ip_option(self) -> &'static str {
        match self {
            AttachedMode::Native | AttachedMode::Several => "xdp",
            AttachedMode::Generic => "xdpgeneric",
            AttachedMode::Hardware => "xdpoffload",
        }
    }
}

/// What a driver can do with XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpFeatures {
    /// Programs run in the driver: pass, drop, send back.
    pub basic: bool,
    /// They may send frames to other interfaces and into sockets.
    pub redirect: bool,
    /// It accepts frames that others redirect to it (`ndo_xdp_xmit`).
    pub xmit: bool,
    /// AF_XDP sockets may use the driver's own buffers.
    pub zerocopy: bool,
    /// Programs may run in the hardware.
    pub hw_offload: bool,
    /// Received frames may consist of several buffers.
    pub rx_sg: bool,
    /// So may frames that others redirect to it.
    pub xmit_sg: bool,
    /// Buffers that one zero-copy frame may consist of; 1 where the kernel says nothing.
    pub zc_max_segs: u32,
}

/// The interface of this name, which may be an alternative one.
///
/// # Errors
/// No netlink socket can be made.
pub fn by_name(name: &str) -> io::Result<Option<Link>> {
    if name.is_empty() || name.len() > ALT_NAME_MOST || name.contains('\0') {
        return Ok(None);
    }
    let kind = if name.len() > NAME_MOST { libc::IFLA_ALT_IFNAME } else { libc::IFLA_IFNAME };
    let mut body = ifinfomsg(0);
    push_attribute(&mut body, kind, &[name.as_bytes(), &[0]].concat());
    one(body)
}

/// The interface of this index.
///
/// # Errors
/// As [`by_name`].
pub fn by_index(index: u32) -> io::Result<Option<Link>> {
    if index == 0 || i32::try_from(index).is_err() {
        return Ok(None);
    }
    one(ifinfomsg(index))
}

/// All interfaces, in no promised order.
///
/// # Errors
/// As [`by_name`].
pub fn all() -> io::Result<Vec<Link>> {
    let socket = Socket::route(0)?;
    let mut links = Vec::new();
    for _ in 0..TRIES {
        links.clear();
        let mut body = ifinfomsg(0);
        push_attribute(&mut body, libc::IFLA_EXT_MASK, &libc::RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        if socket.list(libc::RTM_GETLINK, &body, |message| links.extend(link_of(message)))? {
            break;
        }
    }
    Ok(links)
}

/// Answers `RTM_GETLINK` with `body`.
fn one(mut body: Vec<u8>) -> io::Result<Option<Link>> {
    push_attribute(&mut body, libc::IFLA_EXT_MASK, &libc::RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
    let mut found = None;
    match Socket::route(0)?.ask(libc::RTM_GETLINK, &body, |message| found = link_of(message)) {
        Err(Errno::NODEV) => Ok(None),
        result => Ok(result.map(|()| found)?),
    }
}

/// A `struct ifinfomsg` that asks for an interface.
fn ifinfomsg(index: u32) -> Vec<u8> {
    let mut header = vec![0; IFINFOMSG];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header
}

/// The same, with flags to be set: those of `mask` become as in `flags`.
fn in_flags(index: u32, flags: u32, mask: u32) -> Vec<u8> {
    let mut header = ifinfomsg(index);
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&mask.to_ne_bytes());
    header
}

/// Number and flags of the interface that a message is about, if it is about one as such, and not about the part that it
/// plays in a bridge.
fn header_of(body: &[u8]) -> Option<(u32, u32)> {
    let family = *body.first()?;
    let word = |at: usize| number(body.get(at..at + 4)?);
    (i32::from(family) == libc::AF_UNSPEC).then_some((word(4)?, word(8)?))
}

/// The interface that a message describes. `None`: another kind of message, or an event of a wireless driver, which
/// describes nothing.
fn link_of(message: Message) -> Option<Link> {
    if message.kind != libc::RTM_NEWLINK {
        return None;
    }
    let (index, flags) = header_of(message.body)?;
    let on = |flag: libc::c_int| flags & flag as u32 != 0;
    let (up, carrier) = (on(libc::IFF_UP), on(libc::IFF_LOWER_UP));
    let (mut name, mut mtu, mut mac, mut kind, mut xdp) = (None, None, None, None, None);
    for (attribute, value) in attributes(message.body.get(IFINFOMSG..)?) {
        match attribute {
            libc::IFLA_IFNAME => name = Some(text(value)),
            libc::IFLA_MTU => mtu = number(value),
            libc::IFLA_ADDRESS => mac = value.try_into().ok(),
            libc::IFLA_LINKINFO => {
                kind = attributes(value).find(|&(a, _)| a == libc::IFLA_INFO_KIND).map(|(_, value)| text(value));
            }
            libc::IFLA_XDP => xdp = attached(value),
            libc::IFLA_WIRELESS => return None,
            _ => {}
        }
    }
    Some(Link { index, name: name?, mtu: mtu?, up, carrier, mac, kind, xdp })
}

/// What `IFLA_XDP` says.
fn attached(value: &[u8]) -> Option<AttachedXdp> {
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

/// What the driver of interface `index` can do with XDP; `None` where the kernel does not tell (before 6.3).
///
/// # Errors
/// `ENODEV`: no such interface.
pub fn xdp_features(index: u32) -> io::Result<Option<XdpFeatures>> {
    let socket = Socket::generic()?;
    let Some(family) = family(&socket, NETDEV_FAMILY)? else { return Ok(None) };
    let mut body = vec![NETDEV_CMD_DEV_GET, 1, 0, 0];
    push_attribute(&mut body, NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
    let mut features = None;
    let answer = socket.ask(family, &body, |message| {
        features = message.body.get(GENLMSGHDR..).map(features_of);
    });
    match answer {
        // The kernel finds index 0 out of range.
        Err(Errno::RANGE | Errno::INVAL) => Err(Errno::NODEV.into()),
        answer => Ok(answer.map(|()| features)?),
    }
}

/// The number by which a generic netlink family is addressed; `None` where there is no such family.
fn family(socket: &Socket, name: &str) -> io::Result<Option<u16>> {
    let mut body = vec![libc::CTRL_CMD_GETFAMILY as u8, 1, 0, 0];
    push_attribute(&mut body, libc::CTRL_ATTR_FAMILY_NAME as u16, &[name.as_bytes(), &[0]].concat());
    let mut id = None;
    let answer = socket.ask(libc::GENL_ID_CTRL as u16, &body, |message| {
        let found = attributes(message.body.get(GENLMSGHDR..).unwrap_or_default())
            .find(|&(attribute, _)| attribute == libc::CTRL_ATTR_FAMILY_ID as u16);
        id = found.and_then(|(_, value)| value.try_into().ok()).map(u16::from_ne_bytes);
    });
    match answer {
        Err(Errno::NOENT) => Ok(None),
        answer => Ok(answer.map(|()| id)?),
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

/// What happened to interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The interface is new, or something about it may have changed; this is what it was then.
    Changed(Link),
    /// The interface was deleted, or went to another network namespace. Its index may be used again.
    Gone {
        /// Its index, in the namespace that is watched.
        index: u32,
    },
    /// Events were lost; look at all interfaces again. What happens after this event is reported as usual.
    Lost,
}

/// Reports changes of interfaces: a socket for an event loop, readable when there is something to read.
///
/// That an XDP program is attached or detached as a BPF link is not reported (Linux 6.18).
#[derive(Debug)]
pub struct Watch(Socket);

impl Watch {
    /// Watches the interfaces of the calling thread's network namespace from now on.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Watch> {
        Ok(Watch(Socket::route(libc::RTMGRP_LINK as u32)?))
    }

    /// Appends all that has happened since the last call, in order. Never waits.
    ///
    /// # Errors
    /// None that is not the kernel's fault.
    pub fn read(&mut self, events: &mut Vec<LinkEvent>) -> io::Result<()> {
        let before = events.len();
        let mut lost = false;
        loop {
            match self.0.receive(|message| events.extend(event_of(message))) {
                Ok(()) => {}
                Err(Errno::AGAIN) => break,
                // The kernel drops all until we have read the rest, which is older than what was dropped.
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

impl AsFd for Watch {
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
