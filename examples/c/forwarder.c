/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Forwards packets from one port to another with libnetmap: exchanges buffers
 * if both ports are in one region, else copies.
 *
 *	cc -O2 -o forwarder forwarder.c -lunetmap
 *	./forwarder 'netmap:p}1' 'netmap:p{2' 1000000
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include <libnetmap.h>

/* Forwards at most max slots from one ring to another, as far as slots are free. Returns their number. */
static uint32_t
forward(struct netmap_ring *from, struct netmap_ring *to, uint32_t max, int same_region)
{
	uint32_t done = 0, in = from->head, out = to->head;

	while (done < max && in != from->tail && out != to->tail) {
		struct netmap_slot *rx = &from->slot[in], *tx = &to->slot[out];

		if (same_region) {
			uint32_t buf = tx->buf_idx;

			tx->buf_idx = rx->buf_idx;
			rx->buf_idx = buf;
			tx->flags = NS_BUF_CHANGED | (rx->flags & NS_MOREFRAG);
			rx->flags = NS_BUF_CHANGED;
		} else {
			nm_pkt_copy(NETMAP_BUF_OFFSET(from, rx), NETMAP_BUF_OFFSET(to, tx), rx->len);
			tx->flags = rx->flags & NS_MOREFRAG;
		}
		tx->len = rx->len;
		in = nm_ring_next(from, in);
		out = nm_ring_next(to, out);
		done++;
	}
	from->head = from->cur = in;
	to->head = to->cur = out;
	return done;
}

int
main(int argc, char **argv)
{
	struct nmport_d *from, *to;
	struct pollfd fds[2];
	unsigned long left;
	int same_region;

	if (argc != 4) {
		fprintf(stderr, "usage: forwarder FROM TO COUNT\n");
		return 2;
	}
	left = strtoul(argv[3], NULL, 10);
	from = nmport_open(argv[1]);
	to = nmport_open(argv[2]);
	if (from == NULL || to == NULL)
		return 1;
	same_region = from->mem == to->mem;
	fds[0].fd = from->fd;
	fds[1].fd = to->fd;
	while (left > 0) {
		uint16_t r;

		/* Without free transmit slots, waits for those only: received packets could not be forwarded. */
		fds[0].events = nm_ring_empty(NETMAP_TXRING(to->nifp, to->first_tx_ring)) ? 0 : POLLIN;
		fds[1].events = fds[0].events != 0 ? 0 : POLLOUT;
		if (poll(fds, 2, -1) < 0 || ((fds[0].revents | fds[1].revents) & POLLERR)) {
			fprintf(stderr, "a port failed; stopping\n");
			return 1;
		}
		for (r = from->first_rx_ring; r <= from->last_rx_ring; r++)
			left -= forward(NETMAP_RXRING(from->nifp, r), NETMAP_TXRING(to->nifp, to->first_tx_ring),
			    left < 1024 ? (uint32_t)left : 1024, same_region);
	}
	while (nm_tx_pending(NETMAP_TXRING(to->nifp, to->first_tx_ring)))
		if (poll(fds, 2, 10) < 0 || ioctl(to->fd, NIOCTXSYNC, NULL) != 0)
			return 1;
	printf("forwarded %s, %s\n", argv[3], same_region ? "without copies" : "with copies");
	nmport_close(from);
	nmport_close(to);
	return 0;
}
