// SPDX-License-Identifier: BSD-2-Clause
//! A port whose daemon has ended looks for the next one, and goes on with it (see [`super::reconnect`]).

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::Instant;

use unetmap_abi::{NS_BUF_CHANGED, NmreqRegister};
use unetmap_mem::SyncGuard;
use unetmap_sys::in_place::{self, FilePart};
use unetmap_sys::process;
use zerocopy::FromBytes;

use crate::backend::{NextRing, region_cache};
use crate::control::PeerDoorbellsRequest;
use crate::control::asked::Asked;
use crate::control::binding::{Binding, DOORBELL_LATER, FIXED_FDS, geometry};
use crate::control::request::{NR_AT, NetmapReply};
use crate::error::{Error, errno};
use crate::port::lock_holder::{LockHolder, Requested};
use crate::port::reconnect::{DaemonChange, Progress, Reconnect, Request, files_of, tell};
use crate::port::shape::{first_objects, same_shape};
use crate::port::{Port, Ring};
use crate::sync::{Effort, NO_INDEX};
use crate::tuning::{ANSWER_POLL, DAEMON_POLL, REPLY_TIMEOUT, RING_LOCK_LIMIT, SHORT_REPLY_LIMIT, SIBLINGS_LIMIT};

/// The reply of the next daemon.
struct Next {
    connection: OwnedFd,
    holder: Arc<LockHolder>,
    register: NmreqRegister,
    binding: Binding,
    fds: Vec<OwnedFd>,
}

/// Why a port does not go on now.
enum Hindrance {
    /// It tries again.
    Passing,
    Lasting(Error),
}

impl From<Error> for Hindrance {
    fn from(e: Error) -> Hindrance {
        let passes = match &e {
            Error::Refused { errno, .. } => [errno::EAGAIN, errno::EBUSY].contains(errno),
            Error::DaemonGone { .. } | Error::Host { .. } | Error::NoDaemon { .. } => true,
            _ => false,
        };
        if passes { Hindrance::Passing } else { Hindrance::Lasting(e) }
    }
}

impl Port {
    /// Sets how the port goes on with other daemons, if it does.
    pub(super) fn go_on_with(&mut self, reconnect: Option<Box<Reconnect>>) {
        if let Some(reconnect) = &reconnect {
            reconnect.set_serving(self.shared_region(), true);
        }
        self.reconnect = reconnect;
    }

    /// Makes the next step, for a port whose daemon has ended. Returns whether the port serves.
    pub(super) fn await_daemon(&self, reconnect: &Reconnect) -> Result<bool, Error> {
        let mut progress = match reconnect.progress.try_lock() {
            Ok(progress) => progress,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread makes it.
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let subject = || self.spec().to_owned();
        if let Some((errno, reason)) = &progress.failed {
            return Err(Error::refused(subject(), *errno, reason.clone()));
        }
        if !self.daemon_has_exited() {
            return Ok(true);
        }
        let now = Instant::now();
        let ended_at = match progress.ended_at {
            Some(at) => at,
            None => {
                self.leave(reconnect);
                reconnect.set_serving(self.shared_region(), false);
                tell(self.spec(), &DaemonChange::Ended);
                progress.ended_at = Some(now);
                now
            }
        };
        if reconnect.limit.is_some_and(|limit| now - ended_at > limit) {
            return Err(Error::DaemonGone { subject: subject() });
        }
        match self.try_once(reconnect, &mut progress) {
            Ok(false) => {}
            Ok(true) => {
                *progress = Progress::default();
                reconnect.timer.clear();
                let lost = reconnect.lost.load(Relaxed);
                tell(self.spec(), &DaemonChange::Back { waited: ended_at.elapsed(), lost });
                return Ok(true);
            }
            Err(Hindrance::Passing) => progress.ask_at = Some(Instant::now() + DAEMON_POLL),
            Err(Hindrance::Lasting(e)) => {
                progress.failed = Some((e.errno(), reason_of(&e)));
                return Err(e);
            }
        }
        reconnect.timer.notify_after(if progress.asked.is_some() { ANSWER_POLL } else { DAEMON_POLL });
        Ok(false)
    }

    /// Asks, or goes on if there is an answer.
    fn try_once(&self, reconnect: &Reconnect, progress: &mut Progress) -> Result<bool, Hindrance> {
        // A child that was forked meanwhile has the parent's request.
        let asked = progress.asked.take().filter(|request| request.forks == process::fork_count());
        let Some(request) = asked else {
            let now = Instant::now();
            // Ports of the region that have not noticed could not tell what is lost in its rings.
            let has_time = progress.ended_at.is_none_or(|at| at.elapsed() < SIBLINGS_LIMIT);
            if has_time && region_cache::serving(self.shared_region(), 0) > 0 {
                return Ok(false);
            }
            if progress.ask_at.is_none_or(|at| at <= now) {
                progress.ask_at = Some(now + DAEMON_POLL);
                progress.asked = self.ask(reconnect)?;
            }
            return Ok(false);
        };
        if !request.asked.is_answered() {
            if request.at.elapsed() < REPLY_TIMEOUT {
                progress.asked = Some(request);
            }
            return Ok(false);
        }
        let next = self.receive_next(reconnect, request)?;
        // Pointers to it, and to its list of buffers.
        let needs_iface = reconnect.keeper.get().is_some() || self.extra_bufs() > 0;
        same_shape(&reconnect.shape, &next.binding, needs_iface)
            .map_err(|why| Hindrance::Lasting(another_shape(self, &why)))?;
        self.go_on(reconnect, next)?;
        Ok(true)
    }

    /// Asks the daemon that listens now; `None`: there is none.
    fn ask(&self, reconnect: &Reconnect) -> Result<Option<Request>, Error> {
        let mut request = reconnect.request.clone();
        if let Ok(register) = NmreqRegister::mut_from_bytes(&mut request.body) {
            let (iface, ring) = first_objects(&reconnect.shape, reconnect.is_second);
            register.nr_flags |= NR_AT;
            (register.nr_offset, register.nr_memsize) = (iface.into(), ring.into());
            if register.nr_mem_id != 0 {
                register.nr_mem_id = region_cache::mem_id_of(self.shared_region()).unwrap_or(register.nr_mem_id);
            }
        }
        let socket: &Path = &self.connection.socket;
        let Some(asked) = Asked::send(socket, self.spec(), &request)? else { return Ok(None) };
        let holder = Requested::send(socket)?;
        Ok(Some(Request { asked, holder, at: Instant::now(), forks: process::fork_count() }))
    }

    /// Receives the replies.
    fn receive_next(&self, reconnect: &Reconnect, request: Request) -> Result<Next, Hindrance> {
        let malformed = || Error::malformed_reply(self.spec());
        let received = request.asked.receive(self.spec(), SHORT_REPLY_LIMIT);
        let asks_by_number =
            reconnect.request.body_as::<NmreqRegister>().is_some_and(|register| register.nr_mem_id != 0);
        let (connection, reply, mut fds) = match received {
            // The port that brings the region may not be back yet, or the one that is watched.
            Err(Error::Refused { .. }) if asks_by_number => return Err(Hindrance::Passing),
            Err(Error::Refused { errno: errno::EINVAL, .. }) if reconnect.is_monitor => return Err(Hindrance::Passing),
            received => received?,
        };
        let NetmapReply { request: reply, binding, .. } = reply;
        let register: NmreqRegister = reply.body_as().ok_or_else(malformed)?;
        let binding = Binding::decode(&binding).filter(|b| b.fds() == fds.len()).ok_or_else(malformed)?;
        let holder = request.holder.receive(&self.connection.socket)?;
        if binding.rings.iter().any(|ring| ring.features & DOORBELL_LATER != 0) {
            let of_session = PeerDoorbellsRequest { session: binding.head.session, key: binding.head.key };
            let peers = holder.peer_doorbells(self.spec(), &of_session).ok_or(Hindrance::Passing)?;
            if peers.len() != binding.rings.len() {
                return Err(malformed().into());
            }
            for (number, peer) in peers.into_iter().enumerate() {
                fds[FIXED_FDS + 2 * number + 1] = peer;
            }
        }
        Ok(Next { connection, holder, register, binding, fds })
    }

    /// The daemon has ended. Sends what can still be sent, counts what is lost, shows the program no more slots, and
    /// gives up the interface's queues.
    fn leave(&self, reconnect: &Reconnect) {
        let holder = self.holder_id();
        if !reconnect.is_pipe {
            self.tx.iter().for_each(|ring| _ = ring.inner.sync(holder, Effort::Full, None));
        }
        self.clear_wait_sets(reconnect);
        self.many.clear_sets(&self.tx, &self.rx);
        let _guards = lock_all(self);
        let [file, ..] = *reconnect.files.lock().unwrap_or_else(PoisonError::into_inner);
        // Otherwise another port has brought the next region meanwhile, and with it the pages of its pipes.
        let is_there = region_cache::is_in(self.shared_region(), file);
        let rings = || self.tx.iter().chain(&self.rx);
        let lost: u64 = rings().map(|ring| u64::from(lost_slots(ring, is_there, reconnect.is_pipe))).sum();
        reconnect.lost.fetch_add(lost, Relaxed);
        for ring in rings() {
            // A socket that stays keeps the queue, and the next daemon says so.
            let _ = ring.inner.backend.give_up();
            if is_there {
                ring.inner.view.set_tail(ring.head());
            }
        }
        reconnect.keeper.get().into_iter().for_each(|keeper| keeper(None));
    }

    /// Puts the next daemon's files in the place of those of before.
    fn go_on(&self, reconnect: &Reconnect, next: Next) -> Result<(), Hindrance> {
        let Next { connection, holder, register, binding, fds } = next;
        let host = |e: std::io::Error| Hindrance::Lasting(Error::host(self.spec(), e));
        let guards = lock_all(self);
        let layout = geometry(&binding.head.pools);
        let mut files = reconnect.files.lock().unwrap_or_else(PoisonError::into_inner);
        let region = self.shared_region();
        let is_its_own = region_cache::replace(region, files[0], (&fds[0], layout), Some(register.nr_mem_id));
        if !is_its_own.map_err(host)? {
            return Err(Hindrance::Passing);
        }
        // From here on an error leaves the port of neither daemon.
        std::mem::forget(guards);
        if binding.head.page_bytes > 0 {
            let part = FilePart { file: files[2], from: 0, bytes: binding.head.page_bytes.into() };
            in_place::replace_memory(part, fds[2].as_fd(), 0).map_err(host)?;
        }
        let next_files = files_of(&fds).map_err(host)?;
        let mut fds = fds.into_iter();
        let (Some(region), Some(states), Some(_channels)) = (fds.next(), fds.next(), fds.next()) else {
            return Err(host(std::io::ErrorKind::UnexpectedEof.into()));
        };
        for (ring, bound) in self.tx.iter().chain(&self.rx).zip(&binding.rings) {
            let (Some(doorbell), Some(other)) = (fds.next(), fds.next()) else { break };
            ring.inner.backend.go_on(NextRing { bound, doorbell, other }).map_err(host)?;
            ring.inner.invalid_index.store(NO_INDEX, Relaxed);
            ring.inner.mirrors.replace(Vec::new(), 0);
            if bound.dir == 0 {
                mark_changed(ring);
            }
        }
        let (kept, own) = match reconnect.keeper.get() {
            Some(keeper) => (Some((keeper, (connection, region))), holder.connection().map_err(host)?),
            None => (None, connection),
        };
        in_place::replace_fd(self.connection.fd.as_fd(), own).map_err(host)?;
        self.serve_again(holder, (binding.head.session, binding.head.key));
        // Last, as its locks are those of all threads.
        let bytes = unetmap_mem::EndpointPage::bytes(binding.head.states as usize) as u64;
        let part = FilePart { file: files[1], from: 0, bytes };
        in_place::replace_memory(part, states.as_fd(), 0).map_err(host)?;
        *files = next_files;
        kept.into_iter().for_each(|(keeper, next)| keeper(Some(next)));
        reconnect.mem_id.store(register.nr_mem_id.into(), Relaxed);
        reconnect.count.fetch_add(1, Relaxed);
        self.daemon_is_back();
        reconnect.set_serving(self.shared_region(), true);
        self.fill_wait_sets(reconnect);
        self.many.fill_sets(&self.tx, &self.rx);
        Ok(())
    }
}

fn reason_of(e: &Error) -> String {
    match e {
        Error::Refused { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

fn another_shape(port: &Port, why: &str) -> Error {
    let reason = format!("the next daemon gives the port another shape than the last: {why}; open it again");
    Error::refused(port.spec(), errno::ENXIO, reason)
}

/// Tells the program that the buffers of a transmit ring are others: some programs write theirs once.
fn mark_changed(ring: &Ring) {
    let slots = ring.inner.view.slots();
    for p in (0..slots.slots().get()).filter_map(|raw| slots.slots().pos(raw)) {
        slots.set_flags(p, NS_BUF_CHANGED);
    }
}

/// Takes the locks of the port's rings. One that another thread has for long is left: its process may have been killed
/// when no daemon was there to free it.
fn lock_all(port: &Port) -> Vec<SyncGuard<'_>> {
    let (holder, thread, start) = (port.holder_id(), process::this_thread(), Instant::now());
    let mut guards = Vec::new();
    for ring in port.tx.iter().chain(&port.rx) {
        let mut guard = ring.try_lock(holder, thread);
        while guard.is_none() && start.elapsed() < RING_LOCK_LIMIT {
            std::thread::yield_now();
            guard = ring.try_lock(holder, thread);
        }
        guards.extend(guard);
    }
    guards
}

/// Returns how many slots end with their daemon: those that the program has not read, or that were filled and not sent,
/// and those of a transmit ring that nobody has taken. Of a pipe the receiver counts what was sent. Unless the ring
/// `is_there`, its head and its channel are those of the next daemon.
fn lost_slots(ring: &Ring, is_there: bool, is_pipe: bool) -> u32 {
    let slots = ring.inner.view.shape().slots;
    let Some((hwcur, hwtail)) = ring.inner.state().positions(slots) else { return 0 };
    let head = ring.head();
    match (ring.inner.backend.tx(), ring.inner.backend.rx()) {
        (Some(_), _) if !is_there => 0,
        (Some(tx), _) if is_pipe => slots.distance(hwcur, head) + tx.missed_by_receiver(hwcur),
        (Some(_), _) => slots.distance(slots.next(hwtail), head),
        (None, Some(_)) if !is_there => slots.distance(hwcur, hwtail),
        (None, Some(rx)) => slots.distance(head, hwtail) + rx.undelivered(hwtail),
        (None, None) => 0,
    }
}
