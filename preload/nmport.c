/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Ports of libnetmap.h: parse, register, map, and undo each. nmreq.c parses the names.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <libnetmap.h>

#include "nmreq.h"

/*
 * ---------------------------------------------------------- open and close
 */
struct nmport_cleanup_d {
	struct nmport_cleanup_d *next;
	void (*run)(struct nmport_cleanup_d *, struct nmport_d *);
};

static int
fail(struct nmport_d *d, int error, const char *what)
{
	nmctx_ferror(d->ctx, "%s: %s: %s", d->hdr.nr_name, what, strerror(error));
	errno = error;
	return -1;
}

static void
init_request(struct nmport_d *d)
{
	memset(&d->reg, 0, sizeof(d->reg));
	nmreq_header_init(&d->hdr, NETMAP_REQ_REGISTER, &d->reg);
}

struct nmport_d *
nmport_new(void)
{
	struct nmctx *ctx = nmctx_get();
	struct nmport_d *d = nmctx_malloc(ctx, sizeof(*d));

	if (d == NULL)
		return NULL;
	memset(d, 0, sizeof(*d));
	init_request(d);
	d->ctx = ctx;
	d->fd = -1;
	return d;
}

void
nmport_delete(struct nmport_d *d)
{
	nmctx_free(d->ctx, d);
}

void
nmport_undo_parse(struct nmport_d *d)
{
	while (d->clist != NULL) {
		struct nmport_cleanup_d *c = d->clist;

		d->clist = c->next;
		c->run(c, d);
		nmctx_free(d->ctx, c);
	}
	init_request(d);
}

int
nmport_parse(struct nmport_d *d, const char *portspec)
{
	const char *at = portspec;
	int error;

	init_request(d);
	if (nmreq_header_decode(&at, &d->hdr, d->ctx) == 0 && nmreq_register_decode(&at, &d->reg, d->ctx) == 0 &&
	    nmreq_options_decode(at, unetmap_option_parsers(), d, d->ctx) == 0)
		return 0;
	error = errno;
	nmport_undo_parse(d);
	errno = error;
	return -1;
}

struct nmport_d *
nmport_prepare(const char *portspec)
{
	struct nmport_d *d = nmport_new();

	if (d != NULL && nmport_parse(d, portspec) != 0) {
		int error = errno;

		nmport_delete(d);
		errno = error;
		d = NULL;
	}
	return d;
}

void
nmport_undo_prepare(struct nmport_d *d)
{
	nmport_undo_parse(d);
	nmport_delete(d);
}

int
nmport_register(struct nmport_d *d)
{
	struct nmreq_option *option;
	int error;

	if (d->register_done)
		return fail(d, EINVAL, "already registered (call nmport_undo_register first)");
	d->fd = open(NETMAP_DEVICE_NAME, O_RDWR);
	if (d->fd < 0)
		return fail(d, errno, NETMAP_DEVICE_NAME);
	if (ioctl(d->fd, NIOCCTRL, &d->hdr) == 0) {
		d->register_done = 1;
		return 0;
	}
	error = errno;
	nmreq_foreach_option(&d->hdr, option)
		if (option->nro_status != 0)
			nmctx_ferror(d->ctx, "%s: option %s: %s", d->hdr.nr_name,
			    nmreq_option_name(option->nro_reqtype), strerror((int)option->nro_status));
	nmport_undo_register(d);
	return fail(d, error, "cannot be opened");
}

void
nmport_undo_register(struct nmport_d *d)
{
	if (d->fd >= 0)
		close(d->fd);
	d->fd = -1;
	d->register_done = 0;
}

/* Returns the mapping of the port's region, made now if no port of the context has one. Called with the lock held. */
static struct nmem_d *
get_region(struct nmport_d *d)
{
	struct nmctx *ctx = d->ctx;
	struct nmem_d *m;

	for (m = ctx->mem_descs; m != NULL; m = m->next)
		if (m->mem_id == d->reg.nr_mem_id) {
			m->refcount++;
			return m;
		}
	m = nmctx_malloc(ctx, sizeof(*m));
	if (m == NULL)
		return NULL;
	memset(m, 0, sizeof(*m));
	m->mem_id = d->reg.nr_mem_id;
	m->refcount = 1;
	m->size = d->reg.nr_memsize;
	if (d->extmem != NULL) {
		m->mem = (void *)(uintptr_t)d->extmem->nro_usrptr;
		m->is_extmem = 1;
	} else {
		m->mem = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);
		if (m->mem == MAP_FAILED) {
			int error = errno;

			nmctx_free(ctx, m);
			errno = error;
			return NULL;
		}
	}
	m->next = ctx->mem_descs;
	if (m->next != NULL)
		m->next->prev = m;
	ctx->mem_descs = m;
	return m;
}

static void
put_region(struct nmport_d *d)
{
	struct nmem_d *m = d->mem;

	if (--m->refcount > 0)
		return;
	if (m->prev != NULL)
		m->prev->next = m->next;
	else
		d->ctx->mem_descs = m->next;
	if (m->next != NULL)
		m->next->prev = m->prev;
	if (!m->is_extmem)
		munmap(m->mem, m->size);
	nmctx_free(d->ctx, m);
}

/* Stores the first and the last bound ring of a direction; last < first if none is bound. */
static void
bound_rings(const ssize_t *ofs, uint32_t rings, uint16_t *from, uint16_t *to)
{
	uint32_t i = 0;

	while (i < rings && ofs[i] == 0)
		i++;
	*from = (uint16_t)i;
	while (i < rings && ofs[i] != 0)
		i++;
	*to = (uint16_t)(i - 1);
}

int
nmport_mmap(struct nmport_d *d)
{
	uint32_t tx, rx;
	int error;

	if (d->mmap_done)
		return fail(d, EINVAL, "already mapped (call nmport_undo_mmap first)");
	if (!d->register_done)
		return fail(d, ENXIO, "not registered yet (call nmport_register before nmport_mmap)");
	nmctx_lock(d->ctx);
	d->mem = get_region(d);
	error = errno;
	nmctx_unlock(d->ctx);
	if (d->mem == NULL)
		return fail(d, error, "its region cannot be mapped");
	d->nifp = NETMAP_IF(d->mem->mem, d->reg.nr_offset);
	tx = d->nifp->ni_tx_rings + d->nifp->ni_host_tx_rings;
	rx = d->nifp->ni_rx_rings + d->nifp->ni_host_rx_rings;
	bound_rings((const ssize_t *)d->nifp->ring_ofs, tx, &d->first_tx_ring, &d->last_tx_ring);
	bound_rings((const ssize_t *)d->nifp->ring_ofs + tx, rx, &d->first_rx_ring, &d->last_rx_ring);
	d->cur_tx_ring = d->first_tx_ring;
	d->cur_rx_ring = d->first_rx_ring;
	d->mmap_done = 1;
	return 0;
}

void
nmport_undo_mmap(struct nmport_d *d)
{
	if (!d->mmap_done)
		return;
	nmctx_lock(d->ctx);
	put_region(d);
	nmctx_unlock(d->ctx);
	d->mem = NULL;
	d->nifp = NULL;
	d->mmap_done = 0;
	d->first_tx_ring = d->first_rx_ring = 0;
	d->last_tx_ring = d->last_rx_ring = 0;
	d->cur_tx_ring = d->cur_rx_ring = 0;
}

int
nmport_open_desc(struct nmport_d *d)
{
	int error;

	if (nmport_register(d) != 0)
		return -1;
	if (nmport_mmap(d) == 0)
		return 0;
	error = errno;
	nmport_undo_register(d);
	errno = error;
	return -1;
}

void
nmport_undo_open_desc(struct nmport_d *d)
{
	nmport_undo_mmap(d);
	nmport_undo_register(d);
}

struct nmport_d *
nmport_open(const char *portspec)
{
	struct nmport_d *d = nmport_prepare(portspec);

	if (d != NULL && nmport_open_desc(d) != 0) {
		int error = errno;

		nmport_undo_prepare(d);
		errno = error;
		d = NULL;
	}
	return d;
}

void
nmport_close(struct nmport_d *d)
{
	if (d == NULL)
		return;
	nmport_undo_open_desc(d);
	nmport_undo_prepare(d);
}

struct nmport_d *
nmport_clone(struct nmport_d *d)
{
	struct nmport_d *c;

	/* Only one port can register the memory of an extmem option. */
	if (d->extmem != NULL && !d->register_done) {
		errno = EINVAL;
		return NULL;
	}
	c = nmport_new();
	if (c == NULL)
		return NULL;
	c->ctx = d->ctx;
	c->hdr = d->hdr;
	c->reg = d->reg;
	c->hdr.nr_options = 0;
	c->hdr.nr_body = (uintptr_t)&c->reg;
	return c;
}

int
nmport_inject(struct nmport_d *d, const void *buf, size_t size)
{
	uint32_t rings = (uint32_t)d->last_tx_ring - d->first_tx_ring + 1;

	if (d->first_tx_ring > d->last_tx_ring)
		return 0;
	for (; rings > 0; rings--) {
		struct netmap_ring *ring = NETMAP_TXRING(d->nifp, d->cur_tx_ring);
		const char *from = buf;
		size_t room = 0, left = size;
		uint32_t i = ring->head, slots = 0, space = nm_ring_space(ring);

		while (slots < space && (slots == 0 || room < size)) {
			room += ring->nr_buf_size - (size_t)NETMAP_ROFFSET(ring, &ring->slot[i]);
			i = nm_ring_next(ring, i);
			slots++;
		}
		if (slots == 0 || room < size) {
			d->cur_tx_ring = d->cur_tx_ring == d->last_tx_ring ? d->first_tx_ring : d->cur_tx_ring + 1;
			continue;
		}
		for (i = ring->head; slots > 0; slots--) {
			struct netmap_slot *slot = &ring->slot[i];
			size_t fits = ring->nr_buf_size - (size_t)NETMAP_ROFFSET(ring, slot);
			size_t part = left < fits ? left : fits;

			nm_pkt_copy(from, NETMAP_BUF_OFFSET(ring, slot), (int)part);
			slot->len = (uint16_t)part;
			slot->flags = slots > 1 ? NS_MOREFRAG : 0;
			from += part;
			left -= part;
			i = nm_ring_next(ring, i);
		}
		nm_move_head_(ring, i);
		return (int)size;
	}
	return 0;
}

/*
 * ----------------------------------------------------------------- options
 */
struct option_cleanup {
	struct nmport_cleanup_d up;
	struct nmreq_option *option;
	void *mapped;		/* memory to unmap, or NULL */
	size_t bytes;
};

static void
remove_option(struct nmport_cleanup_d *up, struct nmport_d *d)
{
	struct option_cleanup *c = (struct option_cleanup *)up;

	nmreq_remove_option(&d->hdr, c->option);
	if ((void *)d->extmem == (void *)c->option)
		d->extmem = NULL;
	nmctx_free(d->ctx, c->option);
	if (c->mapped != NULL)
		munmap(c->mapped, c->bytes);
}

/* Adds a zeroed option to the port, which nmport_undo_parse removes. Returns NULL with ENOMEM if there is no memory. */
static struct option_cleanup *
add_option(struct nmport_d *d, uint32_t type, size_t bytes)
{
	struct nmreq_option *option = nmctx_malloc(d->ctx, bytes);
	struct option_cleanup *c = nmctx_malloc(d->ctx, sizeof(*c));

	if (option == NULL || c == NULL) {
		nmctx_free(d->ctx, option);
		nmctx_free(d->ctx, c);
		errno = ENOMEM;
		return NULL;
	}
	memset(option, 0, bytes);
	memset(c, 0, sizeof(*c));
	option->nro_reqtype = type;
	nmreq_push_option(&d->hdr, option);
	c->option = option;
	c->up.run = remove_option;
	c->up.next = d->clist;
	d->clist = &c->up;
	return c;
}

int
nmport_extmem(struct nmport_d *d, void *base, size_t size)
{
	struct option_cleanup *c;

	if (d->register_done)
		return fail(d, EINVAL, "already registered: set its memory before nmport_register");
	if (d->extmem != NULL)
		return fail(d, EINVAL, "its memory is already set: give extmem once");
	c = add_option(d, NETMAP_REQ_OPT_EXTMEM, sizeof(*d->extmem));
	if (c == NULL)
		return -1;
	d->extmem = (struct nmreq_opt_extmem *)c->option;
	d->extmem->nro_usrptr = (uintptr_t)base;
	d->extmem->nro_info.nr_memsize = size;
	return 0;
}

int
nmport_extmem_from_file(struct nmport_d *d, const char *file)
{
	struct stat st;
	void *mapped;
	int error, fd = open(file, O_RDWR);

	if (fd < 0)
		return fail(d, errno, file);
	if (fstat(fd, &st) != 0 || st.st_size <= 0) {
		close(fd);
		return fail(d, EINVAL, "the file for extmem is empty: give it the size of the region");
	}
	mapped = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	error = errno;
	close(fd);
	if (mapped == MAP_FAILED)
		return fail(d, error, file);
	if (nmport_extmem(d, mapped, (size_t)st.st_size) != 0) {
		error = errno;
		munmap(mapped, (size_t)st.st_size);
		errno = error;
		return -1;
	}
	((struct option_cleanup *)d->clist)->mapped = mapped;
	((struct option_cleanup *)d->clist)->bytes = (size_t)st.st_size;
	return 0;
}

struct nmreq_pools_info *
nmport_extmem_getinfo(struct nmport_d *d)
{
	return d->extmem != NULL ? &d->extmem->nro_info : NULL;
}

int
nmport_offset(struct nmport_d *d, uint64_t initial, uint64_t maxoff, uint64_t bits, uint64_t mingap)
{
	struct option_cleanup *c;
	struct nmreq_opt_offsets *o;

	if (d->register_done)
		return fail(d, EINVAL, "already registered: set offsets before nmport_register");
	c = add_option(d, NETMAP_REQ_OPT_OFFSETS, sizeof(*o));
	if (c == NULL)
		return -1;
	o = (struct nmreq_opt_offsets *)c->option;
	o->nro_initial_offset = initial;
	o->nro_max_offset = maxoff;
	o->nro_offset_bits = (uint32_t)bits;
	o->nro_min_gap = mingap;
	return 0;
}
