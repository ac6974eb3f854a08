// SPDX-License-Identifier: BSD-2-Clause
//! The node: a `/dev/netmap` that any program can open, served through FUSE.
//!
//! ```text
//! program: open  --> READLINK       a symbolic link leads to one of several mounts
//!                    LOOKUP, OPEN   a file for each user; its memory is that of the user's regions (the user arena)
//!          ioctl --> IOCTL          requests: read from the program's memory, answered by the main thread
//!          mmap                     done by the kernel alone: both sides have the same pages
//!          ioctl --> IOCTL          syncs: done here, on a port that the daemon has open for the file
//!          poll  --> POLL           a sync, and the events that are ready; else it is held for a moment in a
//!                                   stream of packets, or the waker wakes the program
//!          close --> RELEASE        the last duplicate is closed: the session is closed
//! ```
//! The memory of a file must be known when it is opened, before the program selects a port. So it contains all regions
//! of the user that opens it, and while the node is on new regions are created where it can map them.
//!
//! Threads: for each mount one thread is the *reader*, which reads requests and answers quick ones, near the program
//! that makes them (`affinity`). Before it answers one that may take long (a request that needs the main thread, or a
//! program's memory, which a helper process accesses), another thread becomes the reader. The *waker* waits for the
//! doorbells of files on which programs sleep. The daemon's state belongs to the main thread, which does *jobs* for the
//! others. They all end when the daemon is replaced, and its successor has others (`paused`).

mod affinity;
mod backoff;
mod file;
mod held_polls;
mod ioctl;
mod jobs;
mod memory;
mod mount;
mod paused;
mod saved;
mod serve;
mod shared;
mod slow;
mod waker;

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use serde::Serialize;
use unetmap_core::control::node::NodeRequest;
use unetmap_core::errno::{EBUSY, EIO, ENODEV, EPERM};
use unetmap_sys::fuse::{self, Device};
use unetmap_sys::socket::Peer;

use crate::broker;
use crate::netmap_requests::{self, Got, Needs, Step};
use crate::ports::Daemon;
use crate::ports::mediators::own_port;
use crate::privileged::{self, Refused};
use crate::refusal::{Refusal, json, refuse};
use crate::user_arena::UserArena;

use jobs::JobQueue;
pub(crate) use jobs::{Job, PortRequest};
pub(crate) use saved::{PausedNodes, SavedNodes};
use shared::Shared;

/// The state of the node, for `unetmap node status`.
#[derive(Serialize)]
struct Status {
    on: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mount: Option<PathBuf>,
    files: usize,
    ports: usize,
    /// Open files of earlier nodes.
    left: usize,
}

/// The node, if it is on, and earlier nodes with open files.
pub(crate) struct Nodes {
    jobs: JobQueue,
    receiver: Receiver<Job>,
    /// The directory of the first mount.
    folder: PathBuf,
    on: Option<(PathBuf, Arc<Shared>)>,
    ended: Vec<Arc<Shared>>,
    /// Requests that are to wait.
    waiting: Vec<(Needs, Box<PortRequest>)>,
    last: u64,
}

/// Charges a user for a session's descriptors, which the node keeps, and refuses ports that it cannot map.
fn keep(daemon: &mut Daemon, session: u64, arena: &Arc<UserArena>, fds: &[OwnedFd]) -> Result<(), Refusal> {
    if !daemon.is_in_arena(session, arena) {
        return refuse(
            EBUSY,
            "its pipe is shared with other users, or its region was created before the node was on, or where the node can map it there was no room (close all its \
             ports, and open it again)",
        );
    }
    daemon.keep_descriptors(session, fds)
}

/// Mounts one of the node's mounts.
fn mount_part(number: usize) -> Result<Device, Refusal> {
    let (mounted, device) = done(privileged::mount_node(number).map(Ok))?;
    done(Ok(mounted))?;
    done(device.ok_or_else(|| io::ErrorKind::InvalidData.into()).map(Ok))
}

/// Unmounts all.
fn unmount() {
    if let Err(e) = privileged::unmount_node() {
        tracing::warn!("the node stays mounted: {e}");
    }
}

/// The result of an operation of the broker that may be refused.
fn done<T>(answer: io::Result<Result<T, Refused>>) -> Result<T, Refusal> {
    let answer = answer.unwrap_or_else(|e| Err((e.raw_os_error().unwrap_or(EIO), e.to_string())));
    answer.map_err(|(errno, why)| Refusal::new(errno, why))
}

impl Nodes {
    /// Returns the state without a node, for the daemon that listens at `socket`.
    pub(crate) fn new(socket: &Path) -> io::Result<Nodes> {
        let (jobs, receiver) = JobQueue::new()?;
        Ok(Nodes {
            jobs,
            receiver,
            folder: broker::node_folder(socket),
            on: None,
            ended: Vec::new(),
            waiting: Vec::new(),
            last: 0,
        })
    }

    /// Readable when there are jobs for [`Nodes::next_job`].
    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.jobs.doorbell.as_fd()
    }

    /// Whether a node is on, or files of an earlier one are open.
    pub(crate) fn in_use(&self) -> bool {
        self.on.is_some() || !self.ended.is_empty()
    }

    /// Where the node is on.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.on.as_ref().map(|(path, _)| path.clone())
    }

    /// Clears the doorbell: it is notified of jobs that come from now on.
    pub(crate) fn clear_doorbell(&self) {
        self.jobs.doorbell.clear();
    }

    /// Takes the next job, and the user for whom it is done.
    pub(crate) fn next_job(&self, daemon: &Daemon) -> Option<(u32, Job)> {
        let job = self.receiver.try_recv().ok()?;
        let uid = match &job {
            Job::UserArena(uid, _) => *uid,
            Job::Admit(caller, _) => caller.peer.uid,
            Job::Request(request) => request.caller.peer.uid,
            Job::Close(session) => daemon.registry.sessions.get(session).map_or(0, |session| session.uid),
            Job::NodeEnded(_) => 0,
        };
        Some((uid, job))
    }

    /// Does a job.
    pub(crate) fn run_job(&mut self, daemon: &mut Daemon, job: Job) {
        match job {
            Job::UserArena(uid, reply) => {
                let _ = reply.send(daemon.registry.regions.arena(uid).map_err(|refusal| refusal.errno));
            }
            Job::Admit(caller, reply) => {
                let _ = reply.send(daemon.admission.check_admission(&caller).map_err(|refusal| refusal.errno));
            }
            Job::Request(request) => self.answer_request_of_program(daemon, request, Got::Nothing),
            Job::Close(session) => daemon.close(session),
            Job::NodeEnded(number) => {
                self.ended.retain(|node| node.number != number);
                if self.on.as_ref().is_some_and(|(_, node)| node.number == number) {
                    tracing::warn!("the node was unmounted from outside the daemon");
                    let _ = self.off(daemon, None);
                }
            }
        }
    }

    /// Answers a request of a program, or goes on with it.
    pub(crate) fn answer_request_of_program(&mut self, daemon: &mut Daemon, mut request: Box<PortRequest>, got: Got) {
        let PortRequest { request: asked, caller, session, .. } = &mut *request;
        let mut outcome = match netmap_requests::answer(daemon, asked.clone(), caller, *session, got) {
            Step::Done(outcome) => outcome,
            Step::Needs(needs) => return self.waiting.push((needs, request)),
        };
        if let Some(session) = outcome.session
            && let Err(refusal) = keep(daemon, session, &request.arena, &outcome.fds)
        {
            daemon.close(session);
            (outcome.errno, outcome.answer.reason) = (refusal.errno, refusal.why);
            (outcome.session, outcome.fds) = (None, Vec::new());
        }
        let session = outcome.session;
        let own = session.map(|session| own_port(&daemon.registry, &mut daemon.monitors, session)).unwrap_or_default();
        if let (Err(_), Some(session)) = (request.reply.send((outcome, own)), session) {
            daemon.close(session);
        }
    }

    /// Takes the requests that are to wait.
    pub(crate) fn take_waiting(&mut self) -> Vec<(Needs, Box<PortRequest>)> {
        mem::take(&mut self.waiting)
    }

    /// Answers `unetmap node` with the node's state, as JSON.
    pub(crate) fn answer_request(
        &mut self,
        daemon: &mut Daemon,
        peer: Peer,
        request: NodeRequest,
    ) -> Result<String, Refusal> {
        if request != NodeRequest::Show && peer.uid != 0 {
            return refuse(EPERM, "only root may change it");
        }
        match request {
            NodeRequest::Show => {}
            NodeRequest::On(path) => self.on(daemon, path)?,
            NodeRequest::Off(path) => self.off(daemon, path.as_deref())?,
        }
        let (files, ports) = self.on.as_ref().map_or((0, 0), |(_, node)| node.count());
        let status = Status {
            on: self.on.is_some(),
            path: self.on.as_ref().map(|(path, _)| path.clone()),
            mount: self.on.as_ref().map(|_| self.folder.clone()),
            files,
            ports,
            left: self.ended.iter().map(|node| node.count().0).sum(),
        };
        json(&status)
    }

    /// Has the node on at `path`.
    pub(crate) fn on(&mut self, daemon: &mut Daemon, path: PathBuf) -> Result<(), Refusal> {
        if self.on.is_some() && fuse::is_unetmap_mount(&self.folder).is_ok_and(|ours| !ours) {
            // Its threads report that only after all of them have noticed it.
            tracing::warn!("the node was unmounted from outside the daemon");
            let _ = self.off(daemon, None);
        }
        if let Some((at, _)) = &self.on {
            return match *at == path {
                true => Ok(()),
                false => refuse(EBUSY, format!("the node is on at {} (unetmap node off)", at.display())),
            };
        }
        done(privileged::check_node_link(&*path))?;
        let dev = mount_part(0)?;
        self.last += 1;
        let started = self.serve(dev).and_then(|shared| done(privileged::link_node(&*path)).map(|()| shared));
        match started {
            Ok(shared) => {
                tracing::info!(path = %path.display(), mount = %self.folder.display(), "the node is on");
                self.on = Some((path, shared));
                daemon.registry.regions.use_arenas = true;
                Ok(())
            }
            Err(refusal) => {
                unmount();
                Err(refusal)
            }
        }
    }

    /// Serves the first mount, and creates the others in its directories.
    fn serve(&self, dev: Device) -> Result<Arc<Shared>, Refusal> {
        let failed = |e| Refusal::new(EIO, format!("no threads for the node: {e}"));
        let shared = serve::start(dev, self.last, self.jobs.clone()).map_err(failed)?;
        for number in 1..mount::count() {
            shared.serve(number, mount_part(number)?).map_err(failed)?;
        }
        Ok(shared)
    }

    fn off(&mut self, daemon: &mut Daemon, path: Option<&Path>) -> Result<(), Refusal> {
        let Some((at, shared)) = self.on.take_if(|(at, _)| path.is_none_or(|path| path == at)) else {
            return match (&self.on, path) {
                (Some((at, _)), Some(path)) => {
                    refuse(ENODEV, format!("the node is on at {}, not at {}", at.display(), path.display()))
                }
                _ => Ok(()),
            };
        };
        daemon.registry.regions.use_arenas = false;
        if let Err(e) = privileged::unlink_node(&*at) {
            tracing::warn!("{} stays: {e}", at.display());
        }
        unmount();
        tracing::info!(path = %at.display(), "the node is off");
        // Its threads run until its last file is closed.
        if !shared.is_over() {
            self.ended.push(shared);
        }
        Ok(())
    }

    /// Removes the node before the daemon exits.
    pub(crate) fn shut_down(&mut self, daemon: &mut Daemon) {
        let _ = self.off(daemon, None);
    }
}
