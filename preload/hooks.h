/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * What the two halves of libunetmap know of each other.
 */
#ifndef UNETMAP_HOOKS_H
#define UNETMAP_HOOKS_H

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/types.h>
#include <time.h>

/* Descriptors from here on are never netmap files. */
#define UNETMAP_FILES	65536

/* Not NULL: this descriptor is a netmap file. Rust writes it. */
extern void *unetmap_files[UNETMAP_FILES];

static inline int
is_netmap(int fd)
{
	return (unsigned int)fd < UNETMAP_FILES &&
	    __builtin_expect(__atomic_load_n(&unetmap_files[fd], __ATOMIC_RELAXED) != NULL, 0);
}

/* In Rust, see crates/capi/src/calls.rs. An error is a negative errno. */
int unetmap_open(int flags);
void unetmap_forget(int fd);
void unetmap_share(int old, int now);
int unetmap_adopt(int fd);
int unetmap_ioctl(int fd, unsigned long request, void *arg);
long unetmap_mmap(void *address, size_t bytes, int prot, int flags, int fd, int64_t at);
int unetmap_poll(int fd, short events, int64_t limit_ns);
int unetmap_arm(int fd, short events, struct pollfd *wait, unsigned int room, unsigned int *used);
int unetmap_woken(int fd, short events);
unsigned int unetmap_progress(int fd, int which);

/* hooks.c: the C library's own, or the kernel's where that is not found yet. */
int real_poll(struct pollfd *fds, nfds_t n, int timeout);
int real_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
int real_epoll_ctl(int set, int what, int fd, struct epoll_event *event);
int real_epoll_pwait(int set, struct epoll_event *events, int most, int timeout, const sigset_t *mask);

/* wait.c */
void epoll_forget(int fd);
int epoll_has_netmap(int fd);

#endif
