// SPDX-License-Identifier: BSD-2-Clause
//! Closing the sockets of an interface, and the frames that are lost with them.
//!
//! A program that has ended, or was killed, leaves frames behind. They are counted when it is certain that no program
//! gets them:
//!
//! ```text
//! the session is closed    slots of its transmit rings that were filled and not synced: the next session begins after
//!                          them
//! the socket is closed     frames of the receive ring that the program had and has not released; those in the socket's
//!                          rx ring; those in its tx ring that the kernel has not read
//! ```
//! The next session gets what a socket has that was not closed meanwhile, from the `head` of the last session on, also
//! if this was not synced any more. A frame that the program has moved to another ring counts in the one whose `head`
//! it has not passed.

use std::mem;

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{OWNED_BY_SYNC_LOOP, Pos, Span, XskRxRings};
use unetmap_sys::barrier;
use unetmap_sys::xdp::{Mark, Noted};

use super::Nic;
use super::packets::Packets;
use super::queue::{OpenQueue, offer};
use crate::endpoint::{PortRing, RingSelection};

impl Nic {
    /// Closes the sockets that no session has bound any more, and detaches from the interface after the last.
    pub(super) fn close_unused_sockets(&mut self) {
        if self.gone {
            return self.close_all();
        }
        self.close_unused_packets();
        // Frames that the host sends are redirected elsewhere before the sockets close.
        self.update_capture();
        let own = self.endpoint.shape.nic_pairs();
        let pairs = 0..self.queues.len();
        let silenced =
            pairs.clone().filter(|&pair| !self.endpoint.binds_pair(pair).1 && self.stop_receiving(pair)).count();
        let unused: Vec<usize> = pairs.filter(|&pair| self.endpoint.binds_pair(pair) == (false, false)).collect();
        let goes_on =
            self.stays.is_some() || (0..own).any(|pair| self.queues[pair].is_some() && !unused.contains(&pair));
        if silenced > 0 && goes_on {
            // Only then are all frames that were redirected to a socket in its ring.
            if let Err(e) = barrier::wait_for_readers() {
                tracing::debug!(name = self.name, "frames on their way to its sockets may be lost uncounted: {e}");
            }
        }
        if goes_on {
            self.add_to_account(
                unused.iter().filter(|pair| **pair < own).filter_map(|pair| self.queues[*pair].as_ref()),
            );
        }
        for pair in unused {
            if let Some(open) = self.queues[pair].take() {
                let rx = self.rings_of(pair).1.filter(|ring| !self.is_synced_by_loop(ring));
                self.lost = self.lost.plus(open.lost(rx));
            }
        }
        self.note_lost();
        let (nic, host) = self.queues.split_at(own);
        let (nic_idle, host_idle) = (nic.iter().all(Option::is_none), host.iter().all(Option::is_none));
        if nic_idle {
            // Frames lose the mark before the XDP program that accepts it is detached.
            self.host.set_mark(Mark::default());
            (self.xdp, self.xdp_config, self.frames_watch) = (None, None, None);
            (self.offloads, self.merging) = (None, None);
            if !self.packets.as_ref().is_some_and(Packets::is_open) {
                self.relay = None;
            }
            self.host.set_relayed(false);
        }
        match (nic_idle, host_idle) {
            (true, true) => self.host.detach(),
            (false, true) => self.host.remove(),
            (_, false) => {}
        }
    }

    /// Closes everything. In its new namespace the kernel has an interface that has gone at once, even if programs
    /// still have the port open.
    pub(super) fn close_all(&mut self) {
        self.packets.iter_mut().for_each(Packets::close);
        (self.xdp, self.offloads, self.merging) = (None, None, None);
        self.frames_watch = None;
        self.relay = None;
        self.host.detach();
        self.queues.iter_mut().for_each(|queue| *queue = None);
    }

    /// Ends the redirection of frames to a queue's socket; returns whether there was one.
    fn stop_receiving(&mut self, pair: usize) -> bool {
        let (xdp, queue) = match pair.checked_sub(self.endpoint.shape.nic_pairs()) {
            None => (self.xdp.as_deref(), pair),
            Some(host) => (self.host.xdp(), host),
        };
        let Some(open) = self.queues[pair].as_mut().filter(|open| open.in_xdp_map) else { return false };
        if let Some(xdp) = xdp
            && let Err(e) = xdp.remove(queue as u32)
        {
            tracing::debug!(name = self.name, queue, "the socket stays in the XDP program's map: {e}");
        }
        (open.in_xdp_map, open.served) = (false, None);
        true
    }

    /// Counts the frames that a session has left in transmit rings, if none has these bound any more.
    pub(super) fn count_unsent(&mut self, selection: &RingSelection) {
        let rings = selection.tx.iter().map(|&ring| &self.endpoint.tx[ring]).filter(|ring| ring.binders() == 0);
        let unsent = rings.filter_map(|ring| {
            let open = self.queues[ring.pair].as_ref().filter(|_| !self.is_synced_by_loop(ring))?;
            let (_, hwtail) = self.endpoint.state(ring.state)?.positions(ring.view.slots().slots())?;
            open.unsent(ring, hwtail)
        });
        self.lost.left_in_rings += unsent.sum::<u64>();
    }

    /// Releases what a session has released in receive rings and not synced, if none has these bound any more.
    pub(super) fn release_read(&self, selection: &RingSelection) {
        let rings = selection.rx.iter().map(|&ring| &self.endpoint.rx[ring]).filter(|ring| ring.binders() == 0);
        for ring in rings.filter(|ring| !self.is_synced_by_loop(ring)) {
            if let Some(receive) = self.queues[ring.pair].as_ref().and_then(|open| open.receive.as_ref()) {
                offer(receive, ring, Span { from: receive.next_fill(), to: read_by_program(receive, ring) });
            }
        }
    }

    /// Whether the positions of a program are in other memory than the ring.
    fn is_synced_by_loop(&self, ring: &PortRing) -> bool {
        self.endpoint.state(ring.state).is_some_and(|state| state.status() & OWNED_BY_SYNC_LOOP != 0)
    }

    /// Adds lost frames to the counts of the XDP program, before that ends.
    fn note_lost(&mut self) {
        let lost = mem::take(&mut self.lost);
        self.left_in_rings += lost.left_in_rings;
        if lost != Noted::default()
            && let Some(xdp) = &self.xdp
            && let Err(e) = xdp.note(lost)
        {
            tracing::warn!(name = self.name, "{lost:?} are in no counter: {e}");
        }
    }
}

impl OpenQueue {
    /// Frames of a transmit ring between those that the socket has and the program's `head`; `None` if that is invalid.
    fn unsent(&self, ring: &PortRing, hwtail: Pos) -> Option<u64> {
        let slots = ring.view.slots().slots();
        let from = self.send.as_ref()?.next_tx();
        let head = slots.pos(ring.view.raw_head()).filter(|head| slots.between(from, *head, hwtail))?;
        Some(packets(ring, Span { from, to: head }))
    }

    /// Frames that are lost when the socket is closed, which has the receive ring `rx`.
    fn lost(&self, rx: Option<&PortRing>) -> Noted {
        let unread = self.send.as_ref().map_or(0, |send| send.unread_packets());
        let held = rx.zip(self.receive.as_ref()).map_or(0, |(ring, receive)| {
            packets(ring, Span { from: read_by_program(receive, ring), to: receive.next_rx() })
        });
        let waiting = self.receive.as_ref().map_or(0, |receive| receive.packets_waiting());
        let left_in_rings = u64::from(unread) + held + u64::from(waiting);
        Noted { left_in_rings, no_room: self.statistics().rx_dropped, ..Noted::default() }
    }
}

/// The program's `head` in a receive ring, or the first slot that it has not synced if its `head` is invalid.
fn read_by_program(receive: &XskRxRings, ring: &PortRing) -> Pos {
    let slots = ring.view.slots().slots();
    let (from, to) = (receive.next_fill(), receive.next_rx());
    slots.pos(ring.view.raw_head()).filter(|head| slots.between(from, *head, to)).unwrap_or(from)
}

/// Number of packets that end in these slots.
fn packets(ring: &PortRing, span: Span) -> u64 {
    let slots = ring.view.slots();
    slots.slots().walk(span).filter(|p| slots.flags(*p) & NS_MOREFRAG == 0).count() as u64
}
