/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.2: what REGISTER binds and returns, and what close releases.
 */
#include <pthread.h>

#include "port.h"

/* ---- returned values */

RULE("1.2-answer", "REGISTER returns offset, size, rings, slots, host rings and region")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);
	struct netmap_if *nifp = p.nifp;

	CHECK(p.reg.nr_offset < p.reg.nr_memsize);
	CHECK_EQ(p.reg.nr_tx_rings, nifp->ni_tx_rings);
	CHECK_EQ(p.reg.nr_rx_rings, nifp->ni_rx_rings);
	CHECK_EQ(p.reg.nr_host_tx_rings, nifp->ni_host_tx_rings);
	CHECK_EQ(p.reg.nr_host_rx_rings, nifp->ni_host_rx_rings);
	CHECK_EQ(p.reg.nr_tx_slots, tx_ring(&p, 0)->num_slots);
	CHECK_EQ(p.reg.nr_rx_slots, rx_ring(&p, 0)->num_slots);
	CHECK(p.reg.nr_mem_id != 0);
	CHECK_EQ(p.reg.nr_extra_bufs, 0);
}

RULE("1.2-questions", "REGISTER returns mode, ring and flags unchanged")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 2, .nr_mode = NR_REG_ONE_NIC,
	    .nr_ringid = 1, .nr_flags = NR_NO_TX_POLL | NR_EXCLUSIVE));

	CHECK_EQ(p.reg.nr_mode, NR_REG_ONE_NIC);
	CHECK_EQ(p.reg.nr_ringid, 1);
	CHECK_EQ(p.reg.nr_flags, NR_NO_TX_POLL | NR_EXCLUSIVE);
}

RULE("1.2-numbers", "the first opener gets the requested numbers of rings and slots")
{
	struct port p = open_port(unique_name("{1"),
	    REG(.nr_tx_rings = 2, .nr_rx_rings = 4, .nr_tx_slots = 64, .nr_rx_slots = 512));

	CHECK_EQ(p.reg.nr_tx_rings, 2);
	CHECK_EQ(p.reg.nr_rx_rings, 4);
	CHECK_EQ(p.reg.nr_tx_slots, 64);
	CHECK_EQ(p.reg.nr_rx_slots, 512);
	CHECK_EQ(tx_ring(&p, 1)->num_slots, 64);
	CHECK_EQ(rx_ring(&p, 3)->num_slots, 512);
}

RULE("1.2-numbers-later", "for an open port, the requested numbers have no effect: the actual ones are returned")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_tx_slots = 64));
	struct port q = open_in_region(&p, unique_name("{1"),
	    REG(.nr_tx_rings = 7, .nr_tx_slots = 1000, .nr_host_tx_rings = 5, .nr_host_rx_rings = 5));

	CHECK_EQ(q.reg.nr_tx_rings, 2);
	CHECK_EQ(q.reg.nr_tx_slots, 64);
	CHECK_EQ(q.reg.nr_host_tx_rings, p.reg.nr_host_tx_rings);
	CHECK_EQ(q.reg.nr_host_rx_rings, p.reg.nr_host_rx_rings);
	txsync(&p);
}

RULE("1.2-mem_id-chosen", "with nr_mem_id 0 netmap chooses the region, and returns its number")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);
	struct port q = open_in_region(&p, unique_name("x{1"), REG(.nr_mem_id = p.reg.nr_mem_id));

	CHECK_EQ(q.reg.nr_memsize, p.reg.nr_memsize);
}

RULE("1.2-mem_id-other", "an open port in a region other than nr_mem_id: EINVAL")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS), other = open_port(unique_name("y{1"), ALL_RINGS), q;

	CHECK(p.reg.nr_mem_id != other.reg.nr_mem_id);
	CHECK_ERRNO(EINVAL, bind_port(&q, open_device(), unique_name("{1"), REG(.nr_mem_id = other.reg.nr_mem_id)));
}

RULE("1.2-extra-bufs", "extra buffers are linked from ni_bufs_head; the last link is 0")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_extra_bufs = 50));
	uint32_t idx, n = 0;

	CHECK_EQ(p.reg.nr_extra_bufs, 50);
	for (idx = p.nifp->ni_bufs_head; idx != 0; n++) {
		CHECK(idx >= 2 && n < 50);
		idx = *(uint32_t *)(void *)NETMAP_BUF(tx_ring(&p, 0), idx);
	}
	CHECK_EQ(n, 50);
}

RULE("1.2-extra-bufs-fewer", "if fewer extra buffers are free than requested, the actual number is returned and linked")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_extra_bufs = 2000000));
	uint32_t idx, n = 0;

	CHECK(p.reg.nr_extra_bufs < 2000000);
	for (idx = p.nifp->ni_bufs_head; idx != 0 && n < 2000000; n++)
		idx = *(uint32_t *)(void *)NETMAP_BUF(tx_ring(&p, 0), idx);
	CHECK_EQ(n, p.reg.nr_extra_bufs);
}

RULE("1.2-extra-bufs-back", "close frees the buffers that are in the list at ni_bufs_head then, whatever their origin")
{
	struct port other_port = open_port(unique_name("{1"), ALL_RINGS), p;
	uint32_t got = 0, i;

	for (i = 0; i < 5; i++) {
		p = open_in_region(&other_port, unique_name("{1"), REG(.nr_extra_bufs = 100000));
		if (i > 0)
			CHECK_EQ(p.reg.nr_extra_bufs, got);
		got = p.reg.nr_extra_bufs;
		CHECK(got > 0);
		if (i == 2) {
			/* Swaps the first with a ring's buffer. */
			struct netmap_ring *ring = tx_ring(&p, 0);
			uint32_t first = p.nifp->ni_bufs_head;

			*(uint32_t *)(void *)slot_data(ring, &ring->slot[5]) = *(uint32_t *)(void *)NETMAP_BUF(ring, first);
			p.nifp->ni_bufs_head = ring->slot[5].buf_idx;
			ring->slot[5].buf_idx = first;
		}
		CHECK_OK(close(p.fd));
	}
}

/* ---- modes */

RULE("1.2-ALL_NIC", "mode ALL_NIC binds all rings but the host rings")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 2));
	int i;

	for (i = 0; i < 2; i++)
		CHECK(p.nifp->ring_ofs[i] != 0 && p.nifp->ring_ofs[tx_entries(&p) + (unsigned)i] != 0);
}

RULE("1.2-SW-none", "modes SW, NIC_SW and ONE_SW on a port without host rings: EINVAL")
{
	static const uint32_t modes[] = { NR_REG_SW, NR_REG_NIC_SW, NR_REG_ONE_SW };
	struct port p;
	int i;

	for (i = 0; i < 3; i++)
		CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name("{1"), REG(.nr_mode = modes[i])));
}

RULE("1.2-ONE_NIC", "mode ONE_NIC binds ring pair nr_ringid and no other")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 4, .nr_rx_rings = 4, .nr_mode = NR_REG_ONE_NIC,
	    .nr_ringid = 2));

	CHECK_EQ(tx_ring(&p, 2)->ringid, 2);
	CHECK_EQ(rx_ring(&p, 2)->ringid, 2);
	CHECK_EQ(p.nifp->ring_ofs[0], 0);
	CHECK_EQ(p.nifp->ring_ofs[3], 0);
	CHECK_EQ(p.reg.nr_tx_rings, 4);
}

RULE("1.2-ONE_NIC-shorter", "ONE_NIC with a ring number that only one direction has: ring 0 is bound in the other")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 4, .nr_rx_rings = 2, .nr_mode = NR_REG_ONE_NIC,
	    .nr_ringid = 3));

	CHECK(p.nifp->ring_ofs[3] != 0);
	CHECK(p.nifp->ring_ofs[tx_entries(&p)] != 0);
	CHECK_EQ(p.nifp->ring_ofs[tx_entries(&p) + 1], 0);
	CHECK_EQ(p.nifp->ring_ofs[0], 0);
}

RULE("1.2-ONE_NIC-both", "ONE_NIC with a ring number that neither direction has: EINVAL")
{
	struct port p;

	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name("{1"), REG(.nr_tx_rings = 4, .nr_rx_rings = 2,
	    .nr_mode = NR_REG_ONE_NIC, .nr_ringid = 4)));
}

RULE("1.2-DEFAULT", "mode 0, of legacy requests only: EINVAL")
{
	struct port p;

	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name("{1"), REG(.nr_mode = NR_REG_DEFAULT)));
}

RULE("1.2-PIPE-modes", "the modes PIPE_MASTER and PIPE_SLAVE: EINVAL")
{
	struct port p;

	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name(""), REG(.nr_mode = NR_REG_PIPE_MASTER,
	    .nr_ringid = 1)));
	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name(""), REG(.nr_mode = NR_REG_PIPE_SLAVE,
	    .nr_ringid = 1)));
}

/* ---- flags */

RULE("1.2-flag-0x1000", "bit 0x1000 of nr_flags is ignored")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_flags = 0x1000)), b = open_in_region(&a, unique_name("}1"),
	    ALL_RINGS);
	int revents;

	put(tx_ring(&a, 0), "x", 1, 0);
	CHECK_EQ(poll_fd(a.fd, POLLIN, 0, &revents), 0);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("1.2-flag-poll", "DO_RX_POLL and ACCEPT_VNET_HDR are accepted")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_flags = NR_DO_RX_POLL | NR_ACCEPT_VNET_HDR));

	txsync(&p);
}

RULE("1.2-RX_RINGS_ONLY", "with RX_RINGS_ONLY other files can bind the tx rings, exclusively, too")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_flags = NR_RX_RINGS_ONLY | NR_EXCLUSIVE));
	struct port q = open_in_region(&p, unique_name("{1"), REG(.nr_flags = NR_TX_RINGS_ONLY | NR_EXCLUSIVE)), r;

	CHECK_ERRNO(EBUSY, bind_port(&r, open_device(), unique_name("{1"), REG(.nr_flags = NR_RX_RINGS_ONLY)));
	CHECK_ERRNO(EBUSY, bind_port(&r, open_device(), unique_name("{1"), REG(.nr_flags = NR_TX_RINGS_ONLY)));
	txsync(&q);
}

RULE("1.2-EXCLUSIVE-rings", "exclusive binding applies to the bound rings: other rings of the port can be bound")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 2, .nr_mode = NR_REG_ONE_NIC,
	    .nr_ringid = 0, .nr_flags = NR_EXCLUSIVE));
	struct port q = open_in_region(&p, unique_name("{1"), REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1)), r;

	CHECK_ERRNO(EBUSY, bind_port(&r, open_device(), unique_name("{1"), REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 0)));
	CHECK_ERRNO(EBUSY, bind_port(&r, open_device(), unique_name("{1"), ALL_RINGS));
	txsync(&q);
}

RULE("1.2-EXCLUSIVE-end", "closing the exclusive file releases its rings")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_flags = NR_EXCLUSIVE));
	struct port q = open_port(unique_name("}1"), ALL_RINGS);

	CHECK_OK(close(p.fd));
	open_port(unique_name("{1"), REG(.nr_flags = NR_EXCLUSIVE));
	txsync(&q);
}

/* ---- several files, one port */

RULE("1.2-shared", "files that bind the same rings share head, cur and tail")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), again = open_port(unique_name("{1"), ALL_RINGS),
	    b = open_port(unique_name("}1"), ALL_RINGS);
	struct netmap_ring *here = tx_ring(&a, 0), *there = tx_ring(&again, 0);

	CHECK(here != there);
	put(here, "x", 1, 0);
	CHECK_EQ(there->head, 1);
	CHECK_EQ(there->cur, 1);
	txsync(&again);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
	get(rx_ring(&b, 0));
	rxsync(&b);
	txsync(&a);
	CHECK_EQ(there->tail, 0);
}

RULE("1.2-shared-spoiled", "if one file sets bad pointers of a shared ring, the others see POLLERR")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_port(unique_name("{1"), ALL_RINGS);
	int revents;

	tx_ring(&a, 0)->head = 5000;
	CHECK_EQ(poll_fd(b.fd, POLLOUT, 0, &revents), 1);
	CHECK(revents & POLLERR);
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

RULE("1.2-busy-ring", "a ring that another thread is syncing is skipped: the sync neither fails nor waits")
{
	pthread_t t[3];
	void *failed;
	int i;

	shared_by_threads = open_port(unique_name("{1"), ALL_RINGS);
	for (i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, sync_often, t) == 0);
	for (i = 0; i < 3; i++) {
		CHECK(pthread_join(t[i], &failed) == 0);
		CHECK(failed == NULL);
	}
}

RULE("1.2-close-unbinds", "the last close deletes the port: the next opener's numbers are used again")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_slots = 64)), q = open_port(unique_name("{1"), ALL_RINGS);

	CHECK_OK(close(p.fd));
	txsync(&q);
	CHECK_EQ(q.reg.nr_tx_slots, 64);
	CHECK_OK(close(q.fd));
	p = open_port(unique_name("{1"), REG(.nr_tx_slots = 128));
	CHECK_EQ(p.reg.nr_tx_slots, 128);
}

RULE("1.2-close-others", "a close does not affect other files of the port")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), again = open_port(unique_name("{1"), ALL_RINGS),
	    b = open_port(unique_name("}1"), ALL_RINGS);

	CHECK_OK(close(a.fd));
	put(tx_ring(&again, 0), "x", 1, 0);
	txsync(&again);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}
