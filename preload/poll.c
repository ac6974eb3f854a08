/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * poll when netmap files, or epoll sets that contain some, are among the
 * descriptors.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hooks.h"
#include "poll.h"
#include "libc_calls.h"
#include "wait.h"

#define MAX_FDS		65536		/* of one poll */
#define STACK_FDS	64		/* up to this many need no mmap */
#define SPIN_FIRST_NS	2000		/* spin on a single netmap file before the general wait loop */

struct poll_waiter {
	struct waiter w;	/* others: a copy of fds, with -1 in place of netmap files */
	struct pollfd *fds;
	int has_others;		/* others contains descriptors that the kernel has to poll */
};

int
unetmap_is_polled_here(int fd)
{
	return is_netmap(fd) || (is_epoll_related(fd) && unetmap_epoll_set_of(fd) != 0);
}

/* Returns the events of a netmap file. A descriptor that is none any more is left to the kernel from now on. */
static short
check_file(struct poll_waiter *p, nfds_t i, enum check how)
{
	struct pollfd *f = &p->fds[i];
	int got = how == CHECK_WOKEN ? unetmap_poll_woken(f->fd, f->events) : unetmap_poll_now(f->fd, f->events);

	if (got >= 0 || is_netmap(f->fd))
		return events_of(got);
	p->w.others[i] = (struct pollfd){ .fd = f->fd, .events = f->events };
	p->has_others = 1;
	return 0;
}

static int
check(struct waiter *w, enum check how)
{
	struct poll_waiter *p = (struct poll_waiter *)w;
	unsigned int i;
	int ready = 0;

	for (i = 0; i < w->n; i++) {
		struct pollfd *f = &p->fds[i];

		f->revents = 0;
		if (f->fd < 0)
			continue;
		if (w->others[i].fd < 0)
			f->revents = check_file(p, i, how);
		else if ((f->events & POLLIN) && is_epoll_related(f->fd) &&
		    unetmap_epoll_set_ready(unetmap_epoll_set_of(f->fd)))
			f->revents = POLLIN;
		ready += f->revents != 0;
	}
	if (!p->has_others || (how == CHECK_RINGS && ready == 0))
		return ready;
	if (how != CHECK_WOKEN && unetmap_libc_poll(w->others, w->n, 0) < 0)
		return -1;
	for (i = ready = 0; i < w->n; i++) {
		if (w->others[i].fd >= 0)
			p->fds[i].revents |= w->others[i].revents;
		ready += p->fds[i].revents != 0;
	}
	return ready;
}

static int
arm(struct waiter *w)
{
	struct poll_waiter *p = (struct poll_waiter *)w;
	unsigned int i;

	for (i = 0; i < w->n; i++) {
		struct pollfd *f = &p->fds[i];

		if (f->fd < 0)
			continue;
		if (w->others[i].fd < 0) {
			if (!unetmap_fd_is_netmap(f->fd)) {
				check_file(p, i, CHECK_RINGS);
				return 1;
			}
			if (unetmap_add_doorbells(w, f->fd, f->events, 0) != 0)
				return 1;
		} else if ((f->events & POLLIN) && is_epoll_related(f->fd) &&
		    unetmap_epoll_set_arm(unetmap_epoll_set_of(f->fd), w)) {
			return 1;
		}
	}
	return 0;
}

/* Polls; room has WAIT_ROOM(n) elements. */
static int
poll_with_room(struct pollfd *room, struct pollfd *fds, nfds_t n, int64_t limit, const sigset_t *mask)
{
	struct poll_waiter p = {
		.w = { .check = check, .arm = arm, .others = room + MAX_DOORBELLS, .n = (unsigned int)n }, .fds = fds
	};
	nfds_t i;

	for (i = 0; i < n; i++) {
		p.w.others[i] = (struct pollfd){ .fd = is_netmap(fds[i].fd) ? -1 : fds[i].fd, .events = fds[i].events };
		p.has_others |= p.w.others[i].fd >= 0;
	}
	return unetmap_wait(&p.w, limit, mask);
}

int
unetmap_poll_fds(struct pollfd *fds, nfds_t n, int64_t limit, const sigset_t *mask)
{
	struct pollfd stack[WAIT_ROOM(STACK_FDS)], *room;
	size_t bytes = WAIT_ROOM(n) * sizeof(*room);
	int ready, saved;

	if (n <= STACK_FDS)
		return poll_with_room(stack, fds, n, limit, mask);
	if (n > MAX_FDS) {
		errno = EINVAL;
		return -1;
	}
	room = (struct pollfd *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED)
		return -1;
	ready = poll_with_room(room, fds, n, limit, mask);
	saved = errno;
	syscall(SYS_munmap, room, bytes);
	errno = saved;
	return ready;
}

static int
has_polled_here(const struct pollfd *fds, nfds_t n)
{
	nfds_t i;

	for (i = 0; i < n; i++)
		if (unetmap_is_polled_here(fds[i].fd))
			return 1;
	return 0;
}

int
unetmap_hook_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	if (!has_polled_here(fds, n))
		return unetmap_libc_ppoll(fds, n, timeout, mask);
	if (timeout != NULL && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= SECOND)) {
		errno = EINVAL;
		return -1;
	}
	return unetmap_poll_fds(fds, n, unetmap_timespec_ns(timeout), mask);
}

int
unetmap_hook_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	/* Most programs poll one netmap file and nothing else: a shorter path. */
	if (n == 1 && is_netmap(fds[0].fd)) {
		int got;

		/* A thread that is never put to sleep can be cancelled, too. */
		pthread_testcancel();
		got = unetmap_poll_now(fds[0].fd, fds[0].events);
		if (got == 0 && timeout != 0)
			got = unetmap_poll_spin(fds[0].fd, fds[0].events, SPIN_FIRST_NS);
		if (got > 0 || (got == 0 && timeout == 0)) {
			fds[0].revents = (short)got;
			return got != 0;
		}
	} else if (!has_polled_here(fds, n)) {
		return unetmap_libc_poll(fds, n, timeout);
	}
	return unetmap_poll_fds(fds, n, timeout < 0 ? NO_LIMIT : timeout * MILLISECOND, NULL);
}

/* Called in place of poll and ppoll with -D_FORTIFY_SOURCE; bytes is the size of the array. */
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
