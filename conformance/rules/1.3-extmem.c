/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.3, EXTMEM: a region in memory of the program's.
 */
#include <sys/wait.h>

#include <libnetmap.h>

#include "port.h"

#define MB	(1UL << 20)

/* Room for a pipe of 256 slots: 4 rings, 1024 buffers and some. */
#define SIZE	(4 * MB)
#define SMALL	WISH(.nr_tx_slots = 256, .nr_rx_slots = 256)

static struct nmreq_opt_extmem
extmem(void *at, uint64_t bytes)
{
	struct nmreq_opt_extmem option;

	if (door_is("node"))
		rule_cannot("the node has no memory but its own");
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

	HOLDS(at != MAP_FAILED);
	return at;
}

static struct port
open_in(const char *name, struct nmreq_register wish, struct nmreq_opt_extmem *option)
{
	struct port p;

	WORKS(bind_with(&p, device(), name, wish, option));
	SAME(option->nro_opt.nro_status, 0);
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
		memcpy(&back, data_of(rx_ring(b, 0), get(rx_ring(b, 0))), sizeof(back));
		SAME(back, i);
		rxsync(b);
		txsync(a);
	}
}

RULE("1.3-EXTMEM", "the region lies in the program's memory, and ports of it work there without another mapping")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, SIZE);
	struct port a = open_in(own("{1"), SMALL, &option), b = open_beside(&a, own("}1"), ANY);

	HOLDS((char *)tx_ring(&a, 0) > at && (char *)tx_ring(&a, 0) < at + SIZE);
	HOLDS(NETMAP_BUF(tx_ring(&a, 0), tx_ring(&a, 0)->slot[255].buf_idx) < at + SIZE);
	exchange(&a, &b, 1000);
	exchange(&b, &a, 1000);
}

RULE("1.3-EXTMEM-values", "what became of the pools comes back: of those that are 0 the defaults of a private region")
{
	struct nmreq_opt_extmem option = extmem(memory(16 * MB), 16 * MB);
	struct port p = open_in(own("{1"), SMALL, &option);
	struct nmreq_pools_info *info = &option.nro_info;
	struct ask q;

	SAME(info->nr_if_pool_objtotal, 2);
	SAME(info->nr_if_pool_objsize, 1024);
	SAME(info->nr_ring_pool_objtotal, 4);
	SAME(info->nr_ring_pool_objsize, 20480);
	SAME(info->nr_buf_pool_objtotal, 4098);
	SAME(info->nr_buf_pool_objsize, 2048);
	SAME(info->nr_mem_id, p.reg.nr_mem_id);
	SAME(info->nr_memsize, p.reg.nr_memsize);
	HOLDS(info->nr_memsize <= 16 * MB);
	HOLDS(info->nr_buf_pool_offset + 4098 * 2048 <= info->nr_memsize);
	SAME(option.nro_usrptr, (uintptr_t)p.mem);

	ask(&q, NETMAP_REQ_POOLS_INFO_GET, own("{1"));
	WORKS(send_ask(&q));
	SAME(q.pools.nr_buf_pool_offset, info->nr_buf_pool_offset);
	SAME(q.pools.nr_ring_pool_offset, info->nr_ring_pool_offset);
}

RULE("1.3-EXTMEM-pools", "pools are as the program wishes, and buffers as many as fit")
{
	struct nmreq_opt_extmem option = extmem(memory(SIZE), SIZE);
	struct port p;

	option.nro_info.nr_if_pool_objtotal = 5;
	option.nro_info.nr_ring_pool_objtotal = 8;
	option.nro_info.nr_ring_pool_objsize = 8192;
	option.nro_info.nr_buf_pool_objtotal = 1000000;
	option.nro_info.nr_buf_pool_objsize = 2048;
	p = open_in(own("{1"), SMALL, &option);
	SAME(option.nro_info.nr_if_pool_objtotal, 5);
	SAME(option.nro_info.nr_ring_pool_objtotal, 8);
	HOLDS(option.nro_info.nr_buf_pool_objtotal > 1900 && option.nro_info.nr_buf_pool_objtotal < 2048);
	HOLDS(p.reg.nr_memsize <= SIZE);
}

RULE("1.3-EXTMEM-contents", "what stands in the memory where buffers will be stays")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, SIZE);
	struct nmreq_register wish = SMALL;
	struct netmap_ring *ring;
	struct port p;
	uint32_t i, idx, extra = 0;
	size_t n;

	for (n = 0; n < SIZE / 4; n++)
		((uint32_t *)(void *)at)[n] = (uint32_t)n;
	wish.nr_extra_bufs = 10;
	p = open_in(own("{1"), wish, &option);
	ring = tx_ring(&p, 0);
	for (i = 0; i < ring->num_slots; i++) {
		char *buf = NETMAP_BUF(ring, ring->slot[i].buf_idx);

		SAME(*(uint32_t *)(void *)buf, (buf - at) / 4);
		SAME(*(uint32_t *)(void *)(buf + 2044), (buf + 2044 - at) / 4);
	}
	for (idx = p.nifp->ni_bufs_head; idx != 0; extra++)
		idx = *(uint32_t *)(void *)NETMAP_BUF(ring, idx);
	SAME(extra, 10);
}

RULE("1.3-EXTMEM-again", "a second port in the same memory is in the same region")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, SIZE), again;
	struct port a, b, c;

	option.nro_info.nr_if_pool_objtotal = 10;
	option.nro_info.nr_ring_pool_objtotal = 16;
	a = open_in(own("{1"), WISH(.nr_tx_slots = 64, .nr_rx_slots = 64), &option);
	again = extmem(at, SIZE);
	b = open_in(own("}1"), ANY, &again);
	SAME(b.reg.nr_mem_id, a.reg.nr_mem_id);
	SAME(again.nro_info.nr_mem_id, a.reg.nr_mem_id);
	SAME(again.nro_info.nr_ring_pool_objtotal, 16);
	exchange(&a, &b, 100);
	again = extmem(at, SIZE);
	c = open_in(own("x{1"), WISH(.nr_tx_slots = 64, .nr_rx_slots = 64), &again);
	SAME(c.reg.nr_mem_id, a.reg.nr_mem_id);
	exchange(&a, &b, 100);
}

RULE("1.3-EXTMEM-after", "when the ports are closed the memory is the program's, and can be a region again")
{
	char *at = memory(SIZE);
	int i;

	for (i = 0; i < 4; i++) {
		struct nmreq_opt_extmem option = extmem(at, SIZE);
		struct port a = open_in(own("{1"), SMALL, &option), b = open_beside(&a, own("}1"), ANY);

		exchange(&a, &b, 50);
		WORKS(close(a.fd));
		WORKS(close(b.fd));
		memset(at, i, SIZE);
		SAME(at[SIZE - 1], i);
	}
	WORKS(munmap(at, SIZE));
}

RULE("1.3-EXTMEM-mapped", "the file can be mapped elsewhere, too, and shows the same")
{
	struct nmreq_opt_extmem option = extmem(memory(SIZE), SIZE);
	struct port p = open_in(own("{1"), SMALL, &option);
	char *other = mmap(NULL, p.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	struct netmap_ring *ring;

	HOLDS(other != MAP_FAILED && other != p.mem);
	ring = NETMAP_TXRING(NETMAP_IF(other, p.reg.nr_offset), 0);
	ring->slot[7].ptr = 0x1234;
	SAME(tx_ring(&p, 0)->slot[7].ptr, 0x1234);
}

RULE("1.3-EXTMEM-forked", "a forked child has the same memory, and may use the port")
{
	struct nmreq_opt_extmem option = extmem(memory(SIZE), SIZE);
	struct port a = open_in(own("{1"), SMALL, &option), b = open_beside(&a, own("}1"), ANY);
	pid_t child = fork();
	int status, revents;

	if (child == 0) {
		put(tx_ring(&a, 0), "from the child", 15, 0);
		txsync(&a);
		_exit(0);
	}
	SAME(waitpid(child, &status, 0), child);
	SAME(status, 0);
	SAME(poll_fd(b.fd, POLLIN, 20000, &revents), 1);
	HOLDS(strcmp(data_of(rx_ring(&b, 0), get(rx_ring(&b, 0))), "from the child") == 0);
}

RULE("1.3-EXTMEM-EINVAL", "memory of no bytes, and pools that cannot be: EINVAL, also in the status")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, 0);
	struct port p;

	REFUSED(EINVAL, bind_with(&p, device(), own("{1"), SMALL, &option));
	SAME(option.nro_opt.nro_status, EINVAL);
	option = extmem(at, SIZE);
	option.nro_info.nr_buf_pool_objtotal = 1;
	REFUSED(EINVAL, bind_with(&p, device(), own("{1"), SMALL, &option));
	SAME(option.nro_opt.nro_status, EINVAL);
	option = extmem(at, SIZE);
	option.nro_info.nr_ring_pool_objsize = 16;
	REFUSED(EINVAL, bind_with(&p, device(), own("{1"), SMALL, &option));
	option = extmem(at, SIZE);
	option.nro_info.nr_buf_pool_objsize = 1 << 20;
	REFUSED(EINVAL, bind_with(&p, device(), own("{1"), SMALL, &option));
	REFUSED(ENXIO, ioctl(p.fd, NIOCTXSYNC));
}

RULE("1.3-EXTMEM-EFAULT", "what is not memory, not all of it, or cannot be written: EFAULT, also in the status")
{
	char *at = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct nmreq_opt_extmem option = extmem(at, SIZE);
	struct port p;

	REFUSED(EFAULT, bind_with(&p, device(), own("{1"), SMALL, &option));
	SAME(option.nro_opt.nro_status, EFAULT);
	WORKS(mprotect(at, SIZE, PROT_READ));
	option = extmem(at, SIZE);
	REFUSED(EFAULT, bind_with(&p, device(), own("{1"), SMALL, &option));
	WORKS(mprotect(at, SIZE, PROT_READ | PROT_WRITE));
	WORKS(mprotect(at + 2 * MB, 4096, PROT_NONE));
	option = extmem(at, SIZE);
	REFUSED(EFAULT, bind_with(&p, device(), own("{1"), SMALL, &option));
	option = extmem(at, ~0ULL);
	REFUSED(EFAULT, bind_with(&p, device(), own("{1"), SMALL, &option));
	option = extmem(NULL, SIZE);
	REFUSED(EFAULT, bind_with(&p, device(), own("{1"), SMALL, &option));
	WORKS(mprotect(at + 2 * MB, 4096, PROT_READ | PROT_WRITE));
	option = extmem(at, SIZE);
	WORKS(bind_with(&p, device(), own("{1"), SMALL, &option));
}

RULE("1.3-EXTMEM-ENOMEM", "memory that is too small for pools or rings: ENOMEM")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, 4096);
	struct port p;

	REFUSED(ENOMEM, bind_with(&p, device(), own("{1"), SMALL, &option));
	SAME(option.nro_opt.nro_status, ENOMEM);
	/* The pools fit, and have fewer buffers than the rings need. */
	option = extmem(at, 256 << 10);
	REFUSED(ENOMEM, bind_with(&p, device(), own("{1"), SMALL, &option));
	SAME(option.nro_opt.nro_status, 0);
}

RULE("1.3-EXTMEM-refused", "a REGISTER that is refused for something else leaves the memory as it was")
{
	char *at = memory(SIZE);
	struct nmreq_opt_extmem option = extmem(at, SIZE);
	struct port p;
	size_t n;

	memset(at, 0x77, SIZE);
	REFUSED(ENXIO, bind_with(&p, device(), "there-is-none", SMALL, &option));
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

	snprintf(name, sizeof(name), "netmap:%s", own("{1"));
	d = nmport_prepare(name);
	HOLDS(d != NULL);
	d->reg.nr_tx_slots = d->reg.nr_rx_slots = 128;
	WORKS(nmport_extmem(d, at, SIZE));
	nmport_extmem_getinfo(d)->nr_ring_pool_objtotal = 6;
	WORKS(nmport_open_desc(d));
	HOLDS((char *)d->nifp > at - 1 && (char *)d->nifp < at + SIZE);
	SAME(nmport_extmem_getinfo(d)->nr_ring_pool_objtotal, 6);
	SAME(nmport_inject(d, "packet", 7), 7);
	SAME(option.nro_opt.nro_status, 99);
	nmport_close(d);
}
