//! Waiting: spin a little, then ask to be woken, look once more, and sleep.
//!
//! A receiver that finds a few packets at every look costs the sender a transfer of the line's `prod` word for each of
//! them. So while packets come in a stream, the receiver holds back between two looks, longer as long as the batches
//! stay small; a look that finds nothing ends that at once, so a request that waits for its answer is never delayed.
//!
//! Where packets come by the kernel's work, on an interface, the receiver of a fast stream sleeps between two looks: the
//! kernel may need this very processor, and each look takes the ring's words away from it.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use unetmap_sys::clock::{self, spin_hint};
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::futex;

use crate::backend::Rx;
use crate::error::Error;
use crate::port::{Interest, Port};
use crate::sync::WallTime;

#[path = "poll_fast.rs"]
mod poll_fast;

/// How long to spin before sleeping: about the price of one sleep and wake-up between two cores.
const SPIN: Duration = Duration::from_micros(50);
/// The same for who gets much at once: several who share a processor may have to be woken, one after the other, by a party that
/// serves nobody meanwhile.
const STREAM_SPIN: Duration = Duration::from_micros(200);
/// Looks between two readings of the clock: less than a microsecond, which is what `ring->ts` can tell.
const LOOKS_PER_CLOCK: u32 = 8;
/// Glances before each look: together about as long as the processor's hint for spin loops, 30 to 45 ns, and what comes
/// meanwhile is seen at once.
const GLANCES: u32 = 4;
/// So many times that many looks come before the first offer of the processor: longer than the other side of a pipe needs for
/// half a ring, shorter than two system calls, which the offer and the clock may cost.
const EAGER_ROUNDS: u32 = 8;
/// An offer that took longer was accepted: a system call alone takes less.
const ACCEPTED: Duration = Duration::from_micros(2);
/// So many slots may be an answer.
const ANSWER: u32 = 8;
/// A stream's batches are small below this: hold back longer.
const SMALL_BATCH: u32 = 96;
/// From here on they are large: hold back less.
const LARGE_BATCH: u32 = 256;
/// The longest that a receiver holds back, in spin hints: about five microseconds.
const MAX_HOLD: u32 = 128;
/// How long a receiver rests between two looks at an interface.
const REST: Duration = Duration::from_micros(50);
/// How long that may take in fact: the kernel wakes sleepers up to 50 us late.
const REST_NS: u64 = 110_000;
/// Packets that must be expected during a rest, or it is not worth it.
const REST_FOR: u64 = 32;
/// When to look again at a ring that somebody else is syncing.
const BUSY: Duration = Duration::from_micros(100);
/// How long a sleeper trusts its bell. A party that dies, or means harm, between moving a position and ringing wakes nobody.
const LOOK_UP: Duration = Duration::from_millis(500);
/// Bells that fit without allocation.
const FEW: usize = 15;

/// Why a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slept {
    Rung,
    Enough,
    Signal,
}

impl Port {
    /// [`Port::poll`], but for what goes quickly.
    #[inline(never)]
    pub(crate) fn wait(&self, want: Interest, timeout: Option<Duration>) -> Result<Interest, Error> {
        if want == Interest::RX && timeout != Some(Duration::ZERO) && self.poll_quickly() {
            return Ok(Interest::RX);
        }
        // Who only asks is not made to wait.
        let ready =
            if timeout == Some(Duration::ZERO) && self.rests { self.look(want, None)? } else { self.first_look(want)? };
        if !ready.is_none() || timeout == Some(Duration::ZERO) {
            return Ok(ready);
        }
        self.wait_longer(want, timeout)
    }

    /// The look that a poll begins with. In a stream of small batches it is held back a little.
    #[inline]
    fn first_look(&self, want: Interest) -> Result<Interest, Error> {
        if !want.rx() || self.rx.iter().any(|ring| ring.inner.ready()) {
            return self.look(want, None);
        }
        if self.rests {
            return self.rested_look(want);
        }
        let hold = self.hold_back.load(Relaxed);
        for _ in 0..hold {
            spin_hint();
        }
        let ready = self.look(want, None)?;
        let next = if ready.rx() {
            let came = self.rx.iter().map(|ring| ring.space()).sum();
            next_hold(hold, came, || self.rx.iter().any(|ring| ring.inner.path.rx().is_some_and(Rx::is_near)))
        } else {
            0
        };
        if next != hold {
            self.hold_back.store(next, Relaxed);
        }
        Ok(ready)
    }

    /// The same at an interface: after a rest, if the stream is fast enough, and not so fast that the ring could run over.
    fn rested_look(&self, want: Interest) -> Result<Interest, Error> {
        if self.hold_back.load(Relaxed) > 0 {
            std::thread::sleep(REST);
        }
        let ready = self.look(want, None)?;
        let now = clock::now_ns();
        let since = now.saturating_sub(self.last_look.swap(now, Relaxed)).max(1);
        let came: u64 = self.rx.iter().map(|ring| u64::from(ring.space())).sum();
        let room: u64 = self.rx.iter().map(|ring| u64::from(ring.num_slots())).sum();
        let expected = came.saturating_mul(REST_NS) / since;
        self.hold_back.store(u32::from((REST_FOR..room / 2).contains(&expected)), Relaxed);
        Ok(ready)
    }

    /// Looks until something that is wanted is ready, for at most `limit`, and never sleeps: for event loops, before
    /// [`Port::arm`].
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn spin(&self, want: Interest, limit: Duration) -> Result<Interest, Error> {
        Ok(self.spin_or(want, limit, false)?.unwrap_or(Interest::NONE))
    }

    /// The same; in vain, it is since when. `may_nap`: a few milliseconds more are no harm.
    fn spin_or(&self, want: Interest, limit: Duration, may_nap: bool) -> Result<Result<Interest, Instant>, Error> {
        // Where the other party needs this very processor all looks are in vain.
        if may_nap && self.give_way(want) {
            let ready = self.look(want, None)?;
            if !ready.is_none() {
                return Ok(Ok(ready));
            }
        }
        // The clock costs as much as a look, and the offer more than what most waits last: not at first, but where the last
        // offer was accepted, by who may be the other party.
        let eager = if self.crowded.load(Relaxed) { 1 } else { EAGER_ROUNDS };
        for _ in 0..eager {
            let ready = self.look_often(want)?;
            if !ready.is_none() {
                // So soon only from another processor.
                if self.crowded.load(Relaxed) {
                    self.crowded.store(false, Relaxed);
                }
                return Ok(Ok(ready));
            }
        }
        let start = Instant::now();
        let (mut offered, mut accepted) = (start, false);
        while offered - start < limit {
            std::thread::yield_now();
            accepted |= offered.elapsed() > ACCEPTED;
            self.crowded.store(accepted, Relaxed);
            let ready = self.look_often(want)?;
            if !ready.is_none() {
                return Ok(Ok(ready));
            }
            accepted |= may_nap && self.give_way(want);
            offered = Instant::now();
        }
        Ok(Err(start))
    }

    /// A yield was in vain: it is none for a party of another session. Who waits for one ring alone, and shares it with
    /// nobody, can give the processor away otherwise.
    /// Returns whether it was given away.
    fn give_way(&self, want: Interest) -> bool {
        let mut all = self.sleepers(want);
        let (Some((ring, sleeper)), None) = (all.next(), all.next()) else { return false };
        let (state, slots) = (ring.inner.state(), ring.inner.view.shape().slots);
        if state.sharers() <= 1
            && let Some((_, hwtail)) = state.positions(slots)
        {
            return sleeper.give_way(if ring.inner.path.tx().is_some() { slots.next(hwtail) } else { hwtail });
        }
        false
    }

    fn wait_longer(&self, want: Interest, timeout: Option<Duration>) -> Result<Interest, Error> {
        let may_nap = timeout.is_none_or(|t| t >= futex::WAIT_LIMIT);
        let start = match spin_for(self.in_stream.load(Relaxed), self.in_vain.load(Relaxed), timeout) {
            None => Instant::now(),
            Some(spin) => match self.spin_or(want, spin, may_nap)? {
                Ok(ready) => {
                    self.note_stream(ready);
                    return Ok(ready);
                }
                Err(start) => start,
            },
        };
        // A limit that is too far away to be a time is no limit.
        let end = timeout.and_then(|t| start.checked_add(t));
        loop {
            self.ask_for_wakeup(want);
            let ready = self.look(want, None)?;
            if !ready.is_none() {
                self.note_stream(ready);
                return Ok(ready);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                self.note_stream(Interest::NONE);
                return Ok(Interest::NONE);
            }
            if self.sleepers(want).any(|(ring, _)| ring.inner.due(true)) {
                // Something came, but somebody else is syncing the ring, and will ring no bell when done.
                std::thread::sleep(left.map_or(BUSY, |left| left.min(BUSY)));
                continue;
            }
            let slept = self.sleep(want, left.map_or(LOOK_UP, |left| left.min(LOOK_UP)))?;
            let ready = self.look(want, None)?;
            if slept == Slept::Rung && !ready.is_none() {
                self.wake_sharers(want);
            }
            if slept == Slept::Signal || !ready.is_none() {
                self.note_stream(ready);
                return Ok(ready);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                self.note_stream(Interest::NONE);
                self.in_vain.store(true, Relaxed);
                return Ok(Interest::NONE);
            }
        }
    }

    /// Remembers whether a wait that has ended brought much. An interface's packets come without anybody's being woken.
    fn note_stream(&self, ready: Interest) {
        let of = |yes, rings: &[crate::Ring]| if yes { rings.iter().map(|ring| ring.space()).sum() } else { 0 };
        let came: u32 = of(ready.rx(), &self.rx).max(of(ready.tx(), &self.tx));
        let is_stream = !self.rests && came >= SMALL_BATCH;
        if self.in_stream.load(Relaxed) != is_stream {
            self.in_stream.store(is_stream, Relaxed);
        }
        if !ready.is_none() && self.in_vain.load(Relaxed) {
            self.in_vain.store(false, Relaxed);
        }
    }

    /// Whether something may have come on a ring that is wanted.
    #[inline(always)]
    fn stirs(&self, want: Interest) -> bool {
        (want.rx() && self.rx.iter().any(|ring| ring.inner.stirs()))
            || (want.tx() && self.tx.iter().any(|ring| ring.inner.stirs()))
    }

    #[inline]
    fn look_often(&self, want: Interest) -> Result<Interest, Error> {
        // While nothing comes there is time to read the clock; what comes need not wait for it.
        let now = WallTime::now();
        for _ in 0..LOOKS_PER_CLOCK {
            for _ in 0..GLANCES {
                if self.stirs(want) {
                    break;
                }
                clock::short_pause();
            }
            let ready = self.look(want, Some(now))?;
            if !ready.is_none() {
                return Ok(ready);
            }
        }
        Ok(Interest::NONE)
    }

    /// Sleeps until a bell rings, at most for `limit`.
    fn sleep(&self, want: Interest, limit: Duration) -> Result<Slept, Error> {
        let connection = PollFd::from_borrowed_fd(self.connection.fd.as_fd(), PollFlags::RDHUP);
        let bells = || self.sleepers(want).flat_map(|(_, s)| std::iter::once(s.bell().as_fd()).chain(s.socket()));
        let as_poll = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut few: [PollFd<'_>; FEW + 1] = std::array::from_fn(|_| connection.clone());
        let mut many = Vec::new();
        let n = bells().count();
        let fds = if n <= FEW {
            few[1..].iter_mut().zip(bells()).for_each(|(to, fd)| *to = as_poll(fd));
            &mut few[..=n]
        } else {
            many.push(connection.clone());
            many.extend(bells().map(as_poll));
            &mut many[..]
        };
        match wait_readable(fds, Some(limit)) {
            Ok(0) => return Ok(Slept::Enough),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => return Ok(Slept::Signal),
            Err(e) => return Err(Error::host(self.spec(), e)),
            Ok(_) => {}
        }
        if !fds[0].revents().is_empty() {
            self.mark_dead();
        }
        self.silence(want);
        Ok(Slept::Rung)
    }

    /// Who shares a ring waits for the same bell, which was just taken back: it is rung again for them as long as there
    /// is something to be had.
    pub(crate) fn wake_sharers(&self, want: Interest) {
        for (ring, sleeper) in self.sleepers(want) {
            if ring.inner.state().sharers() > 1 && ring.inner.ready() {
                sleeper.bell().notify();
            }
        }
    }
}

/// How long to spin before sleeping, for somebody who is in a stream, or has slept in vain, and waits for `timeout`; `None`: not
/// at all. Where nothing came for long, it is not likely to come now, and others could do with the processor.
fn spin_for(in_stream: bool, in_vain: bool, timeout: Option<Duration>) -> Option<Duration> {
    let spin = if in_stream { STREAM_SPIN } else { SPIN };
    match timeout {
        Some(timeout) if timeout <= spin => Some(timeout),
        _ => (!in_vain).then_some(spin),
    }
}

/// How long to hold back before the next look, in spin hints, when after `hold` so many slots had come, from a party that is
/// `near`, on this very processor, or is not.
#[inline(always)]
fn next_hold(hold: u32, came: u32, near: impl FnOnce() -> bool) -> u32 {
    match came {
        // It sends nothing meanwhile, so an answer need not wait; of a stream more may gather elsewhere.
        0..=ANSWER if near() => 0,
        0..SMALL_BATCH => (hold * 2).clamp(1, MAX_HOLD),
        SMALL_BATCH..LARGE_BATCH => hold,
        _ => hold / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_slept_in_vain_sleeps_at_once() {
        let long = [None, Some(Duration::from_millis(100))];
        assert_eq!(long.map(|timeout| spin_for(false, false, timeout)), [Some(SPIN); 2]);
        assert_eq!(long.map(|timeout| spin_for(true, false, timeout)), [Some(STREAM_SPIN); 2]);
        assert_eq!(long.map(|timeout| spin_for(false, true, timeout)), [None; 2]);
        // Who waits for less than a sleep takes never sleeps.
        assert_eq!([false, true].map(|vain| spin_for(false, vain, Some(SPIN / 2))), [Some(SPIN / 2); 2]);
    }

    #[test]
    fn small_batches_hold_back_unless_their_sender_is_near() {
        let after_many = |came, near| (0..20).fold(0, |hold, _| next_hold(hold, came, || near));
        assert_eq!(after_many(1, false), MAX_HOLD);
        assert_eq!(after_many(1, true), 0);
        assert_eq!(after_many(ANSWER + 1, true), MAX_HOLD);
        assert_eq!(next_hold(MAX_HOLD, 1, || true), 0);
        assert_eq!(next_hold(8, SMALL_BATCH, || false), 8);
        assert_eq!(next_hold(8, LARGE_BATCH, || false), 4);
    }
}
