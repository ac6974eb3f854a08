// SPDX-License-Identifier: BSD-2-Clause
//! Policy files.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unetmapd::fuzz::policy(bytes));
