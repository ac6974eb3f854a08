/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Sections 1.1 and 4: requests about an interface that is down, and about one
 * that does not exist.
 */
#include "wire.h"

#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))

/* Makes a veth pair whose ends are down, rk and rl. */
static void
make_down_pair(void)
{
	/* Another rule may have left one. */
	CHECK(system("ip link del rk 2>/dev/null; ip link add rk type veth peer name rl") == 0);
}

static void
set_up(const char *state)
{
	char command[64];

	snprintf(command, sizeof(command), "ip link set rk %s && ip link set rl %s", state, state);
	CHECK(system(command) == 0);
}

static const struct {
	const char *what;
	struct nmreq_register reg;
} modes[] = {
	{ "all rings", { .nr_mode = NR_REG_ALL_NIC } },
	{ "exclusive", { .nr_mode = NR_REG_ALL_NIC, .nr_flags = NR_EXCLUSIVE } },
	{ "extra buffers", { .nr_mode = NR_REG_ALL_NIC, .nr_extra_bufs = 20 } },
	{ "one ring pair", { .nr_mode = NR_REG_ONE_NIC, .nr_ringid = 0 } },
	{ "tx rings", { .nr_mode = NR_REG_ALL_NIC, .nr_flags = NR_TX_RINGS_ONLY } },
	{ "rx rings", { .nr_mode = NR_REG_ALL_NIC, .nr_flags = NR_RX_RINGS_ONLY } },
	{ "host rings", { .nr_mode = NR_REG_SW } },
	{ "all and host rings", { .nr_mode = NR_REG_NIC_SW } },
	{ "many host rings", { .nr_mode = NR_REG_SW, .nr_host_tx_rings = 5, .nr_host_rx_rings = 4 } },
	{ "one host ring pair", { .nr_mode = NR_REG_ONE_SW, .nr_ringid = 1, .nr_host_tx_rings = 2, .nr_host_rx_rings = 2 } },
};

RULE("1.1-down-information", "an interface that is down: PORT_INFO_GET, POOLS_INFO_GET, PORT_HDR_GET and NIOCGINFO work")
{
	struct nmreq old = { .nr_version = NETMAP_API, .nr_name = "rk" };
	struct request q;

	make_down_pair();
	init_request(&q, NETMAP_REQ_PORT_INFO_GET, "rk");
	CHECK_OK(send_request(&q));
	CHECK(q.info.nr_memsize > 0 && q.info.nr_tx_rings > 0 && q.info.nr_rx_rings > 0);
	CHECK(q.info.nr_tx_slots > 1 && q.info.nr_rx_slots > 1 && q.info.nr_mem_id > 0);
	reinit_request(&q, NETMAP_REQ_POOLS_INFO_GET, "rk");
	CHECK_OK(send_request(&q));
	CHECK(q.pools.nr_memsize > 0 && q.pools.nr_buf_pool_objtotal > 0);
	reinit_request(&q, NETMAP_REQ_PORT_HDR_GET, "rk");
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.header.nr_hdr_len, 0);
	CHECK_OK(ioctl(q.fd, NIOCGINFO, &old));
	CHECK(old.nr_memsize > 0 && old.nr_tx_rings > 0);
}

RULE("1.1-down-register", "an interface that is down opens in every mode: rings are there, poll waits, syncs work")
{
	size_t i;

	make_down_pair();
	for (i = 0; i < COUNT(modes); i++) {
		struct port p = open_nic("rk", modes[i].reg);
		int revents;

		CHECK(p.reg.nr_tx_rings > 0 && p.reg.nr_rx_rings > 0);
		CHECK(modes[i].reg.nr_host_tx_rings == 0 || p.reg.nr_host_tx_rings == modes[i].reg.nr_host_tx_rings);
		CHECK(modes[i].reg.nr_host_rx_rings == 0 || p.reg.nr_host_rx_rings == modes[i].reg.nr_host_rx_rings);
		CHECK_EQ(p.reg.nr_extra_bufs, modes[i].reg.nr_extra_bufs);
		if ((modes[i].reg.nr_flags & NR_TX_RINGS_ONLY) == 0)
			CHECK_EQ(poll_fd(p.fd, POLLIN, 30, &revents), 0);
		if ((modes[i].reg.nr_flags & NR_RX_RINGS_ONLY) == 0)
			CHECK_EQ(poll_fd(p.fd, POLLOUT, TIMEOUT_MS, &revents), 1);
		txsync(&p);
		rxsync(&p);
		close_port(&p);
	}
}

RULE("1.1-down-wrong", "wrong arguments are refused for an interface that is down as for one that is up")
{
	static const struct {
		const char *name;
		struct nmreq_register reg;
		int error;
	} wrong[] = {
		{ "rk", { .nr_mode = NR_REG_DEFAULT }, EINVAL },
		{ "rk", { .nr_mode = NR_REG_PIPE_MASTER }, EINVAL },
		{ "rk", { .nr_mode = 99 }, EINVAL },
		{ "rk", { .nr_mode = NR_REG_ONE_NIC, .nr_ringid = 500 }, EINVAL },
		{ "rk", { .nr_mode = NR_REG_ONE_SW, .nr_ringid = 500 }, EINVAL },
		{ "rk", { .nr_mode = NR_REG_ALL_NIC, .nr_mem_id = 999 }, EINVAL },
		{ "rk", { .nr_mode = NR_REG_ALL_NIC, .nr_flags = NR_MONITOR_RX }, EINVAL },
		{ "vale1:rk", { .nr_mode = NR_REG_ALL_NIC }, EINVAL },
		{ "rk{1", { .nr_mode = NR_REG_SW }, EINVAL },
	};
	const char *names[] = { "ra", "rk" };
	size_t i, n;

	make_down_pair();
	for (n = 0; n < COUNT(names); n++)
		for (i = 0; i < COUNT(wrong); i++) {
			char name[64];
			struct port p;

			snprintf(name, sizeof(name), "%s", wrong[i].name);
			memcpy(strstr(name, "rk"), names[n], 2);
			CHECK_ERRNO(wrong[i].error, bind_port(&p, open_device(), name, wrong[i].reg));
			CHECK_OK(close(p.fd));
		}
}

RULE("1.1-down-up", "packets move when the interface goes up, also after it was down again, with the same file")
{
	struct port p, m;
	int i, far;

	make_down_pair();
	p = open_nic("rk", ALL_RINGS);
	CHECK_OK(bind_port(&m, open_device(), "rk", REG(.nr_flags = NR_MONITOR_TX | NR_MONITOR_RX)));
	m.mem = mmap(NULL, m.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);
	CHECK(m.mem != MAP_FAILED);
	m.nifp = NETMAP_IF(m.mem, m.reg.nr_offset);
	for (i = 0; i < 3; i++) {
		int tries;

		set_up("up");
		far = open_wire("rl");
		/* Frames are lost before both ends have a carrier. */
		for (tries = 0; tries < TIMEOUT_MS / 50; tries++) {
			put(tx_ring(&p, 0), frame(10), FRAME, 0);
			txsync(&p);
			if (received_on_wire(far, 50) == 10)
				break;
		}
		CHECK(tries < TIMEOUT_MS / 50);
		CHECK_EQ(received_by(&m), 10);
		CHECK(send(far, frame(20), FRAME, 0) == FRAME);
		CHECK_EQ(received_by(&p), 20);
		while (received_by(&m) == 10)
			;
		CHECK_OK(close(far));
		set_up("down");
		txsync(&p);
		CHECK_EQ(poll_fd(p.fd, POLLIN, 30, &(int){ 0 }), 0);
	}
}

RULE("1.1-down-pipe", "pipes of an interface that is down work")
{
	struct port m, s;

	make_down_pair();
	m = open_port("rk{1", ALL_RINGS);
	s = open_in_region(&m, "rk}1", ALL_RINGS);
	put(tx_ring(&m, 0), "x", 1, 0);
	txsync(&m);
	CHECK_EQ(poll_fd(s.fd, POLLIN, TIMEOUT_MS, &(int){ 0 }), 1);
}

RULE("1.1-down-legacy", "NIOCREGIF opens an interface that is down")
{
	struct nmreq old = { .nr_version = NETMAP_API, .nr_name = "rk", .nr_arg3 = 10 };
	int fd = open_device();

	make_down_pair();
	CHECK_OK(ioctl(fd, NIOCREGIF, &old));
	CHECK(old.nr_memsize > 0 && old.nr_tx_rings > 0);
	CHECK_EQ(old.nr_arg3, 10);
}

RULE("1.1-down-switch", "an interface that is down is attached, found, polled and detached; packets move when it is up")
{
	struct request q;
	struct port v;
	int far;

	make_down_pair();
	v = open_port("vale1:v", ALL_RINGS);
	init_request(&q, NETMAP_REQ_VALE_ATTACH, "vale1:rk");
	q.attach.reg.nr_mode = NR_REG_ALL_NIC;
	CHECK_OK(send_request(&q));
	reinit_request(&q, NETMAP_REQ_VALE_LIST, "vale1:rk");
	CHECK_OK(send_request(&q));
	CHECK(q.list.nr_port_idx != 255);
	set_up("up");
	far = open_wire("rl");
	do {
		put(tx_ring(&v, 0), frame(7), FRAME, 0);
		txsync(&v);
	} while (received_on_wire(far, 50) != 7);
	CHECK(send(far, frame(8), FRAME, 0) == FRAME);
	CHECK_EQ(received_by(&v), 8);
	reinit_request(&q, NETMAP_REQ_VALE_DETACH, "vale1:rk");
	CHECK_OK(send_request(&q));
}

RULE("1.1-attached-holder", "an attached interface that is opened, or attached elsewhere: EBUSY")
{
	struct request q;
	struct port p;

	make_down_pair();
	init_request(&q, NETMAP_REQ_VALE_ATTACH, "vale1:rk");
	q.attach.reg.nr_mode = NR_REG_ALL_NIC;
	CHECK_OK(send_request(&q));
	CHECK_ERRNO(EBUSY, bind_port(&p, open_device(), "rk", ALL_RINGS));
	CHECK_ERRNO(EBUSY, send_request(&q));
	reinit_request(&q, NETMAP_REQ_VALE_ATTACH, "vale2:rk");
	q.attach.reg.nr_mode = NR_REG_ALL_NIC;
	CHECK_ERRNO(EBUSY, send_request(&q));
	reinit_request(&q, NETMAP_REQ_VALE_DETACH, "vale1:rk");
	CHECK_OK(send_request(&q));
}

RULE("1.1-missing", "an interface that does not exist: ENXIO from each request about it")
{
	static const int types[] = { NETMAP_REQ_REGISTER, NETMAP_REQ_PORT_INFO_GET, NETMAP_REQ_POOLS_INFO_GET,
		NETMAP_REQ_PORT_HDR_GET, NETMAP_REQ_PORT_HDR_SET };
	struct nmreq old = { .nr_version = NETMAP_API, .nr_name = "missing" };
	struct request q;
	size_t i;

	for (i = 0; i < COUNT(types); i++) {
		init_request(&q, types[i], "missing");
		CHECK_ERRNO(ENXIO, send_request(&q));
	}
	CHECK_ERRNO(ENXIO, ioctl(q.fd, NIOCGINFO, &old));
	CHECK_ERRNO(ENXIO, ioctl(q.fd, NIOCREGIF, &old));
	reinit_request(&q, NETMAP_REQ_VALE_ATTACH, "vale1:missing");
	q.attach.reg.nr_mode = NR_REG_ALL_NIC;
	CHECK_ERRNO(ENXIO, send_request(&q));
}
