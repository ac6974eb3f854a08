//! The watch: whoever sleeps on a file of the node is woken when its rings move.
//!
//! A file is *armed* by a poll that found nothing ready: its bells are asked for, and waited for here. Once one rings and
//! something is ready, the kernel is told to have its pollers ask again, and the file is armed no more. Without armed
//! files and interrupted requests the watch sleeps without limit. Polls that are held (`hold`) for too long end here, too.
//!
//! Who waits for edges (epoll) is told of what comes while something is ready, and does not ask in between. Whether
//! somebody does the kernel does not tell. So a file whose poll found something ready *lingers*: if nobody polls it for a
//! millisecond, it is armed for more. A program that polls again and again never gets there, and its peer need not ring.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use unetmap_core::{Error, Interest, Port};
use unetmap_sys::Doorbell;
use unetmap_sys::event::{Epoll, EventFlags, PollFd, PollFlags, wait_readable};

use super::file::{File, Lingering};
use super::hold::HOLD;
use super::serve::Shared;
use super::way::Ticket;

/// How long the watch trusts bells. A party that dies, or means harm, between moving a position and ringing wakes nobody.
const LOOK_UP: Duration = Duration::from_millis(500);
/// How long after a poll that found something ready a file is armed for more.
const LINGER: Duration = Duration::from_millis(1);
/// How long a request goes on after the one that made it was sent a signal.
const PATIENCE: Duration = Duration::from_secs(1);
/// Times up to here are waited for to the microsecond; epoll's are rounded up to milliseconds.
const ROUGH: Duration = Duration::from_millis(2);
/// The token of the bell that rings for the watch itself; files are region_by_number from 1.
const KICK: u64 = 0;

/// Files that somebody sleeps on, and requests that were interrupted.
pub(super) struct Watch {
    epoll: Epoll,
    kick: Doorbell,
    over: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    armed: HashMap<u64, Armed>,
    /// When to look at all armed files, bells or not; set while there are any, and until the first such look after.
    look_up: Option<Instant>,
    /// Files that linger, and when to look at them.
    lingering: HashMap<u64, Arc<File>>,
    look_after: Option<Instant>,
    interrupted: Vec<(Instant, Ticket)>,
    /// When to look at polls that are held.
    tick: Option<Instant>,
}

struct Armed {
    file: Arc<File>,
    kh: u64,
    want: Interest,
    /// Where the rings stood, if it is armed for more.
    more_than: Option<u32>,
}

impl Watch {
    pub(super) fn new() -> io::Result<Watch> {
        let (epoll, kick) = (Epoll::new()?, Doorbell::new()?);
        epoll.add(&kick, KICK, true, false)?;
        Ok(Watch { epoll, kick, over: AtomicBool::new(false), inner: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody is about to sleep until `want` is ready. What is ready already comes back, and nothing is watched.
    pub(super) fn arm(&self, file: &Arc<File>, kh: u64, want: Interest) -> Result<Interest, Error> {
        let Some(port) = file.port() else { return Ok(Interest::NONE) };
        let mut inner = self.inner();
        let before = inner.armed.remove(&file.fh).map(|armed| armed.want);
        let want = want | before.unwrap_or(Interest::NONE);
        let ready = port.arm(want);
        if !matches!(ready, Ok(ready) if ready.is_none()) && before.is_none() {
            return ready;
        }
        if before != Some(want) {
            self.unwatch(file, before.unwrap_or(Interest::NONE));
            // A bell that cannot be waited for is looked at all the same.
            port.wait_fds(want).iter().skip(1).for_each(|bell| drop(self.epoll.add(bell, file.fh, true, false)));
        }
        let armed = Armed { file: file.clone(), kh, want, more_than: None };
        self.keep(&mut inner, armed);
        ready
    }

    fn keep(&self, inner: &mut Inner, armed: Armed) {
        inner.armed.insert(armed.file.fh, armed);
        if inner.look_up.is_none() {
            inner.look_up = Some(Instant::now() + LOOK_UP);
            self.kick.notify();
        }
    }

    /// A poll of somebody who might sleep on the file found something ready.
    pub(super) fn linger(&self, file: &Arc<File>, kh: u64, want: Interest) {
        let Some(port) = file.port() else { return };
        if file.linger(Lingering { kh, want, since: Instant::now(), at: progress(port, want) }) {
            return;
        }
        let mut inner = self.inner();
        inner.lingering.insert(file.fh, file.clone());
        if inner.look_after.is_none() {
            inner.look_after = Some(Instant::now() + LINGER);
            self.kick.notify();
        }
    }

    /// Arms the files that lingered for long enough.
    fn look_after(&self) {
        let now = Instant::now();
        let mut inner = self.inner();
        if inner.look_after.is_none_or(|at| now < at) {
            return;
        }
        let over: Vec<Arc<File>> = inner
            .lingering
            .extract_if(|_, file| file.lingers_since().is_none_or(|since| now - since >= LINGER))
            .map(|(_, file)| file)
            .collect();
        inner.look_after = (!inner.lingering.is_empty()).then(|| now + LINGER);
        drop(inner);
        for file in over {
            if let Some(Lingering { kh, want, at, .. }) = file.linger_no_more() {
                self.arm_for_more(file, kh, want, at);
            }
        }
    }

    fn arm_for_more(&self, file: Arc<File>, kh: u64, want: Interest, at: u32) {
        let mut inner = self.inner();
        if inner.armed.contains_key(&file.fh) {
            return;
        }
        let moved = file.while_open(|port| {
            port.wait_fds(want).iter().skip(1).for_each(|bell| drop(self.epoll.add(bell, file.fh, true, false)));
            port.arm_for_more(want).is_err() || progress(port, want) != at
        });
        match moved {
            None => {}
            Some(true) => {
                self.unwatch(&file, want);
                drop(inner);
                let _ = file.way.dev.notify_poll(kh);
            }
            Some(false) => self.keep(&mut inner, Armed { file, kh, want, more_than: Some(at) }),
        }
    }

    fn unwatch(&self, file: &File, want: Interest) {
        let Some(port) = file.port().filter(|_| !want.is_none()) else { return };
        port.wait_fds(want).iter().skip(1).for_each(|bell| drop(self.epoll.delete(bell)));
    }

    /// The file is closed.
    pub(super) fn forget(&self, file: &File) {
        let mut inner = self.inner();
        inner.lingering.remove(&file.fh);
        if let Some(armed) = inner.armed.remove(&file.fh) {
            self.unwatch(file, armed.want);
        }
    }

    /// The maker of a request was sent a signal: it is answered soon, whatever holds it up.
    pub(super) fn hurry(&self, ticket: Ticket) {
        self.inner().interrupted.push((Instant::now() + PATIENCE, ticket));
        self.kick.notify();
    }

    /// Polls are held: the watch looks every now and then whether that is over.
    pub(super) fn tick(&self) {
        self.inner().tick = Some(Instant::now() + HOLD);
        self.kick.notify();
    }

    /// Watches the files whose polls were held in vain.
    fn end_holds(&self, shared: &Shared) {
        let now = Instant::now();
        if self.inner().tick.is_none_or(|at| now < at) {
            return;
        }
        // Before the look: who holds a poll after it says so again.
        self.inner().tick = None;
        let (over, more) = shared.holds.over(now);
        if more {
            self.inner().tick = Some(now + HOLD);
        }
        for held in over {
            let ready = self.arm(&held.file, held.kh, held.want);
            let lingers = matches!(ready, Ok(ready) if !ready.is_none());
            let _ = held.answer(ready);
            if lingers {
                self.linger(&held.file, held.kh, held.want);
            }
        }
    }

    /// Ends [`Watch::run`].
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.kick.notify();
    }

    /// Watches until the end.
    pub(super) fn run(&self, shared: &Shared) {
        let mut events = Vec::new();
        while !self.over.load(Ordering::Acquire) {
            match self.wait(&mut events) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                    tracing::error!("the node's watch ends: {e}");
                    return;
                }
                _ => {}
            }
            let mut due: Vec<u64> = events.iter().map(|(token, _)| *token).collect();
            if due.contains(&KICK) {
                self.kick.clear();
            }
            due.extend(self.look_up());
            due.sort_unstable();
            due.dedup();
            due.into_iter().for_each(|fh| self.look(fh));
            self.end_holds(shared);
            self.look_after();
            self.give_up(shared);
        }
    }

    /// Waits for bells, or until something has to be done.
    fn wait(&self, events: &mut Vec<(u64, EventFlags)>) -> io::Result<()> {
        let limit = self.limit();
        if limit.is_none_or(|limit| limit > ROUGH) {
            return self.epoll.wait(events, limit);
        }
        events.clear();
        match wait_readable(&mut [PollFd::new(&self.epoll, PollFlags::IN)], limit)? {
            0 => Ok(()),
            _ => self.epoll.wait(events, Some(Duration::ZERO)),
        }
    }

    /// Until when nothing has to be done.
    fn limit(&self) -> Option<Duration> {
        let inner = self.inner();
        let first = inner
            .interrupted
            .iter()
            .map(|(at, _)| *at)
            .chain(inner.look_up)
            .chain(inner.look_after)
            .chain(inner.tick)
            .min();
        first.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// All armed files, if it is time.
    fn look_up(&self) -> Vec<u64> {
        let mut inner = self.inner();
        let now = Instant::now();
        if inner.look_up.is_none_or(|at| now < at) {
            return Vec::new();
        }
        inner.look_up = (!inner.armed.is_empty()).then(|| now + LOOK_UP);
        inner.armed.keys().copied().collect()
    }

    /// Looks at a file whose bell rang.
    fn look(&self, fh: u64) {
        let armed = |a: &Armed| (a.file.clone(), a.kh, a.want, a.more_than);
        let Some((file, kh, want, more_than)) = self.inner().armed.get(&fh).map(armed) else { return };
        let news = file.while_open(|port| match more_than {
            Some(at) => port.arm_for_more(want).is_err() || progress(port, want) != at,
            None => match port.woken(want) {
                Ok(ready) if ready.is_none() => !matches!(port.arm(want), Ok(ready) if ready.is_none()),
                _ => true,
            },
        });
        if news != Some(true) {
            return;
        }
        let mut inner = self.inner();
        if let Some(armed) = inner.armed.remove(&fh) {
            self.unwatch(&file, armed.want);
        }
        drop(inner);
        let _ = file.way.dev.notify_poll(kh);
    }

    /// Answers requests that were interrupted and did not end since.
    fn give_up(&self, shared: &Shared) {
        let now = Instant::now();
        let mut inner = self.inner();
        let late: Vec<Ticket> = inner.interrupted.extract_if(.., |(at, _)| *at <= now).map(|(_, late)| late).collect();
        drop(inner);
        late.iter().for_each(|ticket| shared.interrupt(ticket));
    }
}

/// A number that changes when something of `want` comes.
fn progress(port: &Port, want: Interest) -> u32 {
    let tx = port.tx_rings().iter().filter(|_| want.tx());
    let rx = port.rx_rings().iter().filter(|_| want.rx());
    tx.chain(rx).fold(0, |sum, ring| sum.wrapping_mul(31).wrapping_add(ring.tail().raw()))
}
