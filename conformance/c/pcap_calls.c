/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * What libpcap's functions answer, a line each. Run on an interface by the
 * system's libpcap and on a port by ours, it is to print the same.
 *
 *	pcap_calls DEVICE
 *
 * After "ready" it waits for 40 frames of 60 to 99 bytes, the i-th of them of
 * bytes i from 14 on; then sends 5 of 100 bytes.
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

#define SAY(...)	(printf(__VA_ARGS__), fflush(stdout))
#define SHOW(call)	SAY("%s: %d\n", #call, (call))
/* Whether there is a sentence, not which. */
#define WHY(call)	\
	do {	\
		int got_ = (call);	\
		SAY("%s: %d%s\n", #call, got_, got_ < 0 && pcap_geterr(p)[0] != '\0' ? ", and says why" : "");	\
	} while (0)

static void
before_activation(void)
{
	struct pcap_stat st;
	struct pcap_pkthdr *h;
	const u_char *at;
	struct bpf_program f;
	int *list, n;

	SHOW(pcap_datalink(p));
	SHOW(pcap_datalink_ext(p));
	SHOW(pcap_snapshot(p));
	SHOW(pcap_is_swapped(p));
	SHOW(pcap_major_version(p));
	SHOW(pcap_minor_version(p));
	SHOW(pcap_bufsize(p));
	SHOW(pcap_fileno(p));
	SHOW(pcap_get_selectable_fd(p));
	SAY("file %d, timeout %d\n", pcap_file(p) != NULL, pcap_get_required_select_timeout(p) != NULL);
	WHY(pcap_stats(p, &st));
	SHOW(pcap_setdirection(p, PCAP_D_IN));
	SHOW(pcap_list_datalinks(p, &list));
	SHOW(pcap_next_ex(p, &h, &at));
	SHOW(pcap_dispatch(p, 1, NULL, NULL));
	SHOW(pcap_loop(p, 1, NULL, NULL));
	SHOW(pcap_inject(p, "x", 1));
	SHOW(pcap_compile(p, &f, "udp", 1, 0));
	memset(&f, 0, sizeof(f));
	WHY(pcap_setfilter(p, &f));
	SHOW(pcap_getnonblock(p, error));
	SAY("dump %d\n", pcap_dump_open(p, "/dev/null") != NULL);
	SHOW(pcap_can_set_rfmon(p));
	n = pcap_list_tstamp_types(p, &list);
	SAY("time stamps of the host: %d\n", n > 0 && list[0] == PCAP_TSTAMP_HOST);
	if (n > 0)
		pcap_free_tstamp_types(list);
	SHOW(pcap_set_tstamp_type(p, PCAP_TSTAMP_HOST));
	SHOW(pcap_set_tstamp_type(p, 77));
	SHOW(pcap_set_tstamp_precision(p, 77));
	SHOW(pcap_get_tstamp_precision(p));
	SHOW(pcap_set_tstamp_precision(p, PCAP_TSTAMP_PRECISION_NANO));
	SHOW(pcap_get_tstamp_precision(p));
	SHOW(pcap_set_tstamp_precision(p, PCAP_TSTAMP_PRECISION_MICRO));
	SHOW(pcap_set_buffer_size(p, 64 << 20));
	SHOW(pcap_set_immediate_mode(p, 1));
	SHOW(pcap_set_promisc(p, 1));
	SHOW(pcap_set_rfmon(p, 0));
	SHOW(pcap_set_timeout(p, 100));
	SHOW(pcap_set_snaplen(p, 0));
}

static void
filters(void)
{
	static const char *const texts[] = { "", "udp", "udp port", "nonsense", "ether[0] = 2 and greater 80", "len > 1e9" };
	struct bpf_program f;
	size_t i;

	for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		int got = pcap_compile(p, &f, texts[i], 1, PCAP_NETMASK_UNKNOWN);

		SAY("filter '%s': %d %s\n", texts[i], got, got < 0 ? pcap_geterr(p) : "");
		if (got == 0) {
			WHY(pcap_setfilter(p, &f));
			pcap_freecode(&f);
		}
	}
	WHY(pcap_setfilter(p, NULL));
	/* Jumps out of its end. */
	{
		struct bpf_insn bad[] = { BPF_JUMP(BPF_JMP | BPF_JA, 100, 0, 0), BPF_STMT(BPF_RET | BPF_K, 1) };

		f.bf_insns = bad;
		f.bf_len = 2;
		WHY(pcap_setfilter(p, &f));
	}
	/* All but the frames of the network's own. */
	if (pcap_compile(p, &f, "ether proto 0x88b5", 1, PCAP_NETMASK_UNKNOWN) != 0)
		SAY("%s\n", pcap_geterr(p));
	WHY(pcap_setfilter(p, &f));
	pcap_freecode(&f);
}

static void
after_activation(void)
{
	int *list, n, i;
	FILE *file;
	pcap_dumper_t *dump;

	WHY(pcap_activate(p));
	SHOW(pcap_datalink(p));
	SHOW(pcap_datalink_ext(p));
	SHOW(pcap_snapshot(p));
	SHOW(pcap_is_swapped(p));
	SAY("buffer %d\n", pcap_bufsize(p) > 0);
	SAY("descriptors %d %d\n", pcap_fileno(p) >= 0, pcap_get_selectable_fd(p) >= 0);
	SAY("file %d, timeout %d\n", pcap_file(p) != NULL, pcap_get_required_select_timeout(p) != NULL);
	WHY(pcap_set_snaplen(p, 64));
	SHOW(pcap_set_promisc(p, 0));
	SHOW(pcap_set_rfmon(p, 0));
	SHOW(pcap_set_timeout(p, 0));
	SHOW(pcap_set_immediate_mode(p, 0));
	SHOW(pcap_set_buffer_size(p, 1));
	SHOW(pcap_set_tstamp_type(p, 0));
	SHOW(pcap_set_tstamp_precision(p, 0));
	SHOW(pcap_can_set_rfmon(p));
	SHOW(pcap_setdirection(p, PCAP_D_INOUT));
	WHY(pcap_setdirection(p, 9));
	SHOW(pcap_setdirection(p, PCAP_D_IN));
	n = pcap_list_datalinks(p, &list);
	for (i = 0; i < n; i++)
		if (list[i] == DLT_EN10MB)
			SAY("link %s\n", pcap_datalink_val_to_name(list[i]));
	pcap_free_datalinks(list);
	SHOW(pcap_set_datalink(p, DLT_EN10MB));
	WHY(pcap_set_datalink(p, DLT_RAW));
	WHY(pcap_set_datalink(p, 9999));
	file = tmpfile();
	dump = pcap_dump_fopen(p, file);
	SAY("dump %d, at %ld\n", dump != NULL, pcap_dump_ftell(dump));
	pcap_dump_close(dump);
	dump = pcap_dump_open(p, "/nowhere/at/all");
	SAY("dump %d: %s\n", dump != NULL, pcap_geterr(p));
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
		SAY("packet %d: %u of %u bytes at %ld\n", seen, h->caplen, h->len, (long)h->ts.tv_sec);
	for (i = 14; i < h->caplen; i++)
		if (at[i] != (u_char)seen) {
			SAY("packet %d: byte %u is %u\n", seen, i, at[i]);
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

/* Whether the descriptor comes to rest; what the filter does not want, as kernels send by themselves, may ring. */
static int
quiet(int *n)
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
	SAY("next_ex: %d\n", seen);
	while (seen < 10)
		if ((at = pcap_next(p, &one)) != NULL)
			check(&one, at);
	SAY("next: %d\n", seen);
	n = 0;
	SAY("loop %d", pcap_loop(p, 7, on_packet, (u_char *)&n));
	SAY(": %d\n", n);
	n = got = 0;
	while (seen < 20)
		got += pcap_dispatch(p, 20 - seen, on_packet, (u_char *)&n);
	SAY("dispatch %d: %d\n", got, n);

	SHOW(pcap_setnonblock(p, 1, error));
	SHOW(pcap_getnonblock(p, error));
	n = got = 0;
	while (seen < 40) {
		FD_ZERO(&set);
		FD_SET(pcap_get_selectable_fd(p), &set);
		if (select(pcap_get_selectable_fd(p) + 1, &set, NULL, NULL, &limit) != 1) {
			SAY("select is over at %d\n", seen);
			break;
		}
		got += pcap_dispatch(p, 3, on_packet, (u_char *)&n);
	}
	SAY("select %d: %d\n", got, n);
	SHOW(pcap_dispatch(p, -1, on_packet, (u_char *)&n));
	SHOW(pcap_next_ex(p, &h, &at));
	SAY("nothing left: %d\n", quiet(&n));
	SHOW(pcap_setnonblock(p, 0, error));
	SHOW(pcap_getnonblock(p, error));
	WHY(pcap_stats(p, &st));
	SAY("received at least 40: %d, dropped %u\n", st.ps_recv >= 40, st.ps_drop + st.ps_ifdrop);
}

static void
breaking(void)
{
	struct sigaction action;
	struct itimerval in = { { 0, 0 }, { 0, 200000 } };
	pthread_t thread;
	int n = 0;

	pcap_breakloop(p);
	SHOW(pcap_loop(p, -1, on_packet, (u_char *)&n));
	pcap_breakloop(p);
	SHOW(pcap_dispatch(p, -1, on_packet, (u_char *)&n));
	memset(&action, 0, sizeof(action));
	action.sa_handler = on_alarm;
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &in, NULL);
	SHOW(pcap_loop(p, -1, on_packet, (u_char *)&n));
	pthread_create(&thread, NULL, breaker, NULL);
	SHOW(pcap_loop(p, -1, on_packet, (u_char *)&n));
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
			SAY("inject %d\n", pcap_inject(p, frame, sizeof(frame)));
		else
			SAY("sendpacket %d\n", pcap_sendpacket(p, frame, sizeof(frame)));
	}
	WHY(pcap_inject(p, frame, 0));
}

int
main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	p = pcap_create(argv[1], error);
	if (p == NULL) {
		SAY("create: %s\n", error);
		return 1;
	}
	before_activation();
	WHY(pcap_activate(p));
	after_activation();
	filters();
	SAY("ready\n");
	receiving();
	breaking();
	sending();
	pcap_close(p);
	SAY("open_live %d\n", pcap_open_live("netmap:no-such", 100, 0, 10, error) != NULL);
	SAY("open_live %d, and says why: %d\n", pcap_open_live("no-such", 100, 0, 10, error) != NULL, error[0] != '\0');
	SAY("end\n");
	return 0;
}
