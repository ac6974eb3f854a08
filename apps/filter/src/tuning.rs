// SPDX-License-Identifier: BSD-2-Clause
//! Constants: lifetimes of states (ipfw's code, not its manual page), and bounds.

/// Milliseconds that a TCP state lives after the last packet that confirmed it, once both sides sent SYN.
pub(crate) const LIFETIME_ACK: u64 = 300_000;
/// ... of which only a SYN was seen.
pub(crate) const LIFETIME_SYN: u64 = 20_000;
/// ... of which both sides sent FIN.
pub(crate) const LIFETIME_FIN: u64 = 1_000;
/// ... that was reset, or that began in the middle of a connection.
pub(crate) const LIFETIME_RST: u64 = 1_000;
/// ... of a UDP or UDP-Lite state.
pub(crate) const LIFETIME_UDP: u64 = 10_000;
/// ... of any other state.
pub(crate) const LIFETIME_SHORT: u64 = 5_000;
/// The shortest of them.
pub(crate) const LIFETIME_MIN: u64 = 1_000;
const _: () = assert!(LIFETIME_FIN >= LIFETIME_MIN && LIFETIME_RST >= LIFETIME_MIN);

/// Milliseconds from one walk through the states to the next, in which idle connections are asked.
pub(crate) const KEEPALIVE_PERIOD: u64 = 5_000;
/// Milliseconds before the end of its lifetime in which a connection is asked.
pub(crate) const KEEPALIVE_BEFORE: u64 = 20_000;
/// States that a call examines for it; each may need a packet in each direction.
pub const EXAMINED_PER_CALL: usize = 512;

/// States that a full table examines for expired ones before it gives up a half-open one.
pub(crate) const SWEEP_WHEN_FULL: usize = 64;
/// States that are examined for expired ones in each batch of packets.
pub const SWEEP_PER_BATCH: usize = 16;
/// Packets whose states are read before the first of them is evaluated. Some processors can have no more reads from
/// memory under way at a time.
pub const FETCH_STATES: usize = 16;
/// Parts of the table of states for each thread, if several share it: each part has a lock.
pub(crate) const PARTS_PER_THREAD: usize = 16;
/// States of a part, at least.
pub(crate) const MIN_PART: usize = 256;
/// States of a `limit` that are examined for expired ones each millisecond, if packets ask for it: a value with more
/// states is examined less often.
pub(crate) const WALKED_PER_MILLI: u32 = 256;
/// Different values that `limit` options count states for, at the same time (ipfw's `dyn_parent_max`).
pub(crate) const MAX_LIMITS: usize = 4096;

/// Tags of one packet; any more are not set. ipfw has no bound.
pub(crate) const MAX_TAGS: usize = 16;
/// Rules that a packet can return to.
pub(crate) const CALL_DEPTH: usize = 16;
/// Calls of one packet; any more are skipped. ipfw has no bound: calls within calls could then take hours.
pub(crate) const MAX_CALLS: u32 = 256;
