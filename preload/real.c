/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "real.h"

/* Bytes of the kernel's signal set. */
#define MASK_BYTES	((size_t)8)

struct real real;

void
find_real(void)
{
#define FIND(name)	*(void **)&real.name = dlsym(RTLD_NEXT, #name);
	ALL_REAL(FIND)
#undef FIND
}

int
real_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct timespec t = { timeout / 1000, timeout % 1000 * 1000000L };

	return CALL(poll, (fds, n, timeout), real_ppoll(fds, n, timeout < 0 ? NULL : &t, NULL));
}

int
real_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec copy;

	if (__builtin_expect(real.ppoll != NULL, 1))
		return real.ppoll(fds, n, timeout, mask);
	/* The kernel writes what is left of the time. */
	if (timeout != NULL)
		copy = *timeout;
	return (int)syscall(SYS_ppoll, fds, n, timeout != NULL ? &copy : NULL, mask, MASK_BYTES);
}

int
real_pselect(int n, fd_set *in, fd_set *out, fd_set *except, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec copy;
	struct {
		const sigset_t *mask;
		size_t bytes;
	} how = { mask, MASK_BYTES };

	if (__builtin_expect(real.pselect != NULL, 1))
		return real.pselect(n, in, out, except, timeout, mask);
	if (timeout != NULL)
		copy = *timeout;
	return (int)syscall(SYS_pselect6, n, in, out, except, timeout != NULL ? &copy : NULL, &how);
}

int
real_epoll_ctl(int set, int what, int fd, struct epoll_event *event)
{
	return CALL(epoll_ctl, (set, what, fd, event), (int)syscall(SYS_epoll_ctl, set, what, fd, event));
}

int
real_epoll_pwait(int set, struct epoll_event *events, int most, int timeout, const sigset_t *mask)
{
	return CALL(epoll_pwait, (set, events, most, timeout, mask),
	    (int)syscall(SYS_epoll_pwait, set, events, most, timeout, mask, MASK_BYTES));
}
