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

    /// As a call takes it.
    pub(crate) fn vector(&self) -> libc::iovec {
        libc::iovec { iov_base: self.base.cast(), iov_len: self.len }
    }
}
