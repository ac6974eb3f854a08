// SPDX-License-Identifier: BSD-2-Clause
//! Environment variables, which a program with more privileges than its caller must not trust.

use std::ffi::{OsStr, OsString};

/// Returns whether this program has privileges that its caller may not have (`AT_SECURE`): it is setuid or setgid, or
/// its file has capabilities. The caller has chosen its environment, its arguments and the folder of its file.
pub fn is_secure_execution() -> bool {
    // SAFETY: K7.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns an environment variable that selects a file, a program or a permission; `None` in a program with more
/// privileges than its caller ([`is_secure_execution`]), or if it is empty.
pub fn variable(name: impl AsRef<OsStr>) -> Option<OsString> {
    if is_secure_execution() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}
