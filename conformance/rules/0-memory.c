/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 0: constants, sizes, and the layout of a port's memory.
 */
#include "port.h"

RULE("0-version", "NETMAP_API is 14, and requests of versions 14 and 15 are accepted")
{
	CHECK_EQ(NETMAP_API, 14);
	CHECK_EQ(NETMAP_MIN_API, 14);
	CHECK_EQ(NETMAP_MAX_API, 15);
}

RULE("0-ioctls", "the six ioctls have netmap's numbers")
{
	CHECK_EQ(NIOCGINFO, 0xc03c6991);
	CHECK_EQ(NIOCREGIF, 0xc03c6992);
	CHECK_EQ(NIOCTXSYNC, 0x6994);
	CHECK_EQ(NIOCRXSYNC, 0x6995);
	CHECK_EQ(NIOCCONFIG, 0xc1106996);
	CHECK_EQ(NIOCCTRL, 0xc0586997);
}

RULE("0-request-sizes", "requests have netmap's sizes")
{
	CHECK_EQ(sizeof(struct nmreq), 60);
	CHECK_EQ(sizeof(struct nm_ifreq), 272);
	CHECK_EQ(sizeof(struct nmreq_header), 88);
	CHECK_EQ(sizeof(struct nmreq_register), 56);
	CHECK_EQ(sizeof(struct nmreq_port_info_get), 32);
	CHECK_EQ(sizeof(struct nmreq_vale_attach), 64);
	CHECK_EQ(sizeof(struct nmreq_vale_detach), 8);
	CHECK_EQ(sizeof(struct nmreq_vale_list), 8);
	CHECK_EQ(sizeof(struct nmreq_port_hdr), 8);
	CHECK_EQ(sizeof(struct nmreq_vale_newif), 16);
	CHECK_EQ(sizeof(struct nmreq_vale_polling), 16);
	CHECK_EQ(sizeof(struct nmreq_pools_info), 64);
	CHECK_EQ(sizeof(struct nmreq_sync_kloop_start), 8);
}

RULE("0-option-sizes", "options and control blocks have netmap's sizes")
{
	CHECK_EQ(sizeof(struct nmreq_option), 24);
	CHECK_EQ(sizeof(struct nmreq_opt_extmem), 96);
	CHECK_EQ(sizeof(struct nmreq_opt_csb), 40);
	CHECK_EQ(sizeof(struct nmreq_opt_offsets), 56);
	CHECK_EQ(sizeof(struct nmreq_opt_sync_kloop_mode), 32);
	CHECK_EQ(sizeof(struct nmreq_opt_sync_kloop_eventfds), 24);
	CHECK_EQ(sizeof(((struct nmreq_opt_sync_kloop_eventfds *)0)->eventfds[0]), 8);
	CHECK_EQ(sizeof(struct nm_csb_atok), 64);
	CHECK_EQ(sizeof(struct nm_csb_ktoa), 64);
}

RULE("0-limits", "the limits of names, requests, fragments and ring numbers are netmap's")
{
	CHECK_EQ(NETMAP_REQ_MAXSIZE, 4096);
	CHECK_EQ(NETMAP_REQ_IFNAMSIZ, 64);
	CHECK_EQ(sizeof(((struct nmreq *)0)->nr_name), 16);
	CHECK_EQ(NM_CACHE_ALIGN, 128);
	CHECK_EQ(NETMAP_MAX_FRAGS, 64);
	CHECK_EQ(NETMAP_RING_MASK, 0x0fff);
}

RULE("0-private-state", "each open of the device has its own state")
{
	int one = open_device(), two = open_device();
	struct port p;

	CHECK_OK(bind_port(&p, one, unique_name("{1"), ALL_RINGS));
	CHECK_OK(ioctl(one, NIOCTXSYNC));
	CHECK_ERRNO(ENXIO, ioctl(two, NIOCTXSYNC));
}

RULE("0.1-slot", "a slot is 16 bytes: buf_idx 0, len 4, flags 6, ptr 8")
{
	CHECK_EQ(sizeof(struct netmap_slot), 16);
	CHECK_EQ(offsetof(struct netmap_slot, buf_idx), 0);
	CHECK_EQ(offsetof(struct netmap_slot, len), 4);
	CHECK_EQ(offsetof(struct netmap_slot, flags), 6);
	CHECK_EQ(offsetof(struct netmap_slot, ptr), 8);
}

RULE("0.1-ring", "a ring is 256 bytes plus its slots, each field at netmap's offset")
{
	CHECK_EQ(sizeof(struct netmap_ring), 256);
	CHECK_EQ(offsetof(struct netmap_ring, buf_ofs), 0);
	CHECK_EQ(offsetof(struct netmap_ring, num_slots), 8);
	CHECK_EQ(offsetof(struct netmap_ring, nr_buf_size), 12);
	CHECK_EQ(offsetof(struct netmap_ring, ringid), 16);
	CHECK_EQ(offsetof(struct netmap_ring, dir), 18);
	CHECK_EQ(offsetof(struct netmap_ring, head), 20);
	CHECK_EQ(offsetof(struct netmap_ring, cur), 24);
	CHECK_EQ(offsetof(struct netmap_ring, tail), 28);
	CHECK_EQ(offsetof(struct netmap_ring, flags), 32);
	CHECK_EQ(offsetof(struct netmap_ring, ts), 40);
	CHECK_EQ(offsetof(struct netmap_ring, offset_mask), 56);
	CHECK_EQ(offsetof(struct netmap_ring, buf_align), 64);
	CHECK_EQ(offsetof(struct netmap_ring, sem), 128);
	CHECK_EQ(sizeof(((struct netmap_ring *)0)->sem), 128);
	CHECK_EQ(offsetof(struct netmap_ring, slot), 256);
}

RULE("0.1-if", "netmap_if is 56 bytes plus the table of rings, each field at netmap's offset")
{
	CHECK_EQ(sizeof(struct netmap_if), 56);
	CHECK_EQ(offsetof(struct netmap_if, ni_name), 0);
	CHECK_EQ(offsetof(struct netmap_if, ni_version), 16);
	CHECK_EQ(offsetof(struct netmap_if, ni_flags), 20);
	CHECK_EQ(offsetof(struct netmap_if, ni_tx_rings), 24);
	CHECK_EQ(offsetof(struct netmap_if, ni_rx_rings), 28);
	CHECK_EQ(offsetof(struct netmap_if, ni_bufs_head), 32);
	CHECK_EQ(offsetof(struct netmap_if, ni_host_tx_rings), 36);
	CHECK_EQ(offsetof(struct netmap_if, ni_host_rx_rings), 40);
	CHECK_EQ(offsetof(struct netmap_if, ring_ofs), 56);
}

RULE("0.1-if-filled", "an open port's netmap_if contains its name and its numbers of rings")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 3, .nr_rx_rings = 2));

	CHECK(strncmp(p.nifp->ni_name, unique_name("{1"), sizeof(p.nifp->ni_name)) == 0);
	CHECK_EQ(p.nifp->ni_tx_rings, 3);
	CHECK_EQ(p.nifp->ni_rx_rings, 2);
	CHECK_EQ(p.nifp->ni_bufs_head, 0);
}

RULE("0.1-ring-order", "ring_ofs lists tx, host tx, rx, host rx rings, in this order")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 3, .nr_rx_rings = 2));
	unsigned int i;

	for (i = 0; i < 3; i++) {
		CHECK_EQ(tx_ring(&p, i)->dir, 0);
		CHECK_EQ(tx_ring(&p, i)->ringid, i);
	}
	for (i = 0; i < 2; i++) {
		CHECK_EQ(rx_ring(&p, i)->dir, 1);
		CHECK_EQ(rx_ring(&p, i)->ringid, i);
		CHECK(p.nifp->ring_ofs[tx_entries(&p) + i] == (char *)rx_ring(&p, i) - (char *)p.nifp);
	}
}

RULE("0.1-fake-host-rings", "a port without host rings has one unbound host ring entry for each direction")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);

	CHECK_EQ(p.nifp->ni_host_tx_rings, 1);
	CHECK_EQ(p.nifp->ni_host_rx_rings, 1);
	CHECK_EQ(p.nifp->ring_ofs[1], 0);
	CHECK_EQ(p.nifp->ring_ofs[3], 0);
}

RULE("0.1-unbound-tx", "ring_ofs is 0 for each tx ring that this file has not bound")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 3, .nr_rx_rings = 3, .nr_flags = NR_RX_RINGS_ONLY));
	unsigned int i;

	for (i = 0; i < tx_entries(&p); i++)
		CHECK_EQ(p.nifp->ring_ofs[i], 0);
	for (i = 0; i < 3; i++)
		CHECK(p.nifp->ring_ofs[tx_entries(&p) + i] != 0);
}

RULE("0.1-unbound-rx", "ring_ofs is 0 for each rx ring that this file has not bound")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 3, .nr_rx_rings = 3, .nr_flags = NR_TX_RINGS_ONLY));
	unsigned int i;

	for (i = 0; i < 3; i++)
		CHECK(p.nifp->ring_ofs[i] != 0);
	for (i = tx_entries(&p); i < all_entries(&p); i++)
		CHECK_EQ(p.nifp->ring_ofs[i], 0);
}

RULE("0.1-unbound-others", "with one ring bound, ring_ofs is 0 for all others")
{
	struct port p = open_port(unique_name("{1"),
	    REG(.nr_tx_rings = 3, .nr_rx_rings = 3, .nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));
	unsigned int i;

	for (i = 0; i < all_entries(&p); i++)
		CHECK_EQ(p.nifp->ring_ofs[i] != 0, i == 1 || i == tx_entries(&p) + 1);
}

RULE("0.1-if-each", "each file has its own netmap_if; rings are shared by all files that have bound them")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("{1"), ALL_RINGS);

	CHECK(a.nifp != b.nifp);
	CHECK(tx_ring(&a, 0) == tx_ring(&b, 0));
	CHECK(rx_ring(&a, 0) == rx_ring(&b, 0));
}

RULE("0.1-one-map", "netmap_if, rings and buffers are inside one region")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 2));
	char *end = p.mem + p.reg.nr_memsize;
	unsigned int i, j;

	CHECK((char *)&p.nifp->ring_ofs[all_entries(&p)] <= end);
	for (i = 0; i < all_entries(&p); i++) {
		struct netmap_ring *ring = tx_ring(&p, i);

		if (p.nifp->ring_ofs[i] == 0)
			continue;
		CHECK((char *)ring >= p.mem && (char *)&ring->slot[ring->num_slots] <= end);
		for (j = 0; ring->dir == 0 && j < ring->num_slots; j++) {
			char *buf = slot_data(ring, &ring->slot[j]);

			CHECK(buf >= p.mem && buf + ring->nr_buf_size <= end);
		}
	}
}

RULE("0.1-map-unbound", "a file without a port cannot be mapped: EINVAL")
{
	if (access_is("node"))
		rule_cannot("the kernel maps FUSE files without the daemon");
	CHECK_ERRNO(EINVAL, mmap(NULL, 4096, PROT_READ, MAP_SHARED, open_device(), 0));
}

RULE("0.1-map-offset", "a mapping can begin at any page of the region")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);
	off_t at = (off_t)(p.reg.nr_memsize / 2) & ~(off_t)4095;
	char *half = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, at);

	CHECK(half != MAP_FAILED);
	p.mem[at] = 77;
	CHECK_EQ(half[0], 77);
}

RULE("0.1-map-beyond", "a mapping that ends beyond the region: EINVAL")
{
	struct port p;
	size_t bytes;

	if (access_is("node"))
		rule_cannot("the kernel maps FUSE files without the daemon");
	p = open_port(unique_name("{1"), ALL_RINGS);
	bytes = p.reg.nr_memsize;
	CHECK_ERRNO(EINVAL, mmap(NULL, bytes + 4096, PROT_READ, MAP_SHARED, p.fd, 0));
	CHECK_ERRNO(EINVAL, mmap(NULL, 4096, PROT_READ, MAP_SHARED, p.fd, (off_t)bytes));
	CHECK_ERRNO(EINVAL, mmap(NULL, bytes, PROT_READ, MAP_SHARED, p.fd, 4096));
}

RULE("0.1-map-shared", "all mappings of a region show the same bytes")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS), q = open_port(unique_name("{1"), ALL_RINGS);
	struct netmap_ring *here = tx_ring(&p, 0), *there = tx_ring(&q, 0);

	CHECK_EQ(p.reg.nr_mem_id, q.reg.nr_mem_id);
	CHECK(here != there);
	*slot_data(here, &here->slot[0]) = 55;
	CHECK_EQ(*slot_data(there, &there->slot[0]), 55);
}

RULE("0.1-map-once", "a port that is opened later appears in an existing mapping")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("{2"),
	    REG(.nr_tx_slots = 256));

	CHECK_EQ(b.reg.nr_memsize, a.reg.nr_memsize);
	CHECK(strncmp(b.nifp->ni_name, unique_name("{2"), sizeof(b.nifp->ni_name)) == 0);
	CHECK_EQ(tx_ring(&b, 0)->num_slots, 256);
}

RULE("0.1-reserved-buffers", "buffers 0 and 1 are in no slot, and no buffer is in two slots")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_extra_bufs = 100));
	struct port q = open_in_region(&p, unique_name("}1"), REG(.nr_extra_bufs = 100));
	struct port *both[] = { &p, &q };
	struct netmap_ring *ring = tx_ring(&p, 0);
	char *taken = calloc(1, 1 << 20);
	unsigned int i, j, idx;

	for (i = 0; i < 2; i++) {
		struct netmap_ring *tx = tx_ring(both[i], 0);

		for (j = 0; j < tx->num_slots; j++) {
			idx = tx->slot[j].buf_idx;
			CHECK(idx >= 2 && idx < 1 << 20 && !taken[idx]);
			taken[idx] = 1;
		}
		for (idx = both[i]->nifp->ni_bufs_head; idx != 0; idx = *(uint32_t *)(void *)NETMAP_BUF(ring, idx)) {
			CHECK(idx >= 2 && idx < 1 << 20 && !taken[idx]);
			taken[idx] = 1;
		}
	}
}

RULE("0.1-bad-buffer", "a buffer number below 2 or too large is never passed to the receiver")
{
	static const uint32_t bad[] = { 0, 1, 1 << 30, ~0U };
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *to = tx_ring(&a, 0), *from = rx_ring(&b, 0);
	struct request q;
	unsigned int i;

	init_request(&q, NETMAP_REQ_POOLS_INFO_GET, unique_name("{1"));
	CHECK_OK(send_request(&q));
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		put(to, NULL, 60, 0)->buf_idx = bad[i];
	put(to, "whole", 6, 0);
	ioctl(a.fd, NIOCTXSYNC, NULL);
	ioctl(b.fd, NIOCRXSYNC, NULL);
	for (; !nm_ring_empty(from); get(from)) {
		struct netmap_slot *slot = &from->slot[from->head];

		CHECK(slot->buf_idx >= 2 && slot->buf_idx < q.pools.nr_buf_pool_objtotal);
		CHECK(slot->len <= from->nr_buf_size);
	}
}

RULE("0.1-pools", "the region contains the pool of netmap_ifs, then that of rings, then that of buffers")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);
	struct netmap_ring *ring = tx_ring(&p, 0);
	uint64_t ring_at = (uint64_t)((char *)ring - p.mem);
	struct request q;

	init_request(&q, NETMAP_REQ_POOLS_INFO_GET, unique_name("{1"));
	CHECK_OK(send_request(&q));
	CHECK(q.pools.nr_if_pool_offset < q.pools.nr_ring_pool_offset);
	CHECK(q.pools.nr_ring_pool_offset < q.pools.nr_buf_pool_offset);
	CHECK(q.pools.nr_buf_pool_offset < q.pools.nr_memsize);
	CHECK(p.reg.nr_offset >= q.pools.nr_if_pool_offset && p.reg.nr_offset < q.pools.nr_ring_pool_offset);
	CHECK(ring_at >= q.pools.nr_ring_pool_offset && ring_at < q.pools.nr_buf_pool_offset);
	CHECK(NETMAP_BUF(ring, 0) == p.mem + q.pools.nr_buf_pool_offset);
	CHECK_EQ(q.pools.nr_buf_pool_objsize, ring->nr_buf_size);
}

RULE("0.1-initial-pointers",
    "a tx ring begins with head = cur = 0 and tail on the last slot, an rx ring with all three 0")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&p, 0), *rx = rx_ring(&p, 0);

	CHECK_EQ(tx->head, 0);
	CHECK_EQ(tx->cur, 0);
	CHECK_EQ(tx->tail, tx->num_slots - 1);
	CHECK_EQ(rx->head, 0);
	CHECK_EQ(rx->cur, 0);
	CHECK_EQ(rx->tail, 0);
}

RULE("0.1-buf_ofs", "buf_ofs of every ring refers to the same buffer 0")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 2));

	CHECK(NETMAP_BUF(tx_ring(&p, 0), 0) == NETMAP_BUF(tx_ring(&p, 1), 0));
	CHECK(NETMAP_BUF(tx_ring(&p, 0), 0) == NETMAP_BUF(rx_ring(&p, 0), 0));
	CHECK(NETMAP_BUF(tx_ring(&p, 0), 0) == NETMAP_BUF(rx_ring(&p, 1), 0));
}

RULE("0.1-ring-aligned", "rings are aligned to 128 bytes")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_slots = 100, .nr_rx_slots = 100));

	CHECK_EQ((uintptr_t)tx_ring(&p, 0) % NM_CACHE_ALIGN, 0);
	CHECK_EQ((uintptr_t)rx_ring(&p, 0) % NM_CACHE_ALIGN, 0);
}

RULE("0.1-no-offsets", "without the OFFSETS option packets begin at the start of their buffers, whatever ptr is")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&p, 0);

	tx->slot[0].ptr = ~(uint64_t)0;
	CHECK_EQ(NETMAP_ROFFSET(tx, &tx->slot[0]), 0);
}

RULE("0.1-sem", "a sync does not change the 128 bytes of sem")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
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
			CHECK_EQ(rings[i]->sem[j], 0xa5);
}
