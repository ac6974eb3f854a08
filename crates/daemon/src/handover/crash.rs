// SPDX-License-Identifier: BSD-2-Clause
//! Keeping the state for the case of a crash ([`crate::handover::store`]).

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use unetmap_sys::socket;

use crate::broker;
use crate::descriptors::Outgoing;
use crate::events::What;
use crate::handover::SavedForCrash;
use crate::handover::store::{self, ProtectionSnapshot, Store};
use crate::owner::owner;
use crate::ports::mediators::{DAEMON_HOLDER, PausedThread};
use crate::ports::nic;
use crate::server::Server;
use crate::server::work::{INTERFACES, STORE, WATCHES};
use crate::service::Service;
use crate::tuning::events::MAX_REASON;

impl Server {
    /// Keeps the state in this process from now on; an error says why there is none.
    pub(crate) fn set_store(&mut self, store: io::Result<Store>) {
        self.protection.ask_for();
        let broker = || broker::Duplicates::new();
        match store.and_then(|store| Ok((store, broker()?))) {
            Ok((mut store, broker)) => {
                store.set_broker(broker);
                self.store = Some(store);
            }
            Err(e) => self.is_kept(Err(format!("the process that keeps the ports cannot be used: {e}"))),
        }
    }

    /// Tells whether ports are kept, if that is new; an error says why not.
    fn is_kept(&mut self, kept: Result<(), String>) {
        match kept {
            Ok(()) => {
                let Some(was_off) = self.protection.set_on() else { return };
                self.daemon.events.add(owner(), What::CrashProtectionOn { off_seconds: was_off.as_secs_f64() });
            }
            Err(why) => {
                if self.protection.set_off(&why) {
                    let reason = why.chars().take(MAX_REASON).collect();
                    self.daemon.events.add(owner(), What::CrashProtectionOff { reason });
                }
            }
        }
    }

    /// How many sessions are kept, and whether all are.
    pub(crate) fn kept(&self) -> (usize, ProtectionSnapshot) {
        let store = self.store.as_ref();
        (store.map_or(0, Store::kept_sessions), self.protection.snapshot(store.and_then(Store::pid)))
    }

    /// A process that keeps the state, or is to, has answered or ended.
    pub(crate) fn store_answers(&mut self) {
        if let Some(known) = self.store.as_mut().and_then(Store::take_answers) {
            self.is_kept(known);
        }
    }

    /// The daemon exits as it should.
    pub(crate) fn end_store(&mut self) {
        self.store.take().iter().for_each(Store::end);
    }

    /// The message of a connection is being answered; 0: other work is done. Returns its session.
    pub(crate) fn mark(&mut self, token: u64) -> Option<u64> {
        let store = self.store.as_mut()?;
        store.changed();
        if token != 0 {
            store.set_mark(token);
        }
        self.clients.get(&token)?.session
    }

    /// It is done; `before`: the session that it had.
    pub(crate) fn end_mark(&mut self, token: u64, before: Option<u64>) {
        let settings_changed = std::mem::take(&mut self.daemon.settings_changed);
        let Some(store) = self.store.as_mut().filter(|_| token != 0) else { return };
        store.set_mark(0);
        let Some(client) = self.clients.get(&token) else { return };
        // A connection that goes on would have its former port, or another one's filter.
        if settings_changed || before.is_some() && client.session != before {
            store.set_obsolete();
        }
        // Its answer follows later.
        if (client.session.is_some() || client.holder.is_some()) && client.task.is_some() {
            store.changed_now();
        }
    }

    /// An event was handled. A state with an interface that has changed must not be used, and a queue that was closed
    /// may be opened next.
    pub(crate) fn event_changed(&mut self, service: &Service, token: u64) {
        if let Some(store) = self.store.as_mut().filter(|_| token == INTERFACES || token & WATCHES != 0) {
            store.changed_now();
            self.keep(service, Instant::now());
        }
    }

    /// Has the state kept, if it may have changed; returns the time until it is to be, if it is not yet.
    pub(crate) fn keep(&mut self, service: &Service, now: Instant) -> Option<Duration> {
        let store = self.store.as_mut()?;
        let spare_due = store.start_spare(now);
        if store.is_overdue(now) {
            self.is_kept(Err(store::UNREAD.into()));
        }
        if self.store.as_ref()?.is_due(now).is_ok() {
            self.keep_now(service);
        }
        let store = self.store.as_mut()?;
        for fd in store.take_unwatched() {
            if let Err(e) = self.epoll.add(fd, STORE, true, false) {
                tracing::warn!("the end of the process that keeps the ports will be noticed late: {e}");
            }
        }
        let due = store.is_due(Instant::now()).map_or_else(|left| left, |()| Some(Duration::ZERO));
        [due, spare_due].into_iter().flatten().min()
    }

    fn keep_now(&mut self, service: &Service) {
        let Some(mut store) = self.store.take() else { return };
        self.daemon.registry.tidy_all();
        let told = match self.daemon.check_hand_over() {
            Ok(()) => self.keep_in(&mut store, service),
            Err(_) => store.later(nic::any_was_closed(), self.daemon.is_opening_interface()),
        };
        self.store = Some(store);
        if told.is_err() {
            self.is_kept(told);
        }
    }

    fn keep_in(&mut self, store: &mut Store, service: &Service) -> Result<(), String> {
        let closed = nic::any_was_closed();
        let parts = self.parts_for_crash(store);
        let mut fds = Outgoing::default();
        let state = match &parts {
            Ok(parts) => self.save(service, parts, &mut fds).map_err(|refusal| refusal.why),
            Err(e) => Err(format!("the process with root's privileges does not answer: {e}")),
        };
        store.keep(state.map(|state| (state, fds.fds())), closed)
    }

    /// Takes what a daemon has left that has crashed, before its threads' work is continued: their locks, and the
    /// broker. Returns the sessions that belong to no connection and no thread: those of programs at the node, and of
    /// connections that are not kept.
    pub(crate) fn take_from_crashed(&mut self, crash: &SavedForCrash) -> Vec<u64> {
        let broken = self.daemon.registry.break_locks(DAEMON_HOLDER);
        if broken > 0 {
            tracing::debug!(broken, "the daemon that crashed was copying: its locks are broken");
        }
        if let Some(last) = crash.last_handle
            && let Err(e) = broker::go_on_after_crash(last)
        {
            tracing::error!("interfaces can be neither opened nor closed: {e}");
        }
        let of_threads = self.daemon.mediators.paused.iter().flat_map(PausedThread::sessions);
        let known: BTreeSet<u64> =
            self.clients.values().filter_map(|client| client.session).chain(of_threads).collect();
        self.daemon.registry.sessions.keys().copied().filter(|session| !known.contains(session)).collect()
    }

    /// After a crash: closes these sessions, ends the connection whose message was being answered, and wakes all
    /// programs, as the process that crashed may have been about to. The node, if it was on, is on again at `node`.
    pub(crate) fn recover(&mut self, marked: Option<u64>, unknown: Vec<u64>, node: Option<PathBuf>) {
        if let Some(client) = marked.and_then(|token| self.clients.get(&token)) {
            tracing::warn!(pid = client.peer.pid, "the daemon crashed while it answered this process");
            socket::shut_down(&client.fd);
        }
        if !unknown.is_empty() {
            let closed = unknown.len();
            tracing::warn!(closed, "ports of programs at the node, or that were just being opened, end with the crash");
        }
        unknown.into_iter().for_each(|session| self.daemon.close(session));
        if let Some(path) = node
            && let Err(refusal) = self.nodes.on(&mut self.daemon, path)
        {
            tracing::error!("the node is off: {}", refusal.why);
        }
        self.daemon.registry.wake_all();
    }
}
