// SPDX-License-Identifier: BSD-2-Clause
//! Finds the rules that a packet may match, without looking at each rule.
//!
//! For each of a few header fields, the rules divide the field's values into intervals, and each interval has a *row*:
//! a bitmap of the rules that its values do not exclude. The candidates are the bits that the rows of all fields have
//! in common; fields that no rule tests are left out. A candidate is only possible: its tests decide.
//!
//! ```text
//! rules 0..4096          chunk 0      fields: kind, protocol, flags, ports, addresses
//! rules 4096..8192       chunk 1      field -> interval -> row of 64 words
//! ```

use std::collections::BTreeMap;

use crate::constraint::{Constraint, Keys, NO_FLAGS, NO_PORT, kind};
use crate::packet::{Family, Headers};
use crate::rule::Rule;

/// Words of a row at most.
const WORDS: usize = 64;
/// Rules in a chunk.
const CHUNK: usize = WORDS * 64;
/// Rows of a field, equal ones only once: bitmaps of the rules that an interval does not exclude.
#[derive(Debug, Default)]
struct Rows {
    /// Words of each row.
    len: usize,
    words: Vec<u64>,
}

impl Rows {
    fn add(&mut self, known: &mut BTreeMap<Vec<u64>, u32>, bits: &[u64]) -> u32 {
        if let Some(&row) = known.get(bits) {
            return row;
        }
        let at = known.len() as u32;
        self.len = bits.len();
        self.words.extend(bits);
        known.insert(bits.to_vec(), at);
        at
    }

    #[inline(always)]
    fn row(&self, at: u32) -> &[u64] {
        let begin = at as usize * self.len;
        self.words.get(begin..begin + self.len).unwrap_or_default()
    }

    /// Removes the rules from `combined` that are not in a row.
    #[inline(always)]
    fn restrict(&self, at: u32, combined: &mut [u64]) {
        self.row(at).iter().zip(combined).for_each(|(word, combined)| *combined &= word);
    }
}

/// A field whose values are searched in a sorted list.
#[derive(Debug, Default)]
struct Intervals<K> {
    /// First values of the intervals, without that of the first, which begins at 0.
    begins: Vec<K>,
    /// Row of each interval: one more than `begins`.
    row_of: Vec<u32>,
    rows: Rows,
}

impl<K: Copy + Ord> Intervals<K> {
    /// `ranges` of rule *i* are `of(i)`: `None` if the rule excludes no value.
    fn build(rules: usize, of: impl Fn(usize) -> Option<Vec<(K, K)>>, next: impl Fn(K) -> Option<K>) -> Intervals<K> {
        // At each value: rules that begin or stop to be possible.
        let mut changes: BTreeMap<K, Vec<(usize, bool)>> = BTreeMap::new();
        let mut bits = vec![0u64; rules.div_ceil(64)];
        for rule in 0..rules {
            let Some(ranges) = of(rule) else {
                bits[rule / 64] |= 1 << (rule % 64);
                continue;
            };
            for (from, to) in merged(ranges, &next) {
                changes.entry(from).or_default().push((rule, true));
                if let Some(after) = next(to) {
                    changes.entry(after).or_default().push((rule, false));
                }
            }
        }
        let (mut known, mut intervals) = (BTreeMap::new(), Intervals::empty());
        let first = intervals.rows.add(&mut known, &bits);
        intervals.row_of.push(first);
        for (value, list) in changes {
            for (rule, on) in list {
                let bit = 1 << (rule % 64);
                if on { bits[rule / 64] |= bit } else { bits[rule / 64] &= !bit }
            }
            let row = intervals.rows.add(&mut known, &bits);
            if intervals.row_of.last() != Some(&row) {
                intervals.begins.push(value);
                intervals.row_of.push(row);
            }
        }
        intervals
    }

    fn empty() -> Intervals<K> {
        Intervals { begins: Vec::new(), row_of: Vec::new(), rows: Rows::default() }
    }

    #[inline(always)]
    fn restrict(&self, key: K, combined: &mut [u64]) {
        // A field with one interval is tested by no rule.
        if !self.begins.is_empty() {
            let at = self.begins.partition_point(|&begin| begin <= key);
            self.rows.restrict(self.row_of.get(at).copied().unwrap_or(0), combined);
        }
    }
}

/// Joins ranges that overlap or touch, in order.
fn merged<K: Copy + Ord>(mut ranges: Vec<(K, K)>, next: &impl Fn(K) -> Option<K>) -> Vec<(K, K)> {
    ranges.sort_unstable();
    let mut out: Vec<(K, K)> = Vec::new();
    for (from, to) in ranges {
        match out.last_mut() {
            Some(last) if next(last.1).is_none_or(|after| from <= after) => last.1 = last.1.max(to),
            _ => out.push((from, to)),
        }
    }
    out
}

/// A field with few values.
#[derive(Debug)]
struct Direct {
    row_of: Box<[u32; 256]>,
    rows: Rows,
}

impl Direct {
    fn build(rules: usize, of: impl Fn(usize) -> Option<Vec<(u32, u32)>>) -> Direct {
        let intervals = Intervals::build(rules, of, next_u32);
        let mut row_of = Box::new([0; 256]);
        for (key, row) in row_of.iter_mut().enumerate() {
            *row = intervals.row_of[intervals.begins.partition_point(|&begin| begin as usize <= key)];
        }
        Direct { row_of, rows: intervals.rows }
    }

    #[inline(always)]
    fn row(&self, key: u8) -> &[u64] {
        self.rows.row(self.row_of[usize::from(key)])
    }
}

fn next_u32(value: u32) -> Option<u32> {
    value.checked_add(1)
}

/// Consecutive rules.
#[derive(Debug)]
struct Chunk {
    kind: Direct,
    proto: Direct,
    flags: Direct,
    ports: [Intervals<u32>; 2],
    v4: [Intervals<u32>; 2],
    v6: [Intervals<u128>; 2],
}

impl Chunk {
    fn build(rules: &[Option<Constraint>]) -> Chunk {
        let n = rules.len();
        // A rule that is never evaluated is possible for no value of the first field; the others need not exclude it.
        let kind = |rule: usize| match &rules[rule] {
            Some(constraint) => constraint.kind.clone(),
            None => Some(Vec::new()),
        };
        let small =
            |pick: fn(&Constraint) -> &Keys<u32>| move |rule: usize| rules[rule].as_ref().and_then(|c| pick(c).clone());
        let wide = |pick: fn(&Constraint) -> &Keys<u128>| {
            move |rule: usize| rules[rule].as_ref().and_then(|c| pick(c).clone())
        };
        let next_u128 = |value: u128| value.checked_add(1);
        Chunk {
            kind: Direct::build(n, kind),
            proto: Direct::build(n, small(|c| &c.proto)),
            flags: Direct::build(n, small(|c| &c.flags)),
            ports: [
                Intervals::build(n, small(|c| &c.ports[0]), next_u32),
                Intervals::build(n, small(|c| &c.ports[1]), next_u32),
            ],
            v4: [
                Intervals::build(n, small(|c| &c.v4[0]), next_u32),
                Intervals::build(n, small(|c| &c.v4[1]), next_u32),
            ],
            v6: [
                Intervals::build(n, wide(|c| &c.v6[0]), next_u128),
                Intervals::build(n, wide(|c| &c.v6[1]), next_u128),
            ],
        }
    }

    /// Writes the candidates of a packet to `combined`; returns how many words they have.
    #[inline(always)]
    fn candidates(&self, key: &Key<'_>, combined: &mut [u64; WORDS]) -> usize {
        let (h, rows) = (key.headers, [self.kind.row(key.kind), self.proto.row(key.proto), self.flags.row(key.flags)]);
        let combined = &mut combined[..rows[0].len()];
        for (((word, kind), proto), flags) in combined.iter_mut().zip(rows[0]).zip(rows[1]).zip(rows[2]) {
            *word = kind & proto & flags;
        }
        match h.family {
            Family::V4 => {
                self.v4[0].restrict(h.src4, combined);
                self.v4[1].restrict(h.dst4, combined);
            }
            Family::V6 => {
                self.v6[0].restrict(h.src6, combined);
                self.v6[1].restrict(h.dst6, combined);
            }
            Family::Other => {}
        }
        self.ports[0].restrict(key.ports[0], combined);
        self.ports[1].restrict(key.ports[1], combined);
        combined.len()
    }
}

/// What the index looks at of a packet.
struct Key<'a> {
    headers: &'a Headers,
    kind: u8,
    proto: u8,
    flags: u8,
    ports: [u32; 2],
}

impl<'a> Key<'a> {
    #[inline(always)]
    fn new(headers: &'a Headers, direction: u8) -> Key<'a> {
        let ports = if headers.has_ports() { [headers.src_port.into(), headers.dst_port.into()] } else { [NO_PORT; 2] };
        Key {
            headers,
            kind: kind(headers.family, direction),
            proto: headers.proto,
            flags: if headers.is_tcp() { headers.tcp_flags & 63 } else { NO_FLAGS },
            ports,
        }
    }
}

/// The index of a rule set.
#[derive(Debug, Default)]
pub(crate) struct Index {
    chunks: Vec<Chunk>,
    rules: usize,
}

impl Index {
    /// Builds the index. Rules that `indexed` refuses are never candidates.
    pub(crate) fn build<'r>(rules: impl Iterator<Item = &'r Rule>, indexed: impl Fn(&Rule) -> bool) -> Index {
        let constraints: Vec<_> = rules.map(|rule| indexed(rule).then(|| Constraint::of(&rule.tests))).collect();
        Index { chunks: constraints.chunks(CHUNK).map(Chunk::build).collect(), rules: constraints.len() }
    }

    /// Begins a search for the candidates of a packet.
    #[inline(always)]
    pub(crate) fn search<'a>(&'a self, headers: &'a Headers, direction: u8) -> Search<'a> {
        let key = Key::new(headers, direction);
        let mut search = Search { index: self, key, chunk: 0, words: [0; WORDS], len: 0, at: 0, bits: 0 };
        search.enter(0);
        search
    }
}

/// The search for the candidates of one packet.
pub(crate) struct Search<'a> {
    index: &'a Index,
    key: Key<'a>,
    chunk: usize,
    /// Candidates of the chunk.
    words: [u64; WORDS],
    /// Words of the chunk.
    len: usize,
    /// The word that `bits` are of.
    at: usize,
    /// Candidates in that word that were not visited.
    bits: u64,
}

impl Search<'_> {
    #[inline(always)]
    fn enter(&mut self, chunk: usize) {
        self.chunk = chunk;
        self.len = self.index.chunks.get(chunk).map_or(0, |chunk| chunk.candidates(&self.key, &mut self.words));
        self.at = 0;
        self.bits = if self.len > 0 { self.words[0] } else { 0 };
    }

    /// Goes on at rule `from`.
    #[inline]
    pub(crate) fn seek(&mut self, from: usize) {
        if from / CHUNK != self.chunk {
            self.enter(from / CHUNK);
        }
        self.at = from % CHUNK / 64;
        self.bits = if self.at < self.len { self.words[self.at] & (!0 << (from % 64)) } else { 0 };
    }

    /// Returns the next candidate.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<usize> {
        loop {
            if self.bits != 0 {
                let bit = self.bits.trailing_zeros() as usize;
                self.bits &= self.bits - 1;
                return Some(self.chunk * CHUNK + self.at * 64 + bit);
            }
            if self.at + 1 < self.len {
                self.at += 1;
                self.bits = self.words[self.at];
            } else if (self.chunk + 1) * CHUNK < self.index.rules {
                self.enter(self.chunk + 1);
            } else {
                return None;
            }
        }
    }
}
