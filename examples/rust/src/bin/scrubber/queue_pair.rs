// SPDX-License-Identifier: BSD-2-Clause
//! The work of one thread: a pair of the interface's rings and a pair of host rings.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use unetmap::abi::NS_MOREFRAG;
use unetmap::{Error, Interest, Port, Ring, SlotRef};

use crate::filters::{Filter, Verdict};
use crate::packet::{HEADERS, Packet};

/// Idle time after which the thread sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Longest sleep; the thread checks the stop flag in between.
const MAX_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Timeout of the poll of the interface. Because it is not zero, the library pauses between polls of a fast stream.
const POLL_TIMEOUT: Duration = Duration::from_micros(1);

/// Counts of packets from the interface. Written by one thread, read by the reporting thread.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) received: AtomicU64,
    pub(crate) passed: AtomicU64,
    /// Packets dropped or answered, per filter, in the order of the chain.
    pub(crate) stopped: [AtomicU64; 4],
    /// Packets dropped because the host ring had no free slot.
    pub(crate) lost: AtomicU64,
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}

/// The ports and filters of one thread.
pub(crate) struct QueuePair<'a> {
    pub(crate) wire: Port,
    pub(crate) host: Port,
    pub(crate) filters: Vec<Box<dyn Filter>>,
    pub(crate) counts: &'a Counts,
}

impl QueuePair<'_> {
    /// Filters and forwards packets until `stop` is set.
    pub(crate) fn run(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let start = Instant::now();
        let mut idle_since = start;
        while !stop.load(Relaxed) {
            // Each poll sends filled slots, releases read slots, and receives new packets.
            self.wire.poll(Interest::RX, Some(POLL_TIMEOUT))?;
            self.host.poll(Interest::RX, Some(Duration::ZERO))?;
            let received = self.filter_received(start.elapsed())?;
            let sent = forward(&self.host.rx_rings()[0], &self.wire.tx_rings()[0]);
            if received | sent {
                self.host.txsync()?;
                self.wire.txsync()?;
                idle_since = Instant::now();
            } else if idle_since.elapsed() > SPIN {
                self.sleep()?;
                idle_since = Instant::now();
            }
        }
        Ok(())
    }

    /// Applies the filters to packets from the interface, and forwards those that pass to the host. Returns true if
    /// there were any.
    fn filter_received(&mut self, now: Duration) -> Result<bool, Error> {
        let QueuePair { wire, host, filters, counts } = self;
        let (rx, up, replies) = (&wire.rx_rings()[0], &host.tx_rings()[0], &wire.tx_rings()[0]);
        let (mut n, mut passed, mut dropping, mut continued) = (0, 0, false, false);
        let mut free_slots = up.available();
        for slot in rx.available() {
            n += 1;
            // The filters examine the first slot of a packet; the other slots are treated alike.
            if !continued {
                dropping = !passes(filters, counts, replies, &slot, now);
            }
            continued = slot.flags() & NS_MOREFRAG != 0;
            if dropping {
                continue;
            }
            match free_slots.next() {
                Some(free) => {
                    free.swap_from(&slot);
                    passed += 1;
                }
                // The host is slower than the interface: the packet is dropped, as on any full receive queue.
                None => {
                    add(&counts.lost, 1);
                    dropping = true;
                }
            }
        }
        up.advance(passed);
        rx.advance(n);
        add(&counts.received, n.into());
        add(&counts.passed, passed.into());
        Ok(n > 0)
    }

    /// Sleeps until a packet arrives from either side.
    fn sleep(&self) -> Result<(), Error> {
        let ports = [&self.wire, &self.host];
        for port in ports {
            if !port.arm(Interest::RX)?.is_none() {
                return Ok(());
            }
        }
        let fds: Vec<_> = ports.iter().flat_map(|port| port.wait_fds(Interest::RX)).collect();
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        // Errors are ignored: an interrupted sleep just ends early.
        let _ = poll(&mut fds, Some(&MAX_SLEEP));
        Ok(())
    }
}

/// Returns true if a packet passes all filters. Sends the reply of a filter at once, if there is a free slot.
fn passes(filters: &mut [Box<dyn Filter>], counts: &Counts, replies: &Ring, slot: &SlotRef<'_>, now: Duration) -> bool {
    let mut head = [0; HEADERS];
    let len = usize::from(slot.len());
    let n = slot.frame().read(0, &mut head[..len.min(HEADERS)]);
    let packet = Packet::new(&head[..n], len);
    for (filter, stopped) in filters.iter_mut().zip(&counts.stopped) {
        match filter.check(&packet, now) {
            Verdict::Pass => continue,
            Verdict::Drop => {}
            Verdict::Reply(frame) => {
                if let Some(free) = replies.available().next() {
                    let n = free.frame().write(0, &frame);
                    free.set_len_flags(n as u16, 0);
                    replies.advance(1);
                }
            }
        }
        add(stopped, 1);
        return false;
    }
    true
}

/// Forwards packets from one ring to another by exchanging buffers. Returns true if there were any.
fn forward(from: &Ring, to: &Ring) -> bool {
    let n = from.available().zip(to.available()).map(|(received, free)| free.swap_from(&received)).count() as u32;
    to.advance(n);
    from.advance(n);
    n > 0
}
