/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * libnetmap.h - ports by name, and requests with options, for programs that
 * link -lnetmap or -lunetmap:
 *
 *	struct nmport_d *d = nmport_open("netmap:eth0-2/R@conf:slots=256");
 *	struct netmap_ring *ring = NETMAP_RXRING(d->nifp, d->first_rx_ring);
 *
 * The library needs open, ioctl and mmap of the system, and nothing else.
 */
#ifndef _LIBNETMAP_H_
#define _LIBNETMAP_H_

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <net/netmap_user.h>

#ifdef __cplusplus
extern "C" {
#endif

struct nmctx;
struct nmport_d;
struct nmem_d;
struct nmport_cleanup_d;	/* what else goes with a port; the library's own */

/*
 * ------------------------------------------------------------------ ports
 *
 *	nmport_open = nmport_prepare + nmport_open_desc
 *	nmport_prepare = nmport_new + nmport_parse
 *	nmport_open_desc = nmport_register + nmport_mmap
 *
 * and nmport_close undoes it all. What makes a port returns NULL and sets errno
 * where it fails, all else returns 0, or -1 with errno; the sentence that says
 * why goes to the context's error callback.
 */
struct nmport_d {
	struct nmreq_header	hdr;	/* the request, as netmap answered it */
	struct nmreq_register	reg;	/* its body */
	struct nmem_d		*mem;	/* the region */
	struct nmctx		*ctx;
	int			register_done;
	int			mmap_done;
	struct nmreq_opt_extmem	*extmem;
	int			fd;	/* -1: not open */
	struct netmap_if	*nifp;	/* NULL: not mapped */
	uint16_t		first_tx_ring, last_tx_ring;	/* of none: last < first */
	uint16_t		first_rx_ring, last_rx_ring;
	uint16_t		cur_tx_ring, cur_rx_ring;	/* the program's and nmport_inject's */
	struct nmport_cleanup_d	*clist;
};

struct nmport_d *nmport_open(const char *portspec);
void nmport_close(struct nmport_d *d);

/* Queues a packet, over as many slots as it needs. Its bytes, or 0: no room. */
int nmport_inject(struct nmport_d *d, const void *buf, size_t size);

struct nmport_d *nmport_new(void);
void nmport_delete(struct nmport_d *d);
int nmport_parse(struct nmport_d *d, const char *portspec);
void nmport_undo_parse(struct nmport_d *d);
struct nmport_d *nmport_prepare(const char *portspec);
void nmport_undo_prepare(struct nmport_d *d);
int nmport_register(struct nmport_d *d);
void nmport_undo_register(struct nmport_d *d);
int nmport_mmap(struct nmport_d *d);
void nmport_undo_mmap(struct nmport_d *d);
int nmport_open_desc(struct nmport_d *d);
void nmport_undo_open_desc(struct nmport_d *d);

/* Another port like this one, neither registered nor mapped, without its options. */
struct nmport_d *nmport_clone(struct nmport_d *d);

/* Options, before nmport_register: memory of the program's, or of a file. */
int nmport_extmem(struct nmport_d *d, void *base, size_t size);
int nmport_extmem_from_file(struct nmport_d *d, const char *file);
struct nmreq_pools_info *nmport_extmem_getinfo(struct nmport_d *d);
/* Packets that do not begin at the start of their buffers. */
int nmport_offset(struct nmport_d *d, uint64_t initial, uint64_t maxoff, uint64_t bits, uint64_t mingap);

/* Lets names use an option ("@offset:..."), or no longer. */
int nmport_enable_option(const char *option);
void nmport_disable_option(const char *option);

/*
 * --------------------------------------------------------------- requests
 *
 * A decoder moves its string pointer behind what it read.
 */
void nmreq_header_init(struct nmreq_header *hdr, uint16_t reqtype, void *body);
int nmreq_header_decode(const char **spec, struct nmreq_header *hdr, struct nmctx *ctx);
int nmreq_register_decode(const char **mode, struct nmreq_register *reg, struct nmctx *ctx);

/* The number of the region of an existing port, by its name; -1: errno. */
int32_t nmreq_get_mem_id(const char **portname, struct nmctx *ctx);

void nmreq_push_option(struct nmreq_header *hdr, struct nmreq_option *opt);
void nmreq_remove_option(struct nmreq_header *hdr, struct nmreq_option *opt);
struct nmreq_option *nmreq_find_option(struct nmreq_header *hdr, uint32_t type);
void nmreq_free_options(struct nmreq_header *hdr);
const char *nmreq_option_name(uint32_t type);

#define nmreq_foreach_option(hdr, opt)	\
	for ((opt) = (struct nmreq_option *)(uintptr_t)(hdr)->nr_options;	\
	    (opt) != NULL;	\
	    (opt) = (struct nmreq_option *)(uintptr_t)(opt)->nro_next)

/*
 * Options in names: "@prefix:key=value,key=value" or "@prefix=value". Each
 * parser knows its prefix and keys, and parse gets the value of key id in
 * keys[id] (NULL: not given). Parsers make a list.
 */
#define NMREQ_OPT_MAXKEYS	16

struct nmreq_parse_ctx {
	struct nmctx	*ctx;
	void		*token;		/* nmreq_options_decode's */
	const char	*keys[NMREQ_OPT_MAXKEYS];
};

typedef int (*nmreq_opt_parser_cb)(struct nmreq_parse_ctx *);

struct nmreq_opt_key {
	const char	*key;
	int		id;	/* index in nmreq_parse_ctx.keys */
	unsigned int	flags;	/* NMREQ_OPTK_* */
};

struct nmreq_opt_parser {
	const char	*prefix;
	nmreq_opt_parser_cb parse;
	int		default_key;	/* the key that "@prefix=value" means, or -1 */
	int		nr_keys;
	unsigned int	flags;		/* NMREQ_OPTF_* */
	struct nmreq_opt_parser *next;
	struct nmreq_opt_key keys[NMREQ_OPT_MAXKEYS];
} __attribute__((__aligned__(16)));

#define NMREQ_OPTK_ALLOWEMPTY	1	/* "key" alone will do */
#define NMREQ_OPTK_MUSTSET	2	/* it must be given */
#define NMREQ_OPTK_DEFAULT	4	/* it is the default key */

#define NMREQ_OPTF_DISABLED	1	/* not now */
#define NMREQ_OPTF_ALLOWEMPTY	2	/* "@prefix" alone will do */

int nmreq_options_decode(const char *options, struct nmreq_opt_parser *parsers, void *token, struct nmctx *ctx);

/*
 * --------------------------------------------------------------- contexts
 *
 * What ports have in common: where messages and memory come from, and which
 * regions are mapped. Ports of one context share the mapping of a region.
 */
typedef void (*nmctx_error_cb)(struct nmctx *, const char *);
typedef void *(*nmctx_malloc_cb)(struct nmctx *, size_t);
typedef void (*nmctx_free_cb)(struct nmctx *, void *);
typedef void (*nmctx_lock_cb)(struct nmctx *, int);

/* A mapped region. */
struct nmem_d {
	uint16_t	mem_id;
	int		refcount;
	void		*mem;
	size_t		size;
	int		is_extmem;
	struct nmem_d	*next, *prev;
};

struct nmctx {
	int		verbose;
	nmctx_error_cb	error;
	nmctx_malloc_cb	malloc;
	nmctx_free_cb	free;
	nmctx_lock_cb	lock;	/* 1 takes it, 0 gives it back; NULL: one thread only */
	struct nmem_d	*mem_descs;
};

struct nmctx *nmctx_get(void);
struct nmctx *nmctx_set_default(struct nmctx *ctx);	/* the one before */
void nmctx_set_threadsafe(void);

void nmctx_ferror(struct nmctx *ctx, const char *format, ...) __attribute__((__format__(__printf__, 2, 3)));
void *nmctx_malloc(struct nmctx *ctx, size_t size);
void nmctx_free(struct nmctx *ctx, void *p);
void nmctx_lock(struct nmctx *ctx);
void nmctx_unlock(struct nmctx *ctx);

/* Not 0: contexts lock. A program of one thread that minds may do without. */
#ifndef LIBNETMAP_NOTHREADSAFE
extern int nmctx_threadsafe;
#endif

#ifdef __cplusplus
}
#endif

#endif /* _LIBNETMAP_H_ */
