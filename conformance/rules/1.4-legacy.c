/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.4: the legacy requests NIOCREGIF and NIOCGINFO.
 */
#include "port.h"

static struct nmreq
legacy_request(const char *name)
{
	struct nmreq r;

	memset(&r, 0, sizeof(r));
	r.nr_version = NETMAP_API;
	snprintf(r.nr_name, sizeof(r.nr_name), "%s", name);
	return r;
}

/* Returns the netmap_if of a file that a legacy request has bound. */
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
	struct nmreq r = legacy_request(unique_name("{1"));
	size_t i;

	for (i = 0; i < sizeof(low) / sizeof(low[0]); i++) {
		r.nr_version = low[i];
		CHECK_ERRNO(EINVAL, ioctl(open_device(), NIOCREGIF, &r));
		CHECK_ERRNO(EINVAL, ioctl(open_device(), NIOCGINFO, &r));
	}
}

RULE("1.4-version-high", "any version from 14 on is accepted, and returned unchanged")
{
	static const uint32_t high[] = { 14, 15, 16, 1000, ~0U };
	size_t i;

	for (i = 0; i < sizeof(high) / sizeof(high[0]); i++) {
		struct nmreq r = legacy_request(unique_name("{1"));

		r.nr_version = high[i];
		CHECK_OK(ioctl(open_device(), NIOCGINFO, &r));
		CHECK_EQ(r.nr_version, high[i]);
		r.nr_arg2 = 0;	/* NIOCGINFO created that region temporarily */
		CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
		CHECK_EQ(r.nr_version, high[i]);
	}
}

RULE("1.4-EFAULT", "an unreadable or unwritable request: EFAULT")
{
	char *page = guarded_page();
	struct nmreq r = legacy_request(unique_name("{1"));

	CHECK_ERRNO(EFAULT, ioctl(open_device(), NIOCREGIF, (void *)8));
	CHECK_ERRNO(EFAULT, ioctl(open_device(), NIOCGINFO, page + 4096));
	memcpy(page + 4096 - 56, &r, 56);
	CHECK_ERRNO(EFAULT, ioctl(open_device(), NIOCREGIF, page + 4096 - 56));
	memcpy(page, &r, sizeof(r));
	CHECK_OK(mprotect(page, 4096, PROT_READ));
	CHECK_ERRNO(EFAULT, ioctl(open_device(), NIOCGINFO, page));
}

RULE("1.4-NIOCREGIF", "NIOCREGIF binds the file, and returns offset, size, slots, rings and region")
{
	struct nmreq r = legacy_request(unique_name("{1"));
	int fd = open_device();

	CHECK_OK(ioctl(fd, NIOCREGIF, &r));
	CHECK(r.nr_memsize != 0 && r.nr_offset < r.nr_memsize && r.nr_arg2 != 0);
	CHECK_EQ(r.nr_tx_rings, 1);
	CHECK_EQ(r.nr_rx_rings, 1);
	CHECK(r.nr_tx_slots != 0 && r.nr_rx_slots != 0);
	CHECK_EQ(nifp_of(fd, &r)->ni_tx_rings, 1);
	CHECK_OK(ioctl(fd, NIOCTXSYNC));
	CHECK_ERRNO(EBUSY, ioctl(fd, NIOCREGIF, &r));
}

RULE("1.4-only-outputs", "input fields are unchanged: name, version, ringid, cmd, arg1, flags and spare")
{
	struct nmreq r = legacy_request(unique_name("{1")), before;

	r.nr_ringid = NETMAP_NO_TX_POLL;
	r.nr_flags = NR_REG_ALL_NIC | NR_EXCLUSIVE;
	r.nr_arg1 = 3;
	r.spare2[0] = 77;
	before = r;
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	CHECK(memcmp(r.nr_name, before.nr_name, sizeof(r.nr_name)) == 0);
	CHECK_EQ(r.nr_version, before.nr_version);
	CHECK_EQ(r.nr_ringid, before.nr_ringid);
	CHECK_EQ(r.nr_cmd, before.nr_cmd);
	CHECK_EQ(r.nr_arg1, before.nr_arg1);
	CHECK_EQ(r.nr_flags, before.nr_flags);
	CHECK_EQ(r.spare2[0], before.spare2[0]);
}

RULE("1.4-numbers", "the numbers of slots and rings are requests, as in REGISTER")
{
	struct nmreq r = legacy_request(unique_name("{1"));

	r.nr_tx_slots = 64;
	r.nr_rx_slots = 256;
	r.nr_tx_rings = 2;
	r.nr_rx_rings = 3;
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	CHECK_EQ(r.nr_tx_slots, 64);
	CHECK_EQ(r.nr_rx_slots, 256);
	CHECK_EQ(r.nr_tx_rings, 2);
	CHECK_EQ(r.nr_rx_rings, 3);
}

RULE("1.4-arg1", "nr_arg1 is ignored")
{
	struct nmreq r = legacy_request(unique_name("{1"));

	r.nr_arg1 = 65535;
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
}

RULE("1.4-arg2", "nr_arg2 is the number of the region, in and out")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);
	struct nmreq r = legacy_request(unique_name("{2"));

	r.nr_arg2 = p.reg.nr_mem_id;
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	CHECK_EQ(r.nr_arg2, p.reg.nr_mem_id);
	CHECK_EQ(r.nr_memsize, p.reg.nr_memsize);
	r = legacy_request(unique_name("{3"));
	r.nr_arg2 = 54321;
	CHECK_ERRNO(EINVAL, ioctl(open_device(), NIOCREGIF, &r));
}

RULE("1.4-arg3", "nr_arg3 is the number of extra buffers, in and out")
{
	struct nmreq r = legacy_request(unique_name("{1"));
	int fd = open_device();

	r.nr_arg3 = 7;
	CHECK_OK(ioctl(fd, NIOCREGIF, &r));
	CHECK_EQ(r.nr_arg3, 7);
	CHECK(nifp_of(fd, &r)->ni_bufs_head >= 2);
}

/* Binds a port of three ring pairs, and returns which are bound: bits 0 to 2 tx, 4 to 6 rx. */
static unsigned int
bound_by(unsigned int ringid, unsigned int flags)
{
	struct nmreq r = legacy_request(unique_name("{1"));
	unsigned int i, bits = 0;
	struct netmap_if *nifp;
	int fd = open_device();

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
	CHECK_EQ(bound_by(0, 0), 0x77);
}

RULE("1.4-ringid-HW", "NETMAP_HW_RING and a number without a mode: that ring pair")
{
	CHECK_EQ(bound_by(NETMAP_HW_RING | 1, 0), 0x22);
	CHECK_EQ(bound_by(NETMAP_HW_RING | 2, 0), 0x44);
	CHECK_EQ(bound_by(NETMAP_HW_RING | 3, 0), 1000 + EINVAL);
}

RULE("1.4-ringid-SW", "NETMAP_SW_RING without a mode: the host rings, or EINVAL if there are none")
{
	CHECK_EQ(bound_by(NETMAP_SW_RING, 0), 1000 + EINVAL);
}

RULE("1.4-mode", "a mode in nr_flags takes precedence, and nr_ringid is the ring's number")
{
	CHECK_EQ(bound_by(1, NR_REG_ONE_NIC), 0x22);
	CHECK_EQ(bound_by(1, NR_REG_ALL_NIC), 0x77);
	CHECK_EQ(bound_by(0, NR_REG_SW), 1000 + EINVAL);
	CHECK_EQ(bound_by(0, 15), 1000 + EINVAL);
}

RULE("1.4-flags", "the bits of nr_flags above the mode have the meaning of REGISTER's")
{
	CHECK_EQ(bound_by(0, NR_REG_ALL_NIC | NR_RX_RINGS_ONLY), 0x70);
	CHECK_EQ(bound_by(0, NR_REG_ALL_NIC | NR_TX_RINGS_ONLY), 0x07);
	CHECK_EQ(bound_by(2, NR_REG_ONE_NIC | NR_TX_RINGS_ONLY), 0x04);
}

RULE("1.4-NO_TX_POLL", "NETMAP_NO_TX_POLL in nr_ringid: poll syncs tx rings only for POLLOUT")
{
	struct nmreq r = legacy_request(unique_name("{1"));
	struct port b = open_port(unique_name("}1"), ALL_RINGS);
	int fd = open_device(), revents;
	struct netmap_ring *ring;

	r.nr_ringid = NETMAP_NO_TX_POLL;
	CHECK_OK(ioctl(fd, NIOCREGIF, &r));
	ring = NETMAP_TXRING(nifp_of(fd, &r), 0);
	put(ring, "x", 1, 0);
	CHECK_EQ(poll_fd(fd, POLLIN, 0, &revents), 0);
	rxsync(&b);
	CHECK(nm_ring_empty(rx_ring(&b, 0)));
	CHECK_EQ(poll_fd(fd, POLLOUT, 0, &revents), 1);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("1.4-DO_RX_POLL", "NETMAP_DO_RX_POLL in nr_ringid is accepted")
{
	CHECK_EQ(bound_by(NETMAP_DO_RX_POLL, 0), 0x77);
}

RULE("1.4-pipe-modes", "the modes PIPE_MASTER and PIPE_SLAVE with number n open name{n and name}n")
{
	struct nmreq r = legacy_request(unique_name(""));
	int fd = open_device();
	struct port p;

	r.nr_flags = NR_REG_PIPE_MASTER | NR_EXCLUSIVE;
	r.nr_ringid = 5;
	CHECK_OK(ioctl(fd, NIOCREGIF, &r));
	CHECK(strcmp(r.nr_name, unique_name("")) == 0);
	CHECK_ERRNO(EBUSY, bind_port(&p, open_device(), unique_name("{5"), ALL_RINGS));
	r.nr_flags = NR_REG_PIPE_SLAVE | NR_EXCLUSIVE;
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	CHECK_ERRNO(EBUSY, bind_port(&p, open_device(), unique_name("}5"), ALL_RINGS));
}

RULE("1.4-name-unended", "a name without a zero byte: EINVAL")
{
	struct nmreq r = legacy_request("");

	memset(r.nr_name, 'x', sizeof(r.nr_name));
	CHECK_ERRNO(EINVAL, ioctl(open_device(), NIOCREGIF, &r));
	CHECK_ERRNO(EINVAL, ioctl(open_device(), NIOCGINFO, &r));
}

RULE("1.4-cmd-unknown", "REGOPS, PT_HOST_* and unknown commands: EINVAL")
{
	static const uint16_t no[] = { NETMAP_BDG_REGOPS, NETMAP_PT_HOST_CREATE, NETMAP_PT_HOST_DELETE, 13, 65535 };
	struct nmreq r = legacy_request(unique_name("{1"));
	size_t i;

	for (i = 0; i < sizeof(no) / sizeof(no[0]); i++) {
		r.nr_cmd = no[i];
		CHECK_ERRNO(EINVAL, ioctl(open_device(), NIOCREGIF, &r));
	}
}

RULE("1.4-cmd-absent", "commands on switches and interfaces that do not exist: ENXIO, or ENOENT for LIST")
{
	struct nmreq r = legacy_request("vale99:a");

	r.nr_cmd = NETMAP_BDG_DETACH;
	CHECK_ERRNO(ENXIO, ioctl(open_device(), NIOCREGIF, &r));
	r.nr_cmd = NETMAP_BDG_LIST;
	CHECK_ERRNO(ENOENT, ioctl(open_device(), NIOCGINFO, &r));
	r.nr_cmd = NETMAP_BDG_VNET_HDR;
	r.nr_arg1 = 12;
	CHECK_ERRNO(ENXIO, ioctl(open_device(), NIOCREGIF, &r));
	r = legacy_request("there-is-none");
	r.nr_cmd = NETMAP_BDG_DELIF;
	CHECK_ERRNO(ENXIO, ioctl(open_device(), NIOCREGIF, &r));
}

RULE("1.4-cmd-VNET_HDR_GET", "VNET_HDR_GET writes the header's length to nr_arg1")
{
	struct nmreq r = legacy_request(unique_name("{1"));

	r.nr_cmd = NETMAP_VNET_HDR_GET;
	r.nr_arg1 = 99;
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	CHECK_EQ(r.nr_arg1, 0);
}

RULE("1.4-cmd-VNET_HDR", "VNET_HDR sets the header length of a VALE port to nr_arg1, and VNET_HDR_GET returns it")
{
	char name[16];
	struct nmreq r;
	struct port p;

	snprintf(name, sizeof(name), "valeH%u:a", rule_number());
	p = open_port(name, ALL_RINGS);
	r = legacy_request(name);
	r.nr_cmd = NETMAP_BDG_VNET_HDR;
	r.nr_arg1 = 12;
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	r = legacy_request(name);
	r.nr_cmd = NETMAP_VNET_HDR_GET;
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	CHECK_EQ(r.nr_arg1, 12);
	r.nr_cmd = NETMAP_BDG_VNET_HDR;
	r.nr_arg1 = 11;
	CHECK_ERRNO(EINVAL, ioctl(open_device(), NIOCREGIF, &r));
	txsync(&p);
}

RULE("1.4-NIOCGINFO", "NIOCGINFO returns the same values as NIOCREGIF, and leaves the file unbound")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 3, .nr_tx_slots = 128,
	    .nr_rx_slots = 256));
	struct nmreq r = legacy_request(unique_name("{1"));
	int fd = open_device();

	CHECK_OK(ioctl(fd, NIOCGINFO, &r));
	CHECK_EQ(r.nr_memsize, p.reg.nr_memsize);
	CHECK_EQ(r.nr_arg2, p.reg.nr_mem_id);
	CHECK_EQ(r.nr_tx_rings, 2);
	CHECK_EQ(r.nr_rx_rings, 3);
	CHECK_EQ(r.nr_tx_slots, 128);
	CHECK_EQ(r.nr_rx_slots, 256);
	CHECK_ERRNO(ENXIO, ioctl(fd, NIOCTXSYNC));
}

RULE("1.4-NIOCGINFO-ENXIO", "NIOCGINFO of an interface that does not exist: ENXIO")
{
	struct nmreq r = legacy_request("there-is-none");

	CHECK_ERRNO(ENXIO, ioctl(open_device(), NIOCGINFO, &r));
}

RULE("1.4-NIOCGINFO-region", "NIOCGINFO with an empty name: the values of region nr_arg2")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);
	struct nmreq r = legacy_request("");

	r.nr_arg2 = p.reg.nr_mem_id;
	CHECK_OK(ioctl(open_device(), NIOCGINFO, &r));
	CHECK_EQ(r.nr_memsize, p.reg.nr_memsize);
	CHECK_EQ(r.nr_arg2, p.reg.nr_mem_id);
}

RULE("1.4-NIOCGINFO-version",
    "NIOCGINFO with an empty name and region 0: the values of region 1, as programs detect the version")
{
	struct nmreq r = legacy_request("");

	CHECK_OK(ioctl(open_device(), NIOCGINFO, &r));
	CHECK_EQ(r.nr_arg2, 1);
	CHECK(r.nr_memsize != 0);
}
