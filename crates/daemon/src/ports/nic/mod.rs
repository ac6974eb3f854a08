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
mod attach;
mod busy_poll;
mod failure;
mod filter;
mod header;
mod heartbeat;
mod host_rings;
mod interface;
pub(crate) mod kernel_work;
mod lookup;
mod open;
mod port;
mod queue;
mod queue_count;
mod relay;
mod saved;
mod saved_settings;
mod settings;
pub(crate) mod settle;
mod sockets;
mod staying;
pub(crate) mod survey;
pub(crate) mod surveyed;
mod zero_copy;

use interface::{HEADER, NearGone, XdpConfig, interface_tx_dropped, libc_errno, other_usage, usage};

pub(crate) use filter::answer_request;
pub(super) use header::{end_own_header, refuse_header};
pub(crate) use header::{header, set_header};
pub(crate) use interface::Nic;
pub(crate) use kernel_work::{away_behind, begin_to_open};
pub(crate) use lookup::{find_link, may_have_interfaces};
pub(crate) use open::{
    ALL_NAMESPACES, NicState, admitted, admitted_interface, check_still_given, create_for_daemon, find, find_or_create,
    in_use, links_changed, new_shape, no_such_interface, unwatch_if_unused, usage_for_daemon, watch,
};
pub(super) use open::{check_default_route, header_of_link};
pub(crate) use port::NicPort;
pub(crate) use queue::any_was_closed;
pub(crate) use saved::{SavedNic, SavedNics};
pub(crate) use surveyed::NicKey;
pub(crate) use zero_copy::{expects_any as expects_any_zero_copy, is_expected as expects_zero_copy};
