/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * epoll, where netmap files are in a set, or in a set that is in the set.
 *
 * The kernel has them in its sets, too: a netmap file for nothing but the
 * hang-up when the daemon dies. What was asked about them stands in a book here,
 * with the sets in sets. A wait asks both, and the same descriptor is told once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <net/netmap.h>

#include "hooks.h"
#include "real.h"
#include "wait.h"

/*
 * ---------------------------------------------------------------- the book
 *
 * Written by one at a time, with signals blocked; read by anybody, who looks
 * whether it was written meanwhile.
 */
struct member {
	uint32_t set;		/* 0: free */
	int fd;
	int is_set;		/* another one */
	uint32_t events;	/* EPOLL*, asked for; EPOLLONESHOT alone: told once */
	uint64_t told;		/* edges: see TOLD */
	epoll_data_t data;
};

/*
 * What a program that asked for edges knows: the events, and how far the rings
 * were then. In one word, so that of two threads only one tells it.
 */
#define TOLD(events, in, out)	\
	((uint64_t)(events) | (uint64_t)((in) & 0xffffff) << 16 | (uint64_t)((out) & 0xffffff) << 40)
#define TOLD_EVENTS(told)	((uint32_t)(told) & 0xffff)
#define TOLD_PROGRESS(told, which)	((uint32_t)((told) >> ((which) == 0 ? 16 : 40)) & 0xffffff)

#define MEMBERS		1024
#define DEPTH		5	/* of sets in sets, which is what the kernel permits */

static struct member members[MEMBERS];
static int members_end;		/* all behind are free */
static uint32_t version;	/* odd: being written */

unsigned char epoll_kinds[UNETMAP_FILES];
/* A set has a number once it has a member here, or a second descriptor. */
static uint32_t set_numbers[UNETMAP_FILES];
static uint32_t last_number;

static void
lock(sigset_t *before)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, before);
	for (;;) {
		uint32_t even = __atomic_load_n(&version, __ATOMIC_RELAXED) & ~1U;

		if (__atomic_compare_exchange_n(&version, &even, even + 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			break;
		sched_yield();
	}
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

static void
unlock(const sigset_t *before)
{
	__atomic_store_n(&version, version + 1, __ATOMIC_RELEASE);
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* Who was writing is not in the child. */
void
epoll_forked(void)
{
	if (version & 1)
		version++;
}

uint32_t
epoll_set_of(int fd)
{
	return (unsigned int)fd < UNETMAP_FILES ? __atomic_load_n(&set_numbers[fd], __ATOMIC_RELAXED) : 0;
}

/* Copies the set's next member, from members[*at] on; 0: there is none. */
static int
next(uint32_t set, int *at, struct member *copy)
{
	int end = __atomic_load_n(&members_end, __ATOMIC_ACQUIRE);

	for (; *at < end; (*at)++) {
		uint32_t then;

		if (__atomic_load_n(&members[*at].set, __ATOMIC_RELAXED) != set)
			continue;
		do {
			while ((then = __atomic_load_n(&version, __ATOMIC_ACQUIRE)) & 1)
				sched_yield();
			*copy = *(volatile struct member *)&members[*at];
			__atomic_thread_fence(__ATOMIC_ACQUIRE);
		} while (__atomic_load_n(&version, __ATOMIC_RELAXED) != then);
		if (copy->set == set)
			return 1;
	}
	return 0;
}

static struct member *
find(uint32_t set, int fd)
{
	int i;

	for (i = 0; i < members_end; i++)
		if (members[i].set == set && members[i].fd == fd)
			return &members[i];
	return NULL;
}

static void
drop(uint32_t set, int fd)
{
	int i;

	for (i = 0; i < members_end; i++)
		if (members[i].set != 0 && (members[i].set == set || members[i].fd == fd))
			members[i].set = 0;
}

/* The set's number, given to it now if it has none. Called under the lock. */
static uint32_t
number(int fd)
{
	if (set_numbers[fd] == 0)
		set_numbers[fd] = ++last_number;
	return set_numbers[fd];
}

static int
is_last(int fd)
{
	int i;

	for (i = 0; i < UNETMAP_FILES; i++)
		if (i != fd && set_numbers[i] == set_numbers[fd])
			return 0;
	return 1;
}

/* The descriptor is closed. */
void
epoll_forget(int fd)
{
	sigset_t before;

	lock(&before);
	drop(set_numbers[fd] != 0 && is_last(fd) ? set_numbers[fd] : 0, fd);
	set_numbers[fd] = 0;
	__atomic_store_n(&epoll_kinds[fd], 0, __ATOMIC_RELAXED);
	unlock(&before);
}

/* now is a duplicate of old. */
void
epoll_share(int old, int now)
{
	sigset_t before;

	if ((unsigned int)now >= UNETMAP_FILES || !(epoll_kinds[old] & KIND_SET))
		return;
	lock(&before);
	set_numbers[now] = number(old);
	epoll_kinds[now] |= KIND_SET;
	unlock(&before);
}

static int
created(int set)
{
	if (set >= 0 && set < UNETMAP_FILES && !is_vforked())
		__atomic_store_n(&epoll_kinds[set], KIND_SET, __ATOMIC_RELAXED);
	return set;
}

int
unetmap_hook_epoll_create(int size)
{
	return created(CALL(epoll_create, (size), (int)syscall(SYS_epoll_create1, 0)));
}

int
unetmap_hook_epoll_create1(int flags)
{
	return created(CALL(epoll_create1, (flags), (int)syscall(SYS_epoll_create1, flags)));
}

/* Notes what the kernel has accepted. 0, or an errno. */
static int
note(int set, int what, int fd, const struct epoll_event *event)
{
	struct member *m;
	sigset_t before;
	int i, error = 0;

	lock(&before);
	m = find(number(set), fd);
	if (what == EPOLL_CTL_DEL) {
		if (m != NULL)
			m->set = 0;
	} else {
		for (i = 0; m == NULL && i < MEMBERS; i++)
			if (i == members_end || members[i].set == 0)
				m = &members[i];
		if (m == NULL) {
			error = ENOSPC;
		} else {
			*m = (struct member){ .set = number(set), .fd = fd, .is_set = !is_netmap(fd),
			    .events = event->events, .data = event->data };
			if (m == &members[members_end])
				__atomic_store_n(&members_end, members_end + 1, __ATOMIC_RELEASE);
			epoll_kinds[set] |= KIND_SET;
			epoll_kinds[fd] |= KIND_MEMBER;
		}
	}
	unlock(&before);
	return error;
}

int
unetmap_hook_epoll_ctl(int set, int what, int fd, struct epoll_event *event)
{
	struct epoll_event hang_up, *asked = event;
	int error;

	if (!is_netmap(fd) && !(epoll_knows(fd) && (epoll_kinds[fd] & KIND_SET)))
		return real_epoll_ctl(set, what, fd, event);
	if ((unsigned int)set >= UNETMAP_FILES || (event == NULL && what != EPOLL_CTL_DEL) || is_vforked())
		return real_epoll_ctl(set, what, fd, event);
	if (is_netmap(fd) && event != NULL) {
		hang_up = *event;
		hang_up.events &= EPOLLET | EPOLLONESHOT | EPOLLWAKEUP | EPOLLEXCLUSIVE;
		asked = &hang_up;
	}
	if (real_epoll_ctl(set, what, fd, asked) != 0)
		return -1;
	error = note(set, what, fd, event);
	if (error == 0)
		return 0;
	real_epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
	errno = error;
	return -1;
}

/*
 * ---------------------------------------------------------------- readiness
 */
static int set_ready(uint32_t set, int depth);

static uint32_t
look_at(const struct member *m, enum look how, int depth)
{
	short events = (short)(m->events & POLLED);
	int got;

	if (m->is_set)
		return m->events & POLLIN && set_ready(epoll_set_of(m->fd), depth) ? POLLIN : 0;
	got = how == LOOK_WOKEN ? unetmap_woken(m->fd, events) : unetmap_look(m->fd, events);
	return (uint32_t)(unsigned short)events_of(got);
}

/*
 * What a program is told only when it is new: what has become ready since it was
 * told, or has become more.
 */
static uint32_t
edges_of(struct member *m, uint32_t got)
{
	uint32_t told = TOLD_EVENTS(m->told), fresh = got & POLLERR & ~told;
	unsigned int progress[2] = { 0, 0 };
	int which;

	for (which = 0; which < 2; which++) {
		uint32_t bits = which == 0 ? POLLIN | POLLRDNORM : POLLOUT | POLLWRNORM;

		if (!m->is_set) {
			/* What is ready is not synced by a look; what has come until now is one piece of news. */
			if ((told | got) & bits)
				unetmap_ioctl(m->fd, which == 0 ? NIOCRXSYNC : NIOCTXSYNC, NULL);
			progress[which] = unetmap_progress(m->fd, which) & 0xffffff;
		}
		if ((got & bits) && (!(told & bits) || progress[which] != TOLD_PROGRESS(m->told, which)))
			fresh |= got & bits;
	}
	m->told = TOLD(got & 0xffff, progress[0], progress[1]);
	return fresh;
}

/* The member's events that the program is to be told. */
static uint32_t
ready_of(struct member *m, enum look how, int depth)
{
	uint32_t got;

	if (m->events == EPOLLONESHOT)
		return 0;
	got = look_at(m, how, depth);
	return m->events & EPOLLET ? edges_of(m, got) : got;
}

static int
set_ready(uint32_t set, int depth)
{
	struct member m;
	int at = 0;

	if (set == 0 || depth == 0)
		return 0;
	for (; next(set, &at, &m); at++)
		if (ready_of(&m, LOOK_AGAIN, depth - 1) != 0)
			return 1;
	return 0;
}

/* Whether a set has members here that are ready. */
int
epoll_set_ready(uint32_t set)
{
	return set_ready(set, DEPTH);
}

static int
set_arm(uint32_t set, struct waiter *w, int depth)
{
	struct member m;
	int at = 0;

	if (set == 0 || depth == 0)
		return 0;
	for (; next(set, &at, &m); at++) {
		short events = (short)(m.events & POLLED);

		if (m.events == EPOLLONESHOT)
			continue;
		if (m.is_set) {
			if (set_arm(epoll_set_of(m.fd), w, depth - 1))
				return 1;
		} else if (!unetmap_still(m.fd)) {
			epoll_forget(m.fd);
			return 1;
		} else if (!(m.events & EPOLLET) || TOLD_EVENTS(m.told) == 0) {
			if (add_bells(w, m.fd, events, 0) != 0)
				return 1;
		} else {
			/* What was told is not news: the wait is for more. */
			short got = add_bells(w, m.fd, events, 1);

			if ((got & POLLERR) ? !(TOLD_EVENTS(m.told) & POLLERR) : edges_of(&m, look_at(&m, LOOK_AGAIN, 0)) != 0)
				return 1;
		}
	}
	return 0;
}

/* Asks for all wake-ups of a set's members here; 1: something is ready now. */
int
epoll_set_arm(uint32_t set, struct waiter *w)
{
	return set_arm(set, w, DEPTH);
}

/*
 * ------------------------------------------------------------------ waiting
 */
struct epolled {
	struct waiter w;	/* others: the set itself */
	int fd, most;
	uint32_t set;
	struct epoll_event *events;
};

/* Remembers what is told; 0: another thread has told something since, or the registration is another one now. */
static int
tell(const struct member *m, uint64_t then, int at)
{
	struct member *noted = &members[at];

	if (!(m->events & EPOLLET) || m->told == then)
		return 1;
	if (__atomic_load_n(&noted->set, __ATOMIC_RELAXED) != m->set || noted->fd != m->fd)
		return 0;
	return __atomic_compare_exchange_n(&noted->told, &then, m->told, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Nobody is told a second time; 0: somebody else has told it already. */
static int
disarm(const struct member *m, int at)
{
	uint32_t events = m->events;

	if (!(events & EPOLLONESHOT))
		return 1;
	return __atomic_compare_exchange_n(&members[at].events, &events, EPOLLONESHOT, 0, __ATOMIC_RELAXED,
	    __ATOMIC_RELAXED);
}

/*
 * Writes what is ready here behind what the kernel has said; how many there are
 * then. The kernel may have told of the same: of another file in a set, of the
 * daemon's end.
 */
static int
report(struct epolled *e, int kernels, enum look how)
{
	struct member m;
	int at = 0, out = kernels;

	while (next(e->set, &at, &m)) {
		uint64_t then = m.told;
		uint32_t got = ready_of(&m, how, DEPTH);
		int i = 0;

		while (i < kernels && e->events[i].data.u64 != m.data.u64)
			i++;
		if (i < kernels && !m.is_set && (e->events[i].events & (EPOLLHUP | EPOLLERR)))
			e->events[i].events = EPOLLERR;
		/* What there is no room for is news the next time, too. */
		if (got != 0 && i == kernels && out == e->most) {
			at++;
			continue;
		}
		/* What another thread has told is none to this one; there may be more. */
		if (!tell(&m, then, at))
			continue;
		at++;
		if (got == 0 || !disarm(&m, at - 1))
			continue;
		if (i == kernels)
			i = out++;
		else
			got |= e->events[i].events;
		e->events[i] = (struct epoll_event){ .events = got, .data = m.data };
	}
	return out;
}

static int
look(struct waiter *w, enum look how)
{
	static unsigned int turns;
	struct epolled *e = (struct epolled *)w;
	/* One event at least is for what is ready here; where there is only one, it is so every other time. */
	int most = e->most > 1 ? e->most - 1 : (int)(__atomic_fetch_add(&turns, 1, __ATOMIC_RELAXED) & 1);
	int kernels = 0, ready;

	if (how == LOOK_AGAIN || most == 0) {
		ready = report(e, 0, how);
		if (ready != 0 || how == LOOK_AGAIN)
			return ready;
		return real_epoll_pwait(e->fd, e->events, e->most, 0, NULL);
	}
	kernels = real_epoll_pwait(e->fd, e->events, most, 0, NULL);
	return kernels < 0 ? -1 : report(e, kernels, how);
}

static int
arm(struct waiter *w)
{
	return epoll_set_arm(((struct epolled *)w)->set, w);
}

static int
epoll_ours(int fd, struct epoll_event *events, int most, int64_t limit, const sigset_t *mask)
{
	struct pollfd room[WAIT_ROOM(1)];
	struct epolled e = { .w = { .look = look, .arm = arm, .others = room + BELLS, .n = 1 },
	    .fd = fd, .most = most, .set = epoll_set_of(fd), .events = events };

	room[BELLS] = (struct pollfd){ .fd = fd, .events = POLLIN };
	return wait_until(&e.w, limit, mask);
}

/* Whether a set has netmap files, in itself or in a set in it. */
static int
has_ours(uint32_t set, int depth)
{
	struct member m;
	int at = 0;

	if (set == 0 || depth == 0)
		return 0;
	for (; next(set, &at, &m); at++)
		if (!m.is_set || has_ours(epoll_set_of(m.fd), depth - 1))
			return 1;
	return 0;
}

static inline int
is_plain(int set, int most)
{
	return !epoll_knows(set) || most <= 0 || !has_ours(epoll_set_of(set), DEPTH);
}

int
unetmap_hook_epoll_pwait(int set, struct epoll_event *events, int most, int timeout, const sigset_t *mask)
{
	if (is_plain(set, most))
		return real_epoll_pwait(set, events, most, timeout, mask);
	return epoll_ours(set, events, most, timeout < 0 ? NO_LIMIT : timeout * MILLISECOND, mask);
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
	if (is_plain(set, most))
		return CALL(epoll_pwait2, (set, events, most, timeout, mask),
		    (int)syscall(SYS_epoll_pwait2, set, events, most, timeout, mask, (size_t)8));
	if (timeout != NULL && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= SECOND)) {
		errno = EINVAL;
		return -1;
	}
	return epoll_ours(set, events, most, nanoseconds(timeout), mask);
}
