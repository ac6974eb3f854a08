// SPDX-License-Identifier: BSD-2-Clause
//! Helpers of the tests: a daemon and a process for each test, network namespaces, the daemon's snapshot, and numbered
//! packets whose loss, duplication or change is detected.
//!
//! This package uses the public interfaces only: the crate `unetmap`, the C headers and the programs. Tests of clients
//! that bypass the library are in the package `conformance-hostile`.
#![deny(unsafe_code)]

pub mod bpf;
pub mod c;
pub mod cgroup;
pub mod client;
pub mod collector;
pub mod connections;
pub mod datagrams;
pub mod ether;
pub mod forwarder;
pub mod home;
pub mod host;
pub mod kept;
pub mod machine;
pub mod monitor;
pub mod net;
pub mod node;
pub mod packet;
pub mod pcap;
pub mod replace;
pub mod request;
pub mod snapshot;
pub mod stop;
pub mod switch;
pub mod thread;
pub mod tool;
pub mod traffic;

pub use home::{Home, LIMIT, isolated, isolated_alone, isolated_with_interfaces, program, until};
pub use node::Node;
