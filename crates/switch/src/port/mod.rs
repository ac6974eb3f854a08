//! The switch's side of a port.
//!
//! A port's rings, lines and buffers lie in memory that its client writes, and the switch believes nothing of it: where the
//! lines stand is kept here, slots are copied before they are judged, and of a receive slot only the buffer's index is read,
//! once. An index that names no buffer is replaced.
//!
//! Between two ports of one region packets change sides with their buffers, as far as each goes to one port alone. Then
//! both slots are written while the sender's ring is locked: whoever counts buffers holds it [`Still`].

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use unetmap_mem::{ADDRESSES, BufIdx, LinePage, Region, RingView, SlotHead};
use unetmap_sys::Doorbell;

use unetmap_core::sync::mirror::{self, Monitor};

use crate::forward::{Lost, Packet};
use crate::policy::Ruled;

mod prefault;
mod batch;
mod offsets;
pub(crate) mod staged;
mod rx_ring;
mod tx_ring;
pub(crate) mod cpu;
mod vnet_hdr;

pub(crate) use batch::{Batch, Served};
pub(crate) use rx_ring::Incoming;
pub use tx_ring::Still;
pub(crate) use tx_ring::{Outgoing, Sent};
use vnet_hdr::translate;

/// A ring, for [`Attached::new`].
pub struct Given<'a> {
    /// The ring.
    pub view: &'a RingView,
    /// Index of its line.
    pub line: usize,
    /// Wakes the client that sleeps on the ring.
    pub bell: Doorbell,
    /// Of a receive ring: what takes the place of a buffer that does not exist.
    pub spare: BufIdx,
}

/// A port as switch threads see it.
pub struct Attached {
    /// Its number in the switch, below [`super::learn::PORTS`].
    pub(crate) index: u8,
    /// Rung by the client when it has sent and the switch sleeps.
    pub(crate) bell: Doorbell,
    pub(crate) region: Region,
    /// Bytes of the virtio-net header before each packet.
    header: AtomicU8,
    pub(crate) tx: Vec<Outgoing>,
    pub(crate) rx: Vec<Incoming>,
    /// What the switch's owner has set; threads have it in their views.
    ruled: Mutex<Option<Arc<Ruled>>>,
    /// Packets for the port that its filter refused, and that were beyond its limits.
    refused: [AtomicU64; 2],
    /// Where the client's positions stood when the processor was given to it for nothing else, and how often it was since.
    given: [AtomicU32; 2],
}

impl Attached {
    /// The switch's side of the port number `index`, whose rings lie in `region` and whose lines in `lines`; its
    /// transmit rings, then its receive rings. `bell` is rung by the client.
    ///
    /// # Errors
    /// No memory or descriptors; a ring has no line.
    pub fn new(
        index: u8,
        region: &Region,
        lines: &LinePage,
        (tx, rx): (Vec<Given<'_>>, Vec<Given<'_>>),
        bell: Doorbell,
    ) -> io::Result<Attached> {
        let tx = tx.into_iter().map(|given| Outgoing::new(region, lines, given)).collect::<io::Result<_>>()?;
        let rx = rx
            .into_iter()
            .map(|given| Incoming::new(lines, given, region.limits().buf_size))
            .collect::<io::Result<_>>()?;
        let (header, ruled, refused) = (AtomicU8::new(0), Mutex::default(), Default::default());
        let given = Default::default();
        Ok(Attached { index, bell, region: region.clone(), header, tx, rx, ruled, refused, given })
    }

    /// From now on its packets are shown to these monitors.
    pub fn watched_by(&self, monitors: Vec<Monitor>) {
        let mut all = mirror::map_all(monitors, None);
        let tx = self.tx.iter().map(|ring| &ring.watchers).zip(0..).map(|(ring, id)| ((0, id), ring));
        let rx = self.rx.iter().map(|ring| &ring.watchers).zip(0..).map(|(ring, id)| ((1, id), ring));
        tx.chain(rx).for_each(|(which, ring)| mirror::hand_out(&mut all, which, ring, 0));
    }

    /// Rings that its client sends on.
    pub fn sending_rings(&self) -> usize {
        self.tx.len()
    }

    /// Has the thread that looks after the port look at it once more, if it sleeps.
    pub fn look_again(&self) {
        self.bell.notify();
    }

    /// Its number in the switch.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Bytes of the virtio-net header that each packet of the port begins with: 0, 10 or 12.
    pub fn header(&self) -> u8 {
        self.header.load(Relaxed)
    }

    /// Changes that, for the packets to come.
    pub fn set_header(&self, bytes: u8) {
        self.header.store(bytes, Relaxed);
    }

    /// The rules by which views that are made from now on treat the port.
    pub fn set_ruled(&self, ruled: Option<Arc<Ruled>>) {
        *self.ruled.lock().unwrap_or_else(PoisonError::into_inner) = ruled;
    }

    /// These rules.
    pub fn ruled(&self) -> Option<Arc<Ruled>> {
        self.ruled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Packets for the port that its own filter refused, and those beyond its limits.
    pub fn refused(&self) -> [u64; 2] {
        [0, 1].map(|i: usize| self.refused[i].load(Relaxed))
    }

    /// Packets that transmit ring `ring` sent and that reached no port, in the order of [`Lost::ALL`].
    pub fn lost(&self, ring: usize) -> [u64; Lost::ALL.len()] {
        std::array::from_fn(|i| self.tx.get(ring).map_or(0, |tx| tx.lost[i].load(Relaxed)))
    }

    /// Packets that receive ring `ring` had no room for.
    pub fn dropped(&self, ring: usize) -> u64 {
        self.rx.get(ring).map_or(0, |rx| rx.dropped.load(Relaxed))
    }

    /// Packets that came to receive ring `ring` with their buffers.
    pub fn swapped(&self, ring: usize) -> u64 {
        self.rx.get(ring).map_or(0, |rx| rx.swapped.load(Relaxed))
    }

    /// As long as what is returned lives, nothing is taken from the port's transmit rings, and no buffer in them changes sides.
    /// Waits for the batches that are on their way.
    pub fn still(&self) -> Vec<Still<'_>> {
        self.tx.iter().map(Outgoing::still).collect()
    }

    /// The receive ring to which another port's transmit ring `ring` leads.
    #[inline]
    pub(crate) fn incoming(&self, ring: usize) -> Option<&Incoming> {
        self.rx.get(ring % self.rx.len().max(1))
    }

    /// Copies the packets of a batch from slot `at` on that begin with `addresses` into a receive ring, as long as there is
    /// room; publishes them, and wakes the client if it sleeps. Returns how many.
    #[inline]
    pub(crate) fn deliver_run(&self, served: &Served<'_>, (addresses, at): ([u8; ADDRESSES], u32)) -> u32 {
        let Some(rx) = self.incoming(served.number) else { return 0 };
        served.patience.delivers_to(self.index);
        let mut done = 0;
        loop {
            let (packets, full) = rx.run(&self.region, served, addresses, at + done);
            done += packets;
            if !full || !served.patience.give_way(rx) {
                return done;
            }
        }
    }

    /// Whether packets of another port's can just be copied, as they are, into buffers of this one.
    #[inline]
    pub(crate) fn takes_copies(&self, served: &Served<'_>) -> bool {
        let theirs = &served.port.region;
        self.header() == 0
            && self.begins_at_start(served.number)
            && !self.region.same(theirs)
            && self.region.limits().buf_size >= theirs.limits().buf_size
    }

    /// Copies packets of one slot each of a port whose [copies it takes](Attached::takes_copies), as [`Attached::deliver`] does.
    #[inline]
    pub(crate) fn deliver_some(&self, served: &Served<'_>, mut packets: &[SlotHead]) {
        let Some(rx) = self.incoming(served.number) else { return };
        served.patience.delivers_to(self.index);
        loop {
            let done = rx.fill_some(&self.region, served, packets);
            packets = packets.get(done..).unwrap_or_default();
            if packets.is_empty() {
                return;
            }
            if !served.patience.give_way(rx) {
                break;
            }
        }
        rx.dropped.fetch_add(packets.len() as u64, Relaxed);
    }

    /// Copies packets of a batch into the receive ring that belongs to the one they were sent on, as long as there is
    /// room; publishes them, and wakes the client if it sleeps. A client without room may be given a chance to make
    /// some. With `alone` the packets go to nobody else: in one region they need not be copied.
    #[inline]
    pub(crate) fn deliver(&self, served: &Served<'_>, (mut packets, alone): (impl Iterator<Item = Packet>, bool)) {
        let Some(rx) = self.incoming(served.number) else { return };
        served.patience.delivers_to(self.index);
        if self.header() != served.port.header() {
            return translate(rx, self, served, packets);
        }
        let start = served.batch.offsets.mask == 0 && rx.begin.get().mask == 0;
        let swap = alone && start && self.region.same(&served.port.region);
        let mut next = packets.next();
        while let Some(packet) = next {
            next = rx.fill(&self.region, (served, swap), packet, &mut packets);
            if next.is_none() {
                return;
            }
            if !served.patience.give_way(rx) {
                break;
            }
        }
        let lost = usize::from(next.is_some()) + packets.count();
        rx.dropped.fetch_add(lost as u64, Relaxed);
    }
}
