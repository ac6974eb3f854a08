// SPDX-License-Identifier: BSD-2-Clause
//! Common parts of transmit and receive rings.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use unetmap_mem::{BufIdx, RingView};
use unetmap_sys::Doorbell;

use crate::tuning::PAUSE_POLL;

/// A ring, for [`SwitchPort::new`](super::SwitchPort::new).
pub struct RingConfig<'a> {
    /// The ring.
    pub view: &'a RingView,
    /// Index of its channel in the channel page.
    pub channel: usize,
    /// Wakes the client that sleeps on the ring.
    pub doorbell: Doorbell,
    /// Of a receive ring: the buffer that replaces one that does not exist.
    pub placeholder: BufIdx,
}

/// Waits for a ring's lock; `None` if that takes longer than until `end`, as the switch waits for memory of a client.
pub(super) fn lock_until<T>(state: &Mutex<T>, end: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match state.try_lock() {
            Ok(state) => return Some(state),
            Err(TryLockError::Poisoned(e)) => return Some(e.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= end => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE_POLL),
        }
    }
}
