// SPDX-License-Identifier: BSD-2-Clause
//! Handing everything over to a successor ([`crate::handover`]): what is in progress is completed, and threads are
//! paused.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use unetmap_core::errno::{EIO, EPERM};
use unetmap_sys::process;
use unetmap_sys::socket;

use super::drain::Drain;
use super::giving::Successor;
use crate::broker;
use crate::channel;
use crate::descriptors::{Outgoing, cannot};
use crate::handover::store::Store;
use crate::handover::{self, Reply, VERSION};
use crate::ports::{arrival, mediators};
use crate::refusal::{Refusal, refuse, refuse_for_now};
use crate::server::work::{Task, Work};
use crate::server::{Client, Server};
use crate::service::Service;
use crate::tuning::handover::{COMMIT_LIMIT, DRAIN_LIMIT};

impl Server {
    /// A connection asks to replace the daemon: done when its user's turn is over. Returns `false` when the connection
    /// is to be closed.
    pub(crate) fn successor_begins(&mut self, token: u64, readable: RangeInclusive<u32>) -> bool {
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
        } else if !readable.contains(&VERSION) {
            refuse(
                EPERM,
                format!(
                    "the running daemon ({}) hands over state of version {VERSION}, and this program reads version \
                     {}: stop the daemon, then start this one",
                    unetmap_core::version(),
                    readable.end()
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
            .and_then(|()| mediators::pause(&mut self.daemon.registry, &mut self.daemon.mediators))
            .and_then(|()| self.daemon.arrivals.pause())
            .and_then(|()| self.hand_over(&client.fd, service, start));
        if let Err(Refusal { passes, .. }) = &handed_over {
            if *passes {
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
            Err(Refusal { passes: true, .. }) => {
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
            self.drain = Some(Drain::new(successor));
            self.nodes.drain();
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
            return refuse_for_now("a program waits for an interface that is being opened or closed: try again");
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
        let parts = self.parts_for_successor().map_err(failed)?;
        let mut fds = Outgoing::default();
        let state = self.save(service, &parts, &mut fds)?;
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

    /// Starts the threads again that were stopped, or those of the daemon that was replaced.
    pub(super) fn resume_threads(&mut self) {
        mediators::resume(&mut self.daemon);
        arrival::resume(&mut self.daemon);
        self.nodes.resume(&mut self.daemon);
    }
}

fn failed(e: io::Error) -> Refusal {
    Refusal::new(EIO, format!("the successor: {e}"))
}
