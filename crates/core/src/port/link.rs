// SPDX-License-Identifier: BSD-2-Clause
//! Links that are down: why packets of an interface's port do not move.

use std::fmt;

use unetmap_abi::{PortKind, PortSpec, Rings};
use unetmap_sys::link::{self, Link, veth};

use crate::control::client::interface_exists;
use crate::port::Port;

/// An interface that no packets of its port pass at present. `Display` writes a sentence without its port:
/// `the link is down: eth0 is administratively down (ip link set eth0 up)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkDown {
    /// The interface, in the network namespace of this thread.
    pub interface: String,
    /// Why.
    pub cause: DownCause,
}

/// Why a link is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownCause {
    /// The interface was not set up.
    Administrative,
    /// The interface is up and has no carrier.
    NoCarrier,
    /// No carrier, as the other end of the veth is not up: its name, if it is in the same network namespace.
    PeerDown(Option<String>),
}

impl fmt::Display for LinkDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.interface;
        write!(f, "the link is down: {name} ")?;
        match &self.cause {
            DownCause::Administrative => write!(f, "is administratively down (ip link set {name} up)"),
            DownCause::NoCarrier => f.write_str("has no carrier (its other end is down, or it has none)"),
            DownCause::PeerDown(Some(peer)) => {
                write!(f, "has no carrier, as its peer {peer} is down (ip link set {peer} up)")
            }
            DownCause::PeerDown(None) => {
                f.write_str("has no carrier, as its peer, in another network namespace, is down")
            }
        }
    }
}

/// Returns why the link of the port `spec` is down. `None`: it is up; the port has none, as pipes and ports of
/// switches; or the kernel does not tell. Host rings alone need no carrier.
///
/// Opening a port may reset the link of a network card for seconds. A program that asks before it opens the port, as
/// well, does not take that for a cable that is missing.
pub fn link_down(spec: &str) -> Option<LinkDown> {
    let parsed = PortSpec::parse_with(spec, interface_exists).ok()?;
    if parsed.kind != PortKind::Netmap || parsed.pipe.is_some() {
        return None;
    }
    let link = link::by_name(&parsed.name).ok()??;
    let needs_carrier = !matches!(parsed.rings, Rings::Sw | Rings::OneSw(_));
    let cause = match (link.up, link.carrier) {
        (false, _) => DownCause::Administrative,
        (true, false) if needs_carrier => cause_at_peer(&link),
        _ => return None,
    };
    Some(LinkDown { interface: link.name, cause })
}

fn cause_at_peer(link: &Link) -> DownCause {
    if link.kind.as_deref() != Some("veth") {
        return DownCause::NoCarrier;
    }
    let peer = veth::peer(link.index).ok().flatten().filter(|peer| peer.is_here());
    DownCause::PeerDown(peer.and_then(|peer| link::by_index(peer.index).ok()?).map(|peer| peer.name))
}

impl Port {
    /// Whether a switch moves its packets: a port of a switch, or a persistent port, whose packets do not pass the link
    /// of its interface.
    pub fn is_switched(&self) -> bool {
        self.is_switched
    }
}
