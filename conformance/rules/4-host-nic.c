/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: host rings, which connect a program to the host stack of an
 * interface.
 */
#include <linux/if_packet.h>
#include <sys/socket.h>

#include "wire.h"

/* Return the index of a port's first host ring. */
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

/* Sends a frame through the host stack. */
static void
host_sends(int stack, unsigned int n)
{
	CHECK(send(stack, frame(n), FRAME, 0) == FRAME);
}

/* Returns whether frame n arrives in a bound host rx ring within the time. */
static int
host_ring_has(const struct port *p, unsigned int n, int limit_ms)
{
	unsigned int i, got;
	int revents;

	while (poll_fd(p->fd, POLLIN, limit_ms, &revents) == 1 && revents == POLLIN)
		for (i = host_rx(p); i < host_rx(p) + p->nifp->ni_host_rx_rings; i++)
			while (p->nifp->ring_ofs[tx_entries(p) + i] != 0 && !nm_ring_empty(rx_ring(p, i))) {
				struct netmap_slot *slot = get(rx_ring(p, i));
				char *data = slot_data(rx_ring(p, i), slot);

				memcpy(&got, data + 14, sizeof(got));
				if (slot->len >= 18 && memcmp(data + 12, "\x88\xb5", 2) == 0 && got == n)
					return 1;
			}
	return 0;
}

RULE("1.2-SW", "mode SW binds the host rings only")
{
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_SW));
	unsigned int i;

	CHECK_EQ(p.nifp->ni_host_tx_rings, 1);
	CHECK_EQ(p.nifp->ni_host_rx_rings, 1);
	for (i = 0; i < host_tx(&p); i++)
		CHECK_EQ(p.nifp->ring_ofs[i], 0);
	for (i = 0; i < host_rx(&p); i++)
		CHECK_EQ(p.nifp->ring_ofs[tx_entries(&p) + i], 0);
	CHECK(p.nifp->ring_ofs[host_tx(&p)] != 0);
	CHECK(p.nifp->ring_ofs[tx_entries(&p) + host_rx(&p)] != 0);
	CHECK_EQ(tx_ring(&p, host_tx(&p))->dir, 0);
	CHECK_EQ(rx_ring(&p, host_rx(&p))->dir, 1);
}

RULE("1.2-NIC_SW", "mode NIC_SW binds all rings, the interface's and the host rings")
{
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_NIC_SW));
	unsigned int i;

	for (i = 0; i < all_entries(&p); i++)
		CHECK(p.nifp->ring_ofs[i] != 0);
}

RULE("1.2-host-rings", "the first opener sets the number of host rings; on an open port the request has no effect")
{
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_SW, .nr_host_tx_rings = 2, .nr_host_rx_rings = 2)), q;

	CHECK_EQ(p.reg.nr_host_tx_rings, 2);
	CHECK_EQ(p.reg.nr_host_rx_rings, 2);
	CHECK_EQ(p.nifp->ni_host_tx_rings, 2);
	q = open_nic("ra", REG(.nr_mode = NR_REG_SW, .nr_host_tx_rings = 3, .nr_host_rx_rings = 3));
	CHECK_EQ(q.reg.nr_host_tx_rings, 2);
	CHECK_EQ(q.reg.nr_host_rx_rings, 2);
}

RULE("1.2-ONE_SW", "mode ONE_SW binds host ring pair nr_ringid; a number that does not exist: EINVAL")
{
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_ONE_SW, .nr_ringid = 1, .nr_host_tx_rings = 2,
	    .nr_host_rx_rings = 2)), q;

	CHECK_EQ(p.nifp->ring_ofs[host_tx(&p)], 0);
	CHECK(p.nifp->ring_ofs[host_tx(&p) + 1] != 0);
	CHECK_EQ(p.nifp->ring_ofs[tx_entries(&p) + host_rx(&p)], 0);
	CHECK(p.nifp->ring_ofs[tx_entries(&p) + host_rx(&p) + 1] != 0);
	CHECK_ERRNO(EINVAL, bind_port(&q, open_device(), "ra", REG(.nr_mode = NR_REG_ONE_SW, .nr_ringid = 2)));
}

RULE("4-host-region", "host rings are in the interface's region")
{
	struct port host = open_nic("ra", REG(.nr_mode = NR_REG_SW)), p = open_nic("ra", ALL_RINGS);

	CHECK_EQ(host.reg.nr_mem_id, p.reg.nr_mem_id);
	CHECK_EQ(host.reg.nr_memsize, p.reg.nr_memsize);
}

RULE("4-host-rx", "packets that the host stack sends through the interface arrive in the host ring, not on the wire")
{
	int stack = open_wire("ra"), far = open_wire("rb"), i;
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_SW));

	for (i = 1; i <= 5; i++)
		host_sends(stack, (unsigned)i);
	for (i = 1; i <= 5; i++)
		CHECK(host_ring_has(&p, (unsigned)i, TIMEOUT_MS));
	CHECK_EQ(received_on_wire(far, 50), -1);
}

RULE("4-host-tx", "packets sent to the host ring arrive in the host stack, not on the wire")
{
	int stack = open_wire("ra"), far = open_wire("rb"), i;
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_SW));

	for (i = 0; i < 5; i++)
		put(tx_ring(&p, host_tx(&p)), frame((unsigned)i), FRAME, 0);
	txsync(&p);
	for (i = 0; i < 5; i++)
		CHECK_EQ(received_on_wire(stack, TIMEOUT_MS), i);
	CHECK_EQ(received_on_wire(far, 50), -1);
}

RULE("4-host-forward", "a program between wire and host stack forwards packets both ways by exchanging buffers")
{
	int stack = open_wire("ra"), far = open_wire("rb"), tries;
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_NIC_SW));
	unsigned int i;
	int revents, to_wire = 0, to_system = 0;

	host_sends(stack, 1);
	CHECK(send(far, frame(2), FRAME, 0) == FRAME);
	for (tries = 0; tries < TIMEOUT_MS / 10 && !(to_wire && to_system); tries++) {
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
		to_wire |= received_on_wire(far, 10) == 1;
		to_system |= received_on_wire(stack, 10) == 2;
	}
	CHECK(to_wire);
	CHECK(to_system);
}

/* Releases all received slots with NS_FORWARD. */
static void
forward_all(struct port *p)
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

RULE("3-FORWARD-up", "a slot of a NIC rx ring released with NS_FORWARD is forwarded to the host stack")
{
	int stack = open_wire("ra"), far = open_wire("rb"), tries;
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_NIC_SW));

	CHECK(send(far, frame(2), FRAME, 0) == FRAME);
	for (tries = 0; tries < TIMEOUT_MS / 10; tries++) {
		forward_all(&p);
		if (received_on_wire(stack, 10) == 2)
			return;
	}
	rule_fails(__FILE__, __LINE__, "it did not go on");
}

RULE("3-FORWARD-down",
    "a slot of a host rx ring released with NS_FORWARD is sent, if the port has bound all NIC tx rings")
{
	int stack = open_wire("ra"), far = open_wire("rb"), tries;
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_NIC_SW));

	host_sends(stack, 3);
	for (tries = 0; tries < TIMEOUT_MS / 10; tries++) {
		forward_all(&p);
		if (received_on_wire(far, 10) == 3)
			break;
	}
	CHECK(tries < TIMEOUT_MS / 10);
	close_port(&p);
	p = open_nic("ra", REG(.nr_mode = NR_REG_SW));
	host_sends(stack, 4);
	for (tries = 0; tries < 10; tries++)
		forward_all(&p);
	CHECK_EQ(received_on_wire(far, 50), -1);
}

RULE("4-host-full", "packets that the host stack sends while the host ring is full are dropped; later ones arrive")
{
	int stack = open_wire("ra"), i;
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_SW));
	int room = (int)rx_ring(&p, host_rx(&p))->num_slots;

	/* Errors are ignored: send fails once the socket's buffer is full. */
	for (i = 0; i < room * 2; i++)
		send(stack, frame(1), FRAME, 0);
	CHECK(host_ring_has(&p, 1, TIMEOUT_MS));
	/* The first ones may still be dropped: some of the many may be on their way. */
	for (i = 0; i < TIMEOUT_MS / 50; i++) {
		send(stack, frame(2), FRAME, 0);
		if (host_ring_has(&p, 2, 50))
			return;
	}
	rule_fails(__FILE__, __LINE__, "no later packet arrived");
}

RULE("4-host-closed", "after the host rings are closed, the host stack sends to the wire again")
{
	int stack = open_wire("ra"), far = open_wire("rb"), i;
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_SW));

	close_port(&p);
	for (i = 0; i < TIMEOUT_MS / 50; i++) {
		host_sends(stack, 7);
		if (received_on_wire(far, 50) == 7)
			return;
	}
	rule_fails(__FILE__, __LINE__, "no frame arrived on the wire");
}

RULE("4-host-kept", "while all NIC rings are bound, packets of the host stack do not reach the wire")
{
	int stack = open_wire("ra"), far = open_wire("rb");
	struct port p = open_nic("ra", ALL_RINGS);

	/* send may fail, as the frame is dropped. */
	send(stack, frame(1), FRAME, 0);
	CHECK_EQ(received_on_wire(far, 100), -1);
	txsync(&p);
}

RULE("4-host-sends", "while a NIC ring is unbound, the host stack continues to send to the wire")
{
	int stack = open_wire("ra"), far = open_wire("rb");
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));

	host_sends(stack, 40);
	CHECK_EQ(received_on_wire(far, TIMEOUT_MS), 40);
	txsync(&p);
}

RULE("9.9-host-info", "PORT_INFO_GET with the bare name describes the interface while its host rings are open")
{
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_SW));
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, "ra");
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.info.nr_tx_rings, p.reg.nr_tx_rings);
	CHECK_EQ(q.info.nr_host_rx_rings, 1);
	CHECK_EQ(q.info.nr_mem_id, p.reg.nr_mem_id);
}

RULE("9.10-suricata", "rings bound one by one: a NIC rx ring and a host tx ring, with two host rings")
{
	int stack = open_wire("ra"), far = open_wire("rb"), i;
	struct port in = open_nic("ra", REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 0, .nr_flags = NR_RX_RINGS_ONLY,
	    .nr_host_tx_rings = 2, .nr_host_rx_rings = 2));
	struct port out = open_in_region(&in, "ra", REG(.nr_mode = NR_REG_ONE_SW, .nr_ringid = 0,
	    .nr_flags = NR_TX_RINGS_ONLY, .nr_host_tx_rings = 2, .nr_host_rx_rings = 2));

	CHECK_EQ(out.reg.nr_host_tx_rings, 2);
	for (i = 0; i < 50; i++)
		CHECK(send(far, frame(3), FRAME, 0) == FRAME);
	put(tx_ring(&out, host_tx(&out)), frame(9), FRAME, 0);
	txsync(&out);
	do
		i = received_on_wire(stack, TIMEOUT_MS);
	while (i == 3);
	CHECK_EQ(i, 9);
}
