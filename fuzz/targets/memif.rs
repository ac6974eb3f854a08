// SPDX-License-Identifier: BSD-2-Clause
//! A peer sends any message of memif, and writes anything into the rings of memif and of vhost-user.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unetmap_vhost::steps::run(bytes));
