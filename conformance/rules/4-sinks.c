/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: sinks (nmsink0, nmsink1, ...).
 */
#include "port.h"

/* Milliseconds. */
#define TIMEOUT_MS	20000

/* Fills a transmit ring. Returns the number of slots. */
static unsigned int
fill(struct netmap_ring *ring)
{
	unsigned int n = nm_ring_space(ring), i;

	for (i = 0; i < n; i++)
		put(ring, "a frame of fourteen bytes or more", 34, 0);
	return n;
}

RULE("4-sink", "a sink is an interface that needs no device: in region 1, with host rings")
{
	struct port p = open_port("nmsink0", REG(.nr_mode = NR_REG_NIC_SW));

	CHECK_EQ(p.reg.nr_mem_id, 1);
	CHECK(p.reg.nr_tx_rings > 0 && p.reg.nr_rx_rings > 0);
	CHECK(p.reg.nr_host_tx_rings > 0 && p.reg.nr_host_rx_rings > 0);
	CHECK(p.reg.nr_tx_slots > 1 && p.reg.nr_rx_slots > 1);
}

RULE("4-sink-taken", "a sink takes what is sent, by syncs and by polls, and returns the slots")
{
	struct port p = open_port("nmsink0", ALL_RINGS);
	struct netmap_ring *ring = tx_ring(&p, 0);
	int revents, i;

	for (i = 0; i < 3; i++) {
		CHECK_EQ(fill(ring), ring->num_slots - 1);
		txsync(&p);
		CHECK(!nm_tx_pending(ring));
		CHECK_EQ(fill(ring), ring->num_slots - 1);
		CHECK_EQ(poll_fd(p.fd, POLLOUT, TIMEOUT_MS, &revents), 1);
		CHECK(revents & POLLOUT);
		txsync(&p);
	}
}

RULE("4-sink-receives", "a sink receives nothing: poll waits")
{
	struct port p = open_port("nmsink0", ALL_RINGS);
	int revents;

	fill(tx_ring(&p, 0));
	CHECK_EQ(poll_fd(p.fd, POLLIN, 30, &revents), 0);
	rxsync(&p);
	CHECK(nm_ring_empty(rx_ring(&p, 0)));
	CHECK(!nm_tx_pending(tx_ring(&p, 0)));
}

RULE("4-sink-host", "the host rings of a sink take what is sent, and receive nothing")
{
	struct port p = open_port("nmsink1", REG(.nr_mode = NR_REG_SW));
	struct netmap_ring *ring = tx_ring(&p, p.nifp->ni_tx_rings);

	fill(ring);
	txsync(&p);
	CHECK(!nm_tx_pending(ring));
	rxsync(&p);
	CHECK(nm_ring_empty(rx_ring(&p, p.nifp->ni_rx_rings)));
}

RULE("4-sink-numbers", "a sink is opened with the rings and slots that are requested; each number is another sink")
{
	struct port a = open_port("nmsink0", REG(.nr_tx_rings = 2, .nr_tx_slots = 256, .nr_flags = NR_EXCLUSIVE)), b;

	CHECK_EQ(a.reg.nr_tx_rings, 2);
	CHECK_EQ(a.reg.nr_tx_slots, 256);
	CHECK_ERRNO(EBUSY, bind_port(&b, open_device(), "nmsink0", ALL_RINGS));
	b = open_in_region(&a, "nmsink1", REG(.nr_flags = NR_EXCLUSIVE));
	CHECK_EQ(b.reg.nr_tx_rings, 1);
}

RULE("4-sink-information", "information about a sink, by each request")
{
	struct request q;
	struct nmreq old;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, "nmsink0");
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.info.nr_mem_id, 1);
	CHECK(q.info.nr_tx_slots > 1);
	reinit_request(&q, NETMAP_REQ_POOLS_INFO_GET, "nmsink0");
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.pools.nr_mem_id, 1);
	memset(&old, 0, sizeof(old));
	snprintf(old.nr_name, sizeof(old.nr_name), "nmsink0");
	old.nr_version = NETMAP_API;
	CHECK_OK(ioctl(open_device(), NIOCGINFO, &old));
	CHECK_EQ(old.nr_arg2, 1);
}

RULE("4-sink-pipe", "pipes of a sink, and other ports of region 1, share its memory")
{
	struct port pipe = open_port("nmsink0{1", ALL_RINGS);
	struct port sink = open_in_region(&pipe, "nmsink0", ALL_RINGS);
	struct port other = open_in_region(&sink, "nmsink0}1", ALL_RINGS);
	struct netmap_slot *to, *from;
	struct netmap_ring *rx = rx_ring(&other, 0), *tx = tx_ring(&sink, 0);
	uint32_t buf;

	put(tx_ring(&pipe, 0), "zero copy", 9, 0);
	txsync(&pipe);
	rxsync(&other);
	from = &rx->slot[rx->head];
	to = put(tx, "", 0, 0);
	buf = to->buf_idx;
	to->buf_idx = from->buf_idx;
	to->len = from->len;
	to->flags |= NS_BUF_CHANGED;
	from->buf_idx = buf;
	from->flags |= NS_BUF_CHANGED;
	rx->head = rx->cur = nm_ring_next(rx, rx->head);
	txsync(&sink);
	rxsync(&other);
	txsync(&pipe);
	CHECK(!nm_tx_pending(tx));
	CHECK(!nm_tx_pending(tx_ring(&pipe, 0)));
}

RULE("4-sink-monitor", "a monitor of a sink sees what is sent to it")
{
	struct port p = open_port("nmsink0", ALL_RINGS);
	struct port m = open_port("nmsink0", REG(.nr_flags = NR_MONITOR_TX));
	struct netmap_slot *slot;

	put(tx_ring(&p, 0), "a frame of fourteen bytes or more", 34, 0);
	txsync(&p);
	rxsync(&m);
	slot = get(rx_ring(&m, 0));
	CHECK_EQ(slot->len, 34);
	CHECK(strcmp(slot_data(rx_ring(&m, 0), slot), "a frame of fourteen bytes or more") == 0);
}

RULE("4-sink-missing", "a sink beyond the knob sink_num: ENXIO; another name is no sink")
{
	struct port p;

	CHECK_ERRNO(ENXIO, bind_port(&p, open_device(), "nmsink4000", ALL_RINGS));
	CHECK_ERRNO(ENXIO, bind_port(&p, open_device(), "nmsink", ALL_RINGS));
	CHECK_ERRNO(ENXIO, bind_port(&p, open_device(), "nmsink00", ALL_RINGS));
}
