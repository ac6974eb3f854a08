// SPDX-License-Identifier: BSD-2-Clause
//! netmap ports in user space: pipes, VALE switch ports, network interfaces and monitors, over shared memory.
//!
//! A [`Port`] has transmit and receive [`Ring`]s of slots; a slot refers to a packet buffer. A program fills or reads
//! slots, moves the ring's `head`, and syncs. The daemon `unetmapd` serves the requests to open ports; it starts by
//! itself, and takes no part in the data path of pipes and of interfaces that the program runs itself (direct).
//!
//! | ports | names |
//! |---|---|
//! | pipes between programs | `netmap:NAME{1` and `netmap:NAME}1` |
//! | ports of a VALE switch | `vale0:NAME` |
//! | interfaces | `netmap:eth0`, host rings `netmap:eth0^` |
//! | monitors of another port | its name with `/t`, `/r` or `/rt` (zero copy: `/z`) |
//!
//! # Frames
//! [`Port::send`], [`Port::recv`] and their batch versions copy whole frames:
//! ```
//! use std::time::Duration;
//! use unetmap::Port;
//!
//! # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
//! let (a, b) = (Port::open("netmap:p{1")?, Port::open("netmap:p}1")?);
//! assert!(a.send(&[1; 60], None)?);
//!
//! let mut buf = [0; 2048];
//! let len = b.recv(&mut buf, Some(Duration::from_secs(1)))?;
//! assert_eq!(len, Some(60));
//! assert_eq!(buf[..60], [1; 60]);
//!
//! let frames = [&[2; 60][..], &[3; 61], &[4; 62]];
//! assert_eq!(b.send_batch(frames, None)?, 3);
//! let mut lengths = Vec::new();
//! while lengths.len() < 3 {
//!     a.recv_batch(&mut buf, None, |frame| lengths.push(frame.len()))?;
//! }
//! assert_eq!(lengths, [60, 61, 62]);
//! # Ok::<(), unetmap::Error>(())
//! ```
//!
//! # Rings and slots
//! Programs for high packet rates write and read slots themselves, and sync or poll for many of them at once:
//! ```
//! use unetmap::{Interest, Port};
//!
//! # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
//! let tx = Port::options().tx_slots(64).open("netmap:p{1")?;
//! let rx = Port::open("netmap:p}1")?;
//! tx.poll(Interest::TX, None)?;
//! let ring = &tx.tx_rings()[0];
//! for slot in ring.first(10) {
//!     let len = slot.frame().write(0, &[0xff; 60]);
//!     slot.set_len_flags(len as u16, 0);
//! }
//! ring.advance(10);
//! tx.txsync()?;
//!
//! rx.poll(Interest::RX, None)?;
//! let ring = &rx.rx_rings()[0];
//! let bytes: u32 = ring.available().map(|slot| u32::from(slot.len())).sum();
//! assert_eq!((ring.space(), bytes), (10, 600));
//! ring.advance(ring.space());
//! rx.rxsync()?;
//! # Ok::<(), unetmap::Error>(())
//! ```
//!
//! # Zero copy
//! Ports of one region exchange buffers instead of copying:
//! ```
//! use unetmap::{Interest, Port};
//!
//! # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
//! let (source, from) = (Port::open("netmap:a{1")?, Port::open("netmap:a}1")?);
//! let to = Port::open(&format!("netmap:b{{1@{}", from.mem_id()))?;
//! assert!(from.same_region(&to));
//! source.send(&[7; 60], None)?;
//! from.poll(Interest::RX, None)?;
//! let (received, free) = (&from.rx_rings()[0], &to.tx_rings()[0]);
//! free.slot(free.head()).swap_from(&received.slot(received.head()));
//! received.advance(1);
//! free.advance(1);
//! to.txsync()?;
//!
//! let mut buf = [0; 60];
//! assert_eq!(Port::open("netmap:b}1")?.recv(&mut buf, None)?, Some(60));
//! assert_eq!(buf, [7; 60]);
//! # Ok::<(), unetmap::Error>(())
//! ```
//!
//! # Monitors
//! ```
//! use unetmap::Port;
//!
//! # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
//! let port = Port::open("netmap:p{1")?;
//! let monitor = Port::open("netmap:p{1/t")?;
//! port.send(&[5; 60], None)?;
//! let mut buf = [0; 2048];
//! assert_eq!(monitor.recv(&mut buf, None)?, Some(60));
//! # Ok::<(), unetmap::Error>(())
//! ```
//!
//! # Other crates
//! This crate has no Cargo features. `unetmap-adapters` has a port as a device of smoltcp (its feature `smoltcp`), and
//! a port for tasks of tokio (`tokio`).
//!
//! # Event loops
//! [`Port::arm`] requests a wake-up, after which one of [`Port::wait_fds`] becomes readable:
//! ```
//! use unetmap::{Interest, Port};
//!
//! # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
//! let (a, b) = (Port::open("netmap:p{1")?, Port::open("netmap:p}1")?);
//! assert!(b.arm(Interest::RX)?.is_none());
//! assert!(!b.wait_fds(Interest::RX).is_empty());
//! a.send(&[1; 60], None)?;
//! assert!(b.arm(Interest::RX)?.rx());
//! # Ok::<(), unetmap::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod daemon;
pub mod guest;
pub mod serves;
pub mod switch;

#[doc(inline)]
pub use unetmap_core::{
    BufIdx, DaemonChange, DownCause, Error, Frame, Interest, LinkDown, NR_SLOT_TIMES, OpenOptions, Pools, Port, Pos,
    Region, Ring, Slot, SlotIter, SlotRef, SlotTime, TimeSource, abi, errno, link_down, observe_daemons,
    reconnect_by_default, version,
};

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Returns the state of this user's daemon (ports, regions, clients) and of the system's daemon as far as it concerns
/// this user, each as JSON: the source of `unetmap ls --json`. Starts no daemon: the list is empty if none runs.
///
/// # Errors
/// A daemon's refusal, or the kernel's.
///
/// ```
/// # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
/// let _port = unetmap::Port::open("netmap:p{1")?;
/// assert!(unetmap::snapshots()?.iter().any(|json| json.contains("netmap:p{1") || json.contains("p{1")));
/// # Ok::<(), unetmap::Error>(())
/// ```
pub fn snapshots() -> Result<Vec<String>, Error> {
    unetmap_core::control::client::snapshots()
}

/// Sends a netmap request about the port `name` without opening it: `reqtype` is one of [`abi`]'s `NETMAP_REQ_*`,
/// `body` the structure that belongs to it. Returns the name and the body of the reply.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
///
/// ```
/// use unetmap::abi::{NETMAP_REQ_PORT_INFO_GET, NmreqPortInfoGet};
///
/// # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
/// let (_, info) = unetmap::request(NETMAP_REQ_PORT_INFO_GET, "p{1", &NmreqPortInfoGet::default())?;
/// assert_eq!((info.nr_tx_rings, info.nr_rx_rings), (1, 1));
/// # Ok::<(), unetmap::Error>(())
/// ```
pub fn request<T: FromBytes + IntoBytes + Immutable>(reqtype: u16, name: &str, body: &T) -> Result<(String, T), Error> {
    unetmap_core::port::file::request(reqtype, name, body)
}
