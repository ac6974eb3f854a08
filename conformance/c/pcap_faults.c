/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * libpcap programs under faults and unusual use: each prints "ready" once its
 * handle is active, and its results at the end.
 *
 *	pcap_faults TEST DEVICE
 */
#include "check.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <net/if.h>
#include <netpacket/packet.h>

#include <pcap/pcap.h>

static pcap_t *p;
static volatile sig_atomic_t alarms;

#define PRINT(...)	(printf(__VA_ARGS__), fflush(stdout))

static void
open_it(const char *device, int snaplen)
{
	char error[PCAP_ERRBUF_SIZE];

	p = pcap_open_live(device, snaplen, 0, 0, error);
	if (p == NULL) {
		PRINT("%s\n", error);
		exit(1);
	}
	PRINT("ready\n");
}

static void
sleep_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	while (nanosleep(&t, &t) != 0)
		;
}

/* Waits for a line from the test. */
static void
wait_for_test(void)
{
	char line[100];

	CHECK(fgets(line, sizeof(line), stdin) != NULL);
}

/* Waits for the next packet and returns it. */
static const u_char *
next_packet(struct pcap_pkthdr **h)
{
	const u_char *at;
	int got;

	while ((got = pcap_next_ex(p, h, &at)) == 0)
		;
	CHECK(got == 1);
	return at;
}

static void
snaplens(const char *device)
{
	static const int lengths[] = { -1, INT_MIN, 0, INT_MAX, 262145, 262144, 1, 65 };
	struct pcap_pkthdr *h;
	char error[PCAP_ERRBUF_SIZE];
	size_t i;

	for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		p = pcap_create(device, error);
		CHECK(p != NULL && pcap_set_snaplen(p, lengths[i]) == 0 && pcap_activate(p) == 0);
		PRINT("%d ", pcap_snapshot(p));
		if (i + 1 < sizeof(lengths) / sizeof(lengths[0]))
			pcap_close(p);
	}
	PRINT("\nready\n");
	next_packet(&h);
	PRINT("%u of %u\n", h->caplen, h->len);
}

/* The port is deleted during pcap_loop, or while the program polls the selectable descriptor. */
static void
port_deleted(const char *device, int polls)
{
	char error[PCAP_ERRBUF_SIZE];
	struct pcap_pkthdr *h;
	const u_char *at;
	int got = 0;

	open_it(device, 100);
	if (polls) {
		struct pollfd fd = { pcap_get_selectable_fd(p), POLLIN, 0 };

		CHECK(pcap_setnonblock(p, 1, error) == 0);
		/* The port may be deleted already. */
		got = pcap_dispatch(p, -1, NULL, NULL);
		while (got == 0) {
			CHECK(poll(&fd, 1, 20000) == 1);
			got = pcap_next_ex(p, &h, &at);
		}
	} else
		got = pcap_loop(p, -1, NULL, NULL);
	PRINT("%d: %s\n", got, pcap_geterr(p));
	CHECK(pcap_next_ex(p, &h, &at) == PCAP_ERROR);
	CHECK(pcap_inject(p, "an invalid frame !", 18) < 0 || pcap_inject(p, "an invalid frame !", 18) < 0 || !polls);
}

/* Reads nothing until a byte arrives on standard input, and then all packets. */
static void
slow(const char *device)
{
	struct pcap_stat st;
	struct pcap_pkthdr *h;
	const u_char *at;
	char error[PCAP_ERRBUF_SIZE];
	unsigned int read = 0, quiet = 0;

	open_it(device, 100);
	wait_for_test();
	CHECK(pcap_stats(p, &st) == 0);
	PRINT("%u\n", st.ps_recv + st.ps_drop);
	CHECK(pcap_setnonblock(p, 1, error) == 0);
	/* Packets for which the ring had no room may arrive later. */
	for (quiet = 0; quiet < 30; quiet++) {
		while (pcap_next_ex(p, &h, &at) == 1) {
			read++;
			quiet = 0;
		}
		sleep_ms(10);
	}
	CHECK(pcap_stats(p, &st) == 0);
	CHECK(st.ps_recv == read && st.ps_ifdrop == 0);
	PRINT("%u %u\n", st.ps_recv, st.ps_drop);
}

static void
count(u_char *user, const struct pcap_pkthdr *h, const u_char *at)
{
	(void)h;
	(void)at;
	++*(unsigned int *)(void *)user;
}

static int over;

static void *
break_often(void *none)
{
	while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		pcap_breakloop(p);
		sleep_ms(1);
	}
	return none;
}

/* A thread calls pcap_breakloop at any moment, with and without packets. */
static void
breaks(const char *device)
{
	pthread_t thread;
	unsigned int packets = 0, breaks = 0;

	open_it(device, 100);
	CHECK(pthread_create(&thread, NULL, break_often, NULL) == 0);
	while (packets < 30000 || breaks < 300) {
		int got = pcap_loop(p, packets < 30000 ? 1000 : -1, count, (u_char *)&packets);

		CHECK(got == 0 || got == PCAP_ERROR_BREAK);
		breaks += got != 0;
	}
	__atomic_store_n(&over, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	PRINT("%u\n", packets);
}

/* A child continues with the packet after its parent's last, and the parent after the child's last. */
static void
forks(const char *device)
{
	struct pcap_pkthdr *h;
	u_char frame[100] = { 0 };
	int i, status;

	open_it(device, 1000);
	for (i = 0; i < 10; i++)
		CHECK(next_packet(&h)[20] == i);
	/* A stream starts the flusher thread, which the child does not have. */
	for (i = 0; i < 500; i++)
		CHECK(pcap_inject(p, frame, sizeof(frame)) == sizeof(frame));
	if (fork() == 0) {
		for (i = 10; i < 20; i++)
			CHECK(next_packet(&h)[20] == i);
		for (i = 0; i < 500; i++)
			CHECK(pcap_inject(p, frame, sizeof(frame)) == sizeof(frame));
		pcap_close(p);
		exit(0);
	}
	CHECK(wait(&status) > 0 && status == 0);
	PRINT("child\n");
	wait_for_test();
	for (i = 20; i < 30; i++)
		CHECK(next_packet(&h)[20] == i);
	CHECK(pcap_inject(p, frame, sizeof(frame)) == sizeof(frame));
	PRINT("parent\n");
	wait_for_test();
}

static void
on_alarm(int signal)
{
	(void)signal;
	alarms++;
}

/* Sends to a pipe without a receiver. */
static void
full(const char *device)
{
	struct sigaction action;
	struct itimerval in = { { 0, 50000 }, { 0, 50000 } };
	char error[PCAP_ERRBUF_SIZE];
	u_char frame[100] = { 0 };
	unsigned int sent = 0;

	open_it(device, 100);
	CHECK(pcap_setnonblock(p, 1, error) == 0);
	while (pcap_inject(p, frame, sizeof(frame)) == sizeof(frame))
		sent++;
	CHECK(errno == EAGAIN && strstr(pcap_geterr(p), "send: Resource temporarily") != NULL);
	CHECK(pcap_sendpacket(p, frame, sizeof(frame)) == PCAP_ERROR && errno == EAGAIN);
	CHECK(pcap_setnonblock(p, 0, error) == 0);
	memset(&action, 0, sizeof(action));
	action.sa_handler = on_alarm;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &in, NULL);
	CHECK(pcap_inject(p, frame, sizeof(frame)) < 0 && errno == EINTR && alarms > 0);
	CHECK(pcap_inject(p, frame, 100000000) < 0 && errno == EMSGSIZE);
	PRINT("%u\n", sent);
	wait_for_test();
}

/* A stream that ends: all packets are sent without further calls. */
static void
stream(const char *device)
{
	u_char frame[100] = { 0 };
	int i;

	open_it(device, 100);
	for (i = 0; i < 777; i++)
		CHECK(pcap_inject(p, frame, sizeof(frame)) == sizeof(frame));
	wait_for_test();
	/* pcap_close sends pending packets. */
	for (i = 0; i < 555; i++)
		CHECK(pcap_inject(p, frame, sizeof(frame)) == sizeof(frame));
	pcap_close(p);
	exit(0);
}

/* Packets of several slots, received and sent. */
static void
large(const char *device)
{
	struct pcap_pkthdr *h;
	struct pcap_stat st;
	u_char frame[9000];
	const u_char *at;
	int i, k;

	open_it(device, 8000);
	/* Unread packets are counted, not their slots. */
	do
		CHECK(pcap_stats(p, &st) == 0);
	while (st.ps_recv < 3);
	CHECK(st.ps_recv == 3);
	for (i = 0; i < 3; i++) {
		at = next_packet(&h);
		CHECK(h->len == 9000 && h->caplen == 8000);
		for (k = 0; k < 8000; k++)
			CHECK(at[k] == (u_char)(k / 100 + i));
	}
	for (k = 0; k < 9000; k++)
		frame[k] = (u_char)(k / 100);
	CHECK(pcap_inject(p, frame, sizeof(frame)) == sizeof(frame));
	wait_for_test();
}

/* A flood of packets that the filter rejects: calls with a timeout, and non-blocking ones, return. */
static void
flood(const char *device)
{
	struct pcap_pkthdr *h;
	struct bpf_program filter;
	char error[PCAP_ERRBUF_SIZE];
	const u_char *at;
	unsigned int packets = 0;

	p = pcap_open_live(device, 100, 0, 100, error);
	CHECK(p != NULL && pcap_compile(p, &filter, "tcp", 1, 0) == 0 && pcap_setfilter(p, &filter) == 0);
	PRINT("ready\n");
	PRINT("dispatch %d\n", pcap_dispatch(p, -1, count, (u_char *)&packets));
	PRINT("next_ex %d\n", pcap_next_ex(p, &h, &at));
	CHECK(pcap_setnonblock(p, 1, error) == 0);
	PRINT("nonblock %d %d\n", pcap_dispatch(p, -1, count, (u_char *)&packets), pcap_next_ex(p, &h, &at));
	CHECK(packets == 0);
	wait_for_test();
}

static unsigned int received;

/* Calls pcap_stats while it holds a packet, which must stay unchanged. */
static void
stats_while_held(u_char *none, const struct pcap_pkthdr *h, const u_char *at)
{
	struct pcap_stat st;
	u_char first = at[20];

	(void)none;
	CHECK(pcap_stats(p, &st) == 0);
	sleep_ms(1);
	CHECK(h->caplen == 100 && at[20] == first && at[99] == first && first == (u_char)(received % 251));
	received++;
	CHECK(st.ps_recv >= received && st.ps_drop == 0);
}

static void
held_packet(const char *device)
{
	open_it(device, 1000);
	while (received < 600)
		CHECK(pcap_dispatch(p, -1, stats_while_held, NULL) > 0);
}

/* The same with poll on the selectable descriptor: a packet stays valid until the next call. */
static void
held_packet_select(const char *device)
{
	struct pollfd fd = { -1, POLLIN, 0 };
	struct pcap_pkthdr *h;
	char error[PCAP_ERRBUF_SIZE];
	const u_char *at;
	int got;

	open_it(device, 1000);
	CHECK(pcap_setnonblock(p, 1, error) == 0);
	fd.fd = pcap_get_selectable_fd(p);
	while (received < 600) {
		CHECK(poll(&fd, 1, 20000) == 1);
		while ((got = pcap_next_ex(p, &h, &at)) == 1)
			stats_while_held(NULL, h, at);
		CHECK(got == 0);
	}
}

/*
 * Sends by a packet socket as zmap does: after privileges were dropped, without an address family, and with the address
 * queried by another socket.
 */
static void
dropped_privileges(const char *device)
{
	struct sockaddr_ll to;
	struct ifreq req;
	char frame[60];
	int inet = socket(AF_INET, SOCK_DGRAM, 0), fd;

	open_it(device, 100);
	memset(&req, 0, sizeof(req));
	strncpy(req.ifr_name, device, IFNAMSIZ - 1);
	CHECK(ioctl(inet, SIOCGIFHWADDR, &req) == 0);
	fd = socket(AF_PACKET, SOCK_RAW, 0);
	CHECK(fd >= 0 && setgid(65534) == 0 && setuid(65534) == 0);
	CHECK(ioctl(fd, SIOCGIFINDEX, &req) == 0);
	memset(&to, 0, sizeof(to));
	to.sll_ifindex = req.ifr_ifindex;
	memset(frame, 7, sizeof(frame));
	CHECK(sendto(fd, frame, sizeof(frame), 0, (struct sockaddr *)&to, sizeof(to)) == sizeof(frame));
}

static void
ignore(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
	(void)user, (void)header, (void)bytes;
}

static void *
capture_for_ever(void *argument)
{
	(void)argument;
	pcap_loop(p, -1, ignore, NULL);
	return NULL;
}

/* A thread that waits in pcap_loop is cancelled, as iftop does at its end. */
static void
cancelled(const char *device)
{
	void *result;
	pthread_t t;

	open_it(device, 1000);
	CHECK(pthread_create(&t, NULL, capture_for_ever, NULL) == 0);
	sleep_ms(50);
	CHECK(pthread_cancel(t) == 0 && pthread_join(t, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
}

int
main(int argc, char **argv)
{
	const char *what = argc == 3 ? argv[1] : "", *device = argv[argc - 1];

	if (strcmp(what, "snaplens") == 0)
		snaplens(device);
	else if (strcmp(what, "port-deleted") == 0)
		port_deleted(device, 0);
	else if (strcmp(what, "port-deleted-select") == 0)
		port_deleted(device, 1);
	else if (strcmp(what, "slow") == 0)
		slow(device);
	else if (strcmp(what, "breaks") == 0)
		breaks(device);
	else if (strcmp(what, "forks") == 0)
		forks(device);
	else if (strcmp(what, "full") == 0)
		full(device);
	else if (strcmp(what, "stream") == 0)
		stream(device);
	else if (strcmp(what, "large") == 0)
		large(device);
	else if (strcmp(what, "flood") == 0)
		flood(device);
	else if (strcmp(what, "held-packet") == 0)
		held_packet(device);
	else if (strcmp(what, "held-packet-select") == 0)
		held_packet_select(device);
	else if (strcmp(what, "dropped-privileges") == 0)
		dropped_privileges(device);
	else if (strcmp(what, "cancelled") == 0)
		cancelled(device);
	else
		return 2;
	pcap_close(p);
	PRINT("end\n");
	return 0;
}
