// SPDX-License-Identifier: BSD-2-Clause
//! Frames of a batch, one after the other.

use unetmap::Ring;
use unetmap::abi::NS_MOREFRAG;

/// Bytes after which a batch takes no further frame, so that offsets fit into 32 bits: a ring has at most as many.
const MOST_BYTES: usize = 1 << 30;

/// Copies of frames.
#[derive(Default)]
pub(crate) struct Frames {
    pub(crate) data: Vec<u8>,
    /// Where in the data each frame begins.
    pub(crate) offsets: Vec<u32>,
    /// Bytes of each frame.
    pub(crate) lengths: Vec<u32>,
}

impl Frames {
    pub(crate) fn with_capacity(frames: usize, bytes: usize) -> Frames {
        let numbers = || Vec::with_capacity(frames);
        Frames { data: Vec::with_capacity(bytes), offsets: numbers(), lengths: numbers() }
    }

    pub(crate) fn len(&self) -> usize {
        self.lengths.len()
    }

    fn begin(&mut self) {
        self.offsets.push(self.data.len() as u32);
        self.lengths.push(0);
    }

    fn extend(&mut self, bytes: usize, copy: impl FnOnce(&mut [u8])) {
        let at = self.data.len();
        self.data.resize(at + bytes, 0);
        copy(&mut self.data[at..]);
        if let Some(length) = self.lengths.last_mut() {
            *length += bytes as u32;
        }
    }

    /// Appends a frame.
    pub(crate) fn push(&mut self, frame: &[u8]) {
        self.begin();
        self.extend(frame.len(), |to| to.copy_from_slice(frame));
    }

    /// Takes frames that have arrived in a ring, at most up to `most` in all, and releases their slots.
    pub(crate) fn take(&mut self, ring: &Ring, most: usize) {
        let (mut slots, mut is_first) = (0, true);
        for slot in ring.available() {
            if is_first {
                if self.len() >= most || self.data.len() >= MOST_BYTES {
                    break;
                }
                self.begin();
            }
            let (bytes, flags) = slot.len_flags();
            let frame = slot.frame();
            self.extend(usize::from(bytes).min(frame.capacity()), |to| _ = frame.read(0, to));
            is_first = flags & NS_MOREFRAG == 0;
            slots += 1;
        }
        ring.advance(slots);
    }

    /// Returns the frames from this one on.
    pub(crate) fn from(&self, first: usize) -> impl Iterator<Item = &[u8]> {
        let places = self.offsets.iter().zip(&self.lengths).skip(first);
        places.map(|(&at, &len)| &self.data[at as usize..][..len as usize])
    }
}
