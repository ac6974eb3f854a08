/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Calls on netmap files do not allocate memory: this file replaces malloc and
 * related functions, and a seccomp filter forbids mmap.
 *
 *	nomalloc TEST
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>

#include "check.h"
#include "pipe.h"

/* ---- the allocator: blocks are never reused */

static _Alignas(64) char memory[16 << 20];
static size_t used;
/* Set: an allocation aborts the program. */
static volatile int forbidden;

static void *
block(size_t bytes)
{
	static const char message[] = "allocated inside a call on a netmap file\n";
	size_t at;

	if (forbidden) {
		syscall(SYS_write, 2, message, sizeof(message) - 1);
		abort();
	}
	/* The block's size is stored before it. */
	bytes = (bytes + 15) & ~(size_t)15;
	at = __atomic_fetch_add(&used, bytes + 16, __ATOMIC_RELAXED);
	if (at + bytes + 16 > sizeof(memory))
		return NULL;
	*(size_t *)(void *)(memory + at) = bytes;
	return memory + at + 16;
}

void *
malloc(size_t bytes)
{
	return block(bytes);
}

void *
calloc(size_t n, size_t bytes)
{
	/* Never used before, so it is zeroed. */
	return bytes != 0 && n > SIZE_MAX / bytes ? NULL : block(n * bytes);
}

void *
realloc(void *old, size_t bytes)
{
	void *now = block(bytes);

	if (old != NULL && now != NULL) {
		size_t had = *(size_t *)(void *)((char *)old - 16);

		memcpy(now, old, had < bytes ? had : bytes);
	}
	return now;
}

void
free(void *old)
{
	if (forbidden && old != NULL)
		block(0);
}

void *
memalign(size_t to, size_t bytes)
{
	char *at = block(bytes + to);

	return at == NULL ? NULL : at + (to - (uintptr_t)at % to) % to;
}

void *
aligned_alloc(size_t to, size_t bytes)
{
	return memalign(to, bytes);
}

int
posix_memalign(void **at, size_t to, size_t bytes)
{
	*at = memalign(to, bytes);
	return *at == NULL ? ENOMEM : 0;
}

/* ---- the calls */

static int set;

static void
open_pipe_and_set(void)
{
	struct epoll_event e = { .events = EPOLLIN };

	open_pipe();
	set = epoll_create1(0);
	CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, NETMAP_FD(b), &e) == 0);
}

/* Traffic, with waits that return at once and waits that sleep. */
static void
traffic(void)
{
	struct pollfd one = { NETMAP_FD(b), POLLIN, 0 }, two[2] = { { NETMAP_FD(a), POLLOUT, 0 }, { 0, 0, 0 } };
	struct timespec moment = { 0, 1000000 };
	struct timeval limit = { 0, 1000 };
	struct epoll_event got;
	struct nm_pkthdr h;
	fd_set in;
	int i, n = 0;

	for (i = 0; i < 200; i++) {
		CHECK(nm_inject(a, "hello", 6) == 6 && ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) == 0);
		CHECK(poll(&one, 1, 1000) == 1 && poll(two, 2, 1000) >= 1);
		FD_ZERO(&in);
		FD_SET(NETMAP_FD(b), &in);
		CHECK(select(NETMAP_FD(b) + 1, &in, NULL, NULL, NULL) == 1);
		CHECK(epoll_wait(set, &got, 1, -1) == 1);
		for (; nm_nextpkt(b, &h) != NULL; n++)
			;
		CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == 0);
		/* The ring is empty: these sleep. */
		if (i % 20 == 0) {
			CHECK(poll(&one, 1, 1) == 0 && ppoll(&one, 1, &moment, NULL) == 0);
			FD_SET(NETMAP_FD(b), &in);
			limit.tv_usec = 1000;
			CHECK(select(NETMAP_FD(b) + 1, &in, NULL, NULL, &limit) == 0);
			CHECK(epoll_wait(set, &got, 1, 1) == 0);
		}
	}
	CHECK(n == 200);
}

/* Opens, binds and closes: the library's memory for them is not from the program's allocator. */
static void
open_close(void)
{
	int i;

	for (i = 0; i < 20; i++) {
		struct nmreq r = { .nr_version = NETMAP_API, .nr_name = "n{2" };
		int fd = open("/dev/netmap", O_RDWR), copy = dup(fd);
		void *at;

		CHECK(fd >= 0 && copy >= 0 && ioctl(fd, NIOCREGIF, &r) == 0);
		at = mmap(NULL, r.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
		CHECK(at != MAP_FAILED && munmap(at, r.nr_memsize) == 0);
		CHECK(close(fd) == 0 && ioctl(copy, NIOCTXSYNC, NULL) == 0 && close(copy) == 0);
	}
}

/* From now on mmap, munmap, mremap and brk kill the program. */
static void
forbid_mappings(void)
{
	static const int calls[] = { SYS_mmap, SYS_munmap, SYS_mremap, SYS_brk };
	struct sock_filter code[2 * 4 + 2];
	struct sock_fprog filter = { sizeof(code) / sizeof(code[0]), code };
	int i;

	code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (i = 0; i < 4; i++) {
		code[1 + 2 * i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)calls[i], 0, 1);
		code[2 + 2 * i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	}
	code[9] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

int
main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	open_pipe_and_set();
	/* Checks that this allocator is in use. */
	CHECK(used > 0);
	if (strcmp(what, "traffic") == 0) {
		forbidden = 1;
		forbid_mappings();
		traffic();
	} else if (strcmp(what, "open-close") == 0) {
		forbidden = 1;
		open_close();
	} else if (strcmp(what, "forbidden") == 0) {
		forbidden = 1;
		free(malloc(1));
	} else {
		return 2;
	}
	/* write, as stdio would allocate. */
	return write(1, "ok\n", 3) != 3;
}
