// SPDX-License-Identifier: BSD-2-Clause
//! The names of ports: as programs write them, and as the registry has them.

use serde::{Deserialize, Serialize};
use unetmap_abi::{NM_BDG_NAME, PortSpec};
use unetmap_core::errno::EINVAL;

use super::nic::NicKey;
use crate::refusal::{Refusal, refuse};
use crate::region::Scope;

/// Identifies a port. Snapshots list ports in this order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum PortKey {
    /// A network interface.
    Nic(NicKey),
    /// A switch port.
    Vale(ValeKey),
    /// The end of a persistent port that programs open, by the index of its hidden end.
    Persistent(u32),
    /// A network interface of which the daemon runs the sockets for a program.
    Mediated(MediatedKey),
    Pipe(PipeKey),
    /// An end of a pipe in another region than the pipe.
    CopiedEnd(CopiedEndKey),
    /// A port without a data path.
    Null(Scope, String),
    /// A sink, by its number.
    Sink(Scope, u32),
    /// A monitor, by its number. No key comes after these.
    Monitor(u64),
}

impl PortKey {
    /// The interface, if the port is one.
    pub(crate) fn as_nic(&self) -> Option<NicKey> {
        if let PortKey::Nic(nic) = self { Some(*nic) } else { None }
    }

    /// The hidden end of a persistent port, if the port is its program end.
    pub(crate) fn as_persistent(&self) -> Option<u32> {
        if let PortKey::Persistent(hidden) = self { Some(*hidden) } else { None }
    }
}

/// Identifies an endpoint of a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct EndpointKey {
    pub(crate) port: PortKey,
    /// For a pipe 0 is the master and 1 the slave; for a mediated port 0 is the program's and 1 the daemon's; else 0.
    pub(crate) index: usize,
}

impl From<PortKey> for EndpointKey {
    /// The endpoint of a port that has one.
    fn from(port: PortKey) -> EndpointKey {
        EndpointKey { port, index: 0 }
    }
}

/// Identifies a switch port.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct ValeKey {
    pub(crate) scope: Scope,
    /// The part of the name before the colon: `vale0`.
    pub(crate) switch: String,
    /// The part of the name after the colon.
    pub(crate) port: String,
}

/// Identifies a mediated interface.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct MediatedKey {
    pub(crate) scope: Scope,
    /// Its name when it was opened.
    pub(crate) interface: String,
    /// Distinguishes interfaces that had this name one after the other.
    pub(crate) serial: u64,
}

/// Identifies a pipe.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct PipeKey {
    pub(crate) scope: Scope,
    pub(crate) parent: String,
    pub(crate) id: String,
}

/// Identifies a copied end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct CopiedEndKey {
    pub(crate) pipe: PipeKey,
    /// The index of the end, and of the program's endpoint.
    pub(crate) index: usize,
}

/// By which the packets of a port reach its receive rings.
#[derive(Clone, Copy)]
pub(super) enum Mover {
    /// The program at the other end of a pipe.
    Peer,
    Switch,
    /// The program, or the daemon's thread, that has the port open.
    Program,
}

/// Parses a name as requests carry it: without ring numbers, flags, region or options.
pub(crate) fn parse_port_name(name: &str) -> Result<PortSpec, Refusal> {
    let with_prefix =
        if name.starts_with(NM_BDG_NAME) && name.contains(':') { name.into() } else { format!("netmap:{name}") };
    // The client has already interpreted a '-'.
    match PortSpec::parse_with(&with_prefix, |_| true) {
        Ok(spec) if spec.name == name => Ok(spec),
        Ok(_) => refuse(EINVAL, "a request names only the port, without rings, flags or options"),
        Err(e) => refuse(EINVAL, e.message()),
    }
}
