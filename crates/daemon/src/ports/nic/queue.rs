//! An open queue of an interface or of its host rings: the socket, and the positions of its rings.
//!
//! A new socket starts at position 0, with every buffer of the receive ring offered. The slots name all buffers of the
//! port, including those that the kernel holds, so closing the socket is enough to get these back.

use std::io;
use std::os::fd::AsFd;

use unetmap_core::errno::ENOMEM;
use unetmap_mem::{EndpointPage, Pos, TxFramesPage, UmemLayout, XskRxRings, XskTxRings};
use unetmap_sys::xsk::{self, Umem, Xsk};

use crate::endpoint::PortRing;
use crate::refusal::{Refusal, refuse};
use crate::region::RegionRecord;

/// A queue with its socket.
pub(crate) struct OpenQueue {
    pub(crate) socket: Xsk,
    send: Option<XskTxRings>,
    receive: Option<XskRxRings>,
    /// Bytes of each buffer that received packets leave free.
    pub(crate) headroom: u32,
    /// Whether it is in the XDP program's map, so that packets are redirected to it.
    pub(crate) in_xdp_map: bool,
}

impl OpenQueue {
    /// Maps the rings of a new socket for `tx`, whose words in `sent` begin at `first`, and for `rx`. Received packets
    /// leave `headroom` bytes of their buffers free.
    pub(crate) fn start(
        socket: Xsk,
        (umem, headroom): (&Umem, u32),
        tx: Option<(&PortRing, usize)>,
        rx: Option<&PortRing>,
        sent: &TxFramesPage,
    ) -> Result<OpenQueue, Refusal> {
        let no_rings = |e: io::Error| refuse(ENOMEM, format!("the rings of a queue cannot be mapped: {e}"));
        let count = (umem.bytes / umem.buffer as usize) as u32;
        let buffers = UmemLayout { size: umem.buffer, count, headroom };
        let mut open = OpenQueue { socket, send: None, receive: None, headroom, in_xdp_map: false };
        if let Some((ring, first)) = tx {
            let slots = ring.view.slots().slots();
            sent.clear(first, slots.get() as usize);
            let (tx, completion) = xsk::map_send_rings(&open.socket, slots.get()).or_else(no_rings)?;
            open.send = XskTxRings::new(&tx, &completion, slots, buffers, sent.clone(), first);
        }
        if let Some(ring) = rx {
            let slots = ring.view.slots().slots();
            let (rx, fill) = xsk::map_receive_rings(&open.socket, slots.get()).or_else(no_rings)?;
            if let Some(receive) = XskRxRings::new(&rx, &fill, slots, buffers) {
                for p in RegionRecord::positions(&ring.view) {
                    let slot = ring.view.slots().load(p);
                    receive.write_fill(p, Some((slot.buf_idx, ring.offsets.of(slot.ptr))));
                }
                receive.submit(slots.get());
                open.receive = Some(receive);
            }
        }
        Ok(open)
    }

    /// The kernel's counters since the socket was opened.
    pub(crate) fn statistics(&self) -> xsk::Statistics {
        xsk::statistics(self.socket.as_fd()).unwrap_or_default()
    }
}

/// Returns the `(hwcur, hwtail)` of a ring according to its socket.
pub(crate) fn socket_position(
    queues: &[Option<OpenQueue>],
    page: &EndpointPage,
    ring: &PortRing,
    transmit: bool,
) -> (Pos, Pos) {
    let slots = ring.view.slots().slots();
    // Only slots behind the last tail can be in transmission; a record of another slot was never handed to the kernel.
    let known = page.state(ring.state).and_then(|state| state.positions(slots));
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
