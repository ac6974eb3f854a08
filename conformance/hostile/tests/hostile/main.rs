// SPDX-License-Identifier: BSD-2-Clause
//! Hostile clients: they write anything anywhere in what they map, send anything to the daemon's socket, and crash at
//! any moment. The daemon and all other clients continue undisturbed.
#![forbid(unsafe_code)]

mod budgets;
mod confinement;
mod control;
mod crashes;
mod descriptors;
mod exhaustion;
mod filled;
mod in_flight;
mod inherited;
mod kept;
mod left_memory;
mod limits;
mod monitors;
mod nic;
mod nic_filter;
mod owners;
mod pipes;
mod removed_pages;
mod requests;
mod settings;
mod setuid;
mod shared_rings;
mod slow_interfaces;
mod stalled;
mod store;
mod vale;
