// SPDX-License-Identifier: BSD-2-Clause
//! Memory of the packets that a shaper holds: fixed, private, and in chunks, so that a short packet takes little.
//!
//! ```text
//! packet -> chunk 7 -> chunk 3 -> chunk 9    (256 bytes each)
//! free   -> chunk 2 -> ...    [fresh, chunks) were never used
//! ```

use crate::Nanos;

/// Bytes of a chunk. Frames up to this size take one.
const CHUNK: usize = 256;
/// No chunk, or no packet.
pub(crate) const NONE: u32 = u32::MAX;

/// Names a packet in a pool, by its first chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Packet(pub(crate) u32);

/// Properties of a packet besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meta {
    /// Bytes in the pool.
    pub(crate) stored: u32,
    /// Bytes on the link: without the virtio-net header.
    pub(crate) len: u32,
    /// The next packet of the same queue.
    pub(crate) next: u32,
    /// A number of the caller.
    pub(crate) tag: u32,
    /// When the packet came.
    pub(crate) arrived: Nanos,
    /// When the packet is due at the other end of the link.
    pub(crate) due: Nanos,
}

/// Memory of packets.
#[derive(Debug)]
pub struct Pool {
    bytes: Vec<u8>,
    next_chunk: Vec<u32>,
    meta: Vec<Meta>,
    free: u32,
    free_chunks: u32,
    /// Chunks from here on were never used: the kernel has not given memory for them yet.
    fresh: u32,
    packets: u32,
}

impl Pool {
    /// Makes a pool of `bytes` bytes, at least one chunk. Memory is only taken once it is used.
    pub fn new(bytes: usize) -> Pool {
        let chunks = (bytes / CHUNK).clamp(1, NONE as usize - 1);
        Pool {
            bytes: vec![0; chunks * CHUNK],
            next_chunk: vec![0; chunks],
            meta: vec![Meta::default(); chunks],
            free: NONE,
            free_chunks: 0,
            fresh: 0,
            packets: 0,
        }
    }

    /// Returns the number of packets in the pool.
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Returns how many packets the pool can hold, if they are short.
    pub fn capacity(&self) -> usize {
        self.meta.len()
    }

    /// Takes memory for a packet of `stored` bytes, of which all but the first `header` are on the link. Its bytes are
    /// written with a [`Cursor`]. Returns `None` if there is no room.
    #[inline]
    pub fn allocate(&mut self, stored: usize, header: usize, tag: u32, now: Nanos) -> Option<Packet> {
        let chunks = stored.div_ceil(CHUNK).max(1);
        if chunks > self.free_chunks as usize + (self.meta.len() - self.fresh as usize) {
            return None;
        }
        let mut first = NONE;
        for _ in 0..chunks {
            let chunk = match self.free {
                NONE => {
                    self.fresh += 1;
                    self.fresh - 1
                }
                chunk => {
                    self.free = self.next_chunk[chunk as usize];
                    self.free_chunks -= 1;
                    chunk
                }
            };
            self.next_chunk[chunk as usize] = first;
            first = chunk;
        }
        let len = stored.saturating_sub(header) as u32;
        self.meta[first as usize] = Meta { stored: stored as u32, len, next: NONE, tag, arrived: now, due: 0 };
        self.packets += 1;
        Some(Packet(first))
    }

    /// Returns a packet's memory.
    #[inline]
    pub fn free(&mut self, packet: Packet) {
        let stored = self.meta[packet.0 as usize].stored as usize;
        let chunks = stored.div_ceil(CHUNK).max(1) as u32;
        let mut last = packet.0;
        for _ in 1..chunks {
            last = self.next_chunk[last as usize];
        }
        self.next_chunk[last as usize] = self.free;
        self.free = packet.0;
        self.free_chunks += chunks;
        self.packets -= 1;
    }

    /// Makes a second packet with the same bytes, if there is room.
    pub fn duplicate(&mut self, packet: Packet) -> Option<Packet> {
        let Meta { stored, len, tag, arrived, .. } = self.meta[packet.0 as usize];
        let copy = self.allocate(stored as usize, (stored - len) as usize, tag, arrived)?;
        let (mut from, mut to) = (packet.0 as usize, copy.0 as usize);
        for done in (0..stored as usize).step_by(CHUNK) {
            let n = CHUNK.min(stored as usize - done);
            self.bytes.copy_within(from * CHUNK..from * CHUNK + n, to * CHUNK);
            (from, to) = (self.next_chunk[from] as usize, self.next_chunk[to] as usize);
        }
        Some(copy)
    }

    /// Returns the number of bytes in the pool, those of a virtio-net header included.
    #[inline]
    pub fn stored(&self, packet: Packet) -> usize {
        self.meta[packet.0 as usize].stored as usize
    }

    /// Returns the number of bytes on the link.
    #[inline]
    pub fn len(&self, packet: Packet) -> u32 {
        self.meta[packet.0 as usize].len
    }

    /// Returns the caller's number.
    #[inline]
    pub fn tag(&self, packet: Packet) -> u32 {
        self.meta[packet.0 as usize].tag
    }

    /// Sets the caller's number.
    #[inline]
    pub fn set_tag(&mut self, packet: Packet, tag: u32) {
        self.meta[packet.0 as usize].tag = tag;
    }

    /// Returns when the packet came.
    #[inline]
    pub fn arrived(&self, packet: Packet) -> Nanos {
        self.meta[packet.0 as usize].arrived
    }

    /// Returns when the packet is due at the other end; 0 until the link has sent it.
    #[inline]
    pub fn due(&self, packet: Packet) -> Nanos {
        self.meta[packet.0 as usize].due
    }

    #[inline]
    pub(crate) fn meta(&self, packet: Packet) -> &Meta {
        &self.meta[packet.0 as usize]
    }

    #[inline]
    pub(crate) fn meta_mut(&mut self, packet: Packet) -> &mut Meta {
        &mut self.meta[packet.0 as usize]
    }

    /// Returns the first bytes of the frame, at most a chunk.
    pub fn head_mut(&mut self, packet: Packet) -> &mut [u8] {
        let Meta { stored, len, .. } = self.meta[packet.0 as usize];
        let begin = packet.0 as usize * CHUNK;
        let header = ((stored - len) as usize).min(CHUNK);
        &mut self.bytes[begin + header..begin + CHUNK.min(stored as usize).max(header)]
    }

    /// Inverts a bit of the frame.
    pub(crate) fn flip(&mut self, packet: Packet, bit: u64) {
        let Meta { stored, len, .. } = self.meta[packet.0 as usize];
        let mut at = (stored - len) as usize + (bit / 8) as usize;
        let mut chunk = packet.0 as usize;
        while at >= CHUNK {
            chunk = self.next_chunk[chunk] as usize;
            at -= CHUNK;
        }
        self.bytes[chunk * CHUNK + at] ^= 1 << (bit % 8);
    }

    /// Begins to write or read a packet's bytes.
    #[inline]
    pub fn cursor(&self, packet: Packet) -> Cursor {
        Cursor { chunk: packet.0, at: 0, left: self.stored(packet) }
    }
}

/// A place in a packet's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    chunk: u32,
    at: usize,
    left: usize,
}

impl Cursor {
    /// Returns the next bytes, at most `max`, and goes on behind them. They are contiguous, so there may be fewer;
    /// there are none only at the end.
    #[inline]
    pub fn next_mut<'p>(&mut self, pool: &'p mut Pool, max: usize) -> &'p mut [u8] {
        let range = self.advance(&pool.next_chunk, max);
        &mut pool.bytes[range]
    }

    /// As [`Cursor::next_mut`], to read.
    #[inline]
    pub fn next<'p>(&mut self, pool: &'p Pool, max: usize) -> &'p [u8] {
        let range = self.advance(&pool.next_chunk, max);
        &pool.bytes[range]
    }

    #[inline]
    fn advance(&mut self, next_chunk: &[u32], max: usize) -> std::ops::Range<usize> {
        if self.at == CHUNK && self.left > 0 {
            self.chunk = next_chunk[self.chunk as usize];
            self.at = 0;
        }
        let n = max.min(CHUNK - self.at).min(self.left);
        let begin = self.chunk as usize * CHUNK + self.at;
        self.at += n;
        self.left -= n;
        begin..begin + n
    }
}

/// A list of packets, in order. The links are in the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    first: u32,
    last: u32,
    /// Packets in the list.
    pub(crate) packets: u32,
    /// Their bytes.
    pub(crate) bytes: u64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { first: NONE, last: NONE, packets: 0, bytes: 0 }
    }
}

impl Queue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.packets == 0
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<Packet> {
        (self.packets > 0).then_some(Packet(self.first))
    }

    #[inline]
    pub(crate) fn push(&mut self, pool: &mut Pool, packet: Packet) {
        pool.meta_mut(packet).next = NONE;
        match self.packets {
            0 => self.first = packet.0,
            _ => pool.meta_mut(Packet(self.last)).next = packet.0,
        }
        self.last = packet.0;
        self.packets += 1;
        self.bytes += u64::from(pool.len(packet));
    }

    #[inline]
    pub(crate) fn pop(&mut self, pool: &Pool) -> Option<Packet> {
        let packet = self.first()?;
        let meta = pool.meta(packet);
        self.first = meta.next;
        self.packets -= 1;
        self.bytes -= u64::from(meta.len);
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(pool: &mut Pool, packet: Packet, bytes: &[u8]) {
        let (mut cursor, mut rest) = (pool.cursor(packet), bytes);
        while !rest.is_empty() {
            let part = cursor.next_mut(pool, rest.len());
            part.copy_from_slice(&rest[..part.len()]);
            rest = &rest[part.len()..];
        }
    }

    fn read(pool: &Pool, packet: Packet) -> Vec<u8> {
        let (mut cursor, mut bytes) = (pool.cursor(packet), Vec::new());
        loop {
            match cursor.next(pool, 100) {
                [] => return bytes,
                part => bytes.extend(part),
            }
        }
    }

    #[test]
    fn packets_of_all_sizes_are_kept_and_memory_is_used_again() {
        let mut pool = Pool::new(64 * CHUNK);
        for round in 0..100usize {
            let sizes = [0, 1, 60, 255, 256, 257, 1514, 9000].map(|n| n + round % 2);
            let packets: Vec<_> = sizes
                .iter()
                .map(|&n| {
                    let packet = pool.allocate(n, 0, n as u32, 7).expect("room");
                    let bytes: Vec<u8> = (0..n).map(|i| (i * 7 + n) as u8).collect();
                    write(&mut pool, packet, &bytes);
                    (packet, bytes)
                })
                .collect();
            for (packet, bytes) in &packets {
                assert_eq!(&read(&pool, *packet), bytes);
                let copy = (bytes.len() < 2000).then(|| pool.duplicate(*packet).expect("room"));
                if let Some(copy) = copy {
                    assert_eq!(&read(&pool, copy), bytes);
                    pool.free(copy);
                }
            }
            packets.into_iter().for_each(|(packet, _)| pool.free(packet));
            assert_eq!(pool.packets(), 0);
        }
    }

    #[test]
    fn a_full_pool_refuses_packets() {
        let mut pool = Pool::new(4 * CHUNK);
        let long = pool.allocate(3 * CHUNK, 12, 0, 0).expect("room");
        assert_eq!((pool.len(long), pool.stored(long)), (3 * CHUNK as u32 - 12, 3 * CHUNK));
        assert!(pool.allocate(CHUNK + 1, 0, 0, 0).is_none());
        let short = pool.allocate(CHUNK, 0, 0, 0).expect("room");
        assert!(pool.allocate(0, 0, 0, 0).is_none() && pool.duplicate(short).is_none());
        pool.free(long);
        assert!(pool.allocate(CHUNK + 1, 0, 0, 0).is_some());
    }

    #[test]
    fn one_bit_of_the_frame_is_inverted() {
        let mut pool = Pool::new(8 * CHUNK);
        let packet = pool.allocate(600, 12, 0, 0).expect("room");
        write(&mut pool, packet, &[0; 600]);
        pool.flip(packet, 587 * 8 + 3);
        let bytes = read(&pool, packet);
        assert_eq!(bytes.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
        assert_eq!(bytes[599], 8);
    }
}
