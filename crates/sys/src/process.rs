//! Processes, threads, and what they may use.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setpriority_process, setrlimit, setsid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::socket::Peer;

pub use libc::{O_NOFOLLOW, O_NONBLOCK};
pub use rustix::process::Signal;

/// Effective user id: the one that a socket's other end sees.
pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Process id, in our own pid namespace.
pub fn pid() -> u32 {
    std::process::id()
}

/// What the kernel calls the calling thread, in our own pid namespace.
pub fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// A number that nobody guesses.
///
/// # Errors
/// The kernel's, where it has no `getrandom`.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    // So few bytes come whole.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// How often the line of processes that leads here has forked since [`watch_forks`].
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_fork_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// From now on [`fork_count`] differs between a process and its forked children. Does its work once.
///
/// # Errors
/// `ENOMEM`.
pub fn watch_forks() -> io::Result<()> {
    static REGISTERED: OnceLock<i32> = OnceLock::new();
    let errno = *REGISTERED.get_or_init(|| {
        // SAFETY: the handler is a plain function that does one atomic add, which is allowed after a fork of a process
        // with threads; it and the static live as long as this code is loaded (libc forgets it at dlclose).
        unsafe { libc::pthread_atfork(None, None, Some(on_fork_child)) }
    });
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

/// One relaxed load. A caller that remembers the value and later finds another is a forked child of the one it was.
/// Children of a raw clone system call or of vfork go unnoticed.
#[inline]
pub fn fork_count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// A number of the calling thread, not 0, that no other living thread of this process has. Costs one load, and may be called
/// anywhere, also in a signal's handler: it is the address by which the thread finds its own variables.
#[inline(always)]
pub fn this_thread() -> u64 {
    let address: u64;
    // SAFETY: reads a word that both ABIs define to hold that address, and has no other effect.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) address, options(nostack, preserves_flags, readonly))
    };
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) address, options(nostack, preserves_flags, nomem))
    };
    address | 1
}

/// Keeps the calling thread on one CPU.
///
/// # Errors
/// `EINVAL` when there is no such CPU or it is not ours to use.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    run_on_cpus(&[cpu])
}

/// Keeps the calling thread on these CPUs.
///
/// # Errors
/// `EINVAL` when one of them does not exist, or none of them is ours to use.
pub fn run_on_cpus(cpus: &[usize]) -> io::Result<()> {
    run_thread_on(None, cpus)
}

/// Keeps thread `tid` of our pid namespace on these CPUs.
///
/// # Errors
/// As [`run_on_cpus`]; `ESRCH` when there is no such thread, `EPERM` when it is another user's.
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

/// The CPUs that the calling thread may run on, ascending; empty when the kernel does not say.
pub fn cpus_allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Raises the limit of open files as far as we may; returns what it is now (`u64::MAX`: none).
pub fn raise_fd_limit() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Refused only by a sandbox; then the limit stays what it was, which is what we return.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Which parts of [`own_session_high_priority`] worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority {
    /// We lead a session of our own, and with it a scheduling group of our own.
    pub session: bool,
    /// That group has the highest weight.
    pub autogroup: bool,
    /// This process has the highest weight in its group.
    pub nice: bool,
}

/// Leaves the session we were started in, and asks for the largest share of the CPU. Each part may be refused (no
/// privilege, a kernel without autogroups, already a group leader), which costs speed only.
pub fn own_session_high_priority() -> Priority {
    Priority {
        session: setsid().is_ok(),
        autogroup: std::fs::write("/proc/self/autogroup", "-20").is_ok(),
        nice: setpriority_process(None, -20).is_ok(),
    }
}

/// Undoes what a daemon should not inherit from the program that happened to start it: a limit on the size of files (of
/// which a memfd is one), a choice of processors, a niceness. What the system does not permit stays.
pub fn forget_starter() {
    // SAFETY: ignoring a signal runs no code of ours; beyond the limit the call fails with EFBIG instead.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let hard = getrlimit(Resource::Fsize).maximum;
    let _ = setrlimit(Resource::Fsize, Rlimit { current: hard, maximum: hard });
    run_anywhere();
    let _ = setpriority_process(None, 0);
}

/// Has the calling thread run on any processor that the system permits.
pub fn run_anywhere() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    // What is not permitted stays.
    let _ = sched_setaffinity(None, &all);
}

/// A descriptor that this process was started with, by its number; the original stays open.
///
/// # Errors
/// `EBADF` when there is no such descriptor.
pub fn inherit_fd(number: u32) -> io::Result<OwnedFd> {
    let number = i32::try_from(number).map_err(|_| Errno::BADF)?;
    // SAFETY: the number is only handed to the kernel, which answers EBADF if it names nothing.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Blocks `signals` in the calling thread and in those it starts later, and returns a non-blocking descriptor that is
/// readable when one of them came. Call it before the first thread is started.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn signals_as_fd(signals: &[Signal]) -> io::Result<OwnedFd> {
    let mut set = empty_signal_set();
    for signal in signals {
        // SAFETY: `set` is initialized, and a Signal is a valid number.
        unsafe { libc::sigaddset(&mut set, signal.as_raw()) };
    }
    mask_signals(libc::SIG_BLOCK, &set);
    // SAFETY: -1 asks for a new descriptor; `set` is initialized and outlives the call.
    let raw = unsafe { libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn empty_signal_set() -> libc::sigset_t {
    // SAFETY: sigset_t is plain integers, for which zero is a value.
    let mut set = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is ours to write.
    unsafe { libc::sigemptyset(&mut set) };
    set
}

/// Changes the calling thread's signal mask and returns what it was. Safe to call between fork and exec.
fn mask_signals(how: libc::c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut old = empty_signal_set();
    // SAFETY: both sets are initialized and outlive the call, which cannot fail for the three values of `how`.
    unsafe { libc::pthread_sigmask(how, set, &mut old) };
    old
}

/// Lowest number for the descriptors that [`spawn_detached`] prepares: out of the way of 0..5, where it puts them.
const OUT_OF_THE_WAY: RawFd = 10;

/// All that the new process needs, made before the clone: after it nothing may allocate.
struct Launch {
    program: *const libc::c_char,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
    /// What becomes descriptors 0, 1, 2 and 3.
    fds: [RawFd; 4],
    /// The pipe to the caller: `[0, pid]` when the child runs, `[errno, 0]` when something failed.
    report: RawFd,
}

/// Starts `program` (a path; `args` without its name) as a process that is nobody's child here: a session of its own,
/// working directory `/`, input and output `/dev/null`, standard error to `stderr_to`, `keep_fd` as descriptor 3, and no
/// other descriptor open; default signals, none blocked; our environment, but not LD_PRELOAD, which is meant for us.
/// Returns its process id. There is nothing to wait for, unless we are process 1 (or a subreaper), the parent of all
/// orphans. The caller gets no SIGCHLD of it.
///
/// # Errors
/// Those of exec (`ENOENT`, `EACCES`, `ENOEXEC`) and of clone (`EAGAIN`, `ENOMEM`), `EMFILE`; `EINVAL` for a NUL in
/// a string.
pub fn spawn_detached(program: &Path, args: &[OsString], keep_fd: OwnedFd, stderr_to: File) -> io::Result<u32> {
    let program = c_string(program.as_os_str().as_bytes().to_vec())?;
    let args = args.iter().map(|arg| c_string(arg.as_bytes().to_vec())).collect::<io::Result<Vec<_>>>()?;
    let variables = std::env::vars_os().filter(|(name, _)| name != "LD_PRELOAD").map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        c_string(name.into_vec())
    });
    let variables = variables.collect::<io::Result<Vec<_>>>()?;
    let argv = pointers(std::iter::once(&program).chain(&args));
    let envp = pointers(&variables);

    let null = File::options().read(true).write(true).open("/dev/null")?;
    let (listen, report) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let null = fcntl_dupfd_cloexec(null, OUT_OF_THE_WAY)?;
    let stderr = fcntl_dupfd_cloexec(stderr_to, OUT_OF_THE_WAY)?;
    let keep = fcntl_dupfd_cloexec(keep_fd, OUT_OF_THE_WAY)?;
    let report = fcntl_dupfd_cloexec(report, OUT_OF_THE_WAY)?;

    let launch = Launch {
        program: program.as_ptr(),
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        fds: [null.as_raw_fd(), null.as_raw_fd(), stderr.as_raw_fd(), keep.as_raw_fd()],
        report: report.as_raw_fd(),
    };
    // No signal handler of this program may run in the children: they share its files and shared memory.
    // SAFETY: sigset_t is plain integers, for which zero is a value; sigfillset then writes it whole.
    let mut all = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is ours to write.
    unsafe { libc::sigfillset(&mut all) };
    let before = mask_signals(libc::SIG_BLOCK, &all);
    // SAFETY: the child only runs `middle`, which keeps to what is allowed after a fork, and never returns from it.
    let middle = unsafe { clone_process(0, || middle(&launch)) };
    mask_signals(libc::SIG_SETMASK, &before);
    drop(report);
    let middle = middle?;
    let answer = read_report(listen);
    reap(middle);
    answer
}

fn c_string(bytes: Vec<u8>) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| Errno::INVAL.into())
}

/// The NULL-terminated array that exec takes.
fn pointers<'a>(strings: impl IntoIterator<Item = &'a CString>) -> Vec<*const libc::c_char> {
    strings.into_iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

/// What the children said until all of them had closed the pipe.
fn read_report(listen: OwnedFd) -> io::Result<u32> {
    let mut pid = None;
    let mut words = [0u8; 8];
    loop {
        match rustix::io::read(&listen, &mut words) {
            Ok(8) => {
                let [a, b, c, d, e, f, g, h] = words;
                match i32::from_ne_bytes([a, b, c, d]) {
                    0 => pid = Some(u32::from_ne_bytes([e, f, g, h])),
                    errno => return Err(io::Error::from_raw_os_error(errno)),
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            // Killed before it could say anything, if there is no pid.
            Ok(_) => return pid.ok_or_else(|| Errno::CHILD.into()),
        }
    }
}

/// A new process with a copy of our memory, which runs `child` and exits. Not libc's fork: that runs the handlers of
/// every library of this program, and our child's end would be a SIGCHLD that this program does not expect.
///
/// # Safety
/// `child` does only what may be done after a fork of a process with threads: system calls, no allocation, no locks.
unsafe fn clone_process(end_signal: libc::c_int, child: impl FnOnce()) -> io::Result<libc::pid_t> {
    // SAFETY: no memory is shared (no CLONE_VM), and a null stack means a copy of this one, so this is a fork.
    // The flags come first on every architecture but s390, the rest is zero.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(end_signal), 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            child();
            // SAFETY: ends the child at once, without the exit handlers of the program it is a copy of.
            unsafe { libc::_exit(127) }
        }
        pid => Ok(pid as libc::pid_t),
    }
}

/// Waits for the end of the child that only starts the other, which comes at once. It has no end signal, so nobody
/// else's `wait` takes it, and it stays ours even where SIGCHLD is ignored.
fn reap(pid: libc::pid_t) {
    // SAFETY: no status is asked for.
    while unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// First child: a session leader whose end makes the second child an orphan.
fn middle(launch: &Launch) {
    // SAFETY: setsid takes nothing; a child just made leads no group, so it works.
    unsafe { libc::setsid() };
    // SAFETY: the child only runs `last`, which keeps to what is allowed after a fork.
    match unsafe { clone_process(libc::SIGCHLD, || last(launch)) } {
        Ok(pid) => report(launch.report, 0, pid),
        Err(error) => report(launch.report, error.raw_os_error().unwrap_or(libc::EAGAIN), 0),
    }
}

/// Second child: becomes the program. Returns only when it could not.
fn last(launch: &Launch) {
    let fail = |pipe| report(pipe, io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO), 0);
    for (to, from) in (0..).zip(launch.fds) {
        // SAFETY: no `from` is below OUT_OF_THE_WAY, so none is overwritten before it is used.
        if unsafe { libc::dup2(from, to) } < 0 {
            return fail(launch.report);
        }
    }
    // SAFETY: as above. CLOSE_RANGE_CLOEXEC is newer than 5.10, so the pipe moves to 4 and all above is closed now.
    if unsafe { libc::dup3(launch.report, 4, libc::O_CLOEXEC) } < 0 {
        return fail(launch.report);
    }
    close_from(5);
    for signal in 1..=64 {
        // SAFETY: the default action is always a valid one; the two signals that refuse it need none.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    mask_signals(libc::SIG_SETMASK, &empty_signal_set());
    // SAFETY: a NUL-terminated constant; the pointers of `launch` are NUL-terminated strings and NULL-terminated arrays
    // of such, all alive in this copy of the caller's memory.
    unsafe {
        if libc::chdir(c"/".as_ptr()) == 0 {
            libc::execve(launch.program, launch.argv, launch.envp);
        }
    }
    fail(4);
}

/// Closes all descriptors from `first` on.
fn close_from(first: RawFd) {
    // SAFETY: this process is a copy that is about to exec; nothing of it uses a descriptor from here on.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) == 0 {
            return;
        }
    }
    // A sandbox that does not know close_range. The limit bounds the numbers unless it was lowered since.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20).min(1 << 20) as RawFd;
    for fd in first..limit {
        // SAFETY: as above; closing a number that is not open does nothing.
        unsafe { libc::close(fd) };
    }
}

/// One write of 8 bytes, which a pipe takes whole.
fn report(pipe: RawFd, errno: i32, pid: libc::pid_t) {
    let words = [errno, pid];
    // SAFETY: `words` is 8 bytes and alive. A failed write leaves the caller with the end of the pipe, which tells it.
    unsafe { libc::write(pipe, words.as_ptr().cast(), size_of_val(&words)) };
}

/// Whether `peer` is certainly nobody of this process's user namespace: its user has no number here, and this is not the
/// machine's own namespace, where all have one.
pub fn is_outside(peer: &Peer) -> bool {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let nobody = text("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    peer.uid == nobody && lacks_number(&text("/proc/self/uid_map"), nobody, peer.pid != 0)
}

/// Whether a user who is shown as `nobody` has no number in the namespace of `map`: some have none, and either `nobody` is
/// none of its numbers, or the process is not `seen` here.
fn lacks_number(map: &str, nobody: u32, seen: bool) -> bool {
    let lines = map.lines().filter_map(|line| {
        let mut words = line.split_whitespace().map_while(|word| word.parse::<u32>().ok());
        Some((words.next()?, words.next()?, words.next()?))
    });
    let lines: Vec<_> = lines.collect();
    let all = lines.contains(&(0, 0, u32::MAX));
    let has_nobody = lines.iter().any(|(first, _, count)| nobody.checked_sub(*first).is_some_and(|n| n < *count));
    !lines.is_empty() && !all && (!has_nobody || !seen)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::event::{PollFd, PollFlags, wait_readable};

    #[test]
    fn each_living_thread_has_its_own_number() {
        let (mine, again) = (this_thread(), this_thread());
        assert!(mine != 0 && mine == again);
        // None of them ends before all have told theirs.
        let together = std::sync::Barrier::new(8);
        let numbers: std::collections::BTreeSet<u64> = std::thread::scope(|scope| {
            let tell = || {
                let number = this_thread();
                together.wait();
                number
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(tell)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(numbers.len() == 8 && !numbers.contains(&mine));
    }

    #[test]
    fn nobody_is_outside_where_some_have_no_number() {
        let pod = "         0      65534          1\n";
        let many = "         0     100000      65536\n";
        for (map, seen, outside) in [
            ("         0          0 4294967295\n", false, false),
            (pod, true, true),
            (pod, false, true),
            (many, true, false),
            (many, false, true),
            ("0 1000 1\n1 100000 65534\n", true, false),
            ("", false, false),
            ("x y z\n", false, false),
        ] {
            assert_eq!(lacks_number(map, 65534, seen), outside, "{map:?}, {seen}");
        }
        assert!(!is_outside(&Peer { pid: 1, uid: 0, gid: 0 }));
    }

    /// A forked child of the test.
    pub(crate) struct Child(libc::pid_t);

    impl Child {
        pub(crate) fn pid(&self) -> u32 {
            self.0.cast_unsigned()
        }

        pub(crate) fn kill(&self) {
            // SAFETY: a child of ours that nobody has waited for yet.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
        }

        /// Its exit code, -1 when a signal killed it.
        pub(crate) fn wait(self) -> i32 {
            let mut status = 0;
            // SAFETY: `status` is ours to write.
            assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
            if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
        }
    }

    /// Runs `child` in a forked child, which exits with its result, 101 when it panics.
    pub(crate) fn fork(child: impl FnOnce() -> i32) -> Child {
        // SAFETY: the child takes no lock of the test harness; glibc lets it allocate.
        match unsafe { libc::fork() } {
            0 => {
                let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
                // SAFETY: ends the child without the harness's exit handlers.
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
    fn identity() {
        assert_eq!(pid(), std::process::id());
        // SAFETY: no arguments.
        assert_eq!(uid(), unsafe { libc::geteuid() });
    }

    #[test]
    fn forked_child_knows_that_it_is_one() {
        watch_forks().unwrap();
        watch_forks().unwrap();
        let before = fork_count();
        assert_eq!(in_child(|| i32::from(fork_count() != before + 1)), 0);
        assert_eq!(in_child(|| in_child(|| i32::from(fork_count() != before + 2))), 0);
        assert_eq!(fork_count(), before);
    }

    #[test]
    fn pinned_thread_has_one_cpu() {
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
    fn fd_limit_becomes_the_maximum() {
        let outcome = in_child(|| {
            let maximum = getrlimit(Resource::Nofile).maximum;
            setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
            i32::from(raise_fd_limit() != maximum.unwrap_or(u64::MAX))
        });
        assert_eq!(outcome, 0);
    }

    #[test]
    fn session_is_left_once() {
        let outcome = in_child(|| {
            let (first, second) = (own_session_high_priority(), own_session_high_priority());
            i32::from(!first.session || second.session || first.nice != second.nice)
        });
        assert_eq!(outcome, 0);
    }

    #[test]
    fn signal_becomes_readable() {
        std::thread::spawn(|| {
            let fd = signals_as_fd(&[Signal::USR1, Signal::TERM]).unwrap();
            let look = || {
                let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
                wait_readable(&mut fds, Some(std::time::Duration::ZERO)).unwrap()
            };
            assert_eq!(look(), 0);
            // SAFETY: goes to this thread alone, which has it blocked.
            unsafe { libc::raise(libc::SIGUSR1) };
            assert_eq!(look(), 1);
            let mut info = [0u8; 128];
            assert_eq!(rustix::io::read(&fd, &mut info), Ok(128));
            assert_eq!(info[..4], libc::SIGUSR1.to_ne_bytes());
            assert_eq!(rustix::io::read(&fd, &mut info), Err(Errno::AGAIN));
        })
        .join()
        .unwrap();
    }
}
