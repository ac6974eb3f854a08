// SPDX-License-Identifier: BSD-2-Clause
//! The forwarding decision: where each packet of a batch goes, and the lists of packets by destination.
//!
//! A packet is a chain of 1 to [`MAX_FRAGS`] slots; its first slot determines the destination. The lists keep the
//! order of the batch, with flooded packets merged in, so that no packet overtakes another on the way to a port.

use unetmap_abi::{NS_MOREFRAG, NS_NO_LEARN};
use unetmap_mem::MAC_PAIR_BYTES;

use crate::fdb::{ETHERNET_HEADER, MAX_PORTS, Mac, MacTable};
use crate::policy::DropReason;
use crate::tuning::BATCH_SLOTS;

/// Slots that one packet may take.
pub const MAX_FRAGS: u32 = 64;
const _: () = assert!(BATCH_SLOTS.is_power_of_two() && BATCH_SLOTS > MAX_FRAGS as usize);
/// Destination port in the flags of a slot that means all other ports.
const BROADCAST_PORT: u8 = 254;

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// To this port, which may not exist.
    Port(u8),
    /// To all ports except the sender.
    Flood,
    /// To no port.
    Drop(DropReason),
}

/// Cached MAC table lookups of one source, valid while the table's generation does not change; those that found nothing
/// while its number of insertions does not change either.
#[derive(Debug)]
pub struct FlowCache {
    generation: u64,
    insertions: u64,
    /// The last source address that was learned.
    source: Option<Mac>,
    destination: Option<(Mac, Target)>,
    /// The addresses of the last packet and its target, if every packet with these addresses has this target and the
    /// table learns nothing from it.
    run: Option<([u8; MAC_PAIR_BYTES], Target)>,
}

impl FlowCache {
    /// Returns addresses and target (a port, or [`Target::Flood`]) of packets that need no decision and no learning.
    /// Valid until the table changes or [`decide`] is called.
    #[inline]
    pub fn run(&self, table: &MacTable) -> Option<([u8; MAC_PAIR_BYTES], Target)> {
        let is_current =
            |target| self.generation == table.generation() && (target != Target::Flood || self.knows_insertions(table));
        self.run.filter(|(_, target)| is_current(*target))
    }

    #[inline]
    fn knows_insertions(&self, table: &MacTable) -> bool {
        self.insertions == table.insertions()
    }

    /// Forgets what the table has changed since.
    #[inline(always)]
    fn update(&mut self, table: &MacTable) {
        let (generation, insertions) = (table.generation(), table.insertions());
        if self.generation != generation {
            *self = FlowCache { generation, insertions, ..FlowCache::default() };
        } else if self.insertions != insertions {
            self.insertions = insertions;
            self.destination = self.destination.filter(|(_, target)| *target != Target::Flood);
        }
        self.run = None;
    }

    /// Returns the source address that need not be learned again. Valid for one batch, or until [`decide`] is called.
    #[inline]
    pub fn source(&self, table: &MacTable) -> Option<Mac> {
        self.source.filter(|_| self.generation == table.generation())
    }
}

impl Default for FlowCache {
    fn default() -> FlowCache {
        FlowCache { generation: u64::MAX, insertions: 0, source: None, destination: None, run: None }
    }
}

/// Decides where a packet of port `source_port` goes that starts with a slot of `len` bytes with `flags`, and with the
/// bytes `header`, in VLAN `vlan` (0: none). Learns its source address.
#[inline(always)]
pub fn decide(
    table: &MacTable,
    cache: &mut FlowCache,
    source_port: u8,
    (len, flags): (u16, u16),
    (header, vlan): ([u8; 16], u16),
) -> Target {
    if len < ETHERNET_HEADER {
        return Target::Drop(DropReason::Runt);
    }
    let (destination, source) = Mac::pair(header, vlan);
    cache.update(table);
    if cache.source != Some(source) && flags & NS_NO_LEARN == 0 && !source.is_multicast() {
        table.learn(source, source_port);
        // If that changed the table, the cache is updated with the next packet.
        cache.source = Some(source);
    }
    match (flags >> 8) as u8 {
        0 => {}
        BROADCAST_PORT => return Target::Flood,
        port if port == source_port => return Target::Drop(DropReason::SamePort),
        port => return Target::Port(port),
    }
    let target = match cache.destination {
        Some((cached, target)) if cached == destination => target,
        _ => look_up(table, source_port, destination),
    };
    cache.destination = Some((destination, target));
    if !matches!(target, Target::Drop(_)) && (cache.source == Some(source) || source.is_multicast()) {
        let mut addresses = [0; MAC_PAIR_BYTES];
        addresses.copy_from_slice(&header[..MAC_PAIR_BYTES]);
        cache.run = Some((addresses, target));
    }
    target
}

#[inline]
fn look_up(table: &MacTable, source_port: u8, destination: Mac) -> Target {
    if destination.is_multicast() {
        return Target::Flood;
    }
    match table.port_of(destination) {
        None => Target::Flood,
        Some(port) if port == source_port => Target::Drop(DropReason::SamePort),
        Some(port) => Target::Port(port),
    }
}

/// A packet of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Index of its first slot in the batch.
    pub at: u16,
    /// Number of its slots, 1..=[`MAX_FRAGS`].
    pub frags: u16,
}

/// The packets of a batch by destination.
pub struct DestinationLists {
    packets: Vec<Packet>,
    /// For each packet, the next packet to the same destination; `END`: none.
    next: Vec<u16>,
    /// First and last packet of each port's list; the last element is the list of flooded packets.
    heads: Box<[(u16, u16)]>,
    /// The ports that have a list, in the order of their first packets.
    used: Vec<u8>,
    flooded_packets: u64,
}

const END: u16 = u16::MAX;
/// Index of the list of flooded packets.
const FLOODED: usize = MAX_PORTS;

impl Default for DestinationLists {
    fn default() -> DestinationLists {
        DestinationLists::new()
    }
}

impl DestinationLists {
    /// Empty lists.
    pub fn new() -> DestinationLists {
        DestinationLists {
            packets: Vec::with_capacity(BATCH_SLOTS),
            next: Vec::with_capacity(BATCH_SLOTS),
            heads: vec![(END, END); MAX_PORTS + 1].into(),
            used: Vec::with_capacity(MAX_PORTS),
            flooded_packets: 0,
        }
    }

    /// Empties the lists.
    pub fn clear(&mut self) {
        for port in self.used.drain(..) {
            self.heads[usize::from(port)] = (END, END);
        }
        self.heads[FLOODED] = (END, END);
        self.packets.clear();
        self.next.clear();
        self.flooded_packets = 0;
    }

    /// Adds the next packet of the batch, for one port or, with `None`, for all.
    #[inline(always)]
    pub fn add(&mut self, packet: Packet, port: Option<u8>) {
        let number = self.packets.len() as u16;
        self.packets.push(packet);
        self.next.push(END);
        self.flooded_packets += u64::from(port.is_none());
        let list = port.map_or(FLOODED, usize::from);
        let Some((first, last)) = self.heads.get_mut(list) else { return };
        if *first == END {
            *first = number;
            self.used.extend(port);
        } else {
            self.next[usize::from(*last)] = number;
        }
        *last = number;
    }

    /// Returns the ports that unicast packets go to.
    pub fn ports(&self) -> &[u8] {
        &self.used
    }

    /// True if a packet is flooded.
    pub fn any_flooded(&self) -> bool {
        self.heads[FLOODED].0 != END
    }

    /// True if packets go to this port that go to no other.
    pub fn has_own(&self, port: u8) -> bool {
        self.heads.get(usize::from(port)).is_some_and(|list| list.0 != END)
    }

    /// Returns the number of flooded packets.
    pub fn flooded_packets(&self) -> u64 {
        self.flooded_packets
    }

    /// Returns the number of packets that go to one port each.
    pub fn unicast_packets(&self) -> u64 {
        self.packets.len() as u64 - self.flooded_packets
    }

    /// Returns the flooded packets.
    pub fn flooded(&self) -> impl Iterator<Item = Packet> {
        self.merged(END, self.heads[FLOODED].0)
    }

    /// Returns the packets for `port`, flooded ones included, in the order of the batch.
    #[inline]
    pub fn of(&self, port: u8) -> impl Iterator<Item = Packet> {
        self.merged(self.heads.get(usize::from(port)).map_or(END, |list| list.0), self.heads[FLOODED].0)
    }

    /// Merges two lists, given by their first packets, in the order of the batch.
    #[inline(always)]
    fn merged(&self, mut unicast: u16, mut flooded: u16) -> impl Iterator<Item = Packet> {
        std::iter::from_fn(move || {
            // END is larger than any packet number.
            let from = if unicast <= flooded { &mut unicast } else { &mut flooded };
            let packet = *self.packets.get(usize::from(*from))?;
            *from = self.next[usize::from(*from)];
            Some(packet)
        })
    }
}

/// The next piece that [`PacketCutter::cut`] finds in the slots of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// A whole packet.
    Packet(Packet),
    /// A piece of a packet with more than [`MAX_FRAGS`] slots.
    TooLong {
        /// True for the first piece of that packet.
        first: bool,
    },
}

/// Divides the slots of one source into packets. Keeps the state of a packet with too many slots across batches.
#[derive(Debug, Default)]
pub struct PacketCutter {
    /// The next slot continues a packet that has too many slots.
    skipping: bool,
}

impl PacketCutter {
    /// One that goes on within a packet that has too many slots (`skipping`), or between packets.
    pub(crate) fn at(skipping: bool) -> PacketCutter {
        PacketCutter { skipping }
    }

    /// True if the next slot begins a packet.
    #[inline(always)]
    pub fn at_packet_start(&self) -> bool {
        !self.skipping
    }

    /// Divides `n` slots, whose flags `flags` returns, into packets; calls `found` for each packet and each piece of
    /// one that is too long. Returns the number of slots consumed: a packet that does not end within them is left for
    /// the next batch, unless the source has no further slots (`drained`), which ends the packet.
    #[inline(always)]
    pub fn cut(&mut self, n: u32, drained: bool, flags: impl Fn(u32) -> u16, mut found: impl FnMut(Cut)) -> u32 {
        let mut first = 0;
        for i in 0..n {
            let more = flags(i) & NS_MOREFRAG != 0 && !(drained && i + 1 == n);
            let frags = i + 1 - first;
            if more && !self.skipping && frags <= MAX_FRAGS {
                continue;
            }
            if self.skipping || frags > MAX_FRAGS {
                found(Cut::TooLong { first: !self.skipping });
                self.skipping = more;
            } else {
                found(Cut::Packet(Packet { at: first as u16, frags: frags as u16 }));
            }
            first = i + 1;
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(destination: [u8; 6], source: [u8; 6]) -> [u8; 16] {
        let mut header = [0xee; 16];
        header[..6].copy_from_slice(&destination);
        header[6..12].copy_from_slice(&source);
        header
    }

    const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

    struct Switch {
        table: MacTable,
        caches: [FlowCache; 4],
    }

    impl Switch {
        fn new() -> Switch {
            Switch { table: MacTable::new(), caches: Default::default() }
        }

        fn send(&mut self, me: u8, flags: u16, to: [u8; 6], from: [u8; 6]) -> Target {
            let cache = &mut self.caches[usize::from(me)];
            let target = decide(&self.table, cache, me, (60, flags), (header(to, from), 0));
            // The target of a run is the one that each of its packets would get.
            if let Some((addresses, expected)) = cache.run(&self.table) {
                assert_eq!((&addresses[..6], &addresses[6..]), (&to[..], &from[..]));
                let mut again = FlowCache::default();
                let before = self.table.generation();
                assert_eq!(decide(&self.table, &mut again, me, (60, 0), (header(to, from), 0)), expected);
                assert_eq!(self.table.generation(), before, "a packet of a run was learned from");
            }
            target
        }
    }

    #[test]
    fn learned_addresses_are_found() {
        let mut s = Switch::new();
        assert_eq!(s.send(0, 0, B, A), Target::Flood);
        assert_eq!(s.send(0, 0, B, A), Target::Flood);
        assert_eq!(s.caches[0].run(&s.table).map(|run| run.1), Some(Target::Flood));
        assert_eq!(s.send(1, 0, A, B), Target::Port(0));
        // Although port 0 had looked this address up before, without a result.
        assert_eq!(s.caches[0].run(&s.table), None);
        assert_eq!(s.send(0, 0, B, A), Target::Port(1));
        assert_eq!(s.send(0, 0, A, A), Target::Drop(DropReason::SamePort));
        assert_eq!(s.send(0, 0, [0xff; 6], A), Target::Flood);
        assert_eq!(s.send(0, 0, [1, 0, 0, 0, 0, 0], A), Target::Flood);
        assert_eq!(s.caches[0].run(&s.table).map(|run| run.1), Some(Target::Flood));
        s.send(0, 0, B, A);
        assert_eq!(s.caches[0].run(&s.table).map(|run| run.1), Some(Target::Port(1)));
        s.send(0, 0, A, A);
        assert_eq!(s.caches[0].run(&s.table), None);
        // An address moves to another port and back, however often it was learned before.
        assert_eq!(s.send(2, 0, B, A), Target::Port(1));
        assert_eq!(s.send(1, 0, A, B), Target::Port(2));
        assert_eq!(s.send(0, 0, B, A), Target::Port(1));
        assert_eq!(s.send(1, 0, A, B), Target::Port(0));
    }

    #[test]
    fn no_learn_and_multicast_sources_are_not_learned() {
        let mut s = Switch::new();
        s.send(1, 0, A, B);
        s.table.remove_port(0);
        s.send(0, NS_NO_LEARN, B, A);
        // The next packet may have to be learned from: no run.
        assert_eq!((s.caches[0].run(&s.table), s.table.len()), (None, 1));
        s.table.remove_port(1);
        s.send(0, NS_NO_LEARN, B, A);
        s.send(0, 0, B, [3, 0, 0, 0, 0, 0]);
        assert!(s.table.is_empty());
        // A packet that may be learned from, after one that must not.
        s.send(0, 0, B, A);
        assert_eq!(s.table.len(), 1);
    }

    #[test]
    fn a_port_in_the_flags_overrides_the_address() {
        let mut s = Switch::new();
        s.send(1, 0, A, B);
        assert_eq!(s.send(0, 3 << 8, B, A), Target::Port(3));
        assert_eq!(s.send(3, 3 << 8, B, A), Target::Drop(DropReason::SamePort));
        assert_eq!(s.send(0, 254 << 8, B, A), Target::Flood);
        assert_eq!(s.send(0, 0, B, A), Target::Port(1));
    }

    #[test]
    fn runts_are_dropped() {
        let (table, mut cache) = (MacTable::new(), FlowCache::default());
        assert_eq!(decide(&table, &mut cache, 0, (13, 0), (header(B, A), 0)), Target::Drop(DropReason::Runt));
        assert!(table.is_empty());
        assert_eq!(decide(&table, &mut cache, 0, (14, 0), (header(B, A), 0)), Target::Flood);
    }

    proptest! {
        /// Each port gets its unicast packets and the flooded ones, in the order of the batch; lists can be reused.
        #[test]
        fn lists_keep_the_order(batches in prop::collection::vec(prop::collection::vec(0..6u8, 0..BATCH_SLOTS), 1..4)) {
            let mut lists = DestinationLists::new();
            for batch in batches {
                lists.clear();
                let packet = |i: usize| Packet { at: i as u16, frags: 1 };
                for (i, to) in batch.iter().enumerate() {
                    lists.add(packet(i), (*to < 5).then_some(*to * 50));
                }
                for port in 0..=253u8 {
                    let mine = |to: &u8| *to == 5 || *to * 50 == port;
                    let expected: Vec<_> = (0..batch.len()).filter(|i| mine(&batch[*i])).map(packet).collect();
                    prop_assert_eq!(lists.of(port).collect::<Vec<_>>(), expected);
                    prop_assert_eq!(lists.ports().contains(&port), batch.iter().any(|to| *to < 5 && *to * 50 == port));
                }
                let all: Vec<_> = (0..batch.len()).filter(|i| batch[*i] == 5).map(packet).collect();
                prop_assert_eq!((lists.any_flooded(), lists.flooded_packets()), (!all.is_empty(), all.len() as u64));
                prop_assert_eq!(lists.flooded().collect::<Vec<_>>(), all);
            }
        }

        /// The packets do not depend on how a stream of slots is divided into batches: chains by their flags, and one
        /// drop for each that is too long.
        #[test]
        fn packets_do_not_depend_on_batches(
            chains in prop::collection::vec(prop_oneof![8 => 1..5u32, 1 => 60..70u32, 1 => 100..200u32], 1..30),
            steps in prop::collection::vec(65..BATCH_SLOTS as u32, 1..20),
        ) {
            let flags: Vec<u16> = chains
                .iter()
                .flat_map(|&n| (0..n).map(move |i| if i + 1 < n { NS_MOREFRAG } else { 0 }))
                .collect();
            let (mut cutter, mut at, mut found, mut long) = (PacketCutter::default(), 0, Vec::new(), 0);
            for step in steps.into_iter().cycle() {
                let left = (flags.len() - at) as u32;
                let n = left.min(step);
                let done = cutter.cut(n, n == left, |i| flags[at + i as usize], |cut| match cut {
                    Cut::Packet(packet) => found.push(u32::from(packet.frags)),
                    Cut::TooLong { first } => long += u32::from(first),
                });
                prop_assert!(done > 0, "no progress");
                at += done as usize;
                if at == flags.len() {
                    break;
                }
            }
            prop_assert_eq!(found, chains.iter().copied().filter(|n| *n <= MAX_FRAGS).collect::<Vec<_>>());
            prop_assert_eq!(long, chains.iter().filter(|n| **n > MAX_FRAGS).count() as u32);
        }
    }

    #[test]
    fn the_last_packet_of_a_source_ends_without_the_flag() {
        let mut packets = Vec::new();
        let done = PacketCutter::default().cut(3, true, |_| NS_MOREFRAG, |cut| packets.push(cut));
        assert_eq!((done, packets), (3, vec![Cut::Packet(Packet { at: 0, frags: 3 })]));
    }
}
