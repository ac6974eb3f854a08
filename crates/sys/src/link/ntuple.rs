//! Rules by which hardware leads frames to queues (ntuple filters), by `SIOCETHTOOL`.

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;

use super::ethtool::ethtool;

/// Of linux/ethtool.h.
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
/// The driver finds a place by itself.
const LOC_SPECIAL: u64 = 0x8000_0000;
const LOC_ANY: u32 = 0xffff_ffff;
/// What rules look at: TCP, UDP, SCTP over IPv4 and over IPv6, and IP alone; and whether at a VLAN.
const FLOWS: [(Option<u8>, u32, u32); 4] =
    [(Some(6), 0x01, 0x05), (Some(17), 0x02, 0x06), (Some(132), 0x03, 0x07), (None, 0x0d, 0x0e)];
const FLOW_EXT: u32 = 0x8000_0000;
/// `ip_ver` of a rule about all of IPv4.
const IPV4_VERSION: u8 = 1;
/// Rules at most that are listed.
const MOST: usize = 4096;

/// What frames a rule is about, all of it together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuple {
    /// IPv6; else IPv4.
    pub v6: bool,
    /// 6, 17 or 132; `None`: any.
    pub protocol: Option<u8>,
    /// Address and length of its network's prefix, of the family that `v6` tells.
    pub source: Option<(IpAddr, u8)>,
    /// The same.
    pub destination: Option<(IpAddr, u8)>,
    /// Only with a protocol.
    pub source_port: Option<u16>,
    /// Only with a protocol.
    pub destination_port: Option<u16>,
    /// 0..4096
    pub vlan: Option<u16>,
}

/// `struct ethtool_rx_flow_spec`; values and masks of what a rule is about: 52 bytes by protocol, 20 for the VLAN.
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

/// `struct ethtool_rxnfc`, and room for the places of rules.
#[repr(C)]
struct Request {
    command: u32,
    flow: u32,
    data: u64,
    spec: Spec,
    count: u32,
    places: [u32; MOST],
}

const _: () = assert!(size_of::<Spec>() == 168 && std::mem::offset_of!(Request, count) == 184);
const _: () = assert!(std::mem::offset_of!(Request, places) == 188 && std::mem::offset_of!(Spec, cookie) == 152);

impl Spec {
    const EMPTY: Spec =
        Spec { flow: 0, value: [0; 52], value_ext: [0; 20], mask: [0; 52], mask_ext: [0; 20], cookie: 0, location: 0 };

    /// `None`: rules of this kind cannot say that.
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
        Box::new(Request { command, flow: 0, data: 0, spec: Spec::EMPTY, count: 0, places: [0; MOST] })
    }

    fn ask(&mut self, name: &str) -> io::Result<()> {
        // SAFETY: these commands read and write a `struct ethtool_rxnfc`, and GRXCLSRLALL behind it as many places as
        // `count` says, for which there is room.
        match unsafe { ethtool(name, self) }? {
            true => Ok(()),
            false => Err(Errno::OPNOTSUPP.into()),
        }
    }
}

/// The places of the rules that there are.
///
/// # Errors
/// `EOPNOTSUPP`: the driver has no such rules; `ENODEV`; `E2BIG`: there are more rules than any driver has.
pub fn rules(name: &str) -> io::Result<Vec<u32>> {
    Ok(listed(name)?.0)
}

/// The places of all rules, and whether the driver finds a place for a new one, or how many places there are.
fn listed(name: &str) -> io::Result<(Vec<u32>, Option<u32>)> {
    let mut count = Request::new(ETHTOOL_GRXCLSRLCNT);
    count.ask(name)?;
    let finds = count.data & LOC_SPECIAL != 0;
    if count.count as usize > MOST {
        return Err(Errno::TOOBIG.into());
    }
    let mut all = Request::new(ETHTOOL_GRXCLSRLALL);
    all.count = count.count;
    all.ask(name)?;
    let places = all.places[..(all.count as usize).min(MOST)].to_vec();
    Ok((places, (!finds).then_some(all.data as u32)))
}

/// Leads frames of `tuple` to `queue` from now on; returns the rule's place. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// `EOPNOTSUPP`: the driver cannot; `EINVAL`: not this kind of rule, or there is no such queue; `ENOSPC`: there is no place for
/// another rule; `EPERM`; `ENODEV`.
pub fn add_rule(name: &str, tuple: &Tuple, queue: u32) -> io::Result<u32> {
    let spec = Spec::new(tuple, queue).ok_or(Errno::INVAL)?;
    let (taken, places) = listed(name)?;
    let place = match places {
        None => LOC_ANY,
        // From the end, as the places before are of higher rank.
        Some(places) => (0..places).rev().find(|place| !taken.contains(place)).ok_or(Errno::NOSPC)?,
    };
    let mut request = Request::new(ETHTOOL_SRXCLSRLINS);
    request.spec = Spec { location: place, ..spec };
    request.ask(name)?;
    Ok(request.spec.location)
}

/// Removes the rule at a place. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// `EOPNOTSUPP`: the driver has no rules; `ENOENT` or `EINVAL`: there is none at this place; `EPERM`; `ENODEV`.
pub fn remove_rule(name: &str, place: u32) -> io::Result<()> {
    let mut request = Request::new(ETHTOOL_SRXCLSRLDEL);
    request.spec.location = place;
    request.ask(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_laid_out_as_the_kernel_reads_them() {
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
    fn what_no_rule_can_say_is_refused() {
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
