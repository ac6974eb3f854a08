/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * The wait loop of poll, select and epoll when netmap files are among the descriptors.
 */
#ifndef UNETMAP_WAIT_H
#define UNETMAP_WAIT_H

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>

#define SECOND		1000000000LL
#define MILLISECOND	1000000LL
#define NO_LIMIT	(-1LL)

/* The events that a netmap file can report. */
#define POLLED	(POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM)

/* Doorbell descriptors that one wait can hold. */
#define MAX_DOORBELLS	128

enum check {
	CHECK_ALL,	/* sync the rings, and poll the other descriptors */
	CHECK_RINGS,	/* sync the rings; poll the other descriptors only if something is ready */
	CHECK_WOKEN	/* after a sleep: clear the doorbells and sync; waiter.others holds the kernel's revents */
};

struct waiter {
	/* Returns how many descriptors are ready, or -1 with errno set. */
	int (*check)(struct waiter *, enum check);
	/*
	 * Requests all wake-ups with unetmap_add_doorbells. Returns 1 if something is ready, or if a descriptor is no
	 * longer the file it was.
	 */
	int (*arm)(struct waiter *);
	/*
	 * The kernel waits for others[0, n) and for doorbells[0, used), which arm fills; the latter are copied to the
	 * elements before others.
	 */
	struct pollfd *others;
	unsigned int n, used;
	struct pollfd doorbells[MAX_DOORBELLS];
};

/* Elements of the array that waiter.others points into: MAX_DOORBELLS, then n others. */
#define WAIT_ROOM(n)	((size_t)(n) + MAX_DOORBELLS)

/*
 * Waits until something is ready, for at most limit nanoseconds, with the signal
 * mask if it is not NULL. Returns the result of the last check.
 */
int unetmap_wait(struct waiter *w, int64_t limit, const sigset_t *mask);

/*
 * Requests a wake-up for the time when a netmap file has one of these events or,
 * if more is set, when one of its rings advances. Returns the events that it has
 * now; then no wake-up was requested.
 */
short unetmap_add_doorbells(struct waiter *w, int fd, short events, int more);

static inline short
events_of(int got)
{
	return got < 0 ? POLLERR : (short)got;
}

int64_t unetmap_now(void);	/* CLOCK_MONOTONIC, ns */
int64_t unetmap_timespec_ns(const struct timespec *t);	/* NO_LIMIT if NULL or too long */
int64_t unetmap_time_left(int64_t start, int64_t limit);

#endif
