// SPDX-License-Identifier: BSD-2-Clause
//! The table from descriptor numbers to netmap files.
//!
//! The state of a netmap file in this process, an [`OpenFile`], is found by descriptor number in a table of pointers.
//! Duplicates share one object. Objects are never freed, only reused, so that a thread may read one while another
//! closes the descriptor, without a lock, which could stay held for ever in a forked child:
//!
//! ```text
//! refs   0 free --allocate--> 1 .. n --last release--> CLOSING --no readers--> (the port is dropped) --> 0
//! ```
//! There is one reference for each table entry and one for each call that may wait. Other calls count none
//! ([`crate::threads`]).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};

use unetmap_core::Error;
use unetmap_core::port::file::{BoundPort, File};
use unetmap_sys::{event, socket};

use crate::threads::{self, ReadSection};
use crate::tuning::REQUEST_POLL;

/// Netmap files have descriptor numbers below this.
pub(crate) const MAX_FILES: usize = 65536;

/// The table. C code checks whether an entry is null.
#[allow(non_upper_case_globals, reason = "a name for C")]
#[unsafe(no_mangle)]
pub static unetmap_files: [AtomicPtr<OpenFile>; MAX_FILES] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_FILES];

/// All objects, linked by `next`.
static ALL: AtomicPtr<OpenFile> = AtomicPtr::new(ptr::null_mut());

/// Flag in `refs`: no further reference may be taken.
const CLOSING: u32 = 1 << 31;

/// The state of a netmap file in this process.
pub struct OpenFile {
    refs: AtomicU32,
    /// Inode of the connection: the same for all its duplicates.
    inode: AtomicU64,
    /// 0, or the thread with a request in progress: see [`thread_key`].
    requester: AtomicU64,
    /// The last descriptor that was entered, as a first guess.
    last_fd: AtomicI32,
    /// Descriptor of the connection for the request in progress, or -1. See [`RequestGuard`].
    request_fd: AtomicI32,
    file: AtomicPtr<File>,
    port: AtomicPtr<BoundPort>,
    next: AtomicPtr<OpenFile>,
    /// Next object in the list of closing ones.
    next_closing: AtomicPtr<OpenFile>,
}

/// Objects that wait for their readers, linked by `next_closing`.
static CLOSING_LIST: AtomicPtr<OpenFile> = AtomicPtr::new(ptr::null_mut());

/// A reference to an [`OpenFile`] that is not free.
pub(crate) struct FileRef(&'static OpenFile);

impl Drop for FileRef {
    fn drop(&mut self) {
        let last = |refs| if refs == 1 { CLOSING } else { refs - 1 };
        // Never fails: the closure never returns `None`.
        if self.0.refs.fetch_update(AcqRel, Relaxed, |refs| Some(last(refs))) == Ok(1) {
            self.0.queue_for_reclaim();
            reclaim();
        }
    }
}

impl OpenFile {
    const fn new() -> OpenFile {
        OpenFile {
            refs: AtomicU32::new(1),
            inode: AtomicU64::new(0),
            requester: AtomicU64::new(0),
            last_fd: AtomicI32::new(-1),
            request_fd: AtomicI32::new(-1),
            file: AtomicPtr::new(ptr::null_mut()),
            port: AtomicPtr::new(ptr::null_mut()),
            next: AtomicPtr::new(ptr::null_mut()),
            next_closing: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Adds the object to the closing list: it has no reference any more, but threads that found it before may still
    /// read it.
    fn queue_for_reclaim(&'static self) {
        let mut first = CLOSING_LIST.load(Relaxed);
        loop {
            self.next_closing.store(first, Relaxed);
            match CLOSING_LIST.compare_exchange(first, ptr::from_ref(self).cast_mut(), AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    fn clear(&self) {
        let (port, file) = (self.port.swap(ptr::null_mut(), AcqRel), self.file.swap(ptr::null_mut(), AcqRel));
        self.requester.store(0, Relaxed);
        // SAFETY: C3: both come from Box::into_raw, were only in this object, and it has neither references nor
        // readers.
        unsafe {
            if !port.is_null() {
                drop(Box::from_raw(port));
            }
            if !file.is_null() {
                drop(Box::from_raw(file));
            }
        }
    }

    /// The daemon has ended (`None`): the file's descriptors get a connection that does not hang up, whose other end is
    /// `parked`. Or they, and the descriptor of the region, get the files of the next daemon.
    fn go_on(&self, region: RawFd, next: Option<(OwnedFd, OwnedFd)>, parked: &Mutex<Option<OwnedFd>>) {
        let mut parked = parked.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = match next {
            Some((connection, new_region)) => {
                replace_fd(region, new_region.as_fd());
                *parked = None;
                connection
            }
            None => {
                let Ok((connection, other)) = socket::pair() else { return };
                *parked = Some(other);
                connection
            }
        };
        let Some(inode) = socket_inode(connection.as_raw_fd()) else { return };
        let is_ours = |fd: &RawFd| entry(*fd).is_some_and(|entry| ptr::eq(entry.load(Acquire), self));
        let before = Some(self.inode.load(Relaxed));
        let all = (0..MAX_FILES as RawFd).filter(is_ours).filter(|fd| socket_inode(*fd) == before);
        all.for_each(|fd| replace_fd(fd, connection.as_fd()));
        self.inode.store(inode, Relaxed);
    }

    /// Returns whether the file's connection has hung up although it is open here.
    fn has_hung_up(&self) -> bool {
        let is_ours = |fd: &RawFd| entry(*fd).is_some_and(|entry| ptr::eq(entry.load(Acquire), self));
        let guess = Some(self.last_fd.load(Relaxed)).filter(is_ours);
        let Some(fd) = guess.or_else(|| (0..MAX_FILES as RawFd).find(is_ours)) else { return false };
        socket_inode(fd) == Some(self.inode.load(Relaxed)) && event::hung_up(borrowed(fd))
    }

    fn try_ref(&'static self) -> Option<FileRef> {
        let more = |refs: u32| (refs != 0 && refs & CLOSING == 0).then_some(refs + 1);
        // Only if one was taken: dropping it releases it.
        self.refs.fetch_update(AcqRel, Relaxed, more).ok().map(|_| FileRef(self))
    }

    fn all() -> impl Iterator<Item = &'static OpenFile> {
        let mut at = ALL.load(Acquire);
        std::iter::from_fn(move || {
            // SAFETY: C2.
            let open = unsafe { at.as_ref() }?;
            at = open.next.load(Acquire);
            Some(open)
        })
    }
}

/// Drops the ports of closing objects if no thread reads them; else the next call does.
fn reclaim() {
    let mut at = CLOSING_LIST.swap(ptr::null_mut(), AcqRel);
    if at.is_null() {
        return;
    }
    let no_readers = threads::wait_for_readers();
    // SAFETY: C2.
    while let Some(open) = unsafe { at.as_ref() } {
        at = open.next_closing.load(Relaxed);
        if no_readers {
            open.clear();
            open.refs.store(0, Release);
        } else {
            open.queue_for_reclaim();
        }
    }
}

/// Runs `body` on the port of descriptor `fd`, if it is known in this process. `body` must not wait.
#[inline(always)]
pub(crate) fn with_known_port<T>(fd: RawFd, body: impl FnOnce(&BoundPort) -> T) -> Option<T> {
    let _section = ReadSection::enter();
    // SAFETY: C2.
    let open = unsafe { entry(fd)?.load(Acquire).as_ref() }?;
    // SAFETY: C3: null, or a box that is dropped only after its object was removed from the table and all read sections
    // of that time have ended; this one has found it in the table.
    let port = unsafe { open.port.load(Acquire).as_ref() }?;
    Some(body(port))
}

impl FileRef {
    /// Creates the state of a new file.
    pub(crate) fn new(file: File, inode: u64) -> FileRef {
        threads::register();
        reclaim();
        let free = |open: &&OpenFile| open.refs.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
        let open = OpenFile::all().find(free).unwrap_or_else(|| {
            let open: &'static OpenFile = Box::leak(Box::new(OpenFile::new()));
            let mut first = ALL.load(Relaxed);
            loop {
                open.next.store(first, Relaxed);
                match ALL.compare_exchange(first, ptr::from_ref(open).cast_mut(), AcqRel, Relaxed) {
                    Ok(_) => break open,
                    Err(now) => first = now,
                }
            }
        });
        open.inode.store(inode, Relaxed);
        open.file.store(Box::into_raw(Box::new(file)), Release);
        FileRef(open)
    }

    /// Returns a reference to the file of descriptor `fd`.
    #[inline]
    pub(crate) fn of(fd: RawFd) -> Option<FileRef> {
        let entry = entry(fd)?;
        loop {
            let at = entry.load(Acquire);
            // SAFETY: C2.
            let reference = unsafe { at.as_ref() }?.try_ref();
            // It may have been closed, and its object reused, before the reference was taken.
            if entry.load(Acquire) == at
                && let Some(reference) = reference
            {
                return Some(reference);
            }
        }
    }

    /// Returns a reference to the file of the connection with this inode.
    pub(crate) fn with_inode(inode: u64) -> Option<FileRef> {
        let open = OpenFile::all().find(|open| open.inode.load(Relaxed) == inode && open.refs.load(Relaxed) != 0)?;
        open.try_ref().filter(|reference| reference.0.inode.load(Relaxed) == inode)
    }

    /// Enters the file into the table as descriptor `fd`. `false`: the number is too high.
    pub(crate) fn insert(self, fd: RawFd) -> bool {
        let Some(entry) = entry(fd) else { return false };
        let open = ptr::from_ref(self.0).cast_mut();
        self.0.last_fd.store(fd, Relaxed);
        std::mem::forget(self);
        let before = entry.swap(open, AcqRel);
        // SAFETY: C2: the entry's reference now belongs to this call.
        drop(unsafe { before.as_ref() }.map(FileRef));
        true
    }

    /// Returns the port, if it is known in this process.
    #[inline]
    pub(crate) fn known_port(&self) -> Option<&BoundPort> {
        // SAFETY: C3: null, or a box that is dropped only after the last reference is released; `self` is one.
        unsafe { self.0.port.load(Acquire).as_ref() }
    }

    /// Returns the port; requests it from the daemon if another process may have bound it. `None`: no port is bound.
    ///
    /// # Errors
    /// As [`File::attach`].
    pub(crate) fn port(&self, fd: RawFd) -> Result<Option<&BoundPort>, Error> {
        if let Some(port) = self.known_port() {
            return Ok(Some(port));
        }
        let refused = |errno| {
            let reason = match errno {
                libc::EBUSY => "a signal handler called it while the interrupted thread had a request on it",
                _ => "it was closed during the call",
            };
            Error::refused("a netmap file", errno, reason)
        };
        let request = self.begin_request(fd).map_err(refused)?;
        if let Some(port) = self.known_port() {
            return Ok(Some(port));
        }
        let attached = request.file().attach(request.fd())?;
        attached.into_iter().for_each(|attached| request.bind(attached));
        drop(request);
        Ok(self.known_port())
    }

    /// Starts a request to the daemon over the file's connection; one thread at a time. Waits for other threads.
    ///
    /// # Errors
    /// `EBUSY`: a signal handler has interrupted a request of the calling thread. `EBADF`: `fd` was closed or reused.
    pub(crate) fn begin_request(&self, fd: RawFd) -> Result<RequestGuard, i32> {
        let me = thread_key();
        loop {
            let busy = self.0.requester.load(Relaxed);
            if busy == me {
                return Err(libc::EBUSY);
            }
            // A thread of the parent process does not exist here, and never finishes its request.
            let inherited = busy >> 32 != me >> 32;
            if (busy == 0 || inherited) && self.0.requester.compare_exchange(busy, me, Acquire, Relaxed).is_ok() {
                break;
            }
            std::thread::sleep(REQUEST_POLL);
        }
        let request = RequestGuard { open: self.0, program_fd: fd };
        // SAFETY: C6: the kernel answers EBADF if `fd` is not open. The result fits a RawFd.
        request.set_request_fd(
            unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, FIRST_REQUEST_FD) } as RawFd
        );
        if self.refers_to(request.fd().as_raw_fd()) { Ok(request) } else { Err(libc::EBADF) }
    }

    /// Returns whether descriptor `fd` still is this file: it may have been closed by a call without a hook.
    pub(crate) fn refers_to(&self, fd: RawFd) -> bool {
        socket_inode(fd) == Some(self.0.inode.load(Relaxed))
    }

    /// Sets the connection's inode.
    pub(crate) fn set_inode(&self, inode: u64) {
        self.0.inode.store(inode, Relaxed);
    }
}

/// Identifies the calling thread: the fork count plus 1 in the upper half, the thread number in the lower half.
fn thread_key() -> u64 {
    // SAFETY: C7. The number is positive and fits 32 bits.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    u64::from(unetmap_core::port::file::fork_count() + 1) << 32 | u64::from(thread)
}

/// Lowest descriptor number for requests: a program may expect to get the lowest numbers.
const FIRST_REQUEST_FD: RawFd = 3;

/// A request in progress, see [`FileRef::begin_request`]. It has a descriptor of its own, as a system call holds its
/// file in the kernel: the program's number may be closed and reused meanwhile, so that another file would receive the
/// request.
pub(crate) struct RequestGuard {
    open: &'static OpenFile,
    /// The program's descriptor, used if no further descriptor can be opened.
    program_fd: RawFd,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.set_request_fd(-1);
        self.open.requester.store(0, Release);
    }
}

impl OpenFile {
    /// Stores `new`, and closes the descriptor stored before.
    fn set_request_fd(&self, new: RawFd) {
        let before = self.request_fd.swap(new, AcqRel);
        if before >= 0 {
            // SAFETY: C6: `request_fd` owned the descriptor, and the swap has taken it out.
            unsafe { libc::syscall(libc::SYS_close, before) };
        }
    }
}

impl RequestGuard {
    fn set_request_fd(&self, new: RawFd) {
        self.open.set_request_fd(new);
    }

    /// Returns the connection.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        let request_fd = self.open.request_fd.load(Acquire);
        borrowed(if request_fd >= 0 { request_fd } else { self.program_fd })
    }

    /// Returns the file.
    pub(crate) fn file(&self) -> &File {
        // SAFETY: C3: set when the object was allocated, and changed only by the request in progress, which is this
        // one.
        unsafe { &*self.open.file.load(Acquire) }
    }

    /// Replaces the file and its connection: another daemon serves it.
    pub(crate) fn move_to(&mut self, file: File, connection: OwnedFd) {
        self.set_request_fd(connection.into_raw_fd());
        let before = self.open.file.swap(Box::into_raw(Box::new(file)), AcqRel);
        // SAFETY: C3: from Box::into_raw; only the request in progress uses it, which is this one, without a borrow.
        drop(unsafe { Box::from_raw(before) });
    }

    /// Whether a port is bound to the file, as far as this process knows.
    pub(crate) fn is_bound(&self) -> bool {
        !self.open.port.load(Relaxed).is_null()
    }

    /// Stores the file's port.
    pub(crate) fn bind(&self, port: BoundPort) {
        let open = self.open;
        port.port.watch_file(move || open.has_hung_up());
        if port.port.waits_for_daemons() {
            unetmap_core::observe_daemons(|name, change| eprintln!("{name}: {change}"));
            let (region, parked) = (port.region.as_raw_fd(), Mutex::new(None));
            port.port.keep_file(move |next| open.go_on(region, next, &parked));
        }
        let port = Box::into_raw(Box::new(port));
        if self.open.port.compare_exchange(ptr::null_mut(), port, AcqRel, Relaxed).is_err() {
            // SAFETY: C3: from Box::into_raw, and never stored.
            drop(unsafe { Box::from_raw(port) });
        }
    }
}

fn entry(fd: RawFd) -> Option<&'static AtomicPtr<OpenFile>> {
    unetmap_files.get(usize::try_from(fd).ok()?)
}

/// Removes descriptor `fd` from the table.
pub(crate) fn remove(fd: RawFd) {
    let Some(entry) = entry(fd) else { return };
    let before = entry.swap(ptr::null_mut(), AcqRel);
    // SAFETY: C2: the entry's reference now belongs to this call.
    drop(unsafe { before.as_ref() }.map(FileRef));
}

/// Borrows a descriptor of the program for a call.
pub(crate) fn borrowed<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: C6: the program keeps the descriptor open during its call; if not, the kernel answers EBADF.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Returns the inode of a socket; `None` if `fd` is not a socket.
pub(crate) fn socket_inode(fd: RawFd) -> Option<u64> {
    // SAFETY: C7: `stat` consists of integers.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: C7: `stat` outlives the call.
    let failed = unsafe { libc::fstat(fd, &mut stat) } != 0;
    (!failed && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

/// Closes the request descriptors of the parent's threads, which do not exist in a forked child.
pub(crate) fn release_request_fds() {
    OpenFile::all().for_each(|open| open.set_request_fd(-1));
}

/// Duplicates `new` to the number `fd`, which keeps its close-on-exec flag.
pub(crate) fn replace_fd(fd: RawFd, new: BorrowedFd<'_>) {
    // SAFETY: C6: `fd` is the netmap file on which the program has made this request.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFD);
        let keep = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        libc::syscall(libc::SYS_dup3, new.as_raw_fd(), fd, keep);
    }
}
