//! A range of a mapping, checked once: where every pointer of this crate comes from.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use unetmap_sys::Mapping;

/// Bytes `[offset, offset + len)` of a shared mapping, which the window keeps alive.
#[derive(Clone)]
pub struct Window {
    map: Arc<Mapping>,
    base: *mut u8,
    len: usize,
}

// SAFETY: a window is an address and a length inside a mapping that it keeps alive (M2); what it points to is only
// reached through atomics and raw copies (M1), which are fit for any thread.
unsafe impl Send for Window {}
// SAFETY: as above; a shared window offers nothing that an owned one does not.
unsafe impl Sync for Window {}

impl Window {
    /// The whole mapping.
    pub fn whole(map: Arc<Mapping>) -> Window {
        let (base, len) = (map.as_ptr(), map.len());
        Window { map, base, len }
    }

    /// The mapping that it is a range of.
    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        self.map.clone()
    }

    /// The part `[offset, offset + len)`, or `None` when it does not lie inside this window.
    pub fn part(&self, offset: usize, len: usize) -> Option<Window> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: offset is at most this window's length (M2), so the address stays inside the same mapping.
        let base = unsafe { self.base.add(offset) };
        Some(Window { map: self.map.clone(), base, len })
    }

    /// Bytes in the window.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte. Valid for `len` bytes while the window, or a clone of it, lives.
    #[inline(always)]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// A shared value of type `T` at `offset`.
    ///
    /// `None` when it does not fit or would not be aligned.
    ///
    /// # Safety
    /// `T` must be made of atomics only, so that any bytes are a value of it and others may write it meanwhile.
    pub(crate) unsafe fn at<T>(&self, offset: usize) -> Option<*const T> {
        let end = offset.checked_add(size_of::<T>())?;
        let ptr = self.base.wrapping_add(offset).cast::<T>();
        (end <= self.len && ptr.is_aligned()).then_some(ptr.cast_const())
    }

    /// The same, found once for many uses.
    ///
    /// # Safety
    /// As for [`Window::at`].
    pub(crate) unsafe fn found<T>(&self, offset: usize) -> Option<Found<T>> {
        // SAFETY: the caller's promise.
        let at = NonNull::new(unsafe { self.at::<T>(offset) }?.cast_mut())?;
        Some(Found { at, _window: self.clone() })
    }
}

/// A shared value of a window, which it keeps mapped.
pub(crate) struct Found<T> {
    at: NonNull<T>,
    _window: Window,
}

// SAFETY: a reference that keeps what it points to mapped (M2), to atomics only (M1).
unsafe impl<T: Sync> Send for Found<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Found<T> {}

// Not derived: what is shared is never cloned, only where it is.
impl<T> Clone for Found<T> {
    fn clone(&self) -> Found<T> {
        Found { at: self.at, _window: self._window.clone() }
    }
}

impl<T> Deref for Found<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `found` checked bounds and alignment, the window keeps it mapped (M2); atomics only (M1).
        unsafe { self.at.as_ref() }
    }
}
