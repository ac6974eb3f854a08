// SPDX-License-Identifier: BSD-2-Clause
//! Streams of packets: described in TOML, built and timed by a sender, and measured by a receiver.
//!
//! ```text
//! TOML or SPEC --file--> Stream --> Sender: Schedule (when), Packet (what), signature --> frame
//! frame --> signature --> Receiver: loss, order, latency, jitter by stream
//! Plan --search--> trials of one stream each --> rate, latency, loss and bursts of a device (RFC 2544, RFC 8219)
//! ```
//! Nothing here reads a clock or a port: times are arguments, in nanoseconds, so that tests have their own clock.
//! Sizes are bytes from the Ethernet header to the end of the payload, without FCS.
#![forbid(unsafe_code)]

mod crc32c;
mod field;
mod file;
mod latencies;
mod layer;
mod pace;
mod packet;
mod receiver;
mod schedule;
pub mod search;
mod sender;
pub mod signature;
mod stream;
mod template;
mod units;

pub use file::{Load, parse_file, parse_spec};
pub use latencies::{Latencies, Summary};
pub use pace::{BATCH, Pace};
pub use packet::{MAX_SIZE, Packet, Sizes};
pub use receiver::{IntervalReport, MAX_STREAMS, Receiver, StreamReport};
pub use schedule::{FRAMING, Rate, Schedule, Shape, Unit};
pub use sender::{Sender, SentCounts};
pub use stream::Stream;
pub use units::{DEFAULT_LINK, parse_link};

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// Pseudo random numbers (SplitMix64): the same ones for the same seed.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number above 0, of at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}
