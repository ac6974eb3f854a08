//! Network namespaces: whose a client is, and doing something inside one.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// `SIOCGSKNS` of linux/sockios.h: a descriptor of the namespace that a socket belongs to.
const SIOCGSKNS: libc::c_ulong = 0x894C;

/// A network namespace, held open.
#[derive(Debug)]
pub struct Netns {
    file: File,
    id: u64,
}

impl Netns {
    /// A new one, with nothing but `lo` in it, which is down. It has no name, and ends when nobody holds it open or is in it
    /// any more.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`; `ENOSPC`: too many.
    pub fn new() -> io::Result<Netns> {
        let leave = || {
            // SAFETY: no pointers; only this thread, which ends here, leaves the namespace.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            Netns::current()
        };
        let thread = thread::Builder::new().name("netns".into()).spawn(leave)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// The calling thread's.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn current() -> io::Result<Netns> {
        Netns::of_path(Path::new("/proc/thread-self/ns/net"))
    }

    /// The one that a file names: `/run/netns/NAME`, `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn of_path(path: &Path) -> io::Result<Netns> {
        Netns::of_file(File::open(path)?)
    }

    /// The one that a socket was made in; for the accepted end of a UNIX connection that is where the client connected.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN` over that namespace.
    pub fn of_socket(socket: impl AsFd) -> io::Result<Netns> {
        // SAFETY: the request has no argument; it returns a new descriptor, or -1.
        let fd = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made this descriptor for us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        Netns::of_file(File::from(fd))
    }

    fn of_file(file: File) -> io::Result<Netns> {
        let id = file.metadata()?.ino();
        Ok(Netns { file, id })
    }

    /// The inode number that names it, as in `readlink /proc/self/ns/net`. Not used again while this is open.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Does `work` inside, in a thread of its own: sockets that it makes and interfaces that it names are the
    /// namespace's.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`; no thread can be made.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
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
    fn a_socket_tells_its_namespace() {
        let (one, _other) = UnixStream::pair().unwrap();
        match Netns::of_socket(&one) {
            Ok(ns) => assert_eq!(ns.id(), Netns::current().unwrap().id()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => eprintln!("skipped: needs CAP_NET_ADMIN"),
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn a_new_one_is_another() {
        match Netns::new() {
            Ok(new) => assert_ne!(new.id(), Netns::current().unwrap().id()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => eprintln!("skipped: needs CAP_SYS_ADMIN"),
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn work_is_done_inside() {
        let here = Netns::current().unwrap();
        match here.run(|| Netns::current().unwrap().id()) {
            Ok(id) => assert_eq!(id, here.id()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => eprintln!("skipped: needs CAP_SYS_ADMIN"),
            Err(e) => panic!("{e}"),
        }
    }
}
