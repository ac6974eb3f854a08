// SPDX-License-Identifier: BSD-2-Clause
//! A hypervisor sends any message of vhost-user, and its guest writes anything into its memory, while packets are taken
//! from its queues and delivered into them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unetmap_vhost::steps::vhost::run(bytes));
