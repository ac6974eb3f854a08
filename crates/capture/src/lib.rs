// SPDX-License-Identifier: BSD-2-Clause
//! Reads capture files: pcap and pcapng, as any program wrote them; writes both formats ([`write`](mod@write)). By the
//! feature `index`, files have an index, by which the packets of a flow or a time are found again.
//!
//! ```text
//! bytes --input--> pcap | pcapng --Reader--> packets of any link type --Frames--> Ethernet frames without FCS
//! ```
//! A file is untrusted: a length in it is checked before memory is allocated for it, and no file takes more than a
//! packet ([`MAX_PACKET`]) and its list of interfaces ([`MAX_INTERFACES`]). What can be ignored is ignored and counted,
//! so that a file that libpcap reads is read here.
#![forbid(unsafe_code)]

mod frames;
#[cfg(feature = "index")]
pub mod index;
mod input;
mod link;
mod pcap;
mod pcapng;
mod reader;
#[cfg(feature = "testing")]
pub mod testing;
pub mod write;

pub use frames::{Counts, Frame, Frames};
pub use link::LinkType;
pub use pcapng::MAX_INTERFACES;
pub use reader::{Packet, Reader};

use std::fmt;
use std::io;

/// Most stored bytes of a packet, as in libpcap. A file with a longer one is damaged.
pub const MAX_PACKET: u32 = 262_144;

/// Why a file, or the rest of it, is not read.
#[derive(Debug)]
pub enum Error {
    /// The file cannot be read.
    Io(io::Error),
    /// The file is no capture, or damaged: what is wrong, which follows the name of the file.
    Format(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The text says what the number means.
            Error::Io(error) => f.write_str(error.to_string().split(" (os error").next().unwrap_or_default()),
            Error::Format(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}
