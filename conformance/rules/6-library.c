/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 6: what net/netmap_user.h and libnetmap.h do for a program.
 */
#include <stdarg.h>

#define NETMAP_WITH_LIBS
#include "port.h"

#include <libnetmap.h>

/* A ring of 8 slots that no port has. */
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

RULE("6-NETMAP_BUF", "NETMAP_BUF leads to a buffer, NETMAP_BUF_IDX back, from any byte of it")
{
	struct netmap_ring *ring = fake_ring(0, 0);

	HOLDS(NETMAP_BUF(ring, 0) == (char *)ring + 4096);
	HOLDS(NETMAP_BUF(ring, 5) == (char *)ring + 4096 + 5 * 2048);
	SAME(NETMAP_BUF_IDX(ring, NETMAP_BUF(ring, 5)), 5);
	SAME(NETMAP_BUF_IDX(ring, NETMAP_BUF(ring, 5) + 2047), 5);
	HOLDS(NETMAP_BUF(ring, 3000000) == (char *)ring + 4096 + 3000000ULL * 2048);
}

RULE("6-offsets", "NETMAP_ROFFSET and WOFFSET read and write ptr under the ring's mask, BUF_OFFSET adds it")
{
	struct netmap_ring *ring = fake_ring(0, 0);
	struct netmap_slot slot = { .buf_idx = 3, .ptr = 0xabcdef00000011 };

	SAME(NETMAP_ROFFSET(ring, &slot), 0x11);
	NETMAP_WOFFSET(ring, &slot, 0x1fe);
	SAME(slot.ptr, 0xabcdef000000fe);
	HOLDS(NETMAP_BUF_OFFSET(ring, &slot) == NETMAP_BUF(ring, 3) + 0xfe);
}

RULE("6-ring", "nm_ring_next, _empty, _space and nm_tx_pending, around the end of the ring")
{
	SAME(nm_ring_next(fake_ring(0, 0), 6), 7);
	SAME(nm_ring_next(fake_ring(0, 0), 7), 0);
	HOLDS(nm_ring_empty(fake_ring(3, 3)) && !nm_ring_empty(fake_ring(3, 4)));
	SAME(nm_ring_space(fake_ring(3, 3)), 0);
	SAME(nm_ring_space(fake_ring(3, 7)), 4);
	SAME(nm_ring_space(fake_ring(6, 2)), 4);
	HOLDS(!nm_tx_pending(fake_ring(0, 7)) && nm_tx_pending(fake_ring(1, 7)));
	HOLDS(!nm_tx_pending(fake_ring(5, 4)) && nm_tx_pending(fake_ring(5, 3)));
}

RULE("6-rings-of", "NETMAP_TXRING and RXRING go by ring_ofs, host rings behind the port's own")
{
	union {
		struct netmap_if nifp;
		char room[56 + 10 * sizeof(ssize_t)];
	} u;
	struct netmap_if start = { .ni_tx_rings = 2, .ni_rx_rings = 3, .ni_host_tx_rings = 1, .ni_host_rx_rings = 1 };
	ssize_t ofs[] = { 1000, 2000, 3000, 4000, 5000, 6000, 7000 };

	memcpy(&u, &start, sizeof(start));
	memcpy(u.room + 56, ofs, sizeof(ofs));
	HOLDS((char *)NETMAP_TXRING(&u.nifp, 1) == u.room + 2000);
	HOLDS((char *)NETMAP_TXRING(&u.nifp, 2) == u.room + 3000);
	HOLDS((char *)NETMAP_RXRING(&u.nifp, 0) == u.room + 4000);
	HOLDS((char *)NETMAP_RXRING(&u.nifp, 3) == u.room + 7000);
	HOLDS((char *)NETMAP_IF(u.room, 40) == u.room + 40);
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
		HOLDS(memcmp(from, to, (size_t)len) == 0);
	}
}

/* What is written to standard error meanwhile, in lines. */
static int
lines_of(void (*what)(void))
{
	int ends[2], n = 0, i, before = dup(2);
	char text[4096];
	ssize_t got;

	WORKS(pipe(ends));
	WORKS(dup2(ends[1], 2));
	what();
	WORKS(dup2(before, 2));
	close(ends[1]);
	got = read(ends[0], text, sizeof(text));
	for (i = 0; i < got; i++)
		n += text[i] == '\n';
	return n;
}

static void
say_one(void)
{
	D("one %d", 1);
	ND("none %d", 0);
}

static void
say_many(void)
{
	int i;

	for (i = 0; i < 20; i++)
		RD(5, "%d", i);
}

RULE("6-log", "D prints a line, ND none, RD at most so many each second")
{
	int n = lines_of(say_one);

	SAME(n, 1);
	n = lines_of(say_many);
	HOLDS(n >= 5 && n <= 10);
}

RULE("6-csb", "the helpers of control blocks write head and cur, and read hwtail and hwcur")
{
	struct nm_csb_atok atok = { 0 };
	struct nm_csb_ktoa ktoa = { .hwcur = 3, .hwtail = 9 };
	uint32_t hwcur = 0, hwtail = 0;

	nm_sync_kloop_appl_write(&atok, 5, 4);
	SAME(atok.cur, 5);
	SAME(atok.head, 4);
	nm_sync_kloop_appl_read(&ktoa, &hwtail, &hwcur);
	SAME(hwtail, 9);
	SAME(hwcur, 3);
}

/* ---- nm_open and its kin */

static const char *
spec_of(const char *suffix)
{
	static char specs[4][NETMAP_REQ_IFNAMSIZ + 8];
	static unsigned int next;
	char *spec = specs[next++ % 4];

	snprintf(spec, sizeof(specs[0]), "netmap:%s", own(suffix));
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

RULE("6-nm_open", "nm_open registers and maps: rings, buffers and the request are in the descriptor")
{
	struct nm_desc *d = nm_opened("{1", NULL, 0, NULL);

#ifndef HAVE_NETMAP_WITH_LIBS
	rule_fails(__FILE__, __LINE__, "HAVE_NETMAP_WITH_LIBS is not defined");
#endif
	HOLDS(IS_NETMAP_DESC(d) && d->self == d && P2NMD(d) == d && NETMAP_FD(d) >= 0);
	HOLDS(d->done_mmap && d->mem != NULL && d->memsize == d->req.nr_memsize);
	HOLDS((char *)d->nifp == (char *)d->mem + d->req.nr_offset);
	SAME(d->first_tx_ring, 0);
	SAME(d->last_tx_ring, 0);
	SAME(d->first_rx_ring, 0);
	SAME(d->last_rx_ring, 0);
	HOLDS(d->some_ring != NULL && d->buf_start == NETMAP_BUF(d->some_ring, 0));
	HOLDS(d->buf_end > d->buf_start);
	SAME(d->req.nr_version, NETMAP_API);
	HOLDS(d->req.nr_arg2 != 0);
}

RULE("6-nm_open-req", "the request given is where nm_open begins")
{
	struct nmreq wish = { .nr_tx_slots = 64, .nr_rx_slots = 128, .nr_arg3 = 3 };
	struct nm_desc *d = nm_opened("{1", &wish, 0, NULL);

	SAME(d->req.nr_tx_slots, 64);
	SAME(d->req.nr_rx_slots, 128);
	SAME(d->req.nr_arg3, 3);
	HOLDS(d->nifp->ni_bufs_head != 0);
}

RULE("6-nm_open-parent", "with a parent of the same region its mapping is used, and closing it is the parent's")
{
	struct nm_desc *a = nm_opened("{1", NULL, 0, NULL), *b = nm_opened("}1", NULL, 0, a);

	HOLDS(b->mem == a->mem && !b->done_mmap && b->nifp != a->nifp);
	SAME(b->req.nr_arg1, 4);
	SAME(nm_close(b), 0);
	*(volatile char *)NETMAP_BUF(NETMAP_TXRING(a->nifp, 0), 2);
	SAME(nm_close(a), 0);
}

RULE("6-nm_open-other-region", "with a parent of another region there is a mapping of its own")
{
	struct nm_desc *a = nm_opened("{1", NULL, 0, NULL), *b = nm_opened("x{1", NULL, 0, a);

	HOLDS(b->mem != a->mem && b->done_mmap);
}

RULE("6-nm_open-NO_MMAP", "NM_OPEN_NO_MMAP leaves the mapping to the program")
{
	struct nm_desc *d = nm_opened("{1", NULL, NM_OPEN_NO_MMAP, NULL);

	HOLDS(d->mem == NULL && !d->done_mmap);
	SAME(nm_mmap(d, NULL), 0);
	HOLDS(d->mem != NULL && d->done_mmap && NETMAP_TXRING(d->nifp, 0)->num_slots != 0);
}

RULE("6-nm_open-flags", "NM_OPEN_ARG1..3 and RING_CFG take these fields of the parent's request, IFNAME its name")
{
	struct nmreq wish = { .nr_tx_slots = 64, .nr_rx_slots = 128, .nr_tx_rings = 2, .nr_rx_rings = 3, .nr_arg1 = 9,
		.nr_arg3 = 3 };
	struct nm_desc *a = nm_opened("{1", &wish, 0, NULL), *b;

	b = nm_opened("x{1", NULL, NM_OPEN_ARG1 | NM_OPEN_ARG2 | NM_OPEN_ARG3 | NM_OPEN_RING_CFG, a);
	SAME(b->req.nr_arg1, 9);
	SAME(b->req.nr_arg2, a->req.nr_arg2);
	SAME(b->req.nr_arg3, 3);
	SAME(b->req.nr_tx_slots, 64);
	SAME(b->req.nr_rx_slots, 128);
	SAME(b->req.nr_tx_rings, 2);
	SAME(b->req.nr_rx_rings, 3);
	b = nm_opened("y{1", NULL, NM_OPEN_IFNAME, a);
	HOLDS(strcmp(b->req.nr_name, own("{1")) == 0);
}

RULE("6-nm_open-T", "of a file without rx rings the last is before the first, and nothing is received")
{
	struct nm_desc *d = nm_opened("{1/T", NULL, 0, NULL);
	struct nm_pkthdr h;

	SAME(d->first_tx_ring, 0);
	HOLDS(d->first_rx_ring > d->last_rx_ring);
	HOLDS(nm_nextpkt(d, &h) == NULL);
}

RULE("6-nm_open-fails", "what the daemon refuses: NULL and its errno")
{
	errno = 0;
	HOLDS(nm_open("netmap:there-is-none", NULL, 0, NULL) == NULL);
	nm_open("netmap:there-is-none", NULL, 0, NULL);
	SAME(errno, ENXIO);
}

RULE("6-nm_close", "nm_close unmaps and closes; of no descriptor: EINVAL")
{
	struct nm_desc *d = nm_opened("{1", NULL, 0, NULL);
	int fd = d->fd;

	SAME(nm_close(d), 0);
	REFUSED(EBADF, fcntl(fd, F_GETFD));
	SAME(nm_close(NULL), EINVAL);
}

RULE("6-nm_inject", "nm_inject queues a packet and returns its bytes, 0 where there is no room")
{
	struct nmreq small = { .nr_tx_slots = 8, .nr_rx_slots = 8 };
	struct nm_desc *a = nm_opened("{1", &small, 0, NULL), *b = nm_opened("}1", NULL, 0, a);
	struct nm_pkthdr h;
	int i;

	for (i = 0; i < 7; i++)
		SAME(nm_inject(a, "0123456789", 10), 10);
	SAME(nm_inject(a, "0123456789", 10), 0);
	WORKS(ioctl(a->fd, NIOCTXSYNC, NULL));
	WORKS(ioctl(b->fd, NIOCRXSYNC, NULL));
	for (i = 0; i < 7; i++) {
		unsigned char *buf = nm_nextpkt(b, &h);

		HOLDS(buf != NULL && memcmp(buf, "0123456789", 10) == 0 && h.len == 10);
	}
	HOLDS(nm_nextpkt(b, &h) == NULL);
}

RULE("6-nm_inject-long", "a packet longer than a buffer takes several slots with NS_MOREFRAG")
{
	struct nm_desc *a = nm_opened("{1", NULL, 0, NULL), *b = nm_opened("}1", NULL, 0, a);
	struct netmap_ring *ring = NETMAP_TXRING(a->nifp, 0);
	static char packet[5000];
	struct nm_pkthdr h;

	SAME(nm_inject(a, packet, sizeof(packet)), sizeof(packet));
	SAME(ring->head, 3);
	HOLDS(ring->slot[0].len == 2048 && ring->slot[1].len == 2048 && ring->slot[2].len == 5000 - 4096);
	HOLDS((ring->slot[0].flags & NS_MOREFRAG) && (ring->slot[1].flags & NS_MOREFRAG) &&
	    !(ring->slot[2].flags & NS_MOREFRAG));
	WORKS(ioctl(a->fd, NIOCTXSYNC, NULL));
	WORKS(ioctl(b->fd, NIOCRXSYNC, NULL));
	HOLDS(nm_nextpkt(b, &h) != NULL);
	SAME(h.len, 5000);
	SAME(h.caplen, 2048);
	HOLDS(nm_nextpkt(b, &h) == NULL);
}

RULE("6-nm_inject-rings", "nm_inject goes on with the next ring when one is full")
{
	struct nmreq two = { .nr_tx_slots = 8, .nr_rx_slots = 8, .nr_tx_rings = 2, .nr_rx_rings = 2 };
	struct nm_desc *a = nm_opened("{1", &two, 0, NULL);
	int i;

	for (i = 0; i < 14; i++)
		SAME(nm_inject(a, "x", 1), 1);
	SAME(nm_inject(a, "x", 1), 0);
	HOLDS(nm_ring_empty(NETMAP_TXRING(a->nifp, 0)) && nm_ring_empty(NETMAP_TXRING(a->nifp, 1)));
}

static unsigned int seen, more;

static void
on_packet(u_char *arg, const struct nm_pkthdr *h, const u_char *buf)
{
	HOLDS(arg == (u_char *)&seen);
	HOLDS(buf == h->buf && h->slot->len == h->caplen && h->d != NULL);
	SAME(*buf, seen);
	seen++;
	more += h->flags & NM_MORE_PKTS;
}

RULE("6-nm_dispatch", "nm_dispatch hands over at most cnt packets, all with -1, and says how many; more come: flagged")
{
	struct nm_desc *a = nm_opened("{1", NULL, 0, NULL), *b = nm_opened("}1", NULL, 0, a);
	unsigned char i;

	SAME(nm_dispatch(b, -1, on_packet, (u_char *)&seen), 0);
	for (i = 0; i < 10; i++)
		SAME(nm_inject(a, &i, 1), 1);
	WORKS(ioctl(a->fd, NIOCTXSYNC, NULL));
	WORKS(ioctl(b->fd, NIOCRXSYNC, NULL));
	SAME(nm_dispatch(b, 4, on_packet, (u_char *)&seen), 4);
	SAME(seen, 4);
	SAME(nm_dispatch(b, -1, on_packet, (u_char *)&seen), 6);
	SAME(seen, 10);
	SAME(more, 8);
}

RULE("6-nm_nextpkt", "nm_nextpkt gives the packets one after the other, of all rings")
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
	WORKS(ioctl(a->fd, NIOCTXSYNC, NULL));
	WORKS(ioctl(b->fd, NIOCRXSYNC, NULL));
	while ((buf = nm_nextpkt(b, &h)) != NULL) {
		ones += *buf == 1;
		twos += *buf == 2;
		HOLDS(h.d == b && h.len == 1);
	}
	SAME(ones, 1);
	SAME(twos, 2);
}

/* ---- libnetmap */

static char said[256];

static void
keep(struct nmctx *ctx, const char *message)
{
	(void)ctx;
	snprintf(said, sizeof(said), "%s", message);
}

RULE("6-nmport_open", "nmport_open registers and maps; first and last rings are those that are bound")
{
	struct nmport_d *d = nmport_open(spec_of("{1-1/T@conf:rings=3,slots=32"));

	HOLDS(d != NULL && d->register_done && d->mmap_done && d->fd >= 0 && d->nifp != NULL);
	SAME(d->first_tx_ring, 1);
	SAME(d->last_tx_ring, 1);
	SAME(d->cur_tx_ring, 1);
	HOLDS(d->last_rx_ring < d->first_rx_ring);
	SAME(d->reg.nr_tx_slots, 32);
	HOLDS(d->mem != NULL && d->mem->mem_id == d->reg.nr_mem_id && d->mem->size == d->reg.nr_memsize);
	nmport_close(d);
	nmport_close(NULL);
}

RULE("6-nmport-steps", "new, parse, register and mmap can be done and undone one by one")
{
	struct port keeps_the_region = open_port(own("{1"), ANY);
	struct nmport_d *d = nmport_new();

	txsync(&keeps_the_region);
	nmctx_get()->error = keep;
	HOLDS(d != NULL && d->fd == -1 && d->nifp == NULL);
	SAME(nmport_parse(d, spec_of("{1")), 0);
	HOLDS(strcmp(d->hdr.nr_name, own("{1")) == 0 && d->fd == -1);
	HOLDS(nmport_mmap(d) == -1);
	SAME(nmport_register(d), 0);
	HOLDS(d->fd >= 0 && d->register_done && d->nifp == NULL);
	HOLDS(nmport_register(d) == -1);
	SAME(nmport_mmap(d), 0);
	HOLDS(d->nifp != NULL && d->mmap_done && nmport_mmap(d) == -1);
	nmport_undo_mmap(d);
	HOLDS(d->nifp == NULL && !d->mmap_done && d->fd >= 0);
	SAME(nmport_mmap(d), 0);
	nmport_undo_mmap(d);
	nmport_undo_register(d);
	HOLDS(d->fd == -1 && !d->register_done);
	SAME(nmport_open_desc(d), 0);
	HOLDS(d->nifp != NULL);
	nmport_undo_open_desc(d);
	nmport_undo_parse(d);
	nmport_delete(d);
	HOLDS(nmctx_get()->mem_descs == NULL);
}

RULE("6-nmport-prepare", "prepare is new and parse; a failure anywhere: NULL or -1, errno, and a sentence")
{
	struct nmport_d *d;

	nmctx_get()->error = keep;
	errno = 0;
	HOLDS(nmport_prepare("nothing") == NULL && said[0] != '\0');
	d = nmport_prepare("netmap:there-is-none");
	HOLDS(d != NULL);
	said[0] = '\0';
	REFUSED(ENXIO, nmport_open_desc(d));
	HOLDS(said[0] != '\0' && d->fd == -1);
	nmport_undo_prepare(d);
	errno = 0;
	HOLDS(nmport_open("netmap:there-is-none") == NULL);
	nmport_open("netmap:there-is-none");
	SAME(errno, ENXIO);
}

RULE("6-nmport-one-map", "ports of one region have one mapping, which goes with the last")
{
	struct nmport_d *a = nmport_open(spec_of("{1")), *b = nmport_open(spec_of("}1"));

	HOLDS(a != NULL && b != NULL && a->mem == b->mem);
	SAME(a->mem->refcount, 2);
	nmport_close(a);
	SAME(b->mem->refcount, 1);
	*(volatile char *)NETMAP_BUF(NETMAP_TXRING(b->nifp, 0), 2);
	nmport_close(b);
	HOLDS(nmctx_get()->mem_descs == NULL);
}

RULE("6-nmport-inject", "nmport_inject queues a packet and returns its bytes, 0 where there is no room")
{
	struct nmport_d *a = nmport_open(spec_of("{1@conf:slots=8")), *b = nmport_open(spec_of("}1"));
	static char packet[3000] = "long";
	struct netmap_ring *rx;
	int i;

	SAME(nmport_inject(a, packet, sizeof(packet)), sizeof(packet));
	for (i = 0; i < 5; i++)
		SAME(nmport_inject(a, "x", 1), 1);
	SAME(nmport_inject(a, "x", 1), 0);
	WORKS(ioctl(a->fd, NIOCTXSYNC));
	WORKS(ioctl(b->fd, NIOCRXSYNC));
	rx = NETMAP_RXRING(b->nifp, 0);
	SAME(nm_ring_space(rx), 7);
	HOLDS(rx->slot[0].len == 2048 && rx->slot[1].len == 952 && rx->slot[2].len == 1);
}

RULE("6-nmport-clone", "a clone is another port of the same name, not open yet")
{
	struct nmport_d *d = nmport_open(spec_of("{1@conf:slots=8")), *c = nmport_clone(d);

	HOLDS(c != NULL && c->fd == -1 && c->nifp == NULL && c->hdr.nr_body == (uintptr_t)&c->reg);
	HOLDS(strcmp(c->hdr.nr_name, d->hdr.nr_name) == 0);
	SAME(nmport_open_desc(c), 0);
	HOLDS(c->mem == d->mem && c->fd != d->fd);
	nmport_close(d);
	nmport_close(c);
}

RULE("6-nmport-extmem", "nmport_extmem adds the option, once and before the port is registered")
{
	static char memory[1 << 16];
	struct nmport_d *d = nmport_prepare(spec_of("{1"));

	nmctx_get()->error = keep;
	HOLDS(nmport_extmem_getinfo(d) == NULL);
	SAME(nmport_extmem(d, memory, sizeof(memory)), 0);
	SAME(nmport_extmem_getinfo(d)->nr_memsize, sizeof(memory));
	HOLDS(nmreq_find_option(&d->hdr, NETMAP_REQ_OPT_EXTMEM) == &d->extmem->nro_opt);
	HOLDS(nmport_extmem(d, memory, sizeof(memory)) == -1);
	nmport_undo_prepare(d);
	d = nmport_open(spec_of("{1"));
	HOLDS(d != NULL && nmport_extmem(d, memory, sizeof(memory)) == -1);
}

RULE("6-nmport-offset", "nmport_offset adds the option with its four values")
{
	struct nmport_d *d = nmport_prepare(spec_of("{1"));
	struct nmreq_opt_offsets *o;

	SAME(nmport_offset(d, 32, 128, 16, 8), 0);
	o = (struct nmreq_opt_offsets *)(void *)nmreq_find_option(&d->hdr, NETMAP_REQ_OPT_OFFSETS);
	HOLDS(o != NULL);
	SAME(o->nro_initial_offset, 32);
	SAME(o->nro_max_offset, 128);
	SAME(o->nro_offset_bits, 16);
	SAME(o->nro_min_gap, 8);
	nmport_undo_prepare(d);
}

RULE("6-enable_option", "an option that does not exist cannot be enabled")
{
	HOLDS(nmport_enable_option("nothing") == -1);
	SAME(nmport_enable_option("offset"), 0);
	nmport_disable_option("offset");
	nmport_disable_option("nothing");
}

RULE("6-nmreq-options", "options of a request are pushed, found, walked, removed and named")
{
	struct nmreq_option one = { .nro_reqtype = NETMAP_REQ_OPT_CSB }, two = { .nro_reqtype = NETMAP_REQ_OPT_OFFSETS };
	struct nmreq_option *o, *heap = calloc(1, sizeof(*heap));
	struct nmreq_header hdr;
	struct nmreq_register reg;
	int n = 0;

	nmreq_header_init(&hdr, NETMAP_REQ_REGISTER, &reg);
	HOLDS(hdr.nr_version == NETMAP_API && hdr.nr_reqtype == NETMAP_REQ_REGISTER && hdr.nr_reserved == 0);
	HOLDS(hdr.nr_body == (uintptr_t)&reg && hdr.nr_options == 0 && hdr.nr_name[0] == '\0');
	HOLDS(nmreq_find_option(&hdr, NETMAP_REQ_OPT_CSB) == NULL);
	nmreq_push_option(&hdr, &one);
	nmreq_push_option(&hdr, &two);
	nmreq_foreach_option(&hdr, o)
		n++;
	SAME(n, 2);
	HOLDS(nmreq_find_option(&hdr, NETMAP_REQ_OPT_CSB) == &one);
	nmreq_remove_option(&hdr, &one);
	HOLDS(nmreq_find_option(&hdr, NETMAP_REQ_OPT_CSB) == NULL && hdr.nr_options == (uintptr_t)&two);
	nmreq_remove_option(&hdr, &two);
	heap->nro_reqtype = NETMAP_REQ_OPT_CSB;
	nmreq_push_option(&hdr, heap);
	nmreq_free_options(&hdr);
	SAME(hdr.nr_options, 0);
	for (n = 1; n < NETMAP_REQ_OPT_MAX; n++)
		HOLDS(nmreq_option_name((uint32_t)n) != NULL && nmreq_option_name((uint32_t)n)[0] != '\0');
	HOLDS(nmreq_option_name(77) != NULL);
}

RULE("6-nmreq-decode", "the decoders move their pointer behind what they read")
{
	const char *at = "netmap:lan{1-2/x@conf:slots=1";
	struct nmreq_header hdr;
	struct nmreq_register reg;

	memset(&reg, 0, sizeof(reg));
	nmreq_header_init(&hdr, NETMAP_REQ_REGISTER, &reg);
	SAME(nmreq_header_decode(&at, &hdr, nmctx_get()), 0);
	HOLDS(strcmp(hdr.nr_name, "lan{1") == 0 && strcmp(at, "-2/x@conf:slots=1") == 0);
	SAME(nmreq_register_decode(&at, &reg, nmctx_get()), 0);
	HOLDS(reg.nr_mode == NR_REG_ONE_NIC && reg.nr_ringid == 2 && strcmp(at, "@conf:slots=1") == 0);
}

static int
parse_two(struct nmreq_parse_ctx *p)
{
	HOLDS(p->ctx == nmctx_get());
	snprintf(p->token, 64, "%s,%s", p->keys[0] != NULL ? p->keys[0] : "-", p->keys[1] != NULL ? p->keys[1] : "-");
	return 0;
}

RULE("6-nmreq-parsers", "a program can bring parsers for options of its own")
{
	struct nmreq_opt_parser p = { "mine", parse_two, 0, 2, 0, NULL,
		{ { "first", 0, NMREQ_OPTK_DEFAULT }, { "second", 1, NMREQ_OPTK_ALLOWEMPTY } } };
	char got[64];

	nmctx_get()->error = keep;
	SAME(nmreq_options_decode("@mine=7", &p, got, nmctx_get()), 0);
	HOLDS(strcmp(got, "7,-") == 0);
	SAME(nmreq_options_decode("@mine:first=a,second=b", &p, got, nmctx_get()), 0);
	HOLDS(strcmp(got, "a,b") == 0);
	REFUSED(EINVAL, nmreq_options_decode("@mine:third=a", &p, got, nmctx_get()));
	REFUSED(EINVAL, nmreq_options_decode("@mine:first", &p, got, nmctx_get()));
	p.flags = NMREQ_OPTF_DISABLED;
	REFUSED(EINVAL, nmreq_options_decode("@mine=7", &p, got, nmctx_get()));
}

RULE("6-nmreq_get_mem_id", "nmreq_get_mem_id tells the region of a port by its name")
{
	struct nmport_d *d = nmport_open(spec_of("{1"));
	const char *name = spec_of("{1");

	nmctx_get()->error = keep;
	HOLDS(d != NULL);
	SAME(nmreq_get_mem_id(&name, nmctx_get()), d->reg.nr_mem_id);
	SAME(*name, '\0');
	name = "netmap:there-is-none";
	REFUSED(ENXIO, nmreq_get_mem_id(&name, nmctx_get()));
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

RULE("6-nmctx", "a context brings its own messages, memory and lock, and can be the default")
{
	struct nmctx mine = { .error = keep, .malloc = count_malloc, .free = count_free, .lock = count_lock };
	struct nmctx *before = nmctx_set_default(&mine);
	struct nmport_d *d;
	void *p;

	HOLDS(before != NULL && before != &mine && nmctx_get() == &mine);
	d = nmport_open(spec_of("{1"));
	HOLDS(d != NULL && d->ctx == &mine && allocated > 0 && locked > 0);
	nmport_close(d);
	nmctx_ferror(&mine, "%s %d", "seven", 7);
	HOLDS(strcmp(said, "seven 7") == 0);
	p = nmctx_malloc(&mine, 8);
	HOLDS(p != NULL);
	nmctx_free(&mine, p);
	nmctx_lock(&mine);
	nmctx_unlock(&mine);
	HOLDS(nmctx_set_default(before) == &mine && nmctx_get() == before);
	nmctx_set_threadsafe();
	HOLDS(nmctx_threadsafe);
}
