/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Times of packets, slot by slot (unetmap.h): each lies between the calls that
 * moved the packet, and ports that request none have none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>

#include <libnetmap.h>
#include <net/netmap_user.h>
#include <unetmap.h>

#define PACKETS 100

#define CHECK(what)							\
	do {								\
		if (!(what)) {						\
			printf("line %d: %s\n", __LINE__, #what);	\
			exit(1);					\
		}							\
	} while (0)

static uint64_t
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static struct nmport_d *
open_port(const char *name, uint64_t flags)
{
	struct nmport_d *d = nmport_prepare(name);

	CHECK(d != NULL);
	d->reg.nr_flags |= flags;
	CHECK(nmport_open_desc(d) == 0);
	return d;
}

int
main(void)
{
	struct nmport_d *a = open_port("netmap:t{1", NR_SLOT_TIMES);
	struct nmport_d *b = open_port("netmap:t}1", NR_SLOT_TIMES);
	struct nmport_d *c = open_port("netmap:t{2", 0);
	struct netmap_ring *tx = NETMAP_TXRING(a->nifp, 0);
	struct netmap_ring *rx = NETMAP_RXRING(b->nifp, 0);
	uint64_t begin = now(), middle, end, time;
	int i, source;

	for (i = 0; i < PACKETS; i++) {
		tx->slot[i].len = 60;
		tx->head = tx->cur = i + 1;
	}
	CHECK(ioctl(a->fd, NIOCTXSYNC, NULL) == 0);
	middle = now();
	CHECK(ioctl(b->fd, NIOCRXSYNC, NULL) == 0);
	end = now();
	CHECK(nm_ring_space(rx) == PACKETS);
	for (i = 0; i < PACKETS; i++) {
		source = 0;
		time = unetmap_slot_time(a->fd, 1, 0, i, &source);
		CHECK(begin <= time && time <= middle && source == UNETMAP_TIME_SYNC);
		time = unetmap_slot_time(b->fd, 0, 0, i, NULL);
		CHECK(middle <= time && time <= end);
	}
	CHECK(unetmap_slot_time(b->fd, 0, 0, PACKETS, NULL) == 0);
	CHECK(unetmap_slot_time(b->fd, 0, 1, 0, NULL) == 0);
	CHECK(unetmap_slot_time(b->fd, 0, 0, 1000000, NULL) == 0);
	CHECK(unetmap_slot_time(c->fd, 1, 0, 0, NULL) == 0);
	CHECK(unetmap_slot_time(-1, 1, 0, 0, NULL) == 0);
	puts("ok");
	return 0;
}
