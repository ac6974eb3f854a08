/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: a switch port whose reader is slower than its sender. How much of
 * its best rate the reader keeps is measured by `unetmap bench vale-overload`.
 */
#include <net/ethernet.h>
#include <signal.h>
#include <string.h>

#include "port.h"

/* Packets that the reader gets from each sender, and rounds that it computes for each. */
#define PACKETS		3000
#define ROUNDS		800

struct packet {
	struct ether_header header;
	/* Of its sender. */
	uint32_t batch;
	uint32_t number;
	char rest[60 - sizeof(struct ether_header) - 2 * sizeof(uint32_t)];
} __attribute__((__packed__));

/* Sends numbered packets without end, batch by batch. */
static void
flood(const char *name, int batch)
{
	struct port p = open_port(name, ALL_RINGS);
	struct netmap_ring *ring = tx_ring(&p, 0);
	struct packet packet = { .header = { .ether_dhost = { 2, 0, 0, 0, 0, 9 }, .ether_shost = { 2, 0, 0, 0, 0, 1 } } };
	int i;

	packet.batch = batch;
	for (;;) {
		for (i = 0; i < batch && nm_ring_space(ring) > 0; i++) {
			packet.number++;
			put(ring, &packet, sizeof(packet), 0);
		}
		txsync(&p);
	}
}

static void
check_reader(int batch)
{
	struct port p = open_port("valeflood:r", ALL_RINGS);
	struct netmap_ring *ring = rx_ring(&p, 0);
	struct packet packet;
	volatile int rounds;
	uint32_t last = 0;
	int got = 0, revents;
	pid_t sender = fork();

	CHECK_OK(sender);
	if (sender == 0)
		flood("valeflood:s", batch);
	while (got < PACKETS) {
		CHECK_EQ(poll_fd(p.fd, POLLIN, 20000, &revents), 1);
		CHECK_EQ(revents, POLLIN);
		while (!nm_ring_empty(ring)) {
			const struct netmap_slot *slot = get(ring);

			CHECK_EQ(slot->len, sizeof(packet));
			memcpy(&packet, slot_data(ring, slot), sizeof(packet));
			/* The switch may still have packets of the sender before, which was killed. */
			if ((int)packet.batch != batch)
				continue;
			CHECK(packet.number > last);
			last = packet.number;
			got++;
			for (rounds = 0; rounds < ROUNDS; rounds++)
				;
		}
	}
	CHECK_OK(kill(sender, SIGKILL));
	close_port(&p);
}

RULE("4-vale-flood", "a slow reader of a flooded port reads on, in order, for senders of every batch size")
{
	static const int batches[] = { 1, 8, 64, 512 };
	size_t i;

	for (i = 0; i < sizeof(batches) / sizeof(batches[0]); i++)
		check_reader(batches[i]);
}
