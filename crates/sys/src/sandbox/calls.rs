// SPDX-License-Identifier: BSD-2-Clause
//! System calls that a process or thread may make (seccomp), in lists: a call that is in none of those that are allowed
//! answers `ENOSYS`, as on a kernel that does not have it.

use std::io;

use super::done;

/// Lists of system calls.
pub type Calls = &'static [&'static [libc::c_long]];

/// Threads that move packets.
pub const PACKETS: Calls = &[ALL_THREADS, ALL_THREADS_X86];

/// All threads of a daemon that is not root's: no program is executed, and no namespace or mount changed.
pub const MAIN: Calls = &[ALL_THREADS, ALL_THREADS_X86, MAIN_THREAD, MAIN_THREAD_X86];

/// All threads of root's daemon, and the processes that it starts.
pub const ROOT_MAIN: Calls = &[ALL_THREADS, ALL_THREADS_X86, MAIN_THREAD, MAIN_THREAD_X86, PRIVILEGED, PRIVILEGED_X86];

/// The process that accesses the memory of other processes: it opens nothing.
pub const MEMORY_HELPER: Calls = &[MEMORY, MEMORY_X86];

/// Memory, waiting, threads, open files, and `/proc`.
#[rustfmt::skip]
const ALL_THREADS: &[libc::c_long] = &[
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64,
    libc::SYS_close, libc::SYS_close_range, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_lseek,
    libc::SYS_fstatfs,
    libc::SYS_fcntl, libc::SYS_flock, libc::SYS_dup, libc::SYS_dup3, libc::SYS_ioctl, libc::SYS_ppoll,
    libc::SYS_pselect6, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2, libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime, libc::SYS_pipe2,
    libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_sendmmsg, libc::SYS_recvmsg, libc::SYS_getsockopt,
    libc::SYS_setsockopt, libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_shutdown, libc::SYS_memfd_create,
    libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_mremap,
    libc::SYS_madvise, libc::SYS_brk, libc::SYS_mincore, libc::SYS_mlock, libc::SYS_mlock2, libc::SYS_munlock,
    libc::SYS_mbind, libc::SYS_set_mempolicy, libc::SYS_get_mempolicy, libc::SYS_futex, libc::SYS_futex_waitv,
    libc::SYS_membarrier, libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_rseq,
    libc::SYS_set_tid_address, libc::SYS_sched_yield, libc::SYS_sched_setaffinity, libc::SYS_sched_getaffinity,
    libc::SYS_sched_setscheduler, libc::SYS_sched_getscheduler, libc::SYS_sched_getparam, libc::SYS_sched_getattr,
    libc::SYS_sched_setattr, libc::SYS_getcpu, libc::SYS_clock_gettime, libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_gettimeofday, libc::SYS_getrandom, libc::SYS_getpid,
    libc::SYS_gettid, libc::SYS_getppid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid,
    libc::SYS_getrusage, libc::SYS_sysinfo, libc::SYS_uname, libc::SYS_sigaltstack, libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigtimedwait, libc::SYS_tgkill, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_restart_syscall, libc::SYS_clone, libc::SYS_clone3, libc::SYS_openat,
    libc::SYS_readlinkat, libc::SYS_getdents64, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_prctl,
    libc::SYS_capget, libc::SYS_capset, libc::SYS_seccomp, libc::SYS_fdatasync, libc::SYS_fsync,
];

/// Calls that aarch64 lacks.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALL_THREADS_X86: &[libc::c_long] = &[
    libc::SYS_poll, libc::SYS_epoll_wait, libc::SYS_select, libc::SYS_dup2, libc::SYS_pipe, libc::SYS_open,
    libc::SYS_stat, libc::SYS_lstat, libc::SYS_readlink, libc::SYS_access, libc::SYS_time, libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const ALL_THREADS_X86: &[libc::c_long] = &[];

/// Sockets, files beside the socket, limits and other processes' descriptors.
#[rustfmt::skip]
const MAIN_THREAD: &[libc::c_long] = &[
    libc::SYS_socket, libc::SYS_socketpair, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept4, libc::SYS_accept,
    libc::SYS_connect, libc::SYS_signalfd4, libc::SYS_unlinkat, libc::SYS_mkdirat, libc::SYS_fchmod,
    libc::SYS_fchmodat, libc::SYS_umask, libc::SYS_setsid, libc::SYS_setpriority, libc::SYS_getpriority,
    libc::SYS_prlimit64, libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal, libc::SYS_getgroups, libc::SYS_getcwd,
    libc::SYS_kill, libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self,
    libc::SYS_statfs, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_inotify_init1, libc::SYS_inotify_add_watch,
];

/// Calls that aarch64 lacks.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const MAIN_THREAD_X86: &[libc::c_long] = &[
    libc::SYS_unlink, libc::SYS_mkdir, libc::SYS_getrlimit, libc::SYS_setrlimit, libc::SYS_chmod, libc::SYS_rename,
];
#[cfg(not(target_arch = "x86_64"))]
const MAIN_THREAD_X86: &[libc::c_long] = &[];

/// Interfaces, namespaces, mounts, BPF, and starting of processes.
#[rustfmt::skip]
const PRIVILEGED: &[libc::c_long] = &[
    libc::SYS_execve, libc::SYS_wait4, libc::SYS_waitid, libc::SYS_setns, libc::SYS_unshare, libc::SYS_bpf,
    libc::SYS_mount, libc::SYS_umount2, libc::SYS_symlinkat, libc::SYS_linkat, libc::SYS_chdir,
    libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_setresuid, libc::SYS_setresgid,
    libc::SYS_setgroups, libc::SYS_utimensat,
];

/// Calls that aarch64 lacks.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const PRIVILEGED_X86: &[libc::c_long] = &[
    libc::SYS_rmdir, libc::SYS_symlink, libc::SYS_fork, libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const PRIVILEGED_X86: &[libc::c_long] = &[];

/// Other processes' memory, one connection, and the end of the process.
#[rustfmt::skip]
const MEMORY: &[libc::c_long] = &[
    libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_fcntl, libc::SYS_ppoll, libc::SYS_sendmsg,
    libc::SYS_recvmsg, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_mmap, libc::SYS_munmap,
    libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk, libc::SYS_futex, libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask, libc::SYS_rt_sigaction, libc::SYS_sigaltstack, libc::SYS_clock_gettime, libc::SYS_getpid,
    libc::SYS_gettid, libc::SYS_tgkill, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_restart_syscall,
];

/// Calls that aarch64 lacks.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const MEMORY_X86: &[libc::c_long] = &[
    libc::SYS_poll,
];
#[cfg(not(target_arch = "x86_64"))]
const MEMORY_X86: &[libc::c_long] = &[];

/// Instructions of a BPF filter, and its answers.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const UNKNOWN: u32 = 0x0005_0000 | libc::ENOSYS as u32;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// `AUDIT_ARCH_X86_64`, `AUDIT_ARCH_AARCH64`.
const OWN_ARCHITECTURE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };

/// `SECCOMP_FILTER_FLAG_SPEC_ALLOW`: kernels before 5.16 would slow down all branches of the program otherwise.
const SPEC_ALLOW: libc::c_uint = 1 << 2;
const SET_MODE_FILTER: libc::c_uint = 1;

#[repr(C)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

#[repr(C)]
struct Filter {
    len: u16,
    instructions: *const Instruction,
}

fn instruction(code: u16, value: u32, (if_true, if_false): (u8, u8)) -> Instruction {
    Instruction { code, if_true, if_false, value }
}

/// The filter: it depends on nothing but the call's number, so the kernel computes its answers once.
fn filter(lists: Calls) -> Vec<Instruction> {
    let mut filter = vec![
        instruction(LOAD, ARCHITECTURE, (0, 0)),
        instruction(JUMP_IF_EQUAL, OWN_ARCHITECTURE, (1, 0)),
        instruction(RETURN, UNKNOWN, (0, 0)),
        instruction(LOAD, NUMBER, (0, 0)),
    ];
    for call in lists.iter().copied().flatten() {
        filter.push(instruction(JUMP_IF_EQUAL, *call as u32, (0, 1)));
        filter.push(instruction(RETURN, ALLOW, (0, 0)));
    }
    filter.push(instruction(RETURN, UNKNOWN, (0, 0)));
    filter
}

/// Allows the calling thread, and those it starts, these system calls and no others. Restrictions add up. Needs
/// [`super::no_new_privileges`].
///
/// # Errors
/// `ENOSYS` or `EINVAL` from a kernel without seccomp.
pub fn allow_calls(lists: Calls) -> io::Result<()> {
    let instructions = filter(lists);
    // At most 4096, of which each list has a few hundred.
    let filter = Filter { len: instructions.len() as u16, instructions: instructions.as_ptr() };
    // SAFETY: K1, K5: the filter and its instructions outlive the call.
    done(unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, SPEC_ALLOW, &raw const filter) })
}
