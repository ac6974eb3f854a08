/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A program of libpcap's that knows nothing of us, as unetmap bench measures it:
 *
 *	pcap tx DEVICE CPU	sends packets of 60 bytes
 *	pcap rx DEVICE CPU HOW	receives, by dispatch, filter (dispatch with 27 instructions of BPF for each packet)
 *			or next (pcap_next_ex); a line of JSON every 20 ms
 *
 * Packets are IPv4 and UDP to an Ethernet address that nobody has.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <pcap/pcap.h>

#define BYTES		60
#define TIMEOUT		10		/* ms */
#define INTERVAL	20		/* ms */
#define BUFFER		(16 << 20)	/* of the system's library */
#define INSNS		27

static volatile sig_atomic_t stopped;
static unsigned long received;
static pcap_t *p;

static void
stop(int signal)
{
	(void)signal;
	stopped = 1;
	if (p != NULL)
		pcap_breakloop(p);
}

static void
die(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
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
		die("sched_setaffinity", cpu);
}

static void
open_device(const char *name)
{
	char error[PCAP_ERRBUF_SIZE];

	p = pcap_create(name, error);
	if (p == NULL)
		die(name, error);
	pcap_set_snaplen(p, 128);
	pcap_set_timeout(p, TIMEOUT);
	pcap_set_buffer_size(p, BUFFER);
	if (pcap_activate(p) < 0)
		die(name, pcap_geterr(p));
}

/* Loads and comparisons that come to nothing, and then takes the packet. */
static void
filter(void)
{
	struct bpf_insn insns[INSNS];
	struct bpf_program program = { INSNS, insns };
	int i;

	for (i = 0; i + 1 < INSNS; i += 2) {
		insns[i] = (struct bpf_insn)BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12);
		insns[i + 1] = (struct bpf_insn)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x800, 0, (u_char)(INSNS - i - 3));
	}
	insns[INSNS - 1] = (struct bpf_insn)BPF_STMT(BPF_RET | BPF_K, 128);
	if (pcap_setfilter(p, &program) != 0)
		die("filter", pcap_geterr(p));
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

static void
count(u_char *user, const struct pcap_pkthdr *h, const u_char *packet)
{
	(void)h;
	(void)packet;
	++*(unsigned long *)(void *)user;
}

static void
receive(int by_next)
{
	pthread_t reporter;
	unsigned long packets = 0;
	struct pcap_pkthdr *h;
	const u_char *at;

	if (pthread_create(&reporter, NULL, report, NULL) != 0)
		die("pthread_create", "failed");
	while (!stopped) {
		int got = by_next ? pcap_next_ex(p, &h, &at) : pcap_dispatch(p, -1, count, (u_char *)&packets);

		if (got == PCAP_ERROR)
			die("receive", pcap_geterr(p));
		if (by_next && got == 1)
			packets++;
		__atomic_store_n(&received, packets, __ATOMIC_RELAXED);
	}
	pthread_join(reporter, NULL);
}

static void
transmit(void)
{
	u_char packet[BYTES] = { 2, 0, 0, 0, 0, 0x99, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17 };

	while (!stopped)
		/* The system's library has no more buffers at times. */
		(void)pcap_inject(p, packet, sizeof(packet));
}

int
main(int argc, char **argv)
{
	int rx = argc == 5 && strcmp(argv[1], "rx") == 0, by_next = rx && strcmp(argv[4], "next") == 0;
	struct sigaction action;

	if (!rx && !(argc == 4 && strcmp(argv[1], "tx") == 0)) {
		fprintf(stderr, "usage: pcap tx DEVICE CPU | pcap rx DEVICE CPU dispatch|filter|next\n");
		return 2;
	}
	memset(&action, 0, sizeof(action));
	action.sa_handler = stop;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	pin(argv[3]);
	open_device(argv[2]);
	if (rx && strcmp(argv[4], "filter") == 0)
		filter();
	if (rx)
		receive(by_next);
	else
		transmit();
	pcap_close(p);
	return 0;
}
