/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A libpcap program with no unetmap code, for the benchmark pcap. It runs with unetmap's libpcap and
 * with the system's:
 *
 *	pcap dispatch DEVICE [FILTER]	counts by pcap_dispatch; prints a line of JSON every 20 ms
 *	pcap next_ex DEVICE [FILTER]	counts by pcap_next_ex
 *	pcap inject DEVICE		sends packets of 60 bytes
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pcap/pcap.h>

#define BYTES		60
#define INTERVAL	20		/* ms */
#define SNAPLEN		2048
#define BUFFER		(8 << 20)	/* bytes */

static unsigned long received;

static void
die(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
	exit(1);
}

static pcap_t *
open_device(const char *device, const char *text)
{
	char error[PCAP_ERRBUF_SIZE] = "";
	pcap_t *p = pcap_create(device, error);
	struct bpf_program filter;

	if (p == NULL)
		die(device, error);
	/* The buffer timeout is one millisecond. */
	if (pcap_set_snaplen(p, SNAPLEN) != 0 || pcap_set_promisc(p, 1) != 0 || pcap_set_timeout(p, 1) != 0 ||
	    pcap_set_buffer_size(p, BUFFER) != 0 || pcap_activate(p) < 0)
		die(device, pcap_geterr(p));
	if (text != NULL && (pcap_compile(p, &filter, text, 1, 0) != 0 || pcap_setfilter(p, &filter) != 0))
		die(text, pcap_geterr(p));
	return p;
}

static void
count(u_char *user, const struct pcap_pkthdr *h, const u_char *packet)
{
	(void)user, (void)packet;
	if (h->caplen != BYTES)
		die("packet", "its length is not the one that was sent");
	__atomic_store_n(&received, received + 1, __ATOMIC_RELAXED);
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *
report(void *none)
{
	const struct timespec interval = { 0, INTERVAL * 1000000L };
	unsigned long before = 0;
	double start = now();

	for (;;) {
		unsigned long packets;
		double t;

		nanosleep(&interval, NULL);
		packets = __atomic_load_n(&received, __ATOMIC_RELAXED);
		t = now();
		printf("{\"event\":\"interval\",\"packets\":%lu,\"seconds\":%.9f}\n", packets - before, t - start);
		fflush(stdout);
		before = packets;
		start = t;
	}
	return none;
}

static void
dispatch_all(pcap_t *p)
{
	while (pcap_dispatch(p, -1, count, NULL) >= 0)
		;
	die("pcap_dispatch", pcap_geterr(p));
}

static void
next_all(pcap_t *p)
{
	struct pcap_pkthdr *h;
	const u_char *packet;
	int got;

	while ((got = pcap_next_ex(p, &h, &packet)) >= 0)
		if (got == 1)
			count(NULL, h, packet);
	die("pcap_next_ex", pcap_geterr(p));
}

/* Sends IPv4 and UDP to an unused Ethernet address. */
static void
inject_all(pcap_t *p)
{
	static const u_char head[] = {
		2, 0, 0, 0, 0, 0x99, 2, 0, 0, 0, 0, 1, 8, 0,
		0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0x66, 0xbd, 10, 0, 0, 1, 10, 0, 0, 2,
		4, 210, 4, 210, 0, 26, 0, 0
	};
	u_char packet[BYTES] = { 0 };

	memcpy(packet, head, sizeof(head));
	/* An interface's queue may be full temporarily. */
	while (pcap_inject(p, packet, sizeof(packet)) == BYTES || errno == ENOBUFS || errno == EAGAIN)
		;
	die("pcap_inject", pcap_geterr(p));
}

int
main(int argc, char **argv)
{
	pthread_t reporter;
	pcap_t *p;

	if (argc == 3 && strcmp(argv[1], "inject") == 0)
		inject_all(open_device(argv[2], NULL));
	if (argc < 3 || argc > 4 || (strcmp(argv[1], "dispatch") != 0 && strcmp(argv[1], "next_ex") != 0))
		return 2;
	p = open_device(argv[2], argc == 4 ? argv[3] : NULL);
	if (pthread_create(&reporter, NULL, report, NULL) != 0)
		die("pthread_create", "failed");
	if (strcmp(argv[1], "dispatch") == 0)
		dispatch_all(p);
	next_all(p);
	return 0;
}
