// SPDX-License-Identifier: BSD-2-Clause
//! Forwarding: packets that a program releases with `NS_FORWARD` continue to the other side of the interface.
//!
//! ```text
//! receive ring of the interface --> host transmit ring: the port's own, or one that is opened for this purpose
//! host receive ring ------------> transmit ring of the interface, if the port has all of them
//! ```
//! The sync that processes `head` appends the packet to the other ring, moves that ring's `head` as the program would,
//! and exchanges buffers. A program that sends on that ring itself must therefore read its `head` again after each
//! sync. Packets without room are dropped, and counted on the ring that they came from.

use std::sync::atomic::Ordering::Relaxed;

use unetmap_abi::{NS_BUF_CHANGED, NS_FORWARD, NS_MOREFRAG, PortSpec, Rings};
use unetmap_mem::{Pos, SlotValue, Span, SyncGuard};
use unetmap_sys::clock::spin_hint;
use unetmap_sys::process;

use crate::control::client::interface_exists;
use crate::port::Port;
use crate::port::ring::Ring;
use crate::sync::{Effort, ForwardPolicy, SyncError, SyncRing, WallTime, validate};
use crate::tuning::{FORWARD_LOCK_TRIES, FORWARD_STALLS};

impl SyncRing {
    /// Returns the number of slots of the packet at `at`, if all of them are before `end`.
    fn packet_slots(&self, at: Pos, end: Pos) -> Option<u32> {
        let ring = self.view.slots();
        let mut lengths = ring.slots().walk(Span { from: at, to: end }).zip(1..);
        lengths.find(|(p, _)| ring.flags(*p) & NS_MOREFRAG == 0).map(|(_, n)| n)
    }

    /// Whether the packet at `at` is forwarded; of several slots the first one decides.
    fn is_forwarded(&self, at: Pos) -> bool {
        self.forward_policy == ForwardPolicy::All || self.view.slots().flags(at) & NS_FORWARD != 0
    }

    /// Appends the forwarded packets of `span`, a part of `from`, as far as there is room. Returns the end of the part
    /// that was processed.
    fn append(&self, holder: u32, from: &SyncRing, span: Span) -> Option<Pos> {
        let (state, slots) = (self.state(), self.view.shape().slots);
        let _guard: SyncGuard<'_> = (0..FORWARD_LOCK_TRIES).find_map(|_| {
            spin_hint();
            state.try_lock(holder, process::this_thread())
        })?;
        let (hwcur, hwtail) = state.positions(slots)?;
        let program = validate(slots, hwcur, hwtail, self.view.raw_head(), self.view.raw_cur())?;
        let mut room = slots.distance(program.head, hwtail);
        let (mut at, mut to) = (span.from, program.head);
        let theirs = from.view.shape().slots;
        while at != span.to {
            // The program released only the first part of this packet.
            let Some(n) = from.packet_slots(at, span.to) else {
                at = span.to;
                break;
            };
            if from.is_forwarded(at) {
                let Some(left) = room.checked_sub(n) else { break };
                room = left;
                for p in theirs.walk(Span { from: at, to: theirs.add(at, n) }) {
                    self.move_slot(to, from, p);
                    to = slots.next(to);
                }
            }
            at = theirs.add(at, n);
        }
        if to != program.head {
            if slots.between(program.head, program.cur, to) {
                self.view.set_cur(to);
            }
            self.view.set_head(to);
        }
        Some(at)
    }

    /// Moves the packet of slot `p` of `from` to slot `to`, in exchange for the buffer of `to`.
    fn move_slot(&self, to: Pos, from: &SyncRing, p: Pos) {
        let (mine, theirs) = (self.view.slots(), from.view.slots());
        let slot = theirs.load(p);
        let flags = slot.flags & NS_MOREFRAG;
        // Cleared at once: if this process is killed before the span is released, the packet is not forwarded twice.
        theirs.set_flags(p, slot.flags & !NS_FORWARD);
        if !self.view.region().limits().allow(slot) {
            // An empty slot: the sync of the other ring counts it as invalid.
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

    /// Counts the forwarded packets of `span` as dropped.
    #[cold]
    fn drop_forwarded(&self, span: Span) {
        let ring = self.view.slots();
        let dropped = ring.slots().walk(span).filter(|p| self.is_forwarded(*p)).count();
        self.state().dropped.fetch_add(dropped as u64, Relaxed);
    }
}

impl Port {
    /// Syncs a ring whose released packets may be forwarded.
    #[cold]
    pub(crate) fn sync_forwarding(
        &self,
        ring: &Ring,
        holder: u32,
        effort: Effort,
        now: Option<WallTime>,
    ) -> Result<(), SyncError> {
        let next_hop = self.next_hop(ring);
        let on_release = |span: Span| match next_hop {
            NextHop::Ring(port, other) => port.forward(other, holder, &ring.inner, span),
            NextHop::None => ring.inner.drop_forwarded(span),
            NextHop::NotForwarded => {}
        };
        let result = self.sync_renewing_monitors(ring, || ring.inner.sync_with_hook(holder, effort, now, &on_release));
        match next_hop {
            NextHop::Ring(port, other) => result.and(port.sync_ring(other, holder, Effort::IfNeeded, now)),
            NextHop::None | NextHop::NotForwarded => result,
        }
    }

    /// Appends the forwarded packets of `span` to the ring `to` of this port.
    fn forward(&self, to: &Ring, holder: u32, from: &SyncRing, span: Span) {
        let (mut left, mut stalls) = (span, 0);
        while let Some(at) = to.inner.append(holder, from, left) {
            if at == left.to {
                return;
            }
            // Full: a sync makes the kernel take what it can. If that makes no room, the rest is dropped.
            stalls = if at == left.from { stalls + 1 } else { 0 };
            left.from = at;
            if stalls > FORWARD_STALLS || self.sync_ring(to, holder, Effort::Full, None).is_err() {
                break;
            }
        }
        from.drop_forwarded(left);
    }

    /// Returns the ring that packets of a receive ring are forwarded to.
    fn next_hop(&self, ring: &Ring) -> NextHop<'_> {
        let (own, id) = (self.register(), usize::from(ring.id()));
        let host_of = |rings: u16| move |ring: &&Ring| ring.id() >= rings;
        if let Some(n) = id.checked_sub(own.nr_rx_rings.into()) {
            let nic: Vec<&Ring> = self.tx.iter().filter(|ring| !host_of(own.nr_tx_rings)(ring)).collect();
            return match pick(&nic, n) {
                Some(to) if nic.len() == usize::from(own.nr_tx_rings) => NextHop::Ring(self, to),
                _ => NextHop::NotForwarded,
            };
        }
        let host: Vec<&Ring> = self.tx.iter().filter(host_of(own.nr_tx_rings)).collect();
        if let Some(to) = pick(&host, id) {
            return NextHop::Ring(self, to);
        }
        let opened = self.host_ring_peer.get_or_init(|| self.open_host_ring());
        match opened.as_deref().and_then(|port| Some((port, port.tx.first()?))) {
            Some((port, to)) => NextHop::Ring(port, to),
            None => NextHop::None,
        }
    }

    /// Opens the interface's host transmit rings. `None` if this thread has left the network namespace in which the
    /// interface was opened.
    fn open_host_ring(&self) -> Option<Box<Port>> {
        // The daemon must not send a request to itself.
        if self.monitor_source.list.is_some() {
            return None;
        }
        let spec = PortSpec::parse_with(self.spec(), interface_exists).ok()?;
        let host = PortSpec { rings: Rings::Sw, flags: unetmap_abi::NR_TX_RINGS_ONLY, mem_id: self.mem_id(), ..spec };
        let port = Port::open(&host.to_string()).ok()?;
        self.same_region(&port).then(|| Box::new(port))
    }
}

/// Returns ring number `n`, modulo the number of rings.
fn pick<'a>(rings: &[&'a Ring], n: usize) -> Option<&'a Ring> {
    rings.get(n % rings.len().max(1)).copied()
}

/// The destination of forwarded packets.
#[derive(Clone, Copy)]
enum NextHop<'a> {
    /// This ring of this port.
    Ring(&'a Port, &'a Ring),
    /// The ring does not exist: forwarded packets are dropped and counted.
    None,
    /// Packets are not forwarded, and their slots are released as all others.
    NotForwarded,
}
