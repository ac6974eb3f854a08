/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Sections 1.1 and 4: interfaces as ports of switches, and ports of switches
 * that are interfaces.
 */
#include "wire.h"

/* A request about a port that carries nothing. ioctl's result. */
static int
simple(int type, const char *name)
{
	struct ask q;
	int result, error;

	ask(&q, type, name);
	result = send_ask(&q);
	error = errno;
	close(q.fd);
	errno = error;
	return result;
}

/* Attaches it; its number. */
static uint32_t
attach(const char *name)
{
	struct ask q;
	int i;

	ask(&q, NETMAP_REQ_VALE_ATTACH, name);
	q.attach.reg.nr_mode = NR_REG_ALL_NIC;
	/* The kernel may need a moment to let go of a queue that was just closed. */
	for (i = 0; i < LONG / 10 && send_ask(&q) != 0; i++) {
		if (errno != EBUSY)
			rule_fails(__FILE__, __LINE__, "%s cannot be attached: %s", name, error_name(errno));
		usleep(10000);
	}
	HOLDS(i < LONG / 10);
	close(q.fd);
	return q.attach.port_index;
}

static int
attach_once(const char *name)
{
	struct ask q;

	ask(&q, NETMAP_REQ_VALE_ATTACH, name);
	q.attach.reg.nr_mode = NR_REG_ALL_NIC;
	return send_ask(&q);
}

RULE("1.1-VALE_ATTACH", "an attached interface is a port of the switch: both directions pass")
{
	struct port v = open_port("vale1:v", ANY);
	int far = wire("rb"), i;
	struct ask q;
	uint32_t index = attach("vale1:ra");

	ask(&q, NETMAP_REQ_VALE_LIST, "vale1:ra");
	WORKS(send_ask(&q));
	SAME(q.list.nr_port_idx, index);
	for (i = 0; i < 5; i++)
		HOLDS(send(far, frame((unsigned)i), FRAME, 0) == FRAME);
	for (i = 0; i < 5; i++)
		SAME(received_by(&v), i);
	put(tx_ring(&v, 0), frame(77), FRAME, 0);
	txsync(&v);
	SAME(seen_on(far, LONG), 77);
	WORKS(simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
}

RULE("1.1-VALE_ATTACH-host", "with NR_REG_NIC_SW the host's stack is a second port: what it sends and receives passes the switch")
{
	struct port v = open_port("vale1:v", ANY);
	int far = wire("rb"), stack = wire("ra"), i;
	struct ask q;
	uint32_t index;

	ask(&q, NETMAP_REQ_VALE_ATTACH, "vale1:ra");
	q.attach.reg.nr_mode = NR_REG_NIC_SW;
	/* As in attach(). */
	for (i = 0; i < LONG / 10 && send_ask(&q) != 0; i++) {
		if (errno != EBUSY)
			rule_fails(__FILE__, __LINE__, "it cannot be attached: %s", error_name(errno));
		usleep(10000);
	}
	HOLDS(i < LONG / 10);
	index = q.attach.port_index;
	ask(&q, NETMAP_REQ_VALE_LIST, "vale1:ra^");
	WORKS(send_ask(&q));
	HOLDS(q.list.nr_port_idx != index && q.list.nr_port_idx != 255);
	for (i = 0; i < 5; i++) {
		HOLDS(send(stack, frame((unsigned)i), FRAME, 0) == FRAME);
		SAME(received_by(&v), i);
		SAME(seen_on(far, LONG), i);
	}
	put(tx_ring(&v, 0), frame(77), FRAME, 0);
	txsync(&v);
	SAME(seen_on(far, LONG), 77);
	while ((i = seen_on(stack, LONG)) < 5 && i >= 0)
		; /* what it sent itself */
	SAME(i, 77);
	WORKS(simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
	REFUSED(ENXIO, simple(NETMAP_REQ_VALE_DETACH, "vale1:ra^"));
}

RULE("1.1-VALE_ATTACH-name", "an interface is attached by its name, whatever characters that has")
{
	struct ask q;

	attach("vale1:r-2");
	ask(&q, NETMAP_REQ_VALE_LIST, "vale1:r-2");
	WORKS(send_ask(&q));
	WORKS(simple(NETMAP_REQ_VALE_DETACH, "vale1:r-2"));
}

RULE("1.1-VALE_ATTACH-ENXIO", "an interface that does not exist: ENXIO")
{
	REFUSED(ENXIO, attach_once("vale1:nosuch"));
}

RULE("1.1-VALE_ATTACH-EBUSY", "an interface that is attached already, or that a program has open: EBUSY")
{
	struct port p;

	attach("vale1:ra");
	REFUSED(EBUSY, attach_once("vale1:ra"));
	REFUSED(EBUSY, attach_once("vale2:ra"));
	WORKS(simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
	p = open_nic("rb", ANY);
	REFUSED(EBUSY, attach_once("vale1:rb"));
	txsync(&p);
}

RULE("1.1-REGISTER-EBUSY-attached", "an interface that is attached cannot be opened: EBUSY")
{
	struct port p;

	attach("vale1:ra");
	REFUSED(EBUSY, bind_port(&p, device(), "ra", ANY));
	WORKS(simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
}

RULE("1.1-VALE_DETACH", "a detached interface tells its number once more, and is the system's again")
{
	uint32_t index = attach("vale1:ra");
	int far, stack, i;
	struct ask q;

	ask(&q, NETMAP_REQ_VALE_DETACH, "vale1:ra");
	q.detach.port_index = 99;
	WORKS(send_ask(&q));
	SAME(q.detach.port_index, index);
	REFUSED(ENXIO, simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
	far = wire("rb");
	stack = wire("ra");
	for (i = 0; i < LONG / 50; i++) {
		HOLDS(send(far, frame(7), FRAME, 0) == FRAME);
		if (seen_on(stack, 50) == 7)
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

RULE("1.1-VALE_NEWIF", "a persistent port is an interface of the system, until it is deleted")
{
	WORKS(new_port("vi0"));
	HOLDS(if_nametoindex("vi0") != 0);
	WORKS(simple(NETMAP_REQ_VALE_DELIF, "vi0"));
	HOLDS(if_nametoindex("vi0") == 0);
	REFUSED(ENXIO, simple(NETMAP_REQ_VALE_DELIF, "vi0"));
}

RULE("1.1-VALE_NEWIF-EEXIST", "a name that an interface has: EEXIST")
{
	REFUSED(EEXIST, new_port("ra"));
	WORKS(new_port("vi1"));
	REFUSED(EEXIST, new_port("vi1"));
	WORKS(simple(NETMAP_REQ_VALE_DELIF, "vi1"));
}

RULE("1.1-VALE_NEWIF-EINVAL", "a name that begins with vale, or has 16 characters or more: EINVAL")
{
	REFUSED(EINVAL, new_port("vale1:v"));
	REFUSED(EINVAL, new_port("vale7"));
	REFUSED(EINVAL, new_port("sixteen-letters-"));
	WORKS(new_port("fifteen-letters"));
	WORKS(simple(NETMAP_REQ_VALE_DELIF, "fifteen-letters"));
}

RULE("1.1-VALE_DELIF-EINVAL", "an interface that is no persistent port: EINVAL")
{
	REFUSED(EINVAL, simple(NETMAP_REQ_VALE_DELIF, "ra"));
}

RULE("1.1-VALE_DELIF-EBUSY", "a persistent port that is attached: EBUSY")
{
	WORKS(new_port("vi2"));
	attach("vale1:vi2");
	REFUSED(EBUSY, simple(NETMAP_REQ_VALE_DELIF, "vi2"));
	WORKS(simple(NETMAP_REQ_VALE_DETACH, "vale1:vi2"));
	WORKS(simple(NETMAP_REQ_VALE_DELIF, "vi2"));
}

RULE("4-persistent", "a persistent port that is attached carries packets between the system and the switch")
{
	struct port v = open_port("vale1:v", ANY);
	int stack;

	WORKS(new_port("vi3"));
	attach("vale1:vi3");
	HOLDS(system("ip link set vi3 up") == 0);
	stack = wire("vi3");
	HOLDS(send(stack, frame(3), FRAME, 0) == FRAME);
	SAME(received_by(&v), 3);
	put(tx_ring(&v, 0), frame(4), FRAME, 0);
	txsync(&v);
	SAME(seen_on(stack, LONG), 4);
	WORKS(simple(NETMAP_REQ_VALE_DETACH, "vale1:vi3"));
	WORKS(simple(NETMAP_REQ_VALE_DELIF, "vi3"));
}

RULE("1.4-NEWIF", "the older requests make, attach, poll, detach and delete a persistent port, too")
{
	struct nmreq r = { .nr_name = "vi4", .nr_version = NETMAP_API, .nr_cmd = NETMAP_BDG_NEWIF };

	WORKS(ioctl(device(), NIOCREGIF, &r));
	HOLDS(if_nametoindex("vi4") != 0);
	r = (struct nmreq){ .nr_name = "vale1:vi4", .nr_version = NETMAP_API, .nr_cmd = NETMAP_BDG_ATTACH };
	WORKS(ioctl(device(), NIOCREGIF, &r));
	r.nr_cmd = NETMAP_BDG_POLLING_ON;
	r.nr_flags = NR_REG_ALL_NIC;
	r.nr_arg1 = 1;
	WORKS(ioctl(device(), NIOCREGIF, &r));
	r.nr_cmd = NETMAP_BDG_POLLING_OFF;
	WORKS(ioctl(device(), NIOCREGIF, &r));
	r.nr_cmd = NETMAP_BDG_DETACH;
	WORKS(ioctl(device(), NIOCREGIF, &r));
	r = (struct nmreq){ .nr_name = "vi4", .nr_version = NETMAP_API, .nr_cmd = NETMAP_BDG_DELIF };
	WORKS(ioctl(device(), NIOCREGIF, &r));
	HOLDS(if_nametoindex("vi4") == 0);
}

/* ---- polling */

static int
poll_by(const char *name, uint32_t mode, uint32_t first, uint32_t cpus)
{
	struct ask q;

	ask(&q, NETMAP_REQ_VALE_POLLING_ENABLE, name);
	q.polling.nr_mode = mode;
	q.polling.nr_first_cpu_id = first;
	q.polling.nr_num_polling_cpus = cpus;
	return send_ask(&q);
}

RULE("1.1-VALE_POLLING", "an attached interface can be served by processors of its own; meanwhile DETACH is EBUSY")
{
	attach("vale1:ra");
	WORKS(poll_by("vale1:ra", NETMAP_POLLING_MODE_SINGLE_CPU, 0, 1));
	REFUSED(EBUSY, simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
	WORKS(simple(NETMAP_REQ_VALE_POLLING_DISABLE, "vale1:ra"));
	WORKS(simple(NETMAP_REQ_VALE_DETACH, "vale1:ra"));
}

RULE("1.1-VALE_POLLING-EOPNOTSUPP", "a port that is no interface: EOPNOTSUPP")
{
	struct port v = open_port("vale1:v", ANY);

	REFUSED(EOPNOTSUPP, poll_by("vale1:v", NETMAP_POLLING_MODE_SINGLE_CPU, 0, 1));
	txsync(&v);
}
