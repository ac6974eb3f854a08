/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Sends packets with system calls only, as the first paper on netmap did:
 * opens the device, registers the port, maps the memory, fills slots and polls.
 *
 *	cc -O2 -o generator generator.c
 *	unetmap run ./generator 'p{1' 1000000
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <net/netmap_user.h>

int
main(int argc, char **argv)
{
	static const char packet[60] = "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb5 netmap";
	struct pollfd fds = { .events = POLLOUT };
	struct netmap_if *nifp;
	struct nmreq nmr;
	unsigned long left;
	uint32_t r, pending;
	char *mem;

	if (argc != 3) {
		fprintf(stderr, "usage: generator PORT COUNT\n");
		return 2;
	}
	left = strtoul(argv[2], NULL, 10);

	fds.fd = open(NETMAP_DEVICE_NAME, O_RDWR);
	memset(&nmr, 0, sizeof(nmr));
	strncpy(nmr.nr_name, argv[1], sizeof(nmr.nr_name) - 1);
	nmr.nr_version = NETMAP_API;
	nmr.nr_flags = NR_REG_ALL_NIC;
	if (fds.fd < 0 || ioctl(fds.fd, NIOCREGIF, &nmr) != 0) {
		perror(argv[1]);
		return 1;
	}
	mem = mmap(NULL, nmr.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, fds.fd, 0);
	if (mem == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	nifp = NETMAP_IF(mem, nmr.nr_offset);

	while (left > 0) {
		if (poll(&fds, 1, -1) < 0 || (fds.revents & POLLERR)) {
			fprintf(stderr, "%s: the port failed; stopping\n", argv[1]);
			return 1;
		}
		for (r = 0; r < nmr.nr_tx_rings; r++) {
			struct netmap_ring *ring = NETMAP_TXRING(nifp, r);

			/* The program fills slots in [head, tail). The next poll sends the slots before head. */
			for (; left > 0 && !nm_ring_empty(ring); left--) {
				struct netmap_slot *slot = &ring->slot[ring->head];

				memcpy(NETMAP_BUF(ring, slot->buf_idx), packet, sizeof(packet));
				slot->len = sizeof(packet);
				slot->flags = 0;
				ring->head = ring->cur = nm_ring_next(ring, ring->head);
			}
		}
	}

	/* Closing the port would drop packets that the receiver has not released. */
	do {
		if (ioctl(fds.fd, NIOCTXSYNC, NULL) != 0) {
			perror("NIOCTXSYNC");
			return 1;
		}
		poll(NULL, 0, 1);
		for (r = pending = 0; r < nmr.nr_tx_rings; r++)
			pending += nm_tx_pending(NETMAP_TXRING(nifp, r)) != 0;
	} while (pending > 0);
	printf("sent %s\n", argv[2]);
	munmap(mem, nmr.nr_memsize);
	close(fds.fd);
	return 0;
}
