//! Ways to the node: mounts, each with a queue of requests and threads that read it.
//!
//! ```text
//! /dev/netmap --> mount/netmap --> K/netmap   a link that leads to another way each time (LOOKUP, READLINK)
//!                 mount/K                     a folder, on which way K is mounted
//!                 mount/K/netmap              the file
//! ```
//! The kernel wakes one of those that wait for a queue's requests: the one that waited longest, wherever it is. So each
//! program comes by a way of its own, as long as there are enough, and the thread that answers it can stay near it
//! (`follow`). Who sees the first mount alone (a container that was given it before, or without those below) finds the
//! file at the same path, and comes by the first way.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unetmap_sys::fuse::{Device, Kind, ROOT_NODE};

use super::NAME;

/// The link in the first way's folder.
const LINK: u64 = 2;
/// Folders for ways: this, and the way's number.
const FIRST_FOLDER: u64 = 1 << 8;
/// Nodes of users' files: this, and the user's number.
const FIRST_FILE: u64 = 1 << 32;
/// Ways, at least and at most; between them as many as CPUs. Whoever shares a way is not waited for awake.
const FEWEST: usize = 4;
const MOST: usize = 16;

/// One of the node's mounts.
pub(super) struct Way {
    pub(super) number: usize,
    pub(super) dev: Device,
    /// Who holds it reads requests.
    lead: Mutex<()>,
    /// Threads that wait for the lead.
    pub(super) idle: AtomicUsize,
    /// Files that were opened by it.
    pub(super) files: AtomicU32,
}

/// Names a request that waits for its answer.
#[derive(Clone)]
pub(super) struct Ticket {
    pub(super) way: Arc<Way>,
    pub(super) unique: u64,
}

impl Way {
    pub(super) fn new(number: usize, dev: Device) -> Arc<Way> {
        Arc::new(Way { number, dev, lead: Mutex::new(()), idle: AtomicUsize::new(0), files: AtomicU32::new(0) })
    }

    /// Waits for the lead.
    pub(super) fn lead(&self) -> MutexGuard<'_, ()> {
        self.idle.fetch_add(1, Ordering::Relaxed);
        let role = self.lead.lock().unwrap_or_else(PoisonError::into_inner);
        self.idle.fetch_sub(1, Ordering::Relaxed);
        role
    }

    /// The node of that name in a folder, for that user.
    pub(super) fn find(&self, folder: u64, name: &[u8], uid: u32) -> Option<(u64, Kind)> {
        let first = self.number == 0;
        match folder {
            ROOT_NODE if name == NAME.as_bytes() && first => Some((LINK, Kind::Symlink)),
            ROOT_NODE if first => {
                let number = (0..MOST).find(|number| number.to_string().as_bytes() == name)?;
                Some((FIRST_FOLDER | number as u64, Kind::Directory))
            }
            // Another user's file is another node.
            _ if name == NAME.as_bytes() && kind(folder) == Kind::Directory => Some((file_of(uid), Kind::File)),
            _ => None,
        }
    }
}

impl Ticket {
    /// What it is kept under.
    pub(super) fn key(&self) -> (usize, u64) {
        (self.way.number, self.unique)
    }
}

/// The node that is a user's file.
pub(super) fn file_of(uid: u32) -> u64 {
    FIRST_FILE | u64::from(uid)
}

/// What a node is.
pub(super) fn kind(node: u64) -> Kind {
    match node {
        LINK => Kind::Symlink,
        FIRST_FILE.. => Kind::File,
        _ => Kind::Directory,
    }
}

/// How many ways there are to be.
pub(super) fn how_many() -> usize {
    std::thread::available_parallelism().map_or(FEWEST, |cpus| cpus.get().clamp(FEWEST, MOST))
}
