/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Prints the results of libpcap's functions, a line each. The output with the
 * system's libpcap on an interface and with the overlay on a port must be equal.
 *
 *	pcap_calls DEVICE
 *
 * After "ready" it receives 40 frames of 60 to 99 bytes, the i-th filled with i
 * from byte 14 on; then it sends 5 of 100 bytes.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <pcap/pcap.h>

static char error[PCAP_ERRBUF_SIZE];
static pcap_t *p;

#define PRINT(...)	(printf(__VA_ARGS__), fflush(stdout))
#define PRINT_RESULT(call)	PRINT("%s: %d\n", #call, (call))
/* Prints whether there is an error text, not which. */
#define PRINT_STATUS(call)	\
	do {	\
		int got_ = (call);	\
		PRINT("%s: %d%s\n", #call, got_, got_ < 0 && pcap_geterr(p)[0] != '\0' ? ", with an error text" : "");	\
	} while (0)

static void
before_activation(void)
{
	struct pcap_stat st;
	struct pcap_pkthdr *h;
	const u_char *at;
	struct bpf_program f;
	int *list, n;

	PRINT_RESULT(pcap_datalink(p));
	PRINT_RESULT(pcap_datalink_ext(p));
	PRINT_RESULT(pcap_snapshot(p));
	PRINT_RESULT(pcap_is_swapped(p));
	PRINT_RESULT(pcap_major_version(p));
	PRINT_RESULT(pcap_minor_version(p));
	PRINT_RESULT(pcap_bufsize(p));
	PRINT_RESULT(pcap_fileno(p));
	PRINT_RESULT(pcap_get_selectable_fd(p));
	PRINT("file %d, timeout %d\n", pcap_file(p) != NULL, pcap_get_required_select_timeout(p) != NULL);
	PRINT_STATUS(pcap_stats(p, &st));
	PRINT_RESULT(pcap_setdirection(p, PCAP_D_IN));
	PRINT_RESULT(pcap_list_datalinks(p, &list));
	PRINT_RESULT(pcap_next_ex(p, &h, &at));
	PRINT_RESULT(pcap_dispatch(p, 1, NULL, NULL));
	PRINT_RESULT(pcap_loop(p, 1, NULL, NULL));
	PRINT_RESULT(pcap_inject(p, "x", 1));
	PRINT_RESULT(pcap_compile(p, &f, "udp", 1, 0));
	memset(&f, 0, sizeof(f));
	PRINT_STATUS(pcap_setfilter(p, &f));
	PRINT_RESULT(pcap_getnonblock(p, error));
	PRINT("dump %d\n", pcap_dump_open(p, "/dev/null") != NULL);
	PRINT_RESULT(pcap_can_set_rfmon(p));
	n = pcap_list_tstamp_types(p, &list);
	PRINT("time stamps of the host: %d\n", n > 0 && list[0] == PCAP_TSTAMP_HOST);
	if (n > 0)
		pcap_free_tstamp_types(list);
	PRINT_RESULT(pcap_set_tstamp_type(p, PCAP_TSTAMP_HOST));
	PRINT_RESULT(pcap_set_tstamp_type(p, 77));
	PRINT_RESULT(pcap_set_tstamp_precision(p, 77));
	PRINT_RESULT(pcap_get_tstamp_precision(p));
	PRINT_RESULT(pcap_set_tstamp_precision(p, PCAP_TSTAMP_PRECISION_NANO));
	PRINT_RESULT(pcap_get_tstamp_precision(p));
	PRINT_RESULT(pcap_set_tstamp_precision(p, PCAP_TSTAMP_PRECISION_MICRO));
	PRINT_RESULT(pcap_set_buffer_size(p, 64 << 20));
	PRINT_RESULT(pcap_set_immediate_mode(p, 1));
	PRINT_RESULT(pcap_set_promisc(p, 1));
	PRINT_RESULT(pcap_set_rfmon(p, 0));
	PRINT_RESULT(pcap_set_timeout(p, 100));
	PRINT_RESULT(pcap_set_snaplen(p, 0));
}

static void
filters(void)
{
	static const char *const texts[] = {
		"", "udp", "udp port", "nonsense", "ether[0] = 2 and greater 80", "len > 1e9"
	};
	struct bpf_program f;
	size_t i;

	for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		int got = pcap_compile(p, &f, texts[i], 1, PCAP_NETMASK_UNKNOWN);

		PRINT("filter '%s': %d %s\n", texts[i], got, got < 0 ? pcap_geterr(p) : "");
		if (got == 0) {
			PRINT_STATUS(pcap_setfilter(p, &f));
			pcap_freecode(&f);
		}
	}
	PRINT_STATUS(pcap_setfilter(p, NULL));
	/* A jump beyond the end. */
	{
		struct bpf_insn bad[] = { BPF_JUMP(BPF_JMP | BPF_JA, 100, 0, 0), BPF_STMT(BPF_RET | BPF_K, 1) };

		f.bf_insns = bad;
		f.bf_len = 2;
		PRINT_STATUS(pcap_setfilter(p, &f));
	}
	/* Excludes frames that the kernel sends by itself. */
	if (pcap_compile(p, &f, "ether proto 0x88b5", 1, PCAP_NETMASK_UNKNOWN) != 0)
		PRINT("%s\n", pcap_geterr(p));
	PRINT_STATUS(pcap_setfilter(p, &f));
	pcap_freecode(&f);
}

static void
after_activation(void)
{
	int *list, n, i;
	FILE *file;
	pcap_dumper_t *dump;

	PRINT_STATUS(pcap_activate(p));
	PRINT_RESULT(pcap_datalink(p));
	PRINT_RESULT(pcap_datalink_ext(p));
	PRINT_RESULT(pcap_snapshot(p));
	PRINT_RESULT(pcap_is_swapped(p));
	PRINT("buffer %d\n", pcap_bufsize(p) > 0);
	PRINT("descriptors %d %d\n", pcap_fileno(p) >= 0, pcap_get_selectable_fd(p) >= 0);
	PRINT("file %d, timeout %d\n", pcap_file(p) != NULL, pcap_get_required_select_timeout(p) != NULL);
	PRINT_STATUS(pcap_set_snaplen(p, 64));
	PRINT_RESULT(pcap_set_promisc(p, 0));
	PRINT_RESULT(pcap_set_rfmon(p, 0));
	PRINT_RESULT(pcap_set_timeout(p, 0));
	PRINT_RESULT(pcap_set_immediate_mode(p, 0));
	PRINT_RESULT(pcap_set_buffer_size(p, 1));
	PRINT_RESULT(pcap_set_tstamp_type(p, 0));
	PRINT_RESULT(pcap_set_tstamp_precision(p, 0));
	PRINT_RESULT(pcap_can_set_rfmon(p));
	PRINT_RESULT(pcap_setdirection(p, PCAP_D_INOUT));
	PRINT_STATUS(pcap_setdirection(p, 9));
	PRINT_RESULT(pcap_setdirection(p, PCAP_D_IN));
	n = pcap_list_datalinks(p, &list);
	for (i = 0; i < n; i++)
		if (list[i] == DLT_EN10MB)
			PRINT("link %s\n", pcap_datalink_val_to_name(list[i]));
	pcap_free_datalinks(list);
	PRINT_RESULT(pcap_set_datalink(p, DLT_EN10MB));
	PRINT_STATUS(pcap_set_datalink(p, DLT_RAW));
	PRINT_STATUS(pcap_set_datalink(p, 9999));
	file = tmpfile();
	dump = pcap_dump_fopen(p, file);
	PRINT("dump %d, at %ld\n", dump != NULL, pcap_dump_ftell(dump));
	pcap_dump_close(dump);
	dump = pcap_dump_open(p, "/nowhere/at/all");
	PRINT("dump %d: %s\n", dump != NULL, pcap_geterr(p));
}

/* ---- packets */

static int seen;

static void
check(const struct pcap_pkthdr *h, const u_char *at)
{
	struct timeval now;
	u_int i;

	gettimeofday(&now, NULL);
	if (h->len != 60u + seen || h->caplen != h->len || llabs((long long)now.tv_sec - h->ts.tv_sec) > 100)
		PRINT("packet %d: %u of %u bytes at %ld\n", seen, h->caplen, h->len, (long)h->ts.tv_sec);
	for (i = 14; i < h->caplen; i++)
		if (at[i] != (u_char)seen) {
			PRINT("packet %d: byte %u is %u\n", seen, i, at[i]);
			break;
		}
	seen++;
}

static void
on_packet(u_char *user, const struct pcap_pkthdr *h, const u_char *at)
{
	(*(int *)(void *)user)++;
	check(h, at);
}

static void
on_alarm(int signal)
{
	(void)signal;
	pcap_breakloop(p);
}

static void *
breaker(void *arg)
{
	struct timespec t = { 0, 200000000 };

	nanosleep(&t, NULL);
	pcap_breakloop(p);
	return arg;
}

/* Whether the descriptor becomes unreadable; packets that the filter rejects may make it readable. */
static int
becomes_idle(int *n)
{
	int i;

	for (i = 0; i < 50; i++) {
		struct timeval limit = { 0, 50000 };
		fd_set set;

		FD_ZERO(&set);
		FD_SET(pcap_get_selectable_fd(p), &set);
		if (select(pcap_get_selectable_fd(p) + 1, &set, NULL, NULL, &limit) == 0)
			return 1;
		if (pcap_dispatch(p, -1, on_packet, (u_char *)n) != 0)
			return 0;
	}
	return 0;
}

static void
receiving(void)
{
	struct pcap_pkthdr *h, one;
	const u_char *at;
	int got, n = 0;
	fd_set set;
	struct timeval limit = { 20, 0 };
	struct pcap_stat st;

	while (seen < 5 && (got = pcap_next_ex(p, &h, &at)) >= 0)
		if (got == 1)
			check(h, at);
	PRINT("next_ex: %d\n", seen);
	while (seen < 10)
		if ((at = pcap_next(p, &one)) != NULL)
			check(&one, at);
	PRINT("next: %d\n", seen);
	n = 0;
	PRINT("loop %d", pcap_loop(p, 7, on_packet, (u_char *)&n));
	PRINT(": %d\n", n);
	n = got = 0;
	while (seen < 20)
		got += pcap_dispatch(p, 20 - seen, on_packet, (u_char *)&n);
	PRINT("dispatch %d: %d\n", got, n);

	PRINT_RESULT(pcap_setnonblock(p, 1, error));
	PRINT_RESULT(pcap_getnonblock(p, error));
	n = got = 0;
	while (seen < 40) {
		FD_ZERO(&set);
		FD_SET(pcap_get_selectable_fd(p), &set);
		if (select(pcap_get_selectable_fd(p) + 1, &set, NULL, NULL, &limit) != 1) {
			PRINT("select is over at %d\n", seen);
			break;
		}
		got += pcap_dispatch(p, 3, on_packet, (u_char *)&n);
	}
	PRINT("select %d: %d\n", got, n);
	PRINT_RESULT(pcap_dispatch(p, -1, on_packet, (u_char *)&n));
	PRINT_RESULT(pcap_next_ex(p, &h, &at));
	PRINT("nothing left: %d\n", becomes_idle(&n));
	PRINT_RESULT(pcap_setnonblock(p, 0, error));
	PRINT_RESULT(pcap_getnonblock(p, error));
	PRINT_STATUS(pcap_stats(p, &st));
	PRINT("received at least 40: %d, dropped %u\n", st.ps_recv >= 40, st.ps_drop + st.ps_ifdrop);
}

static void
breaking(void)
{
	struct sigaction action;
	struct itimerval in = { { 0, 0 }, { 0, 200000 } };
	pthread_t thread;
	int n = 0;

	pcap_breakloop(p);
	PRINT_RESULT(pcap_loop(p, -1, on_packet, (u_char *)&n));
	pcap_breakloop(p);
	PRINT_RESULT(pcap_dispatch(p, -1, on_packet, (u_char *)&n));
	memset(&action, 0, sizeof(action));
	action.sa_handler = on_alarm;
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &in, NULL);
	PRINT_RESULT(pcap_loop(p, -1, on_packet, (u_char *)&n));
	pthread_create(&thread, NULL, breaker, NULL);
	PRINT_RESULT(pcap_loop(p, -1, on_packet, (u_char *)&n));
	pthread_join(thread, NULL);
}

static void
sending(void)
{
	u_char frame[100] = { 2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5 };
	int i;

	for (i = 0; i < 5; i++) {
		memset(frame + 14, i, sizeof(frame) - 14);
		if (i % 2 == 0)
			PRINT("inject %d\n", pcap_inject(p, frame, sizeof(frame)));
		else
			PRINT("sendpacket %d\n", pcap_sendpacket(p, frame, sizeof(frame)));
	}
	PRINT_STATUS(pcap_inject(p, frame, 0));
}

int
main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	p = pcap_create(argv[1], error);
	if (p == NULL) {
		PRINT("create: %s\n", error);
		return 1;
	}
	before_activation();
	PRINT_STATUS(pcap_activate(p));
	after_activation();
	filters();
	PRINT("ready\n");
	receiving();
	breaking();
	sending();
	pcap_close(p);
	PRINT("open_live %d\n", pcap_open_live("netmap:no-such", 100, 0, 10, error) != NULL);
	PRINT("open_live %d, error text: %d\n", pcap_open_live("no-such", 100, 0, 10, error) != NULL, error[0] != '\0');
	PRINT("end\n");
	return 0;
}
