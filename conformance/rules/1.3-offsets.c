/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.3, OFFSETS: packets that begin at an offset in their buffers.
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
open_with(const char *name, struct nmreq_register reg, struct nmreq_opt_offsets *option)
{
	struct port p;

	CHECK_OK(bind_with(&p, open_device(), name, reg, option));
	CHECK_EQ(option->nro_opt.nro_status, 0);
	p.mem = mmap(NULL, p.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	CHECK(p.mem != MAP_FAILED);
	p.nifp = NETMAP_IF(p.mem, p.reg.nr_offset);
	return p;
}

RULE("1.3-OFFSETS", "offset_mask covers the offset bits of ptr, and every slot starts with the initial offset")
{
	struct nmreq_opt_offsets option = offsets(256, 100, 12);
	struct port p = open_with(unique_name("{1"), ALL_RINGS, &option);
	struct netmap_ring *tx = tx_ring(&p, 0), *rx = rx_ring(&p, 0);
	uint32_t i;

	CHECK_EQ(option.nro_max_offset, 256);
	CHECK_EQ(tx->offset_mask, 0xfff);
	CHECK_EQ(rx->offset_mask, 0xfff);
	for (i = 0; i < tx->num_slots; i++)
		CHECK_EQ(NETMAP_ROFFSET(tx, &tx->slot[i]), 100);
	for (i = 0; i < rx->num_slots; i++)
		CHECK_EQ(NETMAP_ROFFSET(rx, &rx->slot[i]), 100);
}

RULE("1.3-OFFSETS-bits", "nro_offset_bits 0 means all 64 bits")
{
	static const uint32_t bits[] = { 0, 64, 63, 1 };
	static const uint64_t masks[] = { ~0ULL, ~0ULL, ~0ULL >> 1, 1 };
	struct nmreq_opt_offsets option;
	struct port p;
	int i;

	for (i = 0; i < 4; i++) {
		option = offsets(1, 0, bits[i]);
		p = open_with(unique_name("{1"), ALL_RINGS, &option);
		CHECK_EQ(tx_ring(&p, 0)->offset_mask, masks[i]);
		close_port(&p);
	}
}

RULE("1.3-OFFSETS-sent", "a packet arrives at the offset that the sender set in its slot")
{
	static const unsigned int at[] = { 0, 1, 100, 256, 77 };
	struct nmreq_opt_offsets to = offsets(256, 0, 16), from = offsets(256, 0, 16);
	struct port a = open_with(unique_name("{1"), ALL_RINGS, &to), b = open_with(unique_name("}1"), ALL_RINGS, &from);
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
	CHECK_EQ(nm_ring_space(rx), 5);
	for (i = 0; i < 5; i++) {
		struct netmap_slot *slot = get(rx);

		snprintf(text, sizeof(text), "packet %d", i);
		CHECK_EQ(NETMAP_ROFFSET(rx, slot), at[i]);
		CHECK(strcmp(NETMAP_BUF_OFFSET(rx, slot), text) == 0);
	}
}

RULE("1.3-OFFSETS-upper", "netmap leaves the other bits of ptr unchanged")
{
	struct nmreq_opt_offsets to = offsets(256, 7, 10), from = offsets(256, 0, 10);
	struct port a = open_with(unique_name("{1"), ALL_RINGS, &to), b = open_with(unique_name("}1"), ALL_RINGS, &from);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	struct netmap_slot *slot = &tx->slot[0];

	slot->ptr = 0xabcdefULL << 32 | 7;
	NETMAP_WOFFSET(tx, slot, 9);
	CHECK_EQ(slot->ptr, 0xabcdefULL << 32 | 9);
	put(tx, "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(get(rx)->ptr, 0xabcdefULL << 32 | 9);
}

RULE("1.3-OFFSETS-outside", "a packet that would end outside its buffer is not passed to a receiver with offsets")
{
	static const struct {
		uint64_t offset;
		uint16_t len;
		int good;
	} all[] = { { 256, BUF - 256, 1 }, { 256, BUF - 255, 0 }, { BUF, 0, 1 }, { BUF, 1, 0 }, { 1ULL << 40, 10, 0 },
		{ ~0ULL, 10, 0 }, { ~0ULL - 9, 60, 0 }, { 0, BUF, 1 } };
	struct nmreq_opt_offsets option = offsets(256, 0, 0);
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_with(unique_name("}1"), ALL_RINGS, &option);
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

		CHECK_EQ(slot->len, all[i].good ? all[i].len : 0);
		CHECK(NETMAP_ROFFSET(rx, slot) + slot->len <= BUF);
	}
}

RULE("1.3-OFFSETS-EINVAL",
    "more than 64 bits, a maximum beyond the buffer or the bits, an initial beyond the maximum: EINVAL")
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
		CHECK_ERRNO(EINVAL, bind_with(&p, open_device(), unique_name("{1"), ALL_RINGS, &option));
		CHECK_EQ(option.nro_opt.nro_status, EINVAL);
		CHECK_EQ(option.nro_max_offset, all[i].max);
		CHECK_ERRNO(ENXIO, ioctl(p.fd, NIOCTXSYNC));
		CHECK_OK(close(p.fd));
	}
	option = offsets(BUF, BUF, 12);
	open_with(unique_name("{1"), ALL_RINGS, &option);
}

RULE("1.3-OFFSETS-EBUSY",
    "on a ring in use, a larger maximum: EBUSY; the same or a smaller one returns the actual values")
{
	struct nmreq_opt_offsets option = offsets(100, 50, 8);
	struct port first = open_with(unique_name("{1"), ALL_RINGS, &option), p;

	option = offsets(101, 0, 8);
	CHECK_ERRNO(EBUSY, bind_with(&p, open_device(), unique_name("{1"), ALL_RINGS, &option));
	CHECK_EQ(option.nro_opt.nro_status, EBUSY);
	option = offsets(100, 0, 9);
	CHECK_ERRNO(EBUSY, bind_with(&p, open_device(), unique_name("{1"), ALL_RINGS, &option));
	option = offsets(10, 3, 4);
	CHECK_OK(bind_with(&p, open_device(), unique_name("{1"), ALL_RINGS, &option));
	CHECK_EQ(option.nro_max_offset, 100);
	/* The slots of the first binding keep their offsets. */
	CHECK_EQ(NETMAP_ROFFSET(tx_ring(&first, 0), &tx_ring(&first, 0)->slot[9]), 50);
	CHECK_EQ(tx_ring(&first, 0)->offset_mask, 0xff);
	/* The other end of the pipe has its own offsets. */
	option = offsets(1000, 0, 16);
	open_with(unique_name("}1"), ALL_RINGS, &option);
}

RULE("1.3-OFFSETS-without", "a later binding of a ring without the option has no offsets")
{
	struct nmreq_opt_offsets option = offsets(100, 50, 8);
	struct port other_port = open_port(unique_name("}1"), ALL_RINGS), p = open_with(unique_name("{1"), ALL_RINGS,
	    &option);

	close_port(&p);
	p = open_port(unique_name("{1"), ALL_RINGS);
	CHECK_EQ(tx_ring(&p, 0)->offset_mask, 0);
	CHECK_EQ(rx_ring(&p, 0)->offset_mask, 0);
	txsync(&other_port);
}

RULE("1.3-OFFSETS-null", "a port without a data path supports offsets")
{
	struct nmreq_opt_offsets option = offsets(100, 50, 8);
	struct port other_port = open_port(unique_name("{1"), ALL_RINGS);
	struct port p = open_with(unique_name("null"), REG(.nr_mode = NR_REG_NULL, .nr_mem_id = other_port.reg.nr_mem_id),
	    &option);

	CHECK_EQ(NETMAP_ROFFSET(tx_ring(&p, 0), &tx_ring(&p, 0)->slot[5]), 50);
}

RULE("1.3-OFFSETS-in-transit", "a packet in transit keeps the offset that it was sent with")
{
	struct nmreq_opt_offsets to = offsets(256, 9, 16), again = offsets(256, 33, 16), from = offsets(256, 0, 16);
	struct port b = open_with(unique_name("}1"), ALL_RINGS, &from), a = open_with(unique_name("{1"), ALL_RINGS, &to);
	struct netmap_ring *rx = rx_ring(&b, 0);

	put(tx_ring(&a, 0), NULL, 60, 0);
	txsync(&a);
	close_port(&a);
	a = open_with(unique_name("{1"), ALL_RINGS, &again);
	CHECK_EQ(NETMAP_ROFFSET(tx_ring(&a, 0), &tx_ring(&a, 0)->slot[1]), 33);
	rxsync(&b);
	CHECK_EQ(NETMAP_ROFFSET(rx, get(rx)), 9);
}

/* Returns the name of a port of the rule's own switch. */
static const char *
vale(const char *port)
{
	static char names[4][NETMAP_REQ_IFNAMSIZ];
	static unsigned int next;
	char *name = names[next++ % 4];

	snprintf(name, sizeof(names[0]), "vale%s:%s", unique_name(""), port);
	return name;
}

/* Sends a frame at an offset; the rest of the buffer is filled with 0xee. */
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

/* Waits for the next frame and returns its slot. */
static struct netmap_slot *
wait_for_packet(struct port *p)
{
	int revents;

	CHECK_EQ(poll_fd(p->fd, POLLIN, 20000, &revents), 1);
	return get(rx_ring(p, 0));
}

RULE("1.3-OFFSETS-vale",
    "a switch copies a frame from the offset in the sender's slot to the offset in the receiver's slot")
{
	static const unsigned int from[] = { 0, 2, 64, 100, 200 }, to[] = { 10, 0, 200, 64, 1 };
	struct nmreq_opt_offsets a_option = offsets(200, 0, 16), b_option = offsets(200, 0, 16);
	struct port a = open_with(vale("a"), ALL_RINGS, &a_option), b = open_with(vale("b"), ALL_RINGS, &b_option);
	struct port c = open_port(vale("c"), ALL_RINGS);
	struct netmap_ring *rx = rx_ring(&b, 0), *plain = rx_ring(&c, 0);
	struct netmap_slot *slot;
	int i;

	CHECK_EQ(rx->offset_mask, 0xffff);
	for (i = 0; i < 5; i++)
		NETMAP_WOFFSET(rx, &rx->slot[i], to[i]);
	for (i = 0; i < 5; i++) {
		send_at(&a, from[i], (char)('a' + i));
		slot = wait_for_packet(&b);
		CHECK_EQ(slot->len, 60);
		CHECK_EQ(NETMAP_ROFFSET(rx, slot), to[i]);
		CHECK_EQ(NETMAP_BUF_OFFSET(rx, slot)[14], 'a' + i);
		slot = wait_for_packet(&c);
		CHECK_EQ(slot->len, 60);
		CHECK_EQ(NETMAP_BUF(plain, slot->buf_idx)[14], 'a' + i);
	}
}

RULE("1.3-OFFSETS-vale-region", "between ports of one region, a frame also arrives at the receiver's offset")
{
	struct nmreq_opt_offsets a_option = offsets(128, 96, 8), b_option = offsets(128, 32, 8);
	struct port a = open_with(vale("a"), ALL_RINGS, &a_option), b;
	struct netmap_slot *slot;
	int i;

	b = open_with(vale("b"), REG(.nr_mem_id = a.reg.nr_mem_id), &b_option);
	CHECK_EQ(NETMAP_ROFFSET(rx_ring(&b, 0), &rx_ring(&b, 0)->slot[7]), 32);
	for (i = 0; i < 20; i++) {
		send_at(&a, 96, (char)i);
		slot = wait_for_packet(&b);
		CHECK_EQ(NETMAP_ROFFSET(rx_ring(&b, 0), slot), 32);
		CHECK_EQ(NETMAP_BUF_OFFSET(rx_ring(&b, 0), slot)[14], i);
	}
}

RULE("1.3-OFFSETS-vale-outside",
     "a switch drops a frame outside the sender's buffer; one outside the receiver's continues in its next slot")
{
	struct nmreq_opt_offsets a_option = offsets(512, 0, 16), b_option = offsets(512, 512, 16);
	struct port a = open_with(vale("a"), ALL_RINGS, &a_option), b = open_with(vale("b"), ALL_RINGS, &b_option);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	uint32_t size = tx->nr_buf_size;
	struct netmap_slot *slot;

	/* Too long for the sender's buffer at its offset, then for the receiver's at its offset. */
	NETMAP_WOFFSET(tx, &tx->slot[tx->head], 512);
	put(tx, NULL, size - 511, 0);
	NETMAP_WOFFSET(tx, &tx->slot[tx->head], 0);
	memset(NETMAP_BUF(tx, tx->slot[tx->head].buf_idx), 0xff, 6);
	put(tx, NULL, size - 511, 0);
	txsync(&a);
	send_at(&a, 512, 'x');
	/* The second of the two, in two slots; then the frame after them. */
	slot = wait_for_packet(&b);
	CHECK_EQ(slot->len, size - 512);
	CHECK_EQ(slot->flags & NS_MOREFRAG, NS_MOREFRAG);
	slot = wait_for_packet(&b);
	CHECK_EQ(slot->len, 1);
	CHECK_EQ(slot->flags & NS_MOREFRAG, 0);
	slot = wait_for_packet(&b);
	CHECK_EQ(slot->len, 60);
	CHECK_EQ(NETMAP_BUF_OFFSET(rx, slot)[14], 'x');
	CHECK(nm_ring_empty(rx));
	/* The longest frame that fits. */
	NETMAP_WOFFSET(tx, &tx->slot[tx->head], 0);
	memset(NETMAP_BUF(tx, tx->slot[tx->head].buf_idx), 0xff, 6);
	put(tx, NULL, size - 512, 0);
	txsync(&a);
	CHECK_EQ(wait_for_packet(&b)->len, size - 512);
}
