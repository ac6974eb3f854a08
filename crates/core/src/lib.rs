// SPDX-License-Identifier: BSD-2-Clause
//! The internals of unetmap, shared by the library, the daemon and the C libraries. Programs use the crate `unetmap`,
//! which re-exports the public API; everything else here may change in any release.
//!
//! Three floors; no module imports one of a higher floor:
//!
//! | floor | modules |
//! |---|---|
//! | `port` | what programs use: ports, rings, waiting |
//! | `sync`, `backend`, [`packets`] | what moves slots |
//! | [`control`] | the protocol between programs and the daemon, shared by both |
//!
//! The way of a packet: [`Port`] → [`Ring`] → `sync` → `backend` → the peer.
#![forbid(unsafe_code)]

use std::sync::LazyLock;

pub use unetmap_abi as abi;
pub use unetmap_mem::{BufIdx, Frame, Pos, Region, SlotValue as Slot};
pub use unetmap_sys::user_memory;

mod backend;
pub mod control;
mod error;
pub mod packets;
pub mod port;
pub mod sync;
mod tuning;

pub use backend::times::{SlotTime, TimeSource};
pub use backend::vale::{ProgramData, defer_program_data, with_program_data};
pub use error::{Error, errno, without_codes};
pub use port::extmem::Pools;
pub use port::{
    DaemonChange, DownCause, InDaemon, Interest, LinkDown, NR_SLOT_TIMES, OpenOptions, Port, Ring, SlotIter, SlotRef,
    adopt, link_down, observe_daemons, reconnect_by_default,
};

/// Returns the version of this build, as `0.1.0 (2f6c35d9a1b0)`: the commit follows if the environment variable
/// `UNETMAP_COMMIT` named it when this was built, as `make build` has it.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let version = env!("CARGO_PKG_VERSION");
        option_env!("UNETMAP_COMMIT").map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"))
    });
    &VERSION
}
