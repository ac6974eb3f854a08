/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * What the parts of libunetmap know of each other.
 *
 *	hooks.c		open, ioctl, mmap, recvmsg: a netmap file, or the C library
 *	life.c		descriptors and processes: which descriptors are netmap files
 *	poll.c select.c epoll.c		what is ready
 *	wait.c		how all three wait
 *	real.c		the C library's own functions
 *
 * A hook may run before this library is set up (other libraries' constructors,
 * an allocator's first steps), in a signal handler, and in a forked child of a
 * program with threads. So on the way to the C library nothing is allocated or
 * locked, and until its functions are found, and in static programs, the kernel
 * is called instead.
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

/* In Rust, see calls.rs, ready.rs and threads.rs of crates/capi. An error is a negative errno. */
int unetmap_open(int flags);
void unetmap_forget(int fd);
void unetmap_share(int old, int now);
int unetmap_adopt(int fd);
int unetmap_ioctl(int fd, unsigned long request, void *arg);
long unetmap_mmap(void *address, size_t bytes, int prot, int flags, int fd, int64_t at);
int unetmap_look(int fd, short events);
int unetmap_spin(int fd, short events, uint32_t ns);
int unetmap_still(int fd);
int unetmap_arm(int fd, short events, struct pollfd *wait, unsigned int room, unsigned int *used);
int unetmap_arm_for_more(int fd, short events, struct pollfd *wait, unsigned int room, unsigned int *used);
int unetmap_woken(int fd, short events);
unsigned int unetmap_progress(int fd, int which);
int unetmap_set_up(void);
void *unetmap_thread_begins(void);
void unetmap_thread_ends(void *thread);
void unetmap_forked(void);

/* hooks.c, for the other hooks: -1 and errno, or the result. */
int failed(long result);

/* life.c */
int is_vforked(void);

/* poll.c */
int is_ours(int fd);

/* epoll.c: sets, and what is in them. */

/* What is known of a descriptor besides: it is a set, it is in one. */
enum { KIND_SET = 1, KIND_MEMBER = 2 };
extern unsigned char epoll_kinds[UNETMAP_FILES];

static inline int
epoll_knows(int fd)
{
	return (unsigned int)fd < UNETMAP_FILES &&
	    __builtin_expect(__atomic_load_n(&epoll_kinds[fd], __ATOMIC_RELAXED), 0);
}

struct waiter;
void epoll_forget(int fd);
void epoll_share(int old, int now);
void epoll_forked(void);
uint32_t epoll_set_of(int fd);
int epoll_set_ready(uint32_t set);
int epoll_set_arm(uint32_t set, struct waiter *w);

#endif
