// SPDX-License-Identifier: BSD-2-Clause
//! VALE switches.
#![forbid(unsafe_code)]

mod api;
mod broadcast;
mod config;
mod counters;
mod faults;
mod guests;
mod headers;
mod host_stack;
mod interfaces;
mod kept;
mod kernel_path;
mod lasting;
mod many;
mod namespaces;
mod persistent;
mod policy;
mod replace;
mod saved;
mod threads;
mod tunnels;
mod zero_copy;
