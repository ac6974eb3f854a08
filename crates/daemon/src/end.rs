//! One end of a port: its rings, their end page, and who has them bound.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use unetmap::errno::{EBUSY, EINVAL, ENOMEM};
use unetmap_abi::*;
use unetmap_mem::{BufIdx, EndPage, LinePage, LineWords, Offsets, Pos, RingView, Slots, Span, Window};
use unetmap_sys::{Bell, Mapping, memfd};

use crate::refusal::{Refusal, refuse};
use crate::region::House;

/// A ring of a port.
pub(crate) struct PortRing {
    pub(crate) view: RingView,
    /// Its pair among all of the port's: host pairs come after the others.
    pub(crate) pair: usize,
    /// Index of its state in the end page.
    pub(crate) state: usize,
    /// Its line, on ports that have lines.
    pub(crate) line: Option<usize>,
    /// Receive rings of a line: the buffer for slots that are delivered empty.
    pub(crate) spare: Option<BufIdx>,
    /// Whether each slot has a buffer of its own, or borrows the sender's.
    owns: bool,
    /// Wakes who sleeps on this side.
    pub(crate) bell: Bell,
    /// Where in their buffers packets begin, and how many bytes of each received ones leave free.
    pub(crate) offsets: Offsets,
    pub(crate) headroom: u32,
    binders: u32,
    exclusive: bool,
}

/// How many rings, and how large.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndShape {
    pub(crate) tx_rings: u16,
    pub(crate) rx_rings: u16,
    /// Host rings, which come after the others; only interfaces have them.
    pub(crate) host_tx_rings: u16,
    pub(crate) host_rx_rings: u16,
    pub(crate) tx_slots: Slots,
    pub(crate) rx_slots: Slots,
}

impl EndShape {
    /// The shape of the other end of a pipe.
    pub(crate) fn mirrored(self) -> EndShape {
        EndShape {
            tx_rings: self.rx_rings,
            rx_rings: self.tx_rings,
            host_tx_rings: self.host_rx_rings,
            host_rx_rings: self.host_tx_rings,
            tx_slots: self.rx_slots,
            rx_slots: self.tx_slots,
        }
    }

    /// Transmit rings, those of the host among them.
    pub(crate) fn all_tx(self) -> u16 {
        self.tx_rings + self.host_tx_rings
    }

    /// Receive rings, those of the host among them.
    pub(crate) fn all_rx(self) -> u16 {
        self.rx_rings + self.host_rx_rings
    }

    /// All slots of all rings.
    pub(crate) fn all_slots(self) -> u32 {
        u32::from(self.all_tx()) * self.tx_slots.get() + u32::from(self.all_rx()) * self.rx_slots.get()
    }

    /// Slots of the longest ring.
    pub(crate) fn longest(self) -> Slots {
        if self.tx_slots.get() > self.rx_slots.get() { self.tx_slots } else { self.rx_slots }
    }

    /// Pairs of rings that are not the host's; some may have one direction only.
    pub(crate) fn nic_pairs(self) -> usize {
        usize::from(self.tx_rings.max(self.rx_rings))
    }

    /// Pairs of rings.
    pub(crate) fn pairs(self) -> usize {
        self.nic_pairs() + usize::from(self.host_tx_rings.max(self.host_rx_rings))
    }

    /// The pair of ring `id`, where `own` rings of that direction are not the host's.
    fn pair(self, id: u16, own: u16) -> usize {
        id.checked_sub(own).map_or(usize::from(id), |host| self.nic_pairs() + usize::from(host))
    }
}

/// By what the slots of an end's rings move.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// Nothing.
    None,
    /// Lines: the first of the transmit, and of the receive rings.
    Lines { tx: usize, rx: usize },
    /// The kernel, which fills buffers of the receive rings' own.
    Kernel,
    /// A switch, which does so too, and lines to it: the first of the transmit, and of the receive rings.
    Switch { tx: usize, rx: usize },
}

/// One end of a port.
pub(crate) struct End {
    pub(crate) shape: EndShape,
    pub(crate) page: EndPage,
    pub(crate) page_fd: OwnedFd,
    pub(crate) tx: Vec<PortRing>,
    pub(crate) rx: Vec<PortRing>,
}

/// Which rings a session has bound: indexes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) tx: Vec<usize>,
    pub(crate) rx: Vec<usize>,
    pub(crate) exclusive: bool,
}

/// A new sealed memfd of `bytes` bytes, mapped.
pub(crate) fn shared_page(name: &str, bytes: usize) -> Result<(Window, OwnedFd), Refusal> {
    let made = memfd::create_sealed(name, bytes as u64)
        .and_then(|fd| Ok((Window::whole(Arc::new(Mapping::new(fd.as_fd(), bytes)?)), fd)));
    made.or_else(|e| refuse(ENOMEM, format!("no memory for a shared page: {e}")))
}

impl End {
    /// Makes the rings in `house`. On failure everything is given back.
    pub(crate) fn make(house: &mut House, shape: EndShape, way: Way) -> Result<End, Refusal> {
        let states = usize::from(shape.all_tx()) + usize::from(shape.all_rx());
        let (window, page_fd) = shared_page("unetmap-end", EndPage::bytes(states))?;
        let mut end = End { shape, page: EndPage::new(window), page_fd, tx: Vec::new(), rx: Vec::new() };
        match end.make_rings(house, way) {
            Ok(()) => Ok(end),
            Err(e) => {
                let found = end.buffers();
                end.drop_rings(house);
                house.reclaim(&found, &[]);
                Err(e)
            }
        }
    }

    fn make_rings(&mut self, house: &mut House, way: Way) -> Result<(), Refusal> {
        let shape = self.shape;
        let lines = match way {
            Way::Lines { tx, rx } | Way::Switch { tx, rx } => Some((tx, rx)),
            Way::None | Way::Kernel => None,
        };
        for id in 0..shape.all_tx() {
            let line = lines.map(|(tx, _)| tx + usize::from(id));
            let pair = shape.pair(id, shape.tx_rings);
            let ring = Self::ring(house, shape.tx_slots, id, 0, (usize::from(id), pair), line)?;
            self.tx.push(ring);
            house.fill_ring(&self.tx[usize::from(id)].view)?;
        }
        for id in 0..shape.all_rx() {
            let line = lines.map(|(_, rx)| rx + usize::from(id));
            let state = usize::from(shape.all_tx()) + usize::from(id);
            let pair = shape.pair(id, shape.rx_rings);
            let ring = Self::ring(house, shape.rx_slots, id, 1, (state, pair), line)?;
            self.rx.push(ring);
            let ring = &mut self.rx[usize::from(id)];
            if matches!(way, Way::Kernel | Way::Switch { .. }) {
                house.fill_ring(&ring.view)?;
                ring.owns = true;
            }
            if !matches!(way, Way::Kernel) {
                ring.spare = Some(house.take_buf()?);
            }
        }
        Ok(())
    }

    fn ring(
        house: &mut House,
        slots: Slots,
        id: u16,
        dir: u16,
        (state, pair): (usize, usize),
        line: Option<usize>,
    ) -> Result<PortRing, Refusal> {
        let bell = Bell::new().or_else(|e| refuse(ENOMEM, format!("no file descriptor for a bell: {e}")))?;
        let view = house.make_ring(slots, id, dir)?;
        Ok(PortRing {
            view,
            pair,
            state,
            line,
            spare: None,
            owns: dir == 0,
            bell,
            offsets: Offsets::NONE,
            headroom: 0,
            binders: 0,
            exclusive: false,
        })
    }

    /// Gives the ring objects back, not the buffers in them.
    pub(crate) fn drop_rings(&mut self, house: &mut House) {
        for ring in self.tx.drain(..).chain(self.rx.drain(..)) {
            house.drop_ring(ring.view.shape());
        }
    }

    /// Every index that this end's rings hold.
    pub(crate) fn buffers(&self) -> Vec<BufIdx> {
        let mut found = self.received();
        for ring in &self.tx {
            found.extend(House::positions(&ring.view).map(|p| ring.view.slots().buf_idx(p)));
        }
        found
    }

    /// The indexes in the receive rings: those that the program holds, which are lent or exchanged, and the spares.
    pub(crate) fn received(&self) -> Vec<BufIdx> {
        self.received_with(|_| true)
    }

    /// Those of them that are in no slot of the sender as well: exchanged ones, and the spares. The others are copies.
    pub(crate) fn exchanged(&self) -> Vec<BufIdx> {
        self.received_with(|flags| flags & NS_BUF_CHANGED != 0)
    }

    fn received_with(&self, wanted: impl Fn(u16) -> bool) -> Vec<BufIdx> {
        let mut found = Vec::new();
        for ring in &self.rx {
            found.extend(ring.spare);
            if ring.owns {
                found.extend(House::positions(&ring.view).map(|p| ring.view.slots().buf_idx(p)));
            } else if ring.binders > 0
                && let Some(held) = self.held(ring)
            {
                let slots = ring.view.slots();
                let held = slots.slots().walk(held).map(|p| slots.load(p));
                found.extend(held.filter(|slot| wanted(slot.flags)).map(|slot| slot.buf_idx));
            }
        }
        found
    }

    /// The slots of a receive ring that the program has not given back, as far as the end page tells.
    fn held(&self, ring: &PortRing) -> Option<Span> {
        let (from, to) = self.page.state(ring.state)?.positions(ring.view.slots().slots())?;
        Some(Span { from, to })
    }

    /// Which rings `register` selects, or why it cannot.
    pub(crate) fn select(&self, register: &NmreqRegister) -> Result<Binding, Refusal> {
        let (tx, rx) = (usize::from(self.shape.tx_rings), usize::from(self.shape.rx_rings));
        let (host_tx, host_rx) = (tx..self.tx.len(), rx..self.rx.len());
        let hosts = matches!(register.nr_mode, NR_REG_SW | NR_REG_NIC_SW | NR_REG_ONE_SW);
        if hosts && host_tx.is_empty() && host_rx.is_empty() {
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
            return refuse(EINVAL, "only transmit and only receive rings exclude each other");
        }
        if only == NR_TX_RINGS_ONLY {
            rx.clear();
        } else if only == NR_RX_RINGS_ONLY {
            tx.clear();
        }
        let exclusive = register.nr_flags & NR_EXCLUSIVE != 0;
        let binding = Binding { tx, rx, exclusive };
        for ring in self.bound(&binding) {
            if ring.exclusive || exclusive && ring.binders > 0 {
                let dir = if ring.view.shape().dir == 0 { "transmit" } else { "receive" };
                let id = ring.view.shape().id;
                return refuse(EBUSY, format!("{dir} ring {id} is in use, and one side wants it for itself"));
            }
        }
        Ok(binding)
    }

    /// The rings of `binding`.
    pub(crate) fn bound(&self, binding: &Binding) -> impl Iterator<Item = &PortRing> {
        binding.tx.iter().map(|&i| &self.tx[i]).chain(binding.rx.iter().map(|&i| &self.rx[i]))
    }

    /// Binds the rings for one more session; rings that nobody had bound are set to `(hwcur, hwtail)` as `start` says.
    pub(crate) fn bind(&mut self, binding: &Binding, start: impl Fn(&PortRing, bool) -> (Pos, Pos)) {
        let page = self.page.clone();
        for (ring, transmit) in self.selected(binding) {
            if ring.binders == 0 {
                let (hwcur, hwtail) = start(ring, transmit);
                if let Some(state) = page.state(ring.state) {
                    state.start(hwcur, hwtail);
                }
                ring.view.set_pointers(hwcur, hwtail);
            }
            ring.binders += 1;
            ring.exclusive = binding.exclusive;
            if let Some(state) = page.state(ring.state) {
                state.set_sharers(ring.binders);
            }
        }
    }

    /// Unbinds what a session had bound. A receive ring that nobody has bound any more hands back what its last owner
    /// had exchanged.
    pub(crate) fn unbind(&mut self, binding: &Binding, lines: Option<&LinePage>, peer: Option<&End>) {
        let page = self.page.clone();
        for (ring, transmit) in self.selected(binding) {
            ring.binders = ring.binders.saturating_sub(1);
            ring.exclusive = false;
            if let Some(state) = page.state(ring.state) {
                state.set_sharers(ring.binders);
            }
            let id = usize::from(ring.view.shape().id);
            let other = peer.and_then(|end| if transmit { end.rx.get(id) } else { end.tx.get(id) });
            if ring.binders == 0
                && !transmit
                && let Some(producer) = other
            {
                ring.finish(&page, lines, &producer.view);
            }
            // Whoever died may have moved slots, or taken back a bell, and woken nobody any more.
            if let Some(other) = other {
                other.bell.ring();
            }
            if ring.binders > 0 {
                ring.bell.ring();
            }
        }
    }

    /// The rings of `binding`, and whether each is for sending.
    pub(crate) fn selected(&mut self, binding: &Binding) -> impl Iterator<Item = (&mut PortRing, bool)> {
        let pick = |rings: &[usize], i: usize| rings.contains(&i);
        let tx = self.tx.iter_mut().enumerate().filter(move |(i, _)| pick(&binding.tx, *i)).map(|(_, r)| (r, true));
        let rx = self.rx.iter_mut().enumerate().filter(move |(i, _)| pick(&binding.rx, *i)).map(|(_, r)| (r, false));
        tx.chain(rx)
    }

    /// The rings that a session has bound, or is to have.
    pub(crate) fn bound_by(&self, binding: &Binding) -> impl Iterator<Item = &PortRing> {
        let (tx, rx) = (binding.tx.iter().map(|&i| &self.tx[i]), binding.rx.iter().map(|&i| &self.rx[i]));
        tx.chain(rx).collect::<Vec<_>>().into_iter()
    }

    /// The port has ended: whoever has it open is told at the next call, and woken if asleep.
    pub(crate) fn end_all(&self) {
        self.end_some(|_| true);
    }

    /// The same with some of the rings.
    pub(crate) fn end_some(&self, which: impl Fn(&PortRing) -> bool) {
        for ring in self.tx.iter().chain(&self.rx).filter(|ring| which(ring)) {
            if let Some(state) = self.page.state(ring.state) {
                state.end();
            }
            ring.bell.ring();
        }
    }

    /// The same for those who receive.
    pub(crate) fn end_receiving(&self) {
        for ring in &self.rx {
            if let Some(state) = self.page.state(ring.state) {
                state.end();
            }
            ring.bell.ring();
        }
    }

    /// Whether any ring is bound.
    pub(crate) fn in_use(&self) -> bool {
        self.tx.iter().chain(&self.rx).any(|ring| ring.binders > 0)
    }

    /// Frees every lock that the dead process with `lease` held; returns how many. Those who share the ring look again:
    /// they may have gone to sleep because it was locked.
    pub(crate) fn break_locks(&self, lease: u32) -> usize {
        let rings = self.tx.iter().chain(&self.rx);
        let broken = rings.filter(|ring| self.page.state(ring.state).is_some_and(|state| state.break_lock(lease)));
        broken.inspect(|ring| ring.bell.ring()).count()
    }
}

/// Pair `n` of these transmit and receive rings; the direction with fewer rings gives its first.
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
        self.binders
    }

    /// The words of the ring's line.
    pub(crate) fn words<'a>(&self, lines: Option<&'a LinePage>) -> Option<&'a LineWords> {
        lines?.words(self.line?)
    }

    /// Whether each slot has a buffer of its own.
    pub(crate) fn owns(&self) -> bool {
        self.owns
    }

    /// Where a ring stands for its first session: nothing of an earlier one's unsent or unread slots counts any more. What
    /// was sent along the line and not released is delivered (again).
    pub(crate) fn at_line(&self, lines: Option<&LinePage>, transmit: bool) -> (Pos, Pos) {
        let slots = self.view.slots().slots();
        let at = self.words(lines).and_then(|words| words.positions(slots));
        let at = at.unwrap_or(Span { from: Pos::ZERO, to: Pos::ZERO });
        if transmit { (at.to, slots.prev(at.from)) } else { (at.from, at.from) }
    }

    /// The last owner of a receive ring may have moved packets on by exchanging buffers, without giving the slots back:
    /// those up to the last exchanged one count as read.
    fn finish(&self, page: &EndPage, lines: Option<&LinePage>, producer: &RingView) {
        let (mine, slots) = (self.view.slots(), self.view.slots().slots());
        let Some(words) = self.words(lines) else { return };
        let Some(line) = words.positions(slots) else { return };
        let Some((_, hwtail)) = page.state(self.state).and_then(|state| state.positions(slots)) else { return };
        if !slots.between(line.from, hwtail, line.to) {
            return;
        }
        let limits = self.view.region().limits();
        let mut read = line.from;
        for p in slots.walk(Span { from: line.from, to: hwtail }) {
            let slot = mine.load(p);
            if slot.flags & NS_BUF_CHANGED != 0 {
                if limits.index_ok(slot.buf_idx) {
                    producer.slots().set_buf_idx(p, slot.buf_idx);
                    producer.slots().set_flags(p, slot.flags);
                }
                mine.set_flags(p, slot.flags & !NS_BUF_CHANGED);
                read = slots.next(p);
            } else if producer.slots().flags(p) & NS_BUF_CHANGED != 0 {
                // It died between handing the buffer back and giving back the slot.
                read = slots.next(p);
            }
        }
        words.release(read);
    }
}
