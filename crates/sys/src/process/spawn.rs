// SPDX-License-Identifier: BSD-2-Clause
//! Starting a program that is not a child of this process.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr;

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit};

use super::{empty_signal_set, is_secure_execution, mask_signals};

/// Lowest number of the descriptors that [`spawn_detached`] prepares: above 0..5, to which it duplicates them.
const FIRST_PREPARED: RawFd = 10;

/// Everything that the new process needs, prepared before the clone: the child must not allocate.
struct Launch {
    program: *const libc::c_char,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
    /// Sources of descriptors 0, 1, 2 and 3.
    fds: [RawFd; 4],
    /// The pipe to the caller: `[0, pid]` once the child runs, `[errno, 0]` if a step failed.
    status: RawFd,
    /// Whether the child gives up the ids of this program's caller.
    leaves_caller: bool,
}

/// Starts `program` (a path; `args` without its name, which is `name`, as ps(1) shows it) as an orphan: in a session of
/// its own, with working directory `/`, standard input and output `/dev/null`, standard error to `stderr_to`, `keep_fd`
/// as descriptor 3, and no other descriptor open; default signal actions, no signal blocked; the environment of this
/// process without LD_PRELOAD. Returns its process id. The caller receives no SIGCHLD and need not wait for it, unless
/// it is process 1 or a subreaper, the parent of all orphans.
///
/// If this program has more privileges than its caller ([`is_secure_execution`]), the environment is empty, and all ids
/// of the new process are the effective ones, so that the caller may not signal it.
///
/// # Errors
/// The errors of exec (`ENOENT`, `EACCES`, `ENOEXEC`) and of clone (`EAGAIN`, `ENOMEM`), `EMFILE`; `EINVAL` for a NUL
/// in a string.
pub fn spawn_detached(
    program: &Path,
    name: &OsStr,
    args: &[OsString],
    keep_fd: OwnedFd,
    stderr_to: File,
) -> io::Result<u32> {
    let program = c_string(program.as_os_str().as_bytes().to_vec())?;
    let args = args.iter().map(|arg| c_string(arg.as_bytes().to_vec())).collect::<io::Result<Vec<_>>>()?;
    let leaves_caller = is_secure_execution();
    let kept = |name: &OsString| name != "LD_PRELOAD" && !leaves_caller;
    let variables = std::env::vars_os().filter(|(name, _)| kept(name)).map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        c_string(name.into_vec())
    });
    let variables = variables.collect::<io::Result<Vec<_>>>()?;
    let name = c_string(name.as_bytes().to_vec())?;
    let argv = pointers(std::iter::once(&name).chain(&args));
    let envp = pointers(&variables);

    let null = File::options().read(true).write(true).open("/dev/null")?;
    let (status_reader, status) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let null = fcntl_dupfd_cloexec(null, FIRST_PREPARED)?;
    let stderr = fcntl_dupfd_cloexec(stderr_to, FIRST_PREPARED)?;
    let keep = fcntl_dupfd_cloexec(keep_fd, FIRST_PREPARED)?;
    let status = fcntl_dupfd_cloexec(status, FIRST_PREPARED)?;

    let launch = Launch {
        program: program.as_ptr(),
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        fds: [null.as_raw_fd(), null.as_raw_fd(), stderr.as_raw_fd(), keep.as_raw_fd()],
        status: status.as_raw_fd(),
        leaves_caller,
    };
    // No signal handler of this program may run in the children: they share its files and shared memory.
    // SAFETY: K9: sigset_t consists of integers; sigfillset then writes all of it.
    let mut all = unsafe { std::mem::zeroed() };
    // SAFETY: K1: `all` outlives the call.
    unsafe { libc::sigfillset(&mut all) };
    let before = mask_signals(libc::SIG_BLOCK, &all);
    // SAFETY: K6: the child only runs `session_leader`, which makes system calls only.
    let leader = unsafe { clone_process(0, || session_leader(&launch)) };
    mask_signals(libc::SIG_SETMASK, &before);
    drop(status);
    let leader = leader?;
    let outcome = read_status(status_reader);
    reap(leader);
    outcome
}

fn c_string(bytes: Vec<u8>) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| Errno::INVAL.into())
}

/// Returns the NULL-terminated array for exec.
fn pointers<'a>(strings: impl IntoIterator<Item = &'a CString>) -> Vec<*const libc::c_char> {
    strings.into_iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

/// Reads the children's status until both have closed the pipe.
fn read_status(reader: OwnedFd) -> io::Result<u32> {
    let mut pid = None;
    let mut words = [0u8; 8];
    loop {
        match rustix::io::read(&reader, &mut words) {
            Ok(8) => {
                let [a, b, c, d, e, f, g, h] = words;
                match i32::from_ne_bytes([a, b, c, d]) {
                    0 => pid = Some(u32::from_ne_bytes([e, f, g, h])),
                    errno => return Err(io::Error::from_raw_os_error(errno)),
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            // Without a pid the child was killed before it wrote its status.
            Ok(_) => return pid.ok_or_else(|| Errno::CHILD.into()),
        }
    }
}

/// Forks a process that runs `child` and exits. Does not use libc's fork, which runs the handlers of every library of
/// this program, and whose child's exit sends a SIGCHLD that this program does not expect.
///
/// # Safety
/// `child` keeps rule K6: it makes system calls only, allocates nothing and takes no lock.
unsafe fn clone_process(end_signal: libc::c_int, child: impl FnOnce()) -> io::Result<libc::pid_t> {
    // SAFETY: K6, K7: no memory is shared (no CLONE_VM), and a null stack requests a copy of this one, so this is a
    // fork. The flags are the first argument on every architecture but s390; the others are zero.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(end_signal), 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            child();
            // SAFETY: K7: ends the child at once, without the exit handlers of the copied program.
            unsafe { libc::_exit(127) }
        }
        pid => Ok(pid as libc::pid_t),
    }
}

/// Waits for the first child, which exits as soon as it has started the second one. It has no exit signal, so no other
/// `wait` of this program returns it, and it can be waited for even if SIGCHLD is ignored.
fn reap(pid: libc::pid_t) {
    // SAFETY: K7: no status is requested.
    while unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// First child: a session leader whose exit makes the second child an orphan.
fn session_leader(launch: &Launch) {
    // SAFETY: K7: a new child leads no group, so setsid succeeds.
    unsafe { libc::setsid() };
    // SAFETY: K6: the child only runs `exec`, which makes system calls only.
    match unsafe { clone_process(libc::SIGCHLD, || exec(launch)) } {
        Ok(pid) => write_status(launch.status, 0, pid),
        Err(error) => write_status(launch.status, error.raw_os_error().unwrap_or(libc::EAGAIN), 0),
    }
}

/// Second child: executes the program. Returns only on failure.
fn exec(launch: &Launch) {
    let fail = |pipe| write_status(pipe, io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO), 0);
    for (to, from) in (0..).zip(launch.fds) {
        // SAFETY: K2: no source is below FIRST_PREPARED, so none is overwritten before it is used.
        if unsafe { libc::dup2(from, to) } < 0 {
            return fail(launch.status);
        }
    }
    // SAFETY: K2: as above. CLOSE_RANGE_CLOEXEC is newer than 5.10, so the pipe moves to 4 and all above is closed now.
    if unsafe { libc::dup3(launch.status, 4, libc::O_CLOEXEC) } < 0 {
        return fail(launch.status);
    }
    close_from(5);
    for signal in 1..=64 {
        // SAFETY: K6: the default action is always valid; the two signals that refuse it already have it.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    mask_signals(libc::SIG_SETMASK, &empty_signal_set());
    if launch.leaves_caller && !become_effective_ids() {
        return fail(4);
    }
    // SAFETY: K1: a NUL-terminated constant; the pointers of `launch` are NUL-terminated strings and NULL-terminated
    // arrays of such, all valid in this copy of the caller's memory.
    unsafe {
        if libc::chdir(c"/".as_ptr()) == 0 {
            libc::execve(launch.program, launch.argv, launch.envp);
        }
    }
    fail(4);
}

/// Makes the effective ids the real and the saved ones; drops the supplementary groups, for which only root has the
/// privilege. Returns `false` if the kernel refuses.
fn become_effective_ids() -> bool {
    // SAFETY: K6, K7: libc's own functions would run code in all threads of the copied program. No list is passed.
    unsafe {
        let (uid, gid) = (libc::geteuid(), libc::getegid());
        libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>());
        libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0 && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
    }
}

/// Closes all descriptors from `first`.
fn close_from(first: RawFd) {
    // SAFETY: K2: this copy of the process is about to exec, and uses no descriptor any more.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) == 0 {
            return;
        }
    }
    // A sandbox without close_range. The limit bounds the numbers unless it was lowered meanwhile.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20).min(1 << 20) as RawFd;
    for fd in first..limit {
        // SAFETY: K2: as above; closing a number that is not open has no effect.
        unsafe { libc::close(fd) };
    }
}

/// Writes 8 bytes, which a pipe accepts whole.
fn write_status(pipe: RawFd, errno: i32, pid: libc::pid_t) {
    let words = [errno, pid];
    // SAFETY: K1: `words` has 8 bytes and outlives the call. After a failed write the caller reads the end of the pipe.
    unsafe { libc::write(pipe, words.as_ptr().cast(), size_of_val(&words)) };
}
