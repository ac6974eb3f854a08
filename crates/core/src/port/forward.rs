//! Forwarding: what a program gives back with `NS_FORWARD` goes on to the other side of its interface.
//!
//! ```text
//! receive ring of the interface --> host transmit ring: the port's own, or one that is opened for this alone
//! host receive ring ------------> transmit ring of the interface, if the port has all of them
//! ```
//! The sync that follows `head` over a packet appends it to the other ring, whose `head` it moves as the program would, and
//! exchanges buffers. So a program that sends on that ring itself has to look at its `head` after each sync. What finds no
//! room is dropped, and counted on the ring that it came from.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use unetmap_abi::{NR_FORWARD, NS_BUF_CHANGED, NS_FORWARD, NS_MOREFRAG, PortSpec, Rings};
use unetmap_mem::{Pos, SlotValue, Span, SyncGuard};
use unetmap_sys::clock::spin_hint;
use unetmap_sys::process;

use crate::port::open::interface_exists;
use crate::port::Port;
use crate::port::ring::Ring;
use crate::sync::{Effort, SyncRing, Trouble, WallTime, judge};

/// How often the other ring's lock is tried, in vain while somebody else is in a sync of it.
const TRIES: u32 = 20_000;

/// The host ring of a port that has none of its own, once it is needed; `None` inside: there can be none.
#[derive(Default)]
pub(crate) struct Forwarder(OnceLock<Option<Box<Port>>>);

/// Which of the packets that a program gives back go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Onward {
    /// None: the ring has no other side.
    #[default]
    Never,
    /// Those with `NS_FORWARD`, if the ring says `NR_FORWARD`.
    Marked,
    /// All.
    All,
}

/// What a sync calls with the slots that the program gave back, before it gives them to the kernel.
pub(crate) type Pass<'a> = &'a dyn Fn(Span);

impl SyncRing {
    /// Whether what the program gives back may go on to another ring.
    #[inline(always)]
    pub(crate) fn forwards(&self) -> bool {
        match self.onward {
            Onward::Never => false,
            Onward::Marked => self.view.flags() & NR_FORWARD != 0,
            Onward::All => true,
        }
    }

    /// The slots of the packet that begins at `at`, if all of them are before `end`.
    fn packet(&self, at: Pos, end: Pos) -> Option<u32> {
        let ring = self.view.slots();
        let mut lengths = ring.slots().walk(Span { from: at, to: end }).zip(1..);
        lengths.find(|(p, _)| ring.flags(*p) & NS_MOREFRAG == 0).map(|(_, n)| n)
    }

    /// Whether the packet that begins at `at` goes on; of several slots the first one says so.
    fn goes_on(&self, at: Pos) -> bool {
        self.onward == Onward::All || self.view.slots().flags(at) & NS_FORWARD != 0
    }

    /// Appends what goes on of `window`, which is part of `from`, as far as there is room; returns where that ends.
    fn append(&self, lease: u32, from: &SyncRing, window: Span) -> Option<Pos> {
        let (state, slots) = (self.state(), self.view.shape().slots);
        let _guard: SyncGuard<'_> = (0..TRIES).find_map(|_| {
            spin_hint();
            state.try_lock(lease, process::this_thread())
        })?;
        let (hwcur, hwtail) = state.positions(slots)?;
        let asked = judge(slots, hwcur, hwtail, self.view.raw_head(), self.view.raw_cur())?;
        let mut room = slots.distance(asked.head, hwtail);
        let (mut at, mut to) = (window.from, asked.head);
        let theirs = from.view.shape().slots;
        while at != window.to {
            // A packet of which the program gave back the first part only ends here.
            let Some(n) = from.packet(at, window.to) else {
                at = window.to;
                break;
            };
            if from.goes_on(at) {
                let Some(left) = room.checked_sub(n) else { break };
                room = left;
                for p in theirs.walk(Span { from: at, to: theirs.add(at, n) }) {
                    self.take(to, from, p);
                    to = slots.next(to);
                }
            }
            at = theirs.add(at, n);
        }
        if to != asked.head {
            if slots.between(asked.head, asked.cur, to) {
                self.view.set_cur(to);
            }
            self.view.set_head(to);
        }
        Some(at)
    }

    /// Slot `to` gets the packet of slot `p` of `from`, which gets its buffer.
    fn take(&self, to: Pos, from: &SyncRing, p: Pos) {
        let (mine, theirs) = (self.view.slots(), from.view.slots());
        let slot = theirs.load(p);
        let flags = slot.flags & NS_MOREFRAG;
        // Once in a turn of the loop: who dies before the window is given back forwards nothing twice.
        theirs.set_flags(p, slot.flags & !NS_FORWARD);
        if !self.view.region().limits().allow(slot) {
            // Nothing is sent of it, and it is counted, where the ring's own syncs judge.
            mine.set_len_flags(to, 0, flags);
        } else if self.view.offsets().mask == from.view.offsets().mask {
            let other = mine.buf_idx(to);
            mine.store(to, SlotValue { flags: flags | NS_BUF_CHANGED, ..slot });
            theirs.set_buf_idx(p, other);
            theirs.set_flags(p, NS_BUF_CHANGED);
        } else {
            let len = self.view.frame(to).copy_from(&from.view.frame(p), usize::from(slot.len));
            mine.set_len_flags(to, len as u16, flags);
        }
    }

    /// Counts what goes on of `window` and could not.
    #[cold]
    fn lose(&self, window: Span) {
        let ring = self.view.slots();
        let lost = ring.slots().walk(window).filter(|p| self.goes_on(*p)).count();
        self.state().dropped.fetch_add(lost as u64, Relaxed);
    }
}

impl Port {
    /// Syncs a ring whose packets may go on.
    #[cold]
    pub(crate) fn sync_forwarding(
        &self,
        ring: &Ring,
        lease: u32,
        effort: Effort,
        now: Option<WallTime>,
    ) -> Result<(), Trouble> {
        let way = self.way_on(ring);
        let pass = |window: Span| match way {
            Way::To(port, other) => port.pass(other, lease, &ring.inner, window),
            Way::Nowhere => ring.inner.lose(window),
            Way::Ignored => {}
        };
        let result = self.with_news(ring, || ring.inner.sync_passing(lease, effort, now, &pass));
        match way {
            Way::To(port, other) => result.and(port.sync_ring(other, lease, Effort::IfNeeded, now)),
            Way::Nowhere | Way::Ignored => result,
        }
    }

    /// Appends what goes on of `window` to the ring `to` of this port.
    fn pass(&self, to: &Ring, lease: u32, from: &SyncRing, window: Span) {
        let (mut left, mut in_vain) = (window, 0);
        while let Some(at) = to.inner.append(lease, from, left) {
            if at == left.to {
                return;
            }
            // Full. A sync has the kernel take what it can; if that makes no room the rest is lost.
            in_vain = if at == left.from { in_vain + 1 } else { 0 };
            left.from = at;
            if in_vain > 1 || self.sync_ring(to, lease, Effort::Full, None).is_err() {
                break;
            }
        }
        from.lose(left);
    }

    /// Where packets of a receive ring go on.
    fn way_on(&self, ring: &Ring) -> Way<'_> {
        let (own, id) = (self.register(), usize::from(ring.id()));
        let host_of = |rings: u16| move |ring: &&Ring| ring.id() >= rings;
        if let Some(n) = id.checked_sub(own.nr_rx_rings.into()) {
            let nic: Vec<&Ring> = self.tx.iter().filter(|ring| !host_of(own.nr_tx_rings)(ring)).collect();
            return match pick(&nic, n) {
                Some(to) if nic.len() == usize::from(own.nr_tx_rings) => Way::To(self, to),
                _ => Way::Ignored,
            };
        }
        let host: Vec<&Ring> = self.tx.iter().filter(host_of(own.nr_tx_rings)).collect();
        if let Some(to) = pick(&host, id) {
            return Way::To(self, to);
        }
        let opened = self.forwarder.0.get_or_init(|| self.open_host_ring());
        match opened.as_deref().and_then(|port| Some((port, port.tx.first()?))) {
            Some((port, to)) => Way::To(port, to),
            None => Way::Nowhere,
        }
    }

    /// A port of this process's on the interface's host transmit rings; there is none where the process, or this thread of
    /// it, has left the network namespace that it opened the interface in.
    fn open_host_ring(&self) -> Option<Box<Port>> {
        // The daemon asks nobody, least of all itself.
        if self.source.board.is_some() {
            return None;
        }
        let spec = PortSpec::parse_with(self.spec(), interface_exists).ok()?;
        let host = PortSpec { rings: Rings::Sw, flags: unetmap_abi::NR_TX_RINGS_ONLY, mem_id: self.mem_id(), ..spec };
        let port = Port::open(&host.to_string()).ok()?;
        self.same_region(&port).then(|| Box::new(port))
    }
}

/// The ring of number `n`, from the first again where there are fewer.
fn pick<'a>(rings: &[&'a Ring], n: usize) -> Option<&'a Ring> {
    rings.get(n % rings.len().max(1)).copied()
}

/// Where packets go on.
#[derive(Clone, Copy)]
enum Way<'a> {
    To(&'a Port, &'a Ring),
    /// There is no such ring; each packet that goes on is lost.
    Nowhere,
    /// Packets do not go on, and are given back as all others.
    Ignored,
}
