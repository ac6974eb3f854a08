//! From descriptor numbers to ports.
//!
//! What this process knows of a netmap file, an [`Open`], is found by the number of the descriptor in a table of
//! pointers. Duplicates share one. The objects are never freed, only used again, so that a thread may look at one while
//! another closes the descriptor, without a lock that a forked child could find taken for ever:
//!
//! ```text
//! refs   0 free --claim--> 1 .. n --last release--> DYING --nobody looks--> (the port is dropped) --> 0
//! ```
//! One reference for each table entry, one for each call that may wait. Other calls count none ([`crate::threads`]).

use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use std::time::Duration;

use unetmap::Error;
use unetmap::file::{Attached, File};

use unetmap_sys::event;

use crate::threads::{self, AtWork};

/// Descriptors that can be netmap files: lower numbers than this.
pub(crate) const MOST: usize = 65536;

/// The table. C looks whether an entry is there.
#[allow(non_upper_case_globals, reason = "a name for C")]
#[unsafe(no_mangle)]
pub static unetmap_files: [AtomicPtr<Open>; MOST] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST];

/// All objects ever made, linked by `next`.
static ALL: AtomicPtr<Open> = AtomicPtr::new(ptr::null_mut());

/// In `refs`: nobody may take another reference.
const DYING: u32 = 1 << 31;

/// What this process knows of a netmap file.
pub struct Open {
    refs: AtomicU32,
    /// Of the connection: the same for all its duplicates.
    inode: AtomicU64,
    /// 0, or who talks to the daemon: see [`me`].
    talking: AtomicU64,
    /// The last descriptor that became this file, as a first guess.
    number: AtomicI32,
    /// Who talks has it: a descriptor of the connection, or -1. See [`Talk`].
    held: AtomicI32,
    file: AtomicPtr<File>,
    port: AtomicPtr<Attached>,
    next: AtomicPtr<Open>,
    /// While it is dying: the next one that is.
    next_dying: AtomicPtr<Open>,
}

/// Those that are dying, linked by `next_dying`.
static DYING_ONES: AtomicPtr<Open> = AtomicPtr::new(ptr::null_mut());

/// A reference to an [`Open`] that is not free.
pub(crate) struct Ref(&'static Open);

impl Drop for Ref {
    fn drop(&mut self) {
        let last = |refs| if refs == 1 { DYING } else { refs - 1 };
        // Never fails: the closure always has an answer.
        if self.0.refs.fetch_update(AcqRel, Relaxed, |refs| Some(last(refs))) == Ok(1) {
            self.0.dies();
            bury();
        }
    }
}

impl Open {
    const fn new() -> Open {
        Open {
            refs: AtomicU32::new(1),
            inode: AtomicU64::new(0),
            talking: AtomicU64::new(0),
            number: AtomicI32::new(-1),
            held: AtomicI32::new(-1),
            file: AtomicPtr::new(ptr::null_mut()),
            port: AtomicPtr::new(ptr::null_mut()),
            next: AtomicPtr::new(ptr::null_mut()),
            next_dying: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Nobody refers to it any more; who found it before may still be looking at it.
    fn dies(&'static self) {
        let mut first = DYING_ONES.load(Relaxed);
        loop {
            self.next_dying.store(first, Relaxed);
            match DYING_ONES.compare_exchange(first, ptr::from_ref(self).cast_mut(), AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    fn clear(&self) {
        let (port, file) = (self.port.swap(ptr::null_mut(), AcqRel), self.file.swap(ptr::null_mut(), AcqRel));
        self.talking.store(0, Relaxed);
        // SAFETY: both come from Box::into_raw, are in this object alone, and nobody has a reference to it any more.
        unsafe {
            if !port.is_null() {
                drop(Box::from_raw(port));
            }
            if !file.is_null() {
                drop(Box::from_raw(file));
            }
        }
    }

    /// Whether the file's connection has hung up, though it is open here.
    fn has_ended(&self) -> bool {
        let is_ours = |fd: &RawFd| entry(*fd).is_some_and(|entry| ptr::eq(entry.load(Acquire), self));
        let guess = Some(self.number.load(Relaxed)).filter(is_ours);
        let Some(fd) = guess.or_else(|| (0..MOST as RawFd).find(is_ours)) else { return false };
        socket_inode(fd) == Some(self.inode.load(Relaxed)) && event::hung_up(borrowed(fd))
    }

    fn take(&'static self) -> Option<Ref> {
        let more = |refs: u32| (refs != 0 && refs & DYING == 0).then_some(refs + 1);
        self.refs.fetch_update(AcqRel, Relaxed, more).is_ok().then_some(Ref(self))
    }

    fn all() -> impl Iterator<Item = &'static Open> {
        let mut at = ALL.load(Acquire);
        std::iter::from_fn(move || {
            // SAFETY: null, or an object that was leaked when it was made.
            let open = unsafe { at.as_ref() }?;
            at = open.next.load(Acquire);
            Some(open)
        })
    }
}

/// Drops the ports of those that are dying, unless a thread is still looking: then at the next occasion.
fn bury() {
    let mut at = DYING_ONES.swap(ptr::null_mut(), AcqRel);
    if at.is_null() {
        return;
    }
    let nobody_looks = threads::all_were_idle();
    // SAFETY: null, or an object that was leaked when it was made.
    while let Some(open) = unsafe { at.as_ref() } {
        at = open.next_dying.load(Relaxed);
        if nobody_looks {
            open.clear();
            open.refs.store(0, Release);
        } else {
            open.dies();
        }
    }
}

/// Runs `body` on the port of descriptor `fd`, if this process knows it. `body` does not wait.
#[inline(always)]
pub(crate) fn with_known_port<T>(fd: RawFd, body: impl FnOnce(&Attached) -> T) -> Option<T> {
    let _at_work = AtWork::begin();
    // SAFETY: null, or an object that was leaked when it was made.
    let open = unsafe { entry(fd)?.load(Acquire).as_ref() }?;
    // SAFETY: null, or a box that is dropped only after it was seen that nobody has been at work since the object was in
    // no entry of the table; we are, and found it in one.
    let port = unsafe { open.port.load(Acquire).as_ref() }?;
    Some(body(port))
}

impl Ref {
    /// Something new to know a file by.
    pub(crate) fn new(file: File, inode: u64) -> Ref {
        threads::register();
        bury();
        let free = |open: &&Open| open.refs.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
        let open = Open::all().find(free).unwrap_or_else(|| {
            let open: &'static Open = Box::leak(Box::new(Open::new()));
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
        Ref(open)
    }

    /// What is known of the file that descriptor `fd` is.
    #[inline]
    pub(crate) fn of(fd: RawFd) -> Option<Ref> {
        let entry = entry(fd)?;
        loop {
            let at = entry.load(Acquire);
            // SAFETY: null, or an object that was leaked when it was made.
            let taken = unsafe { at.as_ref() }?.take();
            // It may have been closed, and its object used again, before the reference was taken.
            if entry.load(Acquire) == at
                && let Some(taken) = taken
            {
                return Some(taken);
            }
        }
    }

    /// The same, of another descriptor of this process with the same connection.
    pub(crate) fn with_inode(inode: u64) -> Option<Ref> {
        let open = Open::all().find(|open| open.inode.load(Relaxed) == inode && open.refs.load(Relaxed) != 0)?;
        open.take().filter(|taken| taken.0.inode.load(Relaxed) == inode)
    }

    /// From now on descriptor `fd` is this file. `false`: the number is too high.
    pub(crate) fn enter(self, fd: RawFd) -> bool {
        let Some(entry) = entry(fd) else { return false };
        let open = ptr::from_ref(self.0).cast_mut();
        self.0.number.store(fd, Relaxed);
        std::mem::forget(self);
        let before = entry.swap(open, AcqRel);
        // SAFETY: null, or an object that was leaked when it was made; the entry's reference is ours now.
        drop(unsafe { before.as_ref() }.map(Ref));
        true
    }

    /// The port, if this process knows it.
    #[inline]
    pub(crate) fn known_port(&self) -> Option<&Attached> {
        // SAFETY: null, or a box that lives until the last reference is released; we have one.
        unsafe { self.0.port.load(Acquire).as_ref() }
    }

    /// The port; the daemon is asked what another process may have bound. `None`: no port is bound.
    ///
    /// # Errors
    /// As [`File::attach`].
    pub(crate) fn port(&self, fd: RawFd) -> Result<Option<&Attached>, Error> {
        if let Some(port) = self.known_port() {
            return Ok(Some(port));
        }
        let refused = |errno| Error::Refused {
            asked: "a netmap file".into(),
            errno,
            why: match errno {
                libc::EBUSY => "a call on it from a signal handler that has interrupted a request on it".into(),
                _ => "it was closed meanwhile".into(),
            },
        };
        let talk = self.talk(fd).map_err(refused)?;
        if let Some(port) = self.known_port() {
            return Ok(Some(port));
        }
        let attached = talk.file().attach(talk.fd())?;
        attached.into_iter().for_each(|attached| talk.bind(attached));
        drop(talk);
        Ok(self.known_port())
    }

    /// The right to talk to the daemon over the connection of the file that descriptor `fd` is, one thread at a time.
    ///
    /// # Errors
    /// `EBUSY`: it is this very thread that talks, and a signal handler has interrupted it. `EBADF`: `fd` is closed, or another
    /// file by now.
    pub(crate) fn talk(&self, fd: RawFd) -> Result<Talk, i32> {
        let me = me();
        loop {
            let busy = self.0.talking.load(Relaxed);
            if busy == me {
                return Err(libc::EBUSY);
            }
            // A thread of the process that we were forked from is not here to finish.
            let gone = busy >> 32 != me >> 32;
            if (busy == 0 || gone) && self.0.talking.compare_exchange(busy, me, Acquire, Relaxed).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let talk = Talk { open: self.0, number: fd };
        // SAFETY: a system call on a number. What it returns fits.
        talk.hold(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, FIRST_HELD) } as RawFd);
        if self.is_behind(talk.fd().as_raw_fd()) { Ok(talk) } else { Err(libc::EBADF) }
    }

    /// Whether descriptor `fd` is still this file: it may have been closed by a way that has no hook.
    pub(crate) fn is_behind(&self, fd: RawFd) -> bool {
        socket_inode(fd) == Some(self.0.inode.load(Relaxed))
    }

    /// The connection's inode.
    pub(crate) fn set_inode(&self, inode: u64) {
        self.0.inode.store(inode, Relaxed);
    }
}

/// This thread: 1 more than the forks before its process, and its number.
fn me() -> u64 {
    // SAFETY: no arguments. The number is positive and fits 32 bits.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    u64::from(unetmap::file::forks() + 1) << 32 | u64::from(thread)
}

/// Descriptors that who talks has are no lower: a program may expect to get the lowest ones.
const FIRST_HELD: RawFd = 3;

/// See [`Ref::talk`]. A request holds a descriptor of its own, as in the kernel a call holds its file: the program's number may
/// be closed meanwhile, and be another file's, which would get the request, or from which we would wait for the answer.
pub(crate) struct Talk {
    open: &'static Open,
    /// The program's, which has to do where it can have no more descriptors.
    number: RawFd,
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.hold(-1);
        self.open.talking.store(0, Release);
    }
}

impl Open {
    /// `new` is held from now on, and what was held is closed.
    fn hold(&self, new: RawFd) {
        let before = self.held.swap(new, AcqRel);
        if before >= 0 {
            // SAFETY: ours alone: whoever takes it out of `held` closes it.
            unsafe { libc::syscall(libc::SYS_close, before) };
        }
    }
}

impl Talk {
    fn hold(&self, new: RawFd) {
        self.open.hold(new);
    }

    /// The connection.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        let held = self.open.held.load(Acquire);
        borrowed(if held >= 0 { held } else { self.number })
    }

    /// The file.
    pub(crate) fn file(&self) -> &File {
        // SAFETY: set when the object was claimed, and changed only by who talks.
        unsafe { &*self.open.file.load(Acquire) }
    }

    /// Another daemon than the first serves the file, by this connection.
    pub(crate) fn moved_to(&mut self, file: File, connection: OwnedFd) {
        self.hold(connection.into_raw_fd());
        let before = self.open.file.swap(Box::into_raw(Box::new(file)), AcqRel);
        // SAFETY: from Box::into_raw; only who talks looks at it, and that is us, with no borrow left.
        drop(unsafe { Box::from_raw(before) });
    }

    /// The file has a port.
    pub(crate) fn bind(&self, port: Attached) {
        let open = self.open;
        port.port.watch_file(move || open.has_ended());
        let port = Box::into_raw(Box::new(port));
        if self.open.port.compare_exchange(ptr::null_mut(), port, AcqRel, Relaxed).is_err() {
            // SAFETY: ours, as nobody else has seen it.
            drop(unsafe { Box::from_raw(port) });
        }
    }
}

fn entry(fd: RawFd) -> Option<&'static AtomicPtr<Open>> {
    unetmap_files.get(usize::try_from(fd).ok()?)
}

/// Descriptor `fd` is no netmap file any more.
pub(crate) fn forget(fd: RawFd) {
    let Some(entry) = entry(fd) else { return };
    let before = entry.swap(ptr::null_mut(), AcqRel);
    // SAFETY: null, or an object that was leaked when it was made; the entry's reference is ours now.
    drop(unsafe { before.as_ref() }.map(Ref));
}

/// For a call on it.
pub(crate) fn borrowed<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the program keeps the descriptor open during its call, and if it does not, the kernel says so.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// The inode of a socket; `None` when `fd` is none.
pub(crate) fn socket_inode(fd: RawFd) -> Option<u64> {
    // SAFETY: `stat` is plain integers, and the kernel writes it.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` lives during the call.
    let failed = unsafe { libc::fstat(fd, &mut stat) } != 0;
    (!failed && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

/// In a forked child: what its parent's threads held is closed, as they are not here to do it.
pub(crate) fn let_go() {
    Open::all().for_each(|open| open.hold(-1));
}

/// Puts `new` in the place of `fd`: the same number, and close-on-exec as it was.
pub(crate) fn replace(fd: RawFd, new: BorrowedFd<'_>) {
    // SAFETY: system calls on descriptors, of which `fd` is the program's own file that it asks us to change.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFD);
        let keep = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        libc::syscall(libc::SYS_dup3, new.as_raw_fd(), fd, keep);
    }
}
