/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: pipes, and ports without a data path.
 */
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include "port.h"

RULE("4-pipe-ends", "each end receives what the other sends")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_slot *slot;

	put(tx_ring(&a, 0), "down", 5, 0);
	put(tx_ring(&b, 0), "up", 3, 0);
	txsync(&a);
	txsync(&b);
	rxsync(&a);
	rxsync(&b);
	slot = get(rx_ring(&b, 0));
	CHECK(slot->len == 5 && strcmp(slot_data(rx_ring(&b, 0), slot), "down") == 0);
	slot = get(rx_ring(&a, 0));
	CHECK(slot->len == 3 && strcmp(slot_data(rx_ring(&a, 0), slot), "up") == 0);
}

RULE("4-pipe-identifier", "a pipe is identified by a name of letters, digits and underscores")
{
	struct port a = open_port(unique_name("{left_1"), ALL_RINGS), b = open_in_region(&a, unique_name("}left_1"),
	    ALL_RINGS);
	struct port c = open_in_region(&a, unique_name("}Left_1"), ALL_RINGS);

	put(tx_ring(&a, 0), "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	rxsync(&c);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
	CHECK(nm_ring_empty(rx_ring(&c, 0)));
}

RULE("4-pipe-mirrored", "the master's tx rings are the slave's rx rings, and vice versa")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 3, .nr_tx_slots = 64,
	    .nr_rx_slots = 128));
	struct port b = open_in_region(&a, unique_name("}1"), ALL_RINGS);

	CHECK_EQ(b.reg.nr_tx_rings, 3);
	CHECK_EQ(b.reg.nr_rx_rings, 2);
	CHECK_EQ(b.reg.nr_tx_slots, 128);
	CHECK_EQ(b.reg.nr_rx_slots, 64);
	put(tx_ring(&a, 1), "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	CHECK(nm_ring_empty(rx_ring(&b, 0)));
	CHECK_EQ(nm_ring_space(rx_ring(&b, 1)), 1);
}

RULE("4-pipe-defaults", "a pipe without a parent has one ring pair of 1024 slots")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS);

	CHECK_EQ(a.reg.nr_tx_rings, 1);
	CHECK_EQ(a.reg.nr_rx_rings, 1);
	CHECK_EQ(a.reg.nr_tx_slots, 1024);
	CHECK_EQ(a.reg.nr_rx_slots, 1024);
}

RULE("4-pipe-largest", "a pipe has up to 256 rings, and up to 4096 slots")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_tx_rings = 256, .nr_rx_rings = 1, .nr_tx_slots = 16,
	    .nr_rx_slots = 16));
	struct port b = open_port(unique_name("y{1"), REG(.nr_tx_slots = 4096, .nr_rx_slots = 4096));

	CHECK_EQ(a.reg.nr_tx_rings, 256);
	CHECK_EQ(tx_ring(&a, 255)->num_slots, 16);
	CHECK_EQ(tx_ring(&b, 0)->num_slots, 4096);
	CHECK_EQ(rx_ring(&b, 0)->num_slots, 4096);
}

RULE("4-pipe-zero-copy", "the whole slot arrives at the same index: buffer, length, flags and ptr")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	struct netmap_slot sent[3];
	uint32_t i;

	for (i = 0; i < 3; i++) {
		put(tx, "x", 60 + i, NS_REPORT);
		tx->slot[i].ptr = 0x1122334455667700 + i;
		sent[i] = tx->slot[i];
	}
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx), 3);
	for (i = 0; i < 3; i++) {
		CHECK_EQ(rx->slot[i].buf_idx, sent[i].buf_idx);
		CHECK_EQ(rx->slot[i].len, sent[i].len);
		CHECK_EQ(rx->slot[i].flags & NS_REPORT, NS_REPORT);
		CHECK_EQ(rx->slot[i].ptr, sent[i].ptr);
	}
}

RULE("4-pipe-taken", "a tx slot is not returned until the receiver has released its rx slot")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_tx_slots = 16, .nr_rx_slots = 16));
	struct port b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	int i;

	for (i = 0; i < 15; i++)
		put(tx, "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx), 15);
	txsync(&a);
	CHECK(nm_ring_empty(tx));
	for (i = 0; i < 4; i++)
		get(rx);
	txsync(&a);
	CHECK(nm_ring_empty(tx));
	rxsync(&b);
	txsync(&a);
	CHECK_EQ(nm_ring_space(tx), 4);
}

RULE("4-pipe-swap-back",
    "a buffer that the receiver swaps in is returned in the sender's slot, with NS_BUF_CHANGED there only")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"),
	    REG(.nr_extra_bufs = 1));
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	uint32_t extra = b.nifp->ni_bufs_head, sent = tx->slot[0].buf_idx;
	struct netmap_slot *slot;

	put(tx, "x", 1, 0);
	put(tx, "y", 1, 0);
	txsync(&a);
	rxsync(&b);
	slot = get(rx);
	CHECK_EQ(slot->buf_idx, sent);
	slot->buf_idx = extra;
	slot->flags |= NS_BUF_CHANGED;
	b.nifp->ni_bufs_head = sent;
	*(uint32_t *)(void *)NETMAP_BUF(rx, sent) = 0;
	get(rx);
	rxsync(&b);
	txsync(&a);
	CHECK_EQ(tx->slot[0].buf_idx, extra);
	CHECK(tx->slot[0].flags & NS_BUF_CHANGED);
	CHECK(!(tx->slot[1].flags & NS_BUF_CHANGED));
	CHECK(!(slot->flags & NS_BUF_CHANGED));
}

RULE("4-pipe-other-end-first", "opening the first end creates both, with its numbers of rings and slots")
{
	struct port b = open_port(unique_name("}1"), REG(.nr_tx_rings = 2, .nr_rx_slots = 64)), a = open_in_region(&b,
	    unique_name("{1"), ALL_RINGS);

	CHECK_EQ(a.reg.nr_rx_rings, 2);
	CHECK_EQ(a.reg.nr_tx_slots, 64);
}

RULE("4-pipe-before-peer", "packets sent before the other end is opened arrive when it is")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b;

	put(tx_ring(&a, 0), "x", 1, 0);
	txsync(&a);
	b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("4-pipe-no-parent", "the parent need not exist, and no interface with its name is created")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS);

	CHECK(if_nametoindex(unique_name("")) == 0);
	txsync(&a);
}

/* Returns how often a name is in the list of interfaces. */
static int
listed(const char *name)
{
	struct ifaddrs *list, *i;
	int n = 0;

	CHECK_OK(getifaddrs(&list));
	for (i = list; i != NULL; i = i->ifa_next)
		if (strcmp(i->ifa_name, name) == 0) {
			CHECK(i->ifa_flags & IFF_UP);
			CHECK(i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_PACKET);
			n++;
		}
	freeifaddrs(list);
	return n;
}

RULE("4-pipe-looked-up", "the parent of an open pipe, and an open sink, are found where programs look up interfaces")
{
	int s = socket(AF_INET, SOCK_DGRAM, 0), i;
	char parent[IFNAMSIZ];
	struct ifreq r;
	struct port p, q, sink;

	if (access_is("node"))
		rule_cannot("the node answers no lookups of interfaces");
	CHECK_OK(s);
	snprintf(parent, sizeof(parent), "%s", unique_name(""));
	memset(&r, 0, sizeof(r));
	memcpy(r.ifr_name, parent, sizeof(parent));
	CHECK_ERRNO(ENODEV, ioctl(s, SIOCGIFFLAGS, &r));
	CHECK_EQ(listed(parent), 0);
	p = open_port(unique_name("{1"), ALL_RINGS);
	q = open_in_region(&p, unique_name("}2"), ALL_RINGS);
	sink = open_port("nmsink0", ALL_RINGS);
	for (i = 0; i < 2; i++) {
		snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", i == 0 ? parent : "nmsink0");
		CHECK_OK(ioctl(s, SIOCGIFFLAGS, &r));
		CHECK((r.ifr_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING));
		r.ifr_flags |= IFF_PROMISC;
		CHECK_OK(ioctl(s, SIOCSIFFLAGS, &r));
		CHECK_OK(ioctl(s, SIOCGIFMTU, &r));
		CHECK_EQ(r.ifr_mtu, 1500);
		CHECK_OK(ioctl(s, SIOCGIFHWADDR, &r));
		CHECK_EQ(r.ifr_hwaddr.sa_data[0], 2);
		CHECK_EQ(listed(r.ifr_name), 1);
	}
	close_port(&p);
	close_port(&q);
	close_port(&sink);
	memcpy(r.ifr_name, parent, sizeof(parent));
	for (i = 0; i < 1000 && ioctl(s, SIOCGIFFLAGS, &r) == 0; i++)
		usleep(10000);
	CHECK_ERRNO(ENODEV, ioctl(s, SIOCGIFFLAGS, &r));
	CHECK_EQ(listed(parent), 0);
}

RULE("4-pipe-one-region", "pipes of one parent are in one region, pipes of different parents in different ones")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_port(unique_name("}1"), ALL_RINGS),
	    c = open_port(unique_name("{2"), ALL_RINGS);
	struct port d = open_port(unique_name("x{1"), ALL_RINGS);

	CHECK_EQ(b.reg.nr_mem_id, a.reg.nr_mem_id);
	CHECK_EQ(c.reg.nr_mem_id, a.reg.nr_mem_id);
	CHECK(d.reg.nr_mem_id != a.reg.nr_mem_id);
}

/* Sends n numbered packets from one port to another, through rings that they fill several times. */
static void
send_all(const struct port *from, const struct port *to, uint32_t n)
{
	struct netmap_ring *tx = tx_ring(from, 0), *rx = rx_ring(to, 0);
	uint32_t sent = 0, got = 0, number;
	int i;

	for (i = 0; got < n && i < 20000; i++) {
		while (sent < n && !nm_ring_empty(tx)) {
			put(tx, &sent, sizeof(sent), 0);
			sent++;
		}
		txsync(from);
		rxsync(to);
		if (nm_ring_empty(rx))
			usleep(1000);
		for (; !nm_ring_empty(rx); got++) {
			memcpy(&number, slot_data(rx, get(rx)), sizeof(number));
			CHECK_EQ(number, got);
		}
	}
	rxsync(to);
	CHECK_EQ(got, n);
}

RULE("4-pipe-copied",
    "an end that is opened in another region than the open one has its packets copied, both ways and in order")
{
	struct port b = open_port(unique_name("}1"), ALL_RINGS), other = open_port(unique_name("x{1"), ALL_RINGS), a;
	struct request q;
	int i;

	for (i = 0; i < 2; i++) {
		a = open_in_region(&other, unique_name("{1"), REG(.nr_mem_id = other.reg.nr_mem_id));
		CHECK(a.reg.nr_mem_id != b.reg.nr_mem_id);
		send_all(&a, &b, 5000);
		send_all(&b, &a, 5000);
		init_request(&q, NETMAP_REQ_PORT_INFO_GET, unique_name("{1"));
		CHECK_OK(send_request(&q));
		CHECK_EQ(q.info.nr_mem_id, other.reg.nr_mem_id);
		CHECK_OK(close(q.fd));
		CHECK_OK(close(a.fd));
	}
	/* Closed, it can be opened in the pipe's region again. */
	a = open_in_region(&b, unique_name("{1"), ALL_RINGS);
	send_all(&a, &b, 5000);
}

RULE("4-pipe-copied-long", "a packet that is longer than the buffers of the other region arrives in several slots")
{
	char name[NETMAP_REQ_IFNAMSIZ], bytes[4096];
	struct port b, v, a;
	struct netmap_ring *rx;
	struct netmap_slot *slot;
	unsigned int n, i;

	snprintf(name, sizeof(name), "vale%s:a", unique_name(""));
	v = open_port(name, ALL_RINGS);
	b = open_port(unique_name("}1"), ALL_RINGS);
	a = open_in_region(&v, unique_name("{1"), REG(.nr_mem_id = v.reg.nr_mem_id));
	rx = rx_ring(&b, 0);
	n = tx_ring(&a, 0)->nr_buf_size;
	CHECK(n > rx->nr_buf_size && n <= sizeof(bytes));
	for (i = 0; i < n; i++)
		bytes[i] = (char)(i * 7);
	put(tx_ring(&a, 0), bytes, n, 0);
	txsync(&a);
	CHECK_EQ(poll_fd(b.fd, POLLIN, 20000, &(int){ 0 }), 1);
	CHECK_EQ(nm_ring_space(rx), 2);
	slot = get(rx);
	CHECK(slot->len == rx->nr_buf_size && (slot->flags & NS_MOREFRAG));
	CHECK(memcmp(slot_data(rx, slot), bytes, slot->len) == 0);
	slot = get(rx);
	CHECK(slot->len == n - rx->nr_buf_size && !(slot->flags & NS_MOREFRAG));
	CHECK(memcmp(slot_data(rx, slot), bytes + rx->nr_buf_size, slot->len) == 0);
}

RULE("4-pipe-64",
    "a parent has at most 64 pipes: the next fails with EINVAL, or with ENOMEM if memory is used up before")
{
	struct port p;
	char name[16];
	int i, error = 0;

	for (i = 0; i < 66 && error == 0; i++) {
		snprintf(name, sizeof(name), "{%d", i);
		if (bind_port(&p, open_device(), unique_name(name), REG(.nr_tx_slots = 64, .nr_rx_slots = 64)) != 0)
			error = errno;
	}
	CHECK(i >= 2 && i <= 65);
	CHECK(error == (i == 65 ? EINVAL : ENOMEM));
}

RULE("4-pipe-modes", "a pipe's rings are bound all or one pair; other modes: EINVAL")
{
	static const uint32_t no[] = { NR_REG_SW, NR_REG_NIC_SW, NR_REG_ONE_SW };
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 2, .nr_mode = NR_REG_ONE_NIC,
	    .nr_ringid = 1)), q;
	int i;

	for (i = 0; i < 3; i++)
		CHECK_ERRNO(EINVAL, bind_port(&q, open_device(), unique_name("}1"), REG(.nr_mode = no[i])));
	txsync(&p);
}

RULE("4-pipe-peer-gone", "an end whose peer was closed keeps working: unreleased packets go to the next peer")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);

	put(tx_ring(&a, 0), "one", 4, 0);
	put(tx_ring(&a, 0), "two", 4, 0);
	txsync(&a);
	rxsync(&b);
	get(rx_ring(&b, 0));
	rxsync(&b);
	CHECK_OK(close(b.fd));
	txsync(&a);
	b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
	CHECK(strcmp(slot_data(rx_ring(&b, 0), get(rx_ring(&b, 0))), "two") == 0);
}

/* ---- ports without a data path */

RULE("4-null", "mode NULL creates a port with rings in region nr_mem_id; its syncs succeed")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS);
	struct port p = open_in_region(&a, unique_name(""), REG(.nr_mode = NR_REG_NULL, .nr_mem_id = a.reg.nr_mem_id,
	    .nr_tx_rings = 2, .nr_rx_rings = 1, .nr_tx_slots = 64, .nr_rx_slots = 64));

	txsync(&p);
	rxsync(&p);
	CHECK_EQ(p.nifp->ni_tx_rings, 2);
	CHECK_EQ(p.reg.nr_tx_slots, 64);
}

RULE("4-null-region", "mode NULL with no region, or one that does not exist: EINVAL")
{
	struct port p;

	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name(""), REG(.nr_mode = NR_REG_NULL)));
	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name(""), REG(.nr_mode = NR_REG_NULL, .nr_mem_id = 54321)));
}

RULE("4-null-once", "a NULL port cannot be opened a second time by its name")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), q;
	struct port p = open_in_region(&a, unique_name(""), REG(.nr_mode = NR_REG_NULL, .nr_mem_id = a.reg.nr_mem_id));

	CHECK_ERRNO(ENXIO, bind_port(&q, open_device(), unique_name(""), ALL_RINGS));
	rxsync(&p);
}

RULE("4-null-extra-bufs", "a NULL port can have extra buffers of its region")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS);
	struct port p = open_in_region(&a, unique_name(""), REG(.nr_mode = NR_REG_NULL, .nr_mem_id = a.reg.nr_mem_id,
	    .nr_extra_bufs = 3));

	CHECK_EQ(p.reg.nr_extra_bufs, 3);
	CHECK(p.nifp->ni_bufs_head >= 2);
}
