/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * The names that a program calls: a netmap file goes to Rust, everything else
 * on to the C library, untouched.
 *
 * A hook may run before this library is set up (other libraries' constructors,
 * an allocator's first steps), in a signal handler, and in a forked child of a
 * program with threads. So on the way to the C library nothing is allocated or
 * locked, and until its functions are found, and in static programs, the kernel
 * is called instead.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <net/netmap_user.h>

#include "hooks.h"

#define ALL_REAL(do_)	\
	do_(open) do_(open64) do_(openat) do_(openat64) do_(ioctl) do_(mmap) do_(mmap64)	\
	do_(close) do_(close_range) do_(dup) do_(dup2) do_(dup3) do_(fcntl) do_(fcntl64)	\
	do_(ppoll) do_(poll) do_(epoll_ctl) do_(epoll_pwait) do_(recvmsg)

typedef int (*open_fn)(const char *, int, ...);
typedef int (*openat_fn)(int, const char *, int, ...);
typedef int (*ioctl_fn)(int, unsigned long, ...);
typedef void *(*mmap_fn)(void *, size_t, int, int, int, off_t);
typedef int (*fcntl_fn)(int, int, ...);

static struct {
	open_fn open, open64;
	openat_fn openat, openat64;
	ioctl_fn ioctl;
	mmap_fn mmap, mmap64;
	int (*close)(int);
	int (*close_range)(unsigned int, unsigned int, int);
	int (*dup)(int);
	int (*dup2)(int, int);
	int (*dup3)(int, int, int);
	fcntl_fn fcntl, fcntl64;
	int (*poll)(struct pollfd *, nfds_t, int);
	int (*ppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
	int (*epoll_ctl)(int, int, int, struct epoll_event *);
	int (*epoll_pwait)(int, struct epoll_event *, int, int, const sigset_t *);
	ssize_t (*recvmsg)(int, struct msghdr *, int);
} real;

/* The C library's function if it is known, else the system call. */
#define CALL(name, args, ...)	\
	(__builtin_expect(real.name != NULL, 1) ? real.name args : __VA_ARGS__)

/* Descriptors that this program got from the one before it may be netmap files. */
#define INHERITED	1024

__attribute__((constructor(101))) static void
set_up(void)
{
	int fd, saved = errno;

#define FIND(name)	*(void **)&real.name = dlsym(RTLD_NEXT, #name);
	ALL_REAL(FIND)
#undef FIND
	for (fd = 3; fd < INHERITED; fd++) {
		struct sockaddr_storage peer;
		socklen_t bytes = sizeof(peer);

		/* A cheap look first: most descriptors do not exist. */
		if (syscall(SYS_getpeername, fd, &peer, &bytes) == 0 && peer.ss_family == AF_UNIX)
			unetmap_adopt(fd);
	}
	errno = saved;
}

static int
failed(long result)
{
	if (result >= 0)
		return (int)result;
	errno = (int)-result;
	return -1;
}

/* ---- open */

static int
is_device(const char *path)
{
	return path != NULL && path[0] == '/' && strcmp(path, NETMAP_DEVICE_NAME) == 0;
}

int
unetmap_hook_open(const char *path, int flags, mode_t mode)
{
	if (is_device(path))
		return failed(unetmap_open(flags));
	return CALL(open, (path, flags, mode), (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int
unetmap_hook_open64(const char *path, int flags, mode_t mode)
{
	if (is_device(path))
		return failed(unetmap_open(flags));
	return CALL(open64, (path, flags, mode), (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode));
}

int
unetmap_hook_openat(int dir, const char *path, int flags, mode_t mode)
{
	if (is_device(path))
		return failed(unetmap_open(flags));
	return CALL(openat, (dir, path, flags, mode), (int)syscall(SYS_openat, dir, path, flags, mode));
}

int
unetmap_hook_openat64(int dir, const char *path, int flags, mode_t mode)
{
	if (is_device(path))
		return failed(unetmap_open(flags));
	return CALL(openat64, (dir, path, flags, mode),
	    (int)syscall(SYS_openat, dir, path, flags | O_LARGEFILE, mode));
}

/* What -D_FORTIFY_SOURCE makes of calls without a mode. */
int
unetmap_hook_open_2(const char *path, int flags)
{
	return unetmap_hook_open(path, flags, 0);
}

int
unetmap_hook_open64_2(const char *path, int flags)
{
	return unetmap_hook_open64(path, flags, 0);
}

int
unetmap_hook_openat_2(int dir, const char *path, int flags)
{
	return unetmap_hook_openat(dir, path, flags, 0);
}

int
unetmap_hook_openat64_2(int dir, const char *path, int flags)
{
	return unetmap_hook_openat64(dir, path, flags, 0);
}

/* ---- ioctl, mmap */

int
unetmap_hook_ioctl(int fd, unsigned long request, void *arg)
{
	if (is_netmap(fd))
		return failed(unetmap_ioctl(fd, request, arg));
	return CALL(ioctl, (fd, request, arg), (int)syscall(SYS_ioctl, fd, request, arg));
}

static void *
map(void *address, size_t bytes, int prot, int flags, int fd, off_t at)
{
	long result = unetmap_mmap(address, bytes, prot, flags, fd, at);

	/* The last page of addresses holds no mapping, but errnos. */
	if ((unsigned long)result < (unsigned long)-4095L)
		return (void *)result;
	errno = (int)-result;
	return MAP_FAILED;
}

void *
unetmap_hook_mmap(void *address, size_t bytes, int prot, int flags, int fd, off_t at)
{
	if (is_netmap(fd) && !(flags & MAP_ANONYMOUS))
		return map(address, bytes, prot, flags, fd, at);
	return CALL(mmap, (address, bytes, prot, flags, fd, at),
	    (void *)syscall(SYS_mmap, address, bytes, prot, flags, fd, at));
}

void *
unetmap_hook_mmap64(void *address, size_t bytes, int prot, int flags, int fd, off_t at)
{
	if (is_netmap(fd) && !(flags & MAP_ANONYMOUS))
		return map(address, bytes, prot, flags, fd, at);
	return CALL(mmap64, (address, bytes, prot, flags, fd, at),
	    (void *)syscall(SYS_mmap, address, bytes, prot, flags, fd, at));
}

/* ---- the life of descriptors; what is known goes first: the number may be another's at once */

static void
forget(int fd)
{
	if (is_netmap(fd))
		unetmap_forget(fd);
	epoll_forget(fd);
}

int
unetmap_hook_close(int fd)
{
	forget(fd);
	return CALL(close, (fd), (int)syscall(SYS_close, fd));
}

static void
forget_range(unsigned int first, unsigned int last)
{
	unsigned int fd;

	for (fd = first; fd <= last && fd < UNETMAP_FILES; fd++)
		forget((int)fd);
}

int
unetmap_hook_close_range(unsigned int first, unsigned int last, int flags)
{
	/* With a flag they stay open for now. */
	if (!(flags & 4) && first <= last)
		forget_range(first, last);
	return CALL(close_range, (first, last, flags), (int)syscall(SYS_close_range, first, last, flags));
}

void
unetmap_hook_closefrom(int first)
{
	unsigned int from = first < 0 ? 0 : (unsigned int)first;

	forget_range(from, UNETMAP_FILES);
	if (CALL(close_range, (from, ~0U, 0), (int)syscall(SYS_close_range, from, ~0U, 0)) != 0) {
		/* A kernel before 5.9. */
		long fd, end = sysconf(_SC_OPEN_MAX);

		for (fd = from; fd < end; fd++)
			syscall(SYS_close, (int)fd);
	}
}

static int
duplicated(int fd, int copy)
{
	if (copy >= 0 && is_netmap(fd))
		unetmap_share(fd, copy);
	return copy;
}

int
unetmap_hook_dup(int fd)
{
	return duplicated(fd, CALL(dup, (fd), (int)syscall(SYS_dup, fd)));
}

int
unetmap_hook_dup2(int fd, int to)
{
	int copy;

	/* If fd is bad, to stays what it is. */
	if (fd == to || syscall(SYS_fcntl, fd, F_GETFD) < 0)
		return CALL(dup2, (fd, to), (int)(fd == to ? syscall(SYS_fcntl, fd, F_GETFD) < 0 ? -1 : fd
		    : syscall(SYS_dup3, fd, to, 0)));
	forget(to);
	copy = CALL(dup2, (fd, to), (int)syscall(SYS_dup3, fd, to, 0));
	return duplicated(fd, copy);
}

int
unetmap_hook_dup3(int fd, int to, int flags)
{
	if (fd != to && syscall(SYS_fcntl, fd, F_GETFD) >= 0 && (flags & ~O_CLOEXEC) == 0)
		forget(to);
	return duplicated(fd, CALL(dup3, (fd, to, flags), (int)syscall(SYS_dup3, fd, to, flags)));
}

static int
is_dup(int what)
{
	return what == F_DUPFD || what == F_DUPFD_CLOEXEC;
}

int
unetmap_hook_fcntl(int fd, int what, unsigned long arg)
{
	int result = CALL(fcntl, (fd, what, arg), (int)syscall(SYS_fcntl, fd, what, arg));

	return is_dup(what) ? duplicated(fd, result) : result;
}

int
unetmap_hook_fcntl64(int fd, int what, unsigned long arg)
{
	int result = CALL(fcntl64, (fd, what, arg), (int)syscall(SYS_fcntl, fd, what, arg));

	return is_dup(what) ? duplicated(fd, result) : result;
}

/* Descriptors that come from another process. */
ssize_t
unetmap_hook_recvmsg(int fd, struct msghdr *message, int flags)
{
	ssize_t got = CALL(recvmsg, (fd, message, flags), (ssize_t)syscall(SYS_recvmsg, fd, message, flags));
	struct cmsghdr *c;

	if (got < 0 || message->msg_controllen == 0)
		return got;
	for (c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
		size_t i, bytes;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0))
			continue;
		bytes = c->cmsg_len - CMSG_LEN(0);
		for (i = 0; i + sizeof(int) <= bytes; i += sizeof(int)) {
			int came, saved = errno;

			memcpy(&came, CMSG_DATA(c) + i, sizeof(came));
			unetmap_adopt(came);
			errno = saved;
		}
	}
	return got;
}

/* ---- for wait.c */

int
real_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct timespec t = { timeout / 1000, timeout % 1000 * 1000000L };

	return CALL(poll, (fds, n, timeout), real_ppoll(fds, n, timeout < 0 ? NULL : &t, NULL));
}

int
real_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec copy;

	if (real.ppoll != NULL)
		return real.ppoll(fds, n, timeout, mask);
	/* The kernel writes what is left of the time. */
	if (timeout != NULL)
		copy = *timeout;
	return (int)syscall(SYS_ppoll, fds, n, timeout != NULL ? &copy : NULL, mask, (size_t)8);
}

int
real_epoll_ctl(int set, int what, int fd, struct epoll_event *event)
{
	return CALL(epoll_ctl, (set, what, fd, event), (int)syscall(SYS_epoll_ctl, set, what, fd, event));
}

int
real_epoll_pwait(int set, struct epoll_event *events, int most, int timeout, const sigset_t *mask)
{
	return CALL(epoll_pwait, (set, events, most, timeout, mask),
	    (int)syscall(SYS_epoll_pwait, set, events, most, timeout, mask, (size_t)8));
}
