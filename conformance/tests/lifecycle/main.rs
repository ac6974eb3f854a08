// SPDX-License-Identifier: BSD-2-Clause
//! The daemon: how it starts, what it costs and how it ends; clients and daemons that crash; a daemon that is
//! replaced; its namespaces; netmap's knobs; the daemon as a service.
#![forbid(unsafe_code)]

mod crashes;
mod daemon;
mod kept;
mod knobs;
mod namespaces;
mod reconnect;
mod replace;
mod service;
mod state;
mod stop;
