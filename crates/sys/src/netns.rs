// SPDX-License-Identifier: BSD-2-Clause
//! Network namespaces: which one a client is in, and running code inside one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::fstatfs;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::socket::netns_cookie;

/// `SIOCGSKNS` of linux/sockios.h: returns a descriptor of the namespace that a socket belongs to.
const SIOCGSKNS: libc::c_ulong = 0x894C;

/// `NSFS_MAGIC` of linux/magic.h: the file system of namespaces.
const NSFS: u64 = 0x6e73_6673;

/// The calling thread's namespace.
const CURRENT: &str = "/proc/thread-self/ns/net";

/// A network namespace, held open.
#[derive(Debug)]
pub struct Netns {
    file: File,
    id: u64,
}

impl Netns {
    /// Creates a namespace that contains only `lo`, which is down. It has no name, and ends when no process is in it
    /// and no descriptor refers to it.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`; `ENOSPC`: too many.
    pub fn new() -> io::Result<Netns> {
        let leave = || {
            // SAFETY: K7: only this thread, which exits after the call, changes its namespace.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            Netns::current()
        };
        let thread = thread::Builder::new().name("netns".into()).spawn(leave)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Opens the calling thread's namespace.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn current() -> io::Result<Netns> {
        Netns::of_path(Path::new(CURRENT))
    }

    /// Opens the namespace that a file names: `/run/netns/NAME`, `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn of_path(path: &Path) -> io::Result<Netns> {
        Netns::of_file(File::open(path)?)
    }

    /// Opens the namespace that a socket was created in; for the accepted end of a UNIX connection that is the
    /// client's.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN` over that namespace.
    pub fn of_socket(socket: impl AsFd) -> io::Result<Netns> {
        // SAFETY: K7: the request has no argument; it returns a new descriptor, or -1.
        let fd = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: K2: the kernel has just created this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        Netns::of_file(File::from(fd))
    }

    /// Returns the first namespace for which `matches` returns true, of those with a process or a mount that this
    /// process can see. A namespace that only descriptors keep alive is not found.
    pub fn find(matches: impl FnMut(&Netns) -> bool) -> Option<Netns> {
        Netns::all().find(matches)
    }

    /// The namespaces among which [`Netns::find`] looks, each once. One is opened when it is its turn.
    pub fn all() -> impl Iterator<Item = Netns> {
        let mut seen = BTreeSet::new();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounted = mounts.lines().filter(|line| line.contains(" - nsfs ")).filter_map(|line| line.split(' ').nth(4));
        let mounted: Vec<PathBuf> = mounted.map(PathBuf::from).collect();
        let paths = mounted.into_iter().chain(processes().map(|process| process.join("ns/net")));
        paths.filter_map(move |path| {
            // Most processes share a namespace, which is opened once.
            let new = fs::metadata(&path).is_ok_and(|found| seen.insert(found.ino()));
            new.then(|| Netns::of_path(&path).ok()).flatten()
        })
    }

    /// The namespace of a descriptor that another process has opened. What it refers to is checked when it is entered.
    ///
    /// # Errors
    /// The errors of `fstat`.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Netns> {
        Netns::of_file(File::from(fd))
    }

    fn of_file(file: File) -> io::Result<Netns> {
        let id = file.metadata()?.ino();
        Ok(Netns { file, id })
    }

    /// Mounts it at an empty file, where it lasts without a process. Needs `CAP_SYS_ADMIN`.
    ///
    /// # Errors
    /// `ENOENT`: there is no such file; `EPERM`.
    pub fn keep_at(&self, path: &Path) -> io::Result<()> {
        Ok(mount_bind(format!("/proc/self/fd/{}", self.file.as_raw_fd()), path)?)
    }

    /// Returns the namespace that is mounted at `path`, if one is.
    ///
    /// # Errors
    /// The kernel's.
    pub fn kept_at(path: &Path) -> io::Result<Option<Netns>> {
        match File::open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
            Ok(file) if fstatfs(&file)?.f_type as u64 == NSFS => Netns::of_file(file).map(Some),
            Ok(_) => Ok(None),
        }
    }

    /// Unmounts the namespaces that are mounted at `path`.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn release_at(path: &Path) -> io::Result<()> {
        while Netns::kept_at(path)?.is_some() {
            unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
        }
        Ok(())
    }

    /// Returns a number that the kernel gives to no other namespace, also when this one has ended; `None` before Linux
    /// 5.14.
    ///
    /// # Errors
    /// As [`Netns::run`].
    pub fn cookie(&self) -> io::Result<Option<u64>> {
        self.run(netns_cookie)?
    }

    /// Returns the inode number that identifies it, as in `readlink /proc/self/ns/net`. Not reused while this is open.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Runs `work` inside: sockets that it creates and interfaces that it names belong to the namespace. In a thread of
    /// its own, unless the calling thread is in the namespace: on a busy machine a new thread may wait for seconds
    /// until it runs for the first time (seen on Linux 6.18, beside threads that yield all the time).
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`; no thread can be created.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        if fs::metadata(CURRENT).is_ok_and(|current| current.ino() == self.id) {
            return Ok(work());
        }
        thread::scope(|scope| {
            let inside = || {
                move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            };
            let thread = thread::Builder::new().name("netns".into()).spawn_scoped(scope, inside)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// A sign that a network namespace is in use, other than descriptors and sockets.
#[derive(Debug)]
pub enum NetnsUse {
    /// A thread is in it: the thread's link.
    Thread(PathBuf),
    /// It has a name, a file that it is mounted at: the mounts of a process that sees that.
    Name(PathBuf),
}

impl NetnsUse {
    /// Finds one of those that this process can see: threads of its PID namespace, and names in the mount namespaces of
    /// these. Reads a file of each thread. Opens no namespace, and no path that others have made: that may take long.
    pub fn find(id: u64) -> Option<NetnsUse> {
        let mut seen = BTreeSet::new();
        ["/proc/self".into()].into_iter().chain(processes()).find_map(|process: PathBuf| {
            let is_new = fs::metadata(process.join("ns/mnt")).is_ok_and(|found| seen.insert(found.ino()));
            let named = is_new.then(|| NetnsUse::Name(process.join("mountinfo"))).filter(|name| name.shows(id));
            let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
            named.or_else(|| {
                threads.map(|thread| NetnsUse::Thread(thread.path().join("ns/net"))).find(|thread| thread.shows(id))
            })
        })
    }

    /// Whether it still shows that.
    pub fn shows(&self, id: u64) -> bool {
        match self {
            NetnsUse::Thread(link) => fs::metadata(link).is_ok_and(|found| found.ino() == id),
            NetnsUse::Name(mounts) => {
                let name = format!("net:[{id}]");
                let mounts = fs::read_to_string(mounts).unwrap_or_default();
                mounts.lines().any(|line| line.split(' ').nth(3) == Some(&name))
            }
        }
    }
}

/// The folders in `/proc` of all processes that this one can see.
fn processes() -> impl Iterator<Item = PathBuf> {
    let is_pid = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
    fs::read_dir("/proc").into_iter().flatten().flatten().filter(is_pid).map(|entry| entry.path())
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_namespace_of_a_socket_is_found() {
        let (one, _other) = UnixStream::pair().unwrap();
        match Netns::of_socket(&one) {
            Ok(ns) => assert_eq!(ns.id(), Netns::current().unwrap().id()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => eprintln!("skipped: needs CAP_NET_ADMIN"),
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn a_new_namespace_differs_from_the_current_one() {
        match Netns::new() {
            Ok(new) => assert_ne!(new.id(), Netns::current().unwrap().id()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => eprintln!("skipped: needs CAP_SYS_ADMIN"),
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn no_two_namespaces_have_a_cookie() {
        let here = Netns::current().unwrap();
        let cookie = here.cookie().unwrap();
        assert_eq!(cookie, Netns::current().unwrap().cookie().unwrap());
        let Some(cookie) = cookie else { return eprintln!("skipped: cookies need Linux 5.14") };
        match Netns::new() {
            Ok(new) => assert!(new.cookie().unwrap().is_some_and(|of_new| of_new != cookie)),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => eprintln!("skipped: needs CAP_SYS_ADMIN"),
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn the_namespace_of_a_process_is_found() {
        let here = Netns::current().unwrap();
        let found = Netns::find(|netns| netns.id() == here.id());
        assert_eq!(found.map(|netns| netns.id()), Some(here.id()));
        assert!(Netns::find(|_| false).is_none());
    }

    #[test]
    fn a_namespace_lasts_where_it_is_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        assert!(Netns::kept_at(&path).unwrap().is_none());
        std::fs::write(&path, "").unwrap();
        assert!(Netns::kept_at(&path).unwrap().is_none());
        Netns::release_at(&path).unwrap();
        let kept = Netns::new().and_then(|new| new.keep_at(&path).map(|()| new.id()));
        let id = match kept {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return eprintln!("skipped: needs CAP_SYS_ADMIN"),
            kept => kept.unwrap(),
        };
        let found = Netns::kept_at(&path).unwrap().expect("it is mounted");
        assert_eq!((found.id(), found.run(|| Netns::current().unwrap().id()).unwrap()), (id, id));
        Netns::release_at(&path).unwrap();
        assert!(Netns::kept_at(&path).unwrap().is_none());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn threads_show_that_a_namespace_is_in_use_and_descriptors_do_not() {
        assert!(NetnsUse::find(Netns::current().unwrap().id()).is_some());
        let new = match Netns::new() {
            Ok(new) => new,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return eprintln!("skipped: needs CAP_SYS_ADMIN"),
            Err(e) => panic!("{e}"),
        };
        // A thread that was joined may be there for a moment.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let until = |done: &dyn Fn() -> bool| {
            while !done() {
                assert!(std::time::Instant::now() < end, "the thread has ended");
                thread::yield_now();
            }
        };
        until(&|| NetnsUse::find(new.id()).is_none());
        let found = new.run(|| NetnsUse::find(new.id()).inspect(|found| assert!(found.shows(new.id())))).unwrap();
        let found = found.filter(|found| matches!(found, NetnsUse::Thread(_))).expect("the thread");
        until(&|| !found.shows(new.id()));
    }

    #[test]
    fn only_another_namespace_takes_a_thread_of_its_own() {
        let thread = || thread::current().id();
        assert_eq!(Netns::current().unwrap().run(thread).unwrap(), thread());
        match Netns::new() {
            Ok(new) => assert_ne!(new.run(thread).unwrap(), thread()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => eprintln!("skipped: needs CAP_SYS_ADMIN"),
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn run_executes_inside_the_namespace() {
        let here = Netns::current().unwrap();
        match here.run(|| Netns::current().unwrap().id()) {
            Ok(id) => assert_eq!(id, here.id()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => eprintln!("skipped: needs CAP_SYS_ADMIN"),
            Err(e) => panic!("{e}"),
        }
    }
}
