// SPDX-License-Identifier: BSD-2-Clause
//! Monitors: copies and zero-copy, on pipes, interfaces and switches.
#![forbid(unsafe_code)]

mod api;
mod ports;
mod replace;
mod zero_copy;
