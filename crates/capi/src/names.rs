// SPDX-License-Identifier: BSD-2-Clause
//! The exported system call names. Each calls its hook in `preload/`: rustc exports only functions that Rust defines.
//!
//! Variadic C functions are declared with their one optional argument: on the supported architectures it is passed in
//! the same register either way.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{
    DIR, FILE, epoll_event, fd_set, ifaddrs, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t,
    ssize_t, timespec, timeval,
};

macro_rules! names {
    ($($name:ident => $hook:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        unsafe extern "C" {
            $(fn $hook($($arg: $type),*) -> $result;)*
        }
        other_names! { $($name => $hook($($arg: $type),*) -> $result;)* }
    };
}

// More than one name may call the same hook, which is declared once.
macro_rules! other_names {
    ($($name:ident => $hook:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "(2)`.")]
            ///
            /// # Safety
            /// As the C library's function of that name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                // SAFETY: C1: the caller's contract, passed on.
                unsafe { $hook($($arg),*) }
            }
        )*
    };
}

names! {
    open => unetmap_hook_open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    open64 => unetmap_hook_open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat => unetmap_hook_openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat64 => unetmap_hook_openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    __open_2 => unetmap_hook_open_2(path: *const c_char, flags: c_int) -> c_int;
    __open64_2 => unetmap_hook_open64_2(path: *const c_char, flags: c_int) -> c_int;
    __openat_2 => unetmap_hook_openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    __openat64_2 => unetmap_hook_openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    ioctl => unetmap_hook_ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int;
    mmap => unetmap_hook_mmap(address: *mut c_void, bytes: size_t, prot: c_int, flags: c_int, fd: c_int, at: off_t)
        -> *mut c_void;
    mmap64 => unetmap_hook_mmap64(address: *mut c_void, bytes: size_t, prot: c_int, flags: c_int, fd: c_int, at: off_t)
        -> *mut c_void;
    access => unetmap_hook_access(path: *const c_char, mode: c_int) -> c_int;
    faccessat => unetmap_hook_faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int;
    stat => unetmap_hook_stat(path: *const c_char, out: *mut c_void) -> c_int;
    lstat => unetmap_hook_lstat(path: *const c_char, out: *mut c_void) -> c_int;
    fstatat => unetmap_hook_fstatat(dir: c_int, path: *const c_char, out: *mut c_void, flags: c_int) -> c_int;
    statx => unetmap_hook_statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut c_void) -> c_int;
    euidaccess => unetmap_hook_euidaccess(path: *const c_char, mode: c_int) -> c_int;
    __xstat => unetmap_hook_xstat(version: c_int, path: *const c_char, out: *mut c_void) -> c_int;
    __lxstat => unetmap_hook_lxstat(version: c_int, path: *const c_char, out: *mut c_void) -> c_int;
    __fxstatat => unetmap_hook_fxstatat(version: c_int, dir: c_int, path: *const c_char, out: *mut c_void, flags: c_int)
        -> c_int;
    close => unetmap_hook_close(fd: c_int) -> c_int;
    close_range => unetmap_hook_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom => unetmap_hook_closefrom(first: c_int) -> ();
    dup => unetmap_hook_dup(fd: c_int) -> c_int;
    dup2 => unetmap_hook_dup2(fd: c_int, to: c_int) -> c_int;
    dup3 => unetmap_hook_dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl => unetmap_hook_fcntl(fd: c_int, what: c_int, arg: c_ulong) -> c_int;
    fcntl64 => unetmap_hook_fcntl64(fd: c_int, what: c_int, arg: c_ulong) -> c_int;
    poll => unetmap_hook_poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int;
    __poll_chk => unetmap_hook_poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, bytes: size_t) -> c_int;
    ppoll => unetmap_hook_ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    __ppoll_chk => unetmap_hook_ppoll_chk(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        bytes: size_t) -> c_int;
    select => unetmap_hook_select(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval) -> c_int;
    pselect => unetmap_hook_pselect(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create => unetmap_hook_epoll_create(size: c_int) -> c_int;
    epoll_create1 => unetmap_hook_epoll_create1(flags: c_int) -> c_int;
    epoll_ctl => unetmap_hook_epoll_ctl(set: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait => unetmap_hook_epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    epoll_pwait => unetmap_hook_epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int,
        mask: *const sigset_t) -> c_int;
    epoll_pwait2 => unetmap_hook_epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int,
        timeout: *const timespec, mask: *const sigset_t) -> c_int;
    recvmsg => unetmap_hook_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg => unetmap_hook_recvmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int,
        timeout: *mut timespec) -> c_int;
    getifaddrs => unetmap_hook_getifaddrs(list: *mut *mut ifaddrs) -> c_int;
    freeifaddrs => unetmap_hook_freeifaddrs(list: *mut ifaddrs) -> ();
    write => unetmap_hook_write(fd: c_int, bytes: *const c_void, n: size_t) -> ssize_t;
    pwrite => unetmap_hook_pwrite(fd: c_int, bytes: *const c_void, n: size_t, at: off_t) -> ssize_t;
    writev => unetmap_hook_writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fopen => unetmap_hook_fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fopen64 => unetmap_hook_fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fflush => unetmap_hook_fflush(stream: *mut FILE) -> c_int;
    fclose => unetmap_hook_fclose(stream: *mut FILE) -> c_int;
    freopen => unetmap_hook_freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    freopen64 => unetmap_hook_freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    scandir => unetmap_hook_scandir(path: *const c_char, list: *mut c_void, filter: *mut c_void, order: *mut c_void)
        -> c_int;
    creat => unetmap_hook_creat(path: *const c_char, mode: mode_t) -> c_int;
    opendir => unetmap_hook_opendir(path: *const c_char) -> *mut DIR;
    chdir => unetmap_hook_chdir(path: *const c_char) -> c_int;
    pwritev => unetmap_hook_pwritev(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t;
    pwritev2 => unetmap_hook_pwritev2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    realpath => unetmap_hook_realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char;
    __realpath_chk => unetmap_hook_realpath_chk(path: *const c_char, resolved: *mut c_char, bytes: size_t)
        -> *mut c_char;
    canonicalize_file_name => unetmap_hook_canonicalize_file_name(path: *const c_char) -> *mut c_char;
    getcwd => unetmap_hook_getcwd(into: *mut c_char, bytes: size_t) -> *mut c_char;
    readlink => unetmap_hook_readlink(path: *const c_char, target: *mut c_char, bytes: size_t) -> ssize_t;
    readlinkat => unetmap_hook_readlinkat(dir: c_int, path: *const c_char, target: *mut c_char, bytes: size_t)
        -> ssize_t;
    statfs => unetmap_hook_statfs(path: *const c_char, out: *mut c_void) -> c_int;
    statvfs => unetmap_hook_statvfs(path: *const c_char, out: *mut c_void) -> c_int;
    pathconf => unetmap_hook_pathconf(path: *const c_char, what: c_int) -> c_long;
    unlink => unetmap_hook_unlink(path: *const c_char) -> c_int;
    unlinkat => unetmap_hook_unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    truncate => unetmap_hook_truncate(path: *const c_char, bytes: off_t) -> c_int;
    glob => unetmap_hook_glob(pattern: *const c_char, flags: c_int, failed: *mut c_void, out: *mut c_void) -> c_int;
    nftw => unetmap_hook_nftw(path: *const c_char, visit: *mut c_void, descriptors: c_int, flags: c_int) -> c_int;
    ftw => unetmap_hook_ftw(path: *const c_char, visit: *mut c_void, descriptors: c_int) -> c_int;
    getxattr => unetmap_hook_getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, bytes: size_t)
        -> ssize_t;
    lgetxattr => unetmap_hook_lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, bytes: size_t)
        -> ssize_t;
    listxattr => unetmap_hook_listxattr(path: *const c_char, list: *mut c_char, bytes: size_t) -> ssize_t;
    llistxattr => unetmap_hook_llistxattr(path: *const c_char, list: *mut c_char, bytes: size_t) -> ssize_t;
}

// Other names of the same functions: struct stat64 is struct stat.
other_names! {
    pwrite64 => unetmap_hook_pwrite(fd: c_int, bytes: *const c_void, n: size_t, at: off_t) -> ssize_t;
    scandir64 => unetmap_hook_scandir(path: *const c_char, list: *mut c_void, filter: *mut c_void, order: *mut c_void)
        -> c_int;
    creat64 => unetmap_hook_creat(path: *const c_char, mode: mode_t) -> c_int;
    pwritev64 => unetmap_hook_pwritev(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t;
    pwritev64v2 => unetmap_hook_pwritev2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int)
        -> ssize_t;
    statfs64 => unetmap_hook_statfs(path: *const c_char, out: *mut c_void) -> c_int;
    statvfs64 => unetmap_hook_statvfs(path: *const c_char, out: *mut c_void) -> c_int;
    truncate64 => unetmap_hook_truncate(path: *const c_char, bytes: off_t) -> c_int;
    glob64 => unetmap_hook_glob(pattern: *const c_char, flags: c_int, failed: *mut c_void, out: *mut c_void) -> c_int;
    nftw64 => unetmap_hook_nftw(path: *const c_char, visit: *mut c_void, descriptors: c_int, flags: c_int) -> c_int;
    ftw64 => unetmap_hook_ftw(path: *const c_char, visit: *mut c_void, descriptors: c_int) -> c_int;
    eaccess => unetmap_hook_euidaccess(path: *const c_char, mode: c_int) -> c_int;
    stat64 => unetmap_hook_stat(path: *const c_char, out: *mut c_void) -> c_int;
    lstat64 => unetmap_hook_lstat(path: *const c_char, out: *mut c_void) -> c_int;
    fstatat64 => unetmap_hook_fstatat(dir: c_int, path: *const c_char, out: *mut c_void, flags: c_int) -> c_int;
    __xstat64 => unetmap_hook_xstat(version: c_int, path: *const c_char, out: *mut c_void) -> c_int;
    __lxstat64 => unetmap_hook_lxstat(version: c_int, path: *const c_char, out: *mut c_void) -> c_int;
    __fxstatat64 => unetmap_hook_fxstatat(version: c_int, dir: c_int, path: *const c_char, out: *mut c_void,
        flags: c_int) -> c_int;
}

// The widths that the one argument of a variadic call may have.
const _: () = assert!(size_of::<c_long>() == 8 && size_of::<*const c_void>() == 8);
