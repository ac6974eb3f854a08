/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: switches, and what only their ports do with slots and requests.
 */
#include "port.h"

/* Milliseconds: for what must happen, and to listen for what must not. */
#define LONG	20000
#define QUIET	60

#define FRAME	60

/* The name of a port of the rule's own switch. */
static const char *
vale(const char *port)
{
	static char names[8][NETMAP_REQ_IFNAMSIZ];
	static unsigned int next;
	char *name = names[next++ % 8];

	snprintf(name, sizeof(names[0]), "vale%s:%s", own(""), port);
	return name;
}

/* Addresses of stations, and all of them. */
enum { ALL = 255 };

static void
address(char *at, int station)
{
	memcpy(at, "\x02\0\0\0\0", 5);
	at[5] = (char)station;
	if (station == ALL)
		memset(at, 0xff, 6);
}

/* Puts a frame from one station to another into the ring; what says which one it is. */
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

/* Which frame comes next, -1 if none does in that time. */
static int
comes(const struct port *p, int limit_ms)
{
	struct netmap_ring *ring = rx_ring(p, 0);
	struct netmap_slot *slot;
	int revents, what;

	if (poll_fd(p->fd, POLLIN, limit_ms, &revents) != 1 || revents != POLLIN)
		return -1;
	slot = get(ring);
	what = slot->len >= 15 ? data_of(ring, slot)[14] : -2;
	rxsync(p);
	return what;
}

/* Waits until all that p has sent is off its ring. */
static void
drain(const struct port *p)
{
	int i;

	for (i = 0; i < LONG && nm_tx_pending(tx_ring(p, 0)); i++) {
		txsync(p);
		usleep(1000);
	}
	HOLDS(!nm_tx_pending(tx_ring(p, 0)));
}

RULE("4-vale", "two ports of a switch exchange packets")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY);

	send_frame(&a, 2, 1, 'x');
	SAME(comes(&b, LONG), 'x');
	send_frame(&b, 1, 2, 'y');
	SAME(comes(&a, LONG), 'y');
}

/* The indexes of a ring, added to a sum and mixed into another. */
static void
weigh(struct netmap_ring *ring, uint64_t *sum, uint64_t *mix)
{
	uint32_t i;

	for (i = 0; i < ring->num_slots; i++) {
		uint64_t idx = ring->slot[i].buf_idx;

		*sum += idx;
		*mix += idx * idx * idx;
	}
}

/* Of all rings of two ports. */
static void
weigh_both(const struct port *a, const struct port *b, uint64_t weights[2])
{
	weights[0] = weights[1] = 0;
	weigh(tx_ring(a, 0), &weights[0], &weights[1]);
	weigh(rx_ring(a, 0), &weights[0], &weights[1]);
	weigh(tx_ring(b, 0), &weights[0], &weights[1]);
	weigh(rx_ring(b, 0), &weights[0], &weights[1]);
}

RULE("4-vale-exchange", "ports may share a region; whatever buffers their slots have then, each is in one slot")
{
	struct nmreq_register few = WISH(.nr_tx_slots = 64, .nr_rx_slots = 64);
	struct port a = open_port(vale("a"), few), b, q;
	uint64_t before[2], after[2];
	int i;

	few.nr_mem_id = a.reg.nr_mem_id;
	b = open_beside(&a, vale("b"), few);
	SAME(b.reg.nr_mem_id, a.reg.nr_mem_id);
	weigh_both(&a, &b, before);
	for (i = 0; i < 100; i++) {
		send_frame(&a, 2, 1, (char)i);
		SAME(comes(&b, LONG), i);
		drain(&a);
		send_frame(&b, 1, 2, (char)i);
		SAME(comes(&a, LONG), i);
		drain(&b);
	}
	weigh_both(&a, &b, after);
	SAME(after[0], before[0]);
	SAME(after[1], before[1]);
	/* One that is open is where it is. */
	REFUSED(EINVAL, bind_port(&q, device(), vale("b"), WISH(.nr_mem_id = 1)));
}

RULE("4-vale-changed", "a slot that comes back with another buffer has NS_BUF_CHANGED, and the receiver's too")
{
	struct port a = open_port(vale("a"), ANY);
	struct port b = open_beside(&a, vale("b"), WISH(.nr_mem_id = a.reg.nr_mem_id));
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	uint32_t sent = tx->slot[0].buf_idx, freed = rx->slot[0].buf_idx;

	send_frame(&a, 2, 1, 'x');
	SAME(comes(&b, LONG), 'x');
	drain(&a);
	SAME(tx->slot[0].buf_idx != sent, (tx->slot[0].flags & NS_BUF_CHANGED) != 0);
	SAME(rx->slot[0].buf_idx != freed, (rx->slot[0].flags & NS_BUF_CHANGED) != 0);
	HOLDS(tx->slot[0].buf_idx == sent ? rx->slot[0].buf_idx == freed
	    : tx->slot[0].buf_idx == freed && rx->slot[0].buf_idx == sent);
}

RULE("4-vale-apart", "two switches exchange nothing")
{
	struct port a = open_port(vale("a"), ANY), b = open_port("valeother:b", ANY);

	send_frame(&a, ALL, 1, 'x');
	drain(&a);
	SAME(comes(&b, QUIET), -1);
}

RULE("4-vale-defaults", "a port has one ring pair of 1024 slots, and no host rings")
{
	struct port a = open_port(vale("a"), ANY), q;

	SAME(a.reg.nr_tx_rings, 1);
	SAME(a.reg.nr_rx_rings, 1);
	SAME(a.reg.nr_tx_slots, 1024);
	SAME(a.reg.nr_rx_slots, 1024);
	REFUSED(EINVAL, bind_port(&q, device(), vale("a"), WISH(.nr_mode = NR_REG_SW)));
	REFUSED(EINVAL, bind_port(&q, device(), vale("b"), WISH(.nr_mode = NR_REG_NIC_SW)));
}

RULE("4-vale-largest", "a port may have 16 ring pairs and 4096 slots, and has no more")
{
	struct port a = open_port(vale("a"), WISH(.nr_tx_rings = 16, .nr_rx_rings = 16, .nr_tx_slots = 64, .nr_rx_slots = 64));
	struct port b = open_port(vale("b"), WISH(.nr_tx_slots = 4096, .nr_rx_slots = 4096)), c;

	SAME(a.reg.nr_tx_rings, 16);
	SAME(tx_ring(&a, 15)->num_slots, 64);
	SAME(rx_ring(&b, 0)->num_slots, 4096);
	if (bind_port(&c, device(), vale("c"), WISH(.nr_tx_rings = 17, .nr_tx_slots = 5000)) == 0)
		HOLDS(c.reg.nr_tx_rings <= 16 && c.reg.nr_tx_slots <= 4096);
}

RULE("4-vale-region", "each port has a region of its own, unless it asks for another's")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY);
	struct port c = open_beside(&a, vale("c"), WISH(.nr_mem_id = a.reg.nr_mem_id));

	HOLDS(a.reg.nr_mem_id != 1 && b.reg.nr_mem_id != 1 && a.reg.nr_mem_id != b.reg.nr_mem_id);
	send_frame(&b, ALL, 2, 'x');
	SAME(comes(&c, LONG), 'x');
	SAME(comes(&a, LONG), 'x');
}

RULE("4-vale-names", "switches and ports are named with letters, digits and _; other names: EINVAL")
{
	static const char *const bad[] = { "vale1:", "vale 1:a", "vale1:a.b", "vale1:a b", "vale.1:a", "vale1:a:b" };
	struct port a = open_port("vale_X9:A_b9", ANY), q;
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		REFUSED(EINVAL, bind_port(&q, device(), bad[i], ANY));
	open_port("vale:1", ANY);
	txsync(&a);
}

RULE("4-vale-unknown", "packets to an unknown station, and to all, go to all other ports, never back")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY), c = open_port(vale("c"), ANY);

	send_frame(&a, 9, 1, 'u');
	SAME(comes(&b, LONG), 'u');
	SAME(comes(&c, LONG), 'u');
	send_frame(&a, ALL, 1, 'b');
	SAME(comes(&b, LONG), 'b');
	SAME(comes(&c, LONG), 'b');
	SAME(comes(&a, QUIET), -1);
}

RULE("4-vale-learns", "packets to a station that has sent go to its port only")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY), c = open_port(vale("c"), ANY);

	send_frame(&b, ALL, 2, 'i');
	SAME(comes(&a, LONG), 'i');
	SAME(comes(&c, LONG), 'i');
	send_frame(&a, 2, 1, 'x');
	SAME(comes(&b, LONG), 'x');
	SAME(comes(&c, QUIET), -1);
}

RULE("4-vale-moves", "a station that sends through another port is there from then on")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY), c = open_port(vale("c"), ANY);

	send_frame(&b, ALL, 2, 'i');
	SAME(comes(&a, LONG), 'i');
	SAME(comes(&c, LONG), 'i');
	send_frame(&c, ALL, 2, 'j');
	SAME(comes(&a, LONG), 'j');
	SAME(comes(&b, LONG), 'j');
	send_frame(&a, 2, 1, 'x');
	SAME(comes(&c, LONG), 'x');
	SAME(comes(&b, QUIET), -1);
}

RULE("4-vale-short", "packets of less than 14 bytes are dropped, and their slots come back")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY);

	put_frame(&a, ALL, 1, 's', 13, 0);
	put_frame(&a, ALL, 1, 'x', FRAME, 0);
	txsync(&a);
	SAME(comes(&b, LONG), 'x');
	drain(&a);
}

RULE("4-vale-full", "a receiver without room loses packets; the sender's slots all come back, and others lose none")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), WISH(.nr_rx_slots = 8, .nr_tx_slots = 8));
	struct port c = open_port(vale("c"), ANY);
	int i;

	for (i = 0; i < 100; i++)
		put_frame(&a, ALL, 1, (char)i, FRAME, 0);
	txsync(&a);
	drain(&a);
	for (i = 0; i < 100; i++)
		SAME(comes(&c, LONG), i);
	for (i = 0; i < 7; i++)
		SAME(comes(&b, LONG), i);
	SAME(comes(&b, QUIET), -1);
	send_frame(&a, ALL, 1, 'x');
	SAME(comes(&b, LONG), 'x');
}

/* The switch hears of address 2 behind b and of 3 behind c; all have read what came of it. */
static void
introduce(struct port *a, struct port *b, struct port *c)
{
	send_frame(b, 9, 2, 'b');
	send_frame(c, 9, 3, 'c');
	SAME(comes(a, LONG), 'b');
	SAME(comes(a, LONG), 'c');
	SAME(comes(c, LONG), 'b');
	SAME(comes(b, LONG), 'c');
}

RULE("4-vale-order", "what one port receives from another keeps its order, whatever goes to all or elsewhere in between")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY), c = open_port(vale("c"), ANY);
	int i;

	introduce(&a, &b, &c);
	/* To b, to c, to all, to nobody known: b sees all but what is c's. */
	for (i = 0; i < 120; i++)
		put_frame(&a, (const int[]){ 2, 3, ALL, 99 }[i % 4], 1, (char)i, FRAME, 0);
	txsync(&a);
	for (i = 0; i < 120; i++)
		if (i % 4 != 1)
			SAME(comes(&b, LONG), i);
	for (i = 0; i < 120; i++)
		if (i % 4 != 0)
			SAME(comes(&c, LONG), i);
	SAME(comes(&b, QUIET), -1);
}

RULE("4-vale-alone", "a port alone on its switch sends to nobody, and its slots come back")
{
	struct port a = open_port(vale("a"), ANY);
	int i;

	for (i = 0; i < 100; i++)
		put_frame(&a, ALL, 1, 'x', FRAME, 0);
	txsync(&a);
	drain(&a);
	SAME(nm_ring_space(tx_ring(&a, 0)), tx_ring(&a, 0)->num_slots - 1);
}

RULE("4-vale-gone", "a port ends with its last close, and the switch with its last port")
{
	struct port a = open_port(vale("a"), ANY), again = open_port(vale("a"), ANY);
	struct ask q;

	WORKS(close(a.fd));
	txsync(&again);
	ask(&q, NETMAP_REQ_VALE_LIST, vale("a"));
	WORKS(send_ask(&q));
	WORKS(close(again.fd));
	ask(&q, NETMAP_REQ_VALE_LIST, vale("a"));
	REFUSED(ENOENT, send_ask(&q));
}

RULE("4-vale-shared", "several files of one port share its rings")
{
	struct port a = open_port(vale("a"), ANY), again = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY);

	SAME(again.reg.nr_mem_id, a.reg.nr_mem_id);
	send_frame(&again, ALL, 1, 'x');
	SAME(comes(&b, LONG), 'x');
	SAME(tx_ring(&a, 0)->head, 1);
}

RULE("4-vale-254", "a switch has at most 254 ports")
{
	/* All in one region: so many regions need more room than all doors have. */
	struct port space = open_port(own("{1"), ANY), p;
	char name[16];
	int i, error = 0;

	for (i = 0; i < 256 && error == 0; i++) {
		snprintf(name, sizeof(name), "p%d", i);
		if (bind_port(&p, device(), vale(name), WISH(.nr_tx_slots = 16, .nr_rx_slots = 16,
		    .nr_mem_id = space.reg.nr_mem_id)) != 0)
			error = errno;
	}
	SAME(i, 255);
	SAME(error, ENOMEM);
}

RULE("4-vale-extra-bufs", "extra buffers are at most 128 times 4096")
{
	struct port a = open_port(vale("a"), WISH(.nr_extra_bufs = 1000000));

	HOLDS(a.reg.nr_extra_bufs > 0 && a.reg.nr_extra_bufs <= 128 * 4096);
}

RULE("4-vale-NIC", "an interface cannot be opened as a port of a switch: EINVAL, it must be attached")
{
	struct port p;

	REFUSED(EINVAL, bind_port(&p, device(), "vale99:lo", ANY));
}

/* ---- slots */

RULE("3-NO_LEARN", "a packet with NS_NO_LEARN teaches nothing of its sender")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY), c = open_port(vale("c"), ANY);

	put_frame(&b, ALL, 2, 'i', FRAME, NS_NO_LEARN);
	txsync(&b);
	SAME(comes(&a, LONG), 'i');
	SAME(comes(&c, LONG), 'i');
	send_frame(&a, 2, 1, 'x');
	SAME(comes(&b, LONG), 'x');
	SAME(comes(&c, LONG), 'x');
}

RULE("3-port", "the high byte of a slot's flags, if not 0, is the number of the port that the packet goes to")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY), c = open_port(vale("c"), ANY);
	struct ask q;

	ask(&q, NETMAP_REQ_VALE_LIST, vale("c"));
	WORKS(send_ask(&q));
	HOLDS(q.list.nr_port_idx > 0 && q.list.nr_port_idx < 254);
	put_frame(&a, ALL, 1, 'x', FRAME, q.list.nr_port_idx << NS_PORT_SHIFT);
	txsync(&a);
	SAME(comes(&c, LONG), 'x');
	SAME(comes(&b, QUIET), -1);
}

RULE("3-RFRAGS-received", "received slots tell in their high byte how many slots the packet has")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY);
	struct netmap_ring *rx = rx_ring(&b, 0);
	int i, revents;

	put_frame(&a, ALL, 1, 'x', FRAME, 0);
	for (i = 0; i < 3; i++)
		put_frame(&a, ALL, 1, 'y', 100, i < 2 ? NS_MOREFRAG : 0);
	txsync(&a);
	while (nm_ring_space(rx) < 4)
		SAME((rx->cur = rx->tail, poll_fd(b.fd, POLLIN, LONG, &revents)), 1);
	SAME(NS_RFRAGS(&rx->slot[0]), 1);
	SAME(NS_RFRAGS(&rx->slot[1]), 3);
	for (i = 0; i < 3; i++) {
		SAME(rx->slot[1 + i].len, 100);
		SAME(rx->slot[1 + i].flags & NS_MOREFRAG, i < 2 ? NS_MOREFRAG : 0);
	}
}

RULE("3-MOREFRAG-cut", "a packet whose last slot is missing at the end of a batch is sent as far as it is there")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY);
	struct netmap_ring *rx = rx_ring(&b, 0);
	int revents;

	put_frame(&a, ALL, 1, 'x', 100, NS_MOREFRAG);
	put_frame(&a, ALL, 1, 'y', 100, NS_MOREFRAG);
	txsync(&a);
	while (nm_ring_space(rx) < 2)
		SAME((rx->cur = rx->tail, poll_fd(b.fd, POLLIN, LONG, &revents)), 1);
	HOLDS(rx->slot[0].flags & NS_MOREFRAG);
	HOLDS(!(rx->slot[1].flags & NS_MOREFRAG));
}

RULE("3-MOREFRAG-65", "a packet of more than 64 slots goes nowhere, and its slots come back")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY);
	int i;

	for (i = 0; i < 65; i++)
		put_frame(&a, ALL, 1, 'x', FRAME, i < 64 ? NS_MOREFRAG : 0);
	put_frame(&a, ALL, 1, 'y', FRAME, 0);
	txsync(&a);
	SAME(comes(&b, LONG), 'y');
	drain(&a);
}

/* ---- virtio-net headers */

static int
set_header(const char *name, uint32_t bytes)
{
	struct ask q;
	int result, error;

	ask(&q, NETMAP_REQ_PORT_HDR_SET, name);
	q.header.nr_hdr_len = bytes;
	result = send_ask(&q);
	error = errno;
	close(q.fd);
	errno = error;
	return result;
}

RULE("1.1-PORT_HDR_SET", "a VALE port's packets begin with a header of 0, 10 or 12 bytes, as it was set last")
{
	static const uint32_t all[] = { 10, 12, 0 };
	struct port a = open_port(vale("a"), ANY);
	struct ask q;
	size_t i;

	for (i = 0; i < 3; i++) {
		WORKS(set_header(vale("a"), all[i]));
		ask(&q, NETMAP_REQ_PORT_HDR_GET, vale("a"));
		WORKS(send_ask(&q));
		SAME(q.header.nr_hdr_len, all[i]);
	}
	txsync(&a);
}

RULE("1.1-PORT_HDR_SET-EINVAL", "a header of another length: EINVAL")
{
	struct port a = open_port(vale("a"), ANY);

	REFUSED(EINVAL, set_header(vale("a"), 11));
	REFUSED(EINVAL, set_header(vale("a"), ~0U));
	txsync(&a);
}

RULE("1.1-REGISTER-EIO", "a port whose packets have a header, without NR_ACCEPT_VNET_HDR: EIO")
{
	struct port a = open_port(vale("a"), ANY), q;

	WORKS(set_header(vale("a"), 12));
	REFUSED(EIO, bind_port(&q, device(), vale("a"), ANY));
	WORKS(bind_port(&q, device(), vale("a"), WISH(.nr_flags = NR_ACCEPT_VNET_HDR)));
	txsync(&a);
}

RULE("4-vale-header", "a header goes on to a port that has it, too, and ends before one that has none")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY), c = open_port(vale("c"), ANY);
	char bytes[12 + FRAME] = { 0 };
	struct netmap_slot *slot;
	int revents;

	WORKS(set_header(vale("a"), 12));
	WORKS(set_header(vale("b"), 12));
	address(bytes + 12, ALL);
	address(bytes + 18, 1);
	memcpy(bytes + 24, "\x88\xb5!", 3);
	put(tx_ring(&a, 0), bytes, sizeof(bytes), 0);
	txsync(&a);
	SAME(poll_fd(b.fd, POLLIN, LONG, &revents), 1);
	slot = get(rx_ring(&b, 0));
	SAME(slot->len, sizeof(bytes));
	SAME(data_of(rx_ring(&b, 0), slot)[26], '!');
	SAME(poll_fd(c.fd, POLLIN, LONG, &revents), 1);
	slot = get(rx_ring(&c, 0));
	SAME(slot->len, FRAME);
	SAME(data_of(rx_ring(&c, 0), slot)[14], '!');
}

/* ---- NS_INDIRECT */

/* Puts a slot whose data is elsewhere; in its buffer stands another frame, for c. */
static void
put_elsewhere(const struct port *p, const void *data, unsigned int len)
{
	put_frame(p, 3, 1, 'w', len, NS_INDIRECT)->ptr = (uintptr_t)data;
}

RULE("3-INDIRECT", "of a slot with NS_INDIRECT the data at ptr is sent, in its place among the others")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY), c = open_port(vale("c"), ANY);
	char bytes[200][FRAME] = { 0 };
	int i;

	if (door_is("node"))
		rule_cannot("the node follows no pointers");
	introduce(&a, &b, &c);
	for (i = 0; i < 200; i++) {
		if (i % 3 == 0) {
			put_frame(&a, 2, 1, (char)(i + 1), FRAME, 0);
			continue;
		}
		address(bytes[i], 2);
		address(bytes[i] + 6, 1);
		bytes[i][14] = (char)(i + 1);
		put_elsewhere(&a, bytes[i], FRAME);
	}
	txsync(&a);
	/* It is the program's again as soon as that returns. */
	memset(bytes, 0, sizeof(bytes));
	SAME(comes(&c, QUIET), -1);
	for (i = 0; i < 200; i++)
		SAME((unsigned char)comes(&b, LONG), (unsigned char)(i + 1));
	SAME(comes(&b, QUIET), -1);
	drain(&a);
}

RULE("3-INDIRECT-bad", "data that is not there, or is too long, goes nowhere, and what is around it is sent")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY);
	char *edge = last_page() + sysconf(_SC_PAGESIZE), *bad[] = { NULL, (char *)8, edge, edge - FRAME + 1, (char *)-60 };
	unsigned int i;

	address(edge - FRAME, 2);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		put_frame(&a, ALL, 1, (char)('0' + i), FRAME, 0);
		put_elsewhere(&a, bad[i], FRAME);
	}
	put_frame(&a, ALL, 1, 'z', FRAME, 0);
	put(tx_ring(&a, 0), NULL, 65535, NS_INDIRECT)->ptr = (uintptr_t)a.mem;
	txsync(&a);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		SAME(comes(&b, LONG), '0' + (int)i);
	SAME(comes(&b, LONG), 'z');
	SAME(comes(&b, QUIET), -1);
	drain(&a);
}

RULE("4-monitor-vale", "a monitor of a VALE port shows what it sends and receives")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY);
	struct port tx = open_port(vale("a"), WISH(.nr_flags = NR_MONITOR_TX));
	struct port rx = open_port(vale("b"), WISH(.nr_flags = NR_MONITOR_RX));

	send_frame(&a, ALL, 1, 'x');
	SAME(comes(&tx, LONG), 'x');
	SAME(comes(&b, LONG), 'x');
	SAME(comes(&rx, LONG), 'x');
}

/* ---- requests */

RULE("1.1-VALE_LIST", "VALE_LIST finds a port's switch and number; 255 for a port that its switch does not have")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY);
	struct ask q;
	uint16_t bridge;

	ask(&q, NETMAP_REQ_VALE_LIST, vale("a"));
	WORKS(send_ask(&q));
	bridge = q.list.nr_bridge_idx;
	SAME(q.list.nr_port_idx, 0);
	ask(&q, NETMAP_REQ_VALE_LIST, vale("b"));
	WORKS(send_ask(&q));
	SAME(q.list.nr_bridge_idx, bridge);
	SAME(q.list.nr_port_idx, 1);
	ask(&q, NETMAP_REQ_VALE_LIST, vale("nobody"));
	WORKS(send_ask(&q));
	SAME(q.list.nr_port_idx, 255);
	txsync(&a);
	txsync(&b);
}

RULE("1.1-VALE_LIST-next", "without a name VALE_LIST tells the next port from the numbers on, by name; after the last: ENOENT")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY);
	struct ask q = { .fd = device() };
	uint32_t bridge = 0, port = 0;
	int found = 0;

	for (;;) {
		ask_again(&q, NETMAP_REQ_VALE_LIST, "");
		q.list.nr_bridge_idx = (uint16_t)bridge;
		q.list.nr_port_idx = port;
		if (send_ask(&q) != 0)
			break;
		found += strcmp(q.hdr.nr_name, vale("a")) == 0 || strcmp(q.hdr.nr_name, vale("b")) == 0;
		bridge = q.list.nr_bridge_idx;
		port = q.list.nr_port_idx + 1;
	}
	SAME(errno, ENOENT);
	SAME(found, 2);
	txsync(&a);
	txsync(&b);
}

RULE("1.1-PORT_INFO_GET-vale", "a VALE port that is not there is made for the question, and is not there afterwards")
{
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_INFO_GET, vale("a"));
	WORKS(send_ask(&q));
	SAME(q.info.nr_tx_slots, 1024);
	ask(&q, NETMAP_REQ_VALE_LIST, vale("a"));
	REFUSED(ENOENT, send_ask(&q));
}

RULE("1.4-BDG_LIST", "the older LIST tells a port's switch and number, and the next one's name")
{
	struct port a = open_port(vale("a"), ANY), b = open_port(vale("b"), ANY);
	struct nmreq r = { .nr_version = NETMAP_API, .nr_cmd = NETMAP_BDG_LIST };

	snprintf(r.nr_name, sizeof(r.nr_name), "%s", vale("b"));
	WORKS(ioctl(device(), NIOCGINFO, &r));
	SAME(r.nr_arg2, 1);
	memset(r.nr_name, 0, sizeof(r.nr_name));
	WORKS(ioctl(device(), NIOCGINFO, &r));
	HOLDS(strcmp(r.nr_name, vale("b")) == 0);
	txsync(&a);
	txsync(&b);
}
