/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * The packet generator of netmap's first paper, as it is printed there, but for
 * what it leaves to the reader: the payload, and the end after some packets. And
 * the receiver of netmap's page.
 *
 *	paper send PORT COUNT; paper receive PORT COUNT
 */
#include <stdio.h>
#include <stdlib.h>

#include <net/netmap_paper.h>

#define LENGTH	60

static unsigned long left;

static int
done(void)
{
	if (left == 0)
		return 1;
	left--;
	return 0;
}

static int
send_packets(const char *port)
{
	struct netmap_if *nifp;
	struct netmap_ring *ring;
	struct nmreq nmr;
	struct pollfd fds;
	unsigned int i, r;
	char *buf, *p;

	fds.fd = open("/dev/netmap", O_RDWR);
	strcpy(nmr.nm_name, port);
	if (ioctl(fds.fd, NIOCREG, &nmr) != 0)
		return 1;
	p = mmap(0, nmr.memsize, fds.fd);
	nifp = NETMAP_IF(p, nmr.offset);
	fds.events = POLLOUT;
	for (;;) {
		poll(fds, 1, -1);
		for (r = 0; r < nmr.num_queues; r++) {
			ring = NETMAP_TXRING(nifp, r);
			while (ring->avail-- > 0) {
				i = ring->cur;
				if (done()) {
					/* Until all are sent and received. */
					while (ioctl(fds.fd, NIOCTXSYNC) == 0 && ring->avail < ring->num_slots - 1)
						;
					return 0;
				}
				buf = NETMAP_BUF(ring, ring->slot[i].buf_index);
				memset(buf, (int)left & 0xff, LENGTH);
				ring->slot[i].len = LENGTH;
				ring->cur = NETMAP_NEXT(ring, i);
			}
		}
	}
}

static int
receive_packets(const char *port)
{
	struct netmap_if *nifp;
	struct nmreq req;
	unsigned int i;
	char *mem, *buf;
	int fd;

	fd = open("/dev/netmap", 0);
	strcpy(req.nr_name, port);
	if (ioctl(fd, NIOCREG, &req) != 0)
		return 1;
	mem = mmap(NULL, req.nr_memsize, PROT_READ | PROT_WRITE, 0, fd, 0);
	nifp = NETMAP_IF(mem, req.nr_offset);
	for (;;) {
		struct pollfd x[1];
		struct netmap_ring *ring = NETMAP_RX_RING(nifp, 0);

		x[0].fd = fd;
		x[0].events = POLLIN;
		poll(x, 1, 1000);
		for (; ring->avail > 0; ring->avail--) {
			i = ring->cur;
			if (done())
				return 2;
			buf = NETMAP_BUF(ring, ring->slot[i].buf_index);
			if (ring->slot[i].len != LENGTH || (unsigned char)*buf != (left & 0xff))
				return 3;
			ring->cur = NETMAP_NEXT(ring, i);
		}
		if (left == 0) {
			ioctl(fd, NIOCRXSYNC);
			return 0;
		}
	}
}

int
main(int argc, char **argv)
{
	int status;

	if (argc != 4)
		return 4;
	left = strtoul(argv[3], NULL, 10);
	status = argv[1][0] == 's' ? send_packets(argv[2]) : receive_packets(argv[2]);
	if (status == 0)
		puts("ok");
	return status;
}
