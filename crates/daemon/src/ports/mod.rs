// SPDX-License-Identifier: BSD-2-Clause
//! Ports: one module for each kind, what concerns the ports of several kinds, and `lifecycle`, which tells them apart.

mod answer;
pub(crate) mod arrival;
mod copied_end;
mod lifecycle;
pub(crate) mod mediated;
pub(crate) mod mediator;
pub(crate) mod mediators;
pub(crate) mod monitor;
mod names;
pub(crate) mod nic;
mod null;
pub(crate) mod pipe;
mod pipe_rings;
mod port;
mod saved;
mod sessions;
mod sink;
pub(crate) mod snapshot;
mod usage;
pub(crate) mod vale;

pub(crate) use crate::daemon::Daemon;

pub(crate) use crate::admission::Admission;
pub(crate) use names::parse_port_name;
pub(crate) use port::{AnyPort, EndpointKey, PortKey, Registry, Session};
pub(crate) use saved::SavedRegistry;
pub(crate) use sessions::{Asked, Opening, Options, Registered};
pub(crate) use usage::{BudgetCheck, TotalSnapshot, UserSnapshot};
