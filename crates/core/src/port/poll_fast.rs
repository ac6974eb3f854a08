// SPDX-License-Identifier: BSD-2-Clause
//! The fast path of a poll for packets.
//!
//! ```text
//! one side    send . release . read the clock . peek ............... receive, return
//!                 \                                                 /
//! other side       ..... peek . receive, return . program . send .
//! ```
//! In a round trip all work between the arriving and the departing cache line counts, on both sides. It is reduced to
//! the minimum: the rest is done before, while nothing can have arrived yet.

use std::sync::atomic::Ordering::Relaxed;

use unetmap_abi::NR_NO_TX_POLL;
use unetmap_sys::clock;

use crate::backend::RingBackend;
use crate::port::Port;
use crate::sync::WallTime;
use crate::tuning::{FAST_PEEKS, PAUSES_PER_PEEK};

impl Port {
    /// The start of a poll for packets, at a port with one ring each way, both of a pipe and with status 0: sends new
    /// slots, releases those that were read, and peeks for packets. Returns `true` if there are some. Returns `false`
    /// if none arrived soon, or something else has to be done; the normal poll then does all that has not been done.
    #[inline(always)]
    pub(super) fn poll_fast(&self) -> bool {
        let ([tx], [rx]) = (&self.tx[..], &self.rx[..]) else { return false };
        let (RingBackend::PipeTx(to), RingBackend::PipeRx(from)) = (&tx.inner.backend, &rx.inner.backend) else {
            return false;
        };
        // Not in a stream of small batches, nor if the peer may need this CPU.
        if self.rx_coalescing.load(Relaxed) != 0 || self.cpu_is_shared.load(Relaxed) {
            return false;
        }
        let Some(holder) = self.enter_fast() else { return false };
        let sends = self.register().nr_flags & NR_NO_TX_POLL == 0;
        if sends && !tx.inner.send_fast(holder) && tx.inner.needs_sync(false) {
            return false;
        }
        // Packets that have arrived already may belong to a stream.
        if rx.inner.peer_moved() || !rx.inner.release_fast(holder) {
            return false;
        }
        let now = WallTime::now();
        for _ in 0..FAST_PEEKS {
            from.channel.words().prefetch_for_wait();
            if rx.inner.peer_moved() {
                if sends {
                    // Most requests are replied to, and most replies are followed by another request.
                    to.channel.words().prefetch_for_publish();
                }
                return rx.inner.receive_fast(holder, now);
            }
            (0..PAUSES_PER_PEEK).for_each(|_| clock::short_pause());
        }
        false
    }
}
