// SPDX-License-Identifier: BSD-2-Clause
//! Sequences of netmap requests to a daemon. Run it in a network namespace of its own: requests may name interfaces.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unetmapd::fuzz::requests(bytes));
