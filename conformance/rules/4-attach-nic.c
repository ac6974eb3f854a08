/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Sections 1.1 and 4: interfaces as ports of switches, and ports of switches
 * that are interfaces.
 */
#include "wire.h"

/* Attaches an interface, and returns its port number. */
static uint32_t
attach(const char *name)
{
	struct request q;
	int i;

	init_request(&q, NETMAP_REQ_VALE_ATTACH, name);
	q.attach.reg.nr_mode = NR_REG_ALL_NIC;
	/* The kernel releases a queue some time after its close. */
	for (i = 0; i < TIMEOUT_MS / 10 && send_request(&q) != 0; i++) {
		if (errno != EBUSY)
			rule_fails(__FILE__, __LINE__, "%s cannot be attached: %s", name, error_name(errno));
		usleep(10000);
	}
	CHECK(i < TIMEOUT_MS / 10);
	close(q.fd);
	return q.attach.port_index;
}

static int
attach_once(const char *name)
{
	struct request q;

	init_request(&q, NETMAP_REQ_VALE_ATTACH, name);
	q.attach.reg.nr_mode = NR_REG_ALL_NIC;
	return send_request(&q);
}

RULE("1.1-VALE_ATTACH", "an attached interface is a port of the switch in both directions")
{
	struct port v = open_port("vale1:v", ALL_RINGS);
	int far = open_wire("rb"), i;
	struct request q;
	uint32_t index = attach("vale1:ra");

	init_request(&q, NETMAP_REQ_VALE_LIST, "vale1:ra");
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.list.nr_port_idx, index);
	for (i = 0; i < 5; i++)
		CHECK(send(far, frame((unsigned)i), FRAME, 0) == FRAME);
	for (i = 0; i < 5; i++)
		CHECK_EQ(received_by(&v), i);
	put(tx_ring(&v, 0), frame(77), FRAME, 0);
	txsync(&v);
	CHECK_EQ(received_on_wire(far, TIMEOUT_MS), 77);
	CHECK_OK(simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
}

RULE("1.1-VALE_ATTACH-host",
    "with NR_REG_NIC_SW the host stack is a second port: its traffic passes through the switch")
{
	struct port v = open_port("vale1:v", ALL_RINGS);
	int far = open_wire("rb"), stack = open_wire("ra"), i;
	struct request q;
	uint32_t index;

	init_request(&q, NETMAP_REQ_VALE_ATTACH, "vale1:ra");
	q.attach.reg.nr_mode = NR_REG_NIC_SW;
	/* Repeated as in attach(). */
	for (i = 0; i < TIMEOUT_MS / 10 && send_request(&q) != 0; i++) {
		if (errno != EBUSY)
			rule_fails(__FILE__, __LINE__, "it cannot be attached: %s", error_name(errno));
		usleep(10000);
	}
	CHECK(i < TIMEOUT_MS / 10);
	index = q.attach.port_index;
	init_request(&q, NETMAP_REQ_VALE_LIST, "vale1:ra^");
	CHECK_OK(send_request(&q));
	CHECK(q.list.nr_port_idx != index && q.list.nr_port_idx != 255);
	for (i = 0; i < 5; i++) {
		CHECK(send(stack, frame((unsigned)i), FRAME, 0) == FRAME);
		CHECK_EQ(received_by(&v), i);
		CHECK_EQ(received_on_wire(far, TIMEOUT_MS), i);
	}
	put(tx_ring(&v, 0), frame(77), FRAME, 0);
	txsync(&v);
	CHECK_EQ(received_on_wire(far, TIMEOUT_MS), 77);
	while ((i = received_on_wire(stack, TIMEOUT_MS)) < 5 && i >= 0)
		; /* packets that this socket has sent */
	CHECK_EQ(i, 77);
	CHECK_OK(simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
	CHECK_ERRNO(ENXIO, simple(NETMAP_REQ_VALE_DETACH, "vale1:ra^"));
}

RULE("1.1-VALE_ATTACH-sink",
    "a sink is attached like an interface: it takes what the switch sends to it, and no program can open it")
{
	struct port v = open_port("vale1:v", ALL_RINGS), m, p;
	struct request q;
	uint32_t index = attach("vale1:nmsink0");
	int i;

	init_request(&q, NETMAP_REQ_VALE_LIST, "vale1:nmsink0");
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.list.nr_port_idx, index);
	CHECK_ERRNO(EBUSY, bind_port(&p, open_device(), "nmsink0", ALL_RINGS));
	CHECK_ERRNO(EBUSY, attach_once("vale2:nmsink0"));
	m = open_port("nmsink0", REG(.nr_flags = NR_MONITOR_TX));
	for (i = 0; i < 5; i++) {
		put(tx_ring(&v, 0), frame((unsigned)i), FRAME, 0);
		txsync(&v);
		CHECK_EQ(received_by(&m), i);
	}
	close_port(&m);
	CHECK_OK(simple(NETMAP_REQ_VALE_DETACH, "vale1:nmsink0"));
	p = open_port("nmsink0", ALL_RINGS);
	CHECK_ERRNO(EBUSY, attach_once("vale1:nmsink0"));
}

RULE("1.1-VALE_ATTACH-name", "an interface is attached by its name, whatever characters it contains")
{
	struct request q;

	attach("vale1:r-2");
	init_request(&q, NETMAP_REQ_VALE_LIST, "vale1:r-2");
	CHECK_OK(send_request(&q));
	CHECK_OK(simple(NETMAP_REQ_VALE_DETACH, "vale1:r-2"));
}

RULE("1.1-VALE_ATTACH-ENXIO", "VALE_ATTACH of an interface that does not exist: ENXIO")
{
	CHECK_ERRNO(ENXIO, attach_once("vale1:nosuch"));
}

RULE("1.1-VALE_ATTACH-EBUSY", "VALE_ATTACH of an interface that is attached already, or open in a program: EBUSY")
{
	struct port p;

	attach("vale1:ra");
	CHECK_ERRNO(EBUSY, attach_once("vale1:ra"));
	CHECK_ERRNO(EBUSY, attach_once("vale2:ra"));
	CHECK_OK(simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
	p = open_nic("rb", ALL_RINGS);
	CHECK_ERRNO(EBUSY, attach_once("vale1:rb"));
	txsync(&p);
}

RULE("1.1-REGISTER-EBUSY-attached", "REGISTER of an attached interface: EBUSY")
{
	struct port p;

	attach("vale1:ra");
	CHECK_ERRNO(EBUSY, bind_port(&p, open_device(), "ra", ALL_RINGS));
	CHECK_OK(simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
}

RULE("1.1-VALE_DETACH",
    "VALE_DETACH returns the port's number, and the kernel's stack receives from the interface again")
{
	uint32_t index = attach("vale1:ra");
	int far, stack, i;
	struct request q;

	init_request(&q, NETMAP_REQ_VALE_DETACH, "vale1:ra");
	q.detach.port_index = 99;
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.detach.port_index, index);
	CHECK_ERRNO(ENXIO, simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
	far = open_wire("rb");
	stack = open_wire("ra");
	for (i = 0; i < TIMEOUT_MS / 50; i++) {
		CHECK(send(far, frame(7), FRAME, 0) == FRAME);
		if (received_on_wire(stack, 50) == 7)
			return;
	}
	rule_fails(__FILE__, __LINE__, "no frame came back to the system");
}

/* ---- persistent ports */

static int
new_port(const char *name)
{
	return simple(NETMAP_REQ_VALE_NEWIF, name);
}

RULE("1.1-VALE_NEWIF", "a persistent port is an interface of the kernel until it is deleted")
{
	CHECK_OK(new_port("vi0"));
	CHECK(if_nametoindex("vi0") != 0);
	CHECK_OK(simple(NETMAP_REQ_VALE_DELIF, "vi0"));
	CHECK(if_nametoindex("vi0") == 0);
	CHECK_ERRNO(ENXIO, simple(NETMAP_REQ_VALE_DELIF, "vi0"));
}

RULE("1.1-VALE_NEWIF-EEXIST", "VALE_NEWIF with the name of an existing interface: EEXIST")
{
	CHECK_ERRNO(EEXIST, new_port("ra"));
	CHECK_OK(new_port("vi1"));
	CHECK_ERRNO(EEXIST, new_port("vi1"));
	CHECK_OK(simple(NETMAP_REQ_VALE_DELIF, "vi1"));
}

RULE("1.1-VALE_NEWIF-EINVAL", "VALE_NEWIF with a name that begins with vale, or has 16 characters or more: EINVAL")
{
	CHECK_ERRNO(EINVAL, new_port("vale1:v"));
	CHECK_ERRNO(EINVAL, new_port("vale7"));
	CHECK_ERRNO(EINVAL, new_port("sixteen-letters-"));
	CHECK_OK(new_port("fifteen-letters"));
	CHECK_OK(simple(NETMAP_REQ_VALE_DELIF, "fifteen-letters"));
}

RULE("1.1-VALE_DELIF-EINVAL", "VALE_DELIF of an interface that is no persistent port: EINVAL")
{
	CHECK_ERRNO(EINVAL, simple(NETMAP_REQ_VALE_DELIF, "ra"));
}

RULE("1.1-VALE_DELIF-EBUSY", "VALE_DELIF of an attached persistent port: EBUSY")
{
	CHECK_OK(new_port("vi2"));
	attach("vale1:vi2");
	CHECK_ERRNO(EBUSY, simple(NETMAP_REQ_VALE_DELIF, "vi2"));
	CHECK_OK(simple(NETMAP_REQ_VALE_DETACH, "vale1:vi2"));
	CHECK_OK(simple(NETMAP_REQ_VALE_DELIF, "vi2"));
}

RULE("4-persistent", "an attached persistent port carries packets between the host stack and the switch")
{
	struct port v = open_port("vale1:v", ALL_RINGS);
	int stack;

	CHECK_OK(new_port("vi3"));
	attach("vale1:vi3");
	CHECK(system("ip link set vi3 up") == 0);
	stack = open_wire("vi3");
	CHECK(send(stack, frame(3), FRAME, 0) == FRAME);
	CHECK_EQ(received_by(&v), 3);
	put(tx_ring(&v, 0), frame(4), FRAME, 0);
	txsync(&v);
	CHECK_EQ(received_on_wire(stack, TIMEOUT_MS), 4);
	CHECK_OK(simple(NETMAP_REQ_VALE_DETACH, "vale1:vi3"));
	CHECK_OK(simple(NETMAP_REQ_VALE_DELIF, "vi3"));
}

RULE("1.4-NEWIF", "legacy requests create, attach, poll, detach and delete a persistent port")
{
	struct nmreq r = { .nr_name = "vi4", .nr_version = NETMAP_API, .nr_cmd = NETMAP_BDG_NEWIF };

	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	CHECK(if_nametoindex("vi4") != 0);
	r = (struct nmreq){ .nr_name = "vale1:vi4", .nr_version = NETMAP_API, .nr_cmd = NETMAP_BDG_ATTACH };
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	r.nr_cmd = NETMAP_BDG_POLLING_ON;
	r.nr_flags = NR_REG_ALL_NIC;
	r.nr_arg1 = 1;
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	r.nr_cmd = NETMAP_BDG_POLLING_OFF;
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	r.nr_cmd = NETMAP_BDG_DETACH;
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	r = (struct nmreq){ .nr_name = "vi4", .nr_version = NETMAP_API, .nr_cmd = NETMAP_BDG_DELIF };
	CHECK_OK(ioctl(open_device(), NIOCREGIF, &r));
	CHECK(if_nametoindex("vi4") == 0);
}

/* ---- polling */

static int
poll_by(const char *name, uint32_t mode, uint32_t first, uint32_t cpus)
{
	struct request q;

	init_request(&q, NETMAP_REQ_VALE_POLLING_ENABLE, name);
	q.polling.nr_mode = mode;
	q.polling.nr_first_cpu_id = first;
	q.polling.nr_num_polling_cpus = cpus;
	return send_request(&q);
}

RULE("1.1-VALE_POLLING", "CPUs can be dedicated to an attached interface; meanwhile DETACH: EBUSY")
{
	attach("vale1:ra");
	CHECK_OK(poll_by("vale1:ra", NETMAP_POLLING_MODE_SINGLE_CPU, 0, 1));
	CHECK_ERRNO(EBUSY, simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
	CHECK_OK(simple(NETMAP_REQ_VALE_POLLING_DISABLE, "vale1:ra"));
	CHECK_OK(simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
}

RULE("1.1-VALE_POLLING-EOPNOTSUPP", "VALE_POLLING_ENABLE of a port that is no interface: EOPNOTSUPP")
{
	struct port v = open_port("vale1:v", ALL_RINGS);

	CHECK_ERRNO(EOPNOTSUPP, poll_by("vale1:v", NETMAP_POLLING_MODE_SINGLE_CPU, 0, 1));
	txsync(&v);
}
