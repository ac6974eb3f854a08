/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.3: control blocks and sync loops of interfaces and their host rings.
 */
#include "csb.h"

/* Exchanges frames between an interface with control blocks and the wire. */
static void
exchange_on_wire(uint32_t sleep_us, int with_eventfds)
{
	static struct blocks b;
	int far = open_wire("rb");
	struct port p = open_blocks("ra", ALL_RINGS, &b);
	struct exchange x = { .port = &p, .blocks = &b, .tx_rings = p.reg.nr_tx_rings, .rx_rings = p.reg.nr_rx_rings,
		.wire = far };
	struct eventfds e = eventfds((int)(x.tx_rings + x.rx_rings));
	struct loop loop;

	CHECK(x.tx_rings + x.rx_rings <= RINGS);
	x.io = with_eventfds ? &e : NULL;
	begin(&loop, p.fd, sleep_us, with_eventfds ? &e : NULL);
	exchange_frames(&x, 2500);
	finish(&loop);
}

RULE("1.3-CSB-nic", "an interface with control blocks starts with its positions in them; poll: POLLERR, syncs: EBUSY")
{
	static struct blocks b;
	struct port p = open_blocks("ra", ALL_RINGS, &b);
	unsigned int i;
	int revents;

	for (i = 0; i < p.reg.nr_tx_rings; i++)
		CHECK_EQ(b.ktoa[i].hwtail, p.reg.nr_tx_slots - 1);
	for (; i < (unsigned)p.reg.nr_tx_rings + p.reg.nr_rx_rings; i++)
		CHECK_EQ(b.ktoa[i].hwtail, b.ktoa[i].hwcur);
	CHECK(b.atok[i].head != 0);
	CHECK_EQ(poll_fd(p.fd, POLLIN | POLLOUT, TIMEOUT_MS, &revents), 1);
	CHECK(revents & POLLERR);
	CHECK_ERRNO(EBUSY, ioctl(p.fd, NIOCTXSYNC));
	CHECK_ERRNO(EBUSY, ioctl(p.fd, NIOCRXSYNC));
}

RULE("1.3-KLOOP-nic", "the sync loop of an interface: sent frames leave on the wire, received ones are shown")
{
	exchange_on_wire(50, 0);
}

RULE("1.3-EVENTFDS-nic", "the sync loop of an interface sleeps until an eventfd is written, or a frame arrives")
{
	exchange_on_wire(0, 1);
}

RULE("1.3-KLOOP-host-nic", "the sync loop of host rings: frames to and from the host's stack")
{
	static struct blocks b;
	int stack = open_wire("ra");
	struct port p = open_blocks("ra", REG(.nr_mode = NR_REG_SW), &b);
	struct exchange x = { .port = &p, .blocks = &b, .first_tx = p.nifp->ni_tx_rings, .tx_rings = p.reg.nr_host_tx_rings,
		.first_rx = p.nifp->ni_rx_rings, .rx_rings = p.reg.nr_host_rx_rings, .wire = stack };
	struct loop loop;

	begin(&loop, p.fd, 50, NULL);
	exchange_frames(&x, 500);
	finish(&loop);
}
