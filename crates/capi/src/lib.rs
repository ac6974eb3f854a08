//! libunetmap: the library for C programs, linked or preloaded.
//!
//! ```text
//! program: open, ioctl, mmap, poll, ...     names.rs    the names that programs call
//!   --> is the descriptor a netmap file?    preload/    everything else goes on to the C library, untouched
//!   --> unetmap_open, unetmap_ioctl, ...    calls.rs    what it means on a netmap file
//!   --> ctrl.rs                                         its requests
//!   --> ready.rs                                        whether it is ready
//!   --> files.rs, threads.rs                            from descriptor numbers to ports
//! ```
//! An error leaves as a negative errno, and a panic as `EIO`: none crosses into C.
#![allow(unreachable_pub, reason = "C reaches it")]

mod calls;
mod ctrl;
mod extmem;
mod files;
mod heap;
mod kloop;
mod libnetmap;
mod names;
mod ready;
mod said;
mod snapshot;
mod threads;
mod user;
