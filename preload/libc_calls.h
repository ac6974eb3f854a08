/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * The C library's own functions; before they are found, the system calls.
 */
#ifndef UNETMAP_REAL_H
#define UNETMAP_REAL_H

#include <dirent.h>
#include <ifaddrs.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#define ALL_LIBC_CALLS(do_)	\
	do_(open) do_(open64) do_(openat) do_(openat64) do_(ioctl) do_(mmap) do_(mmap64)	\
	do_(access) do_(faccessat) do_(euidaccess) do_(stat) do_(lstat) do_(fstatat) do_(statx)	\
	do_(close) do_(close_range) do_(dup) do_(dup2) do_(dup3) do_(fcntl) do_(fcntl64)	\
	do_(poll) do_(ppoll) do_(select) do_(pselect)	\
	do_(epoll_create) do_(epoll_create1) do_(epoll_ctl) do_(epoll_pwait) do_(epoll_pwait2)	\
	do_(recvmsg) do_(recvmmsg) do_(getifaddrs) do_(freeifaddrs)	\
	do_(write) do_(pwrite) do_(writev) do_(fopen) do_(fopen64) do_(fflush) do_(fclose) do_(opendir) do_(chdir)	\
	do_(freopen) do_(scandir) do_(pwritev) do_(pwritev2)	\
	do_(realpath) do_(getcwd) do_(readlink) do_(readlinkat) do_(statfs) do_(statvfs) do_(pathconf)	\
	do_(unlinkat) do_(truncate) do_(glob) do_(nftw) do_(ftw)	\
	do_(getxattr) do_(lgetxattr) do_(listxattr) do_(llistxattr)

struct libc_calls {
	int (*open)(const char *, int, ...);
	int (*open64)(const char *, int, ...);
	int (*openat)(int, const char *, int, ...);
	int (*openat64)(int, const char *, int, ...);
	int (*ioctl)(int, unsigned long, ...);
	void *(*mmap)(void *, size_t, int, int, int, off_t);
	void *(*mmap64)(void *, size_t, int, int, int, off_t);
	int (*access)(const char *, int);
	int (*faccessat)(int, const char *, int, int);
	int (*euidaccess)(const char *, int);
	int (*stat)(const char *, void *);
	int (*lstat)(const char *, void *);
	int (*fstatat)(int, const char *, void *, int);
	int (*statx)(int, const char *, int, unsigned int, void *);
	int (*close)(int);
	int (*close_range)(unsigned int, unsigned int, int);
	int (*dup)(int);
	int (*dup2)(int, int);
	int (*dup3)(int, int, int);
	int (*fcntl)(int, int, ...);
	int (*fcntl64)(int, int, ...);
	int (*poll)(struct pollfd *, nfds_t, int);
	int (*ppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
	int (*select)(int, fd_set *, fd_set *, fd_set *, struct timeval *);
	int (*pselect)(int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *);
	int (*epoll_create)(int);
	int (*epoll_create1)(int);
	int (*epoll_ctl)(int, int, int, struct epoll_event *);
	int (*epoll_pwait)(int, struct epoll_event *, int, int, const sigset_t *);
	int (*epoll_pwait2)(int, struct epoll_event *, int, const struct timespec *, const sigset_t *);
	ssize_t (*recvmsg)(int, struct msghdr *, int);
	int (*recvmmsg)(int, struct mmsghdr *, unsigned int, int, struct timespec *);
	int (*getifaddrs)(struct ifaddrs **);
	void (*freeifaddrs)(struct ifaddrs *);
	ssize_t (*write)(int, const void *, size_t);
	ssize_t (*pwrite)(int, const void *, size_t, off_t);
	ssize_t (*writev)(int, const struct iovec *, int);
	FILE *(*fopen)(const char *, const char *);
	FILE *(*fopen64)(const char *, const char *);
	int (*fflush)(FILE *);
	int (*fclose)(FILE *);
	DIR *(*opendir)(const char *);
	FILE *(*freopen)(const char *, const char *, FILE *);
	int (*scandir)(const char *, void *, void *, void *);
	int (*chdir)(const char *);
	ssize_t (*pwritev)(int, const struct iovec *, int, off_t);
	ssize_t (*pwritev2)(int, const struct iovec *, int, off_t, int);
	char *(*realpath)(const char *, char *);
	char *(*getcwd)(char *, size_t);
	ssize_t (*readlink)(const char *, char *, size_t);
	ssize_t (*readlinkat)(int, const char *, char *, size_t);
	int (*statfs)(const char *, void *);
	int (*statvfs)(const char *, void *);
	long (*pathconf)(const char *, int);
	int (*unlinkat)(int, const char *, int);
	int (*truncate)(const char *, off_t);
	int (*glob)(const char *, int, int (*)(const char *, int), void *);
	int (*nftw)(const char *, void *, int, int);
	int (*ftw)(const char *, void *, int);
	ssize_t (*getxattr)(const char *, const char *, void *, size_t);
	ssize_t (*lgetxattr)(const char *, const char *, void *, size_t);
	ssize_t (*listxattr)(const char *, char *, size_t);
	ssize_t (*llistxattr)(const char *, char *, size_t);
};

extern struct libc_calls unetmap_libc;

/* Fills unetmap_libc. */
void unetmap_find_libc_calls(void);

/* Calls the C library's function if it is known, else evaluates the given system call. */
#define CALL_LIBC(name, args, ...)	\
	(__builtin_expect(unetmap_libc.name != NULL, 1) ? unetmap_libc.name args : __VA_ARGS__)

int unetmap_libc_poll(struct pollfd *fds, nfds_t n, int timeout);
int unetmap_libc_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
int unetmap_libc_pselect(int n, fd_set *in, fd_set *out, fd_set *except, const struct timespec *timeout,
    const sigset_t *mask);
int unetmap_libc_epoll_ctl(int set, int what, int fd, struct epoll_event *event);
int unetmap_libc_epoll_pwait(int set, struct epoll_event *events, int most, int timeout, const sigset_t *mask);

#endif
