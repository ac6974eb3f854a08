/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.4: the older requests, NIOCREGIF and NIOCGINFO.
 */
#include "port.h"

static struct nmreq
older(const char *name)
{
	struct nmreq r;

	memset(&r, 0, sizeof(r));
	r.nr_version = NETMAP_API;
	snprintf(r.nr_name, sizeof(r.nr_name), "%s", name);
	return r;
}

/* The netmap_if of a file that an older request has bound. */
static struct netmap_if *
nifp_of(int fd, const struct nmreq *r)
{
	char *mem = mmap(NULL, r->nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (mem == MAP_FAILED)
		rule_fails(__FILE__, __LINE__, "%s cannot be mapped: %s", r->nr_name, error_name(errno));
	return NETMAP_IF(mem, r->nr_offset);
}

RULE("1.4-version-low", "a version below 14: EINVAL")
{
	static const uint32_t low[] = { 0, 3, 11, 12, 13 };
	struct nmreq r = older(own("{1"));
	size_t i;

	for (i = 0; i < sizeof(low) / sizeof(low[0]); i++) {
		r.nr_version = low[i];
		REFUSED(EINVAL, ioctl(device(), NIOCREGIF, &r));
		REFUSED(EINVAL, ioctl(device(), NIOCGINFO, &r));
	}
}

RULE("1.4-version-high", "any version from 14 on is served, and comes back as it was")
{
	static const uint32_t high[] = { 14, 15, 16, 1000, ~0U };
	size_t i;

	for (i = 0; i < sizeof(high) / sizeof(high[0]); i++) {
		struct nmreq r = older(own("{1"));

		r.nr_version = high[i];
		WORKS(ioctl(device(), NIOCGINFO, &r));
		SAME(r.nr_version, high[i]);
		r.nr_arg2 = 0;	/* that region was made for the question */
		WORKS(ioctl(device(), NIOCREGIF, &r));
		SAME(r.nr_version, high[i]);
	}
}

RULE("1.4-EFAULT", "a request that cannot be read or written: EFAULT")
{
	char *page = last_page();
	struct nmreq r = older(own("{1"));

	REFUSED(EFAULT, ioctl(device(), NIOCREGIF, (void *)8));
	REFUSED(EFAULT, ioctl(device(), NIOCGINFO, page + 4096));
	memcpy(page + 4096 - 56, &r, 56);
	REFUSED(EFAULT, ioctl(device(), NIOCREGIF, page + 4096 - 56));
	memcpy(page, &r, sizeof(r));
	WORKS(mprotect(page, 4096, PROT_READ));
	REFUSED(EFAULT, ioctl(device(), NIOCGINFO, page));
}

RULE("1.4-NIOCREGIF", "binds the file; offset, size, slots, rings and region come back")
{
	struct nmreq r = older(own("{1"));
	int fd = device();

	WORKS(ioctl(fd, NIOCREGIF, &r));
	HOLDS(r.nr_memsize != 0 && r.nr_offset < r.nr_memsize && r.nr_arg2 != 0);
	SAME(r.nr_tx_rings, 1);
	SAME(r.nr_rx_rings, 1);
	HOLDS(r.nr_tx_slots != 0 && r.nr_rx_slots != 0);
	SAME(nifp_of(fd, &r)->ni_tx_rings, 1);
	WORKS(ioctl(fd, NIOCTXSYNC));
	REFUSED(EBUSY, ioctl(fd, NIOCREGIF, &r));
}

RULE("1.4-only-outputs", "nothing else is written back: name, version, ringid, cmd, arg1, flags and spare are as they were")
{
	struct nmreq r = older(own("{1")), before;

	r.nr_ringid = NETMAP_NO_TX_POLL;
	r.nr_flags = NR_REG_ALL_NIC | NR_EXCLUSIVE;
	r.nr_arg1 = 3;
	r.spare2[0] = 77;
	before = r;
	WORKS(ioctl(device(), NIOCREGIF, &r));
	HOLDS(memcmp(r.nr_name, before.nr_name, sizeof(r.nr_name)) == 0);
	SAME(r.nr_version, before.nr_version);
	SAME(r.nr_ringid, before.nr_ringid);
	SAME(r.nr_cmd, before.nr_cmd);
	SAME(r.nr_arg1, before.nr_arg1);
	SAME(r.nr_flags, before.nr_flags);
	SAME(r.spare2[0], before.spare2[0]);
}

RULE("1.4-wishes", "slots and rings are wishes, as in REGISTER")
{
	struct nmreq r = older(own("{1"));

	r.nr_tx_slots = 64;
	r.nr_rx_slots = 256;
	r.nr_tx_rings = 2;
	r.nr_rx_rings = 3;
	WORKS(ioctl(device(), NIOCREGIF, &r));
	SAME(r.nr_tx_slots, 64);
	SAME(r.nr_rx_slots, 256);
	SAME(r.nr_tx_rings, 2);
	SAME(r.nr_rx_rings, 3);
}

RULE("1.4-arg1", "nr_arg1 is not looked at")
{
	struct nmreq r = older(own("{1"));

	r.nr_arg1 = 65535;
	WORKS(ioctl(device(), NIOCREGIF, &r));
}

RULE("1.4-arg2", "nr_arg2 is the region: where to, and where")
{
	struct port p = open_port(own("{1"), ANY);
	struct nmreq r = older(own("{2"));

	r.nr_arg2 = p.reg.nr_mem_id;
	WORKS(ioctl(device(), NIOCREGIF, &r));
	SAME(r.nr_arg2, p.reg.nr_mem_id);
	SAME(r.nr_memsize, p.reg.nr_memsize);
	r = older(own("{3"));
	r.nr_arg2 = 54321;
	REFUSED(EINVAL, ioctl(device(), NIOCREGIF, &r));
}

RULE("1.4-arg3", "nr_arg3 is the number of extra buffers, asked for and got")
{
	struct nmreq r = older(own("{1"));
	int fd = device();

	r.nr_arg3 = 7;
	WORKS(ioctl(fd, NIOCREGIF, &r));
	SAME(r.nr_arg3, 7);
	HOLDS(nifp_of(fd, &r)->ni_bufs_head >= 2);
}

/* Binds nr_ringid and nr_flags of a port of three ring pairs; which pairs are bound, as bits. */
static unsigned int
bound_by(unsigned int ringid, unsigned int flags)
{
	struct nmreq r = older(own("{1"));
	unsigned int i, bits = 0;
	struct netmap_if *nifp;
	int fd = device();

	r.nr_tx_rings = r.nr_rx_rings = 3;
	r.nr_ringid = (uint16_t)ringid;
	r.nr_flags = flags;
	if (ioctl(fd, NIOCREGIF, &r) != 0)
		return 1000 + (unsigned int)errno;
	nifp = nifp_of(fd, &r);
	for (i = 0; i < 3; i++) {
		bits |= (unsigned int)(nifp->ring_ofs[i] != 0) << i;
		bits |= (unsigned int)(nifp->ring_ofs[i + 4] != 0) << (4 + i);
	}
	close(fd);
	return bits;
}

RULE("1.4-ringid-0", "nr_ringid 0 without a mode: all rings")
{
	SAME(bound_by(0, 0), 0x77);
}

RULE("1.4-ringid-HW", "NETMAP_HW_RING and a number without a mode: that pair")
{
	SAME(bound_by(NETMAP_HW_RING | 1, 0), 0x22);
	SAME(bound_by(NETMAP_HW_RING | 2, 0), 0x44);
	SAME(bound_by(NETMAP_HW_RING | 3, 0), 1000 + EINVAL);
}

RULE("1.4-ringid-SW", "NETMAP_SW_RING without a mode: the host rings, EINVAL where there are none")
{
	SAME(bound_by(NETMAP_SW_RING, 0), 1000 + EINVAL);
}

RULE("1.4-mode", "with a mode in nr_flags, that counts, and nr_ringid is the ring's number")
{
	SAME(bound_by(1, NR_REG_ONE_NIC), 0x22);
	SAME(bound_by(1, NR_REG_ALL_NIC), 0x77);
	SAME(bound_by(0, NR_REG_SW), 1000 + EINVAL);
	SAME(bound_by(0, 15), 1000 + EINVAL);
}

RULE("1.4-flags", "bits of nr_flags above the mode are those of REGISTER")
{
	SAME(bound_by(0, NR_REG_ALL_NIC | NR_RX_RINGS_ONLY), 0x70);
	SAME(bound_by(0, NR_REG_ALL_NIC | NR_TX_RINGS_ONLY), 0x07);
	SAME(bound_by(2, NR_REG_ONE_NIC | NR_TX_RINGS_ONLY), 0x04);
}

RULE("1.4-NO_TX_POLL", "NETMAP_NO_TX_POLL in nr_ringid: poll sends only for POLLOUT")
{
	struct nmreq r = older(own("{1"));
	struct port b = open_port(own("}1"), ANY);
	int fd = device(), revents;
	struct netmap_ring *ring;

	r.nr_ringid = NETMAP_NO_TX_POLL;
	WORKS(ioctl(fd, NIOCREGIF, &r));
	ring = NETMAP_TXRING(nifp_of(fd, &r), 0);
	put(ring, "x", 1, 0);
	SAME(poll_fd(fd, POLLIN, 0, &revents), 0);
	rxsync(&b);
	HOLDS(nm_ring_empty(rx_ring(&b, 0)));
	SAME(poll_fd(fd, POLLOUT, 0, &revents), 1);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("1.4-DO_RX_POLL", "NETMAP_DO_RX_POLL in nr_ringid is accepted")
{
	SAME(bound_by(NETMAP_DO_RX_POLL, 0), 0x77);
}

RULE("1.4-pipe-modes", "the modes PIPE_MASTER and PIPE_SLAVE with number n open name{n and name}n")
{
	struct nmreq r = older(own(""));
	int fd = device();
	struct port p;

	r.nr_flags = NR_REG_PIPE_MASTER | NR_EXCLUSIVE;
	r.nr_ringid = 5;
	WORKS(ioctl(fd, NIOCREGIF, &r));
	HOLDS(strcmp(r.nr_name, own("")) == 0);
	REFUSED(EBUSY, bind_port(&p, device(), own("{5"), ANY));
	r.nr_flags = NR_REG_PIPE_SLAVE | NR_EXCLUSIVE;
	WORKS(ioctl(device(), NIOCREGIF, &r));
	REFUSED(EBUSY, bind_port(&p, device(), own("}5"), ANY));
}

RULE("1.4-name-unended", "a name that fills its field: EINVAL")
{
	struct nmreq r = older("");

	memset(r.nr_name, 'x', sizeof(r.nr_name));
	REFUSED(EINVAL, ioctl(device(), NIOCREGIF, &r));
	REFUSED(EINVAL, ioctl(device(), NIOCGINFO, &r));
}

RULE("1.4-cmd-unknown", "REGOPS, PT_HOST_* and commands that do not exist: EINVAL")
{
	static const uint16_t no[] = { NETMAP_BDG_REGOPS, NETMAP_PT_HOST_CREATE, NETMAP_PT_HOST_DELETE, 13, 65535 };
	struct nmreq r = older(own("{1"));
	size_t i;

	for (i = 0; i < sizeof(no) / sizeof(no[0]); i++) {
		r.nr_cmd = no[i];
		REFUSED(EINVAL, ioctl(device(), NIOCREGIF, &r));
	}
}

RULE("1.4-cmd-absent", "commands on switches and interfaces that do not exist say so")
{
	struct nmreq r = older("vale99:a");

	r.nr_cmd = NETMAP_BDG_DETACH;
	REFUSED(ENXIO, ioctl(device(), NIOCREGIF, &r));
	r.nr_cmd = NETMAP_BDG_LIST;
	REFUSED(ENOENT, ioctl(device(), NIOCGINFO, &r));
	r.nr_cmd = NETMAP_BDG_VNET_HDR;
	r.nr_arg1 = 12;
	REFUSED(ENXIO, ioctl(device(), NIOCREGIF, &r));
	r = older("there-is-none");
	r.nr_cmd = NETMAP_BDG_DELIF;
	REFUSED(ENXIO, ioctl(device(), NIOCREGIF, &r));
}

RULE("1.4-cmd-VNET_HDR_GET", "VNET_HDR_GET writes the header's length to nr_arg1")
{
	struct nmreq r = older(own("{1"));

	r.nr_cmd = NETMAP_VNET_HDR_GET;
	r.nr_arg1 = 99;
	WORKS(ioctl(device(), NIOCREGIF, &r));
	SAME(r.nr_arg1, 0);
}

RULE("1.4-cmd-VNET_HDR", "VNET_HDR sets the header's length of a VALE port to nr_arg1, and VNET_HDR_GET tells it")
{
	char name[16];
	struct nmreq r;
	struct port p;

	snprintf(name, sizeof(name), "valeH%u:a", rule_number());
	p = open_port(name, ANY);
	r = older(name);
	r.nr_cmd = NETMAP_BDG_VNET_HDR;
	r.nr_arg1 = 12;
	WORKS(ioctl(device(), NIOCREGIF, &r));
	r = older(name);
	r.nr_cmd = NETMAP_VNET_HDR_GET;
	WORKS(ioctl(device(), NIOCREGIF, &r));
	SAME(r.nr_arg1, 12);
	r.nr_cmd = NETMAP_BDG_VNET_HDR;
	r.nr_arg1 = 11;
	REFUSED(EINVAL, ioctl(device(), NIOCREGIF, &r));
	txsync(&p);
}

RULE("1.4-NIOCGINFO", "what a port has, as NIOCREGIF says it, and the file stays unbound")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 3, .nr_tx_slots = 128, .nr_rx_slots = 256));
	struct nmreq r = older(own("{1"));
	int fd = device();

	WORKS(ioctl(fd, NIOCGINFO, &r));
	SAME(r.nr_memsize, p.reg.nr_memsize);
	SAME(r.nr_arg2, p.reg.nr_mem_id);
	SAME(r.nr_tx_rings, 2);
	SAME(r.nr_rx_rings, 3);
	SAME(r.nr_tx_slots, 128);
	SAME(r.nr_rx_slots, 256);
	REFUSED(ENXIO, ioctl(fd, NIOCTXSYNC));
}

RULE("1.4-NIOCGINFO-ENXIO", "an interface that does not exist: ENXIO")
{
	struct nmreq r = older("there-is-none");

	REFUSED(ENXIO, ioctl(device(), NIOCGINFO, &r));
}

RULE("1.4-NIOCGINFO-region", "without a name: what region nr_arg2 has")
{
	struct port p = open_port(own("{1"), ANY);
	struct nmreq r = older("");

	r.nr_arg2 = p.reg.nr_mem_id;
	WORKS(ioctl(device(), NIOCGINFO, &r));
	SAME(r.nr_memsize, p.reg.nr_memsize);
	SAME(r.nr_arg2, p.reg.nr_mem_id);
}

RULE("1.4-NIOCGINFO-version", "without a name and a region: what region 1 has, as programs find out the version")
{
	struct nmreq r = older("");

	WORKS(ioctl(device(), NIOCGINFO, &r));
	SAME(r.nr_arg2, 1);
	HOLDS(r.nr_memsize != 0);
}
