// SPDX-License-Identifier: BSD-2-Clause
//! netmap's control requests, as a program sends them by `ioctl(NIOCCTRL)`.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Sends a request about the port `name`; returns the name and the body of the answer, or the errno of the refusal.
/// Every refusal must state a reason.
///
/// # Errors
/// The errno of the refusal.
#[track_caller]
pub fn control<T: FromBytes + IntoBytes + Immutable>(reqtype: u16, name: &str, body: T) -> Result<(String, T), i32> {
    unetmap::request(reqtype, name, &body).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.strip_prefix(name).unwrap_or(&reason).trim_start_matches([':', ' ']);
        assert!(!reason.is_empty(), "request {reqtype}, {name:?}: errno {} without a reason", error.errno());
        error.errno()
    })
}
