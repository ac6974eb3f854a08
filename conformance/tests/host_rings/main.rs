// SPDX-License-Identifier: BSD-2-Clause
//! Host rings: the host's network stack as a port, and packets forwarded to and from it.
#![forbid(unsafe_code)]

mod crashes;
mod forwarding;
mod lifecycle;
mod traffic;
