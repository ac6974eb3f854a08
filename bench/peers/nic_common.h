/*
 * Common code of the peers: the packet, counting, waiting, and reports.
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "packet.h"

/* Bytes of a packet (-l), and packets per system call (-b), with their bounds. */
#define MIN_LEN 60
#define MAX_LEN 1514
#define MAX_BATCH 512
static unsigned len = MIN_LEN, batch = 64;
/* Time to poll for packets before sleeping, and the longest sleep. */
#define SPIN_NS 50000
#define SLEEP_MS 100
/* Exit status if this machine does not support the peer. */
#define UNSUPPORTED 77

/* Constants that older kernel headers lack. */
#ifndef SOL_XDP
#define SOL_XDP 283
#endif
#define MAX_TX_SKB_BUDGET 9

/* To the unused address 02:00:00:00:00:99; UDP from 10.0.0.1:1234 to 10.1.0.1:1234, without UDP checksum. */
static unsigned char packet[MAX_LEN] = {
	0x02, 0, 0, 0, 0, 0x99, 0x02, 0, 0, 0, 0, 0x01, 0x08, 0x00,
	0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 1, 0, 1,
	0x04, 0xd2, 0x04, 0xd2, 0, 0, 0, 0,
};

static _Atomic uint64_t received;

static void fail(int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(status);
}

#define CHECK(call, what) \
	do { \
		if ((call) < 0) \
			fail(1, "%s: %s", what, strerror(errno)); \
	} while (0)

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void count(uint64_t packets)
{
	atomic_store_explicit(&received, atomic_load_explicit(&received, memory_order_relaxed) + packets,
			      memory_order_relaxed);
}

/* Called after each poll for packets: sleeps if no packets arrived for SPIN_NS. */
static void sleep_if_idle(struct pollfd *fds, nfds_t n, bool found)
{
	static uint64_t since;

	if (found) {
		since = 0;
		return;
	}
	uint64_t now = now_ns();
	if (since == 0) {
		since = now;
	} else if (now - since > SPIN_NS) {
		poll(fds, n, SLEEP_MS);
		since = 0;
	}
}

static void *report(void *every_ms)
{
	uint64_t every = *(uint64_t *)every_ms * 1000000, then = now_ns(), before = 0;

	for (;;) {
		struct timespec t = { every / 1000000000, every % 1000000000 };
		clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
		uint64_t now = now_ns(), packets = atomic_load_explicit(&received, memory_order_relaxed);
		printf("{\"event\":\"interval\",\"packets\":%llu,\"seconds\":%.9f}\n",
		       (unsigned long long)(packets - before), (now - then) / 1e9);
		fflush(stdout);
		then = now;
		before = packets;
	}
	return NULL;
}

static unsigned index_of(const char *interface)
{
	unsigned index = if_nametoindex(interface);

	if (index == 0)
		fail(1, "%s: no such interface", interface);
	return index;
}
