// SPDX-License-Identifier: BSD-2-Clause
//! The waker: it wakes programs that sleep on a file of the node when the file's rings move.
//!
//! A file is *armed* by a poll that found nothing ready: wakeups are requested from its peers, and the waker waits for
//! its doorbells. When one is notified and something is ready, the waker lets the kernel's pollers poll again, and the
//! file is no longer armed. Without armed files and interrupted requests the waker sleeps without a timeout. It also
//! ends polls that were held too long (`held_polls`).
//!
//! Programs with edge-triggered epoll get events for what arrives while something is ready, and do not poll in between.
//! The kernel does not show whether a program does that. So a file whose poll found something ready *lingers*: if no
//! poll of it arrives within a millisecond, it is armed for further changes. The file of
//! a program that polls continuously is never armed, so the peer need not notify it.
//!
//! The waker runs beside the programs, and netmap lets a program change its rings as it likes between two calls: the
//! waker moves only their tails.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use unetmap_core::{Error, Interest, Port, defer_program_data};
use unetmap_sys::Doorbell;
use unetmap_sys::event::{Epoll, EventFlags, PollFd, PollFlags, wait_readable};

use super::file::{File, Lingering};
use super::held_polls::{HeldPolls, is_none};
use super::mount::RequestId;
use crate::threads::lock;
use crate::tuning::node::{FINE_TIMEOUT, HOLD, LINGER, RECHECK_INTERVAL, SIGNAL_GRACE};

/// The token of the waker's own doorbell. Files are numbered from 1.
const OWN_DOORBELL: u64 = 0;

/// Files on which programs sleep, and requests that were interrupted.
pub(super) struct PollWaker {
    epoll: Epoll,
    doorbell: Doorbell,
    over: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    armed: HashMap<u64, Armed>,
    /// When all armed files are checked, independently of doorbells. Set while there are any, and until the next such
    /// check.
    recheck_at: Option<Instant>,
    /// Files that linger, and when they are checked.
    lingering: HashMap<u64, Arc<File>>,
    linger_end: Option<Instant>,
    interrupted: Vec<(Instant, RequestId)>,
    /// When held polls are checked.
    tick: Option<Instant>,
}

struct Armed {
    file: Arc<File>,
    kh: u64,
    want: Interest,
    /// The rings' positions, if it is armed for further changes.
    more_than: Option<u32>,
}

impl PollWaker {
    pub(super) fn new() -> io::Result<PollWaker> {
        let (epoll, doorbell) = (Epoll::new()?, Doorbell::new()?);
        epoll.add(&doorbell, OWN_DOORBELL, true, false)?;
        Ok(PollWaker { epoll, doorbell, over: AtomicBool::new(false), inner: Mutex::default() })
    }

    /// Arms a file for a program that is about to sleep until `want` is ready. If something is ready, returns it, and
    /// arms nothing.
    pub(super) fn arm(&self, file: &Arc<File>, kh: u64, want: Interest) -> Result<Interest, Error> {
        let Some(port) = file.port() else { return Ok(Interest::NONE) };
        let mut inner = lock(&self.inner);
        let before = inner.armed.remove(&file.fh).map(|armed| armed.want);
        let want = want | before.unwrap_or(Interest::NONE);
        let ready = file.sync(|port| port.arm(want)).unwrap_or(Ok(Interest::NONE));
        if !matches!(ready, Ok(ready) if ready.is_none()) && before.is_none() {
            return ready;
        }
        if before != Some(want) {
            self.unwatch(file, before.unwrap_or(Interest::NONE));
            self.watch(file, port, want);
        }
        let armed = Armed { file: file.clone(), kh, want, more_than: None };
        self.keep(&mut inner, armed);
        ready
    }

    fn keep(&self, inner: &mut Inner, armed: Armed) {
        inner.armed.insert(armed.file.fh, armed);
        if inner.recheck_at.is_none() {
            inner.recheck_at = Some(Instant::now() + RECHECK_INTERVAL);
            self.doorbell.notify();
        }
    }

    /// Records a poll that found something ready, of a program that may sleep on the file.
    pub(super) fn linger(&self, file: &Arc<File>, kh: u64, want: Interest) {
        let Some(port) = file.port() else { return };
        if file.linger(Lingering { kh, want, since: Instant::now(), at: progress(port, want) }) {
            return;
        }
        let mut inner = lock(&self.inner);
        inner.lingering.insert(file.fh, file.clone());
        if inner.linger_end.is_none() {
            inner.linger_end = Some(Instant::now() + LINGER);
            self.doorbell.notify();
        }
    }

    /// Arms the files that lingered long enough.
    fn arm_lingering(&self) {
        let now = Instant::now();
        let mut inner = lock(&self.inner);
        if inner.linger_end.is_none_or(|at| now < at) {
            return;
        }
        let over: Vec<Arc<File>> = inner
            .lingering
            .extract_if(|_, file| file.lingers_since().is_none_or(|since| now - since >= LINGER))
            .map(|(_, file)| file)
            .collect();
        inner.linger_end = (!inner.lingering.is_empty()).then(|| now + LINGER);
        drop(inner);
        for file in over {
            if let Some(Lingering { kh, want, at, .. }) = file.stop_lingering() {
                self.arm_for_more(file, kh, want, at);
            }
        }
    }

    fn arm_for_more(&self, file: Arc<File>, kh: u64, want: Interest, at: u32) {
        let mut inner = lock(&self.inner);
        if inner.armed.contains_key(&file.fh) {
            return;
        }
        let moved = file.while_open(|port| {
            self.watch(&file, port, want);
            has_more(port, want, at)
        });
        match moved {
            None => {}
            Some(true) => {
                self.unwatch(&file, want);
                drop(inner);
                let _ = file.mount.dev.notify_poll(kh);
            }
            Some(false) => self.keep(&mut inner, Armed { file, kh, want, more_than: Some(at) }),
        }
    }

    /// Waits for the doorbells of a file. One that cannot be waited for is checked by timer.
    fn watch(&self, file: &File, port: &Port, want: Interest) {
        let watch = |doorbell| drop(self.epoll.add(doorbell, file.fh, true, false));
        port.wait_fds(want).iter().skip(1).for_each(watch);
    }

    fn unwatch(&self, file: &File, want: Interest) {
        let Some(port) = file.port().filter(|_| !want.is_none()) else { return };
        port.wait_fds(want).iter().skip(1).for_each(|doorbell| drop(self.epoll.delete(doorbell)));
    }

    /// Removes a file that is closed.
    pub(super) fn forget(&self, file: &File) {
        let mut inner = lock(&self.inner);
        inner.lingering.remove(&file.fh);
        if let Some(armed) = inner.armed.remove(&file.fh) {
            self.unwatch(file, armed.want);
        }
    }

    /// Limits the time of a request whose program received a signal.
    pub(super) fn limit_time(&self, id: RequestId) {
        lock(&self.inner).interrupted.push((Instant::now() + SIGNAL_GRACE, id));
        self.doorbell.notify();
    }

    /// Lets the waker check held polls.
    pub(super) fn tick(&self) {
        lock(&self.inner).tick = Some(Instant::now() + HOLD);
        self.doorbell.notify();
    }

    /// Arms the files whose polls were held without success.
    fn end_held_polls(&self, held_polls: &HeldPolls) {
        let now = Instant::now();
        if lock(&self.inner).tick.is_none_or(|at| now < at) {
            return;
        }
        // Before the check: a thread that holds a poll after it calls `tick` again.
        lock(&self.inner).tick = None;
        let (expired, more) = held_polls.take_expired(now);
        if more {
            lock(&self.inner).tick = Some(now + HOLD);
        }
        for held in expired {
            let ready = self.arm(&held.file, held.kh, held.want);
            let lingers = matches!(ready, Ok(ready) if !ready.is_none());
            let _ = held.answer(ready);
            if lingers {
                self.linger(&held.file, held.kh, held.want);
            }
        }
    }

    /// Forgets all files, after [`PollWaker::run`] has ended, which can be called again.
    pub(super) fn reset(&self) {
        let inner = std::mem::take(&mut *lock(&self.inner));
        inner.armed.values().for_each(|armed| self.unwatch(&armed.file, armed.want));
        inner.lingering.values().for_each(|file| _ = file.stop_lingering());
        self.over.store(false, Ordering::Release);
    }

    /// Ends [`PollWaker::run`].
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.doorbell.notify();
    }

    /// Runs the waker until [`PollWaker::end`].
    pub(super) fn run(&self, held_polls: &HeldPolls, interrupt: impl Fn(&RequestId)) {
        defer_program_data();
        let mut events = Vec::new();
        while !self.over.load(Ordering::Acquire) {
            match self.wait(&mut events) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                    tracing::error!("the node's waker stops: {e}");
                    return;
                }
                _ => {}
            }
            let mut due: Vec<u64> = events.iter().map(|(token, _)| *token).collect();
            if due.contains(&OWN_DOORBELL) {
                self.doorbell.clear();
            }
            due.extend(self.due_files());
            due.sort_unstable();
            due.dedup();
            due.into_iter().for_each(|fh| self.check(fh));
            self.end_held_polls(held_polls);
            self.arm_lingering();
            self.interrupt_late(&interrupt);
        }
    }

    /// Waits for doorbells, or until the next timer.
    fn wait(&self, events: &mut Vec<(u64, EventFlags)>) -> io::Result<()> {
        let limit = self.limit();
        if limit.is_none_or(|limit| limit > FINE_TIMEOUT) {
            return self.epoll.wait(events, limit);
        }
        events.clear();
        match wait_readable(&mut [PollFd::new(&self.epoll, PollFlags::IN)], limit)? {
            0 => Ok(()),
            _ => self.epoll.wait(events, Some(Duration::ZERO)),
        }
    }

    /// The time until the next timer.
    fn limit(&self) -> Option<Duration> {
        let inner = lock(&self.inner);
        let first = inner
            .interrupted
            .iter()
            .map(|(at, _)| *at)
            .chain(inner.recheck_at)
            .chain(inner.linger_end)
            .chain(inner.tick)
            .min();
        first.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns all armed files, if it is time to check them.
    fn due_files(&self) -> Vec<u64> {
        let mut inner = lock(&self.inner);
        let now = Instant::now();
        if inner.recheck_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        inner.recheck_at = (!inner.armed.is_empty()).then(|| now + RECHECK_INTERVAL);
        inner.armed.keys().copied().collect()
    }

    /// Checks a file whose doorbell was notified.
    fn check(&self, fh: u64) {
        let armed = |a: &Armed| (a.file.clone(), a.kh, a.want, a.more_than);
        let Some((file, kh, want, more_than)) = lock(&self.inner).armed.get(&fh).map(armed) else { return };
        let changed = file.while_open(|port| match more_than {
            Some(at) => has_more(port, want, at),
            None => !is_none(&port.arm_beside_program(want)),
        });
        if changed != Some(true) {
            return;
        }
        let mut inner = lock(&self.inner);
        if let Some(armed) = inner.armed.remove(&fh) {
            self.unwatch(&file, armed.want);
        }
        drop(inner);
        let _ = file.mount.dev.notify_poll(kh);
    }

    /// Answers requests that were interrupted and have not ended since.
    fn interrupt_late(&self, interrupt: impl Fn(&RequestId)) {
        let now = Instant::now();
        let mut inner = lock(&self.inner);
        let late: Vec<RequestId> =
            inner.interrupted.extract_if(.., |(at, _)| *at <= now).map(|(_, late)| late).collect();
        drop(inner);
        late.iter().for_each(interrupt);
    }
}

/// Arms a port for more than was ready when its rings' positions were `at`; returns whether there is more already. If
/// the program released slots since, its next call makes room for more.
fn has_more(port: &Port, want: Interest, at: u32) -> bool {
    port.arm_beside_program(want).is_err() || progress(port, want) != at || port.has_released(want)
}

/// Returns a number that changes when an event of `want` occurs.
fn progress(port: &Port, want: Interest) -> u32 {
    let tx = port.tx_rings().iter().filter(|_| want.tx());
    let rx = port.rx_rings().iter().filter(|_| want.rx());
    tx.chain(rx).fold(0, |sum, ring| sum.wrapping_mul(31).wrapping_add(ring.tail().raw()))
}
