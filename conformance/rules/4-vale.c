/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: switches, and the slot flags and requests that only their ports
 * support.
 */
#include "port.h"

/* Milliseconds: the limit for an expected packet, and the wait for an unexpected one. */
#define TIMEOUT_MS	20000
#define QUIET	60

#define FRAME	60

/* Returns the name of a port of the rule's own switch. */
static const char *
vale(const char *port)
{
	static char names[8][NETMAP_REQ_IFNAMSIZ];
	static unsigned int next;
	char *name = names[next++ % 8];

	snprintf(name, sizeof(names[0]), "vale%s:%s", unique_name(""), port);
	return name;
}

/* A MAC address is given by its last byte; ALL is the broadcast address. */
enum { ALL = 255 };

static void
address(char *at, int mac)
{
	memcpy(at, "\x02\0\0\0\0", 5);
	at[5] = (char)mac;
	if (mac == ALL)
		memset(at, 0xff, 6);
}

/* Queues a frame between two MAC addresses; what identifies the frame. */
static struct netmap_slot *
put_frame(const struct port *p, int to, int from, char what, unsigned int len, unsigned int flags)
{
	char bytes[2048] = { 0 };

	address(bytes, to);
	address(bytes + 6, from);
	memcpy(bytes + 12, "\x88\xb5", 2);
	bytes[14] = what;
	return put(tx_ring(p, 0), bytes, len, flags);
}

static void
send_frame(const struct port *p, int to, int from, char what)
{
	put_frame(p, to, from, what, FRAME, 0);
	txsync(p);
}

/* Returns the next frame's `what`, or -1 if none arrives in time. */
static int
next_frame(const struct port *p, int limit_ms)
{
	struct netmap_ring *ring = rx_ring(p, 0);
	struct netmap_slot *slot;
	int revents, what;

	if (poll_fd(p->fd, POLLIN, limit_ms, &revents) != 1 || revents != POLLIN)
		return -1;
	slot = get(ring);
	what = slot->len >= 15 ? slot_data(ring, slot)[14] : -2;
	rxsync(p);
	return what;
}

/* Waits until all sent slots of p are returned. */
static void
drain(const struct port *p)
{
	int i;

	for (i = 0; i < TIMEOUT_MS && nm_tx_pending(tx_ring(p, 0)); i++) {
		txsync(p);
		usleep(1000);
	}
	CHECK(!nm_tx_pending(tx_ring(p, 0)));
}

RULE("4-vale", "two ports of a switch exchange packets")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS);

	send_frame(&a, 2, 1, 'x');
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'x');
	send_frame(&b, 1, 2, 'y');
	CHECK_EQ(next_frame(&a, TIMEOUT_MS), 'y');
}

/* Adds a ring's buffer indexes, and their cubes, to two sums that identify the set of buffers. */
static void
add_indexes(struct netmap_ring *ring, uint64_t *sum, uint64_t *mix)
{
	uint32_t i;

	for (i = 0; i < ring->num_slots; i++) {
		uint64_t idx = ring->slot[i].buf_idx;

		*sum += idx;
		*mix += idx * idx * idx;
	}
}

/* Computes these sums over all rings of two ports. */
static void
sum_indexes(const struct port *a, const struct port *b, uint64_t weights[2])
{
	weights[0] = weights[1] = 0;
	add_indexes(tx_ring(a, 0), &weights[0], &weights[1]);
	add_indexes(rx_ring(a, 0), &weights[0], &weights[1]);
	add_indexes(tx_ring(b, 0), &weights[0], &weights[1]);
	add_indexes(rx_ring(b, 0), &weights[0], &weights[1]);
}

RULE("4-vale-exchange", "with ports in one region, each buffer is in one slot, whatever buffers the slots hold")
{
	struct nmreq_register few = REG(.nr_tx_slots = 64, .nr_rx_slots = 64);
	struct port a = open_port(vale("a"), few), b, q;
	uint64_t before[2], after[2];
	int i;

	few.nr_mem_id = a.reg.nr_mem_id;
	b = open_in_region(&a, vale("b"), few);
	CHECK_EQ(b.reg.nr_mem_id, a.reg.nr_mem_id);
	sum_indexes(&a, &b, before);
	for (i = 0; i < 100; i++) {
		send_frame(&a, 2, 1, (char)i);
		CHECK_EQ(next_frame(&b, TIMEOUT_MS), i);
		drain(&a);
		send_frame(&b, 1, 2, (char)i);
		CHECK_EQ(next_frame(&a, TIMEOUT_MS), i);
		drain(&b);
	}
	sum_indexes(&a, &b, after);
	CHECK_EQ(after[0], before[0]);
	CHECK_EQ(after[1], before[1]);
	/* An open port cannot move to another region. */
	CHECK_ERRNO(EINVAL, bind_port(&q, open_device(), vale("b"), REG(.nr_mem_id = 1)));
}

RULE("4-vale-changed", "a returned slot with another buffer has NS_BUF_CHANGED, as has the receiver's slot")
{
	struct port a = open_port(vale("a"), ALL_RINGS);
	struct port b = open_in_region(&a, vale("b"), REG(.nr_mem_id = a.reg.nr_mem_id));
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	uint32_t sent = tx->slot[0].buf_idx, freed = rx->slot[0].buf_idx;

	send_frame(&a, 2, 1, 'x');
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'x');
	drain(&a);
	CHECK_EQ(tx->slot[0].buf_idx != sent, (tx->slot[0].flags & NS_BUF_CHANGED) != 0);
	CHECK_EQ(rx->slot[0].buf_idx != freed, (rx->slot[0].flags & NS_BUF_CHANGED) != 0);
	CHECK(tx->slot[0].buf_idx == sent ? rx->slot[0].buf_idx == freed
	    : tx->slot[0].buf_idx == freed && rx->slot[0].buf_idx == sent);
}

RULE("4-vale-apart", "two switches do not exchange packets")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port("valeother:b", ALL_RINGS);

	send_frame(&a, ALL, 1, 'x');
	drain(&a);
	CHECK_EQ(next_frame(&b, QUIET), -1);
}

RULE("4-vale-defaults", "a port has one ring pair of 1024 slots, and no host rings")
{
	struct port a = open_port(vale("a"), ALL_RINGS), q;

	CHECK_EQ(a.reg.nr_tx_rings, 1);
	CHECK_EQ(a.reg.nr_rx_rings, 1);
	CHECK_EQ(a.reg.nr_tx_slots, 1024);
	CHECK_EQ(a.reg.nr_rx_slots, 1024);
	CHECK_ERRNO(EINVAL, bind_port(&q, open_device(), vale("a"), REG(.nr_mode = NR_REG_SW)));
	CHECK_ERRNO(EINVAL, bind_port(&q, open_device(), vale("b"), REG(.nr_mode = NR_REG_NIC_SW)));
}

RULE("4-vale-largest", "a port has at most 16 ring pairs and 4096 slots")
{
	struct port a = open_port(vale("a"), REG(.nr_tx_rings = 16, .nr_rx_rings = 16, .nr_tx_slots = 64,
	    .nr_rx_slots = 64));
	struct port b = open_port(vale("b"), REG(.nr_tx_slots = 4096, .nr_rx_slots = 4096)), c;

	CHECK_EQ(a.reg.nr_tx_rings, 16);
	CHECK_EQ(tx_ring(&a, 15)->num_slots, 64);
	CHECK_EQ(rx_ring(&b, 0)->num_slots, 4096);
	if (bind_port(&c, open_device(), vale("c"), REG(.nr_tx_rings = 17, .nr_tx_slots = 5000)) == 0)
		CHECK(c.reg.nr_tx_rings <= 16 && c.reg.nr_tx_slots <= 4096);
}

RULE("4-vale-region", "each port has its own region, unless it requests another port's")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS);
	struct port c = open_in_region(&a, vale("c"), REG(.nr_mem_id = a.reg.nr_mem_id));

	CHECK(a.reg.nr_mem_id != 1 && b.reg.nr_mem_id != 1 && a.reg.nr_mem_id != b.reg.nr_mem_id);
	send_frame(&b, ALL, 2, 'x');
	CHECK_EQ(next_frame(&c, TIMEOUT_MS), 'x');
	CHECK_EQ(next_frame(&a, TIMEOUT_MS), 'x');
}

RULE("4-vale-names", "names of switches and ports consist of letters, digits and _; others: EINVAL")
{
	static const char *const bad[] = { "vale1:", "vale 1:a", "vale1:a.b", "vale1:a b", "vale.1:a", "vale1:a:b" };
	struct port a = open_port("vale_X9:A_b9", ALL_RINGS), q;
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK_ERRNO(EINVAL, bind_port(&q, open_device(), bad[i], ALL_RINGS));
	open_port("vale:1", ALL_RINGS);
	txsync(&a);
}

RULE("4-vale-unknown", "broadcasts and packets to an unknown MAC address go to all other ports, never back")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS), c = open_port(vale("c"),
	    ALL_RINGS);

	send_frame(&a, 9, 1, 'u');
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'u');
	CHECK_EQ(next_frame(&c, TIMEOUT_MS), 'u');
	send_frame(&a, ALL, 1, 'b');
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'b');
	CHECK_EQ(next_frame(&c, TIMEOUT_MS), 'b');
	CHECK_EQ(next_frame(&a, QUIET), -1);
}

RULE("4-vale-learns", "packets to a learned MAC address go to its port only")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS), c = open_port(vale("c"),
	    ALL_RINGS);

	send_frame(&b, ALL, 2, 'i');
	CHECK_EQ(next_frame(&a, TIMEOUT_MS), 'i');
	CHECK_EQ(next_frame(&c, TIMEOUT_MS), 'i');
	send_frame(&a, 2, 1, 'x');
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'x');
	CHECK_EQ(next_frame(&c, QUIET), -1);
}

RULE("4-vale-moves", "a MAC address that sends through another port is learned there")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS), c = open_port(vale("c"),
	    ALL_RINGS);

	send_frame(&b, ALL, 2, 'i');
	CHECK_EQ(next_frame(&a, TIMEOUT_MS), 'i');
	CHECK_EQ(next_frame(&c, TIMEOUT_MS), 'i');
	send_frame(&c, ALL, 2, 'j');
	CHECK_EQ(next_frame(&a, TIMEOUT_MS), 'j');
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'j');
	send_frame(&a, 2, 1, 'x');
	CHECK_EQ(next_frame(&c, TIMEOUT_MS), 'x');
	CHECK_EQ(next_frame(&b, QUIET), -1);
}

RULE("4-vale-short", "packets of less than 14 bytes are dropped, and their slots are returned")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS);

	put_frame(&a, ALL, 1, 's', 13, 0);
	put_frame(&a, ALL, 1, 'x', FRAME, 0);
	txsync(&a);
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'x');
	drain(&a);
}

RULE("4-vale-full",
    "a receiver without room loses packets; all of the sender's slots are returned, and others lose none")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), REG(.nr_rx_slots = 8, .nr_tx_slots = 8));
	struct port c = open_port(vale("c"), ALL_RINGS);
	int i;

	for (i = 0; i < 100; i++)
		put_frame(&a, ALL, 1, (char)i, FRAME, 0);
	txsync(&a);
	drain(&a);
	for (i = 0; i < 100; i++)
		CHECK_EQ(next_frame(&c, TIMEOUT_MS), i);
	for (i = 0; i < 7; i++)
		CHECK_EQ(next_frame(&b, TIMEOUT_MS), i);
	CHECK_EQ(next_frame(&b, QUIET), -1);
	send_frame(&a, ALL, 1, 'x');
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'x');
}

/* Makes the switch learn address 2 at b and 3 at c, and reads the flooded frames. */
static void
learn_addresses(struct port *a, struct port *b, struct port *c)
{
	send_frame(b, 9, 2, 'b');
	send_frame(c, 9, 3, 'c');
	CHECK_EQ(next_frame(a, TIMEOUT_MS), 'b');
	CHECK_EQ(next_frame(a, TIMEOUT_MS), 'c');
	CHECK_EQ(next_frame(c, TIMEOUT_MS), 'b');
	CHECK_EQ(next_frame(b, TIMEOUT_MS), 'c');
}

RULE("4-vale-order",
    "packets from one port to another keep their order, whatever is broadcast or goes elsewhere in between")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS), c = open_port(vale("c"),
	    ALL_RINGS);
	int i;

	learn_addresses(&a, &b, &c);
	/* To b, to c, broadcast, to an unknown address: b receives all but those to c. */
	for (i = 0; i < 120; i++)
		put_frame(&a, (const int[]){ 2, 3, ALL, 99 }[i % 4], 1, (char)i, FRAME, 0);
	txsync(&a);
	for (i = 0; i < 120; i++)
		if (i % 4 != 1)
			CHECK_EQ(next_frame(&b, TIMEOUT_MS), i);
	for (i = 0; i < 120; i++)
		if (i % 4 != 0)
			CHECK_EQ(next_frame(&c, TIMEOUT_MS), i);
	CHECK_EQ(next_frame(&b, QUIET), -1);
}

RULE("4-vale-alone", "the packets of a switch's only port are dropped, and their slots are returned")
{
	struct port a = open_port(vale("a"), ALL_RINGS);
	int i;

	for (i = 0; i < 100; i++)
		put_frame(&a, ALL, 1, 'x', FRAME, 0);
	txsync(&a);
	drain(&a);
	CHECK_EQ(nm_ring_space(tx_ring(&a, 0)), tx_ring(&a, 0)->num_slots - 1);
}

RULE("4-vale-gone", "the last close deletes a port, and with its last port the switch")
{
	struct port a = open_port(vale("a"), ALL_RINGS), again = open_port(vale("a"), ALL_RINGS);
	struct request q;

	CHECK_OK(close(a.fd));
	txsync(&again);
	init_request(&q, NETMAP_REQ_VALE_LIST, vale("a"));
	CHECK_OK(send_request(&q));
	CHECK_OK(close(again.fd));
	init_request(&q, NETMAP_REQ_VALE_LIST, vale("a"));
	CHECK_ERRNO(ENOENT, send_request(&q));
}

RULE("4-vale-shared", "several files of one port share its rings")
{
	struct port a = open_port(vale("a"), ALL_RINGS), again = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"),
	    ALL_RINGS);

	CHECK_EQ(again.reg.nr_mem_id, a.reg.nr_mem_id);
	send_frame(&again, ALL, 1, 'x');
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'x');
	CHECK_EQ(tx_ring(&a, 0)->head, 1);
}

RULE("4-vale-254", "a switch has at most 254 ports")
{
	/* Many to a region: 254 regions need more memory than some access methods have. */
	enum { IN_REGION = 64 };
	struct port space, p;
	char name[16];
	int i, error = 0;

	for (i = 0; i < 256 && error == 0; i++) {
		if (i % IN_REGION == 0) {
			snprintf(name, sizeof(name), "r%d{1", i);
			space = open_port(unique_name(name), ALL_RINGS);
		}
		snprintf(name, sizeof(name), "p%d", i);
		if (bind_port(&p, open_device(), vale(name), REG(.nr_tx_slots = 16, .nr_rx_slots = 16,
		    .nr_mem_id = space.reg.nr_mem_id)) != 0)
			error = errno;
	}
	CHECK_EQ(i, 255);
	CHECK_EQ(error, ENOMEM);
}

RULE("4-vale-extra-bufs", "a port has at most 128 * 4096 extra buffers")
{
	struct port a = open_port(vale("a"), REG(.nr_extra_bufs = 1000000));

	CHECK(a.reg.nr_extra_bufs > 0 && a.reg.nr_extra_bufs <= 128 * 4096);
}

RULE("4-vale-NIC", "opening an interface as a port of a switch: EINVAL; it must be attached")
{
	struct port p;

	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), "vale99:lo", ALL_RINGS));
}

/* ---- slots */

RULE("3-NO_LEARN", "the source address of a packet with NS_NO_LEARN is not learned")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS), c = open_port(vale("c"),
	    ALL_RINGS);

	put_frame(&b, ALL, 2, 'i', FRAME, NS_NO_LEARN);
	txsync(&b);
	CHECK_EQ(next_frame(&a, TIMEOUT_MS), 'i');
	CHECK_EQ(next_frame(&c, TIMEOUT_MS), 'i');
	send_frame(&a, 2, 1, 'x');
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'x');
	CHECK_EQ(next_frame(&c, TIMEOUT_MS), 'x');
}

RULE("3-port", "a nonzero high byte of a slot's flags is the number of the destination port")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS), c = open_port(vale("c"),
	    ALL_RINGS);
	struct request q;

	init_request(&q, NETMAP_REQ_VALE_LIST, vale("c"));
	CHECK_OK(send_request(&q));
	CHECK(q.list.nr_port_idx > 0 && q.list.nr_port_idx < 254);
	put_frame(&a, ALL, 1, 'x', FRAME, q.list.nr_port_idx << NS_PORT_SHIFT);
	txsync(&a);
	CHECK_EQ(next_frame(&c, TIMEOUT_MS), 'x');
	CHECK_EQ(next_frame(&b, QUIET), -1);
}

RULE("3-RFRAGS-received", "the high byte of received slots' flags is the number of the packet's slots")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS);
	struct netmap_ring *rx = rx_ring(&b, 0);
	int i, revents;

	put_frame(&a, ALL, 1, 'x', FRAME, 0);
	for (i = 0; i < 3; i++)
		put_frame(&a, ALL, 1, 'y', 100, i < 2 ? NS_MOREFRAG : 0);
	txsync(&a);
	while (nm_ring_space(rx) < 4)
		CHECK_EQ((rx->cur = rx->tail, poll_fd(b.fd, POLLIN, TIMEOUT_MS, &revents)), 1);
	CHECK_EQ(NS_RFRAGS(&rx->slot[0]), 1);
	CHECK_EQ(NS_RFRAGS(&rx->slot[1]), 3);
	for (i = 0; i < 3; i++) {
		CHECK_EQ(rx->slot[1 + i].len, 100);
		CHECK_EQ(rx->slot[1 + i].flags & NS_MOREFRAG, i < 2 ? NS_MOREFRAG : 0);
	}
}

RULE("3-MOREFRAG-cut", "a packet whose last slot is missing at the end of a batch is sent without it")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS);
	struct netmap_ring *rx = rx_ring(&b, 0);
	int revents;

	put_frame(&a, ALL, 1, 'x', 100, NS_MOREFRAG);
	put_frame(&a, ALL, 1, 'y', 100, NS_MOREFRAG);
	txsync(&a);
	while (nm_ring_space(rx) < 2)
		CHECK_EQ((rx->cur = rx->tail, poll_fd(b.fd, POLLIN, TIMEOUT_MS, &revents)), 1);
	CHECK(rx->slot[0].flags & NS_MOREFRAG);
	CHECK(!(rx->slot[1].flags & NS_MOREFRAG));
}

RULE("3-MOREFRAG-65", "a packet of more than 64 slots is dropped, and its slots are returned")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS);
	int i;

	for (i = 0; i < 65; i++)
		put_frame(&a, ALL, 1, 'x', FRAME, i < 64 ? NS_MOREFRAG : 0);
	put_frame(&a, ALL, 1, 'y', FRAME, 0);
	txsync(&a);
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'y');
	drain(&a);
}

/* ---- virtio-net headers */

static int
set_header(const char *name, uint32_t bytes)
{
	struct request q;
	int result, error;

	init_request(&q, NETMAP_REQ_PORT_HDR_SET, name);
	q.header.nr_hdr_len = bytes;
	result = send_request(&q);
	error = errno;
	close(q.fd);
	errno = error;
	return result;
}

RULE("1.1-PORT_HDR_SET",
    "PORT_HDR_SET sets the header of a VALE port's packets to 0, 10 or 12 bytes; the last call counts")
{
	static const uint32_t all[] = { 10, 12, 0 };
	struct port a = open_port(vale("a"), ALL_RINGS);
	struct request q;
	size_t i;

	for (i = 0; i < 3; i++) {
		CHECK_OK(set_header(vale("a"), all[i]));
		init_request(&q, NETMAP_REQ_PORT_HDR_GET, vale("a"));
		CHECK_OK(send_request(&q));
		CHECK_EQ(q.header.nr_hdr_len, all[i]);
	}
	txsync(&a);
}

RULE("1.1-PORT_HDR_SET-EINVAL", "PORT_HDR_SET with another length: EINVAL")
{
	struct port a = open_port(vale("a"), ALL_RINGS);

	CHECK_ERRNO(EINVAL, set_header(vale("a"), 11));
	CHECK_ERRNO(EINVAL, set_header(vale("a"), ~0U));
	txsync(&a);
}

RULE("1.1-REGISTER-EIO", "REGISTER of a port with a header, without NR_ACCEPT_VNET_HDR: EIO")
{
	struct port a = open_port(vale("a"), ALL_RINGS), q;

	CHECK_OK(set_header(vale("a"), 12));
	CHECK_ERRNO(EIO, bind_port(&q, open_device(), vale("a"), ALL_RINGS));
	CHECK_OK(bind_port(&q, open_device(), vale("a"), REG(.nr_flags = NR_ACCEPT_VNET_HDR)));
	txsync(&a);
}

RULE("4-vale-header", "a header is passed to ports that have one, too, and removed for ports that have none")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS), c = open_port(vale("c"),
	    ALL_RINGS);
	char bytes[12 + FRAME] = { 0 };
	struct netmap_slot *slot;
	int revents;

	CHECK_OK(set_header(vale("a"), 12));
	CHECK_OK(set_header(vale("b"), 12));
	address(bytes + 12, ALL);
	address(bytes + 18, 1);
	memcpy(bytes + 24, "\x88\xb5!", 3);
	put(tx_ring(&a, 0), bytes, sizeof(bytes), 0);
	txsync(&a);
	CHECK_EQ(poll_fd(b.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	slot = get(rx_ring(&b, 0));
	CHECK_EQ(slot->len, sizeof(bytes));
	CHECK_EQ(slot_data(rx_ring(&b, 0), slot)[26], '!');
	CHECK_EQ(poll_fd(c.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	slot = get(rx_ring(&c, 0));
	CHECK_EQ(slot->len, FRAME);
	CHECK_EQ(slot_data(rx_ring(&c, 0), slot)[14], '!');
}

RULE("4-vale-longer", "a packet that is longer than the receiver's buffers continues in its next slots")
{
	enum { MOST = 4096 };
	/* Region 1 has other buffers than the region of a switch port: shorter ones, or longer ones for zero copy. */
	struct port own = open_port(vale("a"), ALL_RINGS), common = open_port(vale("b"), REG(.nr_mem_id = 1));
	int own_is_longer = tx_ring(&own, 0)->nr_buf_size > tx_ring(&common, 0)->nr_buf_size;
	struct port a = own_is_longer ? own : common, b = own_is_longer ? common : own;
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	int i, length = tx->nr_buf_size, round, revents;
	char bytes[MOST];

	CHECK(length <= MOST && (int)rx->nr_buf_size < length);
	for (i = 0; i < length; i++)
		bytes[i] = (char)(i * 7 + i / 256);
	address(bytes, ALL);
	address(bytes + 6, 1);
	for (round = 0; round < 3000; round++) {
		struct netmap_slot *first, *second;

		put(tx, bytes, length, 0);
		txsync(&a);
		CHECK_EQ(poll_fd(b.fd, POLLIN, TIMEOUT_MS, &revents), 1);
		first = get(rx);
		CHECK_EQ(first->flags & NS_MOREFRAG, NS_MOREFRAG);
		CHECK_EQ(NS_RFRAGS(first), 2);
		second = get(rx);
		CHECK_EQ(second->flags & NS_MOREFRAG, 0);
		CHECK_EQ(first->len + second->len, length);
		CHECK(memcmp(slot_data(rx, first), bytes, first->len) == 0);
		CHECK(memcmp(slot_data(rx, second), bytes + first->len, second->len) == 0);
	}
	drain(&a);
}

/* ---- NS_INDIRECT */

/* Queues a slot with indirect data; its buffer contains a different frame, to c. */
static void
put_indirect(const struct port *p, const void *data, unsigned int len)
{
	put_frame(p, 3, 1, 'w', len, NS_INDIRECT)->ptr = (uintptr_t)data;
}

RULE("3-INDIRECT", "a slot with NS_INDIRECT sends the data at ptr, in its place among the packet's slots")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS), c = open_port(vale("c"),
	    ALL_RINGS);
	char bytes[200][FRAME] = { 0 };
	int i;

	learn_addresses(&a, &b, &c);
	for (i = 0; i < 200; i++) {
		if (i % 3 == 0) {
			put_frame(&a, 2, 1, (char)(i + 1), FRAME, 0);
			continue;
		}
		address(bytes[i], 2);
		address(bytes[i] + 6, 1);
		bytes[i][14] = (char)(i + 1);
		put_indirect(&a, bytes[i], FRAME);
	}
	txsync(&a);
	/* After the sync the program may reuse the memory. */
	memset(bytes, 0, sizeof(bytes));
	CHECK_EQ(next_frame(&c, QUIET), -1);
	for (i = 0; i < 200; i++)
		CHECK_EQ((unsigned char)next_frame(&b, TIMEOUT_MS), (unsigned char)(i + 1));
	CHECK_EQ(next_frame(&b, QUIET), -1);
	drain(&a);
}

RULE("3-INDIRECT-flood", "5000 packets with indirect data arrive, sent by syncs and by polls")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS);
	char bytes[FRAME] = { 0 };
	int i, revents;

	address(bytes, 2);
	address(bytes + 6, 1);
	for (i = 0; i < 5000; i++) {
		bytes[14] = (char)i;
		put_indirect(&a, bytes, FRAME);
		if (i % 2 == 0)
			txsync(&a);
		else
			CHECK_EQ(poll_fd(a.fd, POLLOUT, TIMEOUT_MS, &revents), 1);
		CHECK_EQ((char)next_frame(&b, TIMEOUT_MS), (char)i);
	}
	drain(&a);
}

RULE("3-INDIRECT-bad", "unmapped or too long indirect data is dropped, and the packets around it are sent")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS);
	char *edge = guarded_page() + sysconf(_SC_PAGESIZE), *bad[] = { NULL, (char *)8, edge, edge - FRAME + 1,
	    (char *)-60 };
	unsigned int i;

	address(edge - FRAME, 2);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		put_frame(&a, ALL, 1, (char)('0' + i), FRAME, 0);
		put_indirect(&a, bad[i], FRAME);
	}
	put_frame(&a, ALL, 1, 'z', FRAME, 0);
	put(tx_ring(&a, 0), NULL, 65535, NS_INDIRECT)->ptr = (uintptr_t)a.mem;
	txsync(&a);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK_EQ(next_frame(&b, TIMEOUT_MS), '0' + (int)i);
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'z');
	CHECK_EQ(next_frame(&b, QUIET), -1);
	drain(&a);
}

RULE("4-monitor-vale", "a monitor of a VALE port sees what it sends and receives")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS);
	struct port tx = open_port(vale("a"), REG(.nr_flags = NR_MONITOR_TX));
	struct port rx = open_port(vale("b"), REG(.nr_flags = NR_MONITOR_RX));

	send_frame(&a, ALL, 1, 'x');
	CHECK_EQ(next_frame(&tx, TIMEOUT_MS), 'x');
	CHECK_EQ(next_frame(&b, TIMEOUT_MS), 'x');
	CHECK_EQ(next_frame(&rx, TIMEOUT_MS), 'x');
}

/* ---- requests */

RULE("1.1-VALE_LIST", "VALE_LIST returns a port's switch and number; number 255 if the switch does not have the port")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS);
	struct request q;
	uint16_t bridge;

	init_request(&q, NETMAP_REQ_VALE_LIST, vale("a"));
	CHECK_OK(send_request(&q));
	bridge = q.list.nr_bridge_idx;
	CHECK_EQ(q.list.nr_port_idx, 0);
	init_request(&q, NETMAP_REQ_VALE_LIST, vale("b"));
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.list.nr_bridge_idx, bridge);
	CHECK_EQ(q.list.nr_port_idx, 1);
	init_request(&q, NETMAP_REQ_VALE_LIST, vale("nobody"));
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.list.nr_port_idx, 255);
	txsync(&a);
	txsync(&b);
}

RULE("1.1-VALE_LIST-next",
    "VALE_LIST with an empty name returns the next port from the numbers on; after the last: ENOENT")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS);
	struct request q = { .fd = open_device() };
	uint32_t bridge = 0, port = 0;
	int found = 0;

	for (;;) {
		reinit_request(&q, NETMAP_REQ_VALE_LIST, "");
		q.list.nr_bridge_idx = (uint16_t)bridge;
		q.list.nr_port_idx = port;
		if (send_request(&q) != 0)
			break;
		found += strcmp(q.hdr.nr_name, vale("a")) == 0 || strcmp(q.hdr.nr_name, vale("b")) == 0;
		bridge = q.list.nr_bridge_idx;
		port = q.list.nr_port_idx + 1;
	}
	CHECK_EQ(errno, ENOENT);
	CHECK_EQ(found, 2);
	txsync(&a);
	txsync(&b);
}

RULE("1.1-PORT_INFO_GET-vale", "PORT_INFO_GET creates a VALE port that does not exist for the duration of the call")
{
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, vale("a"));
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.info.nr_tx_slots, 1024);
	init_request(&q, NETMAP_REQ_VALE_LIST, vale("a"));
	CHECK_ERRNO(ENOENT, send_request(&q));
}

RULE("1.4-BDG_LIST", "the legacy BDG_LIST returns a port's switch and number, and the next port's name")
{
	struct port a = open_port(vale("a"), ALL_RINGS), b = open_port(vale("b"), ALL_RINGS);
	struct nmreq r = { .nr_version = NETMAP_API, .nr_cmd = NETMAP_BDG_LIST };

	snprintf(r.nr_name, sizeof(r.nr_name), "%s", vale("b"));
	CHECK_OK(ioctl(open_device(), NIOCGINFO, &r));
	CHECK_EQ(r.nr_arg2, 1);
	memset(r.nr_name, 0, sizeof(r.nr_name));
	CHECK_OK(ioctl(open_device(), NIOCGINFO, &r));
	CHECK(strcmp(r.nr_name, vale("b")) == 0);
	txsync(&a);
	txsync(&b);
}
