/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.3, EXTMEM: a region in the program's memory.
 */
#include <sys/wait.h>

#include <libnetmap.h>

#include "port.h"

#define MB	(1UL << 20)

/* Bytes for a pipe of 256 slots: 4 rings and more than 1024 buffers. */
#define SIZE	(4 * MB)
#define SMALL	REG(.nr_tx_slots = 256, .nr_rx_slots = 256)

static struct nmreq_opt_extmem
extmem(void *at, uint64_t bytes)
{
	struct nmreq_opt_extmem option;

	if (access_is("node"))
		rule_cannot("the node cannot use memory of the program");
	memset(&option, 0, sizeof(option));
	option.nro_opt.nro_reqtype = NETMAP_REQ_OPT_EXTMEM;
	option.nro_opt.nro_status = 99;
	option.nro_usrptr = (uintptr_t)at;
	option.nro_info.nr_memsize = bytes;
	return option;
}

static char *
memory(size_t bytes)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

static struct port
open_in(const char *name, struct nmreq_register reg, struct nmreq_opt_extmem *option)
{
	struct port p;

	CHECK_OK(bind_with(&p, open_device(), name, reg, option));
	CHECK_EQ(option->nro_opt.nro_status, 0);
	p.mem = (char *)(uintptr_t)option->nro_usrptr;
	p.nifp = NETMAP_IF(p.mem, p.reg.nr_offset);
	return p;
}

static void
exchange(struct port *a, struct port *b, int n)
{
	int i;

	for (i = 0; i < n; i++) {
		int back;

		put(tx_ring(a, 0), &i, sizeof(i), 0);
		txsync(a);
		rxsync(b);
		memcpy(&back, slot_data(rx_ring(b, 0), get(rx_ring(b, 0))), sizeof(back));
		CHECK_EQ(back, i);
		rxsync(b);
		txsync(a);
	}
}

RULE("1.3-EXTMEM", "the region is in the program's memory, and its ports work there without another mapping")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, SIZE);
	struct port a = open_in(unique_name("{1"), SMALL, &option), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);

	CHECK((char *)tx_ring(&a, 0) > at && (char *)tx_ring(&a, 0) < at + SIZE);
	CHECK(NETMAP_BUF(tx_ring(&a, 0), tx_ring(&a, 0)->slot[255].buf_idx) < at + SIZE);
	exchange(&a, &b, 1000);
	exchange(&b, &a, 1000);
}

RULE("1.3-EXTMEM-values", "pools that are 0 are returned with the defaults of a private region; all else is left as it was")
{
	struct nmreq_opt_extmem option = extmem(memory(16 * MB), 16 * MB);
	struct port p = open_in(unique_name("{1"), SMALL, &option);
	struct nmreq_pools_info *info = &option.nro_info;
	struct request q;

	CHECK_EQ(info->nr_if_pool_objtotal, 2);
	CHECK_EQ(info->nr_if_pool_objsize, 1024);
	CHECK_EQ(info->nr_ring_pool_objtotal, 4);
	CHECK_EQ(info->nr_ring_pool_objsize, 20480);
	CHECK_EQ(info->nr_buf_pool_objtotal, 4098);
	CHECK_EQ(info->nr_buf_pool_objsize, 2048);
	CHECK_EQ(info->nr_mem_id, 0);
	CHECK_EQ(info->nr_memsize, 16 * MB);
	CHECK_EQ(info->nr_buf_pool_offset, 0);
	CHECK(p.reg.nr_memsize <= 16 * MB);
	CHECK_EQ(option.nro_usrptr, (uintptr_t)p.mem);

	init_request(&q, NETMAP_REQ_POOLS_INFO_GET, unique_name("{1"));
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.pools.nr_mem_id, p.reg.nr_mem_id);
	CHECK_EQ(q.pools.nr_memsize, p.reg.nr_memsize);
	CHECK(q.pools.nr_buf_pool_offset + 4098 * 2048 <= q.pools.nr_memsize);
}

RULE("1.3-EXTMEM-pools", "pools have the requested sizes, with as many buffers as fit")
{
	struct nmreq_opt_extmem option = extmem(memory(SIZE), SIZE);
	struct request q;
	struct port p;

	option.nro_info.nr_if_pool_objtotal = 5;
	option.nro_info.nr_ring_pool_objtotal = 8;
	option.nro_info.nr_ring_pool_objsize = 8192;
	option.nro_info.nr_buf_pool_objtotal = 1000000;
	option.nro_info.nr_buf_pool_objsize = 2048;
	p = open_in(unique_name("{1"), SMALL, &option);
	CHECK_EQ(option.nro_info.nr_if_pool_objtotal, 5);
	CHECK_EQ(option.nro_info.nr_ring_pool_objtotal, 8);
	CHECK_EQ(option.nro_info.nr_buf_pool_objtotal, 1000000);
	CHECK(p.reg.nr_memsize <= SIZE);
	init_request(&q, NETMAP_REQ_POOLS_INFO_GET, unique_name("{1"));
	CHECK_OK(send_request(&q));
	CHECK(q.pools.nr_buf_pool_objtotal > 1900 && q.pools.nr_buf_pool_objtotal < 2048);
}

RULE("1.3-EXTMEM-contents", "the memory's contents stay unchanged where buffers are placed")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, SIZE);
	struct nmreq_register reg = SMALL;
	struct netmap_ring *ring;
	struct port p;
	uint32_t i, idx, extra = 0;
	size_t n;

	for (n = 0; n < SIZE / 4; n++)
		((uint32_t *)(void *)at)[n] = (uint32_t)n;
	reg.nr_extra_bufs = 10;
	p = open_in(unique_name("{1"), reg, &option);
	ring = tx_ring(&p, 0);
	for (i = 0; i < ring->num_slots; i++) {
		char *buf = NETMAP_BUF(ring, ring->slot[i].buf_idx);

		CHECK_EQ(*(uint32_t *)(void *)buf, (buf - at) / 4);
		CHECK_EQ(*(uint32_t *)(void *)(buf + 2044), (buf + 2044 - at) / 4);
	}
	for (idx = p.nifp->ni_bufs_head; idx != 0; extra++)
		idx = *(uint32_t *)(void *)NETMAP_BUF(ring, idx);
	CHECK_EQ(extra, 10);
}

RULE("1.3-EXTMEM-again", "a second port in the same memory is in the same region")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, SIZE), again;
	struct port a, b, c;

	option.nro_info.nr_if_pool_objtotal = 10;
	option.nro_info.nr_ring_pool_objtotal = 16;
	a = open_in(unique_name("{1"), REG(.nr_tx_slots = 64, .nr_rx_slots = 64), &option);
	again = extmem(at, SIZE);
	b = open_in(unique_name("}1"), ALL_RINGS, &again);
	CHECK_EQ(b.reg.nr_mem_id, a.reg.nr_mem_id);
	CHECK_EQ(again.nro_info.nr_if_pool_objtotal, 10);
	CHECK_EQ(again.nro_info.nr_ring_pool_objtotal, 16);
	exchange(&a, &b, 100);
	again = extmem(at, SIZE);
	c = open_in(unique_name("x{1"), REG(.nr_tx_slots = 64, .nr_rx_slots = 64), &again);
	CHECK_EQ(c.reg.nr_mem_id, a.reg.nr_mem_id);
	exchange(&a, &b, 100);
}

RULE("1.3-EXTMEM-after", "after the ports are closed the program can use the memory, also for another region")
{
	char *at = memory(SIZE);
	int i;

	for (i = 0; i < 4; i++) {
		struct nmreq_opt_extmem option = extmem(at, SIZE);
		struct port a = open_in(unique_name("{1"), SMALL, &option), b = open_in_region(&a, unique_name("}1"),
		    ALL_RINGS);

		exchange(&a, &b, 50);
		CHECK_OK(close(a.fd));
		CHECK_OK(close(b.fd));
		memset(at, i, SIZE);
		CHECK_EQ(at[SIZE - 1], i);
	}
	CHECK_OK(munmap(at, SIZE));
}

RULE("1.3-EXTMEM-mapped", "the file can also be mapped elsewhere, and shows the same bytes")
{
	struct nmreq_opt_extmem option = extmem(memory(SIZE), SIZE);
	struct port p = open_in(unique_name("{1"), SMALL, &option);
	char *other = mmap(NULL, p.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	struct netmap_ring *ring;

	CHECK(other != MAP_FAILED && other != p.mem);
	ring = NETMAP_TXRING(NETMAP_IF(other, p.reg.nr_offset), 0);
	ring->slot[7].ptr = 0x1234;
	CHECK_EQ(tx_ring(&p, 0)->slot[7].ptr, 0x1234);
}

RULE("1.3-EXTMEM-forked", "a forked child has the same memory, and can use the port")
{
	struct nmreq_opt_extmem option = extmem(memory(SIZE), SIZE);
	struct port a = open_in(unique_name("{1"), SMALL, &option), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	pid_t child = fork();
	int status, revents;

	if (child == 0) {
		put(tx_ring(&a, 0), "from the child", 15, 0);
		txsync(&a);
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK_EQ(poll_fd(b.fd, POLLIN, 20000, &revents), 1);
	CHECK(strcmp(slot_data(rx_ring(&b, 0), get(rx_ring(&b, 0))), "from the child") == 0);
}

RULE("1.3-EXTMEM-EINVAL", "memory of 0 bytes, or invalid pools: EINVAL, also in the status")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, 0);
	struct port p;

	CHECK_ERRNO(EINVAL, bind_with(&p, open_device(), unique_name("{1"), SMALL, &option));
	CHECK_EQ(option.nro_opt.nro_status, EINVAL);
	option = extmem(at, SIZE);
	option.nro_info.nr_buf_pool_objtotal = 1;
	CHECK_ERRNO(EINVAL, bind_with(&p, open_device(), unique_name("{1"), SMALL, &option));
	CHECK_EQ(option.nro_opt.nro_status, EINVAL);
	option = extmem(at, SIZE);
	option.nro_info.nr_ring_pool_objsize = 16;
	CHECK_ERRNO(EINVAL, bind_with(&p, open_device(), unique_name("{1"), SMALL, &option));
	option = extmem(at, SIZE);
	option.nro_info.nr_buf_pool_objsize = 1 << 20;
	CHECK_ERRNO(EINVAL, bind_with(&p, open_device(), unique_name("{1"), SMALL, &option));
	CHECK_ERRNO(ENXIO, ioctl(p.fd, NIOCTXSYNC));
}

RULE("1.3-EXTMEM-EFAULT", "memory that is unmapped, partly mapped or not writable: EFAULT, also in the status")
{
	char *at = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct nmreq_opt_extmem option = extmem(at, SIZE);
	struct port p;

	CHECK_ERRNO(EFAULT, bind_with(&p, open_device(), unique_name("{1"), SMALL, &option));
	CHECK_EQ(option.nro_opt.nro_status, EFAULT);
	CHECK_OK(mprotect(at, SIZE, PROT_READ));
	option = extmem(at, SIZE);
	CHECK_ERRNO(EFAULT, bind_with(&p, open_device(), unique_name("{1"), SMALL, &option));
	CHECK_OK(mprotect(at, SIZE, PROT_READ | PROT_WRITE));
	CHECK_OK(mprotect(at + 2 * MB, 4096, PROT_NONE));
	option = extmem(at, SIZE);
	CHECK_ERRNO(EFAULT, bind_with(&p, open_device(), unique_name("{1"), SMALL, &option));
	option = extmem(at, ~0ULL);
	CHECK_ERRNO(EFAULT, bind_with(&p, open_device(), unique_name("{1"), SMALL, &option));
	option = extmem(NULL, SIZE);
	CHECK_ERRNO(EFAULT, bind_with(&p, open_device(), unique_name("{1"), SMALL, &option));
	CHECK_OK(mprotect(at + 2 * MB, 4096, PROT_READ | PROT_WRITE));
	option = extmem(at, SIZE);
	CHECK_OK(bind_with(&p, open_device(), unique_name("{1"), SMALL, &option));
}

RULE("1.3-EXTMEM-ENOMEM", "memory too small for the pools or rings: ENOMEM")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, 4096);
	struct port p;

	CHECK_ERRNO(ENOMEM, bind_with(&p, open_device(), unique_name("{1"), SMALL, &option));
	CHECK_EQ(option.nro_opt.nro_status, ENOMEM);
	/* The pools fit, and have fewer buffers than the rings need. */
	option = extmem(at, 256 << 10);
	CHECK_ERRNO(ENOMEM, bind_with(&p, open_device(), unique_name("{1"), SMALL, &option));
	CHECK_EQ(option.nro_opt.nro_status, 0);
}

RULE("1.3-EXTMEM-refused", "a REGISTER that fails for another reason leaves the memory unchanged")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, SIZE);
	struct port p;
	size_t n;

	memset(at, 0x77, SIZE);
	CHECK_ERRNO(ENXIO, bind_with(&p, open_device(), "there-is-none", SMALL, &option));
	for (n = 0; n < SIZE; n++)
		if (at[n] != 0x77)
			rule_fails(__FILE__, __LINE__, "byte %zu is %d", n, at[n]);
}

RULE("1.3-EXTMEM-libnetmap", "nmport_extmem opens a port in the program's memory")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, SIZE);
	char name[32];
	struct nmport_d *d;

	snprintf(name, sizeof(name), "netmap:%s", unique_name("{1"));
	d = nmport_prepare(name);
	CHECK(d != NULL);
	d->reg.nr_tx_slots = d->reg.nr_rx_slots = 128;
	CHECK_OK(nmport_extmem(d, at, SIZE));
	nmport_extmem_getinfo(d)->nr_ring_pool_objtotal = 6;
	CHECK_OK(nmport_open_desc(d));
	CHECK((char *)d->nifp > at - 1 && (char *)d->nifp < at + SIZE);
	CHECK_EQ(nmport_extmem_getinfo(d)->nr_ring_pool_objtotal, 6);
	CHECK_EQ(nmport_inject(d, "packet", 7), 7);
	CHECK_EQ(option.nro_opt.nro_status, 99);
	nmport_close(d);
}
