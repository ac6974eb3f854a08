// SPDX-License-Identifier: BSD-2-Clause
//! Finds the rules that a packet may match, without looking at each rule.
//!
//! For each of a few header fields, the rules divide the field's values into intervals, and each interval has a *row*:
//! a bitmap of the rules that its values do not exclude. The candidates are the bits that the rows of all fields have
//! in common. Rows are sparse: a summary word tells which words of the row are not zero, so the usual packet touches a
//! word of each row. A candidate is only possible: its tests decide.
//!
//! ```text
//! rules 0..4096          chunk 0      fields: kind, protocol, flags, ports, addresses
//! rules 4096..8192       chunk 1      field -> interval -> row { summary, words }
//! ```

use std::collections::BTreeMap;

use crate::constraint::{Constraint, Keys, NO_FLAGS, NO_PORT, kind};
use crate::packet::{Family, Headers};
use crate::rule::Rule;

/// Rules in a chunk: a summary word of 64 bits, each for a word of 64 rules.
const CHUNK: usize = 64 * 64;
/// Fields of a packet. Source and destination address are two each, for IPv4 and IPv6.
pub(crate) const FIELDS: usize = 5;

/// A row: which rules an interval does not exclude.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// Bit *i*: word *i* of the row is not zero.
    summary: u64,
    /// The row's first nonzero word in [`Rows::words`].
    first: u32,
}

/// Rows of a field, equal ones only once.
#[derive(Debug, Default)]
struct Rows {
    rows: Vec<Row>,
    words: Vec<u64>,
}

impl Rows {
    fn add(&mut self, known: &mut BTreeMap<Vec<u64>, u32>, bits: &[u64]) -> u32 {
        if let Some(&row) = known.get(bits) {
            return row;
        }
        let mut row = Row { summary: 0, first: self.words.len() as u32 };
        for (i, &word) in bits.iter().enumerate().filter(|(_, word)| **word != 0) {
            row.summary |= 1 << i;
            self.words.push(word);
        }
        let at = self.rows.len() as u32;
        self.rows.push(row);
        known.insert(bits.to_vec(), at);
        at
    }

    /// Returns word `i` of a row.
    #[inline(always)]
    fn word(&self, row: Row, i: u32) -> u64 {
        let before = (row.summary & ((1 << i) - 1)).count_ones();
        self.words.get((row.first + before) as usize).copied().unwrap_or(0)
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
    fn find(&self, key: K) -> Row {
        // Fields that no rule tests have one row.
        let at = if self.begins.is_empty() { 0 } else { self.begins.partition_point(|&begin| begin <= key) };
        let row = self.row_of.get(at).copied().unwrap_or(0);
        self.rows.rows.get(row as usize).copied().unwrap_or_default()
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
    fn find(&self, key: u8) -> Row {
        let row = self.row_of[usize::from(key)];
        self.rows.rows.get(row as usize).copied().unwrap_or_default()
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
    /// The candidates of frames that are neither IPv4 nor IPv6.
    other: Intervals<u32>,
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
            other: Intervals::build(n, |_| None, next_u32),
        }
    }

    /// The rows of a packet, with where their words are.
    #[inline(always)]
    fn rows(&self, key: &Key<'_>) -> [(Row, &Rows); FIELDS + 2] {
        let h = key.headers;
        let [(src, src_rows), (dst, dst_rows)] = match h.family {
            Family::V4 => [(self.v4[0].find(h.src4), &self.v4[0].rows), (self.v4[1].find(h.dst4), &self.v4[1].rows)],
            Family::V6 => [(self.v6[0].find(h.src6), &self.v6[0].rows), (self.v6[1].find(h.dst6), &self.v6[1].rows)],
            Family::Other => [(self.other.find(0), &self.other.rows), (self.other.find(0), &self.other.rows)],
        };
        [
            (self.kind.find(key.kind), &self.kind.rows),
            (self.proto.find(key.proto), &self.proto.rows),
            (self.flags.find(key.flags), &self.flags.rows),
            (self.ports[0].find(key.ports[0]), &self.ports[0].rows),
            (self.ports[1].find(key.ports[1]), &self.ports[1].rows),
            (src, src_rows),
            (dst, dst_rows),
        ]
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
        let mut search = Search { index: self, key, chunk: usize::MAX, rows: None, summary: 0, at: 0, bits: 0 };
        search.enter(0);
        search
    }
}

/// The search for the candidates of one packet.
pub(crate) struct Search<'a> {
    index: &'a Index,
    key: Key<'a>,
    chunk: usize,
    rows: Option<[(Row, &'a Rows); FIELDS + 2]>,
    /// Words of the chunk that all rows have, as far as they were not visited.
    summary: u64,
    /// The word that `bits` are of.
    at: u32,
    /// Candidates in that word that were not visited.
    bits: u64,
}

impl Search<'_> {
    #[inline(always)]
    fn enter(&mut self, chunk: usize) {
        self.chunk = chunk;
        self.rows = self.index.chunks.get(chunk).map(|chunk| chunk.rows(&self.key));
        self.summarize();
    }

    /// Makes all words of the chunk those that were not visited.
    #[inline(always)]
    fn summarize(&mut self) {
        self.bits = 0;
        self.summary = self.rows.as_ref().map_or(0, |rows| rows.iter().fold(!0, |all, (row, _)| all & row.summary));
    }

    /// Goes on at rule `from`.
    #[inline]
    pub(crate) fn seek(&mut self, from: usize) {
        if from / CHUNK != self.chunk {
            self.enter(from / CHUNK);
        }
        self.summarize();
        let within = from % CHUNK;
        let (word, bit) = ((within / 64) as u32, within % 64);
        self.summary &= !0 << word;
        if self.summary >> word & 1 != 0 {
            self.load(word);
            self.bits &= !0 << bit;
        }
    }

    /// Makes the candidates of word `i` the next ones.
    #[inline(always)]
    fn load(&mut self, i: u32) {
        let Some(rows) = &self.rows else { return };
        self.summary &= !(1 << i);
        self.at = i;
        self.bits = rows.iter().fold(!0, |all, (row, words)| all & words.word(*row, i));
    }

    /// Returns the next candidate.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<usize> {
        loop {
            if self.bits != 0 {
                let bit = self.bits.trailing_zeros();
                self.bits &= self.bits - 1;
                return Some(self.chunk * CHUNK + (self.at * 64 + bit) as usize);
            }
            if self.summary != 0 {
                self.load(self.summary.trailing_zeros());
                continue;
            }
            if (self.chunk + 1) * CHUNK >= self.index.rules {
                return None;
            }
            self.enter(self.chunk + 1);
        }
    }
}
