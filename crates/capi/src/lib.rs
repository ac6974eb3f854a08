// SPDX-License-Identifier: BSD-2-Clause
//! libunetmap: the library for C programs, linked or preloaded.
//!
//! ```text
//! program: open, ioctl, mmap, poll, ...     names.rs    the exported names
//!   --> is the descriptor a netmap file?    preload/    other descriptors are passed to the C library unchanged
//!   --> unetmap_open, unetmap_ioctl, ...    calls.rs    system calls on a netmap file
//!   --> ctrl.rs                                         its control requests
//!   --> parameters.rs                                   netmap's parameters, which are files, too
//!   --> ready.rs                                        its readiness
//!   --> files.rs, threads.rs                            from descriptor numbers to ports
//! ```
//! Errors are returned to C as negative errnos, and a panic as `EIO`. `SAFETY` comments cite rules C1 to C7 of
//! ARCHITECTURE.md.
#![allow(unreachable_pub, reason = "called from C")]

mod calls;
mod ctrl;
mod extmem;
mod files;
mod heap;
mod kloop;
mod last_error;
mod libnetmap;
mod link;
mod names;
mod parameters;
mod ready;
mod reconnect;
mod snapshot;
mod threads;
mod times;
mod tuning;
mod user;
