//! One thread's work: a pair of the interface's rings, and a pair of the host's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use unetmap::abi::NS_MOREFRAG;
use unetmap::{Error, Interest, Port, Ring, SlotRef};

use crate::filters::{Filter, Verdict};
use crate::packet::{HEAD, Packet};

/// How long a lane looks for packets before it sleeps, and how long it sleeps at most.
const SPIN: Duration = Duration::from_micros(50);
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// The shortest time that a look may take: the library then rests between looks at a fast stream.
const LOOK: Duration = Duration::from_micros(1);

/// What happened to packets from the wire; written by the lane, read by who reports.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) received: AtomicU64,
    pub(crate) passed: AtomicU64,
    /// By filter, in the order of the chain.
    pub(crate) stopped: [AtomicU64; 4],
    /// For the host, which had no room.
    pub(crate) lost: AtomicU64,
}

/// Adds, where nobody else does.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}

/// A lane.
pub(crate) struct Lane<'a> {
    pub(crate) wire: Port,
    pub(crate) host: Port,
    pub(crate) filters: Vec<Box<dyn Filter>>,
    pub(crate) counts: &'a Counts,
}

impl Lane<'_> {
    /// Works until `stop`.
    pub(crate) fn run(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let start = Instant::now();
        let mut idle_since = start;
        while !stop.load(Relaxed) {
            // Each poll sends what was handed over, gives back what was read, and takes what has come.
            self.wire.poll(Interest::RX, Some(LOOK))?;
            self.host.poll(Interest::RX, Some(Duration::ZERO))?;
            let inwards = self.clean(start.elapsed())?;
            let outwards = forward(&self.host.rx_rings()[0], &self.wire.tx_rings()[0]);
            if inwards | outwards {
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

    /// Takes packets from the wire through the chain, and what passes up to the host. Returns whether there were any.
    fn clean(&mut self, now: Duration) -> Result<bool, Error> {
        let Lane { wire, host, filters, counts } = self;
        let (rx, up, back) = (&wire.rx_rings()[0], &host.tx_rings()[0], &wire.tx_rings()[0]);
        let (mut n, mut passed, mut dropping, mut goes_on) = (0, 0, false, false);
        let mut room = up.window();
        for slot in rx.window() {
            n += 1;
            // The rest of a packet of several slots shares the fate of its first.
            if !goes_on {
                dropping = !judge(filters, counts, back, &slot, now);
            }
            goes_on = slot.flags() & NS_MOREFRAG != 0;
            if dropping {
                continue;
            }
            match room.next() {
                Some(free) => {
                    free.swap_from(&slot);
                    passed += 1;
                }
                // The host is slower than the wire: whoever comes last is lost, as on any interface.
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

    /// Sleeps until something comes from either side.
    fn sleep(&self) -> Result<(), Error> {
        let ports = [&self.wire, &self.host];
        for port in ports {
            if !port.arm(Interest::RX)?.is_none() {
                return Ok(());
            }
        }
        let fds: Vec<_> = ports.iter().flat_map(|port| port.wait_fds(Interest::RX)).collect();
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds, Some(&NAP));
        Ok(())
    }
}

/// What the chain says of a packet: whether it passes. An answer goes out at once, if there is room for it.
fn judge(filters: &mut [Box<dyn Filter>], counts: &Counts, back: &Ring, slot: &SlotRef<'_>, now: Duration) -> bool {
    let mut head = [0; HEAD];
    let len = usize::from(slot.len());
    let n = slot.frame().read(0, &mut head[..len.min(HEAD)]);
    let packet = Packet::new(&head[..n], len);
    for (filter, stopped) in filters.iter_mut().zip(&counts.stopped) {
        match filter.judge(&packet, now) {
            Verdict::Pass => continue,
            Verdict::Drop => {}
            Verdict::Answer(frame) => {
                if let Some(free) = back.window().next() {
                    let n = free.frame().write(0, &frame);
                    free.set_len_flags(n as u16, 0);
                    back.advance(1);
                }
            }
        }
        add(stopped, 1);
        return false;
    }
    true
}

/// Moves what one ring received to the other, by exchange of buffers. Returns whether there was anything.
fn forward(from: &Ring, to: &Ring) -> bool {
    let n = from.window().zip(to.window()).map(|(received, free)| free.swap_from(&received)).count() as u32;
    to.advance(n);
    from.advance(n);
    n > 0
}
