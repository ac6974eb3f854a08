//! The switch: what moves packets between the ports of one, in threads of the daemon.
//!
//! ```text
//! client's tx ring == line ==> [cut, decide, list] == copy ==> client's rx ring == line ==> client
//!      (its region)               switch thread                   (another region)
//! ```
//! * [`learn`]: behind which port an address is.
//! * [`forward`]: where the packets of a batch go.
//! * [`offload`]: packets that hardware was to finish.
//! * `patience`: what is done for receivers before they lose packets.
//! * [`ask`]: what its owner asks the daemon.
//! * [`rules`]: what the switch's owner has set about a port.
//! * [`port`]: the switch's side of a port, its rings and lines.
//! * [`thread`]: which ports are looked at, and when to sleep.
//!
//! What a client writes, positions, slots, and packets, is read once and judged. Transmission always completes: a packet for
//! which a receiver has no room is dropped there, and counted.

#![forbid(unsafe_code)]

pub mod fdb;
pub mod forward;
pub mod offload;
pub mod policy;
pub mod port;
pub mod worker;
