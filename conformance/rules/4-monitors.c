/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: monitors of pipes, copying and zero-copy.
 */
#include "port.h"

#define TIMEOUT_MS	20000
#define QUIET	60

static struct port a, b;

static void
open_pipe(uint32_t slots)
{
	a = open_port(unique_name("{1"), REG(.nr_tx_slots = slots, .nr_rx_slots = slots));
	b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
}

static struct port
monitor(const char *suffix, uint64_t flags)
{
	return open_port(unique_name(suffix), REG(.nr_flags = flags));
}

/* Sends one packet through the pipe, and releases it at both ends. */
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

/* Waits for the monitor's next packet and returns its slot. */
static struct netmap_slot *
next_slot(const struct port *m)
{
	int revents;

	CHECK_EQ(poll_fd(m->fd, POLLIN, TIMEOUT_MS, &revents), 1);
	CHECK_EQ(revents, POLLIN);
	return get(rx_ring(m, 0));
}

/* Checks the monitor's next packet and returns its slot. */
static struct netmap_slot *
sees(const struct port *m, const char *what)
{
	struct netmap_ring *ring = rx_ring(m, 0);
	struct netmap_slot *slot = next_slot(m);

	if (slot->len != strlen(what) + 1 || strcmp(slot_data(ring, slot), what) != 0)
		rule_fails(__FILE__, __LINE__, "the monitor shows %u bytes, not \"%s\"", slot->len, what);
	rxsync(m);
	return slot;
}

RULE("4-monitor-none", "a monitor of a port that is not open: EINVAL")
{
	struct port m;

	CHECK_ERRNO(EINVAL, bind_port(&m, open_device(), unique_name("{1"), REG(.nr_flags = NR_MONITOR_TX)));
	CHECK_ERRNO(EINVAL, bind_port(&m, open_device(), unique_name("{1"), REG(.nr_flags = NR_MONITOR_RX)));
}

RULE("4-monitor-tx", "a monitor of tx rings sees sent packets, with NS_TXMON")
{
	struct port m;

	open_pipe(0);
	m = monitor("{1", NR_MONITOR_TX);
	pass("one");
	pass("two");
	CHECK(sees(&m, "one")->flags & NS_TXMON);
	CHECK(sees(&m, "two")->flags & NS_TXMON);
}

RULE("4-monitor-rx", "a monitor of rx rings sees received packets, without NS_TXMON")
{
	struct port m;

	open_pipe(0);
	m = monitor("}1", NR_MONITOR_RX);
	pass("one");
	pass("two");
	CHECK(!(sees(&m, "one")->flags & NS_TXMON));
	CHECK(!(sees(&m, "two")->flags & NS_TXMON));
}

RULE("4-monitor-one-direction", "a monitor of one direction does not see the other")
{
	struct port tx, rx;
	int revents;

	open_pipe(0);
	tx = monitor("}1", NR_MONITOR_TX);
	rx = monitor("{1", NR_MONITOR_RX);
	pass("one");
	CHECK_EQ(poll_fd(tx.fd, POLLIN, QUIET, &revents), 0);
	CHECK_EQ(poll_fd(rx.fd, POLLIN, QUIET, &revents), 0);
}

RULE("4-monitor-before",
    "a monitor sees sent packets before their receiver, and received ones before the monitored program syncs")
{
	struct port tx, rx;

	open_pipe(0);
	tx = monitor("{1", NR_MONITOR_TX);
	rx = monitor("}1", NR_MONITOR_RX);
	put(tx_ring(&a, 0), "one", 4, 0);
	txsync(&a);
	sees(&tx, "one");
	sees(&rx, "one");
	CHECK(nm_ring_empty(rx_ring(&b, 0)));
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("4-monitor-later", "a monitor of an rx ring sees the packets of a sender that opened its end after it")
{
	struct port m;

	b = open_port(unique_name("}1"), ALL_RINGS);
	m = monitor("}1", NR_MONITOR_RX);
	a = open_in_region(&b, unique_name("{1"), ALL_RINGS);
	put(tx_ring(&a, 0), "one", 4, 0);
	txsync(&a);
	sees(&m, "one");
}

RULE("4-monitor-unharmed", "a monitor does not affect the monitored port: all packets arrive unchanged")
{
	int i;

	open_pipe(64);
	monitor("{1", NR_MONITOR_TX | NR_MONITOR_RX);
	for (i = 0; i < 1000; i++) {
		put(tx_ring(&a, 0), &i, sizeof(i), 0);
		txsync(&a);
		rxsync(&b);
		CHECK_EQ(*(int *)(void *)slot_data(rx_ring(&b, 0), get(rx_ring(&b, 0))), i);
		rxsync(&b);
		txsync(&a);
	}
}

RULE("4-monitor-slow", "a monitor that does not read loses packets; the monitored port does not wait for it")
{
	struct port m;
	int i;

	open_pipe(64);
	m = open_port(unique_name("{1"), REG(.nr_flags = NR_MONITOR_TX, .nr_rx_slots = 16, .nr_tx_slots = 16));
	for (i = 0; i < 200; i++)
		pass("x");
	rxsync(&m);
	CHECK(nm_ring_space(rx_ring(&m, 0)) < 200);
	sees(&m, "x");
}

RULE("4-monitor-region", "a copying monitor has its own region")
{
	struct port m;

	open_pipe(0);
	m = monitor("{1", NR_MONITOR_TX);
	CHECK(m.reg.nr_mem_id != a.reg.nr_mem_id);
}

RULE("4-monitor-tx-fails", "packets sent on a monitor are discarded")
{
	struct port m;

	open_pipe(0);
	m = monitor("{1", NR_MONITOR_TX | NR_MONITOR_RX);
	if (m.nifp->ring_ofs[0] != 0 && !nm_ring_empty(tx_ring(&m, 0)))
		put(tx_ring(&m, 0), "x", 1, 0);
	ioctl(m.fd, NIOCTXSYNC, NULL);
	rxsync(&b);
	CHECK(nm_ring_empty(rx_ring(&b, 0)));
}

RULE("4-monitor-several", "several monitors of one ring each see all packets")
{
	struct port one, two;

	open_pipe(0);
	one = monitor("{1", NR_MONITOR_TX);
	two = monitor("{1", NR_MONITOR_TX);
	pass("x");
	sees(&one, "x");
	sees(&two, "x");
}

RULE("4-monitor-rings",
    "a monitor has as many rx rings as the larger direction of the monitored port, with the same numbers")
{
	struct port m, p = open_port(unique_name("{1"), REG(.nr_tx_rings = 3, .nr_rx_rings = 2)),
	    q = open_port(unique_name("}1"), ALL_RINGS);
	int revents;

	m = monitor("{1", NR_MONITOR_TX | NR_MONITOR_RX);
	CHECK_EQ(m.nifp->ni_rx_rings, 3);
	put(tx_ring(&p, 2), "x", 1, 0);
	txsync(&p);
	rxsync(&q);
	CHECK_EQ(poll_fd(m.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	CHECK(nm_ring_empty(rx_ring(&m, 0)) && nm_ring_empty(rx_ring(&m, 1)));
	CHECK_EQ(nm_ring_space(rx_ring(&m, 2)), 1);
}

RULE("4-monitor-one-ring", "a monitor of one ring sees that ring only")
{
	struct port m, p = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 2)),
	    q = open_port(unique_name("}1"), ALL_RINGS);
	int revents;

	m = open_port(unique_name("{1"), REG(.nr_flags = NR_MONITOR_TX, .nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));
	put(tx_ring(&p, 0), "no", 3, 0);
	txsync(&p);
	CHECK_EQ(poll_fd(m.fd, POLLIN, QUIET, &revents), 0);
	put(tx_ring(&p, 1), "yes", 4, 0);
	txsync(&p);
	CHECK_EQ(poll_fd(m.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	rxsync(&q);
}

RULE("4-monitor-slots", "a monitor has up to 4096 slots")
{
	struct port m;

	open_pipe(0);
	m = open_port(unique_name("{1"), REG(.nr_flags = NR_MONITOR_TX, .nr_rx_slots = 4096));
	CHECK_EQ(rx_ring(&m, 0)->num_slots, 4096);
}

/* Checks that the name of a monitor with these flags contains these letters. */
static void
check_monitor_name(uint32_t flags, const char *kinds)
{
	struct port m;
	char begin[32];

	open_pipe(0);
	m = monitor("{1", flags);
	snprintf(begin, sizeof(begin), "%s/%s#", unique_name("{1"), kinds);
	if (strncmp(m.nifp->ni_name, begin, strlen(begin)) != 0)
		rule_fails(__FILE__, __LINE__, "its name is %s, not %s...", m.nifp->ni_name, begin);
}

RULE("4-monitor-name", "a monitor's name consists of its parent's name, the letters of its kinds, and a number")
{
	check_monitor_name(NR_MONITOR_TX | NR_MONITOR_RX, "rt");
}

RULE("4-monitor-flags", "/r and /t in names request monitors, like NR_MONITOR_RX and NR_MONITOR_TX")
{
	struct nmreq r;
	int fd = open_device();

	open_pipe(0);
	memset(&r, 0, sizeof(r));
	snprintf(r.nr_name, sizeof(r.nr_name), "%s", unique_name("{1"));
	r.nr_version = NETMAP_API;
	r.nr_flags = NR_REG_ALL_NIC | NR_MONITOR_TX;
	CHECK_OK(ioctl(fd, NIOCREGIF, &r));
	CHECK(r.nr_arg2 != a.reg.nr_mem_id);
}

RULE("4-monitor-over", "after the last close of the monitored port its monitor returns POLLERR")
{
	struct port m;
	int revents;

	open_pipe(0);
	m = monitor("{1", NR_MONITOR_TX);
	CHECK_OK(close(a.fd));
	CHECK_EQ(poll_fd(m.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	CHECK(revents & POLLERR);
}

/* ---- zero copy */

RULE("4-monitor-zcopy-region", "a zero-copy monitor is in the region of the monitored port")
{
	struct port m;

	open_pipe(0);
	m = monitor("}1", NR_ZCOPY_MON | NR_MONITOR_RX);
	CHECK_EQ(m.reg.nr_mem_id, a.reg.nr_mem_id);
}

RULE("4-monitor-zcopy-after", "a zero-copy monitor sees a received packet once its program has released it")
{
	struct port m;
	int revents;

	open_pipe(0);
	m = monitor("}1", NR_ZCOPY_MON | NR_MONITOR_RX);
	put(tx_ring(&a, 0), "one", 4, 0);
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(poll_fd(m.fd, POLLIN, QUIET, &revents), 0);
	get(rx_ring(&b, 0));
	rxsync(&b);
	CHECK(!(sees(&m, "one")->flags & NS_TXMON));
}

RULE("4-monitor-zcopy-sent", "a zero-copy monitor sees a sent packet, with NS_TXMON, once its slot was returned")
{
	struct port m;
	int revents;

	open_pipe(0);
	m = monitor("{1", NR_ZCOPY_MON | NR_MONITOR_TX);
	put(tx_ring(&a, 0), "one", 4, 0);
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(poll_fd(m.fd, POLLIN, QUIET, &revents), 0);
	get(rx_ring(&b, 0));
	rxsync(&b);
	txsync(&a);
	CHECK(sees(&m, "one")->flags & NS_TXMON);
}

RULE("4-monitor-zcopy-both", "a zero-copy monitor sees both directions, whichever was requested")
{
	struct port m;

	open_pipe(0);
	m = monitor("{1", NR_ZCOPY_MON | NR_MONITOR_RX);
	pass("one");
	CHECK(sees(&m, "one")->flags & NS_TXMON);
	put(tx_ring(&b, 0), "two", 4, 0);
	txsync(&b);
	rxsync(&a);
	get(rx_ring(&a, 0));
	rxsync(&a);
	CHECK(!(sees(&m, "two")->flags & NS_TXMON));
}

RULE("4-monitor-zcopy-buffers",
    "a zero-copy monitor gets the original buffers; the monitored slots get others, with NS_BUF_CHANGED")
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
	CHECK_EQ(sees(&m, "one")->buf_idx, before);
	txsync(&a);
	CHECK(tx_ring(&a, 0)->slot[0].buf_idx != before);
	CHECK(tx_ring(&a, 0)->slot[0].flags & NS_BUF_CHANGED);
}

RULE("4-monitor-zcopy-slow",
    "a zero-copy monitor that does not read loses packets; the monitored port loses none and does not wait")
{
	struct port m;
	int i;

	open_pipe(64);
	m = open_port(unique_name("}1"), REG(.nr_flags = NR_ZCOPY_MON | NR_MONITOR_RX, .nr_rx_slots = 16,
	    .nr_tx_slots = 16));
	for (i = 0; i < 200; i++)
		pass("x");
	rxsync(&m);
	CHECK(nm_ring_space(rx_ring(&m, 0)) < 200);
	sees(&m, "x");
}

RULE("4-monitor-zcopy-name", "a zero-copy monitor's name consists of its parent's name, letters with z, and a number")
{
	check_monitor_name(NR_ZCOPY_MON | NR_MONITOR_RX, "zrt");
}

/* A frame of 60 bytes with a text after its addresses and type. */
static const char *
text_frame(const char *text)
{
	static char f[60];

	memset(f, 0, sizeof(f));
	memset(f, 0xff, 6);
	f[11] = 1;
	snprintf(f + 14, sizeof(f) - 14, "%s", text);
	return f;
}

/* Checks the monitor's next packet, a frame with this text, and returns its flags. */
static unsigned int
sees_frame(const struct port *m, const char *text)
{
	struct netmap_ring *ring = rx_ring(m, 0);
	struct netmap_slot *slot = next_slot(m);

	CHECK_EQ(memcmp(slot_data(ring, slot), text_frame(text), 60), 0);
	rxsync(m);
	return slot->flags;
}

RULE("4-monitor-zcopy-vale",
    "a zero-copy monitor of a switch port: sent packets when the switch has them, received ones when they are released")
{
	struct port x = open_port("vale1:x", ALL_RINGS), y = open_port("vale1:y", ALL_RINGS), m;
	int revents;

	m = open_port("vale1:x", REG(.nr_flags = NR_ZCOPY_MON | NR_MONITOR_RX));
	CHECK_EQ(m.reg.nr_mem_id, x.reg.nr_mem_id);
	put(tx_ring(&x, 0), text_frame("out"), 60, 0);
	txsync(&x);
	CHECK(sees_frame(&m, "out") & NS_TXMON);
	put(tx_ring(&y, 0), text_frame("back"), 60, 0);
	txsync(&y);
	CHECK_EQ(poll_fd(x.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	CHECK_EQ(poll_fd(m.fd, POLLIN, QUIET, &revents), 0);
	get(rx_ring(&x, 0));
	rxsync(&x);
	CHECK(!(sees_frame(&m, "back") & NS_TXMON));
}

RULE("4-monitor-zcopy-offsets", "a zero-copy monitor with the OFFSETS option: EOPNOTSUPP, also in the option's status")
{
	struct nmreq_opt_offsets option;
	struct port m;

	open_pipe(0);
	memset(&option, 0, sizeof(option));
	option.nro_opt.nro_reqtype = NETMAP_REQ_OPT_OFFSETS;
	option.nro_max_offset = 64;
	memset(&m, 0, sizeof(m));
	m.fd = open_device();
	m.hdr.nr_version = NETMAP_API;
	m.hdr.nr_reqtype = NETMAP_REQ_REGISTER;
	m.hdr.nr_body = (uintptr_t)&m.reg;
	m.hdr.nr_options = (uintptr_t)&option;
	snprintf(m.hdr.nr_name, sizeof(m.hdr.nr_name), "%s", unique_name("{1"));
	m.reg = REG(.nr_flags = NR_ZCOPY_MON | NR_MONITOR_RX);
	CHECK_ERRNO(EOPNOTSUPP, ioctl(m.fd, NIOCCTRL, &m.hdr));
	CHECK_EQ(option.nro_opt.nro_status, EOPNOTSUPP);
}
