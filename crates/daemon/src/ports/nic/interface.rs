// SPDX-License-Identifier: BSD-2-Clause
//! An open interface: its sockets, and what is attached to it.

use std::collections::BTreeSet;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_core::control::binding::{BackendKind, BoundRing, FORWARD_ALL, FORWARD_MARKED, FRAGS};
use unetmap_core::errno::{EINVAL, ENOMEM, ENXIO};
use unetmap_mem::TxFramesPage;
use unetmap_sys::link::Link;
use unetmap_sys::netns::Netns;
use unetmap_sys::process;
use unetmap_sys::tcx::HostTxAction;
use unetmap_sys::xdp::{Account, Failed, Mark, Mode, Noted};
use unetmap_sys::xsk::{self, BUFFER_BYTES, BindMode, BusyPoll, Umem, Way};

use crate::broker::near_name;
use crate::budget::{Amounts, Resource};
use crate::endpoint::{DataPath, Endpoint, PortRing, RingSelection};
use crate::knobs::Admode;
use crate::ports::snapshot::PortSnapshot;
use crate::privileged::{self, PacketMemory, Undo, Xdp};
use crate::refusal::{Refusal, refuse, refuse_lack};
use crate::region::{DAEMON_UID, RegionKey, RegionRecord, Scope, SharedPage};
use crate::shape::EndpointShape;

use super::faults::{Found, FrameWatch};
use super::heartbeat::Heartbeat;
use super::host_rings::HostRings;
use super::packets::Packets;
use super::queue::{OpenQueue, socket_position};
use super::queue_count::QueueCounts;
use super::relay::Relay;
use super::settings::StoredFilter;
use super::staying::StayingProgram;
use super::surveyed::NicKey;

/// Bytes of an Ethernet header with one VLAN tag.
pub(super) const HEADER: u32 = 18;

/// How packets are received and sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct XdpConfig {
    pub(super) mode: Mode,
    pub(super) bind_mode: BindMode,
    /// Whether a packet can use several buffers.
    pub(super) frags: bool,
}

/// An interface that is open.
pub(crate) struct Nic {
    pub(crate) key: NicKey,
    pub(crate) name: String,
    pub(crate) scope: Scope,
    pub(in crate::ports) region: RegionKey,
    /// Shared with the registry while the interface is away.
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) sent: TxFramesPage,
    pub(in crate::ports) netns: Arc<Netns>,
    pub(super) umem: Umem,
    /// The region's file, and the byte at which the region begins there.
    pub(super) region_file: (OwnedFd, u64),
    /// Which frames enter the port; `None`: all.
    pub(super) filter: Option<Arc<StoredFilter>>,
    /// The busy polling of sockets that are opened from now on.
    pub(super) busy_poll: Option<BusyPoll>,
    /// The way of its packets that was set when it was opened.
    pub(super) way: Way,
    /// Whether all packets that programs release are forwarded to the other side (the knob `fwd`).
    pub(super) forwards: bool,
    pub(super) queues: Vec<Option<OpenQueue>>,
    pub(super) xdp: Option<Arc<Xdp>>,
    /// The program that stays at the interface, which [`Self::xdp`] is then.
    pub(super) stays: Option<Arc<StayingProgram>>,
    /// Disabled while the XDP program is attached.
    pub(super) offloads: Option<Undo>,
    /// GRO, disabled in generic mode.
    pub(super) merging: Option<Undo>,
    /// Its offloads, or those of its peer, could not be disabled, or are to stay.
    pub(super) offloads_stay_on: bool,
    /// Why frames arrive unfinished although its offloads were disabled.
    pub(super) unfinished: Option<String>,
    /// A fault that was found in its frames.
    pub(super) found: Option<Found>,
    /// While an XDP program is attached.
    pub(super) frames_watch: Option<Arc<FrameWatch>>,
    /// Whether it is the hidden end of a persistent port whose frames are whole, and come by way of a companion.
    pub(super) keeps_offloads: bool,
    /// The sockets are those of another interface, on the way to which the kernel completes frames.
    pub(super) relay: Option<Relay>,
    pub(super) heartbeat: Heartbeat,
    pub(super) host: HostRings,
    /// In place of AF_XDP sockets and an XDP program.
    pub(super) packets: Option<Packets>,
    /// In generic mode: the mark of frames that the XDP program passes to the stack.
    pub(super) mark: Mark,
    /// Known once a socket is open.
    pub(super) xdp_config: Option<XdpConfig>,
    /// Why zero copy was not tried, or failed.
    pub(super) copy_reason: Option<String>,
    pub(super) queue_counts: QueueCounts,
    /// Queues that the driver has only while an XDP program is attached.
    pub(super) added_queues: u32,
    /// The interface has other queues than the port has rings: for people.
    pub(super) other_queues: Option<String>,
    pub(super) admode: Admode,
    /// The NUMA node of its device.
    pub(in crate::ports) numa_node: Option<u32>,
    /// Whether it is up. Packets move only then.
    pub(super) up: bool,
    /// Bytes of a frame without its header at most; 0: not known.
    pub(super) mtu: u32,
    /// Whether it is the hidden end of a persistent port: nobody configures it, so its stack sends nothing; and the
    /// offloads of the other end were disabled when the pair was made.
    pub(super) is_hidden: bool,
    /// Frames that it had not sent when it was opened.
    pub(super) tx_dropped_before: u64,
    /// Whether it was deleted, or moved to another namespace.
    pub(super) gone: bool,
    /// Whether [`Nic::follow`] is due.
    pub(super) behind: bool,
    pub(super) near_gone: NearGone,
    /// Frames that are to be added to the counts of the XDP program.
    pub(super) lost: Noted,
    /// Frames of which the log of events is to be told.
    pub(super) left_in_rings: u64,
}

/// Near ends that were removed from outside, and of which the rest is to be removed.
#[derive(Default)]
pub(super) struct NearGone {
    pub(super) relay: bool,
    pub(super) host: bool,
}

impl Nic {
    /// Creates the rings, and the page of transmitted frames. The interface is not changed yet.
    pub(super) fn create(
        region: &mut RegionRecord,
        (key, scope): (NicKey, Scope),
        netns: Arc<Netns>,
        link: &Link,
        (shape, admode): (EndpointShape, Admode),
        tx_dropped_before: u64,
    ) -> Result<(Nic, SharedPage), Refusal> {
        let buffer = region.region.limits().buf_size;
        if !BUFFER_BYTES.contains(&buffer) {
            let (least, most) = (BUFFER_BYTES.start(), BUFFER_BYTES.end());
            return refuse(
                EINVAL,
                format!("an interface needs buffers of {least} to {most} bytes, not {buffer} (unetmap set buf_size)"),
            );
        }
        let sent_bytes = TxFramesPage::bytes(usize::from(shape.all_tx()) * shape.tx_slots.get() as usize);
        let page = SharedPage::create("unetmap-sent", sent_bytes)?;
        let endpoint = Arc::new(Endpoint::create(region, shape, DataPath::Kernel)?);
        if !link.up {
            tracing::info!(name = link.name, "the interface is down: no packets move before it is up");
        }
        let closed = Nic::closed((key, link.name.clone(), scope), netns, region, endpoint, (&page, random_mark()?))?;
        let nic = Nic { admode, up: link.up, mtu: link.mtu, tx_dropped_before, ..closed };
        Ok((nic, page))
    }

    /// An interface at which nothing is open or attached yet. `sent`: the page of its transmitted frames.
    pub(super) fn closed(
        (key, name, scope): (NicKey, String, Scope),
        netns: Arc<Netns>,
        region: &RegionRecord,
        endpoint: Arc<Endpoint>,
        (sent, mark): (&SharedPage, Mark),
    ) -> Result<Nic, Refusal> {
        let shape = endpoint.shape;
        let file = region.fd.try_clone().or_else(|e| refuse_lack("no descriptor for the region's file", &e))?;
        let region_file = (file, region.region.geometry().ifs.offset);
        let host = HostRings::new(netns.clone(), key.index, (shape.pairs() - shape.nic_pairs()) as u32);
        Ok(Nic {
            key,
            name,
            scope,
            region: region.key,
            endpoint,
            sent: TxFramesPage::new(sent.range.clone()),
            netns,
            umem: region.region.umem(),
            region_file,
            filter: None,
            busy_poll: None,
            way: Way::Auto,
            numa_node: None,
            forwards: false,
            queues: (0..shape.pairs()).map(|_| None).collect(),
            xdp: None,
            stays: None,
            offloads: None,
            merging: None,
            offloads_stay_on: false,
            unfinished: None,
            found: None,
            frames_watch: None,
            keeps_offloads: false,
            relay: None,
            heartbeat: Heartbeat::default(),
            host,
            packets: None,
            mark,
            xdp_config: None,
            copy_reason: None,
            queue_counts: QueueCounts::default(),
            added_queues: 0,
            other_queues: None,
            admode: Admode::Best,
            up: false,
            mtu: 0,
            is_hidden: false,
            tx_dropped_before: 0,
            gone: false,
            behind: false,
            near_gone: NearGone::default(),
            lost: Noted::default(),
            left_in_rings: 0,
        })
    }

    /// Whether it is the hidden end of a persistent port, whose other end keeps its offloads.
    pub(in crate::ports) fn keeps_offloads(&self) -> bool {
        self.keeps_offloads
    }

    /// Takes note of the program that stays at the interface, or that none does any more.
    pub(super) fn set_stays(&mut self, stays: Option<Arc<StayingProgram>>) {
        self.host.use_staying(stays.as_ref().and_then(|stays| stays.tcx.clone()));
        self.stays = stays;
        self.update_capture();
    }

    /// Opens the sockets that `selection` needs, and redirects packets to its receive rings.
    pub(super) fn open_sockets(&mut self, selection: &RingSelection) -> Result<(), Refusal> {
        if self.gone {
            return refuse(ENXIO, "the interface has gone");
        }
        if self.packets.is_some() {
            return self.open_packets(selection);
        }
        if self.opens_at_once() && self.open_at_once()? {
            return Ok(());
        }
        let own = self.endpoint.shape.nic_pairs();
        let pairs: BTreeSet<usize> = self.endpoint.bound(selection).map(|ring| ring.pair).collect();
        if pairs.first().is_some_and(|first| *first < own) && self.xdp.is_none() {
            let without = self.count_queues();
            if !self.is_hidden {
                self.disable_offloads();
            }
            self.attach()?;
            self.check_attached_queues(without)?;
        }
        if pairs.last().is_some_and(|last| *last >= own) {
            self.host.create(self.frames_mark(), &self.heartbeat)?;
        }
        for pair in pairs {
            if self.queues[pair].is_none() {
                self.open_queue(pair)?;
            }
        }
        for &ring in &selection.rx {
            let pair = self.endpoint.rx[ring].pair;
            self.watch_progress(pair).or_else(|e| refuse(EINVAL, format!("queue {pair}: {e}")))?;
            let (xdp, queue) = match pair.checked_sub(own) {
                None => (self.xdp.as_deref(), pair),
                Some(host) => (self.host.xdp(), host),
            };
            let Some(xdp) = xdp else { return refuse(ENXIO, "the interface has gone") };
            if let Some(open) = &mut self.queues[pair]
                && !open.in_xdp_map
            {
                xdp.insert(&open.socket, queue as u32).or_else(|e| refuse(EINVAL, format!("queue {queue}: {e}")))?;
                open.in_xdp_map = true;
            }
        }
        Ok(())
    }

    /// Sets where frames that the host sends go, according to the rings that are bound now.
    pub(super) fn update_capture(&mut self) {
        let shape = self.endpoint.shape;
        let (own_rx, host_rx) = self.endpoint.rx.split_at(shape.rx_rings.into());
        let mut own = self.endpoint.tx.iter().take(shape.tx_rings.into()).chain(own_rx);
        let bound = |ring: &PortRing| ring.binders() > 0;
        let is_shared = self.filter.is_some() || self.forwards;
        let is_closed = self.stays.as_ref().is_some_and(|stays| stays.is_closed());
        self.host.set_idle(if is_closed && !is_shared { HostTxAction::Drop } else { HostTxAction::Pass });
        self.host.set_capture(if host_rx.iter().any(bound) {
            HostTxAction::Redirect
        } else if (own.all(bound) || is_closed) && !is_shared {
            HostTxAction::Drop
        } else {
            HostTxAction::Pass
        });
    }

    /// Ends the host rings if interface `index`, which was removed, is the near end of their veth pair.
    pub(super) fn host_gone(&mut self, index: u32) {
        if !self.host.is_near(index) {
            return;
        }
        tracing::warn!(
            name = self.name,
            "{} was removed: the host rings of its interface end",
            near_name(self.key.index)
        );
        (self.near_gone.host, self.behind) = (true, true);
        let own = self.endpoint.shape.nic_pairs();
        self.endpoint.end_some(|ring| ring.pair >= own);
    }

    /// Ends the port, as the interface has gone: the programs' next calls fail, and waiting programs are woken. The
    /// caller has the rest closed.
    pub(super) fn end(&mut self) {
        self.gone = true;
        self.endpoint.end_all();
    }

    /// The interface's state or settings changed. Returns whether it was set up or down.
    pub(super) fn changed(&mut self, link: &Link) -> bool {
        tracing::debug!(name = link.name, up = link.up, carrier = link.carrier, mtu = link.mtu, "interface changed");
        let switched = self.up != link.up;
        if switched {
            let state = if link.up { "up" } else { "down: no packets move before it is up" };
            tracing::info!(name = link.name, "the interface is {state}");
            self.up = link.up;
        }
        self.mtu = link.mtu;
        self.frames_watch.iter().for_each(|watch| watch.set_mtu(link.mtu));
        let frags = self.xdp_config.is_none_or(|xdp_config| xdp_config.frags);
        if !frags && link.mtu + HEADER > self.umem.receive_bytes(0) {
            let (mtu, buffer) = (link.mtu, self.umem.receive_bytes(0));
            tracing::warn!(name = link.name, mtu, buffer, "frames longer than a buffer are dropped: set a smaller MTU");
        }
        self.behind = true;
        if !self.must_follow() {
            self.follow();
        }
        switched
    }

    /// Whether the kernel is to be asked something, since the interface changed: by [`Self::follow`].
    pub(super) fn must_follow(&self) -> bool {
        self.behind && (self.relay.is_some() || self.xdp.is_some() || self.host.has_veth())
    }

    /// Brings what belongs to the interface into its state, and wakes waiting programs: a link that was down may send
    /// packets now.
    pub(super) fn follow(&mut self) {
        self.behind = false;
        if mem::take(&mut self.near_gone.relay) {
            (self.relay, self.xdp) = (None, None);
        }
        if mem::take(&mut self.near_gone.host) {
            self.host.remove();
        }
        self.update_relay();
        if self.xdp.is_some() {
            self.compare_queues();
        }
        for ring in self.endpoint.tx.iter().chain(&self.endpoint.rx).filter(|ring| ring.binders() > 0) {
            ring.doorbell.notify();
        }
    }

    /// The memory of the port's packets.
    pub(super) fn memory(&self) -> PacketMemory<'_> {
        let (file, base) = &self.region_file;
        PacketMemory { umem: self.umem.clone(), file: file.as_fd(), base: *base }
    }

    /// The socket of a ring pair.
    pub(super) fn socket(&self, pair: usize) -> Option<BorrowedFd<'_>> {
        self.queues.get(pair)?.as_ref().map(|queue| queue.socket.as_fd())
    }

    /// Index of transmit ring `id`'s first word in the page of transmitted frames.
    pub(super) fn first_sent(&self, id: u16) -> usize {
        usize::from(id) * self.endpoint.shape.tx_slots.get() as usize
    }

    /// Whether a packet can use several buffers.
    pub(super) fn frags(&self) -> bool {
        self.xdp_config.is_some_and(|xdp_config| xdp_config.frags)
    }

    /// Returns how packets are received and sent, and whether the link is down, for people.
    pub(in crate::ports) fn describe_config(&self) -> String {
        let by_packets = self.packets.as_ref().filter(|packets| packets.is_open()).map(Packets::describe);
        let text = match (by_packets, self.xdp_config.map(|config| (config.mode, config.bind_mode))) {
            (Some(text), _) => text,
            (None, None) => return (if self.gone { "gone" } else { "not bound" }).into(),
            (None, Some(_)) if self.relay.is_some() => "by way of a veth, copy".into(),
            (None, Some((Mode::Native, BindMode::ZeroCopy))) => "native, zero copy".into(),
            (None, Some((Mode::Native, BindMode::Copy))) => "native, copy".into(),
            (None, Some((Mode::Generic, _))) => "generic, copy".into(),
        };
        // While the companion still follows, packets are sent to an interface that is down, and lost.
        match (self.gone, self.up || self.behind) {
            (true, _) => format!("gone ({text})"),
            (false, false) => format!("down ({text})"),
            (false, true) => text,
        }
    }

    /// [`FRAGS`] if packets of a ring pair can use several buffers, else 0.
    pub(super) fn features(&self, pair: usize) -> u32 {
        if pair >= self.endpoint.shape.nic_pairs() || self.frags() { FRAGS } else { 0 }
    }

    /// Bytes of the longest frame that a ring pair sends: what its slots hold and, but to the host, the interface's MTU
    /// allows; 0: not known.
    pub(super) fn longest_frame(&self, pair: usize) -> u32 {
        let slots = if self.packets.is_some() || self.features(pair) & FRAGS != 0 { xsk::MAX_FRAGS } else { 1 };
        let zero_copy = self.xdp_config.is_some_and(|config| config.bind_mode == BindMode::ZeroCopy);
        let slot = if zero_copy { self.umem.receive_bytes(0) } else { self.umem.buffer };
        let by_mtu = match self.mtu {
            _ if pair >= self.endpoint.shape.nic_pairs() => u32::MAX,
            0 => 0,
            mtu => mtu.saturating_add(HEADER),
        };
        by_mtu.min(slots * slot)
    }

    /// [`FORWARD_MARKED`], and [`FORWARD_ALL`] if all packets that programs release are forwarded.
    pub(in crate::ports) fn forwarding(&self) -> u32 {
        if self.forwards { FORWARD_MARKED | FORWARD_ALL } else { FORWARD_MARKED }
    }

    /// The kernel's counters for a ring pair since its socket was opened.
    pub(super) fn statistics(&self, pair: usize) -> xsk::Statistics {
        self.queues.get(pair).and_then(Option::as_ref).map(OpenQueue::statistics).unwrap_or_default()
    }

    /// Frames that the interface was given to send and dropped since it was opened, by any sender.
    pub(super) fn tx_dropped(&self) -> u64 {
        privileged::tx_dropped(&self.netns, self.key.index).saturating_sub(self.tx_dropped_before)
    }

    /// Whether any host ring is bound.
    pub(super) fn host_is_bound(&self) -> bool {
        self.queues[self.endpoint.shape.nic_pairs()..].iter().any(Option::is_some)
    }

    /// Frames that the host sent while no session had bound its rings.
    pub(super) fn host_dropped(&self) -> u64 {
        self.host.dropped()
    }
}

/// Returns the amounts of an interface: its endpoint, for each queue a socket and for its XDP and tcx programs their
/// descriptors.
pub(in crate::ports) fn usage(shape: EndpointShape) -> Amounts {
    Amounts::endpoints(1, shape).and(other_usage(shape))
}

pub(super) fn other_usage(shape: EndpointShape) -> Amounts {
    Amounts::of(Resource::Descriptors, shape.pairs() as u64 + PROGRAM_DESCRIPTORS)
}

/// Of the XDP program, those of host rings and those of a relay: programs, maps, links, and namespaces.
pub(super) const PROGRAM_DESCRIPTORS: u64 = 31;

impl Nic {
    /// The process may have exited between moving a position of the socket and recording it: the socket's position
    /// counts.
    pub(super) fn break_locks(&self, holder: u32) -> usize {
        let state_page = self.endpoint.state_page();
        // With packet sockets the positions are nowhere else.
        for ring in self.endpoint.rings().filter(|_| self.packets.is_none()) {
            if let Some(state) = self.endpoint.state(ring.state)
                && state.is_locked_by(holder)
            {
                let (hwcur, hwtail) = socket_position(&self.queues, state_page, ring);
                state.set_hwcur(hwcur);
                state.set_hwtail(hwtail);
            }
        }
        self.endpoint.break_locks(holder)
    }

    pub(super) fn bind(&mut self, selection: &RingSelection) {
        self.endpoint.bind(selection, |ring| socket_position(&self.queues, self.endpoint.state_page(), ring));
        self.update_capture();
    }

    pub(super) fn unbind(&mut self, selection: &RingSelection) {
        self.endpoint.unbind(selection, None, None);
        let pairs = selection.rx.iter().map(|&ring| self.endpoint.rx[ring].pair);
        let queues = pairs.filter_map(|pair| self.queues[pair].as_ref()?.served.as_ref());
        queues.for_each(|served| served.begin_again());
        self.count_unsent(selection);
        self.release_read(selection);
        self.update_capture();
    }

    pub(super) fn describe_ring<'a>(
        &'a self,
        ring: &'a PortRing,
        bound_ring: &mut BoundRing,
    ) -> Result<BorrowedFd<'a>, Refusal> {
        if let Some(packets) = &self.packets {
            return self.describe_packet_ring(packets, ring, bound_ring);
        }
        let Some(socket) = self.socket(ring.pair) else { return refuse(ENXIO, "the interface has gone") };
        if bound_ring.dir == 0 {
            bound_ring.placeholder_or_longest = self.longest_frame(ring.pair);
        }
        bound_ring.backend = BackendKind::Nic as u32;
        bound_ring.channel = self.first_sent(bound_ring.id) as u32;
        // What the daemon itself releases is forwarded only if the program beyond it requests that.
        let forwarding = if self.scope.uid == DAEMON_UID { 0 } else { self.forwarding() };
        bound_ring.features = self.features(ring.pair) | forwarding;
        bound_ring.headroom = self.headroom(ring.pair);
        Ok(socket)
    }

    /// Adds what only the interface knows to the description of a ring of the mediated port.
    pub(in crate::ports) fn describe_mediated_ring(&self, pair: usize, bound_ring: &mut BoundRing) {
        bound_ring.features = self.forwarding();
        if bound_ring.dir == 0 {
            bound_ring.placeholder_or_longest = self.longest_frame(pair);
        }
    }

    /// Adds what only the interface knows to its port's snapshot.
    pub(super) fn snapshot(&self, mut port: PortSnapshot) -> PortSnapshot {
        let rings = port.rings.iter_mut().zip(self.endpoint.rings()).filter(|(ring, _)| ring.dir == "rx");
        for (snapshot, ring) in rings {
            snapshot.dropped += self.statistics(ring.pair).rx_dropped;
            if ring.pair == self.endpoint.shape.nic_pairs() {
                // No host ring was bound then, so the first one stands for all.
                snapshot.dropped += self.host_dropped();
            }
            if ring.pair == 0 {
                snapshot.dropped += self.relay_dropped();
            }
        }
        // The kernel does not count them by queue.
        if let Some(first) = port.rings.first_mut().filter(|ring| ring.dir == "tx") {
            first.dropped += self.tx_dropped();
        }
        let by_packets = self.packets.as_ref();
        if let Some((received, sent)) = by_packets.map(Packets::lost) {
            let mut add = |dir, lost| {
                port.rings.iter_mut().find(|ring| ring.dir == dir).into_iter().for_each(|ring| ring.dropped += lost);
            };
            add("rx", received);
            add("tx", sent);
        }
        let unfinished = self.unfinished.as_ref().filter(|_| self.relay.is_some());
        let copied =
            by_packets.map(Packets::copy_reason).or_else(|| unfinished.cloned()).or_else(|| self.found_fault());
        let copied = copied.or_else(|| self.copy_reason().map(str::to_owned));
        let account = self.account();
        let not_taken = account.map(|Account { failed, .. }| Failed { noted: failed.noted.plus(self.lost), ..failed });
        PortSnapshot {
            not_taken,
            frames: account.and_then(|account| self.frames(&account)),
            manner: Some(self.describe_config()),
            copied,
            other_queues: self.other_queues.clone(),
            ..port
        }
    }
}

/// Returns a mark that no other program can guess.
fn random_mark() -> Result<Mark, Refusal> {
    let random = || process::random().or_else(|e| refuse(ENOMEM, format!("no random numbers: {e}")));
    let mut second = random()?.to_ne_bytes();
    // The EtherType: none that frames have, so that the kernel reads it again behind the mark.
    second[4..6].fill(0);
    Ok(Mark([random()?, u64::from_ne_bytes(second)]))
}

/// Error numbers of the kernel that callers distinguish.
pub(super) mod libc_errno {
    pub(in crate::ports::nic) const EPERM: i32 = 1;
    pub(in crate::ports::nic) const EBUSY: i32 = 16;
    pub(in crate::ports::nic) const EEXIST: i32 = 17;
    pub(in crate::ports::nic) const EAFNOSUPPORT: i32 = 97;
    pub(in crate::ports::nic) const ENETDOWN: i32 = 100;
    pub(in crate::ports::nic) const ENOBUFS: i32 = 105;
}
