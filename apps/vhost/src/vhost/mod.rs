// SPDX-License-Identifier: BSD-2-Clause
//! vhost-user: the protocol by which a hypervisor gives a guest's queues to another process.

pub(crate) mod message;
mod session;

pub(crate) use session::Session;
