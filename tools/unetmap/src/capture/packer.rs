// SPDX-License-Identifier: BSD-2-Clause
//! Compresses a chunk of records as frames of zstd, each of which can be read without the others.

use std::io;

use unetmap_capture::index::UNIT;
use zstd::bulk::Compressor;
use zstd::zstd_safe::{CParameter, compress_bound};

/// Compresses chunks. Memory is used again.
pub(crate) struct Packer {
    compressor: Compressor<'static>,
    /// The frames.
    pub(crate) packed: Vec<u8>,
    /// Where they begin, in the chunk and in `packed`.
    pub(crate) units: Vec<(u32, u32)>,
}

impl Packer {
    pub(crate) fn new(level: i32) -> io::Result<Packer> {
        let mut compressor = Compressor::new(level)?;
        compressor.set_parameter(CParameter::ChecksumFlag(true))?;
        Ok(Packer { compressor, packed: Vec::new(), units: Vec::new() })
    }

    /// Returns a frame.
    pub(crate) fn frame(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.compressor.compress(bytes)
    }

    /// Compresses blocks of pcapng.
    pub(crate) fn pack(&mut self, blocks: &[u8]) -> io::Result<()> {
        self.packed.clear();
        self.units.clear();
        let mut start = 0;
        while start < blocks.len() {
            let mut end = start;
            while end < blocks.len() && end - start < UNIT {
                let len = blocks[end + 4..].first_chunk().map_or(0, |&len| u32::from_ne_bytes(len));
                end += (len as usize).max(12);
            }
            let (at, unit) = (self.packed.len(), &blocks[start..end.min(blocks.len())]);
            self.units.push((start as u32, at as u32));
            self.packed.resize(at + compress_bound(unit.len()), 0);
            let len = self.compressor.compress_to_buffer(unit, &mut self.packed[at..])?;
            self.packed.truncate(at + len);
            start = end;
        }
        Ok(())
    }

    /// Returns the most bytes that frames have more than the blocks in them.
    pub(crate) fn most_overhead(bytes: u64) -> u64 {
        // A unit has less than 18 bytes of its own, its row in the index 8, and blocks that do not shrink a 256th more.
        (bytes / UNIT as u64 + 2) * 64 + bytes / 128
    }
}
