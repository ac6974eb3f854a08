// SPDX-License-Identifier: BSD-2-Clause
//! Tells when memory files have ended: when no process has one open or mapped any more, not even with O_PATH, and none
//! is on its way in a message (inotify). The watch keeps neither the file open nor its pages.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Watches memory files. The kernel numbers them, and never gives a number twice before it has given all others.
pub struct FileWatch(OwnedFd);

/// Bytes of events that are read at once.
const EVENTS: usize = 4096;

impl FileWatch {
    /// Creates one without files.
    ///
    /// # Errors
    /// `EMFILE`, also if the user has as many (`fs.inotify.max_user_instances`); `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<FileWatch> {
        Ok(FileWatch(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?))
    }

    /// The descriptor of one that another process has created: both have the same files.
    pub fn from_fd(fd: OwnedFd) -> FileWatch {
        FileWatch(fd)
    }

    /// Watches a file of [`crate::memfd`], and returns its number: the same if it is watched already.
    ///
    /// # Errors
    /// `EACCES` if this process may not read the file; `ENOSPC` if its user watches as many as it may
    /// (`fs.inotify.max_user_watches`); `ENOMEM`.
    pub fn add(&self, file: BorrowedFd<'_>) -> io::Result<i32> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(inotify::add_watch(&self.0, path, WatchFlags::DELETE_SELF)?)
    }

    /// Whether [`FileWatch::add`] failed as there are no more watches now.
    pub fn is_lack(error: &io::Error) -> bool {
        matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::NOMEM))
    }

    /// Files that this process's user can watch, with all of its processes; `u64::MAX` if the kernel does not tell.
    pub fn limit() -> u64 {
        let limits = ["fs/inotify/max_user_watches", "user/max_inotify_watches"];
        let read = |name| fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok();
        limits.into_iter().filter_map(read).min().unwrap_or(u64::MAX)
    }

    /// Calls `each` with the numbers of files that have ended since the last call, some of them twice.
    ///
    /// # Errors
    /// Errors of `/proc`, if more have ended than the kernel remembers.
    pub fn take_ended(&self, mut each: impl FnMut(i32)) -> io::Result<Ended> {
        let mut buffer = [MaybeUninit::uninit(); EVENTS];
        let mut events = Reader::new(&self.0, &mut buffer);
        let mut overflowed = false;
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => overflowed = true,
                Ok(event) => each(event.wd()),
                Err(Errno::AGAIN) if overflowed => return self.watched().map(Ended::AllBut),
                Err(Errno::AGAIN) => return Ok(Ended::These),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// The numbers of all files that have not ended.
    ///
    /// # Errors
    /// Errors of `/proc`.
    pub fn watched(&self) -> io::Result<BTreeSet<i32>> {
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.as_raw_fd()))?;
        let number = |line: &str| i32::from_str_radix(line.strip_prefix("inotify wd:")?.split(' ').next()?, 16).ok();
        Ok(text.lines().filter_map(number).collect())
    }
}

/// Which files have ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The named ones.
    These,
    /// More: all but these.
    AllBut(BTreeSet<i32>),
}

impl AsFd for FileWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{Mode, OFlags, open};

    use super::*;
    use crate::{Mapping, memfd};

    /// A file also ends later than its last descriptor here: a process that another test of this program starts has a
    /// copy of each until its execve.
    const LIMIT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

    fn ended(watch: &FileWatch) -> BTreeSet<i32> {
        let mut ended = BTreeSet::new();
        assert_eq!(watch.take_ended(|file| _ = ended.insert(file)).unwrap(), Ended::These);
        ended
    }

    fn wait_for_end(watch: &FileWatch, number: i32) {
        let mut ready = [PollFd::new(watch, PollFlags::IN)];
        assert_eq!(poll(&mut ready, Some(&LIMIT)).unwrap(), 1);
        assert!(ended(watch).contains(&number));
        assert_eq!(watch.watched().unwrap(), [].into());
    }

    #[test]
    fn a_file_ends_when_nothing_refers_to_it() {
        let watch = FileWatch::new().unwrap();
        let path = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        type Keep = fn(&OwnedFd, String) -> Box<dyn std::any::Any>;
        let keeps: [Keep; 3] = [
            |fd, _| Box::new(Mapping::new(fd.as_fd(), 4096).unwrap()),
            |_, path| Box::new(open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()),
            |fd, _| Box::new(fd.try_clone().unwrap()),
        ];
        for keep in keeps {
            let fd = memfd::create_sealed("test", 4096).unwrap();
            let number = watch.add(fd.as_fd()).unwrap();
            assert_eq!(watch.add(fd.as_fd()).unwrap(), number);
            assert_eq!(watch.watched().unwrap(), [number].into());
            let kept = keep(&fd, path(&fd));
            drop(fd);
            assert_eq!(ended(&watch), [].into());
            drop(kept);
            wait_for_end(&watch, number);
        }
        let alone = memfd::create_sealed("test", 4096).unwrap();
        let number = watch.add(alone.as_fd()).unwrap();
        drop(alone);
        wait_for_end(&watch, number);
    }

    #[test]
    fn files_that_end_while_nobody_asks_are_all_found() {
        let watch = FileWatch::new().unwrap();
        let limit: usize =
            fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
        let last = memfd::create_sealed("test", 4096).unwrap();
        let last_number = watch.add(last.as_fd()).unwrap();
        // The end of each is two events, more than the queue holds.
        for _ in 0..limit / 2 + 1 {
            let fd = memfd::create_sealed("test", 4096).unwrap();
            watch.add(fd.as_fd()).unwrap();
        }
        let begun = Instant::now();
        while watch.watched().unwrap() != [last_number].into() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(watch.take_ended(|_| ()).unwrap(), Ended::AllBut([last_number].into()));
    }
}
