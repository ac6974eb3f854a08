//! The regions of one user in one file, so that a file which shows it shows each of them.
//!
//! ```text
//! 0         base of B             base of C                        BYTES
//! | region A | (hole) | region B |  | region C |  (never touched)   |
//! ```
//! A program that opens the node gets its memory before it says which port it wants: it gets this file. A region's
//! offsets are the file's. What a region has used goes back to the kernel when the region ends.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use unetmap_sys::{fuse, memfd};

/// Bytes of the file. Only what is used takes memory.
const BYTES: u64 = fuse::FILE_BYTES;
/// Where regions begin, so that huge pages could lie in them.
const ALIGN: u64 = 2 << 20;

/// The file, and which parts of it are taken.
pub(crate) struct Estate {
    fd: OwnedFd,
    /// First byte and one past the last of each part.
    taken: Mutex<BTreeMap<u64, u64>>,
}

/// A part of an estate; free again when it is dropped.
pub(crate) struct Plot {
    estate: Arc<Estate>,
    base: u64,
    end: u64,
}

impl Estate {
    pub(crate) fn new() -> io::Result<Estate> {
        Ok(Estate { fd: memfd::create_sealed("unetmap-user", BYTES)?, taken: Mutex::default() })
    }

    /// The first part of `bytes` bytes that is free, empty; `None` when there is none.
    pub(crate) fn take(self: &Arc<Estate>, bytes: u64) -> Option<Plot> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut base = 0;
        for (&from, &to) in taken.iter() {
            if from - base >= bytes {
                break;
            }
            base = to.next_multiple_of(ALIGN);
        }
        let end = base.checked_add(bytes).filter(|end| *end <= BYTES)?;
        // Programs that had an earlier region mapped may have written here since.
        memfd::punch(self.fd.as_fd(), base, bytes).ok()?;
        taken.insert(base, end);
        Some(Plot { estate: self.clone(), base, end })
    }
}

impl AsFd for Estate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Plot {
    /// Where in the file it begins.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The estate that it is a part of.
    pub(crate) fn estate(&self) -> &Arc<Estate> {
        &self.estate
    }
}

impl Drop for Plot {
    fn drop(&mut self) {
        let mut taken = self.estate.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // What could not be freed is freed when the file is.
        let _ = memfd::punch(self.estate.as_fd(), self.base, self.end - self.base);
        taken.remove(&self.base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_come_back_empty() {
        let estate = Arc::new(Estate::new().unwrap());
        let bases = |plots: &[Plot]| plots.iter().map(Plot::base).collect::<Vec<_>>();
        let mut plots: Vec<Plot> = [1 << 20, 3 << 20, 1 << 20].map(|bytes| estate.take(bytes).unwrap()).into();
        assert_eq!(bases(&plots), [0, 2 << 20, 6 << 20]);
        rustix::io::pwrite(&estate, b"x", 4 << 20).unwrap();
        assert!(memfd::resident_bytes(&*estate).unwrap() > 0);
        drop(plots.remove(1));
        assert_eq!(memfd::resident_bytes(&*estate).unwrap(), 0);
        assert_eq!(estate.take(5 << 20).unwrap().base(), 8 << 20, "the hole is too small");
        plots.push(estate.take(4 << 20).unwrap());
        assert_eq!(bases(&plots), [0, 6 << 20, 2 << 20]);
        assert!(estate.take(BYTES).is_none() && estate.take(u64::MAX).is_none());
        plots.clear();
        assert_eq!(estate.take(BYTES).unwrap().base(), 0);
    }
}
