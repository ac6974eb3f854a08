/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 3: indirect data of the largest size.
 */
#include "port.h"

#define MB	(1UL << 20)
/* Milliseconds. */
#define TIMEOUT_MS	20000

/* The largest value of a slot's len. */
#define MOST	65535

/* Opens a port of the rule's own switch, with buffers of the given size. */
static struct port
open_with(const char *name, uint32_t buffer)
{
	static struct nmreq_opt_extmem options[4];
	static unsigned int used;
	struct nmreq_opt_extmem *option = &options[used++];
	size_t bytes = 32 * MB;
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct port p;

	CHECK(at != MAP_FAILED);
	option->nro_opt.nro_reqtype = NETMAP_REQ_OPT_EXTMEM;
	option->nro_usrptr = (uintptr_t)at;
	option->nro_info.nr_memsize = bytes;
	option->nro_info.nr_buf_pool_objtotal = 300;
	option->nro_info.nr_buf_pool_objsize = buffer;
	memset(&p, 0, sizeof(p));
	p.fd = open_device();
	p.hdr.nr_version = NETMAP_API;
	p.hdr.nr_reqtype = NETMAP_REQ_REGISTER;
	p.hdr.nr_body = (uintptr_t)&p.reg;
	p.hdr.nr_options = (uintptr_t)option;
	snprintf(p.hdr.nr_name, sizeof(p.hdr.nr_name), "vale%s:%s", unique_name(""), name);
	p.reg = REG(.nr_tx_slots = 64, .nr_rx_slots = 64);
	CHECK_OK(ioctl(p.fd, NIOCCTRL, &p.hdr));
	p.mem = at;
	p.nifp = NETMAP_IF(at, p.reg.nr_offset);
	return p;
}

/* Returns a broadcast frame of the largest size, with position-dependent bytes. */
static unsigned char *
frame(void)
{
	static unsigned char bytes[MOST];
	unsigned int i;

	for (i = 0; i < MOST; i++)
		bytes[i] = (unsigned char)(i * 7 + i / 256);
	memset(bytes, 0xff, 6);
	memcpy(bytes + 6, "\x02\0\0\0\0\1\x88\xb5", 8);
	return bytes;
}

RULE("3-INDIRECT-65535", "indirect data can have 65535 bytes, if buffers are as large")
{
	unsigned char *bytes;
	struct netmap_slot *slot;
	struct port a, b;
	int revents;

	if (access_is("node"))
		rule_cannot("the node cannot use memory of the program");
	a = open_with("a", 65536);
	b = open_with("b", 65536);
	bytes = frame();
	put(tx_ring(&a, 0), NULL, MOST, NS_INDIRECT)->ptr = (uintptr_t)bytes;
	txsync(&a);
	CHECK_EQ(poll_fd(b.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	slot = get(rx_ring(&b, 0));
	CHECK_EQ(slot->len, MOST);
	CHECK(!(slot->flags & NS_MOREFRAG));
	CHECK(memcmp(slot_data(rx_ring(&b, 0), slot), bytes, MOST) == 0);
}

RULE("3-INDIRECT-MOREFRAG", "a packet can consist of indirect and direct slots in any order")
{
	enum { PIECE = 1200, PIECES = 50 };
	unsigned char *bytes;
	struct port a, b;
	int revents, i;

	if (access_is("node"))
		rule_cannot("the node cannot use memory of the program");
	a = open_with("a", 2048);
	b = open_with("b", 2048);
	bytes = frame();
	for (i = 0; i < PIECES; i++) {
		int more = i < PIECES - 1 ? NS_MOREFRAG : 0;

		if (i % 7 == 0)
			put(tx_ring(&a, 0), bytes + i * PIECE, PIECE, (unsigned)more);
		else
			put(tx_ring(&a, 0), NULL, PIECE, (unsigned)more | NS_INDIRECT)->ptr = (uintptr_t)(bytes + i * PIECE);
	}
	txsync(&a);
	CHECK_EQ(poll_fd(b.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	for (i = 0; i < PIECES; i++) {
		struct netmap_slot *slot = get(rx_ring(&b, 0));

		CHECK_EQ(slot->len, PIECE);
		CHECK_EQ(slot->flags & NS_MOREFRAG, i < PIECES - 1 ? NS_MOREFRAG : 0);
		CHECK(memcmp(slot_data(rx_ring(&b, 0), slot), bytes + i * PIECE, PIECE) == 0);
	}
}
