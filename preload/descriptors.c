/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Tracks which descriptors are netmap files, across duplicates and children.
 *
 *	open, recvmsg, exec	the descriptor is entered into the table
 *	dup, fcntl		the copy refers to the same file
 *	close, dup2 over it	removed before the call: another thread may reuse the
 *				number at once
 *	fork			the child has a copy of the table
 *	vfork			the child shares its parent's memory, but has its own
 *				descriptors: changes to them are not recorded
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
#include "libc_calls.h"
#include "parameters.h"

/*
 * ------------------------------------------------- threads and processes
 */

/*
 * The process that owns this memory. The page is wiped on fork, so it is 0 in a
 * child until it is set again. NULL: the kernel has no MADV_WIPEONFORK.
 */
static pid_t *owner;

int
unetmap_in_vfork_child(void)
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
static pthread_key_t exit_key;	/* its destructor runs when a thread exits */
static int has_exit_key;

static void *start_thread(void) __attribute__((noinline, cold));

static void *
start_thread(void)
{
	this_thread = unetmap_thread_start();
	if (has_exit_key)
		pthread_setspecific(exit_key, this_thread);
	return this_thread;
}

void *
unetmap_thread(void)
{
	return __builtin_expect(this_thread != NULL, 1) ? this_thread : start_thread();
}

static void
thread_exits(void *thread)
{
	/* Destructors that run later may call hooks again. */
	this_thread = NULL;
	unetmap_thread_exit(thread);
}

static void
atfork_child(void)
{
	if (owner != NULL)
		*owner = (pid_t)syscall(SYS_getpid);
	unetmap_atfork_child();
	unetmap_epoll_atfork_child();
}

/*
 * Enters a descriptor inherited over exec, if it is a netmap file. Most are not
 * sockets with a named peer, which one system call excludes.
 */
static void
adopt_inherited(int fd)
{
	struct sockaddr_un peer;
	socklen_t bytes = sizeof(peer);

	if (syscall(SYS_getpeername, fd, &peer, &bytes) == 0 && peer.sun_family == AF_UNIX &&
	    bytes > offsetof(struct sockaddr_un, sun_path))
		unetmap_fd_adopt(fd);
	else
		unetmap_parameter_adopt(fd);
}

struct entry {		/* as getdents64 writes it */
	uint64_t inode;
	int64_t offset;
	unsigned short bytes;
	unsigned char type;
	char name[];
};

#define FALLBACK_FDS	1024	/* descriptors that are checked if /proc is not mounted */

static void
adopt_all_inherited(void)
{
	long got, i, dir = syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char entries[4096] __attribute__((aligned(8)));

	if (dir < 0) {
		for (i = 3; i < FALLBACK_FDS; i++)
			adopt_inherited((int)i);
		return;
	}
	while ((got = syscall(SYS_getdents64, dir, entries, sizeof(entries))) > 0)
		for (i = 0; i < got; i += ((struct entry *)(entries + i))->bytes) {
			const char *name = ((struct entry *)(entries + i))->name;

			if (*name != '.')
				adopt_inherited(atoi(name));
		}
	syscall(SYS_close, dir);
}

__attribute__((constructor(101))) static void
initialise(void)
{
	int saved = errno;
	void *page;

	unetmap_find_libc_calls();
	page = (void *)syscall(SYS_mmap, NULL, sizeof(*owner), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page != MAP_FAILED && madvise(page, sizeof(*owner), MADV_WIPEONFORK) == 0) {
		owner = page;
		*owner = (pid_t)syscall(SYS_getpid);
	}
	has_exit_key = pthread_key_create(&exit_key, thread_exits) == 0;
	/* First, so that a child counts the fork before atfork_child runs. */
	unetmap_init();
	pthread_atfork(NULL, NULL, atfork_child);
	adopt_all_inherited();
	unetmap_parameters_init();
	errno = saved;
}

/*
 * ------------------------------------------------------------ descriptors
 */
/* Whether the descriptor is in one of the tables. */
static int
is_recorded(int fd)
{
	return is_netmap(fd) || is_epoll_related(fd) || is_parameter(fd);
}

/* Removes a descriptor from the tables, before it is closed. */
static void
remove_fd(int fd)
{
	if (!is_recorded(fd))
		return;
	if (unetmap_in_vfork_child())
		return;
	if (is_netmap(fd))
		unetmap_fd_closed(fd);
	if (is_epoll_related(fd))
		unetmap_epoll_fd_closed(fd);
	if (is_parameter(fd))
		unetmap_parameter_closed(fd);
}

int
unetmap_hook_close(int fd)
{
	remove_fd(fd);
	return CALL_LIBC(close, (fd), (int)syscall(SYS_close, fd));
}

static void
remove_range(unsigned int first, unsigned int last)
{
	unsigned int fd;

	for (fd = first; fd <= last && fd < UNETMAP_FILES; fd++)
		remove_fd((int)fd);
}

#define RANGE_CLOEXEC	4	/* CLOSE_RANGE_CLOEXEC: the descriptors stay open until exec */

int
unetmap_hook_close_range(unsigned int first, unsigned int last, int flags)
{
	if (!(flags & RANGE_CLOEXEC) && first <= last)
		remove_range(first, last);
	return CALL_LIBC(close_range, (first, last, flags), (int)syscall(SYS_close_range, first, last, flags));
}

void
unetmap_hook_closefrom(int first)
{
	unsigned int from = first < 0 ? 0 : (unsigned int)first;

	remove_range(from, UNETMAP_FILES);
	if (CALL_LIBC(close_range, (from, ~0U, 0), (int)syscall(SYS_close_range, from, ~0U, 0)) != 0) {
		/* A kernel before 5.9. */
		long fd, end = sysconf(_SC_OPEN_MAX);

		for (fd = from; fd < end; fd++)
			syscall(SYS_close, (int)fd);
	}
}

/* Enters copy, the result of a call that duplicates fd, and returns it. */
static int
record_duplicate(int fd, int copy)
{
	if (copy < 0 || copy == fd || !is_recorded(fd) || unetmap_in_vfork_child())
		return copy;
	if (is_netmap(fd))
		unetmap_fd_duplicated(fd, copy);
	if (is_epoll_related(fd))
		unetmap_epoll_fd_duplicated(fd, copy);
	if (is_parameter(fd))
		unetmap_parameter_duplicated(copy);
	return copy;
}

int
unetmap_hook_dup(int fd)
{
	return record_duplicate(fd, CALL_LIBC(dup, (fd), (int)syscall(SYS_dup, fd)));
}

/* Whether dup2 will close `to`, which is in a table: it does not if fd is invalid. */
static int
is_replaced(int fd, int to)
{
	return fd != to && is_recorded(to) && syscall(SYS_fcntl, fd, F_GETFD) >= 0;
}

int
unetmap_hook_dup2(int fd, int to)
{
	if (is_replaced(fd, to))
		remove_fd(to);
	return record_duplicate(fd, CALL_LIBC(dup2, (fd, to), fd == to ? (int)syscall(SYS_fcntl, fd, F_GETFD) < 0 ? -1 : fd
	    : (int)syscall(SYS_dup3, fd, to, 0)));
}

int
unetmap_hook_dup3(int fd, int to, int flags)
{
	if ((flags & ~O_CLOEXEC) == 0 && is_replaced(fd, to))
		remove_fd(to);
	return record_duplicate(fd, CALL_LIBC(dup3, (fd, to, flags), (int)syscall(SYS_dup3, fd, to, flags)));
}

static int
is_dup(int command)
{
	return command == F_DUPFD || command == F_DUPFD_CLOEXEC;
}

int
unetmap_hook_fcntl(int fd, int command, unsigned long arg)
{
	int result = CALL_LIBC(fcntl, (fd, command, arg), (int)syscall(SYS_fcntl, fd, command, arg));

	return is_dup(command) ? record_duplicate(fd, result) : result;
}

int
unetmap_hook_fcntl64(int fd, int command, unsigned long arg)
{
	int result = CALL_LIBC(fcntl64, (fd, command, arg), (int)syscall(SYS_fcntl, fd, command, arg));

	return is_dup(command) ? record_duplicate(fd, result) : result;
}
