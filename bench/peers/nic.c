/*
 * The peers of `unetmap bench nic-tx nic-rx nic-fwd`: implementations that use an interface without netmap, each as
 * fast as a few lines can make it, and the traffic source of the receivers and forwarders.
 *
 *   nic tx  afxdp|af_packet|sendmmsg|tx_ring|libpcap     [-a CPU]         IF
 *   nic rx  afxdp|af_packet|recvmmsg|tpacket_v3|libpcap  [-a CPU] [-T MS] IF
 *   nic fwd afxdp|libpcap                                [-a CPU]         IF IF
 *
 * All send 60 bytes (-l), IPv4 and UDP, in batches of 64 (-b) where they have batches, to an unused Ethernet address,
 * so that a stack drops them at once. Receivers and forwarders poll for packets for 50 us before they sleep. `rx`
 * prints a line of JSON each MS milliseconds, as pkt-gen does. The program runs until it is killed or its parent exits.
 * `nic has libpcap` only checks for libpcap. Exit status 77: libpcap is not installed.
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define _GNU_SOURCE
#include "nic_common.h"
#include "nic_afxdp.h"
#include "nic_af_packet.h"
#include "nic_libpcap.h"

static const struct {
	const char *role, *method;
	void (*run)(const char *interface);
	void (*forward)(const char *one, const char *other);
} peers[] = {
	{ "tx", "afxdp", tx_afxdp, NULL },
	{ "tx", "af_packet", tx_af_packet, NULL },
	{ "tx", "sendmmsg", tx_sendmmsg, NULL },
	{ "tx", "tx_ring", tx_tx_ring, NULL },
	{ "tx", "libpcap", tx_libpcap, NULL },
	{ "rx", "afxdp", rx_afxdp, NULL },
	{ "rx", "af_packet", rx_af_packet, NULL },
	{ "rx", "recvmmsg", rx_recvmmsg, NULL },
	{ "rx", "tpacket_v3", rx_tpacket_v3, NULL },
	{ "rx", "libpcap", rx_libpcap, NULL },
	{ "fwd", "afxdp", NULL, fwd_afxdp },
	{ "fwd", "libpcap", NULL, fwd_libpcap },
};

int main(int argc, char **argv)
{
	static uint64_t every;
	int option, cpu = -1;

	while ((option = getopt(argc, argv, "a:T:l:b:")) != -1) {
		if (option == 'a')
			cpu = atoi(optarg);
		else if (option == 'T')
			every = atoi(optarg);
		else if (option == 'l')
			len = atoi(optarg);
		else if (option == 'b')
			batch = atoi(optarg);
		else
			return 2;
	}
	if (len < MIN_LEN || len > MAX_LEN || batch < 1 || batch > MAX_BATCH)
		return 2;
	finish_packet(packet, len);
	argv += optind;
	argc -= optind;
	if (argc == 2 && strcmp(argv[0], "has") == 0 && strcmp(argv[1], "libpcap") == 0) {
		pcap_load();
		return 0;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (size_t i = 0; argc >= 3 && i < sizeof(peers) / sizeof(*peers); i++) {
		if (strcmp(argv[0], peers[i].role) != 0 || strcmp(argv[1], peers[i].method) != 0)
			continue;
		if (argc != (peers[i].run ? 3 : 4))
			break;
		/* AF_XDP pins its frames; kernels before 5.11 charge them to this limit. */
		struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
		setrlimit(RLIMIT_MEMLOCK, &all);
		pthread_t reporter;
		if (every > 0 && pthread_create(&reporter, NULL, report, &every) != 0)
			fail(1, "starting a thread");
		cpu_set_t set;
		CPU_ZERO(&set);
		if (cpu >= 0) {
			CPU_SET(cpu, &set);
			CHECK(sched_setaffinity(0, sizeof(set), &set), "sched_setaffinity");
		}
		if (peers[i].run)
			peers[i].run(argv[2]);
		else
			peers[i].forward(argv[2], argv[3]);
	}
	fprintf(stderr, "usage: nic tx|rx|fwd METHOD [-a CPU] [-T MS] IF [IF]\n");
	return 2;
}
