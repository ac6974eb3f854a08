//! netmap ports in user space.
//!
//! ```no_run
//! use unetmap::{Interest, Port};
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
//! # Ok::<(), unetmap::Error>(())
//! ```
//! The way of a packet through this crate: [`Port`] → [`Ring`] → `sync` → `backend` → the other party.
#![forbid(unsafe_code)]

pub use unetmap_abi as abi;
pub use unetmap_mem::{BufIdx, Frame, Pos, SlotValue as Slot};
pub use unetmap_sys::program;

mod backend;
pub mod blocks;
pub mod bound;
pub mod client;
pub mod door;
mod error;
pub mod extmem;
pub mod file;
mod forward;
pub mod knobs;
mod lease;
pub mod legacy;
pub mod nic;
pub mod node;
mod open;
mod port;
pub mod request;
mod ring;
mod sync;
pub mod vale;
mod wait;
pub mod watch;
pub mod wire;

pub use error::{Error, errno};
pub use open::{OpenOptions, adopt};
pub use port::{Interest, Port};
pub use ring::{Ring, SlotRef, Window};
