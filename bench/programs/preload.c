/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A netmap program with no unetmap code, for the benchmarks preload-*, node-* and vale-overload:
 *
 *	preload tx PORT CPU BATCH	sends packets of 60 bytes
 *	preload rx PORT CPU [WORK]	receives; prints a line of JSON every 20 ms; counts to WORK for each packet
 *	preload ready PORT CPU	measures a poll of a ring with free slots
 *	preload poll CPU	measures poll of a file that is not netmap's,
 *			as programs call it, and of the C library alone
 *
 * With NODE defined, the program is linked statically and lacks the command poll.
 */
#define _GNU_SOURCE
#ifndef NODE
#include <dlfcn.h>
#endif
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define NETMAP_WITH_LIBS
#include <net/netmap_user.h>

#define SLOTS		1024
#define BYTES		60
#define POLL_TIMEOUT	100		/* ms */
#define INTERVAL	20		/* ms */

static volatile sig_atomic_t stopped;
static unsigned long received;

static void
stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static void
die(const char *what)
{
	perror(what);
	exit(1);
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void
pin(const char *cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(atoi(cpu), &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0)
		die("sched_setaffinity");
}

static struct nm_desc *
port(const char *name)
{
	struct nmreq request;
	struct nm_desc *d;

	memset(&request, 0, sizeof(request));
	request.nr_tx_slots = request.nr_rx_slots = SLOTS;
	d = nm_open(name, &request, 0, NULL);
	if (d == NULL)
		die(name);
	return d;
}

/* Waits for events; returns 0 on timeout. */
static int
ready(struct nm_desc *d, short events)
{
	struct pollfd p = { NETMAP_FD(d), events, 0 };

	if (poll(&p, 1, POLL_TIMEOUT) < 0 && !stopped)
		die("poll");
	if (p.revents & POLLERR) {
		fprintf(stderr, "POLLERR\n");
		exit(1);
	}
	return p.revents & events;
}

/* Returns how many of the n slots from at are before the end of the ring. pkt-gen iterates in the same way. */
static uint32_t
contiguous(struct netmap_ring *ring, uint32_t at, uint32_t n)
{
	return n < ring->num_slots - at ? n : ring->num_slots - at;
}

static uint32_t
after(struct netmap_ring *ring, struct netmap_slot *end)
{
	uint32_t at = (uint32_t)(end - ring->slot);

	return at == ring->num_slots ? 0 : at;
}

static void
send_all(struct nm_desc *d, uint32_t batch)
{
	struct netmap_ring *ring = NETMAP_TXRING(d->nifp, 0);
	uint32_t i;

	for (i = 0; i < ring->num_slots; i++)
		memset(NETMAP_BUF(ring, ring->slot[i].buf_idx), 0xff, BYTES);
	while (!stopped) {
		uint32_t n, at = ring->head;

		if (!ready(d, POLLOUT))
			continue;
		n = nm_ring_space(ring);
		if (n > batch)
			n = batch;
		while (n > 0) {
			struct netmap_slot *slot = &ring->slot[at], *end = slot + contiguous(ring, at, n);

			n -= (uint32_t)(end - slot);
			for (; slot < end; slot++) {
				if (slot->flags & NS_BUF_CHANGED)
					memset(NETMAP_BUF(ring, slot->buf_idx), 0xff, BYTES);
				slot->len = BYTES;
				slot->flags = 0;
			}
			at = after(ring, end);
		}
		ring->head = ring->cur = at;
	}
}

static void *
report(void *none)
{
	unsigned long before = 0;
	double start = now();

	while (!stopped) {
		unsigned long packets;
		double t;

		usleep(INTERVAL * 1000);
		packets = __atomic_load_n(&received, __ATOMIC_RELAXED);
		t = now();
		printf("{\"event\":\"interval\",\"packets\":%lu,\"seconds\":%.9f}\n", packets - before, t - start);
		fflush(stdout);
		before = packets;
		start = t;
	}
	return none;
}

/* Counts to work, as a program that computes something for each packet. */
static void
count_to(uint32_t work)
{
	volatile uint32_t i;

	for (i = 0; i < work; i++)
		;
}

static void
receive_all(struct nm_desc *d, uint32_t work)
{
	struct netmap_ring *ring = NETMAP_RXRING(d->nifp, 0);
	pthread_t reporter;

	if (pthread_create(&reporter, NULL, report, NULL) != 0)
		die("pthread_create");
	while (!stopped) {
		uint32_t at = ring->head, n, left, bytes = 0;

		if (!ready(d, POLLIN))
			continue;
		n = left = nm_ring_space(ring);
		while (left > 0) {
			struct netmap_slot *slot = &ring->slot[at], *end = slot + contiguous(ring, at, left);

			left -= (uint32_t)(end - slot);
			for (; slot < end; slot++) {
				bytes += slot->len;
				count_to(work);
			}
			at = after(ring, end);
		}
		if (bytes != n * BYTES) {
			fprintf(stderr, "%u packets have %u bytes\n", n, bytes);
			exit(1);
		}
		ring->head = ring->cur = at;
		__atomic_store_n(&received, received + n, __ATOMIC_RELAXED);
	}
	pthread_join(reporter, NULL);
}

/* ---- the cost of poll */

#define BLOCK	2000
#define BLOCKS	40
#define POLLS	10000

static int
by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void
ready_polls(struct nm_desc *d)
{
	static double took[POLLS];
	int i;

	for (i = -POLLS / 10; i < POLLS; i++) {
		double start = now();

		if (!ready(d, POLLOUT))
			die("poll of a ring with free slots");
		took[i < 0 ? 0 : i] = now() - start;
	}
	qsort(took, POLLS, sizeof(took[0]), by_value);
	printf("{\"event\":\"ready\",\"ns\":%.2f}\n", took[POLLS / 2] * 1e9);
}

#ifndef NODE
typedef int (*poll_fn)(struct pollfd *, nfds_t, int);

/* Returns the nanoseconds of one call. */
static double
cost(poll_fn poll_function, struct pollfd *p)
{
	double start = now();
	int i;

	for (i = 0; i < BLOCK; i++)
		if (poll_function(p, 1, 0) != 0)
			die("poll of an eventfd that is not ready");
	return (now() - start) / BLOCK * 1e9;
}

static void
foreign_polls(void)
{
	void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
	poll_fn bare = libc != NULL ? (poll_fn)dlsym(libc, "poll") : NULL;
	struct pollfd p = { eventfd(0, 0), POLLIN, 0 };
	double with[BLOCKS], without[BLOCKS];
	int i;

	if (bare == NULL || p.fd < 0)
		die("poll of the C library");
	for (i = -4; i < BLOCKS; i++) {
		int at = i < 0 ? 0 : i;

		with[at] = cost(poll, &p);
		without[at] = cost(bare, &p);
	}
	qsort(with, BLOCKS, sizeof(with[0]), by_value);
	qsort(without, BLOCKS, sizeof(without[0]), by_value);
	printf("{\"event\":\"poll\",\"ns\":%.2f,\"bare_ns\":%.2f}\n", with[BLOCKS / 2], without[BLOCKS / 2]);
}
#endif

int
main(int argc, char **argv)
{
	signal(SIGINT, stop);
	if (argc == 5 && strcmp(argv[1], "tx") == 0) {
		pin(argv[3]);
		send_all(port(argv[2]), (uint32_t)atoi(argv[4]));
	} else if ((argc == 4 || argc == 5) && strcmp(argv[1], "rx") == 0) {
		pin(argv[3]);
		receive_all(port(argv[2]), argc == 5 ? (uint32_t)atoi(argv[4]) : 0);
	} else if (argc == 4 && strcmp(argv[1], "ready") == 0) {
		pin(argv[3]);
		ready_polls(port(argv[2]));
#ifndef NODE
	} else if (argc == 3 && strcmp(argv[1], "poll") == 0) {
		pin(argv[2]);
		foreign_polls();
#endif
	} else {
		return 2;
	}
	return 0;
}
