// SPDX-License-Identifier: BSD-2-Clause
//! The kernel's path between persistent ports: a tcx program at each hidden end forwards packets to other hidden ends
//! by a table of addresses (Linux 6.6). It is `bpf/switch.c`, embedded as a compiled object.
//!
//! The program and its maps stay at the interfaces, which need no process: the next daemon finds them there.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use crate::bpf::{self, Hook, hash, load_classifier};
use crate::link::veth::{self, Aliased};
use crate::tcx;

/// `bpf/switch.c`, compiled.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/switch.o");

/// The program at a hidden end's ingress.
const PROGRAM: &str = "unetmap_switch";

/// Ports and addresses that the maps have room for: `max_entries` in switch.c.
pub const MAX_PORTS: usize = 4096;
/// See [`MAX_PORTS`].
pub const MAX_ADDRESSES: usize = 16384;

/// `struct count` of switch.c.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct RawCount {
    packets: u64,
    bytes: u64,
    unused: [u64; 6],
}

/// `struct port` of switch.c.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct RawPort {
    switch: u32,
    unused: u32,
    sent: RawCount,
    received: RawCount,
}

/// `struct address` of switch.c.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
struct RawAddress {
    switch: u32,
    mac: [u8; 6],
    zero: u16,
}

/// `struct place` of switch.c.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct RawPlace {
    port: u32,
    used: u32,
}

/// An address, and the hidden end behind which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KnownAddress {
    /// The number of the switch.
    pub switch: u32,
    /// In wire order.
    pub mac: [u8; 6],
    /// Interface index of the hidden end.
    pub port: u32,
}

/// Packets that the kernel forwarded for a port, since the port takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Forwarded {
    /// Packets from the port; one of many segments is one.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets to the port.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
}

impl Forwarded {
    fn of(port: &RawPort) -> Forwarded {
        let RawPort { sent, received, .. } = port;
        Forwarded {
            sent: sent.packets,
            sent_bytes: sent.bytes,
            received: received.packets,
            received_bytes: received.bytes,
        }
    }

    /// Combines each number with that of another.
    #[must_use]
    pub fn combine(self, other: Forwarded, with: fn(u64, u64) -> u64) -> Forwarded {
        Forwarded {
            sent: with(self.sent, other.sent),
            sent_bytes: with(self.sent_bytes, other.sent_bytes),
            received: with(self.received, other.received),
            received_bytes: with(self.received_bytes, other.received_bytes),
        }
    }
}

/// The result of [`KernelPath::set`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Found {
    /// The packets of each port, the last ones of those that no longer take part included.
    pub forwarded: Vec<(u32, Forwarded)>,
    /// Switch and address of those that have sent packets since the last call.
    pub used: Vec<(u32, [u8; 6])>,
}

/// The program, and its maps.
#[derive(Debug)]
pub struct KernelPath {
    program: OwnedFd,
    ports: OwnedFd,
    addresses: OwnedFd,
}

impl KernelPath {
    /// Loads the program, or finds the one that an earlier process has left at a veth of the calling thread's network
    /// namespace, if it is the same. Others are detached.
    ///
    /// # Errors
    /// `EINVAL`: a kernel before 6.6. `EPERM`: needs `CAP_NET_ADMIN` and `CAP_BPF`.
    pub fn open() -> io::Result<KernelPath> {
        let mut object = bpf::load(OBJECT, &[])?;
        let program = load_classifier(&mut object, PROGRAM)?;
        let code = bpf::program_info(&program)?.tag;
        let mut found: Option<(KernelPath, u32)> = None;
        for Aliased { index, .. } in veth::all_with_aliases()? {
            let Some((left, id)) = tcx::attached(index, Hook::Ingress, PROGRAM)? else { continue };
            if found.as_ref().is_some_and(|(_, of)| *of == id) {
                continue;
            }
            let info = bpf::program_info(&left)?;
            match (bpf::map_of(&info, "ports")?, bpf::map_of(&info, "addresses")?) {
                (Some(ports), Some(addresses)) if info.tag == code && found.is_none() => {
                    found = Some((KernelPath { program: left, ports, addresses }, id));
                }
                // Nobody would write its maps.
                _ => tcx::detach(index, Hook::Ingress, PROGRAM)?,
            }
        }
        if let Some((path, _)) = found {
            return Ok(path);
        }
        Ok(KernelPath { program, ports: hash::of(&object, "ports")?, addresses: hash::of(&object, "addresses")? })
    }

    /// Attaches the program to a hidden end, before all other programs, in place of one that has stayed, and asks the
    /// kernel whether it is there.
    fn attach(&self, hidden: u32) -> io::Result<()> {
        let own = bpf::program_info(&self.program)?.id;
        let is_own = |left: &Option<(OwnedFd, u32)>| left.as_ref().is_some_and(|(_, id)| *id == own);
        let old = tcx::attached(hidden, Hook::Ingress, PROGRAM)?;
        if is_own(&old) {
            return Ok(());
        }
        bpf::attach_tcx_first(self.program.as_fd(), hidden, Hook::Ingress, old.as_ref().map(|(old, _)| old.as_fd()))?;
        match is_own(&tcx::attached(hidden, Hook::Ingress, PROGRAM)?) {
            true => Ok(()),
            false => Err(io::Error::other("the kernel does not show the program that it has attached")),
        }
    }

    /// Returns the addresses that the program knows.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn places(&self) -> io::Result<Vec<KnownAddress>> {
        let places = self.raw_places()?.into_iter().filter(|(_, place)| place.port != 0);
        Ok(places
            .map(|(RawAddress { switch, mac, .. }, RawPlace { port, .. })| KnownAddress { switch, mac, port })
            .collect())
    }

    /// Has these hidden ends of the calling thread's network namespace take part, each as a port of a switch, and none
    /// else; these addresses are known, and none else. What is taken out is out first.
    ///
    /// # Errors
    /// As [`KernelPath::open`]; `E2BIG`: more than the maps have room for.
    pub fn set(&self, ports: &[(u32, u32)], places: &[KnownAddress]) -> io::Result<Found> {
        let mut found = Found::default();
        let wanted: BTreeMap<u32, u32> = ports.iter().copied().collect();
        let mut present = BTreeSet::new();
        for index in self.port_indexes()? {
            let Some(port) = self.port(index)? else { continue };
            if wanted.get(&index) == Some(&port.switch) {
                present.insert(index);
                found.forwarded.push((index, Forwarded::of(&port)));
                continue;
            }
            let mut last = port;
            // SAFETY: K5: the elements of `ports` in switch.c are of these types.
            if unsafe { hash::take(&self.ports, &index, &mut last) }? {
                found.forwarded.push((index, Forwarded::of(&last)));
            }
        }
        let wanted_places: BTreeMap<RawAddress, u32> = places
            .iter()
            .map(|place| (RawAddress { switch: place.switch, mac: place.mac, zero: 0 }, place.port))
            .collect();
        let mut known = BTreeSet::new();
        for (address, place) in self.raw_places()? {
            if place.used != 0 {
                found.used.push((address.switch, address.mac));
            }
            match wanted_places.get(&address) {
                Some(port) if *port == place.port && place.used == 0 => drop(known.insert(address)),
                Some(_) => {}
                // SAFETY: K5: the elements of `addresses` in switch.c have keys of type `struct address`.
                None => unsafe { hash::delete(&self.addresses, &address) }?,
            }
        }
        for (address, &port) in wanted_places.iter().filter(|(address, _)| !known.contains(*address)) {
            // SAFETY: K5: the elements of `addresses` in switch.c are of these types.
            unsafe { hash::set(&self.addresses, address, &RawPlace { port, used: 0 }) }?;
        }
        for (index, &switch) in wanted.iter().filter(|(index, _)| !present.contains(*index)) {
            match self.attach(*index) {
                // It is removed at this moment.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => continue,
                attached => attached?,
            }
            // SAFETY: K5: the elements of `ports` in switch.c are of these types.
            unsafe { hash::set(&self.ports, index, &RawPort { switch, ..RawPort::default() }) }?;
        }
        Ok(found)
    }

    fn port(&self, index: u32) -> io::Result<Option<RawPort>> {
        let mut port = RawPort::default();
        // SAFETY: K5: the elements of `ports` in switch.c are of these types.
        Ok(unsafe { hash::get(&self.ports, &index, &mut port) }?.then_some(port))
    }

    fn port_indexes(&self) -> io::Result<Vec<u32>> {
        // SAFETY: K5: the elements of `ports` in switch.c have keys of type u32.
        unsafe { hash::keys(&self.ports, MAX_PORTS) }
    }

    fn raw_places(&self) -> io::Result<Vec<(RawAddress, RawPlace)>> {
        // SAFETY: K5: the elements of `addresses` in switch.c have keys of type `struct address`.
        let keys: Vec<RawAddress> = unsafe { hash::keys(&self.addresses, MAX_ADDRESSES) }?;
        let mut all = Vec::with_capacity(keys.len());
        for address in keys {
            let mut place = RawPlace::default();
            // SAFETY: K5: the elements of `addresses` in switch.c are of these types.
            if unsafe { hash::get(&self.addresses, &address, &mut place) }? {
                all.push((address, place));
            }
        }
        Ok(all)
    }
}
