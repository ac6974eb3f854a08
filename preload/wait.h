/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * How poll, select and epoll wait where netmap files are among the descriptors.
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

/* The events that a netmap file has. */
#define POLLED	(POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM)

/* Bells that one wait takes. */
#define BELLS	128

enum look {
	LOOK_ALL,	/* sync the rings, and ask the kernel about the other descriptors */
	LOOK_AGAIN,	/* the rings; the others only if something is ready */
	LOOK_WOKEN	/* take bells back, and sync; what the kernel said of the others is in waiter.others */
};

struct waiter {
	/* How many descriptors are ready; -1 and errno. */
	int (*look)(struct waiter *, enum look);
	/* Asks for all wake-ups, by add_bells; 1: something is ready now, or has become another. */
	int (*arm)(struct waiter *);
	/* What the kernel waits for: others[0, n), and before that the bells, which arm has put into bells[0, used). */
	struct pollfd *others;
	unsigned int n, used;
	struct pollfd bells[BELLS];
};

/* Room for the descriptors that a waiter waits for, with BELLS more before. */
#define WAIT_ROOM(n)	((size_t)(n) + BELLS)

/*
 * Waits until something is ready, for at most limit nanoseconds, with the mask
 * if it is not NULL: what the last look said.
 */
int wait_until(struct waiter *w, int64_t limit, const sigset_t *mask);

/*
 * Asks for a wake-up when a netmap file has one of these events or, with more,
 * when it has more of what it has. Its events if it has one now.
 */
short add_bells(struct waiter *w, int fd, short events, int more);

static inline short
events_of(int got)
{
	return got < 0 ? POLLERR : (short)got;
}

int64_t now(void);
int64_t nanoseconds(const struct timespec *t);	/* NULL, or too long: NO_LIMIT */
int64_t left_of(int64_t start, int64_t limit);

#endif
