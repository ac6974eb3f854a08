// SPDX-License-Identifier: BSD-2-Clause
//! Making the memory of large new ports resident, in a thread of its own: the kernel takes about 1 us for a page, and a
//! port can have thousands.
//!
//! ```text
//! control thread                                   thread
//! a request is to create a region, and to   -->  makes these pages resident, a slice
//!   touch many pages of it: it waits              for each user in turn
//! others are served
//! the request begins, with this memory      <--  done
//! ```
//! A request waits at most once. What it touches beside these pages is as before: the control thread faults it in.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use unetmap_sys::Doorbell;

use crate::confinement::confine_packet_thread;
use crate::region::Prepared;
use crate::threads;

/// A job for the thread.
enum Job {
    /// For the request of this number.
    Prepare(u64, Box<Prepared>),
    /// The client has left that it was for.
    Free(Box<Prepared>),
}

/// Memory that is ready, and the number of the request that waits for it.
type Done = (u64, Box<Prepared>);

/// The thread, as the control thread sees it.
pub(crate) struct Preparer {
    jobs: Sender<Job>,
    done: Receiver<Done>,
}

impl Preparer {
    /// Starts the thread, which notifies `doorbell` when memory is ready.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOMEM`.
    pub(crate) fn new(doorbell: Arc<Doorbell>) -> io::Result<Preparer> {
        let (jobs, received) = channel();
        let (sender, done) = channel();
        let ready = move |done: Done| {
            if sender.send(done).is_ok() {
                doorbell.notify();
            }
        };
        threads::start("region memory", move || run(&received, ready))?;
        Ok(Preparer { jobs, done })
    }

    /// Has the memory prepared for a request.
    pub(crate) fn prepare(&self, number: u64, memory: Box<Prepared>) {
        // The thread does not end.
        let _ = self.jobs.send(Job::Prepare(number, memory));
    }

    /// Frees memory that nobody waits for any more.
    pub(crate) fn free(&self, memory: Box<Prepared>) {
        let _ = self.jobs.send(Job::Free(memory));
    }

    /// Returns all that is ready. The doorbell is to be cleared before.
    pub(crate) fn take_done(&self) -> Vec<Done> {
        self.done.try_iter().collect()
    }
}

/// Does jobs until the daemon exits.
fn run(jobs: &Receiver<Job>, ready: impl Fn(Done)) {
    confine_packet_thread();
    // Users with jobs are in `order`, the next one first.
    let (mut users, mut order) = (BTreeMap::<u32, VecDeque<Done>>::new(), VecDeque::new());
    loop {
        let first = if order.is_empty() {
            // Without a sender the daemon exits.
            let Ok(job) = jobs.recv() else { return };
            Some(job)
        } else {
            jobs.try_recv().ok()
        };
        for job in first.into_iter().chain(jobs.try_iter()) {
            let (number, memory) = match job {
                Job::Prepare(number, memory) => (number, memory),
                Job::Free(memory) => {
                    drop(memory);
                    continue;
                }
            };
            let uid = memory.scope.uid;
            let queue = users.entry(uid).or_insert_with(|| {
                order.push_back(uid);
                VecDeque::new()
            });
            queue.push_back((number, memory));
        }
        let Some(uid) = order.pop_front() else { continue };
        let Some(queue) = users.get_mut(&uid) else { continue };
        if queue.front_mut().is_some_and(|(_, memory)| memory.work()) {
            queue.pop_front().into_iter().for_each(&ready);
        }
        if queue.is_empty() {
            users.remove(&uid);
        } else {
            order.push_back(uid);
        }
    }
}
