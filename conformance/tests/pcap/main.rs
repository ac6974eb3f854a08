// SPDX-License-Identifier: BSD-2-Clause
//! Programs that use libpcap, on netmap ports.
#![forbid(unsafe_code)]

mod api;
mod faults;
mod reconnect;
mod scapy;
