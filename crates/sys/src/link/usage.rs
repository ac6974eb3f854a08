// SPDX-License-Identifier: BSD-2-Clause
//! Whether anything uses an interface, so that a test of it would disturb someone.

use std::fmt;
use std::io;

use super::netlink::{Socket, attributes, number, text};
use super::route::default_routes;
use super::{IFINFOMSG, header_of, ifinfomsg};

/// Bytes of `struct ifaddrmsg`, the header of every message about an address.
const IFADDRMSG: usize = 8;

/// A user of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    /// It has an address, other than the link-local one that the kernel gives to each.
    Address,
    /// It carries a default route.
    DefaultRoute,
    /// It belongs to a bridge, a bond or another master.
    Member,
    /// An interface of this name is on top of it (VLAN, macvlan).
    Below(String),
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Usage::Address => f.write_str("it carries an address"),
            Usage::DefaultRoute => f.write_str("it carries the default route"),
            Usage::Member => f.write_str("it belongs to a bridge or a bond"),
            Usage::Below(name) => write!(f, "{name} is on top of it"),
        }
    }
}

/// Returns what uses interface `index`; `None`: nothing that the kernel knows of.
///
/// # Errors
/// No netlink socket can be created, or those of a list.
pub fn usage(index: u32) -> io::Result<Option<Usage>> {
    if default_routes()?.contains(&index) {
        return Ok(Some(Usage::DefaultRoute));
    }
    let socket = Socket::route(0)?;
    let mut found = None;
    socket.list(libc::RTM_GETADDR, &[0; IFADDRMSG], |message| {
        if message.kind == libc::RTM_NEWADDR && address_of(message.body) == Some(index) {
            found = Some(Usage::Address);
        }
    })?;
    if found.is_some() {
        return Ok(found);
    }
    socket.list(libc::RTM_GETLINK, &ifinfomsg(0), |message| {
        if message.kind == libc::RTM_NEWLINK && found.is_none() {
            found = relation_to(index, message.body);
        }
    })?;
    Ok(found)
}

/// Returns the interface of an address that is not link-local.
fn address_of(body: &[u8]) -> Option<u32> {
    let head = body.get(..IFADDRMSG)?;
    (head[3] != libc::RT_SCOPE_LINK).then(|| number(&head[4..]))?
}

/// Returns how the interface that a message describes uses interface `index`, which may be the same.
fn relation_to(index: u32, body: &[u8]) -> Option<Usage> {
    let (described, _) = header_of(body)?;
    let (mut name, mut master, mut lower, mut elsewhere) = (String::new(), false, None, false);
    for (attribute, value) in attributes(body.get(IFINFOMSG..)?) {
        match attribute {
            libc::IFLA_IFNAME => name = text(value),
            libc::IFLA_MASTER => master = number(value).is_some_and(|master| master != 0),
            libc::IFLA_LINK => lower = number(value),
            // The index is that of an interface in another namespace: the far end of a veth pair.
            libc::IFLA_LINK_NETNSID => elsewhere = true,
            // Both ends of a veth pair name each other.
            libc::IFLA_LINKINFO if is_veth(value) => elsewhere = true,
            _ => {}
        }
    }
    if described == index {
        return master.then_some(Usage::Member);
    }
    (lower == Some(index) && !elsewhere).then_some(Usage::Below(name))
}

fn is_veth(info: &[u8]) -> bool {
    attributes(info).any(|(kind, value)| kind == libc::IFLA_INFO_KIND && text(value) == "veth")
}
