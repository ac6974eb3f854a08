// SPDX-License-Identifier: BSD-2-Clause
//! The control socket: connections, their messages, and their end.
//!
//! ```text
//! connection     first message        ends when                          effect
//! session        REGISTER             all duplicates of its fd closed    rings unbound, buffers and memory freed
//! lock holder    LockHolder           closed, or its process has exited  locks of the holder broken
//! request        the others           closed                             none
//! ```
//!
//! ```text
//! accept --> waiting --> [turn of its user]
//!        --> turned away: its user is not served, or has too many connections; nothing of it is read (`accept`)
//!        --> ready: a message can be read --> [turn of its user] --> answered --> received: the next can be read
//!        --> ended: hung up, or its process has exited --> [turn of its user, if it had a port] --> closed
//! ```
//!
//! Users take turns, however many connections each has (`turns`). What each can have is bounded (`budget`). A client
//! that sends an invalid message is disconnected, as is one that sends none for a while.

mod accept;
mod answers;
mod disconnect;
mod resume;
mod timers;
mod unsent;
mod waiting;
mod waits;
pub(crate) mod work;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use unetmap_core::control::wire::{self, Malformed};
use unetmap_core::control::{ControlRequest as _, Kind, SnapshotRequest};
use unetmap_core::errno::{EINVAL, EMSGSIZE, EPROTO, EPROTONOSUPPORT};
use unetmap_sys::event::{Epoll, EventFlags};
use unetmap_sys::process::{self, Signal};
use unetmap_sys::socket::{self, Peer, Received};

use crate::caller::Caller;
use crate::channel;
use crate::closer::Closer;
use crate::fault;
use crate::handover::drain::Drain;
use crate::handover::store::{Protection, Store};
use crate::handover::{self, End};
use crate::log;
use crate::netmap_requests::Got;
use crate::node::{Job, Nodes};
use crate::owner::owner;
use crate::ports::nic::settle;
use crate::ports::{Daemon, nic};
use crate::privileged;
use crate::reload;
use crate::requests::{self, Answer, Call, LockHolder, LockHolders, Reply};
use crate::service::Service;
use crate::tuning::server::{EXIT_RETRY, MAX_WAITING};
use crate::turns::{Next, Turns};
use crate::work_times::{WorkClock, WorkTimes};
use unsent::{WaitingAnswers, send_refusal};
use waiting::WaitingConnections;
use waits::Waits;
use work::{FIRST_TOKEN, INTERFACES, LISTENER, NO_MESSAGE, NODE, SIGNALS, Task, WATCHES, Work, kind_of_event};

pub(crate) struct Client {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) peer: Peer,
    pub(crate) session: Option<u64>,
    pub(crate) holder: Option<LockHolder>,
    /// The tag of the message that is being answered.
    pub(crate) tag: u32,
    /// Messages that its user may send in a second; `None`: any number.
    pub(crate) rate: Option<u32>,
    /// The task of its last message, and that message's kind: the next message is read afterwards.
    pub(crate) task: Option<(Kind, Task)>,
    /// Whether it has sent a message.
    pub(crate) has_spoken: bool,
    /// Whether an answer was sent that the client may not have received.
    pub(crate) is_answered: bool,
    /// Whether the event loop waits until the client has received it.
    pub(crate) is_parked: bool,
    /// Whether it waits for its user's turn.
    pub(crate) is_ready: bool,
    /// Whether it is to be closed at its user's turn.
    pub(crate) is_ended: bool,
}

impl Client {
    /// Whether a message can be read.
    fn has_message(&self) -> bool {
        self.task.is_none() && socket::has_input(&self.fd)
    }

    /// Whether a process has a port by it.
    fn has_port(&self) -> bool {
        self.session.is_some() || self.holder.is_some()
    }
}

/// The result of reading from a connection.
enum Read {
    /// A message, which was answered.
    Answered,
    /// There was none.
    Nothing,
    /// The connection is to be closed.
    End,
}

/// The daemon's main thread.
pub(crate) struct Server {
    pub(crate) daemon: Daemon,
    pub(crate) nodes: Nodes,
    pub(crate) epoll: Epoll,
    pub(crate) listener: OwnedFd,
    closer: Closer,
    /// Whether the kernel lets no client send descriptors, whose close could take long.
    fds_are_refused: bool,
    pub(crate) clients: BTreeMap<u64, Client>,
    /// Connections that are not yet admitted.
    pub(crate) waiting: WaitingConnections<Arc<OwnedFd>>,
    /// Time that goes to users' work before the next connection is accepted.
    accept_debt: Duration,
    /// When connections are accepted again; `None`: they are.
    accept_again: Option<Instant>,
    pub(crate) turns: Turns<Work>,
    /// Connections of users with a budget, and when they were accepted; the oldest first.
    pub(crate) newcomers: VecDeque<(Instant, u64)>,
    pub(crate) lock_holders: LockHolders,
    /// Requests that wait for threads.
    pub(crate) waits: Waits,
    /// Messages and answers that wait until clients have received others.
    answers: WaitingAnswers,
    pub(crate) next_token: u64,
    /// A descriptor that is given up for a moment to reject a client when no other is left.
    reserve: Option<File>,
    /// The daemon's user. Besides root only this user may connect; if it is root, all users whom the socket's mode
    /// admits.
    pub(crate) owner: u32,
    /// When it was started, also as the machine's clock had it.
    started: (Instant, SystemTime),
    work_times: WorkTimes,
    clock: WorkClock,
    /// The kind of the message that was answered last.
    answered: &'static str,
    /// Whether a service manager listens for the daemon.
    pub(crate) is_managed: bool,
    /// Whether a service manager started the daemon.
    pub(crate) is_unit: bool,
    /// A connection whose process is to replace this one.
    pub(crate) successor: Option<u64>,
    /// Work that waits until that process has replaced this one.
    pub(crate) drain: Option<Drain>,
    /// The process that keeps the state for the case of a crash.
    pub(crate) store: Option<Store>,
    pub(crate) protection: Protection,
}

impl Server {
    /// Returns a server of `daemon` that listens at `socket`; `is_managed`: a service manager does so for it.
    pub(crate) fn new(listener: OwnedFd, mut daemon: Daemon, socket: &Path, is_managed: bool) -> io::Result<Server> {
        // The kernel refuses descriptors where it can.
        let fds_are_refused = !fault::is("descriptors") && socket::refuse_fds(&listener);
        let reserve = daemon.users.bounds.reserve() / 2;
        let max_waiting = usize::try_from(reserve.min(MAX_WAITING)).unwrap_or(usize::MAX);
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER, true, false)?;
        let nodes = Nodes::new(socket)?;
        epoll.add(nodes.doorbell(), NODE, true, false)?;
        daemon.nics.use_threads()?;
        daemon.nics.work.doorbell().into_iter().try_for_each(|fd| epoll.add(fd, INTERFACES, true, false))?;
        Ok(Server {
            daemon,
            nodes,
            epoll,
            listener,
            closer: Closer::new()?,
            fds_are_refused,
            clients: BTreeMap::new(),
            waiting: WaitingConnections::new(max_waiting),
            accept_debt: Duration::ZERO,
            accept_again: None,
            turns: Turns::new(),
            newcomers: VecDeque::new(),
            lock_holders: LockHolders::default(),
            waits: Waits::default(),
            answers: WaitingAnswers::default(),
            next_token: FIRST_TOKEN,
            reserve: File::open("/dev/null").ok(),
            owner: owner(),
            started: (Instant::now(), SystemTime::now()),
            work_times: WorkTimes::default(),
            clock: WorkClock::new(),
            answered: NO_MESSAGE,
            is_managed,
            is_unit: false,
            successor: None,
            drain: None,
            store: None,
            protection: Protection::default(),
        })
    }

    /// Serves until a signal on `signals` other than SIGHUP or a request ends it, or until no client was connected for
    /// `idle` and `may_end` agrees. SIGHUP has the configuration and the policy read again.
    pub(crate) fn run(
        &mut self,
        signals: BorrowedFd<'_>,
        service: &mut Service,
        idle: Option<Duration>,
        mut may_end: impl FnMut() -> bool,
    ) -> io::Result<End> {
        self.epoll.add(signals, SIGNALS, true, false)?;
        let (mut events, mut next_turn) = (Vec::new(), None);
        self.is_unit = service.has_manager();
        // When the daemon was last in use.
        let mut used = Instant::now();
        service.ready();
        loop {
            let now = Instant::now();
            if !self.is_unused() {
                used = now;
            }
            let rest = idle.map(|idle| idle.saturating_sub(now - used));
            if rest == Some(Duration::ZERO) && next_turn.is_none() && self.daemon.forgets_nothing() && may_end() {
                tracing::info!("exiting, as no client was connected for a while");
                service.stopping();
                return Ok(End::Unused);
            }
            // If it may not end yet, a client has come, which the wait returns at once.
            let rest = rest.map(|rest| rest.max(EXIT_RETRY));
            let timers = [self.do_due(now), self.keep(service, now), service.notify_watchdog(now), next_turn, rest];
            // Of what was handled, and of threads that have ended by now.
            settle::close_unneeded(&mut self.daemon);
            self.daemon.nics.heartbeat.control_waits();
            match self.epoll.wait(&mut events, timers.into_iter().flatten().min()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            // Connections that end no longer count when new ones are accepted.
            events.sort_by_key(|(token, _)| *token == LISTENER);
            for &event in &events {
                self.handle_event(event, signals, service)?;
            }
            next_turn = self.do_next();
            if self.release() | self.give_turns() {
                next_turn = Some(Duration::ZERO);
            }
            if self.is_replaced(service) {
                return Ok(End::Replaced);
            }
            if let Some(why) = self.daemon.ends {
                tracing::info!("exiting on {why}");
                service.stopping();
                self.nodes.shut_down(&mut self.daemon);
                return Ok(End::Unused);
            }
        }
    }

    /// Handles an event of the event loop.
    fn handle_event(
        &mut self,
        (token, flags): (u64, EventFlags),
        signals: BorrowedFd<'_>,
        service: &mut Service,
    ) -> io::Result<()> {
        self.daemon.nics.heartbeat.control_begins();
        let begin = self.clock.begin();
        match token {
            LISTENER => self.accept_clients(),
            token if token & WATCHES != 0 => nic::links_changed(&mut self.daemon, token & !WATCHES),
            INTERFACES => self.threads_have_done(),
            work::STORE => self.store_answers(),
            NODE => {
                self.nodes.clear_doorbell();
                while let Some((uid, job)) = self.nodes.next_job(&self.daemon) {
                    self.turns.push(uid, Work::Job(job));
                }
            }
            SIGNALS => {
                while let Some(signal) = process::next_signal(signals)? {
                    match signal {
                        Signal::HUP => self.reload(service),
                        _ => self.daemon.ends = Some("a signal"),
                    }
                }
            }
            token if token % 2 == 1 => self.end(token - 1),
            token => self.client_event(token, flags),
        }
        self.daemon.after_work();
        self.event_changed(service, token);
        self.work_times.add(0, kind_of_event(token), self.clock.end(&begin));
        Ok(())
    }

    /// Opens the log again, and reads the configuration and the policy.
    fn reload(&mut self, service: &Service) {
        service.reloading();
        open_log();
        if let Err(refusal) = reload::reload(&mut self.daemon) {
            tracing::error!("the daemon goes on with the configuration that it had: {}", refusal.why);
        }
        service.ready();
    }

    /// Does the work of the user whose turn it is; returns the time until there is more to do.
    fn do_next(&mut self) -> Option<Duration> {
        self.turns.set_subordinates(&self.daemon.users.subordinates);
        match self.turns.next(Instant::now()) {
            Next::Work(uid, work) => {
                let work = match &mut self.drain {
                    Some(drain) => drain.hold_back(uid, work),
                    None => Some(work),
                };
                let Some(work) = work else { return Some(Duration::ZERO) };
                let admitted = self.do_work(uid, work);
                self.answer_admitted(uid, &admitted);
                (!self.turns.is_empty()).then_some(Duration::ZERO)
            }
            Next::Wait(time) => {
                // Work that must wait takes no time from connections, and would pay the debt slowly.
                self.accept_debt = Duration::ZERO;
                Some(time)
            }
            Next::Idle => None,
        }
    }

    /// Does a piece of work of a user; returns the connections that it admitted.
    fn do_work(&mut self, uid: u32, work: Work) -> Vec<u64> {
        let _acting = log::Acting::of(uid);
        self.daemon.nics.heartbeat.control_begins();
        let begin = self.clock.begin();
        self.daemon.admission.begin_work();
        if !matches!(work, Work::Close(_) | Work::Job(Job::Close(_))) {
            self.daemon.registry.tidy(uid);
        }
        self.answered = NO_MESSAGE;
        let kind = work.kind();
        let token = if let Work::Message(token) | Work::Continue(token) = work { token } else { 0 };
        let session = self.mark(token);
        let mut admitted = Vec::new();
        match work {
            Work::Message(token) => self.next_message(uid, token),
            Work::Continue(token) => self.continue_answer(token),
            Work::Resume(number) => self.resume(number),
            Work::Admit => admitted = self.admit_some(uid),
            Work::Close(token) => self.disconnect(token),
            Work::Job(job) => {
                self.nodes.run_job(&mut self.daemon, job);
                self.wait_for_node();
                self.add_watches();
            }
        }
        self.end_mark(token, session);
        self.daemon.after_work();
        self.has_worked(uid);
        self.daemon.admission.end_work();
        let time = begin.at.elapsed();
        self.turns.count_time(uid, time);
        self.accept_debt = self.accept_debt.saturating_sub(time);
        self.work_times.add(uid, kind.unwrap_or(self.answered), self.clock.end(&begin));
        admitted
    }

    /// Whether nothing would be lost if the daemon ended.
    fn is_unused(&self) -> bool {
        let waits = !self.waiting.is_empty() || self.accept_again.is_some();
        self.clients.is_empty() && !waits && !self.daemon.has_state() && !self.nodes.in_use()
    }

    /// Closes a connection: at its user's turn, if it has anything that takes time to free.
    pub(crate) fn end(&mut self, token: u64) {
        let Some(client) = self.clients.get_mut(&token).filter(|client| !client.is_ended) else { return };
        client.is_ended = true;
        // Its user can have another one at once.
        self.daemon.users.remove_connection(client.peer.uid);
        if client.session.is_none() && client.holder.is_none() {
            self.disconnect(token);
        } else {
            self.turns.push_urgent(client.peer.uid, Work::Close(token));
        }
    }

    fn client_event(&mut self, token: u64, flags: EventFlags) {
        if !self.clients.contains_key(&token) {
            // It has ended, but for what is in flight there.
            self.forget_if_received(token);
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP) {
            self.end(token);
        } else {
            self.make_ready(token);
        }
    }

    /// Has a message of a connection read at its user's turn, if there is one.
    fn make_ready(&mut self, token: u64) {
        let Some(client) = self.clients.get_mut(&token).filter(|client| !client.is_ready) else { return };
        client.is_ready = true;
        self.turns.push(client.peer.uid, Work::Message(token));
    }

    /// Reads and answers a message, unless the client has not received the last answer: answers that nobody receives
    /// would take memory without limit.
    fn next_message(&mut self, uid: u32, token: u64) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        client.is_ready = false;
        if client.is_ended || client.task.is_some() {
            return;
        }
        // An error here is one of the connection, which reading reports.
        if client.is_answered && socket::all_received(&client.fd).unwrap_or(true) {
            client.is_answered = false;
            self.forget_if_received(token);
        }
        let Some(client) = self.clients.get_mut(&token) else { return };
        if client.is_parked != client.is_answered {
            client.is_parked = client.is_answered;
            // If the answer was received meanwhile, an event follows at once.
            let _ = self.epoll.modify_edge(&client.fd, token, client.is_parked);
        }
        if client.is_parked {
            return;
        }
        let rate = client.rate;
        match self.read_message(uid, token) {
            Read::Nothing => {}
            Read::End => self.end(token),
            Read::Answered => {
                if let Some(rate) = rate {
                    self.turns.count_request(uid, Instant::now(), rate);
                }
                // There is no event for a message that has arrived already.
                if self.clients.get(&token).is_some_and(Client::has_message) {
                    self.make_ready(token);
                }
            }
        }
    }

    /// Reads and answers one message, or holds it.
    fn read_message(&mut self, uid: u32, token: u64) -> Read {
        self.forget_held(uid, token);
        let must_hold = self.must_hold(uid);
        let Some(client) = self.clients.get_mut(&token) else { return Read::Nothing };
        let mut buf = [0; wire::MAX_REQUEST];
        let is_wanted = |message: &[u8]| !must_hold || !requests::asks_for_descriptors(message);
        let received = match socket::recv_without_fds(&client.fd, &mut buf, is_wanted) {
            Ok(None) => {
                client.has_spoken = true;
                self.hold(uid, token);
                return Read::Nothing;
            }
            // An empty message, or the end of the connection, which has an event of its own.
            Ok(Some(received)) if received.bytes == 0 && !received.fds_truncated => {
                return if client.session.is_some() { Read::Answered } else { Read::End };
            }
            Ok(Some(received)) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Read::Nothing,
            Err(_) => return Read::End,
        };
        if client.session.is_some() && fault::is("request") {
            std::process::abort();
        }
        (client.has_spoken, client.is_answered) = (true, true);
        if self.answer_bytes(token, &buf[..received.bytes], received) { Read::Answered } else { Read::End }
    }

    /// Answers a message; returns `false` when the connection is to be closed.
    fn answer_bytes(&mut self, token: u64, bytes: &[u8], received: Received) -> bool {
        if received.fds_truncated {
            self.reject(token, EINVAL, "a control message with file descriptors");
            // The message stays in the queue, so that the connection cannot be used any more.
            return false;
        }
        if received.truncated {
            return self.reject(token, EMSGSIZE, &Malformed::Oversized.to_string());
        }
        // Of a connection with a port, another process may have the descriptor, which its user would not be given.
        let has_port = self.clients.get(&token).is_some_and(Client::has_port);
        match channel::decode_inline(bytes).filter(|_| !has_port) {
            Some(handover::Request::Begin { oldest, newest }) => {
                return self.successor_begins(token, oldest..=newest.max(oldest));
            }
            Some(handover::Request::WhichProgram) => return self.tell_program(token),
            _ => {}
        }
        match wire::decode(bytes) {
            Ok((kind, head, payload)) => {
                if let Some(client) = self.clients.get_mut(&token) {
                    client.tag = head.tag;
                }
                self.answer(token, kind, payload)
            }
            Err(e @ Malformed::Version(_)) => self.reject(token, EPROTONOSUPPORT, &e.to_string()),
            Err(e) => self.reject(token, EPROTO, &e.to_string()),
        }
    }

    /// Answers a message.
    fn answer(&mut self, token: u64, kind: Kind, payload: &[u8]) -> bool {
        if kind == SnapshotRequest::KIND {
            // It shows what is in flight.
            self.forget_received();
        }
        let Some(client) = self.clients.get(&token) else { return true };
        // The broker names its namespace once, however often that is asked for.
        let caller = Caller::of_connection(&client.fd, client.peer);
        let caller =
            caller.inspect_err(|e| tracing::debug!(pid = client.peer.pid, "the client cannot be identified: {e}")).ok();
        self.go_on(token, (kind, payload), caller, Got::Nothing)
    }

    /// Answers a message, with what it got if it has waited.
    fn go_on(&mut self, token: u64, (kind, payload): (Kind, &[u8]), caller: Option<Caller>, got: Got) -> bool {
        let Some(client) = self.clients.get_mut(&token) else { return true };
        self.answered = requests::name(kind, payload);
        let (had_session, was_holder) = (client.session.is_some(), client.holder.is_some());
        let mut call = Call {
            daemon: &mut self.daemon,
            nodes: &mut self.nodes,
            lock_holders: &mut self.lock_holders,
            connection: &client.fd,
            peer: client.peer,
            caller,
            got,
            session: &mut client.session,
            holder: &mut client.holder,
            payload,
            owner: self.owner,
            is_service: self.is_managed || self.is_unit,
        };
        let reply = requests::answer(kind, &mut call);
        let caller = call.caller;
        self.daemon.after_work();
        if let Some(holder) = client.holder.as_mut().filter(|_| !was_holder) {
            let epoll = &self.epoll;
            holder.pidfd = holder.pidfd.take().filter(|pidfd| epoll.add(pidfd, token + 1, true, false).is_ok());
        }
        self.add_watches();
        match reply {
            Reply::Answer(answer) => {
                let has_session = self.clients.get(&token).is_some_and(|client| client.session.is_some());
                self.send_answer(token, kind, answer, has_session && !had_session)
            }
            Reply::Needs(needs) => {
                self.wait(token, (kind, payload), caller, needs);
                true
            }
            Reply::Later(task) => {
                let Some(client) = self.clients.get_mut(&token) else { return true };
                client.task = Some((kind, Task::Snapshot(task)));
                self.turns.push_slice(client.peer.uid, Work::Continue(token));
                true
            }
            Reply::Invalid(errno, why) => self.reject(token, errno, why),
            Reply::Close => false,
        }
    }

    /// Answers an invalid message with an error and closes the connection: what follows such a message may not be one.
    /// A connection with a session stays open, and only a library of another release is answered: the descriptor may be
    /// in a process that does not use netmap and just writes to it.
    fn reject(&mut self, token: u64, errno: i32, why: &str) -> bool {
        let Some(client) = self.clients.get(&token) else { return false };
        let answer = Answer { errno, ..Default::default() };
        if client.session.is_some() {
            tracing::debug!(pid = client.peer.pid, why, "invalid message ignored");
            if errno == EPROTONOSUPPORT {
                send_refusal(&client.fd, client.tag, answer);
            }
            return true;
        }
        tracing::debug!(pid = client.peer.pid, why, "connection closed");
        send_refusal(&client.fd, client.tag, answer);
        false
    }
}

/// Opens the log's file again.
fn open_log() {
    if let Err(e) = privileged::open_log() {
        tracing::warn!("the log cannot be opened again: {e}");
    }
}
