/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 0: numbers, sizes, and what lies where in a port's memory.
 */
#include "port.h"

RULE("0-version", "the API is 14, and requests of 14 and 15 are understood")
{
	SAME(NETMAP_API, 14);
	SAME(NETMAP_MIN_API, 14);
	SAME(NETMAP_MAX_API, 15);
}

RULE("0-ioctls", "the six calls have netmap's numbers")
{
	SAME(NIOCGINFO, 0xc03c6991);
	SAME(NIOCREGIF, 0xc03c6992);
	SAME(NIOCTXSYNC, 0x6994);
	SAME(NIOCRXSYNC, 0x6995);
	SAME(NIOCCONFIG, 0xc1106996);
	SAME(NIOCCTRL, 0xc0586997);
}

RULE("0-request-sizes", "requests have netmap's sizes")
{
	SAME(sizeof(struct nmreq), 60);
	SAME(sizeof(struct nm_ifreq), 272);
	SAME(sizeof(struct nmreq_header), 88);
	SAME(sizeof(struct nmreq_register), 56);
	SAME(sizeof(struct nmreq_port_info_get), 32);
	SAME(sizeof(struct nmreq_vale_attach), 64);
	SAME(sizeof(struct nmreq_vale_detach), 8);
	SAME(sizeof(struct nmreq_vale_list), 8);
	SAME(sizeof(struct nmreq_port_hdr), 8);
	SAME(sizeof(struct nmreq_vale_newif), 16);
	SAME(sizeof(struct nmreq_vale_polling), 16);
	SAME(sizeof(struct nmreq_pools_info), 64);
	SAME(sizeof(struct nmreq_sync_kloop_start), 8);
}

RULE("0-option-sizes", "options and control blocks have netmap's sizes")
{
	SAME(sizeof(struct nmreq_option), 24);
	SAME(sizeof(struct nmreq_opt_extmem), 96);
	SAME(sizeof(struct nmreq_opt_csb), 40);
	SAME(sizeof(struct nmreq_opt_offsets), 56);
	SAME(sizeof(struct nmreq_opt_sync_kloop_mode), 32);
	SAME(sizeof(struct nmreq_opt_sync_kloop_eventfds), 24);
	SAME(sizeof(((struct nmreq_opt_sync_kloop_eventfds *)0)->eventfds[0]), 8);
	SAME(sizeof(struct nm_csb_atok), 64);
	SAME(sizeof(struct nm_csb_ktoa), 64);
}

RULE("0-limits", "names, requests, fragments and ring numbers end where netmap's do")
{
	SAME(NETMAP_REQ_MAXSIZE, 4096);
	SAME(NETMAP_REQ_IFNAMSIZ, 64);
	SAME(sizeof(((struct nmreq *)0)->nr_name), 16);
	SAME(NM_CACHE_ALIGN, 128);
	SAME(NETMAP_MAX_FRAGS, 64);
	SAME(NETMAP_RING_MASK, 0x0fff);
}

RULE("0-private-state", "each open of the device has a state of its own")
{
	int one = device(), two = device();
	struct port p;

	WORKS(bind_port(&p, one, own("{1"), ANY));
	WORKS(ioctl(one, NIOCTXSYNC));
	REFUSED(ENXIO, ioctl(two, NIOCTXSYNC));
}

RULE("0.1-slot", "a slot is 16 bytes: buf_idx 0, len 4, flags 6, ptr 8")
{
	SAME(sizeof(struct netmap_slot), 16);
	SAME(offsetof(struct netmap_slot, buf_idx), 0);
	SAME(offsetof(struct netmap_slot, len), 4);
	SAME(offsetof(struct netmap_slot, flags), 6);
	SAME(offsetof(struct netmap_slot, ptr), 8);
}

RULE("0.1-ring", "a ring is 256 bytes and its slots, each field where netmap has it")
{
	SAME(sizeof(struct netmap_ring), 256);
	SAME(offsetof(struct netmap_ring, buf_ofs), 0);
	SAME(offsetof(struct netmap_ring, num_slots), 8);
	SAME(offsetof(struct netmap_ring, nr_buf_size), 12);
	SAME(offsetof(struct netmap_ring, ringid), 16);
	SAME(offsetof(struct netmap_ring, dir), 18);
	SAME(offsetof(struct netmap_ring, head), 20);
	SAME(offsetof(struct netmap_ring, cur), 24);
	SAME(offsetof(struct netmap_ring, tail), 28);
	SAME(offsetof(struct netmap_ring, flags), 32);
	SAME(offsetof(struct netmap_ring, ts), 40);
	SAME(offsetof(struct netmap_ring, offset_mask), 56);
	SAME(offsetof(struct netmap_ring, buf_align), 64);
	SAME(offsetof(struct netmap_ring, sem), 128);
	SAME(sizeof(((struct netmap_ring *)0)->sem), 128);
	SAME(offsetof(struct netmap_ring, slot), 256);
}

RULE("0.1-if", "netmap_if is 56 bytes and the table of rings, each field where netmap has it")
{
	SAME(sizeof(struct netmap_if), 56);
	SAME(offsetof(struct netmap_if, ni_name), 0);
	SAME(offsetof(struct netmap_if, ni_version), 16);
	SAME(offsetof(struct netmap_if, ni_flags), 20);
	SAME(offsetof(struct netmap_if, ni_tx_rings), 24);
	SAME(offsetof(struct netmap_if, ni_rx_rings), 28);
	SAME(offsetof(struct netmap_if, ni_bufs_head), 32);
	SAME(offsetof(struct netmap_if, ni_host_tx_rings), 36);
	SAME(offsetof(struct netmap_if, ni_host_rx_rings), 40);
	SAME(offsetof(struct netmap_if, ring_ofs), 56);
}

RULE("0.1-if-filled", "an open port's netmap_if has its name and how many rings there are")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 3, .nr_rx_rings = 2));

	HOLDS(strncmp(p.nifp->ni_name, own("{1"), sizeof(p.nifp->ni_name)) == 0);
	SAME(p.nifp->ni_tx_rings, 3);
	SAME(p.nifp->ni_rx_rings, 2);
	SAME(p.nifp->ni_bufs_head, 0);
}

RULE("0.1-ring-order", "ring_ofs has tx, host tx, rx, host rx rings, in this order")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 3, .nr_rx_rings = 2));
	unsigned int i;

	for (i = 0; i < 3; i++) {
		SAME(tx_ring(&p, i)->dir, 0);
		SAME(tx_ring(&p, i)->ringid, i);
	}
	for (i = 0; i < 2; i++) {
		SAME(rx_ring(&p, i)->dir, 1);
		SAME(rx_ring(&p, i)->ringid, i);
		HOLDS(p.nifp->ring_ofs[tx_entries(&p) + i] == (char *)rx_ring(&p, i) - (char *)p.nifp);
	}
}

RULE("0.1-fake-host-rings", "a port without host rings has an entry for one in each direction, which is not bound")
{
	struct port p = open_port(own("{1"), ANY);

	SAME(p.nifp->ni_host_tx_rings, 1);
	SAME(p.nifp->ni_host_rx_rings, 1);
	SAME(p.nifp->ring_ofs[1], 0);
	SAME(p.nifp->ring_ofs[3], 0);
}

RULE("0.1-unbound-tx", "ring_ofs is 0 for each tx ring that this file did not bind")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 3, .nr_rx_rings = 3, .nr_flags = NR_RX_RINGS_ONLY));
	unsigned int i;

	for (i = 0; i < tx_entries(&p); i++)
		SAME(p.nifp->ring_ofs[i], 0);
	for (i = 0; i < 3; i++)
		HOLDS(p.nifp->ring_ofs[tx_entries(&p) + i] != 0);
}

RULE("0.1-unbound-rx", "ring_ofs is 0 for each rx ring that this file did not bind")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 3, .nr_rx_rings = 3, .nr_flags = NR_TX_RINGS_ONLY));
	unsigned int i;

	for (i = 0; i < 3; i++)
		HOLDS(p.nifp->ring_ofs[i] != 0);
	for (i = tx_entries(&p); i < all_entries(&p); i++)
		SAME(p.nifp->ring_ofs[i], 0);
}

RULE("0.1-unbound-others", "with one ring bound, ring_ofs is 0 for all others")
{
	struct port p = open_port(own("{1"),
	    WISH(.nr_tx_rings = 3, .nr_rx_rings = 3, .nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));
	unsigned int i;

	for (i = 0; i < all_entries(&p); i++)
		SAME(p.nifp->ring_ofs[i] != 0, i == 1 || i == tx_entries(&p) + 1);
}

RULE("0.1-if-each", "each file has a netmap_if of its own, and rings are shared by all who bound them")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("{1"), ANY);

	HOLDS(a.nifp != b.nifp);
	HOLDS(tx_ring(&a, 0) == tx_ring(&b, 0));
	HOLDS(rx_ring(&a, 0) == rx_ring(&b, 0));
}

RULE("0.1-one-map", "netmap_if, rings and buffers lie inside the one region")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 2));
	char *end = p.mem + p.reg.nr_memsize;
	unsigned int i, j;

	HOLDS((char *)&p.nifp->ring_ofs[all_entries(&p)] <= end);
	for (i = 0; i < all_entries(&p); i++) {
		struct netmap_ring *ring = tx_ring(&p, i);

		if (p.nifp->ring_ofs[i] == 0)
			continue;
		HOLDS((char *)ring >= p.mem && (char *)&ring->slot[ring->num_slots] <= end);
		for (j = 0; ring->dir == 0 && j < ring->num_slots; j++) {
			char *buf = data_of(ring, &ring->slot[j]);

			HOLDS(buf >= p.mem && buf + ring->nr_buf_size <= end);
		}
	}
}

RULE("0.1-map-unbound", "a file without a port cannot be mapped: EINVAL")
{
	if (door_is("node"))
		rule_cannot("the kernel maps, and asks nobody");
	REFUSED(EINVAL, mmap(NULL, 4096, PROT_READ, MAP_SHARED, device(), 0));
}

RULE("0.1-map-offset", "any page of the region can be where a mapping begins")
{
	struct port p = open_port(own("{1"), ANY);
	off_t at = (off_t)(p.reg.nr_memsize / 2) & ~(off_t)4095;
	char *half = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, at);

	HOLDS(half != MAP_FAILED);
	p.mem[at] = 77;
	SAME(half[0], 77);
}

RULE("0.1-map-beyond", "a mapping that ends behind the region: EINVAL")
{
	struct port p;
	size_t bytes;

	if (door_is("node"))
		rule_cannot("the kernel maps, and asks nobody");
	p = open_port(own("{1"), ANY);
	bytes = p.reg.nr_memsize;
	REFUSED(EINVAL, mmap(NULL, bytes + 4096, PROT_READ, MAP_SHARED, p.fd, 0));
	REFUSED(EINVAL, mmap(NULL, 4096, PROT_READ, MAP_SHARED, p.fd, (off_t)bytes));
	REFUSED(EINVAL, mmap(NULL, bytes, PROT_READ, MAP_SHARED, p.fd, 4096));
}

RULE("0.1-map-shared", "all mappings of a region show the same bytes")
{
	struct port p = open_port(own("{1"), ANY), q = open_port(own("{1"), ANY);
	struct netmap_ring *here = tx_ring(&p, 0), *there = tx_ring(&q, 0);

	SAME(p.reg.nr_mem_id, q.reg.nr_mem_id);
	HOLDS(here != there);
	*data_of(here, &here->slot[0]) = 55;
	SAME(*data_of(there, &there->slot[0]), 55);
}

RULE("0.1-map-once", "a port that is opened later appears in the mapping that is there")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("{2"), WISH(.nr_tx_slots = 256));

	SAME(b.reg.nr_memsize, a.reg.nr_memsize);
	HOLDS(strncmp(b.nifp->ni_name, own("{2"), sizeof(b.nifp->ni_name)) == 0);
	SAME(tx_ring(&b, 0)->num_slots, 256);
}

RULE("0.1-reserved-buffers", "buffers 0 and 1 are nobody's, all others at most one slot's")
{
	struct port p = open_port(own("{1"), WISH(.nr_extra_bufs = 100));
	struct port q = open_beside(&p, own("}1"), WISH(.nr_extra_bufs = 100));
	struct port *both[] = { &p, &q };
	struct netmap_ring *ring = tx_ring(&p, 0);
	char *taken = calloc(1, 1 << 20);
	unsigned int i, j, idx;

	for (i = 0; i < 2; i++) {
		struct netmap_ring *tx = tx_ring(both[i], 0);

		for (j = 0; j < tx->num_slots; j++) {
			idx = tx->slot[j].buf_idx;
			HOLDS(idx >= 2 && idx < 1 << 20 && !taken[idx]);
			taken[idx] = 1;
		}
		for (idx = both[i]->nifp->ni_bufs_head; idx != 0; idx = *(uint32_t *)(void *)NETMAP_BUF(ring, idx)) {
			HOLDS(idx >= 2 && idx < 1 << 20 && !taken[idx]);
			taken[idx] = 1;
		}
	}
}

RULE("0.1-bad-buffer", "a buffer number below 2 or too large is never handed to the receiver")
{
	static const uint32_t bad[] = { 0, 1, 1 << 30, ~0U };
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *to = tx_ring(&a, 0), *from = rx_ring(&b, 0);
	struct ask q;
	unsigned int i;

	ask(&q, NETMAP_REQ_POOLS_INFO_GET, own("{1"));
	WORKS(send_ask(&q));
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		put(to, NULL, 60, 0)->buf_idx = bad[i];
	put(to, "whole", 6, 0);
	ioctl(a.fd, NIOCTXSYNC, NULL);
	ioctl(b.fd, NIOCRXSYNC, NULL);
	for (; !nm_ring_empty(from); get(from)) {
		struct netmap_slot *slot = &from->slot[from->head];

		HOLDS(slot->buf_idx >= 2 && slot->buf_idx < q.pools.nr_buf_pool_objtotal);
		HOLDS(slot->len <= from->nr_buf_size);
	}
}

RULE("0.1-pools", "the region has the pool of netmap_ifs, then that of rings, then that of buffers")
{
	struct port p = open_port(own("{1"), ANY);
	struct netmap_ring *ring = tx_ring(&p, 0);
	uint64_t ring_at = (uint64_t)((char *)ring - p.mem);
	struct ask q;

	ask(&q, NETMAP_REQ_POOLS_INFO_GET, own("{1"));
	WORKS(send_ask(&q));
	HOLDS(q.pools.nr_if_pool_offset < q.pools.nr_ring_pool_offset);
	HOLDS(q.pools.nr_ring_pool_offset < q.pools.nr_buf_pool_offset);
	HOLDS(q.pools.nr_buf_pool_offset < q.pools.nr_memsize);
	HOLDS(p.reg.nr_offset >= q.pools.nr_if_pool_offset && p.reg.nr_offset < q.pools.nr_ring_pool_offset);
	HOLDS(ring_at >= q.pools.nr_ring_pool_offset && ring_at < q.pools.nr_buf_pool_offset);
	HOLDS(NETMAP_BUF(ring, 0) == p.mem + q.pools.nr_buf_pool_offset);
	SAME(q.pools.nr_buf_pool_objsize, ring->nr_buf_size);
}

RULE("0.1-initial-pointers", "tx begins with head = cur = 0 and tail on the last slot, rx with all three 0")
{
	struct port p = open_port(own("{1"), ANY);
	struct netmap_ring *tx = tx_ring(&p, 0), *rx = rx_ring(&p, 0);

	SAME(tx->head, 0);
	SAME(tx->cur, 0);
	SAME(tx->tail, tx->num_slots - 1);
	SAME(rx->head, 0);
	SAME(rx->cur, 0);
	SAME(rx->tail, 0);
}

RULE("0.1-buf_ofs", "every ring leads to the same buffer 0")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 2));

	HOLDS(NETMAP_BUF(tx_ring(&p, 0), 0) == NETMAP_BUF(tx_ring(&p, 1), 0));
	HOLDS(NETMAP_BUF(tx_ring(&p, 0), 0) == NETMAP_BUF(rx_ring(&p, 0), 0));
	HOLDS(NETMAP_BUF(tx_ring(&p, 0), 0) == NETMAP_BUF(rx_ring(&p, 1), 0));
}

RULE("0.1-ring-aligned", "rings begin on multiples of 128 bytes")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_slots = 100, .nr_rx_slots = 100));

	SAME((uintptr_t)tx_ring(&p, 0) % NM_CACHE_ALIGN, 0);
	SAME((uintptr_t)rx_ring(&p, 0) % NM_CACHE_ALIGN, 0);
}

RULE("0.1-no-offsets", "without the option, packets begin where their buffers do, whatever ptr holds")
{
	struct port p = open_port(own("{1"), ANY);
	struct netmap_ring *tx = tx_ring(&p, 0);

	tx->slot[0].ptr = ~(uint64_t)0;
	SAME(NETMAP_ROFFSET(tx, &tx->slot[0]), 0);
}

RULE("0.1-sem", "the 128 bytes of sem are the program's: no sync touches them")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *rings[] = { tx_ring(&a, 0), rx_ring(&b, 0) };
	unsigned int i, j;

	for (i = 0; i < 2; i++)
		memset(rings[i]->sem, 0xa5, sizeof(rings[i]->sem));
	put(rings[0], "hello", 6, 0);
	txsync(&a);
	rxsync(&b);
	get(rings[1]);
	rxsync(&b);
	for (i = 0; i < 2; i++)
		for (j = 0; j < sizeof(rings[i]->sem); j++)
			SAME(rings[i]->sem[j], 0xa5);
}
