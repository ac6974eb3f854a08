/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * poll, select and epoll, where netmap files are among the descriptors.
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
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <net/netmap.h>

#include "hooks.h"

#define SECOND		1000000000LL
#define SPIN		50000LL		/* ns */
#define LOOK_UP		(SECOND / 2)	/* ns */
#define CROWDED		1000000LL	/* ns; where not all bells fit */
#define NO_LIMIT	(-1LL)
#define BELLS		512		/* that one wait takes */
#define MOST_FDS	65536		/* that one wait takes besides */

static int64_t
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * SECOND + t.tv_nsec;
}

static int64_t
nanoseconds(const struct timespec *t)
{
	if (t == NULL || t->tv_sec > INT64_MAX / SECOND - 1)
		return NO_LIMIT;
	return t->tv_sec * SECOND + t->tv_nsec;
}

static struct timespec
timespec(int64_t ns)
{
	struct timespec t = { ns / SECOND, ns % SECOND };

	return t;
}

static short
events_of(int got)
{
	return got < 0 ? POLLERR : (short)got;
}

/*
 * ------------------------------------------------------------ epoll's books
 *
 * Which netmap files are in which set, and what was asked. The kernel has them
 * in its set, too, for nothing but the hang-up when the daemon dies.
 */
struct member {
	int set, fd;		/* set -1: free */
	uint32_t events;	/* EPOLL*, asked for */
	uint32_t told;		/* edges: of these the program knows */
	unsigned int progress[2];	/* edges: as of then */
	epoll_data_t data;
};

#define MEMBERS		256
static struct member members[MEMBERS];
static int members_end;		/* all behind are free */
static int members_lock;
static unsigned char concerned[UNETMAP_FILES];	/* is a set with netmap files, or in one */

static void
lock(void)
{
	while (__atomic_exchange_n(&members_lock, 1, __ATOMIC_ACQUIRE))
		sched_yield();
}

static void
unlock(void)
{
	__atomic_store_n(&members_lock, 0, __ATOMIC_RELEASE);
}

/* The thread that had the lock is not in the child. */
__attribute__((constructor)) static void
watch_forks(void)
{
	pthread_atfork(NULL, NULL, unlock);
}

static int
is_concerned(int fd)
{
	return (unsigned int)fd < UNETMAP_FILES &&
	    __builtin_expect(__atomic_load_n(&concerned[fd], __ATOMIC_RELAXED), 0);
}

/* The descriptor is closed. */
void
epoll_forget(int fd)
{
	int i;

	if (!is_concerned(fd))
		return;
	lock();
	for (i = 0; i < members_end; i++)
		if (members[i].set == fd || (members[i].set >= 0 && members[i].fd == fd))
			members[i].set = -1;
	__atomic_store_n(&concerned[fd], 0, __ATOMIC_RELAXED);
	unlock();
}

/* Copies a set's members; how many. */
static int
members_of(int set, struct member *to)
{
	int i, n = 0;

	if (!is_concerned(set))
		return 0;
	lock();
	for (i = 0; i < members_end; i++)
		if (members[i].set == set)
			to[n++] = members[i];
	unlock();
	return n;
}

int
epoll_has_netmap(int fd)
{
	struct member all[MEMBERS];

	return members_of(fd, all) > 0;
}

static struct member *
find(int set, int fd)
{
	int i;

	for (i = 0; i < members_end; i++)
		if (members[i].set == set && members[i].fd == fd)
			return &members[i];
	return NULL;
}

/* Notes what the kernel has accepted. 0, or an errno. */
static int
note(int set, int what, int fd, const struct epoll_event *event)
{
	struct member *m;
	int error = 0;

	lock();
	m = find(set, fd);
	if (what == EPOLL_CTL_DEL) {
		if (m != NULL)
			m->set = -1;
	} else {
		int i;

		for (i = 0; m == NULL && i < MEMBERS; i++)
			if (i == members_end || members[i].set < 0)
				m = &members[i];
		if (m == NULL) {
			error = ENOSPC;
		} else {
			if (m == &members[members_end])
				members_end++;
			*m = (struct member){ .set = set, .fd = fd, .events = event->events, .data = event->data };
			__atomic_store_n(&concerned[set], 1, __ATOMIC_RELAXED);
			__atomic_store_n(&concerned[fd], 1, __ATOMIC_RELAXED);
		}
	}
	unlock();
	return error;
}

int
unetmap_hook_epoll_ctl(int set, int what, int fd, struct epoll_event *event)
{
	struct epoll_event hang_up;
	int error;

	if (!is_netmap(fd) || (unsigned int)set >= UNETMAP_FILES || (event == NULL && what != EPOLL_CTL_DEL))
		return real_epoll_ctl(set, what, fd, event);
	if (event != NULL) {
		hang_up = *event;
		hang_up.events &= EPOLLET | EPOLLONESHOT | EPOLLWAKEUP | EPOLLEXCLUSIVE;
	}
	if (real_epoll_ctl(set, what, fd, event != NULL ? &hang_up : NULL) != 0)
		return -1;
	error = note(set, what, fd, event);
	if (error == 0)
		return 0;
	real_epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
	errno = error;
	return -1;
}

#define POLLED	(POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM)

/* The member's events that are ready and that the program is to be told. */
static uint32_t
ready_of(struct member *m, int (*look)(int, short))
{
	uint32_t got, fresh = 0;
	struct member *noted;
	int which;

	if ((m->events & (POLLED | POLLERR)) == 0 && (m->events & EPOLLONESHOT))
		return 0;
	got = (uint32_t)(unsigned short)events_of(look(m->fd, (short)(m->events & POLLED)));
	if (!(m->events & EPOLLET))
		return got;
	/* What has become ready since it was told, or has become more. */
	for (which = 0; which < 2; which++) {
		uint32_t bits = which == 0 ? POLLIN | POLLRDNORM : POLLOUT | POLLWRNORM;
		unsigned int progress;

		/* What is ready is not synced by a look. */
		if (m->told & bits)
			unetmap_ioctl(m->fd, which == 0 ? NIOCRXSYNC : NIOCTXSYNC, NULL);
		progress = unetmap_progress(m->fd, which);
		if ((got & bits) && (!(m->told & bits) || progress != m->progress[which]))
			fresh |= got & bits;
		m->progress[which] = progress;
	}
	fresh |= got & POLLERR & ~m->told;
	m->told = got;
	lock();
	noted = find(m->set, m->fd);
	if (noted != NULL) {
		noted->told = m->told;
		memcpy(noted->progress, m->progress, sizeof(m->progress));
	}
	unlock();
	return fresh;
}

static int
just_look(int fd, short events)
{
	return unetmap_poll(fd, events, 0);
}

/* Writes the members that are ready; how many. */
static int
report(struct member *m, int n, struct epoll_event *events, int most, int (*look)(int, short))
{
	int i, out = 0;

	for (i = 0; i < n && out < most; i++) {
		uint32_t got = ready_of(&m[i], look);

		if (got == 0)
			continue;
		events[out].events = got;
		events[out++].data = m[i].data;
		if (m[i].events & EPOLLONESHOT) {
			struct member *noted;

			m[i].events = EPOLLONESHOT;
			lock();
			noted = find(m[i].set, m[i].fd);
			if (noted != NULL)
				noted->events = EPOLLONESHOT;
			unlock();
		}
	}
	return out;
}

/*
 * ------------------------------------------------------------------ waiting
 */

/* Asks for wake-ups of a netmap file; its events, or its bells are added. */
static short
arm(int fd, short events, struct pollfd *wait, unsigned int *used)
{
	unsigned int more = 0;
	short got = events_of(unetmap_arm(fd, events, wait + *used, BELLS - *used, &more));

	*used += more;
	return got;
}

/* What is left of a limit that began at start. */
static int64_t
left_of(int64_t start, int64_t limit)
{
	int64_t left = limit - (now() - start);

	return limit == NO_LIMIT ? INT64_MAX : left > 0 ? left : 0;
}

static int64_t
slice(int64_t left, unsigned int used)
{
	int64_t most = used == BELLS ? CROWDED : LOOK_UP;

	return left < most ? left : most;
}

static int
epoll_until(int set, struct epoll_event *events, int most, int64_t limit, const sigset_t *mask)
{
	static unsigned int turns;
	struct member m[MEMBERS];
	struct pollfd wait[BELLS + 1];
	int64_t start = now();
	int n = members_of(set, m);

	for (;;) {
		struct timespec t;
		unsigned int used = 0;
		int64_t left;
		int i, out = 0, others = 0, r;

		/* Where not all fit, now these are first, now those. */
		if (__atomic_fetch_add(&turns, 1, __ATOMIC_RELAXED) & 1) {
			others = real_epoll_pwait(set, events, most, 0, NULL);
			if (others < 0)
				return -1;
			out = others;
		}
		out += report(m, n, events + out, most - out, just_look);
		if (others == 0 && out < most) {
			others = real_epoll_pwait(set, events + out, most - out, 0, NULL);
			if (others < 0)
				return out > 0 ? out : -1;
			out += others;
		}
		left = left_of(start, limit);
		if (out > 0 || left == 0)
			return out;
		if (now() - start < SPIN) {
			sched_yield();
			continue;
		}
		for (i = 0, r = 0; i < n && r == 0; i++)
			if (!((m[i].events & EPOLLET) && m[i].told != 0))
				r = arm(m[i].fd, (short)(m[i].events & POLLED), wait, &used);
		if (r != 0)
			continue;
		/* Edges of what is ready already: nobody rings for them. */
		for (i = 0; i < n; i++)
			if ((m[i].events & EPOLLET) && m[i].told != 0) {
				short more = (short)(m[i].events & POLLED & ~m[i].told);

				left = left < CROWDED ? left : CROWDED;
				if (more != 0 && arm(m[i].fd, more, wait, &used) != 0)
					break;
			}
		if (i < n)
			continue;
		wait[used] = (struct pollfd){ .fd = set, .events = POLLIN };
		t = timespec(slice(left, used));
		if (real_ppoll(wait, used + 1, &t, mask) < 0)
			return -1;
		for (i = 0; i < n; i++)
			if (!(m[i].events & EPOLLET))
				unetmap_woken(m[i].fd, (short)(m[i].events & POLLED));
	}
}

int
unetmap_hook_epoll_pwait(int set, struct epoll_event *events, int most, int timeout, const sigset_t *mask)
{
	if (!is_concerned(set) || most <= 0 || !epoll_has_netmap(set))
		return real_epoll_pwait(set, events, most, timeout, mask);
	return epoll_until(set, events, most, timeout < 0 ? NO_LIMIT : timeout * 1000000LL, mask);
}

int
unetmap_hook_epoll_wait(int set, struct epoll_event *events, int most, int timeout)
{
	return unetmap_hook_epoll_pwait(set, events, most, timeout, NULL);
}

int
unetmap_hook_epoll_pwait2(int set, struct epoll_event *events, int most, const struct timespec *timeout,
    const sigset_t *mask)
{
	if (!is_concerned(set) || most <= 0 || !epoll_has_netmap(set))
		return (int)syscall(SYS_epoll_pwait2, set, events, most, timeout, mask, (size_t)8);
	return epoll_until(set, events, most, nanoseconds(timeout), mask);
}

/* ---- poll */

/* A set of epoll's with netmap files in it is asked of both. */
static int
is_ours(int fd)
{
	return is_netmap(fd) || (is_concerned(fd) && epoll_has_netmap(fd));
}

/* Runs step on each netmap file of fds; how many have events. */
static int
each(struct pollfd *fds, nfds_t n, const struct pollfd *others, int (*step)(int, short))
{
	nfds_t i;
	int ready = 0;

	for (i = 0; i < n; i++) {
		struct member m[MEMBERS];
		int k, members;

		if (others[i].fd < 0 && fds[i].fd >= 0) {
			fds[i].revents = events_of(step(fds[i].fd, fds[i].events));
			ready += fds[i].revents != 0;
			continue;
		}
		members = fds[i].events & POLLIN ? members_of(fds[i].fd, m) : 0;
		for (k = 0; k < members; k++)
			if (step(m[k].fd, (short)(m[k].events & POLLED)) != 0)
				break;
		fds[i].revents = members > 0 && k < members ? POLLIN : 0;
		ready += fds[i].revents != 0;
	}
	return ready;
}

/* Asks for wake-ups of all netmap files; not 0: something is ready now. */
static int
arm_all(struct pollfd *fds, nfds_t n, const struct pollfd *others, struct pollfd *bells, unsigned int *used)
{
	nfds_t i;

	for (i = 0; i < n; i++) {
		struct member m[MEMBERS];
		int k, members;

		if (others[i].fd < 0 && fds[i].fd >= 0) {
			if (arm(fds[i].fd, fds[i].events, bells, used) != 0)
				return 1;
			continue;
		}
		members = fds[i].events & POLLIN ? members_of(fds[i].fd, m) : 0;
		for (k = 0; k < members; k++)
			if (arm(m[k].fd, (short)(m[k].events & POLLED), bells, used) != 0)
				return 1;
	}
	return 0;
}

/*
 * Waits for the other descriptors, and for the bells before them, and adds what
 * they have to the events. How many descriptors have any, or -1.
 */
static int
others_too(struct pollfd *fds, nfds_t n, struct pollfd *others, unsigned int used, int64_t ns, const sigset_t *mask)
{
	struct timespec t = timespec(ns);
	nfds_t i;
	int ready = 0;

	if (real_ppoll(others - used, used + n, &t, mask) < 0)
		return -1;
	for (i = 0; i < n; i++) {
		if (others[i].fd >= 0)
			fds[i].revents |= others[i].revents;
		ready += fds[i].revents != 0;
	}
	return ready;
}

static int
poll_until(struct pollfd *fds, nfds_t n, int64_t limit, const sigset_t *mask)
{
	struct pollfd wait[BELLS + 1 + (n <= MOST_FDS ? n : 0)], bells[BELLS];
	struct pollfd *others = wait + BELLS;
	int64_t start = 0, left;
	nfds_t i;
	int foreign = 0, ready;

	if (n > MOST_FDS) {
		errno = ENOMEM;
		return -1;
	}
	others[0].fd = -1;
	for (i = 0; i < n; i++) {
		others[i] = (struct pollfd){ .fd = is_netmap(fds[i].fd) ? -1 : fds[i].fd, .events = fds[i].events };
		foreign |= others[i].fd >= 0;
	}
	ready = each(fds, n, others, just_look);
	if (foreign && (ready = others_too(fds, n, others, 0, 0, mask)) < 0)
		return -1;
	if (ready > 0 || limit == 0)
		return ready;
	start = now();
	while (now() - start < SPIN && left_of(start, limit) > 0) {
		sched_yield();
		ready = each(fds, n, others, just_look);
		if (ready > 0)
			return foreign ? others_too(fds, n, others, 0, 0, NULL) : ready;
	}
	for (;;) {
		unsigned int used = 0;

		if (arm_all(fds, n, others, bells, &used)) {
			/* It stays ready unless another thread is faster. */
			ready = each(fds, n, others, just_look);
			if (ready > 0)
				return foreign ? others_too(fds, n, others, 0, 0, NULL) : ready;
			continue;
		}
		left = left_of(start, limit);
		memcpy(others - used, bells, used * sizeof(bells[0]));
		for (i = 0; i < n; i++)
			fds[i].revents = 0;
		ready = others_too(fds, n, others, used, slice(left, used), mask);
		if (ready < 0)
			return -1;
		if (each(fds, n, others, unetmap_woken) > 0 || ready > 0) {
			/* Once more those that each() has overwritten. */
			ready = others_too(fds, n, others, 0, 0, NULL);
			if (ready != 0)
				return ready;
		}
		if (left_of(start, limit) == 0)
			return 0;
	}
}

static int
has_ours(const struct pollfd *fds, nfds_t n)
{
	nfds_t i;

	for (i = 0; i < n; i++)
		if (is_ours(fds[i].fd))
			return 1;
	return 0;
}

int
unetmap_hook_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	if (!has_ours(fds, n))
		return real_ppoll(fds, n, timeout, mask);
	if (timeout != NULL && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= SECOND)) {
		errno = EINVAL;
		return -1;
	}
	return poll_until(fds, n, nanoseconds(timeout), mask);
}

int
unetmap_hook_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	int64_t limit = timeout < 0 ? NO_LIMIT : timeout * 1000000LL;
	int got;

	if (!has_ours(fds, n))
		return real_poll(fds, n, timeout);
	if (n != 1 || !is_netmap(fds[0].fd))
		return poll_until(fds, n, limit, NULL);
	/* One netmap file and nothing else is what most programs wait for. */
	got = unetmap_poll(fds[0].fd, fds[0].events, limit);
	if (got < 0) {
		errno = -got;
		return -1;
	}
	fds[0].revents = (short)got;
	return got != 0;
}

/* What -D_FORTIFY_SOURCE makes of them: with the size of the array. */
int
unetmap_hook_poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t bytes)
{
	if (bytes / sizeof(*fds) < n)
		abort();
	return unetmap_hook_poll(fds, n, timeout);
}

int
unetmap_hook_ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask,
    size_t bytes)
{
	if (bytes / sizeof(*fds) < n)
		abort();
	return unetmap_hook_ppoll(fds, n, timeout, mask);
}

/* ---- select: the same as a poll */

#define SEES_READ	(POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR)
#define SEES_WRITE	(POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR)
#define SEES_EXCEPT	POLLPRI

static int
is_in(int fd, const fd_set *set)
{
	return set != NULL && FD_ISSET(fd, set);
}

static int
select_has_ours(int n, const fd_set *in, const fd_set *out, const fd_set *except)
{
	int fd;

	for (fd = 0; fd < n && fd < FD_SETSIZE; fd++)
		if ((is_in(fd, in) || is_in(fd, out) || is_in(fd, except)) && is_ours(fd))
			return 1;
	return 0;
}

static int
select_until(int n, fd_set *in, fd_set *out, fd_set *except, int64_t limit, const sigset_t *mask)
{
	struct pollfd fds[FD_SETSIZE];
	int fd, used = 0, i, bits = 0;

	for (fd = 0; fd < n && fd < FD_SETSIZE; fd++) {
		short events = (short)((is_in(fd, in) ? POLLIN | POLLRDNORM : 0) | (is_in(fd, out) ? POLLOUT | POLLWRNORM : 0) |
		    (is_in(fd, except) ? POLLPRI : 0));

		if (events != 0)
			fds[used++] = (struct pollfd){ .fd = fd, .events = events };
	}
	if (poll_until(fds, (nfds_t)used, limit, mask) < 0)
		return -1;
	for (i = 0; i < used; i++)
		if (fds[i].revents & POLLNVAL) {
			errno = EBADF;
			return -1;
		}
	for (i = 0; i < used; i++) {
		fd = fds[i].fd;
		if (is_in(fd, in) && !(fds[i].revents & SEES_READ))
			FD_CLR(fd, in);
		if (is_in(fd, out) && !(fds[i].revents & SEES_WRITE))
			FD_CLR(fd, out);
		if (is_in(fd, except) && !(fds[i].revents & SEES_EXCEPT))
			FD_CLR(fd, except);
		bits += is_in(fd, in) + is_in(fd, out) + is_in(fd, except);
	}
	return bits;
}

int
unetmap_hook_pselect(int n, fd_set *in, fd_set *out, fd_set *except, const struct timespec *timeout,
    const sigset_t *mask)
{
	if (!select_has_ours(n, in, out, except)) {
		struct timespec copy;
		struct {
			const sigset_t *mask;
			size_t bytes;
		} how = { mask, 8 };

		if (timeout != NULL)
			copy = *timeout;
		return (int)syscall(SYS_pselect6, n, in, out, except, timeout != NULL ? &copy : NULL, &how);
	}
	return select_until(n, in, out, except, nanoseconds(timeout), mask);
}

int
unetmap_hook_select(int n, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout)
{
	int64_t limit = NO_LIMIT, start;
	struct timespec t;
	int got;

	if (timeout != NULL) {
		if (timeout->tv_sec < 0 || timeout->tv_usec < 0) {
			errno = EINVAL;
			return -1;
		}
		t.tv_sec = timeout->tv_sec + timeout->tv_usec / 1000000;
		t.tv_nsec = timeout->tv_usec % 1000000 * 1000;
		limit = nanoseconds(&t);
	}
	if (!select_has_ours(n, in, out, except)) {
		/* The kernel writes what is left of the time, as select does on Linux. */
		got = (int)syscall(SYS_pselect6, n, in, out, except, timeout != NULL ? &t : NULL, NULL);
	} else {
		start = now();
		got = select_until(n, in, out, except, limit, NULL);
		if (limit != NO_LIMIT)
			t = timespec(left_of(start, limit));
	}
	if (timeout != NULL) {
		timeout->tv_sec = t.tv_sec;
		timeout->tv_usec = t.tv_nsec / 1000;
	}
	return got;
}
