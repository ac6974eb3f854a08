/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Compares the overlay's filters with the system's bpf_filter: on random
 * programs and packets, and on programs that pcap_compile makes of expressions.
 */
#include "check.h"

#include "filter.c"

struct system_libpcap libpcap;

static uint64_t state = 88172645463325252ULL;

static uint32_t
roll(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32) % below;
}

/* A random number, often a boundary value. */
static uint32_t
number(void)
{
	static const uint32_t some[] = { 0, 1, 2, 12, 14, 31, 32, 33, 59, 60, 61, 0x800, 0x1fff, 0x7fffffff, 0xffffffff };

	return roll(3) != 0 ? some[roll(sizeof(some) / sizeof(some[0]))] : roll(3) != 0 ? roll(80) : roll(0xffffffff);
}

static struct bpf_insn
instruction(u_int left)
{
	struct bpf_insn insn;
	size_t i = roll(sizeof(translations) / sizeof(translations[0]));

	insn.code = translations[i].bpf;
	insn.k = translations[i].code == JA ? roll(left) : number();
	if (BPF_CLASS(insn.code) == BPF_ST || BPF_CLASS(insn.code) == BPF_STX || BPF_MODE(insn.code) == BPF_MEM)
		insn.k = roll(BPF_MEMWORDS);
	insn.jt = (u_char)roll(left < 255 ? left : 255);
	insn.jf = (u_char)roll(left < 255 ? left : 255);
	/* Makes a load followed by a comparison frequent. */
	if (roll(3) == 0)
		insn.code = BPF_LD | (roll(2) ? BPF_H : roll(2) ? BPF_B : BPF_W) | BPF_ABS;
	else if (roll(3) == 0)
		insn.code = BPF_JMP | (roll(2) ? BPF_JEQ : BPF_JSET) | BPF_K;
	return insn;
}

static void
compare(const struct bpf_program *program, int packets)
{
	u_char packet[80];
	struct filter f;
	size_t i;

	memset(&f, 0, sizeof(f));
	if (filter_make(&f, program) != NULL)
		return;
	CHECK(f.ops != NULL);
	while (packets-- > 0) {
		u_int caplen = roll(sizeof(packet) + 1), len = caplen + roll(3) * 100;

		for (i = 0; i < sizeof(packet); i++)
			packet[i] = (u_char)(roll(2) ? roll(256) : roll(3) * 8);
		CHECK(filter_run(&f, packet, len, caplen) == bpf_filter(program->bf_insns, packet, len, caplen));
	}
	filter_free(&f);
}

static void
expressions(void)
{
	static const char *const texts[] = {
		"udp", "tcp port 80", "host 10.0.0.1 and not port 22", "ip[8] < 64", "vlan 7", "ether[0] & 1 = 0",
		"tcp[tcpflags] & (tcp-syn|tcp-fin) != 0 and not src and dst net 192.168.0.0/16", "len > 60", "ip6 or arp",
		"icmp[0] = 8", "ether proto 0x88b5", "portrange 1000-2000", "ip[2:2] - ((ip[0] & 0xf) << 2) > 20",
		"udp[8:4] % 3 = 1"
	};
	pcap_t *dead = pcap_open_dead(DLT_EN10MB, 65535);
	struct bpf_program program;
	size_t i;

	for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		CHECK(pcap_compile(dead, &program, texts[i], 1, PCAP_NETMASK_UNKNOWN) == 0);
		compare(&program, 20000);
		pcap_freecode(&program);
	}
	CHECK(pcap_compile(dead, &program, "inbound", 1, 0) == 0);
	{
		struct filter f;

		memset(&f, 0, sizeof(f));
		CHECK(strstr(filter_make(&f, &program), "outside the packet") != NULL && f.ops == NULL);
	}
	pcap_freecode(&program);
	pcap_close(dead);
}

int
main(void)
{
	struct bpf_insn insns[BPF_MEMWORDS + 40];
	struct bpf_program program = { 0, insns };
	int i, valid = 0;

	libpcap.bpf_filter = bpf_filter;
	libpcap.bpf_validate = bpf_validate;
	expressions();
	for (i = 0; i < 300000; i++) {
		u_int at, n = BPF_MEMWORDS + 2 + roll(38);

		/* Initialises the scratch memory, which bpf_filter does not. */
		for (at = 0; at < BPF_MEMWORDS; at++)
			insns[at] = (struct bpf_insn)BPF_STMT(BPF_ST, at);
		for (; at + 1 < n; at++)
			insns[at] = instruction(n - 1 - at);
		insns[n - 1] = (struct bpf_insn)BPF_STMT(BPF_RET | BPF_K, number());
		program.bf_len = n;
		if (bpf_validate(insns, (int)n)) {
			valid++;
			compare(&program, 5);
		}
	}
	CHECK(valid > 10000);
	puts("ok");
	return 0;
}
