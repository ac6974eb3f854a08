// SPDX-License-Identifier: BSD-2-Clause
//! The index of a capture: where the packets of a flow, of an address or of a time are.
//!
//! A file is written in chunks of at most 4 MiB. Before each is its index, in a container that other readers pass over:
//!
//! ```text
//! pcapng        section interface | block 0x80554d49: index | packets | block: index | packets | ... | statistics
//! pcapng.zst    frame             | skippable frame: index  | frames  | ...                          | frame
//!
//! index         header | directory: 2^bits of (start, checksum) | entries | units: (start, start in the file)
//! entry         12 bits of the key, 20 bits of place in the chunk, in steps of 4 bytes
//! ```
//! A key's upper bits are the number of its bucket, a run of entries. So a search reads for each chunk the header, two
//! numbers of the directory and a bucket, some hundred bytes in all, and then the packets. Compressed chunks consist of
//! frames of about 32 KiB, the units. Numbers are little-endian. Nothing needs the end of a file, which may be cut
//! anywhere.

mod extract;
mod keys;
mod query;

pub use extract::{Extract, Found, ReadAt};
pub use keys::spread;
pub use query::Query;

use std::time::Duration;

/// Most bytes of a chunk, without its index.
pub const CHUNK: usize = 1 << 22;
/// Bytes of records after which a frame of a compressed chunk ends.
pub const UNIT: usize = 1 << 15;
/// Kind of the block with an index, one of those for local use.
const BLOCK: u32 = 0x8055_4d49;
/// Magic number of the skippable frame with an index.
const SKIPPABLE: u32 = 0x184d_2a5d;
const MAGIC: [u8; 8] = *b"unmapix1";
/// Bytes of the header.
const HEADER: usize = 64;
/// Entries in a bucket, on average at most.
const BUCKET: usize = 64;
/// Most bits of a bucket's number.
const MAX_BITS: u32 = 16;
/// Bytes of the smallest record of a packet.
const MIN_RECORD: usize = 32;

/// The header of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    /// Times of packets, in nanoseconds since 1970.
    first: u64,
    last: u64,
    /// Bytes of the chunk, and of its frames; the second is 0 if it is not compressed.
    data: u32,
    packed: u32,
    packets: u32,
    entries: u32,
    bits: u32,
    units: u32,
    units_sum: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.first.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.last.to_le_bytes());
        let words = [self.data, self.packed, self.packets, self.entries, self.bits, self.units, self.units_sum];
        for (place, word) in bytes[24..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let sum = crc32fast::hash(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None`: it is damaged, or says what cannot be.
    fn decode(bytes: &[u8; HEADER]) -> Option<Header> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let long = |at: usize| u64::from(word(at + 4)) << 32 | u64::from(word(at));
        let header = Header {
            first: long(8),
            last: long(16),
            data: word(24),
            packed: word(28),
            packets: word(32),
            entries: word(36),
            bits: word(40),
            units: word(44),
            units_sum: word(48),
        };
        let most = CHUNK / MIN_RECORD;
        let is_possible = bytes[..8] == MAGIC
            && is_sum(word(HEADER - 4), crc32fast::hash(&bytes[..HEADER - 4]))
            && header.data as usize <= CHUNK
            && header.packed as usize <= 2 * CHUNK
            && header.packets as usize <= most
            && header.entries as usize <= most * keys::MAX_KEYS
            && header.bits <= MAX_BITS
            && header.units as usize <= most
            && (header.units == 0) == (header.packed == 0);
        is_possible.then_some(header)
    }

    fn buckets(&self) -> u64 {
        1 << self.bits
    }

    /// Bytes of the index.
    fn len(&self) -> u64 {
        HEADER as u64 + 8 * self.buckets() + 4 * u64::from(self.entries) + 8 * u64::from(self.units)
    }

    fn bucket_of(&self, key: u32) -> u32 {
        // A shift by 32 bits is none in Rust.
        (u64::from(key) >> (32 - self.bits)) as u32
    }
}

/// Whether two checksums are the same. A fuzzer would find no bytes for which they are.
fn is_sum(stored: u32, computed: u32) -> bool {
    cfg!(fuzzing) || stored == computed
}

fn entry(key: u32, at: u32) -> u32 {
    (key << 20) | (at / 4)
}

/// The part of an entry that is of the key.
fn tag(entry: u32) -> u32 {
    entry >> 20
}

fn place(entry: u32) -> u32 {
    (entry & 0xf_ffff) * 4
}

fn sum_of_bucket(number: u32, start: u32, end: u32, entries: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    [number, start, end].iter().for_each(|word| sum.update(&word.to_le_bytes()));
    sum.update(entries);
    sum.finalize()
}

/// Number of buckets for a number of entries, as its logarithm.
fn bits_for(entries: usize) -> u32 {
    (entries / BUCKET).next_power_of_two().ilog2().min(MAX_BITS)
}

/// Makes the index of a chunk while its packets are written. Memory is used again.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    /// Keys and places.
    keyed: Vec<(u32, u32)>,
    packets: u32,
    first: u64,
    last: u64,
    starts: Vec<u32>,
    sorted: Vec<u32>,
    out: Vec<u8>,
}

impl Builder {
    /// Adds a packet whose record begins `at` this byte of the chunk.
    pub fn add(&mut self, at: usize, time: Duration, bytes: &[u8]) {
        let nanos = time.as_nanos() as u64;
        self.first = if self.packets == 0 { nanos } else { self.first.min(nanos) };
        self.last = self.last.max(nanos);
        self.packets += 1;
        self.keyed.extend(keys::of_frame(bytes).as_slice().iter().map(|&key| (key, at as u32)));
    }

    /// Whether no packet was added.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Returns the most bytes of the container of an index that has another packet as well.
    pub fn size(&self) -> u64 {
        let entries = self.keyed.len() + keys::MAX_KEYS;
        (12 + HEADER + (8 << bits_for(entries)) + 4 * entries) as u64
    }

    /// Returns the index, in a block of pcapng, of a chunk of so many bytes; begins the next one.
    pub fn block(&mut self, data: usize) -> &[u8] {
        self.begin(BLOCK, 4);
        self.body(data, &[], 0);
        self.end(4)
    }

    /// Returns the index in a skippable frame. `units` are where frames begin in the chunk and in its compressed bytes.
    pub fn frame(&mut self, data: usize, units: &[(u32, u32)], packed: usize) -> &[u8] {
        self.begin(SKIPPABLE, 0);
        self.body(data, units, packed as u32);
        self.end(0)
    }

    fn begin(&mut self, kind: u32, framing: usize) {
        self.out.clear();
        // pcapng has the byte order of its section, skippable frames are little-endian.
        let kind = if framing == 0 { kind.to_le_bytes() } else { kind.to_ne_bytes() };
        self.out.extend(kind);
        self.out.extend([0; 4]);
    }

    fn end(&mut self, framing: usize) -> &[u8] {
        if framing == 0 {
            let len = self.out.len() as u32 - 8;
            self.out[4..8].copy_from_slice(&len.to_le_bytes());
        } else {
            let len = (self.out.len() + framing) as u32;
            self.out[4..8].copy_from_slice(&len.to_ne_bytes());
            self.out.extend(len.to_ne_bytes());
        }
        (self.packets, self.first, self.last) = (0, 0, 0);
        self.keyed.clear();
        &self.out
    }

    fn body(&mut self, data: usize, units: &[(u32, u32)], packed: u32) {
        let mut units_sum = crc32fast::Hasher::new();
        units.iter().flat_map(|&(at, packed)| [at, packed]).for_each(|word| units_sum.update(&word.to_le_bytes()));
        let header = Header {
            first: self.first,
            last: self.last,
            data: data as u32,
            packed,
            packets: self.packets,
            entries: self.keyed.len() as u32,
            bits: bits_for(self.keyed.len()),
            units: units.len() as u32,
            units_sum: units_sum.finalize(),
        };
        self.sort(&header);
        let Builder { out, starts, sorted, .. } = self;
        out.extend(header.encode());
        let directory = out.len();
        let entries = directory + 8 * header.buckets() as usize;
        out.resize(entries, 0);
        sorted.iter().for_each(|entry| out.extend(entry.to_le_bytes()));
        for (number, ends) in (0..).zip(starts.windows(2)) {
            let [start, end] = [ends[0], ends[1]];
            let bucket = &out[entries + 4 * start as usize..entries + 4 * end as usize];
            let sum = sum_of_bucket(number, start, end, bucket);
            let row = directory + 8 * number as usize;
            out[row..row + 4].copy_from_slice(&start.to_le_bytes());
            out[row + 4..row + 8].copy_from_slice(&sum.to_le_bytes());
        }
        units.iter().flat_map(|&(at, packed)| [at, packed]).for_each(|word| out.extend(word.to_le_bytes()));
    }

    /// Sorts the entries by bucket, within it by place; `starts` becomes where buckets begin, and the end.
    fn sort(&mut self, header: &Header) {
        let Builder { keyed, starts, sorted, .. } = self;
        starts.clear();
        starts.resize(header.buckets() as usize + 1, 0);
        keyed.iter().for_each(|&(key, _)| starts[header.bucket_of(key) as usize + 1] += 1);
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        sorted.clear();
        sorted.resize(keyed.len(), 0);
        // Each start is moved to the end of its bucket, and so becomes the next one's.
        for &(key, at) in keyed.iter() {
            let next = &mut starts[header.bucket_of(key) as usize];
            sorted[*next as usize] = entry(key, at);
            *next += 1;
        }
        starts.rotate_right(1);
        starts[0] = 0;
    }
}
