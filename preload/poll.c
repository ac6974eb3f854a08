/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * poll, where netmap files, or sets of epoll's that have some, are among the
 * descriptors.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hooks.h"
#include "poll.h"
#include "real.h"
#include "wait.h"

#define MOST_FDS	65536		/* that one poll takes */
#define FEW_FDS		64		/* that need no memory of their own */
#define SPIN_FIRST	2000		/* ns; looks at one netmap file before the clock is read */

struct polled {
	struct waiter w;	/* others: fds, with -1 in place of netmap files */
	struct pollfd *fds;
	int foreign;		/* the kernel has to be asked, too */
};

int
is_ours(int fd)
{
	return is_netmap(fd) || (epoll_knows(fd) && epoll_set_of(fd) != 0);
}

/* The events of a netmap file. One that is none any more is the kernel's from now on. */
static short
look_at(struct polled *p, nfds_t i, enum look how)
{
	struct pollfd *f = &p->fds[i];
	int got = how == LOOK_WOKEN ? unetmap_woken(f->fd, f->events) : unetmap_look(f->fd, f->events);

	if (got >= 0 || is_netmap(f->fd))
		return events_of(got);
	p->w.others[i] = (struct pollfd){ .fd = f->fd, .events = f->events };
	p->foreign = 1;
	return 0;
}

static int
look(struct waiter *w, enum look how)
{
	struct polled *p = (struct polled *)w;
	unsigned int i;
	int ready = 0;

	for (i = 0; i < w->n; i++) {
		struct pollfd *f = &p->fds[i];

		f->revents = 0;
		if (f->fd < 0)
			continue;
		if (w->others[i].fd < 0)
			f->revents = look_at(p, i, how);
		else if ((f->events & POLLIN) && epoll_knows(f->fd) && epoll_set_ready(epoll_set_of(f->fd)))
			f->revents = POLLIN;
		ready += f->revents != 0;
	}
	if (!p->foreign || (how == LOOK_AGAIN && ready == 0))
		return ready;
	if (how != LOOK_WOKEN && real_poll(w->others, w->n, 0) < 0)
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
	struct polled *p = (struct polled *)w;
	unsigned int i;

	for (i = 0; i < w->n; i++) {
		struct pollfd *f = &p->fds[i];

		if (f->fd < 0)
			continue;
		if (w->others[i].fd < 0) {
			if (!unetmap_still(f->fd)) {
				look_at(p, i, LOOK_AGAIN);
				return 1;
			}
			if (add_bells(w, f->fd, f->events, 0) != 0)
				return 1;
		} else if ((f->events & POLLIN) && epoll_knows(f->fd) && epoll_set_arm(epoll_set_of(f->fd), w)) {
			return 1;
		}
	}
	return 0;
}

static int
poll_in(struct pollfd *room, struct pollfd *fds, nfds_t n, int64_t limit, const sigset_t *mask)
{
	struct polled p = { .w = { .look = look, .arm = arm, .others = room + BELLS, .n = (unsigned int)n }, .fds = fds };
	nfds_t i;

	for (i = 0; i < n; i++) {
		p.w.others[i] = (struct pollfd){ .fd = is_netmap(fds[i].fd) ? -1 : fds[i].fd, .events = fds[i].events };
		p.foreign |= p.w.others[i].fd >= 0;
	}
	return wait_until(&p.w, limit, mask);
}

int
poll_ours(struct pollfd *fds, nfds_t n, int64_t limit, const sigset_t *mask)
{
	struct pollfd few[WAIT_ROOM(FEW_FDS)], *room;
	size_t bytes = WAIT_ROOM(n) * sizeof(*room);
	int ready, saved;

	if (n <= FEW_FDS)
		return poll_in(few, fds, n, limit, mask);
	if (n > MOST_FDS) {
		errno = EINVAL;
		return -1;
	}
	room = (struct pollfd *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED)
		return -1;
	ready = poll_in(room, fds, n, limit, mask);
	saved = errno;
	syscall(SYS_munmap, room, bytes);
	errno = saved;
	return ready;
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
	return poll_ours(fds, n, nanoseconds(timeout), mask);
}

int
unetmap_hook_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	/* One netmap file and nothing else is what most programs wait for. */
	if (n == 1 && is_netmap(fds[0].fd)) {
		int got = unetmap_look(fds[0].fd, fds[0].events);

		if (got == 0 && timeout != 0)
			got = unetmap_spin(fds[0].fd, fds[0].events, SPIN_FIRST);
		if (got > 0 || (got == 0 && timeout == 0)) {
			fds[0].revents = (short)got;
			return got != 0;
		}
	} else if (!has_ours(fds, n)) {
		return real_poll(fds, n, timeout);
	}
	return poll_ours(fds, n, timeout < 0 ? NO_LIMIT : timeout * MILLISECOND, NULL);
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
