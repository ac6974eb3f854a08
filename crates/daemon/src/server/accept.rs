// SPDX-License-Identifier: BSD-2-Clause
//! Accepting connections, and turning those away whose users are not served or have too many.
//!
//! Any local user can connect as fast as it can, and all connections wait in one queue. Accepting them takes at most
//! half of the control thread's time; they are checked and admitted at turns of their users (`waiting`). What is
//! needed to check one is computed once for all that are admitted at a turn.
//!
//! Without a descriptor for another connection, a reserved one is given up for a moment to close it. Where that does
//! not help, connections wait for [`ACCEPT_PAUSE`]: the listener stays readable, and would occupy the thread.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unetmap_core::errno::{EACCES, EMFILE, ENFILE, ENOMEM};
use unetmap_sys::socket::{self, Peer};

use super::unsent::send_refusal;
use super::work::{LISTENER, Work};
use super::{Client, Server};
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::ports::{BudgetCheck, Daemon};
use crate::refusal::{Refusal, refuse};
use crate::requests::Answer;
use crate::tuning::server::{
    ACCEPT_LIMIT, ACCEPT_PAUSE, ACCEPTS_BETWEEN_LOOKS, ADMISSIONS_A_TURN, ANSWERED_WITH_ADMISSION, HELLO_LIMIT,
    MAX_ACCEPTS,
};

/// Facts for checking a new connection, computed for the first one that needs them.
#[derive(Default)]
struct Checks {
    budgets: Option<BudgetCheck>,
    /// Users with an open port.
    with_sessions: Option<BTreeSet<u32>>,
}

impl Checks {
    fn budgets(&mut self, daemon: &mut Daemon) -> &mut BudgetCheck {
        self.budgets.get_or_insert_with(|| daemon.budget_check())
    }

    fn has_sessions(&mut self, daemon: &Daemon, uid: u32) -> bool {
        let all = || daemon.registry.sessions.values().map(|session| session.uid).collect();
        self.with_sessions.get_or_insert_with(all).contains(&uid)
    }
}

/// Whether a descriptor is lacking, of this process or of the machine, or memory for one.
fn is_lack(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(ENFILE | EMFILE | ENOMEM))
}

impl Client {
    /// A connection that was accepted, of a user without a rate.
    pub(crate) fn new(fd: Arc<OwnedFd>, peer: Peer) -> Client {
        Client {
            fd,
            peer,
            session: None,
            holder: None,
            tag: 0,
            rate: None,
            task: None,
            has_spoken: false,
            is_answered: false,
            is_parked: false,
            is_ready: false,
            is_ended: false,
        }
    }
}

impl Server {
    /// Accepts connections, unless that has taken more than half of the time of late and there is other work.
    pub(super) fn accept_clients(&mut self) {
        if !self.accept_debt.is_zero() && !self.turns.is_empty() {
            return;
        }
        let start = Instant::now();
        for n in 1..=MAX_ACCEPTS {
            if !self.accept_one() || n % ACCEPTS_BETWEEN_LOOKS == 0 && start.elapsed() > ACCEPT_LIMIT {
                break;
            }
        }
        self.accept_debt = start.elapsed();
    }

    /// Returns whether there may be another connection.
    fn accept_one(&mut self) -> bool {
        let fd = match socket::accept(&self.listener) {
            Ok(fd) => fd,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
            Err(e) if is_lack(&e) => {
                self.reject_one();
                return false;
            }
            Err(e) => {
                tracing::debug!("accept: {e}");
                return false;
            }
        };
        let peer = match socket::peer(&fd) {
            Ok(peer) => peer,
            Err(e) => {
                tracing::debug!("a connection without a peer is closed: {e}");
                return true;
            }
        };
        let (is_first, given_up) = self.waiting.push(Arc::new(fd), peer, &self.daemon.users.subordinates);
        if is_first {
            self.turns.push(peer.uid, Work::Admit);
        }
        if let Some((fd, peer)) = given_up {
            tracing::debug!(uid = peer.uid, pid = peer.pid, "turned away, as too many connections wait");
            self.close_connection(peer.uid, fd);
        }
        true
    }

    /// Closes a client's connection for which no descriptor is left, rather than leaving it waiting.
    fn reject_one(&mut self) {
        self.reserve = None;
        let rejected = socket::accept(&self.listener);
        if let Err(e) = &rejected
            && is_lack(e)
            && self.epoll.modify(&self.listener, LISTENER, false, false).is_ok()
        {
            tracing::debug!("connections wait, as there is no file descriptor for one: {e}");
            self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
        }
        drop(rejected);
        self.reserve = File::open("/dev/null").ok();
    }

    /// Accepts connections again after a pause; returns the time until that is due.
    pub(super) fn end_accept_pause(&mut self, now: Instant) -> Option<Duration> {
        let again = self.accept_again?;
        if now < again {
            return Some(again - now);
        }
        self.reserve = self.reserve.take().or_else(|| File::open("/dev/null").ok());
        let is_on = self.epoll.modify(&self.listener, LISTENER, true, false).is_ok();
        self.accept_again = (!is_on).then_some(now + ACCEPT_PAUSE);
        (!is_on).then_some(ACCEPT_PAUSE)
    }

    /// Admits connections of a user, or turns them away; returns those that were admitted.
    pub(crate) fn admit_some(&mut self, uid: u32) -> Vec<u64> {
        let (mut checks, mut admitted) = (Checks::default(), Vec::new());
        for _ in 0..ADMISSIONS_A_TURN {
            let Some((fd, peer)) = self.waiting.pop(uid) else { return admitted };
            admitted.extend(self.admit(fd, peer, &mut checks));
        }
        if self.waiting.has_any(uid) {
            self.turns.push(uid, Work::Admit);
        }
        admitted
    }

    /// Answers what has already arrived on connections that were just admitted, at the same turn: a user who does
    /// little opens a port in one turn, and need not wait for several.
    pub(super) fn answer_admitted(&mut self, uid: u32, admitted: &[u64]) {
        if admitted.len() > ANSWERED_WITH_ADMISSION {
            return;
        }
        for &token in admitted {
            if self.turns.has_head_start(uid, Instant::now())
                && self.clients.get(&token).is_some_and(|client| !client.is_ready && client.has_message())
            {
                self.do_work(uid, Work::Message(token));
            }
        }
    }

    /// Returns the connection's token if it was admitted.
    fn admit(&mut self, fd: Arc<OwnedFd>, peer: Peer, checks: &mut Checks) -> Option<u64> {
        if let Err(Refusal { errno, why, .. }) = self.check_client(&fd, peer, checks) {
            tracing::debug!(uid = peer.uid, pid = peer.pid, why, "turned away");
            if errno == EACCES {
                // No event: nothing is kept for users that are not served.
                self.daemon.history.refused_by_policy();
            }
            let answer = Answer { errno, payload: why.into_bytes(), ..Default::default() };
            send_refusal(&fd, 0, answer);
            self.close_connection(peer.uid, fd);
            return None;
        }
        let token = self.next_token;
        if let Err(e) = self.epoll.add_edge(&fd, token) {
            tracing::debug!("a connection cannot be waited for, and is closed: {e}");
            return None;
        }
        self.next_token += 2;
        self.daemon.users.add_connection(peer.uid);
        let rate = (!self.daemon.admission.has_no_budget(peer.uid))
            .then(|| checks.budgets(&mut self.daemon).request_rate(peer.uid));
        if rate.is_some() {
            self.newcomers.push_back((Instant::now(), token));
        }
        self.clients.insert(token, Client { rate, ..Client::new(fd, peer) });
        Some(token)
    }

    /// Refuses a new connection of a user that this daemon does not serve, or that has too many connections.
    fn check_client(&mut self, fd: &Arc<OwnedFd>, peer: Peer, checks: &mut Checks) -> Result<(), Refusal> {
        if self.closer.is_blocked(peer.uid) {
            return refuse(EMFILE, "closing this user's earlier connections takes long");
        }
        if peer.uid == 0 {
            return self.daemon.admission.check_root(fd);
        }
        if peer.uid == self.owner {
            return Ok(());
        }
        if self.owner != 0 {
            return refuse(EACCES, format!("this is the daemon of user {}, which serves no other", self.owner));
        }
        let caller = Caller::of_connection(fd, peer)
            .or_else(|e| refuse(EACCES, format!("the user cannot be identified: {e}")))?;
        // A user with an open port needs connections for it after a change of the policy, too: a forked child for its
        // holder ID, for example. Each request that opens a port is checked by itself.
        if !checks.has_sessions(&self.daemon, peer.uid) {
            self.daemon.admission.check_admission(&caller)?;
        }
        let budgets = checks.budgets(&mut self.daemon);
        budgets
            .check(peer.uid, Amounts::connection())
            .inspect_err(|refusal| self.daemon.budget_reached(peer.uid, refusal))
    }

    /// Closes connections that have sent nothing since they were accepted; returns the time until the next is due.
    pub(super) fn end_silent_newcomers(&mut self, now: Instant) -> Option<Duration> {
        while let Some(&(accepted, token)) = self.newcomers.front() {
            let is_silent = self.clients.get(&token).is_some_and(|client| !client.has_spoken);
            let left = HELLO_LIMIT.saturating_sub(now.saturating_duration_since(accepted));
            if is_silent && !left.is_zero() {
                return Some(left);
            }
            self.newcomers.pop_front();
            if is_silent {
                tracing::debug!("a connection is closed, as its client sends no request");
                self.end(token);
                // There is work now.
                return Some(Duration::ZERO);
            }
        }
        None
    }
}
