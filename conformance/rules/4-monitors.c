/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: monitors of pipes, those that copy and those that take buffers.
 */
#include "port.h"

#define LONG	20000
#define QUIET	60

static struct port a, b;

static void
open_pipe(uint32_t slots)
{
	a = open_port(own("{1"), WISH(.nr_tx_slots = slots, .nr_rx_slots = slots));
	b = open_beside(&a, own("}1"), ANY);
}

static struct port
monitor(const char *suffix, uint64_t flags)
{
	return open_port(own(suffix), WISH(.nr_flags = flags));
}

/* One packet from a through the pipe, whole. */
static void
pass(const char *what)
{
	put(tx_ring(&a, 0), what, (unsigned)strlen(what) + 1, 0);
	txsync(&a);
	rxsync(&b);
	get(rx_ring(&b, 0));
	rxsync(&b);
	txsync(&a);
}

/* The next packet on the monitor is this one; returns its slot. */
static struct netmap_slot *
shows(const struct port *m, const char *what)
{
	struct netmap_ring *ring = rx_ring(m, 0);
	struct netmap_slot *slot;
	int revents;

	SAME(poll_fd(m->fd, POLLIN, LONG, &revents), 1);
	SAME(revents, POLLIN);
	slot = get(ring);
	if (slot->len != strlen(what) + 1 || strcmp(data_of(ring, slot), what) != 0)
		rule_fails(__FILE__, __LINE__, "the monitor shows %u bytes, not \"%s\"", slot->len, what);
	rxsync(m);
	return slot;
}

RULE("4-monitor-none", "a monitor of a port that nobody has open: EINVAL")
{
	struct port m;

	REFUSED(EINVAL, bind_port(&m, device(), own("{1"), WISH(.nr_flags = NR_MONITOR_TX)));
	REFUSED(EINVAL, bind_port(&m, device(), own("{1"), WISH(.nr_flags = NR_MONITOR_RX)));
}

RULE("4-monitor-tx", "a monitor of tx rings shows what is sent, flagged NS_TXMON")
{
	struct port m;

	open_pipe(0);
	m = monitor("{1", NR_MONITOR_TX);
	pass("one");
	pass("two");
	HOLDS(shows(&m, "one")->flags & NS_TXMON);
	HOLDS(shows(&m, "two")->flags & NS_TXMON);
}

RULE("4-monitor-rx", "a monitor of rx rings shows what is received, not flagged")
{
	struct port m;

	open_pipe(0);
	m = monitor("}1", NR_MONITOR_RX);
	pass("one");
	pass("two");
	HOLDS(!(shows(&m, "one")->flags & NS_TXMON));
	HOLDS(!(shows(&m, "two")->flags & NS_TXMON));
}

RULE("4-monitor-one-direction", "a monitor of one direction does not show the other")
{
	struct port tx, rx;
	int revents;

	open_pipe(0);
	tx = monitor("}1", NR_MONITOR_TX);
	rx = monitor("{1", NR_MONITOR_RX);
	pass("one");
	SAME(poll_fd(tx.fd, POLLIN, QUIET, &revents), 0);
	SAME(poll_fd(rx.fd, POLLIN, QUIET, &revents), 0);
}

RULE("4-monitor-before", "a sent packet is shown before its receiver has it, a received one before its program released it")
{
	struct port tx, rx;

	open_pipe(0);
	tx = monitor("{1", NR_MONITOR_TX);
	rx = monitor("}1", NR_MONITOR_RX);
	put(tx_ring(&a, 0), "one", 4, 0);
	txsync(&a);
	shows(&tx, "one");
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
	shows(&rx, "one");
}

RULE("4-monitor-unharmed", "the watched go on as if nobody looked: all packets arrive, unchanged")
{
	int i;

	open_pipe(64);
	monitor("{1", NR_MONITOR_TX | NR_MONITOR_RX);
	for (i = 0; i < 1000; i++) {
		put(tx_ring(&a, 0), &i, sizeof(i), 0);
		txsync(&a);
		rxsync(&b);
		SAME(*(int *)(void *)data_of(rx_ring(&b, 0), get(rx_ring(&b, 0))), i);
		rxsync(&b);
		txsync(&a);
	}
}

RULE("4-monitor-slow", "a monitor that does not read loses packets; the watched do not wait for it")
{
	struct port m;
	int i;

	open_pipe(64);
	m = open_port(own("{1"), WISH(.nr_flags = NR_MONITOR_TX, .nr_rx_slots = 16, .nr_tx_slots = 16));
	for (i = 0; i < 200; i++)
		pass("x");
	rxsync(&m);
	HOLDS(nm_ring_space(rx_ring(&m, 0)) < 200);
	shows(&m, "x");
}

RULE("4-monitor-region", "a monitor that copies has a region of its own")
{
	struct port m;

	open_pipe(0);
	m = monitor("{1", NR_MONITOR_TX);
	HOLDS(m.reg.nr_mem_id != a.reg.nr_mem_id);
}

RULE("4-monitor-tx-fails", "what is sent on a monitor goes nowhere")
{
	struct port m;

	open_pipe(0);
	m = monitor("{1", NR_MONITOR_TX | NR_MONITOR_RX);
	if (m.nifp->ring_ofs[0] != 0 && !nm_ring_empty(tx_ring(&m, 0)))
		put(tx_ring(&m, 0), "x", 1, 0);
	ioctl(m.fd, NIOCTXSYNC, NULL);
	rxsync(&b);
	HOLDS(nm_ring_empty(rx_ring(&b, 0)));
}

RULE("4-monitor-several", "several monitors of one ring each show everything")
{
	struct port one, two;

	open_pipe(0);
	one = monitor("{1", NR_MONITOR_TX);
	two = monitor("{1", NR_MONITOR_TX);
	pass("x");
	shows(&one, "x");
	shows(&two, "x");
}

RULE("4-monitor-rings", "a monitor has as many rx rings as the watched port in its larger direction, each for its number")
{
	struct port m, p = open_port(own("{1"), WISH(.nr_tx_rings = 3, .nr_rx_rings = 2)), q = open_port(own("}1"), ANY);
	int revents;

	m = monitor("{1", NR_MONITOR_TX | NR_MONITOR_RX);
	SAME(m.nifp->ni_rx_rings, 3);
	put(tx_ring(&p, 2), "x", 1, 0);
	txsync(&p);
	rxsync(&q);
	SAME(poll_fd(m.fd, POLLIN, LONG, &revents), 1);
	HOLDS(nm_ring_empty(rx_ring(&m, 0)) && nm_ring_empty(rx_ring(&m, 1)));
	SAME(nm_ring_space(rx_ring(&m, 2)), 1);
}

RULE("4-monitor-one-ring", "a monitor of one ring shows that ring alone")
{
	struct port m, p = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 2)), q = open_port(own("}1"), ANY);
	int revents;

	m = open_port(own("{1"), WISH(.nr_flags = NR_MONITOR_TX, .nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));
	put(tx_ring(&p, 0), "no", 3, 0);
	txsync(&p);
	SAME(poll_fd(m.fd, POLLIN, QUIET, &revents), 0);
	put(tx_ring(&p, 1), "yes", 4, 0);
	txsync(&p);
	SAME(poll_fd(m.fd, POLLIN, LONG, &revents), 1);
	rxsync(&q);
}

RULE("4-monitor-slots", "up to 4096 slots")
{
	struct port m;

	open_pipe(0);
	m = open_port(own("{1"), WISH(.nr_flags = NR_MONITOR_TX, .nr_rx_slots = 4096));
	SAME(rx_ring(&m, 0)->num_slots, 4096);
}

/* The name of a monitor with these flags, by the kinds it has in it. */
static void
is_called(uint32_t flags, const char *kinds)
{
	struct port m;
	char begin[32];

	open_pipe(0);
	m = monitor("{1", flags);
	snprintf(begin, sizeof(begin), "%s/%s#", own("{1"), kinds);
	if (strncmp(m.nifp->ni_name, begin, strlen(begin)) != 0)
		rule_fails(__FILE__, __LINE__, "it is called %s, not %s...", m.nifp->ni_name, begin);
}

RULE("4-monitor-name", "a monitor is called by its parent's name, which kinds it is of, and a number")
{
	is_called(NR_MONITOR_TX | NR_MONITOR_RX, "rt");
}

RULE("4-monitor-flags", "names ask for monitors with /r and /t, as the requests do with NR_MONITOR_RX and TX")
{
	struct nmreq r;
	int fd = device();

	open_pipe(0);
	memset(&r, 0, sizeof(r));
	snprintf(r.nr_name, sizeof(r.nr_name), "%s", own("{1"));
	r.nr_version = NETMAP_API;
	r.nr_flags = NR_REG_ALL_NIC | NR_MONITOR_TX;
	WORKS(ioctl(fd, NIOCREGIF, &r));
	HOLDS(r.nr_arg2 != a.reg.nr_mem_id);
}

RULE("4-monitor-over", "when the watched port is closed by all, its monitor has POLLERR")
{
	struct port m;
	int revents;

	open_pipe(0);
	m = monitor("{1", NR_MONITOR_TX);
	WORKS(close(a.fd));
	SAME(poll_fd(m.fd, POLLIN, LONG, &revents), 1);
	HOLDS(revents & POLLERR);
}

/* ---- without copies */

RULE("4-monitor-zcopy-region", "a monitor that does not copy lies in the region of what it watches")
{
	struct port m;

	open_pipe(0);
	m = monitor("}1", NR_ZCOPY_MON | NR_MONITOR_RX);
	SAME(m.reg.nr_mem_id, a.reg.nr_mem_id);
}

RULE("4-monitor-zcopy-after", "it shows a received packet when its program has given it back")
{
	struct port m;
	int revents;

	open_pipe(0);
	m = monitor("}1", NR_ZCOPY_MON | NR_MONITOR_RX);
	put(tx_ring(&a, 0), "one", 4, 0);
	txsync(&a);
	rxsync(&b);
	SAME(poll_fd(m.fd, POLLIN, QUIET, &revents), 0);
	get(rx_ring(&b, 0));
	rxsync(&b);
	HOLDS(!(shows(&m, "one")->flags & NS_TXMON));
}

RULE("4-monitor-zcopy-sent", "it shows a sent packet, flagged NS_TXMON, when its slot has come back")
{
	struct port m;
	int revents;

	open_pipe(0);
	m = monitor("{1", NR_ZCOPY_MON | NR_MONITOR_TX);
	put(tx_ring(&a, 0), "one", 4, 0);
	txsync(&a);
	rxsync(&b);
	SAME(poll_fd(m.fd, POLLIN, QUIET, &revents), 0);
	get(rx_ring(&b, 0));
	rxsync(&b);
	txsync(&a);
	HOLDS(shows(&m, "one")->flags & NS_TXMON);
}

RULE("4-monitor-zcopy-both", "it shows both directions, whichever was asked for")
{
	struct port m;

	open_pipe(0);
	m = monitor("{1", NR_ZCOPY_MON | NR_MONITOR_RX);
	pass("one");
	HOLDS(shows(&m, "one")->flags & NS_TXMON);
	put(tx_ring(&b, 0), "two", 4, 0);
	txsync(&b);
	rxsync(&a);
	get(rx_ring(&a, 0));
	rxsync(&a);
	HOLDS(!(shows(&m, "two")->flags & NS_TXMON));
}

RULE("4-monitor-zcopy-buffers", "it shows the very buffers; the watched slots have others in their place, and NS_BUF_CHANGED")
{
	struct netmap_slot *watched;
	uint32_t before;
	struct port m;

	open_pipe(0);
	m = monitor("}1", NR_ZCOPY_MON | NR_MONITOR_RX);
	put(tx_ring(&a, 0), "one", 4, 0);
	txsync(&a);
	rxsync(&b);
	watched = get(rx_ring(&b, 0));
	before = watched->buf_idx;
	rxsync(&b);
	SAME(shows(&m, "one")->buf_idx, before);
	txsync(&a);
	HOLDS(tx_ring(&a, 0)->slot[0].buf_idx != before);
	HOLDS(tx_ring(&a, 0)->slot[0].flags & NS_BUF_CHANGED);
}

RULE("4-monitor-zcopy-slow", "one that does not read loses packets; the watched do not wait for it, and lose none")
{
	struct port m;
	int i;

	open_pipe(64);
	m = open_port(own("}1"), WISH(.nr_flags = NR_ZCOPY_MON | NR_MONITOR_RX, .nr_rx_slots = 16, .nr_tx_slots = 16));
	for (i = 0; i < 200; i++)
		pass("x");
	rxsync(&m);
	HOLDS(nm_ring_space(rx_ring(&m, 0)) < 200);
	shows(&m, "x");
}

RULE("4-monitor-zcopy-name", "it is called by its parent's name, a z among its kinds, and a number")
{
	is_called(NR_ZCOPY_MON | NR_MONITOR_RX, "zrt");
}

RULE("4-monitor-zcopy-offsets", "it takes no OFFSETS: EOPNOTSUPP, also in the option's status")
{
	struct nmreq_opt_offsets option;
	struct port m;

	open_pipe(0);
	memset(&option, 0, sizeof(option));
	option.nro_opt.nro_reqtype = NETMAP_REQ_OPT_OFFSETS;
	option.nro_max_offset = 64;
	memset(&m, 0, sizeof(m));
	m.fd = device();
	m.hdr.nr_version = NETMAP_API;
	m.hdr.nr_reqtype = NETMAP_REQ_REGISTER;
	m.hdr.nr_body = (uintptr_t)&m.reg;
	m.hdr.nr_options = (uintptr_t)&option;
	snprintf(m.hdr.nr_name, sizeof(m.hdr.nr_name), "%s", own("{1"));
	m.reg = WISH(.nr_flags = NR_ZCOPY_MON | NR_MONITOR_RX);
	REFUSED(EOPNOTSUPP, ioctl(m.fd, NIOCCTRL, &m.hdr));
	SAME(option.nro_opt.nro_status, EOPNOTSUPP);
}
