/*
 * The peer of `unetmap bench pipe` and others: an rte_ring of DPDK between two processes.
 *
 *   ring rate [-a TX,RX] [-b BATCH] [-l LEN] -T MS     prints a line of JSON each MS milliseconds, as pkt-gen does
 *   ring rtt  [-a TX,RX] -T MS                         prints the mean round trip of one packet, measured for MS ms
 *
 * The sender takes a buffer, writes the lengths of its mbuf and puts the pointer into a ring of 1024; the receiver
 * reads the length and returns the buffer by a second ring. That is less work than a mempool of two processors, so the
 * figure is what DPDK can reach at most. Rings and buffers are memory that both processes map at the same address: no
 * EAL, no hugepages. Both sides poll and never sleep. `rate` runs until it is killed or its parent exits.
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rte_mbuf.h>
#include <rte_pause.h>
#include <rte_ring.h>

#define SLOTS 1024u
#define MAX_BATCH 512u
#define BUFFER 2048u
/* Rounds between two looks at the clock. */
#define ROUNDS 64

/* A buffer: DPDK's header of a packet, and the packet. */
struct packet {
	struct rte_mbuf mbuf;
	unsigned char bytes[BUFFER];
};

static struct rte_ring *there, *back;
static struct packet *packets;
static unsigned batch = 512, len = 60;
static _Atomic uint64_t *received;
static pid_t parent;

static void fail(const char *what)
{
	fprintf(stderr, "ring: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void *map(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap");
	return memory;
}

static struct rte_ring *make_ring(const char *name)
{
	struct rte_ring *ring = map(rte_ring_get_memsize(SLOTS));

	if (rte_ring_init(ring, name, SLOTS, RING_F_SP_ENQ | RING_F_SC_DEQ) != 0)
		fail("rte_ring_init");
	return ring;
}

static void run_on(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) < 0)
		fail("sched_setaffinity");
}

/* A child ends with its parent, also if that has ended before this call. */
static void end_with_parent(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
}

static void send_packets(void)
{
	void *buffers[MAX_BATCH];

	for (;;) {
		unsigned n = rte_ring_sc_dequeue_burst(back, buffers, batch, NULL);

		if (n == 0) {
			rte_pause();
			continue;
		}
		for (unsigned i = 0; i < n; i++) {
			struct rte_mbuf *mbuf = buffers[i];
			mbuf->data_len = len;
			mbuf->pkt_len = len;
		}
		/* As many buffers as the ring has room: nothing is left over. */
		rte_ring_sp_enqueue_bulk(there, buffers, n, NULL);
	}
}

static void receive_packets(void)
{
	void *buffers[MAX_BATCH];
	uint64_t bytes = 0;

	for (;;) {
		unsigned n = rte_ring_sc_dequeue_burst(there, buffers, MAX_BATCH, NULL);

		if (n == 0) {
			rte_pause();
			continue;
		}
		for (unsigned i = 0; i < n; i++)
			bytes += ((struct rte_mbuf *)buffers[i])->pkt_len;
		rte_ring_sp_enqueue_bulk(back, buffers, n, NULL);
		atomic_store_explicit(&received[0], atomic_load_explicit(&received[0], memory_order_relaxed) + n,
				      memory_order_relaxed);
		atomic_store_explicit(&received[1], bytes, memory_order_relaxed);
	}
}

static void echo(void)
{
	void *buffer;

	for (;;) {
		while (rte_ring_sc_dequeue(there, &buffer) != 0)
			rte_pause();
		rte_ring_sp_enqueue(back, buffer);
	}
}

/* Starts a process; returns in the caller only. */
static pid_t start(void (*work)(void), int cpu)
{
	pid_t child = fork();

	if (child < 0)
		fail("fork");
	if (child > 0)
		return child;
	end_with_parent();
	run_on(cpu);
	work();
	_exit(1);
}

static void report(unsigned long every_ms)
{
	uint64_t then = now_ns(), before = 0;

	for (;;) {
		struct timespec t = { every_ms / 1000, every_ms % 1000 * 1000000 };
		nanosleep(&t, NULL);
		uint64_t now = now_ns(), count = atomic_load_explicit(&received[0], memory_order_relaxed);
		printf("{\"event\":\"interval\",\"packets\":%llu,\"seconds\":%.9f}\n",
		       (unsigned long long)(count - before), (now - then) / 1e9);
		fflush(stdout);
		then = now;
		before = count;
	}
}

/* The mean round trip, ns: the first half of the time warms up. */
static double round_trip(unsigned long ms)
{
	void *buffer = &packets[0];
	double mean = 0;

	for (int half = 0; half < 2; half++) {
		uint64_t begin = now_ns(), n = 0, now;
		do {
			for (int i = 0; i < ROUNDS; i++, n++) {
				rte_ring_sp_enqueue(there, buffer);
				while (rte_ring_sc_dequeue(back, &buffer) != 0)
					rte_pause();
			}
			now = now_ns();
		} while (now - begin < ms * 500000);
		mean = (double)(now - begin) / n;
	}
	return mean;
}

static int usage(void)
{
	fprintf(stderr, "usage: ring rate|rtt [-a TX,RX] [-b BATCH] [-l LEN] -T MS\n");
	return 2;
}

int main(int argc, char **argv)
{
	int option, tx = -1, rx = -1;
	unsigned long ms = 0;

	while ((option = getopt(argc, argv, "a:b:l:T:")) != -1) {
		if (option == 'a' && sscanf(optarg, "%d,%d", &tx, &rx) != 2)
			return usage();
		else if (option == 'b')
			batch = strtoul(optarg, NULL, 10);
		else if (option == 'l')
			len = strtoul(optarg, NULL, 10);
		else if (option == 'T')
			ms = strtoul(optarg, NULL, 10);
		else if (option == '?')
			return usage();
	}
	if (argc - optind != 1 || ms == 0 || batch < 1 || batch > MAX_BATCH || len < 1 || len > BUFFER)
		return usage();
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	parent = getpid();
	there = make_ring("there");
	back = make_ring("back");
	packets = map((SLOTS - 1) * sizeof(*packets));
	received = map(2 * sizeof(*received));
	if (strcmp(argv[optind], "rtt") == 0) {
		pid_t child = start(echo, rx);
		run_on(tx);
		printf("{\"event\":\"summary\",\"mean_ns\":%.3f}\n", round_trip(ms));
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		return 0;
	}
	if (strcmp(argv[optind], "rate") != 0)
		return usage();
	for (unsigned i = 0; i < SLOTS - 1; i++)
		rte_ring_sp_enqueue(back, &packets[i]);
	start(receive_packets, rx);
	start(send_packets, tx);
	report(ms);
}
