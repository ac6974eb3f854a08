// SPDX-License-Identifier: BSD-2-Clause
//! A range of bytes of a mapping, checked once. Every pointer of this crate is derived from one.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use unetmap_sys::Mapping;

/// Bytes `[offset, offset + len)` of a shared mapping, which the range keeps alive.
#[derive(Clone)]
pub struct MappedRange {
    map: Arc<Mapping>,
    base: *mut u8,
    len: usize,
}

// SAFETY: a range is an address and a length inside a mapping that it keeps alive (M2); the bytes are only accessed
// through atomics and raw copies (M1), which any thread may use.
unsafe impl Send for MappedRange {}
// SAFETY: as above (M1, M2); a shared range offers nothing that an owned one does not.
unsafe impl Sync for MappedRange {}

impl MappedRange {
    /// The whole mapping.
    pub fn whole(map: Arc<Mapping>) -> MappedRange {
        let (base, len) = (map.as_ptr(), map.len());
        MappedRange { map, base, len }
    }

    /// The mapping that holds the range.
    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        self.map.clone()
    }

    /// The part `[offset, offset + len)`, or `None` when it does not lie inside this range.
    pub fn part(&self, offset: usize, len: usize) -> Option<MappedRange> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: offset is at most this range's length (M2), so the address stays inside the same mapping.
        let base = unsafe { self.base.add(offset) };
        Some(MappedRange { map: self.map.clone(), base, len })
    }

    /// Bytes in the range.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte. Valid for `len` bytes while the range, or a clone of it, exists.
    #[inline(always)]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// A shared value of type `T` at `offset`.
    ///
    /// `None` when it does not fit or would not be aligned.
    ///
    /// # Safety
    /// `T` must be made of atomics only, so that any bytes are a value of it and other processes may write it at any
    /// time.
    #[inline(always)]
    pub(crate) unsafe fn at<T>(&self, offset: usize) -> Option<*const T> {
        let end = offset.checked_add(size_of::<T>())?;
        let ptr = self.base.wrapping_add(offset).cast::<T>();
        (end <= self.len && ptr.is_aligned()).then_some(ptr.cast_const())
    }

    /// As [`MappedRange::at`], as a handle that keeps the mapping alive.
    ///
    /// # Safety
    /// As for [`MappedRange::at`].
    pub(crate) unsafe fn shared_ref<T>(&self, offset: usize) -> Option<SharedRef<T>> {
        // SAFETY: the caller guarantees that `T` is made of atomics (M1).
        let at = NonNull::new(unsafe { self.at::<T>(offset) }?.cast_mut())?;
        Some(SharedRef { at, _range: self.clone() })
    }
}

/// A reference to a shared value, which keeps the mapping alive.
pub(crate) struct SharedRef<T> {
    at: NonNull<T>,
    _range: MappedRange,
}

// SAFETY: a reference to atomics (M1) that keeps them mapped (M2).
unsafe impl<T: Sync> Send for SharedRef<T> {}
// SAFETY: as above (M1, M2).
unsafe impl<T: Sync> Sync for SharedRef<T> {}

// Not derived: only the address is cloned, so `T` need not be `Clone`.
impl<T> Clone for SharedRef<T> {
    fn clone(&self) -> SharedRef<T> {
        SharedRef { at: self.at, _range: self._range.clone() }
    }
}

impl<T> Deref for SharedRef<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `shared_ref` checked bounds and alignment, the range keeps the value mapped (M2); atomics only (M1).
        unsafe { self.at.as_ref() }
    }
}
