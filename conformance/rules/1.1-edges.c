/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.1, 1.3: requests and options at the end of mapped memory, and of the
 * largest size.
 */
#include <stdbool.h>

#include "port.h"

static const struct {
	int type;
	size_t bytes;
} bodies[] = {
	{ NETMAP_REQ_REGISTER, sizeof(struct nmreq_register) },
	{ NETMAP_REQ_PORT_INFO_GET, sizeof(struct nmreq_port_info_get) },
	{ NETMAP_REQ_VALE_ATTACH, sizeof(struct nmreq_vale_attach) },
	{ NETMAP_REQ_VALE_DETACH, sizeof(struct nmreq_vale_detach) },
	{ NETMAP_REQ_VALE_LIST, sizeof(struct nmreq_vale_list) },
	{ NETMAP_REQ_PORT_HDR_SET, sizeof(struct nmreq_port_hdr) },
	{ NETMAP_REQ_PORT_HDR_GET, sizeof(struct nmreq_port_hdr) },
	{ NETMAP_REQ_VALE_NEWIF, sizeof(struct nmreq_vale_newif) },
	{ NETMAP_REQ_VALE_POLLING_ENABLE, sizeof(struct nmreq_vale_polling) },
	{ NETMAP_REQ_VALE_POLLING_DISABLE, sizeof(struct nmreq_vale_polling) },
	{ NETMAP_REQ_POOLS_INFO_GET, sizeof(struct nmreq_pools_info) },
	{ NETMAP_REQ_SYNC_KLOOP_START, sizeof(struct nmreq_sync_kloop_start) },
};
#define BODIES	(sizeof(bodies) / sizeof(bodies[0]))

static const struct {
	uint32_t type;
	size_t bytes;
} options[] = {
	{ NETMAP_REQ_OPT_EXTMEM, sizeof(struct nmreq_opt_extmem) },
	{ NETMAP_REQ_OPT_CSB, sizeof(struct nmreq_opt_csb) },
	{ NETMAP_REQ_OPT_SYNC_KLOOP_MODE, sizeof(struct nmreq_opt_sync_kloop_mode) },
	{ NETMAP_REQ_OPT_OFFSETS, sizeof(struct nmreq_opt_offsets) },
};
#define OPTIONS	(sizeof(options) / sizeof(options[0]))

/* Returns the address after a mapped page, which is not mapped. */
static char *
edge(void)
{
	return guarded_page() + sysconf(_SC_PAGESIZE);
}

/* Returns whether a request fails with EFAULT; any other result is valid here. */
static bool
faults(struct request *q)
{
	bool so = send_request(q) == -1 && errno == EFAULT;

	CHECK_OK(close(q->fd));
	return so;
}

RULE("1.1-edge-header", "a header at the end of its page is read and written; one that ends a byte later: EFAULT")
{
	char *end = edge();
	struct request q;
	struct nmreq_header *at = (struct nmreq_header *)(void *)(end - sizeof(q.hdr));

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, unique_name("{1"));
	memcpy(at, &q.hdr, sizeof(q.hdr));
	CHECK_OK(ioctl(q.fd, NIOCCTRL, at));
	memcpy(end - sizeof(q.hdr) + 1, &q.hdr, sizeof(q.hdr) - 1);
	CHECK_ERRNO(EFAULT, ioctl(q.fd, NIOCCTRL, end - sizeof(q.hdr) + 1));
}

RULE("1.1-edge-body", "a body of each request at the end of its page is read; one that ends a byte later: EFAULT")
{
	char *end = edge();
	struct request q;
	size_t i;

	for (i = 0; i < BODIES; i++) {
		init_request(&q, bodies[i].type, unique_name("{1"));
		memcpy(end - bodies[i].bytes, q.bytes, bodies[i].bytes);
		q.hdr.nr_body = (uintptr_t)end - bodies[i].bytes;
		if (faults(&q))
			rule_fails(__FILE__, __LINE__, "request %d at the end of a page: EFAULT", bodies[i].type);
		init_request(&q, bodies[i].type, unique_name("{1"));
		q.hdr.nr_body = (uintptr_t)end - bodies[i].bytes + 1;
		if (!faults(&q))
			rule_fails(__FILE__, __LINE__, "request %d, a byte behind the end of a page: no EFAULT", bodies[i].type);
	}
}

/* Makes a request with a zeroed option that ends `behind` bytes after the page. */
static void
request_with_option(struct request *q, size_t i, char *end, size_t behind)
{
	struct nmreq_option head = { .nro_reqtype = options[i].type };
	char *at = end - options[i].bytes + behind;

	memset(at, 0, (size_t)(end - at));
	memcpy(at, &head, sizeof(head));
	init_request(q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q->hdr.nr_options = (uintptr_t)at;
}

RULE("1.1-edge-option", "each option at the end of its page is read; one that ends a byte later: EFAULT")
{
	char *end = edge();
	struct request q;
	size_t i;

	for (i = 0; i < OPTIONS; i++) {
		request_with_option(&q, i, end, 0);
		/* CSB and EXTMEM with address 0 also fail with EFAULT, but set the option's status. */
		if (faults(&q) && ((struct nmreq_option *)(void *)(end - options[i].bytes))->nro_status != EFAULT)
			rule_fails(__FILE__, __LINE__, "option %u at the end of a page: EFAULT", options[i].type);
		request_with_option(&q, i, end, 1);
		if (!faults(&q))
			rule_fails(__FILE__, __LINE__, "option %u, a byte behind the end of a page: no EFAULT", options[i].type);
	}
}

RULE("1.1-EFAULT-status", "an option whose status is not writable: EFAULT")
{
	char *page = guarded_page();
	struct nmreq_option option = { .nro_reqtype = NETMAP_REQ_OPT_MAX };
	struct request q;

	memcpy(page, &option, sizeof(option));
	CHECK_OK(mprotect(page, 4096, PROT_READ));
	init_request(&q, NETMAP_REQ_PORT_INFO_GET, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)page;
	CHECK_ERRNO(EFAULT, send_request(&q));
}

/* netmap allocates body and options, and a pointer to each option. */
#define LARGEST	4144

RULE("1.1-most", "body, options and 8 bytes for each option: 4144 bytes are accepted; an option more: EMSGSIZE")
{
	static struct nmreq_option options[(LARGEST - sizeof(struct nmreq_register)) / 32 + 1];
	size_t i, n = sizeof(options) / sizeof(options[0]);
	struct request q;

	for (i = 0; i < n; i++) {
		options[i].nro_reqtype = NETMAP_REQ_OPT_MAX + i;
		options[i].nro_next = i + 2 < n ? (uintptr_t)&options[i + 1] : 0;
	}
	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)options;
	CHECK_ERRNO(EOPNOTSUPP, send_request(&q));
	options[n - 2].nro_next = (uintptr_t)&options[n - 1];
	CHECK_ERRNO(EMSGSIZE, send_request(&q));
}

RULE("1.1-largest", "body, options and 8 bytes for each option: 4144 bytes are accepted; 8 bytes more: EMSGSIZE")
{
	static struct {
		struct nmreq_opt_sync_kloop_eventfds head;
		char pairs[LARGEST];
	} option;
	size_t room = LARGEST - 8 - sizeof(struct nmreq_register);
	struct request q;

	option.head.nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS;
	option.head.nro_opt.nro_size = room;
	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)&option;
	/* REGISTER does not support this option, but reads it. */
	CHECK_ERRNO(EOPNOTSUPP, send_request(&q));
	CHECK_EQ(option.head.nro_opt.nro_status, EOPNOTSUPP);
	option.head.nro_opt.nro_size = room + 8;
	CHECK_ERRNO(EMSGSIZE, send_request(&q));
}

RULE("1.4-edge", "a legacy request at the end of its page is served; one that ends a byte later: EFAULT")
{
	char *end = edge();
	struct nmreq r = { .nr_version = NETMAP_API };

	snprintf(r.nr_name, sizeof(r.nr_name), "%s", unique_name("{1"));
	memcpy(end - sizeof(r), &r, sizeof(r));
	CHECK_OK(ioctl(open_device(), NIOCGINFO, end - sizeof(r)));
	memcpy(end - sizeof(r), &r, sizeof(r));
	CHECK_OK(ioctl(open_device(), NIOCREGIF, end - sizeof(r)));
	CHECK_ERRNO(EFAULT, ioctl(open_device(), NIOCGINFO, end - sizeof(r) + 1));
	CHECK_ERRNO(EFAULT, ioctl(open_device(), NIOCREGIF, end - sizeof(r) + 1));
}
