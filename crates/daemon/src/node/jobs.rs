// SPDX-License-Identifier: BSD-2-Clause
//! The jobs that the node's threads have for the main thread.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use unetmap_core::control::request::NetmapRequest;
use unetmap_sys::Doorbell;

use crate::caller::Caller;
use crate::netmap_requests::Outcome;
use crate::ports::OwnPort;
use crate::user_arena::UserArena;

/// A job that the node's threads have for the main thread.
pub(crate) enum Job {
    /// Returns the file with all regions of a user.
    UserArena(u32, SyncSender<Result<Arc<UserArena>, i32>>),
    /// Checks that the policy gives the caller anything.
    Admit(Caller, SyncSender<Result<(), i32>>),
    /// Answers a request for a port in the user's arena.
    Request(Box<PortRequest>),
    /// Closes a session.
    Close(u64),
    /// The node of that number has ended: no file of it is open any more.
    NodeEnded(u64),
}

impl Job {
    /// Its kind, for `work_times`.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Job::UserArena(..) => "node: arena",
            Job::Admit(..) => "node: admission",
            Job::Request(..) => "node: request",
            Job::Close(_) => "node: close",
            Job::NodeEnded(_) => "node: end",
        }
    }
}

/// A request, and its caller.
pub(crate) struct PortRequest {
    pub(crate) request: NetmapRequest,
    pub(crate) caller: Caller,
    pub(crate) session: Option<u64>,
    pub(crate) arena: Arc<UserArena>,
    /// Where the outcome goes.
    pub(crate) reply: SyncSender<(Outcome, OwnPort)>,
}

/// The queue of jobs.
#[derive(Clone)]
pub(crate) struct JobQueue {
    sender: Sender<Job>,
    pub(super) doorbell: Arc<Doorbell>,
}

impl JobQueue {
    /// Returns an empty queue, and the end from which the main thread takes jobs.
    pub(super) fn new() -> io::Result<(JobQueue, Receiver<Job>)> {
        let (sender, receiver) = channel();
        Ok((JobQueue { sender, doorbell: Arc::new(Doorbell::new()?) }, receiver))
    }

    /// Queues a job. The main thread does the jobs in order.
    pub(crate) fn push(&self, job: Job) {
        // Fails only when the daemon exits.
        if self.sender.send(job).is_ok() {
            self.doorbell.notify();
        }
    }

    /// Wakes the main thread.
    pub(super) fn notify(&self) {
        self.doorbell.notify();
    }

    /// Queues a job and waits for its result; `None` when the daemon exits.
    pub(crate) fn call<T>(&self, job: impl FnOnce(SyncSender<T>) -> Job) -> Option<T> {
        let (reply, answer) = sync_channel(1);
        self.push(job(reply));
        answer.recv().ok()
    }
}
