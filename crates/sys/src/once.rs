// SPDX-License-Identifier: BSD-2-Clause
//! Values that are found when they are first needed, and may not be found.

use std::io;
use std::sync::OnceLock;

/// Returns the value of `cell`, which `find` returns the first time. An error is not kept.
pub(crate) fn known_or<T: Copy>(cell: &OnceLock<T>, find: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if let Some(known) = cell.get() {
        return Ok(*known);
    }
    let found = find()?;
    Ok(*cell.get_or_init(|| found))
}
