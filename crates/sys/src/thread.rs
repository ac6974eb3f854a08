// SPDX-License-Identifier: BSD-2-Clause
//! Threads: access to a thread of another process that waits for a reply (its memory, its identity), and scheduling of
//! the calling thread.
//!
//! A thread number identifies a thread only until it exits. Each access therefore uses the number, and then checks with
//! the pidfd, which was opened first, that the thread still exists and the result was about this thread.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, setpriority_process};

use crate::event::{PollFd, PollFlags, wait_readable};
use crate::netns::Netns;

/// `PIDFD_THREAD`, since Linux 6.9: the pidfd refers to a thread, not to its process.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());

/// A thread of another process.
#[derive(Debug)]
pub struct RemoteThread {
    tid: Pid,
    pidfd: OwnedFd,
}

impl AsFd for RemoteThread {
    /// Its pidfd.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Process, user and groups of a thread, from `/proc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// File system user id.
    pub uid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Sets the niceness of the calling thread, which threads that it starts inherit: -20 to 19, the less the sooner and
/// the longer it runs.
///
/// # Errors
/// `EACCES` for less than it has, without `CAP_SYS_NICE`.
pub fn set_nice(nice: i32) -> io::Result<()> {
    // On Linux of a thread, not of its process.
    Ok(setpriority_process(None, nice)?)
}

/// Interrupts the system call in which a thread of this process waits, if it waits in one: it fails with `EINTR`. One
/// that the thread is about to make is not interrupted.
///
/// # Errors
/// `ESRCH`: there is no such thread.
pub fn interrupt(tid: u32) -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    static HANDLED: Once = Once::new();
    // Ignored by default, so that a thread that gets it early is not ended.
    const SIGNAL: libc::c_int = libc::SIGURG;
    HANDLED.call_once(|| {
        // SAFETY: K9.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as *const () as libc::sighandler_t;
        // SAFETY: K1, K6: the handler does nothing. It fails only for signals that cannot be handled.
        unsafe { libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) };
    });
    let tid = i32::try_from(tid).map_err(|_| Errno::SRCH)?;
    // SAFETY: K7.
    match unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, SIGNAL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl RemoteThread {
    /// Opens thread `tid` of this process's pid namespace.
    ///
    /// # Errors
    /// `ESRCH` if there is none; `EINVAL` before Linux 6.9.
    pub fn of(tid: u32) -> io::Result<RemoteThread> {
        let tid = i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        Ok(RemoteThread { tid, pidfd: pidfd_open(tid, PIDFD_THREAD)? })
    }

    /// Returns the thread of that number and pidfd; `None` if the number is not one of a thread.
    pub fn from_parts(tid: u32, pidfd: OwnedFd) -> Option<RemoteThread> {
        Some(RemoteThread { tid: i32::try_from(tid).ok().and_then(Pid::from_raw)?, pidfd })
    }

    /// Returns its number.
    pub fn tid(&self) -> u32 {
        self.tid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Runs `access`, which uses the thread's number, and returns its result if the number still was this thread's.
    fn verified<T>(&self, access: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let result = access();
        let mut fds = [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)];
        match wait_readable(&mut fds, Some(Duration::ZERO)) {
            Ok(0) => result,
            Ok(_) => Err(Errno::SRCH.into()),
            Err(e) => Err(e),
        }
    }

    /// Reads `into.len()` bytes at address `from` of its memory. A page fault there (userfaultfd, FUSE) may block
    /// without limit, even against SIGKILL: only [`crate::memory_helper`] calls this.
    ///
    /// # Errors
    /// `EFAULT` if not all of it is mapped; `EPERM` without the right to trace the process; `ESRCH`.
    pub(crate) fn read(&self, from: u64, into: &mut [u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = remote_iovec(from, into.len())?;
        // SAFETY: K1, K4: `local` is a slice to write; the kernel reads `from` in the other process and checks it. Both
        // structures outlive the call.
        let call = || unsafe { libc::process_vm_readv(self.tid.as_raw_nonzero().get(), &local, 1, &remote, 1, 0) };
        self.verified(|| complete(call(), into.len()))
    }

    /// Writes `bytes` to address `to` of its memory. May block as [`RemoteThread::read`].
    ///
    /// # Errors
    /// As [`RemoteThread::read`]; a part may have been written.
    pub(crate) fn write(&self, to: u64, bytes: &[u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = remote_iovec(to, bytes.len())?;
        // SAFETY: K1, K4: `local` is a slice that is only read; `to` is an address of another process. Both structures
        // outlive the call.
        let call = || unsafe { libc::process_vm_writev(self.tid.as_raw_nonzero().get(), &local, 1, &remote, 1, 0) };
        // Checked before too: if the number had been reused, another process's memory would be written.
        self.verified(|| Ok(()))?;
        self.verified(|| complete(call(), bytes.len()))
    }

    /// Opens its network namespace.
    ///
    /// # Errors
    /// `ESRCH`; `EACCES` without the right to trace the process.
    pub fn netns(&self) -> io::Result<Netns> {
        self.verified(|| Netns::of_path(Path::new(&format!("/proc/{}/ns/net", self.tid.as_raw_nonzero()))))
    }

    /// Returns its process, user and groups.
    ///
    /// # Errors
    /// `ESRCH`; `InvalidData` if `/proc` has an unknown format.
    pub fn identity(&self) -> io::Result<Identity> {
        let text = self.verified(|| fs::read_to_string(format!("/proc/{}/status", self.tid.as_raw_nonzero())))?;
        let words = |title: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(title))?;
            line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<u32>>>()
        };
        let identity = || {
            let (pid, uid) = (*words("Tgid:")?.first()?, *words("Uid:")?.get(3)?);
            Some(Identity { pid, uid, groups: words("Groups:")? })
        };
        identity().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/status has an unknown format"))
    }
}

/// Returns the CPU that thread `tid` of this process's pid namespace runs on or ran on last. A hint only: the thread
/// may migrate at any time, and the number may be reused.
///
/// # Errors
/// `ENOENT`, `ESRCH` if there is no such thread; `InvalidData` if `/proc` has an unknown format.
pub fn cpu_of(tid: u32) -> io::Result<usize> {
    let mut text = [0; 1024];
    let n = fs::File::open(format!("/proc/{tid}/task/{tid}/stat"))?.read(&mut text)?;
    cpu_in(&text[..n]).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/TID/stat has an unknown format"))
}

/// Whether thread `tid` of this process's pid namespace is held up: it waits without being interruptible, as for a page
/// of memory, or it is stopped. A hint only, as [`cpu_of`]; `false` if there is no such thread.
pub fn is_held(tid: u32) -> bool {
    let mut text = [0; 1024];
    let read = fs::File::open(format!("/proc/{tid}/task/{tid}/stat")).and_then(|mut stat| stat.read(&mut text));
    read.is_ok_and(|n| matches!(word_in(&text[..n], 3), Some("D" | "T" | "t")))
}

/// Returns the 39th word of a `stat` line.
fn cpu_in(stat: &[u8]) -> Option<usize> {
    word_in(stat, 39)?.parse().ok()
}

/// Returns word `n` of a `stat` line, from the 3rd on. The second word is the thread's name in parentheses, which may
/// contain anything.
fn word_in(stat: &[u8], n: usize) -> Option<&str> {
    let end = stat.iter().rposition(|&b| b == b')')?;
    std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace().nth(n.checked_sub(3)?)
}

/// Returns the time that the calling thread has spent runnable, waiting for a CPU.
///
/// # Errors
/// `ENOENT` from a kernel without schedstat; `InvalidData` if `/proc` has an unknown format.
pub fn run_delay() -> io::Result<Duration> {
    let mut text = [0; 128];
    let n = fs::File::open("/proc/thread-self/schedstat")?.read(&mut text)?;
    let nanos =
        std::str::from_utf8(&text[..n]).ok().and_then(|text| text.split_ascii_whitespace().nth(1)?.parse().ok());
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, "/proc/thread-self/schedstat has an unknown format");
    nanos.map(Duration::from_nanos).ok_or_else(unknown)
}

fn remote_iovec(at: u64, len: usize) -> io::Result<libc::iovec> {
    let at = usize::try_from(at).map_err(|_| Errno::FAULT)?;
    Ok(libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: len })
}

/// Sets whether the calling thread, when it is woken, may preempt the running thread as the scheduler decides. If
/// `false` (`SCHED_BATCH`), it waits until that thread gives up the CPU or its time slice ends, a few milliseconds.
/// Takes about 0.5 us.
#[cold]
pub fn set_wakeup_preemption(allowed: bool) {
    let policy = if allowed { libc::SCHED_OTHER } else { libc::SCHED_BATCH };
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: K1: the kernel reads a struct that outlives the call. If it refuses (a filter), the policy is unchanged.
    unsafe { libc::sched_setscheduler(0, policy, &raw const none) };
}

/// Whether a thread runs before all that are not real-time threads, whatever their number, niceness, session or control
/// group: `SCHED_FIFO`, of the lowest priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// It shares processors with all others.
    None,
    /// It does, and so do threads that it starts.
    Inherited,
    /// It does. Threads that it starts do not, and without privileges it cannot change that.
    Own,
}

/// Sets the precedence of the calling thread.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` and beyond `RLIMIT_RTPRIO`, or in a control group without real-time threads; `Other`
/// if the kernel reports another policy afterwards.
pub fn set_precedence(precedence: Precedence) -> io::Result<()> {
    let policy = match precedence {
        Precedence::None => libc::SCHED_OTHER,
        Precedence::Inherited => libc::SCHED_FIFO,
        Precedence::Own => libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
    };
    let priority = libc::sched_param { sched_priority: i32::from(precedence != Precedence::None) };
    // SAFETY: K1: the kernel reads a struct that outlives the call.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const priority) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: K7.
    match unsafe { libc::sched_getscheduler(0) } {
        now if now == policy => Ok(()),
        now => Err(io::Error::other(format!("its scheduling policy is {now} after it was set to {policy}"))),
    }
}

/// Whether a thread has [`Precedence`].
///
/// # Errors
/// `ESRCH`: there is no such thread.
pub fn has_precedence(tid: u32) -> io::Result<bool> {
    // SAFETY: K7.
    match unsafe { libc::sched_getscheduler(i32::try_from(tid).map_err(|_| Errno::SRCH)?) } {
        -1 => Err(io::Error::last_os_error()),
        policy => Ok(policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_FIFO),
    }
}

/// Asks for turns of this length when the calling thread shares its CPU, 0.1 to 100 ms: a thread with shorter turns
/// runs sooner after it was woken, also if others with longer ones are running, and gets no larger share of the CPU.
/// Before Linux 6.12 it changes nothing.
///
/// # Errors
/// The kernel's, for instance of a filter.
pub fn set_time_slice(slice: Duration) -> io::Result<()> {
    let mut attr = SchedAttr::default();
    let bytes = size_of::<SchedAttr>() as u32;
    // SAFETY: K1: the kernel writes at most `bytes` bytes of a struct that outlives the call.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, bytes, 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    attr.runtime = slice.as_nanos() as u64;
    // SAFETY: K1: the kernel reads a struct that outlives the call.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets by how much sleeps of the calling thread may be longer than it asks for; 50 us by default.
pub fn set_timer_slack(slack: Duration) {
    // SAFETY: K7. If the kernel refuses (a filter), nothing changes.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack.as_nanos() as libc::c_ulong) };
}

/// `struct sched_attr` of the kernel, in its first form.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Nanoseconds; of a policy that is not real-time: the length of a turn.
    runtime: u64,
    deadline: u64,
    period: u64,
}

const _: () = assert!(size_of::<SchedAttr>() == 48);

/// Returns the number of the CPU that the calling thread runs on at this moment; a few nanoseconds.
#[inline]
pub fn current_cpu() -> u32 {
    // SAFETY: K7.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).unwrap_or(0)
}

/// Returns an error unless all `len` bytes were copied.
fn complete(moved: isize, len: usize) -> io::Result<()> {
    match usize::try_from(moved) {
        Ok(moved) if moved == len => Ok(()),
        Ok(_) => Err(Errno::FAULT.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::process;
    use process::tests::fork;

    #[test]
    fn the_time_slice_changes_nothing_else() {
        // A property of the thread.
        std::thread::spawn(|| {
            set_timer_slack(Duration::from_micros(1));
            // SAFETY: K7.
            assert_eq!(unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }, 1000);
            set_wakeup_preemption(false);
            set_time_slice(Duration::from_millis(1)).unwrap();
            // SAFETY: K7.
            assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_BATCH);
        })
        .join()
        .unwrap();
    }

    fn errno(result: io::Result<()>) -> Option<i32> {
        result.err().and_then(|e| e.raw_os_error())
    }

    /// The calling thread, if the kernel has pidfds of threads.
    fn me() -> Option<RemoteThread> {
        match RemoteThread::of(process::tid()) {
            Ok(thread) => Some(thread),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                eprintln!("skipped: pidfds of threads need Linux 6.9");
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn a_thread_that_waits_is_interrupted() {
        let (mut here, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (told, tid) = std::sync::mpsc::channel();
        let waits = std::thread::spawn(move || {
            told.send(process::tid()).unwrap();
            here.read(&mut [0]).unwrap_err().kind()
        });
        let tid = tid.recv().unwrap();
        while !waits.is_finished() {
            let _ = interrupt(tid);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(waits.join().unwrap(), io::ErrorKind::Interrupted);
        assert_eq!(errno(interrupt(u32::MAX)), Some(libc::ESRCH));
    }

    #[test]
    fn mapped_memory_is_copied_and_unmapped_memory_is_a_fault() {
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
    fn identity_names_process_and_user() {
        let Some(me) = me() else { return };
        let identity = me.identity().unwrap();
        assert_eq!((identity.pid, identity.uid), (process::pid(), process::uid()));
        assert_eq!(me.netns().unwrap().id(), Netns::current().unwrap().id());
    }

    #[test]
    fn cpu_of_a_pinned_thread_is_its_cpu() {
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
        assert!(current_cpu() < 1 << 20);
        // A thread chooses its name.
        let rest = (3..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        for name in ["a", "a) b (c) R 1 2", "\u{e4}"] {
            assert_eq!(cpu_in(format!("1 ({name}) {rest}\n").as_bytes()), Some(39));
        }
        assert_eq!((cpu_in(b""), cpu_in(b"1 (a) R 1 2"), cpu_in(b"1 (a")), (None, None, None));
    }

    #[test]
    fn the_state_is_the_third_word() {
        assert_eq!(word_in(b"1 (a) b) D 2 3\n", 3), Some("D"));
        assert!(!is_held(process::tid()) && !is_held(u32::MAX));
    }

    #[test]
    fn run_delay_grows_while_another_thread_has_the_cpu() {
        if run_delay().is_err() {
            return eprintln!("skipped: this kernel has no schedstat");
        }
        let (cpu, done) = (process::cpus_allowed()[0], AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                process::pin_to_cpu(cpu).unwrap();
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            scope.spawn(|| {
                process::pin_to_cpu(cpu).unwrap();
                let before = run_delay().unwrap();
                while run_delay().unwrap() == before {}
                done.store(true, Ordering::Relaxed);
            });
        });
    }

    #[test]
    fn accesses_to_an_exited_thread_fail() {
        if me().is_none() {
            return;
        }
        let child = fork(|| {
            std::thread::sleep(Duration::from_secs(100));
            0
        });
        let thread = RemoteThread::of(child.pid()).unwrap();
        child.kill();
        child.wait();
        assert_eq!(thread.identity().unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(thread.netns().unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(errno(thread.read(4096, &mut [0])), Some(libc::ESRCH));
    }
}
