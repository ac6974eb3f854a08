/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Receives packets with the functions that net/netmap_user.h compiles into the
 * program.
 *
 *	cc -O2 -o receiver receiver.c
 *	unetmap run ./receiver 'netmap:p}1' 1000000
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define NETMAP_WITH_LIBS
#include <net/netmap_user.h>

int
main(int argc, char **argv)
{
	unsigned long want, packets = 0, bytes = 0;
	struct nm_pkthdr h;
	struct pollfd fds;
	struct nm_desc *d;

	if (argc != 3) {
		fprintf(stderr, "usage: receiver PORT COUNT\n");
		return 2;
	}
	want = strtoul(argv[2], NULL, 10);
	d = nm_open(argv[1], NULL, 0, NULL);
	if (d == NULL) {
		perror(argv[1]);
		return 1;
	}
	fds.fd = NETMAP_FD(d);
	fds.events = POLLIN;
	while (packets < want) {
		if (poll(&fds, 1, -1) < 0 || (fds.revents & POLLERR)) {
			fprintf(stderr, "%s: the port failed; stopping\n", argv[1]);
			return 1;
		}
		while (packets < want && nm_nextpkt(d, &h) != NULL) {
			packets++;
			bytes += h.len;
		}
	}
	/* Publishes the release of the last slots to the sender. */
	ioctl(NETMAP_FD(d), NIOCRXSYNC, NULL);
	printf("received %lu packets, %lu bytes\n", packets, bytes);
	nm_close(d);
	return 0;
}
