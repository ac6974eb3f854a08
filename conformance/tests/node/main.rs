// SPDX-License-Identifier: BSD-2-Clause
//! The node: `/dev/netmap` as a file of the daemon's, for programs that nothing of ours is loaded into.
#![forbid(unsafe_code)]

mod api;
mod faults;
mod kept;
mod replace;
