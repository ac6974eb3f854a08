// SPDX-License-Identifier: BSD-2-Clause
//! A traffic shaper and network emulator: links with bandwidth, delay, loss and other faults, in front of them packet
//! schedulers with queue managers. No allocation, lock or system call per packet, and no clock: the caller says what
//! time it is, so that tests run on a virtual clock and are exact.
//!
//! ```text
//! frame --copy--> Pool --Packet--> Pipe::enqueue
//!                                    faults: loss, corruption, duplication
//!                                    Scheduler: flows (queues of packets), each with a limit and a queue manager
//!                                    LinkClock: when the link has sent the packet
//!                                    DelayLine: when it arrives
//! Pipe::next_due / Pipe::take_due --Packet--> frame
//! ```
//! A pipe here is a *dummynet pipe*, a link; it is no port. It handles its events in the order of their times, however
//! late it is called: the time at which a packet arrives does not depend on how often the caller asks.
#![forbid(unsafe_code)]

pub mod aqm;
mod delay;
mod ecn;
mod flow;
mod heap;
pub mod held;
mod link;
mod loss;
mod pipe;
mod pool;
mod random;
mod sched;
mod shaper;
mod trace;
pub mod value;

pub use delay::{Delay, DelayError};
pub use flow::{FlowKey, FlowMap, Mask};
pub use link::Rate;
pub use loss::Loss;
pub use pipe::{Counts, Dropped, Pipe, PipeConfig};
pub use pool::{Cursor, Packet, Pool};
pub use random::Random;
pub use sched::{Class, Fq, Kind, Limit, Scheduler};
pub use shaper::{LinkCounters, Node, Plan, Shaper, Target};
pub use trace::{Trace, TraceError};

/// A time or a duration in nanoseconds. The zero of the clock is the caller's.
pub type Nanos = u64;

/// Nanoseconds of a second.
pub const SECOND: Nanos = 1_000_000_000;
/// Nanoseconds of a millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
