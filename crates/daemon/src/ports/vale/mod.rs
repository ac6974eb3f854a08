// SPDX-License-Identifier: BSD-2-Clause
//! Switch ports, and the switches that they form.
//!
//! A switch exists as long as it has ports, its threads as long as there are switches. A thread has a configuration of
//! each switch of which it serves a port. Each change publishes new configurations to all threads, and waits until they
//! no longer use the old ones (`workers`).

pub(crate) mod attach_requests;
mod attached;
mod kernel_forwarding;
mod kernel_path;
mod lasting;
mod lasting_attached;
mod open;
mod persistent;
pub(crate) mod persistent_ends;
pub(crate) mod persistent_header;
pub(crate) mod persistent_requests;
mod port;
mod requests;
pub(crate) mod returning;
mod saved;
mod serving_again;
mod settings;
mod switches;
mod workers;

pub(crate) use super::key::ValeKey;
pub(crate) use attached::attached_ports;
pub(crate) use open::{exists, header, list_next, set_header};
pub(super) use open::{find_or_create, key_of, program_port, region_of};
pub(crate) use persistent::PersistentState;
pub(crate) use port::ValePort;
pub(crate) use requests::{answer_request, switch_snapshots};
pub(crate) use saved::{SavedSwitches, SavedValePort, SwitchPositions};
pub(crate) use switches::ValeState;
