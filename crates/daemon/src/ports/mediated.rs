// SPDX-License-Identifier: BSD-2-Clause
//! Mediated interfaces: the daemon runs the interface's sockets for a program that may not, and copies packets.
//!
//! ```text
//! program == endpoint 0, channels, endpoint 1 == [thread for each ring pair] == interface, in a region of the daemon's
//! ```
//! The port is a pipe whose endpoint 1 the daemon has open. A thread exists for each ring pair that the program has
//! bound.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use unetmap_abi::{NR_REG_ONE_SW, NmreqRegister};
use unetmap_mem::{Counter, CounterPage};

use super::key::MediatedKey;
use super::mediator::{LOST_COUNTERS, LostPackets, MediatorThread, PairBytes, Prepared, RingPair};
use super::nic::{NicKey, check_header};
use super::snapshot::PortSnapshot;
use crate::budget::{Amounts, Resource};
use crate::descriptors::invalid;
use crate::refusal::Refusal;
use crate::region::SharedPage;
use crate::registry::{Port, Record};

/// A mediated interface.
pub(crate) struct Mediated {
    pub(super) key: MediatedKey,
    nic: NicKey,
    /// Bytes of the virtio-net header before each packet of the program.
    header: u8,
    /// Packets that were lost because of it.
    lost: LostPackets,
    /// By number of the ring pair.
    bytes: Vec<PairBytes>,
}

/// A mediated interface as the daemon hands it to its successor.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedMediated {
    nic: NicKey,
    header: u8,
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
        Mediated::with(key.clone(), (self.nic, self.header), record, of_interface)
    }
}

/// Returns the amounts of threads, with the descriptors of the rings that they serve.
pub(super) fn thread_usage(threads: usize) -> Amounts {
    let threads = threads as u64;
    Amounts::of(Resource::Threads, threads).and(Amounts::of(Resource::Descriptors, THREAD_DESCRIPTORS * threads))
}

/// Returns the amounts of a port with so many ring pairs, besides its rings and those of the interface.
pub(super) fn usage(pairs: usize) -> Amounts {
    thread_usage(pairs).and(Amounts::of(Resource::Descriptors, 1))
}

fn counter_bytes(pairs: usize) -> usize {
    CounterPage::bytes(LOST_COUNTERS + 2 * pairs)
}

/// Makes the page of the counters of a port with so many ring pairs.
pub(super) fn counter_page(pairs: usize) -> Result<SharedPage, Refusal> {
    SharedPage::create("unetmap-counters", counter_bytes(pairs))
}

/// Of both sides: region, state page and second page, and two for each of two rings; a doorbell.
const THREAD_DESCRIPTORS: u64 = 2 * (3 + 4) + 1;

impl Mediated {
    /// A port with this record, which has its counters if the port existed before. Its user is charged for the threads,
    /// and for the interface.
    pub(super) fn with(
        key: MediatedKey,
        (nic, header): (NicKey, u8),
        record: Record,
        of_interface: Amounts,
    ) -> Result<Port<Mediated>, Refusal> {
        let pairs = record.endpoints[0].shape.pairs();
        let page = match record.counters {
            None => counter_page(pairs)?,
            Some(page) if page.range.len() == counter_bytes(pairs) => page,
            Some(_) => return invalid("the counters of a mediated interface"),
        };
        let counters = CounterPage::new(page.range.clone());
        let all: Vec<Counter> = (0..LOST_COUNTERS + 2 * pairs).map_while(|index| counters.counter(index)).collect();
        let Some((lost, bytes)) = all.split_first_chunk() else {
            return invalid("the counters of a mediated interface");
        };
        let bytes =
            bytes.chunks_exact(2).map(|pair| PairBytes { out: pair[0].clone(), back: pair[1].clone() }).collect();
        let other_usage = usage(pairs).and(of_interface);
        let kind = Mediated { key, nic, header, lost: LostPackets::of(lost.clone()), bytes };
        Ok(Port { record: Record { other_usage, counters: Some(page), ..record }, kind })
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
        let bytes = self.bytes.get(first + usize::from(number)).cloned();
        let states = self.record.endpoints[0].states_of(first + usize::from(number));
        prepared.with_header(self.header, self.lost.clone()).counted_in(bytes, states)
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
        check_header(self.header, request)
    }

    /// As a successor of the daemon needs it. The threads are paused, and have no part here.
    pub(super) fn save(&self) -> SavedMediated {
        SavedMediated { nic: self.nic, header: self.header }
    }

    /// `of_nic`: that of the interface.
    pub(super) fn snapshot(&self, mem_id: u16, of_nic: Option<PortSnapshot>) -> PortSnapshot {
        let name = self.key.interface.clone();
        let mut port = PortSnapshot::new(name, "mediated", mem_id, (&self.record, 0));
        port.serial = Some(self.key.serial);
        for (ring, of_port) in port.rings.iter_mut().zip(self.record.endpoints[0].rings()) {
            let bytes =
                self.bytes.get(of_port.pair).map(|bytes| if ring.dir == "tx" { &bytes.out } else { &bytes.back });
            ring.bytes = bytes.map(|bytes| bytes.load(Ordering::Relaxed));
        }
        // Packets that find no room here wait in the interface's socket, which then has none for others.
        if let Some(of_nic) = of_nic {
            (port.manner, port.not_taken, port.frames) = (of_nic.manner, of_nic.not_taken, of_nic.frames);
            port.rings.iter_mut().zip(of_nic.rings).for_each(|(ring, of_nic)| ring.dropped += of_nic.dropped);
        }
        if self.header > 0 {
            port.lost = self.lost.by_reason();
            let (first, sum) = (port.rings.iter_mut().find(|ring| ring.dir == "tx"), port.lost.values().sum::<u64>());
            first.into_iter().for_each(|ring| ring.dropped += sum);
        }
        port
    }
}
