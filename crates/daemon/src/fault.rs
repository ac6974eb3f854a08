// SPDX-License-Identifier: BSD-2-Clause
//! Fault injection for tests, in debug builds only: what the variable `UNETMAP_FAULT` has go wrong.

/// The fault that the daemon was started with.
pub(crate) fn value() -> Option<String> {
    cfg!(debug_assertions).then(|| std::env::var("UNETMAP_FAULT").ok()).flatten()
}

/// Whether it is this one.
pub(crate) fn is(fault: &str) -> bool {
    value().is_some_and(|set| set == fault)
}
