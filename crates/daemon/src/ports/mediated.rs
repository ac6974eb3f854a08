// SPDX-License-Identifier: BSD-2-Clause
//! Mediated interfaces: the daemon runs the interface's sockets for a program that may not, and copies packets.
//!
//! ```text
//! program == endpoint 0, channels, endpoint 1 == [thread for each ring pair] == interface, in a region of the daemon's
//! ```
//! The port is a pipe whose endpoint 1 the daemon has open. A thread exists for each ring pair that the program has
//! bound.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use unetmap_abi::{NR_ACCEPT_VNET_HDR, NR_REG_ONE_SW, NmreqRegister};

use super::key::MediatedKey;
use super::mediator::{LostPackets, MediatorThread, PairBytes, Prepared, RingPair, SavedLost};
use super::nic::{NicKey, refuse_header};
use super::snapshot::{PortSnapshot, RingSnapshot};
use crate::budget::{Amounts, Resource};
use crate::descriptors::invalid;
use crate::refusal::Refusal;
use crate::registry::{Port, Record};

/// A mediated interface.
pub(crate) struct Mediated {
    pub(super) key: MediatedKey,
    nic: NicKey,
    /// Bytes of the virtio-net header before each packet of the program.
    header: u8,
    /// Packets that were lost because of it.
    lost: Arc<LostPackets>,
    /// By number of the ring pair.
    bytes: Vec<Arc<PairBytes>>,
}

/// A mediated interface as the daemon hands it to its successor.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedMediated {
    nic: NicKey,
    header: u8,
    lost: SavedLost,
    /// Of the packets of each ring pair: sent, received.
    bytes: Vec<[u64; 2]>,
}

impl SavedMediated {
    /// The interface behind it.
    pub(super) fn nic(&self) -> NicKey {
        self.nic
    }

    pub(super) fn restore(
        self,
        record: Record,
        key: &MediatedKey,
        of_interface: Amounts,
    ) -> Result<Port<Mediated>, Refusal> {
        let SavedMediated { nic, header, lost, bytes } = self;
        if bytes.len() != record.endpoints[0].shape.pairs() {
            return invalid("the counters of a mediated interface");
        }
        let counted = |[out, back]: [u64; 2]| Arc::new(PairBytes { out: out.into(), back: back.into() });
        let (bytes, lost) = (bytes.into_iter().map(counted).collect(), Arc::new(LostPackets::restore(lost)));
        Ok(Mediated { key: key.clone(), nic, header, lost, bytes }.with(record, of_interface))
    }
}

/// Returns the amounts of threads, with the descriptors of the rings that they serve.
pub(super) fn thread_usage(threads: usize) -> Amounts {
    let threads = threads as u64;
    Amounts::of(Resource::Threads, threads).and(Amounts::of(Resource::Descriptors, THREAD_DESCRIPTORS * threads))
}

/// Of both sides: region, state page and second page, and two for each of two rings; a doorbell.
const THREAD_DESCRIPTORS: u64 = 2 * (3 + 4) + 1;

impl Mediated {
    /// A port without packets yet; see [`Mediated::with`].
    pub(super) fn new(
        key: MediatedKey,
        (nic, header): (NicKey, u8),
        record: Record,
        of_interface: Amounts,
    ) -> Port<Mediated> {
        let bytes = (0..record.endpoints[0].shape.pairs()).map(|_| Arc::default()).collect();
        Mediated { key, nic, header, lost: Arc::default(), bytes }.with(record, of_interface)
    }

    /// Adds it to a record. Its user is charged for the threads, and for the interface.
    fn with(self, record: Record, of_interface: Amounts) -> Port<Mediated> {
        let other_usage = thread_usage(record.endpoints[0].shape.pairs()).and(of_interface);
        Port { record: Record { other_usage, ..record }, kind: self }
    }

    /// The interface behind it.
    pub(crate) fn nic(&self) -> NicKey {
        self.nic
    }
}

impl Port<Mediated> {
    pub(super) fn key(&self) -> MediatedKey {
        self.key.clone()
    }

    /// The thread that serves a ring pair.
    pub(super) fn thread(&self, pair: RingPair) -> Option<&MediatorThread> {
        self.record.mediators.iter().find(|thread| thread.pair == pair)
    }

    /// Adds what a thread converts and counts with.
    pub(super) fn equip(&self, prepared: Prepared) -> Prepared {
        let (mode, number) = prepared.pair;
        let first = if mode == NR_REG_ONE_SW { self.record.endpoints[0].shape.nic_pairs() } else { 0 };
        let bytes = self.bytes.get(first + usize::from(number)).cloned().unwrap_or_default();
        prepared.with_header(self.header, self.lost.clone()).with_bytes(bytes)
    }

    /// Whether a program has it open.
    pub(super) fn is_open(&self) -> bool {
        self.record.endpoints[0].in_use()
    }

    /// The interface has gone: the program's next call fails.
    pub(super) fn end(&self) {
        self.record.endpoints[0].end_all();
    }
}

impl Port<Mediated> {
    /// Refuses a program that does not accept the header.
    pub(super) fn check_request(&self, request: &NmreqRegister) -> Result<(), Refusal> {
        if self.header > 0 && request.nr_flags & NR_ACCEPT_VNET_HDR == 0 {
            return refuse_header(self.header);
        }
        Ok(())
    }

    /// As a successor of the daemon needs it. The threads are paused, and have no part here.
    pub(super) fn save(&self) -> SavedMediated {
        let bytes = self.bytes.iter().map(|bytes| [&bytes.out, &bytes.back].map(|n| n.load(Ordering::Relaxed)));
        SavedMediated { nic: self.nic, header: self.header, lost: self.lost.save(), bytes: bytes.collect() }
    }

    /// `of_nic`: how the interface moves packets, and its rings.
    pub(super) fn snapshot(&self, mem_id: u16, of_nic: Option<(String, Vec<RingSnapshot>)>) -> PortSnapshot {
        let name = self.key.interface.clone();
        let mut port = PortSnapshot::new(name, "mediated", mem_id, (&self.record, 0));
        port.serial = Some(self.key.serial);
        for (ring, of_port) in port.rings.iter_mut().zip(self.record.endpoints[0].rings()) {
            let bytes =
                self.bytes.get(of_port.pair).map(|bytes| if ring.dir == "tx" { &bytes.out } else { &bytes.back });
            ring.bytes = bytes.map(|bytes| bytes.load(Ordering::Relaxed));
        }
        // Packets that find no room here wait in the interface's socket, which then has none for others.
        if let Some((manner, of_nic)) = of_nic {
            port.manner = Some(manner);
            port.rings.iter_mut().zip(of_nic).for_each(|(ring, of_nic)| ring.dropped += of_nic.dropped);
        }
        if self.header > 0 {
            port.lost = self.lost.by_reason();
            let (first, sum) = (port.rings.iter_mut().find(|ring| ring.dir == "tx"), port.lost.values().sum::<u64>());
            first.into_iter().for_each(|ring| ring.dropped += sum);
        }
        port
    }
}
