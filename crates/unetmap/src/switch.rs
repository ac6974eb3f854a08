// SPDX-License-Identifier: BSD-2-Clause
//! Requests about VALE switches: attach and detach interfaces, create and remove persistent ports, list ports.
//!
//! A port that a program opens by name (`vale0:a`) needs none of these: the switch is created with its first port and
//! removed with its last.
//!
//! ```
//! use unetmap::{Port, switch};
//!
//! # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
//! let _port = Port::open("vale7:a")?;
//! let found = switch::find("vale7:a")?;
//! assert_eq!(found.name, "vale7:a");
//! assert!(switch::list()?.contains(&found));
//! # Ok::<(), unetmap::Error>(())
//! ```

use unetmap_core::abi::*;
pub use unetmap_core::control::vale::{Direction, RateLimit, VlanMode, VlanSet, is_label};
use unetmap_core::control::vale::{ValeAction, ValeRequest, send_request};
use unetmap_core::port::file::request;

use crate::{Error, errno};

/// The number of no port, in the reply to a request with the name of one that its switch does not have.
const NO_PORT: u32 = 255;

/// A port of a switch, as listed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PortEntry {
    /// Its name, such as `vale0:a`.
    pub name: String,
    /// The number of its switch.
    pub switch_index: u16,
    /// Its number within the switch.
    pub port_index: u32,
}

impl PortEntry {
    fn new(name: String, found: NmreqValeList) -> PortEntry {
        PortEntry { name, switch_index: found.nr_bridge_idx, port_index: found.nr_port_idx }
    }
}

/// Returns the ports of all switches of this user, in order.
///
/// # Errors
/// No daemon answers and none could be started.
pub fn list() -> Result<Vec<PortEntry>, Error> {
    let mut ports = Vec::new();
    let mut from = NmreqValeList::default();
    loop {
        // A request without a name returns the first port with these numbers or higher ones.
        match request(NETMAP_REQ_VALE_LIST, "", &from) {
            Err(Error::Refused { errno: errno::ENOENT, .. }) => return Ok(ports),
            other => {
                let (name, found) = other?;
                from = NmreqValeList { nr_port_idx: found.nr_port_idx.saturating_add(1), ..found };
                ports.push(PortEntry::new(name, found));
            }
        }
    }
}

/// Returns the numbers of the port `name`.
///
/// # Errors
/// `ENOENT` if there is no such port; no daemon answers and none could be started.
pub fn find(name: &str) -> Result<PortEntry, Error> {
    let (_, found) = request(NETMAP_REQ_VALE_LIST, name, &NmreqValeList::default())?;
    match found.nr_port_idx {
        NO_PORT => Err(Error::refused(name, errno::ENOENT, "the switch has no such port")),
        _ => Ok(PortEntry::new(name.into(), found)),
    }
}

/// How to attach an interface to a switch.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct AttachOptions {
    /// Attaches the host rings, too: the host stack becomes a second port of the switch.
    pub host: bool,
    /// The region that the port uses; 0: the daemon chooses.
    pub mem_id: u16,
}

/// Attaches the interface in `name`, such as `vale0:eth0`, to the switch in it. Returns the port's number. Needs a
/// daemon that may open the interface.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
///
/// ```
/// use unetmap::switch::{self, AttachOptions};
///
/// # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
/// let mut options = AttachOptions::default();
/// options.host = true;
/// // There is no interface of this name.
/// assert!(switch::attach("vale0:none9", &options).is_err());
/// ```
pub fn attach(name: &str, options: &AttachOptions) -> Result<u32, Error> {
    let nr_mode = if options.host { NR_REG_NIC_SW } else { NR_REG_ALL_NIC };
    let reg = NmreqRegister { nr_mode, nr_mem_id: options.mem_id, ..Default::default() };
    let (_, reply) = request(NETMAP_REQ_VALE_ATTACH, name, &NmreqValeAttach { reg, ..Default::default() })?;
    Ok(reply.port_index)
}

/// Detaches the port `name` that [`attach`] attached. Returns the port's number.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
pub fn detach(name: &str) -> Result<u32, Error> {
    let (_, reply) = request(NETMAP_REQ_VALE_DETACH, name, &NmreqValeDetach::default())?;
    Ok(reply.port_index)
}

/// The shape of a persistent port. 0 means the default.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct NewPort {
    /// Slots of each transmit ring.
    pub tx_slots: u32,
    /// Slots of each receive ring.
    pub rx_slots: u32,
    /// Transmit rings.
    pub tx_rings: u16,
    /// Receive rings.
    pub rx_rings: u16,
    /// The region that the port uses; 0: the daemon chooses.
    pub mem_id: u16,
}

/// Creates the persistent port `name`: an interface of that name that outlives the program. Programs open it as
/// `netmap:NAME`, and as a port of a switch once it is attached.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
pub fn create(name: &str, shape: &NewPort) -> Result<(), Error> {
    let body = NmreqValeNewif {
        nr_tx_slots: shape.tx_slots,
        nr_rx_slots: shape.rx_slots,
        nr_tx_rings: shape.tx_rings,
        nr_rx_rings: shape.rx_rings,
        nr_mem_id: shape.mem_id,
        ..Default::default()
    };
    request(NETMAP_REQ_VALE_NEWIF, name, &body).map(drop)
}

/// Removes the persistent port `name` that [`create`] created.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
pub fn remove(name: &str) -> Result<(), Error> {
    request(NETMAP_REQ_VALE_DELIF, name, &()).map(drop)
}

/// Sets the bytes of virtio-net header before each packet of the port `name`: 0, 10 or 12. The port is one of a switch,
/// or an interface that is not open yet.
///
/// # Errors
/// `EINVAL` for another length; `EBUSY` if the interface is open; the daemon's refusal, or no daemon answers and none
/// could be started.
pub fn set_vnet_header(name: &str, bytes: u32) -> Result<(), Error> {
    let body = NmreqPortHdr { nr_hdr_len: bytes, ..Default::default() };
    request(NETMAP_REQ_PORT_HDR_SET, name, &body).map(drop)
}

/// Returns the bytes of virtio-net header before each packet of the port `name`.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
pub fn vnet_header(name: &str) -> Result<u32, Error> {
    request(NETMAP_REQ_PORT_HDR_GET, name, &NmreqPortHdr::default()).map(|(_, reply)| reply.nr_hdr_len)
}

/// Sets the VLANs of the port `name`, which need not exist yet; `None`: it is in none, and frames pass as they are. The
/// setting remains when the port is closed.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
///
/// ```
/// use unetmap::switch::{self, VlanMode};
///
/// # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
/// let _port = unetmap::Port::open("vale7:a")?;
/// switch::set_vlan("vale7:a", Some(VlanMode::Access(10)))?;
/// switch::set_vlan("vale7:a", None)?;
/// # Ok::<(), unetmap::Error>(())
/// ```
pub fn set_vlan(name: &str, mode: Option<VlanMode>) -> Result<(), Error> {
    send_request(&ValeRequest { name: name.into(), action: ValeAction::Vlan(mode) }).map(drop)
}

/// Sets how much the port `name`, which need not exist yet, may send ([`Direction::In`]) or receive
/// ([`Direction::Out`]) in a second. The setting remains when the port is closed.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
///
/// ```
/// use unetmap::switch::{self, Direction, RateLimit};
///
/// # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
/// let _port = unetmap::Port::open("vale7:a")?;
/// switch::set_rate("vale7:a", Direction::Out, RateLimit { packets: 0, bits: 100_000_000 })?;
/// switch::clear("vale7:a")?;
/// # Ok::<(), unetmap::Error>(())
/// ```
pub fn set_rate(name: &str, direction: Direction, limit: RateLimit) -> Result<(), Error> {
    send_request(&ValeRequest { name: name.into(), action: ValeAction::Limit(direction, limit) }).map(drop)
}

/// Sets the label of the port `name`, which need not exist yet: a name for people, of 1 to 317 visible characters of
/// ASCII without quotes, that `unetmap ls`, `top`, `events` and `metrics` show. It remains when the port is closed.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
///
/// ```
/// use unetmap::switch;
///
/// # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
/// let _port = unetmap::Port::open("vale7:a")?;
/// switch::set_label("vale7:a", Some("default/web"))?;
/// switch::clear("vale7:a")?;
/// # Ok::<(), unetmap::Error>(())
/// ```
pub fn set_label(name: &str, label: Option<&str>) -> Result<(), Error> {
    let action = ValeAction::Label(label.map(str::to_owned));
    send_request(&ValeRequest { name: name.into(), action }).map(drop)
}

/// Removes all settings of the port `name`, which need not exist. Starts no daemon.
///
/// # Errors
/// The daemon's refusal.
pub fn clear(name: &str) -> Result<(), Error> {
    send_request(&ValeRequest { name: name.into(), action: ValeAction::Clear }).map(drop)
}
