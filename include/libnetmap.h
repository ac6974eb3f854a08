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
 * The library uses open, ioctl and mmap of the system, and nothing else.
 */
#ifndef _LIBNETMAP_H_
#define _LIBNETMAP_H_

#include <errno.h>
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
struct nmport_cleanup_d;	/* private: resources that are freed with a port */

/*
 * ------------------------------------------------------------------ ports
 *
 *	nmport_open = nmport_prepare + nmport_open_desc
 *	nmport_prepare = nmport_new + nmport_parse
 *	nmport_open_desc = nmport_register + nmport_mmap
 *
 * and nmport_close undoes all of them. On failure functions that create a port
 * return NULL, others -1, with errno set, and the context's error callback gets a
 * message with the reason.
 */
struct nmport_d {
	struct nmreq_header	hdr;	/* the request, with netmap's reply written to it */
	struct nmreq_register	reg;	/* its body */
	struct nmem_d		*mem;	/* the region */
	struct nmctx		*ctx;
	int			register_done;
	int			mmap_done;
	struct nmreq_opt_extmem	*extmem;
	int			fd;	/* -1: not open */
	struct netmap_if	*nifp;	/* NULL: not mapped */
	uint16_t		first_tx_ring, last_tx_ring;	/* none bound: last < first */
	uint16_t		first_rx_ring, last_rx_ring;
	uint16_t		cur_tx_ring, cur_rx_ring;	/* used by nmport_inject and the program */
	struct nmport_cleanup_d	*clist;
};

struct nmport_d *nmport_open(const char *portspec);
void nmport_close(struct nmport_d *d);

/* Queues a packet, in as many slots as it needs. Returns size, or 0 if there is no room. */
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

/* Returns a copy of the port that is neither registered nor mapped, without its options. */
struct nmport_d *nmport_clone(struct nmport_d *d);

/* Options, to be set before nmport_register: place the region in the program's memory, or in a file. */
int nmport_extmem(struct nmport_d *d, void *base, size_t size);
int nmport_extmem_from_file(struct nmport_d *d, const char *file);
struct nmreq_pools_info *nmport_extmem_getinfo(struct nmport_d *d);
/* Packets begin at an offset in their buffers. */
int nmport_offset(struct nmport_d *d, uint64_t initial, uint64_t maxoff, uint64_t bits, uint64_t mingap);

/* Enables or disables an option in port names ("@offset:..."). */
int nmport_enable_option(const char *option);
void nmport_disable_option(const char *option);

/*
 * --------------------------------------------------------------- requests
 *
 * A decoder advances its string pointer past the part that it has parsed.
 */
void nmreq_header_init(struct nmreq_header *hdr, uint16_t reqtype, void *body);
int nmreq_header_decode(const char **spec, struct nmreq_header *hdr, struct nmctx *ctx);
int nmreq_register_decode(const char **mode, struct nmreq_register *reg, struct nmctx *ctx);

/* Returns the number of the region of the named port, or -1 with errno set. */
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
 * Options in port names: "@prefix:key=value,key=value" or "@prefix=value". Each
 * parser has a prefix and keys; its parse callback finds the value of the key
 * with number id in keys[id] (NULL: not given). Parsers are linked in a list.
 */
#define NMREQ_OPT_MAXKEYS	16

struct nmreq_parse_ctx {
	struct nmctx	*ctx;
	void		*token;		/* as passed to nmreq_options_decode */
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
	int		default_key;	/* the key set by "@prefix=value", or -1 */
	int		nr_keys;
	unsigned int	flags;		/* NMREQ_OPTF_* */
	struct nmreq_opt_parser *next;
	struct nmreq_opt_key keys[NMREQ_OPT_MAXKEYS];
} __attribute__((__aligned__(16)));

#define NMREQ_OPTK_ALLOWEMPTY	1	/* "key" without a value is valid */
#define NMREQ_OPTK_MUSTSET	2	/* the key must be given */
#define NMREQ_OPTK_DEFAULT	4	/* it is the default key */

#define NMREQ_OPTF_DISABLED	1	/* refused; see nmport_enable_option */
#define NMREQ_OPTF_ALLOWEMPTY	2	/* "@prefix" without a value is valid */

int nmreq_options_decode(const char *options, struct nmreq_opt_parser *parsers, void *token, struct nmctx *ctx);

/*
 * --------------------------------------------------------------- contexts
 *
 * State shared by ports: callbacks for errors, memory and locking, and the list
 * of mapped regions. Ports of one context share the mapping of a region.
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
	nmctx_lock_cb	lock;	/* 1: lock, 0: unlock; NULL: single-threaded */
	struct nmem_d	*mem_descs;
};

struct nmctx *nmctx_get(void);
struct nmctx *nmctx_set_default(struct nmctx *ctx);	/* returns the previous one */
void nmctx_set_threadsafe(void);

void nmctx_ferror(struct nmctx *ctx, const char *format, ...) __attribute__((__format__(__printf__, 2, 3)));
void *nmctx_malloc(struct nmctx *ctx, size_t size);
void nmctx_free(struct nmctx *ctx, void *p);
void nmctx_lock(struct nmctx *ctx);
void nmctx_unlock(struct nmctx *ctx);

/* Nonzero: the default context locks. */
#ifndef LIBNETMAP_NOTHREADSAFE
extern int nmctx_threadsafe;
#endif

#ifdef __cplusplus
}
#endif

#endif /* _LIBNETMAP_H_ */
