// SPDX-License-Identifier: BSD-2-Clause
//! A lab, as its file says it, and the names that its parts have.

use std::path::PathBuf;

/// A lab.
#[derive(Debug, PartialEq)]
pub(crate) struct Lab {
    /// Absolute.
    pub(crate) file: PathBuf,
    pub(crate) text: String,
    pub(crate) name: String,
    pub(crate) hosts: Vec<Host>,
    pub(crate) switches: Vec<Switch>,
    pub(crate) links: Vec<Link>,
    pub(crate) captures: Vec<Capture>,
}

/// A host. Lines are those of the file, from 1.
#[derive(Debug, PartialEq)]
pub(crate) struct Host {
    pub(crate) line: usize,
    pub(crate) name: String,
    /// Whether it forwards packets between its interfaces.
    pub(crate) forward: bool,
    /// Arguments of `ip route add`.
    pub(crate) routes: Vec<String>,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Switch {
    pub(crate) name: String,
}

impl Switch {
    /// The name of the VALE switch, in the lab's own daemon.
    pub(crate) fn vale(&self) -> String {
        format!("vale{}", self.name.replace('-', "_"))
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct Link {
    pub(crate) line: usize,
    /// Its place in the file, from 0.
    pub(crate) index: usize,
    pub(crate) ends: [End; 2],
    /// Options of `unetmap emulate` and their values; without one for options that have none.
    pub(crate) emulation: Vec<(String, Option<String>)>,
    pub(crate) is_captured: bool,
}

/// One end of a link.
#[derive(Debug, PartialEq)]
pub(crate) enum End {
    Host {
        /// Place in [`Lab::hosts`].
        host: usize,
        interface: String,
        /// Each with its prefix length.
        addresses: Vec<String>,
    },
    /// Place in [`Lab::switches`].
    Switch(usize),
}

#[derive(Debug, PartialEq)]
pub(crate) struct Capture {
    pub(crate) line: usize,
    /// Place in [`Lab::links`], and the end of that: a host.
    pub(crate) link: usize,
    pub(crate) end: usize,
    pub(crate) file: PathBuf,
    pub(crate) filter: Option<String>,
    pub(crate) snaplen: Option<String>,
}

impl Link {
    /// Whether `unetmap emulate` carries its packets.
    pub(crate) fn is_emulated(&self) -> bool {
        let between_switches = self.ends.iter().all(|end| matches!(end, End::Switch(_)));
        !self.emulation.is_empty() || self.is_captured || between_switches
    }

    /// Whether it passes through the wire; other links are one veth pair.
    pub(crate) fn is_in_wire(&self) -> bool {
        self.is_emulated() || self.ends.iter().any(|end| matches!(end, End::Switch(_)))
    }

    /// The interface in the wire whose peer is the host's at this end.
    pub(crate) fn wire_interface(&self, end: usize) -> String {
        format!("l{}{}", self.index, ["a", "b"][end])
    }

    /// The port at this end that `unetmap emulate` opens. A switch has no port that is named as an interface.
    pub(crate) fn port(&self, end: usize, switches: &[Switch]) -> String {
        match &self.ends[end] {
            End::Host { .. } => format!("netmap:{}", self.wire_interface(end)),
            End::Switch(switch) => format!("{}:p{}{}", switches[*switch].vale(), self.index, ["a", "b"][end]),
        }
    }
}

impl Lab {
    /// The name of a host's namespace in `ip netns`.
    pub(crate) fn namespace(&self, host: usize) -> String {
        format!("{}.{}", self.name, self.hosts[host].name)
    }

    pub(crate) fn needs_wire(&self) -> bool {
        !self.switches.is_empty() || self.links.iter().any(Link::is_in_wire)
    }

    /// The interfaces of a host: the link, the end, the name and the addresses of each.
    pub(crate) fn interfaces(&self, of: usize) -> impl Iterator<Item = (&Link, usize, &str, &[String])> {
        let ends = self.links.iter().flat_map(|link| link.ends.iter().enumerate().map(move |(i, end)| (link, i, end)));
        ends.filter_map(move |(link, i, end)| match end {
            End::Host { host, interface, addresses } if *host == of => Some((link, i, &**interface, &**addresses)),
            _ => None,
        })
    }

    /// An end as the file may write it: `pc:eth0`, or the name of a switch.
    pub(crate) fn end_name(&self, end: &End) -> String {
        match end {
            End::Host { host, interface, .. } => format!("{}:{interface}", self.hosts[*host].name),
            End::Switch(switch) => self.switches[*switch].name.clone(),
        }
    }
}
