// SPDX-License-Identifier: BSD-2-Clause
//! Work of the control thread: events, and the work that follows from them.

use super::unsent::Unsent;
use crate::node::Job;
use crate::requests::SnapshotTask;

/// Tokens of the event loop. Connections have even ones from `FIRST_TOKEN` on, the pidfds of lock holders the odd ones
/// after.
pub(crate) const LISTENER: u64 = 0;
pub(crate) const SIGNALS: u64 = 1;
pub(crate) const FIRST_TOKEN: u64 = 2;
/// Kind of work: reading a message that is not there, or is invalid.
pub(crate) const NO_MESSAGE: &str = "no message";
/// Watches of namespaces: this bit, and the namespace's number, which is an inode's and thus small.
pub(crate) const WATCHES: u64 = 1 << 63;
/// Jobs of the node's threads.
pub(crate) const NODE: u64 = 1 << 62;
/// Results of threads about interfaces, or memory that one has prepared.
pub(crate) const INTERFACES: u64 = 1 << 61;
/// Answers of the processes that keep the state, or their end.
pub(crate) const STORE: u64 = 1 << 60;

/// An answer that is not complete.
pub(crate) enum Task {
    /// It is being made.
    Snapshot(Box<SnapshotTask>),
    /// The message waits ([`super::waits`]).
    Wait,
    /// The message, which waits until its user has received other answers.
    Held(Vec<u8>),
    /// It is to be sent again.
    Send(Unsent),
}

/// A piece of work at a user's turn.
pub(crate) enum Work {
    /// Reads and answers a message of a connection.
    Message(u64),
    /// Goes on with the answer to a connection's message.
    Continue(u64),
    /// Goes on with a request of the node that has waited.
    Resume(u64),
    /// Admits connections that wait.
    Admit,
    /// Closes a connection.
    Close(u64),
    /// Does a job of the node.
    Job(Job),
}

impl Work {
    /// Its kind in `work_times`; `None`: that of the message which it answers.
    pub(crate) fn kind(&self) -> Option<&'static str> {
        match self {
            Work::Message(_) | Work::Continue(_) | Work::Resume(_) => None,
            Work::Admit => Some("admit connections"),
            Work::Close(_) => Some("close connection"),
            Work::Job(job) => Some(job.kind()),
        }
    }
}

/// The kind of an event of the event loop in `work_times`.
pub(crate) fn kind_of_event(token: u64) -> &'static str {
    match token {
        LISTENER => "accept",
        SIGNALS => "signals",
        NODE => "queue node jobs",
        INTERFACES => "interfaces are back",
        STORE => "answers of the store",
        token if token & WATCHES != 0 => "changes of interfaces",
        _ => "events of connections",
    }
}
