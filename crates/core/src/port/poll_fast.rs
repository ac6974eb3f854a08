//! The quick way of a poll that waits for a packet.
//!
//! ```text
//! one side    send . give back . read the clock . glance ............ receive, return
//!                 \                                                 /
//! other side       ..... glance . receive, return . program . send .
//! ```
//! In a round trip everything between the cache line that came and the one that goes counts, on both sides. It is kept to
//! what must be: the rest is done before, while nothing can have come yet.

use std::sync::atomic::Ordering::Relaxed;

use unetmap_abi::NR_NO_TX_POLL;
use unetmap_sys::clock;

use crate::port::Port;
use crate::sync::{Path, WallTime};

/// Glances before the poll goes on as usual: about a microsecond, a few round trips between cores.
const GLANCES: u32 = 64;
/// Short pauses between two of them. A glance takes the cache line away from the sender, who should have it for long enough.
const PAUSES: u32 = 3;

impl Port {
    /// The beginning of a poll for packets, at a port with one ring each way, both a pipe's and of which nothing is to be said:
    /// sends what was handed over, gives back what was read, and glances for what comes. `true`: there are packets.
    /// `false`: none came so soon, or something else is to be done; whatever was not done the poll does, from the start.
    #[inline(always)]
    pub(super) fn poll_quickly(&self) -> bool {
        let ([tx], [rx]) = (&self.tx[..], &self.rx[..]) else { return false };
        let (Path::PipeTx(to), Path::PipeRx(from)) = (&tx.inner.path, &rx.inner.path) else { return false };
        // Not in a stream of small batches, nor where the other side may need this very processor.
        if self.hold_back.load(Relaxed) != 0 || self.crowded.load(Relaxed) {
            return false;
        }
        let Some(lease) = self.enter_quickly() else { return false };
        let sends = self.register().nr_flags & NR_NO_TX_POLL == 0;
        if sends && !tx.inner.send_quickly(lease) && tx.inner.due(false) {
            return false;
        }
        // What is there already may be a stream's.
        if rx.inner.stirs() || !rx.inner.release_quickly(lease) {
            return false;
        }
        let now = WallTime::now();
        for _ in 0..GLANCES {
            from.line.words().fetch_to_wait();
            if rx.inner.stirs() {
                if sends {
                    // Most questions are answered, and most answers followed by another question.
                    to.line.words().fetch_to_publish();
                }
                return rx.inner.receive_quickly(lease, now);
            }
            (0..PAUSES).for_each(|_| clock::short_pause());
        }
        false
    }
}
