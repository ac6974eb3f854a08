// SPDX-License-Identifier: BSD-2-Clause
//! Memory for Python's buffer protocol: views of it need no copy.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use unetmap::{Frame, Region};

/// Bytes that memoryviews and arrays refer to. They stay mapped as long as one of these lives, also when their port is
/// closed.
#[pyclass(frozen, module = "unetmap._core")]
pub(crate) struct Memory {
    base: *mut u8,
    bytes: usize,
    _owner: Owner,
}

/// Keeps the bytes; nothing in Rust reads or writes them while it is an owner.
enum Owner {
    Bytes { _vec: Vec<u8> },
    Words { _vec: Vec<u32> },
    Region { _region: Arc<Region> },
}

// SAFETY: `base` stays valid wherever the value is moved, as the owner moves with it.
unsafe impl Send for Memory {}
// SAFETY: no method reads or writes the bytes. Python's threads do, as they may with any writable buffer.
unsafe impl Sync for Memory {}

impl Memory {
    /// Takes bytes.
    pub(crate) fn bytes(mut vec: Vec<u8>) -> Memory {
        Memory { base: vec.as_mut_ptr(), bytes: vec.len(), _owner: Owner::Bytes { _vec: vec } }
    }

    /// Takes numbers of 32 bits.
    pub(crate) fn words(mut vec: Vec<u32>) -> Memory {
        Memory { base: vec.as_mut_ptr().cast(), bytes: 4 * vec.len(), _owner: Owner::Words { _vec: vec } }
    }

    /// The buffer of a slot, in its region: other processes may write it at any moment.
    pub(crate) fn buffer(region: Arc<Region>, index: u32) -> Memory {
        let frame: Frame<'_> = region.frame(unetmap::BufIdx(index));
        Memory { base: frame.as_ptr(), bytes: frame.capacity(), _owner: Owner::Region { _region: region } }
    }
}

#[pymethods]
impl Memory {
    fn __len__(&self) -> usize {
        self.bytes
    }

    /// # Safety
    /// Python passes a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (base, bytes) = (slf.get().base, slf.get().bytes as ffi::Py_ssize_t);
        // SAFETY: the view holds a reference to this object, whose owner keeps `bytes` bytes from `base` on valid for
        // reads and writes (M2); it is Python that accesses them, which takes them for memory that changes.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base.cast(), bytes, 0, flags) };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
