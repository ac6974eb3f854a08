// SPDX-License-Identifier: BSD-2-Clause
//! The counters of a port, in a page that the process that goes on with the port maps, too: they go on over a crash.
//!
//! ```text
//! packets = forwarded + drops by reason             each transmit ring; of a packet of many segments: one packet
//! sum of copies = sum of (packets received + dropped for lack of room + refused by the receiving port)   all ports
//! ```
//! Without flooded packets copies = forwarded; a flooded packet has a copy for each other port, and one that is divided
//! into frames a copy for each frame. Whenever no batch is being forwarded, the sums are equal.

use std::ops::RangeFrom;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};
use unetmap_mem::{Counter, CounterPage};

use crate::policy::DropReason;

/// Counters of a transmit ring, written with the lock of the ring.
pub(crate) struct TxCounters {
    /// Packets that were taken.
    pub(super) packets: Counter,
    /// Packets that other ports were to get.
    pub(super) copies: Counter,
    /// Bytes of the slots that were returned to the client.
    pub(super) bytes: Counter,
    /// By [`DropReason::SENT`].
    pub(super) drops: [Counter; DropReason::SENT.len()],
}

/// Counters of a receive ring.
pub(crate) struct RxCounters {
    /// Packets that were delivered, and their bytes, as of the last batch.
    pub(super) packets: Counter,
    pub(super) bytes: Counter,
    /// Packets without room.
    pub(super) dropped: Counter,
    /// Packets whose buffers were swapped instead of copied.
    pub(super) swapped: Counter,
}

/// Counters of a port: packets for it that it did not get although it had room, by [`REFUSED`].
pub(crate) struct PortCounters([Counter; REFUSED.len()]);

/// The reasons of [`DropReason::RECEIVED`] that a port counts: its rings count lack of room, the first, and the switch
/// what is known after a crash, the last.
const REFUSED: [DropReason; 3] = match DropReason::RECEIVED {
    [DropReason::NoRoom, refused @ .., DropReason::Crash] => refused,
    _ => panic!("the reasons have another order"),
};

/// The counts of a transmit ring.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct TxCounts {
    /// Packets that were taken.
    pub packets: u64,
    /// Packets that other ports were to get: a flooded one counts once for each port.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that reached no port, in the order of [`DropReason::SENT`].
    pub drops: [u64; DropReason::SENT.len()],
}

/// The counts of a receive ring.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RxCounts {
    /// Packets that were delivered.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets without room.
    pub dropped: u64,
    /// Delivered packets that were not copied.
    pub swapped: u64,
}

/// Packets of a port that the kernel forwarded in place of the switch, which has counted none of them: each as one that
/// was sent to one port.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ByKernel {
    /// Packets that it sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that were delivered to it.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
}

/// [`ByKernel`], as it is set from time to time.
#[derive(Default)]
pub(super) struct KernelCounters([AtomicU64; 4]);

impl KernelCounters {
    pub(super) fn set(&self, counts: ByKernel) {
        let ByKernel { sent, sent_bytes, received, received_bytes } = counts;
        let all = [sent, sent_bytes, received, received_bytes];
        self.0.iter().zip(all).for_each(|(counter, n)| counter.store(n, Relaxed));
    }

    pub(super) fn counts(&self) -> ByKernel {
        let [sent, sent_bytes, received, received_bytes] = std::array::from_fn(|i| self.0[i].load(Relaxed));
        ByKernel { sent, sent_bytes, received, received_bytes }
    }
}

/// The packets of a port, or of all ports of a switch.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PacketCounts {
    /// Packets that were taken from it.
    pub sent: u64,
    /// In the order of [`DropReason::SENT`]: those of them that reached no port.
    pub lost: [u64; DropReason::SENT.len()],
    /// Packets that other ports were to get of those it sent: a flooded one counts once for each port.
    pub copies: u64,
    /// Packets that were delivered to it.
    pub received: u64,
    /// In the order of [`DropReason::RECEIVED`]: packets for it that it did not get.
    pub not_received: [u64; DropReason::RECEIVED.len()],
}

impl PacketCounts {
    /// Adds those of another port.
    pub fn add(&mut self, other: &PacketCounts) {
        self.combine(other, u64::wrapping_add);
    }

    /// Subtracts those of another port: the difference may be below 0, and counts up to a sum again.
    pub fn subtract(&mut self, other: &PacketCounts) {
        self.combine(other, u64::wrapping_sub);
    }

    fn combine(&mut self, other: &PacketCounts, with: fn(u64, u64) -> u64) {
        let one = |sum: &mut u64, n: u64| *sum = with(*sum, n);
        one(&mut self.sent, other.sent);
        one(&mut self.copies, other.copies);
        one(&mut self.received, other.received);
        self.lost.iter_mut().zip(other.lost).for_each(|(sum, n)| one(sum, n));
        self.not_received.iter_mut().zip(other.not_received).for_each(|(sum, n)| one(sum, n));
    }

    /// After a crash that ended batches before they were counted, while no batch is being forwarded: returns what makes
    /// the sums equal. Packets that were delivered come again, and some that full ports missed were not counted yet.
    pub fn missing_after_crash(&self) -> PacketCounts {
        // A state from elsewhere may have any numbers.
        let reached = self.not_received.iter().fold(self.received, |sum, n| sum.wrapping_add(*n));
        let mut missing = PacketCounts { copies: reached.saturating_sub(self.copies), ..PacketCounts::default() };
        let [.., crash] = &mut missing.not_received;
        *crash = self.copies.saturating_sub(reached);
        missing
    }

    pub(super) fn add_by_kernel(&mut self, counts: ByKernel) {
        self.sent += counts.sent;
        self.copies += counts.sent;
        self.received += counts.received;
    }

    pub(super) fn add_tx(&mut self, ring: &TxCounts) {
        self.sent += ring.packets;
        self.copies += ring.copies;
        self.lost.iter_mut().zip(ring.drops).for_each(|(sum, n)| *sum += n);
    }

    pub(super) fn add_rx(&mut self, ring: &RxCounts) {
        self.received += ring.packets;
        self.not_received[0] += ring.dropped;
    }

    pub(super) fn refuse(&mut self, refused: [u64; REFUSED.len()]) {
        self.not_received[1..].iter_mut().zip(refused).for_each(|(sum, n)| *sum += n);
    }
}

/// Indexes of counters in a page, from which each takes the next ones.
type Indexes = RangeFrom<usize>;

fn next(page: &CounterPage, indexes: &mut Indexes) -> Option<Counter> {
    page.counter(indexes.next()?)
}

fn array<const N: usize>(page: &CounterPage, indexes: &mut Indexes) -> Option<[Counter; N]> {
    let counters: Option<Vec<Counter>> = (0..N).map(|_| next(page, indexes)).collect();
    counters?.try_into().ok()
}

/// Returns the number of counters of a port with so many transmit and receive rings.
pub const fn count(tx: usize, rx: usize) -> usize {
    REFUSED.len() + tx * (3 + DropReason::SENT.len()) + rx * 4
}

impl TxCounters {
    pub(crate) fn of(page: &CounterPage, indexes: &mut Indexes) -> Option<TxCounters> {
        let [packets, copies, bytes] = array(page, indexes)?;
        Some(TxCounters { packets, copies, bytes, drops: array(page, indexes)? })
    }
}

impl RxCounters {
    pub(crate) fn of(page: &CounterPage, indexes: &mut Indexes) -> Option<RxCounters> {
        let [packets, bytes, dropped, swapped] = array(page, indexes)?;
        Some(RxCounters { packets, bytes, dropped, swapped })
    }
}

impl PortCounters {
    pub(crate) fn of(page: &CounterPage, indexes: &mut Indexes) -> Option<PortCounters> {
        Some(PortCounters(array(page, indexes)?))
    }

    /// Counts `n` packets that the port does not get, in the order of [`REFUSED`].
    pub(super) fn count(&self, refused: [u64; REFUSED.len()]) {
        for (counter, n) in self.0.iter().zip(refused).filter(|(_, n)| *n > 0) {
            counter.fetch_add(n, Relaxed);
        }
    }

    pub(super) fn counts(&self) -> [u64; REFUSED.len()] {
        std::array::from_fn(|i| self.0[i].load(Relaxed))
    }
}
