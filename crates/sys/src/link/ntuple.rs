// SPDX-License-Identifier: BSD-2-Clause
//! Ntuple filters: rules by which the hardware steers frames to queues, by `SIOCETHTOOL`.

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;

use super::ethtool::ethtool;

/// Commands of linux/ethtool.h.
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
/// The driver selects the location of a rule.
const LOC_SPECIAL: u64 = 0x8000_0000;
const LOC_ANY: u32 = 0xffff_ffff;
/// Flow types: TCP, UDP, SCTP and plain IP, each over IPv4 and over IPv6; and the flag of rules with a VLAN.
const FLOWS: [(Option<u8>, u32, u32); 4] =
    [(Some(6), 0x01, 0x05), (Some(17), 0x02, 0x06), (Some(132), 0x03, 0x07), (None, 0x0d, 0x0e)];
const FLOW_EXT: u32 = 0x8000_0000;
/// `ip_ver` of a rule for plain IPv4.
const IPV4_VERSION: u8 = 1;
/// Most rules that are listed.
const MAX_RULES: usize = 4096;

/// Conditions of a rule; a frame must meet all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuple {
    /// IPv6; else IPv4.
    pub v6: bool,
    /// 6, 17 or 132; `None`: any.
    pub protocol: Option<u8>,
    /// Source address and prefix length, of the family that `v6` selects.
    pub source: Option<(IpAddr, u8)>,
    /// Destination address and prefix length.
    pub destination: Option<(IpAddr, u8)>,
    /// Only with a protocol.
    pub source_port: Option<u16>,
    /// Only with a protocol.
    pub destination_port: Option<u16>,
    /// 0..4096
    pub vlan: Option<u16>,
}

/// `struct ethtool_rx_flow_spec`; values and masks of the conditions: 52 bytes by protocol, 20 for the VLAN.
#[derive(Clone, Copy)]
#[repr(C)]
struct Spec {
    flow: u32,
    value: [u8; 52],
    value_ext: [u8; 20],
    mask: [u8; 52],
    mask_ext: [u8; 20],
    cookie: u64,
    location: u32,
}

/// `struct ethtool_rxnfc`, and room for the locations of rules.
#[repr(C)]
struct Request {
    command: u32,
    flow: u32,
    data: u64,
    spec: Spec,
    count: u32,
    locations: [u32; MAX_RULES],
}

const _: () = assert!(size_of::<Spec>() == 168 && std::mem::offset_of!(Request, count) == 184);
const _: () = assert!(std::mem::offset_of!(Request, locations) == 188 && std::mem::offset_of!(Spec, cookie) == 152);

impl Spec {
    const EMPTY: Spec =
        Spec { flow: 0, value: [0; 52], value_ext: [0; 20], mask: [0; 52], mask_ext: [0; 20], cookie: 0, location: 0 };

    /// Returns `None` if ntuple rules cannot express the conditions.
    fn new(tuple: &Tuple, queue: u32) -> Option<Spec> {
        let (_, v4, v6) = FLOWS.into_iter().find(|(protocol, ..)| *protocol == tuple.protocol)?;
        let mut spec = Spec { flow: if tuple.v6 { v6 } else { v4 }, cookie: queue.into(), ..Spec::EMPTY };
        let mut put = |at: usize, value: &[u8], mask: &[u8]| {
            spec.value[at..at + value.len()].copy_from_slice(value);
            spec.mask[at..at + mask.len()].copy_from_slice(mask);
        };
        let size = if tuple.v6 { 16 } else { 4 };
        for (i, side) in [tuple.source, tuple.destination].into_iter().enumerate() {
            let Some((address, prefix)) = side else { continue };
            let bytes = match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            if bytes.len() != size || usize::from(prefix) > size * 8 {
                return None;
            }
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0).to_be_bytes();
            let value: Vec<u8> = bytes.iter().zip(mask).map(|(byte, mask)| byte & mask).collect();
            put(i * size, &value, &mask[..size]);
        }
        let ports = [tuple.source_port, tuple.destination_port];
        for (i, port) in ports.into_iter().enumerate() {
            let Some(port) = port else { continue };
            tuple.protocol?;
            put(2 * size + 2 * i, &port.to_be_bytes(), &[0xff; 2]);
        }
        if tuple.protocol.is_none() && !tuple.v6 {
            // `struct ethtool_usrip4_spec`: addresses, four bytes of the payload, tos, version, protocol.
            put(13, &[IPV4_VERSION], &[]);
        }
        if let Some(vlan) = tuple.vlan {
            spec.flow |= FLOW_EXT;
            // `struct ethtool_flow_ext`: two bytes, an address, the tag's type, the tag.
            spec.value_ext[10..12].copy_from_slice(&vlan.to_be_bytes());
            spec.mask_ext[10..12].copy_from_slice(&0x0fff_u16.to_be_bytes());
        }
        Some(spec)
    }
}

impl Request {
    fn new(command: u32) -> Box<Request> {
        Box::new(Request { command, flow: 0, data: 0, spec: Spec::EMPTY, count: 0, locations: [0; MAX_RULES] })
    }

    fn send(&mut self, name: &str) -> io::Result<()> {
        // SAFETY: K5: these commands read and write a `struct ethtool_rxnfc`, and GRXCLSRLALL the `count` locations
        // behind it, for which there is room.
        match unsafe { ethtool(name, self) }? {
            true => Ok(()),
            false => Err(Errno::OPNOTSUPP.into()),
        }
    }
}

/// Returns the locations of all rules.
///
/// # Errors
/// `EOPNOTSUPP`: the driver has no such rules; `ENODEV`; `E2BIG`: there are more than 4096 rules.
pub fn rules(name: &str) -> io::Result<Vec<u32>> {
    Ok(listed(name)?.0)
}

/// Returns the locations of all rules, and the number of locations; `None` if the driver selects the location of a new
/// rule.
fn listed(name: &str) -> io::Result<(Vec<u32>, Option<u32>)> {
    let mut count = Request::new(ETHTOOL_GRXCLSRLCNT);
    count.send(name)?;
    let driver_selects = count.data & LOC_SPECIAL != 0;
    if count.count as usize > MAX_RULES {
        return Err(Errno::TOOBIG.into());
    }
    let mut all = Request::new(ETHTOOL_GRXCLSRLALL);
    all.count = count.count;
    all.send(name)?;
    let locations = all.locations[..(all.count as usize).min(MAX_RULES)].to_vec();
    Ok((locations, (!driver_selects).then_some(all.data as u32)))
}

/// Adds a rule that steers frames of `tuple` to `queue`; returns its location. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// `EOPNOTSUPP`: the driver has no such rules; `EINVAL`: it does not support this rule, or there is no such queue;
/// `ENOSPC`: no location is free; `EPERM`; `ENODEV`.
pub fn add_rule(name: &str, tuple: &Tuple, queue: u32) -> io::Result<u32> {
    let spec = Spec::new(tuple, queue).ok_or(Errno::INVAL)?;
    let (taken, locations) = listed(name)?;
    let location = match locations {
        None => LOC_ANY,
        // From the end, as lower locations have higher priority.
        Some(locations) => (0..locations).rev().find(|location| !taken.contains(location)).ok_or(Errno::NOSPC)?,
    };
    let mut request = Request::new(ETHTOOL_SRXCLSRLINS);
    request.spec = Spec { location, ..spec };
    request.send(name)?;
    Ok(request.spec.location)
}

/// Removes the rule at `location`. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// `EOPNOTSUPP`: the driver has no rules; `ENOENT` or `EINVAL`: there is none at this location; `EPERM`; `ENODEV`.
pub fn remove_rule(name: &str, location: u32) -> io::Result<()> {
    let mut request = Request::new(ETHTOOL_SRXCLSRLDEL);
    request.spec.location = location;
    request.send(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_the_kernels_layout() {
        let tuple = Tuple { protocol: Some(17), destination_port: Some(53), ..Tuple::default() };
        let spec = Spec::new(&tuple, 2).unwrap();
        assert_eq!((spec.flow, spec.cookie), (2, 2));
        assert_eq!(
            (&spec.value[..13], &spec.mask[..13]),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 53, 0][..], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0][..])
        );
        let tuple = Tuple { source: Some(("10.9.8.7".parse().unwrap(), 20)), vlan: Some(7), ..Tuple::default() };
        let spec = Spec::new(&tuple, 0).unwrap();
        assert_eq!((spec.flow, spec.value[13], spec.mask[13]), (0x8000_000d, 1, 0));
        assert_eq!((&spec.value[..4], &spec.mask[..4]), (&[10, 9, 0, 0][..], &[255, 255, 240, 0][..]));
        assert_eq!((&spec.value_ext[10..12], &spec.mask_ext[10..12]), (&[0, 7][..], &[15, 255][..]));
        let tuple = Tuple { v6: true, protocol: Some(6), source_port: Some(80), ..Tuple::default() };
        let with = Tuple { destination: Some(("fd00::1".parse().unwrap(), 128)), ..tuple };
        let spec = Spec::new(&with, 1).unwrap();
        assert_eq!((spec.flow, spec.value[16], spec.value[31], spec.mask[20]), (5, 0xfd, 1, 255));
        assert_eq!((&spec.value[32..34], &spec.mask[32..36]), (&[0, 80][..], &[255, 255, 0, 0][..]));
    }

    #[test]
    fn inexpressible_conditions_are_refused() {
        let v4 = Some(("10.0.0.1".parse().unwrap(), 32));
        for tuple in [
            Tuple { v6: true, source: v4, ..Tuple::default() },
            Tuple { source_port: Some(1), ..Tuple::default() },
            Tuple { protocol: Some(1), ..Tuple::default() },
            Tuple { source: Some(("10.0.0.1".parse().unwrap(), 33)), ..Tuple::default() },
        ] {
            assert!(Spec::new(&tuple, 0).is_none(), "{tuple:?}");
        }
    }
}
