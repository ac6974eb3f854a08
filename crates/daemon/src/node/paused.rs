// SPDX-License-Identifier: BSD-2-Clause
//! Stopping the node while the daemon is replaced, and going on: in the successor, or here if that fails.
//!
//! ```text
//! a reader                   is interrupted, and ends
//! a request that was read    quick ones are answered; slow ones that have begun are completed, others deferred
//! requests not read yet      wait in the kernel
//! polls                      held ones are answered: nothing is ready; then the kernel is told to poll all again
//! ```
//! Slow requests can take long, one after the other without end. If one keeps the threads from ending, none is begun
//! any more while the successor tries again ([`Nodes::drain`]), and accesses to programs' memory are cut off after a
//! while: a request that has only read there begins again later, one that writes its result fails.
//!
//! A file needs no more than its number, its mount, its session and the kernel's handle of its polls.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use unetmap_core::Interest;
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};

use super::Nodes;
use super::file::{File, SlowRequest};
use super::jobs::Job;
use super::mount::Mount;
use super::serve::{spawn, start_waker};
use super::shared::Shared;
use super::slow::run_kept;
use crate::ports::Daemon;
use crate::ports::mediators::own_port;
use crate::refusal::{Refusal, refuse_for_now};
use crate::threads;
use crate::threads::lock;
use crate::tuning::node::{CUT_LIMIT, PAUSE_LIMIT, PAUSE_POLL};

impl Shared {
    /// Whether the threads end, or have ended.
    pub(super) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::SeqCst)
    }

    /// Whether no slow request is begun.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::SeqCst)
    }

    /// Keeps a slow request while none may begin; else returns it.
    pub(super) fn hold_back(&self, request: SlowRequest) -> Option<SlowRequest> {
        // Under the lock: what is kept is found by the threads that go on.
        let mut deferred = lock(&self.deferred);
        if !self.is_paused() && !self.is_draining() {
            return Some(request);
        }
        deferred.push(request);
        None
    }

    /// Takes a request of a mount that was kept.
    pub(super) fn take_deferred(&self, mount: &Mount) -> Option<SlowRequest> {
        let mut deferred = lock(&self.deferred);
        if self.is_paused() || self.is_draining() {
            return None;
        }
        let at = deferred.iter().position(|request| request.id.mount.number == mount.number)?;
        Some(deferred.remove(at))
    }

    /// Tells all threads to end. Requests of the main thread that some wait for are still to be answered.
    fn pause(&self) {
        self.is_paused.store(true, Ordering::SeqCst);
        lock(&self.marks).waiting.clear();
        self.waker.end();
    }

    /// Interrupts the threads that wait for requests. One that has begun a slow request is none of them, and one that
    /// begins one now defers it: no other wait is interrupted.
    fn interrupt_readers(&self) {
        lock(&self.mounts).all.iter().for_each(|mount| mount.interrupt_reader());
    }

    /// After all threads have ended: answers the polls that are held.
    fn end_polls(&self) {
        for held in self.held_polls.take_all() {
            let _ = held.answer(Ok(Interest::NONE));
        }
        self.waker.reset();
    }

    /// Begins no slow request any more, until [`Shared::end_drain`].
    fn begin_drain(&self) {
        self.is_draining.store(true, Ordering::SeqCst);
        self.helpers.set_cut(Some(Instant::now() + CUT_LIMIT));
    }

    /// Has the slow requests done that were kept.
    fn end_drain(self: &Arc<Shared>) {
        self.helpers.set_cut(None);
        let mut deferred = lock(&self.deferred);
        self.is_draining.store(false, Ordering::SeqCst);
        let kept = std::mem::take(&mut *deferred);
        drop(deferred);
        kept.into_iter().for_each(|request| run_kept(self, request));
    }

    /// Starts the threads again, and has all programs that sleep poll again.
    fn go_on(self: &Arc<Shared>) {
        let deferred = lock(&self.deferred);
        self.is_paused.store(false, Ordering::SeqCst);
        drop(deferred);
        let failed = |e: io::Error| tracing::error!("a thread of the node cannot be started: {e}");
        start_waker(self).unwrap_or_else(failed);
        let mounts = lock(&self.mounts).all.clone();
        mounts.iter().for_each(|mount| spawn(self, mount).unwrap_or_else(failed));
        let files: Vec<Arc<File>> = lock(&self.files).open.values().cloned().collect();
        for file in files {
            let _ = file.kh().map(|kh| file.mount.dev.notify_poll(kh));
        }
        // Nobody waits for them: a request without an idle helper starts one.
        let shared = self.clone();
        let prepare = move || shared.helpers.prepare().unwrap_or_else(|e| tracing::warn!("the node's helpers: {e}"));
        let _ = threads::start("node helpers", prepare);
    }
}

impl Nodes {
    fn all(&self) -> impl Iterator<Item = &Arc<Shared>> {
        self.on.iter().map(|(_, node)| node).chain(&self.ended)
    }

    /// Does the jobs that are queued.
    fn run_jobs(&mut self, daemon: &mut Daemon) {
        self.clear_doorbell();
        while let Some((_, job)) = self.next_job(daemon) {
            self.run_job(daemon, job);
        }
    }

    /// Stops all threads; `jobs` are some that the main thread has taken out of the queue. Refuses while a request
    /// takes long. [`Nodes::resume`] is to follow in any case.
    pub(crate) fn pause(&mut self, daemon: &mut Daemon, jobs: Vec<Job>) -> Result<(), Refusal> {
        jobs.into_iter().for_each(|job| self.run_job(daemon, job));
        // Stopping the programs would not help yet.
        let is_busy = |node: &Arc<Shared>| node.is_draining() && node.slow.load(Ordering::Acquire) > 0;
        if self.all().any(is_busy) {
            return takes_long();
        }
        let start = Instant::now();
        self.all().for_each(|node| node.pause());
        loop {
            let is_still = self.all().all(|node| node.threads.load(Ordering::Acquire) == 0);
            // After the check: what the last thread has queued is done, too.
            self.run_jobs(daemon);
            if is_still {
                break;
            }
            // Again and again: one may just have been about to wait.
            self.all().for_each(|node| node.interrupt_readers());
            if start.elapsed() > PAUSE_LIMIT || !self.waiting.is_empty() {
                return takes_long();
            }
            let _ = wait_readable(&mut [PollFd::new(&self.doorbell().as_fd(), PollFlags::IN)], Some(PAUSE_POLL));
        }
        self.all().for_each(|node| node.end_polls());
        Ok(())
    }

    /// Begins nothing that may take long until [`Nodes::end_drain`]; what has begun ends within about
    /// [`CUT_LIMIT`].
    pub(crate) fn drain(&self) {
        self.all().for_each(|node| node.begin_drain());
    }

    /// Does what was kept back.
    pub(crate) fn end_drain(&self) {
        self.all().filter(|node| node.is_draining()).for_each(Shared::end_drain);
    }

    /// Goes on. Files that were handed over get their ports.
    pub(crate) fn resume(&mut self, daemon: &mut Daemon) {
        for node in self.all().filter(|node| node.is_paused()) {
            let files: Vec<Arc<File>> = lock(&node.files).open.values().cloned().collect();
            for file in files.iter().filter(|file| file.port().is_none()) {
                let Some(session) = file.session() else { continue };
                if let Err(why) = open_again(daemon, node, file, session) {
                    tracing::error!("a port of the node is closed: {why}");
                    file.take_session();
                    daemon.close(session);
                }
            }
            node.go_on();
        }
    }
}

fn takes_long<T>() -> Result<T, Refusal> {
    refuse_for_now("a request of a program at the node takes long: try again")
}

/// Opens the port of a file that another daemon has handed over.
fn open_again(daemon: &mut Daemon, node: &Shared, file: &File, session: u64) -> Result<(), String> {
    let (name, registered) = daemon.repeat_answer(session).map_err(|refusal| refusal.why)?;
    let own = own_port(&daemon.registry, &mut daemon.monitors, session);
    let binding = (registered.register, &registered.bound, registered.fds);
    let port = node.open_port(&name, binding, own).map_err(|errno| io::Error::from_raw_os_error(errno).to_string())?;
    file.set_port(port);
    Ok(())
}
