// SPDX-License-Identifier: BSD-2-Clause
//! Network interfaces, in network namespaces that each test makes for itself.
#![forbid(unsafe_code)]

mod busy_poll;
mod changes;
mod containers;
mod daemon_crash;
mod direct_packets;
mod disconnected;
mod dispatcher;
mod down;
mod failure;
mod faults;
mod filter;
mod frames;
mod headers;
mod kept;
mod lengths;
mod lifecycle;
mod offload_table;
mod offloads;
mod offsets;
mod packets;
mod policy;
mod precedence;
mod queues;
mod reconnect;
mod refusals;
mod replace;
mod segments;
mod sharing;
mod traffic;
mod unfinished;
mod way;
