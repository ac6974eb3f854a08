// SPDX-License-Identifier: BSD-2-Clause
//! Hostile peers of the processes that serve ports, as hypervisors, guests and packet processors; and places where
//! other users have put something else than the log or the socket of a program.
#![forbid(unsafe_code)]

mod device;
mod logs;
mod memif;
mod served;
mod vhost;
