/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.2: what REGISTER binds, what it answers, and what close gives back.
 */
#include <pthread.h>

#include "port.h"

/* ---- what comes back */

RULE("1.2-answer", "offset, size, rings, slots, host rings and region come back as they are")
{
	struct port p = open_port(own("{1"), ANY);
	struct netmap_if *nifp = p.nifp;

	HOLDS(p.reg.nr_offset < p.reg.nr_memsize);
	SAME(p.reg.nr_tx_rings, nifp->ni_tx_rings);
	SAME(p.reg.nr_rx_rings, nifp->ni_rx_rings);
	SAME(p.reg.nr_host_tx_rings, nifp->ni_host_tx_rings);
	SAME(p.reg.nr_host_rx_rings, nifp->ni_host_rx_rings);
	SAME(p.reg.nr_tx_slots, tx_ring(&p, 0)->num_slots);
	SAME(p.reg.nr_rx_slots, rx_ring(&p, 0)->num_slots);
	HOLDS(p.reg.nr_mem_id != 0);
	SAME(p.reg.nr_extra_bufs, 0);
}

RULE("1.2-questions", "mode, ring and flags come back as they were asked")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 2, .nr_mode = NR_REG_ONE_NIC,
	    .nr_ringid = 1, .nr_flags = NR_NO_TX_POLL | NR_EXCLUSIVE));

	SAME(p.reg.nr_mode, NR_REG_ONE_NIC);
	SAME(p.reg.nr_ringid, 1);
	SAME(p.reg.nr_flags, NR_NO_TX_POLL | NR_EXCLUSIVE);
}

RULE("1.2-wishes", "the first opener's wish for rings and slots is granted")
{
	struct port p = open_port(own("{1"),
	    WISH(.nr_tx_rings = 2, .nr_rx_rings = 4, .nr_tx_slots = 64, .nr_rx_slots = 512));

	SAME(p.reg.nr_tx_rings, 2);
	SAME(p.reg.nr_rx_rings, 4);
	SAME(p.reg.nr_tx_slots, 64);
	SAME(p.reg.nr_rx_slots, 512);
	SAME(tx_ring(&p, 1)->num_slots, 64);
	SAME(rx_ring(&p, 3)->num_slots, 512);
}

RULE("1.2-wishes-later", "on an open port, wishes change nothing: what it has comes back")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_tx_slots = 64));
	struct port q = open_beside(&p, own("{1"),
	    WISH(.nr_tx_rings = 7, .nr_tx_slots = 1000, .nr_host_tx_rings = 5, .nr_host_rx_rings = 5));

	SAME(q.reg.nr_tx_rings, 2);
	SAME(q.reg.nr_tx_slots, 64);
	SAME(q.reg.nr_host_tx_rings, p.reg.nr_host_tx_rings);
	SAME(q.reg.nr_host_rx_rings, p.reg.nr_host_rx_rings);
	txsync(&p);
}

RULE("1.2-mem_id-chosen", "nr_mem_id 0 lets netmap choose, and the number names the region from then on")
{
	struct port p = open_port(own("{1"), ANY);
	struct port q = open_beside(&p, own("x{1"), WISH(.nr_mem_id = p.reg.nr_mem_id));

	SAME(q.reg.nr_memsize, p.reg.nr_memsize);
}

RULE("1.2-mem_id-other", "an open port in another region than nr_mem_id names: EINVAL")
{
	struct port p = open_port(own("{1"), ANY), other = open_port(own("y{1"), ANY), q;

	HOLDS(p.reg.nr_mem_id != other.reg.nr_mem_id);
	REFUSED(EINVAL, bind_port(&q, device(), own("{1"), WISH(.nr_mem_id = other.reg.nr_mem_id)));
}

RULE("1.2-extra-bufs", "extra buffers hang on ni_bufs_head, each leading to the next, the last to 0")
{
	struct port p = open_port(own("{1"), WISH(.nr_extra_bufs = 50));
	uint32_t idx, n = 0;

	SAME(p.reg.nr_extra_bufs, 50);
	for (idx = p.nifp->ni_bufs_head; idx != 0; n++) {
		HOLDS(idx >= 2 && n < 50);
		idx = *(uint32_t *)(void *)NETMAP_BUF(tx_ring(&p, 0), idx);
	}
	SAME(n, 50);
}

RULE("1.2-extra-bufs-fewer", "where there are fewer buffers than were asked for, their number comes back, and so many hang")
{
	struct port p = open_port(own("{1"), WISH(.nr_extra_bufs = 2000000));
	uint32_t idx, n = 0;

	HOLDS(p.reg.nr_extra_bufs < 2000000);
	for (idx = p.nifp->ni_bufs_head; idx != 0 && n < 2000000; n++)
		idx = *(uint32_t *)(void *)NETMAP_BUF(tx_ring(&p, 0), idx);
	SAME(n, p.reg.nr_extra_bufs);
}

RULE("1.2-extra-bufs-back", "close frees what the list at ni_bufs_head holds then, whoever's buffers they were")
{
	struct port keep = open_port(own("{1"), ANY), p;
	uint32_t got = 0, i;

	for (i = 0; i < 5; i++) {
		p = open_beside(&keep, own("{1"), WISH(.nr_extra_bufs = 100000));
		if (i > 0)
			SAME(p.reg.nr_extra_bufs, got);
		got = p.reg.nr_extra_bufs;
		HOLDS(got > 0);
		if (i == 2) {
			/* One of them into a ring, and the ring's into the list. */
			struct netmap_ring *ring = tx_ring(&p, 0);
			uint32_t first = p.nifp->ni_bufs_head;

			*(uint32_t *)(void *)data_of(ring, &ring->slot[5]) = *(uint32_t *)(void *)NETMAP_BUF(ring, first);
			p.nifp->ni_bufs_head = ring->slot[5].buf_idx;
			ring->slot[5].buf_idx = first;
		}
		WORKS(close(p.fd));
	}
}

/* ---- modes */

RULE("1.2-ALL_NIC", "mode ALL_NIC binds all rings of the port's own")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 2));
	int i;

	for (i = 0; i < 2; i++)
		HOLDS(p.nifp->ring_ofs[i] != 0 && p.nifp->ring_ofs[tx_entries(&p) + (unsigned)i] != 0);
}

RULE("1.2-SW-none", "host rings of a port that has none: EINVAL, in modes SW, NIC_SW and ONE_SW")
{
	static const uint32_t modes[] = { NR_REG_SW, NR_REG_NIC_SW, NR_REG_ONE_SW };
	struct port p;
	int i;

	for (i = 0; i < 3; i++)
		REFUSED(EINVAL, bind_port(&p, device(), own("{1"), WISH(.nr_mode = modes[i])));
}

RULE("1.2-ONE_NIC", "mode ONE_NIC binds the pair nr_ringid and no other")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 4, .nr_rx_rings = 4, .nr_mode = NR_REG_ONE_NIC,
	    .nr_ringid = 2));

	SAME(tx_ring(&p, 2)->ringid, 2);
	SAME(rx_ring(&p, 2)->ringid, 2);
	SAME(p.nifp->ring_ofs[0], 0);
	SAME(p.nifp->ring_ofs[3], 0);
	SAME(p.reg.nr_tx_rings, 4);
}

RULE("1.2-ONE_NIC-shorter", "a ring that one direction does not have: ring 0 is bound there")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 4, .nr_rx_rings = 2, .nr_mode = NR_REG_ONE_NIC,
	    .nr_ringid = 3));

	HOLDS(p.nifp->ring_ofs[3] != 0);
	HOLDS(p.nifp->ring_ofs[tx_entries(&p)] != 0);
	SAME(p.nifp->ring_ofs[tx_entries(&p) + 1], 0);
	SAME(p.nifp->ring_ofs[0], 0);
}

RULE("1.2-ONE_NIC-both", "a ring that neither direction has: EINVAL")
{
	struct port p;

	REFUSED(EINVAL, bind_port(&p, device(), own("{1"), WISH(.nr_tx_rings = 4, .nr_rx_rings = 2,
	    .nr_mode = NR_REG_ONE_NIC, .nr_ringid = 4)));
}

RULE("1.2-DEFAULT", "mode 0 is the older request's: EINVAL")
{
	struct port p;

	REFUSED(EINVAL, bind_port(&p, device(), own("{1"), WISH(.nr_mode = NR_REG_DEFAULT)));
}

RULE("1.2-PIPE-modes", "the modes PIPE_MASTER and PIPE_SLAVE: EINVAL")
{
	struct port p;

	REFUSED(EINVAL, bind_port(&p, device(), own(""), WISH(.nr_mode = NR_REG_PIPE_MASTER, .nr_ringid = 1)));
	REFUSED(EINVAL, bind_port(&p, device(), own(""), WISH(.nr_mode = NR_REG_PIPE_SLAVE, .nr_ringid = 1)));
}

/* ---- flags */

RULE("1.2-flag-0x1000", "bit 0x1000 of nr_flags means nothing and is ignored")
{
	struct port a = open_port(own("{1"), WISH(.nr_flags = 0x1000)), b = open_beside(&a, own("}1"), ANY);
	int revents;

	put(tx_ring(&a, 0), "x", 1, 0);
	SAME(poll_fd(a.fd, POLLIN, 0, &revents), 0);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("1.2-flag-poll", "DO_RX_POLL and ACCEPT_VNET_HDR are accepted")
{
	struct port p = open_port(own("{1"), WISH(.nr_flags = NR_DO_RX_POLL | NR_ACCEPT_VNET_HDR));

	txsync(&p);
}

RULE("1.2-RX_RINGS_ONLY", "with RX_RINGS_ONLY others may have the tx rings, exclusively")
{
	struct port p = open_port(own("{1"), WISH(.nr_flags = NR_RX_RINGS_ONLY | NR_EXCLUSIVE));
	struct port q = open_beside(&p, own("{1"), WISH(.nr_flags = NR_TX_RINGS_ONLY | NR_EXCLUSIVE)), r;

	REFUSED(EBUSY, bind_port(&r, device(), own("{1"), WISH(.nr_flags = NR_RX_RINGS_ONLY)));
	REFUSED(EBUSY, bind_port(&r, device(), own("{1"), WISH(.nr_flags = NR_TX_RINGS_ONLY)));
	txsync(&q);
}

RULE("1.2-EXCLUSIVE-rings", "exclusive means these rings: others of the port can be bound")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 2, .nr_mode = NR_REG_ONE_NIC,
	    .nr_ringid = 0, .nr_flags = NR_EXCLUSIVE));
	struct port q = open_beside(&p, own("{1"), WISH(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1)), r;

	REFUSED(EBUSY, bind_port(&r, device(), own("{1"), WISH(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 0)));
	REFUSED(EBUSY, bind_port(&r, device(), own("{1"), ANY));
	txsync(&q);
}

RULE("1.2-EXCLUSIVE-end", "the rings are free again when the exclusive file is closed")
{
	struct port p = open_port(own("{1"), WISH(.nr_flags = NR_EXCLUSIVE));
	struct port q = open_port(own("}1"), ANY);

	WORKS(close(p.fd));
	open_port(own("{1"), WISH(.nr_flags = NR_EXCLUSIVE));
	txsync(&q);
}

/* ---- several files, one port */

RULE("1.2-shared", "several files that bind the same rings share head, cur and tail")
{
	struct port a = open_port(own("{1"), ANY), again = open_port(own("{1"), ANY), b = open_port(own("}1"), ANY);
	struct netmap_ring *here = tx_ring(&a, 0), *there = tx_ring(&again, 0);

	HOLDS(here != there);
	put(here, "x", 1, 0);
	SAME(there->head, 1);
	SAME(there->cur, 1);
	txsync(&again);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
	get(rx_ring(&b, 0));
	rxsync(&b);
	txsync(&a);
	SAME(there->tail, 0);
}

RULE("1.2-shared-spoiled", "who spoils the pointers of a shared ring lets the others see POLLERR")
{
	struct port a = open_port(own("{1"), ANY), b = open_port(own("{1"), ANY);
	int revents;

	tx_ring(&a, 0)->head = 5000;
	SAME(poll_fd(b.fd, POLLOUT, 0, &revents), 1);
	HOLDS(revents & POLLERR);
}

static struct port shared_by_threads;

static void *
sync_often(void *arg)
{
	int i;

	for (i = 0; i < 20000; i++)
		if (ioctl(shared_by_threads.fd, NIOCTXSYNC, NULL) != 0 || ioctl(shared_by_threads.fd, NIOCRXSYNC, NULL) != 0)
			return arg;
	return NULL;
}

RULE("1.2-busy-ring", "a ring that another thread is syncing is skipped: no sync fails, and none waits")
{
	pthread_t t[3];
	void *failed;
	int i;

	shared_by_threads = open_port(own("{1"), ANY);
	for (i = 0; i < 3; i++)
		HOLDS(pthread_create(&t[i], NULL, sync_often, t) == 0);
	for (i = 0; i < 3; i++) {
		HOLDS(pthread_join(t[i], &failed) == 0);
		HOLDS(failed == NULL);
	}
}

RULE("1.2-close-unbinds", "a port's last close ends it: the next opener's wishes count again")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_slots = 64)), q = open_port(own("{1"), ANY);

	WORKS(close(p.fd));
	txsync(&q);
	SAME(q.reg.nr_tx_slots, 64);
	WORKS(close(q.fd));
	p = open_port(own("{1"), WISH(.nr_tx_slots = 128));
	SAME(p.reg.nr_tx_slots, 128);
}

RULE("1.2-close-others", "a close leaves the port to those who still have it")
{
	struct port a = open_port(own("{1"), ANY), again = open_port(own("{1"), ANY), b = open_port(own("}1"), ANY);

	WORKS(close(a.fd));
	put(tx_ring(&again, 0), "x", 1, 0);
	txsync(&again);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}
