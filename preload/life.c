/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Which descriptors are netmap files, and what becomes of that in duplicates
 * and children.
 *
 *	open, recvmsg, exec	known from now on
 *	dup, fcntl		the copy is the same file
 *	close, dup2 over it	forgotten first: the number may be another's at once
 *	fork			the child knows what its parent knew
 *	vfork			the child has the parent's memory, but descriptors of
 *			its own: what it does with them is not noted
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "hooks.h"
#include "real.h"

/*
 * ------------------------------------------------- threads and processes
 */

/* The process whose memory this is; 0 in a child that nobody told about. NULL: the kernel cannot wipe it. */
static pid_t *owner;

/* Whether this is a child that still runs in its parent's memory. */
int
is_vforked(void)
{
	pid_t me;

	if (owner == NULL)
		return 0;
	me = (pid_t)syscall(SYS_getpid);
	if (*owner == 0)
		*owner = me;
	return *owner != me;
}

static __thread void *this_thread;
static pthread_key_t ends;
static int has_ends;

static void *begin_thread(void) __attribute__((noinline, cold));

static void *
begin_thread(void)
{
	this_thread = unetmap_thread_begins();
	if (has_ends)
		pthread_setspecific(ends, this_thread);
	return this_thread;
}

void *
unetmap_thread(void)
{
	return __builtin_expect(this_thread != NULL, 1) ? this_thread : begin_thread();
}

static void
thread_ends(void *thread)
{
	/* Destructors that come later may call again. */
	this_thread = NULL;
	unetmap_thread_ends(thread);
}

static void
forked(void)
{
	if (owner != NULL)
		*owner = (pid_t)syscall(SYS_getpid);
	unetmap_forked();
	epoll_forked();
}

/*
 * Descriptors that this program got from the one before it. Most of them are no
 * sockets with a name.
 */
static void
adopt_inherited(int fd)
{
	struct sockaddr_un peer;
	socklen_t bytes = sizeof(peer);

	if (syscall(SYS_getpeername, fd, &peer, &bytes) == 0 && peer.sun_family == AF_UNIX &&
	    bytes > offsetof(struct sockaddr_un, sun_path))
		unetmap_adopt(fd);
}

struct entry {		/* as getdents64 writes it */
	uint64_t inode;
	int64_t at;
	unsigned short bytes;
	unsigned char type;
	char name[];
};

#define SOME_FILES	1024	/* that are looked at where the kernel does not list them */

static void
adopt_all_inherited(void)
{
	long got, i, folder = syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char entries[4096] __attribute__((aligned(8)));

	if (folder < 0) {
		for (i = 3; i < SOME_FILES; i++)
			adopt_inherited((int)i);
		return;
	}
	while ((got = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0)
		for (i = 0; i < got; i += ((struct entry *)(entries + i))->bytes) {
			const char *name = ((struct entry *)(entries + i))->name;

			if (*name != '.')
				adopt_inherited(atoi(name));
		}
	syscall(SYS_close, folder);
}

__attribute__((constructor(101))) static void
set_up(void)
{
	int saved = errno;
	void *page;

	find_real();
	page = (void *)syscall(SYS_mmap, NULL, sizeof(*owner), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page != MAP_FAILED && madvise(page, sizeof(*owner), MADV_WIPEONFORK) == 0) {
		owner = page;
		*owner = (pid_t)syscall(SYS_getpid);
	}
	has_ends = pthread_key_create(&ends, thread_ends) == 0;
	/* A child counts its fork before it does anything else here. */
	unetmap_set_up();
	pthread_atfork(NULL, NULL, forked);
	adopt_all_inherited();
	errno = saved;
}

/*
 * ------------------------------------------------------------ descriptors
 */
static void
forget(int fd)
{
	if (!is_netmap(fd) && !epoll_knows(fd))
		return;
	if (is_vforked())
		return;
	if (is_netmap(fd))
		unetmap_forget(fd);
	if (epoll_knows(fd))
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

#define RANGE_CLOEXEC	4	/* CLOSE_RANGE_CLOEXEC: they stay open for now */

int
unetmap_hook_close_range(unsigned int first, unsigned int last, int flags)
{
	if (!(flags & RANGE_CLOEXEC) && first <= last)
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
	if (copy < 0 || copy == fd || (!is_netmap(fd) && !epoll_knows(fd)) || is_vforked())
		return copy;
	if (is_netmap(fd))
		unetmap_share(fd, copy);
	if (epoll_knows(fd))
		epoll_share(fd, copy);
	return copy;
}

int
unetmap_hook_dup(int fd)
{
	return duplicated(fd, CALL(dup, (fd), (int)syscall(SYS_dup, fd)));
}

/* Whether what is known of to can go: if fd is bad, to stays what it is. */
static int
goes(int fd, int to)
{
	return fd != to && (is_netmap(to) || epoll_knows(to)) && syscall(SYS_fcntl, fd, F_GETFD) >= 0;
}

int
unetmap_hook_dup2(int fd, int to)
{
	if (goes(fd, to))
		forget(to);
	return duplicated(fd, CALL(dup2, (fd, to), fd == to ? (int)syscall(SYS_fcntl, fd, F_GETFD) < 0 ? -1 : fd
	    : (int)syscall(SYS_dup3, fd, to, 0)));
}

int
unetmap_hook_dup3(int fd, int to, int flags)
{
	if ((flags & ~O_CLOEXEC) == 0 && goes(fd, to))
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
