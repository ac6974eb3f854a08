// SPDX-License-Identifier: BSD-2-Clause
//! A packet buffer that other processes may write at any time: bytes are copied in and out, never borrowed as a slice.

use std::marker::PhantomData;

use unetmap_sys::Piece;

/// One buffer, from its first byte to its capacity. Copies are cut to what fits, so no access leaves the buffer.
///
/// Another process may write the same bytes at the same time; a read then returns any mixture of old and new. Validate
/// a copy, never the frame.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    base: *mut u8,
    capacity: usize,
    _region: PhantomData<&'a ()>,
}

impl<'a> Frame<'a> {
    /// A frame of no bytes, in place of a buffer that does not exist.
    pub const EMPTY: Frame<'static> =
        Frame { base: std::ptr::NonNull::dangling().as_ptr(), capacity: 0, _region: PhantomData };

    /// # Safety
    /// `base` must be valid for reads and writes of `capacity` bytes during `'a`.
    #[inline(always)]
    pub(crate) unsafe fn new(base: *mut u8, capacity: usize) -> Frame<'a> {
        Frame { base, capacity, _region: PhantomData }
    }

    /// Bytes in the buffer; 0 if the slot's index is out of bounds.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The rest of the buffer after the first `bytes` bytes.
    #[inline(always)]
    pub fn skip(self, bytes: usize) -> Frame<'a> {
        let bytes = bytes.min(self.capacity);
        // SAFETY: at most the capacity, so the address stays in the buffer or at its end (M2).
        Frame { base: unsafe { self.base.add(bytes) }, capacity: self.capacity - bytes, _region: PhantomData }
    }

    /// The address of the first byte, for callers with their own safety argument. Valid for [`Frame::capacity`] bytes.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base
    }

    /// The first `len` bytes, or all if there are fewer, for a call of the kernel that reads or writes them.
    pub fn piece(&self, len: usize) -> Piece<'a> {
        // SAFETY: so many bytes are inside the buffer during `'a` (M2); the kernel's copy is a raw one (M1).
        unsafe { Piece::new(self.base, len.min(self.capacity)) }
    }

    /// Prefetches the first cache line for reading.
    #[inline(always)]
    pub fn prefetch(&self) {
        crate::prefetch::for_read(self.base);
    }

    /// Prefetches the first cache line for writing.
    #[inline(always)]
    pub fn prefetch_for_write(&self) {
        crate::prefetch::for_write(self.base);
    }

    /// Copies bytes `[at, at + out.len())` into `out`; returns how many existed.
    #[inline]
    pub fn read(&self, at: usize, out: &mut [u8]) -> usize {
        let n = out.len().min(self.capacity.saturating_sub(at));
        if n > 0 {
            // SAFETY: [at, at + n) is inside the buffer (M2), `out` has at least n bytes and, being an exclusive
            // reference, does not overlap memory that other processes write (M1).
            unsafe { std::ptr::copy_nonoverlapping(self.base.add(at), out.as_mut_ptr(), n) };
        }
        n
    }

    /// Copies `bytes` to `[at, at + bytes.len())`; returns how many fitted.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.capacity.saturating_sub(at));
        if n > 0 {
            // SAFETY: as in `read`, in the other direction (M1, M2).
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), n) };
        }
        n
    }

    /// As [`Frame::write`], but bytes that are there already are only read, so that other cores keep them in their
    /// caches.
    #[inline]
    pub fn write_changed(&self, at: usize, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.capacity.saturating_sub(at));
        let (words, rest) = bytes[..n].as_chunks::<8>();
        // SAFETY: at <= capacity, or n is 0 and nothing is read (M2).
        let base = unsafe { self.base.add(at.min(self.capacity)) };
        let mut differ = 0;
        for (i, word) in words.iter().enumerate() {
            // SAFETY: 8 * (i + 1) <= n, so the word is inside the buffer (M2); a raw copy (M1).
            differ |= unsafe { base.cast::<u64>().add(i).read_unaligned() } ^ u64::from_ne_bytes(*word);
        }
        for (i, byte) in rest.iter().enumerate() {
            // SAFETY: as above.
            differ |= u64::from(unsafe { base.add(8 * words.len() + i).read() } ^ byte);
        }
        if differ == 0 { n } else { self.write(at, bytes) }
    }

    /// Writes `lines` of 64 bytes to the start of the buffer, as many as fit whole. A line that already has these bytes
    /// is only read, so that other cores keep it in their caches. Returns how many lines were written.
    #[inline(always)]
    pub fn write_changed_lines(&self, lines: &[[u8; 64]]) -> usize {
        let n = lines.len().min(self.capacity / 64);
        let mut written = 0;
        for (i, line) in lines[..n].iter().enumerate() {
            // SAFETY: (i + 1) * 64 <= capacity, so the line is inside the buffer (M2); raw copies in both directions
            // (M1).
            unsafe {
                let at = self.base.add(64 * i);
                let current = at.cast::<[u64; 8]>().read_unaligned();
                let wanted = line.as_ptr().cast::<[u64; 8]>().read_unaligned();
                // Not `==`, which would compile to a call.
                if current.iter().zip(&wanted).fold(0, |differ, (a, b)| differ | (a ^ b)) != 0 {
                    std::ptr::copy_nonoverlapping(line.as_ptr(), at, 64);
                    written += 1;
                }
            }
        }
        written
    }

    /// The first 16 bytes: an Ethernet header and two more bytes. Bytes beyond the capacity are 0.
    #[inline(always)]
    pub fn header(&self) -> [u8; 16] {
        if self.capacity < 16 {
            return self.short_header();
        }
        // One load into a register: a copy whose length the compiler does not know would be a call, through memory.
        // SAFETY: 16 bytes are inside the buffer (M2), the load may be unaligned and is a raw copy (M1).
        unsafe { self.base.cast::<u128>().read_unaligned() }.to_ne_bytes()
    }

    #[cold]
    #[inline(never)]
    fn short_header(&self) -> [u8; 16] {
        let mut out = [0; 16];
        self.read(0, &mut out);
        out
    }

    /// Copies the first `len` bytes of `other` to the start of this frame, at most what both can hold; returns how
    /// many.
    ///
    /// The two may be the same buffer, or overlap.
    #[inline]
    pub fn copy_from(&self, other: &Frame<'_>, len: usize) -> usize {
        let n = len.min(self.capacity).min(other.capacity);
        // SAFETY: both are valid for n bytes (M2); a raw copy (M1) that allows overlap.
        unsafe { std::ptr::copy(other.base, self.base, n) };
        n
    }
}

#[cfg(test)]
mod tests {
    use crate::pos::BufIdx;
    use crate::region::{Geometry, Region};

    #[test]
    fn only_lines_that_differ_are_written() {
        let (region, _) = Region::create("test", Geometry::new((1, 256), (2, 512), (4, 128)).unwrap()).unwrap();
        let frame = region.frame(BufIdx(2));
        assert_eq!(frame.capacity(), 128);
        let lines = [[1; 64], [2; 64], [3; 64]];
        assert_eq!(
            (frame.write_changed_lines(&lines), frame.write_changed_lines(&lines), frame.write_changed_lines(&[])),
            (2, 0, 0)
        );
        for at in 0..128 {
            frame.write(at, &[9]);
            assert_eq!(frame.write_changed_lines(&lines), 1, "byte {at}");
            let mut current = [0; 128];
            frame.read(0, &mut current);
            assert_eq!((&current[..64], &current[64..]), (&lines[0][..], &lines[1][..]));
        }
        // The third line does not fit, and did not overflow into the next buffer.
        assert_eq!(region.frame(BufIdx(3)).header(), [0; 16]);
    }

    #[test]
    fn bytes_that_differ_are_written_inside_the_buffer() {
        let (region, _) = Region::create("test", Geometry::new((1, 256), (2, 512), (4, 128)).unwrap()).unwrap();
        let frame = region.frame(BufIdx(2));
        for (at, len) in [(0, 60), (3, 1), (12, 42), (5, 16), (0, 128), (120, 8), (127, 1), (128, 0)] {
            let wanted: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
            for changed in 0..len {
                frame.write(at, &wanted);
                frame.write(at + changed, &[0xff]);
                assert_eq!((frame.write_changed(at, &wanted), frame.write_changed(at, &wanted)), (len, len));
                let mut current = vec![0; len];
                frame.read(at, &mut current);
                assert_eq!(current, wanted, "byte {changed} of {len} at {at}");
            }
        }
        assert_eq!((frame.write_changed(124, &[7; 8]), frame.write_changed(200, &[7; 8])), (4, 0));
        // The rest did not overflow into the next buffer.
        assert_eq!(region.frame(BufIdx(3)).header(), [0; 16]);
    }
}
