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
#![forbid(unsafe_code)]

#[doc(inline)]
pub use unetmap_core::{
    BufIdx, Error, Frame, Interest, OpenOptions, Port, Pos, Ring, Slot, SlotRef, Window, abi, errno,
};
