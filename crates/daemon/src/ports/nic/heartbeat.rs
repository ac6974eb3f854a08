// SPDX-License-Identifier: BSD-2-Clause
//! The thread that renews the deadlines of the programs that are attached to interfaces.
//!
//! The control thread cannot: a driver may hold it up for seconds while a program is attached or a socket is bound, and
//! so may memory that a client shares. This thread accesses no such memory. Its one lock is held by others for a few
//! instructions, except when they start it.
//!
//! ```text
//! state of the daemon               the deadlines
//! it runs                           are renewed
//! the whole process is stopped      pass, as this thread is stopped, too
//! the control thread hangs          pass after MAX_CONTROL_DELAY
//! ```

use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::privileged::Deadline;
use crate::threads::lock;
use crate::tuning::nic::{HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, MAX_CONTROL_DELAY};

/// The deadlines that are renewed.
#[derive(Clone, Default)]
pub(crate) struct Heartbeat(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Dropped with the programs.
    deadlines: Vec<Weak<Deadline>>,
    /// Whether the thread runs: while there are deadlines.
    running: bool,
    control: ControlThread,
}

/// State of the control thread.
#[derive(Default)]
struct ControlThread {
    /// When it began to handle events; `None`: it waits for some.
    busy_since: Option<Instant>,
}

impl ControlThread {
    fn hangs(&self, now: Instant) -> bool {
        self.busy_since.is_some_and(|since| now.saturating_duration_since(since) > MAX_CONTROL_DELAY)
    }
}

impl Heartbeat {
    /// Sets a deadline for the first time, and renews it until it is dropped.
    pub(super) fn add(&self, deadline: &Arc<Deadline>) -> io::Result<()> {
        deadline.extend(HEARTBEAT_TIMEOUT)?;
        let mut state = lock(&self.0);
        state.deadlines.push(Arc::downgrade(deadline));
        if !state.running {
            let heartbeat = self.clone();
            thread::Builder::new().name("heartbeat".into()).spawn(move || heartbeat.run())?;
            state.running = true;
        }
        Ok(())
    }

    /// The control thread begins to handle an event.
    pub(crate) fn control_begins(&self) {
        lock(&self.0).control.busy_since = Some(Instant::now());
    }

    /// The control thread waits for events.
    pub(crate) fn control_waits(&self) {
        lock(&self.0).control.busy_since = None;
    }

    /// Renews the deadlines until none is left.
    fn run(&self) {
        let (mut renewed, mut reported) = (Instant::now(), false);
        while let Some((deadlines, hangs)) = self.due() {
            if !hangs {
                deadlines.iter().for_each(renew);
                report_delay(renewed.elapsed());
                renewed = Instant::now();
            } else if !reported {
                tracing::error!(
                    "a request has taken {MAX_CONTROL_DELAY:?}: until it ends, open interfaces are the kernel's"
                );
            }
            reported = hangs;
            drop(deadlines);
            thread::sleep(HEARTBEAT_INTERVAL);
        }
    }

    /// The deadlines, and whether the control thread hangs; `None`: no deadline is left, and the thread ends.
    fn due(&self) -> Option<(Vec<Arc<Deadline>>, bool)> {
        let mut state = lock(&self.0);
        let deadlines: Vec<_> = state.deadlines.iter().filter_map(Weak::upgrade).collect();
        state.deadlines.retain(|deadline| deadline.strong_count() > 0);
        state.running = !deadlines.is_empty();
        state.running.then(|| (deadlines, state.control.hangs(Instant::now())))
    }
}

fn renew(deadline: &Arc<Deadline>) {
    if let Err(e) = deadline.extend(HEARTBEAT_TIMEOUT) {
        tracing::error!("the deadline of an interface's programs cannot be renewed: {e}");
    }
}

/// Reports that deadlines have passed since they were renewed the last time.
fn report_delay(since: Duration) {
    if since > HEARTBEAT_TIMEOUT {
        let late = (since - HEARTBEAT_TIMEOUT).as_millis();
        tracing::warn!("the daemon was delayed: open interfaces were the kernel's for {late} ms");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_request_counts_as_a_hang() {
        let now = Instant::now();
        let after = |time| now + time;
        let busy = ControlThread { busy_since: Some(now) };
        assert!(!busy.hangs(now) && !busy.hangs(after(MAX_CONTROL_DELAY)));
        assert!(busy.hangs(after(MAX_CONTROL_DELAY + Duration::from_millis(1))));
        assert!(!ControlThread::default().hangs(after(2 * MAX_CONTROL_DELAY)));
    }

    #[test]
    fn the_thread_ends_without_deadlines() {
        let heartbeat = Heartbeat::default();
        lock(&heartbeat.0).running = true;
        assert!(heartbeat.due().is_none() && !lock(&heartbeat.0).running);
    }
}
