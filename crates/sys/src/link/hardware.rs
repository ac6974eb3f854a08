//! Properties of a device beyond its queues: ring sizes, offloads, time stamps, NUMA node.

use std::fs;
use std::io;

use super::ethtool::{driver, ethtool};
use super::text;

/// Commands of linux/ethtool.h.
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_GET_TS_INFO: u32 = 0x41;
/// The string set of the names of offloads (`ETH_SS_FEATURES`).
const NAMES: u32 = 4;
/// Bytes of a name (`ETH_GSTRING_LEN`).
const NAME: usize = 32;
/// Most offloads that are read; Linux 6.18 has 67.
const MAX_OFFLOADS: usize = 256;

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

/// `struct ethtool_sset_info`, and the number of strings in the one set that is asked for.
#[repr(C)]
struct GetCount {
    command: u32,
    reserved: u32,
    sets: u64,
    count: u32,
}

/// `struct ethtool_gstrings` with its strings.
#[repr(C)]
struct GetNames {
    command: u32,
    set: u32,
    count: u32,
    names: [[u8; NAME]; MAX_OFFLOADS],
}

/// `struct ethtool_gfeatures` with its blocks of 32 offloads: available, requested, active, never changed.
#[repr(C)]
struct GetOffloads {
    command: u32,
    blocks: u32,
    bits: [[u32; 4]; MAX_OFFLOADS / 32],
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

/// Returns the names of the offloads that are on, as `ethtool -k` calls them in the kernel; empty if they cannot be
/// read.
///
/// # Errors
/// As [`ring_sizes`].
pub fn offloads(name: &str) -> io::Result<Vec<String>> {
    let mut count = GetCount { command: ETHTOOL_GSSET_INFO, reserved: 0, sets: 1 << NAMES, count: 0 };
    // SAFETY: K5: ETHTOOL_GSSET_INFO reads the sets and writes one number for each set that is asked for, here one.
    let known = unsafe { ethtool(name, &mut count) }? && count.sets != 0;
    // The kernel writes as many names and blocks as it has, so that all must have room.
    if !known || count.count as usize > MAX_OFFLOADS {
        return Ok(Vec::new());
    }
    let names = [[0; NAME]; MAX_OFFLOADS];
    let mut names = Box::new(GetNames { command: ETHTOOL_GSTRINGS, set: NAMES, count: count.count, names });
    let blocks = count.count.div_ceil(32);
    let mut bits = GetOffloads { command: ETHTOOL_GFEATURES, blocks, bits: [[0; 4]; MAX_OFFLOADS / 32] };
    // SAFETY: K5: ETHTOOL_GSTRINGS writes the number of names that was just read, for which there is room.
    let named = unsafe { ethtool(name, &mut *names) }?;
    // SAFETY: K5: ETHTOOL_GFEATURES writes at most `blocks` blocks, for which there is room.
    if !named || !unsafe { ethtool(name, &mut bits) }? {
        return Ok(Vec::new());
    }
    let on = |at: &usize| bits.bits[at / 32][2] & (1 << (at % 32)) != 0;
    let on = (0..count.count as usize).filter(on).map(|at| text(&names.names[at]));
    Ok(on.filter(|name| !name.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_offloads_and_no_rings() {
        let on = offloads("lo").unwrap();
        assert!(on.iter().any(|name| name == "tx-lockless" || name == "netns-local" || name == "highdma"), "{on:?}");
        assert_eq!((ring_sizes("lo").unwrap(), numa_node("lo").unwrap()), (None, None));
        assert!(timestamping("lo").unwrap().is_none_or(|stamps| !stamps.hardware_rx && stamps.clock.is_none()));
        assert!(offloads("no such").is_err());
    }
}
