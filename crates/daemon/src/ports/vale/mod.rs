// SPDX-License-Identifier: BSD-2-Clause
//! Switch ports, and the switches that they form.
//!
//! A switch exists as long as it has ports, its threads as long as there are switches. A thread has a configuration of
//! each switch of which it serves a port. Each change publishes new configurations to all threads, and waits until they
//! no longer use the old ones (`workers`).

pub(crate) mod attach_requests;
mod attached;
pub(crate) mod persistent;
pub(crate) mod persistent_header;
mod port;
mod requests;
mod saved;
mod settings;
mod switches;
mod workers;

pub(crate) use attached::{attached_interfaces, attached_ports};
use port::{HostRings, MAX_RINGS, OWN_SWITCH, create, find, switch_side};
pub(crate) use port::{ValeKey, ValePort, exists, header, list_next, set_header};
pub(super) use port::{find_or_create, key_of, program_port, region_of};
pub(crate) use requests::{answer_request, switch_snapshots};
pub(crate) use saved::{SavedSwitches, SavedValePort, SwitchPositions};
pub(crate) use settings::age_tables;
pub(crate) use switches::{ValeState, free_retired};
pub(crate) use workers::{apply_thread_plan, worker_snapshots};
