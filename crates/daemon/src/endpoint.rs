// SPDX-License-Identifier: BSD-2-Clause
//! An endpoint of a port: its rings, the endpoint state page, and which sessions have the rings bound.
//!
//! Pipes and mediated ports have two endpoints, every other port has one.

mod closing;
mod saved;

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};
use unetmap_abi::*;
use unetmap_core::errno::{EBUSY, EINVAL, ENXIO};
use unetmap_mem::{
    BufIdx, ChannelPage, ChannelWords, EndpointPage, Offsets, Pos, RingView, Span, SyncState, SyncStateRef,
};
use unetmap_sys::Doorbell;

use crate::offsets::OffsetLayout;
use crate::refusal::{Refusal, refuse, refuse_lack};
use crate::region::{RegionRecord, SharedPage};
use crate::shape::EndpointShape;

pub(crate) use saved::SavedEndpoint;

/// A ring of an endpoint.
pub(crate) struct PortRing {
    pub(crate) view: RingView,
    /// Its ring pair. Host pairs are numbered after the others.
    pub(crate) pair: usize,
    /// Index of its state in the endpoint state page.
    pub(crate) state: usize,
    /// Index of its channel, on ports that have channels.
    pub(crate) channel: Option<usize>,
    /// On a receive ring of a channel: the buffer for slots that are delivered without one.
    pub(crate) placeholder: Option<BufIdx>,
    /// Whether each slot has a buffer of its own. Slots of other rings hold the sender's buffers.
    owns_buffers: bool,
    /// Wakes the clients that wait on this ring.
    pub(crate) doorbell: RingDoorbell,
    /// Which sessions have the ring bound, and how: changed by the control thread alone, while a thread that opens or
    /// closes the interface reads it.
    binding: RingBinding,
}

/// See [`PortRing`].
#[derive(Default)]
struct RingBinding {
    /// Sessions that have the ring bound.
    binders: AtomicU32,
    exclusive: AtomicBool,
    /// Where packets begin in their buffers: bits of a slot's `ptr`, and the largest offset.
    offset_mask: AtomicU64,
    max_offset: AtomicU32,
    /// Bytes of each buffer that received packets leave free.
    headroom: AtomicU32,
}

/// How the slots of an endpoint's rings move.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DataPath {
    /// They do not move.
    None,
    /// Through channels. The fields are the first channel of the transmit and of the receive rings.
    Channels { tx: usize, rx: usize },
    /// Through the kernel, which fills the receive rings' own buffers.
    Kernel,
    /// Through channels to a switch, which fills the receive rings' own buffers. Fields as for `Channels`.
    Switch { tx: usize, rx: usize },
}

/// A ring's doorbell, which is made when it is first needed: nobody waits on the rings of an end that was never open.
#[derive(Default)]
pub(crate) struct RingDoorbell(OnceLock<Doorbell>);

impl RingDoorbell {
    /// Returns it; makes it if it does not exist.
    pub(crate) fn get(&self) -> Result<&Doorbell, Refusal> {
        if let Some(made) = self.0.get() {
            return Ok(made);
        }
        let made = Doorbell::new().or_else(|e| refuse_lack("no file descriptor for a doorbell", &e))?;
        Ok(self.0.get_or_init(|| made))
    }

    /// Returns it, if it exists.
    pub(crate) fn made(&self) -> Option<&Doorbell> {
        self.0.get()
    }

    /// Wakes those who wait.
    pub(crate) fn notify(&self) {
        self.0.get().into_iter().for_each(Doorbell::notify);
    }
}

impl From<Doorbell> for RingDoorbell {
    fn from(doorbell: Doorbell) -> RingDoorbell {
        RingDoorbell(OnceLock::from(doorbell))
    }
}

/// An endpoint state page.
struct StatePage {
    page: EndpointPage,
    fd: OwnedFd,
    /// Where in its file it begins.
    offset: u64,
}

impl From<SharedPage> for StatePage {
    fn from(SharedPage { range, fd, offset }: SharedPage) -> StatePage {
        StatePage { page: EndpointPage::new(range), fd, offset }
    }
}

/// An endpoint of a port.
pub(crate) struct Endpoint {
    pub(crate) shape: EndpointShape,
    /// Missing until the endpoint is first opened, if it was created closed.
    state_page: OnceLock<StatePage>,
    pub(crate) tx: Vec<PortRing>,
    pub(crate) rx: Vec<PortRing>,
}

/// The rings that a session has bound, as indexes into `tx` and `rx` of the endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingSelection {
    pub(crate) tx: Vec<usize>,
    pub(crate) rx: Vec<usize>,
    pub(crate) exclusive: bool,
}

impl Endpoint {
    /// Creates the rings in `region`. On failure everything is freed again.
    pub(crate) fn create(
        region: &mut RegionRecord,
        shape: EndpointShape,
        data_path: DataPath,
    ) -> Result<Endpoint, Refusal> {
        let states = region.shared_page("unetmap-state", Endpoint::state_bytes(shape))?;
        let endpoint = Endpoint::create_closed(region, shape, data_path)?;
        let _ = endpoint.state_page.set(states.into());
        let made = endpoint.rings().try_for_each(|ring| ring.doorbell.get().map(drop));
        match made {
            Ok(()) => Ok(endpoint),
            Err(e) => {
                endpoint.free(region);
                Err(e)
            }
        }
    }

    /// The same, without what only an open endpoint needs: [`Endpoint::open`] makes it. Not in the memory of a virtual
    /// machine's device.
    pub(crate) fn create_closed(
        region: &mut RegionRecord,
        shape: EndpointShape,
        data_path: DataPath,
    ) -> Result<Endpoint, Refusal> {
        let mut endpoint = Endpoint::without_rings(shape);
        match endpoint.create_rings(region, data_path) {
            Ok(()) => Ok(endpoint),
            Err(e) => {
                endpoint.free(region);
                Err(e)
            }
        }
    }

    /// Returns an endpoint of which only the shape is known.
    pub(crate) fn without_rings(shape: EndpointShape) -> Endpoint {
        Endpoint { shape, state_page: OnceLock::new(), tx: Vec::new(), rx: Vec::new() }
    }

    fn state_bytes(shape: EndpointShape) -> usize {
        EndpointPage::bytes(shape.all_rings() as usize)
    }

    /// Makes what a session that binds these rings needs, and the endpoint lacks.
    pub(crate) fn open(&self, selection: &RingSelection) -> Result<(), Refusal> {
        self.make_states()?;
        self.bound(selection).try_for_each(|ring| ring.doorbell.get().map(drop))
    }

    /// Makes the endpoint state page, if it does not exist.
    pub(crate) fn make_states(&self) -> Result<(), Refusal> {
        if self.state_page.get().is_none() {
            let page = SharedPage::create("unetmap-state", Endpoint::state_bytes(self.shape))?;
            let _ = self.state_page.set(page.into());
        }
        Ok(())
    }

    /// The endpoint state page, if it exists.
    pub(crate) fn state_page(&self) -> Option<&EndpointPage> {
        self.state_page.get().map(|states| &states.page)
    }

    /// The file of the endpoint state page, and where in it the page begins.
    pub(crate) fn state_page_file(&self) -> Result<(BorrowedFd<'_>, u64), Refusal> {
        let states = self.state_page.get();
        states.map_or_else(|| refuse(ENXIO, "the port is not open"), |states| Ok((states.fd.as_fd(), states.offset)))
    }

    /// The state of a ring, by [`PortRing::state`]; `None` if the endpoint was never open.
    pub(crate) fn state(&self, index: usize) -> Option<&SyncState> {
        self.state_page()?.state(index)
    }

    /// The states of the transmit and of the receive ring of a pair, as far as there are such.
    pub(crate) fn states_of(&self, pair: usize) -> [Option<SyncStateRef>; 2] {
        [&self.tx, &self.rx].map(|rings| {
            let ring = rings.iter().find(|ring| ring.pair == pair)?;
            self.state_page()?.state_ref(ring.state)
        })
    }

    /// Frees the rings and their buffers. No other port of the region may hold any of these buffers.
    pub(crate) fn free(mut self, region: &mut RegionRecord) {
        let buffers = self.buffers();
        self.free_rings(region);
        region.free_bufs(&buffers);
    }

    fn create_rings(&mut self, region: &mut RegionRecord, data_path: DataPath) -> Result<(), Refusal> {
        let shape = self.shape;
        let channels = match data_path {
            DataPath::Channels { tx, rx } | DataPath::Switch { tx, rx } => Some((tx, rx)),
            DataPath::None | DataPath::Kernel => None,
        };
        for id in 0..shape.all_tx() {
            let channel = channels.map(|(tx, _)| tx + usize::from(id));
            let pair = shape.pair(id, shape.tx_rings);
            let ring = Self::create_ring(region, shape, (id, 0), (usize::from(id), pair), channel)?;
            self.tx.push(ring);
            region.fill_ring(&self.tx[usize::from(id)].view)?;
        }
        for id in 0..shape.all_rx() {
            let channel = channels.map(|(_, rx)| rx + usize::from(id));
            let state = usize::from(shape.all_tx()) + usize::from(id);
            let pair = shape.pair(id, shape.rx_rings);
            let ring = Self::create_ring(region, shape, (id, 1), (state, pair), channel)?;
            self.rx.push(ring);
            let ring = &mut self.rx[usize::from(id)];
            if matches!(data_path, DataPath::Kernel | DataPath::Switch { .. }) {
                region.fill_ring(&ring.view)?;
                ring.owns_buffers = true;
            }
            if !matches!(data_path, DataPath::Kernel) {
                ring.placeholder = Some(region.take_buf()?);
            }
        }
        Ok(())
    }

    fn create_ring(
        region: &mut RegionRecord,
        shape: EndpointShape,
        (id, dir): (u16, u16),
        (state, pair): (usize, usize),
        channel: Option<usize>,
    ) -> Result<PortRing, Refusal> {
        let slots = if dir == 0 { shape.tx_slots } else { shape.rx_slots };
        // All rings have states, in the order in which they are allocated.
        let wanted = shape.first_ring.map(|first| first.saturating_add(state as u32));
        let view = region.create_ring(slots, (id, dir), wanted)?;
        Ok(PortRing {
            view,
            pair,
            state,
            channel,
            placeholder: None,
            owns_buffers: dir == 0,
            doorbell: RingDoorbell::default(),
            binding: RingBinding::default(),
        })
    }

    /// Frees the ring objects, but not the buffers in their slots.
    pub(crate) fn free_rings(&mut self, region: &mut RegionRecord) {
        for ring in self.tx.drain(..).chain(self.rx.drain(..)) {
            region.free_ring(ring.view.shape());
        }
    }

    /// All rings: transmit rings first.
    pub(crate) fn rings(&self) -> impl Iterator<Item = &PortRing> {
        self.tx.iter().chain(&self.rx)
    }

    /// Returns every buffer index that the rings hold.
    pub(crate) fn buffers(&self) -> Vec<BufIdx> {
        let mut found = self.received(|_| true);
        for ring in &self.tx {
            found.extend(RegionRecord::positions(&ring.view).map(|p| ring.view.slots().buf_idx(p)));
        }
        found
    }

    /// Returns the indexes in the receive rings that no slot of the sender holds: exchanged buffers, and the
    /// placeholders. The other indexes are copies of the sender's.
    pub(crate) fn exchanged(&self) -> Vec<BufIdx> {
        self.received(|flags| flags & NS_BUF_CHANGED != 0)
    }

    /// Returns the placeholders and the indexes in the receive rings' slots: all where the ring owns its buffers, else
    /// those that the program holds and whose flags `include` accepts.
    fn received(&self, include: impl Fn(u16) -> bool) -> Vec<BufIdx> {
        let mut found = Vec::new();
        for ring in &self.rx {
            found.extend(ring.placeholder);
            if ring.owns_buffers {
                found.extend(RegionRecord::positions(&ring.view).map(|p| ring.view.slots().buf_idx(p)));
            } else if ring.binders() > 0
                && let Some(held) = self.held(ring)
            {
                let slots = ring.view.slots();
                let held = slots.slots().walk(held).map(|p| slots.load(p));
                found.extend(held.filter(|slot| include(slot.flags)).map(|slot| slot.buf_idx));
            }
        }
        found
    }

    /// The slots of a receive ring that the program has not released, according to the endpoint state page.
    fn held(&self, ring: &PortRing) -> Option<Span> {
        let (from, to) = self.state(ring.state)?.positions(ring.view.slots().slots())?;
        Some(Span { from, to })
    }

    /// Returns the rings that `register` selects, or why it cannot bind them.
    pub(crate) fn select(&self, register: &NmreqRegister) -> Result<RingSelection, Refusal> {
        let (tx, rx) = (usize::from(self.shape.tx_rings), usize::from(self.shape.rx_rings));
        let (host_tx, host_rx) = (tx..self.tx.len(), rx..self.rx.len());
        let selects_host = matches!(register.nr_mode, NR_REG_SW | NR_REG_NIC_SW | NR_REG_ONE_SW);
        if selects_host && host_tx.is_empty() && host_rx.is_empty() {
            return refuse(EINVAL, "this kind of port has no host rings");
        }
        let (mut tx, mut rx): (Vec<usize>, Vec<usize>) = match register.nr_mode {
            NR_REG_ALL_NIC | NR_REG_NULL => ((0..tx).collect(), (0..rx).collect()),
            NR_REG_NIC_SW => ((0..host_tx.end).collect(), (0..host_rx.end).collect()),
            NR_REG_SW => (host_tx.collect(), host_rx.collect()),
            NR_REG_ONE_NIC => one_pair(register.nr_ringid, "", 0..tx, 0..rx)?,
            NR_REG_ONE_SW => one_pair(register.nr_ringid, "host ", host_tx, host_rx)?,
            other => return refuse(EINVAL, format!("there is no mode {other} (NR_REG_*)")),
        };
        let only = register.nr_flags & (NR_TX_RINGS_ONLY | NR_RX_RINGS_ONLY);
        if only == NR_TX_RINGS_ONLY | NR_RX_RINGS_ONLY {
            return refuse(EINVAL, "NR_TX_RINGS_ONLY and NR_RX_RINGS_ONLY exclude each other");
        }
        if only == NR_TX_RINGS_ONLY {
            rx.clear();
        } else if only == NR_RX_RINGS_ONLY {
            tx.clear();
        }
        let exclusive = register.nr_flags & NR_EXCLUSIVE != 0;
        let selection = RingSelection { tx, rx, exclusive };
        for ring in self.bound(&selection) {
            if ring.binding.exclusive.load(Relaxed) || exclusive && ring.binders() > 0 {
                let dir = if ring.view.shape().dir == 0 { "transmit" } else { "receive" };
                let id = ring.view.shape().id;
                return refuse(
                    EBUSY,
                    format!("{dir} ring {id} is in use, and this or the other request is exclusive (NR_EXCLUSIVE)"),
                );
            }
        }
        Ok(selection)
    }

    /// The rings of `selection`, transmit rings first.
    pub(crate) fn bound(&self, selection: &RingSelection) -> impl Iterator<Item = &PortRing> {
        selection.tx.iter().map(|&i| &self.tx[i]).chain(selection.rx.iter().map(|&i| &self.rx[i]))
    }

    /// Binds the rings for one more session. A ring that no session had bound starts at the `(hwcur, hwtail)` that
    /// `start` returns.
    pub(crate) fn bind(&self, selection: &RingSelection, start: impl Fn(&PortRing) -> (Pos, Pos)) {
        for ring in self.bound(selection) {
            let state = self.state(ring.state);
            if ring.binders() == 0 {
                let (hwcur, hwtail) = start(ring);
                if let Some(state) = state {
                    state.reset(hwcur, hwtail);
                }
                ring.view.set_pointers(hwcur, hwtail);
            }
            ring.set_binders(ring.binders() + 1, selection.exclusive, state);
        }
    }

    /// Unbinds the rings of a session. A receive ring that no session has bound any more releases what its last session
    /// had read, and returns the buffers that this had exchanged.
    pub(crate) fn unbind(&self, selection: &RingSelection, channels: Option<&ChannelPage>, peer: Option<&Endpoint>) {
        for ring in self.bound(selection) {
            let state = self.state(ring.state);
            ring.set_binders(ring.binders().saturating_sub(1), false, state);
            state.into_iter().for_each(SyncState::forget_syncs);
            let id = usize::from(ring.view.shape().id);
            let peer_ring = peer.and_then(|end| if ring.transmits() { end.rx.get(id) } else { end.tx.get(id) });
            if ring.binders() == 0 && !ring.transmits() {
                ring.release_read(state, channels, peer_ring.map(|producer| &producer.view));
            }
            // A process that was killed may have moved slots, or cancelled a wakeup request, without notifying the
            // peer.
            if let Some(peer_ring) = peer_ring {
                peer_ring.doorbell.notify();
            }
            if ring.binders() > 0 {
                ring.doorbell.notify();
            }
        }
    }

    /// Marks all rings as ended: the next call of each client fails, and waiting clients are woken.
    pub(crate) fn end_all(&self) {
        self.end_some(|_| true);
    }

    /// Marks the rings that `which` selects as ended, as [`Endpoint::end_all`] does.
    pub(crate) fn end_some(&self, which: impl Fn(&PortRing) -> bool) {
        for ring in self.rings().filter(|ring| which(ring)) {
            if let Some(state) = self.state(ring.state) {
                state.mark_removed();
            }
            ring.doorbell.notify();
        }
    }

    /// Marks the receive rings as ended.
    pub(crate) fn end_receiving(&self) {
        self.end_some(|ring| ring.view.shape().dir == 1);
    }

    /// Whether any session has a ring bound.
    pub(crate) fn in_use(&self) -> bool {
        self.rings().any(|ring| ring.binders() > 0)
    }

    /// Whether sessions have the transmit ring of a pair bound, and its receive ring.
    pub(crate) fn binds_pair(&self, pair: usize) -> (bool, bool) {
        let is_bound = |rings: &[PortRing]| rings.iter().any(|ring| ring.pair == pair && ring.binders() > 0);
        (is_bound(&self.tx), is_bound(&self.rx))
    }

    /// Frees every ring lock that the exited process with this holder ID held, and returns how many there were. The
    /// other sessions of such a ring are woken, as they may be waiting because it was locked.
    pub(crate) fn break_locks(&self, holder: u32) -> usize {
        let broken = |ring: &&PortRing| self.state(ring.state).is_some_and(|state| state.break_lock(holder));
        self.rings().filter(broken).inspect(|ring| ring.doorbell.notify()).count()
    }

    /// Returns the layout that the rings of `selection` will have if `requested` is granted: rings in use keep theirs.
    pub(crate) fn validate_offsets(
        &self,
        selection: &RingSelection,
        requested: OffsetLayout,
    ) -> Result<OffsetLayout, Refusal> {
        let mut granted = requested;
        for ring in self.bound(selection).filter(|ring| ring.binders() > 0 && ring.offsets().mask != 0) {
            let Offsets { mask, max } = ring.offsets();
            if mask & requested.offsets.mask != requested.offsets.mask || max < requested.offsets.max {
                return refuse(EBUSY, format!("the ring is in use, with offsets of up to {max} (bits {mask:#x})"));
            }
            granted.offsets = ring.offsets();
        }
        Ok(granted)
    }

    /// Sets the offsets of the rings of `selection` that no session has bound, and of those in use without offsets.
    pub(crate) fn set_offsets(
        &self,
        selection: &RingSelection,
        layout: Option<OffsetLayout>,
        channels: Option<&ChannelPage>,
    ) {
        for ring in self.bound(selection) {
            let unbound = ring.binders() == 0;
            match layout {
                None if unbound => ring.set_offsets(Offsets::NONE, 0),
                Some(layout) if unbound || ring.offsets().mask == 0 => {
                    ring.set_offsets(layout.offsets, layout.headroom)
                }
                _ => {}
            }
            if let Some(layout) = layout.filter(|_| unbound) {
                // Slots of such a ring that were sent hold the offset of their packet.
                let channels = if ring.transmits() || ring.owns_buffers { channels } else { None };
                ring.set_initial_offset(layout.initial, channels);
            }
        }
    }
}

/// Returns pair `n` of these transmit and receive rings. A direction with fewer rings contributes its first.
fn one_pair(n: u16, kind: &str, tx: Range<usize>, rx: Range<usize>) -> Result<(Vec<usize>, Vec<usize>), Refusal> {
    let n = usize::from(n);
    if n >= tx.len() && n >= rx.len() {
        let (tx, rx) = (tx.len(), rx.len());
        return refuse(EINVAL, format!("there is no {kind}ring {n} ({tx} transmit, {rx} receive {kind}rings, from 0)"));
    }
    let one = |rings: Range<usize>| vec![if n < rings.len() { rings.start + n } else { rings.start }];
    Ok((one(tx), one(rx)))
}

impl PortRing {
    /// How many sessions have the ring bound.
    pub(crate) fn binders(&self) -> u32 {
        self.binding.binders.load(Relaxed)
    }

    /// Sets how many sessions have it bound, and whether the only one has it for itself.
    fn set_binders(&self, binders: u32, exclusive: bool, state: Option<&SyncState>) {
        self.binding.binders.store(binders, Relaxed);
        self.binding.exclusive.store(exclusive, Relaxed);
        if let Some(state) = state {
            state.set_session_count(binders);
        }
    }

    /// Where packets begin in their buffers.
    pub(crate) fn offsets(&self) -> Offsets {
        let RingBinding { offset_mask, max_offset, .. } = &self.binding;
        Offsets { mask: offset_mask.load(Relaxed), max: max_offset.load(Relaxed) }
    }

    /// Bytes of each buffer that received packets leave free.
    pub(crate) fn headroom(&self) -> u32 {
        self.binding.headroom.load(Relaxed)
    }

    fn transmits(&self) -> bool {
        self.view.shape().dir == 0
    }

    /// The positions of the ring's channel.
    pub(crate) fn channel_words<'a>(&self, channels: Option<&'a ChannelPage>) -> Option<&'a ChannelWords> {
        channels?.words(self.channel?)
    }

    /// Whether each slot has a buffer of its own.
    pub(crate) fn owns_buffers(&self) -> bool {
        self.owns_buffers
    }

    /// Returns the slots that were sent through the ring's channel and are not released yet, read once.
    pub(crate) fn sent(&self, channels: Option<&ChannelPage>) -> Option<Span> {
        self.channel_words(channels)?.positions(self.view.slots().slots())
    }

    /// Returns the `(hwcur, hwtail)` with which the ring starts for its first session. A transmit ring starts
    /// empty: slots that an earlier session filled and did not publish are dropped. A receive ring starts at the first
    /// slot that was published and not released, so those are delivered (again).
    pub(crate) fn start_position(&self, channels: Option<&ChannelPage>) -> (Pos, Pos) {
        let slots = self.view.slots().slots();
        let sent = self.sent(channels).unwrap_or(Span { from: Pos::ZERO, to: Pos::ZERO });
        if self.transmits() { (sent.to, slots.prev(sent.from)) } else { (sent.from, sent.from) }
    }

    fn set_offsets(&self, offsets: Offsets, headroom: u32) {
        self.binding.offset_mask.store(offsets.mask, Relaxed);
        self.binding.max_offset.store(offsets.max, Relaxed);
        self.binding.headroom.store(headroom, Relaxed);
        self.view.set_offset_mask(offsets.mask);
    }

    /// Writes the offset into all slots except those that were sent and not released.
    fn set_initial_offset(&self, initial: u32, channels: Option<&ChannelPage>) {
        let slots = self.view.slots().slots();
        let (sent, offsets) = (self.sent(channels), self.offsets());
        let is_sent =
            |p: &Pos| sent.is_some_and(|sent| slots.distance(sent.from, *p) < slots.distance(sent.from, sent.to));
        for p in RegionRecord::positions(&self.view).filter(|p| !is_sent(p)) {
            let ptr = self.view.slots().ptr(p);
            self.view.slots().set_ptr(p, offsets.put(ptr, initial));
        }
    }
}
