/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * select: a poll of the same descriptors. Programs make sets larger than
 * FD_SETSIZE, so the sets are words here.
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
#include "real.h"
#include "wait.h"

#define WORD		(CHAR_BIT * (int)sizeof(unsigned long))
#define FEW_FDS		64	/* that need no memory of their own */

#define ASKS_READ	(POLLIN | POLLRDNORM)
#define ASKS_WRITE	(POLLOUT | POLLWRNORM)
#define ASKS_EXCEPT	POLLPRI
#define SEES_READ	(POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR)
#define SEES_WRITE	(POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR)
#define SEES_EXCEPT	POLLPRI

struct sets {
	int n;
	unsigned long *in, *out, *except;	/* or NULL */
};

static unsigned long
word(const unsigned long *set, int i)
{
	return set != NULL ? set[i] : 0;
}

static int
is_in(const unsigned long *set, int fd)
{
	return (word(set, fd / WORD) >> fd % WORD) & 1;
}

/* The next descriptor that is in one of the sets, from fd on; n: none is. */
static int
next(const struct sets *s, int fd)
{
	while (fd < s->n) {
		unsigned long any = word(s->in, fd / WORD) | word(s->out, fd / WORD) | word(s->except, fd / WORD);

		any >>= fd % WORD;
		if (any != 0) {
			fd += __builtin_ctzl(any);
			return fd < s->n ? fd : s->n;
		}
		fd = (fd / WORD + 1) * WORD;
	}
	return s->n;
}

/* How many descriptors there are to poll; 0: none of them is ours. */
static int
count(const struct sets *s)
{
	int fd, n = 0, ours = 0;

	for (fd = next(s, 0); fd < s->n; fd = next(s, fd + 1)) {
		ours |= is_ours(fd);
		n++;
	}
	return ours ? n : 0;
}

/* Leaves a bit that is set only if it is seen. Whether it stays. */
static int
keep(unsigned long *set, int fd, int seen)
{
	if (!is_in(set, fd))
		return 0;
	if (!seen)
		set[fd / WORD] &= ~(1UL << fd % WORD);
	return seen;
}

static int
select_in(struct pollfd *fds, int n, struct sets *s, int64_t limit, const sigset_t *mask)
{
	int fd, i = 0, bits = 0;

	for (fd = next(s, 0); fd < s->n && i < n; fd = next(s, fd + 1)) {
		short events = (short)((is_in(s->in, fd) ? ASKS_READ : 0) | (is_in(s->out, fd) ? ASKS_WRITE : 0) |
		    (is_in(s->except, fd) ? ASKS_EXCEPT : 0));

		fds[i++] = (struct pollfd){ .fd = fd, .events = events };
	}
	n = i;
	if (poll_ours(fds, (nfds_t)n, limit, mask) < 0)
		return -1;
	for (i = 0; i < n; i++)
		if (fds[i].revents & POLLNVAL) {
			errno = EBADF;
			return -1;
		}
	for (i = 0; i < n; i++) {
		short got = fds[i].revents;

		bits += keep(s->in, fds[i].fd, (got & SEES_READ) != 0);
		bits += keep(s->out, fds[i].fd, (got & SEES_WRITE) != 0);
		bits += keep(s->except, fds[i].fd, (got & SEES_EXCEPT) != 0);
	}
	return bits;
}

static int
select_ours(int n, struct sets *s, int64_t limit, const sigset_t *mask)
{
	struct pollfd few[FEW_FDS], *fds;
	size_t bytes = (size_t)n * sizeof(*fds);
	int bits, saved;

	if (n <= FEW_FDS)
		return select_in(few, n, s, limit, mask);
	fds = (struct pollfd *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fds == MAP_FAILED)
		return -1;
	bits = select_in(fds, n, s, limit, mask);
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
		return real_pselect(n, in, out, except, timeout, mask);
	if (timeout != NULL && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= SECOND)) {
		errno = EINVAL;
		return -1;
	}
	return select_ours(fds, &s, nanoseconds(timeout), mask);
}

int
unetmap_hook_select(int n, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout)
{
	struct sets s = sets(n, in, out, except);
	struct timespec t = { 0, 0 };
	int64_t limit = NO_LIMIT, start, left;
	int got, fds = count(&s);

	if (fds == 0 && real.select != NULL)
		return real.select(n, in, out, except, timeout);
	if (timeout != NULL) {
		if (timeout->tv_sec < 0 || timeout->tv_usec < 0) {
			errno = EINVAL;
			return -1;
		}
		t.tv_sec = timeout->tv_sec + timeout->tv_usec / 1000000;
		t.tv_nsec = timeout->tv_usec % 1000000 * 1000;
		limit = nanoseconds(&t);
	}
	start = now();
	got = fds == 0 ? real_pselect(n, in, out, except, timeout != NULL ? &t : NULL, NULL)
	    : select_ours(fds, &s, limit, NULL);
	/* What is left of the time, as select writes it on Linux. */
	if (timeout != NULL && limit != NO_LIMIT) {
		left = left_of(start, limit);
		timeout->tv_sec = left / SECOND;
		timeout->tv_usec = left % SECOND / 1000;
	}
	return got;
}
