/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 3: the flags of slots and rings.
 */
#include "port.h"

RULE("3-values", "slot and ring flags have netmap's values")
{
	CHECK_EQ(NS_BUF_CHANGED, 0x0001);
	CHECK_EQ(NS_REPORT, 0x0002);
	CHECK_EQ(NS_FORWARD, 0x0004);
	CHECK_EQ(NS_NO_LEARN, 0x0008);
	CHECK_EQ(NS_INDIRECT, 0x0010);
	CHECK_EQ(NS_MOREFRAG, 0x0020);
	CHECK_EQ(NS_TXMON, 0x0040);
	CHECK_EQ(NS_PORT_SHIFT, 8);
	CHECK_EQ(NS_PORT_MASK, 0xff00);
	CHECK_EQ(NR_TIMESTAMP, 0x0002);
	CHECK_EQ(NR_FORWARD, 0x0004);
}

RULE("3-RFRAGS", "NS_RFRAGS is the high byte of flags")
{
	struct netmap_slot slot = { .flags = 0x3721 };

	CHECK_EQ(NS_RFRAGS(&slot), 0x37);
}

RULE("3-BUF_CHANGED-sent", "a sender that replaces a slot's buffer and sets NS_BUF_CHANGED sends the new buffer")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_extra_bufs = 1)), b = open_in_region(&a, unique_name("}1"),
	    ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	uint32_t extra = a.nifp->ni_bufs_head, before = tx->slot[0].buf_idx;

	a.nifp->ni_bufs_head = before;
	*(uint32_t *)(void *)NETMAP_BUF(tx, before) = 0;
	tx->slot[0].buf_idx = extra;
	put(tx, "swapped", 8, NS_BUF_CHANGED);
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(rx->slot[0].buf_idx, extra);
	CHECK(strcmp(slot_data(rx, get(rx)), "swapped") == 0);
}

RULE("3-BUF_CHANGED-cleared", "NS_BUF_CHANGED is cleared when the sender's slot is returned")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0);

	put(tx, "x", 1, NS_BUF_CHANGED);
	txsync(&a);
	rxsync(&b);
	get(rx_ring(&b, 0));
	rxsync(&b);
	txsync(&a);
	CHECK(!nm_tx_pending(tx));
	CHECK(!(tx->slot[0].flags & NS_BUF_CHANGED));
}

RULE("3-REPORT", "a slot with NS_REPORT is sent and returned like any other")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);

	put(tx_ring(&a, 0), "x", 1, NS_REPORT);
	put(tx_ring(&a, 0), "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	get(rx_ring(&b, 0));
	get(rx_ring(&b, 0));
	rxsync(&b);
	txsync(&a);
	CHECK(!nm_tx_pending(tx_ring(&a, 0)));
}

RULE("3-MOREFRAG",
    "a packet of several slots arrives in as many, with their lengths; all but the last have NS_MOREFRAG")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	int i;

	for (i = 0; i < 3; i++)
		put(tx, "xyz", (unsigned)i + 1, i < 2 ? NS_MOREFRAG : 0);
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx), 3);
	for (i = 0; i < 3; i++) {
		CHECK_EQ(rx->slot[i].len, i + 1);
		CHECK_EQ(rx->slot[i].flags & NS_MOREFRAG, i < 2 ? NS_MOREFRAG : 0);
	}
}

RULE("3-MOREFRAG-complete", "a packet crosses a pipe only once all its slots are sent")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);

	put(tx, "x", 1, 0);
	put(tx, "y", 1, NS_MOREFRAG);
	put(tx, "z", 1, NS_MOREFRAG);
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx), 1);
	put(tx, "!", 1, 0);
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx), 4);
}

RULE("3-MOREFRAG-64", "a packet may have 64 slots")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	int i;

	for (i = 0; i < NETMAP_MAX_FRAGS; i++)
		put(tx_ring(&a, 0), "x", 1, i < NETMAP_MAX_FRAGS - 1 ? NS_MOREFRAG : 0);
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), NETMAP_MAX_FRAGS);
}

RULE("3-0x0080", "netmap ignores bit 0x0080 of flags in both directions")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);

	put(tx, "x", 1, 0x80);
	txsync(&a);
	CHECK(tx->slot[0].flags & 0x80);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx), 1);
	rx->slot[0].flags |= 0x80;
	get(rx);
	rxsync(&b);
	CHECK(rx->slot[0].flags & 0x80);
	txsync(&a);
	CHECK(!nm_tx_pending(tx));
}

RULE("3-port-bits", "the bits of a VALE port number have no effect on other kinds of ports")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);

	put(tx_ring(&a, 0), "x", 1, 0x0700 | NS_NO_LEARN);
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("3-ring-flags", "a sync does not change ring->flags")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&a, 0);

	tx->flags = NR_TIMESTAMP | NR_FORWARD | 0x80;
	rx->flags = NR_TIMESTAMP | 0x80;
	txsync(&a);
	rxsync(&a);
	CHECK_EQ(tx->flags, NR_TIMESTAMP | NR_FORWARD | 0x80);
	CHECK_EQ(rx->flags, NR_TIMESTAMP | 0x80);
}
