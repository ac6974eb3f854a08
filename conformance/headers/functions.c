/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * The functions of net/netmap_user.h that are more than an expression, for
 * programs compiled with headers that only declare them. Every netmap program
 * has its own copy of these: here it is our text, under other names, linked in.
 */
#define nm_open		header_nm_open
#define nm_close	header_nm_close
#define nm_mmap		header_nm_mmap
#define nm_inject	header_nm_inject
#define nm_dispatch	header_nm_dispatch
#define nm_nextpkt	header_nm_nextpkt
#define NETMAP_WITH_LIBS
#include <net/netmap_user.h>
#undef nm_open
#undef nm_close
#undef nm_mmap
#undef nm_inject
#undef nm_dispatch
#undef nm_nextpkt

struct nm_desc *
nm_open(const char *ifname, const struct nmreq *req, uint64_t flags, const struct nm_desc *arg)
{
	return header_nm_open(ifname, req, flags, arg);
}

int
nm_close(struct nm_desc *d)
{
	return header_nm_close(d);
}

int
nm_mmap(struct nm_desc *d, const struct nm_desc *parent)
{
	return header_nm_mmap(d, parent);
}

int
nm_inject(struct nm_desc *d, const void *buf, size_t size)
{
	return header_nm_inject(d, buf, size);
}

int
nm_dispatch(struct nm_desc *d, int cnt, nm_cb_t cb, u_char *arg)
{
	return header_nm_dispatch(d, cnt, cb, arg);
}

u_char *
nm_nextpkt(struct nm_desc *d, struct nm_pkthdr *hdr)
{
	return header_nm_nextpkt(d, hdr);
}
