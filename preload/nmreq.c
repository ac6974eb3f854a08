/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Requests of libnetmap.h: their options, and the decoding of port
 * specifications.
 *
 *	spec     = port [ pipe ] *( mode | "/" flags | "@" number ) [ options ]
 *	port     = "netmap:" name | "vale" [ ident ] ":" ident
 *	pipe     = ( "{" | "}" ) ident
 *	mode     = "^" [ number ] | "*" | "-" number
 *	flags    = 1*( "x" | "d" | "z" | "t" | "r" | "R" | "T" )
 *	options  = 1*( "@" key [ ":" kv *( "," kv ) | "=" value ] )
 *	kv       = key "=" value
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <libnetmap.h>
#include <unetmap.h>

#include "nmreq.h"

/* Reports an error about name; returns -1 with EINVAL. */
static int
invalid(struct nmctx *ctx, const char *name, const char *what)
{
	nmctx_ferror(ctx, "%s: %s", name, what);
	errno = EINVAL;
	return -1;
}

/*
 * ----------------------------------------------------- requests and options
 */
void
nmreq_header_init(struct nmreq_header *hdr, uint16_t reqtype, void *body)
{
	memset(hdr, 0, sizeof(*hdr));
	hdr->nr_version = NETMAP_API;
	hdr->nr_reqtype = reqtype;
	hdr->nr_body = (uintptr_t)body;
}

void
nmreq_push_option(struct nmreq_header *hdr, struct nmreq_option *opt)
{
	opt->nro_next = hdr->nr_options;
	hdr->nr_options = (uintptr_t)opt;
}

void
nmreq_remove_option(struct nmreq_header *hdr, struct nmreq_option *opt)
{
	uint64_t *at = &hdr->nr_options;

	while (*at != 0 && *at != (uintptr_t)opt)
		at = &((struct nmreq_option *)(uintptr_t)*at)->nro_next;
	if (*at != 0)
		*at = opt->nro_next;
}

struct nmreq_option *
nmreq_find_option(struct nmreq_header *hdr, uint32_t type)
{
	struct nmreq_option *opt;

	nmreq_foreach_option(hdr, opt)
		if (opt->nro_reqtype == type)
			break;
	return opt;
}

void
nmreq_free_options(struct nmreq_header *hdr)
{
	while (hdr->nr_options != 0) {
		struct nmreq_option *opt = (struct nmreq_option *)(uintptr_t)hdr->nr_options;

		hdr->nr_options = opt->nro_next;
		free(opt);
	}
}

const char *
nmreq_option_name(uint32_t type)
{
	static const char *const names[] = {
		[NETMAP_REQ_OPT_EXTMEM] = "extmem",
		[NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS] = "sync-kloop-eventfds",
		[NETMAP_REQ_OPT_CSB] = "csb",
		[NETMAP_REQ_OPT_SYNC_KLOOP_MODE] = "sync-kloop-mode",
		[NETMAP_REQ_OPT_OFFSETS] = "offsets"
	};

	return type > 0 && type < NETMAP_REQ_OPT_MAX ? names[type] : "unknown";
}

/*
 * ------------------------------------------------------- port specifications
 */

static int
is_ident(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

static const char *
skip_ident(const char *s)
{
	while (is_ident(*s))
		s++;
	return s;
}

static const char *
skip_digits(const char *s)
{
	while (isdigit((unsigned char)*s))
		s++;
	return s;
}

/* Whether an interface with this name exists. */
static int
is_interface(const char *s, size_t len)
{
	char name[IF_NAMESIZE];

	if (len == 0 || len >= sizeof(name))
		return 0;
	memcpy(name, s, len);
	name[len] = '\0';
	return if_nametoindex(name) != 0;
}

/*
 * Returns the end of an interface's name. It may contain a '-': a trailing "-N"
 * is a ring only if no interface has the whole name.
 */
static const char *
interface_end(const char *s)
{
	const char *end = s + strcspn(s, "{}^*/@"), *dash;

	if (is_interface(s, (size_t)(end - s)))
		return end;
	dash = memrchr(s, '-', (size_t)(end - s));
	if (dash != NULL && dash + 1 < end && skip_digits(dash + 1) == end)
		return dash;
	return end;
}

int
nmreq_header_decode(const char **spec, struct nmreq_header *hdr, struct nmctx *ctx)
{
	const char *name, *end;
	size_t len;

	if (strncmp(*spec, "netmap:", 7) == 0) {
		name = *spec + 7;
		if (strncmp(name, NM_BDG_NAME, 4) == 0 && *skip_ident(name) == ':')
			return invalid(ctx, *spec, "write a VALE port without the prefix netmap:");
		end = interface_end(name);
		if (end == name)
			return invalid(ctx, *spec, "no port name after netmap:");
		if (end[-1] == '-' && !is_interface(name, (size_t)(end - name)))
			return invalid(ctx, *spec, "no ring number after -");
	} else if (strncmp(*spec, NM_BDG_NAME, sizeof(NM_BDG_NAME) - 1) == 0) {
		name = *spec;
		end = skip_ident(name);
		if (*end != ':' || skip_ident(end + 1) == end + 1)
			return invalid(ctx, *spec, "a VALE port is vale[SWITCH]:PORT, of letters, digits and _");
		end = skip_ident(end + 1);
	} else {
		return invalid(ctx, *spec, "a port name begins with netmap: or " NM_BDG_NAME);
	}
	if (*end == '{' || *end == '}') {
		const char *id = end + 1;

		end = skip_ident(id);
		if (end == id)
			return invalid(ctx, *spec, "no pipe name after { or }");
		if (*end == '{' || *end == '}')
			return invalid(ctx, *spec, "a pipe cannot be opened on a pipe");
	}
	if (*end != '\0' && strchr("-^*/@", *end) == NULL)
		return invalid(ctx, *spec, "a character that port names cannot contain");
	len = (size_t)(end - name);
	if (len >= sizeof(hdr->nr_name))
		return invalid(ctx, *spec, "the port name is longer than 63 characters");
	memset(hdr->nr_name, 0, sizeof(hdr->nr_name));
	memcpy(hdr->nr_name, name, len);
	*spec = end;
	return 0;
}

/* Parses a number from least to most and moves *s behind it. Returns -1 if there is none. */
static long
number(const char **s, long least, long most)
{
	const char *at = *s, *end = skip_digits(at);
	long n = 0;

	for (; at < end; at++) {
		n = n * 10 + (*at - '0');
		if (n > most)
			return -1;
	}
	if (end == *s || n < least)
		return -1;
	*s = end;
	return n;
}

/* Decodes the letters after a slash. */
static int
flags_decode(const char **s, struct nmreq_register *reg)
{
	const char *at = *s;

	for (; isalpha((unsigned char)*at); at++)
		switch (*at) {
		case 'x':
			reg->nr_flags |= NR_EXCLUSIVE;
			break;
		case 'd':
			reg->nr_flags |= NR_DISCONNECTED;
			break;
		case 'z':
			reg->nr_flags |= NR_ZCOPY_MON;
			break;
		case 't':
			reg->nr_flags |= NR_MONITOR_TX;
			break;
		case 'r':
			reg->nr_flags |= NR_MONITOR_RX;
			break;
		case 'R':
			reg->nr_flags |= NR_RX_RINGS_ONLY;
			break;
		case 'T':
			reg->nr_flags |= NR_TX_RINGS_ONLY;
			break;
		default:
			return -1;
		}
	if (at == *s)
		return -1;
	*s = at;
	return 0;
}

int
nmreq_register_decode(const char **mode, struct nmreq_register *reg, struct nmctx *ctx)
{
	const char *at = *mode;
	int modes = 0, flags = 0;
	long n;

	reg->nr_mode = NR_REG_ALL_NIC;
	while (*at != '\0' && !(*at == '@' && !isdigit((unsigned char)at[1]))) {
		char sign = *at++;

		if (sign == '/') {
			if (flags++ > 0 || flags_decode(&at, reg) != 0)
				return invalid(ctx, *mode, "give / once, followed by flags out of xdztrRT");
		} else if (sign == '@') {
			n = number(&at, 1, 65535);
			if (n < 0 || (reg->nr_mem_id != 0 && reg->nr_mem_id != n))
				return invalid(ctx, *mode, "after @ give one region, 1 to 65535");
			reg->nr_mem_id = (uint16_t)n;
		} else if (strchr("-^*", sign) == NULL || modes++ > 0) {
			return invalid(ctx, *mode, "after the port name give at most one of ^ * -NUMBER, then /FLAGS and @REGION");
		} else if (sign == '*') {
			reg->nr_mode = NR_REG_NIC_SW;
		} else if (sign == '^' && !isdigit((unsigned char)*at)) {
			reg->nr_mode = NR_REG_SW;
		} else {
			n = number(&at, 0, NETMAP_RING_MASK - 1);
			if (n < 0)
				return invalid(ctx, *mode, "a ring number is 0 to 4094");
			reg->nr_mode = sign == '-' ? NR_REG_ONE_NIC : NR_REG_ONE_SW;
			reg->nr_ringid = (uint16_t)n;
		}
	}
	*mode = at;
	return 0;
}

int32_t
nmreq_get_mem_id(const char **portname, struct nmctx *ctx)
{
	struct nmreq_header hdr;
	struct nmreq_port_info_get info;
	const char *name = *portname;
	int fd, error;

	memset(&info, 0, sizeof(info));
	nmreq_header_init(&hdr, NETMAP_REQ_PORT_INFO_GET, &info);
	if (nmreq_header_decode(portname, &hdr, ctx) != 0)
		return -1;
	fd = open(NETMAP_DEVICE_NAME, O_RDWR);
	if (fd < 0 || ioctl(fd, NIOCCTRL, &hdr) != 0) {
		error = errno;
		nmctx_ferror(ctx, "%s: its region cannot be queried: %s", name, strerror(error));
		if (fd >= 0)
			close(fd);
		errno = error;
		return -1;
	}
	close(fd);
	return info.nr_mem_id;
}

/*
 * ------------------------------------------------ options of specifications
 */

/* Whether two keys are equal; '-' and '_' count as the same character. */
static int
same_key(const char *a, const char *b)
{
	for (; *a != '\0' && *b != '\0'; a++, b++)
		if (*a != *b && !(strchr("-_", *a) != NULL && strchr("-_", *b) != NULL))
			return 0;
	return *a == *b;
}

/* Stores the value of a key in pctx->keys, for the option's parser. */
static int
set_key(struct nmreq_opt_parser *p, struct nmreq_parse_ctx *pctx, const char *key, const char *value)
{
	int i;

	for (i = 0; i < p->nr_keys; i++) {
		struct nmreq_opt_key *k = &p->keys[i];

		if (!same_key(k->key, key))
			continue;
		if (pctx->keys[k->id] != NULL)
			return invalid(pctx->ctx, key, "the key is given twice");
		if ((value == NULL || *value == '\0') && !(k->flags & NMREQ_OPTK_ALLOWEMPTY))
			return invalid(pctx->ctx, key, "the key needs a value (KEY=VALUE)");
		pctx->keys[k->id] = value != NULL ? value : key;
		return 0;
	}
	return invalid(pctx->ctx, key, "the option has no such key");
}

static const struct nmreq_opt_key *
default_key(const struct nmreq_opt_parser *p)
{
	int i;

	for (i = 0; i < p->nr_keys; i++)
		if ((p->keys[i].flags & NMREQ_OPTK_DEFAULT) || (p->default_key >= 0 && p->keys[i].id == p->default_key))
			return &p->keys[i];
	return NULL;
}

/* Decodes one option, without its "@": "key", "key=value", "key:k=v,k=v". Modifies text. */
static int
option_decode(char *text, struct nmreq_opt_parser *parsers, void *token, struct nmctx *ctx)
{
	struct nmreq_parse_ctx pctx = { .ctx = ctx, .token = token };
	struct nmreq_opt_parser *p = parsers;
	char *rest = text + strcspn(text, ":=");
	char sign = *rest;
	int i;

	if (sign != '\0')
		*rest++ = '\0';
	while (p != NULL && (!same_key(p->prefix, text) || (p->flags & NMREQ_OPTF_DISABLED)))
		p = p->next;
	if (p == NULL)
		return invalid(ctx, text, "no such option");
	if (sign == '=') {
		const struct nmreq_opt_key *k = default_key(p);

		if (k == NULL)
			return invalid(ctx, text, "the option has no default key: write @OPTION:KEY=VALUE");
		if (set_key(p, &pctx, k->key, rest) != 0)
			return -1;
	} else if (sign == '\0' && !(p->flags & NMREQ_OPTF_ALLOWEMPTY)) {
		return invalid(ctx, text, "the option needs a value");
	}
	while (sign == ':' && rest != NULL) {
		char *key = strsep(&rest, ","), *value = key;

		key = strsep(&value, "=");
		if (set_key(p, &pctx, key, value) != 0)
			return -1;
	}
	for (i = 0; i < p->nr_keys; i++)
		if ((p->keys[i].flags & NMREQ_OPTK_MUSTSET) && pctx.keys[p->keys[i].id] == NULL)
			return invalid(ctx, p->keys[i].key, "the option needs this key");
	return p->parse(&pctx);
}

int
nmreq_options_decode(const char *options, struct nmreq_opt_parser *parsers, void *token, struct nmctx *ctx)
{
	char *copy, *rest;
	size_t bytes = strlen(options) + 1;
	int result = 0, error;

	if (*options == '\0')
		return 0;
	if (*options != '@')
		return invalid(ctx, options, "options begin with @");
	copy = nmctx_malloc(ctx, bytes);
	if (copy == NULL)
		return -1;
	memcpy(copy, options, bytes);
	rest = copy + 1;
	while (result == 0 && rest != NULL)
		result = option_decode(strsep(&rest, "@"), parsers, token, ctx);
	error = errno;
	nmctx_free(ctx, copy);
	errno = error;
	return result;
}

/* Stores the number given for a key. Returns 1, 0 if the key was not given, or -1. */
static int
number_key(struct nmreq_parse_ctx *p, int id, long most, long *n)
{
	const char *at = p->keys[id];

	if (at == NULL)
		return 0;
	*n = number(&at, 0, most);
	if (*n < 0 || *at != '\0')
		return invalid(p->ctx, p->keys[id], "not a number, or too large");
	return 1;
}

static int
parse_share(struct nmreq_parse_ctx *p)
{
	struct nmport_d *d = p->token;
	const char *name = p->keys[0];
	int32_t id = nmreq_get_mem_id(&name, p->ctx);

	if (id < 0)
		return -1;
	if (d->reg.nr_mem_id != 0 && d->reg.nr_mem_id != id)
		return invalid(p->ctx, p->keys[0], "this port's region is not the one that @REGION gives");
	d->reg.nr_mem_id = (uint16_t)id;
	return 0;
}

enum { CONF_RINGS, CONF_HOST_RINGS, CONF_SLOTS, CONF_TX_RINGS, CONF_RX_RINGS, CONF_HOST_TX_RINGS, CONF_HOST_RX_RINGS,
	CONF_TX_SLOTS, CONF_RX_SLOTS };

/* Stores the values of a key for both directions, and of the keys for one direction, which take precedence. */
static int
number_keys(struct nmreq_parse_ctx *p, const int ids[3], long most, long n[2])
{
	int i, r = number_key(p, ids[0], most, &n[0]);

	if (r < 0)
		return -1;
	if (r > 0)
		n[1] = n[0];
	for (i = 0; i < 2; i++)
		if (number_key(p, ids[1 + i], most, &n[i]) < 0)
			return -1;
	return 0;
}

static int
parse_conf(struct nmreq_parse_ctx *p)
{
	static const int rings[] = { CONF_RINGS, CONF_TX_RINGS, CONF_RX_RINGS };
	static const int host[] = { CONF_HOST_RINGS, CONF_HOST_TX_RINGS, CONF_HOST_RX_RINGS };
	static const int slots[] = { CONF_SLOTS, CONF_TX_SLOTS, CONF_RX_SLOTS };
	struct nmreq_register *reg = &((struct nmport_d *)p->token)->reg;
	long r[2] = { reg->nr_tx_rings, reg->nr_rx_rings }, h[2] = { reg->nr_host_tx_rings, reg->nr_host_rx_rings };
	long s[2] = { reg->nr_tx_slots, reg->nr_rx_slots };

	if (number_keys(p, rings, 65535, r) != 0 || number_keys(p, host, 65535, h) != 0 ||
	    number_keys(p, slots, 0xffffffffL, s) != 0)
		return -1;
	reg->nr_tx_rings = (uint16_t)r[0];
	reg->nr_rx_rings = (uint16_t)r[1];
	reg->nr_host_tx_rings = (uint16_t)h[0];
	reg->nr_host_rx_rings = (uint16_t)h[1];
	reg->nr_tx_slots = (uint32_t)s[0];
	reg->nr_rx_slots = (uint32_t)s[1];
	return 0;
}

static int
parse_extmem(struct nmreq_parse_ctx *p)
{
	struct nmport_d *d = p->token;
	struct nmreq_pools_info *info;
	uint32_t *fields[6];
	int i;

	if (nmport_extmem_from_file(d, p->keys[0]) != 0)
		return -1;
	info = nmport_extmem_getinfo(d);
	fields[0] = &info->nr_if_pool_objtotal;
	fields[1] = &info->nr_if_pool_objsize;
	fields[2] = &info->nr_ring_pool_objtotal;
	fields[3] = &info->nr_ring_pool_objsize;
	fields[4] = &info->nr_buf_pool_objtotal;
	fields[5] = &info->nr_buf_pool_objsize;
	for (i = 0; i < 6; i++) {
		long n = 0;

		if (number_key(p, i + 1, 0xffffffffL, &n) < 0)
			return -1;
		*fields[i] = (uint32_t)n;
	}
	return 0;
}

static int
parse_offset(struct nmreq_parse_ctx *p)
{
	long initial = 0, bits = 0;

	if (number_key(p, 0, 0xffffffffL, &initial) < 0 || number_key(p, 1, 64, &bits) < 0)
		return -1;
	return nmport_offset(p->token, (uint64_t)initial, (uint64_t)initial, (uint64_t)bits, 0);
}

#define MUST	(NMREQ_OPTK_MUSTSET | NMREQ_OPTK_DEFAULT)

static struct nmreq_opt_parser offset = {
	"offset", parse_offset, 0, 2, NMREQ_OPTF_DISABLED, NULL, { { "initial", 0, MUST }, { "bits", 1, 0 } }
};
static struct nmreq_opt_parser extmem = {
	"extmem", parse_extmem, 0, 7, 0, &offset,
	{ { "file", 0, MUST }, { "if-num", 1, 0 }, { "if-size", 2, 0 }, { "ring-num", 3, 0 }, { "ring-size", 4, 0 },
	  { "buf-num", 5, 0 }, { "buf-size", 6, 0 } }
};
static struct nmreq_opt_parser conf = {
	"conf", parse_conf, -1, 9, 0, &extmem,
	{ { "rings", CONF_RINGS, 0 }, { "host-rings", CONF_HOST_RINGS, 0 }, { "slots", CONF_SLOTS, 0 },
	  { "tx-rings", CONF_TX_RINGS, 0 }, { "rx-rings", CONF_RX_RINGS, 0 }, { "host-tx-rings", CONF_HOST_TX_RINGS, 0 },
	  { "host-rx-rings", CONF_HOST_RX_RINGS, 0 }, { "tx-slots", CONF_TX_SLOTS, 0 }, { "rx-slots", CONF_RX_SLOTS, 0 } }
};
static struct nmreq_opt_parser share = {
	"share", parse_share, 0, 1, 0, &conf, { { "port", 0, MUST } }
};

struct nmreq_opt_parser *
unetmap_option_parsers(void)
{
	return &share;
}

static struct nmreq_opt_parser *
parser_of(const char *option)
{
	struct nmreq_opt_parser *p = &share;

	while (p != NULL && !same_key(p->prefix, option))
		p = p->next;
	return p;
}

int
nmport_enable_option(const char *option)
{
	struct nmreq_opt_parser *p = parser_of(option);

	if (p == NULL) {
		errno = EOPNOTSUPP;
		return -1;
	}
	p->flags &= ~(unsigned int)NMREQ_OPTF_DISABLED;
	return 0;
}

void
nmport_disable_option(const char *option)
{
	struct nmreq_opt_parser *p = parser_of(option);

	if (p != NULL)
		p->flags |= NMREQ_OPTF_DISABLED;
}
