// SPDX-License-Identifier: BSD-2-Clause
//! Finds the rules that a packet may match, without looking at each rule.
//!
//! For each of a few header fields, the rules divide the field's values into intervals, and each interval has a *row*:
//! a bitmap of the rules that its values do not exclude. The candidates are the bits that the rows of all fields have
//! in common; fields that no rule tests are left out. A candidate is only possible: its tests decide.
//!
//! A row has a summary, with a bit for each word that is not 0. Most words are 0 in some row, and the summaries of all
//! rows tell which: only the others are read, when the search comes to them.
//!
//! ```text
//! rules 0..4096          chunk 0      fields: kind, protocol, flags, ports, addresses
//! rules 4096..8192       chunk 1      field -> interval -> row of 64 words, summary
//! ```

use std::collections::BTreeMap;

use crate::constraint::{Constraint, Keys, NO_FLAGS, NO_PORT, kind};
use crate::packet::{Family, Headers};
use crate::rule::Rule;

/// Words of a row at most: a summary has a bit for each.
const WORDS: usize = 64;
/// Rules in a chunk.
const CHUNK: usize = WORDS * 64;
/// The place of a search that has not begun: one more is that of the first chunk.
const BEFORE_FIRST: usize = usize::MAX;
/// Fields that have rows for a packet: of the addresses, those of one family.
const FIELDS: usize = 7;

/// Rows of all fields, equal ones only once: bitmaps of the rules that an interval does not exclude.
#[derive(Debug)]
struct Rows {
    /// Words of each row.
    len: usize,
    words: Vec<u64>,
    /// Of each row.
    summaries: Vec<u64>,
}

/// Rows that are being made.
struct NewRows {
    rows: Rows,
    known: BTreeMap<Vec<u64>, u32>,
}

impl NewRows {
    fn add(&mut self, bits: &[u64]) -> u32 {
        if let Some(&row) = self.known.get(bits) {
            return row;
        }
        let at = self.known.len() as u32;
        self.rows.words.extend(bits);
        self.rows.summaries.push((0..).zip(bits).fold(0, |summary, (at, &word)| summary | u64::from(word != 0) << at));
        self.known.insert(bits.to_vec(), at);
        at
    }
}

/// A field whose values are searched in a sorted list.
#[derive(Debug)]
struct Intervals<K> {
    /// First values of the intervals, without that of the first, which begins at 0. Empty if no rule tests the field.
    begins: Vec<K>,
    /// Row of each interval: one more than `begins`.
    row_of: Vec<u32>,
}

impl<K: Copy + Ord> Intervals<K> {
    /// `ranges` of rule *i* are `of(i)`: `None` if the rule excludes no value.
    fn build(
        rules: usize,
        of: impl Fn(usize) -> Option<Vec<(K, K)>>,
        next: impl Fn(K) -> Option<K>,
        rows: &mut NewRows,
    ) -> Intervals<K> {
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
        let mut intervals = Intervals { begins: Vec::new(), row_of: vec![rows.add(&bits)] };
        for (value, list) in changes {
            for (rule, on) in list {
                let bit = 1 << (rule % 64);
                if on { bits[rule / 64] |= bit } else { bits[rule / 64] &= !bit }
            }
            let row = rows.add(&bits);
            if intervals.row_of.last() != Some(&row) {
                intervals.begins.push(value);
                intervals.row_of.push(row);
            }
        }
        intervals
    }

    /// Returns the row of a value; `None` if no rule tests the field.
    #[inline(always)]
    fn row(&self, key: K) -> Option<u32> {
        if self.begins.is_empty() {
            return None;
        }
        self.row_of.get(self.begins.partition_point(|&begin| begin <= key)).copied()
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
    /// Whether a rule tests the field.
    is_tested: bool,
}

impl Direct {
    fn build(rules: usize, of: impl Fn(usize) -> Option<Vec<(u32, u32)>>, rows: &mut NewRows) -> Direct {
        let intervals = Intervals::build(rules, of, next_u32, rows);
        let mut row_of = Box::new([0; 256]);
        for (key, row) in row_of.iter_mut().enumerate() {
            *row = intervals.row_of[intervals.begins.partition_point(|&begin| begin as usize <= key)];
        }
        Direct { row_of, is_tested: !intervals.begins.is_empty() }
    }

    /// Returns the row of a value; `None` if no rule tests the field.
    #[inline(always)]
    fn row(&self, key: u8) -> Option<u32> {
        self.is_tested.then(|| self.row_of[usize::from(key)])
    }
}

fn next_u32(value: u32) -> Option<u32> {
    value.checked_add(1)
}

/// Consecutive rules.
#[derive(Debug)]
struct Chunk {
    rows: Rows,
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
        let rows = Rows { len: n.div_ceil(64), words: Vec::new(), summaries: Vec::new() };
        let mut rows = NewRows { rows, known: BTreeMap::new() };
        Chunk {
            kind: Direct::build(n, kind, &mut rows),
            proto: Direct::build(n, small(|c| &c.proto), &mut rows),
            flags: Direct::build(n, small(|c| &c.flags), &mut rows),
            ports: [
                Intervals::build(n, small(|c| &c.ports[0]), next_u32, &mut rows),
                Intervals::build(n, small(|c| &c.ports[1]), next_u32, &mut rows),
            ],
            v4: [
                Intervals::build(n, small(|c| &c.v4[0]), next_u32, &mut rows),
                Intervals::build(n, small(|c| &c.v4[1]), next_u32, &mut rows),
            ],
            v6: [
                Intervals::build(n, wide(|c| &c.v6[0]), next_u128, &mut rows),
                Intervals::build(n, wide(|c| &c.v6[1]), next_u128, &mut rows),
            ],
            rows: rows.rows,
        }
    }

    /// Returns the rows of a packet.
    #[inline(always)]
    fn rows_of(&self, key: &Key<'_>) -> Common {
        // This field has the rules that are never evaluated: its row counts even if no rule tests it.
        let kind = self.kind.row_of[usize::from(key.kind)];
        let mut common = Common { rows: [0; FIELDS], n: 0, summary: !0 };
        let mut add = |row: Option<u32>| {
            if let Some(row) = row {
                common.rows[common.n % FIELDS] = row;
                common.n += 1;
                common.summary &= self.rows.summaries.get(row as usize).copied().unwrap_or(0);
            }
        };
        let h = key.headers;
        add(Some(kind));
        add(self.proto.row(key.proto));
        add(self.flags.row(key.flags));
        match h.family {
            Family::V4 => {
                add(self.v4[0].row(h.src4));
                add(self.v4[1].row(h.dst4));
            }
            Family::V6 => {
                add(self.v6[0].row(h.src6));
                add(self.v6[1].row(h.dst6));
            }
            Family::Other => {}
        }
        add(self.ports[0].row(key.ports[0]));
        add(self.ports[1].row(key.ports[1]));
        common
    }

    /// Returns the word `at` of what the rows have in common.
    #[inline(always)]
    fn word(&self, common: &Common, at: usize) -> u64 {
        if at >= self.rows.len {
            return 0;
        }
        let rows = common.rows.iter().take(common.n);
        rows.fold(!0, |word, &row| word & self.rows.words.get(row as usize * self.rows.len + at).copied().unwrap_or(0))
    }
}

/// Rows that a packet's fields have, and what these have in common.
#[derive(Clone, Copy)]
struct Common {
    /// The first `n`.
    rows: [u32; FIELDS],
    n: usize,
    /// Of words that may not be 0.
    summary: u64,
}

impl Common {
    const NONE: Common = Common { rows: [0; FIELDS], n: 0, summary: 0 };
}

/// The header fields by which the index looks up a packet.
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
        Search { index: self, key, chunk: BEFORE_FIRST, common: Common::NONE, left: 0, at: 0, bits: 0 }
    }
}

/// The search for the candidates of one packet.
pub(crate) struct Search<'a> {
    index: &'a Index,
    key: Key<'a>,
    /// The chunk that the search has come to. Nothing is read before it is needed.
    chunk: usize,
    /// Rows of the chunk.
    common: Common,
    /// Of words that may not be 0, those that the search has not come to.
    left: u64,
    /// The word that `bits` are of.
    at: usize,
    /// Candidates in that word that were not visited.
    bits: u64,
}

impl Search<'_> {
    #[inline(always)]
    fn enter(&mut self, chunk: usize) {
        self.chunk = chunk;
        self.common = self.index.chunks.get(chunk).map_or(Common::NONE, |chunk| chunk.rows_of(&self.key));
        (self.left, self.bits) = (self.common.summary, 0);
    }

    #[inline(always)]
    fn word(&self) -> u64 {
        self.index.chunks.get(self.chunk).map_or(0, |chunk| chunk.word(&self.common, self.at))
    }

    /// Goes on at rule `from`.
    #[inline]
    pub(crate) fn seek(&mut self, from: usize) {
        if from / CHUNK != self.chunk {
            self.enter(from / CHUNK);
        }
        self.at = from % CHUNK / 64;
        self.bits = self.word() & (!0 << (from % 64));
        self.left = self.common.summary & (!0 << self.at << 1);
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
            if self.left != 0 {
                self.at = self.left.trailing_zeros() as usize;
                self.left &= self.left - 1;
                self.bits = self.word();
            } else if self.chunk.wrapping_add(1) * CHUNK < self.index.rules {
                self.enter(self.chunk.wrapping_add(1));
            } else {
                return None;
            }
        }
    }
}
