// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces: an AF_XDP socket for each queue that a session has bound, and the XDP program that redirects packets to
//! it.
//!
//! ```text
//! queue i    bound by a session     one socket, bound to queue i; its UMEM is the buffer pool of the region
//!            receive ring bound     the socket is in the program's map, and packets of queue i are redirected to it
//!            not bound              no socket: the kernel's stack has the queue
//! ```
//! The host rings are queues of a veth device (`host_rings`). Their numbers follow those of the interface's queues.

pub(crate) mod abandoned;
pub(in crate::ports) mod account;
mod attach;
mod busy_poll;
mod bypass;
mod changes;
mod closing;
mod disconnected;
mod failure;
mod faults;
mod filter;
mod frames;
mod header;
mod heartbeat;
mod hidden;
mod host_rings;
mod interface;
pub(crate) mod kernel_work;
mod lookup;
mod open;
mod open_packets;
mod packets;
mod port;
mod queue;
mod queue_count;
mod read_back;
mod refusals;
mod relay;
mod saved;
mod saved_settings;
mod settings;
pub(crate) mod settle;
mod sockets;
mod state;
mod staying;
pub(crate) mod survey;
pub(crate) mod surveyed;
mod turns;
mod zero_copy;

pub(super) use interface::usage;
use interface::{HEADER, XdpConfig, libc_errno, other_usage};

pub(crate) use changes::links_changed;
pub(super) use disconnected::check_disconnected;
pub(crate) use failure::setting_snapshots;
pub(crate) use filter::answer_request;
pub(super) use header::end_own_header;
pub(crate) use header::{header, set_header};
pub(crate) use heartbeat::start_heartbeat;
pub(crate) use interface::Nic;
pub(crate) use kernel_work::begin_to_open;
pub(crate) use lookup::{away_behind, find, find_link, is_away, may_have_interfaces};
pub(crate) use open::{
    admitted, admitted_interface, check_still_given, create_for_daemon, in_use, new_shape, usage_for_daemon,
};
pub(super) use open::{check_default_route, create, header_of_link, usable_access};
pub(crate) use open_packets::usage_by_packets;
pub(crate) use port::NicPort;
pub(crate) use queue::any_was_closed;
pub(super) use refusals::check_header;
pub(crate) use refusals::no_such_interface;
pub(crate) use saved::SavedNic;
pub(crate) use state::{ALL_NAMESPACES, NicState, SavedNics};
pub(crate) use surveyed::NicKey;
pub(crate) use zero_copy::{expects_any as expects_any_zero_copy, is_expected as expects_zero_copy};
