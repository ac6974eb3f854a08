// SPDX-License-Identifier: BSD-2-Clause
//! Threads that deliver what a monitored interface receives when it arrives, so that its monitors see it before the
//! program syncs.
//!
//! ```text
//! socket == program's ring == program         the thread shares the program's session: under the ring's lock it
//!   '-- [thread] --'    '---> mirror rings     delivers what has arrived, which copies it to the monitors, releases
//!                                              nothing, and wakes the program
//! ```
//! Only interfaces that programs open directly need them: what moves the packets of other ports does not wait for the
//! program that receives them.

use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use unetmap_core::Port;
use unetmap_core::errno::{EBUSY, ENOMEM};
use unetmap_sys::event::Epoll;
use unetmap_sys::process;

use crate::confinement::confine_packet_thread;
use crate::refusal::{Refusal, refuse};
use crate::threads;
use crate::threads::wait_for_end;
use crate::tuning::arrival::RETRY;

/// The threads, by session of a program that has a monitored interface open.
#[derive(Default)]
pub(crate) struct ArrivalState(BTreeMap<u64, ArrivalThread>);

/// A running thread.
struct ArrivalThread {
    control: Arc<Control>,
    /// Closing it wakes the thread.
    connection: OwnedFd,
    thread: JoinHandle<()>,
}

/// Words between the main thread and the thread.
#[derive(Default)]
struct Control {
    stop: AtomicBool,
    /// The kernel's id of the thread; 0: not started yet.
    tid: AtomicU32,
}

impl ArrivalState {
    /// Whether a session has a thread.
    pub(super) fn serves(&self, session: u64) -> bool {
        self.0.contains_key(&session)
    }

    /// Starts a thread for a session, whose port is `port`; `connection`: its closing ends the port.
    pub(super) fn start(&mut self, session: u64, name: &str, port: Port, connection: OwnedFd) -> Result<(), Refusal> {
        let control = Arc::new(Control::default());
        let of_thread = control.clone();
        let thread = threads::start(format!("{name} arrivals"), move || {
            confine_packet_thread();
            of_thread.tid.store(process::tid(), Ordering::Relaxed);
            if let Err(e) = deliver(&port, &of_thread.stop) {
                tracing::debug!("packets are shown to monitors when their program syncs: {e}");
            }
        });
        let thread = thread.or_else(|e| refuse(ENOMEM, format!("no thread for the monitors of {name}: {e}")))?;
        self.0.insert(session, ArrivalThread { control, connection, thread });
        Ok(())
    }

    /// Stops all threads while the daemon is replaced. [`super::arrival::resume`] is to follow in any case.
    pub(crate) fn pause(&mut self) -> Result<(), Refusal> {
        let sessions: Vec<u64> = self.0.keys().copied().collect();
        match sessions.into_iter().all(|session| self.stop(session)) {
            true => Ok(()),
            false => refuse(EBUSY, "a thread that shows packets to monitors waits for memory of a program: try again"),
        }
    }

    /// Stops the thread of a session, if it has one. Returns `false` if it is held up; then it ends by itself.
    pub(super) fn stop(&mut self, session: u64) -> bool {
        let Some(thread) = self.0.remove(&session) else { return true };
        thread.control.stop.store(true, Ordering::Release);
        drop(thread.connection);
        let has_ended = wait_for_end(&thread.thread, || thread.control.tid.load(Ordering::Relaxed));
        if has_ended && thread.thread.join().is_err() {
            tracing::error!(session, "a thread that delivers packets to monitors panicked");
        }
        has_ended
    }
}

/// Delivers packets until the thread is stopped, or the port ends.
fn deliver(port: &Port, stop: &AtomicBool) -> Result<(), Box<dyn Error>> {
    let (epoll, mut events) = (Epoll::new()?, Vec::new());
    for fd in port.arrival_fds() {
        epoll.add_edge(fd, 0)?;
    }
    while !stop.load(Ordering::Acquire) {
        let are_left = port.deliver_to_monitors()?;
        // A signal ends the wait early.
        let _ = epoll.wait(&mut events, are_left.then_some(RETRY));
    }
    Ok(())
}
