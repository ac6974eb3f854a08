// SPDX-License-Identifier: BSD-2-Clause
//! The kernel's path between persistent ports: what two of them say to each other need not leave the kernel.
//!
//! ```text
//! v0 ==== hidden end -- tcx program, by the switch's table ---- hidden end ==== v1      as they are, up to 64 KB
//!                       | what it does not know, or may not decide
//!                       companion -- packet socket, thread -- host end == switch        whole, too
//! ```
//! The daemon writes the table from that of the switch, as for a bridge whose forwarding a network card does. A port
//! takes part while its host end has its place in a switch, with no rules: a monitor is one of a program that has the
//! port open. An address behind it is in the kernel's table a moment after the switch has learned it. Everything else
//! goes to the switch's threads: broadcast, unknown addresses, addresses that have moved, and packets from or to ports
//! that do not take part.
//!
//! A flow that changes from the threads to the kernel can overtake what the threads have of it: once, when its
//! addresses become known. The counts are added to those of the host end ([`SwitchPort::set_by_kernel`]).
//!
//! [`SwitchPort::set_by_kernel`]: unetmap_switch::port::SwitchPort::set_by_kernel

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use unetmap_switch::fdb::{MAX_PORTS, MacTable};
use unetmap_sys::kernel_path::{KnownAddress, MAX_ADDRESSES};

use crate::tuning::kernel_path::ADDRESSES_OF_PORT;

/// The kernel's path as the daemon last had it set.
#[derive(Default)]
pub(super) struct KernelPath {
    /// The hidden ends that take part, each with the number of its switch; `None`: what an earlier daemon has set.
    pub(super) ports: Option<Vec<(u32, u32)>>,
    pub(super) places: Vec<KnownAddress>,
    /// The generation and the insertions of the table of each switch when its addresses were read.
    pub(super) read: BTreeMap<u32, (u64, u64)>,
    /// When it was last compared with the tables, and set.
    pub(super) looked: Option<Instant>,
    pub(super) set: Option<Instant>,
    /// Why it cannot be had.
    pub(super) obstacle: Option<String>,
}

// All ports of a switch have room.
const _: () = assert!(MAX_PORTS * ADDRESSES_OF_PORT <= MAX_ADDRESSES);

/// A port that can take part.
pub(super) struct Candidate {
    pub(super) hidden: u32,
    /// The number of its switch, and its own there.
    pub(super) switch: u32,
    pub(super) index: u8,
    pub(super) table: Arc<MacTable>,
}

impl KernelPath {
    /// Whether this hidden end takes part.
    pub(super) fn has(&self, hidden: u32) -> bool {
        self.ports().iter().any(|(port, _)| *port == hidden)
    }

    /// No earlier daemon has left anything.
    pub(super) fn is_new(&mut self) {
        self.ports = Some(Vec::new());
    }

    pub(super) fn ports(&self) -> &[(u32, u32)] {
        self.ports.as_deref().unwrap_or_default()
    }

    /// The addresses of a switch to which the kernel forwards packets, and the hidden ends behind which they are.
    pub(super) fn known(&self, switch: u32) -> BTreeSet<([u8; 6], u32)> {
        let of_switch = self.places.iter().filter(|place| place.switch == switch);
        of_switch.map(|place| (place.mac, place.port)).collect()
    }

    /// Whether the table of a switch has changed since its addresses were read.
    pub(super) fn is_behind(&self, candidates: &[Candidate]) -> bool {
        candidates.iter().any(|one| self.read.get(&one.switch) != Some(&state_of(&one.table)))
    }
}

/// Changes with each address that becomes known, moves or is removed.
pub(super) fn state_of(table: &MacTable) -> (u64, u64) {
    (table.generation(), table.insertions())
}

pub(super) fn ports_of(candidates: &[Candidate]) -> Vec<(u32, u32)> {
    candidates.iter().map(|one| (one.hidden, one.switch)).collect()
}

/// The addresses behind these ports, of each at most [`ADDRESSES_OF_PORT`], so that none takes others' room.
pub(super) fn places_of(candidates: &[Candidate]) -> Vec<KnownAddress> {
    let tables: BTreeMap<u32, &MacTable> = candidates.iter().map(|one| (one.switch, &*one.table)).collect();
    let ports: BTreeMap<(u32, u8), u32> = candidates.iter().map(|one| ((one.switch, one.index), one.hidden)).collect();
    let (mut places, mut counts) = (Vec::new(), BTreeMap::new());
    for (switch, table) in tables {
        for entry in table.entries() {
            let Some(port) = ports.get(&(switch, entry.port)).filter(|_| entry.vlan == 0) else { continue };
            let count: &mut usize = counts.entry(*port).or_default();
            *count += 1;
            if *count <= ADDRESSES_OF_PORT && places.len() < MAX_ADDRESSES {
                places.push(KnownAddress { switch, mac: entry.mac, port: *port });
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use unetmap_switch::fdb::Mac;

    use super::*;

    fn mac(port: u8, n: u16) -> [u8; 6] {
        let [high, low] = n.to_be_bytes();
        [2, 0, 0, port, high, low]
    }

    #[test]
    fn a_port_with_many_addresses_takes_no_room_of_others() {
        let table = Arc::new(MacTable::new());
        (0..2000).for_each(|n| table.learn(Mac::new(mac(0, n)), 0));
        table.learn(Mac::new(mac(1, 7)), 1);
        // A port that does not take part.
        table.learn(Mac::new(mac(2, 7)), 2);
        let candidate = |index: u8| Candidate { hidden: 10 + u32::from(index), switch: 3, index, table: table.clone() };
        let places = places_of(&[candidate(0), candidate(1)]);
        let of = |hidden| places.iter().filter(|place| place.port == hidden).count();
        assert_eq!((of(10), of(11), places.len()), (ADDRESSES_OF_PORT, 1, ADDRESSES_OF_PORT + 1));
        assert!(places.contains(&KnownAddress { switch: 3, mac: mac(1, 7), port: 11 }));
    }
}
