/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.5: NIOCTXSYNC and NIOCRXSYNC, and which pointers they accept.
 */
#include <sys/time.h>

#include "port.h"

RULE("1.5-unbound", "a sync of an unbound file: ENXIO")
{
	CHECK_ERRNO(ENXIO, ioctl(open_device(), NIOCTXSYNC, NULL));
	CHECK_ERRNO(ENXIO, ioctl(open_device(), NIOCRXSYNC, NULL));
}

RULE("1.5-argument", "the argument of a sync is ignored: none, NULL, 0 and 1 are equivalent")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);

	CHECK_OK(ioctl(p.fd, NIOCTXSYNC));
	CHECK_OK(ioctl(p.fd, NIOCTXSYNC, NULL));
	CHECK_OK(ioctl(p.fd, NIOCTXSYNC, 0));
	CHECK_OK(ioctl(p.fd, NIOCTXSYNC, 1));
	CHECK_OK(ioctl(p.fd, NIOCRXSYNC));
	CHECK_OK(ioctl(p.fd, NIOCRXSYNC, NULL));
	CHECK_OK(ioctl(p.fd, NIOCRXSYNC, 1));
}

RULE("1.5-all-rings", "a sync processes all rings that the file has bound")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_tx_rings = 3)), b = open_in_region(&a, unique_name("}1"),
	    ALL_RINGS);
	unsigned int i;

	for (i = 0; i < 3; i++)
		put(tx_ring(&a, i), "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	for (i = 0; i < 3; i++)
		CHECK_EQ(nm_ring_space(rx_ring(&b, i)), 1);
}

RULE("1.5-bound-rings", "a sync does not change rings that the file has not bound")
{
	struct port one = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 2, .nr_mode = NR_REG_ONE_NIC));
	struct port all = open_in_region(&one, unique_name("{1"), ALL_RINGS), b = open_in_region(&one, unique_name("}1"),
	    ALL_RINGS);

	put(tx_ring(&all, 1), "x", 1, 0);
	txsync(&one);
	rxsync(&b);
	CHECK(nm_ring_empty(rx_ring(&b, 1)));
	txsync(&all);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 1)), 1);
}

RULE("1.5-direction", "NIOCTXSYNC does not change receive rings, nor NIOCRXSYNC transmit rings")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);

	put(tx_ring(&a, 0), "x", 1, 0);
	rxsync(&a);
	rxsync(&b);
	CHECK(nm_ring_empty(rx_ring(&b, 0)));
	txsync(&a);
	txsync(&b);
	CHECK(nm_ring_empty(rx_ring(&b, 0)));
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("1.5-never-blocks", "a sync of a full or an empty ring returns at once")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS);
	int i;

	while (!nm_ring_empty(tx_ring(&a, 0)))
		put(tx_ring(&a, 0), "x", 1, 0);
	/* A call that blocks runs into the rule's time limit. */
	for (i = 0; i < 100; i++) {
		txsync(&a);
		rxsync(&a);
	}
	CHECK(nm_ring_empty(tx_ring(&a, 0)) && nm_ring_empty(rx_ring(&a, 0)));
}

/* Opens a pipe, and brings a's tx ring of 8 slots to hwcur 2, tail 5, its rx ring to hwcur 2, tail 6. */
static struct port
open_with_hwcur_2(const char *master, const char *slave, struct port *other)
{
	struct port a = open_port(master, REG(.nr_tx_slots = 8, .nr_rx_slots = 8)), b = open_in_region(&a, slave,
	    ALL_RINGS);
	int i;

	/* Six packets each way; then four more that are never released. */
	for (i = 0; i < 6; i++) {
		put(tx_ring(&a, 0), "x", 1, 0);
		put(tx_ring(&b, 0), "x", 1, 0);
	}
	txsync(&a);
	txsync(&b);
	rxsync(&a);
	rxsync(&b);
	for (i = 0; i < 2; i++)
		get(rx_ring(&a, 0));
	for (i = 0; i < 6; i++)
		get(rx_ring(&b, 0));
	rxsync(&a);
	rxsync(&b);
	txsync(&a);
	for (i = 0; i < 4; i++)
		put(tx_ring(&a, 0), "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	*other = b;
	return a;
}

/* Whether at is in [first, last] of a ring of n slots. */
static int
is_between(uint32_t at, uint32_t first, uint32_t last, uint32_t n)
{
	return at < n && (at + n - first) % n <= (last + n - first) % n;
}

/* Tries every head and cur, and some outside the ring. */
static void
try_pointers(int rx)
{
	char master[16], slave[16];
	uint32_t head, cur;

	for (head = 0; head < 10; head++)
		for (cur = 0; cur < 10; cur++) {
			struct netmap_ring *ring;
			uint32_t from, tail, i, valid;
			struct port a, b;

			snprintf(master, sizeof(master), "{%u", head * 10 + cur);
			snprintf(slave, sizeof(slave), "}%u", head * 10 + cur);
			a = open_with_hwcur_2(unique_name(master), unique_name(slave), &b);
			ring = rx ? rx_ring(&a, 0) : tx_ring(&a, 0);
			from = ring->head;
			tail = ring->tail;
			CHECK(from == 2 && tail == (rx ? 6 : 5));
			valid = is_between(head, from, tail, 8) && is_between(cur, head, tail, 8);
			ring->head = head == 9 ? ~0U : head;
			ring->cur = cur == 9 ? ~0U : cur;
			if (ioctl(a.fd, rx ? NIOCRXSYNC : NIOCTXSYNC, NULL) != 0)
				rule_fails(__FILE__, __LINE__, "head %u, cur %u: %s", head, cur, error_name(errno));
			i = valid ? head : from;
			if (ring->head != i || ring->cur != (valid ? cur : from) || ring->tail != tail)
				rule_fails(__FILE__, __LINE__, "head %u, cur %u became %u, %u, tail %u", head, cur, ring->head,
				    ring->cur, ring->tail);
			CHECK_OK(munmap(a.mem, a.reg.nr_memsize));
			CHECK_OK(close(a.fd));
			CHECK_OK(close(b.fd));
		}
}

RULE("1.5-tx-pointers",
    "tx: unless head is in [hwcur, tail] and cur in [head, tail], both are reset to hwcur and nothing is sent")
{
	try_pointers(0);
}

RULE("1.5-rx-pointers", "rx: unless head is in [hwcur, hwtail] and cur in [head, hwtail], both are reset to hwcur")
{
	try_pointers(1);
}

RULE("1.5-bad-not-sent", "bad pointers send nothing, and the ring works again afterwards")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0);

	put(tx, "x", 1, 0);
	tx->cur = 5000;
	txsync(&a);
	rxsync(&b);
	CHECK(nm_ring_empty(rx_ring(&b, 0)));
	CHECK_EQ(tx->head, 0);
	CHECK_EQ(tx->cur, 0);
	put(tx, "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("1.5-bad-slots", "bad pointers also replace invalid buffer numbers and lengths in slots")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0);
	uint32_t fine = tx->slot[7].buf_idx;

	tx->slot[5].buf_idx = 1;
	tx->slot[5].len = 60;
	tx->slot[6].buf_idx = ~0U;
	tx->slot[7].len = 65535;
	tx->head = 5000;
	txsync(&a);
	CHECK_EQ(tx->slot[5].buf_idx, 0);
	CHECK_EQ(tx->slot[5].len, 0);
	CHECK_EQ(tx->slot[6].buf_idx, 0);
	CHECK_EQ(tx->slot[7].buf_idx, fine);
	CHECK_EQ(tx->slot[7].len, 0);
}

RULE("1.5-tail-restored", "a tail that the program has changed is restored, without other effects")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	uint32_t tail = tx->tail;

	put(tx, "x", 1, 0);
	tx->tail = 77;
	txsync(&a);
	CHECK_EQ(tx->tail, tail);
	CHECK_EQ(tx->head, 1);
	rx->tail = 500;
	rxsync(&b);
	CHECK_EQ(rx->tail, 1);
}

RULE("1.5-reclaim", "NIOCTXSYNC returns at once the slots that the peer has released")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0);
	uint32_t tail = tx->tail;

	put(tx, "x", 1, 0);
	txsync(&a);
	CHECK_EQ(tx->tail, tail);
	CHECK(nm_tx_pending(tx));
	rxsync(&b);
	get(rx_ring(&b, 0));
	rxsync(&b);
	txsync(&a);
	CHECK_EQ(tx->tail, nm_ring_next(tx, tail));
	CHECK(!nm_tx_pending(tx));
}

RULE("1.5-rx-held", "slots between head and tail of a receive ring stay unchanged over any number of syncs")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *rx = rx_ring(&b, 0);
	int i;

	for (i = 0; i < 10; i++)
		put(tx_ring(&a, 0), &i, sizeof(i), 0);
	txsync(&a);
	for (i = 0; i < 5; i++)
		rxsync(&b);
	CHECK_EQ(nm_ring_space(rx), 10);
	for (i = 0; i < 10; i++) {
		struct netmap_slot *slot = get(rx);

		CHECK_EQ(slot->len, sizeof(i));
		CHECK_EQ(*(int *)(void *)slot_data(rx, slot), i);
	}
}

RULE("1.5-wrap", "positions wrap around the ring many times, and no packet is lost or changed")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_tx_slots = 16, .nr_rx_slots = 16));
	struct port b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	int sent = 0, got = 0, step;

	for (step = 0; got < 500; step++) {
		int i;

		for (i = 0; i < step % 7 + 1 && !nm_ring_empty(tx); i++, sent++)
			put(tx, &sent, sizeof(sent), 0);
		txsync(&a);
		rxsync(&b);
		for (i = 0; i < step % 5 + 1 && !nm_ring_empty(rx); i++, got++)
			CHECK_EQ(*(int *)(void *)slot_data(rx, &rx->slot[rx->head]), (get(rx), got));
	}
}

RULE("1.5-ts", "NIOCRXSYNC sets ts to the time of day, in microseconds, with or without new packets")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *rx = rx_ring(&b, 0);
	struct timeval before, after;
	int i;

	for (i = 0; i < 6; i++) {
		if (i % 2 == 0)
			put(tx_ring(&a, 0), "x", 1, 0);
		txsync(&a);
		gettimeofday(&before, NULL);
		rxsync(&b);
		gettimeofday(&after, NULL);
		CHECK(!timercmp(&rx->ts, &before, <) && !timercmp(&rx->ts, &after, >));
		usleep(2000);
	}
}
