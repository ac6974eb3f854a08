// SPDX-License-Identifier: BSD-2-Clause
//! Remembers verdicts: packets whose addresses, ports, protocol, TCP flags and direction are the same get the same
//! verdict by the same rule, if no rule on the way looks at anything else.

use crate::constraint::kind;
use crate::packet::{Family, Headers, proto};
use crate::rule::{Field, Rule, Test};
use crate::verdict::Verdict;

/// Verdicts that are remembered; a power of two. A newer one takes the place of an older one.
const VERDICTS: usize = 1 << 12;
/// Packets after which the memo is judged: if it knew fewer than one of eight, it is left alone for `PAUSE` packets.
const TRIAL: u32 = 1024;
const PAUSE: u32 = 15 * TRIAL;
/// Where the headers of [`Key::of_bytes`] begin.
const L3: usize = 14;
const L4: usize = L3 + 20;
/// The rule of an entry that holds nothing.
const NO_RULE: u32 = u32::MAX;

/// Everything that a remembered verdict depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    v6: [u128; 2],
    v4: u64,
    /// Ports, TCP flags, whether there is a transport header, protocol, family and direction.
    rest: u64,
}

impl Key {
    #[inline(always)]
    pub(crate) fn new(h: &Headers, direction: u8) -> Key {
        let small = [kind(h.family, direction), h.proto, h.tcp_flags, u8::from(h.has_transport)];
        Key {
            v6: if h.family == Family::V6 { [h.src6, h.dst6] } else { [0; 2] },
            v4: u64::from(h.src4) << 32 | u64::from(h.dst4),
            rest: u64::from(h.src_port) << 48 | u64::from(h.dst_port) << 32 | u64::from(u32::from_le_bytes(small)),
        }
    }

    /// As [`Key::new`] with the [`Headers`] of a frame of `len` bytes that begins with `bytes`, if it is as most are:
    /// TCP or UDP, in IPv4 without options, without a VLAN tag. `None`: the frame must be parsed, and may be malformed.
    #[inline(always)]
    pub(crate) fn of_bytes(bytes: &[u8], len: usize, direction: u8) -> Option<Key> {
        let frame = bytes.first_chunk::<{ L4 + 20 }>()?;
        let pair = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let (total, proto) = (usize::from(pair(L3 + 2)), frame[L3 + 9]);
        let (tcp_flags, least) = match proto {
            proto::TCP => (frame[L4 + 13], 20 + 20),
            proto::UDP => (0, 20 + 8),
            _ => return None,
        };
        let is_later_fragment = pair(L3 + 6) & 0x1fff != 0;
        if frame[12..=L3] != [8, 0, 0x45] || is_later_fragment || total < least || total > len.saturating_sub(L3) {
            return None;
        }
        let small = [kind(Family::V4, direction), proto, tcp_flags, 1];
        let ports = u64::from(u32::from_be_bytes(*frame[L4..].first_chunk()?));
        Some(Key {
            v6: [0; 2],
            v4: u64::from_be_bytes(*frame[L3 + 12..].first_chunk()?),
            rest: ports << 32 | u64::from(u32::from_le_bytes(small)),
        })
    }

    /// The place of its verdict. Flows that share one only make each other slower.
    #[inline(always)]
    fn place(&self) -> usize {
        let [src, dst] = self.v6.map(|address| address as u64 ^ (address >> 64) as u64);
        let mixed =
            (self.v4 ^ self.rest.rotate_left(24) ^ src ^ dst.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (64 - VERDICTS.trailing_zeros())) as usize
    }
}

/// Whether a rule looks at nothing but what a [`Key`] has, and does nothing but count and decide.
pub(crate) fn is_plain(rule: &Rule) -> bool {
    let of_key = |test: &Test| match test {
        Test::Number(field, _) => matches!(field, Field::SrcPort | Field::DstPort),
        Test::Direction(_)
        | Test::Always(_)
        | Test::Proto(_)
        | Test::Family(_)
        | Test::Nets(..)
        | Test::LastByte(..)
        | Test::Table(..)
        | Test::Own(..)
        | Test::Version(_)
        | Test::TcpFlags(..)
        | Test::Established => true,
        Test::LaterFragment
        | Test::Fragment(..)
        | Test::Tos(..)
        | Test::Dscp(_)
        | Test::TcpSeq(_)
        | Test::TcpAck(_)
        | Test::IcmpTypes(_)
        | Test::Icmp6Types(_)
        | Test::Mac(_)
        | Test::Extensions(_)
        | Test::Tagged(_) => false,
    };
    let only_decides = rule.probability.is_none() && rule.state.is_none() && rule.log.is_none();
    only_decides && rule.tests.iter().all(|literal| of_key(&literal.test))
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    /// Place of the rule that decided.
    rule: u32,
    verdict: Verdict,
}

/// Verdicts of one rule set.
#[derive(Debug)]
pub(crate) struct Memo {
    entries: Box<[Entry]>,
    /// Identity of the rule set.
    set: u64,
    /// Packets of this trial, and those whose verdicts were known.
    asked: u32,
    known: u32,
    /// Packets until the next trial.
    pause: u32,
}

impl Memo {
    pub(crate) fn new() -> Memo {
        let empty = Entry { key: Key::default(), rule: NO_RULE, verdict: Verdict::Deny };
        Memo { entries: vec![empty; VERDICTS].into(), set: 0, asked: 0, known: 0, pause: 0 }
    }

    /// Whether [`Memo::recall`] may return something.
    #[inline(always)]
    pub(crate) fn has_verdicts(&self, set: u64) -> bool {
        self.pause == 0 && self.set == set
    }

    /// As [`Memo::is_asked`] and [`Memo::get`], for verdicts that need nothing of the packet, while there are some
    /// ([`Memo::has_verdicts`]). If there is none for this key, nothing is noted.
    #[inline(always)]
    pub(crate) fn recall(&mut self, set: u64, key: &Key) -> Option<(usize, Verdict)> {
        let entry = self.entries.get(key.place())?;
        let is_known = entry.rule != NO_RULE && entry.key == *key;
        if !is_known || !matches!(entry.verdict, Verdict::Accept | Verdict::Deny) {
            return None;
        }
        let known = (entry.rule as usize, entry.verdict);
        self.is_asked(set);
        self.known += 1;
        Some(known)
    }

    /// Whether the next packet's verdict is looked for. If packets of too many flows come, looking costs more than it
    /// saves. Verdicts of another rule set are forgotten.
    #[inline(always)]
    pub(crate) fn is_asked(&mut self, set: u64) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        if self.set != set {
            self.entries.iter_mut().for_each(|entry| entry.rule = NO_RULE);
            self.set = set;
        }
        self.asked += 1;
        if self.asked == TRIAL {
            self.pause = if self.known < TRIAL / 8 { PAUSE } else { 0 };
            (self.asked, self.known) = (0, 0);
        }
        true
    }

    /// Returns a verdict and the place of the rule that decided.
    #[inline(always)]
    pub(crate) fn get(&mut self, key: &Key) -> Option<(usize, Verdict)> {
        let entry = self.entries.get(key.place())?;
        let is_known = entry.rule != NO_RULE && entry.key == *key;
        self.known += u32::from(is_known);
        is_known.then_some((entry.rule as usize, entry.verdict))
    }

    #[inline]
    pub(crate) fn put(&mut self, key: Key, rule: usize, verdict: Verdict) {
        if let Some(entry) = self.entries.get_mut(key.place()) {
            *entry = Entry { key, rule: rule as u32, verdict };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::HEADER_BYTES;

    /// Ethernet, IPv4 and a transport header, with a payload.
    fn frame(proto: u8) -> Vec<u8> {
        let mut frame =
            [vec![2; 6], vec![4; 6], vec![8, 0, 0x45, 0x28, 0, 50, 0, 7, 0x40, 0, 64, proto, 0, 0]].concat();
        frame.extend([10, 1, 2, 3, 10, 4, 5, 6, 0x12, 0x34, 0x56, 0x78]);
        frame.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 3, 4, 0, 0, 0, 0]);
        frame.extend([9; 10]);
        frame
    }

    /// A key from the bytes is the key of the parsed headers; returns whether there is one.
    fn check(frame: &[u8], len: usize) -> bool {
        let bytes = &frame[..frame.len().min(HEADER_BYTES)];
        let Some(key) = Key::of_bytes(bytes, len, 2) else { return false };
        let headers = Headers::parse(bytes, len).expect("a frame that is not malformed");
        assert_eq!(key, Key::new(&headers, 2), "{frame:?}");
        true
    }

    #[test]
    fn a_key_from_bytes_is_that_of_the_parsed_headers() {
        for proto in [proto::TCP, proto::UDP] {
            let frame = frame(proto);
            assert!(check(&frame, frame.len()) && check(&frame, 2000));
            for len in 0..frame.len() {
                check(&frame[..len], len);
                check(&frame, len.max(54));
            }
            for at in 0..frame.len() {
                for value in 0..=255 {
                    let mut changed = frame.clone();
                    changed[at] = value;
                    check(&changed, changed.len());
                }
            }
            let mut tagged = frame.clone();
            tagged.splice(12..12, [0x81, 0, 0, 10]);
            assert!(!check(&tagged, tagged.len()));
        }
        for proto in [proto::ICMP, proto::SCTP, proto::ESP] {
            let frame = frame(proto);
            assert!(!check(&frame, frame.len()));
        }
    }
}
