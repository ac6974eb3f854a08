/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * epoll when a set contains netmap files, directly or in a nested set.
 *
 * The kernel's set contains them, too: a netmap file only for the hang-up when
 * the daemon exits. The registrations of netmap files and of nested sets are
 * recorded in a table here. A wait checks both the kernel's set and the table,
 * and reports each descriptor once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <net/netmap.h>

#include "hooks.h"
#include "libc_calls.h"
#include "wait.h"

/*
 * ------------------------------------------------- the table of registrations
 *
 * A seqlock: one writer at a time, with signals blocked; readers retry if the
 * version has changed meanwhile.
 */
struct member {
	uint32_t set;		/* 0: free */
	int fd;
	int is_set;		/* fd is an epoll set */
	uint32_t events;	/* EPOLL*, as registered; EPOLLONESHOT alone: disarmed after its one report */
	uint64_t reported;	/* edge-triggered: see REPORTED */
	epoll_data_t data;
};

/*
 * The state that was last reported of an edge-triggered member: its events and
 * the progress of its rings, in one word, so that a compare-and-exchange lets only
 * one of two threads report a change.
 */
#define REPORTED(events, in, out)	\
	((uint64_t)(events) | (uint64_t)((in) & 0xffffff) << 16 | (uint64_t)((out) & 0xffffff) << 40)
#define REPORTED_EVENTS(reported)	((uint32_t)(reported) & 0xffff)
#define REPORTED_PROGRESS(reported, which)	((uint32_t)((reported) >> ((which) == 0 ? 16 : 40)) & 0xffffff)

#define MAX_MEMBERS	1024
#define MAX_NESTING	5	/* of sets in sets, as the kernel permits */

static struct member members[MAX_MEMBERS];
static int members_end;		/* members at or above this index are free */
static uint32_t version;	/* odd while a writer is active */

unsigned char unetmap_epoll_kinds[UNETMAP_FILES];
/* By descriptor: the set's number, assigned once the set has a member here or a second descriptor; 0: none. */
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

/* The writer, if there was one, is a thread that the child does not have. */
void
unetmap_epoll_atfork_child(void)
{
	if (version & 1)
		version++;
}

uint32_t
unetmap_epoll_set_of(int fd)
{
	return (unsigned int)fd < UNETMAP_FILES ? __atomic_load_n(&set_numbers[fd], __ATOMIC_RELAXED) : 0;
}

/* Copies the set's next member, from members[*at] on, and sets *at to its index. Returns 0 if there is none. */
static int
next_member(uint32_t set, int *at, struct member *copy)
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
remove_members(uint32_t set, int fd)
{
	int i;

	for (i = 0; i < members_end; i++)
		if (members[i].set != 0 && (members[i].set == set || members[i].fd == fd))
			members[i].set = 0;
}

/* Returns the set's number; assigns one if it has none. Called with the lock held. */
static uint32_t
set_number(int fd)
{
	if (set_numbers[fd] == 0)
		set_numbers[fd] = ++last_number;
	return set_numbers[fd];
}

/* Whether no other descriptor refers to the same set. */
static int
is_last_descriptor(int fd)
{
	int i;

	for (i = 0; i < UNETMAP_FILES; i++)
		if (i != fd && set_numbers[i] == set_numbers[fd])
			return 0;
	return 1;
}

/* Removes a descriptor that is being closed and, with its last descriptor, the set. */
void
unetmap_epoll_fd_closed(int fd)
{
	sigset_t before;

	lock(&before);
	remove_members(set_numbers[fd] != 0 && is_last_descriptor(fd) ? set_numbers[fd] : 0, fd);
	set_numbers[fd] = 0;
	__atomic_store_n(&unetmap_epoll_kinds[fd], 0, __ATOMIC_RELAXED);
	unlock(&before);
}

/* Records that copy is a duplicate of fd. */
void
unetmap_epoll_fd_duplicated(int fd, int copy)
{
	sigset_t before;

	if ((unsigned int)copy >= UNETMAP_FILES || !(unetmap_epoll_kinds[fd] & KIND_SET))
		return;
	lock(&before);
	set_numbers[copy] = set_number(fd);
	unetmap_epoll_kinds[copy] |= KIND_SET;
	unlock(&before);
}

static int
record_set(int set)
{
	if (set >= 0 && set < UNETMAP_FILES && !unetmap_in_vfork_child())
		__atomic_store_n(&unetmap_epoll_kinds[set], KIND_SET, __ATOMIC_RELAXED);
	return set;
}

int
unetmap_hook_epoll_create(int size)
{
	return record_set(CALL_LIBC(epoll_create, (size), (int)syscall(SYS_epoll_create1, 0)));
}

int
unetmap_hook_epoll_create1(int flags)
{
	return record_set(CALL_LIBC(epoll_create1, (flags), (int)syscall(SYS_epoll_create1, flags)));
}

/* Records a registration that the kernel has accepted. Returns 0 or an errno. */
static int
record_registration(int set, int op, int fd, const struct epoll_event *event)
{
	struct member *m;
	sigset_t before;
	int i, error = 0;

	lock(&before);
	m = find(set_number(set), fd);
	if (op == EPOLL_CTL_DEL) {
		if (m != NULL)
			m->set = 0;
	} else {
		for (i = 0; m == NULL && i < MAX_MEMBERS; i++)
			if (i == members_end || members[i].set == 0)
				m = &members[i];
		if (m == NULL) {
			error = ENOSPC;
		} else {
			*m = (struct member){ .set = set_number(set), .fd = fd, .is_set = !is_netmap(fd),
			    .events = event->events, .data = event->data };
			if (m == &members[members_end])
				__atomic_store_n(&members_end, members_end + 1, __ATOMIC_RELEASE);
			unetmap_epoll_kinds[set] |= KIND_SET;
			unetmap_epoll_kinds[fd] |= KIND_MEMBER;
		}
	}
	unlock(&before);
	return error;
}

/* Whether fd is a member of the set in the table. */
static int
is_recorded(int set, int fd)
{
	sigset_t before;
	int found;

	lock(&before);
	found = set_numbers[set] != 0 && find(set_numbers[set], fd) != NULL;
	unlock(&before);
	return found;
}

int
unetmap_hook_epoll_ctl(int set, int op, int fd, struct epoll_event *event)
{
	struct epoll_event hang_up, *kernel_event = event;
	int error;

	if (!is_netmap(fd) && !(is_epoll_related(fd) && (unetmap_epoll_kinds[fd] & KIND_SET)))
		return unetmap_libc_epoll_ctl(set, op, fd, event);
	if ((unsigned int)set >= UNETMAP_FILES || (event == NULL && op != EPOLL_CTL_DEL) || unetmap_in_vfork_child())
		return unetmap_libc_epoll_ctl(set, op, fd, event);
	if (is_netmap(fd) && event != NULL) {
		hang_up = *event;
		hang_up.events &= EPOLLET | EPOLLONESHOT | EPOLLWAKEUP | EPOLLEXCLUSIVE;
		kernel_event = &hang_up;
	}
	if (unetmap_libc_epoll_ctl(set, op, fd, kernel_event) != 0) {
		/* The kernel has lost a member whose port goes on with another daemon, on another file. */
		if (errno != ENOENT || !is_netmap(fd) || !is_recorded(set, fd))
			return -1;
		if (op == EPOLL_CTL_MOD && unetmap_libc_epoll_ctl(set, EPOLL_CTL_ADD, fd, kernel_event) != 0)
			return -1;
	}
	error = record_registration(set, op, fd, event);
	if (error == 0)
		return 0;
	unetmap_libc_epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
	errno = error;
	return -1;
}

/*
 * ---------------------------------------------------------------- readiness
 */
static int set_ready(uint32_t set, int depth);

static uint32_t
check_member(const struct member *m, enum check how, int depth)
{
	short events = (short)(m->events & POLLED);
	int got;

	if (m->is_set)
		return m->events & POLLIN && set_ready(unetmap_epoll_set_of(m->fd), depth) ? POLLIN : 0;
	got = how == CHECK_WOKEN ? unetmap_poll_woken(m->fd, events) : unetmap_poll_now(m->fd, events);
	return (uint32_t)(unsigned short)events_of(got);
}

/*
 * Returns the events to report of an edge-triggered member: those that became
 * ready since the last report, or whose ring has advanced since. Updates
 * m->reported.
 */
static uint32_t
new_edges(struct member *m, uint32_t got)
{
	uint32_t reported = REPORTED_EVENTS(m->reported), fresh = got & POLLERR & ~reported;
	unsigned int progress[2] = { 0, 0 };
	int which;

	for (which = 0; which < 2; which++) {
		uint32_t bits = which == 0 ? POLLIN | POLLRDNORM : POLLOUT | POLLWRNORM;

		if (!m->is_set) {
			/* A check does not sync a ready ring; with this sync all packets until now make one edge. */
			if ((reported | got) & bits)
				unetmap_ioctl(m->fd, which == 0 ? NIOCRXSYNC : NIOCTXSYNC, NULL);
			progress[which] = unetmap_progress(m->fd, which) & 0xffffff;
		}
		if ((got & bits) && (!(reported & bits) || progress[which] != REPORTED_PROGRESS(m->reported, which)))
			fresh |= got & bits;
	}
	m->reported = REPORTED(got & 0xffff, progress[0], progress[1]);
	return fresh;
}

/* Returns the member's events that are to be reported to the program. */
static uint32_t
events_to_report(struct member *m, enum check how, int depth)
{
	uint32_t got;

	if (m->events == EPOLLONESHOT)
		return 0;
	got = check_member(m, how, depth);
	return m->events & EPOLLET ? new_edges(m, got) : got;
}

static int
set_ready(uint32_t set, int depth)
{
	struct member m;
	int at = 0;

	if (set == 0 || depth == 0)
		return 0;
	for (; next_member(set, &at, &m); at++)
		if (events_to_report(&m, CHECK_RINGS, depth - 1) != 0)
			return 1;
	return 0;
}

/* Whether a set has members in the table that are ready. */
int
unetmap_epoll_set_ready(uint32_t set)
{
	return set_ready(set, MAX_NESTING);
}

static int
set_arm(uint32_t set, struct waiter *w, int depth)
{
	struct member m;
	int at = 0;

	if (set == 0 || depth == 0)
		return 0;
	for (; next_member(set, &at, &m); at++) {
		short events = (short)(m.events & POLLED);

		if (m.events == EPOLLONESHOT)
			continue;
		if (m.is_set) {
			if (set_arm(unetmap_epoll_set_of(m.fd), w, depth - 1))
				return 1;
		} else if (!unetmap_fd_is_netmap(m.fd)) {
			unetmap_epoll_fd_closed(m.fd);
			return 1;
		} else if (!(m.events & EPOLLET) || REPORTED_EVENTS(m.reported) == 0) {
			if (unetmap_add_doorbells(w, m.fd, events, 0) != 0)
				return 1;
		} else {
			/* Reported events are no new edge: the wait is for progress beyond them. */
			short got = unetmap_add_doorbells(w, m.fd, events, 1);

			if ((got & POLLERR) ? !(REPORTED_EVENTS(m.reported) & POLLERR)
			    : new_edges(&m, check_member(&m, CHECK_RINGS, 0)) != 0)
				return 1;
		}
	}
	return 0;
}

/* Requests wake-ups for all of a set's members in the table. Returns 1 if one is ready now. */
int
unetmap_epoll_set_arm(uint32_t set, struct waiter *w)
{
	return set_arm(set, w, MAX_NESTING);
}

/*
 * ------------------------------------------------------------------ waiting
 */
struct epoll_waiter {
	struct waiter w;	/* others: the set itself */
	int fd, max;		/* max: elements of events */
	uint32_t set;
	struct epoll_event *events;
};

/*
 * Stores the reported state, if it is still `before`. Returns 0 if another thread
 * has reported something since, or if the registration has changed.
 */
static int
store_reported(const struct member *m, uint64_t before, int at)
{
	struct member *stored = &members[at];

	if (!(m->events & EPOLLET) || m->reported == before)
		return 1;
	if (__atomic_load_n(&stored->set, __ATOMIC_RELAXED) != m->set || stored->fd != m->fd)
		return 0;
	return __atomic_compare_exchange_n(&stored->reported, &before, m->reported, 0, __ATOMIC_RELAXED,
	    __ATOMIC_RELAXED);
}

/* Disarms an EPOLLONESHOT member. Returns 0 if another thread has already reported it. */
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
 * Appends the members that are ready to the events that the kernel has reported,
 * and returns how many events there are then. The kernel may have reported the
 * same member: a nested set for another file in it, a netmap file for the
 * daemon's exit. Such events are merged.
 */
static int
report(struct epoll_waiter *e, int from_kernel, enum check how)
{
	struct member m;
	int at = 0, out = from_kernel;

	while (next_member(e->set, &at, &m)) {
		uint64_t before = m.reported;
		uint32_t got = events_to_report(&m, how, MAX_NESTING);
		int i = 0;

		while (i < from_kernel && e->events[i].data.u64 != m.data.u64)
			i++;
		if (i < from_kernel && !m.is_set && (e->events[i].events & (EPOLLHUP | EPOLLERR))) {
			e->events[i].events = EPOLLERR;
			if (unetmap_hang_up_passes(m.fd)) {
				memmove(e->events + i, e->events + i + 1, (size_t)(out - i - 1) * sizeof(*e->events));
				i = --from_kernel;
				out--;
			}
		}
		/* No room: not stored as reported, so the next call reports it. */
		if (got != 0 && i == from_kernel && out == e->max) {
			at++;
			continue;
		}
		/* Another thread has reported this edge: check the member once more, there may be a newer one. */
		if (!store_reported(&m, before, at))
			continue;
		at++;
		if (got == 0 || !disarm(&m, at - 1))
			continue;
		if (i == from_kernel)
			i = out++;
		else
			got |= e->events[i].events;
		e->events[i] = (struct epoll_event){ .events = got, .data = m.data };
	}
	return out;
}

static int
check(struct waiter *w, enum check how)
{
	static unsigned int calls;
	struct epoll_waiter *e = (struct epoll_waiter *)w;
	/* At least one element is kept free for members here; if there is only one, every other call. */
	int max = e->max > 1 ? e->max - 1 : (int)(__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) & 1);
	int from_kernel = 0, ready;

	if (how == CHECK_RINGS || max == 0) {
		ready = report(e, 0, how);
		if (ready != 0 || how == CHECK_RINGS)
			return ready;
		return unetmap_libc_epoll_pwait(e->fd, e->events, e->max, 0, NULL);
	}
	from_kernel = unetmap_libc_epoll_pwait(e->fd, e->events, max, 0, NULL);
	return from_kernel < 0 ? -1 : report(e, from_kernel, how);
}

static int
arm(struct waiter *w)
{
	return unetmap_epoll_set_arm(((struct epoll_waiter *)w)->set, w);
}

static int
wait_for_set(int fd, struct epoll_event *events, int max, int64_t limit, const sigset_t *mask)
{
	struct pollfd room[WAIT_ROOM(1)];
	struct epoll_waiter e = { .w = { .check = check, .arm = arm, .others = room + MAX_DOORBELLS, .n = 1 },
	    .fd = fd, .max = max, .set = unetmap_epoll_set_of(fd), .events = events };

	room[MAX_DOORBELLS] = (struct pollfd){ .fd = fd, .events = POLLIN };
	return unetmap_wait(&e.w, limit, mask);
}

/* Whether a set contains netmap files, directly or in a nested set. */
static int
has_netmap_files(uint32_t set, int depth)
{
	struct member m;
	int at = 0;

	if (set == 0 || depth == 0)
		return 0;
	for (; next_member(set, &at, &m); at++)
		if (!m.is_set || has_netmap_files(unetmap_epoll_set_of(m.fd), depth - 1))
			return 1;
	return 0;
}

/* Whether the C library handles a wait on this set. */
static inline int
is_plain(int set, int max)
{
	return !is_epoll_related(set) || max <= 0 || !has_netmap_files(unetmap_epoll_set_of(set), MAX_NESTING);
}

int
unetmap_hook_epoll_pwait(int set, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	if (is_plain(set, max))
		return unetmap_libc_epoll_pwait(set, events, max, timeout, mask);
	return wait_for_set(set, events, max, timeout < 0 ? NO_LIMIT : timeout * MILLISECOND, mask);
}

int
unetmap_hook_epoll_wait(int set, struct epoll_event *events, int max, int timeout)
{
	return unetmap_hook_epoll_pwait(set, events, max, timeout, NULL);
}

int
unetmap_hook_epoll_pwait2(int set, struct epoll_event *events, int max, const struct timespec *timeout,
    const sigset_t *mask)
{
	if (is_plain(set, max))
		return CALL_LIBC(epoll_pwait2, (set, events, max, timeout, mask),
		    (int)syscall(SYS_epoll_pwait2, set, events, max, timeout, mask, (size_t)8));
	if (timeout != NULL && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= SECOND)) {
		errno = EINVAL;
		return -1;
	}
	return wait_for_set(set, events, max, unetmap_timespec_ns(timeout), mask);
}
