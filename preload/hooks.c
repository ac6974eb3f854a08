/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Hooks of open, ioctl, mmap and recvmsg. Calls on a netmap file go to
 * crates/capi; all others are passed to the C library unchanged.
 */
#define _GNU_SOURCE
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
#include "libc_calls.h"
#include "parameters.h"

int
unetmap_result(long result)
{
	if (result >= 0)
		return (int)result;
	errno = (int)-result;
	return -1;
}

/* ---- open */

int
unetmap_is_device(const char *path)
{
	return path != NULL && path[0] == '/' && strcmp(path, NETMAP_DEVICE_NAME) == 0;
}

/* Opens the path, if it is the device's or a parameter's, and stores the result. Returns 0 if it is another's. */
static int
opens_ours(int dir, const char *path, int flags, int *fd)
{
	char room[UNETMAP_PATH_BYTES];

	if (unetmap_is_device(path))
		*fd = unetmap_result(unetmap_open(flags));
	else if ((path = unetmap_module_path(dir, path, room)) != NULL)
		*fd = unetmap_parameter_open(path, flags);
	else
		return 0;
	return 1;
}

int
unetmap_hook_open(const char *path, int flags, mode_t mode)
{
	int fd;

	if (opens_ours(AT_FDCWD, path, flags, &fd))
		return fd;
	return CALL_LIBC(open, (path, flags, mode), (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int
unetmap_hook_open64(const char *path, int flags, mode_t mode)
{
	int fd;

	if (opens_ours(AT_FDCWD, path, flags, &fd))
		return fd;
	return CALL_LIBC(open64, (path, flags, mode), (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode));
}

int
unetmap_hook_openat(int dir, const char *path, int flags, mode_t mode)
{
	int fd;

	if (opens_ours(dir, path, flags, &fd))
		return fd;
	return CALL_LIBC(openat, (dir, path, flags, mode), (int)syscall(SYS_openat, dir, path, flags, mode));
}

int
unetmap_hook_openat64(int dir, const char *path, int flags, mode_t mode)
{
	int fd;

	if (opens_ours(dir, path, flags, &fd))
		return fd;
	return CALL_LIBC(openat64, (dir, path, flags, mode),
	    (int)syscall(SYS_openat, dir, path, flags | O_LARGEFILE, mode));
}

/* Called in place of open and its variants without a mode, with -D_FORTIFY_SOURCE. */
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

int
unetmap_hook_creat(const char *path, mode_t mode)
{
	return unetmap_hook_open(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

/* ---- ioctl, mmap */

int
unetmap_hook_ioctl(int fd, unsigned long request, void *arg)
{
	int result;

	if (is_netmap(fd))
		return unetmap_result(unetmap_ioctl(fd, request, arg));
	result = CALL_LIBC(ioctl, (fd, request, arg), (int)syscall(SYS_ioctl, fd, request, arg));
	return __builtin_expect(result != -1, 1) ? result : unetmap_look_up(fd, request, arg);
}

static void *
mmap_netmap(void *address, size_t bytes, int prot, int flags, int fd, off_t at)
{
	long result = unetmap_mmap(address, bytes, prot, flags, fd, at);

	/* No mapping lies in the last page of the address space: these values are negative errnos. */
	if ((unsigned long)result < (unsigned long)-4095L)
		return (void *)result;
	errno = (int)-result;
	return MAP_FAILED;
}

/* Whether mmap is refused, and errno is set. */
static int
refuses_mmap(int fd, int flags)
{
	if (!is_parameter(fd) || (flags & MAP_ANONYMOUS) || !unetmap_parameter_refuses_mmap(fd))
		return 0;
	errno = ENODEV;
	return 1;
}

void *
unetmap_hook_mmap(void *address, size_t bytes, int prot, int flags, int fd, off_t at)
{
	if (is_netmap(fd) && !(flags & MAP_ANONYMOUS))
		return mmap_netmap(address, bytes, prot, flags, fd, at);
	if (refuses_mmap(fd, flags))
		return MAP_FAILED;
	return CALL_LIBC(mmap, (address, bytes, prot, flags, fd, at),
	    (void *)syscall(SYS_mmap, address, bytes, prot, flags, fd, at));
}

void *
unetmap_hook_mmap64(void *address, size_t bytes, int prot, int flags, int fd, off_t at)
{
	if (is_netmap(fd) && !(flags & MAP_ANONYMOUS))
		return mmap_netmap(address, bytes, prot, flags, fd, at);
	if (refuses_mmap(fd, flags))
		return MAP_FAILED;
	return CALL_LIBC(mmap64, (address, bytes, prot, flags, fd, at),
	    (void *)syscall(SYS_mmap, address, bytes, prot, flags, fd, at));
}

/* ---- recvmsg: descriptors that come from another process */

static void
adopt_received(struct msghdr *message)
{
	struct cmsghdr *c;
	int saved = errno;

	if (message->msg_controllen == 0)
		return;
	for (c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
		size_t i, bytes;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0))
			continue;
		bytes = c->cmsg_len - CMSG_LEN(0);
		for (i = 0; i + sizeof(int) <= bytes; i += sizeof(int)) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i, sizeof(fd));
			unetmap_fd_adopt(fd);
		}
	}
	errno = saved;
}

ssize_t
unetmap_hook_recvmsg(int fd, struct msghdr *message, int flags)
{
	ssize_t got = CALL_LIBC(recvmsg, (fd, message, flags), (ssize_t)syscall(SYS_recvmsg, fd, message, flags));

	if (got >= 0)
		adopt_received(message);
	return got;
}

int
unetmap_hook_recvmmsg(int fd, struct mmsghdr *messages, unsigned int n, int flags, struct timespec *timeout)
{
	int i, got = CALL_LIBC(recvmmsg, (fd, messages, n, flags, timeout),
	    (int)syscall(SYS_recvmmsg, fd, messages, n, flags, timeout));

	for (i = 0; i < got; i++)
		adopt_received(&messages[i].msg_hdr);
	return got;
}
