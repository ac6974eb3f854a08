// SPDX-License-Identifier: BSD-2-Clause
//! Ports: one module for each kind, what concerns the ports of several kinds, and `lifecycle`, which tells them apart.
//!
//! ```text
//! lifecycle, sessions, names     opening, closing: they know all kinds
//! interfaces, pipes, sinks       finding and creating ports of a kind
//! copying, arrival, mediators    threads that begin and end with sessions
//! crate::daemon                  all state
//! *State of nic, vale, monitor   the state of all ports of a kind
//! port                           a port of any kind; the registry
//! null, pipe, sink, vale::port   a port of one kind: only its own data
//! key                            the names of ports
//! ```
//! An import leads down.

mod answer;
pub(crate) mod arrival;
pub(crate) mod arrival_thread;
mod copied_end;
mod copying;
mod interfaces;
pub(crate) mod key;
mod lifecycle;
pub(crate) mod mediated;
pub(crate) mod mediator;
pub(crate) mod mediator_state;
pub(crate) mod mediators;
pub(crate) mod monitor;
mod names;
pub(crate) mod nic;
mod null;
pub(crate) mod pipe;
mod pipe_rings;
mod pipes;
mod port;
mod register;
mod saved;
mod sessions;
mod sink;
mod sinks;
pub(crate) mod snapshot;
mod usage;
pub(crate) mod vale;

pub(crate) use crate::daemon::Daemon;

pub(crate) use crate::admission::Admission;
pub(crate) use key::{EndpointKey, PortKey, parse_port_name};
pub(crate) use port::{AnyPort, Registry, Session};
pub(crate) use register::{Asked, Opening, Options, OwnPort, Registered};
pub(crate) use saved::SavedRegistry;
pub(crate) use usage::{BudgetCheck, TotalSnapshot, UserSnapshot};
