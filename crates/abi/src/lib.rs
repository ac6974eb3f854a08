// SPDX-License-Identifier: BSD-2-Clause
//! netmap's API, version 14, for Rust: the structures that programs and netmap exchange, their constants, and the
//! grammar of port names. No logic beyond that grammar, no pointers, no unsafe code.
//!
//! `include/net/netmap.h` is the same API in C; the tests compare both with one table.
#![forbid(unsafe_code)]

mod constants;
mod layout;
mod name;
pub mod printable;

pub use constants::*;
pub use layout::*;
pub use name::{Conf, ExtMem, NameError, Offset, PipeEnd, PipeRole, PortKind, PortOptions, PortSpec, Rings};
