// SPDX-License-Identifier: BSD-2-Clause
//! The node's mounts, each with a queue of requests and threads that read it.
//!
//! ```text
//! /dev/netmap --> mount/netmap --> K/netmap   a symbolic link with another target each time (LOOKUP, READLINK)
//!                 mount/K                     a directory, on which mount K is mounted
//!                 mount/K/netmap              the file
//! ```
//! When a request arrives, the kernel wakes the thread that has waited longest for requests of that mount, wherever
//! that thread runs. So each program uses a mount of its own, as long as there are enough, and the thread that answers
//! it can stay on the program's CPU (`affinity`). A container that sees only the first mount (because it was passed
//! before the others, or without them) finds the file at the same path, and uses the first mount.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unetmap_sys::fuse::{Device, Kind, ROOT_NODE};
use unetmap_sys::{process, thread};

use crate::broker::NODE_NAME as NAME;
use crate::tuning::node::{MAX_MOUNTS, MIN_MOUNTS};

/// The symbolic link in the first mount's directory.
const LINK: u64 = 2;
/// Directories of mounts: this, and the mount's number.
const FIRST_DIRECTORY: u64 = 1 << 8;
/// Inodes of users' files: this, and the user's number.
const FIRST_FILE: u64 = 1 << 32;

/// One of the node's mounts.
pub(super) struct Mount {
    pub(super) number: usize,
    pub(super) dev: Device,
    /// The thread that holds it reads requests.
    reader: Mutex<()>,
    /// Its number; 0 if there is none.
    reader_tid: AtomicU32,
    /// Threads that wait to become the reader.
    pub(super) idle: AtomicUsize,
    /// Open files that were opened through it.
    pub(super) files: AtomicU32,
}

/// The calling thread reads a mount's requests as long as this exists.
pub(super) struct Reader<'a> {
    mount: &'a Mount,
    _role: MutexGuard<'a, ()>,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.mount.reader_tid.store(0, Ordering::SeqCst);
    }
}

/// Identifies a request that waits for its answer.
#[derive(Clone)]
pub(super) struct RequestId {
    pub(super) mount: Arc<Mount>,
    pub(super) unique: u64,
}

impl Mount {
    pub(super) fn new(number: usize, dev: Device) -> Arc<Mount> {
        let (reader, reader_tid, idle) = (Mutex::default(), AtomicU32::new(0), AtomicUsize::new(0));
        Arc::new(Mount { number, dev, reader, reader_tid, idle, files: AtomicU32::new(0) })
    }

    /// Waits until the calling thread is the reader, which it is until the result is dropped.
    pub(super) fn become_reader(&self) -> Reader<'_> {
        self.idle.fetch_add(1, Ordering::Relaxed);
        let role = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        self.idle.fetch_sub(1, Ordering::Relaxed);
        self.reader_tid.store(process::tid(), Ordering::SeqCst);
        Reader { mount: self, _role: role }
    }

    /// Interrupts the reader, should it wait for requests.
    pub(super) fn interrupt_reader(&self) {
        match self.reader_tid.load(Ordering::SeqCst) {
            0 => {}
            tid => _ = thread::interrupt(tid),
        }
    }

    /// Returns the inode of that name in a directory, for that user.
    pub(super) fn find(&self, folder: u64, name: &[u8], uid: u32) -> Option<(u64, Kind)> {
        let first = self.number == 0;
        match folder {
            ROOT_NODE if name == NAME.as_bytes() && first => Some((LINK, Kind::Symlink)),
            ROOT_NODE if first => {
                let number = (0..MAX_MOUNTS).find(|number| number.to_string().as_bytes() == name)?;
                Some((FIRST_DIRECTORY | number as u64, Kind::Directory))
            }
            // Another user's file is another inode.
            _ if name == NAME.as_bytes() && kind(folder) == Kind::Directory => Some((file_of(uid), Kind::File)),
            _ => None,
        }
    }
}

impl RequestId {
    /// The key by which it is stored.
    pub(super) fn key(&self) -> (usize, u64) {
        (self.mount.number, self.unique)
    }
}

/// The inode of a user's file.
pub(super) fn file_of(uid: u32) -> u64 {
    FIRST_FILE | u64::from(uid)
}

/// The kind of an inode.
pub(super) fn kind(node: u64) -> Kind {
    match node {
        LINK => Kind::Symlink,
        FIRST_FILE.. => Kind::File,
        _ => Kind::Directory,
    }
}

/// The number of mounts.
pub(super) fn count() -> usize {
    std::thread::available_parallelism().map_or(MIN_MOUNTS, |cpus| cpus.get().clamp(MIN_MOUNTS, MAX_MOUNTS))
}
