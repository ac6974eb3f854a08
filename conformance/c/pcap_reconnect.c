/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Receives from a device, by pcap_dispatch alone or after select without a time
 * limit, and prints a line for each 1000 packets.
 */
#include <stdio.h>
#include <string.h>
#include <sys/select.h>

#include <pcap/pcap.h>

static unsigned long received;

static void
count(u_char *arg, const struct pcap_pkthdr *header, const u_char *bytes)
{
	(void)arg;
	(void)header;
	(void)bytes;
	if (++received % 1000 == 0) {
		puts("1000");
		fflush(stdout);
	}
}

int
main(int argc, char **argv)
{
	char error[PCAP_ERRBUF_SIZE] = "";
	pcap_t *p = argc == 3 ? pcap_open_live(argv[1], 65535, 0, 10, error) : NULL;
	int fd = -1;

	if (p == NULL)
		return 1;
	if (strcmp(argv[2], "select") == 0 && (pcap_setnonblock(p, 1, error) < 0 || (fd = pcap_get_selectable_fd(p)) < 0))
		return 1;
	for (;;) {
		fd_set fds;

		if (fd >= 0) {
			FD_ZERO(&fds);
			FD_SET(fd, &fds);
			if (select(fd + 1, &fds, NULL, NULL, NULL) < 0)
				return 1;
		}
		if (pcap_dispatch(p, -1, count, NULL) < 0) {
			fprintf(stderr, "%s\n", pcap_geterr(p));
			return 1;
		}
	}
}
