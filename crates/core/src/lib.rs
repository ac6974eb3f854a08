//! netmap ports in user space.
//!
//! ```no_run
//! use unetmap_core::{Interest, Port};
//!
//! let port = Port::open("netmap:p{1")?;
//! port.poll(Interest::TX, None)?;
//! let ring = &port.tx_rings()[0];
//! for slot in ring.window() {
//!     let sent = slot.frame().write(0, &[0xff; 60]);
//!     slot.set_len_flags(sent as u16, 0);
//! }
//! ring.advance(ring.space());
//! port.txsync()?;
//! # Ok::<(), unetmap_core::Error>(())
//! ```
//! The way of a packet through this crate: [`Port`] → [`Ring`] → `sync` → `backend` → the other party.
#![forbid(unsafe_code)]

pub use unetmap_abi as abi;
pub use unetmap_mem::{BufIdx, Frame, Pos, SlotValue as Slot};
pub use unetmap_sys::user_memory;

pub mod backend;
pub mod control;
mod error;
pub mod port;
pub mod sync;

pub use error::{Error, errno};
pub use port::open::{OpenOptions, adopt};
pub use port::ring::{Ring, SlotRef, Window};
pub use port::{Interest, Port};
