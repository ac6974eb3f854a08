// SPDX-License-Identifier: BSD-2-Clause
//! Memory of a virtual machine, which its hypervisor shares by files.
//!
//! ```text
//!   guest addresses   [0 ........ 3 GiB)       [4 GiB ..... 5 GiB)      of buffers, written in descriptors
//!                          region 0                  region 1
//!   user addresses    the hypervisor's own mapping of each region       of rings, written in messages
//! ```
//! The guest writes any of it at any time: words are loaded once through atomics, buffers are [`Frame`]s (rules M1,
//! M4). An address is translated at each use, by a range check.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::frame::Frame;
use crate::mapped_range::MappedRange;

/// Where a region of guest memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuestPlace {
    /// The first guest address.
    pub guest: u64,
    /// The first address in the hypervisor.
    pub user: u64,
    /// Bytes of the region.
    pub bytes: u64,
}

impl GuestPlace {
    /// Whether both address ranges have an end, and bytes.
    fn is_valid(&self) -> bool {
        self.bytes > 0 && self.guest.checked_add(self.bytes).is_some() && self.user.checked_add(self.bytes).is_some()
    }

    fn overlaps(&self, other: &GuestPlace) -> bool {
        let overlap = |a: u64, b: u64| a < b + other.bytes && b < a + self.bytes;
        overlap(self.guest, other.guest) || overlap(self.user, other.user)
    }
}

/// The regions of one guest.
#[derive(Default)]
pub struct GuestMemory {
    regions: Vec<(GuestPlace, MappedRange)>,
}

impl GuestMemory {
    /// Adds a region, which `range` maps. Returns false if the range is shorter than the region, an address range wraps
    /// or has no bytes, or overlaps that of another region.
    #[must_use]
    pub fn add(&mut self, place: GuestPlace, range: MappedRange) -> bool {
        let fits = place.is_valid() && range.len() as u64 >= place.bytes;
        if !fits || self.regions.iter().any(|(other, _)| place.overlaps(other)) {
            return false;
        }
        self.regions.push((place, range));
        true
    }

    /// Removes the region at this place. Returns false if there is none.
    #[must_use]
    pub fn remove(&mut self, place: GuestPlace) -> bool {
        let before = self.regions.len();
        self.regions.retain(|(other, _)| *other != place);
        self.regions.len() < before
    }

    /// Returns the number of regions.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Returns the memory at a guest address: `bytes` bytes, or those up to the end of the region if they are fewer.
    /// `None` if no region has the address.
    #[inline]
    pub fn frame(&self, guest: u64, bytes: u32) -> Option<Frame<'_>> {
        let (place, range) = self.regions.iter().find(|(place, _)| guest.wrapping_sub(place.guest) < place.bytes)?;
        let at = guest - place.guest;
        let len = u64::from(bytes).min(place.bytes - at) as usize;
        // SAFETY: M2: `at + len` is at most the region's bytes, which `add` compared to the range's length; the range
        // lives as long as `self`.
        Some(unsafe { Frame::new(range.base().add(at as usize), len) })
    }

    /// Copies `out.len()` bytes from a guest address. Returns false if not all of them are in regions.
    pub fn read(&self, mut guest: u64, out: &mut [u8]) -> bool {
        let mut done = 0;
        while done < out.len() {
            let Some(frame) = self.frame(guest, (out.len() - done) as u32) else { return false };
            let n = frame.read(0, &mut out[done..]);
            done += n;
            guest = guest.wrapping_add(n as u64);
        }
        true
    }

    /// Returns `bytes` bytes from a user address, for the words of a ring. `None` if they are not inside one region, or
    /// the address is not a multiple of `align`.
    pub fn words(&self, user: u64, bytes: usize, align: u64) -> Option<GuestWords> {
        let (place, range) = self.regions.iter().find(|(place, _)| user.wrapping_sub(place.user) < place.bytes)?;
        let range = range.part((user - place.user) as usize, bytes)?;
        (range.base().addr() as u64).is_multiple_of(align).then_some(GuestWords { range })
    }
}

/// Words of a ring in guest memory, little-endian, at byte offsets. A load outside of the range is 0 and a store does
/// nothing: a ring asks for the range that its number of descriptors needs, and uses no other offsets.
#[derive(Clone)]
pub struct GuestWords {
    range: MappedRange,
}

impl GuestWords {
    /// The words of a range that is no guest memory, but which a hypervisor can write, too.
    pub fn new(range: MappedRange) -> GuestWords {
        GuestWords { range }
    }

    #[inline(always)]
    fn word<T>(&self, at: usize) -> Option<&T> {
        debug_assert!(at + size_of::<T>() <= self.range.len());
        // SAFETY: M1, M2: `T` is one of the atomics below; `at` checks bounds and alignment, the range keeps the value
        // mapped.
        unsafe { self.range.at::<T>(at).map(|word| &*word) }
    }

    /// Prefetches the cache line at a byte offset for reading.
    #[inline(always)]
    pub fn prefetch(&self, at: usize) {
        crate::prefetch::for_read(self.range.base().wrapping_add(at));
    }

    /// Prefetches the cache line at a byte offset for writing.
    #[inline(always)]
    pub fn prefetch_for_write(&self, at: usize) {
        crate::prefetch::for_write(self.range.base().wrapping_add(at));
    }

    /// Loads 16 bits.
    #[inline(always)]
    pub fn load_u16(&self, at: usize, order: Ordering) -> u16 {
        self.word::<AtomicU16>(at).map_or(0, |word| u16::from_le(word.load(order)))
    }

    /// Stores 16 bits.
    #[inline(always)]
    pub fn store_u16(&self, at: usize, value: u16, order: Ordering) {
        if let Some(word) = self.word::<AtomicU16>(at) {
            word.store(value.to_le(), order);
        }
    }

    /// Stores 32 bits; relaxed (O1: the position that is stored later hands them over).
    #[inline(always)]
    pub fn store_u32(&self, at: usize, value: u32) {
        if let Some(word) = self.word::<AtomicU32>(at) {
            word.store(value.to_le(), Ordering::Relaxed);
        }
    }

    /// Stores 64 bits.
    #[inline(always)]
    pub fn store_u64(&self, at: usize, value: u64, order: Ordering) {
        if let Some(word) = self.word::<AtomicU64>(at) {
            word.store(value.to_le(), order);
        }
    }

    /// Loads 64 bits; relaxed (O1: the position that was loaded before handed them over).
    #[inline(always)]
    pub fn load_u64(&self, at: usize) -> u64 {
        self.word::<AtomicU64>(at).map_or(0, |word| u64::from_le(word.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use unetmap_sys::{Mapping, memfd};

    use super::*;

    const KIB: u64 = 1024;

    fn range(bytes: u64) -> MappedRange {
        let fd = memfd::create_sealed("guest", bytes).unwrap();
        MappedRange::whole(Arc::new(Mapping::of_guest(fd.as_fd(), 0, bytes as usize).unwrap()))
    }

    fn place(guest: u64, user: u64, bytes: u64) -> GuestPlace {
        GuestPlace { guest, user, bytes }
    }

    #[test]
    fn regions_that_wrap_overlap_or_exceed_their_file_are_refused() {
        let mut memory = GuestMemory::default();
        assert!(memory.add(place(0, 1 << 40, 64 * KIB), range(64 * KIB)));
        for wrong in [
            place(1 << 30, 1 << 41, 0),
            place(1 << 30, 1 << 41, 64 * KIB + 1),
            place(u64::MAX - 10, 1 << 41, 64 * KIB),
            place(1 << 30, u64::MAX - 10, 64 * KIB),
            place(63 * KIB, 1 << 41, 64 * KIB),
            place(1 << 30, (1 << 40) + 63 * KIB, 64 * KIB),
        ] {
            assert!(!memory.add(wrong, range(64 * KIB)), "{wrong:?}");
        }
        assert!(memory.add(place(64 * KIB, (1 << 40) + 64 * KIB, 64 * KIB), range(64 * KIB)));
        assert!(!memory.remove(place(0, 1 << 40, 1)) && memory.remove(place(0, 1 << 40, 64 * KIB)));
        assert_eq!(memory.regions(), 1);
    }

    #[test]
    fn addresses_are_translated_up_to_the_end_of_their_region() {
        let mut memory = GuestMemory::default();
        assert!(memory.add(place(0, 1 << 40, 64 * KIB), range(64 * KIB)));
        assert!(memory.add(place(64 * KIB, 1 << 41, 64 * KIB), range(64 * KIB)));
        let capacity = |guest, bytes| memory.frame(guest, bytes).map(|frame| frame.capacity());
        assert_eq!(capacity(100, 50), Some(50));
        assert_eq!(capacity(64 * KIB - 10, 50), Some(10));
        assert_eq!(capacity(128 * KIB - 1, u32::MAX), Some(1));
        assert_eq!((capacity(128 * KIB, 1), capacity(u64::MAX, 1)), (None, None));
        memory.frame(64 * KIB - 2, 2).unwrap().write(0, &[1, 2]);
        memory.frame(64 * KIB, 2).unwrap().write(0, &[3, 4]);
        let mut out = [0; 4];
        assert!(memory.read(64 * KIB - 2, &mut out) && out == [1, 2, 3, 4]);
        assert!(!memory.read(128 * KIB - 2, &mut out));
    }

    #[test]
    fn words_are_inside_one_region_and_aligned() {
        let mut memory = GuestMemory::default();
        assert!(memory.add(place(0, 1 << 40, 64 * KIB), range(64 * KIB)));
        assert!(memory.words((1 << 40) + 64 * KIB - 16, 17, 16).is_none());
        assert!(memory.words((1 << 40) + 8, 16, 16).is_none());
        assert!(memory.words(0, 16, 16).is_none());
        let words = memory.words((1 << 40) + 64 * KIB - 16, 16, 16).unwrap();
        words.store_u16(14, 0x1234, Ordering::Release);
        words.store_u32(4, 7);
        assert_eq!((words.load_u16(14, Ordering::Acquire), words.load_u64(0)), (0x1234, 7 << 32));
    }

    #[test]
    fn a_shorter_file_is_not_mapped() {
        let fd = memfd::create_unsealed("guest").unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert_eq!(Mapping::of_guest(fd.as_fd(), 0, 4097).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
        assert_eq!(Mapping::of_guest(fd.as_fd(), u64::MAX, 1).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
        assert!(Mapping::of_guest(fd.as_fd(), 0, 4096).is_ok());
    }
}
