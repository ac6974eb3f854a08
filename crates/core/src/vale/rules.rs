//! What the owner of a switch has set about a port: VLAN, limits, filters. Nothing, for most.
//!
//! ```text
//!                 in: what the port sends                               out: what it would receive
//! port == line ==> filter, VLAN, (where to), storm, limit ==> switch ==> VLAN, filter, limit ==> line == port
//! ```
//! A packet that is refused is dropped and counted, by reason; nobody waits.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unetmap_sys::clock;
use unetmap_sys::xdp::ClassicProgram;

use super::forward::Lost;
use super::port::Attached;
use crate::nic::Filter;

/// VLANs that there are: 1..=4094.
pub const VLANS: std::ops::RangeInclusive<u16> = 1..=4094;
/// Instructions that the filters of all ports of a switch may have together: what a packet to all may cost at most, about
/// 20 us.
pub const MOST_INSNS: usize = 16384;
/// Instructions that a batch costs at most, about; it is the smaller the more there are for a packet.
const TURN_INSNS: usize = 1 << 20;
/// A port may send at once what its limit allows in this time.
const BURST: u128 = 100 * MS;

/// Femtoseconds, in which even the time of a bit can be told.
const MS: u128 = 1_000_000_000_000;
const SECOND: u128 = 1000 * MS;
const NS: u128 = MS / 1_000_000;

/// A set of VLANs.
#[derive(Clone, PartialEq, Eq)]
pub struct Vlans(Box<[u64; 64]>);

impl Vlans {
    /// Bytes that tell it.
    pub const BYTES: usize = 512;

    /// The VLANs of these ranges.
    pub fn new(ranges: impl IntoIterator<Item = std::ops::RangeInclusive<u16>>) -> Vlans {
        let mut set = Vlans(Box::new([0; 64]));
        for vlan in ranges.into_iter().flatten().filter(|vlan| VLANS.contains(vlan)) {
            set.0[usize::from(vlan / 64)] |= 1 << (vlan % 64);
        }
        set
    }

    /// Whether this one is among them.
    #[inline]
    pub fn has(&self, vlan: u16) -> bool {
        self.0.get(usize::from(vlan / 64)).is_some_and(|word| word & 1 << (vlan % 64) != 0)
    }

    /// The bytes that [`Vlans::from_bytes`] takes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// `None`: the bytes are not [`Vlans::BYTES`], none is in the set, or one that does not exist.
    pub fn from_bytes(bytes: &[u8]) -> Option<Vlans> {
        let mut set = Vlans(Box::new([0; 64]));
        let words = bytes.as_chunks::<8>();
        if bytes.len() != Vlans::BYTES {
            return None;
        }
        set.0.iter_mut().zip(words.0).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        let exist = !set.has(0) && !set.has(4095) && set.0.iter().any(|word| *word != 0);
        exist.then_some(set)
    }
}

impl fmt::Display for Vlans {
    /// As people write it: `10,20-30`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut vlan, mut separator) = (*VLANS.start(), "");
        while vlan <= *VLANS.end() {
            if !self.has(vlan) {
                vlan += 1;
                continue;
            }
            let first = vlan;
            while self.has(vlan + 1) {
                vlan += 1;
            }
            write!(f, "{separator}{first}")?;
            if vlan > first {
                write!(f, "-{vlan}")?;
            }
            (vlan, separator) = (vlan + 1, ",");
        }
        Ok(())
    }
}

impl fmt::Debug for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vlans({self})")
    }
}

/// Which VLANs a port is in. A port of which nothing is said is in all, and in none: its frames are what they are, and it
/// receives those of VLANs with a tag.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Vlan {
    /// In this one: its frames have no tag, and get it on the switch.
    Access(u16),
    /// In these: its frames have a tag that says which.
    Trunk(Vlans),
}

impl Vlan {
    /// Whether a port of which this is said receives frames of VLAN `vlan` (0: none).
    #[inline]
    fn carries(&self, vlan: u16) -> bool {
        match self {
            Vlan::Access(own) => *own == vlan,
            Vlan::Trunk(all) => all.has(vlan),
        }
    }
}

/// Which way, seen from the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// What the port sends.
    In = 0,
    /// What it receives.
    Out = 1,
}

/// How much a port may send, or receives, in a second. 0: as much as it can.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limit {
    /// Packets.
    pub packets: u64,
    /// Bits of their frames, without checksums and virtio-net headers.
    pub bits: u64,
}

/// Everything that is set about a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// Its VLANs.
    pub vlan: Option<Vlan>,
    /// By [`Direction`].
    pub limits: [Limit; 2],
    /// Packets to all (broadcast, multicast, and to addresses that are not known) that it may send in a second; 0: any.
    pub storm: u64,
    /// By [`Direction`]: packets that match pass.
    pub filters: [Option<Filter>; 2],
}

/// Rules at work.
pub struct Ruled {
    rules: Rules,
    programs: [Option<ClassicProgram>; 2],
    meters: [Mutex<Meters>; 2],
}

/// How much was used up, in one direction.
#[derive(Debug)]
struct Meters {
    packets: Meter,
    bits: Meter,
    storm: Meter,
}

impl Ruled {
    /// Puts rules to work.
    ///
    /// # Errors
    /// A filter is no program that ends; a sentence.
    pub fn new(rules: Rules) -> Result<Ruled, String> {
        let program = |filter: &Option<Filter>| filter.as_ref().map(|f| ClassicProgram::new(&f.program)).transpose();
        let [inward, outward] = &rules.filters;
        let programs = [program(inward)?, program(outward)?];
        let meters = |limit: Limit, storm| {
            Mutex::new(Meters {
                packets: Meter::new(limit.packets),
                bits: Meter::new(limit.bits),
                storm: Meter::new(storm),
            })
        };
        let meters = [meters(rules.limits[0], rules.storm), meters(rules.limits[1], 0)];
        Ok(Ruled { rules, programs, meters })
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Instructions of its filters.
    pub fn insns(&self) -> usize {
        self.programs.iter().flatten().map(ClassicProgram::len).sum()
    }

    /// To let packets through, a batch at a time.
    pub(super) fn gate(&self, direction: Direction) -> Gate<'_> {
        let (limit, way) = (self.rules.limits[direction as usize], direction as usize);
        let limited = limit != Limit::default() || direction == Direction::In && self.rules.storm > 0;
        let now = if limited { u128::from(clock::now_ns()) * NS } else { 0 };
        let meters = self.meters[way].lock().unwrap_or_else(PoisonError::into_inner);
        Gate { program: self.programs[way].as_ref(), meters, now }
    }
}

/// A gate that packets pass one after the other.
pub(super) struct Gate<'a> {
    program: Option<&'a ClassicProgram>,
    meters: MutexGuard<'a, Meters>,
    now: u128,
}

impl Gate<'_> {
    /// Whether the filter lets this frame pass.
    pub(super) fn admits(&self, frame: &[u8]) -> Result<(), Lost> {
        match self.program {
            Some(program) if !program.accepts(frame) => Err(Lost::Filter),
            _ => Ok(()),
        }
    }

    /// Whether one more packet to all is allowed.
    pub(super) fn calm(&mut self) -> Result<(), Lost> {
        match self.meters.storm.ready(self.now) {
            true => {
                self.meters.storm.take(self.now, 1);
                Ok(())
            }
            false => Err(Lost::Storm),
        }
    }

    /// Whether a frame of so many bytes is within the limits; it then counts.
    pub(super) fn within(&mut self, bytes: usize) -> Result<(), Lost> {
        let (meters, now) = (&mut *self.meters, self.now);
        if !meters.packets.ready(now) || !meters.bits.ready(now) {
            return Err(Lost::Rate);
        }
        meters.packets.take(now, 1);
        meters.bits.take(now, bytes as u128 * 8);
        Ok(())
    }
}

/// A bucket of tokens, told by the time at which it was full of what was taken: it is ready as long as that is no further
/// ahead than [`BURST`].
#[derive(Debug)]
struct Meter {
    /// Of one token; 0: there is no limit.
    time: u128,
    paid_until: u128,
}

impl Meter {
    fn new(per_second: u64) -> Meter {
        Meter { time: SECOND.checked_div(per_second.into()).unwrap_or(0), paid_until: 0 }
    }

    fn ready(&self, now: u128) -> bool {
        self.paid_until <= now + BURST
    }

    fn take(&mut self, now: u128, tokens: u128) {
        if self.time > 0 {
            self.paid_until = self.paid_until.max(now) + tokens * self.time;
        }
    }
}

/// The rules of all ports of a switch, as a thread sees them.
#[derive(Default)]
pub(super) struct Book {
    /// By number; empty when there are none.
    ports: Vec<Option<Arc<Ruled>>>,
    /// Some port has a VLAN.
    vlans: bool,
    /// What goes to some port may be refused there.
    all: bool,
    /// Slots that are taken at once at most.
    turn: u32,
}

impl Book {
    /// Of these ports, by number; a batch has `batch` slots where nothing is said, and `least` at least.
    pub(super) fn new(members: &[Option<Arc<Attached>>], (least, batch): (u32, u32)) -> Book {
        let ports: Vec<_> = members.iter().map(|port| port.as_ref().and_then(|port| port.ruled())).collect();
        let has = |what: fn(&Rules) -> bool| ports.iter().flatten().any(|ruled| what(&ruled.rules));
        let vlans = has(|rules| rules.vlan.is_some());
        let out = |rules: &Rules| rules.filters[1].is_some() || rules.limits[1] != Limit::default();
        let insns: usize = ports.iter().flatten().map(|ruled| ruled.insns()).sum();
        let turn = (TURN_INSNS / insns.max(1)).clamp(least as usize, batch as usize) as u32;
        match ports.iter().any(Option::is_some) {
            true => Book { vlans, all: vlans || has(out), ports, turn },
            false => Book { turn: batch, ..Book::default() },
        }
    }

    /// Whether the rules have a say in what this port sends.
    #[inline(always)]
    pub(super) fn concerns(&self, port: u8) -> bool {
        self.all || self.of(port).is_some()
    }

    /// Of one port.
    #[inline(always)]
    pub(super) fn of(&self, port: u8) -> Option<&Ruled> {
        self.ports.get(usize::from(port))?.as_deref()
    }

    /// Slots that are taken at once at most.
    #[inline(always)]
    pub(super) fn turn(&self) -> u32 {
        self.turn
    }

    /// Whether frames are looked at for their VLANs at all.
    pub(super) fn has_vlans(&self) -> bool {
        self.vlans
    }

    /// What is said of the VLANs of a port.
    pub(super) fn vlan_of(&self, port: u8) -> Option<&Vlan> {
        self.of(port)?.rules.vlan.as_ref()
    }

    /// Whether a port receives frames of VLAN `vlan` (0: none).
    pub(super) fn carries(&self, port: u8, vlan: u16) -> bool {
        self.vlan_of(port).is_none_or(|rule| rule.carries(vlan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_vlans() {
        let set = Vlans::new([10..=10, 20..=30, 0..=1, 4094..=4095, 64..=64]);
        assert_eq!(set.to_string(), "1,10,20-30,64,4094");
        assert!(set.has(25) && !set.has(0) && !set.has(4095) && !set.has(9) && !set.has(u16::MAX));
        assert_eq!(Vlans::from_bytes(&set.to_bytes()), Some(set));
        assert_eq!(Vlans::from_bytes(&[0; 512]), None);
        assert_eq!(Vlans::from_bytes(&[1; 511]), None);
        assert_eq!(Vlans::from_bytes(&[0xff; 512]), None);
    }

    #[test]
    fn a_meter_lets_pass_what_its_rate_allows() {
        for rate in [1u64, 7, 1000, 1_000_000, 40_000_000_000] {
            let mut meter = Meter::new(rate);
            let (mut now, mut passed) = (5 * SECOND, 0u64);
            // Ten seconds, in 1000 steps, each time as much as it takes, as a packet of many.
            for _ in 0..1000 {
                now += 10 * MS;
                let tokens = (rate / 1000).max(1);
                for _ in 0..100 {
                    if meter.ready(now) {
                        meter.take(now, tokens.into());
                        passed += tokens;
                    }
                }
            }
            // The first may be as much as BURST more, and the last packet stands over.
            let most = rate * 10 + rate / 10 + 2 * (rate / 1000).max(1);
            assert!((rate * 10..=most).contains(&passed), "{rate}: {passed}");
        }
        let mut none = Meter::new(0);
        (0..1000).for_each(|_| none.take(0, 1 << 40));
        assert!(none.ready(0));
    }

    #[test]
    fn a_packet_over_either_limit_costs_neither() {
        let limit = Limit { packets: 10, bits: 1000 };
        let ruled = Ruled::new(Rules { limits: [limit, Limit::default()], ..Default::default() }).unwrap();
        let mut gate = ruled.gate(Direction::In);
        assert_eq!(gate.within(1500), Ok(()));
        // 12 seconds of bits are taken; packets are not used up by what is refused.
        (0..100).for_each(|_| assert_eq!(gate.within(60), Err(Lost::Rate)));
        let packets = gate.meters.packets.paid_until;
        assert_eq!(packets, gate.now + SECOND / 10);
        drop(gate);
        let mut free = ruled.gate(Direction::Out);
        (0..1000).for_each(|_| assert_eq!((free.within(1500), free.calm()), (Ok(()), Ok(()))));
    }
}
