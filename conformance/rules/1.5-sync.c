/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.5: NIOCTXSYNC and NIOCRXSYNC, and which pointers they accept.
 */
#include <sys/time.h>

#include "port.h"

RULE("1.5-unbound", "a sync of a file without a port: ENXIO")
{
	REFUSED(ENXIO, ioctl(device(), NIOCTXSYNC, NULL));
	REFUSED(ENXIO, ioctl(device(), NIOCRXSYNC, NULL));
}

RULE("1.5-argument", "a sync has no argument: nothing, NULL, 0 and 1 are the same")
{
	struct port p = open_port(own("{1"), ANY);

	WORKS(ioctl(p.fd, NIOCTXSYNC));
	WORKS(ioctl(p.fd, NIOCTXSYNC, NULL));
	WORKS(ioctl(p.fd, NIOCTXSYNC, 0));
	WORKS(ioctl(p.fd, NIOCTXSYNC, 1));
	WORKS(ioctl(p.fd, NIOCRXSYNC));
	WORKS(ioctl(p.fd, NIOCRXSYNC, NULL));
	WORKS(ioctl(p.fd, NIOCRXSYNC, 1));
}

RULE("1.5-all-rings", "a sync acts on all rings that the file bound")
{
	struct port a = open_port(own("{1"), WISH(.nr_tx_rings = 3)), b = open_beside(&a, own("}1"), ANY);
	unsigned int i;

	for (i = 0; i < 3; i++)
		put(tx_ring(&a, i), "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	for (i = 0; i < 3; i++)
		SAME(nm_ring_space(rx_ring(&b, i)), 1);
}

RULE("1.5-bound-rings", "a sync leaves rings alone that the file did not bind")
{
	struct port one = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 2, .nr_mode = NR_REG_ONE_NIC));
	struct port all = open_beside(&one, own("{1"), ANY), b = open_beside(&one, own("}1"), ANY);

	put(tx_ring(&all, 1), "x", 1, 0);
	txsync(&one);
	rxsync(&b);
	HOLDS(nm_ring_empty(rx_ring(&b, 1)));
	txsync(&all);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 1)), 1);
}

RULE("1.5-direction", "NIOCTXSYNC leaves receive rings alone, NIOCRXSYNC transmit rings")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);

	put(tx_ring(&a, 0), "x", 1, 0);
	rxsync(&a);
	rxsync(&b);
	HOLDS(nm_ring_empty(rx_ring(&b, 0)));
	txsync(&a);
	txsync(&b);
	HOLDS(nm_ring_empty(rx_ring(&b, 0)));
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("1.5-never-blocks", "a sync of a full or an empty ring returns at once")
{
	struct port a = open_port(own("{1"), ANY);
	int i;

	while (!nm_ring_empty(tx_ring(&a, 0)))
		put(tx_ring(&a, 0), "x", 1, 0);
	/* The limit of the rule is the check: a call that blocks never ends. */
	for (i = 0; i < 100; i++) {
		txsync(&a);
		rxsync(&a);
	}
	HOLDS(nm_ring_empty(tx_ring(&a, 0)) && nm_ring_empty(rx_ring(&a, 0)));
}

/* Bring a transmit ring of 8 slots to hwcur 2, tail 5; a receive ring to hwcur 2, tail 6. */
static struct port
at_two(const char *master, const char *slave, struct port *other)
{
	struct port a = open_port(master, WISH(.nr_tx_slots = 8, .nr_rx_slots = 8)), b = open_beside(&a, slave, ANY);
	int i;

	/* Four go out, and two of them are never given back; the same the other way. */
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

/* Whether at lies on the way from first to last in a ring of n slots. */
static int
on_the_way(uint32_t at, uint32_t first, uint32_t last, uint32_t n)
{
	return at < n && (at + n - first) % n <= (last + n - first) % n;
}

/* Tries every head and cur, also some outside the ring. */
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
			a = at_two(own(master), own(slave), &b);
			ring = rx ? rx_ring(&a, 0) : tx_ring(&a, 0);
			from = ring->head;
			tail = ring->tail;
			HOLDS(from == 2 && tail == (rx ? 6 : 5));
			valid = on_the_way(head, from, tail, 8) && on_the_way(cur, head, tail, 8);
			ring->head = head == 9 ? ~0U : head;
			ring->cur = cur == 9 ? ~0U : cur;
			if (ioctl(a.fd, rx ? NIOCRXSYNC : NIOCTXSYNC, NULL) != 0)
				rule_fails(__FILE__, __LINE__, "head %u, cur %u: %s", head, cur, error_name(errno));
			i = valid ? head : from;
			if (ring->head != i || ring->cur != (valid ? cur : from) || ring->tail != tail)
				rule_fails(__FILE__, __LINE__, "head %u, cur %u became %u, %u, tail %u", head, cur, ring->head,
				    ring->cur, ring->tail);
			WORKS(munmap(a.mem, a.reg.nr_memsize));
			WORKS(close(a.fd));
			WORKS(close(b.fd));
		}
}

RULE("1.5-tx-pointers", "tx: head lies in [hwcur, tail], cur in [head, tail]; else both go back to hwcur and nothing is sent")
{
	try_pointers(0);
}

RULE("1.5-rx-pointers", "rx: head lies in [hwcur, hwtail], cur in [head, hwtail]; else both go back to hwcur")
{
	try_pointers(1);
}

RULE("1.5-bad-not-sent", "after bad pointers nothing was sent, and the ring works again")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0);

	put(tx, "x", 1, 0);
	tx->cur = 5000;
	txsync(&a);
	rxsync(&b);
	HOLDS(nm_ring_empty(rx_ring(&b, 0)));
	SAME(tx->head, 0);
	SAME(tx->cur, 0);
	put(tx, "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("1.5-bad-slots", "bad pointers also cost slots what cannot be: a buffer that does not exist, a length beyond a buffer")
{
	struct port a = open_port(own("{1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0);
	uint32_t fine = tx->slot[7].buf_idx;

	tx->slot[5].buf_idx = 1;
	tx->slot[5].len = 60;
	tx->slot[6].buf_idx = ~0U;
	tx->slot[7].len = 65535;
	tx->head = 5000;
	txsync(&a);
	SAME(tx->slot[5].buf_idx, 0);
	SAME(tx->slot[5].len, 0);
	SAME(tx->slot[6].buf_idx, 0);
	SAME(tx->slot[7].buf_idx, fine);
	SAME(tx->slot[7].len, 0);
}

RULE("1.5-tail-restored", "a tail that the program changed is put back, and nothing else happens")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	uint32_t tail = tx->tail;

	put(tx, "x", 1, 0);
	tx->tail = 77;
	txsync(&a);
	SAME(tx->tail, tail);
	SAME(tx->head, 1);
	rx->tail = 500;
	rxsync(&b);
	SAME(rx->tail, 1);
}

RULE("1.5-reclaim", "NIOCTXSYNC gives back at once what the other side has released")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0);
	uint32_t tail = tx->tail;

	put(tx, "x", 1, 0);
	txsync(&a);
	SAME(tx->tail, tail);
	HOLDS(nm_tx_pending(tx));
	rxsync(&b);
	get(rx_ring(&b, 0));
	rxsync(&b);
	txsync(&a);
	SAME(tx->tail, nm_ring_next(tx, tail));
	HOLDS(!nm_tx_pending(tx));
}

RULE("1.5-rx-held", "a receive ring keeps what lies between head and tail through any number of syncs")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *rx = rx_ring(&b, 0);
	int i;

	for (i = 0; i < 10; i++)
		put(tx_ring(&a, 0), &i, sizeof(i), 0);
	txsync(&a);
	for (i = 0; i < 5; i++)
		rxsync(&b);
	SAME(nm_ring_space(rx), 10);
	for (i = 0; i < 10; i++) {
		struct netmap_slot *slot = get(rx);

		SAME(slot->len, sizeof(i));
		SAME(*(int *)(void *)data_of(rx, slot), i);
	}
}

RULE("1.5-wrap", "positions go around the ring, many times, without a packet lost or changed")
{
	struct port a = open_port(own("{1"), WISH(.nr_tx_slots = 16, .nr_rx_slots = 16));
	struct port b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	int sent = 0, got = 0, step;

	for (step = 0; got < 500; step++) {
		int i;

		for (i = 0; i < step % 7 + 1 && !nm_ring_empty(tx); i++, sent++)
			put(tx, &sent, sizeof(sent), 0);
		txsync(&a);
		rxsync(&b);
		for (i = 0; i < step % 5 + 1 && !nm_ring_empty(rx); i++, got++)
			SAME(*(int *)(void *)data_of(rx, &rx->slot[rx->head]), (get(rx), got));
	}
}

RULE("1.5-ts", "NIOCRXSYNC sets ts to the time of day, in microseconds, whether something came or not")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
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
		HOLDS(!timercmp(&rx->ts, &before, <) && !timercmp(&rx->ts, &after, >));
		usleep(2000);
	}
}
