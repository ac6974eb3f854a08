//! What the owner of a switch has set about a port: VLAN, limits, filters. Nothing, for most.
//!
//! ```text
//!                 in: what the port sends                               out: what it would receive
//! port == line ==> filter, VLAN, (where to), storm, limit ==> switch ==> VLAN, filter, limit ==> line == port
//! ```
//! A packet that is refused is dropped and counted, by reason; nobody waits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unetmap_sys::clock;
use unetmap_sys::xdp::ClassicProgram;

use crate::forward::Lost;
use crate::port::Attached;
use unetmap_core::control::nic::Filter;
pub(crate) use unetmap_core::control::vale_policy::{Direction, Vlan};
use unetmap_core::control::vale_policy::{Limit, Rules};

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
    pub(crate) fn gate(&self, direction: Direction) -> Gate<'_> {
        let (limit, way) = (self.rules.limits[direction as usize], direction as usize);
        let limited = limit != Limit::default() || direction == Direction::In && self.rules.storm > 0;
        let now = if limited { u128::from(clock::now_ns()) * NS } else { 0 };
        let meters = self.meters[way].lock().unwrap_or_else(PoisonError::into_inner);
        Gate { program: self.programs[way].as_ref(), meters, now }
    }
}

/// A gate that packets pass one after the other.
pub(crate) struct Gate<'a> {
    program: Option<&'a ClassicProgram>,
    meters: MutexGuard<'a, Meters>,
    now: u128,
}

impl Gate<'_> {
    /// Whether the filter lets this frame pass.
    pub(crate) fn admits(&self, frame: &[u8]) -> Result<(), Lost> {
        match self.program {
            Some(program) if !program.accepts(frame) => Err(Lost::Filter),
            _ => Ok(()),
        }
    }

    /// Whether one more packet to all is allowed.
    pub(crate) fn calm(&mut self) -> Result<(), Lost> {
        match self.meters.storm.ready(self.now) {
            true => {
                self.meters.storm.take(self.now, 1);
                Ok(())
            }
            false => Err(Lost::Storm),
        }
    }

    /// Whether a frame of so many bytes is within the limits; it then counts.
    pub(crate) fn within(&mut self, bytes: usize) -> Result<(), Lost> {
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
pub(crate) struct Book {
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
    pub(crate) fn new(members: &[Option<Arc<Attached>>], (least, batch): (u32, u32)) -> Book {
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
    pub(crate) fn concerns(&self, port: u8) -> bool {
        self.all || self.of(port).is_some()
    }

    /// Of one port.
    #[inline(always)]
    pub(crate) fn of(&self, port: u8) -> Option<&Ruled> {
        self.ports.get(usize::from(port))?.as_deref()
    }

    /// Slots that are taken at once at most.
    #[inline(always)]
    pub(crate) fn turn(&self) -> u32 {
        self.turn
    }

    /// Whether frames are looked at for their VLANs at all.
    pub(crate) fn has_vlans(&self) -> bool {
        self.vlans
    }

    /// What is said of the VLANs of a port.
    pub(crate) fn vlan_of(&self, port: u8) -> Option<&Vlan> {
        self.of(port)?.rules.vlan.as_ref()
    }

    /// Whether a port receives frames of VLAN `vlan` (0: none).
    pub(crate) fn carries(&self, port: u8, vlan: u16) -> bool {
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
