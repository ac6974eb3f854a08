// SPDX-License-Identifier: BSD-2-Clause
//! Properties of a device beyond its queues: ring sizes, time stamps, NUMA node.

use std::fs;
use std::io;

use super::ethtool::{driver, ethtool};

/// Commands of linux/ethtool.h.
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_SRINGPARAM: u32 = 0x11;
const ETHTOOL_NWAY_RST: u32 = 0x9;
const ETHTOOL_GET_TS_INFO: u32 = 0x41;

/// Sizes of a device's descriptor rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Descriptors of a receive ring.
    pub rx: u32,
    /// Descriptors of a transmit ring.
    pub tx: u32,
    /// Maximum of `rx`.
    pub max_rx: u32,
    /// Maximum of `tx`.
    pub max_tx: u32,
}

/// How a device stamps packets with the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamping {
    /// By the hardware, sent packets.
    pub hardware_tx: bool,
    /// By the hardware, received packets.
    pub hardware_rx: bool,
    /// Number of its clock (`/dev/ptpN`).
    pub clock: Option<u32>,
}

/// `struct ethtool_ringparam`.
#[derive(Default)]
#[repr(C)]
struct GetRings {
    command: u32,
    max_rx: u32,
    max_rx_mini: u32,
    max_rx_jumbo: u32,
    max_tx: u32,
    rx: u32,
    rx_mini: u32,
    rx_jumbo: u32,
    tx: u32,
}

/// `struct ethtool_ts_info`.
#[derive(Default)]
#[repr(C)]
struct GetTimestamping {
    command: u32,
    flags: u32,
    clock: i32,
    tx_types: u32,
    tx_reserved: [u32; 3],
    rx_filters: u32,
    rx_reserved: [u32; 3],
}

const _: () = assert!(size_of::<GetRings>() == 36 && size_of::<GetTimestamping>() == 44);

/// Returns the sizes of the descriptor rings; `None` if the driver does not report them.
///
/// # Errors
/// `ENODEV`: no such interface.
pub fn ring_sizes(name: &str) -> io::Result<Option<RingSizes>> {
    let mut get = GetRings { command: ETHTOOL_GRINGPARAM, ..GetRings::default() };
    // SAFETY: K5: ETHTOOL_GRINGPARAM writes a `struct ethtool_ringparam`.
    let supported = unsafe { ethtool(name, &mut get) }?;
    let GetRings { max_rx, max_tx, rx, tx, .. } = get;
    Ok(supported.then_some(RingSizes { rx, tx, max_rx, max_tx }))
}

/// Sets the numbers of descriptors of receive and transmit rings. `false`: the driver cannot.
///
/// # Errors
/// `ENODEV`: no such interface; `EPERM`: needs `CAP_NET_ADMIN`; the driver's.
pub fn set_ring_sizes(name: &str, rx: u32, tx: u32) -> io::Result<bool> {
    let mut set = GetRings { command: ETHTOOL_GRINGPARAM, ..GetRings::default() };
    // SAFETY: K5: ETHTOOL_GRINGPARAM writes a `struct ethtool_ringparam`.
    if !unsafe { ethtool(name, &mut set) }? {
        return Ok(false);
    }
    (set.command, set.rx, set.tx) = (ETHTOOL_SRINGPARAM, rx, tx);
    // SAFETY: K5: ETHTOOL_SRINGPARAM reads a `struct ethtool_ringparam`.
    unsafe { ethtool(name, &mut set) }
}

/// Has the device negotiate its link again. `false`: the driver cannot.
///
/// # Errors
/// As [`set_ring_sizes`].
pub fn renegotiate(name: &str) -> io::Result<bool> {
    // `struct ethtool_value`.
    let mut command = [ETHTOOL_NWAY_RST, 0];
    // SAFETY: K5: ETHTOOL_NWAY_RST reads no more than the command.
    unsafe { ethtool(name, &mut command) }
}

/// Returns how the device stamps packets; `None` if the driver does not report it.
///
/// # Errors
/// As [`ring_sizes`].
pub fn timestamping(name: &str) -> io::Result<Option<Timestamping>> {
    let mut get = GetTimestamping { command: ETHTOOL_GET_TS_INFO, ..GetTimestamping::default() };
    // SAFETY: K5: ETHTOOL_GET_TS_INFO writes a `struct ethtool_ts_info`.
    let supported = unsafe { ethtool(name, &mut get) }?;
    let has = |flag: libc::c_uint| get.flags & flag != 0;
    Ok(supported.then(|| Timestamping {
        hardware_tx: has(libc::SOF_TIMESTAMPING_TX_HARDWARE),
        hardware_rx: has(libc::SOF_TIMESTAMPING_RX_HARDWARE),
        clock: u32::try_from(get.clock).ok(),
    }))
}

/// Returns the NUMA node of a PCI device; `None` if it is none, or the machine does not report nodes.
///
/// # Errors
/// As [`ring_sizes`].
pub fn numa_node(name: &str) -> io::Result<Option<u32>> {
    // By its place, as /sys/class/net shows the interfaces of another network namespace.
    let bus = driver(name)?.map_or(String::new(), |driver| driver.bus);
    if bus.is_empty() || bus.contains('/') {
        return Ok(None);
    }
    let node = fs::read_to_string(format!("/sys/bus/pci/devices/{bus}/numa_node")).unwrap_or_default();
    Ok(node.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_rings() {
        assert_eq!((ring_sizes("lo").unwrap(), numa_node("lo").unwrap()), (None, None));
        assert!(timestamping("lo").unwrap().is_none_or(|stamps| !stamps.hardware_rx && stamps.clock.is_none()));
        assert!(ring_sizes("no such").is_err());
    }
}
