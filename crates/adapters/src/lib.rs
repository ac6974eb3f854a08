// SPDX-License-Identifier: BSD-2-Clause
//! Ports of [`unetmap`] for other crates.
//!
//! | feature | type | for |
//! |---|---|---|
//! | `smoltcp` | [`smoltcp::Device`](crate::smoltcp::Device) | TCP/IP in the program, by the crate smoltcp |
//! | `tokio` | [`tokio::AsyncPort`](crate::tokio::AsyncPort) | tasks of tokio that wait for packets |
//!
//! Both are on by default. Frames are copied between a ring's buffers, which other processes can write at any moment,
//! and memory of the program: once each way.
#![forbid(unsafe_code)]

#[cfg(feature = "smoltcp")]
pub mod smoltcp;
#[cfg(feature = "tokio")]
pub mod tokio;
