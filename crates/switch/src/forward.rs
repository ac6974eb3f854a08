//! Where packets go: decided for a batch of one source, and listed by destination.
//!
//! A packet is a chain of 1 to [`MAX_FRAGS`] slots; the first tells where to. The lists keep the order of the batch, and
//! what goes to all is merged in, so that no two packets overtake each other on the way to a port.

use unetmap_abi::{NS_MOREFRAG, NS_NO_LEARN};
use unetmap_mem::ADDRESSES;

use crate::fdb::{Mac, PORTS, Table};

/// Slots that one packet may take.
pub const MAX_FRAGS: u32 = 64;
/// Bytes of an Ethernet header: a frame that is shorter goes nowhere.
pub const HEADER: u16 = 14;
/// Slots of a batch at most.
pub const BATCH: usize = 512;
/// Packets that make it worth while to treat them as a run.
pub const SHORT_RUN: u32 = 8;
/// In the flags of a slot, as a port's number: to all others.
const EVERYBODY: u8 = 254;

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// To one port, which may not exist.
    Port(u8),
    /// To all ports but its own.
    All,
    /// Nowhere.
    Nowhere(Lost),
}

/// Why a packet that was sent reaches no port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// Its first slot has less than an Ethernet header.
    Short,
    /// A slot's buffer does not exist, or its length is beyond the buffer.
    Bad,
    /// It is spread over too many slots.
    Long,
    /// Its destination is behind the very port that sent it.
    Home,
    /// There is no such port, or no other port at all (in its VLAN).
    Nobody,
    /// Its port's filter refuses it.
    Filter,
    /// Its port, or the one that it is sent to, is not in its VLAN.
    Vlan,
    /// Its port sent more to all than it may.
    Storm,
    /// Its port sent more than it may.
    Rate,
    /// The switch itself failed; counted in slots.
    Fault,
}

impl Lost {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Lost; 10] = [
        Lost::Short,
        Lost::Bad,
        Lost::Long,
        Lost::Home,
        Lost::Nobody,
        Lost::Filter,
        Lost::Vlan,
        Lost::Storm,
        Lost::Rate,
        Lost::Fault,
    ];

    /// One word.
    pub const fn name(self) -> &'static str {
        match self {
            Lost::Short => "short",
            Lost::Bad => "bad",
            Lost::Long => "long",
            Lost::Home => "home",
            Lost::Nobody => "nobody",
            Lost::Filter => "filter",
            Lost::Vlan => "vlan",
            Lost::Storm => "storm",
            Lost::Rate => "rate",
            Lost::Fault => "fault",
        }
    }
}

/// What a source remembers of the table, good as long as the table's generation stays.
#[derive(Debug)]
pub struct Memory {
    generation: u64,
    source: Option<Mac>,
    destination: Option<(Mac, Target)>,
    /// The addresses of the last packet, if all that begin so have this target, and nothing is to be learned from them.
    run: Option<([u8; ADDRESSES], Target)>,
}

impl Memory {
    /// Packets that begin with these addresses go to this port or to all, and teach nothing new. True until the table changes, or
    /// [`decide`] is called.
    #[inline]
    pub fn run(&self, table: &Table) -> Option<([u8; ADDRESSES], Target)> {
        self.run.filter(|_| self.generation == table.generation())
    }

    /// The station whose packets teach nothing new. Good for a batch, or until [`decide`] is called.
    #[inline]
    pub fn source(&self, table: &Table) -> Option<Mac> {
        self.source.filter(|_| self.generation == table.generation())
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { generation: u64::MAX, source: None, destination: None, run: None }
    }
}

/// Decides where the packet of port `me` goes that starts with a slot of `len` bytes with `flags`, and with the bytes
/// `header`, in VLAN `vlan` (0: none); learns where its sender is.
#[inline(always)]
pub fn decide(
    table: &Table,
    memory: &mut Memory,
    me: u8,
    (len, flags): (u16, u16),
    (header, vlan): ([u8; 16], u16),
) -> Target {
    if len < HEADER {
        return Target::Nowhere(Lost::Short);
    }
    let (destination, source) = Mac::pair(header, vlan);
    let generation = table.generation();
    if memory.generation != generation {
        *memory = Memory { generation, ..Memory::default() };
    }
    memory.run = None;
    if memory.source != Some(source) && flags & NS_NO_LEARN == 0 && !source.is_multicast() {
        table.learn(source, me);
        // If that changed the table, all is asked anew with the next packet.
        memory.source = Some(source);
    }
    match (flags >> 8) as u8 {
        0 => {}
        EVERYBODY => return Target::All,
        port if port == me => return Target::Nowhere(Lost::Home),
        port => return Target::Port(port),
    }
    let target = match memory.destination {
        Some((known, target)) if known == destination => target,
        _ => look_up(table, me, destination),
    };
    memory.destination = Some((destination, target));
    if !matches!(target, Target::Nowhere(_)) && (memory.source == Some(source) || source.is_multicast()) {
        let mut addresses = [0; ADDRESSES];
        addresses.copy_from_slice(&header[..ADDRESSES]);
        memory.run = Some((addresses, target));
    }
    target
}

#[inline]
fn look_up(table: &Table, me: u8, destination: Mac) -> Target {
    if destination.is_multicast() {
        return Target::All;
    }
    match table.port_of(destination) {
        None => Target::All,
        Some(port) if port == me => Target::Nowhere(Lost::Home),
        Some(port) => Target::Port(port),
    }
}

/// A packet of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Slots of the batch before its first.
    pub at: u16,
    /// Slots it takes, 1..=[`MAX_FRAGS`].
    pub frags: u16,
}

/// The packets of a batch by destination.
pub struct Lists {
    packets: Vec<Packet>,
    /// The next packet to the same destination, for each packet; `END`: none.
    next: Vec<u16>,
    /// First and last packet to each port; the last list is of those that go to all.
    heads: Box<[(u16, u16)]>,
    /// The ports that have a list, in the order of their first packets.
    used: Vec<u8>,
}

const END: u16 = u16::MAX;
/// The list of what goes to all.
const TO_ALL: usize = PORTS;

impl Default for Lists {
    fn default() -> Lists {
        Lists::new()
    }
}

impl Lists {
    /// Empty lists.
    pub fn new() -> Lists {
        Lists {
            packets: Vec::with_capacity(BATCH),
            next: Vec::with_capacity(BATCH),
            heads: vec![(END, END); PORTS + 1].into(),
            used: Vec::with_capacity(PORTS),
        }
    }

    /// Empties them.
    pub fn clear(&mut self) {
        for port in self.used.drain(..) {
            self.heads[usize::from(port)] = (END, END);
        }
        self.heads[TO_ALL] = (END, END);
        self.packets.clear();
        self.next.clear();
    }

    /// Adds the next packet of the batch, to one port or (`None`) to all.
    #[inline(always)]
    pub fn add(&mut self, packet: Packet, port: Option<u8>) {
        let number = self.packets.len() as u16;
        self.packets.push(packet);
        self.next.push(END);
        let list = port.map_or(TO_ALL, usize::from);
        let Some((first, last)) = self.heads.get_mut(list) else { return };
        if *first == END {
            *first = number;
            self.used.extend(port);
        } else {
            self.next[usize::from(*last)] = number;
        }
        *last = number;
    }

    /// The ports that packets go to alone.
    pub fn ports(&self) -> &[u8] {
        &self.used
    }

    /// Whether something goes to all.
    pub fn any_to_all(&self) -> bool {
        self.heads[TO_ALL].0 != END
    }

    /// What goes to all.
    pub fn to_all(&self) -> impl Iterator<Item = Packet> {
        self.merged(END, self.heads[TO_ALL].0)
    }

    /// The packets to `port`, those to all among them, in the order of the batch.
    #[inline]
    pub fn of(&self, port: u8) -> impl Iterator<Item = Packet> {
        self.merged(self.heads.get(usize::from(port)).map_or(END, |list| list.0), self.heads[TO_ALL].0)
    }

    /// The packets of two lists, by their first, in the order of the batch.
    #[inline(always)]
    fn merged(&self, mut own: u16, mut all: u16) -> impl Iterator<Item = Packet> {
        std::iter::from_fn(move || {
            // END is larger than any number.
            let from = if own <= all { &mut own } else { &mut all };
            let packet = *self.packets.get(usize::from(*from))?;
            *from = self.next[usize::from(*from)];
            Some(packet)
        })
    }
}

/// How the slots of a batch divide into packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// A whole packet.
    Packet(Packet),
    /// A piece of a packet that is too long.
    Long {
        /// Whether it is the first piece.
        first: bool,
    },
}

/// Cuts batches of one source into packets. What follows a batch that was cut inside a packet belongs to that.
#[derive(Debug, Default)]
pub struct Cutter {
    /// In the middle of a packet that is too long.
    skipping: bool,
}

impl Cutter {
    /// Whether the next slot begins a packet.
    #[inline(always)]
    pub fn at_start(&self) -> bool {
        !self.skipping
    }

    /// Cuts the first `n` slots, whose flags `flags` tells; calls `found` for each packet and each piece of one that is too
    /// long. Returns how many slots that were: a packet that ends beyond them is left for the next batch, unless nothing
    /// follows (`all`): then it ends there.
    #[inline(always)]
    pub fn cut(&mut self, n: u32, all: bool, flags: impl Fn(u32) -> u16, mut found: impl FnMut(Cut)) -> u32 {
        let mut first = 0;
        for i in 0..n {
            let more = flags(i) & NS_MOREFRAG != 0 && !(all && i + 1 == n);
            let frags = i + 1 - first;
            if more && !self.skipping && frags <= MAX_FRAGS {
                continue;
            }
            if self.skipping || frags > MAX_FRAGS {
                found(Cut::Long { first: !self.skipping });
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
        table: Table,
        memories: [Memory; 4],
    }

    impl Switch {
        fn new() -> Switch {
            Switch { table: Table::new(), memories: Default::default() }
        }

        fn send(&mut self, me: u8, flags: u16, to: [u8; 6], from: [u8; 6]) -> Target {
            let memory = &mut self.memories[usize::from(me)];
            let target = decide(&self.table, memory, me, (60, flags), (header(to, from), 0));
            // What is said of a run is what each of its packets would be told.
            if let Some((addresses, expected)) = memory.run(&self.table) {
                assert_eq!((&addresses[..6], &addresses[6..]), (&to[..], &from[..]));
                let mut again = Memory::default();
                let before = self.table.generation();
                assert_eq!(decide(&self.table, &mut again, me, (60, 0), (header(to, from), 0)), expected);
                assert_eq!(self.table.generation(), before, "it taught something");
            }
            target
        }
    }

    #[test]
    fn what_is_learned_is_found() {
        let mut s = Switch::new();
        assert_eq!(s.send(0, 0, B, A), Target::All);
        assert_eq!(s.send(1, 0, A, B), Target::Port(0));
        // Although port 0 had found nobody with this address before.
        assert_eq!(s.send(0, 0, B, A), Target::Port(1));
        assert_eq!(s.send(0, 0, A, A), Target::Nowhere(Lost::Home));
        assert_eq!(s.send(0, 0, [0xff; 6], A), Target::All);
        assert_eq!(s.send(0, 0, [1, 0, 0, 0, 0, 0], A), Target::All);
        assert_eq!(s.memories[0].run(&s.table).map(|run| run.1), Some(Target::All));
        s.send(0, 0, B, A);
        assert_eq!(s.memories[0].run(&s.table).map(|run| run.1), Some(Target::Port(1)));
        s.send(0, 0, A, A);
        assert_eq!(s.memories[0].run(&s.table), None);
        // It moves, and moves back, however often it was heard before.
        assert_eq!(s.send(2, 0, B, A), Target::Port(1));
        assert_eq!(s.send(1, 0, A, B), Target::Port(2));
        assert_eq!(s.send(0, 0, B, A), Target::Port(1));
        assert_eq!(s.send(1, 0, A, B), Target::Port(0));
    }

    #[test]
    fn what_must_not_be_learned_is_not() {
        let mut s = Switch::new();
        s.send(1, 0, A, B);
        s.table.forget(0);
        s.send(0, NS_NO_LEARN, B, A);
        // The next one may have to be learned from: no run.
        assert_eq!((s.memories[0].run(&s.table), s.table.len()), (None, 1));
        s.table.forget(1);
        s.send(0, NS_NO_LEARN, B, A);
        s.send(0, 0, B, [3, 0, 0, 0, 0, 0]);
        assert!(s.table.is_empty());
        // A packet that may be learned from, behind one that must not.
        s.send(0, 0, B, A);
        assert_eq!(s.table.len(), 1);
    }

    #[test]
    fn a_named_port_beats_the_address() {
        let mut s = Switch::new();
        s.send(1, 0, A, B);
        assert_eq!(s.send(0, 3 << 8, B, A), Target::Port(3));
        assert_eq!(s.send(3, 3 << 8, B, A), Target::Nowhere(Lost::Home));
        assert_eq!(s.send(0, 254 << 8, B, A), Target::All);
        assert_eq!(s.send(0, 0, B, A), Target::Port(1));
    }

    #[test]
    fn what_is_no_frame_goes_nowhere() {
        let (table, mut memory) = (Table::new(), Memory::default());
        assert_eq!(decide(&table, &mut memory, 0, (13, 0), (header(B, A), 0)), Target::Nowhere(Lost::Short));
        assert!(table.is_empty());
        assert_eq!(decide(&table, &mut memory, 0, (14, 0), (header(B, A), 0)), Target::All);
    }

    proptest! {
        /// Each port gets what was meant for it and for all, in the order of the batch; a list that was used is as good as
        /// a new one.
        #[test]
        fn lists_keep_the_order(batches in prop::collection::vec(prop::collection::vec(0..6u8, 0..BATCH), 1..4)) {
            let mut lists = Lists::new();
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
                prop_assert_eq!(lists.any_to_all(), !all.is_empty());
                prop_assert_eq!(lists.to_all().collect::<Vec<_>>(), all);
            }
        }

        /// However a stream of slots is cut into batches, the packets are the same: chains as their flags say, and those
        /// that are too long left out once each.
        #[test]
        fn packets_do_not_depend_on_batches(
            chains in prop::collection::vec(prop_oneof![8 => 1..5u32, 1 => 60..70u32, 1 => 100..200u32], 1..30),
            steps in prop::collection::vec(65..BATCH as u32, 1..20),
        ) {
            let flags: Vec<u16> = chains
                .iter()
                .flat_map(|&n| (0..n).map(move |i| if i + 1 < n { NS_MOREFRAG } else { 0 }))
                .collect();
            let (mut cutter, mut at, mut found, mut long) = (Cutter::default(), 0, Vec::new(), 0);
            for step in steps.into_iter().cycle() {
                let left = (flags.len() - at) as u32;
                let n = left.min(step);
                let done = cutter.cut(n, n == left, |i| flags[at + i as usize], |cut| match cut {
                    Cut::Packet(packet) => found.push(u32::from(packet.frags)),
                    Cut::Long { first } => long += u32::from(first),
                });
                prop_assert!(done > 0, "no way forward");
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
    fn a_packet_that_nothing_follows_ends() {
        let mut packets = Vec::new();
        let done = Cutter::default().cut(3, true, |_| NS_MOREFRAG, |cut| packets.push(cut));
        assert_eq!((done, packets), (3, vec![Cut::Packet(Packet { at: 0, frags: 3 })]));
    }
}
