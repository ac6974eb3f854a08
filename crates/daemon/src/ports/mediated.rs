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
use unetmap_abi::{NR_ACCEPT_VNET_HDR, NR_REG_ONE_NIC, NR_REG_ONE_SW, NmreqRegister, PipeRole};
use unetmap_sys::link::Link;

use super::mediator::{Directions, LostPackets, MediatorThread, PairBytes, Prepared, RingPair, SavedLost};
use super::nic::{self, NicKey};
use super::snapshot::{PortSnapshot, RingSnapshot};
use super::{AnyPort, Daemon, EndpointKey, PortKey, Registry, mediators, pipe_rings};
use crate::budget::{Amounts, Resource};
use crate::caller::Caller;
use crate::descriptors::invalid;
use crate::endpoint::{Endpoint, PortRing};
use crate::refusal::Refusal;
use crate::region::{RegionMemory, Scope};
use crate::registry::{Port, Record};

/// Identifies a mediated interface.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct MediatedKey {
    pub(crate) scope: Scope,
    /// Its name when it was opened.
    pub(crate) interface: String,
    /// Distinguishes interfaces that had this name one after the other.
    pub(crate) serial: u64,
}

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
    pub(super) fn restore(
        self,
        record: Record,
        key: &MediatedKey,
        registry: &Registry,
    ) -> Result<Port<Mediated>, Refusal> {
        let SavedMediated { nic, header, lost, bytes } = self;
        if bytes.len() != record.endpoints[0].shape.pairs() {
            return invalid("the counters of a mediated interface");
        }
        let counted = |[out, back]: [u64; 2]| Arc::new(PairBytes { out: out.into(), back: back.into() });
        let (bytes, lost) = (bytes.into_iter().map(counted).collect(), Arc::new(LostPackets::restore(lost)));
        Ok(Mediated { key: key.clone(), nic, header, lost, bytes }.with(record, registry))
    }
}

/// Creates the port, and the interface's, which the daemon opens itself.
pub(super) fn create(
    daemon: &mut Daemon,
    link: &Link,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let shape = nic::new_shape(&daemon.nics, link, request, caller)?;
    let zero_copy = nic::expects_zero_copy(&mut daemon.nics.settings, link, caller);
    let (scope, sizes) =
        (daemon.admission.interface_scope(caller), daemon.knobs.mediated_sizes(zero_copy).with_pipe(&shape));
    let pipe = Amounts::endpoints(2, shape).and(Amounts::region(sizes.bufs.0));
    let interface = nic::usage_for_daemon(&daemon.knobs, shape, zero_copy);
    daemon.check_budget(scope, pipe.and(interface).and(thread_usage(shape.pairs())))?;
    let header = nic::header_of_link(&mut daemon.nics, link, caller);
    let nic = nic::create_for_daemon(daemon, link, shape, caller)?;
    let regions = &mut daemon.registry.regions;
    let created = regions.create_private(scope, &link.name, sizes, &mut RegionMemory::AsUsed).and_then(|region| {
        let record = daemon.registry.regions.existing_mut(region)?;
        let created = pipe_rings::create(record, scope, (shape, PipeRole::Master), true);
        created.inspect_err(|_| daemon.registry.free_region_if_unused(region))
    });
    let record = created.inspect_err(|_| daemon.release_if_unused(&PortKey::Nic(nic)))?;
    let key = MediatedKey { scope, interface: link.name.clone(), serial: nic.serial };
    let bytes = (0..shape.pairs()).map(|_| Arc::default()).collect();
    let port = Mediated { key: key.clone(), nic, header, lost: Arc::default(), bytes };
    let port = AnyPort::Mediated(port.with(record, &daemon.registry));
    daemon.registry.insert(PortKey::Mediated(key.clone()), port);
    Ok(PortKey::Mediated(key).into())
}

/// Returns the amounts of threads, with the descriptors of the rings that they serve.
pub(super) fn thread_usage(threads: usize) -> Amounts {
    let threads = threads as u64;
    Amounts::of(Resource::Threads, threads).and(Amounts::of(Resource::Descriptors, THREAD_DESCRIPTORS * threads))
}

/// Of both sides: region, state page and second page, and two for each of two rings; a doorbell.
const THREAD_DESCRIPTORS: u64 = 2 * (3 + 4) + 1;

/// Finds the port of an interface that programs of `scope` have open.
pub(super) fn find(registry: &Registry, nic: NicKey, scope: Scope) -> Option<&Port<Mediated>> {
    registry.all::<Mediated>().find(|port| port.nic == nic && port.key.scope == scope)
}

/// Starts and stops threads, so that exactly the ring pairs are served that the program has bound.
pub(super) fn update_threads(daemon: &mut Daemon, key: &MediatedKey) -> Result<(), Refusal> {
    let port_key = PortKey::Mediated(key.clone());
    let Some(port) = daemon.registry.get::<Mediated>(&port_key) else { return Ok(()) };
    let (endpoint, nic, header, lost) = (&port.record.endpoints[0], port.nic, port.header, port.lost.clone());
    let nic_pairs = endpoint.shape.nic_pairs();
    let ring_pair = |pair: usize| match pair.checked_sub(nic_pairs) {
        None => (NR_REG_ONE_NIC, pair as u16),
        Some(host) => (NR_REG_ONE_SW, host as u16),
    };
    let bound: Vec<(RingPair, Directions)> =
        (0..endpoint.shape.pairs()).map(|pair| (ring_pair(pair), bound_directions(endpoint, pair))).collect();
    let counters = port.bytes.clone();
    for ((pair, bound), bytes) in bound.into_iter().zip(counters) {
        let needed = (bound.tx || bound.rx).then_some(bound);
        let running = daemon.registry.get::<Mediated>(&port_key).and_then(|port| port.thread(pair));
        if running.map(|thread| thread.directions) == needed {
            continue;
        }
        // The new sockets are opened before the old ones are closed, so that the queue stays open and no packet is
        // lost.
        let program = EndpointKey { port: port_key.clone(), index: 1 };
        let interface = PortKey::Nic(nic).into();
        let prepared = needed
            .map(|needed| mediators::prepare(daemon, &program, &key.interface, &interface, (pair, pair.0), needed))
            .transpose()?;
        let port = daemon.registry.get_mut::<Mediated>(&port_key);
        let old: Vec<_> =
            port.into_iter().flat_map(|port| port.record.mediators.extract_if(.., |old| old.pair == pair)).collect();
        mediators::stop(daemon, old);
        if let Some(prepared) = prepared {
            let thread =
                mediators::start(daemon, &key.interface, prepared.with_header(header, lost.clone()).with_bytes(bytes))?;
            if let Some(port) = daemon.registry.get_mut::<Mediated>(&port_key) {
                port.record.mediators.push(thread);
            }
        }
    }
    Ok(())
}

/// The program has closed a session.
pub(super) fn session_closed(daemon: &mut Daemon, key: &MediatedKey, name: &str) {
    stop_threads_if_unused(daemon, key);
    let is_open =
        daemon.registry.get::<Mediated>(&PortKey::Mediated(key.clone())).is_some_and(Port::<Mediated>::is_open);
    if is_open && let Err(e) = update_threads(daemon, key) {
        tracing::warn!(name, "the rings that other sessions have bound cannot be served: {}", e.why);
    }
}

/// Stops the threads of a port that no program has open, and closes the interface.
pub(super) fn stop_threads_if_unused(daemon: &mut Daemon, key: &MediatedKey) {
    let port = daemon.registry.get_mut::<Mediated>(&PortKey::Mediated(key.clone()));
    let Some(port) = port.filter(|port| !port.is_open()) else { return };
    let (nic, threads) = (port.nic, std::mem::take(&mut port.record.mediators));
    mediators::stop(daemon, threads);
    daemon.release_if_unused(&PortKey::Nic(nic));
}

/// Returns which rings of a pair the program has bound.
fn bound_directions(endpoint: &Endpoint, pair: usize) -> Directions {
    let is_bound = |rings: &[PortRing]| rings.iter().any(|ring| ring.pair == pair && ring.binders() > 0);
    Directions { tx: is_bound(&endpoint.tx), rx: is_bound(&endpoint.rx) }
}

impl Mediated {
    /// Adds it to a record. Its user is charged for the threads, and for the interface, which is in `registry` already.
    fn with(self, record: Record, registry: &Registry) -> Port<Mediated> {
        let threads = thread_usage(record.endpoints[0].shape.pairs());
        let other_usage = threads.and(registry.usage_of_interface(self.nic));
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
    fn thread(&self, pair: RingPair) -> Option<&MediatorThread> {
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
    fn is_open(&self) -> bool {
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
            return nic::refuse_header(self.header);
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
