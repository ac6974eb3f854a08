// SPDX-License-Identifier: BSD-2-Clause
//! The switch's side of a port.
//!
//! A port's rings, channels and buffers are in memory that its client may write at any time. The switch keeps its own
//! positions in private memory, copies slots before it validates them, and reads only the buffer index of a receive
//! slot, once. An index that names no buffer is replaced.
//!
//! Between two ports of one region a packet with a single destination is delivered by swapping buffers. Both slots
//! are written while the sender's ring is locked: the daemon [pauses](SwitchPort::pause_tx) the ring while it counts
//! buffers. Buffers of free receive slots are exchanged while the receive ring is locked, by threads that serve senders
//! of any region: the daemon [pauses](SwitchPort::pause_exchanges) that, too.
//!
//! * `deliver`: the ways of a batch into a port.
//! * `tx_ring`: takes batches of slots (`batch`, `context`); `rx_ring`: fills slots; `offsets`: option OFFSETS of both.
//! * `counters`: what rings and ports count; `positions`: what another process needs to go on with the port.
//! * `rx_wait`, `cpu`: waiting for a receiver without room; `prefault`: memory for receive buffers.
//! * `vnet_hdr`: delivery between ports with different virtio-net headers; `staged`: delivery of policed packets.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use unetmap_core::control::monitor::{self, Monitor};
use unetmap_mem::{ChannelPage, ConsWord, CounterPage, Offsets, Region};
use unetmap_sys::Doorbell;

use crate::policy::ActivePolicy;
use crate::tuning::PAUSE_LIMIT;

mod batch;
mod context;
pub mod counters;
mod cpu;
mod deliver;
mod gather;
mod offsets;
mod positions;
mod prefault;
mod recent_buffers;
mod ring;
mod rx_ring;
mod rx_wait;
pub(crate) mod staged;
mod tx_ring;
mod vnet_hdr;

pub(crate) use batch::Served;
pub(crate) use context::BatchContext;
use counters::{ByKernel, KernelCounters, PacketCounts, PortCounters, RxCounters, RxCounts, TxCounters, TxCounts};
pub use positions::PortPositions;
pub use ring::RingConfig;
pub use rx_ring::ExchangePause;
use rx_ring::PortRx;
pub use tx_ring::TxPause;
pub(crate) use tx_ring::{PortTx, TxState};

/// A port as switch threads see it.
pub struct SwitchPort {
    /// Its index in the switch, below [`MAX_PORTS`](crate::fdb::MAX_PORTS). It changes only while the port is in no
    /// switch.
    index: AtomicU8,
    /// Notified by the client when it has sent and the switch sleeps.
    pub(crate) doorbell: Doorbell,
    pub(crate) region: Region,
    /// Bytes of the virtio-net header before each packet.
    vnet_hdr_len: AtomicU8,
    pub(crate) tx: Vec<PortTx>,
    rx: Vec<PortRx>,
    /// The policy for configurations to come; threads use that of their `SwitchConfig`.
    policy: Mutex<Option<Arc<ActivePolicy>>>,
    counters: PortCounters,
    by_kernel: KernelCounters,
    /// A hash of the client's positions when a thread last yielded the CPU to it.
    positions_at_yield: AtomicU32,
    /// The yields to the client since its positions last changed.
    futile_yields: AtomicU32,
    /// Whether packets are always copied from and to its buffers: a zero-copy monitor gets those.
    keeps_buffers: AtomicBool,
}

impl SwitchPort {
    /// The port with index `index`, whose rings are in `region` and whose channels in `channels`: its transmit rings,
    /// then its receive rings. The client notifies `doorbell`. It counts in a page of counters, from the index on that
    /// is beside it, as many as [`counters`](counters::count) says.
    ///
    /// # Errors
    /// No memory or descriptors are left, a ring has no channel, or the page is too short.
    pub fn new(
        index: u8,
        region: &Region,
        channels: &ChannelPage,
        (tx, rx): (Vec<RingConfig<'_>>, Vec<RingConfig<'_>>),
        doorbell: Doorbell,
        (page, first): (&CounterPage, usize),
    ) -> io::Result<SwitchPort> {
        let (buf_size, indexes) = (region.limits().buf_size, &mut (first..));
        let none = || io::Error::from(io::ErrorKind::InvalidInput);
        let counters = PortCounters::of(page, indexes).ok_or_else(none)?;
        let tx = tx
            .into_iter()
            .map(|config| PortTx::new(region, channels, config, TxCounters::of(page, indexes).ok_or_else(none)?));
        let tx = tx.collect::<io::Result<_>>()?;
        let rx = rx
            .into_iter()
            .map(|config| PortRx::new(channels, config, buf_size, RxCounters::of(page, indexes).ok_or_else(none)?));
        let rx = rx.collect::<io::Result<_>>()?;
        Ok(SwitchPort {
            index: AtomicU8::new(index),
            doorbell,
            region: region.clone(),
            vnet_hdr_len: AtomicU8::new(0),
            tx,
            rx,
            policy: Mutex::default(),
            counters,
            by_kernel: KernelCounters::default(),
            positions_at_yield: AtomicU32::new(0),
            futile_yields: AtomicU32::new(0),
            keeps_buffers: AtomicBool::new(false),
        })
    }

    /// Sets the monitors that packets of the port are mirrored to from now on. A batch that is being forwarded may
    /// still use the earlier ones: see [`SwitchPort::pause_tx`].
    pub fn set_monitors(&self, monitors: Vec<Monitor>) {
        let mut all = monitor::map_monitors(monitors, Some(&Arc::new(self.region.clone())));
        let tx = self.tx.iter().map(|ring| &ring.monitors).zip(0..).map(|(ring, id)| ((0, id), ring));
        let rx = self.rx.iter().map(|ring| &ring.monitors).zip(0..).map(|(ring, id)| ((1, id), ring));
        tx.chain(rx).for_each(|(which, ring)| monitor::assign(&mut all, which, ring, 0));
        // Such a monitor sees both directions.
        self.keeps_buffers.store(self.tx.iter().any(|ring| ring.monitors.any_zero_copy()), Relaxed);
    }

    /// Sets how many packets the kernel has forwarded for the port, which count as those of its first rings.
    pub fn set_by_kernel(&self, counts: ByKernel) {
        self.by_kernel.set(counts);
    }

    /// Returns how many packets the kernel has forwarded for the port.
    pub fn by_kernel(&self) -> ByKernel {
        self.by_kernel.counts()
    }

    /// Returns the number of transmit rings.
    pub fn tx_rings(&self) -> usize {
        self.tx.len()
    }

    /// Makes the thread of the port poll it once more, if the thread sleeps.
    pub fn wake_worker(&self) {
        self.doorbell.notify();
    }

    /// Returns its index in the switch.
    #[inline(always)]
    pub fn index(&self) -> u8 {
        self.index.load(Relaxed)
    }

    /// Prepares the port for another switch, in which its index is `index`. No thread may be using the port.
    pub fn move_to(&self, index: u8) {
        self.index.store(index, Relaxed);
        self.tx.iter().for_each(PortTx::forget_flows);
    }

    /// Returns the bytes of the virtio-net header that each packet of the port begins with: 0, 10 or 12.
    pub fn vnet_hdr_len(&self) -> u8 {
        self.vnet_hdr_len.load(Relaxed)
    }

    /// Sets the virtio-net header length for the packets to come.
    pub fn set_vnet_hdr_len(&self, bytes: u8) {
        self.vnet_hdr_len.store(bytes, Relaxed);
    }

    /// Sets where the packets of a transmit or receive ring may begin from now on.
    pub fn set_offsets(&self, transmit: bool, ring: usize, offsets: Offsets) {
        let current = match transmit {
            true => self.tx.get(ring).map(|tx| &tx.offsets),
            false => self.rx.get(ring).map(|rx| &rx.offsets),
        };
        if let Some(current) = current {
            current.set(offsets);
        }
    }

    /// Sets the policy for configurations that are made from now on.
    pub fn set_policy(&self, policy: Option<Arc<ActivePolicy>>) {
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner) = policy;
    }

    /// Returns this policy.
    pub fn policy(&self) -> Option<Arc<ActivePolicy>> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns what transmit ring `ring` counted; zeros if there is none.
    pub fn tx_counts(&self, ring: usize) -> TxCounts {
        let mut counts = self.tx.get(ring).map(PortTx::counts).unwrap_or_default();
        if ring == 0 {
            let ByKernel { sent, sent_bytes, .. } = self.by_kernel();
            (counts.packets, counts.copies) = (counts.packets + sent, counts.copies + sent);
            counts.bytes += sent_bytes;
        }
        counts
    }

    /// Returns what receive ring `ring` counted; zeros if there is none.
    pub fn rx_counts(&self, ring: usize) -> RxCounts {
        let mut counts = self.rx.get(ring).map(PortRx::counts).unwrap_or_default();
        if ring == 0 {
            let ByKernel { received, received_bytes, .. } = self.by_kernel();
            (counts.packets, counts.bytes) = (counts.packets + received, counts.bytes + received_bytes);
        }
        counts
    }

    /// Returns the packets of all its rings.
    pub fn packets(&self) -> PacketCounts {
        let mut sum = PacketCounts::default();
        self.tx.iter().for_each(|ring| sum.add_tx(&ring.counts()));
        self.rx.iter().for_each(|ring| sum.add_rx(&ring.counts()));
        sum.refuse(self.counters.counts());
        sum.add_by_kernel(self.by_kernel());
        sum
    }

    /// Returns how often the client was woken by the doorbell of a ring: a transmit ring's when slots came back, a
    /// receive ring's when packets arrived.
    pub fn wakeups(&self, transmit: bool, ring: usize) -> u64 {
        match transmit {
            true => self.tx.get(ring).map_or(0, PortTx::wakeups),
            false => self.rx.get(ring).map_or(0, PortRx::wakeups),
        }
    }

    /// Waits for batches that are being forwarded. Until the result is dropped, no slot is taken from the port's
    /// transmit rings, and no buffer in them is swapped. `None` if that takes longer than [`PAUSE_LIMIT`].
    pub fn pause_tx(&self) -> Option<Vec<TxPause<'_>>> {
        let end = Instant::now() + PAUSE_LIMIT;
        self.tx.iter().map(|tx| tx.pause(end)).collect()
    }

    /// Waits for deliveries that are under way. Until the result is dropped, no buffers of free slots of the port's
    /// receive rings are exchanged. `None` if that takes longer than [`PAUSE_LIMIT`].
    pub fn pause_exchanges(&self) -> Option<Vec<ExchangePause<'_>>> {
        let end = Instant::now() + PAUSE_LIMIT;
        self.rx.iter().map(|rx| rx.pause_exchanges(end)).collect()
    }

    /// Before the thread sleeps: it may be woken on any CPU.
    pub(crate) fn unset_cpu(&self) {
        self.rx.iter().for_each(PortRx::unset_cpu);
    }

    /// Returns the receive ring for packets that another port sends on its transmit ring `ring`.
    #[inline]
    fn rx_for(&self, ring: usize) -> Option<&PortRx> {
        self.rx.get(ring % self.rx.len().max(1))
    }

    /// Returns the client's position at which its receive ring for packets of transmit ring `ring` was found full and
    /// is not waited for, and the word in which it moves; `None` otherwise.
    pub(crate) fn full_at(&self, ring: usize) -> Option<(u32, ConsWord)> {
        self.rx_for(ring)?.full_at()
    }

    /// Counts `n` packets without room in the receive ring for packets of transmit ring `ring`.
    pub(crate) fn count_rx_drops(&self, ring: usize, n: u64) {
        if let Some(rx) = self.rx_for(ring) {
            rx.count_drops(n);
        }
    }
}
