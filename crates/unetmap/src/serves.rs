// SPDX-License-Identifier: BSD-2-Clause
//! Telling the daemon what a process serves with its port: a virtual machine, or another packet processor. The daemon
//! repeats it in the state of the switch.
//!
//! ```
//! use std::os::fd::AsFd;
//! use unetmap::Port;
//! use unetmap::serves::{ServesRequest, Service, declare};
//!
//! # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
//! let port = Port::open("vale0:a")?;
//! declare(port.as_fd(), &ServesRequest { service: Service::Memif, socket: "/run/a.sock".into() })?;
//! # Ok::<(), unetmap::Error>(())
//! ```

pub use unetmap_core::control::serves::{ServesRequest, Service, declare};
