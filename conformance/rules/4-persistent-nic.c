/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: persistent ports of switches as ports that programs open.
 */
#include "wire.h"

/* How long to wait for a packet that must not come. */
#define QUIET_MS	100

/* Attaches a port, and returns its number, or -1. */
static int
attach(const char *name)
{
	struct request q;
	int result, error;

	init_request(&q, NETMAP_REQ_VALE_ATTACH, name);
	q.attach.reg.nr_mode = NR_REG_ALL_NIC;
	result = send_request(&q);
	error = errno;
	close(q.fd);
	errno = error;
	return result == 0 ? (int)q.attach.port_index : -1;
}

/* Returns the number of a port in its switch, or -1. */
static int
number_of(const char *name)
{
	struct request q;

	init_request(&q, NETMAP_REQ_VALE_LIST, name);
	CHECK_OK(send_request(&q));
	close(q.fd);
	return q.list.nr_port_idx == 255 ? -1 : (int)q.list.nr_port_idx;
}

static void
new_port(const char *name)
{
	char command[64];

	CHECK_OK(simple(NETMAP_REQ_VALE_NEWIF, name));
	snprintf(command, sizeof(command), "ip link set %s up", name);
	CHECK(system(command) == 0);
}

static void
delete_port(const char *switch_port, const char *name)
{
	if (switch_port != NULL)
		CHECK_OK(simple(NETMAP_REQ_VALE_DETACH, switch_port));
	CHECK_OK(simple(NETMAP_REQ_VALE_DELIF, name));
}

/* Sends frame n on a ring, and waits until it was taken. */
static void
send_frame(const struct port *p, struct netmap_ring *ring, unsigned int n)
{
	put(ring, frame(n), FRAME, 0);
	txsync(p);
}

/* Checks that frames pass between two ports. */
static void
connected(const struct port *a, const struct port *b)
{
	send_frame(a, tx_ring(a, 0), 11);
	CHECK_EQ(received_by(b), 11);
	send_frame(b, tx_ring(b, 0), 12);
	CHECK_EQ(received_by(a), 12);
}

RULE("4-persistent-open", "a program opens a persistent port by its name before and after it is attached")
{
	struct port p, q, v;

	new_port("pa");
	p = open_port("pa", ALL_RINGS);
	put(tx_ring(&p, 0), frame(1), FRAME, 0);
	txsync(&p);
	CHECK(attach("vale1:pa") >= 0);
	v = open_port("vale1:v", ALL_RINGS);
	connected(&p, &v);
	close_port(&p);
	q = open_port("pa", ALL_RINGS);
	connected(&q, &v);
	close_port(&q);
	delete_port("vale1:pa", "pa");
}

RULE("4-persistent-switch-name", "an attached persistent port is also opened as the switch's port; it is the same port")
{
	struct port p, q, v;

	new_port("pb");
	CHECK(attach("vale1:pb") >= 0);
	v = open_port("vale1:v", ALL_RINGS);
	p = open_port("vale1:pb", ALL_RINGS);
	connected(&p, &v);
	q = open_in_region(&p, "pb", ALL_RINGS);
	CHECK_EQ(q.reg.nr_mem_id, p.reg.nr_mem_id);
	CHECK_EQ(NETMAP_TXRING(q.nifp, 0) == NETMAP_TXRING(p.nifp, 0), 1);
	CHECK_ERRNO(EBUSY, bind_port(&q, open_device(), "pb", REG(.nr_flags = NR_EXCLUSIVE)));
	close_port(&p);
}

RULE("4-persistent-exclusive", "a persistent port that is open exclusively is busy by both names")
{
	struct port p, q;

	new_port("pc");
	CHECK(attach("vale1:pc") >= 0);
	p = open_port("vale1:pc", REG(.nr_flags = NR_EXCLUSIVE));
	CHECK_ERRNO(EBUSY, bind_port(&q, open_device(), "pc", ALL_RINGS));
	CHECK_ERRNO(EBUSY, bind_port(&q, open_device(), "vale1:pc", ALL_RINGS));
	close_port(&p);
	delete_port("vale1:pc", "pc");
}

RULE("4-persistent-extra", "a persistent port has extra buffers")
{
	struct port p;

	new_port("pd");
	p = open_port("pd", REG(.nr_extra_bufs = 500));
	CHECK_EQ(p.reg.nr_extra_bufs, 500);
	close_port(&p);
	delete_port(NULL, "pd");
}

RULE("4-persistent-number", "a persistent port keeps its number in the switch while programs open and close it")
{
	struct port p;
	int number, i;

	new_port("pe");
	CHECK((number = attach("vale1:pe")) >= 0);
	for (i = 0; i < 5; i++) {
		p = open_port("vale1:pe", ALL_RINGS);
		CHECK_EQ(number_of("vale1:pe"), number);
		close_port(&p);
		CHECK_EQ(number_of("vale1:pe"), number);
	}
	delete_port("vale1:pe", "pe");
}

/* Waits for a frame on the host rx ring, and returns its number. */
static int
received_from_host(const struct port *p)
{
	struct netmap_ring *ring = rx_ring(p, p->nifp->ni_rx_rings);
	unsigned int n;
	char *data;

	for (;;) {
		while (nm_ring_empty(ring))
			CHECK_EQ(poll_fd(p->fd, POLLIN, TIMEOUT_MS, &(int){ 0 }), 1);
		data = slot_data(ring, get(ring));
		if (memcmp(data + 12, "\x88\xb5", 2) == 0) {
			memcpy(&n, data + 14, sizeof(n));
			return (int)n;
		}
	}
}

RULE("4-persistent-host", "while a program has a persistent port open, the host's packets are in its host rings")
{
	struct port v = open_port("vale1:v", ALL_RINGS), p, host;
	int stack, i, n;

	new_port("pf");
	CHECK(attach("vale1:pf") >= 0);
	stack = open_wire("pf");
	CHECK(send(stack, frame(1), FRAME, 0) == FRAME);
	CHECK_EQ(received_by(&v), 1);
	p = open_port("pf", ALL_RINGS);
	host = open_in_region(&p, "pf", REG(.nr_mode = NR_REG_SW));
	CHECK(send(stack, frame(2), FRAME, 0) == FRAME);
	CHECK_EQ(received_from_host(&host), 2);
	send_frame(&host, NETMAP_TXRING(host.nifp, host.nifp->ni_tx_rings), 3);
	while (received_on_wire(stack, TIMEOUT_MS) != 3)
		; /* frames that this socket has sent */
	send_frame(&v, tx_ring(&v, 0), 4);
	CHECK_EQ(received_by(&p), 4);
	CHECK_EQ(received_on_wire(stack, QUIET_MS), -1);
	close_port(&host);
	close_port(&p);
	/* The daemon notices the close some time later. */
	for (i = 0, n = -1; i < TIMEOUT_MS / 50 && n != 5; i++) {
		send_frame(&v, tx_ring(&v, 0), 5);
		n = received_on_wire(stack, 50);
	}
	CHECK_EQ(n, 5);
	delete_port("vale1:pf", "pf");
}

RULE("4-persistent-twice",
    "a persistent port is attached once to a switch (EBUSY); to a second switch as an interface is")
{
	struct port a = open_port("vale1:v", ALL_RINGS), b = open_port("vale2:v", ALL_RINGS), p;

	new_port("pg");
	CHECK(attach("vale1:pg") >= 0);
	CHECK_EQ(attach("vale1:pg"), -1);
	CHECK_EQ(errno, EBUSY);
	CHECK(attach("vale2:pg") >= 0);
	connected(&a, &b);
	CHECK_ERRNO(EBUSY, bind_port(&p, open_device(), "pg", ALL_RINGS));
	CHECK_OK(simple(NETMAP_REQ_VALE_DETACH, "vale2:pg"));
	delete_port("vale1:pg", "pg");
}

RULE("4-persistent-DELIF", "VALE_DELIF of a persistent port: EBUSY while a program has it open or any switch has it")
{
	struct port p;

	new_port("ph");
	p = open_port("ph", ALL_RINGS);
	CHECK_ERRNO(EBUSY, simple(NETMAP_REQ_VALE_DELIF, "ph"));
	close_port(&p);
	CHECK(attach("vale1:ph") >= 0);
	CHECK(attach("vale2:ph") >= 0);
	CHECK_ERRNO(EBUSY, simple(NETMAP_REQ_VALE_DELIF, "ph"));
	CHECK_OK(simple(NETMAP_REQ_VALE_DETACH, "vale1:ph"));
	CHECK_ERRNO(EBUSY, simple(NETMAP_REQ_VALE_DELIF, "ph"));
	delete_port("vale2:ph", "ph");
}

/* Checks that a monitor with this name sees the frames of a persistent port. */
static void
monitored(const char *name, const char *monitor, uint32_t flags)
{
	struct port v = open_port("vale1:v", ALL_RINGS), p, m;
	char switch_port[32];
	int n[2];

	snprintf(switch_port, sizeof(switch_port), "vale1:%s", name);
	new_port(name);
	CHECK(attach(switch_port) >= 0);
	CHECK_ERRNO(EINVAL, bind_port(&m, open_device(), monitor, REG(.nr_flags = flags)));
	p = open_port(name, ALL_RINGS);
	m = open_port(monitor, REG(.nr_flags = flags));
	connected(&p, &v);
	rxsync(&p);
	txsync(&p);
	n[0] = received_by(&m);
	n[1] = received_by(&m);
	CHECK(n[0] + n[1] == 11 + 12 && n[0] != n[1]);
	close_port(&m);
	close_port(&p);
	delete_port(switch_port, name);
}

RULE("4-persistent-monitor", "a monitor of an open persistent port is opened by either name")
{
	monitored("pi", "pi", NR_MONITOR_TX | NR_MONITOR_RX);
	monitored("pj", "vale1:pj", NR_MONITOR_TX | NR_MONITOR_RX);
	monitored("pk", "pk", NR_ZCOPY_MON | NR_MONITOR_RX);
	monitored("pl", "vale1:pl", NR_ZCOPY_MON | NR_MONITOR_RX);
}
