// SPDX-License-Identifier: BSD-2-Clause
//! State that the threads of a node share: its mounts, files, users, and unanswered requests.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use unetmap_abi::NmreqRegister;
use unetmap_core::control::binding::Binding;
use unetmap_core::errno::{EIO, ENOMEM};
use unetmap_core::{InDaemon, Port};
use unetmap_sys::fuse::Backing;

use super::file::{File, SlowRequest};
use super::held_polls::HeldPolls;
use super::jobs::{Job, JobQueue};
use super::memory::MemoryHelpers;
use super::mount::{Mount, RequestId};
use super::waker::PollWaker;
use crate::caller::Caller;
use crate::ports::OwnPort;
use crate::ports::mediators::DAEMON_HOLDER;
use crate::subordinates::Subordinates;
use crate::threads::lock;
use crate::user_arena::UserArena;

/// State that the threads of a node share.
pub(super) struct Shared {
    pub(super) number: u64,
    pub(super) jobs: JobQueue,
    pub(super) waker: PollWaker,
    pub(super) held_polls: HeldPolls,
    pub(super) helpers: MemoryHelpers,
    pub(super) mounts: Mutex<Mounts>,
    /// Whether no file is open any more, nor can be opened.
    pub(super) over: AtomicBool,
    pub(super) files: Mutex<Files>,
    /// Slow requests that are not answered, by their ids.
    pub(super) pending: Mutex<HashSet<(usize, u64)>>,
    /// Whether the threads end, because the daemon is being replaced, and how many run.
    pub(super) is_paused: AtomicBool,
    /// Whether no slow request is begun, as a successor waits.
    pub(super) is_draining: AtomicBool,
    pub(super) threads: AtomicUsize,
    /// Threads that run a slow request.
    pub(super) slow: AtomicUsize,
    /// Slow requests that came meanwhile, and are to be answered later.
    pub(super) deferred: Mutex<Vec<SlowRequest>>,
    /// Markers in the mounts' queues, and the channels that report when they are read.
    pub(super) marks: Mutex<Marks>,
    /// The ports' end of a connection. They end when the other end is closed.
    pub(super) lifeline: OwnedFd,
    pub(super) _other_end: OwnedFd,
}

#[derive(Default)]
pub(super) struct Files {
    pub(super) last: u64,
    pub(super) open: HashMap<u64, Arc<File>>,
    pub(super) users: HashMap<u32, User>,
}

/// The mounts that have not ended.
#[derive(Default)]
pub(super) struct Mounts {
    pub(super) all: Vec<Arc<Mount>>,
    /// The thread that was last given a mount, and that mount, until a file is opened through it.
    pub(super) assigned: Option<(u32, usize)>,
}

#[derive(Default)]
pub(super) struct Marks {
    pub(super) last: u64,
    pub(super) waiting: HashMap<u64, SyncSender<()>>,
}

/// A user with open files.
pub(super) struct User {
    pub(super) arena: Arc<UserArena>,
    /// The arena as registered with each mount through which the user opened a file.
    pub(super) backings: HashMap<usize, Backing>,
    pub(super) files: u32,
}

/// The open files of a user, and of those who count for the same one.
pub(super) fn files_of_user(users: &HashMap<u32, User>, uid: u32) -> u32 {
    Subordinates::of_system().sum(uid, users.iter().map(|(of, user)| (*of, user.files)))
}

impl Shared {
    /// Checks that the policy gives the caller anything.
    ///
    /// # Errors
    /// `EACCES`, or why the policy cannot be read.
    pub(super) fn admit(&self, caller: &Caller) -> Result<(), i32> {
        self.jobs.call(|reply| Job::Admit(caller.clone(), reply)).unwrap_or(Err(EIO))
    }

    /// Opens the port of a session for a file.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn open_port(
        &self,
        name: &str,
        (register, bound, fds): (NmreqRegister, &Binding, Vec<OwnedFd>),
        OwnPort { monitors, region }: OwnPort,
    ) -> Result<Port, i32> {
        let connection = self.lifeline.try_clone().map_err(|_| ENOMEM)?;
        // The node needs Linux 6.9, which maps the rings of a socket at any time.
        let own = InDaemon { holder: DAEMON_HOLDER, region, monitors, socket_rings: Vec::new() };
        unetmap_core::adopt(name, register, bound, fds, connection, own).map_err(|e| {
            tracing::warn!("a port of the node cannot be opened: {e}");
            ENOMEM
        })
    }

    /// Answers a slow request, unless it was answered already.
    pub(super) fn finish(&self, id: &RequestId, answer: impl FnOnce()) {
        if lock(&self.pending).remove(&id.key()) {
            answer();
        }
    }

    /// Whether the program still waits for the answer.
    pub(super) fn is_pending(&self, id: &RequestId) -> bool {
        lock(&self.pending).contains(&id.key())
    }
}
