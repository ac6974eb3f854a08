/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libc_calls.h"

/* Bytes of the kernel's signal set. */
#define MASK_BYTES	((size_t)8)

struct libc_calls unetmap_libc;

void
unetmap_find_libc_calls(void)
{
#define FIND(name)	*(void **)&unetmap_libc.name = dlsym(RTLD_NEXT, #name);
	ALL_LIBC_CALLS(FIND)
#undef FIND
}

int
unetmap_libc_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct timespec t = { timeout / 1000, timeout % 1000 * 1000000L };

	return CALL_LIBC(poll, (fds, n, timeout), unetmap_libc_ppoll(fds, n, timeout < 0 ? NULL : &t, NULL));
}

int
unetmap_libc_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec copy;

	if (__builtin_expect(unetmap_libc.ppoll != NULL, 1))
		return unetmap_libc.ppoll(fds, n, timeout, mask);
	/* The system call overwrites the timeout with the time left. */
	if (timeout != NULL)
		copy = *timeout;
	return (int)syscall(SYS_ppoll, fds, n, timeout != NULL ? &copy : NULL, mask, MASK_BYTES);
}

int
unetmap_libc_pselect(int n, fd_set *in, fd_set *out, fd_set *except, const struct timespec *timeout,
    const sigset_t *mask)
{
	struct timespec copy;
	struct {
		const sigset_t *mask;
		size_t bytes;
	} how = { mask, MASK_BYTES };

	if (__builtin_expect(unetmap_libc.pselect != NULL, 1))
		return unetmap_libc.pselect(n, in, out, except, timeout, mask);
	if (timeout != NULL)
		copy = *timeout;
	return (int)syscall(SYS_pselect6, n, in, out, except, timeout != NULL ? &copy : NULL, &how);
}

int
unetmap_libc_epoll_ctl(int set, int what, int fd, struct epoll_event *event)
{
	return CALL_LIBC(epoll_ctl, (set, what, fd, event), (int)syscall(SYS_epoll_ctl, set, what, fd, event));
}

int
unetmap_libc_epoll_pwait(int set, struct epoll_event *events, int most, int timeout, const sigset_t *mask)
{
	return CALL_LIBC(epoll_pwait, (set, events, most, timeout, mask),
	    (int)syscall(SYS_epoll_pwait, set, events, most, timeout, mask, MASK_BYTES));
}
