// SPDX-License-Identifier: BSD-2-Clause
//! The flows that packets belong to now, and their counts. All memory is allocated when the cache is made.
//!
//! ```text
//! hash --> two lines of 16 places: tag, time of the last packet   (a cache line each)
//!              place i of line l --> entry 16 l + i               (two cache lines)
//! ```
//! A lookup reads these two lines and no others, whatever the packets are. A flow that finds no free place there takes
//! that of the flow without a packet for the longest time, whose record ends early and says so.

use tool_common::host::memory::prefer_huge_pages;

use crate::packet::{Key, Packet};
use crate::tunnel::Kind;

/// Places of a line.
const PLACES: usize = 16;
/// Places of a line, on average, that are in use when the cache has as many flows as it was made for.
const FILLED: usize = 12;
/// With more free places in the first line of a hash, its second one is not looked for: lookups mostly read one line.
const ENOUGH: u32 = 4;
/// Milliseconds of the unit in which lines have times, which wrap around: see [`MAX_IDLE`].
const UNIT: u64 = 250;
/// The longest time without packets that is told from a shorter one, in milliseconds: half of what the times of lines
/// count.
pub(crate) const MAX_IDLE: u64 = UNIT * (1 << 15);
/// Milliseconds in which all lines are looked at for flows without packets.
pub(crate) const SWEEP: u64 = 1000;

/// Why a record ended; the numbers are IPFIX's `flowEndReason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// No packet for the idle time-out.
    Idle = 1,
    /// It lasted for the active time-out; later packets are in another record.
    Active = 2,
    /// The program, or the file, ended.
    Forced = 4,
    /// The cache had no place for it.
    Evicted = 5,
}

impl End {
    pub(crate) const ALL: [End; 4] = [End::Idle, End::Active, End::Forced, End::Evicted];

    pub(crate) fn name(self) -> &'static str {
        match self {
            End::Idle => "idle",
            End::Active => "active",
            End::Forced => "forced",
            End::Evicted => "evicted",
        }
    }
}

/// A flow's record. It has two counts of each: of the direction of the first packet, and of the other one, which has
/// none unless both directions are one flow; or, in programs that drop packets, of those that passed and of those that
/// did not.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Flow {
    pub(crate) key: Key,
    pub(crate) packets: [u64; 2],
    /// Bytes of IP packets.
    pub(crate) octets: [u64; 2],
    /// Bytes of frames.
    pub(crate) frames: [u64; 2],
    /// Times of the first and of the last packet, in milliseconds since 1970.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Union of the packets' TCP flags, of both directions or of all packets.
    pub(crate) tcp_flags: [u8; 2],
    /// Why the last packet was dropped of those that were: IPFIX's `forwardingStatus`. 0: none was.
    pub(crate) dropped: u8,
    /// Of the first packet.
    pub(crate) tos: u8,
    /// Of the first packet.
    pub(crate) tunnel: Kind,
    /// The first packet's direction is the other one of `key`.
    is_reversed: bool,
}

const _: () = assert!(size_of::<Flow>() == 128);

impl Flow {
    #[inline]
    fn begin(&mut self, packet: &Packet) {
        *self = Flow {
            key: packet.key,
            first: packet.time,
            tos: packet.tos,
            tunnel: packet.tunnel,
            is_reversed: packet.is_reversed,
            ..Flow::default()
        };
        self.add(packet);
    }

    #[inline]
    fn add(&mut self, packet: &Packet) {
        let way = usize::from(packet.is_reversed != self.is_reversed);
        self.tcp_flags[way] |= packet.tcp_flags;
        let mut column = way;
        if packet.dropped != 0 {
            (column, self.dropped) = (1, packet.dropped);
        }
        self.packets[column] += 1;
        self.octets[column] += u64::from(packet.octets);
        self.frames[column] += u64::from(packet.frame);
        self.last = packet.time;
    }

    /// The key in the direction of the first packet.
    pub(crate) fn directed(&self) -> Key {
        if self.is_reversed { self.key.reversed() } else { self.key }
    }
}

/// Receives what becomes of flows; each has a place of its own while it is in the cache.
pub(crate) trait Watch {
    fn ended(&mut self, place: usize, flow: &Flow, end: End);
    /// A flow that goes on; called once in each sweep, if [`Watch::sees_live`].
    fn goes_on(&mut self, place: usize, flow: &Flow);
    fn sees_live(&self) -> bool;
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line {
    /// Part of the hash; 0: the place is free.
    tags: [u16; PLACES],
    /// Time of the last packet in [`UNIT`]s, modulo 2^16.
    seen: [u16; PLACES],
}

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    /// Bits of the places with this tag.
    #[inline]
    fn with(&self, tag: u16) -> u32 {
        self.tags.iter().zip(0..).fold(0, |bits, (each, i)| bits | u32::from(*each == tag) << i)
    }
}

/// The places of bits, the lowest first.
#[inline]
fn places(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        place
    })
}

/// Time-outs in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// At most [`MAX_IDLE`].
    pub(crate) idle: u64,
    pub(crate) active: u64,
    /// Time in which all lines are looked at, at most [`SWEEP`].
    pub(crate) sweep: u64,
}

/// Allocates `n` of them, in huge pages where the kernel has some: they are read at random places.
fn in_huge_pages<T: Clone + Default>(n: usize) -> Vec<T> {
    let mut all: Vec<T> = Vec::with_capacity(n);
    // Before they are touched.
    prefer_huge_pages(all.as_ptr().cast(), n * size_of::<T>());
    all.resize(n, T::default());
    all
}

/// The cache.
pub(crate) struct Cache {
    lines: Vec<Line>,
    flows: Vec<Flow>,
    timeouts: Timeouts,
    /// The next line that is looked at, and the time up to which lines were.
    hand: usize,
    swept: u64,
    /// Flows now.
    pub(crate) len: usize,
    /// Records that began.
    pub(crate) begun: u64,
}

impl Cache {
    /// Makes a cache for `max` flows: 1.. to 2^28.
    pub(crate) fn new(max: usize, timeouts: Timeouts) -> Cache {
        let lines = max.div_ceil(FILLED).max(2);
        Cache {
            lines: in_huge_pages(lines),
            flows: in_huge_pages(lines * PLACES),
            timeouts,
            hand: 0,
            swept: 0,
            len: 0,
            begun: 0,
        }
    }

    /// Number of places.
    pub(crate) fn places(&self) -> usize {
        self.flows.len()
    }

    /// The two lines of a hash, and the tag of its places there.
    #[inline]
    fn lines_of(&self, hash: u64) -> ([usize; 2], u16) {
        let part = |bits: u64| (((bits >> 32) * self.lines.len() as u64) >> 32) as usize;
        let second = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ([part(hash), part(second)], hash as u16 | 1)
    }

    /// Reads what [`Cache::count`] of these packets will read, so that the memory's latency is waited for once and not
    /// by each of them: no read of a pass depends on another, so that a processor makes them at the same time.
    #[inline]
    pub(crate) fn fetch(&self, packets: &[Packet]) {
        let lines = packets.iter().map(|packet| {
            let ([first, second], _) = self.lines_of(packet.hash);
            self.lines[first].tags[0] ^ self.lines[second].tags[0]
        });
        std::hint::black_box(lines.fold(0, |all, tag| all ^ tag));
        let flows = packets.iter().map(|packet| {
            let ([first, second], tag) = self.lines_of(packet.hash);
            let line = if self.lines[first].with(tag) != 0 { first } else { second };
            let place = self.lines[line].with(tag).trailing_zeros() as usize % PLACES;
            let flow = &self.flows[line * PLACES + place];
            flow.first ^ flow.key.src as u64
        });
        std::hint::black_box(flows.fold(0, |all, first| all ^ first));
    }

    /// Counts a packet. Times of packets do not go back.
    #[inline]
    pub(crate) fn count(&mut self, packet: &Packet, watch: &mut impl Watch) {
        let (lines, tag) = self.lines_of(packet.hash);
        let now = (packet.time / UNIT) as u16;
        for line in lines {
            for place in places(self.lines[line].with(tag)) {
                let at = line * PLACES + place;
                let flow = &mut self.flows[at];
                if flow.key != packet.key {
                    continue;
                }
                self.lines[line].seen[place] = now;
                let end = if packet.time - flow.last >= self.timeouts.idle {
                    End::Idle
                } else if packet.time - flow.first >= self.timeouts.active {
                    End::Active
                } else {
                    return flow.add(packet);
                };
                watch.ended(at, flow, end);
                flow.begin(packet);
                self.begun += 1;
                return;
            }
        }
        self.begin(packet, lines, tag, watch);
    }

    /// Begins the record of a flow that has none.
    fn begin(&mut self, packet: &Packet, lines: [usize; 2], tag: u16, watch: &mut impl Watch) {
        let now = (packet.time / UNIT) as u16;
        let free = lines.map(|line| self.lines[line].with(0));
        let [first, second] = free.map(u32::count_ones);
        let index = usize::from(first <= ENOUGH && second > first);
        let place = places(free[index]).next().map(|place| (lines[index], place));
        let (line, place) = place.unwrap_or_else(|| {
            let all = lines.iter().flat_map(|&line| (0..PLACES).map(move |place| (line, place)));
            let age = |&(line, place): &(usize, usize)| now.wrapping_sub(self.lines[line].seen[place]);
            let oldest = all.max_by_key(age).unwrap_or((lines[0], 0));
            let at = oldest.0 * PLACES + oldest.1;
            watch.ended(at, &self.flows[at], End::Evicted);
            self.len -= 1;
            oldest
        });
        self.lines[line].tags[place] = tag;
        self.lines[line].seen[place] = now;
        self.flows[line * PLACES + place].begin(packet);
        self.len += 1;
        self.begun += 1;
    }

    /// Ends the records of flows without packets, in as many lines as the time since the last call makes due.
    pub(crate) fn sweep(&mut self, now: u64, watch: &mut impl Watch) {
        let passed = now.saturating_sub(self.swept);
        let all = self.lines.len();
        let due = (all as u64).saturating_mul(passed) / self.timeouts.sweep.max(1);
        // The times of lines do not count so far: all flows are idle.
        if passed >= MAX_IDLE && self.swept != 0 {
            self.end_all(End::Idle, watch);
        }
        if due == 0 {
            return;
        }
        // The rest of the time counts for the next call.
        self.swept = if due >= all as u64 { now } else { self.swept + due * self.timeouts.sweep / all as u64 };
        let (now, idle) = ((now / UNIT) as u16, self.timeouts.idle.div_ceil(UNIT) as u16);
        let sees_live = watch.sees_live();
        for _ in 0..due.min(all as u64) {
            let line = &mut self.lines[self.hand];
            for place in 0..PLACES {
                let at = self.hand * PLACES + place;
                if line.tags[place] == 0 {
                    continue;
                }
                if now.wrapping_sub(line.seen[place]) > idle {
                    watch.ended(at, &self.flows[at], End::Idle);
                    line.tags[place] = 0;
                    self.len -= 1;
                } else if sees_live {
                    watch.goes_on(at, &self.flows[at]);
                }
            }
            self.hand = (self.hand + 1) % all;
        }
    }

    /// Ends all records.
    pub(crate) fn end_all(&mut self, end: End, watch: &mut impl Watch) {
        for (line, at) in self.lines.iter_mut().zip((0..).step_by(PLACES)) {
            for place in 0..PLACES {
                if std::mem::take(&mut line.tags[place]) != 0 {
                    watch.ended(at + place, &self.flows[at + place], end);
                    self.len -= 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::packet::family;

    const TIMEOUTS: Timeouts = Timeouts { idle: 15_000, active: 60_000, sweep: SWEEP };

    /// Keeps all records.
    #[derive(Default)]
    struct Records(Vec<(Flow, End)>);

    impl Watch for Records {
        fn ended(&mut self, _place: usize, flow: &Flow, end: End) {
            self.0.push((*flow, end));
        }
        fn goes_on(&mut self, _place: usize, _flow: &Flow) {}
        fn sees_live(&self) -> bool {
            false
        }
    }

    /// A packet of flow `number`, with a hash that is the same in each run.
    fn packet(number: u64, time: u64) -> Packet {
        let key = Key { src: number.into(), family: family::V4, ..Key::default() };
        Packet { key, hash: tool_common::mix(number), time, octets: 46, frame: 60, ..Packet::default() }
    }

    #[test]
    fn a_cache_has_room_for_as_many_flows_as_it_was_made_for() {
        for n in [1, 2, 30, 1000, 100_000] {
            let (mut cache, mut records) = (Cache::new(n, TIMEOUTS), Records::default());
            for number in 0..n as u64 {
                cache.count(&packet(number, 1000), &mut records);
            }
            assert_eq!((records.0.len(), cache.len), (0, n), "no record ends early");
            cache.end_all(End::Forced, &mut records);
            assert_eq!((records.0.len(), cache.len), (n, 0));
        }
    }

    /// The flow without packets for the longest time makes room.
    #[test]
    fn busy_flows_stay_in_a_full_cache() {
        let (mut cache, mut records) = (Cache::new(1, TIMEOUTS), Records::default());
        for i in 0..10_000 {
            cache.count(&packet(i % 4, 1000 * i), &mut records);
            cache.count(&packet(100 + i, 1000 * i), &mut records);
        }
        assert!(records.0.iter().all(|(flow, end)| *end != End::Evicted || flow.key.src >= 100));
        assert!(records.0.iter().any(|(_, end)| *end == End::Evicted));
    }

    /// Each packet is in one record, whose times are as the time-outs say.
    #[test]
    fn records_have_all_packets_and_end_by_their_time_outs() {
        for (flows, idle, active, step, ends) in [
            (40, 2000, 9000, 40, [End::Idle, End::Evicted]),
            (4000, 3000, 20_000, 5, [End::Idle, End::Active]),
            (4000, 500, 700, 100, [End::Idle, End::Active]),
        ] {
            let timeouts = Timeouts { idle, active, sweep: SWEEP };
            let (mut cache, mut records) = (Cache::new(flows, timeouts), Records::default());
            let (mut time, mut sent) = (1_700_000_000_000, HashMap::new());
            for i in 0..50_000u64 {
                let random = tool_common::mix(i ^ idle << 32);
                // Pauses, also longer ones than the times of lines count.
                time += random % step + if random.is_multiple_of(5000) { 30 * MAX_IDLE / 7 } else { 0 };
                cache.sweep(time, &mut records);
                let number = random >> 40 & 127;
                *sent.entry(u128::from(number)).or_insert(0) += 1;
                cache.count(&packet(number, time), &mut records);
            }
            cache.end_all(End::Forced, &mut records);
            assert_eq!((cache.len, cache.begun), (0, records.0.len() as u64));
            for (flow, end) in &records.0 {
                *sent.get_mut(&flow.key.src).expect("a flow that was sent") -= flow.packets[0];
                assert!(flow.last - flow.first < active, "{end:?}: {flow:?}");
                assert_eq!((flow.octets[0], flow.frames[0]), (46 * flow.packets[0], 60 * flow.packets[0]));
            }
            assert!(sent.values().all(|left| *left == 0), "{sent:?}");
            assert!(ends.iter().all(|end| records.0.iter().any(|record| record.1 == *end)));
        }
    }

    #[test]
    fn a_flow_without_packets_ends_within_a_sweep() {
        let (mut cache, mut records) = (Cache::new(1000, TIMEOUTS), Records::default());
        cache.sweep(1_000_000, &mut records);
        (0..500).for_each(|number| cache.count(&packet(number, 1_000_000), &mut records));
        for time in (0..15_000).step_by(20) {
            cache.sweep(1_000_000 + time, &mut records);
        }
        assert_eq!(records.0.len(), 0, "the time-out has not passed");
        for time in (15_000..17_000).step_by(20) {
            cache.sweep(1_000_000 + time, &mut records);
        }
        assert!(records.0.len() == 500 && records.0.iter().all(|(_, end)| *end == End::Idle));
    }
}
