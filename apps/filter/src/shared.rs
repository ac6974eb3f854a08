// SPDX-License-Identifier: BSD-2-Clause
//! Tables of one thread, which need no lock, or of several.
//!
//! ```text
//! one thread:       Own(table)
//! several threads:  Parts: flow's hash -> Mutex<table>    states; both directions of a flow have the same part
//!                   All: Mutex<table>                      translated connections, found by either of two addresses
//! ```
//! A thread holds one lock of a part at a time, and takes that of the limits within it.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks. No table is left half changed by a panic that another thread survives.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value of one thread or of all.
#[derive(Debug)]
pub enum MaybeShared<T> {
    /// Of this thread.
    Own(T),
    /// Of several threads.
    All(Arc<Mutex<T>>),
}

impl<T> MaybeShared<T> {
    /// Makes handles of a value for `n` threads.
    pub fn for_threads(n: usize, value: T) -> Vec<MaybeShared<T>> {
        if n == 1 {
            return vec![MaybeShared::Own(value)];
        }
        let shared = Arc::new(Mutex::new(value));
        (0..n).map(|_| MaybeShared::All(Arc::clone(&shared))).collect()
    }

    /// Uses the value.
    #[inline]
    pub fn with<R>(&mut self, run: impl FnOnce(&mut T) -> R) -> R {
        match self {
            MaybeShared::Own(value) => run(value),
            MaybeShared::All(shared) => run(&mut locked(shared)),
        }
    }

    /// Uses the value, unless another thread does.
    #[inline]
    pub fn try_with<R>(&mut self, run: impl FnOnce(&mut T) -> R) -> Option<R> {
        match self {
            MaybeShared::Own(value) => Some(run(value)),
            MaybeShared::All(shared) => shared.try_lock().ok().map(|mut value| run(&mut value)),
        }
    }

    /// Reads the value.
    pub fn read<R>(&self, run: impl FnOnce(&T) -> R) -> R {
        match self {
            MaybeShared::Own(value) => run(value),
            MaybeShared::All(shared) => run(&locked(shared)),
        }
    }
}

/// A value in parts, each with a lock.
#[derive(Debug)]
pub(crate) struct Parts<T> {
    parts: Box<[Mutex<T>]>,
    /// The part whose turn it is for work that does not belong to a packet.
    turn: AtomicUsize,
}

impl<T> Parts<T> {
    pub(crate) fn new(parts: Vec<T>) -> Parts<T> {
        Parts { parts: parts.into_iter().map(Mutex::new).collect(), turn: AtomicUsize::new(0) }
    }

    /// Returns the part of a hash.
    pub(crate) fn of(&self, hash: u32) -> MutexGuard<'_, T> {
        // The tables use the low bits.
        locked(&self.parts[(hash >> 16) as usize % self.parts.len()])
    }

    /// Returns a part, in turns, unless another thread uses it.
    pub(crate) fn next(&self) -> Option<MutexGuard<'_, T>> {
        self.parts[self.turn.fetch_add(1, Relaxed) % self.parts.len()].try_lock().ok()
    }

    /// Returns the number of parts.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns a part by its number.
    pub(crate) fn get(&self, number: usize) -> Option<MutexGuard<'_, T>> {
        self.parts.get(number).map(locked)
    }

    /// Returns the parts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.parts.iter().map(locked)
    }
}
