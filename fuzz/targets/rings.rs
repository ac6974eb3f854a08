// SPDX-License-Identifier: BSD-2-Clause
//! A process writes anything to the rings, slots, states and channels of a pipe that an honest program uses.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unetmap_core::sync::steps::run(bytes));
