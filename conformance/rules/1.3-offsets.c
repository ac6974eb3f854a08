/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.3, OFFSETS: packets that begin behind the start of their buffers.
 */
#include "port.h"

#define BUF	2048

static struct nmreq_opt_offsets
offsets(uint64_t max, uint64_t initial, uint32_t bits)
{
	struct nmreq_opt_offsets option;

	memset(&option, 0, sizeof(option));
	option.nro_opt.nro_reqtype = NETMAP_REQ_OPT_OFFSETS;
	option.nro_max_offset = max;
	option.nro_initial_offset = initial;
	option.nro_offset_bits = bits;
	return option;
}

static struct port
open_with(const char *name, struct nmreq_register wish, struct nmreq_opt_offsets *option)
{
	struct port p;

	WORKS(bind_with(&p, device(), name, wish, option));
	SAME(option->nro_opt.nro_status, 0);
	p.mem = mmap(NULL, p.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	HOLDS(p.mem != MAP_FAILED);
	p.nifp = NETMAP_IF(p.mem, p.reg.nr_offset);
	return p;
}

RULE("1.3-OFFSETS", "offset_mask says which bits of ptr are the offset, and every slot begins with the initial one")
{
	struct nmreq_opt_offsets option = offsets(256, 100, 12);
	struct port p = open_with(own("{1"), ANY, &option);
	struct netmap_ring *tx = tx_ring(&p, 0), *rx = rx_ring(&p, 0);
	uint32_t i;

	SAME(option.nro_max_offset, 256);
	SAME(tx->offset_mask, 0xfff);
	SAME(rx->offset_mask, 0xfff);
	for (i = 0; i < tx->num_slots; i++)
		SAME(NETMAP_ROFFSET(tx, &tx->slot[i]), 100);
	for (i = 0; i < rx->num_slots; i++)
		SAME(NETMAP_ROFFSET(rx, &rx->slot[i]), 100);
}

RULE("1.3-OFFSETS-bits", "0 bits are all 64")
{
	static const uint32_t bits[] = { 0, 64, 63, 1 };
	static const uint64_t masks[] = { ~0ULL, ~0ULL, ~0ULL >> 1, 1 };
	struct nmreq_opt_offsets option;
	struct port p;
	int i;

	for (i = 0; i < 4; i++) {
		option = offsets(1, 0, bits[i]);
		p = open_with(own("{1"), ANY, &option);
		SAME(tx_ring(&p, 0)->offset_mask, masks[i]);
		close_port(&p);
	}
}

RULE("1.3-OFFSETS-sent", "a packet arrives at the offset that the sender chose for its slot")
{
	static const unsigned int at[] = { 0, 1, 100, 256, 77 };
	struct nmreq_opt_offsets to = offsets(256, 0, 16), from = offsets(256, 0, 16);
	struct port a = open_with(own("{1"), ANY, &to), b = open_with(own("}1"), ANY, &from);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	char text[64];
	int i;

	for (i = 0; i < 5; i++) {
		struct netmap_slot *slot = &tx->slot[tx->head];

		NETMAP_WOFFSET(tx, slot, at[i]);
		snprintf(text, sizeof(text), "packet %d", i);
		memcpy(NETMAP_BUF_OFFSET(tx, slot), text, sizeof(text));
		put(tx, NULL, sizeof(text), 0);
	}
	txsync(&a);
	rxsync(&b);
	SAME(nm_ring_space(rx), 5);
	for (i = 0; i < 5; i++) {
		struct netmap_slot *slot = get(rx);

		snprintf(text, sizeof(text), "packet %d", i);
		SAME(NETMAP_ROFFSET(rx, slot), at[i]);
		HOLDS(strcmp(NETMAP_BUF_OFFSET(rx, slot), text) == 0);
	}
}

RULE("1.3-OFFSETS-upper", "the other bits of ptr are the program's")
{
	struct nmreq_opt_offsets to = offsets(256, 7, 10), from = offsets(256, 0, 10);
	struct port a = open_with(own("{1"), ANY, &to), b = open_with(own("}1"), ANY, &from);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	struct netmap_slot *slot = &tx->slot[0];

	slot->ptr = 0xabcdefULL << 32 | 7;
	NETMAP_WOFFSET(tx, slot, 9);
	SAME(slot->ptr, 0xabcdefULL << 32 | 9);
	put(tx, "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	SAME(get(rx)->ptr, 0xabcdefULL << 32 | 9);
}

RULE("1.3-OFFSETS-outside", "what would end outside its buffer is not handed to a receiver with offsets")
{
	static const struct {
		uint64_t offset;
		uint16_t len;
		int good;
	} all[] = { { 256, BUF - 256, 1 }, { 256, BUF - 255, 0 }, { BUF, 0, 1 }, { BUF, 1, 0 }, { 1ULL << 40, 10, 0 },
		{ ~0ULL, 10, 0 }, { ~0ULL - 9, 60, 0 }, { 0, BUF, 1 } };
	struct nmreq_opt_offsets option = offsets(256, 0, 0);
	struct port a = open_port(own("{1"), ANY), b = open_with(own("}1"), ANY, &option);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	size_t i;

	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		tx->slot[tx->head].ptr = all[i].offset;
		put(tx, NULL, all[i].len, 0);
	}
	txsync(&a);
	rxsync(&b);
	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct netmap_slot *slot = get(rx);

		SAME(slot->len, all[i].good ? all[i].len : 0);
		HOLDS(NETMAP_ROFFSET(rx, slot) + slot->len <= BUF);
	}
}

RULE("1.3-OFFSETS-EINVAL", "more than 64 bits, a largest that is beyond a buffer or its bits, an initial beyond it: EINVAL")
{
	static const struct {
		uint64_t max, initial;
		uint32_t bits;
	} all[] = { { 0, 0, 65 }, { 0, 0, ~0U }, { BUF + 1, 0, 0 }, { ~0ULL, 0, 64 }, { 256, 0, 8 }, { 2, 0, 1 },
		{ 10, 11, 0 }, { 0, ~0ULL, 0 } };
	struct nmreq_opt_offsets option;
	struct port p;
	size_t i;

	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		option = offsets(all[i].max, all[i].initial, all[i].bits);
		REFUSED(EINVAL, bind_with(&p, device(), own("{1"), ANY, &option));
		SAME(option.nro_opt.nro_status, EINVAL);
		SAME(option.nro_max_offset, all[i].max);
		REFUSED(ENXIO, ioctl(p.fd, NIOCTXSYNC));
		WORKS(close(p.fd));
	}
	option = offsets(BUF, BUF, 12);
	open_with(own("{1"), ANY, &option);
}

RULE("1.3-OFFSETS-EBUSY", "on a ring in use: EBUSY for more than it has, and what it has for the same or less")
{
	struct nmreq_opt_offsets option = offsets(100, 50, 8);
	struct port first = open_with(own("{1"), ANY, &option), p;

	option = offsets(101, 0, 8);
	REFUSED(EBUSY, bind_with(&p, device(), own("{1"), ANY, &option));
	SAME(option.nro_opt.nro_status, EBUSY);
	option = offsets(100, 0, 9);
	REFUSED(EBUSY, bind_with(&p, device(), own("{1"), ANY, &option));
	option = offsets(10, 3, 4);
	WORKS(bind_with(&p, device(), own("{1"), ANY, &option));
	SAME(option.nro_max_offset, 100);
	/* The slots are others' already. */
	SAME(NETMAP_ROFFSET(tx_ring(&first, 0), &tx_ring(&first, 0)->slot[9]), 50);
	SAME(tx_ring(&first, 0)->offset_mask, 0xff);
	/* The other end of the pipe has its own. */
	option = offsets(1000, 0, 16);
	open_with(own("}1"), ANY, &option);
}

RULE("1.3-OFFSETS-without", "who binds a ring anew without the option has none")
{
	struct nmreq_opt_offsets option = offsets(100, 50, 8);
	struct port keep = open_port(own("}1"), ANY), p = open_with(own("{1"), ANY, &option);

	close_port(&p);
	p = open_port(own("{1"), ANY);
	SAME(tx_ring(&p, 0)->offset_mask, 0);
	SAME(rx_ring(&p, 0)->offset_mask, 0);
	txsync(&keep);
}

RULE("1.3-OFFSETS-null", "a port without a data path has them, too")
{
	struct nmreq_opt_offsets option = offsets(100, 50, 8);
	struct port keep = open_port(own("{1"), ANY);
	struct port p = open_with(own("null"), WISH(.nr_mode = NR_REG_NULL, .nr_mem_id = keep.reg.nr_mem_id), &option);

	SAME(NETMAP_ROFFSET(tx_ring(&p, 0), &tx_ring(&p, 0)->slot[5]), 50);
}

RULE("1.3-OFFSETS-in-transit", "what was sent and not yet read keeps the offset that it was sent with")
{
	struct nmreq_opt_offsets to = offsets(256, 9, 16), again = offsets(256, 33, 16), from = offsets(256, 0, 16);
	struct port b = open_with(own("}1"), ANY, &from), a = open_with(own("{1"), ANY, &to);
	struct netmap_ring *rx = rx_ring(&b, 0);

	put(tx_ring(&a, 0), NULL, 60, 0);
	txsync(&a);
	close_port(&a);
	a = open_with(own("{1"), ANY, &again);
	SAME(NETMAP_ROFFSET(tx_ring(&a, 0), &tx_ring(&a, 0)->slot[1]), 33);
	rxsync(&b);
	SAME(NETMAP_ROFFSET(rx, get(rx)), 9);
}

/* A name of a switch's port. */
static const char *
vale(const char *port)
{
	static char names[4][NETMAP_REQ_IFNAMSIZ];
	static unsigned int next;
	char *name = names[next++ % 4];

	snprintf(name, sizeof(names[0]), "vale%s:%s", own(""), port);
	return name;
}

/* Sends a frame from where the slot says; what stands at the buffer's start is another. */
static void
send_at(struct port *p, uint64_t at, char what)
{
	struct netmap_ring *tx = tx_ring(p, 0);
	struct netmap_slot *slot = &tx->slot[tx->head];

	memset(NETMAP_BUF(tx, slot->buf_idx), 0xee, tx->nr_buf_size);
	NETMAP_WOFFSET(tx, slot, at);
	memset(NETMAP_BUF_OFFSET(tx, slot), 0, 60);
	memcpy(NETMAP_BUF_OFFSET(tx, slot), "\xff\xff\xff\xff\xff\xff\x02\0\0\0\0\x01\x88\xb5", 14);
	NETMAP_BUF_OFFSET(tx, slot)[14] = what;
	put(tx, NULL, 60, 0);
	txsync(p);
}

/* The next frame's slot, within seconds. */
static struct netmap_slot *
await(struct port *p)
{
	int revents;

	SAME(poll_fd(p->fd, POLLIN, 20000, &revents), 1);
	return get(rx_ring(p, 0));
}

RULE("1.3-OFFSETS-vale", "on a switch a frame is sent from where its slot says, and comes to where the receiver's says")
{
	static const unsigned int from[] = { 0, 2, 64, 100, 200 }, to[] = { 10, 0, 200, 64, 1 };
	struct nmreq_opt_offsets ours = offsets(200, 0, 16), theirs = offsets(200, 0, 16);
	struct port a = open_with(vale("a"), ANY, &ours), b = open_with(vale("b"), ANY, &theirs);
	struct port c = open_port(vale("c"), ANY);
	struct netmap_ring *rx = rx_ring(&b, 0), *plain = rx_ring(&c, 0);
	struct netmap_slot *slot;
	int i;

	SAME(rx->offset_mask, 0xffff);
	for (i = 0; i < 5; i++)
		NETMAP_WOFFSET(rx, &rx->slot[i], to[i]);
	for (i = 0; i < 5; i++) {
		send_at(&a, from[i], (char)('a' + i));
		slot = await(&b);
		SAME(slot->len, 60);
		SAME(NETMAP_ROFFSET(rx, slot), to[i]);
		SAME(NETMAP_BUF_OFFSET(rx, slot)[14], 'a' + i);
		slot = await(&c);
		SAME(slot->len, 60);
		SAME(NETMAP_BUF(plain, slot->buf_idx)[14], 'a' + i);
	}
}

RULE("1.3-OFFSETS-vale-region", "the same within a region")
{
	struct nmreq_opt_offsets ours = offsets(128, 96, 8), theirs = offsets(128, 32, 8);
	struct port a = open_with(vale("a"), ANY, &ours), b;
	struct netmap_slot *slot;
	int i;

	b = open_with(vale("b"), WISH(.nr_mem_id = a.reg.nr_mem_id), &theirs);
	SAME(NETMAP_ROFFSET(rx_ring(&b, 0), &rx_ring(&b, 0)->slot[7]), 32);
	for (i = 0; i < 20; i++) {
		send_at(&a, 96, (char)i);
		slot = await(&b);
		SAME(NETMAP_ROFFSET(rx_ring(&b, 0), slot), 32);
		SAME(NETMAP_BUF_OFFSET(rx_ring(&b, 0), slot)[14], i);
	}
}

RULE("1.3-OFFSETS-vale-outside", "what ends outside its buffer, or would in the receiver's, does not come")
{
	struct nmreq_opt_offsets ours = offsets(512, 0, 16), theirs = offsets(512, 512, 16);
	struct port a = open_with(vale("a"), ANY, &ours), b = open_with(vale("b"), ANY, &theirs);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	uint32_t size = tx->nr_buf_size;
	struct netmap_slot *slot;

	/* Too long from there, and as long as there is room where it comes from, but not where it is to be. */
	NETMAP_WOFFSET(tx, &tx->slot[tx->head], 512);
	put(tx, NULL, size - 511, 0);
	NETMAP_WOFFSET(tx, &tx->slot[tx->head], 0);
	memset(NETMAP_BUF(tx, tx->slot[tx->head].buf_idx), 0xff, 6);
	put(tx, NULL, size - 511, 0);
	txsync(&a);
	send_at(&a, 512, 'x');
	slot = await(&b);
	SAME(slot->len, 60);
	SAME(NETMAP_BUF_OFFSET(rx, slot)[14], 'x');
	HOLDS(nm_ring_empty(rx));
	/* As long as there is room. */
	NETMAP_WOFFSET(tx, &tx->slot[tx->head], 0);
	memset(NETMAP_BUF(tx, tx->slot[tx->head].buf_idx), 0xff, 6);
	put(tx, NULL, size - 512, 0);
	txsync(&a);
	SAME(await(&b)->len, size - 512);
}
