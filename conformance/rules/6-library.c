/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 6: the functions of net/netmap_user.h and libnetmap.h.
 */
#include <stdarg.h>

#define NETMAP_WITH_LIBS
#include "port.h"

#include <libnetmap.h>

/* Makes a ring of 8 slots that belongs to no port. */
static union {
	struct netmap_ring ring;
	char room[256 + 8 * sizeof(struct netmap_slot)];
} fake __attribute__((aligned(128)));

static struct netmap_ring *
fake_ring(uint32_t head, uint32_t tail)
{
	struct netmap_ring start = { .buf_ofs = 4096, .num_slots = 8, .nr_buf_size = 2048, .head = head, .cur = head,
		.tail = tail, .offset_mask = 0xff };

	memcpy(&fake, &start, sizeof(start));
	return &fake.ring;
}

/* ---- macros and inline functions */

RULE("6-NETMAP_BUF", "NETMAP_BUF returns a buffer's address, NETMAP_BUF_IDX its number from any byte of it")
{
	struct netmap_ring *ring = fake_ring(0, 0);

	CHECK(NETMAP_BUF(ring, 0) == (char *)ring + 4096);
	CHECK(NETMAP_BUF(ring, 5) == (char *)ring + 4096 + 5 * 2048);
	CHECK_EQ(NETMAP_BUF_IDX(ring, NETMAP_BUF(ring, 5)), 5);
	CHECK_EQ(NETMAP_BUF_IDX(ring, NETMAP_BUF(ring, 5) + 2047), 5);
	CHECK(NETMAP_BUF(ring, 3000000) == (char *)ring + 4096 + 3000000ULL * 2048);
}

RULE("6-offsets", "NETMAP_ROFFSET and WOFFSET read and write ptr under the ring's mask, and BUF_OFFSET adds the offset")
{
	struct netmap_ring *ring = fake_ring(0, 0);
	struct netmap_slot slot = { .buf_idx = 3, .ptr = 0xabcdef00000011 };

	CHECK_EQ(NETMAP_ROFFSET(ring, &slot), 0x11);
	NETMAP_WOFFSET(ring, &slot, 0x1fe);
	CHECK_EQ(slot.ptr, 0xabcdef000000fe);
	CHECK(NETMAP_BUF_OFFSET(ring, &slot) == NETMAP_BUF(ring, 3) + 0xfe);
}

RULE("6-ring", "nm_ring_next, _empty, _space and nm_tx_pending work across the end of the ring")
{
	CHECK_EQ(nm_ring_next(fake_ring(0, 0), 6), 7);
	CHECK_EQ(nm_ring_next(fake_ring(0, 0), 7), 0);
	CHECK(nm_ring_empty(fake_ring(3, 3)) && !nm_ring_empty(fake_ring(3, 4)));
	CHECK_EQ(nm_ring_space(fake_ring(3, 3)), 0);
	CHECK_EQ(nm_ring_space(fake_ring(3, 7)), 4);
	CHECK_EQ(nm_ring_space(fake_ring(6, 2)), 4);
	CHECK(!nm_tx_pending(fake_ring(0, 7)) && nm_tx_pending(fake_ring(1, 7)));
	CHECK(!nm_tx_pending(fake_ring(5, 4)) && nm_tx_pending(fake_ring(5, 3)));
}

RULE("6-names", "net/netmap_user.h has likely, unlikely and the barriers, and is enough for programs that lean on its includes")
{
	struct netmap_ring *ring = fake_ring(1, 2);
	struct timeval ts = { 0, 0 };
	struct ifreq request;

	CHECK(likely(ring->head == 1) && !unlikely(ring->tail != 2));
	nm_ldld_barrier();
	nm_stld_barrier();
	nm_stst_barrier();
	timerclear(&ts);
	CHECK(sizeof(request) > IFNAMSIZ && NETMAP_REQ_IFNAMSIZ == 64);
	CHECK_EQ(ring->num_slots, 8);
}

RULE("6-rings-of", "NETMAP_TXRING and RXRING use ring_ofs, with host rings after the NIC rings")
{
	union {
		struct netmap_if nifp;
		char room[56 + 10 * sizeof(ssize_t)];
	} u;
	struct netmap_if start = { .ni_tx_rings = 2, .ni_rx_rings = 3, .ni_host_tx_rings = 1, .ni_host_rx_rings = 1 };
	ssize_t ofs[] = { 1000, 2000, 3000, 4000, 5000, 6000, 7000 };

	memcpy(&u, &start, sizeof(start));
	memcpy(u.room + 56, ofs, sizeof(ofs));
	CHECK((char *)NETMAP_TXRING(&u.nifp, 1) == u.room + 2000);
	CHECK((char *)NETMAP_TXRING(&u.nifp, 2) == u.room + 3000);
	CHECK((char *)NETMAP_RXRING(&u.nifp, 0) == u.room + 4000);
	CHECK((char *)NETMAP_RXRING(&u.nifp, 3) == u.room + 7000);
	CHECK((char *)NETMAP_IF(u.room, 40) == u.room + 40);
}

RULE("6-nm_pkt_copy", "nm_pkt_copy copies packets of every length")
{
	char from[2048 + 64], to[2048 + 64];
	int len, i;

	for (i = 0; i < (int)sizeof(from); i++)
		from[i] = (char)(i * 7 + i / 256);
	for (len = 0; len <= 2048; len++) {
		memset(to, 0, sizeof(to));
		nm_pkt_copy(from, to, len);
		CHECK(memcmp(from, to, (size_t)len) == 0);
	}
}

/* Returns how many lines a function writes to standard error. */
static int
stderr_lines(void (*what)(void))
{
	int ends[2], n = 0, i, before = dup(2);
	char text[4096];
	ssize_t got;

	CHECK_OK(pipe(ends));
	CHECK_OK(dup2(ends[1], 2));
	what();
	CHECK_OK(dup2(before, 2));
	close(ends[1]);
	got = read(ends[0], text, sizeof(text));
	for (i = 0; i < got; i++)
		n += text[i] == '\n';
	return n;
}

static void
log_one(void)
{
	D("one %d", 1);
	ND("none %d", 0);
}

static void
log_many(void)
{
	int i;

	for (i = 0; i < 20; i++)
		RD(5, "%d", i);
}

RULE("6-log", "D prints a line, ND none, RD at most the given number each second")
{
	int n = stderr_lines(log_one);

	CHECK_EQ(n, 1);
	n = stderr_lines(log_many);
	CHECK(n >= 5 && n <= 10);
}

RULE("6-csb", "the helpers of control blocks write head and cur, and read hwtail and hwcur")
{
	struct nm_csb_atok atok = { 0 };
	struct nm_csb_ktoa ktoa = { .hwcur = 3, .hwtail = 9 };
	uint32_t hwcur = 0, hwtail = 0;

	nm_sync_kloop_appl_write(&atok, 5, 4);
	CHECK_EQ(atok.cur, 5);
	CHECK_EQ(atok.head, 4);
	nm_sync_kloop_appl_read(&ktoa, &hwtail, &hwcur);
	CHECK_EQ(hwtail, 9);
	CHECK_EQ(hwcur, 3);
}

/* ---- nm_open and related functions */

static const char *
spec_of(const char *suffix)
{
	static char specs[4][NETMAP_REQ_IFNAMSIZ + 8];
	static unsigned int next;
	char *spec = specs[next++ % 4];

	snprintf(spec, sizeof(specs[0]), "netmap:%s", unique_name(suffix));
	return spec;
}

static struct nm_desc *
nm_opened(const char *suffix, const struct nmreq *req, uint64_t flags, const struct nm_desc *arg)
{
	struct nm_desc *d = nm_open(spec_of(suffix), req, flags, arg);

	if (d == NULL)
		rule_fails(__FILE__, __LINE__, "nm_open(%s): %s", spec_of(suffix), error_name(errno));
	return d;
}

RULE("6-nm_open", "nm_open registers and maps: the descriptor contains rings, buffers and the request")
{
	struct nm_desc *d = nm_opened("{1", NULL, 0, NULL);

#ifndef HAVE_NETMAP_WITH_LIBS
	rule_fails(__FILE__, __LINE__, "HAVE_NETMAP_WITH_LIBS is not defined");
#endif
	CHECK(IS_NETMAP_DESC(d) && d->self == d && P2NMD(d) == d && NETMAP_FD(d) >= 0);
	CHECK(d->done_mmap && d->mem != NULL && d->memsize == d->req.nr_memsize);
	CHECK((char *)d->nifp == (char *)d->mem + d->req.nr_offset);
	CHECK_EQ(d->first_tx_ring, 0);
	CHECK_EQ(d->last_tx_ring, 0);
	CHECK_EQ(d->first_rx_ring, 0);
	CHECK_EQ(d->last_rx_ring, 0);
	CHECK(d->some_ring != NULL && d->buf_start == NETMAP_BUF(d->some_ring, 0));
	CHECK(d->buf_end > d->buf_start);
	CHECK_EQ(d->req.nr_version, NETMAP_API);
	CHECK(d->req.nr_arg2 != 0);
}

RULE("6-nm_open-req", "nm_open starts with the given request")
{
	struct nmreq reg = { .nr_tx_slots = 64, .nr_rx_slots = 128, .nr_arg3 = 3 };
	struct nm_desc *d = nm_opened("{1", &reg, 0, NULL);

	CHECK_EQ(d->req.nr_tx_slots, 64);
	CHECK_EQ(d->req.nr_rx_slots, 128);
	CHECK_EQ(d->req.nr_arg3, 3);
	CHECK(d->nifp->ni_bufs_head != 0);
}

RULE("6-nm_open-parent", "nm_open uses the mapping of a parent in the same region, and nm_close does not unmap it")
{
	struct nm_desc *a = nm_opened("{1", NULL, 0, NULL), *b = nm_opened("}1", NULL, 0, a);

	CHECK(b->mem == a->mem && !b->done_mmap && b->nifp != a->nifp);
	CHECK_EQ(b->req.nr_arg1, 4);
	CHECK_EQ(nm_close(b), 0);
	*(volatile char *)NETMAP_BUF(NETMAP_TXRING(a->nifp, 0), 2);
	CHECK_EQ(nm_close(a), 0);
}

RULE("6-nm_open-other-region", "nm_open with a parent in another region creates its own mapping")
{
	struct nm_desc *a = nm_opened("{1", NULL, 0, NULL), *b = nm_opened("x{1", NULL, 0, a);

	CHECK(b->mem != a->mem && b->done_mmap);
}

RULE("6-nm_open-NO_MMAP", "with NM_OPEN_NO_MMAP nm_open does not map")
{
	struct nm_desc *d = nm_opened("{1", NULL, NM_OPEN_NO_MMAP, NULL);

	CHECK(d->mem == NULL && !d->done_mmap);
	CHECK_EQ(nm_mmap(d, NULL), 0);
	CHECK(d->mem != NULL && d->done_mmap && NETMAP_TXRING(d->nifp, 0)->num_slots != 0);
}

RULE("6-nm_open-flags", "NM_OPEN_ARG1..3, RING_CFG and IFNAME copy these fields of the parent's request")
{
	struct nmreq reg = { .nr_tx_slots = 64, .nr_rx_slots = 128, .nr_tx_rings = 2, .nr_rx_rings = 3, .nr_arg1 = 9,
		.nr_arg3 = 3 };
	struct nm_desc *a = nm_opened("{1", &reg, 0, NULL), *b;

	b = nm_opened("x{1", NULL, NM_OPEN_ARG1 | NM_OPEN_ARG2 | NM_OPEN_ARG3 | NM_OPEN_RING_CFG, a);
	CHECK_EQ(b->req.nr_arg1, 9);
	CHECK_EQ(b->req.nr_arg2, a->req.nr_arg2);
	CHECK_EQ(b->req.nr_arg3, 3);
	CHECK_EQ(b->req.nr_tx_slots, 64);
	CHECK_EQ(b->req.nr_rx_slots, 128);
	CHECK_EQ(b->req.nr_tx_rings, 2);
	CHECK_EQ(b->req.nr_rx_rings, 3);
	b = nm_opened("y{1", NULL, NM_OPEN_IFNAME, a);
	CHECK(strcmp(b->req.nr_name, unique_name("{1")) == 0);
}

RULE("6-nm_open-T", "without rx rings last_rx_ring is below first_rx_ring, and nothing is received")
{
	struct nm_desc *d = nm_opened("{1/T", NULL, 0, NULL);
	struct nm_pkthdr h;

	CHECK_EQ(d->first_tx_ring, 0);
	CHECK(d->first_rx_ring > d->last_rx_ring);
	CHECK(nm_nextpkt(d, &h) == NULL);
}

RULE("6-nm_open-fails", "if the daemon refuses, nm_open returns NULL with its errno")
{
	errno = 0;
	CHECK(nm_open("netmap:there-is-none", NULL, 0, NULL) == NULL);
	nm_open("netmap:there-is-none", NULL, 0, NULL);
	CHECK_EQ(errno, ENXIO);
}

RULE("6-nm_close", "nm_close unmaps and closes; an invalid descriptor: EINVAL")
{
	struct nm_desc *d = nm_opened("{1", NULL, 0, NULL);
	int fd = d->fd;

	CHECK_EQ(nm_close(d), 0);
	CHECK_ERRNO(EBADF, fcntl(fd, F_GETFD));
	CHECK_EQ(nm_close(NULL), EINVAL);
}

RULE("6-nm_inject", "nm_inject queues a packet and returns its bytes, or 0 if there is no room")
{
	struct nmreq small = { .nr_tx_slots = 8, .nr_rx_slots = 8 };
	struct nm_desc *a = nm_opened("{1", &small, 0, NULL), *b = nm_opened("}1", NULL, 0, a);
	struct nm_pkthdr h;
	int i;

	for (i = 0; i < 7; i++)
		CHECK_EQ(nm_inject(a, "0123456789", 10), 10);
	CHECK_EQ(nm_inject(a, "0123456789", 10), 0);
	CHECK_OK(ioctl(a->fd, NIOCTXSYNC, NULL));
	CHECK_OK(ioctl(b->fd, NIOCRXSYNC, NULL));
	for (i = 0; i < 7; i++) {
		unsigned char *buf = nm_nextpkt(b, &h);

		CHECK(buf != NULL && memcmp(buf, "0123456789", 10) == 0 && h.len == 10);
	}
	CHECK(nm_nextpkt(b, &h) == NULL);
}

RULE("6-nm_inject-long", "a packet longer than a buffer takes several slots with NS_MOREFRAG")
{
	struct nm_desc *a = nm_opened("{1", NULL, 0, NULL), *b = nm_opened("}1", NULL, 0, a);
	struct netmap_ring *ring = NETMAP_TXRING(a->nifp, 0);
	static char packet[5000];
	struct nm_pkthdr h;

	CHECK_EQ(nm_inject(a, packet, sizeof(packet)), sizeof(packet));
	CHECK_EQ(ring->head, 3);
	CHECK(ring->slot[0].len == 2048 && ring->slot[1].len == 2048 && ring->slot[2].len == 5000 - 4096);
	CHECK((ring->slot[0].flags & NS_MOREFRAG) && (ring->slot[1].flags & NS_MOREFRAG) &&
	    !(ring->slot[2].flags & NS_MOREFRAG));
	CHECK_OK(ioctl(a->fd, NIOCTXSYNC, NULL));
	CHECK_OK(ioctl(b->fd, NIOCRXSYNC, NULL));
	CHECK(nm_nextpkt(b, &h) != NULL);
	CHECK_EQ(h.len, 5000);
	CHECK_EQ(h.caplen, 2048);
	CHECK(nm_nextpkt(b, &h) == NULL);
}

RULE("6-nm_inject-rings", "nm_inject uses the next ring when one is full")
{
	struct nmreq two = { .nr_tx_slots = 8, .nr_rx_slots = 8, .nr_tx_rings = 2, .nr_rx_rings = 2 };
	struct nm_desc *a = nm_opened("{1", &two, 0, NULL);
	int i;

	for (i = 0; i < 14; i++)
		CHECK_EQ(nm_inject(a, "x", 1), 1);
	CHECK_EQ(nm_inject(a, "x", 1), 0);
	CHECK(nm_ring_empty(NETMAP_TXRING(a->nifp, 0)) && nm_ring_empty(NETMAP_TXRING(a->nifp, 1)));
}

static unsigned int seen, more;

static void
on_packet(u_char *arg, const struct nm_pkthdr *h, const u_char *buf)
{
	CHECK(arg == (u_char *)&seen);
	CHECK(buf == h->buf && h->slot->len == h->caplen && h->d != NULL);
	CHECK_EQ(*buf, seen);
	seen++;
	more += h->flags & NM_MORE_PKTS;
}

RULE("6-nm_dispatch",
    "nm_dispatch passes at most cnt packets (-1: all), returns how many, and sets NM_MORE_PKTS before the last")
{
	struct nm_desc *a = nm_opened("{1", NULL, 0, NULL), *b = nm_opened("}1", NULL, 0, a);
	unsigned char i;

	CHECK_EQ(nm_dispatch(b, -1, on_packet, (u_char *)&seen), 0);
	for (i = 0; i < 10; i++)
		CHECK_EQ(nm_inject(a, &i, 1), 1);
	CHECK_OK(ioctl(a->fd, NIOCTXSYNC, NULL));
	CHECK_OK(ioctl(b->fd, NIOCRXSYNC, NULL));
	CHECK_EQ(nm_dispatch(b, 4, on_packet, (u_char *)&seen), 4);
	CHECK_EQ(seen, 4);
	CHECK_EQ(nm_dispatch(b, -1, on_packet, (u_char *)&seen), 6);
	CHECK_EQ(seen, 10);
	CHECK_EQ(more, 8);
}

RULE("6-nm_nextpkt", "nm_nextpkt returns the packets of all rings one after the other")
{
	struct nmreq two = { .nr_tx_rings = 2, .nr_rx_rings = 2 };
	struct nm_desc *a = nm_opened("{1", &two, 0, NULL), *b = nm_opened("}1", NULL, 0, a);
	struct port p = { .nifp = a->nifp };
	struct nm_pkthdr h;
	unsigned char *buf;
	int ones = 0, twos = 0;

	put(tx_ring(&p, 0), "\1", 1, 0);
	put(tx_ring(&p, 1), "\2", 1, 0);
	put(tx_ring(&p, 1), "\2", 1, 0);
	CHECK_OK(ioctl(a->fd, NIOCTXSYNC, NULL));
	CHECK_OK(ioctl(b->fd, NIOCRXSYNC, NULL));
	while ((buf = nm_nextpkt(b, &h)) != NULL) {
		ones += *buf == 1;
		twos += *buf == 2;
		CHECK(h.d == b && h.len == 1);
	}
	CHECK_EQ(ones, 1);
	CHECK_EQ(twos, 2);
}

/* ---- libnetmap */

static char last_error[256];

static void
store_error(struct nmctx *ctx, const char *message)
{
	(void)ctx;
	snprintf(last_error, sizeof(last_error), "%s", message);
}

RULE("6-nmport_open", "nmport_open registers and maps; first and last ring are those that are bound")
{
	struct nmport_d *d = nmport_open(spec_of("{1-1/T@conf:rings=3,slots=32"));

	CHECK(d != NULL && d->register_done && d->mmap_done && d->fd >= 0 && d->nifp != NULL);
	CHECK_EQ(d->first_tx_ring, 1);
	CHECK_EQ(d->last_tx_ring, 1);
	CHECK_EQ(d->cur_tx_ring, 1);
	CHECK(d->last_rx_ring < d->first_rx_ring);
	CHECK_EQ(d->reg.nr_tx_slots, 32);
	CHECK(d->mem != NULL && d->mem->mem_id == d->reg.nr_mem_id && d->mem->size == d->reg.nr_memsize);
	nmport_close(d);
	nmport_close(NULL);
}

RULE("6-nmport-steps", "new, parse, register and mmap can be done and undone separately")
{
	struct port keeps_the_region = open_port(unique_name("{1"), ALL_RINGS);
	struct nmport_d *d = nmport_new();

	txsync(&keeps_the_region);
	nmctx_get()->error = store_error;
	CHECK(d != NULL && d->fd == -1 && d->nifp == NULL);
	CHECK_EQ(nmport_parse(d, spec_of("{1")), 0);
	CHECK(strcmp(d->hdr.nr_name, unique_name("{1")) == 0 && d->fd == -1);
	CHECK(nmport_mmap(d) == -1);
	CHECK_EQ(nmport_register(d), 0);
	CHECK(d->fd >= 0 && d->register_done && d->nifp == NULL);
	CHECK(nmport_register(d) == -1);
	CHECK_EQ(nmport_mmap(d), 0);
	CHECK(d->nifp != NULL && d->mmap_done && nmport_mmap(d) == -1);
	nmport_undo_mmap(d);
	CHECK(d->nifp == NULL && !d->mmap_done && d->fd >= 0);
	CHECK_EQ(nmport_mmap(d), 0);
	nmport_undo_mmap(d);
	nmport_undo_register(d);
	CHECK(d->fd == -1 && !d->register_done);
	CHECK_EQ(nmport_open_desc(d), 0);
	CHECK(d->nifp != NULL);
	nmport_undo_open_desc(d);
	nmport_undo_parse(d);
	nmport_delete(d);
	CHECK(nmctx_get()->mem_descs == NULL);
}

RULE("6-nmport-prepare", "prepare is new and parse; a failure returns NULL or -1, and sets errno and a message")
{
	struct nmport_d *d;

	nmctx_get()->error = store_error;
	errno = 0;
	CHECK(nmport_prepare("nothing") == NULL && last_error[0] != '\0');
	d = nmport_prepare("netmap:there-is-none");
	CHECK(d != NULL);
	last_error[0] = '\0';
	CHECK_ERRNO(ENXIO, nmport_open_desc(d));
	CHECK(last_error[0] != '\0' && d->fd == -1);
	nmport_undo_prepare(d);
	errno = 0;
	CHECK(nmport_open("netmap:there-is-none") == NULL);
	nmport_open("netmap:there-is-none");
	CHECK_EQ(errno, ENXIO);
}

RULE("6-nmport-one-map", "ports of one region share one mapping, which is unmapped with the last of them")
{
	struct nmport_d *a = nmport_open(spec_of("{1")), *b = nmport_open(spec_of("}1"));

	CHECK(a != NULL && b != NULL && a->mem == b->mem);
	CHECK_EQ(a->mem->refcount, 2);
	nmport_close(a);
	CHECK_EQ(b->mem->refcount, 1);
	*(volatile char *)NETMAP_BUF(NETMAP_TXRING(b->nifp, 0), 2);
	nmport_close(b);
	CHECK(nmctx_get()->mem_descs == NULL);
}

RULE("6-nmport-inject", "nmport_inject queues a packet and returns its bytes, or 0 if there is no room")
{
	struct nmport_d *a = nmport_open(spec_of("{1@conf:slots=8")), *b = nmport_open(spec_of("}1"));
	static char packet[3000] = "long";
	struct netmap_ring *rx;
	int i;

	CHECK_EQ(nmport_inject(a, packet, sizeof(packet)), sizeof(packet));
	for (i = 0; i < 5; i++)
		CHECK_EQ(nmport_inject(a, "x", 1), 1);
	CHECK_EQ(nmport_inject(a, "x", 1), 0);
	CHECK_OK(ioctl(a->fd, NIOCTXSYNC));
	CHECK_OK(ioctl(b->fd, NIOCRXSYNC));
	rx = NETMAP_RXRING(b->nifp, 0);
	CHECK_EQ(nm_ring_space(rx), 7);
	CHECK(rx->slot[0].len == 2048 && rx->slot[1].len == 952 && rx->slot[2].len == 1);
}

RULE("6-nmport-clone", "a clone has the same name and is not open")
{
	struct nmport_d *d = nmport_open(spec_of("{1@conf:slots=8")), *c = nmport_clone(d);

	CHECK(c != NULL && c->fd == -1 && c->nifp == NULL && c->hdr.nr_body == (uintptr_t)&c->reg);
	CHECK(strcmp(c->hdr.nr_name, d->hdr.nr_name) == 0);
	CHECK_EQ(nmport_open_desc(c), 0);
	CHECK(c->mem == d->mem && c->fd != d->fd);
	nmport_close(d);
	nmport_close(c);
}

RULE("6-nmport-extmem", "nmport_extmem adds the option, once and only before the port is registered")
{
	static char memory[1 << 16];
	struct nmport_d *d = nmport_prepare(spec_of("{1"));

	nmctx_get()->error = store_error;
	CHECK(nmport_extmem_getinfo(d) == NULL);
	CHECK_EQ(nmport_extmem(d, memory, sizeof(memory)), 0);
	CHECK_EQ(nmport_extmem_getinfo(d)->nr_memsize, sizeof(memory));
	CHECK(nmreq_find_option(&d->hdr, NETMAP_REQ_OPT_EXTMEM) == &d->extmem->nro_opt);
	CHECK(nmport_extmem(d, memory, sizeof(memory)) == -1);
	nmport_undo_prepare(d);
	d = nmport_open(spec_of("{1"));
	CHECK(d != NULL && nmport_extmem(d, memory, sizeof(memory)) == -1);
}

RULE("6-nmport-offset", "nmport_offset adds the option with its four values")
{
	struct nmport_d *d = nmport_prepare(spec_of("{1"));
	struct nmreq_opt_offsets *o;

	CHECK_EQ(nmport_offset(d, 32, 128, 16, 8), 0);
	o = (struct nmreq_opt_offsets *)(void *)nmreq_find_option(&d->hdr, NETMAP_REQ_OPT_OFFSETS);
	CHECK(o != NULL);
	CHECK_EQ(o->nro_initial_offset, 32);
	CHECK_EQ(o->nro_max_offset, 128);
	CHECK_EQ(o->nro_offset_bits, 16);
	CHECK_EQ(o->nro_min_gap, 8);
	nmport_undo_prepare(d);
}

RULE("6-enable_option", "enabling an unknown option fails")
{
	CHECK(nmport_enable_option("nothing") == -1);
	CHECK_EQ(nmport_enable_option("offset"), 0);
	nmport_disable_option("offset");
	nmport_disable_option("nothing");
}

RULE("6-nmreq-options", "options of a request can be pushed, found, walked, removed and named")
{
	struct nmreq_option one = { .nro_reqtype = NETMAP_REQ_OPT_CSB }, two = { .nro_reqtype = NETMAP_REQ_OPT_OFFSETS };
	struct nmreq_option *o, *heap = calloc(1, sizeof(*heap));
	struct nmreq_header hdr;
	struct nmreq_register reg;
	int n = 0;

	nmreq_header_init(&hdr, NETMAP_REQ_REGISTER, &reg);
	CHECK(hdr.nr_version == NETMAP_API && hdr.nr_reqtype == NETMAP_REQ_REGISTER && hdr.nr_reserved == 0);
	CHECK(hdr.nr_body == (uintptr_t)&reg && hdr.nr_options == 0 && hdr.nr_name[0] == '\0');
	CHECK(nmreq_find_option(&hdr, NETMAP_REQ_OPT_CSB) == NULL);
	nmreq_push_option(&hdr, &one);
	nmreq_push_option(&hdr, &two);
	nmreq_foreach_option(&hdr, o)
		n++;
	CHECK_EQ(n, 2);
	CHECK(nmreq_find_option(&hdr, NETMAP_REQ_OPT_CSB) == &one);
	nmreq_remove_option(&hdr, &one);
	CHECK(nmreq_find_option(&hdr, NETMAP_REQ_OPT_CSB) == NULL && hdr.nr_options == (uintptr_t)&two);
	nmreq_remove_option(&hdr, &two);
	heap->nro_reqtype = NETMAP_REQ_OPT_CSB;
	nmreq_push_option(&hdr, heap);
	nmreq_free_options(&hdr);
	CHECK_EQ(hdr.nr_options, 0);
	for (n = 1; n < NETMAP_REQ_OPT_MAX; n++)
		CHECK(nmreq_option_name((uint32_t)n) != NULL && nmreq_option_name((uint32_t)n)[0] != '\0');
	CHECK(nmreq_option_name(77) != NULL);
}

RULE("6-nmreq-decode", "the decoders advance their pointer past what they have parsed")
{
	const char *at = "netmap:lan{1-2/x@conf:slots=1";
	struct nmreq_header hdr;
	struct nmreq_register reg;

	memset(&reg, 0, sizeof(reg));
	nmreq_header_init(&hdr, NETMAP_REQ_REGISTER, &reg);
	CHECK_EQ(nmreq_header_decode(&at, &hdr, nmctx_get()), 0);
	CHECK(strcmp(hdr.nr_name, "lan{1") == 0 && strcmp(at, "-2/x@conf:slots=1") == 0);
	CHECK_EQ(nmreq_register_decode(&at, &reg, nmctx_get()), 0);
	CHECK(reg.nr_mode == NR_REG_ONE_NIC && reg.nr_ringid == 2 && strcmp(at, "@conf:slots=1") == 0);
}

static int
parse_two(struct nmreq_parse_ctx *p)
{
	CHECK(p->ctx == nmctx_get());
	snprintf(p->token, 64, "%s,%s", p->keys[0] != NULL ? p->keys[0] : "-", p->keys[1] != NULL ? p->keys[1] : "-");
	return 0;
}

RULE("6-nmreq-parsers", "a program can add parsers for its own options")
{
	struct nmreq_opt_parser p = { "mine", parse_two, 0, 2, 0, NULL,
		{ { "first", 0, NMREQ_OPTK_DEFAULT }, { "second", 1, NMREQ_OPTK_ALLOWEMPTY } } };
	char got[64];

	nmctx_get()->error = store_error;
	CHECK_EQ(nmreq_options_decode("@mine=7", &p, got, nmctx_get()), 0);
	CHECK(strcmp(got, "7,-") == 0);
	CHECK_EQ(nmreq_options_decode("@mine:first=a,second=b", &p, got, nmctx_get()), 0);
	CHECK(strcmp(got, "a,b") == 0);
	CHECK_ERRNO(EINVAL, nmreq_options_decode("@mine:third=a", &p, got, nmctx_get()));
	CHECK_ERRNO(EINVAL, nmreq_options_decode("@mine:first", &p, got, nmctx_get()));
	p.flags = NMREQ_OPTF_DISABLED;
	CHECK_ERRNO(EINVAL, nmreq_options_decode("@mine=7", &p, got, nmctx_get()));
}

RULE("6-nmreq_get_mem_id", "nmreq_get_mem_id returns the region of a named port")
{
	struct nmport_d *d = nmport_open(spec_of("{1"));
	const char *name = spec_of("{1");

	nmctx_get()->error = store_error;
	CHECK(d != NULL);
	CHECK_EQ(nmreq_get_mem_id(&name, nmctx_get()), d->reg.nr_mem_id);
	CHECK_EQ(*name, '\0');
	name = "netmap:there-is-none";
	CHECK_ERRNO(ENXIO, nmreq_get_mem_id(&name, nmctx_get()));
}

static size_t allocated, locked;

static void *
count_malloc(struct nmctx *ctx, size_t size)
{
	(void)ctx;
	allocated += size;
	return malloc(size);
}

static void
count_free(struct nmctx *ctx, void *p)
{
	(void)ctx;
	free(p);
}

static void
count_lock(struct nmctx *ctx, int take)
{
	(void)ctx;
	locked += (size_t)take;
}

RULE("6-nmctx", "a context has its own error, memory and lock callbacks, and can be the default")
{
	struct nmctx mine = { .error = store_error, .malloc = count_malloc, .free = count_free, .lock = count_lock };
	struct nmctx *before = nmctx_set_default(&mine);
	struct nmport_d *d;
	void *p;

	CHECK(before != NULL && before != &mine && nmctx_get() == &mine);
	d = nmport_open(spec_of("{1"));
	CHECK(d != NULL && d->ctx == &mine && allocated > 0 && locked > 0);
	nmport_close(d);
	nmctx_ferror(&mine, "%s %d", "seven", 7);
	CHECK(strcmp(last_error, "seven 7") == 0);
	p = nmctx_malloc(&mine, 8);
	CHECK(p != NULL);
	nmctx_free(&mine, p);
	nmctx_lock(&mine);
	nmctx_unlock(&mine);
	CHECK(nmctx_set_default(before) == &mine && nmctx_get() == before);
	nmctx_set_threadsafe();
	CHECK(nmctx_threadsafe);
}
