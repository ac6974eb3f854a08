/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * For the kernel a netmap file is a socket that is never readable. So the
 * library determines its readiness, and the kernel waits for its doorbells:
 *
 *	check		sync the rings; return if they or other descriptors are ready
 *	spin		check repeatedly for 50 us, as long as a sleep and a wake-up take
 *	arm		request wake-ups, then check once more
 *	sleep		in ppoll: doorbells and the other descriptors
 *	woken		check; if nothing is ready, arm again
 *
 * A notification can be lost (see port/poll.rs of crates/core), so a sleep ends
 * after at most WAKE_CHECK_NS.
 *
 * A wait is a cancellation point, as poll is: at its beginning and in ppoll.
 * Nothing is locked there.
 *
 * A signal ends a wait at any step. During a spin the kernel cannot report one,
 * so signals are blocked after the first SPIN_UNBLOCKED_NS, until ppoll unblocks
 * and reports them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "hooks.h"
#include "libc_calls.h"
#include "wait.h"

#define SPIN_UNBLOCKED_NS	5000LL		/* signals are not blocked, and their arrival is not noticed */
#define SPIN_NS			50000LL
#define WAKE_CHECK_NS		(SECOND / 2)
#define CROWDED_CHECK_NS	MILLISECOND	/* used when not all doorbells fit */

int64_t
unetmap_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * SECOND + t.tv_nsec;
}

int64_t
unetmap_timespec_ns(const struct timespec *t)
{
	if (t == NULL || t->tv_sec > INT64_MAX / SECOND - 1)
		return NO_LIMIT;
	return t->tv_sec * SECOND + t->tv_nsec;
}

/* The time left of a limit that began at start. */
int64_t
unetmap_time_left(int64_t start, int64_t limit)
{
	int64_t left = limit - (unetmap_now() - start);

	return limit == NO_LIMIT ? INT64_MAX : left > 0 ? left : 0;
}

short
unetmap_add_doorbells(struct waiter *w, int fd, short events, int more)
{
	struct pollfd *to = w->doorbells + w->used;
	unsigned int room = MAX_DOORBELLS - w->used, used = 0;
	int got = more ? unetmap_arm_for_more(fd, events, to, room, &used) : unetmap_arm(fd, events, to, room, &used);

	w->used += used;
	return events_of(got);
}

/* Checks repeatedly until something is ready, or until `until` ns after start, but not beyond the limit. */
static int
spin(struct waiter *w, int64_t start, int64_t limit, int64_t until)
{
	if (limit != NO_LIMIT && limit < until)
		until = limit;
	while (unetmap_now() - start < until) {
		int ready;

		/* The peer may be waiting for this very CPU. */
		sched_yield();
		ready = w->check(w, CHECK_RINGS);
		if (ready != 0)
			return ready;
	}
	return 0;
}

/* Sleeps until a doorbell or another descriptor is readable. Returns -1 if a signal came. */
static int
sleep_once(struct waiter *w, int64_t left, const sigset_t *mask)
{
	int64_t most = w->used == MAX_DOORBELLS ? CROWDED_CHECK_NS : WAKE_CHECK_NS;
	struct pollfd *all = w->others - w->used;
	struct timespec t;

	if (left > most)
		left = most;
	t.tv_sec = left / SECOND;
	t.tv_nsec = left % SECOND;
	memcpy(all, w->doorbells, w->used * sizeof(*all));
	return unetmap_libc_ppoll(all, w->used + w->n, &t, mask);
}

/* The rest of unetmap_wait, with signals blocked. */
static int
wait_blocked(struct waiter *w, int64_t start, int64_t limit, const sigset_t *mask)
{
	int ready = spin(w, start, limit, SPIN_NS);

	while (ready == 0) {
		int64_t left;

		w->used = 0;
		if (w->arm(w) != 0) {
			/* It stays ready unless another thread consumes it first. */
			ready = w->check(w, CHECK_ALL);
			if (ready != 0 || unetmap_time_left(start, limit) == 0)
				break;
			continue;
		}
		left = unetmap_time_left(start, limit);
		if (sleep_once(w, left, mask) < 0)
			return -1;
		ready = w->check(w, CHECK_WOKEN);
		if (ready == 0 && unetmap_time_left(start, limit) == 0)
			break;
	}
	return ready;
}

int
unetmap_wait(struct waiter *w, int64_t limit, const sigset_t *mask)
{
	sigset_t all, before;
	int64_t start;
	int ready, saved;

	pthread_testcancel();
	ready = w->check(w, CHECK_ALL);
	if (ready != 0 || limit == 0)
		return ready;
	start = unetmap_now();
	ready = spin(w, start, limit, SPIN_UNBLOCKED_NS);
	if (ready != 0)
		return ready;
	sigfillset(&all);
	/* These report faults of this thread's own instructions. */
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
