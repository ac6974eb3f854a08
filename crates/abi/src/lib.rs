//! netmap's interface, version 14, for Rust: the structures that programs and netmap exchange, their constants, and
//! the grammar of port names. No logic beyond that grammar, no pointers, no unsafe.
//!
//! The C side of the same contract is `include/net/netmap.h`; the tests hold both against one table.
#![forbid(unsafe_code)]

mod constants;
mod layout;
mod name;

pub use constants::*;
pub use layout::*;
pub use name::{Conf, ExtMem, NameError, Offset, PipeEnd, PipeRole, PortKind, PortOptions, PortSpec, Rings};
