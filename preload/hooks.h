/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Declarations that the C files of libunetmap share.
 *
 *	hooks.c		open, ioctl, mmap, recvmsg: handled here for a netmap file,
 *			else passed to the C library
 *	lookups.c	access, stat: of the device's path, and of parameters
 *	parameters.c	/sys/module/netmap/parameters
 *	paths.c		which paths lead there; realpath, glob, nftw and others
 *	descriptors.c	close, dup, fork: which descriptors are netmap files
 *	poll.c select.c epoll.c		readiness
 *	wait.c		the wait loop of all three
 *	interfaces.c	ports that programs look up as interfaces
 *	libc_calls.c	the C library's own functions
 *	nmctx.c nmport.c nmreq.c	libnetmap.h
 *
 * A hook may run before this library is initialised (in other libraries'
 * constructors, at an allocator's start), in a signal handler, and in a forked
 * child of a program with threads. Therefore the path to the C library neither
 * allocates nor locks. Until the C library's functions are found, and in static
 * programs, hooks call the kernel instead.
 */
#ifndef UNETMAP_HOOKS_H
#define UNETMAP_HOOKS_H

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/types.h>
#include <time.h>

/* Descriptors at or above this number are never netmap files. */
#define UNETMAP_FILES	65536

/* Non-NULL if the descriptor is a netmap file. Written by crates/capi. */
extern void *unetmap_files[UNETMAP_FILES];

static inline int
is_netmap(int fd)
{
	return (unsigned int)fd < UNETMAP_FILES &&
	    __builtin_expect(__atomic_load_n(&unetmap_files[fd], __ATOMIC_RELAXED) != NULL, 0);
}

/* Implemented in crates/capi: calls.rs, ready.rs and threads.rs. Errors are returned as negative errnos. */
int unetmap_open(int flags);
void unetmap_fd_closed(int fd);
void unetmap_fd_duplicated(int fd, int copy);
int unetmap_fd_adopt(int fd);
int unetmap_ioctl(int fd, unsigned long request, void *arg);
long unetmap_mmap(void *address, size_t bytes, int prot, int flags, int fd, int64_t at);
int unetmap_poll_now(int fd, short events);
int unetmap_poll_spin(int fd, short events, uint32_t ns);
int unetmap_fd_is_netmap(int fd);
int unetmap_arm(int fd, short events, struct pollfd *wait, unsigned int room, unsigned int *used);
int unetmap_arm_for_more(int fd, short events, struct pollfd *wait, unsigned int room, unsigned int *used);
int unetmap_poll_woken(int fd, short events);
int unetmap_hang_up_passes(int fd);
unsigned int unetmap_progress(int fd, int which);
int unetmap_init(void);
void *unetmap_thread_start(void);
void unetmap_thread_exit(void *thread);
void unetmap_atfork_child(void);

/* hooks.c: turns a negative errno into -1 with errno set; returns any other result unchanged. */
int unetmap_result(long result);

/* hooks.c: whether the path is the device's. */
int unetmap_is_device(const char *path);

/* interfaces.c: answers a request about an interface that the kernel does not know, if it is one of ours; else -1. */
int unetmap_look_up(int fd, unsigned long request, void *arg);

/* descriptors.c: true in a vfork child, which still runs in its parent's memory. */
int unetmap_in_vfork_child(void);

/* poll.c: whether the descriptor is a netmap file or an epoll set known to epoll.c. */
int unetmap_is_polled_here(int fd);

/* epoll.c: epoll sets and their members. */

/* Flags of a descriptor: it is an epoll set; it is a member of one. */
enum { KIND_SET = 1, KIND_MEMBER = 2 };
extern unsigned char unetmap_epoll_kinds[UNETMAP_FILES];

static inline int
is_epoll_related(int fd)
{
	return (unsigned int)fd < UNETMAP_FILES &&
	    __builtin_expect(__atomic_load_n(&unetmap_epoll_kinds[fd], __ATOMIC_RELAXED), 0);
}

struct waiter;
void unetmap_epoll_fd_closed(int fd);
void unetmap_epoll_fd_duplicated(int fd, int copy);
void unetmap_epoll_atfork_child(void);
uint32_t unetmap_epoll_set_of(int fd);
int unetmap_epoll_set_ready(uint32_t set);
int unetmap_epoll_set_arm(uint32_t set, struct waiter *w);

#endif
