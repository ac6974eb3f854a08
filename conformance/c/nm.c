/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * The library in net/netmap_user.h: names, one mapping for two ports, packets of
 * one slot and of several.
 */
#include "check.h"

#define NETMAP_WITH_LIBS
#include <net/netmap_user.h>

static unsigned int got, got_bytes, got_more;

static void
on_packet(unsigned char *arg, const struct nm_pkthdr *h, const unsigned char *buf)
{
	CHECK(arg == (unsigned char *)&got && buf == h->buf && h->slot->len == h->caplen);
	CHECK(buf[0] == (unsigned char)got);
	got++;
	got_bytes += h->len;
	got_more += h->flags & NM_MORE_PKTS;
}

int
main(void)
{
	static char packet[5000];
	struct nm_desc *a, *b, *tx_only;
	struct nm_pkthdr h;
	struct nmreq wish;
	struct pollfd p;
	unsigned int i;

	errno = 5;
	CHECK(nm_open("eth0", NULL, 0, NULL) == NULL && errno == 0);
	CHECK(nm_open("netmap:", NULL, 0, NULL) == NULL && errno == EINVAL);
	CHECK(nm_open("netmap:n{x", NULL, 0, NULL) == NULL && errno == EINVAL);
	CHECK(nm_open("netmap:n{1/q", NULL, 0, NULL) == NULL && errno == EINVAL);
	CHECK(nm_open("netmap:there-is-none", NULL, 0, NULL) == NULL && errno != 0 && errno != EINVAL);
	CHECK(nm_open("netmap:a-name-that-is-too-long{1", NULL, 0, NULL) == NULL && errno == EINVAL);

	memset(&wish, 0, sizeof(wish));
	wish.nr_tx_slots = wish.nr_rx_slots = 64;
	wish.nr_arg3 = 3;
	a = nm_open("netmap:n{1", &wish, 0, NULL);
	CHECK(a != NULL && IS_NETMAP_DESC(a) && a->done_mmap && a->req.nr_tx_slots == 64 && a->req.nr_arg3 == 3);
	CHECK(a->nifp->ni_bufs_head != 0 && strcmp(a->req.nr_name, "n{1") == 0);
	b = nm_open("netmap:n}1", NULL, NM_OPEN_NO_MMAP, a);
	CHECK(b != NULL && !b->done_mmap && b->mem == a->mem && b->req.nr_arg2 == a->req.nr_arg2);
	CHECK(a->buf_start == b->buf_start && (char *)a->buf_end == (char *)a->mem + a->memsize);

	tx_only = nm_open("netmap:n{1-0/T", NULL, 0, a);
	CHECK(tx_only != NULL && tx_only->first_tx_ring == 0 && tx_only->last_tx_ring == 0);
	CHECK(tx_only->first_rx_ring > tx_only->last_rx_ring && nm_nextpkt(tx_only, &h) == NULL);
	CHECK(nm_close(tx_only) == 0);

	/* Ten packets, the last of three slots. */
	for (i = 0; i < 10; i++) {
		packet[0] = (char)i;
		CHECK(nm_inject(a, packet, i < 9 ? 60 : sizeof(packet)) == (i < 9 ? 60 : (int)sizeof(packet)));
	}
	CHECK(nm_tx_pending(NETMAP_TXRING(a->nifp, 0)));
	p.fd = NETMAP_FD(a);
	p.events = POLLIN;
	CHECK(poll(&p, 1, 0) == 0);	/* sends all the same */
	p.fd = NETMAP_FD(b);
	CHECK(poll(&p, 1, 10000) == 1 && p.revents == POLLIN);
	CHECK(nm_dispatch(b, 4, on_packet, (unsigned char *)&got) == 4 && got == 4 && got_more == 3);
	CHECK(nm_dispatch(b, -1, on_packet, (unsigned char *)&got) == 6 && got == 10 && got_more == 8);
	CHECK(got_bytes == 9 * 60 + sizeof(packet) && nm_nextpkt(b, &h) == NULL);

	/* And back, until there is no room: a ring always keeps one slot. */
	for (i = 0; nm_inject(b, packet, 100) == 100; i++)
		;
	CHECK(i == 63 && nm_inject(b, packet, 100) == 0);
	CHECK(ioctl(NETMAP_FD(b), NIOCTXSYNC, NULL) == 0 && ioctl(NETMAP_FD(a), NIOCRXSYNC, NULL) == 0);
	for (i = 0; nm_nextpkt(a, &h) != NULL; i++)
		CHECK(h.len == 100 && h.caplen == 100 && h.d == a);
	CHECK(i == 63);
	CHECK(ioctl(NETMAP_FD(a), NIOCRXSYNC, NULL) == 0 && ioctl(NETMAP_FD(b), NIOCTXSYNC, NULL) == 0);
	CHECK(!nm_tx_pending(NETMAP_TXRING(b->nifp, 0)));

	CHECK(nm_close(b) == 0 && nm_close(a) == 0 && nm_close(NULL) == EINVAL);
	printf("ok\n");
	return 0;
}
