// SPDX-License-Identifier: BSD-2-Clause
//! A helper thread that waits for the doorbells of idle rings while the switch thread is in a futex wait.
//!
//! ```text
//!            while the switch thread sleeps  while it is in a futex wait
//! busy ring  notifies its port's doorbell    changes its position word, which ends the wait (0.2 us for each word)
//! idle ring  notifies its port's doorbell    notifies its port's doorbell; the listener's own word ends the wait
//! ```
//! The kernel lets a thread wait for futex words or for descriptors, not for both. So the doorbells of idle rings
//! wake this second thread, which ends the futex wait. Each doorbell fires once until it is armed again: a client
//! that notifies all the time gains nothing.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use unetmap_mem::ChannelWords;
use unetmap_sys::Doorbell;
use unetmap_sys::event::Epoll;
use unetmap_sys::process;
use unetmap_sys::thread::set_wakeup_preemption;

use crate::backpressure::PortId;
use crate::tuning::FALLBACK_SLEEP;

/// Token of the doorbell that stops the thread, among the ports' tokens.
const STOP: u64 = u64::MAX;

/// The thread; it stops when this is dropped.
pub(crate) struct IdleListener {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    doorbells: Epoll,
    stop: Doorbell,
    /// Words of a channel without a peer: the switch thread waits as its consumer.
    words: ChannelWords,
    /// Tokens of the ports whose doorbells fired, until they are taken.
    fired: Mutex<Vec<u64>>,
}

impl IdleListener {
    /// Starts the thread, with no doorbell armed.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub(crate) fn new() -> io::Result<IdleListener> {
        let shared = Shared {
            doorbells: Epoll::new()?,
            stop: Doorbell::new()?,
            words: ChannelWords::new(),
            fired: Mutex::default(),
        };
        shared.doorbells.add(&shared.stop, STOP, true, false)?;
        let shared = Arc::new(shared);
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("switch idle".into()).spawn(move || of_thread.run())?;
        Ok(IdleListener { shared, thread: Some(thread) })
    }

    /// Arms the doorbell of a port, which is clear, until it fires.
    ///
    /// # Errors
    /// No memory is left.
    pub(crate) fn arm(&self, (switch, port): PortId, doorbell: &Doorbell) -> io::Result<()> {
        self.shared.doorbells.arm_oneshot(doorbell, (switch as u64) << 8 | u64::from(port))
    }

    /// Disarms a doorbell.
    pub(crate) fn disarm(&self, doorbell: &Doorbell) {
        // An error means that it was never armed.
        let _ = self.shared.doorbells.delete(doorbell);
    }

    /// Takes the ports whose doorbells fired. After a change of configuration some may be other ports than those that
    /// notified.
    pub(crate) fn take_fired(&self) -> Vec<PortId> {
        let fired = std::mem::take(&mut *self.shared.fired.lock().unwrap_or_else(PoisonError::into_inner));
        fired.into_iter().map(|token| ((token >> 8) as usize, token as u8)).collect()
    }

    /// True if a doorbell fired since the last [`IdleListener::take_fired`].
    pub(crate) fn any_fired(&self) -> bool {
        !self.shared.fired.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Returns the channel words on which the listener publishes when a doorbell has fired.
    pub(crate) fn words(&self) -> &ChannelWords {
        &self.shared.words
    }
}

impl Drop for IdleListener {
    fn drop(&mut self) {
        self.shared.stop.notify();
        // The thread cannot panic.
        self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn run(&self) {
        // Undo what the thread inherits from the switch thread: its scheduling policy and its CPU.
        set_wakeup_preemption(true);
        process::allow_all_cpus();
        let mut events = Vec::new();
        loop {
            match self.doorbells.wait(&mut events, None) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => std::thread::sleep(FALLBACK_SLEEP),
            }
            if events.iter().any(|(token, _)| *token == STOP) {
                return;
            }
            let fired = events.iter().map(|(token, _)| *token);
            self.fired.lock().unwrap_or_else(PoisonError::into_inner).extend(fired);
            // Wakes the switch thread from its futex wait; before a wait the switch thread checks `fired`.
            self.words.take_consumer_wakeup();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use unetmap_mem::FutexWaitSet;

    use super::*;

    /// Waits until a doorbell fired, for a second at most; returns the ports.
    fn wait_fired(listener: &IdleListener) -> Vec<PortId> {
        let start = Instant::now();
        loop {
            let fired = listener.take_fired();
            if !fired.is_empty() || start.elapsed() > Duration::from_secs(1) {
                return fired;
            }
            let mut wait = FutexWaitSet::default();
            assert!(wait.add_consumer(listener.words()));
            wait.wait(|| true);
        }
    }

    #[test]
    fn a_doorbell_ends_a_futex_wait() {
        let (listener, doorbell) = (IdleListener::new().unwrap(), Doorbell::new().unwrap());
        // On a busy machine the wait may time out before the doorbell fires.
        let woken = (0..20).any(|_| {
            doorbell.clear();
            listener.arm((3, 200), &doorbell).unwrap();
            doorbell.notify_after(Duration::from_millis(2));
            let mut wait = FutexWaitSet::default();
            wait.add_consumer(listener.words());
            wait.wait(|| true)
        });
        assert!(woken, "all waits timed out");
        assert_eq!(wait_fired(&listener).first(), Some(&(3, 200)));
    }

    #[test]
    fn a_doorbell_fires_once_until_it_is_armed_again() {
        let (listener, [a, b]) = (IdleListener::new().unwrap(), [0; 2].map(|_| Doorbell::new().unwrap()));
        listener.arm((0, 1), &a).unwrap();
        listener.arm((0, 2), &b).unwrap();
        a.notify();
        assert_eq!(wait_fired(&listener), [(0, 1)]);
        a.notify();
        b.notify();
        assert_eq!(wait_fired(&listener), [(0, 2)]);
        a.clear();
        listener.arm((0, 1), &a).unwrap();
        a.notify();
        assert_eq!(wait_fired(&listener), [(0, 1)]);
        a.clear();
        listener.arm((0, 1), &a).unwrap();
        listener.disarm(&a);
        listener.disarm(&a);
        a.notify();
        b.clear();
        listener.arm((0, 2), &b).unwrap();
        b.notify();
        assert_eq!(wait_fired(&listener), [(0, 2)]);
    }
}
