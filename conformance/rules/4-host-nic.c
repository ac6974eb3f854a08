/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: host rings, by which the system's stack is one more party of an
 * interface.
 */
#include <linux/if_packet.h>
#include <sys/socket.h>

#include "wire.h"

/* The number of a port's first host ring, among its rings of a direction. */
static unsigned int
host_tx(const struct port *p)
{
	return p->nifp->ni_tx_rings;
}

static unsigned int
host_rx(const struct port *p)
{
	return p->nifp->ni_rx_rings;
}

/* Sends for the system by an interface. */
static void
system_sends(int stack, unsigned int n)
{
	HOLDS(send(stack, frame(n), FRAME, 0) == FRAME);
}

/* Whether a bound host receive ring has this frame within the time. */
static int
host_ring_has(const struct port *p, unsigned int n, int limit_ms)
{
	unsigned int i, got;
	int revents;

	while (poll_fd(p->fd, POLLIN, limit_ms, &revents) == 1 && revents == POLLIN)
		for (i = host_rx(p); i < host_rx(p) + p->nifp->ni_host_rx_rings; i++)
			while (p->nifp->ring_ofs[tx_entries(p) + i] != 0 && !nm_ring_empty(rx_ring(p, i))) {
				struct netmap_slot *slot = get(rx_ring(p, i));
				char *data = data_of(rx_ring(p, i), slot);

				memcpy(&got, data + 14, sizeof(got));
				if (slot->len >= 18 && memcmp(data + 12, "\x88\xb5", 2) == 0 && got == n)
					return 1;
			}
	return 0;
}

RULE("1.2-SW", "mode SW binds the host rings and none of the interface's own")
{
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_SW));
	unsigned int i;

	SAME(p.nifp->ni_host_tx_rings, 1);
	SAME(p.nifp->ni_host_rx_rings, 1);
	for (i = 0; i < host_tx(&p); i++)
		SAME(p.nifp->ring_ofs[i], 0);
	for (i = 0; i < host_rx(&p); i++)
		SAME(p.nifp->ring_ofs[tx_entries(&p) + i], 0);
	HOLDS(p.nifp->ring_ofs[host_tx(&p)] != 0);
	HOLDS(p.nifp->ring_ofs[tx_entries(&p) + host_rx(&p)] != 0);
	SAME(tx_ring(&p, host_tx(&p))->dir, 0);
	SAME(rx_ring(&p, host_rx(&p))->dir, 1);
}

RULE("1.2-NIC_SW", "mode NIC_SW binds all rings, the interface's and the host's")
{
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_NIC_SW));
	unsigned int i;

	for (i = 0; i < all_entries(&p); i++)
		HOLDS(p.nifp->ring_ofs[i] != 0);
}

RULE("1.2-host-rings", "the first opener says how many host rings there are; on an open port that changes nothing")
{
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_SW, .nr_host_tx_rings = 2, .nr_host_rx_rings = 2)), q;

	SAME(p.reg.nr_host_tx_rings, 2);
	SAME(p.reg.nr_host_rx_rings, 2);
	SAME(p.nifp->ni_host_tx_rings, 2);
	q = open_nic("ra", WISH(.nr_mode = NR_REG_SW, .nr_host_tx_rings = 3, .nr_host_rx_rings = 3));
	SAME(q.reg.nr_host_tx_rings, 2);
	SAME(q.reg.nr_host_rx_rings, 2);
}

RULE("1.2-ONE_SW", "mode ONE_SW binds the host pair nr_ringid; one that is not there: EINVAL")
{
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_ONE_SW, .nr_ringid = 1, .nr_host_tx_rings = 2,
	    .nr_host_rx_rings = 2)), q;

	SAME(p.nifp->ring_ofs[host_tx(&p)], 0);
	HOLDS(p.nifp->ring_ofs[host_tx(&p) + 1] != 0);
	SAME(p.nifp->ring_ofs[tx_entries(&p) + host_rx(&p)], 0);
	HOLDS(p.nifp->ring_ofs[tx_entries(&p) + host_rx(&p) + 1] != 0);
	REFUSED(EINVAL, bind_port(&q, device(), "ra", WISH(.nr_mode = NR_REG_ONE_SW, .nr_ringid = 2)));
}

RULE("4-host-region", "host rings lie in the interface's region")
{
	struct port host = open_nic("ra", WISH(.nr_mode = NR_REG_SW)), p = open_nic("ra", ANY);

	SAME(host.reg.nr_mem_id, p.reg.nr_mem_id);
	SAME(host.reg.nr_memsize, p.reg.nr_memsize);
}

RULE("4-host-rx", "what the system sends by the interface comes to the host ring, and not to the wire")
{
	int stack = wire("ra"), far = wire("rb"), i;
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_SW));

	for (i = 1; i <= 5; i++)
		system_sends(stack, (unsigned)i);
	for (i = 1; i <= 5; i++)
		HOLDS(host_ring_has(&p, (unsigned)i, LONG));
	SAME(seen_on(far, 50), -1);
}

RULE("4-host-tx", "what the program sends by the host ring the system receives, and not the wire")
{
	int stack = wire("ra"), far = wire("rb"), i;
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_SW));

	for (i = 0; i < 5; i++)
		put(tx_ring(&p, host_tx(&p)), frame((unsigned)i), FRAME, 0);
	txsync(&p);
	for (i = 0; i < 5; i++)
		SAME(seen_on(stack, LONG), i);
	SAME(seen_on(far, 50), -1);
}

RULE("4-host-forward", "a program between wire and system passes packets on, both ways, by an exchange of buffers")
{
	int stack = wire("ra"), far = wire("rb"), tries;
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_NIC_SW));
	unsigned int i;
	int revents, to_wire = 0, to_system = 0;

	system_sends(stack, 1);
	HOLDS(send(far, frame(2), FRAME, 0) == FRAME);
	for (tries = 0; tries < LONG / 10 && !(to_wire && to_system); tries++) {
		poll_fd(p.fd, POLLIN, 10, &revents);
		for (i = 0; i < host_rx(&p) + p.nifp->ni_host_rx_rings; i++)
			while (!nm_ring_empty(rx_ring(&p, i))) {
				struct netmap_slot *from = get(rx_ring(&p, i)), *to;
				int host = i >= host_rx(&p);
				uint32_t buf;

				to = put(tx_ring(&p, host ? 0 : host_tx(&p)), NULL, from->len, NS_BUF_CHANGED);
				buf = to->buf_idx;
				to->buf_idx = from->buf_idx;
				from->buf_idx = buf;
				from->flags |= NS_BUF_CHANGED;
			}
		txsync(&p);
		to_wire |= seen_on(far, 10) == 1;
		to_system |= seen_on(stack, 10) == 2;
	}
	HOLDS(to_wire);
	HOLDS(to_system);
}

/* Gives back all that has come, to go on. */
static void
give_back(struct port *p)
{
	unsigned int i;
	int revents;

	poll_fd(p->fd, POLLIN, 10, &revents);
	for (i = 0; i < host_rx(p) + p->nifp->ni_host_rx_rings; i++) {
		if (p->nifp->ring_ofs[tx_entries(p) + i] == 0)
			continue;
		rx_ring(p, i)->flags |= NR_FORWARD;
		while (!nm_ring_empty(rx_ring(p, i)))
			get(rx_ring(p, i))->flags |= NS_FORWARD;
	}
	rxsync(p);
}

RULE("3-FORWARD-up", "a slot of the wire's that is given back with NS_FORWARD goes on to the system")
{
	int stack = wire("ra"), far = wire("rb"), tries;
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_NIC_SW));

	HOLDS(send(far, frame(2), FRAME, 0) == FRAME);
	for (tries = 0; tries < LONG / 10; tries++) {
		give_back(&p);
		if (seen_on(stack, 10) == 2)
			return;
	}
	rule_fails(__FILE__, __LINE__, "it did not go on");
}

RULE("3-FORWARD-down", "one of the host's goes on to the wire, if the port has all of the interface's transmit rings")
{
	int stack = wire("ra"), far = wire("rb"), tries;
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_NIC_SW));

	system_sends(stack, 3);
	for (tries = 0; tries < LONG / 10; tries++) {
		give_back(&p);
		if (seen_on(far, 10) == 3)
			break;
	}
	HOLDS(tries < LONG / 10);
	close_port(&p);
	p = open_nic("ra", WISH(.nr_mode = NR_REG_SW));
	system_sends(stack, 4);
	for (tries = 0; tries < 10; tries++)
		give_back(&p);
	SAME(seen_on(far, 50), -1);
}

RULE("4-host-full", "what the system sends while the host ring is full is dropped, and later packets come")
{
	int stack = wire("ra"), i;
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_SW));
	int room = (int)rx_ring(&p, host_rx(&p))->num_slots;

	/* A socket that has sent too much is told so, and waits. */
	for (i = 0; i < room * 2; i++)
		send(stack, frame(1), FRAME, 0);
	HOLDS(host_ring_has(&p, 1, LONG));
	while (host_ring_has(&p, 1, 100))
		;
	system_sends(stack, 2);
	HOLDS(host_ring_has(&p, 2, LONG));
}

RULE("4-host-closed", "when the host rings are closed, the system sends to the wire again")
{
	int stack = wire("ra"), far = wire("rb"), i;
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_SW));

	close_port(&p);
	for (i = 0; i < LONG / 50; i++) {
		system_sends(stack, 7);
		if (seen_on(far, 50) == 7)
			return;
	}
	rule_fails(__FILE__, __LINE__, "no frame came to the wire");
}

RULE("4-host-kept", "with all of the interface's rings bound, what the system sends does not get to the wire")
{
	int stack = wire("ra"), far = wire("rb");
	struct port p = open_nic("ra", ANY);

	/* The system may be told that there is no room. */
	send(stack, frame(1), FRAME, 0);
	SAME(seen_on(far, 100), -1);
	txsync(&p);
}

RULE("4-host-sends", "with a ring of the interface's left to the system, it goes on sending to the wire")
{
	int stack = wire("ra"), far = wire("rb");
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));

	system_sends(stack, 40);
	SAME(seen_on(far, LONG), 40);
	txsync(&p);
}

RULE("9.9-host-info", "PORT_INFO_GET by the bare name tells of the interface while its host rings are open")
{
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_SW));
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_INFO_GET, "ra");
	WORKS(send_ask(&q));
	SAME(q.info.nr_tx_rings, p.reg.nr_tx_rings);
	SAME(q.info.nr_host_rx_rings, 1);
	SAME(q.info.nr_mem_id, p.reg.nr_mem_id);
}

RULE("9.10-suricata", "rings one by one: a receive ring of the wire and a transmit ring of the host, with two host rings")
{
	int stack = wire("ra"), far = wire("rb"), i;
	struct port in = open_nic("ra", WISH(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 0, .nr_flags = NR_RX_RINGS_ONLY,
	    .nr_host_tx_rings = 2, .nr_host_rx_rings = 2));
	struct port out = open_beside(&in, "ra", WISH(.nr_mode = NR_REG_ONE_SW, .nr_ringid = 0,
	    .nr_flags = NR_TX_RINGS_ONLY, .nr_host_tx_rings = 2, .nr_host_rx_rings = 2));

	SAME(out.reg.nr_host_tx_rings, 2);
	for (i = 0; i < 50; i++)
		HOLDS(send(far, frame(3), FRAME, 0) == FRAME);
	put(tx_ring(&out, host_tx(&out)), frame(9), FRAME, 0);
	txsync(&out);
	do
		i = seen_on(stack, LONG);
	while (i == 3);
	SAME(i, 9);
}
