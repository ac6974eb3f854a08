/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 5: names of ports in libnetmap and nm_open.
 */
#define NETMAP_WITH_LIBS
#include "port.h"

#include <libnetmap.h>
#include <unetmap.h>

static char last_error[256];

static void
store_error(struct nmctx *ctx, const char *message)
{
	(void)ctx;
	snprintf(last_error, sizeof(last_error), "%s", message);
}

/* Stores error messages instead of printing them. */
static void
store_errors(void)
{
	nmctx_get()->error = store_error;
	last_error[0] = '\0';
}

/* Checks that a name is parsed to this port name and request. */
static void
parses_to(const char *spec, const char *name, struct nmreq_register reg)
{
	struct nmport_d *d;

	store_errors();
	d = nmport_prepare(spec);
	if (d == NULL)
		rule_fails(__FILE__, __LINE__, "%s: %s: %s", spec, error_name(errno), last_error);
	if (strcmp(d->hdr.nr_name, name) != 0)
		rule_fails(__FILE__, __LINE__, "%s is %s, not %s", spec, d->hdr.nr_name, name);
	if (d->hdr.nr_version != NETMAP_API || d->hdr.nr_reqtype != NETMAP_REQ_REGISTER)
		rule_fails(__FILE__, __LINE__, "%s: not a REGISTER request", spec);
	if (memcmp(&d->reg, &reg, sizeof(reg)) != 0)
		rule_fails(__FILE__, __LINE__, "%s: mode %u, ring %u, flags %llx, region %u, rings %u %u %u %u, slots %u %u",
		    spec, d->reg.nr_mode, d->reg.nr_ringid, (unsigned long long)d->reg.nr_flags, d->reg.nr_mem_id,
		    d->reg.nr_tx_rings, d->reg.nr_rx_rings, d->reg.nr_host_tx_rings, d->reg.nr_host_rx_rings,
		    d->reg.nr_tx_slots, d->reg.nr_rx_slots);
	nmport_undo_prepare(d);
}

static int
lowest_fd(void)
{
	int fd = dup(1);

	close(fd);
	return fd;
}

/* Checks that a name is refused with EINVAL and a message, and that nothing stays open. */
static void
is_refused(const char *spec)
{
	struct nmport_d *d;
	int before = lowest_fd();

	store_errors();
	errno = 0;
	d = nmport_open(spec);
	if (d != NULL || errno != EINVAL || last_error[0] == '\0')
		rule_fails(__FILE__, __LINE__, "\"%s\": %s, \"%s\"", spec, d != NULL ? "opened" : error_name(errno),
		    last_error);
	CHECK_EQ(lowest_fd(), before);
}

#define NONSENSE(...)	\
	do {	\
		static const char *const all_[] = { __VA_ARGS__ };	\
		for (size_t i_ = 0; i_ < sizeof(all_) / sizeof(all_[0]); i_++)	\
			is_refused(all_[i_]);	\
	} while (0)

/* ---- ports */

RULE("5-netmap", "netmap:NAME is the port NAME with all its NIC rings")
{
	parses_to("netmap:lan", "lan", ALL_RINGS);
	parses_to("netmap:ens3f0np0", "ens3f0np0", ALL_RINGS);
	parses_to("netmap:eth0.100", "eth0.100", ALL_RINGS);
}

RULE("5-vale", "valeS:P is port P of switch valeS, with the prefix in its name; S may be empty")
{
	parses_to("vale7:probe", "vale7:probe", ALL_RINGS);
	parses_to("vale:0", "vale:0", ALL_RINGS);
	parses_to("vale_A9:P_1", "vale_A9:P_1", ALL_RINGS);
}

RULE("5-prefix", "another prefix, no prefix, or a VALE name after netmap: is refused")
{
	NONSENSE("", "lan", "netmapX:lan", "netmap", "Netmap:lan", "netmap:vale1:a", "netmap:vale:a", "pcap:lan");
}

RULE("5-empty", "a name with an empty part is refused")
{
	NONSENSE("netmap:", "netmap:{1", "netmap:-1", "netmap:/x", "netmap:@1", "vale", "vale1:", "vale1:/x", "valex");
}

RULE("5-vale-ident", "names of switches and their ports consist of letters, digits and _")
{
	NONSENSE("vale1.2:a", "vale1:a.b", "vale 1:a", "vale1:a:b", "vale-1:a");
}

RULE("5-length", "a name has at most 63 characters, including its pipe")
{
	static const char longest[] = "netmap:abcdefghij1234567890abcdefghij1234567890abcdefghij12345678{1234";
	char name[80];

	CHECK_EQ(strlen(longest) - 7, 63);
	parses_to(longest, longest + 7, ALL_RINGS);
	snprintf(name, sizeof(name), "%s5", longest);
	is_refused(name);
}

RULE("5-pipe", "{ID is the master and }ID the slave of a pipe, and part of the name")
{
	parses_to("netmap:lan{1", "lan{1", ALL_RINGS);
	parses_to("netmap:lan}1", "lan}1", ALL_RINGS);
	parses_to("netmap:lan{left_2", "lan{left_2", ALL_RINGS);
	parses_to("vale1:a{x", "vale1:a{x", ALL_RINGS);
}

RULE("5-pipe-bad", "a pipe with an empty or invalid name, or on a pipe, is refused")
{
	NONSENSE("netmap:lan{", "netmap:lan}", "netmap:lan{}", "netmap:lan{a}b", "netmap:lan{a{b", "netmap:lan{a.b",
	    "netmap:lan{a b", "netmap:lan{-1");
}

/* ---- modes */

RULE("5-ring", "-N binds one NIC ring pair")
{
	parses_to("netmap:lan-0", "lan", REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 0));
	parses_to("netmap:lan-2", "lan", REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 2));
	parses_to("netmap:lan{a-3", "lan{a", REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 3));
	parses_to("vale1:a-1", "vale1:a", REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));
}

RULE("5-host", "^ binds all host rings, ^N one pair of them")
{
	parses_to("netmap:dmz^", "dmz", REG(.nr_mode = NR_REG_SW));
	parses_to("netmap:dmz^1", "dmz", REG(.nr_mode = NR_REG_ONE_SW, .nr_ringid = 1));
	parses_to("netmap:dmz^0", "dmz", REG(.nr_mode = NR_REG_ONE_SW, .nr_ringid = 0));
}

RULE("5-both", "* binds NIC and host rings")
{
	parses_to("netmap:lan*", "lan", REG(.nr_mode = NR_REG_NIC_SW));
}

RULE("5-mode-once", "two modes, or an incomplete one, are refused")
{
	NONSENSE("netmap:lan^1*", "netmap:lan*-1", "netmap:lan^^", "netmap:lan**", "netmap:lan--1", "netmap:lan-",
	    "netmap:lan-1^", "netmap:lan*1", "vale1:a-", "netmap:lan{a-x");
}

RULE("5-ring-number", "a ring number is below 4095")
{
	parses_to("netmap:lan-4094", "lan", REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 4094));
	NONSENSE("netmap:lan-4095", "netmap:lan^4095", "netmap:lan-99999999999999999999");
}

RULE("5-dash", "a - is part of the name, except the last one if only digits follow")
{
	parses_to("netmap:br-lan", "br-lan", ALL_RINGS);
	parses_to("netmap:br-lan-2", "br-lan", REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 2));
	parses_to("netmap:br-2x", "br-2x", ALL_RINGS);
	parses_to("netmap:br-lan{1", "br-lan{1", ALL_RINGS);
}

/* ---- flags, region */

RULE("5-flags", "after /: x exclusive; d disconnected; z, t, r monitors; R, T one direction; in any order")
{
	parses_to("netmap:lan/x", "lan", REG(.nr_flags = NR_EXCLUSIVE));
	parses_to("netmap:lan/d", "lan", REG(.nr_flags = NR_DISCONNECTED));
	parses_to("netmap:lan/z", "lan", REG(.nr_flags = NR_ZCOPY_MON));
	parses_to("netmap:lan/t", "lan", REG(.nr_flags = NR_MONITOR_TX));
	parses_to("netmap:lan/r", "lan", REG(.nr_flags = NR_MONITOR_RX));
	parses_to("netmap:lan/R", "lan", REG(.nr_flags = NR_RX_RINGS_ONLY));
	parses_to("netmap:lan/T", "lan", REG(.nr_flags = NR_TX_RINGS_ONLY));
	parses_to("netmap:lan/Tx", "lan", REG(.nr_flags = NR_TX_RINGS_ONLY | NR_EXCLUSIVE));
	parses_to("netmap:lan/xT", "lan", REG(.nr_flags = NR_TX_RINGS_ONLY | NR_EXCLUSIVE));
	parses_to("vale7:probe/rt", "vale7:probe", REG(.nr_flags = NR_MONITOR_RX | NR_MONITOR_TX));
}

RULE("5-flags-bad", "an empty list of flags, unknown letters, and a second list are refused")
{
	NONSENSE("netmap:lan/", "netmap:lan/q", "netmap:lan/X", "netmap:lan/x/z", "netmap:lan/x1", "netmap:lan/@1");
}

RULE("5-mem_id", "@N is the region, 1 to 65535; a second one must be the same")
{
	parses_to("netmap:lan@7", "lan", REG(.nr_mem_id = 7));
	parses_to("netmap:lan@65535", "lan", REG(.nr_mem_id = 65535));
	parses_to("netmap:lan@7@7", "lan", REG(.nr_mem_id = 7));
	NONSENSE("netmap:lan@0", "netmap:lan@65536", "netmap:lan@9@8", "netmap:lan@", "netmap:lan@7x");
}

RULE("5-order", "mode, flags and region can be in any order")
{
	struct nmreq_register reg = REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 3, .nr_flags = NR_TX_RINGS_ONLY,
	    .nr_mem_id = 7);

	parses_to("netmap:lan{left-3/T@7", "lan{left", reg);
	parses_to("netmap:lan{left/T-3@7", "lan{left", reg);
	parses_to("netmap:lan{left@7/T-3", "lan{left", reg);
	parses_to("netmap:lan{left@7-3/T", "lan{left", reg);
}

RULE("5-left-over", "any other suffix is refused")
{
	NONSENSE("netmap:lan*x", "netmap:lan/x lan", "netmap:lan@7,8", "netmap:lan/x{1", "netmap:lan^}1", "netmap:lan*/x?");
}

RULE("5-table", "names as used by real programs")
{
	parses_to("netmap:lan*/x", "lan", REG(.nr_mode = NR_REG_NIC_SW, .nr_flags = NR_EXCLUSIVE));
	parses_to("netmap:ens3f0np0-2/R@conf:slots=256", "ens3f0np0", REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 2,
	    .nr_flags = NR_RX_RINGS_ONLY, .nr_tx_slots = 256, .nr_rx_slots = 256));
	parses_to("netmap:em0-0/R@conf:host-rings=4", "em0", REG(.nr_mode = NR_REG_ONE_NIC, .nr_flags = NR_RX_RINGS_ONLY,
	    .nr_host_tx_rings = 4, .nr_host_rx_rings = 4));
	parses_to("netmap:em0^0/T@conf:host-rings=4", "em0", REG(.nr_mode = NR_REG_ONE_SW, .nr_flags = NR_TX_RINGS_ONLY,
	    .nr_host_tx_rings = 4, .nr_host_rx_rings = 4));
	parses_to("netmap:eth1{2/xT@1", "eth1{2", REG(.nr_flags = NR_EXCLUSIVE | NR_TX_RINGS_ONLY, .nr_mem_id = 1));
}

/* ---- options */

RULE("5-conf", "@conf: sets rings, host rings and slots, for both directions or one")
{
	parses_to("netmap:lan@conf:rings=2", "lan", REG(.nr_tx_rings = 2, .nr_rx_rings = 2));
	parses_to("netmap:lan@conf:tx-rings=2,rx-rings=3", "lan", REG(.nr_tx_rings = 2, .nr_rx_rings = 3));
	parses_to("netmap:lan@conf:host-rings=2", "lan", REG(.nr_host_tx_rings = 2, .nr_host_rx_rings = 2));
	parses_to("netmap:lan@conf:host-tx-rings=2,host-rx-rings=3", "lan", REG(.nr_host_tx_rings = 2,
	    .nr_host_rx_rings = 3));
	parses_to("netmap:lan@conf:slots=64", "lan", REG(.nr_tx_slots = 64, .nr_rx_slots = 64));
	parses_to("netmap:lan@conf:tx-slots=64,rx-slots=128", "lan", REG(.nr_tx_slots = 64, .nr_rx_slots = 128));
	parses_to("vale1:a@conf:rings=4,slots=64", "vale1:a", REG(.nr_tx_rings = 4, .nr_rx_rings = 4, .nr_tx_slots = 64,
	    .nr_rx_slots = 64));
}

RULE("5-conf-dashes", "- and _ are equivalent in a key")
{
	parses_to("netmap:lan@conf:tx_slots=64,rx-slots=128", "lan", REG(.nr_tx_slots = 64, .nr_rx_slots = 128));
	parses_to("netmap:lan@conf:host_tx-rings=2", "lan", REG(.nr_host_tx_rings = 2));
}

RULE("5-conf-bad", "@conf has no default key, and refuses unknown keys, no value, no number, and duplicate keys")
{
	NONSENSE("netmap:lan@conf", "netmap:lan@conf:", "netmap:lan@conf=1", "netmap:lan@conf:slots",
	    "netmap:lan@conf:slots=", "netmap:lan@conf:slots=x", "netmap:lan@conf:slots=1x", "netmap:lan@conf:nothing=1",
	    "netmap:lan@conf:slots=1,slots=2", "netmap:lan@conf:rings=65536", "netmap:lan@conf:slots=1,,rings=1");
}

RULE("5-option-unknown", "an unknown option is refused")
{
	NONSENSE("netmap:lan@nothing", "netmap:lan@nothing=1", "netmap:lan@nothing:a=1",
	    "netmap:lan@conf:slots=1@nothing=1");
}

RULE("5-share", "@share=SPEC selects the region of that port")
{
	struct port p = open_port(unique_name("x{1"), ALL_RINGS);
	struct nmport_d *d;
	char spec[160];

	store_errors();
	snprintf(spec, sizeof(spec), "netmap:%s@share=netmap:%s", unique_name("{1"), unique_name("x{1"));
	parses_to(spec, unique_name("{1"), REG(.nr_mem_id = p.reg.nr_mem_id));
	d = nmport_open(spec);
	CHECK(d != NULL);
	CHECK_EQ(d->reg.nr_mem_id, p.reg.nr_mem_id);
}

RULE("5-share-bad", "@share with an invalid port is refused")
{
	store_errors();
	CHECK(nmport_prepare("netmap:lan@share=netmap:there-is-none") == NULL && last_error[0] != '\0');
	NONSENSE("netmap:lan@share", "netmap:lan@share=", "netmap:lan@share=lan");
}

/* Creates a file of this size. */
static const char *
file_of(off_t bytes)
{
	static char path[] = "/tmp/unetmap-rule-XXXXXX";
	int fd = mkstemp(path);

	CHECK_OK(fd);
	CHECK_OK(ftruncate(fd, bytes));
	CHECK_OK(close(fd));
	return path;
}

RULE("5-extmem", "@extmem:file= places the region in a file; its other keys set the pools")
{
	const char *file = file_of(1 << 20);
	struct nmreq_pools_info *info;
	struct nmport_d *d;
	char spec[160];

	store_errors();
	snprintf(spec, sizeof(spec), "netmap:lan{1@extmem:file=%s,if-num=1,if_size=2,ring-num=3,ring-size=4,buf-num=5,"
	    "buf-size=6", file);
	d = nmport_prepare(spec);
	unlink(file);
	CHECK(d != NULL && d->extmem != NULL);
	info = nmport_extmem_getinfo(d);
	CHECK_EQ(d->extmem->nro_opt.nro_reqtype, NETMAP_REQ_OPT_EXTMEM);
	CHECK_EQ(info->nr_memsize, 1 << 20);
	CHECK_EQ(info->nr_if_pool_objtotal, 1);
	CHECK_EQ(info->nr_if_pool_objsize, 2);
	CHECK_EQ(info->nr_ring_pool_objtotal, 3);
	CHECK_EQ(info->nr_ring_pool_objsize, 4);
	CHECK_EQ(info->nr_buf_pool_objtotal, 5);
	CHECK_EQ(info->nr_buf_pool_objsize, 6);
	nmport_undo_prepare(d);
}

RULE("5-extmem-default", "@extmem=FILE is equivalent to @extmem:file=FILE")
{
	const char *file = file_of(4096);
	struct nmport_d *d;
	char spec[160];

	store_errors();
	snprintf(spec, sizeof(spec), "netmap:lan{1@extmem=%s", file);
	d = nmport_prepare(spec);
	unlink(file);
	CHECK(d != NULL && nmport_extmem_getinfo(d) != NULL);
	CHECK_EQ(nmport_extmem_getinfo(d)->nr_memsize, 4096);
	nmport_undo_prepare(d);
}

RULE("5-extmem-bad", "@extmem without a file is refused")
{
	NONSENSE("netmap:lan@extmem", "netmap:lan@extmem:if-num=1", "netmap:lan@extmem=");
	store_errors();
	CHECK(nmport_prepare("netmap:lan@extmem=/there/is/none") == NULL && last_error[0] != '\0');
}

RULE("5-offset", "@offset is disabled by default; initial is required, and the default key")
{
	struct nmreq_opt_offsets *o;
	struct nmport_d *d;

	is_refused("netmap:lan@offset=64");
	CHECK_EQ(nmport_enable_option("offset"), 0);
	store_errors();
	d = nmport_prepare("netmap:lan@offset=64");
	CHECK(d != NULL);
	o = (struct nmreq_opt_offsets *)(void *)nmreq_find_option(&d->hdr, NETMAP_REQ_OPT_OFFSETS);
	CHECK(o != NULL);
	CHECK_EQ(o->nro_initial_offset, 64);
	d = nmport_prepare("netmap:lan@offset:initial=32,bits=16");
	CHECK(d != NULL);
	o = (struct nmreq_opt_offsets *)(void *)nmreq_find_option(&d->hdr, NETMAP_REQ_OPT_OFFSETS);
	CHECK_EQ(o->nro_initial_offset, 32);
	CHECK_EQ(o->nro_offset_bits, 16);
	NONSENSE("netmap:lan@offset", "netmap:lan@offset:bits=16", "netmap:lan@offset=x");
	nmport_disable_option("offset");
	is_refused("netmap:lan@offset=64");
}

/* ---- nm_open */

/* Opens a name with nm_open. */
static struct nm_desc *
opens(const char *spec)
{
	struct nm_desc *d;

	errno = 0;
	d = nm_open(spec, NULL, 0, NULL);
	if (d == NULL)
		rule_fails(__FILE__, __LINE__, "nm_open(%s): %s", spec, error_name(errno));
	return d;
}

static const char *
spec_of(const char *suffix)
{
	static char spec[NETMAP_REQ_IFNAMSIZ + 8];

	snprintf(spec, sizeof(spec), "netmap:%s", unique_name(suffix));
	return spec;
}

RULE("5-nm_open", "nm_open parses names, numbered pipes, a ring, flags and a region")
{
	struct nm_desc *d = opens(spec_of("{1"));
	char suffix[32];

	CHECK(strcmp(d->req.nr_name, unique_name("{1")) == 0);
	CHECK_EQ(d->req.nr_flags & NR_REG_MASK, NR_REG_ALL_NIC);
	d = opens(spec_of("}1-0"));
	CHECK(strcmp(d->req.nr_name, unique_name("}1")) == 0);
	CHECK_EQ(d->req.nr_flags & NR_REG_MASK, NR_REG_ONE_NIC);
	CHECK_EQ(d->req.nr_ringid & NETMAP_RING_MASK, 0);
	snprintf(suffix, sizeof(suffix), "{2/xT@%u", d->req.nr_arg2);
	d = opens(spec_of(suffix));
	CHECK_EQ(d->req.nr_flags, NR_REG_ALL_NIC | NR_EXCLUSIVE | NR_TX_RINGS_ONLY);
	CHECK(d->last_rx_ring < d->first_rx_ring);
}

RULE("5-nm_open-prefix", "an unknown prefix: nm_open returns NULL with errno 0")
{
	static const char *const other[] = { "eth0", "pcap:eth0", "netmapX:eth0", "" };
	size_t i;

	for (i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
		errno = EPERM;
		CHECK(nm_open(other[i], NULL, 0, NULL) == NULL);
		errno = EPERM;
		nm_open(other[i], NULL, 0, NULL);
		CHECK_EQ(errno, 0);
	}
}

RULE("5-nm_open-bad", "an invalid name: nm_open returns NULL with EINVAL, and opens nothing")
{
	static const char *const bad[] = { "netmap:", "netmap:lan/q", "netmap:lan{}", "netmap:lan{x", "netmap:lan@0",
		"netmap:lan@9@8", "netmap:lan--1", "netmap:lan-4095", "netmap:lan^1*", "netmap:lan{1}2",
		    "netmap:lan@conf:slots=1",
		"netmap:a-name-too-long{1", "vale", "vale1:", "netmap:lan/" };
	int before = lowest_fd();
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		errno = 0;
		if (nm_open(bad[i], NULL, 0, NULL) != NULL || errno != EINVAL)
			rule_fails(__FILE__, __LINE__, "nm_open(%s): %s", bad[i], error_name(errno));
	}
	CHECK_EQ(lowest_fd(), before);
}

RULE("5-nm_open-15", "a name for nm_open has at most 15 characters")
{
	opens("netmap:abcdefghijklm{1");
	errno = 0;
	CHECK(nm_open("netmap:abcdefghijklmn{1", NULL, 0, NULL) == NULL);
	nm_open("netmap:abcdefghijklmn{1", NULL, 0, NULL);
	CHECK_EQ(errno, EINVAL);
}

RULE("5-ioctl-names", "ioctls take the plain name: with rings, flags, region or options: EINVAL")
{
	static const char *const no[] = { "{1-0", "{1/x", "{1@1", "{1@conf:slots=8", "{", "{1}2", "^", "*" };
	struct port p;
	size_t i;

	for (i = 0; i < sizeof(no) / sizeof(no[0]); i++)
		if (bind_port(&p, open_device(), unique_name(no[i]), ALL_RINGS) == 0 || (errno != EINVAL && errno != ENXIO))
			rule_fails(__FILE__, __LINE__, "%s: %s", unique_name(no[i]), error_name(errno));
}
