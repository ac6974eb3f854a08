// SPDX-License-Identifier: BSD-2-Clause
//! Sending answers, and what waits until clients have received them.
//!
//! ```text
//! message --> [its user's share of the descriptors in flight is free] --> answered --> sent --> received
//!         --> held: left in the connection's queue until it is     --> unsent: the kernel passes no more
//!                                                                      descriptors now, sent again soon
//! ```
//! Only messages whose answers bring descriptors are held, and before anything was done for them: nothing is kept for
//! an answer that waits, and a daemon that replaces this one reads the message itself. The number of an answer's
//! descriptors is known only when it was made, so that a user may exceed its share by one answer.
//!
//! That something was received is looked at when it matters. While anything is held, all connections with something in
//! flight are *parked*: an event follows when the client has received it.

use std::collections::BTreeSet;
use std::mem;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use unetmap_core::control::Kind;
use unetmap_core::errno::ETOOMANYREFS;
use unetmap_sys::memfd;
use unetmap_sys::process;
use unetmap_sys::socket;

use super::unsent::Unsent;
use super::waits::Waiter;
use super::work::{Task, Work};
use super::{Client, Server};
use crate::budget::{Amounts, Resource};
use crate::handover::store::Store;
use crate::in_flight::Received;
use crate::refusal::{Refusal, refuse_lack};
use crate::region::Scope;
use crate::requests::{self, Answer, SnapshotTask, text_answer};
use crate::tuning::answers::{RESEND_LIMIT, RESEND_PAUSE};

impl Server {
    /// Why an answer with descriptors must not be sent to a user now, if so.
    fn check_in_flight(&mut self, uid: u32) -> Result<(), String> {
        if !self.answers.unsent.is_empty() {
            return Err("the kernel passes no file descriptors of the daemon now: try again".into());
        }
        let checked = self.daemon.check_in_flight(uid);
        if checked.is_err() && self.answers.held.is_empty() {
            // With anything held, events tell what is received.
            self.forget_received();
            return self.daemon.check_in_flight(uid);
        }
        checked
    }

    /// Whether messages of this user wait whose answers bring descriptors.
    pub(super) fn must_hold(&mut self, uid: u32) -> bool {
        self.check_in_flight(uid).is_err()
    }

    /// Holds a connection's message, which is in the connection's queue or, if it has waited for something else, its
    /// task.
    pub(super) fn hold(&mut self, uid: u32, token: u64) {
        if self.answers.held.is_empty() {
            self.daemon.users.in_flight.tokens().collect::<Vec<_>>().into_iter().for_each(|token| self.park(token));
        }
        let own = self.answers.held.entry(uid).or_default();
        let is_first = own.is_empty();
        own.insert(token);
        if is_first && let Err(why) = self.daemon.check_in_flight(uid) {
            tracing::debug!(uid, why, "requests wait");
            self.daemon.events.requests_wait(uid, &why);
        }
    }

    /// Has an event follow when a client has received what was sent to it.
    fn park(&mut self, token: u64) {
        if let Some(client) = self.clients.get_mut(&token).filter(|client| !client.is_parked) {
            client.is_parked = true;
            let _ = self.epoll.modify_edge(&client.fd, token, true);
        }
    }

    /// Has the next message of each user that may go on read, if any is held; returns whether there is one.
    pub(super) fn release(&mut self) -> bool {
        if !mem::take(&mut self.answers.may_release) {
            return false;
        }
        self.daemon.admission.begin_work();
        let users: Vec<u32> = self.answers.held.keys().copied().collect();
        let mut any = false;
        for uid in users {
            if self.must_hold(uid) {
                continue;
            }
            let Some(token) = self.answers.held.get_mut(&uid).and_then(BTreeSet::pop_first) else { continue };
            self.forget_held(uid, token);
            any = true;
            if self.clients.get(&token).is_some_and(|client| client.task.is_some()) {
                self.turns.push(uid, Work::Continue(token));
            } else {
                self.make_ready(token);
            }
        }
        self.daemon.admission.end_work();
        any
    }

    /// Something was done for a user: if messages of it are held, one more may go on.
    pub(super) fn has_worked(&mut self, uid: u32) {
        self.answers.may_release |= self.answers.held.contains_key(&uid);
    }

    /// A connection's message is not held any more.
    pub(super) fn forget_held(&mut self, uid: u32, token: u64) {
        if let Some(own) = self.answers.held.get_mut(&uid) {
            own.remove(&token);
            if own.is_empty() {
                self.answers.held.remove(&uid);
            }
        }
    }

    /// Whether the message that a connection's task has waits for nothing else.
    pub(crate) fn is_held(&self, uid: u32, token: u64) -> bool {
        self.answers.held.get(&uid).is_some_and(|own| own.contains(&token))
    }

    /// Holds a message that was read.
    fn hold_task(&mut self, uid: u32, token: u64, kind: Kind, payload: Vec<u8>) {
        self.set_task(token, (kind, Task::Held(payload)));
        self.hold(uid, token);
    }

    fn set_task(&mut self, token: u64, task: (Kind, Task)) {
        if let Some(client) = self.clients.get_mut(&token) {
            client.task = Some(task);
        }
    }

    /// Forgets what was in flight on a connection if it was received.
    pub(super) fn forget_if_received(&mut self, token: u64) {
        let received = self.daemon.users.in_flight.remove_if_received(token);
        self.forgotten(received);
    }

    /// The same, on all connections.
    pub(super) fn forget_received(&mut self) {
        let received = self.daemon.users.in_flight.remove_received();
        self.forgotten(received);
    }

    fn forgotten(&mut self, received: impl IntoIterator<Item = Received>) {
        for Received { uid, ended } in received {
            self.answers.may_release = true;
            if let Some(fd) = ended {
                let _ = self.epoll.delete(&fd);
                // It has a duplicate.
                self.store.iter_mut().for_each(Store::changed);
                self.close_connection(uid, fd);
            }
        }
    }

    /// A connection has ended. Returns whether anything is in flight there: an event follows when it was received.
    pub(crate) fn leave_in_flight(&mut self, uid: u32, token: u64, fd: &OwnedFd) -> bool {
        self.forget_held(uid, token);
        if self.answers.unsent.remove(&token) {
            self.answers.may_release = true;
        }
        self.forget_if_received(token);
        let is_left = self.daemon.users.in_flight.leave(token);
        if is_left {
            // The client can still receive what was sent, and its end.
            socket::shut_down(fd);
            let _ = self.epoll.modify_edge(fd, token, true);
        }
        is_left
    }

    /// Goes on with an answer.
    pub(crate) fn continue_answer(&mut self, token: u64) {
        let Some(client) = self.clients.get_mut(&token).filter(|client| !client.is_ended) else { return };
        let uid = client.peer.uid;
        let task = client.task.take();
        self.forget_held(uid, token);
        let is_open = match task {
            None => return,
            Some((kind, Task::Wait)) => match self.waits.take_ready(token) {
                Some((Waiter::Connection(payload, _), got))
                    if requests::brings_descriptors(kind) && self.must_hold(uid) =>
                {
                    // It begins anew.
                    self.give_back(token, Ok(got));
                    return self.hold_task(uid, token, kind, payload);
                }
                Some((Waiter::Connection(payload, caller), got)) => self.go_on(token, (kind, &payload), caller, got),
                // It goes on when a thread is done.
                _ => return self.set_task(token, (kind, Task::Wait)),
            },
            Some((kind, Task::Snapshot(task))) => {
                self.answered = "snapshot, a slice";
                self.continue_snapshot(token, kind, task)
            }
            Some((kind, Task::Send(unsent))) => self.send_rest(token, kind, unsent),
            Some((kind, Task::Held(payload))) if requests::brings_descriptors(kind) && self.must_hold(uid) => {
                return self.hold_task(uid, token, kind, payload);
            }
            Some((kind, Task::Held(payload))) => self.answer(token, kind, &payload),
        };
        if !is_open {
            self.end(token);
        } else if self.clients.get(&token).is_some_and(Client::has_message) {
            self.make_ready(token);
        }
    }

    /// Goes on with a snapshot, and answers when it is complete; returns `false` when the connection is to be closed.
    fn continue_snapshot(&mut self, token: u64, kind: Kind, mut task: Box<SnapshotTask>) -> bool {
        let general = (self.clients.len(), self.kept(), self.started, self.work_times.clone());
        if !task.step(&self.daemon) {
            let Some(client) = self.clients.get_mut(&token) else { return true };
            client.task = Some((kind, Task::Snapshot(task)));
            self.turns.push_slice(client.peer.uid, Work::Continue(token));
            return true;
        }
        let json = task.json(&self.daemon, general);
        self.send_answer(token, kind, text_answer(&json.each_ref().map(String::as_str)), false)
    }

    /// Sends the answer to a connection's message, which `opened` the connection's session; returns `false` when the
    /// connection is to be closed.
    pub(super) fn send_answer(&mut self, token: u64, kind: Kind, answer: Answer, opened: bool) -> bool {
        let Some(uid) = self.clients.get(&token).map(|client| client.peer.uid) else { return true };
        let mut unsent = Unsent { opened, ..Unsent::from(answer) };
        // A long text, which is in a file.
        if !requests::brings_descriptors(kind)
            && let Some(file) = unsent.answer.text.take()
            && let Err(Refusal { errno, why, .. }) = self.pay_for_text(uid, file)
        {
            unsent = Answer { errno, payload: why.into_bytes(), ..Default::default() }.into();
        }
        self.send_rest(token, kind, unsent)
    }

    /// Has a user pay for the memory of a text that is sent to it, if it may have that.
    fn pay_for_text(&mut self, uid: u32, file: OwnedFd) -> Result<(), Refusal> {
        let in_flight = |why| Refusal::new(Resource::InFlight.errno(), why);
        self.check_in_flight(uid).map_err(in_flight)?;
        if !self.daemon.admission.has_no_budget(uid) {
            let bytes = memfd::resident_bytes(&file).or_else(|e| refuse_lack("the list cannot be sent", &e))?;
            self.daemon.check_budget(Scope { uid, netns: 0 }, Amounts::of(Resource::Memory, bytes))?;
            self.daemon.registry.regions.files.leave(uid, file.as_fd());
        }
        Ok(())
    }

    /// Goes on with an answer; returns `false` when the connection is to be closed.
    pub(super) fn send_rest(&mut self, token: u64, kind: Kind, mut unsent: Unsent) -> bool {
        let Some(client) = self.clients.get(&token) else { return true };
        let (uid, fds) = (client.peer.uid, unsent.answer.fds.len() as u64);
        let sent = unsent.send(&client.fd, client.tag, kind);
        if unsent.sent > 0 {
            let users = &mut self.daemon.users;
            users.in_flight.add(token, uid, &client.fd, unsent.sent as u64, &users.ledger);
            if !self.answers.held.is_empty() {
                self.park(token);
            }
        }
        let is_refused = sent.as_ref().is_err_and(|e| e.raw_os_error() == Some(ETOOMANYREFS));
        if self.answers.unsent.remove(&token) {
            self.answers.may_release = true;
        }
        if is_refused {
            return self.put_off(token, kind, unsent);
        }
        if fds > 0 && sent.is_ok() {
            (self.answers.refused, self.answers.is_logged) = (None, false);
        }
        sent.is_ok()
    }

    /// Has an answer sent again in a moment or, if that was tried for long, tells the client instead.
    fn put_off(&mut self, token: u64, kind: Kind, unsent: Unsent) -> bool {
        let (now, before) = (Instant::now(), self.answers.refused);
        let since = before.filter(|(_, last)| now - *last < RESEND_LIMIT).map_or(now, |(first, _)| first);
        self.answers.refused = Some((since, now));
        let Some(client) = self.clients.get_mut(&token) else { return true };
        if now - since < RESEND_LIMIT {
            client.task = Some((kind, Task::Send(unsent)));
            self.answers.unsent.insert(token);
            self.answers.resend.get_or_insert(now + RESEND_PAUSE);
            return true;
        }
        let why = format!(
            "the daemon cannot pass the answer's file descriptors: its user, {}, has as many as a process may have files \
             open ({}) in messages that were not received (end the programs that do not receive theirs, or restart the \
             daemon with a higher limit: ulimit -n)",
            process::uid(),
            process::fd_limit()
        );
        if !mem::replace(&mut self.answers.is_logged, true) {
            tracing::warn!(pid = client.peer.pid, "requests fail: {why}");
        }
        if let Some(session) = client.session.take_if(|_| unsent.opened) {
            self.daemon.close(session);
        }
        let kind = if unsent.is_begun { Kind::MORE_FDS } else { kind };
        let refusal = Answer { errno: ETOOMANYREFS, payload: why.into_bytes(), ..Default::default() };
        self.clients.get(&token).is_some_and(|client| Unsent::from(refusal).send(&client.fd, client.tag, kind).is_ok())
    }

    /// Has answers sent again that the kernel has refused; returns the time until that is due.
    pub(super) fn resend(&mut self, now: Instant) -> Option<Duration> {
        let due = self.answers.resend?;
        if now < due {
            return Some(due - now);
        }
        self.answers.resend = None;
        for token in &self.answers.unsent {
            if let Some(client) = self.clients.get(token) {
                self.turns.push(client.peer.uid, Work::Continue(*token));
            }
        }
        (!self.answers.unsent.is_empty()).then_some(Duration::ZERO)
    }
}
