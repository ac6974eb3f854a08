// SPDX-License-Identifier: BSD-2-Clause
//! The extension module `unetmap._core`: ports, rings and slots for the Python package `unetmap`, which adds batches,
//! descriptors and asyncio.
//!
//! Each wait and each copy of frames runs without the GIL. Two threads may use a port, one for each direction: a second
//! one in the same direction gets `EBUSY`, as both would move the pointers of the same rings. Memory is given to Python
//! by [`memory::Memory`] alone, the one module with unsafe code.
#![deny(unsafe_code)]

mod frames;
mod memory;
mod port;
mod ring;
mod turn;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// The errno of a closed file, the same on all architectures.
const EBADF: i32 = 9;

/// Returns an error of the library as `OSError`, with its errno and its text.
fn os_error(error: unetmap::Error) -> PyErr {
    PyOSError::new_err((error.errno(), error.to_string()))
}

/// Returns an `OSError` of this module about a port.
fn refused(spec: &str, errno: i32, reason: &str) -> PyErr {
    PyOSError::new_err((errno, format!("{spec}: {reason}")))
}

/// Returns the state of this user's daemon, and of the system's as far as it concerns this user, each as JSON.
#[pyfunction]
fn snapshots(py: Python<'_>) -> PyResult<Vec<String>> {
    py.detach(unetmap::snapshots).map_err(os_error)
}

/// Python's module.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::port::Port;
    #[pymodule_export]
    use super::ring::{Ring, Slot};
    #[pymodule_export]
    use super::snapshots;
}
