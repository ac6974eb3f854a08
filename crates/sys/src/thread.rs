//! Another process's thread that waits for us: its memory, and who it is.
//!
//! A number names a thread only as long as it lives. So each question goes by the number, and then the pidfd, which was
//! taken first, says whether the answer was about this thread.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::event::{PollFd, PollFlags, wait_readable};
use crate::netns::Netns;

/// `PIDFD_THREAD`, since Linux 6.9: a thread, and not its process.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());

/// A thread.
#[derive(Debug)]
pub struct Thread {
    tid: Pid,
    pidfd: OwnedFd,
}

/// Who a thread is, as `/proc` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its process.
    pub pid: u32,
    /// The user id that counts where it opens files.
    pub uid: u32,
    /// The groups besides the one that counts there.
    pub groups: Vec<u32>,
}

impl Thread {
    /// The thread `tid` of our pid namespace.
    ///
    /// # Errors
    /// `ESRCH` when there is none; `EINVAL` before Linux 6.9.
    pub fn of(tid: u32) -> io::Result<Thread> {
        let tid = i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        Ok(Thread { tid, pidfd: pidfd_open(tid, PIDFD_THREAD)? })
    }

    /// What `ask` finds under the thread's number, if it still was this thread's.
    fn sure<T>(&self, ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let answer = ask();
        let mut fds = [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)];
        match wait_readable(&mut fds, Some(Duration::ZERO)) {
            Ok(0) => answer,
            Ok(_) => Err(Errno::SRCH.into()),
            Err(e) => Err(e),
        }
    }

    /// Reads `into.len()` bytes at its address `from`. Waits as long as that memory makes it wait, which may be for ever.
    ///
    /// # Errors
    /// `EFAULT` when not all of it is there; `EPERM` when we may not look; `ESRCH`.
    pub fn read(&self, from: u64, into: &mut [u8]) -> io::Result<()> {
        let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let there = there(from, into.len())?;
        // SAFETY: `here` is a slice of ours to write; what lies at `from` is read by the kernel, which refuses what is not
        // there. Both structures outlive the call.
        let call = || unsafe { libc::process_vm_readv(self.tid.as_raw_nonzero().get(), &here, 1, &there, 1, 0) };
        self.sure(|| whole(call(), into.len()))
    }

    /// Writes `bytes` to its address `to`. Waits as [`Thread::read`].
    ///
    /// # Errors
    /// As [`Thread::read`]; a part may have been written.
    pub fn write(&self, to: u64, bytes: &[u8]) -> io::Result<()> {
        let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let there = there(to, bytes.len())?;
        // SAFETY: `here` is a slice of ours, only read; the memory at `to` is not ours. Both structures outlive the call.
        let call = || unsafe { libc::process_vm_writev(self.tid.as_raw_nonzero().get(), &here, 1, &there, 1, 0) };
        // Without the look before, a number that was given to another thread would have its memory written.
        self.sure(|| Ok(()))?;
        self.sure(|| whole(call(), bytes.len()))
    }

    /// The network namespace that it is in.
    ///
    /// # Errors
    /// `ESRCH`; `EACCES` when we may not look.
    pub fn netns(&self) -> io::Result<Netns> {
        self.sure(|| Netns::of_path(Path::new(&format!("/proc/{}/ns/net", self.tid.as_raw_nonzero()))))
    }

    /// Who it is.
    ///
    /// # Errors
    /// `ESRCH`; `InvalidData` when `/proc` says something else than Linux does.
    pub fn identity(&self) -> io::Result<Identity> {
        let text = self.sure(|| fs::read_to_string(format!("/proc/{}/status", self.tid.as_raw_nonzero())))?;
        let words = |title: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(title))?;
            line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<u32>>>()
        };
        let identity = || {
            let (pid, uid) = (*words("Tgid:")?.first()?, *words("Uid:")?.get(3)?);
            Some(Identity { pid, uid, groups: words("Groups:")? })
        };
        identity().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/status makes no sense"))
    }
}

/// The CPU that the thread `tid` of our pid namespace runs on, or did last. Only a hint: it may move at any time, and the
/// number may be another thread's by now.
///
/// # Errors
/// `ENOENT`, `ESRCH` when there is no such thread; `InvalidData` when `/proc` says something else than Linux does.
pub fn cpu_of(tid: u32) -> io::Result<usize> {
    let mut text = [0; 1024];
    let n = fs::File::open(format!("/proc/{tid}/task/{tid}/stat"))?.read(&mut text)?;
    cpu_in(&text[..n]).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/TID/stat makes no sense"))
}

/// The 39th word of a line whose second one is a name in parentheses, chosen by the thread.
fn cpu_in(stat: &[u8]) -> Option<usize> {
    let end = stat.iter().rposition(|&b| b == b')')?;
    std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// How the calling thread waited for a CPU so far, while it could have run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waits {
    /// For how long, in total.
    pub total: Duration,
    /// How often it was given one.
    pub count: u64,
}

impl Waits {
    /// How long each was on the average, since `before`; zero when there was none.
    pub fn since(&self, before: &Waits) -> Duration {
        let count = u32::try_from(self.count.saturating_sub(before.count)).unwrap_or(u32::MAX);
        self.total.saturating_sub(before.total).checked_div(count).unwrap_or_default()
    }
}

/// The waits of the calling thread.
///
/// # Errors
/// `ENOENT` from a kernel that does not count them; `InvalidData` when `/proc` says something else than Linux does.
pub fn waits() -> io::Result<Waits> {
    let mut text = [0; 128];
    let n = fs::File::open("/proc/thread-self/schedstat")?.read(&mut text)?;
    let mut words = std::str::from_utf8(&text[..n]).unwrap_or_default().split_ascii_whitespace().skip(1);
    let mut word = || words.next()?.parse().ok();
    match (word(), word()) {
        (Some(total), Some(count)) => Ok(Waits { total: Duration::from_nanos(total), count }),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "/proc/thread-self/schedstat makes no sense")),
    }
}

fn there(at: u64, len: usize) -> io::Result<libc::iovec> {
    let at = usize::try_from(at).map_err(|_| Errno::FAULT)?;
    Ok(libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: len })
}

/// A part is as good as nothing.
fn whole(moved: isize, len: usize) -> io::Result<()> {
    match usize::try_from(moved) {
        Ok(moved) if moved == len => Ok(()),
        Ok(_) => Err(Errno::FAULT.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;
    use process::tests::fork;

    fn errno(result: io::Result<()>) -> Option<i32> {
        result.err().and_then(|e| e.raw_os_error())
    }

    /// This very thread, if the kernel can name threads.
    fn me() -> Option<Thread> {
        match Thread::of(process::tid()) {
            Ok(thread) => Some(thread),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                eprintln!("skipped: pidfds of threads need Linux 6.9");
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn memory_is_there_or_not() {
        let Some(me) = me() else { return };
        let mut word = [1u8, 2, 3, 4];
        let (at, mut copy) = (word.as_mut_ptr().expose_provenance() as u64, [0; 4]);
        me.read(at, &mut copy).unwrap();
        assert_eq!(copy, word);
        me.write(at, &[5; 4]).unwrap();
        assert_eq!(std::hint::black_box(&word), &[5; 4]);
        for at in [0, 8, u64::MAX, u64::MAX - 3, 1 << 63] {
            assert_eq!(errno(me.read(at, &mut copy)), Some(libc::EFAULT), "{at:#x}");
            assert_eq!(errno(me.write(at, &copy)), Some(libc::EFAULT), "{at:#x}");
        }
    }

    #[test]
    fn who_it_is() {
        let Some(me) = me() else { return };
        let identity = me.identity().unwrap();
        assert_eq!((identity.pid, identity.uid), (process::pid(), process::uid()));
        assert_eq!(me.netns().unwrap().id(), Netns::current().unwrap().id());
    }

    #[test]
    fn where_it_runs() {
        let tid = process::tid();
        let home = process::cpus_allowed()[0];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                process::pin_to_cpu(home).unwrap();
                let tid = process::tid();
                assert_eq!(cpu_of(tid).unwrap(), home);
            });
        });
        assert!(cpu_of(tid).is_ok() && cpu_of(0).is_err() && cpu_of(u32::MAX).is_err());
        // Names are the threads' own choice.
        let rest = (3..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        for name in ["a", "a) b (c) R 1 2", "\u{e4}"] {
            assert_eq!(cpu_in(format!("1 ({name}) {rest}\n").as_bytes()), Some(39));
        }
        assert_eq!((cpu_in(b""), cpu_in(b"1 (a) R 1 2"), cpu_in(b"1 (a")), (None, None, None));
    }

    #[test]
    fn how_long_it_waited() {
        let Ok(before) = waits() else { return eprintln!("skipped: this kernel does not count waits") };
        std::thread::sleep(Duration::from_millis(1));
        let after = waits().unwrap();
        assert!(after.count > before.count && after.total >= before.total, "{before:?} {after:?}");
        let of = |micros, count| Waits { total: Duration::from_micros(micros), count };
        assert_eq!(of(50, 7).since(&of(20, 4)), Duration::from_micros(10));
        assert_eq!(of(50, 4).since(&of(20, 4)), Duration::ZERO);
        assert_eq!(of(0, 0).since(&of(20, 4)), Duration::ZERO);
    }

    #[test]
    fn nothing_is_said_of_the_dead() {
        if me().is_none() {
            return;
        }
        let child = fork(|| {
            std::thread::sleep(Duration::from_secs(100));
            0
        });
        let thread = Thread::of(child.pid()).unwrap();
        child.kill();
        child.wait();
        assert_eq!(thread.identity().unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(thread.netns().unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(errno(thread.read(4096, &mut [0])), Some(libc::ESRCH));
    }
}
