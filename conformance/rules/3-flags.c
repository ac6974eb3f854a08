/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 3: the flags of slots and rings.
 */
#include "port.h"

RULE("3-values", "slot and ring flags have netmap's values")
{
	SAME(NS_BUF_CHANGED, 0x0001);
	SAME(NS_REPORT, 0x0002);
	SAME(NS_FORWARD, 0x0004);
	SAME(NS_NO_LEARN, 0x0008);
	SAME(NS_INDIRECT, 0x0010);
	SAME(NS_MOREFRAG, 0x0020);
	SAME(NS_TXMON, 0x0040);
	SAME(NS_PORT_SHIFT, 8);
	SAME(NS_PORT_MASK, 0xff00);
	SAME(NR_TIMESTAMP, 0x0002);
	SAME(NR_FORWARD, 0x0004);
}

RULE("3-RFRAGS", "NS_RFRAGS is the high byte of flags")
{
	struct netmap_slot slot = { .flags = 0x3721 };

	SAME(NS_RFRAGS(&slot), 0x37);
}

RULE("3-BUF_CHANGED-sent", "a sender that sets another buffer and the flag sends that buffer")
{
	struct port a = open_port(own("{1"), WISH(.nr_extra_bufs = 1)), b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	uint32_t extra = a.nifp->ni_bufs_head, before = tx->slot[0].buf_idx;

	a.nifp->ni_bufs_head = before;
	*(uint32_t *)(void *)NETMAP_BUF(tx, before) = 0;
	tx->slot[0].buf_idx = extra;
	put(tx, "swapped", 8, NS_BUF_CHANGED);
	txsync(&a);
	rxsync(&b);
	SAME(rx->slot[0].buf_idx, extra);
	HOLDS(strcmp(data_of(rx, get(rx)), "swapped") == 0);
}

RULE("3-BUF_CHANGED-cleared", "the flag is gone from the sender's slot when it comes back")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0);

	put(tx, "x", 1, NS_BUF_CHANGED);
	txsync(&a);
	rxsync(&b);
	get(rx_ring(&b, 0));
	rxsync(&b);
	txsync(&a);
	HOLDS(!nm_tx_pending(tx));
	HOLDS(!(tx->slot[0].flags & NS_BUF_CHANGED));
}

RULE("3-REPORT", "a slot with NS_REPORT is sent and given back like any other")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);

	put(tx_ring(&a, 0), "x", 1, NS_REPORT);
	put(tx_ring(&a, 0), "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	get(rx_ring(&b, 0));
	get(rx_ring(&b, 0));
	rxsync(&b);
	txsync(&a);
	HOLDS(!nm_tx_pending(tx_ring(&a, 0)));
}

RULE("3-MOREFRAG", "a packet of several slots arrives in as many, each with its length, all but the last flagged")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	int i;

	for (i = 0; i < 3; i++)
		put(tx, "xyz", (unsigned)i + 1, i < 2 ? NS_MOREFRAG : 0);
	txsync(&a);
	rxsync(&b);
	SAME(nm_ring_space(rx), 3);
	for (i = 0; i < 3; i++) {
		SAME(rx->slot[i].len, i + 1);
		SAME(rx->slot[i].flags & NS_MOREFRAG, i < 2 ? NS_MOREFRAG : 0);
	}
}

RULE("3-MOREFRAG-complete", "a packet crosses a pipe only when its last slot is there")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);

	put(tx, "x", 1, 0);
	put(tx, "y", 1, NS_MOREFRAG);
	put(tx, "z", 1, NS_MOREFRAG);
	txsync(&a);
	rxsync(&b);
	SAME(nm_ring_space(rx), 1);
	put(tx, "!", 1, 0);
	txsync(&a);
	rxsync(&b);
	SAME(nm_ring_space(rx), 4);
}

RULE("3-MOREFRAG-64", "a packet may have 64 slots")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	int i;

	for (i = 0; i < NETMAP_MAX_FRAGS; i++)
		put(tx_ring(&a, 0), "x", 1, i < NETMAP_MAX_FRAGS - 1 ? NS_MOREFRAG : 0);
	txsync(&a);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), NETMAP_MAX_FRAGS);
}

RULE("3-0x0080", "bit 0x0080 is the program's: netmap does nothing about it, in either direction")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);

	put(tx, "x", 1, 0x80);
	txsync(&a);
	HOLDS(tx->slot[0].flags & 0x80);
	rxsync(&b);
	SAME(nm_ring_space(rx), 1);
	rx->slot[0].flags |= 0x80;
	get(rx);
	rxsync(&b);
	HOLDS(rx->slot[0].flags & 0x80);
	txsync(&a);
	HOLDS(!nm_tx_pending(tx));
}

RULE("3-port-bits", "the bits of a VALE port mean nothing elsewhere: the packet goes where it goes")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);

	put(tx_ring(&a, 0), "x", 1, 0x0700 | NS_NO_LEARN);
	txsync(&a);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("3-ring-flags", "ring->flags are the program's: a sync leaves them as they are")
{
	struct port a = open_port(own("{1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&a, 0);

	tx->flags = NR_TIMESTAMP | NR_FORWARD | 0x80;
	rx->flags = NR_TIMESTAMP | 0x80;
	txsync(&a);
	rxsync(&a);
	SAME(tx->flags, NR_TIMESTAMP | NR_FORWARD | 0x80);
	SAME(rx->flags, NR_TIMESTAMP | 0x80);
}
