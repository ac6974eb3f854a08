// SPDX-License-Identifier: BSD-2-Clause
//! The user whose daemon this is.

use std::sync::OnceLock;

use unetmap_sys::process;

static OWNER: OnceLock<u32> = OnceLock::new();

/// The user who started the daemon: root's becomes another one. Call it first before that.
pub(crate) fn owner() -> u32 {
    *OWNER.get_or_init(process::uid)
}
