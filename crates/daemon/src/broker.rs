// SPDX-License-Identifier: BSD-2-Clause
//! The broker: a process that keeps root's privileges, and does for the daemon, which has none, what needs them.
//!
//! ```text
//! daemon: no capability, a user of its own           broker: root
//! operations::f --Request, descriptors------------->  Broker::serve   one operation
//!               <--its result, or an error, desc.---
//! ```
//! A request names an operation and plain arguments; interfaces belong to namespaces whose descriptors come with it.
//! What must be undone (an XDP program, disabled offloads) stays in the broker, under a handle. The broker trusts no
//! request: it decodes with bounds, and does only the operations that stand in [`operations`], with its own programs.
//!
//! Each end notices the end of the other one by their connections: then the broker undoes everything and exits, as the
//! kernel would, and so does the daemon. If another process has the daemon's state ([`crate::handover::store`]), it has
//! these connections, too, and the broker goes on with the next daemon.
//!
//! A user's daemon has no privileges to separate: there, and in unit tests, the same operations are functions of the
//! process itself.

mod connection;
mod handed_over;
mod hidden;
mod lasting;
mod mounts;
mod objects;
mod offloads;
pub(crate) mod operations;
mod parameters;
mod serve;
mod setup;
mod table;
mod undo;
mod veth;

pub(crate) use connection::{beside_control, end_with_broker, renew_deadlines, start};
pub(crate) use handed_over::{Adopted, Duplicates, SavedBroker, go_on_after_crash, is_used, pause};
pub(crate) use hidden::HiddenEnd;
pub(crate) use mounts::{NAME as NODE_NAME, folder as node_folder};
pub(crate) use operations::last_handle;
pub(crate) use parameters::Parameter;
pub(crate) use serve::run_broker;
pub(crate) use setup::{Handle, Setup, TcxId, XdpId, process_name};
pub(crate) use undo::run_undo;
pub(crate) use veth::{near_name, relay_name};

#[cfg(test)]
mod tests;
