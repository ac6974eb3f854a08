// SPDX-License-Identifier: BSD-2-Clause
//! Saving the state, for a successor or for a crash, and taking over the connections in it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use unetmap_core::control::Kind;
use unetmap_core::errno::EIO;
use unetmap_sys::{process, socket};

use super::VERSION;
use super::state::{SavedClient, SavedForCrash, State};
use super::store::Store;
use crate::broker::{self, Handle};
use crate::descriptors::{FdIndex, Incoming, Outgoing};
use crate::node::PausedNodes;
use crate::ports::mediators::{self, PausedThread};
use crate::refusal::Refusal;
use crate::requests::LockHolder;
use crate::server::work::{Task, Work};
use crate::server::{Client, Server};
use crate::service::Service;
use crate::user_arena::UserArena;

/// Parts to which a state refers, and those that depend on the case for which it is saved.
pub(super) struct Parts {
    broker: Option<Arc<broker::Duplicates>>,
    arenas: Vec<(u32, Arc<UserArena>)>,
    nodes: PausedNodes,
    mediators: Vec<PausedThread>,
    /// The mark and the last handle; `None`: this daemon is replaced.
    crash: Option<(Arc<File>, Option<Handle>)>,
}

impl Server {
    /// When all threads but those of the switches are paused.
    pub(super) fn parts_for_successor(&self) -> io::Result<Parts> {
        Ok(Parts {
            broker: if self.uses_broker() { broker::Duplicates::new()?.map(Arc::new) } else { None },
            arenas: self.daemon.registry.regions.all_arenas(),
            nodes: self.nodes.paused(),
            mediators: self.daemon.mediators.paused.clone(),
            crash: None,
        })
    }

    /// For the case that this daemon crashes, while its threads run.
    pub(super) fn parts_for_crash(&mut self, store: &Store) -> io::Result<Parts> {
        let broker = store.broker().filter(|_| self.uses_broker()).cloned();
        let last_handle = broker.as_ref().map(|_| broker::last_handle()).transpose()?;
        Ok(Parts {
            broker,
            arenas: self.daemon.registry.regions.all_arenas(),
            nodes: PausedNodes::default(),
            mediators: mediators::running(&self.daemon.registry),
            crash: Some((store.mark(), last_handle)),
        })
    }

    /// Whether the broker keeps what it has made for interfaces, or the devices of the node's mounts.
    fn uses_broker(&self) -> bool {
        self.daemon.has_interfaces() || self.nodes.in_use()
    }

    /// Returns what the next daemon needs.
    pub(super) fn save<'a>(
        &'a self,
        service: &'a Service,
        parts: &'a Parts,
        fds: &mut Outgoing<'a>,
    ) -> Result<State, Refusal> {
        let is_saved = |client: &Client| parts.crash.is_none() || outlives_crash(client);
        let clients = self.clients.iter().filter(|(_, client)| is_saved(client));
        let after_crash = parts.crash.as_ref().map(|(mark, last_handle)| SavedForCrash {
            mark: fds.add(&**mark),
            last_handle: *last_handle,
            node: self.nodes.path(),
        });
        Ok(State {
            version: VERSION,
            pid: process::pid(),
            listener: fds.add(&self.listener),
            service: service.save(self.is_managed, fds),
            clients: clients.map(|(token, client)| self.save_client(*token, client, fds)).collect(),
            left: self.daemon.users.in_flight.left().map(|(fd, count)| (fds.add(fd), count)).collect(),
            after_crash,
            last_holder: self.lock_holders.last(),
            knobs: self.daemon.knobs.set_since(),
            broker: parts.broker.as_ref().map(|broker| broker.save(fds)),
            registry: self.daemon.registry.save(&parts.arenas, fds)?,
            nics: self.daemon.nics.save(fds),
            nodes: self.nodes.save(&parts.nodes, fds),
            mediators: parts.mediators.clone(),
            last_monitor: self.daemon.monitors.last,
            switches: self.daemon.vale.save(fds),
            history: self.daemon.history.clone(),
        })
    }

    fn save_client<'a>(&'a self, token: u64, client: &'a Client, fds: &mut Outgoing<'a>) -> SavedClient {
        SavedClient {
            fd: fds.add(&client.fd),
            token,
            session: client.session,
            holder: client.holder.as_ref().map(|holder| (holder.id, holder.pidfd.as_ref().map(|pidfd| fds.add(pidfd)))),
            has_spoken: client.has_spoken,
            is_answered: client.is_answered,
            in_flight: self.daemon.users.in_flight.count(token),
            held: match &client.task {
                Some((Kind(kind), Task::Held(payload))) => Some((*kind, client.tag, payload.clone())),
                _ => None,
            },
        }
    }

    /// Takes connections. Returns the token of that which had the token `mark` before.
    pub(super) fn take_connections(
        &mut self,
        clients: Vec<SavedClient>,
        last_holder: u32,
        mark: u64,
        fds: &mut Incoming,
    ) -> Result<Option<u64>, Refusal> {
        let holders = clients.iter().filter_map(|client| client.holder.as_ref().map(|(id, _)| *id));
        self.lock_holders.restore(last_holder, holders);
        let (mut budgets, mut marked) = (None, None);
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
            let rate = (!self.daemon.admission.has_no_budget(peer.uid))
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

    /// Counts on the descriptors in flight. If this daemon is another user than the former one, it need not, and the
    /// user to whom they were sent has as much less than it could have.
    fn take_in_flight(&mut self, token: u64, uid: u32, fd: &Arc<OwnedFd>, count: u64) {
        if count > 0 {
            let users = &mut self.daemon.users;
            users.in_flight.add(token, uid, fd, count, &users.ledger);
        }
    }

    /// Takes connections that have ended, but for descriptors in flight.
    pub(super) fn take_left(&mut self, left: Vec<(FdIndex, u64)>, fds: &mut Incoming) -> Result<(), Refusal> {
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

/// Whether a connection can go on after a crash: nothing is being answered.
fn outlives_crash(client: &Client) -> bool {
    (client.session.is_some() || client.holder.is_some()) && client.task.is_none() && !client.is_ended
}

fn lacks(e: io::Error) -> Refusal {
    Refusal::new(EIO, format!("a connection cannot be taken over: {e}"))
}
