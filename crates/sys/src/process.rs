// SPDX-License-Identifier: BSD-2-Clause
//! The calling process: identity, forks, CPUs, limits, priority and signals.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{
    Pid, Resource, Rlimit, getpid, getrlimit, setpriority_process, setrlimit, setsid, test_kill_process,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

mod environment;
mod namespaces;
mod spawn;
mod user_namespace;

pub use environment::{is_secure_execution, variable};
pub use libc::{O_NOFOLLOW, O_NONBLOCK};
pub use namespaces::{leave_namespaces, outside_netns};
pub use rustix::process::Signal;
pub use spawn::spawn_detached;
pub use user_namespace::{is_in_initial_user_namespace, is_unmapped_user, may_be_unmapped_owner};

/// The number from which on [`move_up`] looks for a free one, or so far below the limit. The kernel's table of files
/// has 8 bytes for each lower one.
const FIRST_UP: u64 = 1 << 15;
const ROOM_UP: u64 = 8;

/// Returns the effective user id, which the peer of a socket sees.
pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the process id, in this process's pid namespace.
pub fn pid() -> u32 {
    std::process::id()
}

/// Sets the name of this process, as `/proc/PID/comm` has it: 15 bytes of it. Call it in the main thread.
pub fn set_program_name(name: &CStr) {
    // Longer names are cut.
    let _ = rustix::thread::set_name(name);
}

/// Returns the name of a process's program, at most 15 bytes; `None`: there is no such process, or no `/proc`. A
/// program can change its name.
pub fn program_name(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// Returns the state of a process's first thread in a letter, as proc(5) has it; `None`: there is no such process, or
/// no `/proc`.
pub fn state(pid: u32) -> Option<char> {
    stat_field(&pid.to_string(), 0)?.chars().next()
}

/// A field of `/proc/PID/stat`, by its place after the process's name, which is in parentheses and may contain
/// anything.
fn stat_field(process: &str, place: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(place).map(str::to_owned)
}

/// Returns the control groups of a process, a line each: of a unit's processes, those of the unit. `process` is its
/// number, or `self`.
///
/// # Errors
/// There is no such process, or no `/proc`.
pub fn cgroup(process: &str) -> std::io::Result<String> {
    std::fs::read_to_string(format!("/proc/{process}/cgroup"))
}

/// Returns the calling thread's number, in this process's pid namespace.
pub fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// Returns an unpredictable number.
///
/// # Errors
/// `ENOSYS` if the kernel has no `getrandom`.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    // So few bytes are never returned in part.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Number of forks between the process that called [`count_forks`] and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_fork_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Starts to count forks: [`fork_count`] then differs between a process and its forked children. Later calls do
/// nothing.
///
/// # Errors
/// `ENOMEM`.
pub fn count_forks() -> io::Result<()> {
    static REGISTERED: OnceLock<i32> = OnceLock::new();
    let errno = *REGISTERED.get_or_init(|| {
        // SAFETY: K6: the handler does one atomic add; it and the static exist as long as this code is loaded (libc
        // removes the handler at dlclose).
        unsafe { libc::pthread_atfork(None, None, Some(on_fork_child)) }
    });
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

/// Returns the number of forks, by one relaxed load. A caller that stored the value and later reads another one runs in
/// a forked child. Children of a raw clone system call or of vfork are not counted.
#[inline]
pub fn fork_count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Returns a number of the calling thread, not 0, that no other running thread of this process has: the address of its
/// thread-local storage. Costs one load, and may be called in a signal handler.
#[inline(always)]
pub fn this_thread() -> u64 {
    let address: u64;
    // SAFETY: K8: reads a word that the ABI defines to hold that address, and has no other effect.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) address, options(nostack, preserves_flags, readonly))
    };
    // SAFETY: K8: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) address, options(nostack, preserves_flags, nomem))
    };
    address | 1
}

/// Restricts the calling thread to one CPU.
///
/// # Errors
/// `EINVAL` if there is no such CPU or this process may not use it.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    run_on_cpus(&[cpu])
}

/// Restricts the calling thread to these CPUs.
///
/// # Errors
/// `EINVAL` if one of them does not exist, or this process may use none of them.
pub fn run_on_cpus(cpus: &[usize]) -> io::Result<()> {
    run_thread_on(None, cpus)
}

/// Restricts thread `tid` of this process's pid namespace to these CPUs.
///
/// # Errors
/// As [`run_on_cpus`]; `ESRCH` if there is no such thread, `EPERM` if it belongs to another user.
pub fn run_thread_on_cpus(tid: u32, cpus: &[usize]) -> io::Result<()> {
    run_thread_on(Some(i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?), cpus)
}

fn run_thread_on(thread: Option<Pid>, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(Errno::INVAL.into());
        }
        set.set(cpu);
    }
    Ok(sched_setaffinity(thread, &set)?)
}

/// Returns the CPUs that the calling thread may run on, ascending; empty if the kernel refuses.
pub fn cpus_allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Raises the limit of open files to its maximum; returns the limit then in force (`u64::MAX`: none).
pub fn raise_fd_limit() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Refused only by a sandbox; the limit is unchanged then.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    fd_limit()
}

/// Returns the limit of open files that is in force (`u64::MAX`: none).
pub fn fd_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the limit of open files, and its maximum where that is permitted (root), to `files` at least; returns the
/// limit then in force (`u64::MAX`: none).
pub fn raise_fd_limit_to(files: u64) -> u64 {
    if raise_fd_limit() < files {
        // Refused to users other than root, and beyond the kernel's own limit; the limit is unchanged then.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum: Some(files) });
    }
    raise_fd_limit()
}

/// Returns how many processes and threads this process's user may have (`u64::MAX`: no limit).
pub fn task_limit() -> u64 {
    getrlimit(Resource::Nproc).current.unwrap_or(u64::MAX)
}

/// The steps of [`own_session_high_priority`] that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority {
    /// This process leads a session of its own, and with it a scheduling group (autogroup) of its own.
    pub session: bool,
    /// That group has the highest weight.
    pub autogroup: bool,
    /// This process has the highest weight in its group.
    pub nice: bool,
}

/// Leaves the session that this process was started in, and requests the largest share of the CPU. Each step may fail
/// (no privilege, a kernel without autogroups, already a group leader), which costs speed only.
pub fn own_session_high_priority() -> Priority {
    Priority {
        session: setsid().is_ok(),
        autogroup: set_session_nice(-20).is_ok(),
        nice: setpriority_process(None, -20).is_ok(),
    }
}

/// Sets the niceness of this process's session among the others, -20 to 19. Where the kernel shares the processors
/// between sessions (`/proc/sys/kernel/sched_autogroup_enabled`), that of a process or thread counts only among those
/// of its session.
///
/// # Errors
/// `Unsupported` if the kernel does not, or this process shares its session with the program that started it; `EPERM`
/// for less than 0 without `CAP_SYS_NICE`; `Other` if the kernel reports another one afterwards.
pub fn set_session_nice(nice: i32) -> io::Result<()> {
    let unsupported = |why: &str| Err(io::Error::new(io::ErrorKind::Unsupported, why));
    if !has_session_of_its_own() {
        return unsupported("this session has processes of others");
    }
    match std::fs::write("/proc/self/autogroup", nice.to_string()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return unsupported("this kernel groups no sessions"),
        written => written?,
    }
    let text = std::fs::read_to_string("/proc/self/autogroup")?;
    match text.trim_end().strip_suffix(&format!(" nice {nice}")) {
        Some(_) => Ok(()),
        None => Err(io::Error::other(format!("/proc/self/autogroup is {text:?} after {nice} was written"))),
    }
}

/// Whether this process leads its session, or who led it has ended, as after [`spawn_detached`]. The number of a
/// session is not used again while it exists.
fn has_session_of_its_own() -> bool {
    // SAFETY: K7. Not rustix's, which does not accept 0: it is outside of this process's PID namespace.
    let leader = Pid::from_raw(unsafe { libc::getsid(0) });
    leader.is_some_and(|leader| leader == getpid() || test_kill_process(leader) == Err(Errno::SRCH))
}

/// Resets settings that a daemon should not inherit from the program that started it: the limit on file sizes (which
/// applies to a memfd), the CPU affinity, the niceness. Settings that this process may not change are left.
pub fn reset_inherited_limits() {
    // SAFETY: K6: an ignored signal runs no code; beyond the limit a call fails with EFBIG instead.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let hard = getrlimit(Resource::Fsize).maximum;
    let _ = setrlimit(Resource::Fsize, Rlimit { current: hard, maximum: hard });
    allow_all_cpus();
    let _ = setpriority_process(None, 0);
}

/// Gives up the right to make threads real-time threads, where no privilege gives it: those that are stay.
///
/// # Errors
/// None is known.
pub fn renounce_real_time() -> io::Result<()> {
    Ok(setrlimit(Resource::Rtprio, Rlimit { current: Some(0), maximum: Some(0) })?)
}

/// Allows the calling thread to run on every CPU that the system permits.
pub fn allow_all_cpus() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    // The kernel drops CPUs that are not permitted.
    let _ = sched_setaffinity(None, &all);
}

/// Duplicates a descriptor that this process was started with, by its number; the original stays open.
///
/// # Errors
/// `EBADF` if there is no such descriptor.
pub fn inherit_fd(number: u32) -> io::Result<OwnedFd> {
    let number = i32::try_from(number).map_err(|_| Errno::BADF)?;
    // SAFETY: K7: the kernel answers EBADF if the number is not open.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: K2: the kernel has just created this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Closes a descriptor that this process was started with, by its number, and that nothing else in it uses.
pub fn close_inherited(number: u32) {
    // SAFETY: K7: no other part of the program has this number; the kernel answers EBADF if it is not open.
    i32::try_from(number).into_iter().for_each(|number| _ = unsafe { libc::close(number) });
}

/// Moves a descriptor to a number above those of others, if there are fewer than [`FIRST_UP`] of these: the kernel
/// closes the files of a process that ends from the highest number down. Leaves it where it is if that is impossible.
pub fn move_up(fd: OwnedFd) -> OwnedFd {
    let number = FIRST_UP.min(fd_limit().saturating_sub(ROOM_UP));
    let moved = i32::try_from(number).ok().and_then(|number| fcntl_dupfd_cloexec(&fd, number).ok());
    moved.unwrap_or(fd)
}

/// Blocks `signals` in the calling thread and in those it starts later, and returns a non-blocking descriptor that
/// becomes readable when one of them arrives. Call it before the first thread is started.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn signals_as_fd(signals: &[Signal]) -> io::Result<OwnedFd> {
    let mut set = empty_signal_set();
    for signal in signals {
        // SAFETY: K1: `set` is initialized, and a Signal is a valid number.
        unsafe { libc::sigaddset(&mut set, signal.as_raw()) };
    }
    mask_signals(libc::SIG_BLOCK, &set);
    // SAFETY: K1: -1 requests a new descriptor; `set` is initialized and outlives the call.
    let raw = unsafe { libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: K2: the kernel has just created this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Returns the next signal that has arrived at a descriptor of [`signals_as_fd`]; `None` if none has.
///
/// # Errors
/// The kernel's, if `fd` is another descriptor.
pub fn next_signal(fd: impl AsFd) -> io::Result<Option<Signal>> {
    // The size of `struct signalfd_siginfo`, which begins with the signal's number.
    let mut info = [0u8; 128];
    match rustix::io::read(fd, &mut info) {
        Ok(_) => {
            let [a, b, c, d, ..] = info;
            Ok(Signal::from_named_raw(i32::from_ne_bytes([a, b, c, d])))
        }
        Err(Errno::AGAIN) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn empty_signal_set() -> libc::sigset_t {
    // SAFETY: K9: sigset_t consists of integers.
    let mut set = unsafe { std::mem::zeroed() };
    // SAFETY: K1: `set` outlives the call.
    unsafe { libc::sigemptyset(&mut set) };
    set
}

/// Changes the calling thread's signal mask and returns the former one. Safe to call between fork and exec.
fn mask_signals(how: libc::c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut old = empty_signal_set();
    // SAFETY: K1: both sets are initialized and outlive the call, which cannot fail for the three values of `how`.
    unsafe { libc::pthread_sigmask(how, set, &mut old) };
    old
}

#[cfg(test)]
pub(crate) mod tests {

    use super::*;
    use crate::event::{PollFd, PollFlags, wait_readable};

    #[test]
    fn running_threads_have_different_numbers() {
        let (mine, again) = (this_thread(), this_thread());
        assert!(mine != 0 && mine == again);
        // No thread exits before all have read their numbers.
        let together = std::sync::Barrier::new(8);
        let numbers: std::collections::BTreeSet<u64> = std::thread::scope(|scope| {
            let read = || {
                let number = this_thread();
                together.wait();
                number
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(read)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(numbers.len() == 8 && !numbers.contains(&mine));
    }

    /// A forked child of the test.
    pub(crate) struct Child(libc::pid_t);

    impl Child {
        pub(crate) fn pid(&self) -> u32 {
            self.0.cast_unsigned()
        }

        pub(crate) fn kill(&self) {
            // SAFETY: K7: a child that has not been waited for yet.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
        }

        /// Its exit code, -1 when a signal killed it.
        pub(crate) fn wait(self) -> i32 {
            let mut status = 0;
            // SAFETY: K1: `status` outlives the call.
            assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
            if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
        }
    }

    /// Runs `child` in a forked child, which exits with its result, 101 when it panics.
    pub(crate) fn fork(child: impl FnOnce() -> i32) -> Child {
        // SAFETY: K6: the child takes no lock of the test harness; glibc allows it to allocate.
        match unsafe { libc::fork() } {
            0 => {
                let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
                // SAFETY: K7: ends the child without the harness's exit handlers.
                unsafe { libc::_exit(code) }
            }
            pid => {
                assert!(pid > 0);
                Child(pid)
            }
        }
    }

    pub(crate) fn in_child(child: impl FnOnce() -> i32) -> i32 {
        fork(child).wait()
    }

    #[test]
    fn pid_and_uid_are_this_process() {
        assert_eq!(pid(), std::process::id());
        // SAFETY: K7.
        assert_eq!(uid(), unsafe { libc::geteuid() });
    }

    #[test]
    fn the_fork_count_differs_in_forked_children() {
        count_forks().unwrap();
        count_forks().unwrap();
        let before = fork_count();
        assert_eq!(in_child(|| i32::from(fork_count() != before + 1)), 0);
        assert_eq!(in_child(|| in_child(|| i32::from(fork_count() != before + 2))), 0);
        assert_eq!(fork_count(), before);
    }

    #[test]
    fn a_pinned_thread_may_run_on_one_cpu() {
        let allowed = cpus_allowed();
        let last = *allowed.last().unwrap();
        std::thread::scope(|s| {
            s.spawn(|| {
                pin_to_cpu(last).unwrap();
                assert_eq!(cpus_allowed(), [last]);
                assert!(pin_to_cpu(usize::MAX).is_err());
                assert!(pin_to_cpu(CpuSet::MAX_CPU - 1).is_err());
            });
        });
        assert_eq!(cpus_allowed(), allowed);
    }

    #[test]
    fn the_limit_of_open_files_is_raised_to_its_maximum() {
        let outcome = in_child(|| {
            let maximum = getrlimit(Resource::Nofile).maximum;
            setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
            i32::from(raise_fd_limit() != maximum.unwrap_or(u64::MAX))
        });
        assert_eq!(outcome, 0);
    }

    #[test]
    fn the_limit_is_raised_beyond_its_maximum_where_that_is_permitted() {
        let outcome = in_child(|| {
            setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(128) }).unwrap();
            // Permitted to programs with CAP_SYS_RESOURCE.
            i32::from(raise_fd_limit_to(100) != 128 || !matches!(raise_fd_limit_to(256), 128 | 256))
        });
        assert_eq!(outcome, 0);
    }

    #[test]
    fn the_session_is_left_once() {
        let outcome = in_child(|| {
            let (first, second) = (own_session_high_priority(), own_session_high_priority());
            let again = set_session_nice(0).is_ok() == first.autogroup;
            i32::from(!first.session || second.session || first.nice != second.nice || !again)
        });
        assert_eq!(outcome, 0);
    }

    #[test]
    fn the_niceness_of_a_session_of_others_is_left() {
        // This process leads it, and its child does not.
        let outcome = in_child(|| {
            setsid().map_or(1, |_| {
                in_child(|| {
                    let others = set_session_nice(0).is_err_and(|e| e.kind() == io::ErrorKind::Unsupported);
                    i32::from(!others)
                })
            })
        });
        assert_eq!(outcome, 0);
    }

    #[test]
    fn a_blocked_signal_makes_the_descriptor_readable() {
        std::thread::spawn(|| {
            let fd = signals_as_fd(&[Signal::USR1, Signal::TERM]).unwrap();
            let poll = || {
                let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
                wait_readable(&mut fds, Some(std::time::Duration::ZERO)).unwrap()
            };
            assert_eq!(poll(), 0);
            // SAFETY: K7: the signal goes to this thread alone, which has it blocked.
            unsafe { libc::raise(libc::SIGUSR1) };
            assert_eq!(poll(), 1);
            assert_eq!(next_signal(&fd).unwrap(), Some(Signal::USR1));
            assert_eq!(next_signal(&fd).unwrap(), None);
        })
        .join()
        .unwrap();
    }
}
