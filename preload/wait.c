/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * To the kernel a netmap file is a socket that never has anything to read. So
 * its readiness is asked of the library, and where there is none, its bells
 * wait in its place:
 *
 *	look		sync the rings; ready, or others are: done
 *	look often	for 50 us, as long as a sleep and a wake-up take
 *	arm		ask to be woken, look once more
 *	wait		in the kernel: bells, and the other descriptors
 *	woken		look; nothing: arm again
 *
 * A bell can be missed (see wait.rs of the library), so who waits looks up now
 * and then.
 *
 * A signal ends a wait wherever it comes. While this only looks, the kernel
 * could not tell us; so, but for the first moment, signals are blocked until
 * the kernel waits, which lets them in and tells.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "hooks.h"
#include "real.h"
#include "wait.h"

#define SPIN_OPEN	5000LL		/* ns; signals come in unnoticed */
#define SPIN		50000LL		/* ns */
#define LOOK_UP		(SECOND / 2)	/* ns */
#define CROWDED		MILLISECOND	/* ns; where not all bells fit */

int64_t
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * SECOND + t.tv_nsec;
}

int64_t
nanoseconds(const struct timespec *t)
{
	if (t == NULL || t->tv_sec > INT64_MAX / SECOND - 1)
		return NO_LIMIT;
	return t->tv_sec * SECOND + t->tv_nsec;
}

/* What is left of a limit that began at start. */
int64_t
left_of(int64_t start, int64_t limit)
{
	int64_t left = limit - (now() - start);

	return limit == NO_LIMIT ? INT64_MAX : left > 0 ? left : 0;
}

short
add_bells(struct waiter *w, int fd, short events, int more)
{
	struct pollfd *to = w->bells + w->used;
	unsigned int room = BELLS - w->used, used = 0;
	int got = more ? unetmap_arm_for_more(fd, events, to, room, &used) : unetmap_arm(fd, events, to, room, &used);

	w->used += used;
	return events_of(got);
}

/* Looks again and again, until something is ready or some time after start. */
static int
spin(struct waiter *w, int64_t start, int64_t limit, int64_t until)
{
	if (limit != NO_LIMIT && limit < until)
		until = limit;
	while (now() - start < until) {
		int ready;

		/* The other party may be waiting for this very core. */
		sched_yield();
		ready = w->look(w, LOOK_AGAIN);
		if (ready != 0)
			return ready;
	}
	return 0;
}

/* In the kernel, until a bell or another descriptor; -1: a signal. */
static int
sleep_once(struct waiter *w, int64_t left, const sigset_t *mask)
{
	int64_t most = w->used == BELLS ? CROWDED : LOOK_UP;
	struct pollfd *all = w->others - w->used;
	struct timespec t;

	if (left > most)
		left = most;
	t.tv_sec = left / SECOND;
	t.tv_nsec = left % SECOND;
	memcpy(all, w->bells, w->used * sizeof(*all));
	return real_ppoll(all, w->used + w->n, &t, mask);
}

static int
wait_blocked(struct waiter *w, int64_t start, int64_t limit, const sigset_t *mask)
{
	int ready = spin(w, start, limit, SPIN);

	while (ready == 0) {
		int64_t left;

		w->used = 0;
		if (w->arm(w) != 0) {
			/* It stays ready unless another thread is faster. */
			ready = w->look(w, LOOK_ALL);
			if (ready != 0 || left_of(start, limit) == 0)
				break;
			continue;
		}
		left = left_of(start, limit);
		if (sleep_once(w, left, mask) < 0)
			return -1;
		ready = w->look(w, LOOK_WOKEN);
		if (ready == 0 && left_of(start, limit) == 0)
			break;
	}
	return ready;
}

int
wait_until(struct waiter *w, int64_t limit, const sigset_t *mask)
{
	sigset_t all, before;
	int ready = w->look(w, LOOK_ALL), saved;
	int64_t start;

	if (ready != 0 || limit == 0)
		return ready;
	start = now();
	ready = spin(w, start, limit, SPIN_OPEN);
	if (ready != 0)
		return ready;
	sigfillset(&all);
	/* These are about what this thread does. */
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGFPE);
	sigdelset(&all, SIGILL);
	sigdelset(&all, SIGTRAP);
	sigdelset(&all, SIGSYS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	ready = wait_blocked(w, start, limit, mask != NULL ? mask : &before);
	saved = errno;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = saved;
	return ready;
}
