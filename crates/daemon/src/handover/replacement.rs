// SPDX-License-Identifier: BSD-2-Clause
//! Handing everything over to a successor ([`crate::handover`]), and taking over from an earlier daemon.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unetmap_core::control::Kind;
use unetmap_core::errno::{EAGAIN, EIO, EPERM};
use unetmap_sys::process;
use unetmap_sys::socket;

use super::crash::{AfterCrash, Kept};
use super::predecessor::Successor;
use crate::broker;
use crate::descriptors::{FdIndex, Incoming, Outgoing, cannot};
use crate::handover::store::{self, Store};
use crate::handover::{self, Reply, SavedClient, State, Taken, VERSION, channel};
use crate::log;
use crate::ports::{arrival, mediator, monitor};
use crate::refusal::{Refusal, refuse};
use crate::requests::LockHolder;
use crate::server::work::{Task, Work};
use crate::server::{Client, Server};
use crate::service::Service;
use crate::tuning::handover::{COMMIT_LIMIT, DRAIN_LIMIT};

/// Work that is kept back so that the daemon can be replaced.
pub(crate) struct Drain {
    /// The connection of the process that is to replace this one.
    successor: u64,
    /// When work is no longer kept back or, if it `is_over`, when it can be again.
    until: Instant,
    held: Vec<(u32, Work)>,
    is_over: bool,
}

impl Server {
    /// A connection asks to replace the daemon: done when its user's turn is over. Returns `false` when the connection
    /// is to be closed.
    pub(crate) fn successor_begins(&mut self, token: u64, version: u32) -> bool {
        let Some(client) = self.clients.get(&token) else { return true };
        let (own, its) = (process::cgroup("self"), process::cgroup(&client.peer.pid.to_string()));
        let checked = if client.peer.uid != self.owner && client.peer.uid != 0 {
            refuse(EPERM, "only root and the daemon's user may replace it")
        } else if self.is_unit && own.is_ok() && its.ok() != own.ok() {
            refuse(
                EPERM,
                "the running daemon is a unit of a service manager, which would lose it: systemctl reload unetmapd replaces \
                 it by the installed program (--user for a user's own)",
            )
        } else if version != VERSION {
            refuse(
                EPERM,
                format!(
                    "the running daemon ({}) hands over state of version {VERSION}, and this program reads version \
                     {version}: stop the daemon, then start this one",
                    unetmap_core::version()
                ),
            )
        } else {
            Ok(())
        };
        if let Err(refusal) = checked {
            let _ = channel::send(&client.fd, &Reply::Refused(refusal.why), &[]);
            return false;
        }
        self.successor = Some(token);
        true
    }

    /// Tells a connection which file the daemon runs. Returns `false`: the connection is to be closed.
    pub(crate) fn tell_program(&mut self, token: u64) -> bool {
        if let (Some(client), Ok((device, inode))) = (self.clients.get(&token), handover::own_program()) {
            let _ = channel::send(&client.fd, &Reply::Program(device, inode), &[]);
        }
        false
    }

    /// Hands everything over if a successor has asked for it; returns whether it has taken over.
    pub(crate) fn is_replaced(&mut self, service: &Service) -> bool {
        let Some(token) = self.successor.take() else { return false };
        let Some(client) = self.clients.remove(&token) else { return false };
        let start = Instant::now();
        let handed_over = self
            .settle()
            .and_then(|()| mediator::pause(&mut self.daemon))
            .and_then(|()| arrival::pause(&mut self.daemon))
            .and_then(|()| self.hand_over(&client.fd, service, start));
        if let Err(Refusal { errno, .. }) = &handed_over {
            if *errno == EAGAIN {
                self.drain(token);
            }
            self.resume_threads();
        }
        let (pid, took) = (client.peer.pid, start.elapsed());
        self.clients.insert(token, client);
        match handed_over {
            Ok(()) => {
                tracing::info!(pid, ?took, "replaced by another process");
                true
            }
            Err(Refusal { errno: EAGAIN, .. }) => {
                if let Some(client) = self.clients.get(&token) {
                    let _ = channel::send(&client.fd, &Reply::Busy, &[]);
                }
                false
            }
            Err(Refusal { mut why, .. }) => {
                if self.is_unit {
                    why.push_str(" (systemctl restart unetmapd)");
                }
                tracing::warn!(pid, ?took, "not replaced: {why}");
                if let Some(client) = self.clients.get(&token) {
                    let _ = channel::send(&client.fd, &Reply::Refused(why), &[]);
                }
                self.end(token);
                false
            }
        }
    }

    /// Until the process at this connection has replaced this one, or has ended, and for at most [`DRAIN_LIMIT`], only
    /// what is in progress is completed: messages that are answered at once could be followed by others without end. As
    /// long again passes before the next drain.
    fn drain(&mut self, successor: u64) {
        if self.drain.is_none() {
            let until = Instant::now() + DRAIN_LIMIT;
            self.drain = Some(Drain { successor, until, held: Vec::new(), is_over: false });
            self.nodes.drain();
        }
    }

    /// Keeps back work that would begin something while only what is in progress is completed; else returns it.
    pub(crate) fn hold_back(&mut self, uid: u32, work: Work) -> Option<Work> {
        let Some(drain) = self.drain.as_mut().filter(|drain| !drain.is_over) else { return Some(work) };
        match work {
            Work::Message(token) if token == drain.successor => Some(work),
            Work::Message(_) | Work::Admit => {
                drain.held.push((uid, work));
                None
            }
            _ => Some(work),
        }
    }

    /// Has the work done that was kept back, if it is due; returns the time until it is.
    pub(crate) fn end_drain(&mut self, now: Instant) -> Option<Duration> {
        let drain = self.drain.as_mut()?;
        let left = drain.until.saturating_duration_since(now);
        if self.clients.contains_key(&drain.successor) && !left.is_zero() {
            return Some(left);
        }
        let had_any = !drain.held.is_empty();
        drain.held.drain(..).for_each(|(uid, work)| self.turns.push(uid, work));
        self.nodes.end_drain();
        if drain.is_over || !self.clients.contains_key(&drain.successor) {
            self.drain = None;
        } else {
            (drain.is_over, drain.until) = (true, now + DRAIN_LIMIT);
        }
        had_any.then_some(Duration::ZERO)
    }

    /// Completes what is in progress. Messages that were not read yet are the successor's to read.
    fn settle(&mut self) -> Result<(), Refusal> {
        while let Some(uid) = self.waiting.any_user() {
            self.admit_some(uid);
        }
        let ended: Vec<u64> =
            self.clients.iter().filter(|(_, client)| client.is_ended).map(|(token, _)| *token).collect();
        ended.into_iter().for_each(|token| self.disconnect(token));
        let is_snapshot = |client: &Client| matches!(client.task, Some((_, Task::Snapshot(_))));
        while let Some((&token, _)) = self.clients.iter().find(|(_, client)| is_snapshot(client)) {
            self.continue_answer(token);
        }
        // Memory that a thread prepares is not waited for.
        self.end_memory_waits();
        let is_busy =
            |(token, client): (&u64, &Client)| client.task.is_some() && !self.is_held(client.peer.uid, *token);
        if self.clients.iter().any(is_busy) || self.waits.any_of_node() {
            return refuse(EAGAIN, "a program waits for an interface that is being opened or closed: try again");
        }
        if self.nodes.in_use() && !broker::is_used() {
            return cannot("the node of a daemon that is not root's (unetmap node off)");
        }
        let jobs = self.turns.take_all(|work| matches!(work, Work::Job(_)));
        let jobs = jobs.into_iter().filter_map(|work| if let Work::Job(job) = work { Some(job) } else { None });
        let paused = self.nodes.pause(&mut self.daemon, jobs.collect());
        self.wait_for_node();
        paused?;
        self.add_watches();
        self.daemon.registry.tidy_all();
        self.daemon.check_hand_over()
    }

    /// Sends everything to the successor, and waits until it has rebuilt it. The switches stop at the end.
    fn hand_over(&mut self, connection: &OwnedFd, service: &Service, start: Instant) -> Result<(), Refusal> {
        let to = Successor::new(connection, start + COMMIT_LIMIT);
        let tables = self.daemon.vale.table_marks();
        // It keeps what it has made for interfaces, and the devices of the node's mounts.
        let keeps = self.daemon.has_interfaces() || self.nodes.in_use();
        let broker = if keeps { broker::Duplicates::new().map_err(failed)? } else { None };
        let kept = Kept {
            broker: broker.map(Arc::new),
            arenas: self.daemon.registry.regions.all_arenas(),
            nodes: self.nodes.paused(),
        };
        let mut fds = Outgoing::default();
        let state = self.save(service, &kept, |_| true, &mut fds)?;
        to.give(&state, fds.fds()).map_err(failed)?;
        let stopped = Instant::now();
        let positions = self.daemon.vale.stop_for_successor(&self.daemon.registry, &tables);
        let taken = positions.and_then(|positions| {
            to.finish(&Reply::Positions(Box::new(positions))).map_err(failed)?;
            service.main_process_is(socket::peer(connection).map_err(failed)?.pid);
            // It may have been the main process.
            self.store.iter().for_each(Store::end);
            let requests = broker::pause();
            to.send(&Reply::Released).map_err(failed)?;
            // The broker's answers are the successor's from here on.
            std::mem::forget(requests);
            Ok(())
        });
        tracing::debug!(stopped = ?stopped.elapsed(), "the switches' threads stopped");
        taken.or_else(|refusal| self.daemon.vale.publish().and(Err(refusal)))
    }

    /// What the successor needs.
    pub(crate) fn save<'a>(
        &'a self,
        service: &'a Service,
        kept: &'a Kept,
        which: impl Fn(&Client) -> bool,
        fds: &mut Outgoing<'a>,
    ) -> Result<State, Refusal> {
        let registry = self.daemon.registry.save(&kept.arenas, fds)?;
        let save_client = |(token, client): (&u64, &'a Client)| SavedClient {
            fd: fds.add(&client.fd),
            token: *token,
            session: client.session,
            holder: client.holder.as_ref().map(|holder| (holder.id, holder.pidfd.as_ref().map(|pidfd| fds.add(pidfd)))),
            has_spoken: client.has_spoken,
            is_answered: client.is_answered,
            in_flight: self.daemon.users.in_flight.count(*token),
            held: match &client.task {
                Some((Kind(kind), Task::Held(payload))) => Some((*kind, client.tag, payload.clone())),
                _ => None,
            },
        };
        let clients = self.clients.iter().filter(|(_, client)| which(client)).map(save_client).collect();
        let left = self.daemon.users.in_flight.left().map(|(fd, count)| (fds.add(fd), count)).collect();
        Ok(State {
            version: VERSION,
            pid: process::pid(),
            listener: fds.add(&self.listener),
            service: service.save(self.is_managed, fds),
            clients,
            left,
            after_crash: None,
            last_holder: self.lock_holders.last(),
            knobs: self.daemon.knobs.set_since(),
            broker: kept.broker.as_ref().map(|broker| broker.save(fds)),
            nodes: self.nodes.save(&kept.nodes, fds),
            nics: self.daemon.nics.save(fds),
            mediators: self.daemon.paused_mediators.clone(),
            last_monitor: self.daemon.last_monitor(),
            registry,
            switches: self.daemon.vale.save(fds),
        })
    }

    /// Takes over all that another daemon has; returns its service manager. If this fails, the other daemon goes on.
    pub(crate) fn take_over(&mut self, taken: Taken) -> Result<Service, Refusal> {
        let Taken { predecessor, state, mut fds } = taken;
        let daemon = &mut self.daemon;
        let adopted = state.broker.map(|broker| broker.take(&mut fds)).transpose()?;
        let arenas = daemon.registry.restore(state.registry, state.pid, &mut fds)?;
        self.nodes.restore(state.nodes, daemon, &mut fds)?;
        daemon.paused_mediators = state.mediators;
        daemon.nics.restore(state.nics, &mut daemon.registry, &mut fds)?;
        daemon.vale.restore(state.switches, &daemon.registry, &mut fds)?;
        monitor::check_restored(daemon, state.last_monitor)?;
        mediator::check_paused(daemon)?;
        self.daemon.knobs.take_over(&state.knobs);
        log::set_verbose(self.daemon.knobs.verbose());
        let crash = state.after_crash.map(|saved| AfterCrash::of(saved, &mut fds)).transpose()?;
        let mark = crash.as_ref().map(|crash| &crash.mark);
        let marked = self.take_connections(state.clients, state.last_holder, mark, &mut fds)?;
        self.take_left(state.left, &mut fds)?;
        let service = state.service.restore(&mut fds)?;
        let positions = predecessor.positions()?;
        let stopped = Instant::now();
        match positions {
            Some(positions) => self.daemon.vale.take_positions(positions, &self.daemon.registry)?,
            None => {
                self.daemon.vale.recover_positions(&self.daemon.registry);
                self.daemon.registry.repair_receive_rings();
            }
        }
        let store = predecessor.commit()?;
        // At once: no packet crosses a switch meanwhile.
        if let Err(refusal) = self.daemon.vale.publish() {
            tracing::error!("the switches stand still: {}", refusal.why);
        }
        tracing::debug!(took = ?stopped.elapsed(), "the switches' threads go on");
        adopted.into_iter().for_each(broker::Adopted::adopt);
        arenas.iter().for_each(|arena| arena.take());
        let unknown = crash.as_ref().map(|crash| self.take_from_crashed(crash));
        self.daemon.nics.go_on(&self.daemon.registry);
        self.resume_threads();
        self.add_watches();
        if let Some(store) = store {
            self.recover(marked, unknown.unwrap_or_default(), crash.and_then(|crash| crash.node));
            self.set_store(Store::of(store));
        }
        Ok(service)
    }

    /// Starts the threads again that were stopped, or those of the daemon that was replaced.
    fn resume_threads(&mut self) {
        mediator::resume(&mut self.daemon);
        arrival::resume(&mut self.daemon);
        self.nodes.resume(&mut self.daemon);
    }

    fn take_connections(
        &mut self,
        clients: Vec<SavedClient>,
        last_holder: u32,
        mark: Option<&File>,
        fds: &mut Incoming,
    ) -> Result<Option<u64>, Refusal> {
        let holders = clients.iter().filter_map(|client| client.holder.as_ref().map(|(id, _)| *id));
        self.lock_holders.restore(last_holder, holders);
        let (mut budgets, mut marked, mark) = (None, None, mark.map_or(0, store::marked));
        for saved in clients {
            let (fd, token) = (fds.take(saved.fd)?, self.next_token);
            self.next_token += 2;
            if saved.token == mark {
                marked = Some(token);
            }
            let peer = socket::peer(&fd).map_err(lacks)?;
            self.epoll.add_edge(&fd, token).map_err(lacks)?;
            let holder = match saved.holder {
                None => None,
                Some((id, pidfd)) => Some(LockHolder { id, pidfd: pidfd.map(|pidfd| fds.take(pidfd)).transpose()? }),
            };
            if let Some(pidfd) = holder.as_ref().and_then(|holder| holder.pidfd.as_ref()) {
                self.epoll.add(pidfd, token + 1, true, false).map_err(lacks)?;
            }
            self.daemon.users.add_connection(peer.uid);
            let rate = (!self.daemon.has_no_budget(peer.uid))
                .then(|| budgets.get_or_insert_with(|| self.daemon.budget_check()).request_rate(peer.uid));
            if rate.is_some() && !saved.has_spoken {
                self.newcomers.push_back((Instant::now(), token));
            }
            let fd = Arc::new(fd);
            self.take_in_flight(token, peer.uid, &fd, saved.in_flight);
            let (tag, task) = match saved.held {
                None => (0, None),
                Some((kind, tag, payload)) => {
                    self.turns.push(peer.uid, Work::Continue(token));
                    (tag, Some((Kind(kind), Task::Held(payload))))
                }
            };
            let (session, has_spoken, is_answered) = (saved.session, saved.has_spoken, saved.is_answered);
            let client = Client { session, holder, rate, tag, task, has_spoken, is_answered, ..Client::new(fd, peer) };
            self.clients.insert(token, client);
        }
        Ok(marked)
    }

    /// What is in flight counts on. If this daemon is another user than the former one, it need not, and the user to
    /// whom it was sent has as much less than it could have.
    fn take_in_flight(&mut self, token: u64, uid: u32, fd: &Arc<OwnedFd>, count: u64) {
        if count > 0 {
            let users = &mut self.daemon.users;
            users.in_flight.add(token, uid, fd, count, &users.ledger);
        }
    }

    /// Takes connections that have ended, but for descriptors in flight.
    fn take_left(&mut self, left: Vec<(FdIndex, u64)>, fds: &mut Incoming) -> Result<(), Refusal> {
        for (fd, count) in left {
            let (fd, token) = (fds.take(fd)?, self.next_token);
            self.next_token += 2;
            let uid = socket::peer(&fd).map_err(lacks)?.uid;
            self.epoll.add_edge(&fd, token).map_err(lacks)?;
            let fd = Arc::new(fd);
            self.take_in_flight(token, uid, &fd, count);
            self.leave_in_flight(uid, token, &fd);
        }
        Ok(())
    }
}

fn lacks(e: io::Error) -> Refusal {
    Refusal { errno: EIO, why: format!("a connection cannot be taken over: {e}"), option: None }
}

fn failed(e: io::Error) -> Refusal {
    Refusal { errno: EIO, why: format!("the successor: {e}"), option: None }
}
