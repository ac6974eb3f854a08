// SPDX-License-Identifier: BSD-2-Clause
//! Reads the candidates of a search from a capture with an index, and no more of the file than they need.
//!
//! An index is believed for what it leaves out, and checked for what it names: the chunk ends where it says, the bucket
//! has its checksum, and at each place is a packet with the key that was looked for, in the times of the chunk. If one
//! of these is not so, and from the first byte on that has no index, the rest of the file is read as any capture is,
//! and that is said.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::Duration;

use super::{BLOCK, Builder, CHUNK, HEADER, Header, Query, SKIPPABLE, is_sum, keys, place, sum_of_bucket, tag};
use crate::{Error, LinkType, MAX_PACKET, Reader};

/// The first bytes of a compressed file.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Most bytes of the section header and interface of a file that has an index.
const MAX_HEAD: usize = 1 << 17;
/// Most memory that a compressed file may need, as a power of two.
const WINDOW: u32 = 27;
/// Kinds of blocks.
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;

/// Bytes that are read at any place.
pub trait ReadAt {
    /// Reads bytes from a place; fewer at the end.
    ///
    /// # Errors
    /// The file cannot be read.
    fn read_at(&self, to: &mut [u8], at: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, to: &mut [u8], at: u64) -> io::Result<usize> {
        FileExt::read_at(self, to, at)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, to: &mut [u8], at: u64) -> io::Result<usize> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let len = from.len().min(to.len());
        to[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }
}

/// A file, whose bytes are counted that were read.
struct Source<R> {
    file: R,
    read: Cell<u64>,
}

impl<R: ReadAt> Source<R> {
    /// Fills `to`, or as much of it as the file has; returns how much.
    fn fill(&self, to: &mut [u8], at: u64) -> Result<usize, Error> {
        let mut done = 0;
        while done < to.len() {
            match self.file.read_at(&mut to[done..], at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::Io(e)),
            }
        }
        self.read.set(self.read.get() + done as u64);
        Ok(done)
    }

    /// Returns `len` bytes; `None` if the file ends before them.
    fn bytes(&self, len: usize, at: u64) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = vec![0; len];
        Ok((self.fill(&mut bytes, at)? == len).then_some(bytes))
    }
}

/// The rest of a file from a place on.
struct Rest<R> {
    source: Rc<Source<R>>,
    at: u64,
}

impl<R: ReadAt> Read for Rest<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.source.file.read_at(to, self.at)?;
        self.at += read as u64;
        self.source.read.set(self.source.read.get() + read as u64);
        Ok(read)
    }
}

/// A packet that was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Since 1970; `None`: the record has no time.
    pub time: Option<Duration>,
    /// Bytes that it had when it was captured.
    pub original: usize,
}

/// Where the next packets come from.
enum State {
    /// The next index begins here.
    Indexed(u64),
    /// All packets from here on.
    Rest(Reader<Box<dyn Read>>),
    End,
}

/// The search in one file.
pub struct Extract<R> {
    source: Rc<Source<R>>,
    query: Query,
    times: [u64; 2],
    /// Each index is compared with its chunk, which is read whole.
    check: bool,
    is_packed: bool,
    /// The section header and interface, which all packets need.
    head: Vec<u8>,
    state: State,
    /// Packets of a chunk: where they are in `bytes`, in reverse order.
    queue: Vec<(Found, usize, usize)>,
    bytes: Vec<u8>,
    builder: Builder,
    /// Chunks by index, and those of them that were passed over.
    pub chunks: [u64; 2],
    /// Packets that are in no index, and where the first is.
    unindexed: (u64, u64),
    notes: Vec<String>,
}

/// A fault of an index, in words.
enum Fault {
    Error(Error),
    Index(&'static str),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Error(error)
    }
}

impl<R: ReadAt + 'static> Extract<R> {
    /// Begins a search: packets that `query` may take, in `times`. With `check`, each index is compared with its
    /// packets, for which all is read.
    ///
    /// # Errors
    /// The file cannot be read, or is no capture.
    pub fn new(file: R, query: Query, times: [Option<Duration>; 2], check: bool) -> Result<Extract<R>, Error> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let [from, to] = times;
        let mut extract = Extract {
            source: Rc::new(Source { file, read: Cell::new(0) }),
            query,
            times: [from.map_or(0, nanos), to.map_or(u64::MAX, nanos)],
            check,
            is_packed: false,
            head: Vec::new(),
            state: State::End,
            queue: Vec::new(),
            bytes: Vec::new(),
            builder: Builder::default(),
            chunks: [0; 2],
            unindexed: (0, 0),
            notes: Vec::new(),
        };
        let mut magic = [0; 4];
        extract.source.fill(&mut magic, 0)?;
        extract.is_packed = magic == ZSTD;
        let at = if extract.is_packed { extract.packed_head()? } else { extract.plain_head()? };
        match at {
            Some(at) => extract.state = State::Indexed(at),
            None => extract.read_rest(0)?,
        }
        Ok(extract)
    }

    /// Reads the two blocks at the beginning; returns where they end.
    fn plain_head(&mut self) -> Result<Option<u64>, Error> {
        let mut at = 0;
        for kind in [u32::from_ne_bytes(crate::pcapng::MAGIC), INTERFACE] {
            let Some(start) = self.source.bytes(8, at)? else { return Ok(None) };
            let len = word(&start, 4) as usize;
            if word(&start, 0) != kind || !(12..=MAX_HEAD).contains(&len) || !len.is_multiple_of(4) {
                return Ok(None);
            }
            let Some(block) = self.source.bytes(len, at)? else { return Ok(None) };
            self.head.extend(block);
            at += len as u64;
        }
        Ok(Some(at))
    }

    /// Reads the first frame, which has these blocks; returns where it ends.
    fn packed_head(&mut self) -> Result<Option<u64>, Error> {
        let mut start = vec![0; MAX_HEAD.min(4096)];
        let read = self.source.fill(&mut start, 0)?;
        let Ok(len) = zstd::zstd_safe::find_frame_compressed_size(&start[..read]) else { return Ok(None) };
        let head = zstd::bulk::decompress(&start[..len.min(read)], MAX_HEAD).ok();
        Ok(head.map(|head| {
            self.head = head;
            len as u64
        }))
    }

    /// Reads all packets from a place on.
    fn read_rest(&mut self, at: u64) -> Result<(), Error> {
        self.unindexed.1 = at;
        let rest = Rest { source: Rc::clone(&self.source), at };
        let rest: Box<dyn Read> = if self.is_packed {
            let mut decoder = zstd::stream::read::Decoder::new(rest).map_err(Error::Io)?;
            decoder.window_log_max(WINDOW).map_err(Error::Io)?;
            Box::new(decoder)
        } else {
            Box::new(rest)
        };
        let head = if at == 0 { Vec::new() } else { self.head.clone() };
        self.state = State::Rest(Reader::new(Box::new(Cursor::new(head).chain(rest)) as Box<dyn Read>)?);
        Ok(())
    }

    /// Copies the bytes of the next candidate to `to`; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged: the packets before are good.
    pub fn next_packet(&mut self, to: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        loop {
            if let Some((found, start, end)) = self.queue.pop() {
                to.clear();
                to.extend_from_slice(&self.bytes[start..end]);
                return Ok(Some(found));
            }
            match &mut self.state {
                State::End => return Ok(None),
                State::Indexed(at) => {
                    let at = *at;
                    self.chunk(at)?;
                }
                State::Rest(reader) => {
                    let Some(packet) = reader.next_packet()? else {
                        self.state = State::End;
                        continue;
                    };
                    self.unindexed.0 += 1;
                    if packet.link == LinkType::ETHERNET
                        && is_within(packet.time, self.times)
                        && self.query.may_take(packet.bytes)
                    {
                        to.clear();
                        to.extend_from_slice(packet.bytes);
                        return Ok(Some(Found { time: packet.time, original: packet.original }));
                    }
                }
            }
        }
    }

    /// Takes the candidates of the chunk whose index is here, or passes over it.
    fn chunk(&mut self, at: u64) -> Result<(), Error> {
        match self.try_chunk(at) {
            Ok(Some(next)) => self.state = State::Indexed(next),
            // The end of the file, or what has no index.
            Ok(None) => self.read_rest(at)?,
            Err(Fault::Error(error)) => return Err(error),
            Err(Fault::Index(why)) => {
                self.queue.clear();
                self.notes.push(format!("the index at byte {at} {why}; the file is read whole from there"));
                self.read_rest(at)?;
            }
        }
        Ok(())
    }

    /// Returns where the next index is; `None` if there is none here.
    fn try_chunk(&mut self, at: u64) -> Result<Option<u64>, Fault> {
        let (kind, framing) = if self.is_packed { (SKIPPABLE.to_le_bytes(), 0) } else { (BLOCK.to_ne_bytes(), 4) };
        let mut start = [0; 8 + HEADER];
        let read = self.source.fill(&mut start, at)?;
        if read < 8 || start[..4] != kind {
            return Ok(None);
        }
        let len = if framing == 0 { u32::from_le_bytes(start[4..8].try_into().expect("4")) } else { word(&start, 4) };
        let body = u64::from(len).checked_sub(if framing == 0 { 0 } else { 12 });
        let header = start[8..].first_chunk().and_then(Header::decode).filter(|_| read == start.len());
        let Some(header) = header.filter(|header| body == Some(header.len())) else {
            return Err(Fault::Index("is damaged"));
        };
        let chunk = at + 8 + header.len() + framing;
        let end = chunk + u64::from(if self.is_packed { header.packed } else { header.data });
        if self.is_packed != (header.packed > 0) {
            return Err(Fault::Index("is damaged"));
        }
        // The byte before the end, which is there unless the file was cut.
        if end > chunk && self.source.bytes(1, end - 1)?.is_none() {
            return Err(Fault::Index("has a chunk that the file does not have to its end"));
        }
        self.chunks[0] += 1;
        let index = Index { header, at: at + 8, chunk };
        let is_outside = header.packets > 0 && (header.last < self.times[0] || header.first > self.times[1]);
        if self.check {
            self.compare(&index)?;
        } else if is_outside || header.packets == 0 {
            self.chunks[1] += 1;
            return Ok(Some(end));
        }
        let entries = if self.query.is_narrow() && !self.check { Some(self.entries(&index)?) } else { None };
        match &entries {
            Some(entries) if entries.is_empty() => self.chunks[1] += 1,
            Some(entries) => {
                let blocks = self.blocks(&index, entries)?;
                self.take(blocks, &index, Some(entries))?;
            }
            None => {
                let blocks = self.whole(&index)?;
                self.take(blocks, &index, None)?;
            }
        }
        Ok(Some(end))
    }

    /// Returns the entries with all keys of the query, in the order of their places. The keys are those of the first
    /// list.
    fn entries(&self, index: &Index) -> Result<Vec<(u32, u32)>, Fault> {
        let mut found: Option<Vec<(u32, u32)>> = None;
        for any in &self.query.all {
            let mut places = Vec::new();
            for &key in any {
                places.extend(self.bucket(index, key)?.into_iter().map(|at| (at, key)));
            }
            places.sort_unstable();
            places.dedup_by_key(|(at, _)| *at);
            found = Some(match found {
                None => places,
                Some(mut found) => {
                    found.retain(|(at, _)| places.binary_search_by_key(at, |(at, _)| *at).is_ok());
                    found
                }
            });
            if found.as_ref().is_some_and(Vec::is_empty) {
                break;
            }
        }
        Ok(found.unwrap_or_default())
    }

    /// Returns the places of a key.
    fn bucket(&self, index: &Index, key: u32) -> Result<Vec<u32>, Fault> {
        let Index { header, at, .. } = index;
        let number = header.bucket_of(key);
        let is_last = u64::from(number) + 1 == header.buckets();
        let row = self.part(at + HEADER as u64 + 8 * u64::from(number), if is_last { 8 } else { 12 })?;
        let little = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| row[at + i]));
        let (start, sum) = (little(0), little(4));
        let end = if is_last { header.entries } else { little(8) };
        if start > end || end > header.entries {
            return Err(Fault::Index("is damaged"));
        }
        let entries = at + HEADER as u64 + 8 * header.buckets();
        let bytes = self.part(entries + 4 * u64::from(start), 4 * (end - start) as usize)?;
        if !is_sum(sum, sum_of_bucket(number, start, end, &bytes)) {
            return Err(Fault::Index("is damaged"));
        }
        let entries = bytes.chunks_exact(4).map(|entry| u32::from_le_bytes(std::array::from_fn(|i| entry[i])));
        Ok(entries.filter(|&entry| tag(entry) == key & 0xfff).map(place).collect())
    }

    /// Reads bytes that the file has, as its length was checked.
    fn part(&self, at: u64, len: usize) -> Result<Vec<u8>, Fault> {
        self.source.bytes(len, at)?.ok_or(Fault::Index("ends before its end"))
    }

    /// Returns the records at these places.
    fn blocks(&self, index: &Index, entries: &[(u32, u32)]) -> Result<Vec<u8>, Fault> {
        let mut blocks = Vec::new();
        let mut unit = Unit::default();
        let units = if self.is_packed { self.units(index)? } else { Vec::new() };
        for &(at, _) in entries {
            if at + 12 > index.header.data {
                return Err(Fault::Index(STALE));
            }
            let data = u64::from(index.header.data);
            if self.is_packed {
                self.open(index, &units, at, &mut unit)?;
                let from = unit.bytes.get((at - unit.start) as usize..).unwrap_or_default();
                let len = from.get(..8).map_or(0, packet_len);
                blocks.extend(from.get(..len).filter(|_| len > 0).ok_or(Fault::Index(STALE))?);
            } else {
                let len = packet_len(&self.part(index.chunk + u64::from(at), 8)?);
                if len == 0 || u64::from(at) + len as u64 > data {
                    return Err(Fault::Index(STALE));
                }
                blocks.extend(self.part(index.chunk + u64::from(at), len)?);
            }
            // Records that overlap would be more than the chunk has.
            if blocks.len() as u64 > data {
                return Err(Fault::Index(STALE));
            }
        }
        Ok(blocks)
    }

    /// Returns where the units begin, in the chunk and in its compressed bytes, and the ends of both.
    fn units(&self, index: &Index) -> Result<Vec<[u32; 2]>, Fault> {
        let Index { header, at, chunk } = index;
        let bytes = self.part(chunk - 8 * u64::from(header.units), 8 * header.units as usize)?;
        debug_assert_eq!(at + header.len(), *chunk);
        if !is_sum(header.units_sum, crc32fast::hash(&bytes)) {
            return Err(Fault::Index("is damaged"));
        }
        let little = |at: &[u8]| u32::from_le_bytes(std::array::from_fn(|i| at[i]));
        let units = bytes.chunks_exact(8).map(|unit| [little(&unit[..4]), little(&unit[4..])]);
        let units: Vec<_> = units.chain([[header.data, header.packed]]).collect();
        let is_ordered =
            units[0] == [0, 0] && units.windows(2).all(|two| two[0][0] < two[1][0] && two[0][1] < two[1][1]);
        if is_ordered { Ok(units) } else { Err(Fault::Index("is damaged")) }
    }

    /// Makes `unit` the one with this byte of the chunk.
    fn open(&self, index: &Index, units: &[[u32; 2]], at: u32, unit: &mut Unit) -> Result<(), Fault> {
        let number = units.partition_point(|&[start, _]| start <= at);
        let (Some(&[start, from]), Some(&[end, to])) = (units.get(number.wrapping_sub(1)), units.get(number)) else {
            return Err(Fault::Index(STALE));
        };
        if unit.start == start && !unit.bytes.is_empty() {
            return Ok(());
        }
        let packed = self.part(index.chunk + u64::from(from), (to - from) as usize)?;
        let bytes = zstd::bulk::decompress(&packed, (end - start) as usize).map_err(|_| Fault::Index(STALE))?;
        if bytes.len() != (end - start) as usize {
            return Err(Fault::Index(STALE));
        }
        *unit = Unit { start, bytes };
        Ok(())
    }

    /// Returns all records of a chunk.
    fn whole(&self, index: &Index) -> Result<Vec<u8>, Fault> {
        if !self.is_packed {
            return self.part(index.chunk, index.header.data as usize);
        }
        let units = self.units(index)?;
        let (mut bytes, mut unit) = (Vec::new(), Unit::default());
        for &[start, _] in &units[..units.len() - 1] {
            self.open(index, &units, start, &mut unit)?;
            bytes.append(&mut unit.bytes);
        }
        Ok(bytes)
    }

    /// Queues the packets of records, and checks that they are those that the index has: all of its chunk, or those at
    /// the places of entries, which have their keys.
    fn take(&mut self, blocks: Vec<u8>, index: &Index, entries: Option<&[(u32, u32)]>) -> Result<(), Fault> {
        let wanted = entries.map_or(index.header.packets as usize, <[_]>::len);
        let from = Cursor::new(&self.head).chain(Cursor::new(blocks));
        let mut reader = Reader::new(from)?;
        self.bytes.clear();
        let mut taken = 0;
        loop {
            let packet = match reader.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(_) => return Err(Fault::Index(STALE)),
            };
            let nanos = packet.time.map_or(0, |time| time.as_nanos() as u64);
            let key = entries.and_then(|entries| entries.get(taken)).map(|(_, key)| *key);
            let keys = keys::of_frame(packet.bytes);
            // An entry has only a part of the key, so another key with the same part is no fault.
            let visible = |key: u32| (index.header.bucket_of(key), key & 0xfff);
            let has_key = key.is_none_or(|key| keys.as_slice().iter().any(|&own| visible(own) == visible(key)));
            if !has_key || !(index.header.first..=index.header.last).contains(&nanos) {
                return Err(Fault::Index(STALE));
            }
            taken += 1;
            if is_within(packet.time, self.times) && self.query.may_take(packet.bytes) {
                let start = self.bytes.len();
                self.bytes.extend_from_slice(packet.bytes);
                let found = Found { time: packet.time, original: packet.original };
                self.queue.push((found, start, self.bytes.len()));
            }
        }
        if taken != wanted {
            return Err(Fault::Index(STALE));
        }
        self.queue.reverse();
        Ok(())
    }

    /// Compares an index with one that is made of the chunk again.
    fn compare(&mut self, index: &Index) -> Result<(), Fault> {
        let blocks = self.whole(index)?;
        let mut at = 0;
        while at < blocks.len() {
            let len = blocks.get(at..at + 8).map_or(0, packet_len);
            let block = blocks.get(at..at + len).filter(|block| block.len() >= 32).ok_or(Fault::Index(STALE))?;
            let time = u64::from(word(block, 12)) << 32 | u64::from(word(block, 16));
            let stored = word(block, 20).min(MAX_PACKET) as usize;
            let bytes = block.get(28..28 + stored).ok_or(Fault::Index(STALE))?;
            self.builder.add(at, Duration::from_nanos(time), bytes);
            at += len;
        }
        let (len, at) = (index.header.len() as usize, index.at);
        let stored = self.part(at, len)?;
        let again = if self.is_packed {
            let mut units = self.units(index)?;
            units.pop();
            let units: Vec<_> = units.into_iter().map(|[at, packed]| (at, packed)).collect();
            self.builder.frame(blocks.len(), &units, index.header.packed as usize)
        } else {
            self.builder.block(blocks.len())
        };
        if again[8..8 + len.min(again.len() - 8)] == stored { Ok(()) } else { Err(Fault::Index(STALE)) }
    }

    /// Returns the bytes of the file that were read.
    pub fn bytes_read(&self) -> u64 {
        self.source.read.get()
    }

    /// Returns a sentence about each fault of the index.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the packets that no index has, and where the first of them may be; they were all read.
    pub fn unindexed(&self) -> (u64, u64) {
        self.unindexed
    }
}

/// Why an index is not believed whose checksums are right.
const STALE: &str = "is not that of the packets behind it";

/// A decompressed unit of a chunk.
#[derive(Default)]
struct Unit {
    start: u32,
    bytes: Vec<u8>,
}

/// An index, and where its header and its chunk begin.
struct Index {
    header: Header,
    at: u64,
    chunk: u64,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |&bytes| u32::from_ne_bytes(bytes))
}

/// Returns the length of a packet's block by its first 8 bytes; 0 if it is none.
fn packet_len(start: &[u8]) -> usize {
    let len = word(start, 4) as usize;
    if word(start, 0) == PACKET && len >= 32 && len.is_multiple_of(4) && len <= CHUNK { len } else { 0 }
}

fn is_within(time: Option<Duration>, [from, to]: [u64; 2]) -> bool {
    // A packet without a time has none outside.
    time.is_none_or(|time| (from..=to).contains(&(time.as_nanos().min(u64::MAX.into()) as u64)))
}
