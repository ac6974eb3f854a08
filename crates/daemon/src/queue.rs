//! A queue of an interface, or of its companion, that somebody has bound: the socket, and where its rings stand.
//!
//! A new socket starts at 0, with every buffer of the receive ring offered. The rings' slots name all buffers that the
//! port has, also those that the kernel has, so that closing the socket is all it takes to get them back.

use std::io;
use std::os::fd::AsFd;

use unetmap::errno::ENOMEM;
use unetmap_mem::{Buffers, EndPage, Pos, ReceiveRings, SendRings, SentPage};
use unetmap_sys::xsk::{self, Umem, Xsk};

use crate::end::PortRing;
use crate::refusal::{Refusal, refuse};
use crate::region::House;

/// A queue with its socket.
pub(crate) struct OpenQueue {
    pub(crate) socket: Xsk,
    send: Option<SendRings>,
    receive: Option<ReceiveRings>,
    /// Bytes of each buffer that received packets leave free.
    pub(crate) headroom: u32,
    /// Whether packets are led to it.
    pub(crate) entered: bool,
}

impl OpenQueue {
    /// The rings of a new socket, which is the queue of `tx`, whose words in `sent` begin with `first`, and of `rx`.
    /// Received packets leave `headroom` bytes of their buffers free.
    pub(crate) fn start(
        socket: Xsk,
        (umem, headroom): (&Umem, u32),
        tx: Option<(&PortRing, usize)>,
        rx: Option<&PortRing>,
        sent: &SentPage,
    ) -> Result<OpenQueue, Refusal> {
        let no_rings = |e: io::Error| refuse(ENOMEM, format!("the rings of a queue cannot be mapped: {e}"));
        let count = (umem.bytes / umem.buffer as usize) as u32;
        let buffers = Buffers { size: umem.buffer, count, headroom };
        let mut open = OpenQueue { socket, send: None, receive: None, headroom, entered: false };
        if let Some((ring, first)) = tx {
            let slots = ring.view.slots().slots();
            sent.forget(first, slots.get() as usize);
            let (tx, completion) = xsk::map_send_rings(&open.socket, slots.get()).or_else(no_rings)?;
            open.send = SendRings::new(&tx, &completion, slots, buffers, sent.clone(), first);
        }
        if let Some(ring) = rx {
            let slots = ring.view.slots().slots();
            let (rx, fill) = xsk::map_receive_rings(&open.socket, slots.get()).or_else(no_rings)?;
            if let Some(receive) = ReceiveRings::new(&rx, &fill, slots, buffers) {
                for p in House::positions(&ring.view) {
                    let slot = ring.view.slots().load(p);
                    receive.offer(p, Some((slot.buf_idx, ring.offsets.of(slot.ptr))));
                }
                receive.publish(slots.get());
                open.receive = Some(receive);
            }
        }
        Ok(open)
    }

    /// What the kernel counted since it was opened.
    pub(crate) fn statistics(&self) -> xsk::Statistics {
        xsk::statistics(self.socket.as_fd()).unwrap_or_default()
    }
}

/// Where a ring stands, as its socket tells: `(hwcur, hwtail)`.
pub(crate) fn at_socket(queues: &[Option<OpenQueue>], page: &EndPage, ring: &PortRing, transmit: bool) -> (Pos, Pos) {
    let slots = ring.view.slots().slots();
    // Only slots behind the last tail can be on their way; what is written down for others was never handed over.
    let known = page.state(ring.state).and_then(|state| state.positions(slots));
    let since = |next| known.map_or(next, |(_, hwtail)| slots.next(hwtail));
    let open = queues.get(ring.pair).and_then(Option::as_ref);
    match open {
        Some(OpenQueue { send: Some(send), .. }) if transmit => {
            (send.next(), slots.prev(send.first_unfinished(since(send.next()))))
        }
        Some(OpenQueue { receive: Some(receive), .. }) if !transmit => (receive.next_offer(), receive.next_packet()),
        _ if transmit => (Pos::ZERO, slots.prev(Pos::ZERO)),
        _ => (Pos::ZERO, Pos::ZERO),
    }
}
