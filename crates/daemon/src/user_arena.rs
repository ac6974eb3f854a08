// SPDX-License-Identifier: BSD-2-Clause
//! User arenas: one file that contains all regions of a user, so that mapping it makes each of them accessible.
//!
//! ```text
//! 0         base of B             base of C                        BYTES
//! | region A | (hole) | region B |  | region C |  (never touched)   |
//! ```
//! A program that opens the node (`/dev/netmap`) maps its memory before it selects a port: it maps this file. Offsets
//! of a region are offsets in the file. The pages of a region are returned to the kernel when the region ends, or,
//! where nobody may remove pages (`memfd::keep_pages`), with the file: later regions of the user find there what its
//! programs wrote.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::shared_files::SharedFile;
use crate::threads::lock;
use crate::tuning::region::ALIGN;
use unetmap_sys::{fuse, memfd};

/// Bytes of the file. Pages that were never written take no memory.
const BYTES: u64 = fuse::FILE_BYTES;

/// The file, and which parts of it are allocated.
pub(crate) struct UserArena {
    fd: OwnedFd,
    /// First byte of each allocated part, and the byte after its last.
    allocated: Mutex<BTreeMap<u64, u64>>,
    /// Whether another daemon still has it, which is to be replaced: then no page is freed here.
    is_others: AtomicBool,
    /// Its user's charge for it.
    file: Option<Arc<SharedFile>>,
}

/// An allocated part of an arena. It is freed when dropped.
pub(crate) struct Extent {
    arena: Arc<UserArena>,
    base: u64,
    end: u64,
}

impl UserArena {
    pub(crate) fn new() -> io::Result<UserArena> {
        Ok(UserArena::of(memfd::create_sealed("unetmap-user", BYTES)?, false))
    }

    fn of(fd: OwnedFd, is_others: bool) -> UserArena {
        UserArena { fd, allocated: Mutex::default(), is_others: AtomicBool::new(is_others), file: None }
    }

    /// Has its user pay for all pages that the daemon touches in it, until programs have it no more.
    pub(crate) fn paid(self, file: Option<Arc<SharedFile>>) -> UserArena {
        UserArena { file, ..self }
    }

    /// Its user's charge for it.
    pub(crate) fn file(&self) -> Option<&Arc<SharedFile>> {
        self.file.as_ref()
    }

    /// The arena of a daemon that is to be replaced.
    pub(crate) fn of_another(fd: OwnedFd) -> UserArena {
        UserArena::of(fd, true)
    }

    /// The daemon that had the arena was replaced.
    pub(crate) fn take(&self) {
        self.is_others.store(false, Ordering::Relaxed);
    }

    /// Allocates a part that the other daemon has allocated; `None` if it is none of the arena, or is allocated here.
    pub(crate) fn restore(self: &Arc<UserArena>, base: u64, bytes: u64) -> Option<Extent> {
        let end = base.checked_add(bytes).filter(|end| *end <= BYTES && bytes > 0)?;
        let mut allocated = lock(&self.allocated);
        if allocated.iter().any(|(&from, &to)| from < end && base < to) {
            return None;
        }
        allocated.insert(base, end);
        Some(Extent { arena: self.clone(), base, end })
    }

    /// Allocates the first free part of `bytes` bytes; `None` if there is none.
    pub(crate) fn allocate(self: &Arc<UserArena>, bytes: u64) -> Option<Extent> {
        let mut allocated = lock(&self.allocated);
        let mut base = 0;
        for (&from, &to) in allocated.iter() {
            if from - base >= bytes {
                break;
            }
            base = to.next_multiple_of(ALIGN);
        }
        let end = base.checked_add(bytes).filter(|end| *end <= BYTES)?;
        // Programs that still map an earlier region may have written here since it ended. A file whose pages stay is
        // refused before its lock is taken, which programs can hold.
        let _ = memfd::punch(self.fd.as_fd(), base, bytes);
        allocated.insert(base, end);
        Some(Extent { arena: self.clone(), base, end })
    }
}

impl AsFd for UserArena {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Extent {
    /// The offset in the file at which it begins.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The arena that contains it.
    pub(crate) fn arena(&self) -> &Arc<UserArena> {
        &self.arena
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        let mut allocated = lock(&self.arena.allocated);
        // Pages that cannot be freed now are freed with the file.
        if !self.arena.is_others.load(Ordering::Relaxed) {
            let _ = memfd::punch(self.arena.as_fd(), self.base, self.end - self.base);
        }
        allocated.remove(&self.base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_do_not_overlap_and_are_zeroed() {
        let arena = Arc::new(UserArena::new().unwrap());
        let bases = |plots: &[Extent]| plots.iter().map(Extent::base).collect::<Vec<_>>();
        let mut plots: Vec<Extent> = [1 << 20, 3 << 20, 1 << 20].map(|bytes| arena.allocate(bytes).unwrap()).into();
        assert_eq!(bases(&plots), [0, 2 << 20, 6 << 20]);
        rustix::io::pwrite(&arena, b"x", 4 << 20).unwrap();
        assert!(memfd::resident_bytes(&*arena).unwrap() > 0);
        drop(plots.remove(1));
        assert_eq!(memfd::resident_bytes(&*arena).unwrap(), 0);
        assert_eq!(arena.allocate(5 << 20).unwrap().base(), 8 << 20, "the hole is too small");
        plots.push(arena.allocate(4 << 20).unwrap());
        assert_eq!(bases(&plots), [0, 6 << 20, 2 << 20]);
        assert!(arena.allocate(BYTES).is_none() && arena.allocate(u64::MAX).is_none());
        plots.clear();
        assert_eq!(arena.allocate(BYTES).unwrap().base(), 0);
    }

    #[test]
    fn pages_of_another_daemon_are_not_freed_before_it_is_replaced() {
        let own = Arc::new(UserArena::new().unwrap());
        let extent = own.allocate(1 << 20).unwrap();
        rustix::io::pwrite(&own, b"x", 0).unwrap();
        let arena = Arc::new(UserArena::of_another(own.as_fd().try_clone_to_owned().unwrap()));
        let restored = arena.restore(extent.base(), 1 << 20).unwrap();
        assert!(
            arena.restore(0, 1).is_none() && arena.restore(BYTES, 1).is_none() && arena.restore(1 << 21, 0).is_none()
        );
        assert_eq!(arena.allocate(1).unwrap().base(), 2 << 20, "behind what is allocated");
        drop(restored);
        assert!(memfd::resident_bytes(&*own).unwrap() > 0);
        let restored = arena.restore(0, 1 << 20).unwrap();
        arena.take();
        drop(restored);
        assert_eq!(memfd::resident_bytes(&*own).unwrap(), 0);
    }
}
