// SPDX-License-Identifier: BSD-2-Clause
//! The mailbox of a switch thread: the configuration that it is to use, and the wait until it does.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use unetmap_sys::Doorbell;

use super::config::SwitchConfig;

/// State that a thread shares with the daemon's main thread.
pub struct Mailbox {
    /// Number of the last published configuration.
    pub(super) published: AtomicU64,
    pub(super) config: Mutex<Config>,
    /// Notified when the thread uses a new configuration.
    pub(super) applied: Condvar,
    /// Wakes the thread.
    pub(super) doorbell: Doorbell,
    /// The kernel's id of the thread; 0: not started yet.
    pub(super) tid: AtomicU32,
}

pub(super) struct Config {
    pub(super) switches: Arc<Vec<SwitchConfig>>,
    /// Number of the configuration that the thread uses.
    pub(super) applied: u64,
    pub(super) stop: bool,
}

impl Mailbox {
    /// For a thread without ports.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Mailbox> {
        Ok(Mailbox {
            published: AtomicU64::new(0),
            config: Mutex::new(Config { switches: Arc::default(), applied: 0, stop: false }),
            applied: Condvar::new(),
            doorbell: Doorbell::new()?,
            tid: AtomicU32::new(0),
        })
    }

    /// Publishes the configuration that the thread is to use; [`Mailbox::wait_quiescent`] waits for the number
    /// returned.
    pub fn publish_config(&self, switches: Vec<SwitchConfig>) -> u64 {
        self.publish(|config| config.switches = Arc::new(switches))
    }

    /// Waits until the thread uses configuration `number`, and so nothing that is not in it; `false` if that takes
    /// longer than `limit`.
    pub fn wait_quiescent(&self, number: u64, limit: Duration) -> bool {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.applied.wait_timeout_while(config, limit, |config| config.applied < number);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Stops the thread: [`Mailbox::wait_quiescent`] waits for the number returned, after which it uses nothing.
    pub fn stop(&self) -> u64 {
        self.publish(|config| {
            config.switches = Arc::default();
            config.stop = true;
        })
    }

    /// Returns the kernel's id of the thread; 0 before it has started.
    pub fn tid(&self) -> u32 {
        self.tid.load(Relaxed)
    }

    fn publish(&self, change: impl FnOnce(&mut Config)) -> u64 {
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut config);
        let number = self.published.fetch_add(1, Release) + 1;
        self.doorbell.notify();
        number
    }
}
