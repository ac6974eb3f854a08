/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Sections 1.2 and 4: region 1, and ports without a data path (NR_REG_NULL).
 */
#include "port.h"

/* Milliseconds. */
#define TIMEOUT_MS	20000

#define NULL_PORT(...)	((struct nmreq_register){ .nr_mode = NR_REG_NULL, .nr_mem_id = 1, __VA_ARGS__ })

RULE("4-region-1", "region 1 exists without an interface: information, ports of all kinds, and again after them")
{
	static const char *const suffixes[] = { "{1", "}1", "{x" };
	struct request q;
	struct port p;
	char name[64];
	size_t i;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, "");
	q.info.nr_mem_id = 1;
	CHECK_OK(send_request(&q));
	CHECK(q.info.nr_memsize > 0);
	for (i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		p = open_port(unique_name(suffixes[i]), REG(.nr_mem_id = 1));
		CHECK_EQ(p.reg.nr_mem_id, 1);
		CHECK_EQ(p.reg.nr_memsize, q.info.nr_memsize);
		close_port(&p);
	}
	snprintf(name, sizeof(name), "vale%s:p", unique_name(""));
	p = open_port(name, REG(.nr_mem_id = 1));
	CHECK_EQ(p.reg.nr_mem_id, 1);
	reinit_request(&q, NETMAP_REQ_POOLS_INFO_GET, name);
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.pools.nr_mem_id, 1);
	CHECK_EQ(q.pools.nr_memsize, p.reg.nr_memsize);
	close_port(&p);
	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name("{2"), REG(.nr_mem_id = 999)));
}

RULE("4-region-1-joined", "ports that name region 1 share it")
{
	struct port a = open_port(unique_name("a{1"), REG(.nr_mem_id = 1));
	struct port b = open_in_region(&a, unique_name("b{1"), REG(.nr_mem_id = 1));

	CHECK_EQ(a.reg.nr_memsize, b.reg.nr_memsize);
	CHECK(a.reg.nr_offset != b.reg.nr_offset);
}

RULE("4-null-idle", "a null port in region 1 opens on an idle machine, with the rings and slots that it requests")
{
	struct port p = open_port(unique_name(""),
	    NULL_PORT(.nr_tx_rings = 10, .nr_rx_rings = 5, .nr_tx_slots = 256, .nr_rx_slots = 100));

	CHECK_EQ(p.reg.nr_mem_id, 1);
	CHECK_EQ(p.reg.nr_tx_rings, 10);
	CHECK_EQ(p.reg.nr_rx_rings, 5);
	CHECK_EQ(p.reg.nr_tx_slots, 256);
	CHECK_EQ(p.reg.nr_rx_slots, 100);
	CHECK_EQ(tx_ring(&p, 9)->num_slots, 256);
	CHECK_EQ(rx_ring(&p, 4)->num_slots, 100);
}

RULE("4-null-defaults", "a null port whose rings and slots are all 0 in the request has defaults")
{
	struct port p = open_port(unique_name(""), NULL_PORT(0));

	CHECK(p.reg.nr_tx_rings > 0 && p.reg.nr_rx_rings > 0);
	CHECK(p.reg.nr_tx_slots > 1 && p.reg.nr_rx_slots > 1);
}

RULE("4-null-sync", "syncs of a null port succeed, and poll finds it writable and never readable")
{
	struct port p = open_port(unique_name(""), NULL_PORT(.nr_tx_slots = 256));
	int revents;

	CHECK_OK(ioctl(p.fd, NIOCTXSYNC, NULL));
	CHECK_OK(ioctl(p.fd, NIOCRXSYNC, NULL));
	CHECK_EQ(poll_fd(p.fd, POLLOUT, TIMEOUT_MS, &revents), 1);
	CHECK_EQ(poll_fd(p.fd, POLLIN, 30, &revents), 0);
}

RULE("4-null-wrong", "a null port without a region, in one that does not exist, or open already: refused")
{
	const char *name = unique_name("");
	struct port p, open = open_port(name, NULL_PORT(0));

	CHECK_ERRNO(EBUSY, bind_port(&p, open_device(), name, NULL_PORT(0)));
	CHECK_ERRNO(EBUSY, bind_port(&p, open.fd, unique_name("x"), NULL_PORT(0)));
	name = unique_name("y");
	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), name, (struct nmreq_register){ .nr_mode = NR_REG_NULL }));
	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), name, NULL_PORT(.nr_mem_id = 999)));
	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), name, NULL_PORT(.nr_tx_slots = 1)));
}
