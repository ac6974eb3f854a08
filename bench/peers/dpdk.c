/*
 * Peers with drivers of DPDK: a device of its own, named as for the EAL's option --vdev, sends, receives or forwards.
 *
 *   dpdk tx  [-a CPU] [-l LEN] [-b BATCH] [-D MAC] [-T MS] DEVICE
 *   dpdk rx  [-a CPU] [-l LEN] [-T MS] DEVICE
 *   dpdk fwd [-a CPU] DEVICE DEVICE
 *
 * The packets are IPv4 and UDP of 60 bytes (-l), in batches of 64 (-b), to an unused Ethernet address (-D). They are
 * written into all buffers before the first is sent, so that a sender only sets lengths. One thread polls and never
 * sleeps. `rx` prints a line of JSON each MS milliseconds, as pkt-gen does. Memory is ordinary pages (--no-huge), and
 * nothing outside of this process is touched but what the device is made of. It runs until SIGTERM, or until its parent
 * exits, and then closes its devices.
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>

#include "packet.h"

#define SLOTS 1024
#define MAX_BATCH 512u
#define MIN_LEN 60u
#define MAX_LEN 65000u
/* The longest packet of which a pool has as many buffers as rings and caches can hold. */
#define LONG 4000u
#define CACHE 256

static unsigned len = MIN_LEN, batch = 64;
static struct rte_ether_addr to = { { 2, 0, 0, 0, 0, 0x99 } };
static struct rte_mempool *pool;
static _Atomic uint64_t received;
static volatile sig_atomic_t ended;

static void fail(const char *what)
{
	fprintf(stderr, "dpdk: %s\n", what);
	exit(1);
}

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* UDP from 10.0.0.1:1234 to 10.1.0.1:1234, without UDP checksum. */
static void write_packet(struct rte_mempool *of, void *arg, void *object, unsigned index)
{
	static const unsigned char header[42] = {
		0, 0, 0, 0, 0, 0, 2, 0xbe, 0x0c, 0, 2, 0, 8, 0,
		0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 1, 0, 1,
		0x04, 0xd2, 0x04, 0xd2, 0, 0, 0, 0,
	};
	struct rte_mbuf *mbuf = object;
	unsigned char *packet = (unsigned char *)mbuf->buf_addr + RTE_PKTMBUF_HEADROOM;

	(void)of, (void)arg, (void)index;
	memset(packet, 0, len);
	memcpy(packet, header, sizeof(header));
	memcpy(packet, &to, sizeof(to));
	finish_packet(packet, len);
}

static void open_port(uint16_t port)
{
	struct rte_eth_conf conf = { 0 };
	uint16_t rx = SLOTS, tx = SLOTS;

	/* No MTU is set: packets longer than a frame of Ethernet are those that a guest leaves to its card to cut. */
	if (rte_eth_dev_configure(port, 1, 1, &conf) != 0 || rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx) != 0)
		fail("the device cannot be configured");
	if (rte_eth_rx_queue_setup(port, 0, rx, SOCKET_ID_ANY, NULL, pool) != 0)
		fail("the device has no receive queue");
	if (rte_eth_tx_queue_setup(port, 0, tx, SOCKET_ID_ANY, NULL) != 0)
		fail("the device has no transmit queue");
	if (rte_eth_dev_start(port) != 0)
		fail("the device does not start");
	/* Not all devices can. */
	rte_eth_promiscuous_enable(port);
}

static void send_packets(void)
{
	struct rte_mbuf *mbufs[MAX_BATCH];

	while (!ended) {
		unsigned sent = 0;

		if (rte_pktmbuf_alloc_bulk(pool, mbufs, batch) != 0) {
			/* All buffers are in the device: it takes them back when it is asked to send. */
			rte_eth_tx_burst(0, 0, mbufs, 0);
			continue;
		}
		for (unsigned i = 0; i < batch; i++) {
			mbufs[i]->data_len = len;
			mbufs[i]->pkt_len = len;
		}
		while (sent < batch && !ended)
			sent += rte_eth_tx_burst(0, 0, mbufs + sent, batch - sent);
	}
}

static void receive_packets(void)
{
	struct rte_mbuf *mbufs[MAX_BATCH];

	while (!ended) {
		unsigned n = rte_eth_rx_burst(0, 0, mbufs, MAX_BATCH);

		if (n == 0)
			continue;
		rte_pktmbuf_free_bulk(mbufs, n);
		atomic_store_explicit(&received, atomic_load_explicit(&received, memory_order_relaxed) + n,
				      memory_order_relaxed);
	}
}

static void forward_packets(void)
{
	struct rte_mbuf *mbufs[MAX_BATCH];

	for (uint16_t from = 0; !ended; from ^= 1) {
		unsigned n = rte_eth_rx_burst(from, 0, mbufs, batch);
		unsigned sent = n == 0 ? 0 : rte_eth_tx_burst(from ^ 1, 0, mbufs, n);

		rte_pktmbuf_free_bulk(mbufs + sent, n - sent);
	}
}

static void *report(void *every_ms)
{
	unsigned long every = *(unsigned long *)every_ms;
	uint64_t then = now_ns(), before = 0;

	for (;;) {
		struct timespec t = { every / 1000, every % 1000 * 1000000 };
		nanosleep(&t, NULL);
		uint64_t now = now_ns(), count = atomic_load_explicit(&received, memory_order_relaxed);
		printf("{\"event\":\"interval\",\"packets\":%llu,\"seconds\":%.9f}\n",
		       (unsigned long long)(count - before), (now - then) / 1e9);
		fflush(stdout);
		then = now;
		before = count;
	}
	return NULL;
}

/* Starts the EAL on a processor, with these devices and nothing else of the machine. */
static void start_eal(int cpu, char **devices, int count)
{
	char lcores[32], *argv[32];
	int argc = 0;
	static char *fixed[] = {
		"dpdk", "--no-huge", "-m", "512", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=*:error",
	};

	for (size_t i = 0; i < sizeof(fixed) / sizeof(*fixed); i++)
		argv[argc++] = fixed[i];
	snprintf(lcores, sizeof(lcores), "--lcores=0@%d", cpu);
	argv[argc++] = lcores;
	for (int i = 0; i < count; i++) {
		argv[argc++] = "--vdev";
		argv[argc++] = devices[i];
	}
	argv[argc] = NULL;
	if (rte_eal_init(argc, argv) < 0)
		fail("the EAL does not start");
	if (rte_eth_dev_count_avail() != count)
		fail("a device is missing: is its driver installed?");
}

static int usage(void)
{
	fprintf(stderr, "usage: dpdk tx|rx|fwd [-a CPU] [-l LEN] [-b BATCH] [-D MAC] [-T MS] DEVICE [DEVICE]\n");
	return 2;
}

int main(int argc, char **argv)
{
	static unsigned long every;
	int option, cpu = 0;

	while ((option = getopt(argc, argv, "a:b:D:l:T:")) != -1) {
		if (option == 'a')
			cpu = atoi(optarg);
		else if (option == 'b')
			batch = atoi(optarg);
		else if (option == 'D' && rte_ether_unformat_addr(optarg, &to) != 0)
			return usage();
		else if (option == 'l')
			len = atoi(optarg);
		else if (option == 'T')
			every = strtoul(optarg, NULL, 10);
		else if (option == '?')
			return usage();
	}
	argv += optind;
	argc -= optind;
	if (argc < 2 || len < MIN_LEN || len > MAX_LEN || batch < 1 || batch > MAX_BATCH)
		return usage();
	int devices = argc - 1, forwards = strcmp(argv[0], "fwd") == 0, sends = strcmp(argv[0], "tx") == 0;
	if (devices != 1 + forwards || (!forwards && !sends && strcmp(argv[0], "rx") != 0))
		return usage();
	struct sigaction action = { .sa_handler = end };
	sigaction(SIGTERM, &action, NULL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	start_eal(cpu, argv + 1, devices);
	uint16_t room = RTE_PKTMBUF_HEADROOM + (len > 2048 ? len + 64 : 2048);
	pool = rte_pktmbuf_pool_create("pool", len > LONG ? 4095 : 16383, CACHE, 0, room, SOCKET_ID_ANY);
	if (pool == NULL)
		fail("no memory for the packets");
	rte_mempool_obj_iter(pool, write_packet, NULL);
	for (int port = 0; port < devices; port++)
		open_port(port);
	pthread_t reporter;
	if (every > 0 && pthread_create(&reporter, NULL, report, &every) != 0)
		fail("a thread cannot be started");
	if (forwards)
		forward_packets();
	else if (sends)
		send_packets();
	else
		receive_packets();
	for (int port = 0; port < devices; port++) {
		rte_eth_dev_stop(port);
		rte_eth_dev_close(port);
	}
	return 0;
}
