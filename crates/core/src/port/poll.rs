// SPDX-License-Identifier: BSD-2-Clause
//! Waiting: polls for a while, then requests a wake-up, checks once more, and sleeps.
//!
//! A receiver that finds a few packets at every poll costs the sender a transfer of the channel's `prod` word for each
//! of them. Therefore, while packets arrive in a stream, the receiver delays its first check (rx coalescing), for
//! longer as long as the batches stay small. A check that finds nothing ends the delay at once, so a request that waits
//! for its reply is never delayed.
//!
//! At an interface, where the kernel delivers the packets, the receiver of a fast stream sleeps between two polls: the
//! kernel may need this CPU, and each poll takes the cache lines of the ring's words away from it.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use unetmap_abi::NR_NO_TX_POLL;
use unetmap_sys::clock::{self, spin_hint};
use unetmap_sys::event::{Epoll, PollFd, PollFlags, wait_readable};
use unetmap_sys::futex;
use unetmap_sys::wait::{NAP, SPIN, STREAM_SPIN, nap_pays};

use crate::backend::{Rx, WakeupSource};
use crate::error::Error;
use crate::port::{Interest, NOT_NOW, Port, Ring, many_rings};
use crate::sync::{Effort, WallTime};
use crate::tuning::{
    BUSY_RING_RETRY, LARGE_BATCH, MAX_COALESCING, PEEKS_PER_POLL, POLL_FDS_ON_STACK, POLLS_PER_CLOCK, REPLY_BATCH,
    SLEEP_LIMIT, SMALL_BATCH, SPINS_BEFORE_YIELD, YIELD_ACCEPTED,
};

/// Why a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SleepEnd {
    Doorbell,
    Timeout,
    Signal,
}

/// The set of a direction, and its rings.
pub(crate) type WaitSet<'a> = (&'a Epoll, &'a [Ring]);

impl Port {
    /// Returns the sets of the wanted directions, and those of these directions that have none.
    pub(crate) fn wait_sets(&self, want: Interest) -> ([Option<WaitSet<'_>>; 2], Interest) {
        let set = |wanted, is_tx, rings: &'_ [Ring]| if wanted { self.many.set(is_tx, rings) } else { None };
        let (tx, rx) = (set(want.tx(), true, &self.tx), set(want.rx(), false, &self.rx));
        let of = |single, direction| if single { direction } else { Interest::NONE };
        let single = of(want.tx() && tx.is_none(), Interest::TX) | of(want.rx() && rx.is_none(), Interest::RX);
        ([tx.map(|set| (set, &self.tx[..])), rx.map(|set| (set, &self.rx[..]))], single)
    }
}

impl Port {
    /// [`Port::poll`] without the fast paths for sending.
    #[inline(never)]
    pub(crate) fn wait(&self, want: Interest, timeout: Option<Duration>) -> Result<Interest, Error> {
        if want == Interest::RX && timeout != Some(Duration::ZERO) && self.poll_fast() {
            return Ok(Interest::RX);
        }
        // A poll that must not wait does not sleep either.
        let ready = if timeout == Some(Duration::ZERO) && self.sleeps_between_polls {
            self.poll_once(want, None)?
        } else {
            self.first_poll(want)?
        };
        if !ready.is_none() || timeout == Some(Duration::ZERO) {
            return Ok(ready);
        }
        self.wait_blocking(want, timeout)
    }

    /// Syncs what a poll syncs, without waiting, and returns what is ready.
    #[inline]
    pub(crate) fn poll_once(&self, want: Interest, now: Option<WallTime>) -> Result<Interest, Error> {
        self.poll_rings(want, now, |_| {})
    }

    /// The same; calls `readable` for each receive ring that is ready, if that is wanted.
    #[inline]
    pub(crate) fn poll_rings(
        &self,
        want: Interest,
        now: Option<WallTime>,
        mut readable: impl FnMut(&Ring),
    ) -> Result<Interest, Error> {
        let holder = self.enter()?;
        let mut ready = Interest::NONE;
        if holder == NOT_NOW {
            return Ok(ready);
        }
        // A poll also transmits, whatever it waits for, unless the program disabled that.
        if want.tx() || self.register.nr_flags & NR_NO_TX_POLL == 0 {
            for (number, ring) in self.tx.iter().enumerate() {
                if !want.tx() && self.many.tx.is_idle_tx(number) {
                    continue;
                }
                if !ring.inner.send_fast(holder)
                    && ring.inner.needs_sync(want.tx())
                    && let Err(error) = self.sync_ring(ring, holder, Effort::IfNeeded, now)
                {
                    return Err(self.explain(error, ring, "tx"));
                }
                if want.tx() && ring.inner.ready() {
                    ready |= Interest::TX;
                }
            }
        }
        if want.rx() {
            let mut numbers = 0;
            for (number, ring) in self.rx.iter().enumerate() {
                if self.many.rx.is_idle_rx(number) {
                    continue;
                }
                if ring.inner.needs_sync(true)
                    && let Err(error) = self.sync_ring(ring, holder, Effort::IfNeeded, now)
                {
                    return Err(self.explain(error, ring, "rx"));
                }
                if ring.inner.ready() {
                    ready |= Interest::RX;
                    readable(ring);
                    numbers |= 1 << (number % 64);
                }
            }
            if !self.many.rx.is_empty() {
                self.many.readable.store(numbers, Relaxed);
            }
        }
        Ok(ready)
    }

    /// Returns the rings of the wanted directions that can wake the program.
    pub(crate) fn wakeup_sources(&self, want: Interest) -> impl Iterator<Item = (&Ring, &dyn WakeupSource)> {
        self.wanted_rings(want).filter_map(|(ring, ..)| Some((ring, many_rings::wakeup_source(ring)?)))
    }

    /// Returns the rings of the wanted directions, with the direction's name and event.
    pub(crate) fn wanted_rings(&self, want: Interest) -> impl Iterator<Item = (&Ring, &'static str, Interest)> {
        let tx = self.tx.iter().filter(move |_| want.tx()).map(|ring| (ring, "tx", Interest::TX));
        tx.chain(self.rx.iter().filter(move |_| want.rx()).map(|ring| (ring, "rx", Interest::RX)))
    }

    /// Returns the receive rings that were ready at the last poll: of few rings all.
    #[inline]
    fn rx_readable(&self) -> impl Iterator<Item = &Ring> {
        let readable = if self.many.rx.is_empty() { u64::MAX } else { self.many.readable.load(Relaxed) };
        let rings = self.rx.iter().enumerate();
        rings.filter(move |(number, _)| readable & 1 << (number % 64) != 0).map(|(_, ring)| ring)
    }

    /// Makes the first check of a poll, after the rx coalescing delay in a stream of small batches.
    #[inline]
    fn first_poll(&self, want: Interest) -> Result<Interest, Error> {
        if !want.rx() {
            return self.poll_once(want, None);
        }
        let delay = self.rx_coalescing.load(Relaxed);
        let is_delayed = delay > 0 || self.sleeps_between_polls;
        if is_delayed && self.rx_readable().any(|ring| ring.inner.ready()) {
            return self.poll_once(want, None);
        }
        if self.sleeps_between_polls {
            return self.poll_after_sleep(want);
        }
        for _ in 0..delay {
            spin_hint();
        }
        let mut arrived = 0;
        let ready = self.poll_rings(want, None, |ring| arrived += ring.space())?;
        let next = if ready.rx() {
            next_coalescing(delay, arrived, || {
                self.rx_readable().any(|ring| ring.inner.backend.rx().is_some_and(Rx::peer_on_this_cpu))
            })
        } else {
            0
        };
        if next != delay {
            self.rx_coalescing.store(next, Relaxed);
        }
        Ok(ready)
    }

    /// Makes the first check at an interface, after a sleep if the stream is fast enough for one and not so fast that
    /// the ring could overflow.
    fn poll_after_sleep(&self, want: Interest) -> Result<Interest, Error> {
        if self.rx_coalescing.load(Relaxed) > 0 {
            std::thread::sleep(NAP);
        }
        let ready = self.poll_once(want, None)?;
        let now = clock::now_ns();
        let since = now.saturating_sub(self.last_poll.swap(now, Relaxed));
        let arrived: u64 = self.rx.iter().map(|ring| u64::from(ring.space())).sum();
        let room: u64 = self.rx.iter().map(|ring| u64::from(ring.num_slots())).sum();
        self.rx_coalescing.store(u32::from(nap_pays(arrived, since, room)), Relaxed);
        Ok(ready)
    }

    /// Polls until a wanted direction is ready, for at most `limit`, and never sleeps: for event loops, before
    /// [`Port::arm`].
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn spin(&self, want: Interest, limit: Duration) -> Result<Interest, Error> {
        Ok(self.spin_until(want, limit, false)?.unwrap_or(Interest::NONE))
    }

    /// Polls as [`Port::spin`] does. Returns `Ok(Err(start))` on timeout, with the time at which it began.
    /// `may_futex_wait`: the wait may be a few milliseconds longer.
    fn spin_until(
        &self,
        want: Interest,
        limit: Duration,
        may_futex_wait: bool,
    ) -> Result<Result<Interest, Instant>, Error> {
        // If the peer needs this CPU, polling cannot succeed.
        if may_futex_wait && self.yield_to_peer(want) {
            let ready = self.poll_once(want, None)?;
            if !ready.is_none() {
                return Ok(Ok(ready));
            }
        }
        // The clock costs as much as a poll, and a yield more than most waits take. Therefore polls several times
        // before the first yield, unless the last yield let another task run, which may be the peer.
        let rounds = if self.cpu_is_shared.load(Relaxed) { 1 } else { SPINS_BEFORE_YIELD };
        for _ in 0..rounds {
            let ready = self.poll_repeatedly(want)?;
            if !ready.is_none() {
                // A reply so soon comes from another CPU.
                if self.cpu_is_shared.load(Relaxed) {
                    self.cpu_is_shared.store(false, Relaxed);
                }
                return Ok(Ok(ready));
            }
        }
        let start = Instant::now();
        let (mut yielded, mut accepted) = (start, false);
        while yielded - start < limit {
            std::thread::yield_now();
            accepted |= yielded.elapsed() > YIELD_ACCEPTED;
            self.cpu_is_shared.store(accepted, Relaxed);
            let ready = self.poll_repeatedly(want)?;
            if !ready.is_none() {
                return Ok(Ok(ready));
            }
            accepted |= may_futex_wait && self.yield_to_peer(want);
            yielded = Instant::now();
        }
        Ok(Err(start))
    }

    /// If the peer of the wanted ring runs on this CPU, or was just woken and may need it, yields the CPU to it by a
    /// futex wait, until it moves or for a few milliseconds. This works where `sched_yield` does not: for a peer of
    /// another session. Only for a wait for one ring that has no other users. Returns whether it yielded. For event
    /// loops that wait for nothing else, before [`Port::arm`].
    pub fn yield_to_peer(&self, want: Interest) -> bool {
        let mut all = self.wakeup_sources(want);
        let (Some((ring, source)), None) = (all.next(), all.next()) else { return false };
        let (state, slots) = (ring.inner.state(), ring.inner.view.shape().slots);
        if state.session_count() <= 1
            && let Some((hwcur, hwtail)) = state.positions(slots)
        {
            let sends = ring.inner.backend.tx().is_some();
            let known = if sends { slots.next(hwtail) } else { hwtail };
            // A peer that has received everything moves no further.
            return (!sends || known != hwcur) && source.yield_to_peer(known);
        }
        false
    }

    /// Returns the number of the CPU on which the switch's thread has moved packets of a ring of this direction last,
    /// of the first ring that has one. A hint. `None`: the thread sleeps, or there is none. For programs that decide on
    /// which CPU they run.
    pub fn peer_cpu(&self, direction: Interest) -> Option<u32> {
        self.wakeup_sources(direction).find_map(|(_, source)| source.peer_cpu())
    }

    fn wait_blocking(&self, want: Interest, timeout: Option<Duration>) -> Result<Interest, Error> {
        let may_futex_wait = timeout.is_none_or(|t| t >= futex::WAIT_LIMIT);
        let start = match spin_duration(self.in_stream.load(Relaxed), self.last_wait_timed_out.load(Relaxed), timeout) {
            None => Instant::now(),
            Some(spin) => match self.spin_until(want, spin, may_futex_wait)? {
                Ok(ready) => {
                    self.update_stream_state(ready);
                    return Ok(ready);
                }
                Err(start) => start,
            },
        };
        // A timeout that overflows the clock is no timeout.
        let end = timeout.and_then(|t| start.checked_add(t));
        loop {
            self.request_wakeup(want);
            let ready = self.poll_once(want, None)?;
            if !ready.is_none() {
                self.update_stream_state(ready);
                return Ok(ready);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                // It has only polled, or was interrupted in between: the next wait may poll again.
                self.update_stream_state(Interest::NONE);
                return Ok(Interest::NONE);
            }
            if self.awaits_daemon() {
                if self.pause(left)? == SleepEnd::Signal {
                    return Ok(Interest::NONE);
                }
                continue;
            }
            if self.wakeup_sources(want).any(|(ring, _)| ring.inner.needs_sync(true)) {
                // Packets arrived, but another thread is syncing the ring and does not notify when it is done.
                std::thread::sleep(left.map_or(BUSY_RING_RETRY, |left| left.min(BUSY_RING_RETRY)));
                continue;
            }
            let end_of_sleep = self.sleep(want, left.map_or(SLEEP_LIMIT, |left| left.min(SLEEP_LIMIT)))?;
            let ready = self.poll_once(want, None)?;
            if end_of_sleep == SleepEnd::Doorbell && !ready.is_none() {
                self.wake_sharers(want);
            }
            if end_of_sleep == SleepEnd::Signal || !ready.is_none() {
                self.update_stream_state(ready);
                return Ok(ready);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                self.update_stream_state(Interest::NONE);
                self.last_wait_timed_out.store(true, Relaxed);
                return Ok(Interest::NONE);
            }
        }
    }

    /// Records whether a wait ended with [`SMALL_BATCH`] slots or more. At an interface it does not count: no peer has
    /// to wake several receivers.
    fn update_stream_state(&self, ready: Interest) {
        let space = |wanted, rings: &[Ring]| if wanted { rings.iter().map(|ring| ring.space()).sum() } else { 0 };
        let arrived: u32 = space(ready.rx(), &self.rx).max(space(ready.tx(), &self.tx));
        let is_stream = !self.sleeps_between_polls && arrived >= SMALL_BATCH;
        if self.in_stream.load(Relaxed) != is_stream {
            self.in_stream.store(is_stream, Relaxed);
        }
        if !ready.is_none() && self.last_wait_timed_out.load(Relaxed) {
            self.last_wait_timed_out.store(false, Relaxed);
        }
    }

    /// Whether the peer of a wanted ring has moved.
    #[inline(always)]
    fn peer_moved(&self, want: Interest) -> bool {
        (want.rx() && self.rx.iter().any(|ring| ring.inner.peer_moved()))
            || (want.tx() && self.tx.iter().any(|ring| ring.inner.peer_moved()))
    }

    #[inline]
    fn poll_repeatedly(&self, want: Interest) -> Result<Interest, Error> {
        // Reads the clock while nothing has arrived yet, so that a packet does not wait for it.
        let now = WallTime::now();
        for _ in 0..POLLS_PER_CLOCK {
            for _ in 0..PEEKS_PER_POLL {
                if self.peer_moved(want) {
                    break;
                }
                clock::short_pause();
            }
            let ready = self.poll_once(want, Some(now))?;
            if !ready.is_none() {
                return Ok(ready);
            }
        }
        Ok(Interest::NONE)
    }

    /// Sleeps until it is time to look for the next daemon, at most for `limit`.
    #[cold]
    fn pause(&self, limit: Option<Duration>) -> Result<SleepEnd, Error> {
        let pause = self.reconnect.as_ref().map_or(Duration::ZERO, |reconnect| reconnect.pause());
        match wait_readable(&mut [], Some(limit.map_or(pause, |limit| limit.min(pause)))) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(SleepEnd::Signal),
            Err(e) => Err(Error::host(self.spec(), e)),
            Ok(_) => Ok(SleepEnd::Timeout),
        }
    }

    /// Sleeps until a doorbell is notified, at most for `limit`.
    fn sleep(&self, want: Interest, limit: Duration) -> Result<SleepEnd, Error> {
        let connection = PollFd::from_borrowed_fd(self.connection.fd.as_fd(), PollFlags::RDHUP);
        let (sets, single) = self.wait_sets(want);
        let of_sets = || sets.iter().flatten().map(|(set, _)| set.as_fd());
        let of_rings =
            || self.wakeup_sources(single).flat_map(|(_, s)| std::iter::once(s.doorbell().as_fd()).chain(s.socket()));
        let doorbells = || of_sets().chain(of_rings());
        let as_poll = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut few: [PollFd<'_>; POLL_FDS_ON_STACK + 1] = std::array::from_fn(|_| connection.clone());
        let mut many = Vec::new();
        let n = doorbells().count();
        let fds = if n <= POLL_FDS_ON_STACK {
            few[1..].iter_mut().zip(doorbells()).for_each(|(to, fd)| *to = as_poll(fd));
            &mut few[..=n]
        } else {
            many.push(connection.clone());
            many.extend(doorbells().map(as_poll));
            &mut many[..]
        };
        match wait_readable(fds, Some(limit)) {
            Ok(0) => return Ok(SleepEnd::Timeout),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => return Ok(SleepEnd::Signal),
            Err(e) => return Err(Error::host(self.spec(), e)),
            Ok(_) => {}
        }
        if !fds[0].revents().is_empty() {
            self.mark_daemon_exited();
        }
        // Clears only those that fired: clearing one costs a system call.
        let mut fired = fds[1..].iter().map(|fd| !fd.revents().is_empty());
        for (set, rings) in sets.iter().flatten() {
            if fired.next() == Some(true) {
                many_rings::clear_fired(set, rings);
            }
        }
        for (_, source) in self.wakeup_sources(single) {
            if fired.next() == Some(true) {
                source.doorbell().clear();
            }
            source.socket().and_then(|_| fired.next());
        }
        Ok(SleepEnd::Doorbell)
    }

    /// Notifies the doorbell again for other users of a ring, which wait for the same doorbell, as long as the ring is
    /// ready: this thread has just cleared it.
    pub(crate) fn wake_sharers(&self, want: Interest) {
        for (ring, source) in self.wakeup_sources(want) {
            if ring.inner.state().session_count() > 1 && ring.inner.ready() {
                source.doorbell().notify();
            }
        }
    }
}

/// Returns how long to poll before sleeping; `None`: not at all. After a wait that timed out packets are not likely to
/// arrive soon, and other tasks may use the CPU.
fn spin_duration(in_stream: bool, last_wait_timed_out: bool, timeout: Option<Duration>) -> Option<Duration> {
    let spin = if in_stream { STREAM_SPIN } else { SPIN };
    match timeout {
        Some(timeout) if timeout <= spin => Some(timeout),
        _ => (!last_wait_timed_out).then_some(spin),
    }
}

/// Returns the next rx coalescing delay in spin hints, when `arrived` slots had arrived after `delay`; `same_cpu`: the
/// peer runs on this CPU.
#[inline(always)]
fn next_coalescing(delay: u32, arrived: u32, same_cpu: impl FnOnce() -> bool) -> u32 {
    match arrived {
        // The peer sends nothing meanwhile, so a reply must not be delayed.
        0..=REPLY_BATCH if same_cpu() => 0,
        0..SMALL_BATCH => (delay * 2).clamp(1, MAX_COALESCING),
        SMALL_BATCH..LARGE_BATCH => delay,
        _ => delay / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_after_a_timeout_does_not_spin() {
        let long = [None, Some(Duration::from_millis(100))];
        assert_eq!(long.map(|timeout| spin_duration(false, false, timeout)), [Some(SPIN); 2]);
        assert_eq!(long.map(|timeout| spin_duration(true, false, timeout)), [Some(STREAM_SPIN); 2]);
        assert_eq!(long.map(|timeout| spin_duration(false, true, timeout)), [None; 2]);
        // A wait that is shorter than the spin never sleeps.
        assert_eq!([false, true].map(|timed_out| spin_duration(false, timed_out, Some(SPIN / 2))), [Some(SPIN / 2); 2]);
    }

    #[test]
    fn small_batches_are_delayed_unless_their_sender_is_on_this_cpu() {
        let after_many = |arrived, same_cpu| (0..20).fold(0, |delay, _| next_coalescing(delay, arrived, || same_cpu));
        assert_eq!(after_many(1, false), MAX_COALESCING);
        assert_eq!(after_many(1, true), 0);
        assert_eq!(after_many(REPLY_BATCH + 1, true), MAX_COALESCING);
        assert_eq!(next_coalescing(MAX_COALESCING, 1, || true), 0);
        assert_eq!(next_coalescing(8, SMALL_BATCH, || false), 8);
        assert_eq!(next_coalescing(8, LARGE_BATCH, || false), 4);
    }
}
