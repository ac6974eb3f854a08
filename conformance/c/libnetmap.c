/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * libnetmap: port names, requests and their options, and ports of one region.
 */
#include "check.h"

#include <libnetmap.h>

static char last_error[256];

static void
keep_error(struct nmctx *ctx, const char *message)
{
	(void)ctx;
	strncpy(last_error, message, sizeof(last_error) - 1);
}

static void
parses_to(const char *spec, const char *name, uint32_t mode, uint16_t ring, uint64_t flags, uint16_t mem_id)
{
	struct nmport_d *d = nmport_prepare(spec);

	if (d == NULL)
		fprintf(stderr, "%s: %s\n", spec, last_error);
	CHECK(d != NULL);
	if (strcmp(d->hdr.nr_name, name) != 0)
		fprintf(stderr, "%s: %s\n", spec, d->hdr.nr_name);
	CHECK(strcmp(d->hdr.nr_name, name) == 0 && d->hdr.nr_version == NETMAP_API);
	CHECK(d->hdr.nr_reqtype == NETMAP_REQ_REGISTER && d->hdr.nr_body == (uintptr_t)&d->reg && d->fd == -1);
	CHECK(d->reg.nr_mode == mode && d->reg.nr_ringid == ring && d->reg.nr_flags == flags);
	CHECK(d->reg.nr_mem_id == mem_id);
	nmport_undo_prepare(d);
}

static void
is_refused(const char *spec)
{
	struct nmport_d *d;

	errno = 0;
	last_error[0] = '\0';
	d = nmport_prepare(spec);
	if (d != NULL || errno != EINVAL || last_error[0] == '\0')
		fprintf(stderr, "%s: %s\n", spec, last_error);
	CHECK(d == NULL && errno == EINVAL && last_error[0] != '\0');
}

int
main(void)
{
	static const char *const bad[] = {
		"", "lan", "netmap:", "netmap:lan{}", "netmap:lan{", "netmap:lan--1", "netmap:lan-", "netmap:lan@0",
		    "netmap:lan@65536",
		"netmap:lan/q", "netmap:lan/", "netmap:lan/x/z", "vale1:", "vale", "valex", "netmap:lan-4095",
		"netmap:lan@9@8", "netmap:lan^1*", "netmap:lan{a}b", "netmapX:lan", "netmap:vale1:a", "netmap:lan@nothing",
		"netmap:lan@conf", "netmap:lan@conf:", "netmap:lan@conf=1", "netmap:lan@conf:slots", "netmap:lan@conf:slots=x",
		"netmap:lan@conf:slots=1,slots=2", "netmap:lan@conf:rings=65536", "netmap:lan@offset=64",
		"netmap:lan@extmem:if-num=1", "netmap:a.name{of.more.than.sixty.three.characters.does.not.fit.into.a.request.x"
	};
	struct nmctx ctx = *nmctx_get();
	struct nmreq_header hdr;
	struct nmreq_option o1 = { 0, NETMAP_REQ_OPT_CSB, 0, 0 }, o2 = { 0, NETMAP_REQ_OPT_OFFSETS, 0, 0 }, *o;
	struct nmport_d *d, *e;
	const char *name;
	size_t i;

	ctx.error = keep_error;
	ctx.mem_descs = NULL;
	nmctx_set_default(&ctx);

	parses_to("netmap:lan", "lan", NR_REG_ALL_NIC, 0, 0, 0);
	parses_to("netmap:dmz^1", "dmz", NR_REG_ONE_SW, 1, 0, 0);
	parses_to("netmap:dmz^", "dmz", NR_REG_SW, 0, 0, 0);
	parses_to("netmap:lan*/x", "lan", NR_REG_NIC_SW, 0, NR_EXCLUSIVE, 0);
	parses_to("netmap:lan{left-3/T@7", "lan{left", NR_REG_ONE_NIC, 3, NR_TX_RINGS_ONLY, 7);
	parses_to("vale7:probe/rt", "vale7:probe", NR_REG_ALL_NIC, 0, NR_MONITOR_RX | NR_MONITOR_TX, 0);
	parses_to("vale:0", "vale:0", NR_REG_ALL_NIC, 0, 0, 0);
	parses_to("netmap:br-lan", "br-lan", NR_REG_ALL_NIC, 0, 0, 0);
	parses_to("netmap:br-lan-2", "br-lan", NR_REG_ONE_NIC, 2, 0, 0);
	parses_to("netmap:lan@7@7/zR", "lan", NR_REG_ALL_NIC, 0, NR_ZCOPY_MON | NR_RX_RINGS_ONLY, 7);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		is_refused(bad[i]);

	d = nmport_prepare("netmap:ens3f0np0-2/R@conf:slots=256,rx_slots=512,host-rings=4");
	CHECK(d != NULL && strcmp(d->hdr.nr_name, "ens3f0np0") == 0 && d->reg.nr_mode == NR_REG_ONE_NIC);
	CHECK(d->reg.nr_ringid == 2 && d->reg.nr_flags == NR_RX_RINGS_ONLY);
	CHECK(d->reg.nr_tx_slots == 256 && d->reg.nr_rx_slots == 512);
	CHECK(d->reg.nr_host_tx_rings == 4 && d->reg.nr_host_rx_rings == 4);
	nmport_undo_prepare(d);

	/* Disabled by default. */
	CHECK(nmport_enable_option("nothing") == -1 && errno == EOPNOTSUPP && nmport_enable_option("offset") == 0);
	d = nmport_prepare("netmap:lan@offset=64@conf:slots=8");
	CHECK(d != NULL && d->reg.nr_tx_slots == 8);
	o = nmreq_find_option(&d->hdr, NETMAP_REQ_OPT_OFFSETS);
	CHECK(o != NULL && ((struct nmreq_opt_offsets *)(void *)o)->nro_initial_offset == 64);
	nmport_undo_prepare(d);
	nmport_disable_option("offset");
	is_refused("netmap:lan@offset=64");

	nmreq_header_init(&hdr, NETMAP_REQ_REGISTER, &ctx);
	nmreq_push_option(&hdr, &o1);
	nmreq_push_option(&hdr, &o2);
	i = 0;
	nmreq_foreach_option(&hdr, o)
		i++;
	CHECK(i == 2 && nmreq_find_option(&hdr, NETMAP_REQ_OPT_CSB) == &o1);
	nmreq_remove_option(&hdr, &o1);
	CHECK(nmreq_find_option(&hdr, NETMAP_REQ_OPT_CSB) == NULL && hdr.nr_options == (uintptr_t)&o2);
	CHECK(strcmp(nmreq_option_name(NETMAP_REQ_OPT_CSB), "csb") == 0);

	/* Both ends of a pipe share one mapping; a name can select the region of another port. */
	d = nmport_open("netmap:l{a@conf:slots=32");
	CHECK(d != NULL && d->reg.nr_tx_slots == 32 && d->fd >= 0 && d->nifp != NULL);
	e = nmport_open("netmap:l}a");
	CHECK(e != NULL && e->mem == d->mem && e->mem->refcount == 2 && e->mem->mem_id == d->reg.nr_mem_id);
	name = "netmap:l{a";
	CHECK(nmreq_get_mem_id(&name, &ctx) == d->reg.nr_mem_id && *name == '\0');
	CHECK(nmport_inject(d, "0123456789", 10) == 10 && ioctl(d->fd, NIOCTXSYNC) == 0);
	CHECK(ioctl(e->fd, NIOCRXSYNC) == 0 && nm_ring_space(NETMAP_RXRING(e->nifp, 0)) == 1);
	CHECK(nmport_register(d) == -1 && errno == EINVAL);
	nmport_close(d);
	CHECK(e->mem->refcount == 1);
	d = nmport_open("netmap:m{b@share=netmap:l}a");
	CHECK(d != NULL && d->mem == e->mem);
	nmport_close(d);
	d = nmport_clone(e);
	CHECK(d != NULL && nmport_open_desc(d) == 0 && d->mem == e->mem);
	nmport_close(d);
	nmport_close(e);
	CHECK(ctx.mem_descs == NULL);

	/* nro_status holds the result of an option. */
	d = nmport_prepare("netmap:l{a");
	CHECK(d != NULL && nmport_offset(d, 64, 128, 8, 0) == 0);
	CHECK(nmport_open_desc(d) == 0);
	CHECK(nmreq_find_option(&d->hdr, NETMAP_REQ_OPT_OFFSETS)->nro_status == 0);
	CHECK(NETMAP_TXRING(d->nifp, 0)->slot[3].ptr == 64 && NETMAP_TXRING(d->nifp, 0)->offset_mask == 255);
	nmport_close(d);
	d = nmport_prepare("netmap:l{a");
	CHECK(d != NULL && nmport_offset(d, 0, 128, 7, 0) == 0);
	CHECK(nmport_register(d) == -1 && errno == EINVAL && d->fd == -1);
	CHECK(nmreq_find_option(&d->hdr, NETMAP_REQ_OPT_OFFSETS)->nro_status == EINVAL);
	nmport_close(d);
	nmport_close(NULL);
	printf("ok\n");
	return 0;
}
