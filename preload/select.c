/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * select, as a poll of the same descriptors. Programs may pass sets larger than
 * FD_SETSIZE, so a set is an array of words here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hooks.h"
#include "poll.h"
#include "libc_calls.h"
#include "wait.h"

#define WORD_BITS	(CHAR_BIT * (int)sizeof(unsigned long))
#define STACK_FDS	64	/* up to this many need no mmap */

/* Events that are polled for a set, and revents that make its bit stay set. */
#define READ_EVENTS	(POLLIN | POLLRDNORM)
#define WRITE_EVENTS	(POLLOUT | POLLWRNORM)
#define EXCEPT_EVENTS	POLLPRI
#define READ_REVENTS	(POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR)
#define WRITE_REVENTS	(POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR)
#define EXCEPT_REVENTS	POLLPRI

struct sets {
	int n;
	unsigned long *in, *out, *except;	/* each may be NULL */
};

static unsigned long
word(const unsigned long *set, int i)
{
	return set != NULL ? set[i] : 0;
}

static int
is_in(const unsigned long *set, int fd)
{
	return (word(set, fd / WORD_BITS) >> fd % WORD_BITS) & 1;
}

/* Returns the first descriptor at or after fd that is in one of the sets, or n. */
static int
next_fd(const struct sets *s, int fd)
{
	while (fd < s->n) {
		int i = fd / WORD_BITS;
		unsigned long any = word(s->in, i) | word(s->out, i) | word(s->except, i);

		any >>= fd % WORD_BITS;
		if (any != 0) {
			fd += __builtin_ctzl(any);
			return fd < s->n ? fd : s->n;
		}
		fd = (fd / WORD_BITS + 1) * WORD_BITS;
	}
	return s->n;
}

/* Returns how many descriptors the sets contain, or 0 if the C library can poll all of them. */
static int
count(const struct sets *s)
{
	int fd, n = 0, polled_here = 0;

	for (fd = next_fd(s, 0); fd < s->n; fd = next_fd(s, fd + 1)) {
		polled_here |= unetmap_is_polled_here(fd);
		n++;
	}
	return polled_here ? n : 0;
}

/* Clears the descriptor's bit unless it is ready. Returns whether the bit was set and stays so. */
static int
keep_if_ready(unsigned long *set, int fd, int ready)
{
	if (!is_in(set, fd))
		return 0;
	if (!ready)
		set[fd / WORD_BITS] &= ~(1UL << fd % WORD_BITS);
	return ready;
}

/* Selects; fds has room for n elements. */
static int
select_with_room(struct pollfd *fds, int n, struct sets *s, int64_t limit, const sigset_t *mask)
{
	int fd, i = 0, bits = 0;

	for (fd = next_fd(s, 0); fd < s->n && i < n; fd = next_fd(s, fd + 1)) {
		short events = (short)((is_in(s->in, fd) ? READ_EVENTS : 0) | (is_in(s->out, fd) ? WRITE_EVENTS : 0) |
		    (is_in(s->except, fd) ? EXCEPT_EVENTS : 0));

		fds[i++] = (struct pollfd){ .fd = fd, .events = events };
	}
	n = i;
	if (unetmap_poll_fds(fds, (nfds_t)n, limit, mask) < 0)
		return -1;
	for (i = 0; i < n; i++)
		if (fds[i].revents & POLLNVAL) {
			errno = EBADF;
			return -1;
		}
	for (i = 0; i < n; i++) {
		short got = fds[i].revents;

		bits += keep_if_ready(s->in, fds[i].fd, (got & READ_REVENTS) != 0);
		bits += keep_if_ready(s->out, fds[i].fd, (got & WRITE_REVENTS) != 0);
		bits += keep_if_ready(s->except, fds[i].fd, (got & EXCEPT_REVENTS) != 0);
	}
	return bits;
}

static int
select_fds(int n, struct sets *s, int64_t limit, const sigset_t *mask)
{
	struct pollfd stack[STACK_FDS], *fds;
	size_t bytes = (size_t)n * sizeof(*fds);
	int bits, saved;

	if (n <= STACK_FDS)
		return select_with_room(stack, n, s, limit, mask);
	fds = (struct pollfd *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fds == MAP_FAILED)
		return -1;
	bits = select_with_room(fds, n, s, limit, mask);
	saved = errno;
	syscall(SYS_munmap, fds, bytes);
	errno = saved;
	return bits;
}

static struct sets
sets(int n, fd_set *in, fd_set *out, fd_set *except)
{
	return (struct sets){ n, (unsigned long *)in, (unsigned long *)out, (unsigned long *)except };
}

int
unetmap_hook_pselect(int n, fd_set *in, fd_set *out, fd_set *except, const struct timespec *timeout,
    const sigset_t *mask)
{
	struct sets s = sets(n, in, out, except);
	int fds = count(&s);

	if (fds == 0)
		return unetmap_libc_pselect(n, in, out, except, timeout, mask);
	if (timeout != NULL && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= SECOND)) {
		errno = EINVAL;
		return -1;
	}
	return select_fds(fds, &s, unetmap_timespec_ns(timeout), mask);
}

int
unetmap_hook_select(int n, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout)
{
	struct sets s = sets(n, in, out, except);
	struct timespec t = { 0, 0 };
	int64_t limit = NO_LIMIT, start, left;
	int got, fds = count(&s);

	if (fds == 0 && unetmap_libc.select != NULL)
		return unetmap_libc.select(n, in, out, except, timeout);
	if (timeout != NULL) {
		if (timeout->tv_sec < 0 || timeout->tv_usec < 0) {
			errno = EINVAL;
			return -1;
		}
		t.tv_sec = timeout->tv_sec + timeout->tv_usec / 1000000;
		t.tv_nsec = timeout->tv_usec % 1000000 * 1000;
		limit = unetmap_timespec_ns(&t);
	}
	start = unetmap_now();
	got = fds == 0 ? unetmap_libc_pselect(n, in, out, except, timeout != NULL ? &t : NULL, NULL)
	    : select_fds(fds, &s, limit, NULL);
	/* On Linux select writes the time left to the timeout. */
	if (timeout != NULL && limit != NO_LIMIT) {
		left = unetmap_time_left(start, limit);
		timeout->tv_sec = left / SECOND;
		timeout->tv_usec = left % SECOND / 1000;
	}
	return got;
}
