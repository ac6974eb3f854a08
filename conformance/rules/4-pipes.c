/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: pipes, and ports without a data path.
 */
#include <net/if.h>

#include "port.h"

RULE("4-pipe-ends", "what one end sends, the other receives, in both directions")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct netmap_slot *slot;

	put(tx_ring(&a, 0), "down", 5, 0);
	put(tx_ring(&b, 0), "up", 3, 0);
	txsync(&a);
	txsync(&b);
	rxsync(&a);
	rxsync(&b);
	slot = get(rx_ring(&b, 0));
	HOLDS(slot->len == 5 && strcmp(data_of(rx_ring(&b, 0), slot), "down") == 0);
	slot = get(rx_ring(&a, 0));
	HOLDS(slot->len == 3 && strcmp(data_of(rx_ring(&a, 0), slot), "up") == 0);
}

RULE("4-pipe-identifier", "letters, digits and underscores name a pipe, and each name is another one")
{
	struct port a = open_port(own("{left_1"), ANY), b = open_beside(&a, own("}left_1"), ANY);
	struct port c = open_beside(&a, own("}Left_1"), ANY);

	put(tx_ring(&a, 0), "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	rxsync(&c);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
	HOLDS(nm_ring_empty(rx_ring(&c, 0)));
}

RULE("4-pipe-mirrored", "the master's tx rings are the slave's rx rings, and the other way round")
{
	struct port a = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 3, .nr_tx_slots = 64, .nr_rx_slots = 128));
	struct port b = open_beside(&a, own("}1"), ANY);

	SAME(b.reg.nr_tx_rings, 3);
	SAME(b.reg.nr_rx_rings, 2);
	SAME(b.reg.nr_tx_slots, 128);
	SAME(b.reg.nr_rx_slots, 64);
	put(tx_ring(&a, 1), "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	HOLDS(nm_ring_empty(rx_ring(&b, 0)));
	SAME(nm_ring_space(rx_ring(&b, 1)), 1);
}

RULE("4-pipe-defaults", "a pipe without a parent has one ring pair of 1024 slots")
{
	struct port a = open_port(own("{1"), ANY);

	SAME(a.reg.nr_tx_rings, 1);
	SAME(a.reg.nr_rx_rings, 1);
	SAME(a.reg.nr_tx_slots, 1024);
	SAME(a.reg.nr_rx_slots, 1024);
}

RULE("4-pipe-largest", "up to 256 rings, and up to 4096 slots")
{
	struct port a = open_port(own("{1"), WISH(.nr_tx_rings = 256, .nr_rx_rings = 1, .nr_tx_slots = 16, .nr_rx_slots = 16));
	struct port b = open_port(own("y{1"), WISH(.nr_tx_slots = 4096, .nr_rx_slots = 4096));

	SAME(a.reg.nr_tx_rings, 256);
	SAME(tx_ring(&a, 255)->num_slots, 16);
	SAME(tx_ring(&b, 0)->num_slots, 4096);
	SAME(rx_ring(&b, 0)->num_slots, 4096);
}

RULE("4-pipe-zero-copy", "the whole slot arrives at the same index: buffer, length, flags and ptr")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
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
	SAME(nm_ring_space(rx), 3);
	for (i = 0; i < 3; i++) {
		SAME(rx->slot[i].buf_idx, sent[i].buf_idx);
		SAME(rx->slot[i].len, sent[i].len);
		SAME(rx->slot[i].flags & NS_REPORT, NS_REPORT);
		SAME(rx->slot[i].ptr, sent[i].ptr);
	}
}

RULE("4-pipe-taken", "a tx slot stays taken until the receiver has released its rx slot")
{
	struct port a = open_port(own("{1"), WISH(.nr_tx_slots = 16, .nr_rx_slots = 16));
	struct port b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	int i;

	for (i = 0; i < 15; i++)
		put(tx, "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	SAME(nm_ring_space(rx), 15);
	txsync(&a);
	HOLDS(nm_ring_empty(tx));
	for (i = 0; i < 4; i++)
		get(rx);
	txsync(&a);
	HOLDS(nm_ring_empty(tx));
	rxsync(&b);
	txsync(&a);
	SAME(nm_ring_space(tx), 4);
}

RULE("4-pipe-swap-back", "a receiver that swaps a buffer hands it to the sender's slot, flagged there and no more here")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), WISH(.nr_extra_bufs = 1));
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	uint32_t extra = b.nifp->ni_bufs_head, sent = tx->slot[0].buf_idx;
	struct netmap_slot *slot;

	put(tx, "x", 1, 0);
	put(tx, "y", 1, 0);
	txsync(&a);
	rxsync(&b);
	slot = get(rx);
	SAME(slot->buf_idx, sent);
	slot->buf_idx = extra;
	slot->flags |= NS_BUF_CHANGED;
	b.nifp->ni_bufs_head = sent;
	*(uint32_t *)(void *)NETMAP_BUF(rx, sent) = 0;
	get(rx);
	rxsync(&b);
	txsync(&a);
	SAME(tx->slot[0].buf_idx, extra);
	HOLDS(tx->slot[0].flags & NS_BUF_CHANGED);
	HOLDS(!(tx->slot[1].flags & NS_BUF_CHANGED));
	HOLDS(!(slot->flags & NS_BUF_CHANGED));
}

RULE("4-pipe-other-end-first", "the first end that is opened makes both, and its wishes count")
{
	struct port b = open_port(own("}1"), WISH(.nr_tx_rings = 2, .nr_rx_slots = 64)), a = open_beside(&b, own("{1"), ANY);

	SAME(a.reg.nr_rx_rings, 2);
	SAME(a.reg.nr_tx_slots, 64);
}

RULE("4-pipe-before-peer", "what is sent before the other end is opened is there when it is")
{
	struct port a = open_port(own("{1"), ANY), b;

	put(tx_ring(&a, 0), "x", 1, 0);
	txsync(&a);
	b = open_beside(&a, own("}1"), ANY);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("4-pipe-no-parent", "the parent need not exist, and no interface of its name is made")
{
	struct port a = open_port(own("{1"), ANY);

	HOLDS(if_nametoindex(own("")) == 0);
	txsync(&a);
}

RULE("4-pipe-one-region", "pipes of one parent lie in one region, those of others in others")
{
	struct port a = open_port(own("{1"), ANY), b = open_port(own("}1"), ANY), c = open_port(own("{2"), ANY);
	struct port d = open_port(own("x{1"), ANY);

	SAME(b.reg.nr_mem_id, a.reg.nr_mem_id);
	SAME(c.reg.nr_mem_id, a.reg.nr_mem_id);
	HOLDS(d.reg.nr_mem_id != a.reg.nr_mem_id);
}

RULE("4-pipe-64", "a parent has at most 64 pipes: the next is refused with EINVAL, or ENOMEM where memory ended before")
{
	struct port p;
	char name[16];
	int i, error = 0;

	for (i = 0; i < 66 && error == 0; i++) {
		snprintf(name, sizeof(name), "{%d", i);
		if (bind_port(&p, device(), own(name), WISH(.nr_tx_slots = 64, .nr_rx_slots = 64)) != 0)
			error = errno;
	}
	HOLDS(i >= 2 && i <= 65);
	HOLDS(error == (i == 65 ? EINVAL : ENOMEM));
}

RULE("4-pipe-modes", "a pipe's rings are bound all or one pair: other modes: EINVAL")
{
	static const uint32_t no[] = { NR_REG_SW, NR_REG_NIC_SW, NR_REG_ONE_SW };
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 2, .nr_mode = NR_REG_ONE_NIC,
	    .nr_ringid = 1)), q;
	int i;

	for (i = 0; i < 3; i++)
		REFUSED(EINVAL, bind_port(&q, device(), own("}1"), WISH(.nr_mode = no[i])));
	txsync(&p);
}

RULE("4-pipe-peer-gone", "an end whose peer was closed goes on: what was not given back is the next peer's")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);

	put(tx_ring(&a, 0), "one", 4, 0);
	put(tx_ring(&a, 0), "two", 4, 0);
	txsync(&a);
	rxsync(&b);
	get(rx_ring(&b, 0));
	rxsync(&b);
	WORKS(close(b.fd));
	txsync(&a);
	b = open_beside(&a, own("}1"), ANY);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
	HOLDS(strcmp(data_of(rx_ring(&b, 0), get(rx_ring(&b, 0))), "two") == 0);
}

/* ---- ports without a data path */

RULE("4-null", "mode NULL makes a port with rings in the region nr_mem_id; its syncs succeed")
{
	struct port a = open_port(own("{1"), ANY);
	struct port p = open_beside(&a, own(""), WISH(.nr_mode = NR_REG_NULL, .nr_mem_id = a.reg.nr_mem_id,
	    .nr_tx_rings = 2, .nr_rx_rings = 1, .nr_tx_slots = 64, .nr_rx_slots = 64));

	txsync(&p);
	rxsync(&p);
	SAME(p.nifp->ni_tx_rings, 2);
	SAME(p.reg.nr_tx_slots, 64);
}

RULE("4-null-region", "without a region, or in one that does not exist: EINVAL")
{
	struct port p;

	REFUSED(EINVAL, bind_port(&p, device(), own(""), WISH(.nr_mode = NR_REG_NULL)));
	REFUSED(EINVAL, bind_port(&p, device(), own(""), WISH(.nr_mode = NR_REG_NULL, .nr_mem_id = 54321)));
}

RULE("4-null-once", "such a port is not found by its name: nobody else can open it")
{
	struct port a = open_port(own("{1"), ANY), q;
	struct port p = open_beside(&a, own(""), WISH(.nr_mode = NR_REG_NULL, .nr_mem_id = a.reg.nr_mem_id));

	REFUSED(ENXIO, bind_port(&q, device(), own(""), ANY));
	rxsync(&p);
}

RULE("4-null-extra-bufs", "such a port can have extra buffers of its region")
{
	struct port a = open_port(own("{1"), ANY);
	struct port p = open_beside(&a, own(""), WISH(.nr_mode = NR_REG_NULL, .nr_mem_id = a.reg.nr_mem_id,
	    .nr_extra_bufs = 3));

	SAME(p.reg.nr_extra_bufs, 3);
	HOLDS(p.nifp->ni_bufs_head >= 2);
}
