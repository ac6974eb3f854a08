/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: times of packets, slot by slot (unetmap.h). The library keeps them.
 */
#define _GNU_SOURCE
#include <time.h>
#include <unetmap.h>

#include "wire.h"

/* Programs that are linked with nothing find it in the library that `unetmap run` loads. */
extern __typeof__(unetmap_slot_time) unetmap_slot_time __attribute__((__weak__));

#define TIMED	REG(.nr_flags = NR_SLOT_TIMES)

static uint64_t
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void
need_times(void)
{
	if (access_is("node"))
		rule_cannot("times of packets are kept by the library");
	CHECK(unetmap_slot_time != NULL);
}

/* Checks the time of a slot, and what took it. */
static void
check_ring_time(const struct port *p, int tx, unsigned int ring, unsigned int slot, uint64_t begin, uint64_t end,
    int source)
{
	int taken_by = 0;
	uint64_t time = unetmap_slot_time(p->fd, tx, ring, slot, &taken_by);

	CHECK(begin <= time && time <= end);
	CHECK_EQ(taken_by, source);
}

static void
check_time(const struct port *p, int tx, unsigned int slot, uint64_t begin, uint64_t end, int source)
{
	check_ring_time(p, tx, 0, slot, begin, end, source);
}

RULE("4-times-asked", "NR_SLOT_TIMES is accepted by each access method, and changes nothing else")
{
	struct port m = open_port(unique_name("{1"), TIMED);
	struct port s = open_in_region(&m, unique_name("}1"), TIMED);

	put(tx_ring(&m, 0), "x", 1, 0);
	txsync(&m);
	rxsync(&s);
	CHECK_EQ(get(rx_ring(&s, 0))->len, 1);
}

RULE("4-times-pipe", "each slot of a pipe has the time of the sync that sent or received it")
{
	struct port m, s;
	uint64_t begin, sent, end;
	unsigned int i;

	need_times();
	m = open_port(unique_name("{1"), TIMED);
	s = open_in_region(&m, unique_name("}1"), TIMED);
	for (i = 0; i < 20; i++) {
		put(tx_ring(&m, 0), "x", 1, 0);
		begin = now();
		txsync(&m);
		sent = now();
		rxsync(&s);
		end = now();
		check_time(&m, 1, i, begin, sent, UNETMAP_TIME_SYNC);
		check_time(&s, 0, i, sent, end, UNETMAP_TIME_SYNC);
	}
}

RULE("4-times-nic", "each slot of an interface has the time of the sync that sent or received it")
{
	int far = open_wire("rb");
	uint64_t begin, end;
	unsigned int i;
	struct port p;

	need_times();
	p = open_nic("ra", TIMED);
	put(tx_ring(&p, 0), frame(1), FRAME, 0);
	begin = now();
	txsync(&p);
	end = now();
	check_time(&p, 1, 0, begin, end, UNETMAP_TIME_SYNC);
	CHECK_EQ(received_on_wire(far, TIMEOUT_MS), 1);
	CHECK(send(far, frame(2), FRAME, 0) == FRAME);
	/* On the queue of the sender's CPU. */
	for (i = 0; nm_ring_empty(rx_ring(&p, i)); i = (i + 1) % p.nifp->ni_rx_rings)
		rxsync(&p);
	end = now();
	check_ring_time(&p, 0, i, rx_ring(&p, i)->head, begin, end, UNETMAP_TIME_SYNC);
}

RULE("4-times-monitor", "a monitor has the times of the monitored syncs, however late it reads")
{
	struct port m, w;
	uint64_t begin, end;

	need_times();
	m = open_port(unique_name("{1"), ALL_RINGS);
	w = open_port(unique_name("{1"), REG(.nr_flags = NR_MONITOR_TX | NR_SLOT_TIMES));
	put(tx_ring(&m, 0), "x", 1, 0);
	begin = now();
	txsync(&m);
	end = now();
	usleep(20000);
	rxsync(&w);
	CHECK(!nm_ring_empty(rx_ring(&w, 0)));
	/* A mirror has times of the monotonic clock, which the wall clock's adjustments do not follow. */
	check_time(&w, 0, 0, begin - 1000000, end + 1000000, UNETMAP_TIME_MONITORED_SYNC);
}

RULE("4-times-none", "slots of a port without NR_SLOT_TIMES, and slots that no packet was in, have no time")
{
	struct port m, s;

	need_times();
	m = open_port(unique_name("{1"), ALL_RINGS);
	s = open_in_region(&m, unique_name("}1"), TIMED);
	put(tx_ring(&m, 0), "x", 1, 0);
	txsync(&m);
	rxsync(&s);
	CHECK_EQ(unetmap_slot_time(m.fd, 1, 0, 0, NULL), 0);
	CHECK(unetmap_slot_time(s.fd, 0, 0, 0, NULL) != 0);
	CHECK_EQ(unetmap_slot_time(s.fd, 0, 0, 1, NULL), 0);
	CHECK_EQ(unetmap_slot_time(s.fd, 0, 1, 0, NULL), 0);
	CHECK_EQ(unetmap_slot_time(-1, 0, 0, 0, NULL), 0);
}
