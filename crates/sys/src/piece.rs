// SPDX-License-Identifier: BSD-2-Clause
//! Memory that other processes may write, as the kernel reads or writes it in a call: without a copy of ours between.

use std::marker::PhantomData;

/// Bytes that the kernel may read and write during `'a`.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    base: *mut u8,
    len: usize,
    _memory: PhantomData<&'a ()>,
}

impl<'a> Piece<'a> {
    /// # Safety
    /// `base` must be valid for reads and writes of `len` bytes during `'a`; other processes may write them, too.
    pub unsafe fn new(base: *mut u8, len: usize) -> Piece<'a> {
        Piece { base, len, _memory: PhantomData }
    }

    /// Memory of this process alone.
    pub fn of(bytes: &'a mut [u8]) -> Piece<'a> {
        Piece { base: bytes.as_mut_ptr(), len: bytes.len(), _memory: PhantomData }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies all bytes into other pieces, one behind the other. Returns `false` if these have room for more, or for
    /// fewer.
    pub fn copy_to<'p>(&self, pieces: impl Iterator<Item = Piece<'p>>) -> bool {
        let mut at = 0;
        for piece in pieces {
            if piece.len > self.len - at {
                return false;
            }
            // SAFETY: K10: both have so many bytes; a raw copy that allows overlap.
            unsafe { std::ptr::copy(self.base.add(at), piece.base, piece.len) };
            at += piece.len;
        }
        at == self.len
    }

    /// As a call takes it.
    pub(crate) fn vector(&self) -> libc::iovec {
        libc::iovec { iov_base: self.base.cast(), iov_len: self.len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_filled_one_behind_the_other_or_not_at_all() {
        let (mut from, mut first, mut second) = ([1, 2, 3, 4, 5], [0; 2], [0; 3]);
        let from = Piece::of(&mut from);
        assert!(from.copy_to([Piece::of(&mut first), Piece::of(&mut []), Piece::of(&mut second)].into_iter()));
        assert_eq!((first, second), ([1, 2], [3, 4, 5]));
        for lengths in [&[2, 2][..], &[5, 1], &[6], &[]] {
            let mut all = [[9; 6]; 2];
            let mut pieces = lengths.iter().zip(&mut all).map(|(len, piece)| Piece::of(&mut piece[..*len]));
            assert!(!from.copy_to(&mut pieces), "{lengths:?}");
        }
    }
}
