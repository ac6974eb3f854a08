// SPDX-License-Identifier: BSD-2-Clause
//! An open queue of an interface or of its host rings: the socket, and the positions of its rings.
//!
//! A new socket starts at position 0, with every buffer of the receive ring offered. The slots name all buffers of the
//! port, including those that the kernel holds, so closing the socket is enough to get these back. Only a device that
//! uses the buffers directly may still write into them for some milliseconds, until the kernel has released the queue.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use unetmap_mem::{EndpointPage, Pos, Span, TxFramesPage, UmemLayout, XskRxRings, XskTxRings};
use unetmap_sys::xsk::{self, SocketRings, Umem, UnboundXsk, Xsk};

use super::heartbeat::ServedQueue;
use crate::endpoint::PortRing;
use crate::region::RegionRecord;

/// A queue with its socket.
pub(crate) struct OpenQueue {
    pub(crate) socket: Xsk,
    pub(crate) rings: SocketRings,
    pub(super) send: Option<XskTxRings>,
    pub(super) receive: Option<XskRxRings>,
    /// Bytes of each buffer that received packets leave free.
    pub(crate) headroom: u32,
    /// Whether it is in the XDP program's map, so that packets are redirected to it.
    pub(crate) in_xdp_map: bool,
    /// While it is in the map of a program that stays.
    pub(super) served: Option<Arc<ServedQueue>>,
}

/// Whether the socket of a queue was closed since [`any_was_closed`] was asked.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether the socket of a queue was closed since the last call: another process may have a duplicate, and the queue
/// cannot be opened until that is closed, too.
pub(crate) fn any_was_closed() -> bool {
    CLOSED.swap(false, Ordering::AcqRel)
}

impl Drop for OpenQueue {
    fn drop(&mut self) {
        CLOSED.store(true, Ordering::Release);
    }
}

impl OpenQueue {
    /// Maps the rings of a socket for `tx`, whose words in `sent` begin at `first`, and for `rx`; offers all buffers of
    /// `rx` to the kernel, and binds the socket. Received packets leave `headroom` bytes of their buffers free.
    pub(crate) fn open(
        unbound: UnboundXsk<'_>,
        (umem, headroom): (&Umem, u32),
        tx: Option<(&PortRing, usize)>,
        rx: Option<&PortRing>,
        sent: &TxFramesPage,
    ) -> io::Result<OpenQueue> {
        let not_mapped = |e: io::Error| io::Error::other(format!("the rings of its socket cannot be mapped: {e}"));
        let rings = unbound.map_rings().map_err(not_mapped)?;
        if let Some((ring, first)) = tx {
            sent.clear(first, ring.view.slots().slots().get() as usize);
        }
        let (send, receive) = halves(&rings, (umem, headroom), tx, rx, sent);
        if let Some((ring, receive)) = rx.zip(receive.as_ref()) {
            RegionRecord::positions(&ring.view).for_each(|p| write_fill(receive, ring, p));
            receive.submit(ring.view.slots().slots().get());
        }
        let socket = unbound.bind()?;
        Ok(OpenQueue { socket, rings, send, receive, headroom, in_xdp_map: false, served: None })
    }

    /// The same of a socket that another process has opened. Its rings are used meanwhile, and nothing is written.
    pub(crate) fn of_bound(
        fd: OwnedFd,
        (umem, headroom): (&Umem, u32),
        tx: Option<(&PortRing, usize)>,
        rx: Option<&PortRing>,
        (sent, entries): (&TxFramesPage, (u32, u32)),
        in_xdp_map: bool,
    ) -> io::Result<OpenQueue> {
        let (socket, rings) = Xsk::of_bound(fd, umem.clone(), entries.0, entries.1)?;
        let (send, receive) = halves(&rings, (umem, headroom), tx, rx, sent);
        Ok(OpenQueue { socket, rings, send, receive, headroom, in_xdp_map, served: None })
    }

    /// The kernel's counters since the socket was opened.
    pub(crate) fn statistics(&self) -> xsk::Statistics {
        xsk::statistics(self.socket.as_fd()).unwrap_or_default()
    }
}

fn write_fill(receive: &XskRxRings, ring: &PortRing, p: Pos) {
    let slot = ring.view.slots().load(p);
    receive.write_fill(p, Some((slot.buf_idx, ring.offsets().of(slot.ptr))));
}

/// Offers the buffers of these slots of `ring` to the kernel, the first of which is the next that it gets.
pub(super) fn offer(receive: &XskRxRings, ring: &PortRing, span: Span) {
    let slots = ring.view.slots().slots();
    slots.walk(span).for_each(|p| write_fill(receive, ring, p));
    receive.submit(slots.distance(span.from, span.to));
}

/// The two halves of a socket: for the transmit ring, and for the receive ring.
fn halves(
    rings: &SocketRings,
    (umem, headroom): (&Umem, u32),
    tx: Option<(&PortRing, usize)>,
    rx: Option<&PortRing>,
    sent: &TxFramesPage,
) -> (Option<XskTxRings>, Option<XskRxRings>) {
    let count = (umem.bytes / umem.buffer as usize) as u32;
    let buffers = UmemLayout { size: umem.buffer, count, headroom };
    let send = tx.and_then(|(ring, first)| {
        let slots = ring.view.slots().slots();
        XskTxRings::new(&rings.tx, &rings.completion, slots, buffers, sent.clone(), first)
    });
    let receive = rx.and_then(|ring| XskRxRings::new(&rings.rx, &rings.fill, ring.view.slots().slots(), buffers));
    (send, receive)
}

/// Returns the `(hwcur, hwtail)` of a ring according to its socket.
pub(crate) fn socket_position(
    queues: &[Option<OpenQueue>],
    page: Option<&EndpointPage>,
    ring: &PortRing,
) -> (Pos, Pos) {
    let transmit = ring.view.shape().dir == 0;
    let slots = ring.view.slots().slots();
    // Only slots behind the last tail can be in transmission; a record of another slot was never handed to the kernel.
    let known = page.and_then(|page| page.state(ring.state)).and_then(|state| state.positions(slots));
    let since = |next| known.map_or(next, |(_, hwtail)| slots.next(hwtail));
    let open = queues.get(ring.pair).and_then(Option::as_ref);
    match open {
        Some(OpenQueue { send: Some(send), .. }) if transmit => {
            (send.next_tx(), slots.prev(send.first_incomplete(since(send.next_tx()))))
        }
        Some(OpenQueue { receive: Some(receive), .. }) if !transmit => (receive.next_fill(), receive.next_rx()),
        _ if transmit => (Pos::ZERO, slots.prev(Pos::ZERO)),
        _ => (Pos::ZERO, Pos::ZERO),
    }
}
