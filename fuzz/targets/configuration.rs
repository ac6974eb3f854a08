// SPDX-License-Identifier: BSD-2-Clause
//! Configuration files.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unetmapd::fuzz::configuration(bytes));
